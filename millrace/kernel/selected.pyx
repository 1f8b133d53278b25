# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""Rows of a text result set to row images: what ``SelectedTable.image`` does, for all rows that have come.

A :class:`SelectedImages` holds a plan: a kind and sizes for each column, from ``millrace.snapshot.images``, which stays
the reference. It takes packets of rows ("Text Resultset Row" in the MySQL source documentation) off the front of
what was received. A value that is not spelled as servers spell it, or of a type without a kind here, is written by
the reference's function for its column. What that refuses, what is no row, a row that does not fit, and the last
row before the end are left where they are, for the reference.

No byte is read or written but through :func:`take` and :func:`room`, which prove that it is there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport isinf
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from millrace.kernel.reading cimport Source, little, source_at, take
from millrace.kernel.writing cimport DONE, NO_MEMORY, UNUSUAL, Output, put, room, trim

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0

__all__ = ["SelectedImages"]

# generated: SelectedKind
cdef enum SelectedKind:
    PYTHON = 0
    SIGNED = 1
    UNSIGNED = 2
    REAL = 3
    DECIMAL = 4
    BIT = 5
    YEAR = 6
    DATE = 7
    TIME = 8
    DATETIME = 9
    TIMESTAMP = 10
    STRING = 11
    BINARY = 12
# end

cdef enum:
    HEAD = 4  # bytes of a packet before its payload: its length and its number
    LONGEST = 0xFFFFFF  # what has this length continues in the next packet
    NULL_VALUE = 0xFB
    END = 0xFE  # of the rows, where the packet is shorter than a length of eight bytes
    ERROR = 0xFF
    MOST_DIGITS = 65
    MOST_REAL = 64
    KEPT = 1 << 20  # bytes of the output that are kept from one call to the next

cdef uint64_t EXACT = 1ULL << 53
cdef double[23] TENS = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
    1e20, 1e21, 1e22,
]
cdef int[10] BYTES_OF_DIGITS = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
cdef int64_t[4] MICROS_OF_FRACTION = [1_000_000, 10_000, 100, 1]


cdef struct Field:
    int kind
    int size  # bytes of the value, or of the length in front of it
    int a
    int b


# -- values ---------------------------------------------------------------------------------------------

cdef inline int put_little(Output* out, uint64_t number, int size) noexcept nogil:
    """Append up to 8 bytes, the lowest first."""
    cdef int i
    cdef uint8_t* into = room(out, size)
    if into == NULL:
        return NO_MEMORY
    for i in range(size):
        into[i] = <uint8_t>(number >> 8 * i & 0xFF)
    return DONE


cdef inline int put_big(Output* out, uint64_t number, int size) noexcept nogil:
    """Append up to 8 bytes, the highest first."""
    cdef int i
    cdef uint8_t* into = room(out, size)
    if into == NULL:
        return NO_MEMORY
    for i in range(size):
        into[i] = <uint8_t>(number >> 8 * (size - 1 - i) & 0xFF)
    return DONE


cdef inline int64_t digits_of(Source* text, Py_ssize_t least, Py_ssize_t most) noexcept nogil:
    """Step over ``least`` to ``most`` digits, 18 at most, and give their number; -1 where they are not there."""
    cdef int64_t number = 0
    cdef Py_ssize_t count = 0
    while count < most and text.at < text.end and 0x30 <= text.data[text.at] <= 0x39:
        number = number * 10 + (text.data[text.at] - 0x30)
        text.at += 1
        count += 1
    return number if count >= least else -1


cdef inline bint step_over(Source* text, uint8_t byte) noexcept nogil:
    """Step over a byte if it comes next, and say whether it did."""
    if text.at < text.end and text.data[text.at] == byte:
        text.at += 1
        return True
    return False


cdef int put_integer(Output* out, Source* text, int size, bint signed) noexcept nogil:
    cdef uint64_t most = 0xFFFFFFFFFFFFFFFFULL >> (64 - 8 * size)
    cdef uint64_t number = 0
    cdef uint64_t digit
    cdef bint negative = signed and step_over(text, 0x2D)
    if signed:
        most = (most >> 1) + (1 if negative else 0)
    if text.at == text.end:
        return UNUSUAL
    while text.at < text.end:
        digit = <uint64_t>text.data[text.at] - 0x30
        if digit > 9 or number > (most - digit) // 10:
            return UNUSUAL
        number = number * 10 + digit
        text.at += 1
    return put_little(out, 0 - number if negative else number, size)


cdef int put_year(Output* out, Source* text) noexcept nogil:
    cdef int64_t year = digits_of(text, 4, 4)
    if text.at != text.end or (year != 0 and not 1901 <= year <= 2155):
        return UNUSUAL
    return put_little(out, year - 1900 if year else 0, 1)


cdef int put_real(Output* out, Source* text, int size) except -1:
    """Append the nearest FLOAT or DOUBLE; of few digits it is a division of two doubles that are exact."""
    cdef char[MOST_REAL + 1] copied
    cdef uint64_t digits = 0
    cdef uint64_t bits
    cdef uint32_t half
    cdef int decimals = 0
    cdef bint has_point = False
    cdef double value
    cdef float single
    cdef uint8_t byte
    cdef Py_ssize_t at
    cdef bint negative = text.end > 0 and text.data[0] == 0x2D
    cdef bint simple = text.end - negative > 0 and text.data[text.end - 1] != 0x2E
    if text.end > MOST_REAL:
        return UNUSUAL
    for at in range(negative, text.end):
        byte = text.data[at]
        if 0x30 <= byte <= 0x39:
            if digits > EXACT:
                simple = False
            else:
                digits = digits * 10 + (byte - 0x30)
            decimals += has_point
        elif byte == 0x2E and not has_point and at > negative:
            has_point = True
        elif byte == 0x2E or byte == 0x2B or byte == 0x2D or byte == 0x65:
            simple = False
        else:
            return UNUSUAL
    if simple and digits <= EXACT and decimals <= 22:
        value = <double>digits / TENS[decimals]
        if negative:
            value = -value
    else:
        memcpy(copied, text.data, text.end)
        copied[text.end] = 0
        try:
            value = PyOS_string_to_double(copied, NULL, NULL)
        except ValueError:
            return UNUSUAL
    if size == 8:
        memcpy(&bits, &value, 8)
        return put_little(out, bits, 8)
    single = <float>value
    if isinf(single):
        return UNUSUAL
    memcpy(&half, &single, 4)
    return put_little(out, half, 4)


cdef int put_decimal(Output* out, Source* text, Py_ssize_t precision, Py_ssize_t scale) noexcept nogil:
    """Append a DECIMAL: groups of digits, those before and those after the point apart."""
    cdef uint8_t[MOST_DIGITS] digits
    cdef Py_ssize_t whole = precision - scale
    cdef Py_ssize_t first, count, decimals, at, left
    cdef uint32_t group
    cdef uint8_t flip
    cdef int width, i, j
    cdef uint8_t* into
    cdef bint negative = step_over(text, 0x2D)
    cdef bint is_first = True
    first = text.at
    while text.at < text.end and 0x30 <= text.data[text.at] <= 0x39:
        text.at += 1
    count = text.at - first
    if count == 0:
        return UNUSUAL
    while count and text.data[first] == 0x30:
        first += 1
        count -= 1
    if count > whole:
        return UNUSUAL
    memset(digits, 0, MOST_DIGITS)
    for at in range(count):
        digits[whole - count + at] = text.data[first + at] - 0x30
    if step_over(text, 0x2E):
        first = text.at
        decimals = text.end - first
        if decimals == 0 or decimals > scale:
            return UNUSUAL
        for at in range(decimals):
            if not 0x30 <= text.data[first + at] <= 0x39:
                return UNUSUAL
            digits[whole + at] = text.data[first + at] - 0x30
    elif text.at != text.end:
        return UNUSUAL
    flip = 0xFF if negative else 0
    at = 0
    while at < precision:
        if at < whole:
            left = whole - at
            i = <int>(left % 9) if left % 9 else 9
        else:
            left = precision - at
            i = 9 if left > 9 else <int>left
        group = 0
        for j in range(i):
            group = group * 10 + digits[at + j]
        at += i
        width = BYTES_OF_DIGITS[i]
        into = room(out, width)
        if into == NULL:
            return NO_MEMORY
        for j in range(width):
            into[j] = <uint8_t>(group >> 8 * (width - 1 - j) & 0xFF) ^ flip
        if is_first:
            into[0] ^= 0x80
            is_first = False
    return DONE


cdef int64_t fraction_of(Source* text, int fraction_bytes) noexcept nogil:
    """Read what is left of a time, nothing or a point and digits, in units of the column; -1 for anything else."""
    cdef int64_t micros
    cdef Py_ssize_t count
    if text.at == text.end:
        return 0
    if not step_over(text, 0x2E):
        return -1
    count = text.end - text.at
    micros = digits_of(text, 1, 6)
    if micros < 0 or text.at != text.end:
        return -1
    while count < 6:
        micros *= 10
        count += 1
    if micros % MICROS_OF_FRACTION[fraction_bytes]:
        return -1
    return micros // MICROS_OF_FRACTION[fraction_bytes]


cdef int64_t date_of(Source* text, int64_t years) noexcept nogil:
    """Read year-month-day as year times ``years`` plus month, in front of five bits of day; -1 for anything else."""
    cdef int64_t year, month, day
    year = digits_of(text, 4, 4)
    if year < 0 or not step_over(text, 0x2D):
        return -1
    month = digits_of(text, 2, 2)
    if month < 0 or month > 12 or not step_over(text, 0x2D):
        return -1
    day = digits_of(text, 2, 2)
    if day < 0 or day > 31:
        return -1
    return (year * years + month) << 5 | day


cdef int64_t clock_of(Source* text, Py_ssize_t digits, int64_t most) noexcept nogil:
    """Read hours of two digits or more, minutes and seconds, with six bits for each of these; -1 for anything else."""
    cdef int64_t hours, minutes, seconds
    hours = digits_of(text, 2, digits)
    if hours < 0 or hours > most or not step_over(text, 0x3A):
        return -1
    minutes = digits_of(text, 2, 2)
    if minutes < 0 or minutes > 59 or not step_over(text, 0x3A):
        return -1
    seconds = digits_of(text, 2, 2)
    if seconds < 0 or seconds > 59:
        return -1
    return hours << 12 | minutes << 6 | seconds


cdef int put_date(Output* out, Source* text) noexcept nogil:
    cdef int64_t date = date_of(text, 16)
    if date < 0 or text.at != text.end:
        return UNUSUAL
    return put_little(out, date, 3)


cdef int put_time(Output* out, Source* text, int fraction_bytes) noexcept nogil:
    cdef bint negative = step_over(text, 0x2D)
    cdef int64_t clock = clock_of(text, 3, 1023)
    cdef int64_t fraction = -1 if clock < 0 else fraction_of(text, fraction_bytes)
    cdef int64_t packed
    if fraction < 0:
        return UNUSUAL
    packed = clock << 8 * fraction_bytes | fraction
    packed = (<int64_t>0x800000 << 8 * fraction_bytes) + (-packed if negative else packed)
    return put_big(out, packed, 3 + fraction_bytes)


cdef int put_datetime(Output* out, Source* text, int fraction_bytes) noexcept nogil:
    cdef int64_t date = date_of(text, 13)
    cdef int64_t clock = -1
    cdef int64_t fraction = -1
    if date >= 0 and step_over(text, 0x20):
        clock = clock_of(text, 2, 23)
    if clock >= 0:
        fraction = fraction_of(text, fraction_bytes)
    if fraction < 0:
        return UNUSUAL
    return put_big(out, <uint64_t>1 << 39 | <uint64_t>date << 17 | clock, 5) or put_big(out, fraction, fraction_bytes)


cdef int put_timestamp(Output* out, Source* text, int fraction_bytes) noexcept nogil:
    cdef int64_t seconds = digits_of(text, 1, 10)
    cdef int64_t fraction = -1 if seconds < 0 else fraction_of(text, fraction_bytes)
    if fraction < 0 or seconds >> 32:
        return UNUSUAL
    return put_big(out, seconds, 4) or put_big(out, fraction, fraction_bytes)


cdef int put_bit(Output* out, const uint8_t* data, Py_ssize_t size, int wanted) noexcept nogil:
    cdef uint8_t* into
    if size > wanted:
        return UNUSUAL
    into = room(out, wanted)
    if into == NULL:
        return NO_MEMORY
    memset(into, 0, wanted - size)
    memcpy(into + wanted - size, data, size)
    return DONE


cdef int put_string(Output* out, const uint8_t* data, Py_ssize_t size, int length_bytes) noexcept nogil:
    """Append a string with its length in front."""
    if size >> 8 * length_bytes:
        return UNUSUAL
    return put_little(out, size, length_bytes) or put(out, data, size)


cdef int put_value(Output* out, const Field* field, const uint8_t* data, Py_ssize_t size) except -1:
    cdef Source text = source_at(data, size)
    cdef int kind = field.kind
    if kind == STRING:
        return put_string(out, data, size, field.size)
    if kind == BINARY:
        # Zero bytes at the end do not travel.
        while size and data[size - 1] == 0:
            size -= 1
        return put_string(out, data, size, field.size)
    if kind == SIGNED or kind == UNSIGNED:
        return put_integer(out, &text, field.size, kind == SIGNED)
    if kind == REAL:
        return put_real(out, &text, field.size)
    if kind == DECIMAL:
        return put_decimal(out, &text, field.a, field.b)
    if kind == BIT:
        return put_bit(out, data, size, field.size)
    if kind == YEAR:
        return put_year(out, &text)
    if kind == DATE:
        return put_date(out, &text)
    if kind == TIME:
        return put_time(out, &text, field.a)
    if kind == DATETIME:
        return put_datetime(out, &text, field.a)
    if kind == TIMESTAMP:
        return put_timestamp(out, &text, field.a)
    return UNUSUAL


# -- rows -----------------------------------------------------------------------------------------------

cdef class SelectedImages:
    """Writes the images of rows of one table.

    ``fields`` has for each column its kind, its size (of a value, or of the length in front of it) and two numbers
    more: precision and scale of a DECIMAL, bytes of a fraction of a second. ``writers`` are the reference's functions,
    which make of a value its bytes in an image.
    """

    cdef Field* fields
    cdef Py_ssize_t columns
    cdef list writers
    cdef Output out
    cdef bint busy

    def __cinit__(self, fields, writers):
        cdef Py_ssize_t i
        self.writers = list(writers)
        self.columns = len(fields)
        if len(self.writers) != self.columns or not self.columns:
            raise ValueError("one writer for each of the columns")
        self.fields = <Field*>calloc(self.columns, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError
        for i in range(self.columns):
            self.fields[i].kind, self.fields[i].size, self.fields[i].a, self.fields[i].b = fields[i]
            check_field(&self.fields[i])

    def __dealloc__(self):
        free(self.fields)
        free(self.out.data)

    def take(self, const uint8_t[::1] data not None, int sequence, Py_ssize_t most):
        """Take rows off the front of packets, of which the first is to have the number ``sequence``.

        Returns their images, of up to ``most`` bytes, how many they are, how many bytes of ``data`` they took, and
        the number of the packet after them.
        """
        if self.busy:
            raise RuntimeError("the kernel writes images already")
        self.busy = True
        self.out.size = 0
        try:
            return self._take(&data[0] if data.shape[0] else NULL, data.shape[0], sequence, most)
        finally:
            self.busy = False
            trim(&self.out, KEPT)

    cdef _take(self, const uint8_t* data, Py_ssize_t size, int sequence, Py_ssize_t most):
        cdef Source packets = source_at(data, size)
        cdef Source row
        cdef const uint8_t* head
        cdef Py_ssize_t taken = 0
        cdef Py_ssize_t rows = 0
        cdef Py_ssize_t written
        cdef int status
        while True:
            head = take(&packets, HEAD)
            if head == NULL or head[3] != sequence:
                break
            size = <Py_ssize_t>little(head, 3)
            data = take(&packets, size)
            if data == NULL or size == LONGEST or is_no_row(data, size):
                break
            # What follows tells whether this row is the last, which is not taken.
            head = take(&packets, HEAD + 1)
            if head == NULL or is_no_row(head + HEAD, <Py_ssize_t>little(head, 3)):
                break
            packets.at -= HEAD + 1
            written = self.out.size
            row = source_at(data, size)
            status = self._image(&row)
            if status == NO_MEMORY:
                raise MemoryError
            if status == UNUSUAL or self.out.size > most:
                self.out.size = written
                break
            taken = packets.at
            rows += 1
            sequence = (sequence + 1) & 0xFF
        images = PyBytes_FromStringAndSize(<const char*>self.out.data, self.out.size) if rows else b""
        return images, rows, taken, sequence

    cdef int _image(self, Source* row) except -1:
        """Append the image of a row; UNUSUAL where only the reference can say what it is."""
        cdef Output* out = &self.out
        cdef Py_ssize_t start = out.size
        cdef Py_ssize_t i, size, written
        cdef Py_ssize_t null_size = (self.columns + 7) // 8
        cdef const uint8_t* data
        cdef int width, status
        cdef uint8_t* null_bits = room(out, null_size)
        if null_bits == NULL:
            return NO_MEMORY
        memset(null_bits, 0, null_size)
        for i in range(self.columns):
            data = take(row, 1)
            if data == NULL:
                return UNUSUAL
            if data[0] == NULL_VALUE:
                out.data[start + (i >> 3)] |= <uint8_t>(1 << (i & 7))
                continue
            size = data[0]
            if size > NULL_VALUE:
                width = 2 if size == 0xFC else 3 if size == 0xFD else 8
                data = take(row, width)
                if size == 0xFF or data == NULL:
                    return UNUSUAL
                size = <Py_ssize_t>little(data, width)
            data = take(row, size)
            if data == NULL:
                return UNUSUAL
            written = out.size
            status = put_value(out, &self.fields[i], data, size)
            if status == UNUSUAL:
                out.size = written
                status = self._convert(i, data, size)
            if status != DONE:
                return status
        return DONE if row.at == row.end else UNUSUAL

    cdef int _convert(self, Py_ssize_t ordinal, const uint8_t* data, Py_ssize_t size) except -1:
        """Let the reference write a value; what it refuses, it refuses once more, with an error that says why."""
        cdef bytes written
        try:
            written = self.writers[ordinal](PyBytes_FromStringAndSize(<const char*>data, size))
        except Exception:
            return UNUSUAL
        return put(&self.out, <const uint8_t*>PyBytes_AS_STRING(written), PyBytes_GET_SIZE(written))


cdef inline bint is_no_row(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Say whether a packet is an error, or the end of the rows; ``data`` has one byte at least unless it is empty."""
    return size == 0 or data[0] == ERROR or (data[0] == END and size < 9)


cdef int check_field(const Field* field) except -1:
    """Prove that the sizes of a column are those that its kind writes."""
    cdef int kind = field.kind
    cdef int size = field.size
    cdef bint ok
    if kind == SIGNED or kind == UNSIGNED or kind == BIT:
        ok = 1 <= size <= 8
    elif kind == REAL:
        ok = size == 4 or size == 8
    elif kind == DECIMAL:
        ok = 0 <= field.b <= field.a <= MOST_DIGITS and field.a > 0
    elif kind == TIME or kind == DATETIME or kind == TIMESTAMP:
        ok = 0 <= field.a <= 3
    elif kind == STRING or kind == BINARY:
        ok = 1 <= size <= 4
    else:
        ok = kind == YEAR or kind == DATE or kind == PYTHON
    if not ok:
        raise ValueError(f"sizes that do not fit values of kind {kind}")
    return 0

# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""Row images as text, for the outputs of ``millrace binlog``: SQL comments, JSON, and nothing but a check.

A :class:`RowText` knows of each column how its values are cut out and written, and what stands around them;
what it does not write itself, a function of the column does, value by value. So does a value that is unusual:
a date of no calendar, a string that is not plain text. The layout of rows is that of
:mod:`millrace.binlog.row_images`, which stays the reference, also for a row that reaches past the end.

No byte is read or written but through :func:`take` and :func:`room`, which prove that it is there.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strlen

from millrace.kernel.reading cimport Source, big, little, source_of, take
from millrace.kernel.rows cimport Document, Piece, decimal_digits, is_utf8, piece_of, put_json
from millrace.kernel.writing cimport (
    DONE,
    NO_MEMORY,
    UNUSUAL,
    Output,
    put,
    put_byte,
    put_number,
    put_signed,
    room,
    trim,
)

__all__ = ["RowText"]

# generated: TextKind
cdef enum TextKind:
    PYTHON = 0
    NOTHING = 1
    SIGNED = 2
    UNSIGNED = 3
    BOTH_SIGNS = 4
    STRING = 5
    DECIMAL = 6
    DATE = 7
    TIME = 8
    DATETIME = 9
    SECONDS = 10
    TIMESTAMP = 11
    REAL = 12
    JSON = 13
# end

cdef enum:
    KEPT = 1 << 20  # bytes of the output that are kept from one call to the next
    DIGITS = 66  # of a DECIMAL at most, one in front included

cdef extern from "Python.h":
    char* PyOS_double_to_string(double value, char code, int precision, int flags, int* kind)
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0
    void PyMem_Free(void* memory)
    int Py_DTSF_ADD_DOT_0

cdef uint64_t[4] UNITS = [1, 100, 10_000, 1_000_000]  # in a second, by the bytes of its fraction


cdef struct Column:
    int kind
    int length_bytes  # size of the length in front of a value; 0 where all have one size
    Py_ssize_t size  # of a value, where it is fixed
    Py_ssize_t a
    Py_ssize_t b
    uint8_t quote  # what stands around the text; 0 for nothing
    Piece before
    Piece after
    Piece null


cdef struct Image:
    bint exists
    uint8_t* present  # for each column of the table, whether the image has it
    Py_ssize_t null_size
    uint8_t unused  # the bits of the last byte of NULL columns that belong to none
    Piece head
    Piece tail


cdef int put_padded(Output* out, uint64_t number, int digits) noexcept nogil:
    """Append a number with zeros in front; it has no more digits than that."""
    cdef uint8_t* into = room(out, digits)
    if into == NULL:
        return NO_MEMORY
    while digits:
        digits -= 1
        into[digits] = <uint8_t>(0x30 + number % 10)
        number //= 10
    return DONE


cdef inline int put_date(Output* out, uint64_t year, uint64_t month, uint64_t day, uint8_t between) noexcept nogil:
    return (
        put_padded(out, year, 4)
        or put_byte(out, between)
        or put_padded(out, month, 2)
        or put_byte(out, between)
        or put_padded(out, day, 2)
    )


cdef inline int put_clock(Output* out, uint64_t hour, uint64_t minute, uint64_t second) noexcept nogil:
    return (
        (put_padded(out, hour, 2) if hour < 100 else put_number(out, hour, False))
        or put_byte(out, 0x3A)
        or put_padded(out, minute, 2)
        or put_byte(out, 0x3A)
        or put_padded(out, second, 2)
    )


cdef inline int put_fraction(Output* out, uint64_t units, int size, int digits) noexcept nogil:
    """Append ``digits`` digits of a fraction that lies in ``size`` bytes, and the point."""
    if digits == 0:
        return DONE
    if digits & 1:
        units //= 10
    return put_byte(out, 0x2E) or put_padded(out, units, digits)


cdef inline int size_of_fraction(Py_ssize_t digits) noexcept nogil:
    return <int>(digits + 1) // 2


cdef inline bint is_fraction(uint64_t units, int size, int digits) noexcept nogil:
    """Whether a fraction in ``size`` bytes is less than a second, and has no more than its digits."""
    return units < UNITS[size] and (not digits & 1 or units % 10 == 0)


cdef int put_time(Output* out, const uint8_t* data, int digits) noexcept nogil:
    cdef int size = size_of_fraction(digits)
    cdef int64_t packed = <int64_t>big(data, 3 + size) - (<int64_t>0x800000 << 8 * size)
    cdef uint64_t magnitude = <uint64_t>(-packed if packed < 0 else packed)
    cdef uint64_t whole = magnitude >> 8 * size
    cdef uint64_t units = magnitude & ((<uint64_t>1 << 8 * size) - 1)
    if whole >> 12 > 838 or (whole >> 6 & 63) > 59 or (whole & 63) > 59 or not is_fraction(units, size, digits):
        return UNUSUAL
    if packed < 0 and put_byte(out, 0x2D):
        return NO_MEMORY
    return (
        put_clock(out, whole >> 12, whole >> 6 & 63, whole & 63)
        or put_fraction(out, units, size, digits)
    )


cdef int put_datetime(Output* out, const uint8_t* data, int digits) noexcept nogil:
    """Append a DATETIME whose fields have the digits that they are written with."""
    cdef int size = size_of_fraction(digits)
    cdef int64_t packed = <int64_t>big(data, 5) - (<int64_t>1 << 39)
    cdef uint64_t units = big(data + 5, size)
    cdef uint64_t year
    if packed < 0 or (packed >> 12 & 31) > 23 or (packed >> 6 & 63) > 59 or (packed & 63) > 59:
        return UNUSUAL
    if not is_fraction(units, size, digits):
        return UNUSUAL
    year = <uint64_t>(packed >> 22) // 13
    if year > 9999:
        return UNUSUAL
    return (
        put_date(out, year, <uint64_t>(packed >> 22) % 13, packed >> 17 & 31, 0x2D)
        or put_byte(out, 0x20)
        or put_clock(out, packed >> 12 & 31, packed >> 6 & 63, packed & 63)
        or put_fraction(out, units, size, digits)
    )


cdef int put_seconds(Output* out, const uint8_t* data, int digits) noexcept nogil:
    """Append a TIMESTAMP as the seconds since 1970."""
    cdef int size = size_of_fraction(digits)
    cdef uint64_t units = big(data + 4, size)
    if not is_fraction(units, size, digits):
        return UNUSUAL
    return put_number(out, big(data, 4), False) or put_fraction(out, units, size, digits)


cdef int put_timestamp(Output* out, const uint8_t* data, int digits) noexcept nogil:
    """Append a TIMESTAMP as date and time in UTC."""
    cdef int size = size_of_fraction(digits)
    cdef uint64_t units = big(data + 4, size)
    cdef uint64_t seconds = big(data, 4)
    cdef uint64_t days, era, of_era, years, of_year, month
    if not is_fraction(units, size, digits) or (seconds == 0 and units == 0):
        return UNUSUAL
    # Days from 0000-03-01, so that a leap day is the last of its year; all in the era of 400 years' length.
    days = seconds // 86_400 + 719_468
    era = days // 146_097
    of_era = days % 146_097
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    month = (5 * of_year + 2) // 153
    seconds %= 86_400
    return (
        put_date(
            out,
            years + era * 400 + (1 if month > 9 else 0),
            month - 9 if month > 9 else month + 3,
            of_year - (153 * month + 2) // 5 + 1,
            0x2D,
        )
        or put_byte(out, 0x20)
        or put_clock(out, seconds // 3600, seconds // 60 % 60, seconds % 60)
        or put_fraction(out, units, size, digits)
    )


cdef int put_decimal(Output* out, const uint8_t* data, Py_ssize_t size, Py_ssize_t precision, Py_ssize_t scale) noexcept nogil:
    """Append a DECIMAL with all digits after the point; one that is zero and has a sign is unusual."""
    cdef uint8_t[DIGITS] text
    cdef Py_ssize_t count = decimal_digits(text, data, size, precision, scale)
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t at
    cdef bint negative = not data[0] & 0x80
    if count < 0:
        return UNUSUAL
    while first < count - scale - 1 and text[first] == 0x30:
        first += 1
    if negative:
        for at in range(first, count):
            if text[at] != 0x30:
                break
        else:
            return UNUSUAL
        if put_byte(out, 0x2D):
            return NO_MEMORY
    if put(out, text + first, count - scale - first):
        return NO_MEMORY
    return (put_byte(out, 0x2E) or put(out, text + count - scale, scale)) if scale else DONE


cdef int put_double(Output* out, double value, char code, int precision, int flags) noexcept:
    cdef char* written = PyOS_double_to_string(value, code, precision, flags, NULL)
    cdef int status
    if written == NULL:
        return NO_MEMORY
    status = put(out, <const uint8_t*>written, <Py_ssize_t>strlen(written))
    PyMem_Free(written)
    return status


cdef double shortest(float value) except? -1.0:
    """Return the number with as few digits, 6 at least, as tell a FLOAT from its neighbours."""
    cdef char* written
    cdef double short
    cdef int digits
    for digits in range(6, 10):
        written = PyOS_double_to_string(value, b"g", digits, 0, NULL)
        if written == NULL:
            raise MemoryError
        try:
            short = PyOS_string_to_double(written, NULL, NULL)
        finally:
            PyMem_Free(written)
        if <float>short == value:
            break
    return short


cdef int put_real(Output* out, const uint8_t* data, Py_ssize_t size, bint in_comment) except -1:
    """Append a FLOAT or DOUBLE: as mysqlbinlog writes it, or as JSON has it."""
    cdef uint64_t bits = little(data, <int>size)
    cdef float single
    cdef double value
    cdef Py_ssize_t start = out.size
    cdef uint8_t* into
    cdef int status
    if size == 4:
        memcpy(&single, data, 4)
        value = single
    else:
        memcpy(&value, &bits, 8)
    if not isfinite(value):
        return UNUSUAL
    if not in_comment:
        return put_double(out, shortest(single) if size == 4 else value, b"r", 0, Py_DTSF_ADD_DOT_0)
    if size == 8:
        return put_double(out, value, b"g", 20, 0)
    status = put_double(out, value, b"g", 6, 0)
    while status == DONE and out.size - start < 20:
        status = put_byte(out, 0x20)
    return status


cdef inline bint acts_on_terminal(const uint8_t* data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Say whether a character beyond ASCII is one that ``printable_json`` escapes, or lies near one."""
    cdef uint8_t lead = data[at]
    cdef uint8_t second
    if lead < 0x80 or at + 1 >= size:
        return False
    second = data[at + 1]
    return (
        (lead == 0xC2 and second < 0xA0)
        or (lead == 0xD8 and second == 0x9C)
        or (lead == 0xE2 and (second == 0x80 or second == 0x81))
    )


cdef class RowText:
    """Writes the rows of the events that share a table and the bitmaps of present columns.

    ``columns`` has for each column its kind, the size of the length in front (or 0), the size (where it is
    fixed), the kind's two numbers, the code of the quote around its text (or 0), what stands before and after
    a value, and what stands for NULL. ``converters`` write the bytes of a value where the kernel does not.
    ``escapes`` has of each byte of a string what stands for it, nothing where that is the byte.

    ``before`` and ``after`` are for each image which columns it has, and what stands around its columns; None
    for an image that the kind of event does not have. ``between`` stands between columns. With ``only_check``
    nothing is written, and bits that belong to no column must be the same in all images.
    """

    cdef Column* columns
    cdef Py_ssize_t count
    cdef Image before
    cdef Image after
    cdef Piece between
    cdef Piece[256] escapes
    cdef uint8_t[256] plain
    cdef bint only_check
    cdef int filled  # whether the bits that belong to no column are set; -1 as long as none was seen
    cdef Output out
    cdef Output scratch
    cdef list converters
    cdef list held  # what the pieces point into
    cdef bint busy

    def __cinit__(self, columns, converters, escapes, before, after, between, only_check):
        cdef Py_ssize_t i
        cdef Column* column
        self.count = len(columns)
        self.converters = list(converters)
        self.held = []
        self.only_check = only_check
        if len(self.converters) != self.count or not self.count:
            raise ValueError("there must be a converter for each of some columns")
        if len(escapes) != 256:
            raise ValueError(f"escapes of {len(escapes)} bytes, not of 256")
        for i in range(256):
            self.escapes[i] = self._piece(escapes[i])
            self.plain[i] = self.escapes[i].size == 0
        self.columns = <Column*>calloc(self.count, sizeof(Column))
        if self.columns == NULL:
            raise MemoryError
        for i, (kind, length_bytes, size, a, b, quote, start, end, null) in enumerate(columns):
            column = &self.columns[i]
            column.kind, column.length_bytes, column.size, column.a, column.b = kind, length_bytes, size, a, b
            column.quote = quote
            column.before, column.after, column.null = self._piece(start), self._piece(end), self._piece(null)
            _check_column(column)
        self.between = self._piece(between)
        self._use(&self.before, before)
        self._use(&self.after, after)
        if not self.before.null_size and not self.after.null_size:
            raise ValueError("no column is present")

    cdef Piece _piece(self, data) except *:
        self.held.append(data)
        return piece_of(<bytes?>data)

    cdef int _use(self, Image* image, given) except -1:
        cdef Py_ssize_t i
        cdef Py_ssize_t used = 0
        if given is None:
            return 0
        present, head, tail = given
        if len(present) != self.count:
            raise ValueError(f"{len(present)} columns, not {self.count}")
        image.exists = True
        image.head, image.tail = self._piece(head), self._piece(tail)
        image.present = <uint8_t*>calloc(self.count, 1)
        if image.present == NULL:
            raise MemoryError
        for i in range(self.count):
            if present[i]:
                image.present[i] = 1
                used += 1
        image.null_size = (used + 7) // 8
        image.unused = <uint8_t>(0xFF << (used & 7) & 0xFF) if used & 7 else 0
        return 0

    def __dealloc__(self):
        free(self.columns)
        free(self.before.present)
        free(self.after.present)
        free(self.out.data)
        free(self.scratch.data)

    def write(self, bytes rows not None, Py_ssize_t position, Py_ssize_t enough):
        """Write rows from a position on, at least one and until there are ``enough`` bytes.

        Give the text, the position after the last row that was written, and how many were. Where that is
        the position given, the row there cannot be read. What a converter raises ends the work.
        """
        cdef Source cursor
        cdef Py_ssize_t size, done
        cdef Py_ssize_t number = 0
        cdef Py_ssize_t last = position
        if self.busy:
            raise RuntimeError("the kernel writes rows already")
        if position < 0:
            raise ValueError("a position below 0")
        self.busy = True
        self.filled = -1
        self.out.size = 0
        try:
            cursor = source_of(rows, position, len(rows))
            while cursor.at < cursor.end and (number == 0 or self.out.size < enough):
                done = self.out.size
                if not self._image(&self.before, &cursor) or not self._image(&self.after, &cursor):
                    self.out.size = done
                    break
                if self.only_check:
                    self.out.size = 0
                last = cursor.at
                number += 1
            return PyBytes_FromStringAndSize(<const char*>self.out.data, self.out.size), last, number
        finally:
            self.busy = False
            trim(&self.out, KEPT)
            trim(&self.scratch, KEPT)

    cdef bint _image(self, Image* image, Source* cursor) except -1:
        """Append one image, if there is such a one; say whether it was all there."""
        cdef Output* out = &self.out
        cdef const uint8_t* data
        cdef const uint8_t* null_bits
        cdef Column* column
        cdef Py_ssize_t ordinal, size
        cdef Py_ssize_t index = -1
        cdef int status
        if not image.exists:
            return True
        null_bits = take(cursor, image.null_size)
        if null_bits == NULL:
            return False
        if self.only_check and image.unused and not self._is_filled_alike(image, null_bits):
            return False
        status = put(out, image.head.data, image.head.size)
        for ordinal in range(self.count):
            if not image.present[ordinal]:
                continue
            column = &self.columns[ordinal]
            index += 1
            if index:
                status = status or put(out, self.between.data, self.between.size)
            if null_bits[index >> 3] >> (index & 7) & 1:
                status = status or put(out, column.null.data, column.null.size)
                continue
            size = column.size
            if column.length_bytes:
                data = take(cursor, column.length_bytes)
                if data == NULL:
                    return False
                size = <Py_ssize_t>little(data, column.length_bytes)
            data = take(cursor, size)
            if data == NULL:
                return False
            if column.kind == NOTHING:
                continue
            status = status or put(out, column.before.data, column.before.size)
            status = status or self._value(ordinal, column, data, size)
            status = status or put(out, column.after.data, column.after.size)
            if status:
                break
        if status or put(out, image.tail.data, image.tail.size):
            raise MemoryError
        return True

    cdef bint _is_filled_alike(self, Image* image, const uint8_t* null_bits) noexcept:
        """Say whether the bits that belong to no column are all set or all clear, as in the images before."""
        cdef uint8_t bits = null_bits[image.null_size - 1] & image.unused
        if bits and bits != image.unused:
            return False
        if self.filled < 0:
            self.filled = 1 if bits else 0
        return self.filled == (1 if bits else 0)

    cdef int _value(self, Py_ssize_t ordinal, const Column* column, const uint8_t* data, Py_ssize_t size) except -1:
        """Append the text of a value; what is unusual, or of a kind that is not ours, by its converter."""
        cdef Output* out = &self.out
        cdef Py_ssize_t start = out.size
        cdef int status
        cdef bytes written
        if column.kind == STRING:
            status = self._string(column, data, size, column.a)
        elif column.kind == JSON:
            status = self._json(column, data, size)
        elif column.kind == REAL:
            status = put_real(out, data, size, column.a != 0)
        elif column.kind == PYTHON:
            status = UNUSUAL
        else:
            status = put_byte(out, column.quote) if column.quote else DONE
            status = status or put_plain(out, column, data, size)
            if status == DONE and column.quote:
                status = put_byte(out, column.quote)
        if status != UNUSUAL:
            return status
        out.size = start
        written = self.converters[ordinal](PyBytes_FromStringAndSize(<const char*>data, size))
        return put(out, piece_of(written).data, len(written))

    cdef int _string(self, const Column* column, const uint8_t* data, Py_ssize_t size, Py_ssize_t highest) noexcept:
        """Append a string in quotes; one that must be UTF-8 and is not, or acts on a terminal, is unusual."""
        cdef Output* out = &self.out
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t start = 0
        cdef const Piece* escape
        if highest and not is_utf8(data, size, <uint8_t>highest):
            return UNUSUAL
        if put_byte(out, column.quote):
            return NO_MEMORY
        while at < size:
            if self.plain[data[at]]:
                if highest and acts_on_terminal(data, at, size):
                    return UNUSUAL
                at += 1
                continue
            escape = &self.escapes[data[at]]
            if put(out, data + start, at - start) or put(out, escape.data, escape.size):
                return NO_MEMORY
            at += 1
            start = at
        return put(out, data + start, size - start) or put_byte(out, column.quote)

    cdef int _json(self, const Column* column, const uint8_t* data, Py_ssize_t size) noexcept:
        """Append the text of a document as a string; with ``b`` one that is a mere string is unusual."""
        cdef Document document
        cdef int status
        if size == 0 or (column.b and (data[0] == 0x0C or data[0] == 0x0F)):
            return UNUSUAL
        self.scratch.size = 0
        document.data = data
        document.whole_doubles = column.a != 0
        document.values_left = 1 + size // 3
        document.bytes_left = size
        status = put_json(&self.scratch, &document, data[0], 1, size, 0)
        # Our own text is UTF-8, but what acts on a terminal is looked for where the strings of JSON are.
        return status or self._string(column, self.scratch.data, self.scratch.size, 0 if column.b else 0xF4)


cdef int put_plain(Output* out, const Column* column, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Append a value of few characters, of which none needs an escape."""
    cdef int kind = column.kind
    cdef uint64_t number
    cdef int64_t signed_number
    cdef int shift
    if kind == SIGNED or kind == UNSIGNED or kind == BOTH_SIGNS:
        number = little(data, <int>size)
        shift = 64 - 8 * <int>size
        signed_number = <int64_t>(number << shift) >> shift
        if kind == UNSIGNED or signed_number >= 0:
            return put_number(out, number, False)
        if put_signed(out, signed_number):
            return NO_MEMORY
        if kind == SIGNED:
            return DONE
        return put(out, <const uint8_t*>b" (", 2) or put_number(out, number, False) or put_byte(out, 0x29)
    if kind == DECIMAL:
        return put_decimal(out, data, size, column.a, column.b)
    if kind == DATETIME:
        return put_datetime(out, data, <int>column.a)
    if kind == SECONDS:
        return put_seconds(out, data, <int>column.a)
    if kind == TIMESTAMP:
        return put_timestamp(out, data, <int>column.a)
    if kind == DATE:
        number = little(data, 3)
        if number >> 9 > 9999 or (number >> 5 & 15) > 12:
            return UNUSUAL
        return put_date(out, number >> 9, number >> 5 & 15, number & 31, <uint8_t>column.a)
    return put_time(out, data, <int>column.a)


cdef int _check_column(const Column* column) except -1:
    """Prove that a column's sizes are those that its kind reads, before anything is read by them."""
    cdef int kind = column.kind
    cdef int fraction
    cdef bint ok
    if not 0 <= column.length_bytes <= 4 or column.size < 0 or (column.length_bytes and column.size):
        raise ValueError(f"a length of {column.length_bytes} bytes, a size of {column.size}")
    if kind == SIGNED or kind == UNSIGNED or kind == BOTH_SIGNS:
        ok = 1 <= column.size <= 8
    elif kind == STRING:
        ok = column.length_bytes > 0 and 0 <= column.a <= 0xF4 and column.quote != 0
    elif kind == JSON:
        ok = column.length_bytes > 0 and column.quote != 0
    elif kind == DECIMAL:
        ok = column.size >= 1 and 0 <= column.b <= column.a <= 65
    elif kind == REAL:
        ok = column.size == 4 or column.size == 8
    elif kind == DATE:
        ok = column.size == 3 and 0 < column.a < 0x80
    elif kind == TIME or kind == DATETIME or kind == SECONDS or kind == TIMESTAMP:
        fraction = size_of_fraction(column.a)
        ok = 0 <= column.a <= 6 and column.size == fraction + (3 if kind == TIME else 5 if kind == DATETIME else 4)
    else:
        ok = kind == PYTHON or kind == NOTHING
    if not ok:
        raise ValueError(f"sizes that do not fit values of kind {kind}")
    return 0

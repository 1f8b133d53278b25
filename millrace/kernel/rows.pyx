# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""Row images to the records of row topics: what ``RowImages.avro`` and ``RowsEventWriter.write`` do, in one pass.

A :class:`RowsKernel` holds a plan: one small struct per column, made from the column's declaration
(``ColumnCodec.native``). It reads the rows of an event and writes Avro's binary form into one buffer, from
which the records are cut. The layout of rows is that of :mod:`millrace.binlog.row_images`, that of the records that
of :mod:`millrace.avro.row_records`; both stay the reference. What a plan does not cover is left to them: a type
without a native form is converted by the reference's functions, and a row with a value that its Avro type
cannot hold, without its whole key, or too large for a record is handed back whole. Bytes that are no rows end
the work, and the reference says what is wrong with them.

No byte is read or written but through :func:`take` and :func:`room`, which prove that it is there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from millrace.kernel.reading cimport Source, big, little, source_at, take, trailing_zeros
from millrace.kernel.writing cimport (
    DONE,
    NO_MEMORY,
    TRUNCATED,
    UNUSUAL,
    Output,
    grow,
    put,
    put_byte,
    put_long,
    put_number,
    put_object,
    put_signed,
    put_sized,
    room,
    trim,
    write_digits,
    write_long,
)

from millrace.binlog.errors import MalformedError, UnrepresentableError

__all__ = ["RowBlock", "RowsKernel", "pack"]

# generated: NativeKind
cdef enum NativeKind:
    SIGNED = 1
    UNSIGNED = 2
    UNSIGNED_DECIMAL = 3
    UNSIGNED_TEXT = 4
    REAL = 5
    YEAR = 6
    DATE = 7
    TIME = 8
    DATETIME = 9
    TIMESTAMP = 10
    DECIMAL = 11
    BYTES = 12
    UTF8 = 13
    CODES = 14
    MEMBER = 15
    MEMBERS = 16
    JSON = 17
    GEOMETRY = 18
    DECIMAL_TEXT = 19
    FIXED = 20
    BITS = 21
# end

_UNREPRESENTABLE = (UnrepresentableError, UnicodeDecodeError, MalformedError)

cdef enum:
    PYTHON = 0  # a kind that the reference converts
    KEPT = 1 << 20  # bytes of the output that are kept from one event to the next
    MAX_LIMBS = 9  # 65 digits, the most that DECIMAL has, take 216 bits: 7 limbs of 32

cdef enum:
    NO_DAY = -1_000_000_000  # before all days that there are

cdef uint32_t[10] POWERS = [
    1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000
]
cdef int[10] BYTES_OF_DIGITS = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
cdef int64_t[4] MICROS_OF_FRACTION = [0, 10_000, 100, 1]


# -- the plan -----------------------------------------------------------------------------------------

cdef inline Py_ssize_t find_text(const Texts* texts, const Plan* plan, Py_ssize_t index, const uint8_t** data) noexcept nogil:
    """Return the size of a text of a column; -1 where it has no such text."""
    cdef Py_ssize_t at
    if index < 0 or index >= plan.texts:
        return -1
    at = plan.first_text + index
    data[0] = texts.pool.data + texts.start[at]
    return texts.start[at + 1] - texts.start[at]


# -- values ---------------------------------------------------------------------------------------------

cdef int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Count the days from 1970-01-01 of a day that exists in the years 1 to 9999; else INT64_MIN."""
    cdef int64_t last, y, m
    if year < 1 or year > 9999 or month < 1 or month > 12 or day < 1:
        return NO_DAY
    if month == 2:
        last = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        last = 30
    else:
        last = 31
    if day > last:
        return NO_DAY
    # The year begins in March here, so that a leap day is its last.
    y = year if month > 2 else year - 1
    m = month - 3 if month > 2 else month + 9
    return y * 365 + y // 4 - y // 100 + y // 400 + (153 * m + 2) // 5 + day - 1 - 719468


cdef inline int put_date(Output* out, const uint8_t* data) noexcept nogil:
    cdef uint64_t packed = little(data, 3)
    cdef int64_t days = days_of(packed >> 9, packed >> 5 & 15, packed & 31)
    return UNUSUAL if days == NO_DAY else put_long(out, days)


cdef inline int64_t micros_of(uint64_t units, int fraction_bytes, Py_ssize_t step) noexcept nogil:
    """Count the microseconds of a fraction whose units are a multiple of ``step``; -1 if it is none."""
    cdef int64_t micros = <int64_t>units * MICROS_OF_FRACTION[fraction_bytes]
    return -1 if micros > 999_999 or (step > 1 and units % <uint64_t>step) else micros


cdef inline int put_time(Output* out, const uint8_t* data, int fraction_bytes, Py_ssize_t step) noexcept nogil:
    cdef int64_t packed = <int64_t>big(data, 3 + fraction_bytes) - (<int64_t>0x800000 << 8 * fraction_bytes)
    cdef int64_t magnitude = -packed if packed < 0 else packed
    cdef int64_t whole = magnitude >> 8 * fraction_bytes
    cdef int64_t micros = micros_of(magnitude & ((<int64_t>1 << 8 * fraction_bytes) - 1), fraction_bytes, step)
    if whole >> 12 > 838 or (whole >> 6 & 63) > 59 or (whole & 63) > 59 or micros < 0:
        return UNUSUAL
    micros += ((whole >> 12) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)) * 1_000_000
    return put_long(out, -micros if packed < 0 else micros)


cdef inline int put_datetime(Output* out, const uint8_t* data, int fraction_bytes, Py_ssize_t step) noexcept nogil:
    cdef int64_t packed = <int64_t>big(data, 5) - (<int64_t>1 << 39)
    cdef int64_t micros = micros_of(big(data + 5, fraction_bytes), fraction_bytes, step)
    cdef int64_t days
    if packed < 0 or micros < 0 or (packed >> 12 & 31) > 23 or (packed >> 6 & 63) > 59 or (packed & 63) > 59:
        return UNUSUAL
    days = days_of((packed >> 22) // 13, (packed >> 22) % 13, packed >> 17 & 31)
    if days == NO_DAY:
        return UNUSUAL
    return put_long(
        out,
        days * 86_400 * 1_000_000
        + ((packed >> 12 & 31) * 3600 + (packed >> 6 & 63) * 60 + (packed & 63)) * 1_000_000
        + micros,
    )


cdef inline int put_timestamp(Output* out, const uint8_t* data, int fraction_bytes, Py_ssize_t step) noexcept nogil:
    cdef int64_t seconds = <int64_t>big(data, 4)
    cdef int64_t micros = micros_of(big(data + 4, fraction_bytes), fraction_bytes, step)
    return UNUSUAL if micros < 0 or (seconds == 0 and micros == 0) else put_long(out, seconds * 1_000_000 + micros)


cdef int put_integer(Output* out, const uint32_t* limbs, int count, bint negative) noexcept nogil:
    """Append a number of up to nine limbs, the lowest first, as Avro's decimal: big-endian two's complement."""
    cdef int bits, size, i
    cdef uint32_t top, byte
    cdef uint32_t carry = 1
    cdef uint8_t* into
    while count and limbs[count - 1] == 0:
        count -= 1
    bits = 0
    if count:
        bits = 32 * (count - 1)
        top = limbs[count - 1]
        while top:
            bits += 1
            top >>= 1
        # Of a negative number one bit less is needed where it is a power of two.
        if negative and limbs[count - 1] & (limbs[count - 1] - 1) == 0:
            for i in range(count - 1):
                if limbs[i]:
                    break
            else:
                bits -= 1
    size = bits // 8 + 1
    if put_long(out, size):
        return NO_MEMORY
    into = room(out, size)
    if into == NULL:
        return NO_MEMORY
    for i in range(size):
        byte = limbs[i >> 2] >> 8 * (i & 3) & 0xFF if i >> 2 < count else 0
        if negative:
            byte = (byte ^ 0xFF) + carry
            carry = byte >> 8
        into[size - 1 - i] = <uint8_t>(byte & 0xFF)
    return DONE


cdef inline int next_group(
    const uint8_t* data, Py_ssize_t size, Py_ssize_t* at, Py_ssize_t* whole, Py_ssize_t* scale, uint32_t* group
) noexcept nogil:
    """Read the next digits of a DECIMAL and give how many they are; 0 where they are no digits.

    ``whole`` and ``scale`` are how many are left in front of the point and after it.
    """
    cdef int digits, width
    cdef uint32_t number = 0
    cdef Py_ssize_t i, start = at[0]
    cdef uint8_t flip = 0 if data[0] & 0x80 else 0xFF
    if whole[0]:
        digits = <int>(whole[0] % 9) if whole[0] % 9 else 9
        whole[0] -= digits
    else:
        digits = 9 if scale[0] > 9 else <int>scale[0]
        scale[0] -= digits
    width = BYTES_OF_DIGITS[digits]
    if width > size - start:
        return 0
    for i in range(start, start + width):
        number = number << 8 | (data[i] ^ flip)
    if start == 0:
        number ^= <uint32_t>0x80 << 8 * (width - 1)
    at[0] = start + width
    group[0] = number
    return digits if number < POWERS[digits] else 0


cdef int put_decimal(Output* out, const uint8_t* data, Py_ssize_t size, Py_ssize_t precision, Py_ssize_t scale) noexcept nogil:
    """Append a DECIMAL as an integer of its digits."""
    cdef uint32_t[MAX_LIMBS] limbs
    cdef uint64_t sum
    cdef uint32_t group
    cdef int count = 0
    cdef int digits, i
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t whole = precision - scale
    cdef bint negative = not data[0] & 0x80
    while whole or scale:
        digits = next_group(data, size, &at, &whole, &scale, &group)
        if digits == 0:
            return UNUSUAL
        sum = group
        for i in range(count):
            sum += <uint64_t>limbs[i] * POWERS[digits]
            limbs[i] = <uint32_t>sum
            sum >>= 32
        if sum:
            if count >= MAX_LIMBS:
                return UNUSUAL
            limbs[count] = <uint32_t>sum
            count += 1
    return put_integer(out, limbs, count, negative)


cdef Py_ssize_t decimal_digits(uint8_t* text, const uint8_t* data, Py_ssize_t size, Py_ssize_t precision, Py_ssize_t scale) noexcept nogil:
    """Write the digits of a DECIMAL into 66 bytes, of which one at least is in front of the point.

    Give their number; -1 where there is no such DECIMAL.
    """
    cdef uint32_t group
    cdef int digits, i
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t whole = precision - scale
    if precision > 65:
        return -1
    if whole == 0:
        text[0] = 0x30
        count = 1
    while whole or scale:
        digits = next_group(data, size, &at, &whole, &scale, &group)
        if digits == 0:
            return -1
        for i in range(digits):
            text[count + digits - 1 - i] = <uint8_t>(0x30 + group % 10)
            group //= 10
        count += digits
    return count


cdef int put_decimal_text(Output* out, const uint8_t* data, Py_ssize_t size, Py_ssize_t precision, Py_ssize_t scale) noexcept nogil:
    """Append the digits of a DECIMAL: without zeros in front, and all of those after the point."""
    cdef uint8_t[66] text
    cdef Py_ssize_t count = decimal_digits(text, data, size, precision, scale)
    cdef Py_ssize_t first = 0
    cdef bint negative = not data[0] & 0x80
    if count < 0:
        return UNUSUAL
    while first < count - scale - 1 and text[first] == 0x30:
        first += 1
    if put_long(out, count - first + (1 if scale else 0) + (1 if negative else 0)):
        return NO_MEMORY
    if negative and put_byte(out, 0x2D):
        return NO_MEMORY
    if put(out, text + first, count - scale - first):
        return NO_MEMORY
    if scale and (put_byte(out, 0x2E) or put(out, text + count - scale, scale)):
        return NO_MEMORY
    return DONE


cdef int put_geometry(Output* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Append well-known binary, and the spatial reference system that stands in front of it."""
    cdef uint64_t srid
    if size < 4:
        return UNUSUAL
    srid = little(data, 4)
    if srid >> 31:
        return UNUSUAL
    return put_sized(out, data + 4, size - 4) or put_byte(out, 2) or put_long(out, <int64_t>srid)


cdef inline Py_ssize_t ascii_run(const uint8_t* data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Return where the first byte from ``at`` on is that is not below 0x80, or ``size``."""
    cdef uint64_t high
    while at < size:
        if size - at >= 8:
            high = little(data + at, 8)
        elif size >= 8:
            # The last 8 bytes, without those in front of ``at``.
            high = little(data + size - 8, 8) >> 8 * (8 - (size - at))
        else:
            high = little(data + at, <int>(size - at))
        high &= 0x8080808080808080ULL
        if high:
            return at + (trailing_zeros(high) >> 3)
        at += 8
    return size


cdef bint is_utf8(const uint8_t* data, Py_ssize_t size, uint8_t highest) noexcept nogil:
    """Say whether the data is UTF-8 as Python reads it, with no first byte above ``highest``."""
    cdef Py_ssize_t at = ascii_run(data, 0, size)
    cdef Py_ssize_t more, i
    cdef uint8_t lead, second
    while at < size:
        lead = data[at]
        if lead < 0xC2 or lead > highest:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if more > size - at - 1:
            return False
        second = data[at + 1]
        # Forms that are longer than they need be, surrogates, and what lies beyond U+10FFFF.
        if (
            (lead == 0xE0 and second < 0xA0)
            or (lead == 0xED and second > 0x9F)
            or (lead == 0xF0 and second < 0x90)
            or (lead == 0xF4 and second > 0x8F)
        ):
            return False
        for i in range(1, more + 1):
            if data[at + i] & 0xC0 != 0x80:
                return False
        at = ascii_run(data, at + more + 1, size)
    return True


cdef int put_codes(Output* out, const Texts* texts, const Plan* plan, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Append text of a set of 256 codes; those that mean nothing have an empty text.

    ``a`` says that the codes of ASCII mean what they do there.
    """
    cdef const uint8_t* text = NULL
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i, length
    if plan.a and ascii_run(data, 0, size) == size:
        return put_sized(out, data, size)
    for i in range(size):
        length = find_text(texts, plan, data[i], &text)
        if length <= 0:
            return UNUSUAL
        total += length
    if put_long(out, total):
        return NO_MEMORY
    for i in range(size):
        length = find_text(texts, plan, data[i], &text)
        if put(out, text, length):
            return NO_MEMORY
    return DONE


cdef int put_members(Output* out, const Texts* texts, const Plan* plan, uint64_t bits) noexcept nogil:
    """Append the members of a SET with commas between them."""
    cdef const uint8_t* text = NULL
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i, length
    cdef Py_ssize_t count = plan.texts if plan.texts < 64 else 64
    cdef bint is_first = True
    if count < 64 and bits >> count:
        return UNUSUAL
    for i in range(count):
        if bits >> i & 1:
            total += find_text(texts, plan, i, &text) + (0 if is_first else 1)
            is_first = False
    if put_long(out, total):
        return NO_MEMORY
    is_first = True
    for i in range(count):
        if bits >> i & 1:
            if not is_first and put_byte(out, 0x2C):
                return NO_MEMORY
            is_first = False
            length = find_text(texts, plan, i, &text)
            if put(out, text, length):
                return NO_MEMORY
    return DONE


cdef inline bint is_finite(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    if size == 4:
        return (little(data, 4) & 0x7F800000) != 0x7F800000
    return (little(data, 8) & 0x7FF0000000000000ULL) != 0x7FF0000000000000ULL


cdef inline bint is_dropped(const Texts* texts, const Plan* plan) noexcept nogil:
    """Say whether a column has no field."""
    cdef const uint8_t* text = NULL
    return plan.kind == FIXED and find_text(texts, plan, 0, &text) == 0


cdef inline int put_fixed(Output* out, const Texts* texts, const Plan* plan) noexcept nogil:
    """Append what stands for all values of a column."""
    cdef const uint8_t* text = NULL
    cdef Py_ssize_t size = find_text(texts, plan, 0, &text)
    return UNUSUAL if size < 0 else put(out, text, size)


cdef int put_value(Output* out, const Texts* texts, const Plan* plan, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Append the value of ``size`` bytes, which the caller has proven to be there."""
    cdef int kind = plan.kind
    cdef uint64_t number
    cdef uint32_t[2] limbs
    cdef uint8_t[20] digits
    cdef uint8_t* into
    cdef const uint8_t* text = NULL
    cdef int shift
    cdef Py_ssize_t length
    if kind == SIGNED:
        shift = 64 - 8 * <int>size
        return put_long(out, <int64_t>(little(data, <int>size) << shift) >> shift)
    if kind == UTF8:
        return put_sized(out, data, size) if is_utf8(data, size, <uint8_t>plan.a) else UNUSUAL
    if kind == UNSIGNED:
        number = little(data, <int>size)
        return UNUSUAL if number >> 63 else put_long(out, <int64_t>number)
    if kind == DATETIME:
        return put_datetime(out, data, <int>plan.a, plan.b)
    if kind == TIMESTAMP:
        return put_timestamp(out, data, <int>plan.a, plan.b)
    if kind == DECIMAL:
        return put_decimal(out, data, size, plan.a, plan.b)
    if kind == CODES:
        return put_codes(out, texts, plan, data, size)
    if kind == BYTES:
        length = plan.a if plan.a > size else size
        if put_long(out, length):
            return NO_MEMORY
        into = room(out, length)
        if into == NULL:
            return NO_MEMORY
        memcpy(into, data, size)
        memset(into + size, 0, length - size)
        return DONE
    if kind == BITS:
        return UNUSUAL if data[0] > plan.a else put_sized(out, data, size)
    if kind == MEMBER:
        length = find_text(texts, plan, <Py_ssize_t>little(data, <int>size), &text)
        return UNUSUAL if length < 0 else put_sized(out, text, length)
    if kind == MEMBERS:
        return put_members(out, texts, plan, little(data, <int>size))
    if kind == GEOMETRY:
        return put_geometry(out, data, size)
    if kind == DECIMAL_TEXT:
        return put_decimal_text(out, data, size, plan.a, plan.b)
    if kind == DATE:
        return put_date(out, data)
    if kind == TIME:
        return put_time(out, data, <int>plan.a, plan.b)
    if kind == YEAR:
        return put_long(out, data[0] + 1900 if data[0] else 0)
    if kind == REAL:
        return put(out, data, size) if is_finite(data, size) else UNUSUAL
    if kind == UNSIGNED_DECIMAL:
        number = little(data, <int>size)
        limbs[0] = <uint32_t>number
        limbs[1] = <uint32_t>(number >> 32)
        return put_integer(out, limbs, 2, False)
    if kind == UNSIGNED_TEXT:
        number = little(data, <int>size)
        length = write_digits(digits, number)
        return put_sized(out, digits + 20 - length, length)
    return UNUSUAL


# -- JSON -------------------------------------------------------------------------------------------------

cdef enum JsonType:
    SMALL_OBJECT = 0x00
    LARGE_OBJECT = 0x01
    SMALL_ARRAY = 0x02
    LARGE_ARRAY = 0x03
    LITERAL = 0x04
    INT16 = 0x05
    UINT16 = 0x06
    INT32 = 0x07
    UINT32 = 0x08
    INT64 = 0x09
    UINT64 = 0x0A
    DOUBLE = 0x0B
    STRING = 0x0C

cdef enum:
    MOST_DEPTH = 100
    MOST_DIGITS = 32  # of a double, in any form that Python writes

cdef extern from "Python.h":
    char* PyOS_double_to_string(double value, char code, int precision, int flags, int* kind)
    void PyMem_Free(void* memory)


cdef inline bint use(Document* document, int64_t start, int64_t size, int64_t end) noexcept nogil:
    """Say whether bytes are there that no other value has used; ``end`` lies in the document."""
    if start < 0 or start > end or size > end - start:
        return False
    document.bytes_left -= <Py_ssize_t>size
    return document.bytes_left >= 0


cdef int put_zeros(Output* out, Py_ssize_t count) noexcept nogil:
    cdef uint8_t* into = room(out, count)
    if into == NULL:
        return NO_MEMORY
    memset(into, 0x30, count)
    return DONE


cdef int put_double(Output* out, double value, bint whole) noexcept:
    """Append a number as the server prints it in JSON: see ``format_double``; without ``whole`` never an integer."""
    cdef uint8_t[MOST_DIGITS] digits
    cdef char* written
    cdef uint8_t letter
    cdef int count = 0
    cdef int decimals = 0
    cdef int exponent = 0
    cdef int point, status
    cdef bint negative = False
    cdef bint in_fraction = False
    cdef bint below = False
    cdef Py_ssize_t at = 0
    if value != value or value - value != 0:
        return UNUSUAL  # the servers store none of these
    written = PyOS_double_to_string(value, b"r", 0, 0, NULL)
    if written == NULL:
        return NO_MEMORY
    while written[at] and written[at] != 0x65:  # e
        letter = <uint8_t>written[at]
        at += 1
        if letter == 0x2D:
            negative = True
        elif letter == 0x2E:
            in_fraction = True
        elif count or letter != 0x30:
            if count == MOST_DIGITS:
                PyMem_Free(written)
                return UNUSUAL
            digits[count] = letter
            count += 1
            decimals += in_fraction
        else:
            decimals += in_fraction  # a zero in front
    if written[at]:
        at += 1
        while written[at]:
            letter = <uint8_t>written[at]
            at += 1
            if letter == 0x2D:
                below = True
            elif letter != 0x2B:
                exponent = 10 * exponent + letter - 0x30
    PyMem_Free(written)
    if negative and put_byte(out, 0x2D):
        return NO_MEMORY
    if count == 0:
        return put(out, <const uint8_t*>b"0.0", 1 if whole else 3)
    point = count - decimals + (-exponent if below else exponent)
    while digits[count - 1] == 0x30:
        count -= 1
    if not (-14 <= point <= 15 or 15 < point < count):
        status = put_byte(out, digits[0])
        if count > 1:
            status = status or put_byte(out, 0x2E) or put(out, digits + 1, count - 1)
        return status or put_byte(out, 0x65) or put_signed(out, point - 1)
    if point <= 0:
        return put(out, <const uint8_t*>b"0.", 2) or put_zeros(out, -point) or put(out, digits, count)
    if point >= count:
        status = put(out, digits, count) or put_zeros(out, point - count)
        return status or put(out, <const uint8_t*>b".0", 0 if whole else 2)
    return put(out, digits, point) or put_byte(out, 0x2E) or put(out, digits + point, count - point)


cdef inline bint is_plain(uint8_t byte) noexcept nogil:
    return byte >= 0x20 and byte != 0x22 and byte != 0x5C


cdef int put_json_string(Output* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Append text in quotes; the caller has proven that it is UTF-8."""
    cdef const char* hexadecimal = b"0123456789abcdef"
    cdef uint8_t[6] escape
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t start
    cdef uint8_t byte
    cdef int length
    if put_byte(out, 0x22):
        return NO_MEMORY
    while at < size:
        start = at
        while at < size and is_plain(data[at]):
            at += 1
        if put(out, data + start, at - start):
            return NO_MEMORY
        if at == size:
            break
        byte = data[at]
        at += 1
        escape[0] = 0x5C
        length = 2
        if byte == 0x22 or byte == 0x5C:
            escape[1] = byte
        elif byte == 8:
            escape[1] = 0x62
        elif byte == 9:
            escape[1] = 0x74
        elif byte == 10:
            escape[1] = 0x6E
        elif byte == 12:
            escape[1] = 0x66
        elif byte == 13:
            escape[1] = 0x72
        else:
            escape[1], escape[2], escape[3], length = 0x75, 0x30, 0x30, 6
            escape[4], escape[5] = hexadecimal[byte >> 4], hexadecimal[byte & 15]
        if put(out, escape, length):
            return NO_MEMORY
    return put_byte(out, 0x22)


cdef int put_json(Output* out, Document* document, int kind, int64_t start, int64_t end, int depth) noexcept:
    """Append the text of a value that lies between two places of the document."""
    cdef const uint8_t* data = document.data
    cdef int64_t size = 0
    cdef int64_t bits
    cdef int shift = 0
    cdef int width
    cdef double real
    document.values_left -= 1
    if document.values_left < 0 or depth > MOST_DEPTH:
        return UNUSUAL
    if kind <= LARGE_ARRAY:
        return put_json_container(out, document, kind, start, end, depth)
    if kind == LITERAL:
        if not use(document, start, 1, end) or data[start] > 2:
            return UNUSUAL
        if data[start] == 0:
            return put(out, <const uint8_t*>b"null", 4)
        return put(out, <const uint8_t*>b"true", 4) if data[start] == 1 else put(out, <const uint8_t*>b"false", 5)
    if kind == STRING:
        while True:
            # Seven bits a byte, in five of them at most.
            if shift > 28 or start >= end:
                return UNUSUAL
            size |= <int64_t>(data[start] & 0x7F) << shift
            start += 1
            shift += 7
            if not data[start - 1] & 0x80:
                break
        if not use(document, start, size, end) or not is_utf8(data + start, <Py_ssize_t>size, 0xF4):
            return UNUSUAL
        return put_json_string(out, data + start, <Py_ssize_t>size)
    if kind < INT16 or kind > DOUBLE:
        return UNUSUAL
    width = 2 if kind <= UINT16 else 4 if kind <= UINT32 else 8
    if not use(document, start, width, end):
        return UNUSUAL
    bits = <int64_t>little(data + start, width)
    if kind == DOUBLE:
        memcpy(&real, &bits, 8)
        return put_double(out, real, document.whole_doubles)
    if kind == INT16 or kind == INT32 or kind == INT64:
        return put_signed(out, <int64_t>(<uint64_t>bits << (64 - 8 * width)) >> (64 - 8 * width))
    return put_number(out, <uint64_t>bits, False)


cdef int put_json_container(Output* out, Document* document, int kind, int64_t start, int64_t end,
                            int depth) noexcept:
    """Append an array or object."""
    cdef const uint8_t* data = document.data
    cdef bint keyed = kind <= LARGE_OBJECT
    cdef int width = 4 if kind == LARGE_OBJECT or kind == LARGE_ARRAY else 2
    cdef int64_t count, size, keys, values, index, entry, key, key_size
    cdef int status, inner
    if not use(document, start, 2 * width, end):
        return UNUSUAL
    count = <int64_t>little(data + start, width)
    size = <int64_t>little(data + start + width, width)
    if size > end - start:
        return UNUSUAL
    end = start + size
    keys = start + 2 * width
    values = keys + (count * (width + 2) if keyed else 0)
    if values + count * (width + 1) > end:
        return UNUSUAL
    if put_byte(out, 0x7B if keyed else 0x5B):
        return NO_MEMORY
    for index in range(count):
        if index and put(out, <const uint8_t*>b", ", 2):
            return NO_MEMORY
        if keyed:
            entry = keys + index * (width + 2)
            key = start + <int64_t>little(data + entry, width)
            key_size = <int64_t>little(data + entry + width, 2)
            if not use(document, key, key_size, end) or not is_utf8(data + key, <Py_ssize_t>key_size, 0xF4):
                return UNUSUAL
            status = put_json_string(out, data + key, <Py_ssize_t>key_size) or put(out, <const uint8_t*>b": ", 2)
            if status:
                return status
        entry = values + index * (width + 1)
        inner = data[entry]
        if LITERAL <= inner <= UINT16 or (width == 4 and INT32 <= inner <= UINT32):
            status = put_json(out, document, inner, entry + 1, entry + 1 + width, depth + 1)
        else:
            entry = start + <int64_t>little(data + entry + 1, width)
            status = put_json(out, document, inner, entry, end, depth + 1)
        if status:
            return status
    return put_byte(out, 0x7D if keyed else 0x5D)


# -- what is the same for all rows of an event ------------------------------------------------------------

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef int put_string(Output* out, str text) except -1:
    """Append a string of Avro; a lone surrogate, which has no UTF-8, as an escape."""
    cdef const char* data
    cdef Py_ssize_t size
    cdef bytes escaped
    if text is None:
        raise TypeError("a string is missing")
    try:
        data = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        escaped = text.encode(errors="backslashreplace")
        return put_sized(out, <const uint8_t*>PyBytes_AS_STRING(escaped), PyBytes_GET_SIZE(escaped))
    return put_sized(out, <const uint8_t*>data, size)


def pack(str form not None, *values):
    """Write values one after the other, each by its letter in ``form``: see ``millrace.avro.binary.Pack``."""
    cdef Output out
    cdef Py_ssize_t i
    cdef Py_UCS4 letter
    cdef bytes written
    cdef int status
    if len(form) != len(values):
        raise ValueError(f"{len(values)} values by {len(form)} letters")
    out.data = NULL
    out.size = out.capacity = 0
    try:
        if not grow(&out, 128):
            raise MemoryError
        for i in range(len(form)):
            letter = form[i]
            value = values[i]
            if letter == u"L" or letter == u"S":
                status = put_byte(&out, 0 if value is None else 2)
                if value is None:
                    if status:
                        raise MemoryError
                    continue
            else:
                status = DONE
            if letter == u"l" or letter == u"L":
                status = status or put_long(&out, value)
            elif letter == u"s" or letter == u"S":
                status = status or put_string(&out, value)
            elif letter == u"b":
                written = value
                if written is None:
                    raise TypeError("bytes are missing")
                status = put_object(&out, written)
            else:
                raise ValueError(f"{letter!r} is no letter of a form")
            if status:
                raise MemoryError
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        free(out.data)


# -- rows -----------------------------------------------------------------------------------------------

cdef Frame frame_of(frame) except *:
    cdef Frame made
    start, end, missing = frame
    made.start = piece_of(<bytes?>start)
    made.end = piece_of(<bytes?>end)
    made.missing = piece_of(<bytes?>missing)
    return made


cdef inline uint8_t* copy(uint8_t* into, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Copy into memory that the caller has measured; gives what is after it."""
    memcpy(into, data, size)
    return into + size


cdef class RowBlock:
    """Records of events, images and what stands around them apart; it takes the place of a list of keys and values.

    A record has a prefix, its images, and a frame with its numbers. The frame is that of all records of its kind in an
    event, of which there are three at the most, so it is held once per event; numbers go up by one from record to
    record. Records that were not made here are held whole. It keeps no keys. ``prefix`` says of which schemas the
    records are, ``size`` is that of all values as records have them; ``timestamp`` is that of records for which there
    is no other.
    """

    def __init__(self, bytes prefix not None, int64_t timestamp=0):
        self.prefix, self.timestamp = prefix, timestamp

    def __dealloc__(self):
        free(self.images.data)
        free(self.records.data)
        free(self.events.data)
        free(self.texts.data)

    def __len__(self):
        return self.count()

    cdef Py_ssize_t count(self) noexcept:
        return self.records.size // sizeof(BlockRecord)

    cdef const BlockRecord* record(self, Py_ssize_t index) noexcept:
        return &(<const BlockRecord*>self.records.data)[index]

    cdef Py_ssize_t event_count(self) noexcept:
        return self.events.size // sizeof(BlockEvent)

    cdef const BlockEvent* event(self, Py_ssize_t index) noexcept:
        return &(<const BlockEvent*>self.events.data)[index]

    cdef Py_ssize_t end_of_event(self, Py_ssize_t index) noexcept:
        """Return the index of the record after the last one of an event, or of all that precede the first, at -1."""
        return self.event(index + 1).first if index + 1 < self.event_count() else self.count()

    cdef Py_ssize_t count_of_event(self) noexcept:
        """Count the records of the last event."""
        cdef Py_ssize_t events = self.event_count()
        return self.count() - (self.event(events - 1).first if events else 0)

    def timestamps(self):
        """Return the timestamp of each record's event."""
        cdef Py_ssize_t index
        cdef list found = [self.timestamp] * self.end_of_event(-1)
        for index in range(self.event_count()):
            found += [self.event(index).timestamp] * (self.end_of_event(index) - self.event(index).first)
        return found

    def __iter__(self):
        """Put the records together."""
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t place = -1
        cdef Py_ssize_t index, end
        cdef FrameNumbers numbers
        cdef Output frame = Output(NULL, 0, 0, False)
        found = []
        try:
            for index in range(self.count()):
                while index >= self.end_of_event(place):
                    place += 1
                end = self.record(index).end
                record = PyBytes_FromStringAndSize(<const char*>self.images.data + start, end - start)
                if self.record(index).kind != WHOLE:
                    frame.size = 0
                    if self.put_frame(&frame, self.event(place), index, &numbers):
                        raise MemoryError
                    record = self.record_prefix + record + PyBytes_FromStringAndSize(<const char*>frame.data, frame.size)
                start = end
                found.append(record)
        finally:
            free(frame.data)
        return iter(found)

    cdef int begin(self, bytes record_prefix, const Frame* frames, int count, int64_t total_order,
                   int64_t collection_order, int64_t timestamp) except -1:
        """Take what the records of an event have in common, and the orders of the first; see RowsKernel."""
        cdef int index
        cdef BlockEvent event = BlockEvent(self.count(), timestamp, total_order, collection_order)
        cdef BlockFrame* frame
        if self.record_prefix is not None and self.record_prefix != record_prefix:
            raise ValueError("the block has records of another schema")
        self.record_prefix = record_prefix
        for index in range(min(count, MOST_FRAMES)):
            frame = &event.frames[index]
            frame.at, frame.start, frame.end = self.texts.size, frames[index].start.size, frames[index].end.size
            frame.missing = frames[index].missing.size
            if (
                put(&self.texts, frames[index].start.data, frame.start)
                or put(&self.texts, frames[index].end.data, frame.end)
                or put(&self.texts, frames[index].missing.data, frame.missing)
            ):
                raise MemoryError
        if put(&self.events, <const uint8_t*>&event, sizeof(BlockEvent)):
            raise MemoryError
        return 0

    cdef BlockSizes sizes(self) noexcept:
        return BlockSizes(self.images.size, self.records.size, self.events.size, self.texts.size, self.size)

    cdef void keep(self) noexcept:
        """Keep what was written so far, whatever becomes of the rest."""
        self.kept = self.sizes()

    cdef bint is_kept(self) noexcept:
        """Say whether nothing was written since."""
        return self.kept.events == self.events.size and self.kept.records == self.records.size

    cdef void revert(self) noexcept:
        """Forget what is not kept."""
        self.images.size, self.records.size, self.events.size = self.kept.images, self.kept.records, self.kept.events
        self.texts.size, self.size = self.kept.texts, self.kept.size

    cdef uint8_t* room(self, Py_ssize_t size, int kind, Py_ssize_t whole) noexcept:
        """Append a record of ``whole`` bytes, so many of which are to be written; NULL where memory is short."""
        cdef uint8_t* into = room(&self.images, size)
        cdef BlockRecord record = BlockRecord(self.images.size, kind)
        if into == NULL or put(&self.records, <const uint8_t*>&record, sizeof(BlockRecord)):
            return NULL
        self.size += whole
        return into

    cdef void drop(self, Py_ssize_t whole) noexcept:
        """Take the last record back, which has so many bytes."""
        self.records.size -= sizeof(BlockRecord)
        self.images.size = self.record(self.count() - 1).end if self.count() else 0
        self.size -= whole

    cdef int put_frame(self, Output* out, const BlockEvent* event, Py_ssize_t index, FrameNumbers* numbers) noexcept:
        """Write what stands after the images of a record of an event, and say where its numbers lie."""
        cdef const BlockFrame* frame = &event.frames[self.record(index).kind]
        cdef const uint8_t* text = self.texts.data + frame.at
        cdef int status = put(out, text, frame.start)
        numbers.value[0] = index - event.first
        numbers.value[1] = event.total_order + numbers.value[0]
        numbers.value[2] = event.collection_order + numbers.value[0]
        numbers.at[0] = out.size
        status = status or put_long(out, numbers.value[0]) or put(out, text + frame.start, frame.end)
        numbers.at[1] = out.size
        status = status or put_long(out, numbers.value[1])
        numbers.at[2] = out.size
        status = status or put_long(out, numbers.value[2]) or put_byte(out, 0)
        return status or put(out, text + frame.start + frame.end, frame.missing)

    def append(self, tuple record not None):
        """Append a key, which is not kept, and a value."""
        cdef bytes value = <bytes?>record[1]
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value)
        cdef uint8_t* into = self.room(size, WHOLE, size)
        if into == NULL:
            raise MemoryError
        memcpy(into, PyBytes_AS_STRING(value), size)

    def clear(self):
        """Forget all records."""
        self.images.size = self.records.size = self.events.size = self.texts.size = self.size = 0


cdef class RowsKernel:
    """Writes the rows of the events that share a table and the bitmaps of present columns.

    ``plans`` has for each column kind, size of the length in front (or 0), size (where it is fixed), the
    kind's two numbers and its texts; ``converters`` a function from a value's bytes to its Avro form for those
    of kind 0, and for JSON that is seldom. ``before`` and ``after`` say which columns the images have, None for an image that the kind of
    event does not have; one column must be there at least. ``key`` has for each part of the key its ordinal
    and whether it is the first branch of a union, None for a table without a key; ``key_prefix`` and
    ``value_prefix`` stand in front of keys and values, of which none is larger than ``record_limit``.
    """

    def __cinit__(self, plans, converters, before, after, key, key_prefix, value_prefix, record_limit):
        cdef Py_ssize_t i, text
        cdef Plan* plan
        texts = []
        self.columns = len(plans)
        self.converters = list(converters)
        if len(self.converters) != self.columns or not self.columns:
            raise ValueError("there must be a converter, or None, for each of some columns")
        self.plans = <Plan*>calloc(self.columns, sizeof(Plan))
        if self.plans == NULL:
            raise MemoryError
        for i, (kind, length_bytes, size, a, b, own_texts) in enumerate(plans):
            plan = &self.plans[i]
            plan.kind, plan.length_bytes, plan.size, plan.a, plan.b = kind, length_bytes, size, a, b
            plan.first_text = len(texts)
            plan.texts = len(own_texts)
            texts.extend(own_texts)
            _check_plan(plan)
            if (plan.kind == PYTHON or plan.kind == JSON) and self.converters[i] is None:
                raise ValueError(f"values of kind {plan.kind} need a converter")
        self.texts.start = <Py_ssize_t*>calloc(len(texts) + 1, sizeof(Py_ssize_t))
        if self.texts.start == NULL:
            raise MemoryError
        for text, data in enumerate(texts):
            if put(&self.texts.pool, piece_of(<bytes?>data).data, len(data)):
                raise MemoryError
            self.texts.start[text + 1] = self.texts.pool.size
        if before is None and after is None:
            raise ValueError("rows have a before image, an after image or both")
        self._use_side(&self.before, before)
        self._use_side(&self.after, after)
        if not self.before.null_size and not self.after.null_size:
            raise ValueError("no column is present")
        self.has_two_sides = self.before.exists and self.after.exists
        self.has_key = key is not None
        if value_prefix is None or (key is not None and key_prefix is None):
            raise TypeError("a prefix is missing")
        if key is not None:
            self.key_parts = len(key)
            self.key_ordinals = <Py_ssize_t*>calloc(self.key_parts + 1, sizeof(Py_ssize_t))
            self.key_branches = <uint8_t*>calloc(self.key_parts + 1, 1)
            if self.key_ordinals == NULL or self.key_branches == NULL:
                raise MemoryError
            for i, (ordinal, is_branch) in enumerate(key):
                if not 0 <= ordinal < self.columns:
                    raise ValueError(f"there is no column {ordinal}")
                self.key_ordinals[i] = ordinal
                self.key_branches[i] = 1 if is_branch else 0
        self.key_prefix = key_prefix
        self.value_prefix = value_prefix
        self.record_limit = record_limit

    cdef int _use_side(self, Side* side, present) except -1:
        cdef Py_ssize_t i
        cdef Py_ssize_t count = 0
        if present is None:
            return 0
        if len(present) != self.columns:
            raise ValueError(f"{len(present)} columns, not {self.columns}")
        side.exists = True
        side.present = <uint8_t*>calloc(self.columns, 1)
        side.start = <Py_ssize_t*>calloc(self.columns + 1, sizeof(Py_ssize_t))
        if side.present == NULL or side.start == NULL:
            raise MemoryError
        for i in range(self.columns):
            if present[i]:
                side.present[i] = 1
                count += 1
        side.null_size = (count + 7) // 8
        return 0

    def __dealloc__(self):
        free(self.plans)
        free(self.texts.start)
        free(self.texts.pool.data)
        free(self.before.present)
        free(self.before.start)
        free(self.after.present)
        free(self.after.start)
        free(self.out.data)
        free(self.scratch.data)
        free(self.key_ordinals)
        free(self.key_branches)

    def write(self, bytes rows not None, records not None, tuple frames not None,
              int64_t total_order, int64_t collection_order, slowly):
        """Append the records of all rows to a RowBlock, or a list of pairs; say whether the rows were well formed.

        ``frames`` are what the records have around images and numbers (start, end, missing): one for inserts
        and deletes; for updates that of an update, and those of the delete and the insert that an update of
        the key becomes. ``slowly(number, start, end)`` appends the records of the row that lies there.
        Where False comes back, the reference must do all of it.
        """
        cdef Frame[3] made
        cdef Py_ssize_t i
        if len(frames) != (3 if self.has_two_sides else 1):
            raise ValueError("one frame for an image, three for two")
        for i in range(len(frames)):
            made[i] = frame_of(frames[i])
        return self.write_rows(<const uint8_t*>PyBytes_AS_STRING(rows), PyBytes_GET_SIZE(rows), records, made,
                               total_order, collection_order, slowly, None)

    cdef bint write_rows(self, const uint8_t* rows, Py_ssize_t size, records, const Frame* frames,
                         int64_t total_order, int64_t collection_order, slowly, stamp) except -1:
        """Do what :meth:`write` says, with as many frames as there are to be.

        With a ``stamp`` records are those of :mod:`millrace.stage`, with that time and without headers, or that is the
        time of the block's event. Without ``slowly``, rows that are out of the ordinary are for the reference as well.
        """
        if self.busy:
            raise RuntimeError("the kernel writes rows already")
        self.busy = True
        self.stamp = stamp
        self.written = 0
        try:
            if isinstance(records, RowBlock):
                self.block = <RowBlock>records
                self.block.begin(
                    self.value_prefix, frames, MOST_FRAMES if self.has_two_sides else 1, total_order, collection_order,
                    self.block.timestamp if stamp is None else stamp
                )
            else:
                self.records = <list?>records
            return self._write(rows, size, frames, total_order, collection_order, slowly)
        finally:
            self.busy = False
            self.stamp = self.block = self.records = None
            trim(&self.out, KEPT)
            trim(&self.scratch, KEPT)

    cdef bint _write(self, const uint8_t* rows, Py_ssize_t size, const Frame* frames, int64_t total_order,
                     int64_t collection_order, slowly) except -1:
        cdef Source cursor = source_at(rows, size)
        cdef Py_ssize_t number = 0
        cdef Py_ssize_t start
        cdef int status, second
        while cursor.at < cursor.end:
            start = cursor.at
            self.out.size = 0
            status = DONE
            if self.before.exists:
                status = self._image(&self.before, &cursor)
                if status == TRUNCATED:
                    return False
            if self.after.exists:
                second = self._image(&self.after, &cursor)
                if second == TRUNCATED:
                    return False
                status = status or second
            if status == DONE:
                if self.has_two_sides:
                    status = self._update(frames, total_order, collection_order)
                else:
                    status = self._one_sided(frames, total_order, collection_order)
            if status == UNUSUAL:
                if slowly is None:
                    return False
                slowly(number, start, cursor.at)
            number += 1
        return True

    cdef int _image(self, Side* side, Source* cursor) except -1:
        """Append one image to the output; what is unusual in it is stepped over all the same."""
        cdef Output* out = &self.out
        cdef const uint8_t* data
        cdef const Plan* plan
        cdef Py_ssize_t ordinal, size
        cdef Py_ssize_t index = 0
        cdef int status
        cdef bint is_unusual = False
        cdef const uint8_t* null_bits = take(cursor, side.null_size)
        if null_bits == NULL:
            return TRUNCATED
        for ordinal in range(self.columns):
            side.start[ordinal] = out.size
            plan = &self.plans[ordinal]
            if not side.present[ordinal]:
                status = DONE if is_dropped(&self.texts, plan) else put_byte(out, 0)
            else:
                # As many columns are present as the bitmap's size was made for.
                index += 1
                if null_bits[(index - 1) >> 3] >> ((index - 1) & 7) & 1:
                    status = put_fixed(out, &self.texts, plan) if plan.kind == FIXED else put_byte(out, 0)
                else:
                    size = plan.size
                    if plan.length_bytes:
                        data = take(cursor, plan.length_bytes)
                        if data == NULL:
                            return TRUNCATED
                        size = <Py_ssize_t>little(data, plan.length_bytes)
                    data = take(cursor, size)
                    if data == NULL:
                        return TRUNCATED
                    if is_unusual:
                        continue
                    if plan.kind == PYTHON:
                        status = self._convert(ordinal, data, size)
                    elif plan.kind == JSON:
                        status = self._json(ordinal, data, size)
                    elif plan.kind == FIXED:
                        status = put_fixed(out, &self.texts, plan)
                    else:
                        status = put_byte(out, 2) or put_value(out, &self.texts, plan, data, size)
            if status == NO_MEMORY:
                raise MemoryError
            if status == UNUSUAL:
                is_unusual = True
        side.start[self.columns] = out.size
        return UNUSUAL if is_unusual else DONE

    cdef int _convert(self, Py_ssize_t ordinal, const uint8_t* data, Py_ssize_t size) except -1:
        """Let the reference convert a value; what it gives has the union's branch in front."""
        cdef bytes written
        try:
            written = self.converters[ordinal](PyBytes_FromStringAndSize(<const char*>data, size))
        except _UNREPRESENTABLE:
            return UNUSUAL
        return put(&self.out, piece_of(written).data, PyBytes_GET_SIZE(written))

    cdef int _json(self, Py_ssize_t ordinal, const uint8_t* data, Py_ssize_t size) except -1:
        """Append the text of a JSON document; what is seldom in one is left to the converter."""
        cdef Document document
        cdef int status
        self.scratch.size = 0
        document.data = data
        document.whole_doubles = self.plans[ordinal].a != 0
        document.values_left = 1 + size // 3
        document.bytes_left = size
        if size:
            status = put_json(&self.scratch, &document, data[0], 1, size, 0)
        else:
            status = put(&self.scratch, <const uint8_t*>b"null", 4)
        if status == UNUSUAL:
            return self._convert(ordinal, data, size)
        return status or put_byte(&self.out, 2) or put_sized(&self.out, self.scratch.data, self.scratch.size)

    cdef int _one_sided(self, const Frame* frames, int64_t total_order, int64_t collection_order) except -1:
        cdef Side* side = &self.before if self.before.exists else &self.after
        if not self._has_whole_key(side, NULL):
            return UNUSUAL
        return self._record(frames, 0, self.before.exists, self.after.exists,
                            self._key(side, NULL), total_order, collection_order)

    cdef int _update(self, const Frame* frames, int64_t total_order, int64_t collection_order) except -1:
        cdef Py_ssize_t written = self.written
        if not self._has_whole_key(&self.before, NULL) or not self._has_whole_key(&self.after, &self.before):
            return UNUSUAL
        new = self._key(&self.after, &self.before)
        if self._has_same_key():
            return self._record(frames, 0, True, True, new, total_order, collection_order)
        old = self._key(&self.before, NULL)
        if self._record(frames, 1, True, False, old, total_order, collection_order) == UNUSUAL:
            return UNUSUAL
        if self._record(frames, 2, False, True, new, total_order, collection_order) == DONE:
            return DONE
        if self.block is not None:
            self.block.drop(self.written - written)
        else:
            self.records.pop()
        self.written = written
        return UNUSUAL

    cdef inline Side* _side_of_key(self, Py_ssize_t ordinal, Side* side, Side* other) noexcept:
        """What an image after an update lacks has not changed."""
        return other if other != NULL and not side.present[ordinal] else side

    cdef bint _has_whole_key(self, Side* side, Side* other) noexcept:
        """Say whether no part of the key is NULL or lacking."""
        cdef Py_ssize_t i, ordinal
        for i in range(self.key_parts):
            ordinal = self.key_ordinals[i]
            if self.out.data[self._side_of_key(ordinal, side, other).start[ordinal]] != 2:
                return False
        return True

    cdef bint _has_same_key(self) noexcept:
        """Say whether an update leaves each part of the key as it is."""
        cdef Py_ssize_t i, ordinal, before, after, size
        cdef Side* side
        for i in range(self.key_parts):
            ordinal = self.key_ordinals[i]
            side = self._side_of_key(ordinal, &self.after, &self.before)
            before, after = self.before.start[ordinal], side.start[ordinal]
            size = side.start[ordinal + 1] - after
            if size != self.before.start[ordinal + 1] - before or \
                    memcmp(self.out.data + before, self.out.data + after, size) != 0:
                return False
        return True

    cdef _key(self, Side* side, Side* other):
        """Make the key of parts that are there; None for a table without a key, and in a block."""
        cdef Py_ssize_t i, ordinal
        cdef Py_ssize_t size = 0
        cdef Side* from_side
        cdef bytes key
        cdef uint8_t* into
        cdef Piece prefix
        if not self.has_key or self.block is not None:
            return None
        prefix = piece_of(self.key_prefix)
        size = prefix.size
        for i in range(self.key_parts):
            ordinal = self.key_ordinals[i]
            from_side = self._side_of_key(ordinal, side, other)
            size += from_side.start[ordinal + 1] - from_side.start[ordinal] - 1 + self.key_branches[i]
        key = PyBytes_FromStringAndSize(NULL, size)
        into = copy(<uint8_t*>PyBytes_AS_STRING(key), prefix.data, prefix.size)
        for i in range(self.key_parts):
            ordinal = self.key_ordinals[i]
            from_side = self._side_of_key(ordinal, side, other)
            if self.key_branches[i]:
                into[0] = 0
                into += 1
            # Without the branch of the column's union.
            size = from_side.start[ordinal + 1] - from_side.start[ordinal] - 1
            into = copy(into, self.out.data + from_side.start[ordinal] + 1, size)
        return key

    cdef int _record(self, const Frame* frames, int kind, bint has_before, bint has_after, key, int64_t total_order,
                     int64_t collection_order) except -1:
        """Append a record with the frame of this number; UNUSUAL where it is too large."""
        cdef const Frame* frame = &frames[kind]
        cdef Py_ssize_t number = len(self.records) if self.block is None else self.block.count_of_event()
        cdef uint8_t[30] numbers
        cdef int row_size = write_long(numbers, number)
        cdef int orders_size = write_long(numbers + 10, total_order + number)
        cdef Py_ssize_t before_size = 0
        cdef Py_ssize_t after_size = 0
        cdef Py_ssize_t size
        cdef bytes record = None
        cdef uint8_t* into
        cdef Piece prefix = piece_of(self.value_prefix)
        orders_size += write_long(numbers + 10 + orders_size, collection_order + number)
        if has_before:
            before_size = self.before.start[self.columns] - self.before.start[0]
        if has_after:
            after_size = self.after.start[self.columns] - self.after.start[0]
        size = prefix.size + before_size + after_size + frame.start.size + frame.end.size + frame.missing.size
        size += 3 + row_size + orders_size
        if size > self.record_limit:
            return UNUSUAL
        if self.block is None:
            record = PyBytes_FromStringAndSize(NULL, size)
            into = <uint8_t*>PyBytes_AS_STRING(record)
            self.records.append((key, record) if self.stamp is None else (key, record, self.stamp, None))
        else:
            into = self.block.room(2 + before_size + after_size, kind, size)
            if into == NULL:
                raise MemoryError
        self.written += size
        if self.block is None:
            into = copy(into, prefix.data, prefix.size)
        into[0] = 2 if has_before else 0
        into += 1
        if has_before:
            into = copy(into, self.out.data + self.before.start[0], before_size)
        into[0] = 2 if has_after else 0
        into += 1
        if has_after:
            into = copy(into, self.out.data + self.after.start[0], after_size)
        if self.block is not None:
            return DONE
        into = copy(into, frame.start.data, frame.start.size)
        into = copy(into, numbers, row_size)
        into = copy(into, frame.end.data, frame.end.size)
        into = copy(into, numbers + 10, orders_size)
        into[0] = 0
        copy(into + 1, frame.missing.data, frame.missing.size)
        return DONE


cdef int _check_plan(const Plan* plan) except -1:
    """Prove that a plan's sizes are those that its kind reads, before anything is read by it."""
    cdef int kind = plan.kind
    cdef bint ok
    if not 0 <= plan.length_bytes <= 4 or plan.size < 0 or (plan.length_bytes and plan.size):
        raise ValueError(f"a length of {plan.length_bytes} bytes, a size of {plan.size}")
    if kind in (SIGNED, UNSIGNED, MEMBER, MEMBERS):
        ok = 1 <= plan.size <= 8
    elif kind in (UNSIGNED_DECIMAL, UNSIGNED_TEXT):
        ok = plan.size == 8
    elif kind == REAL:
        ok = plan.size == 4 or plan.size == 8
    elif kind == YEAR:
        ok = plan.size == 1
    elif kind == DATE:
        ok = plan.size == 3
    elif kind == TIME:
        ok = 0 <= plan.a <= 3 and plan.size == 3 + plan.a
    elif kind == DATETIME:
        ok = 0 <= plan.a <= 3 and plan.size == 5 + plan.a
    elif kind == TIMESTAMP:
        ok = 0 <= plan.a <= 3 and plan.size == 4 + plan.a
    elif kind == DECIMAL or kind == DECIMAL_TEXT:
        ok = plan.size >= 1 and 0 <= plan.b <= plan.a <= 65
    elif kind == CODES:
        ok = plan.length_bytes > 0 and plan.texts == 256
    elif kind == UTF8:
        ok = plan.length_bytes > 0 and 0 <= plan.a <= 0xF4
    elif kind == BYTES:
        ok = plan.a >= 0
    elif kind == BITS:
        ok = plan.size >= 1
    elif kind == JSON or kind == GEOMETRY:
        ok = plan.length_bytes > 0
    elif kind == FIXED:
        ok = plan.texts == 1
    else:
        ok = kind == PYTHON
    if not ok:
        raise ValueError(f"sizes that do not fit values of kind {kind}")
    return 0

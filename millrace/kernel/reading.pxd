# cython: language_level=3
"""How the kernel reads memory: through :c:type:`Source` alone, whose functions check every access."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define millrace_from_little(number) __builtin_bswap64(number)
    #else
    #define millrace_from_little(number) (number)
    #endif
    """
    uint64_t from_little "millrace_from_little"(uint64_t number) noexcept nogil
    int trailing_zeros "__builtin_ctzll"(uint64_t number) noexcept nogil


cdef struct Source:
    # Bytes of an object that is held for as long. ``bad`` is set by a read that would pass the end, or finds
    # what only the reference should judge; what such a read gives means nothing.
    const uint8_t* data
    Py_ssize_t at
    Py_ssize_t end
    bint bad


cdef struct Span:
    # Where bytes lie in a source.
    Py_ssize_t at
    Py_ssize_t size


cdef inline Source source_at(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Source source
    source.data, source.at, source.end, source.bad = data, 0, size, size < 0
    return source


cdef inline Source source_of(bytes data, Py_ssize_t at, Py_ssize_t end) noexcept:
    cdef Source source = source_at(<const uint8_t*> PyBytes_AS_STRING(data), end)
    source.at = at
    source.bad = at < 0 or at > end or end > PyBytes_GET_SIZE(data)
    return source


cdef inline uint64_t little(const uint8_t* data, int size) noexcept nogil:
    # Up to 8 bytes, the lowest first.
    cdef uint64_t value = 0
    cdef int i
    if size == 8:
        memcpy(&value, data, 8)
        return from_little(value)
    for i in range(size):
        value |= <uint64_t> data[i] << 8 * i
    return value


cdef inline uint64_t big(const uint8_t* data, int size) noexcept nogil:
    # Up to 8 bytes, the highest first.
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = value << 8 | data[i]
    return value


cdef inline const uint8_t* take(Source* source, Py_ssize_t size) noexcept nogil:
    # Step over ``size`` bytes and give the first of them; NULL where they are not there.
    cdef const uint8_t* found
    if source.bad or size < 0 or size > source.end - source.at:
        return NULL
    found = source.data + source.at
    source.at += size
    return found


cdef inline uint64_t read_uint(Source* source, int size) noexcept nogil:
    # A little-endian integer of 1 to 8 bytes.
    cdef const uint8_t* found = take(source, size)
    if found == NULL:
        source.bad = True
        return 0
    return little(found, size)


cdef inline Py_ssize_t skip(Source* source, Py_ssize_t size) noexcept nogil:
    # Step over ``size`` bytes and give where they begin.
    cdef Py_ssize_t at = source.at
    if take(source, size) == NULL:
        source.bad = True
    return at


cdef inline uint64_t read_lenenc(Source* source) noexcept nogil:
    # A length-encoded integer in its shortest form.
    cdef uint64_t first = read_uint(source, 1)
    cdef uint64_t number
    if first < 251:
        return first
    if first == 252:
        number = read_uint(source, 2)
        source.bad |= number < 251
    elif first == 253:
        number = read_uint(source, 3)
        source.bad |= number < 1 << 16
    elif first == 254:
        number = read_uint(source, 8)
        source.bad |= number < 1 << 24
    else:
        source.bad = True
        return 0
    return number


cdef inline int64_t read_long(Source* source) noexcept nogil:
    # A long of Avro: a varint of up to 64 bits, zigzag.
    cdef uint64_t number = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        if source.bad or source.at >= source.end:
            source.bad = True
            return 0
        byte = source.data[source.at]
        source.at += 1
        if shift == 63 and byte > 1:
            source.bad = True
            return 0
        number |= <uint64_t> (byte & 127) << shift
        if byte < 128:
            return <int64_t> (number >> 1) ^ -<int64_t> (number & 1)
        shift += 7


cdef inline int read_flag(Source* source) noexcept nogil:
    # A boolean.
    cdef uint64_t byte = read_uint(source, 1)
    source.bad |= byte > 1
    return <int> byte


cdef inline int read_branch(Source* source) noexcept nogil:
    # Which branch of ["null", …]: 0 or 1.
    cdef uint64_t byte = read_uint(source, 1)
    source.bad |= byte != 0 and byte != 2
    return byte == 2


cdef inline Span read_span(Source* source) noexcept nogil:
    # Where bytes, or a string, of Avro lie.
    cdef Span span
    span.size = <Py_ssize_t> read_long(source)
    span.at = skip(source, span.size)
    return span


cdef inline Span read_nullable_span(Source* source) noexcept nogil:
    # The same after ["null", …]; null has a size below 0.
    cdef Span span
    if read_branch(source):
        return read_span(source)
    span.at, span.size = source.at, -1
    return span


cdef inline void expect(Source* source, int64_t found, int64_t wanted) noexcept nogil:
    # Say that what was read is to be a certain number; a function, so that it is read before this is looked at.
    if found != wanted:
        source.bad = True


cdef inline bint is_ascii(const Source* source, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    # Whether bytes that were stepped over are ASCII.
    cdef Py_ssize_t index
    cdef uint8_t bits = 0
    if at < 0 or size < 0 or at + size > source.end:
        return False
    for index in range(at, at + size):
        bits |= source.data[index]
    return bits < 128


cdef inline bytes slice_of(const Source* source, Py_ssize_t at, Py_ssize_t size):
    # A copy of bytes that were stepped over.
    if at < 0 or size < 0 or size > source.end - at:
        raise IndexError("bytes outside of what holds them")
    return PyBytes_FromStringAndSize(<const char*> source.data + at, size)

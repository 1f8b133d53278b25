# cython: language_level=3
"""How the kernel writes: into an :c:type:`Output`, which grows, through :func:`room` alone."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from millrace.kernel.reading cimport Source

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX


cdef enum Status:
    DONE = 0
    UNUSUAL = 1  # the value, or the row, is left to the reference
    TRUNCATED = 2
    NO_MEMORY = 3


cdef struct Output:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t capacity
    bint bad  # memory was short since it was cleared, or bytes that are not there were to be copied


cdef struct Text:
    # Bytes or a string to be written, which whoever fills it in holds; null without data, where it may be.
    const uint8_t* data
    Py_ssize_t size


cdef inline uint8_t* room(Output* out, Py_ssize_t size) noexcept nogil:
    """Make the output ``size`` bytes longer and give the first of them; NULL where memory is short."""
    cdef uint8_t* found
    if size < 0 or (size > out.capacity - out.size and not grow(out, size)):
        return NULL
    found = out.data + out.size
    out.size += size
    return found


cdef inline bint grow(Output* out, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t wanted = (out.size + size) * 2
    cdef uint8_t* data = NULL
    if size <= PY_SSIZE_T_MAX // 4 - out.size:
        data = <uint8_t*>realloc(out.data, wanted)
    if data == NULL:
        out.bad = True
        return False
    out.data = data
    out.capacity = wanted
    return True


cdef inline void trim(Output* out, Py_ssize_t most) noexcept nogil:
    """Give the memory back where there is more of it."""
    if out.capacity > most:
        free(out.data)
        out.data = NULL
        out.size = out.capacity = 0


cdef inline void shrink(Output* out) noexcept nogil:
    """Give back what is not written to."""
    cdef uint8_t* data = NULL
    if 0 < out.size < out.capacity:
        data = <uint8_t*>realloc(out.data, out.size)
    if data != NULL:
        out.data, out.capacity = data, out.size


cdef inline int put(Output* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Append bytes that the caller has proven to be there."""
    cdef uint8_t* into
    if size == 0:
        return DONE
    into = room(out, size)
    if into == NULL:
        return NO_MEMORY
    memcpy(into, data, size)
    return DONE


cdef inline int put_byte(Output* out, uint8_t value) noexcept nogil:
    cdef uint8_t* into = room(out, 1)
    if into == NULL:
        return NO_MEMORY
    into[0] = value
    return DONE


cdef inline int write_varint(uint8_t* into, uint64_t number) noexcept nogil:
    """Write a varint into 10 bytes; returns how many it took."""
    cdef int size = 0
    while number > 127:
        into[size] = <uint8_t>(number & 127 | 128)
        number >>= 7
        size += 1
    into[size] = <uint8_t>number
    return size + 1


cdef inline int write_long(uint8_t* into, int64_t value) noexcept nogil:
    """Write a long of Avro into 10 bytes; returns how many it took."""
    return write_varint(into, (<uint64_t>value << 1) ^ (0 - <uint64_t>(value < 0)))


cdef inline int put_long(Output* out, int64_t value) noexcept nogil:
    cdef uint8_t* into = room(out, 10)
    if into == NULL:
        return NO_MEMORY
    out.size += write_long(into, value) - 10
    return DONE


cdef inline int put_sized(Output* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Append bytes or a string of Avro."""
    cdef uint8_t* into = room(out, 10)
    if into == NULL:
        return NO_MEMORY
    out.size += write_long(into, size) - 10
    return put(out, data, size)


cdef inline int put_text(Output* out, Text text) noexcept nogil:
    return put_sized(out, text.data, text.size)


cdef inline int put_nullable_text(Output* out, Text text) noexcept nogil:
    """The same after ["null", …]."""
    if text.data == NULL:
        return put_byte(out, 0)
    return put_byte(out, 2) or put_text(out, text)


cdef inline int put_object(Output* out, bytes data) noexcept:
    return put(out, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline int put_sized_object(Output* out, bytes data) noexcept:
    return put_sized(out, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline int put_slice(Output* out, const Source* source, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Append bytes of the source."""
    if at < 0 or size < 0 or source.bad or size > source.end - at:
        out.bad = True
        return UNUSUAL
    return put(out, source.data + at, size)


cdef inline int put_sized_slice(Output* out, const Source* source, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Append bytes of the source as bytes or a string of Avro."""
    return put_long(out, size) or put_slice(out, source, at, size)


cdef inline int write_digits(uint8_t* into, uint64_t number) noexcept nogil:
    """Write decimal digits at the end of 20 bytes; returns how many."""
    cdef int count = 0
    while True:
        count += 1
        into[20 - count] = <uint8_t>(0x30 + number % 10)
        number //= 10
        if not number:
            return count


cdef inline int put_number(Output* out, uint64_t number, bint negative) noexcept nogil:
    """Append a number in decimal digits."""
    cdef uint8_t[20] digits
    cdef int count = write_digits(digits, number)
    if negative and put_byte(out, 0x2D):
        return NO_MEMORY
    return put(out, digits + 20 - count, count)


cdef inline int put_signed(Output* out, int64_t number) noexcept nogil:
    return put_number(out, 0 - <uint64_t>number if number < 0 else <uint64_t>number, number < 0)

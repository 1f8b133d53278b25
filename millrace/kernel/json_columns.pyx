# cython: language_level=3
"""Columns of Arrow as JSON objects, one per row: what :mod:`millrace.spark.json_columns` does column by column.

A column is its kind, what is written before its value, and the buffers of its array. Values are read where these
have them; who calls has made the texts of columns whose kind is none of those here.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from millrace.kernel.rows cimport put_json_string
from millrace.kernel.writing cimport DONE, NO_MEMORY, UNUSUAL, Output, put, put_byte, put_signed, room, write_digits

cdef enum:
    MOST_BYTES = 0x7FFFFFFF  # of a column of texts: its offsets have 32 bits
    FIRST_DAY = -719162  # 0001-01-01
    LAST_DAY = 2932896  # 9999-12-31
    LEAST_EXPONENT = -6  # of a decimal that is written in plain digits

cdef int64_t MICROS_PER_DAY = 86_400_000_000

# generated: ValueKind
cdef enum ValueKind:
    KIND_TEXT = 0
    KIND_STRING = 1
    KIND_LONG = 2
    KIND_INT = 3
    KIND_BOOLEAN = 4
    KIND_DECIMAL = 5
    KIND_DATE = 6
    KIND_TIMESTAMP = 7
    KIND_UTC = 8
# end


cdef struct Column:
    int kind
    int scale
    const uint8_t* before
    Py_ssize_t before_size
    const uint8_t* valid  # a bit per value; null where all are valid
    const uint8_t* values
    Py_ssize_t size
    const int32_t* offsets
    Py_ssize_t first  # where the array begins in its buffers


cdef inline bint is_set(const uint8_t* bits, Py_ssize_t index) noexcept nogil:
    return bits[index >> 3] >> (index & 7) & 1


cdef class Views:
    """The buffers of a call, for as long as it reads them."""

    cdef Py_buffer* views
    cdef Py_ssize_t count

    def __cinit__(self, Py_ssize_t most):
        self.views = <Py_buffer*>calloc(most, sizeof(Py_buffer))
        if self.views == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.count):
            PyBuffer_Release(&self.views[index])
        free(self.views)

    cdef const uint8_t* of(self, object buffer, Py_ssize_t least) except? NULL:
        cdef Py_buffer* view = &self.views[self.count]
        PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE)
        self.count += 1
        if view.len < least:
            raise ValueError("a buffer is too short for its column")
        return <const uint8_t*>view.buf

    cdef Py_ssize_t last_size(self):
        return self.views[self.count - 1].len


cdef int width_of(int kind) noexcept:
    if kind == KIND_LONG or kind == KIND_TIMESTAMP or kind == KIND_UTC:
        return 8
    if kind == KIND_INT or kind == KIND_DATE:
        return 4
    return 16 if kind == KIND_DECIMAL else 0


cdef int put_two(uint8_t* into, int64_t number) noexcept nogil:
    into[0] = <uint8_t>(0x30 + number // 10)
    into[1] = <uint8_t>(0x30 + number % 10)
    return 0


cdef void write_date(uint8_t* into, int64_t days) noexcept nogil:
    """Write a day of the Gregorian calendar, counted from 1970-01-01, within years of four digits."""
    cdef int64_t shifted = days + 719468
    cdef int64_t era = shifted // 146097
    cdef int64_t day = shifted - era * 146097
    cdef int64_t of_era = (day - day // 1460 + day // 36524 - day // 146096) // 365
    cdef int64_t year = of_era + era * 400
    cdef int64_t month
    day -= 365 * of_era + of_era // 4 - of_era // 100
    month = (5 * day + 2) // 153
    day += 1 - (153 * month + 2) // 5
    month += 3 if month < 10 else -9
    year += month <= 2
    put_two(into, year // 100)
    put_two(into + 2, year % 100)
    into[4] = into[7] = 0x2D
    put_two(into + 5, month)
    put_two(into + 8, day)


cdef int put_day(Output* out, int64_t days) noexcept nogil:
    cdef uint8_t* into
    if not FIRST_DAY <= days <= LAST_DAY:
        return UNUSUAL
    into = room(out, 12)
    if into == NULL:
        return NO_MEMORY
    into[0] = into[11] = 0x22
    write_date(into + 1, days)
    return DONE


cdef int put_moment(Output* out, int64_t micros, bint utc) noexcept nogil:
    cdef int64_t days = micros // MICROS_PER_DAY - (micros % MICROS_PER_DAY < 0)
    cdef int64_t rest = micros - days * MICROS_PER_DAY
    cdef int64_t seconds = rest // 1_000_000
    cdef int64_t fraction = rest % 1_000_000
    cdef uint8_t* into
    if not FIRST_DAY <= days <= LAST_DAY:
        return UNUSUAL
    into = room(out, 28 + utc)
    if into == NULL:
        return NO_MEMORY
    into[0] = 0x22
    write_date(into + 1, days)
    into[11] = 0x54
    put_two(into + 12, seconds // 3600)
    into[14] = into[17] = 0x3A
    put_two(into + 15, seconds // 60 % 60)
    put_two(into + 18, seconds % 60)
    into[20] = 0x2E
    put_two(into + 21, fraction // 10_000)
    put_two(into + 23, fraction // 100 % 100)
    put_two(into + 25, fraction % 100)
    if utc:
        into[27] = 0x5A
    into[27 + utc] = 0x22
    return DONE


cdef int put_decimal(Output* out, int64_t number, int scale) noexcept nogil:
    """Write a decimal as Java's BigDecimal does: a small one as a power of ten."""
    cdef uint8_t[20] digits
    cdef int count = write_digits(digits, 0 - <uint64_t>number if number < 0 else <uint64_t>number)
    cdef const uint8_t* first = &digits[20 - count]
    cdef int exponent = count - 1 - scale
    cdef uint8_t* into
    cdef int zeros
    if number < 0 and put_byte(out, 0x2D):
        return NO_MEMORY
    if scale == 0:
        return put(out, first, count)
    if exponent < LEAST_EXPONENT:
        if put_byte(out, first[0]):
            return NO_MEMORY
        if count > 1 and (put_byte(out, 0x2E) or put(out, first + 1, count - 1)):
            return NO_MEMORY
        return put_byte(out, 0x45) or put_signed(out, exponent)
    zeros = scale + 1 - count if count <= scale else 0
    into = room(out, zeros)
    if into == NULL:
        return NO_MEMORY
    for exponent in range(zeros):
        into[exponent] = 0x30
    if put(out, first, count):
        return NO_MEMORY
    into = room(out, 1)
    if into == NULL:
        return NO_MEMORY
    for exponent in range(scale):  # moves the digits after the point, which is then there
        into[0] = into[-1]
        into -= 1
    into[0] = 0x2E
    return DONE


cdef int put_value(Output* out, const Column* column, Py_ssize_t index) noexcept nogil:
    cdef const uint8_t* values = column.values
    cdef const int64_t* halves
    cdef int32_t start, end
    if column.valid != NULL and not is_set(column.valid, index):
        return put(out, <const uint8_t*>b"null", 4)
    if column.kind == KIND_TEXT or column.kind == KIND_STRING:
        start, end = column.offsets[index], column.offsets[index + 1]
        if not 0 <= start <= end <= column.size:
            return UNUSUAL
        if column.kind == KIND_TEXT:
            return put(out, values + start, end - start)
        return put_json_string(out, values + start, end - start)
    if column.kind == KIND_LONG:
        return put_signed(out, (<const int64_t*>values)[index])
    if column.kind == KIND_INT:
        return put_signed(out, (<const int32_t*>values)[index])
    if column.kind == KIND_DATE:
        return put_day(out, (<const int32_t*>values)[index])
    if column.kind == KIND_DECIMAL:
        halves = <const int64_t*>values + 2 * index
        if halves[1] != (-1 if halves[0] < 0 else 0):
            return UNUSUAL
        return put_decimal(out, halves[0], column.scale)
    if column.kind == KIND_BOOLEAN:
        return put(out, <const uint8_t*>b"true", 4) if is_set(values, index) else put(out, <const uint8_t*>b"false", 5)
    return put_moment(out, (<const int64_t*>values)[index], column.kind == KIND_UTC)


cdef int put_row(Output* out, const Column* columns, Py_ssize_t count, Py_ssize_t row) noexcept nogil:
    cdef Py_ssize_t index
    cdef int status
    for index in range(count):
        status = put(out, columns[index].before, columns[index].before_size)
        status = status or put_value(out, &columns[index], columns[index].first + row)
        if status != DONE:
            return status
    return put_byte(out, 0x7D)


def json_objects(list columns not None, Py_ssize_t rows, object valid, Py_ssize_t first):
    """Write rows; give their texts and the offsets of these, or None where a value is out of the ordinary.

    A column is (kind, scale, before, valid, values, offsets, first). Rows that are not ``valid`` have no text.
    """
    cdef Py_ssize_t count = len(columns)
    cdef Views views = Views(3 * count + 1)
    cdef const uint8_t* present = NULL
    cdef Column* found = <Column*>calloc(max(1, count), sizeof(Column))
    cdef Column* column
    cdef Output out
    cdef Py_ssize_t index, stop
    cdef int kind, status = DONE
    cdef bytes before, offsets
    cdef int32_t* ends
    out.data = NULL
    out.size = out.capacity = 0
    out.bad = False
    try:
        if found == NULL:
            raise MemoryError
        if valid is not None:
            present = views.of(valid, (first + rows + 7) // 8)
        for index, (kind, scale, before, bits, values, starts, begin) in enumerate(columns):
            column = &found[index]
            column.kind, column.scale, column.first = kind, scale, begin
            if not 0 <= kind <= <int>KIND_UTC or column.first < 0 or not 0 <= column.scale <= 18:
                raise ValueError("a column is none")
            stop = column.first + rows
            column.before, column.before_size = <const uint8_t*>PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before)
            if bits is not None:
                column.valid = views.of(bits, (stop + 7) // 8)
            if kind == KIND_TEXT or kind == KIND_STRING:
                column.offsets = <const int32_t*>views.of(starts, 4 * (stop + 1))
            if values is not None:
                column.values = views.of(values, (stop + 7) // 8 if kind == KIND_BOOLEAN else stop * width_of(kind))
                column.size = views.last_size()
            elif kind != KIND_TEXT and kind != KIND_STRING:
                raise ValueError("a column has no values")
        offsets = PyBytes_FromStringAndSize(NULL, 4 * (rows + 1))
        ends = <int32_t*>PyBytes_AS_STRING(offsets)
        ends[0] = 0
        with nogil:
            for index in range(rows):
                if present == NULL or is_set(present, first + index):
                    status = put_row(&out, found, count, index)
                    if status == DONE and out.size > MOST_BYTES:
                        status = UNUSUAL
                    if status != DONE:
                        break
                ends[index + 1] = <int32_t>out.size
        if status == NO_MEMORY:
            raise MemoryError
        if status != DONE:
            return None
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size) if out.size else b"", offsets
    finally:
        free(out.data)
        free(found)

# cython: language_level=3
"""Records of a topic, and how the kernel looks at one: in a block, or as an object in a list."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t

from millrace.kernel.reading cimport Source, source_at
from millrace.kernel.writing cimport Output

cdef enum:
    # The fields of millrace.stage.Record.
    OFFSET = 0
    TIMESTAMP = 1
    KEY = 2
    VALUE = 3
    HEADERS = 4
    FIELDS = 5


cdef struct Entry:
    # A record of a block: where its key begins, which its value follows. A size below 0 stands for null.
    int64_t offset
    int64_t timestamp
    Py_ssize_t at
    Py_ssize_t key_size
    Py_ssize_t value_size


cdef struct Record:
    # A record that has a key, a value, and no headers, as long as nothing is added to what it is in.
    int64_t offset
    int64_t timestamp
    Source key
    Source value


cdef class Memory:
    # The bytes of records, which blocks share.
    cdef Output data


cdef class RecordBlock:
    cdef Memory memory
    cdef bint is_shared  # with another, which may add to it
    cdef Output entries
    cdef dict headers  # of those that have any, by index; None where none has
    cdef Py_ssize_t values_size
    cdef object kind

    cdef Py_ssize_t count(self) noexcept
    cdef Entry* entry(self, Py_ssize_t index) noexcept
    cdef int add(self, int64_t offset, int64_t timestamp, const uint8_t* key, Py_ssize_t key_size,
                 const uint8_t* value, Py_ssize_t value_size, headers) except -1
    cdef int end_record(self, int64_t offset, int64_t timestamp, Py_ssize_t at, Py_ssize_t key_size) except -1
    cdef object record(self, Py_ssize_t index)
    cdef Output* own(self, Py_ssize_t more) except NULL
    cdef void fit(self) noexcept
    cdef int _add_entry(self, const Entry* entry, headers) except -1
    cdef int _add_object(self, record) except -1
    cdef RecordBlock _part(self, Py_ssize_t start, Py_ssize_t stop)
    cdef int _copy(self, RecordBlock other) except -1
    cdef object _headers_of(self, Py_ssize_t index)
    cdef tuple _column(self, bint keys)


cdef inline bint look_at(records, Py_ssize_t index, Record* found) except -1:
    # Look at a record of a block, a list or a tuple; False where it is no ordinary one.
    cdef RecordBlock block
    cdef const Entry* entry
    cdef tuple record
    if type(records) is RecordBlock:
        block = <RecordBlock> records
        if not 0 <= index < block.count():
            raise IndexError("no such record")
        entry = block.entry(index)
        if entry.key_size < 0 or entry.value_size < 0 or (block.headers is not None and index in block.headers):
            return False
        found.offset, found.timestamp = entry.offset, entry.timestamp
        found.key = source_at(block.memory.data.data + entry.at, entry.key_size)
        found.value = source_at(block.memory.data.data + entry.at + entry.key_size, entry.value_size)
        return True
    if type(records) is list:
        one = (<list> records)[index]
    elif type(records) is tuple:
        one = (<tuple> records)[index]
    else:
        return False
    if not isinstance(one, tuple) or len(<tuple> one) != FIELDS:
        return False
    record = <tuple> one
    key, value = record[KEY], record[VALUE]
    if not PyBytes_CheckExact(key) or not PyBytes_CheckExact(value) or record[HEADERS]:
        return False
    found.offset, found.timestamp = record[OFFSET], record[TIMESTAMP]
    found.key = source_at(<const uint8_t*> PyBytes_AS_STRING(<bytes> key), PyBytes_GET_SIZE(<bytes> key))
    found.value = source_at(<const uint8_t*> PyBytes_AS_STRING(<bytes> value), PyBytes_GET_SIZE(<bytes> value))
    return True

# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""Records of a topic in memory of their own: none is an object of Python before it is asked for.

A record that is read, and one that is made of it and read again, costs more as an object than what is done with it.
:class:`RecordBlock` is therefore what ``messages`` reads records into, and what ``events`` may write them into; they
and ``transactions`` look at its memory through :c:func:`look_at`.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from millrace.kernel.tuples cimport tuple_of
from millrace.kernel.writing cimport Output, grow, put, shrink

__all__ = ["RecordBlock"]


cdef class Memory:

    def __dealloc__(self):
        free(self.data.data)


cdef class RecordBlock:
    """A sequence of millrace.stage.Record, which are made whenever they are asked for.

    They are objects of ``kind``; ``size`` is that of all values together. A part of it is a block too, and shares its
    memory until something is added to it.
    """

    def __cinit__(self, type kind not None, records=()):
        if not issubclass(kind, tuple) or kind.__basicsize__ != tuple.__basicsize__:
            raise TypeError("records are tuples")
        self.kind, self.memory = kind, Memory()
        self.extend(records)

    def __dealloc__(self):
        free(self.entries.data)

    @property
    def size(self):
        return self.values_size

    def __len__(self):
        return self.count()

    def __getitem__(self, index):
        cdef Py_ssize_t start, stop, step
        if isinstance(index, slice):
            start, stop, step = (<slice> index).indices(self.count())
            if step != 1:
                raise ValueError("a part of a block has no gaps")
            return self._part(start, max(start, stop))
        start = index
        if start < 0:
            start += self.count()
        if not 0 <= start < self.count():
            raise IndexError("no such record")
        return self.record(start)

    def __iter__(self):
        cdef Py_ssize_t index
        return iter([self.record(index) for index in range(self.count())])

    def extend(self, others):
        """Add other records."""
        if others is self:
            raise ValueError("a block is not added to itself")
        if type(others) is RecordBlock:
            self._copy(<RecordBlock> others)
            return
        for record in others:
            self._add_object(record)

    def bytes_at(self, Py_ssize_t place, Py_ssize_t start, Py_ssize_t stop):
        """Return the byte at a place of the value of each record from one on to before another; 0 where there is none."""
        cdef Py_ssize_t index
        cdef const Entry* entry
        cdef bytearray found = bytearray(max(stop - start, 0))
        if start < 0 or stop > self.count() or place < 0:
            raise IndexError("no such record")
        for index in range(start, stop):
            entry = self.entry(index)
            if place < entry.value_size:
                found[index - start] = self.memory.data.data[entry.at + max(entry.key_size, 0) + place]
        return bytes(found)

    def timestamps(self):
        """Return the timestamp of each."""
        cdef Py_ssize_t index
        return [self.entry(index).timestamp for index in range(self.count())]

    def columns(self):
        """Return the records in columns, as Arrow has them, and the headers of those that have any, by index.

        Those are offsets and timestamps, of 64 bits each; and of keys and of values whether each is there, a byte
        per record, where each begins and the last one ends, of 32 bits each, and the bytes.
        """
        cdef Py_ssize_t index
        cdef Py_ssize_t count = self.count()
        cdef bytearray offsets = bytearray(8 * count)
        cdef bytearray timestamps = bytearray(8 * count)
        cdef int64_t* into = <int64_t*> PyByteArray_AS_STRING(offsets)
        cdef int64_t* times = <int64_t*> PyByteArray_AS_STRING(timestamps)
        for index in range(count):
            into[index] = self.entry(index).offset
            times[index] = self.entry(index).timestamp
        return offsets, timestamps, self._column(True), self._column(False), self.headers or {}

    cdef tuple _column(self, bint keys):
        """Return the keys, or the values, as a column."""
        cdef Py_ssize_t index, size
        cdef Py_ssize_t at = 0
        cdef Py_ssize_t count = self.count()
        cdef const Entry* entry
        cdef bytearray valid = bytearray(count)
        cdef bytearray begins = bytearray(4 * (count + 1))
        cdef int32_t* starts = <int32_t*> PyByteArray_AS_STRING(begins)
        cdef bytearray data
        for index in range(count):
            entry = self.entry(index)
            size = entry.key_size if keys else entry.value_size
            valid[index] = size >= 0
            at += max(size, 0)
            if at > 0x7FFFFFFF:
                raise OverflowError("more than 2 GiB in a column")
            starts[index + 1] = <int32_t> at
        data = bytearray(at)
        for index in range(count):
            entry = self.entry(index)
            at = entry.at if keys else entry.at + max(entry.key_size, 0)
            memcpy(PyByteArray_AS_STRING(data) + starts[index], self.memory.data.data + at,
                   starts[index + 1] - starts[index])
        return valid, begins, data

    def number(self, int64_t first):
        """Return the records offsets from ``first`` on, without a gap."""
        cdef Py_ssize_t index
        for index in range(self.count()):
            self.entry(index).offset = first + index

    # -- one record ----------------------------------------------------------------------------------------

    cdef Py_ssize_t count(self) noexcept:
        return self.entries.size // sizeof(Entry)

    cdef Entry* entry(self, Py_ssize_t index) noexcept:
        return &(<Entry*> self.entries.data)[index]

    cdef object record(self, Py_ssize_t index):
        """Make the object of a record that is there."""
        cdef const Entry* entry = self.entry(index)
        return tuple_of(
            self.kind,
            (
                entry.offset,
                entry.timestamp,
                bytes_or_none(self.memory.data.data + entry.at, entry.key_size),
                bytes_or_none(self.memory.data.data + entry.at + max(entry.key_size, 0), entry.value_size),
                self._headers_of(index),
            ),
        )

    cdef Output* own(self, Py_ssize_t more) except NULL:
        """Return the memory for bytes that are added, with room for so many."""
        cdef RecordBlock whole
        if self.is_shared:
            whole = RecordBlock(self.kind)
            whole._copy(self)
            self.memory, self.is_shared = whole.memory, False
            self.entries, whole.entries = whole.entries, self.entries
        if more > self.memory.data.capacity - self.memory.data.size and not grow(&self.memory.data, more):
            raise MemoryError
        return &self.memory.data

    cdef int add(self, int64_t offset, int64_t timestamp, const uint8_t* key, Py_ssize_t key_size,
                 const uint8_t* value, Py_ssize_t value_size, headers) except -1:
        """Add a record, a copy of these bytes; of sizes below 0 where they are null."""
        cdef Output* out = self.own(0)
        cdef Entry entry = Entry(offset, timestamp, out.size, key_size, value_size)
        if put(out, key, max(key_size, 0)) or put(out, value, max(value_size, 0)):
            raise MemoryError
        return self._add_entry(&entry, headers)

    cdef int end_record(self, int64_t offset, int64_t timestamp, Py_ssize_t at, Py_ssize_t key_size) except -1:
        """Add a record whose key and value were written at the end of its own memory, ``at`` the former size of that."""
        cdef Entry entry = Entry(offset, timestamp, at, key_size, self.memory.data.size - at - key_size)
        return self._add_entry(&entry, None)

    cdef void fit(self) noexcept:
        """Give back memory that nothing is in."""
        if not self.is_shared:
            shrink(&self.memory.data)
        shrink(&self.entries)

    cdef int _add_entry(self, const Entry* entry, headers) except -1:
        if headers is not None:
            if self.headers is None:
                self.headers = {}
            self.headers[self.count()] = headers
        if put(&self.entries, <const uint8_t*> entry, sizeof(Entry)):
            raise MemoryError
        self.values_size += max(entry.value_size, 0)
        return 0

    cdef int _add_object(self, record) except -1:
        offset, timestamp, key, value, headers = record
        return self.add(offset, timestamp, data_of(key), size_of(key), data_of(value), size_of(value), headers)

    # -- several -------------------------------------------------------------------------------------------

    cdef RecordBlock _part(self, Py_ssize_t start, Py_ssize_t stop):
        """Return the records from one on to before another, which are there."""
        cdef RecordBlock part = RecordBlock(self.kind)
        cdef Py_ssize_t index
        part.memory, part.is_shared = self.memory, True
        for index in range(start, stop):
            part._add_entry(self.entry(index), self._headers_of(index))
        return part

    cdef int _copy(self, RecordBlock other) except -1:
        """Add the records of another block: their bytes are side by side."""
        cdef Py_ssize_t index, moved
        cdef Py_ssize_t count = other.count()
        cdef Py_ssize_t begin, end
        cdef Output* out
        cdef Entry entry
        if count == 0:
            return 0
        begin, entry = other.entry(0).at, other.entry(count - 1)[0]
        end = entry.at + max(entry.key_size, 0) + max(entry.value_size, 0)
        out = self.own(end - begin)
        moved = out.size - begin
        if put(out, other.memory.data.data + begin, end - begin):
            raise MemoryError
        for index in range(count):
            entry = other.entry(index)[0]
            entry.at += moved
            self._add_entry(&entry, other._headers_of(index))
        return 0

    cdef object _headers_of(self, Py_ssize_t index):
        return None if self.headers is None else self.headers.get(index)


cdef object bytes_or_none(const uint8_t* data, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*> data, size)


cdef const uint8_t* data_of(value) except? NULL:
    return NULL if value is None else <const uint8_t*> PyBytes_AS_STRING(<bytes?> value)


cdef Py_ssize_t size_of(value) except? -1:
    return -1 if value is None else PyBytes_GET_SIZE(<bytes?> value)

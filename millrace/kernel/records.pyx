# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""Records of a topic in memory of their own: none is an object of Python before it is asked for.

A record that is read, and one that is made of it and read again, costs more as an object than what is done with it.
:class:`RecordBlock` is therefore what ``messages`` reads records into, and what ``events`` may write them into; they
and ``transactions`` look at its memory through :c:func:`look_at`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free

from millrace.kernel.tuples cimport tuple_of
from millrace.kernel.writing cimport Output, put

__all__ = ["RecordBlock"]


cdef class RecordBlock:
    """A sequence of millrace.stage.Record, which are made whenever they are asked for; a part of it is a block too.

    They are objects of ``kind``; ``size`` is that of all values together.
    """

    def __init__(self, type kind not None, records=()):
        if not issubclass(kind, tuple) or kind.__basicsize__ != tuple.__basicsize__:
            raise TypeError("records are tuples")
        self.kind = kind
        self.extend(records)

    def __dealloc__(self):
        free(self.data.data)
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
            self._copy(<RecordBlock> others, 0, (<RecordBlock> others).count())
            return
        for record in others:
            self._add_object(record)

    def timestamps(self):
        """Give the timestamp of each."""
        cdef Py_ssize_t index
        return [self.entry(index).timestamp for index in range(self.count())]

    def number(self, int64_t first):
        """Give the records offsets from ``first`` on, without a gap."""
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
                bytes_or_none(self.data.data + entry.at, entry.key_size),
                bytes_or_none(self.data.data + entry.at + max(entry.key_size, 0), entry.value_size),
                None if self.headers is None else self.headers.get(index),
            ),
        )

    cdef int add(self, int64_t offset, int64_t timestamp, const uint8_t* key, Py_ssize_t key_size,
                 const uint8_t* value, Py_ssize_t value_size, headers) except -1:
        """Add a record, a copy of these bytes; of sizes below 0 where they are null."""
        cdef Entry entry = Entry(offset, timestamp, self.data.size, key_size, value_size)
        if put(&self.data, key, max(key_size, 0)) or put(&self.data, value, max(value_size, 0)):
            raise MemoryError
        return self._add_entry(&entry, headers)

    cdef int end_record(self, int64_t offset, int64_t timestamp, Py_ssize_t at, Py_ssize_t key_size) except -1:
        """Add a record whose key and value were written at the end of the data, ``at`` its former size."""
        cdef Entry entry = Entry(offset, timestamp, at, key_size, self.data.size - at - key_size)
        return self._add_entry(&entry, None)

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
        """Give a copy of the records from one on to before another, which are there."""
        cdef RecordBlock part = RecordBlock(self.kind)
        part._copy(self, start, stop)
        return part

    cdef int _copy(self, RecordBlock other, Py_ssize_t start, Py_ssize_t stop) except -1:
        """Add records of another block: their bytes are side by side."""
        cdef Py_ssize_t moved, index, begin, end
        cdef Entry entry
        if start >= stop:
            return 0
        begin = other.entry(start).at
        end = other.data.size if stop == other.count() else other.entry(stop).at
        moved = self.data.size - begin
        if put(&self.data, other.data.data + begin, end - begin):
            raise MemoryError
        for index in range(start, stop):
            entry = other.entry(index)[0]
            entry.at += moved
            self._add_entry(&entry, None if other.headers is None else other.headers.get(index))
        return 0


cdef object bytes_or_none(const uint8_t* data, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*> data, size)


cdef const uint8_t* data_of(value) except? NULL:
    return NULL if value is None else <const uint8_t*> PyBytes_AS_STRING(<bytes?> value)


cdef Py_ssize_t size_of(value) except? -1:
    return -1 if value is None else PyBytes_GET_SIZE(<bytes?> value)

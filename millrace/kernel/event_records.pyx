"""Records of ``{source}.events``, compiled: back to events.

:class:`HeadReader` reads records as EventDeserializer does, the head at once and the event when it is asked for, by
the kinds that :func:`millrace.avro.plans.field_kinds` makes of the declarations. What is not plain is read by the
reference, so errors are the reference's as well.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from millrace.kernel.reading cimport Source, Span, is_ascii, read_branch, read_long, skip, slice_of, source_of

from struct import error as StructError

from millrace.binlog.errors import BinlogError

__all__ = ["EventHead", "HeadReader", "RecordReader"]

cdef enum:
    MOST_FIELDS = 48
    # How much is remembered: so many names and events, each of so many bytes at most.
    REMEMBERED = 4096
    NAME_LIMIT = 512


cdef class RecordReader:
    """Makes values of a declared class of their bytes in Avro, by the kinds of its fields.

    ``kinds`` has a number per field, ``readers`` the reference's function where that is KIND_OTHER;
    ``read_text(raw)`` makes a name of its bytes.
    """

    cdef object _declared
    cdef uint8_t _kinds[MOST_FIELDS]
    cdef int _count
    cdef list _readers
    cdef object _read_text

    def __init__(self, declared, list kinds not None, list readers not None, read_text):
        cdef int index
        if len(kinds) > MOST_FIELDS or len(readers) != len(kinds):
            raise ValueError("more fields than there is room for")
        self._declared, self._readers, self._read_text = declared, readers, read_text
        self._count = len(kinds)
        for index in range(self._count):
            self._kinds[index] = kinds[index]

    cdef object read(self, bytes data, Source* source):
        """Read a value at the source's place; None, or ``source.bad``, where the reference must do so."""
        cdef int index, kind
        cdef Py_ssize_t at, size
        cdef uint64_t number
        cdef list values = [None] * self._count
        for index in range(self._count):
            kind = self._kinds[index]
            if kind & KIND_OPTIONAL and not read_branch(source):
                continue
            kind &= ~KIND_OPTIONAL
            if kind == KIND_LONG:
                value = read_long(source)
            elif kind == KIND_UINT64:
                number = <uint64_t> read_long(source)
                value = number
            elif kind == KIND_OTHER:
                if source.bad:
                    return None
                value, at = self._readers[index](data, source.at)
                if at < source.at or at > source.end:
                    return None
                source.at = at
            else:
                size = <Py_ssize_t> read_long(source)
                at = skip(source, size)
                if source.bad:
                    return None
                value = slice_of(source, at, size)
                if kind == KIND_STRING:
                    value = self._read_text(value)
            values[index] = value
        return None if source.bad else self._declared(*values)


cdef class EventHead:
    """A record of the events topic, as :class:`millrace.avro.events.EventRecord`: the same attributes."""

    cdef bytes _data
    cdef HeadReader _reader
    cdef Py_ssize_t _start
    cdef Py_ssize_t _offset
    cdef Py_ssize_t _checksum
    cdef object _header
    cdef object _event
    cdef int64_t _event_size
    cdef int64_t _next_position
    cdef int64_t _flags

    cdef readonly object log_file
    cdef readonly int64_t position
    cdef readonly int64_t sub_index
    cdef readonly int64_t timestamp
    cdef readonly int64_t type_code
    cdef readonly int64_t server_id
    cdef readonly bint artificial
    cdef readonly int64_t epoch
    cdef readonly object transaction
    cdef readonly int64_t ordinal
    cdef readonly bint begins
    cdef readonly object ends
    cdef readonly object xid
    cdef readonly object database
    cdef readonly object table

    @property
    def checksum(self):
        """The checksum, 4 bytes as they are; None where there is none."""
        return None if self._checksum < 0 else self._data[self._checksum:self._checksum + CHECKSUM_LENGTH]

    @property
    def post_header_extra(self):
        """What a newer server has at the end of the post-header: nothing, or this were EventRecord."""
        return b""

    @property
    def header(self):
        """The common header."""
        if self._header is None:
            self._header = self._reader._header_class(
                self.timestamp, self.type_code, self.server_id, self._event_size, self._next_position,
                self._flags
            )
        return self._header

    @property
    def event(self):
        """The typed event. Raises InvalidValueError where the record is damaged."""
        if self._event is None:
            self._event = self._reader.event(self._data, self._start, self._offset, self.type_code)
        return self._event

    @property
    def decoded(self):
        """The event as the codec has it; encoded, it gives the bytes of the log."""
        return self._reader._decoded_class(self.header, self.event, self.checksum, b"")


cdef class Remembered:
    """The last name that stood in one place of a record: most often the next is the same."""

    cdef bytes raw
    cdef object text

    def __cinit__(self):
        self.raw, self.text = b"", ""


cdef class HeadReader:
    """Reads records of the events topic; ``reference(value, offset)`` reads what is not plain here.

    ``readers`` has a RecordReader per branch of the union of events, ``repeated`` the type codes of events
    that come again and again with the same bytes, ``ends`` the ends of transactions by name.
    """

    cdef object _reference
    cdef list _readers
    cdef object _read_text
    cdef dict _ends
    cdef frozenset _repeated
    cdef object _header_class
    cdef object _decoded_class
    cdef Remembered _log_file
    cdef Remembered _transaction
    cdef Remembered _database
    cdef Remembered _table
    cdef Remembered _other
    cdef dict _texts
    cdef dict _events

    def __init__(self, reference, list readers not None, read_text, dict ends not None,
                 frozenset repeated not None, header_class, decoded_class):
        self._reference, self._readers, self._read_text = reference, readers, read_text
        self._ends, self._repeated = ends, repeated
        self._header_class, self._decoded_class = header_class, decoded_class
        self._texts, self._events = {}, {}
        self._log_file, self._transaction, self._other = Remembered(), Remembered(), Remembered()
        self._database, self._table = Remembered(), Remembered()

    def __call__(self, bytes value not None, Py_ssize_t offset):
        """Read the record that begins at ``offset`` of ``value``."""
        cdef Source source = source_of(value, offset, PyBytes_GET_SIZE(value))
        head = self._read(value, &source, offset)
        return self._reference(value, offset) if head is None else head

    cdef EventHead _read(self, bytes data, Source* source, Py_ssize_t start):
        cdef Head found
        cdef EventHead head
        read_plain_head(source, &found)
        if source.bad:
            return None
        head = EventHead.__new__(EventHead)
        head._data, head._reader, head._start, head._offset = data, self, start, found.event
        head.log_file = self._text(source, &found.log_file, self._log_file)
        head.position, head.sub_index = found.position, found.sub_index
        head.timestamp, head.type_code, head.server_id = found.timestamp, found.type_code, found.server_id
        head._event_size, head._next_position, head._flags = found.event_size, found.next_position, found.flags
        head._checksum = found.checksum.at if found.checksum.size >= 0 else -1
        head.artificial, head.epoch = found.artificial, found.epoch
        head.transaction = self._text(source, &found.transaction, self._transaction)
        head.ordinal, head.begins = found.ordinal, found.begins
        if found.ends.size >= 0:
            head.ends = self._ends.get(self._text(source, &found.ends, self._other))
            source.bad |= head.ends is None
        head.xid = self._text(source, &found.xid, self._other)
        head.database = self._text(source, &found.database, self._database)
        head.table = self._text(source, &found.table, self._table)
        return None if source.bad else head

    cdef object _text(self, Source* source, const Span* span, Remembered last):
        """Return a name; None where it is null, and where it cannot be read, which is ``bad``."""
        cdef Py_ssize_t at = span.at, size = span.size
        cdef bytes raw
        if size < 0:
            return None
        if size == PyBytes_GET_SIZE(last.raw) and \
                memcmp(source.data + at, PyBytes_AS_STRING(last.raw), size) == 0:
            return last.text
        raw = slice_of(source, at, size)
        text = self._texts.get(raw) if last is not self._transaction else None
        if text is None:
            try:
                text = PyUnicode_DecodeASCII(<const char*> source.data + at, size, NULL) \
                    if is_ascii(source, at, size) else self._read_text(raw)
            except UnicodeDecodeError:
                source.bad = True
                return None
            if last is not self._transaction:
                remember(self._texts, raw, text, REMEMBERED, NAME_LIMIT)
        last.raw, last.text = raw, text
        return text

    cdef object event(self, bytes data, Py_ssize_t start, Py_ssize_t offset, int64_t type_code):
        """Read the event of a record."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef bytes content = None
        if size - offset <= NAME_LIMIT and type_code in self._repeated:
            content = data[offset:size]
            event = self._events.get(content)
            if event is not None:
                return event
        cdef Source source = source_of(data, offset, size)
        cdef int64_t branch = read_long(&source)
        event = None
        if not source.bad and 0 <= branch < len(self._readers):
            try:
                event = (<RecordReader?> self._readers[branch]).read(data, &source)
            except (BinlogError, IndexError, UnicodeDecodeError, StructError):
                source.bad = True
        if event is None or source.bad or source.at != size:
            return self._reference(data, start).event
        if content is not None:
            remember(self._events, content, event, REMEMBERED, NAME_LIMIT)
        return event

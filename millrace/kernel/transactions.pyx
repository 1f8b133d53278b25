# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""Whole transactions, compiled: from records of ``{source}.events`` to BEGIN, rows and END.

:class:`TransactionWriter` does what the row mapper's reader, assembler and publication do one after the other, for
the ordinary transaction: each of its events in one record of its own, statements that only begin and end it, rows
of tables that are bound, and a COMMIT. It takes a transaction whole or not at all: the heads of its events are read
up to its end before anything is written, and what was written of it is dropped where a row turns out to be out of
the ordinary. So the reference finds every transaction that is left at its first record, and says what is wrong. Of
one that is too large for that, and has been assembled, it writes the rows, as far as these are ordinary.

What the kernel knows of tables it is told (:class:`TableWriter`). Memory is read through :c:type:`Source` and
written through :c:type:`Output` alone.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from millrace.kernel.event_records cimport (
    KIND_BYTES,
    KIND_LONG,
    KIND_OPTIONAL,
    KIND_STRING,
    KIND_UINT64,
    ROWS_COLUMNS_AFTER_IMAGE,
    ROWS_COLUMNS_BEFORE_IMAGE,
    ROWS_FLAGS,
    ROWS_ROWS,
    ROWS_TABLE_ID,
    Head,
    read_plain_head,
    remember,
)
from millrace.kernel.reading cimport (
    Source,
    Span,
    is_ascii,
    read_branch,
    read_long,
    read_span,
    skip,
    slice_of,
)
from millrace.kernel.records cimport Record, RecordBlock, look_at
from millrace.kernel.rows cimport Frame, RowBlock, RowsKernel, is_utf8
from millrace.kernel.writing cimport Output, put_byte, put_long, put_object, put_sized, put_sized_object, trim

from millrace.binlog.errors import BinlogError

__all__ = ["TableWriter", "TransactionWriter", "murmur2"]

cdef enum:
    KEPT = 1 << 16
    MOST_EVENTS = 1 << 16  # of a transaction
    MOST_TABLES = 64  # of a transaction, and table maps that hold at the same time
    MOST_IMAGES = 256  # combinations of present columns that are kept per table
    REMEMBERED = 4096
    REMEMBERED_SIZE = 1024
    STMT_END_F = 1

# generated: Use
cdef enum Use:
    USE_NONE = 0
    USE_GTID = 1
    USE_SILENT = 2
    USE_QUERY = 3
    USE_TABLE_MAP = 4
    USE_COMMENT = 5
    USE_WRITE = 6
    USE_UPDATE = 7
    USE_DELETE = 8
# end

cdef int64_t LATEST_US = <int64_t>1 << 53  # see millrace.rowmapper.assembly

cdef uint32_t murmur2_of(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """As ``org.apache.kafka.common.utils.Utils.murmur2``; the caller has proven that the data is there."""
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t>0x9747B28C ^ <uint32_t>size
    cdef uint32_t k
    cdef Py_ssize_t at = 0
    while size - at >= 4:
        k = data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16 | <uint32_t>data[at + 3] << 24
        k *= m
        k = (k ^ k >> 24) * m
        h = h * m ^ k
        at += 4
    if at < size:
        k = data[at]
        if size - at > 1:
            k |= <uint32_t>data[at + 1] << 8
        if size - at > 2:
            k |= <uint32_t>data[at + 2] << 16
        h = (h ^ k) * m
    h = (h ^ h >> 13) * m
    return h ^ h >> 15


def murmur2(bytes data not None):
    """Return the 32-bit murmur2 hash that Kafka's Java clients use."""
    return murmur2_of(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef Py_ssize_t partition_of(object key, Py_ssize_t prefix, uint32_t partitions) noexcept:
    """As millrace.rowmapper.partition: rows without a key keep to the first one."""
    cdef Py_ssize_t size
    if key is None or not PyBytes_CheckExact(key):
        return 0
    size = PyBytes_GET_SIZE(<bytes>key)
    prefix = min(prefix, size)
    return (murmur2_of(<const uint8_t*>PyBytes_AS_STRING(<bytes>key) + prefix, size - prefix) & 0x7FFFFFFF) % partitions


# -- tables ---------------------------------------------------------------------------------------------

cdef class Images:
    """What writes the rows of events that have the same images; and what their records say is missing."""

    cdef RowsKernel rows
    cdef bytes before
    cdef bytes after
    cdef bytes missing  # from an event of this kind
    cdef bytes missing_of_delete  # from what an update of the key becomes
    cdef bytes missing_of_insert


cdef class TableWriter:
    """A table that is bound, ready to write rows.

    ``name`` is database and table, ``label`` both with a point between them, ``origin``, ``place`` and
    ``schema_source`` pieces of the source block, the last four as Avro has them. Keys have ``prefix_size`` bytes in
    front that do not count for the partition. ``images(type_code, before, after)`` gives the RowsKernel for these
    bitmaps, and what is said to be missing in both images together: of an event of that kind, of a delete and of an
    insert; None where that is for the reference. With a ``block_prefix`` the rows go into RowBlocks that
    have it, each the value of one record.
    """

    cdef tuple name
    cdef bytes label
    cdef bytes origin
    cdef bytes place
    cdef bytes schema_source
    cdef list targets
    cdef Py_ssize_t prefix_size
    cdef object make_images
    cdef dict images
    cdef list last  # by operation
    cdef bytes block_prefix
    cdef RowBlock block  # of the call at hand

    def __init__(self, tuple name not None, bytes label not None, bytes origin not None, bytes place not None,
                 bytes schema_source not None, str topic not None, Py_ssize_t partitions, Py_ssize_t prefix_size,
                 images, bytes block_prefix):
        if partitions < 1 or prefix_size < 0:
            raise ValueError("a topic has a partition at least")
        self.name, self.label, self.origin, self.place = name, label, origin, place
        self.schema_source = schema_source
        self.targets = [(topic, partition) for partition in range(partitions)]
        self.prefix_size = prefix_size
        self.make_images = images
        self.block_prefix = block_prefix
        self.images = {}
        self.last = [None, None, None]


cdef bint equals(bytes data, const Source* source, const Span* span) noexcept:
    return PyBytes_GET_SIZE(data) == span.size and \
        memcmp(PyBytes_AS_STRING(data), source.data + span.at, span.size) == 0


cdef struct Event:
    # An event of the transaction at hand: its record, and its head.
    Record record
    Head head


cdef class Mapped:
    """A table map, and the table that it stands for in the call at hand."""

    cdef object event
    cdef bytes content  # as Avro has it
    cdef int64_t table_id
    cdef int64_t call
    cdef TableWriter table
    cdef bint excluded


# -- transactions ---------------------------------------------------------------------------------------

cdef class TransactionWriter:
    """Writes transactions, as long as they are ordinary.

    ``plans`` has, per type code, a number of Use, the branch of the union, and the kinds of the fields; ``read``
    reads the event of a record as the reference does, for what comes again and again. ``begin`` and ``end`` stand
    in front of the two records of ``topic``, which are in blocks if ``new_block`` makes any.

    After :meth:`take`: ``groups``, what was written, as in millrace.stage.Output, of ``count`` records, whose
    values have ``size`` bytes; ``rows`` of them are rows, of so many ``transactions``; ``offset`` and ``epoch`` are
    those of the last event.
    """

    cdef readonly dict groups
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t transactions
    cdef readonly object offset
    cdef readonly int64_t epoch

    cdef object _new_block
    cdef object _selects_server  # from server_id to whether its rows are published; None where all are
    cdef object _read
    cdef tuple _target
    cdef bytes _begin
    cdef bytes _end
    cdef uint8_t _uses[256]
    cdef int _branches[256]
    cdef list _kinds
    cdef dict _table_maps
    cdef dict _queries
    cdef bytes _last_query
    cdef Mapped _last_mapped
    cdef int64_t _call

    # The call at hand.
    cdef object _find_table
    cdef int64_t _now_us
    cdef list _boundaries
    cdef RecordBlock _boundary_block
    cdef list _row_blocks  # with their targets
    cdef dict _last_tables  # by target, that which has its last block

    # The transaction at hand.
    cdef Event* _events
    cdef Py_ssize_t _room
    cdef bytes _id
    cdef bint _has_gtid
    cdef int64_t _committed_us
    cdef bint _has_thread
    cdef int64_t _thread
    cdef list _maps
    cdef list _parts
    cdef list _tables
    cdef dict _counted  # rows of its tables that earlier calls have written, by name
    cdef int64_t _counts[MOST_TABLES]
    cdef int64_t _records
    cdef Py_ssize_t _written
    cdef list _blocks  # that rows of it were written to
    cdef Output _out

    def __dealloc__(self):
        free(self._events)
        free(self._out.data)

    def __init__(self, list plans not None, read, str topic not None, bytes begin not None, bytes end not None,
                 selects_server, new_block):
        cdef int code
        if len(plans) != 256:
            raise ValueError("not a plan per type code")
        self._kinds = []
        for code, (use, branch, kinds) in enumerate(plans):
            self._uses[code], self._branches[code] = use, branch
            self._kinds.append(<bytes?>kinds)
        self._read, self._selects_server, self._new_block = read, selects_server, new_block
        self._target = topic, 0
        self._begin, self._end = begin, end
        self._table_maps, self._queries = {}, {}
        self.groups = {}

    def take(self, records not None, Py_ssize_t index, bytes prefix not None, int64_t now_us,
             Py_ssize_t most_records, Py_ssize_t most_bytes, Py_ssize_t limit, find_table):
        """Write transactions, the first of which begins at ``index``; give the index of the first record left.

        Values have ``prefix`` in front of the event. It ends once ``most_records`` are written, or ``most_bytes``,
        and in front of a transaction whose events have more than ``limit`` bytes. ``find_table(event, epoch,
        log_file, position)`` gives the table of a table map for rows that stand there, None where they are not
        published, and whether that holds for all that come later in this call; None leaves the transaction to the
        reference.
        """
        cdef Py_ssize_t taken
        self._begin_call(now_us, find_table)
        try:
            while index < len(records):
                taken = self._transaction(records, index, prefix, limit)
                self._end_blocks(taken > 0)
                if taken == 0:
                    break
                index += taken
                if self.count >= most_records or self.size >= most_bytes:
                    break
            self._put_blocks()
            if self._boundaries:
                self.groups[self._target] = self._boundaries
        finally:
            self._end_call()
        return index

    def take_rows(self, records not None, Py_ssize_t index, bytes prefix not None, int64_t now_us,
                  Py_ssize_t most_records, Py_ssize_t most_bytes, Py_ssize_t limit, find_table,
                  tuple transaction not None, dict table_maps not None, dict counts not None):
        """Write rows of one transaction, from ``index`` on; give the index of the first record left.

        It ends in front of a statement, of whatever is not ordinary, and of an event of more than ``limit`` bytes; other
        arguments are those of :meth:`take`. ``transaction`` has the id, whether that is a GTID, when it was
        committed in microseconds since 1970, 0 where that is unknown, and the thread, None where that is.
        ``table_maps`` has, by table id, those that hold, and their records' values; ``counts`` how many rows were
        written before, by the tables' names. Both are brought up to date.
        """
        cdef Event event
        cdef Mapped mapped
        cdef int64_t before = 0
        cdef bint is_taken
        cdef int use
        cdef Py_ssize_t place
        self._begin_call(now_us, find_table)
        try:
            self._id, self._has_gtid, self._committed_us, thread = transaction
            self._has_thread = thread is not None
            self._thread = thread if self._has_thread else 0
            self._counted = counts
            for before_of_table in counts.values():
                before += before_of_table
            self._begin_rows(before)
            for table_map, _ in table_maps.values():
                mapped = Mapped.__new__(Mapped)
                mapped.event, mapped.table_id = table_map, table_map.table_id
                self._maps.append(mapped)
            while index < len(records) and self._records - before < most_records and self._written < most_bytes:
                if not self._read_event(records, index, prefix, &event) or event.record.value.end > limit:
                    break
                use = self._uses[event.head.type_code]
                if use == USE_NONE or use == USE_QUERY:
                    break
                if use != USE_SILENT and use != USE_GTID:
                    is_taken = self._part(&event, use)
                    self._end_blocks(is_taken)
                    if not is_taken:
                        break
                    if use == USE_TABLE_MAP:
                        mapped = <Mapped>self._maps[len(self._maps) - 1]
                        table_maps[mapped.table_id] = mapped.event, whole(&event.record.value)
                    elif not self._maps:  # it was the last event of a statement
                        table_maps.clear()
                index += 1
            self._put_parts()
            self._put_blocks()
            for place in range(len(self._tables)):
                if self._counts[place]:  # none where its first rows are not ordinary
                    counts[(<TableWriter>self._tables[place]).name] = self._counts[place]
            self.count = self.rows = self._records - before
            self.size = self._written
        finally:
            self._end_call()
        return index

    cdef int _begin_call(self, int64_t now_us, find_table) except -1:
        self.groups = {}
        self.count = self.size = self.rows = self.transactions = 0
        self._call += 1
        self._now_us, self._find_table = now_us, find_table
        self._boundaries, self._boundary_block, self._counted = [], None, {}
        self._blocks, self._row_blocks, self._last_tables = [], [], {}
        return 0

    cdef int _begin_rows(self, int64_t before) except -1:
        self._maps, self._parts, self._tables = [], [], []
        self._records, self._written = before, 0
        return 0

    cdef int _end_call(self) except -1:
        for table in self._last_tables.values():
            (<TableWriter>table).block = None
        self._boundary_block = self._blocks = self._row_blocks = self._last_tables = None
        self._find_table = self._boundaries = self._parts = self._tables = self._maps = self._counted = None
        trim(&self._out, KEPT)
        return 0

    cdef Py_ssize_t _transaction(self, records, Py_ssize_t index, bytes prefix, Py_ssize_t limit) except -1:
        """Write the transaction that begins at ``index``; give the number of its records, 0 where it is left."""
        cdef Py_ssize_t count = self._survey(records, index, prefix, limit)
        cdef Py_ssize_t number
        cdef Event* event
        cdef int use
        if count == 0:
            return 0
        self._has_thread = False
        self._committed_us = 0
        self._begin_rows(0)
        for number in range(count):
            event = &self._events[number]
            use = self._uses[event.head.type_code]
            if use == USE_SILENT:
                continue
            if use == USE_GTID:
                if not self._gtid(event):
                    return 0
            elif use == USE_QUERY:
                if not self._query(event):
                    return 0
            elif not self._part(event, use):
                return 0
        event = &self._events[count - 1]
        if self._records:
            self._finish(&self._events[0], event)
        self.offset, self.epoch = event.record.offset, event.head.epoch
        return count

    # -- heads ---------------------------------------------------------------------------------------------

    cdef Py_ssize_t _survey(self, records, Py_ssize_t index, bytes prefix, Py_ssize_t limit) except -1:
        """Read the heads of a transaction; give their number, 0 where it is not ordinary or does not end here."""
        cdef Py_ssize_t end = len(records)
        cdef Py_ssize_t number = 0
        cdef Py_ssize_t size = 0
        cdef Event* event
        cdef Head* head
        self._has_gtid = False
        self._id = None
        while index + number < end:
            if not self._fits(number):
                return 0
            event = &self._events[number]
            if not self._read_event(records, index + number, prefix, event):
                return 0
            size += event.record.value.end
            if size > limit:
                return 0
            head = &event.head
            if number == 0:
                if not head.begins:
                    return 0
                self._id = slice_of(&event.record.value, head.transaction.at, head.transaction.size)
            elif head.begins or head.epoch != self._events[0].head.epoch or \
                    not equals(self._id, &event.record.value, &head.transaction):
                return 0
            if self._uses[head.type_code] == USE_NONE:
                return 0
            if self._uses[head.type_code] == USE_GTID:
                self._has_gtid = True
            number += 1
            if head.ends.size >= 0:
                return number
        return 0

    cdef bint _read_event(self, records, Py_ssize_t index, bytes prefix, Event* event) except -1:
        """Say whether a record has an event of its own whose head is ordinary."""
        cdef Source source
        if not look_at(records, index, &event.record):
            return False
        source = event.record.value
        if not starts_with(&source, prefix):
            return False
        read_plain_head(&source, &event.head)
        return is_ordinary(&source, &event.head)

    cdef bint _fits(self, Py_ssize_t number) except -1:
        """Make room for one more event."""
        cdef Py_ssize_t wanted
        cdef Event* events
        if number < self._room:
            return True
        if number >= MOST_EVENTS:
            return False
        wanted = 2 * self._room + 16
        events = <Event*>realloc(self._events, wanted * sizeof(Event))
        if events == NULL:
            raise MemoryError
        self._events, self._room = events, wanted
        return True

    # -- events --------------------------------------------------------------------------------------------

    cdef bint _begin_event(self, const Event* event, Source* source) except -1:
        """Read the union's branch, which is to be that of the type."""
        source[0] = event.record.value
        source.at = event.head.event
        return read_long(source) == self._branches[event.head.type_code] and not source.bad

    cdef bint _gtid(self, const Event* event) except -1:
        """Take note of when the transaction was committed: see ``commit_times`` of millrace.binlog.events.gtid.

        The last two of the fields that the plan has, if any, are the times of this server and of the origin.
        """
        cdef Source source
        cdef bytes known = <bytes>self._kinds[event.head.type_code]
        cdef Py_ssize_t index
        cdef uint8_t kind
        cdef int64_t value
        self._committed_us = 0
        if not self._begin_event(event, &source):
            return False
        for index in range(PyBytes_GET_SIZE(known)):
            kind = <uint8_t>PyBytes_AS_STRING(known)[index]
            if kind & KIND_OPTIONAL and not read_branch(&source):
                continue
            kind &= KIND_OPTIONAL - 1
            if kind == KIND_BYTES or kind == KIND_STRING:
                skip(&source, <Py_ssize_t>read_long(&source))
            elif kind == KIND_LONG or kind == KIND_UINT64:
                value = read_long(&source)
                if index >= PyBytes_GET_SIZE(known) - 2 and 0 < value < LATEST_US:
                    self._committed_us = value
            else:
                return False
        return not source.bad

    cdef bint _query(self, const Event* event) except -1:
        """Take a statement that begins or ends the transaction."""
        cdef Source source
        cdef int64_t thread
        cdef bytes rest
        if not self._begin_event(event, &source):
            return False
        thread = read_long(&source)
        read_long(&source)  # exec_time
        read_long(&source)  # error_code
        if source.bad or not (ends_with(&source, b"\x0aBEGIN") or ends_with(&source, b"\x0cCOMMIT")):
            return False
        cdef Span span = Span(source.at, source.end - source.at)
        if self._last_query is not None and equals(self._last_query, &source, &span):
            self._has_thread, self._thread = True, thread
            return True
        rest = slice_of(&source, span.at, span.size)
        known = self._queries.get(rest)
        if known is None:
            try:
                known = self._read(whole(&event.record.value)).query in (b"BEGIN", b"COMMIT")
            except BinlogError:
                return False
            remember(self._queries, rest, known, REMEMBERED, REMEMBERED_SIZE)
        if not known:
            return False
        self._last_query = rest
        self._has_thread, self._thread = True, thread
        return True

    cdef bint _part(self, const Event* event, int use) except -1:
        """Take a table map, rows, or a comment on them."""
        if use >= USE_WRITE:
            return self._rows_event(event, use)
        if use == USE_TABLE_MAP:
            return self._table_map(event)
        return self._comment(event)

    cdef bint _table_map(self, const Event* event) except -1:
        cdef Source source
        cdef Mapped mapped
        cdef bytes content
        if not self._begin_event(event, &source):
            return False
        cdef Span span = Span(source.at, source.end - source.at)
        mapped = self._last_mapped
        if mapped is None or not equals(mapped.content, &source, &span):
            content = slice_of(&source, span.at, span.size)
            mapped = self._last_mapped = self._table_maps.get(content)
        if mapped is None:
            mapped = Mapped.__new__(Mapped)
            try:
                mapped.event = self._read(whole(&event.record.value))
            except BinlogError:
                return False
            mapped.table_id, mapped.content = mapped.event.table_id, content
            self._last_mapped = mapped
            remember(self._table_maps, content, mapped, REMEMBERED, REMEMBERED_SIZE)
        if len(self._maps) >= MOST_TABLES:
            return False
        self._maps.append(mapped)
        return True

    cdef bint _comment(self, const Event* event) except -1:
        """Step over an event of which no output is made, as long as it is well formed."""
        cdef Source source
        cdef const uint8_t* kinds
        cdef bytes known = <bytes>self._kinds[event.head.type_code]
        cdef Py_ssize_t index
        if not self._begin_event(event, &source):
            return False
        kinds = <const uint8_t*>PyBytes_AS_STRING(known)
        for index in range(PyBytes_GET_SIZE(known)):
            if kinds[index] == KIND_BYTES:
                skip(&source, <Py_ssize_t>read_long(&source))
            elif kinds[index] == KIND_LONG or kinds[index] == KIND_UINT64:
                read_long(&source)
            else:
                return False
        return not source.bad and source.at == source.end

    cdef bint _rows_event(self, const Event* event, int use) except -1:
        cdef const Head* head = &event.head
        cdef Source source
        cdef Span spans[ROWS_ROWS + 1]
        cdef int64_t numbers[ROWS_ROWS + 1]
        cdef bytes known = <bytes>self._kinds[event.head.type_code]
        cdef Mapped mapped
        cdef Images images
        cdef TableWriter table
        cdef Py_ssize_t place, count
        cdef int index
        cdef bint written
        cdef object records
        cdef Frame[3] frames
        if not self._begin_event(event, &source):
            return False
        if PyBytes_GET_SIZE(known) != ROWS_ROWS + 1:
            return False
        for index in range(ROWS_ROWS + 1):
            if PyBytes_AS_STRING(known)[index] == KIND_BYTES:
                spans[index] = read_span(&source)
            else:
                numbers[index] = read_long(&source)
        if source.bad or source.at != source.end:
            return False
        mapped = self._mapped(numbers[<int>ROWS_TABLE_ID])
        if mapped is None:
            return False
        if numbers[<int>ROWS_FLAGS] & STMT_END_F:
            self._maps = []
        if self._selects_server is not None and not self._selects_server(head.server_id):
            return True
        table = self._table(mapped, &source, head)
        if table is None:
            return mapped.excluded
        images = self._images(
            table, &source, use, head.type_code, &spans[<int>ROWS_COLUMNS_BEFORE_IMAGE],
            &spans[<int>ROWS_COLUMNS_AFTER_IMAGE]
        )
        if images is None:
            return False
        place = self._place_of(table)
        if place < 0:
            return False
        self._write_frames(table, images, &source, head, use, frames)
        records = [] if table.block_prefix is None else self._block_of(table, images)
        count = len(records)
        try:
            written = images.rows.write_rows(
                source.data + spans[<int>ROWS_ROWS].at, spans[<int>ROWS_ROWS].size, records, frames,
                self._records + 1, self._counts[place] + 1, None, event.record.timestamp,
            )
        except MemoryError:
            raise
        except Exception:  # whatever it is, the reference meets it as well
            return False
        if not written:
            return False
        count = len(records) - count
        self._records += count
        self._counts[place] += count
        self._written += images.rows.written
        if count:
            if table.block_prefix is None:
                self._place(table, records)
        elif self._counts[place] == 0:
            self._tables.pop()  # it was added for this event
        return True

    cdef RowBlock _block_of(self, TableWriter table, Images images):
        """Return the block that rows go to: the last one of their topic."""
        cdef RowBlock block = table.block
        if block is None or (block.record_prefix is not None and block.record_prefix != images.rows.value_prefix):
            target = table.targets[0]
            former = self._last_tables.get(target)
            if former is not None:
                (<TableWriter>former).block = None
            self._last_tables[target] = table
            table.block = block = RowBlock(table.block_prefix)
            self._row_blocks.append((target, block))
        if block.is_kept():
            self._blocks.append(block)
        return block

    cdef int _end_blocks(self, bint is_taken) except -1:
        """Keep what was written to blocks since the last time, or forget it."""
        for block in self._blocks:
            if is_taken:
                (<RowBlock>block).keep()
            else:
                (<RowBlock>block).revert()
        self._blocks.clear()
        return 0

    cdef int _put_blocks(self) except -1:
        """Put the blocks to what is written of their topics."""
        cdef RowBlock block
        for target, made in self._row_blocks:
            block = <RowBlock>made
            if block.count():
                self.groups.setdefault(target, []).append((None, block, block.timestamps()[0], None))
        return 0

    cdef Mapped _mapped(self, int64_t table_id):
        """Return the last table map with this id."""
        cdef Mapped mapped
        cdef Py_ssize_t index = len(self._maps)
        while index > 0:
            index -= 1
            mapped = <Mapped>self._maps[index]
            if mapped.table_id == table_id:
                return mapped
        return None

    cdef TableWriter _table(self, Mapped mapped, const Source* source, const Head* head):
        """Return the table of a table map, as it is asked for once per call unless it may be another one later.

        None where there is none, or its rows are not published, which ``mapped`` says then.
        """
        if mapped.call == self._call:
            return mapped.table
        log_file = slice_of(source, head.log_file.at, head.log_file.size).decode("ascii")
        found = self._find_table(mapped.event, head.epoch, log_file, head.position)
        mapped.excluded = False
        if found is None:
            return None
        table = (<tuple?>found)[0]
        mapped.excluded = table is None
        mapped.table = None if table is None else <TableWriter?>table
        if (<tuple>found)[1]:
            mapped.call = self._call
        return mapped.table

    cdef Images _images(self, TableWriter table, const Source* source, int use, int type_code, const Span* before,
                        const Span* after):
        cdef Images images = <Images>table.last[use - USE_WRITE]
        if images is not None and equals(images.before, source, before) and equals(images.after, source, after):
            return images
        if (use == USE_WRITE and before.size) or (use == USE_DELETE and after.size):
            return None
        key = use, slice_of(source, before.at, before.size), slice_of(source, after.at, after.size)
        images = table.images.get(key)
        if images is None:
            made = table.make_images(type_code, key[1], key[2])
            if made is None:
                return None
            images = Images.__new__(Images)
            images.rows, images.missing, images.missing_of_delete, images.missing_of_insert = made
            if images.missing is None or images.missing_of_delete is None or images.missing_of_insert is None:
                raise TypeError("bytes are missing")
            if images.rows is None or images.rows.has_two_sides != (use == USE_UPDATE):
                raise ValueError("a kernel for other images")
            images.before, images.after = key[1], key[2]
            if len(table.images) >= MOST_IMAGES:
                table.images.clear()
            table.images[key] = images
        table.last[use - USE_WRITE] = images
        return images

    cdef Py_ssize_t _place_of(self, TableWriter table) except -2:
        """Return the number of a table in this transaction; -1 where they are too many."""
        cdef Py_ssize_t index
        for index in range(len(self._tables)):
            if (<TableWriter>self._tables[index]) is table or (<TableWriter>self._tables[index]).name == table.name:
                return index
        if len(self._tables) >= MOST_TABLES:
            return -1
        self._counts[len(self._tables)] = self._counted.get(table.name, 0)
        self._tables.append(table)
        return len(self._tables) - 1

    cdef int _place(self, TableWriter table, list records) except -1:
        """Note records for the partitions to which they go."""
        cdef uint32_t partitions = <uint32_t>len(table.targets)
        if partitions == 1:
            self._parts.append((table.targets[0], records))
            return 0
        for record in records:
            target = table.targets[partition_of((<tuple>record)[0], table.prefix_size, partitions)]
            self._parts.append((target, [record]))
        return 0

    # -- what is written -----------------------------------------------------------------------------------

    cdef int _write_frames(self, TableWriter table, Images images, const Source* source, const Head* head, int use,
                           Frame* frames) except -1:
        """Write what the records of an event have around images and numbers: see RowEncoder.start, RowsEventWriter."""
        cdef Output* out = &self._out
        cdef Py_ssize_t rest, ends
        cdef Py_ssize_t end[3]
        cdef int status, index
        cdef int count = 3 if use == USE_UPDATE else 1
        cdef const char* operations = b"udc"
        cdef bytes missing
        if use == USE_WRITE:
            operations = b"c"
        elif use == USE_DELETE:
            operations = b"d"
        cdef int64_t micros = self._committed_us if self._committed_us else head.timestamp * 1_000_000
        out.size = 0
        status = put_object(out, table.origin) or put_times(out, micros) or put_object(out, table.place)
        status = status or put_long(out, head.server_id) or put_byte(out, 2 if self._has_gtid else 0)
        if self._has_gtid:
            status = status or put_sized_object(out, self._id)
        status = status or put_span(out, source, &head.log_file) or put_long(out, head.position)
        for index in range(count):
            end[index] = out.size
            status = status or put_byte(out, 2 if self._has_thread else 0)
            if self._has_thread:
                status = status or put_long(out, self._thread)
            status = status or put_byte(out, 0)  # the statement's text
            status = status or put_long(out, head.epoch) or put_long(out, head.sub_index)
            status = status or put_object(out, table.schema_source)
            status = status or put_byte(out, 2) or put_byte(out, <uint8_t>operations[index])
            status = status or put_byte(out, 2) or put_times(out, self._now_us)
            status = status or put_byte(out, 2) or put_sized_object(out, self._id)
        if status:
            raise MemoryError
        for index in range(count):
            ends = end[index + 1] if index + 1 < count else out.size
            missing = images.missing if index == 0 else images.missing_of_delete if index == 1 else \
                images.missing_of_insert
            frames[index].start.data, frames[index].start.size = out.data, end[0]
            frames[index].end.data, frames[index].end.size = out.data + end[index], ends - end[index]
            frames[index].missing.data = <const uint8_t*>PyBytes_AS_STRING(missing)
            frames[index].missing.size = PyBytes_GET_SIZE(missing)
        return 0

    cdef int _finish(self, const Event* first, const Event* last) except -1:
        """Write BEGIN and END around what was written of the transaction, which is whole now."""
        cdef Py_ssize_t index
        cdef int status
        cdef Output* out = &self._out
        out.size = 0
        status = put_object(out, self._begin) or put_sized_object(out, self._id) or put_byte(out, 0) or put_byte(out, 0)
        status = status or self._put_boundary(first) or put_byte(out, 0)
        if status:
            raise MemoryError
        self._put_boundary_record(first)
        self._put_parts()
        out.size = 0
        status = put_object(out, self._end) or put_sized_object(out, self._id) or put_byte(out, 2)
        status = status or put_long(out, self._records) or put_byte(out, 2) or put_long(out, len(self._tables))
        for index in range(len(self._tables)):
            status = status or put_object(out, (<TableWriter>self._tables[index]).label)
            status = status or put_long(out, self._counts[index])
        status = status or put_byte(out, 0)
        status = status or self._put_boundary(last)
        status = status or put_byte(out, 2) or put_long(out, 0)  # non_row_changes
        if status:
            raise MemoryError
        self._put_boundary_record(last)
        self.count += self._records + 2
        self.size += self._written
        self.rows += self._records
        self.transactions += 1
        return 0

    cdef int _put_boundary_record(self, const Event* event) except -1:
        """Make a record of what was written."""
        cdef Output* out = &self._out
        self.size += out.size
        if self._new_block is None:
            value = PyBytes_FromStringAndSize(<const char*>out.data, out.size)
            self._boundaries.append((self._id, value, event.record.timestamp, None))
            return 0
        if self._boundary_block is None:
            self._boundary_block = self._new_block()
            self._boundaries.append((None, self._boundary_block, event.record.timestamp, None))
        return self._boundary_block.add(0, event.record.timestamp, <const uint8_t*>PyBytes_AS_STRING(self._id),
                                        PyBytes_GET_SIZE(self._id), out.data, out.size, None)

    cdef int _put_parts(self) except -1:
        """Put the rows that were written to what is written of their topics."""
        for target, records in self._parts:
            group = self.groups.get(target)
            if group is None:
                self.groups[target] = records
            else:
                (<list>group).extend(records)
        return 0

    cdef int _put_boundary(self, const Event* event) noexcept:
        """Write what both records say of the place: see TransactionSerializer."""
        cdef Output* out = &self._out
        cdef const Head* head = &event.head
        cdef int64_t ms = self._committed_us // 1000 if self._committed_us else head.timestamp * 1000
        return put_long(out, ms) or put_long(out, head.server_id) or put_long(out, head.epoch) \
            or put_span(out, &event.record.value, &head.log_file) or put_long(out, head.position)


cdef bint starts_with(Source* source, bytes prefix) noexcept:
    """Step over the prefix."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix)
    cdef Py_ssize_t at = skip(source, size)
    return not source.bad and memcmp(source.data + at, PyBytes_AS_STRING(prefix), size) == 0


cdef bint ends_with(const Source* source, bytes end) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(end)
    cdef Py_ssize_t at = source.end - size
    return at >= 0 and memcmp(source.data + at, PyBytes_AS_STRING(end), size) == 0


cdef bytes whole(const Source* source):
    return slice_of(source, 0, source.end)


cdef bint is_text(const Source* source, const Span* span) noexcept:
    """Say whether a name is null, or text as the reference reads it."""
    return span.size < 0 or is_utf8(source.data + span.at, span.size, 0xF4)


cdef bint is_ordinary(const Source* source, const Head* head) noexcept:
    """Say whether nothing in a head is for the reference."""
    if source.bad or not 0 <= head.type_code < 256 or head.timestamp >> 32 or head.transaction.size <= 0:
        return False
    if head.ends.size >= 0 and \
            (head.ends.size != 6 or memcmp(source.data + head.ends.at, b"commit", 6) != 0):
        return False
    return head.xid.size < 0 and is_text(source, &head.database) and is_text(source, &head.table) and \
        is_ascii(source, head.log_file.at, head.log_file.size) and \
        is_ascii(source, head.transaction.at, head.transaction.size)


cdef inline int put_times(Output* out, int64_t micros) noexcept:
    """Write milliseconds, and microseconds and nanoseconds, which may be null."""
    return put_long(out, micros // 1000) or put_byte(out, 2) or put_long(out, micros) or put_byte(out, 2) \
        or put_long(out, micros * 1000)


cdef inline int put_span(Output* out, const Source* source, const Span* span) noexcept:
    """Write bytes that were stepped over, after their size."""
    return put_sized(out, source.data + span.at, span.size)

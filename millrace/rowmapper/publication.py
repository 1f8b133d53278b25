"""A transaction's events in, its output out: BEGIN, rows, statements, dead letters, END.

Rows from the dead letter topic are redriven in the same way: those of a transaction between a BEGIN
and an END of their own.

The output is a function of the events, the catalogue and the quarantined tables; only the time of writing in
the envelope and the ids of schemas depend on when and where it is written. Progress is a coordinate: all
output for what lies before (offset of an event, row in it, chunk of its dead letter). So another version, or
another catalogue, may write the rest.
"""

import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from millrace.avro.records import DeadLetter, RecordSerializer, TransactionSerializer
from millrace.avro.row_records import EventMetadata, RowsEventWriter
from millrace.avro.service_state import ANY_TABLE, OffsetRange, Progress, QuarantinedTable, RowsContext
from millrace.avro.transactions import transaction_writer
from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.errors import BinlogError, InvalidValueError, MissingStateError, TooLargeError
from millrace.binlog.events import (
    AnnotateRowsEvent,
    ExecuteLoadQueryEvent,
    IncidentEvent,
    PartialRowDataEvent,
    QueryCompressedEvent,
    QueryEvent,
    RowsEvent,
    RowsQueryLogEvent,
    TableMapEvent,
)
from millrace.binlog.events.rows import (
    CompressedRowsEvent,
    PartialUpdateRowsEvent,
    PlainRowsEvent,
    RowsOperation,
)
from millrace.binlog.fragments import PartialRowsAssembler, rows_event_of
from millrace.binlog.grammar import SILENT
from millrace.binlog.row_images import present_ordinals
from millrace.binlog.statement import Statement, StatementKind, TableName, classify
from millrace.binlog.table import SchemaMismatchError
from millrace.binlog.transaction import ROLES
from millrace.binlog.types import HeaderFlag, RowsFlag
from millrace.contract import HEADER_TABLE, Topics
from millrace.ddl import Server
from millrace.kafka.chunks import split, split_parts
from millrace.rowmapper.assembly import Transaction
from millrace.rowmapper.binding import Binder, BoundTable
from millrace.rowmapper.chunked_rows import LargeEvent, RowBatch, locate_in_pieces, row_batches
from millrace.rowmapper.event_reader import EventBatch, Incoming, Unreadable
from millrace.rowmapper.known_rows import LARGEST, KnownRows, RowLayout, Run, ValueTooLargeError
from millrace.rowmapper.non_row_changes import (
    NON_ROW_CHANGE,
    TEMPORARY,
    NonRowChanges,
    operations,
)
from millrace.rowmapper.partition import partition_of
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.session import DEFINING, defining_statement
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.logging import get_logger
from millrace.stage import Headers, Output

if TYPE_CHECKING:
    from millrace.kernel.records import RecordBlock
    from millrace.kernel.transactions import FindTable, TransactionWriter

_LOG = get_logger(__name__)
_STMT_END: Final = int(RowsFlag.STMT_END_F)
_BEGIN: Final = b"BEGIN"
_MUCH_TOO_LARGE: Final = 4
"""A value of so many times what a record takes does not fit into one, however few bytes its text has."""

_AT_ONCE: Final = 1024 * 1024
"""Bytes of rows that are mapped at once; those of a larger event are mapped batch by batch."""
_ROWS_AT_ONCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """A rows event that waited in the dead letter topic: the last event of ``events``, after its table map.

    Where it came in fragments, these are between the two.
    """

    events: Sequence[Incoming]
    context: RowsContext

    @property
    def table_map(self) -> TableMapEvent:
        """The table map; raises InvalidValueError where the first event is none."""
        event = self.events[0].event.event
        if not isinstance(event, TableMapEvent):
            raise InvalidValueError(f"a dead letter has {type(event).__name__} instead of its table map")
        return event

    def rows_event(self) -> RowsEvent:
        """Return the rows, fragments joined; raises BinlogError where that fails."""
        if len(self.events) == 2 and isinstance(event := self.events[1].event.event, RowsEvent):
            return event
        assembler = PartialRowsAssembler()
        whole = None
        for incoming in self.events[1:]:
            fragment = incoming.event.event
            if not isinstance(fragment, PartialRowDataEvent):
                raise InvalidValueError(f"a dead letter has {type(fragment).__name__} instead of rows")
            whole = assembler.feed(fragment)
        rows = None if whole is None else rows_event_of(whole)
        if rows is None:
            raise InvalidValueError("a dead letter has only a part of its rows event")
        return rows


@dataclass(frozen=True, slots=True)
class Publisher:
    """What all publications share: where they write, what they ask, how records are written.

    ``now_us`` gives the present time, in microseconds since 1970. ``known`` are the rows by which images are
    completed. With ``learn_only`` nothing is published, and no table bound: rows are taken in alone.
    With ``new_block`` the kernel writes transactions' records in blocks.
    """

    topics: Topics
    binder: Binder
    quarantine: Quarantine
    output: Output
    counters: Counter[str]
    serialize_transaction: TransactionSerializer
    serialize_ddl: RecordSerializer
    serialize_dead_letter: RecordSerializer
    deadletter_limit: int
    statement_limit: int
    unpacked_limit: int
    include_query: bool
    truncate: bool
    now_us: Callable[[], int]
    non_row_changes: NonRowChanges = field(default_factory=NonRowChanges)
    known: KnownRows | None = None
    learn_only: bool = False
    new_block: "Callable[[], RecordBlock] | None" = None

    def compiled(self, read: Callable[[bytes], Event]) -> "TransactionWriter | None":
        """Return the kernel's publisher of ordinary transactions; None if there is none."""
        return transaction_writer(
            self.topics.transactions,
            *self.serialize_transaction.beginnings,
            read,
            self.binder.selection.selects_server,
            new_block=self.new_block,
        )


@dataclass(frozen=True, slots=True)
class CompiledRows:
    """The kernel, which writes the rows of a transaction as far as they are ordinary.

    ``find_table`` gives it the table of a table map, as :meth:`TransactionWriter.take` says.
    """

    writer: "TransactionWriter"
    find_table: "FindTable"


class _Reason(NamedTuple):
    """Why an event is a dead letter: the class of the error, and its text."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        text = error.message if isinstance(error, BinlogError | UserError) else str(error)
        return cls(type(error).__name__, text)


class _Coordinate(NamedTuple):
    """Everything made of what lies before is published; see :class:`Progress`."""

    offset: int
    row: int = 0
    records: int = 0
    part: int = 0
    fingerprint: int = 0


class Publication:
    """One transaction on its way out.

    ``undone`` are ranges of offsets whose rows were undone. ``progress`` says how much of it is published
    already. ``headers`` are those of its rows, its BEGIN and its END.
    """

    def __init__(
        self,
        publisher: Publisher,
        transaction: Transaction,
        undone: Sequence[OffsetRange] = (),
        progress: Progress | None = None,
        *,
        headers: Headers = None,
    ) -> None:
        self._publisher = publisher
        self._transaction = transaction
        self._undone = undone
        self._headers = headers
        progress = progress or Progress(-1)
        self._done = _Coordinate(
            progress.offset, progress.row, progress.records, progress.part, progress.fingerprint
        )
        self._begun = progress.begun
        self._tables = dict(progress.tables)
        self._records = sum(self._tables.values())
        self._non_row_changes = progress.non_row_changes
        # Beside each table map its record, and beside the assembler those of the fragments that it has.
        self._table_maps: dict[int, tuple[TableMapEvent, bytes]] = {}
        self._fragments: PartialRowsAssembler | None = None
        self._fragment_records: list[bytes] = []
        self._gtid = transaction.gtid
        self._thread: int | None = None
        self._query: str | None = None
        # First word of the statement that made the next rows, where the log has it.
        self._verb = ""
        self._is_of_update = False

    @property
    def progress(self) -> Progress | None:
        """How much is published; None for nothing."""
        if self._done.offset < 0:
            return None
        return Progress(*self._done, self._begun, dict(self._tables), self._non_row_changes)

    def run(self, batches: Iterable[EventBatch], compiled: CompiledRows | None = None) -> Iterator[None]:
        """Publish events as those of the transaction; yield where a Kafka transaction may end.

        The two differ where a prepared XA transaction is committed: its events came earlier.
        """
        output, known = self._publisher.output, self._publisher.known
        named = self._gtid in {None, self._transaction.id} and self._transaction.id.isascii()
        if known is not None or self._undone or not named:
            compiled = None
        for batch in batches:
            index = 0
            while index < len(batch.records):
                began = index
                if compiled is not None:
                    index = self._take_rows(compiled, batch, index)
                if index == began:
                    incoming = batch.read(index)
                    index += 1
                    work = None if incoming is None else self._take(incoming)
                    if work is not None:
                        yield from work
                if output.full or (known is not None and known.full):
                    yield
        self.finish()

    def _take_rows(self, compiled: CompiledRows, batch: EventBatch, index: int) -> int:
        """Let the kernel publish rows from ``index`` on; give the index of the first event that is left."""
        record, prefix, done = batch.records[index], batch.reader.prefix, self._done
        if record is None or prefix is None or record.offset < done.offset or any(done[1:]):
            return index
        publisher, writer = self._publisher, compiled.writer
        output, committed_us = publisher.output, self._transaction.committed_us
        end = writer.take_rows(
            batch.records,
            index,
            prefix,
            publisher.now_us(),
            *output.room,
            _ROWS_AT_ONCE,  # bytes, of which a row takes one at least
            compiled.find_table,
            (self._transaction.id.encode(), self._gtid is not None, committed_us, self._thread),
            self._table_maps,
            self._tables,
        )
        if end == index:
            return end
        if writer.count:
            self._begin()
            output.merge(writer.groups, writer.count, writer.size)
            self._records += writer.rows
            publisher.counters["rows"] += writer.rows
        last = batch.records[end - 1]
        assert last is not None
        self._done = _Coordinate(last.offset + 1)
        return end

    def refuse(self, error: BinlogError) -> Iterator[None]:
        """Put the last event of the transaction into the dead letter topic."""
        last = self._transaction.last
        if not self._is_done(last.offset):
            self._forget_all()
            yield from self._dead_letter(last, _Reason.of(error))

    def redrive(self, rows: WaitingRows) -> Iterator[None]:
        """Publish rows that waited; raises BinlogError where they still cannot be mapped."""
        context, incoming = rows.context, rows.events[-1]
        self._thread = context.thread
        event = None if self._is_done(incoming.offset) else rows.rows_event()
        if event is not None and self._selects(incoming, rows.table_map, event):
            version = context.server_version
            if self._done.offset != incoming.offset and context.row:
                self._done = _Coordinate(incoming.offset, context.row, context.records)
            yield from self._publish_rows(incoming, event, rows.table_map, context.query, version)
            self._publish(incoming)
        self._transaction.last = incoming

    def finish(self) -> None:
        """Write the END of what has a BEGIN."""
        if self._begun:
            last = self._transaction.last
            assert isinstance(last, Incoming)
            serialize = self._publisher.serialize_transaction
            ts_ms = self._ts_ms(last)
            value = serialize.end(
                self._transaction.id, last.event, ts_ms, self._tables, self._non_row_changes
            )
            self._put_boundary(last, value)
            self._publisher.counters["transactions"] += 1

    # -- how far it has come --------------------------------------------------------------------------

    def _is_done(self, offset: int) -> bool:
        """Return whether all that is made of an event is published."""
        return offset < self._done.offset

    def _done_of(self, incoming: Incoming | Unreadable) -> "_Coordinate":
        """Say how much of an event is published."""
        return self._done if self._done.offset == incoming.offset else _Coordinate(incoming.offset)

    def _publish(self, incoming: Incoming | Unreadable) -> None:
        """Take note that all that is made of an event is published."""
        self._done = _Coordinate(incoming.next_offset)

    # -- events ---------------------------------------------------------------------------------------

    def _take(self, incoming: Incoming | Unreadable) -> Iterator[None] | None:
        """Take the next event; give what remains to be done for it, if anything."""
        if isinstance(incoming, Unreadable):
            return self._unreadable(incoming, incoming.error)
        if ROLES.get(incoming.event.type_code) in SILENT:
            return None  # nor would it be held
        try:
            event = incoming.event.event
        except BinlogError as error:
            return self._unreadable(incoming, error)
        handler = _HANDLERS.get(type(event))
        if handler is None:
            return None
        try:
            return handler(self, incoming, event)
        except BinlogError as error:  # in what is unpacked only now
            return self._unreadable(incoming, error)

    def _unreadable(self, incoming: Incoming | Unreadable, error: Exception) -> Iterator[None] | None:
        if self._is_done(incoming.offset):
            return None
        self._forget_all()
        _LOG.error(
            "a record of the events topic cannot be read; it is a dead letter",
            key=_text_of(incoming.key),
            offset=incoming.offset,
            reason=str(error),
        )
        return self._dead_letter(incoming, _Reason.of(error))

    def _table_map(self, incoming: Incoming, event: TableMapEvent) -> None:
        self._table_maps[event.table_id] = event, incoming.value

    def _query_event(self, incoming: Incoming, event: QueryEvent | QueryCompressedEvent) -> None:
        self._thread = event.thread_id
        self._check_unpacked(incoming, event)
        if event.query != _BEGIN:
            self._statement(incoming, event)

    def _comment(self, _: Incoming, event: RowsQueryLogEvent | AnnotateRowsEvent) -> None:
        if self._publisher.include_query:
            self._query = event.query.decode(errors="replace")
        if self._publisher.known is not None:
            self._verb = classify(event.query).verb

    def _incident(self, _: Incoming, __: IncidentEvent) -> None:
        """Take note that the server has lost changes."""
        self._forget_all()

    def _check_unpacked(self, incoming: Incoming, event: Event) -> None:
        """Raise for an event that may not be unpacked: of much more may only a little be held."""
        size, limit = event.unpacked_size, self._publisher.unpacked_limit
        if size and incoming.large is not None:
            size = max(size, incoming.large.field_size)
        if size > limit:
            raise TooLargeError(
                f"the event unpacks to {size} bytes, and MILLRACE_ROWS_UNPACKED_MIB allows {limit}"
            )

    def _is_undone(self, offset: int) -> bool:
        at = bisect_right(self._undone, offset, key=lambda undone: undone.start) - 1
        return at >= 0 and offset < self._undone[at].end

    def _is_undone_of(self, incoming: Incoming, table_map: TableMapEvent) -> bool:
        """Return whether rows of a table are undone."""
        return (
            bool(self._undone)
            and self._is_undone(incoming.offset)
            and self._publisher.binder.is_transactional(
                table_map.database, table_map.table, incoming.position
            )
        )

    def _fragment(self, incoming: Incoming, event: PartialRowDataEvent) -> Iterator[None] | None:
        """Take a fragment of a rows event that was too large for one; with the last come the rows.

        They are those of the last fragment, by its position; a reference to a value counts in the rows of
        the whole.
        """
        if self._fragments is None:
            self._fragments = PartialRowsAssembler()
        try:
            whole = self._fragments.feed(event)
            rows = None if whole is None else rows_event_of(whole)
        except BinlogError as error:
            if self._is_done(incoming.offset):
                return None
            self._forget_all()
            return self._dead_letter(incoming, _Reason.of(error))
        if rows is None:
            self._fragment_records.append(incoming.value)
            return None
        before, self._fragment_records = self._fragment_records, []
        return self._rows_event(incoming, rows, before)

    def _rows_event(
        self, incoming: Incoming, event: RowsEvent, fragments: Sequence[bytes] = ()
    ) -> Iterator[None] | None:
        mapped = self._table_maps.get(event.table_id)
        query, self._is_of_update = self._query, self._verb == "UPDATE"
        if event.flags & _STMT_END:
            self._table_maps.clear()
            self._query, self._verb = None, ""
        nothing = mapped is None and isinstance(event, PlainRowsEvent) and not event.rows
        if nothing or self._is_done(incoming.offset):
            return None
        if mapped is None:
            self._forget_all()
            missing = MissingStateError(f"no table map for table id {event.table_id}")
            return self._dead_letter(incoming, _Reason.of(missing))
        table_map, record = mapped
        database, table = table_map.database, table_map.table
        publisher = self._publisher
        if publisher.learn_only or not self._selects(incoming, table_map, event):
            return None if publisher.known is None else self._learn(incoming, event, table_map)
        if self._is_undone_of(incoming, table_map):
            publisher.counters["undone_events"] += 1
            return None
        context = RowsContext(
            self._transaction.id,
            self._gtid,
            self._thread,
            query,
            self._transaction.server_version,
            0,
            0,
            (record, *fragments),
            self._transaction.committed_us,
        )
        waiting = publisher.quarantine.find(database, table, self._transaction.start, incoming.offset)
        if waiting is None:
            return self._rows_or_quarantine(incoming, event, table_map, context)
        if (waiting.transaction, waiting.offset) == (self._transaction.start, incoming.offset):
            # A restart while its dead letter was written: what was found then counts, even if it is mended
            # now.
            reason = _Reason(waiting.error_class, waiting.error)
        elif waiting.is_paused:
            reason = _Reason(waiting.error_class, "the table is paused")
            if not waiting.key:
                publisher.quarantine.update(replace(waiting, key=_text_of(incoming.key)))
        else:
            reason = _Reason.of(SchemaMismatchError(f"the table is quarantined: {waiting.error}"))
        return self._dead_letter(incoming, reason, f"{database}.{table}", self._with_rows(incoming, context))

    def _selects(self, incoming: Incoming, table_map: TableMapEvent, event: RowsEvent) -> bool:
        """Return whether rows of an event are published."""
        return self._publisher.binder.selection.publishes(
            table_map.database, table_map.table, event.operation, incoming.event.server_id
        )

    def _rows_or_quarantine(
        self, incoming: Incoming, event: RowsEvent, table_map: TableMapEvent, context: RowsContext
    ) -> Iterator[None]:
        """Publish the rows of an event; where that fails, they and all that follow of their table wait."""
        database, table = table_map.database, table_map.table
        try:
            yield from self._publish_rows(incoming, event, table_map, context.query, context.server_version)
        except (UserError, StopRequestedError, MemoryError):
            raise
        except Exception as failure:  # noqa: BLE001 - whatever one table raises is its own trouble
            if not isinstance(failure, BinlogError):
                _LOG.exception("a table's rows raised an unexpected error", table=f"{database}.{table}")
            reason = _Reason.of(failure)
            key = _text_of(incoming.key)
            if self._publisher.known is not None:
                self._publisher.known.forget(database, table)
            self._publisher.quarantine.add(
                QuarantinedTable(
                    database, table, key, self._transaction.start, incoming.offset, reason.text, reason.kind
                )
            )
            context = self._with_rows(incoming, context)
            yield from self._dead_letter(incoming, reason, f"{database}.{table}", context)

    def _with_rows(self, incoming: Incoming, context: RowsContext) -> RowsContext:
        """Say in the context of a dead letter which of its rows are published already."""
        done = self._done_of(incoming)
        return replace(context, row=done.row, records=done.records)

    # -- rows -----------------------------------------------------------------------------------------

    def _publish_rows(
        self,
        incoming: Incoming,
        event: RowsEvent,
        table_map: TableMapEvent,
        query: str | None,
        server_version: str | None,
    ) -> Iterator[None]:
        """Write the rows of an event to the topic of their table; raises BinlogError where that fails."""
        self._check_unpacked(incoming, event)
        if isinstance(event, CompressedRowsEvent):
            event = event.plain()
        bound = self._publisher.binder.bind(table_map, incoming.position, server_version)
        resumed = self._done_of(incoming).row > 0
        large = incoming.large
        layout = self._layout(incoming, table_map)
        if large is None and not self._is_much(bound, event):
            if layout is not None:
                self._put_completed(incoming, event, bound, query, layout)
            elif resumed:
                self._put_rest(incoming, event, bound, query)
            else:
                writer = RowsEventWriter(
                    bound.encoder,
                    self._place(incoming, bound, query),
                    event.columns_before_image,
                    event.columns_after_image,
                    partial(bound.locate, event),
                    records=bound.encoder.new_records(incoming.timestamp_ms),
                )
                bound.write(event, writer)
                self._put_rows(incoming, bound, event, writer)
            self._publish(incoming)
            return
        # All of the rows are published or none: they are read once before that.
        for publish in (True,) if resumed else (False, True):
            for batch in self._batches(event, bound, large):
                if publish and layout is not None:
                    self._publish_completed(incoming, event, bound, query, batch, layout=layout)
                else:
                    self._publish_batch(incoming, event, bound, query, batch, publish=publish)
                if publish:
                    yield
        self._publish(incoming)

    @staticmethod
    def _is_much(bound: BoundTable, event: RowsEvent) -> bool:
        """Return whether rows are mapped batch by batch; partial JSON cannot be."""
        if isinstance(event, PartialUpdateRowsEvent):
            return False
        size = len(event.rows)
        # A row may take a byte, and its record hundreds.
        return size > _AT_ONCE or (size > _ROWS_AT_ONCE and bound.count(event) > _ROWS_AT_ONCE)

    def _batches(self, event: RowsEvent, bound: BoundTable, large: LargeEvent | None) -> Iterator[RowBatch]:
        keep = _MUCH_TOO_LARGE * bound.encoder.record_limit
        rows = iter((event.rows,)) if large is None else large.field()
        return row_batches(bound.table.columns, event, rows, keep)

    def _put_rest(self, incoming: Incoming, event: RowsEvent, bound: BoundTable, query: str | None) -> None:
        """Write what is not published of the rows of an event."""
        batch = RowBatch(event.rows, 0, self._done.row + 1, {})
        self._publish_batch(incoming, event, bound, query, batch, publish=True)

    def _publish_batch(
        self,
        incoming: Incoming,
        event: RowsEvent,
        bound: BoundTable,
        query: str | None,
        batch: RowBatch,
        *,
        publish: bool,
        logged: RowsEvent | None = None,
    ) -> None:
        """Write the rows of a batch, but those that are published; ``publish`` tells whether to keep them.

        ``logged`` is the event as the log has it, where its rows were completed.
        """
        done = self._done_of(incoming)
        skip = done.row - batch.first_row
        if publish and skip >= batch.count:
            return
        part = replace(event, rows=batch.rows)  # type: ignore[call-arg]  # its subclasses have the field

        def locate(row: int, side: int, ordinal: int) -> tuple[int, int]:
            """Find a value of the batch among all rows of the event."""
            found = batch.references.get((row, side, ordinal))
            if found is not None:
                return found
            where = row + batch.first_row, side, ordinal
            if logged is not None:
                return self._locate_logged(incoming, bound, logged, where)
            if incoming.large is None:
                return bound.locate(event, *where)
            return locate_in_pieces(bound.table.columns, part, incoming.large.field(), where)

        # Of the records of the batch so many are published: they may have been others when they were made.
        before = 0
        while True:
            writer = RowsEventWriter(
                bound.encoder,
                self._place(incoming, bound, query, before),
                event.columns_before_image,
                event.columns_after_image,
                locate,
                first=done.records - before,
                references=batch.references,
            )
            starts = bound.write_by_row(part, writer)
            rest = 0 if skip <= 0 else (*starts, len(writer.records))[skip]
            if before == rest:
                break
            before = rest
        if publish:
            count = self._put_rows(incoming, bound, event, writer, before)
            self._done = _Coordinate(incoming.offset, batch.first_row + len(starts), done.records + count)

    # -- rows that complete others --------------------------------------------------------------------

    def _layout(self, incoming: Incoming, table_map: TableMapEvent) -> RowLayout | None:
        """Say how the rows of a table are known again; None, and they are forgotten, where they are not."""
        known = self._publisher.known
        if known is None or not known.concerns(table_map.database, table_map.table):
            return None
        version = self._transaction.server_version
        layout = self._publisher.binder.layout(table_map, incoming.position, version)
        if layout is None:
            known.forget(table_map.database, table_map.table)
        return layout

    def _forget_all(self) -> None:
        """Forget all rows, as any of them may have been changed."""
        if self._publisher.known is not None:
            self._publisher.known.forget_all()

    def _learn(self, incoming: Incoming, event: RowsEvent, table_map: TableMapEvent) -> Iterator[None]:
        """Take in the rows of an event that is not published."""
        known, name = self._publisher.known, (table_map.database, table_map.table)
        assert known is not None
        if not known.concerns(*name) or self._is_undone_of(incoming, table_map):
            return
        waiting = self._publisher.quarantine.find(*name, self._transaction.start, incoming.offset)
        layout = self._layout(incoming, table_map) if waiting is None else None
        try:
            if layout is None:
                known.forget(*name)
            else:
                yield from self._learn_rows(incoming, event, layout)
        except BinlogError:
            known.forget(*name)
        self._publish(incoming)

    def _learn_rows(self, incoming: Incoming, event: RowsEvent, layout: RowLayout) -> Iterator[None]:
        known, large = self._publisher.known, incoming.large
        assert known is not None
        self._check_unpacked(incoming, event)
        if isinstance(event, CompressedRowsEvent):
            event = event.plain()
        stop = known.stop_of(self._transaction.start, incoming.offset)
        batches: Iterable[RowBatch]
        if isinstance(event, PartialUpdateRowsEvent):
            if large is not None:
                raise TooLargeError("an event with partial JSON is too large")
            batches = (RowBatch(event.rows, 0, 0, {}),)
        else:
            rows = iter((event.rows,)) if large is None else large.field()
            batches = row_batches(layout.columns, event, rows, LARGEST)
        for batch in batches:
            self._completed(incoming, event, layout, batch, stop)
            self._done = _Coordinate(incoming.offset, batch.first_row + batch.count)
            if known.full:
                yield

    def _completed(
        self,
        incoming: Incoming,
        event: RowsEvent,
        layout: RowLayout,
        batch: RowBatch,
        stop: int | None = None,
    ) -> list[Run]:
        """Take in the rows of a batch up to ``stop``, and give those completed that are not published."""
        assert self._publisher.known is not None
        return self._publisher.known.take(
            layout,
            event,
            batch.rows,
            first_row=batch.first_row,
            skip=max(0, self._done_of(incoming).row - batch.first_row),
            stop=None if stop is None else stop - batch.first_row,
            tells_all=self._tells_all(event, layout),
            left_out=batch.references,
        )

    def _tells_all(self, event: RowsEvent, layout: RowLayout) -> bool:
        """Return whether an update has changed nothing but what its images after it have."""
        server = Server.parse(self._transaction.server_version)
        if event.operation is not RowsOperation.UPDATE or (not server.mariadb and server.version >= (8,)):
            return True
        after = layout.ordinals(event.columns_after_image)
        return self._is_of_update and set(layout.key).isdisjoint(after)

    def _put_completed(
        self, incoming: Incoming, event: RowsEvent, bound: BoundTable, query: str | None, layout: RowLayout
    ) -> None:
        """Write the rows of an event completed; all of them or none."""
        done = self._done_of(incoming).row
        batch = RowBatch(event.rows, 0, done + 1, {})
        runs = self._completed(incoming, event, layout, batch)
        try:
            if len(runs) == 1 and not done:
                writer = RowsEventWriter(
                    bound.encoder,
                    self._place(incoming, bound, query),
                    runs[0].event.columns_before_image,
                    runs[0].event.columns_after_image,
                    lambda *where: self._locate_logged(incoming, bound, event, where),
                )
                bound.write(runs[0].event, writer)
                self._put_rows(incoming, bound, event, writer)
            else:
                self._publish_runs(incoming, event, bound, query, runs)
        except ValueTooLargeError:
            self._publish_batch(incoming, event, bound, query, batch, publish=True)

    def _publish_completed(
        self,
        incoming: Incoming,
        event: RowsEvent,
        bound: BoundTable,
        query: str | None,
        batch: RowBatch,
        *,
        layout: RowLayout,
    ) -> None:
        """Write the rows of a batch completed, unless it lacks values that are too large to be held."""
        runs = self._completed(incoming, event, layout, batch)
        if not batch.references:
            with suppress(ValueTooLargeError):
                self._publish_runs(incoming, event, bound, query, runs)
                return
        self._publish_batch(incoming, event, bound, query, batch, publish=True)

    def _publish_runs(
        self, incoming: Incoming, event: RowsEvent, bound: BoundTable, query: str | None, runs: Sequence[Run]
    ) -> None:
        """Write runs of completed rows, all of them or none."""
        for publish in (False, True):
            for run in runs:
                batch = RowBatch(run.event.rows, run.first_row, run.count, {})
                self._publish_batch(incoming, run.event, bound, query, batch, publish=publish, logged=event)

    @staticmethod
    def _locate_logged(
        incoming: Incoming, bound: BoundTable, logged: RowsEvent, where: tuple[int, int, int]
    ) -> tuple[int, int]:
        """Find a value of a row that was completed; raises ValueTooLargeError where its event lacks it."""
        row, side, ordinal = where
        bitmap = (logged.columns_before_image, logged.columns_after_image)[side]
        if incoming.large is not None or ordinal not in present_ordinals(bitmap, len(bound.table.columns)):
            raise ValueTooLargeError("a value is too large for a record, and its event does not contain it")
        return bound.locate(logged, row, side, ordinal)

    def _put_rows(
        self,
        incoming: Incoming,
        bound: BoundTable,
        event: RowsEvent,
        writer: RowsEventWriter,
        before: int = 0,
    ) -> int:
        """Write the records of a writer but those ``before``; give their number, without tombstones."""
        records = writer.records
        if before:
            assert isinstance(records, list)  # a block has all the records of an event
            records = records[before:]
        if not records:
            return 0
        self._begin()
        publisher, timestamp_ms = self._publisher, incoming.timestamp_ms
        output, headers = publisher.output, self._headers
        noted = publisher.binder.note(bound)
        if noted is not None:
            output.add(publisher.topics.state, noted.key, noted.to_bytes(), timestamp_ms)
        if not isinstance(records, list):
            output.add_block(bound.topic, records, timestamp_ms)
        elif bound.encoder.marks:
            for key, value, header in writer.marked(event.operation, before):
                own = headers if header is None else [*(headers or ()), header]
                partition = partition_of(key, bound.partitions)
                output.add(bound.topic, key, value, timestamp_ms, own, partition=partition)
        elif bound.partitions == 1:
            size = sum([len(value) for _, value in records])
            output.extend(bound.topic, [(key, value, timestamp_ms, headers) for key, value in records], size)
        else:
            for key, value in records:
                partition = partition_of(key, bound.partitions)
                output.add(bound.topic, key, value, timestamp_ms, headers, partition=partition)
        count = len(records)
        self._records += count
        self._tables[bound.name] = self._tables.get(bound.name, 0) + count
        publisher.counters["rows"] += count
        return count

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            first = self._transaction.first
            assert isinstance(first, Incoming)
            serialize = self._publisher.serialize_transaction
            self._put_boundary(first, serialize.begin(self._transaction.id, first.event, self._ts_ms(first)))

    def _ts_ms(self, incoming: Incoming) -> int:
        return self._transaction.committed_us // 1000 or incoming.event.timestamp * 1000

    def _put_boundary(self, incoming: Incoming, value: bytes) -> None:
        publisher = self._publisher
        key = self._transaction.id.encode(errors="backslashreplace")
        publisher.output.add(publisher.topics.transactions, key, value, incoming.timestamp_ms, self._headers)

    def _place(
        self, incoming: Incoming, bound: BoundTable, query: str | None, before: int = 0
    ) -> EventMetadata:
        """Say where rows stand; ``before`` of their records are counted already."""
        record = incoming.event
        return EventMetadata(
            self._transaction.committed_us or record.timestamp * 1_000_000,
            record.server_id,
            self._gtid,
            record.log_file,
            record.position,
            record.epoch,
            record.sub_index,
            self._thread,
            query,
            bound.schema_source,
            self._publisher.now_us(),
            self._transaction.id,
            self._records + 1 - before,
            self._tables.get(bound.name, 0) + 1 - before,
            incoming.key,
        )

    # -- dead letters ---------------------------------------------------------------------------------

    def _dead_letter(
        self,
        incoming: Incoming | Unreadable,
        reason: _Reason,
        table: str | None = None,
        context: RowsContext | None = None,
    ) -> Iterator[None]:
        """Write an event to the dead letter topic, whole."""
        publisher = self._publisher
        large = incoming.large if isinstance(incoming, Incoming) else None
        place = incoming.position
        content = DeadLetter(
            service="rowmapper",
            topic=publisher.topics.events,
            offset=incoming.offset,
            key=incoming.key,
            value=b"" if large is not None else incoming.value,
            epoch=place.epoch,
            log_file=place.log_file,
            position=place.position,
            error_class=reason.kind,
            error=reason.text,
            table=table,
            context=None if context is None else context.to_bytes(),
        ).to_dict()
        limit = publisher.deadletter_limit
        if large is None:
            whole = publisher.serialize_dead_letter(content)
            fingerprint = zlib.crc32(whole)
            pieces = split(whole, limit)
        else:
            before, after = publisher.serialize_dead_letter.around(content, "value", large.value.size)
            size = len(before) + large.value.size + len(after)
            fingerprint = zlib.crc32(after, zlib.crc32(before))
            pieces = split_parts(chain((before,), large.pieces(), (after,)), size, limit)
        fingerprint ^= limit
        done = self._done_of(incoming)
        # Chunks that were cut from something else are written again, from the first: readers forget the
        # others.
        skip = done.part if done.fingerprint == fingerprint else 0
        named = [] if table is None else [(HEADER_TABLE, table.encode("utf-8", "replace"))]
        for index, (header, piece) in enumerate(pieces):
            if index < skip:
                continue
            headers = [*([] if header is None else [header]), *named] or None
            publisher.output.add(
                publisher.topics.deadletter, incoming.key, piece, incoming.timestamp_ms, headers
            )
            if header is not None:
                self._done = done._replace(part=index + 1, fingerprint=fingerprint)
                yield
        publisher.counters["dead_letters"] += 1
        if table is not None:
            publisher.quarantine.waiting[table] += 1
        self._publish(incoming)

    # -- statements -----------------------------------------------------------------------------------

    def _statement(
        self,
        incoming: Incoming,
        event: QueryEvent | QueryCompressedEvent | ExecuteLoadQueryEvent,
    ) -> None:
        """Record DDL, and statements that changed rows and were logged as text."""
        statement = classify(event.query)
        kind = _KINDS.get(statement.kind)
        publisher, known = self._publisher, self._publisher.known
        if kind is None or self._is_done(incoming.offset):
            return
        temporary = self._is_temporary(incoming, statement, event)
        if temporary:
            kind = TEMPORARY
            session = incoming.event.server_id, event.thread_id or 0
            publisher.non_row_changes.follow(statement, session, event.database)
        elif known is not None:
            known.follow(statement, event.database)
        if publisher.learn_only:
            return
        changed = [] if temporary else self._changed(incoming, statement, event)
        if self._is_undone(incoming.offset) and not changed:
            return
        if changed:
            self._begin()
            self._non_row_changes += 1
            publisher.non_row_changes.count(changed)
        if statement.kind is not StatementKind.DML:
            publisher.counters["ddl"] += 1
        if statement.verb in DEFINING and not temporary:
            self._define(incoming, event)
        if publisher.truncate and statement.verb == "TRUNCATE" and not temporary:
            self._truncate(incoming, statement, event)
        at, query, size = incoming.event, event.query, len(event.query)
        if incoming.large is not None:
            size = incoming.large.field_size
            query = b"".join(incoming.large.field(min(size, publisher.statement_limit)))
        record = {
            "kind": kind,
            "database": event.database,
            "statement": query[: publisher.statement_limit].decode(errors="backslashreplace"),
            "size": size,
            "name": f"{statement.verb} {statement.object_type or ''}".rstrip(),
            "objects": _objects(statement, event.database),
            "gtid": self._gtid,
            "ts_ms": self._transaction.committed_us // 1000 or _ended(at.timestamp, event.exec_time) * 1000,
            "server_id": at.server_id,
            "thread": event.thread_id,
            "error_code": event.error_code,
            "epoch": at.epoch,
            "file": at.log_file,
            "pos": at.position,
            "sub_index": at.sub_index,
            "changed": changed,
        }
        publisher.output.add(
            publisher.topics.ddl, incoming.key, publisher.serialize_ddl(record), incoming.timestamp_ms
        )
        self._publish(incoming)

    def _is_temporary(
        self,
        incoming: Incoming,
        statement: Statement,
        event: QueryEvent | QueryCompressedEvent | ExecuteLoadQueryEvent,
    ) -> bool:
        """Return whether all tables that a statement names are temporary ones of its session."""
        if statement.temporary or (statement.verb == "CREATE" and statement.object_type == "TABLE"):
            return statement.temporary
        renamed = {new for _, new in statement.renames}
        names = [name for name in statement.tables if name not in renamed] or statement.changes
        return bool(names) and all(
            self._is_temporary_table(incoming, name, event, guess=statement.kind is StatementKind.DML)
            for name in names
        )

    def _is_temporary_table(
        self,
        incoming: Incoming,
        name: TableName,
        event: QueryEvent | QueryCompressedEvent | ExecuteLoadQueryEvent,
        *,
        guess: bool,
    ) -> bool:
        """Return whether a table is temporary; with ``guess`` by its name where the log did not tell."""
        at = incoming.event
        if not at.header.flags & HeaderFlag.THREAD_SPECIFIC_F:
            return False
        found = name.database or event.database, name.table
        session = at.server_id, event.thread_id or 0
        publisher = self._publisher
        if publisher.non_row_changes.is_temporary(session, found):
            return True
        return guess and not publisher.binder.exists(*found, incoming.position)

    def _changed(
        self,
        incoming: Incoming,
        statement: Statement,
        event: QueryEvent | QueryCompressedEvent | ExecuteLoadQueryEvent,
    ) -> list[str]:
        """Name the published tables whose rows a statement has changed, which the log has no rows of."""
        names = statement.changes
        if statement.kind is not StatementKind.DML and not names:
            return []
        binder, selection = self._publisher.binder, self._publisher.binder.selection
        selects_server = selection.selects_server
        if selects_server is not None and not selects_server(incoming.event.server_id):
            return []
        undone, is_dml = self._is_undone(incoming.offset), statement.kind is StatementKind.DML
        changed = []
        for name in names or (TableName(None, ANY_TABLE),):
            database, table = binder.spelled(name.database or event.database), binder.spelled(name.table)
            ignored = selection.ignored_operations(database, table)
            if (
                (undone and binder.is_transactional(database, table, incoming.position))
                or (is_dml and names and self._is_temporary_table(incoming, name, event, guess=True))
                or (ignored and set(operations(statement, event.query)) <= set(ignored))
                or not (selection.selects(database, table) if names else selection.may_select(database))
            ):
                continue
            changed.append(f"{database}.{table}")
        return changed

    def _truncate(
        self,
        incoming: Incoming,
        statement: Statement,
        event: QueryEvent | QueryCompressedEvent | ExecuteLoadQueryEvent,
    ) -> None:
        """Write a record into the topics of tables that are emptied; rows that wait are not before it."""
        publisher = self._publisher
        for name in statement.tables:
            spelled = publisher.binder.spelled
            database, table = spelled(name.database or event.database), spelled(name.table)
            if (database, table) in publisher.quarantine:
                continue
            at = incoming.event
            place = EventMetadata(
                self._transaction.committed_us or at.timestamp * 1_000_000,
                at.server_id,
                self._gtid,
                at.log_file,
                at.position,
                at.epoch,
                at.sub_index,
                event.thread_id,
                None,
                "ddl",
                publisher.now_us(),
                self._transaction.id,
                0,
                0,
                incoming.key,
            )
            found = publisher.binder.truncation(database, table, place)
            if found is not None:
                publisher.output.add(found[0], None, found[1], incoming.timestamp_ms)

    def _define(
        self, incoming: Incoming, event: QueryEvent | QueryCompressedEvent | ExecuteLoadQueryEvent
    ) -> None:
        """Apply a statement to the definitions of tables, and write the resulting ones."""
        publisher = self._publisher
        text, session, whole = defining_statement(
            event, self._transaction.server_version, incoming.large, incoming.event.header.flags
        )
        versions = publisher.binder.define(text, session, incoming.position, whole=whole)
        for each in versions:
            publisher.output.add(publisher.topics.schemas, each.key, each.to_bytes(), incoming.timestamp_ms)


_Handler = Callable[[Publication, Incoming, Any], Iterator[None] | None]

_HANDLERS_OF_KINDS: Final[tuple[tuple[type[Event], _Handler], ...]] = (
    (TableMapEvent, Publication._table_map),
    (RowsEvent, Publication._rows_event),
    (QueryEvent, Publication._query_event),
    (QueryCompressedEvent, Publication._query_event),
    (RowsQueryLogEvent, Publication._comment),
    (AnnotateRowsEvent, Publication._comment),
    (ExecuteLoadQueryEvent, Publication._statement),
    (PartialRowDataEvent, Publication._fragment),
    (IncidentEvent, Publication._incident),
)
_HANDLERS: Final = {
    declaration.event_class: handler
    for declaration in EVENTS.values()
    for base, handler in _HANDLERS_OF_KINDS
    if issubclass(declaration.event_class, base)
}
"""What takes an event, by its class; of all others no output is made."""

_KINDS: Final = {
    StatementKind.DDL: "DDL",
    StatementKind.DML: NON_ROW_CHANGE,
    StatementKind.OTHER: "OTHER",
}


def _ended(began: int, seconds: int) -> int:
    """Return when a statement ended: exec_time counts from its TIMESTAMP, modulo 2^32 if that is later."""
    return (began + seconds) & 0xFFFFFFFF


def _text_of(key: bytes) -> str:
    return key.decode("ascii", "backslashreplace")


def _objects(statement: Statement, database: str) -> list[str]:
    """Name what a statement is about, with the session's database where it leaves that out."""
    if statement.database is not None:
        return [statement.database]
    return [_full_name(table, database) for table in statement.tables or statement.changes]


def _full_name(table: TableName, database: str) -> str:
    return f"{table.database or database}.{table.table}"

"""A transaction's events in, its output out: BEGIN, rows, statements, dead letters, END.

Rows that waited in the dead letter topic are given back the same way: those of a transaction between a BEGIN
and an END of their own.

The output is a function of the events, the catalogue and the tables that are set aside; only ``ts_ms`` of the
envelope and the ids of schemas depend on when and where it is made.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Self

from millrace.avro.records import DeadLetter, RecordSerializer, TransactionSerializer
from millrace.avro.state import OffsetRange, QuarantinedTable, RowsContext
from millrace.avro.tables import EventPlace, EventWriter, Locate
from millrace.binlog.columns import Column
from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.errors import BinlogError, InvalidValueError, MissingStateError
from millrace.binlog.events import (
    AnnotateRowsEvent,
    ExecuteLoadQueryEvent,
    PartialRowDataEvent,
    QueryCompressedEvent,
    QueryEvent,
    RowsEvent,
    RowsQueryLogEvent,
    TableMapEvent,
)
from millrace.binlog.fragments import PartialRowsAssembler, rows_event_of
from millrace.binlog.statement import Statement, StatementKind, TableName, classify
from millrace.binlog.table import SchemaMismatchError
from millrace.binlog.types import RowsFlag
from millrace.contract import Topics
from millrace.kafka.chunks import split, split_parts
from services.rowmapper.assembler import Transaction
from services.rowmapper.incoming import Incoming, unreadable
from services.rowmapper.large import LargeEvent, RowBatch, locate_in_pieces, row_batches
from services.rowmapper.sink import Sink
from services.rowmapper.tables import BoundTable, Tables

__all__ = ["Outcome", "Publication", "Publisher", "WaitingRows"]

_STMT_END: Final = int(RowsFlag.STMT_END_F)
_BEGIN: Final = b"BEGIN"
_MUCH_TOO_LARGE: Final = 4
"""A value of so many times what a record takes does not fit into one, however few bytes its text has."""


@dataclass(slots=True)
class Outcome:
    """What publishing a transaction came to."""

    rows: int = 0
    undone_events: int = 0
    ddl: int = 0
    non_row_changes: int = 0
    dead_letters: int = 0
    per_table: dict[tuple[str, str], int] = field(default_factory=dict)


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
            raise InvalidValueError(f"a dead letter has {type(event).__name__} in place of its table map")
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
                raise InvalidValueError(f"a dead letter has {type(fragment).__name__} in place of rows")
            whole = assembler.feed(fragment)
        rows = None if whole is None else rows_event_of(whole)
        if rows is None:
            raise InvalidValueError("a dead letter has only a part of its rows event")
        return rows


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publishes transactions one after the other into ``sink``."""

    topics: Topics
    tables: Tables
    sink: Sink
    serialize_transaction: TransactionSerializer
    serialize_ddl: RecordSerializer
    serialize_dead_letter: RecordSerializer
    deadletter_limit: int
    statement_limit: int
    include_query: bool
    clock: Callable[[], float] = time.time
    transactions_topic: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "transactions_topic", self.topics.transactions)

    def publish(
        self, transaction: Transaction, events: Iterable[Incoming], undone: Sequence[OffsetRange]
    ) -> Outcome:
        """Publish ``events`` as those of ``transaction``, without the rows that lie in the ranges ``undone``.

        The two differ where a prepared XA transaction is committed: its events came earlier.
        """
        publication = Publication(self, transaction, undone)
        publication.run(events)
        return publication.outcome

    def refuse(self, transaction: Transaction, error: BinlogError) -> Outcome:
        """Put the last event of ``transaction`` into the dead letter topic."""
        publication = Publication(self, transaction, ())
        publication.dead_letter(transaction.last, _Reason.of(error))
        return publication.outcome


class _Reason(NamedTuple):
    """Why an event is a dead letter: the class of the error, and its text."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BinlogError) -> Self:
        return cls(type(error).__name__, error.message)


class Publication:
    """One transaction on its way out."""

    def __init__(self, publisher: Publisher, transaction: Transaction, undone: Sequence[OffsetRange]) -> None:
        self.outcome = Outcome()
        self._publisher = publisher
        self._transaction = transaction
        self._undone = undone
        self._begun = False
        self._key = b""  # of BEGIN and END
        # Beside each table map its record, and beside the assembler those of the fragments that it has.
        self._table_maps: dict[int, tuple[TableMapEvent, bytes]] = {}
        self._fragments: PartialRowsAssembler | None = None
        self._fragment_records: list[bytes] = []
        self._gtid = transaction.gtid
        self._thread: int | None = None
        self._query: str | None = None

    def run(self, events: Iterable[Incoming]) -> None:
        """Publish everything."""
        for incoming in events:
            try:
                event = incoming.event.event
            except BinlogError as error:
                raise unreadable(incoming.offset, incoming.key, error) from error
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, incoming, event)
        self.finish()

    def give_back(self, rows: WaitingRows) -> None:
        """Publish rows that waited; raises BinlogError where they still cannot be read."""
        context, incoming = rows.context, rows.events[-1]
        self._thread = context.thread
        self._publish_rows(
            incoming, rows.rows_event(), rows.table_map, context.query, server_version=context.server_version
        )
        self._transaction.last = incoming

    def finish(self) -> None:
        """Write the END of what has a BEGIN."""
        if self._begun:
            last, outcome = self._transaction.last, self.outcome
            serialize = self._publisher.serialize_transaction
            self._put_boundary(
                last,
                serialize.end(self._transaction.id, last.event, outcome.per_table, outcome.non_row_changes),
            )

    def _table_map(self, incoming: Incoming, event: TableMapEvent) -> None:
        self._table_maps[event.table_id] = event, incoming.value

    def _query_event(self, incoming: Incoming, event: QueryEvent | QueryCompressedEvent) -> None:
        self._thread = event.thread_id
        if event.query != _BEGIN:
            self._statement(incoming, event)

    def _comment(self, _: Incoming, event: RowsQueryLogEvent | AnnotateRowsEvent) -> None:
        if self._publisher.include_query:
            self._query = event.query.decode(errors="replace")

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._key = self._transaction.id.encode(errors="backslashreplace")
            first = self._transaction.first
            serialize = self._publisher.serialize_transaction
            self._put_boundary(first, serialize.begin(self._transaction.id, first.event))

    def _put_boundary(self, incoming: Incoming, value: bytes) -> None:
        publisher = self._publisher
        publisher.sink.put(publisher.transactions_topic, self._key, value, incoming.timestamp_ms)

    def _is_undone(self, offset: int) -> bool:
        return any(undone.start <= offset < undone.end for undone in self._undone)

    def _fragment(self, incoming: Incoming, event: PartialRowDataEvent) -> None:
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
            self.dead_letter(incoming, _Reason.of(error))
            return
        if rows is None:
            self._fragment_records.append(incoming.value)
            return
        before, self._fragment_records = self._fragment_records, []
        self._rows_event(incoming, rows, before)

    def _rows_event(self, incoming: Incoming, event: RowsEvent, fragments: Sequence[bytes] = ()) -> None:
        mapped = self._table_maps.get(event.table_id)
        query = self._query
        if event.flags & _STMT_END:
            self._table_maps.clear()
            self._query = None
        if mapped is None:
            if event.rows:
                missing = MissingStateError(f"no table map for table id {event.table_id}")
                self.dead_letter(incoming, _Reason.of(missing))
            return
        table_map, record = mapped
        database, table = table_map.database, table_map.table
        tables = self._publisher.tables
        undone = self._undone and self._is_undone(incoming.offset)
        if undone and tables.is_transactional(database, table, incoming.position):
            self.outcome.undone_events += 1
            return
        waiting = tables.is_set_aside(database, table, self._transaction.start, incoming.offset)
        if waiting is None:
            try:
                self._publish_rows(incoming, event, table_map, query)
            except BinlogError as failure:
                reason = _Reason.of(failure)
                self._set_aside(incoming, database, table, reason)
            else:
                return
        elif (waiting.transaction, waiting.offset) == (self._transaction.start, incoming.offset):
            # A restart while its letter was written: what was found then counts, even if it is mended now.
            reason = _Reason(waiting.error_class, waiting.error)
        else:
            reason = _Reason.of(SchemaMismatchError(f"the table is set aside: {waiting.error}"))
        context = RowsContext(
            self._transaction.id, self._gtid, self._thread, query, tables.server_version, (record, *fragments)
        )
        self.dead_letter(incoming, reason, f"{database}.{table}", context)

    def _publish_rows(
        self,
        incoming: Incoming,
        event: RowsEvent,
        table_map: TableMapEvent,
        query: str | None,
        *,
        server_version: str | None = None,
    ) -> None:
        """Write the rows of an event to the topic of their table; raises BinlogError where that fails."""
        bound = self._publisher.tables.bind(table_map, incoming, server_version)
        if incoming.large is not None:
            self._publish_batches(incoming, event, bound, query, incoming.large)
            return
        writer = EventWriter(
            bound.encoder,
            self._place(incoming, bound, query),
            event.columns_before_image,
            event.columns_after_image,
            partial(bound.locate, event),
        )
        bound.write(event, writer)
        self._put_rows(incoming, bound, writer)

    def _publish_batches(
        self, incoming: Incoming, event: RowsEvent, bound: BoundTable, query: str | None, large: LargeEvent
    ) -> None:
        """Write the rows of an event too large to be held.

        They are read once before that, since either all of them are published or none.
        """
        table = bound.table
        for publish in (False, True):
            first = 0
            keep = _MUCH_TOO_LARGE * bound.encoder.record_limit
            for batch in row_batches(table.columns, event, large.field(), keep):
                part = replace(event, rows=batch.rows)  # type: ignore[call-arg]  # its subclasses have the field
                writer = EventWriter(
                    bound.encoder,
                    self._place(incoming, bound, query),
                    event.columns_before_image,
                    event.columns_after_image,
                    _locate_in(batch, table.columns, part, large),
                    first=first,
                    references=batch.references,
                )
                bound.write_batch(part, writer)
                first += len(writer.records)
                if publish:
                    self._put_rows(incoming, bound, writer)

    def _put_rows(self, incoming: Incoming, bound: BoundTable, writer: EventWriter) -> None:
        if not writer.records:
            return
        self._begin()
        self._publisher.sink.put_rows(bound.topic, bound.partitions, writer.records, incoming.timestamp_ms)
        count, outcome = len(writer.records), self.outcome
        outcome.rows += count
        outcome.per_table[bound.name] = outcome.per_table.get(bound.name, 0) + count

    def _place(self, incoming: Incoming, bound: BoundTable, query: str | None) -> EventPlace:
        record, outcome = incoming.event, self.outcome
        return EventPlace(
            record.timestamp * 1000,
            record.server_id,
            self._gtid,
            record.log_file,
            record.position,
            record.epoch,
            record.sub_index,
            self._thread,
            query,
            bound.schema_source,
            int(self._publisher.clock() * 1000),
            self._transaction.id,
            outcome.rows + 1,
            outcome.per_table.get(bound.name, 0) + 1,
            incoming.key,
        )

    def _set_aside(self, incoming: Incoming, database: str, table: str, reason: _Reason) -> None:
        self._publisher.tables.set_aside(
            QuarantinedTable(
                database,
                table,
                incoming.key.decode(),
                self._transaction.start,
                incoming.offset,
                reason.text,
                reason.kind,
            )
        )

    def dead_letter(
        self,
        incoming: Incoming,
        reason: _Reason,
        table: str | None = None,
        context: RowsContext | None = None,
    ) -> None:
        """Write an event to the dead letter topic, whole."""
        self.outcome.dead_letters += 1
        publisher = self._publisher
        letter = DeadLetter(
            service="rowmapper",
            topic=publisher.topics.events,
            offset=incoming.offset,
            key=incoming.key,
            value=b"" if incoming.large is not None else incoming.value,
            epoch=incoming.event.epoch,
            log_file=incoming.event.log_file,
            position=incoming.event.position,
            error_class=reason.kind,
            error=reason.text,
            table=table,
            context=None if context is None else context.to_bytes(),
        )
        serialize, limit, large = (
            publisher.serialize_dead_letter,
            publisher.deadletter_limit,
            incoming.large,
        )
        if large is None:
            pieces = split(serialize(letter.to_dict()), limit)
        else:
            before, behind = serialize.around(letter.to_dict(), "value", large.value.size)
            size = len(before) + large.value.size + len(behind)
            pieces = split_parts(chain((before,), large.pieces(), (behind,)), size, limit)
        for header, piece in pieces:
            publisher.sink.put(
                publisher.topics.deadletter,
                incoming.key,
                piece,
                incoming.timestamp_ms,
                None if header is None else [header],
            )

    def _statement(
        self,
        incoming: Incoming,
        event: QueryEvent | QueryCompressedEvent | ExecuteLoadQueryEvent,
    ) -> None:
        """Record DDL, and statements that changed rows and were logged as text."""
        statement = classify(event.query)
        kind = _KINDS.get(statement.kind)
        if kind is None or self._is_undone(incoming.offset):
            return
        if kind == _NON_ROW_CHANGE:
            self._begin()
            self.outcome.non_row_changes += 1
        else:
            self.outcome.ddl += 1
        if statement.object_type == "TABLE" and statement.verb in _DEFINING and not statement.temporary:
            for table in statement.tables:
                database = table.database or event.database
                self._publisher.tables.altered(database, table.table, incoming.position)
        at, query, size = incoming.event, event.query, len(event.query)
        if incoming.large is not None:
            size = incoming.large.field_size
            query = b"".join(incoming.large.field(min(size, self._publisher.statement_limit)))
        record = {
            "kind": kind,
            "database": event.database,
            "statement": query[: self._publisher.statement_limit].decode(errors="backslashreplace"),
            "size": size,
            "name": f"{statement.verb} {statement.object_type or ''}".rstrip(),
            "objects": _objects(statement, event.database),
            "gtid": self._gtid,
            "ts_ms": at.timestamp * 1000,
            "server_id": at.server_id,
            "thread": event.thread_id,
            "error_code": event.error_code,
            "epoch": at.epoch,
            "file": at.log_file,
            "pos": at.position,
            "sub_index": at.sub_index,
        }
        self._publisher.sink.put(
            self._publisher.topics.ddl,
            incoming.key,
            self._publisher.serialize_ddl(record),
            incoming.timestamp_ms,
        )


def _locate_in(batch: RowBatch, columns: Sequence[Column], event: RowsEvent, large: LargeEvent) -> Locate:
    """Bind what finds values of a batch among all rows of their event."""

    def locate(row: int, side: int, ordinal: int) -> tuple[int, int]:
        found = batch.references.get((row, side, ordinal))
        where = row + batch.first_row, side, ordinal
        return found or locate_in_pieces(columns, event, large.field(), where)

    return locate


_HANDLERS_OF_KINDS: Final[tuple[tuple[type[Event], Callable[[Publication, Incoming, Any], None]], ...]] = (
    (TableMapEvent, Publication._table_map),
    (RowsEvent, Publication._rows_event),
    (QueryEvent, Publication._query_event),
    (QueryCompressedEvent, Publication._query_event),
    (RowsQueryLogEvent, Publication._comment),
    (AnnotateRowsEvent, Publication._comment),
    (ExecuteLoadQueryEvent, Publication._statement),
    (PartialRowDataEvent, Publication._fragment),
)
_HANDLERS: Final = {
    declaration.event_class: handler
    for declaration in EVENTS.values()
    for base, handler in _HANDLERS_OF_KINDS
    if issubclass(declaration.event_class, base)
}
"""What takes an event, by its class; of all others no output is made."""

_NON_ROW_CHANGE: Final = "NON_ROW_CHANGE"
_DEFINING: Final = {"CREATE", "ALTER", "RENAME"}
"""Statements behind which a table that was known may have other columns."""

_KINDS: Final = {
    StatementKind.DDL: "DDL",
    StatementKind.DML: _NON_ROW_CHANGE,
    StatementKind.OTHER: "OTHER",
}


def _objects(statement: Statement, database: str) -> list[str]:
    """Name what a statement is about, with the session's database where it leaves that out."""
    if statement.database is not None:
        return [statement.database]
    return [_full_name(table, database) for table in statement.tables]


def _full_name(table: TableName, database: str) -> str:
    return f"{table.database or database}.{table.table}"

"""A transaction's events in, its output out: BEGIN, rows, statements, dead letters, END.

Rows from the dead letter topic are redriven in the same way: those of a transaction between a BEGIN
and an END of their own.

The output is a function of the events, the catalogue and the quarantined tables; only the time of writing in
the envelope and the ids of schemas depend on when and where it is written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millrace.avro.service_state import OffsetRange, Progress, QuarantinedTable, RowsContext
from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.errors import BinlogError, MissingStateError
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
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.events.rows import PlainRowsEvent
from millrace.binlog.fragments import PartialRowsAssembler, rows_event_of
from millrace.binlog.grammar import SILENT
from millrace.binlog.statement import classify
from millrace.binlog.table import SchemaMismatchError
from millrace.binlog.transaction import ROLES
from millrace.binlog.types import RowsFlag
from millrace.rowmapper.assembly import Transaction
from millrace.rowmapper.binding import Binder
from millrace.rowmapper.completion import Completion
from millrace.rowmapper.dead_letters import DeadLetterPublisher, Reason, WaitingRows
from millrace.rowmapper.event_reader import EventBatch, Incoming, Unreadable
from millrace.rowmapper.known_rows import KnownRows
from millrace.rowmapper.logged_rows import LoggedRows, check_unpacked
from millrace.rowmapper.non_row_changes import NonRowChanges
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.rows import RowPublisher
from millrace.rowmapper.statements import StatementPublisher
from millrace.rowmapper.transaction_output import Coordinate, OutputFormat, Sink, TransactionOutput
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.logging import get_logger
from millrace.stage import Headers

if TYPE_CHECKING:
    from millrace.rowmapper.compiled import CompiledPublisher

_LOG = get_logger(__name__)
_STMT_END: Final = int(RowsFlag.STMT_END_F)
_BEGIN: Final = b"BEGIN"


class Publication:
    """One transaction on its way out; see :class:`Publisher`."""

    def __init__(
        self,
        to: TransactionOutput,
        *,
        quarantine: Quarantine,
        completion: Completion,
        rows: RowPublisher,
        statements: StatementPublisher,
        dead_letters: DeadLetterPublisher,
        output_format: OutputFormat,
    ) -> None:
        self._to = to
        self._transaction = to.transaction
        self._quarantine = quarantine
        self._completion = completion
        self._known = completion.known
        self._rows = rows
        self._statements = statements
        self._dead_letters = dead_letters
        self._format = output_format
        # Beside each table map its record, and beside the assembler those of the fragments that it has.
        self._table_maps: dict[int, tuple[TableMapEvent, bytes]] = {}
        self._fragments: PartialRowsAssembler | None = None
        self._fragment_records: list[bytes] = []
        self._query: str | None = None
        # First word of the statement that made the next rows, where the log has it.
        self._verb = ""

    @property
    def progress(self) -> Progress | None:
        """How much is published; None for nothing."""
        return self._to.progress

    def publish(
        self, batches: Iterable[EventBatch], compiled: "CompiledPublisher | None" = None
    ) -> Iterator[None]:
        """Publish events as those of the transaction; yield where a Kafka transaction may end.

        The two differ where a prepared XA transaction is committed: its events came earlier. With
        ``compiled`` the kernel publishes rows as far as they are ordinary.
        """
        if compiled is not None and not compiled.writes_rows_of(self._to):
            compiled = None
        for batch in batches:
            index = 0
            while index < len(batch.records):
                began = index
                if compiled is not None:
                    index = compiled.publish_rows(self._to, batch, index, self._table_maps)
                if index == began:
                    incoming = batch.read(index)
                    index += 1
                    work = None if incoming is None else self._publish_event(incoming)
                    if work is not None:
                        yield from work
                if self._to.sink.output.full or self._known.full:
                    yield
        self._to.end()

    def refuse(self, error: BinlogError) -> Iterator[None]:
        """Put the last event of the transaction into the dead letter topic."""
        last = self._transaction.last
        if not self._to.is_done(last.offset):
            yield from self._lose(last, error)

    def redrive(self, waiting: WaitingRows) -> Iterator[None]:
        """Publish rows that waited; raises BinlogError where they still cannot be mapped."""
        context, incoming, to = waiting.context, waiting.events[-1], self._to
        to.thread = context.thread
        if not to.is_done(incoming.offset):
            rows = LoggedRows(
                incoming, waiting.rows_event(), waiting.table_map, context.server_version, context.query
            )
            if self._rows.selects(rows):
                if to.done.offset != incoming.offset and context.row:
                    to.done = Coordinate(incoming.offset, context.row, context.records)
                yield from self._rows.publish(to, rows)
        self._transaction.last = incoming

    def end(self) -> None:
        """Write the END of what has a BEGIN."""
        self._to.end()

    # -- events ---------------------------------------------------------------------------------------

    def _publish_event(self, incoming: Incoming | Unreadable) -> Iterator[None] | None:
        """Publish what the next event says; return what remains to be done for it, if anything."""
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
        if self._to.is_done(incoming.offset):
            return None
        _LOG.error(
            "a record of the events topic cannot be read; it is a dead letter",
            key=_text_of(incoming.key),
            offset=incoming.offset,
            reason=str(error),
        )
        return self._lose(incoming, error)

    def _lose(self, incoming: Incoming | Unreadable, error: Exception) -> Iterator[None]:
        """Put an event into the dead letter topic; it may have changed rows of any table."""
        self._known.forget_all()
        return self._dead_letters.publish(self._to, incoming, Reason.of(error))

    def _table_map(self, incoming: Incoming, event: TableMapEvent) -> None:
        self._table_maps[event.table_id] = event, incoming.value

    def _query_event(self, incoming: Incoming, event: QueryEvent | QueryCompressedEvent) -> None:
        self._to.thread = event.thread_id
        check_unpacked(incoming, event, self._format.unpacked_limit)
        if event.query != _BEGIN:
            self._statement(incoming, event)

    def _statement(self, incoming: Incoming, event: StatementEvent) -> None:
        logged = None if self._to.is_done(incoming.offset) else self._statements.read(incoming, event)
        if logged is not None:
            if not logged.is_temporary:
                self._known.follow(logged.statement, event.database)
            self._statements.publish(self._to, logged)

    def _comment(self, _: Incoming, event: RowsQueryLogEvent | AnnotateRowsEvent) -> None:
        if self._format.include_query:
            self._query = event.query.decode(errors="replace")
        if self._known.is_used:
            self._verb = classify(event.query).verb

    def _incident(self, _: Incoming, __: IncidentEvent) -> None:
        """Take note that the server has lost changes."""
        self._known.forget_all()

    def _fragment(self, incoming: Incoming, event: PartialRowDataEvent) -> Iterator[None] | None:
        """Join a fragment of a rows event that was too large for one; with the last come the rows.

        They are those of the last fragment, by its position; a reference to a value counts in the rows of
        the whole.
        """
        if self._fragments is None:
            self._fragments = PartialRowsAssembler()
        try:
            whole = self._fragments.feed(event)
            rows = None if whole is None else rows_event_of(whole)
        except BinlogError as error:
            return None if self._to.is_done(incoming.offset) else self._lose(incoming, error)
        if rows is None:
            self._fragment_records.append(incoming.value)
            return None
        before, self._fragment_records = self._fragment_records, []
        return self._rows_event(incoming, rows, before)

    # -- rows -----------------------------------------------------------------------------------------

    def _rows_event(
        self, incoming: Incoming, event: RowsEvent, fragments: Sequence[bytes] = ()
    ) -> Iterator[None] | None:
        to = self._to
        mapped = self._table_maps.get(event.table_id)
        query, verb = self._query, self._verb
        if event.flags & _STMT_END:
            self._table_maps.clear()
            self._query, self._verb = None, ""
        nothing = mapped is None and isinstance(event, PlainRowsEvent) and not event.rows
        if nothing or to.is_done(incoming.offset):
            return None
        if mapped is None:
            return self._lose(incoming, MissingStateError(f"no table map for table id {event.table_id}"))
        table_map, record = mapped
        rows = LoggedRows(incoming, event, table_map, self._transaction.server_version, query, verb)
        is_selected = self._rows.selects(rows)
        if not is_selected and not self._known.concerns(*rows.name):
            return None
        if self._rows.is_undone(to, rows):
            if is_selected:
                to.sink.counters["undone_events"] += 1
            return None
        waiting = self._quarantine.find(*rows.name, self._transaction.start, incoming.offset)
        if not is_selected:
            return self._completion.learn(rows, to, waits=waiting is not None)
        return self._rows_or_dead_letter(rows, waiting, (record, *fragments))

    def _rows_or_dead_letter(
        self, rows: LoggedRows, waiting: QuarantinedTable | None, before: tuple[bytes, ...]
    ) -> Iterator[None]:
        """Publish rows, unless those of their table wait; ``before`` are the records that they need."""
        incoming = rows.incoming
        context = RowsContext(
            self._transaction.id,
            self._transaction.gtid,
            self._to.thread,
            rows.query,
            rows.server_version,
            0,
            0,
            before,
            self._transaction.committed_us,
        )
        if waiting is None:
            return self._rows_or_quarantine(rows, context)
        if (waiting.transaction, waiting.offset) == (self._transaction.start, incoming.offset):
            # A restart while its dead letter was written: what was found then counts, even if it is mended
            # now.
            reason = Reason(waiting.error_class, waiting.error)
        elif waiting.is_paused:
            reason = Reason(waiting.error_class, "the table is paused")
            if not waiting.key:
                self._quarantine.update(replace(waiting, key=_text_of(incoming.key)))
        else:
            reason = Reason.of(SchemaMismatchError(f"the table is quarantined: {waiting.error}"))
        return self._wait(rows, reason, context)

    def _rows_or_quarantine(self, rows: LoggedRows, context: RowsContext) -> Iterator[None]:
        """Publish the rows of an event; where that fails, they and all that follow of their table wait."""
        (database, table), incoming = rows.name, rows.incoming
        try:
            yield from self._rows.publish(self._to, rows)
        except (UserError, StopRequestedError, MemoryError):
            raise
        except Exception as failure:  # noqa: BLE001 - whatever one table raises is its own trouble
            if not isinstance(failure, BinlogError):
                _LOG.exception("a table's rows raised an unexpected error", table=f"{database}.{table}")
            reason = Reason.of(failure)
            self._known.forget(database, table)
            self._quarantine.add(
                QuarantinedTable(
                    database,
                    table,
                    _text_of(incoming.key),
                    self._transaction.start,
                    incoming.offset,
                    reason.text,
                    reason.kind,
                )
            )
            yield from self._wait(rows, reason, context)

    def _wait(self, rows: LoggedRows, reason: Reason, context: RowsContext) -> Iterator[None]:
        """Put rows into the dead letter topic, and say which of them are published already."""
        done = self._to.done_of(rows.incoming)
        context = replace(context, row=done.row, records=done.records)
        return self._dead_letters.publish(self._to, rows.incoming, reason, ".".join(rows.name), context)


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
"""What handles an event, by its class; of all others no output is made."""


class Publisher:
    """Makes the publications of transactions; the parts that they share are made once.

    With ``learns_only`` nothing is published, and no table bound: rows are learned alone.
    """

    def __init__(
        self,
        sink: Sink,
        output_format: OutputFormat,
        binder: Binder,
        *,
        quarantine: Quarantine,
        non_row_changes: NonRowChanges,
        known: KnownRows,
        learns_only: bool = False,
    ) -> None:
        publishes = not learns_only
        completion = Completion(known, binder, output_format)
        self._new_output = partial(TransactionOutput, sink, output_format)
        self._new_publication = partial(
            Publication,
            quarantine=quarantine,
            completion=completion,
            rows=RowPublisher(binder, completion, output_format, publishes=publishes),
            statements=StatementPublisher(
                binder, quarantine, non_row_changes, output_format, publishes=publishes
            ),
            dead_letters=DeadLetterPublisher(quarantine, output_format),
            output_format=output_format,
        )

    def publication(
        self,
        transaction: Transaction,
        undone: Sequence[OffsetRange] = (),
        progress: Progress | None = None,
        headers: Headers = None,
    ) -> Publication:
        """Return the publication of a transaction, as :class:`TransactionOutput` describes it."""
        return self._new_publication(
            self._new_output(transaction, undone=undone, progress=progress, headers=headers)
        )


def _text_of(key: bytes) -> str:
    return key.decode("ascii", "backslashreplace")

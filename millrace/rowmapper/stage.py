"""From records of ``{source}.events`` to those of the row topics, with the state after them.

One direction: events (:mod:`millrace.rowmapper.event_reader`), transactions that have ended
(:mod:`millrace.rowmapper.assembly`), the tables that they touch (:mod:`millrace.rowmapper.binding`), their
output (:mod:`millrace.rowmapper.publication`).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from millrace.avro.service_state import OffsetRange, PendingXa, RowMapperState
from millrace.avro.transactions import transaction_writer
from millrace.binlog.errors import BinlogError, MissingStateError
from millrace.binlog.events import TableMapEvent
from millrace.binlog.transaction import TransactionEnd
from millrace.contract import EventKey, SourcePosition
from millrace.rowmapper.assembly import Assembler, Step, Transaction
from millrace.rowmapper.binding import Binder, Seen
from millrace.rowmapper.compiled import CompiledPublisher
from millrace.rowmapper.event_reader import EventReader, Marker
from millrace.rowmapper.known_rows import KnownRows
from millrace.rowmapper.non_row_changes import NonRowChanges
from millrace.rowmapper.publication import Publication, Publisher
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.transaction_output import OutputFormat, Sink
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.stage import Record

if TYPE_CHECKING:
    from millrace.rowmapper.snapshots import SnapshotMerger

Replay = Callable[[int, int], Iterator[Sequence[Record]]]
"""Reads the records from one offset to before another a second time, in batches."""

_BOUND_TOGETHER: Final = 50
"""Transactions whose tables are bound together, at the most."""

_ROLLBACKS: Final = (TransactionEnd.ROLLBACK, TransactionEnd.XA_ROLLBACK)


class RowMapperStage:
    """Maps records of the events topic in order; ``next_offset`` is that of the record to be mapped next."""

    def __init__(
        self,
        state: RowMapperState,
        sink: Sink,
        output_format: OutputFormat,
        binder: Binder,
        reader: EventReader,
        *,
        replay: Replay,
        buffer_bytes: int,
        quarantine: Quarantine | None = None,
        known: KnownRows | None = None,
        learns_only: bool = False,
        snapshots: "SnapshotMerger | None" = None,
        end: SourcePosition | None = None,
        end_of: Callable[[Record], SourcePosition | None] = lambda _: None,
    ) -> None:
        """Begin where ``state`` says.

        ``known`` are the rows by which images are completed; with ``learns_only`` rows are learned, and
        nothing is published. ``snapshots`` merges snapshots, if anything does: where the last event before
        the first record has its ``end``, and where ``end_of`` says of a record.
        """
        self.unknown_xa = 0
        """XA transactions that were decided, and prepared before the first event."""
        self._end_of = end_of
        # Nothing was mapped so far, nor by an earlier row mapper.
        self._is_first = not state.counters and not learns_only
        self._learns_only = learns_only
        self._last: Record | None = None
        self._end = end
        self._snapshots = snapshots
        self.output, self._topics = sink.output, sink.topics
        self.next_offset = state.input_offset
        self.counters = sink.counters
        self.counters.update(state.counters)
        self.counters.update({"transactions_cut": 0, "gaps": 0})
        self.non_row_changes = NonRowChanges(state.non_row_changes, state.temporary)
        self.known = KnownRows() if known is None else known
        self.quarantine = Quarantine(state.quarantined) if quarantine is None else quarantine
        self.record_time_ms = 0
        """Timestamp of the last record mapped, milliseconds since 1970."""
        self._binder = binder
        self._selection = binder.selection
        self._reader = reader
        self._replay = replay
        self._assembler = Assembler(buffer_bytes, state.input_offset, state.server_version)
        self._pending_xa = {xa.xid: xa for xa in state.pending_xa}
        # Where the state stands: there a transaction begins of which ``_progress`` is published.
        self._resume_at = state.input_offset
        self._progress = state.progress
        self._server_version = state.server_version
        self._publication: Publication | None = None
        self.publication = Publisher(
            sink,
            output_format,
            binder,
            quarantine=self.quarantine,
            non_row_changes=self.non_row_changes,
            known=self.known,
            learns_only=learns_only,
        ).publication
        """Makes the publication of a transaction."""
        # Where the kernel is built, it publishes what is ordinary.
        self._compiled: CompiledPublisher | None = None
        # Where rows are known, those that are not published because of their server are learned too.
        selects_server = self._selection.selects_server
        if not (learns_only or output_format.include_query or (self.known.is_used and selects_server)):
            writer = transaction_writer(
                sink.topics.transactions,
                *output_format.serialize_transaction.beginnings,
                reader.read,
                selects_server,
                new_block=output_format.new_block,
            )
            if writer is not None:
                self._compiled = CompiledPublisher(
                    writer,
                    sink,
                    binder,
                    quarantine=self.quarantine,
                    known=self.known,
                    most_bytes=buffer_bytes,
                )

    @property
    def pending_xa(self) -> int:
        """Number of XA transactions that are prepared and not decided."""
        return len(self._pending_xa)

    @property
    def settled(self) -> bool:
        """Whether no transaction is published in part."""
        return self._progress is None

    @property
    def snapshot_left_out(self) -> int:
        """Chunks of snapshots whose rows, or some of them, were not published."""
        return 0 if self._snapshots is None else self._snapshots.merged.refused

    @property
    def completed_rows(self) -> int:
        """Number of rows with columns that were filled in."""
        return self.known.completed

    def state(self) -> RowMapperState:
        """Return the state after everything that was written up to the last yield."""
        return RowMapperState(
            input_offset=self._resume_at,
            progress=self._progress if self._publication is None else self._publication.progress,
            server_version=self._server_version,
            pending_xa=tuple(self._pending_xa.values()),
            quarantined=self.quarantine.tables,
            counters=dict(self.counters),
            non_row_changes=dict(self.non_row_changes.counts),
            temporary=self.non_row_changes.temporary,
        )

    def take(self, records: Sequence[Record]) -> Iterator[None]:
        """Take records, write what follows from them; where there are none, rows of snapshots."""
        if not records:
            yield from self._merge_snapshots(idle=True)
            yield
            return
        self._binder.look_again()
        if self._is_first:
            self._begin(records[0])
        index = 0
        while index < len(records):
            if self._compiled is not None:
                index = yield from self._publish_compiled(self._compiled, records, index)
            index, steps = self._read(records, index)
            groups = [*_bound_together(steps), ()]
            for together, later in pairwise(groups):
                self._binder.prepare(self._unbound(together), self._unbound(later))
                for step in together:
                    yield from self._do(step)
                    if self.output.full or self.known.full:
                        yield
            self._stand_at(self._assembler.resume_at)
        self.record_time_ms = records[-1].timestamp_ms
        self._last = records[-1]
        yield from self._merge_snapshots(idle=False)
        yield

    def _begin(self, first: Record) -> None:
        """Take note of the statements that lie before the first event: nobody applies them any more."""
        self._is_first = False
        with suppress(ValueError):
            noted = self._binder.begin(EventKey.parse(first.key or b"").raw.place)
            if noted is not None:
                self.output.add(self._topics.schemas, noted.key, noted.to_bytes(), first.timestamp_ms)

    def _merge_snapshots(self, *, idle: bool) -> Iterator[None]:
        """Publish rows of snapshots that are due; ``idle`` says that no records wait to be taken."""
        if self._snapshots is not None and self._assembler.is_between and self._progress is None:
            yield from self._snapshots.merge(self.state, self._stands_at, idle=idle)

    def _stands_at(self) -> SourcePosition | None:
        """Return the end of the last event that was taken, as far as that is known."""
        if self._last is not None:
            self._end, self._last = self._end_of(self._last) or self._end, None
        return self._end

    def _read(self, records: Sequence[Record], index: int) -> tuple[int, list[Step]]:
        """Read records from ``index`` on, and give the index of the first one that is left.

        With the kernel that is the one after a transaction, unless tables are to be bound: then all are
        read, so that their tables are bound together.
        """
        steps: list[Step] = []
        all_of_them = self._compiled is None
        while index < len(records):
            taken = self._reader.take(records[index])
            index += 1
            if taken is not None:
                steps += self._assembler.take(taken)
                self.next_offset = taken.next_offset
                if not all_of_them and self._assembler.is_between:
                    all_of_them = self._binder.lacks(self._unbound(steps))
                    if not all_of_them:
                        break
        return index, steps

    # -- the kernel -----------------------------------------------------------------------------------

    def _publish_compiled(
        self, compiled: CompiledPublisher, records: Sequence[Record], index: int
    ) -> Generator[None, None, int]:
        """Let the kernel publish whole transactions; return the index of the first record that is left.

        It begins where the first transaction without published records may begin.
        """
        while index < len(records):
            prefix = self._reader.prefix
            if prefix is None or not self._assembler.is_between or self._progress is not None:
                break
            began = index
            index = compiled.publish(records, index, prefix, self._assembler.server_version)
            if index == began:
                break
            self._assembler.pass_over(compiled.writer.offset, compiled.writer.epoch)
            self._server_version = self._assembler.server_version
            self._stand_at(self._assembler.resume_at)
            self.next_offset = self._assembler.resume_at
            if not self.output.full:
                break
            yield
        return index

    # -- the reference --------------------------------------------------------------------------------

    def _unbound(self, steps: Sequence[Step]) -> Iterator[Seen]:
        """Yield the table maps of transactions that are to be published."""
        selects_server = self._selection.selects_server
        for step in () if self._learns_only else steps:
            transaction = step.transaction
            maps = () if transaction is None or transaction.defines else transaction.table_maps
            for incoming in maps:
                name = incoming.event.database or "", incoming.event.table or ""
                if name in self.quarantine or not self._selection.selects(*name):
                    continue
                if selects_server is not None and not selects_server(incoming.event.server_id):
                    continue
                try:
                    event = incoming.event.event
                except BinlogError:
                    continue  # it becomes a dead letter in its turn
                if isinstance(event, TableMapEvent):
                    yield event, incoming.position, transaction.server_version if transaction else None

    def _do(self, step: Step) -> Iterator[None]:
        """Do what a step of the log asks for."""
        self.counters["transactions_cut"] += step.cut
        for table in step.cut_tables:
            self.known.forget(*table)
        if step.gap is not None:
            self._pass_gap(step.gap)
        transaction = step.transaction
        if transaction is not None:
            self._stand_at(transaction.start)
            self._server_version = transaction.server_version
            self._publication = self.publication(transaction, self._undone(transaction), self._progress)
            self._progress = None
            yield from self._decide(transaction, self._publication)
            self._publication = None
        elif step.described:
            self._server_version = step.server_version
            if step.restarted:
                self.non_row_changes.restart()
            self._binder.look_again(must=True)
        self._stand_at(step.resume_at)

    def _pass_gap(self, gap: Marker) -> None:
        """Let go of what may have changed where changes are missing: definitions of tables, known rows."""
        self.counters["gaps"] += 1
        noted = self._binder.gap(gap.position)
        self.known.forget_all()
        if not self._learns_only:
            self.output.add(self._topics.schemas, noted.key, noted.to_bytes(), gap.timestamp_ms)

    def _stand_at(self, offset: int) -> None:
        """Advance to the next transaction, or the next record."""
        if offset != self._resume_at:
            if self._progress is not None:
                raise UserError(
                    f"the transaction at offset {self._resume_at} of {self._topics.events} was "
                    "published in part, but its end is not there any more: the topic was replaced or "
                    "changed. Nothing was written; 'millrace reprocess' writes events and rows again",
                    ExitCode.DATA,
                )
            self._resume_at = offset

    # -- transactions ---------------------------------------------------------------------------------

    def _decide(self, transaction: Transaction, publication: Publication) -> Iterator[None]:
        """Publish a transaction that has ended, or keep or drop it."""
        if publication.progress is None and transaction.end in _ROLLBACKS:
            self.counters["transactions_rolled_back"] += 1
        match transaction.end:
            case TransactionEnd.XA_PREPARE:
                xid = _normal(transaction.xid)
                self._pending_xa[xid] = PendingXa(
                    xid, transaction.start, transaction.stop, tuple(transaction.undone)
                )
                self.counters["xa_prepared"] += 1
                return
            case TransactionEnd.XA_COMMIT | TransactionEnd.XA_ROLLBACK:
                yield from self._decide_xa(transaction, publication)
                return
            case TransactionEnd.ROLLBACK:
                place, is_transactional = transaction.last.position, self._binder.is_transactional
                if all(is_transactional(*table, place) for table in transaction.tables):
                    return
        if transaction.events is None:
            batches = self._reader.again(self._replay(transaction.start, transaction.stop))
        else:
            batches = self._reader.held(transaction.events)
        yield from publication.publish(batches, self._compiled)

    def _undone(self, transaction: Transaction) -> Sequence[OffsetRange]:
        """Return the ranges of events whose rows are undone, of tables that a rollback undoes."""
        if transaction.end is TransactionEnd.ROLLBACK:
            return [OffsetRange(transaction.start, transaction.stop)]
        if transaction.end in (TransactionEnd.XA_COMMIT, TransactionEnd.XA_ROLLBACK):
            pending = self._pending_xa.get(_normal(transaction.xid))
            if pending is None:
                return ()
            if transaction.end is TransactionEnd.XA_ROLLBACK:
                return [OffsetRange(pending.start, pending.end)]
            return pending.undone
        return transaction.undone

    def _decide_xa(self, transaction: Transaction, publication: Publication) -> Iterator[None]:
        """Publish a prepared transaction; of one that is rolled back, what cannot be undone."""
        xid = _normal(transaction.xid)
        pending = self._pending_xa.get(xid)
        if pending is None:
            self.unknown_xa += 1
            error = MissingStateError(
                f"{xid} was prepared before the events topic begins: its changes are missing"
            )
            yield from publication.refuse(error)
            return
        batches = self._reader.again(self._replay(pending.start, pending.end))
        yield from publication.publish(batches, self._compiled)
        del self._pending_xa[xid]


def _bound_together(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    """Divide steps into those whose tables are bound together.

    After each DDL statement and gap, since the tables that come after it may be others, and so that Kafka is
    asked for the topics of some while the rows of others are published.
    """
    begun = 0
    for at, step in enumerate(steps, 1):
        defines = step.gap is not None or (step.transaction is not None and step.transaction.defines)
        if defines or at - begun == _BOUND_TOGETHER:
            yield steps[begun:at]
            begun = at
    yield steps[begun:]


def _normal(xid: str | None) -> str:
    """Spell an XID so that the same one is always spelled the same."""
    return "".join((xid or "").split()).lower()

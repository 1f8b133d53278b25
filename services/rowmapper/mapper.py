"""From records of ``{source}.events`` to those of the row topics, with the state after them."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from millrace.avro.state import OffsetRange, PendingXa, QuarantinedTable, RowMapperState
from millrace.binlog.errors import BinlogError, MissingStateError
from millrace.binlog.events import FormatDescriptionEvent
from millrace.binlog.transaction import TransactionEnd
from millrace.binlog.types import EventType
from millrace.contract import GAP
from millrace.kafka.pipe import Record, TransactionalProducer
from millrace.runtime.health import Health
from millrace.runtime.service import StopRequestedError
from services.rowmapper.assembler import Assembler, Transaction
from services.rowmapper.incoming import Incoming, IncomingReader, Marker, unreadable
from services.rowmapper.publisher import Outcome, Publisher
from services.rowmapper.sink import Sink
from services.rowmapper.tables import Tables

__all__ = ["Mapper", "Replay"]

Replay = Callable[[int, int], Iterator[Incoming]]
"""Reads the events from one offset to before another a second time."""


_FORMAT_DESCRIPTION: Final = int(EventType.FORMAT_DESCRIPTION_EVENT)


class Mapper:
    """Takes records of the events topic in order; ``next_offset`` is that of the record to be taken next.

    ``state()`` is right between any two records of output, so that a Kafka transaction may end there.
    ``settled`` tells whether the transaction that was cut short by the last end of a row mapper is complete;
    ``quarantined`` gives the tables that are set aside while one of them is being given back.
    """

    def __init__(
        self,
        state: RowMapperState,
        producer: TransactionalProducer,
        incoming: IncomingReader,
        replay: Replay,
        *,
        buffer_bytes: int,
        health: Health,
        stop: threading.Event,
    ) -> None:
        self.next_offset = state.input_offset
        self.record_time_ms = 0
        self.sink = Sink(producer, self.commit)
        self.counters = Counter(state.counters)
        self.quarantined: Callable[[], tuple[QuarantinedTable, ...]] | None = None
        self.settled = not state.published
        self._resumed = state
        self._producer = producer
        self._incoming = incoming
        self._replay = replay
        self._assembler = Assembler(buffer_bytes, state.input_offset)
        self._pending_xa = {xa.xid: xa for xa in state.pending_xa}
        self._publishing: Transaction | None = None
        self._health = health
        self._stop = stop
        self._tables: Tables
        self._publisher: Publisher

    def use(self, tables: Tables, publisher: Publisher) -> None:
        """Set what publishes; it writes into :attr:`sink`."""
        self._tables = tables
        self._publisher = publisher

    @property
    def pending_xa(self) -> int:
        """Number of XA transactions that are prepared and not decided."""
        return len(self._pending_xa)

    def state(self) -> bytes:
        """Give the state after everything that was written so far, for Kafka."""
        publishing = self._publishing
        return RowMapperState(
            input_offset=self._assembler.resume_at if publishing is None else publishing.start,
            published=0 if publishing is None else self.sink.done,
            server_version=self._tables.server_version,
            pending_xa=tuple(self._pending_xa.values()),
            quarantined=self._tables.quarantined if self.quarantined is None else self.quarantined(),
            counters=self.counters,
        ).to_bytes()

    def commit(self) -> None:
        """Commit what is written so far, here, between two records; then stop if that was asked for."""
        if self._producer.pending:
            self._producer.commit(self.state())
        self._health.beat()
        if self._stop.is_set():
            raise StopRequestedError

    def process(self, records: Sequence[Record]) -> None:
        """Take records, write what follows from them."""
        assembler, take = self._assembler, self._incoming.take
        if not self._producer.pending:
            self._tables.look_again()
        try:
            for record in records:
                transaction = None
                try:
                    taken = take(record)
                    if isinstance(taken, Incoming):
                        if taken.event.type_code == _FORMAT_DESCRIPTION:
                            self._describe(taken)
                        transaction = assembler.feed(taken)
                except (BinlogError, ValueError) as error:
                    raise unreadable(record.offset(), record.key() or b"", error) from error
                if taken is None:
                    continue
                if transaction is not None:
                    self._finish(transaction)
                elif isinstance(taken, Marker):
                    assembler.abandon(taken.next_offset)
                    if taken.kind == GAP:
                        self.counters["gaps"] += 1
                self.next_offset = taken.next_offset
        except StopRequestedError:
            return
        self.record_time_ms = records[-1].timestamp()[1]

    def _describe(self, incoming: Incoming) -> None:
        """Take note of the server that wrote what follows."""
        description = incoming.event.event
        assert isinstance(description, FormatDescriptionEvent)
        self._tables.server_version = description.server_version
        self._tables.look_again()

    def _finish(self, transaction: Transaction) -> None:
        """Publish a transaction that has ended, or keep or drop it."""
        if self._assembler.cut:
            self.counters["transactions_cut"] += self._assembler.cut
            self._assembler.cut = 0
        self._publishing = transaction
        self.sink.start(self._resumed.published if transaction.start == self._resumed.input_offset else 0)
        outcome = self._decide(transaction)
        self._publishing = None
        self.settled = True
        if outcome is not None:
            self._count(outcome)

    def _decide(self, transaction: Transaction) -> Outcome | None:
        match transaction.end:
            case TransactionEnd.COMMIT | None:  # first, as nearly all are
                undone = transaction.undone
            case TransactionEnd.XA_PREPARE:
                xid = _normal(transaction.xid)
                self._pending_xa[xid] = PendingXa(
                    xid, transaction.start, transaction.stop, tuple(transaction.undone)
                )
                self.counters["xa_prepared"] += 1
                return None
            case TransactionEnd.XA_COMMIT | TransactionEnd.XA_ROLLBACK:
                return self._decide_xa(transaction)
            case TransactionEnd.ROLLBACK:
                self.counters["transactions_rolled_back"] += 1
                if all(self._is_transactional(transaction, *table) for table in transaction.tables):
                    return None
                undone = [OffsetRange(transaction.start, transaction.stop)]
        if transaction.events is None:
            events = self._replay(transaction.start, transaction.stop)
        else:
            events = _drained(transaction.events)
        return self._publisher.publish(transaction, events, undone)

    def _decide_xa(self, transaction: Transaction) -> Outcome:
        """Publish a prepared transaction; of one that is rolled back, what cannot be undone."""
        xid = _normal(transaction.xid)
        pending = self._pending_xa.get(xid)
        if pending is None:
            error = MissingStateError(
                f"{xid} was prepared before the events topic begins: what it changed is missing"
            )
            return self._publisher.refuse(transaction, error)
        undone: Sequence[OffsetRange] = pending.undone
        if transaction.end is TransactionEnd.XA_ROLLBACK:
            self.counters["transactions_rolled_back"] += 1
            undone = [OffsetRange(pending.start, pending.end)]
        events = self._replay(pending.start, pending.end)
        outcome = self._publisher.publish(transaction, events, undone)
        del self._pending_xa[xid]
        return outcome

    def _is_transactional(self, transaction: Transaction, database: str, table: str) -> bool:
        return self._tables.is_transactional(database, table, transaction.last.position)

    def _count(self, outcome: Outcome) -> None:
        counters = self.counters
        if outcome.rows or outcome.non_row_changes:
            counters["transactions"] += 1
        if outcome.rows:
            counters["rows"] += outcome.rows
        if outcome.undone_events:
            counters["undone_events"] += outcome.undone_events
        if outcome.ddl:
            counters["ddl"] += outcome.ddl
        if outcome.non_row_changes:
            counters["non_row_changes"] += outcome.non_row_changes
        if outcome.dead_letters:
            counters["dead_letters"] += outcome.dead_letters


def _drained(events: list[Incoming]) -> Iterator[Incoming]:
    """Give events and let go of them, so that what they decode to is not held for all of them at once."""
    events.reverse()
    while events:
        yield events.pop()


def _normal(xid: str | None) -> str:
    """Spell an XID so that the same one is always spelled the same."""
    return "".join((xid or "").split()).lower()

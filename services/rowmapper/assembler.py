"""Finds where transactions end, and what in them was undone, before any of their rows are published.

The events say themselves where a transaction begins and ends. It waits in memory until then, up to a limit;
beyond it only offsets are kept, and its events are read a second time. ``ROLLBACK TO SAVEPOINT`` undoes what
came between the two statements: MariaDB 11.4 logs such rows under pure ROW format, and every server logs them
when a table without transactions was touched as well. A savepoint that the log does not have was set before
the transaction's first change, so that going back to it undoes all.
"""

from dataclasses import dataclass, field
from typing import Final

from millrace.avro.state import OffsetRange
from millrace.binlog.events import QueryCompressedEvent, QueryEvent
from millrace.binlog.statement import Statement, StatementKind, classify
from millrace.binlog.transaction import TransactionEnd
from millrace.binlog.types import EventType
from millrace.runtime.logging import get_logger
from services.rowmapper.incoming import Incoming

__all__ = ["Assembler", "Transaction"]

_LOG = get_logger(__name__)
_OVERHEAD: Final = 1500
"""Bytes that the objects of one event take beside its content."""

_GTIDS: Final = set(
    map(int, (EventType.GTID_LOG_EVENT, EventType.GTID_TAGGED_LOG_EVENT, EventType.MARIADB_GTID_EVENT))
)
_WITHOUT_OUTPUT: Final = _GTIDS | {
    int(EventType.ANONYMOUS_GTID_LOG_EVENT),
    int(EventType.XID_EVENT),
    int(EventType.TRANSACTION_PAYLOAD_EVENT),
}
"""Events of which no output is made."""

_QUERIES: Final = {int(EventType.QUERY_EVENT), int(EventType.QUERY_COMPRESSED_EVENT)}
_TABLE_MAP: Final = int(EventType.TABLE_MAP_EVENT)

_BEGIN: Final = b"BEGIN"
"""What most statements of a log are, in the spelling of the servers."""

_SAVEPOINTS: Final = {
    StatementKind.SAVEPOINT,
    StatementKind.ROLLBACK_TO,
    StatementKind.RELEASE_SAVEPOINT,
}


@dataclass(slots=True)
class Transaction:
    """A transaction, open or ended; ``events`` is None where they are too many to keep."""

    id: str
    first: Incoming
    last: Incoming
    gtid: str | None = None
    end: TransactionEnd | None = None
    xid: str | None = None
    events: list[Incoming] | None = field(default_factory=list)
    size: int = 0
    undone: list[OffsetRange] = field(default_factory=list)
    tables: set[tuple[str, str]] = field(default_factory=set)
    savepoints: list[tuple[str, int]] = field(default_factory=list)

    @property
    def start(self) -> int:
        """Offset of the first event."""
        return self.first.offset

    @property
    def stop(self) -> int:
        """Offset behind the last event."""
        return self.last.next_offset


class Assembler:
    """Takes events in the order of the log and gives a transaction when it has ended.

    ``resume_at`` is where reading must begin again: the start of the open transaction, or the next record.
    ``cut`` counts the transactions that were dropped because their end never came.
    """

    def __init__(self, buffer_bytes: int, resume_at: int) -> None:
        self.resume_at = resume_at
        self.cut = 0
        self._buffer_bytes = buffer_bytes
        self._open: Transaction | None = None
        self._epoch: int | None = None

    def feed(self, incoming: Incoming) -> Transaction | None:
        """Take the next event; give the transaction that it ends."""
        event, transaction = incoming.event, self._open
        if event.epoch != self._epoch:
            self._epoch = event.epoch
            self._drop("another log follows")
            transaction = None
        if event.transaction is None:
            # Between transactions, or where a relay log goes on in another file: what is open stays open.
            if transaction is None:
                self.resume_at = incoming.next_offset
            return None
        if event.begins or transaction is None:
            self._drop("the log goes on without its end")
            transaction = self._open = Transaction(event.transaction, incoming, incoming)
            self.resume_at = incoming.offset
        self._take(transaction, incoming)
        if event.ends is None:
            return None
        transaction.end = event.ends
        transaction.xid = event.xid
        self._open = None
        self.resume_at = incoming.next_offset
        return transaction

    def abandon(self, next_offset: int) -> None:
        """Drop the open transaction: the reader says that it was cut, and comes again or never."""
        self._drop("the reader says so")
        self.resume_at = next_offset

    def _drop(self, reason: str) -> None:
        if self._open is not None:
            _LOG.warning("transaction dropped: it was cut off", transaction=self._open.id, reason=reason)
            self._open = None
            self.cut += 1

    def _take(self, transaction: Transaction, incoming: Incoming) -> None:
        event = incoming.event
        type_code = event.type_code
        transaction.last = incoming
        if type_code in _WITHOUT_OUTPUT:
            if type_code in _GTIDS:
                transaction.gtid = event.transaction
            return
        if type_code == _TABLE_MAP:
            transaction.tables.add((event.database or "", event.table or ""))
        elif type_code in _QUERIES:
            query = event.event
            assert isinstance(query, (QueryEvent, QueryCompressedEvent))
            if query.query != _BEGIN:
                _note_savepoint(transaction, incoming.offset, classify(query.query))
        if transaction.events is not None:
            transaction.size += len(incoming.value) + _OVERHEAD
            if transaction.size > self._buffer_bytes:
                transaction.events = None
            else:
                transaction.events.append(incoming)


def _note_savepoint(transaction: Transaction, offset: int, statement: Statement) -> None:
    """Keep track of savepoints, whose names differ by more than case, and of what going back undoes."""
    if statement.kind not in _SAVEPOINTS:
        return
    name = (statement.name or "").casefold()
    savepoints = transaction.savepoints
    index = next((i for i, (known, _) in enumerate(savepoints) if known == name), None)
    if statement.kind is StatementKind.ROLLBACK_TO:
        since = transaction.start if index is None else savepoints[index][1]
        transaction.undone.append(OffsetRange(since, offset))
        del savepoints[0 if index is None else index + 1 :]
        return
    if statement.kind is StatementKind.RELEASE_SAVEPOINT:
        if index is not None:
            del savepoints[index:]
        return
    if index is not None:
        del savepoints[index]
    savepoints.append((name, offset))

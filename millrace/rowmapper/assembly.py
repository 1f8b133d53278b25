"""Finds where transactions end, and which of their changes were undone, before their rows are published.

The events themselves say where a transaction begins and ends. It is held in memory until its end, up to a
limit; beyond it only offsets are kept, and its events are read a second time. ``ROLLBACK TO SAVEPOINT``
undoes the changes between the two statements: MariaDB 11.4 logs such rows under pure ROW format, and every
server logs them if a non-transactional table was changed as well. A savepoint that the log does not have was
set before the transaction's first change, so rolling back to it undoes all changes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from millrace.avro.service_state import OffsetRange
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import (
    FormatDescriptionEvent,
    GtidEvent,
    GtidTaggedLogEvent,
    QueryCompressedEvent,
    QueryEvent,
)
from millrace.binlog.events.gtid import commit_times
from millrace.binlog.grammar import GTIDS, SILENT, Role
from millrace.binlog.names import folded
from millrace.binlog.statement import Statement, StatementKind, classify
from millrace.binlog.transaction import ROLES, TransactionEnd
from millrace.binlog.types import EventType
from millrace.contract import GAP
from millrace.rowmapper.event_reader import Incoming, Marker, Unreadable
from millrace.runtime.logging import get_logger

_LOG = get_logger(__name__)
_OVERHEAD: Final = 1500
"""Bytes that the objects of one event take beside its content."""

_MOST_TABLE_MAPS: Final = 10_000
"""Table maps of a transaction that are bound ahead of its rows; others are with their first row."""

_TABLE_MAP: Final = int(EventType.TABLE_MAP_EVENT)
_FORMAT_DESCRIPTION: Final = int(EventType.FORMAT_DESCRIPTION_EVENT)

LATEST_US: Final = 1 << 53
"""Microseconds since 1970 up to here, in the year 2255, are nanoseconds that 64 bits hold."""

_BEGIN: Final = b"BEGIN"
"""What most statements of a log are, in the spelling of the servers."""

_SAVEPOINTS: Final = {
    StatementKind.SAVEPOINT,
    StatementKind.ROLLBACK_TO,
    StatementKind.RELEASE_SAVEPOINT,
}


@dataclass(slots=True)
class Transaction:
    """A transaction, open or ended; ``events`` is None where they are too many to keep.

    ``server_version`` is that of the last format description before it. A record that holds no event, between
    transactions, is one by itself.
    """

    id: str
    first: Incoming | Unreadable
    last: Incoming | Unreadable
    server_version: str | None = None
    gtid: str | None = None
    committed_us: int = 0
    """When the origin committed it, else the server that is read, in µs; 0 where the log says neither."""
    end: TransactionEnd | None = None
    xid: str | None = None
    events: list[Incoming | Unreadable] | None = field(default_factory=list)
    size: int = 0
    undone: list[OffsetRange] = field(default_factory=list)
    """What ROLLBACK TO SAVEPOINT undid: ranges in order, which do not overlap."""
    tables: set[tuple[str, str]] = field(default_factory=set)
    table_maps: list[Incoming] = field(default_factory=list)
    defines: bool = False
    """Whether it has a DDL statement."""
    savepoints: dict[str, int] = field(default_factory=dict)
    """Offset of each savepoint that is set, by its name, in the order in which they were."""

    @property
    def start(self) -> int:
        """Offset of the first event."""
        return self.first.offset

    @property
    def stop(self) -> int:
        """Offset after the last event."""
        return self.last.next_offset


@dataclass(frozen=True, slots=True)
class Step:
    """What the log comes to with an event: a transaction that has ended, or something between transactions.

    ``resume_at`` is where reading must begin again once it is done: the start of the open transaction, or the
    next record. With ``restarted`` the server was started before it. ``cut`` counts transactions that were
    dropped because their end never came; they have rows of ``cut_tables``. ``gap`` says that changes are
    missing.
    """

    resume_at: int
    transaction: Transaction | None = None
    described: bool = False
    restarted: bool = False
    server_version: str | None = None
    cut: int = 0
    cut_tables: frozenset[tuple[str, str]] = frozenset()
    gap: Marker | None = None


class Assembler:
    """Takes events in the order of the log and gives transactions when they have ended.

    ``resume_at`` is where reading must begin again after all that was given: the start of the open
    transaction, or the next record. ``server_version`` is that of the last format description.
    """

    def __init__(self, buffer_bytes: int, resume_at: int, server_version: str | None = None) -> None:
        self.resume_at = resume_at
        self.server_version = server_version
        self._buffer_bytes = buffer_bytes
        self._open: Transaction | None = None
        self._epoch: int | None = None

    @property
    def is_between(self) -> bool:
        """Whether no transaction is open."""
        return self._open is None

    def pass_over(self, last: int, epoch: int) -> None:
        """Take note of whole transactions that were published otherwise; the last event is of ``epoch``."""
        assert self._open is None, "a transaction is open"
        self.resume_at = last + 1
        self._epoch = epoch

    def take(self, incoming: Incoming | Unreadable | Marker) -> Iterator[Step]:
        """Take the next record; give what it completes."""
        if isinstance(incoming, Incoming):
            yield from self._event(incoming)
        elif isinstance(incoming, Marker):
            yield from self._cut("the reader says so")
            self.resume_at = incoming.next_offset
            if incoming.kind == GAP:
                yield Step(self.resume_at, gap=incoming)
        elif self._open is not None:
            self._open.last = incoming
            self._keep(self._open, incoming)
        else:
            self.resume_at = incoming.next_offset
            alone = Transaction(
                repr(incoming.key), incoming, incoming, self.server_version, events=[incoming]
            )
            yield Step(self.resume_at, alone)

    def _event(self, incoming: Incoming) -> Iterator[Step]:
        event = incoming.event
        if event.epoch != self._epoch:
            if self._epoch is not None:
                yield from self._cut("another log follows")
            self._epoch = event.epoch
        if event.type_code == _FORMAT_DESCRIPTION:
            restarted = self._describe(incoming)
            yield Step(
                self.resume_at, described=True, restarted=restarted, server_version=self.server_version
            )
        transaction = self._open
        if event.transaction is None:
            # Between transactions, or where a relay log continues in another file: what is open stays open.
            if transaction is None:
                self.resume_at = incoming.next_offset
            return
        if event.begins or transaction is None:
            yield from self._cut("the log continues without its end")
            transaction = self._open = Transaction(event.transaction, incoming, incoming, self.server_version)
            self.resume_at = incoming.offset
        transaction.last = incoming
        self._take(transaction, incoming)
        if event.ends is not None:
            transaction.end = event.ends
            transaction.xid = event.xid
            self._open = None
            self.resume_at = incoming.next_offset
            yield Step(self.resume_at, transaction)

    def _describe(self, incoming: Incoming) -> bool:
        """Take note of the server that wrote what follows; tell whether it was started just before."""
        try:
            description = incoming.event.event
        except BinlogError:
            return False
        if not isinstance(description, FormatDescriptionEvent):
            return False
        self.server_version = description.server_version
        return description.created > 0 and not incoming.event.artificial

    def _cut(self, reason: str) -> Iterator[Step]:
        """Drop the open transaction."""
        if self._open is not None:
            _LOG.warning("transaction dropped: its end is missing", transaction=self._open.id, reason=reason)
            self.resume_at, tables = self._open.stop, frozenset(self._open.tables)
            self._open = None
            yield Step(self.resume_at, cut=1, cut_tables=tables)

    def _take(self, transaction: Transaction, incoming: Incoming) -> None:
        event = incoming.event
        type_code = event.type_code
        role = ROLES.get(type_code, Role.PART)
        if role in SILENT:
            if role in GTIDS:
                transaction.gtid = event.transaction
                transaction.committed_us = _committed_us(incoming)
            return
        if type_code == _TABLE_MAP:
            transaction.tables.add((event.database or "", event.table or ""))
            if len(transaction.table_maps) < _MOST_TABLE_MAPS:
                transaction.table_maps.append(incoming)
        elif role is Role.QUERY:
            _note_savepoint(transaction, incoming)
        self._keep(transaction, incoming)

    def _keep(self, transaction: Transaction, incoming: Incoming | Unreadable) -> None:
        if transaction.events is not None:
            transaction.size += len(incoming.value) + _OVERHEAD
            if transaction.size > self._buffer_bytes:
                transaction.events = None
                transaction.table_maps = []
            else:
                transaction.events.append(incoming)


def _committed_us(incoming: Incoming) -> int:
    """Return the origin's commit time, else this server's; 0 where the log has none that a clock shows."""
    try:
        event = incoming.event.event
    except BinlogError:
        return 0
    if not isinstance(event, GtidEvent | GtidTaggedLogEvent):
        return 0
    return next((time for time in commit_times(event) if time is not None and time < LATEST_US), 0)


def _note_savepoint(transaction: Transaction, incoming: Incoming) -> None:
    """Keep track of savepoints, of what going back to one undoes, and of DDL."""
    try:
        query = incoming.event.event
        if not isinstance(query, QueryEvent | QueryCompressedEvent):
            return
        text = query.beginning
        if text == _BEGIN:
            return
        statement = classify(text)
    except BinlogError:
        return  # what cannot be read becomes a dead letter when it is published
    transaction.defines |= statement.kind is StatementKind.DDL
    if statement.changes:
        database = query.database
        transaction.tables.update((name.database or database, name.table) for name in statement.changes)
    if statement.kind in _SAVEPOINTS:
        _follow_savepoint(transaction, incoming.offset, statement)


def _follow_savepoint(transaction: Transaction, offset: int, statement: Statement) -> None:
    """Take note of a statement on savepoints, whose names differ by more than case."""
    name = folded(statement.name or "")
    savepoints, undone = transaction.savepoints, transaction.undone
    if statement.kind is StatementKind.ROLLBACK_TO:
        since = savepoints.get(name)
        while savepoints and next(reversed(savepoints)) != name:
            savepoints.popitem()
        since = transaction.start if since is None else since
        # Ranges are in order and apart: one that goes further back takes in those after it.
        while undone and undone[-1].start >= since:
            undone.pop()
        undone.append(OffsetRange(since, offset))
    elif statement.kind is StatementKind.RELEASE_SAVEPOINT:
        if name in savepoints:
            while savepoints.popitem()[0] != name:
                pass
    else:
        savepoints.pop(name, None)
        savepoints[name] = offset

"""Where transactions begin and end in a log.

The grammar of a log, of all servers and versions::

    log     = (group | between)*
    group   = gtid? (bounded | prepared | single)
    gtid    = GTID_LOG | GTID_TAGGED_LOG | ANONYMOUS_GTID_LOG | MariaDB's GTID
    bounded = begin, change*, (XID | QUERY "COMMIT" | QUERY "ROLLBACK")
    begin   = QUERY "BEGIN" | nothing, behind MariaDB's GTID without STANDALONE
    prepared = QUERY "XA START …" (or nothing, as above), change*, QUERY "XA END …", XA_PREPARE_LOG
    single  = setting*, one event: any other QUERY, EXECUTE_LOAD_QUERY, EXEC_LOAD or DELETE_FILE,
              or TABLE_MAP*, rows event* and one with STMT_END_F (MySQL 5.1 without BEGIN)
    change  = setting | TABLE_MAP | rows event | any QUERY, "SAVEPOINT …" and "ROLLBACK TO …" among them
    setting = INTVAR | RAND | USER_VAR | ROWS_QUERY | ANNOTATE_ROWS | BEGIN_LOAD_QUERY | APPEND_BLOCK | …
    between = FORMAT_DESCRIPTION | ROTATE | STOP | PREVIOUS_GTIDS | GTID_LIST | BINLOG_CHECKPOINT | heartbeats

``XA COMMIT`` and ``XA ROLLBACK`` are a single of their own, any time after the prepared group. A
TRANSACTION_PAYLOAD stands in place of a bounded group, and the events inside are fed behind it. A log ends in
mid-group only when its server died; the FORMAT_DESCRIPTION of the next start, whose ``created`` is not 0,
undoes what was open. Relay logs change files in mid-group. MySQL 5.0 writes an XID behind a single as well,
which counts as standing between groups here.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

from millrace.binlog.declaration import Event
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import (
    EVENTS,
    AnnotateRowsEvent,
    AnonymousGtidLogEvent,
    AppendBlockEvent,
    BeginLoadQueryEvent,
    BinlogCheckpointEvent,
    DeleteFileEvent,
    ExecLoadEvent,
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    GtidEvent,
    GtidLogEvent,
    GtidTaggedLogEvent,
    HeartbeatLogEvent,
    HeartbeatLogEventV2,
    IntvarEvent,
    MariadbGtidEvent,
    MariadbGtidFlag,
    MariadbGtidListEvent,
    PreviousGtidsLogEvent,
    QueryCompressedEvent,
    QueryEvent,
    RandEvent,
    RotateEvent,
    RowsEvent,
    RowsQueryLogEvent,
    StartEventV3,
    StopEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    UserVarEvent,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.header import EventHeader
from millrace.binlog.statement import Statement, StatementKind, classify, xid_text
from millrace.binlog.types import HeaderFlag
from millrace.binlog.values import value

__all__ = ["HANDLERS", "TransactionEnd", "TransactionStep", "TransactionTracker"]


class TransactionEnd(Enum):
    """How a transaction ended, as far as its log group says."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    XA_PREPARE = "xa prepare"
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"


@value
class TransactionStep:
    """Where one event stands.

    ``transaction`` is the id of its transaction, the GTID or ``file:position`` of its first event, None for
    an event between transactions; ``ordinal`` counts the events of the transaction from 0. ``xid``, as
    :func:`millrace.binlog.statement.xid_text` writes it, is set on the event that prepares a transaction, or
    decides about one. ``statement`` is what a QUERY says.
    ``interrupts`` is the id of a transaction that this event shows to have been cut off.
    """

    transaction: str | None
    ordinal: int
    begins: bool = False
    ends: TransactionEnd | None = None
    xid: str | None = None
    statement: Statement | None = None
    interrupts: str | None = None


class _Mode(Enum):
    """What the open group still waits for."""

    NONE = "none"
    HEAD = "head"
    BODY = "body"


_BETWEEN = (
    FormatDescriptionEvent,
    StartEventV3,
    RotateEvent,
    StopEvent,
    PreviousGtidsLogEvent,
    MariadbGtidListEvent,
    BinlogCheckpointEvent,
    HeartbeatLogEvent,
    HeartbeatLogEventV2,
)
_SETTING = (
    TableMapEvent,
    IntvarEvent,
    RandEvent,
    UserVarEvent,
    RowsQueryLogEvent,
    AnnotateRowsEvent,
    BeginLoadQueryEvent,
    AppendBlockEvent,
    TransactionPayloadEvent,
)
_SINGLE = (ExecuteLoadQueryEvent, ExecLoadEvent, DeleteFileEvent)
_END_OF_STATEMENT = {
    StatementKind.COMMIT: TransactionEnd.COMMIT,
    StatementKind.ROLLBACK: TransactionEnd.ROLLBACK,
    StatementKind.XA_PREPARE: TransactionEnd.XA_PREPARE,
    StatementKind.XA_COMMIT: TransactionEnd.XA_COMMIT,
    StatementKind.XA_ROLLBACK: TransactionEnd.XA_ROLLBACK,
}
_BEGIN_KINDS = (StatementKind.BEGIN, StatementKind.XA_START)


class TransactionTracker:
    """Follows a log event by event; what it knows can be saved and restored between any two."""

    __slots__ = ("_mode", "_ordinal", "_transaction", "_xid")

    def __init__(self) -> None:
        self._close()

    def _close(self) -> None:
        self._transaction: str | None = None
        self._ordinal = 0
        self._mode = _Mode.NONE
        self._xid: str | None = None

    @property
    def transaction(self) -> str | None:
        """Id of the transaction that is open, if one is."""
        return self._transaction

    def feed(self, header: EventHeader, event: Event, log_file: str, position: int) -> TransactionStep:
        """Take the next event of the log, which starts at ``position`` of ``log_file``."""
        handle = HANDLERS.get(type(event))
        if handle is None:
            return self._step()
        return handle(self, header, event, log_file, position)

    def save(self) -> dict[str, Any]:
        """Give what is known as plain values."""
        return {
            "transaction": self._transaction,
            "ordinal": self._ordinal,
            "mode": self._mode.value,
            "xid": self._xid,
        }

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> "TransactionTracker":
        """Go on from what :meth:`save` gave."""
        tracker = cls()
        tracker._transaction = saved["transaction"]
        tracker._ordinal = saved["ordinal"]
        tracker._mode = _Mode(saved["mode"])
        tracker._xid = saved["xid"]
        return tracker

    def _gtid(
        self, header: EventHeader, event: GtidEvent | GtidTaggedLogEvent, log_file: str, position: int
    ) -> TransactionStep:
        anonymous = isinstance(event, AnonymousGtidLogEvent)
        return self._open(f"{log_file}:{position}" if anonymous else event.gtid, _Mode.HEAD)

    def _mariadb_gtid(
        self, header: EventHeader, event: MariadbGtidEvent, log_file: str, position: int
    ) -> TransactionStep:
        mode = _Mode.HEAD if event.flags2 & MariadbGtidFlag.STANDALONE else _Mode.BODY
        xid = None
        if event.xid is not None:
            xid = xid_text(event.xid.format_id, event.xid.gtrid, event.xid.bqual)
        return self._open(event.gtid(header.server_id), mode, xid)

    def _xid_event(
        self, header: EventHeader, event: XidEvent, log_file: str, position: int
    ) -> TransactionStep:
        return self._step(ends=TransactionEnd.COMMIT)

    def _xa_prepare(
        self, header: EventHeader, event: XaPrepareLogEvent, log_file: str, position: int
    ) -> TransactionStep:
        if event.one_phase:
            return self._step(ends=TransactionEnd.COMMIT)
        xid = xid_text(event.format_id, event.gtrid, event.bqual)
        return self._step(ends=TransactionEnd.XA_PREPARE, xid=xid)

    def _rows(self, header: EventHeader, event: RowsEvent, log_file: str, position: int) -> TransactionStep:
        if self._mode is _Mode.BODY:
            return self._step()
        ends = TransactionEnd.COMMIT if event.ends_statement else None
        return self._within(log_file, position, ends=ends)

    def _single(self, header: EventHeader, event: Event, log_file: str, position: int) -> TransactionStep:
        ends = TransactionEnd.COMMIT if self._mode is not _Mode.BODY else None
        return self._within(log_file, position, ends=ends)

    def _setting(self, header: EventHeader, event: Event, log_file: str, position: int) -> TransactionStep:
        return self._within(log_file, position)

    def _open(
        self, transaction: str, mode: _Mode, xid: str | None = None, statement: Statement | None = None
    ) -> TransactionStep:
        interrupts = self._transaction
        self._transaction, self._ordinal, self._mode, self._xid = transaction, 1, mode, xid
        return TransactionStep(transaction, 0, begins=True, statement=statement, interrupts=interrupts)

    def _step(
        self,
        *,
        ends: TransactionEnd | None = None,
        xid: str | None = None,
        statement: Statement | None = None,
    ) -> TransactionStep:
        """Count an event of the open transaction, or one that stands between transactions."""
        transaction, ordinal = self._transaction, self._ordinal
        if transaction is None:
            return TransactionStep(None, 0, statement=statement)
        self._ordinal = ordinal + 1
        if ends is not None:
            self._close()
        return TransactionStep(transaction, ordinal, ends=ends, xid=xid, statement=statement)

    def _within(
        self,
        log_file: str,
        position: int,
        *,
        ends: TransactionEnd | None = None,
        xid: str | None = None,
        statement: Statement | None = None,
    ) -> TransactionStep:
        """Count an event that opens a transaction where none is open."""
        if self._transaction is not None:
            return self._step(ends=ends, xid=xid, statement=statement)
        opened = self._open(f"{log_file}:{position}", _Mode.HEAD)
        if ends is not None:
            self._close()
        return TransactionStep(opened.transaction, 0, begins=True, ends=ends, xid=xid, statement=statement)

    def _between(self, header: EventHeader, event: Event, log_file: str, position: int) -> TransactionStep:
        restarted = isinstance(event, FormatDescriptionEvent | StartEventV3) and event.created
        if restarted and self._transaction is not None and not header.flags & HeaderFlag.ARTIFICIAL_F:
            interrupts = self._transaction
            self._close()
            return TransactionStep(None, 0, interrupts=interrupts)
        return TransactionStep(None, 0)

    def _query(
        self,
        header: EventHeader,
        event: QueryEvent | QueryCompressedEvent,
        log_file: str,
        position: int,
    ) -> TransactionStep:
        statement = classify(_text_of(event))
        kind = statement.kind
        if kind in _BEGIN_KINDS:
            return self._begin(statement, log_file, position)
        if kind in (StatementKind.COMMIT, StatementKind.ROLLBACK):
            return self._step(ends=_END_OF_STATEMENT[kind], statement=statement)
        if kind in _END_OF_STATEMENT:
            ends = _END_OF_STATEMENT[kind]
            if statement.one_phase:
                ends = TransactionEnd.COMMIT
            xid = self._xid or statement.name
            return self._within(log_file, position, ends=ends, xid=xid, statement=statement)
        if self._mode is _Mode.BODY:
            return self._step(statement=statement)
        return self._within(log_file, position, ends=TransactionEnd.COMMIT, statement=statement)

    def _begin(self, statement: Statement, log_file: str, position: int) -> TransactionStep:
        xid = statement.name
        if self._mode is _Mode.HEAD or (self._mode is _Mode.BODY and self._ordinal == 1):
            self._mode = _Mode.BODY
            self._xid = xid or self._xid
            return self._step(statement=statement)
        return self._open(f"{log_file}:{position}", _Mode.BODY, xid, statement)


def _text_of(event: QueryEvent | QueryCompressedEvent) -> bytes:
    """Give a statement's text; none where it cannot be unpacked: what ends a transaction is never packed."""
    try:
        return event.beginning
    except BinlogError:
        return b""


HANDLERS: dict[type[Event], Callable[..., TransactionStep]] = {
    GtidLogEvent: TransactionTracker._gtid,
    AnonymousGtidLogEvent: TransactionTracker._gtid,
    GtidTaggedLogEvent: TransactionTracker._gtid,
    MariadbGtidEvent: TransactionTracker._mariadb_gtid,
    QueryEvent: TransactionTracker._query,
    QueryCompressedEvent: TransactionTracker._query,
    XidEvent: TransactionTracker._xid_event,
    XaPrepareLogEvent: TransactionTracker._xa_prepare,
    **dict.fromkeys(_BETWEEN, TransactionTracker._between),
    **dict.fromkeys(_SETTING, TransactionTracker._setting),
    **dict.fromkeys(_SINGLE, TransactionTracker._single),
    **{
        declaration.event_class: TransactionTracker._rows
        for declaration in EVENTS.values()
        if issubclass(declaration.event_class, RowsEvent)
    },
}
"""What is done with each event; any other counts as part of what is open."""

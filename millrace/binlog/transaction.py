"""Follows where transactions begin and end in a log, by the grammar of :mod:`millrace.binlog.grammar`."""

from enum import Enum
from typing import Any, Final

from millrace.binlog.declaration import Event
from millrace.binlog.errors import BinlogError, InvalidValueError
from millrace.binlog.events import (
    EVENTS,
    FormatDescriptionEvent,
    MariadbGtidEvent,
    MariadbGtidFlag,
    RowsEvent,
    StartEventV3,
    TransactionIdEvent,
    XaPrepareLogEvent,
)
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.grammar import GTIDS, TRANSITIONS, Effect, Mode, Role
from millrace.binlog.header import EventHeader
from millrace.binlog.statement import Statement, StatementKind, classify, xid_text
from millrace.binlog.types import HeaderFlag
from millrace.binlog.values import value

__all__ = [
    "CONTROL_HEADS",
    "ROLES",
    "STATEMENT_ROLES",
    "Standing",
    "TransactionEnd",
    "TransactionStep",
    "TransactionTracker",
    "codes_of",
    "role_of_statement",
]

ROLES: Final = {code: EVENTS[code].event_class.role if code in EVENTS else Event.role for code in range(256)}
"""The role of each type of event, by its code."""


def codes_of(*roles: Role) -> frozenset[int]:
    """Return the codes of the types of events that have one of some roles."""
    return frozenset(code for code, role in ROLES.items() if role in roles)


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


_STATEMENTS: Final = {
    StatementKind.BEGIN: (Role.BEGIN, TransactionEnd.COMMIT),
    StatementKind.XA_START: (Role.BEGIN, TransactionEnd.COMMIT),
    StatementKind.COMMIT: (Role.COMMIT, TransactionEnd.COMMIT),
    StatementKind.ROLLBACK: (Role.ROLLBACK, TransactionEnd.ROLLBACK),
    StatementKind.XA_PREPARE: (Role.DECISION, TransactionEnd.XA_PREPARE),
    StatementKind.XA_COMMIT: (Role.DECISION, TransactionEnd.XA_COMMIT),
    StatementKind.XA_ROLLBACK: (Role.DECISION, TransactionEnd.XA_ROLLBACK),
}
"""The role of a statement, and how it ends a transaction, if it does."""
_OTHER_STATEMENT: Final = Role.SINGLE, TransactionEnd.COMMIT

STATEMENT_ROLES: Final = {b"BEGIN": Role.BEGIN, b"COMMIT": Role.COMMIT, b"ROLLBACK": Role.ROLLBACK}
"""What most statements of a log are, in the spelling of the servers."""

CONTROL_HEADS: Final = frozenset({b"BE", b"CO", b"RO", b"SE", b"ST", b"XA"})
"""How statements begin that may have another role than SINGLE, among those that begin with a letter."""


def role_of_statement(text: bytes) -> Role:
    """Return the role of a statement; the beginning of its text is enough."""
    role = STATEMENT_ROLES.get(text)
    if role is not None:
        return role
    if text[:1].isalpha() and text[:2].upper() not in CONTROL_HEADS:
        return Role.SINGLE
    return _STATEMENTS.get(classify(text).kind, _OTHER_STATEMENT)[0]


Standing = tuple[str | None, int, int, str | None]
"""The id of the open transaction, the ordinal of its next event, the Mode, and its XID if it has one."""


class TransactionTracker:
    """Follows a log event by event; what it knows can be saved and restored between any two."""

    __slots__ = ("_mode", "_ordinal", "_transaction", "_xid")

    def __init__(self, standing: Standing = (None, 0, Mode.NONE, None)) -> None:
        self._transaction, self._ordinal, self._mode, self._xid = standing

    @property
    def transaction(self) -> str | None:
        """Id of the transaction that is open, if one is."""
        return self._transaction

    @property
    def standing(self) -> Standing:
        """What is known, for another tracker, or the kernel."""
        return self._transaction, self._ordinal, self._mode, self._xid

    def save(self) -> dict[str, Any]:
        """Return what is known as plain values."""
        return {
            "transaction": self._transaction,
            "ordinal": self._ordinal,
            "mode": ("none", "head", "body", "body")[self._mode],
            "xid": self._xid,
        }

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> "TransactionTracker":
        """Resume from what :meth:`save` gave; raises InvalidValueError where it is damaged."""
        match saved:
            case {
                "transaction": str() | None as transaction,
                "ordinal": int() as ordinal,
                "mode": "none" | "head" | "body" as name,
                "xid": str() | None as xid,
            }:
                mode = {"none": Mode.NONE, "head": Mode.HEAD, "body": Mode.BODY}[name]
                if mode is Mode.BODY and ordinal == 1:
                    mode = Mode.OPENED
                return cls((transaction, ordinal, mode, xid))
        raise InvalidValueError(f"the saved state of a transaction cannot be restored: {saved!r:.200}")

    def feed(self, header: EventHeader, event: Event, log_file: str, position: int) -> TransactionStep:
        """Take the next event of the log, which starts at ``position`` of ``log_file``."""
        role, end, xid, statement = _reading(header, event)
        entry = TRANSITIONS[role * len(Mode) + self._mode]
        interrupts = None
        if entry & (Effect.OPENS | Effect.CUTS):
            interrupts = self._transaction
            self._close()
        if entry & Effect.OPENS:
            self._transaction = _id(header, event, log_file, position)
        if not entry & Effect.COUNTS:
            return TransactionStep(None, 0, statement=statement, interrupts=interrupts)
        if role in _NAMING_XID:
            self._xid, xid = xid or self._xid, None
        elif role is Role.DECISION:
            xid = self._xid or xid
        transaction, ordinal = self._transaction, self._ordinal
        self._ordinal, self._mode = ordinal + 1, entry & _MODE
        if entry & Effect.ENDS:
            self._close()
        return TransactionStep(
            transaction,
            ordinal,
            begins=bool(entry & Effect.OPENS),
            ends=end if entry & Effect.ENDS else None,
            xid=xid,
            statement=statement,
            interrupts=interrupts,
        )

    def _close(self) -> None:
        self._transaction, self._ordinal, self._mode, self._xid = None, 0, Mode.NONE, None


_MODE: Final = int(max(Mode))
_NAMING_XID: Final = frozenset({*GTIDS, Role.BEGIN})
"""Roles of events that may say which XA transaction it is."""

_STANDALONE: Final = MariadbGtidFlag.STANDALONE.value

_Reading = tuple[Role, TransactionEnd, str | None, Statement | None]
"""The role that an event turns out to have, how it ends a transaction, its XID, what a QUERY says."""


def _reading(header: EventHeader, event: Event) -> _Reading:
    """Look into an event."""
    role = event.role
    match event:
        case RowsEvent():
            return (Role.SINGLE if event.ends_statement else Role.SETTING), TransactionEnd.COMMIT, None, None
        case StatementEvent() if role is Role.QUERY:
            return _statement(classify(_text_of(event)))
        case MariadbGtidEvent():
            of = event.xid
            xid = None if of is None else xid_text(of.format_id, of.gtrid, of.bqual)
            standalone = event.flags2 & _STANDALONE
            return (Role.GTID if standalone else role), TransactionEnd.COMMIT, xid, None
        case XaPrepareLogEvent() if not event.one_phase:
            xid = xid_text(event.format_id, event.gtrid, event.bqual)
            return role, TransactionEnd.XA_PREPARE, xid, None
        case FormatDescriptionEvent() | StartEventV3():
            if event.created and not header.flags & HeaderFlag.ARTIFICIAL_F:
                role = Role.RESTART
    return role, TransactionEnd.COMMIT, None, None


def _statement(statement: Statement) -> _Reading:
    role, end = _STATEMENTS.get(statement.kind, _OTHER_STATEMENT)
    if statement.one_phase:
        end = TransactionEnd.COMMIT
    xid = statement.name if role in (Role.BEGIN, Role.DECISION) else None
    return role, end, xid, statement


def _id(header: EventHeader, event: Event, log_file: str, position: int) -> str:
    """Name the transaction that an event begins."""
    identifier = event.transaction_id(header) if isinstance(event, TransactionIdEvent) else None
    return identifier or f"{log_file}:{position}"


def _text_of(event: StatementEvent) -> bytes:
    """Return a statement's text; none where it cannot be unpacked: the end of a transaction never is."""
    try:
        return event.beginning
    except BinlogError:
        return b""

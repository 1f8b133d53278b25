"""Where the source's transactions begin and end, and which GTID each has, read from the bytes alone.

The reader needs three things of a transaction: whether its end has come (there it likes to commit), its GTID
while it is open, and the set of all that are whole. Decoding every event for this would cost more than all
else that the reader does, so only the types that matter are looked at, and of them a few bytes.
:mod:`millrace.binlog.grammar` says what they mean.
"""

import struct
from typing import Final

from millrace.binlog.events.gtid import GtidTaggedLogEvent
from millrace.binlog.grammar import TRANSITIONS, Effect, Mode, Role
from millrace.binlog.header import FLAGS_OFFSET, HEADER_LENGTH
from millrace.binlog.transaction import ROLES, role_of_statement
from millrace.binlog.types import EventType, HeaderFlag

_AS: Final = {
    Role.SETTING: Role.PART,
    Role.ROWS: Role.PART,
    Role.BETWEEN: Role.PART,
    Role.PAYLOAD: Role.COMMIT,
}
"""Settings and rows are not looked at: the end of their group is another event. Nor is what is packed."""

_ROLES: Final = tuple(
    Role.SINGLE if code == EventType.QUERY_COMPRESSED_EVENT else _AS.get(role, role)
    for code, role in ROLES.items()
)

FOLLOWED: Final = bytes(_ROLES)
"""The role of each type of event, as :meth:`TransactionProgress.note` takes it, by its code."""

WATCHED: Final = frozenset(code for code, role in enumerate(_ROLES) if role is not Role.PART)
"""Types of events that :meth:`TransactionProgress.note` must see."""

_GTID_TAGGED: Final = int(EventType.GTID_TAGGED_LOG_EVENT)
_CREATED: Final = HEADER_LENGTH + 52
_QUERY_POST_HEADER: Final = 13
_STANDALONE: Final = 1

_U16 = struct.Struct("<H")
_U64 = struct.Struct("<Q")
_MARIADB = struct.Struct("<QIB")

Gtid = tuple[bytes, int] | tuple[int, int, int] | GtidTaggedLogEvent | str
"""Of MySQL: the 16 bytes of the server's uuid and a number. Of MariaDB: domain, server id, number.

A tagged one as its event, one of an earlier run of the reader as text.
"""


class TransactionProgress:
    """Follows groups of events.

    ``mode`` is what the log waits for, ``open_gtid`` the GTID of the group that is open, if it has one.
    ``finished`` is the GTID of the group that the last event has ended, if it had one.
    """

    __slots__ = ("finished", "mode", "open_gtid")

    def __init__(self, open_gtid: Gtid | None = None, mode: int | None = None) -> None:
        """Start between groups, or inside the one with ``open_gtid``.

        Where ``mode`` is not known, BEGIN may have come or not.
        """
        self.mode = int(Mode.NONE if open_gtid is None else Mode.OPENED) if mode is None else mode
        self.open_gtid = open_gtid
        self.finished: Gtid | None = None

    @property
    def inside(self) -> bool:
        """Whether a group has begun and not ended."""
        return self.mode != Mode.NONE

    def note(self, type_code: int, server_id: int, data: bytes, end: int) -> bool:
        """Take note of an event of a type in WATCHED; return whether it ends a transaction.

        ``data[:end]`` is the event without its checksum, or the beginning of a large one.
        """
        role = _ROLES[type_code]
        gtid: Gtid | None = None
        self.finished = None
        if role is Role.QUERY:
            role = role_of_statement(_statement(data, end))
        elif role is Role.GTID:
            gtid = (
                _gtid(data)
                if type_code != _GTID_TAGGED
                else GtidTaggedLogEvent.decode_fields(data, HEADER_LENGTH, end, 0)
            )
        elif role is Role.GROUP_GTID:
            sequence, domain, flags = _MARIADB.unpack_from(data, HEADER_LENGTH)
            gtid = domain, server_id, sequence
            role = Role.GTID if flags & _STANDALONE else role
        elif role is Role.START and _is_restart(data):
            role = Role.RESTART
        entry = TRANSITIONS[role * len(Mode) + self.mode]
        if entry & (Effect.OPENS | Effect.ENDS | Effect.CUTS):
            # Groups are not interleaved: where one begins, the one before is whole. Its end went unnoticed if
            # it was a single statement and an earlier run of the reader saw its GTID.
            self.finished = None if entry & Effect.CUTS else self.open_gtid
            self.open_gtid = gtid
        self.mode = entry & _MODE
        return bool(entry & Effect.ENDS)


_MODE: Final = max(Mode)


def _gtid(data: bytes) -> tuple[bytes, int]:
    return data[HEADER_LENGTH + 1 : HEADER_LENGTH + 17], _U64.unpack_from(data, HEADER_LENGTH + 17)[0]


def _statement(data: bytes, end: int) -> bytes:
    """Return the text of a QUERY."""
    database_length = data[HEADER_LENGTH + 8]
    (status_length,) = _U16.unpack_from(data, HEADER_LENGTH + 11)
    return data[HEADER_LENGTH + _QUERY_POST_HEADER + status_length + database_length + 1 : end]


def _is_restart(format_description: bytes) -> bool:
    """Return whether a format description is the first of its server since it started."""
    created = format_description[_CREATED : _CREATED + 4]
    return any(created) and not format_description[FLAGS_OFFSET] & HeaderFlag.ARTIFICIAL_F

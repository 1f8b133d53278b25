"""Where the source's transactions begin and end, and which GTID each has, read from the bytes alone.

The reader needs three things of a transaction: whether its end has come (there it likes to commit), its GTID
while it is open, and the set of all that are whole. Decoding every event for this would cost more than all
else that the reader does, so only the few types that matter are looked at, and of them a few bytes. The
grammar is the server's::

    group = [GTID | ANONYMOUS_GTID | GTID_TAGGED], (BEGIN, event*, end | statement | payload)   MySQL
    group = MARIADB_GTID (standalone: statement | else: event*, end)                            MariaDB
    group = BEGIN, event*, end | statement                                                      without GTIDs
    end   = XID | XA_PREPARE | QUERY "COMMIT" | QUERY "ROLLBACK"
"""

import struct
from typing import Final

from millrace.binlog.events.gtid import GtidTaggedLogEvent
from millrace.binlog.types import EventType

__all__ = ["NOTES", "WATCHED", "Gtid", "TransactionProgress"]

_QUERY: Final = int(EventType.QUERY_EVENT)
_QUERY_COMPRESSED: Final = int(EventType.QUERY_COMPRESSED_EVENT)
_GTID: Final = int(EventType.GTID_LOG_EVENT)
_ANONYMOUS_GTID: Final = int(EventType.ANONYMOUS_GTID_LOG_EVENT)
_GTID_TAGGED: Final = int(EventType.GTID_TAGGED_LOG_EVENT)
_MARIADB_GTID: Final = int(EventType.MARIADB_GTID_EVENT)
_ENDS: Final = frozenset(
    map(
        int,
        (
            EventType.XID_EVENT,
            EventType.XA_PREPARE_LOG_EVENT,
            EventType.TRANSACTION_PAYLOAD_EVENT,
            EventType.INCIDENT_EVENT,
        ),
    )
)
_CUTS: Final = frozenset(map(int, (EventType.FORMAT_DESCRIPTION_EVENT, EventType.STOP_EVENT)))

WATCHED: Final = (
    _ENDS | _CUTS | {_QUERY, _QUERY_COMPRESSED, _GTID, _ANONYMOUS_GTID, _GTID_TAGGED, _MARIADB_GTID}
)
"""Types of events that :meth:`TransactionProgress.note` must see."""

NOTES: Final[dict[int, int]] = {
    EventType.XID_EVENT: 2,
    EventType.XA_PREPARE_LOG_EVENT: 2,
    EventType.TRANSACTION_PAYLOAD_EVENT: 2,
    EventType.QUERY_EVENT: 3,
    EventType.GTID_LOG_EVENT: 4,
    EventType.ANONYMOUS_GTID_LOG_EVENT: 5,
    EventType.MARIADB_GTID_EVENT: 6,
}
"""What the kernel does in place of :meth:`TransactionProgress.note`, by its numbers; the rest it leaves."""

_HEADER: Final = 19
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

    ``inside`` tells whether a group has begun and not ended, ``open_gtid`` its GTID if it has one.
    ``finished`` is the GTID of the last group that ended; whoever takes it sets it to None.
    """

    __slots__ = ("_explicit", "_standalone", "finished", "inside", "open_gtid")

    def __init__(self, open_gtid: str | None = None) -> None:
        """Start between groups, or inside the one with ``open_gtid``."""
        self.inside = open_gtid is not None
        self.open_gtid: Gtid | None = open_gtid
        self.finished: Gtid | None = None
        # Of the group at hand: whether it lasts until it is ended, or is one statement.
        self._explicit = self.inside
        self._standalone = False

    def note(self, type_code: int, server_id: int, data: bytes, end: int) -> bool:
        """Take note of an event of a type in WATCHED; return whether it ends a transaction.

        ``data[:end]`` is the event without its checksum, or the beginning of a large one.
        """
        if type_code in _ENDS:
            return self._ends()
        if type_code == _QUERY:
            return self._query(data, end)
        if type_code in _CUTS:
            # A group that was open when the server stopped is no transaction.
            self._begins(None)
            self.inside = False
            return False
        if type_code == _QUERY_COMPRESSED:
            return False if self._explicit else self._ends()
        if self.inside:
            # Groups are not interleaved: one begins, so the one before is whole. Its end went unnoticed if
            # it was a single statement and an earlier run of the reader saw its GTID.
            self._ends()
        if type_code == _GTID:
            self._begins((data[_HEADER + 1 : _HEADER + 17], _U64.unpack_from(data, _HEADER + 17)[0]))
        elif type_code == _MARIADB_GTID:
            sequence, domain, flags = _MARIADB.unpack_from(data, _HEADER)
            self._begins((domain, server_id, sequence))
            self._standalone = bool(flags & _STANDALONE)
            self._explicit = not self._standalone
        elif type_code == _GTID_TAGGED:
            self._begins(GtidTaggedLogEvent.decode_fields(data, _HEADER, end, 0))
        else:
            self._begins(None)
        return False

    def _begins(self, gtid: Gtid | None) -> None:
        self.inside = True
        self.open_gtid = gtid
        self._explicit = self._standalone = False

    def _ends(self) -> bool:
        self.finished = self.open_gtid
        self.inside = self._explicit = self._standalone = False
        self.open_gtid = None
        return True

    def _query(self, data: bytes, end: int) -> bool:
        if self._standalone:
            return self._ends()
        database_length = data[_HEADER + 8]
        (status_length,) = _U16.unpack_from(data, _HEADER + 11)
        start = _HEADER + _QUERY_POST_HEADER + status_length + database_length + 1
        # All texts that matter are the server's own, but for XA, where the head of the text is.
        text = data[start : min(end, start + 12)]
        if text == b"BEGIN" or text.startswith((b"XA START", b"XA BEGIN")):
            if not self.inside:
                self._begins(None)
            self._explicit = True
            return False
        if text in (b"COMMIT", b"ROLLBACK") or text.startswith((b"XA COMMIT", b"XA ROLLBACK")):
            return self._ends()
        return False if self._explicit else self._ends()

"""Where an event stands in its file, computed from the stream of a dump. No I/O.

The header of an event carries ``next_position`` (``log_pos``), the offset at which the next event starts, in
32 bits: it wraps beyond 4 GiB, it is 0 in events that stand in no file, and MariaDB from 11.4 writes 0 inside
transactions. So the start offset is counted here in 64 bits, from the sizes of the events, and
``next_position`` serves as a check. What the rules are:

- A ROTATE with ``next_position`` 0 or the ARTIFICIAL flag stands in no file: the server opens each dump, and
  each file in a dump, with one. It says the file and the position at which the next event starts. The ROTATE
  that does stand in the file, as its last event, says the same; its ``next_position`` is of the file it ends.
- A FORMAT_DESCRIPTION with ``next_position`` 0 is the one from the head of the file, altered by the server
  (``created`` and ``next_position`` zeroed) because the dump begins further back in the file.
- Heartbeats, and GTID_LIST events with the ARTIFICIAL flag, stand in no file.
- Everything else stands where its predecessor ended. A dump by file and position that says otherwise has lost
  bytes. A dump by GTID leaves out the transactions that the replica has: the next event's own
  ``next_position`` less its size, or a heartbeat, tells where it continues.
"""

import struct
from typing import Final

from millrace.binlog.checksum import CHECKSUM_LENGTH, checksum_matches
from millrace.binlog.cursor import Cursor
from millrace.binlog.errors import BinlogError
from millrace.binlog.header import FIRST_POSITION, HEADER_LENGTH
from millrace.binlog.types import EventType, HeaderFlag
from millrace.mysql.errors import GapError, ProtocolError
from millrace.mysql.names import log_file_name
from millrace.text import shortened

NOT_IN_FILE: Final = -1
"""The event is the dump's, not the file's: act on it, keep it out of the log."""

ALTERED: Final = -2
"""The event is the file's format description, altered by the server."""

_ROTATE = int(EventType.ROTATE_EVENT)
_FORMAT_DESCRIPTION = int(EventType.FORMAT_DESCRIPTION_EVENT)
_HEARTBEAT = int(EventType.HEARTBEAT_LOG_EVENT)
_HEARTBEAT_V2 = int(EventType.HEARTBEAT_LOG_EVENT_V2)
_GTID_LIST = int(EventType.MARIADB_GTID_LIST_EVENT)
_SPECIAL = frozenset((_ROTATE, _FORMAT_DESCRIPTION, _HEARTBEAT, _HEARTBEAT_V2, _GTID_LIST))

_MASK = 0xFFFFFFFF
_U64 = struct.Struct("<Q")
_GREATEST = 1 << 62
"""No file is longer, and what comes after still fits a long of Avro."""
_MOST_MADE_UP: Final = 100_000
"""A server makes up two events for each of its files that it skips."""


class PositionTracker:
    """Follows the file and the start offset of each event of a dump.

    ``log_file`` and ``position`` are where the next event is expected. ``skips`` tells that this is a dump by
    GTID, in which transactions may be left out; ``zero_allowed`` that ``next_position`` may be 0 (MariaDB).
    """

    __slots__ = ("_made_up", "log_file", "position", "skips", "zero_allowed")

    def __init__(
        self, log_file: str, position: int, *, skips: bool = False, zero_allowed: bool = False
    ) -> None:
        self.log_file = log_file
        self.position = position
        self.skips = skips
        self.zero_allowed = zero_allowed
        self._made_up = 0

    def place(self, type_code: int, event_size: int, next_position: int, flags: int, data: bytes) -> int:
        """Return the start offset of an event in :attr:`log_file`, or NOT_IN_FILE, or ALTERED.

        ``data`` holds the event, or at least its first piece; a ROTATE is always whole. After a ROTATE that
        stands in the file, :attr:`log_file` is already the next file: read the name before. Raises
        :class:`GapError` where bytes are missing, :class:`ProtocolError` for a place that cannot be.
        """
        if type_code in _SPECIAL:
            known = self._special(type_code, next_position, flags, data)
            if known is not None:
                self._count(type_code)
                return known
        self._made_up = 0
        start = self.position
        end = start + event_size
        if next_position != end & _MASK and (next_position or not self.zero_allowed):
            start = self._found_elsewhere(start, event_size, next_position)
            end = start + event_size
        self.position = end
        if type_code == _ROTATE:
            self._rotate(data)
        return start

    def _special(self, type_code: int, next_position: int, flags: int, data: bytes) -> int | None:
        """Handle an event that may stand in no file; return None if it stands in one."""
        if type_code == _ROTATE:
            if next_position and not flags & HeaderFlag.ARTIFICIAL_F:
                return None
            self._rotate(data)
            return NOT_IN_FILE
        if type_code == _FORMAT_DESCRIPTION:
            return None if next_position else ALTERED
        if type_code == _GTID_LIST:
            return NOT_IN_FILE if flags & HeaderFlag.ARTIFICIAL_F else None
        if self.skips:
            self._heartbeat(type_code, next_position, data)
        return NOT_IN_FILE

    def _count(self, type_code: int) -> None:
        """Refuse events of the dump's own without an end; heartbeats come as long as nothing is logged."""
        if type_code not in (_HEARTBEAT, _HEARTBEAT_V2):
            self._made_up += 1
            if self._made_up > _MOST_MADE_UP:
                raise ProtocolError(f"the server sent {_MOST_MADE_UP} events in a row that are in no file")

    def _rotate(self, data: bytes) -> None:
        """Go to the file and position that a ROTATE names."""
        body = _body(data)
        if len(body) <= 8:
            raise ProtocolError(f"a ROTATE event of {len(data)} bytes names no file")
        (position,) = _U64.unpack_from(body)
        self.log_file = log_file_name(body[8:], "a ROTATE event of the server")
        self.position = _checked(position)

    def _heartbeat(self, type_code: int, next_position: int, data: bytes) -> None:
        """Go forward to where a heartbeat says that the server stands; it skipped what lies between."""
        body = _body(data)
        if type_code == _HEARTBEAT and not next_position and body[7:8] == b"\0":
            # MariaDB beyond 4 GiB: the position stands in front of the name, which has no zero byte.
            (position,) = _U64.unpack_from(body)
            name = body[8:]
        elif type_code == _HEARTBEAT:
            # One from behind left before the last event did.
            name, position = body, self.position + (_ahead(self.position, next_position) or 0)
        else:
            name, position = _heartbeat_v2(body)
        if log_file_name(name, "a heartbeat of the server") == self.log_file:
            self.position = max(self.position, _checked(position))

    def _found_elsewhere(self, start: int, event_size: int, next_position: int) -> int:
        """Return where an event starts whose ``next_position`` is not the one expected."""
        ahead = _ahead(start, next_position - event_size)
        if self.skips and next_position and ahead is not None:
            return start + ahead
        raise GapError(
            f"{self.log_file} at {start}: an event of {event_size} bytes must end at "
            f"{(start + event_size) & _MASK} (modulo 2^32), its header says {next_position}: "
            "bytes of the log are missing"
        )


def _ahead(position: int, end: int) -> int | None:
    """Return the bytes from a position to that with the last 32 bits ``end``; None if that is behind.

    So it is where that would be half of the 32 bits or more, unless the file does not go back that far.
    """
    ahead = (end - position) & _MASK
    return ahead if ahead < 1 << 31 or position + ahead <= _MASK + FIRST_POSITION else None


def _checked(position: int) -> int:
    if position > _GREATEST:
        raise ProtocolError(f"the server names the position {position}, which no file has")
    return position


def _body(data: bytes) -> bytes:
    """Return what lies between header and checksum of an event that the dump made up.

    Whether it has a checksum is not known from the file's format description, which may not have come yet
    and speaks of the file only; four bytes are not the CRC32 of all before them by chance.
    """
    return data[HEADER_LENGTH : -CHECKSUM_LENGTH if checksum_matches(data) else len(data)]


def _heartbeat_v2(body: bytes) -> tuple[bytes, int]:
    """Return file name and 64-bit position of a HEARTBEAT_LOG_EVENT_V2 (41).

    Its body is a run of fields: type (1 the name, 2 the position, 0 the end), length, value; integers are
    length-encoded.
    """
    name, position, fields = b"", 0, Cursor(body)
    try:
        while fields.remaining and (kind := fields.lenenc()):
            value = fields.bytes(fields.lenenc())
            if kind == 1:
                name = value
            elif kind == 2:
                position = Cursor(value).lenenc()
    except BinlogError as error:
        shown = shortened(body.hex(), 100)
        raise ProtocolError(f"a heartbeat of the server cannot be read: {error}: {shown}") from error
    return name, position

"""Where in a log to begin: at the first transaction of a time; and which transactions lie before a place.

Found by walking over the events, from the head of a file that begins before. A transaction is of the time at
which it ends, or later: what was committed at that second or after it is read, all of it.
"""

import struct
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from millrace.binlog.errors import InvalidValueError
from millrace.binlog.state import StreamState
from millrace.binlog.stream import decode_event
from millrace.binlog.types import ChecksumAlgorithm, EventType
from services.reader.gtids import GtidProgress
from services.reader.progress import WATCHED, TransactionProgress

__all__ = ["Place", "PlaceFinder", "seconds_of"]

_FORMAT_DESCRIPTION: Final = int(EventType.FORMAT_DESCRIPTION_EVENT)
_PREVIOUS: Final = {int(EventType.PREVIOUS_GTIDS_LOG_EVENT), int(EventType.MARIADB_GTID_LIST_EVENT)}
_BETWEEN: Final = _PREVIOUS | set(
    map(
        int,
        (
            EventType.START_EVENT_V3,
            EventType.FORMAT_DESCRIPTION_EVENT,
            EventType.ROTATE_EVENT,
            EventType.STOP_EVENT,
            EventType.BINLOG_CHECKPOINT_EVENT,
            EventType.START_ENCRYPTION_EVENT,
        ),
    )
)
"""Types of events that are part of no transaction."""
_GTIDS: Final = set(
    map(
        int,
        (
            EventType.GTID_LOG_EVENT,
            EventType.ANONYMOUS_GTID_LOG_EVENT,
            EventType.GTID_TAGGED_LOG_EVENT,
            EventType.MARIADB_GTID_EVENT,
        ),
    )
)
_TYPE: Final = 4
_SERVER_ID: Final = slice(5, 9)
_CHECKSUM_LENGTH: Final = 4


def seconds_of(text: str) -> int:
    """Read a time as ISO 8601 has it, with Z or an offset; return seconds since 1970. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(f"{text!r} is no time: expected 2026-01-31T12:00:00Z, or an offset in place of Z")
    return int(time.timestamp())


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two transactions, and the GTIDs of what lies before it; None if not known."""

    log_file: str
    position: int
    gtid_set: str | None


class PlaceFinder:
    """Takes the events of a log, from the head of a file on, until a transaction of ``since`` or later comes.

    ``since`` is in seconds since 1970; without it nothing is found, and the walk serves the GTIDs alone.
    Raises BinlogError for what cannot be followed.
    """

    def __init__(self, since: int | None = None) -> None:
        self._since = since
        self._stream = StreamState()
        self._progress = TransactionProgress()
        self._gtids = GtidProgress()
        self._begin: tuple[str, int] | None = None

    @property
    def gtid_set(self) -> str | None:
        """The GTIDs of all transactions that are whole by now, None where the file does not tell."""
        return self._gtids.text() if self._gtids.known else None

    def feed(self, log_file: str, position: int, data: bytes) -> Place | None:
        """Take the next event, or its first piece; return the place, once it is found."""
        type_code = data[_TYPE]
        if type_code in _BETWEEN:
            self._between(type_code, data)
            return None
        begins = type_code in _GTIDS
        if begins or self._begin is None:
            self._begin = log_file, position
        if begins:
            # Before anything else: if the end of the group before went unnoticed, that is whole now.
            self._note(type_code, data)
        if self._since is not None and int.from_bytes(data[:4], "little") >= self._since:
            return Place(*self._begin, self.gtid_set)
        if not begins and type_code in WATCHED and self._note(type_code, data):
            self._begin = None
        return None

    def _between(self, type_code: int, data: bytes) -> None:
        """Learn from an event between transactions."""
        if type_code in WATCHED:
            self._note(type_code, data)
            self._begin = None
        if type_code == _FORMAT_DESCRIPTION:
            decode_event(data, self._stream, verify=False)
        elif type_code in _PREVIOUS:
            self._gtids.previous(decode_event(data, self._stream, verify=False).event)

    def _note(self, type_code: int, data: bytes) -> bool:
        """Follow transactions; return whether one has ended."""
        known = self._stream.format
        crc = known is not None and known.checksum is ChecksumAlgorithm.CRC32
        end = len(data) - _CHECKSUM_LENGTH if crc else len(data)
        server_id = int.from_bytes(data[_SERVER_ID], "little")
        try:
            ended = self._progress.note(type_code, server_id, data, end)
        except (IndexError, struct.error) as error:
            raise InvalidValueError(f"an event of type {type_code} is too short: {error}") from error
        if self._progress.finished is not None:
            self._gtids.add(self._progress.finished)
            self._progress.finished = None
        return ended

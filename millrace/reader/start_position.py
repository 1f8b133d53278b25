"""Where in a log to begin: at the first transaction of a time; and which transactions lie before a place.

Found by walking over the events, from the head of a file that begins before. A transaction is of the time at
which it ends, or later: what was committed at that second or after it is read, all of it.

A server's own log has whole transactions in each file, but for one that was open when the server stopped. A
relay log may begin a file anywhere in a transaction, and repeat it from its beginning after a lost link. The
next event shows which of these it is: one that begins a transaction, or not.
"""

import struct
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from millrace.avro.service_state import ReaderState
from millrace.binlog.checksum import CHECKSUM_LENGTH
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.grammar import HEADING, Role
from millrace.binlog.header import FIRST_POSITION, TYPE_OFFSET
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import ROLES
from millrace.binlog.types import EventType
from millrace.reader.gtids import GtidProgress
from millrace.reader.progress import WATCHED, TransactionProgress

_FORMAT_DESCRIPTION: Final = int(EventType.FORMAT_DESCRIPTION_EVENT)
_STOP: Final = int(EventType.STOP_EVENT)
_QUERY: Final = int(EventType.QUERY_EVENT)
_PREVIOUS: Final = {int(EventType.PREVIOUS_GTIDS_LOG_EVENT), int(EventType.MARIADB_GTID_LIST_EVENT)}
_BETWEEN: Final = {Role.BETWEEN, Role.START}
_SERVER_ID: Final = slice(5, 9)


def seconds_of(text: str) -> int:
    """Read a time as ISO 8601 has it, with Z or an offset; return seconds since 1970. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(f"{text!r} is not a time: expected 2026-01-31T12:00:00Z, or an offset in place of Z")
    return int(time.timestamp())


def moved_on_purpose(state: ReaderState) -> str | None:
    """Say from where to where a source was moved by ``millrace source reset``; None where it was not."""
    if state.reset is None:
        return None
    known = str(state.place) if state.log_file else "a position that was lost"
    return (
        f"moved on purpose from {known} to {state.reset} ('millrace source "
        "reset'): what lies between is missing, or comes again"
    )


class NoPlaceError(ValueError):
    """No event of a file begins or ends at a position; the text names those around it."""


class PlaceCheck:
    """Looks for a position among those at which the events of a file begin, given in their order."""

    def __init__(self, position: int) -> None:
        self._position = position
        self._before, self._reached = 0, FIRST_POSITION

    def passes(self, start: int, size: int) -> bool:
        """Take note of an event; tell whether it is at the position, or after it."""
        if start >= self._position:
            self._reached = start
            return True
        self._before, self._reached = start, start + size
        return False

    def found(self) -> None:
        """Raise :class:`NoPlaceError` unless an event begins, or the last one ends, at the position."""
        if self._reached == self._position:
            return
        if self._reached < self._position:
            raise NoPlaceError(f"the file ends at {self._reached}")
        before = f"{self._before} and " if self._before else ""
        raise NoPlaceError(f"no event begins there, but at {before}{self._reached}")


@dataclass(frozen=True, slots=True)
class StartPosition:
    """A place between two transactions, and the GTIDs of what lies before it; None if not known.

    Of MariaDB ``binlog_state`` has the last of each domain and server.
    """

    log_file: str
    position: int
    gtid_set: str | None
    binlog_state: str | None = None


class StartPositionFinder:
    """Takes the events of a log, from the head of a file on, until a transaction of ``since`` or later comes.

    ``since`` is in seconds since 1970; without it nothing is found, and the walk serves the GTIDs alone.
    Raises BinlogError for what cannot be followed.
    """

    def __init__(self, since: int | None = None) -> None:
        self._since = since
        self._stream = StreamState()
        self._progress = TransactionProgress()
        self._gtids = GtidProgress()
        # Where the transaction at hand begins, whether with a GTID, and whether it may have before the walk.
        self._begin: tuple[str, int] | None = None
        self._by_gtid = False
        self._perhaps_before = True
        # Whether the file, or the server, ended within it.
        self._cut = False

    @property
    def gtid_set(self) -> str | None:
        """The GTIDs of all transactions that are whole by now, None where the file does not tell."""
        return self._gtids.text() if self._gtids.known else None

    @property
    def binlog_state(self) -> str | None:
        """Of MariaDB, the last of these of each domain and server, None where the file does not tell."""
        return self._gtids.binlog_state

    @property
    def open_at(self) -> tuple[str, int] | None:
        """File and position where the transaction begins that is not whole by now; None between two."""
        return self._begin

    @property
    def begun_before(self) -> bool:
        """Whether the transaction at hand may have begun before the first event that came."""
        return self._begin is not None and self._perhaps_before

    def feed(self, log_file: str, position: int, data: bytes) -> StartPosition | None:
        """Take the next event, or its first piece; return the place, once it is found."""
        type_code = data[TYPE_OFFSET]
        if ROLES[type_code] in _BETWEEN:
            self._between(type_code, data)
            return None
        by_gtid = ROLES[type_code] in HEADING
        begins = by_gtid or (type_code == _QUERY and not self._by_gtid and self._is_begin(data))
        if begins and self._cut:
            # What was cut is no transaction.
            self._progress = TransactionProgress()
        self._cut = False
        if begins or self._begin is None:
            # A BEGIN may stand after a GTID in the file before.
            self._perhaps_before = self._perhaps_before and self._begin is None and not by_gtid
            self._begin, self._by_gtid = (log_file, position), by_gtid
        if by_gtid:
            # Before anything else: if the end of the group before went unnoticed, that is whole now.
            self._note(type_code, data)
        if self._since is not None and int.from_bytes(data[:4], "little") >= self._since:
            return StartPosition(*self._begin, self.gtid_set, self.binlog_state)
        if not by_gtid and type_code in WATCHED and self._note(type_code, data):
            self._begin, self._by_gtid, self._perhaps_before = None, False, False
        return None

    def _between(self, type_code: int, data: bytes) -> None:
        """Learn from an event between transactions."""
        if type_code in (_FORMAT_DESCRIPTION, _STOP):
            self._cut = self._begin is not None
        if type_code == _FORMAT_DESCRIPTION:
            decode_event(data, self._stream, verify=False)
        elif type_code in _PREVIOUS:
            self._gtids.previous(decode_event(data, self._stream, verify=False).event)

    def _is_begin(self, data: bytes) -> bool:
        """Return whether a statement begins a transaction of several events."""
        alone = TransactionProgress()
        self._followed(alone, _QUERY, data)
        return alone.inside

    def _note(self, type_code: int, data: bytes) -> bool:
        """Follow transactions; return whether one has ended."""
        ended = self._followed(self._progress, type_code, data)
        if self._progress.finished is not None:
            self._gtids.add(self._progress.finished)
        return ended

    def _followed(self, progress: TransactionProgress, type_code: int, data: bytes) -> bool:
        """Let ``progress`` take note of an event; return whether that ends a transaction."""
        end = len(data) - CHECKSUM_LENGTH if self._stream.has_checksums else len(data)
        server_id = int.from_bytes(data[_SERVER_ID], "little")
        try:
            return progress.note(type_code, server_id, data, end)
        except (IndexError, struct.error) as error:
            raise InvalidValueError(f"an event of type {type_code} is too short") from error

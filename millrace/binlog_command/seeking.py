"""From where a log file is decoded, so that what lies before ``--start-position`` need not be.

Headers alone are read up to the first event that is wanted. Decoding begins with its transaction, whose
events say how it is to be read: at the last GTID, or after the last XID where there is none. So the events
that pass the filter are the same as if all had been decoded.
"""

import struct
from typing import BinaryIO, Final

from millrace.binlog.file import MAGIC
from millrace.binlog.grammar import HEADING
from millrace.binlog.header import HEADER_LENGTH
from millrace.binlog.transaction import ROLES
from millrace.binlog.types import EventType
from millrace.binlog_command.criteria import Criteria, FilePosition

_EVERYWHERE: Final = 0
_NOWHERE: Final = 1 << 64
_NEVER_SKIPPED: Final = frozenset(
    {EventType.START_EVENT_V3, EventType.FORMAT_DESCRIPTION_EVENT, EventType.START_ENCRYPTION_EVENT}
)
_HEADER_LENGTH_AT: Final = 75
"""Where a format description, which has the common header, says how long that of the other events is."""
_header: Final = struct.Struct("<IB4xI").unpack_from


class Seeker:
    """Finds in each of several logs, in their order, where decoding must begin."""

    def __init__(self, criteria: Criteria) -> None:
        self._start, self._time = criteria.start, criteria.start_time
        self._stop, self._stop_time = criteria.stop, criteria.stop_time
        self._is_first = True
        # Which events are left out first is counted, so none is skipped then.
        self._reached = (self._start is None and self._time is None) or criteria.offset > 0

    def find(self, stream: BinaryIO, file: str, format_description: bytes, largest: int) -> int:
        """Give the position of the event to decode first, after the log's first event.

        ``stream`` is a plain file of that name, and stands anywhere after it afterwards. Where there is
        anything that an error would tell, no event from there on is skipped.
        """
        wanted = self._wanted(file)
        self._is_first = False
        position = safe = len(MAGIC) + len(format_description)
        if self._reached or not _is_simple(format_description):
            return safe
        size_of_file = stream.seek(0, 2)
        while position + HEADER_LENGTH <= size_of_file:
            stream.seek(position)
            head = stream.read(HEADER_LENGTH)
            if len(head) < HEADER_LENGTH or head.startswith(MAGIC):
                return safe
            timestamp, type_code, size = _header(head)
            if not HEADER_LENGTH <= size <= min(largest, size_of_file - position):
                return safe
            if type_code in _NEVER_SKIPPED or self._stops(position, timestamp):
                return safe
            if ROLES[type_code] in HEADING:
                safe = position
            if position >= wanted and (self._time is None or timestamp >= self._time):
                self._reached = True
                return safe
            position += size
            if type_code == EventType.XID_EVENT:
                safe = position
        return safe

    def _wanted(self, file: str) -> int:
        """Give the position in a log from which on its events are wanted."""
        start = self._start
        if start is None or start.file is None:
            return start.position if start is not None and self._is_first else _EVERYWHERE
        if start.file != file:
            return _NOWHERE
        self._start = FilePosition(start.position)  # the logs that follow are as if there was none
        return start.position

    def _stops(self, position: int, timestamp: int) -> bool:
        if self._stop is not None and position >= self._stop.position:
            return True
        return self._stop_time is not None and timestamp > 0 and timestamp >= self._stop_time


def _is_simple(format_description: bytes) -> bool:
    """Tell whether a log's first event says that its headers and type numbers are the usual ones."""
    return (
        len(format_description) > _HEADER_LENGTH_AT
        and format_description[4] == EventType.FORMAT_DESCRIPTION_EVENT
        and format_description[_HEADER_LENGTH_AT] == HEADER_LENGTH
        and b"a_drop" not in format_description  # previews that numbered some types otherwise
    )

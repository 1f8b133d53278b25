"""From where a log file is decoded, so that what lies before ``--start-position`` need not be.

Headers alone are read up to the first event that is wanted. Decoding begins with its transaction, whose
events say how it is to be read: at the last GTID, or after the last XID where there is none. So the events
that pass the filter are the same as if all had been decoded.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import FormatDescriptionEvent, PreviousGtidsLogEvent
from millrace.binlog.file import MAGIC
from millrace.binlog.grammar import HEADING
from millrace.binlog.header import HEADER_LENGTH
from millrace.binlog.transaction import ROLES
from millrace.binlog.types import EventType
from millrace.binlog_command.criteria import Criteria, FilePosition
from millrace.binlog_command.generation import Generation, generation_of
from millrace.binlog_command.records import LogRecord

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
        """Return the position of the event to decode first, after the log's first event.

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
        """Return the position in a log from which on its events are wanted."""
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


def placed_head(records: Iterable[LogRecord], start: FilePosition | None) -> Iterator[LogRecord]:
    """Yield records, and the format description before ``start`` with the position that mysqlbinlog prints.

    Since 8.0 mysqlbinlog says where the last event begins that it read to find the format description: the
    one after PREVIOUS_GTIDS, or the first that is none, if it begins before ``start``.
    """
    head: LogRecord | None = None
    for record in records:
        if head is not None and start is not None:
            yield head._replace(position=_read_up_to(head, record, start.position))
            head = start = None
        if start is not None and start.file in (None, record.file) and _is_of_mysql_8(record):
            head = record
        else:
            if start is not None and start.file is None:
                start = None  # it is for the first log alone
            yield record
    if head is not None:
        yield head


def _is_of_mysql_8(record: LogRecord) -> bool:
    """Return whether a record is the format description at the head of a log of MySQL 8.0 or newer."""
    decoded = record.event
    if record.position != len(MAGIC) or not isinstance(decoded, BinlogEvent):
        return False
    event = decoded.event
    return isinstance(event, FormatDescriptionEvent) and generation_of(event.version) is Generation.MYSQL_8_0


def _read_up_to(head: LogRecord, following: LogRecord, start: int) -> int:
    end = head.position + len(head.data)
    if start <= end:
        return head.position
    after = end
    decoded = following.event
    if isinstance(decoded, BinlogEvent) and isinstance(decoded.event, PreviousGtidsLogEvent):
        after += len(following.data)
    return after if start > after else end


def _is_simple(format_description: bytes) -> bool:
    """Return whether a log's first event says that its headers and type numbers are the usual ones."""
    return (
        len(format_description) > _HEADER_LENGTH_AT
        and format_description[4] == EventType.FORMAT_DESCRIPTION_EVENT
        and format_description[_HEADER_LENGTH_AT] == HEADER_LENGTH
        and b"a_drop" not in format_description  # previews that numbered some types otherwise
    )

"""``--verify``: find out whether a log is whole and sound.

Looked at are the checksums, that each event says where it ends (``next_position``), that transactions begin
and end as the grammar of :mod:`millrace.binlog.transaction` says, and that each event, rows included, is
understood down to the last byte: encoded again, it has the same bytes. A finding is a line
``file:position: what is wrong``; what is only unusual is a note.
"""

from collections.abc import Callable

from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import BinlogError, UnsupportedError
from millrace.binlog.events import FormatDescriptionEvent, RotateEvent, UnknownEvent
from millrace.binlog.events.rows import RowsEvent
from millrace.binlog.file import MAGIC, is_in_use
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.stream import BinlogEvent, encode_event
from millrace.binlog.types import HeaderFlag
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.rows import RowReader, TableRows
from millrace.text import printable

__all__ = ["VerifyOutput"]

_MASK = 0xFFFFFFFF
_OLD_TEMPORALS = (ColumnType.TIME, ColumnType.DATETIME, ColumnType.TIMESTAMP)


class VerifyOutput:
    """Checks records; ``findings`` counts what is wrong. ``write_line`` takes each line without its end."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self.findings = 0
        self._write_line = write_line
        self._rows = RowReader()
        self._encoding = StreamState()
        self._events = self._bytes = self._notes = self._files = 0
        self._path = ""
        self._in_use = self._relay = False
        self._position = 0
        self._open: str | None = None
        self._next_file: str | None = None
        self._told: set[tuple[str, int]] = set()

    def write(self, record: LogRecord) -> None:
        """Check one record."""
        if record.path != self._path:
            self._enter(record)
        self._position = record.position
        decoded = record.event
        if record.sub_index == 0:
            self._bytes += len(record.data)
        if isinstance(decoded, BinlogError):
            self._find(record, decoded.message)
            return
        self._events += 1
        event = decoded.event
        if isinstance(event, UnknownEvent):
            self._note_type(record, decoded.header.type_code)
        if isinstance(event, RotateEvent) and decoded.header.next_position:
            self._next_file = event.new_log_ident
        self._relay = self._relay or _is_of_a_relay_log(record, decoded)
        if record.sub_index == 0:
            self._check_position(record, decoded.header)
        self._check_transaction(record)
        self._check_encoding(record, decoded)
        if isinstance(event, RowsEvent):
            self._check_rows(record, decoded, event)

    def close(self) -> None:
        """Say how it ended."""
        self._leave()
        verdict = f"{self.findings} finding{'' if self.findings == 1 else 's'}" if self.findings else "sound"
        notes = f", {self._notes} note{'' if self._notes == 1 else 's'}" if self._notes else ""
        files = f"{self._files} log{'' if self._files == 1 else 's'}"
        self._write_line(f"{verdict}{notes}: {self._events} events, {self._bytes} bytes in {files}")

    def _enter(self, record: LogRecord) -> None:
        if self._next_file is not None and self._next_file != record.file:
            self._note(record, f"the log before it goes on in {self._next_file}")
        self._files += 1
        self._path, self._next_file = record.path, None
        self._in_use = bool(record.data) and is_in_use(record.data)
        self._relay = False

    def _leave(self) -> None:
        if self._open is None:
            return
        message = f"the log ends within the transaction {self._open}"
        if self._in_use or self._relay:
            self._say(f"{self._path}:{self._position}: note: {message}")
            self._notes += 1
        else:
            self._say(f"{self._path}:{self._position}: {message}")
            self.findings += 1

    def _check_position(self, record: LogRecord, header: EventHeader) -> None:
        """Compare where an event ends; logs before v4 say other things, and not the same in all versions.

        In a relay log the positions are those of the source. MariaDB (11.4 on) says 0 in transactions.
        """
        log_format = record.state.format
        if log_format is None or log_format.binlog_version < 4 or self._relay:
            return
        expected = record.position + len(record.data) & _MASK
        mariadb = "MariaDB" in log_format.origin.version
        if header.next_position != expected and (header.next_position or not mariadb):
            self._find(record, f"next_position is {header.next_position}, not {expected}")

    def _check_transaction(self, record: LogRecord) -> None:
        step = record.transaction
        assert step is not None
        if step.interrupts is not None:
            self._find(record, f"the transaction {step.interrupts} is cut off here")
        if step.begins:
            self._open = step.transaction
        if step.ends is not None:
            self._open = None

    def _check_encoding(self, record: LogRecord, decoded: BinlogEvent) -> None:
        self._encoding.format = record.state.format
        try:
            encoded = encode_event(decoded, self._encoding)
        except BinlogError as error:
            self._find(record, f"{decoded.event.event_type.name} cannot be encoded again: {error.message}")
            return
        if encoded != record.data:
            at = _difference(encoded, record.data)
            self._find(record, f"{decoded.event.event_type.name}, encoded again, differs from byte {at} on")

    def _check_rows(self, record: LogRecord, decoded: BinlogEvent, event: RowsEvent) -> None:
        table: TableRows | None = None
        try:
            table = self._rows.of(decoded, record.state)
            packed = event.rows
            rows = table.images.natural(packed)
            encoded = table.images.encode(rows, null_fill=table.images.null_fill(packed))
        except UnsupportedError as error:
            self._note(record, f"the rows cannot be read: {error.message}")
            return
        except BinlogError as error:
            # MariaDB's old temporal types with a fraction are longer, which stands in the catalog alone.
            say = self._note if table is not None and _has_old_temporals(table) else self._find
            say(record, f"the rows cannot be read: {error.message}")
            return
        if encoded != packed:
            at = _difference(encoded, packed)
            self._find(record, f"the rows, encoded again, differ from byte {at} on")

    def _note_type(self, record: LogRecord, type_code: int) -> None:
        """Note an unknown type, once for each log."""
        if (record.path, type_code) not in self._told:
            self._told.add((record.path, type_code))
            self._note(record, f"event type {type_code} is not known; such events are kept as they are")

    def _find(self, record: LogRecord, message: str) -> None:
        self.findings += 1
        self._say(f"{_place(record)}: {message}")

    def _note(self, record: LogRecord, message: str) -> None:
        self._notes += 1
        self._say(f"{_place(record)}: note: {message}")

    def _say(self, line: str) -> None:
        self._write_line(printable(line))


def _is_of_a_relay_log(record: LogRecord, decoded: BinlogEvent) -> bool:
    """Tell whether an event occurs in relay logs alone: they hold the source's ROTATE and description."""
    if decoded.header.flags & HeaderFlag.RELAY_LOG_F:
        return True
    if isinstance(decoded.event, RotateEvent):
        return not decoded.header.next_position or bool(decoded.header.flags & HeaderFlag.ARTIFICIAL_F)
    return isinstance(decoded.event, FormatDescriptionEvent) and record.position > len(MAGIC)


def _has_old_temporals(table: TableRows) -> bool:
    return any(column.type in _OLD_TEMPORALS for column in table.columns)


def _place(record: LogRecord) -> str:
    inside = f" (event {record.sub_index} inside)" if record.sub_index else ""
    return f"{record.path}:{record.position}{inside}"


def _difference(one: bytes, other: bytes) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )

"""``--verify``: find out whether a log is whole and sound.

Looked at are the checksums, that each event says where it ends (``next_position``), that transactions begin
and end as the grammar of :mod:`millrace.binlog.transaction` says, that the log begins with its format
description, has no other, and ends as a server ends it, and that each event, rows included, is understood
down to the last byte: encoded again, it has the same bytes. A finding is a line
``file:position: what is wrong``; what is only unusual is a note.

Without its format description, or its key, no event of a log can be read. That is one finding, with their
number; so is all that does not fit a damaged format description.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from millrace.binlog.columns.declaration import FORMER_TYPES, ColumnCodec, NativeKind
from millrace.binlog.errors import BinlogError, MissingStateError, UnsupportedError
from millrace.binlog.event_codec import BinlogEvent, encode_event
from millrace.binlog.events import (
    FormatDescriptionEvent,
    RotateEvent,
    StartEventV3,
    StopEvent,
    UnknownEvent,
)
from millrace.binlog.events.rows import CompressedRowsEvent, RowsEvent
from millrace.binlog.file import MAGIC, is_in_use
from millrace.binlog.header import V1_HEADER_LENGTH, EventHeader
from millrace.binlog.row_images import RowImages
from millrace.binlog.row_reader import RowReader, TableRows
from millrace.binlog.state import LogFormat, StreamState
from millrace.binlog.types import ChecksumAlgorithm, EventType, HeaderFlag
from millrace.binlog_command.records import MAX_UNPACKED_ROWS, MORE_BY_OPTION, LogRecord
from millrace.binlog_command.row_kernel import (
    Rows,
    TextColumn,
    TextKind,
    Value,
    rows_by_kernel,
    value_of,
)
from millrace.text import printable

_MASK = 0xFFFFFFFF
_RELAY_LOG_F = int(HeaderFlag.RELAY_LOG_F)
_ARTIFICIAL_F = int(HeaderFlag.ARTIFICIAL_F)
_OF_THE_LOG = (UnknownEvent, RotateEvent, FormatDescriptionEvent, StartEventV3)
_TOGETHER = 1000
"""How many rows are compared at once."""
_NO_FORMAT = (
    "the log has no format description, which every log since MySQL 5.0 begins with: events cannot be read"
)


class VerifyOutput:
    """Checks records; ``findings`` counts what is wrong, ``unchecked`` the events that were not all checked.

    ``write_line`` takes each line without its end.

    ``may_be_open`` says that a log may lack its end: what a server or Kafka gives is without the flag IN_USE.
    Rows that unpack to more than ``max_rows`` bytes are unpacked, and not compared.
    """

    def __init__(
        self,
        write_line: Callable[[str], None],
        *,
        may_be_open: bool = False,
        max_rows: int = MAX_UNPACKED_ROWS,
    ) -> None:
        self.findings = self.unchecked = 0
        self._max_rows = max_rows
        self._write_line = write_line
        self._may_be_open = may_be_open
        self._rows = RowReader(
            lambda _table, codecs, bitmaps: rows_by_kernel(
                codecs, list(map(_checked, codecs)), bitmaps, only_check=True
            )
        )
        self._encoding = StreamState()
        self._events = self._bytes = self._notes = self._files = self._without_checksum = 0
        self._path = ""
        self._in_use = self._relay = self._damaged_head = False
        self._last: LogRecord | None = None
        self._cause = ""
        self._counted = 0
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
            self._check_error(record, decoded)
            return
        self._last = record
        self._events += 1
        log_format = record.state.format
        if record.sub_index == 0 and log_format is not None and log_format.binlog_version >= 4:
            self._without_checksum += log_format.checksum is ChecksumAlgorithm.OFF
        event = decoded.event
        if isinstance(event, _OF_THE_LOG):
            self._check_log(record, decoded)
        if decoded.header.flags & _RELAY_LOG_F:
            self._relay = True
        if record.sub_index == 0:
            self._check_position(record, decoded.header)
        self._check_transaction(record)
        if not record.exact:
            self._check_encoding(record, decoded)
        if isinstance(event, RowsEvent):
            self._check_rows(record, decoded, event)

    def close(self) -> None:
        """Say how it ended."""
        self._leave()
        verdict = "not all checked" if self.unchecked else "sound"
        if self.findings:
            verdict = f"{self.findings} finding{'' if self.findings == 1 else 's'}"
        notes = f", {self._notes} note{'' if self._notes == 1 else 's'}" if self._notes else ""
        files = f"{self._files} log{'' if self._files == 1 else 's'}"
        checked = f"{self._events} events, {self._bytes} bytes in {files}"
        unchecked = f"; {self._without_checksum} events have no checksum" * bool(self._without_checksum)
        unchecked += f"; the contents of {self.unchecked} events were not compared" * bool(self.unchecked)
        self._write_line(f"{verdict}{notes}: {checked}{unchecked}")

    def has_no_events(self, path: str) -> None:
        """Say that a log holds nothing that could be checked."""
        self.findings += 1
        self._files += 1
        self._say(f"{path}: the log has no events")

    def _enter(self, record: LogRecord) -> None:
        if self._next_file is not None and self._next_file != record.file:
            self._note(record, f"the log before it continues in {self._next_file}")
        self._tell_counted()
        self._check_end()
        self._files += 1
        self._path, self._next_file = record.path, None
        self._in_use = len(record.data) >= V1_HEADER_LENGTH and is_in_use(record.data)
        self._relay = self._damaged_head = False
        self._last = None
        self._counted = 0
        log_format = record.state.format
        if isinstance(record.event, BinlogEvent) and log_format is not None and _is_guessed(log_format):
            self._note(record, "the log does not say its format; it is read as one of MySQL 4.0 or 4.1")

    def _leave(self) -> None:
        self._tell_counted()
        if self._open is None:
            self._check_end()
        else:
            message = f"the log ends within the transaction {self._open}"
            self._say_at_end(message, is_note=self._in_use or self._relay)

    def _say_at_end(self, message: str, *, is_note: bool) -> None:
        if is_note:
            self._say(f"{self._path}:{self._position}: note: {message}")
            self._notes += 1
        else:
            self._say(f"{self._path}:{self._position}: {message}")
            self.findings += 1

    def _check_error(self, record: LogRecord, error: BinlogError) -> None:
        """Say why an event cannot be read; once for all where it is for want of the same thing."""
        if not record.data:
            self._find(record, error.message)
        elif isinstance(error, MissingStateError) and record.state.format is None and not self._damaged_head:
            self._count(record, _NO_FORMAT)
        elif isinstance(error, UnsupportedError) and record.state.encryption is not None:
            self._count(record, error.message)
        else:
            self._find(record, error.message)
            if record.data[4] == EventType.FORMAT_DESCRIPTION_EVENT:
                self._damaged_head = True

    def _count(self, record: LogRecord, cause: str) -> None:
        """Count a finding that has the same cause as others; the first of the log gives place and cause."""
        if not self._counted:
            self._cause = f"{_place(record)}: {cause}"
        self._counted += 1

    def _tell_counted(self) -> None:
        if self._counted:
            self.findings += 1
            times = "once" if self._counted == 1 else f"{self._counted} times"
            self._say(f"{self._cause} ({times})")

    def _check_log(self, record: LogRecord, decoded: BinlogEvent) -> None:
        """See whether this is a relay log, and that no other log begins in the middle of this one."""
        event, header = decoded.event, decoded.header
        if isinstance(event, UnknownEvent):
            self._note_type(record, header.type_code)
        elif isinstance(event, RotateEvent):
            if header.next_position:
                self._next_file = event.new_log_ident
            if not header.next_position or header.flags & _ARTIFICIAL_F:
                self._relay = True  # relay logs hold the source's ROTATE and description
        elif record.position > len(MAGIC):
            if not record.sub_index and not self._relay:
                message = "another log begins here, with its own format description: files were joined"
                self._find(record, message)
            self._relay = self._relay or isinstance(event, FormatDescriptionEvent)

    def _check_end(self) -> None:
        """See whether the log ends as a server ends it: with ROTATE or STOP, unless it is in use."""
        last = self._last
        if last is None or not isinstance(last.event, BinlogEvent) or self._position != last.position:
            return  # what is wrong has been told
        log_format = last.state.format
        ended = isinstance(last.event.event, RotateEvent | StopEvent) or self._in_use or self._may_be_open
        if not ended and log_format is not None and log_format.binlog_version >= 4:
            message = (
                "the log ends without ROTATE or STOP, and is not marked as in use: "
                "what the server wrote after this event is missing"
            )
            self._say_at_end(message, is_note=self._relay)

    def _check_position(self, record: LogRecord, header: EventHeader) -> None:
        """Compare where an event ends; logs before v4 say other things, and not the same in all versions.

        In a relay log the positions are those of the source. MariaDB (11.4 on) says 0 in transactions.
        """
        log_format = record.state.format
        if log_format is None or log_format.binlog_version < 4 or self._relay:
            return
        expected = record.position + len(record.data) & _MASK
        if header.next_position == expected:
            return
        if header.next_position or "MariaDB" not in log_format.origin.version:
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
        if event.unpacked_size > self._max_rows and isinstance(event, CompressedRowsEvent):
            self._check_large_rows(record, event)
            return
        table: TableRows[Rows] | None = None
        try:
            table = self._rows.of(decoded, record.state)
            at = None if _are_sound(table.kernel, event.rows) else _first_difference(table.images, event.rows)
        except UnsupportedError as error:
            self._leave_unchecked(record, f"the rows cannot be read: {error.message}")
            return
        except BinlogError as error:
            # MariaDB's old temporal types with a fraction are longer, which stands in the catalog alone.
            say = self._leave_unchecked if table is not None and _has_old_temporals(table) else self._find
            say(record, f"the rows cannot be read: {error.message}")
            return
        if at is not None:
            self._find(record, f"the rows, encoded again, differ from byte {at} on")

    def _check_large_rows(self, record: LogRecord, event: CompressedRowsEvent) -> None:
        """Unpack rows that are too large to be held, and look no further."""
        try:
            for _ in event.row_pieces():
                pass
        except BinlogError as error:
            self._find(record, f"the rows cannot be read: {error.message}")
            return
        self._leave_unchecked(
            record,
            f"the rows unpack to {event.unpacked_size} bytes, and are not compared; up to {self._max_rows} "
            f"are; {MORE_BY_OPTION}",
        )

    def _note_type(self, record: LogRecord, type_code: int) -> None:
        """Note an unknown type, once for each log."""
        self.unchecked += 1
        if (record.path, type_code) not in self._told:
            self._told.add((record.path, type_code))
            self._note(record, f"event type {type_code} is not known; such events are kept as they are")

    def _find(self, record: LogRecord, message: str) -> None:
        if self._damaged_head:
            self._count(
                record, f"the format description is damaged, and what follows does not fit it: {message}"
            )
            return
        self.findings += 1
        self._say(f"{_place(record)}: {message}")

    def _note(self, record: LogRecord, message: str) -> None:
        self._notes += 1
        self._say(f"{_place(record)}: note: {message}")

    def _leave_unchecked(self, record: LogRecord, message: str) -> None:
        self.unchecked += 1
        self._note(record, message)

    def _say(self, line: str) -> None:
        self._write_line(printable(line))


def _is_guessed(log_format: LogFormat) -> bool:
    return isinstance(log_format.origin, StartEventV3) and not log_format.origin.version


def _has_old_temporals(table: TableRows[Rows]) -> bool:
    return any(column.type in FORMER_TYPES.values() for column in table.columns)


def _place(record: LogRecord) -> str:
    inside = f" (event {record.sub_index} inside)" if record.sub_index else ""
    return f"{record.path}:{record.position}{inside}"


_KEPT: Final = (
    NativeKind.SIGNED,
    NativeKind.UNSIGNED,
    NativeKind.UNSIGNED_DECIMAL,
    NativeKind.YEAR,
    NativeKind.BYTES,
    NativeKind.UTF8,
    NativeKind.MEMBER,
    NativeKind.MEMBERS,
    NativeKind.JSON,
)
"""Kinds whose bytes are always the same after they are decoded and encoded again."""
_VALUES: Final = {
    **dict.fromkeys(_KEPT, Value(TextKind.NOTHING)),
    NativeKind.DECIMAL: Value(TextKind.DECIMAL),
    NativeKind.DECIMAL_TEXT: Value(TextKind.DECIMAL),
    NativeKind.DATE: Value(TextKind.DATE, ord("-")),
    NativeKind.TIME: Value(TextKind.TIME),
    NativeKind.DATETIME: Value(TextKind.DATETIME),
    NativeKind.TIMESTAMP: Value(TextKind.TIMESTAMP),
}
"""What else the kernel can write has the same bytes again."""


class _OtherBytesError(BinlogError):
    """A value, decoded and encoded again, has other bytes."""


def _checked(codec: ColumnCodec) -> TextColumn:
    """Say how the kernel checks the values of a column."""

    def check(payload: Any) -> bytes:
        if codec.encode(codec.decode(payload)) != payload:
            raise _OtherBytesError("the value has other bytes")
        return b""

    return TextColumn(value_of(codec, _VALUES), check)


def _are_sound(kernel: Rows | None, packed: bytes) -> bool:
    """Return whether the kernel finds rows the same when they are encoded again."""
    try:
        return kernel is not None and kernel.count(packed) is not None
    except BinlogError:
        return False


def _first_difference(images: RowImages, packed: bytes) -> int | None:
    """Encode rows again; give the first byte that is another then, None where all are the same."""
    null_fill = images.null_fill(packed)
    rows = images.each(packed)
    start = 0
    while batch := list(islice(rows, _TOGETHER)):
        encoded = images.encode(batch, null_fill=null_fill)
        original = packed[start : start + len(encoded)]
        if encoded != original:
            return start + _difference(encoded, original)
        start += len(encoded)
    return None if start == len(packed) else start


def _difference(one: bytes, other: bytes) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )

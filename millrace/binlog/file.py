"""Cutting a binary log file into events, whole or in pieces.

A file is the magic ``fe 62 69 6e`` and then events, each with its own length (bytes 9 to 12 of its header,
in all versions). A log that is still being written, or was left by a crash, has the IN_USE flag in its format
description and may end in the middle of an event. Format: ``sql/binlog_istream.cc`` of MySQL.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from millrace.binlog.errors import BinlogError, InvalidValueError, TruncatedError, UnsupportedError
from millrace.binlog.header import V1_HEADER_LENGTH
from millrace.binlog.state import StreamState
from millrace.binlog.stream import BinlogEvent, decode_event
from millrace.binlog.types import EventType, HeaderFlag

__all__ = [
    "MAGIC",
    "EventPiece",
    "check_magic",
    "decode_file",
    "is_in_use",
    "iter_events",
    "iter_pieces",
]

MAGIC = b"\xfebin"
"""The first four bytes of a log; the first event starts behind them."""

_MYSQL_ENCRYPTED = b"\xfdbin"
_READ_SIZE = 1 << 20


def check_magic(found: bytes, log_file: str | None = None) -> None:
    """Raise unless ``found``, the first four bytes of a file, are those of a binary log."""
    if found == MAGIC:
        return
    if found == _MYSQL_ENCRYPTED:
        error: BinlogError = UnsupportedError(
            "the file was encrypted by MySQL (binlog_encryption=ON); read the log from the server instead"
        )
    elif len(found) < len(MAGIC):
        error = TruncatedError(
            f"a binary log begins with 4 bytes fe 62 69 6e; the file has {len(found)} bytes"
        )
    else:
        error = InvalidValueError(f"not a binary log: it begins with {found.hex(' ')}, not with fe 62 69 6e")
    raise error.at(log_file, 0)


def is_in_use(format_description: bytes) -> bool:
    """Tell from the raw first event whether its log was not closed: being written, or left by a crash."""
    if format_description[4] != EventType.FORMAT_DESCRIPTION_EVENT:
        return False
    return bool(int.from_bytes(format_description[17:19], "little") & HeaderFlag.BINLOG_IN_USE_F)


def _event_size(header: bytes | bytearray, offset: int, log_file: str | None, position: int) -> int:
    size = int.from_bytes(header[offset + 9 : offset + 13], "little")
    if size < V1_HEADER_LENGTH:
        message = f"an event says that it has {size} bytes, less than its header"
        raise InvalidValueError(message).at(log_file, position)
    return size


def _cut_short(size: int, found: int, log_file: str | None, position: int) -> TruncatedError:
    what = f"an event of {size} bytes" if size else "an event's header"
    return TruncatedError(f"the log ends in the middle of {what}, {found} bytes are there").at(
        log_file, position
    )


def iter_events(
    stream: BinaryIO, log_file: str | None = None, *, position: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Read a log and give the position and the bytes of each event.

    ``position`` is where in the log ``stream`` stands: 0 for its start, where the magic is checked, else the
    start of an event. Raises BinlogError for a file that is no binary log, an impossible length, or an end in
    the middle of an event; the events before that have been given by then.
    """
    if position == 0:
        check_magic(stream.read(len(MAGIC)), log_file)
        position = len(MAGIC)
    buffer = b""
    while chunk := stream.read(_READ_SIZE):
        buffer += chunk
        start, filled = 0, len(buffer)
        while filled - start >= V1_HEADER_LENGTH:
            size = int.from_bytes(buffer[start + 9 : start + 13], "little")
            if size < V1_HEADER_LENGTH:
                _event_size(buffer, start, log_file, position)
            end = start + size
            if end > filled:
                missing = end - filled
                rest = stream.read(missing) if missing > _READ_SIZE else b""
                if not rest:
                    break
                buffer = buffer[start:] + rest
                start, filled = 0, len(buffer)
                continue
            yield position, buffer[start:end]
            position += size
            start = end
        buffer = buffer[start:]
    if buffer:
        size = 0
        if len(buffer) >= V1_HEADER_LENGTH:
            size = _event_size(buffer, 0, log_file, position)
        raise _cut_short(size, len(buffer), log_file, position)


@dataclass(frozen=True, slots=True)
class EventPiece:
    """A run of bytes of one event: ``data`` stands at ``offset`` in the event of ``event_size`` bytes."""

    position: int
    event_size: int
    offset: int
    data: bytes

    @property
    def is_last(self) -> bool:
        """True on the piece with which the event ends."""
        return self.offset + len(self.data) == self.event_size


def iter_pieces(
    stream: BinaryIO, piece_size: int, log_file: str | None = None, *, position: int = 0
) -> Iterator[EventPiece]:
    """Read a log as :func:`iter_events` does, but events in pieces of at most ``piece_size`` bytes.

    Memory is bounded by the size of a piece, whatever the size of the events. ``piece_size`` must hold a
    header.
    """
    if piece_size < V1_HEADER_LENGTH:
        raise ValueError(f"a piece of {piece_size} bytes does not hold an event header")
    if position == 0:
        check_magic(stream.read(len(MAGIC)), log_file)
        position = len(MAGIC)
    while header := stream.read(V1_HEADER_LENGTH):
        if len(header) < V1_HEADER_LENGTH:
            raise _cut_short(0, len(header), log_file, position)
        size = _event_size(header, 0, log_file, position)
        offset, data = 0, header
        while True:
            wanted = min(piece_size, size - offset) - len(data)
            more = stream.read(wanted) if wanted else b""
            if len(more) < wanted:
                raise _cut_short(size, offset + len(data) + len(more), log_file, position)
            data += more
            yield EventPiece(position, size, offset, data)
            offset, data = offset + len(data), b""
            if offset == size:
                break
        position += size


def decode_file(
    stream: BinaryIO, log_file: str | None = None, *, state: StreamState | None = None, verify: bool = True
) -> Iterator[tuple[int, BinlogEvent]]:
    """Read and decode a log from its start: position and decoded event, one after the other.

    Raises BinlogError, with file and position, at the first event that cannot be decoded.
    """
    state = state or StreamState()
    for position, data in iter_events(stream, log_file):
        try:
            decoded = decode_event(data, state, verify=verify)
        except BinlogError as error:
            raise error.at(log_file, position) from None
        yield position, decoded

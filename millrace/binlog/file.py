"""Cutting a binary log file into events, whole or in pieces.

A file is the magic ``fe 62 69 6e`` and then events, each with its own length (bytes 9 to 12 of its header,
in all versions). A log that is still being written, or was left by a crash, has the IN_USE flag in its format
description and may end in the middle of an event. Format: ``sql/binlog_istream.cc`` of MySQL; how a log may
be encrypted is said in :mod:`millrace.binlog.encryption`.
"""

from collections.abc import Iterator
from typing import BinaryIO, Protocol

from millrace.binlog.checksum import CHECKSUM_LENGTH, compute_checksum
from millrace.binlog.encryption import (
    MYSQL_ENCRYPTED_MAGIC,
    MYSQL_ENCRYPTION_HEADER_LENGTH,
    LogKeys,
    MariadbDecryptor,
    MysqlDecryptor,
)
from millrace.binlog.errors import (
    BinlogError,
    InvalidValueError,
    TooLargeError,
    TruncatedError,
    UnsupportedError,
)
from millrace.binlog.event_codec import BinlogEvent, decode_event
from millrace.binlog.events.mariadb import StartEncryptionEvent
from millrace.binlog.header import HEADER_LENGTH, V1_HEADER_LENGTH
from millrace.binlog.state import StreamState
from millrace.binlog.types import EventType, HeaderFlag

__all__ = [
    "MAGIC",
    "MAX_EVENT_SIZE",
    "check_magic",
    "decode_file",
    "is_in_use",
    "iter_batches",
    "iter_events",
]

MAX_EVENT_SIZE = 1 << 30
"""The largest event that a server sends: that of the largest ``max_allowed_packet``."""

MAGIC = b"\xfebin"
"""The first four bytes of a log; the first event starts after them."""

_MAGIC_START = MAGIC[0]
_FORMAT_DESCRIPTION = bytes((EventType.FORMAT_DESCRIPTION_EVENT,))
_READ_SIZE = 1 << 18
_ANY_SIZE = 1 << 32
_START_ENCRYPTION_END = HEADER_LENGTH + 17


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def check_magic(found: bytes, log_file: str | None = None) -> None:
    """Raise unless ``found``, the first four bytes of a file, are those of a binary log."""
    if found == MAGIC:
        return
    if found == MYSQL_ENCRYPTED_MAGIC:
        error: BinlogError = UnsupportedError(
            "the file was encrypted by MySQL (binlog_encryption=ON); "
            "give the key of its keyring, or read the log from the server instead"
        )
    elif len(found) < len(MAGIC):
        error = TruncatedError(
            f"a binary log begins with 4 bytes fe 62 69 6e; the file has {len(found)} bytes"
        )
    else:
        error = InvalidValueError(f"not a binary log: it begins with {found.hex(' ')}, not with fe 62 69 6e")
    raise error.at(log_file, 0)


def is_in_use(format_description: bytes) -> bool:
    """Return whether the raw first event says that its log was not closed: in use, or left by a crash."""
    if format_description[4] != EventType.FORMAT_DESCRIPTION_EVENT:
        return False
    return bool(int.from_bytes(format_description[17:19], "little") & HeaderFlag.BINLOG_IN_USE_F)


def _size_of(header: bytes, offset: int = 0) -> int:
    return int.from_bytes(header[offset + 9 : offset + 13], "little")


def _too_small(size: int) -> InvalidValueError:
    return InvalidValueError(f"an event says that it has {size} bytes, less than its header")


def _refused(buffer: bytes, start: int, max_size: int) -> BinlogError | None:
    """Say why no event can be cut out where one is expected; None where one can."""
    if _begins_again(buffer, start):
        return InvalidValueError("another log begins here, magic bytes included: files were joined")
    size = _size_of(buffer, start)
    if size < V1_HEADER_LENGTH:
        return _too_small(size)
    if size > max_size:
        return TooLargeError(f"an event of {size} bytes; up to {max_size} are read")
    return None


def _cut_short(size: int, found: int, log_file: str | None, position: int) -> TruncatedError:
    what = f"an event of {size} bytes" if size else "an event's header"
    return TruncatedError(f"the log ends in the middle of {what}, {found} bytes are there").at(
        log_file, position
    )


def iter_events(
    stream: BinaryIO,
    log_file: str | None = None,
    *,
    position: int = 0,
    keys: LogKeys | None = None,
    max_size: int = _ANY_SIZE,
) -> Iterator[tuple[int, bytes]]:
    """Read a log and give the position and the bytes of each event.

    ``position`` is where in the log ``stream`` stands: 0 for its start, where the magic is checked, else the
    start of an event. Positions count on beyond 4 GiB, where those in the events' headers do not.

    With ``keys`` an encrypted log, read from its start, is given as the server would send it: plain, at the
    positions of the plain log, and with IGNORABLE_F set in START_ENCRYPTION. Without them the events after
    START_ENCRYPTION (MariaDB) are given as they are, and a file of MySQL is refused.

    Raises BinlogError for a file that is no binary log, an impossible length, an end in the middle of an
    event, one of more than ``max_size`` bytes, or a key that is not there; the events before that have been
    given by then.
    """
    for batch in iter_batches(stream, log_file, position=position, keys=keys, max_size=max_size):
        yield from batch


def iter_batches(
    stream: BinaryIO,
    log_file: str | None = None,
    *,
    position: int = 0,
    keys: LogKeys | None = None,
    max_size: int = _ANY_SIZE,
) -> Iterator[list[tuple[int, bytes]]]:
    """Read a log as :func:`iter_events` does, and give those events together that are there at once.

    None waits for what comes after it, and together they take little more memory than one of them may.
    """
    if keys is None:
        return _cut(stream, log_file, position, max_size)
    return _decrypted(stream, log_file, position, keys, max_size)


def _cut(
    stream: _Readable, log_file: str | None, position: int, max_size: int
) -> Iterator[list[tuple[int, bytes]]]:
    if position == 0:
        check_magic(stream.read(len(MAGIC)), log_file)
        position = len(MAGIC)
    buffer = b""
    while chunk := stream.read(_READ_SIZE):
        buffer += chunk
        start, filled = 0, len(buffer)
        batch: list[tuple[int, bytes]] = []
        error = None
        while filled - start >= V1_HEADER_LENGTH:
            size = int.from_bytes(buffer[start + 9 : start + 13], "little")
            end = start + size
            if buffer[start] == _MAGIC_START or not V1_HEADER_LENGTH <= size <= max_size:
                error = _refused(buffer, start, max_size)
                if error is not None:
                    break
            if end > filled:
                if batch:
                    yield batch
                    batch = []
                buffer = _completed(buffer[start:], size, stream)
                start, filled, end = 0, len(buffer), size
                if filled < size:
                    break
            batch.append((position, buffer[start:end]))
            position += size
            start = end
        if batch:
            yield batch
        if error is not None:
            raise error.at(log_file, position)
        buffer = buffer[start:]
    if buffer:
        size = _size_of(buffer) if len(buffer) >= V1_HEADER_LENGTH else 0
        raise _cut_short(size, len(buffer), log_file, position)


def _begins_again(buffer: bytes, start: int) -> bool:
    """Return whether magic bytes and a format description follow, where an event is expected."""
    head = start + len(MAGIC)
    return (
        buffer.startswith(MAGIC, start)
        and buffer[head + 4 : head + 5] == _FORMAT_DESCRIPTION
        and buffer[head + HEADER_LENGTH : head + HEADER_LENGTH + 2] == b"\x04\0"
    )


def _completed(head: bytes, size: int, stream: _Readable) -> bytes:
    """Read the rest of an event; not at once, for its size may promise what is not there."""
    parts, missing = [head], size - len(head)
    while missing and (part := stream.read(min(missing, _READ_SIZE))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _decrypted(
    stream: BinaryIO, log_file: str | None, position: int, keys: LogKeys, max_size: int
) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the events of a log that may be encrypted, as :func:`iter_events` says."""
    plain: _Readable = stream
    if position == 0:
        magic = stream.read(len(MAGIC))
        if magic == MYSQL_ENCRYPTED_MAGIC:
            plain = _plain_file(stream, log_file, keys)
            magic = plain.read(len(MAGIC))
            if magic != MAGIC:
                message = "the key given does not fit: what it decrypts is not a binary log"
                raise InvalidValueError(message).at(log_file, 0)
        check_magic(magic, log_file)
        position = len(MAGIC)
    decryptor = None
    for batch in _cut(plain, log_file, position, max_size):
        given: list[tuple[int, bytes]] = []
        for at, data in batch:
            try:
                if decryptor is not None:
                    given.append((at, decryptor.decrypt(data, at)))
                elif _starts_encryption(data):
                    given.append((at, _ignorable(data)))
                    decryptor = MariadbDecryptor(_start_of(data), keys)
                else:
                    given.append((at, data))
            except BinlogError as error:
                if given:
                    yield given
                raise error.at(log_file, at) from None
        yield given


class _PlainFile:
    """A file of MySQL after its encryption header, decrypted as it is read."""

    def __init__(self, stream: BinaryIO, decryptor: MysqlDecryptor) -> None:
        self._stream = stream
        self._decryptor = decryptor

    def read(self, size: int, /) -> bytes:
        return self._decryptor.update(self._stream.read(size))


def _plain_file(stream: BinaryIO, log_file: str | None, keys: LogKeys) -> _PlainFile:
    header = MYSQL_ENCRYPTED_MAGIC
    while len(header) < MYSQL_ENCRYPTION_HEADER_LENGTH:
        more = stream.read(MYSQL_ENCRYPTION_HEADER_LENGTH - len(header))
        if not more:
            break
        header += more
    try:
        return _PlainFile(stream, MysqlDecryptor(header, keys))
    except BinlogError as error:
        raise error.at(log_file, 0) from None


def _starts_encryption(data: bytes) -> bool:
    """Return whether the events after this one are encrypted; a server that decrypts says IGNORABLE_F."""
    if data[4] != EventType.START_ENCRYPTION_EVENT or len(data) < HEADER_LENGTH:
        return False
    return not data[17] & HeaderFlag.IGNORABLE_F


def _start_of(data: bytes) -> StartEncryptionEvent:
    return StartEncryptionEvent.decode_fields(data, HEADER_LENGTH, min(_START_ENCRYPTION_END, len(data)), 0)


def _ignorable(data: bytes) -> bytes:
    """Set IGNORABLE_F in a START_ENCRYPTION, and compute its checksum again if it has one."""
    marked = data[:17] + bytes([data[17] | HeaderFlag.IGNORABLE_F]) + data[18:]
    if len(marked) != _START_ENCRYPTION_END + CHECKSUM_LENGTH:
        return marked
    bare = marked[:-CHECKSUM_LENGTH]
    return bare + compute_checksum(bare)


def decode_file(
    stream: BinaryIO,
    log_file: str | None = None,
    *,
    state: StreamState | None = None,
    verify: bool = True,
    keys: LogKeys | None = None,
) -> Iterator[tuple[int, BinlogEvent]]:
    """Read and decode a log from its start: position and decoded event, one after the other.

    ``keys`` are those of an encrypted log. Raises BinlogError, with file and position, at the first event
    that cannot be decoded.
    """
    state = state or StreamState()
    for position, data in iter_events(stream, log_file, keys=keys):
        if position == len(MAGIC):
            state.begin_file(data)
        try:
            decoded = decode_event(data, state, verify=verify)
        except BinlogError as error:
            raise error.at(log_file, position) from None
        yield position, decoded

"""Logs of a few kilobytes that unpack to much: most of what is packed is zeros that nobody had to pack."""

import zlib
from typing import Final

from millrace.binlog.declaration import Event
from millrace.binlog.events import (
    QueryCompressedEvent,
    QueryEvent,
    RotateEvent,
    StatusVariables,
    TableMapEvent,
    TransactionPayloadEvent,
    UserVarEvent,
    WriteRowsCompressedEventV1,
    WriteRowsEvent,
    XidEvent,
)
from millrace.binlog.file import MAGIC
from tests.unit.binlog_command.made_logs import MadeLog

__all__ = [
    "BLOB",
    "MARIADB",
    "MYSQL",
    "TABLE",
    "Part",
    "blob_row",
    "compressed_query",
    "compressed_rows",
    "file_of",
    "hollow",
    "payload",
    "query",
    "rows",
    "transaction",
    "user_variable",
    "zstd",
]

MYSQL: Final = "8.0.30"
MARIADB: Final = "11.4.5-MariaDB"

_BLOCK: Final = 128 << 10
_PIECE: Final = 1 << 20
_MODULUS: Final = 65521

Part = bytes | int
"""Bytes, or how many zeros."""


def _size(*parts: Part) -> int:
    return sum(part if isinstance(part, int) else len(part) for part in parts)


def zstd(*parts: Part) -> bytes:
    """Write a frame of zstd: zeros are blocks of one byte that is repeated (RFC 8878)."""
    out = [b"\x28\xb5\x2f\xfd\x00\x38"]  # neither size nor checksum, a window of 128 KiB
    for part in parts:
        if isinstance(part, bytes):
            for at in range(0, len(part), _BLOCK):
                piece = part[at : at + _BLOCK]
                out.append((len(piece) << 3).to_bytes(3, "little") + piece)
        else:
            full, rest = divmod(part, _BLOCK)
            out.append(((_BLOCK << 3 | 2).to_bytes(3, "little") + b"\0") * full)
            out.append((rest << 3 | 2).to_bytes(3, "little") + b"\0" if rest else b"")
    return b"".join(out) + b"\1\0\0"


def deflated(*parts: Part) -> bytes:
    """Write a stream of zlib."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = engine.compress(bytes(_PIECE)) + engine.flush(zlib.Z_FULL_FLUSH)
    megabyte = engine.compress(bytes(_PIECE)) + engine.flush(zlib.Z_FULL_FLUSH)
    assert packed == megabyte
    out = [b"\x78\xda"]
    low, high = 1, 0
    for part in parts:
        if isinstance(part, bytes):
            piece = part
        else:
            full, rest = divmod(part, _PIECE)
            out.append(megabyte * full)
            high = (high + full * _PIECE * low) % _MODULUS
            piece = bytes(rest)
        out.append(engine.compress(piece) + engine.flush(zlib.Z_FULL_FLUSH))
        check = zlib.adler32(piece, high << 16 | low)
        low, high = check & 0xFFFF, check >> 16
    return b"".join(out) + engine.flush() + (high << 16 | low).to_bytes(4, "big")


def record(*parts: Part) -> bytes:
    """Write what MariaDB packs a statement or rows into."""
    return b"\x84" + _size(*parts).to_bytes(4, "big") + deflated(*parts)


def hollow(event: Event, zeros: int, version: str = MYSQL) -> tuple[Part, ...]:
    """Write an event without checksum, with so many zeros after it that count as its own."""
    log = MadeLog(version)
    data = log.add(event).events[-1][1]
    if log.state.format is not None and log.state.format.checksum:
        data = data[:-4]
    size = len(data) + zeros
    return data[:9] + size.to_bytes(4, "little") + data[13:], zeros


def payload(*parts: Part) -> TransactionPayloadEvent:
    return TransactionPayloadEvent(0, _size(*parts), zstd(*parts))


def query(text: bytes = b"DO '") -> QueryEvent:
    return QueryEvent(9, 0, 0, StatusVariables(), "shop", text)


def user_variable(size: int, version: str = "5.6.51") -> tuple[Part, ...]:
    """A user variable whose value has so many zeros; its last byte is the value's too."""
    value = (size).to_bytes(4, "little")
    data = hollow(UserVarEvent("v", 0, 0, 33, b"", None), 0, version)[0]
    assert isinstance(data, bytes)
    data = data[:-4] + value
    return data[:9] + (len(data) + size).to_bytes(4, "little") + data[13:], size


def compressed_query(size: int) -> QueryCompressedEvent:
    return QueryCompressedEvent(9, 0, 0, StatusVariables(), "shop", record(b"DO '", size - 4))


TABLE: Final = TableMapEvent(7, 1, "shop", "t", b"\3", b"", b"\1")
"""A table of one column, INT NULL."""

BLOB: Final = TableMapEvent(8, 1, "shop", "b", b"\xfc", b"\4", b"\1")
"""A table of one column, LONGBLOB NULL."""


def compressed_rows(*parts: Part, table: TableMapEvent = TABLE) -> WriteRowsCompressedEventV1:
    return WriteRowsCompressedEventV1(table.table_id, 1, b"", 1, b"", b"\1", record(*parts))


def rows(data: bytes, table: TableMapEvent = TABLE) -> WriteRowsEvent:
    return WriteRowsEvent(table.table_id, 1, b"", 1, b"", b"\1", data)


def transaction(log: MadeLog, *events: Event) -> MadeLog:
    """Append a transaction, and an end of the log."""
    log.query("BEGIN").add(*events)
    log.add(XidEvent(1))
    return log.add(RotateEvent(4, "bin.000002"))


def file_of(log: MadeLog) -> bytes:
    return MAGIC + b"".join(data for _, data in log.events)


def blob_row(size: int) -> tuple[bytes, int]:
    """A row of the table BLOB, its bytes all zeros."""
    return b"\0" + size.to_bytes(4, "little"), size

"""The checksum after an event: CRC-32 (zlib's), 4 bytes little-endian, over everything before it.

Of a format description the IN_USE flag is left out of account: a server sets it in the file while the log is
open and does not recompute the checksum. Format: ``Log_event_footer`` in MySQL's
``libs/mysql/binlog/event/binlog_event.cpp``.
"""

import zlib

from millrace.binlog.errors import ChecksumError
from millrace.binlog.header import FLAGS_OFFSET
from millrace.binlog.types import EventType, HeaderFlag

__all__ = [
    "CHECKSUM_LENGTH",
    "CRC32_RESIDUE",
    "checksum_matches",
    "compute_checksum",
    "verify_checksum",
    "with_checksum",
]

CHECKSUM_LENGTH = 4
"""Bytes that a checksum takes."""

CRC32_RESIDUE = 0x2144DF1C
"""CRC-32 of any bytes followed by their own CRC-32, little-endian."""

_crc32 = zlib.crc32


def _without_in_use(data: bytes) -> bytes:
    flags = data[FLAGS_OFFSET] & ~HeaderFlag.BINLOG_IN_USE_F
    return data[:FLAGS_OFFSET] + bytes([flags]) + data[FLAGS_OFFSET + 1 :]


def compute_checksum(data: bytes) -> bytes:
    """Compute the checksum of an event that has none yet; ``data`` is header, post-header and body."""
    if len(data) > FLAGS_OFFSET and data[4] == EventType.FORMAT_DESCRIPTION_EVENT:
        data = _without_in_use(data)
    return _crc32(data).to_bytes(CHECKSUM_LENGTH, "little")


def with_checksum(data: bytes) -> bytes:
    """Return an event that has none, as one inside a payload, with its checksum and its new length."""
    data = data[:9] + (len(data) + CHECKSUM_LENGTH).to_bytes(4, "little") + data[13:]
    return data + compute_checksum(data)


def checksum_matches(data: bytes) -> bool:
    """Return whether the last four bytes of an event are the checksum of those before them."""
    if _crc32(data) == CRC32_RESIDUE:
        return True
    if len(data) <= FLAGS_OFFSET or data[4] != EventType.FORMAT_DESCRIPTION_EVENT:
        return False
    return _crc32(_without_in_use(data)) == CRC32_RESIDUE


def verify_checksum(data: bytes) -> None:
    """Raise ChecksumError unless the event's checksum, its last four bytes, matches."""
    if not checksum_matches(data):
        found, computed = data[-CHECKSUM_LENGTH:], compute_checksum(data[:-CHECKSUM_LENGTH])
        raise ChecksumError(
            f"checksum {int.from_bytes(found, 'little'):#010x} does not match the bytes, "
            f"which have {int.from_bytes(computed, 'little'):#010x}"
        )

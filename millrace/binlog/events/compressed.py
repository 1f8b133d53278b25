"""The compressed record in which MariaDB packs statements and row images, zlib after a small header.

Format: ``binlog_buf_compress`` and ``binlog_buf_uncompress`` in MariaDB's ``sql/log_event.cc``.
"""

import zlib
from collections.abc import Iterator

from millrace.binlog.errors import BinlogError, InvalidValueError, TruncatedError, UnsupportedError
from millrace.binlog.inflate import inflate, inflate_pieces

__all__ = ["decompress_beginning", "decompress_pieces", "decompress_record", "unpacked_size"]


def unpacked_size(record: bytes) -> int:
    """Return the size that a compressed record says its content has; it never unpacks to more.

    0 where it cannot be unpacked.
    """
    try:
        return _head(record)[0]
    except BinlogError:
        return 0


def decompress_beginning(record: bytes, size: int) -> bytes:
    """Unpack the first ``size`` bytes of a compressed record; raises as :func:`decompress_record`."""
    if unpacked_size(record) <= size:
        return decompress_record(record)
    _, start = _head(record)
    try:
        return inflate(record[start:], size)[:size]
    except zlib.error as error:
        raise InvalidValueError(f"a compressed record cannot be unpacked: {error}") from error


def decompress_record(record: bytes) -> bytes:
    """Unpack a compressed record.

    Its first byte is 0x80 + algorithm x 0x10 + bytes of the length; the length of what was compressed
    follows, big-endian, then a zlib stream. Raises MalformedError where the record is not that.
    """
    size, start = _head(record)
    try:
        content = inflate(record[start:], size)
    except zlib.error as error:
        raise InvalidValueError(f"a compressed record cannot be unpacked: {error}") from error
    if len(content) < size:
        raise TruncatedError(f"a compressed record ends after {len(content)} of {size} bytes")
    if len(content) > size:
        raise InvalidValueError(f"a compressed record says {size} bytes and unpacks to more")
    return content


def decompress_pieces(record: bytes) -> Iterator[bytes]:
    """Unpack a compressed record piece by piece; raises as :func:`decompress_record`, at the end at last."""
    size, start = _head(record)
    found = 0
    try:
        for piece in inflate_pieces(record[start:], size):
            found += len(piece)
            if found > size:
                raise InvalidValueError(f"a compressed record says {size} bytes and unpacks to more")
            yield piece
    except zlib.error as error:
        raise InvalidValueError(f"a compressed record cannot be unpacked: {error}") from error
    if found < size:
        raise TruncatedError(f"a compressed record ends after {found} of {size} bytes")


def _head(record: bytes) -> tuple[int, int]:
    """Return the size of the content, and where the zlib stream starts."""
    if not record or not record[0] & 0x80:
        raise InvalidValueError("a compressed record starts with a byte that has its highest bit set")
    algorithm, length_size = record[0] >> 4 & 7, record[0] & 7
    if algorithm:
        raise UnsupportedError(f"compression algorithm {algorithm}; 0, zlib, is the only one that is known")
    if length_size > 4:
        raise InvalidValueError(f"the length of a compressed record takes 1 to 4 bytes, not {length_size}")
    return int.from_bytes(record[1 : 1 + length_size], "big"), 1 + length_size

"""Rows as a server sends them in answer to SELECT: packets of the text protocol."""

from collections.abc import Iterable, Sequence

__all__ = ["END", "packets"]

END = b"\5\0\0\xfe\xfe\0\0\2\0"
"""The end of the rows."""


def packets(rows: Iterable[Sequence[bytes | None]], number: int = 0) -> bytes:
    """Make the packets of rows, of which the first has a number."""
    found = b""
    for row in rows:
        payload = b"".join(b"\xfb" if value is None else _sized(value) for value in row)
        found += len(payload).to_bytes(3, "little") + bytes([number]) + payload
        number = (number + 1) % 256
    return found


def _sized(value: bytes) -> bytes:
    size = len(value)
    if size < 0xFB:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    return b"\xfd" + size.to_bytes(3, "little") + value

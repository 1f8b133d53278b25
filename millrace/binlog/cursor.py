"""A position in a run of bytes, with every step checked against its end.

A slice of Python bytes that reaches past the end is silently short. All decoding outside the per-row hot
path therefore goes through :class:`Cursor`, which raises :class:`TruncatedError` instead. Integers are
little-endian, as everywhere in the binary log, unless a method says otherwise.
"""

import builtins
import struct

from millrace.binlog.errors import TrailingBytesError, TruncatedError
from millrace.binlog.fields import read_lenenc

__all__ = ["Cursor"]

_U32 = struct.Struct("<I")


class Cursor:
    """Reads ``data[position:end]`` front to back; ``position`` and ``end`` are offsets in ``data``."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        """Number of bytes not yet read."""
        return self.end - self.position

    def take(self, size: int, what: str = "field") -> int:
        """Step over ``size`` bytes and return the offset at which they start."""
        start = self.position
        if size < 0 or size > self.end - start:
            raise TruncatedError(f"{what} needs {size} bytes at offset {start}, {self.end - start} are left")
        self.position = start + size
        return start

    def bytes(self, size: int, what: str = "field") -> bytes:
        """Read ``size`` bytes."""
        start = self.take(size, what)
        return self.data[start : start + size]

    def rest(self) -> builtins.bytes:
        """Read everything up to the end."""
        return self.bytes(self.remaining)

    def u8(self, what: str = "uint8") -> int:
        """Read an unsigned integer of 1 byte."""
        return self.data[self.take(1, what)]

    def u32(self) -> int:
        """Read an unsigned integer of 4 bytes."""
        value: int = _U32.unpack_from(self.data, self.take(4, "uint32"))[0]
        return value

    def lenenc(self, what: str = "length-encoded integer") -> int:
        """Read MySQL's length-encoded integer: see :func:`~millrace.binlog.fields.read_lenenc`."""
        value, self.position = read_lenenc(self.data, self.position, self.end, what)
        return value

    def sub(self, size: int, what: str = "block") -> "Cursor":
        """Open a cursor on the next ``size`` bytes; call its :meth:`expect_end` when they are read."""
        start = self.take(size, what)
        return Cursor(self.data, start, start + size)

    def expect_end(self, what: str = "event") -> None:
        """Raise :class:`TrailingBytesError` unless everything has been read."""
        if self.position != self.end:
            raise TrailingBytesError(f"{self.end - self.position} bytes are left over after the {what}")

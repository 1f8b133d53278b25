"""Unpacking what MariaDB compresses with zlib, whose size stands in front of it, in bounded memory."""

import zlib
from collections.abc import Iterator
from typing import Final

__all__ = ["MAX_UNPACKED", "Room", "inflate", "inflate_pieces"]

_PIECE: Final = 1 << 20

MAX_UNPACKED: Final = 1 << 30
"""The largest ``max_allowed_packet``: no value is larger. A megabyte may unpack to as much."""


def inflate(packed: bytes, size: int, *, header: bool = True) -> bytes:
    """Unpack ``packed``, up to ``size`` bytes and one more where there is more.

    Raises zlib.error where it is damaged.
    """
    engine = zlib.decompressobj(zlib.MAX_WBITS if header else -zlib.MAX_WBITS)
    return engine.decompress(packed, size + 1)


def inflate_pieces(packed: bytes, size: int) -> Iterator[bytes]:
    """Unpack ``packed`` piece by piece, up to ``size`` bytes and one more where there is more.

    Raises zlib.error where it is damaged; the pieces in front of that have been yielded by then.
    """
    engine = zlib.decompressobj()
    left = size + 1
    while left and not engine.eof:
        piece = engine.decompress(packed, min(left, _PIECE))
        packed = engine.unconsumed_tail
        if not piece:
            return
        left -= len(piece)
        yield piece


class Room:
    """How much the compressed values of one event may still unpack to."""

    __slots__ = ("left",)

    def __init__(self, size: int) -> None:
        self.left = size

    def takes(self, size: int) -> bool:
        """Return whether that much more fits, and take note of it."""
        fits = size <= self.left
        self.left -= size * fits
        return fits

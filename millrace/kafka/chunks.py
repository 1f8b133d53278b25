"""Events larger than a record may be: split over records of one key, and joined again.

Each piece carries the header ``chunk: i/n``, i from 0. The pieces of an event lie one after the other where
a topic has one writer, as all have but that of the dead letters; reading can begin again at the first of
them. What is too large to be held is not joined: :class:`BoundedJoiner` says where its pieces lie, and they
are read again, one after the other.
"""

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.contract import HEADER_CHUNK

Headers = Sequence[tuple[str, bytes]]

HELD_BYTES: Final = 16 * 1024 * 1024
"""What a service joins in memory; larger values are read piece by piece."""

_TAIL: Final = 4

Reread = Callable[[int, int], Generator[bytes, None, None]]
"""Reads the values of the records from one offset to before another again."""


class ChunkError(ValueError):
    """Chunks of an event do not belong together, or one is missing."""


def chunk_header(index: int, count: int) -> tuple[str, bytes]:
    """Return the header of piece ``index``, counted from 0, of ``count``."""
    return HEADER_CHUNK, b"%d/%d" % (index, count)


def split(value: bytes, limit: int) -> Iterator[tuple[tuple[str, bytes] | None, bytes]]:
    """Cut ``value`` into pieces of at most ``limit`` bytes, each with its header; none where it fits."""
    if len(value) <= limit:
        yield None, value
        return
    count = -(-len(value) // limit)
    for index in range(count):
        yield chunk_header(index, count), value[index * limit : (index + 1) * limit]


def split_parts(
    parts: Iterable[bytes], size: int, limit: int
) -> Iterator[tuple[tuple[str, bytes] | None, bytes]]:
    """Cut a value that comes in parts, of ``size`` bytes together, as :func:`split` cuts it whole."""
    count = max(1, -(-size // limit))
    given = 0
    for index, piece in enumerate(recut(parts, limit)):
        given += len(piece)
        yield (chunk_header(index, count) if count > 1 else None), piece
    if given != size:
        raise ChunkError(f"a value of {size} bytes came as {given} bytes")


def between(pieces: Iterable[bytes], start: int, size: int) -> Iterator[bytes]:
    """Yield the ``size`` bytes from ``start`` on of what comes in pieces, as it comes."""
    at, end = 0, start + size
    for piece in pieces:
        if at >= end:
            return
        part = piece[max(0, start - at) : end - at]
        if part:
            yield part
        at += len(piece)


def recut(parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of ``size`` bytes, the last one excepted."""
    held = bytearray()
    for part in parts:
        held += part
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


@dataclass(frozen=True, slots=True)
class LargeValue:
    """A value that is too large to be held.

    Its pieces are the records from offset ``start`` to before ``stop``. ``head`` is the first of them,
    ``tail`` the last four bytes of the value, ``crc32`` the CRC-32 of all its ``size`` bytes.
    """

    start: int
    stop: int
    size: int
    head: bytes
    tail: bytes
    crc32: int


class _Order:
    """Checks that pieces come in their order.

    ``first_offset`` is the offset of the first piece of the event at hand, from which reading begins again
    after a restart, or None between events; ``key`` is its key.
    """

    def __init__(self) -> None:
        self.first_offset: int | None = None
        self.key: bytes | None = None
        self._count = self._next = 0

    def _take(self, key: bytes, header: bytes, offset: int) -> bool:
        """Take note of a piece; tell whether it is the last one."""
        try:
            index, count = (int(number) for number in header.split(b"/"))
        except ValueError:
            raise ChunkError(f"the header chunk is {header!r}, expected i/n") from None
        if not 0 <= index < count:
            raise ChunkError(f"the header chunk is {header!r}: the first number must be below the second")
        if self.first_offset is None:
            if index != 0:
                raise ChunkError(f"chunk {index} of {count} comes without those before it")
            self.key, self._count, self._next, self.first_offset = key, count, 0, offset
        elif key != self.key or count != self._count or index != self._next:
            raise ChunkError(
                f"chunk {self._next} of {self._count} of {self.key!r} is missing: "
                f"chunk {index} of {count} of {key!r} is in its place"
            )
        self._next += 1
        return index + 1 == count

    def reset(self) -> None:
        """Forget the event at hand."""
        self.first_offset = self.key = None
        self._count = self._next = 0


class ChunkJoiner(_Order):
    """Puts the pieces of one event after the other together."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    @property
    def pieces(self) -> Sequence[bytes]:
        """The pieces of the event at hand."""
        return self._pieces

    def feed(self, key: bytes, header: bytes, value: bytes, offset: int) -> bytes | None:
        """Take one piece; give the whole value with the last one.

        Raises :class:`ChunkError` where the piece is not the one that must follow; the event at hand is kept,
        to be looked at and then dropped with :meth:`reset`.
        """
        last = self._take(key, header, offset)
        self._pieces.append(value)
        if not last:
            return None
        whole = b"".join(self._pieces)
        self.reset()
        return whole

    def reset(self) -> None:
        """Forget the event at hand."""
        super().reset()
        self._pieces = []


class BoundedJoiner(_Order):
    """Puts pieces together as :class:`ChunkJoiner` does, up to ``held_bytes``.

    Of a larger value it keeps the first piece alone.
    """

    def __init__(self, held_bytes: int = HELD_BYTES) -> None:
        super().__init__()
        self._held_bytes = held_bytes
        self._pieces: list[bytes] = []
        self._stop = self._size = self._crc32 = 0
        self._tail = b""

    def feed(self, key: bytes, header: bytes, value: bytes, offset: int) -> bytes | LargeValue | None:
        """Take one piece; give the value with the last one. Raises as :meth:`ChunkJoiner.feed` does."""
        last = self._take(key, header, offset)
        self._size += len(value)
        if self._size <= self._held_bytes or not self._pieces:
            self._pieces.append(value)
        else:
            del self._pieces[1:]
        self._stop = offset + 1
        self._crc32 = zlib.crc32(value, self._crc32)
        self._tail = (self._tail + value[-_TAIL:])[-_TAIL:]
        return self.drop() if last else None

    def drop(self) -> bytes | LargeValue:
        """Return what there is of the value at hand, and forget it."""
        found: bytes | LargeValue
        if self._size <= self._held_bytes:
            found = b"".join(self._pieces)
        else:
            assert self.first_offset is not None
            found = LargeValue(
                self.first_offset, self._stop, self._size, self._pieces[0], self._tail, self._crc32
            )
        self.reset()
        return found

    def reset(self) -> None:
        """Forget the event at hand."""
        super().reset()
        self._pieces = []
        self._stop = self._size = self._crc32 = 0
        self._tail = b""

"""Events larger than a record may be: split over records of one key, and joined again.

Each piece carries the header ``chunk: i/n``, i from 0. The pieces of an event lie one behind the other, since
a topic has one writer; reading can begin again at the first of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.contract import HEADER_CHUNK

__all__ = ["ChunkError", "ChunkJoiner", "chunk_header", "split"]

Headers = Sequence[tuple[str, bytes]]


class ChunkError(ValueError):
    """Pieces of an event that do not belong together, or of which one is missing."""


def chunk_header(index: int, count: int) -> tuple[str, bytes]:
    """Give the header of piece ``index``, counted from 0, of ``count``."""
    return HEADER_CHUNK, b"%d/%d" % (index, count)


def split(value: bytes, limit: int) -> Iterator[tuple[tuple[str, bytes] | None, bytes]]:
    """Cut ``value`` into pieces of at most ``limit`` bytes, each with its header; none where it fits."""
    if len(value) <= limit:
        yield None, value
        return
    count = -(-len(value) // limit)
    for index in range(count):
        yield chunk_header(index, count), value[index * limit : (index + 1) * limit]


@dataclass(slots=True)
class ChunkJoiner:
    """Puts the pieces of one event after the other together.

    ``first_offset`` is the offset of the first piece of the event at hand, from which reading begins again
    after a restart, or None between events.
    """

    first_offset: int | None = None
    _key: bytes | None = None
    _count: int = 0
    _pieces: list[bytes] | None = None

    @property
    def pieces(self) -> Sequence[bytes]:
        """The pieces of the event at hand."""
        return self._pieces or ()

    @property
    def key(self) -> bytes | None:
        """The key of the event at hand."""
        return self._key

    def feed(self, key: bytes, header: bytes, value: bytes, offset: int) -> bytes | None:
        """Take one piece; give the whole value with the last one.

        Raises :class:`ChunkError` where the piece is not the one that must follow; the event at hand is kept,
        to be looked at and then dropped with :meth:`reset`.
        """
        try:
            index, count = (int(number) for number in header.split(b"/"))
        except ValueError:
            raise ChunkError(f"the header chunk is {header!r}, expected i/n") from None
        if not 0 <= index < count:
            raise ChunkError(f"the header chunk is {header!r}: the first number must be below the second")
        if self._pieces is None:
            if index != 0:
                raise ChunkError(f"chunk {index} of {count} comes without those before it")
            self._key, self._count, self._pieces, self.first_offset = key, count, [], offset
        elif key != self._key or count != self._count or index != len(self._pieces):
            raise ChunkError(
                f"chunk {len(self._pieces)} of {self._count} of {self._key!r} is missing: "
                f"chunk {index} of {count} of {key!r} is in its place"
            )
        self._pieces.append(value)
        if index + 1 < count:
            return None
        whole = b"".join(self._pieces)
        self.reset()
        return whole

    def reset(self) -> None:
        """Forget the event at hand."""
        self.first_offset = self._key = self._pieces = None
        self._count = 0

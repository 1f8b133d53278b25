"""Events that do not come whole, or are too large for a record: cut into chunks as they come."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from millrace.contract import HEADER_CHECKSUM
from millrace.kafka.chunks import chunk_header, split
from millrace.reader.exclusion import EXCLUDED, BlankEvent
from millrace.stage import Headers

BAD_CHECKSUM: Final = (HEADER_CHECKSUM, b"bad")
"""Header of the last record of an event whose checksum does not match."""

Chunk = tuple[bytes, Headers]


@dataclass(slots=True)
class AlreadyWritten:
    """What was written before this session and comes again: all before a position, and some chunks there.

    ``crc32`` is that of what these chunks hold. Where it is another one, the event is written again, from its
    first chunk on.
    """

    log_file: str = ""
    position: int = 0
    chunks: int = 0
    crc32: int = 0

    def take_chunks(self) -> tuple[int, int]:
        """Return the chunks of the next event that are written, and their CRC-32; of later ones none are."""
        taken = self.chunks, self.crc32
        self.chunks = self.crc32 = 0
        return taken


class OtherBytesError(Exception):
    """An event that comes again has other bytes than when its first chunks were written."""

    def __init__(self, log_file: str, position: int) -> None:
        super().__init__(f"{log_file} at {position}: the event has other bytes than its first chunks")


@dataclass(slots=True)
class CutEvent:
    """An event that comes in pieces; ``limit`` bytes of it make a chunk.

    ``blank``, where its rows are left out, is written in its place. ``written`` counts its chunks in the raw
    topic, ``written_crc32`` is that of what they hold.
    """

    log_file: str
    position: int
    key: bytes
    type_code: int
    server_id: int
    head: bytes
    timestamp_ms: int
    size: int
    limit: int
    discard: bool
    blank: BlankEvent | None = None
    written: int = 0
    written_crc32: int = 0
    crc32: int = 0
    """CRC-32 of all that has come of it."""
    _index: int = 0
    _buffer: bytearray = field(default_factory=bytearray)
    _chunks_crc32: int = 0

    def take(self, data: bytes) -> Iterator[Chunk]:
        """Take a piece; give the chunks that are whole, those that are written and the last one left out.

        Raises :class:`OtherBytesError` where those that are written are not the ones that come.
        """
        self.crc32 = zlib.crc32(data, self.crc32)
        if self.discard:
            return
        self._buffer += data if self.blank is None else self.blank.take(len(data))
        while len(self._buffer) > self.limit:
            yield from self._chunk([])

    def end(self, last_headers: list[tuple[str, bytes]]) -> Iterator[Chunk]:
        """Yield the last chunk, which has ``last_headers`` too."""
        yield from self._chunk(last_headers)

    def _chunk(self, headers: list[tuple[str, bytes]]) -> Iterator[Chunk]:
        chunk = bytes(self._buffer[: self.limit])
        del self._buffer[: self.limit]
        index, before = self._index, self._chunks_crc32
        self._index, self._chunks_crc32 = index + 1, zlib.crc32(chunk, before)
        if index < self.written:
            return
        if before != self.written_crc32:
            self.written = self.written_crc32 = 0
            raise OtherBytesError(self.log_file, self.position)
        self.written, self.written_crc32 = self._index, self._chunks_crc32
        count = -(-self.size // self.limit)
        if count > 1:
            headers = [chunk_header(index, count), *headers]
        if self.blank is not None:
            headers = [*headers, EXCLUDED]
        yield chunk, headers or None


def chunks_of(
    data: bytes, limit: int, already: AlreadyWritten, last_headers: list[tuple[str, bytes]]
) -> Iterator[Chunk]:
    """Yield the chunks of an event that came whole; the last one has ``last_headers`` too.

    Those that are written are left out, unless they hold something else: then it is written again.
    """
    skip, crc32 = already.take_chunks()
    if zlib.crc32(data[: skip * limit]) != crc32:
        skip = 0
    for index, (header, chunk) in enumerate(split(data, limit)):
        if index >= skip:
            headers = [] if header is None else [header]
            if (index + 1) * limit >= len(data):
                headers += last_headers
            yield chunk, headers or None

"""Records of ``{source}.events`` as the row mapper takes them."""

from dataclasses import dataclass

from millrace.avro.events import EventDeserializer, EventRecord
from millrace.contract import HEADER_CHUNK, HEADER_MARKER
from millrace.kafka.chunks import ChunkJoiner
from millrace.kafka.pipe import Record
from services.rowmapper.catalog import Position

__all__ = ["Incoming", "IncomingReader", "Marker"]


@dataclass(slots=True)
class Incoming:
    """An event, and the Kafka record that brought it; ``next_offset`` is that of the record behind it.

    ``value`` is the whole value, ``offset`` that of its first chunk. ``event`` is decoded when it is asked
    for.
    """

    offset: int
    next_offset: int
    timestamp_ms: int
    key: bytes
    value: bytes
    event: EventRecord

    @property
    def position(self) -> Position:
        """Where the event stands in the logs."""
        return Position(self.event.epoch, self.event.log_file, self.event.position)


@dataclass(frozen=True, slots=True)
class Marker:
    """A note of the reader's: what is open was cut."""

    next_offset: int


class IncomingReader:
    """Makes events of Kafka records, joining those that came in chunks."""

    def __init__(self, deserialize: EventDeserializer) -> None:
        self._deserialize = deserialize
        self._joiner = ChunkJoiner()

    def take(self, record: Record) -> Incoming | Marker | None:
        """Take the next record; None for a chunk that is not the last."""
        offset = first = record.offset()
        key, value = record.key() or b"", record.value() or b""
        headers = record.headers()
        if headers:
            named = dict(headers)
            if HEADER_MARKER in named:
                return Marker(offset + 1)
            if HEADER_CHUNK in named:
                begun = self._joiner.first_offset
                first = offset if begun is None else begun
                whole = self._joiner.feed(key, named[HEADER_CHUNK], value, offset)
                if whole is None:
                    return None
                value = whole
        return Incoming(first, offset + 1, record.timestamp()[1], key, value, self._deserialize(value))

"""Records of ``{source}.events`` as the row mapper takes them."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from millrace.avro.events import EventDeserializer, EventRecord
from millrace.avro.registry import UnknownSchemaError
from millrace.binlog.declaration import Event
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import (
    AppendBlockEvent,
    BeginLoadQueryEvent,
    ExecuteLoadQueryEvent,
    QueryCompressedEvent,
    QueryEvent,
    TransactionPayloadEvent,
)
from millrace.binlog.events.rows import CompressedRowsEvent, PartialUpdateRowsEvent, PlainRowsEvent
from millrace.contract import HEADER_CHUNK, HEADER_MARKER, EventKey, SourcePosition
from millrace.kafka.chunks import HELD_BYTES, BoundedJoiner, ChunkError, LargeValue, Reread, between
from millrace.runtime.logging import get_logger
from millrace.stage import Record

_LOG = get_logger(__name__)

_IN_PIECES: Final = (
    PlainRowsEvent,
    QueryEvent,
    ExecuteLoadQueryEvent,
    BeginLoadQueryEvent,
    AppendBlockEvent,
    TransactionPayloadEvent,
)
"""Events whose beginning is enough, or whose rows can be read in parts; partial JSON cannot."""

_HELD_BATCH: Final = 1000
"""Held events that are given together."""

_PACKED: Final = (CompressedRowsEvent, QueryCompressedEvent)
"""Events that are unpacked whole, or not at all."""


@dataclass(frozen=True, slots=True)
class LargeEvent:
    """An event whose record is too large to be held; its last field has ``field_size`` bytes.

    They start at ``field_start`` in the record, which ``reread`` reads again.
    """

    value: LargeValue
    field_start: int
    field_size: int
    reread: Reread

    def pieces(self) -> Generator[bytes, None, None]:
        """Read the record, piece by piece."""
        return self.reread(self.value.start, self.value.stop)

    def field(self, size: int | None = None) -> Iterator[bytes]:
        """Read the field, or its first ``size`` bytes, piece by piece."""
        return between(self.pieces(), self.field_start, self.field_size if size is None else size)


@dataclass(slots=True)
class Incoming:
    """An event, and the Kafka record that brought it; ``next_offset`` is that of the record after it.

    ``value`` is the whole value, ``offset`` that of its first chunk. ``event`` is decoded when it is asked
    for. Where ``large`` is set the value is too large to be held: ``value`` is its first chunk, and the last
    field of the event is cut.
    """

    offset: int
    next_offset: int
    timestamp_ms: int
    key: bytes
    value: bytes
    event: EventRecord
    large: LargeEvent | None = None

    @property
    def position(self) -> SourcePosition:
        """The event's position in the logs."""
        return SourcePosition(self.event.epoch, self.event.log_file, self.event.position)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record of the events topic without an event, and why."""

    offset: int
    next_offset: int
    timestamp_ms: int
    key: bytes
    value: bytes
    error: Exception

    @property
    def position(self) -> SourcePosition:
        """The event's position in the logs, from its key; the very beginning if the key has none."""
        try:
            key = EventKey.parse(self.key)
        except ValueError:
            return SourcePosition(0, "", 0)
        return key.raw.place


@dataclass(frozen=True, slots=True)
class Marker:
    """A note of the reader's, ABANDONED or the like, and where it stands: what is open was cut."""

    next_offset: int
    kind: bytes
    position: SourcePosition
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events of a transaction, to be read one by one, and their records, for what takes several at once.

    ``read`` gives the event of the record at an index, None where it ends none. ``records`` has None for what
    came in several. ``reader`` knows what precedes the next events.
    """

    records: Sequence[Record | None]
    read: Callable[[int], Incoming | Unreadable | None]
    reader: "EventReader"


class EventReader:
    """Makes events of Kafka records, joining those that came in chunks, up to ``held_bytes``.

    ``reread`` reads again what is larger. Of events that unpack to more than ``unpacked_limit`` the beginning
    is given.
    """

    def __init__(
        self,
        deserialize: EventDeserializer,
        reread: Reread,
        *,
        unpacked_limit: int,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self._unpacked_limit = unpacked_limit
        self._deserialize = deserialize
        self._reread = reread
        self._held_bytes = held_bytes
        self._joiner = BoundedJoiner(held_bytes)

    @property
    def prefix(self) -> bytes | None:
        """What precedes the next events; None if chunks are open or it is unknown."""
        return None if self._joiner.first_offset is not None else self._deserialize.prefix

    def again(self, batches: Iterable[Sequence[Record]]) -> Iterator[EventBatch]:
        """Read the records of a transaction, which were taken before, a second time."""
        reader = EventReader(
            self._deserialize,
            self._reread,
            unpacked_limit=self._unpacked_limit,
            held_bytes=self._held_bytes,
        )
        for records in batches:
            yield EventBatch(records, partial(reader._take_event, records), reader)

    def _take_event(self, records: Sequence[Record], index: int) -> Incoming | Unreadable | None:
        taken = self.take(records[index])
        return None if isinstance(taken, Marker) else taken

    def held(self, events: list[Incoming | Unreadable]) -> Iterator[EventBatch]:
        """Yield events that are held, and let go of them, so that what they decode to is not held for all."""
        while events:
            part: list[Incoming | Unreadable | None] = [*events[:_HELD_BATCH]]
            del events[:_HELD_BATCH]
            yield EventBatch([_record_of(one) for one in part], partial(_let_go, part), self)

    def read(self, value: bytes) -> Event:
        """Read the event of a record; raises BinlogError."""
        return self._deserialize(value).event

    def take(self, record: Record) -> Incoming | Unreadable | Marker | None:
        """Take the next record; None for a chunk that is not the last."""
        offset, timestamp_ms, key, value, headers = record
        key, value = key or b"", value or b""
        first = offset
        try:
            if headers or self._joiner.first_offset is not None:
                named = dict(headers or ())
                chunk = named.get(HEADER_CHUNK)
                self._drop_unless_it_continues(chunk)
                if HEADER_MARKER in named:
                    place = EventKey.parse(key).raw.place
                    return Marker(offset + 1, named[HEADER_MARKER], place, timestamp_ms)
                if chunk is not None:
                    begun = self._joiner.first_offset
                    first = offset if begun is None else begun
                    whole = self._joiner.feed(key, chunk, value, offset)
                    if whole is None:
                        return None
                    if isinstance(whole, LargeValue):
                        return self._large(whole, key, timestamp_ms)
                    value = whole
            return Incoming(first, offset + 1, timestamp_ms, key, value, self._deserialize(value))
        except ChunkError as error:
            # Only this record: chunks of the event at hand may still come.
            return Unreadable(offset, offset + 1, timestamp_ms, key, value, error)
        except (BinlogError, UnknownSchemaError, ValueError) as error:
            return Unreadable(first, offset + 1, timestamp_ms, key, value, error)

    def _drop_unless_it_continues(self, chunk: bytes | None) -> None:
        """Let go of chunks whose last one never came: the decoder left them out, or began the event again."""
        joiner = self._joiner
        if joiner.first_offset is not None and (chunk is None or chunk.startswith(b"0/")):
            _LOG.warning("event dropped: its last chunks are missing", key=repr(joiner.key))
            joiner.reset()

    def _large(self, value: LargeValue, key: bytes, timestamp_ms: int) -> Incoming:
        """Return an event whose record is too large to be held."""
        begun = self._deserialize.beginning(value.head)
        if begun is not None:
            record, start, size = begun
            event = record.event
            unread = isinstance(event, _PACKED) and max(size, event.unpacked_size) > self._unpacked_limit
            if unread or (isinstance(event, _IN_PIECES) and not isinstance(event, PartialUpdateRowsEvent)):
                large = LargeEvent(value, start, size, self._reread)
                return Incoming(value.start, value.stop, timestamp_ms, key, value.head, record, large)
        whole = b"".join(self._reread(value.start, value.stop))
        return Incoming(value.start, value.stop, timestamp_ms, key, whole, self._deserialize(whole))


def _let_go(events: list[Incoming | Unreadable | None], index: int) -> Incoming | Unreadable | None:
    one, events[index] = events[index], None
    return one


def _record_of(one: Incoming | Unreadable | None) -> Record | None:
    """Return the record of an event; None where there is none, or several."""
    if not isinstance(one, Incoming) or one.large is not None or one.next_offset != one.offset + 1:
        return None
    return Record(one.offset, one.timestamp_ms, one.key, one.value)

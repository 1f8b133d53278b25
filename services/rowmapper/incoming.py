"""Records of ``{source}.events`` as the row mapper takes them."""

from dataclasses import dataclass

from millrace.avro.events import EventDeserializer, EventRecord
from millrace.binlog.events import (
    AppendBlockEvent,
    BeginLoadQueryEvent,
    ExecuteLoadQueryEvent,
    QueryEvent,
    TransactionPayloadEvent,
)
from millrace.binlog.events.rows import PartialUpdateRowsEvent, PlainRowsEvent
from millrace.contract import HEADER_CHUNK, HEADER_MARKER
from millrace.kafka.chunks import HELD_BYTES, BoundedJoiner, LargeValue, Reread
from millrace.kafka.pipe import Record
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from services.rowmapper.catalog import Position
from services.rowmapper.large import LargeEvent

__all__ = ["Incoming", "IncomingReader", "Marker", "unreadable"]

_LOG = get_logger(__name__)

_IN_PIECES = (
    PlainRowsEvent,
    QueryEvent,
    ExecuteLoadQueryEvent,
    BeginLoadQueryEvent,
    AppendBlockEvent,
    TransactionPayloadEvent,
)
"""Events of which the beginning is enough, or whose rows can be read in pieces; partial JSON cannot."""


@dataclass(slots=True)
class Incoming:
    """An event, and the Kafka record that brought it; ``next_offset`` is that of the record behind it.

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
    def position(self) -> Position:
        """Where the event stands in the logs."""
        return Position(self.event.epoch, self.event.log_file, self.event.position)


@dataclass(frozen=True, slots=True)
class Marker:
    """A note of the reader's, ABANDONED or the like: what is open was cut."""

    next_offset: int
    kind: bytes


def unreadable(offset: int, key: bytes, error: Exception) -> UserError:
    """Say which record of the events topic is none; what it held is unknown, so that nothing may follow."""
    name = key.decode("ascii", "backslashreplace")
    return UserError(
        f"the record at offset {offset} of the events topic, {name}, cannot be read: {error}. "
        "Nothing behind it was mapped; 'millrace recompute' has events and rows made anew",
        ExitCode.DATA,
    )


class IncomingReader:
    """Makes events of Kafka records, joining those that came in chunks, up to ``held_bytes``.

    ``reread`` reads again what is larger.
    """

    def __init__(
        self, deserialize: EventDeserializer, reread: Reread, *, held_bytes: int = HELD_BYTES
    ) -> None:
        self._deserialize = deserialize
        self._reread = reread
        self._joiner = BoundedJoiner(held_bytes)

    def take(self, record: Record) -> Incoming | Marker | None:
        """Take the next record; None for a chunk that is not the last."""
        offset = first = record.offset()
        key, value = record.key() or b"", record.value() or b""
        headers = record.headers()
        if headers or self._joiner.first_offset is not None:
            named = dict(headers or ())
            self._drop_unless_it_goes_on(named.get(HEADER_CHUNK))
            if HEADER_MARKER in named:
                return Marker(offset + 1, named[HEADER_MARKER])
            if HEADER_CHUNK in named:
                begun = self._joiner.first_offset
                first = offset if begun is None else begun
                whole = self._joiner.feed(key, named[HEADER_CHUNK], value, offset)
                if whole is None:
                    return None
                if isinstance(whole, LargeValue):
                    return self._large(whole, key, record.timestamp()[1])
                value = whole
        return Incoming(first, offset + 1, record.timestamp()[1], key, value, self._deserialize(value))

    def _drop_unless_it_goes_on(self, chunk: bytes | None) -> None:
        """Let go of chunks whose last one never came: the decoder was told to leave out what was deleted."""
        joiner = self._joiner
        if joiner.first_offset is not None and (chunk is None or chunk.startswith(b"0/")):
            _LOG.warning("an event dropped: its last chunks never came", key=repr(joiner.key))
            joiner.reset()

    def _large(self, value: LargeValue, key: bytes, timestamp_ms: int) -> Incoming:
        """Give an event whose record is too large to be held."""
        begun = self._deserialize.beginning(value.head)
        if begun is not None:
            record, start, size = begun
            event = record.event
            if isinstance(event, _IN_PIECES) and not isinstance(event, PartialUpdateRowsEvent):
                large = LargeEvent(value, start, size, self._reread)
                return Incoming(value.start, value.stop, timestamp_ms, key, value.head, record, large)
        whole = b"".join(self._reread(value.start, value.stop))
        return Incoming(value.start, value.stop, timestamp_ms, key, whole, self._deserialize(whole))

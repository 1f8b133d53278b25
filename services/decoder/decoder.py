"""From records of ``{source}.raw`` to records of ``{source}.events``, with the state after them.

Every raw record gives at least one record: an event its typed form, a transaction's payload also each event
inside it (sub_index 1, 2, …), a marker itself. What cannot be decoded goes to ``{source}.deadletter`` whole,
with the reason. So nothing is skipped, and what is written is a function of the raw records alone.

The scope of what is remembered is the log file: in another epoch or file nothing of the old format
description and table maps holds. A file's first event describes its format; where records are missing at the
head of the raw topic (its retention was lowered) events go to the dead letter topic until the next format
description, which is that of the next file at the latest.

An event too large to be held is read again from the raw topic once its last chunk, and so its checksum, is
known: for the record that has its bytes, and, if it is a payload, for the events inside. A Kafka transaction
may end between any two chunks of such a record.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from millrace.avro.records import DeadLetter
from millrace.avro.state import DecoderState
from millrace.binlog.errors import BinlogError
from millrace.binlog.events.rows import TableMapEvent
from millrace.binlog.events.transaction import (
    LargeInnerEvent,
    TransactionPayloadEvent,
    inner_events,
    unpack_payload,
)
from millrace.binlog.file import MAGIC
from millrace.binlog.state import StreamState
from millrace.binlog.stream import BinlogEvent, decode_beginning, decode_event
from millrace.binlog.transaction import TransactionStep, TransactionTracker
from millrace.contract import (
    ABANDONED,
    HEADER_ARTIFICIAL,
    HEADER_CHUNK,
    HEADER_MARKER,
    RawKey,
    Topics,
    key_number,
)
from millrace.kafka.chunks import (
    HELD_BYTES,
    BoundedJoiner,
    ChunkError,
    LargeValue,
    Reread,
    between,
    split,
    split_parts,
)
from millrace.kafka.pipe import Record, TransactionalProducer
from millrace.runtime.logging import get_logger
from millrace.runtime.service import StopRequestedError
from services.decoder.metrics import DecoderMetrics

if TYPE_CHECKING:
    from millrace.avro.events import EventSerializer
    from millrace.avro.records import RecordSerializer
    from millrace.kernel.events import EventWriter

__all__ = ["Decoder", "Output"]

_LOG = get_logger(__name__)
_BATCH: Final = 500
_BATCH_BYTES: Final = 1024 * 1024
_NOWHERE: Final = (-1, "")
_FIRST_POSITION: Final = len(MAGIC)
_UNKNOWN_KEY: Final = RawKey(0, 0, "", 0)


@dataclass(slots=True)
class Output:
    """Where events and dead letters go."""

    producer: TransactionalProducer
    topics: Topics
    serialize_event: "EventSerializer"
    serialize_dead_letter: "RecordSerializer"
    events_limit: int
    deadletter_limit: int
    write_events: "EventWriter | None" = None
    waiting: list[tuple[bytes, bytes, int]] = field(default_factory=list)
    _size: int = 0

    def event(self, key: bytes, value: bytes, timestamp_ms: int) -> None:
        """Write a record of the events topic, in chunks where it is too large; the latest with a flush."""
        size = len(value)
        if size <= self.events_limit:
            self.waiting.append((key, value, timestamp_ms))
            self.added(size)
        else:
            self.flush()
            self._chunks(self.topics.events, key, value, timestamp_ms, self.events_limit)

    def added(self, size: int) -> None:
        """Take note that records of ``size`` bytes together were put behind those in ``waiting``."""
        self._size += size
        if self._size > _BATCH_BYTES:
            self.flush()

    def marker(self, key: bytes, value: bytes, timestamp_ms: int, header: bytes) -> None:
        """Write a marker to the events topic."""
        self.flush()
        self.producer.produce(self.topics.events, key, value, timestamp_ms, [(HEADER_MARKER, header)])

    def flush(self) -> None:
        """Hand the events at hand over to Kafka."""
        if self.waiting:
            self.producer.produce_batch(self.topics.events, self.waiting)
            self.waiting = []
            self._size = 0

    def dead_letter(self, letter: DeadLetter, timestamp_ms: int) -> None:
        """Write a record of the dead letter topic, in chunks where it is too large."""
        value = self.serialize_dead_letter(letter.to_dict())
        self._chunks(self.topics.deadletter, letter.key, value, timestamp_ms, self.deadletter_limit)

    def _chunks(self, topic: str, key: bytes, value: bytes, timestamp_ms: int, limit: int) -> None:
        for header, piece in split(value, limit):
            self.producer.produce(topic, key, piece, timestamp_ms, None if header is None else [header])


class Decoder:
    """Takes raw records in order; ``next_offset`` is that of the record to be taken next.

    ``reread`` gives raw records again that were too large to be held, which is what is beyond ``held_bytes``.
    Once ``stop`` is set, work on such an event ends where a Kafka transaction does.
    """

    def __init__(
        self,
        output: Output,
        metrics: DecoderMetrics,
        state: DecoderState | None,
        *,
        reread: Reread,
        stop: threading.Event,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self.next_offset = 0
        self._reread = reread
        self._stop = stop
        self._output = output
        self._serialize_event = output.serialize_event
        self._metrics = metrics
        self._joiner = BoundedJoiner(held_bytes)
        self._held_bytes = held_bytes
        self._head: bytes | None = None
        self._told: set[tuple[str, str]] = set()
        self._events = self._bytes = 0
        # How many records of the event at next_offset are written already, above 0 inside payloads only; and
        # how many chunks of the one behind them, above 0 inside large records only, or of its dead letter.
        self._written = 0
        self._chunks_done = 0
        self._in_letter = False
        self._written_at = 0
        self._before_large: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._scope: tuple[int, str] = _NOWHERE
        self._stream = StreamState()
        self._tracker = TransactionTracker()
        if state is not None:
            self._written, self._chunks_done = state.sub_index, state.chunk
            self._in_letter = state.dead_letter
            first = state.first_chunk_offset
            self._written_at = state.input_offset if first is None else first
            if state.stream:
                self._scope = state.stream["epoch"], state.stream["log_file"]
                self._stream = StreamState.restore(dict(state.stream))
            if state.tracker:
                self._tracker = TransactionTracker.restore(dict(state.tracker))

    def start_at(self, offset: int) -> None:
        """Begin at ``offset``; what is written of the event at another one does not count there."""
        self.next_offset = offset
        if offset != self._written_at:
            self._written, self._chunks_done, self._in_letter = 0, 0, False

    def state(self) -> bytes:
        """Give the state after everything that was written so far, for Kafka."""
        stream, tracker = self._before_large or (self._stream.save(), self._tracker.save())
        if self._scope is not _NOWHERE:
            stream = {**stream, "epoch": self._scope[0], "log_file": self._scope[1]}
        else:
            stream = {}
        return DecoderState(
            self.next_offset,
            self._joiner.first_offset,
            self._written,
            stream,
            tracker,
            chunk=self._chunks_done,
            dead_letter=self._in_letter,
        ).to_bytes()

    def process(self, records: Sequence[Record]) -> None:
        """Take raw records, write what follows from them."""
        try:
            self._process(records)
        except StopRequestedError:
            return
        self._output.flush()
        self._metrics.record_time.set(records[-1].timestamp()[1] / 1000)
        self._metrics.events.inc(self._events)
        self._metrics.bytes.inc(self._bytes)
        self._events = self._bytes = 0

    def _process(self, records: Sequence[Record]) -> None:
        for record in self._left_by_kernel(records):
            key, value = record.key() or b"", record.value() or b""
            headers = record.headers()
            if headers is not None or self._joiner.first_offset is not None:
                self._special(record, key, value, dict(headers or ()))
            else:
                self._event(record.offset(), key, value, record.timestamp()[1])
            self.next_offset = record.offset() + 1
            if self._joiner.first_offset is None:
                self._written, self._chunks_done, self._in_letter = 0, 0, False

    def _left_by_kernel(self, records: Sequence[Record]) -> Iterable[Record]:
        """Give the records that the kernel leaves, in their turn; it takes those before and between."""
        writer = self._output.write_events
        if writer is None:
            yield from records
            return
        records = list(records)
        index, count = 0, len(records)
        while index < count:
            before = index
            if self._joiner.first_offset is None and self._written == 0 and self._head is not None:
                index = self._take(writer, records, index)
            if index == before:
                yield records[index]
                index += 1

    def _take(self, writer: "EventWriter", records: list[Record], index: int) -> int:
        """Let the kernel take records from ``index`` on; give the index of the first that it leaves."""
        output = self._output
        after = writer.take(
            records,
            index,
            self._head or b"",
            self._scope,
            self._stream,
            self._tracker.save(),
            output.events_limit,
            _BATCH_BYTES,
            output.waiting,
        )
        if after > index:
            output.added(writer.written_bytes)
            self._tracker = TransactionTracker.restore(writer.tracker())
            self._events += after - index
            self._bytes += writer.taken_bytes
            self.next_offset = records[after - 1].offset() + 1
        return after

    def _special(self, record: Record, key: bytes, value: bytes, headers: dict[str, bytes]) -> None:
        """Take a record with headers, or one that comes where the next chunk of an event should be."""
        timestamp_ms = record.timestamp()[1]
        chunk = headers.get(HEADER_CHUNK)
        if chunk is not None:
            self._chunk(record, key, value, chunk)
            return
        marker = headers.get(HEADER_MARKER)
        if self._joiner.first_offset is not None:
            if marker == ABANDONED:
                # The event was cut with its transaction, and the reader says so itself.
                self._joiner.reset()
            else:
                self._drop_chunks(ChunkError("the chunks of this event end before the last"), timestamp_ms)
        if marker is not None:
            self._output.marker(key + b":0", value, timestamp_ms, marker)
        else:
            self._event(record.offset(), key, value, timestamp_ms, artificial=HEADER_ARTIFICIAL in headers)

    def _chunk(self, record: Record, key: bytes, value: bytes, header: bytes) -> None:
        """Take a chunk; with the last one, the event."""
        offset, timestamp_ms = record.offset(), record.timestamp()[1]
        first_offset = self._joiner.first_offset
        try:
            whole = self._joiner.feed(key, header, value, offset)
        except ChunkError as error:
            if first_offset is not None:
                self._drop_chunks(error, timestamp_ms)
                self._chunk(record, key, value, header)
            else:
                self._dead_letter(error, offset, key, value, timestamp_ms)
            return
        if isinstance(whole, LargeValue):
            self._large(whole, key, timestamp_ms)
        elif whole is not None:
            self._event(offset if first_offset is None else first_offset, key, whole, timestamp_ms)

    def _drop_chunks(self, error: ChunkError, timestamp_ms: int) -> None:
        """Set aside the chunks at hand, to which the last is missing."""
        offset, key = self._joiner.first_offset, self._joiner.key or b""
        assert offset is not None
        self._dead_letter(error, offset, key, self._joiner.drop(), timestamp_ms)

    def _event(
        self, offset: int, key: bytes, data: bytes, timestamp_ms: int, *, artificial: bool = False
    ) -> None:
        """Take one whole event."""
        head, _, position_text = key.rpartition(b":")
        try:
            if head != self._head:
                self._enter(key, head)
            position = key_number(position_text)
            if position == _FIRST_POSITION:
                self._stream.begin_file(data)
            decoded = decode_event(data, self._stream)
        except (BinlogError, ValueError) as error:
            self._dead_letter(error, offset, key, data, timestamp_ms)
            return
        self._bytes += len(data)
        if self._written == 0:
            value = self._serialize(decoded, position, 0, artificial=artificial)
            self._output.event(key + b":0", value, timestamp_ms)
        if isinstance(decoded.event, TransactionPayloadEvent):
            self.next_offset = offset
            payload = decoded.event.payload
            self._payload(
                decoded.event, lambda: iter((payload,)), len(payload), (key, data, position, timestamp_ms)
            )

    def _large(self, large: LargeValue, key: bytes, timestamp_ms: int) -> None:
        """Take an event that is too large to be held."""
        head, _, position_text = key.rpartition(b":")
        self.next_offset = large.start
        before = self._stream.save(), self._tracker.save()
        try:
            if head != self._head:
                self._enter(key, head)
                before = self._stream.save(), self._tracker.save()
            position = key_number(position_text)
            if position == _FIRST_POSITION:
                self._stream.begin_file(large.head)
            begun = decode_beginning(large.head, large.size, large.crc32, large.tail, self._stream)
        except (BinlogError, ValueError) as error:
            self._dead_letter(error, large.start, key, large, timestamp_ms)
            return
        if begun is None:
            with closing(self._reread(large.start, large.stop)) as pieces:
                self._event(large.start, key, b"".join(pieces), timestamp_ms)
            return
        self._bytes += large.size
        decoded = begun.decoded
        if self._written == 0:
            table, step = self._context(decoded, position)
            around = self._serialize_event.around(
                decoded, begun.field, begun.size, (*self._scope, position, 0), step, table=table
            )
            self._before_large = before
            field_bytes = self._part(large, begun.start, begun.size)
            self._write_large(key + b":0", around, field_bytes, begun.size, timestamp_ms)
            self._before_large = None
        if isinstance(decoded.event, TransactionPayloadEvent):
            self._payload(
                decoded.event,
                lambda: self._part(large, begun.start, begun.size),
                begun.size,
                (key, large, position, timestamp_ms),
            )

    def _part(self, large: LargeValue, start: int, size: int) -> Iterator[bytes]:
        """Read some bytes of a large event again."""
        with closing(self._reread(large.start, large.stop)) as pieces:
            yield from between(pieces, start, size)

    def _write_large(
        self, key: bytes, around: tuple[bytes, bytes], parts: Iterator[bytes], size: int, timestamp_ms: int
    ) -> None:
        """Write a record of the events topic: ``size`` bytes that come in parts, between two others."""
        self._write_parts(key, _around(around, parts, size), timestamp_ms)

    def _write_parts(
        self, key: bytes, value: tuple[Iterator[bytes], int], timestamp_ms: int, *, letter: bool = False
    ) -> None:
        """Write a record in chunks, and go on where a Kafka transaction ended within it before."""
        output = self._output
        output.flush()
        topic, limit = output.topics.events, output.events_limit
        if letter:
            topic, limit = output.topics.deadletter, output.deadletter_limit
        if letter is not self._in_letter:
            self._in_letter, self._chunks_done = letter, 0
        for index, (header, piece) in enumerate(split_parts(*value, limit)):
            if index >= self._chunks_done:
                headers = None if header is None else [header]
                output.producer.produce(topic, key, piece, timestamp_ms, headers)
                self._chunks_done = index + 1
                self._commit_if_due()
        self._chunks_done = 0
        self._in_letter = False

    def _commit_if_due(self) -> None:
        """End the Kafka transaction, here, if it is large or old enough; then stop if that was asked for."""
        producer = self._output.producer
        if producer.due:
            producer.commit(self.state())
            if self._stop.is_set():
                raise StopRequestedError

    def _enter(self, key: bytes, head: bytes) -> None:
        """Go into another file or epoch, or on to an event of another server in the same file."""
        raw_key = RawKey.parse(key)
        scope = raw_key.epoch, raw_key.log_file
        if scope != self._scope:
            if scope[0] != self._scope[0]:
                self._tracker = TransactionTracker()
            self._scope = scope
            self._stream = StreamState()
        self._head = head

    def _serialize(
        self, decoded: BinlogEvent, position: int, sub_index: int, *, artificial: bool = False
    ) -> bytes:
        """Make the record of one event."""
        epoch, log_file = self._scope
        table, step = self._context(decoded, position)
        return self._serialize_event(
            decoded, epoch, log_file, position, sub_index, step, table, artificial=artificial
        )

    def _context(self, decoded: BinlogEvent, position: int) -> tuple[tuple[str, str] | None, TransactionStep]:
        """Give the table of an event, and its place in its transaction."""
        event = decoded.event
        table_map = event if type(event) is TableMapEvent else decoded.table_map
        table = None if table_map is None else (table_map.database, table_map.table)
        self._events += 1
        return table, self._tracker.feed(decoded.header, event, self._scope[1], position)

    def _payload(
        self,
        event: TransactionPayloadEvent,
        payload: Callable[[], Iterator[bytes]],
        size: int,
        place: tuple[bytes, bytes | LargeValue, int, int],
    ) -> None:
        """Write the events inside a payload; a Kafka transaction may end between any two of them.

        ``payload`` gives its ``size`` bytes; ``place`` is the key of the event, its bytes, its position and
        its record's timestamp.
        """
        key, data, position, timestamp_ms = place
        inner = self._stream.for_payload()
        self._written = max(self._written, 1)

        def unpack() -> Iterator[bytes]:
            return unpack_payload(payload(), size, event.compression_type)

        def inside() -> "enumerate[bytes | LargeInnerEvent]":
            return enumerate(inner_events(unpack(), event.uncompressed_size, self._held_bytes), 1)

        ahead = inside()
        try:
            for sub_index, inner_data in inside():
                if sub_index < self._written:
                    continue
                inner_key = key + b":%d" % sub_index
                if isinstance(inner_data, LargeInnerEvent):
                    # A payload that is damaged before its end is known to be before its record is begun.
                    next((True for at, _ in ahead if at > sub_index), None)
                    self._large_inner(
                        inner_data, unpack, inner, inner_key, (position, sub_index, timestamp_ms)
                    )
                else:
                    value = self._serialize(decode_event(inner_data, inner), position, sub_index)
                    self._output.event(inner_key, value, timestamp_ms)
                self._written = sub_index + 1
                if sub_index % _BATCH == 0 or self._output.producer.due:
                    self._output.flush()
                    self._commit_if_due()
        except (BinlogError, ChunkError) as error:
            self._before_large = None
            self._dead_letter(error, self.next_offset, key, data, timestamp_ms)

    def _large_inner(
        self,
        large: LargeInnerEvent,
        unpack: Callable[[], Iterator[bytes]],
        inner: StreamState,
        key: bytes,
        place: tuple[int, int, int],
    ) -> None:
        """Take an event inside a payload that is too large to be held; the payload is unpacked again."""
        position, sub_index, timestamp_ms = place
        before = self._stream.save(), self._tracker.save()
        begun = decode_beginning(large.head, large.size, 0, b"", inner)
        if begun is None:
            data = b"".join(between(unpack(), large.start, large.size))
            self._output.event(
                key, self._serialize(decode_event(data, inner), position, sub_index), timestamp_ms
            )
            return
        table, step = self._context(begun.decoded, position)
        around = self._serialize_event.around(
            begun.decoded, begun.field, begun.size, (*self._scope, position, sub_index), step, table=table
        )
        self._before_large = before
        field_bytes = between(unpack(), large.start + begun.start, begun.size)
        self._write_large(key, around, field_bytes, begun.size, timestamp_ms)
        self._before_large = None

    def _dead_letter(
        self, error: Exception, offset: int, key: bytes, data: bytes | LargeValue, timestamp_ms: int
    ) -> None:
        """Set an event aside, with what is wrong with it."""
        try:
            raw_key = RawKey.parse(key)
        except ValueError:
            raw_key = _UNKNOWN_KEY
        kind = type(error).__name__
        self._metrics.dead_letters.labels(kind).inc()
        if (kind, raw_key.log_file) not in self._told:
            # The first of its kind in a file is told; the topic has the others, the metric counts them.
            self._told.add((kind, raw_key.log_file))
            _LOG.warning(
                "dead letter", key=key.decode("ascii", "replace"), offset=offset, error=str(error), kind=kind
            )
        output = self._output
        letter = DeadLetter(
            service="decoder",
            topic=output.topics.raw,
            offset=offset,
            key=key,
            value=b"" if isinstance(data, LargeValue) else data,
            epoch=raw_key.epoch,
            log_file=raw_key.log_file,
            position=raw_key.position,
            error_class=kind,
            error=str(error),
        )
        if not isinstance(data, LargeValue):
            output.dead_letter(letter, timestamp_ms)
            return
        self.next_offset = offset
        around = output.serialize_dead_letter.around(letter.to_dict(), "value", data.size)
        value = _around(around, self._part(data, 0, data.size), data.size)
        self._write_parts(key, value, timestamp_ms, letter=True)


def _around(around: tuple[bytes, bytes], parts: Iterator[bytes], size: int) -> tuple[Iterator[bytes], int]:
    """Give what comes in parts between two others, and the size of all."""
    before, behind = around
    return chain((before,), parts, (behind,)), len(before) + size + len(behind)

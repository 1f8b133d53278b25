"""From records of ``{source}.raw`` to records of ``{source}.events``, with the state after them.

Every raw record gives at least one record: an event its typed form, a transaction's payload also each event
inside it (sub_index 1, 2, …), a marker itself. What cannot be decoded goes to ``{source}.deadletter`` whole,
with the reason. So nothing is skipped, and what is written is a function of the raw records alone.

The scope of what is remembered is the log file: in another epoch or file nothing of the old format
description and table maps holds. A file's first event describes its format, and only with that does another
file become the one at hand: a record that does not continue the log is a dead letter, and ends nothing. Where
records are missing at the head of the raw topic (its retention was lowered) events go to the dead letter
topic until the next format description, which is that of the next file at the latest. Where they were deleted
before they were read, a marker in the events topic says so in front of what follows.

An event too large to be held is read again from the raw topic once its last chunk, and so its checksum, is
known: for the record that has its bytes, and, if it is a payload, for the events inside. A Kafka transaction
may end between any two chunks of such a record.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from millrace.avro.records import DeadLetter
from millrace.avro.service_state import DecoderState, LogScope
from millrace.binlog.errors import BinlogError, MissingStateError, TooLargeError
from millrace.binlog.event_codec import BinlogEvent, decode_beginning, decode_event
from millrace.binlog.events.rows import TableMapEvent
from millrace.binlog.events.transaction import (
    LargeInnerEvent,
    TransactionPayloadEvent,
    inner_events,
    unpack_payload,
)
from millrace.binlog.header import FIRST_POSITION
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionStep, TransactionTracker
from millrace.contract import (
    ABANDONED,
    GAP,
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
from millrace.runtime.logging import get_logger
from millrace.stage import Output, OutputRecord, Record

if TYPE_CHECKING:
    from millrace.avro.events import EventSerializer
    from millrace.avro.records import RecordSerializer
    from millrace.kernel.events import EventRecordWriter
    from millrace.kernel.records import RecordBlock

_LOG = get_logger(__name__)
_MOST_JOINED: Final = 2 * HELD_BYTES
"""What is held of an event that cannot be taken in pieces; a payload may unpack to gigabytes of it."""
_UNKNOWN_KEY: Final = RawKey(0, 0, "", 0)


def _not_held(size: int) -> TooLargeError:
    return TooLargeError(
        f"an event of {size} bytes, of a type that is decoded whole; up to {_MOST_JOINED} are"
    )


Work = Iterator[None]
"""What is left to do for a record; a Kafka transaction may end wherever it yields."""


@dataclass(frozen=True, slots=True)
class Format:
    """How records are written: serializers, and the largest value that a record of each topic may have."""

    topics: Topics
    event: "EventSerializer"
    dead_letter: "RecordSerializer"
    events_limit: int
    deadletter_limit: int


@dataclass(slots=True)
class _Scope:
    """A log file, and what is remembered of it."""

    epoch: int
    log_file: str
    stream: StreamState
    tracker: TransactionTracker

    @property
    def name(self) -> tuple[int, str]:
        return self.epoch, self.log_file

    def save(self) -> LogScope:
        return LogScope(self.epoch, self.log_file, self.stream.save(), self.tracker.save())


class DecoderStage:
    """Takes raw records in order; ``next_offset`` is that of the record to be taken next.

    ``reread`` gives raw records again that were too large to be held, which is what is beyond ``held_bytes``.
    ``write_events`` is the kernel, where it is built; with ``new_block`` what it writes is in blocks.
    ``skip_to``, where given, is the offset of the first raw record that is left: those before it were deleted
    unread.
    """

    def __init__(
        self,
        form: Format,
        state: DecoderState,
        *,
        reread: Reread,
        write_events: "EventRecordWriter | None" = None,
        new_block: "Callable[[], RecordBlock] | None" = None,
        held_bytes: int = HELD_BYTES,
        skip_to: int | None = None,
        output: Output | None = None,
    ) -> None:
        self._before_gap = state if skip_to is not None else None
        """The state until the gap is written down."""
        if skip_to is not None:
            state = DecoderState(skip_to, logs=state.logs)
        self.output = output or Output()
        self.next_offset = state.place_to_read
        self.events = self.bytes = 0
        """Events that were decoded, and their bytes."""
        self.dead_letters: Counter[str] = Counter()
        """Dead letters by the class of their error."""
        self.record_time_ms = 0
        """Timestamp of the last record taken, milliseconds since 1970."""
        self._form = form
        self._reread = reread
        self._write_events, self._new_block = write_events, new_block
        self._joiner = BoundedJoiner(held_bytes)
        self._held_bytes = held_bytes
        self._told: set[tuple[str, str]] = set()
        # The file at hand and the one before; and how keys begin whose events are known to lie in the former.
        self._scopes = [
            _Scope(
                scope.epoch,
                scope.log_file,
                StreamState.restore(dict(scope.stream)),
                TransactionTracker.restore(dict(scope.tracker)),
            )
            for scope in state.logs
        ]
        self._head: bytes | None = None
        # Of the event at which the state stands: how many of its records are written, above 0 inside payloads
        # only; and how many chunks of the next one, above 0 inside large records only, or of its dead letter.
        self._event_at: int | None = None
        self._written, self._chunks_done = state.sub_index, state.chunk
        self._in_dead_letter, self._fingerprint = state.dead_letter, state.fingerprint
        # The file as it was before the record of a large event was begun, which is made again after a
        # restart.
        self._before_large: LogScope | None = None

    @property
    def between_transactions(self) -> bool:
        """Whether no transaction is open after the last record, nor an event with missing chunks."""
        if self._joiner.first_offset is not None:
            return False
        return not self._scopes or self._scopes[0].tracker.transaction is None

    def state(self) -> DecoderState:
        """Return the state after everything that was written so far."""
        if self._before_gap is not None:
            return self._before_gap
        logs = tuple(scope.save() for scope in self._scopes)
        if self._before_large is not None:
            logs = (self._before_large, *logs[1:])
        return DecoderState(
            self.next_offset if self._event_at is None else self._event_at,
            self._joiner.first_offset,
            self._written,
            self._chunks_done,
            self._in_dead_letter,
            self._fingerprint,
            logs,
        )

    def take(self, records: Sequence[Record]) -> Iterator[None]:
        """Take raw records, write what follows from them."""
        index, count = 0, len(records)
        while index < count:
            if self._before_gap is not None:
                self._note_gap(records[index])
            after = self._take_natively(records, index)
            if after == index:
                record = records[index]
                work = self._take(record)
                if work is not None:
                    yield from work
                self.next_offset = record.offset + 1
                if self._joiner.first_offset is None and (self._event_at is not None or self._written):
                    self._begin_event(None)
                after = index + 1
            index = after
            if self.output.full:
                yield
        if records:
            self.record_time_ms = records[-1].timestamp_ms
        yield

    def _note_gap(self, record: Record) -> None:
        """Write in front of a record that others are missing before it, where its key says where that is."""
        try:
            key = RawKey.parse(record.key or b"")
        except ValueError:
            return
        self._before_gap = None
        if dict(record.headers or ()).get(HEADER_MARKER) != GAP:
            place = replace(key, position=max(key.position - 1, 1))  # no event starts there
            words = b"raw records were deleted before they were decoded"
            self.output.add(
                self._form.topics.events,
                place.encode() + b":0",
                words,
                record.timestamp_ms,
                [(HEADER_MARKER, GAP)],
            )

    def _begin_event(self, offset: int | None) -> None:
        """Go on to another event, of which nothing is written."""
        self._event_at = offset
        self._written, self._chunks_done, self._in_dead_letter, self._fingerprint = 0, 0, False, 0

    def _take_natively(self, records: Sequence[Record], index: int) -> int:
        """Let the kernel take records from ``index`` on; give the index of the first that it leaves."""
        writer, scope = self._write_events, self._scopes[0] if self._scopes else None
        if writer is None or scope is None or self._head is None:
            return index
        if self._written or self._joiner.first_offset is not None:
            return index
        made: list[OutputRecord] | RecordBlock = [] if self._new_block is None else self._new_block()
        after = writer.take(
            records,
            index,
            self._head,
            scope.name,
            scope.stream,
            scope.tracker.standing,
            self._form.events_limit,
            self.output.settle_bytes,
            made,
        )
        if after > index:
            if isinstance(made, list):
                self.output.extend(self._form.topics.events, made, writer.written_bytes)
            else:
                self.output.add_block(self._form.topics.events, made, records[index].timestamp_ms)
            scope.tracker = TransactionTracker(writer.standing())
            self.events += after - index
            self.bytes += writer.taken_bytes
            self.next_offset = records[after - 1].offset + 1
        return after

    # -- records --------------------------------------------------------------------------------------

    def _take(self, record: Record) -> Work | None:
        """Take a record; give what is left to do for it, if it is much."""
        key, value = record.key or b"", record.value or b""
        if record.headers is None and self._joiner.first_offset is None:
            return self._event(record.offset, key, value, record.timestamp_ms)
        headers = dict(record.headers or ())
        chunk = headers.get(HEADER_CHUNK)
        if chunk is not None:
            return self._chunk(record, key, value, chunk)
        marker = headers.get(HEADER_MARKER)
        if self._joiner.first_offset is not None:
            if marker == ABANDONED:
                # The event was cut with its transaction, and the reader says so itself.
                self._joiner.reset()
            else:
                return self._after_cut_chunks(record)
        if marker is not None:
            self.output.add(
                self._form.topics.events, key + b":0", value, record.timestamp_ms, [(HEADER_MARKER, marker)]
            )
            return None
        artificial = HEADER_ARTIFICIAL in headers
        return self._event(record.offset, key, value, record.timestamp_ms, artificial=artificial)

    def _after_cut_chunks(self, record: Record) -> Work:
        """Take a record that comes where the next chunk of an event should be."""
        yield from self._drop_chunks(
            ChunkError("the chunks of this event end before the last"), record.timestamp_ms
        )
        yield from self._take(record) or ()

    def _chunk(self, record: Record, key: bytes, value: bytes, header: bytes) -> Work | None:
        """Take a chunk; with the last one, the event."""
        offset, timestamp_ms = record.offset, record.timestamp_ms
        first_offset = self._joiner.first_offset
        if first_offset is not None and key == self._joiner.key and header.startswith(b"0/"):
            # The reader begins the event again: after a restart it was cut into other chunks, or has other
            # bytes.
            self._joiner.reset()
            first_offset = None
        try:
            whole = self._joiner.feed(key, header, value, offset)
        except ChunkError as error:
            if first_offset is None:
                return self._dead_letter(error, offset, key, value, timestamp_ms)
            return self._after_wrong_chunk(error, record)
        if isinstance(whole, LargeValue):
            return self._large(whole, key, timestamp_ms)
        if whole is None:
            return None
        return self._event(offset if first_offset is None else first_offset, key, whole, timestamp_ms)

    def _after_wrong_chunk(self, error: ChunkError, record: Record) -> Work:
        yield from self._drop_chunks(error, record.timestamp_ms)
        yield from self._take(record) or ()

    def _drop_chunks(self, error: ChunkError, timestamp_ms: int) -> Work:
        """Let go of the chunks at hand, to which the last is missing."""
        offset, key = self._joiner.first_offset, self._joiner.key or b""
        assert offset is not None
        yield from self._dead_letter(error, offset, key, self._joiner.drop(), timestamp_ms) or ()
        self._begin_event(None)

    def _event(
        self, offset: int, key: bytes, data: bytes, timestamp_ms: int, *, artificial: bool = False
    ) -> Work | None:
        """Take one whole event."""
        head, _, position_text = key.rpartition(b":")
        try:
            scope = self._enter(key, head)
            position = key_number(position_text)
            if position == FIRST_POSITION:
                scope.stream.begin_file(data)
            decoded = decode_event(data, scope.stream)
            self._adopt(scope, head)
        except (BinlogError, ValueError) as error:
            return self._dead_letter(error, offset, key, data, timestamp_ms)
        self.bytes += len(data)
        if self._written == 0:
            value = self._serialize(decoded, position, 0, artificial=artificial)
            self._write(key + b":0", value, timestamp_ms)
        if isinstance(decoded.event, TransactionPayloadEvent):
            self._event_at = offset
            payload = decoded.event.payload
            return self._payload(
                decoded.event, lambda: iter((payload,)), len(payload), (key, data, position, timestamp_ms)
            )
        return None

    def _large(self, large: LargeValue, key: bytes, timestamp_ms: int) -> Work:
        """Take an event that is too large to be held."""
        head, _, position_text = key.rpartition(b":")
        self._event_at = large.start
        try:
            scope = self._enter(key, head)
            position = key_number(position_text)
            if position == FIRST_POSITION:
                scope.stream.begin_file(large.head)
            before = scope.save()
            begun = decode_beginning(large.head, large.size, large.crc32, large.tail, scope.stream)
            if begun is not None:
                self._adopt(scope, head)
        except (BinlogError, ValueError) as error:
            yield from self._dead_letter(error, large.start, key, large, timestamp_ms) or ()
            return
        if begun is None and large.size > _MOST_JOINED:
            yield from self._dead_letter(_not_held(large.size), large.start, key, large, timestamp_ms) or ()
            return
        if begun is None:
            with closing(self._reread(large.start, large.stop)) as pieces:
                yield from self._event(large.start, key, b"".join(pieces), timestamp_ms) or ()
            return
        self.bytes += large.size
        decoded = begun.decoded
        if self._written == 0:
            table, step = self._context(decoded, position)
            around = self._form.event.around(
                decoded, begun.field, begun.size, (*scope.name, position, 0), step, table=table
            )
            self._before_large = before
            field_bytes = self._part(large, begun.start, begun.size)
            yield from self._write_parts(key + b":0", around, field_bytes, begun.size, timestamp_ms)
            self._before_large = None
        if isinstance(decoded.event, TransactionPayloadEvent):
            yield from self._payload(
                decoded.event,
                lambda: self._part(large, begun.start, begun.size),
                begun.size,
                (key, large, position, timestamp_ms),
            )

    def _part(self, large: LargeValue, start: int, size: int) -> Iterator[bytes]:
        """Read some bytes of a large event again."""
        with closing(self._reread(large.start, large.stop)) as pieces:
            yield from between(pieces, start, size)

    # -- the log --------------------------------------------------------------------------------------

    def _enter(self, key: bytes, head: bytes) -> _Scope:
        """Return the file that a key names; one that is not known is not at hand until it begins."""
        if head == self._head:
            return self._scopes[0]
        raw_key = RawKey.parse(key)
        name = raw_key.epoch, raw_key.log_file
        for scope in self._scopes:
            if scope.name == name:
                return scope
        tracker = TransactionTracker()
        if self._scopes and self._scopes[0].epoch == raw_key.epoch:
            # A relay log changes files within a transaction.
            tracker = TransactionTracker(self._scopes[0].tracker.standing)
        return _Scope(*name, StreamState(), tracker)

    def _adopt(self, scope: _Scope, head: bytes) -> None:
        """Make a file the one at hand; raises MissingStateError where it has not begun."""
        if head == self._head:
            return
        if scope.stream.format is None:
            raise MissingStateError(
                f"it does not continue the log: {scope.log_file} of epoch {scope.epoch} does not begin with "
                "it"
            )
        if not self._scopes or self._scopes[0] is not scope:
            self._scopes = [scope, *(other for other in self._scopes if other is not scope)][:2]
        self._head = head

    def _context(self, decoded: BinlogEvent, position: int) -> tuple[tuple[str, str] | None, TransactionStep]:
        """Return the table of an event, and its place in its transaction."""
        event = decoded.event
        table_map = event if type(event) is TableMapEvent else decoded.table_map
        table = None if table_map is None else (table_map.database, table_map.table)
        self.events += 1
        scope = self._scopes[0]
        return table, scope.tracker.feed(decoded.header, event, scope.log_file, position)

    # -- output ---------------------------------------------------------------------------------------

    def _serialize(
        self, decoded: BinlogEvent, position: int, sub_index: int, *, artificial: bool = False
    ) -> bytes:
        """Make the record of one event."""
        table, step = self._context(decoded, position)
        return self._form.event(
            decoded, *self._scopes[0].name, position, sub_index, step, table, artificial=artificial
        )

    def _write(self, key: bytes, value: bytes, timestamp_ms: int) -> None:
        """Write a record of the events topic, in chunks where it is too large."""
        for header, piece in split(value, self._form.events_limit):
            headers = None if header is None else [header]
            self.output.add(self._form.topics.events, key, piece, timestamp_ms, headers)

    def _write_parts(
        self,
        key: bytes,
        around: tuple[bytes, bytes],
        parts: Iterator[bytes],
        size: int,
        timestamp_ms: int,
        *,
        dead_letter: bool = False,
    ) -> Work:
        """Write a record in chunks: ``size`` bytes that come in parts, between two others.

        Where some of its chunks are written already, it continues after them, unless they were cut from
        something else: then it begins again with its first chunk, which tells readers to forget the others.
        """
        form = self._form
        topic, limit = form.topics.events, form.events_limit
        if dead_letter:
            topic, limit = form.topics.deadletter, form.deadletter_limit
        before, after = around
        whole = len(before) + size + len(after)
        fingerprint = zlib.crc32(b"%d/%d" % (whole, limit), zlib.crc32(after, zlib.crc32(before)))
        if (dead_letter, fingerprint) != (self._in_dead_letter, self._fingerprint):
            self._in_dead_letter, self._fingerprint, self._chunks_done = dead_letter, fingerprint, 0
        pieces = split_parts(chain((before,), parts, (after,)), whole, limit)
        for index, (header, piece) in enumerate(pieces):
            if index >= self._chunks_done:
                headers = None if header is None else [header]
                self.output.add(topic, key, piece, timestamp_ms, headers)
                self._chunks_done = index + 1
                yield
        self._chunks_done = self._fingerprint = 0
        self._in_dead_letter = False

    def _payload(
        self,
        event: TransactionPayloadEvent,
        payload: Callable[[], Iterator[bytes]],
        size: int,
        place: tuple[bytes, bytes | LargeValue, int, int],
    ) -> Work:
        """Write the events inside a payload; a Kafka transaction may end between any two of them.

        ``payload`` gives its ``size`` bytes; ``place`` is the key of the event, its bytes, its position and
        its record's timestamp.
        """
        key, data, position, timestamp_ms = place
        inner = self._scopes[0].stream.for_payload()
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
                    yield from self._large_inner(
                        inner_data, unpack, inner, inner_key, (position, sub_index, timestamp_ms)
                    )
                else:
                    value = self._serialize(decode_event(inner_data, inner), position, sub_index)
                    self._write(inner_key, value, timestamp_ms)
                self._written = sub_index + 1
                if self.output.full:
                    yield
        except (BinlogError, ChunkError) as error:
            self._before_large = None
            assert self._event_at is not None
            yield from self._dead_letter(error, self._event_at, key, data, timestamp_ms) or ()

    def _large_inner(
        self,
        large: LargeInnerEvent,
        unpack: Callable[[], Iterator[bytes]],
        inner: StreamState,
        key: bytes,
        place: tuple[int, int, int],
    ) -> Work:
        """Take an event inside a payload that is too large to be held; the payload is unpacked again."""
        position, sub_index, timestamp_ms = place
        scope = self._scopes[0]
        before = scope.save()
        begun = decode_beginning(large.head, large.size, 0, b"", inner)
        if begun is None and large.size > _MOST_JOINED:
            raise _not_held(large.size)
        if begun is None:
            data = b"".join(between(unpack(), large.start, large.size))
            self._write(key, self._serialize(decode_event(data, inner), position, sub_index), timestamp_ms)
            return
        table, step = self._context(begun.decoded, position)
        around = self._form.event.around(
            begun.decoded, begun.field, begun.size, (*scope.name, position, sub_index), step, table=table
        )
        self._before_large = before
        field_bytes = between(unpack(), large.start + begun.start, begun.size)
        yield from self._write_parts(key, around, field_bytes, begun.size, timestamp_ms)
        self._before_large = None

    def _dead_letter(
        self, error: Exception, offset: int, key: bytes, data: bytes | LargeValue, timestamp_ms: int
    ) -> Work | None:
        """Write an event to the dead letter topic, with what is wrong with it."""
        try:
            raw_key = RawKey.parse(key)
        except ValueError:
            raw_key = _UNKNOWN_KEY
        kind = type(error).__name__
        self.dead_letters[kind] += 1
        if (kind, raw_key.log_file) not in self._told:
            # The first of its kind in a file is told; the topic has the others, the metric counts them.
            if len(self._told) >= 1000:
                self._told.clear()
            self._told.add((kind, raw_key.log_file))
            _LOG.warning(
                "dead letter", key=key.decode("ascii", "replace"), offset=offset, error=str(error), kind=kind
            )
        form = self._form
        content = DeadLetter(
            service="decoder",
            topic=form.topics.raw,
            offset=offset,
            key=key,
            value=b"" if isinstance(data, LargeValue) else data,
            epoch=raw_key.epoch,
            log_file=raw_key.log_file,
            position=raw_key.position,
            error_class=kind,
            error=str(error),
        ).to_dict()
        if isinstance(data, LargeValue):
            self._event_at = offset
            around = form.dead_letter.around(content, "value", data.size)
            parts = self._part(data, 0, data.size)
            return self._write_parts(key, around, parts, data.size, timestamp_ms, dead_letter=True)
        for header, piece in split(form.dead_letter(content), form.deadletter_limit):
            headers = None if header is None else [header]
            self.output.add(form.topics.deadletter, key, piece, timestamp_ms, headers)
        return None

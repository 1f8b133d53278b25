"""The decoder's state, made of what ``{source}.events`` ends with.

Raw records are decoded a second time from the log file before the last one on, by what decoded them the first
time, until what comes out is what the topic ends with. Where the topic has lost its end and dead letters go
beyond it, the events up to the last of these are written again.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.records import RecordSerializer, is_dead_letter_of
from millrace.avro.registry import SchemaStore
from millrace.avro.service_state import DecoderState, LogScope, Rebuilt
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionTracker
from millrace.contract import GAP, HEADER_CHUNK, HEADER_MARKER, EventKey, RawKey, Topics
from millrace.decoder.settings import DecoderSettings
from millrace.decoder.stage import DecoderStage, Format
from millrace.kafka.client import connect
from millrace.kafka.continuity import TopicChangedError
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.schema_topic import open_schemas
from millrace.kafka.search import first_reaching, last_whole, records_between
from millrace.kafka.state import last_record, newest_offset, oldest_offset
from millrace.kafka.topics import ensure_topics
from millrace.runtime.settings import KafkaSettings
from millrace.stage import FullOutput, Output, OutputRecord, Record

Settings = DecoderSettings

_COMMIT_BYTES: Final = 8 * 1024 * 1024
_FILE_BEGINS: Final = 4


def rebuild(
    settings: DecoderSettings, producer: TransactionalProducer, say: Callable[[str], None]
) -> Rebuilt[DecoderState]:
    """Make the state after the last whole record of the events topic, and the dead letters beside it.

    Raises :class:`TopicChangedError` where the raw topic does not hold what that record was made of.
    """
    del say
    kafka, topics = settings.kafka, settings.names
    raw = range(oldest_offset(kafka, topics.raw), newest_offset(kafka, topics.raw))
    event = last_whole(kafka, topics.events)
    last = _key_of(event)
    dead = _key_of(last_whole(kafka, topics.deadletter, _is_ours))
    target = max(
        (key for key in (last, dead) if key is not None), key=lambda key: key.raw.order, default=None
    )
    if target is None:
        return Rebuilt(DecoderState(raw.start))
    first = next(records_between(kafka, topics.raw, raw.start, raw.stop), None)
    # The registry is asked until the last record is written; the process ends then.
    schemas = open_schemas(settings.kafka, settings.registry, settings.source)
    if first is not None and RawKey.parse(first.key or b"").order > target.raw.order:
        return Rebuilt(
            _beginning_with(first, kafka, topics, schemas),
            [
                (
                    f"{topics.raw} begins after {target.encode().decode()}, which is the last that was "
                    "decoded: what was between, if anything, is in no topic"
                )
            ],
        )
    # Where the first offset is a later one, events were deleted on purpose.
    lost = last is not None or oldest_offset(kafka, topics.events) == 0
    own_gap = last if _is_own_gap(event) else None
    if own_gap is not None:
        start, last = _first_after(kafka, topics, raw, own_gap), None
    else:
        start = raw.start if last is None and lost else _start(kafka, topics, raw, last or target)
    left = next(records_between(kafka, topics.raw, start, raw.stop), None)
    begin = DecoderState(start) if left is None else _beginning_with(left, kafka, topics, schemas)
    if own_gap == target and left is not None:
        return Rebuilt(begin)
    work = _Rebuild(settings, schemas, topics, begin, raw.stop, last, target)
    state, missing = work.state(dead)
    reached = last_record(kafka, topics.raw)
    if state is None or reached is None or RawKey.parse(reached.key or b"").order < target.raw.order:
        raise TopicChangedError(
            f"{topics.raw} does not hold {target.raw.encode().decode()}, from which the last record of "
            f"{topics.events} or {topics.deadletter} was made. Let the reader read the log up to there, then "
            "rebuild the decoder's state"
        )
    if not missing or not lost:
        return Rebuilt(state)
    return Rebuilt(
        state,
        [f"{topics.events} lacks {missing} records that dead letters go beyond: they are written again"],
        write_missing=partial(work.write_missing, producer, missing),
    )


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """Decodes the raw records from ``begin`` to before ``stop`` again, up to ``target``.

    ``last`` is the last event in the topic.
    """

    settings: DecoderSettings
    registry: SchemaStore
    topics: Topics
    begin: DecoderState
    stop: int
    last: EventKey | None
    target: EventKey

    def state(self, dead: EventKey | None) -> tuple[DecoderState | None, int]:
        """Return the state after the last event, or after the last dead letter where that comes later.

        With it goes the number of events between the two, which the topic lacks. None where neither comes.
        """
        found: DecoderState | None = None
        missing = count = 0
        for stage, later in self._decoded():
            if later is None:
                continue
            count += len(later)
            dead_letters = stage.output.groups.get((self.topics.deadletter, 0), ())
            if (found is None and self.last is not None) or any(
                _whole_key(dead_letter) == dead for dead_letter in dead_letters
            ):
                found, missing = stage.state(), count
        return found, missing

    def write_missing(self, producer: TransactionalProducer, missing: int, stored: bytes | None) -> None:
        """Write so many events that come after the last one; ``stored`` is the state as it is until then."""
        rest, left = Output(), missing
        for _, later in self._decoded():
            records = (later or [])[:left]
            left -= len(records)
            rest.extend(self.topics.events, records, sum(len(value or b"") for _, value, _, _ in records))
            if rest.size >= _COMMIT_BYTES or not left:
                producer.send(rest)
                producer.commit(stored)
                rest.clear()
            if not left:
                return

    def _decoded(self) -> Iterator[tuple[DecoderStage, list[OutputRecord] | None]]:
        """Yield the stage with its output wherever a Kafka transaction could end.

        With it go its events that come after the last one that is there, or None before that.
        """
        stage = _stage(self.settings, self.registry, self.topics, self.begin)
        ended = self.last is None
        kafka, start = self.settings.kafka, self.begin.input_offset
        for record in records_between(kafka, self.topics.raw, start, self.stop):
            if RawKey.parse(record.key or b"").order > self.target.raw.order:
                return
            for _ in stage.take([record]):
                later: list[OutputRecord] | None = [] if ended else None
                for event in stage.output.groups.get((self.topics.events, 0), ()):
                    if later is not None:
                        later.append(event)
                    elif _whole_key(event) == self.last:
                        ended, later = True, []
                yield stage, later
                stage.output.clear()


def _stage(
    settings: DecoderSettings, registry: SchemaStore, topics: Topics, begin: DecoderState
) -> DecoderStage:
    """Make a stage that yields wherever it can."""
    ours = topics.of_service("decoder")
    infos = ensure_topics(connect(settings.kafka), settings.topics, ours.kinds, captured=ours.captured)
    form = Format(
        topics,
        EventSerializer(registry, topics.events),
        RecordSerializer(registry, topics.deadletter, "DeadLetter"),
        infos[topics.events].record_limit,
        infos[topics.deadletter].record_limit,
    )

    def read_again(first: int, stop: int) -> Generator[bytes, None, None]:
        for record in records_between(settings.kafka, topics.raw, first, stop):
            yield record.value or b""

    return DecoderStage(form, begin, reread=read_again, output=FullOutput())


def _key_of(record: Record | None) -> EventKey | None:
    return None if record is None or record.key is None else EventKey.parse(_event_key(record.key))


def _event_key(key: bytes) -> bytes:
    """Return the key of an event for that of a dead letter, which may be a raw record's."""
    try:
        EventKey.parse(key)
    except ValueError:
        return key + b":0"
    return key


def _is_ours(record: Record) -> bool:
    return is_dead_letter_of("decoder", record.value)


def _is_own_gap(record: Record | None) -> bool:
    """Return whether a record says that the decoder has skipped what was deleted; none is made of a raw one.

    A gap of the reader's is at position 0.
    """
    if record is None or dict(record.headers or ()).get(HEADER_MARKER) != GAP:
        return False
    return EventKey.parse(record.key or b"").raw.position > 0


def _beginning_with(
    first: Record, settings: KafkaSettings, topics: Topics, registry: SchemaStore
) -> DecoderState:
    """Return the state of a decoder that takes a raw record first.

    In the middle of a log file, the events have how that begins.
    """
    key = RawKey.parse(first.key or b"")
    if key.position <= _FILE_BEGINS:
        return DecoderState(first.offset)

    def is_head(record: Record) -> bool:
        at = EventKey.parse(record.key or b"").raw
        return (at.epoch, at.log_file, at.position) == (key.epoch, key.log_file, _FILE_BEGINS)

    head = last_whole(settings, topics.events, is_head)
    if head is None:
        return DecoderState(first.offset)
    found, stream = EventDeserializer(registry)(head.value or b""), StreamState()
    stream.observe(found.event, found.header.flags)
    log = LogScope(key.epoch, key.log_file, stream.save(), TransactionTracker().save())
    return DecoderState(first.offset, logs=(log,))


def _first_after(settings: KafkaSettings, topics: Topics, raw: range, gap: EventKey) -> int:
    """Return the offset of the first raw record that was left after what was skipped.

    What the reader notes at the head of a file is at position 0; the gap before it is at position 1.
    """
    epoch, number, position = gap.raw.order
    order = epoch, number, 0 if position == 1 else position
    return first_reaching(
        settings, topics.raw, raw, lambda record: RawKey.parse(record.key or b"").order >= order
    )


def _start(settings: KafkaSettings, topics: Topics, raw: range, target: EventKey) -> int:
    """Return the offset of the head of the log file before the one that the target is in."""
    epoch, number, _ = target.raw.order
    order = epoch, number - 1, -1
    return first_reaching(
        settings, topics.raw, raw, lambda record: RawKey.parse(record.key or b"").order >= order
    )


def _whole_key(record: OutputRecord) -> EventKey | None:
    """Return the key of a record that the stage has written, of one in chunks with the last."""
    key, _, _, headers = record
    index, _, count = dict(headers or ()).get(HEADER_CHUNK, b"0/1").partition(b"/")
    if key is None or int(index) + 1 != int(count):
        return None
    return EventKey.parse(_event_key(key))

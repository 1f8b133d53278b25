"""The decoder's state, made of what ``{source}.events`` ends with.

Raw records are decoded a second time from the log file before the last one on, by what decoded them the first
time, until what comes out is what the topic ends with.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Final

from millrace.avro.events import EventSerializer
from millrace.avro.records import RecordSerializer
from millrace.avro.registry import SchemaRegistry
from millrace.avro.service_state import DecoderState, Rebuilt
from millrace.contract import HEADER_CHUNK, EventKey, RawKey, Topics
from millrace.decoder.stage import DecoderStage, Format
from millrace.kafka.client import connect
from millrace.kafka.continuity import TopicChangedError
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.search import first_reaching, last_whole, records_between
from millrace.kafka.state import newest_offset, oldest_offset
from millrace.kafka.topics import ensure_topics
from millrace.runtime.settings import KafkaSettings
from millrace.stage import Record
from services.decoder.settings import DecoderSettings

__all__ = ["Settings", "rebuild"]

Settings = DecoderSettings

_SERVICE_AT: Final = slice(5, 13)
_DECODER: Final = b"\x0edecoder"
"""Where a dead letter's value names its service, behind the schema's id, and how it spells the decoder."""


def rebuild(
    settings: DecoderSettings, producer: TransactionalProducer, say: Callable[[str], None]
) -> Rebuilt[DecoderState]:
    """Make the state after the last whole record of the events topic, and the dead letters beside it.

    Raises :class:`TopicChangedError` where the raw topic does not hold what that record was made of.
    """
    del producer, say
    kafka, topics = settings.kafka, Topics(settings.source)
    raw = range(oldest_offset(kafka, topics.raw), newest_offset(kafka, topics.raw))
    last = _key_of(last_whole(kafka, topics.events))
    dead = _key_of(last_whole(kafka, topics.deadletter, _is_ours))
    target = max(
        (key for key in (last, dead) if key is not None), key=lambda key: key.raw.order, default=None
    )
    if target is None:
        return Rebuilt(DecoderState(raw.start))
    first = next(records_between(kafka, topics.raw, raw.start, raw.stop), None)
    if first is not None and RawKey.parse(first.key or b"").order > target.raw.order:
        return Rebuilt(
            DecoderState(first.offset),
            [
                (
                    f"{topics.raw} begins after {target.encode().decode()}, which is the last that was "
                    "decoded: what was between, if anything, is in no topic"
                )
            ],
        )
    with SchemaRegistry(settings.registry) as registry:
        stage = _stage(settings, registry, topics, _start(kafka, topics, raw, target))
        records = records_between(kafka, topics.raw, stage.next_offset, raw.stop)
        state = _replayed(stage, topics, records, last, dead)
    if state is None:
        raise TopicChangedError(
            f"{topics.raw} does not hold {target.raw.encode().decode()}, of which the last record of "
            f"{topics.events} or {topics.deadletter} was made. Let the reader carry the log up to there, and "
            "rebuild the decoder's state then"
        )
    return Rebuilt(state)


def _stage(settings: DecoderSettings, registry: SchemaRegistry, topics: Topics, start: int) -> DecoderStage:
    """Make a stage that begins at an offset, and yields wherever it can."""
    infos = ensure_topics(connect(settings.kafka), settings.topics, topics.of_service("decoder").kinds)
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

    stage = DecoderStage(form, DecoderState(start), reread=read_again)
    stage.output.settle_bytes = 0
    return stage


def _key_of(record: Record | None) -> EventKey | None:
    return None if record is None or record.key is None else EventKey.parse(_event_key(record.key))


def _event_key(key: bytes) -> bytes:
    """Give the key of an event for that of a dead letter, which may be a raw record's."""
    try:
        EventKey.parse(key)
    except ValueError:
        return key + b":0"
    return key


def _is_ours(record: Record) -> bool:
    return (record.value or b"")[_SERVICE_AT] == _DECODER


def _start(settings: KafkaSettings, topics: Topics, raw: range, target: EventKey) -> int:
    """Give the offset of the head of the log file before the one that the target is in."""
    epoch, number, _ = target.raw.order
    order = epoch, number - 1, -1
    return first_reaching(
        settings, topics.raw, raw, lambda record: RawKey.parse(record.key or b"").order >= order
    )


def _replayed(
    stage: DecoderStage,
    topics: Topics,
    records: Iterator[Record],
    last: EventKey | None,
    dead: EventKey | None,
) -> DecoderState | None:
    """Decode records until the last event and the last dead letter have come; give the state then.

    Where the topic lacks events that come before the last dead letter, it is the state after the last event:
    dead letters that come after it are written again. None where neither comes.
    """
    found: DecoderState | None = None
    missing = False
    wanted = {(topics.events, last), (topics.deadletter, dead)}
    latest = max(key.raw.order for key in (last, dead) if key is not None)
    for record in records:
        if found is not None and RawKey.parse(record.key or b"").order > latest:
            break  # what is wanted still is older than all that is read here
        for _ in stage.take([record]):
            for topic, key in _written(stage):
                missing |= found is not None and topic == topics.events
                if (topic, key) in wanted and not missing:
                    found = stage.state()
            stage.output.clear()
    return found


def _written(stage: DecoderStage) -> Iterator[tuple[str, EventKey]]:
    """Give the keys of whole records that the stage has written."""
    for (topic, _), records in stage.output.groups.items():
        for key, _, _, headers in records:
            index, _, count = dict(headers or ()).get(HEADER_CHUNK, b"0/1").partition(b"/")
            if key is not None and int(index) + 1 == int(count):
                yield topic, EventKey.parse(_event_key(key))

"""The decoder's start: topics, registry, state, and what runs the stage between raw and events."""

from collections.abc import Generator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final

from millrace.avro.events import EventSerializer
from millrace.avro.records import RecordSerializer
from millrace.avro.registry import SchemaStore
from millrace.avro.service_state import DecoderState
from millrace.contract import Topics
from millrace.decoder.settings import DecoderSettings
from millrace.decoder.stage import DecoderStage, Format
from millrace.kafka.chunks import Reread
from millrace.kafka.client import AdminClient, connect
from millrace.kafka.exactly_once import Committer, run_stage, take_over
from millrace.kafka.input import InputReader, Rereader
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.pause import in_its_place
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.schema_topic import confirm_written, open_schemas
from millrace.kafka.topics import TopicInfo
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service, run_service
from services.decoder.metrics import DecoderMetrics

_LOG = get_logger(__name__)

ADVICE: Final = (
    "raise its retention.ms; set MILLRACE_SKIP_GAP=true to resume at the first record that is left"
)


def main() -> int:
    """Run the decoder until it is told to stop; return the process's exit code."""
    return run_service("decoder", DecoderSettings, run)


def run(service: Service[DecoderSettings]) -> None:
    """Decode until ``service.stop`` is set."""
    admin = connect(service.settings.kafka, service.stop)
    in_its_place(service, admin, partial(_run, service, admin))


def _run(service: Service[DecoderSettings], admin: AdminClient) -> None:
    settings = service.settings
    topics = settings.names
    group = f"millrace-decoder-{settings.source}"
    with (
        open_schemas(
            settings.kafka, settings.registry, settings.source, topics=settings.topics, stop=service.stop
        ) as registry,
        InputReader(settings.kafka, topics.raw, group) as reader,
        Rereader(settings.kafka, topics.raw, group) as again,
        TransactionalProducer(settings.kafka, settings.source, "decoder", stop=service.stop) as producer,
        ExitStack() as registered,
    ):
        # Before anybody is fenced: the registry must answer.
        written_by = serializers(registry, topics)
        confirm_written(settings.kafka, admin, registry, topics)
        started = take_over(settings, producer, admin, "decoder", DecoderState, stop=service.stop)
        state, skip_to = begin(reader, started.state, skip_gap=settings.skip_gap)
        committer = Committer(
            producer,
            started.guard,
            state,
            stop=service.stop,
            health=service.health,
            reader=reader,
            schemas=registry,
        )

        def read_again(start: int, stop: int) -> Generator[bytes, None, None]:
            for record in again.records(start, stop, committer.tick):
                yield record.value or b""

        stage = make_stage(topics, started.infos, written_by, state, read_again, skip_to=skip_to)
        for metrics in (
            DecoderMetrics(service.metrics, stage, reader.lag),
            CommitMetrics(service.metrics, "decoder", producer),
        ):
            registered.callback(service.metrics.unregister, metrics)
        service.log.info("decoding", topic=topics.raw, offset=stage.next_offset)
        committer.seek(stage.next_offset, ADVICE)
        run_stage(reader, committer, stage, stop=service.stop, health=service.health)


Serializers = tuple[EventSerializer, RecordSerializer]


def serializers(registry: SchemaStore, topics: Topics) -> Serializers:
    """Register the schemas of events and dead letters."""
    return EventSerializer(registry, topics.events), RecordSerializer(
        registry, topics.deadletter, "DeadLetter"
    )


def make_stage(
    topics: Topics,
    infos: Mapping[str, TopicInfo],
    written_by: Serializers,
    state: DecoderState,
    read_again: Reread,
    *,
    skip_to: int | None,
) -> DecoderStage:
    """Make the stage of a decoder that stands where ``state`` says, but for what it is to skip."""
    event, dead_letter = written_by
    limits = infos[topics.events].record_limit, infos[topics.deadletter].record_limit
    form = Format(topics, event, dead_letter, *limits)
    return DecoderStage(form, state, reread=read_again, write_events=event.compiled(), skip_to=skip_to)


def begin(
    reader: InputReader, state: DecoderState | None, *, skip_gap: bool
) -> tuple[DecoderState, int | None]:
    """Return the state with which to begin, and where, if what was deleted unread is to be skipped."""
    first = reader.first_offset()
    if state is None:
        if first > 0:
            _LOG.warning(
                "what the raw topic has lost is missing in the topics that are made of it", first_offset=first
            )
        return DecoderState(first), None
    return state, first if skip_gap and first > state.place_to_read else None

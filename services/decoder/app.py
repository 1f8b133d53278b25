"""The decoder's start: topics, registry, state, and what runs the stage between raw and events."""

from collections.abc import Generator
from dataclasses import replace

from millrace.avro.events import EventSerializer
from millrace.avro.records import RecordSerializer
from millrace.avro.registry import SchemaRegistry
from millrace.avro.service_state import DecoderState
from millrace.contract import Topics
from millrace.kafka.client import connect
from millrace.kafka.exactly_once import Committer, run_stage, take_over
from millrace.kafka.input import InputReader, reread
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.producer import TransactionalProducer
from millrace.runtime.service import Service, run_service
from services.decoder.metrics import DecoderMetrics
from services.decoder.settings import DecoderSettings
from services.decoder.stage import DecoderStage, Format

__all__ = ["main"]

_ADVICE = "raise its retention.ms; set MILLRACE_SKIP_GAP=true to resume at the first record that is left"


def main() -> int:
    """Run the decoder until it is told to stop; return the process's exit code."""
    return run_service("decoder", DecoderSettings, run)


def run(service: Service[DecoderSettings]) -> None:
    """Decode until ``service.stop`` is set."""
    settings = service.settings
    topics = Topics(settings.source)
    group = f"millrace-decoder-{settings.source}"
    admin = connect(settings.kafka, service.stop)
    with (
        SchemaRegistry(settings.registry, stop=service.stop) as registry,
        InputReader(settings.kafka, topics.raw, group) as reader,
        TransactionalProducer(settings.kafka, settings.source, "decoder", stop=service.stop) as producer,
    ):
        # Before anybody is fenced: the registry must answer.
        serialize_event = EventSerializer(registry, topics.events)
        serialize_dead_letter = RecordSerializer(registry, topics.deadletter, "DeadLetter")
        started = take_over(
            settings,
            producer,
            admin,
            "decoder",
            DecoderState,
            stop=service.stop,
        )
        form = Format(
            topics,
            serialize_event,
            serialize_dead_letter,
            started.infos[topics.events].record_limit,
            started.infos[topics.deadletter].record_limit,
        )
        state = _begin(reader, started.state, skip_gap=settings.skip_gap)

        def read_again(start: int, stop: int) -> Generator[bytes, None, None]:
            for record in reread(settings.kafka, topics.raw, group, start, stop, tick=committer.tick):
                yield record.value or b""

        stage = DecoderStage(form, state, reread=read_again, write_events=serialize_event.compiled())
        DecoderMetrics(service.metrics, stage, reader.lag)
        CommitMetrics(service.metrics, "decoder", producer)
        committer = Committer(
            producer,
            started.guard,
            stage.output,
            stage.state,
            stop=service.stop,
            health=service.health,
            reader=reader,
        )
        service.log.info("decoding", topic=topics.raw, offset=stage.next_offset)
        reader.seek(stage.next_offset, advice=_ADVICE)
        run_stage(reader, committer, stage, stop=service.stop, health=service.health)


def _begin(reader: InputReader, state: DecoderState | None, *, skip_gap: bool) -> DecoderState:
    """Give the state with which to begin: what was deleted unread is left out where that is allowed."""
    first = reader.first_offset()
    if state is None:
        return DecoderState(first)
    if skip_gap and first > state.place_to_read:
        return replace(
            state, input_offset=first, first_chunk_offset=None, sub_index=0, chunk=0, dead_letter=False
        )
    return state

"""The decoder's start: topics, registry, state, and the pipe between raw and events."""

from collections.abc import Generator

from millrace.avro.events import EventSerializer
from millrace.avro.records import RecordSerializer
from millrace.avro.registry import SchemaRegistry
from millrace.avro.state import DecoderState, stored_state
from millrace.contract import Topics
from millrace.kafka.chunks import Reread
from millrace.kafka.client import connect
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.pipe import InputReader, TransactionalProducer, run_pipe
from millrace.kafka.reread import reread
from millrace.kafka.topics import ensure_topics
from millrace.runtime.service import Service, run_service
from services.decoder.decoder import Decoder, Output
from services.decoder.metrics import DecoderMetrics
from services.decoder.settings import DecoderSettings

__all__ = ["main"]

_ADVICE = "raise its retention.ms; set MILLRACE_SKIP_GAP=true to go on at the first record that is left"


def main() -> int:
    """Run the decoder until it is told to stop; return the process's exit code."""
    return run_service("decoder", DecoderSettings, run)


def run(service: Service[DecoderSettings]) -> None:
    """Decode until ``service.stop`` is set."""
    settings = service.settings
    topics = Topics(settings.source)
    infos = ensure_topics(
        connect(settings.kafka),
        settings.topics,
        {topics.raw: "raw", topics.events: "events", topics.deadletter: "deadletter", topics.state: "state"},
    )
    with (
        SchemaRegistry(settings.registry, stop=service.stop) as registry,
        InputReader(settings.kafka, topics.raw, f"millrace-decoder-{settings.source}") as reader,
        TransactionalProducer(settings.kafka, settings.source, "decoder", stop=service.stop) as producer,
    ):
        serialize_event = EventSerializer(registry, topics.events)
        output = Output(
            producer,
            topics,
            serialize_event,
            RecordSerializer(registry, topics.deadletter, "DeadLetter"),
            events_limit=infos[topics.events].record_limit,
            deadletter_limit=infos[topics.deadletter].record_limit,
            write_events=serialize_event.compiled(),
        )
        state = stored_state(DecoderState, producer.open(), topics.state)
        metrics = DecoderMetrics(service.metrics)
        CommitMetrics(service.metrics, "decoder", producer)
        decoder = Decoder(output, metrics, state, reread=_reread(service, topics.raw), stop=service.stop)
        start = _start(reader, state, skip_gap=settings.skip_gap)
        service.log.info("decoding", topic=topics.raw, offset=start)
        decoder.start_at(start)
        reader.seek(start, advice=_ADVICE)

        def measure_lag() -> None:
            metrics.lag.set(reader.lag() or 0)

        run_pipe(
            reader, producer, decoder, stop=service.stop, health=service.health, after_commit=measure_lag
        )


def _reread(service: Service[DecoderSettings], topic: str) -> Reread:
    """Give the function that reads raw records again."""
    settings = service.settings
    group = f"millrace-decoder-{settings.source}"

    def read(start: int, stop: int) -> Generator[bytes, None, None]:
        for record in reread(settings.kafka, topic, group, start, stop, beat=service.health.beat):
            yield record.value() or b""

    return read


def _start(reader: InputReader, state: DecoderState | None, *, skip_gap: bool) -> int:
    """Give the offset at which reading begins."""
    first = reader.first_offset()
    if state is None:
        return first
    offset = state.input_offset if state.first_chunk_offset is None else state.first_chunk_offset
    return max(first, offset) if skip_gap else offset

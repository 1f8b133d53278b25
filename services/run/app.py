"""The start of ``millrace run``, and what it does where the registry or a topic of a table fails.

What lies between the stages in the topics is carried first, from there, as the services do it. Then the
source is read, and what one stage writes the next one takes from memory.

Capture does not wait for the registry. Where that does not answer for longer than a request is repeated, raw
events alone are carried, as by a reader alone, until it does; then the rest is carried from the topics.
"""

import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from millrace.avro.events import EventDeserializer
from millrace.avro.registry import RegistryError, SchemaStore
from millrace.avro.service_state import DecoderState, ReaderState, RowMapperState
from millrace.contract import RUN, SERVICES, Topics
from millrace.kafka.chain import Link
from millrace.kafka.client import AdminClient, connect
from millrace.kafka.exactly_once import Committer, Started, announce, begin, committed_state
from millrace.kafka.input import InputReader, Rereader
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.pause import in_its_place
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.refusals import TopicsRefusedError
from millrace.kafka.schema_topic import confirm_written, open_schemas
from millrace.kafka.state import last_record
from millrace.kafka.topics import ensure_topics
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper.ports import REGISTERING, Ports, serializers
from millrace.rowmapper.row_store import open_row_store
from millrace.rowmapper.takeover import know_rows, make_stage, watch_losses
from millrace.runtime.errors import StopRequestedError
from millrace.runtime.health import Health
from millrace.runtime.service import Service, run_service
from millrace.stage import Groups
from services.decoder import app as decoder_app
from services.decoder.metrics import DecoderMetrics
from services.reader import app as reader_app
from services.rowmapper.app import leave_out
from services.rowmapper.metrics import RowMapperMetrics
from services.run.settings import RunSettings

_RAW_ONLY_S: Final = 30.0
"""How long only raw events are carried at least before the registry is asked again."""

_ASK_EVERY_S: Final = 5.0


class _RegistryAnswers(Exception):  # noqa: N818 - good news
    """The registry answers again: all stages can be at work."""


def main() -> int:
    """Carry a source through all stages until told to stop; return the process's exit code."""
    return run_service(RUN, RunSettings, run)


@dataclass(slots=True)
class _Attempts:
    """What earlier attempts of this process have found."""

    refused: dict[str, str] = field(default_factory=dict)
    """Topics of tables that take no rows, and why."""
    again: bool = False
    registry_error: RegistryError | None = None
    """Why raw events alone are to be carried first."""


def run(service: Service[RunSettings]) -> None:
    """Carry a source until ``service.stop`` is set, or until all files have been read."""
    metrics = ReaderMetrics(service.metrics)
    admin = connect(service.settings.kafka, service.stop)
    in_its_place(service, admin, partial(_run, service, admin, metrics))


def _run(service: Service[RunSettings], admin: AdminClient, metrics: ReaderMetrics) -> None:
    """Carry a source; begin again where topics refuse rows or the registry does not answer."""
    topics = Topics(service.settings.source)
    own = [name for each in SERVICES for name in topics.of_service(each).kinds]
    attempts = _Attempts()
    while True:
        try:
            _attempt(service, admin, metrics, attempts)
        except TopicsRefusedError as error:
            leave_out(error, own, attempts.refused)
            service.log.warning("restarting: topics refuse rows", topics=sorted(error.topics))
        except RegistryError as error:
            if not attempts.again:
                raise
            attempts.registry_error = error
        except _RegistryAnswers:
            service.log.info("the registry answers again")
        else:
            return
        service.health.beat()


def _attempt(
    service: Service[RunSettings], admin: AdminClient, metrics: ReaderMetrics, attempts: _Attempts
) -> None:
    """Take over, carry what lies between the stages, then what comes."""
    settings, topics = service.settings, Topics(service.settings.source)
    if not attempts.again:
        reader_app.examine(_part(service), admin, metrics)
    with (
        open_schemas(
            settings.kafka, settings.registry, settings.source, topics=settings.topics, stop=service.stop
        ) as registry,
        TransactionalProducer(settings.kafka, settings.source, RUN, stop=service.stop) as producer,
    ):
        silence = attempts.registry_error
        written_by = None
        if silence is None:
            try:
                serializers(registry, topics)
                written_by = decoder_app.serializers(registry, topics)
                confirm_written(settings.kafka, admin, registry, topics)
            except RegistryError as error:
                # Before anybody is fenced: the registry must answer, unless it did for this source before.
                if committed_state(settings, admin, "decoder", DecoderState) is None:
                    raise
                silence = error
        ensure_topics(admin, settings.topics, {topics.state: "state"})
        reader, decoder, rowmapper = producer.open(again=attempts.again)
        started = (
            begin(settings, producer, admin, "reader", ReaderState, stored=reader),
            begin(settings, producer, admin, "decoder", DecoderState, stored=decoder),
            begin(settings, producer, admin, "rowmapper", RowMapperState, stored=rowmapper),
        )
        if service.stop.is_set():
            raise StopRequestedError
        announce(producer, *started)
        attempts.again, attempts.registry_error = True, None
        if written_by is None:
            service.log.warning("only raw events are carried", reason=str(silence))
            _carry_raw(service, metrics, producer, started[0])
        else:
            made_of = _Parts(service, admin, registry, producer, *started, written_by, attempts.refused)
            _carry_all(made_of, metrics)


def _part(service: Service[RunSettings], health: Health | None = None) -> Service[ReaderSettings]:
    """Return what the reader is given."""
    health = health or service.health
    return Service("reader", service.settings, service.log, service.stop, health, service.metrics)


# -- without the registry -----------------------------------------------------------------------------


class _NotReady(Health):
    """Passes on the signs of life of a reader, but not that all is at work."""

    def __init__(self, health: Health) -> None:
        super().__init__()
        self._health = health
        health.set_ready(False)

    def beat(self) -> None:
        """Note that the main loop turns."""
        self._health.beat()

    def set_ready(self, ready: bool = True) -> None:  # noqa: ARG002 - its signature
        """Note that the main loop turns."""
        self._health.beat()


def _carry_raw(
    service: Service[RunSettings],
    metrics: ReaderMetrics,
    producer: TransactionalProducer,
    started: Started[ReaderState],
) -> None:
    """Carry raw events until the registry answers: then :class:`_RegistryAnswers` is raised."""
    stage = reader_app.make_stage(service.settings, started, metrics)
    health = _NotReady(service.health)
    committer = Committer(producer, started.guard, started.state, stop=service.stop, health=health)

    def answers() -> bool:
        settings = service.settings
        with open_schemas(settings.kafka, settings.registry, settings.source, stop=service.stop) as registry:
            try:
                registry.check()
            except RegistryError:
                return False
        return True

    with ThreadPoolExecutor(1, "registry") as pool, ExitStack() as registered:
        commits = CommitMetrics(service.metrics, "reader", producer)
        registered.callback(service.metrics.unregister, commits)
        ask_at = time.monotonic() + _RAW_ONLY_S
        asked: Future[bool] | None = None

        def look(_: Groups) -> None:
            nonlocal ask_at, asked
            if asked is not None and asked.done():
                if asked.result() and not service.stop.is_set():
                    if committer.pending:
                        committer.commit()
                    raise _RegistryAnswers
                asked = None
            if asked is None and time.monotonic() >= ask_at:
                ask_at = time.monotonic() + _ASK_EVERY_S
                asked = pool.submit(answers)

        reader_app.carry(_part(service, health), stage, committer, metrics, look)


# -- all stages -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the three stages are made of, once all of their states were taken over."""

    service: Service[RunSettings]
    admin: AdminClient
    registry: SchemaStore
    producer: TransactionalProducer
    reader: Started[ReaderState]
    decoder: Started[DecoderState]
    rowmapper: Started[RowMapperState]
    written_by: decoder_app.Serializers
    refused: Mapping[str, str]


class _Definitions:
    """Lets the row mapper find definitions of tables that the reader has written just before.

    It reads them from their topic, where they show once they are committed.
    """

    def __init__(self, settings: RunSettings, committer: Committer[ReaderState]) -> None:
        self._kafka = settings.kafka
        self._topic = Topics(settings.source).catalog
        self._committer = committer
        self._unseen = False

    def note(self, sent: Groups) -> None:
        """Take note of what the reader has sent."""
        self._unseen = self._unseen or (self._topic, 0) in sent

    def show(self) -> None:
        """Commit those that were written, and wait until they can be read."""
        if self._unseen:
            if self._committer.pending:
                self._committer.commit()
            last_record(self._kafka, self._topic)
            self._unseen = False


def _carry_all(parts: _Parts, metrics: ReaderMetrics) -> None:
    """Carry what lies in the topics between the stages, then what comes from the source."""
    service, producer = parts.service, parts.producer
    settings, stop, health = service.settings, service.stop, service.health
    topics = Topics(settings.source)
    groups = {name: f"millrace-{name}-{settings.source}" for name in SERVICES}

    commit_by = partial(Committer, producer, stop=stop, health=health)
    reader: Committer[Any] = commit_by(parts.reader.guard, parts.reader.state)

    def read_again(start: int, end: int) -> Generator[bytes, None, None]:
        make_visible()
        for record in again.records(start, end, reader.tick):
            yield record.value or b""

    def make_visible() -> None:
        if reader.pending:
            reader.commit()

    with (
        InputReader(settings.kafka, topics.raw, groups["decoder"]) as raw,
        Rereader(settings.kafka, topics.raw, groups["decoder"]) as again,
        InputReader(settings.kafka, topics.events, groups["rowmapper"]) as events,
        ThreadPoolExecutor(REGISTERING, "registry") as pool,
        ExitStack() as registered,
    ):
        reading = reader_app.make_stage(settings, parts.reader, metrics)
        state, skip_to = decoder_app.begin(raw, parts.decoder.state, skip_gap=settings.skip_gap)
        decoder: Committer[Any] = commit_by(
            parts.decoder.guard, state, reader=raw, joins=reader, schemas=parts.registry
        )
        decoding = decoder_app.make_stage(
            topics, parts.decoder.infos, parts.written_by, state, read_again, skip_to=skip_to
        )
        ports = Ports(
            Service("rowmapper", settings, service.log, stop, health, service.metrics),
            parts.admin,
            parts.registry,
            pool,
            producer,
            parts.rowmapper.infos,
            reader.tick,
            before_reading=make_visible,
            leave=registered,
        )
        store, deserialize = open_row_store(settings), EventDeserializer(parts.registry)
        mapped = parts.rowmapper.state or RowMapperState(events.first_offset())
        mapping, binder = make_stage(ports, mapped, deserialize, parts.refused, store=store)
        rowmapper: Committer[Any] = commit_by(
            parts.rowmapper.guard,
            mapped,
            reader=events,
            companion=mapping.known,
            joins=reader,
            table_id=binder.topic_id,
            written=binder.written,
        )
        parts.rowmapper.guard.also = watch_losses(settings, mapping.quarantine, health)
        for each in (
            DecoderMetrics(service.metrics, decoding, raw.lag),
            RowMapperMetrics(service.metrics, mapping, events.lag),
            *(CommitMetrics(service.metrics, name, producer) for name in SERVICES),
        ):
            registered.callback(service.metrics.unregister, each)
        know_rows(ports, store, mapping.known, deserialize, stored=parts.rowmapper.stored)
        definitions = _Definitions(settings, reader)
        links = Link(
            decoding,
            decoder,
            raw,
            producer,
            stop=stop,
            health=health,
            following=Link(mapping, rowmapper, events, producer, stop=stop, health=health),
            advice=decoder_app.ADVICE,
            ready=definitions.show,
        )
        service.log.info(
            "carrying", raw=topics.raw, offset=decoding.next_offset, events_offset=mapping.next_offset
        )
        links.drain(settings.kafka)
        if stop.is_set():
            raise StopRequestedError
        producer.count_offsets(parts.admin, (topics.raw, topics.events))

        def follow(sent: Groups) -> None:
            definitions.note(sent)
            links.take(sent)

        reader_app.carry(_part(service), reading, reader, metrics, follow)

"""Takes over from any other row mapper of the source, and puts the parts of one together.

The service does, and commands that write row topics, or the state, in its place.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from millrace.avro.events import EventDeserializer
from millrace.avro.records import deserialize as deserialize_row
from millrace.avro.registry import SchemaStore
from millrace.avro.service_state import RowMapperState, TableTopic
from millrace.avro.snapshots import SNAPSHOT_LOST
from millrace.contract import Topics
from millrace.dead_letters import count_waiting, lost_in_words, lost_tables
from millrace.kafka.client import connect
from millrace.kafka.exactly_once import Committer, take_over
from millrace.kafka.input import InputReader
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.schema_topic import confirm_written, open_schemas
from millrace.kafka.state import oldest_offset
from millrace.rowmapper.binding import Binder
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.json_format import json_format
from millrace.rowmapper.known_rows import KnownRows
from millrace.rowmapper.ports import REGISTERING, CatalogTopic, Ports, serializers
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.row_store import SqliteRowStore, catch_up, open_row_store
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.snapshot_topic import end_of, merger_of, noted
from millrace.rowmapper.stage import RowMapperStage
from millrace.rowmapper.transaction_output import Sink
from millrace.runtime.health import Health
from millrace.runtime.service import Service
from millrace.stage import FullOutput, Output


@dataclass(frozen=True, slots=True)
class RowMapper:
    """The parts of a row mapper that has taken over its state; ``reader`` is at the state's position."""

    topics: Topics
    reader: InputReader
    producer: TransactionalProducer
    registry: SchemaStore
    deserialize: EventDeserializer
    binder: Binder
    stage: RowMapperStage
    committer: Committer[RowMapperState]


@contextmanager
def assembled(
    service: Service[RowMapperSettings],
    refused: Mapping[str, str] | None = None,
    *,
    all_versions: bool = False,
    completes: bool = False,
    role: str = "",
) -> Iterator[RowMapper]:
    """Take over from any other row mapper of the source, and give the parts of this one.

    One that begins again says which topics took no rows, and why: ``refused``. With ``all_versions`` it knows
    the whole schema history, with ``completes`` the rows by which images are completed. A command in the
    place of the row mapper names itself: ``role``.
    """
    settings = service.settings
    topics = settings.names
    group = f"millrace-rowmapper-{settings.source}"
    admin = connect(settings.kafka, service.stop)
    with (
        open_schemas(
            settings.kafka, settings.registry, settings.source, topics=settings.topics, stop=service.stop
        ) as registry,
        InputReader(settings.kafka, topics.events, group) as reader,
        TransactionalProducer(
            settings.kafka, settings.source, "rowmapper", stop=service.stop, role=role
        ) as producer,
        ThreadPoolExecutor(REGISTERING, "registry") as pool,
        ExitStack() as leave,
    ):
        # Before anybody is fenced: the registry must answer.
        serializers(registry, topics)
        confirm_written(settings.kafka, admin, registry, topics)
        started = take_over(
            settings, producer, admin, "rowmapper", RowMapperState, stop=service.stop, again=bool(refused)
        )
        state = started.state or RowMapperState(reader.first_offset())

        def tick() -> None:
            committer.tick()

        deserialize = EventDeserializer(registry)
        ports = Ports(service, admin, registry, pool, producer, started.infos, tick, leave=leave)
        history = ports.history(Catalog(kept=None)) if all_versions else None
        store = open_row_store(settings) if completes else None
        stage, binder = make_stage(ports, state, deserialize, refused, history, store=store)
        committer = Committer(
            producer,
            started.guard,
            state,
            stop=service.stop,
            health=service.health,
            reader=reader,
            schemas=registry,
            companion=stage.known,
            table_id=binder.topic_id,
            written=binder.written,
        )
        know_rows(ports, store, stage.known, deserialize, stored=started.stored)
        started.guard.also = watch_losses(settings, stage.quarantine, service.health)
        committer.seek(stage.next_offset)
        yield RowMapper(topics, reader, producer, registry, deserialize, binder, stage, committer)


def make_stage(
    ports: Ports,
    state: RowMapperState,
    deserialize: EventDeserializer,
    refused: Mapping[str, str] | None = None,
    history: Catalog | None = None,
    *,
    store: SqliteRowStore | None = None,
    rebuilds: bool = False,
) -> tuple[RowMapperStage, Binder]:
    """Make the stage of a row mapper that stands where ``state`` says, and what binds tables for it.

    ``history`` is what statements made of definitions up to there, None for what the schemas topic says.
    ``store`` has known rows, if any are. One that ``rebuilds`` the state yields wherever it can, and accepts
    topics as they are.
    """
    settings = ports.settings
    noted_topics, merged = ports.noted()
    history = ports.history() if history is None else history
    binder = _binder(ports, noted_topics, refused, history, accept_topics=rebuilds)
    known = KnownRows() if store is None else KnownRows(store, binder.selection.completes)
    quarantine = Quarantine(state.quarantined)
    sink = Sink(ports.topics, FullOutput() if rebuilds else Output(), Counter(), ports.now_us)
    output_format = ports.output_format()
    event_reader, replay = partial(ports.event_reader, deserialize), ports.replay
    buffer_bytes = settings.rows.buffer_mib << 20
    snapshots = ports.snapshots(deserialize, merged)
    merger = merger_of(
        sink,
        output_format,
        binder,
        snapshots,
        quarantine=quarantine,
        known=known,
        reader=event_reader,
        replay=replay,
        records=ports.records,
        first_offset=ports.first_offset,
        deserialize=partial(deserialize_row, ports.registry),
        buffer_bytes=buffer_bytes,
    )
    stage = RowMapperStage(
        state,
        sink,
        output_format,
        binder,
        event_reader(),
        replay=replay,
        buffer_bytes=buffer_bytes,
        quarantine=quarantine,
        known=known,
        snapshots=merger,
        end=snapshots.end_before(state.input_offset),
        end_of=partial(end_of, deserialize),
    )
    return stage, binder


def watch_losses(settings: RowMapperSettings, quarantine: Quarantine, health: Health) -> Callable[[], None]:
    """Count the dead letters that wait; return what looks whether any, or rows of snapshots, were deleted."""
    topics = settings.names
    quarantine.waiting.update(count_waiting(settings.kafka, topics.deadletter, quarantine.tables))
    seen: tuple[object, ...] = ()

    def look() -> None:
        nonlocal seen
        if not topics.reads_another:
            lost = noted(settings.kafka, topics, SNAPSHOT_LOST)
            health.set_loss(topics.snapshot, lost.decode() if lost else None)
        tables = quarantine.tables
        now = (oldest_offset(settings.kafka, topics.deadletter), *((each.name, each.key) for each in tables))
        if tables and now == seen:
            return
        names = lost_tables(settings.kafka, settings.source, tables)
        health.set_loss(topics.deadletter, lost_in_words(topics.deadletter, names))
        seen = now

    return look


def _binder(
    ports: Ports,
    known: Sequence[TableTopic],
    refused: Mapping[str, str] | None,
    history: Catalog,
    *,
    accept_topics: bool = False,
) -> Binder:
    catalog = CatalogTopic(ports)
    return Binder(
        ports.settings,
        ensure_topics=ports.ensure_topics,
        register=ports.register,
        confirm=ports.confirm,
        accepts_any=ports.accepts_any,
        schema=ports.schema,
        read_catalog=catalog.read,
        catalog_grew=catalog.grew,
        known=known,
        refused=refused,
        catalog=history,
        json_format=json_format(ports.settings.rows.format, ports.registry.schema),
        accept_topics=accept_topics,
    )


def know_rows(
    ports: Ports,
    store: SqliteRowStore | None,
    known: KnownRows,
    deserialize: EventDeserializer,
    *,
    stored: bytes | None,
) -> None:
    """Bring known rows to the state that is ``stored``, where there is a store."""
    if store is None:
        return
    ports.leave.callback(store.close)

    def scratch(state: RowMapperState) -> RowMapperStage:
        return RowMapperStage(
            state,
            Sink(ports.topics, Output(), Counter(), ports.now_us),
            ports.output_format(),
            _binder(ports, (), None, ports.history(Catalog(kept=None))),
            ports.event_reader(deserialize),
            replay=ports.replay,
            buffer_bytes=ports.settings.rows.buffer_mib << 20,
            quarantine=Quarantine(),
            known=known,
            learns_only=True,
        )

    catch_up(
        store,
        known,
        stored,
        ports.topics.events,
        scratch=scratch,
        oldest=ports.first_offset,
        records=ports.records,
    )

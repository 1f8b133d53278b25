"""The row mapper's start: topics, registry, catalogue, state, and what runs its stage.

A topic of a table may be deleted, denied or made too small for its rows at any time. Then the Kafka
transaction fails, and the client may become unusable. So the row mapper restarts from its state, and knows
which topics refused rows: their tables are quarantined from the first row that is not published.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from threading import Event
from typing import Any, Final

from millrace.avro.catalog import CatalogEntry
from millrace.avro.compatibility import AlteredColumn, altered_columns, misread
from millrace.avro.events import EventDeserializer
from millrace.avro.records import RecordSerializer, TransactionSerializer
from millrace.avro.records import deserialize as deserialize_row
from millrace.avro.registry import (
    IncompatibleSchemaError,
    SchemaLostError,
    SchemaRefusedError,
    SchemaStore,
    UnknownSchemaError,
)
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import TABLE_TOPIC_PREFIX, RowMapperState, TableTopic
from millrace.avro.single_object import SingleObjectError
from millrace.avro.snapshots import MERGED_KEY, SNAPSHOT_LOST, SnapshotMerged, SnapshotState
from millrace.binlog.errors import BinlogError
from millrace.contract import SourcePosition, Topics
from millrace.dead_letters import count_waiting, lost_in_words, lost_tables
from millrace.kafka.chunks import Reread
from millrace.kafka.client import AdminClient, connect
from millrace.kafka.errors import InputLostError
from millrace.kafka.exactly_once import Committer, run_stage, take_over
from millrace.kafka.input import InputReader, Rereader
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.pause import in_its_place
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import end_offsets, read_topic, record_of
from millrace.kafka.refusals import TopicsRefusedError
from millrace.kafka.schema_topic import confirm_written, open_schemas
from millrace.kafka.state import oldest_offset, state_key
from millrace.kafka.topics import TopicInfo, TopicRefusedError, ensure_table_topics
from millrace.rowmapper.binding import (
    AlteredColumnsError,
    Binder,
    TableIncompatibleError,
    TableRefusedError,
    TopicInfos,
)
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.event_reader import EventReader
from millrace.rowmapper.json_format import json_format
from millrace.rowmapper.known_rows import KnownRows
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.stage import RowMapperStage
from millrace.rowmapper.transaction_output import OutputFormat, Sink
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.health import Health
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service, run_service
from millrace.stage import FullOutput, Output, Record
from services.rowmapper.metrics import RowMapperMetrics
from services.rowmapper.row_store import SqliteRowStore, catch_up, open_row_store
from services.rowmapper.snapshot_topic import SnapshotTopic, end_of, merger_of, noted

_LOG = get_logger(__name__)
_STATEMENT_SHARE: Final = 4
"""How many times a statement's text fits into a record: what is no UTF-8 takes four characters a byte."""

_AGAIN: Final = (
    "they are of a transaction that is decided only now, such as an XA transaction. 'millrace reprocess' "
    "writes events and rows again from the raw topic. Where that lacks them too, 'millrace state rebuild "
    "rowmapper' leaves the transaction to the dead letter topic, and 'millrace snapshot' brings the rows of "
    "its tables"
)

REGISTERING: Final = 8
"""Schemas that are registered at the same time."""

_TICK_S: Final = 0.1


def main() -> int:
    """Run the row mapper until it is stopped; return the process's exit code."""
    return run_service("rowmapper", RowMapperSettings, run)


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


def run(service: Service[RowMapperSettings]) -> None:
    """Map rows until ``service.stop`` is set."""
    admin = connect(service.settings.kafka, service.stop)
    in_its_place(service, admin, partial(_run, service))


def _run(service: Service[RowMapperSettings]) -> None:
    """Map rows; begin again where topics refuse some, and write nothing more to these."""
    refused: dict[str, str] = {}
    own = service.settings.names.of_service("rowmapper").kinds
    while True:
        try:
            _map(service, refused)
        except TopicsRefusedError as error:
            leave_out(error, own, refused)
            service.health.beat()
            service.log.warning("restarting: topics refuse rows", topics=sorted(error.topics))
        else:
            return


def leave_out(error: TopicsRefusedError, own: Collection[str], refused: dict[str, str]) -> None:
    """Add topics that take no rows to those known; raise ``error`` where that is of no use."""
    if not set(own).isdisjoint(error.topics) or refused.keys() >= error.topics.keys():
        raise error
    refused |= {
        topic: f"{reason}. The table's rows wait: 'millrace deadletter redrive' publishes them"
        for topic, reason in error.topics.items()
    }


def _map(service: Service[RowMapperSettings], refused: Mapping[str, str]) -> None:
    """Map rows until ``service.stop`` is set, but none into topics that are ``refused``."""
    with assembled(service, refused, completes=True) as parts, ExitStack() as registered:
        reader, stage = parts.reader, parts.stage
        for metrics in (
            RowMapperMetrics(service.metrics, stage, reader.lag),
            CommitMetrics(service.metrics, "rowmapper", parts.producer),
        ):
            registered.callback(service.metrics.unregister, metrics)
        # The definitions of thousands of tables take a second: while the reader still begins, not after it.
        parts.binder.refresh()
        service.log.info("mapping rows", topic=parts.topics.events, offset=stage.next_offset)
        run_stage(reader, parts.committer, stage, stop=service.stop, health=service.health)


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
    ports: "Ports",
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
    ports: "Ports",
    known: Sequence[TableTopic],
    refused: Mapping[str, str] | None,
    history: Catalog,
    *,
    accept_topics: bool = False,
) -> Binder:
    catalog = _CatalogTopic(ports)
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
    ports: "Ports",
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


def serializers(
    registry: SchemaStore, topics: Topics
) -> tuple[TransactionSerializer, RecordSerializer, RecordSerializer]:
    """Register the schemas of transactions, DDL and dead letters."""
    return (
        TransactionSerializer(registry, topics.transactions),
        RecordSerializer(registry, topics.ddl, "Ddl"),
        RecordSerializer(registry, topics.deadletter, "DeadLetter"),
    )


@dataclass(frozen=True)
class Ports:
    """What the stage asks of Kafka and the registry; whatever takes its time calls ``tick``."""

    service: Service[RowMapperSettings]
    admin: AdminClient
    registry: SchemaStore
    pool: ThreadPoolExecutor
    producer: TransactionalProducer
    infos: Mapping[str, TopicInfo]
    tick: Callable[[], None]
    leave: ExitStack = field(default_factory=ExitStack, kw_only=True)
    """Closes everything that was opened."""
    before_reading: Callable[[], None] = field(default=lambda: None, kw_only=True)
    """Called before events are read a second time."""
    snapshot_written: Event = field(default_factory=Event, kw_only=True)
    """Whether :meth:`noted` has found that a snapshot has written rows."""

    @property
    def settings(self) -> RowMapperSettings:
        """Those of the row mapper."""
        return self.service.settings

    @property
    def topics(self) -> Topics:
        """Those of the source."""
        return self.settings.names

    def output_format(self) -> OutputFormat:
        """Return how records are written, by the registered schemas and the limits of the topics."""
        rows, infos = self.settings.rows, self.infos
        return OutputFormat(
            *serializers(self.registry, self.topics),
            deadletter_limit=infos[self.topics.deadletter].record_limit,
            statement_limit=infos[self.topics.ddl].record_limit // _STATEMENT_SHARE,
            unpacked_limit=rows.unpacked_mib << 20,
            include_query=rows.include_query,
            truncate=rows.truncate,
        )

    def ensure_topics(self, ids: Mapping[str, str | None]) -> Callable[[], TopicInfos]:
        """Begin to create topics of tables unless they exist; give what waits for what they are like."""
        self.tick()
        asked = self.pool.submit(
            copy_context().run, ensure_table_topics, self.admin, self.settings.topics, ids
        )

        def answer() -> TopicInfos:
            return {
                name: TableRefusedError(str(outcome)) if isinstance(outcome, TopicRefusedError) else outcome
                for name, outcome in self._wait(asked).items()
            }

        return answer

    def register(self, schemas: Sequence[tuple[str, dict[str, Any]]]) -> list[int | BinlogError]:
        """Register schemas, several at a time."""

        def register(subject: str, schema: dict[str, Any]) -> int | BinlogError:
            try:
                wrong = self._misread(subject, schema)
                if wrong:
                    effect = "so that consumers would not read the values of earlier records by its schema"
                    return AlteredColumnsError(subject, wrong, effect)
                return self.registry.register(subject, schema)
            except IncompatibleSchemaError as error:
                versions = [*self.registry.subject_schemas(subject).values()]
                altered = altered_columns(versions[-1], schema) if versions else []
                if not altered:
                    return TableIncompatibleError(error.message)
                return AlteredColumnsError(subject, altered, "which the registry refuses as incompatible")
            except SchemaRefusedError as error:
                return TableRefusedError(error.message)

        return [self._wait(future) for future in [self.pool.submit(register, *schema) for schema in schemas]]

    def _misread(self, subject: str, schema: dict[str, Any]) -> list[AlteredColumn]:
        """Return the columns of a table whose values in older records this schema would change."""
        if not self.registry.refuses or schema["name"] != "Envelope":
            return []
        wrong = misread(list(self.registry.subject_schemas(subject).values()), schema)
        return wrong if wrong and not self.registry.accepts_any(subject) else []

    def confirm(self, known: Sequence[tuple[str, dict[str, Any], int]]) -> None:
        """Make sure that ids of an earlier session are those of these schemas, several at a time."""
        for future in [self.pool.submit(self.registry.confirm, *each) for each in known]:
            self._wait(future)

    def accepts_any(self, subject: str) -> bool:
        """Return whether a subject was told to accept incompatible schemas."""
        return bool(self._wait(self.pool.submit(self.registry.accepts_any, subject)))

    def schema(self, schema_id: int) -> dict[str, Any]:
        """Ask for a schema by which rows were written; raises SchemaLostError where it is lost."""
        try:
            return self.registry.schema(schema_id)
        except UnknownSchemaError as error:
            raise SchemaLostError("the registry", "a table", schema_id, "no schema") from error

    def _wait(self, future: "Future[Any]") -> Any:
        while not wait([future], _TICK_S).done:
            self.tick()
        return future.result()

    def noted(self) -> tuple[list[TableTopic], SnapshotMerged]:
        """Read what earlier row mappers noted: the topics of tables, and how far snapshots are merged."""
        known: dict[bytes, TableTopic] = {}
        merged = SnapshotMerged("", 0)
        for record in self.read(self.topics.state):
            key, value = record.key, record.value
            if key == MERGED_KEY:
                merged = SnapshotMerged.from_bytes(value) if value else SnapshotMerged("", 0)
            elif key == state_key("snapshot") and value and SnapshotState.from_bytes(value).rows:
                self.snapshot_written.set()
            elif key == SNAPSHOT_LOST:
                self.service.health.set_loss(self.topics.snapshot, value.decode() if value else None)
            elif key is not None and key.startswith(TABLE_TOPIC_PREFIX):
                known.pop(key, None)
                if value is not None:
                    try:
                        known[key] = TableTopic.from_bytes(value)
                    except SingleObjectError as error:
                        _LOG.warning(
                            "the state of a table's topic cannot be read", key=repr(key), reason=str(error)
                        )
        return list(known.values()), merged

    def history(self, catalog: Catalog | None = None, before: SourcePosition | None = None) -> Catalog:
        """Read what statements made of definitions so far, into ``catalog`` where one is given.

        Where a place is given, that is what they made ``before`` it.
        """
        catalog = Catalog() if catalog is None else catalog
        for record in self.read(self.topics.schemas):
            if record.value is not None:
                try:
                    version = SchemaVersion.from_bytes(record.value)
                    if before is None or version.place.order() < before.order():
                        catalog.restore(version)
                except SingleObjectError as error:
                    raise UserError(
                        f"the definition at offset {record.offset} of {self.topics.schemas} cannot be "
                        f"read: {error}. Read it with the version that wrote it, or run 'millrace reprocess'",
                        ExitCode.DATA,
                    ) from error
        return catalog

    def now_us(self) -> int:
        """Return the present time, in microseconds since 1970."""
        return time.time_ns() // 1000

    def read(self, topic: str, start: int = 0) -> Iterator[Record]:
        """Read the records of a topic of one partition, from an offset on."""
        return map(record_of, read_topic(self.settings.kafka, topic, start=start))

    def end(self, topic: str) -> int:
        """Ask where a topic of one partition ends."""
        return end_offsets(self.admin, [(topic, 1)])[topic]

    def snapshots(self, deserialize: EventDeserializer, merged: SnapshotMerged) -> SnapshotTopic:
        """Return the snapshot topic, of which so much is merged."""
        return SnapshotTopic(
            self.settings.kafka,
            self.admin,
            self.topics,
            deserialize,
            self.leave,
            merged=merged,
            health=self.service.health,
            has_rows=self.snapshot_written.is_set(),
            before_reading=self.before_reading,
        )

    def first_offset(self) -> int:
        """Return the offset of the first event that the topic still has."""
        return oldest_offset(self.settings.kafka, self.topics.events)

    def event_reader(self, deserialize: EventDeserializer) -> EventReader:
        """Make what reads events."""
        return EventReader(deserialize, self.reread, unpacked_limit=self.settings.rows.unpacked_mib << 20)

    @property
    def reread(self) -> Reread:
        """What reads records of events again, in pieces."""

        def read(start: int, stop: int) -> Generator[bytes, None, None]:
            for record in self.records(start, stop):
                yield record.value or b""

        return read

    def replay(self, start: int, stop: int) -> Iterator[Sequence[Record]]:
        """Read the records of events from one offset to before another a second time, in batches."""
        self.before_reading()
        try:
            yield from self._again.batches(start, stop, self.tick)
        except InputLostError as error:
            raise InputLostError(f"{error.message.partition(';')[0]}; {_AGAIN}") from error

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Read records as :meth:`replay` does, one by one."""
        return chain.from_iterable(self.replay(start, stop))

    @cached_property
    def _again(self) -> Rereader:
        group = f"millrace-rowmapper-{self.settings.source}"
        return self.leave.enter_context(Rereader(self.settings.kafka, self.topics.events, group))


class _CatalogTopic:
    """Reads the new records of the catalogue topic."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._topic = ports, ports.topics.catalog
        self._start = self._read_to = 0
        self._asked_after = -1

    def grew(self, must: bool) -> bool:
        """Say whether something was committed that was not read; one question to a broker.

        It is asked once in each Kafka transaction of ours, and whenever it ``must`` be.
        """
        if not must and self._asked_after == self._ports.producer.commits:
            return False
        self._asked_after = self._ports.producer.commits
        return self._end() > self._read_to

    def _end(self) -> int:
        return self._ports.end(self._topic)

    def read(self) -> Iterator[CatalogEntry]:
        """Yield the definitions that have come, those of open Kafka transactions included."""
        end = self._end()
        if end <= self._read_to:
            return
        self._read_to = end
        for record in self._ports.read(self._topic, self._start):
            self._ports.tick()
            self._start = record.offset + 1
            if record.value is not None:
                yield self._entry(record.value, record.offset)

    def _entry(self, value: bytes, offset: int) -> CatalogEntry:
        try:
            return CatalogEntry.from_bytes(value)
        except SingleObjectError as error:
            raise UserError(
                f"the definition at offset {offset} of {self._topic} cannot be read: {error}", ExitCode.DATA
            ) from error

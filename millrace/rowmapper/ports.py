"""What the row mapper's stage asks of Kafka and the registry."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from threading import Event
from typing import Any, Final

from millrace.avro.catalog import CatalogEntry
from millrace.avro.compatibility import AlteredColumn, altered_columns, misread
from millrace.avro.events import EventDeserializer
from millrace.avro.records import RecordSerializer, TransactionSerializer
from millrace.avro.registry import (
    IncompatibleSchemaError,
    SchemaLostError,
    SchemaRefusedError,
    SchemaStore,
    UnknownSchemaError,
)
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import TABLE_TOPIC_PREFIX, TableTopic
from millrace.avro.single_object import SingleObjectError
from millrace.avro.snapshots import MERGED_KEY, SNAPSHOT_LOST, SnapshotMerged, SnapshotState
from millrace.binlog.errors import BinlogError
from millrace.contract import SourcePosition, Topics
from millrace.kafka.chunks import Reread
from millrace.kafka.client import AdminClient
from millrace.kafka.errors import InputLostError
from millrace.kafka.input import Rereader
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import end_offsets, read_topic, record_of
from millrace.kafka.state import oldest_offset, state_key
from millrace.kafka.topics import TopicInfo, TopicRefusedError, ensure_table_topics
from millrace.rowmapper.binding import (
    AlteredColumnsError,
    TableIncompatibleError,
    TableRefusedError,
    TopicInfos,
)
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.event_reader import EventReader
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.snapshot_topic import SnapshotTopic
from millrace.rowmapper.transaction_output import OutputFormat
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service
from millrace.stage import Record

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


class CatalogTopic:
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

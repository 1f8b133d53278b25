"""The row mapper's start: topics, registry, catalogue, state, and the pipe between events and rows."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from millrace.avro.catalog import CatalogEntry
from millrace.avro.events import EventDeserializer
from millrace.avro.records import RecordSerializer, TransactionSerializer
from millrace.avro.registry import SchemaRegistry
from millrace.avro.single_object import SingleObjectError
from millrace.avro.state import RowMapperState, stored_state
from millrace.binlog.errors import UnsupportedError
from millrace.contract import Topics
from millrace.kafka.chunks import Reread
from millrace.kafka.client import connect
from millrace.kafka.errors import translated
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.pipe import InputReader, Record, TransactionalProducer, run_pipe
from millrace.kafka.read import end_offsets, read_topic
from millrace.kafka.reread import reread
from millrace.kafka.topics import TopicInfo, ensure_topics
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.service import Service, run_service
from millrace.runtime.settings import KafkaSettings
from services.rowmapper.incoming import Incoming, IncomingReader
from services.rowmapper.mapper import Mapper
from services.rowmapper.metrics import RowMapperMetrics
from services.rowmapper.publisher import Publisher
from services.rowmapper.settings import RowMapperSettings
from services.rowmapper.tables import Tables

__all__ = ["RowMapper", "assembled", "main"]

_KINDS: Final = ("events", "catalog", "transactions", "ddl", "deadletter", "state")
_STATEMENT_SHARE: Final = 4
"""How many times a statement's text fits into a record: what is no UTF-8 takes four characters a byte."""


def main() -> int:
    """Run the row mapper until it is told to stop; return the process's exit code."""
    return run_service("rowmapper", RowMapperSettings, run)


@dataclass(frozen=True, slots=True)
class RowMapper:
    """The parts of a row mapper that has taken over its state; ``reader`` stands where the state says."""

    topics: Topics
    reader: InputReader
    producer: TransactionalProducer
    registry: SchemaRegistry
    deserialize: EventDeserializer
    mapper: Mapper
    tables: Tables
    publisher: Publisher


def run(service: Service[RowMapperSettings]) -> None:
    """Map rows until ``service.stop`` is set."""
    with assembled(service) as parts:
        reader, mapper = parts.reader, parts.mapper
        metrics = RowMapperMetrics(service.metrics, mapper, parts.tables)
        CommitMetrics(service.metrics, "rowmapper", parts.producer)
        service.log.info("mapping rows", topic=parts.topics.events, offset=mapper.next_offset)

        def measure_lag() -> None:
            metrics.lag = reader.lag() or 0

        run_pipe(
            reader, parts.producer, mapper, stop=service.stop, health=service.health, after_commit=measure_lag
        )


@contextmanager
def assembled(service: Service[RowMapperSettings]) -> Iterator[RowMapper]:
    """Take over from any other row mapper of the source, and give the parts of this one."""
    settings = service.settings
    topics = Topics(settings.source)
    group = f"millrace-rowmapper-{settings.source}"
    admin = connect(settings.kafka)
    infos = ensure_topics(admin, settings.topics, {f"{settings.source}.{kind}": kind for kind in _KINDS})
    with (
        SchemaRegistry(settings.registry, stop=service.stop) as registry,
        InputReader(settings.kafka, topics.events, group) as reader,
        TransactionalProducer(settings.kafka, settings.source, "rowmapper", stop=service.stop) as producer,
    ):
        deserialize = EventDeserializer(registry)
        serialize_transaction = TransactionSerializer(registry, topics.transactions)
        serialize_ddl = RecordSerializer(registry, topics.ddl, "Ddl")
        serialize_dead_letter = RecordSerializer(registry, topics.deadletter, "DeadLetter")
        state = stored_state(RowMapperState, producer.open(), topics.state)
        if state is None:
            state = RowMapperState(input_offset=reader.first_offset())
        mapper = Mapper(
            state,
            producer,
            IncomingReader(deserialize, _reread(service)),
            _replay(service, deserialize),
            buffer_bytes=settings.rows.buffer_mib << 20,
            health=service.health,
            stop=service.stop,
        )
        catalog = _CatalogTopic(settings.kafka, topics.catalog)
        tables = Tables(
            settings,
            registry,
            ensure_topic=_topic_maker(settings),
            read_catalog=catalog.read,
            catalog_grew=catalog.grew,
            before_waiting=mapper.commit,
            quarantined=state.quarantined,
            server_version=state.server_version,
        )
        publisher = Publisher(
            topics,
            tables,
            mapper.sink,
            serialize_transaction=serialize_transaction,
            serialize_ddl=serialize_ddl,
            serialize_dead_letter=serialize_dead_letter,
            deadletter_limit=infos[topics.deadletter].record_limit,
            statement_limit=infos[topics.ddl].record_limit // _STATEMENT_SHARE,
            include_query=settings.rows.include_query,
        )
        mapper.use(tables, publisher)
        reader.seek(state.input_offset)
        yield RowMapper(topics, reader, producer, registry, deserialize, mapper, tables, publisher)


def _topic_maker(settings: RowMapperSettings) -> Callable[[str], TopicInfo]:
    """Give the function that creates a table's topic unless it exists, and says what it is like."""
    admin = connect(settings.kafka)
    with translated("looking up topics"):
        names = admin.list_topics(timeout=30).topics
    tables = {name for name in names if name.startswith(f"{settings.source}.") and name.count(".") == 2}

    def make(topic: str) -> TopicInfo:
        if topic not in tables and len(tables) >= settings.topics.max_tables:
            raise UnsupportedError(
                f"there are {len(tables)} table topics and MILLRACE_TOPICS_MAX_TABLES is "
                f"{settings.topics.max_tables}, so that {topic} is not created"
            )
        partitions = settings.topics.table_partitions
        info = ensure_topics(admin, settings.topics, {topic: "table"}, partitions=partitions)[topic]
        tables.add(topic)
        return info

    return make


class _CatalogTopic:
    """Reads what the catalogue topic has beyond what was read before."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings, self._topic = settings, topic
        self._admin = connect(settings)
        self._start = self._end = 0

    def grew(self) -> bool:
        """Say whether something was committed since this was asked last; one question to a broker."""
        before = self._end
        self._end = end_offsets(self._admin, [(self._topic, 1)])[self._topic]
        return self._end > before

    def read(self) -> Iterator[CatalogEntry]:
        """Yield the definitions that have come, those of open Kafka transactions included."""
        self.grew()
        for message in read_topic(self._settings, self._topic, start=self._start):
            self._start = (message.offset() or 0) + 1
            value = message.value()
            if value is not None:
                yield self._entry(value, self._start - 1)

    def _entry(self, value: bytes, offset: int) -> CatalogEntry:
        try:
            return CatalogEntry.from_bytes(value)
        except SingleObjectError as error:
            raise UserError(
                f"the definition at offset {offset} of {self._topic} cannot be read: {error}", ExitCode.DATA
            ) from error


def _reread(service: Service[RowMapperSettings]) -> Reread:
    """Give the function that reads records of events again, in pieces."""

    def read(start: int, stop: int) -> Generator[bytes, None, None]:
        for record in _records(service, start, stop):
            yield record.value() or b""

    return read


def _replay(
    service: Service[RowMapperSettings], deserialize: EventDeserializer
) -> Callable[[int, int], Iterator[Incoming]]:
    """Give the function that reads events a second time."""

    def replay(start: int, stop: int) -> Iterator[Incoming]:
        incoming = IncomingReader(deserialize, _reread(service))
        for record in _records(service, start, stop):
            taken = incoming.take(record)
            if isinstance(taken, Incoming):
                yield taken

    return replay


def _records(service: Service[RowMapperSettings], start: int, stop: int) -> Iterator[Record]:
    settings = service.settings
    topic, group = Topics(settings.source).events, f"millrace-rowmapper-{settings.source}"
    return reread(settings.kafka, topic, group, start, stop, beat=service.health.beat)

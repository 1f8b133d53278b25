"""The row mapper on real events without Kafka: logs in, what lies in the topics out.

Events come through the real codec, serializer and transaction tracker, as the decoder writes them. The topics
are lists in memory; a transaction of theirs is there whole when it is committed, or not at all.
"""

import threading
from collections import defaultdict

from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.records import RecordSerializer, TransactionSerializer, deserialize
from millrace.avro.state import RowMapperState
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import TransactionPayloadEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.file import iter_events
from millrace.binlog.state import StreamState
from millrace.binlog.stream import decode_event
from millrace.binlog.transaction import TransactionTracker
from millrace.contract import EventKey, Topics
from millrace.kafka.chunks import HELD_BYTES, split
from millrace.kafka.topics import TopicInfo
from millrace.runtime.health import Health
from services.rowmapper.incoming import Incoming, IncomingReader
from services.rowmapper.mapper import Mapper
from services.rowmapper.publisher import Publisher
from services.rowmapper.settings import RowMapperSettings
from services.rowmapper.tables import Tables

SOURCE = "t"


class Record:
    """A record as Kafka gives it."""

    def __init__(self, key, value, offset, timestamp_ms, headers=None):
        self._key, self._value, self._offset = key, value, offset
        self._timestamp_ms, self._headers = timestamp_ms, headers

    def key(self):
        return self._key

    def value(self):
        return self._value

    def offset(self):
        return self._offset

    def timestamp(self):
        return 1, self._timestamp_ms

    def headers(self):
        return self._headers


class EventsTopic:
    """``{source}.events`` as the decoder writes it; every third offset is that of no record.

    Events of more than ``limit`` bytes come in chunks.
    """

    def __init__(self, limit=1 << 30):
        self.records = []
        self._limit = limit
        self._serialize = EventSerializer()
        self._tracker = TransactionTracker()
        self._tables = {}

    def add_file(self, path, epoch=0):
        state = StreamState()
        with path.open("rb") as stream:
            for position, data in iter_events(stream):
                try:
                    decoded = decode_event(data, state)
                except BinlogError:
                    continue
                self.add(decoded, epoch, path.name, position, 0)
                if isinstance(decoded.event, TransactionPayloadEvent):
                    inner = state.for_payload()
                    for number, inner_data in enumerate(decoded.event.events(), 1):
                        self.add(decode_event(inner_data, inner), epoch, path.name, position, number)
        return self

    def add(self, decoded, epoch, log_file, position, sub_index):
        event, header = decoded.event, decoded.header
        table = None
        if isinstance(event, TableMapEvent):
            table = self._tables[event.table_id] = event.database, event.table
        elif isinstance(event, RowsEvent):
            table = self._tables.get(event.table_id)
        step = self._tracker.feed(header, event, log_file, position)
        value = self._serialize(decoded, epoch, log_file, position, sub_index, step, table)
        key = EventKey(header.server_id, epoch, log_file, position, sub_index).encode()
        for chunk, piece in split(value, self._limit):
            offset = self.records[-1].offset() + 1 + (len(self.records) % 3 == 0) if self.records else 5
            headers = None if chunk is None else [chunk]
            self.records.append(Record(key, piece, offset, 1000 * header.timestamp, headers))

    def add_marker(self, kind):
        offset = self.records[-1].offset() + 1
        self.records.append(Record(b"1:0:x:4:0", b"why", offset, 0, [("marker", kind)]))

    def since(self, offset):
        return [record for record in self.records if record.offset() >= offset]


class Producer:
    """Keeps what is committed; ``cut_every`` records a commit is due."""

    def __init__(self, cut_every=10_000):
        self.topics = defaultdict(list)
        self.state = None
        self.commits = 0
        self.committed = lambda: None
        self.pending = False
        self._cut_every = cut_every
        self._open = []

    @property
    def due(self):
        return len(self._open) >= self._cut_every

    def produce(self, topic, key, value, timestamp_ms, headers=None, *, partition=0):
        self.pending = True
        self._open.append((topic, key, value, headers))

    def produce_batch(self, topic, records):
        for key, value, timestamp_ms in records:
            self.produce(topic, key, value, timestamp_ms)

    def commit(self, state):
        for topic, key, value, headers in self._open:
            self.topics[topic].append((key, value, headers))
        self._open = []
        self.pending = False
        self.state = state
        self.commits += 1
        self.committed()

    def abort(self):
        self._open = []
        self.pending = False


class Registry:
    """Gives ids to schemas."""

    def __init__(self):
        self.schemas = []
        self.subjects = defaultdict(list)

    def register(self, subject, schema, *, always=False):
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        if schema_id not in self.subjects[subject]:
            self.subjects[subject].append(schema_id)
        return schema_id

    def schema(self, schema_id):
        return self.schemas[schema_id - 1]


class World:
    """Everything that outlives a process: topics, registry, state. ``limit`` is that of a row's record."""

    def __init__(self, events, *, cut_every=10_000, catalog=(), limit=1 << 20, held_bytes=HELD_BYTES, **rows):
        self.held_bytes = held_bytes
        self.events = events
        self.registry = Registry()
        self.producer = Producer(cut_every)
        self.catalog = list(catalog)
        self.limit = limit
        self.settings = RowMapperSettings(
            source=SOURCE,
            kafka={"bootstrap_servers": "localhost:1"},
            registry={"url": "http://localhost:1"},
            rows=rows,
        )
        self.stop = threading.Event()
        self.replays = 0
        self.looks = 0

    def start(self):
        """Start a row mapper where the state says."""
        topics = Topics(SOURCE)
        stored = self.producer.state
        self.producer.abort()
        state = RowMapperState(0) if stored is None else RowMapperState.from_bytes(stored)
        deserialize_event = EventDeserializer()
        read = 0

        def read_catalog():
            nonlocal read
            new, read = self.catalog[read:], len(self.catalog)
            return new

        def catalog_grew():
            self.looks += 1
            return len(self.catalog) > read

        def reread(start, stop):
            for record in self.events.since(start):
                if record.offset() >= stop:
                    return
                yield record.value()

        def incoming_reader():
            return IncomingReader(deserialize_event, reread, held_bytes=self.held_bytes)

        def replay(start, stop):
            self.replays += 1
            reader = incoming_reader()
            for record in self.events.since(start):
                if record.offset() >= stop:
                    return
                taken = reader.take(record)
                if isinstance(taken, Incoming):
                    yield taken

        mapper = Mapper(
            state,
            self.producer,
            incoming_reader(),
            replay,
            buffer_bytes=self.settings.rows.buffer_mib << 20,
            health=Health(),
            stop=self.stop,
        )
        tables = Tables(
            self.settings,
            self.registry,
            ensure_topic=lambda _: TopicInfo(1, self.limit - TopicInfo(1, 0).record_limit),
            read_catalog=read_catalog,
            catalog_grew=catalog_grew,
            before_waiting=mapper.commit,
            quarantined=state.quarantined,
            server_version=state.server_version,
        )
        self.tables_of_last = tables
        publisher = Publisher(
            topics,
            tables,
            mapper.sink,
            serialize_transaction=TransactionSerializer(self.registry, topics.transactions),
            serialize_ddl=RecordSerializer(self.registry, topics.ddl, "Ddl"),
            serialize_dead_letter=RecordSerializer(self.registry, topics.deadletter, "DeadLetter"),
            deadletter_limit=1000,
            statement_limit=1000,
            include_query=self.settings.rows.include_query,
            clock=lambda: 1.0,
        )
        mapper.use(tables, publisher)
        return mapper, self.events.since(state.input_offset)

    def run(self, batch=50):
        """Run a row mapper over all that is there, and commit."""
        mapper, records = self.start()
        for start in range(0, len(records), batch):
            mapper.process(records[start : start + batch])
            if self.producer.due:
                self.producer.commit(mapper.state())
        self.producer.commit(mapper.state())
        return mapper

    def read(self, topic):
        """All records of a topic as (key, value), decoded."""
        return [
            (key and self._key(key), deserialize(self.registry, value))
            for key, value, _ in self.producer.topics[topic]
        ]

    def _key(self, key):
        return deserialize(self.registry, key) if key[:1] == b"\x00" else key.decode()

    @property
    def tables(self):
        """Names of the table topics."""
        return sorted(topic for topic in self.producer.topics if topic.count(".") == 2)

"""The row mapper on real events without Kafka: logs in, what lies in the topics out.

Events come through the real codec, serializer and transaction tracker, as the decoder writes them. The topics
are lists in memory; a transaction of theirs is there whole when it is committed, or not at all.
"""

from collections import Counter, defaultdict
from dataclasses import replace

from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.records import RecordSerializer, TransactionSerializer, deserialize
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import TABLE_TOPIC_PREFIX, RowMapperState, TableTopic
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import TransactionPayloadEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.file import iter_events
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionTracker
from millrace.contract import EventKey, Topics
from millrace.kafka.chunks import HELD_BYTES, split
from millrace.kafka.topics import TableTopicInfo
from millrace.rowmapper.binding import Binder
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.event_reader import EventReader, Incoming, Unreadable
from millrace.rowmapper.json_format import json_format
from millrace.rowmapper.known_rows import KnownRows
from millrace.rowmapper.publication import Publisher
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.stage import RowMapperStage
from millrace.stage import Output, Record
from services.rowmapper.row_store import SqliteRowStore, catch_up
from tests.stages import Ledger

SOURCE = "t"


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
            headers = None if chunk is None else [chunk]
            self.put(key, piece, 1000 * header.timestamp, headers)

    def add_marker(self, kind):
        self.put(b"1:0:x:4:0", b"why", 0, [("marker", kind)])

    def put(self, key, value, timestamp_ms=0, headers=None):
        """Add a record as it is."""
        offset = self.records[-1].offset + 1 + (len(self.records) % 3 == 0) if self.records else 5
        self.records.append(Record(offset, timestamp_ms, key, value, headers))

    def since(self, offset):
        return [record for record in self.records if record.offset >= offset]


class Registry:
    """Gives ids to schemas."""

    def __init__(self):
        self.schemas = []
        self.subjects = defaultdict(list)

    def register(self, subject, schema):
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

    unpacked_limit = 64 << 20
    partitions = 1

    def __init__(
        self,
        events,
        *,
        cut_every=10**9,
        catalog=(),
        limit=1 << 20,
        held_bytes=HELD_BYTES,
        selection=None,
        store=None,
        **rows,
    ):
        self.store = store
        """Path of the store of known rows."""
        self.oldest = 0
        """Offset of the first event that is still there."""
        if store is not None:
            rows = {"complete": "%.%", "store": store.parent, **rows}
        self.held_bytes = held_bytes
        self.events = events
        self.registry = Registry()
        self.ledger = Ledger(cut_every)
        self.catalog = list(catalog)
        self.limit = limit
        self.compacted = False
        self.settings = RowMapperSettings(
            source=SOURCE,
            kafka={"bootstrap_servers": "localhost:1"},
            registry={"url": "http://localhost:1"},
            rows=rows,
            **(selection or {}),
        )
        self.replays = 0
        self.looks = 0
        self.topics = {}
        """Ids of the topics of tables; what is an exception is what creating that topic raises."""
        self.refused = {}
        """What the registry says of a subject."""

    @property
    def state(self):
        return self.ledger.state

    def start(self):
        """Start a row mapper where the state says."""
        topics = Topics(SOURCE)
        state = self.state or RowMapperState(0)
        deserialize_event = EventDeserializer()
        read = 0

        def read_catalog():
            nonlocal read
            new, read = self.catalog[read:], len(self.catalog)
            return new

        asked_after = -1

        def catalog_grew(must):
            nonlocal asked_after
            if not must and asked_after == self.ledger.commits:
                return False
            asked_after = self.ledger.commits
            self.looks += 1
            return len(self.catalog) > read

        def reread(start, stop):
            for record in self.events.since(start):
                if record.offset >= stop:
                    return
                yield record.value

        def event_reader():
            return EventReader(
                deserialize_event, reread, unpacked_limit=self.unpacked_limit, held_bytes=self.held_bytes
            )

        def replay(start, stop):
            self.replays += 1
            reader = event_reader()
            for record in self.events.since(start):
                if record.offset >= stop:
                    return
                taken = reader.take(record)
                if isinstance(taken, Incoming | Unreadable):
                    yield taken

        self.event_reader, self.replay = event_reader, replay
        binder = Binder(
            self.settings,
            ensure_topics=self.ensure_topics,
            register=self.register,
            schema=self.registry.schema,
            read_catalog=read_catalog,
            catalog_grew=catalog_grew,
            known=self.known_topics(),
            catalog=self.history(),
            json_format=json_format(self.settings.rows.format, self.registry.schema),
        )
        store = None if self.store is None else SqliteRowStore(self.store)
        publisher = Publisher(
            topics,
            binder,
            Quarantine(state.quarantined),
            Output(),
            Counter(state.counters),
            serialize_transaction=TransactionSerializer(self.registry, topics.transactions),
            serialize_ddl=RecordSerializer(self.registry, topics.ddl, "Ddl"),
            serialize_dead_letter=RecordSerializer(self.registry, topics.deadletter, "DeadLetter"),
            deadletter_limit=1000,
            statement_limit=1000,
            unpacked_limit=self.unpacked_limit,
            include_query=self.settings.rows.include_query,
            truncate=self.settings.rows.truncate,
            now_us=lambda: 1_000_123,
            known=None if store is None else KnownRows(store, binder.selection.completes),
        )
        buffer_bytes = self.settings.rows.buffer_mib << 20
        if store is not None:
            self._catch_up(store, publisher, event_reader, replay, buffer_bytes)
        self.ledger.written_as = publisher.binder.written
        return RowMapperStage(state, publisher, event_reader(), replay, buffer_bytes=buffer_bytes)

    def _catch_up(self, store, publisher, event_reader, replay, buffer_bytes):
        """Bring the store to the state, as the row mapper does when it starts."""

        def nothing(*_):
            raise AssertionError("no topic, no schema")

        def scratch(state):
            binder = Binder(
                self.settings,
                ensure_topics=nothing,
                register=nothing,
                schema=nothing,
                read_catalog=lambda: self.catalog,
                catalog_grew=lambda _: True,
                catalog=self.history(Catalog(kept=None)),
            )
            learning = replace(
                publisher,
                binder=binder,
                quarantine=Quarantine(),
                output=Output(),
                counters=Counter(),
                learn_only=True,
            )
            return RowMapperStage(state, learning, event_reader(), replay, buffer_bytes=buffer_bytes)

        def records(start, stop):
            assert start >= self.oldest
            return (record for record in self.events.since(start) if record.offset < stop)

        catch_up(
            store,
            publisher.known,
            None if self.state is None else self.state.to_bytes(),
            Topics(SOURCE).events,
            scratch=scratch,
            oldest=lambda: self.oldest,
            records=records,
        )
        self.ledger.companion = publisher.known

    def history(self, catalog=None):
        """Read what statements made of definitions, as the row mapper does when it starts."""
        catalog = catalog or Catalog()
        for _, _, value, *_ in self.ledger.topics.get(Topics(SOURCE).schemas, ()):
            catalog.restore(SchemaVersion.from_bytes(value))
        return catalog

    def ensure_topics(self, ids):
        """Create topics as Kafka would, and compare their ids."""
        found = {}
        for name, wanted in ids.items():
            known = self.topics.setdefault(name, f"id of {name}")
            if isinstance(known, Exception):
                found[name] = known
            elif wanted is not None and wanted != known:
                found[name] = BinlogError(f"{name} is another one")
            else:
                found[name] = TableTopicInfo(
                    self.partitions,
                    self.limit - TableTopicInfo(1, 0).record_limit,
                    id=known,
                    compacted=self.compacted,
                )
        return found

    def register(self, schemas):
        return [
            self.refused.get(subject) or self.registry.register(subject, schema)
            for subject, schema in schemas
        ]

    def known_topics(self):
        """What is noted of the topics of tables."""
        known = {}
        for _, key, value, *_ in self.ledger.topics.get(Topics(SOURCE).state, ()):
            if key.startswith(TABLE_TOPIC_PREFIX):
                known[key] = TableTopic.from_bytes(value)
        return known.values()

    def run(self, batch=50):
        """Run a row mapper over all that is there, and commit."""
        stage = self.start()
        self.ledger.run(stage, self.events.since(stage.next_offset), batch)
        return stage

    def records(self, topic):
        """All records of a topic as (key, value, headers)."""
        return [(key, value, headers) for _, key, value, _, headers in self.ledger.topics.get(topic, ())]

    def read(self, topic):
        """All records of a topic as (key, value), decoded."""
        return [
            (key and self._key(key), value and deserialize(self.registry, value))
            for key, value, _ in self.records(topic)
        ]

    def _key(self, key):
        return deserialize(self.registry, key) if key[:1] == b"\x00" else key.decode()

    @property
    def tables(self):
        """Names of the table topics."""
        return sorted(topic for topic in self.ledger.topics if topic.count(".") == 2)

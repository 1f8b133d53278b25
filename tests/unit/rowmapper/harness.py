"""The row mapper on real events without Kafka: logs in, what lies in the topics out.

Events come through the real codec, serializer and transaction tracker, as the decoder writes them. The topics
are lists in memory; a transaction of theirs is there whole when it is committed, or not at all.
"""

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.records import deserialize
from millrace.avro.service_state import RowMapperState
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import TransactionPayloadEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.file import iter_events
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionTracker
from millrace.contract import EventKey
from millrace.kafka.chunks import HELD_BYTES, split
from millrace.kafka.topics import TableTopicInfo, TopicInfo
from millrace.rowmapper.event_reader import EventReader
from millrace.rowmapper.ports import Ports
from millrace.rowmapper.row_store import SqliteRowStore
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.takeover import know_rows, make_stage
from millrace.rowmapper.transaction_output import Sink
from millrace.stage import Record
from tests.stages import Ledger, Registry

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

    def add_marker(self, kind, key=b"1:0:x:4:0"):
        self.put(key, b"why", 0, [("marker", kind)])

    def put(self, key, value, timestamp_ms=0, headers=None):
        """Add a record as it is."""
        offset = self.records[-1].offset + 1 + (len(self.records) % 3 == 0) if self.records else 5
        self.records.append(Record(offset, timestamp_ms, key, value, headers))

    def since(self, offset):
        return [record for record in self.records if record.offset >= offset]


def _limited(size):
    return TopicInfo(1, size - TopicInfo(1, 0).record_limit)


class NoSnapshots:
    """A snapshot topic that is not there."""

    def __init__(self, merged):
        self.merged = merged

    def read(self, offset, *, wait):
        return ()

    def end_before(self, offset):
        return None


@dataclass(frozen=True)
class WorldPorts(Ports):
    """What a row mapper asks of Kafka and the registry, given by a world."""

    world: "World"

    def now_us(self):
        return 1_000_123

    def output_format(self):
        return replace(super().output_format(), new_block=self.world.new_block)

    def ensure_topics(self, ids):
        return self.world.begin_to_ensure_topics(ids)

    def register(self, schemas):
        return self.world.register(schemas)

    def confirm(self, known):
        for each in known:
            self.world.registry.confirm(*each)

    def accepts_any(self, subject):
        return subject in self.world.accepting

    def read(self, topic, start=0):
        written = self.world.ledger.topics.get(topic, ())
        if topic == self.topics.catalog:
            written = [(topic, None, entry.to_bytes(), 0, None) for entry in self.world.catalog]
        for offset, (_, key, value, timestamp_ms, headers) in enumerate(written[start:], start):
            yield Record(offset, timestamp_ms, key, value, headers)

    def end(self, topic):
        assert topic == self.topics.catalog
        self.world.looks += 1
        return len(self.world.catalog)

    def snapshots(self, deserialize, merged):
        return NoSnapshots(merged)

    def first_offset(self):
        return self.world.oldest

    def event_reader(self, deserialize):
        limit, held = self.settings.rows.unpacked_mib << 20, self.world.held_bytes
        return EventReader(deserialize, self.reread, unpacked_limit=limit, held_bytes=held)

    def replay(self, start, stop):
        assert start >= self.world.oldest
        self.world.replays += 1
        records = [record for record in self.world.events.since(start) if record.offset < stop]
        return iter([records[at : at + 3] for at in range(0, len(records), 3)])


class World:
    """Everything that outlives a process: topics, registry, state. ``limit`` is that of a row's record."""

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
        self.new_block = None
        """Makes blocks of records of transactions, as Spark reads them."""
        self.replays = 0
        self.looks = 0
        self.is_learning = False
        """It takes in the rows of events that were published before: no topic, no schema."""
        self.topics = {}
        """Ids of the topics of tables; what is an exception is what creating that topic raises."""
        self.refused = {}
        """What the registry says of a subject."""
        self.accepting = set()
        """Subjects that accept incompatible schemas."""

    @property
    def state(self):
        return self.ledger.state

    def start(self):
        """Start a row mapper where the state says."""
        self.ports = ports = WorldPorts(
            SimpleNamespace(settings=self.settings),
            admin=None,
            registry=self.registry,
            pool=None,
            producer=self.ledger,
            infos={f"{SOURCE}.deadletter": _limited(1000), f"{SOURCE}.ddl": _limited(4000)},
            tick=lambda: None,
            world=self,
        )
        state = self.state or RowMapperState(0)
        store = None if self.store is None else SqliteRowStore(self.store)
        deserialize_event = EventDeserializer()
        self.event_reader = partial(ports.event_reader, deserialize_event)
        self.replay = ports.replay
        stage, self.binder = make_stage(ports, state, deserialize_event, store=store)
        self.is_learning = True
        stored = self.state and self.state.to_bytes()
        know_rows(ports, store, stage.known, deserialize_event, stored=stored)
        self.is_learning = False
        self.ledger.companion = stage.known
        self.ledger.written_as = self.binder.written
        return stage

    def sink(self, stage):
        """Where a stage writes, for what writes beside it."""
        return Sink(self.ports.topics, stage.output, stage.counters, self.ports.now_us)

    def begin_to_ensure_topics(self, ids):
        """Return what waits for :meth:`ensure_topics`."""
        return partial(self.ensure_topics, ids)

    def ensure_topics(self, ids):
        """Create topics as Kafka would, and compare their ids."""
        assert not self.is_learning
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
        assert not self.is_learning
        return [
            self.refused.get(subject) or self.registry.register(subject, schema)
            for subject, schema in schemas
        ]

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

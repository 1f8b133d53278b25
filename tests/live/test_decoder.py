"""The decoder as a process, between real topics: nothing missing, nothing twice, whatever happens."""

import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from millrace.avro.events import EventDeserializer
from millrace.avro.records import deserialize
from millrace.avro.registry import SchemaRegistry
from millrace.binlog.event_codec import encode_event
from millrace.binlog.file import iter_events
from millrace.binlog.state import StreamState
from millrace.contract import ABANDONED, GAP, HEADER_CHUNK, HEADER_MARKER, EventKey, RawKey, Topics
from millrace.kafka.chunks import ChunkJoiner, split
from millrace.kafka.client import connect
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.state import newest_offset, read_state
from millrace.kafka.topics import ensure_topics
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.runtime.settings import KafkaSettings, RegistrySettings, TopicsSettings
from tests.killed import command as killed
from tests.service_process import ServiceProcess, source_environment, started, wait_for
from tests.topic_reader import TopicReader

from .output import send

Piece = tuple[bytes, bytes, list[tuple[str, bytes]] | None]
"""Key, value, headers of a raw record."""

LIMIT = 1_000_000
"""Largest value of a raw record."""


class World:
    """A source whose raw topic the test writes, and a decoder that reads it."""

    def __init__(self, kafka: Kafka, registry: Registry, source: str) -> None:
        self.settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.topic_reader = TopicReader(self.settings)
        self.topics = Topics(source)
        self.source = source
        self.registry_url = registry.url
        self.environment = source_environment(kafka, source, registry)
        self.admin = connect(self.settings)
        kinds = ["raw", "events", "deadletter", "state"]
        ensure_topics(self.admin, TopicsSettings(), {f"{source}.{kind}": kind for kind in kinds})

    def write_raw(self, pieces: Sequence[Piece]) -> None:
        with TransactionalProducer(self.settings, self.source, "reader") as producer:
            producer.open()
            for key, value, headers in pieces:
                send(producer, self.topics.raw, key, value, 1_700_000_000_000, headers)
                if producer.due:
                    producer.commit(b"on")
            producer.commit(b"done")

    def decoder(
        self, *, command: Sequence[str] = (), ends_with: int = 0, **environment: str
    ) -> AbstractContextManager[ServiceProcess]:
        """A running decoder; see :func:`tests.service_process.started`."""
        return started("decoder", self.environment | environment, command=command, ends_with=ends_with)

    def decode_all(self) -> None:
        """Let a decoder work until it has read everything, then stop it."""

        def at() -> int | None:
            state = self.topic_reader.last(self.topics.state, b"decoder")
            return state and state.offset()

        before = at()
        with self.decoder() as process:
            wait_for(lambda: at() != before, process, "another state")
            self.wait_until_read(process)

    def wait_until_read(self, process: ServiceProcess) -> None:
        """Wait until the decoder's lag, as tools see it, is none but the commit markers."""
        last = self.records(self.topics.raw)[-1].offset()
        partition = TopicPartition(self.topics.raw, 0)
        group = {
            "bootstrap.servers": self.settings.bootstrap_servers,
            "group.id": f"millrace-decoder-{self.source}",
        }
        consumer = Consumer(group)
        try:
            wait_for(
                lambda: consumer.committed([partition], timeout=60)[0].offset > last,
                process,
                "the end of the raw topic",
            )
        finally:
            consumer.close()

    def records(self, topic: str, isolation: str = "read_committed") -> list[Message]:
        return self.topic_reader.messages(topic, isolation=isolation)


@pytest.fixture
def world(kafka: Kafka, registry: Registry, source_name: str) -> World:
    return World(kafka, registry, source_name)


def raw_pieces(log: Path, log_file: str, epoch: int = 0) -> list[Piece]:
    """Cut a log file into raw records."""
    pieces: list[Piece] = []
    with log.open("rb") as stream:
        for position, data in iter_events(stream):
            server_id = int.from_bytes(data[5:9], "little")
            key = RawKey(server_id, epoch, log_file, position).encode()
            pieces += [
                (key, piece, None if header is None else [header]) for header, piece in split(data, LIMIT)
            ]
    return pieces


@pytest.fixture(scope="module")
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of some thousand events, written by a real server; its parameter says which."""
    server: MySQL | MariaDB = request.getfixturevalue(request.param)
    server.execute(
        "CREATE DATABASE IF NOT EXISTS decoder_test",
        "CREATE OR REPLACE TABLE decoder_test.t (id INT PRIMARY KEY, v VARCHAR(100))"
        if request.param == "mariadb"
        else "CREATE TABLE IF NOT EXISTS decoder_test.t (id INT PRIMARY KEY, v VARCHAR(100))",
        "FLUSH BINARY LOGS",
    )
    name = server.binlog_files[-1].name
    server.execute(*(f"REPLACE INTO decoder_test.t VALUES ({n % 50}, 'value {n}')" for n in range(800)))
    server.execute("FLUSH BINARY LOGS")
    copy = tmp_path_factory.mktemp("log") / name
    copy.write_bytes(next(file for file in server.binlog_files if file.name == name).read_bytes())
    return copy


both_servers = pytest.mark.parametrize("log", ["mysql", "mariadb"], indirect=True)
one_server = pytest.mark.parametrize("log", ["mariadb"], indirect=True)


@one_server
def test_kill_9_in_mid_stream(world: World, log: Path) -> None:
    """Nothing missing, nothing twice, in order; and what was begun was aborted."""
    pieces = [piece for number in range(3) for piece in raw_pieces(log, f"log.{number:06}")]
    world.write_raw(pieces)
    for at, nth in (("after_produce", 1300), ("before_commit", 3), ("in_commit", 2), ("after_commit", 2)):
        with world.decoder(command=killed("decoder", at, nth, commit_every=500)) as process:
            assert process.wait(240) == -signal.SIGKILL, process
    world.decode_all()
    keys = [message.key() for message in world.records(world.topics.events)]
    assert keys == [key + b":0" for key, _, _ in pieces]
    assert len(world.records(world.topics.events, "read_uncommitted")) > len(keys)
    assert world.records(world.topics.deadletter) == []


@both_servers
def test_raw_events_can_be_rebuilt(world: World, log: Path) -> None:
    """What the events topic holds is all that was in the log; timestamps are those of the raw records."""
    pieces = raw_pieces(log, "log.000001")
    world.write_raw(pieces)
    world.decode_all()
    records = world.records(world.topics.events)
    assert {message.timestamp()[1] for message in records} == {1_700_000_000_000}
    state = StreamState()
    with SchemaRegistry(RegistrySettings(url=world.registry_url)) as registry:
        deserializer = EventDeserializer(registry)
        rebuilt = [encode_event(deserializer(message.value()).decoded, state) for message in records]
    assert rebuilt == [value for _, value, _ in pieces]
    transactions = {EventKey.parse(message.key()).raw.encode() for message in records}
    assert len(transactions) == len(pieces)


@both_servers
def test_sigterm_finishes_the_batch(world: World, log: Path) -> None:
    pieces = [piece for number in range(6) for piece in raw_pieces(log, f"log.{number:06}")]
    world.write_raw(pieces)
    with world.decoder() as process:
        wait_for(lambda: newest_offset(world.settings, world.topics.events) >= 2000, process, "some events")
    assert process.error_output == ""
    committed = [message.key() for message in world.records(world.topics.events)]
    everything = world.records(world.topics.events, "read_uncommitted")
    assert len(committed) == len(everything), "the last batch was not committed"
    world.decode_all()
    keys = [message.key() for message in world.records(world.topics.events)]
    assert keys == [key + b":0" for key, _, _ in pieces]


def test_an_event_of_5_mb(world: World, mariadb: MariaDB, tmp_path: Path) -> None:
    mariadb.execute(
        "CREATE DATABASE IF NOT EXISTS decoder_test",
        "CREATE OR REPLACE TABLE decoder_test.large (id INT PRIMARY KEY, v LONGBLOB)",
        "FLUSH BINARY LOGS",
    )
    log = mariadb.binlog_files[-1]
    values = ", ".join(f"({n}, REPEAT(UNHEX(SHA2('{n}', 256)), 160000))" for n in range(1))
    mariadb.execute(
        f"INSERT INTO decoder_test.large VALUES {values}",
        "UPDATE decoder_test.large SET v = CONCAT(v, 'more')",
        "FLUSH BINARY LOGS",
    )
    pieces = raw_pieces(log, log.name)
    chunked = [headers for _, _, headers in pieces if headers]
    assert len(chunked) > 5
    world.write_raw(pieces)
    world.decode_all()
    state, joiner, rebuilt = StreamState(), ChunkJoiner(), []
    with SchemaRegistry(RegistrySettings(url=world.registry_url)) as registry:
        deserializer = EventDeserializer(registry)
        for message in world.records(world.topics.events):
            value = message.value()
            chunk = dict(message.headers() or ()).get(HEADER_CHUNK)
            if chunk is not None:
                value = joiner.feed(message.key(), chunk, value, message.offset())
            if value is not None:
                rebuilt.append(encode_event(deserializer(value).decoded, state))
    with log.open("rb") as stream:
        assert rebuilt == [data for _, data in iter_events(stream)]


@one_server
def test_what_cannot_be_decoded_is_a_dead_letter_whole(world: World, log: Path) -> None:
    pieces = raw_pieces(log, "log.000001")
    key, value, _ = pieces[20]
    damaged = value[:-1] + bytes([value[-1] ^ 1])
    pieces[20] = (key, damaged, None)
    pieces[30] = (b"no key", b"no event", None)
    pieces[40] = (pieces[40][0], pieces[40][1], [(HEADER_CHUNK, b"1/2")])
    world.write_raw(pieces)
    world.decode_all()
    assert len(world.records(world.topics.events)) == len(pieces) - 3
    dead_letters = world.records(world.topics.deadletter)
    assert [dead_letter.key() for dead_letter in dead_letters] == [pieces[20][0], b"no key", pieces[40][0]]
    with SchemaRegistry(RegistrySettings(url=world.registry_url)) as registry:
        first, second, third = (deserialize(registry, dead_letter.value()) for dead_letter in dead_letters)
    assert first["value"] == damaged
    assert first["error_class"] == "ChecksumError"
    assert (first["service"], first["topic"], first["offset"]) == ("decoder", world.topics.raw, 20)
    assert first["log_file"] == "log.000001"
    assert first["position"] == RawKey.parse(key).position
    assert second["error"] == "b'no key' is not a raw key: server_id:epoch:log_file:position is expected"
    assert third["error"] == "chunk 1 of 2 comes without those before it"


@one_server
def test_the_head_of_the_raw_topic_is_gone(world: World, log: Path) -> None:
    """Without the format description events wait in the dead letter topic until the next file brings one."""
    first, second = raw_pieces(log, "log.000001")[500:], raw_pieces(log, "log.000002")
    world.write_raw(first + second)
    world.decode_all()
    dead_letters = [dead_letter.key() for dead_letter in world.records(world.topics.deadletter)]
    assert dead_letters == [key for key, _, _ in first]
    keys = [message.key() for message in world.records(world.topics.events)]
    assert keys == [key + b":0" for key, _, _ in second]


@one_server
def test_a_gap_stops_the_decoder_in_words(world: World, log: Path) -> None:
    pieces = raw_pieces(log, "log.000001")
    world.write_raw(pieces[:1000])
    world.decode_all()
    world.write_raw(pieces[1000:1500])
    # What a consumer of committed records sees may lack the last transaction for a moment.
    end = newest_offset(world.settings, world.topics.raw)
    for future in world.admin.delete_records([TopicPartition(world.topics.raw, 0, end - 100)]).values():
        future.result(60)
    with world.decoder(ends_with=7) as process:
        process.wait(180)
    err = process.error_output
    assert f"of {world.topics.raw} were deleted before they were read" in err
    assert "MILLRACE_SKIP_GAP" in err
    assert len(err.splitlines()) == 1
    with world.decoder(MILLRACE_SKIP_GAP="true") as process:
        world.wait_until_read(process)
    keys = [message.key() for message in world.records(world.topics.events)]
    left = [key for key, _, _ in pieces[1400:1500]]
    assert keys[:1000] == [key + b":0" for key, _, _ in pieces[:1000]]
    marker = world.records(world.topics.events)[1000]
    assert marker.headers() == [(HEADER_MARKER, GAP)]
    first, after = RawKey.parse(world.records(world.topics.raw)[0].key() or b""), EventKey.parse(keys[1000])
    assert after == EventKey(first.server_id, first.epoch, first.log_file, first.position - 1, 0)
    assert set(keys[1001:]) <= {key + b":0" for key in left}
    assert keys[-1] == left[-1] + b":0"


@one_server
def test_markers_and_epochs(world: World, log: Path) -> None:
    """Another epoch is another log, though its file has the same name; a marker goes through as it is."""
    first, second = raw_pieces(log, "log.000001"), raw_pieces(log, "log.000001", epoch=1)
    marker = (b"1:0:log.000001:999999", b"the primary is gone", [(HEADER_MARKER, ABANDONED)])
    world.write_raw([*first[:700], marker, *second])
    world.decode_all()
    records = world.records(world.topics.events)
    expected = [key + b":0" for key, _, _ in [*first[:700], marker, *second]]
    assert [message.key() for message in records] == expected
    assert records[700].headers() == [(HEADER_MARKER, ABANDONED)]
    assert records[700].value() == b"the primary is gone"
    assert world.records(world.topics.deadletter) == []
    assert read_state(world.settings, world.source, "decoder") is not None

"""Bytes that were changed on their way: found by a checksum or a position, named, and nothing else is lost.

On the network between server and reader, in a record of a topic, and on a broker's disk. For log files see
``test_reader.py``, for a comparison with the server's own log ``test_verify.py``.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from millrace.avro.records import deserialize
from millrace.contract import Topics
from millrace.kafka.client import connect
from millrace.kafka.topics import ensure_topics
from millrace.runtime.settings import TopicsSettings
from tests.shared import run_python

from .rows_world import RowsWorld
from .test_rowmapper import run

ONCE, ALWAYS = b"changed once", b"changed always"
BATCH_HEADER = 61
"""Bytes of a batch of Kafka in front of its records, all but the first 21 of them covered by its CRC."""


class Tamperer:
    """Stands between a reader and its server and changes bytes that the server sends."""

    def __init__(self, host, port):
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.changed = 0
        self._once = ONCE
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            for origin, target, change in ((client, server, bytes), (server, client, self._change)):
                threading.Thread(target=self._carry, args=(origin, target, change), daemon=True).start()

    def _carry(self, origin, target, change):
        try:
            while data := origin.recv(1 << 20):
                target.sendall(change(data))
        except OSError:
            pass
        finally:
            for end in (origin, target):
                end.close()

    def _change(self, data):
        for text in (self._once, ALWAYS):
            if text and text in data:
                data = data.replace(text, b"X" + text[1:])
                self.changed += 1
                if text == ONCE:
                    self._once = b""
        return data


@pytest.fixture
def world(kafka, registry, mysql, source_name, tmp_path):
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as made:
        yield made


def dead_letters(world):
    return [
        deserialize(world.registry, message.value()) for message in world.messages(world.topics.deadletter)
    ]


def test_on_the_network(world):
    tamperer = Tamperer(world.server.host, world.server.port)
    world.environment |= {
        "MILLRACE_MYSQL_HOST": "127.0.0.1",
        "MILLRACE_MYSQL_PORT": str(tamperer.port),
        "MILLRACE_MYSQL_SSL_MODE": "DISABLED",
    }
    with world.services("reader", "decoder", "rowmapper"):
        world.wait_for_start()
        run(world, "CREATE TABLE a (id INT PRIMARY KEY, note VARCHAR(50)); CREATE TABLE done (id INT)")
        for number, note in enumerate(("before", ONCE.decode(), "between", ALWAYS.decode(), "after")):
            run(world, f"INSERT INTO a VALUES ({number}, '{note}')")
        run(world, "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
    tamperer.close()
    assert tamperer.changed >= 3, "the changed event was asked for again, and once more"

    # What was changed once came right when it was asked for again; the rest came right at once.
    assert [row["after"]["note"] for row in world.rows("a")] == ["before", ONCE.decode(), "between", "after"]
    bad = [message for message in world.messages(world.topics.raw) if message.headers()]
    bad = [message for message in bad if dict(message.headers()).get("checksum") == b"bad"]
    (dead_letter,) = dead_letters(world)
    assert [message.key() for message in bad] == [dead_letter["key"]]
    assert dead_letter["error_class"] == "BadChecksumError" or "hecksum" in dead_letter["error"]
    assert b"Xhanged always" in dead_letter["value"]
    data = next(
        path for path in world.server.binlog_files if path.name == dead_letter["log_file"]
    ).read_bytes()
    theirs = data[dead_letter["position"] : dead_letter["position"] + len(dead_letter["value"])]
    assert dead_letter["value"].replace(b"Xhanged", b"changed") == theirs
    assert "hecksum" in (world.folder / "reader.log").read_text()


def filled(world):
    """Let some rows be written and read; return the raw records."""
    with world.services("reader", "decoder", "rowmapper"):
        world.wait_for_start()
        run(world, "CREATE TABLE a (id INT PRIMARY KEY, note VARCHAR(50)); CREATE TABLE done (id INT)")
        for number in range(6):
            run(world, f"INSERT INTO a VALUES ({number}, 'note {number}')")
        run(world, "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
    return world.messages(world.topics.raw)


@contextmanager
def other_source(world, kind, messages) -> Iterator[RowsWorld]:
    """Another source, of which one topic holds these records."""
    source = f"{world.source}-{kind}"
    topic = f"{source}.{kind}"
    ensure_topics(connect(world.settings), TopicsSettings(), {topic: kind})
    # The order of records is kept, even of those that a broker takes only when they are sent again.
    producer = Producer({"bootstrap.servers": world.settings.bootstrap_servers, "enable.idempotence": True})
    for key, value, message in messages:
        producer.produce(topic, value, key, timestamp=message.timestamp()[1], headers=message.headers())
    assert producer.flush(120) == 0
    before = world.source, world.topics, world.environment
    world.source, world.topics = source, Topics(source)
    world.environment = world.environment | {"MILLRACE_SOURCE": source}
    try:
        yield world
    finally:
        world.source, world.topics, world.environment = before


def ended(world, service):
    """Run a service that is to end by itself; return what it said."""
    done = run_python("-m", f"services.{service}", settings=world.environment)
    return done.returncode, done.stderr


def test_in_topics(world):
    raw = filled(world)
    events = world.messages(world.topics.events)
    victim = next(i for i, message in enumerate(raw) if b"note 3" in message.value())

    # An event of the raw topic is another than the server wrote, and a key is none.
    changed = [(message.key(), message.value().replace(b"note 3", b"mote 3"), message) for message in raw]
    stray = (b"no key", raw[victim].value(), raw[victim])
    with other_source(world, "raw", [*changed[: victim + 1], stray, *changed[victim + 1 :]]):
        with world.services("decoder", "rowmapper"):
            world.wait_for_row("done")
        found = dead_letters(world)
        assert [dead_letter["key"] for dead_letter in found] == [raw[victim].key(), b"no key"]
        assert "hecksum" in found[0]["error"]
        assert "is not a raw key" in found[1]["error"]
        assert len(world.messages(world.topics.events)) == len(events) - 1
        assert [row["after"]["id"] for row in world.rows("a")] == [0, 1, 2, 4, 5]

    # A record of the events topic is cut.
    victim = next(i for i, message in enumerate(events) if b"note 3" in message.value())
    cut = [
        (message.key(), message.value()[:-9] if i == victim else message.value(), message)
        for i, message in enumerate(events)
    ]
    with other_source(world, "events", cut):
        with world.services("rowmapper"):
            world.wait_for_row("done")
        (found,) = dead_letters(world)
        assert (found["key"], found["offset"]) == (events[victim].key(), victim)
        assert found["service"] == "rowmapper"
        assert [row["after"]["id"] for row in world.rows("a")] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize(("service", "kind"), [("decoder", "raw"), ("rowmapper", "events")])
def test_on_the_disk_of_a_broker(world, kafka, service, kind):
    """Kafka's own checksum of the batch tells; the service says which, and goes no further."""
    raw = filled(world)
    messages = raw if kind == "raw" else world.messages(world.topics.events)
    with other_source(world, kind, [(message.key(), message.value(), message) for message in messages]):
        topic = f"{world.source}.{kind}"
        (segment,) = kafka.folder.glob(f"data-*/{topic}-0/00000000000000000000.log")
        with segment.open("r+b") as file:
            offset, length = struct.unpack(">qi", file.read(12))
            assert (offset, length > BATCH_HEADER) == (0, True)
            file.seek(BATCH_HEADER + 10)
            byte = file.read(1)
            file.seek(BATCH_HEADER + 10)
            file.write(bytes([byte[0] ^ 1]))
        code, said = ended(world, service)
        assert code == 4
        assert f"error: {topic} cannot be read: " in said
        assert "offset 0" in said
        assert "CRC" in said

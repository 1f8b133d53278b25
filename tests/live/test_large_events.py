"""A row too large to be held, from a real server to its row topic, with every byte in the events topic."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from millrace.avro.events import EventDeserializer
from millrace.binlog.event_codec import encode_event
from millrace.binlog.events.rows import RowsEvent
from millrace.binlog.state import StreamState
from millrace.contract import HEADER_CHUNK
from millrace.kafka.chunks import HELD_BYTES, ChunkJoiner
from millrace.local import Kafka, MariaDB, Registry

from .rows_world import SERVICES, RowsWorld


@pytest.fixture
def world(
    kafka: Kafka, registry: Registry, mariadb: MariaDB, source_name: str, tmp_path: Path
) -> Iterator[RowsWorld]:
    made = RowsWorld(kafka, registry, mariadb, source_name, tmp_path)
    mariadb.execute(
        f"CREATE DATABASE {made.database}",
        f"CREATE TABLE {made.database}.t (id INT PRIMARY KEY, v LONGBLOB, note VARCHAR(20))",
    )
    yield made
    made.close()
    mariadb.execute(f"DROP DATABASE {made.database}")


def joined(messages: list[Message]) -> dict[bytes, bytes]:
    """Values by key, chunks put together."""
    joiner, values = ChunkJoiner(), {}
    for message in messages:
        value = message.value()
        chunk = dict(message.headers() or ()).get(HEADER_CHUNK)
        if chunk is not None:
            value = joiner.feed(message.key(), chunk, value, message.offset())
        if value is not None:
            values[message.key()] = value
    return values


def test_a_row_of_20_mb(world: RowsWorld) -> None:
    table = f"{world.database}.t"
    with world.services(*SERVICES):
        world.wait_for_start()
        world.server.execute(
            # Not in a statement's text, which MariaDB would log once more.
            f"INSERT INTO {table} VALUES (1, REPEAT(RANDOM_BYTES(1024), 20000), 'first')",
            f"UPDATE {table} SET note = 'second'",
        )
        ((digest,),) = world.server.query(f"SELECT SHA2(v, 256) FROM {table}")
        world.server.execute(f"DELETE FROM {table}")
        rows = world.wait_for_row("t", 3)
    assert [(row["op"], row["before"], row["after"]) for row in rows] == [
        ("c", None, {"id": 1, "v": None, "note": "first"}),
        ("u", {"id": 1, "v": None, "note": "first"}, {"id": 1, "v": None, "note": "second"}),
        ("d", {"id": 1, "v": None, "note": "second"}, None),
    ]
    raw, events = (joined(world.messages(topic)) for topic in (world.topics.raw, world.topics.events))
    assert max(map(len, raw.values())) > 2 * 20_000_000 > HELD_BYTES
    deserialize, state = EventDeserializer(world.registry), StreamState()
    decoded = {key: deserialize(value).decoded for key, value in events.items()}
    assert [encode_event(event, state) for event in decoded.values()] == list(raw.values())
    notes = [note for row in rows for note in row["unrepresentable"]]
    assert [(note["image"], note["column"]) for note in notes] == [
        ("after", "v"),
        ("before", "v"),
        ("after", "v"),
        ("before", "v"),
    ]
    for note in notes:
        reference = note["reference"]
        event = decoded[reference["key"].encode()].event
        assert isinstance(event, RowsEvent)
        value = event.rows[reference["start"] : reference["end"]]
        assert hashlib.sha256(value).hexdigest() == digest

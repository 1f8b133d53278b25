"""Topics of tables that take no rows: their tables are quarantined, all else flows, nothing is lost."""

import os
import time

import pytest
from confluent_kafka.admin import AclOperation

from millrace.avro.service_state import RowMapperState
from millrace.kafka.client import connect
from millrace.kafka.state import read_state
from millrace.kafka.topics import LEAST_MESSAGE_BYTES, ensure_topics
from millrace.local import Kafka
from millrace.runtime.settings import TopicsSettings

from .broker_control import AUTHORIZER, Administrator
from .rows_world import RowsWorld
from .test_rowmapper import differences, places, run

TABLES = ("gone", "small", "denied", "hidden", "fine")


@pytest.fixture
def world(registry, mysql, source_name, tmp_path):
    with (
        Kafka(properties=AUTHORIZER) as kafka,
        RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as made,
    ):
        yield made


def write(world, number, size=100):
    """Write a row to each of the tables, in one transaction; wait until the last one is in its topic."""
    inserts = (f"INSERT INTO {table} VALUES ({number}, x'{os.urandom(size).hex()}')" for table in TABLES)
    run(world, f"BEGIN; {'; '.join(inserts)}; COMMIT")
    world.wait_for_row("fine", number)


def quarantined(world):
    """Tables that are quarantined, and why."""
    state = RowMapperState.from_bytes(read_state(world.settings, world.source, "rowmapper").value)
    return {entry.table: entry.error for entry in state.quarantined}


@pytest.mark.slow
def test_topics_that_are_made_smaller_denied_and_deleted(world):
    administrator = Administrator(world.settings)
    topics = {table: world.topics.table(world.database, table) for table in TABLES}
    for table in TABLES:
        run(world, f"CREATE TABLE {table} (id INT PRIMARY KEY, v MEDIUMBLOB)")
    administrator.deny(topics["hidden"], AclOperation.DESCRIBE)
    with world.services("reader", "decoder"), world.service("rowmapper") as rowmapper:
        world.wait_for_start()
        write(world, 1)
        administrator.alter(topics["small"], "max.message.bytes", str(LEAST_MESSAGE_BYTES))
        write(world, 2, 2_000_000)
        administrator.deny(topics["denied"], AclOperation.WRITE)
        write(world, 3)
        administrator.delete(topics["gone"])
        write(world, 4)
        assert rowmapper.poll() is None
    assert [row["after"]["id"] for row in world.rows("fine")] == [1, 2, 3, 4]

    reasons = quarantined(world)
    assert reasons.keys() == set(TABLES) - {"fine"}
    for table, words in (
        ("gone", f"the topic {topics['gone']} is gone"),
        ("small", "its max.message.bytes was lowered"),
        ("denied", f"these credentials may not write to the topic {topics['denied']}"),
    ):
        assert words in reasons[table]
    assert f"the topic {topics['hidden']} cannot be looked up" in reasons.pop("hidden")
    for reason in reasons.values():
        assert reason.endswith("'millrace deadletter redrive' publishes them")

    administrator.alter(topics["small"], "max.message.bytes", str(8 << 20))
    done = world.command("deadletter", "redrive", code=7)
    for table in ("small", "gone"):
        assert f"{world.database}.{table}: 0 dead letters" not in done.stdout
    assert f"{world.database}.denied: 0 dead letters mapped, 0 rows" in done.stdout
    for table in ("hidden", "denied"):
        assert f"{world.database}.{table} stays quarantined" in done.stderr
    assert quarantined(world).keys() == {"hidden", "denied"}

    administrator.allow(topics["denied"])
    administrator.allow(topics["hidden"])
    world.command("deadletter", "redrive")
    assert differences(world).keys() == {"gone"}, "what its deletion has deleted"
    assert [row["after"]["id"] for row in world.rows("gone")] == [4]
    found = places(world)
    assert len(found) == len(set(found))


def test_a_topic_that_is_created_again_while_rows_flow(world):
    administrator = Administrator(world.settings)
    topic = world.topics.table(world.database, "gone")
    for table in TABLES:
        run(world, f"CREATE TABLE {table} (id INT PRIMARY KEY, v MEDIUMBLOB)")
    with world.services("reader", "decoder"), world.service("rowmapper") as rowmapper:
        world.wait_for_start()
        write(world, 1)
        administrator.delete(topic)
        ensure_topics(connect(world.settings), TopicsSettings(), {topic: "table"})
        number, deadline = 1, time.monotonic() + 240
        while not quarantined(world):
            assert time.monotonic() < deadline, world.log("rowmapper")
            number += 1
            write(world, number)
        assert rowmapper.poll() is None
    ((table, reason),) = quarantined(world).items()
    assert table == "gone"
    assert f"the topic {topic} was deleted and created again" in reason
    world.command("deadletter", "redrive")
    ids = [row["after"]["id"] for row in world.rows("gone")]
    assert ids == sorted(set(ids)), "in their order, and none twice"
    assert ids[-1] == number
    assert differences(world).keys() == {"gone"}, "what its deletion has deleted"

"""``millrace reprocess`` on a real Kafka: what an earlier decoder did not know comes, in its place."""

import contextlib
import json
import sys

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millrace.avro.records import deserialize
from millrace.cli import main
from millrace.kafka.client import connect
from millrace.kafka.errors import BrokerError
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import held_offsets, source_topics
from millrace.kafka.topics import delete_records
from tests.service_process import wait_for

from .rows_world import SERVICES, RowsWorld
from .test_rowmapper import differences, places, run

TABLES = "CREATE TABLE plain (id INT PRIMARY KEY, note VARCHAR(100)); CREATE TABLE done (id INT PRIMARY KEY)"
OLDER = "CREATE TABLE older (id INT PRIMARY KEY); INSERT INTO older VALUES (7), (8)"
"""Rows from before the reader starts: a snapshot alone brings them."""

WORK = """
INSERT INTO plain VALUES (1, 'one'), (2, 'two');
UPDATE plain SET note = 'changed' WHERE id = 1;
BEGIN; DELETE FROM plain WHERE id = 2; INSERT INTO plain VALUES (3, 'three'); COMMIT;
"""

# A version of the decoder that does not know the event type WRITE_ROWS_EVENT.
EARLIER_DECODER = """
import sys
from millrace.avro.events import EventSerializer
from millrace.binlog.errors import UnsupportedError
from millrace.decoder import stage
from services.decoder.app import main

decode_event = stage.decode_event

def decode_what_is_known(data, state):
    if data[4] == 30:
        raise UnsupportedError("event type 30 is unknown")
    return decode_event(data, state)

stage.decode_event = decode_what_is_known
EventSerializer.compiled = lambda self: None
sys.exit(main())
"""


@pytest.fixture
def world(kafka, registry, mysql, source_name, tmp_path):
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as made:
        yield made


def reprocess(world, *arguments, code=0, answer=""):
    return world.command("reprocess", *arguments, code=code, input=answer)


def records(world):
    """What decoder and row mapper have written, but for the offsets and the time at which they did."""
    topics = [world.topics.events, world.topics.transactions, world.topics.ddl, world.topics.deadletter]
    return {
        topic: [
            (message.key(), content(world, message), message.timestamp(), message.headers())
            for message in world.messages(topic)
        ]
        for topic in (*topics, *world.table_topics())
    }


def content(world, message):
    if message.topic().count(".") == 1:
        return message.value()
    return deserialize(world.registry, message.value()) | dict.fromkeys(("ts_ms", "ts_us", "ts_ns"))


def set_cleanup_policy(world, topic, policy):
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = connect(world.settings)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    # The broker acts on it a moment later.
    wait_for(lambda: refuses_deletion(admin, topic) == (policy == "compact"), None, f"{policy} of {topic}")


def refuses_deletion(admin, topic):
    """Whether the broker would let records be deleted; none are."""
    try:
        delete_records(admin, {(topic, 0): 0})
    except BrokerError:
        return True
    return False


def test_what_could_not_be_decoded_comes_in_its_place(world):
    run(world, OLDER)
    with (
        world.services("reader", "rowmapper"),
        world.service("decoder", command=[sys.executable, "-c", EARLIER_DECODER]),
    ):
        world.wait_for_start()
        run(world, TABLES, WORK, "INSERT INTO done VALUES (1); DELETE FROM done")
        world.wait_for_row("done")
    assert {row["op"] for row in world.rows("plain")} == {"u", "d"}
    assert len(world.messages(world.topics.deadletter)) == 3

    before = records(world)
    held = sum(map(len, held_offsets(connect(world.settings), dict.fromkeys(before, 1)).values()))
    refused = reprocess(world, code=1, answer="n\n")
    assert (
        f"{len(before)} topics of {world.source} hold {held} records of decoder and row mapper"
        in refused.stdout
    )
    assert records(world) == before

    with world.services(*SERVICES):
        run(world, "INSERT INTO done VALUES (2)")
        world.wait_for_row("done", 2)
        reprocess(world, answer="y\n")
        run(world, "INSERT INTO done VALUES (3)")
        # Each waits for the end of the command, and begins at the head.
        world.wait_for_row("done", 4)
        world.command("snapshot", f"{world.database}.older")
        world.wait_for_row("older", 2)
    assert world.messages(world.topics.deadletter) == []
    assert [row["op"] for row in world.rows("plain")] == ["c", "c", "u", "d", "c"]
    assert differences(world) == {}
    found = places(world)
    assert len(found) == len(set(found))

    whole = records(world)
    for service in ("decoder", "rowmapper"):
        with TransactionalProducer(world.settings, world.source, service) as earlier:
            earlier.open()
            earlier.commit(b"the state of another version")
        with world.service(service, ends_with=7) as process:
            process.wait(240)
        assert f"'millrace state rebuild {service}'" in process.error_output
    said = reprocess(world, "--yes").stdout
    raw = held_offsets(connect(world.settings), {world.topics.raw: 1})[world.topics.raw, 0]
    assert f"decoder and row mapper take {len(raw)} raw records again" in said
    assert not any(records(world).values())
    with world.services("decoder", "rowmapper"):
        world.wait_for_row("done", 4)
        world.wait_for_row("older", 2)
    assert records(world) == whole


def test_what_cannot_be_made_again_is_not_deleted(world, monkeypatch):
    with world.services(*SERVICES):
        world.wait_for_start()
        run(world, TABLES, WORK, "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
    before = records(world)

    topic = world.topics.table(world.database, "plain")
    set_cleanup_policy(world, topic, "compact")
    refused = reprocess(world, "--yes", code=4).stderr
    assert refused == (
        f"error: the records of {topic} cannot be deleted: it is compacted; set its cleanup.policy to "
        "compact,delete\n"
    )
    set_cleanup_policy(world, topic, "delete")

    opened = TransactionalProducer.open

    def overtaken(producer):
        stored = opened(producer)
        with TransactionalProducer(world.settings, world.source, "decoder") as other:
            opened(other)
        return stored

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "open", overtaken)
        for name, value in world.environment.items():
            patched.setenv(name, value)
        result = CliRunner().invoke(main, ["reprocess", "--yes"])
    assert result.exit_code == 6
    assert f"another decoder of the source {world.source} took over" in result.stderr
    assert "Run 'millrace reprocess' again before that one" in result.stderr
    assert records(world) == before

    delete_records(connect(world.settings), {(world.topics.raw, 0): 2})
    refused = reprocess(world, "--yes", code=7).stderr
    assert refused == (
        f"error: records 0 to 1 of {world.topics.raw} were deleted: events and rows that were made from them "
        "could not be made again. Nothing was changed\n"
    )
    assert records(world) == before


BESIDE = "ALTER TABLE plain ADD COLUMN more INT AFTER id, DROP COLUMN note; UPDATE plain SET more = id"


def without_names(world, found):
    """Records by the part of the topic's name after the source, but for schema ids and the source's name."""
    plain: dict[str, list[object]] = {}
    for topic, listed in found.items():
        for key, value, timestamp, headers in listed:
            if isinstance(value, dict):
                value["source"]["name"] = ""
                parts = key and deserialize(world.registry, key), value
            else:
                parts = key, value[5:]
            plain.setdefault(topic.removeprefix(world.source), []).append((*parts, timestamp, headers))
    return plain


def test_new_topics_are_written_beside_the_old_ones(world, kafka, registry, tmp_path, monkeypatch):
    (tmp_path / "beside").mkdir()
    other = RowsWorld(kafka, registry, world.server, f"{world.source}_v2", tmp_path / "beside")
    other.database = world.database
    other.environment["MILLRACE_INPUT_SOURCE"] = world.source

    def command(*arguments, code=0, **settings):
        with monkeypatch.context() as patched:
            for name, value in (other.environment | settings).items():
                patched.setenv(name, value)
            result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, result.output
        return result.output

    with contextlib.closing(other):
        run(world, TABLES, OLDER)
        with world.services(*SERVICES):
            world.wait_for_start()
            run(world, WORK)
            world.command("snapshot", f"{world.database}.older")
            run(world, BESIDE, "INSERT INTO done VALUES (1)")
            with other.services("decoder", "rowmapper"):
                other.wait_for_row("done")
                run(world, "DELETE FROM plain WHERE id = 3; INSERT INTO done VALUES (2)")
                for each in (world, other):
                    each.wait_for_row("done", 2)
                said = command("verify", "rows", "--idle")
        for told in ("older: 2 records, 2 rows", "plain: 8 records, 1 rows"):
            assert f"{world.database}.{told}: equal" in said
        assert without_names(other, records(other)) == without_names(world, records(world))
        assert [row["op"] for row in other.rows("older")] == ["r", "r"]
        assert not world.messages(world.topics.deadletter)
        status = json.loads(command("status", "--json"))
        assert (status["reads"], status["services"].keys()) == (world.source, {"decoder", "rowmapper"})
        assert status["services"]["decoder"]["place"]["position"] > 4

        advice = f"set MILLRACE_INPUT_SOURCE={world.source}, or give"
        assert advice in command("reprocess", "--yes", code=2, MILLRACE_INPUT_SOURCE="")
        topics = source_topics(connect(world.settings), world.source)
        held = held_offsets(connect(world.settings), topics)
        command("reprocess", "--yes")
        assert not any(records(other).values())
        assert held_offsets(connect(world.settings), topics) == held

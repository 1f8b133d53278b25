"""A source without a schema registry: records are single objects, and their schemas are in a topic."""

import io
import json
from decimal import Decimal

import fastavro
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import NewTopic

from millrace.avro.registry import split_wire_format
from millrace.kafka.client import connect
from millrace.kafka.schema_topic import SchemaTopic
from millrace.runtime.settings import TopicsSettings
from tests.spark_session import SPARK, run_job, spark

from .rows_world import MARIADB_IS_SLOW, SERVICES, RowsWorld
from .test_large_definitions import columns
from .test_rowmapper import TABLES, WORK, differences, run
from .test_snapshot import KEYLESS, take, wait_until_merged

__all__ = ["spark"]

pytestmark = SPARK

KAFKAS_OWN_LIMIT = {
    "cleanup.policy": "compact",
    "max.message.bytes": "1048588",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


@pytest.fixture
def world(world):
    world.environment |= {"MILLRACE_REGISTRY_URL": "", "MILLRACE_KAFKA_FENCED_WAIT_S": "0"}
    world.registry = SchemaTopic(world.settings, world.source, TopicsSettings())
    return world


def reader_of(world):
    """The recipe of docs/consumers.md: the schemas of the topic, then what reads a record."""
    schemas = {}
    for message in world.messages(world.topics.avro):
        schemas[message.key()] = fastavro.parse_schema(json.loads(message.value()))

    def read(data):
        schema = schemas[data[2:10].hex().encode()]
        return fastavro.schemaless_reader(io.BytesIO(data[10:]), schema, None)

    return read


@MARIADB_IS_SLOW
def test_rows_arrive_and_are_read(world):
    world.environment["MILLRACE_TOPICS_TABLE_PARTITIONS"] = "3"
    with world.services(*SERVICES):
        world.wait_for_start()
        run(world, TABLES, "CREATE TABLE scale (id INT PRIMARY KEY, d DECIMAL(8,2))")
        run(
            world,
            WORK,
            "INSERT INTO scale VALUES (1, 1.25)",
            # Avro's own fingerprint is the same before and after.
            "ALTER TABLE scale MODIFY d DECIMAL(8,3)",
            "INSERT INTO scale VALUES (2, 1.375)",
            "INSERT INTO done VALUES (7)",
        )
        world.wait_for_row("done")
    with world.service("run"):
        run(world, "UPDATE scale SET d = 2.125 WHERE id = 1", "INSERT INTO done VALUES (8)")
        world.wait_for_row("done", 2)
    assert differences(world) == {}
    messages = world.messages(world.topics.table(world.database, "scale"))
    assert {message.value()[:2] for message in messages} == {b"\xc3\x01"}
    assert {message.key()[:2] for message in messages} == {b"\xc3\x01"}
    read = reader_of(world)
    rows = {}
    for message in messages:
        rows[read(message.key())["id"]] = read(message.value())["after"]["d"]
    assert rows == {1: Decimal("2.125"), 2: Decimal("1.375")}
    # One record for each schema, whoever wrote it and however often.
    numbers = {split_wire_format(message.value())[0] for message in messages}
    assert len(numbers) == 2
    assert (
        set(world.registry.subject_schemas(f"{world.topics.table(world.database, 'scale')}-value")) == numbers
    )
    shown = [json.loads(line) for line in world.command("topic", messages[0].topic()).stdout.splitlines()]
    assert sorted(line["value"]["after"]["id"] for line in shown) == [1, 1, 2]
    assert "letter" not in world.command("deadletter", "list").stderr
    assert "events" in world.command("status", world.source).stdout


@pytest.mark.slow
def test_a_spark_job_reads_events(spark, kafka, registry, mysql, source_name, tmp_path):
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as world:
        world.environment["MILLRACE_REGISTRY_URL"] = ""
        world.registry = SchemaTopic(world.settings, world.source, TopicsSettings())
        run(world, "CREATE TABLE t (id INT PRIMARY KEY)")
        with world.service("run"):
            world.wait_for_start()
            run(world, "INSERT INTO t VALUES (1), (2), (3)")
            world.wait_for_row("t", 3)
        results = tmp_path / "results"
        where = "--source", world.source, "--output", str(results)
        assert run_job(spark, "analytics", *where, settings=world.environment).returncode == 0
        rows = pq.read_table(results / "rows_per_table").to_pylist()
        assert [(row["table"], row["operation"], row["rows"]) for row in rows] == [("t", "insert", 3)]


@MARIADB_IS_SLOW
def test_a_snapshot(world):
    run(world, KEYLESS, "INSERT INTO keyless VALUES ('a', 1), ('a', 1), ('b', 2)")
    run(world, "CREATE TABLE one (id INT PRIMARY KEY, v TEXT)", "INSERT INTO one VALUES (1, 'x'), (2, 'y')")
    with world.services(*SERVICES):
        world.wait_for_start()
        take(world, MILLRACE_SNAPSHOT_TABLES=f"{world.database}.*")
        run(world, "INSERT INTO keyless VALUES ('c', 3)", "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
        wait_until_merged(world)
        assert differences(world) == {}
        assert "equal" in world.command("verify", "rows", "--idle").stdout


@pytest.mark.slow
def test_a_topic_that_takes_no_large_schema(kafka, registry, mysql, source_name, tmp_path):
    """One that others made, with Kafka's own limit: the table whose schema is larger waits, none else."""
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as world:
        world.environment |= {"MILLRACE_REGISTRY_URL": "", "MILLRACE_KAFKA_FENCED_WAIT_S": "0"}
        world.registry = SchemaTopic(world.settings, world.source, TopicsSettings())
        topic = NewTopic(world.topics.avro, 1, 1, config=KAFKAS_OWN_LIMIT)
        admin = connect(world.settings)
        admin.create_topics([topic])[topic.topic].result(30)
        with world.services(*SERVICES):
            world.wait_for_start()
            run(
                world,
                f"CREATE TABLE large (id INT PRIMARY KEY); ALTER TABLE large {', '.join(columns(60, 'c'))}",
            )
            run(world, "CREATE TABLE done (id INT PRIMARY KEY)")
            run(world, "INSERT INTO large (id) VALUES (1); INSERT INTO done VALUES (1)")
            world.wait_for_row("done")
            assert world.rows("large") == []
            said = world.command("deadletter", "list").stdout
            assert f"{topic.topic} takes none so large: raise its max.message.bytes" in said


def test_what_one_began_the_other_does_not_continue(world, registry):
    """Neither a registry nor the topic has the schemas of the other, and each says what to do."""
    run(world, "CREATE TABLE t (id INT PRIMARY KEY)")
    with world.services(*SERVICES):
        world.wait_for_start()
        run(world, "INSERT INTO t VALUES (1)")
        world.wait_for_row("t")
    world.environment["MILLRACE_REGISTRY_URL"] = registry.url
    with world.service("reader"):
        run(world, "INSERT INTO t VALUES (2)")
        for name in ("decoder", "rowmapper"):
            with world.service(name, ends_with=5) as process:
                process.wait(120)
            assert "was written without a schema registry" in world.log(name)


def test_a_registry_is_not_left_in_silence(kafka, registry, mysql, source_name, tmp_path):
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as world:
        run(world, "CREATE TABLE t (id INT PRIMARY KEY)")
        with world.services(*SERVICES):
            world.wait_for_start()
            run(world, "INSERT INTO t VALUES (1)")
            world.wait_for_row("t")
        for service in ("decoder", "rowmapper"):
            with world.service(service, ends_with=2, MILLRACE_REGISTRY_URL="") as process:
                process.wait(120)
            assert "MILLRACE_REGISTRY_URL is missing" in world.log(service)

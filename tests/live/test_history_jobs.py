"""The jobs row_history and conformance on what decoder and row mapper made of a real log.

And all jobs on such a log with records among it that cannot be read.
"""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from millrace.avro.events import binlog_event_schema
from millrace.avro.registry import wire_prefix
from millrace.contract import Topics
from millrace.kafka.client import connect
from millrace.local import Kafka, MySQL, Registry
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from spark_jobs import conformance as compared
from spark_jobs import row_history as followed
from spark_jobs.common.job import Job, TableJobSettings, _inputs
from spark_jobs.common.kafka import kafka_options
from spark_jobs.common.session import Steps
from spark_jobs.common.tables import parse_key
from tests.live.output import wait_until_decided
from tests.live.rows_world import RowsWorld
from tests.live.test_reprocess_job import Runs, world
from tests.shared import PROJECT, environment_with
from tests.spark_session import SPARK, run_job, spark

__all__ = ["spark", "world"]

pytestmark = [*SPARK, pytest.mark.timeout(1200)]


def a_job(spark: SparkSession, world: RowsWorld, name: str, folder: Path) -> Job:
    options = kafka_options(world.settings)
    settings = TableJobSettings(  # type: ignore[call-arg]
        source=world.source,
        kafka=world.settings.model_dump(),
        registry={"url": world.environment["MILLRACE_REGISTRY_URL"]},
    )
    schemas = world.registry.subject_schemas(f"{world.source}.transactions-value")
    inputs = list(_inputs(spark, options, {world.source: schemas}, (None, None), "transactions"))
    return Job(name, str(folder), options, inputs, Steps(spark, name), spark, settings)


def history(spark: SparkSession, world: RowsWorld, folder: Path, key: str, table: str = "items") -> Any:
    """Run row_history; give what it tells and the changes."""
    job = a_job(spark, world, "row_history", folder)
    wanted = parse_key(key)
    found = followed.row_history(job, spark, (world.database, table), wanted)
    assert job.offsets >= len(world.messages(world.topics.table(world.database, table)))
    told = followed.summary(found, wanted)
    job.finish(told, followed.report(job, told, found.changes))
    return told, pq.read_table(folder / "changes").to_pylist()


def test_all_that_happened_to_a_row(spark: SparkSession, world: RowsWorld, tmp_path: Path) -> None:
    """A row is inserted, moved to another key, and changed after ALTER; what was rolled back never was."""
    told, changes = history(spark, world, tmp_path, "id=20")
    assert told["changes"] == {"insert": 1, "update": 1}
    assert [change["op"] for change in changes] == ["c", "u"]
    first, last = (json.loads(change["after"]) for change in changes)
    assert first == {"id": 20, "name": "item 20", "price": "5.00", "at": "2026-01-31 10:00:00.123456"}
    assert (last["note"], changes[1]["changed"]) == ("é0", "note")
    assert json.loads(changes[1]["before"])["note"] is None
    assert ["ALTER" in each["statement"] for each in told["statements"]] == [False, True]

    _, moved = history(spark, world, tmp_path, "id=11")
    assert [change["op"] for change in moved] == ["c", "d"]
    _, there = history(spark, world, tmp_path, "id=10011")
    assert [change["op"] for change in there] == ["c"]
    assert there[0]["transaction"] == moved[1]["transaction"]
    told, nothing = history(spark, world, tmp_path, "id=123456")
    assert (told["changes"], nothing) == ({}, [])

    told, _ = history(spark, world, tmp_path, "text=prepared,kind=b", "log")  # without a key
    assert told["changes"] == {"insert": 1}
    with pytest.raises(
        SettingsError, match=r"--key names nothing; the columns of .*\.items .* are id, note, name,"
    ):
        history(spark, world, tmp_path, "nothing=x")


def compare(spark: SparkSession, world: RowsWorld, folder: Path, before: Path | None, after: Path) -> Any:
    """Run conformance; give how much is equal and so on, by table, and the differences."""
    job = a_job(spark, world, "conformance", folder)
    sides = compared.Side(None if before is None else str(before)), compared.Side(str(after))
    differences, counts = compared.conformance(job, spark, *sides)
    rows = counts.collect()
    found = {row.kind.partition(".")[2] or row.kind: row.asDict() for row in rows}
    told = differences.orderBy("pos", "row", "field").collect()
    job.finish({}, compared.report_of(job, sides, rows, [], told[:5]))
    return found, told


@pytest.mark.slow
def test_what_another_version_makes_otherwise(spark: SparkSession, world: RowsWorld, tmp_path: Path) -> None:
    runs = Runs(spark, world, tmp_path / "one")
    runs.run(pieces=3)
    found, told = compare(spark, world, tmp_path / "results", None, tmp_path / "one")
    number = len(world.rows("items"))
    assert (found["items"]["equal"], told) == (number, [])
    assert not any(row[name] for row in found.values() for name in ("changed", "missing", "added"))

    # Another version gives decimals as doubles.
    other = Runs(spark, world, tmp_path / "other")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MILLRACE_ROWS_DECIMAL", "double")
        other.run(pieces=2)
    found, told = compare(spark, world, tmp_path / "results", tmp_path / "one", tmp_path / "other")
    assert found["log"]["equal"] == len(world.rows("log"))
    assert found["items"]["changed"] + found["items"]["equal"] == number
    assert {row.field for row in told} <= {"before.price", "after.price"}

    events = Runs(spark, world, tmp_path / "events")
    events.run("events", pieces=1)
    again = Runs(spark, world, tmp_path / "again")
    again.run("events", pieces=3)
    found, told = compare(spark, world, tmp_path / "results", tmp_path / "events", tmp_path / "again")
    assert told == []
    assert sum(row["equal"] for row in found.values()) == len(world.messages(world.topics.events))

    with pytest.raises(UserError, match="has no results of a job"):
        compare(spark, world, tmp_path / "results", None, tmp_path)
    with pytest.raises(UserError, match=r"has rows and .* has typed events"):
        compare(spark, world, tmp_path / "results", None, tmp_path / "events")


@pytest.mark.slow
def test_rows_that_continue_in_another_version_of_their_topic(
    spark: SparkSession, kafka: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> None:
    """Both jobs read all versions; row_history also what was before a table was renamed and emptied."""
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as own:
        own.environment["MILLRACE_ROWS_ON_INCOMPATIBLE"] = "new-topic"
        with own.service("run"):
            own.wait_for_start()
            own.server.execute(
                f"USE {own.database}",
                "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
                "CREATE TABLE done (id INT PRIMARY KEY)",
                "INSERT INTO a VALUES (1, 1), (2, 2)",
                "ALTER TABLE a MODIFY v VARCHAR(10)",
                "UPDATE a SET v = 'x' WHERE id = 2",
                "CREATE TABLE b (id INT PRIMARY KEY, v INT)",
                "INSERT INTO b VALUES (1, 1)",
                "RENAME TABLE b TO c",
                "CREATE TABLE b (id INT PRIMARY KEY, v INT)",
                "INSERT INTO b VALUES (1, 100)",
                "UPDATE c SET v = 2",
                "ALTER TABLE c RENAME COLUMN id TO number",
                "TRUNCATE TABLE c",
                "INSERT INTO c VALUES (1, 3)",
                "INSERT INTO done VALUES (1)",
            )
            own.wait_for_row("done")
        topic = own.topics.table(own.database, "a")
        assert [len(own.messages(each)) for each in (topic, f"{topic}-v2")] == [2, 1]
        told, changes = history(spark, own, tmp_path / "history", "id=2", "a")
        assert told["changes"] == {"insert": 1, "update": 1}
        assert [json.loads(change["after"])["v"] for change in changes] == [2, "x"]
        told, changes = history(spark, own, tmp_path / "history", "number=1", "c")
        assert [json.loads(change["after"])["v"] for change in changes] == [1, 2, 3]
        assert ["RENAME" in each["statement"] for each in told["statements"]] == [False, True, True, False]
        Runs(spark, own, tmp_path / "one").run(pieces=1)
        found, different = compare(spark, own, tmp_path / "results", None, tmp_path / "one")
        assert (found["a"]["equal"], different) == (3, [])
        check_jobs_without_topics(spark, own, tmp_path, topic)


def check_jobs_without_topics(spark: SparkSession, own: RowsWorld, folder: Path, first: str) -> None:
    """Delete topics of tables, also while a job runs, and create one again: no job takes them for empty."""
    admin = connect(own.settings)

    def delete(topic: str) -> None:
        admin.delete_topics([topic])[topic].result()

    later, gone = f"{first}-v2", own.topics.table(own.database, "done")
    results = {path: path.read_bytes() for path in (folder / "history").rglob("*.*") if path.is_file()}
    where = ["--source", own.source, "--output", str(folder / "history"), "--master", "local[2]"]
    command = [sys.executable, "-m", "millrace.cli", "job"]
    state = [*command, "table_state", *where, "--table", f"{own.database}.a", "--table"]
    with subprocess.Popen(
        [*state, f"{own.database}.done"],
        env=environment_with(own.environment), cwd=PROJECT, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        told = ""
        while "the moment found (" not in told and (line := process.stderr.readline()):
            told += line
        delete(gone)
        told += process.stderr.read()
    assert process.returncode == ExitCode.DATA, told
    last = told.splitlines()[-1]
    assert last.startswith(f"error: {gone} was deleted while table_state ran; the previous results remain")
    assert "Traceback" not in told

    delete(later)
    options = {
        "row_history": ["--table", f"{own.database}.a", "--key", "id=1"],
        "flashback": ["--after", "1h"],
    }
    for name, what in {"row_history": "is gone", "flashback": "was deleted and created again"}.items():
        done = run_job(spark, name, *where, *options[name], settings=own.environment)
        assert done.returncode == ExitCode.DATA
        failed = done.stderr.splitlines()[-1]
        assert failed.startswith(f"error: the topic {later} {what}: the rows that were written to it"), failed
        if name == "row_history":
            admin.create_topics([NewTopic(later, 1, 1)])[later].result()
    assert {path: path.read_bytes() for path in results} == results
    with pytest.raises(UserError, match=f"the topic {later} was deleted and created again"):
        compare(spark, own, folder / "results", None, folder / "one")


def test_the_commands(spark: SparkSession, world: RowsWorld, tmp_path: Path) -> None:
    """They take the settings of the services, and say in words what they cannot work with."""
    table = f"{world.database}.items"

    def run(*arguments: str, code: int = 0) -> str:
        output = str(tmp_path / arguments[0])
        done = run_job(spark, *arguments, "--output", output, settings=world.environment)
        assert done.returncode == code, done.stderr
        return done.stderr

    said = run("table_state", "--table", table, "--at", "latest")
    assert f"reading {world.topics.transactions}, offsets 0 to " in said
    told = json.loads((tmp_path / "table_state" / "summary.json").read_text())["tables"][table]
    written = pq.read_table(tmp_path / "table_state" / table / "rows")
    ((expected,),) = world.server.query(f"SELECT COUNT(*) FROM {table}")
    assert told["rows"] == written.num_rows == int(expected)
    assert told["doubts"] == []

    run("flashback", "--table", table, "--key", "id=25", "--dry-run")
    told = json.loads((tmp_path / "flashback" / "summary.json").read_text())
    assert told["tables"] == {table: {"inserts": 1, "updates": 1, "deletes": 0, "not_undone": 0}}
    assert not (tmp_path / "flashback" / "flashback.sql").exists()

    no = "flashback", "--transaction", "no:1", "--dry-run"
    assert f"error: nothing is selected: {world.source} has no transaction no:1\n" in run(*no, code=8)
    first = world.rows("items")[0]["transaction"]["id"]
    assert "error: not all of it can be undone: " in run(*no, "--transaction", first, code=8)
    told = json.loads((tmp_path / "flashback" / "summary.json").read_text())
    assert told["not_found"] == [f"{world.source} has no transaction no:1"]
    assert told["transactions"] == 1
    said = run("flashback", "--table", table, "--key", "id=123456", code=8)
    assert f"error: nothing is selected: no selected change of {table} has the key id=123456\n" in said
    said = run("flashback", "--table", table, "--key", "ID=25", code=2)
    assert f"error: --key names ID; the primary key of {table} is id\n" in said
    said = run("flashback", "--table", table, code=2)
    assert "error: select what to undo, with --gtids, --transaction, --after, --until or --key\n" in said
    assert "expected latest, a time, FILE:POSITION or" in run(
        "table_state", "--table", table, "--at", "x", code=2
    )


class Damaged:
    """A copy of a source's topics, with what is no record of theirs among the records.

    ``faults`` has the offsets of the latter, by topic. Records of aborted transactions lie there too. Half
    of the typed events are written by an older schema.
    """

    def __init__(self, world: RowsWorld) -> None:
        self.world = world
        self.source = f"{world.source}-damaged"
        self.faults: dict[str, list[int]] = {}
        self._producer = Producer(
            {"bootstrap.servers": world.settings.bootstrap_servers, "transactional.id": self.source}
        )
        self._producer.init_transactions(60)
        self._admin = connect(world.settings)
        own = Topics(world.source)
        kinds = [own.raw, own.events, own.transactions, own.ddl, own.catalog, own.schemas, own.state]
        for topic in [*kinds, *world.table_topics()]:
            self._copy(topic)
        assert self._producer.flush(60) == 0

    def topic(self, of: str) -> str:
        return of.replace(self.world.source, self.source, 1)

    def close(self) -> None:
        del self._producer  # or it would look for its broker
        topics = [name for name in self._admin.list_topics(timeout=30).topics if name.startswith(self.source)]
        for done in self._admin.delete_topics(topics).values():
            done.result()

    def _copy(self, topic: str) -> None:
        target = self.topic(topic)
        partitions = len(self._admin.list_topics(topic, timeout=30).topics[topic].partitions)
        self._admin.create_topics([NewTopic(target, partitions, 1)])[target].result()
        registry = self.world.registry
        older = older_schema() if topic.endswith(".events") else None
        older_id = None if older is None else registry.register(f"{target}-value", older)
        ids = {
            wire_prefix(number): wire_prefix(registry.register(f"{target}-{part}", schema))
            for part in ("key", "value")
            for number, schema in registry.subject_schemas(f"{topic}-{part}").items()
        }

        def copied(data: bytes | None) -> bytes | None:
            return data if data is None or data[:5] not in ids else ids[data[:5]] + data[5:]

        messages = self.world.messages(topic)
        self.faults[target] = []
        self._producer.begin_transaction()
        for number, message in enumerate(messages):
            key, value = copied(message.key()), copied(message.value())
            if number == len(messages) // 2:
                for fault in faults_of(target, key, value):
                    self._write(target, message, fault, self.faults[target])
            if older is not None and older_id is not None and value is not None and number % 2:
                value = wire_prefix(older_id) + as_older(registry, value, older)
            self._write(target, message, (key, value, message.headers()))
            if number % 100 == 0:
                self._producer.commit_transaction(60)
                self._producer.begin_transaction()
                self._write(target, message, (message.key(), b"aborted", None))
                assert self._producer.flush(60) == 0
                self._producer.abort_transaction(60)
                self._producer.begin_transaction()
        self._producer.commit_transaction(60)
        wait_until_decided(self._admin, target, partitions)

    def _write(
        self,
        topic: str,
        like: Message,
        record: tuple[Any, Any, Any],
        offsets: list[int] | None = None,
    ) -> None:
        key, value, headers = record

        def delivered(error: Any, message: Message) -> None:
            assert error is None
            if offsets is not None:
                offsets.append(message.offset())

        self._producer.produce(
            topic, value, key, like.partition(), delivered, like.timestamp()[1], headers=headers or []
        )
        self._producer.poll(0)

    def offsets(self, *topics: str) -> set[tuple[str, int]]:
        """Return topic and offset of the records that are none."""
        return {(topic, offset) for topic in topics for offset in self.faults[topic]}


def older_schema() -> dict[str, Any]:
    """The schema of typed events as it would have been before events had their checksum."""
    own = binlog_event_schema()
    return {**own, "fields": [field for field in own["fields"] if field["name"] != "checksum"]}


def as_older(registry: Any, value: bytes, older: Any) -> bytes:
    own = registry.schema(int.from_bytes(value[1:5], "big"))
    record = fastavro.schemaless_reader(io.BytesIO(value[5:]), own, return_record_name=True)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, older, record)
    return out.getvalue()


def faults_of(topic: str, key: bytes | None, value: bytes | None) -> list[tuple[Any, Any, Any]]:
    """Records like one of a topic, with something wrong in each."""
    assert value is not None
    found: list[tuple[Any, Any, Any]] = [(key, b"garbage", None), (key, b"", None), (key, value[:-3], None)]
    kind = topic.partition(".")[2]
    if kind not in {"raw", "catalog", "schemas", "state"}:
        found.append((key, b"\x00\x7f\xff\xff\xff" + value[5:], None))  # a schema that nobody knows
    if kind in {"raw", "events", "transactions", "ddl"}:
        found.append((key, None, None))
    if kind == "raw":
        found.append((key, b"\0\0\0\0\x0f that is no description of a format", None))
    if kind in {"raw", "events"}:
        found += [(None, value, None), (b"no key", value, None)]
        other = b"1:0:mysql-bin.000099:4" + b":0" * (kind == "events")
        found.append((other, value, [("chunk", b"0/3")]))  # whose other chunks never come
    if "." in kind:
        found.append((b"\x00\x00\x00\x00\x00?", value, None))
    return [] if kind == "state" else found


@pytest.fixture(scope="module")
def damaged(world: RowsWorld) -> Iterator[Damaged]:
    made = Damaged(world)
    yield made
    made.close()


class Jobs:
    """Runs jobs in the session of the tests."""

    def __init__(self, spark: SparkSession, world: RowsWorld, folder: Path) -> None:
        self.spark, self.world, self.folder = spark, world, folder

    def run(self, name: str, source: str, *options: str) -> tuple[dict[str, Any], Path]:
        """Run a job; give its summary and the folder of its results.

        Its exit code and last line tell of records that it could not read.
        """
        folder = self.folder / f"{name}-{source}"
        where = "--source", source, "--output", str(folder)
        done = run_job(self.spark, name, *where, *options, settings=self.world.environment)
        assert (folder / "summary.json").exists(), done.stderr
        summary = json.loads((folder / "summary.json").read_text())
        faults = summary["faulty_records"]
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        if number := faults["number"]:
            assert done.returncode == ExitCode.FAULTY
            assert errors == [
                f"error: {number} records could not be read: see the report; everything else was written"
            ]
        else:
            assert (done.returncode, errors) == (0, [])
        page = (folder / "report.html").read_text()
        for fault in faults["first"]:
            assert f">{fault['offset']:,}<" in page
        return summary, folder


def listed(summary: dict[str, Any]) -> set[tuple[str, int]]:
    """Return topic and offset of the records that a job lists; it lists all that it counts."""
    faults = summary["faulty_records"]
    found = {(fault["topic"], fault["offset"]) for fault in faults["first"]}
    assert len(found) == faults["number"]
    return found


@pytest.mark.slow
def test_records_that_cannot_be_read_end_no_job(
    spark: SparkSession, world: RowsWorld, damaged: Damaged, tmp_path: Path
) -> None:
    """Each is counted and listed with its offset, and all else is as without them."""
    jobs, topics = Jobs(spark, world, tmp_path), Topics(damaged.source)
    items, table = (topics.table(world.database, name) for name in ("items", "log"))
    catalog = topics.catalog, topics.schemas
    database = world.database

    def by_table(folder: Path) -> list[Any]:
        rows = pq.read_table(folder / "rows_per_table").to_pylist()
        return sorted((r["table"], r["operation"], r["rows"], r["bytes"]) for r in rows)

    _, clean = jobs.run("analytics", world.source)
    summary, folder = jobs.run("analytics", damaged.source)
    assert listed(summary) == damaged.offsets(topics.raw)
    assert by_table(folder) == by_table(clean)

    whole, clean = jobs.run("reprocess", world.source, "--pieces", "3")
    summary, folder = jobs.run("reprocess", damaged.source, "--pieces", "3")
    assert listed(summary) == damaged.offsets(topics.raw, *catalog)
    rows = [
        sorted((name.partition("/schema=")[0], told["rows"]) for name, told in one["tables"].items())
        for one in (whole[world.source], summary[damaged.source])
    ]
    rows[1].remove(("deadletter", len(damaged.faults[topics.raw])))
    assert rows[0] == rows[1]

    summary, _ = jobs.run("conformance", damaged.source, "--after", str(folder))
    assert listed(summary) == damaged.offsets(items, table, topics.transactions, topics.ddl)
    # What was published has the name of the source of which this one is a copy, and that is not compared.
    numbers = {f"{database}.{name}": len(world.rows(name)) for name in ("items", "log")}
    numbers |= {kind: len(world.messages(f"{world.source}.{kind}")) for kind in ("transactions", "ddl")}
    dead_letters = summary["compared"].pop("dead letters of decoder")
    assert summary["compared"] == {
        kind: {"equal": number, "changed": 0, "missing": 0, "added": 0} for kind, number in numbers.items()
    }
    # The decoder did not see the records that are none.
    assert dead_letters["added"] == sum(dead_letters.values()) > 0
    assert [(row["kind"], row["what"]) for row in summary["fields"]] == [("dead letters of decoder", "added")]

    log = topics.transactions, topics.ddl, *catalog
    name = f"{database}.items"
    summary, _ = jobs.run("table_state", damaged.source, "--table", name)
    assert listed(summary) == damaged.offsets(*log, items)
    ((count,),) = world.server.query(f"SELECT COUNT(*) FROM {name}")
    assert summary["tables"][name]["rows"] == int(count)

    summary, _ = jobs.run("row_history", damaged.source, "--table", name, "--key", "id=20")
    assert listed(summary) == damaged.offsets(*log, items)
    assert summary["changes"] == {"insert": 1, "update": 1}

    summary, _ = jobs.run("flashback", damaged.source, "--table", name, "--key", "id=25", "--dry-run")
    assert listed(summary) == damaged.offsets(*log, items)
    told = summary["tables"][name]
    assert (told["inserts"], told["updates"], told["deletes"]) == (1, 1, 0)

    whole, _ = jobs.run("loop_detection", world.source)
    summary, folder = jobs.run("loop_detection", damaged.source)
    assert listed(summary) == damaged.offsets(topics.events)
    assert summary["transactions"] == whole["transactions"]
    assert summary["verdict"] == "doubt"
    dead_letters = pq.read_table(folder / "deadletter").to_pylist()
    assert {(row["topic"], row["offset"]) for row in dead_letters} == damaged.offsets(topics.events)

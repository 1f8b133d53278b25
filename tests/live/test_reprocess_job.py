"""The job reprocess on a real log: what it makes of raw events is what decoder and row mapper published."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from millrace.avro.columnar import AvroColumns, chosen
from millrace.avro.events import EventDeserializer, binlog_event_schema
from millrace.contract import HEADER_CHUNK, RawKey
from millrace.ddl import State
from millrace.kafka.client import connect
from millrace.local import Kafka, MySQL, Registry
from millrace.rowmapper.definitions import read_definitions
from millrace.runtime.settings import load_settings
from millrace.spark.archive import Archive
from spark_jobs.analytics import count_log, counts_of, of_kind, rows_per_table
from spark_jobs.archive import stream_into
from spark_jobs.common.job import Job, RawJobSettings, RowJobSettings, _archived, _inputs
from spark_jobs.common.kafka import kafka_options, parse_bound
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.session import Steps
from spark_jobs.common.source import read_log
from spark_jobs.common.tables import parse_gtids
from spark_jobs.reprocess import main, report, reprocess, summary
from tests.live.reader_world import ReaderWorld
from tests.live.rows_world import RowsWorld, without_column_names
from tests.secure_kafka import SecureKafka
from tests.shared import run_python
from tests.spark_session import SPARK, spark
from tests.stages import without_times

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.timeout(1200)]

PREFIX = 5


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest,
    kafka: Kafka,
    registry: Registry,
    mysql: MySQL,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RowsWorld]:
    """A source whose log has most of what makes rows hard to find, published by the services.

    Each module that uses it has its own: both may run on one Kafka.
    """
    source = request.path.stem.removeprefix("test_").replace("_", "-")
    world = RowsWorld(kafka, registry, mysql, source, tmp_path_factory.mktemp("services"))
    with world.with_database():
        with world.services("reader", "decoder", "rowmapper"):
            world.wait_for_start()
            _write(mysql, world.database)
            world.wait_for_row("log", 4)
        yield world  # what other tests write on this server is not read


def _write(mysql: MySQL, database: str) -> None:
    mysql.execute(
        f"USE {database}",
        "CREATE TABLE items (id INT PRIMARY KEY, name VARCHAR(40), price DECIMAL(10,2), at DATETIME(6))",
        "CREATE TABLE log (text TEXT, seen TIMESTAMP NULL, kind ENUM('a','b'), day DATE)",
        "INSERT INTO items WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 900)"
        " SELECT n, CONCAT('item ', n), n / 4, '2026-01-31 10:00:00.123456' FROM s",
        "BEGIN",
        "INSERT INTO log VALUES ('kept', '2026-01-31 10:00:00', 'a', '2026-01-31')",
        "SAVEPOINT s",
        "UPDATE items SET price = 0 WHERE id < 50",
        "ROLLBACK TO SAVEPOINT s",
        "UPDATE items SET id = id + 10000 WHERE id BETWEEN 10 AND 12",
        "COMMIT",
        "BEGIN",
        "DELETE FROM items WHERE id > 100",
        "ROLLBACK",
        "ALTER TABLE items ADD COLUMN note VARCHAR(10) CHARACTER SET latin1 AFTER id",
        "XA START 'one'",
        "INSERT INTO log VALUES ('prepared', NULL, 'b', NULL)",
        "XA END 'one'",
        "XA PREPARE 'one'",
    )
    for number in range(25):
        mysql.execute(f"UPDATE {database}.items SET note = 'é{number}' WHERE id = {number + 20}")
    mysql.execute("XA COMMIT 'one'", f"DELETE FROM {database}.items WHERE id BETWEEN 300 AND 420")
    mysql.execute("FLUSH BINARY LOGS", f"INSERT INTO {database}.log VALUES (NULL, NULL, NULL, NULL)")
    with without_column_names(mysql):
        mysql.execute(f"INSERT INTO {database}.log VALUES ('by catalogue', NULL, 'b', '2026-02-01')")


@pytest.fixture(scope="module")
def published(world: RowsWorld) -> dict[str, list[Any]]:
    """What lies in the row topics, by table."""
    return {topic.removeprefix(f"{world.source}."): _plain(world, topic) for topic in world.table_topics()}


def _plain(world: RowsWorld, topic: str) -> list[Any]:
    """Read the records of a topic by the schemas that the registry has of it, as Arrow has them."""
    found: list[Any] = []
    for message in world.messages(topic):
        value = message.value() or b""
        columns = AvroColumns(world.registry.schema(int.from_bytes(value[1:PREFIX], "big")))
        columns._kernel = None
        found += columns.read([value]).to_pylist()
    return [without_times(row) for row in found]


class Runs:
    """Runs of the job, in one session."""

    def __init__(self, spark: SparkSession, world: RowsWorld, folder: Path) -> None:
        self.spark, self.world, self.folder = spark, world, folder
        self.options = kafka_options(world.settings)

    def run(
        self,
        into: Any = "rows",
        pieces: int | None = None,
        gtids: str | None = None,
        start: str = "earliest",
        archive: str | None = None,
        given: Mapping[tuple[str, str], State] | None = None,
    ) -> Outcome:
        job = self.job(start, archive)
        outcomes = reprocess(
            job,
            self.spark,
            into,
            pieces,
            None if gtids is None else parse_gtids("--gtids", gtids),
            given=given,
        )
        job.finish(summary(outcomes), report(job, outcomes))
        return outcomes[self.world.source]

    def job(self, start: str = "earliest", archive: str | None = None) -> Job:
        source = self.world.source
        bounds = parse_bound(start), None
        archived = partial(_archived, self.world.settings, bounds, archive, False) if archive else None
        inputs = list(
            _inputs(self.spark, self.options, {source: {}}, bounds, "raw", archived=archived or None)
        )
        settings = load_settings(RowJobSettings, source=source, kafka=self.world.settings.model_dump())
        steps = Steps(self.spark, "reprocess")
        return Job("reprocess", str(self.folder), self.options, inputs, steps, self.spark, settings)

    def tables(self, kind: str = "rows") -> dict[str, list[Any]]:
        """Read what the last run wrote, in the order of the log."""
        found: dict[str, list[Any]] = {}
        files = json.loads((self.folder / "summary.json").read_text())[self.world.source]["files"]
        for path in sorted(files, key=lambda one: one.rpartition("/")[2]):
            parts = path.split("/")
            if parts[0] == kind:
                rows = pq.ParquetFile(self.folder / "latest" / path).read().to_pylist()
                found.setdefault(parts[1], []).extend(map(without_times, rows))
        return {table: sorted(rows, key=_place) if kind == "rows" else rows for table, rows in found.items()}


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    source = row["source"]
    return source["epoch"], source["file"], source["pos"], source["sub_index"], source["row"]


@pytest.fixture
def runs(spark: SparkSession, world: RowsWorld, tmp_path: Path) -> Runs:
    return Runs(spark, world, tmp_path / "results")


@pytest.mark.parametrize("pieces", [1, 3, 17])
def test_rows_are_those_that_were_published(
    runs: Runs, world: RowsWorld, published: dict[str, list[Any]], pieces: int
) -> None:
    outcome = runs.run(pieces=pieces)
    found = {name: rows for name, rows in runs.tables().items() if name.startswith(f"{world.database}.")}
    assert found.keys() == published.keys()
    for table, rows in published.items():
        assert found[table] == sorted(rows, key=_place), table
    assert not outcome.dead_letters
    left = {
        str(file.relative_to(runs.folder / "latest")) for file in (runs.folder / "latest").rglob("*.parquet")
    }
    assert left == {file.path for file in outcome.files}, "what was decoded again is there twice"
    assert len({file.path.rpartition("/")[2][:5] for file in outcome.files}) <= pieces
    assert pieces == 1 or len({file.path.rpartition("/")[2][:5] for file in outcome.files}) > 1


def test_transactions_that_are_asked_for(
    runs: Runs, world: RowsWorld, published: dict[str, list[Any]]
) -> None:
    """One transaction by its GTID; and all from an offset on, in the midst of one."""
    items = published[f"{world.database}.items"]
    gtid = items[-1]["source"]["gtid"]
    runs.run(pieces=3, gtids=gtid)
    wanted = {
        table: sorted(of_it, key=_place)
        for table, rows in published.items()
        if (of_it := [row for row in rows if row["source"]["gtid"] == gtid])
    }
    assert runs.tables() == wanted

    source = items[len(items) // 2]["source"]
    place = source["file"], source["pos"]
    keys = {
        message.offset(): RawKey.parse(message.key() or b"") for message in world.messages(world.topics.raw)
    }
    middle = next(offset for offset, key in keys.items() if (key.log_file, key.position) == place)
    runs.run(pieces=3, start=f"offset:{middle}")
    found = runs.tables()[f"{world.database}.items"]
    every = sorted(items, key=_place)
    assert 0 < len(found) < len(every)
    assert found == every[-len(found) :]


def archive_up_to(job: Job, folder: str, end: int) -> Archive:
    (one,) = job.inputs
    query = stream_into(job, one, f"{folder}/{one.source}", "0 seconds", end)
    query.processAllAvailable()
    query.stop()
    return Archive.read(f"{folder}/{one.source}")


def test_an_archive_is_read_as_the_topic_is(
    runs: Runs, world: RowsWorld, published: dict[str, list[Any]], tmp_path: Path
) -> None:
    """It ends within a transaction; what follows is in the topic."""
    job = runs.job()
    ((start, end),) = job.inputs[0].part.offsets.values()
    middle = (start + end) // 2
    before = archive_up_to(job, str(tmp_path), middle)
    assert start <= before.last < middle
    runs.run(pieces=5, archive=str(tmp_path))
    assert (
        runs.tables().items()
        >= {table: sorted(rows, key=_place) for table, rows in published.items()}.items()
    )

    archive_up_to(job, str(tmp_path), end)
    whole = runs.job(archive=str(tmp_path))
    assert whole.inputs[0].part.archive is not None
    counted = count_log(job), count_log(whole)
    read = [of_kind(one, "read").agg({"events": "sum", "bytes": "sum"}).first() for one in counted]
    assert read[0] == read[1]
    rows = [sorted(map(tuple, rows_per_table(counts_of(one)).collect())) for one in counted]
    assert rows[0] == rows[1] != []


@pytest.mark.slow
def test_over_tls_and_sasl(world: RowsWorld, kafka: SecureKafka, tmp_path: Path) -> None:
    """Driver, Java's client and the executors' workers connect; no secret is where others may read it."""
    events = tmp_path / "events"
    events.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.log.level DEBUG\nspark.eventLog.enabled true\nspark.eventLog.compress false\n"
        f"spark.eventLog.dir {events.as_uri()}\n"
    )
    settings = {
        **world.environment, **kafka.secure, "SPARK_CONF_DIR": str(tmp_path),
        "MILLRACE_REGISTRY_USERNAME": "someone", "MILLRACE_REGISTRY_PASSWORD": "hidden-of-the-registry",
        "MILLRACE_COLUMNS_HASH": "%.items.name", "MILLRACE_COLUMNS_HASH_SALT": "hidden-of-columns",
    }  # fmt: skip
    _, key, *_ = (kafka.folder / "server-key.pem").read_bytes().splitlines()
    wanted = {
        "analytics": [],
        "reprocess": [],
        "row_history": ["--table", f"{world.database}.items", "--key", "id=20"],
    }
    for job, options in wanted.items():
        where = "--source", world.source, "--output", str(tmp_path / job), "--master", "local[2]"
        done = run_python("-m", "millrace.cli", "job", job, *where, *options, settings=settings)
        (tmp_path / f"{job}.log").write_text(done.stdout + done.stderr)
        assert done.returncode == 0, [line for line in done.stderr.splitlines() if "error: " in line]
    told = json.loads((tmp_path / "reprocess" / "summary.json").read_text())[world.source]
    assert told["transactions"] > 25
    (items, *_) = (path for path in told["files"] if f"{world.database}.items/" in path)
    after = pq.ParquetFile(tmp_path / "reprocess" / "latest" / items).read().column("after").to_pylist()
    assert {len(row["name"]) for row in after if row is not None} == {64}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(events in path.parents for path in files) >= 2
    for path in files:
        written = path.read_bytes()
        assert b"hidden-of" not in written, path
        assert key not in written, path


def test_a_slice_is_read_over_tls_and_sasl_without_secrets_in_plans(
    runs: Runs, world: RowsWorld, kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = runs.job()
    for name, value in kafka.secure.items():
        monkeypatch.setenv(name, value)
    job.settings = load_settings(RawJobSettings, source=world.source)
    (one,) = job.inputs
    ((start, end),) = one.part.offsets.values()
    part = one.part.between(start + 7, end - 5)
    read = read_log(job, replace(one, part=part), "raw", columns="offset bigint")
    written = (message.offset() or 0 for message in world.messages(part.topic))
    wanted = [offset for offset in written if start + 7 <= offset < end - 5]
    assert [row.offset for row in read.orderBy("offset").collect()] == wanted
    with redirect_stdout(StringIO()) as told:
        for mode in ("extended", "formatted", "codegen"):
            read.explain(mode=mode)
    assert "millrace" in told.getvalue()
    assert "hidden-of" not in told.getvalue()


def test_definitions_that_no_log_tells_are_given(
    spark: SparkSession, kafka: Kafka, registry: Registry, mysql: MySQL, tmp_path: Path
) -> None:
    """A log from a file, which begins after CREATE DATABASE; a statement in one piece counts in the next.

    One statement is in chunks. Where an archive ends between them, or has what the topic lost, nothing
    differs, nor in Iceberg.
    """
    world = RowsWorld(kafka, registry, mysql, "reprocess-given", tmp_path)
    with world.with_database(), without_column_names(mysql):
        mysql.execute(
            f"USE {world.database}",
            f"ALTER DATABASE {world.database} CHARACTER SET utf8mb4",
            "CREATE TABLE old (id INT UNSIGNED PRIMARY KEY, v VARCHAR(20) CHARACTER SET latin1)",
            "FLUSH BINARY LOGS",
            "CREATE TABLE t (id INT UNSIGNED PRIMARY KEY, v VARCHAR(20))",
            "INSERT INTO t VALUES (4000000000, 'ä')",
            "INSERT INTO old VALUES (4000000000, 'ä')",
            f"ALTER TABLE t ADD COLUMN e ENUM('x','ü') FIRST /* {'-' * 2_500_000} */, RENAME COLUMN v TO w",
            "INSERT INTO t VALUES ('ü', 1, 'ö')",
            "FLUSH BINARY LOGS",
        )
        log = shutil.copy(mysql.binlog_files[-2], tmp_path)
        ReaderWorld(kafka, world.source, MILLRACE_FILES=log).run()
    runs = Runs(spark, world, tmp_path / "results")
    runs.run(pieces=5)
    assert all("column_1" in row["after"] for rows in runs.tables().values() for row in rows)
    script = tmp_path / "definitions.sql"
    script.write_text(
        f"CREATE DATABASE {world.database} CHARACTER SET utf8mb4; USE {world.database};"
        "CREATE TABLE old (id INT UNSIGNED PRIMARY KEY, v VARCHAR(20) CHARACTER SET latin1)"
    )
    given = read_definitions(script)
    expected = {
        f"{world.database}.t": [{"id": 4_000_000_000, "v": "ä"}, {"e": "ü", "id": 1, "w": "ö"}],
        f"{world.database}.old": [{"id": 4_000_000_000, "v": "ä"}],
    }

    def check(archive: str | None = None) -> None:
        outcome = runs.run(pieces=5, given=given, archive=archive)
        assert not outcome.dead_letters
        found = {table: [row["after"] for row in rows] for table, rows in runs.tables().items()}
        assert found == expected

    def iceberg(job: Job, definitions: Path | None) -> None:
        command: Any = main.callback
        with click.Context(main) as context:
            context.params["end"] = "latest"
            command.__wrapped__(
                job, spark, into="rows", gtids=None, script=definitions, pieces=None, table_format="iceberg",
                catalog=None, warehouse=str(tmp_path / "warehouse"), follow=False, every=1,
            )  # fmt: skip

    check()
    chunked = [
        one.offset()
        for one in world.messages(world.topics.raw)
        if (HEADER_CHUNK, b"1/3") in (one.headers() or ())
    ]
    job = runs.job()
    ((_, end),) = job.inputs[0].part.offsets.values()
    (middle,) = chunked
    folder = str(tmp_path / "archive")
    archive_up_to(job, folder, middle)
    check(folder)
    archive_up_to(job, folder, end)
    admin = connect(world.settings)
    for deleted in admin.delete_records([TopicPartition(world.topics.raw, 0, end)]).values():
        deleted.result()
    check(folder)

    for definitions in (None, script):  # the rows by definitions take the place of those without
        iceberg(runs.job(archive=folder), definitions)
    for table, rows in expected.items():
        name = f"millrace.`{world.source}`.{table.replace('.', '__')}"
        found = spark.sql(f"SELECT after FROM {name} ORDER BY raw_offset").toArrow().to_pylist()
        named = [
            {column: value for column, value in row["after"].items() if value is not None} for row in found
        ]
        assert named == rows


def test_events_are_those_that_were_published(runs: Runs, world: RowsWorld) -> None:
    readers: dict[int, AvroColumns] = {}
    expected: dict[str, list[Any]] = {}
    schema = binlog_event_schema()
    *head, union = schema["fields"]
    names = [branch["name"] for branch in union["type"]]
    for message in world.messages(world.topics.events):
        value = message.value() or b""
        branch = names.index(type(EventDeserializer(world.registry)(value).event).__name__)
        if branch not in readers:
            one = {**union, "type": chosen(union["type"], branch)}
            readers[branch] = AvroColumns({**schema, "fields": [*head, one]})
            readers[branch]._kernel = None
        expected.setdefault(names[branch], []).extend(readers[branch].read([value]).to_pylist())
    outcome = runs.run("events", pieces=3)
    found = runs.tables("events")
    assert {name: len(rows) for name, rows in found.items()} == {
        name: len(rows) for name, rows in expected.items()
    }
    assert found == expected
    assert outcome.events == sum(map(len, expected.values()))

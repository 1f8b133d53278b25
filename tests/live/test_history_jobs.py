"""The jobs row_history and conformance on what decoder and row mapper made of a real log."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millrace.runtime.errors import SettingsError, UserError
from spark_jobs import conformance as compared
from spark_jobs import row_history as followed
from spark_jobs.common.job import Job, TableJobSettings, _inputs
from spark_jobs.common.kafka import kafka_options
from spark_jobs.common.session import Steps
from spark_jobs.common.tables import parse_key
from tests.live.rows_world import RowsWorld
from tests.live.test_reprocess_job import Runs, world
from tests.shared import run_python
from tests.spark_session import SPARK, spark

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
    found, statements, changes = followed.row_history(job, spark, (world.database, table), wanted)
    told = followed.summary(found, wanted, statements, changes)
    job.finish(told, followed.report(job, told, changes))
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

    with pytest.raises(SettingsError, match=r"--key names name; the primary key of .*\.items is id"):
        history(spark, world, tmp_path, "name=x")
    with pytest.raises(SettingsError, match=r"the primary key of .*\.log does not exist"):
        history(spark, world, tmp_path, "text=x", "log")


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
    with pytest.raises(UserError, match="has no rows"):
        compare(spark, world, tmp_path / "results", None, tmp_path / "events")


def test_the_commands(world: RowsWorld, tmp_path: Path) -> None:
    """They take the settings of the services, and say in words what they cannot work with."""
    table = f"{world.database}.items"

    def run(*arguments: str, code: int = 0) -> str:
        where = "--output", str(tmp_path / arguments[0]), "--master", "local[2]"
        done = run_python(
            "-m", "millrace.cli", "job", *arguments, *where, settings=world.environment, timeout_s=600
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    said = run("table_state", "--table", table, "--at", "latest")
    assert f"reading {world.topics.transactions}, offsets 0 to " in said
    told = json.loads((tmp_path / "table_state" / "summary.json").read_text())["tables"][table]
    rows = [
        pq.ParquetFile(tmp_path / "table_state" / table / name).metadata.num_rows for name in told["files"]
    ]
    ((expected,),) = world.server.query(f"SELECT COUNT(*) FROM {table}")
    assert told["rows"] == sum(rows) == int(expected)
    assert told["doubts"] == []

    run("flashback", "--table", table, "--key", "id=25", "--dry-run")
    told = json.loads((tmp_path / "flashback" / "summary.json").read_text())
    assert told["tables"] == {table: {"inserts": 1, "updates": 1, "deletes": 0, "not_undone": 0}}
    assert not (tmp_path / "flashback" / "flashback.sql").exists()

    said = run("flashback", "--table", table, code=2)
    assert (
        "error: name what is to be undone, with --gtids, --transaction, --after, --until or --key\n" in said
    )
    assert "expected latest, a time, FILE:POSITION or" in run(
        "table_state", "--table", table, "--at", "x", code=2
    )

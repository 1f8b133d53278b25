"""The job reprocess into Iceberg: across DDL, into the mirror of its page, and as the log grows."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from millrace.local import Kafka, MySQL, Registry
from millrace.runtime.errors import SettingsError
from millrace.runtime.settings import load_settings
from spark_jobs.common.follow import Pace
from spark_jobs.common.iceberg import open_catalog
from spark_jobs.common.job import Job, RowJobSettings, _inputs
from spark_jobs.common.kafka import kafka_options, parse_bound
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.raw_stream import MicroBatch, follow_raw
from spark_jobs.common.session import Steps
from spark_jobs.reprocess import report, reprocess, summary
from tests.live.rows_world import RowsWorld
from tests.live.test_snapshot import take, wait_until_merged
from tests.live.test_table_state import wait_for_states
from tests.service_process import wait_for
from tests.shared import PROJECT, run_python
from tests.spark_session import SPARK, spark

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.slow, pytest.mark.timeout(1200)]

FIRST = (
    "CREATE TABLE orders (id INT PRIMARY KEY, name VARCHAR(40), price DECIMAL(10,2), amount INT, gone INT)",
    "INSERT INTO orders VALUES (1, 'before', 1, 1, 1)",
    "TRUNCATE orders",
    """INSERT INTO orders WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 300)
    SELECT n, CONCAT('order ', n), n / 4, n, 0 FROM s""",
    "CREATE TABLE log (text TEXT, at TIMESTAMP(6), day DATE)",
    "INSERT INTO log VALUES ('é', '2026-01-31 10:00:00.123456', '0001-01-01'), (NULL, NULL, NULL)",
    "UPDATE orders SET price = price + 1 WHERE id BETWEEN 100 AND 150",
    "ALTER TABLE orders ADD COLUMN note VARCHAR(10) AFTER id",
    "UPDATE orders SET note = 'noted' WHERE id < 20",
    "DELETE FROM orders WHERE id BETWEEN 10 AND 15",
)
THEN = (
    "ALTER TABLE orders MODIFY amount BIGINT, DROP COLUMN gone",
    "UPDATE orders SET amount = 5000000000 + id WHERE id BETWEEN 140 AND 160",
    "UPDATE orders SET id = id + 1000 WHERE id BETWEEN 30 AND 33",
    "ALTER TABLE orders CHANGE name label VARCHAR(80), MODIFY price DECIMAL(12,4)",
    "INSERT INTO orders VALUES (10, 'back', 'again', 1.2345, 10)",
    "BEGIN",
    "UPDATE orders SET price = price / 3, label = 'renamed' WHERE id BETWEEN 150 AND 170",
    "DELETE FROM orders WHERE id = 299",
    "COMMIT",
    "XA START 'one'",
    "UPDATE orders SET note = 'xa' WHERE id = 298",
    "XA END 'one'",
    "XA PREPARE 'one'",
)
BEFORE = (
    "CREATE TABLE kept (id INT PRIMARY KEY, note TEXT, name VARCHAR(40), price DECIMAL(10,2), amount INT)",
    "INSERT INTO kept VALUES (1, 'a', 'one', 1.5, 1), (2, NULL, 'é', NULL, 2), (3, 'c', NULL, -3, NULL)",
)
"""A table with rows that are in no log."""
LAST = ("INSERT INTO orders VALUES (2000, NULL, NULL, NULL, NULL)", "XA COMMIT 'one'")


@pytest.fixture(scope="module")
def world(
    kafka: Kafka, registry: Registry, mysql: MySQL, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RowsWorld]:
    world = RowsWorld(kafka, registry, mysql, "reprocess-iceberg", tmp_path_factory.mktemp("services"))
    with world.with_database():
        world.server.execute(f"USE {world.database}", *BEFORE)
        with world.services("reader"):
            world.wait_for_start()
            yield world


def write(world: RowsWorld, *statements: str) -> int:
    """Run statements; give the offset after what they have logged."""
    mark = f"done_{len(raw(world))}"
    world.server.execute(f"USE {world.database}", *statements, f"CREATE TABLE {mark} (id INT)")
    wait_for(lambda: any(mark.encode() in (one.value() or b"") for one in raw(world)), None, "done")
    return int(raw(world)[-1].offset()) + 1


def raw(world: RowsWorld) -> list[Any]:
    return world.messages(world.topics.raw)


class Runs:
    """Runs of the job in one session, and the catalog that they write to."""

    def __init__(self, spark: SparkSession, world: RowsWorld, folder: Path) -> None:
        self.spark, self.world, self.folder = spark, world, folder
        # A session keeps the catalogs that it has opened: each test has one of its own name.
        self.catalog = re.sub(r"\W", "_", str(folder))
        name = f"spark.sql.catalog.{self.catalog}"
        spark.conf.set(name, "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set(f"{name}.type", "hadoop")
        spark.conf.set(f"{name}.warehouse", str(folder / "warehouse"))
        open_catalog(spark, self.catalog, "")

    def run(
        self, start: int, end: int, *, catalog: str | None = None, pieces: int = 3, into: Any = "rows"
    ) -> Job:
        """Make a slice of the log."""
        job = self.job(start, f"offset:{end}")
        outcomes = reprocess(job, self.spark, into, pieces, None, catalog)
        job.finish(summary(outcomes), report(job, outcomes))
        assert not outcomes[self.world.source].dead_letters
        return job

    def job(self, start: int = 0, end: str = "latest") -> Job:
        options = kafka_options(self.world.settings)
        bounds = parse_bound(f"offset:{start}"), parse_bound(end)
        inputs = list(_inputs(self.spark, options, {self.world.source: {}}, bounds, "raw"))
        settings = load_settings(
            RowJobSettings, source=self.world.source, kafka=self.world.settings.model_dump()
        )
        steps = Steps(self.spark, "reprocess")
        return Job("reprocess", str(self.folder), options, inputs, steps, self.spark, settings)

    def everything(self) -> dict[str, list[Any]]:
        """Read all tables, as text that can be compared."""
        shown = self.spark.sql(f"SHOW TABLES IN {self.catalog}.`{self.world.source}`").collect()
        names = [f"{self.catalog}.`{self.world.source}`.`{row.tableName}`" for row in shown]
        return {
            name.split("`")[3]: sorted(
                json.dumps(comparable(row), sort_keys=True, default=str)
                for row in self.spark.table(name).toArrow().to_pylist()
            )
            for name in names
        }

    def name(self, table: str) -> str:
        return f"{self.catalog}.`{self.world.source}`.{self.world.database}__{table}"

    def rows(self, table: str) -> list[Any]:
        """Read the changes of a table, in their order."""
        order = "ORDER BY raw_offset, source.sub_index, source.row"
        return self.spark.sql(f"SELECT * FROM {self.name(table)} {order}").toArrow().to_pylist()

    def files(self, job: Job, table: str) -> list[Any]:
        """Read the changes of a table that a run has left as Parquet, in the order of the log."""
        folder = Path(job.folder) / "rows" / f"{self.world.database}.{table}"
        found = [row for file in folder.rglob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
        return sorted(
            found, key=lambda row: [row["source"][n] for n in ("epoch", "file", "pos", "sub_index", "row")]
        )


NEW_NAMES = {"price__decimal_12_4": "price"}


def comparable(value: Any) -> Any:
    """Leave out what one side alone has: columns of other times, places in Iceberg, times of runs."""
    if isinstance(value, dict):
        own = {"raw_offset", "day", "key"} if "source" in value else set()
        own |= {"ts_ms", "ts_us", "ts_ns"} if "op" in value else set()
        return {
            NEW_NAMES.get(name, name): comparable(inner)
            for name, inner in value.items()
            if inner is not None and name not in own
        }
    return [comparable(inner) for inner in value] if isinstance(value, list) else value


def test_across_ddl_and_into_a_mirror(spark: SparkSession, world: RowsWorld, tmp_path: Path) -> None:
    middle = write(world, *FIRST)
    runs = Runs(spark, world, tmp_path)
    done = run_python(
        "-m", "millrace.cli", "job", "reprocess", "--source", world.source, "--master", "local[2]",
        "--output", str(tmp_path), "--format", "iceberg", "--to", f"offset:{middle}",
        settings=world.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("latest/rows"))
    fold(runs, 0, recipe(runs))
    assert mirror(runs) == world.server.query(
        f"SELECT id, note, name, price, amount FROM {world.database}.orders ORDER BY id"
    )

    world.server.execute(f"USE {world.database}", *THEN)
    end = write(world, *LAST)
    parquet = runs.run(0, end)
    expected = {table: list(map(comparable, runs.files(parquet, table))) for table in ("orders", "log")}
    for start in (middle, middle // 2, 0):  # the rest; some and all of it again
        runs.run(start, end, catalog=runs.catalog, pieces=3 if start else 1)
        for table, changes in expected.items():
            rows = runs.rows(table)
            assert list(map(comparable, rows)) == changes, start
            places = {(row["raw_offset"], row["source"]["sub_index"], row["source"]["row"]) for row in rows}
            assert len(places) == len(rows)
    runs.run(0, middle - 5, catalog=runs.catalog)
    assert list(map(comparable, runs.rows("orders"))) == expected["orders"]

    after = spark.table(runs.name("orders")).select("after.*")
    assert dict(after.dtypes) == {
        "id": "int", "name": "string", "price": "decimal(10,2)", "amount": "bigint", "gone": "int",
        "note": "string", "label": "string", "price__decimal_12_4": "decimal(12,4)",
    }  # fmt: skip
    partitions = spark.table(f"{runs.name('orders')}.partitions").select("partition.day").collect()
    assert {row.day for row in partitions} == {row["day"] for row in runs.rows("orders")}
    across = {
        "name": "coalesce(after.label, after.name)",
        "price": "coalesce(after.price__decimal_12_4, after.price)",
    }
    fold(runs, middle, recipe(runs, **across))
    assert mirror(runs) == world.server.query(
        f"SELECT id, note, label, price, amount FROM {world.database}.orders ORDER BY id"
    )


def recipe(runs: Runs, table: str = "orders", **columns: str) -> list[str]:
    """Return the mirror of docs/jobs/reprocess.md, with ``columns`` in place of some of its own."""
    text = sql_of_docs(runs, "CREATE TABLE IF NOT EXISTS")
    for name, column in columns.items():
        assert f" after.{name}," in text
        text = text.replace(f" after.{name},", f" {column} AS {name},")
    return text.replace("lake.shop.shop__orders", runs.name(table)).split(";")


def sql_of_docs(runs: Runs, start: str) -> str:
    text = (PROJECT / "docs" / "jobs" / "reprocess.md").read_text()
    (found,) = re.findall(rf"^```sql\n({start} .*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found.replace("lake.shop.orders_now", runs.name("now")).rstrip(";\n")


def fold(runs: Runs, since: int, statements: Iterable[str]) -> None:
    for statement in statements:
        runs.spark.sql(statement, {"since": since} if ":since" in statement else None)


def mirror(runs: Runs) -> list[tuple[Any, ...]]:
    columns = ["id", "note", "name", "price", "amount"]
    return [tuple(row) for row in runs.spark.table(runs.name("now")).orderBy("id").select(columns).collect()]


def test_a_mirror_of_a_table_that_was_there_before_the_log(
    spark: SparkSession, world: RowsWorld, tmp_path: Path
) -> None:
    """By docs/jobs/reprocess.md: what table_state finds, then the changes since."""
    write(world, "UPDATE kept SET amount = 20 WHERE id = 2", "INSERT INTO kept VALUES (4, 'd', 'x', 4, 4)")
    with world.services("decoder", "rowmapper"):
        wait_for_states(world)
        take(world, MILLRACE_SNAPSHOT_TABLES=f"{world.database}.kept")
        wait_until_merged(world)
        world.server.execute(f"USE {world.database}", "DELETE FROM kept WHERE id = 4")
        wait_for(lambda: any(row["op"] == "d" for row in world.rows("kept")), None, world.logs)
    done = run_python(
        "-m", "millrace.cli", "job", "table_state", "--source", world.source, "--master", "local[2]",
        "--output", str(tmp_path / "state"), "--table", f"{world.database}.kept",
        settings=world.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = Runs(spark, world, tmp_path)
    create, *rest = recipe(runs, "kept")
    fold(runs, 0, [create])
    found = f"{tmp_path}/state/{world.database}.kept/rows"
    seed = sql_of_docs(runs, "INSERT INTO").replace("reports/table_state-shop/shop.orders/rows", found)
    fold(runs, 0, [seed])
    end = write(
        world, "UPDATE kept SET price = 7 WHERE id = 1", "INSERT INTO kept VALUES (5, 'e', 'y', 5, 5)"
    )
    runs.run(0, end, catalog=runs.catalog)
    fold(runs, 0, rest)
    expected = world.server.query(
        f"SELECT id, note, name, price, amount FROM {world.database}.kept ORDER BY id"
    )
    assert [row[0] for row in expected] == [1, 2, 3, 5]
    assert mirror(runs) == expected


def test_micro_batches_end_where_no_transaction_is_open(
    spark: SparkSession, world: RowsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever what has arrived ends: what is cut waits; what is prepared is decided some log files later."""
    world.server.execute(
        f"USE {world.database}",
        "CREATE TABLE parts (id INT PRIMARY KEY, text VARCHAR(40))",
        "CREATE TABLE prepared (text VARCHAR(40))",
    )
    for xid in ("kept", "undone", "open"):
        world.server.execute(
            f"USE {world.database}", f"XA START '{xid}'", f"INSERT INTO prepared VALUES ('{xid}')",
            f"XA END '{xid}'", f"XA PREPARE '{xid}'",
        )  # fmt: skip
    world.server.execute("FLUSH BINARY LOGS")
    for number in range(12):
        world.server.execute(
            f"USE {world.database}", "BEGIN",
            *(f"INSERT INTO parts VALUES ({number * 100 + one}, 'part {one}')" for one in range(15)),
            "COMMIT",
        )  # fmt: skip
    world.server.execute(
        f"USE {world.database}", "XA COMMIT 'kept'", "FLUSH BINARY LOGS", "XA ROLLBACK 'undone'"
    )
    end = write(world, "ALTER TABLE parts ADD note INT", "INSERT INTO parts VALUES (9999, 'last', 1)")
    whole = Runs(spark, world, tmp_path / "whole")
    whole.run(0, end, catalog=whole.catalog, pieces=1)
    expected = whole.everything()
    transactions = Counter(row["transaction"]["id"] for row in whole.rows("parts"))

    runs = Runs(spark, world, tmp_path / "followed")
    monkeypatch.setattr("spark_jobs.common.follow.MOST_OFFSETS", end // 7)
    batches = []

    def run(job: Job, micro_batches: Mapping[str, MicroBatch]) -> Mapping[str, Outcome]:
        outcomes = reprocess(job, spark, "rows", None, None, runs.catalog, micro_batches=micro_batches)
        job.finish(summary(outcomes), report(job, outcomes))
        batches.append(micro_batches[world.source])
        if "parts" in str(outcomes[world.source].files):
            found = Counter(row["transaction"]["id"] for row in runs.rows("parts"))
            assert found.items() <= transactions.items()
        return outcomes

    follow_raw(runs.job(), run, Pace(timedelta(seconds=1), once=True), {"into": "rows"})
    assert len(batches) > 3
    assert max(len(one.prepared) for one in batches) == 3
    position = json.loads((runs.folder / "checkpoint" / "millrace.json").read_text())
    assert len(position["positions"][world.source]["prepared"]) == 1
    assert runs.everything() == expected
    world.server.execute("XA COMMIT 'open'")
    wait_for(lambda: any(b"XA COMMIT" in (one.value() or b"") for one in raw(world)[-3:]), None, "the end")
    follow_raw(runs.job(), run, Pace(timedelta(seconds=1), once=True), {"into": "rows"})
    assert [row["after"]["text"] for row in runs.rows("prepared")] == ["kept", "open"]
    with pytest.raises(SettingsError, match=r"is of another stream \(into rows; not into events\)"):
        follow_raw(runs.job(), run, Pace(timedelta(seconds=1), once=True), {"into": "events"})

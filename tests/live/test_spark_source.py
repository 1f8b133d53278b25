"""The format ``millrace`` over a raw topic: as a batch, and as a stream that is stopped and killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.kafka.client import connect
from millrace.kafka.topics import delete_records
from millrace.local import Kafka, MySQL
from millrace.local.java import spark_environment
from millrace.spark import register
from millrace.spark.archive import Archive
from tests.live.reader_world import ReaderWorld
from tests.service_process import wait_for
from tests.shared import PROJECT, environment_with
from tests.spark_session import SPARK, spark

__all__ = ["spark"]

pytestmark = SPARK

STREAM = """
import sys
from pyspark.sql import SparkSession
from tests.live.test_spark_source import started

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
started(spark, *sys.argv[1:]).awaitTermination()
"""
"""What is killed."""

OFFSETS_AT_ONCE = "40"


def stream_of(spark: SparkSession, brokers: str, source: str, table: str) -> DataFrame:
    """Return the changes of a table as a stream."""
    stream = spark.readStream.format("millrace").option("source", source).option("table", table)
    stream = stream.option("kafka.bootstrap.servers", brokers)
    return stream.option("maxOffsetsPerTrigger", OFFSETS_AT_ONCE).load()


def started(spark: SparkSession, brokers: str, source: str, table: str, folder: str) -> Any:
    """Begin, or continue, a stream of the changes of a table into Parquet."""
    register(spark)
    into = (
        stream_of(spark, brokers, source, table)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    return into.start(f"{folder}/table")


class Table:
    """A table of a server whose log is read, and the changes to it."""

    def __init__(self, kafka: Kafka, mysql: MySQL, source: str) -> None:
        self.brokers, self.server, self.source = kafka.bootstrap_servers, mysql, source
        self.database = source.replace("-", "_")
        self.name = f"{self.database}.t"
        self.world = ReaderWorld.of(kafka, source, mysql, MILLRACE_START="latest")
        self.number = 0

    def create(self) -> None:
        self.server.execute(f"CREATE DATABASE {self.database}")
        self.server.execute(
            f"CREATE TABLE {self.name} (id INT PRIMARY KEY, name VARCHAR(20), d DECIMAL(9,2))"
        )

    def change(self, times: int) -> None:
        for number in range(self.number, self.number + times):
            rows = ", ".join(f"({10 * number + row}, 'row {row}', {row}.25)" for row in range(10))
            self.server.execute(
                f"INSERT INTO {self.name} VALUES {rows}",
                f"UPDATE {self.name} SET name = 'other', d = d + 1 WHERE id % 3 = {number % 3}",
                f"DELETE FROM {self.name} WHERE id % 7 = {number % 7}",
            )
        self.number += times

    def read(self, spark: SparkSession, **options: str) -> DataFrame:
        register(spark)
        reader = spark.read.format("millrace").option("source", self.source).options(**options)
        return reader.option("kafka.bootstrap.servers", self.brokers).load()

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.server.query(f"SELECT id, name, d FROM {self.name} ORDER BY id")]


def folded(changes: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows that changes lead to."""
    last = changes.groupBy("id").agg(sf.max_by(sf.struct("*"), "_sequence").alias("row")).select("row.*")
    return [tuple(row) for row in last.where("_op != 'd'").select("id", "name", "d").orderBy("id").collect()]


@pytest.fixture
def table(kafka: Kafka, mysql: MySQL, source_name: str) -> Iterator[Table]:
    table = Table(kafka, mysql, source_name)
    with table.world.reader() as process:
        table.world.wait_until_at(mysql, process)
        table.create()
        table.change(8)
        table.world.wait_until_at(mysql, process)
        yield table
        mysql.execute(f"DROP DATABASE {table.database}")


def test_a_topic_is_a_batch_and_a_stream(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    whole = table.read(spark, table=table.name)
    sequences = [row._sequence for row in whole.select("_sequence").collect()]
    assert len(set(sequences)) == len(sequences) > 100
    assert folded(whole) == table.rows()
    cut = table.read(spark, table=table.name, minPartitions="7")
    assert cut.rdd.getNumPartitions() > 3
    assert sorted(row._sequence for row in cut.select("_sequence").collect()) == sorted(sequences)
    changes = table.read(spark)
    assert changes.where(f"database = '{table.database}'").count() == len(sequences)
    raw = table.read(spark, view="raw", minPartitions="3").orderBy("offset").collect()
    published = [(one.key.encode(), one.value) for one in table.world.raw()]
    assert [(row.key, row.value) for row in raw] == published
    late = table.read(spark, table=table.name, startingOffsets=str(raw[len(raw) // 2].offset))
    assert 0 < late.count() < len(sequences)
    assert late.join(whole, "_sequence", "left_anti").count() == 0

    arguments = table.brokers, table.source, table.name, str(tmp_path)
    query = started(spark, *arguments)
    query.processAllAvailable()
    batches = query.lastProgress["batchId"]
    query.stop()
    assert batches > 2
    table.change(4)
    wait_for(lambda: folded(table.read(spark, table=table.name)) == table.rows(), None, "the reader")
    query = started(spark, *arguments)
    query.processAllAvailable()
    assert query.recentProgress[0]["numInputRows"] < 200  # bounded after a restart, too
    query.stop()
    read = spark.read.parquet(str(tmp_path / "table"))
    assert folded(read) == table.rows()
    assert read.count() == read.select("_sequence").distinct().count()
    check_archive(spark, table, str(tmp_path / "archive"))


def check_archive(spark: SparkSession, table: Table, place: str) -> None:
    """Read the changes from an archive that the recipe has written, of which the topic loses the most."""
    everything = table.read(spark).orderBy("_sequence").collect()
    raw = spark.readStream.format("millrace").options(
        source=table.source, view="raw", maxOffsetsPerTrigger="50"
    )
    raw = raw.option("kafka.bootstrap.servers", table.brokers).load().writeStream.format("parquet")
    query = raw.option("checkpointLocation", f"{place}/_checkpoint").start(place)
    query.processAllAvailable()
    query.stop()
    alone = spark.read.format("millrace").option("archive", place).load()
    assert alone.orderBy("_sequence").collect() == everything
    last = Archive.read(place).last
    delete_records(connect(table.world.settings), {(f"{table.source}.raw", 0): last - 10})
    table.change(2)
    wait_for(
        lambda: folded(table.read(spark, archive=place, table=table.name)) == table.rows(), None, "events"
    )
    joined = table.read(spark, archive=place, minPartitions="5").orderBy("_sequence").collect()
    assert joined[: len(everything)] == everything
    assert len(joined) > len(everything)
    stream = spark.readStream.format("millrace").options(source=table.source, archive=place)
    stream = (
        stream.options(maxOffsetsPerTrigger="100").option("kafka.bootstrap.servers", table.brokers).load()
    )
    query = stream.writeStream.format("memory").queryName("joined").start()
    query.processAllAvailable()
    query.stop()
    assert spark.table("joined").orderBy("_sequence").collect() == joined


NEWER = """
import sys
from pyspark.sql import SparkSession
from millrace.spark import register
from tests.live.test_spark_source import folded, stream_of

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
*arguments, folder = sys.argv[1:]
into = stream_of(spark, *arguments).writeStream.format("parquet")
into = into.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
query = into.start(f"{folder}/table")
query.awaitTermination()
for view in "raw", "events", "transactions", "changes", "_corrupt", "counts", "statistics":
    log = spark.read.format("millrace").option("source", arguments[1]).option("view", view)
    print(view, log.option("kafka.bootstrap.servers", arguments[0]).load().count())
print("batches", query.lastProgress["batchId"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.1.4", "4.2.1", "4.3.0"])
def test_other_versions_of_spark(spark: SparkSession, table: Table, tmp_path: Path, version: str) -> None:
    """They read every view; those with admission control take what is available in small batches."""
    place = tmp_path / "pyspark"
    install = "-m", "pip", "install", "--quiet", "--target", str(place), f"pyspark=={version}"
    subprocess.run([sys.executable, *install], check=True)
    settings = spark_environment(archive=False) | {"PYTHONPATH": f"{place}{os.pathsep}{PROJECT}"}
    done = subprocess.run(
        [sys.executable, "-c", NEWER, table.brokers, table.source, table.name, str(tmp_path)],
        env=environment_with(settings), cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    counts = {
        name: int(count) for name, _, count in (line.partition(" ") for line in done.stdout.splitlines())
    }
    assert counts["raw"] == counts["events"] == len(list(table.world.raw()))
    assert counts["_corrupt"] == 0
    if version < "4.2":
        return
    assert counts["batches"] > 2
    assert folded(spark.read.parquet(str(tmp_path / "table"))) == table.rows()


@pytest.mark.slow
def test_a_stream_that_is_killed_twice(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    arguments = table.brokers, table.source, table.name, str(tmp_path)
    commits = tmp_path / "checkpoint" / "commits"

    def done() -> int:
        return len([one for one in commits.glob("*") if one.name.isdecimal()])

    for _ in range(2):
        before = done()
        process = subprocess.Popen(
            [sys.executable, "-c", STREAM, *arguments],
            env=environment_with(spark_environment(archive=False)),
            cwd=PROJECT,
        )
        table.change(20)
        wait_for(lambda before=before: done() > before + 1, process, "micro-batches")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    query = started(spark, *arguments)
    wait_for(lambda: folded(table.read(spark, table=table.name)) == table.rows(), None, "the reader")
    query.processAllAvailable()
    query.stop()
    read = spark.read.parquet(str(tmp_path / "table"))
    assert folded(read) == table.rows()
    assert read.count() == read.select("_sequence").distinct().count()


def recipe(title: str, table: str) -> str:
    """Return the code below a title of docs/spark.md, for another table of the lake."""
    text = (PROJECT / "docs" / "spark.md").read_text().partition(f"### {title}\n")[2]
    lines = text.partition("\n#")[0].partition("\n`orders`")[0].splitlines()
    code = "\n".join(line[4:] for line in lines if line.startswith("    ") or not line)
    return code.replace("lake.shop.orders", table)


@pytest.mark.slow
def test_the_recipes(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    register(spark)
    spark.conf.set("spark.sql.catalog.mirrored", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.mirrored.type", "hadoop")
    spark.conf.set("spark.sql.catalog.mirrored.warehouse", str(tmp_path / "lake"))
    spark.conf.set("spark.sql.catalog.mirrored.cache-enabled", "false")
    orders = (
        spark.readStream.format("millrace")
        .option("source", table.source)
        .option("kafka.bootstrap.servers", table.brokers)
        .option("table", table.name)
        .option("maxOffsetsPerTrigger", OFFSETS_AT_ONCE)
        .load()
    )
    mirror = f"mirrored.{table.database}.t"
    spark.sql(f"CREATE NAMESPACE mirrored.{table.database}")
    schema = orders.drop("_unrepresentable", "_missing").schema
    spark.createDataFrame([], schema).writeTo(mirror).create()
    known = {"orders": orders, "checkpoint": str(tmp_path / "checkpoint")}
    for _ in range(2):
        exec(recipe("Mirror", mirror).replace(".start()", ".start().processAllAvailable()"), known)
        for query in spark.streams.active:
            query.stop()
        rows = spark.table(mirror).select("id", "name", "d").orderBy("id").collect()
        assert [tuple(row) for row in rows] == table.rows()
        table.change(3)
        wait_for(lambda: folded(table.read(spark, table=table.name)) == table.rows(), None, "the reader")
    known = {"orders": table.read(spark, table=table.name)}
    exec(recipe("History", mirror), known)
    history = known["history"]
    newest = history.where("_valid_to IS NULL").select("id", "name", "d").orderBy("id").collect()
    assert [tuple(row) for row in newest] == table.rows()
    assert history.count() == known["orders"].where("_op <> 'd'").count()

"""Archives of raw events on a real Kafka: what is read from them, and what does not fit together."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from millrace.contract import HEADER_CHUNK, RawKey
from millrace.kafka.client import connect, producer_config
from millrace.kafka.read import held_offsets
from millrace.kafka.topics import delete_records
from millrace.local import Kafka
from millrace.local.java import spark_environment
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings, load_settings
from millrace.spark import register
from millrace.spark.archive import Archive, ArchiveError
from spark_jobs.archive import archive_topic, report, stream_into, summary
from spark_jobs.common.job import Input, Job, RawJobSettings, _archived, _inputs
from spark_jobs.common.kafka import RAW_COLUMNS, kafka_options, parse_bound, scan
from spark_jobs.common.session import Steps
from tests.live.output import wait_until_decided
from tests.service_process import wait_for
from tests.shared import PROJECT, environment_with
from tests.spark_session import SPARK, spark

__all__ = ["spark"]

pytestmark = SPARK

START = 1_700_000_000
CONFIG = {"message.timestamp.before.max.ms": str(2**63 - 1), "retention.ms": "-1"}

KILLED = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from millrace.local import Kafka
from spark_jobs import archive
from tests.live.test_archive import World

archive._MOST_OFFSETS = 30
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
world = World(spark, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
archive.stream_into(world.job(), world.inputs(appends=True), world.place, "0 seconds").awaitTermination()
"""


class World:
    """A raw topic with committed and aborted records, dated from 2023 on, one a second, and its archive."""

    def __init__(self, spark: SparkSession, brokers: str, source: str, folder: Path) -> None:
        self.spark, self.source, self.topic = spark, source, f"{source}.raw"
        self.folder, self.place = str(folder / "archive"), str(folder / "archive" / source)
        self.output = str(folder / "reports")
        self.settings = KafkaSettings(bootstrap_servers=brokers)
        self.options = kafka_options(self.settings)
        self.admin: AdminClient = connect(self.settings)
        self.written = self.position = 0

    def create(self) -> None:
        self.admin.create_topics([NewTopic(self.topic, 1, 1, config=CONFIG)])[self.topic].result()
        self._producer = Producer(producer_config(self.settings, f"test-{self.source}"))
        self._producer.init_transactions()
        self.written = self.position = 0

    def write(self, count: int, *, server: int = 1, commit: bool = True) -> None:
        self._producer.begin_transaction()
        position = self.position
        for number in range(self.written, self.written + count):
            headers = [(HEADER_CHUNK, b"0/1")] if number % 7 == 0 else None
            value = None if number % 11 == 0 else b"value %d " % number * 20
            key = RawKey(server, 0, "binlog.000001", position).encode()
            position += len(value or b"")
            self._producer.produce(
                self.topic, value, key, 0, timestamp=(START + number) * 1000, headers=headers
            )  # fmt: skip
        self._producer.flush()
        self._producer.commit_transaction() if commit else self._producer.abort_transaction()
        wait_until_decided(self.admin, self.topic)
        if commit:
            self.written, self.position = self.written + count, position

    def held(self) -> range:
        return held_offsets(self.admin, {self.topic: 1}, undecided=False)[self.topic, 0]

    def delete_before(self, offset: int) -> None:
        delete_records(self.admin, {(self.topic, 0): offset})

    def inputs(self, start: str = "earliest", end: str = "latest", *, appends: bool = False) -> Input:
        bounds = parse_bound(start), parse_bound(end)
        archived = partial(_archived, self.settings, bounds, self.folder, appends)
        (one,) = _inputs(self.spark, self.options, {self.source: {}}, bounds, "raw", archived=archived)
        return one

    def job(self, *inputs: Input) -> Job:
        settings = load_settings(RawJobSettings, source=self.source, kafka=self.settings.model_dump())
        steps = Steps(self.spark, "archive")
        return Job("archive", self.output, self.options, inputs, steps, self.spark, settings)

    def archive(self) -> Archive:
        """Run the job."""
        job = self.job(self.inputs(appends=True))
        (one,) = job.inputs
        found = archive_topic(job, one, self.place)
        figures = summary({self.source: one.part.archive}, {self.source: found})
        job.finish(figures, report(job, figures))
        return found

    def read(self, **options: str) -> DataFrame:
        register(self.spark)
        if "source" in options:
            options["kafka.bootstrap.servers"] = self.settings.bootstrap_servers
        return self.spark.read.format("millrace").options(view="raw", **options).load()

    def records(self, **options: str) -> list[tuple[Any, ...]]:
        """Read by the source."""
        return [tuple(row) for row in self.read(**options).orderBy("offset").collect()]

    def of_topic(self) -> list[tuple[Any, ...]]:
        return self.records(source=self.source)

    def joined(self, **options: str) -> list[tuple[Any, ...]]:
        return self.records(source=self.source, archive=self.place, **options)


@pytest.fixture
def world(spark: SparkSession, kafka: Kafka, source_name: str, tmp_path: Path) -> Iterator[World]:
    world = World(spark, kafka.bootstrap_servers, source_name, tmp_path)
    world.create()
    yield world
    world.admin.delete_topics([world.topic])[world.topic].result()


@pytest.fixture
def often(spark: SparkSession) -> Iterator[None]:
    """Let Spark's log of a table be compacted often."""
    name = "spark.sql.streaming.fileSink.log.compactInterval"
    spark.conf.set(name, "3")
    yield
    spark.conf.unset(name)


@pytest.mark.usefixtures("often")
def test_archived_and_read_as_the_topic_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs, of which one finds only an aborted transaction; then the topic forgets what is archived."""
    monkeypatch.setattr("spark_jobs.archive._MOST_OFFSETS", 90)
    monkeypatch.setattr("spark_jobs.archive._ROW_GROUP_BYTES", 1)
    world.write(200)
    world.write(250, commit=False)
    world.write(200)
    first = world.archive()
    assert len(first.files) > 4
    assert list(Path(world.place, "_spark_metadata").glob("*.compact"))
    assert (first.start, first.end, sum(file.records for file in first.files)) == (0, 652, 400)
    world.write(30, commit=False)
    assert world.archive() == first
    world.write(100)
    third = world.archive()
    assert third.files[: len(first.files)] == first.files
    figures = json.loads((Path(world.output) / "summary.json").read_text())[world.source]
    assert figures["records"] == 500
    assert figures["added"]["records"] == 100
    world.write(200)

    everything = world.of_topic()
    assert len(everything) == 700
    offsets = [row[0] for row in everything]
    assert [row[1] for row in everything] == [None, *offsets[:-1]]
    assert world.records(archive=world.place) == everything[:500]
    files = json.dumps([file.path for file in third.files])
    assert world.records(archive=files, endingOffsets=str(offsets[300])) == everything[:300]
    world.delete_before(offsets[300])
    assert world.joined(minPartitions="7") == everything
    one = world.inputs()
    assert one.first == 0
    assert str(one.part).endswith(f", those before {third.end:,} in the archive")
    found = scan(world.spark, world.options, one.part, whole=True).select(*RAW_COLUMNS[1:]).collect()
    assert [tuple(row) for row in found] == [(row[0], *row[2:]) for row in everything]
    # Some of a file; over the end of the archive; only what the topic has; by time.
    for begin, end in ((10, 60), (140, 320), (480, 520), (600, 700)):
        bounds = {"startingOffsets": str(offsets[begin]), "endingOffsets": str(offsets[end - 1] + 1)}
        assert world.joined(**bounds) == everything[begin:end]
    times = {"startingTimestamp": str((START + 140) * 1000), "endingTimestamp": str((START + 320) * 1000)}
    assert world.joined(**times) == everything[140:320]
    times = {"startingTimestamp": str((START + 480) * 1000)}
    assert world.joined(**times) == everything[480:]


@pytest.mark.slow
def test_a_stream_that_is_killed_twice(world: World, tmp_path: Path) -> None:
    """The archive equals the topic record for record, each once; what a killed run left is not read."""
    arguments = world.settings.bootstrap_servers, world.source, str(tmp_path)
    commits = Path(world.place, "_checkpoint", "commits")

    def done() -> int:
        return len([one for one in commits.glob("*") if one.name.isdecimal()])

    for _ in range(2):
        before = done()
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, *arguments],
            env=environment_with(spark_environment(archive=False)),
            cwd=PROJECT,
        )
        for number in range(10):
            world.write(60, commit=bool(number % 3))
        wait_for(lambda before=before: done() > before + 3, process, "micro-batches")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    Path(world.place, "part-00000-of-a-killed-run.snappy.parquet").write_bytes(b"PAR1")
    world.archive()
    assert world.records(archive=world.place) == world.of_topic()
    read = world.spark.read.parquet(world.place)
    assert read.count() == read.select("offset").distinct().count() == 720


def refused(world: World, start: str = "earliest", end: str = "latest", *, appends: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        world.inputs(start, end, appends=appends)
    assert caught.value.exit_code is ExitCode.DATA
    return caught.value.message.replace(world.folder, "ARCHIVE").replace(world.source, "shop")


def test_records_that_neither_has(world: World) -> None:
    world.write(100)
    archive = world.archive()
    world.write(100)
    everything = world.of_topic()
    # Between archive and topic is the end of a transaction of Kafka alone.
    world.delete_before(101)
    assert world.joined() == everything
    world.delete_before(150)
    missing = (
        "records 100 to 149 of shop.raw are missing: the archive ARCHIVE/shop ends before them, and the "
        "topic begins after them; read the archive alone, up to offset 100, or the topic alone, and archive "
        "the rest of it into another folder"
    )
    assert archive.end == 100
    assert refused(world) == refused(world, appends=True) == missing
    assert refused(world, "offset:20", "offset:160") == missing
    with pytest.raises(Exception, match=re.escape(f"records 100 to 149 of {world.topic} are missing")):
        world.joined()
    # Each by itself is there.
    assert world.joined(endingOffsets="100") == everything[:100]
    rest = world.inputs("offset:150")
    assert (rest.first, rest.part.archive) == (150, None)
    assert [row[0] for row in world.joined(startingOffsets="150")] == list(range(150, 201))


def test_what_was_deleted_while_nothing_archived_it(world: World) -> None:
    world.write(100)
    world.archive()
    world.delete_before(world.held().stop)
    world.write(20)
    world.archive()
    assert sum(file.records for file in Archive.read(world.place).files) == 120
    world.write(20)
    world.delete_before(world.held().stop)
    job = world.job(world.inputs(end="offset:1"))
    with pytest.raises(Exception, match=r"records 122 to 142 of .* were deleted before they were read"):
        stream_into(job, job.inputs[0], world.place, "0 seconds").processAllAvailable()


def test_a_topic_that_is_another_one_now(world: World) -> None:
    world.write(100)
    world.archive()
    everything = world.of_topic()
    world.admin.delete_topics([world.topic])[world.topic].result()
    while world.topic in world.admin.list_topics(timeout=10).topics:
        pass
    world.create()
    world.write(50, server=2)
    another = (
        "it is another topic now, or its end was lost; read the archive alone, and archive the topic into "
        "another folder"
    )
    assert refused(world) == (
        f"shop.raw ends at offset 51, but the archive ARCHIVE/shop has it to 100: {another}"
    )
    world.write(60, server=2)
    for appends in (False, True):
        assert refused(world, appends=appends).startswith("shop.raw has the key 2:0:binlog.000001:")
    job = world.job(world.inputs(end="offset:100"))
    with pytest.raises(Exception, match=r"has the key 2:0:binlog.000001:\d+ at offset 99, where 1:0:"):
        stream_into(job, job.inputs[0], world.place, "0 seconds").processAllAvailable()
    assert world.joined(endingOffsets="100") == everything


def test_an_archive_that_is_damaged(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("spark_jobs.archive._MOST_OFFSETS", 10)
    world.write(40)
    whole = world.archive()
    kept = shutil.copytree(world.place, tmp_path / "kept")
    assert len(whole.files) > 3
    log = Path(world.place, "_spark_metadata")

    def damaged(error: str) -> None:
        with pytest.raises(ArchiveError, match=error):
            Archive.read(world.place)
        with pytest.raises(Exception, match=error):
            world.records(archive=world.place)
        shutil.rmtree(world.place)
        shutil.copytree(kept, world.place)

    second = Path(whole.files[1].path)
    second.unlink()
    damaged(r"cannot be read: .*No such file.*; restore it, or read what the topic still has")
    second.write_bytes(second.read_bytes()[:-1])
    damaged("bytes, and .* were committed: restore it")
    (log / "1").unlink()
    damaged("lacks batch 1: records of it are missing")
    (log / "1").write_text("v1\n")
    damaged(
        r"records between .* are missing in the archive: after offset 9 follows 20, and in the topic 19 is"
    )
    content = (log / "1").read_text()
    copy = shutil.copy(second, second.with_name("part-of-another-stream.parquet"))
    (log / "1").write_text(f"{content}\n{content.splitlines()[1].replace(second.name, Path(copy).name)}")
    damaged("both have records 10 to 19")
    (log / "1").write_text(content.replace("v1", "v2"))
    damaged("version 'v2': v1 is expected")

    shutil.rmtree(Path(world.place, "_checkpoint"))
    with pytest.raises(UserError, match="lacks _checkpoint, which continues it"):
        world.archive()
    shutil.rmtree(log)
    with pytest.raises(UserError, match=r"is no archive, since it has no _spark_metadata"):
        world.inputs()


def test_the_files_of_another_table(world: World, tmp_path: Path) -> None:
    """As Spark tells them of one of Iceberg; a file that has been written in another order is refused."""
    world.write(40)
    everything = world.of_topic()
    world.spark.conf.set("spark.sql.catalog.archived", "org.apache.iceberg.spark.SparkCatalog")
    world.spark.conf.set("spark.sql.catalog.archived.type", "hadoop")
    world.spark.conf.set("spark.sql.catalog.archived.warehouse", str(tmp_path / "lake"))
    world.read(source=world.source).writeTo("archived.db.raw").create()
    files = [row.file_path for row in world.spark.table("archived.db.raw.files").collect()]
    assert world.records(archive=json.dumps(files)) == everything
    for name, order in (("turned", "-offset"), ("mixed", "hash(offset)")):
        world.read(source=world.source).coalesce(1).selectExpr("*").createOrReplaceTempView("everything")
        turned = world.spark.sql(f"SELECT * FROM everything ORDER BY {order}")
        turned.coalesce(1).write.parquet(str(tmp_path / name))
        files = [str(path) for path in (tmp_path / name).glob("*.parquet")]
        with pytest.raises(Exception, match="records are missing, there twice, or in another order"):
            world.records(archive=json.dumps(files))

"""Archives of raw events on a real Kafka: what is read from them, and what does not fit together."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from millrace.contract import HEADER_CHUNK
from millrace.kafka.client import connect, producer_config
from millrace.local import Kafka
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings, load_settings
from millrace.spark.raw_topic import CarriedSettings, Piece, read_piece
from spark_jobs.archive import archive_topics, report, summary
from spark_jobs.common.archive import Archive, ArchiveError, read_archive
from spark_jobs.common.job import Input, Job, RawJobSettings, _inputs
from spark_jobs.common.kafka import RAW_COLUMNS, TopicSlice, kafka_options, parse_bound, resolve_slice, scan
from spark_jobs.common.session import Steps
from tests.live.output import wait_until_decided
from tests.spark_session import SPARK, spark

__all__ = ["spark"]

pytestmark = SPARK

START = 1_700_000_000
CONFIG = {"message.timestamp.before.max.ms": str(2**63 - 1), "retention.ms": "-1"}


class World:
    """A raw topic with committed and aborted records, dated from 2023 on, one a second, and its archive."""

    def __init__(self, spark: SparkSession, kafka: Kafka, source: str, folder: Path) -> None:
        self.spark, self.source, self.topic = spark, source, f"{source}.raw"
        self.folder = str(folder / "archive")
        self.output = str(folder / "reports")
        self.settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        self.options = kafka_options(self.settings)
        self.admin: AdminClient = connect(self.settings)
        self.written = 0
        self.create()

    def create(self) -> None:
        self.admin.create_topics([NewTopic(self.topic, 1, 1, config=CONFIG)])[self.topic].result()
        self._producer = Producer(producer_config(self.settings, f"test-{self.source}"))
        self._producer.init_transactions()

    def write(self, count: int, *, key: str = "key", commit: bool = True) -> None:
        self._producer.begin_transaction()
        for number in range(self.written, self.written + count):
            headers = [(HEADER_CHUNK, b"0/1")] if number % 7 == 0 else None
            value = None if number % 11 == 0 else b"value %d " % number * 20
            self._producer.produce(
                self.topic, value, f"{key} {number}".encode(), 0, timestamp=(START + number) * 1000,
                headers=headers,
            )  # fmt: skip
        self._producer.flush()
        self._producer.commit_transaction() if commit else self._producer.abort_transaction()
        wait_until_decided(self.admin, self.topic)
        self.written += count if commit else 0

    def delete_before(self, offset: int) -> None:
        for future in self.admin.delete_records([TopicPartition(self.topic, 0, offset)]).values():
            future.result()

    def inputs(self, start: str = "earliest", end: str = "latest", *, appends: bool = False) -> Input:
        bounds = parse_bound(start), parse_bound(end)
        (one,) = _inputs(
            self.spark, self.options, {self.source: {}}, bounds, "raw", archive=self.folder, appends=appends
        )
        return one

    def archive(self) -> Archive:
        """Run the job."""
        settings = load_settings(RawJobSettings, source=self.source, kafka=self.settings.model_dump())
        inputs = [self.inputs(appends=True)]
        steps = Steps(self.spark, "archive")
        job = Job("archive", self.output, self.options, inputs, steps, self.spark, settings)
        found = archive_topics(job, self.spark, self.folder)
        job.finish(summary(found), report(job, found))
        return found[self.source].archive

    def records(self, part: TopicSlice, *, whole: bool = False) -> list[tuple[object, ...]]:
        found = scan(self.spark, self.options, part, whole=whole).select(*RAW_COLUMNS).collect()
        return [tuple(row) for row in found]

    def fetched(self, part: TopicSlice) -> list[tuple[object, ...]]:
        """Read a slice as executors do: offset, key, value and headers."""
        ((start, end),) = part.offsets.values()
        carried, piece = CarriedSettings.of(self.settings), Piece(start, end)
        return [
            (one.offset, one.key, one.value, one.headers and [tuple(header) for header in one.headers])
            for batch in read_piece(carried, self.topic, piece, archive=part.archive)
            for one in batch
        ]


@pytest.fixture
def world(spark: SparkSession, kafka: Kafka, source_name: str, tmp_path: Path) -> Iterator[World]:
    world = World(spark, kafka, source_name, tmp_path)
    yield world
    world.admin.delete_topics([world.topic])[world.topic].result()


def test_archived_and_read_as_the_topic_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In runs, of which one finds only an aborted transaction; then the topic forgets what is archived."""
    monkeypatch.setattr("spark_jobs.common.archive._OFFSETS_PER_FILE", 150)
    monkeypatch.setattr("spark_jobs.archive._OFFSETS_AT_ONCE", 230)
    monkeypatch.setattr("spark_jobs.common.archive._ROW_GROUP_BYTES", 1)
    monkeypatch.setattr("millrace.spark.raw_topic._ARCHIVED_BATCH", 7)
    world.write(400)
    world.write(50, commit=False)
    first = world.archive()
    assert len(first.files) > 1
    assert pq.ParquetFile(Path(first.folder, first.files[0].path)).num_row_groups > 1
    assert (first.start, sum(file.records for file in first.files)) == (0, 400)
    world.write(30, commit=False)
    second = world.archive()
    assert second.files == first.files
    assert second.end > first.end
    assert world.archive() == second  # nothing is new
    world.write(100)
    third = world.archive()
    assert third.files[: len(first.files)] == first.files
    figures = json.loads((Path(world.output) / "summary.json").read_text())[world.source]
    assert figures["records"] == 500
    assert figures["added"]["records"] == 100
    world.write(200)

    everything = sorted(world.records(resolve_slice(world.spark, world.options, world.topic)))
    assert len(everything) == 700
    offsets = [row[1] for row in everything]
    world.delete_before(offsets[300])
    one = world.inputs()
    assert one.first == 0
    assert str(one.part).endswith(f", those before {third.end:,} in the archive")
    assert sorted(world.records(one.part)) == everything
    assert world.records(one.part, whole=True) == everything
    plain = [(row[1], *row[3:5], row[5] and [tuple(one) for one in row[5]]) for row in everything]
    assert world.fetched(one.part) == plain
    # Some of a file; over the end of the archive; only what the topic has.
    for begin, end in ((10, 60), (140, 320), (480, 520), (600, 700)):
        part = world.inputs(f"offset:{offsets[begin]}", f"offset:{offsets[end - 1] + 1}").part
        assert world.records(part, whole=True) == everything[begin:end]
        assert world.fetched(part) == plain[begin:end]
    # By time where the archive has it; Kafka itself finds the ends of transactions, which are dated today.
    at = [datetime.fromtimestamp(START + number, UTC).isoformat() for number in (140, 320, 480)]
    assert world.records(world.inputs(*at[:2]).part, whole=True) == everything[140:320]
    assert world.records(world.inputs(at[2]).part, whole=True) == everything[480:]


def refused(world: World, start: str = "earliest", end: str = "latest", *, appends: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        world.inputs(start, end, appends=appends)
    assert caught.value.exit_code is (
        ExitCode.SETTINGS if "manifest" in caught.value.message else ExitCode.DATA
    )
    return caught.value.message.replace(world.folder, "ARCHIVE").replace(world.source, "shop")


def test_records_that_neither_has(world: World) -> None:
    world.write(100)
    archive = world.archive()
    world.write(100)
    everything = world.records(resolve_slice(world.spark, world.options, world.topic), whole=True)
    world.delete_before(150)
    missing = (
        "records 101 to 149 of shop.raw are missing: the archive ARCHIVE/shop ends before them, and the "
        "topic begins after them; "
    )
    assert archive.end == 101
    alone = "read the archive alone with --to offset:101, or the topic alone without --archive"
    assert refused(world) == missing + alone
    assert refused(world, "offset:20", "offset:160") == missing + alone
    assert refused(world, appends=True) == missing + (
        "archive the rest into another folder, and from now on before the topic's retention deletes it"
    )
    # Each by itself is there.
    assert world.records(world.inputs(end="offset:101").part, whole=True) == everything[:100]
    rest = world.inputs("offset:150")
    assert (rest.first, rest.part.archive) == (150, None)
    assert world.records(rest.part, whole=True) == [row for row in everything if row[1] >= 150]


def test_a_topic_that_is_another_one_now(world: World) -> None:
    world.write(100)
    archive = world.archive()
    world.admin.delete_topics([world.topic])[world.topic].result()
    world.written = 0
    _until_gone(world)
    world.create()
    world.write(50, key="other")
    another = (
        "it is another topic now, or its end was lost; read the archive alone with --to offset:101, and "
        "archive the topic into another folder"
    )
    assert refused(world) == (
        f"shop.raw ends at offset 51, but the archive ARCHIVE/shop has it to 101: {another}"
    )
    world.write(100, key="other")
    for appends in (False, True):
        assert refused(world, appends=appends) == (
            "shop.raw has the key other 98 at offset 99, where the archive ARCHIVE/shop has key 99: "
            f"{another}"
        )
    part = world.inputs(end=f"offset:{archive.end}").part
    assert [bytes(row[3]) for row in world.records(part, whole=True)] == [  # type: ignore[call-overload]
        b"key %d" % number for number in range(100)
    ]


def _until_gone(world: World) -> None:
    while world.topic in world.admin.list_topics(timeout=10).topics:
        pass


def test_an_archive_that_is_damaged(world: World) -> None:
    world.write(10)
    archive = world.archive()
    Path(archive.folder, archive.files[0].path).unlink()
    part = world.inputs().part
    with pytest.raises(UserError) as caught:
        world.records(part)
    assert caught.value.message.startswith(f"a file that the archive {archive.folder} names is missing (")
    assert caught.value.exit_code is ExitCode.DATA
    path = Path(archive.folder, archive.files[0].path)
    cannot = re.escape(f"{path}, which the archive names, cannot be read: ")
    with pytest.raises(ArchiveError, match=f"^{cannot}.*No such file"):
        world.fetched(part)
    path.write_bytes(b"PAR1 and garbage")
    with pytest.raises(ArchiveError, match=f"^{cannot}.*; restore it, or read what the topic still has"):
        world.fetched(part)

    manifest = Path(archive.folder, "manifest.json")
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**told, "topic": "other.raw"}))
    with pytest.raises(UserError, match=r"is an archive of other\.raw, not of "):
        read_archive(world.spark, world.folder, world.source)
    manifest.write_text("[]")
    assert refused(world) == "ARCHIVE/shop/manifest.json is not the manifest of an archive"
    manifest.unlink()
    with pytest.raises(UserError, match=r"has no archive of .*; `millrace job archive` writes one"):
        world.inputs()


def test_another_run_at_the_same_time(world: World) -> None:
    world.write(10)
    inputs = [world.inputs(appends=True)]
    before = world.archive()
    settings = load_settings(RawJobSettings, source=world.source, kafka=world.settings.model_dump())
    steps = Steps(world.spark, "archive")
    job = Job("archive", world.output, world.options, inputs, steps, world.spark, settings)
    other = Path(world.folder, world.source, "manifest.json")
    text = other.read_text()
    other.unlink()  # as this run has seen it

    def begun(*_: object) -> Archive | None:
        found = read_archive(world.spark, world.folder, world.source)
        other.write_text(text)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("spark_jobs.archive.read_archive", begun)
        with pytest.raises(UserError, match=r"another run has added to the archive .* meanwhile"):
            archive_topics(job, world.spark, world.folder)
    assert read_archive(world.spark, world.folder, world.source) == before
    assert [path.name for path in other.parent.glob("run-*")] == [before.files[0].path.split("/")[0]]

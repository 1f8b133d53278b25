"""Analytics as the raw topic grows, killed again and again: in the end each window is told once and right."""

import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

from millrace.contract import OF_ALL_SOURCES
from millrace.kafka.errors import FencedError
from millrace.kafka.job_topic import JobTopic
from millrace.kafka.read import read_topic
from millrace.local import Kafka
from millrace.local.processes import release_port, reserve_port
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import load_settings
from millrace.stage import Record
from spark_jobs.analytics import analyse
from spark_jobs.common.job import RawJobSettings
from tests.service_process import wait_for
from tests.shared import PROJECT, environment_with
from tests.spark_session import SPARK, spark
from tests.unit.spark.test_decoding import LOGS, log, raw
from tests.unit.spark.test_windows import Windows, counted

from .raw_world import DYING, RawTopic, key_of_epoch

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.slow, pytest.mark.timeout(1800)]

KILLED = f"""{DYING}
from millrace.kafka.job_topic import JobTopic
from spark_jobs.common.job import Job
from spark_jobs.windows import follow

match point:
    case "given":
        dying(follow, "add", before=True)
    case "counted":
        dying(JobTopic, "write", before=True)
    case "told":
        dying(JobTopic, "write", before=False)
    case "published":
        dying(Job, "finish", before=False)
main()
"""
"""The command, killed in a micro-batch: before it is counted, before windows are in the topic, after that,
and when its results are published. Spark has not noted then that it was done."""

POINTS = ("counted", "published", "given", "told")
WINDOW_S = 60
BEGUN_MS = 1_780_000_000_000
STEP_MS = 5000
TABLES = 3
FAR_AHEAD_MS = 4_102_444_800_000
GARBAGE: Sequence[tuple[bytes | None, bytes | None]] = [(None, None), (b"1:0:x:4", b"x"), (b"", b"\xff" * 30)]


class World(RawTopic):
    """A raw topic: the logs of real servers again and again, an epoch each, and garbage dated ahead."""

    def __init__(self, kafka: Kafka, source: str) -> None:
        super().__init__(kafka, source, "analytics")
        self.number = self.garbage = 0
        self._logs = [raw(log(name)) for name in (LOGS[1], LOGS[0])]
        self._left: list[tuple[bytes | None, bytes | None, int]] = []
        self._epoch = 0

    def write(self, *, whole: bool = False) -> None:
        """Write another log; unless whole its end, from somewhere on, comes with the next."""
        records = self._left
        for record in self._logs[self._epoch % 2]:
            time_ms = BEGUN_MS + STEP_MS * self.number
            records.append((key_of_epoch(record, self._epoch), record.value, time_ms))
            self.number += 1
            if self.number % 7 == 0:
                records.append((*GARBAGE[self.garbage % len(GARBAGE)], FAR_AHEAD_MS))
                self.garbage += 1
        self._epoch += 1
        end = len(records) if whole else len(records) - random.randrange(1, 40)
        for key, value, timestamp in records[:end]:
            self._producer.produce(self.topic, value, key, 0, timestamp=timestamp)
        assert self._producer.flush(60) == 0
        self._left = records[end:]

    def records(self) -> list[Record]:
        return [
            Record(message.offset() or 0, message.timestamp()[1], message.key(), message.value())  # type: ignore[arg-type]
            for message in read_topic(self.settings.kafka, self.topic)
        ]

    def windows(self) -> dict[str, dict[str, Any]]:
        """Read the last value of each window in the topic of all windows."""
        found = {}
        for message in read_topic(self.settings.kafka, OF_ALL_SOURCES["analytics"]):
            key = str(message.key(), "ascii")  # type: ignore[arg-type]
            if key.startswith(f"{self.source}/"):
                found[key] = json.loads(message.value() or b"")
        return found

    def expected(self, spark: SparkSession) -> dict[str, dict[str, Any]]:
        """Count all at once."""
        found = Windows(spark, source=self.source, most_tables=TABLES).add(counted(self.records()))
        return {f"{self.source}/{WINDOW_S}/{one['start']}": json.loads(json.dumps(one)) for one in found}


@pytest.fixture
def worlds(kafka: Kafka, source_name: str) -> Iterator[list[World]]:
    worlds = [World(kafka, source_name), World(kafka, f"{source_name}-other")]
    for world in worlds:
        world.create()
    yield worlds
    for world in worlds:
        world.delete()


def test_analytics_that_is_killed_while_it_goes_on(
    spark: SparkSession, worlds: list[World], tmp_path: Path
) -> None:
    world, other = worlds
    folder, port = tmp_path / "followed", reserve_port()
    options = [
        "--source", other.source,
        "--window", f"{WINDOW_S}s", "--lateness", "0s", "--top", str(TABLES), "--publish",
        "--metrics-port", str(port),
    ]  # fmt: skip
    checkpoint = folder / "checkpoint"

    def done() -> list[int]:
        """Return up to which offsets Spark has noted that micro-batches are done."""
        numbers = [int(one.name) for one in (checkpoint / "commits").glob("[0-9]*")]
        if not numbers:
            return []
        lines = (checkpoint / "offsets" / str(max(numbers))).read_text().splitlines()
        return [json.loads(line)["offset"] for line in lines[2:]]

    for point in POINTS:
        world.write()
        other.write()
        with world.begin(["-c", KILLED, point], folder, *options) as process:
            _, told = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, told
        assert bool(world.windows()) == (point != "counted")
    for one in worlds:
        one.write(whole=True)
    ends = [len(one.records()) for one in worlds]
    release_port(port)
    with world.begin(["-m", "millrace.cli"], folder, *options) as process:
        wait_for(lambda: done() == ends, None, "the end of the topics")
        metrics = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        process.terminate()
        _, told = process.communicate()
        assert process.returncode == 128 + signal.SIGTERM, told
        assert "Exception" not in told
        assert told.splitlines()[-1] == "error: analytics was stopped by SIGTERM; the previous results remain"

    assert other.windows() == other.expected(spark)
    found = world.windows()
    assert found == world.expected(spark)
    assert len(found) > 10
    assert sum(one["unreadable_records"] for one in found.values()) == world.garbage > 10
    assert not any(one["late_events"] for one in found.values())
    assert [one["start"] for one in found.values() if not one["closed"]] == [
        max(one["start"] for one in found.values())
    ]

    of_source = re.findall(
        rf'^(millrace_analytics_\w+)\{{source="{world.source}"\}} (\S+)$', metrics, re.MULTILINE
    )
    series = {name: float(value) for name, value in of_source}
    last = max((one for one in found.values() if one["closed"]), key=lambda one: int(one["start"]))
    for name in ("events", "transactions", "bytes"):
        assert series[f"millrace_analytics_window_{name}"] == last[name]
        assert 0 < series[f"millrace_analytics_{name}_total"] <= sum(one[name] for one in found.values())
    assert series["millrace_analytics_window_start_seconds"] == last["start"]
    assert series["millrace_analytics_unreadable_records_total"] > 0
    rows = re.findall(
        rf'^millrace_analytics_window_rows\{{.*source="{world.source}".*\}} (\S+)$', metrics, re.MULTILINE
    )
    assert sum(map(float, rows)) == last["rows"]

    results = analyse(world.job(spark, tmp_path / "whole"), 10)
    for name, exact in (
        ("transactions", results.transactions),
        ("rollbacks", results.rollbacks),
        ("rows", results.number_of_rows),
        ("ddl_statements", results.number_of_ddl),
    ):
        assert sum(one[name] for one in found.values()) == exact, name
    types: Counter[str] = sum((Counter(one["events_by_type"]) for one in found.values()), Counter())
    assert types == {row.type: row.events for row in results.types}
    stored = sum(row.bytes for row in results.along) if not results.outside else None
    assert stored in (None, sum(one["bytes"] for one in found.values()))
    of_tables: Counter[str] = Counter()
    for one in found.values():
        for part in [*one["tables"], *([one["other_tables"]] if one["other_tables"] else [])]:
            of_tables.update({name: part[name] for name in ("inserts", "updates", "deletes", "bytes")})
    by_operation: Counter[str] = Counter()
    for row in results.rows:
        by_operation.update({f"{row.operation}s": row.rows, "bytes": row.bytes})
    assert of_tables == by_operation


def test_of_two_that_count_the_same_windows_one_is_fenced(kafka: Kafka, source_name: str) -> None:
    settings = load_settings(
        RawJobSettings, source=source_name, kafka={"bootstrap_servers": kafka.bootstrap_servers}
    )
    first, second = (
        JobTopic(settings.kafka, settings.topics, "analytics", f"millrace-analytics-{source_name}-60")
        for _ in range(2)
    )
    second.write({f"{source_name}/60/0": b"{}"})
    with pytest.raises(FencedError, match=r"another process took over while writing to millrace\.analytics"):
        first.write({f"{source_name}/60/0": b'{"stale": true}'})
    values = [
        message.value()
        for message in read_topic(settings.kafka, "millrace.analytics")
        if message.key() == f"{source_name}/60/0".encode()
    ]
    assert values == [b"{}"]


def test_kafka_that_is_lost(source_name: str, tmp_path: Path) -> None:
    """It is told in a line and by the code, and what was noted is continued."""
    folder = tmp_path / "followed"
    with Kafka() as kafka:
        world = World(kafka, source_name)
        world.create()
        world.write(whole=True)
        impatient = {"MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "3"}
        with world.begin(["-m", "millrace.cli"], folder, "--publish", **impatient) as process:
            wait_for((folder / "summary.json").exists, None, "a micro-batch")
            kafka.kill()
            _, told = process.communicate()
    assert process.returncode == ExitCode.KAFKA, told
    assert re.match(
        r"error: Kafka (stopped answering while analytics ran|cannot be reached)", told.splitlines()[-1]
    )


AFTER = {"analytics": "reading ", "reprocess": "transactions found ("}
"""What jobs say before executors begin to read."""


def told_when_lost(
    world: World, job: str, folder: Path, lose: Callable[[], object], **settings: str
) -> tuple[int, str]:
    """Let a job lose what it is about to read; give its exit code and what it says."""
    world.create()
    world.write(whole=True)
    where = ["--source", world.source, "--output", str(folder), "--master", "local[2]"]
    environment = environment_with({**world.environment, **settings})
    with subprocess.Popen(
        [sys.executable, "-m", "millrace.cli", "job", job, *where],
        env=environment, cwd=PROJECT, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        told = ""
        while AFTER[job] not in told and (line := process.stderr.readline()):
            told += line
        lose()
        told += process.stderr.read()
    assert AFTER[job] in told
    assert not list(folder.iterdir()), told
    return process.returncode, told


@pytest.mark.parametrize("job", AFTER)
def test_kafka_that_is_lost_while_a_job_reads(source_name: str, tmp_path: Path, job: str) -> None:
    with Kafka() as kafka:
        world = World(kafka, source_name)
        impatient = {"MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "3"}
        code, told = told_when_lost(world, job, tmp_path, kafka.kill, **impatient)
    assert code == ExitCode.KAFKA, told
    assert re.match(r"error: Kafka (stopped answering while|at \S+ does not answer)", told.splitlines()[-1])


@pytest.mark.parametrize("job", AFTER)
def test_a_topic_that_is_deleted_while_a_job_reads(
    kafka: Kafka, source_name: str, tmp_path: Path, job: str
) -> None:
    world = World(kafka, source_name)
    code, told = told_when_lost(world, job, tmp_path, world.delete)
    assert code == ExitCode.DATA, told
    assert re.match(rf"error: {world.topic} was deleted while {job} ran; ", told.splitlines()[-1]), told
    assert "Traceback" not in told


def test_a_topic_that_is_deleted_while_a_job_follows_it(
    kafka: Kafka, source_name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "followed"
    world = World(kafka, source_name)
    world.create()
    world.write(whole=True)
    with world.begin(["-m", "millrace.cli"], folder) as process:
        wait_for((folder / "summary.json").exists, None, "a look")
        results = (folder / "summary.json").read_bytes()
        world.delete()
        _, told = process.communicate()
    assert process.returncode == ExitCode.DATA, told
    assert f"error: {world.topic} was deleted while analytics ran; " in told.splitlines()[-1]
    assert "Traceback" not in told
    assert (folder / "summary.json").read_bytes() == results

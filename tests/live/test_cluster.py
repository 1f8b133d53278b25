"""A job on a standalone cluster of Spark, one worker of which is killed at each stage of the job."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from millrace.local import Kafka, MySQL, Registry
from millrace.local.java import spark_environment
from millrace.local.processes import release_port, reserve_port
from spark_jobs.common.iceberg import open_catalog
from tests.live.job_world import JobWorld
from tests.live.reader_world import ReaderWorld, log_end
from tests.service_process import wait_for
from tests.shared import PROJECT, environment_with
from tests.spark_session import SPARK, spark
from tests.stages import without_times

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.slow, pytest.mark.timeout(1200)]

SOURCE = "cluster"
KILLS = 6
TRANSACTIONS = 24
ROWS = 10_000
PIECES = "--pieces", "6"
ICEBERG = "--format", "iceberg"


def write(mysql: MySQL, database: str) -> None:
    """Write transactions of some rows each."""
    mysql.execute(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (n INT, k INT, text VARCHAR(40), amount DECIMAL(10,2), "
        "PRIMARY KEY (n, k))",
        f"CREATE TABLE {database}.numbers (k INT)",
        "SET SESSION cte_max_recursion_depth = 100000",
        f"INSERT INTO {database}.numbers WITH RECURSIVE s (n) AS "
        f"(SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS}) SELECT n FROM s",
    )
    for n in range(TRANSACTIONS):
        mysql.execute(
            f"INSERT INTO {database}.t SELECT {n}, k, CONCAT('row ', k), k / 4 FROM {database}.numbers"
        )


class Cluster:
    """A master and two workers, each a group of processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = reserve_port()
        self._stack = ExitStack()
        self._started = 0
        self.master = f"spark://127.0.0.1:{self._port}"
        self.workers: dict[Path, subprocess.Popen[bytes]] = {}
        """By their folders, in which is what their executors say."""

    def __enter__(self) -> Self:
        self._stack.callback(release_port, self._port)
        self._start("master.Master", "--port", str(self._port))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fill(self) -> None:
        """Start workers until there are two."""
        while len(self.workers) < 2:
            work = self._folder / f"work-{self._started}"
            size = ["--cores", "1", "--memory", "600m"]
            self.workers[work] = self._start("worker.Worker", *size, "--work-dir", str(work), self.master)
        told = self._folder / "daemon-0.log"
        wait_for(
            lambda: told.read_text().count("Registering worker") == self._started - 1, None, told.read_text
        )

    def kill(self, work: Path) -> None:
        """Kill a worker, and with it its executors."""
        end(self.workers.pop(work))

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **spark_environment(),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        log = self._stack.enter_context((self._folder / f"daemon-{self._started}.log").open("w"))
        process = subprocess.Popen(
            [
                f"{environment['SPARK_HOME']}/bin/spark-class",
                f"org.apache.spark.deploy.{name}",
                *("--host", "127.0.0.1", "--webui-port", "0"),
                *arguments,
            ],
            env=environment, cwd=self._folder, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        self._stack.callback(end, process)
        self._started += 1
        return process


def end(process: subprocess.Popen[bytes]) -> None:
    """End a group of processes."""
    with suppress(ProcessLookupError):  # it was killed
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tasks(work: Path) -> int:
    """Count the tasks that the executor of a worker has begun and not ended."""
    told = "".join(log.read_text() for log in work.glob("*/*/stderr"))
    return told.count("Running task") - told.count("Finished task")


def rows(folder: Path) -> dict[str, list[str]]:
    """Read all files of a result, by table, but for when a row was made."""
    found: dict[str, list[str]] = {}
    latest = (folder / "latest").resolve()
    for file in latest.rglob("*.parquet"):
        table = str(file.relative_to(latest).parent)
        found.setdefault(table, []).extend(map(comparable, pq.ParquetFile(file).read().to_pylist()))
    return {table: sorted(each) for table, each in found.items()}


def iceberg_rows(spark: SparkSession, folder: Path) -> dict[str, list[str]]:
    """Read all tables of Iceberg of a result, but for when a row was made."""
    session = spark.newSession()  # one keeps the catalogs that it has opened
    name = open_catalog(session, None, str(folder / "warehouse"))
    tables = [row.tableName for row in session.sql(f"SHOW TABLES IN {name}.{SOURCE}").collect()]
    return {
        table: sorted(map(comparable, session.table(f"{name}.{SOURCE}.{table}").toArrow().to_pylist()))
        for table in tables
    }


def comparable(row: dict[str, object]) -> str:
    """Return a row as text, but for when it was made."""
    return json.dumps(without_times(row), sort_keys=True, default=str)


@dataclass
class World:
    """A source whose raw events are archived, what comes of them without a fault, and a cluster."""

    jobs: JobWorld
    cluster: Cluster
    archive: tuple[str, str]
    parquet: dict[str, list[str]]
    iceberg: dict[str, list[str]]

    def begin(self, folder: Path, *options: str, master: str = "") -> subprocess.Popen[bytes]:
        """Begin the job, by default on the cluster; what it writes and says goes to a folder."""
        (folder / "spark-defaults.conf").write_text("spark.executor.memory 512m\n")
        command = ["-m", "millrace.cli", "job", "reprocess", "--source", SOURCE, *PIECES, *options]
        where = ["--master", master or self.cluster.master, "--output", str(folder / "results")]
        settings = {
            **self.jobs.settings,
            "SPARK_CONF_DIR": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (folder / "told").open("w") as told:
            return subprocess.Popen(
                [sys.executable, *command, *where], env=environment_with(settings), cwd=PROJECT, stderr=told
            )


@pytest.fixture(scope="module")
def world(
    kafka: Kafka,
    registry: Registry,
    mysql: MySQL,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    log_file, position = log_end(mysql)
    write(mysql, SOURCE)
    reader = ReaderWorld.of(kafka, SOURCE, mysql, MILLRACE_START=f"{log_file}:{position}")
    with reader.reader() as process:
        reader.wait_until_at(mysql, process)
    jobs = JobWorld(kafka, registry, SOURCE, folder / "local")
    archive = "--archive", str(folder / "archive")
    jobs.job("archive", *archive)
    jobs.job("reprocess", *PIECES)
    parquet = rows(jobs.folder)
    assert sum(len(each) for table, each in parquet.items() if table.startswith("rows/")) == (
        (TRANSACTIONS + 1) * ROWS
    )
    jobs.job("reprocess", *PIECES, *ICEBERG)
    iceberg = iceberg_rows(spark, jobs.folder)
    assert sum(map(len, iceberg.values())) == sum(map(len, parquet.values()))
    with Cluster(folder) as cluster:
        yield World(jobs, cluster, archive, parquet, iceberg)
    mysql.execute(f"DROP DATABASE {SOURCE}")


@dataclass(frozen=True)
class Stage:
    """A stage of the job, and how to tell that it is at work."""

    after: str
    """What the job has said when the stage begins."""

    archived: bool = False
    iceberg: bool = False
    files: bool = False
    """Whether files of rows are there."""

    of_driver: bool = False
    """Executors have nothing to do in it."""


STAGES: Final = {
    "cut": Stage("reading ", archived=True),
    "decode": Stage("transactions found (", files=True),
    "decode what is archived": Stage("transactions found (", archived=True, files=True),
    "finish": Stage("decoded into rows (", of_driver=True),
    "stage for Iceberg": Stage("decoded into rows (", iceberg=True),
    "publish to Iceberg": Stage("staged for Iceberg (", iceberg=True, of_driver=True),
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
def test_a_worker_is_killed(world: World, spark: SparkSession, tmp_path: Path, stage: Stage) -> None:
    """What is published is what a run without a fault publishes."""
    options = (world.archive if stage.archived else ()) + (ICEBERG if stage.iceberg else ())
    world.cluster.fill()
    told, results = tmp_path / "told", tmp_path / "results"
    job = world.begin(tmp_path, *options)
    try:
        while (worker := at_work(world.cluster, stage, told.read_text(), results)) is None:
            assert job.poll() is None, told.read_text()
            time.sleep(0.005)
        if stage.of_driver:
            job.send_signal(signal.SIGSTOP)
        world.cluster.kill(worker)
        assert not (results / "manifest.json").exists()
        job.send_signal(signal.SIGCONT)
        assert job.wait(600) == 0, told.read_text()
    finally:
        job.kill()
        job.wait()
    if not stage.of_driver:
        assert tasks(worker) == 1
        assert "Lost executor" in told.read_text()
    if stage.iceberg:
        assert iceberg_rows(spark, results) == world.iceberg
    else:
        assert rows(results) == world.parquet


def at_work(cluster: Cluster, stage: Stage, told: str, results: Path) -> Path | None:
    """Return a worker to kill once the stage is at work."""
    if stage.after not in told or (stage.files and not any(results.glob("run-*/rows/**/*.parquet"))):
        return None
    return next((work for work in cluster.workers if stage.of_driver or tasks(work)), None)


def lines_said(folder: Path) -> int:
    """Count what the job has said: that it reads, and the end of each of its steps."""
    return sum(line.startswith("reprocess: ") for line in (folder / "told").read_text().splitlines())


def lengths_of_steps(job: subprocess.Popen[bytes], folder: Path) -> list[float]:
    """Run a job to its end; give the seconds from each line that it says to the next, or to the end."""
    times: list[float] = []
    while job.poll() is None:
        times += [time.monotonic()] * (lines_said(folder) - len(times))
        time.sleep(0.005)
    assert job.returncode == 0, (folder / "told").read_text()
    return [later - earlier for earlier, later in pairwise([*times, time.monotonic()])]


@pytest.mark.parametrize("iceberg", [False, True], ids=["parquet", "iceberg"])
def test_the_job_is_killed(world: World, spark: SparkSession, tmp_path: Path, iceberg: bool) -> None:
    """At random moments: each table is that of the run before or that of this one, whole."""
    options = ICEBERG if iceberg else ()
    new = world.iceberg if iceberg else world.parquet
    raw = world.jobs.raw()
    half = "--to", f"offset:{raw[len(raw) // 2].offset}"

    def results() -> dict[str, list[str]]:
        return iceberg_rows(spark, tmp_path / "results") if iceberg else rows(tmp_path / "results")

    assert world.begin(tmp_path, *options, *half, master="local[2]").wait(600) == 0
    old = results()
    assert old != new
    (tmp_path / "whole").mkdir()
    lasts = lengths_of_steps(world.begin(tmp_path / "whole", *options, master="local[2]"), tmp_path / "whole")
    effective = 0
    for _ in range(KILLS):
        step = random.randrange(len(lasts))
        moment = step, random.uniform(0, lasts[step])
        with world.begin(tmp_path, *options, master="local[2]") as job:
            while lines_said(tmp_path) <= step and job.poll() is None:
                time.sleep(0.005)
            with suppress(subprocess.TimeoutExpired):
                job.wait(moment[1])
            job.kill()
        effective += job.returncode == -signal.SIGKILL
        found = results()
        assert found.keys() == new.keys()
        assert [name for name in new if found[name] not in (old[name], new[name])] == [], moment
        if not iceberg:
            assert found in (old, new), moment
    assert effective, f"none of {KILLS} kills hit a job at work"
    assert world.begin(tmp_path, *options, master="local[2]").wait(600) == 0
    assert results() == new

"""A job on a standalone cluster of Spark, one worker of which is killed while the job works."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from millrace.local import Kafka, MySQL, Registry
from millrace.local.java import spark_environment
from millrace.local.processes import release_port, reserve_port
from tests.live.job_world import JobWorld
from tests.live.reader_world import ReaderWorld, log_end
from tests.service_process import wait_for
from tests.shared import PROJECT, environment_with
from tests.stages import without_times

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1200)]

TRANSACTIONS = 24
ROWS = 10_000
PIECES = 6


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


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[tuple[str, list[int]]]:
    """Start a master and workers, each a group of processes; give the master's address and the groups.

    What executors say lies in ``work-NUMBER``.
    """
    port = reserve_port()
    master = f"spark://127.0.0.1:{port}"
    environment = {
        **spark_environment(),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    of_all = ["--host", "127.0.0.1", "--webui-port", "0"]
    worker = ["worker.Worker", *of_all, "--cores", "1", "--memory", "600m"]
    commands = [["master.Master", *of_all, "--port", str(port)]]
    commands += [[*worker, "--work-dir", str(folder / f"work-{n}"), master] for n in range(workers)]
    groups = []
    with ExitStack() as stack:
        stack.callback(release_port, port)
        for number, (name, *arguments) in enumerate(commands):
            log = stack.enter_context((folder / f"daemon-{number}.log").open("w"))
            process = subprocess.Popen(
                [
                    f"{environment['SPARK_HOME']}/bin/spark-class",
                    f"org.apache.spark.deploy.{name}",
                    *arguments,
                ],
                env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            stack.callback(end, process)
            groups.append(process.pid)
        told = folder / "daemon-0.log"
        wait_for(lambda: told.read_text().count("Registering worker") == workers, None, told.read_text)
        yield master, groups[1:]


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
        found.setdefault(table, []).extend(
            json.dumps(without_times(row), sort_keys=True, default=str)
            for row in pq.ParquetFile(file).read().to_pylist()
        )
    return {table: sorted(each) for table, each in found.items()}


def test_a_worker_is_killed_while_it_decodes(
    kafka: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> None:
    world = JobWorld(kafka, registry, source_name, tmp_path / "local")
    log_file, position = log_end(mysql)
    write(mysql, source_name.replace("-", "_"))
    reader = ReaderWorld.of(kafka, source_name, mysql, MILLRACE_START=f"{log_file}:{position}")
    with reader.reader() as process:
        reader.wait_until_at(mysql, process)
    options = "--pieces", str(PIECES)
    world.job("reprocess", *options)
    expected = rows(world.folder)
    assert sum(len(each) for table, each in expected.items() if table.startswith("rows/")) == (
        (TRANSACTIONS + 1) * ROWS
    )
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.executor.memory 512m\n")
    results = tmp_path / "results"
    with cluster(tmp_path, 2) as (master, (worker, _)):
        command = [sys.executable, "-m", "millrace.cli", "job", "reprocess", *options, "--master", master]
        with subprocess.Popen(
            [*command, "--source", source_name, "--output", str(results)],
            env=environment_with(
                {
                    **world.settings,
                    "SPARK_CONF_DIR": str(tmp_path / "conf"),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                }
            ),
            cwd=PROJECT, stderr=subprocess.PIPE, text=True,
        ) as job:  # fmt: skip
            try:
                while not (tasks(tmp_path / "work-0") and any(results.glob("run-*/rows/**/*.parquet"))):
                    assert job.poll() is None, job.communicate()[1]
                    time.sleep(0.01)
                os.killpg(worker, signal.SIGKILL)
                _, told = job.communicate(timeout=600)
            finally:
                job.kill()
    assert job.returncode == 0, told
    assert tasks(tmp_path / "work-0") == 1
    assert "Lost executor" in told
    assert rows(results) == expected

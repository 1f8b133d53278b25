"""The job analytics over a real server's log, and what jobs say when something is missing."""

import json
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import distribution
from operator import itemgetter
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Producer
from packaging.requirements import Requirement
from pyspark.sql import SparkSession

from millrace import kernel
from millrace.cli.job import connector_jars
from millrace.contract import HEADER_MARKER, Topics
from millrace.kafka.client import connect
from millrace.kafka.topics import ensure_topics
from millrace.local import Kafka, MySQL, Registry
from millrace.local.java import spark_environment
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings, TopicsSettings
from tests.live.job_world import JobWorld
from tests.live.reader_world import log_end
from tests.service_process import wait_for
from tests.shared import PROJECT, environment_with
from tests.spark_session import SPARK, spark
from tests.unit.spark.test_report import check_self_contained

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.timeout(1800)]


@pytest.fixture
def world(kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path) -> JobWorld:
    return JobWorld(kafka, registry, source_name, tmp_path / "results")


def test_analytics_counts_what_was_done(world: JobWorld, mysql: MySQL, spark: SparkSession) -> None:
    database = world.source.replace("-", "_")
    log_file, position = log_end(mysql)
    mysql.execute(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.keyed (id INT PRIMARY KEY, text VARCHAR(200), amount DECIMAL(10,2))",
        f"CREATE TABLE {database}.log (text TEXT, at DATETIME(3))",
    )
    numbers = ", ".join(f"({n}, REPEAT('x', {n % 200}), {n}.25)" for n in range(5_000))
    mysql.execute(f"INSERT INTO {database}.keyed VALUES {numbers}")
    mysql.execute(
        "SET SESSION binlog_rows_query_log_events = ON",
        "BEGIN",
        f"UPDATE {database}.keyed SET amount = amount + 1 WHERE id < 700",
        f"DELETE FROM {database}.keyed WHERE id >= 4900",
        f"INSERT INTO {database}.log VALUES ('one', NOW(3)), (NULL, NULL)",
        "COMMIT",
    )
    mysql.execute("BEGIN", f"INSERT INTO {database}.log VALUES ('never', NOW(3))", "ROLLBACK")
    world.capture(mysql, start=f"{log_file}:{position}")
    summary = world.job("analytics")
    everything = world.table("rows_per_table")
    ours = [row for row in world.table("rows_per_table") if row["database"] == database]
    assert {(row["table"], row["operation"]): row["rows"] for row in ours} == {
        ("keyed", "insert"): 5_000,
        ("keyed", "update"): 700,
        ("keyed", "delete"): 100,
        ("log", "insert"): 2,
    }
    assert all(row["uncounted"] == 0 for row in ours)
    tables = {f"{database}.keyed", f"{database}.log"}
    transactions = [t for t in world.table("transactions") if tables.intersection(t["tables"])]
    assert sorted(t["rows"] for t in transactions) == [802, 5_000]
    largest = summary["largest_transactions"][0]
    assert largest["rows"] >= 5_000

    seen = {row["table"]: row for row in world.table("tables") if row["database"] == database}
    assert {name: row["key"] for name, row in seen.items()} == {"keyed": "id", "log": ""}
    assert seen["keyed"]["looked"] > seen["keyed"]["unchanged"] == 0
    assert seen["keyed"]["image_bytes"] > seen["keyed"]["needed_bytes"] > 0
    changed = [(row["name"], row["changed"]) for row in world.table("columns") if row["database"] == database]
    assert changed == [("amount", seen["keyed"]["looked"])]
    texts = {row["statement"]: (row["executions"], row["rows"]) for row in world.table("statements")}
    assert texts[f"update {database}.keyed set amount=amount+? where id<?"] == (1, 700)
    assert texts[f"delete from {database}.keyed where id>=?"] == (1, 100)
    assert {row["object"] for row in world.table("ddl")} >= {database, f"{database}.keyed", f"{database}.log"}
    assert all(t["thread_id"] and t["ends"] == "commit" for t in transactions)

    raw = [record for record in world.raw() if HEADER_MARKER not in record.headers]
    assert summary["bytes"] == sum(len(record.value) for record in raw)
    assert summary["events"] == sum(row["events"] for row in world.table("events_per_minute"))
    page = (world.folder / "report.html").read_text()
    check_self_contained(page)
    assert f"{database}.keyed" in page

    # Records that nobody can read are counted and listed; all else is as it was.
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap_servers})
    for key, value in (
        (None, b"x"),
        (b"1:0:bin.000001:4", None),
        (b"no key", b"x"),
        (raw[-1].key.encode(), b"x"),
    ):
        producer.produce(world.source + ".raw", value, key, partition=0)
    assert producer.flush(60) == 0
    world.spark = spark
    done = world.run("analytics", "--source", world.source, "--output", str(world.folder))
    assert done.returncode == ExitCode.FAULTY, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "error: 4 records could not be read: see the report; everything else was written"
    )
    by_table = itemgetter("database", "table", "operation")
    assert sorted(world.table("rows_per_table"), key=by_table) == sorted(everything, key=by_table)
    dead_letters = world.table("deadletter")
    assert [row["raw_offset"] for row in dead_letters] == sorted(row["raw_offset"] for row in dead_letters)
    assert {row["error_class"] for row in dead_letters} == {"ValueError", "TruncatedError"}
    page = (world.folder / "report.html").read_text()
    assert all(f">{row['raw_offset']:,}<" in page for row in dead_letters)

    # A part of the log that begins within the transaction of 5,000 rows: it has those that begin there.
    big = next(t for t in transactions if t["rows"] == 5_000)
    middle = (big["first_offset"] + big["last_offset"]) // 2
    world.job("analytics", "--from", str(middle), "--to", str(dead_letters[0]["raw_offset"]))
    behind = {
        row["operation"]: row["rows"] for row in world.table("rows_per_table") if row["table"] == "keyed"
    }
    assert behind == {"update": 700, "delete": 100}


def test_mistakes_are_told_in_a_line(world: JobWorld) -> None:
    def told(*arguments: str, **environment: str) -> tuple[int, str]:
        done = world.run("analytics", *arguments, **environment)
        assert "Traceback" not in done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        return done.returncode, line

    code, line = told("--source", "nowhere")
    assert (code, "topic nowhere.raw does not exist" in line) == (ExitCode.KAFKA, True)
    code, line = told(
        "--source",
        "nowhere",
        "--bootstrap-servers",
        "127.0.0.1:1",
        MILLRACE_KAFKA_CONNECT_TIMEOUT_S="2",
    )
    assert (code, "127.0.0.1:1 cannot be reached" in line) == (ExitCode.KAFKA, True)
    code, line = told()
    assert (code, "MILLRACE_SOURCE is missing" in line) == (ExitCode.SETTINGS, True)
    topics = {Topics(world.source).raw: "raw"}
    ensure_topics(
        connect(KafkaSettings(bootstrap_servers=world.kafka.bootstrap_servers)), TopicsSettings(), topics
    )
    code, line = told("--source", world.source, "--output", "/proc/nothing")
    assert code == ExitCode.SETTINGS
    assert line == (
        "error: /proc/nothing cannot be written: No such file or directory; name another folder with --output"
    )
    code, line = told("--source", "nowhere")
    assert line.startswith("error: topic nowhere.raw does not exist; sources there are: ")
    assert world.source in line.replace(",", "").split()


def test_without_the_connector(world: JobWorld) -> None:
    """As plain spark-submit runs it where nobody gave it the jars."""
    topics = {Topics(world.source).raw: "raw"}
    settings = KafkaSettings(bootstrap_servers=world.kafka.bootstrap_servers)
    ensure_topics(connect(settings), TopicsSettings(), topics)
    kept = {name: value for name, value in spark_environment().items() if not name.startswith("MILLRACE_")}
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs.analytics", "--source", world.source, "--master", "local[1]"],
        env={
            **kept,
            "PYTHONPATH": str(PROJECT),
            "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": world.kafka.bootstrap_servers,
            "MILLRACE_REGISTRY_URL": world.registry.url,
        },
        cwd=world.folder.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == ExitCode.SETTINGS, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "error: Spark's Kafka source is not on its class path; run the job as `millrace job`, or give "
        "spark-submit the jars that `millrace job jars` prints as --jars"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_nothing_of_millrace_on_the_workers(world: JobWorld, mysql: MySQL, tmp_path: Path) -> None:
    """A cluster of two workers whose Python has the packages that docs/jobs.md names, and the zip."""
    database = world.source.replace("-", "_")
    log_file, position = log_end(mysql)
    mysql.execute(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, text VARCHAR(20))",
        f"INSERT INTO {database}.t WITH RECURSIVE s (n) AS "
        "(SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 900) SELECT n, CONCAT('row ', n) FROM s",
        f"ALTER TABLE {database}.t ADD more INT NOT NULL DEFAULT 7",
        f"UPDATE {database}.t SET more = 8 WHERE id <= 300",
    )
    world.capture(mysql, start=f"{log_file}:{position}")
    package = tmp_path / "millrace-spark.zip"
    subprocess.run([sys.executable, "tools/spark_package.py", str(package)], cwd=PROJECT, check=True)
    python = python_with(tmp_path / "python", ["pyspark", *named_in_docs()])
    there = subprocess.run([python, "-c", "import millrace"], cwd=tmp_path, capture_output=True, check=False)
    assert there.returncode == 1

    # Workers write beside Spark.
    home = tmp_path / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    script = shutil.copy(PROJECT / "spark_jobs" / "reprocess.py", tmp_path)
    settings = {
        **spark_environment(),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": world.kafka.bootstrap_servers,
    }
    done = subprocess.run(
        [
            home / "bin" / "spark-submit", "--master", "local-cluster[2,1,1024]", "--driver-memory", "700m",
            "--conf", "spark.ui.enabled=false", "--jars", connector_jars(), "--py-files", package,
            script, "--source", world.source, "--output", world.folder, "--pieces", "3",
        ],
        env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]  # where spark-submit puts what a job says
    summary = json.loads((world.folder / "summary.json").read_text())[world.source]
    assert "dead_letters" not in summary
    rows = {name: told["rows"] for name, told in summary["tables"].items() if name.startswith("rows/")}
    assert sum(rows.values()) == 1200
    assert all(name.startswith(f"rows/{database}.t/") for name in rows)
    if kernel.state() == "on":
        unpacked = {one.parent.parent for one in (home / "work").rglob("*.so")}
        assert len(unpacked) == 2, "each worker has the kernel"


def named_in_docs() -> list[str]:
    (line,) = re.findall(r"^    pip install (.*)$", (PROJECT / "docs" / "jobs.md").read_text(), re.MULTILINE)
    return str(line).split()


def python_with(folder: Path, names: list[str]) -> Path:
    """Make a Python that has the packages of these names, and those that they need, of the tests' own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    wanted, seen = list(names), set[str]()
    while wanted:
        name = wanted.pop().lower()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        for path in {
            file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
        }:
            (site / path).symlink_to(Path(str(found.locate_file(path))))
        needed = map(Requirement, found.requires or ())
        wanted += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return folder / "bin" / "python"


def test_no_registry(world: JobWorld, mysql: MySQL) -> None:
    world.capture(mysql, start="latest")
    done = world.run("loop_detection", "--source", world.source, "--registry-url", "http://127.0.0.1:1")
    assert done.returncode == ExitCode.REGISTRY
    assert done.stderr.startswith("error: the schema registry at http://127.0.0.1:1 does not answer")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("moment", ["import", "work"])
def test_sigterm_ends_a_job_as_process_1_too(world: JobWorld, mysql: MySQL, moment: str) -> None:
    """The kernel drops a SIGTERM for which process 1 of a container has no handler, as if it were ignored."""
    world.capture(mysql, start="latest")
    with subprocess.Popen(
        [sys.executable, "-m", "millrace.cli", "job", "analytics", "--source", world.source],
        env=environment_with(world.settings),
        cwd=world.folder.parent,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),  # noqa: PLW1509 - no threads yet
    ) as process:
        assert process.stderr is not None
        try:
            if moment == "work":
                assert process.stderr.readline().startswith("analytics: reading ")  # Spark is up
            else:
                maps = Path(f"/proc/{process.pid}/maps")
                wait_for(lambda: "libarrow" in maps.read_text(), None, moment)
            process.terminate()
            said = [line for line in process.stderr.read().splitlines() if not line.startswith("analytics: ")]
            assert said == ["error: analytics was stopped by SIGTERM; the previous results remain"]
            assert process.wait() == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert not (world.folder.parent / "reports" / f"analytics-{world.source}" / "summary.json").exists()


def test_help_names_the_jobs(world: JobWorld) -> None:
    done = world.run("--help")
    assert {"analytics", "loop_detection", "jars"} <= set(done.stdout.split())
    assert "--servers" in world.run("loop-detection", "--help").stdout

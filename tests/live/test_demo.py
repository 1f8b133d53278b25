"""The demo as a user runs it: it ends well, and however it ends, it leaves no process behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.demo.pipeline import Endpoints
from millrace.demo.run import Demo, Options, are_equal
from millrace.local import Kafka, MySQL, Registry
from millrace.local.guard import descendants
from millrace.mysql.connection import MysqlConnection
from tests.service_process import is_alive

pytestmark = pytest.mark.timeout(1800)


@contextmanager
def demo(log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "millrace.cli", "demo", *options]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(120)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def try_what_it_says(text: str) -> None:
    """Run the commands that the demo prints, as a user would, until the row has arrived."""
    commands = text.partition("To try in another terminal:\n")[2].splitlines()
    exports, (status, follow) = commands[:3], commands[3:5]
    insert = commands[6]
    environment = "\n".join(exports)
    done = subprocess.run(
        ["bash", "-c", f"{environment}\n{status}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with subprocess.Popen(
        ["bash", "-c", f"{environment}\nexec timeout 300 {follow.strip()}"], stdout=subprocess.PIPE, text=True
    ) as topic:
        assert topic.stdout is not None
        subprocess.run(["bash", "-c", insert], check=True)
        for line in topic.stdout:
            after = json.loads(line)["value"]["after"]
            if after["total"] == "9.99" and after["customer_id"] == "1":
                break
        else:
            pytest.fail("the row has not arrived")
        topic.terminate()


def test_the_row_topics_equal_the_tables(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with demo(log, "--rows", "2000", "--output", str(tmp_path / "reports"), "--stay") as process:
        while "and in one more" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        time.sleep(0.5)
        try_what_it_says(log.read_text())
        process.send_signal(signal.SIGINT)
        process.wait(120)
    text = log.read_text()
    assert "\nrow topics equal the tables: yes\n" in text
    assert len(re.findall(r": [\d,]+ records folded .*: equal$", text, re.MULTILINE)) == 8
    (changed,) = re.findall(
        r"^  ([\d,]+) rows of 8 tables were changed, 2,000 in one transaction;$", text, re.MULTILINE
    )
    assert (
        f"rows changed</dt><dd>{changed}</dd>"
        in (tmp_path / "reports" / "analytics" / "report.html").read_text()
    )
    *_, (rows, written) = re.findall(
        r"rows changed ([\d,]+), raw .* events [\d,]+, records in row topics ([\d,]+)$", text, re.MULTILINE
    )
    folded = re.findall(r": ([\d,]+) records folded ", text)
    assert rows == changed
    assert number(written) == sum(map(number, folded))
    assert "Loop detection has 0 incidents;" in text
    for job in ("analytics", "loop_detection"):
        assert "</html>" in (tmp_path / "reports" / job / "report.html").read_text()


def test_rows_that_are_not_in_their_topics_are_told(
    kafka: Kafka, registry: Registry, mysql: MySQL, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    brokers, address = kafka.bootstrap_servers, mysql.root_address
    with Demo(Options(address, brokers, registry.url, 1, tmp_path, stay=False)) as made:
        database = made.database
        mysql.execute(f"CREATE DATABASE {database}", f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        assert not are_equal([])
        endpoints = Endpoints(made.source, address, brokers, registry.url, "latest")
        try:
            with MysqlConnection(address) as connection:
                assert are_equal(made._compare(endpoints, connection))
                mysql.execute(f"INSERT INTO {database}.t VALUES (1)")
                assert not are_equal(made._compare(endpoints, connection))
        finally:
            mysql.execute(f"DROP DATABASE {database}")
    assert f"{database}.t: 0 records folded" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("when", "end_by"),
    [
        ("starting kafka", signal.SIGINT),
        ("starting kafka", signal.SIGKILL),
        ("creating 8 tables", signal.SIGINT),
        ("running the Spark job", signal.SIGKILL),
    ],
)
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, when: str, end_by: signal.Signals) -> None:
    log = tmp_path / "log"
    with demo(log, "--rows", "2000", "--output", str(tmp_path / "reports")) as process:
        while when not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        time.sleep(2)
        while not (started := descendants(process.pid)):
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        os.kill(process.pid, end_by)
        process.wait(180)
    deadline = time.monotonic() + 120
    while left := [pid for pid in started if is_alive(pid)]:
        assert time.monotonic() < deadline, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
        time.sleep(0.1)
    if end_by is signal.SIGINT:
        assert process.returncode == 130, log.read_text()
        assert log.read_text().splitlines()[-1] == "stopped; nothing is left running"

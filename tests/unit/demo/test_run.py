"""How the demo ends when something that it has started does not go well: real processes, no servers."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from millrace.demo import pipeline, run
from millrace.demo.pipeline import Services
from millrace.demo.run import Demo, Options, _server_in_words
from millrace.local import LocalError
from millrace.local.processes import Process
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

ENDS_WITH_3 = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
    "print('at work', flush=True)\n"
    "time.sleep(600)\n"
)

WAITING = {
    "MILLRACE_SOURCE": "shop",
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "3600",
    "MILLRACE_REGISTRY_URL": "http://127.0.0.1:1",
    "MILLRACE_MYSQL_HOST": "127.0.0.1",
}
"""Settings of services that do not end before they are ready, since they wait for Kafka."""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    with Demo(Options(None, "localhost:1", "http://localhost:1", 1, tmp_path, stay=False)) as made:
        yield made


def process(folder: Path, program: str, name: str = "reader") -> Process:
    started = Process(name, [sys.executable, "-c", program], log=folder / f"{name}.log")
    while "at work" in program and "at work" not in started.log_tail():
        assert started.poll() is None
    return started


def test_a_service_that_cannot_start(tmp_path: Path) -> None:
    services = Services({"MILLRACE_SOURCE": "shop"}, tmp_path)
    with pytest.raises(LocalError) as caught:
        services.start()
    services.kill()
    first, *log = str(caught.value).splitlines()
    assert first.endswith(" ended with exit code 2:")
    assert any(line.startswith("error: MILLRACE_KAFKA_BOOTSTRAP_SERVERS is missing: ") for line in log)


def test_a_service_that_is_never_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_READY_TIMEOUT_S", 0)
    services = Services(WAITING, tmp_path)
    with pytest.raises(LocalError, match=r"^reader is not ready after 0 s:\nreader:\n"):
        services.start()
    services.kill()


def test_a_service_that_does_not_stop_in_order(demo: Demo, tmp_path: Path) -> None:
    demo._services = Services({}, tmp_path)
    demo._services._processes.append(process(tmp_path, ENDS_WITH_3))
    with pytest.raises(LocalError, match=r"^asked to stop, these ended with an error: reader with 3$"):
        demo._stop_services()


def test_a_job_that_fails(demo: Demo, tmp_path: Path) -> None:
    failed = process(tmp_path, "import sys; sys.exit('no memory')", "analytics")
    with pytest.raises(LocalError, match=r"^the Spark job analytics ended with exit code 1:\nno memory$"):
        demo._finish_job("analytics", failed)


def test_a_job_that_does_not_end(demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_JOB_TIMEOUT_S", 0)
    slow = process(tmp_path, ENDS_WITH_3, "analytics")
    with pytest.raises(LocalError, match=r"^the Spark job analytics still runs after 0 s:\nat work$"):
        demo._finish_job("analytics", slow)
    slow.kill()


def test_what_the_server_refuses() -> None:
    with pytest.raises(UserError) as caught, _server_in_words("the database server"):
        raise pymysql.err.OperationalError(1044, "Access denied for user 'u' to database 'shop'")
    assert caught.value.message == "the database server says Access denied for user 'u' to database 'shop'"
    assert caught.value.exit_code is ExitCode.SOURCE

"""The frame of a service: exit codes, the one line on stderr, signals, health."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import Counter, generate_latest

import millrace
from millrace import kernel
from millrace.binlog.errors import TruncatedError
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.health import Health
from millrace.runtime.metrics import HttpServer, new_registry
from millrace.runtime.service import Service, run_service
from millrace.runtime.settings import (
    ServiceSettings,
)
from tests.shared import run_python

VALUES = {"source": "shop", "kafka": {"bootstrap_servers": "localhost:9092"}}


def run(error: Exception | None) -> int:
    def app(service: Service[ServiceSettings]) -> None:
        assert service.settings.source == "shop"
        if error is not None:
            raise error

    return run_service("example", ServiceSettings, app, **VALUES)


pytestmark = pytest.mark.usefixtures("no_settings")


def test_stopped_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(None) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["event"] for line in lines] == ["started", "stopped"]
    assert (lines[0]["version"], lines[0]["kernel"]) == (millrace.__version__, kernel.state())
    assert all(line["service"] == "example" and line["source"] == "shop" for line in lines)


def test_a_users_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(UserError("the host does not answer; check it", ExitCode.SOURCE)) == 3
    captured = capsys.readouterr()
    assert captured.err == "error: the host does not answer; check it\n"
    assert json.loads(captured.out.splitlines()[-1])["exit_code"] == 3
    assert "Traceback" not in captured.out


def test_what_others_say_reaches_no_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    words = "db1 says \x1b[2J\nerror: all is well\u202e, \udcff"
    assert run(UserError(words, ExitCode.SOURCE)) == 3
    captured = capsys.readouterr()
    assert captured.err == "error: db1 says \\x1b[2J\\x0aerror: all is well\\u202e, \\xff\n"
    assert captured.out.isascii()
    assert json.loads(captured.out.splitlines()[-1])["reason"] == words.replace("\udcff", r"\xff")


def test_wrong_settings_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_service("example", ServiceSettings, lambda service: None) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["MILLRACE_SOURCE", "MILLRACE_KAFKA_BOOTSTRAP_SERVERS"]


def test_a_log_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TruncatedError("4 bytes needed").at("mysql-bin.000001", 120)) == 7
    assert (
        capsys.readouterr().err
        == "error: the log cannot be read on: mysql-bin.000001 at 120: 4 bytes needed\n"
    )


def test_a_bug_is_logged_whole_and_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ZeroDivisionError("division by zero")) == 70
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert "ZeroDivisionError" in line
    assert "Traceback" in json.loads(captured.out.splitlines()[-1])["exception"]


def test_every_service_tells_who_it_is_and_whether_it_works() -> None:
    texts = []

    def app(service: Service[ServiceSettings]) -> None:
        texts.append(generate_latest(service.metrics).decode())
        service.health.set_ready()
        texts.append(generate_latest(service.metrics).decode())

    assert run_service("example", ServiceSettings, app, **VALUES) == 0
    before, after = texts
    info = f'millrace_service_info{{service="example",source="shop",version="{millrace.__version__}"}} 1.0'
    assert info in before.splitlines()
    assert "millrace_service_ready 0.0" in before.splitlines()
    assert f"millrace_service_kernel {float(kernel.state() == 'on')}" in before.splitlines()
    assert "millrace_service_ready 1.0" in after.splitlines()


SCRIPT = textwrap.dedent(
    """
    import sys, time
    from millrace.runtime.service import run_service
    from millrace.runtime.settings import ServiceSettings

    def app(service):
        print("ready", flush=True)
        service.stop.wait()
        if service.settings.log_level == "DEBUG":
            print("held", flush=True)
            time.sleep(600)

    sys.exit(run_service("example", ServiceSettings, app))
    """
)


UNREAD = textwrap.dedent(
    """
    import sys
    from millrace.runtime.service import run_service
    from millrace.runtime.settings import ServiceSettings

    def app(service):
        while not service.stop.wait(0.01):
            service.log.info("at work")

    sys.exit(run_service("example", ServiceSettings, app))
    """
)


SETTINGS = {"MILLRACE_SOURCE": "shop", "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "localhost:9092"}


def start(tmp_path: Path, script: str = SCRIPT, **environment: str) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(script)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | SETTINGS | environment,
    )
    assert process.stdout is not None
    if script is not UNREAD:
        assert "ready\n" in iter(process.stdout.readline, "")
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_in_order(tmp_path: Path, number: int) -> None:
    with start(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(120) == 0


ASKING = """
import os, signal, sys, time
from millrace.runtime.service import run_service
from millrace.runtime.settings import ServiceSettings

def app(service):
    with service.stop._cond:  # as where the service asks whether it is to stop
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
    service.stop.wait()

sys.exit(run_service("example", ServiceSettings, app))
"""


def test_a_signal_that_comes_while_the_service_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ASKING)
    assert run_python(str(tmp_path / "script.py"), settings=SETTINGS, timeout_s=60).returncode == 0


def test_a_log_that_nobody_reads(tmp_path: Path) -> None:
    """The service stops in order, with one code and no traceback."""
    with start(tmp_path, UNREAD, PYTHONUNBUFFERED="") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with start(tmp_path, MILLRACE_LOG_LEVEL="DEBUG") as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert "held\n" in iter(process.stdout.readline, "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM


NEVER = """
import sys, time
from millrace.runtime import service
from millrace.runtime.settings import ServiceSettings

service._LAST_S = 0.5

def app(_):
    print("ready", flush=True)
    time.sleep(600)

sys.exit(service.run_service("never", ServiceSettings, app))
"""


def test_what_does_not_end_in_order_is_ended(tmp_path: Path) -> None:
    with start(tmp_path, NEVER) as process:
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "did not end in time" in output


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_and_metrics() -> None:
    health, registry = Health(stale_after_s=1000), new_registry()
    Counter("millrace_things", "Things seen.", registry=registry).inc(3)
    with HttpServer("127.0.0.1", 0, health, registry) as server:
        assert get(server.port, "/healthz") == (200, "ok\n")
        assert get(server.port, "/readyz")[0] == 503
        health.set_ready()
        assert get(server.port, "/readyz") == (200, "ok\n")
        assert "millrace_things_total 3.0" in get(server.port, "/metrics")[1]
        assert get(server.port, "/")[0] == 404


def test_what_is_missing_is_said_beside_that_the_service_works() -> None:
    health, registry = Health(), new_registry()
    gaps = Counter("millrace_reader_gaps", "Gaps.", registry=registry)
    letters = Counter("millrace_decoder_dead_letters", "Dead letters.", ["error"], registry=registry)
    Counter("millrace_reader_events", "Events.", registry=registry).inc(7)
    health.set_ready()
    with HttpServer("127.0.0.1", 0, health, registry) as server:
        assert get(server.port, "/readyz") == (200, "ok\n")
        gaps.inc(2)
        letters.labels("a").inc()
        letters.labels("b\n").inc()
        letters.labels("b\n").inc()
        missing = (
            "millrace_reader_gaps_total 2: Gaps.\n"
            "millrace_decoder_dead_letters_total error=a 1: Dead letters.\n"
            "millrace_decoder_dead_letters_total error=b\\x0a 2: Dead letters.\n"
        )
        assert get(server.port, "/readyz") == (200, f"ok\n{missing}")
        health.set_ready(False)
        assert get(server.port, "/readyz") == (503, f"not ready\n{missing}")
        health.wait_for("the source is paused")
        assert get(server.port, "/readyz") == (503, f"not ready; the source is paused\n{missing}")
        health.set_ready()
        assert get(server.port, "/readyz") == (200, f"ok\n{missing}")


def test_a_loop_that_stands_still_is_not_healthy() -> None:
    health = Health(stale_after_s=0)
    health.set_ready()
    with HttpServer("127.0.0.1", 0, health, new_registry()) as server:
        assert get(server.port, "/healthz") == (503, "the main loop stands still\n")
        assert get(server.port, "/readyz")[0] == 503


def test_a_port_in_use_is_told() -> None:
    with HttpServer("127.0.0.1", 0, Health(), new_registry()) as server:
        with pytest.raises(UserError, match=f"127.0.0.1:{server.port}: Address already in use") as caught:
            HttpServer("127.0.0.1", server.port, Health(), new_registry())
        assert caught.value.exit_code == 2


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError) as caught:
            HttpServer("127.0.0.1", port, Health(), new_registry())
    assert caught.value.message == (
        f"health and metrics cannot be served on 127.0.0.1:{port}: Address already in use; "
        "set MILLRACE_HTTP_HOST and MILLRACE_HTTP_PORT, or port 0 for none"
    )


def test_health_in_words() -> None:
    health = Health()
    with HttpServer("127.0.0.1", 0, health, new_registry()) as server_, pytest.raises(HTTPError) as caught:
        urlopen(f"http://127.0.0.1:{server_.port}/readyz")
    with caught.value as answer:
        assert (answer.code, answer.read()) == (503, b"not ready\n")

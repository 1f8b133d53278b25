"""`millrace status` while services start one after the other: what is on its way is told, hop by hop."""

import json
import re
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.kafka.client import connect
from millrace.kafka.state import read_state
from millrace.kafka.topics import ensure_topics
from millrace.local import Kafka, MySQL, Registry
from millrace.local.processes import release_port, reserve_port
from millrace.mysql.settings import MysqlSettings
from millrace.runtime.settings import RegistrySettings, TopicsSettings
from millrace.status.collect import SourceStatus, StatusSettings, collect, sources
from millrace.status.lag import Lag
from tests.service_process import ServiceProcess, wait_for
from tests.shared import load_script

from .reader_world import log_end
from .rows_world import RowsWorld


@pytest.fixture
def world(
    kafka: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RowsWorld]:
    world = RowsWorld(kafka, registry, mysql, source_name, tmp_path_factory.mktemp("status"))
    yield world
    world.close()
    mysql.execute(f"DROP DATABASE IF EXISTS {world.database}")


@pytest.fixture
def no_registry(
    kafka: Kafka, mysql: MySQL, source_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RowsWorld]:
    """A source of which no service runs."""
    nowhere: Any = SimpleNamespace(url="http://127.0.0.1:1")
    world = RowsWorld(kafka, nowhere, mysql, source_name, tmp_path_factory.mktemp("status"))
    yield world
    world.close()


def look(world: RowsWorld) -> SourceStatus:
    settings = StatusSettings(
        source=world.source,
        kafka=world.settings,
        registry=RegistrySettings(url="http://unused"),
        mysql=MysqlSettings(
            host=world.server.host,
            port=world.server.port,
            user=world.server.user,
            password=world.server.password,
        ),
    )
    return collect(settings, world.source, world.registry)


def hop(status: SourceStatus, end: str) -> Lag | None:
    return next((hop.lag for hop in status.hops if hop.end == end), None)


def wait_until(world: RowsWorld, seen: Callable[[SourceStatus], bool]) -> SourceStatus:
    statuses: list[SourceStatus] = []

    def looked() -> SourceStatus | None:
        statuses[:] = [look(world)]
        return statuses[0] if seen(statuses[0]) else None

    return wait_for(looked, None, lambda: str(statuses))


def is_through(end: str) -> Callable[[SourceStatus], bool]:
    def through(status: SourceStatus) -> bool:
        lag = hop(status, end)
        return lag is not None and lag.bytes == 0 and lag.transactions == 0

    return through


@contextmanager
def serving(world: RowsWorld, name: str) -> Iterator[Callable[[], set[str]]]:
    """A running service, and what gives the names of its metrics but those of every process."""
    port = reserve_port()

    def metrics() -> set[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            return set(re.findall(r"(?m)^# TYPE (millrace_\w+)", answer.read().decode()))

    try:
        with world.service(name, MILLRACE_HTTP_PORT=str(port)):
            yield metrics
    finally:
        release_port(port)


def described(service: str) -> set[str]:
    """The metrics that docs/metrics.md lists for a service."""
    names = load_script("docs/generate.py").metrics()
    return {name for name in names if name.startswith(("millrace_service_", f"millrace_{service}_"))}


def run_status(world: RowsWorld, *arguments: str) -> str:
    return world.command("status", *arguments).stdout


def test_from_the_server_to_the_rows(world, mysql):
    before = look(world)
    assert before.services == []
    assert before.problems == [
        f"no service of {world.source} has run: there is no topic {world.topics.state}"
    ]
    first_file, start = log_end(mysql)
    with serving(world, "reader") as metrics:
        world.wait_for_start()
        mysql.execute(
            f"CREATE DATABASE {world.database}",
            f"CREATE TABLE {world.database}.a (id INT PRIMARY KEY)",
            f"INSERT INTO {world.database}.a VALUES (1)",
            f"INSERT INTO {world.database}.a VALUES (2)",
        )
        wait_until(world, is_through("raw"))
        assert metrics() == described("reader")
    # The reader has stopped: what is written now waits on the server, what came before in the raw topic.
    middle_file, middle = log_end(mysql)
    assert middle_file == first_file
    mysql.execute(f"INSERT INTO {world.database}.a VALUES (3)")
    end = log_end(mysql)[1]
    status = look(world)
    waiting, raw = hop(status, "raw"), hop(status, "events")
    assert waiting is not None
    assert raw is not None
    assert (waiting.bytes, waiting.transactions) == (end - middle, 1)
    assert waiting.seconds is not None
    assert waiting.seconds > 0
    assert (raw.bytes, raw.transactions, raw.exact) == (middle - start, 4, True)
    assert raw.records is not None
    assert raw.records > 4
    (reader,) = status.services
    assert reader.place is not None
    assert (reader.place.log_file, reader.place.position) == (first_file, middle)
    assert reader.owner.startswith("process ")

    with serving(world, "decoder") as metrics:
        status = wait_until(world, is_through("events"))
        assert metrics() == described("decoder")
    rows = hop(status, "rows")
    assert rows is not None
    assert (rows.bytes, rows.transactions, rows.exact) == (middle - start, 4, True)
    (line,) = run_status(world, "--json").splitlines()
    found = json.loads(line)
    assert found["services"]["decoder"]["place"]["position"] == middle
    assert [(one["from"], one["to"]) for one in found["hops"]] == [
        ("server", "raw"),
        ("raw", "events"),
        ("events", "rows"),
    ]
    assert found["hops"][2]["bytes"] == middle - start
    nothing = dict.fromkeys(("count", "waiting", "redriven", "discarded"), 0)
    assert found["dead_letters"] == {**nothing, "exact": True}

    with serving(world, "rowmapper") as metrics:
        wait_until(world, is_through("rows"))
        assert metrics() == described("rowmapper")
    text = run_status(world)
    assert text.splitlines()[0] == world.source
    assert f"  reader     {first_file}:{middle} (epoch 0)  not running; last: process " in text
    assert f"  rowmapper  {first_file}:{middle} (epoch 0)  not running; last: process " in text
    assert "  dead letters: 0" in text
    assert "\x1b" not in text
    assert mysql.password not in text


def test_what_does_not_answer_is_said(no_registry):
    settings = StatusSettings(
        source=no_registry.source,
        kafka=no_registry.settings,
        mysql=MysqlSettings(host="127.0.0.1", port=1, connect_timeout_s=1),
    )
    ensure_topics(connect(no_registry.settings), TopicsSettings(), {f"{no_registry.source}.state": "state"})
    status = collect(settings, no_registry.source, None)
    assert status.server is not None
    assert "cannot connect" in status.server.error
    assert status.services == []


def test_all_sources_that_kafka_knows(no_registry):
    ensure_topics(connect(no_registry.settings), TopicsSettings(), {f"{no_registry.source}.state": "state"})
    assert no_registry.source in sources(StatusSettings(kafka=no_registry.settings))
    assert sources(StatusSettings(kafka=no_registry.settings, source="shop")) == ["shop"]


def test_services_that_begin_meanwhile(no_registry, monkeypatch):
    """What they say of themselves is not put beside topics as they were before."""
    kafka, topics = connect(no_registry.settings), no_registry.topics
    ensure_topics(kafka, TopicsSettings(), {topics.state: "state"})

    def read_late(*arguments):
        ensure_topics(kafka, TopicsSettings(), {topics.raw: "raw", topics.events: "events"})
        return read_state(*arguments)

    monkeypatch.setattr("millrace.status.collect.read_state", read_late)
    status = collect(StatusSettings(kafka=no_registry.settings), no_registry.source, None)
    assert [hop.end for hop in status.hops] == ["events", "rows"]


def test_watch(no_registry):
    command = [sys.executable, "-m", "millrace.cli", "status", "--watch", "--json", "--interval", "0.2"]
    with closing(ServiceProcess(command, no_registry.environment)) as process:
        wait_for(lambda: process.output.count("\n") >= 2, process, "two looks")
        process.send_signal(signal.SIGINT)
        process.wait(120)
    looks = [json.loads(line) for line in process.output.splitlines()]
    assert {look["source"] for look in looks} == {no_registry.source}
    assert (process.returncode, process.error_output) == (0, "")

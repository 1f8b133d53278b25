"""Fixtures for everything that needs real servers: started when first used, shared by the whole session.

A test that uses one of them is marked ``live`` by itself. Servers of a test's own (with other options, or to
be killed) come from ``millrace.local``::

    with MariaDB(server_id=2, options={"binlog-format": "STATEMENT"}) as server: ...
"""

import logging
import os
import re
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from millrace.local import Component, MariaDB, MissingLibraryError, MySQL, Registry
from millrace.local.errors import ComponentDiedError
from millrace.selection.tables import SYSTEM_DATABASES
from tests.secure_kafka import SecureKafka

# How long an example takes says how busy the machine is, no more.
settings.register_profile("millrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millrace")

_LIVE_FIXTURES = {"kafka", "registry", "mysql", "mariadb", "database"}
_WORKER_BYTES = 4 << 30
"""What a worker and its servers take together: Kafka, MySQL, MariaDB, a registry, Spark, the services."""

C = TypeVar("C", bound=Component)

_running = pytest.StashKey[list[Component]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _LIVE_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.live)
    # The longest first, so that no worker ends with a long one: unit tests of Spark, which are one file to
    # the scheduler, then tests of servers, then all other unit tests, deep ones last.
    items.sort(key=lambda item: (_is_short(item.path), not _is_spark(item.path), len(item.path.parts)))


def _is_short(path: Path) -> bool:
    return "unit" in path.parts and not _is_spark(path)


def _is_spark(path: Path) -> bool:
    return path.parts[-3:-1] == ("unit", "spark")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two for a core, since tests of servers wait as much as they compute, but no more than memory allows."""
    del config
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(2 * (os.cpu_count() or 1), memory // _WORKER_BYTES))


class _FilesAndSpark(LoadFileScheduling):
    """As ``--dist loadfile``, but the unit tests of Spark count as one file: they share a JVM."""

    def _split_scope(self, nodeid: str) -> str:
        spark = "tests/unit/spark/"
        return spark if nodeid.startswith(spark) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _FilesAndSpark(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    # A shell has its background jobs ignore Ctrl-C, and so would every program that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_running] = []
    if not hasattr(config, "workerinput"):
        _use_own_temporary_folder(config)


def _use_own_temporary_folder(config: pytest.Config) -> None:
    """What killed programs leave in TMPDIR goes with the run; tmp_path stays where pytest keeps it."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="millrace-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["TMPDIR"] = tempfile.tempdir = folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add to a failed test's report the end of the log of each shared server that has died."""
    report = yield
    if report.failed:
        for component in item.config.stash[_running]:
            try:
                component.check()
            except ComponentDiedError as error:
                report.sections.append((f"{component.name} has died", str(error)))
    return report


def _serve(component: C, config: pytest.Config) -> Iterator[C]:
    try:
        component.start()
    except MissingLibraryError as error:
        pytest.skip(str(error))
    config.stash[_running].append(component)
    yield component
    config.stash[_running].remove(component)
    component.close()


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[SecureKafka]:
    """A Kafka of one node, which can be reached over TLS with SASL, too."""
    yield from _serve(SecureKafka(), pytestconfig)


@pytest.fixture(scope="session")
def registry(pytestconfig: pytest.Config) -> Iterator[Registry]:
    """A schema registry."""
    yield from _serve(Registry(), pytestconfig)


@pytest.fixture(scope="session")
def mysql(pytestconfig: pytest.Config) -> Iterator[MySQL]:
    """A MySQL server with a complete binary log and GTIDs."""
    yield from _serve(MySQL(), pytestconfig)


@pytest.fixture(scope="session")
def mariadb(pytestconfig: pytest.Config) -> Iterator[MariaDB]:
    """A MariaDB server with a complete binary log."""
    yield from _serve(MariaDB(), pytestconfig)


@pytest.fixture(params=["mysql", "mariadb"])
def database(request: pytest.FixtureRequest) -> MySQL | MariaDB:
    """The test runs once on each kind of server."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(pytestconfig: pytest.Config) -> Iterator[None]:
    """Drop what the tests of a module leave on the shared servers: the next ones may look at all of it."""
    yield
    for component in pytestconfig.stash[_running]:
        if isinstance(component, MySQL | MariaDB):
            left = {name for (name,) in component.query("SHOW DATABASES")} - SYSTEM_DATABASES
            ((version,),) = component.query("SELECT VERSION()")
            reset = "RESET BINARY LOGS AND GTIDS" if version.startswith(("8.4.", "9.")) else "RESET MASTER"
            component.execute(*(f"DROP DATABASE `{name}`" for name in sorted(left)), reset)


@pytest.fixture(autouse=True)
def _same_logging() -> Iterator[None]:
    """Keep where logs go: a command within the process sends them to a stream that ends with its test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def same_signals() -> Iterator[None]:
    """Keep what signals do, where a command that takes them for itself runs within the tests' process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Print times in UTC."""
    from millrace.binlog_command.text_page import clock  # noqa: PLC0415 - few tests need it

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    clock.cache_clear()
    yield
    monkeypatch.undo()
    time.tzset()
    clock.cache_clear()


@pytest.fixture
def source_name(request: pytest.FixtureRequest) -> str:
    """A source name that no other test, in this run or another, uses."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].rstrip("-")
    return f"t-{test}-{uuid.uuid4().hex[:6]}"

"""What the reader says and logs of logs that are others than before, or of which parts cannot be read."""

import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from millrace.avro.service_state import LogIdentity, ReaderState
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.mysql.catalog import CatalogReading, Definitions
from millrace.mysql.dump import ReplicaIdentity
from millrace.mysql.errors import LinkLostError, RetriableError
from millrace.mysql.identity import LogHead, ServerNames
from millrace.mysql.position import PositionTracker
from millrace.mysql.status import LogFile, LogStatus
from millrace.reader import live, log_identity
from millrace.reader.log_identity import _is_other_server, difference_of
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.settings import ReaderSettings
from millrace.reader.stage import BadChecksumError
from millrace.runtime.health import Health
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import load_settings
from millrace.stage import Output
from services.reader import app

from .logs import GTID_PREFIX, SID, Log, Recorder, event, make, resume, whole

if TYPE_CHECKING:
    from millrace.mysql.connection import MysqlConnection

LOG = Log()
HEAD = LOG.events[0]
PREVIOUS = event(35, struct.pack("<Q", 1) + SID + struct.pack("<Qqq", 1, 1, 8), 4 + len(HEAD), LOG.timestamp)
SAME = LogIdentity(7, "8.0.15", LOG.timestamp, server_uuid="u1", previous_gtids=f"{GTID_PREFIX}:1-7")


@pytest.mark.parametrize(
    ("identity", "head", "text"),
    [
        (SAME, LogHead(HEAD, PREVIOUS), None),
        (LogIdentity(8, "8.0.15", LOG.timestamp), LogHead(HEAD, None), "server_id was 8, is 7"),
        (
            LogIdentity(7, "8.0.16", LOG.timestamp),
            LogHead(HEAD, None),
            "server_version was 8.0.16, is 8.0.15",
        ),
        (
            LogIdentity(7, "8.0.15", 5),
            LogHead(HEAD, None),
            f"the time of its beginning was 5, is {LOG.timestamp}",
        ),
        (
            LogIdentity(7, "8.0.15", LOG.timestamp, previous_gtids=f"{GTID_PREFIX}:1-3"),
            LogHead(HEAD, PREVIOUS),
            f"the GTIDs before it was {GTID_PREFIX}:1-3, is {GTID_PREFIX}:1-7",
        ),
        (SAME, LogHead(HEAD[:30], None), "the head cannot be read: the header says 123 bytes, 30 are there"),
    ],
)
def test_the_head_of_another_log(identity: LogIdentity, head: LogHead, text: str | None) -> None:
    assert difference_of(ReaderState(0, "bin.000001", 4711, identity=identity), head) == text


@pytest.mark.parametrize(
    ("identity", "names", "text"),
    [
        (SAME, ServerNames("u2", None), "server_uuid was u1, is u2"),
        (LogIdentity(7, "11.4", 0, server_uid="a"), ServerNames(None, "b"), "server_uid was a, is b"),
        (LogIdentity(8, "10.2", 0), ServerNames(None, None), "server_id was 8, is 7"),
        (SAME, ServerNames("u1", None), None),
    ],
)
def test_another_server(identity: LogIdentity, names: ServerNames, text: str | None) -> None:
    server = cast("MysqlConnection", SimpleNamespace(number=lambda _name: 7))
    assert _is_other_server(server, names, identity) == text


def logged(write: Callable[[], object]) -> list[tuple[str, str]]:
    """What is logged as warnings and errors, each with its level."""
    with capture_logs() as found:
        write()
    return [
        (entry["log_level"], entry["event"])
        for entry in found
        if entry["log_level"] in {"warning", "error", "critical"}
    ]


def written(*events: tuple[int, bytes]) -> list[tuple[str, str]]:
    log = Log()
    for type_code, body in events:
        log.add(type_code, body)
    writer = make(Recorder())
    return logged(lambda: [writer.write(whole(data)) for data in resume(writer, log)])


def test_events_that_the_reader_cannot_follow() -> None:
    assert written((26, b"\1\0\0")) == [
        ("error", "the server reports an incident: changes may be missing from its log")
    ]
    assert written((2, b"")) == [("error", "an event's part in its transaction cannot be read")]
    assert written((35, b"\7")) == [("error", "the GTIDs before this file cannot be read")]
    assert written((15, b"\4\0")) == [("error", "the format description cannot be read")]


@pytest.mark.parametrize(
    ("gap", "line", "again"),
    [
        (False, ("warning", "another log follows, in a new epoch"), "follows again, whole"),
        (True, ("error", "changes are missing; what follows is in a new epoch"), "is among what is missing"),
    ],
)
def test_another_log_follows(gap: bool, line: tuple[str, str], again: str) -> None:
    first, second, kafka = Log(), Log("log.000009"), Recorder()
    first.add(2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN")
    writer = make(kafka)

    def write() -> None:
        for data in resume(writer, first):
            writer.write(whole(data))
        writer.commit()
        writer.begin_session(PositionTracker("", 4, skips=True), changed="another", gap=gap)
        for data in second.dump():
            writer.write(whole(data))
        writer.commit()

    assert logged(write) == [line]
    assert f"transaction (without GTID) was cut; it {again}".encode() in [
        value for _, value, *_ in kafka.committed
    ]


class Source:
    """A source whose reads end so, one after the other."""

    def __init__(self, *ends: Exception) -> None:
        self.ends = list(ends)

    def open(self) -> None:
        pass

    def read(self, _timeout_s: float) -> Any:
        raise self.ends.pop(0)

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_source_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_FIRST_BACKOFF_S", 0.0)
    service = SimpleNamespace(
        settings=SimpleNamespace(files=None), stop=threading.Event(), health=Health(), log=get_logger("t")
    )
    metrics = ReaderMetrics(CollectorRegistry())
    stage = SimpleNamespace(output=Output(), state=lambda: None, confirmed=True, inside=False)
    committer = SimpleNamespace(pending=False, settle=lambda *_: {}, commit=lambda: None)
    source = Source(BadChecksumError("log.000001", 4), LinkLostError("db: it is gone"), app.EndOfFiles())
    monkeypatch.setattr(app, "LiveSource", lambda *_: source)
    loop = app._Loop(*(cast("Any", part) for part in (service, stage, committer, metrics, None)))
    loop._has_read = True
    assert logged(loop.run) == [
        ("warning", "asking for an event again"),
        ("warning", "the source is lost for now"),
    ]


def live_source(host: str) -> live.LiveSource:
    settings = load_settings(
        ReaderSettings,
        source="s",
        kafka={"bootstrap_servers": "localhost:1"},
        mysql={"host": host, "connect_timeout_s": 1},
    )
    return live.LiveSource(settings, make(Recorder()).stage, lambda: None, lambda: None)


def test_no_server_of_a_topology_can_be_read() -> None:
    source = live_source("127.0.0.1:1,127.0.0.1:2")
    with capture_logs() as found, pytest.raises(RetriableError) as caught:
        source.open()
    reasons = [
        f"127.0.0.1:{port}: cannot connect (Connection refused); check MILLRACE_MYSQL_HOST and _PORT, and "
        "that the server runs"
        for port in (1, 2)
    ]
    assert str(caught.value) == f"no server can be read: {'; '.join(reasons)}"
    assert [entry["reason"] for entry in found if entry["log_level"] == "warning"] == reasons


def test_what_could_be_better(monkeypatch: pytest.MonkeyPatch) -> None:
    source = live_source("db")
    monkeypatch.setattr(live, "check_source", lambda *_, **__: ["binlog_row_image is MINIMAL"])
    monkeypatch.setattr(live, "check_replicas", lambda *_: None)
    reading = CatalogReading(
        LogStatus("log.000001", 4, ""),
        Definitions([TableDefinition("mysql", "user", (ColumnDefinition(0, "User", "char(32)"),))]),
        whole=True,
    )
    with capture_logs() as found:
        for _ in range(2):
            source._check(cast("MysqlConnection", None))
        source._write_catalog(reading)
    assert [(entry["event"], entry["advice"]) for entry in found if entry["log_level"] == "warning"] == [
        ("the source could be set up better", "binlog_row_image is MINIMAL"),
        ("no tables can be seen", "run the GRANT that millrace doctor prints"),
    ]


def test_a_log_that_ends_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_identity, "binary_logs", lambda _: [LogFile("log.000001", 100)])
    state = ReaderState(0, "log.000001", 200)
    found = log_identity.log_mismatch(
        cast("MysqlConnection", None),
        ReplicaIdentity(7, "u", "s"),
        ServerNames(None, None),
        state,
        lambda: None,
    )
    assert found is not None
    assert found.reason == "log.000001 ends at 100"

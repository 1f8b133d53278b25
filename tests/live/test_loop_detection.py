"""Real rings of three servers, from their logs to the incidents; and healthy ones under traps."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace.contract import RawKey
from millrace.kafka.alerts import ALERTS
from millrace.kafka.read import read_topic
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.runtime.settings import KafkaSettings
from tests.live.job_world import JobWorld
from tests.service_process import wait_for
from tests.spark_session import SPARK, spark

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.timeout(2400)]

ORPHAN = 99
SAME = 1000
"""Identical inserts."""
NAMES = ("north", "east", "south")
Server = MySQL | MariaDB


def replicate(server: Server, upstream: Server, channel: str | None = None) -> None:
    """Let a server replicate from another, by position, from its end; through a channel if it has several."""
    log_file, position, *_ = upstream.query("SHOW MASTER STATUS")[0]
    before = after = ""
    if isinstance(server, MariaDB):
        before = f"'{channel}'" if channel else ""
        secure = ", MASTER_USE_GTID=no, MASTER_SSL=0, MASTER_SSL_VERIFY_SERVER_CERT=0"
    else:
        after = f"FOR CHANNEL '{channel}'" if channel else ""
        secure = "" if server.version.startswith("5.") else ", GET_MASTER_PUBLIC_KEY=1"
    server.execute(
        f"CHANGE MASTER {before} TO MASTER_HOST='{upstream.host}', MASTER_PORT={upstream.port}, "
        f"MASTER_USER='{upstream.user}', MASTER_PASSWORD='{upstream.password}', "
        f"MASTER_LOG_FILE='{log_file}', MASTER_LOG_POS={position}, "
        f"IGNORE_SERVER_IDS = () {secure} {after}",
        f"START SLAVE {before} {after}",
    )


def start_servers(stack: ExitStack, make: Callable[[int], Server], *ids: int) -> list[Server]:
    """Start servers, with a table that has a key and one that has none."""
    servers = [stack.enter_context(make(number)) for number in ids]
    for server in servers:
        server.execute(
            "SET SESSION sql_log_bin = 0",
            "CREATE DATABASE ring",
            "CREATE TABLE ring.log (text VARCHAR(40), number INT)",
            "CREATE TABLE ring.keyed (id INT PRIMARY KEY, text VARCHAR(40))",
        )
    return servers


def start_ring(
    stack: ExitStack,
    make: Callable[[int], Server],
    *ids: int,
    join: Callable[[Server, Server], None] = replicate,
) -> list[Server]:
    """Start servers that replicate in a ring, three unless their ids are given."""
    servers = start_servers(stack, make, *ids or (1, 2, 3))
    for upstream, server in zip([servers[-1], *servers], servers, strict=False):
        join(server, upstream)
    return servers


@pytest.fixture
def world(
    kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path, spark: SparkSession
) -> JobWorld:
    return JobWorld(kafka, registry, source_name, tmp_path / "results", spark)


@pytest.fixture(scope="module")
def mariadb_ring() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield start_ring(stack, lambda n: MariaDB(server_id=n, options={"gtid-strict-mode": 0}))


@pytest.fixture(scope="module")
def mysql_ring() -> Iterator[list[Server]]:
    """Without GTIDs, each server's statements as rows or as they are, as the session wants."""
    options = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", "log-slave-updates": "ON"}
    with ExitStack() as stack:
        yield start_ring(stack, lambda n: MySQL(server_id=n, options=options))


def wait_for_rows(server: Server, text: str, number: int) -> None:
    count = "SELECT COUNT(*) FROM ring.log WHERE text = %s"
    wait_for(lambda: server.query(count, [text])[0][0] >= number, None, text)


def honest_traffic(servers: Sequence[Server]) -> None:
    """Write what looks like loops and is none, and wait until it is everywhere."""
    for server, name in zip(servers, NAMES, strict=True):
        server.execute(*[f"INSERT INTO ring.log VALUES ('{name}', 1)"] * SAME)
        for _ in range(3):  # a batch that runs three times
            server.execute(*[f"INSERT INTO ring.log VALUES ('batch of {name}', {n})" for n in range(5)])
        replayed = f"INSERT INTO ring.log VALUES ('replay of {name}', 7)"
        for _ in range(3):
            server.execute("SET TIMESTAMP = 1700000000", replayed, replayed)
            time.sleep(0.4)
    north = servers[0]
    with north.connect() as connection, connection.cursor() as cursor:  # a heartbeat with a fixed TIMESTAMP
        cursor.execute("SET TIMESTAMP = 1700000000")
        for _ in range(4):
            cursor.execute("INSERT INTO ring.log VALUES ('heartbeat', 0)")
            time.sleep(0.7)
    for server in servers:
        for name in NAMES:
            wait_for_rows(server, name, SAME)
            wait_for_rows(server, f"replay of {name}", 6)
        wait_for_rows(server, "heartbeat", 4)


def stop(servers: Sequence[Server]) -> None:
    for server in servers:
        server.execute("STOP SLAVE")


def start(servers: Sequence[Server]) -> None:
    for server in servers:
        server.execute("START SLAVE")


def follow(server: Server, statement: dict[str, Any], connection: str = "") -> None:
    """Run on a server what is advised, on one of its connections if that leaves open which."""
    for sql in statement["sql"].removesuffix(";").split(";\n"):
        server.execute(sql.replace("…", connection))


def set_format(servers: Sequence[Server], binlog_format: str) -> None:
    """Change the format, for which replication must be stopped."""
    for server in servers:
        server.execute("STOP SLAVE", f"SET GLOBAL binlog_format = '{binlog_format}'")


def look(
    world: JobWorld, servers: Sequence[Server], folder: str, *options: str, names: Sequence[str] = NAMES
) -> dict[str, Any]:
    """Read what is new of all servers and run the job over all of it."""
    sources = [f"{world.source}-{name}" for name in names[: len(servers)]]
    for source, server in zip(sources, servers, strict=True):
        world.capture(server, source)
    world.folder = world.folder.with_name(folder)
    return world.job("loop_detection", *options, sources=sources)


def check_that_all_is_well(world: JobWorld, servers: Sequence[Server]) -> None:
    healthy = look(world, servers, "healthy")
    assert (healthy["verdict"], healthy["incidents"], healthy["undecidable"]) == ("healthy", [], [])
    assert healthy["topology"]["rings"] == [[f"{world.source}-{name}" for name in NAMES]]
    # From amid a log file on, whose head tells the server's id.
    later = world.job("loop_detection", "--from", "offset:5000", sources=healthy["sources"])
    assert (later["incidents"], later["undecidable"]) == ([], [])
    assert all("read only from" in one for one in later["not_compared"])
    assert later["topology"]["members"][0]["transactions"] < healthy["topology"]["members"][0]["transactions"]
    assert [one["server_ids"] for one in later["topology"]["members"]] == [[1], [2], [3]]


def check_the_loop(
    world: JobWorld, summary: dict[str, Any], servers: Sequence[Server], text: str
) -> dict[str, Any]:
    (incident,) = summary["incidents"]
    assert incident["kind"] == "loop"
    assert incident["path"] == [f"{world.source}-{name}" for name in NAMES]
    rows = "SELECT COUNT(*) FROM ring.log WHERE text = %s"
    counts = [server.query(rows, [text])[0][0] for server in servers]
    assert incident["laps"] == max(counts) - 1
    for source in incident["path"]:
        raw = {record.key.encode().decode() for record in world.raw(source)}
        of_source = {row["raw_key"] for row in world.table("evidence") if row["source"] == source}
        assert of_source
        assert of_source <= raw
        assert {RawKey.parse(key.encode()).server_id for key in of_source} == set(incident["origins"])
    page = (world.folder / "report.html").read_text()
    assert incident["raw_keys"][0] in page
    assert f"IGNORE_SERVER_IDS = ({incident['origins'][0]})" in page
    assert isinstance(incident, dict)
    return incident


def check_that_nothing_circulates(server: Server, text: str) -> None:
    count = "SELECT COUNT(*) FROM ring.log WHERE text = %s"
    before = server.query(count, [text])
    time.sleep(2)
    assert server.query(count, [text]) == before


@pytest.mark.slow
def test_mariadb(world: JobWorld, mariadb_ring: list[Server]) -> None:
    servers = mariadb_ring
    honest_traffic(servers)
    check_that_all_is_well(world, servers)

    servers[0].execute(f"SET SESSION server_id = {ORPHAN}", "INSERT INTO ring.log VALUES ('loops', 2)")
    wait_for_rows(servers[0], "loops", 12)
    stop(servers)
    time.sleep(4)
    for server in servers:
        server.execute("INSERT INTO ring.log VALUES ('after', 3)")
    incident = check_the_loop(world, look(world, servers, "loop"), servers, "loops")
    assert incident["origins"] == [ORPHAN]
    assert incident["lap_ms_at_most"] is not None
    assert incident["going"] is False
    # The statement that is advised stops it.
    follow(servers[0], incident["statements"][0])
    start(servers[1:])
    wait_for_rows(servers[0], "after", 3)
    check_that_nothing_circulates(servers[0], "loops")


@pytest.mark.slow
@pytest.mark.parametrize("binlog_format", ["ROW", "STATEMENT"])
def test_mysql_without_gtids(
    world: JobWorld, settings: KafkaSettings, mysql_ring: list[Server], binlog_format: str
) -> None:
    servers = mysql_ring
    text = f"loops as {binlog_format}"
    if binlog_format == "STATEMENT":
        set_format(servers, binlog_format)
        for server in servers:
            server.execute("SET SESSION sql_log_bin = 0", "TRUNCATE TABLE ring.log", "RESET MASTER")
        for upstream, server in zip([servers[-1], *servers], servers, strict=False):
            replicate(server, upstream)
    honest_traffic(servers)
    set_format(servers, "ROW")  # the reader reads no server whose log is to hold no rows
    check_that_all_is_well(world, servers)
    set_format(servers, binlog_format)
    start(servers)

    # A server changes its id while an event of its old id is on its way.
    servers[1].execute("STOP SLAVE")
    servers[0].execute(f"SET GLOBAL server_id = {ORPHAN}")
    servers[0].execute(f"INSERT INTO ring.log VALUES ('{text}', 2)")
    servers[0].execute("SET GLOBAL server_id = 1")
    servers[1].execute("START SLAVE")
    wait_for_rows(servers[0], text, 10)
    set_format(servers, "ROW")
    summary = look(world, servers, "loop", "--alerts")
    incident = check_the_loop(world, summary, servers, text)
    assert incident["origins"] == [ORPHAN]
    assert incident["lap_ms"] > 0
    alerts = [json.loads(message.value() or b"") for message in read_topic(settings, ALERTS)]
    (alert,) = (one for one in alerts if one.get("sources") == [f"{world.source}-{name}" for name in NAMES])
    assert alert["keys"] == incident["raw_keys"]
    assert alert.items() >= {name: incident[name] for name in ("kind", "what", "laps", "path")}.items()
    assert "wrote it with an id that it no longer has" in incident["what"]
    assert "the same original commit time, later commits" in " ".join(incident["evidence"])
    # Both statements that are advised can be run; the second, which takes the orphan's id, stops it.
    start(servers)
    (seen,) = servers[0].query("SELECT COUNT(*) FROM ring.log WHERE text = %s", [text])
    wait_for_rows(servers[0], text, seen[0] + 3)
    ignoring, adopting = incident["statements"]
    adopted, restored = adopting["sql"].split(";\n", 1)
    follow(servers[0], {"sql": adopted})
    time.sleep(1)
    follow(servers[0], {"sql": restored})
    assert servers[0].query("SELECT @@GLOBAL.server_id") == [(1,)]
    check_that_nothing_circulates(servers[0], text)
    follow(servers[0], ignoring)


def restore(
    north: Server, east: Server, join: Callable[[Server, Server], None], backup: Path, *instead: str
) -> None:
    """Restore one of two servers that replicate from each other, from files that lack its last 5 changes.

    It writes ``instead`` before the other, which has those, takes changes from it again.
    """
    join(north, east)
    join(east, north)
    for server, other in ((north, east), (east, north)):
        server.execute("INSERT INTO ring.log VALUES ('before', 1)")
        wait_for_rows(other, "before", 1)
    north.stop()
    shutil.copytree(north.data_folder, backup)
    north.start()
    east.execute("STOP SLAVE", "START SLAVE")
    north.execute(*["INSERT INTO ring.log VALUES ('lost', 1)"] * 5)
    wait_for_rows(east, "lost", 5)
    east.execute("INSERT INTO ring.log VALUES ('between', 1)")

    north.stop()
    shutil.rmtree(north.data_folder)
    shutil.copytree(backup, north.data_folder)
    north.start()
    wait_for_rows(north, "between", 1)
    east.execute("STOP SLAVE")
    join(east, north)
    if instead:
        time.sleep(2)
        north.execute(*instead)
    north.execute("INSERT INTO ring.log VALUES ('back', 1)")
    if instead:  # with auto-position east refuses, until north has given as many GTIDs as it had
        east.execute("STOP SLAVE", "START SLAVE")
    wait_for_rows(east, "back", 1)
    east.execute("INSERT INTO ring.log VALUES ('after', 1)")
    wait_for_rows(north, "after", 1)
    assert north.query("SELECT COUNT(*) FROM ring.log WHERE text = 'lost'") == [(0,)]


@pytest.mark.slow
def test_a_member_that_was_restored(world: JobWorld, tmp_path: Path) -> None:
    options = {"gtid-strict-mode": 0}
    with ExitStack() as stack:
        servers = start_servers(stack, lambda n: MariaDB(server_id=n, options=options), 1, 2)
        north, east = servers
        restore(north, east, replicate, tmp_path / "backup")
        (incident,) = look(world, servers, "restored")["incidents"]
    assert (incident["kind"], incident["origins"], incident["transactions"]) == ("restored member", [1], 5)
    assert incident["members"] == [f"{world.source}-north"]
    assert incident["statements"] == []
    raw = {record.key.encode().decode() for record in world.raw(f"{world.source}-east")}
    assert {row["raw_key"] for row in world.table("evidence")} <= raw

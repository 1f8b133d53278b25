"""Real topologies, each with a fault that is easily taken for health or for another one."""

import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, Final

import pytest

from millrace.local import MariaDB, MySQL
from tests.live.job_world import JobWorld
from tests.live.replication import replicate as replicate_by_gtid
from tests.live.test_loop_detection import (
    NAMES,
    Server,
    check_that_nothing_circulates,
    follow,
    look,
    replicate,
    start,
    start_ring,
    start_servers,
    stop,
    wait_for_rows,
    world,
)
from tests.spark_session import SPARK, spark

__all__ = ["spark", "world"]

pytestmark = [*SPARK, pytest.mark.slow, pytest.mark.timeout(2400)]

LOOSE: Final = {"gtid-strict-mode": 0}
WITHOUT_GTIDS: Final = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", "log-slave-updates": "ON"}
WITH_GTIDS: Final = {"log-slave-updates": "ON"}


def mariadb(number: int) -> MariaDB:
    return MariaDB(server_id=number, options=LOOSE)


def insert(server: Server, text: str, *numbers: int, table: str = "log") -> None:
    columns = "(text, number)" if table == "log" else "(text, id)"
    server.execute(*(f"INSERT INTO ring.{table} {columns} VALUES ('{text}', {n})" for n in numbers))


def everywhere(servers: Sequence[Server], text: str, number: int) -> None:
    for server in servers:
        wait_for_rows(server, text, number)


def kinds(summary: dict[str, Any]) -> list[str]:
    return [one["kind"] for one in summary["incidents"]]


@pytest.mark.parametrize("make", [mariadb, lambda n: MySQL(server_id=n, options=WITHOUT_GTIDS)])
def test_an_id_is_changed_while_transactions_are_in_transit(world: JobWorld, make: Any) -> None:
    with ExitStack() as stack:
        servers = start_ring(stack, make)
        for server, name in zip(servers, NAMES, strict=True):
            insert(server, name, *range(10))
        for name in NAMES:
            everywhere(servers, name, 10)
        north, east, _ = servers
        east.execute("STOP SLAVE")
        insert(north, "loops", 1, 2, 3)
        north.execute("SET GLOBAL server_id = 4")
        insert(north, "new id", 1)
        east.execute("START SLAVE")
        wait_for_rows(north, "loops", 3 * 20)
        stop(servers)  # or it would write logs without end
        summary = look(world, servers, "changed")
        (incident,) = summary["incidents"]
        for name in NAMES:
            insert(servers[NAMES.index(name)], "beside", 1)
        (statement, *_) = incident["statements"]
        follow(north, statement)
        start(servers[1:])
        everywhere(servers, "beside", 3)
        check_that_nothing_circulates(north, "loops")
        insert(north, "after", 1)
        everywhere(servers, "after", 1)
    assert (incident["kind"], incident["origins"], incident["transactions"]) == ("loop", [1], 3)
    assert incident["members"] == [f"{world.source}-{name}" for name in NAMES]
    assert statement["member"] == f"{world.source}-north"
    assert "has 4 now" in incident["what"]


@contextmanager
def writers(servers: Sequence[Server]) -> Iterator[None]:
    """Let each server write on, in a session of its own."""
    ends = threading.Event()

    def write(server: Server, name: str) -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            for number in count():
                cursor.execute(f"INSERT INTO ring.log VALUES ('{name}', {number})")
                if ends.wait(0.05):
                    return

    with ThreadPoolExecutor() as pool:
        done = [pool.submit(write, *one) for one in zip(servers, NAMES, strict=True)]
        try:
            yield
        finally:
            ends.set()
        for one in done:
            one.result()


@pytest.mark.parametrize("make", [mariadb, lambda n: MySQL(server_id=n, options=WITHOUT_GTIDS)])
def test_a_ring_that_writes_while_its_logs_are_read(world: JobWorld, make: Any) -> None:
    """It is healthy up to a point; a member that does not receive for a while, or has skipped, is told."""
    with ExitStack() as stack:
        servers = start_ring(stack, make)
        with writers(servers):
            time.sleep(60)
            busy = look(world, servers, "busy")
        for name in NAMES:
            ((number,),) = servers[NAMES.index(name)].query(
                "SELECT COUNT(*) FROM ring.log WHERE text = %s", [name]
            )
            everywhere(servers, name, number)
        quiet = look(world, servers, "quiet")
        servers[1].execute("STOP SLAVE", "SET GLOBAL sql_slave_skip_counter = 1")
        insert(servers[0], "lost", 1)
        servers[1].execute("START SLAVE")
        insert(servers[0], "after", 1)
        everywhere(servers, "after", 1)
        with writers(servers):
            time.sleep(10)
            skipped = look(world, servers, "skipped")
            servers[1].execute("STOP SLAVE")
            time.sleep(20)
            stopped = look(world, servers, "stopped")
    assert (busy["verdict"], busy["incidents"]) == ("healthy", []), busy["verdict_text"]
    assert busy["in_transit"]
    assert (quiet["verdict"], quiet["in_transit"]) == ("healthy", {}), quiet["verdict_text"]
    assert kinds(skipped) == ["missing"]
    assert skipped["incidents"][0]["transactions"] == 1
    assert kinds(stopped) == ["missing"]
    assert any("has stopped since, or lags" in one for one in stopped["not_compared"]), stopped[
        "not_compared"
    ]


def test_mariadb_rings_with_one_id_twice(world: JobWorld) -> None:
    """Of four members two have an id, and GTIDs stand for two transactions; of three two neighbours."""
    names = (*NAMES, "west")
    with ExitStack() as stack:
        servers = start_ring(stack, mariadb, 1, 2, 1, 3)
        for part in range(5):
            for server, name in zip(servers, names, strict=True):
                insert(server, name, *(part * 10 + n for n in range(10)))
            everywhere(servers, "east", (part + 1) * 10)
            everywhere(servers, "west", (part + 1) * 10)
        summary = look(world, servers, "four", names=names)
    assert kinds(summary) == ["duplicate server id"], summary
    (incident,) = summary["incidents"]
    assert incident["origins"] == [1]
    assert "Missing: " in incident["what"] or "stand for different" in incident["what"]

    three = JobWorld(world.kafka, world.registry, f"{world.source}b", world.folder, world.spark)
    with ExitStack() as stack:
        servers = start_servers(stack, mariadb, 1, 2, 1)
        for upstream, server in zip([servers[-1], *servers], servers, strict=False):
            replicate(server, upstream)
        for part in range(5):
            for server, name in zip(servers, NAMES, strict=True):
                insert(server, name, *(part * 10 + n for n in range(10)))
            wait_for_rows(servers[1], "north", (part + 1) * 10)
            wait_for_rows(servers[2], "east", (part + 1) * 10)
        summary = look(three, servers, "three")
    assert kinds(summary) == ["duplicate server id"], summary
    (incident,) = summary["incidents"]
    assert {f"{three.source}-north", f"{three.source}-south"} <= set(incident["members"])
    assert not any("…" in one["sql"] for one in incident["statements"])


def test_a_member_that_was_set_back(world: JobWorld) -> None:
    """East applies a part again; south, which reads by GTID, has executed these."""
    with ExitStack() as stack:
        servers = start_ring(stack, mariadb)
        north, east, south = servers
        replicate_by_gtid(south, east)
        log_file, position, *_ = north.query("SHOW MASTER STATUS")[0]
        for server, name in zip(servers, NAMES, strict=True):
            insert(server, name, *range(10))
        for name in NAMES:
            everywhere(servers, name, 10)
        south.execute("STOP SLAVE")
        east.execute(
            "STOP SLAVE",
            f"CHANGE MASTER TO MASTER_LOG_FILE = '{log_file}', MASTER_LOG_POS = {position}, "
            "MASTER_USE_GTID = no",
            "START SLAVE",
        )
        wait_for_rows(east, "north", 20)
        wait_for_rows(east, "south", 20)
        insert(north, "after", 1)
        wait_for_rows(east, "after", 1)
        summary = look(world, servers, "back")
    assert kinds(summary) == ["applied twice"], summary
    (incident,) = summary["incidents"]
    assert (incident["origins"], incident["transactions"]) == ([1, 3], 20)
    assert incident["members"] == [f"{world.source}-east"]
    assert "IGNORE_SERVER_IDS" not in str(incident["statements"])


@pytest.mark.parametrize("ringed", [False, True], ids=["chain", "ring"])
def test_mysql_filters_and_empty_transactions(world: JobWorld, *, ringed: bool) -> None:
    with ExitStack() as stack:
        servers = start_servers(stack, lambda n: MySQL(server_id=n, options=WITH_GTIDS), 1, 2, 3)
        north, east, south = servers
        east.execute("CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = (ring.keyed)")
        replicate_by_gtid(east, north)
        replicate_by_gtid(south, east)
        if ringed:
            replicate_by_gtid(north, south)
        insert(north, "first", *range(5))
        insert(north, "filtered", *range(18), table="keyed")
        insert(north, "second", *range(5))
        everywhere(servers, "second", 5)
        filtered = look(world, servers, "filtered")
        east.execute("STOP SLAVE")
        insert(north, "skipped", 1, 2)
        (uuid,) = north.query("SELECT @@server_uuid")[0]
        (executed,) = north.query("SELECT @@gtid_executed")[0]
        own = next(part for part in executed.replace("\n", "").split(",") if part.startswith(uuid))
        last = int(re.split("[-:]", own)[-1])
        with east.connect() as connection, connection.cursor() as cursor:
            for number in (last - 1, last):
                for sql in (f"SET gtid_next = '{uuid}:{number}'", "BEGIN", "COMMIT"):
                    cursor.execute(sql)
            cursor.execute("SET gtid_next = 'AUTOMATIC'")
        east.execute("START SLAVE")
        insert(north, "after", 1)
        everywhere(servers, "after", 1)
        both = look(world, servers, "both")
    assert kinds(filtered) == ["filtered"], filtered
    (incident,) = filtered["incidents"]
    assert (incident["transactions"], incident["tables"]) == (18, ["ring.keyed"])
    members = [f"{world.source}-{name}" for name in ("east", "south")]
    assert incident["members"] == members
    assert sorted(kinds(both)) == ["filtered", "skipped on purpose"], both
    (skipped,) = [one for one in both["incidents"] if one["kind"] == "skipped on purpose"]
    assert (skipped["transactions"], skipped["members"]) == (2, members)


def test_temporary_tables_that_were_logged_as_statements(world: JobWorld) -> None:
    with ExitStack() as stack:
        servers = start_ring(stack, mariadb)
        north = servers[0]
        insert(north, "first", *range(3))
        with north.connect() as connection, connection.cursor() as cursor:
            cursor.execute("USE ring")
            cursor.execute("SET SESSION binlog_format = STATEMENT")
            for sql in (
                "CREATE TEMPORARY TABLE some (text VARCHAR(40), number INT)",
                "INSERT INTO some VALUES ('temporary', 1)",
                "INSERT INTO some VALUES ('temporary', 2)",
                "UPDATE some SET number = number + 1",
                "INSERT INTO log SELECT * FROM some",
                "DELETE FROM some",
                "DROP TEMPORARY TABLE some",
            ):
                cursor.execute(sql)
            connection.commit()
        for server, name in zip(servers, NAMES, strict=True):
            insert(server, name, *range(3))
        for name in (*NAMES, "temporary"):
            everywhere(servers, name, 2)
        everywhere(servers, "south", 3)
        everywhere(servers, "north", 3)
        everywhere(servers, "east", 3)
        summary = look(world, servers, "temporary")
    assert (summary["verdict"], summary["incidents"]) == ("healthy", []), summary

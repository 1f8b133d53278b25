"""Real topologies with a fault, and healthy ones, beside the rings of three in test_loop_detection."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from millrace.local import MariaDB, MySQL
from tests.live.job_world import JobWorld
from tests.live.replication import replicate as replicate_by_gtid
from tests.live.test_loop_detection import (
    NAMES,
    ORPHAN,
    Server,
    check_that_all_is_well,
    check_the_loop,
    follow,
    honest_traffic,
    look,
    replicate,
    restore,
    start_ring,
    start_servers,
    stop,
    wait_for_rows,
    world,
)
from tests.servers.databases import OldMySQL
from tests.spark_session import SPARK, spark

__all__ = ["spark", "world"]

pytestmark = [*SPARK, pytest.mark.slow, pytest.mark.timeout(2400)]

WITHOUT_GTIDS: Final = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", "log-slave-updates": "ON"}
FOUR: Final = (*NAMES, "west")


def test_a_ring_of_four_with_one_id_twice(world: JobWorld) -> None:
    with ExitStack() as stack:
        servers = start_ring(stack, lambda n: MySQL(server_id=n, options=WITHOUT_GTIDS), 1, 2, 3, 2)
        for part in range(5):
            for server, name in zip(servers, FOUR, strict=True):
                server.execute(
                    *(f"INSERT INTO ring.log VALUES ('{name}', {part * 10 + n})" for n in range(10))
                )
            for server in servers:
                wait_for_rows(server, "north", (part + 1) * 10)
                wait_for_rows(server, "south", (part + 1) * 10)
        for server, name in zip(servers, FOUR, strict=True):
            time.sleep(1)
            server.execute(f"INSERT INTO ring.log VALUES ('after {name}', 1)")
        for server in servers:
            wait_for_rows(server, "after north", 1)
            wait_for_rows(server, "after south", 1)
        assert servers[3].query("SELECT COUNT(*) FROM ring.log WHERE text = 'east'") == [(0,)]
        (incident,) = look(world, servers, "four", names=FOUR)["incidents"]
        (statement,) = incident["statements"]
        follow(servers[3], statement)
        servers[3].execute("INSERT INTO ring.log VALUES ('unique', 1)")
        wait_for_rows(servers[1], "unique", 1)
    assert (incident["kind"], incident["origins"]) == ("duplicate server id", [2])
    members = [f"{world.source}-{name}" for name in FOUR]
    assert incident["what"].startswith(f"{members[1]} and {members[3]} have the same server id, 2.")
    # Of east and west each the rows, and what it wrote last.
    assert "Missing: " + ", ".join(f"51 at {member}" for member in members) in incident["what"]
    assert statement["member"] == members[3]
    assert statement["sql"].startswith("SET PERSIST server_id = 4;")


@pytest.mark.parametrize(
    "make",
    [
        lambda n: MySQL(server_id=n, options=WITHOUT_GTIDS),
        lambda n: MariaDB(server_id=n, options={"gtid-strict-mode": 0}),
    ],
    ids=["mysql", "mariadb"],
)
def test_a_diamond(world: JobWorld, make: Callable[[int], Server]) -> None:
    """A server that replicates from two that replicate from one."""
    names = ("top", "left", "right", "bottom")
    with ExitStack() as stack:
        servers = start_servers(stack, make, 1, 2, 3, 4)
        top, left, right, bottom = servers
        replicate(left, top)
        replicate(right, top)
        replicate(bottom, left, "left")
        replicate(bottom, right, "right")
        for number in range(5):
            for server, name in zip(servers, names, strict=True):
                server.execute(f"INSERT INTO ring.log VALUES ('{name}', {number})")
            time.sleep(1.1)
        for name, times in (("top", 10), ("left", 5), ("right", 5)):
            wait_for_rows(bottom, name, times)
        (incident,) = look(world, servers, "diamond", names=names)["incidents"]
    assert (incident["kind"], incident["origins"]) == ("delivered twice", [1])
    assert incident["members"] == [f"{world.source}-bottom"]
    assert incident["path"] == [f"{world.source}-{name}" for name in ("left", "right", "bottom")]
    assert incident["transactions"] == 5
    assert incident["statements"] == []  # no statement stops one path alone


def test_mysql_with_gtids(world: JobWorld) -> None:
    """A healthy ring."""
    options = {"log-slave-updates": "ON"}
    with ExitStack() as stack:
        servers = start_ring(stack, lambda n: MySQL(server_id=n, options=options), join=replicate_by_gtid)
        honest_traffic(servers)
        check_that_all_is_well(world, servers)


@pytest.mark.parametrize("join", [replicate, replicate_by_gtid], ids=["position", "auto-position"])
def test_a_restored_member_that_gives_gtids_again(
    world: JobWorld, tmp_path: Path, join: Callable[[Server, Server], None]
) -> None:
    """It does not get back what it has lost, and what it writes in its place is skipped, without an error."""
    options = {"log-slave-updates": "ON"}
    with ExitStack() as stack:
        servers = start_servers(stack, lambda n: MySQL(server_id=n, options=options), 1, 2)
        north, east = servers
        restore(north, east, join, tmp_path / "backup", *["INSERT INTO ring.log VALUES ('instead', 1)"] * 5)
        assert east.query("SELECT COUNT(*) FROM ring.log WHERE text = 'instead'") == [(0,)]
        (incident,) = look(world, servers, "restored")["incidents"]
        (statement,) = incident["statements"]
        follow(north, statement)
    assert (incident["kind"], incident["severity"]) == ("restored member", "critical")
    assert (incident["origins"], incident["transactions"]) == ([1], 5)
    assert incident["members"] == [f"{world.source}-{name}" for name in ("north", "east")]
    assert statement["member"] == f"{world.source}-north"
    raw = {
        record.key.encode().decode()
        for name in ("north", "east")
        for record in world.raw(f"{world.source}-{name}")
    }
    shown = {row["raw_key"] for row in world.table("evidence")}
    assert len(shown) >= 10  # of both that each GTID stands for
    assert shown <= raw


def test_mysql_57(world: JobWorld) -> None:
    """Without GTIDs and without commit times: a healthy ring, and an orphan that circulates."""
    with ExitStack() as stack:
        servers = start_ring(stack, lambda n: OldMySQL("mysql57", server_id=n, options=WITHOUT_GTIDS))
        honest_traffic(servers)
        check_that_all_is_well(world, servers)

        servers[1].execute("STOP SLAVE")
        servers[0].execute(f"SET GLOBAL server_id = {ORPHAN}")
        servers[0].execute("INSERT INTO ring.log VALUES ('loops', 2)")
        servers[0].execute("SET GLOBAL server_id = 1")
        servers[1].execute("START SLAVE")
        for part in range(3):  # time moves on beside it
            for server, name in zip(servers, NAMES, strict=True):
                server.execute(f"INSERT INTO ring.log VALUES ('beside {name}', {part})")
            time.sleep(1.1)
        wait_for_rows(servers[0], "loops", 10)
        stop(servers)
        incident = check_the_loop(world, look(world, servers, "loop"), servers, "loops")
    assert incident["origins"] == [ORPHAN]

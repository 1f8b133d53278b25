"""Real topologies with a fault, and healthy ones, beside the rings of three in test_loop_detection."""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from millrace.local import Kafka, MariaDB, MySQL, Registry
from tests.live.job_world import JobWorld
from tests.live.replication import replicate as replicate_by_gtid
from tests.live.test_loop_detection import (
    NAMES,
    ORPHAN,
    Server,
    check_the_loop,
    honest_traffic,
    look,
    replicate,
    start_ring,
    start_servers,
    stop,
    wait_for_rows,
)
from tests.servers.databases import OldMySQL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

WITHOUT_GTIDS: Final = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", "log-slave-updates": "ON"}
FOUR: Final = (*NAMES, "west")


def test_a_ring_of_four_with_one_id_twice(
    kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path
) -> None:
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
        world = JobWorld(kafka, registry, source_name, tmp_path)
        summary = look(world, servers, tmp_path / "four", names=FOUR)
    (incident,) = summary["incidents"]
    assert (incident["kind"], incident["origins"]) == ("duplicate server id", [2])
    members = [f"{source_name}-{name}" for name in FOUR]
    assert incident["what"].startswith(f"{members[1]} and {members[3]} have the same server id, 2.")
    # Of east and west each the rows, and what it wrote last.
    assert "Missing: " + ", ".join(f"51 at {member}" for member in members) in incident["what"]
    assert incident["statements"][0]["sql"].startswith("SET PERSIST server_id = 4;")


@pytest.mark.parametrize(
    "make",
    [
        lambda n: MySQL(server_id=n, options=WITHOUT_GTIDS),
        lambda n: MariaDB(server_id=n, options={"gtid-strict-mode": 0}),
    ],
    ids=["mysql", "mariadb"],
)
def test_a_diamond(
    kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path, make: Callable[[int], Server]
) -> None:
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
        world = JobWorld(kafka, registry, source_name, tmp_path)
        summary = look(world, servers, tmp_path / "diamond", names=names)
    (incident,) = summary["incidents"]
    assert (incident["kind"], incident["origins"]) == ("delivered twice", [1])
    assert incident["members"] == [f"{source_name}-bottom"]
    assert incident["path"] == [f"{source_name}-{name}" for name in ("left", "right", "bottom")]
    assert incident["transactions"] == 5


def test_mysql_with_gtids(kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path) -> None:
    """A healthy ring."""
    options = {"log-slave-updates": "ON"}
    with ExitStack() as stack:
        servers = start_ring(stack, lambda n: MySQL(server_id=n, options=options), join=replicate_by_gtid)
        world = JobWorld(kafka, registry, source_name, tmp_path)
        honest_traffic(servers)
        healthy = look(world, servers, tmp_path / "healthy")
        assert (healthy["verdict"], healthy["incidents"], healthy["undecidable"]) == ("healthy", [], [])
        assert healthy["topology"]["rings"] == [[f"{source_name}-{name}" for name in NAMES]]


@pytest.mark.parametrize("join", [replicate, replicate_by_gtid], ids=["position", "auto-position"])
def test_a_restored_member_that_gives_gtids_again(
    kafka: Kafka,
    registry: Registry,
    source_name: str,
    tmp_path: Path,
    join: Callable[[Server, Server], None],
) -> None:
    """It does not get back what it has lost, and what it writes in its place is skipped, without an error."""
    with ExitStack() as stack:
        servers = start_servers(
            stack, lambda n: MySQL(server_id=n, options={"log-slave-updates": "ON"}), 1, 2
        )
        north, east = servers
        for server, other in ((north, east), (east, north)):
            join(server, other)
        for server, other in ((north, east), (east, north)):
            server.execute("INSERT INTO ring.log VALUES ('before', 1)")
            wait_for_rows(other, "before", 1)
        north.stop()
        shutil.copytree(north.data_folder, tmp_path / "backup")
        north.start()
        east.execute("STOP SLAVE", "START SLAVE")
        north.execute(*["INSERT INTO ring.log VALUES ('lost', 1)"] * 5)
        wait_for_rows(east, "lost", 5)
        east.execute("INSERT INTO ring.log VALUES ('between', 1)")

        north.stop()
        shutil.rmtree(north.data_folder)
        shutil.copytree(tmp_path / "backup", north.data_folder)
        north.start()
        wait_for_rows(north, "between", 1)
        east.execute("STOP SLAVE")
        join(east, north)
        time.sleep(2)
        north.execute(*["INSERT INTO ring.log VALUES ('instead', 1)"] * 5)
        north.execute("INSERT INTO ring.log VALUES ('back', 1)")
        # With auto-position east refuses, until north has given as many GTIDs as it had.
        east.execute("STOP SLAVE", "START SLAVE")
        wait_for_rows(east, "back", 1)
        east.execute("INSERT INTO ring.log VALUES ('after', 1)")
        wait_for_rows(north, "after", 1)
        assert north.query("SELECT COUNT(*) FROM ring.log WHERE text = 'lost'") == [(0,)]
        assert east.query("SELECT COUNT(*) FROM ring.log WHERE text = 'instead'") == [(0,)]

        world = JobWorld(kafka, registry, source_name, tmp_path)
        (incident,) = look(world, servers, tmp_path / "restored")["incidents"]
        (statement,) = incident["statements"]
        north.execute(statement["sql"].rstrip(";"))
    assert (incident["kind"], incident["severity"]) == ("restored member", "critical")
    assert (incident["origins"], incident["transactions"]) == ([1], 5)
    assert incident["members"] == [f"{source_name}-{name}" for name in ("north", "east")]
    assert statement["member"] == f"{source_name}-north"
    raw = {
        record.key.encode().decode()
        for name in ("north", "east")
        for record in world.raw(f"{source_name}-{name}")
    }
    shown = {row["raw_key"] for row in world.table("evidence")}
    assert len(shown) >= 10  # of both that each GTID stands for
    assert shown <= raw


def test_mysql_57(kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path) -> None:
    """Without GTIDs and without commit times: a healthy ring, and an orphan that circulates."""
    with ExitStack() as stack:
        servers = start_ring(stack, lambda n: OldMySQL("mysql57", server_id=n, options=WITHOUT_GTIDS))
        world = JobWorld(kafka, registry, source_name, tmp_path)
        honest_traffic(servers)
        healthy = look(world, servers, tmp_path / "healthy")
        assert (healthy["verdict"], healthy["incidents"], healthy["undecidable"]) == ("healthy", [], [])
        assert healthy["topology"]["rings"] == [[f"{source_name}-{name}" for name in NAMES]]

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
        incident = check_the_loop(world, look(world, servers, tmp_path / "loop"), servers, "loops")
    assert incident["origins"] == [ORPHAN]

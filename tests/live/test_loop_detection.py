"""A real loop of two MariaDB servers, from their logs to the finding; and a ring that is healthy."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.contract import RawKey
from millrace.local import Kafka, MariaDB, MySQL, Registry
from tests.live.job_world import JobWorld

pytestmark = pytest.mark.timeout(1800)

ORPHAN = 99


@pytest.fixture(scope="module")
def ring() -> Iterator[tuple[MariaDB, MariaDB]]:
    """Two servers that replicate from each other, with a table without a key."""
    options = {"gtid-strict-mode": 0}
    with MariaDB(server_id=1, options=options) as north, MariaDB(server_id=2, options=options) as south:
        for server in (north, south):
            server.execute(
                "SET SESSION sql_log_bin = 0",
                "CREATE DATABASE ring",
                "CREATE TABLE ring.log (text VARCHAR(40), number INT)",
            )
        for server, other in ((north, south), (south, north)):
            server.execute(
                f"CHANGE MASTER TO MASTER_HOST='{other.host}', MASTER_PORT={other.port}, "
                f"MASTER_USER='{other.user}', MASTER_PASSWORD='{other.password}', MASTER_USE_GTID=no, "
                "MASTER_SSL=0, MASTER_SSL_VERIFY_SERVER_CERT=0",
                "START SLAVE",
            )
        yield north, south


def wait_for_rows(server: MariaDB | MySQL, text: str, number: int) -> None:
    deadline = time.monotonic() + 240
    while server.query("SELECT COUNT(*) FROM ring.log WHERE text = %s", [text])[0][0] < number:
        assert time.monotonic() < deadline, f"{text} does not get there"
        time.sleep(0.05)


def test_a_loop_is_found_and_a_healthy_ring_is_quiet(
    kafka: Kafka, registry: Registry, source_name: str, ring: tuple[MariaDB, MariaDB], tmp_path: Path
) -> None:
    north, south = ring
    world = JobWorld(kafka, registry, source_name, tmp_path / "healthy")
    for server, other, text in ((north, south, "from north"), (south, north, "from south")):
        server.execute(*[f"INSERT INTO ring.log VALUES ('{text}', 1)"] * 3)
        wait_for_rows(other, text, 3)
    world.capture(north)
    healthy = world.job("loop_detection")
    assert healthy["findings"] == []
    assert healthy["undecidable"] == []
    assert {origin["server_id"]: origin["known"] for origin in healthy["origins"]} == {1: True, 2: True}

    north.execute(f"SET SESSION server_id = {ORPHAN}", "INSERT INTO ring.log VALUES ('loops', 2)")
    wait_for_rows(north, "loops", 12)
    for server in ring:
        server.execute("STOP SLAVE")
    north.execute("INSERT INTO ring.log VALUES ('after', 3)")
    laps = north.query("SELECT COUNT(*) FROM ring.log WHERE text = 'loops'")[0][0] - 1
    assert laps > 10

    sources = [f"{source_name}-north", f"{source_name}-south"]
    for source, server in zip(sources, ring, strict=True):
        world.capture(server, source)
    world.folder = tmp_path / "loop"
    summary = world.job("loop_detection", sources=sources)
    found = {(finding["source"], finding["kind"]): finding for finding in summary["findings"]}
    assert len(found) == len(summary["findings"]) == 4
    repeated = found[sources[0], "repeated transaction"]
    assert (repeated["server_id"], repeated["evidence"]) == (ORPHAN, "the same GTID")
    assert repeated["laps"] == laps
    assert repeated["tables"] == ["ring.log"]
    assert 0 < repeated["lap_ms_at_most"] < 5_000
    assert found[sources[0], "origin outside the known servers"]["server_id"] == ORPHAN

    # The keys of the finding are those of the raw events of the orphan, all of them.
    raw = [record.key for record in world.raw(sources[0]) if record.key.server_id == ORPHAN]
    events = [event for event in world.table("finding_events") if event["finding"] == repeated["finding"]]
    keys = [RawKey.parse(event["raw_key"].encode()) for event in sorted(events, key=lambda e: e["offset"])]
    assert keys == raw
    assert {event["lap"] for event in events} == set(range(laps + 1))
    assert (repeated["first_key"].encode(), repeated["last_key"].encode()) == (
        raw[0].encode(),
        raw[-1].encode(),
    )
    page = (tmp_path / "loop" / "report.html").read_text()
    assert repeated["transaction"] in page
    assert repeated["last_key"] in page


@pytest.fixture
def ring_without_gtids() -> Iterator[tuple[MySQL, MySQL]]:
    """Two MySQL servers that replicate from each other by file and position."""
    options = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", "log-slave-updates": "ON"}
    with MySQL(server_id=1, options=options) as north, MySQL(server_id=2, options=options) as south:
        for server in (north, south):
            server.execute(
                "SET SESSION sql_log_bin = 0",
                "CREATE DATABASE ring",
                "CREATE TABLE ring.log (text VARCHAR(40), number INT)",
            )
        for server, other in ((north, south), (south, north)):
            log_file, position, *_ = other.query("SHOW MASTER STATUS")[0]
            server.execute(
                f"CHANGE MASTER TO MASTER_HOST='{other.host}', MASTER_PORT={other.port}, "
                f"MASTER_USER='{other.user}', MASTER_PASSWORD='{other.password}', "
                f"MASTER_LOG_FILE='{log_file}', MASTER_LOG_POS={position}, GET_MASTER_PUBLIC_KEY=1",
                "START SLAVE",
            )
        yield north, south


def test_a_loop_without_gtids_is_told_from_equal_inserts(
    kafka: Kafka,
    registry: Registry,
    source_name: str,
    ring_without_gtids: tuple[MySQL, MySQL],
    tmp_path: Path,
) -> None:
    north, south = ring_without_gtids
    north.execute(*["INSERT INTO ring.log VALUES ('honest', 1)"] * 5)
    wait_for_rows(south, "honest", 5)
    # A server changes its id while an event of its old id is on its way.
    south.execute("STOP SLAVE")
    north.execute(f"SET GLOBAL server_id = {ORPHAN}")
    north.execute("INSERT INTO ring.log VALUES ('loops', 2)")
    north.execute("SET GLOBAL server_id = 1")
    south.execute("START SLAVE")
    wait_for_rows(north, "loops", 10)
    for server in ring_without_gtids:
        server.execute("STOP SLAVE")
    laps = north.query("SELECT COUNT(*) FROM ring.log WHERE text = 'loops'")[0][0] - 1
    world = JobWorld(kafka, registry, source_name, tmp_path)
    world.capture(north)
    summary = world.job("loop_detection", "--servers", "1,2")
    repeated = [finding for finding in summary["findings"] if finding["kind"] == "repeated transaction"]
    assert [(finding["server_id"], finding["laps"]) for finding in repeated] == [(ORPHAN, laps)]
    assert repeated[0]["evidence"] == "the same original commit time, later commits"
    assert summary["undecidable"] == []

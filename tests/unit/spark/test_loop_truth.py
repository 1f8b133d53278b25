"""Topologies whose truth is known, each with a fault: none of them is ever called healthy."""

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from pyspark.sql import SparkSession

from millrace.binlog.events import MariadbGtidEvent, XidEvent
from millrace.binlog.types import HeaderFlag
from spark_jobs.loops.incidents import Incident
from spark_jobs.loops.presence import AFTER, BEFORE
from spark_jobs.loops.report import Findings, _doubts, verdict
from tests.spark_session import SPARK
from tests.unit.spark.members import Server, look, ring, settle, traffic
from tests.unit.spark.topologies import FAULTY, MARIADB, MYSQL, NO_FAULT, SOUND, three, write_all

pytestmark = SPARK


def named(findings: Findings, servers: Sequence[Server]) -> list[str]:
    """What is said of a topology: kinds of incidents, and why what was not compared."""
    names = {server.name for server in servers}
    return sorted(
        [one.kind for one in of(findings, servers)]
        + [one.why for one in findings.uncompared if one.member in names]
        + ["gap" for one in findings.gaps if one.source in names]
    )


def test_never_green_where_logs_differ(spark: SparkSession) -> None:
    """Each fault is said of its own topology, beside others, and of one without a fault nothing is."""
    others = [SOUND[name](n) for n, name in enumerate(QUICK_SOUND, 14)]
    sound = [three(10), three(11, MYSQL), three(12, MYSQL, gtids=False)]
    sound[1][2].log.database = "renamed"  # replicate-rewrite-db
    faults = [three(n, MYSQL if n % 2 else MARIADB) for n in range(1, 7)]
    late, early, gap, own, stopped, purged = faults
    nameless = three(13)
    traffic(nameless)
    settle(nameless)
    nameless[0].log.records = nameless[0].log.records[2:]
    use_temporary_tables(sound[0][0])
    for server in sound[0][1:]:
        server.log.add(MariadbGtidEvent(2, 7, 0), server_id=sound[0][0].server_id)  # as MySQL, empty
        server.log.statement("COMMIT", server_id=sound[0][0].server_id)
    for servers in (*sound, *faults):
        traffic(servers)
        settle(servers)
    late[1].log.records = late[1].log.records[:1] + late[1].log.records[40:]
    early[1].log.records = early[1].log.records[: len(early[1].log.records) // 2]
    gap[1].log.gap()
    own[0].write(1110, "errant")  # the last of its log
    for second in range(1110, 1114):
        for server in (stopped[0], stopped[1]):
            server.write(second, f"{server.name} {second}")
        stopped[2].pull()
        stopped[0].pull()
    purged[2].log.records = purged[2].log.records[:1] + purged[2].log.records[23:]
    findings = look(spark, [one for servers in (*sound, *others, *faults, nameless) for one in servers])
    assert findings.incidents == []
    assert [named(findings, servers) for servers in others] == [[]] * len(others)
    assert [named(findings, servers) for servers in sound] == [[], [], []]
    told = [set(named(findings, servers)) for servers in faults]
    assert told == [{BEFORE}, {AFTER}, {"gap"}, {AFTER}, {AFTER}, {BEFORE}]
    assert verdict(findings)[::2] == ("not compared", "doubt")
    unknown, text = [text for _, text in _doubts(findings)]
    assert "the server id of a13 is not known" in unknown
    for part in ("gap at bin.000001", "was read only from", "was read only to", "has stopped since, or lags"):
        assert part in text


def busy(servers: Sequence[Server], *, seconds: int = 12, skips: int | None = None) -> None:
    """Read the logs one after another while all write, and replication is some transactions behind."""
    read: dict[str, Sequence[tuple[object, ...]]] = {}
    for second in range(1100, 1100 + seconds):
        for number in range(4):
            for server in servers:
                server.write(second, f"{server.name} {second} {number}")
            if (second, number) == (1100 + seconds // 2, 1) and skips is not None:
                servers[skips].taken[servers[skips].upstream[0].name] += 1
            for server in servers:
                server.pull(2 if number == 2 else 6)
        if second > 1100 + seconds - len(servers):  # the last one is read where writing ends
            server = servers[second - 1100 - seconds]
            read[server.name] = list(server.log.records)
    for server in servers:
        server.log.records = list(read.get(server.name, server.log.records))


def test_a_busy_ring_is_healthy_up_to_a_point(spark: SparkSession) -> None:
    """Nothing that is lost below that point hides behind what is on its way."""
    rings = [three(10), three(11, MYSQL), three(12, MYSQL, gtids=False), three(13, "5.7.22", gtids=False)]
    for servers in rings:
        busy(servers)
    findings = look(spark, [one for servers in rings for one in servers])
    word, text, mood = verdict(findings)
    assert (word, mood) == ("healthy", "good"), text
    assert findings.transit
    assert "Compared up to 1970-01-01 00:18:" in text
    assert {one.member for one in findings.transit} <= {one.name for servers in rings for one in servers}

    lost = [three(1), three(2, MYSQL), three(3, MYSQL, gtids=False)]
    for number, servers in enumerate(lost):
        busy(servers, skips=number)
    silent, errant, stopped = three(4), three(5), three(6)
    busy(silent)
    silent[1].log.records = silent[1].log.records[: len(silent[1].log.records) // 2]
    traffic(errant)
    settle(errant)
    errant[0].write(1115, "long after all others")
    traffic(stopped)
    for second in range(1106, 1112):
        for server in stopped:
            server.write(second, f"{server.name} {second}")
        stopped[1].pull()
        stopped[2].pull()
    every = [*lost, silent, errant, stopped]
    findings = look(spark, [one for servers in every for one in servers])
    kinds = [[one.kind for one in of(findings, servers)] for servers in every]
    assert kinds == [["missing"], ["missing"], ["missing"], [], [], []]
    assert [AFTER in named(findings, servers) for servers in every[3:]] == [True] * 3


def use_temporary_tables(server: Server) -> None:
    """A session logs statements; the members that log rows log nothing of its temporary table."""
    statements = (
        "CREATE TEMPORARY TABLE some (a INT)",
        "INSERT INTO some VALUES (1)",
        "UPDATE some SET a = 2",
        "DROP TEMPORARY TABLE some",
    )
    for number, text in enumerate(statements, 1):
        more = {"server_id": server.server_id, "timestamp": 1101}
        server.log.add(MariadbGtidEvent(number, 7, 0), **more)
        server.log.statement(text, thread_id=5, flags=HeaderFlag.THREAD_SPECIFIC_F, **more)
        server.log.add(XidEvent(number), **more)


def in_flight(servers: Sequence[Server]) -> None:
    """A server's id is changed (SET GLOBAL) while its transactions are in transit."""
    write_all(servers, 1100, 6)
    for number in range(3):
        servers[0].write(1106, f"in flight {number}")
    servers[0].server_id += 5
    servers[0].write(1107, "with the new id")
    for second in range(1107, 1120):
        for server in servers[1:]:
            server.write(second, f"{server.name} {second}")
        for server in servers:
            server.pull()


def share_an_id(tens: int, *ids: int) -> Sequence[Server]:
    """Rings with an id twice: no server replicates from one with its own id."""
    names = zip("abcd", ids, strict=False)
    made = [Server(f"{name}{tens}", 10 * tens + n, MARIADB, gtids=True) for name, n in names]
    ring(*made)
    for server in made:
        server.upstream = [one for one in server.upstream if one.server_id != server.server_id]
    for second in range(1100, 1110):
        for server in made:
            server.write(second, f"{server.name} {second}")
        for server in made:
            server.pull()
    settle(made)
    return made


def rewound(servers: Sequence[Server]) -> None:
    """A member's replication is set back; the one behind it has executed these GTIDs."""
    write_all(servers, 1100, 6)
    a, b, c = servers
    again = [one for one in b.entries if one.origin in (a.server_id, c.server_id)][:5]
    for change in again:
        b._append(change, 1)
    c.taken[b.name] = len(b.entries)
    write_all(servers, 1110, 4)


def restored_early(tens: int) -> Sequence[Server]:
    """What a member wrote right after its backup is lost: before anything of others came."""
    a, b, c = three(tens)
    write_all([a, b, c], 1100, 3)
    before = max(one.seq_no or 0 for one in a.entries)
    taken = dict(a.taken)
    for n in range(6):
        a.write(1105, f"lost {n}")
    settle([a, b, c])
    listed = [(server.server_id, before) for server in (a, b, c)]
    fresh = Server(a.name, a.server_id, MARIADB, started=1200, gtids=True, listed=listed)
    fresh.upstream, fresh.taken = a.upstream, taken
    b.upstream, b.taken = [fresh], {}
    traffic([b, c], 1205, 1)
    settle([b, c, fresh])
    write_all([b, c, fresh], 1210, 3)
    return fresh, b, c


def emptied(servers: Sequence[Server], *, on_purpose: bool, filters: bool = False) -> None:
    """A filter, or an empty transaction that was executed in place of one, on a chain or a ring."""
    a, b, _ = servers
    if not on_purpose:
        b.leaves_out = ["keyed"]
    if filters:
        b.leaves_out = ["wide"]
        a.write(1099, "left out", table="wide")
    write_all(servers, 1100, 6)
    for n in range(3):
        change = a.write(1106, f"for some {n}", table="keyed")
        if on_purpose:
            b._append(replace(change, empty=True, origin=b.server_id, time=1200), 0)
    write_all(servers, 1110, 4)
    if on_purpose:
        for server in servers:
            server.write(1120, "as before", table="keyed")
        settle(servers)


def test_each_fault_is_its_own_incident(spark: SparkSession) -> None:
    changed, dated, back = three(1), three(2, MYSQL, gtids=False), three(3)
    undated = three(0, "5.7.22-log", gtids=False)
    in_flight(undated)
    in_flight(changed)
    in_flight(dated)
    rewound(back)
    twice, pair = share_an_id(4, 1, 2, 1, 3), share_an_id(5, 1, 2, 1)
    lost = restored_early(6)
    filtered, skipped = three(7, MYSQL), three(8, MYSQL)
    chain = three(9, MYSQL)
    chain[0].upstream = []
    emptied(filtered, on_purpose=False)
    emptied(skipped, on_purpose=True, filters=True)
    emptied(chain, on_purpose=True)
    every = [changed, dated, back, twice, pair, lost, filtered, skipped, chain]
    findings = look(spark, [one for servers in (*every, undated) for one in servers])
    assert of(findings, undated) == []
    assert {row.origin for row in findings.undecidable} == {1}
    kinds = [[one.kind for one in of(findings, servers)] for servers in every]
    assert kinds == [
        ["loop"], ["loop"], ["applied twice"], ["duplicate server id"], ["duplicate server id"],
        ["restored member"], ["filtered"], ["skipped on purpose", "filtered"],
        ["skipped on purpose"],
    ]  # fmt: skip
    assert verdict(findings)[0] == "incidents"
    by_name = {servers[0].name: of(findings, servers)[0] for servers in every}
    assert by_name["a1"].what.endswith(
        "a1 had this id and has 16 now: no member drops events that were in transit with the old id."
    )
    assert (by_name["a3"].members, by_name["a3"].transactions) == (["b3"], 5)
    assert "10 GTIDs stand for different transactions" in by_name["a4"].what
    assert by_name["a5"].members[:2] == ["a5", "c5"]
    assert (by_name["a6"].members, by_name["a6"].transactions) == (["a6"], 6)
    assert by_name["a7"].transactions == 3
    assert by_name["a8"].members == ["b8", "c8"]
    assert "are not on b9 and c9" in by_name["a9"].what
    live = {server.server_id for servers in every for server in servers}
    for one in findings.incidents:
        for statement in one.statements:
            ignored = re.findall(r"IGNORE_SERVER_IDS = \(([^)]+)\)", statement.sql)
            assert not live & {int(server_id) for server_id in ignored}, statement


def of(findings: Findings, servers: Sequence[Server]) -> list[Incident]:
    names = {server.name for server in servers}
    return [one for one in findings.incidents if names & set(one.members)]


QUICK_SOUND = ["LOAD DATA in 5.7.22-log without GTIDs", "RESET MASTER in MariaDB"]
EVERY = [*SOUND, *FAULTY]


@pytest.mark.slow
@pytest.mark.parametrize("names", [EVERY[at : at + 12] for at in range(0, len(EVERY), 12)], ids=len)
def test_known_truths(spark: SparkSession, names: Sequence[str]) -> None:
    made = [(SOUND.get(name) or FAULTY[name][0])(tens) for tens, name in enumerate(names, 1)]
    findings = look(spark, [server for servers in made for server in servers])
    told = {name: set(named(findings, servers)) - NO_FAULT for name, servers in zip(names, made, strict=True)}
    assert told == {name: set() if name in SOUND else FAULTY[name][1] for name in names}
    live = {server.server_id for servers in made for server in servers}
    for statement in (statement for one in findings.incidents for statement in one.statements):
        ignored = re.findall(r"IGNORE_SERVER_IDS = \(([^)]+)\)", statement.sql)
        assert not live & {int(server_id) for server_id in ignored}, statement


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_topologies(spark: SparkSession, seed: int) -> None:
    """Of topologies with faults at random, each with one is told of, and each without one is not."""
    random = Random(seed)
    every, faulty = [], []
    for tens in range(1, 11):
        version = random.choice([MARIADB, MYSQL])
        servers = three(tens, version, gtids=version == MARIADB or random.random() < 0.7)
        seconds = random.randint(3, 8)
        traffic(servers, 1100, seconds)
        settle(servers)
        victim = random.choice(servers)
        fault = random.choice(["none", "none", "skip", "begins", "ends", "gap", "alone", "again"])
        if fault == "skip":
            source = victim.upstream[0]
            source.write(1110, "skipped")
            victim.taken[source.name] += 1
        elif fault == "alone":
            victim.write(1111, "alone")
            for other in servers:
                if victim in other.upstream:
                    other.taken[victim.name] += 1
        elif fault == "again":
            victim._append(next(one for one in victim.entries if one.origin != victim.server_id), 1)
        traffic(servers, 1112, 3)
        settle(servers)
        records = victim.log.records
        if fault == "begins":
            victim.log.records = records[:1] + records[random.randint(8, len(records) // 2) :]
        elif fault == "ends":
            victim.log.records = records[: -random.randint(6, len(records) // 2)]
        elif fault == "gap":
            victim.log.gap()
        every.append(servers)
        faulty.append(fault != "none")
    findings = look(spark, [one for servers in every for one in servers])
    assert [bool(named(findings, servers)) for servers in every] == faulty
    assert (verdict(findings)[0] == "healthy") is not any(faulty)

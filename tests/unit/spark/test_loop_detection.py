"""Loop detection over simulated topologies: what is wrong is one incident, what is healthy is silent."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from spark_jobs.loops.incidents import Incident
from spark_jobs.loops.report import Findings, verdict
from tests.spark_session import SPARK
from tests.unit.spark.members import Server, look, ring, settle, traffic

pytestmark = SPARK


def three(version: str = "5.7.22-log") -> Sequence[Server]:
    return ring(*(Server(name, n, version) for n, name in enumerate(["north", "east", "south"], 1)))


def only(findings: Findings) -> Incident:
    assert [one.kind for one in findings.incidents] == [findings.incidents[0].kind]
    return findings.incidents[0]


def test_a_healthy_ring_under_traps_is_silent(spark: SparkSession) -> None:
    servers = three()
    north, east, _ = servers
    traffic(servers)
    for _ in range(30):  # identical inserts of one session within a second, into a table without a key
        north.write(1106, "same")
    for _ in range(3):  # a batch, run three times by its own session
        for number in range(5):
            north.write(1107, "batch", number=number, thread_id=7)
    for second in range(1108, 1116):  # a heartbeat that sets its TIMESTAMP, and a replay that does
        east.write(900, "heartbeat", thread_id=9)
        east.write(900, "INSERT INTO log VALUES (1, 'replayed')", statement=True, thread_id=second)
        traffic(servers, second, 1)
    settle(servers)
    findings = look(spark, servers, cuts=3)
    assert findings.incidents == []
    assert findings.undecided == 0
    assert verdict(findings)[0] == "healthy"
    assert verdict(replace(findings, unread=2))[:2] == (
        "doubt", "Nothing circulates in what could be read, but 2 records could not."
    )  # fmt: skip
    assert findings.facts.topology.rings == [("north", "east", "south")]
    assert findings.facts.topology.sure


def test_logs_that_begin_later_or_end_earlier_lack_nothing(spark: SparkSession) -> None:
    servers = three()
    north, east, _ = servers
    traffic(servers)
    settle(servers)
    for second in range(1110, 1114):  # south stands still, and east's log is read from here on
        north.write(second, f"north {second}")
        east.write(second, f"east {second}")
        north.pull()
        east.pull()
    east.log.records = east.log.records[:1] + east.log.records[40:]
    findings = look(spark, servers)
    assert findings.incidents == []


def test_an_orphan_that_circulates_as_rows(spark: SparkSession) -> None:
    servers = three()
    traffic(servers)
    servers[0].write(1106, "loops", origin=99)
    for second in range(1107, 1112):
        traffic(servers, second, 1)
    findings = look(spark, servers, cuts=3)
    incident = only(findings)
    assert (incident.kind, incident.origins, incident.path) == ("loop", [99], ["north", "east", "south"])
    assert incident.severity == "critical"
    assert "No member has this id" in incident.what
    assert incident.laps >= 3
    assert incident.statements[0].sql == (
        "STOP SLAVE;\nCHANGE MASTER TO IGNORE_SERVER_IDS = (99);\nSTART SLAVE;"
    )
    assert all(key.startswith("99:0:bin.000001:") for key in findings.keys[1])
    assert verdict(findings) == ("incidents", "One incident: loop.", "bad")


def test_an_orphan_that_circulates_as_statements_with_commit_times(spark: SparkSession) -> None:
    servers = three("8.0.30")
    servers[1].write(1100, "UPDATE log SET n = n + 1", origin=99, statement=True, committed_us=1_100_000_000)
    settle(servers, 5)
    incident = only(look(spark, servers))
    assert (incident.kind, incident.lap_ms) == ("loop", 6.9)
    assert incident.going
    assert incident.what.startswith("One transaction of server 99 circulates through north, east and south")
    assert "east wrote it with an id that it no longer has" in incident.what
    assert incident.statements[0].sql.startswith("STOP REPLICA;\nCHANGE REPLICATION SOURCE TO IGNORE_SERVER")


def test_a_server_id_that_changes_while_its_transactions_are_on_their_way(spark: SparkSession) -> None:
    servers = three()
    north, east, _ = servers
    traffic(servers)
    settle(servers)
    north.write(1110, "on its way")
    east.pull()
    north.server_id = 11
    north.log.next_file()
    north._describe()
    for second in range(1111, 1116):
        traffic(servers, second, 1)
    incident = only(look(spark, servers))
    assert (incident.kind, incident.origins) == ("loop", [1])
    assert "north had this id and has 11 now" in incident.what


def test_two_members_with_one_id(spark: SparkSession) -> None:
    names = [("north", 1), ("east", 2), ("south", 1), ("west", 4)]
    servers = ring(*(Server(name, server_id) for name, server_id in names))
    for second in range(1100, 1150):
        for server in servers:
            server.write(second, f"{server.name} {second}")
        for server in servers:
            server.pull()
    settle(servers)
    incident = only(look(spark, servers))
    assert (incident.kind, incident.origins) == ("duplicate server id", [1])
    assert incident.what.startswith("north and south have the same server id, 1.")
    assert "Missing: 50 at north, 50 at east, 50 at south, 50 at west." in incident.what
    assert incident.statements[0].member == "south"
    assert "SET GLOBAL server_id = 5;" in incident.statements[0].sql


def test_150_of_200_rows_that_are_missing_on_every_member(spark: SparkSession) -> None:
    servers = ring(*(Server(name, 1) for name in ("north", "east", "south", "west")))
    for second in range(1100, 1150):
        for server in servers:
            server.write(second, f"{server.name} {second}")
        for server in servers:
            server.pull()
    incident = only(look(spark, servers))
    assert incident.kind == "duplicate server id"
    assert "Missing: 150 at north, 150 at east, 150 at south, 150 at west." in incident.what


def test_somebody_who_was_not_read_writes_with_the_id_of_a_member(spark: SparkSession) -> None:
    servers = three()
    for second in range(1100, 1108):
        traffic(servers, second, 1)
        servers[1].write(second, f"of another {second}", origin=1)
    settle(servers)
    incident = only(look(spark, servers))
    assert (incident.kind, incident.members) == ("duplicate server id", ["north"])
    assert "Another server writes with the id of north, 1" in incident.what
    assert incident.transactions >= 6


def test_a_restored_member_that_skips_what_it_wrote_after_the_backup(spark: SparkSession) -> None:
    north, east = ring(Server("north", 1, "10.11.6-MariaDB"), Server("east", 2, "10.11.6-MariaDB"))
    number = 0
    for second in range(1100, 1110):
        for server in (north, east):
            number += 1
            server.write(second, f"{server.name} {second}", seq_no=number)
        north.pull()
        east.pull()
    restored = Server("north", 1, "10.11.6-MariaDB", started=1200, listed=[(1, 9), (2, 10)])
    restored.upstream, restored.taken = [east], {"east": 10}
    restored.pull()
    restored.write(1201, "north is back", seq_no=number + 1)
    east.upstream = [restored]
    east.pull()
    east.write(1202, "after", seq_no=number + 2)
    restored.pull()
    incident = only(look(spark, [restored, east]))
    assert (incident.kind, incident.severity, incident.origins) == ("restored member", "critical", [1])
    assert incident.members == ["north"]
    assert incident.transactions == 5
    assert "does not list them as executed" in incident.what


def test_a_restored_member_that_has_its_old_log(spark: SparkSession) -> None:
    north, east = ring(Server("north", 1), Server("east", 2))
    traffic([north, east], 1100, 3)
    restored = Server("north", 1, upstream=[east], taken=dict(north.taken))
    for change, hops in zip(list(north.entries), list(north.hops), strict=True):
        restored._append(change, hops)
    traffic([north, east], 1103, 4)  # what north writes here is not in the backup
    east.pull()
    restored.pull()
    east.upstream, east.taken = [restored], {"north": len(restored.entries)}
    traffic([restored, east], 1200, 3)
    settle([restored, east])
    incident = only(look(spark, [restored, east]))
    assert (incident.kind, incident.severity, incident.transactions) == ("restored member", "critical", 4)
    assert "it has what it wrote before and after them, and nothing in between" in incident.what


def test_what_a_diamond_delivers_twice(spark: SparkSession) -> None:
    top, left, right, bottom = (Server(n, i) for i, n in enumerate(["top", "left", "right", "bottom"], 1))
    left.upstream = right.upstream = [top]
    bottom.upstream = [left, right]
    for second in range(1100, 1105):
        for server in (top, left, right, bottom):
            server.write(second, f"{server.name} {second}")
        for server in (top, left, right, bottom):
            server.pull()
    settle([left, right, bottom])
    incident = only(look(spark, [top, left, right, bottom]))
    assert (incident.kind, incident.origins, incident.members) == ("delivered twice", [1], ["bottom"])
    assert incident.transactions == 5
    assert incident.path == ["left", "right", "bottom"]
    assert incident.statements[0].sql == (
        "STOP SLAVE FOR CHANNEL 'right';\nCHANGE MASTER TO IGNORE_SERVER_IDS = (1) FOR CHANNEL 'right';\n"
        "START SLAVE FOR CHANNEL 'right';"
    )


def test_what_a_member_skips(spark: SparkSession) -> None:
    servers = three()
    traffic(servers)
    settle(servers)
    servers[0].write(1107, "lost")
    servers[1].taken["north"] += 1  # sql_slave_skip_counter
    traffic(servers, 1108, 3)
    settle(servers)
    incident = only(look(spark, servers))
    assert (incident.kind, incident.origins, incident.members) == ("missing", [1], ["east", "south"])
    assert incident.transactions == 1
    assert incident.statements[0].member == "east"


def test_an_origin_that_never_arrives(spark: SparkSession) -> None:
    servers = three()
    servers[2].ignores = [1]
    traffic(servers)
    settle(servers)
    incident = only(look(spark, servers))
    assert (incident.kind, incident.origins, incident.members) == ("missing", [1], ["south"])
    assert "Nothing of this origin arrives" in incident.what


def test_what_arrives_in_another_order_is_not_missing(spark: SparkSession) -> None:
    north, east = Server("north", 1), Server("east", 2)
    east.upstream = [north]
    for second in range(1100, 1112):
        north.write(second, f"north {second}")
    late, later = north.entries.pop(3), north.entries.pop(6)
    north.entries = [*north.entries[:5], late, *north.entries[5:]]  # as east applies it, with several workers
    assert later not in north.entries  # and one of them is not ready where the log ends
    east.pull(8)
    incident = only(look(spark, [north, east]))
    assert (incident.kind, incident.origins, incident.severity) == ("another order", [1], "doubt")


def test_one_log_alone_decides_what_it_can(spark: SparkSession) -> None:
    servers = three()
    for second in range(1100, 1106):
        servers[0].write(second, f"other {second}")
        servers[0].write(900, "heartbeat of south", origin=3)
        servers[0].write(second, f"south {second}", origin=3)
    findings = look(spark, servers[:1])
    assert findings.incidents == []
    assert verdict(findings)[0] == "undecidable"


@pytest.mark.parametrize(
    ("prepare", "word"),
    [
        (lambda servers: None, "nothing read"),
        (lambda servers: [server.write(1100, server.name) for server in servers], "not compared"),
    ],
)
def test_never_green_on_nothing(
    spark: SparkSession, prepare: Callable[[Sequence[Server]], None], word: str
) -> None:
    servers = three()
    prepare(servers)
    findings = look(spark, servers)
    assert (verdict(findings)[0], verdict(findings)[2]) == (word, "doubt")


def test_an_id_outside_those_that_are_named(spark: SparkSession) -> None:
    servers = three()
    traffic(servers)
    servers[0].write(1109, "stray", origin=77)
    servers[0].pull()
    servers[1].pull()
    incident = only(look(spark, servers, named=[1, 2, 3]))
    assert (incident.kind, incident.origins) == ("unknown origin", [77])


def overwrite(servers: Sequence[Server], origin: int, time: int, key: int, before: str, after: str) -> None:
    """Let a server update a row of a table with a key, and all others apply that."""
    images = (key, before.encode()), (key, after.encode())
    for server in servers:
        server.log.change("keyed", "update", images, server_id=origin, timestamp=time)


def test_two_servers_that_overwrite_a_row_in_turns(spark: SparkSession) -> None:
    servers = ring(Server("north", 1), Server("east", 2))
    for second in range(8):
        origin, (before, after) = second % 2 + 1, ("on", "off") if second % 2 else ("off", "on")
        overwrite(servers, origin, 1100 + second, 5, before, after)
        overwrite(servers, 1, 1100 + second, 7, f"{second}", f"{second + 1}")  # one writer
        overwrite(servers, origin, 1200 + 20 * second, 8, before, after)  # at leisure
        if second < 4:
            overwrite(servers, origin, 1100 + second, 9, before, after)  # not often
    assert look(spark, servers).incidents == []
    findings = look(spark, servers, ping_pong=True, cuts=3)
    incident = only(findings)
    assert (incident.kind, incident.severity, incident.origins) == ("ping-pong", "warning", [1, 2])
    assert (incident.since, incident.until) == (1100, 1107)
    assert (incident.members, incident.tables) == (["north", "east"], ["shop.keyed"])
    assert incident.what.startswith(
        "Servers 1 and 2 overwrite each other's updates of shop.keyed. A row of it changes hands 7 times, "
        "each time within 10 s. Most of the time a row returns to its earlier values."
    )
    assert incident.evidence == ["the key 5: 7 times"]
    assert {key.partition(":")[0] for key in findings.keys[1]} == {"1", "2"}
    evidence = findings.tables["evidence"].where("type = 'UPDATE_ROWS_EVENT'")
    assert evidence.count() == 8


def test_a_counter_that_several_servers_raise_is_doubt(spark: SparkSession) -> None:
    servers = ring(Server("north", 1), Server("east", 2))
    for second in range(6):
        for key in (5, 6):
            overwrite(servers, second % 2 + 1, 1100 + second, key, f"{second}", f"{second + 1}")
    incident = only(look(spark, servers, ping_pong=True))
    assert (incident.kind, incident.severity) == ("ping-pong", "doubt")
    assert "2 rows of it change hands 10 times, each time within 10 s. What one" in incident.what
    assert incident.evidence == ["the key 5: 5 times", "the key 6: 5 times"]

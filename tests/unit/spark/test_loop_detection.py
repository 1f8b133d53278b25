"""Loop detection over simulated topologies: what is wrong is one incident, what is healthy is silent."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from spark_jobs.loops.incidents import Incident
from spark_jobs.loops.laps import with_clocks
from spark_jobs.loops.presence import BEFORE, Period, Stream
from spark_jobs.loops.report import Findings, _doubts, verdict
from tests.spark_session import SPARK
from tests.unit.spark.logs import lines_of, records_of
from tests.unit.spark.members import Server, look, ring, settle, traffic

pytestmark = SPARK


def three(version: str = "5.7.22-log", tens: str = "") -> Sequence[Server]:
    """A ring with the ids 1 to 3; with ``tens`` another one beside it, whose names end with that."""
    names = enumerate(["north", "east", "south"], 1)
    return ring(*(Server(f"{name}{tens}", int(f"{tens}{n}"), version) for n, name in names))


def only(findings: Findings) -> Incident:
    (found,) = findings.incidents
    return found


def by_origin(findings: Findings) -> list[Incident]:
    """The incidents of topologies that are looked at together, since a look takes seconds: one of each."""
    return sorted(findings.incidents, key=lambda one: one.origins)


def test_what_is_healthy_is_silent(spark: SparkSession) -> None:
    servers, two = under_traps(), that_overwrite_in_turns()
    findings = look(spark, [*servers, *two, *that_changed_their_ids()], cuts=3)
    assert findings.incidents == []
    assert findings.undecided == 0
    assert verdict(findings)[0] == "healthy"
    assert verdict(findings)[1].endswith(
        "different transactions are in the logs of several of 8 members, none is missing or twice."
    )
    assert verdict(replace(findings, unread=2))[:2] == (
        "doubt", "Nothing circulates in what could be read, but 2 records could not."
    )  # fmt: skip
    assert findings.facts.topology.rings[0] == ("north", "east", "south")
    assert findings.facts.topology.sure


def under_traps() -> Sequence[Server]:
    servers = three()
    north, east, _ = servers
    traffic(servers)
    for _ in range(1000):  # identical inserts of one session within a second, into a table without a key
        north.write(1106, "same")
    for _ in range(3):  # a batch, run three times by its own session
        for number in range(5):
            north.write(1107, "batch", number=number, thread_id=7)
    for second in range(1108, 1116):  # a heartbeat that sets its TIMESTAMP, and a replay that does
        east.write(900, "heartbeat", thread_id=9)
        east.write(900, "INSERT INTO log VALUES (1, 'replayed')", form="statement", thread_id=second)
        traffic(servers, second, 1)
    settle(servers)
    return servers


def that_changed_their_ids() -> Sequence[Server]:
    """One takes another id and its old one again; one takes the id that another had before."""
    servers = three(tens="6")
    north, east, south = servers
    for time, server, server_id in [
        (1110, north, 97),
        (1120, north, 61),
        (1130, east, 98),
        (1140, south, 62),
    ]:
        traffic(servers, time - 8)
        for _ in range(3):
            server.write(time - 1, "same")
        settle(servers)
        server.take_id(server_id, time)
    traffic(servers, 1142)
    settle(servers)
    return servers


def test_what_is_read_from_amid_a_file_on_lacks_nothing(spark: SparkSession) -> None:
    """What was on its way lies before the one slice and in the other."""
    servers = ring(Server("north", 1), Server("east", 2))
    begins = {}
    for second in range(1000, 1160, 10):
        if second == 1130:
            begins = {server.name: len(server.log.records) for server in servers}
        for server in servers:
            server.write(second, f"{server.name} {second}")
        servers[0].pull()  # the other lags
    traffic(servers, 1160)
    settle(servers)
    findings = look(spark, servers, begins=begins)
    assert findings.incidents == []
    assert {one.why for one in findings.uncompared} == {BEFORE}
    assert [one.own for one in findings.facts.streams] == [(1,), (2,)]


def test_when_a_server_had_which_id() -> None:
    periods = [Period(2, 0, None), Period(1, 100, 50), Period(2, 200, 90)]
    one = Stream(0, "north", 0, own=(1, 2), periods=periods, first_time=10, last_time=120)
    assert one.had(1) == [(50, 90)]
    assert one.had(2) == [(10, 50), (90, 121)]
    assert one.offsets_of(1) == [(100, 200)]
    (begin, first), (second, end) = one.offsets_of(2)
    assert begin < 0 < first == 100
    assert second == 200 < end


def test_what_circulates(spark: SparkSession) -> None:
    """An orphan as rows, and as statements with commit times; and a server that has taken another id."""
    rows, statements, changes = three(), three("8.0.30", "1"), three(tens="2")
    traffic(rows)
    rows[0].write(1106, "loops", origin=97)
    for second in range(1107, 1112):
        traffic(rows, second, 1)

    text = "UPDATE log SET n = n + 1"
    statements[1].write(1100, text, origin=99, form="statement", committed_us=1_100_000_000)
    settle(statements, 5)

    north, east, _ = changes
    traffic(changes)
    settle(changes)
    north.write(1110, "on its way")
    east.pull()
    north.take_id(31, 1110)
    for second in range(1111, 1116):
        traffic(changes, second, 1)

    mixed = three(tens="3")  # while it is upgraded
    mixed[1].version = mixed[2].version = "8.0.30"
    for server in mixed[1:]:
        server.take_id(server.server_id, 1001)
    traffic(mixed)
    mixed[0].write(1106, "loops", origin=93)
    for second in range(1107, 1112):
        traffic(mixed, second, 1)

    findings = look(spark, [*rows, *statements, *changes], cuts=3)
    assert verdict(findings) == ("incidents", "3 incidents: loop.", "bad")
    changed, orphan, timed = by_origin(findings)
    upgraded = only(look(spark, mixed))
    assert (upgraded.kind, upgraded.origins, upgraded.laps) == ("loop", [93], orphan.laps)
    assert {one.kind for one in findings.incidents} == {"loop"}

    assert (orphan.origins, orphan.path) == ([97], ["north", "east", "south"])
    assert orphan.severity == "critical"
    assert "No member has this id" in orphan.what
    assert orphan.laps is not None
    assert orphan.laps >= 3
    assert orphan.statements[0].sql == (
        "STOP SLAVE;\nCHANGE MASTER TO IGNORE_SERVER_IDS = (97);\nSTART SLAVE;"
    )
    keys = findings.keys[findings.incidents.index(orphan) + 1]
    assert all(key.startswith("97:0:bin.000001:") for key in keys)

    assert (timed.origins, timed.lap_ms) == ([99], 6.9)
    assert (timed.since, timed.until) == (1100, 1100)
    lap, *_ = lines_of(records_of(statements[0].log.records))["transactions"]
    assert timed.lap_bytes == lap["bytes"]
    assert timed.going
    assert timed.what.startswith("One transaction of server 99 circulates through north1, east1 and south1")
    assert "east1 wrote it with an id that it no longer has" in timed.what
    assert timed.statements[0].sql.startswith("STOP REPLICA;\nCHANGE REPLICATION SOURCE TO IGNORE_SERVER")

    assert changed.origins == [21]
    assert "north2 had this id and has 31 now" in changed.what


def test_the_clock_around_a_repeat(spark: SparkSession) -> None:
    """No window ends with the log: Spark would read such a one to its end for each row."""
    times = [
        (0, "a", 1, 10, 0),
        (0, "x", 1, 10, 1),
        (0, "b", 2, 12, 2),
        (0, "x", 1, 10, 3),
        (0, "c", 1, 17, 4),
    ]
    absurd = {1: 4_102_444_800, 3: 5}  # sessions that have set their TIMESTAMP
    for offset, time in enumerate([1000, 1000, 1003, 1003, 1010, 1011, 1012]):
        times.append((1, f"at {offset}", 1, absurd.get(offset, time), 2 * offset))
    times.append((1, "x", 1, 1000, 7))
    signed = spark.createDataFrame(
        times, "stream int, signature string, server_id int, dated long, first_offset long"
    )
    repeated = signed.where("signature = 'x'").withColumn("nth", sf.col("first_offset") / 2 + 0.5)
    timed = with_clocks(repeated, signed)
    found = timed.orderBy("stream", "first_offset").select("clock", "own_clock", "next_clock").collect()
    assert [tuple(row) for row in found] == [(10, 10, 12), (12, 10, 17), (1003, 1003, 1010)]
    assert "unboundedfollowing" not in timed._jdf.queryExecution().analyzed().toString()


def test_whose_ids_are_those_of_others(spark: SparkSession) -> None:
    """Of two members of a ring of four; of all members of another; of servers that were not read.

    Of these somebody writes with the id of a member, and somebody with one that was not named.
    """
    two = ring(*(Server(name, n) for name, n in [("north", 1), ("east", 2), ("south", 1), ("west", 4)]))
    four = ring(*(Server(f"{name}1", 11) for name in ("north", "east", "south", "west")))
    for servers in (two, four):
        for second in range(1100, 1150):
            for server in servers:
                server.write(second, f"{server.name} {second}")
            for server in servers:
                server.pull()
    settle(two)

    strange, stray = three(tens="2"), three(tens="3")
    for second in range(1100, 1108):
        traffic(strange, second, 1)
        strange[1].write(second, f"of another {second}", origin=21)
    settle(strange)

    traffic(stray)
    stray[0].write(1109, "stray", origin=77)
    stray[0].pull()
    stray[1].pull()

    servers = [*two, *four, *strange, *stray]
    findings = look(spark, servers, named=[server.server_id for server in servers])
    assert verdict(findings) == (
        "incidents", "4 incidents: duplicate server id, unknown origin.", "bad"
    )  # fmt: skip
    some, all_, member, unknown = by_origin(findings)
    assert (some.kind, some.origins) == ("duplicate server id", [1])
    assert some.what.startswith("north and south have the same server id, 1.")
    assert some.what.endswith("Missing: 50 at north, 50 at east, 50 at south, 50 at west.")
    assert some.statements[0].member == "south"
    assert "SET GLOBAL server_id = 78;" in some.statements[0].sql

    # 150 of 200 rows are missing on every member.
    assert (all_.kind, all_.origins) == ("duplicate server id", [11])
    assert all_.what.endswith("Missing: 150 at north1, 150 at east1, 150 at south1, 150 at west1.")

    assert (member.kind, member.members) == ("duplicate server id", ["north2"])
    assert "Another server writes with the id of north2, 21" in member.what
    assert member.transactions >= 6
    assert (unknown.kind, unknown.origins) == ("unknown origin", [77])
    assert (unknown.since, unknown.until) == (1109, 1109)


def test_what_does_not_arrive_or_arrives_twice(spark: SparkSession) -> None:
    skips, never = three(), three(tens="1")
    traffic(skips)
    settle(skips)
    skips[0].write(1107, "lost")
    skips[1].taken["north"] += 1  # sql_slave_skip_counter
    traffic(skips, 1108, 3)
    settle(skips)

    never[2].ignores = [11]
    traffic(never)
    settle(never)

    diamond = [Server(name, n) for n, name in enumerate(["top", "left", "right", "bottom"], 21)]
    top, left, right, bottom = diamond
    left.upstream = right.upstream = [top]
    bottom.upstream = [left, right]
    traffic(diamond, 1100, 5)
    settle([left, right, bottom])

    lost, ignored, twice = by_origin(look(spark, [*skips, *never, *diamond]))
    assert (lost.kind, lost.origins, lost.members) == ("missing", [1], ["east", "south"])
    assert lost.transactions == 1

    assert (ignored.kind, ignored.origins, ignored.members) == ("missing", [11], ["south1"])
    assert "Nothing of this origin arrives" in ignored.what

    assert (twice.kind, twice.origins, twice.members) == ("delivered twice", [21], ["bottom"])
    assert twice.transactions == 5
    assert twice.path == ["left", "right", "bottom"]
    assert not twice.statements


def test_members_that_were_restored_and_one_that_applies_in_another_order(spark: SparkSession) -> None:
    skips, has, order = by_origin(
        look(spark, [*that_skips_what_it_wrote(), *that_has_its_old_log(), *in_another_order()])
    )
    assert (skips.kind, skips.severity, skips.origins) == ("restored member", "critical", [1])
    assert skips.members == ["north"]
    assert skips.transactions == 5
    assert "does not list them as executed" in skips.what

    assert (has.kind, has.severity, has.origins) == ("restored member", "critical", [11])
    assert has.transactions == 4
    assert "it has what it wrote before and after them, and nothing in between" in has.what

    assert (order.kind, order.origins, order.severity) == ("another order", [21], "doubt")
    assert (order.since, order.until) == (1103, 1103)


def that_skips_what_it_wrote() -> Sequence[Server]:
    """North was restored from a backup, and skips what it wrote afterwards."""
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
    return restored, east


def that_has_its_old_log() -> Sequence[Server]:
    """North was restored with its log of before the backup."""
    north, east = ring(Server("north1", 11), Server("east1", 12))
    traffic([north, east], 1100, 3)
    restored = Server("north1", 11, upstream=[east], taken=dict(north.taken))
    for change, hops in zip(list(north.entries), list(north.hops), strict=True):
        restored._append(change, hops)
    traffic([north, east], 1103, 4)  # what north writes here is not in the backup
    east.pull()
    restored.pull()
    east.upstream, east.taken = [restored], {"north1": len(restored.entries)}
    traffic([restored, east], 1200, 3)
    settle([restored, east])
    return restored, east


def in_another_order() -> Sequence[Server]:
    """East applies with several workers: that is not missing."""
    north, east = Server("north2", 21), Server("east2", 22)
    east.upstream = [north]
    for second in range(1100, 1112):
        north.write(second, f"north {second}")
    late, later = north.entries.pop(3), north.entries.pop(6)
    north.entries = [*north.entries[:5], late, *north.entries[5:]]
    assert later not in north.entries  # one of them is not ready where the log ends
    east.pull(8)
    return north, east


def test_one_log_alone_decides_what_it_can(spark: SparkSession) -> None:
    servers = three()
    for second in range(1100, 1106):
        servers[0].write(second, f"other {second}")
        servers[0].write(900, "heartbeat of south", origin=3)
        servers[0].write(900, "heartbeat of east, which writes nothing else", origin=2)
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


def overwrite(
    servers: Sequence[Server],
    origin: int,
    time: int,
    key: int,
    before: str,
    after: str,
    table: str = "keyed",
) -> None:
    """Let a server update a row of a table, by default of one with a key, and all others apply that."""
    images = (key, before.encode()), (key, after.encode())
    for server in servers:
        server.log.change(table, "update", images, server_id=origin, timestamp=time)


def that_overwrite_in_turns() -> Sequence[Server]:
    servers = ring(Server("one", 41), Server("two", 42))
    for second in range(8):
        origin, (before, after) = second % 2 + 41, ("on", "off") if second % 2 else ("off", "on")
        overwrite(servers, origin, 1100 + second, 5, before, after)
        overwrite(servers, 41, 1100 + second, 7, f"{second}", f"{second + 1}")  # one writer
        overwrite(servers, origin, 1200 + 20 * second, 8, before, after)  # at leisure
        if second < 4:
            overwrite(servers, origin, 1100 + second, 9, before, after)  # not often
    return servers


def that_raise_a_counter_in_turns() -> Sequence[Server]:
    servers = ring(Server("three", 53), Server("four", 54))
    for second in range(6):
        for key in (5, 6):
            overwrite(servers, second % 2 + 53, 1100 + second, key, f"{second}", f"{second + 1}")
        overwrite(servers, second % 2 + 53, 1100 + second, 5, f"{second}", f"{second + 1}", table="log")
    return servers


def test_two_servers_that_overwrite_a_row_in_turns(spark: SparkSession) -> None:
    """What one of them wrote is lost for certain; where both raise a counter, that is doubt."""
    both = [*that_overwrite_in_turns(), *that_raise_a_counter_in_turns()]
    findings = look(spark, both, ping_pong=True, cuts=3)
    incident, counter = by_origin(findings)
    assert (incident.kind, incident.severity, incident.origins) == ("ping-pong", "warning", [41, 42])
    assert (incident.since, incident.until) == (1100, 1107)
    assert (incident.members, incident.tables) == (["one", "two"], ["shop.keyed"])
    assert incident.what.startswith(
        "Servers 41 and 42 overwrite each other's updates of shop.keyed. A row of it changes hands 7 times, "
        "each time within 10 s. Most of the time a row returns to its earlier values."
    )
    assert incident.evidence == ["the key 5: 7 times"]
    assert findings.incidents[0] is incident
    assert findings.unlooked == ["shop.log"]
    (unlooked,) = [text for _, text in _doubts(findings) if "overwrite in turns" in text]
    assert unlooked.startswith("No verdict on rows that servers overwrite in turns for shop.log: no ")
    assert {key.partition(":")[0] for key in findings.keys[1]} == {"41", "42"}
    evidence = findings.tables["evidence"].where("incident = 1 and type = 'UPDATE_ROWS_EVENT'")
    assert evidence.count() == 8

    assert (counter.kind, counter.severity, counter.origins) == ("ping-pong", "doubt", [53, 54])
    assert "2 rows of it change hands 10 times, each time within 10 s. What one" in counter.what
    assert counter.evidence == ["the key 5: 5 times", "the key 6: 5 times"]

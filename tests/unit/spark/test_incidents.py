"""From figures about logs to rings, incidents, statements and the page; needs no Spark."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pyspark.sql import Row

from spark_jobs.loops.incidents import (
    Absence,
    Facts,
    Incident,
    Reordered,
    Repeat,
    find_incidents,
    shared_ids,
)
from spark_jobs.loops.presence import Stream as MemberStream
from spark_jobs.loops.presence import executed_before
from spark_jobs.loops.report import report
from spark_jobs.loops.ring import draw
from spark_jobs.loops.topology import Passage, Topology, infer
from tests.unit.spark.test_report import EVIL, Page, check_self_contained

NAMES = ["north", "east", "south"]
LIVE = Path(__file__).parents[2] / "live"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def stream(number: int, own: Sequence[int] = (), **more: Any) -> MemberStream:
    values: dict[str, Any] = {"version": "8.0.36", "last_time": 2000, **more}
    name = values.pop("name") if "name" in more else NAMES[number]
    return MemberStream(number, name, 0, own=own or (number + 1,), logs=frozenset({number}), **values)


def facts(*, topology: Topology | None = None, **more: Any) -> Facts:
    ring = topology or Topology(NAMES, [], [NAMES], True, {name: frozenset(NAMES) for name in NAMES})
    values: dict[str, Any] = {"streams": [stream(n) for n in range(3)], "topology": ring, **more}
    return Facts(**values)


def loop(number: int, **more: Any) -> Repeat:
    values: dict[str, Any] = {
        "transactions": 1,
        "occurrences": 9,
        "laps": 8,
        "since": 1990,
        **more,
    }
    return Repeat("repeated", 99, number, **values)


def incident(**more: Any) -> Incident:
    (found,) = find_incidents(facts(**more))
    return found


def passage(origin: str, **places: tuple[int, int | None]) -> Passage:
    return Passage(origin, places)


# -- the ring -----------------------------------------------------------------------------------------


def test_commit_times_tell_the_order_of_a_ring() -> None:
    reach = [(a, b) for a in NAMES for b in NAMES if a != b]
    passages = [
        passage("north", north=(10, 0), south=(10, 20), east=(10, 40)),
        passage("south", south=(11, 100), east=(12, 120), north=(12, 140)),
        passage("east", east=(13, 200), north=(13, 220), south=(13, 240)),
    ]
    found = infer(NAMES, reach, passages)
    assert found.rings == [("north", "south", "east")]
    assert found.sure
    assert found.upstream("north") == ["east"]


def test_the_order_of_what_was_written_at_the_same_time_tells_it_too() -> None:
    reach = [(a, b) for a in NAMES for b in NAMES if a != b]
    order = {
        "north": ["n1", "s1", "e1", "n2", "s2", "e2"],
        "east": ["e1", "n1", "s1", "e2", "n2", "s2"],
        "south": ["s1", "e1", "n1", "s2", "e2", "n2"],
    }
    names = {"n": "north", "e": "east", "s": "south"}
    passages = [
        passage(names[one[0]], **{name: (log.index(one), None) for name, log in order.items()})
        for one in order["north"]
    ]
    found = infer(NAMES, reach, passages)
    assert (found.rings, found.sure) == ([("north", "east", "south")], True)


def test_a_ring_of_which_nothing_tells_the_order_is_a_guess() -> None:
    found = infer(NAMES, [(a, b) for a in NAMES for b in NAMES if a != b], [])
    assert (found.rings, found.sure) == ([("north", "east", "south")], False)


def test_ways_that_lead_over_others_are_left_out() -> None:
    members = ["top", "left", "right", "bottom"]
    reach = [("top", m) for m in members[1:]] + [("left", "bottom"), ("right", "bottom")]
    found = infer(members, reach, [])
    assert sorted(found.edges) == [("left", "bottom"), ("right", "bottom"), ("top", "left"), ("top", "right")]
    assert found.rings == []


# -- incidents ----------------------------------------------------------------------------------------


def test_all_members_of_a_loop_are_one_incident() -> None:
    passed = {99: frozenset({0, 1, 2})}
    repeats = [loop(0, lap_bytes=300), loop(1, laps=7, lap_bytes=310)]
    (found,) = find_incidents(facts(repeats=repeats, passed=passed))
    assert (found.kind, found.members, found.laps, found.going) == ("loop", NAMES, 8, False)
    assert (found.lap_ms, found.lap_bytes) == (None, 310)
    assert "no longer at the end of the logs" in found.what


def test_what_nothing_bounds_may_still_go_round() -> None:
    (found,) = find_incidents(facts(repeats=[loop(0, going=True)]))
    assert (found.going, found.lap_ms_at_most, found.severity) == (True, None, "critical")
    assert "still circulating at the end of the logs" in found.what
    assert "through north and members that were not read" in found.what
    streams = [stream(0), *(stream(n, last_time=1980) for n in (1, 2))]
    (found,) = find_incidents(facts(repeats=[loop(0, going=True)], streams=streams))
    assert "through north and perhaps east and south, whose logs end before it, up to 8 laps" in found.what


def test_a_member_between_two_that_was_restored_later_is_no_duplicate() -> None:
    one = stream(0, (1,), first_time=1000, last_time=1500)
    other = MemberStream(1, "again", 0, own=(1,), logs=frozenset({7}), first_time=1600, last_time=1700)
    assert shared_ids([one, other]) == []
    both = MemberStream(1, "again", 0, own=(1,), logs=frozenset({7}), first_time=1400, last_time=1700)
    assert shared_ids([one, both]) == [1]
    same = MemberStream(1, "again", 0, own=(1,), logs=frozenset({0}), first_time=1000, last_time=1500)
    assert shared_ids([one, same]) == []
    assert shared_ids([one, same], {(0, 1, 1)}, {(0, 1), (1, 1)}) == []
    assert shared_ids([one, same], (), {(0, 1), (1, 1)}) == [1]


def test_gtids_that_two_members_with_one_id_gave_are_their_incident() -> None:
    streams = [stream(0, (1,)), stream(1, (2,)), stream(2, (1,))]
    again = [Repeat("GTID used twice", 1, n, transactions=7, occurrences=7, laps=0) for n in (0, 2)]
    (found,) = find_incidents(facts(streams=streams, shared=[1], repeats=again))
    assert found.kind == "duplicate server id"
    assert "7 GTIDs stand for different transactions on them" in found.what
    assert "Nothing is missing" not in found.what
    assert found.selects == [("repeats", 1, 0), ("repeats", 1, 2)]


def test_gtids_that_their_owner_gives_again_tell_of_a_backup() -> None:
    def again(number: int, since: int) -> Repeat:
        return Repeat("GTID used twice", 1, number, 7, 7, 0, since=since)

    (found,) = find_incidents(facts(repeats=[again(0, 1500), again(1, 1000), again(2, 1000)]))
    assert (found.kind, found.severity, found.transactions) == ("restored member", "critical", 7)
    assert found.members == NAMES
    assert found.what.startswith(
        "north has assigned 7 GTIDs a second time: in the log of east and south they"
    )
    assert [(one.member, one.sql) for one in found.statements] == [
        ("north", "SET PERSIST super_read_only = ON;")
    ]
    # Where the owner's are the older ones, somebody else has given them.
    (found,) = find_incidents(facts(repeats=[again(0, 1000), again(1, 1500)]))
    assert (found.kind, found.severity, found.statements) == ("GTID used twice", "warning", [])


def test_what_only_changes_tables_that_a_member_never_has_is_filtered() -> None:
    lost = Absence("skipped", 1, 1, [0], 5, 1000, 1100, ["shop.audit"])
    (found,) = find_incidents(facts(absences=[lost], tables={1: frozenset({"shop.log"})}))
    assert (found.kind, found.severity) == ("filtered", "doubt")
    (found,) = find_incidents(facts(absences=[lost], tables={1: frozenset({"shop.log", "shop.audit"})}))
    assert (found.kind, found.severity) == ("missing", "warning")


def test_a_gap_or_a_filter_at_one_member_of_a_ring_is_one_incident() -> None:
    """South lacks some of all others, and so do the members after it: of each origin up to its own."""
    names = [*NAMES, "west"]
    ring = Topology(names, [*pairwise([*names, "north"])], [names])
    streams = [stream(n, name=name) for n, name in enumerate(names)]

    def lost(*spans: tuple[int, int], rule: str = "skipped") -> list[Absence]:
        where = [(1, [2, 3]), (2, [2, 3, 0]), (4, [2])]
        return [
            Absence(rule, origin, number, [1], 2 * origin, *span, ["shop.audit"])
            for (origin, numbers), span in zip(where, spans, strict=True)
            for number in numbers
        ]

    tables = {number: frozenset({"shop.audit"}) for number in range(4)}
    absences = lost((1000, 1005), (1003, 1020), (1021, 1030))
    found = incident(streams=streams, topology=ring, absences=absences, tables=tables)
    assert (found.kind, found.origins, found.members) == ("missing", [1, 2, 4], ["south", "west", "north"])
    assert found.what == (
        "Missing: 14 at south, 6 at west, 4 at north. They are of servers 1, 2 and 4. Others of these "
        "origins, before and after them, have arrived. SHOW REPLICA STATUS at south shows filters, "
        "IGNORE_SERVER_IDS, and skipped errors."
    )
    assert (found.since, found.until, found.transactions) == (1000, 1030, 14)
    assert (found.tables, len(found.evidence)) == (["shop.audit"], 6)
    assert not found.statements
    assert found.selects == [one.select for one in absences]

    apart = lost((1000, 1005), (1007, 1020), (1021, 1030))
    several = find_incidents(facts(streams=streams, topology=ring, absences=apart, tables=tables))
    assert [one.origins for one in several] == [[2, 4], [1]]

    # What leaves out a table does so for ever, and of origins that change nothing else all that they write.
    tables[2] = frozenset({"shop.log"})
    apart = [*apart[:5], *lost((0, 0), (0, 0), (1090, 1095), rule="never")[5:]]
    found = incident(streams=streams, topology=ring, absences=apart, tables=tables)
    assert (found.kind, found.origins, found.members) == ("filtered", [1, 2, 4], ["south", "west", "north"])
    assert (found.since, found.until) == (1000, 1095)
    assert "of which south has no change at all" in found.what


def test_what_may_be_in_flight_is_no_incident_and_what_cannot_be_is_a_doubt() -> None:
    lost = Absence("restored", 2, 1, [0], 5, 1000, 1010, proven=False)
    assert find_incidents(facts(absences=[lost])) == []
    lost = Absence("restored", 2, 1, [0], 5, 1000, 1100, proven=False)
    (found,) = find_incidents(facts(absences=[lost]))
    assert (found.kind, found.severity) == ("restored member", "doubt")
    assert "only its tables show" in found.what


@pytest.mark.parametrize(
    ("version", "statement"),
    [
        ("5.7.22-log", "STOP SLAVE;\nCHANGE MASTER TO IGNORE_SERVER_IDS = (99);\nSTART SLAVE;"),
        ("8.0.22", "STOP SLAVE;\nCHANGE MASTER TO IGNORE_SERVER_IDS = (99);\nSTART SLAVE;"),
        (
            "8.0.23",
            "STOP REPLICA;\nCHANGE REPLICATION SOURCE TO IGNORE_SERVER_IDS = (99);\nSTART REPLICA;",
        ),
        ("11.4.5-MariaDB-log", "STOP SLAVE;\nCHANGE MASTER TO IGNORE_SERVER_IDS = (99);\nSTART SLAVE;"),
    ],
)
def test_statements_are_as_the_version_wants_them(version: str, statement: str) -> None:
    streams = [stream(n, version=version) for n in range(3)]
    (found,) = find_incidents(facts(streams=streams, repeats=[loop(0), loop(1)]))
    assert found.statements[0].sql == statement
    assert found.statements[1].sql.startswith("SET GLOBAL server_id = 99;")
    assert found.statements[1].sql.endswith("SET GLOBAL server_id = 1;")


def test_a_loop_is_stopped_at_a_member_with_one_connection() -> None:
    """MySQL refuses a change without a channel where there are several, and the log does not tell them."""
    ways = [("north", "east"), ("east", "south"), ("south", "north"), ("other", "north")]
    topology = Topology([*NAMES, "other"], ways, [NAMES])
    found = incident(topology=topology, repeats=[loop(0), loop(1)], passed={99: frozenset({0, 1, 2})})
    assert (found.path, {one.member for one in found.statements}) == (NAMES, {"east"})
    assert found.links == [("north", "east"), ("east", "south"), ("south", "north")]
    assert "CHANNEL" not in found.statements[0].sql

    topology = Topology([*NAMES, "other"], [*ways, ("other", "east"), ("other", "south")], [NAMES])
    found = incident(topology=topology, repeats=[loop(0), loop(1)], passed={99: frozenset({0, 1, 2})})
    (statement,) = found.statements  # the name of its connection is not known
    assert (statement.member, "IGNORE" in statement.sql) == ("north", False)


ADVICE = {
    r"(STOP \w+;\n)CHANGE [A-Z ]+ TO IGNORE_SERVER_IDS = \(99\);\nSTART \w+;": "test_mariadb",
    r"SET GLOBAL server_id = 99;\n--.*\nSET GLOBAL server_id = \d+;": "test_mysql_without_gtids",
    r"SET GLOBAL server_id = \d+;": "test_an_id_is_changed_while_transactions_are_in_transit",
    r"SET \w+ server_id = \d+;\nSTOP [A-Z ]+;\nSTART [A-Z ]+;": "test_a_ring_of_four_with_one_id_twice",
    r"SET \w+ (super_)?read_only = ON;": "test_a_restored_member_that_gives_gtids_again",
}
"""Each statement that is advised, and the test that executes it on real servers."""


def loops_of_all_kinds() -> list[Facts]:
    passed = {99: frozenset({0, 1, 2}), 1: frozenset({0, 1, 2})}
    own = [replace(loop(number, going=True), origin=1) for number in range(3)]
    again = [Repeat("GTID used twice", 1, n, 7, 7, 0, since=1500 - 100 * n) for n in range(2)]
    twice = [Repeat("repeated", 4, 2, 7, 14, 1, since=1990)]
    shared = [stream(0), stream(1), stream(2, (1,))]
    several = Topology(NAMES, [("east", "north"), ("south", "north")])
    diamond = Topology(
        NAMES, [("north", "south"), ("east", "south")], reached={name: frozenset({name}) for name in NAMES}
    )
    absences = [
        Absence(rule, 3, 0, [2], 5, 1000, 1100, ["shop.log"])
        for rule in ("skipped", "own", "never", "emptied", "left out")
    ]
    return [
        facts(repeats=[loop(0), loop(1)], passed=passed),
        facts(repeats=own, passed=passed),
        facts(repeats=own, passed=passed, streams=[stream(0, (1, 4)), stream(1, (2, 1)), stream(2)]),
        facts(repeats=again),
        facts(streams=shared, shared=[1]),
        facts(repeats=twice, topology=diamond),
        facts(repeats=[replace(twice[0], origin=1)], counts={(2, 1): 90}),
        *(facts(absences=[one], topology=several, tables={0: frozenset({"shop.log"})}) for one in absences),
        facts(absences=[Absence("restored", 1, 0, [1, 2], 5, 1000, 1100)], topology=several),
        facts(reordered=[Reordered(1, 0, 1, 4, 1000, 1010)]),
    ]


@pytest.mark.parametrize("version", ["5.7.22-log", "8.0.36", "11.4.5-MariaDB-log"])
def test_each_advice_is_executed_by_a_test_and_harms_no_live_member(version: str) -> None:
    tests = "".join(path.read_text() for path in LIVE.glob("test_loop*.py"))
    assert all(f"def {name}(" in tests for name in ADVICE.values())
    kinds, advised = set(), set()
    for each in loops_of_all_kinds():
        found = find_incidents(replace(each, streams=[replace(one, version=version) for one in each.streams]))
        live = {each.stream_of(one.source).own[-1] for one in each.streams}
        kinds |= {one.kind for one in found}
        for statement in (statement for one in found for statement in one.statements):
            (known,) = [form for form in ADVICE if re.fullmatch(form, statement.sql)]
            advised.add(known)
            ignored = re.findall(r"IGNORE_SERVER_IDS = \((\d+)\)", statement.sql)
            assert not live & {int(server_id) for server_id in ignored}, statement
    assert advised == set(ADVICE)
    assert kinds >= {
        "loop", "restored member", "duplicate server id", "delivered twice", "applied twice", "missing",
        "skipped on purpose", "filtered", "another order",
    }  # fmt: skip


def test_what_is_delivered_twice_names_both_paths() -> None:
    repeats = [
        Repeat("repeated", origin, 2, transactions=7, occurrences=14, laps=1, since=1990) for origin in (4, 5)
    ]
    topology = Topology(
        NAMES, [("north", "south"), ("east", "south")], reached={name: frozenset({name}) for name in NAMES}
    )
    found = incident(topology=topology, repeats=repeats)
    assert (found.kind, found.path) == ("delivered twice", ["north", "east", "south"])
    assert found.links == [("north", "south"), ("east", "south")]


def test_another_order_has_a_time() -> None:
    reordered = [Reordered(1, 0, 1, 4, 1000, 1010), Reordered(3, 2, 1, 5, 900, 905)]
    found = incident(reordered=reordered)
    assert (found.kind, found.transactions, found.since, found.until) == ("another order", 9, 900, 1010)


def test_an_origin_that_was_not_named_has_a_time() -> None:
    counts = {(0, 1): 9, (0, 7): 2, (1, 7): 1}
    spans = {(0, 1): (900, 2000), (0, 7): (1000, 1010), (1, 7): (None, 1020)}
    found = incident(servers=[1, 2, 3], counts=counts, spans=spans)
    assert (found.kind, found.origins, found.since, found.until) == ("unknown origin", [7], 1000, 1020)


@pytest.mark.parametrize(
    ("transaction", "gtids", "before"),
    [
        ("0-1-7", "0-1-9,0-2-8", True),
        ("0-1-10", "0-1-9,0-2-12", False),
        ("0-3-1", "0-1-9,0-2-12", False),
        (f"{UUID}:5", f"{UUID}:1-5", True),
        (f"{UUID}:6", f"{UUID}:1-5", False),
        ("bin.000001:4", "0-1-9", None),
        ("0-1-7", None, None),
    ],
)
def test_what_the_head_of_a_log_lists(transaction: str, gtids: str | None, before: bool | None) -> None:
    assert executed_before(transaction, gtids) is before


# -- the page -----------------------------------------------------------------------------------------


def findings(incidents: Sequence[Incident], name: str, **more: Any) -> Any:
    names = [name, "east", "south"]
    ring = Topology(names, [(name, "east"), ("east", "south"), ("south", name)], [names], False)
    streams = [stream(0, (1,), name=name), stream(1), stream(2)]
    values: dict[str, Any] = {
        "facts": Facts(streams, ring, counts={(0, 99): 9}),
        "incidents": incidents,
        "patterns": [
            Row(origin=99, times=[3, 2, 0], differs=False, transactions=1, since=1000, until=None),
            Row(origin=1, times=[1, 1, 0], differs=True, transactions=5, since=1000, until=None),
        ],
        "undecidable": [],
        "transactions": 10,
        "compared": 10,
        "undecided": 0,
        "alone": [],
        "gaps": [],
        "uncompared": [],
        "keys": {1: [f"99:0:{EVIL}:4"]},
        **more,
    }
    return SimpleNamespace(**values)


def test_where_nothing_was_read_the_page_has_no_empty_tables() -> None:
    facts = Facts([], Topology([], [], [[]]), repeats=[], passed={})
    nothing = findings([], "shop", facts=facts, transactions=0, patterns=[])
    job = SimpleNamespace(sources=["shop"], facts=["shop.events, offsets 7 to 7"], notes=[])
    made = report(job, nothing)  # type: ignore[arg-type]
    assert made.result == ("No verdict: the input has no transactions.", "doubt")
    assert not {"table", "section"} & set(check_self_contained(made.html("footer")).elements)


def test_the_page_shows_hostile_names_as_text() -> None:
    passed = {99: frozenset({0, 1, 2})}
    streams = [stream(0, (1,), name=EVIL), stream(1), stream(2)]
    ring = Topology([EVIL, "east", "south"], [], [[EVIL, "east", "south"]])
    evil = loop(0, tables=[f"{EVIL}.{EVIL}"], lap_ms=50, lap_bytes=1200)
    found = find_incidents(Facts(streams, ring, repeats=[evil], passed=passed))
    job = SimpleNamespace(sources=[EVIL], facts=[EVIL], notes=[EVIL])
    made = report(job, findings(found, EVIL))  # type: ignore[arg-type]
    assert made.result == ("One incident: loop.", "bad")
    page = check_self_contained(made.html(EVIL))
    assert page.elements.count("script") == 1
    words = "".join(page.words)
    assert words.count(EVIL) > 10
    assert words.count("one GTID, another transaction") == 2
    assert "One incident: loop." in words
    assert words.index("One incident: loop.") < words.index("1. Loop")
    assert "IGNORE_SERVER_IDS = (99)" in words
    assert "1.2 kB to each log, 24.0 kB a second" in words
    assert "the one drawn is a guess" in words


def test_the_ring_is_drawn_with_its_path() -> None:
    members = [(name, str(n)) for n, name in enumerate(NAMES, 1)]
    ways = [("north", "east"), ("east", "south"), ("south", "north")]
    drawn = Page(draw("a ring", members, ways, path=ways, origin="id 99"))
    assert drawn.open == []
    kinds = [value for tag, name, value in drawn.attributes if (tag, name) == ("path", "class")]
    assert sorted(kinds) == ["origin", "path", "path", "path"]
    alone = Page(draw("one", [("north", "1")], [], path=[("north", "north")]))
    assert [v for tag, name, v in alone.attributes if (tag, name) == ("path", "class")] == ["path"]


def test_the_name_of_a_member_with_a_link_to_itself_stands_above_the_link() -> None:
    members = [(name, "1") for name in NAMES]
    drawn = ET.fromstring(draw("a ring", members, [], path=[("north", "north")]))
    (link,) = (path.get("d", "") for path in drawn.iter("path"))
    name = next(text for text in drawn.iter("text") if text.text == "north")
    _, start, _, control, *_ = (float(number) for number in re.findall(r"-?[\d.]+", link))
    assert float(name.get("y", "")) < (start + 3 * control) / 4  # where the curve turns


def test_long_names_are_cut_in_the_drawing_and_whole_in_its_tip() -> None:
    name = "replica-of-the-warehouse-in-the-north-1"
    words = Page(draw("names", [(name, "1"), ("b", "2")], [])).words
    assert "replica-of…e-north-1" in words
    assert name in words

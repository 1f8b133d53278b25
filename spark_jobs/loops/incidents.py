"""What is wrong in a topology, one incident per cause: from figures about its logs to texts and statements.

An incident says what happened, since when, of which origin, at which members, and what stops it. Several
findings of one cause are one incident: two servers with one id lose transactions at every member.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any, Final

from millrace.binlog.server_version import ServerVersion
from spark_jobs.loops.laps import REPEATED, REUSED
from spark_jobs.loops.ping_pong import SHORT_S, TURNS, Contest
from spark_jobs.loops.presence import EMPTIED, FILTERED, NEVER, OWN, RESTORED, SKIPPED, Stream
from spark_jobs.loops.topology import Topology

LOOP: Final = "loop"
CRITICAL, WARNING, DOUBT = "critical", "warning", "doubt"
_SEVERITIES: Final = (CRITICAL, WARNING, DOUBT)
_IN_FLIGHT_S: Final = 30
"""What a member lacks of its own from before its log may be in an older file: so long it is on its way."""
_QUIET_S: Final = 2
_TOUCHES_S: Final = 1
_SEVERAL: Final = 3
_TABLES: Final = 10


@dataclass(frozen=True, slots=True)
class Repeat:
    """Transactions of an origin that one stream has several times.

    ``laps`` is of the one with most; ``going`` tells that nothing follows the last lap; ``lap_bytes`` is by
    how much a lap of all of them makes the log longer. Times are seconds since 1970.
    """

    kind: str
    origin: int
    stream: int
    transactions: int
    occurrences: int
    laps: int
    since: int | None = None
    until: int | None = None
    going: bool = False
    lap_ms: float | None = None
    lap_ms_at_most: float | None = None
    lap_bytes: int | None = None
    evidence: Sequence[str] = ()
    tables: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Absence:
    """Transactions of an origin that a stream lacks, by the rule that says so.

    ``proven`` is false where only their time tells that they are missing; ``found_as`` is the rule that found
    them, where it is another one than what they turned out to be.
    """

    rule: str
    origin: int
    stream: int
    references: Sequence[int]
    transactions: int
    since: int | None = None
    until: int | None = None
    tables: Sequence[str] = ()
    domains: Sequence[str] = ()
    """Domains of their GTIDs, in MariaDB."""
    proven: bool = True
    found_as: str = ""

    @property
    def select(self) -> tuple[str, int, int]:
        """The transactions that it is about, as :class:`Incident` selects them."""
        return self.found_as or self.rule, self.origin, self.stream


@dataclass(frozen=True, slots=True)
class Reordered:
    """Transactions of an origin that a member has in another order than the origin itself."""

    origin: int
    reference: int
    stream: int
    transactions: int
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Diverging:
    """Transactions of an origin that change other rows, or rows with other earlier values, under one GTID."""

    origin: int
    transactions: int
    streams: Sequence[int]
    since: int | None = None
    until: int | None = None
    tables: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found in the logs.

    ``passed`` are the streams through which repeated transactions of an origin went, ``written_at`` those
    that committed them first, ``tables`` what each stream has changes of, ``domains`` the GTID domains of
    these, ``counts`` how many transactions a stream has of an origin, ``spans`` the first and the last time
    of these.
    """

    streams: Sequence[Stream]
    topology: Topology
    repeats: Sequence[Repeat] = ()
    absences: Sequence[Absence] = ()
    reordered: Sequence[Reordered] = ()
    diverging: Sequence[Diverging] = ()
    contests: Sequence[Contest] = ()
    shared: Sequence[int] = ()
    servers: Sequence[int] = ()
    passed: Mapping[int, frozenset[int]] = field(default_factory=dict)
    written_at: Mapping[int, frozenset[int]] = field(default_factory=dict)
    tables: Mapping[int, frozenset[str]] = field(default_factory=dict)
    domains: Mapping[int, frozenset[str]] = field(default_factory=dict)
    counts: Mapping[tuple[int, int], int] = field(default_factory=dict)
    spans: Mapping[tuple[int, int], tuple[int | None, int | None]] = field(default_factory=dict)

    def source(self, stream: int) -> str:
        """Return the member of a stream."""
        return self.streams[stream].source

    def sources(self, streams: Iterable[int]) -> list[str]:
        """Return the members of streams, each once, in the order of the streams."""
        return list(dict.fromkeys(self.source(number) for number in sorted(streams)))

    def owners(self, origin: int) -> list[str]:
        """Return the members whose id an origin is, or was."""
        return self.sources(one.number for one in self.streams if origin in one.own)

    def stream_of(self, source: str) -> Stream:
        """Return the last stream of a member."""
        return [one for one in self.streams if one.source == source][-1]

    @property
    def ids(self) -> set[int]:
        """All server ids that occur."""
        return {i for one in self.streams for i in one.own} | {origin for _, origin in self.counts}


@dataclass(frozen=True, slots=True)
class Statement:
    """What to run on a member to stop an incident, and why."""

    member: str
    sql: str
    why: str


@dataclass(slots=True)
class Incident:
    """One thing that is wrong. ``selects`` tells which transactions it is about, for the evidence.

    ``path`` are the members through which they go round, or those that deliver them twice and, at the end,
    the one to which they do.
    """

    kind: str
    severity: str
    what: str
    origins: Sequence[int]
    members: Sequence[str]
    since: int | None = None
    until: int | None = None
    transactions: int = 0
    laps: int | None = None
    lap_ms: float | None = None
    lap_ms_at_most: float | None = None
    lap_bytes: int | None = None
    going: bool = False
    path: Sequence[str] = ()
    tables: Sequence[str] = ()
    evidence: Sequence[str] = ()
    statements: Sequence[Statement] = ()
    selects: Sequence[tuple[str, int, int]] = ()
    """``repeats`` or the rule of an absence, the origin, and the stream that has, or lacks, them."""

    @property
    def links(self) -> list[tuple[str, str]]:
        """From which member to which its path leads."""
        if self.kind == LOOP:
            return list(pairwise([*self.path, *self.path[:1]]))
        return [(way, self.path[-1]) for way in self.path[:-1]]


def shared_ids(
    streams: Sequence[Stream],
    common: Collection[tuple[int, int, int]] = (),
    carried: Collection[tuple[int, int]] = (),
) -> list[int]:
    """Return the ids that two servers have at the same time.

    ``common`` are two streams and an origin of which both have the same transactions, ``carried`` a stream
    and an origin of which it has some. Two sources may read one server: then log files of theirs look the
    same, and what they have of its id is the same too. A server that was rebuilt after another, under its
    id, has a log that begins when the other's has ended.
    """
    found = set()
    for one in streams:
        for other in streams[one.number + 1 :]:
            if one.source == other.source:
                continue
            for server_id in set(one.own) & set(other.own):
                if not _at_once(one, other, server_id):
                    continue
                both = {(one.number, server_id), (other.number, server_id)} <= set(carried)
                same = (one.number, other.number, server_id) in common or not both
                if not (one.logs & other.logs and same):
                    found.add(server_id)
    return sorted(found)


def _at_once(one: Stream, other: Stream, server_id: int) -> bool:
    spans = ((a, b) for a in one.had(server_id) for b in other.had(server_id))
    return any(begun < until and since < ended for (begun, ended), (since, until) in spans)


def find_incidents(facts: Facts) -> list[Incident]:
    """Return what is wrong, the worst first."""
    found = [
        *_shared(facts),
        *_loops(facts),
        *_reused(facts),
        *_missing(facts),
        *_reordered(facts),
        *_diverging(facts),
        *_contested(facts),
        *_unknown(facts),
    ]
    for one in found:
        unread = [origin for origin in one.origins if not facts.owners(origin)]
        if unread and one.kind not in {LOOP, "unknown origin"}:
            one.what += f" The log of {_servers(unread)} was not read."
    return sorted(found, key=lambda one: (_SEVERITIES.index(one.severity), -one.transactions, one.kind))


# -- duplicate ids ------------------------------------------------------------------------------------


def _shared(facts: Facts) -> Iterator[Incident]:
    """Two members with one id; and a member whose id another server uses as well."""
    free = count(max(facts.ids, default=0) + 1)
    for origin in facts.shared:
        lost = [one for one in facts.absences if one.origin == origin]
        owners = facts.owners(origin)
        what = f"{_and(owners)} have the same server id, {origin}. {_DROPS}"
        again = [one for one in facts.repeats if one.kind == REUSED and one.origin == origin]
        if again:
            most = max(one.transactions for one in again)
            what += (
                f" {most:,} GTIDs stand for different transactions on them: each lacks those of the other."
            )
        if lost or not again:
            what += f" {_lost_at(facts, lost)}"
        refused = [o for o in facts.absences if o.origin != origin and _is_of_shared_id(facts, o, origin)]
        if refused:
            what += (
                " A server replicates from none with its own id, so transactions of others do not arrive "
                f"either: {_lost_at(facts, refused)}"
            )
        incident = _of_absences(facts, lost, origin, owners, ("duplicate server id", CRITICAL, what))
        incident.statements = [_unique_id(facts, member, next(free)) for member in owners[1:]]
        incident.selects = [
            *incident.selects,
            *(("repeats", origin, one.stream) for one in again),
            *(one.select for one in refused),
        ]
        yield incident
    for origin in sorted({one.origin for one in facts.absences if one.rule == OWN} - {*facts.shared}):
        lost = [one for one in facts.absences if one.origin == origin and one.rule == OWN]
        owners = facts.sources(one.stream for one in lost)
        what = (
            f"Another server writes with the id of {_and(owners)}, {origin}: its transactions lie between "
            f"those that {_and(owners)} wrote, and are not in its log. {_DROPS} {_lost_at(facts, lost)} Find "
            "it by the places of these events in the logs, and give it an id of its own."
        )
        yield _of_absences(facts, lost, origin, owners, ("duplicate server id", CRITICAL, what))


_DROPS: Final = "Each member drops events with its own id."


def _is_of_shared_id(facts: Facts, one: Absence, origin: int | None = None) -> bool:
    """Return what is missing since two servers share an id, or a certain one: theirs, or all at one."""
    shared = set(facts.shared) if origin is None else {origin}
    at_owner = bool(shared & set(facts.streams[one.stream].own)) and one.rule == NEVER
    return one.origin in shared or (at_owner and one.origin not in facts.shared)


def _of_absences(
    facts: Facts, lost: Sequence[Absence], origin: int, owners: Sequence[str], head: tuple[str, str, str]
) -> Incident:
    """Make an incident of an id that members share; ``head`` is its kind, its severity and what happened."""
    return Incident(
        *head,
        [origin],
        list(dict.fromkeys([*owners, *facts.sources(one.stream for one in lost)])),
        since=_least(one.since for one in lost),
        until=_most(one.until for one in lost),
        transactions=max((one.transactions for one in lost), default=0),
        tables=_tables(one.tables for one in lost),
        evidence=[_lost_line(facts, one) for one in lost],
        selects=[one.select for one in lost],
    )


def _unique_id(facts: Facts, member: str, free: int) -> Statement:
    dialect = _Dialect.of(facts.stream_of(member))
    sql = f"{dialect.set_global} server_id = {free};\n{dialect.stop};\n{dialect.start};"
    why = (
        f"gives {member} a unique id; set it in its configuration file, too; {free} is free in these "
        "logs. This does not restore what is missing: copy it from a member that has it."
    )
    return Statement(member, sql, why)


def _lost_at(facts: Facts, lost: Sequence[Absence]) -> str:
    sums = _sums(facts, lost)
    if not sums:
        return "Nothing is missing yet in these logs."
    return "Missing: " + ", ".join(f"{number:,} at {member}" for member, number in sums.items()) + "."


def _sums(facts: Facts, lost: Iterable[Absence]) -> dict[str, int]:
    """Return how many transactions each member lacks."""
    sums: dict[str, int] = {}
    for one in lost:
        sums[facts.source(one.stream)] = sums.get(facts.source(one.stream), 0) + one.transactions
    return sums


def _repeated_line(facts: Facts, one: Repeat, what: str) -> str:
    return (
        f"{facts.source(one.stream)} applied {one.transactions:,} of {what} {one.occurrences:,} times: "
        f"{', '.join(one.evidence)}"
    )


def _lost_line(facts: Facts, one: Absence) -> str:
    there = _and(facts.sources(one.references))
    return (
        f"{one.transactions:,} transactions of server {one.origin} are in the log of {there}, "
        f"{'with less or nothing in them' if one.rule in {EMPTIED, FILTERED} else 'not'} in that of "
        f"{facts.source(one.stream)}"
    )


# -- loops and double delivery ------------------------------------------------------------------------


def _loops(facts: Facts) -> Iterator[Incident]:
    by_origin: dict[int, list[Repeat]] = {}
    for one in facts.repeats:
        if one.kind == REPEATED and one.origin not in facts.shared:
            by_origin.setdefault(one.origin, []).append(one)
    twice: dict[str, list[Repeat]] = {}
    for origin, found in sorted(by_origin.items()):
        if _circulates(facts, origin, found):
            yield _loop(facts, origin, found)
            continue
        again = facts.sources(one.stream for one in found)
        for one in found:
            twice.setdefault(_first_of(facts, origin, facts.source(one.stream), again), []).append(one)
    for member, found in twice.items():
        if ways := _two_ways(facts, member, found):
            yield _delivered_twice(facts, member, found, ways)
        else:
            yield _applied_twice(facts, member, found)


def _circulates(facts: Facts, origin: int, found: Sequence[Repeat]) -> bool:
    """Distinguish transactions that circulate from those that a member has applied twice.

    A member drops what it wrote itself. So what it has once does not go round through it, unless it has
    another id by now, or its log was not read so far. If it has applied its own again, its id was changed.
    What several others have more and more often goes round among them.
    """
    again = facts.sources(one.stream for one in found)
    owners = facts.owners(origin)
    if set(owners) & set(again):
        return len(again) > 1 or any(_still_going(facts, one) for one in found)
    rings = [facts.topology.ring_of(member) for member in again]
    if len(again) > 1 and max(one.laps for one in found) >= _SEVERAL:
        return True
    if not owners:
        once = [m for m in facts.sources(facts.passed.get(origin, ())) if m not in again]
        several = len(once) > 1 or sum(one.transactions for one in found) >= _SEVERAL
        return any(rings) or max(one.laps for one in found) > 1 or not several
    present = [facts.stream_of(owner) for owner in owners if facts.stream_of(owner).own[-1] == origin]
    until = _most(one.until for one in found) or 0
    behind = all((one.last_time or 0) < until for one in present)
    if not present or (behind and max(one.laps for one in found) > 1):
        return True
    return any(ring and not set(owners) & set(ring) for ring in rings)


def _two_ways(facts: Facts, member: str, found: Sequence[Repeat]) -> list[str]:
    """Return the members by which one gets everything twice; none where it has applied a part of it twice."""
    origins = {one.origin for one in found}
    owners = {owner for origin in origins for owner in facts.owners(origin)}
    known = [way for way in facts.topology.upstream(member) if way not in owners]
    if len(known) > 1:
        return known
    of_member = [one for one in found if facts.source(one.stream) == member]
    whole = all(facts.counts.get((one.stream, one.origin), 0) <= one.occurrences for one in of_member)
    if facts.topology.ring_of(member) or not whole:
        return []
    heirs = facts.sources(one.stream for one in found)
    carried = {stream for origin in origins for stream in facts.passed.get(origin, ())}
    ways = [way for way in facts.sources(carried) if way not in owners and way not in heirs]
    return ways if len(ways) > 1 else []


def _first_of(facts: Facts, origin: int, member: str, members: Sequence[str]) -> str:
    """Return the first of some members on the way of an origin to one of them."""
    ring = facts.topology.ring_of(member)
    start = next((owner for owner in facts.owners(origin) if owner in ring), None)
    if start is not None:
        if not facts.topology.sure:
            return member
        turned = [*ring[ring.index(start) :], *ring[: ring.index(start)]]
        return next((one for one in turned if one in members), member)
    reached = facts.topology.reached

    def before(one: str, other: str) -> bool:
        return other in reached.get(one, ()) and one not in reached.get(other, ())

    ahead = [one for one in members if before(one, member)]
    return next((one for one in ahead if not any(before(other, one) for other in ahead)), member)


def _loop(facts: Facts, origin: int, found: Sequence[Repeat]) -> Incident:
    again = facts.sources(one.stream for one in found)
    members = facts.topology.path(facts.sources(facts.passed.get(origin, ())) or again)
    worst = max(found, key=lambda one: one.laps)
    going = any(_still_going(facts, one) for one in found)
    transactions = max(one.transactions for one in found)
    number = "One transaction" if transactions == 1 else f"{transactions:,} transactions"
    verb = "circulates" if transactions == 1 else "circulate"
    since = _least(one.since for one in found)
    through = _and(members) if len(members) > 1 else f"{members[0]} and {_others(facts, members[0], since)}"
    state = "still circulating at the end of the logs" if going else "no longer at the end of the logs"
    what = (
        f"{number} of server {origin} {verb} through {through}, up to {worst.laps:,} "
        f"{'lap' if worst.laps == 1 else 'laps'}; {state}. {_why_nobody_drops(facts, origin)}"
    )
    return Incident(
        LOOP,
        CRITICAL if going else WARNING,
        what,
        [origin],
        members,
        since=since,
        until=_most(one.until for one in found),
        transactions=transactions,
        laps=worst.laps,
        lap_ms=worst.lap_ms,
        lap_ms_at_most=None if worst.lap_ms is not None else worst.lap_ms_at_most,
        lap_bytes=_most(one.lap_bytes for one in found),
        going=going,
        path=members,
        tables=_tables(one.tables for one in found),
        evidence=[_repeated_line(facts, one, "them") for one in found],
        statements=_stop_loop(facts, origin, members, worst.laps, going=going),
        selects=[("repeats", origin, one.stream) for one in found],
    )


def _others(facts: Facts, member: str, since: int | None) -> str:
    """Say through which other members something may circulate that was read in the log of one only."""
    last = {one.source: one.last_time for one in facts.streams}
    behind = [name for name, at in last.items() if name != member and since and at and at < since]
    return f"perhaps {_and(behind)}, whose logs end before it" if behind else "members that were not read"


def _still_going(facts: Facts, one: Repeat) -> bool:
    """Return whether something may still circulate: unless the log continues for long without it."""
    end, last = facts.streams[one.stream].last_time, one.until or one.since
    if one.going or end is None or last is None:
        return True
    lap_s = (one.lap_ms or one.lap_ms_at_most or 0) / 1000
    return end - last < _QUIET_S + 2 * lap_s


def _why_nobody_drops(facts: Facts, origin: int) -> str:
    owners = facts.owners(origin)
    for member in owners:
        ids = facts.stream_of(member).own
        if ids and ids[-1] != origin:
            return (
                f"{member} had this id and has {ids[-1]} now: no member drops events that were in transit "
                "with the old id."
            )
    again = {facts.source(one.stream) for one in facts.repeats if one.origin == origin}
    if changed := [member for member in owners if member in again]:
        return (
            f"{_and(changed)} has applied again what it wrote with its own id: its server_id was changed "
            "(SET GLOBAL server_id) while this was in transit, and no member drops it."
        )
    if owners:
        return f"{_and(owners)}, whose id it is, does not receive it again."
    written = facts.sources(facts.written_at.get(origin, ()))
    if len(written) == 1:
        return (
            f"{written[0]} wrote it with an id that it no longer has: its server_id, or a session's, was "
            "changed while this was in transit. No member drops it."
        )
    return "No member has this id: its server left the ring, or changed its id, while this was in transit."


def _stop_loop(
    facts: Facts, origin: int, members: Sequence[str], laps: int, *, going: bool
) -> list[Statement]:
    """Let one member drop what circulates. No id that a server has now is ignored, and none is set again."""
    owners = facts.owners(origin)
    # A second lap proves that no member has the id, also none whose log was not read.
    unproved = not going if owners else laps < 2
    if unproved or origin in facts.servers:
        return []
    # What a member wrote itself is dropped there; else where one connection exists, which needs no name.
    member = owners[0] if owners else min(members, key=lambda one: len(facts.topology.upstream(one)) > 1)
    own = facts.stream_of(member).own
    if own and own[-1] == origin:
        if member not in members:
            return []  # it drops what it receives of its own
        why = (
            f"if SELECT @@GLOBAL.server_id shows another id: gives {member} the id back with which it wrote "
            "these, and it drops them. Before an id is changed, stop writing, and wait until all members "
            "have what was written with it."
        )
        return [Statement(member, f"SET GLOBAL server_id = {origin};", why)]
    if any(one.own and facts.stream_of(one.source).own[-1] == origin for one in facts.streams):
        return []
    made = []
    if len(facts.topology.upstream(member)) < 2:
        why = (
            f"makes {member} drop events with the id {origin}: one member of the ring is enough. The list "
            "replaces an earlier one; repeat those ids."
        )
        made.append(Statement(member, _Dialect.of(facts.stream_of(member)).ignoring(origin), why))
    if own:
        adopted = (
            f"SET GLOBAL server_id = {origin};\n-- until nothing circulates any more, then\n"
            f"SET GLOBAL server_id = {own[-1]};"
        )
        why = (
            f"{'the same ' if made else ''}without restarting replication: {member} takes the orphan's id "
            "and drops events with it. Write nothing on it meanwhile."
        )
        made.append(Statement(member, adopted, why))
    return made


def _delivered_twice(facts: Facts, member: str, found: Sequence[Repeat], ways: Sequence[str]) -> Incident:
    """Make an incident of a member that gets everything twice; its replicas have inherited that."""
    once = "gtid_ignore_duplicates = ON" if facts.stream_of(member).is_mariadb else "gtid_mode = ON"
    what = (
        f"{member} gets {{}} twice, through {_and(ways)}, and applies each of them twice. It applies a "
        f"transaction once if all members and connections use GTIDs, with {once}, or if only one of "
        f"{_and(ways)} passes on what it receives (log_slave_updates)."
    )
    incident = _twice(facts, member, found, "delivered twice", what)
    incident.path = [*ways, member]
    return incident


def _applied_twice(facts: Facts, member: str, found: Sequence[Repeat]) -> Incident:
    what = (
        f"{member} has applied {{}} twice, and other members once: replication to it was set to an earlier "
        "position, or they were executed again by hand. Rows without a key are there twice; rows that were "
        "changed since may have earlier values."
    )
    return _twice(facts, member, found, "applied twice", what)


def _twice(facts: Facts, member: str, found: Sequence[Repeat], kind: str, what: str) -> Incident:
    """Make an incident of what a member, and members behind it, have twice; ``what`` has a place for it."""
    origins = sorted({one.origin for one in found})
    heirs = [other for other in facts.sources(one.stream for one in found) if other != member]
    downstream = f" Its replicas have them twice, too: {_and(heirs)}." if heirs else ""
    most: dict[int, int] = {}
    for one in found:
        if facts.source(one.stream) == member or one.origin not in most:
            most[one.origin] = one.transactions
    transactions = sum(most.values())
    return Incident(
        kind,
        WARNING,
        what.format(f"{transactions:,} transactions of {_servers(origins)}") + downstream,
        origins,
        [member, *heirs],
        since=_least(one.since for one in found),
        until=_most(one.until for one in found),
        transactions=transactions,
        tables=_tables(one.tables for one in found),
        evidence=[_repeated_line(facts, one, f"server {one.origin}") for one in found],
        selects=[("repeats", one.origin, one.stream) for one in found],
    )


def _reused(facts: Facts) -> Iterator[Incident]:
    by_origin: dict[int, list[Repeat]] = {}
    for one in facts.repeats:
        if one.kind == REUSED and one.origin not in facts.shared:
            by_origin.setdefault(one.origin, []).append(one)
    for origin, found in sorted(by_origin.items()):
        members = facts.sources(one.stream for one in found)
        transactions = max(one.transactions for one in found)
        kind, severity = "GTID used twice", WARNING
        what = (
            f"{transactions:,} GTIDs of server {origin} stand for different transactions: GTIDs were set by "
            "hand, reset, or assigned by two servers. Members that have executed one skip the other."
        )
        statements, lost = [], list[Absence]()
        if (member := _counts_again(facts, origin, found)) is not None:
            others = [other for other in members if other != member]
            members = [member, *others]
            kind, severity = "restored member", CRITICAL
            what = (
                f"{member} has assigned {transactions:,} GTIDs a second time: in the log of {_and(others)} "
                f"they stand for what {member} wrote before. A member restored from a backup under its old "
                f"id continues from the GTIDs of the backup. {member} lacks what it wrote after it, since "
                f"it drops events with its own id; {_and(others)}, having executed these GTIDs, skipped "
                "what they stand for now."
            )
            statements.append(Statement(member, _Dialect.of(facts.stream_of(member)).read_only, _REBUILD))
            lost = _lost_with(facts, origin, member)
            if lost:
                what += f" {_lost_at(facts, lost)}"
        yield Incident(
            kind,
            severity,
            what,
            [origin],
            members,
            since=_least(one.since for one in found),
            until=_most(one.until for one in found),
            transactions=transactions,
            tables=_tables(one.tables for one in found),
            evidence=[f"{facts.source(one.stream)}: {', '.join(one.evidence)}" for one in found],
            statements=statements,
            selects=[*(("repeats", origin, one.stream) for one in found), *(one.select for one in lost)],
        )


def _lost_with(facts: Facts, origin: int, member: str) -> list[Absence]:
    """Return what else a restored member lacks of its own, where it has assigned GTIDs again."""
    return [
        one
        for one in facts.absences
        if (one.rule, one.origin, facts.source(one.stream)) == (RESTORED, origin, member)
    ]


_REBUILD: Final = (
    "prevents further divergence. Rows differ on both sides now, and replication does not repair them: the "
    "events under these keys show which. Apply the changes worth keeping where they are missing; then copy "
    "another member to this one, with a unique id and server_uuid (without auto.cnf)."
)


def _counts_again(facts: Facts, origin: int, found: Sequence[Repeat]) -> str | None:
    """Return the member that wrote under GTIDs of its own after others had executed them, if there is one."""
    owners = facts.owners(origin)
    own = [one.since for one in found if facts.source(one.stream) in owners]
    others = [one.since for one in found if facts.source(one.stream) not in owners]
    first, last = _least(own), _most(others)
    if len(owners) != 1 or first is None or last is None or first <= last:
        return None
    return owners[0]


# -- what is missing ----------------------------------------------------------------------------------


def _missing(facts: Facts) -> Iterator[Incident]:
    by_origin: dict[tuple[str, str, int], list[Absence]] = {}
    for one in facts.absences:
        if one.rule in {RESTORED, EMPTIED, FILTERED, *_NOT_ARRIVED} and not _is_of_shared_id(facts, one):
            by_origin.setdefault((one.rule, _place(facts, one), one.origin), []).append(one)
    filtered: dict[str, list[Absence]] = {}
    missing: dict[tuple[str, str], list[list[Absence]]] = {}
    for (rule, place, origin), lost in sorted(by_origin.items()):
        if rule == RESTORED:
            yield from _restored(facts, origin, lost)
        elif rule == FILTERED or (rule in _NOT_ARRIVED and _is_filtered(facts, place, lost)):
            filtered.setdefault(place, []).extend(lost)
        else:
            missing.setdefault((rule, place), []).append(lost)
    for place, lost in filtered.items():
        yield _lacking(facts, place, lost, filtered=True)
    for (rule, place), several in missing.items():
        for lost in _by_time(several):
            if rule == EMPTIED:
                yield _skipped_on_purpose(facts, place, lost)
            else:
                yield _lacking(facts, place, lost, filtered=False)


def _is_filtered(facts: Facts, place: str, lost: Sequence[Absence]) -> bool:
    """Return whether nothing is at a member of the tables, or of the domains, of what got lost there."""
    tables = {table for one in lost for table in one.tables}
    return (bool(tables) and not tables & _there(facts, place, facts.tables)) or bool(
        _left_out_domains(facts, place, lost)
    )


def _left_out_domains(facts: Facts, place: str, lost: Sequence[Absence]) -> list[str]:
    """Return the GTID domains of what got lost at a member, if it has nothing of them."""
    domains = {domain for one in lost for domain in one.domains}
    return sorted(domains) if not domains & _there(facts, place, facts.domains) else []


def _there(facts: Facts, place: str, found: Mapping[int, frozenset[str]]) -> set[str]:
    return {each for one in facts.streams if one.source == place for each in found.get(one.number, ())}


def _skipped_on_purpose(facts: Facts, place: str, lost: Sequence[Absence]) -> Incident:
    members = facts.topology.path(facts.sources(one.stream for one in lost))
    behind = [member for member in members if member != place]
    number = max(_sums(facts, lost).values())
    origins = sorted({one.origin for one in lost})
    tables = _tables(one.tables for one in lost)
    there = facts.sources(number for one in lost for number in one.references)
    of_tables = f" of {', '.join(tables)}" if tables else ""
    what = (
        f"Skipped on purpose at {place}: it has an empty transaction under {number:,} GTIDs of "
        f"{_servers(origins)}, as SET gtid_next makes it in place of one that failed. Their changes"
        f"{of_tables}, in the log of {_and(there)}, are not on {_and([place, *behind])}. "
        "Compare the rows of these events with the tables, and write what is missing on each of them with "
        "SET SESSION sql_log_bin = 0."
    )
    return Incident(
        "skipped on purpose",
        WARNING,
        what,
        origins,
        [place, *behind],
        since=_least(one.since for one in lost),
        until=_most(one.until for one in lost),
        transactions=number,
        tables=tables,
        evidence=[_lost_line(facts, one) for one in lost],
        selects=[one.select for one in lost],
    )


def _by_time(several: Iterable[list[Absence]]) -> Iterator[list[Absence]]:
    """Join what is missing of several origins where its times overlap or touch: it has one cause."""
    joined: list[Absence] = []
    for lost in sorted(several, key=_began):
        if joined and _began(lost) > (_most(one.until for one in joined) or 0) + _TOUCHES_S:
            yield joined
            joined = []
        joined = [*joined, *lost]
    if joined:
        yield joined


def _began(lost: Iterable[Absence]) -> int:
    return _least(one.since for one in lost) or 0


def _place(facts: Facts, one: Absence) -> str:
    """Return where transactions got lost: at the first of the members that lack them.

    Where the logs do not tell which of two members is before the other, and they lack the same, that is one
    of them.
    """
    same = [other for other in facts.absences if (other.rule, other.origin) == (one.rule, one.origin)]
    member = facts.source(one.stream)
    place = _first_of(facts, one.origin, member, facts.sources(other.stream for other in same))
    if place != member or (facts.topology.ring_of(member) and facts.topology.sure):
        return place
    lost = one.transactions, one.since, one.until
    return facts.sources(o.stream for o in same if (o.transactions, o.since, o.until) == lost)[0]


def _restored(facts: Facts, origin: int, lost: Sequence[Absence]) -> Iterator[Incident]:
    again = [one for one in facts.repeats if one.kind == REUSED and one.origin == origin]
    if again and _counts_again(facts, origin, again):
        return  # it is one incident with them
    member = facts.source(lost[0].stream)
    proven = any(one.proven for one in lost)
    span = (_most(one.until for one in lost) or 0) - (_least(one.since for one in lost) or 0)
    if not proven and span < _IN_FLIGHT_S:
        return
    if any(one.found_as for one in lost):
        sure = "it has what it wrote before and after them, and nothing in between"
    elif proven:
        sure = "its log begins after them and does not list them as executed"
    else:
        sure = "its log begins after them; without GTIDs only its tables show whether they are there"
    transactions = sum(one.transactions for one in lost)
    what = (
        f"{member} lacks {transactions:,} transactions of its own id, {origin}, in the log of "
        f"{_and(facts.sources(r for one in lost for r in one.references))}: {sure}. A member that was "
        "restored from a backup under its old id drops what it wrote after the backup when it arrives again."
    )
    regain = (
        " To receive it again, give it an unused server_id and let it replicate from the position that is "
        "stored with the backup."
    )
    head = "restored member", CRITICAL if proven else DOUBT, what + regain
    yield _of_absences(facts, lost, origin, [member], head)


_NOT_ARRIVED: Final = {
    SKIPPED: "Others of {}, before and after them, have arrived.",
    NEVER: "Nothing of {} arrives, unlike other transactions of that log.",
}


def _lacking(facts: Facts, place: str, lost: Sequence[Absence], *, filtered: bool) -> Incident:
    """Make an incident of what one cause kept from arriving at a place, and so at the members after it."""
    members = facts.topology.path(facts.sources(one.stream for one in lost))
    first = members.index(place)
    origins = sorted({one.origin for one in lost})
    how = _NOT_ARRIVED.get(lost[0].rule, "").format("this origin" if len(origins) == 1 else "these origins")
    if filtered:
        domains = _left_out_domains(facts, place, lost)
        only = f"are of the GTID domain {_and(domains)}," if domains else "change only tables"
        how = f"They {only} of which {place} has no change at all: most likely a filter leaves them out."
    show = _Dialect.of(facts.stream_of(place)).show
    how += f" {show} at {place} shows filters, IGNORE_SERVER_IDS, and skipped errors."
    return Incident(
        *(("filtered", DOUBT) if filtered else ("missing", WARNING)),
        f"{_lost_at(facts, lost)} They are of {_servers(origins)}. {how}",
        origins,
        [*members[first:], *members[:first]],
        since=_least(one.since for one in lost),
        until=_most(one.until for one in lost),
        transactions=max(_sums(facts, lost).values()),
        tables=_tables(one.tables for one in lost),
        evidence=[_lost_line(facts, one) for one in lost],
        selects=[one.select for one in lost],
    )


# -- order, turns, and unknown origins ----------------------------------------------------------------


def _reordered(facts: Facts) -> Iterator[Incident]:
    by_stream: dict[int, list[Reordered]] = {}
    for one in facts.reordered:
        by_stream.setdefault(one.stream, []).append(one)
    for stream, found in sorted(by_stream.items()):
        member = facts.source(stream)
        dialect = _Dialect.of(facts.streams[stream])
        transactions = sum(one.transactions for one in found)
        how = _MARIADB_ORDER if dialect.mariadb else _MYSQL_ORDER
        yield Incident(
            "another order",
            DOUBT,
            f"{member} has {transactions:,} transactions of {_servers([o.origin for o in found])} not in "
            f"commit order: it applies {how}",
            [one.origin for one in found],
            [member],
            since=_least(one.since for one in found),
            until=_most(one.until for one in found),
            transactions=transactions,
            evidence=[
                f"{one.transactions:,} of server {one.origin}, by the log of {facts.source(one.reference)}"
                for one in found
            ],
        )


def _diverging(facts: Facts) -> Iterator[Incident]:
    for one in facts.diverging:
        if one.origin in facts.shared:
            continue
        members = facts.sources(one.streams)
        yield Incident(
            "different rows",
            DOUBT,
            f"{one.transactions:,} GTIDs of server {one.origin} change other rows, or rows with other "
            f"earlier values, in one of the logs of {_and(members)} than in another: the tables differed "
            "before, or a GTID stands for two transactions.",
            [one.origin],
            members,
            since=one.since,
            until=one.until,
            transactions=one.transactions,
            tables=_tables([one.tables]),
            selects=[("origin", one.origin, stream) for stream in one.streams],
        )


_MYSQL_ORDER: Final = (
    "them in parallel without preserving the order (see slave_preserve_commit_order, or "
    "replica_preserve_commit_order)."
)
_MARIADB_ORDER: Final = (
    "transactions of several GTID domains (of sessions that set gtid_domain_id) or connections in parallel. "
    "MariaDB preserves the order within a GTID domain, in every slave_parallel_mode, and not between "
    "domains or connections."
)


def _contested(facts: Facts) -> Iterator[Incident]:
    for one in facts.contests:
        owners = [member for origin in one.origins for member in facts.owners(origin)]
        rows = "A row of it changes" if one.keys == 1 else f"{one.keys:,} rows of it change"
        back = one.returns * 2 >= one.turns
        values = " Most of the time a row returns to its earlier values." if back else ""
        yield Incident(
            "ping-pong",
            WARNING if back else DOUBT,
            f"{_servers(one.origins).capitalize()} overwrite each other's updates of {one.table}. {rows} "
            f"hands {one.turns:,} times, each time within {SHORT_S} s.{values} What one writes while the "
            "other's change is in transit is lost: let only one of them write these rows.",
            one.origins,
            list(dict.fromkeys(owners)) or [facts.source(one.stream)],
            since=one.since,
            until=one.until,
            transactions=one.turns + one.keys,
            tables=[one.table],
            evidence=[f"the key {shown}: {number:,} times" for shown, number in one.examples],
            selects=[(f"{TURNS} {one.table}", origin, one.stream) for origin in one.origins],
        )


def _unknown(facts: Facts) -> Iterator[Incident]:
    """Origins outside the given servers, if no loop reports them."""
    looping = {one.origin for one in facts.repeats if one.kind == REPEATED}
    if not facts.servers:
        return
    for origin in sorted({origin for _, origin in facts.counts} - {*facts.servers} - looping):
        streams = [number for number, of in facts.counts if of == origin]
        transactions = max(facts.counts[number, origin] for number in streams)
        members = facts.sources(streams)
        spans = [facts.spans[number, origin] for number in streams if (number, origin) in facts.spans]
        yield Incident(
            "unknown origin",
            WARNING,
            f"{transactions:,} transactions carry the server id {origin}, which is not among "
            f"{', '.join(map(str, facts.servers))}. If its server leaves, no member drops its events in "
            "transit.",
            [origin],
            members,
            since=_least(since for since, _ in spans),
            until=_most(until for _, until in spans),
            transactions=transactions,
            selects=[("origin", origin, number) for number in streams],
        )


# -- statements and words -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Dialect(ServerVersion):
    """How a server wants its statements."""

    @classmethod
    def of(cls, stream: Stream) -> "_Dialect":
        """Read a server's version; without one, that of MySQL 8."""
        return cls(stream.is_mariadb, stream.release or (8, 4, 0))

    @property
    def _replica(self) -> bool:
        return not self.mariadb and self.version >= (8, 0, 23)

    @property
    def stop(self) -> str:
        if self.mariadb:
            return "STOP ALL SLAVES"
        return "STOP REPLICA" if self._replica else "STOP SLAVE"

    @property
    def start(self) -> str:
        return self.stop.replace("STOP", "START")

    @property
    def show(self) -> str:
        if self.mariadb:
            return "SHOW ALL SLAVES STATUS"
        return "SHOW REPLICA STATUS" if self._replica else "SHOW SLAVE STATUS"

    @property
    def set_global(self) -> str:
        return "SET GLOBAL" if self.mariadb or self.version < (8, 0, 11) else "SET PERSIST"

    @property
    def read_only(self) -> str:
        return f"{self.set_global} {'read_only' if self.mariadb else 'super_read_only'} = ON;"

    def ignoring(self, server_id: int) -> str:
        """Write a change of the only connection, which makes it drop what has a server id."""
        stop, start = ("STOP SLAVE", "START SLAVE") if self.mariadb else (self.stop, self.start)
        change = "CHANGE REPLICATION SOURCE TO" if self._replica else "CHANGE MASTER TO"
        return f"{stop};\n{change} IGNORE_SERVER_IDS = ({server_id});\n{start};"


def _and(names: Sequence[str]) -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _servers(origins: Iterable[int]) -> str:
    ids = [str(origin) for origin in dict.fromkeys(origins)]
    return f"server {ids[0]}" if len(ids) == 1 else f"servers {_and(ids)}"


def _tables(several: Iterable[Sequence[str]]) -> list[str]:
    return sorted({table for tables in several for table in tables})[:_TABLES]


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _most(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def as_dict(incident: Incident) -> dict[str, Any]:
    """Return an incident as plain values."""
    names = (name for name in Incident.__slots__ if name not in {"statements", "selects"})
    return {
        **{name: getattr(incident, name) for name in names},
        "statements": [{"member": one.member, "sql": one.sql, "why": one.why} for one in incident.statements],
    }

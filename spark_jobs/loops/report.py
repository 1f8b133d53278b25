"""The page and the summary of loop detection: verdict and ring first, then each incident, then figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame, Row

from spark_jobs.common.charts import count, many, size
from spark_jobs.common.job import Job, moment
from spark_jobs.common.report import Cell, Code, Report
from spark_jobs.loops.incidents import DOUBT, LOOP, Facts, Incident, as_dict
from spark_jobs.loops.presence import AFTER, BEFORE, NO_ROWS, ONE_LOG, TRANSIT, Uncompared
from spark_jobs.loops.ring import draw

_SHOWN: Final = 25
_MANY: Final = 3
_SHOWN_PLACES: Final = 10
_LACKING: Final = frozenset(
    {"duplicate server id", "restored member", "missing", "filtered", "skipped on purpose"}
)
"""Kinds of incidents whose transactions are those that a member lacks."""


@dataclass(slots=True)
class Findings:
    """The results: small ones for the page and the summary, frames for the tables."""

    facts: Facts
    incidents: Sequence[Incident]
    patterns: Sequence[Row]
    undecidable: Sequence[Row]
    transactions: int
    compared: int
    common: int
    """Transactions that several members have."""
    undecided: int
    alone: Sequence[str]
    """Members whose logs have nothing in common with any other."""
    uncompared: Sequence[Uncompared]
    gaps: Sequence[Row]
    """Places at which changes are missing in a log."""
    unlooked: Sequence[str]
    """Tables that several servers update, and whose keys the logs do not tell."""
    tables: Mapping[str, DataFrame]
    keys: Mapping[int, Sequence[str]] = field(default_factory=dict)
    unread: int = 0
    """Records that could not be read: something may be in them."""

    @property
    def transit(self) -> list[Uncompared]:
        """What was on its way to members when their logs were read."""
        return [one for one in self.uncompared if one.why == TRANSIT]

    @property
    def compared_to(self) -> int | None:
        """The time from which on something was on its way, None if nothing was."""
        return min((one.since for one in self.transit if one.since is not None), default=None)


def verdict(findings: Findings) -> tuple[str, str, str]:
    """Return what came out: a word for programs, a sentence, a mood."""
    bad = list(dict.fromkeys(one.kind for one in findings.incidents if one.severity != DOUBT))
    if bad:
        number = sum(one.severity != DOUBT for one in findings.incidents)
        incidents = "One incident" if number == 1 else f"{number} incidents"
        return "incidents", f"{incidents}: {', '.join(bad)}.", "bad"
    for word, sentence in _doubts(findings):
        return word, sentence, "doubt"
    members = findings.facts.topology.members
    if len(members) == 1:
        text = (
            f"No loop in the log of {members[0]}. What others have and it lacks is seen only with their "
            "logs: give --source for each member."
        )
    else:
        text = (
            f"No loop: {count(findings.common)} different transactions are in the logs of several of "
            f"{len(members)} members, none is missing or twice.{_beside(findings)}"
        )
    return "healthy", text, "good"


def _beside(findings: Findings) -> str:
    """Say what a good verdict is not about."""
    text = ""
    transit = findings.transit
    if transit:
        later = ", ".join(f"{many(one.transactions, 'transaction')} to {one.member}" for one in transit)
        text += f" Compared up to {_time(findings.compared_to)}; after it, {later} are still on their way."
    if (alone := findings.compared - findings.common - sum(one.transactions for one in transit)) > 0:
        text += f" In one log only, where nothing tells that they should be elsewhere: {count(alone)}."
    return text


def _doubts(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield what speaks against a good verdict, the weightiest first."""
    if not findings.transactions:
        yield "nothing read", "No verdict: the input has no transactions."
    elif not findings.compared:
        text = "No verdict: no transaction has a GTID, a row or a statement that could be compared."
        yield "nothing read", text
    if findings.incidents:
        kinds = dict.fromkeys(one.kind for one in findings.incidents)
        yield "doubt", f"Nothing circulates, but see: {', '.join(kinds)}."
    if findings.unread:
        text = f"Nothing circulates in what could be read, but {many(findings.unread, 'record')} could not."
        yield "doubt", text
    if findings.alone:
        text = (
            f"No verdict for {', '.join(findings.alone)}: no transaction is also in the log of another "
            "member. Either replication does not run, log_slave_updates is off, or the logs do not overlap."
        )
        yield "not compared", text
    if nameless := [one.source for one in findings.facts.streams if not one.own]:
        text = (
            f"Nothing circulates as far as the logs tell, but the server id of {', '.join(nameless)} is not "
            "known: the beginning of its log file is no longer in the topic. Run the job again when another "
            "file has begun (FLUSH BINARY LOGS)."
        )
        yield "not compared", text
    if places := list(_uncompared(findings)):
        more = f"; and {len(places) - _SHOWN_PLACES} more" if len(places) > _SHOWN_PLACES else ""
        yield "not compared", f"Not all was compared: {'; '.join(places[:_SHOWN_PLACES])}{more}."
    if findings.unlooked:
        text = (
            f"No verdict on rows that servers overwrite in turns for {', '.join(findings.unlooked)}: no "
            "primary key is known (binlog_row_metadata = FULL logs it), or row images lack columns."
        )
        yield "not compared", text
    if findings.undecided:
        what = many(findings.undecided, "repeated transaction")
        text = f"No loop for certain, but {what} that the logs do not identify as a loop or as genuine."
        yield "undecidable", text


def _uncompared(findings: Findings) -> Iterator[str]:
    """Say what was not compared: places, then members one by one."""
    facts = findings.facts
    for gap in findings.gaps:
        yield (
            f"the log of {gap.source} has a gap at {gap.log_file}, read {_time(gap.timestamp)} ({gap.reason})"
        )
    for one in findings.uncompared:
        if one.why == TRANSIT:
            continue
        there = ", ".join(facts.sources(one.references))
        span = f"{many(one.transactions, 'transaction')} from {_time(one.since)} to {_time(one.until)}"
        if one.why == ONE_LOG:
            yield f"{span} are in the log of {one.member} only"
            continue
        if one.why == NO_ROWS:
            yield (
                f"the log of {one.member}, which has rows for statements, has none for {span}, in the log of "
                f"{there}: they changed no row there, or were skipped"
            )
            continue
        yield f"the log of {one.member} lacks {span}, in the log of {there}: {_why(facts, one)}"
    own = {facts.source(at) for at, origin in facts.counts if origin in facts.streams[at].own}
    foreign = {facts.source(at) for at, origin in facts.counts if origin not in facts.streams[at].own}
    for member in facts.topology.members:
        if own - {member} and member not in {*foreign, *findings.alone}:
            yield (
                f"the log of {member} has only what its server wrote itself: nothing tells what arrives "
                "there (see log_slave_updates)"
            )


def _why(facts: Facts, one: Uncompared) -> str:
    times = [stream for stream in facts.streams if stream.source == one.member]
    if one.why == BEFORE:
        begins = min((stream.first_time for stream in times if stream.first_time), default=None)
        return f"its log was read only from {_time(begins) or 'a later place'} on"
    if one.why == AFTER:
        ends = max((stream.last_time or 0 for stream in times), default=0)
        if ends < (one.since or 0):
            return f"its log was read only to {_time(ends)}"
        return "replication to it has stopped since, or lags; its log goes on without them"
    return "nothing tells why"


def summary(job: Job, findings: Findings) -> dict[str, Any]:
    """Return the incidents for ``summary.json``, with the first keys of each."""
    facts = findings.facts
    word, text, _ = verdict(findings)
    return {
        "verdict": word,
        "verdict_text": text,
        "transactions": findings.transactions,
        "transactions_compared": findings.compared,
        "transactions_in_several_logs": findings.common,
        "not_compared": list(_uncompared(findings))[:_SHOWN],
        "compared_up_to": moment(findings.compared_to),
        "in_transit": {one.member: one.transactions for one in findings.transit},
        "incidents_total": len(findings.incidents),
        "undecidable_total": findings.undecided,
        "incidents": [
            {
                **as_dict(one), "since": moment(one.since), "until": moment(one.until),
                "raw_keys": _keys(findings, n),
            }
            for n, one in enumerate(findings.incidents[:_SHOWN], 1)
        ],
        "topology": {
            "members": [
                {
                    "source": one.source, "epoch": one.epoch, "server_ids": list(one.own),
                    "server_version": one.version, "transactions": one.transactions,
                }
                for one in facts.streams
            ],
            "ways": [list(way) for way in facts.topology.edges],
            "rings": [list(ring) for ring in facts.topology.rings],
            "order_is_sure": facts.topology.sure,
        },
        "presence": [
            {
                "origin": row.origin, "times": list(row.times), "transactions": row.transactions,
                "differs": row.differs,
            }
            for row in findings.patterns
        ],
        "undecidable": [row.asDict() for row in findings.undecidable[:_SHOWN]],
        "sources": job.sources,
    }  # fmt: skip


def _keys(findings: Findings, number: int) -> list[str]:
    return list(findings.keys.get(number, ()))


def report(job: Job, findings: Findings) -> Report:
    """Build the page."""
    page = Report(f"Loop detection in {', '.join(job.sources)}", ["; ".join(job.facts)])
    _, text, mood = verdict(findings)
    page.verdict(text, mood)
    missing = max((one.transactions for one in findings.incidents if one.kind in _LACKING), default=0)
    laps = max((one.laps or 0 for one in findings.incidents), default=0)
    page.tiles(
        [
            ("members", len(findings.facts.topology.members)),
            ("transactions in all logs", findings.transactions),
            ("incidents", len(findings.incidents)),
            ("laps, at most", laps),
            ("missing, at most", missing),
        ]
    )
    _picture(page, findings)
    for note in job.notes:
        page.text(note)
    for number, incident in enumerate(findings.incidents[:_SHOWN], 1):
        _incident(page, number, incident, _keys(findings, number))
    if len(findings.incidents) > _SHOWN:
        page.text(f"The {_SHOWN} worst; all {len(findings.incidents)} are in the table incidents.")
    if findings.incidents and (places := list(_uncompared(findings))):
        page.section("Not compared")
        page.points([("doubt", f"{place[0].upper()}{place[1:]}.") for place in places[:_SHOWN]])
    if findings.facts.streams:
        _presence(page, findings)
        _members(page, findings)
    if findings.undecidable:
        _undecidable(page, findings)
    return page


def _picture(page: Report, findings: Findings) -> None:
    """Draw the members, with the path of the worst incident."""
    facts = findings.facts
    topology = facts.topology
    worst: Incident | None = findings.incidents[0] if findings.incidents else None
    path = worst.links if worst is not None else []
    ordered = topology.path(topology.members)
    marks: dict[str, str] = {}
    for incident in reversed(findings.incidents):
        for member in incident.members:
            marks[member] = "doubt" if incident.severity == DOUBT else "bad"
    named = [(member, _ids(facts.stream_of(member).own)) for member in ordered]
    known = {server_id for one in facts.streams for server_id in one.own}
    looping = worst.origins if worst is not None and worst.kind == LOOP else []
    strange = [origin for origin in looping if origin not in known]
    if not named:
        return
    title = ", ".join(f"{start} to {end}" for start, end in path) or ", ".join(ordered)
    origin = f"id {strange[0]}" if strange else ""
    page.chart(draw(title, named, topology.edges, path=path, marks=marks, origin=origin))
    told = "Circles contain server ids. The topology is inferred from the logs."
    if not topology.sure:
        told += " They do not show the order of the ring: the one drawn is a guess."
    page.text(told)


def _ids(own: Sequence[int]) -> str:
    text = "?" if not own else str(own[-1])
    return text if len(text) <= 6 else f"…{text[-5:]}"


def _incident(page: Report, number: int, incident: Incident, keys: Sequence[str]) -> None:
    page.section(f"{number}. {incident.kind[0].upper()}{incident.kind[1:]}")
    page.points([("doubt" if incident.severity == DOUBT else "bad", incident.what)])
    page.facts(
        [
            ("severity", incident.severity),
            ("members", ", ".join(incident.members)),
            ("since", _time(incident.since)),
            ("until", "still circulating" if incident.going else _time(incident.until)),
            ("origin", ", ".join(f"server {origin}" for origin in incident.origins)),
            ("path", _path(incident)),
            ("transactions", count(incident.transactions)),
            ("laps, at most", None if incident.laps is None else count(incident.laps)),
            ("a lap takes", _lap(incident)),
            ("a lap adds", _growth(incident)),
            ("tables", ", ".join(incident.tables)),
        ]
    )
    for statement in incident.statements:
        page.statement(f"On {statement.member}: {statement.why}", statement.sql)
    if incident.evidence:
        page.text("Evidence: " + "; ".join(incident.evidence) + ".")
    if keys:
        page.keys("Raw events, by key (more in the table evidence)", keys)


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else f"{moment(seconds)} UTC"


def _path(incident: Incident) -> str:
    if len(incident.path) <= 1:
        return ""
    if incident.kind == LOOP:
        return " → ".join([*incident.path, incident.path[0]])
    return ", ".join(f"{start} → {end}" for start, end in incident.links)


def _lap(incident: Incident) -> str | None:
    if incident.lap_ms is not None:
        return f"{incident.lap_ms:,.1f} ms"
    return None if incident.lap_ms_at_most is None else f"{incident.lap_ms_at_most:,.1f} ms at most"


def _growth(incident: Incident) -> str | None:
    """Say by how much a lap makes each log longer, and how fast that is."""
    if incident.lap_bytes is None:
        return None
    per_second = ""
    if incident.lap_ms:
        per_second = f", {size(1000 * incident.lap_bytes / incident.lap_ms)} a second"
    return f"{size(incident.lap_bytes)} to each log{per_second}"


def _presence(page: Report, findings: Findings) -> None:
    page.section(
        "Where transactions are",
        "How often the log of each member has a transaction. In a healthy ring each member has it once; "
        "transactions outside the part of a log that was read do not count as missing.",
    )
    streams = findings.facts.streams
    several = len({one.source for one in streams}) < len(streams)
    names = [f"{one.source}, epoch {one.epoch}" if several else one.source for one in streams]
    page.table(
        ["origin", *names, "transactions", "from (UTC)", "to (UTC)"],
        [
            (
                Code(str(row.origin)), *(_times(times, differs=row.differs) for times in row.times),
                row.transactions,
                moment(row.since), moment(row.until),
            )
            for row in findings.patterns
        ],
    )  # fmt: skip


def _times(times: int, *, differs: bool) -> Cell:
    if times and differs:
        return "one GTID, another transaction"
    return "not" if not times else "once" if times == 1 else "twice" if times < _MANY else "more often"


def _members(page: Report, findings: Findings) -> None:
    facts = findings.facts
    page.section("Members and origins")
    page.table(
        ["member", "epoch", "server id", "version", "transactions", "last (UTC)"],
        [
            (
                one.source, one.epoch, Code(", ".join(map(str, one.own)) or "unknown"), one.version,
                one.transactions, moment(one.last_time),
            )
            for one in facts.streams
        ],
    )  # fmt: skip
    totals: dict[int, int] = {}
    for (_, origin), number in facts.counts.items():
        totals[origin] = max(totals.get(origin, 0), number)
    looping = {origin for one in findings.incidents if one.kind == LOOP for origin in one.origins}
    page.table(
        ["origin", "whose", "transactions in one log, at most"],
        [
            (Code(str(origin)), _whose(findings, origin, origin in looping), number)
            for origin, number in sorted(totals.items())
        ],
    )


def _whose(findings: Findings, origin: int, looping: bool) -> str:
    owners = findings.facts.owners(origin)
    if owners:
        return ", ".join(owners)
    if origin in findings.facts.servers:
        return "named in --servers"
    return "no server: it circulates" if looping else "a server whose log was not read"


def _undecidable(page: Report, findings: Findings) -> None:
    page.section(
        "Undecidable repeats",
        "Equal transactions without GTID for which the logs do not distinguish a loop from genuine work, "
        "such as the same row inserted twice within a second, or by a session that sets its TIMESTAMP. With "
        "the log of the origin as another --source they can be distinguished.",
    )
    rows: Sequence[Row] = findings.undecidable[:_SHOWN]
    page.table(
        ["origin", "member", "times", "tables", "dated (UTC)", "first event", "last event"],
        [
            (
                Code(str(row.origin)), findings.facts.source(row.stream), row.occurrences,
                ", ".join(row.tables) or None, moment(row.dated), Code(row.first_key), Code(row.last_key),
            )
            for row in rows
        ],
    )  # fmt: skip
    if findings.undecided > len(rows):
        page.text(f"The {len(rows)} with most occurrences of {count(findings.undecided)}.")

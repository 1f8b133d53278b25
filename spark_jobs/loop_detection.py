"""Loop detection: which transactions circulate in a topology, are delivered twice, or never arrive.

In a ring each server drops the events that carry its own id. If the origin of an event has left the ring, no
server drops it: it is applied again, lap after lap. If two servers share an id, each drops what the other
wrote; a member that was restored under its old id drops what it wrote after the backup. So the job looks for
each transaction in the logs of all members (:mod:`spark_jobs.loops.presence`), repeats in one log are
classified (:mod:`spark_jobs.loops.laps`), the ring is inferred (:mod:`spark_jobs.loops.topology`), and each
cause becomes one incident (:mod:`spark_jobs.loops.incidents`).

Reads ``{source}.events`` of the members, a source each (:mod:`spark_jobs.loops.logs`); writes, in the output
folder, Parquet tables ``presence``, ``repeats``, ``absences``, ``incidents`` and ``evidence`` (keys of raw
events), the incidents as ``summary.json`` and a page, ``report.html``.

    millrace job loop_detection --source north --source east --source south
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Final, Protocol

import click
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sf

from millrace.kafka.alerts import ALERTS, tell_alerts
from spark_jobs.common.follow import Pace, check_endless, follow_options
from spark_jobs.common.job import Job, job_command, persisted
from spark_jobs.common.rows import contradictions
from spark_jobs.common.transactions import INSTANCE
from spark_jobs.loops.alerts import new_alerts
from spark_jobs.loops.follow import follow as follow_members
from spark_jobs.loops.incidents import (
    Absence,
    Diverging,
    Facts,
    Incident,
    Reordered,
    Repeat,
    as_dict,
    find_incidents,
    shared_ids,
)
from spark_jobs.loops.laps import REPEATED, UNDECIDABLE, judge, repeats, suspects, with_clocks
from spark_jobs.loops.logs import Logs, read_logs
from spark_jobs.loops.ping_pong import TURNS, contests, shared_updates, states_of, turns, unlooked
from spark_jobs.loops.presence import (
    EMPTIED,
    FILTERED,
    NO_ROWS,
    OWN,
    RESTORED,
    SHARED_ID,
    SKIPPED,
    STATEMENTS,
    Stream,
    absences,
    claims,
    domain,
    executed_before,
    find_streams,
    heirs,
    in_transit,
    order_of,
    pairs,
    presence,
    sign,
    stream_frame,
    uncompared,
    without_rows,
)
from spark_jobs.loops.report import Findings, report, summary
from spark_jobs.loops.topology import Passage, Topology, in_rings, infer

_PASSAGES: Final = 5000
_STRETCH: Final = 2
_MOST_PATTERNS: Final = 200
_MOST_TABLES: Final = 10_000
_OCCURRENCES: Final = 100
_KEYS: Final = 1000
_KEYS_SHOWN: Final = 20
_MOST_READ: Final = 4 * _KEYS
"""Offsets of a transaction that are read again."""

_SHOWN: Final = 100


class Steps(Protocol):
    """Prints the steps of the work."""

    def step(self, text: str) -> AbstractContextManager[None]:
        """Print a step."""


def investigate(
    spark: SparkSession,
    logs: Logs,
    sources: Sequence[str],
    servers: Sequence[int],
    steps: Steps,
    *,
    ping_pong: bool = False,
) -> Findings:
    """Look over the logs of all members. With ``ping_pong`` all rows are read."""
    events = cache(lambda: persisted(logs.events()))
    with steps.step("transactions compared"):
        streams = find_streams(logs.heads, logs.transactions, sources)
        by_commit = all(one.dates_commits for one in streams)
        signed = sign(logs.transactions, stream_frame(spark, streams), by_commit=by_commit)
        present = persisted(presence(signed))
    with steps.step("repeats judged"):
        common = pairs(present).collect()
        counted = _counts(signed).collect()
        counts = {(row.stream, row.server_id): row.transactions for row in counted}
        apart = {(r.reference, r.member, r.origin) for r in common if r.apart}
        same = {(r.reference, r.member, r.origin) for r in common} - apart
        shared = shared_ids(streams, same, counts)
        suspected = persisted(suspects(present, _owners(streams, shared)))
        reach = _reach(streams, common)
        rings = in_rings(sources, reach)
        ringed = [one.number for one in streams if one.source in rings]
        judged = persisted(_judged(events, signed, suspected, ringed))
        repeated = _repeats(judged)
    with steps.step("members compared"):
        made, continued = claims(streams, common, counts, shared), heirs(streams, common)
        with_statements = {
            row.stream for row in counted if row.statements and row.server_id not in streams[row.stream].own
        }
        missing = absences(spark, present, made, streams, continued, with_statements)
        absent, reordered = _absent(spark, present, streams, common, missing)
        lost = _absences(absent)
        if any(one.rule == OWN for one in lost):
            mixed = _mixed(present, absent)
            lost = [_as_restored(one, mixed) for one in lost]
        handed, keyless = None, list[str]()
        if ping_pong:
            updates = shared_updates(events())
            states = persisted(states_of(updates, events()))
            handed, keyless = persisted(turns(states, signed)), unlooked(updates, states)
        facts = Facts(
            _with_present_ids(streams, repeated, counts),
            _topology(streams, reach, present, repeated),
            repeats=repeated,
            absences=lost,
            reordered=reordered,
            contests=contests(handed) if handed is not None else (),
            shared=shared,
            servers=servers,
            passed=_passed(suspected, judged),
            written_at=_written_at(suspected, streams),
            tables=_tables(signed),
            domains=_domains(counted),
            diverging=_diverging(present),
            counts=counts,
            spans={(row.stream, row.server_id): (row.since, row.until) for row in counted},
        )
        incidents = find_incidents(facts)
        selectable = _selectable(judged, absent, signed)
        if handed is not None:
            selectable = selectable.unionByName(_turns_selectable(handed))
        evidence = _evidence(spark, incidents, selectable, signed, logs)
        told = _told(spark, incidents, absent)
        lacking = uncompared(spark, present, streams, common, facts.topology.reached, told)
        unsure = [*in_transit(lacking, signed, streams), *without_rows(absent, streams)]
    shown = evidence.where(sf.col("nth") <= _KEYS_SHOWN).orderBy("incident", "nth").collect()
    keys: dict[int, list[str]] = {}
    for row in shown:
        keys.setdefault(row.incident, []).append(row.raw_key)
    ((compared, several),) = present.agg(sf.count("*"), sf.count_if(_in_several(streams))).collect()
    undecided = judged.where(sf.col("kind") == UNDECIDABLE)
    return Findings(
        facts,
        incidents,
        patterns=_patterns(present, len(streams)).collect(),
        undecidable=undecided.orderBy(sf.desc("occurrences"), "stream", "first_offset")
        .limit(_SHOWN)
        .collect(),
        transactions=sum(one.transactions for one in streams),
        compared=compared,
        common=several,
        undecided=undecided.select("signature").distinct().count(),
        alone=_alone(streams, common),
        uncompared=unsure,
        gaps=logs.gaps.orderBy("source", "offset").limit(_SHOWN).collect(),
        unlooked=keyless,
        tables={
            "presence": _named(present, streams),
            "repeats": judged,
            "absences": absent.drop("low", "high"),
            "evidence": evidence,
            "incidents": _incident_frame(spark, incidents),
        },
        keys=keys,
    )


def _owners(streams: Sequence[Stream], shared: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Return server ids, the streams in which their repeats are genuine, and between what offsets."""
    return [
        (server_id, one.number, *span)
        for one in streams
        for server_id in one.own
        if server_id not in shared
        for span in one.offsets_of(server_id)
    ]


def _judged(
    events: Callable[[], DataFrame], signed: DataFrame, suspected: DataFrame, ringed: Sequence[int]
) -> DataFrame:
    timed = persisted(with_clocks(repeats(signed, suspected), signed))
    unnamed = timed.where(~sf.col("by_gtid") & sf.col("expected").isNull())
    if not unnamed.isEmpty():
        wrong = contradictions(events(), unnamed).withColumn("wrong", sf.lit(True))
        joined = timed.drop("contradicts").join(wrong, list(INSTANCE), "left")
        timed = joined.withColumnRenamed("wrong", "contradicts")
    judged = judge(timed, ringed)
    same = Window.partitionBy("signature")
    sure = sf.max(sf.when(sf.col("kind") != UNDECIDABLE, sf.struct("kind", "evidence"))).over(same)
    settled = judged.withColumn("sure", sure)
    return settled.withColumns(
        {
            "kind": sf.coalesce("sure.kind", "kind"),
            "evidence": sf.coalesce("evidence", "sure.evidence"),
        }
    ).drop("sure")


def _repeats(judged: DataFrame) -> list[Repeat]:
    # The clock of the others may have stood still meanwhile.
    laps_s = sf.coalesce(sf.col("lap_ms") * sf.col("laps") / 1000, sf.lit(0))
    ended = (sf.col("dated") + laps_s).cast("bigint")
    summed = (
        judged.where(sf.col("kind") != UNDECIDABLE)
        .groupBy("kind", "origin", "stream")
        .agg(
            sf.count("*").alias("transactions"),
            sf.sum("occurrences").alias("occurrences"),
            sf.sum("bytes").alias("lap_bytes"),
            sf.max("laps").alias("laps"),
            sf.min("dated").alias("since"),
            sf.max(sf.greatest("last_clock", ended)).alias("until"),
            sf.bool_or("going").alias("going"),
            sf.max_by("lap_ms", sf.when(sf.col("lap_ms").isNotNull(), sf.col("laps"))).alias("lap_ms"),
            sf.max_by("lap_ms_at_most", sf.when(sf.col("lap_ms_at_most").isNotNull(), sf.col("laps"))).alias(
                "lap_ms_at_most"
            ),
            sf.sort_array(sf.collect_set("evidence")).alias("evidence"),
            sf.array_distinct(sf.flatten(sf.collect_set("tables"))).alias("tables"),
        )
    )
    return [Repeat(**row.asDict()) for row in summed.orderBy("origin", "stream").collect()]


def _counts(signed: DataFrame) -> DataFrame:
    return signed.groupBy("stream", "server_id").agg(
        sf.count("*").alias("transactions"),
        sf.min("dated").alias("since"),
        sf.max("dated_to").alias("until"),
        sf.count_if(sf.col("logged") == STATEMENTS).alias("statements"),
        sf.collect_set(domain()).alias("domains"),
    )


def _absent(
    spark: SparkSession,
    present: DataFrame,
    streams: Sequence[Stream],
    common: Sequence[Row],
    missing: DataFrame,
) -> tuple[DataFrame, list[Reordered]]:
    """Return what of that is ``missing``, and what did not arrive in commit order."""
    found = persisted(missing)
    by_order = (
        found.where(sf.col("rule").isin(SKIPPED, OWN)).select("reference", "member", "origin").distinct()
    )
    own = {
        (row.reference, row.member, row.origin) for row in common if row.origin in streams[row.reference].own
    }
    order = order_of(spark, present, own | {tuple(row) for row in by_order.collect()})
    ahead = spark.createDataFrame(
        [(row.reference, row.member, row.origin, row.ahead) for row in order],
        "reference int, member int, origin bigint, ahead bigint",
    )
    narrowed = found.join(sf.broadcast(ahead), ["reference", "member", "origin"], "left")
    slack = sf.when(sf.col("rule").isin(SKIPPED, OWN), sf.coalesce("ahead", sf.lit(0))).otherwise(0)
    inside = (sf.col("first_offset") >= sf.col("low") + slack) & (
        sf.col("last_offset") <= sf.col("high") - slack
    )
    proven = persisted(_proven(narrowed.where(inside).drop("ahead"), streams))
    reordered = [
        Reordered(row.origin, row.reference, row.member, row.reordered, row.since, row.until)
        for row in sorted(order)
        if row.reordered and (row.reference, row.member, row.origin) in own
    ]
    return proven, reordered


def _proven(found: DataFrame, streams: Sequence[Stream]) -> DataFrame:
    """Leave out what the head of a member's log lists as executed; ``proven`` where it lists others."""
    lists = {one.number: one.gtids for one in streams if one.gtids is not None}

    listed = sf.udf(lambda name, member: executed_before(name, lists.get(member)), "boolean")
    asked = (sf.col("rule") == RESTORED) & sf.col("by_gtid")
    known = found.withColumn("listed", sf.when(asked, listed("transaction", "member")))
    left = known.where(~sf.coalesce("listed", sf.lit(False)))
    proven = (sf.col("rule") != RESTORED) | sf.col("listed").isNotNull()
    return left.withColumn("proven", proven).drop("listed")


def _mixed(present: DataFrame, absent: DataFrame) -> set[tuple[int, int]]:
    """Return the members, with the origin, that have some of their own from among those that they lack.

    A member that was restored lacks all that it wrote in one stretch of time; where another server writes
    with its id, what it has and what it lacks alternate.
    """
    own = absent.where(sf.col("rule") == OWN)
    spans = own.groupBy(sf.col("origin").alias("of"), "member", "reference").agg(
        sf.min("first_offset").alias("begins"), sf.max("last_offset").alias("ends")
    )
    placed = present.select("origin", "seen", sf.explode("seen").alias("p"))
    inside = (
        (sf.col("origin") == sf.col("of"))
        & (sf.col("p.stream") == sf.col("reference"))
        & (sf.col("p.first_offset") > sf.col("begins"))
        & (sf.col("p.last_offset") < sf.col("ends"))
    )
    among = placed.join(sf.broadcast(spans), inside)
    has = sf.exists("seen", lambda place: place.stream == sf.col("member"))
    return {
        (row.origin, row.member) for row in among.where(has).select("origin", "member").distinct().collect()
    }


def _as_restored(one: Absence, mixed: Collection[tuple[int, int]]) -> Absence:
    """Treat what a member lacks of its own in one range as lost."""
    if one.rule != OWN or (one.origin, one.stream) in mixed or one.transactions < _STRETCH:
        return one
    return replace(one, rule=RESTORED, found_as=OWN)


def _absences(absent: DataFrame) -> list[Absence]:
    each = absent.groupBy("rule", "origin", "member", "signature").agg(
        sf.max("lacking").alias("lacking"),
        sf.min("dated").alias("dated"),
        sf.max("dated_to").alias("dated_to"),
        sf.max("tables").alias("tables"),
        sf.max(domain()).alias("domain"),
        sf.collect_set("reference").alias("references"),
        sf.max("proven").alias("proven"),
    )
    # What lies between what arrived is said for certain; of the others one rule is enough.
    surest, sure = sf.col("rule").isin(SHARED_ID, EMPTIED, FILTERED), sf.col("rule").isin(SKIPPED, OWN)
    rank = sf.when(surest, 0).when(sure, 1).otherwise(2)
    best = Window.partitionBy("signature", "member").orderBy(rank, "rule")
    one = each.withColumn("place", sf.row_number().over(best)).where("place = 1")
    summed = one.groupBy("rule", "origin", "member").agg(
        sf.sum("lacking").alias("transactions"),
        sf.min("dated").alias("since"),
        sf.max("dated_to").alias("until"),
        sf.array_distinct(sf.flatten(sf.collect_set("tables"))).alias("tables"),
        sf.sort_array(sf.collect_set("domain")).alias("domains"),
        sf.array_distinct(sf.flatten(sf.collect_set("references"))).alias("references"),
        sf.max("proven").alias("proven"),
    )
    return [
        Absence(stream=row["member"], **{k: v for k, v in row.asDict().items() if k != "member"})
        for row in summed.orderBy("origin", "member", "rule").collect()
    ]


def _with_present_ids(
    streams: Sequence[Stream], repeated: Sequence[Repeat], counts: Collection[tuple[int, int]]
) -> list[Stream]:
    """Add the id that a server has now, if it has applied its own transactions again: it has another one.

    The head of no file has it yet. It is the one origin in its log that no server has.
    """
    owned = {server_id for one in streams for server_id in one.own}
    going = {(one.stream, one.origin) for one in repeated if one.kind == REPEATED}
    around = {origin for _, origin in going}
    found = []
    for one in streams:
        new = {origin for number, origin in counts if number == one.number} - owned - around
        changed = any((one.number, server_id) in going for server_id in one.own)
        found.append(replace(one, own=(*one.own, *new)) if changed and len(new) == 1 else one)
    return found


def _reach(streams: Sequence[Stream], common: Sequence[Row]) -> set[tuple[str, str]]:
    """Return the pairs of members of which the second has what the first wrote."""
    pairs_of = ((streams[row.reference], streams[row.member], row.origin) for row in common)
    return {(a.source, b.source) for a, b, origin in pairs_of if origin in a.own and a.source != b.source}


def _topology(
    streams: Sequence[Stream],
    reach: Collection[tuple[str, str]],
    present: DataFrame,
    repeated: Sequence[Repeat],
) -> Topology:
    source = {one.number: one.source for one in streams}
    owner = {server_id: one.source for one in streams for server_id in one.own}
    rounds: dict[int, set[str]] = {}
    for one in repeated:
        if one.kind == REPEATED and one.laps > 1:
            rounds.setdefault(one.origin, set()).add(source[one.stream])
    around = {(a, b) for members in rounds.values() for a in members for b in members if a != b}
    rows = present.where(sf.size("seen") > 1).select("origin", "seen", "dated").orderBy("dated")
    passages = [
        Passage(
            owner.get(row.origin),
            {source[place.stream]: (place.first_offset, place.committed_us) for place in row.seen},
        )
        for row in rows.limit(_PASSAGES).collect()
    ]
    return infer(list(dict.fromkeys(source.values())), sorted({*reach, *around}), passages)


def _passed(suspected: DataFrame, judged: DataFrame) -> dict[int, frozenset[int]]:
    """Return the streams through which repeated transactions of each origin went."""
    sure = judged.where(sf.col("kind") == REPEATED).select("signature").distinct()
    rows = (
        suspected.join(sure, "signature", "left_semi")
        .select("origin", sf.explode("seen").alias("place"))
        .groupBy("origin")
        .agg(sf.collect_set("place.stream").alias("streams"))
    )
    return {row.origin: frozenset(row.streams) for row in rows.collect()}


def _written_at(suspected: DataFrame, streams: Sequence[Stream]) -> dict[int, frozenset[int]]:
    """Return the streams that committed repeated transactions first, where commit times tell it."""
    own = {one.number: one.own for one in streams}
    rows = (
        suspected.select("origin", sf.explode("seen").alias("place"))
        .where("place.committed_us = place.original_us")
        .select("origin", sf.col("place.stream").alias("stream"))
        .distinct()
    )
    found: dict[int, set[int]] = {}
    for row in rows.collect():
        if row.origin not in own[row.stream]:
            found.setdefault(row.origin, set()).add(row.stream)
    return {origin: frozenset(at) for origin, at in found.items()}


def _tables(signed: DataFrame) -> dict[int, frozenset[str]]:
    each = signed.select("stream", sf.explode("tables").alias("table")).distinct().limit(_MOST_TABLES)
    found: dict[int, set[str]] = {}
    for row in each.collect():
        found.setdefault(row.stream, set()).add(row.table)
    return {stream: frozenset(tables) for stream, tables in found.items()}


def _domains(counted: Sequence[Row]) -> dict[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    for row in counted:
        found[row.stream] = found.get(row.stream, frozenset()) | frozenset(row.domains)
    return found


def _diverging(present: DataFrame) -> list[Diverging]:
    """Count by origin what changes other rows on one member than on another, under one GTID."""
    found = present.where("diverges").groupBy("origin").agg(
        sf.count("*").alias("transactions"),
        sf.array_sort(sf.array_distinct(sf.flatten(sf.collect_set("seen.stream")))).alias("streams"),
        sf.min("dated").alias("since"),
        sf.max("dated_to").alias("until"),
        sf.array_distinct(sf.flatten(sf.collect_set("tables"))).alias("tables"),
    )  # fmt: skip
    return [Diverging(**row.asDict()) for row in found.orderBy("origin").collect()]


def _told(spark: SparkSession, incidents: Sequence[Incident], absent: DataFrame) -> DataFrame:
    """Return what is told elsewhere: signatures, and the streams that lack them."""
    selects = {select for one in incidents for select in one.selects}
    selected = spark.createDataFrame(sorted(selects), "rule string, origin bigint, member int")
    chosen = absent.join(sf.broadcast(selected), ["rule", "origin", "member"], "left_semi")
    unproved = absent.where(sf.col("rule") == NO_ROWS)
    return chosen.unionByName(unproved).select("signature", "member").distinct()


def _patterns(present: DataFrame, number: int) -> DataFrame:
    """Count transactions by origin, by how often each stream has them, and whether they are the same there.

    3 stands for more, too.
    """
    streams = sf.sequence(sf.lit(0), sf.lit(max(number - 1, 0)))
    times = sf.transform(
        streams,
        lambda one: sf.least(
            sf.lit(3),
            sf.aggregate(
                sf.filter("seen", lambda place: place.stream == one),
                sf.lit(0),
                lambda total, place: total + place.times,
            ),
        ),
    )
    grouped = present.groupBy("origin", times.alias("times"), "differs").agg(
        sf.count("*").alias("transactions"), sf.min("dated").alias("since"), sf.max("dated_to").alias("until")
    )
    return grouped.orderBy("origin", sf.desc("transactions")).limit(_MOST_PATTERNS)


def _in_several(streams: Sequence[Stream]) -> Column:
    """Return whether several members have a transaction."""
    sources = sf.array(*(sf.lit(one.source) for one in streams)).cast("array<string>")
    of_members = sf.array_distinct(sf.transform("seen", lambda place: sf.get(sources, place.stream)))
    return sf.size(of_members) > 1


def _alone(streams: Sequence[Stream], common: Sequence[Row]) -> list[str]:
    joined = {streams[row.reference].source for row in common} | {
        streams[row.member].source for row in common
    }
    sources = list(dict.fromkeys(one.source for one in streams))
    return [source for source in sources if len(sources) > 1 and source not in joined]


def _named(present: DataFrame, streams: Sequence[Stream]) -> DataFrame:
    """Return the presence of each transaction with the names of its streams."""
    sources = sf.array(*(sf.lit(one.source) for one in streams)) if streams else sf.array(sf.lit(""))
    epochs = sf.array(*(sf.lit(one.epoch) for one in streams)) if streams else sf.array(sf.lit(0))
    seen = sf.transform(
        "seen",
        lambda place: sf.struct(
            sf.get(sources, place.stream).alias("source"),
            sf.get(epochs, place.stream).alias("epoch"),
            place.times.alias("times"),
            place.first_offset.alias("first_offset"),
            place.last_offset.alias("last_offset"),
        ),
    )
    return present.withColumn("seen", seen)


def _selectable(judged: DataFrame, absent: DataFrame, signed: DataFrame) -> DataFrame:
    """Return what incidents can be about, as they select it, with the signatures and where they are."""
    of_repeats = judged.where(sf.col("kind") != UNDECIDABLE).select(
        sf.lit("repeats").alias("what"), "origin", sf.col("stream").alias("at"), "signature", "stream"
    )
    of_absences = absent.select(
        sf.col("rule").alias("what"), "origin", sf.col("member").alias("at"), "signature",
        sf.col("reference").alias("stream"),
    )  # fmt: skip
    of_origins = signed.select(
        sf.lit("origin").alias("what"), sf.col("server_id").alias("origin"), sf.col("stream").alias("at"),
        "signature", "stream",
    )  # fmt: skip
    return of_repeats.unionByName(of_absences).unionByName(of_origins)


def _turns_selectable(handed: DataFrame) -> DataFrame:
    """Return the changes by which rows change hands as incidents select them."""
    return handed.select(
        sf.concat_ws(" ", sf.lit(TURNS), "table").alias("what"), sf.col("server_id").alias("origin"),
        sf.col("stream").alias("at"), "signature", "stream",
    )  # fmt: skip


def _evidence(
    spark: SparkSession,
    incidents: Sequence[Incident],
    named: DataFrame,
    signed: DataFrame,
    logs: Logs,
) -> DataFrame:
    """Return keys of raw events of each incident, some of every log; incidents count from 1."""
    selected = spark.createDataFrame(
        [(number, *select) for number, one in enumerate(incidents, 1) for select in one.selects],
        "incident int, what string, origin bigint, at int",
    )
    chosen = named.join(sf.broadcast(selected), ["what", "origin", "at"]).select(
        "incident", "signature", "stream"
    )
    some = Window.partitionBy("incident", "stream").orderBy("first_offset")
    order = Window.partitionBy("incident").orderBy("place", "stream")
    before = sf.sum("events").over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    laps = (
        signed.join(chosen.distinct(), ["signature", "stream"])
        .withColumn("place", sf.row_number().over(some))
        .where(sf.col("place") <= _OCCURRENCES)
        .withColumn("before", before - sf.col("events"))
        .where(sf.col("before") < _KEYS)
        .select("incident", "place", "source", "transaction", "first_offset", "last_offset", "before")
        .collect()
    )
    lines = []
    for source in sorted({lap.source for lap in laps}):
        spans: dict[tuple[int, int], list[Row]] = {}
        for lap in laps:
            if lap.source == source:
                end = min(lap.last_offset, lap.first_offset + _MOST_READ) + 1
                spans.setdefault((lap.first_offset, end), []).append(lap)
        wanted = sorted(spans)
        for span, found in zip(wanted, logs.between(source, wanted), strict=True):
            for lap in spans[span]:
                of_lap = [line for line in found if line[3] == lap.transaction][: _KEYS - lap.before]
                for nth, (offset, *event, timestamp) in enumerate(of_lap, lap.before + 1):
                    lines.append((lap.incident, nth, source, *event, lap.place, offset, timestamp))
    return spark.createDataFrame(lines, _EVIDENCE_SCHEMA)


_EVIDENCE_SCHEMA: Final = (
    "incident int, nth int, source string, raw_key string, type string, transaction string, place int, "
    "offset bigint, timestamp bigint"
)
_INCIDENT_SCHEMA: Final = (
    "incident int, kind string, severity string, what string, origins array<bigint>, members array<string>, "
    "path array<string>, since bigint, until bigint, transactions bigint, laps bigint, lap_ms double, "
    "lap_ms_at_most double, lap_bytes bigint, going boolean, tables array<string>, evidence array<string>, "
    "statements array<struct<member: string, sql: string, why: string>>"
)


def _incident_frame(spark: SparkSession, incidents: Sequence[Incident]) -> DataFrame:
    rows = [{"incident": number, **as_dict(one)} for number, one in enumerate(incidents, 1)]
    return spark.createDataFrame(rows, _INCIDENT_SCHEMA)


def _servers(_context: click.Context, _option: click.Parameter, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected server ids separated by commas, as 1,2") from None


@job_command("loop_detection")
@click.option(
    "--servers",
    default="",
    callback=_servers,
    help="Server ids of the topology, such as 1,2: transactions of others are an incident. Without it, only "
    "those that circulate are.",
)
@click.option(
    "--ping-pong",
    is_flag=True,
    help="Also look for rows that two servers overwrite in turns; this reads all rows.",
)
@follow_options
@click.option(
    "--window",
    type=click.IntRange(1, 10_080),
    default=60,
    show_default=True,
    help="With --follow, minutes before the new events that are compared again.",
)
@click.option(
    "--alerts", is_flag=True,
    help=f"Also write the incidents to the topic {ALERTS}: those that are not there yet.",
)  # fmt: skip
def main(
    job: Job,
    spark: SparkSession,
    servers: list[int],
    *,
    ping_pong: bool,
    follow: bool,
    every: int,
    window: int,
    alerts: bool,
) -> None:
    """Find transactions that circulate, arrive twice or never, over the logs of all members."""

    def look(one: Job) -> None:
        findings = detect(one, spark, servers, ping_pong=ping_pong)
        if alerts:
            tell(one, findings)

    if follow:
        check_endless()
        follow_members(job, look, Pace(timedelta(seconds=every)), timedelta(minutes=window))
    else:
        look(job)


def detect(job: Job, spark: SparkSession, servers: Sequence[int], *, ping_pong: bool = False) -> Findings:
    """Look over what a job reads, and write the results."""
    started = time.monotonic()
    with job.step("logs read"):
        logs = read_logs(job, spark)
    job.steps.say_speed(*logs.read, time.monotonic() - started)
    with _planned_for(spark, logs.read[0]):
        found = investigate(spark, logs, job.sources, servers, job, ping_pong=ping_pong)
        findings = replace(found, unread=job.faults.number)
        with job.step("results written"):
            for name, frame in findings.tables.items():
                job.write(name, frame)
    job.finish(summary(job, findings), report(job, findings))
    return findings


@contextmanager
def _planned_for(spark: SparkSession, events: int) -> Iterator[None]:
    """Let Spark neither compile nor adapt queries over few events: that takes longer than running them."""
    settings = _SETTINGS_OF_FEW if events <= _FEW_EVENTS else {}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


_FEW_EVENTS: Final = 50_000
_SETTINGS_OF_FEW: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
}


def tell(job: Job, findings: Findings) -> None:
    """Write the incidents that were not reported yet to the topic of alerts."""
    choose = partial(new_alerts, findings.incidents, findings.keys, job.sources)
    number = tell_alerts(job.settings.kafka, job.settings.topics, choose)
    job.steps.say(f"{number} of {len(findings.incidents)} incidents are new: written to {ALERTS}")


if __name__ == "__main__":
    main()

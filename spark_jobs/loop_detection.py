"""Loop detection: transactions that circulate, and events whose origin is no server that one knows.

In a ring each server drops the events that carry its own id. An event whose origin has left the ring is
dropped by no one: it is applied again, lap after lap. In the log of a member it shows as the same
transaction at ever later positions. What makes it the same is its signature: the GTID; without one, origin,
time and content, that is database, table, operation and decoded values, and for statements database, text
and the variables before it.

Two transactions without GTIDs can be equal and honest, such as the same row inserted twice within a second
into a table without a key. So a repeat is a finding only

- if the log holds commit times (MySQL 8.0): the time of the original commit is the same to the microsecond
  and the later commits are later; or
- if a later transaction of the same origin stands between the occurrences; or
- if it recurs in at least three different seconds, as told by the other transactions around it; or
- if it contradicts the rows of a table with a key: a row is inserted that is there, or changed or deleted as
  it is not.

Other repeats are listed as undecidable. Reads ``{source}.events`` of one source or more, each a member's
log; writes, in the output folder, Parquet tables ``findings``, ``finding_events`` (the keys of the raw
events of every lap), ``undecidable`` and ``origins``, the findings as ``summary.json`` and a page,
``report.html``.

    millrace job loop_detection --source north --source south --servers 1,2
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sf

from millrace.binlog.types import EventType
from spark_jobs.common.charts import Series, bars, columns, count, legend
from spark_jobs.common.content import DIGESTS
from spark_jobs.common.events import read_events
from spark_jobs.common.job import Job, job_command, moment, persisted
from spark_jobs.common.report import Code, Report
from spark_jobs.common.rows import CONTENT_SCHEMA, contents, contradictions
from spark_jobs.common.transactions import INSTANCE, is_gtid, number_laps, transactions

__all__ = ["judge", "main", "origins", "repeats", "sign", "with_clocks"]

REPEATED: Final = "repeated transaction"
REUSED: Final = "GTID used twice"
UNKNOWN_ORIGIN: Final = "origin outside the known servers"
UNDECIDABLE: Final = "undecidable"

_STREAM: Final = ("source", "epoch")
_MOVED_ON_S: Final = 2
_SECONDS_SEEN: Final = 3
_KEYS_SHOWN: Final = 10
_FINDINGS_SHOWN: Final = 25
_BUCKETS: Final = 50
_SERIES: Final = 7


def sign(occurrences: DataFrame, content: DataFrame) -> DataFrame:
    """Add ``signature`` and ``by_gtid``; occurrences that have neither GTID nor content are left out.

    ``content`` has the columns of an occurrence, ``changes`` (how many) and ``digest`` (a sum of hashes, so
    that it does not matter how rows are spread over events).
    """
    summed = content.groupBy(*INSTANCE).agg(
        sf.sum("changes").alias("changes"),
        (sf.sum(sf.col("digest").cast("decimal(20,0)")) % sf.lit(DIGESTS)).alias("digest"),
    )
    parts = ["server_id", "started", "ended", "original_commit_us", "changes", "digest"]
    digest = sf.sha2(
        sf.concat_ws("|", *(sf.coalesce(sf.col(name).cast("string"), sf.lit("")) for name in parts)), 256
    )
    signed = occurrences.join(summed, list(INSTANCE), "left").withColumn("by_gtid", is_gtid())
    signature = sf.when(sf.col("by_gtid"), sf.col("transaction")).when(sf.col("digest").isNotNull(), digest)
    return signed.withColumn("signature", signature).where("signature is not null").drop("digest")


def repeats(signed: DataFrame) -> DataFrame:
    """Return the occurrences of what is there more than once, numbered as ``nth`` from 1."""
    same = Window.partitionBy(*_STREAM, "signature")
    counted = signed.withColumn("occurrences", sf.count("*").over(same)).where("occurrences > 1")
    return counted.withColumn("nth", sf.row_number().over(same.orderBy("first_offset")))


def with_clocks(repeated: DataFrame, signed: DataFrame) -> DataFrame:
    """Add what the log around an occurrence says about the time: the latest time of a witness before it.

    ``contradicts`` is there for :func:`judge`, and false.
    Witnesses are the transactions that occur once. ``clock`` is of all of them, ``own_clock`` of those of
    the same origin, ``next_clock`` of the first one after the occurrence; null where there is none.
    """
    single = signed.join(
        repeated.select(*_STREAM, "signature").distinct(), [*_STREAM, "signature"], "left_anti"
    )
    witnesses = single.where("started is not null").groupBy(
        *_STREAM, "server_id", sf.col("started").alias("seen")
    )
    ticks = witnesses.agg(sf.min("first_offset").alias("first_offset"))
    line = repeated.withColumn("seen", sf.lit(None).cast("long")).unionByName(ticks, allowMissingColumns=True)
    order = Window.partitionBy(*_STREAM).orderBy("first_offset")
    before = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    behind = order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    own = Window.partitionBy(*_STREAM, "server_id").orderBy("first_offset")
    timed = line.select(
        "*",
        sf.max("seen").over(before).alias("clock"),
        sf.first("seen", ignorenulls=True).over(behind).alias("next_clock"),
        sf.max("seen").over(own.rowsBetween(Window.unboundedPreceding, Window.currentRow)).alias("own_clock"),
    )
    return timed.where("nth is not null").drop("seen").withColumn("contradicts", sf.lit(False))


def judge(repeated: DataFrame) -> DataFrame:
    """Return a row per repeated transaction: ``kind``, the ``evidence``, laps, and where it was seen.

    ``repeated`` has clocks, and ``contradicts``: whether an occurrence contradicts the rows of a table.
    ``lap_ms`` is the mean time of a lap where the log tells it, ``lap_ms_at_most`` a bound where it tells
    one.
    """
    later = sf.col("nth") > 1
    first_own = sf.first_value("own_clock").over(Window.partitionBy(*_STREAM, "signature").orderBy("nth"))
    passed = later & (sf.col("own_clock") >= sf.greatest("started", first_own) + _MOVED_ON_S)
    marked = repeated.withColumn("passed", sf.coalesce(passed, sf.lit(False)))
    grouped = marked.groupBy(*_STREAM, "signature").agg(
        sf.first("by_gtid").alias("by_gtid"),
        sf.min_by("transaction", "nth").alias("transaction"),
        sf.min_by("server_id", "nth").alias("server_id"),
        sf.min_by("tables", "nth").alias("tables"),
        sf.min("started").alias("started"),
        sf.count("*").alias("occurrences"),
        sf.count_distinct("server_id", "started").alias("shapes"),
        sf.max("passed").alias("passed"),
        sf.max("contradicts").alias("contradicts"),
        sf.count_distinct("clock").alias("seconds_seen"),
        (sf.max("clock") - sf.min("clock")).alias("clock_span"),
        sf.count_distinct("immediate_commit_us").alias("commits"),
        (sf.max("immediate_commit_us") - sf.min("immediate_commit_us")).alias("commit_span_us"),
        sf.max("next_clock").alias("next_clock"),
        *_ends(),
    )
    laps = sf.col("occurrences") - 1
    moved = (sf.col("seconds_seen") >= _SECONDS_SEEN) & (sf.col("clock_span") >= _MOVED_ON_S)
    evidence = (
        sf.when(sf.col("by_gtid") & (sf.col("shapes") > 1), "one GTID, different origins or times")
        .when(sf.col("by_gtid"), "the same GTID")
        .when(sf.col("commits") == sf.col("occurrences"), "the same original commit time, later commits")
        .when(sf.col("contradicts"), "it contradicts the rows of a table with a key")
        .when(sf.col("passed"), "later transactions of the same origin lie between")
        .when(moved, "it recurs while the transactions around it move on")
    )
    kind = (
        sf.when(sf.col("by_gtid") & (sf.col("shapes") > 1), REUSED)
        .when(evidence.isNotNull(), REPEATED)
        .otherwise(UNDECIDABLE)
    )
    by_clock = sf.when(sf.col("clock_span") >= _MOVED_ON_S, sf.col("clock_span") * 1000 / laps)
    bound = sf.greatest(sf.col("next_clock") - sf.col("started"), sf.lit(0)) + 1
    return grouped.select(
        kind.alias("kind"), evidence.alias("evidence"), *_STREAM, "server_id", "transaction", "signature",
        "started", "tables", "occurrences", laps.alias("laps"),
        sf.coalesce(sf.col("commit_span_us") / 1000 / laps, by_clock).alias("lap_ms"),
        (bound * 1000 / laps).alias("lap_ms_at_most"),
        "first_key", "last_key", "first_offset", "last_offset", "first_place", "last_place",
    )  # fmt: skip


def origins(
    occurrences: DataFrame, signed: DataFrame, repeated: DataFrame, writers: DataFrame, servers: Sequence[int]
) -> DataFrame:
    """Return a row per stream and origin: how much it wrote, and whether it is ``known`` and why.

    With ``servers`` only these are known. Otherwise those are that write the log of one of the sources, and
    those of which there is a transaction that does not repeat; ``writers`` has their ``server_id``.
    """
    again = repeated.select(*INSTANCE, sf.lit(True).alias("again"))
    seen = occurrences.join(again, list(INSTANCE), "left").groupBy(*_STREAM, "server_id").agg(
        sf.count("*").alias("transactions"),
        sf.count_if("again").alias("in_repeats"),
        sf.min("started").alias("started"),
        sf.max("ended").alias("ended"),
        *_ends(),
    )  # fmt: skip
    if servers:
        role = sf.when(sf.col("server_id").isin(*servers), "named in --servers")
        return seen.withColumn("role", role).withColumn("known", role.isNotNull())
    fresh = signed.join(again, list(INSTANCE), "left_anti").select("server_id").distinct()
    writes = writers.select("server_id", sf.lit(True).alias("writes")).distinct()
    joined = seen.join(writes, "server_id", "left").join(
        fresh.withColumn("fresh", sf.lit(True)), "server_id", "left"
    )
    role = sf.when(sf.col("writes"), "writes a log that was read").when(
        sf.col("fresh"), "has transactions of its own"
    )
    return joined.withColumn("role", role).withColumn("known", role.isNotNull()).drop("writes", "fresh")


def unknown_origins(seen: DataFrame) -> DataFrame:
    """Return the findings about origins that are not known, in the columns of :func:`judge`."""
    evidence = sf.format_string("%d transactions, of which %d are repeats", "transactions", "in_repeats")
    return seen.where(~sf.col("known")).select(
        sf.lit(UNKNOWN_ORIGIN).alias("kind"), evidence.alias("evidence"),
        *_STREAM, "server_id", "started", sf.col("transactions").alias("occurrences"),
        "first_key", "last_key", "first_offset", "last_offset", "first_place", "last_place",
    )  # fmt: skip


def _ends() -> list[Column]:
    """First and last place of a group of occurrences."""
    return [
        sf.min_by("first_key", "first_offset").alias("first_key"),
        sf.max_by("last_key", "last_offset").alias("last_key"),
        sf.min("first_offset").alias("first_offset"),
        sf.max("last_offset").alias("last_offset"),
        sf.min_by(sf.concat_ws(":", "log_file", "position"), "first_offset").alias("first_place"),
        sf.max_by(sf.concat_ws(":", "log_file", "position"), "first_offset").alias("last_place"),
    ]


@dataclass(frozen=True, slots=True)
class _Results:
    """What the report shows, collected to the driver."""

    findings: Sequence[Row]
    events: Sequence[Row]
    undecidable: Sequence[Row]
    origins: Sequence[Row]
    along: Sequence[Row]
    transactions: int
    number: int
    undecided: int


def detect(job: Job, spark: SparkSession, servers: Sequence[int]) -> _Results:
    """Read the events of the job's sources, write the results and return what the report shows."""
    with job.step("events decoded"):
        uncounted = read_events(spark, job).withColumn("rows", sf.lit(None).cast("bigint"))
        events = persisted(number_laps(uncounted))
    with job.step("transactions compared"):
        occurrences = persisted(transactions(events))
        unnamed = sf.col("transaction").isNull() | ~is_gtid()
        some = not occurrences.where(unnamed).isEmpty()
        content = contents(events.where(unnamed)) if some else spark.createDataFrame([], CONTENT_SCHEMA)
        signed = persisted(sign(occurrences, content))
        repeated = persisted(with_clocks(repeats(signed), signed))
    with job.step("repeats judged"):
        judged = persisted(judge(_with_contradictions(events, repeated) if some else repeated))
        writers = events.where(sf.col("type") == EventType.FORMAT_DESCRIPTION_EVENT.name).select("server_id")
        seen = persisted(origins(occurrences, signed, repeated, writers, servers))
        found = judged.where(sf.col("kind") != UNDECIDABLE).unionByName(
            unknown_origins(seen), allowMissingColumns=True
        )
        order = Window.orderBy(sf.desc("occurrences"), "source", "first_offset", sf.desc("kind"))
        findings = persisted(found.withColumn("finding", sf.row_number().over(order)))
        undecidable = judged.where(sf.col("kind") == UNDECIDABLE)
        keys = persisted(finding_events(findings, repeated, occurrences, events))
    with job.step("results written"):
        job.write("findings", findings)
        job.write("finding_events", keys)
        job.write("undecidable", undecidable)
        job.write("origins", seen)
    shown = keys.where((sf.col("finding") <= _FINDINGS_SHOWN) & (sf.col("nth_event") <= _KEYS_SHOWN))
    return _Results(
        findings=findings.orderBy("finding").limit(_FINDINGS_SHOWN).collect(),
        events=shown.orderBy("finding", "nth_event").collect(),
        undecidable=undecidable.orderBy(sf.desc("occurrences"), "first_offset")
        .limit(_FINDINGS_SHOWN)
        .collect(),
        origins=seen.orderBy("source", "epoch", "server_id").collect(),
        along=_along(occurrences).collect(),
        transactions=occurrences.count(),
        number=findings.count(),
        undecided=undecidable.count(),
    )


def _with_contradictions(events: DataFrame, repeated: DataFrame) -> DataFrame:
    wrong = contradictions(events, repeated.where(~sf.col("by_gtid")))
    marked = wrong.withColumn("wrong", sf.lit(True))
    joined = repeated.drop("contradicts").join(marked, list(INSTANCE), "left")
    return joined.withColumnRenamed("wrong", "contradicts")


def finding_events(
    findings: DataFrame, repeated: DataFrame, occurrences: DataFrame, events: DataFrame
) -> DataFrame:
    """Return the raw events of every finding in log order; ``lap`` counts from 0, ``nth_event`` from 1."""
    found = findings.select("finding", *_STREAM, "signature", "server_id")
    laps = repeated.select(*INSTANCE, "signature", "nth")
    of_repeats = found.where("signature is not null").drop("server_id").join(laps, [*_STREAM, "signature"])
    of_origins = found.where("signature is null").drop("signature").join(
        occurrences.select(*INSTANCE, "server_id"), [*_STREAM, "server_id"]
    )  # fmt: skip
    members = of_repeats.select("finding", *INSTANCE, (sf.col("nth") - 1).alias("finding_lap")).unionByName(
        of_origins.select("finding", *INSTANCE, sf.lit(None).cast("int").alias("finding_lap"))
    )
    placed = events.join(members, list(INSTANCE)).where("sub_index = 0")
    order = Window.partitionBy("finding").orderBy("offset")
    return placed.select(
        "finding", sf.col("finding_lap").alias("lap"), sf.row_number().over(order).alias("nth_event"),
        "source", "raw_key", "type", "offset", "timestamp",
    )  # fmt: skip


def _along(occurrences: DataFrame) -> DataFrame:
    """Count transactions per origin along each log, in a fixed number of stretches of equal length."""
    first, last = sf.min("first_offset").alias("low"), sf.max("first_offset").alias("high")
    ends = occurrences.groupBy("source").agg(first, last)
    share = (sf.col("first_offset") - sf.col("low")) / (sf.col("high") - sf.col("low") + 1)
    placed = occurrences.join(sf.broadcast(ends), "source").withColumn("stretch", sf.floor(share * _BUCKETS))
    return placed.groupBy("stretch", "server_id").agg(sf.count("*").alias("transactions"))


def summary(results: _Results) -> dict[str, Any]:
    """Return the findings for ``summary.json``, with the first keys of each."""
    keys: dict[int, list[str]] = {}
    for row in results.events:
        keys.setdefault(row.finding, []).append(row.raw_key)
    return {
        "transactions": results.transactions,
        "findings_total": results.number,
        "undecidable_total": results.undecided,
        "findings": [{**row.asDict(), "raw_keys": keys.get(row.finding, [])} for row in results.findings],
        "undecidable": [row.asDict() for row in results.undecidable],
        "origins": [row.asDict() for row in results.origins],
    }


def report(job: Job, results: _Results) -> Report:
    """Build the page."""
    page = Report(f"Replication loops in {', '.join(job.sources)}", job.facts)
    if results.number:
        page.verdict(
            f"Findings: {count(results.number)}. Something circulates, or comes from an unknown server.",
            "bad",
        )
    else:
        page.verdict("No loop found: every transaction is there once, every origin is known.", "good")
    page.tiles(
        [
            ("transactions", results.transactions),
            ("findings", results.number),
            ("undecidable repeats", results.undecided),
            ("origins", len({row.server_id for row in results.origins})),
        ]
    )
    for note in job.notes:
        page.text(note)
    if results.findings:
        _findings_section(page, results)
    _origins_section(page, results)
    if results.undecidable:
        _undecidable_section(page, results)
    return page


def _findings_section(page: Report, results: _Results) -> None:
    shown = len(results.findings)
    page.section(
        "Findings", "Times of laps are as exact as the log tells: commits in MySQL 8.0, else whole seconds."
    )
    names = [f"{row.finding}: {row.transaction or f'origin {row.server_id}'}" for row in results.findings]
    page.chart(
        bars(
            "Occurrences per finding",
            names,
            [Series("occurrences", [r.occurrences for r in results.findings])],
        )
    )
    page.table(
        ["no.", "finding", "evidence", "origin", "transaction", "occurrences", "a lap took", "first", "last"],
        [
            (
                row.finding, row.kind, row.evidence, Code(str(row.server_id)),
                Code(row.transaction or "several"), row.occurrences, _lap(row),
                Code(row.first_place), Code(row.last_place),
            )
            for row in results.findings
        ],
    )  # fmt: skip
    if results.number > shown:
        page.text(
            f"The {shown} with most occurrences; all {count(results.number)} are in the table findings."
        )
    for row in results.findings:
        keys = [event.raw_key for event in results.events if event.finding == row.finding]
        what = f"{row.source}, epoch {row.epoch}, dated {moment(row.started) or 'nothing'} UTC"
        tables = f", tables {', '.join(row.tables)}" if row.tables else ""
        page.keys(f"Finding {row.finding}: {what}{tables}. Its raw events:", [*keys, "…", row.last_key])


def _lap(row: Row) -> str | None:
    if row.lap_ms is not None:
        return f"{row.lap_ms:,.1f} ms"
    return None if row.lap_ms_at_most is None else f"{row.lap_ms_at_most:,.1f} ms at most"


def _origins_section(page: Report, results: _Results) -> None:
    page.section(
        "Origins",
        "The server ids that transactions carry, along the log from its beginning (left) to its end (right).",
    )
    totals: dict[int, int] = {}
    for row in results.along:
        totals[row.server_id] = totals.get(row.server_id, 0) + row.transactions
    ranked = sorted(totals, key=lambda server_id: (-totals[server_id], server_id))
    names = [f"server {server_id}" for server_id in ranked[:_SERIES]]
    if len(ranked) > _SERIES:
        names.append("others")
    if ranked:
        values = [[0] * _BUCKETS for _ in names]
        for row in results.along:
            values[min(ranked.index(row.server_id), len(names) - 1)][row.stretch] += row.transactions
        labels = [f"{100 * i // _BUCKETS} %" for i in range(_BUCKETS)]
        page.chart(legend(names))
        page.chart(
            columns("Transactions by origin along the log", labels, labels, list(map(Series, names, values)))
        )
    page.table(
        ["source", "epoch", "server id", "known", "because it", "transactions", "repeats", "from", "to"],
        [
            (
                row.source, row.epoch, Code(str(row.server_id)), "yes" if row.known else "no", row.role,
                row.transactions, row.in_repeats, moment(row.started), moment(row.ended),
            )
            for row in results.origins
        ],
    )  # fmt: skip


def _undecidable_section(page: Report, results: _Results) -> None:
    page.section(
        "Undecidable repeats",
        "Equal transactions without GTID for which the log does not tell a loop from honest work, such as "
        "the same row inserted twice within a second into a table without a key.",
    )
    page.table(
        ["origin", "occurrences", "tables", "dated (UTC)", "first event", "last event"],
        [
            (
                Code(str(row.server_id)), row.occurrences, ", ".join(row.tables) or None, moment(row.started),
                Code(row.first_key), Code(row.last_key),
            )
            for row in results.undecidable
        ],
    )  # fmt: skip
    if results.undecided > len(results.undecidable):
        page.text(f"The {len(results.undecidable)} with most occurrences of {count(results.undecided)}.")


def _servers(_context: click.Context, _option: click.Parameter, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected server ids separated by commas, as 1,2") from None


@job_command("loop_detection")
@click.option(
    "--servers", default="", callback=_servers,
    help="Server ids of the topology, as 1,2. Without it they are learned: those that write the logs that "
    "are read, and those that have transactions of their own.",
)  # fmt: skip
def main(job: Job, spark: SparkSession, servers: list[int]) -> None:
    """Find transactions that circulate, and origins outside the known servers."""
    results = detect(job, spark, servers)
    job.finish(summary(results), report(job, results))


if __name__ == "__main__":
    main()

"""Analytics of a source: what is written when, to which tables, by which transactions and statements.

Reads ``{source}.raw`` once, in pieces that executors fetch, decode and count by themselves
(:mod:`spark_jobs.common.statistics`); what they leave are sums in Parquet, which Spark adds up. Writes, in
the output folder, the tables that ``docs/jobs.md`` names, the figures as ``summary.json`` and a page,
``report.html``. With ``--follow`` it counts in windows of time, as the topic grows
(:mod:`spark_jobs.windows.follow`).

    millrace job analytics --source shop
    millrace job analytics --source shop --from 1h --follow --publish
    spark-submit --jars … spark_jobs/analytics.py --source shop --from 2026-01-31T10:00 --to 2026-01-31T11:00
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from typing import Any, Final

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.contract import OF_ALL_SOURCES
from millrace.spark.decoding import Decoding
from millrace.spark.raw_topic import Piece
from spark_jobs.common.analytics_page import Results, lines, report
from spark_jobs.common.charts import column_width, usual_span
from spark_jobs.common.follow import Pace, check_endless, check_no_archive, follow_options
from spark_jobs.common.job import Job, job_command, moment
from spark_jobs.common.kafka import parse_duration
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.pieces import cut_input, over_pieces
from spark_jobs.common.statistics import NAMED_TABLES, TABLES, PieceStatistics
from spark_jobs.windows.follow import Options, count_windows

_HOUR: Final = 3600
_LONGEST_S: Final = 86_400
_OWN_CLOCK_S: Final = 3600
_TOPIC: Final = OF_ALL_SOURCES["analytics"]
_KEPT: Final = 1000
"""Rows that the tables of hot keys and of statements have at the most: those with most."""


@dataclass(slots=True)
class Counted:
    """The sums that executors have written: files by table, and what was counted besides."""

    folder: str
    outcome: Outcome = field(default_factory=Outcome)

    def paths(self, table: str) -> list[str]:
        """Return where the files of a table are."""
        return [f"{self.folder}/{file.path}" for file in self.outcome.files if file.table == f"parts/{table}"]

    def frame(self, spark: SparkSession, table: str) -> DataFrame:
        """Return the rows of a table."""
        paths = self.paths(table)
        if not paths:
            return spark.createDataFrame([], TABLES[table])
        return spark.read.schema(TABLES[table]).parquet(*paths)


def count_pieces(job: Job) -> Counted:
    """Count the raw events of the job's sources, each piece by a task of its own."""
    topics: list[str] = []
    frames = []
    with job.step("places to cut found"):
        for one in job.inputs:
            pieces = cut_input(job, one, within=True)
            if pieces:
                first = sf.lit(len(topics)) + sf.col("piece")
                found = over_pieces(job, one, pieces, _begun(one.source, len(topics), job.folder))
                frames.append(found.withColumn("piece", first))
            topics += [one.part.topic] * len(pieces)
    counted = Counted(job.folder)
    if not topics:
        return counted
    started = time.monotonic()
    frame = reduce(DataFrame.union, frames)
    with job.step(f"{len(topics)} pieces counted"):
        # To sort in Spark would count everything twice: it looks first where to cut.
        told = {row.piece: row.outcome for row in frame.collect()}
        for number in sorted(told):
            outcome = Outcome.from_json(told[number])
            counted.outcome.add(outcome)
            outcome.tell(job.faults, topics[number])
    outcome = counted.outcome
    job.steps.say_speed(outcome.events, outcome.raw_bytes, time.monotonic() - started)
    return counted


def _begun(source: str, first: int, folder: str) -> Callable[[int, Piece, object], PieceStatistics]:
    """Make what begins to count a piece of a source, of which the first is number ``first`` of all."""

    def begin(number: int, piece: Piece, _prepared: object) -> PieceStatistics:
        statistics = PieceStatistics(source, Decoding(source, False, 0), folder, f"{first + number:05}")
        known = piece.described, *piece.before
        statistics.begin([record for record in known if record is not None])
        return statistics

    return begin


# -- sums -----------------------------------------------------------------------------------------------


def events_per_minute(counts: DataFrame) -> DataFrame:
    """Sum up events and their bytes per type and minute; ``minute`` is its start, in seconds since 1970."""
    minute = (sf.col("second") - sf.col("second") % 60).alias("minute")
    return counts.groupBy("source", minute, "type").agg(_sum("events"), _sum("bytes"))


def rows_per_minute(counts: DataFrame) -> DataFrame:
    """Sum up rows and bytes of rows events per minute, table and operation."""
    minute = (sf.col("second") - sf.col("second") % 60).alias("minute")
    changes = counts.where("operation is not null")
    return changes.groupBy("source", minute, "database", "table", "operation").agg(
        _sum("rows"), _sum("bytes")
    )


def rows_per_table(counts: DataFrame) -> DataFrame:
    """Sum up rows events, their rows and bytes per table and operation.

    ``uncounted`` is how many of the events have a number of rows that cannot be told, as where their table
    map lies before the input.
    """
    changes = counts.where("operation is not null")
    return changes.groupBy("source", "database", "table", "operation").agg(
        _sum("events"), _sum("rows"), _sum("bytes"), _sum("uncounted")
    )


def whole_transactions(found: DataFrame) -> DataFrame:
    """Put those transactions together of which there are parts."""
    key = ["source", "epoch", "first_offset"]
    names = [name for name in found.columns if name not in {*key, "tables", "part"}]
    summed = {"events", "rows", "inserts", "updates", "deletes", "bytes"}
    sums = [_sum(name) if name in summed else sf.max(name).alias(name) for name in names]
    every = sf.slice(sf.array_sort(sf.array_distinct(sf.flatten(sf.collect_list("tables")))), 1, NAMED_TABLES)
    parts = found.where("part").groupBy(*key).agg(*sums, every.alias("tables"))
    return found.where("not part").drop("part").unionByName(parts)


def with_durations(transactions: DataFrame, dates: tuple[int, int]) -> DataFrame:
    """Add ``seconds``: from the first statement to the commit at the origin, as far as the log goes.

    None where a session has set its ``TIMESTAMP``: the commit is far from the times of its events, or these
    are not between ``dates``, those of almost all events.
    """
    committed, ended = sf.col("original_commit_us") / 1e6, sf.col("ended").cast("double")
    first, end = dates
    is_own = sf.coalesce(sf.abs(committed - ended) < _OWN_CLOCK_S, sf.lit(True))
    is_own &= (sf.col("started") >= first) & (ended < end)
    lasted = sf.greatest(sf.coalesce(committed, ended) - sf.col("started"), sf.lit(0.0))
    return transactions.withColumn("seconds", sf.when(is_own, lasted))


def usual_dates(counts: DataFrame) -> tuple[int, int]:
    """Return the first second of almost all events, and the one after the last."""
    hours = counts.where("second > 0").groupBy((sf.col("second") - sf.col("second") % _HOUR).alias("hour"))
    low, high = usual_span({row.hour: row.events for row in hours.agg(_sum("events")).collect()}, _HOUR)
    return low, high + _HOUR


def top(frame: DataFrame, number: int, *by: str) -> DataFrame:
    """Return the ``number`` transactions that are greatest by the columns ``by``; ties go to the earlier."""
    return frame.orderBy(*(sf.desc_nulls_last(name) for name in by), "source", "first_offset").limit(number)


def longest(transactions: DataFrame, number: int) -> DataFrame:
    """Return the ``number`` transactions that were open longest, of those whose times differ at all."""
    return top(transactions.where("seconds > 0"), number, "seconds", "bytes")


def tables(looked_at: DataFrame) -> DataFrame:
    """Sum up what was seen of the rows of each table."""
    return looked_at.groupBy("source", "database", "table").agg(
        sf.max("key").alias("key"),
        _sum("looked"),
        _sum("unchanged"),
        _sum("image_bytes"),
        _sum("needed_bytes"),
    )


def columns(changed: DataFrame) -> DataFrame:
    """Sum up in how many updated rows each column changed."""
    return changed.groupBy("source", "database", "table", "ordinal", "name").agg(_sum("changed"))


def hot_keys(keys: DataFrame) -> DataFrame:
    """Return the keys that were changed most often."""
    summed = keys.groupBy("source", "database", "table", "key").agg(_sum("changes"))
    return (
        summed.where("changes > 1")
        .orderBy(sf.desc("changes"), "source", "database", "table", "key")
        .limit(_KEPT)
    )


def statements(found: DataFrame) -> DataFrame:
    """Return the statements with most executions, told apart by database and fingerprint."""
    summed = found.groupBy("source", "database", "statement").agg(
        _sum("executions"), _sum("rows"), _sum("bytes"), _sum("seconds")
    )
    return summed.orderBy(sf.desc("executions"), sf.desc("rows"), "source", "database", "statement").limit(
        _KEPT
    )


def lag(transactions: DataFrame) -> DataFrame:
    """Return, per origin, by how many ms transactions were committed later on the server that was read."""
    behind = (sf.col("immediate_commit_us") - sf.col("original_commit_us")) / 1000
    known = transactions.withColumn("lag", behind).where("lag is not null")
    share = [sf.percentile_approx("lag", share).alias(name) for name, share in (("p50", 0.5), ("p99", 0.99))]
    return known.groupBy("source", "server_id").agg(
        sf.count("*").alias("transactions"), *share, sf.max("lag").alias("most"), sf.min("lag").alias("least")
    )


def commit_groups(transactions: DataFrame) -> DataFrame:
    """Return, per source, in how many groups transactions were committed, and how many were alone.

    A replica can apply those of a group side by side.
    """
    known = transactions.where("commit_group is not null or immediate_commit_us is not null")
    named = sf.coalesce(
        sf.col("commit_group").cast("string"), sf.concat(sf.lit("at "), sf.col("first_offset"))
    )
    groups = known.groupBy("source", "epoch", "log_file", named.alias("name")).agg(
        sf.count("*").alias("size")
    )
    return groups.groupBy("source").agg(
        sf.sum("size").alias("transactions"),
        sf.count("*").alias("groups"),
        sf.count_if(sf.col("size") == 1).alias("alone"),
        sf.max("size").alias("largest"),
    )


def _sum(name: str) -> Any:
    return sf.sum(name).alias(name)


# -- the job --------------------------------------------------------------------------------------------


def analyse(job: Job, spark: SparkSession, number: int) -> Results:
    """Count the events of the job's sources, write the results and return what the report shows."""
    counted = count_pieces(job)
    counts = counted.frame(spark, "counts")
    with job.step("results written"):
        dates = usual_dates(counts)
        whole = with_durations(whole_transactions(counted.frame(spark, "transactions")), dates)
        every = _written(job, spark, "transactions", whole)
        job.write("events_per_minute", events_per_minute(counts))
        written = {
            "rows_per_minute": rows_per_minute(counts),
            "rows_per_table": rows_per_table(counts),
            "largest_transactions": top(every, number, "rows", "bytes"),
            "longest_transactions": longest(every, number),
            "tables": tables(counted.frame(spark, "tables")),
            "columns": columns(counted.frame(spark, "columns")),
            "hot_keys": hot_keys(counted.frame(spark, "keys")),
            "statements": statements(counted.frame(spark, "statements")),
            "lag": lag(every),
            "commit_groups": commit_groups(every),
            "ddl": counted.frame(spark, "ddl"),
        }
        frames = {name: _written(job, spark, name, frame) for name, frame in written.items()}
        if paths := counted.paths("deadletter"):
            job.write("deadletter", spark.read.parquet(*paths))
    with job.step("report made"):
        results = _results(counted, {**frames, "counts": counts, "transactions": every}, number, dates)
    job.remove("parts")
    return results


def _written(job: Job, spark: SparkSession, name: str, frame: DataFrame) -> DataFrame:
    """Write a result and return it as it lies there: it is computed once."""
    job.write(name, frame)
    return spark.read.schema(frame.schema).parquet(f"{job.folder}/{name}")


def _results(
    counted: Counted, frames: Mapping[str, DataFrame], number: int, dates: tuple[int, int]
) -> Results:
    counts, every = frames["counts"], frames["transactions"]
    first, end = dates
    inside = counts.where((sf.col("second") >= first) & (sf.col("second") < end) & (sf.col("second") > 0))
    total = counts.agg(
        _sum("events"), _sum("stored"),
        sf.min(sf.when(sf.col("second") > 0, sf.col("second"))).alias("first_time"),
        sf.max("second").alias("last_time"),
        sf.sum(sf.when(sf.col("second") == 0, sf.col("events")).otherwise(0)).alias("undated"),
    ).first()  # fmt: skip
    usual = inside.agg(
        sf.min("second").alias("first"), sf.max("second").alias("last"), _sum("events")
    ).first()
    assert total is not None
    assert usual is not None
    step = column_width(usual.first or 0, usual["last"] or 0)
    start = (sf.col("second") - sf.col("second") % step).alias("start")
    along = inside.groupBy(start, "operation").agg(_sum("rows"), sf.sum("stored").alias("bytes")).collect()
    types = counts.groupBy("type").agg(_sum("events"), _sum("bytes"))
    minutes = frames["rows_per_minute"].where("operation = 'delete' and rows > 0")
    numbers = every.agg(
        sf.count("*").alias("transactions"), sf.count_if(sf.col("ends") == "rollback").alias("rollbacks"),
        sf.count_if(sf.size("tables") > 1).alias("of_several_tables"),
    ).first()  # fmt: skip
    assert numbers is not None
    per_table = frames["rows_per_table"].collect()
    by_rows: dict[tuple[str, str, str], int] = {}
    for row in per_table:
        name = row.source, row.database, row.table
        by_rows[name] = by_rows.get(name, 0) + row.rows
    return Results(
        step=step,
        along=along,
        first=usual.first,
        last=usual["last"],
        outside=(total.events or 0) - (usual.events or 0) - (total.undated or 0),
        first_time=total.first_time,
        last_time=total.last_time,
        undated=total.undated or 0,
        events=counted.outcome.events,
        bytes=counted.outcome.raw_bytes,
        transactions=numbers.transactions,
        rollbacks=numbers.rollbacks,
        types=types.orderBy(sf.desc("events"), "type").collect(),
        rows=sorted(
            per_table,
            key=lambda r: (
                -by_rows[r.source, r.database, r.table],
                r.database,
                r.table,
                r.source,
                r.operation,
            ),
        ),
        largest=frames["largest_transactions"].collect(),
        longest=frames["longest_transactions"].collect(),
        tables=frames["tables"].collect(),
        columns=frames["columns"].orderBy(sf.desc("changed"), "ordinal").limit(_KEPT).collect(),
        hot_keys=frames["hot_keys"].orderBy(sf.desc("changes")).limit(number).collect(),
        statements=frames["statements"]
        .orderBy(sf.desc("executions"), sf.desc("rows"))
        .limit(2 * number)
        .collect(),
        number_of_ddl=frames["ddl"].count(),
        ddl=frames["ddl"].orderBy(sf.desc("second"), sf.desc("offset")).limit(10 * number).collect(),
        deletes=minutes.orderBy(sf.desc("rows"), "minute", "database", "table", "source")
        .limit(number)
        .collect(),
        lag=frames["lag"].orderBy("source", "server_id").collect(),
        commit_groups=frames["commit_groups"].orderBy("source").collect(),
    )


def summary(results: Results) -> dict[str, Any]:
    """Return the figures for ``summary.json``."""
    return {
        "events": results.events,
        "bytes": results.bytes,
        "transactions": results.transactions,
        "rollbacks": results.rollbacks,
        "rows": results.number_of_rows,
        "first_event": moment(results.first_time),
        "last_event": moment(results.last_time),
        "dated_elsewhere": results.outside,
        "ddl_statements": results.number_of_ddl,
        "events_by_type": {row.type: row.events for row in results.types},
        **{
            name: [row.asDict() for row in rows]
            for name, rows in (
                ("rows_per_table", results.rows),
                ("largest_transactions", results.largest),
                ("longest_transactions", results.longest),
                ("tables", results.tables),
                ("hot_keys", results.hot_keys),
                ("statements", results.statements),
                ("lag", results.lag),
                ("commit_groups", results.commit_groups),
            )
        },
    }


def _duration(_context: click.Context, option: click.Parameter, text: str) -> int:
    try:
        seconds = round(parse_duration(text).total_seconds())
    except (ValueError, OverflowError):
        seconds = -1
    least = 1 if option.name == "window" else 0
    if not least <= seconds <= _LONGEST_S:
        raise click.BadParameter(f"{text!r}: expected a time as 30s, 1m or 2h, up to 24h")
    return seconds


@job_command("analytics", raw=True)
@click.option(
    "--top", "number", type=click.IntRange(1, 1000), default=10, show_default=True,
    help="How many of the largest, of the longest and so on to report; with --follow, how many tables of a "
    "window.",
)  # fmt: skip
@follow_options
@click.option(
    "--window",
    default="1m",
    show_default=True,
    callback=_duration,
    help="With --follow, the length of a window, as 30s, 1m or 2h.",
)
@click.option(
    "--lateness",
    default="10s",
    show_default=True,
    callback=_duration,
    help="With --follow, how long a window stays open after its end, by the times of records.",
)
@click.option("--publish", is_flag=True, help=f"With --follow, also write the windows to the topic {_TOPIC}.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="With --follow, the port on which metrics are served for Prometheus; 0 serves none. "
    "[MILLRACE_HTTP_PORT]",
)
def main(
    job: Job,
    spark: SparkSession,
    number: int,
    *,
    follow: bool,
    every: int,
    window: int,
    lateness: int,
    publish: bool,
    metrics_port: int | None,
) -> None:
    """Report what was written when: load, tables, transactions, statements, keys, lag and DDL."""
    if follow:
        check_endless()
        check_no_archive(job)
        port = job.settings.http_port if metrics_port is None else metrics_port
        pace = Pace(timedelta(seconds=every))
        count_windows(job, Options(window, lateness, number, publish, port, pace))
        return
    results = analyse(job, spark, number)
    for line in lines(results):
        job.steps.say(line)
    job.finish(summary(results), report(job, results))


if __name__ == "__main__":
    main()

"""Analytics of a source: what is written when, to which tables, by which transactions and statements.

Reads the view ``statistics`` of the log once (:mod:`millrace.spark.statistics`) and keeps it as Parquet; all
results are ``groupBy``s of that. Writes, in the output folder, the tables that
``docs/jobs/analytics.md`` names, the figures as ``summary.json`` and a page, ``report.html``. With
``--follow`` it counts in windows of time, as the topic grows (:mod:`spark_jobs.windows.follow`).

    millrace job analytics --source shop
    millrace job analytics --source shop --from 1h --follow --publish
    spark-submit --jars … spark_jobs/analytics.py --source shop --from 2026-01-31T10:00 --to 2026-01-31T11:00
"""

import time
from collections.abc import Mapping
from datetime import timedelta
from functools import reduce
from typing import Any, Final

import click
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millrace.contract import OF_ALL_SOURCES
from millrace.spark.statistics import STATISTICS
from spark_jobs.common.analytics_page import Results, lines, report
from spark_jobs.common.charts import column_width, usual_span
from spark_jobs.common.faults import tell_corrupt
from spark_jobs.common.follow import Pace, check_endless, check_no_archive, follow_options
from spark_jobs.common.job import Job, job_command, moment
from spark_jobs.common.kafka import parse_duration
from spark_jobs.common.source import read_log
from spark_jobs.windows.follow import Options, count_windows

_HOUR: Final = 3600
_LONGEST_S: Final = 86_400
_OWN_CLOCK_S: Final = 3600
_TOPIC: Final = OF_ALL_SOURCES["analytics"]
_NAMED_TABLES: Final = 50
"""Tables of a transaction that are named."""

_KEPT: Final = 1000
"""Rows that the tables of hot keys and of statements have at the most: those with most."""


def count_log(job: Job) -> DataFrame:
    """Compute the view ``statistics`` of the job's sources once; each row has its ``source``."""
    least = str(2 * job.spark.sparkContext.defaultParallelism)
    views = [
        read_log(job, one, "statistics", columns=_counted(), minPartitions=least).withColumn(
            "source", sf.lit(one.source)
        )
        for one in job.inputs
    ]
    started = time.monotonic()
    with job.step("events counted"):
        counted = job.keep("counted", reduce(DataFrame.unionAll, views))
    read = of_kind(counted, "read").agg(_sum("events"), _sum("bytes")).first()
    assert read is not None
    job.steps.say_speed(read.events or 0, read.bytes or 0, time.monotonic() - started)
    return counted


def _counted() -> StructType:
    """Return the columns of the view that are wanted: all but what a user of a single view has besides."""
    left_out = {"record_time", "_sequence", "_commit_ts", "_gtid"}
    kinds = []
    for kind in STATISTICS:
        more = {"rows", "statement"} if kind.name == "transactions" else set()
        columns = [one for one in kind.type.value_type if one.name not in left_out | more]
        kinds.append(pa.field(kind.name, pa.list_(pa.struct(columns))))
    return from_arrow_schema(pa.schema(kinds))


def of_kind(counted: DataFrame, kind: str) -> DataFrame:
    """Return the rows of a kind, with their source."""
    return counted.select("source", sf.inline(kind))


def counts_of(counted: DataFrame) -> DataFrame:
    """Return sums of events; ``second`` is that of the events, since 1970."""
    return of_kind(counted, "counts").withColumn("second", sf.unix_seconds("time")).drop("time")


def ddl_of(counted: DataFrame) -> DataFrame:
    """Return DDL statements."""
    return of_kind(counted, "ddl").select(
        "source", "offset", sf.col("key").alias("raw_key"), sf.unix_seconds("time").alias("second"),
        "server_id", "thread_id", "user", "database", "object", "verb", "statement", "seconds",
    )  # fmt: skip


def transactions_of(counted: DataFrame) -> DataFrame:
    """Return transactions; times are seconds since 1970, those of commits microseconds."""
    names = sf.transform("tables", lambda one: sf.concat(one.database, sf.lit("."), one.table))
    return of_kind(counted, "transactions").select(
        "source", "_position.epoch", sf.col("_transaction").alias("transaction"),
        sf.col("key").alias("first_key"), "first_offset", "last_offset",
        sf.col("_position.file").alias("log_file"), sf.col("_position.pos").alias("position"),
        sf.col("_server_id").alias("server_id"), "thread_id", "user", "events",
        (sf.col("inserts") + sf.col("updates") + sf.col("deletes")).alias("rows"),
        "inserts", "updates", "deletes", "bytes",
        *(sf.unix_seconds(name).alias(name) for name in ("started", "ended")),
        *(sf.unix_micros(name).alias(f"{name}_us") for name in ("original_commit", "immediate_commit")),
        "last_committed", sf.coalesce("last_committed", "commit_id").alias("commit_group"), "ends",
        sf.slice(sf.sort_array(names), 1, _NAMED_TABLES).alias("tables"),
    )  # fmt: skip


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


def analyse(job: Job, number: int) -> Results:
    """Count the events of the job's sources, write the results and return what the report shows."""
    counted = count_log(job)
    counts = counts_of(counted)
    with job.step("results written"):
        dates = usual_dates(counts)
        every = _written(job, "transactions", with_durations(transactions_of(counted), dates))
        job.write("events_per_minute", events_per_minute(counts))
        written = {
            "rows_per_minute": rows_per_minute(counts),
            "rows_per_table": rows_per_table(counts),
            "largest_transactions": top(every, number, "rows", "bytes"),
            "longest_transactions": longest(every, number),
            "tables": tables(of_kind(counted, "tables")),
            "columns": columns(of_kind(counted, "columns")),
            "hot_keys": hot_keys(of_kind(counted, "keys")),
            "statements": statements(of_kind(counted, "statements")),
            "lag": lag(every),
            "commit_groups": commit_groups(every),
            "ddl": ddl_of(counted),
        }
        frames = {name: _written(job, name, frame) for name, frame in written.items()}
        tell_corrupt(job, of_kind(counted, "corrupt"))
    with job.step("report made"):
        return _results(
            {**frames, "counts": counts, "read": of_kind(counted, "read"), "transactions": every},
            number,
            dates,
        )


def _written(job: Job, name: str, frame: DataFrame) -> DataFrame:
    """Write a result and return it as it lies there: it is computed once."""
    job.write(name, frame)
    return job.spark.read.schema(frame.schema).parquet(f"{job.folder}/{name}")


def _results(frames: Mapping[str, DataFrame], number: int, dates: tuple[int, int]) -> Results:
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
    read = frames["read"].agg(_sum("events"), _sum("bytes")).first()
    assert read is not None
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
        events=read.events or 0,
        bytes=read.bytes or 0,
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
    _spark: SparkSession,
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
    results = analyse(job, number)
    for line in lines(results):
        job.steps.say(line)
    job.finish(summary(results), report(job, results))


if __name__ == "__main__":
    main()

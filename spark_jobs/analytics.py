"""Analytics of a source: what is written when, to which tables, and in which transactions.

Reads ``{source}.events``; writes, in the output folder, Parquet tables ``events_per_minute``,
``rows_per_table``, ``transactions``, ``largest_transactions`` and ``longest_transactions``, the figures as
``summary.json`` and a page, ``report.html``.

    millrace job analytics --source shop
    spark-submit --jars … spark_jobs/analytics.py --source shop --from 2026-01-31T10:00 --to 2026-01-31T11:00
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from spark_jobs.common.charts import Series, bars, column_width, columns, count, fill, legend, times
from spark_jobs.common.events import read_events
from spark_jobs.common.job import Job, job_command, moment, persisted
from spark_jobs.common.report import Bytes, Code, Report
from spark_jobs.common.rows import count_rows
from spark_jobs.common.transactions import INSTANCE, cut_transactions, number_laps, transactions

__all__ = ["events_per_minute", "main", "rows_per_table", "top"]

_SERIES: Final = 7
_BARS: Final = 15


def events_per_minute(events: DataFrame) -> DataFrame:
    """Count events and their bytes per type and minute; ``minute`` is its start, in seconds since 1970."""
    minute = (sf.col("timestamp") - sf.col("timestamp") % 60).alias("minute")
    return events.groupBy("source", minute, "type").agg(
        sf.count("*").alias("events"), sf.sum("size").alias("bytes")
    )


def rows_per_table(events: DataFrame) -> DataFrame:
    """Count rows events, their rows and bytes per table and operation.

    ``uncounted`` is how many of the events have a number of rows that cannot be told, since their table map
    lies before the input.
    """
    changes = events.where(sf.col("operation").isNotNull())
    return changes.groupBy("source", "database", "table", "operation").agg(
        sf.count("*").alias("events"),
        sf.coalesce(sf.sum("rows"), sf.lit(0)).alias("rows"),
        sf.sum("size").alias("bytes"),
        sf.count_if(sf.col("rows").isNull()).alias("uncounted"),
    )


def top(frame: DataFrame, number: int, *by: str) -> DataFrame:
    """Return the ``number`` transactions that are greatest by the columns ``by``; ties go to the earlier."""
    return frame.orderBy(*(sf.desc_nulls_last(name) for name in by), "source", "first_offset").limit(number)


@dataclass(frozen=True, slots=True)
class _Results:
    """What the report shows, collected to the driver."""

    step: int
    along: Sequence[Row]
    types: Sequence[Row]
    tables: Sequence[Row]
    largest: Sequence[Row]
    longest: Sequence[Row]
    total: Row
    transactions: int


def analyse(job: Job, spark: SparkSession, number: int) -> _Results:
    """Read the events of the job's sources, write the results and return what the report shows."""
    with job.step("events decoded"):
        events = persisted(read_events(spark, job))
    with job.step("rows counted"):
        logged = persisted(number_laps(count_rows(events)))
    with job.step("tables and transactions summed up"):
        cut = cut_transactions(logged)
        counted = logged.join(sf.broadcast(cut), list(INSTANCE), "left_anti")
        if number_cut := cut.count():
            job.notes.append(
                f"{number_cut} transactions were cut where the reader lost its server; what came of them "
                "before they followed again, whole, is left out."
            )
        every = persisted(transactions(counted))
        minutes = persisted(events_per_minute(counted))
        tables = persisted(rows_per_table(counted))
        largest, longest = top(every, number, "rows", "bytes"), top(every, number, "seconds", "bytes")
        total = counted.agg(
            sf.count("*").alias("events"),
            sf.coalesce(sf.sum(sf.when(sf.col("sub_index") == 0, sf.col("size"))), sf.lit(0)).alias("bytes"),
            sf.min(sf.when(sf.col("timestamp") > 0, sf.col("timestamp"))).alias("first_time"),
            sf.max("timestamp").alias("last_time"),
            sf.count_if(sf.col("timestamp") == 0).alias("undated"),
        ).first()
        assert total is not None
    with job.step("results written"):
        job.write("events_per_minute", minutes)
        job.write("rows_per_table", tables)
        job.write("transactions", every)
        job.write("largest_transactions", largest)
        job.write("longest_transactions", longest)
    types = minutes.groupBy("type").agg(sf.sum("events").alias("events"), sf.sum("bytes").alias("bytes"))
    step = column_width(total.first_time or 0, total.last_time or 0)
    column = sf.col("timestamp") - sf.col("timestamp") % step
    along = counted.where("timestamp > 0").groupBy(column.alias("start"), "type")
    return _Results(
        step=step,
        along=along.agg(sf.count("*").alias("events")).collect(),
        types=types.orderBy(sf.desc("events"), "type").collect(),
        tables=tables.orderBy(sf.desc("rows"), "source", "database", "table", "operation").collect(),
        largest=largest.collect(),
        longest=longest.collect(),
        total=total,
        transactions=every.count(),
    )


def summary(results: _Results) -> dict[str, Any]:
    """Return the figures for ``summary.json``."""
    return {
        "events": results.total.events,
        "bytes": results.total.bytes,
        "transactions": results.transactions,
        "rows": sum(row.rows for row in results.tables),
        "first_event": moment(results.total.first_time),
        "last_event": moment(results.total.last_time),
        "events_by_type": {row.type: row.events for row in results.types},
        "rows_per_table": [row.asDict() for row in results.tables],
        "largest_transactions": [row.asDict() for row in results.largest],
        "longest_transactions": [row.asDict() for row in results.longest],
    }


def report(job: Job, results: _Results) -> Report:
    """Build the page."""
    total = results.total
    begin, end = moment(total.first_time) or "nothing", moment(total.last_time) or "nothing"
    period = f"{begin} to {end} (UTC, the events' own times)"
    page = Report(f"Analytics of {', '.join(job.sources)}", [*job.facts, period])
    tables = {(row.source, row.database, row.table) for row in results.tables}
    page.tiles(
        [
            ("events", total.events),
            ("transactions", results.transactions),
            ("rows changed", sum(row.rows for row in results.tables)),
            ("tables", len(tables)),
            ("in the log", Bytes(total.bytes)),
        ]
    )
    for note in job.notes:
        page.text(note)
    _events_section(page, results)
    _tables_section(page, results)
    page.section("Largest transactions", "By rows changed. Bytes are those of all its events in the log.")
    _transactions_table(page, results.largest)
    page.section(
        "Longest transactions",
        "From the first statement to the commit on the server where the transaction began. Event times "
        "have whole seconds; the time of the commit is exact where the log holds it (MySQL 8.0 and later).",
    )
    _transactions_table(page, results.longest)
    return page


def _events_section(page: Report, results: _Results) -> None:
    page.section("Events by type and time")
    shown = [row.type for row in results.types[:_SERIES]]
    rest = len(results.types) > _SERIES
    along: dict[int, dict[str, int]] = {}
    for row in results.along:
        name = row.type if row.type in shown else "others"
        counts = along.setdefault(row.start, {})
        counts[name] = counts.get(name, 0) + row.events
    names = [*shown, "others"] if rest else shown
    if along:
        starts, values = fill(along, results.step)
        none = [0] * len(starts)
        series = [Series(name, values.get(name, none)) for name in names]
        page.chart(legend(names))
        page.chart(columns("Events by type and time", *times(starts, results.step), series))
    if results.total.undated:
        page.text(f"{count(results.total.undated)} events have the timestamp 0 and are not in the chart.")
    page.table(
        ["event type", "events", "bytes"],
        [(row.type, row.events, Bytes(row.bytes)) for row in results.types],
        folded=f"All {len(results.types)} event types in figures",
    )


def _tables_section(page: Report, results: _Results) -> None:
    page.section("Rows by table and operation")
    if not results.tables:
        page.text("No rows event in this part of the log.")
        return
    several = len({row.source for row in results.tables}) > 1
    per_table: dict[str, dict[str, int]] = {}
    for row in results.tables:
        name = f"{row.source}: {row.database}.{row.table}" if several else f"{row.database}.{row.table}"
        per_table.setdefault(name, {})[row.operation] = row.rows
    ranked = sorted(per_table.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    operations = ["insert", "update", "delete"]
    series = [Series(name, [counts.get(name, 0) for _, counts in ranked[:_BARS]]) for name in operations]
    page.chart(legend(operations))
    page.chart(bars("Rows by table and operation", [name for name, _ in ranked[:_BARS]], series))
    if len(ranked) > _BARS:
        page.text(f"The {_BARS} tables with most rows; all {len(ranked)} are in the figures below.")
    if uncounted := sum(row.uncounted for row in results.tables):
        page.text(f"{count(uncounted)} rows events are not counted: their table map lies before the input.")
    page.table(
        ["table", "operation", "rows", "events", "bytes"],
        [
            (f"{row.database}.{row.table}", row.operation, row.rows, row.events, Bytes(row.bytes))
            for row in results.tables
        ],
        folded="The same in figures",
    )


def _transactions_table(page: Report, rows: Sequence[Row]) -> None:
    page.table(
        ["transaction", "began (UTC)", "seconds", "rows", "events", "bytes", "tables", "first event"],
        [
            (
                Code(row.transaction), moment(row.started), row.seconds, row.rows, row.events,
                Bytes(row.bytes), ", ".join(row.tables) or None, Code(row.first_key),
            )
            for row in rows
        ],
    )  # fmt: skip


@job_command("analytics")
@click.option(
    "--top", "number", type=click.IntRange(1, 1000), default=10, show_default=True,
    help="How many of the largest and of the longest transactions to report.",
)  # fmt: skip
def main(job: Job, spark: SparkSession, number: int) -> None:
    """Report events per type and minute, rows per table, and the largest and longest transactions."""
    results = analyse(job, spark, number)
    job.finish(summary(results), report(job, results))


if __name__ == "__main__":
    main()

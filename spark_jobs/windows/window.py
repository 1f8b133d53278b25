"""Windows of time over the view ``statistics``: what of a source's log lies in each, as DataFrames.

The time of an event is that of its raw record: that which the reader gave it, never before the record before
it, nor after the moment at which it was read. None is after the time of its micro-batch, which Spark keeps
with the offsets. So no single record can take the time along, and a micro-batch that is repeated gives the
same.

A window is closed when a record has come that is dated ``lateness`` or more after its end. What is later
than that counts in the first window after it, as late: nothing is lost, and what was told of a closed window
holds.

The open windows are rows of :data:`SUMS`. A micro-batch becomes such rows, which are added to those of the
micro-batch before.
"""

import math
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from millrace import __version__
from millrace.spark.statistics import STATISTICS

OPERATIONS: Final = ("insert", "update", "delete")
WINDOW: Final = ("source", "start")
_TABLE: Final = ("database", "table")
_COUNTERS: Final = ("transactions", "rollbacks", "ddl_statements", "unreadable_records", "late_events")
TOTALS: Final = ("events", "bytes", "inserts", "updates", "deletes", *_COUNTERS)
"""What is added up of a window."""

_LISTED: Final = 10
"""Largest transactions, DDL statements and tables of a transaction that a window has."""

_MOST_ORIGINS: Final = 100
_BASE: Final = 1.04
"""A histogram tells numbers apart that differ by 4 %: it is exact to 2 %."""

_KEYS: Final = ("type", *_TABLE, "operation", "server_id", "bucket", "largest", "ddl")
_COUNTED: Final = ("events", "rows", "bytes", "stored", "uncounted")
_ADDED: Final = (*_COUNTED, *_COUNTERS, "behind")
SUMS: Final = (
    "source string, start bigint, until bigint, batch bigint, type string, database string, table string, "
    "operation string, server_id bigint, bucket int, "
    + "".join(f"{name} bigint, " for name in (*_ADDED, "least", "most"))
    + "largest struct<transaction string, first_key string, first_offset bigint, server_id bigint, "
    "thread_id bigint, user string, rows bigint, inserts bigint, updates bigint, deletes bigint, "
    "bytes bigint, tables array<string>>, "
    "ddl struct<offset bigint, raw_key string, second bigint, server_id bigint, thread_id bigint, "
    "user string, database string, object string, verb string, statement string, seconds bigint>"
)
"""What is kept of windows. A row has sums of events of a type and table, or how many transactions of an
origin were committed later by about so much (``behind``, in a ``bucket`` of a histogram, ``least`` and
``most`` in µs), or one of the largest transactions, or a DDL statement. ``until`` is the latest time of a
record in it, ``batch`` the micro-batch that was added last.
"""


def columns() -> StructType:
    """Return the columns of the view ``statistics`` that are counted in windows."""
    wanted = [STATISTICS.field(name) for name in ("counts", "transactions", "ddl", "corrupt")]
    return from_arrow_schema(pa.schema(wanted))


def add(batch: DataFrame, before: DataFrame, number: int, window_s: int, lateness_s: int) -> DataFrame:
    """Add a micro-batch to the windows that were open before it.

    It has :func:`columns` with ``source``, and ``given``, the time of the micro-batch in seconds.
    """
    still_open = opened(before, window_s, lateness_s)
    known = before.groupBy("source").agg(
        sf.expr(closed_until("max(until)", window_s, lateness_s)).alias("closed"),
        sf.max("start").alias("newest"),
    )

    def of_kind(kind: str) -> DataFrame:
        """Return rows with their window; what has no time, as it follows no event, counts in the newest."""
        rows = batch.select("source", "given", sf.inline(kind)).join(sf.broadcast(known), "source", "left")
        time = "if(unix_seconds(record_time) > given, given, unix_seconds(record_time))"
        begins = f"coalesce(until div {window_s} * {window_s}, newest, given div {window_s} * {window_s})"
        rows = rows.withColumn("until", sf.expr(time)).withColumn("start", sf.expr(begins))
        rows = rows.withColumn("late", sf.expr("start < closed"))
        return rows.withColumns({"start": sf.greatest("start", "closed"), "batch": sf.lit(number)})

    transactions, ddl = of_kind("transactions"), of_kind("ddl")
    parts = [
        still_open,
        _added(of_kind("counts"), *_KEYS[:4], *_COUNTED, "if(late, events, 0) AS late_events"),
        _added(transactions, "1 AS transactions", "if(ends = 'rollback', 1, 0) AS rollbacks"),
        _added(ddl, "1 AS ddl_statements"),
        _added(of_kind("corrupt"), "1 AS unreadable_records"),
        _lags(transactions),
        _listed(_added(transactions, _LARGEST)),
        _listed(_added(ddl, _DDL)),
    ]
    every = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    summed = every.groupBy(*WINDOW, *_KEYS).agg(
        *map(_sum, _ADDED), sf.min("least").alias("least"),
        *(sf.max(name).alias(name) for name in ("most", "until", "batch")),
    )  # fmt: skip
    return _listed(summed).select(*before.columns)


def closed_until(until: str, window_s: int, lateness_s: int) -> str:
    """Return where the first window begins that is not closed when a record of a time has come, as SQL."""
    return f"({until} - {lateness_s}) div {window_s} * {window_s}"


def opened(sums: DataFrame, window_s: int, lateness_s: int) -> DataFrame:
    """Return what is kept of windows that are not closed."""
    closed = sf.expr(f"start < {closed_until('latest', window_s, lateness_s)}")
    latest = sf.max("until").over(Window.partitionBy("source"))
    return sums.withColumn("latest", latest).where(~closed).drop("latest")


def _added(rows: DataFrame, *more: str) -> DataFrame:
    return rows.selectExpr(*WINDOW, "until", "batch", *more)


_LARGEST: Final = """struct(
    _transaction AS transaction, key AS first_key, first_offset, _server_id AS server_id, thread_id, user,
    inserts + updates + deletes AS rows, inserts, updates, deletes, bytes,
    slice(sort_array(transform(tables, t -> t.database || '.' || t.table)), 1, 10) AS tables
) AS largest"""
_DDL: Final = """struct(
    offset, key AS raw_key, unix_seconds(time) AS second, server_id, thread_id, user, database, object, verb,
    statement, seconds
) AS ddl"""


def _lags(transactions: DataFrame) -> DataFrame:
    """Return how much later than where they began transactions were committed."""
    late = "unix_micros(immediate_commit) - unix_micros(original_commit)"
    bucket = f"CAST(floor(log1p(greatest(least, 0)) / {math.log(_BASE)}) AS int)"
    found = _added(transactions, "_server_id AS server_id", f"{late} AS least").where("least is not null")
    return found.selectExpr("*", "least AS most", f"{bucket} AS bucket", "1 AS behind")


def _listed(sums: DataFrame) -> DataFrame:
    """Leave those transactions and statements that a window lists."""
    order: list[Column] = []
    listed = []
    if "largest" in sums.columns:
        listed.append(sf.col("largest").isNotNull())
        order += [sf.desc("largest.rows"), sf.desc("largest.bytes"), sf.col("largest.first_offset")]
    if "ddl" in sums.columns:
        listed.append(sf.col("ddl").isNotNull())
        order.append(sf.col("ddl.offset"))
    rank = sf.row_number().over(Window.partitionBy(*WINDOW, *listed).orderBy(*order))
    is_listed = reduce(lambda one, other: one | other, listed)
    return sums.withColumn("rank", rank).where(~is_listed | (sf.col("rank") <= _LISTED)).drop("rank")


# -- what is told of a window -----------------------------------------------------------------------------


def windows(sums: DataFrame, most_tables: int) -> DataFrame:
    """Return a row per window: totals, and lists as its record has them; of tables those of most rows."""
    counted, key = sums.where("events is not null"), [*WINDOW]
    listed = sums.groupBy(*key).agg(
        *_totals(),
        sf.sort_array(sf.collect_list("ddl")).alias("ddl"),
        sf.collect_list("largest").alias("largest_transactions"),
    )
    types = counted.groupBy(*key, "type").agg(_sum("events"))
    of_table = [*_operations(), _sum("events"), _sum("bytes"), sf.sum("uncounted").alias("uncounted_events")]
    names = ("inserts", "updates", "deletes", "events", "bytes", "uncounted_events")
    order = sf.desc(sf.expr("inserts + updates + deletes")), sf.desc("bytes"), *_TABLE
    tables = counted.where("operation is not null").groupBy(*key, *_TABLE).agg(*of_table)
    tables = tables.withColumn("rank", sf.row_number().over(Window.partitionBy(*key).orderBy(*order)))
    shown, others = tables.where(f"rank <= {most_tables}"), tables.where(f"rank > {most_tables}")
    summed = others.groupBy(*key).agg(*map(_sum, names)).select(*key, sf.struct(*names).alias("other_tables"))
    return (
        listed.join(_gathered(types, "events_by_type", "type", "events"), key, "left")
        .join(_gathered(shown, "tables", "rank", *_TABLE, *names), key, "left")
        .join(summed, key, "left")
        .join(_gathered(_origins(sums), "lag_ms", "server_id", *_LAG), key, "left")
    )


def totals(sums: DataFrame) -> DataFrame:
    """Return what is added up by source, and how many windows there are."""
    return sums.groupBy("source").agg(*_totals(), sf.count_distinct("start").alias("windows"))


def _totals() -> list[Column]:
    return [
        *map(_sum, ("events", *_COUNTERS)), sf.sum("stored").alias("bytes"), *_operations(),
        sf.max("batch").alias("batch"), sf.max("until").alias("until"),
    ]  # fmt: skip


def _operations() -> list[Column]:
    return [sf.expr(f"sum(if(operation = '{name}', rows, 0)) AS {name}s") for name in OPERATIONS]


_LAG: Final = ("transactions", "p50", "p99", "most", "least")


def _origins(sums: DataFrame) -> DataFrame:
    """Return how much later transactions were committed, in ms, by origin; beyond many they are one, null."""
    found, key = sums.where("behind is not null"), [*WINDOW, "server_id"]
    by_size = Window.partitionBy(*WINDOW).orderBy(sf.desc("behind"), "server_id")
    ranked = found.groupBy(*key).agg(_sum("behind")).withColumn("rank", sf.row_number().over(by_size))
    found = found.join(ranked.select(*key, "rank"), key)
    about = f"greatest(least(expm1((bucket + 0.5) * {math.log(_BASE)}), most), least)"
    found = found.withColumns({
        "server_id": sf.expr(f"if(rank <= {_MOST_ORIGINS}, server_id, null)"), "about": sf.expr(about)
    })  # fmt: skip
    return found.groupBy(*key).agg(
        sf.sum("behind").alias("transactions"),
        sf.expr("percentile(about, 0.5, behind) / 1000 AS p50"),
        sf.expr("percentile(about, 0.99, behind) / 1000 AS p99"),
        sf.expr("max(most) / 1000 AS most"),
        sf.expr("min(least) / 1000 AS least"),
    )


def _gathered(frame: DataFrame, name: str, *columns: str) -> DataFrame:
    """Gather rows of a window into a list, in the order of their first column."""
    rows = sf.sort_array(sf.collect_list(sf.struct(*columns)))
    return frame.groupBy(*WINDOW).agg(rows.alias(name))


def _sum(name: str) -> Column:
    return sf.sum(name).alias(name)


def record(row: Row, window_s: int, *, closed: bool) -> dict[str, Any]:
    """Return a window as its record has it."""
    of = row.asDict(recursive=True)
    return {
        "job": "analytics",
        "version": __version__,
        "source": of["source"],
        "start": of["start"],
        "end": of["start"] + window_s,
        "closed": closed,
        **{name: of[name] or 0 for name in TOTALS},
        "rows": sum(of[f"{name}s"] or 0 for name in OPERATIONS),
        "events_by_type": {one["type"]: one["events"] for one in of["events_by_type"] or ()},
        "tables": [{name: one[name] for name in one if name != "rank"} for one in of["tables"] or ()],
        "other_tables": of["other_tables"],
        "largest_transactions": sorted(
            of["largest_transactions"], key=lambda one: (-one["rows"], -one["bytes"], one["first_offset"])
        ),
        "ddl": of["ddl"],
        "lag_ms": sorted(of["lag_ms"] or (), key=lambda one: (one["server_id"] is None, one["server_id"])),
    }

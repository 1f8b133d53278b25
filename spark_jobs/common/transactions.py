"""Transactions out of a stream of events: pure functions from DataFrame to DataFrame.

An event's ``transaction`` is its GTID, else where it starts (``file:position``). The same one can occur more
than once in a stream, which is what loop detection looks for; so each occurrence has a ``lap``, counted from
1, which begins with the event of ordinal 0. Lap 0 is one whose beginning lies before the input.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

__all__ = ["INSTANCE", "cut_transactions", "is_gtid", "number_laps", "transactions"]

INSTANCE: Final = ("source", "epoch", "transaction", "lap")
"""What tells one occurrence of a transaction from all others."""

_GTID: Final = r"^([0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(:\w+)?:\d+|\d+-\d+-\d+)$"
_MOST_TABLES: Final = 50


def is_gtid(transaction: str = "transaction") -> Column:
    """Tell a GTID of MySQL (``uuid[:tag]:number``) or MariaDB (``domain-server-number``) from a position."""
    return sf.col(transaction).rlike(_GTID)


def number_laps(events: DataFrame) -> DataFrame:
    """Add the ``lap`` of each event; null outside transactions."""
    order = Window.partitionBy("source", "epoch", "transaction").orderBy("offset", "sub_index")
    begins = sf.when(sf.col("ordinal") == 0, 1).otherwise(0)
    lap = sf.when(sf.col("transaction").isNotNull(), sf.sum(begins).over(order).cast("long"))
    return events.withColumn("lap", lap)


def cut_transactions(events: DataFrame) -> DataFrame:
    """Return the occurrences of transactions in which an epoch ends; ``events`` have a ``lap``.

    The reader had lost its server in the middle of them. They follow again, whole, in the next epoch, unless
    they are in a gap.
    """
    place = sf.struct("offset", "sub_index")
    last = events.groupBy("source", "epoch").agg(
        sf.max_by(sf.struct("transaction", "lap", "ends"), place).alias("last")
    )
    newest = sf.max("epoch").over(Window.partitionBy("source"))
    inside = last.withColumn("newest", newest).where(
        "epoch < newest and last.transaction is not null and last.ends is null"
    )
    return inside.select("source", "epoch", "last.transaction", "last.lap")


def transactions(events: DataFrame) -> DataFrame:
    """Return one row per occurrence of a transaction; ``events`` have a ``lap``, and ``rows`` if known.

    ``bytes`` counts what the log holds, so a compressed transaction counts compressed. ``started`` and
    ``ended`` are the first and last time in the headers (seconds since 1970, null where no event has one).
    ``seconds`` reaches from ``started`` to the commit on the server where the transaction began, as far as
    the log tells. ``dated`` and ``dated_to`` are the times of what changes something, which are the same on
    every member of a topology; ``form`` is how it is logged: ``rows``, ``statements``, or ``ddl`` for a
    statement that is a transaction by itself.
    """
    place = sf.struct("offset", "sub_index")
    time = sf.when(sf.col("timestamp") > 0, sf.col("timestamp"))
    stored = sf.when(sf.col("sub_index") == 0, sf.col("size")).otherwise(sf.lit(0))
    acts = sf.col("operation").isNotNull() | sf.col("digest").isNotNull()
    table = sf.when(sf.col("operation").isNotNull(), sf.concat_ws(".", "database", "table"))
    form = (
        sf.when(sf.count("operation") > 0, "rows")
        .when(sf.max(sf.when(sf.col("digest").isNotNull(), sf.col("ends"))).isNotNull(), "ddl")
        .otherwise("statements")
    )
    grouped = (
        events.where(sf.col("lap").isNotNull())
        .groupBy(*INSTANCE)
        .agg(
            sf.min_by("raw_key", place).alias("first_key"),
            sf.max_by("raw_key", place).alias("last_key"),
            sf.min("offset").alias("first_offset"),
            sf.max("offset").alias("last_offset"),
            sf.min_by("log_file", place).alias("log_file"),
            sf.min_by("position", place).alias("position"),
            sf.min_by("server_id", place).alias("server_id"),
            sf.count("*").alias("events"),
            sf.sum("rows").alias("rows"),
            sf.sum(stored).alias("bytes"),
            sf.min(time).alias("started"),
            sf.max(time).alias("ended"),
            sf.min(sf.when(acts, time)).alias("dated"),
            sf.max(sf.when(acts, time)).alias("dated_to"),
            sf.max("thread_id").alias("thread_id"),
            form.alias("form"),
            sf.max("original_commit_us").alias("original_commit_us"),
            sf.max("immediate_commit_us").alias("immediate_commit_us"),
            sf.slice(sf.sort_array(sf.collect_set(table)), 1, _MOST_TABLES).alias("tables"),
        )
    )
    committed = sf.coalesce(sf.col("original_commit_us") / 1e6, sf.col("ended"))
    lasted = sf.greatest(committed - sf.col("started"), sf.lit(0.0))
    return grouped.withColumn("seconds", sf.when(sf.col("started").isNotNull(), lasted))

"""Transactions that occur several times in one log: genuine repeats, or laps that no member drops.

A member drops events with its own id, so a repeat in the log of its origin is genuine: it was executed twice.
If that log was read, the others are compared with it. Without it, equal transactions without GTIDs may be
genuine, such as the same row inserted twice within a second by one session into a table without a key. So a
repeat is a lap of the same transaction only

- if the log holds commit times (MySQL 8.0): the time of the original commit is the same to the microsecond
  and the later commits are later; or
- if it contradicts the rows of a table with a key: it inserts a row that exists, or changes or deletes a row
  that is different or missing; or
- if it recurs in at least three different seconds, by the times of the transactions around it, in a ring, and
  its origin writes nothing else in as many: a session that sets its TIMESTAMP repeats the same time, but its
  server writes other transactions.

Other repeats are undecidable.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from spark_jobs.loops.presence import owner_count

REPEATED: Final = "repeated"
REUSED: Final = "GTID used twice"
UNDECIDABLE: Final = "undecidable"

_AROUND: Final = 9
_FAR_S: Final = 60
_MOVED_ON_S: Final = 2
_SECONDS_SEEN: Final = 3
_MORE_OFTEN: Final = "it is repeated more often than in the log of its origin"


def suspects(present: DataFrame, owners: Iterable[tuple[int, int, int, int]]) -> DataFrame:
    """Return the signatures of ``presence`` that are somewhere more often than where they come from.

    ``expected`` is how often they are there, null where that log was not read.
    """
    several = sf.exists("seen", lambda place: place.times > 1) | sf.col("differs")
    once = sf.col("by_gtid") | sf.col("lapped")
    counted = present.where(several).withColumn("expected", sf.when(once, 1).otherwise(owner_count(owners)))
    more = sf.exists("seen", lambda place: place.times > sf.col("expected"))
    often = sf.exists("seen", lambda place: place.times >= _SECONDS_SEEN)
    return counted.where(sf.col("by_gtid") | sf.col("expected").isNull() | more | often)


def repeats(signed: DataFrame, suspected: DataFrame) -> DataFrame:
    """Return the occurrences of suspected transactions, numbered in each log as ``nth`` from 1."""
    same = Window.partitionBy("stream", "signature")
    chosen = signed.join(
        suspected.select("signature", "expected", "differs", sf.col("origin").alias("of")), "signature"
    )
    counted = chosen.withColumn("occurrences", sf.count("*").over(same))
    more = sf.col("occurrences") > sf.coalesce("expected", sf.lit(1))
    several = counted.where(more | sf.col("differs") | (sf.col("occurrences") >= _SECONDS_SEEN))
    return several.withColumn("nth", sf.row_number().over(same.orderBy("first_offset")))


def with_clocks(repeated: DataFrame, signed: DataFrame) -> DataFrame:
    """Add what the log around an occurrence says about the time: the latest time of a witness before it.

    ``contradicts`` is there for :func:`judge`, and false.
    Witnesses are the transactions that occur once, but for those whose time is far from that of most of those
    around them. ``clock`` is of all of them, ``next_clock`` of the first one after the occurrence;
    ``own_clock`` is of those of the same origin, compared with each other alone. Null where there is none.
    """
    single = signed.join(
        repeated.select("stream", "signature").distinct(), ["stream", "signature"], "left_anti"
    )
    witnesses = single.where("dated is not null").groupBy(
        "stream", "server_id", sf.col("dated").alias("seen")
    )
    ticks = witnesses.agg(sf.min("first_offset").alias("first_offset"))
    ticks = _with_agreed(_with_agreed(ticks, "agreed", "stream"), "own_agreed", "stream", "server_id")
    line = repeated.unionByName(ticks, allowMissingColumns=True)
    stream = Window.partitionBy("stream")
    until_here = Window.unboundedPreceding, Window.currentRow
    before = stream.orderBy("first_offset").rowsBetween(*until_here)
    # From the end on: of a window that reaches from a row to the end Spark reads all for each row.
    after = stream.orderBy(sf.desc("first_offset")).rowsBetween(*until_here)
    own = Window.partitionBy("stream", "server_id").orderBy("first_offset").rowsBetween(*until_here)
    timed = line.select(
        "*",
        sf.max("agreed").over(before).alias("clock"),
        sf.last("agreed", ignorenulls=True).over(after).alias("next_clock"),
        sf.max("own_agreed").over(own).alias("own_clock"),
    )
    placed = timed.where("nth is not null").drop("seen", "agreed", "own_agreed")
    return placed.withColumn("contradicts", sf.lit(False))


def _with_agreed(ticks: DataFrame, name: str, *among: str) -> DataFrame:
    """Add the times not far ahead of most of those after them ``among`` others, nor behind those before."""
    order = Window.partitionBy(*among).orderBy("first_offset")
    after, before = order.rowsBetween(1, _AROUND), order.rowsBetween(-_AROUND, -1)

    def most(differ: Column) -> Column:
        return (sf.size(differ) > 1) & (2 * sf.size(differ) > sf.size("around"))

    behind = sf.filter("around", lambda seen: seen < sf.col("seen") - _FAR_S)
    ahead = sf.filter("around", lambda seen: seen > sf.col("seen") + _FAR_S)
    later = ticks.withColumn("around", sf.collect_list("seen").over(after))
    sooner = later.withColumn(name, sf.when(~most(behind), sf.col("seen")))
    both = sooner.withColumn("around", sf.collect_list(name).over(before))
    return both.withColumn(name, sf.when(~most(ahead), sf.col(name))).drop("around")


def judge(repeated: DataFrame, ringed: Sequence[int]) -> DataFrame:
    """Return a row per signature and stream: ``kind``, the ``evidence``, laps, and where it was seen.

    ``repeated`` has clocks, and ``contradicts``: whether an occurrence contradicts the rows of a table.
    ``lap_ms`` is the mean time of a lap where the log tells it, ``lap_ms_at_most`` a bound where a later
    transaction gives one; where none does, ``going`` is true: it may still circulate. ``ringed`` are the
    streams of members that are in a ring: what repeats in others may be of a server whose log was not read.
    """
    grouped = repeated.groupBy("stream", "signature").agg(
        sf.first("by_gtid").alias("by_gtid"),
        sf.first("expected").alias("expected"),
        sf.max("differs").alias("differs"),
        sf.min_by("transaction", "nth").alias("transaction"),
        # Those of one GTID are one finding, whatever servers have used it.
        sf.coalesce(sf.max(sf.when(sf.col("differs"), sf.col("of"))), sf.min_by("server_id", "nth")).alias(
            "origin"
        ),
        sf.min_by("tables", "nth").alias("tables"),
        sf.max("bytes").alias("bytes"),
        sf.max("form").alias("form"),
        sf.min("dated").alias("dated"),
        sf.max("clock").alias("last_clock"),
        sf.count("*").cast("int").alias("occurrences"),
        sf.max("contradicts").alias("contradicts"),
        sf.count_distinct("clock").alias("seconds_seen"),
        sf.count_distinct("own_clock").alias("own_seconds"),
        (sf.max("clock") - sf.min("clock")).alias("clock_span"),
        sf.count_distinct("immediate_commit_us").alias("commits"),
        sf.count_distinct("original_commit_us").alias("originals"),
        (sf.max("immediate_commit_us") - sf.min("immediate_commit_us")).alias("commit_span_us"),
        sf.max_by("next_clock", "nth").alias("next_clock"),
        *_ends(),
    )
    laps = sf.col("occurrences") - sf.coalesce("expected", sf.lit(1))
    moved = (sf.col("seconds_seen") >= _SECONDS_SEEN) & (sf.col("clock_span") >= _MOVED_ON_S)
    moved &= (sf.col("own_seconds") < _SECONDS_SEEN) & sf.col("stream").isin(*ringed)
    evidence = (
        sf.when(sf.col("differs"), "one GTID, different origins or times")
        .when(sf.col("by_gtid"), "the same GTID")
        .when(
            (sf.col("originals") == 1) & (sf.col("commits") == sf.col("occurrences")),
            "the same original commit time, later commits",
        )
        .when(sf.col("expected").isNotNull() & (laps > 0), _MORE_OFTEN)
        .when(sf.col("contradicts"), "it contradicts the rows of a table with a key")
        .when(moved & sf.col("expected").isNull(), "it recurs while the transactions around it advance")
    )
    genuine = (laps <= 0) & evidence.isNull() & ~moved
    kind = sf.when(sf.col("differs"), REUSED).when(evidence.isNotNull(), REPEATED).otherwise(UNDECIDABLE)
    by_clock = sf.when(sf.col("clock_span") >= _MOVED_ON_S, sf.col("clock_span") * 1000 / laps)
    last = sf.greatest(sf.col("next_clock"), sf.col("last_clock"), sf.col("dated"))
    bound = sf.when(sf.col("next_clock").isNotNull(), last - sf.col("dated") + 1)
    several = laps > 0
    return grouped.where(~sf.coalesce(genuine, sf.lit(False))).select(
        kind.alias("kind"), evidence.alias("evidence"), "stream", "signature", "origin", "transaction",
        "dated", "last_clock", "tables", "form", "occurrences", "bytes", laps.alias("laps"),
        sf.when(several, sf.coalesce(sf.col("commit_span_us") / 1000 / laps, by_clock)).alias("lap_ms"),
        sf.when(several, bound * 1000 / laps).alias("lap_ms_at_most"),
        sf.col("next_clock").isNull().alias("going"),
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

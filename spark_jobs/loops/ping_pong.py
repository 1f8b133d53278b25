"""Rows that two origins overwrite in turns: each reverts, or builds on, what the other has just written.

If two servers of a topology write the same row, neither waits for the other: updates get lost,
and members may end up with different rows. A row changes hands when an update of one origin follows one of
another; a row that does so repeatedly between the same two, each time after a short interval, is contested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from millrace.binlog.types import EventType
from spark_jobs.common.rows import row_states
from spark_jobs.common.transactions import INSTANCE

SHORT_S: Final = 10
"""So many seconds may lie between two updates, by the times in the log."""

LEAST_TURNS: Final = 4
"""So often a row changes hands: A, B, A, B, A."""

TURNS: Final = "turns"
"""What incidents select: changes that are turns, followed by the table's name."""

_MOST_CONTESTS: Final = 100
_EXAMPLES: Final = 5


@dataclass(frozen=True, slots=True)
class Contest:
    """Rows of a table that two origins overwrite in turns, as the log of a stream has it.

    ``turns`` is how often rows change hands, ``returns`` how often one gets back the values that it had two
    turns before, ``examples`` has the keys of some with the number of turns of each. Times are seconds since
    1970.
    """

    table: str
    origins: Sequence[int]
    stream: int
    keys: int
    turns: int
    returns: int
    since: int
    until: int
    examples: Sequence[tuple[str, int]] = ()


def shared_updates(events: DataFrame) -> DataFrame:
    """Return the updates of tables that several servers update."""
    changed = events.where(sf.col("operation") == "update")
    shared = changed.groupBy("database", "table").agg(sf.count_distinct("server_id").alias("of"))
    return changed.join(sf.broadcast(shared.where("of > 1").drop("of")), ["database", "table"], "left_semi")


def states_of(updates: DataFrame, events: DataFrame) -> DataFrame:
    """Return the rows of updates, of tables whose primary key is known: servers may log it."""
    maps = events.where(sf.col("type") == EventType.TABLE_MAP_EVENT.name)
    return row_states(updates.unionByName(maps))


def unlooked(updates: DataFrame, states: DataFrame) -> list[str]:
    """Return the tables of updates whose rows cannot be told apart by a key."""
    table = ["database", "table"]
    keyed = states.where("key is not null").select(*table).distinct()
    rows = updates.select(*table).distinct().join(keyed, table, "left_anti").orderBy(*table)
    return [".".join(row) for row in rows.limit(_MOST_CONTESTS).collect()]


def turns(states: DataFrame, signed: DataFrame) -> DataFrame:
    """Return the changes by which contested rows change hands, each with its ``contest`` and ``signature``.

    Transactions that occur more than once in a log are left out: they circulate, or are delivered twice.
    ``states`` are of :func:`states_of`.
    """
    updates = states.where("key is not null and old is not null and new is not null and old <> new")
    times = sf.count("*").over(Window.partitionBy("stream", "signature"))
    once = signed.withColumn("times", times).where("times = 1")
    placed = updates.join(
        once.select(*INSTANCE, "stream", "server_id", "dated", "signature"), list(INSTANCE)
    ).withColumn("table", sf.concat_ws(".", "database", "table"))
    row = ["stream", "table", "key"]
    order = Window.partitionBy(*row).orderBy("offset", "sub_index", "nth")
    handed = placed.withColumns(
        {"by": sf.lag("server_id").over(order), "after": sf.col("dated") - sf.lag("dated").over(order)}
    ).where(~sf.col("by").eqNullSafe(sf.col("server_id")))
    # Of what is left each row is of another origin than the one before it.
    again = sf.lag("server_id", 2).over(order)
    breaks = (
        sf.col("by").isNull()
        | sf.coalesce(sf.col("after") > SHORT_S, sf.lit(True))
        | ~sf.coalesce(again == sf.col("server_id"), sf.lit(True))
    )
    running = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    returns = sf.coalesce(sf.lag("new", 2).over(order) == sf.col("new"), sf.lit(False))
    numbered = handed.withColumns({"breaks": breaks, "returns": returns}).withColumn(
        "contest", sf.count_if("breaks").over(running)
    )
    whole = Window.partitionBy(*row, "contest")
    return numbered.withColumn("turns", sf.count("*").over(whole) - 1).where(sf.col("turns") >= LEAST_TURNS)


def contests(found: DataFrame) -> list[Contest]:
    """Sum up :func:`turns`: a contest for each table and two origins, of the log that has most of them."""
    each = found.groupBy("stream", "table", "key", "contest").agg(
        sf.sort_array(sf.collect_set("server_id")).alias("origins"),
        sf.first("shown").alias("shown"),
        sf.max("turns").alias("turns"),
        sf.count_if("returns").alias("returns"),
        sf.min("dated").alias("since"),
        sf.max("dated").alias("until"),
    )
    rows = each.groupBy("stream", "table", "origins", "key").agg(
        sf.first("shown").alias("shown"), sf.sum("turns").alias("turns"), sf.sum("returns").alias("returns"),
        sf.min("since").alias("since"), sf.max("until").alias("until"),
    )  # fmt: skip
    example = sf.struct((-sf.col("turns")).alias("least"), "shown")
    tables = rows.groupBy("stream", "table", "origins").agg(
        sf.count("*").alias("keys"), sf.sum("turns").alias("turns"), sf.sum("returns").alias("returns"),
        sf.min("since").alias("since"), sf.max("until").alias("until"),
        sf.slice(sf.sort_array(sf.collect_list(example)), 1, _EXAMPLES).alias("examples"),
    )  # fmt: skip
    best = Window.partitionBy("table", "origins").orderBy(sf.desc("turns"), "stream")
    chosen = tables.withColumn("place", sf.row_number().over(best)).where("place = 1").drop("place")
    return [
        Contest(
            **{
                **row.asDict(),
                "examples": [(example.shown, -example.least) for example in row.examples],
            }
        )
        for row in chosen.orderBy(sf.desc("turns"), "table").limit(_MOST_CONTESTS).collect()
    ]

"""Transforms of the job analytics, on small frames cut in different ways."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.analytics import (
    commit_groups,
    events_per_minute,
    lag,
    longest,
    rows_per_minute,
    rows_per_table,
    top,
    with_durations,
)
from tests.spark_session import SPARK
from tests.unit.spark.frames import dicts

pytestmark = SPARK

COUNTS = (
    "source string, second bigint, type string, database string, table string, operation string, "
    "events bigint, rows bigint, bytes bigint, stored bigint, uncounted bigint"
)
TRANSACTIONS = (
    "source string, epoch int, transaction string, first_offset bigint, log_file string, server_id bigint, "
    "rows bigint, bytes bigint, started bigint, ended bigint, original_commit_us bigint, "
    "immediate_commit_us bigint, commit_group bigint, ends string"
)
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def counts(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Make counts of what executors found: second, type, table, operation, events, rows, bytes, uncounted."""
    full = [
        ("shop", second, type_, table and "db", table, operation, events, rows, size, size, uncounted)
        for second, type_, table, operation, events, rows, size, uncounted in rows
    ]
    return spark.createDataFrame(full, COUNTS).repartition(3)


def test_events_per_minute(spark: SparkSession) -> None:
    found = events_per_minute(
        counts(
            spark,
            *((second, "XID_EVENT", None, None, 1, 0, 10, 0) for second in (0, 59, 60, 60, 119, 120)),
            (2**32 - 1, "XID_EVENT", None, None, 1, 0, 10, 0),
            (61, "QUERY_EVENT", None, None, 1, 0, 50, 0),
        )
    ).orderBy("minute", "type")
    assert [(r.minute, r.type, r.events, r.bytes) for r in found.collect()] == [
        (0, "XID_EVENT", 2, 20),
        (60, "QUERY_EVENT", 1, 50),
        (60, "XID_EVENT", 3, 30),
        (120, "XID_EVENT", 1, 10),
        (4294967280, "XID_EVENT", 1, 10),
    ]


def test_rows_per_table_and_minute(spark: SparkSession) -> None:
    summed = counts(
        spark,
        (103, "WRITE_ROWS_EVENT", "log", "insert", 1, 3, 50, 0),
        (130, "WRITE_ROWS_EVENT", "log", "insert", 1, 3, 50, 0),
        (104, "UPDATE_ROWS_EVENT_V1", "log", "update", 1, 5, 60, 0),
        (105, "DELETE_ROWS_EVENT", "log", "delete", 1, 0, 70, 1),
        (105, "XID_EVENT", None, None, 1, 0, 31, 0),
    )
    found = {row["operation"]: row for row in dicts(rows_per_table(summed))}
    names = {"source": "shop", "database": "db", "table": "log"}
    assert found == {
        "insert": {**names, "operation": "insert", "events": 2, "rows": 6, "bytes": 100, "uncounted": 0},
        "update": {**names, "operation": "update", "events": 1, "rows": 5, "bytes": 60, "uncounted": 0},
        "delete": {**names, "operation": "delete", "events": 1, "rows": 0, "bytes": 70, "uncounted": 1},
    }
    minutes = rows_per_minute(summed).where("operation = 'insert'").orderBy("minute").collect()
    assert [(row.minute, row.rows, row.bytes) for row in minutes] == [(60, 3, 50), (120, 3, 50)]


def transaction(number: int, **more: Any) -> tuple[Any, ...]:
    """Make a row of the table transactions as executors write it."""
    values = {
        "source": "shop", "epoch": 0, "transaction": f"{UUID}:{number}", "first_offset": 10 * number,
        "log_file": "bin.000001", "server_id": 1, **more,
    }  # fmt: skip
    return tuple(values.get(part.split()[0]) for part in TRANSACTIONS.split(", "))


def test_lag_by_origin(spark: SparkSession) -> None:
    rows = [
        transaction(
            number, server_id=1 + number % 2, original_commit_us=10**6, immediate_commit_us=10**6 + late
        )
        for number, late in enumerate([0, 5_000, 0, 7_000, 0, 90_000])
    ]
    rows.append(transaction(9, server_id=3))
    found = lag(spark.createDataFrame(rows, TRANSACTIONS)).orderBy("server_id").collect()
    assert [(r.server_id, r.transactions, r.p50, r.most) for r in found] == [
        (1, 3, 0.0, 0.0),
        (2, 3, 7.0, 90.0),
    ]


def test_commit_groups(spark: SparkSession) -> None:
    """Those with one last_committed within a log file; one without is alone."""
    rows = [transaction(number, commit_group=group) for number, group in enumerate([0, 1, 1, 1, 4])]
    rows.append(transaction(7, commit_group=1, log_file="bin.000002"))
    rows.append(transaction(8))
    (found,) = commit_groups(spark.createDataFrame(rows, TRANSACTIONS)).collect()
    assert found.asDict() == {"source": "shop", "transactions": 6, "groups": 4, "alone": 3, "largest": 3}


def test_the_longest_reaches_to_the_commit_at_the_origin(spark: SparkSession) -> None:
    rows = [
        transaction(1, started=100, ended=101, original_commit_us=101_500_000),
        transaction(2, started=None),
        transaction(3, started=100, ended=100, original_commit_us=99_000_000),
        transaction(4, started=100, ended=107),
        transaction(5, started=100, ended=102, original_commit_us=1_700_000_000_000_000),  # SET TIMESTAMP
        transaction(6, started=10, ended=107),  # set before its end only
        transaction(7, started=100, ended=500),
    ]
    found = with_durations(spark.createDataFrame(rows, TRANSACTIONS), (100, 200))
    assert [row.seconds for row in found.orderBy("first_offset").collect()] == [
        1.5, None, 0.0, 7.0, None, None, None,
    ]  # fmt: skip
    assert [row.seconds for row in longest(found, 9).collect()] == [7.0, 1.5]


def test_the_top_breaks_ties_by_the_log(spark: SparkSession) -> None:
    rows = [transaction(number, rows=rows) for number, rows in enumerate([3, 9, 9, 1, 0])]
    every = spark.createDataFrame(rows, TRANSACTIONS).repartition(3)
    names = [row.transaction.rpartition(":")[2] for row in top(every, 3, "rows", "bytes").collect()]
    assert names == ["1", "2", "0"]

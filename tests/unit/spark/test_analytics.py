"""Transforms of the job analytics, on small frames cut in different ways."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_jobs.analytics import events_per_minute, rows_per_table, top
from spark_jobs.common.transactions import INSTANCE, cut_transactions, is_gtid, number_laps, transactions
from tests.spark_session import SPARK
from tests.unit.spark.frames import Log, dicts, frame

pytestmark = SPARK

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
CUTS = [1, 5]


def with_rows(events: DataFrame) -> DataFrame:
    """Give every rows event as many rows as its timestamp has in the last two digits."""
    return events.withColumn("rows", sf.when(sf.col("operation").isNotNull(), sf.col("timestamp") % 100))


@pytest.mark.parametrize("cuts", CUTS)
def test_events_per_minute(spark: SparkSession, cuts: int) -> None:
    log = Log()
    for timestamp in (0, 59, 60, 60, 119, 120, 2**32 - 1):
        log.event("XID_EVENT", timestamp=timestamp, size=10)
    log.event("QUERY_EVENT", timestamp=61)
    found = events_per_minute(frame(spark, log, partitions=cuts)).orderBy("minute", "type")
    assert [(r.minute, r.type, r.events, r.bytes) for r in found.collect()] == [
        (0, "XID_EVENT", 2, 20),
        (60, "QUERY_EVENT", 1, 50),
        (60, "XID_EVENT", 3, 30),
        (120, "XID_EVENT", 1, 10),
        (4294967280, "XID_EVENT", 1, 10),
    ]


@pytest.mark.parametrize("cuts", CUTS)
def test_rows_per_table(spark: SparkSession, cuts: int) -> None:
    log = Log()
    log.transaction(
        f"{UUID}:1", events=["TABLE_MAP_EVENT", "WRITE_ROWS_EVENT", "WRITE_ROWS_EVENT"], timestamp=103
    )
    log.transaction(f"{UUID}:2", events=["TABLE_MAP_EVENT", "UPDATE_ROWS_EVENT_V1"], timestamp=105)
    log.transaction(f"{UUID}:3", events=["DELETE_ROWS_EVENT"], timestamp=107)
    events = with_rows(frame(spark, log, partitions=cuts))
    lost = events.withColumn("rows", sf.when(sf.col("operation") != "delete", sf.col("rows")))
    found = {row["operation"]: row for row in dicts(rows_per_table(lost))}
    insert = {
        "source": "shop",
        "database": "shop",
        "table": "log",
        "operation": "insert",
        "events": 2,
        "rows": 6,
    }
    assert found["insert"] == {**insert, "bytes": 100, "uncounted": 0}
    assert (found["update"]["rows"], found["update"]["events"]) == (5, 1)
    assert (found["delete"]["rows"], found["delete"]["uncounted"]) == (0, 1)


@pytest.mark.parametrize("cuts", CUTS)
def test_transactions(spark: SparkSession, cuts: int) -> None:
    log = Log()
    log.event("FORMAT_DESCRIPTION_EVENT")
    log.transaction(f"{UUID}:1", events=["QUERY_EVENT", "TABLE_MAP_EVENT", "WRITE_ROWS_EVENT"], timestamp=103)
    log.transaction(timestamp=105, server_id=7)
    found = transactions(number_laps(with_rows(frame(spark, log, partitions=cuts)))).orderBy("first_offset")
    first, second = dicts(found)
    assert first["transaction"] == f"{UUID}:1"
    assert (first["events"], first["rows"], first["bytes"], first["lap"]) == (5, 3, 250, 1)
    assert (first["first_key"], first["last_key"]) == ("1:0:bin.000001:104", "1:0:bin.000001:504")
    assert (first["started"], first["ended"], first["seconds"]) == (103, 103, 0.0)
    assert first["tables"] == ["shop.log"]
    assert (second["transaction"], second["server_id"], second["rows"]) == ("bin.000001:604", 7, 5)


def test_duration_reaches_to_the_commit_at_the_origin(spark: SparkSession) -> None:
    log = Log()
    log.transaction(
        f"{UUID}:1", original_commit_us=101_500_000, immediate_commit_us=109_000_000, timestamp=100
    )
    log.transaction(f"{UUID}:2", timestamp=0)
    log.transaction(f"{UUID}:3", original_commit_us=99_000_000, timestamp=100)
    found = transactions(number_laps(with_rows(frame(spark, log)))).orderBy("first_offset")
    assert [row.seconds for row in found.collect()] == [1.5, None, 0.0]


@pytest.mark.parametrize("cuts", CUTS)
def test_a_transaction_that_comes_again_is_another_lap(spark: SparkSession, cuts: int) -> None:
    log = Log()
    log.event("XID_EVENT", transaction="0-1-1", ordinal=2)
    for _ in range(3):
        log.transaction("0-1-1")
    found = transactions(number_laps(with_rows(frame(spark, log, partitions=cuts)))).orderBy("first_offset")
    assert [(row.lap, row.events) for row in found.collect()] == [(0, 1), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("cuts", CUTS)
def test_a_transaction_that_was_cut_where_an_epoch_ends(spark: SparkSession, cuts: int) -> None:
    lost, found = Log(), Log(epoch=1)
    for log, names in ((lost, (1, 2)), (found, (2, 3))):
        for name in names:
            log.transaction(f"{UUID}:{name}")
            log.events[-1]["ends"] = "commit"
    lost.events.pop()  # the second one's end was not read
    found.events[-1]["ends"] = None  # this one is not read to its end yet
    other = Log("other")  # another server was never lost
    other.transaction(f"{UUID}:9")
    elsewhere = Log("idle")  # lost outside a transaction
    elsewhere.transaction(f"{UUID}:10")
    elsewhere.events[-1]["ends"] = "commit"
    after = Log("idle", epoch=1)
    after.transaction(f"{UUID}:11")
    events = number_laps(frame(spark, lost, found, other, elsewhere, after, partitions=cuts))
    (cut,) = cut_transactions(events).collect()
    assert tuple(cut) == ("shop", 0, f"{UUID}:2", 1)
    assert tuple(cut.asDict()) == INSTANCE


def test_compressed_transactions_count_what_the_log_holds(spark: SparkSession) -> None:
    log = Log()
    log.transaction(f"{UUID}:1", events=["TRANSACTION_PAYLOAD_EVENT"])
    log.events[1]["size"] = 30
    for sub_index in (1, 2):
        inner = {
            **log.events[1],
            "type": "WRITE_ROWS_EVENT",
            "sub_index": sub_index,
            "size": 1000,
            "operation": "insert",
        }
        log.events.append(inner)
    (found,) = dicts(transactions(number_laps(with_rows(frame(spark, log)))))
    assert (found["bytes"], found["events"], found["rows"]) == (130, 5, 0)


def test_the_top_breaks_ties_by_the_log(spark: SparkSession) -> None:
    log = Log()
    for number, rows in enumerate([3, 9, 9, 1, 0]):
        log.transaction(f"{UUID}:{number}", timestamp=100 + rows)
    every = transactions(number_laps(with_rows(frame(spark, log, partitions=3))))
    names = [row.transaction.rpartition(":")[2] for row in top(every, 3, "rows", "bytes").collect()]
    assert names == ["1", "2", "0"]


def test_what_is_a_gtid(spark: SparkSession) -> None:
    gtids = [f"{UUID}:1", f"{UUID.upper()}:77", f"{UUID}:tag_1:5", "0-1-12"]
    others = ["mysql-bin.000001:4", "0-1-12:4", "1-2-3.000001:120", "a:b:c:4"]
    names = spark.createDataFrame([(name,) for name in gtids + others], "transaction string")
    assert [row.transaction for row in names.where(is_gtid()).collect()] == gtids

"""Records of an events topic to frames, and rows compared and followed, however the input is cut."""

import io
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.avro.registry import wire_prefix
from millrace.binlog.columns.column import ABSENT
from millrace.binlog.events import RotateEvent, XidEvent
from spark_jobs.common.events import decode_events
from spark_jobs.common.job import persisted
from spark_jobs.common.rows import contradictions
from spark_jobs.common.transactions import INSTANCE, number_laps
from tests.spark_session import SPARK
from tests.unit.spark.frames import dicts
from tests.unit.spark.logs import SCHEMA_ID, SCHEMAS, EventLog, frame_of, gtid_event, inserted

pytestmark = SPARK

CUTS = [1, 5]
A, B, C = (1, b"a"), (2, b"b"), (3, b"c")


def by_offset(events: DataFrame) -> list[dict[str, Any]]:
    return dicts(events.orderBy("offset"))


def test_the_columns_of_events(spark: SparkSession) -> None:
    log = EventLog()
    log.add(gtid_event(7, original=1_500_000, immediate=2_500_000), server_id=3, timestamp=1001)
    log.statement("BEGIN", server_id=3)
    log.table_map("log")
    log.rows("log", "insert", inserted(A))
    log.add(XidEvent(9))
    log.add(RotateEvent(4, "bin.000002"))
    gtid, begin, table_map, rows, xid, rotate = by_offset(log.events(spark))
    assert (gtid["type"], gtid["raw_key"], gtid["server_id"]) == ("GTID_LOG_EVENT", "3:0:bin.000001:4", 3)
    assert (gtid["original_commit_us"], gtid["immediate_commit_us"]) == (1_500_000, 2_500_000)
    assert (gtid["timestamp"], gtid["ordinal"], gtid["ends"]) == (1001, 0, None)
    assert gtid["transaction"] == "00010203-0405-0607-0809-0a0b0c0d0e0f:7"
    assert {row["transaction"] for row in (begin, table_map, rows, xid)} == {gtid["transaction"]}
    assert (begin["digest"], begin["operation"], begin["source"]) == (None, None, "shop")
    assert (table_map["database"], table_map["table"], table_map["table_id"]) == ("shop", "log", 100)
    assert (rows["operation"], rows["table"], rows["images"] is not None) == ("insert", "log", True)
    assert (xid["ends"], xid["size"], xid["position"]) == ("commit", 27, rows["position"] + rows["size"])
    assert (rotate["transaction"], rotate["sub_index"], rotate["log_file"]) == (None, 0, "bin.000001")


def test_a_record_of_another_version_is_read_by_its_own_schema(spark: SparkSession) -> None:
    log = EventLog()
    log.statement("INSERT INTO log VALUES (1)")
    (key, value), own = log.records[0], SCHEMAS[SCHEMA_ID]
    record = fastavro.schemaless_reader(io.BytesIO(value[5:]), own, return_record_name=True)
    older = {**own, "fields": [f for f in own["fields"] if f["name"] != "checksum"]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, older, record)
    records = [(key, value), (key, wire_prefix(3) + out.getvalue())]
    frame = frame_of(spark, records)
    one, other = by_offset(decode_events(frame, "shop", "shop.events", {**SCHEMAS, 3: older}))
    assert {**one, "offset": 0} == {**other, "offset": 0}
    assert one["fault"] is None
    _, unknown = by_offset(decode_events(frame, "shop", "shop.events", SCHEMAS))
    assert unknown["fault"].startswith(
        "RecordError: the registry does not have schema 3 under shop.events; check that MILLRACE_REGISTRY"
    )


def test_a_damaged_record_is_a_line_with_its_place_and_the_reason(spark: SparkSession) -> None:
    log = EventLog()
    log.add(XidEvent(1))
    (key, value), *_ = log.records
    damaged: list[tuple[Any, Any, str]] = [
        (key, value[:-9], "InvalidValueError: not a record of BinlogEvent: "),
        (key, value + b"x", "InvalidValueError: 1 bytes are left over"),
        (key, b"", "ValueError: "),
        (key, b"garbage", "ValueError: 6761726261 is not 00 and a schema id"),
        (key, None, "RecordError: it has no value"),
        (None, value, "RecordError: it has no key"),
        (b"no key", value, "ValueError: "),
        (b"\xff:1", value, "UnicodeDecodeError: "),
    ]
    frame = frame_of(spark, [(key, value), *((one, other) for one, other, _ in damaged), (key, value)])
    first, *faulty, last = by_offset(decode_events(frame, "shop", "shop.events", SCHEMAS))
    assert {**first, "offset": 0} == {**last, "offset": 0}
    assert first["fault"] is None
    for line, (one, other, reason) in zip(faulty, damaged, strict=True):
        assert line["fault"].startswith(reason), line["fault"]
        known = {name: line[name] for name, part in line.items() if part is not None}
        place = {"source": "shop", "topic": "shop.events", "partition": 0, "offset": line["offset"]}
        parts = {"key": one, "value": other}
        assert known == place | {k: v for k, v in parts.items() if v is not None} | {"fault": line["fault"]}


def found_contradictions(spark: SparkSession, log: EventLog, cuts: int = 1) -> int:
    """Take all transactions for repeats and count those that contradict."""
    events = persisted(number_laps(log.events(spark, cuts)))
    repeated = (
        events.where("transaction is not null").select(*INSTANCE).distinct().withColumn("nth", sf.lit(2))
    )
    return contradictions(events, repeated).count()


@pytest.mark.parametrize("cuts", CUTS)
def test_a_row_that_is_inserted_twice(spark: SparkSession, cuts: int) -> None:
    log = EventLog()
    for _ in range(3):
        log.change("keyed", "insert", (None, A))
    assert found_contradictions(spark, log, cuts) == 2


def test_what_follows_from_the_rows_is_no_contradiction(spark: SparkSession) -> None:
    log = EventLog()
    for _ in range(2):
        log.change("keyed", "insert", (None, A))
        log.change("keyed", "update", (A, (1, b"b")))
        log.change("keyed", "update", ((1, b"b"), (9, b"b")))
        log.change("keyed", "delete", ((9, b"b"), None))
    log.change("keyed", "delete", (C, None))  # from before the input
    assert found_contradictions(spark, log) == 0


def test_rows_that_are_not_as_a_change_says(spark: SparkSession) -> None:
    log = EventLog()
    log.change("keyed", "insert", (None, A))
    log.change("keyed", "update", ((1, b"other"), (1, b"b")))
    log.change("keyed", "delete", ((1, b"b"), None))
    log.change("keyed", "delete", ((1, b"b"), None))
    assert found_contradictions(spark, log) == 2


def test_what_cannot_contradict(spark: SparkSession) -> None:
    log = EventLog()
    log.change("log", "insert", (None, A))
    log.change("log", "insert", (None, A))  # no key
    log.change("keyed", "insert", (None, A))
    log.statement("TRUNCATE TABLE keyed")
    log.change("keyed", "insert", (None, A))
    log.statement("BEGIN")
    log.table_map("keyed")
    log.rows("keyed", "delete", [((1, ABSENT), None)], columns=1)  # a minimal image
    log.add(XidEvent(1))
    log.change("keyed", "insert", (None, A))
    assert found_contradictions(spark, log) == 0

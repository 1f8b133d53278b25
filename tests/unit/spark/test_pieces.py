"""What is an event whole, and the statements in an archive that define tables."""

import json
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.binlog.types import EventType
from millrace.contract import GAP, HEADER_CHUNK, HEADER_MARKER, SOURCE_CHANGED
from millrace.spark import history
from millrace.spark.archive import Archive
from millrace.spark.raw_topic import is_whole
from spark_jobs.common.kafka import TopicSlice
from spark_jobs.common.pieces import defining_records
from tests.spark_session import SPARK

pytestmark = SPARK


def test_garbage_is_no_place_to_cut() -> None:
    event = bytes(9) + (25).to_bytes(4, "little") + bytes(12)
    assert is_whole(event)
    for other in (None, b"", b"garbage", b"\0\0\0\0\x0fgarbage, and much of it", event[:-1], event + b"x"):
        assert not is_whole(other)


def head(event_type: EventType) -> bytes:
    return bytes(4) + bytes([event_type]) + bytes(14)


QUERY, DESCRIPTION = head(EventType.QUERY_EVENT), head(EventType.FORMAT_DESCRIPTION_EVENT)
RECORDS = [
    (0, b"description", DESCRIPTION, None),
    (1, b"plain", QUERY + b"create table t", None),
    (2, b"rows", head(EventType.WRITE_ROWS_EVENT) + b"CREATE TABLE", None),
    (3, b"other", QUERY + b"INSERT", None),
    (4, b"large", QUERY + b"ALTER TABLE t", b"0/3"),
    (5, b"large", b"CREATE of a comment", b"1/3"),
    # Here lie records of a reader that was killed.
    (2000, b"large", b"the end", b"2/3"),
    (2001, b"again", QUERY + b"DROP TABLE t", b"0/3"),
    (2002, b"again", b"lost", b"1/3"),
    (2003, b"again", QUERY + b"DROP TABLE t", b"0/2"),
    (2004, b"again", None, b"1/2"),
    (2005, b"between", QUERY + b"RENAME", b"0/x"),
    (2006, b"no value", None, None),
    (2007, b"packed", head(EventType.QUERY_COMPRESSED_EVENT), None),
    (2008, b"other large", QUERY + b"INSERT", b"0/2"),
    (2009, b"other large", b"CREATE", b"1/2"),
    (2010, b"cut", QUERY + b"CREATE TABLE u", b"0/9"),
    (2011, b"cut", b"(id int", b"1/9"),
    (2012, b"last", DESCRIPTION, None),
    (2013, b"marked", b"changes are missing", GAP),
    (2014, b"marked", b"another log follows", SOURCE_CHANGED),
]
LEFT_OUT = {2, 3, 2005, 2006, 2008, 2009, 2014}


def _name(key: bytes) -> str:
    return HEADER_MARKER if key == b"marked" else HEADER_CHUNK


def test_statements_that_define_tables_are_found_with_all_of_their_chunks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In an archive, which needs no Kafka, and in a part of it."""
    offsets = [None, *(offset for offset, *_ in RECORDS)]
    rows = [
        (offset, before, None, key, value, header and [(_name(key), header), ("other", None)])
        for before, (offset, key, value, header) in zip(offsets, RECORDS, strict=False)
    ]
    schema = (
        "offset bigint, previous bigint, timestamp timestamp, key binary, value binary, "
        "headers array<struct<key: string, value: binary>>"
    )
    spark.createDataFrame(rows, schema).coalesce(1).write.parquet(str(tmp_path / "run"))
    whole = Archive.read(json.dumps([str(path) for path in tmp_path.glob("run/*.parquet")]))

    def found(start: int, end: int) -> list[tuple[int, bytes | None, bytes | None]]:
        part = TopicSlice("shop.raw", {0: (start, end)}, archive=whole)
        return [(one.offset, one.key, one.value) for one in defining_records(spark, {}, part)]

    expected = [(offset, key, value or b"") for offset, key, value, _ in RECORDS if offset not in LEFT_OUT]
    # The chunks of a large statement follow its first, as they would be read; so does the description after
    # one that is cut.
    assert found(0, 2015) == expected
    assert [(one.offset, one.key, one.value or b"") for one in history.defining_records(whole)] == expected
    assert found(1, 2000) == expected[1:4]

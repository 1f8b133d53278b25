"""The format ``millrace`` over log files: the row mapper's rows, wherever the log is cut."""

import gzip
import json
import random
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import LengthMetadata, NoMetadata
from millrace.binlog.events import (
    GtidLogEvent,
    QueryCompressedEvent,
    QueryEvent,
    RotateEvent,
    StatusVariables,
    TableMapEvent,
    WriteRowsEvent,
    XaPrepareLogEvent,
)
from millrace.binlog.file import decode_file
from millrace.binlog.row_images import RowImages
from millrace.contract import log_number
from millrace.runtime.errors import UserError
from millrace.spark import register, topic
from millrace.spark.decoding import Decoding
from millrace.spark.options import Options
from millrace.spark.raw_topic import DESCRIBES, CarriedSettings
from millrace.spark.source import MillraceDataSource, _Reading, arrow_schema
from millrace.spark.topic import TopicSpan
from millrace.spark.views import LogDataError
from tests.spark_session import SPARK, spark
from tests.unit.binlog_command.made_logs import TABLE_MAP, MadeLog
from tests.unit.binlog_command.made_logs import rows as image_rows
from tests.unit.spark.test_decoding import LOGS, NOWHERE, code_of, log, pieces, place, published, raw

__all__ = ["spark"]

EVERY = {("shop", "items"), ("shop", "orders"), ("archive", "orders")}
AFTER = {
    "type": "struct",
    "fields": [
        {"name": name, "type": "string", "nullable": True, "metadata": {}}
        for name in ("database", "table", "after")
    ],
}
SIZES = ("1", "300", "64m")
MAGIC = b"\xfebin"


def read(path: Path | str, **options: str) -> list[dict[str, Any]]:
    """Read a view as executors do, without Spark."""
    source = MillraceDataSource({"path": str(path), **options})
    schema = source.schema()
    reader = source.reader(schema)
    batches = [batch for one in reader.partitions() for batch in reader.read(one)]
    assert {batch.schema for batch in batches} <= {arrow_schema(schema)}
    found = [row for batch in batches for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row.get("_sequence") or "")


def as_json(value: Any) -> Any:
    """Return a value as it is read from JSON."""
    match value:
        case bytes():
            return b64encode(value).decode()
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case float():
            short = np.float32(value)
            return Decimal(str(short) if float(short) == value else repr(value))
        case list():
            return [as_json(one) for one in value]
        case dict():
            return {name: as_json(one) for name, one in value.items()}
    return value


def row_of(text: str | None) -> Any:
    return None if text is None else json.loads(text, parse_float=Decimal)


def write(path: Path, made: MadeLog) -> Path:
    path.write_bytes(MAGIC + b"".join(data for _, data in made.events))
    return path


def insert(made: MadeLog, number: int, *, commit: bool = True) -> None:
    made.add(GtidLogEvent(0, bytes(16), made.position, 2, 0, 1, 1, None, 100, 80030))
    made.query("BEGIN")
    made.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", b"\x03", image_rows((None, (number, "x")))))
    if commit:
        made.query("COMMIT")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LOGS)
def test_changes_are_the_rows_of_the_row_mapper(name: str, size: str) -> None:
    path = log(name)
    expected, _ = published(path)
    rows = sorted((row for one in expected.values() for row in one), key=place)
    found = read(path, maxPartitionBytes=size)
    assert [row["_sequence"] for row in found] == sorted({row["_sequence"] for row in found})
    for row, change in zip(rows, found, strict=True):
        source = row["source"]
        assert (change["database"], change["table"]) == (source["db"], source["table"])
        assert change["_op"] == row["op"]
        assert row_of(change["before"]) == as_json(row["before"])
        assert row_of(change["after"]) == as_json(row["after"])
        assert change["_position"] == {part: source[part] for part in change["_position"]}
        assert change["_gtid"] == source["gtid"]
        assert change["_transaction"] == row["transaction"]["id"]
        assert change["_commit_ts"].timestamp() * 1000 // 1 == source["ts_ms"]
        digits = change["_sequence"]
        parts = [int(digits[at:end], 16) for at, end in ((0, 8), (8, 24), (24, 40), (40, 48), (48, 56))]
        number = log_number(source["file"])[1]
        assert parts == [source["epoch"], number, source["pos"], source["sub_index"], source["row"]]
    for table, of_table in expected.items():
        typed = read(path, table=table.removeprefix("rows/"), maxPartitionBytes=size)
        for row, change in zip(of_table, typed, strict=True):
            values = row["before"] if row["op"] == "d" else row["after"]
            assert {column: change[column] for column in values} == values
            assert change["_op"] == row["op"]


def a_digit_first(made: MadeLog, text: str) -> None:
    """Add a statement whose checksum begins with a digit, as if that belonged to the text."""
    for thread_id in range(1000):
        made.query(text, thread_id=thread_id)
        (position, data) = made.events[-1]
        if data[-4:-3].isdigit():
            return
        made.events.pop()
        made.position = position
    raise AssertionError("no checksum of 1000 begins with a digit")


def compressed(made: MadeLog, text: str) -> None:
    """Add a statement as MariaDB's ``log_bin_compress`` writes it."""
    packed = b"\x81" + bytes([len(text)]) + zlib.compress(text.encode())
    made.add(QueryCompressedEvent(9, 0, 0, StatusVariables(), "shop", packed))


def xa_log(folder: Path, decide: Callable[[MadeLog, str], object] = MadeLog.query) -> Path:
    """Write a log with two XA transactions that are prepared and decided at random."""
    made = MadeLog()
    names = ["X'61',X'',1", "X'62',X'',1"]
    draw = random.Random(7)
    prepared: list[str] = []
    for number in range(40):
        insert(made, 100 + number)
        made.add(GtidLogEvent(0, bytes(16), made.position, 2, 0, 1, 1, None, 100, 80030))
        if len(prepared) < 2 and draw.random() < 0.4:
            name = next(one for one in names if one not in prepared)
            made.query(f"XA START {name}")
            made.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", b"\x03", image_rows((None, (number, "x")))))
            made.query(f"XA END {name}")
            made.add(XaPrepareLogEvent(0, 1, bytes.fromhex(name[2:4]), b""))
            prepared.append(name)
        elif prepared:
            name = prepared.pop(draw.randrange(len(prepared)))
            decide(made, f"XA {draw.choice(['COMMIT', 'ROLLBACK'])} {name}")
        else:
            made.query("FLUSH PRIVILEGES")
    return write(folder / "bin.000001", made)


def test_an_xa_transaction_is_decided_in_the_span_that_prepares_it(tmp_path: Path) -> None:
    path = xa_log(tmp_path)
    expected, _ = published(path)
    for size in SIZES:
        found = [row_of(row["after"]) for row in read(path, maxPartitionBytes=size)]
        assert found == [as_json(row["after"]) for row in expected["rows/shop.t"]], size
    source = MillraceDataSource({"path": str(path), "maxPartitionBytes": "1"})
    assert 5 < len(source.input().spans(decoded=True)) < 80


@pytest.mark.parametrize("decide", [MadeLog.query, a_digit_first, compressed])
def test_an_xa_transaction_of_a_topic_is_decided_in_another_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decide: Callable[[MadeLog, str], object]
) -> None:
    path = xa_log(tmp_path, decide)
    # A reader marks a format description that it was sent, but did not find in the log.
    records = [
        one._replace(headers=[("artificial", b"1")]) if code_of(one) in DESCRIBES else one
        for one in raw(path)
    ]
    expected, _ = published(path)
    monkeypatch.setattr(
        topic, "read_piece", lambda _kafka, _topic, piece, **_: [records[piece.start : piece.end]]
    )
    monkeypatch.setattr(topic, "described_at", lambda *_: records[0])
    monkeypatch.setattr(topic, "_NEAR_OFFSETS", 3)
    reading = _Reading(Options(source="t"), StructType.fromJson(AFTER), Decoding("t", True, 0))
    for number in (1, 3, 17, 100):
        spans = [TopicSpan(CarriedSettings(NOWHERE), "t.raw", 0, piece) for piece in pieces(records, number)]
        found = [row for span in spans for batch in reading.read(span) for row in batch.to_pylist()]
        assert sum(bool(list(span.prepared())) for span in spans) > 0 or number < 17
        rows = [as_json(row["after"]) for row in expected["rows/shop.t"]]
        assert sorted(ids(found)) == sorted(row["column_1"] for row in rows)


def read_with(path: Path, **options: str) -> list[dict[str, Any]]:
    source = MillraceDataSource({"path": str(path), "maxPartitionBytes": "300", **options})
    reader = source.reader(source.schema())
    return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", LOGS[1:3])
def test_changes_that_options_select(name: str) -> None:
    path = log(name)
    every = read_with(path)
    times = sorted({row["_commit_ts"] for row in every})
    gtids = [row["_gtid"] for row in every if row["_gtid"]]
    middle = times[len(times) // 2]
    cases: list[tuple[dict[str, str], Callable[[dict[str, Any]], bool]]] = [
        ({"tables": "shop.items"}, lambda row: (row["database"], row["table"]) == ("shop", "items")),
        ({"tables": "archive.*, it?ms"}, lambda row: row["database"] == "archive" or row["table"] == "items"),
        ({"tables": "shop._tems"}, lambda _: False),
        ({"tables": "ITEMS"}, lambda _: False),
        ({"operations": "d"}, lambda row: row["_op"] == "d"),
        (
            {"operations": "c,u", "tables": "*.orders"},
            lambda row: row["_op"] in "cu" and row["table"] == "orders",
        ),
        ({"serverIds": "99"}, lambda row: row["_server_id"] == 99),
        ({"serverIds": "1,2,3"}, lambda row: row["_server_id"] in (1, 2, 3)),
        ({"gtids": ",".join(gtids[:2])}, lambda row: row["_gtid"] in gtids[:2]),
        ({"committedAfter": middle.isoformat()}, lambda row: row["_commit_ts"] > middle),
        ({"committedBefore": middle.isoformat()}, lambda row: row["_commit_ts"] < middle),
    ]
    for options, passes in cases:
        assert read_with(path, **options) == list(filter(passes, every)), options
    assert {(row["database"], row["table"]) for row in every} == EVERY
    assert {row["_op"] for row in every} > {"c", "d"}


def test_no_gtid_is_in_a_set_where_the_log_has_none(tmp_path: Path) -> None:
    made = MadeLog()
    made.query("BEGIN")
    made.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", b"\x03", image_rows((None, (1, "x")))))
    made.query("COMMIT")
    write(tmp_path / "bin.000001", made)
    (row,) = read_with(tmp_path / "bin.000001")
    assert row["_gtid"] is None
    assert read_with(tmp_path / "bin.000001", gtids="0-1-5") == []


def test_filters_of_a_query_do_not_reach_the_next(spark: SparkSession) -> None:
    """As Spark 4.1 keeps what a source has made of its filters."""
    register(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    changes = spark.read.format("millrace").load(str(log(LOGS[1])))
    deleted, updated = changes.where("_op = 'd'"), changes.where("_op = 'u'")
    counts = [
        frame.count() for frame in (changes, deleted, changes, updated.union(deleted), updated, changes)
    ]
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert counts[0] == counts[2] == counts[5]
    assert counts[3] == counts[1] + counts[4]
    assert 0 < counts[1] < counts[0]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three files of a log: a transaction goes from the first into the second, as in a relay log."""
    for number in (1, 2, 3):
        made = MadeLog()
        for row in range(5):
            insert(made, number * 10 + row, commit=(number, row) != (1, 4))
        if number < 3:
            made.add(RotateEvent(4, f"bin.00000{number + 1}"))
        if number == 2:
            made.events.insert(1, made.events[-2])
        write(tmp_path / f"bin.00000{number}", made)
    return tmp_path


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [row_of(row["after"])["column_1"] for row in found]


@pytest.mark.parametrize("pack", [None, gzip.compress, zstandard.compress])
def test_files_are_one_log(logs: Path, pack: Callable[[bytes], bytes] | None) -> None:
    whole = [*range(10, 15), *range(20, 25), *range(30, 35)]
    if pack is not None:
        for file in logs.iterdir():
            file.with_name(f"{file.name}.gz").write_bytes(pack(file.read_bytes()))
            file.unlink()
    for size in SIZES:
        assert ids(read(logs / "bin.*", maxPartitionBytes=size)) == whole, size
    (logs / "bin.index").write_text("./bin.000001\n")
    assert ids(read(logs)) == ids(read(f"file://{logs}")) == whole
    assert len(read(logs, view="raw")) == sum(1 for _ in read(logs, view="raw", maxPartitionBytes="1"))


def test_a_log_that_is_not_whole_is_refused(logs: Path) -> None:
    with pytest.raises(UserError, match="no file matches"):
        read(logs / "none.*")
    (logs / "bin.000002").unlink()
    with pytest.raises(UserError, match=r"between bin.000001 and bin.000003 1 files are missing"):
        read(logs)
    assert ids(read(logs, ignoreMissingFiles="true")) == [*range(10, 14), *range(30, 35)]
    (logs / "other.000004").write_bytes((logs / "bin.000003").read_bytes())
    with pytest.raises(UserError, match="of two logs"):
        read(logs, ignoreMissingFiles="true")


def test_what_cannot_be_read_is_told_or_listed(logs: Path) -> None:
    last, first = logs / "bin.000003", logs / "bin.000001"
    last.write_bytes(last.read_bytes()[:-70])
    assert ids(read(logs))[-1] == 33  # as of a log that is being written
    first.write_bytes(first.read_bytes()[:-70])
    with pytest.raises(LogDataError, match=r"bin.000001 at \d+: the log ends in the middle"):
        read(logs)
    (fault,) = read(logs, mode="PERMISSIVE", view="_corrupt")
    assert (fault["log_file"], fault["error_class"]) == ("bin.000001", "TruncatedError")
    assert ids(read(logs, mode="permissive"))[-1] == 33


def test_a_damaged_event_is_told_or_listed(tmp_path: Path) -> None:
    made = MadeLog()
    for number in range(3):
        insert(made, number)
    path = write(tmp_path / "bin.000001", made)
    data = bytearray(path.read_bytes())
    position, event = made.events[-2]
    data[position + len(event) - 6] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(LogDataError, match=f"bin.000001:{position}: ChecksumError"):
        read(path)
    assert ids(read(path, mode="PERMISSIVE")) == [0, 1]
    (letter,) = read(path, view="_corrupt")
    assert (letter["position"], letter["error_class"]) == (position, "ChecksumError")
    assert letter["value"] == data[position : position + len(event)]


def test_columns_have_the_names_that_are_given(tmp_path: Path) -> None:
    """Without full metadata, nor a statement that creates the table, the log has none."""
    made = MadeLog()
    insert(made, 1)
    path = write(tmp_path / "bin.000001", made)
    script = tmp_path / "tables.sql"
    script.write_text("USE shop; CREATE TABLE t (id INT NOT NULL, name VARCHAR(20) CHARACTER SET utf8mb4);")
    (row,) = read(path, definitions=str(script))
    assert row_of(row["after"]) == {"id": 1, "name": "x"}
    (typed,) = read(path, definitions=str(script), table="shop.t")
    assert (typed["id"], typed["name"]) == (1, "x")


def test_rows_of_an_older_definition_have_the_columns_of_the_newest(tmp_path: Path) -> None:
    """One column was text and is a number, one is new: a value that does not fit is told, or is null."""
    text = Column(0, ColumnType.VARCHAR, LengthMetadata(80), charset="utf8mb4")
    number = Column(0, ColumnType.LONG, NoMetadata())
    made = MadeLog()

    def add(columns: tuple[Column, ...], *values: Any) -> None:
        made.add(GtidLogEvent(0, bytes(16), made.position, 2, 0, 1, 1, None, 100, 80030))
        made.query("BEGIN")
        types = bytes(column.type for column in columns)
        metadata = b"".join((80).to_bytes(2, "little") for column in columns if column.type == text.type)
        bits = bytes(((1 << len(columns)) - 1,))
        made.add(TableMapEvent(7, 1, "shop", "t", types, metadata, bits))
        images = RowImages(columns, None, bits).encode([(None, values)])
        made.add(WriteRowsEvent(7, 1, b"", len(columns), b"", bits, images))
        made.query("COMMIT")

    script = tmp_path / "tables.sql"
    script.write_text("USE shop; CREATE TABLE t (a VARCHAR(20) CHARACTER SET utf8mb4);")
    add((text,), "12")
    path = write(tmp_path / "bin.000001", made)
    assert [row["a"] for row in read(path, table="shop.t", definitions=str(script))] == ["12"]
    made.query("ALTER TABLE shop.t MODIFY a INT, ADD b INT")
    add((number, replace(number, ordinal=1)), 13, 1)
    write(path, made)
    options = {"table": "shop.t", "definitions": str(script)}
    found = [(row["a"], row["b"]) for row in read(path, **options)]
    assert found == [(12, None), (13, 1)]
    made.query("ALTER TABLE shop.t MODIFY a VARCHAR(20) CHARACTER SET utf8mb4, DROP b")
    add((text,), "many")
    made.query("ALTER TABLE shop.t MODIFY a INT")
    add((number,), 14)
    write(path, made)
    with pytest.raises(LogDataError, match="'many'"):
        read(path, **options)
    found = [row["a"] for row in read(path, mode="PERMISSIVE", **options)]
    assert found == [12, 13, None, 14]


@pytest.mark.parametrize("name", LOGS)
def test_transactions_count_the_changes(name: str) -> None:
    path = log(name)
    found = read(path, view="transactions")
    assert [row["_sequence"] for row in found] == sorted({row["_sequence"] for row in found})
    assert found == read(path, view="transactions", maxPartitionBytes="1")
    # An XA transaction is two: one that is prepared, with its rows, and one that commits it.
    decided = [row["_transaction"] for row in found if row["ends"] == "xa commit"]
    changes = Counter(
        (row["_transaction"], row["database"], row["table"], row["_op"])
        for row in read(path)
        if row["_op"] != "t" and row["_transaction"] not in decided
    )
    assert len(decided) == sum(row["ends"] == "xa prepare" for row in found)
    counted = Counter(
        {
            (row["_transaction"], table["database"], table["table"], op): table[name]
            for row in found
            if row["ends"] != "xa prepare"
            for table in row["tables"]
            for op, name in (("c", "inserts"), ("u", "updates"), ("d", "deletes"))
            if table[name]
        }
    )
    assert counted == changes
    assert sum(row["rows"] for row in found if row["ends"] != "xa prepare") == changes.total()
    raw = read(path, view="raw")
    inside = sum(row["bytes"] for row in found)
    assert 0.5 * inside < inside < sum(len(row["value"]) for row in raw)
    assert any("CREATE TABLE" in (row["statement"] or "") for row in found)
    assert {row["_gtid"] for row in found} > {row["_gtid"] for row in read(path)}


@pytest.mark.parametrize("name", LOGS)
def test_events_are_typed(name: str) -> None:
    path = log(name)
    found = sorted(read(path, view="events"), key=lambda row: (row["position"], row["sub_index"]))
    cut = read(path, view="events", maxPartitionBytes="1")
    assert found == sorted(cut, key=lambda row: (row["position"], row["sub_index"]))
    with path.open("rb") as stream:
        decoded = [(position, one.event) for position, one in decode_file(stream)]
    outer = [row for row in found if row["sub_index"] == 0]
    for row, (position, event) in zip(outer, decoded, strict=True):
        (kind,) = [kind for kind, value in row["event"].items() if value is not None]
        assert (row["position"], kind) == (position, type(event).__name__)
        if isinstance(event, QueryEvent):
            assert row["event"][kind]["query"] == event.query


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"veiw": "raw"}, "option 'veiw' is not known: expected path, "),
        ({"view": "rows"}, "'view' is 'rows': expected raw or changes or _corrupt or events or transactions"),
        ({"mode": "DROPMALFORMED"}, "expected FAILFAST or PERMISSIVE"),
        ({"table": "orders"}, r"expected DATABASE\.TABLE"),
        ({"table": "a.b", "view": "raw"}, "no meaning for the view 'raw'"),
        ({"maxPartitionBytes": "much"}, "expected a number of bytes, as 64m"),
        ({"table": "no.table"}, "has no row of no.table"),
    ],
)
def test_options_that_have_no_effect_are_refused(options: Mapping[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read(log(LOGS[1]), **options)


@pytest.mark.spark
class TestSpark:
    pytestmark = SPARK

    def test_the_ten_lines(self, spark: SparkSession) -> None:
        register(spark)
        reader = spark.read.format("millrace").option("maxPartitionBytes", "300")
        items = reader.option("table", "shop.items").load(str(log(LOGS[1])))
        changes = spark.read.format("millrace").load(str(log(LOGS[1])))
        columns = [field for field in items.schema if not field.name.startswith("_")]
        schema = items.select(*(field.name for field in columns)).schema
        image = sf.coalesce(sf.when(sf.col("_op") != "d", sf.col("after")), sf.col("before"))
        parsed = changes.where("table = 'items'").select(
            sf.from_json(image, schema).alias("row"), "_op", "_commit_ts", "_position", "_sequence"
        )
        parsed = parsed.select("row.*", "_op", "_commit_ts", "_position", "_sequence")
        wanted = items.select(*parsed.columns).orderBy("_sequence").collect()
        assert parsed.orderBy("_sequence").collect() == wanted
        assert len(wanted) > 2

    def test_a_schema_that_is_given_is_what_is_read(self, spark: SparkSession) -> None:
        register(spark)
        reader = spark.read.format("millrace").schema(
            "`table` string, _position struct<pos:bigint>, none int"
        )
        found = reader.load(str(log(LOGS[1]))).collect()
        assert {row.table for row in found} == {"items", "orders"}
        assert all(row._position.pos > 0 and row.none is None for row in found)
        assert reader.load(str(log(LOGS[1]))).count() == len(found)

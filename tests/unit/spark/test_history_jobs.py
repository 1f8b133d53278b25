"""The parts of row_history and conformance that need neither Kafka nor Spark."""

import datetime as dt
import io
import itertools
import json
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession

from millrace.avro.registry import wire_prefix
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.runtime.errors import UserError
from millrace.verify.history import Era, Origin, TableHistory
from millrace.verify.tables import Column
from spark_jobs import conformance, row_history
from spark_jobs.common import tables
from spark_jobs.common.events import arrow_schema
from spark_jobs.common.faults import FAULT_COLUMNS
from spark_jobs.common.kafka import TopicSlice
from spark_jobs.common.report import Code
from spark_jobs.common.tables import CHANGE_SCHEMA, KnownColumn, Table
from tests.unit.spark.test_report import check_self_contained

if TYPE_CHECKING:
    from spark_jobs.common.job import Job

SOURCE = {
    "version": "1", "db": "shop", "table": "orders", "epoch": 0, "file": "binlog.000007", "pos": 5,
    "sub_index": 0, "row": 2, "thread": 9, "server_id": 1,
}  # fmt: skip


def envelope(**parts: Any) -> dict[str, Any]:
    return {"source": SOURCE, "before": None, "after": None, "ts_ms": 1, "op": "u", **parts}


def test_a_change_as_it_is_told() -> None:
    change = {
        "epoch": 0, "number": 7, "pos": 5, "sub_index": 0, "row": 2, "file": "binlog.000007", "id": "0-1-5",
        "time_ms": 1000, "op": "u",
    }  # fmt: skip
    note = {"image": "after", "column": "day", "text": "0000-00-00", "bytes": None}
    told = row_history._line(
        change,
        envelope(
            before={"id": 1, "day": dt.date(2024, 1, 2), "b": b"\xff", "_x0031_st": None},
            after={"id": 1, "day": None, "b": b"\xff", "_x0031_st": None},
            unrepresentable=[note],
            after_missing=["1st"],
        ),
    )
    assert told[:9] == tuple(change.values())
    assert told[9:11] == (9, 1)
    before, after, changed = told[11:]
    assert json.loads(before) == {"id": 1, "day": "2024-01-02", "b": "0xFF", "1st": None}
    assert json.loads(after) == {"id": 1, "day": "0000-00-00", "b": "0xFF"}
    assert changed == "day"

    names = arrow_schema(row_history._HISTORY_SCHEMA).names
    shown = row_history._shown(Row(**dict(zip(names, (*told, None), strict=True))))
    assert shown[:3] == ["1970-01-01 00:00:01", "update", "day"]
    assert shown[3:6] == [Code("0-1-5"), "1", "9"]
    assert shown[6:] == [Code(before), Code(after)]


def test_a_record_that_cannot_be_read_is_told() -> None:
    definitions = (ColumnDefinition(0, "id", "int", key_position=0),)
    known = [KnownColumn(Column("id", "int", 0), None)]
    whole = TableDefinition("shop", "t", definitions)
    table = Table("shop", "t", whole, definitions, known, TableHistory.without_changes(["id"]), [])
    layout = arrow_schema(CHANGE_SCHEMA)
    place = {"topic": "shop.shop.t", "partition": 0, "offset": 7, "key": b"k", "value": b"v"}
    nothing = dict.fromkeys(layout.names)
    fault = nothing | place | {"fault": "it is cut"}
    damaged = nothing | place | {"offset": 9, "era": 0}  # its key is none that the table has
    batch = pa.RecordBatch.from_pylist([fault, damaged], schema=layout)
    ((told, other),) = (found.to_pylist() for found in row_history._finder(table, {"id": "1"}, {})([batch]))
    assert {name: told[name] for name in FAULT_COLUMNS} == place | {"fault": "it is cut"}
    assert (told["op"], told["after"]) == (None, None)
    assert (other["offset"], other["fault"].partition(":")[0]) == (9, "ValueError")


def test_a_row_is_found_by_its_images() -> None:
    """Whatever the key of its records; ``tenant`` came later, and a minimal image lacks columns."""
    image = {"type": "record", "name": "i", "fields": [
        {"name": name, "type": ["null", "string"]} for name in ("tenant", "id", "v")
    ]}  # fmt: skip
    schema = {"type": "record", "name": "e", "fields": [
        {"name": "source", "type": {"type": "record", "name": "s", "fields": [
            {"name": name, "type": "long"} for name in ("thread", "server_id")
        ]}},
        {"name": "before", "type": ["null", image]}, {"name": "after", "type": ["null", "i"]},
        {"name": "after_missing", "type": {"type": "array", "items": "string"}},
    ]}  # fmt: skip

    def value(before: tuple[str | None, ...] | None, after: tuple[str | None, ...] | None) -> bytes:
        out = io.BytesIO(wire_prefix(1))
        out.seek(0, 2)
        images = [one and dict(zip(("tenant", "id", "v"), one, strict=True)) for one in (before, after)]
        lacking = [name for name, one in (images[1] or {}).items() if one == "-"]
        record = {"source": {"thread": 1, "server_id": 1}, "after_missing": lacking}
        fastavro.schemaless_writer(out, schema, {**record, "before": images[0], "after": images[1]})
        return out.getvalue()

    names = ["tenant", "id", "v"]
    definitions = [
        ColumnDefinition(at, name, "varchar(9)", charset="utf8mb4", collation="utf8mb4_bin")
        for at, name in enumerate(names)
    ]
    known = [KnownColumn(Column(name, "varchar", 0), "t" if name == "tenant" else None) for name in names]
    now = {name: Origin(name) for name in names}
    eras = TableHistory(
        [Era((-1, 0, 0), ("shop", "t"), now | {"tenant": Origin(None)}), Era((0, 7, 4), ("shop", "t"), now)]
    )
    whole = TableDefinition("shop", "t", tuple(definitions))
    table = Table("shop", "t", whole, definitions, known, eras, [])
    changes = [
        (0, "c", None, (None, "5", "a")),
        (1, "c", None, ("t", "5", "a")),
        (1, "c", None, ("u", "5", "a")),
        (1, "u", ("t", "6", "a"), ("t", "5", "-")),
        (1, "u", ("t", "5", "a"), ("-", "-", "b")),
        (1, "u", ("t", "6", "a"), ("-", "-", "5")),
        (1, "d", ("t", "5", "b"), None),
        (1, "t", None, None),
    ]
    layout = arrow_schema(CHANGE_SCHEMA)
    nothing = dict.fromkeys(layout.names) | {
        "epoch": 0,
        "number": 7,
        "time_ms": 1,
        "key": b"of other columns",
    }
    rows = [
        nothing | {"offset": at, "pos": at, "era": era, "op": op, "value": value(before, after)}
        for at, (era, op, before, after) in enumerate(changes)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=layout)

    def found(**wanted: str) -> list[int]:
        (lines,) = row_history._finder(table, wanted, {1: schema})([batch])
        assert lines.column("fault").null_count == lines.num_rows, lines.column("fault")
        return [line["pos"] for line in lines.to_pylist()]

    assert found(tenant="t", id="5") == [0, 1, 3, 4, 6, 7]
    assert found(tenant="u", id="5") == [2, 7]
    assert found(v="b") == [4, 6, 7]

    def collated(collation: str | None) -> Table:
        columns = [replace(column, collation=collation) for column in definitions]
        return replace(table, definitions=columns)

    # As the column's collation compares; where it is not known, a change is told as uncertain.
    assert found(id="5", v="B") == [7]
    table = collated("utf8mb4_0900_ai_ci")
    assert found(v="B") == [4, 6, 7]
    table = collated(None)
    assert found(v="B") == [4, 6, 7]
    (lines,) = row_history._finder(table, {"v": "B"}, {1: schema})([batch])
    assert lines.column("uncertain").to_pylist() == ['{"v": "b"}', '{"v": "b"}', None]
    assert table.compares({"v": "B"}) == "v (its collation is not known)"
    assert collated("utf8mb4_0900_ai_ci").compares({"v": "B"}) is None


def test_records_of_a_row_topic_that_are_none() -> None:
    """Lines with their place, among those of the others."""
    source = {"type": "record", "name": "s", "fields": [
        *({"name": name, "type": "string"} for name in ("file", "snapshot")),
        *({"name": name, "type": "long"} for name in ("epoch", "pos", "sub_index", "row", "ts_ms")),
        {"name": "gtid", "type": ["null", "string"]},
    ]}  # fmt: skip
    schema = {"type": "record", "name": "e", "fields": [
        {"name": "source", "type": source}, {"name": "transaction", "type": "null"},
        {"name": "op", "type": "string"},
    ]}  # fmt: skip

    def value(**parts: Any) -> bytes:
        out = io.BytesIO(wire_prefix(1))
        out.seek(0, 2)
        place = {"file": "binlog.000007", "snapshot": "false", "epoch": 0, "pos": 5, "sub_index": 0, "row": 2}
        record = {"source": {**place, "ts_ms": 9, "gtid": None, **parts}, "transaction": None, "op": "c"}
        fastavro.schemaless_writer(out, schema, record)
        return out.getvalue()

    good = value()
    values = [good, b"garbage", good[:-2], wire_prefix(9) + good[5:], value(epoch=1 << 40), good]
    names = ("topic", "partition", "offset", "key", "value")
    rows = [
        dict(zip(names, ("shop.shop.t", 0, at, b"bad key" if at == 5 else None, one), strict=True))
        for at, one in enumerate(values)
    ]
    read = tables._reader({1: schema}, TableHistory.without_changes(["id"]), frozenset({0}))
    (found,) = (batch.to_pylist() for batch in read([pa.RecordBatch.from_pylist(rows)]))
    assert [line["offset"] for line in found] == [0, 1, 2, 3, 4, 5]
    first, *faulty = found
    assert (first["number"], first["pos"], first["fault"]) == (7, 5, None)
    reasons = [line["fault"] for line in faulty]
    for reason, words in zip(
        reasons,
        ("is not 00 and a schema id", "is not a record of its schema", "schema 9", "too large", "is not 00"),
        strict=True,
    ):
        assert words in reason
    assert all(line["pos"] is None and line["value"] == values[line["offset"]] for line in faulty)


def test_what_is_compared() -> None:
    """Neither when a change was published, nor by which version."""
    first = conformance._line("rows", envelope(after={"n": Decimal("1.50")}))
    other = SOURCE | {"version": "2", "name": "shop_v2"}
    second = conformance._line("rows", envelope(after={"n": Decimal("1.50")}, ts_ms=2, source=other))
    assert first == second
    assert first[:6] == ("shop.orders", 0, 7, 5, 0, 2)
    event = {
        "type": "XID_EVENT",
        "log_file": "binlog.000007",
        "position": 4,
        "sub_index": 1,
        "context": {"epoch": 3},
    }
    assert conformance._line("events", event)[:6] == ("event XID_EVENT", 3, 7, 4, 1, 0)


def test_fields_that_differ() -> None:
    place = dict(zip(conformance._PLACE, ("shop.orders", 0, 7, 5, 0, 2), strict=True))
    old, new = (
        json.dumps({"after": {"a": 1, "b": value, **more}, "before": None})
        for value, more in (("x", {}), ("y", {"c": None}))
    )
    found = list(conformance._differences({**place, "old": old, "new": new}))
    assert [one[6:] for one in found] == [
        ("changed", "after.b", '"x"', '"y"'),
        ("changed", "after.c", None, "null"),
    ]
    ((*_, what, _, before, after),) = conformance._differences({**place, "old": None, "new": new})
    assert (what, before, after) == ("added", None, new)
    ((*_, what, _, before, after),) = conformance._differences({**place, "old": old, "new": None})
    assert (what, before, after) == ("missing", old, None)


def test_folders_without_results(tmp_path: Path) -> None:
    def results(source: str = "shop") -> conformance.Results:
        return conformance.Results.of(str(tmp_path), source)

    def write(job: str, inputs: dict[str, Any], **of_source: Any) -> None:
        manifest = {"job": job, "run": "run-1", "input": inputs}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        (tmp_path / "run-1" / "summary.json").write_text(json.dumps(dict.fromkeys(inputs, of_source)))

    with pytest.raises(UserError, match="has no results of a job"):
        results()
    (tmp_path / "run-1").mkdir()
    shop, north = ({"topic": f"{name}.raw", "offsets": {"0": [5, 90]}} for name in ("shop", "north"))
    files = ["rows/a/1.parquet", "ddl/2.parquet", "other/3.parquet"]
    write("analytics", {"shop": shop})
    with pytest.raises(UserError, match="has results of the job analytics, not of reprocess"):
        results()
    write("reprocess", {"shop": shop}, files=files)
    run = f"{tmp_path}/run-1"
    known = [("rows", f"{run}/rows/a/1.parquet"), ("ddl", f"{run}/ddl/2.parquet")]
    assert results("shop_v2") == conformance.Results("shop.raw", 5, 90, known)
    write("reprocess", {"shop": shop, "north": north}, files=files)
    assert results("north").files[0] == ("rows", f"{run}/north/rows/a/1.parquet")
    with pytest.raises(UserError, match="has results of shop, north: name one of them with --source"):
        results("south")
    write("reprocess", {"shop": shop}, files=[], snapshots={"shop.a": 1})
    with pytest.raises(UserError, match="has its results in Iceberg tables, which conformance does not read"):
        results()


class ToCompare:
    """A folder of results of reprocess, made by hand: its path may have names of kinds of files in it."""

    def __init__(self, folder: Path, start: int = 0, end: int = 100) -> None:
        self.folder, self.start, self.end = folder / "events" / "rows", start, end
        self.records: dict[str, list[dict[str, Any]]] = {}

    def transaction(self, number: int, *tables: str) -> "ToCompare":
        """Add a transaction with a row of each table."""
        place = {"epoch": 0, "file": "binlog.000007"}
        head = {"id": f"0-1-{number}", **place}
        self.add("transactions", status="BEGIN", pos=number, **head)
        for at, table in enumerate(tables):
            source = {**SOURCE, "table": table, "pos": number + 1, "row": at}
            self.add("rows", op="c", after={"id": number}, source=source)
        return self.add("transactions", status="END", pos=number + 2, **head)

    def letter(self, number: int, error: str = "x", service: str = "rowmapper") -> "ToCompare":
        """Add a dead letter."""
        return self.add(
            "deadletter", service=service, key=b"1:0:binlog.000007:%d:3" % number, epoch=0,
            log_file="binlog.000007", position=number, table=None, error_class="E", error=error, raw_offset=5,
        )  # fmt: skip

    def add(self, kind: str, /, **fields: Any) -> "ToCompare":
        self.records.setdefault(kind, []).append(fields)
        return self

    def side(self) -> conformance.Side:
        """Write all."""
        run = self.folder / "run-1"
        files = []
        for kind, records in self.records.items():
            (run / kind).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(records), run / kind / "1.parquet")
            files.append(f"{kind}/1.parquet")
        run.mkdir(parents=True, exist_ok=True)
        (run / "summary.json").write_text(json.dumps({"shop": {"files": files, "snapshots": {}}}))
        offsets = {"0": [self.start, self.end]}
        manifest = {"job": "reprocess", "run": "run-1", "input": {"shop": {"topic": "t", "offsets": offsets}}}
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        return conformance.Side(str(self.folder))


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_what_one_side_has_lost_is_no_end_of_the_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests say what both have read: all tables of both sides are compared there, to the ends."""
    jobs = itertools.count()

    def compare(before: ToCompare, after: ToCompare) -> tuple[dict[str, tuple[int, ...]], Any]:
        job: Any = SimpleNamespace(
            sources=["shop"], notes=[], spark=spark, kafka={}, folder=str(tmp_path / f"job-{next(jobs)}"),
            step=lambda _: nullcontext(), steps=SimpleNamespace(say_speed=lambda *_: None),
        )  # fmt: skip
        job.write = lambda name, frame: frame.write.parquet(f"{job.folder}/{name}")
        _, counts = conformance.conformance(job, spark, before.side(), after.side())
        return {row.kind: (row.equal, row.changed, row.missing, row.added) for row in counts.collect()}, job

    def whole(name: str, *, start: int = 0, end: int = 100) -> ToCompare:
        made = ToCompare(tmp_path / name, start, end)
        for number in range(start, end, 10):
            made.transaction(number, "orders", "geo")
        return made.add(
            "ddl", kind="DDL", statement="ALTER", epoch=0, file="binlog.000007", pos=55, sub_index=0
        )

    # Dead letters instead of a table, a statement that is read otherwise, and no rows at either end.
    worse = ToCompare(tmp_path / "worse")
    for number in range(10, 80, 10):
        worse.transaction(number, "orders").letter(number + 1).letter(number + 1, service="decoder")
    worse.add("ddl", kind="DDL", statement="DROP", epoch=0, file="binlog.000007", pos=55, sub_index=0)
    found, job = compare(whole("c"), worse)
    assert job.notes == []
    assert found == {
        "shop.orders": (7, 0, 3, 0), "shop.geo": (0, 0, 10, 0), "transactions": (14, 0, 6, 0),
        "ddl": (0, 1, 0, 0),
        "dead letters of rowmapper": (0, 0, 0, 7), "dead letters of decoder": (0, 0, 0, 7),
    }  # fmt: skip
    with pytest.raises(UserError, match="have nothing in common to compare"):
        compare(ToCompare(tmp_path / "e"), ToCompare(tmp_path / "f"))

    # Of another input what both have is compared, to the last transaction that both have whole.
    held = {0: (0, 100)}
    monkeypatch.setattr(conformance, "resolve_slice", lambda *_, **__: TopicSlice("t", held))
    monkeypatch.setattr(
        conformance, "scan", lambda _spark, _kafka, part, **_: spark.createDataFrame(
            [(b"1:0:binlog.000007:%d" % offset,) for offset in range(*part.offsets[0])], "key binary"
        ),
    )  # fmt: skip
    shorter = ToCompare(tmp_path / "g", 20, 60).transaction(20, "orders").transaction(30, "orders", "geo")
    found, job = compare(whole("h"), shorter)
    assert found == {
        "shop.orders": (2, 0, 2, 0), "shop.geo": (1, 0, 3, 0), "transactions": (4, 0, 4, 0),
        "ddl": (0, 0, 1, 0),
    }  # fmt: skip
    (note,) = job.notes
    assert note == (
        "Only what both sides have read is compared, from 000007:20 of epoch 0 to 000007:55 of epoch 0: "
        f"{tmp_path}/h/events/rows is made of t, offsets 0 to 100; {tmp_path}/g/events/rows is made of t, "
        "offsets 20 to 60."
    )
    # Where nobody can say where that is, the results themselves count.
    held.clear()
    results = conformance.Results.of(str(shorter.folder), "shop")
    frame = conformance._folder(spark, results)
    assert conformance._ends_of(job, shorter.side(), frame, results) == ((0, 7, 20), (0, 7, 32))
    assert job.notes[1].startswith("Losses at the ends cannot be seen: the raw events at the ends of t, offs")
    assert conformance.report_of(job, (shorter.side(),) * 2, [compared()], [], []).result == (
        "No difference in 7 records: all that both sides have read.", "doubt",
    )  # fmt: skip

    events = ToCompare(tmp_path / "i").add("events", type="X")
    with pytest.raises(UserError, match=r"has rows and .* has typed events: run reprocess with the same"):
        compare(whole("j"), events)


def compared(**numbers: Any) -> Row:
    return Row(**{"kind": "shop.orders", "equal": 7, "changed": 0, "missing": 0, "added": 0} | numbers)


def test_the_page_of_a_comparison_says_how_much_differs_and_where() -> None:
    job = cast("Job", SimpleNamespace(sources=["shop"], notes=["Only a part."]))
    sides = conformance.Side(None), conformance.Side("of-new")
    same = conformance.report_of(job, sides, [compared()], [], [])
    assert same.result == ("No difference in 7 records: all that both sides have read.", "good")
    place = {"kind": "shop.orders", "epoch": 0, "number": 7, "pos": 1234, "sub_index": 0, "row": 2}
    example = Row(**place, what="changed", field="after.price", before="1", after="2" * 1000)
    field = Row(kind="shop.orders", what="changed", field="after.price", n=2)
    counts = [compared(kind="a.equal"), compared(changed=2, added=1)]
    page = conformance.report_of(job, sides, counts, [field], [example])
    assert page.result == ("3 of 17 records differ.", "bad")
    words = "".join(check_self_contained(page.html("footer")).words)
    assert words.index("shop.orders") < words.index("a.equal")
    assert "000007:1234" in words
    assert "2…" in words
    assert "Only a part." in words

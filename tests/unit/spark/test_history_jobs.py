"""The parts of row_history and conformance that need neither Kafka nor Spark."""

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import Row

from millrace.avro.registry import wire_prefix
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.runtime.errors import UserError
from millrace.verify.conversions import Untold
from millrace.verify.history import Era, Origin, TableHistory
from millrace.verify.tables import Column
from spark_jobs import conformance, row_history
from spark_jobs.common import tables
from spark_jobs.common.events import arrow_schema
from spark_jobs.common.faults import FAULT_COLUMNS
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
    shown = row_history._shown(Row(**dict(zip(names, told, strict=True))))
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
    definitions = [ColumnDefinition(at, name, "varchar(9)") for at, name in enumerate(names)]
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
    assert row_history._has_text(Untold("its record has digits in place of its bytes", "AP8="), "AP8=")
    assert not row_history._has_text(None, "None")


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
    with pytest.raises(UserError, match="has no results of a job"):
        conformance.Side(str(tmp_path)).files()
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "summary.json").write_text(
        '{"shop": {"files": ["rows/a/1.parquet", "ddl/2.parquet"]}}'
    )
    manifest = {"job": "analytics", "run": "run-1", "input": {"shop": {}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="has results of the job analytics, not of reprocess"):
        conformance.Side(str(tmp_path)).files()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"job": "reprocess"}))
    assert conformance.Side(str(tmp_path)).files() == [f"{tmp_path}/run-1/rows/a/1.parquet"]


def compared(**numbers: Any) -> Row:
    return Row(**{"kind": "shop.orders", "equal": 7, "changed": 0, "missing": 0, "added": 0} | numbers)


def test_the_page_of_a_comparison_says_how_much_differs_and_where() -> None:
    job = cast("Job", SimpleNamespace(sources=["shop"]))
    sides = conformance.Side(None), conformance.Side("of-new")
    same = conformance.report_of(job, sides, [compared()], [], [])
    assert same.result == ("No difference in 7 records: all that both sides have.", "good")
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

"""Records of Avro as columns of Arrow: the kernel and the reference give the same, and refuse the same."""

import io
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from millrace import kernel
from millrace.avro.columnar import AvroColumns, ColumnsError, arrow_type, chosen
from millrace.avro.events import binlog_event_schema
from millrace.avro.schemas import load_schema

PREFIX = b"\x00\x00\x00\x00\x07"

DECIMAL = {"type": "bytes", "logicalType": "decimal"}
EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "Everything",
    "namespace": "test",
    "fields": [
        {"name": "long", "type": ["null", "long"]},
        {"name": "int", "type": "int"},
        {"name": "flag", "type": ["null", "boolean"]},
        {"name": "single", "type": ["null", "float"]},
        {"name": "double", "type": "double"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "bytes", "type": "bytes"},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "moment", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
        {"name": "money", "type": ["null", {**DECIMAL, "precision": 10, "scale": 2}]},
        {"name": "huge", "type": ["null", {**DECIMAL, "precision": 65, "scale": 30}]},
        {"name": "numbers", "type": {"type": "array", "items": ["null", "int"]}},
        {
            "name": "inner",
            "type": ["null", {"type": "record", "name": "Inner", "fields": [
                {"name": "a", "type": "string"},
                {"name": "b", "type": ["null", {"type": "array", "items": "bytes"}]},
                {"name": "c", "type": "int"},
            ]}],
        },
        {"name": "again", "type": ["null", "test.Inner"]},
    ],
}  # fmt: skip

FULL: dict[str, Any] = {
    "long": -(2**63),
    "int": 2**31 - 1,
    "flag": True,
    "single": 1.5,
    "double": -0.1,
    "text": "zwölf",
    "bytes": b"\x00\xff",
    "day": date(1, 1, 1),
    "moment": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    "local": datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - it has no zone
    "money": Decimal("-12345678.90"),
    "huge": Decimal("-99999999999999999999999999999999999.999999999999999999999999999999"),
    "numbers": [1, None, -1],
    "inner": {"a": "", "b": [b"x", b""], "c": -1},
    "again": {"a": "y", "b": None, "c": 0},
}
SMALL: dict[str, Any] = {**FULL, "text": "", "bytes": b"1", "double": 2.0, "huge": Decimal(0), "inner": None}
EMPTY: dict[str, Any] = {
    **dict.fromkeys(FULL),
    "int": -(2**31),
    "double": 0.0,
    "bytes": b"",
    "numbers": [],
}


def written(schema: Any, records: Sequence[Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(schema, _write_hint=False)
    found = []
    for record in records:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, record)
        found.append(PREFIX + stream.getvalue())
    return found


@pytest.fixture(params=["reference", "kernel"])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[AvroColumns]:
    if request.param == "reference":
        monkeypatch.setattr(kernel, "has", lambda _: False)
    elif not kernel.built("columns"):
        pytest.skip("the kernel for columns is not built (make kernel): the reference is tested alone")
    return AvroColumns


@pytest.mark.parametrize("count", [0, 1, 9, 2000])
def test_every_type(columns: type[AvroColumns], count: int) -> None:
    records = [FULL if number % 3 else EMPTY for number in range(count)]
    reader = columns(EVERYTHING)
    for _ in range(2):  # nothing of one batch is left in the next
        batch = reader.read(written(EVERYTHING, records))
        batch.validate(full=True)
        assert batch.schema == reader.schema
        assert batch.to_pylist() == records


def test_records_that_are_added_one_after_the_other(columns: type[AvroColumns]) -> None:
    values = written(EVERYTHING, [FULL, EMPTY, EMPTY, FULL])
    reader = columns(EVERYTHING)
    for _ in range(2):
        for at in range(4):
            reader.add(values[at : at + 1])
        batch = reader.take()
        batch.validate(full=True)
        assert batch.to_pylist() == [FULL, EMPTY, EMPTY, FULL]

    def damaged() -> None:
        reader.add(values[:2])
        reader.add([values[2], values[3][:-1]])
        reader.take()

    with pytest.raises(ColumnsError):
        damaged()
    assert reader.take().num_rows == 0
    assert batch.to_pylist() == [FULL, EMPTY, EMPTY, FULL], "what was given is not written over"


def test_fields_that_are_as_in_the_record_before(columns: type[AvroColumns]) -> None:
    """All of them, some in the middle, at the end of a record; of other sizes, and after a null."""
    choice = random.Random(5)
    records: list[dict[str, Any]] = []
    for _ in range(400):
        last, other = (records[-1] if records else FULL), choice.choice([FULL, EMPTY, SMALL])
        names = choice.sample([*FULL], choice.choice([0, 0, 1, 2, len(FULL)]))
        record = {name: (other if name in names else last)[name] for name in FULL}
        if choice.random() < 0.3:
            record["inner"] = {"a": choice.choice(["", "x", "y" * 20]), "b": [], "c": choice.randrange(2)}
        records.append(record)
    reader = columns(EVERYTHING)
    values = written(EVERYTHING, records)
    for at in range(0, 400, 100):
        reader.add(values[at : at + 100])
    batch = reader.take()
    batch.validate(full=True)
    assert batch.to_pylist() == records


def test_texts_that_repeat_have_a_dictionary(columns: type[AvroColumns]) -> None:
    """Of null at first, a text again after others, an empty one, and other texts in the batch after."""
    reader = columns(EVERYTHING, repeating=["text", "inner"])
    assert reader.schema.field("text").type == pa.dictionary(pa.int32(), pa.string())
    assert reader.schema.field("inner").type[0].type == pa.dictionary(pa.int32(), pa.string())
    assert reader.schema.field("again").type[0].type == pa.string()
    for texts in ([None, "a", "a", "b", None, "a", "", "", "b"], [None, None], [], ["c"], ["b", "b"]):
        inner = [{"a": one, "b": [], "c": at} if one else None for at, one in enumerate(texts)]
        pairs = zip(texts, inner, strict=True)
        records = [{**FULL, "text": text, "inner": inside} for text, inside in pairs]
        batch = reader.read(written(EVERYTHING, records))
        batch.validate(full=True)
        assert batch.schema == reader.schema
        assert batch.to_pylist() == records
        held = batch.column("text").dictionary.to_pylist()
        assert len(held) == len({*held}), "each text stands once"


def test_all_null_inside_of_null(columns: type[AvroColumns]) -> None:
    batch = columns(EVERYTHING).read(written(EVERYTHING, [EMPTY] * 20))
    batch.validate(full=True)
    assert batch.column("inner").null_count == 20


def test_a_branch_is_chosen_of_a_union(columns: type[AvroColumns]) -> None:
    schema = {
        "type": "record",
        "name": "Outer",
        "fields": [
            {"name": "n", "type": "int"},
            {
                "name": "it",
                "type": [
                    {"type": "record", "name": "A", "fields": [{"name": "x", "type": "long"}]},
                    {"type": "record", "name": "B", "fields": [{"name": "y", "type": "string"}]},
                ],
            },
        ],
    }
    values = written(schema, [{"n": 1, "it": ("B", {"y": "yes"})}, {"n": 2, "it": ("A", {"x": 5})}])
    union: Any = schema["fields"][1]
    narrowed = {**schema, "fields": [schema["fields"][0], {**union, "type": chosen(union["type"], 1)}]}
    assert columns(narrowed).read(values[:1]).to_pylist() == [{"n": 1, "it": {"y": "yes"}}]
    with pytest.raises(ColumnsError):
        columns(narrowed).read(values[1:])
    head = {**schema, "fields": [schema["fields"][0], {"name": "it", "type": "long"}]}
    branches = columns(head, whole=False).read(values).column("it")
    assert branches.to_pylist() == [1, 0]
    with pytest.raises(ColumnsError):
        columns(head).read(values)


def test_cut_short_or_too_long(columns: type[AvroColumns]) -> None:
    (whole,) = written(EVERYTHING, [FULL])
    reader = columns(EVERYTHING)
    for size in range(len(PREFIX), len(whole)):
        with pytest.raises(ColumnsError):
            reader.read([whole, whole[:size]])
    with pytest.raises(ColumnsError):
        reader.read([whole + b"\x00"])
    with pytest.raises(ColumnsError):
        reader.read([whole, whole[:3]])
    assert reader.read([whole]).to_pylist() == [FULL]


@pytest.mark.parametrize(
    "rest", [b"\x03", b"\xff" * 11, b"\x02" + b"\xfe\xff\xff\xff\x1f", b"\x01\x7f\x01\x7f"]
)
def test_malformed(columns: type[AvroColumns], rest: bytes) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": {"type": "array", "items": "bytes"}}],
    }
    with pytest.raises(ColumnsError):
        columns(schema).read([PREFIX + rest])


@pytest.mark.parametrize("bad", ["fixed", ["null", "int", "string"], {"type": "map", "values": "int"}])
def test_what_cannot_be_a_column(bad: Any) -> None:
    with pytest.raises(ColumnsError):
        arrow_type({"type": "record", "name": "R", "fields": [{"name": "a", "type": bad}]})


def test_the_schemas_of_the_project_can_be_columns() -> None:
    for name in ("Ddl", "DeadLetter", "Transaction"):
        assert isinstance(arrow_type(load_schema(name)), pa.StructType)
    schema = binlog_event_schema()
    union = schema["fields"][-1]
    for branch in range(len(union["type"])):
        one = {**union, "type": chosen(union["type"], branch)}
        assert isinstance(arrow_type({**schema, "fields": [*schema["fields"][:-1], one]}), pa.StructType)

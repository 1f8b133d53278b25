"""What the schemas of tables have of NOT NULL, DEFAULT and SQL types, and that no value changes by them."""

from dataclasses import replace
from functools import partial
from typing import Any

import fastavro
import pytest

from millrace import kernel
from millrace.avro.column_attributes import with_attributes
from millrace.avro.column_values import ColumnValues
from millrace.avro.columnar import arrow_type
from millrace.avro.connect import connect_schema
from millrace.avro.row_records import table_schemas
from millrace.binlog.columns import AvroOptions, Column, ColumnType, codec_of
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.table import ResolvedTable
from millrace.selection.columns import ColumnAction, ColumnRule
from tests import columns
from tests.unit.kernel.both_rows import NOT_BUILT, everything, ways

T = ColumnType
DEBEZIUM = AvroOptions(column_attributes="debezium")
SOURCE_TYPES = AvroOptions(propagate_source_type=True)
LIKE_DEBEZIUM = AvroOptions(
    "long", "decimal", "decimal", "debezium", "debezium", column_attributes="debezium"
)
UTF8 = {"charset": "utf8mb4"}
column = partial(columns.column, name="c")


@pytest.mark.parametrize(
    ("one", "literal", "text", "value"),
    [
        (column(T.TINY), "-128", "-128", -128),
        (column(T.LONG), "7.0", "7", 7),
        (column(T.INT24, unsigned=True), "16777215", "16777215", 16_777_215),
        (column(T.LONGLONG, unsigned=True), "18446744073709551615", "18446744073709551615", "\x00" + 8 * "ÿ"),
        (column(T.NEWDECIMAL, 10, 2), "1.5", "1.50", "\x00\x96"),
        (column(T.NEWDECIMAL, 10, 2), "-.500", "-0.50", "Î"),
        (column(T.FLOAT, 4), "1.1", "1.1", 1.1),
        (column(T.DOUBLE, 8), "1e-5", "0.00001", 1e-5),
        (column(T.BIT, 12), "b'101'", "0x0005", "\x00\x05"),
        (column(T.YEAR), "2026", "2026", 2026),
        (column(T.DATE), "1970-01-31", "1970-01-31", 30),
        (column(T.DATETIME2, 3), "1970-01-02 00:00:00.5", "1970-01-02 00:00:00.500", 86_400_500_000),
        (column(T.DATETIME2, 0), "1970-01-02", "1970-01-02 00:00:00", 86_400_000_000),
        (column(T.TIME2, 0), "-838:59:59", "-838:59:59", -3_020_399_000_000),
        (column(T.VARCHAR, 80, **UTF8), "", "", ""),
        (column(T.VARCHAR, 80, **UTF8), "it's 日本", "it's 日本", "it's 日本"),
        (column(T.VARCHAR, 20, charset="latin1"), "é€", "é€", "é€"),
        (column(T.BLOB, 2, **UTF8), "text", "text", "text"),
        (column(T.ENUM, 1, members=("a", "b,c")), "b,c", "b,c", "b,c"),
        (column(T.SET, 1, members=("x", "y", "z")), "z,x", "x,z", "x,z"),
        (column(T.SET, 1, members=("x", "y")), "", "", ""),
        (column(T.STRING, 4, sql_type="inet4"), "10.0.0.1", "10.0.0.1", "10.0.0.1"),
    ],
    ids=lambda each: each.type.name if isinstance(each, Column) else None,
)
def test_literals(one: Column, literal: str, text: str, value: object) -> None:
    found = with_attributes(codec_of(one).avro_type(DEBEZIUM), replace(one, default=literal), DEBEZIUM)
    assert isinstance(found, dict)
    assert found["connect.parameters"]["millrace.default"] == text
    assert found["connect.default"] == value
    fastavro.parse_schema(found)


@pytest.mark.parametrize(
    ("one", "literal"),
    [
        (column(T.TINY), "128"),
        (column(T.TINY, unsigned=True), "-1"),
        (column(T.LONG), "7.5"),
        (column(T.LONG), "1_0"),
        (column(T.LONG), "\u0667"),
        (column(T.LONG), "9" * 100_000),
        (column(T.NEWDECIMAL, 4, 2), "1.005"),
        (column(T.NEWDECIMAL, 4, 2), "100.00"),
        (column(T.NEWDECIMAL, 4, 2), "1e999999999"),
        (column(T.NEWDECIMAL, 4, 2), "."),
        (column(T.FLOAT, 4, sql_type="float(5,2)"), "1.234"),
        (column(T.DOUBLE, 8), "1e999"),
        (column(T.FLOAT, 4), "1e300"),
        (column(T.BIT, 2), "b'101'"),
        (column(T.YEAR), "70"),
        (column(T.YEAR), "1800"),
        (column(T.DATE), "0000-00-00"),
        (column(T.DATE), "2026-02-31"),
        (column(T.DATE), "2026-02-01 10:00:00"),
        (column(T.DATETIME2, 0), "CURRENT_TIMESTAMP"),
        (column(T.DATETIME2, 1), "2026-01-01 00:00:00.05"),
        (column(T.TIMESTAMP2, 0), "2026-01-01 00:00:00"),
        (column(T.TIME2, 0), "99:99:99"),
        (column(T.VARCHAR, 20, charset="latin1"), "日本"),
        (column(T.VARCHAR, 20, charset="binary"), "ab"),
        (column(T.ENUM, 1, members=("a", "b")), "A"),
        (column(T.ENUM, 1), "a"),
        (column(T.SET, 1, members=("x", "y")), "x,w"),
        (column(T.JSON, 4), "{}"),
        (column(T.STRING, 4, sql_type="inet4"), "ten"),
    ],
    ids=lambda each: each.type.name if isinstance(each, Column) else None,
)
def test_literals_that_are_not_told(one: Column, literal: str) -> None:
    avro = codec_of(one).avro_type(DEBEZIUM)
    assert with_attributes(avro, replace(one, default=literal), DEBEZIUM) == avro


def test_forms_by_the_other_options() -> None:
    found = {
        name: with_attributes(codec_of(one).avro_type(LIKE_DEBEZIUM), one, LIKE_DEBEZIUM)["connect.default"]  # type: ignore[index]  # a dict
        for name, one in {
            "bit": column(T.BIT, 1, default="b'1'"),
            "bits": column(T.BIT, 12, default="b'101'"),
            "datetime": column(T.DATETIME2, 0, default="1970-01-02 00:00:00"),
            "unsigned": column(T.LONGLONG, unsigned=True, default="5"),
        }.items()
    }
    assert found == {"bit": True, "bits": "\x05\x00", "datetime": 86_400_000, "unsigned": 5}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (column(T.TINY, sql_type="tinyint(1)"), ("TINYINT", "1", None)),
        (column(T.LONG, sql_type="int"), ("INT", None, None)),
        (column(T.LONG, sql_type="int(11)"), ("INT", "11", None)),
        (
            column(T.LONG, unsigned=True, sql_type="int(10) unsigned zerofill"),
            ("INT UNSIGNED ZEROFILL", "10", None),
        ),
        (column(T.NEWDECIMAL, 10, 2, sql_type="decimal(10,2) unsigned"), ("DECIMAL UNSIGNED", "10", "2")),
        (column(T.FLOAT, 4, sql_type="float(7,3)"), ("FLOAT", "7", "3")),
        (column(T.BIT, 1, sql_type="bit(1)"), ("BIT", "1", None)),
        (column(T.DATETIME2, 3, sql_type="datetime(3)"), ("DATETIME", "3", None)),
        (column(T.TIMESTAMP2, 0, sql_type="timestamp"), ("TIMESTAMP", None, None)),
        (column(T.VARCHAR, 1020, sql_type="varchar(255)", **UTF8), ("VARCHAR", "255", None)),
        (column(T.BLOB, 3, sql_type="mediumblob", charset="binary"), ("MEDIUMBLOB", None, None)),
        (column(T.BLOB_COMPRESSED, 2, sql_type="text /*M!100301 COMPRESSED*/", **UTF8), ("TEXT", None, None)),
        (
            column(T.ENUM, 1, members=("a unsigned b", "(7)"), sql_type="enum('a unsigned b','(7)')"),
            ("ENUM", "1", None),
        ),
        (column(T.SET, 1, members=("x", "y", "z"), sql_type="set('x','y','z')"), ("SET", "5", None)),
        (column(T.JSON, 4, sql_type="json"), ("JSON", None, None)),
        (column(T.VECTOR, 4, sql_type="vector(3)", dimensions=3), ("VECTOR", "3", None)),
    ],
    ids=lambda each: each.sql_type if isinstance(each, Column) else None,
)
def test_source_types(one: Column, expected: tuple[str, str | None, str | None]) -> None:
    """Those that Debezium makes of SHOW CREATE TABLE."""
    avro = codec_of(one).avro_type(SOURCE_TYPES)
    found = with_attributes(avro, replace(one, nullable=False, default="1"), SOURCE_TYPES)
    assert isinstance(found, dict)
    fastavro.parse_schema(found)
    before = avro.get("connect.parameters", {}) if isinstance(avro, dict) else {}
    parameters = {name: text for name, text in found["connect.parameters"].items() if name not in before}
    names = ("type", "length", "scale", "name")
    assert parameters == {
        f"__debezium.source.column.{name}": text
        for name, text in zip(names, (*expected, "c"), strict=True)
        if text is not None
    }


def test_no_source_type_without_the_history() -> None:
    for one in (column(T.LONG), replace(SHAPE, sql_type="point")):
        avro = codec_of(one).avro_type(SOURCE_TYPES)
        assert with_attributes(avro, one, SOURCE_TYPES) == avro


SHAPE = column(T.GEOMETRY, 4, nullable=False)
COLUMNS = (
    column(T.LONG, name="id", nullable=False, default="5", key_position=0),
    column(T.TINY, name="tiny", nullable=False),
    column(T.NEWDECIMAL, 10, 2, name="price", default="1.50"),
    column(T.ENUM, 1, name="state", members=("a", "b"), nullable=False, default="b"),
    column(T.DATE, name="day", nullable=False, default="0000-00-00"),
    replace(SHAPE, name="one"),
    replace(SHAPE, name="two"),
    column(T.VARCHAR, 80, name="secret", nullable=False, default="x", **UTF8),
)
ORDERS = ResolvedTable(
    "shop",
    "orders",
    tuple(replace(one, ordinal=ordinal) for ordinal, one in enumerate(COLUMNS)),
    (COLUMNS[0],),
    "catalog",
)
MASKED = {7: ColumnValues.of(ColumnRule(ColumnAction.MASK, text="-"), "string")}


def fields(options: AvroOptions) -> dict[str, Any]:
    envelope = table_schemas("s", ORDERS, options, MASKED).envelope
    fastavro.parse_schema(envelope)
    return {field["name"]: field for field in envelope["fields"][0]["type"][1]["fields"]}


def test_the_schema_of_a_table() -> None:
    plain, found = fields(AvroOptions()), fields(DEBEZIUM)
    not_null = {"millrace.nullable": "false"}
    assert found["id"]["type"] == [
        "null",
        {"type": "int", "connect.default": 5, "connect.parameters": {**not_null, "millrace.default": "5"}},
    ]
    assert found["tiny"]["type"][1] == {
        "type": "int",
        "connect.type": "int16",
        "connect.parameters": not_null,
    }
    assert found["price"]["type"][1]["connect.parameters"] == {"millrace.default": "1.50"}
    assert found["state"]["type"][1]["connect.parameters"] == {
        "allowed": "a,b",
        **not_null,
        "millrace.default": "b",
    }
    assert found["day"]["type"][1]["connect.parameters"] == not_null
    for name in ("one", "two", "secret"):
        assert found[name] == plain[name]
    assert all(field["default"] is None for field in found.values())


def test_columns_of_arrow_are_the_same() -> None:
    envelopes = [
        table_schemas("s", ORDERS, options, MASKED).envelope for options in (AvroOptions(), DEBEZIUM)
    ]
    assert arrow_type(envelopes[0]) == arrow_type(envelopes[1])


def test_parameters_alone_are_no_default_of_connect() -> None:
    assert "connect.default" not in str(fields(AvroOptions(column_attributes="parameters")))
    assert fields(AvroOptions(column_attributes="parameters"))["id"]["type"][1]["connect.parameters"] == {
        "millrace.nullable": "false",
        "millrace.default": "5",
    }


def test_keys_have_the_schema_that_they_had() -> None:
    assert table_schemas("s", ORDERS, DEBEZIUM).key == table_schemas("s", ORDERS, AvroOptions()).key


def test_as_connect_has_it() -> None:
    before, *_ = connect_schema(table_schemas("s", ORDERS, DEBEZIUM, MASKED).envelope)["fields"]
    found = {field["field"]: field for field in before["fields"]}
    assert (found["id"]["default"], found["id"]["optional"]) == (5, True)
    assert found["price"]["default"] == "AJY="
    assert found["price"]["parameters"] == {
        "scale": "2",
        "connect.decimal.precision": "10",
        "millrace.default": "1.50",
    }
    assert "default" not in found["tiny"]


@pytest.mark.skipif(not kernel.built("rows"), reason=NOT_BUILT)
@pytest.mark.parametrize("lacking", [0b11111111, 0b00000101, 0b00001011])
def test_records_are_the_same_bytes(lacking: int) -> None:
    """Of whole rows, of rows with columns missing, and of a date that is none."""
    columns = tuple(replace(one, ordinal=at) for at, one in enumerate(ORDERS.columns[:5]))
    table = replace(ORDERS, columns=columns, key_columns=(columns[0],))
    present = bytes([lacking & everything(5)[0]])
    values = [b"\x01\x00\x00\x00", b"\x02", b"\x80\x00\x00\x03\x32", b"\x01", b"\x00\x00\x00"]
    row = b"\x00" + b"".join(value for at, value in enumerate(values) if lacking >> at & 1)
    written: list[Any] = []
    for options in (AvroOptions(), AvroOptions(column_attributes="parameters"), DEBEZIUM):
        compiled, reference = ways(table, RowsOperation.WRITE, options, after=present)
        assert compiled(row * 2) == reference(row * 2)
        written.append(reference(row * 2))
    assert written[0] == written[1] == written[2]
    assert len(written[0]) == 2

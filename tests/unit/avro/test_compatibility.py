"""Changes of types, each judged by what a reader of Avro gets, and changes of keys, each by the bytes."""

import ctypes
import datetime as dt
import io
import struct
from base64 import b64decode
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import fastavro
import pytest
from fastavro.read import SchemaResolutionError

from millrace.avro import binary
from millrace.avro.compatibility import WrittenKey, altered_columns, likely_sql_type, misread, promotes
from millrace.avro.connect import plain_schema
from millrace.avro.row_records import table_schemas
from millrace.binlog.columns import AvroOptions, codec_of
from millrace.binlog.table import ColumnDefinition, ResolvedTable, column_of

OPTIONS = {
    "native": AvroOptions(),
    "debezium": AvroOptions(
        bigint_unsigned="long", wide_decimal="decimal", temporal="debezium", bit="debezium"
    ),
    "hex": AvroOptions(bigint_unsigned="string", decimal="string", binary="hex"),
    "base64": AvroOptions(decimal="double", binary="base64"),
}
VALUES = {
    "tinyint": ["-128", "7"],
    "smallint unsigned": ["0", "65535"],
    "int": ["-2147483648", "20240229", "2147483647"],
    "int unsigned": ["4294967295"],
    "bigint": ["-9223372036854775808", "9007199254740993"],
    "bigint unsigned": ["9223372036854775807"],
    "decimal(8,2)": ["1.25", "-999999.99"],
    "decimal(12,2)": ["1.25", "9999999999.99"],
    "decimal(12,4)": ["1.2500", "-99999999.9999"],
    "decimal(20,0)": ["1", "99999999999999999999"],
    "decimal(38,2)": ["1.25", "9" * 36 + ".99"],
    "decimal(40,2)": ["1.25", "9" * 38 + ".99"],
    "float": ["1.1", "-3.4e38"],
    "double": ["1.1", "1e300"],
    "bit(1)": ["b'1'"],
    "bit(12)": ["b'101100000001'"],
    "year": ["1901", "2024"],
    "date": ["2024-02-29", "1000-01-01"],
    "time": ["10:20:30", "-838:59:59"],
    "time(6)": ["10:20:30.123456"],
    "datetime": ["2024-02-29 10:11:12"],
    "datetime(3)": ["2024-02-29 10:11:12.123"],
    "datetime(6)": ["2024-02-29 10:11:12.123456"],
    "timestamp": ["2024-02-29 10:11:12"],
    "timestamp(6)": ["2024-02-29 10:11:12.123456"],
    "varchar(20)": ["a", "ä", "2024-02-29", "1.25"],
    "varbinary(20)": ["a", "1.25"],
    "binary(3)": ["abc"],
    "enum('a','b')": ["1"],
    "set('a','b')": ["3"],
    "json": ['{"a": 1}'],
}
"""Types, and values of each as a server shows them."""
PAIRS = [(form, old) for form in OPTIONS for old in VALUES]


def column(sql, name="c"):
    """A column, and what makes plain values for its Avro type."""
    is_text = sql.startswith(("char", "varchar", "tinytext", "text", "enum", "set"))
    definition = ColumnDefinition(
        0,
        name,
        sql,
        nullable=False,
        unsigned="unsigned" in sql,
        charset="utf8mb4" if is_text else None,
        members=("a", "b") if sql.startswith(("enum", "set")) else None,
        key_position=0,
    )
    return column_of(definition, mariadb=False)


def value_of(sql, codec, text):
    if sql.startswith("bit"):
        return int(text[2:-1], 2)
    if "char" in sql:
        return text
    return text.encode() if "binary" in sql else codec.from_selected(text.encode())


def plain_values(sql, options):
    codec = codec_of(column(sql))
    convert = codec.avro_decoder(options) or (lambda payload: payload)
    for text in VALUES[sql]:
        if sql == "json":
            yield text
        elif sql.startswith("timestamp"):
            moment = dt.datetime.fromisoformat(text + "+00:00")
            micros = round(moment.timestamp()) * 10**6 + moment.microsecond
            yield micros if options.temporal == "logical" else moment.isoformat().replace("+00:00", "Z")
        else:
            payload, code = codec.encode(value_of(sql, codec, text)), "<" + codec.struct_code
            if codec.struct_code:
                (payload,) = struct.unpack(code, struct.pack(code, payload))
            yield convert(payload)


EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a DATETIME has no zone
MEANT = {
    "io.debezium.time.Date": lambda n: EPOCH.date() + dt.timedelta(n),
    "io.debezium.time.Timestamp": lambda n: EPOCH + dt.timedelta(milliseconds=n),
    "io.debezium.time.MicroTimestamp": lambda n: EPOCH + dt.timedelta(microseconds=n),
    "io.debezium.time.MicroTime": lambda n: dt.timedelta(microseconds=n),
    "io.debezium.time.ZonedTimestamp": dt.datetime.fromisoformat,
    "io.debezium.data.Bits": lambda data: int.from_bytes(data, "little"),
    "date": lambda n: EPOCH.date() + dt.timedelta(n),
    "local-timestamp-micros": lambda n: EPOCH + dt.timedelta(microseconds=n),
    "timestamp-micros": lambda n: EPOCH.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=n),
    "hex": bytes.fromhex,
    "base64": b64decode,
}
"""What a value means: by Debezium's documentation of its semantic types, and by Avro's specification."""


def meaning(value, avro, digits=None):
    """Return what kind of value it is, and the value, of what a reader has got by a schema.

    Of a string of digits for bytes only documentation says what ``digits`` they are.
    """
    rest = avro if isinstance(avro, dict) else {}
    name = rest.get("logicalType", rest.get("connect.name", digits))
    if name == "decimal" and isinstance(value, bytes):
        with localcontext(prec=100):
            value = Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-rest["scale"])
        if len(value.as_tuple().digits) > rest["precision"]:
            return "too many digits", value
    elif isinstance(value, int | str | bytes) and name in MEANT:
        try:
            value = MEANT[name](value)
        except (ValueError, OverflowError, TypeError):
            return "none", value
    if isinstance(value, dt.datetime):
        return "moment" if value.tzinfo else "datetime", value
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return "number" if number else type(value).__name__, value


def by_fastavro(data, written, reader, digits):
    """Read as Python's programs do; fastavro goes by the logical types of the writer."""
    found = fastavro.schemaless_reader(io.BytesIO(data), written, reader)
    return meaning(
        found, written if isinstance(found, bytes | int | str) and reader is None else reader, digits
    )


def by_the_specification(data, written, reader, digits):
    """Resolve the types, and take the value for what the reader's schema says, as Java's programs do."""
    found = fastavro.schemaless_reader(io.BytesIO(data), plain_schema(written), plain_schema(reader))
    return meaning(found, reader, digits)


def is_same(was, now, avro):
    kind = avro["type"] if isinstance(avro, dict) else avro
    if was[0] != now[0]:
        return False
    if kind in ("float", "double") and was[0] == "number":  # which round as the server does
        exact = float(was[1])
        return now[1] in (exact, ctypes.c_float(exact).value)
    return was[1] == now[1]


@pytest.mark.parametrize(("form", "old"), PAIRS)
def test_a_type_is_compatible_where_readers_get_the_same_values(form, old):
    options = OPTIONS[form]
    written = codec_of(column(old)).avro_type(options)
    records = [binary.writer(written)(value) for value in plain_values(old, options)]
    wrong = {}
    digits = {sql: options.binary if "binary" in sql else None for sql in VALUES}
    for new in VALUES:
        reader, found = codec_of(column(new)).avro_type(options), []
        for data in records:
            was = by_the_specification(data, written, written, digits[old])
            for read in (by_fastavro, by_the_specification):
                try:
                    found.append((was, read(data, written, reader, digits[new])))
                except (fastavro.schema.SchemaParseException, SchemaResolutionError, UnicodeDecodeError):
                    found.append((was, ("none", None)))
        if all(is_same(*values, reader) for values in found) != promotes(written, reader):
            wrong[new] = found[:2]
    assert wrong == {}


@pytest.mark.parametrize(
    ("form", "old", "new", "keeps"),
    [
        ("native", "char(9)", "varchar(20)", True),
        ("native", "varchar(20)", "tinytext", True),
        ("native", "text", "varchar(20)", True),
        ("native", "varchar(20)", "char(9)", False),  # which cuts spaces
        ("native", "text", "blob", False),
        ("native", "blob", "varbinary(9)", True),
        ("native", "binary(3)", "blob", True),
        ("native", "blob", "binary(3)", False),  # which fills up
        ("native", "bit(12)", "binary(12)", False),
        ("native", "varbinary(9)", "bit(12)", False),
        ("native", "int", "year", False),  # 24 is 2024
        ("native", "year", "int", True),
        ("native", "bigint unsigned", "decimal(20,0)", True),
        ("native", "timestamp", "timestamp(3)", True),
        ("native", "varchar(36)", "uuid", False),
        ("native", "uuid", "varchar(36)", True),
        ("native", "inet4", "inet6", False),
        ("debezium", "timestamp", "timestamp(3)", False),  # a text with three digits
        ("hex", "varchar(20)", "varbinary(20)", False),
        ("hex", "tinyblob", "tinytext", False),
        ("hex", "varbinary(20)", "blob", True),
        ("hex", "decimal(40,2)", "decimal(40,4)", False),
        ("hex", "decimal(40,2)", "decimal(42,2)", True),
        ("hex", "varchar(20)", "bigint unsigned", False),  # 007
        ("base64", "decimal(8,2)", "decimal(8,1)", False),
        ("base64", "decimal(8,2)", "decimal(12,4)", True),
    ],
)
def test_a_key_continues_where_each_value_stays_as_it_is(form, old, new, keeps):
    was, now = (
        table_schemas("s", ResolvedTable("d", "t", (one,), (one,), "catalog"), OPTIONS[form])
        for one in (column(old), column(new))
    )
    continued = WrittenKey(was.key, was.key).continued(now.key, now.key_types)
    assert (continued is not None) is keeps


@pytest.mark.parametrize("sql", ["char(9)", "binary(3)", "bit(4)", "int", "blob"])
def test_a_key_of_an_earlier_version_continues(sql):
    one = column(sql)
    now = table_schemas("s", ResolvedTable("d", "t", (one,), (one,), "catalog"), AvroOptions())
    fields = [{name: each[name] for name in ("name", "type")} for each in now.key["fields"]]
    was = {**now.key, "fields": fields}
    assert WrittenKey(was, was).continued(now.key, now.key_types) == WrittenKey(was, now.key)


def envelope(**columns):
    """The schema of a table's values; a value of ``columns`` is a type, or a type and a former name."""
    given = {name: each if isinstance(each, tuple) else (each,) for name, each in columns.items()}
    made = [replace(column(sql, name), ordinal=at) for at, (name, (sql, *_)) in enumerate(given.items())]
    former = {at: [column(sql, old[0])] for at, (sql, *old) in enumerate(given.values()) if old}
    table = ResolvedTable("d", "t", tuple(made), (), "catalog")
    return table_schemas("s", table, AvroOptions(), former=former).envelope


def in_words(altered):
    return [one.in_words(likely_sql_type(one.was), likely_sql_type(one.now)) for one in altered]


def test_the_columns_that_a_schema_reads_wrongly_are_named():
    first = envelope(id="int", price="decimal(8,2)", day="date", kind="enum('a','b')")
    assert misread([], first) == []
    assert (
        misread([first], envelope(id="bigint", price="decimal(12,2)", day="date", kind="varchar(20)")) == []
    )
    assert in_words(
        misread([first], envelope(id="int", cost=("decimal(12,4)", "price"), day="datetime"))
    ) == [
        "column cost (price before) changed from DECIMAL(8,2) to DECIMAL(12,4)",
        "column day changed from DATE to DATETIME",
    ]


@pytest.mark.parametrize(
    ("old", "new", "of_key", "said"),
    [
        (
            {"a": "int", "b": "bigint"},
            {"a": "int", "b": "varchar(20)"},
            False,
            ["b changed from BIGINT to text"],
        ),
        ({"b b": "decimal(8,2)"}, {"b b": "date"}, False, ["b b changed from DECIMAL(8,2) to DATE"]),
        ({"b": "datetime"}, {"b": "datetime(3)"}, False, []),
        ({"a": "int", "b": "int"}, {"a": "int", "c": "varchar(20)"}, False, []),
        ({"a": "int"}, {"a": "binary(3)"}, True, ["a changed from BIGINT to binary text"]),
        ({"a": "int"}, {"b": "date", "a": "int"}, True, ["b DATE is new in the key"]),
        ({"a": "int", "b": "date"}, {"a": "int"}, True, ["b DATE is no longer in the key"]),
        ({"a": "int"}, {"a": "int"}, True, []),
    ],
)
def test_columns_that_another_schema_has_otherwise(old, new, of_key, said):
    columns = [
        tuple(replace(column(sql, name), ordinal=at) for at, (name, sql) in enumerate(each.items()))
        for each in (old, new)
    ]
    schemas = [
        table_schemas("s", ResolvedTable("d", "t", each, each, "catalog"), AvroOptions()) for each in columns
    ]
    altered = altered_columns(*[each.key if of_key else each.envelope for each in schemas])
    assert in_words(altered) == [f"column {each}" for each in said]


def test_a_column_is_compared_with_all_that_had_its_name():
    """It may have been dropped in between, and have another name now."""
    first, without = envelope(id="int", price="decimal(8,2)"), envelope(id="int")
    assert misread([first, without], envelope(id="int", price="decimal(8,2)")) == []
    assert len(misread([first, without], envelope(id="int", price="decimal(12,4)"))) == 1
    renamed = envelope(id="int", cost=("decimal(12,2)", "price"))
    assert misread([first, without], renamed) == []
    assert len(misread([first, renamed], envelope(id="int", cost="decimal(12,4)", price="decimal(9,1)"))) == 2


def test_what_was_accepted_once_is_not_refused_again():
    first, second = envelope(price="decimal(8,2)"), envelope(price="decimal(12,4)")
    assert len(misread([first], second)) == 1
    assert misread([first, second], second) == []
    assert misread([first, second], envelope(price="decimal(12,4)", more="int")) == []
    assert misread([first, second], first) == []  # it is there already, and the newest stays the newest


@pytest.mark.parametrize(
    "foreign",
    [
        "string",
        ["null", "string"],
        {"type": "record", "name": "Envelope", "fields": []},
        {"type": "record", "name": "Envelope", "fields": [{"name": "before", "type": "string"}]},
        {"type": "record", "name": "Other", "fields": [{"name": "id", "type": "string"}]},
    ],
)
def test_a_schema_of_somebody_else_is_not_compared(foreign: Any) -> None:
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": ["null", "int"]}]}
    fields = [{"name": "before", "type": ["null", row]}, {"name": "source", "type": "string"}]
    own = {"type": "record", "name": "Envelope", "fields": fields}
    assert misread([foreign], own) == misread([own, foreign], own) == []
    assert altered_columns(foreign, own) == []

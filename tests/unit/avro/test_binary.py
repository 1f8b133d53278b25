"""The bound writers give what fastavro reads back, and what fastavro writes."""

import io
import math

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.avro import binary

INT64 = st.integers(-(2**63), 2**63 - 1)
GEOMETRY = {
    "type": "record",
    "name": "G",
    "fields": [{"name": "wkb", "type": "bytes"}, {"name": "srid", "type": ["null", "int"]}],
}
CASES = [
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", INT64),
    ({"type": "long", "logicalType": "timestamp-micros"}, INT64),
    ("boolean", st.booleans()),
    ("double", st.floats(allow_nan=False)),
    ("float", st.floats(allow_nan=False, width=32)),
    ("bytes", st.binary() | st.just(bytes(20_000))),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, st.binary()),
    ("string", st.text() | st.just("ü" * 20_000)),
    ({"type": "array", "items": "float"}, st.lists(st.floats(allow_nan=False, width=32))),
    ({"type": "map", "values": "string"}, st.dictionaries(st.text(), st.text())),
    ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, st.sampled_from("ab")),
    (GEOMETRY, st.fixed_dictionaries({"wkb": st.binary(), "srid": st.none() | st.integers(0, 10**6)})),
]


def fastavro_bytes(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, plain(schema), value)
    return out.getvalue()


def plain(schema):
    """Without logical types, which fastavro would convert."""
    if isinstance(schema, list):
        return [plain(branch) for branch in schema]
    return schema["type"] if isinstance(schema, dict) and "logicalType" in schema else schema


@pytest.mark.parametrize(("schema", "values"), CASES, ids=lambda case: str(case)[:40])
@pytest.mark.parametrize("nullable", [False, True])
def test_same_bytes_as_fastavro(schema, values, nullable):
    if nullable:
        schema, values = ["null", schema], st.none() | values
    write = binary.writer(schema)

    @given(values)
    def check(value):
        assert write(value) == fastavro_bytes(schema, value)

    check()


@given(INT64)
@example(0)
@example(-1)
@example(2**63 - 1)
@example(-(2**63))
@example((1 << 13) - 1)
@example(1 << 13)
@example(1 << 27)
@example(1 << 41)
def test_long(value):
    assert binary.long(value) == fastavro_bytes("long", value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**80])
def test_long_beyond_64_bits_is_refused(value):
    with pytest.raises(OverflowError):
        binary.long(value)
    with pytest.raises(OverflowError):
        binary.writer(["null", "long"])(value)


def test_not_a_number_survives():
    data = binary.writer(["null", "double"])(math.nan)
    assert math.isnan(fastavro.schemaless_reader(io.BytesIO(data), ["null", "double"], None))


@given(st.lists(st.text()))
def test_array_of_strings(values):
    assert binary.array_of_strings(values) == fastavro_bytes({"type": "array", "items": "string"}, values)


@pytest.mark.parametrize(
    "schema", ["uuid", ["string", "long"], ["null", "string", "bytes"], "millrace.Value"]
)
def test_schema_beyond_the_tables_is_refused(schema):
    with pytest.raises(ValueError, match="no writer"):
        binary.writer(schema)


def test_name_that_is_no_utf8_is_escaped():
    name = b"caf\xe9".decode(errors="surrogateescape")
    assert binary.string(name) == fastavro_bytes("string", "caf\\udce9")

"""The kernel writes JSON as the reference does, and leaves to it what it should, whatever the bytes are."""

import random
import struct

import pytest

from millrace import kernel
from millrace.avro.registry import WIRE_PREFIX_SIZE
from millrace.binlog.columns import ColumnType
from millrace.binlog.columns.column import LengthMetadata, NoMetadata, RealMetadata
from tests.unit.rowmapper.test_json_format import LONG, TEXT, Table

pytestmark = pytest.mark.skipif(not kernel.built("json_text"), reason="the kernel is not built (make kernel)")

COLUMNS = {
    "id": LONG,
    "v": TEXT,
    "b": (ColumnType.VARCHAR, LengthMetadata(100), "binary"),
    "f": (ColumnType.FLOAT, RealMetadata(4), None),
    "r": (ColumnType.DOUBLE, RealMetadata(8), None),
    "größe": (ColumnType.LONGLONG, NoMetadata(), None),
}
TEXTS = ["", "x", "".join(map(chr, range(128))), "ä日\U0001f600", '"\\\n\t\r\b\f\x00\x1f\x7f', "x" * 5000]
BYTES = [b"", b"a", b"ab", b"abc", bytes(range(256))]
FLOATS = [0.0, -0.0, 1.1, -2.5, 3.4028234663852886e38, 1e-45, 16777216.0, 0.1, 123456.78]
DOUBLES = [0.0, -0.0, 0.1, 1e300, 5e-324, 1e16, 123456789.125, -1e22]
LONGS = [0, -1, 2**63 - 1, -(2**63), 10**18, -10]


def both(name="json"):
    """A table's records as the reference writes them, with the kernel's writer beside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_enabled", True)
        compiled = Table(COLUMNS, name)
        patch.setattr(kernel, "_enabled", False)
        return compiled, Table(COLUMNS, name)


def rows(seed, count=200):
    chance = random.Random(seed)

    def one(values):
        return chance.choice([None, *values])

    def nearest(value):
        return None if value is None else struct.unpack("<f", struct.pack("<f", value))[0]

    return [
        (number, one(TEXTS), one(BYTES), nearest(one(FLOATS)), one(DOUBLES), one(LONGS))
        for number in range(count)
    ]


def avro(table, row):
    """The Avro form of a row's value."""
    found = []
    original, table.format.record = table.format.record, lambda data: found.append(data) or data
    try:
        table.records(row)
    finally:
        table.format.record = original
    return found[1]


@pytest.mark.parametrize("name", ["json", "json-schema"])
def test_rows(name):
    compiled, reference = both(name)
    assert compiled.records(*rows(1)) == reference.records(*rows(1))
    schema = compiled.format._schemas[12]
    data = avro(compiled, rows(2)[3])
    assert schema.native.write(data, WIRE_PREFIX_SIZE, schema.before, schema.after) is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_has_no_number_for_is_left_to_the_reference(value):
    compiled, reference = both()
    row = (1, None, None, None, value, None)
    schema = compiled.format._schemas[12]
    assert schema.native.write(avro(compiled, row), WIRE_PREFIX_SIZE, b"", b"") is None
    assert compiled.records(row) == reference.records(row)


def test_text_that_is_no_utf_8_is_left_to_the_reference():
    compiled, reference = both()
    data = avro(compiled, (1, "xyz", None, None, None, None)).replace(b"xyz", b"x\xffz")
    assert compiled.format._schemas[12].native.write(data, WIRE_PREFIX_SIZE, b"", b"") is None
    assert compiled.format.record(data) == reference.format.record(data)
    assert "x\ufffdz".encode() in compiled.format.record(data)


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes(seed):
    """What the kernel writes of damaged records is what the reference does; it reads no byte beside them."""
    compiled, reference = both()
    native, chance = compiled.format._schemas[12].native, random.Random(seed)
    for row in rows(seed, 20):
        whole = avro(compiled, row)
        assert native.write(whole, WIRE_PREFIX_SIZE, b"", b"") == reference.format.record(whole)
        assert native.write(whole, len(whole), b"", b"") is None
        assert native.write(whole, len(whole) + 1, b"", b"") is None
        for _ in range(50):
            data = bytearray(whole[: chance.randint(WIRE_PREFIX_SIZE, len(whole))])
            data += bytes(chance.choices(range(256), k=chance.choice((0, 0, 20))))
            for _ in range(chance.randint(0, 3)):
                if len(data) > WIRE_PREFIX_SIZE:
                    data[chance.randrange(WIRE_PREFIX_SIZE, len(data))] = chance.choice(
                        (0, 1, 2, 127, 128, 255)
                    )
            text = native.write(bytes(data), WIRE_PREFIX_SIZE, b"", b"")
            if text is not None:
                assert text == reference.format.record(bytes(data))


@pytest.mark.parametrize(
    ("nodes", "links"),
    [([], []), ([(8, 0, 1)], []), ([(8, 0, 1)], [(1, b"")]), ([(10, 0, 0)], []), ([(-1, 0, 0)], [])],
)
def test_plans_that_are_none(nodes, links):
    from millrace.kernel.json_text import JsonWriter  # noqa: PLC0415 - only where it is built

    with pytest.raises(ValueError):
        JsonWriter(nodes, links)


def test_items_that_take_no_bytes_are_left_to_the_reference():
    from millrace.kernel.json_text import JsonWriter  # noqa: PLC0415 - only where it is built

    many = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x00"
    assert JsonWriter([(9, 0, 1), (0, 0, 0)], [(1, b"")]).write(many, 0, b"", b"") is None
    assert JsonWriter([(9, 0, 1), (2, 0, 0)], [(1, b"")]).write(many, 0, b"", b"") is None
    assert (
        JsonWriter([(9, 0, 1), (2, 0, 0)], [(1, b"")]).write(b"\x04\x02\x03\x00", 0, b"<", b">")
        == b"<[1,-2]>"
    )

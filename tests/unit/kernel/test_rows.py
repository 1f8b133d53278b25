"""The kernel for rows gives what the reference gives: bytes and errors; for damaged and odd images too."""

import datetime as dt
import random
import struct
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.avro import binary
from millrace.binlog.columns import AvroOptions, Column, ColumnType, codec_of
from millrace.binlog.columns.charsets import charset
from millrace.binlog.columns.declaration import NativeKind
from millrace.binlog.columns.temporals import Date, DateTime, Timestamp
from millrace.binlog.errors import UnrepresentableError
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.table import ResolvedTable
from tests.column_images import COLUMNS as IMAGES
from tests.column_images import some_images
from tests.columns import column
from tests.unit.columns.test_vectors import EVERY, VECTORS, Vector, image_of
from tests.unit.kernel.both_rows import NOT_BUILT, Way, ways
from tests.unit.kernel.json_documents import DOCUMENTS, binary_json

compiled_rows = pytest.importorskip("millrace.kernel.rows", reason=NOT_BUILT)

OPTIONS = [
    AvroOptions(bigint_unsigned=unsigned, wide_decimal=wide)
    for unsigned in ("decimal", "long", "string")
    for wide in ("string", "decimal")
] + [
    AvroOptions(decimal="string", temporal="debezium", bit="debezium", binary="base64"),
    AvroOptions(decimal="double", temporal="connect", binary="hex"),
]


def table(columns: Sequence[Column], key: Sequence[int] = ()) -> ResolvedTable:
    """Number and name columns; ``key`` has the ordinals of the key's."""
    made = tuple(
        Column(**{**fields(one), "ordinal": ordinal, "name": f"c{ordinal}"})
        for ordinal, one in enumerate(columns)
    )
    return ResolvedTable("shop", "orders", made, tuple(made[ordinal] for ordinal in key), "table_map")


def fields(one: Column) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


@EVERY
def test_real_values(vector: Vector) -> None:
    for options, key in product(OPTIONS, ((), (0,))):
        compiled, reference = ways(table([vector.column], key), RowsOperation.WRITE, options)
        for rows in (image_of(vector), image_of(vector) * 3, image_of(vector) + b"\x01"):
            assert compiled(rows) == reference(rows)


@pytest.mark.parametrize("operation", RowsOperation)
def test_events_in_one_block(operation: RowsOperation) -> None:
    """An event of one record is compared with the one before, unless that has several."""
    chance = random.Random(operation.value)
    compiled, _ = ways(table([column(ColumnType.LONG), column(ColumnType.LONG)], [0]), operation)

    def image() -> bytes:
        return b"\x00" + struct.pack("<ii", chance.randrange(2), chance.randrange(2))

    for _ in range(30):
        block = compiled_rows.RowBlock(b"", 5)
        for _ in range(20):
            sides = 2 if operation is RowsOperation.UPDATE else 1
            rows = b"".join(image() for _ in range(sides * chance.choice((1, 1, 1, 2, 3))))
            assert compiled._write(rows, block) is None
        assert block.timestamps() == [5] * len(block)
        compiled._compare_columns(block)


TEXT = st.text(max_size=6)
INTEGERS = {
    ColumnType.TINY: 8,
    ColumnType.SHORT: 16,
    ColumnType.INT24: 24,
    ColumnType.LONG: 32,
    ColumnType.LONGLONG: 64,
}
DAYS = st.builds(Date, st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31))


def some(one: Column) -> st.SearchStrategy[bytes]:
    """Images of a column, those among them that no server writes."""
    return st.sampled_from([image.payload for image in some_images(0, one, 60)])


def times(digits: int) -> st.SearchStrategy[dt.timedelta]:
    unit = 10 ** (6 - digits)
    most = 3_020_399_999_999 // unit
    return st.integers(-most, most).map(lambda units: dt.timedelta(microseconds=units * unit))


def datetimes(digits: int) -> st.SearchStrategy[DateTime]:
    unit = 10 ** (6 - digits)
    clock = (st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
    fraction = st.integers(0, 999_999 // unit).map(lambda units: units * unit)
    return st.builds(DateTime, st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31), *clock, fraction)


def timestamps(digits: int) -> st.SearchStrategy[Timestamp]:
    unit = 10 ** (6 - digits)
    fraction = st.integers(0, 999_999 // unit).map(lambda units: units * unit)
    return st.builds(Timestamp, st.integers(0, 2**32 - 1), fraction)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    powers = st.integers(0, precision * 3).map(lambda bits: min(2**bits, 10**precision - 1))
    numbers = st.integers(0, 10**precision - 1) | powers
    return st.builds(
        lambda number, sign: Decimal((sign, tuple(map(int, str(number))), -scale)), numbers, st.integers(0, 1)
    )


def texts(name: str) -> st.SearchStrategy[bytes]:
    """Text of a character set, and bytes that may be none."""
    codes = st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass"))
    parts = [
        b"a",
        b"\x80",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x92\xa9",
        b"\xf4\x90\x80\x80",
        b"\xe0\x80\x80",
        b"\xc0\xaf",
        b"\xf0\x80\x80\x80",
        b"\xff",
    ]
    joined = st.lists(st.sampled_from(parts), max_size=12).map(b"".join)
    return codes | joined | st.binary(max_size=12) | st.binary(min_size=120, max_size=140)


MEMBERS = ("", "é", "x,y", "long member")

COLUMNS: list[tuple[Column, st.SearchStrategy[Any]]] = [
    *((column(one), st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)) for one, bits in INTEGERS.items()),
    *((column(one, unsigned=True), st.integers(0, (1 << bits) - 1)) for one, bits in INTEGERS.items()),
    *(
        (column(ColumnType.NEWDECIMAL, *form), decimals(*form))
        for form in (
            (1, 0),
            (1, 1),
            (9, 0),
            (10, 2),
            (18, 9),
            (20, 19),
            (38, 10),
            (38, 38),
            (39, 1),
            (65, 30),
        )
    ),
    (column(ColumnType.FLOAT, 4), st.floats(width=32)),
    (column(ColumnType.DOUBLE, 8), st.floats()),
    (column(ColumnType.YEAR), st.just(0) | st.integers(1901, 2155)),
    (column(ColumnType.DATE), DAYS),
    *((one, some(one)) for one in IMAGES),
    *((column(ColumnType.TIME2, digits), times(digits)) for digits in (0, 2, 4, 6)),
    *((column(ColumnType.DATETIME2, digits), datetimes(digits)) for digits in (0, 2, 4, 6)),
    *((column(ColumnType.TIMESTAMP2, digits), timestamps(digits)) for digits in (0, 2, 4, 6)),
    (column(ColumnType.TIME, 0), times(0)),
    (column(ColumnType.BIT, 1), st.integers(0, 1)),
    (column(ColumnType.BIT, 61), st.integers(0, 2**61 - 1)),
    *(
        (column(ColumnType.VARCHAR, length, charset=name), texts(name))
        for name in (
            "utf8mb4",
            "utf8mb3",
            "latin1",
            "ascii",
            "cp1251",
            "swe7",
            "gbk",
            "utf16",
            "binary",
            None,
        )
        for length in (255, 256)
    ),
    (column(ColumnType.STRING, 16, charset="binary"), st.binary(max_size=16)),
    (column(ColumnType.STRING, 40, charset="utf8mb4"), texts("utf8mb4")),
    *(
        (column(ColumnType.BLOB, size, charset=name), texts("utf8mb4"))
        for size in (1, 2, 3, 4)
        for name in ("binary", "utf8mb4")
    ),
    (column(ColumnType.ENUM, 1, members=MEMBERS), st.integers(0, 6)),
    (column(ColumnType.ENUM, 2, members=MEMBERS), st.integers(0, 6)),
    (column(ColumnType.ENUM, 1), st.integers(0, 255)),
    *(
        (column(ColumnType.SET, size, members=members), st.integers(0, (1 << bits) - 1))
        for size, members, bits in (
            (1, MEMBERS, 5),
            (3, MEMBERS, 4),
            (8, tuple(map(str, range(64))), 64),
            (8, None, 64),
        )
    ),
    (column(ColumnType.JSON, 4), st.binary(max_size=3) | DOCUMENTS),
    (column(ColumnType.JSON, 2, whole_doubles=True), DOCUMENTS),
    (column(ColumnType.GEOMETRY, 4), st.binary(max_size=9)),
]


def raw_value(one: Column, value: Any) -> bytes:
    codec = codec_of(one)
    payload = value if isinstance(value, bytes) else codec.encode(value)
    if codec.struct_code:
        return payload if isinstance(payload, bytes) else struct.pack("<" + codec.struct_code, payload)
    return len(payload).to_bytes(codec.length_bytes, "little") + payload


@st.composite
def tables_and_rows(draw: st.DrawFn) -> tuple[ResolvedTable, RowsOperation, bytes, bytes, bytes]:
    """A table, an operation, the bitmaps of present columns, rows."""
    chosen = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=12))
    key = draw(st.lists(st.integers(0, len(chosen) - 1), max_size=3, unique=True))
    resolved = table([one for one, _ in chosen], key)
    operation = draw(st.sampled_from(list(RowsOperation)))
    count = len(chosen)
    bitmaps = st.just((1 << count) - 1) | st.integers(1, (1 << count) - 1)
    before, after = draw(bitmaps), draw(bitmaps)
    rows = b""
    for _ in range(draw(st.integers(1, 4))):
        for bits, missing in ((before, RowsOperation.WRITE), (after, RowsOperation.DELETE)):
            if operation is missing:
                continue
            present = [ordinal for ordinal in range(count) if bits >> ordinal & 1]
            nulls = draw(st.just(0) | st.integers(0, (1 << len(present)) - 1))
            rows += nulls.to_bytes((len(present) + 7) // 8, "little")
            for index, ordinal in enumerate(present):
                if not nulls >> index & 1:
                    one, values = chosen[ordinal]
                    rows += raw_value(one, draw(values))
    size = (count + 7) // 8
    return resolved, operation, before.to_bytes(size, "little"), after.to_bytes(size, "little"), rows


@given(tables_and_rows(), st.sampled_from(OPTIONS), st.sampled_from([120, 200, 1 << 20]), st.randoms())
def test_any_table(
    case: tuple[ResolvedTable, RowsOperation, bytes, bytes, bytes],
    options: AvroOptions,
    limit: int,
    chance: random.Random,
) -> None:
    resolved, operation, before, after, rows = case
    compiled, reference = ways(resolved, operation, options, before=before, after=after, limit=limit)
    assert compiled(rows) == reference(rows)
    damaged = bytearray(rows)
    for _ in range(chance.randint(1, 3)):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    del damaged[chance.randint(1, 2 * len(damaged)) :]
    assert compiled(bytes(damaged)) == reference(bytes(damaged))


@pytest.mark.parametrize("operation", list(RowsOperation))
def test_damaged_images(operation: RowsOperation) -> None:
    """Thousands of changes of the bytes of real values, all types in one row."""
    chance = random.Random(4)
    vectors = [vector for vector in VECTORS if len(vector.payload) < 200]
    made = 0
    while made < 2000:
        chosen = chance.sample(vectors, 9)
        resolved = table([vector.column for vector in chosen], [chance.randrange(9)])
        compiled, reference = ways(resolved, operation)
        image = b"\0\0" + b"".join(image_of(vector)[1:] for vector in chosen)
        rows = image * (6 if operation is RowsOperation.UPDATE else 3)
        assert compiled(rows) == reference(rows)
        for _ in range(50):
            damaged = bytearray(rows)
            for _ in range(chance.choice((1, 1, 2, 8))):
                damaged[chance.randrange(len(damaged))] = chance.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
                )
            if chance.random() < 0.3:
                del damaged[chance.randrange(len(damaged)) :]
            assert compiled(bytes(damaged)) == reference(bytes(damaged))
            made += 1


@pytest.mark.parametrize("name", ["utf8mb3", "utf8mb4", "latin1", "ascii", "koi8r", "tis620"])
def test_every_code(name: str) -> None:
    one = column(ColumnType.VARCHAR, 255, charset=name)
    compiled, reference = ways(table([one]), RowsOperation.WRITE)
    codes = [bytes((first,)) for first in range(256)]
    if name.startswith("utf8"):
        assert charset(name).texts is None
        seconds = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF)
        ends = (b"", b"\x80", b"\x80\x80", b"\x80a", b"\xc2\x80")
        codes += [
            bytes((first, second)) + end for first in range(0x80, 256) for second in seconds for end in ends
        ]
    # Eight bytes are looked at together: a code is at any place in them, and in what is left at the end.
    texts = [b"1" * (at % 19) + code + b"2" * (at % 11) for at, code in enumerate(codes)]
    rows = b"".join(b"\0" + raw_value(one, text) for text in texts)
    assert compiled(rows) == reference(rows)


def test_days_of_the_calendar() -> None:
    one = column(ColumnType.DATE)
    compiled, reference = ways(table([one]), RowsOperation.WRITE)
    years = (
        0,
        1,
        4,
        100,
        400,
        1582,
        1600,
        1899,
        1900,
        1969,
        1970,
        1999,
        2000,
        2023,
        2024,
        2100,
        9999,
        10_000,
    )
    rows = b"".join(
        b"\0" + (year << 9 | month << 5 | day).to_bytes(3, "little")
        for year in years
        for month in range(14)
        for day in range(32)
    )
    assert compiled(rows) == reference(rows)


def test_what_is_unusual_goes_by_the_reference_row_by_row() -> None:
    """A zero date among others does not make the whole event slow, nor the numbers wrong."""
    resolved = table([column(ColumnType.LONG), column(ColumnType.DATE)], [0])
    compiled, reference = ways(resolved, RowsOperation.UPDATE)
    good, zero = (raw_value(resolved.columns[1], day) for day in (Date(2024, 2, 29), Date(0, 0, 0)))
    same = b"\0\x01\0\0\0" + good
    other_key = b"\0\x02\0\0\0" + good
    lost = b"\0\x03\0\0\0" + zero
    rows = same + same + same + other_key + lost + lost + lost + other_key + same + same
    records = compiled(rows)
    assert isinstance(records, list)
    assert len(records) == 7
    assert compiled.slow == 2
    assert records == reference(rows)


def test_key_columns_that_an_image_lacks() -> None:
    resolved = table([column(ColumnType.TINY), column(ColumnType.TINY), column(ColumnType.TINY)], [2, 0])
    for operation, before, after, rows in (
        (RowsOperation.UPDATE, b"\x05", b"\x02", b"\0\x01\x02\0\x03"),
        (RowsOperation.UPDATE, b"\x05", b"\x06", b"\0\x01\x02\0\x03\x04"),
        (RowsOperation.UPDATE, b"\x01", b"\x02", b"\0\x01\0\x02"),
        (RowsOperation.DELETE, b"\x05", None, b"\0\x01\x02"),
        (RowsOperation.DELETE, b"\x04", None, b"\0\x01"),
        (RowsOperation.WRITE, None, b"\x07", b"\x04\x01\x02"),
    ):
        compiled, reference = ways(resolved, operation, before=before, after=after)
        assert compiled(rows) == reference(rows)


def test_the_largest_records() -> None:
    """Up to the limit natively; beyond it the largest column becomes a reference, or the row is refused."""
    resolved = table([column(ColumnType.BLOB, 2, charset="binary"), column(ColumnType.TINY)])
    for limit in (5, 200, 250):
        compiled, reference = ways(resolved, RowsOperation.WRITE, limit=limit)
        outcomes = [
            compiled(b"\0" + raw_value(resolved.columns[0], bytes(size)) + b"\x01") for size in range(200)
        ]
        assert outcomes == [
            reference(b"\0" + raw_value(resolved.columns[0], bytes(size)) + b"\x01") for size in range(200)
        ]
        assert (UnrepresentableError in outcomes) == (limit == 5)


def test_the_largest_records_of_an_update_of_the_key() -> None:
    """The delete may fit and the insert not: then the reference writes both, and shortens the one."""
    columns = [column(ColumnType.LONG), column(ColumnType.BLOB, 2, charset="binary")]
    resolved = table(columns, [0])

    def image(key: int, size: int) -> bytes:
        return b"\0" + key.to_bytes(4, "little") + size.to_bytes(2, "little") + bytes(size)

    for first, second in ((10, 2000), (2000, 10), (2000, 2000)):
        compiled, reference = ways(resolved, RowsOperation.UPDATE, limit=1000)
        rows = image(1, 5) + image(2, 5) + image(3, first) + image(4, second) + image(5, 5) + image(6, 5)
        assert compiled(rows) == reference(rows)
        assert compiled.slow == 1


def test_what_is_no_bytes_is_refused() -> None:
    plan = (0, 0, 1, 0, 0, ())
    for key, prefix, value in (([(0, False)], None, b""), (None, None, None)):
        with pytest.raises(TypeError):
            compiled_rows.RowsKernel([plan], [bytes], None, [True], key, prefix, value, 100)
    for converter, frame in ((lambda _: None, (b"", b"", b"")), (bytes, (b"", None, b""))):
        native = compiled_rows.RowsKernel([plan], [converter], None, [True], None, None, b"", 100)
        with pytest.raises(TypeError):
            native.write(b"\x00\x01", [], (frame,), 1, 1, None)


JSON_TABLE = table([column(ColumnType.JSON, 4)])
JSON_TABLE_OF_57 = table([column(ColumnType.JSON, 4, whole_doubles=True)])


def json_rows(*documents: bytes) -> bytes:
    return b"".join(b"\0" + raw_value(JSON_TABLE.columns[0], document) for document in documents)


@settings(max_examples=300)
@given(DOCUMENTS, st.randoms())
def test_json(document: bytes, chance: random.Random) -> None:
    compiled, reference = ways(JSON_TABLE, RowsOperation.WRITE)
    damaged = []
    for _ in range(20):
        copy = bytearray(document)
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(copy))
            copy[at] = chance.choice((0, 1, copy[at] ^ 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        damaged.append(bytes(copy[: chance.randint(1, 3 * len(copy))]))
    rows = json_rows(document, *damaged)
    assert compiled(rows) == reference(rows)


def test_json_of_honest_servers_is_not_asked_for() -> None:
    """What the servers write goes by the kernel alone, but for types that JSON does not have."""
    document = {"a": [1, -1, 1.5, None, True, False, 1 << 40, -(1 << 40), "é\n"], "bb": {}, "cc": {"": []}}
    compiled, _ = ways(JSON_TABLE, RowsOperation.WRITE)
    assert compiled.native is not None
    for large in (False, True):
        writer = compiled_rows.RowsKernel(
            [(NativeKind.JSON, 4, 0, 0, 0, ())], [None.__class__], None, [True], None, None, b"", 1 << 20
        )
        records: list[Any] = []
        assert writer.write(
            json_rows(binary_json(document, large=large)), records, ((b"", b"", b""),), 1, 1, None
        )
        assert b'{"a": [1, -1, 1.5, null, true, false' in records[0][1]


def test_doubles_in_json() -> None:
    chance = random.Random(9)
    numbers = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(20_000)]
    numbers += [chance.random() * 10 ** chance.randrange(-20, 20) for _ in range(20_000)]
    numbers += [float(chance.randrange(10 ** chance.randrange(1, 22))) for _ in range(5_000)]
    numbers += [10.0**power for power in range(-330, 309)] + [0.0, -0.0, 1e15, 1e14, 5e-324]
    rows = json_rows(*(binary_json(number) for number in numbers))
    for resolved in (JSON_TABLE, JSON_TABLE_OF_57):
        compiled, reference = ways(resolved, RowsOperation.WRITE)
        assert compiled(rows) == reference(rows)


def test_documents_as_deep_as_may_be() -> None:
    compiled, reference = ways(JSON_TABLE, RowsOperation.WRITE)
    for depth in (99, 100, 101, 102):
        value: Any = 1
        for _ in range(depth):
            value = [value]
        rows = json_rows(binary_json(value))
        assert compiled(rows) == reference(rows)


def test_large_values() -> None:
    columns = [column(ColumnType.BLOB, 4, charset=name) for name in ("binary", "utf8mb4", "latin1")]
    compiled, reference = ways(table(columns), RowsOperation.WRITE, limit=1 << 26)
    row = b"\0" + raw_value(columns[0], bytes(3_000_000)) + raw_value(columns[1], "€".encode() * 700_000)
    rows = (row + raw_value(columns[2], b"\xe9" * 900_000)) * 2
    assert compiled(rows) == reference(rows)


def test_no_rows_and_no_columns() -> None:
    compiled, reference = ways(table([column(ColumnType.TINY)]), RowsOperation.WRITE)
    assert compiled(b"") == reference(b"") == []
    assert (
        Way(table([column(ColumnType.TINY)]), RowsOperation.WRITE, compiled=True, after=b"\0").native is None
    )


def test_a_plan_whose_sizes_do_not_fit_is_refused() -> None:
    def make(*plan: Any, present: Any = (True,), key: Any = None) -> None:
        compiled_rows.RowsKernel([plan], [None], None, present, key, b"", b"", 100)

    make(NativeKind.SIGNED, 0, 4, 0, 0, ())
    for plan in (
        (NativeKind.SIGNED, 0, 9, 0, 0, ()),
        (NativeKind.SIGNED, 1, 0, 0, 0, ()),
        (NativeKind.DATETIME, 0, 5, 1, 0, ()),
        (NativeKind.DECIMAL, 0, 0, 1, 0, ()),
        (NativeKind.DECIMAL, 0, 4, 66, 0, ()),
        (NativeKind.CODES, 1, 0, 0, 0, (b"a",)),
        (NativeKind.BYTES, 5, 0, 0, 0, ()),
        (NativeKind.BYTES, 0, -1, 0, 0, ()),
        (99, 0, 1, 0, 0, ()),
    ):
        with pytest.raises(ValueError, match="size"):
            make(*plan)
    for kind in (NativeKind.JSON, 0):
        with pytest.raises(ValueError, match="converter"):
            make(kind, 4, 0, 0, 0, ())
    with pytest.raises(ValueError, match="columns"):
        make(NativeKind.SIGNED, 0, 4, 0, 0, (), present=(True, True))
    with pytest.raises(ValueError, match="present"):
        make(NativeKind.SIGNED, 0, 4, 0, 0, (), present=(False,))
    with pytest.raises(ValueError, match="no column"):
        make(NativeKind.SIGNED, 0, 4, 0, 0, (), key=[(1, False)])


PACKED = {
    "b": st.binary(max_size=300),
    "l": st.integers(-(1 << 63), (1 << 63) - 1),
    "s": st.text(max_size=30) | st.just("\ud800 alone"),
    "L": st.none() | st.integers(-200, 200),
    "S": st.none() | st.text(max_size=5),
}


@given(
    st.text("blsLS", max_size=12).flatmap(
        lambda form: st.tuples(st.just(form), *(PACKED[one] for one in form))
    )
)
def test_pack(case: tuple[Any, ...]) -> None:
    assert compiled_rows.pack(*case) == binary._pack(*case)


def test_pack_refuses_what_does_not_fit_its_form() -> None:
    for form, values, error in (
        ("l", (), ValueError),
        ("x", (1,), ValueError),
        ("l", (1 << 64,), OverflowError),
        ("b", (None,), TypeError),
        ("s", (None,), TypeError),
        ("l", ("1",), TypeError),
    ):
        with pytest.raises(error):
            compiled_rows.pack(form, *values)

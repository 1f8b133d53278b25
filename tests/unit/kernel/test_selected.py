"""The kernel for what SELECT gives writes the images of the reference, and takes no row that this refuses."""

from collections.abc import Callable, Sequence
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.binlog.errors import InvalidValueError
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.snapshot.images import SelectedTable
from tests.selected import END, packets

compiled = pytest.importorskip(
    "millrace.kernel.selected", reason="the kernel for snapshots is not built (make kernel)"
)

Row = Sequence[bytes | None]
MOST = 1 << 30


def integers(bits: int, *, unsigned: bool = False) -> st.SearchStrategy[bytes]:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return st.integers(low, high).map(lambda number: b"%d" % number)


def decimals(precision: int, scale: int) -> st.SearchStrategy[bytes]:
    def spelled(number: int, negative: bool) -> bytes:
        digits = tuple(map(int, str(number)))
        return f"{Decimal((int(negative and number > 0), digits, -scale)):f}".encode()

    return st.builds(spelled, st.integers(0, 10**precision - 1), st.booleans())


def fraction(digits: int) -> st.SearchStrategy[str]:
    return st.integers(0, 10**digits - 1).map(lambda number: f".{number:0{digits}d}" if digits else "")


DATES = st.builds("{:04d}-{:02d}-{:02d}".format, st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31))
MINUTES = st.builds("{:02d}:{:02d}".format, st.integers(0, 59), st.integers(0, 59))


def times(digits: int) -> st.SearchStrategy[bytes]:
    hours = st.integers(0, 838).map("{:02d}".format)
    made = st.builds("{}{}:{}{}".format, st.sampled_from(["", "-"]), hours, MINUTES, fraction(digits))
    return made.map(str.encode)


def datetimes(digits: int) -> st.SearchStrategy[bytes]:
    hours = st.integers(0, 23).map("{:02d}".format)
    return st.builds("{} {}:{}{}".format, DATES, hours, MINUTES, fraction(digits)).map(str.encode)


def timestamps(digits: int) -> st.SearchStrategy[bytes]:
    return st.builds("{}{}".format, st.integers(0, 2**32 - 1), fraction(digits)).map(str.encode)


REALS = st.floats(allow_nan=False, allow_infinity=False).map(lambda number: repr(number).encode())
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda number: repr(number).encode())
FEW_DIGITS = st.builds(
    "{}{}.{}".format, st.sampled_from(["", "-"]), st.integers(0, 10**9), st.integers(0, 10**6)
).map(str.encode)
STRINGS = st.binary(max_size=12) | st.binary(min_size=245, max_size=260)
ADDRESSES = st.ip_addresses(v=4).map(lambda address: str(address).encode())
MEMBERS = ",".join(f"'m{number}'" for number in range(64))


def column(kind: str, charset: str | None = None, members: int = 0) -> ColumnDefinition:
    names = tuple(f"m{number}" for number in range(members)) or None
    return ColumnDefinition(0, "c", kind, unsigned="unsigned" in kind, charset=charset, members=names)


NATIVE: list[tuple[ColumnDefinition, st.SearchStrategy[bytes]]] = [
    *((column(name), integers(bits)) for name, bits in (("tinyint(4)", 8), ("smallint(6)", 16))),
    *((column(name), integers(bits)) for name, bits in (("mediumint(9)", 24), ("int", 32), ("bigint", 64))),
    (column("tinyint(3) unsigned"), integers(8, unsigned=True)),
    (column("mediumint(8) unsigned"), integers(24, unsigned=True)),
    (
        column("int(10) unsigned zerofill"),
        integers(32, unsigned=True).map(lambda digits: digits.rjust(10, b"0")),
    ),
    (column("bigint(20) unsigned"), integers(64, unsigned=True)),
    *(
        (column(f"decimal({precision},{scale})"), decimals(precision, scale))
        for precision, scale in ((1, 0), (1, 1), (9, 0), (10, 2), (18, 9), (20, 19), (38, 38), (65, 30))
    ),
    (column("decimal(12,3) unsigned zerofill"), decimals(12, 3).map(lambda text: text.strip(b"-").zfill(13))),
    (column("double"), REALS | FEW_DIGITS),
    (column("float"), FLOATS | FEW_DIGITS),
    (column("bit(1)"), st.sampled_from([b"\0", b"\1"])),
    (column("bit(61)"), st.binary(min_size=8, max_size=8)),
    (column("year(4)"), (st.just(0) | st.integers(1901, 2155)).map(lambda year: b"%04d" % year)),
    (column("date"), DATES.map(str.encode)),
    *(
        (column(f"{name}({digits})" if digits else name), make(digits))
        for name, make in (("time", times), ("datetime", datetimes), ("timestamp", timestamps))
        for digits in (0, 1, 3, 6)
    ),
    (column("char(20)", "utf8mb4"), st.binary(max_size=80)),
    (column("varchar(255)", "latin1"), st.binary(max_size=255)),
    (column("varchar(300)", "utf8mb4"), STRINGS),
    (column("binary(20)"), st.binary(max_size=20) | st.just(b"\0a\0\0")),
    (column("varbinary(20)"), st.binary(max_size=20)),
    *((column(name, "utf8mb4"), STRINGS) for name in ("text", "mediumtext", "longtext")),
    (column("tinyblob"), st.binary(max_size=255)),
    (column("point"), st.binary(max_size=30)),
    (column("enum('a','b')", "latin1", 2), st.sampled_from([b"0", b"1", b"2"])),
    (column("enum(…)", "latin1", 300), st.integers(0, 300).map(lambda number: b"%d" % number)),
    (column("set('a','b')", "latin1", 2), st.sampled_from([b"0", b"1", b"2", b"3"])),
    (column("set(…)", "latin1", 20), integers(20, unsigned=True)),
    (column(f"set({MEMBERS})", "latin1", 64), integers(64, unsigned=True)),
]
OTHERS: list[tuple[ColumnDefinition, st.SearchStrategy[bytes]]] = [
    (column("json"), st.sampled_from([b"{}", b'{"a": [1, 2.5, null, "x"]}', b"1e30", b'"x"'])),
    (column("uuid"), st.uuids().map(lambda value: str(value).encode())),
    (column("inet4"), ADDRESSES),
    (column("varchar(30) compressed", "latin1"), st.binary(max_size=20)),
    (column("blob compressed"), st.binary(max_size=20)),
]
ODD = (
    *(b"", b"-", b"+1", b" 1", b"1_0", b"0x1", b"1e5", b"1e400", b"1e99999999", b"-.5", b"5.", b"."),
    *(b"nan", b"inf", b"1..2", b"--1", b"00001", b"256", b"-129", b"4294967296", b"1.5", b"0.1234567"),
    *(b"9" * 19, b"18446744073709551616", b"-9223372036854775809", b"9" * 70, b"0." + b"1" * 70),
    *(b"3.4028236e38", b"\xff\xfe", b"x" * 70_000),
    *(b"2024-13-01", b"2024-01-32", b"2024-1-1", b"12024-01-01", b"2024-01-01 ", b"2024-01-01 24:00:00"),
    *(b"2024-01-01 10:00:60", b"2024-01-01T10:00:00", b"2024-01-01 10:00:00.", b"-00:00:00", b"1:02:03"),
    *(b"2024-01-01 10:00:00.1234567", b"1023:59:59", b"1024:00:00", b"10:60:00", b"10:00:00.123456"),
)


def table(columns: Sequence[ColumnDefinition]) -> SelectedTable:
    made = tuple(
        ColumnDefinition(
            ordinal,
            f"c{ordinal}",
            one.column_type,
            unsigned=one.unsigned,
            charset=one.charset,
            members=one.members,
        )
        for ordinal, one in enumerate(columns)
    )
    return SelectedTable(TableDefinition("shop", "t", made), mariadb=True)


def expected(selected: SelectedTable, rows: Sequence[Row]) -> list[bytes]:
    """The images of the rows before the last, up to one that the reference refuses."""
    images = []
    for row in rows[:-1]:
        try:
            images.append(selected.image(row))
        except InvalidValueError:
            break
    return images


def assert_same(selected: SelectedTable, rows: Sequence[Row], number: int = 0, most: int = MOST) -> None:
    native = selected.kernel()
    assert native is not None
    images = expected(selected, rows)
    while sum(map(len, images)) > most:
        images.pop()
    data = packets(rows, number)
    found, count, taken, after = native.take(data + END, number, most)
    assert (found, count, after) == (b"".join(images), len(images), (number + len(images)) % 256)
    assert taken == len(packets(rows[: len(images)], number))


@pytest.mark.parametrize(("one", "values"), NATIVE, ids=lambda one: getattr(one, "column_type", "")[:24])
def test_ordinary_values_need_no_reference(one: ColumnDefinition, values: st.SearchStrategy[bytes]) -> None:
    selected = table([one])
    fields = selected._fields  # what the kernel is made of

    def refuse(value: bytes) -> bytes:
        raise AssertionError(value)

    native = compiled.SelectedImages(fields, [refuse])

    @settings(max_examples=50)
    @given(values)
    def check(value: bytes) -> None:
        images, count, *_ = native.take(packets([[value], [value]]) + END, 0, MOST)
        assert (images, count) == (selected.image([value]), 1), value

    check()


@st.composite
def tables_and_rows(draw: st.DrawFn) -> tuple[SelectedTable, list[Row]]:
    chosen = draw(st.lists(st.sampled_from(NATIVE + OTHERS), min_size=1, max_size=12))
    rows: list[Row] = [
        [draw(st.none() | values) for _, values in chosen] for _ in range(draw(st.integers(1, 5)))
    ]
    for _ in range(draw(st.integers(0, 2))):
        row = draw(st.sampled_from(rows))
        assert isinstance(row, list)
        row[draw(st.integers(0, len(chosen) - 1))] = draw(st.sampled_from(ODD) | st.binary(max_size=12))
    return table([one for one, _ in chosen]), rows


@settings(max_examples=400)
@given(tables_and_rows(), st.integers(0, 255), st.integers(0, 300) | st.just(MOST))
def test_any_rows(case: tuple[SelectedTable, list[Row]], number: int, most: int) -> None:
    assert_same(*case, number, most)


@pytest.mark.parametrize("one", [one for one, _ in NATIVE + OTHERS], ids=lambda one: one.column_type[:24])
def test_odd_values(one: ColumnDefinition) -> None:
    selected = table([one])

    def check(value: bytes) -> None:
        assert_same(selected, [[value], [value]])

    for value in ODD:
        check(value)
    others = st.binary(max_size=12) | st.text("0123456789-+.:eE _", max_size=20).map(str.encode)
    settings(max_examples=50)(given(others)(check))()


WHOLE = [[b"1", b"a"], [b"2", b"b" * 300], [b"3", None], [b"4", b""]]


def two_columns() -> SelectedTable:
    return table([column("int"), column("varchar(300)", "utf8mb4")])


@given(st.integers(0, 400))
@example(0)
def test_packets_that_have_not_come_whole(size: int) -> None:
    selected = two_columns()
    native = selected.kernel()
    assert native is not None
    data = packets(WHOLE) + END
    images, count, taken, number = native.take(data[:size], 0, MOST)
    # A row is taken once the first byte of the next packet is there.
    whole = [n for n in range(len(WHOLE)) if n and len(packets(WHOLE[:n])) + 5 <= size]
    assert (count, number) == (len(whole), len(whole))
    assert taken == len(packets(WHOLE[:count]))
    assert images == b"".join(map(selected.image, WHOLE[:count]))


def damaged(change: Callable[[bytearray], None]) -> bytes:
    data = bytearray(packets(WHOLE) + END)
    change(data)
    return bytes(data)


def test_what_is_no_row_stays() -> None:
    selected = two_columns()
    native = selected.kernel()
    assert native is not None
    second = len(packets(WHOLE[:1]))

    def taken(change: Callable[[bytearray], None]) -> int:
        return int(native.take(damaged(change), 0, MOST)[1])

    def set_byte(at: int, value: int) -> Callable[[bytearray], None]:
        return lambda data: data.__setitem__(at, value)

    assert taken(lambda data: None) == 3
    assert taken(set_byte(3, 7)) == 0  # another packet's number
    assert taken(set_byte(second + 3, 7)) == 1
    assert taken(set_byte(4, 0xFF)) == 0  # an error
    assert taken(set_byte(second + 4, 0xFF)) == 0  # what follows is an error: then this is the last row
    assert taken(set_byte(4, 0xFE)) == 0  # the end
    assert taken(set_byte(0, 5)) == 0  # a byte is left after the last column
    assert taken(set_byte(0, 3)) == 0
    assert taken(set_byte(6, 200)) == 0  # a value reaches past the end
    assert taken(set_byte(6, 0xFF)) == 0  # no length
    for size in (0xFC, 0xFD, 0xFE):
        assert taken(set_byte(6, size)) == 0
    assert native.take(b"", 0, MOST) == (b"", 0, 0, 0)


def test_sizes_are_checked_before_anything_is_written() -> None:
    for field in (
        (1, 9, 0, 0),
        (3, 5, 0, 0),
        (4, 0, 66, 0),
        (4, 0, 5, 6),
        (8, 3, 4, 0),
        (11, 5, 0, 0),
        (99, 1, 0, 0),
    ):
        with pytest.raises(ValueError, match="sizes"):
            compiled.SelectedImages([field], [bytes])
    with pytest.raises(ValueError, match="one writer"):
        compiled.SelectedImages([(6, 1, 0, 0)], [])

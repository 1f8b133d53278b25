"""Row images: NULL bitmaps, absent columns, bounds, batches, and values that Avro cannot hold."""

import struct
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.binlog.columns import ABSENT, COLUMNS, AvroOptions, Column, ColumnType, codec_of
from millrace.binlog.columns.column import (
    BitMetadata,
    BlobMetadata,
    DecimalMetadata,
    FractionMetadata,
    LengthMetadata,
    NoMetadata,
    PackMetadata,
    RealMetadata,
)
from millrace.binlog.errors import (
    BinlogError,
    EncodeError,
    InvalidValueError,
    TrailingBytesError,
    TruncatedError,
)
from millrace.binlog.row_images import RowImages, present_ordinals
from tests.columns import column


def tiny_columns(count: int) -> list[Column]:
    return [column(ColumnType.TINY, ordinal=ordinal) for ordinal in range(count)]


def all_present(count: int) -> bytes:
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 4096])
def test_null_bitmaps(count: int) -> None:
    columns = tiny_columns(count)
    images = RowImages(columns, None, all_present(count))
    rows = [
        (None, tuple(range(count)) if count < 100 else (1,) * count),
        (None, (None,) * count),
        (None, (*((1,) * (count - 1)), None)),
        (None, (None, *((1,) * (count - 1)))),
    ]
    for fill in (False, True):
        data = images.encode(rows, null_fill=fill)
        assert images.decode(data) == rows
        assert images.avro(data).rows == rows
        assert images.count(data) == 4
        assert images.null_fill(data) is (fill and count % 8 != 0)
        assert images.encode(images.decode(data), null_fill=images.null_fill(data)) == data


def test_many_patterns_of_nulls_use_bounded_memory() -> None:
    columns = tiny_columns(11)
    images = RowImages(columns, None, all_present(11))
    rows = [(None, tuple(None if bits >> bit & 1 else bit for bit in range(11))) for bits in range(1 << 11)]
    assert images.decode(images.encode(rows)) == rows
    assert images._after is not None
    assert len(images._after.plans) <= 1024


def test_before_and_after_have_bitmaps_of_their_own() -> None:
    columns = tiny_columns(3)
    images = RowImages(columns, b"\x01", b"\x06")
    rows = [((1, ABSENT, ABSENT), (ABSENT, 2, None)), ((3, ABSENT, ABSENT), (ABSENT, None, None))]
    data = images.encode(rows)
    assert data == bytes((0, 1, 2, 2, 0, 3, 3))
    assert images.decode(data) == rows
    assert images.avro(data).rows == rows


def test_an_update_may_change_nothing() -> None:
    images = RowImages(tiny_columns(1), b"\x01", b"\x01")
    assert images.decode(bytes((0, 5, 0, 5))) == [((5,), (5,))]


def test_deletes_have_no_after_image() -> None:
    images = RowImages(tiny_columns(1), b"\x01", None)
    assert images.decode(bytes((0, 5))) == [((5,), None)]
    assert images.encode([((5,), None)]) == bytes((0, 5))


def test_an_image_without_columns_is_one_row() -> None:
    images = RowImages(tiny_columns(2), None, b"\x00")
    assert images.decode(b"") == [(None, (ABSENT, ABSENT))]
    assert images.avro(b"").rows == [(None, (ABSENT, ABSENT))]
    assert images.count(b"") == 1
    assert images.encode([(None, (ABSENT, ABSENT))]) == b""
    for read in (images.decode, images.avro, images.count):
        with pytest.raises(TrailingBytesError):
            read(b"\x00")


def test_no_bytes_are_no_rows_where_columns_are_present() -> None:
    images = RowImages(tiny_columns(2), None, b"\x03")
    assert images.decode(b"") == []
    assert images.avro(b"").rows == []
    assert images.count(b"") == 0
    assert images.null_fill(b"") is False


def test_absent_is_not_null() -> None:
    assert not ABSENT
    assert ABSENT is not None
    assert repr(ABSENT) == "ABSENT"


def test_a_bitmap_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidValueError):
        present_ordinals(b"\x01\x00", 8)
    with pytest.raises(InvalidValueError):
        RowImages(tiny_columns(9), None, b"\x01")
    with pytest.raises(InvalidValueError):
        RowImages(tiny_columns(1), None, None)


def test_values_must_fit_their_columns() -> None:
    images = RowImages(tiny_columns(2), None, b"\x01")
    for values in ((1, 2), (ABSENT, ABSENT), (300, ABSENT), (1,)):
        with pytest.raises(EncodeError):
            images.encode([(None, values)])
    with pytest.raises(EncodeError):
        images.encode([((1, ABSENT), None)])


def test_a_string_that_reaches_past_the_end_is_truncated() -> None:
    columns = [column(ColumnType.VARCHAR, 300, charset="utf8mb4")]
    images = RowImages(columns, None, b"\x01")
    good = images.encode([(None, ("日本",)), (None, ("x" * 290,))])
    assert images.decode(good) == [(None, ("日本",)), (None, ("x" * 290,))]
    for size in range(1, len(good)):
        if size == 9:
            continue  # the first row is whole there
        for read in (images.decode, images.avro, images.count):
            with pytest.raises(TruncatedError):
                read(good[:size])


def test_what_avro_cannot_hold_is_listed_and_the_rest_is_read() -> None:
    columns = [
        column(ColumnType.LONG),
        column(ColumnType.DATE, ordinal=1),
        column(ColumnType.VARCHAR, 40, ordinal=2, charset="utf8mb4"),
        column(ColumnType.DATETIME2, 3, ordinal=3),
        column(ColumnType.ENUM, 1, ordinal=4, members=("a",)),
        column(ColumnType.JSON, 4, ordinal=5),
        column(ColumnType.NEWDECIMAL, 9, 0, ordinal=6),
    ]
    images = RowImages(columns, b"\x7f", b"\x7f")
    good = bytes.fromhex("000100000021d00701618cb242000000000102000000040080000001")
    bad = bytes.fromhex("000200000000000001ff800000000000000501000000ffffffffff")
    result = images.avro(good + bad + good + good)
    (first, second), (third, fourth) = result.rows
    assert first == third == fourth == (1, -354285, "a", -30610224000000000, "a", "null", b"\x01")
    assert second == (2, None, None, None, None, None, None)
    assert result.unrepresentable == {
        (0, 1): {
            1: "0000-00-00",
            2: b"\xff",
            3: "0000-00-00 00:00:00.000",
            4: "5",
            5: b"\xff",
            6: b"\xff\xff\xff\xff",
        }
    }


def test_options_of_avro() -> None:
    big = column(ColumnType.LONGLONG, unsigned=True)
    wide = column(ColumnType.NEWDECIMAL, 39, 0, ordinal=1)
    data = RowImages([big, wide], None, b"\x03").encode([(None, (2**63, Decimal(10**38)))])

    def read(options: AvroOptions) -> tuple[object, ...]:
        ((_, values),) = RowImages([big, wide], None, b"\x03", options=options).avro(data).rows
        assert values is not None
        return values

    assert read(AvroOptions()) == ((2**63).to_bytes(9, "big"), str(10**38))
    assert read(AvroOptions(bigint_unsigned="string", wide_decimal="decimal")) == (
        str(2**63),
        (10**38).to_bytes(16, "big"),
    )
    assert read(AvroOptions(bigint_unsigned="long")) == (None, str(10**38))


def metadata_of(column_type: ColumnType) -> st.SearchStrategy[object]:
    """Metadata that a server could have written for a type."""
    decimals = st.integers(1, 65).flatmap(
        lambda precision: st.builds(DecimalMetadata, st.just(precision), st.integers(0, min(30, precision)))
    )
    return {
        ColumnType.FLOAT: st.just(RealMetadata(4)),
        ColumnType.DOUBLE: st.just(RealMetadata(8)),
        ColumnType.NEWDECIMAL: decimals,
        ColumnType.BIT: st.builds(BitMetadata, st.integers(1, 64)),
        ColumnType.ENUM: st.builds(PackMetadata, st.sampled_from((1, 2))),
        ColumnType.SET: st.builds(PackMetadata, st.sampled_from((1, 2, 3, 4, 8))),
        ColumnType.STRING: st.builds(LengthMetadata, st.integers(1, 1020)),
        ColumnType.VARCHAR: st.builds(LengthMetadata, st.integers(1, 65535)),
        ColumnType.VAR_STRING: st.builds(LengthMetadata, st.integers(1, 65535)),
        ColumnType.VARCHAR_COMPRESSED: st.builds(LengthMetadata, st.integers(2, 65535)),
        **dict.fromkeys(
            (
                ColumnType.TIME,
                ColumnType.DATETIME,
                ColumnType.TIMESTAMP,
                ColumnType.TIME2,
                ColumnType.DATETIME2,
                ColumnType.TIMESTAMP2,
            ),
            st.builds(FractionMetadata, st.integers(0, 6)),
        ),
        **dict.fromkeys(
            (
                ColumnType.TINY_BLOB,
                ColumnType.BLOB,
                ColumnType.MEDIUM_BLOB,
                ColumnType.LONG_BLOB,
                ColumnType.BLOB_COMPRESSED,
                ColumnType.JSON,
                ColumnType.GEOMETRY,
                ColumnType.VECTOR,
            ),
            st.builds(BlobMetadata, st.integers(1, 4)),
        ),
    }.get(column_type, st.just(NoMetadata()))


CHARSETS = (
    None,
    "binary",
    "utf8mb4",
    "utf8mb3",
    "latin1",
    "ucs2",
    "utf16",
    "utf32",
    "sjis",
    "ujis",
    "gb18030",
    "armscii8",
)


@st.composite
def columns_with_payload(draw: st.DrawFn) -> tuple[Column, bytes]:
    column_type = draw(st.sampled_from(sorted(COLUMNS)))
    column = Column(
        0,
        column_type,
        draw(metadata_of(column_type)),
        unsigned=draw(st.booleans()),
        charset=draw(st.sampled_from(CHARSETS)),
        members=draw(st.sampled_from((None, ("a", "b"), ()))),
    )
    codec = codec_of(column)
    if codec.length_bytes:
        limit = min(60, 256**codec.length_bytes - 1)
        payload = draw(st.binary(max_size=limit))
        return column, len(payload).to_bytes(codec.length_bytes, "little") + payload
    size = struct.calcsize("<" + codec.struct_code)
    return column, draw(st.binary(min_size=size, max_size=size))


@settings(max_examples=1500)
@given(columns_with_payload())
def test_any_bytes_come_back_or_are_refused(one: tuple[Column, bytes]) -> None:
    """What the natural reader takes, the writer gives back; what Avro cannot hold is listed, never lost."""
    column, payload = one
    image = b"\0" + payload
    images = RowImages([column], None, b"\x01")
    assert images.count(image) == 1
    result = images.avro(image)
    ((_, (plain,)),) = result.rows
    assert (plain is None) == bool(result.unrepresentable)
    try:
        rows = images.decode(image)
    except InvalidValueError:
        assert plain is None
        return
    if rows[0][1] == rows[0][1] and not is_nan(rows[0][1]):
        assert images.encode(rows) == image


def is_nan(values: tuple[object, ...] | None) -> bool:
    """The servers store no NaN, and a signalling one does not survive a conversion to double."""
    assert values is not None
    value = values[0]
    parts = value if isinstance(value, tuple) else (value,)
    return any(isinstance(part, float) and part != part for part in parts)


@given(st.lists(columns_with_payload(), min_size=1, max_size=9), st.binary(max_size=200))
def test_foreign_bytes_raise_nothing_but_binlog_errors(ones: list[tuple[Column, bytes]], data: bytes) -> None:
    columns = [
        Column(i, column.type, column.metadata, charset=column.charset) for i, (column, _) in enumerate(ones)
    ]
    images = RowImages(columns, all_present(len(columns)), all_present(len(columns)))
    for read in (images.decode, images.avro, images.count):
        with suppress(BinlogError):
            read(data)

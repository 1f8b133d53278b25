# ruff: noqa: DTZ001 - DATETIME has no time zone
"""Values at the edges of their types: dates that are none, negative times, members, numbers, SQL text."""

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.binlog.columns import AvroOptions, ColumnType, codec_of
from millrace.binlog.columns.declaration import ColumnCodec, quoted
from millrace.binlog.columns.numbers import DecimalFormat, signed_bytes
from millrace.binlog.columns.strings import CompressedValue
from millrace.binlog.columns.temporals import Date, DateTime, Timestamp
from millrace.binlog.errors import EncodeError, InvalidValueError, UnrepresentableError, UnsupportedError
from tests.columns import column

T = ColumnType


def codec(column_type: ColumnType, *numbers: int, **more: object) -> ColumnCodec:
    return codec_of(column(column_type, *numbers, **more))


def avro(one: ColumnCodec, value: object, options: AvroOptions | None = None) -> object:
    convert = one.avro_decoder(options or AvroOptions())
    payload = one.encode(value)
    return payload if convert is None else convert(payload)


@pytest.mark.parametrize("column_type", [T.DATETIME, T.DATETIME2])
@pytest.mark.parametrize(
    "value",
    [
        DateTime(0, 0, 0, 0, 0, 0),
        DateTime(2024, 0, 0, 0, 0, 0),
        DateTime(2024, 2, 0, 1, 1, 1),
        DateTime(2023, 2, 31, 0, 0, 0),
        DateTime(0, 1, 1, 0, 0, 0),
    ],
)
def test_moments_that_no_calendar_has(column_type: ColumnType, value: DateTime) -> None:
    one = codec(column_type, 0)
    assert one.decode(one.encode(value)) == value
    with pytest.raises(UnrepresentableError):
        avro(one, value)


@pytest.mark.parametrize("digits", range(7))
@pytest.mark.parametrize("column_type", [T.DATETIME, T.DATETIME2])
@given(moment=st.datetimes(min_value=dt.datetime(1, 1, 1), max_value=dt.datetime(9999, 12, 31)))
def test_datetimes_are_those_of_the_calendar(
    column_type: ColumnType, digits: int, moment: dt.datetime
) -> None:
    unit = 10 ** (6 - digits)
    moment = moment.replace(microsecond=moment.microsecond // unit * unit)
    value = DateTime(*moment.timetuple()[:6], moment.microsecond)
    one = codec(column_type, digits)
    assert one.decode(one.encode(value)) == value
    assert avro(one, value) == (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    assert one.text(value) == moment.isoformat(" ", "microseconds")[: 20 + digits if digits else 19]


@pytest.mark.parametrize("digits", range(7))
@pytest.mark.parametrize("column_type", [T.TIME, T.TIME2])
@given(micros=st.integers(-3020399999999, 3020399999999))
def test_times_are_signed(column_type: ColumnType, digits: int, micros: int) -> None:
    unit = 10 ** (6 - digits)
    micros = micros // unit * unit
    if abs(micros) > 3020399999999 or (not digits and abs(micros) > 3020399000000):
        micros = -3020399000000
    value = dt.timedelta(microseconds=micros)
    one = codec(column_type, digits)
    assert one.decode(one.encode(value)) == value
    assert avro(one, value) == micros
    text = one.text(value)
    assert isinstance(text, str)
    assert text.startswith("-") is (micros < 0)


@pytest.mark.parametrize("digits", range(7))
@pytest.mark.parametrize("column_type", [T.TIMESTAMP, T.TIMESTAMP2])
def test_timestamps(column_type: ColumnType, digits: int) -> None:
    one = codec(column_type, digits)
    fraction = 123456 // 10 ** (6 - digits) * 10 ** (6 - digits)
    for seconds in (1, 2**31 - 1, 2**31, 2**32 - 1):
        value = Timestamp(seconds, fraction)
        assert one.decode(one.encode(value)) == value
        assert avro(one, value) == seconds * 1_000_000 + fraction
    assert one.text(Timestamp(2**32 - 1, fraction)).startswith("2106-02-07 06:28:15")  # type: ignore[union-attr]
    with pytest.raises(UnrepresentableError):
        avro(one, Timestamp(0))
    with pytest.raises(EncodeError):
        one.encode(
            Timestamp(2**32 if digits or column_type is T.TIMESTAMP2 else 0, 1 if digits < 6 else 2**30)
        )


@pytest.mark.parametrize("digits", range(6))
def test_a_fraction_finer_than_the_column_is_refused(digits: int) -> None:
    for column_type, value in (
        (T.TIME, dt.timedelta(microseconds=1)),
        (T.DATETIME, DateTime(2024, 1, 1, 0, 0, 0, 1)),
        (T.TIMESTAMP, Timestamp(1, 1)),
    ):
        with pytest.raises(EncodeError):
            codec(column_type, digits).encode(value)
    if digits < 5:
        for column_type, value in (
            (T.TIME2, dt.timedelta(microseconds=1)),
            (T.DATETIME2, DateTime(2024, 1, 1, 0, 0, 0, 1)),
            (T.TIMESTAMP2, Timestamp(1, 1)),
        ):
            with pytest.raises(EncodeError):
                codec(column_type, digits).encode(value)


def test_temporals_out_of_range_are_refused() -> None:
    date, datetime = codec(T.DATE), codec(T.DATETIME2, 0)
    for value in (Date(1 << 15, 1, 1), Date(2024, 16, 1), Date(2024, 1, 32), Date(-1, 1, 1)):
        with pytest.raises(EncodeError):
            date.encode(value)
    for moment in (
        DateTime(2024, 13, 1, 0, 0, 0),
        DateTime(20000, 1, 1, 0, 0, 0),
        DateTime(-1, 1, 1, 0, 0, 0),
    ):
        with pytest.raises(EncodeError):
            datetime.encode(moment)
    for column_type, digits in ((T.TIME, 0), (T.TIME2, 0), (T.TIME2, 6)):
        with pytest.raises(EncodeError):
            codec(column_type, digits).encode(dt.timedelta(hours=9000))
    with pytest.raises(InvalidValueError):
        codec(T.TIME2, 7)
    with pytest.raises(InvalidValueError):
        codec(T.TIME2, 0).decode(bytes.fromhex("80003c"))
    with pytest.raises(InvalidValueError):
        datetime.decode(bytes(5))


def test_dates() -> None:
    one = codec(T.DATE)
    assert avro(one, Date(1970, 1, 1)) == 0
    assert avro(one, Date(1, 1, 1)) == -719162
    assert avro(one, Date(9999, 12, 31)) == 2932896
    for value in (Date(0, 0, 0), Date(2024, 0, 1), Date(2024, 1, 0), Date(0, 1, 1), Date(2023, 2, 29)):
        with pytest.raises(UnrepresentableError):
            avro(one, value)
    assert one.text(Date(0, 0, 0)) == "0000-00-00"
    assert str(DateTime(2024, 1, 2, 3, 4, 5)) == "2024-01-02 03:04:05"
    assert str(DateTime(2024, 1, 2, 3, 4, 5, 6)) == "2024-01-02 03:04:05.000006"
    assert str(Timestamp(0)) == "0000-00-00 00:00:00"
    assert str(Timestamp(1, 5)) == "1970-01-01 00:00:01.000005"


@pytest.mark.parametrize("bits", [8, 16, 24, 32, 64])
@pytest.mark.parametrize("unsigned", [False, True])
def test_integers(bits: int, unsigned: bool) -> None:
    kinds = {8: T.TINY, 16: T.SHORT, 24: T.INT24, 32: T.LONG, 64: T.LONGLONG}
    one = codec(kinds[bits], unsigned=unsigned)
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for value in (low, high, 0, 1, high // 2):
        assert one.decode(one.encode(value)) == value
        assert one.text(value) == one.sql_literal(value) == str(value)
        if bits < 64 or not unsigned:
            assert avro(one, value) == value
    if bits == 24:
        for value in (low - 1, high + 1):
            with pytest.raises(EncodeError):
                one.encode(value)


def test_zerofill_is_shown() -> None:
    one = codec(T.LONG, unsigned=True, sql_type="int(10) unsigned zerofill")
    assert one.text(42) == "0000000042"
    assert one.sql_type() == "int unsigned"


def test_unsigned_64_bits() -> None:
    one = codec(T.LONGLONG, unsigned=True)
    assert avro(one, 2**64 - 1) == b"\x00" + b"\xff" * 8
    assert avro(one, 5, AvroOptions(bigint_unsigned="long")) == 5
    assert avro(one, 5, AvroOptions(bigint_unsigned="string")) == "5"
    assert one.avro_type(AvroOptions()) == {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": 20,
        "scale": 0,
    }
    with pytest.raises(UnrepresentableError):
        avro(one, 2**63, AvroOptions(bigint_unsigned="long"))


@given(st.integers())
def test_signed_bytes(value: int) -> None:
    raw = signed_bytes(value)
    assert int.from_bytes(raw, "big", signed=True) == value
    assert len(raw) == 1 or not (-(1 << 8 * len(raw) - 9) <= value < 1 << 8 * len(raw) - 9)


@given(st.data())
def test_decimals_of_all_shapes(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(30, precision)))
    unscaled = data.draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    form = DecimalFormat(precision, scale)
    digits = tuple(map(int, str(abs(unscaled))))
    value = Decimal((int(unscaled < 0), digits, -scale))
    raw = form.encode(value)
    assert len(raw) == form.size
    assert form.decode(raw) == value
    assert form.decode(raw).as_tuple().exponent == -scale
    assert form.unscaled(raw) == unscaled
    # The bytes sort as the numbers do: that is what the format is for.
    assert (raw > form.encode(Decimal(0))) == (unscaled > 0)


def test_a_negative_zero_keeps_its_sign() -> None:
    form = DecimalFormat(3, 1)
    raw = form.encode(Decimal("-0.0"))
    assert str(form.decode(raw)) == "-0.0"
    assert form.encode(form.decode(raw)) == raw
    assert form.unscaled(raw) == 0


@pytest.mark.parametrize("text", ["1000", "0.01", "NaN", "Infinity", "-1e3"])
def test_decimals_that_do_not_fit(text: str) -> None:
    with pytest.raises(EncodeError):
        DecimalFormat(4, 1).encode(Decimal(text))


def test_decimals_that_do_not_exist() -> None:
    for precision, scale in ((66, 0), (3, 4)):
        with pytest.raises(InvalidValueError):
            DecimalFormat(precision, scale)
    with pytest.raises(InvalidValueError):
        DecimalFormat(9, 0).unscaled(bytes.fromhex("ffffffff"))
    assert DecimalFormat(4, 1).encode(Decimal("1.50")) == DecimalFormat(4, 1).encode(Decimal("1.5"))


def test_wide_decimals() -> None:
    options = AvroOptions(wide_decimal="decimal")
    one = codec(T.NEWDECIMAL, 39, 2)
    assert one.avro_type(AvroOptions()) == "string"
    assert one.avro_type(options) == {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2}
    assert avro(one, Decimal("-1.50")) == "-1.50"
    assert avro(one, Decimal("-1.50"), options) == signed_bytes(-150)
    assert one.sql_type() == "decimal(39,2)"


def test_reals() -> None:
    single, double = codec(T.FLOAT, 4), codec(T.DOUBLE, 8, unsigned=True)
    assert single.text(1.100000023841858) == "1.1"
    assert single.sql_literal(1.100000023841858) == "1.10000002"
    assert single.text(3.4028234663852886e38) == "3.40282e38"
    assert double.text(-0.0) == "-0"
    assert double.text(1e15) == "1e15"
    assert double.sql_literal(0.1) == "0.1"
    assert double.sql_type() == "double unsigned"
    assert codec(T.DOUBLE, 8, sql_type="double(10,2)").text(1.005) == "1.00"
    assert [single.avro_type(AvroOptions()), double.avro_type(AvroOptions())] == ["float", "double"]


def test_bits() -> None:
    one = codec(T.BIT, 10)
    assert one.encode(513) == b"\x02\x01"
    assert one.sql_literal(513) == "b'1000000001'"
    assert one.sql_type() == "bit(10)"
    with pytest.raises(EncodeError):
        one.encode(1 << 16)


def test_years() -> None:
    one = codec(T.YEAR)
    assert [one.decode(byte) for byte in (0, 1, 69, 255)] == [0, 1901, 1969, 2155]
    for value in (1900, 2156, -1):
        with pytest.raises(EncodeError):
            one.encode(value)
    assert one.text(0) == "0000"
    assert codec(T.YEAR, sql_type="year(2)").text(1970) == "70"


def test_enum_members() -> None:
    members = ("", "a,b", "it's", "back\\slash", "ü")
    one = codec(T.ENUM, 1, members=members)
    assert [one.text(value) for value in range(6)] == ["", *members]
    assert [avro(one, value) for value in range(6)] == ["", *members]
    assert one.text(6) == "6"
    assert one.sql_type() == r"enum('','a,b','it\'s','back\\slash','ü')"
    with pytest.raises(UnrepresentableError):
        avro(one, 6)
    nameless = codec(T.ENUM, 2)
    assert avro(nameless, 300) == 300
    assert nameless.avro_type(AvroOptions()) == "int"
    assert nameless.text(300) == "300"


def test_set_members() -> None:
    members = tuple(f"m{number}" for number in range(64))
    one = codec(T.SET, 8, members=members)
    assert one.text(0) == ""
    assert avro(one, 1 << 63 | 1) == "m0,m63"
    assert one.text(2**64 - 1) == ",".join(members)
    few = codec(T.SET, 1, members=("a", "b"))
    assert few.text(4) == "4"
    with pytest.raises(UnrepresentableError):
        avro(few, 4)
    nameless = codec(T.SET, 8)
    assert avro(nameless, 7) == 7
    with pytest.raises(UnrepresentableError):
        avro(nameless, 1 << 63)
    assert codec(T.SET, 3).encode(0x010203) == b"\x03\x02\x01"
    with pytest.raises(InvalidValueError):
        codec(T.SET, 5)


def test_text_that_does_not_come_back_stays_bytes() -> None:
    one = codec(T.VARCHAR, 20, charset="sjis")
    assert one.decode(b"\x5c") == "\\"
    assert one.decode(b"\x81\x5f") == b"\x81\x5f"  # the same character, another code
    assert avro(one, b"\x81\x5f") == "\\"
    assert one.decode(b"\x81") == b"\x81"
    with pytest.raises(UnicodeDecodeError):
        avro(one, b"\x81")
    assert one.encode("日本") == "日本".encode("shift_jis")
    with pytest.raises(EncodeError):
        one.encode("😀")


def test_bytes_and_text() -> None:
    binary = codec(T.STRING, 4, charset="binary")
    unknown = codec(T.STRING, 4)
    assert avro(binary, b"a") == b"a\0\0\0"
    assert binary.text(b"a") == b"a\0\0\0"
    assert avro(unknown, b"a") == b"a"
    assert binary.sql_literal(b"a") == "X'61000000'"
    for one in (binary, unknown):
        assert one.avro_type(AvroOptions()) == "bytes"
        with pytest.raises(EncodeError):
            one.encode("text")


def test_compressed_columns() -> None:
    one = codec(T.BLOB_COMPRESSED, 2, charset="utf8mb4")
    assert one.encode("é") == b"\0\xc3\xa9"
    assert one.encode("") == b""
    assert CompressedValue(b"").content == b""
    zlib_with_header = bytes.fromhex("8103789c4b4c4a0600024d0127")
    assert CompressedValue(zlib_with_header).content == b"abc"
    for damaged in (b"\x10", b"\x89\x03abc", zlib_with_header[:-8], b"\x81\x02" + zlib_with_header[2:]):
        value = CompressedValue(damaged)
        assert one.decode(damaged) == value
        assert one.encode(value) == damaged
        assert one.text(value) == damaged
        with pytest.raises(InvalidValueError):
            value.content  # noqa: B018
        with pytest.raises(UnrepresentableError):
            avro(one, value)


def test_addresses_of_mariadb() -> None:
    inet6 = codec(T.STRING, 16, charset="binary", sql_type="inet6")
    for text in ("::", "::1", "2001:db8::ff00:42:8329", "::ffff:192.0.2.128", "::192.0.2.128", "ff02::"):
        payload = inet6.encode(text)
        assert not payload.endswith(b"\0")
        assert inet6.decode(payload) == text
        assert avro(inet6, text) == text
    inet4 = codec(T.STRING, 4, sql_type="inet4")
    assert inet4.decode(b"\x01") == "1.0.0.0"
    uuid = codec(T.STRING, 16, sql_type="uuid")
    assert (
        uuid.decode(bytes.fromhex("123e4567e89b12d3a45642665544")) == "123e4567-e89b-12d3-a456-426655440000"
    )
    for one in (inet6, inet4, uuid):
        with pytest.raises(EncodeError):
            one.encode("nonsense")
        assert one.encode(b"raw") == b"raw"
        too_long = b"x" * 17
        assert one.decode(too_long) == too_long
        with pytest.raises(UnrepresentableError):
            avro(one, too_long)
        assert one.decode(b"a\0") == b"a\0"


def test_damaged_geometries_and_vectors_stay_bytes() -> None:
    geometry, vector = codec(T.GEOMETRY, 4), codec(T.VECTOR, 4)
    for one in (geometry, vector):
        assert one.decode(b"abc") == b"abc"
        assert one.encode(b"abc") == b"abc"
        assert one.text(b"abc") == b"abc"
        with pytest.raises(UnrepresentableError):
            avro(one, b"abc")
    with pytest.raises(EncodeError):
        vector.encode((1e300,))
    assert vector.sql_type() == "vector"
    assert codec(T.VECTOR, 4, dimensions=3).sql_type() == "vector(3)"
    assert codec(T.GEOMETRY, 4, geometry_type=1).sql_type() == "point"


@pytest.mark.parametrize(
    ("one", "sql_type"),
    [
        (codec(T.STRING, 40, charset="utf8mb4"), "char(10) character set utf8mb4"),
        (codec(T.STRING, 10, charset="binary"), "binary(10)"),
        (codec(T.VARCHAR, 300, charset="latin1"), "varchar(300) character set latin1"),
        (codec(T.VARCHAR, 300), "varbinary(300)"),
        (codec(T.BLOB, 1), "tinyblob"),
        (codec(T.BLOB, 2, charset="utf8mb4"), "text character set utf8mb4"),
        (codec(T.BLOB, 4, charset="binary"), "longblob"),
        (codec(T.BLOB_COMPRESSED, 3), "mediumblob compressed"),
        (codec(T.VARCHAR_COMPRESSED, 81, charset="utf8mb4"), "varchar(20) character set utf8mb4 compressed"),
        (codec(T.TIME2, 3), "time(3)"),
        (codec(T.DATETIME), "datetime"),
        (codec(T.JSON, 4), "json"),
        (codec(T.VARCHAR, 12, sql_type="vector(3)"), "vector(3)"),
    ],
)
def test_types_in_sql(one: ColumnCodec, sql_type: str) -> None:
    assert one.sql_type() == sql_type


def test_literals_are_quoted() -> None:
    assert quoted("it's \\ \0\n\r\x1a") == "'it\\'s \\\\ \\0\\n\\r\\Z'"
    assert codec(T.DATE).sql_literal(Date(2024, 0, 0)) == "'2024-00-00'"
    assert codec(T.YEAR).sql_literal(0) == "'0000'"
    assert codec(T.BLOB, 1).sql_literal(b"\x00\xff") == "X'00ff'"
    assert codec(T.ENUM, 1, members=("a",)).sql_literal(1) == "1"


@pytest.mark.parametrize("column_type", [T.NULL, T.TYPED_ARRAY, T.INVALID, T.BOOL, T.DECIMAL])
def test_types_that_are_in_no_row_image(column_type: ColumnType) -> None:
    with pytest.raises(UnsupportedError):
        codec(column_type)

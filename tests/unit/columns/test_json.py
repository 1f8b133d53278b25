"""Binary JSON: documents of a real server, its way with numbers and strings, damaged documents, diffs."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.binlog.columns import ABSENT, AvroOptions, Column, ColumnType, codec_of
from millrace.binlog.columns.column import BlobMetadata, NoMetadata
from millrace.binlog.columns.json_binary import JsonValue, Opaque, decode_json, json_text
from millrace.binlog.columns.json_diffs import JsonDiff, JsonDiffOperation, JsonDiffs
from millrace.binlog.columns.metadata import columns_of
from millrace.binlog.columns.numbers import format_double
from millrace.binlog.errors import (
    BinlogError,
    InvalidValueError,
    MalformedError,
    TruncatedError,
    UnrepresentableError,
)
from millrace.binlog.events import TableMapEvent
from millrace.binlog.row_images import RowImages

DOCUMENTS = [  # MySQL 9.7.4; the texts are those of SELECT
    ("0400", "null"),
    ("0401", "true"),
    ("0402", "false"),
    ("050000", "0"),
    ("05ffff", "-1"),
    ("057f00", "127"),
    ("05ff7f", "32767"),
    ("050080", "-32768"),
    ("0700800000", "32768"),
    ("07ffffff7f", "2147483647"),
    ("0700000080", "-2147483648"),
    ("090000008000000000", "2147483648"),
    ("0affffffffffffff7f", "9223372036854775807"),
    ("090000000000000080", "-9223372036854775808"),
    ("0affffffffffffffff", "18446744073709551615"),
    ("0b000000000000f83f", "1.5"),
    ("0ba0c8eb85f3cce1ff", "-1e308"),
    ("0c00", '""'),
    ("0c03737472", '"str"'),
    ("0c08c3a9f09f9880000a", '"é😀\\u0000\\n"'),
    ("0200000400", "[]"),
    ("0000000400", "{}"),
    ("0203000d00050100050200050300", "[1, 2, 3]"),
    ("0001000c000b00010005010061", '{"a": 1}'),
    (
        (
            "00010050000b000100000c0061010044000b000100000c0062010038000b000100020c006306002c0005010000160004"
            "01000402000c22000b240001000c000b000100040000640173000000000000f43f"
        ),
        '{"a": {"b": {"c": [1, {"d": null}, true, false, "s", 1.25]}}}',
    ),
    ("0201002000020700010019000207000100120002070001000b0002070000000400", "[[[[[]]]]]"),
    (
        (
            "0004003e00200000002000010021000400250008000501000c2d00022e000c35006bf09f9880d0bad0bbd18ed1870001"
            "00070005010008d0b7d0bdd0b0d187"
        ),
        '{"": 1, "k": "", "😀": [1], "ключ": "знач"}',
    ),
    (
        (
            "0206003600050100071600071a00091e000926000a2e00409c0000c063ffff005ed0b200000000000efad5feffffffff"
            "ffffffffffffff"
        ),
        "[1, 40000, -40000, 3000000000, -5000000000, 18446744073709551615]",
    ),
    (
        "0004002800200001002100020023000200250003000502000503000501000504006162627a7a636363",
        '{"a": 2, "bb": 3, "zz": 1, "ccc": 4}',
    ),
    (
        "02030025000b0d000b15000b1d009a9999999999b93f408cb5781daf1544b6f37d54346f9d41",
        "[0.1, 1e20, 123456789.123]",
    ),
    (
        (
            "020c0079000f28000f31000f45000f4f000f59000f63000f6d000f72000f7600060700040100040000f6070b02800000"
            "010af61224097fffff9cc4653600c4653600f8a432ea0a080000000000bab2190b08080a0cb8c80000000b0800000005"
            "91cbffff0c08c801008310bab2190f0300ff800f02cafe0f010a"
        ),
        (
            '[1.10, -99999999999999999999.123456789, "2024-02-29", "12:34:56.789000", "-838:59:59.000000", '
            '"2024-02-29 01:02:03.000456", "base64:type15:AP+A", "base64:type15:yv4=", "base64:type15:Cg==", '
            "7, true, null]"
        ),
    ),
    (
        (
            "0003003800190002001b0003001e0003000f21000f2b000f2f00647462696e6465630a0800000000008267190f020031"
            "f6070a018000000005"
        ),
        '{"dt": "2001-01-01", "bin": "base64:type15:ADE=", "dec": 0.5}',
    ),
    ("0ff6070b02800000030e", "3.14"),
    ("0f0c08000000000042b219", '"2024-01-01 00:00:00.000000"'),
    ("0b000000000000f03f", "1.0"),
    (
        "0206002d000f160006e8070f1a000c24000c26000f2a0010020005070820a107000042b2190172036d2c6efc0100",
        '["base64:type16:AAU=", 2024, "2024-01-01 00:00:00.500000", "r", "m,n", "base64:type252:AA=="]',
    ),
    ("0001000c000b00010005020061", '{"a": 2}'),
    ("0204001000050100050200050300050400", "[1, 2, 3, 4]"),
]


@pytest.mark.parametrize(("binary", "text"), DOCUMENTS, ids=[text[:30] for _, text in DOCUMENTS])
def test_text_is_the_servers(binary: str, text: str) -> None:
    assert json_text(bytes.fromhex(binary)) == text


@pytest.mark.parametrize(("binary", "text"), DOCUMENTS, ids=[text[:30] for _, text in DOCUMENTS])
def test_a_document_cut_short_raises(binary: str, text: str) -> None:
    document = bytes.fromhex(binary)
    for size in range(1, len(document)):
        try:
            found = json_text(document[:size])
        except (MalformedError, UnrepresentableError):
            continue
        # Bytes that nothing points at may be missing, such as those of an update in place.
        assert found == text


def _packed(date: int, hour: int, minute: int, second: int, micros: int) -> bytes:
    """Write a temporal as documents have it; ``date`` is year times 13 plus month, times 32, plus the day."""
    return (((date << 5 | hour) << 12 | minute << 6 | second) << 24 | micros).to_bytes(
        8, "little", signed=True
    )


_DAY = (2024 * 13 + 2) * 32 + 29


@pytest.mark.parametrize("kind", [ColumnType.DATE, ColumnType.DATETIME, ColumnType.TIMESTAMP])
@pytest.mark.parametrize(
    "fields",
    [
        (_DAY, 24, 0, 0, 0), (_DAY, 0, 60, 0, 0), (_DAY, 0, 0, 60, 0), (_DAY, 0, 0, 0, 1_000_000),
        (10_000 * 13 * 32, 0, 0, 0, 0), (-1, 0, 0, 0, 0),
    ],
)  # fmt: skip
def test_what_no_server_writes_in_a_document_is_refused(kind: ColumnType, fields: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValueError):
        json_text(bytes((0x0F, kind, 8)) + _packed(*fields))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("hour", "minute", "second", "micros"),
    [(839, 0, 0, 0), (0, 60, 0, 0), (0, 0, 60, 0), (0, 0, 0, 1_000_000)],
)
def test_a_time_that_no_server_writes_is_refused(
    hour: int, minute: int, second: int, micros: int, sign: int
) -> None:
    packed = sign * ((hour << 12 | minute << 6 | second) << 24 | micros)
    with pytest.raises(InvalidValueError):
        json_text(bytes((0x0F, ColumnType.TIME, 8)) + packed.to_bytes(8, "little", signed=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_lacks_is_refused(value: float) -> None:
    with pytest.raises(InvalidValueError):
        decode_json(b"\x0b" + struct.pack("<d", value))


def test_no_bytes_are_null() -> None:
    assert decode_json(b"") is None
    assert json_text(b"") == "null"


def test_values_are_python_values() -> None:
    value = JsonValue(bytes.fromhex(DOCUMENTS[-1][0])).value
    assert value == [1, 2, 3, 4]
    assert decode_json(bytes.fromhex("0ff6070b02800000030e")) == Opaque(246, bytes.fromhex("0b02800000030e"))


# What MySQL 8.0.15 and 9.7.4 print for these doubles in a JSON document.
DOUBLES = {
    1.0: "1.0",
    -0.0: "-0.0",
    1e15: "1e15",
    1e14: "100000000000000.0",
    123456789012345.6: "123456789012345.6",
    1234567890123456.5: "1234567890123456.5",
    1e-14: "0.00000000000001",
    1e-15: "0.000000000000001",
    1.5e-10: "0.00000000015",
    1.2e-14: "0.000000000000012",
    1.23e-18: "1.23e-18",
    1e22: "1e22",
    1.2345678901234568e22: "1.2345678901234568e22",
    4.35: "4.35",
    1.7976931348623157e308: "1.7976931348623157e308",
    5e-324: "5e-324",
    100000.0: "100000.0",
}


@pytest.mark.parametrize(("value", "text"), DOUBLES.items(), ids=DOUBLES.values())
def test_doubles(value: float, text: str) -> None:
    assert json_text(b"\x0b" + struct.pack("<d", value)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_written_with_the_digits_that_give_it_back(value: float) -> None:
    assert float(format_double(value)) == value


def test_strings_are_escaped_as_the_server_does() -> None:
    text = '\0\x01\b\t\n\x0b\f\r\x1b\x1f/\\"\x7f'
    expected = r'"\u0000\u0001\b\t\n\u000b\f\r\u001b\u001f/\\\"' + '\x7f"'
    assert json_text(b"\x0c" + bytes((len(text),)) + text.encode()) == expected


def test_a_string_of_other_bytes_than_utf8_is_not_guessed() -> None:
    with pytest.raises(UnrepresentableError):
        json_text(b"\x0c\x02\xff\xfe")


def array_of(*entries: bytes) -> bytes:
    """A small array in binary form whose entries are inlined or refer to its start."""
    body = b"".join(entries)
    return struct.pack("<HH", len(entries), 4 + len(body)) + body


def test_documents_that_refer_to_themselves_end() -> None:
    # Each of the two entries is the array itself: without a bound, 2 to the power of 100 values.
    with pytest.raises(InvalidValueError):
        decode_json(b"\x02" + array_of(b"\x02\0\0", b"\x02\0\0"))


@pytest.mark.parametrize(
    "binary",
    [
        "10",
        "0403",
        "020100",
        "0201000700ff0000",
        "0cffffffffffff",
        "0ff6",
        "0ff60105",
        "0f0a0100",
        "0ff6027b00",
    ],
)
def test_damaged_documents_raise(binary: str) -> None:
    with pytest.raises(MalformedError):
        json_text(bytes.fromhex(binary))


@given(st.binary(max_size=120), st.integers(0, 15))
def test_foreign_bytes_raise_nothing_but_binlog_errors(data: bytes, kind: int) -> None:
    with contextlib.suppress(BinlogError):
        json_text(bytes((kind,)) + data)


COLUMNS = [Column(0, ColumnType.LONG, NoMetadata()), Column(1, ColumnType.JSON, BlobMetadata(4))]
BEFORE = bytes.fromhex("0004002800200001002100020023000200250003000502000503000501000504006162627a7a636363")


def diff(operation: int, path: str, value: str = "") -> bytes:
    raw = bytes.fromhex(value)
    return (
        bytes((operation, len(path))) + path.encode() + (bytes((len(raw),)) + raw if operation < 2 else b"")
    )


@pytest.mark.parametrize(
    ("diffs", "text"),
    [
        (diff(0, "$.a", "050900"), '{"a": 9, "bb": 3, "zz": 1, "ccc": 4}'),
        (diff(1, "$.b", "0401"), '{"a": 2, "b": true, "bb": 3, "zz": 1, "ccc": 4}'),
        (diff(1, '$."a b"', "0400"), '{"a": 2, "bb": 3, "zz": 1, "a b": null, "ccc": 4}'),
        (diff(2, "$.zz"), '{"a": 2, "bb": 3, "ccc": 4}'),
        (
            diff(0, "$.a", "0200000400") + diff(1, "$.a[0]", "050700"),
            '{"a": [7], "bb": 3, "zz": 1, "ccc": 4}',
        ),
        (diff(0, "$", "0401"), "true"),
        (b"", '{"a": 2, "bb": 3, "zz": 1, "ccc": 4}'),
    ],
)
def test_diffs_are_applied_to_the_before_image(diffs: bytes, text: str) -> None:
    images = RowImages(COLUMNS, b"\x03", b"\x03", partial_json=True)
    data = images.encode([((1, JsonValue(BEFORE)), (1, JsonDiffs(diffs)))])
    assert images.decode(data) == [((1, JsonValue(BEFORE)), (1, JsonDiffs(diffs)))]
    assert images.count(data) == 1
    result = images.avro(data)
    assert result.rows[0][1] == (1, text)
    assert not result.unrepresentable


def test_whole_documents_need_no_bitmap() -> None:
    images = RowImages(COLUMNS, b"\x01", b"\x02", partial_json=True)
    rows = [((1, ABSENT), (ABSENT, JsonValue(b"\x04\x01"))), ((2, ABSENT), (ABSENT, None))]
    data = images.encode(rows)
    assert data == bytes.fromhex("00 01000000 00 00 02000000 0401 00 02000000 00 01".replace(" ", ""))
    assert images.decode(data) == rows
    for size in range(1, len(data)):
        if size != 13:
            with pytest.raises(TruncatedError):
                images.decode(data[:size])


def test_diffs_without_the_document_are_kept() -> None:
    images = RowImages(COLUMNS, b"\x01", b"\x02", partial_json=True)
    diffs = JsonDiffs(diff(2, "$.a"))
    result = images.avro(images.encode([((1, ABSENT), (ABSENT, diffs))]))
    assert result.rows == [((1, ABSENT), (ABSENT, None))]
    assert result.unrepresentable == {(0, 1): {1: diffs.binary}}


@pytest.mark.parametrize("path", ["$.none", "$.a.b", "$.a[0]", "$[0]", "$.none.b"])
def test_a_path_that_leads_nowhere_says_so(path: str) -> None:
    with pytest.raises(UnrepresentableError):
        JsonDiffs(diff(0, path, "0401")).applied_text(JsonValue(BEFORE))


@pytest.mark.parametrize("binary", ["03", "00", "0001", "000124", "00022e61020401", "0001ff020401"])
def test_damaged_diffs_raise(binary: str) -> None:
    with pytest.raises(MalformedError):
        JsonDiffs(bytes.fromhex(binary)).applied({"a": 1})


def test_diffs_are_taken_apart() -> None:
    found = JsonDiffs(diff(0, "$.a", "0401") + diff(2, "$.b")).diffs
    assert found == [
        JsonDiff(JsonDiffOperation.REPLACE, "$.a", b"\x04\x01"),
        JsonDiff(JsonDiffOperation.REMOVE, "$.b", None),
    ]


def test_strings_that_share_their_bytes_are_refused() -> None:
    """An array of 200 entries which all point to one string: small, and large if it were read."""
    count, text = 200, b"\xe8\x07" + b"x" * 1000
    table = b"".join(b"\x0c" + (4 + 3 * count).to_bytes(2, "little") for _ in range(count))
    size = 4 + len(table) + len(text)
    binary = b"\x02" + count.to_bytes(2, "little") + size.to_bytes(2, "little") + table + text
    with pytest.raises(MalformedError, match="larger than its bytes allow"):
        decode_json(binary)


def test_a_path_with_half_a_character_is_refused() -> None:
    """JSON writes a lone surrogate as an escape; no text that we give may hold one."""
    with pytest.raises(InvalidValueError, match="is not a JSON path"):
        JsonDiffs(diff(1, '$."\\ud800"', "0401")).applied({"a": 1})


def test_documents_do_not_grow_deeper_with_every_change() -> None:
    """Each diff puts an array into the one that the diff before it has put."""
    diffs = b"".join(diff(1, "$" + "[0]" * depth, "0200000400") for depth in range(1, 80))
    text = JsonDiffs(diffs).applied_text(JsonValue(bytes.fromhex("0200000400")))
    assert text == "[" * 80 + "]" * 80
    path = b"$" + b"[0]" * 101
    deeper = b"\x01" + bytes((252,)) + len(path).to_bytes(2, "little") + path + b"\x02\x04\x01"
    with pytest.raises(InvalidValueError, match="leads deeper than 100 levels"):
        JsonDiffs(deeper).applied([])


def test_many_changes_of_a_large_document_take_no_longer_than_the_document() -> None:
    """Members that are put in are sorted once, not again and again."""
    count = 20_000
    diffs = b"".join(diff(1, f"$.k{number}", "0401") for number in range(count, 0, -1))
    found = JsonDiffs(diffs).applied({"z": 1})
    assert list(found)[:3] == ["z", "k1", "k2"]
    assert len(found) == count + 1


def test_path_with_more_digits_than_a_number_has() -> None:
    path = b"$[" + b"9" * 5000 + b"]"
    diffs = JsonDiffs(b"\x02" + b"\xfc" + len(path).to_bytes(2, "little") + path)
    with pytest.raises(MalformedError, match="is not a JSON path"):
        diffs.applied([])


@pytest.mark.parametrize(
    ("server_version", "text"),
    [
        ("5.7.22-log", '[1, 1.5, {"a": -0}, 1e20]'),
        ("8.0.12", '[1.0, 1.5, {"a": -0.0}, 1e20]'),
        (None, '[1.0, 1.5, {"a": -0.0}, 1e20]'),
    ],
)
def test_doubles_are_written_as_by_the_server_of_that_version(server_version: str | None, text: str) -> None:
    """MySQL 5.7.22 and 8.0.12 were asked."""
    doubles = b"".join(struct.pack("<d", value) for value in (1.0, 1.5, 1e20))
    nested = b"\x01\0\x14\0" + b"\x0b\0\x01\0" + b"\x0b\x0c\0" + b"a" + struct.pack("<d", -0.0)
    head = b"\x04\0" + (4 + 12 + len(doubles) + len(nested)).to_bytes(2, "little")
    places = ((0x0B, 16), (0x0B, 24), (0x00, 40), (0x0B, 32))
    entries = b"".join(bytes((kind,)) + offset.to_bytes(2, "little") for kind, offset in places)
    binary = b"\x02" + head + entries + doubles + nested
    table_map = TableMapEvent(7, 1, "d", "t", bytes((ColumnType.JSON,)), b"\x04", b"\x01")
    (column,) = columns_of(table_map, server_version=server_version)
    codec = codec_of(column)
    convert = codec.avro_decoder(AvroOptions())
    assert convert is not None
    assert convert(binary) == text
    assert codec.text(codec.decode(binary)) == text

# ruff: noqa: RUF001, RUF003 - Cyrillic letters are meant
"""Metadata of table maps: blocks of real servers, the rules that differ between them, damaged blocks."""

from dataclasses import dataclass

import pytest

from millrace.binlog.columns import ColumnType, columns_of
from millrace.binlog.columns.column import BlobMetadata, DecimalMetadata, LengthMetadata, PackMetadata
from millrace.binlog.columns.metadata import (
    decode_column_metadata,
    decode_optional_metadata,
    encode_column_metadata,
    encode_optional_metadata,
)
from millrace.binlog.errors import InvalidValueError, MalformedError, TruncatedError, UnsupportedError
from millrace.binlog.fields import pack_lenenc


@dataclass
class Map:
    column_types: bytes
    column_metadata: bytes = b""
    optional_metadata: bytes = b""
    null_bits: bytes | None = None
    database: str = "d"
    table: str = "t"

    def __post_init__(self) -> None:
        if self.null_bits is None:
            self.null_bits = b"\xff" * ((len(self.column_types) + 7) // 8)


# CREATE TABLE y (y YEAR, a INT UNSIGNED, b INT, c DECIMAL(5,2) UNSIGNED, g GEOMETRY, t VARCHAR(3) latin1,
# p POINT, e ENUM('a'), j JSON) with FULL metadata.
TYPES = bytes((13, 3, 3, 246, 255, 15, 255, 254, 245))
METADATA = bytes.fromhex("050204030004f70104")
MYSQL_8_0_15 = bytes.fromhex(
    "0101a002010807020001041201790161016201630167017401700165016a0a03fcff000603010161"
)
MYSQL_9_7_4 = bytes.fromhex(
    "0101d002010807020001041201790161016201630167017401700165016a0a03fcff0006030101610c02ff80"
)
# The same with ", cc TEXT COMPRESSED, cv VARCHAR(20) COMPRESSED, ts TIMESTAMP(3), u UUID, i INET6, ii INET4,
# bn BINARY(5), bit BIT(3)" on MariaDB 11.4.5, where JSON is LONGTEXT.
TYPES_MARIADB = bytes((13, 3, 3, 246, 255, 15, 255, 254, 252, 140, 141, 17, 254, 254, 254, 254, 16))
METADATA_MARIADB = bytes.fromhex("050204030004f7010402150003fe10fe10fe04fe050300")
MARIADB_11_4_5 = bytes.fromhex(
    "0101d002093f0108032e0408050807020001042901790161016201630167017401700165016a0263630263760274730175"
    "016902696902626e036269740a01080603010161"
)


@pytest.mark.parametrize(
    ("block", "version"), [(MYSQL_8_0_15, "8.0.15"), (MYSQL_9_7_4, "9.7.4-2"), (MYSQL_9_7_4, None)]
)
def test_mysql(block: bytes, version: str | None) -> None:
    columns = columns_of(Map(TYPES, METADATA, block), server_version=version)
    assert [column.name for column in columns] == list("yabcgtpej")
    assert [column.unsigned for column in columns[1:4]] == [True, False, True]
    assert [column.charset for column in columns] == [None] * 5 + ["latin1", None, "utf8mb4", None]
    assert columns[5].collation_id == 8
    assert columns[7].type is ColumnType.ENUM
    assert columns[7].metadata == PackMetadata(1)
    assert columns[7].members == ("a",)
    assert [columns[4].geometry_type, columns[6].geometry_type] == [0, 1]
    assert all(column.nullable and column.visible for column in columns)


def test_mariadb_counts_other_columns_as_text() -> None:
    columns = columns_of(
        Map(TYPES_MARIADB, METADATA_MARIADB, MARIADB_11_4_5), server_version="11.4.5-MariaDB-log"
    )
    assert [column.unsigned for column in columns[:4]] == [True, True, False, True]
    charsets = {column.name: column.charset for column in columns}
    assert charsets["t"] == charsets["cc"] == charsets["cv"] == "latin1"
    assert charsets["j"] == "utf8mb4"
    assert charsets["u"] == charsets["i"] == charsets["ii"] == charsets["bn"] == "binary"
    assert charsets["g"] is charsets["ts"] is None
    # Compressed columns give MariaDB away where the version is not known.
    assert columns_of(Map(TYPES_MARIADB, METADATA_MARIADB, MARIADB_11_4_5)) == columns


@pytest.mark.parametrize("block", [MYSQL_8_0_15, MYSQL_9_7_4, MARIADB_11_4_5, b""])
def test_optional_metadata_is_rebuilt(block: bytes) -> None:
    assert encode_optional_metadata(decode_optional_metadata(block)) == block
    for size in range(1, len(block)):
        try:
            encode_optional_metadata(decode_optional_metadata(block[:size]))
        except MalformedError:
            continue


@pytest.mark.parametrize(("types", "block"), [(TYPES, METADATA), (TYPES_MARIADB, METADATA_MARIADB)])
def test_column_metadata_is_rebuilt(types: bytes, block: bytes) -> None:
    columns = columns_of(Map(types, block))
    assert encode_column_metadata(columns) == (types, block)
    for size in range(len(block)):
        with pytest.raises(TruncatedError):
            decode_column_metadata(types, block[:size])
    with pytest.raises(MalformedError):
        decode_column_metadata(types, block + b"\0")


@pytest.mark.parametrize(
    ("raw", "length"),
    [("fe0a", 10), ("feff", 255), ("ee00", 256), ("eefc", 508), ("defc", 764), ("cefc", 1020)],
)
def test_a_long_char_has_bits_of_its_length_in_the_type(raw: str, length: int) -> None:
    ((column_type, metadata),) = decode_column_metadata(b"\xfe", bytes.fromhex(raw))
    assert (column_type, metadata) == (ColumnType.STRING, LengthMetadata(length))
    columns = columns_of(Map(b"\xfe", bytes.fromhex(raw)))
    assert encode_column_metadata(columns) == (b"\xfe", bytes.fromhex(raw))


def test_lengths_of_strings() -> None:
    found = decode_column_metadata(bytes((15, 15, 252, 254)), bytes.fromhex("ff00000103f802"))
    assert [metadata.length_bytes for _, metadata in found[:3]] == [1, 2, 3]  # type: ignore[union-attr]
    assert found[3] == (ColumnType.SET, PackMetadata(2))


def test_types_that_are_in_no_row_image() -> None:
    for code in (6, 20, 100, 243, 244):
        with pytest.raises(UnsupportedError, match=rf"column 1 has type {code}"):
            decode_column_metadata(bytes((code,)), b"\0" * 8)


def test_table_maps_of_betas_of_5_1_have_no_metadata() -> None:
    with pytest.raises(UnsupportedError, match="no metadata"):
        columns_of(Map(bytes((3, 254)), null_bits=b""))


def test_names_are_utf8_and_may_be_anything() -> None:
    names = ["a.b", "`", " ", "$", "\\", "😀", "x" * 64, "é" * 64]
    block = bytes((4,)) + pack_lenenc(sum(len(n.encode()) + 1 for n in names))
    block += b"".join(bytes((len(name.encode()),)) + name.encode() for name in names)
    columns = columns_of(Map(b"\x03" * len(names), optional_metadata=block))
    assert [column.name for column in columns] == names


def test_primary_keys() -> None:
    columns = columns_of(Map(b"\x03\x03\x03", optional_metadata=bytes.fromhex("08020200")))
    assert [(column.key_position, column.key_prefix) for column in columns] == [(1, 0), (None, 0), (0, 0)]
    columns = columns_of(Map(b"\x03\x03\x03", optional_metadata=bytes.fromhex("09060200000a0105")))
    assert [(column.key_position, column.key_prefix) for column in columns] == [(1, 10), (2, 5), (0, 0)]
    with pytest.raises(InvalidValueError):
        columns_of(Map(b"\x03", optional_metadata=bytes.fromhex("080103")))


def test_visibility_and_vectors() -> None:
    columns = columns_of(Map(b"\x03\xf2\x03", b"\x04", bytes.fromhex("02013f0d01030c01c0")))
    assert [column.visible for column in columns] == [True, True, False]
    assert columns[1].dimensions == 3
    assert columns[1].metadata == BlobMetadata(4)


def test_unknown_fields_are_kept() -> None:
    block = bytes.fromhex("c80301020301018000")
    with pytest.raises(MalformedError):
        decode_optional_metadata(block)
    block = bytes.fromhex("c803010203010180")
    metadata = decode_optional_metadata(block)
    assert metadata.unknown == ((200, b"\x01\x02\x03"),)
    assert encode_optional_metadata(metadata) == block
    assert columns_of(Map(b"\x01", optional_metadata=block))[0].unsigned


@pytest.mark.parametrize(
    ("types", "block", "message"),
    [
        (b"\x03\x03", "040161", "reaches past|needs"),
        (b"\x03\x03", "04020161", "1 names for 2 columns"),
        (b"\x0f", "03020808", "2 collations are given for 1"),
        (b"\x0f", "0203080108", "for column 1 of 1"),
        (b"\x03", "01018001 0180".replace(" ", ""), "twice"),
        (b"\xff", "0702 0001".replace(" ", ""), "2 geometry types for 1"),
        (b"\x03" * 9, "010180", "1 bytes of signs for 9"),
    ],
)
def test_fields_that_contradict_the_columns(types: bytes, block: str, message: str) -> None:
    metadata = {b"\x0f": b"\x0a\x00", b"\xff": b"\x04"}.get(types, b"")
    with pytest.raises(MalformedError, match=message):
        columns_of(Map(types, metadata, bytes.fromhex(block)))


def test_a_collation_that_no_server_has() -> None:
    (column,) = columns_of(Map(b"\x0f", b"\x0a\x00", bytes.fromhex("0203fc60ea")))
    assert (column.collation_id, column.charset) == (60000, None)


def test_null_bits_fit_the_columns() -> None:
    with pytest.raises(InvalidValueError):
        columns_of(Map(b"\x03" * 9, null_bits=b"\xff"))
    nullable = columns_of(Map(b"\x03" * 9, null_bits=b"\x01\x01"))
    assert [column.nullable for column in nullable] == [True, *[False] * 7, True]


def test_members_are_in_their_columns_character_set() -> None:
    # ENUM('Привет','б') in cp1251, SET('日','本') in utf8mb4: t15.nopk of MySQL 9.7.4.
    types, metadata = bytes((254, 254)), bytes.fromhex("f701f801")
    enum = "02" + "06cff0e8e2e5f2" + "01e1"
    members = "02" + "03e697a5" + "03e69cac"
    block = f"06{len(enum) // 2:02x}{enum}05{len(members) // 2:02x}{members}0b0433fcff00"
    columns = columns_of(Map(types, metadata, bytes.fromhex(block)))
    assert columns[0].members == ("Привет", "б")
    assert columns[1].members == ("日", "本")
    assert [column.charset for column in columns] == ["cp1251", "utf8mb4"]
    assert encode_optional_metadata(decode_optional_metadata(bytes.fromhex(block))) == bytes.fromhex(block)


def test_decimal_metadata() -> None:
    assert decode_column_metadata(b"\xf6", b"\x41\x1e") == ((ColumnType.NEWDECIMAL, DecimalMetadata(65, 30)),)

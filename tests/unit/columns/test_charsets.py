# ruff: noqa: RUF001 - letters of other scripts are meant
"""Character sets: the tables from the servers, the codecs that stand in for them, collation ids."""

import io
import json
from importlib.resources import files
from typing import Any

import fastavro
import pytest

from millrace.avro.row_records import table_schemas
from millrace.binlog.columns import AvroOptions, ColumnType, codec_of
from millrace.binlog.columns.charsets import _collations as collations
from millrace.binlog.columns.charsets import _facts as facts
from millrace.binlog.columns.charsets import (
    charset,
    charset_of_collation,
    collation_servers,
    max_bytes_per_character,
)
from millrace.binlog.columns.metadata import (
    DefaultCharset,
    OptionalMetadata,
    encode_optional_metadata,
)
from millrace.binlog.errors import UnsupportedError
from millrace.binlog.events.rows import RowsOperation, TableMapEvent
from millrace.binlog.table import ColumnDefinition, TableDefinition, column_of, resolve_columns
from tests.unit.avro.test_row_records import plain
from tests.unit.kernel.both_rows import Way

ALL = sorted(
    {
        *facts()["single_byte"],
        *facts()["multi_byte"],
        "utf8mb3",
        "utf8mb4",
        "ucs2",
        "utf16",
        "utf16le",
        "utf32",
    }
)


@pytest.mark.parametrize("name", sorted(facts()["single_byte"]))
def test_single_byte_sets_are_the_servers_tables(name: str) -> None:
    one = charset(name)
    table = facts()["single_byte"][name]
    assert len(table) == 256
    for code, character in enumerate(table):
        raw = bytes([code])
        if character == "\ufffe":
            with pytest.raises(UnicodeDecodeError):
                one.decode(raw)
            continue
        assert one.decode(raw) == character
        if one.injective:
            assert one.encode(character) == raw
        else:
            assert one.decode(one.encode(character)) == character


@pytest.mark.parametrize("name", sorted(facts()["multi_byte"]))
def test_multi_byte_sets_differ_from_pythons_where_the_server_does(name: str) -> None:
    one = charset(name)
    for code, character in facts()["multi_byte"][name]["differences"].items():
        raw = bytes.fromhex(code)
        if character is None:
            with pytest.raises(UnicodeDecodeError):
                one.decode(raw)
        else:
            assert one.decode(b"a" + raw + b"b") == f"a{character}b"
            assert one.decode(one.encode(character)) == character


TEXTS = {
    "big5": ("a4a4a4e5", "中文"),
    "cp932": ("93fa967b8cea", "日本語"),
    "eucjpms": ("c6fccbdcb8ec", "日本語"),
    "euckr": ("c7d1b1b9beee", "한국어"),
    "gb18030": ("d6d0cec49439fc36", "中文😀"),
    "gb2312": ("d6d0cec4", "中文"),
    "gbk": ("d6d0cec4", "中文"),
    "sjis": ("93fa967b8cea", "日本語"),
    "ujis": ("c6fccbdcb8ec", "日本語"),
    "utf8mb3": ("e697a5e69cac20c3a9", "日本 é"),
    "utf8mb4": ("f09f988020e697a5", "😀 日"),
    "ucs2": ("65e5672c002000e9", "日本 é"),
    "utf16": ("d83dde00002000e9", "😀 é"),
    "utf16le": ("3dd800de2000e900", "😀 é"),
    "utf32": ("0001f60000000020000000e9", "😀 é"),
}


@pytest.mark.parametrize(("name", "raw", "text"), [(name, *one) for name, one in TEXTS.items()])
def test_texts_of_the_samples(name: str, raw: str, text: str) -> None:
    assert charset(name).decode(bytes.fromhex(raw)) == text
    assert charset(name).encode(text) == bytes.fromhex(raw)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("utf8mb4", "ff"),
        ("utf8mb4", "eda080"),
        ("utf8mb3", "f09f9880"),
        ("ucs2", "d83dde00"),
        ("ucs2", "00"),
        ("utf16", "d83d"),
        ("utf32", "00110000"),
        ("ascii", "80"),
        ("sjis", "81"),
        ("gbk", "81"),
        ("ujis", "8fa1"),
        ("gb18030", "ff"),
        ("gb18030", "813081"),
    ],
)
def test_bytes_that_mean_nothing_raise(name: str, raw: str) -> None:
    with pytest.raises(UnicodeDecodeError):
        charset(name).decode(bytes.fromhex(raw))


@pytest.mark.parametrize(
    ("name", "text"), [("latin1", "日"), ("utf8mb3", "😀"), ("ucs2", "😀"), ("sjis", "😀"), ("ujis", "한")]
)
def test_characters_that_a_set_lacks_raise(name: str, text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        charset(name).encode(text)


def test_where_the_names_mislead() -> None:
    assert charset("latin1").decode(b"\x80\x81") == "€\x81"
    assert charset("sjis").decode(b"\x81\x5f") == "\\"
    assert charset("eucjpms").decode(b"\x8f\xa2\xb7") == "～"


def test_utf8_is_utf8mb3() -> None:
    assert charset("utf8") is charset("utf8mb3") or charset("utf8").name == "utf8mb3"
    assert max_bytes_per_character("utf8") == 3
    assert max_bytes_per_character("latin1") == 1


def test_no_such_set() -> None:
    for name in ("klingon", "binary"):
        with pytest.raises(UnsupportedError):
            charset(name)


@pytest.mark.parametrize(
    ("collation", "name"),
    [
        (8, "latin1"),
        (33, "utf8mb3"),
        (45, "utf8mb4"),
        (63, "binary"),
        (192, "utf8mb3"),
        (248, "gb18030"),
        (255, "utf8mb4"),
        (303, "utf8mb4"),
        (323, "utf8mb4"),
        (2304, "utf8mb4"),
    ],
)
def test_collation_ids(collation: int, name: str) -> None:
    assert charset_of_collation(collation) == name


def test_collations_of_servers_that_are_not_known() -> None:
    with pytest.raises(UnsupportedError, match=r"collation id 60000 is not known to .*MariaDB"):
        charset_of_collation(60000)
    assert len(collation_servers()) >= 2


NEXT_YEARS = 60000
"""A collation that no server has yet."""

OF_NEXT_YEAR = TableMapEvent(
    1,
    1,
    "d",
    "t",
    bytes((ColumnType.LONG, ColumnType.VARCHAR, ColumnType.VARCHAR, ColumnType.BLOB, ColumnType.STRING))
    + bytes((ColumnType.STRING,)),
    bytes.fromhex("2800 2800 02 fe28 f701"),
    b"\x3e",
    encode_optional_metadata(
        OptionalMetadata(
            signedness=b"\0",
            column_charset=(255, NEXT_YEARS, NEXT_YEARS, NEXT_YEARS),
            column_name=(b"id", b"known", b"v", b"b", b"c", b"e"),
            enum_and_set_default_charset=DefaultCharset(NEXT_YEARS),
            enum_str_value=((b"x", "ä".encode()),),
            simple_primary_key=(0,),
        )
    ),
)
ROW = b"\0" + bytes.fromhex("07000000 026f6b 02c3a4 0200c3a4 02c3a4 02")
OF_CATALOGUE = TableDefinition(
    "d",
    "t",
    (
        ColumnDefinition(0, "id", "int(11)", nullable=False, key_position=0),
        ColumnDefinition(1, "known", "varchar(10)", charset="utf8mb4"),
        ColumnDefinition(2, "v", "varchar(10)", charset="utf8mb4"),
        ColumnDefinition(3, "b", "text", charset="utf8mb4"),
        ColumnDefinition(4, "c", "char(10)", charset="utf8mb4"),
        ColumnDefinition(5, "e", "enum('x','ä')", charset="utf8mb4", members=("x", "ä")),
    ),
)


def of_next_year(definition: TableDefinition | None, *, compiled: bool) -> dict[str, Any]:
    """Read a row with columns of a collation that is not known."""
    table = resolve_columns(OF_NEXT_YEAR, definition, server_version="9.7.4")
    records = Way(table, RowsOperation.WRITE, compiled=compiled)(ROW)
    assert isinstance(records, list)
    schema = fastavro.parse_schema(plain(table_schemas("s", table, AvroOptions()).envelope))
    return fastavro.schemaless_reader(io.BytesIO(records[0][1][5:]), schema, None)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_collation_that_is_not_known_costs_the_values_of_its_columns_alone(*, compiled: bool) -> None:
    found = of_next_year(None, compiled=compiled)
    assert found["after"] == {"id": 7, "known": "ok", **dict.fromkeys("vbce")}
    lost = {note["column"]: note["bytes"] for note in found["unrepresentable"]}
    assert lost == dict.fromkeys("vbce", "ä".encode())


@pytest.mark.parametrize("compiled", [True, False])
def test_the_catalogue_knows_the_character_set_of_a_collation_that_is_not_known(*, compiled: bool) -> None:
    found = of_next_year(OF_CATALOGUE, compiled=compiled)
    assert found["after"] == {"id": 7, "known": "ok", **dict.fromkeys("vbce", "ä")}
    assert found["unrepresentable"] is None


def test_a_character_set_that_is_not_known() -> None:
    """As the catalogue names it: the values are of no known text, and not bytes of a BLOB."""
    for column_type in ("varchar(10)", "char(10)", "text"):
        column = column_of(ColumnDefinition(0, "v", column_type, charset="klingon"), mariadb=False)
        codec = codec_of(column)
        assert codec.avro_type(AvroOptions()) == "string"
        assert codec.decode(b"abc") == b"abc"
        assert codec.sql_type() == column_type
        with pytest.raises(UnicodeDecodeError):
            codec.avro_decoder(AvroOptions())(b"abc")


def test_every_collation_belongs_to_a_set_that_can_be_read() -> None:
    for name in set(collations().values()):
        assert name == "binary" or charset(name).decode(b"") == ""


def test_the_file_is_as_the_generator_writes_it() -> None:
    text = files("millrace.binlog.columns").joinpath("charsets.json").read_text("ascii")
    assert json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n" == text


@pytest.mark.parametrize("name", ALL)
def test_ascii_is_ascii(name: str) -> None:
    text = "SELECT 'abc' FROM t WHERE id = 1;"
    one = charset(name)
    assert one.decode(one.encode(text)) == text

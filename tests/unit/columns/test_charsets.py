# ruff: noqa: RUF001 - letters of other scripts are meant
"""Character sets: the tables from the servers, the codecs that stand in for them, collation ids."""

import json
from importlib.resources import files

import pytest

from millrace.binlog.columns.charsets import _facts as facts
from millrace.binlog.columns.charsets import (
    charset,
    charset_of_collation,
    collation_servers,
    max_bytes_per_character,
)
from millrace.binlog.errors import UnsupportedError

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


def test_every_collation_belongs_to_a_set_that_can_be_read() -> None:
    for server in facts()["collations"]:
        for name in server["numbers"]:
            assert name == "binary" or charset(name).decode(b"") == ""


def test_the_file_is_as_the_generator_writes_it() -> None:
    text = files("millrace.binlog.columns").joinpath("charsets.json").read_text("ascii")
    assert json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n" == text


@pytest.mark.parametrize("name", ALL)
def test_ascii_is_ascii(name: str) -> None:
    text = "SELECT 'abc' FROM t WHERE id = 1;"
    one = charset(name)
    assert one.decode(one.encode(text)) == text

"""The tables of character sets and collations against running servers, code by code."""

import runpy
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any

import pytest

from millrace.binlog.columns.charsets import charset, charset_of_collation
from millrace.binlog.errors import UnsupportedError
from millrace.local import MariaDB, MySQL
from millrace.verify import collations

from .rows_world import MYSQL_IS_SLOW

TOOLS = Path(__file__).parents[2] / "tools"
GENERATOR = runpy.run_path(str(TOOLS / "generate_charsets.py"))
UNDEFINED = GENERATOR["UNDEFINED"]


def meaning(name: str, code: bytes) -> str:
    try:
        text = charset(name).decode(code)
    except UnicodeDecodeError:
        return UNDEFINED
    return text if len(text) == 1 else UNDEFINED


def codes_of(name: str) -> Any:
    """All codes; of the million and a half of four bytes in gb18030, each 97th."""
    if name not in GENERATOR["MULTI_BYTE_CODECS"]:
        return [bytes([code]) for code in range(256)]
    codes = list(GENERATOR["codes_of"](name))
    short = [code for code in codes if len(code) < 4]
    return short + list(islice((code for code in codes if len(code) == 4), 0, None, 97))


def test_every_code_means_what_the_server_says(database: MySQL | MariaDB) -> None:
    formulas = GENERATOR["BY_FORMULA"]
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS ORDER BY 1")
        names = [name for (name,) in cursor.fetchall() if name not in formulas]
        assert len(names) > 30
        compared = 0
        for name in names:
            different = {
                code.hex(): (meaning(name, code), text)
                for code, text in GENERATOR["converted"](cursor, name, codes_of(name))
                if meaning(name, code) != text
            }
            assert not different, (name, different)
            compared += 1
        print(f"{compared} character sets are equal")


def unicode_codes(encoding: str) -> list[bytes]:
    """Codes of Unicode's characters, surrogates among them: each 7th below U+10000, each 97th above."""
    edges = {
        0,
        0x7F,
        0x80,
        0x7FF,
        0x800,
        0xD7FF,
        0xD800,
        0xDBFF,
        0xDC00,
        0xDFFF,
        0xE000,
        0xFFFE,
        0xFFFF,
        0x10FFFF,
    }
    points = edges | set(range(0, 0x10000, 7)) | set(range(0x10000, 0x110000, 97))
    # The server writes "?" for what it does not know, and the table of big5 U+FFFD.
    return [chr(point).encode(encoding, "surrogatepass") for point in sorted(points - {0x3F, 0xFFFD})]


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("ucs2", "utf-16-be"),
        ("utf16", "utf-16-be"),
        ("utf16le", "utf-16-le"),
        ("utf32", "utf-32-be"),
        ("utf8mb3", "utf-8"),
        ("utf8mb4", "utf-8"),
    ],
)
def test_encodings_of_unicode_are_those_of_the_server(
    database: MySQL | MariaDB, name: str, encoding: str
) -> None:
    """What is no character, or one that the set lacks, is as little text to us as to the server."""
    spelled = "utf8" if name == "utf8mb3" and isinstance(database, MySQL) else name
    with database.connect() as connection, connection.cursor() as cursor:
        different = {
            code.hex(): (meaning(name, code), text)
            for code, text in GENERATOR["converted"](cursor, spelled, unicode_codes(encoding))
            if meaning(name, code) != text
        }
    assert not different


def test_every_collation_is_known(database: MySQL | MariaDB) -> None:
    generator = runpy.run_path(str(TOOLS / "generate_collations.py"))
    with database.connect() as connection:
        _, found = generator["collations"](connection)
    for number, (name, _) in found.items():
        assert charset_of_collation(number) == name


@pytest.mark.parametrize("number", [0, 65535])
def test_other_collations_are_not_made_up(number: int) -> None:
    with pytest.raises(UnsupportedError):
        charset_of_collation(number)


TEXTS = (
    *("", "a", "A", "ä", "Ä", "a\u0308", "aa", "å", "æ", "ae", "s", "ss", "ß", "i", "I", "\u0131", "İ", "y"),
    *("ü", "u", "v", "w", "ch", "cH", "key12", "KEY12", "key12 ", "key 12", "key-12", "key\x0112", "o", "ø"),
    *("ñ", "n", "Zoë", "zoe", "é", "e", "😀", "😁", "\uff41", "日", "本", "d", "đ", "l", "ł", "ij", "ĳ", "_"),
    *("`", "dz", "DZ", "l·", "z", "ž"),
)
"""What collations tell apart, or do not."""


@MYSQL_IS_SLOW
def test_texts_are_equal_as_the_server_says(database: MySQL | MariaDB) -> None:
    """Of each collation; where it is not certain, nothing is said."""
    with database.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATIONS ORDER BY 1"
        )
        told, wrong = 0, {}
        for collation, charset_name in cursor.fetchall():
            if collation == "binary":
                continue
            named = charset_name or "utf8mb4"
            cursor.execute(f"SELECT {', '.join(f'CONVERT(%s USING {named})' for _ in TEXTS)}", TEXTS)
            kept = [one for one, again in zip(TEXTS, cursor.fetchone(), strict=True) if again == one]
            pairs = list(combinations(kept, 2))
            compared = f"CONVERT(%s USING {named}) COLLATE {collation} = CONVERT(%s USING {named})"
            cursor.execute(f"SELECT {', '.join([compared] * len(pairs))}", tuple(chain.from_iterable(pairs)))
            found = {
                pair: (said, bool(equal))
                for pair, equal in zip(pairs, cursor.fetchone(), strict=True)
                if (said := collations.equal(collation, *pair)) is not None
                and (said or any(collations.is_certain(collation, one) for one in pair))
            }
            wrong |= {(collation, *pair): both for pair, both in found.items() if both[0] != both[1]}
            told += sum(said for said, _ in found.values())
        assert not wrong
        assert told > 500
        assert collations.equal("utf8mb4_0900_ai_ci", "key12", "KEY12")

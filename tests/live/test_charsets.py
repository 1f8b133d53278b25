"""The tables of character sets and collations against running servers, code by code."""

import runpy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from millrace.binlog.columns.charsets import charset, charset_of_collation
from millrace.binlog.errors import UnsupportedError
from millrace.local import MariaDB, MySQL

GENERATOR = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "generate_charsets.py"))
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


def test_every_collation_is_known(database: MySQL | MariaDB) -> None:
    with database.connect() as connection:
        found = GENERATOR["collations"](connection)
    for name, runs in found["numbers"].items():
        for run in runs.split():
            first, _, last = run.partition("-")
            for number in range(int(first), int(last or first) + 1):
                assert charset_of_collation(number) == name


@pytest.mark.parametrize("number", [0, 65535])
def test_other_collations_are_not_made_up(number: int) -> None:
    with pytest.raises(UnsupportedError):
        charset_of_collation(number)

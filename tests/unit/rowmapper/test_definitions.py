"""Definitions that a user gives in a file."""

from pathlib import Path

import pytest

from millrace.rowmapper.definitions import read_definitions
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

UTF8 = "CREATE DATABASE shop CHARACTER SET utf8mb4;"


def test_a_script(tmp_path: Path) -> None:
    script = tmp_path / "shop.sql"
    script.write_text(f"{UTF8} USE shop; CREATE TABLE t (id INT PRIMARY KEY);")
    assert list(read_definitions(script)) == [("shop", ""), ("shop", "t")]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"CREATE TABLE t (v VARCHAR(5)) -- gr\xfcn", "is not in UTF-8: .*0xfc"),
        (b"SELECT 1;", "has neither CREATE TABLE nor CREATE DATABASE"),
        (b"CREATE TABLE t (id INT);", "the definition of t is unknown: USE is missing before it"),
        (
            b"USE shop; CREATE TABLE t (v WHATEVER);",
            r"the definition of shop\.t is unknown: .*the type whatever of column v is not known",
        ),
        (
            b"USE shop; CREATE TABLE t (v ENUM('%s') CHARACTER SET latin1);"
            % b"','".join(b"%09d" % each for each in range(50_000)),
            r"the definition of shop\.t is unknown: it is too large: more than 1,000,000 bytes are kept",
        ),
    ],
)
def test_a_script_that_gives_none(tmp_path: Path, content: bytes, text: str) -> None:
    script = tmp_path / "shop.sql"
    script.write_bytes(content)
    with pytest.raises(UserError, match=f"shop.sql:? {text}") as raised:
        read_definitions(script)
    assert raised.value.exit_code == ExitCode.SETTINGS

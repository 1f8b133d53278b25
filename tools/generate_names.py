# ruff: noqa: INP001 - a script, no package
"""Write the letters of millrace/binlog/names.py from a running server: those that it has a lower case of.

Usage::

    python tools/generate_names.py mysql://root@127.0.0.1:3306
"""

import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

OUTPUT = Path(__file__).parent.parent / "millrace" / "binlog" / "names.py"
_AT_ONCE = 2000
_WIDTH = 90
_DOTTED_I = "\u0130"


def capitals(url: str) -> str:
    """Ask a server which letters beyond ASCII its identifiers' collation changes to lower case."""
    parts = urlsplit(url)
    letters = [chr(code) for code in range(0x80, 0x10000) if not 0xD800 <= code < 0xE000]
    found = []
    with (
        pymysql.connect(
            host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or ""
        ) as connection,
        connection.cursor() as cursor,
    ):
        for start in range(0, len(letters), _AT_ONCE):
            asked = letters[start : start + _AT_ONCE]
            lower = "LOWER(CONVERT(_utf16 x'{:04x}' USING utf8) COLLATE utf8_general_ci)"
            cursor.execute(
                "SELECT " + ", ".join(f"CONVERT({lower.format(ord(one))} USING utf8mb4)" for one in asked)
            )
            (row,) = cursor.fetchall()
            found += [letter for letter, answer in zip(asked, row, strict=True) if letter != answer]
            others = [one for one, answer in zip(asked, row, strict=True) if answer not in (one, one.lower())]
            assert others in ([], [_DOTTED_I]), others
    return "".join(found).replace(_DOTTED_I, "")


def write(letters: str) -> None:
    """Replace the letters in the module."""
    lines = [f'    "{letters[start : start + _WIDTH]}"\n' for start in range(0, len(letters), _WIDTH)]
    text = OUTPUT.read_text(encoding="utf-8")
    text = re.sub(
        r"(_CAPITALS: Final = \(\n).*?(?=\)\n)",
        lambda match: match[1] + "".join(lines),
        text,
        flags=re.DOTALL,
    )
    OUTPUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(capitals(sys.argv[1]))

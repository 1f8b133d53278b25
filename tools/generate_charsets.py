# ruff: noqa: INP001 - a script, no package
"""Write millrace/binlog/columns/charsets.json from running servers: what each byte sequence means to them.

Usage::

    python tools/generate_charsets.py mysql://root@127.0.0.1:3306

The server (MySQL 8.0 or newer) is asked by CONVERT for the meaning of every code of every character set.
Multi-byte character sets are stored as their differences from the nearest codec of Python, so that nothing is
assumed about how near it is. Takes a minute.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

OUTPUT = Path(__file__).parent.parent / "millrace" / "binlog" / "columns" / "charsets.json"

MULTI_BYTE_CODECS = {
    "big5": ("big5", "cp950", "big5hkscs"),
    "cp932": ("cp932", "shift_jis"),
    "eucjpms": ("euc_jp", "euc_jis_2004"),
    "euckr": ("euc_kr", "cp949"),
    "gb18030": ("gb18030",),
    "gb2312": ("gb2312", "gbk"),
    "gbk": ("gbk", "gb18030"),
    "sjis": ("shift_jis", "cp932"),
    "ujis": ("euc_jp", "euc_jis_2004"),
}
"""The codecs of Python that might be near each character set; the nearest is taken."""

BY_FORMULA = ("binary", "ucs2", "utf16", "utf16le", "utf32", "utf8", "utf8mb3", "utf8mb4")
"""Character sets that are encodings of Unicode by a formula, or no text at all."""

UNDEFINED = "\ufffe"
"""What :func:`codecs.charmap_decode` takes as undefined."""


def connect(url: str) -> pymysql.connections.Connection:
    """Connect to ``mysql://user:password@host:port``."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=parts.username,
        password=parts.password or "",
        charset="utf8mb4",
    )


def codes_of(charset: str) -> Iterator[bytes]:
    """Yield every byte sequence that could be one character of a multi-byte character set."""
    high = range(0x80, 0x100)
    for one in range(0x100):
        yield bytes([one])
    for pair in product(high, range(0x100)):
        yield bytes(pair)
    if charset in ("ujis", "eucjpms"):
        for pair in product(high, high):
            yield bytes([0x8F, *pair])
    if charset == "gb18030":
        digits = range(0x30, 0x3A)
        for four in product(range(0x81, 0xFF), digits, range(0x81, 0xFF), digits):
            yield bytes(four)


def converted(
    cursor: pymysql.cursors.Cursor, charset: str, codes: Iterable[bytes]
) -> Iterator[tuple[bytes, str]]:
    """Ask the server for the character of each code; :data:`UNDEFINED` where it knows none."""
    chunk: list[bytes] = []

    def ask() -> Iterator[tuple[bytes, str]]:
        terms = ",".join(
            f"IFNULL(HEX(CONVERT(CONVERT(x'{code.hex()}' USING {charset}) USING utf32)),'')" for code in chunk
        )
        cursor.execute(f"SELECT {terms}")
        for code, answer in zip(chunk, cursor.fetchone(), strict=True):
            text = bytes.fromhex(answer).decode("utf-32-be", "surrogatepass")
            lost = len(text) != 1 or (text == "?" and code != b"?") or "\ud800" <= text <= "\udfff"
            # Where a code of big5 means nothing its table has U+FFFD, for which only gb18030 has a code.
            lost |= text == "\ufffd" and charset != "gb18030"
            yield code, UNDEFINED if lost else text

    for code in codes:
        chunk.append(code)
        if len(chunk) == 2000:
            yield from ask()
            chunk.clear()
    if chunk:
        yield from ask()


def python_character(codec: str, code: bytes) -> str:
    """Decode one code with a codec of Python; :data:`UNDEFINED` unless it is exactly one character."""
    try:
        text = code.decode(codec)
    except UnicodeDecodeError:
        return UNDEFINED
    return text if len(text) == 1 else UNDEFINED


def multi_byte(cursor: pymysql.cursors.Cursor, charset: str) -> dict[str, object]:
    """Find the nearest codec of Python and the codes in which it differs."""
    answers = list(converted(cursor, charset, codes_of(charset)))
    best: dict[str, object] = {}
    for codec in MULTI_BYTE_CODECS[charset]:
        differences = {
            code.hex(): None if text == UNDEFINED else text
            for code, text in answers
            if python_character(codec, code) != text
        }
        if not best or len(differences) < len(best["differences"]):  # type: ignore[arg-type]
            best = {"codec": codec, "differences": differences}
    return best


def main() -> None:
    """Ask the server and write the file."""
    (url,) = sys.argv[1:]
    connection = connect(url)
    cursor = connection.cursor()
    cursor.execute("SELECT VERSION()")
    (version,) = cursor.fetchone()
    cursor.execute("SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS ORDER BY 1")
    single: dict[str, str] = {}
    multi: dict[str, object] = {}
    for charset, _ in cursor.fetchall():
        if charset in MULTI_BYTE_CODECS:
            multi[charset] = multi_byte(cursor, charset)
        elif charset not in BY_FORMULA:
            codes = (bytes([code]) for code in range(256))
            single[charset] = "".join(text for _, text in converted(cursor, charset, codes))
    facts = {
        "server": version,
        "single_byte": single,
        "multi_byte": multi,
    }
    OUTPUT.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="ascii")
    connection.close()


if __name__ == "__main__":
    main()

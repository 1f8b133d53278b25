"""Which tables the statements among events touch."""

import struct
import zlib

import pytest

from millrace.mysql.packets import EventPiece
from services.reader.statements import touched


def query(text: bytes, *, database: bytes = b"d", checksum: bool = True) -> EventPiece:
    body = struct.pack("<IIBHH", 9, 0, len(database), 0, 0) + database + b"\0" + text
    size = 19 + len(body) + 4 * checksum
    data = struct.pack("<IBIIIH", 1, 2, 1, size, 0, 0) + body
    data += struct.pack("<I", zlib.crc32(data)) if checksum else b""
    return EventPiece(data, first=True, last=True, event_size=size)


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"BEGIN", []),
        (b"CREATE TABLE t (a INT)", [("d", "t")]),
        (b"drop table t", [("d", "t")]),
        (b"RENAME TABLE a TO other.b, `c c` TO a", [("d", "a"), ("other", "b"), ("d", "c c"), ("d", "a")]),
        (b"CREATE TEMPORARY TABLE t (a INT)", []),
        (b"INSERT INTO t VALUES ('alter table x')", []),
        (b"ALTER USER u", []),
    ],
)
def test_tables(text: bytes, expected: list[tuple[str, str]], *, checksum: bool) -> None:
    assert list(touched([query(text, checksum=checksum)], checksums=checksum)) == expected


def test_what_is_no_statement_is_no_concern() -> None:
    piece = query(b"ALTER TABLE t ADD a INT")
    pieces = [
        piece._replace(data=piece.data[:30]),
        piece._replace(first=False),
        piece._replace(data=piece.data[:4] + b"\x1e" + piece.data[5:]),
        piece._replace(data=piece.data[:24]),
    ]
    assert list(touched(pieces, checksums=True)) == []

"""Which tables the statements among events touch."""

import struct
import zlib

import pytest

from millrace.mysql.packets import EventPiece
from millrace.reader.alterations import Alterations
from millrace.reader.statements import touched

from .logs import Log


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ALTER TABLE t MODIFY a INT", {"t"}),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b)", {"t"}),
        ("ALTER TABLE t RENAME TO u", {"t", "u"}),
        ("RENAME TABLE t TO v, u TO t", {"t", "u", "v"}),
        ("DROP TABLE IF EXISTS t, u", {"t", "u"}),
        ("DROP DATABASE d", {"t", "u", "v"}),
        ("ALTER TABLE t FROBNICATE", {"t"}),
        ("ALTER TABLE t ADD INDEX (a), DROP INDEX b, ENGINE = InnoDB, ALTER a SET DEFAULT 7", set()),
        ("ALTER TABLE t DROP PARTITION p1", set()),
        ("ALTER TABLE t ADD PARTITION (PARTITION p2 VALUES LESS THAN (7))", set()),
        ("CREATE INDEX i ON t (a)", set()),
        ("CREATE TABLE IF NOT EXISTS t (a INT)", set()),  # it was not there before, or stays as it was
        ("TRUNCATE TABLE t", set()),
        ("DROP TEMPORARY TABLE t", set()),
        ("INSERT INTO t VALUES ('alter table t')", set()),
    ],
)
def test_what_may_have_altered_tables(text: str, expected: set[str]) -> None:
    found = Alterations(any_case=False)
    found.feed("bin.000001", 4, query(text.encode(), checksum=False))
    assert {name for name in ("t", "u", "v") if found.of("d", name)} == expected
    assert found.of("other", "t") is None


def test_the_last_place_counts() -> None:
    found = Alterations(any_case=True)
    for log_file, position, text in (
        ("bin.9", 100, b"ALTER TABLE T ADD a INT"),
        ("bin.10", 50, b"DROP DATABASE D"),
        ("bin.10", 70, b"CREATE TABLE t (a INT)"),
    ):
        found.feed(log_file, position, query(text, checksum=False))
    assert found.of("d", "t") == found.of("d", "u") == ("bin.10", 50)
    found.feed("bin.10", 90, query(b"ALTER TABLE t DROP a", checksum=False))
    assert (found.of("d", "t"), found.of("d", "u")) == (("bin.10", 90), ("bin.10", 50))


def test_a_log_with_checksums() -> None:
    log = Log()
    found = Alterations(any_case=False)
    for position, data in enumerate(log.events):
        found.feed(log.name, position, EventPiece(data, first=True, last=True, event_size=len(data)))
    found.feed(log.name, 500, query(b"DROP TABLE t"))
    assert found.of("d", "t") == (log.name, 500)

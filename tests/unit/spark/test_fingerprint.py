"""Fingerprints of statements: what is the same work has the same, and any bytes have one."""

import pytest

from millrace.spark.fingerprint import LONGEST, fingerprint


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (b"INSERT INTO t (a,b) VALUES (1,'x'),(2, -3.5), (NULL, DEFAULT);", "insert into t(a,b) values(?)"),
        (b"select * from `T x` where a in (1,2,3) and b=-1", "select * from `T x` where a in(?) and b=?"),
        (b"SELECT c1 FROM t2 -- why\nWHERE d LIKE 'it''s \\' %' # x", "select c1 from t2 where d like ?"),
        (b"UPDATE t SET x = 0x1F, y = 1.5e-7, z=_utf8'a' /* '", "update t set x=?,y=?,z=_utf8?"),
        (b"DELETE FROM a.b WHERE x > - 7 LIMIT 10", "delete from a.b where x>? limit ?"),
        (b"UPDATE t SET n = n + 1, m=m-1 WHERE id <= 7", "update t set n=n+?,m=m-? where id<=?"),
        (b"", ""),
        (b"insert into x values ('not ended", "insert into x values(?"),
        ("UPDATE größe SET \u202ex = 1".encode(), r"update größe set \u202ex=?"),
    ],
)
def test_values_are_taken_out(statement: bytes, expected: str) -> None:
    assert fingerprint(statement) == expected


def test_the_number_of_rows_makes_no_difference() -> None:
    one = fingerprint(b"INSERT INTO t VALUES (1,'a')")
    many = b"INSERT INTO t VALUES " + b",".join(b"(%d,'b')" % n for n in range(300))
    assert fingerprint(many) == one


@pytest.mark.parametrize(
    "piece", [b"'\\", b"''", b'"\\', b"(1,", b"((", b"- ", b"/*", b"1e", b"NULL,", b"\xff", b"`"]
)
def test_no_text_takes_long_or_becomes_long(piece: bytes) -> None:
    assert len(fingerprint(piece * 1_000_000)) <= LONGEST

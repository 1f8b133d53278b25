"""What becomes of values whose column gets another type."""

from decimal import Decimal
from typing import Any

import pytest

from millrace.binlog.table import ColumnDefinition
from millrace.verify.conversions import UnknownValue, converted


def column(column_type: str, charset: str | None = None, *, nullable: bool = True) -> ColumnDefinition:
    members = tuple(column_type[5:-1].replace("'", "").split(",")) if column_type.startswith("enum") else None
    unsigned = "unsigned" in column_type
    return ColumnDefinition(
        0, "c", column_type, nullable, unsigned=unsigned, charset=charset, members=members
    )


@pytest.mark.parametrize(
    ("before", "after", "value", "expected"),
    [
        (column("int"), column("bigint unsigned"), 7, 7),
        (column("int"), column("bigint unsigned"), -7, None),
        (column("bigint"), column("tinyint"), 127, 127),
        (column("bigint"), column("tinyint"), 128, None),
        (column("int"), column("decimal(5,2)"), 999, Decimal(999)),
        (column("int"), column("decimal(5,2)"), 1000, None),
        (column("int"), column("varchar(2)", "latin1"), -7, "-7"),
        (column("int"), column("varchar(2)", "latin1"), -10, None),
        (column("decimal(5,2)"), column("decimal(6,1)"), Decimal("1.50"), Decimal("1.50")),
        (column("decimal(5,2)"), column("decimal(6,1)"), Decimal("1.55"), Decimal("1.6")),
        (
            column("decimal(12,4)"),
            column("decimal(14,2)"),
            Decimal("-12345678.9950"),
            Decimal("-12345679.00"),
        ),
        (column("decimal(5,2)"), column("decimal(3,1)"), Decimal("99.95"), None),
        (column("float"), column("double"), 0.5, 0.5),
        (column("double"), column("float"), 0.5, 0.5),
        (column("double"), column("float(7,2)"), 0.5, None),
        (column("varchar(5)", "latin1"), column("text", "utf8mb4"), "ä", "ä"),
        (column("varchar(5)", "utf8mb4"), column("varchar(5)", "latin1"), "ж", None),
        (column("varchar(5)", "latin1"), column("varchar(9)", "latin1"), "ä", "ä"),
        (column("varchar(5)", "utf8mb4"), column("varchar(5)", "utf8mb3"), "\U0001f600", None),
        (column("varchar(5)", "latin1"), column("char(5)", "latin1"), "a  ", "a"),
        (column("varchar(5)", "latin1"), column("varchar(2)", "latin1"), "abc", None),
        (column("enum('a','b')", "latin1"), column("enum('c','b')", "latin1"), "b", "b"),
        (column("enum('a','b')", "latin1"), column("enum('c','b')", "latin1"), "a", None),
        (column("varbinary(3)"), column("blob"), b"\xff", b"\xff"),
        (column("binary(3)"), column("binary(4)"), b"abc", b"abc\0"),
        (column("bit(3)"), column("varbinary(2)"), b"\5", b"5"),
        (column("varchar(5)", "gone"), column("varbinary(9)"), "ä", None),
        (column("date"), column("datetime(2)"), "2026-01-31", "2026-01-31 00:00:00.00"),
        (column("datetime"), column("datetime(3)"), "2026-01-31 08:00:01", "2026-01-31 08:00:01.000"),
        (column("datetime(3)"), column("datetime"), "2026-01-31 08:00:01.600", None),
        (column("datetime"), column("timestamp"), "2026-01-31 08:00:01", None),
        (column("json"), column("text", "utf8mb4"), "{}", None),
        (column("int"), column("int", nullable=False), 1, 1),
        (column("int"), column("int", nullable=False), None, None),
    ],
)
def test_only_what_is_certain_is_told(
    before: ColumnDefinition, after: ColumnDefinition, value: Any, expected: Any
) -> None:
    assert converted(before, after, value, "why") == (
        UnknownValue("why", value) if expected is None else expected
    )


def test_null_stays_null() -> None:
    assert converted(column("int"), column("varchar(5)", "latin1"), None, "why") is None

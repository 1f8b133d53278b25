"""What ALTER TABLE makes of values, against what both servers make of them in strict mode."""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.table import ColumnDefinition
from millrace.local import MariaDB, MySQL
from millrace.verify.conversions import UnknownValue, converted
from millrace.verify.tables import Column, from_server

VALUES: dict[str, tuple[str, ...]] = {
    "TINYINT": ("1", "-128", "127"),
    "SMALLINT UNSIGNED": ("0", "65535"),
    "INT": ("-2147483648", "5", "70000"),
    "INT(6) UNSIGNED ZEROFILL": ("7", "1234567"),
    "BIGINT": ("4611686018427387905", "-3", "16777217"),
    "BIGINT UNSIGNED": ("18446744073709551615", "2"),
    "YEAR": ("1999", "0"),
    "BIT(3)": ("5",),
    "BIT(12)": ("2748", "1"),
    "DECIMAL(10,2)": ("1.50", "-2.50", "2.50", "1234567.89", "-0.00"),
    "DECIMAL(20,0)": ("12345678901234567890", "7"),
    "FLOAT": ("0.1", "16777216", "2.5", "-3.5", "1e20"),
    "DOUBLE": ("0.1", "2.5", "3.5", "-2.5", "0.49999999999999994", "1e300", "123456789.125", "1.005"),
    "VARCHAR(30) CHARACTER SET utf8mb4": (
        *("'12'", "'-7'", "'1.50'", "'2.5'", "'abc  '", "'é€'", "'😀'", "''", "'a,c'", "' 12'", "'007'"),
        *("'+3'", "'1e3'", "'0x41'", "'2026-01-31'", "'10:11:12'", "'1234'"),
    ),
    "CHAR(10) CHARACTER SET latin1": ("'é'", "'abc'", "'€'", "'12'"),
    "TEXT CHARACTER SET latin1": ("'é'", "'abc  '", "'7'"),
    "VARCHAR(10) CHARACTER SET ucs2": ("'é'", "'abc'", "'-3'"),
    "BINARY(4)": ("'ab'", "0x00FF"),
    "VARBINARY(10)": ("'ab'", "0xFF", "0xC3A9", "'ab\\0'"),
    "BLOB": ("'ab'", "0xC3A9"),
    "DATE": ("'2026-01-31'",),
    "DATETIME": ("'2026-01-31 10:11:12'",),
    "DATETIME(3)": (
        *("'2026-01-31 10:11:12.400'", "'2026-12-31 23:59:59.500'", "'2026-01-31 10:11:12.000'"),
        *("'2026-01-31 10:11:12.499'", "'2026-12-31 23:59:59.499'"),
    ),
    "DATETIME(6)": ("'2026-12-31 23:59:59.999999'", "'2026-12-31 23:59:59.123456'"),
    "TIMESTAMP(3)": ("'2026-01-31 10:11:12.400'", "'2026-01-31 10:11:12.600'"),
    "TIME": ("'10:11:12'", "'-838:59:59'"),
    "TIME(3)": ("'-10:11:12.600'", "'10:11:12.400'", "'-00:00:00.449'"),
    "ENUM('a','b','c','7')": ("'a'", "'7'"),
    "SET('a','b','c')": ("'a,c'", "''"),
    "JSON": ("'{\"a\": [1, 2]}'", "'\"x\"'"),
}
"""Types, each with values as SQL."""

TYPES = (
    *VALUES,
    *("CHAR(3) CHARACTER SET utf8mb4", "VARCHAR(4) CHARACTER SET utf8mb3", "TINYTEXT CHARACTER SET utf8mb4"),
    *("VARCHAR(20) CHARACTER SET latin1", "VARCHAR(20) CHARACTER SET cp1251", "TINYBLOB", "BINARY(6)"),
    *("LONGTEXT CHARACTER SET utf8mb4", "MEDIUMINT", "BIGINT(8) UNSIGNED ZEROFILL", "BIT(8)", "TIMESTAMP"),
    *("SET('c','b','a')", "ENUM('c','a')", "DECIMAL(5,1)", "DECIMAL(5,2) UNSIGNED", "FLOAT(7,2)"),
    *("DATETIME(1)", "TIME(1)"),
)
LEAST = 1100
"""Conversions that are computed."""


def definition(text: str) -> ColumnDefinition:
    """Return a column of a type as the catalogue has it."""
    column_type, _, charset = text.partition(" CHARACTER SET ")
    members = tuple(re.findall(r"'([^']*)'", text)) if text.startswith(("ENUM", "SET")) else None
    column_type = column_type if members else column_type.lower()
    return ColumnDefinition(
        0, "c", column_type, unsigned="unsigned" in column_type, members=members,
        charset=charset or ("utf8mb4" if members else None),
    )  # fmt: skip


def column(name: str, text: str) -> Column:
    sql = SqlType.parse(text)
    fraction = sql.argument(0) if sql.name in ("datetime", "timestamp", "time") else 0
    return Column(name, sql.name, fraction)


@pytest.fixture
def cursor(database: MySQL | MariaDB) -> Iterator[Any]:
    with closing(database.connect(conv={})) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE conversions")
        cursor.execute("USE conversions")
        cursor.execute("SET time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',ALLOW_INVALID_DATES')")
        yield cursor
        cursor.execute("DROP DATABASE conversions")


def selected(cursor: Any, columns: list[Column]) -> list[tuple[Any, ...]]:
    """Return the rows of a table in the common form, their columns as they are named."""
    cursor.execute(f"SELECT {', '.join(each.expression for each in columns)} FROM t ORDER BY id")
    return [
        tuple(from_server(each, text) for each, text in zip(columns, row, strict=True))
        for row in cursor.fetchall()
    ]


def test_servers_make_of_values_what_is_computed(cursor: Any) -> None:
    """What is not computed is not in the table, so a strict server refuses none of the statements."""
    computed = 0
    for old, values in VALUES.items():
        others = [each for each in TYPES if each != old]
        names = [f"c{number}" for number in range(len(others))]
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, v {old} NULL)")
        for number, value in enumerate(values):
            cursor.execute(f"INSERT INTO t VALUES ({number}, {value})")
        before = [value for (value,) in selected(cursor, [column("v", old)])]
        wanted = [
            [converted(definition(old), definition(new), value, "why") for new in others] for value in before
        ]
        cursor.execute(f"ALTER TABLE t {', '.join(f'ADD COLUMN {name} {old} NULL' for name in names)}")
        for number, row in enumerate(wanted):
            told = [
                f"{name} = v"
                for name, made in zip(names, row, strict=True)
                if not isinstance(made, UnknownValue)
            ]
            cursor.execute(f"UPDATE t SET {', '.join(['v = v', *told])} WHERE id = {number}")
            computed += len(told)
        changes = [f"MODIFY {name} {new} NULL" for name, new in zip(names, others, strict=True)]
        cursor.execute(f"ALTER TABLE t {', '.join(changes)}")
        found = selected(cursor, [column(name, new) for name, new in zip(names, others, strict=True)])
        for value, row, made in zip(before, wanted, found, strict=True):
            for new, expected, actual in zip(others, row, made, strict=True):
                if not isinstance(expected, UnknownValue):
                    assert (expected, type(expected)) == (actual, type(actual)), (old, new, value)
        cursor.execute("DROP TABLE t")
    assert computed > LEAST

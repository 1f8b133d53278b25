"""Ranges of keys in SQL, and rows cut into pieces."""

import pytest

from millrace.binlog.table import ColumnDefinition, IndexDefinition, TableDefinition, resolve_columns
from millrace.mysql.connection import Row
from millrace.snapshot.images import SelectedTable
from millrace.snapshot.tables import _Cutter, _literal, after_key, key_columns, key_of, split_key


def definition(*types):
    columns = tuple(
        ColumnDefinition(ordinal, f"k{ordinal}", kind, charset=charset, key_position=len(types) - 1 - ordinal)
        for ordinal, (kind, charset) in enumerate(types)
    )
    return TableDefinition("shop", "t", columns)


INT = ("int(11)", None)


def test_rows_after_a_key_in_its_order():
    keys = key_columns(definition(INT, ("enum('a')", "latin1")))
    assert [key.name for key in keys] == ["k1", "k0"]
    assert after_key(keys, ()) == []
    assert after_key(keys, ("3",)) == ["CAST(`k1` AS UNSIGNED) >= 3"]
    assert after_key(keys, ("3", "4")) == [
        "CAST(`k1` AS UNSIGNED) >= 3",
        "((CAST(`k1` AS UNSIGNED) > 3) OR (CAST(`k1` AS UNSIGNED) = 3 AND `k0` > 4))",
    ]


def test_a_table_is_read_by_a_unique_key():
    """Its rows have the key that those of the log have."""
    columns = tuple(ColumnDefinition(at, name, "int(11)", nullable=False) for at, name in enumerate("ab"))
    table = TableDefinition("shop", "t", columns, indexes=(IndexDefinition("u", True, (("b", 0),)),))
    assert [key.name for key in key_columns(table)] == ["b"]
    read = resolve_columns(SelectedTable(table, mariadb=False).table_map, table, server_version="9.7.4")
    assert [column.name for column in read.key_columns] == ["b"]


def test_a_key_that_orders_rows_otherwise_is_another():
    one = definition(INT, ("enum('a')", "latin1"))
    assert key_of(one) == "`k1` enum('a'), `k0` int(11)"
    assert key_of(definition(INT, ("enum('b','a')", "latin1"))) != key_of(one)
    assert key_of(TableDefinition("shop", "t", (ColumnDefinition(0, "a", "int(11)"),))) == ""


@pytest.mark.parametrize(
    ("kind", "charset", "value", "literal"),
    [
        ("bigint(20) unsigned", None, b"18446744073709551615", "18446744073709551615"),
        ("decimal(5,2)", None, b"-1.50", "-1.50"),
        ("timestamp(3)", None, b"1700000000.125", "FROM_UNIXTIME(1700000000.125)"),
        ("datetime", None, b"2024-01-02 03:04:05", "'2024-01-02 03:04:05'"),
        ("bit(9)", None, b"\x01\x01", "257"),
        ("varchar(9)", "utf8mb4", "ü'".encode(), "_utf8mb4 x'c3bc27'"),
        ("binary(2)", None, b"\0a", "x'0061'"),
        ("uuid", None, b"123e4567-e89b-12d3-a456-426655440000", "'123e4567-e89b-12d3-a456-426655440000'"),
    ],
)
def test_a_key_as_a_literal(kind, charset, value, literal):
    assert _literal(definition((kind, charset)).columns[0], value) == literal


class Ends:
    """A table whose first key column lies between two values."""

    def __init__(self, low, high):
        self._ends = Row({"low": low, "high": high})

    def row(self, sql, doing):
        return self._ends


def test_a_key_is_cut_into_ranges():
    one = definition(INT)
    assert split_key(Ends("0", "100"), one, 4, 50) == [
        ((), "25"),
        (("24",), "50"),
        (("49",), "75"),
        (("74",), ""),
    ]
    assert split_key(Ends("0", "100"), definition(INT, INT), 2, 50) == [((), "50"), (("50",), "")]
    for ends, table, parts in (
        (Ends("0", "40"), one, 4),
        (Ends(None, None), one, 4),
        (Ends("0", "100"), one, 1),
        (Ends("0", "100"), definition(("varchar(9)", "utf8mb4")), 4),
    ):
        assert split_key(ends, table, parts, 50) == [((), "")]


class Table:
    """Rows of one value, which are their own images; the kernel knows those without a z."""

    @staticmethod
    def image(row):
        return row[0]

    @staticmethod
    def kernel():
        return Compiled()


class Compiled:
    """Takes packets of a length of one byte and a value."""

    @staticmethod
    def take(packets, number, most):
        at, images = 0, []
        while at < len(packets):
            value = bytes(packets[at + 1 : at + 1 + packets[at]])
            if b"z" in value or sum(map(len, images)) + len(value) > most:
                break
            images.append(value)
            at += 1 + len(value)
        return b"".join(images), len(images), at, number + len(images)


def test_rows_are_cut_into_pieces():
    cutter = _Cutter(Table(), 10)
    rows = [(b"aaaa",), (b"bbbb",), (b"c" * 30,), (b"d",), (b"e",)]
    assert list(cutter.pieces(iter(rows))) == [(2, b"aaaabbbb"), (1, b"c" * 30), (2, b"de")]
    assert (cutter.rows, cutter.last) == (5, (b"e",))


def test_rows_that_the_kernel_takes_lie_between_the_others():
    cutter = _Cutter(Table(), 10)

    def rows():
        yield (b"first",)
        packets = bytearray(b"\3aaa\2bb\4cccc\3zzz")
        taken, number = cutter.take(packets, 7)
        assert (taken, number) == (7, 9)  # there is no room for more
        yield (b"cccc",)
        assert cutter.take(packets[12:], 10) == (0, 10)
        yield (b"zzz",)
        assert cutter.take(bytearray(b"\1d"), 11) == (2, 12)
        yield (b"last",)

    assert list(cutter.pieces(rows())) == [(3, b"firstaaabb"), (3, b"cccczzzd"), (1, b"last")]
    assert (cutter.rows, cutter.last) == (7, (b"last",))

"""Rows are taken as they come from a server: all of them, in their order, and an error is told."""

import itertools

import pytest

from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.mysql.address import MysqlAddress
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.errors import SourceError
from millrace.snapshot.images import SelectedTable
from millrace.snapshot.tables import _Cutter
from tests.hostile.mysql_server import MysqlServer

COLUMNS = (ColumnDefinition(0, "id", "int(11)"), ColumnDefinition(1, "v", "longtext", charset="utf8mb4"))
ROWS = [(b"%d" % number, None if number % 7 == 0 else b"v" * (number % 500)) for number in range(3000)]
ROWS[1234] = (b"1234", b"x" * 200_000)


@pytest.fixture
def selected(either_codec):
    return SelectedTable(TableDefinition("shop", "t", COLUMNS), mariadb=False)


def read(selected, answer, piece_bytes):
    """The pieces, the cutter, and how many rows came one by one, of a server that answers so."""
    slow = itertools.count()
    with (
        MysqlServer() as server,
        MysqlConnection(MysqlAddress("127.0.0.1", server.port, "u", "p")) as connection,
    ):
        server.query = answer.__get__(server)
        cutter = _Cutter(selected, piece_bytes)
        rows = connection.rows("SELECT 1", doing="read", binary=True, take=cutter.take)
        pieces = list(cutter.pieces(row for row in rows if next(slow) >= 0))
        server.query = MysqlServer.query.__get__(server)
        assert connection.variable("version") == "8.0.15"  # nothing is left over
    return pieces, cutter, next(slow)


def whole(server, peer, sql):
    peer.columns(("id", "v"))
    for row in ROWS:
        peer.row(*row)
    peer.end()


@pytest.mark.parametrize("piece_bytes", [1000, 1 << 20])
def test_every_row_once_and_in_order(selected, piece_bytes):
    pieces, cutter, slow = read(selected, whole, piece_bytes)
    assert b"".join(images for _, images in pieces) == b"".join(map(selected.image, ROWS))
    assert sum(count for count, _ in pieces) == cutter.rows == len(ROWS)
    assert cutter.last == ROWS[-1]
    assert all(len(images) <= piece_bytes or count == 1 for count, images in pieces)
    if cutter._kernel is None:
        assert slow == len(ROWS)
    elif piece_bytes > 1000:
        assert slow < len(ROWS) / 2


def test_no_row(selected):
    pieces, cutter, slow = read(selected, lambda server, peer, sql: peer.result(("id", "v"), ()), 1000)
    assert (pieces, cutter.rows, cutter.last, slow) == ([], 0, None, 0)


def test_an_error_after_rows_is_told(selected):
    def answer(server, peer, sql):
        peer.columns(("id", "v"))
        for row in ROWS[:10]:
            peer.row(*row)
        peer.error(3024, "maximum statement execution time exceeded")

    with pytest.raises(SourceError, match="maximum statement execution time exceeded"):
        read(selected, answer, 1 << 20)


def test_packets_out_of_order_are_told(selected):
    def answer(server, peer, sql):
        peer.columns(("id", "v"))
        for row in ROWS[:10]:
            peer.row(*row)
        peer.sequence += 1
        peer.row(*ROWS[10])
        peer.end()

    with pytest.raises(SourceError, match="not what MySQL's protocol has there"):
        read(selected, answer, 1 << 20)

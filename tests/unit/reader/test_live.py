"""A server as a source: what is written of a session, and when."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.mysql.catalog import CatalogReading, Definitions
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.dump import Dump
from millrace.mysql.errors import LinkLostError
from millrace.mysql.status import LogStatus
from millrace.mysql.wire import Wire
from millrace.runtime.settings import load_settings
from services.reader import live
from services.reader.live import LiveSource
from services.reader.settings import ReaderSettings

from .logs import Log, Recorder, make, resume


def reading(table: str) -> CatalogReading:
    definition = TableDefinition("shop", table, (ColumnDefinition(0, "id", "int"),))
    return CatalogReading(LogStatus("log.000001", 4, ""), Definitions([definition]), whole=True)


@contextmanager
def session(source: LiveSource, monkeypatch: pytest.MonkeyPatch, table: str) -> Iterator[socket.socket]:
    """A connection to a server that has this table: it has been asked for the dump, and sends nothing yet."""
    ours, server = socket.socketpair()
    with ours, server:
        connection = SimpleNamespace(wire=Wire(ours, "db"), address=MysqlAddress("db"), close=ours.close)
        source._connection = cast("MysqlConnection", connection)
        monkeypatch.setattr(live, "read_catalog", lambda *_, **__: reading(table))
        source._read_catalog(source._connection)
        source._dump = Dump(source._connection, 60, 4096)
        yield server


def test_the_catalogue_of_a_session_that_never_began_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be of an epoch in which another server is read then, or of a place that proved wrong."""
    settings = load_settings(
        ReaderSettings, source="s", kafka={"bootstrap_servers": "localhost:1"}, mysql={"host": "db"}
    )
    writer = make(Recorder())
    source = LiveSource(settings, writer.stage, lambda: None, lambda: None)
    (first, *_) = resume(writer, Log())
    output = writer.stage.output
    with session(source, monkeypatch, "never") as server:
        assert source.read(0) == []
        server.close()
        with pytest.raises(LinkLostError):
            source.read(1)
        source.close()
    with session(source, monkeypatch, "now") as server:
        assert source.read(0) == []
        assert output.groups == {}
        payload = b"\0" + first
        server.sendall(struct.pack("<I", len(payload) | 1 << 24) + payload)
        assert [piece.data for piece in source.read(1)] == [first]
        assert [record[0] for record in output.groups["s.catalog", 0]] == [b"shop.now"]
        source.close()

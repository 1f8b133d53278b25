"""A server as a source: what is written of a session, and when."""

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from millrace.avro.catalog import CatalogEntry
from millrace.avro.service_state import LogIdentity, ReaderState
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import SourcePosition
from millrace.mysql.catalog import CatalogReading, Definitions
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.dump import Dump
from millrace.mysql.errors import LinkLostError
from millrace.mysql.identity import ServerNames
from millrace.mysql.packets import EventPiece
from millrace.mysql.status import LogStatus
from millrace.mysql.wire import Wire
from millrace.reader import live, log_scan
from millrace.reader.live import LiveSource
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper.catalog import Catalog
from millrace.runtime.settings import load_settings

from .logs import Log, Recorder, Writer, make, resume
from .test_statements import query

FILE = "log.000001"
RENAMED = {600: "ALTER TABLE a RENAME COLUMN x TO y"}


def reading(
    *tables: str, position: int = 4, column: str = "id", whole: bool = True, lists_all: bool = False
) -> CatalogReading:
    columns = (ColumnDefinition(0, column, "int"),)
    definitions = Definitions(TableDefinition("shop", table, columns) for table in tables)
    return CatalogReading(LogStatus(FILE, position, ""), definitions, whole=whole, lists_all=lists_all)


def live_source() -> LiveSource:
    settings = load_settings(
        ReaderSettings, source="s", kafka={"bootstrap_servers": "localhost:1"}, mysql={"host": "db"}
    )
    return LiveSource(settings, make(Recorder()).stage, lambda: None, lambda: None)


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
    source = live_source()
    writer = Writer(source._stage, Recorder())
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


def test_no_transaction_is_open_while_definitions_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may take longer for that than Kafka keeps one open."""
    source = live_source()
    done: list[str] = []

    def read(*_: object, **__: object) -> CatalogReading:
        done.append("read")
        return reading("now")

    with session(source, monkeypatch, "now"):
        source._commit = lambda: done.append("commit")
        monkeypatch.setattr(live, "read_catalog", read)
        monkeypatch.setattr(live, "read_tables", read)
        monkeypatch.setattr(live, "MysqlConnection", lambda *_: closing(SimpleNamespace(close=int)))
        source._stage.confirm()
        source._touched["shop", "now"] = None
        assert source.read(0) == []
        source._read_again_at = 0.0
        assert source.read(0) == []
        assert done == ["commit", "read", "commit", "read"]
        assert source.read(0) == []
        assert len(done) == 4
        source.close()


class Readings:
    """What a reader gets of a server that has ``statements`` in its log, by position."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, statements: dict[int, str]) -> None:
        self.source = live_source()
        self._statements = statements
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(log_scan, "_walk", self._walk)

    def _walk(
        self,
        _connection: object,
        _replica: object,
        log_file: str,
        _beat: object,
        until: LogStatus,
        *,
        begin: int = 4,
    ) -> Iterator[tuple[str, int, EventPiece]]:
        for position, text in self._statements.items():
            if begin <= position < until.position:
                yield log_file, position, query(text.encode(), database=b"shop", checksum=False)

    def read(self, found: CatalogReading) -> None:
        """Read all definitions, and write them."""
        self._monkeypatch.setattr(live, "read_catalog", lambda *_, **__: found)
        connection = cast("MysqlConnection", SimpleNamespace(close=lambda: None))
        self.source._read_catalog(connection)
        assert self.source._unwritten is not None
        self.source._write_catalog(self.source._unwritten)

    def read_touched(self, found: CatalogReading) -> None:
        """Read what statements have touched."""
        self._monkeypatch.setattr(live, "read_tables", lambda *_: found)
        self._monkeypatch.setattr(live, "MysqlConnection", lambda *_: closing(SimpleNamespace(close=int)))
        self.source._touched[next(iter(found.definitions)).table, ""] = None
        self.source._read_touched()

    def entries(self) -> list[CatalogEntry]:
        """What was written."""
        written = self.source._stage.output.groups.get(("s.catalog", 0), ())
        return [CatalogEntry.from_bytes(value or b"") for _, value, *_ in written]

    def columns(self, *positions: int, table: str = "a", gap: int | None = None) -> list[str | None]:
        """The column of a table at places, for a row mapper that has seen none of the statements."""
        catalog = Catalog(kept=None)
        for entry in self.entries():
            catalog.add(entry)
        if gap is not None:
            catalog.gap(SourcePosition(0, FILE, gap))
        found = [catalog.find("shop", table, SourcePosition(0, FILE, position)) for position in positions]
        return [
            each.definition.columns[0].name
            if each is not None and isinstance(each.definition, TableDefinition)
            else None
            for each in found
        ]


def test_a_table_that_was_locked_at_first_is_looked_for_up_to_its_first_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was altered in between, by the session that had locked it."""
    readings = Readings(monkeypatch, {300: "ALTER TABLE b ADD c INT", **RENAMED})
    readings.source._since = FILE, 4
    readings.read(reading("b", position=400, whole=False))
    readings.read(reading("a", "b", position=900, column="y"))
    assert readings.columns(500, 600, 601, 900, gap=0) == [None, None, "y", "y"]
    assert readings.columns(300, 301, 399, table="b", gap=0) == [None, "id", "id"]


def test_what_is_read_where_nobody_has_looked_holds_from_its_own_place_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session that resumes, and tables that statements have touched."""
    readings = Readings(monkeypatch, RENAMED)
    readings.read(reading("a", position=900, column="y"))
    assert readings.columns(500, 899, 900, gap=0) == [None, None, "y"]
    assert readings.columns(500, 899, 900) == [None, None, "y"]
    readings = Readings(monkeypatch, RENAMED)
    readings.source._since = FILE, 4
    readings.read(reading("b", position=400))
    readings.read_touched(reading("a", position=900, column="y"))
    assert readings.columns(500, 899, 900, gap=0) == [None, None, "y"]


@pytest.mark.parametrize("name", [None, "uuid"])
def test_a_server_that_is_read_after_files(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """Its catalogue tells what tables have been since the files' end; one that goes on has told it before."""
    readings = Readings(monkeypatch, RENAMED)
    identity = LogIdentity(1, "8.0.15", 1, server_uuid=name)
    state = ReaderState(0, FILE, 500, identity=identity)
    monkeypatch.setattr(LiveSource, "_dump_at", lambda *_: None)
    readings.source._go_on(cast("MysqlConnection", None), ServerNames("uuid", None), state)
    readings.read(reading("a", "b", position=900, column="y"))
    assert readings.columns(499, 500, 601, gap=0) == [None, None, "y" if name is None else None]
    assert readings.columns(499, 500, 900, table="b", gap=0) == [None, "y" if name is None else None, "y"]


def test_what_is_written_of_a_whole_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many entries it has; once the user sees all tables it is written again, though it is the same."""
    readings = Readings(monkeypatch, {})
    readings.read(reading("a", "b"))
    readings.read(reading("a", "b"))
    readings.read(reading("a", "b", lists_all=True))
    readings.read(reading("a", "b", lists_all=True))
    readings.read_touched(reading("a", position=900))
    assert [entry.whole for entry in readings.entries()] == [None, None, 2, 2, None]

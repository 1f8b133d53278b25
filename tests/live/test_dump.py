"""The replication stream of real servers, by position and by GTID, through to their errors."""

import struct
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import TableMapEvent
from millrace.binlog.file import iter_events
from millrace.binlog.gtid_set import GtidSet
from millrace.binlog.state import StreamState
from millrace.binlog.table import resolve_columns
from millrace.local import MariaDB, MySQL
from millrace.mysql.catalog import read_catalog, read_definitions
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection, SslMode
from millrace.mysql.dump import Dump, ReplicaIdentity
from millrace.mysql.errors import (
    DuplicateReplicaError,
    LinkLostError,
    PositionRefusedError,
    PurgedError,
    RefusedError,
    RetriableError,
)
from millrace.mysql.identity import read_head, server_names
from millrace.mysql.packets import DumpEnd
from millrace.mysql.position import PositionTracker
from millrace.mysql.status import binary_logs, log_status

from .reader_world import settle

Server = MySQL | MariaDB
MAGIC = b"\xfebin"
HEADER = struct.Struct("<IBIIIH")


def address(server: Server) -> MysqlAddress:
    return server.address


def replica(number: int = 4711) -> ReplicaIdentity:
    return ReplicaIdentity(number, str(uuid.UUID(int=number)))


@pytest.fixture
def connection(database: Server) -> Iterator[MysqlConnection]:
    with MysqlConnection(address(database)) as connection:
        yield connection


def read_to_the_end(dump: Dump, tracker: PositionTracker) -> dict[str, list[tuple[int, bytes]]]:
    """Events by file, each with its position; what stands in no file is left out."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    parts: list[bytes] = []
    try:
        while True:
            for data, first, last, size in dump.read(10):
                if first:
                    _, type_code, _, event_size, next_position, flags = HEADER.unpack_from(data)
                    assert event_size == size
                    log_file = tracker.log_file
                    position = tracker.place(type_code, size, next_position, flags, data)
                parts.append(data)
                if last:
                    if position >= 0:
                        found.setdefault(log_file, []).append((position, b"".join(parts)))
                    parts = []
    except DumpEnd:
        return found


def write(server: Server, database: str) -> None:
    server.execute(
        f"CREATE DATABASE IF NOT EXISTS {database}",
        f"CREATE TABLE IF NOT EXISTS {database}.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)",
        f"INSERT INTO {database}.t (v) VALUES ('a'), ('b')",
        f"UPDATE {database}.t SET v = 'c' ORDER BY id LIMIT 1",
        f"DELETE FROM {database}.t ORDER BY id LIMIT 1",
    )


def test_a_dump_by_position_is_the_files(database: Server, connection: MysqlConnection) -> None:
    write(database, "dump_position")
    database.execute(
        "INSERT INTO dump_position.t (v) VALUES (REPEAT('x', 20000000))",
        "INSERT INTO dump_position.t (v) VALUES (REPEAT('y', 16777100))",
        "FLUSH BINARY LOGS",
    )
    write(database, "dump_position")
    settle(database)
    log_file = binary_logs(connection)[0].name
    tracker = PositionTracker(log_file, 4, zero_allowed=connection.flavour is Flavour.MARIADB)
    found = read_to_the_end(Dump.at_position(connection, replica(), log_file, 4, wait=False), tracker)
    paths = database.binlog_files
    assert list(found) == [path.name for path in paths]
    for path in paths:
        content = path.read_bytes()
        ours = MAGIC + b"".join(data for _, data in found[path.name])
        assert ours[:21] + ours[22:] == content[:21] + content[22:], f"{path.name}: all but IN_USE"
        for position, data in found[path.name][1:]:
            assert content[position : position + len(data)] == data
    with MysqlConnection(address(database)) as other:
        assert (tracker.log_file, tracker.position) == (
            log_status(other).log_file,
            log_status(other).position,
        )


def test_a_dump_by_gtid_leaves_out_what_we_have(database: Server, connection: MysqlConnection) -> None:
    write(database, "dump_gtid")
    status = log_status(connection)
    write(database, "dump_gtid")
    database.execute("FLUSH BINARY LOGS")
    write(database, "dump_gtid")
    mariadb = connection.flavour is Flavour.MARIADB
    encoded = b"" if mariadb else GtidSet.parse(status.gtid_set).encode()
    dump = Dump.after_gtids(connection, replica(), status.gtid_set, encoded, wait=False)
    found = read_to_the_end(dump, PositionTracker("", 4, skips=True, zero_allowed=mariadb))
    for path in database.binlog_files:
        content = path.read_bytes()
        for position, data in found.get(path.name, []):
            if position > 4:
                assert content[position : position + len(data)] == data, f"{path.name} at {position}"
        if path.name == status.log_file:
            ours = b"".join(data for position, data in found[path.name] if position >= status.position)
            assert ours == content[status.position :]
        elif path.name > status.log_file:
            assert found[path.name][0][0] == 4


def test_heartbeats_keep_an_idle_dump_alive(database: Server, connection: MysqlConnection) -> None:
    settle(database)
    status = log_status(connection)
    dump = Dump.at_position(connection, replica(), status.log_file, status.position, heartbeat_s=1)
    types: list[int] = []
    until = time.monotonic() + 60
    while len(types) < 4:
        types += [piece.data[4] for piece in dump.read(0.5)]
        assert time.monotonic() < until, types
    assert types[:2] == [4, 15]
    assert set(types[2:]) <= {27, 41}


def test_the_server_throws_out_a_replica_of_the_same_id(
    database: Server, connection: MysqlConnection
) -> None:
    status = log_status(connection)
    dump = Dump.at_position(connection, replica(), status.log_file, status.position)
    assert dump.read(20)
    with MysqlConnection(address(database)) as other:
        second = Dump.at_position(other, replica(), status.log_file, status.position)
        assert second.read(20)
        # MariaDB may close the connection before it has said why.
        with pytest.raises((DuplicateReplicaError, LinkLostError)):
            [dump.read(1) for _ in range(30)]


def test_impossible_requests(database: Server, connection: MysqlConnection) -> None:
    log_file = log_status(connection).log_file
    for name, position, kind in (
        ("no-such-file.000001", 4, PurgedError),
        (log_file, 0x7FFFFFFF, PositionRefusedError),
        (log_file, 7, RetriableError),
    ):
        with MysqlConnection(address(database)) as other:
            dump = Dump.at_position(other, replica(), name, position)
            with pytest.raises(kind, match="error 1236"):
                [dump.read(1) for _ in range(60)]
    with pytest.raises(ValueError, match="does not fit"):
        Dump.at_position(connection, replica(), log_file, 1 << 32)


def test_gtids_that_the_server_does_not_know(database: Server, connection: MysqlConnection) -> None:
    if connection.flavour is Flavour.MARIADB:
        gtids, encoded = "0-99-999999999", b""
    else:
        gtids = f"{connection.variable('server_uuid')}:1-999999999"
        encoded = GtidSet.parse(gtids).encode()
    dump = Dump.after_gtids(connection, replica(), gtids, encoded)
    with pytest.raises(PositionRefusedError):
        [dump.read(1) for _ in range(60)]


def test_the_head_of_a_file(database: Server, connection: MysqlConnection) -> None:
    log_file = binary_logs(connection)[0].name
    head = read_head(address(database), replica(), log_file)
    content = (database.data_folder / log_file).read_bytes()
    assert head.format_description[22 - 4 :] == content[22 : 4 + len(head.format_description)]
    assert head.second is not None
    assert head.second in content
    names = server_names(connection)
    assert (names.uuid is None) == (connection.flavour is Flavour.MARIADB)
    with pytest.raises(PurgedError):
        read_head(address(database), replica(), "no-such-file.000001")


def test_the_catalogue(database: Server, connection: MysqlConnection) -> None:
    name = f"catalog_{uuid.uuid4().hex[:6]}"
    database.execute(
        f"CREATE DATABASE {name}",
        f"CREATE TABLE {name}.t (a INT UNSIGNED NOT NULL, `b.c` VARCHAR(20) CHARACTER SET latin1, "
        r"e ENUM('x','y''z','q\\r','l\n','é'), s SET('1','2)') CHARACTER SET utf8mb4, "
        "g INT GENERATED ALWAYS AS (a + 1) VIRTUAL, h INT GENERATED ALWAYS AS (a + 2) STORED, "
        "k VARCHAR(200) NOT NULL, PRIMARY KEY (k(7), a)) CHARACTER SET utf8mb4",
        f"CREATE VIEW {name}.v AS SELECT 1",
        f"CREATE TABLE {name}.m (x INT) ENGINE=MyISAM",
    )
    reading = read_catalog(connection)
    status, definitions = reading.status, reading.definitions
    assert status.log_file.startswith("mysql-bin.")
    ours = {definition.table: definition for definition in definitions if definition.database == name}
    assert set(ours) == {"", "t", "m"}
    assert ours[""].charset is not None
    logged_in_sys = {one.table for one in definitions if one.database == "sys" and one.table}
    assert logged_in_sys == ({"sys_config"} if connection.flavour is Flavour.MYSQL else set())
    others = read_catalog(connection, wait=False).definitions
    assert [definition for definition in others if definition.database == name] == [
        ours[name] for name in ("", "m", "t")
    ]
    table = ours["t"]
    columns = {column.name: column for column in table.columns}
    assert list(columns) == ["a", "b.c", "e", "s", "g", "h", "k"]
    assert table.key == ("k", "a")
    assert (columns["k"].key_prefix, columns["a"].key_prefix) == (7, 0)
    assert columns["a"].unsigned
    assert not columns["a"].nullable
    assert (columns["b.c"].charset, columns["s"].charset) == ("latin1", "utf8mb4")
    assert columns["e"].members == ("x", "y'z", "q\\r", "l\n", "é")
    assert columns["s"].members == ("1", "2)")
    assert (columns["g"].generated, columns["h"].generated) == ("VIRTUAL", "STORED")
    assert (table.engine, ours["m"].engine) == ("InnoDB", "MyISAM")
    assert table.charset == "utf8mb4"


def test_the_catalogue_has_the_columns_that_versioning_adds(mariadb: MariaDB) -> None:
    """The definitions fit the table maps, whether the table names its period or not."""
    name = f"versioned_{uuid.uuid4().hex[:6]}"
    period = "PERIOD FOR SYSTEM_TIME (s, e)"
    rows = "s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, e TIMESTAMP(6) GENERATED ALWAYS AS ROW END"
    mariadb.execute(
        "FLUSH BINARY LOGS",
        f"CREATE DATABASE {name}",
        f"CREATE TABLE {name}.implied (id INT PRIMARY KEY, x INT) WITH SYSTEM VERSIONING",
        f"CREATE TABLE {name}.bare (x INT) WITH SYSTEM VERSIONING",
        f"CREATE TABLE {name}.named (id INT PRIMARY KEY, {rows}, {period}, x INT) WITH SYSTEM VERSIONING",
        *(
            f"INSERT INTO {name}.{table} (x{key}) VALUES (1{value})"
            for table, key, value in (
                ("implied", ", id", ", 1"),
                ("bare", "", ""),
                ("named", ", id", ", 1"),
            )
        ),
    )
    with MysqlConnection(address(mariadb)) as connection:
        definitions = {d.table: d for d in read_definitions(connection) if d.database == name}
    state, seen = StreamState(), set()
    with mariadb.binlog_files[-1].open("rb") as log:
        for _, data in iter_events(log):
            event = decode_event(data, state).event
            if isinstance(event, TableMapEvent) and event.database == name:
                logged = resolve_columns(event, None, server_version="11.4.5-MariaDB")
                defined = definitions[event.table]
                assert [column.name for column in logged.columns] == [c.name for c in defined.columns]
                assert tuple(column.name for column in logged.key_columns) == defined.key
                seen.add(event.table)
    assert seen == {"implied", "bare", "named"}


def test_tls(database: Server) -> None:
    """The servers have certificates by authorities of their own, MariaDB's for 127.0.0.1."""
    verified = address(database)
    for mode in (SslMode.VERIFY_CA, SslMode.REQUIRED, SslMode.PREFERRED):
        trusting = replace(verified, ssl_mode=mode, ssl_ca=verified.ssl_ca if mode.verifies else None)
        with MysqlConnection(replace(trusting, get_server_public_key=True)) as connection:
            assert connection.query("SHOW STATUS LIKE 'Ssl_cipher'")[0]["Value"]
            assert connection.verified is mode.verifies
    with MysqlConnection(
        replace(verified, ssl_mode=SslMode.DISABLED, get_server_public_key=True)
    ) as connection:
        assert not connection.query("SHOW STATUS LIKE 'Ssl_cipher'")[0]["Value"]
    by_identity = replace(verified, ssl_mode=SslMode.VERIFY_IDENTITY)
    if isinstance(database, MariaDB):
        MysqlConnection(by_identity).close()
    else:
        with pytest.raises(RefusedError, match=r"VERIFY_CA checks who signed it alone$"):
            MysqlConnection(by_identity)
    with pytest.raises(RefusedError, match="the TLS handshake failed: "):
        MysqlConnection(replace(by_identity, ssl_ca=None))

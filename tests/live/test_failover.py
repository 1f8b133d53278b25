"""Fail-over among the servers of one topology: the row topics neither lose nor repeat."""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pymysql
import pytest

from millrace.avro.records import deserialize
from millrace.binlog.types import EventType
from millrace.contract import ABANDONED, HEADER_MARKER, SOURCE_CHANGED
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.selection.settings import ReplicateSettings
from tests.service_process import server_environment, wait_for
from tests.shared import run_python
from tests.unit.selection.test_tables import CASES, TABLES
from tests.worker import Worker

from .proxy import Proxy
from .reader_world import ReaderWorld, assert_nothing_twice
from .replication import replicate
from .rows_world import RowsWorld

Server = MySQL | MariaDB
WRITE_ROWS = int(EventType.WRITE_ROWS_EVENT_V1)
STALL = b"the proxy stalls after this row"


@contextmanager
def topology(kind: type[Server]) -> Iterator[list[Server]]:
    """A primary and two replicas; one account is valid on all."""
    with ExitStack() as stack:
        servers: list[Server] = []
        for number in range(3):
            server = kind(server_id=31 + number, options={"sync-binlog": 0})
            if servers:
                server.password = servers[0].password
            servers.append(stack.enter_context(server))
        for replica in servers[1:]:
            replicate(replica, servers[0])
        yield servers


class Writer(Worker):
    """Writes to whichever server is the primary, and does not stop for the loss of one."""

    def __init__(self, database: str, primary: Server) -> None:
        super().__init__()
        self.primary = primary
        self.count = 0
        self._database = database
        primary.execute(
            f"CREATE DATABASE {database}",
            f"CREATE TABLE {database}.t (id INT AUTO_INCREMENT PRIMARY KEY, n INT, v VARCHAR(4000))",
        )

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                # PyMySQL leaves a socket of its own open when it cannot connect.
                with socket.socket(socket.AF_UNIX) as link:
                    link.connect(str(self.primary.socket))
                    connection = self.primary.connect(
                        database=self._database, autocommit=False, defer_connect=True
                    )
                    connection.connect(link)
                    while not self._stop.is_set():
                        self._transaction(connection)
            except (pymysql.err.Error, OSError):
                # What it was about is lost, as an application would see it.
                time.sleep(0.2)

    def _transaction(self, connection: "pymysql.Connection[pymysql.cursors.Cursor]") -> None:
        self.count += 1
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO t (n, v) VALUES (%s, 'a'), (%s, 'b')", (self.count, self.count))
            cursor.execute("UPDATE t SET v = CONCAT(v, 'x') WHERE n = %s", (self.count - 3,))
            cursor.execute("DELETE FROM t WHERE n = %s AND v LIKE 'b%%'", (self.count - 5,))
        connection.commit()
        time.sleep(0.02)


def write_cut(primary: Server, database: str) -> None:
    """One transaction that is much larger than what a proxy forwards at once."""
    with primary.connect(database=database, autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t (n, v) VALUES (-1, %s)", (STALL.decode(),))
        cursor.executemany("INSERT INTO t (n, v) VALUES (%s, %s)", [(-2, "z" * 4000)] * 500)
        connection.commit()


def count_of(server: Server, database: str, number: int) -> int:
    return int(server.query(f"SELECT COUNT(*) FROM {database}.t WHERE n = %s", (number,))[0][0])


@pytest.mark.parametrize("kind", [MySQL, MariaDB])
def test_the_primary_dies_in_mid_transaction(
    kafka: Kafka, registry: Registry, kind: type[Server], source_name: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        servers = stack.enter_context(topology(kind))
        assert_a_replica_selects_as_we_do(servers[0], servers[2])
        proxy = stack.enter_context(Proxy(servers[0].port, STALL))
        first, second, _ = servers
        world = stack.enter_context(closing(RowsWorld(kafka, registry, first, source_name, tmp_path)))
        world.environment |= {
            "MILLRACE_START": "earliest",
            # The proxy reads along.
            "MILLRACE_MYSQL_SSL_MODE": "DISABLED",
            "MILLRACE_MYSQL_HOST": ",".join(
                f"127.0.0.1:{port}" for port in (proxy.port, *(server.port for server in servers[1:]))
            ),
            "MILLRACE_MYSQL_PORT": "",
        }
        database = world.database
        with world.services("reader", "decoder", "rowmapper") as processes, Writer(database, first) as writer:
            world.wait_for_row("t", 10)
            write_cut(first, database)
            assert proxy.stalled.wait(240), world.log("reader")
            for replica in servers[1:]:
                wait_for(lambda replica=replica: count_of(replica, database, -2) == 500, None, "the replica")  # type: ignore[misc]
            first.kill()
            proxy.close()
            second.execute("STOP SLAVE", "RESET SLAVE ALL")
            replicate(servers[2], second)
            writer.primary = second
            before = writer.count
            wait_for(lambda: writer.count > before + 20, processes[0], "the writer")
            writer.stop()
            second.execute(f"INSERT INTO {database}.t (n, v) VALUES (-3, 'end')")
            wait_for(lambda: _last(world, "t") == "end", processes[0], "the last row")
        assert_folded(world, second)
        assert_markers(world, kafka)
        assert_refused(world, kafka, first, kind)


def assert_a_replica_selects_as_we_do(primary: Server, replica: Server) -> None:
    """Rules of replicate-… choose the tables that a replica with the same rules gets."""
    # Patterns of MariaDB do not look at case; ours are MySQL's.
    names = [name for name in TABLES if isinstance(primary, MySQL) or name.islower()]
    databases = sorted({name.partition(".")[0] for name in names})
    primary.execute(*(f"CREATE DATABASE {name}" for name in (*databases, "eu")))
    for name in names:
        table = name.partition(".")[2]
        primary.execute(
            f"CREATE TABLE {name} (n INT PRIMARY KEY)",
            *(f"CREATE TABLE IF NOT EXISTS {other}.{table} (n INT PRIMARY KEY)" for other in ("eu", "shop")),
        )
    for number, (rules, _) in enumerate(CASES[3::2]):
        _wait_for_replica(primary, replica)
        replica.execute("STOP SLAVE SQL_THREAD", *_filters(replica, rules), "START SLAVE SQL_THREAD")
        primary.execute(*(f"INSERT INTO {name} VALUES ({number})" for name in names))
        _wait_for_replica(primary, replica)
        tables = ReplicateSettings(**rules).tables
        expected = set()
        for name in names:
            database, table = name.split(".")
            if tables.selects(database, table):
                expected.add(f"{tables.database(database)}.{table}")
        places = {f"{database}.{name.partition('.')[2]}" for name in names for database in (*databases, "eu")}
        there = {
            name
            for name in places
            if _exists(replica, name) and replica.query(f"SELECT n FROM {name} WHERE n = {number}")
        }
        assert there == expected, (rules, there, expected)
    _wait_for_replica(primary, replica)
    replica.execute("STOP SLAVE SQL_THREAD", *_filters(replica, {}), "START SLAVE SQL_THREAD")


def _exists(server: Server, name: str) -> bool:
    return bool(
        server.query(
            "SELECT 1 FROM information_schema.tables WHERE CONCAT(table_schema, '.', table_name) = BINARY %s",
            (name,),
        )
    )


def _filters(replica: Server, rules: dict[str, str]) -> list[str]:
    names = [name for name in ReplicateSettings.model_fields if name.rpartition("_")[2] in ("db", "table")]
    if isinstance(replica, MariaDB):
        return [f"SET GLOBAL replicate_{name} = '{_escaped(rules.get(name, ''))}'" for name in names]
    texts = []
    for name in names:
        parts = [part.strip() for part in rules.get(name, "").split(",") if part]
        if name == "rewrite_db":
            parts = [f"({part.replace('->', ', ')})" for part in parts]
        elif name.startswith("wild"):
            parts = [f"'{_escaped(part)}'" for part in parts]
        texts.append(f"REPLICATE_{name.upper()} = ({', '.join(parts)})")
    return ["CHANGE REPLICATION FILTER " + ", ".join(texts)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")


def _wait_for_replica(primary: Server, replica: Server) -> None:
    if isinstance(primary, MariaDB):
        ((place,),) = primary.query("SELECT @@gtid_binlog_pos")
        ((late,),) = replica.query("SELECT MASTER_GTID_WAIT(%s, 60)", (place,))
    else:
        ((place,),) = primary.query("SELECT @@gtid_executed")
        ((late,),) = replica.query("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 60)", (place,))
    assert late == 0, place


def _last(world: RowsWorld, table: str) -> str | None:
    messages = world.messages(world.topics.table(world.database, table))
    if not messages:
        return None
    after = deserialize(world.registry, messages[-1].value())["after"]
    return None if after is None else str(after["v"])


def assert_folded(world: RowsWorld, server: Server) -> None:
    """The row topic comes to the table, and each row was inserted once."""
    rows = world.rows("t")
    table: dict[int, tuple[int, str]] = {}
    for row in rows:
        if row["after"] is None:
            del table[row["before"]["id"]]
        else:
            table[row["after"]["id"]] = (row["after"]["n"], row["after"]["v"])
    assert table == {id_: (n, v) for id_, n, v in server.query(f"SELECT id, n, v FROM {world.database}.t")}
    inserts = Counter(row["after"]["id"] for row in rows if row["op"] == "c")
    assert set(inserts.values()) == {1}
    assert {row["source"]["epoch"] for row in rows} == {0, 1}


def assert_markers(world: RowsWorld, kafka: Kafka) -> None:
    raw = ReaderWorld(kafka, world.source).raw()
    markers = [record.headers[HEADER_MARKER] for record in raw if HEADER_MARKER in record.headers]
    assert markers == [ABANDONED, SOURCE_CHANGED]
    assert_nothing_twice(raw)
    assert world.messages(world.topics.deadletter) == []


def assert_refused(world: RowsWorld, kafka: Kafka, first: Server, kind: type[Server]) -> None:
    """The old primary comes back under its address, without what the new one has written."""
    if kind is MySQL:
        (first.data_folder / "auto.cnf").unlink()
    first.start()
    done = ReaderWorld.of(kafka, world.source, first).run()
    assert done.returncode == 7, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {first.host}:{first.port}: this is not the log that was read so far")
    assert ("server_uuid was" if kind is MySQL else "server_uid was") in line
    assert "its history does not hold" in line
    assert "Bring back the server that was read" in line


def test_a_domain_with_several_writers(kafka: Kafka, source_name: str) -> None:
    """Two servers of MariaDB that replicate from each other in one domain log it in different orders.

    While what was read lies before one place in the log of either, the reader changes between them and back.
    A transaction that was not read, but lies before one that was, would be left out: it is refused.
    """
    first, second = MariaDB(server_id=801), MariaDB(server_id=802)
    second.password = first.password
    with first as a, second as b:
        replicate(a, b)
        replicate(b, a)
        a.execute("CREATE DATABASE mutual", "CREATE TABLE mutual.t (note VARCHAR(20) PRIMARY KEY)")
        world = ReaderWorld.of(kafka, source_name, a)
        with world.reader() as process:
            world.wait_until_at(a, process)
        for server, other, note in ((b, a, "on-b"), (a, b, "on-a"), (b, a, "on-b-again")):
            _write_on(server, other, note)
            _read_up_to(world, server, note)
        assert _notes(world) == ["on-b", "on-a", "on-b-again"]
        state = world.state()
        assert state is not None
        assert state.epoch == 3
        assert dict(_numbers(str(state.binlog_state))) == dict(
            _numbers(b.query("SELECT @@GLOBAL.gtid_binlog_state")[0][0])
        )
        a.execute("STOP SLAVE")
        b.execute("INSERT INTO mutual.t VALUES ('b1')")
        ((b1,),) = b.query("SELECT @@GLOBAL.gtid_binlog_pos")
        _write_on(a, b, "a1")
        ((a1,),) = a.query("SELECT @@GLOBAL.gtid_binlog_pos")
        assert b1.split("-")[2] == a1.split("-")[2], "two transactions of one number"
        _read_up_to(world, a, "a1")
        assert _notes(world)[3:] == ["a1"]
        a.kill()
        done = world.run(**server_environment(b))
        assert done.returncode == 7, done.stderr
        (line,) = done.stderr.splitlines()
        assert f"{b1}, which was not read, comes before {a1}, which was" in line
        _rebuild(world)
        done = world.run(**server_environment(b))
        assert (done.returncode, b1 in done.stderr) == (7, True), done.stderr
        b.execute("FLUSH BINARY LOGS", "INSERT INTO mutual.t VALUES ('b2')")
        done = world.run(**server_environment(b))
        assert (done.returncode, f"{b1}" in done.stderr) == (7, True), done.stderr
        # The way out, where both are there again.
        a.start()
        a.execute("START SLAVE")
        wait_for(lambda: _has(a, "b2"), None, "the other server")
        _read_up_to(world, a, "b2")
        assert _notes(world)[3:] == ["a1", "b1", "b2"]


def test_a_server_under_the_id_of_the_one_that_was_read(kafka: Kafka, source_name: str) -> None:
    """Its transactions have the same numbers, and it may have fewer or more of them."""
    with MariaDB(server_id=801) as first, MariaDB(server_id=801) as exchanged:
        world = ReaderWorld.of(kafka, source_name, first)
        for server, notes in ((first, ("on-a", "a1")), (exchanged, ("on-b", "b1", "b2"))):
            server.execute(
                "CREATE DATABASE mutual",
                "CREATE TABLE mutual.t (note VARCHAR(20) PRIMARY KEY)",
                *(f"INSERT INTO mutual.t VALUES ('{note}')" for note in notes),
            )
        _read_up_to(world, first, "a1")
        done = world.run(**server_environment(exchanged))
        assert done.returncode == 7, done.stderr
        assert "it has server_id 801, as the server that was read had" in done.stderr
        assert _notes(world) == ["on-a", "a1"]


def _write_on(server: Server, other: Server, note: str) -> None:
    server.execute(f"INSERT INTO mutual.t VALUES ('{note}')")
    wait_for(lambda: _has(other, note), None, "the other server")


def _rebuild(world: ReaderWorld) -> None:
    done = run_python("-m", "millrace.cli", "state", "rebuild", "reader", "--yes", settings=world.environment)
    assert done.returncode == 0, done.stdout + done.stderr


def _read_up_to(world: ReaderWorld, server: Server, note: str) -> None:
    with world.reader(**server_environment(server)) as process:
        wait_for(lambda: note in _notes(world), process, f"{note} in the raw topic", 60)


def _has(server: Server, note: str) -> bool:
    return bool(server.query("SELECT 1 FROM mutual.t WHERE note = %s", (note,)))


def _notes(world: ReaderWorld) -> list[str]:
    """What was written, in the order of the raw topic."""
    notes = ("on-b", "on-a", "on-b-again", "a1", "b1", "b2")
    # A VARCHAR behind its length.
    values = {note: bytes([len(note)]) + note.encode() for note in notes}
    rows = (each.value for each in world.raw() if each.in_file and each.value[4] == WRITE_ROWS)
    return [note for row in rows for note in notes if values[note] in row]


def _numbers(binlog_state: str) -> list[tuple[str, str]]:
    """Domain and server, and the last number."""
    return [(gtid.rpartition("-")[0], gtid.rpartition("-")[2]) for gtid in binlog_state.split(",")]

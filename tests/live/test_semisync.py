"""Semi-synchronous mode: no transaction commits on the primary before Kafka has it."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator

import pymysql
import pytest

from millrace.local import Kafka, MariaDB, MySQL
from millrace.mysql.catalog import read_catalog
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.errors import RefusedError
from millrace.mysql.semisync import require_semi_sync, semi_sync_findings
from tests.service_process import wait_for

from .reader_world import ReaderWorld, assert_nothing_twice, stopped

FOREVER = {
    "rpl-semi-sync-master-enabled": "ON",
    "rpl-semi-sync-master-wait-point": "AFTER_SYNC",
    "rpl-semi-sync-master-timeout": 0xFFFFFFFF,
    "rpl-semi-sync-master-wait-no-slave": "ON",
}
MARK = re.compile(rb"transaction (\d+);")


@pytest.fixture
def primary() -> Iterator[MariaDB]:
    """A server of our own, since its commits wait forever and its disk is thrown away."""
    server = MariaDB(options=FOREVER)
    server.start()
    try:
        yield server
    finally:
        server.kill()  # it would wait for its replica
        server.close()


class Writer:
    """Commits numbered transactions, one after the other, until the server is gone."""

    def __init__(self, server: MariaDB) -> None:
        self.committed: list[int] = []
        self.error: BaseException | None = None
        self._server = server
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        try:
            self._server.execute("CREATE DATABASE semi", "CREATE TABLE semi.t (note VARCHAR(40))")
            with self._server.connect(autocommit=False) as connection, connection.cursor() as cursor:
                for number in range(1_000_000):
                    cursor.execute("INSERT INTO semi.t VALUES (%s)", [f"transaction {number};"])
                    connection.commit()
                    self.committed.append(number)
        except (pymysql.err.Error, OSError) as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(240)
        assert not self._thread.is_alive()


def address(server: MySQL | MariaDB) -> MysqlAddress:
    return server.address


def waiting(server: MariaDB) -> int:
    """Commits that wait for an acknowledgement."""
    return int(server.query("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_wait_sessions'")[0][1])


def waits(server: MariaDB, statement: str) -> threading.Thread:
    """Run a statement, in a thread, that waits for an acknowledgement."""

    def run() -> None:
        # Where nothing acknowledges it, the server is killed in the end.
        with contextlib.suppress(pymysql.err.Error, OSError):
            server.execute(statement)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_for(lambda: waiting(server) == 1, None, "a statement that waits")
    return thread


@contextlib.contextmanager
def supervised_reader(world: ReaderWorld) -> Iterator[None]:
    """A reader that is started again when it ends; killed at the end."""
    done = threading.Event()

    def supervise() -> None:
        while not done.is_set():
            # It may give up while no broker answers, with a code that a test of the reader would not accept.
            with contextlib.suppress(AssertionError), world.reader() as process:
                while process.poll() is None and not done.wait(0.2):
                    pass
                process.kill()

    thread = threading.Thread(target=supervise, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(240)


def progress(writer: Writer, count: int) -> None:
    """Wait until so many more transactions are committed."""
    goal = len(writer.committed) + count
    wait_for(lambda: len(writer.committed) >= goal or writer.error, None, f"{goal} transactions")
    assert writer.error is None


def test_what_is_committed_is_in_kafka_though_the_primary_is_lost(
    kafka: Kafka, primary: MariaDB, source_name: str
) -> None:
    world = ReaderWorld.of(kafka, source_name, primary, MILLRACE_SEMI_SYNC="true")
    writer = Writer(primary)
    wait_for(lambda: waiting(primary) == 1, None, "a commit that waits without a reader")
    assert not writer.committed
    with supervised_reader(world):
        progress(writer, 20)
        with MysqlConnection(address(primary)) as connection:
            findings = semi_sync_findings(connection)
        assert [finding for finding in findings if finding.level != "ok"] == []
        with stopped(kafka):
            # One that Kafka had already may still come through.
            wait_for(lambda: waiting(primary) == 1 and _stands_still(writer), None, "a commit that waits")
        progress(writer, 20)
        primary.kill()
        writer.join()
        primary.close()
    records = world.raw()
    found = {int(number) for record in records for number in MARK.findall(record.value)}
    assert set(writer.committed) <= found
    assert len(writer.committed) >= 40
    assert_nothing_twice(records)


def test_what_kafka_has_is_acknowledged_though_a_dump_by_gtid_leaves_it_out(
    kafka: Kafka, primary: MariaDB, source_name: str
) -> None:
    """The reader is lost between its commit to Kafka and its acknowledgement."""
    primary.execute("SET GLOBAL rpl_semi_sync_master_enabled=OFF", "CREATE DATABASE semi")
    start = str(primary.query("SELECT @@GLOBAL.gtid_binlog_pos")[0][0])
    primary.execute("CREATE TABLE semi.t (note VARCHAR(40))", "SET GLOBAL rpl_semi_sync_master_enabled=ON")
    world = ReaderWorld.of(kafka, source_name, primary, MILLRACE_START=f"gtid:{start}")
    commit = waits(primary, "INSERT INTO semi.t VALUES ('transaction 1;')")
    # Such a reader acknowledges nothing.
    with world.reader() as process:
        state = world.wait_until_at(primary, process)
    assert state.left_out == start
    assert waiting(primary) == 1
    with world.reader(MILLRACE_SEMI_SYNC="true") as process:
        wait_for(lambda: not commit.is_alive(), process, "the acknowledgement")
    assert_nothing_twice(world.raw())


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE semi.t ADD COLUMN late INT", "CREATE TABLE semi.late (late INT)"]
)
def test_a_table_whose_change_waits_for_the_reader_keeps_it_from_nothing(
    kafka: Kafka, primary: MariaDB, source_name: str, statement: str
) -> None:
    """It is locked until it is acknowledged; other tables can be read."""
    primary.execute(
        "SET GLOBAL rpl_semi_sync_master_enabled=OFF",
        "CREATE DATABASE semi",
        "CREATE TABLE semi.t (note VARCHAR(40), PRIMARY KEY (note))",
        "CREATE TABLE semi.u (note VARCHAR(40))",
        "SET GLOBAL rpl_semi_sync_master_enabled=ON",
    )
    change = waits(primary, statement)
    with MysqlConnection(address(primary)) as connection:
        reading = read_catalog(connection, wait=False)
    assert not reading.whole
    assert "u" in [definition.table for definition in reading.definitions]
    world = ReaderWorld.of(kafka, source_name, primary, MILLRACE_SEMI_SYNC="true")
    with world.reader() as process:
        wait_for(lambda: not change.is_alive(), process, "the acknowledgement")
        wait_for(lambda: _knows(world, b"late"), process, "the new definition")
        # The log is searched up to the later reading, too, while the dump goes on that acknowledges.
        wait_for(lambda: process.output.count("searched the log") == 2, process, "the second search")
        primary.execute("INSERT INTO semi.u VALUES ('after')")
        assert "the source is lost" not in process.output
    with MysqlConnection(address(primary)) as connection:
        one, other = read_catalog(connection, wait=False), read_catalog(connection)
        assert one.whole
        assert other.whole
        assert list(one.definitions) == list(other.definitions)


def _knows(world: ReaderWorld, column: bytes) -> bool:
    return any(column in entry for entries in world.catalog().values() for entry in entries)


def _stands_still(writer: Writer) -> bool:
    before = len(writer.committed)
    time.sleep(1)
    return len(writer.committed) == before


def test_the_conditions_of_the_promise(primary: MariaDB) -> None:
    with MysqlConnection(address(primary)) as connection:
        before = {finding.text: finding for finding in semi_sync_findings(connection)}
        assert {finding.level for finding in before.values()} == {"ok", "warning"}
        assert "no semi-synchronous replica is connected: commits wait for one" in before
        assert {finding.level for finding in semi_sync_findings(connection, connected=False)} == {"ok"}
        primary.execute(
            "SET GLOBAL rpl_semi_sync_master_wait_point='AFTER_COMMIT'",
            "SET GLOBAL rpl_semi_sync_master_timeout=10000",
            "SET GLOBAL rpl_semi_sync_master_wait_no_slave=OFF",
        )
        errors = [finding for finding in semi_sync_findings(connection) if finding.level == "error"]
        texts = "\n".join(f"{finding.text}: {finding.advice}" for finding in errors)
        assert "rpl_semi_sync_master_wait_point is AFTER_COMMIT" in texts
        assert "SET GLOBAL rpl_semi_sync_master_wait_point='AFTER_SYNC'" in texts
        assert "rpl_semi_sync_master_timeout is 10000 ms" in texts
        assert "SET GLOBAL rpl_semi_sync_master_timeout=4294967295" in texts
        assert "rpl_semi_sync_master_wait_no_slave is OFF" in texts
        primary.execute("SET GLOBAL rpl_semi_sync_master_enabled=OFF")
        (finding,) = semi_sync_findings(connection)
        assert (finding.level, finding.text) == (
            "error",
            "rpl_semi_sync_master_enabled is OFF: no commit waits",
        )


def test_a_server_without_semi_sync_is_refused(mysql: MySQL) -> None:
    """The small build of MySQL has no plugin."""
    with MysqlConnection(address(mysql)) as connection:
        if connection.variable("rpl_semi_sync_source_enabled") or connection.variable(
            "rpl_semi_sync_master_enabled"
        ):
            pytest.skip("this MySQL has semi-synchronous replication")
        with pytest.raises(
            RefusedError, match=r"MILLRACE_SEMI_SYNC is set, and the server has no .* INSTALL"
        ):
            require_semi_sync(connection)
        (finding,) = semi_sync_findings(connection)
        assert finding.level == "error"
        assert "INSTALL PLUGIN rpl_semi_sync_source" in finding.advice

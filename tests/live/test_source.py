"""Where the reader starts, what it does when logs are gone or are others, and how it reaches a server."""

import time
import urllib.request
import uuid
from datetime import UTC, datetime

import pytest

from millrace.contract import GAP, HEADER_ARTIFICIAL, HEADER_MARKER, SOURCE_CHANGED
from millrace.local import Kafka, MariaDB, MySQL
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.dump import ReplicaIdentity
from millrace.mysql.status import binary_logs
from millrace.reader.log_scan import start_position_at
from millrace.runtime.errors import StopRequestedError
from tests.service_process import server_environment, wait_for

from .proxy import Proxy
from .reader_world import (
    MAGIC,
    ReaderWorld,
    assert_closed_files_equal,
    assert_nothing_twice,
    files_of,
    log_end,
    stopped,
)

Server = MySQL | MariaDB

WITHOUT_GTIDS = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}


def write(server: Server, database: str, count: int = 5) -> None:
    server.execute(
        f"CREATE DATABASE IF NOT EXISTS {database}",
        f"CREATE TABLE IF NOT EXISTS {database}.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(20))",
        *[f"INSERT INTO {database}.t (v) VALUES ('{number}')" for number in range(count)],
    )


def executed(server: Server) -> str:
    variable = "gtid_executed" if isinstance(server, MySQL) else "gtid_binlog_pos"
    return str(server.query(f"SELECT @@GLOBAL.{variable}")[0][0]).replace("\n", "")


def run_to_the_end(world: ReaderWorld, server: Server, **environment: str) -> None:
    with world.reader(**environment) as process:
        world.wait_until_at(server, process)


def refusal(world: ReaderWorld, code: int, **environment: str) -> str:
    """The one line with which a reader gives up."""
    done = world.run(**environment)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def markers(world: ReaderWorld) -> list[bytes]:
    return [record.headers[HEADER_MARKER] for record in world.raw() if HEADER_MARKER in record.headers]


def test_start_at_a_time(kafka: Kafka, database: Server, source_name: str) -> None:
    write(database, "at_a_time")
    end = log_end(database)
    before = executed(database)
    now = time.time()
    wait_for(lambda: time.time() >= int(now) + 2, None, "the next second")
    start = datetime.fromtimestamp(int(now) + 1, UTC).isoformat()
    write(database, "at_a_time", 2)
    database.execute("FLUSH BINARY LOGS")
    write(database, "at_a_time", 2)
    world = ReaderWorld.of(kafka, source_name, database, MILLRACE_START=f"time:{start}")
    with world.reader() as process:
        state = world.wait_until_at(database, process)
    first, second, *_ = world.raw()
    assert first.headers == {HEADER_ARTIFICIAL: b"1"}
    assert (second.key.log_file, second.key.position) >= end
    # Nothing but a checkpoint of MariaDB's may lie between.
    assert second.key.position - end[1] < 100
    assert before != state.gtid_set == executed(database)


def test_the_search_for_a_place_can_be_stopped(database: Server) -> None:
    write(database, "stopped_search")
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats > 1:
            raise StopRequestedError

    address = database.address
    with MysqlConnection(address) as connection:
        replica, logs = ReplicaIdentity(77, str(uuid.uuid4())), binary_logs(connection)
        with pytest.raises(StopRequestedError):
            start_position_at(connection, replica, logs, int(time.time()) + 3600, beat)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(MySQL, {}), (MySQL, WITHOUT_GTIDS), (MariaDB, {})],
    ids=["mysql", "mysql-without-gtids", "mariadb"],
)
def test_purged_logs_and_a_reset_log(
    kafka: Kafka, kind: type[Server], options: dict[str, str], source_name: str
) -> None:
    with kind(server_id=21, options=options) as server:
        world = ReaderWorld.of(kafka, source_name, server)
        write(server, "purged")
        run_to_the_end(world, server)
        read, end = executed(server), log_end(server)
        server.execute("FLUSH BINARY LOGS")
        write(server, "purged", 3)
        gone = _gone(server, read, executed(server), end)
        server.execute("FLUSH BINARY LOGS")
        write(server, "purged", 3)
        oldest = server.binlog_files[-1].name
        _purge(server, oldest)

        line = refusal(world, 3)
        for words in (gone, f"at {oldest} with MILLRACE_ON_GAP=continue"):
            assert words in line
        assert markers(world) == []

        run_to_the_end(world, server, MILLRACE_ON_GAP="continue")
        server.execute("FLUSH BINARY LOGS")
        run_to_the_end(world, server)
        assert markers(world) == [GAP]
        (gap,) = [record for record in world.raw() if HEADER_MARKER in record.headers]
        assert (gap.key.epoch, gap.key.position) == (1, 0)
        assert gone in gap.value.decode()
        if isinstance(server, MariaDB):
            # By GTID, MariaDB sends the head of the first file altered, and without its GTID_LIST.
            written = files_of(world.raw())[1, oldest].removeprefix(MAGIC)
            assert (server.data_folder / oldest).read_bytes().endswith(written)
        else:
            assert_closed_files_equal(world.raw(), server, epoch=1)
        assert_nothing_twice(world.raw())
        state = world.state()
        assert state is not None
        assert state.gtid_set == ("" if options else executed(server))

        with world.reader(ends_with=7) as process:
            world.wait_until_at(server, process)
            server.execute("RESET MASTER")
            write(server, "purged", 40)
            assert process.wait(120) == 7
        line = refusal(world, 7)
        assert "this is not the log that was read so far" in line
        assert ("the server does not write GTIDs" if options else "its history does not hold") in line


def _purge(server: Server, oldest: str) -> None:
    """Purge all logs before ``oldest``: a server keeps one, and says nothing, while it is still in use."""

    def is_purged() -> bool:
        server.execute(f"PURGE BINARY LOGS TO '{oldest}'")
        return server.binlog_files[0].name == oldest

    wait_for(is_purged, None, f"a log that begins at {oldest}")


def _gone(server: Server, read: str, until: str, end: tuple[str, int]) -> str:
    """How the reader names what is gone: all that came after ``read``, or ``end``."""
    if isinstance(server, MariaDB):
        return f"with the transactions after {read} up to {until}"
    if not read:
        return f"the server no longer has {end[0]}, which was read up to {end[1]}: "
    uuid, _, last = read.partition(":1-")
    return f"with the transactions {uuid}:{int(last) + 1}-{until.rpartition('-')[2]}"


def test_a_server_that_lost_the_end_of_its_log(kafka: Kafka, source_name: str) -> None:
    with MySQL(server_id=21) as server:
        world = ReaderWorld.of(kafka, source_name, server)
        write(server, "lost_end")
        run_to_the_end(world, server)
        server.kill()
        # Its data outlived the crash, the last two transactions of its log did not.
        path = server.binlog_files[-1]
        path.write_bytes(path.read_bytes()[:-500])
        server.start()
        line = refusal(world, 7)
        assert f"{path.name} ends at" in line
        assert "its history does not hold" in line


def test_a_unix_socket_ipv6_and_the_next_server(
    kafka: Kafka, mysql: MySQL, source_name: str, free_port: int
) -> None:
    world = ReaderWorld.of(kafka, source_name, mysql)
    write(mysql, "reached", 1)
    run_to_the_end(world, mysql, MILLRACE_MYSQL_HOST=str(mysql.socket), MILLRACE_MYSQL_PORT="")
    with Proxy(mysql.port, host="::1") as proxy:
        write(mysql, "reached", 1)
        both = f"127.0.0.1:{free_port},[::1]:{proxy.port}"
        run_to_the_end(world, mysql, MILLRACE_MYSQL_HOST=both, MILLRACE_MYSQL_PORT="")
        line = refusal(
            world, 3, MILLRACE_MYSQL_HOST=f"127.0.0.1:{free_port},/no/such.sock", MILLRACE_MYSQL_PORT=""
        )
        for words in (
            "no server can be read: ",
            f"127.0.0.1:{free_port}: cannot connect",
            "; /no/such.sock: ",
        ):
            assert words in line
    assert markers(world) == [], "it is the same server all the time"
    assert_nothing_twice(world.raw())


@pytest.mark.slow
def test_a_link_that_swallows_everything(
    kafka: Kafka, mysql: MySQL, source_name: str, free_port: int
) -> None:
    with Proxy(mysql.port) as proxy:
        world = ReaderWorld(
            kafka,
            source_name,
            **{
                **server_environment(mysql),
                "MILLRACE_MYSQL_PORT": str(proxy.port),
                "MILLRACE_MYSQL_HEARTBEAT_S": "2",
                "MILLRACE_MYSQL_CONNECT_TIMEOUT_S": "5",
                "MILLRACE_HTTP_PORT": str(free_port),
                "MILLRACE_START": "latest",
            },
        )
        write(mysql, "swallowed", 1)
        with world.reader() as process:
            world.wait_until_at(mysql, process)
            proxy.freeze()
            write(mysql, "swallowed", 5)
            wait_for(lambda: _lost_links(free_port) >= 2, process, "the link is given up, and the next one")
            proxy.thaw()
            write(mysql, "swallowed", 5)
            world.wait_until_at(mysql, process)
    assert SOURCE_CHANGED not in markers(world)
    assert_nothing_twice(world.raw())


def test_a_broker_that_stands_still_costs_no_link(
    kafka: Kafka, database: Server, source_name: str, free_port: int
) -> None:
    """The server waits for the reader, which waits for Kafka, for longer than the server would by itself."""
    world = ReaderWorld.of(
        kafka, source_name, database, MILLRACE_HTTP_PORT=str(free_port), MILLRACE_START="latest"
    )
    ((_, before),) = database.query("SHOW GLOBAL VARIABLES LIKE 'net_write_timeout'")
    write(database, "waited", 1)
    database.execute("SET GLOBAL net_write_timeout = 1", "CREATE TABLE waited.large (v LONGBLOB)")
    try:
        with world.reader() as process:
            world.wait_until_at(database, process)
            # For less time than a transaction of Kafka may take, and with more than all buffers hold.
            with stopped(kafka):
                database.execute(*["INSERT INTO waited.large VALUES (REPEAT('x', 1000000))"] * 30)
                time.sleep(5)
            world.wait_until_at(database, process)
            assert _lost_links(free_port) == 0
    finally:
        database.execute(f"SET GLOBAL net_write_timeout = {before}", "DROP DATABASE waited")
    assert_nothing_twice(world.raw())


def _lost_links(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    return next(
        float(line.split()[1]) for line in lines if line.startswith("millrace_reader_lost_links_total")
    )

"""The reader as a process: the raw topic is the server's log, byte for byte, once."""

import random
import resource
import secrets
import signal
import struct
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.avro.catalog import CatalogEntry
from millrace.contract import (
    HEADER_ARTIFICIAL,
    HEADER_CHECKSUM,
    HEADER_CHUNK,
    HEADER_MARKER,
    SOURCE_CHANGED,
)
from millrace.kafka.client import connect
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import topic_names
from millrace.kafka.state import read_state
from millrace.local import Kafka, MariaDB, MySQL
from tests.killed import command as killed
from tests.service_process import server_environment, wait_for
from tests.shared import SHARED, run_python
from tests.worker import Worker

from .reader_world import (
    MAGIC,
    ReaderWorld,
    assert_closed_files_equal,
    assert_nothing_twice,
    executed,
    files_of,
    log_end,
)
from .rows_world import MARIADB_IS_SLOW, MYSQL_IS_SLOW

Server = MySQL | MariaDB


@pytest.fixture
def mysql(mysql: MySQL) -> MySQL:
    """With a new log, since readers read all of it."""
    mysql.execute("RESET MASTER")
    return mysql


@pytest.fixture
def mariadb(mariadb: MariaDB) -> MariaDB:
    """Likewise."""
    mariadb.execute("RESET MASTER")
    return mariadb


def write_some(server: Server, database: str, count: int = 50) -> None:
    """A few transactions of every shape."""
    server.execute(
        f"CREATE DATABASE IF NOT EXISTS {database}",
        f"CREATE TABLE IF NOT EXISTS {database}.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(200))",
        f"CREATE TABLE IF NOT EXISTS {database}.m (id INT, v VARCHAR(200)) ENGINE=MyISAM",
    )
    with server.connect(autocommit=False, database=database) as connection, connection.cursor() as cursor:
        for number in range(count):
            cursor.execute("INSERT INTO t (v) VALUES (%s), (%s)", (str(number), "x" * number))
            if number % 3 == 0:
                cursor.execute("UPDATE t SET v = CONCAT(v, 'y') WHERE id %% 7 = %s", (number % 7,))
            connection.commit()
            if number % 10 == 0:
                cursor.execute("INSERT INTO m VALUES (%s, 'm')", (number,))
                cursor.execute("INSERT INTO t (v) VALUES ('gone')")
                connection.rollback()
            if number % 20 == 0:
                cursor.execute("FLUSH BINARY LOGS")


def write_large(server: Server, database: str, *sizes: int) -> None:
    server.execute(
        f"CREATE DATABASE IF NOT EXISTS {database}",
        f"CREATE TABLE IF NOT EXISTS {database}.blobs (id INT AUTO_INCREMENT PRIMARY KEY, b LONGBLOB)",
    )
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        for size in sizes:
            # Not in a statement's text, which MariaDB would log once more.
            cursor.execute("INSERT INTO blobs (b) VALUES (REPEAT(RANDOM_BYTES(1024), %s))", (size // 1024,))


def test_the_raw_topic_is_the_log(kafka: Kafka, database: Server, source_name: str) -> None:
    write_some(database, "reader_raw")
    write_large(database, "reader_raw", 1_000_000, 1_046_528, 1_048_576, 16_777_216 - 1024, 20_000_000)
    world = ReaderWorld.of(kafka, source_name, database)
    with world.reader() as process:
        world.wait_until_at(database, process)
        write_some(database, "reader_raw", 30)
        database.execute("FLUSH BINARY LOGS")
        world.wait_until_at(database, process)
    records = world.raw()
    assert assert_closed_files_equal(records, database) >= 3
    assert_nothing_twice(records)
    assert any(HEADER_CHUNK in record.headers for record in records)
    assert {tuple(record.headers) for record in records} == {(), (HEADER_CHUNK,)}
    assert all(record.key.server_id == database.server_id for record in records)
    stamps = [record.timestamp_ms for record in records]
    assert stamps == sorted(stamps)

    state = world.state()
    assert state is not None
    assert state.identity is not None
    assert state.open_gtid is None
    assert state.gtid_set == executed(database)
    entries = {key: CatalogEntry.from_bytes(values[-1]) for key, values in world.catalog().items()}
    definition = entries[b"reader_raw.t"].definition
    assert [column.name for column in definition.columns] == ["id", "v"]
    assert definition.key == ("id",)
    assert entries[b"reader_raw.m"].definition.engine == "MyISAM"


def test_start_in_the_middle(kafka: Kafka, database: Server, source_name: str) -> None:
    write_some(database, "reader_middle", 5)
    log_file, position = log_end(database)
    world = ReaderWorld.of(kafka, source_name, database, MILLRACE_START=f"{log_file}:{position}")
    with world.reader() as process:
        write_some(database, "reader_middle", 5)
        world.wait_until_at(database, process)
    with world.reader() as process:
        write_some(database, "reader_middle", 5)
        world.wait_until_at(database, process)
    records = world.raw()
    assert [record.key.position for record in records[:2]] == [4, position]
    assert records[0].headers == {HEADER_ARTIFICIAL: b"1"}
    assert sum(HEADER_ARTIFICIAL in record.headers for record in records) == 1
    assert_nothing_twice(records)


def test_start_at_the_end(kafka: Kafka, database: Server, source_name: str) -> None:
    write_some(database, "reader_latest", 5)
    end = log_end(database)
    world = ReaderWorld.of(kafka, source_name, database, MILLRACE_START="latest")
    with world.reader() as process:
        state = world.wait_until_at(database, process)
        # MariaDB may write a checkpoint event after the end at any time.
        assert end <= (state.log_file, state.position) < (end[0], end[1] + 200)
        assert state.gtid_set == executed(database)


def test_start_after_a_gtid_set(kafka: Kafka, database: Server, source_name: str) -> None:
    write_some(database, "reader_gtid", 5)
    gtids, end = executed(database), log_end(database)
    write_some(database, "reader_gtid", 25)
    world = ReaderWorld.of(kafka, source_name, database, MILLRACE_START=f"gtid:{gtids}")
    with world.reader() as process:
        world.wait_until_at(database, process)
        database.execute("FLUSH BINARY LOGS")
        state = world.wait_until_at(database, process)
    assert state.gtid_set == executed(database)
    records = world.raw()
    wanted = [
        record for record in records if record.in_file and (record.key.log_file, record.key.position) >= end
    ]
    written = files_of(wanted)
    for path in database.binlog_files[:-1]:
        content = path.read_bytes()
        if path.name == end[0]:
            assert written[0, path.name] == MAGIC + content[end[1] :]
        elif path.name > end[0]:
            assert written[0, path.name] == content


def test_odd_clocks(kafka: Kafka, database: Server, source_name: str) -> None:
    """Events of 1970 and of 2037 pass a broker with default settings, and do not spoil the time index."""
    write_some(database, "reader_clock", 3)
    log_file, position = log_end(database)
    database.execute(
        "SET TIMESTAMP = 2114376000",
        "INSERT INTO reader_clock.t (v) VALUES ('2037')",
        "SET TIMESTAMP = 1",
        "INSERT INTO reader_clock.t (v) VALUES ('1970')",
        "SET TIMESTAMP = 0",
        "INSERT INTO reader_clock.t (v) VALUES ('now')",
    )
    world = ReaderWorld.of(kafka, source_name, database, MILLRACE_START=f"{log_file}:{position}")
    with world.reader() as process:
        world.wait_until_at(database, process)
    records = world.raw()
    dates = {struct.unpack_from("<I", record.value)[0] for record in records}
    assert {1, 2114376000} <= dates
    stamps = [record.timestamp_ms for record in records]
    assert stamps == sorted(stamps)
    assert max(stamps) <= time.time() * 1000


def _event(type_code: int, timestamp: int, start: int, body: bytes) -> bytes:
    size = 19 + len(body)
    return struct.pack("<IBIIIH", timestamp, type_code, 1, size, start + size, 0) + body


def _old_file(path: Path, timestamps: list[int]) -> bytes:
    """A log as MySQL 5.1 wrote it, without checksums."""
    lengths = bytes([56, 13, 0, 8, 0, 18, 0, 4, 4, 4, 4, 18, 0, 0, 84, 0, 4, 26, 8, 0, 0, 0, 8, 8, 8, 2, 0])
    data = MAGIC
    description = struct.pack("<H50sIB", 4, b"5.1.46-log", timestamps[0], 19) + lengths
    data += _event(15, timestamps[0], len(data), description)
    for number, timestamp in enumerate(timestamps):
        data += _event(16, timestamp, len(data), struct.pack("<Q", number))
    path.write_bytes(data)
    return data


def test_a_file_of_2010_stays(kafka: Kafka, tmp_path: Path, source_name: str) -> None:
    timestamps = [1262304000, 1262304060, 0, 1262304120]
    data = _old_file(tmp_path / "old-bin.000001", timestamps)
    world = ReaderWorld(kafka, source_name, MILLRACE_FILES=str(tmp_path / "old-bin.*"))
    assert world.run().returncode == 0
    records = world.raw()
    assert files_of(records) == {(0, "old-bin.000001"): data}
    assert [record.timestamp_ms // 1000 for record in records] == [
        1262304000,
        1262304000,
        1262304060,
        1262304060,
        1262304120,
    ]
    topics = run_python(
        "-c", _TOPIC_SETTINGS, world.settings.bootstrap_servers, world.topics.raw, settings={}
    )
    assert topics.returncode == 0, topics.stderr
    assert topics.stdout.split() == ["-1", str(2**63 - 1), str(2**63 - 1)]


_TOPIC_SETTINGS = """
import sys
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
admin = AdminClient({"bootstrap.servers": sys.argv[1]})
(found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, sys.argv[2])]).values()
entries = found.result(30)
for name in ("retention.ms", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"):
    print(entries[name].value)
"""


@pytest.mark.corpus
def test_real_files_before_2011(kafka: Kafka, source_name: str) -> None:
    old = {path.name: path for path in sorted(SHARED.glob("corpus/**/*")) if _year(path) in range(2005, 2011)}
    old = {name: path for name, path in old.items() if "corrupt" not in name}
    if not old:
        pytest.skip(f"no corpus at {SHARED}")
    world = ReaderWorld(kafka, source_name, MILLRACE_FILES=",".join(map(str, old.values())))
    done = world.run()
    assert done.returncode == 0, done.stderr
    assert files_of(world.raw()) == {(0, name): path.read_bytes() for name, path in old.items()}


def _year(path: Path) -> int | None:
    """The year in the format description of a binary log, None for anything else."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(9)
    if len(head) < 9 or head[:4] != MAGIC or head[8] != 15:
        return None
    return time.gmtime(struct.unpack_from("<I", head, 4)[0]).tm_year


def test_files_are_followed(kafka: Kafka, database: Server, source_name: str) -> None:
    write_some(database, "reader_files", 10)
    index = next(database.data_folder.glob("*.index"))
    world = ReaderWorld(kafka, source_name, MILLRACE_FILES=str(index), MILLRACE_FOLLOW="true")
    with world.reader() as process:
        world.wait_until_at(database, process)
        write_some(database, "reader_files", 25)
        world.wait_until_at(database, process)
    write_some(database, "reader_files", 25)
    with world.reader() as process:
        database.execute("FLUSH BINARY LOGS")
        world.wait_until_at(database, process)
    records = world.raw()
    assert_closed_files_equal(records, database, but_in_use=True)
    assert_nothing_twice(records)


class Workload(Worker):
    """Transactions that never stop, large ones among them."""

    def __init__(self, server: Server, database: str) -> None:
        super().__init__()
        self._server = server
        self._database = database
        self._random = random.Random(7)

    def start(self) -> None:
        self._server.execute(
            f"CREATE DATABASE {self._database}",
            f"CREATE TABLE {self._database}.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARBINARY(2000))",
        )
        super().start()

    def _run(self) -> None:
        with (
            self._server.connect(database=self._database, autocommit=False) as connection,
            connection.cursor() as cursor,
        ):
            while not self._stop.is_set():
                rows = self._random.choice((1, 3, 5000))
                value = (secrets.token_bytes(self._random.randrange(1, 1000)),)
                cursor.executemany("INSERT INTO t (v) VALUES (%s)", [value] * rows)
                connection.commit()
                if self._random.random() < 0.05:
                    cursor.execute("FLUSH BINARY LOGS")
                time.sleep(0.02)


@MYSQL_IS_SLOW
def test_kill_and_terminate_in_mid_stream(kafka: Kafka, database: Server, source_name: str) -> None:
    world = ReaderWorld.of(kafka, source_name, database)
    chooser = random.Random(3)
    with Workload(database, f"reader_kill_{secrets.token_hex(4)}"):
        with world.reader(command=killed("reader", "before_commit", 3)) as process:
            assert process.wait(180) == -signal.SIGKILL
        for number in range(5):
            with world.reader() as process:
                before = world.end_offset()
                wait_for(lambda before=before: world.end_offset() > before + 5, process, "records")  # type: ignore[misc]
                time.sleep(chooser.uniform(0, 0.4))
                process.send_signal(signal.SIGTERM if number % 4 == 3 else signal.SIGKILL)
                process.wait(180)
                assert process.returncode == (0 if number % 4 == 3 else -signal.SIGKILL)
    database.execute("FLUSH BINARY LOGS")
    with world.reader() as process:
        world.wait_until_at(database, process)
    records = world.raw()
    assert_closed_files_equal(records, database)
    assert_nothing_twice(records)
    keys = [(record.key.log_file, record.key.position) for record in records]
    assert keys == sorted(keys), "the order is the log's"
    everything = world.raw(isolation="read_uncommitted")
    aborted = len(everything) - len(records)
    print(f"{len(records)} records, {aborted} in aborted transactions")
    assert aborted > 0


@contextmanager
def own_server(kind: type[Server], **options: str | int | bool | None) -> Iterator[Server]:
    dashed = {name.replace("_", "-"): value for name, value in options.items()}
    with kind(server_id=21, options=dashed) as server:
        yield server


@pytest.mark.parametrize("kind", [MySQL, MariaDB])
def test_the_server_restarts(kafka: Kafka, kind: type[Server], source_name: str) -> None:
    with own_server(kind) as server:
        world = ReaderWorld.of(kafka, source_name, server, MILLRACE_MYSQL_HEARTBEAT_S="1")
        with world.reader() as process:
            write_some(server, "restarted", 5)
            world.wait_until_at(server, process)
            server.stop()
            time.sleep(1)
            server.start()
            write_some(server, "restarted", 5)
            world.wait_until_at(server, process)
            server.kill()
            server.start()
            write_some(server, "restarted", 5)
            server.execute("FLUSH BINARY LOGS")
            world.wait_until_at(server, process)
        records = world.raw()
        assert_nothing_twice(records)
        # A server that was killed left IN_USE set in its file's format description.
        assert assert_closed_files_equal(records, server, but_in_use=True) > 3


@pytest.mark.parametrize("kind", [MySQL, MariaDB], ids=["mysql", "mariadb"])
def test_checksums_are_switched_off_and_on(kafka: Kafka, kind: type[Server], source_name: str) -> None:
    """While it reads, and before it starts again."""
    with kind(server_id=21) as server:
        world = ReaderWorld.of(kafka, source_name, server)
        write_some(server, "checksums", 5)
        for switches in (("NONE", "CRC32", "NONE"), ("CRC32",)):
            with world.reader() as process:
                world.wait_until_at(server, process)
                for value in switches:
                    server.execute(f"SET GLOBAL binlog_checksum={value}")
                    write_some(server, "checksums", 5)
                server.execute("FLUSH BINARY LOGS")
                world.wait_until_at(server, process)
        records = world.raw()
        assert assert_closed_files_equal(records, server) > 4
        assert_nothing_twice(records)
        assert not any(HEADER_CHECKSUM in record.headers for record in records)


@pytest.mark.slow
def test_the_disk_of_a_broker_is_full(mysql: MySQL, source_name: str) -> None:
    """It refuses to write further, as a full disk does; later there is room again."""
    with Kafka() as kafka:
        world = ReaderWorld.of(kafka, source_name, mysql)
        write_some(mysql, "full_disk", 5)
        mysql.execute("CREATE TABLE full_disk.large (v MEDIUMBLOB)")
        with world.reader(ends_with=4) as process:
            world.wait_until_at(mysql, process)
            (broker,) = kafka.processes
            limits = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
            for _ in range(10):
                mysql.execute(f"INSERT INTO full_disk.large VALUES (x'{secrets.token_hex(500_000)}')")
            process.wait(240)
            assert process.error_output.startswith("error: Kafka ")
        if broker.poll() is None:
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, limits)
        kafka.stop()
        kafka.start()
        with world.reader() as process:
            mysql.execute("FLUSH BINARY LOGS")
            world.wait_until_at(mysql, process)
        records = world.raw()
        assert_closed_files_equal(records, mysql)
        assert_nothing_twice(records)


def test_another_server_takes_over(kafka: Kafka, source_name: str) -> None:
    with own_server(MySQL) as first, MySQL(server_id=22) as second:
        world = ReaderWorld.of(kafka, source_name, first)
        write_some(first, "taken", 3)
        with world.reader() as process:
            world.wait_until_at(first, process)
        gtids = executed(first)
        second.execute("RESET MASTER", f"SET GLOBAL gtid_purged = '{gtids}'")
        write_some(second, "taken", 3)
        with world.reader(**server_environment(second)) as process:
            wait_for(lambda: _epoch(world) == 1, process, "a new epoch")
            state = world.wait_until_at(second, process)
            assert state.gtid_set == executed(second)
        records = world.raw()
        marker = next(record for record in records if HEADER_MARKER in record.headers)
        assert marker.headers[HEADER_MARKER] == SOURCE_CHANGED
        assert b"server_uuid" in marker.value
        assert (marker.key.epoch, marker.key.position) == (1, 0)
        assert_nothing_twice(records)
        assert_closed_files_equal(records, second, epoch=1)


def test_another_server_without_gtids_is_refused(kafka: Kafka, source_name: str) -> None:
    options: dict[str, str | int | bool | None] = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with own_server(MySQL, **options) as first, own_server(MySQL, **options) as second:
        world = ReaderWorld.of(kafka, source_name, first)
        write_some(first, "refused", 3)
        with world.reader() as process:
            world.wait_until_at(first, process)
        write_some(second, "refused", 3)
        done = world.run(**server_environment(second))
        assert done.returncode == 7
        _one_line(done.stderr, "not the log that was read so far", "server_uuid", "does not write GTIDs")


def test_a_second_reader_fences_the_first(kafka: Kafka, database: Server, source_name: str) -> None:
    world = ReaderWorld.of(kafka, source_name, database, MILLRACE_KAFKA_FENCED_WAIT_S="0")
    with world.reader(ends_with=6) as first:
        world.wait_until_at(database, first)
        with world.reader() as second:
            wait_for(lambda: _owner(world) == second.pid, second, "the second reader's state")
            write_some(database, "fenced", 3)
            world.wait_until_at(database, second)
            first.wait(180)
            _one_line(first.error_output, "took over")
    assert_nothing_twice(world.raw())


def _epoch(world: ReaderWorld) -> int:
    state = world.state()
    return -1 if state is None else state.epoch


def _owner(world: ReaderWorld) -> int | None:
    stored = read_state(world.settings, world.source, "reader")
    return None if stored is None else int(stored.owner.split()[1])


def _one_line(errors: str, *words: str) -> None:
    lines = errors.splitlines()
    assert len(lines) == 1, errors
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0], errors


VERIFYING = {"MILLRACE_MYSQL_SSL_MODE": "VERIFY_IDENTITY", "MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY": "false"}


@MARIADB_IS_SLOW
def test_wrong_host_port_and_password(
    kafka: Kafka, database: Server, source_name: str, free_port: int
) -> None:
    world = ReaderWorld.of(kafka, source_name, database)
    log_file, end = log_end(database)
    for change, words in (
        ({"MILLRACE_MYSQL_HOST": "no-such-host.invalid"}, ("no host of that name", "MILLRACE_MYSQL_HOST")),
        ({"MILLRACE_MYSQL_PORT": str(free_port)}, ("cannot connect", "MILLRACE_MYSQL_HOST and _PORT")),
        ({"MILLRACE_MYSQL_PASSWORD": "wrong"}, ("check user and password", "MILLRACE_MYSQL_PASSWORD")),
        ({"MILLRACE_MYSQL_USER": "nobody-knows-me"}, ("check user and password",)),
        (VERIFYING, ("the TLS handshake failed", "_SSL_CA")),
        ({"MILLRACE_START": "mysql-bin.999999:4"}, ("MILLRACE_START is wrong", "SHOW BINARY LOGS")),
        ({"MILLRACE_START": f"{log_file}:5"}, ("MILLRACE_START is wrong", "no event begins there, but at 4")),
        ({"MILLRACE_START": f"{log_file}:{end + 1}"}, ("MILLRACE_START is wrong", f"ends at {end}")),
    ):
        done = world.run(**change)
        assert done.returncode == (2 if "MILLRACE_START" in change else 3), done.stderr
        _one_line(done.stderr, *words)
    _leaves_no_trace(world)


def _leaves_no_trace(world: ReaderWorld) -> None:
    topics = topic_names(connect(world.settings))
    assert not [name for name in topics if name.startswith(f"{world.source}.")]


def test_files_without_the_place_to_start_at(kafka: Kafka, tmp_path: Path, source_name: str) -> None:
    _old_file(tmp_path / "bin.000001", [1262304000, 1262304060])
    world = ReaderWorld(kafka, source_name, MILLRACE_FILES=str(tmp_path / "bin.*"))
    for change, code, word in (
        ({"MILLRACE_START": "bin.000001:5"}, 2, "bin.000001:5: no event begins there, but at 4 and"),
        ({"MILLRACE_START": "bin.000001:99999"}, 2, "bin.000001:99999: the file ends at"),
        ({"MILLRACE_FILES": "/nosuch/*"}, 3, "no file matches MILLRACE_FILES"),
    ):
        done = world.run(**change)
        assert done.returncode == code, done.stderr
        _one_line(done.stderr, word)
    _leaves_no_trace(world)


def test_missing_grants(kafka: Kafka, database: Server, source_name: str) -> None:
    world = ReaderWorld.of(kafka, source_name, database)
    client = "REPLICATION CLIENT" if isinstance(database, MySQL) else "BINLOG MONITOR"
    user = f"poor{secrets.token_hex(3)}"
    database.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
    login = {"MILLRACE_MYSQL_USER": user, "MILLRACE_MYSQL_PASSWORD": "secret"}
    for grant in (client, "REPLICATION SLAVE"):
        done = world.run(**login)
        assert done.returncode == 3, done.stderr
        _one_line(done.stderr, f"run GRANT {grant}", f"ON *.* TO '{user}'@'%'")
        database.execute(f"GRANT {grant} ON *.* TO '{user}'@'%'")
    with world.reader(**login) as process:
        world.wait_until_at(database, process)


@pytest.mark.parametrize("kind", [MySQL, MariaDB])
def test_the_binary_log_is_off(kafka: Kafka, kind: type[Server], source_name: str) -> None:
    options = {"log-bin": None} | ({"skip-log-bin": True} if kind is MySQL else {})
    with kind(options=options) as server:
        done = ReaderWorld.of(kafka, source_name, server).run()
        assert done.returncode == 3
        _one_line(done.stderr, "the binary log is off", "set log_bin=")


@pytest.mark.parametrize("binlog_format", ["STATEMENT", "MIXED"])
def test_statement_format(kafka: Kafka, database: Server, source_name: str, binlog_format: str) -> None:
    world = ReaderWorld.of(kafka, source_name, database)
    write_some(database, "statements", 2)
    database.execute(f"SET GLOBAL binlog_format='{binlog_format}'")
    try:
        done = world.run()
        assert done.returncode == 3
        _one_line(done.stderr, f"binlog_format is {binlog_format}", "SET GLOBAL binlog_format='ROW'")
        with world.reader(MILLRACE_MYSQL_ALLOW_STATEMENTS="true") as process:
            world.wait_until_at(database, process)
    finally:
        database.execute("SET GLOBAL binlog_format='ROW'")


def test_a_server_id_that_is_taken(kafka: Kafka, database: Server, source_name: str) -> None:
    world = ReaderWorld.of(kafka, source_name, database)
    done = world.run(MILLRACE_MYSQL_SERVER_ID=str(database.server_id))
    assert done.returncode == 3
    _one_line(done.stderr, "MILLRACE_MYSQL_SERVER_ID")


def test_health_and_metrics(kafka: Kafka, mysql: MySQL, source_name: str, free_port: int) -> None:
    world = ReaderWorld.of(kafka, source_name, mysql, MILLRACE_HTTP_PORT=str(free_port))
    write_some(mysql, "metrics", 2)

    def answer(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}{path}", timeout=60) as response:
            return str(response.read().decode())

    with world.reader() as process:
        world.wait_until_at(mysql, process)
        assert answer("/healthz") == answer("/readyz") == "ok\n"
        count = len(world.raw())

        def metrics() -> dict[str, str]:
            lines = answer("/metrics").splitlines()
            return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))

        # Counted once per batch, which may be a moment after its commit.
        wait_for(lambda: float(metrics()["millrace_reader_events_total"]) == count, process, "the count")
        assert float(metrics()["millrace_reader_connected"]) == 1


def test_who_cannot_read_fences_nobody(
    kafka: Kafka, mysql: MySQL, mariadb: MariaDB, source_name: str
) -> None:
    """A wrong password and a wrong server are found out before the reader that works would be fenced."""
    world = ReaderWorld.of(kafka, source_name, mysql)
    write_some(mysql, "early", 1)
    with world.reader() as process:
        world.wait_until_at(mysql, process)
        refused = world.run(MILLRACE_MYSQL_PASSWORD="wrong")
        _one_line(refused.stderr, "Access denied")
        other = ReaderWorld.of(kafka, source_name, mariadb).run()
        _one_line(other.stderr, "this is not the log that was read so far")
        assert (refused.returncode, other.returncode) == (3, 7)
        write_some(mysql, "late", 1)
        world.wait_until_at(mysql, process)
    assert {record.key.epoch for record in world.raw()} == {0}


def test_damaged_bytes_of_a_file_are_marked(
    kafka: Kafka, mysql: MySQL, tmp_path: Path, source_name: str
) -> None:
    write_some(mysql, "damaged", 3)
    mysql.execute("FLUSH BINARY LOGS")
    source = mysql.binlog_files[-2]
    data = bytearray(source.read_bytes())
    end = int.from_bytes(data[4 + 13 : 4 + 17], "little")
    data[end + 30] ^= 1
    (tmp_path / source.name).write_bytes(data)
    world = ReaderWorld(kafka, source_name, MILLRACE_FILES=str(tmp_path / source.name))
    assert world.run().returncode == 0
    records = world.raw()
    assert files_of(records)[0, source.name] == bytes(data)
    assert [record.key.position for record in records if record.headers] == [end]
    assert [record.headers for record in records if record.headers] == [{"checksum": b"bad"}]


def test_the_state_is_written_by_nobody_else(kafka: Kafka, mysql: MySQL, source_name: str) -> None:
    """A state of another version stops the reader in words."""
    world = ReaderWorld.of(kafka, source_name, mysql)
    with world.reader() as process:
        world.wait_until_at(mysql, process)
    with TransactionalProducer(world.settings, source_name, "reader") as producer:
        producer.open()
        producer.commit(b"\xc3\x01" + bytes(20))
    done = world.run()
    assert done.returncode == 7
    _one_line(done.stderr, "state")

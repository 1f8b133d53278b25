"""The schema history against real servers that log as little of their columns as they can.

Each statement of ``tests/ddl_statements.py`` is run between changes of rows, and what the row mapper made of
it is compared with information_schema as it was right after the statement.
"""

import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest

from millrace.avro.column_attributes import with_attributes
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import RowMapperState
from millrace.binlog.columns import AvroOptions, codec_of
from millrace.binlog.table import TableDefinition, column_of
from millrace.ddl import MISSING, State, Unknown
from millrace.kafka.producer import TransactionalProducer
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.mysql.catalog import read_definitions
from millrace.mysql.connection import MysqlConnection
from millrace.mysql.status import log_status
from millrace.rowmapper import history
from millrace.runtime.settings import RegistrySettings
from millrace.verify.tables import compare_tables
from tests.ddl_statements import NOT_UNDERSTOOD, STATEMENTS
from tests.ddl_text import brief
from tests.debian import perl_environment, unpacked
from tests.servers.databases import fetched
from tests.service_process import wait_for as await_it

from .rows_world import SERVICES, RowsWorld, without_column_names

pytestmark = pytest.mark.live

ATTRIBUTES = AvroOptions(column_attributes="parameters")
DATABASES = ("ddl", "ddl_other", "ddl_third", "ddl_fourth", "ddl_fifth")


@pytest.fixture(scope="module", params=[MySQL, pytest.param(MariaDB, marks=pytest.mark.slow)])
def own(request: pytest.FixtureRequest) -> Iterator[MySQL | MariaDB]:
    """A server of the module's own: its defaults must be those of the statements."""
    with request.param(options={"explicit-defaults-for-timestamp": "ON"}) as database:
        yield database


@pytest.fixture
def server(own: MySQL | MariaDB) -> Iterator[MySQL | MariaDB]:
    """It, without databases afterwards."""
    yield own
    own.execute(*(f"DROP DATABASE IF EXISTS {name}" for name in DATABASES))


Truth = dict[tuple[str, str], TableDefinition]


def definitions(connection: MysqlConnection) -> Truth:
    return {
        (each.database, each.table): each
        for each in read_definitions(connection)
        if each.database in DATABASES and each.table
    }


def defaults(table: TableDefinition, *, mariadb: bool) -> dict[str, str]:
    """The literal defaults of columns, as schemas have them."""
    found = {}
    for definition in table.columns:
        column = column_of(definition, mariadb=mariadb)
        avro = with_attributes(codec_of(column).avro_type(ATTRIBUTES), column, ATTRIBUTES)
        parameters = avro.get("connect.parameters", {}) if isinstance(avro, dict) else {}
        if "millrace.default" in parameters:
            found[definition.name] = parameters["millrace.default"]
    return found


def execute(cursor: "pymysql.cursors.Cursor", statement: str) -> None:
    """Execute a statement; one that does not wait, until the reader does not look at its table just then."""
    executed = False
    while not executed:
        try:
            cursor.execute(statement)
            executed = True
        except pymysql.MySQLError as error:
            if "NOWAIT" not in statement or error.args[0] not in _LOST:
                raise


def test_definitions_equal_those_of_the_server_after_each_statement(
    kafka: Kafka, registry: Registry, server: MySQL | MariaDB, tmp_path: Path
) -> None:
    name = server.flavor
    server.execute("CREATE DATABASE ddl", "CREATE DATABASE ddl_other CHARSET utf8mb4")
    with (
        closing(RowsWorld(kafka, registry, server, f"ddl-{name}", tmp_path)) as world,
        without_column_names(server),
        MysqlConnection(server.root_address) as connection,
        server.connect(database="ddl") as session,
        session.cursor() as cursor,
    ):
        cursor.execute("CREATE TABLE steady (id INT UNSIGNED PRIMARY KEY, e ENUM('x','y'), v VARCHAR(20))")
        with world.service("reader"), world.service("decoder"), world.service("rowmapper"):
            world.wait_for_start()
            truth: list[tuple[tuple[str, int], str, Truth]] = []
            refused: list[str] = []
            for statement in STATEMENTS[name]:
                try:
                    execute(cursor, statement)
                except pymysql.MySQLError as error:
                    refused.append(f"{statement}: {error}")
                    continue
                number = len(truth)
                where = position(server)
                truth.append((where, statement, definitions(connection)))
                cursor.execute(f"INSERT INTO ddl.steady VALUES ({4_000_000_000 + number}, 'y', 'ä{number}')")
            rows = wait_for(world, "steady", len(truth))
        assert [row["after"] for row in rows] == [
            {"id": 4_000_000_000 + number, "e": "y", "v": f"ä{number}"} for number in range(len(truth))
        ]
        assert compare(world, truth) > 20
    # The statements are those of these versions; another one does not take some of them.
    ((version,),) = server.query("SELECT VERSION()")
    assert len(refused) <= (0 if version.startswith(("8.0.15", "11.4.5")) else 20), refused


def position(server: MySQL | MariaDB) -> tuple[str, int]:
    """Where the server's log ends."""
    with MysqlConnection(server.root_address) as connection:
        status = log_status(connection)
    return status.log_file, status.position


def wait_for(world: RowsWorld, table: str, count: int) -> list[dict[str, object]]:
    world.database = "ddl"
    return world.wait_for_row(table, count)


def compare(
    world: RowsWorld,
    truth: list[tuple[tuple[str, int], str, Truth]],
) -> int:
    """Go through the versions in order, and compare what holds after each statement.

    A statement may tell no default, and never another than the server's; gives how often one was told.
    """
    mariadb, told = isinstance(world.server, MariaDB), 0
    versions = [SchemaVersion.from_bytes(m.value() or b"") for m in world.messages(world.topics.schemas)]
    assert versions
    known: dict[tuple[str, str], State] = {}
    waiting = iter([*versions, None])
    version = next(waiting)
    unknown: dict[tuple[str, str], str] = {}
    found_unknown = set()
    for where, statement, expected in truth:
        while version is not None and (version.log_file, version.position) < where:
            key = version.database, version.table
            known[key] = version.state
            was_known = unknown.pop(key, None) is None
            if isinstance(version.state, Unknown):
                unknown[key] = version.state.reason
                if was_known:
                    found_unknown.add(statement)
            version = next(waiting)
        now = {
            key: state
            for key, state in known.items()
            if key[1] and state is not MISSING and key not in unknown and isinstance(state, TableDefinition)
        }
        shown = {key: brief(state) for key, state in expected.items() if key in now}
        assert {key: brief(state) for key, state in now.items()} == shown, statement
        for key, state in now.items():
            ours, theirs = defaults(state, mariadb=mariadb), defaults(expected[key], mariadb=mariadb)
            assert ours.items() <= theirs.items(), statement
            told += len(ours)
        assert expected.keys() - now.keys() - unknown.keys() <= {("ddl", "steady")}, statement
    assert found_unknown <= NOT_UNDERSTOOD | {
        "ALTER TABLE texts DROP added2, CONVERT TO CHARSET utf8mb4, ALGORITHM=COPY"
    }
    return told


ORDERS = """
CREATE TABLE {} (id INT UNSIGNED PRIMARY KEY, state ENUM('new','paid') NOT NULL, amount INT UNSIGNED,
  note VARCHAR(50))
"""
_LOST: tuple[int, ...] = (1205, 1213)
"""Lock wait timeout and deadlock: what the statement did is undone, and it may be tried again."""


@contextmanager
def load(server: MySQL | MariaDB) -> Iterator[list[int]]:
    """Change rows of ddl.orders all the time; gives how often, as far as that is known."""
    stop, done, failed = threading.Event(), [0], []

    def write() -> None:
        chance = random.Random(12)
        number = 10_000
        with server.connect(autocommit=True, database="ddl") as session, session.cursor() as cursor:
            while not stop.wait(0.01):
                number += 1
                some = chance.randrange(number) if chance.random() < 0.3 else chance.randrange(1500)
                for statement in (
                    f"INSERT INTO orders (id, state, amount, note) VALUES ({number}, 'new', 4000000000, 'ä')",
                    f"UPDATE orders SET state = 'paid', amount = amount - 1 WHERE id = {some}",
                    f"DELETE FROM orders WHERE id = {chance.randrange(1500)}",
                ):
                    try:
                        cursor.execute(statement)
                        done[0] += 1
                    except pymysql.MySQLError as error:
                        if error.args[0] not in _LOST:
                            failed.append(error)
                            return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield done
    finally:
        stop.set()
        writer.join()
    assert not failed
    assert done[0] > 100


def wait_for_more(done: list[int]) -> None:
    """Wait for some more changes."""
    before = done[0]
    while done[0] < before + 300:
        time.sleep(0.05)


@pytest.fixture
def orders(kafka: Kafka, registry: Registry, server: MySQL | MariaDB, tmp_path: Path) -> Iterator[RowsWorld]:
    """The services, a table with rows, and a server that logs the least of its columns."""
    server.execute("CREATE DATABASE ddl CHARSET utf8mb4")
    with (
        closing(
            RowsWorld(kafka, registry, server, f"orders-{server.flavor}-{os.urandom(3).hex()}", tmp_path)
        ) as world,
        without_column_names(server),
        world.services(*SERVICES),
    ):
        world.database = "ddl"
        world.wait_for_start()
        rows = ", ".join(f"({number}, 'new', {number}, 'ä{number}')" for number in range(1500))
        server.execute(
            ORDERS.format("ddl.orders"),
            "CREATE TABLE ddl.done (id INT PRIMARY KEY)",
            f"INSERT INTO ddl.orders VALUES {rows}",
        )
        world.wait_for_row("orders", 1500)
        yield world


def assert_nothing_lost(world: RowsWorld) -> None:
    """The row topics fold to the tables, and no row waits."""
    with world.server.connect(autocommit=True, database="ddl") as session, session.cursor() as cursor:
        cursor.execute("INSERT INTO done VALUES (1)")
    world.wait_for_row("done")
    assert world.messages(world.topics.deadletter) == []
    with MysqlConnection(world.server.root_address) as connection:
        found = list(
            compare_tables(
                connection,
                world.settings,
                world.registry,
                source=world.source,
                database="ddl",
                tables=["orders", "done"],
            )
        )
    assert [(one.table, one.equal, one.first, one.untold) for one in found] == [
        ("orders", True, None, []),
        ("done", True, None, []),
    ]
    assert found[0].rows > 100


def test_a_swap_as_gh_ost_does_it(orders: RowsWorld) -> None:
    """Copy in chunks, apply what changed meanwhile, and swap while all writers wait."""
    server = orders.server
    with (
        load(server) as done,
        server.connect(autocommit=True, database="ddl") as copier,
        server.connect(autocommit=True, database="ddl") as holder,
        server.connect(autocommit=True, database="ddl") as renamer,
    ):
        copy, hold = copier.cursor(), holder.cursor()
        copy.execute("CREATE TABLE _orders_gho LIKE orders")
        copy.execute(
            "ALTER TABLE _orders_gho MODIFY state ENUM('sent','new','paid') NOT NULL, "
            "ADD COLUMN priority INT UNSIGNED DEFAULT 4000000000 AFTER id, MODIFY note VARCHAR(80)"
        )
        names = "id, state, amount, note"
        for start in range(0, 1500, 250):
            copy.execute(
                f"INSERT IGNORE INTO _orders_gho ({names}) SELECT {names} FROM orders "
                f"WHERE id >= {start} AND id < {start + 250} LOCK IN SHARE MODE"
            )
        wait_for_more(done)  # of what was copied some has changed since
        copy.execute("CREATE TABLE _orders_del (id INT PRIMARY KEY)")
        hold.execute("LOCK TABLES orders WRITE, _orders_del WRITE")
        hold.execute(f"SELECT {names} FROM orders")
        truth = set(hold.fetchall())
        copy.execute(f"SELECT {names} FROM _orders_gho")
        copied = set(copy.fetchall())
        for row in copied - truth:
            copy.execute("DELETE FROM _orders_gho WHERE id = %s", row[:1])
        for row in truth - copied:
            copy.execute(f"REPLACE INTO _orders_gho ({names}) VALUES (%s, %s, %s, %s)", row)
        assert copied - truth
        assert truth - copied
        rename = threading.Thread(
            target=renamer.query, args=("RENAME TABLE orders TO _orders_del, _orders_gho TO orders",)
        )
        rename.start()
        while not server.query(
            "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'RENAME TABLE%'"
        ):
            assert rename.is_alive()
        hold.execute("DROP TABLE _orders_del")
        hold.execute("UNLOCK TABLES")
        rename.join()
        copy.execute("INSERT INTO orders VALUES (100000000, 5, 'sent', 1, 'x')")
        wait_for_more(done)
    assert_nothing_lost(orders)
    last = orders.rows("orders")[-1]
    assert last["source"]["schema_source"] in ("history", "catalog")
    assert (last["after"] or last["before"])["priority"] in (5, 4_000_000_000)


@pytest.mark.slow
def test_pt_online_schema_change(
    server: MySQL | MariaDB, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if re.match(r"8\.0\.1[4-7]\b", server.query("SELECT VERSION()")[0][0]):
        pytest.skip("pt-online-schema-change refuses MySQL 8.0.14 to 8.0.17 (bug 96145)")
    root = unpacked(
        tmp_path / "percona", "percona-toolkit", "libdbi-perl", "libdbd-mysql-perl", "libmariadb3"
    )
    environment = {} if root is None else {**os.environ, **perl_environment(root)}
    if (
        root is None
        or subprocess.run(
            ["perl", "-MDBD::mysql", "-e1"], env=environment, capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("apt-get cannot fetch percona-toolkit, or its DBD::mysql does not fit this perl")
    orders = request.getfixturevalue("orders")
    alter = (
        "MODIFY state ENUM('sent','new','paid') NOT NULL, MODIFY note VARCHAR(80), "
        "ADD COLUMN priority INT UNSIGNED DEFAULT 4000000000 AFTER id"
    )
    with load(server) as done:
        run = subprocess.run(
            [
                "perl",
                str(root / "usr/bin/pt-online-schema-change"),
                f"--alter={alter}",
                "--execute",
                "--chunk-size=200",
                "--recursion-method=none",
                "--no-version-check",
                f"S={server.socket},u=root,D=ddl,t=orders",
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert "Successfully altered `ddl`.`orders`." in run.stdout
        wait_for_more(done)
    assert_nothing_lost(orders)
    assert orders.rows("orders")[-1]["source"]["schema_source"] in ("history", "catalog")


def test_a_history_that_is_wrong_is_rebuilt(
    kafka: Kafka, registry: Registry, server: MySQL | MariaDB, tmp_path: Path
) -> None:
    """Versions as one would write them that does not understand a statement: rows wait, and come back."""
    server.execute("CREATE DATABASE ddl")
    source = f"rebuild-{server.flavor}-{os.urandom(3).hex()}"
    with closing(RowsWorld(kafka, registry, server, source, tmp_path)) as world, without_column_names(server):
        world.database = "ddl"
        with world.services("reader", "decoder"):
            with world.service("rowmapper"):
                world.wait_for_start()
                server.execute(
                    "CREATE TABLE ddl.t (id INT UNSIGNED PRIMARY KEY, e ENUM('x','y'))",
                    "ALTER TABLE ddl.t MODIFY e ENUM('a','x','y')",
                    "INSERT INTO ddl.t VALUES (4000000000, 'x')",
                    "CREATE TABLE ddl.done (id INT PRIMARY KEY)",
                    "INSERT INTO ddl.done VALUES (1)",
                )
                world.wait_for_row("done")
            said = schema(world, "rebuild")
            assert "the schema history is correct" in said
            versions = [
                SchemaVersion.from_bytes(m.value() or b"") for m in world.messages(world.topics.schemas)
            ]
            altered = [version for version in versions if version.table == "t"][-1]
            unknown = replace(altered, state=Unknown("a statement is not understood"))
            settings = history.Settings(
                source=source, kafka=world.settings, registry=RegistrySettings(url=registry.url)
            )
            with TransactionalProducer(world.settings, source, "rowmapper") as producer:
                (found,) = producer.open()
                assert found is not None
                state = RowMapperState.from_bytes(found.value or b"")
                wrong = [unknown, replace(unknown, position=position(server)[1])]
                history.write(settings, producer, state, wrong)
            with world.service("rowmapper"):
                server.execute("INSERT INTO ddl.t VALUES (1, 'a')", "INSERT INTO ddl.done VALUES (2)")
                world.wait_for_row("done", 2)
            assert len(world.rows("t")) == 1
            assert len(world.messages(world.topics.deadletter)) == 1
            said = schema(world, "rebuild", "--yes")
            assert said.count("-its definition is not known: a statement is not understood\n") == 2
            assert said.count("+  e enum('a','x','y')") == 2
            assert "the schema history is correct" in schema(world, "rebuild")
            world.command("deadletter", "redrive")
        assert [row["after"] for row in world.rows("t")] == [
            {"id": 4_000_000_000, "e": "x"},
            {"id": 1, "e": "a"},
        ]


def test_definitions_that_no_log_tells_are_given(
    kafka: Kafka, registry: Registry, server: MySQL | MariaDB, tmp_path: Path
) -> None:
    """Logs from files, which begin after CREATE DATABASE: rows wait until its character set is known."""
    source = f"given-{server.flavor}-{os.urandom(3).hex()}"
    with closing(RowsWorld(kafka, registry, server, source, tmp_path)) as world, without_column_names(server):
        world.database = "ddl"
        server.execute(
            "CREATE DATABASE ddl CHARACTER SET utf8mb4",
            "FLUSH BINARY LOGS",
            "CREATE TABLE ddl.t (id INT UNSIGNED PRIMARY KEY, v VARCHAR(20))",
            "INSERT INTO ddl.t VALUES (4000000000, 'ä')",
            "CREATE TABLE ddl.done (id INT PRIMARY KEY)",
            "INSERT INTO ddl.done VALUES (1)",
            "FLUSH BINARY LOGS",
        )
        log = shutil.copy(server.binlog_files[-2], tmp_path)
        no_server = dict.fromkeys((name for name in world.environment if "_MYSQL_" in name), "")
        with (
            world.service("reader", MILLRACE_FILES=log, MILLRACE_START="earliest", **no_server),
            world.service("decoder"),
            world.service("rowmapper"),
        ):
            world.wait_for_row("done")
        assert world.table_topics() == [world.topics.table("ddl", "done")]
        script = tmp_path / "definitions.sql"
        script.write_text("CREATE DATABASE ddl CHARACTER SET utf8mb4;\n")
        said = schema(world, "rebuild", "--yes", "--definitions", str(script))
        assert "+  v varchar(20), character set utf8mb4, null" in said
        assert "the schema history is correct" in schema(world, "rebuild")
        world.command("deadletter", "redrive")
        assert [row["after"] for row in world.rows("t")] == [{"id": 4_000_000_000, "v": "ä"}]


def test_rows_of_before_an_alteration_that_nobody_followed(
    kafka: Kafka, registry: Registry, server: MySQL | MariaDB, tmp_path: Path
) -> None:
    """The log begins between CREATE TABLE and ALTER: what is read of the table now is not what it was."""
    created = (
        "CREATE TABLE ddl.{} (id INT UNSIGNED PRIMARY KEY, e ENUM('x','y'), p VARCHAR(20), q VARCHAR(20)) "
        "CHARACTER SET utf8mb4"
    )
    source = f"before-{server.flavor}-{os.urandom(3).hex()}"
    with closing(RowsWorld(kafka, registry, server, source, tmp_path)) as world, without_column_names(server):
        world.database = "ddl"
        server.execute(
            "CREATE DATABASE ddl CHARACTER SET utf8mb4",
            *(created.format(table) for table in ("altered", "indexed")),
            "CREATE TABLE ddl.done (id INT PRIMARY KEY)",
        )
        begin, offset = position(server)
        server.execute(
            *(
                f"INSERT INTO ddl.{table} VALUES (4000000000, 'x', 'p', 'q')"
                for table in ("altered", "indexed")
            ),
            "ALTER TABLE ddl.altered MODIFY e ENUM('a','x','y')",
            "ALTER TABLE ddl.altered CHANGE p q VARCHAR(20), CHANGE q p VARCHAR(20)",
            "ALTER TABLE ddl.indexed ADD INDEX (p), ENGINE = InnoDB",
            "INSERT INTO ddl.altered (id, e, p) VALUES (1, 'x', 'p1')",
            "INSERT INTO ddl.done VALUES (1)",
        )
        with world.services(*SERVICES, MILLRACE_START=f"{begin}:{offset}"):
            world.wait_for_row("done")
            (row,) = world.rows("indexed")
            assert row["after"] == {"id": 4_000_000_000, "e": "x", "p": "p", "q": "q"}
            assert row["source"]["schema_source"] == "catalog_later"
            assert world.rows("altered") == []
            assert len(world.messages(world.topics.deadletter)) == 2
            waits = "2 rows missing, 0 too many\n  2 dead letters with rows of ddl.altered "
            assert waits in str(world.command("verify", "rows", "--idle", code=1).stdout)
            world.command("deadletter", "redrive", code=7)  # as nothing more is known
            script = tmp_path / "definitions.sql"
            script.write_text(f"{created.format('altered')};\n")
            schema(world, "rebuild", "--yes", "--definitions", str(script))
            world.command("deadletter", "redrive")
        assert [row["after"] for row in world.rows("altered")] == [
            {"id": 4_000_000_000, "e": "x", "p": "p", "q": "q"},
            {"id": 1, "e": "x", "p": "p1", "q": None},
        ]


def test_alterations_in_a_gap(
    kafka: Kafka, registry: Registry, server: MySQL | MariaDB, tmp_path: Path
) -> None:
    """Statements are purged unread that keep the types of all columns; another one is read after the gap."""
    created = (
        "CREATE TABLE ddl.{} (id INT PRIMARY KEY, n INT, e ENUM('x','y'), p VARCHAR(20), "
        "q VARCHAR(20)) CHARACTER SET utf8mb4"
    )
    altered = (
        "ALTER TABLE ddl.{} MODIFY n INT UNSIGNED, MODIFY e ENUM('y','x'), CHANGE p q VARCHAR(20), "
        "CHANGE q p VARCHAR(20)"
    )
    tables = {"lost": 4_000_000_000, "kept": 7, "again": 4_000_000_000}
    source = f"gap-{server.flavor}-{os.urandom(3).hex()}"
    with closing(RowsWorld(kafka, registry, server, source, tmp_path)) as world, without_column_names(server):
        world.database = "ddl"
        server.execute(
            "CREATE DATABASE ddl CHARACTER SET utf8mb4",
            *map(created.format, tables),
            "CREATE TABLE ddl.done (id INT PRIMARY KEY)",
        )
        with world.services(*SERVICES):
            world.wait_for_start()
            server.execute(
                *(f"INSERT INTO ddl.{table} VALUES (1, 5, 'x', 'p', 'q')" for table in tables),
                "INSERT INTO ddl.done VALUES (1)",
            )
            world.wait_for_row("done")
        server.execute(altered.format("lost"), "FLUSH BINARY LOGS")
        server.execute(
            *(f"INSERT INTO ddl.{table} (id, n, e, p) VALUES (2, 5, 'x', 'p')" for table in tables),
            altered.format("again"),
            *(
                f"INSERT INTO ddl.{table} (id, n, e, p) VALUES (3, {n}, 'x', 'p')"
                for table, n in tables.items()
            ),
            "INSERT INTO ddl.done VALUES (2)",
        )
        oldest = server.binlog_files[-1].name

        def is_purged() -> bool:
            server.execute(f"PURGE BINARY LOGS TO '{oldest}'")
            return server.binlog_files[0].name == oldest

        await_it(is_purged, None, f"a log that begins at {oldest}")
        resumed = SERVICES if isinstance(server, MySQL) else ("run",)
        with world.services(*resumed, MILLRACE_ON_GAP="continue"):
            world.wait_for_row("done", 2)
            expected = {
                table: [
                    {"id": number, "n": value, "e": "x", "p": "p", "q": "q" if number == 1 else None}
                    for number, value in ((1, 5), (2, 5), (3, n))
                ]
                for table, n in tables.items()
            }
            for table in ("lost", "kept"):
                rows = world.rows(table)
                assert [row["after"] for row in rows] == expected[table]
                assert [row["source"]["schema_source"] for row in rows[1:]] == ["catalog_later"] * 2
            assert [row["after"] for row in world.rows("again")] == expected["again"][:1]
            assert len(world.messages(world.topics.deadletter)) == 2
            world.command("deadletter", "redrive", code=7)
            shown = schema(world, "show", "ddl.again", "--at", f"1:{oldest}:4")
            place = re.search(r"--definitions FILE.sql --at (1:.*:0)'", shown)
            assert place is not None, shown
            script = tmp_path / "definitions.sql"
            script.write_text(f"{created.format('again')};\n")
            given = ("schema", "rebuild", "--yes", "--definitions", str(script), "--at")
            refused = world.command(*given, "2:bin.000001:4", code=2).stderr
            assert "only: definitions cannot be given after that" in str(refused)
            said = str(world.command(*given, place[1]).stdout)
            assert f"ddl.again from {oldest}:0 of epoch 1 on" in said
            assert "the schema history is correct" in schema(world, "rebuild")
            world.command("deadletter", "redrive")
        assert [row["after"] for row in world.rows("again")] == expected["again"]


NEW_APPLICATION = (
    "CREATE DATABASE IF NOT EXISTS app CHARACTER SET latin1",
    "CREATE TABLE IF NOT EXISTS app.{} (id INT UNSIGNED PRIMARY KEY, e ENUM('x','y'), v VARCHAR(20))",
    "INSERT INTO app.{} VALUES (4000000000, 'y', 'ä')",
    "INSERT INTO ddl.done VALUES ({})",
)
"""What it runs at its start; the log of an old server does not tell whether that created anything."""


@pytest.mark.parametrize("name", ["mysql57", "mariadb102"])
def test_tables_that_a_new_application_creates_if_they_do_not_exist(
    kafka: Kafka, registry: Registry, name: str, tmp_path: Path
) -> None:
    """A reader that sees all tables knows that they did not; else their rows wait."""
    with fetched(name) as server:
        assert isinstance(server, MySQL | MariaDB)
        server.execute(
            "CREATE DATABASE ddl CHARACTER SET utf8mb4",
            "CREATE TABLE ddl.done (id INT PRIMARY KEY)",
            "CREATE TABLE ddl.there (id INT PRIMARY KEY, e ENUM('y','x'))",
            "CREATE TABLE ddl.gone (id INT)",
            "CREATE VIEW ddl.broken AS SELECT id FROM ddl.gone",
            "DROP TABLE ddl.gone",
            "CREATE USER 'some'@'%' IDENTIFIED BY 'secret'",
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'some'@'%'",
            "GRANT SELECT ON ddl.* TO 'some'@'%'",
        )
        account = {"MILLRACE_MYSQL_USER": "some", "MILLRACE_MYSQL_PASSWORD": "secret"}
        for number, (table, login) in enumerate((("orders", {}), ("later", account)), 1):
            source = f"new-{name}-{table}-{os.urandom(3).hex()}"
            with closing(RowsWorld(kafka, registry, server, source, tmp_path)) as world:
                world.database = "ddl"
                with world.services(*SERVICES, **login):
                    world.wait_for_start()
                    server.execute(
                        "CREATE TABLE IF NOT EXISTS ddl.there (id INT PRIMARY KEY, e ENUM('x','y'))",
                        f"INSERT INTO ddl.there VALUES ({number}, 'x')",
                        *(
                            statement.format(*2 * [table if "app" in statement else number])
                            for statement in NEW_APPLICATION
                        ),
                    )
                    world.wait_for_row("done")
                (there,) = world.rows("there")
                assert there["after"] == {"id": number, "e": "x"}
                world.database = "app"
                known = not login
                assert [row["after"] for row in world.rows(table)] == known * [
                    {"id": 4_000_000_000, "e": "y", "v": "ä"}
                ]
                assert len(world.messages(world.topics.deadletter)) == (not known)


def schema(world: RowsWorld, *arguments: str) -> str:
    return str(world.command("schema", *arguments).stdout)

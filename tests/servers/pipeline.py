"""The whole pipeline on servers of many versions: ``make test-servers``.

On each: all kinds of changes, with every service killed once in the middle of its work; then the row topics
must be equal to the tables, the raw topic to the closed log files, and no record may be there twice. Where a
server can be semi-synchronous, its commits must wait for Kafka.
"""

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pymysql
import pytest

from millrace.local import Kafka, Registry
from millrace.local.database import DatabaseServer
from millrace.local.errors import MissingLibraryError
from tests.killed import command
from tests.live.reader_world import (
    RawRecord,
    ReaderWorld,
    assert_closed_files_equal,
    assert_nothing_twice,
    stopped,
)
from tests.live.rows_world import SERVICES, RowsWorld, without_column_names
from tests.live.test_rowmapper import ALTERED, CHANGES, TABLES, differences, places, run
from tests.live.test_semisync import MARK
from tests.live.test_snapshot import wait_until_merged
from tests.live.test_snapshot_images import TYPES_SESSION, every_type
from tests.servers.databases import FETCHED, NAMED, NamedServer, fetched
from tests.service_process import wait_for

DATABASE = "servers"
LARGE = 3000

MORE_TABLES = """
CREATE TABLE times (id INT PRIMARY KEY, t TIMESTAMP(6) NULL, d DATETIME(6), h TIME(3), y YEAR);
CREATE TABLE texts (id INT PRIMARY KEY, a CHAR(10) CHARACTER SET latin1, b MEDIUMTEXT, c VARBINARY(300),
  e GEOMETRY);
CREATE TABLE large (id INT PRIMARY KEY, v VARCHAR(200));
"""

JSON_TABLE = "CREATE TABLE docs (id INT PRIMARY KEY, j JSON)"

MORE_CHANGES = """
INSERT INTO times VALUES (1,'2024-02-29 23:59:59.123456','9999-12-31 23:59:59.999999','-838:59:58.5',2155),
  (2,NULL,NULL,NULL,NULL);
INSERT INTO texts VALUES (1,'grün',REPEAT('ß',70000),UNHEX('00FF'),ST_GeomFromText('POINT(1 2)')),
  (2,'','','',NULL);
UPDATE times SET h='12:00:00.001', y=1901 WHERE id=2;
CREATE TABLE gone (id INT PRIMARY KEY);
INSERT INTO gone VALUES (1);
DROP TABLE gone;
INSERT INTO old VALUES (1,'stays')
"""

JSON_WORK = """
INSERT INTO docs VALUES (1,'{"a": [1, 2.5, null, "ü"], "b": true}'), (2,NULL);
UPDATE docs SET j='[]' WHERE id=2
"""


@pytest.fixture(scope="module", params=[*FETCHED, *NAMED], ids=lambda name: name.rpartition("@")[2])
def server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer | NamedServer]:
    if request.param in NAMED:
        yield NamedServer(request.param)
        return
    component = fetched(request.param)
    try:
        component.start()
    except MissingLibraryError as error:
        pytest.skip(str(error))
    yield component
    component.close()


def test_pipeline(
    kafka: Kafka, registry: Registry, server: DatabaseServer, source_name: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    world = RowsWorld(kafka, registry, server, source_name, tmp_path)
    world.database = DATABASE
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
    ((version,),) = server.query("SELECT VERSION()")
    has_names = bool(server.query("SHOW VARIABLES LIKE 'binlog_row_metadata'"))
    has_json = not version.startswith(("5.5", "5.6"))
    in_its_words = spelled_for_5_5 if version.startswith("5.5") else str
    # The catalogue is read at the start: without names in the log, tables must be there by then.
    run(world, in_its_words(TABLES + MORE_TABLES), *([JSON_TABLE] if has_json else []), "FLUSH BINARY LOGS")
    try:
        more = [*([JSON_WORK] if has_json else []), *([ALTERED] if has_names else [])]
        killed_all(world, in_its_words(CHANGES + MORE_CHANGES), *more)
        assert differences(world) == {}
        found = places(world)
        assert len(found) == len(set(found))
        assert world.messages(world.topics.deadletter) == []
        raw = ReaderWorld(kafka, source_name).raw()
        assert_nothing_twice(raw)
        files = closed_files_since_start(raw, server)
    finally:
        world.close()
    counts = f"{len(raw):,} events, {len(found):,} rows, closed log files compared: {files}"
    print(f"\nFIGURES {version}: {counts}, {time.monotonic() - began:.0f} s", file=sys.stderr)


IMAGES = ("FULL", "MINIMAL", "NOBLOB")
OTHER_KEYS = {"texts": "CONCAT('new', id)"}
ALTERATIONS = """
ALTER TABLE numbers ADD COLUMN added INT UNSIGNED DEFAULT 4000000000 AFTER id, MODIFY c INT, DROP COLUMN d;
ALTER TABLE times CHANGE b c DATETIME, CHANGE c b DATETIME(1), MODIFY h TIME(2) FIRST;
ALTER TABLE texts MODIFY c VARCHAR(20) CHARACTER SET utf8mb4, CHANGE k kk BLOB AFTER id,
  MODIFY o ENUM('','ü','a','b,c') CHARACTER SET latin1;
CREATE TABLE moved LIKE many;
INSERT INTO moved SELECT * FROM many;
ALTER TABLE moved MODIFY s SET('m63','m0'), ADD COLUMN first_one INT UNSIGNED FIRST;
RENAME TABLE many TO gone, moved TO many;
INSERT INTO many VALUES (4000000000, 50, 'm0', 'e1');
CREATE TABLE IF NOT EXISTS numbers (id INT);
CREATE TABLE IF NOT EXISTS made (id INT PRIMARY KEY, a INT UNSIGNED, b VARCHAR(10) CHARACTER SET latin1);
INSERT INTO made VALUES (1, 4000000000, 'ü')
"""


@pytest.mark.parametrize("metadata", ["FULL", "least"])
def test_snapshot_and_stream_are_the_tables(
    kafka: Kafka,
    registry: Registry,
    server: DatabaseServer,
    source_name: str,
    tmp_path: Path,
    metadata: str,
) -> None:
    """Every type in each form of row image: read by a snapshot, changed, created and altered meanwhile."""
    ((version,),) = server.query("SELECT VERSION()")
    if version.startswith(("5.5", "5.6", "10.2")):
        pytest.skip("it lacks some of the types")
    has_names = bool(server.query("SHOW VARIABLES LIKE 'binlog_row_metadata'"))
    if metadata == "FULL" and not has_names:
        pytest.skip("it logs no names of columns")
    statements = every_type(version)
    databases = {image: f"types_{image.lower()}" for image in IMAGES}
    late = {image: f"late_{image.lower()}" for image in IMAGES}
    server.execute(*(f"DROP DATABASE IF EXISTS {name}" for name in (*databases.values(), *late.values())))
    world = RowsWorld(kafka, registry, server, source_name, tmp_path)
    world.environment["MILLRACE_SNAPSHOT_TABLES"] = "types_*.*"
    least = has_names and metadata == "least"
    with closing(world), without_column_names(server) if least else nullcontext():
        for image, database in databases.items():
            fill(server, database, image, statements)
        with world.services(*SERVICES):
            world.wait_for_start()
            with world.service("snapshot") as process:
                for image, database in databases.items():
                    change(server, database, image)
                assert process.wait(240) == 0, world.log("snapshot")
            for image, database in late.items():
                fill(server, database, image, statements)
                change(server, database, image)
            for image, database in (*databases.items(), *late.items()):
                in_session(server, database, image, ALTERATIONS.split(";\n"))
                change(server, database, image, by=10_000)
            world.database = late["NOBLOB"]
            run(world, "CREATE TABLE done (id INT PRIMARY KEY); INSERT INTO done VALUES (1)")
            world.wait_for_row("done")
            wait_until_merged(world)
        assert world.messages(world.topics.deadletter) == []
        for database in (*databases.values(), *late.values()):
            world.database = database
            assert differences(world) == {}, database


def in_session(server: DatabaseServer, database: str, image: str, statements: Iterable[str]) -> None:
    """Run statements in a session of its own, which logs such images."""
    with (
        server.connect(autocommit=True, database=database) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(TYPES_SESSION)
        cursor.execute(f"SET SESSION binlog_row_image = '{image}'")
        for statement in statements:
            cursor.execute(statement)


def fill(server: DatabaseServer, database: str, image: str, statements: Sequence[str]) -> None:
    """Make a database with all types."""
    server.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    in_session(server, database, image, statements)


def change(server: DatabaseServer, database: str, image: str, by: int = 100) -> None:
    """Insert each row once more, give each column another value by itself, and change a key."""
    found: dict[str, list[str]] = {}
    for table, column in server.query(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = "
        f"'{database}' AND extra NOT LIKE '%GENERATED%' AND extra NOT LIKE '%VIRTUAL%' "
        "ORDER BY ordinal_position"
    ):
        found.setdefault(table, []).append(column)
    statements = []
    for table, columns in found.items():
        if "id" not in columns:
            continue
        others = [f"`{column}`" for column in columns if column != "id"]
        names, key = ", ".join(others), OTHER_KEYS.get(table, f"id + {by}")
        statements += [
            f"INSERT IGNORE INTO {table} (id, {names}) SELECT {key}, {names} FROM {table}",
            *(f"UPDATE {table} x, {table} y SET x.{name} = y.{name} WHERE x.id <> y.id" for name in others),
            *(f"UPDATE {table} SET {name} = NULL ORDER BY id LIMIT 1" for name in others),
            f"UPDATE IGNORE {table} SET id = {key.replace('new', 'other')} ORDER BY id DESC LIMIT 2",
            f"DELETE FROM {table} ORDER BY id LIMIT 1",
        ]
    in_session(server, database, image, statements)


SEMI_SYNC_PLUGINS = {
    "rpl_semi_sync_source": "semisync_source.so",
    "rpl_semi_sync_master": "semisync_master.so",
}
"""Of MySQL from 8.0.26 on, and before; the prefix of their variables."""


def test_commits_wait_for_kafka(kafka: Kafka, server: DatabaseServer | NamedServer, source_name: str) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    server.execute(f"CREATE TABLE {DATABASE}.semi (note VARCHAR(40))")

    def write(*numbers: int) -> None:
        server.execute(
            *(f"INSERT INTO {DATABASE}.semi VALUES ('transaction {number};')" for number in numbers)
        )

    world = ReaderWorld.of(kafka, source_name, server, MILLRACE_SEMI_SYNC="true")
    with semi_synchronous(server) as prefix:

        def waits() -> bool:
            ((_, count),) = server.query(f"SHOW GLOBAL STATUS LIKE '{prefix}_wait_sessions'")
            return int(count) == 1

        early = threading.Thread(target=write, args=[0], daemon=True)
        early.start()
        wait_for(waits, None, "a commit that waits without a reader")
        with world.reader() as process:
            early.join(240)
            assert not early.is_alive()
            write(*range(1, 20))
            with stopped(kafka):
                late = threading.Thread(target=write, args=[20], daemon=True)
                late.start()
                wait_for(waits, process, "a commit that waits for Kafka")
                late.join(2)
                assert late.is_alive()
            late.join(240)
            assert not late.is_alive()
    records = world.raw()
    assert {int(number) for record in records for number in MARK.findall(record.value)} == set(range(21))
    assert_nothing_twice(records)


@contextmanager
def semi_synchronous(server: DatabaseServer | NamedServer) -> Iterator[str]:
    """Let every commit wait for a replica, forever; give how the names of the server's variables begin."""

    def names() -> list[str]:
        return [name for name, _ in server.query("SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_%'")]

    for plugin, library in SEMI_SYNC_PLUGINS.items():
        if not any(name.endswith(("_source_enabled", "_master_enabled")) for name in names()):
            with suppress(pymysql.err.MySQLError):
                server.execute(f"INSTALL PLUGIN {plugin} SONAME '{library}'")
    found = names()
    prefix = next((name for name in SEMI_SYNC_PLUGINS if f"{name}_enabled" in found), None)
    if prefix is None:
        pytest.skip("this server has no semi-synchronous replication")
    wanted: dict[str, str | int] = {
        f"{prefix}_timeout": 0xFFFFFFFF,
        f"{prefix}_wait_point": "'AFTER_SYNC'",
        f"{prefix}_wait_no_slave": "ON",
        f"{prefix}_wait_no_replica": "ON",
        f"{prefix}_enabled": "ON",
    }
    server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in wanted.items() if name in found))
    try:
        yield prefix
    finally:
        server.execute(f"SET GLOBAL {prefix}_enabled = OFF")


def spelled_for_5_5(statements: str) -> str:
    """Leave out what MySQL 5.5 does not have: fractions of seconds in columns, functions named ST_."""
    return re.sub(r"\b(TIMESTAMP|DATETIME|TIME)\(\d\)", r"\1", statements).replace("ST_Geom", "Geom")


def killed_all(world: RowsWorld, *work: str) -> None:
    """Write everything, while one service after the other is killed before it commits."""
    with world.services(*SERVICES):
        world.wait_for_start()
        run(world, *work)
        world.wait_for_row("old")
        # What follows is read from the beginning of a file.
        run(world, "FLUSH BINARY LOGS")
    for victim in SERVICES:
        others = [name for name in SERVICES if name != victim]
        deadly = command(victim, "before_commit")
        with world.services(*others), world.service(victim, command=deadly) as process:
            insert_many(world, SERVICES.index(victim))
            assert process.wait(240) == -9, world.log(victim)
    with world.services(*SERVICES):
        run(world, "DELETE FROM large WHERE id % 3 = 0; FLUSH BINARY LOGS; INSERT INTO done VALUES (1)")
        world.wait_for_row("done")


def insert_many(world: RowsWorld, turn: int) -> None:
    first = turn * LARGE
    values = ",".join(f"({number},'row {number}')" for number in range(first, first + LARGE))
    run(world, f"INSERT INTO large VALUES {values}")


def closed_files_since_start(raw: list[RawRecord], server: DatabaseServer | NamedServer) -> int:
    """Compare the closed log files that were read from their beginning; give how many there are."""
    whole = {record.key.log_file for record in raw if record.in_file and record.key.position == 4}
    paths = [path for path in server.binlog_files if path.name in whole]
    return assert_closed_files_equal(raw, SimpleNamespace(binlog_files=paths)) if paths else 0

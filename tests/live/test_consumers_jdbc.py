"""Debezium's JDBC sink connector makes other databases equal: the recipe of docs/consumers.md, on every type.

The sink runs in a real Kafka Connect and writes to a MySQL and a MariaDB: into tables that it has made, and
into tables that were there, with the definitions of the source's. What it cannot do is in ``LIMITS``, row by
row the same as a table in the docs.
"""

import json
import re
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from millrace.binlog.names import quoted_name
from millrace.kafka.read import read_topic
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.local.connect import Connect
from millrace.local.database import DatabaseServer
from millrace.runtime.settings import KafkaSettings
from tests.service_process import wait_for
from tests.shared import PROJECT

from .debezium import debezium
from .rows_world import RowsWorld

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PAGE = PROJECT / "docs" / "consumers.md"
DATABASE = "shop"
PASSWORD = uuid.uuid4().hex

TYPES = {
    "TINYINT": ("-128", "127"),
    "TINYINT UNSIGNED": ("255", "0"),
    "BOOLEAN": ("TRUE", "FALSE"),
    "SMALLINT": ("-32768", "32767"),
    "SMALLINT UNSIGNED": ("65535", "0"),
    "MEDIUMINT": ("-8388608", "8388607"),
    "MEDIUMINT UNSIGNED": ("16777215", "0"),
    "INT": ("-2147483648", "2147483647"),
    "INT UNSIGNED ZEROFILL": ("4294967295", "7"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "BIGINT UNSIGNED": ("18446744073709551615", "0"),
    "DECIMAL(12,2)": ("-1234567890.12", "0.01"),
    "DECIMAL(10,10)": ("0.9999999999", "-0.0000000001"),
    "DECIMAL(38,0)": ("9" * 38, "-1"),
    "DECIMAL(65,30)": ("-12345678901234567890123456789012345.123456789012345678901234567891", "1.5"),
    "FLOAT(7,3)": ("1234.567", "-0.001"),
    "FLOAT": ("1.5", "0.1", "16777217", "-3.4e38", "1.17549e-38"),
    "DOUBLE": ("-1.7976931348623157e308", "0.1", "5e-324"),
    "BIT(1)": ("b'1'", "b'0'"),
    "BIT(12)": ("b'100000000001'", "b'0'"),
    "BIT(64)": ("0xFFFFFFFFFFFFFFFF", "0"),
    "YEAR": ("2155", "1901"),
    "DATE": ("'1000-01-01'", "'2024-02-29'", "'9999-12-31'"),
    "TIME": ("'00:00:00'", "'23:59:59'"),
    "TIME(6)": ("'10:11:12.123456'", "'00:00:00.000001'"),
    "DATETIME": ("'2024-03-10 02:30:00'", "'9999-12-31 23:59:59'", "'1000-01-01 00:00:00'"),
    "DATETIME(3)": ("'2024-02-29 01:02:03.456'", "'1969-12-31 23:59:59.999'"),
    "DATETIME(6)": ("'2024-02-29 01:02:03.123456'", "'9999-12-31 23:59:59.999999'"),
    "TIMESTAMP NULL": ("'2024-03-31 02:30:00'", "'1970-01-01 00:00:01'"),
    "TIMESTAMP(6) NULL": ("'2038-01-19 03:14:07.999999'", "'2024-10-27 02:30:00.5'"),
    "CHAR(10) CHARACTER SET latin1": ("'käse'", "''"),
    "VARCHAR(300) CHARACTER SET utf8mb4": ("'日本語 '", "''", r"'a\\b''c'", "'🙂'"),
    "VARCHAR(20) CHARACTER SET cp1251": ("'привет'", "''"),
    "TEXT CHARACTER SET sjis": ("'テスト'", "''"),
    "MEDIUMTEXT CHARACTER SET utf8mb4": ("REPEAT('ß', 70000)", "''"),
    "LONGTEXT CHARACTER SET utf16": ("'🙂'", "''"),
    "BINARY(8)": ("0x0100", "0x00"),
    "VARBINARY(300)": ("0x00FF275C0A", "''"),
    "TINYBLOB": ("0x00FF", "''"),
    "BLOB": ("0xDEADBEEF", "''"),
    "MEDIUMBLOB": ("REPEAT(0x00FF, 50000)", "''"),
    "LONGBLOB": ("REPEAT('n', 70000)", "''"),
    "ENUM('a','ü')": ("'ü'", "'a'"),
    "SET('x','y','ö')": ("'x,ö'", "''"),
    "GEOMETRY": ("ST_GeomFromText('POINT(1 -2.5)')", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')"),
    "POINT": ("ST_GeomFromText('POINT(3 4)')", "ST_GeomFromText('POINT(0 0)')"),
    "LINESTRING": ("ST_GeomFromText('LINESTRING(0 0,1 1,2 3)')", "ST_GeomFromText('LINESTRING(5 0,1 1)')"),
    "JSON": ("""'{"a": [1, 2.5, null, true, "ü"], "b": 18446744073709551615}'""", "'[]'"),
}
"""Types, and values of theirs."""

TEMPORAL = [name for name in TYPES if name.startswith(("DATE", "TIME", "YEAR"))]

OF_MARIADB = {
    "UUID": ("'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'"),
    "INET4": ("'10.0.0.0'", "'0.0.0.0'"),
    "INET6": ("'::1'", "'::'"),
    "TEXT COMPRESSED": ("REPEAT('größe', 1000)", "''"),
}

KEYS = {
    "varchar": ("k VARCHAR(100) CHARACTER SET utf8mb4", "'größe', 1", "'a', 2", "'b', 3"),
    "unsigned": ("k BIGINT UNSIGNED", "18446744073709551615, 1", "0, 2", "5, 3"),
    "decimal": ("k DECIMAL(10,2)", "1.10, 1", "0, 2", "-5.01, 3"),
    "enum": ("k ENUM('a','b','c')", "'c', 1", "'a', 2", "'b', 3"),
}
"""Columns of a key, and rows: the first is deleted, the second gets the key of the first."""

MORE = """
CREATE TABLE pair (a INT, v INT, b VARCHAR(20), PRIMARY KEY (b, a));
INSERT INTO pair VALUES (1, 1, 'x'), (1, 2, 'y'), (2, 3, 'x');
UPDATE pair SET a = 100 WHERE v = 3;
DELETE FROM pair WHERE v = 1;
CREATE TABLE `odd_näme` (`Id` INT PRIMARY KEY, `Group` INT);
INSERT INTO `odd_näme` VALUES (1, 1), (2, 2);
UPDATE `odd_näme` SET `Group` = 9 WHERE `Id` = 2;
CREATE TABLE key_only (k INT PRIMARY KEY);
INSERT INTO key_only VALUES (1), (2), (3);
UPDATE key_only SET k = 4 WHERE k = 1;
DELETE FROM key_only WHERE k = 2;
CREATE TABLE grown (id INT PRIMARY KEY, a VARCHAR(20));
INSERT INTO grown VALUES (1, 'x'), (2, 'y');
ALTER TABLE grown ADD COLUMN b DATETIME(6), ADD COLUMN c DECIMAL(8,2);
INSERT INTO grown VALUES (3, 'z', '2024-02-29 10:11:12.123456', 1.10);
UPDATE grown SET c = 2 WHERE id = 1
"""


@dataclass(frozen=True)
class Limit:
    """What does not arrive: a table, and what becomes of it."""

    statements: str
    error: str = ""
    """What the connector's task ends with; else it ends with nothing, and the rows are others."""
    rows: Sequence[Sequence[Any]] = ()
    sinks: tuple[str, ...] = ("mysql", "mariadb")
    """Servers, or versions of them as "mysql 8."; all of their rows are equal in others."""
    sources: tuple[str, ...] = ("mysql", "mariadb")
    tables: tuple[str, ...] = ("made", "given")
    remedy: tuple[tuple[str, str], ...] = ()
    """Settings of the connector with which it arrives."""

    @property
    def table(self) -> str:
        (name,) = set(re.findall(r"CREATE TABLE (`.+?`|\w+)", self.statements))
        return str(name).strip("`")

    def applies(self, source: str, sink: DatabaseServer, tables: str) -> bool:
        version = f"{sink.flavor} {sink.query('SELECT VERSION()')[0][0]}"
        return source in self.sources and version.startswith(self.sinks) and tables in self.tables


LIMITS = {
    "TIME below zero, or of 24 hours and more": Limit(
        "CREATE TABLE limit_time (id INT PRIMARY KEY, v TIME);INSERT INTO limit_time VALUES (1, '-10:11:12')",
        error="Invalid value for NanoOfDay",
    ),
    "JSON of MySQL into MariaDB": Limit(
        "CREATE TABLE limit_json (id INT PRIMARY KEY, v JSON); INSERT INTO limit_json VALUES (1, '[1]')",
        error="You have an error in your SQL syntax",
        sinks=("mariadb",),
        sources=("mysql",),
    ),
    "FLOAT next to the largest": Limit(
        "CREATE TABLE limit_float (id INT PRIMARY KEY, v FLOAT);"
        "INSERT INTO limit_float VALUES (1, 3.4028234e38)",
        error="Out of range value",
    ),
    "Zero dates, and dates of no calendar": Limit(
        "CREATE TABLE limit_zero (id INT PRIMARY KEY, v DATE);"
        "INSERT INTO limit_zero VALUES (1, '0000-00-00'), (2, '2024-00-00'), (3, '2024-02-29')",
        rows=(("1", None), ("2", None), ("3", "2024-02-29")),
    ),
    "Geometry of a reference system whose latitude comes first, into MySQL": Limit(
        "CREATE TABLE limit_srid (id INT PRIMARY KEY, v GEOMETRY);"
        "INSERT INTO limit_srid VALUES (1, ST_GeomFromText('POINT(10 20)', 4326))",
        rows=(("1", struct.pack("<IBIdd", 4326, 1, 1, 10, 20)),),  # it was 20 10
        sources=("mysql",),
        sinks=("mysql",),
    ),
    "ENUM or SET, a member with a quote or a comma": Limit(
        """CREATE TABLE limit_quote (id INT PRIMARY KEY, v ENUM('a','it''s','b,c'));"""
        """INSERT INTO limit_quote VALUES (1, 'it''s'), (2, 'b,c')""",
        error="Could not find table|You have an error in your SQL syntax",
        tables=("made",),
    ),
    "ENUM, an empty member at the end": Limit(
        "CREATE TABLE limit_empty (id INT PRIMARY KEY, v ENUM('a',''));"
        "INSERT INTO limit_empty VALUES (1, 'a'), (2, '')",
        error="Data truncated",
        tables=("made",),
    ),
    "BINARY, VARBINARY or BLOB in the key": Limit(
        "CREATE TABLE limit_binary (k BINARY(16) PRIMARY KEY, v INT);"
        "INSERT INTO limit_binary VALUES ('x', 1)",
        error="Could not find table|without a key length",
        tables=("made",),
    ),
    "DATE, DATETIME or TIMESTAMP in the key": Limit(
        "CREATE TABLE limit_date (k DATE PRIMARY KEY, v INT);"
        "INSERT INTO limit_date VALUES ('2024-02-29', 1), ('2024-03-01', 2), ('2024-03-02', 3);"
        "UPDATE limit_date SET k = '2025-01-01' WHERE v = 2; DELETE FROM limit_date WHERE v = 3",
        error="Failed to resolve column type for schema: STRUCT",
    ),
    "TIME in the key": Limit(
        "CREATE TABLE limit_key (k TIME PRIMARY KEY, v INT);"
        "INSERT INTO limit_key VALUES ('01:02:03', 1), ('02:00:00', 2); DELETE FROM limit_key WHERE v = 2;"
        "INSERT INTO limit_key VALUES ('03:00:00', 3)",
        rows=(("1:02:03", "1"), ("2:00:00", "2"), ("3:00:00", "3")),
        sinks=("mysql 8.", "mariadb"),
    ),
    "A table without a key": Limit(
        "CREATE TABLE limit_keyless (a INT, b VARCHAR(20));"
        "INSERT INTO limit_keyless VALUES (1, 'x'), (1, 'x'), (2, 'y')",
        error="cannot have null schema",
        remedy=(("primary.key.mode", "none"), ("insert.mode", "insert"), ("delete.enabled", "false")),
    ),
    "A table whose name has a dot": Limit(
        "CREATE TABLE `limit.dot` (id INT PRIMARY KEY); INSERT INTO `limit.dot` VALUES (1)",
        error="Failed to find table: limit.dot|Could not find table|schema evolution is disabled",
    ),
    "A table whose name has a blank": Limit(
        "CREATE TABLE `limit blank` (id INT PRIMARY KEY); INSERT INTO `limit blank` VALUES (1)",
        error="Unexpected input",
    ),
    "A column whose name Avro does not take": Limit(
        "CREATE TABLE limit_name (id INT PRIMARY KEY, `größe` INT); INSERT INTO limit_name VALUES (1, 2)",
        error="schema evolution is disabled",
        tables=("given",),  # those that the sink makes have the rows, under the escaped name
    ),
    "ALTER TABLE, other than ADD COLUMN": Limit(
        "CREATE TABLE limit_alter (id INT PRIMARY KEY, v DECIMAL(4,2));"
        "INSERT INTO limit_alter VALUES (1, 1.5);"
        "ALTER TABLE limit_alter MODIFY v DECIMAL(12,2);"
        "INSERT INTO limit_alter VALUES (2, 12345.67)",
        error="Out of range value",
        tables=("made",),
    ),
}
"""By row of the table in the docs."""


def table_name(sql_type: str) -> str:
    return "t_" + re.sub(r"[^a-z0-9]+", "_", sql_type.lower()).strip("_")


def changes_of_type(sql_type: str, values: Sequence[str]) -> Iterator[str]:
    """Inserts, updates, deletes and a change of the key; each value is in the table at the end."""
    name = table_name(sql_type)
    yield f"CREATE TABLE {name} (id INT PRIMARY KEY, v {sql_type})"
    rows = ", ".join(f"({number}, {value})" for number, value in enumerate([*values, "NULL"], 1))
    yield f"INSERT INTO {name} VALUES {rows}, (50, {values[0]}), (51, {values[0]}), (52, NULL)"
    yield f"UPDATE {name} SET v = {values[-1]} WHERE id = 50"
    yield f"UPDATE {name} SET v = NULL WHERE id = 51"
    yield f"UPDATE {name} SET v = {values[0]} WHERE id = 52"
    yield f"DELETE FROM {name} WHERE id = 1"
    yield f"UPDATE {name} SET id = 100 WHERE id = 2"


def changes_of_key(name: str, column: str, rows: Sequence[str]) -> Iterator[str]:
    yield f"CREATE TABLE key_{name} ({column} PRIMARY KEY, v INT)"
    yield f"INSERT INTO key_{name} VALUES ({'), ('.join(rows)})"
    yield f"DELETE FROM key_{name} WHERE v = 1"
    first, _ = rows[0].rsplit(",", 1)
    yield f"UPDATE key_{name} SET k = {first} WHERE v = 2"


def statements(text: str) -> list[str]:
    return [one.strip() for one in text.split(";") if one.strip()]


def recipe() -> dict[str, str]:
    """The connector's configuration of the documentation."""
    found = re.search(r"## Kafka Connect.*?```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    config: dict[str, str] = json.loads(found[1])["config"]
    return config


@pytest.fixture(scope="module")
def connect(kafka: Kafka) -> Iterator[Connect]:
    # A task whose put has failed says so when its offsets are due.
    settings = {"offset.flush.interval.ms": "2000"}
    with Connect(kafka, "debezium", "debezium-jdbc", "connect-avro", settings=settings) as worker:
        yield worker


@pytest.fixture(scope="module")
def sinks() -> Iterator[dict[str, DatabaseServer]]:
    with MySQL(server_id=2) as mysql, MariaDB(server_id=3) as mariadb:
        for server in (mysql, mariadb):
            server.execute(
                f"CREATE USER 'sink'@'%' IDENTIFIED BY '{PASSWORD}'", "GRANT ALL ON *.* TO 'sink'@'%'"
            )
        yield {"mysql": mysql, "mariadb": mariadb}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def world(
    request: pytest.FixtureRequest, kafka: Kafka, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RowsWorld]:
    """All tables on a server, and their row topics."""
    flavor: str = request.param
    source = f"t-jdbc-{flavor}-{uuid.uuid4().hex[:6]}"
    made = RowsWorld(
        kafka, registry, request.getfixturevalue(flavor), source, tmp_path_factory.mktemp(source)
    )
    with made.with_database() as world:
        with world.service("run"):
            world.wait_for_start()
            write(world, work(flavor))
        yield world


def write(world: RowsWorld, statements: Iterator[str]) -> None:
    """Run statements on the source, and wait until their rows are in topics."""
    with world.server.connect(database=world.database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        for statement in statements:
            cursor.execute(statement)
        cursor.execute("CREATE TABLE done (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO done VALUES (1)")
    world.wait_for_row("done")
    assert world.messages(world.topics.deadletter) == []


def work(flavor: str) -> Iterator[str]:
    """Everything that is done on a source."""
    for sql_type, values in (TYPES | (OF_MARIADB if flavor == "mariadb" else {})).items():
        yield from changes_of_type(sql_type, values)
    for name, (column, *rows) in KEYS.items():
        yield from changes_of_key(name, column, rows)
    yield from statements(MORE)
    for limit in LIMITS.values():
        if flavor in limit.sources:
            yield from statements(limit.statements)


def definitions(table: str) -> tuple[str, ...]:
    """How the statements begin that define a table."""
    return tuple(
        f"{verb} TABLE {name} " for verb in ("CREATE", "ALTER") for name in (table, quoted_name(table))
    )


def rows_of(server: DatabaseServer, database: str, table: str) -> list[list[Any]] | None:
    """The rows of a table as text, columns by name; None where it does not exist.

    Of a FLOAT the text has not all digits, so it is read as a DOUBLE.
    """
    columns = server.query(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s"
        " AND table_name = %s ORDER BY BINARY column_name",
        (database, table),
    )
    if not columns:
        return None
    selected = ", ".join(
        f"{quoted_name(name)} + 0e0" if kind == "float" else quoted_name(name) for name, kind in columns
    )
    rows = server.query(f"SELECT {selected} FROM {quoted_name(database, table)}")
    texts = [[one if one is None or isinstance(one, bytes) else str(one) for one in row] for row in rows]
    return sorted(texts, key=repr)


@dataclass(frozen=True)
class Origin:
    """A database, and the topics of its tables."""

    server: DatabaseServer
    database: str
    topic: Callable[[str], str]

    @classmethod
    def of(cls, world: RowsWorld) -> Self:
        return cls(world.server, world.database, lambda table: world.topics.table(world.database, table))


class Sink:
    """A connector that writes tables into a database of its own on a server."""

    def __init__(
        self,
        connect: Connect,
        origin: Origin,
        registry: Registry,
        server: DatabaseServer,
        tables: Sequence[str],
        *,
        made_before: bool,
        **settings: str,
    ) -> None:
        self.connect = connect
        self.origin = origin
        self.server = server
        self.tables = tables
        self.database = f"sink_{uuid.uuid4().hex[:8]}"
        self.config = {
            **recipe(),
            "topics": ",".join(map(origin.topic, tables)),
            "connection.url": f"jdbc:{server.flavor}://{server.host}:{server.port}/{self.database}",
            "connection.username": "sink",
            "connection.password": PASSWORD,
            "connection.pool.min_size": "1",
            "connection.pool.max_size": "2",
            "schema.evolution": "none" if made_before else "basic",
            **settings,
        }
        for side in ("key", "value"):
            self.config[f"{side}.converter.apicurio.registry.url"] = apicurio(registry)
        server.execute(f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
        if made_before:
            self._make_tables()

    def _make_tables(self) -> None:
        with self.server.connect(database=self.database) as connection, connection.cursor() as cursor:
            for statement in work(self.origin.server.flavor):
                if any(statement.startswith(definitions(table)) for table in self.tables):
                    cursor.execute(statement)

    def __enter__(self) -> Self:
        self.connect.begin(self.database, self.config)
        return self

    def __exit__(self, *_: object) -> None:
        self.connect.end(self.database)
        self.server.execute(f"DROP DATABASE {self.database}")

    def differences(self, tables: Sequence[str]) -> dict[str, tuple[Any, Any]]:
        """Rows of the source and of the sink, of the tables that are not equal."""
        found = {
            table: (
                rows_of(self.origin.server, self.origin.database, table),
                rows_of(self.server, self.database, table),
            )
            for table in tables
        }
        return {table: (theirs, ours) for table, (theirs, ours) in found.items() if theirs != ours}

    def wait_until_equal(self) -> None:
        left: dict[str, Any] = dict.fromkeys(self.tables)

        def is_equal() -> bool:
            nonlocal left
            self.connect.check_task(self.database)
            left = self.differences(list(left))
            return not left

        wait_for(is_equal, None, lambda: str(left))

    def wait_for_failure(self) -> str:
        return wait_for(lambda: self.connect.failure(self.database), None, "a failure")

    def arrives(self) -> bool:
        """Return whether the tables come to be equal, rather than that the task fails or goes on without."""
        deadline = time.monotonic() + 60
        while self.differences(self.tables):
            if self.connect.failure(self.database) is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def wait_for_rows(self, expected: Sequence[Sequence[Any]]) -> None:
        """Wait until the table has rows that are not the source's."""
        (table,) = self.tables
        wanted = [list(row) for row in expected]

        def found() -> bool:
            self.connect.check_task(self.database)
            return rows_of(self.server, self.database, table) == wanted

        wait_for(found, None, lambda: str(rows_of(self.server, self.database, table)))
        assert wanted != rows_of(self.origin.server, self.origin.database, table)


def apicurio(registry: Registry) -> str:
    """The address of the interface that Apicurio's converter speaks."""
    return registry.url.replace("/apis/ccompat/v7", "/apis/registry/v2")


def arriving(source: str, sink: DatabaseServer, tables: str) -> list[str]:
    """The tables that must be equal."""
    types = [one for one in TYPES if (one, source, sink.flavor) != ("JSON", "mysql", "mariadb")]
    if source == "mariadb" and (sink.flavor, tables) != ("mysql", "given"):  # which has no such types
        types += OF_MARIADB
    others = re.findall(r"^CREATE TABLE (`.+?`|\w+)", MORE, re.MULTILINE)
    keys = [f"key_{name}" for name in KEYS]
    elsewhere = [
        limit.table
        for limit in LIMITS.values()
        if source in limit.sources and not limit.applies(source, sink, tables)
    ]
    return [
        *map(table_name, types),
        *keys,
        *(name.strip("`").replace("``", "`") for name in others),
        *elsewhere,
    ]


@pytest.mark.parametrize("tables", ["made", "given"])
@pytest.mark.parametrize("sink", ["mysql", "mariadb"])
def test_what_arrives_and_what_does_not(
    world: RowsWorld,
    registry: Registry,
    connect: Connect,
    sinks: dict[str, DatabaseServer],
    sink: str,
    tables: str,
) -> None:
    """Into tables that the sink makes, and into tables that are there."""
    source, server = world.server.flavor, sinks[sink]
    limits = [limit for limit in LIMITS.values() if limit.applies(source, server, tables)]
    with ExitStack() as stack:

        def running(names: Sequence[str], **settings: str) -> Sink:
            made_before = tables == "given"
            return stack.enter_context(
                Sink(
                    connect,
                    Origin.of(world),
                    registry,
                    server,
                    names,
                    made_before=made_before,
                    **settings,
                )
            )

        every = running(arriving(source, server, tables))
        limited = [(running([limit.table]), limit) for limit in limits]
        helped = [running([limit.table], **dict(limit.remedy)) for limit in limits if limit.remedy]
        for one in (every, *helped):
            one.wait_until_equal()
        for one, limit in limited:
            if limit.error:
                assert re.search(limit.error, one.wait_for_failure())
            else:
                one.wait_for_rows(limit.rows)


def test_dates_in_keys_arrive_in_the_form_of_debezium(
    kafka: Kafka,
    registry: Registry,
    mysql: MySQL,
    connect: Connect,
    sinks: dict[str, DatabaseServer],
    source_name: str,
    tmp_path: Path,
) -> None:
    """With MILLRACE_ROWS_TEMPORAL=debezium no field of a key is a union."""
    names = ["key_date", "key_datetime", "key_timestamp", *map(table_name, TEMPORAL)]
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as world:
        world.environment["MILLRACE_ROWS_TEMPORAL"] = "debezium"
        with world.service("run"):
            world.wait_for_start()
            write(world, dates())
        for sink in sinks.values():
            with Sink(connect, Origin.of(world), registry, sink, names, made_before=False) as running:
                running.wait_until_equal()


def dates() -> Iterator[str]:
    """Tables with dates in the key, and those of all types of dates and times."""
    for kind in ("DATE", "DATETIME(6)", "TIMESTAMP(3)"):
        column = f"k {kind} NOT NULL"
        rows = [f"'2024-02-{day} 00:00:00', {day}" for day in (1, 2, 3)]
        yield from changes_of_key(kind.partition("(")[0].lower(), column, rows)
    for sql_type in TEMPORAL:
        yield from changes_of_type(sql_type, TYPES[sql_type])


ARRIVING_FROM_DEBEZIUM = {"DATE, DATETIME or TIMESTAMP in the key"}
"""As they do with MILLRACE_ROWS_TEMPORAL=debezium."""


@pytest.fixture
def sent(connect: Connect, registry: Registry, mysql: MySQL, source_name: str) -> Iterator[Origin]:
    """A database with the tables that do not arrive, and the topics to which Debezium sends them."""
    database = source_name.replace("-", "_")
    mysql.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
    converter = {name: value for name, value in recipe().items() if ".converter" in name}
    for side in ("key", "value"):
        converter[f"{side}.converter.apicurio.registry.url"] = apicurio(registry)
        converter[f"{side}.converter.apicurio.registry.auto-register"] = "true"
    adjusted = {"schema.name.adjustment.mode": "avro", "field.name.adjustment.mode": "avro"}
    with debezium(connect, mysql, source_name, database, **adjusted, **converter):
        with mysql.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
            for limit in LIMITS.values():
                if "mysql" in limit.sources:
                    for statement in statements(limit.statements):
                        cursor.execute(statement)
        yield Origin(
            mysql, database, lambda table: re.sub("[^a-zA-Z0-9._-]", "_", f"{source_name}.{database}.{table}")
        )
    mysql.execute(f"DROP DATABASE {database}")


def test_what_does_not_arrive_arrives_no_better_from_debezium(
    sent: Origin,
    source_name: str,
    kafka: Kafka,
    registry: Registry,
    connect: Connect,
    sinks: dict[str, DatabaseServer],
) -> None:
    """The same sink, fed by Debezium's own connector for MySQL."""
    limits = {what: limit for what, limit in LIMITS.items() if "mysql" in limit.sources}
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)

    def sent_all() -> bool:
        connect.check_task(source_name)
        return all(list(read_topic(settings, sent.topic(limit.table))) for limit in limits.values())

    wait_for(sent_all, None, "a record of each table")
    with ExitStack() as stack:
        running = {
            (what, flavor): stack.enter_context(
                Sink(connect, sent, registry, server, [limit.table], made_before=False)
            )
            for what, limit in limits.items()
            for flavor, server in sinks.items()
            if limit.applies("mysql", server, "made")
        }
        arrived = {what for (what, _), sink in running.items() if sink.arrives()}
    assert arrived == ARRIVING_FROM_DEBEZIUM


def test_the_limits_are_those_of_the_docs() -> None:
    text = PAGE.read_text()
    section = text[text.index("## Kafka Connect") :].split("\n## ", 1)[0]
    assert re.findall(r"^\| \*\*(.+?)\*\* \|", section, re.MULTILINE) == list(LIMITS)

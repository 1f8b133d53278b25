"""The schema history against real servers that log as little of their columns as they can.

Each statement of ``tests/ddl_statements.py`` is run between changes of rows, and what the row mapper made of
it is compared with information_schema as it was right after the statement.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.table import TableDefinition
from millrace.ddl import MISSING, State, Unknown
from millrace.local import Kafka, MariaDB, MySQL, Registry
from millrace.mysql.catalog import read_definitions
from millrace.mysql.connection import MysqlConnection
from tests.ddl_statements import NOT_UNDERSTOOD, STATEMENTS
from tests.ddl_text import brief

from .rows_world import RowsWorld, without_column_names

pytestmark = pytest.mark.live

DATABASES = ("ddl", "ddl_other", "ddl_third", "ddl_fourth", "ddl_fifth")


@pytest.fixture(params=[MySQL, MariaDB])
def server(request: pytest.FixtureRequest) -> Iterator[MySQL | MariaDB]:
    """A server of its own: databases are altered, and its defaults must be those of the statements."""
    with request.param(options={"explicit-defaults-for-timestamp": "ON"}) as database:
        yield database


def definitions(connection: MysqlConnection) -> dict[tuple[str, str], str]:
    return {
        (each.database, each.table): brief(each)
        for each in read_definitions(connection)
        if each.database in DATABASES and each.table
    }


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
            truth: list[tuple[tuple[str, int], str, dict[tuple[str, str], str]]] = []
            for number, statement in enumerate(STATEMENTS[name]):
                cursor.execute(statement)
                where = position(server)
                truth.append((where, statement, definitions(connection)))
                cursor.execute(f"INSERT INTO ddl.steady VALUES ({4_000_000_000 + number}, 'y', 'ä{number}')")
            rows = wait_for(world, "steady", len(truth))
        assert [row["after"] for row in rows] == [
            {"id": 4_000_000_000 + number, "e": "y", "v": f"ä{number}"} for number in range(len(truth))
        ]
        compare(world, truth)


def position(server: MySQL | MariaDB) -> tuple[str, int]:
    """Where the server's log ends."""
    ((file, offset, *_),) = server.query("SHOW MASTER STATUS")
    return file, offset


def wait_for(world: RowsWorld, table: str, count: int) -> list[dict[str, object]]:
    world.database = "ddl"
    return world.wait_for_row(table, count)


def compare(
    world: RowsWorld,
    truth: list[tuple[tuple[str, int], str, dict[tuple[str, str], str]]],
) -> None:
    """Go through the versions in order, and compare what holds after each statement."""
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
            unknown.pop(key, None)
            if isinstance(version.state, Unknown):
                unknown[key] = version.state.reason
                found_unknown.add(statement)
            version = next(waiting)
        now = {
            key: brief(state)
            for key, state in known.items()
            if key[1] and state is not MISSING and key not in unknown and isinstance(state, TableDefinition)
        }
        assert now == {key: text for key, text in expected.items() if key in now}, statement
        assert expected.keys() - now.keys() - unknown.keys() <= {("ddl", "steady")}, statement
    assert found_unknown <= NOT_UNDERSTOOD | {
        "ALTER TABLE texts DROP added2, CONVERT TO CHARSET utf8mb4, ALGORITHM=COPY"
    }

"""Changes that real servers log as statements are counted by table, and shown wherever lag is shown."""

import json
import os
import re
import signal
import urllib.request
from collections import Counter

import pytest

from millrace.avro.service_state import RowMapperState
from millrace.kafka.state import decoded_state
from millrace.local import MariaDB
from tests.service_process import wait_for

from .rows_world import RowsWorld

SETUP = """
CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(60));
CREATE TABLE u LIKE t; CREATE TABLE quiet LIKE t; CREATE TABLE later LIKE t;
CREATE TABLE n (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(60));
CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM;
CREATE PROCEDURE p(i INT) INSERT INTO u VALUES (i, 'called');
CREATE FUNCTION f() RETURNS INT MODIFIES SQL DATA BEGIN INSERT INTO later VALUES (1, ''); RETURN 1; END;
"""
SAFE = [
    ("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')", ["t"]),
    ("INSERT INTO u SELECT id + 10, note FROM t", ["u"]),
    ("UPDATE t JOIN u ON u.id = t.id + 10 SET t.note = 'x', u.note = 'y'", ["t", "u"]),
    ("DELETE x FROM u AS x JOIN t ON x.id = t.id + 10 WHERE t.id = 2", ["u"]),
    ("REPLACE INTO t VALUES (1, 'z')", ["t"]),
    ("SET @note = 'v'", []),
    ("UPDATE t SET note = @note WHERE id = 1", ["t"]),
    ("INSERT INTO n (note) VALUES ('a'), ('b')", ["n"]),
    ("CALL p(20)", ["u"]),
    ("DO f()", ["*"]),
    ("TRUNCATE TABLE quiet", []),
    ("CREATE TEMPORARY TABLE quiet (id INT)", []),
    ("INSERT INTO quiet VALUES (1)", []),
    ("DROP TEMPORARY TABLE quiet", []),
    ("BEGIN", []),
    ("INSERT INTO t VALUES (100, '')", []),
    ("ROLLBACK", []),
    ("BEGIN", []),
    ("INSERT INTO t VALUES (5, '')", ["t"]),
    ("SAVEPOINT s", []),
    ("INSERT INTO u VALUES (100, '')", []),
    ("ROLLBACK TO s", []),
    ("DELETE FROM t WHERE id = 3", ["t"]),
    ("COMMIT", []),
]
"""Statements that every format but ROW logs as such, and the tables that they change."""

WITHOUT_GTID_CONSISTENCY = [
    ("CREATE TABLE made SELECT * FROM t", ["made"]),
    ("BEGIN", []),
    ("INSERT INTO t VALUES (101, '')", []),
    ("INSERT INTO m VALUES (1)", ["m"]),
    ("ROLLBACK", []),
]
"""What MySQL refuses with enforce_gtid_consistency, and MIXED may log as rows."""

OTHERS = [
    ("CREATE TEMPORARY TABLE mine (id INT)", []),
    ("INSERT INTO mine VALUES (50)", []),
    ("INSERT INTO t SELECT id, CONNECTION_ID() FROM mine", ["t"]),
    ("DROP TEMPORARY TABLE mine", []),
    ("LOAD DATA LOCAL INFILE '{file}' INTO TABLE n", ["n"]),
]
"""What MIXED logs as rows."""


def execute(world: RowsWorld, binlog_format: str, statements: list[tuple[str, list[str]]]) -> Counter[str]:
    """Execute statements in a session of its own; return how many changed which table."""
    file = world.folder / "lines.txt"
    file.write_text("7\tline\n8\tline\n")
    expected: Counter[str] = Counter()
    with world.server.connect(local_infile=True, database=world.database) as connection:
        connection.autocommit(True)
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION binlog_format = '{binlog_format}'")
            for text, tables in statements:
                cursor.execute(text.format(file=file))
                expected.update(f"{world.database}.{table}" for table in tables)
    return expected


def counted(world: RowsWorld) -> dict[str, int]:
    state = decoded_state(world.settings, world.source, "rowmapper", RowMapperState)
    return {} if state is None else dict(state.non_row_changes)


def answer(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        return str(response.read().decode())


@pytest.mark.parametrize("binlog_format", ["MIXED", "STATEMENT"])
def test_changes_without_rows_are_counted(world: RowsWorld, free_port: int, binlog_format: str) -> None:
    server = world.server
    server.execute(f"GRANT RELOAD ON *.* TO '{server.user}'@'%'")
    server.execute("SET GLOBAL log_bin_trust_function_creators = ON", "SET GLOBAL local_infile = ON")
    world.environment["MILLRACE_MYSQL_ALLOW_STATEMENTS"] = "true"
    port = {"MILLRACE_HTTP_PORT": str(free_port)}
    statements = [*SAFE, *(OTHERS if binlog_format == "STATEMENT" else ())]
    if binlog_format == "STATEMENT" and isinstance(server, MariaDB):
        statements += WITHOUT_GTID_CONSISTENCY
    if binlog_format == "MIXED":
        server.execute("SET GLOBAL binlog_format = 'MIXED'")
    try:
        with world.services("reader", "decoder"):
            world.wait_for_start()
            with server.connect(database=world.database) as connection, connection.cursor() as cursor:
                for text in re.split(r";\n|; (?=CREATE)", SETUP.strip()):
                    cursor.execute(text.rstrip(";"))
            with world.service("rowmapper") as rowmapper:
                expected = execute(world, binlog_format, statements)
                wait_for(lambda: counted(world), rowmapper)
                os.kill(rowmapper.pid, signal.SIGKILL)
                rowmapper.wait()
            expected += execute(world, binlog_format, [("UPDATE t SET note = 'last' WHERE id = 1", ["t"])])
            # Rows go on arriving.
            execute(world, "ROW", [("INSERT INTO quiet VALUES (1, 'row')", [])])
            with world.service("rowmapper", **port):
                world.wait_for_row("quiet")
                assert counted(world) == expected
                name, total = f"{world.database}.t", "millrace_rowmapper_non_row_changes_total"
                number = expected[name]
                assert f'{total}{{table="{name}"}} {float(number)}' in answer(free_port, "/metrics")
                assert f"{total} table={name} {number}: " in answer(free_port, "/readyz")
                status = json.loads(world.command("status", world.source, "--json").stdout)
                assert status["non_row_changes"] == expected
                said = world.command("verify", "rows", "--idle", code=1).stdout
                check_differences(world, said, expected)
                check_after_a_snapshot(world)
    finally:
        server.execute("SET GLOBAL binlog_format = 'ROW'")


def check_differences(world: RowsWorld, said: str, expected: Counter[str]) -> None:
    """Each table that is compared has its number, and the statements by kind and position."""
    unknown = expected[f"{world.database}.*"]
    lines = said.splitlines()
    for table in ("t", "u", "n", "later"):
        name = f"{world.database}.{table}"
        at = next(index for index, line in enumerate(lines) if line.startswith(f"{name}: "))
        assert "DIFFERENT" in lines[at]
        (told,) = re.findall(rf"{re.escape(name)}: .*(?:\n  .*)*?\n  changed by (\d+) statements", said)
        assert int(told) == expected[name] + unknown
    # It was emptied after the statement that names no table.
    assert f"{world.database}.quiet: 1 records, 1 rows: equal" in lines
    assert re.search(r"INSERT at \S+:\d+ \(\S+\)", said)


def check_after_a_snapshot(world: RowsWorld) -> None:
    world.command("snapshot", f"{world.database}.later")
    world.wait_for_row("later")
    said = world.command("verify", "rows", "--idle", f"{world.database}.later").stdout
    assert said.splitlines()[-1].endswith("equal")

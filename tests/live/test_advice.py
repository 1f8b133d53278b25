"""What `millrace doctor` advises, executed on real servers while an application works.

The finding ends, and the application meets no error. What an application or a replica may not survive is a
procedure of docs/how-to/server.md, which is executed as it stands there.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pymysql
import pytest

from millrace.doctor import access_checks, log_checks, table_checks
from millrace.doctor.server import Server
from millrace.finding import CheckResult, Level
from millrace.local import MariaDB, MySQL
from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.errors import RefusedError
from millrace.mysql.status import binary_logs, log_status
from millrace.snapshot.watermarks import Method, Watermarks
from tests.service_process import wait_for

from .test_doctor import outcomes, set_global, state_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "server.md"
STATEMENT = re.compile(r"\b(?:SET GLOBAL [\w.]+ ?= ?[\w']+|GRANT [A-Z_, ]+ ON \*\.\* TO '[^']*'@'[^']*')")
DATABASE = "advice"


_CONSISTENT = "SELECT @@GLOBAL.enforce_gtid_consistency = 'ON'"


class Application:
    """Sessions that come and go, with all that a server without GTIDs allows, until told to be careful."""

    def __init__(self, server: MySQL | MariaDB) -> None:
        self.server = server
        ((self.careful,),) = server.query(_CONSISTENT) if isinstance(server, MySQL) else ((False,),)
        self.errors: list[str] = []
        self.rounds = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self.server.execute(
            f"CREATE DATABASE {DATABASE}",
            f"CREATE TABLE {DATABASE}.safe (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
            f"CREATE TABLE {DATABASE}.old (id INT, v INT) ENGINE=MyISAM",
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(60)
        self.server.execute(f"DROP DATABASE {DATABASE}")

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self._round()
            except pymysql.MySQLError as error:
                self.errors.append(str(error))
            self.rounds += 1
            time.sleep(0.01)

    def _round(self) -> None:
        with self.server.connect(autocommit=False, database=DATABASE) as connection:
            cursor = connection.cursor()
            cursor.execute("INSERT INTO safe (v) VALUES (1)")
            if not self.careful:
                cursor.execute("INSERT INTO old VALUES (1, 1)")
            connection.commit()
            cursor.execute("INSERT INTO old VALUES (2, 2)")
            cursor.execute("UPDATE safe SET v = v + 1 WHERE id = 1")
            connection.commit()

    def goes_on(self) -> None:
        """Wait until it has worked for some more rounds, and see that it met no error."""
        until = self.rounds + 5
        wait_for(lambda: self.rounds >= until or bool(self.errors), None, "the application")
        assert self.errors == []


def follow(server: MySQL | MariaDB, advice: str) -> None:
    """Execute the statements that a line of advice has."""
    statements = STATEMENT.findall(advice)
    assert statements, advice
    server.execute(*statements)


CASES: dict[str, tuple[Callable[[Server], Iterator[CheckResult]], dict[str, str], dict[str, Any]]] = {
    "row image": (log_checks.binlog_row_image, {"binlog_row_image": "'MINIMAL'"}, {}),
    "row metadata": (log_checks.binlog_row_metadata, {"binlog_row_metadata": "'MINIMAL'"}, {}),
    "checksums": (log_checks.binlog_checksum, {"binlog_checksum": "'NONE'"}, {}),
    "durability": (
        log_checks.durability,
        {"sync_binlog": "0", "innodb_flush_log_at_trx_commit": "2"},
        {},
    ),
    "retention": (log_checks.retention, {"binlog_expire_logs_seconds": "3600"}, {}),
    "packets": (log_checks.max_allowed_packet, {"max_allowed_packet": "1048576"}, {}),
    "MySQL: partial JSON": (
        log_checks.binlog_row_value_options,
        {"binlog_row_value_options": "'PARTIAL_JSON'", "binlog_row_image": "'MINIMAL'"},
        {},
    ),
    "MySQL: statements": (
        log_checks.query_texts,
        {"binlog_rows_query_log_events": "0"},
        {"include_query": True},
    ),
    "MariaDB: statements": (
        log_checks.query_texts,
        {"binlog_annotate_row_events": "0"},
        {"include_query": True},
    ),
}
"""By name: a check, the variables that break it, and what else the check is told."""


@pytest.mark.parametrize("name", CASES)
def test_the_finding_ends_and_the_application_goes_on(database: MySQL | MariaDB, name: str) -> None:
    kind, of_one, _ = name.partition(": ")
    if of_one and isinstance(database, MariaDB) != (kind == "MariaDB"):
        pytest.skip("of the other server")
    check, variables, told = CASES[name]
    with ExitStack() as broken:
        for variable, value in variables.items():
            broken.enter_context(set_global(database, variable, value))
        application = broken.enter_context(Application(database))
        found = [one for one in outcomes(database, check, **told) if one.level is not Level.OK]
        assert found, "the check finds nothing"
        for outcome in found:
            follow(database, outcome.advice)
        application.goes_on()
        assert [one for one in outcomes(database, check, **told) if one.level is not Level.OK] == []


def section(heading: str) -> list[str]:
    """The statements of a procedure, in their order."""
    text = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n#")[0]
    return [one for one in re.findall(r"`(SET GLOBAL [^`]+)`", text) if "OFF`" not in one]


def test_gtids_are_turned_on_in_steps(tmp_path: Path) -> None:
    options = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
    warn, on, off_permissive, on_permissive, last = section("Turn on GTIDs")
    with MySQL(options=options) as server, Application(server) as application:
        (found,) = outcomes(server, log_checks.gtids)
        assert (found.level, STATEMENT.findall(found.advice)) == (Level.WARNING, [])
        before = state_of(server)
        server.execute(warn)
        application.goes_on()
        wait_for(lambda: "GTID consistency" in server.log_tail(60), None, "the server's log names it")
        application.careful = True
        application.goes_on()
        server.execute(on)
        application.goes_on()
        server.execute(off_permissive, on_permissive)
        application.goes_on()
        (far_behind,) = outcomes(server, log_checks.reader_position, state=before)
        assert (far_behind.level, "without GTIDs" in far_behind.text) == (Level.WARNING, True)
        (passed,) = outcomes(server, log_checks.reader_position, state=state_of(server))
        assert passed.level is Level.OK
        waiting = "SHOW STATUS LIKE 'Ongoing_anonymous_transaction_count'"
        wait_for(lambda: server.query(waiting)[0][1] == "0", None, "no transaction without a GTID")
        server.execute(last)
        application.goes_on()
        assert [one.level for one in outcomes(server, log_checks.gtids)] == [Level.OK]


def test_gtid_consistency_at_once_breaks_an_application() -> None:
    """Why turning on GTIDs is a procedure."""
    options = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
    with MySQL(options=options) as server, Application(server) as application:
        application.goes_on()
        server.execute("SET GLOBAL enforce_gtid_consistency = ON")
        wait_for(lambda: bool(application.errors), None, "an error of the application")
        assert "1785" in application.errors[0]


def test_strict_gtids(mariadb: MariaDB) -> None:
    turn_on, _take_back = section("Strict GTIDs")
    with set_global(mariadb, "gtid_strict_mode", "0"), Application(mariadb) as application:
        (found,) = outcomes(mariadb, log_checks.gtids)
        assert (found.level, STATEMENT.findall(found.advice)) == (Level.WARNING, [])
        mariadb.execute(turn_on)
        application.goes_on()
        assert [one.level for one in outcomes(mariadb, log_checks.gtids)] == [Level.OK]


def test_tables_get_a_key_and_an_engine_with_transactions(mariadb: MariaDB) -> None:
    text = PAGE.read_text().partition("## Give a table a primary key\n")[2]
    (alter,) = re.findall(r"^    ALTER TABLE t (.*)$", text.partition("\n#")[0], re.MULTILINE)
    name = f"{DATABASE}.old"
    with Application(mariadb) as application:
        (keyless,) = outcomes(mariadb, table_checks.tables_without_key)
        (engines,) = outcomes(mariadb, table_checks.engines)
        assert name in keyless.items
        assert f"{name} (MyISAM)" in engines.items
        mariadb.execute(f"ALTER TABLE {name} {alter}")
        application.goes_on()
        engine = engines.advice.removeprefix("ALTER TABLE … ").partition(",")[0]
        mariadb.execute(f"ALTER TABLE {name} {engine}")
        application.goes_on()
        for check in (table_checks.tables_without_key, table_checks.engines):
            assert not any(name in item for one in outcomes(mariadb, check) for item in one.items)


# -- privileges ------------------------------------------------------------------------------------------


def place_of_log(connection: MysqlConnection) -> None:
    Watermarks(connection, Method.LOG_STATUS, list)._log_status()


NEEDS: dict[str, Callable[[MysqlConnection], object]] = {
    "list the logs": binary_logs,
    "end of the log": log_status,
    "MySQL: snapshot without GTIDs": place_of_log,
    "read lock": lambda connection: connection.query("FLUSH TABLES WITH READ LOCK", doing="hold writes"),
    "a table": lambda connection: connection.query("SELECT 1 FROM mysql.user", doing="read a table"),
}


def refused(address: MysqlAddress, need: Callable[[MysqlConnection], object]) -> str | None:
    with MysqlConnection(address) as connection:
        try:
            need(connection)
        except RefusedError as error:
            return str(error)
    return None


@pytest.mark.parametrize("what", NEEDS)
def test_a_missing_privilege_is_named(database: MySQL | MariaDB, what: str) -> None:
    """The GRANT of each error, executed, is enough in a few steps, whatever host the account is for."""
    if what.startswith("MySQL") and isinstance(database, MariaDB):
        pytest.skip("of the other server")
    account = "'granted'@'127.0.0.%'"
    database.execute(f"CREATE USER {account} IDENTIFIED BY 'secret-1'")
    try:
        address = replace(database.address, user="granted", password="secret-1")
        followed: list[str] = []
        while (refusal := refused(address, NEEDS[what])) is not None:
            grant = STATEMENT.search(refusal)
            assert grant is not None, refusal
            assert grant[0] not in followed, f"it was granted: {refusal}"
            assert grant[0].endswith(account), refusal
            followed.append(grant[0])
            database.execute(grant[0])
        assert followed
    finally:
        database.execute(f"DROP USER {account}")


def test_each_statement_that_is_advised_is_executed_here() -> None:
    """Each check whose advice has a statement to copy is one of those above."""
    executed = {check.__name__ for check, _, _ in CASES.values()}
    executed |= {"gtids", "tables_without_key", "engines"}
    elsewhere = {
        "privileges": "test_doctor.py: test_privileges_that_are_missing",
        "tables": "test_doctor.py: test_privileges_that_are_missing",
        "replicas": "test_doctor.py",
        "binlog_format": "test_doctor.py",
        "reader_position": "test_reset.py",
        "semi_sync": "test_semisync.py",
    }
    for module in (access_checks, log_checks, table_checks):
        for check in module.CHECKS:
            lines = Path(module.__file__).read_text().partition(f"def {check.__name__}(")[2]
            body = lines.partition("\n\n\n")[0]
            if re.search(r"advice_to_set|SET GLOBAL|GRANT |ALTER TABLE", body):
                assert check.__name__ in executed | set(elsewhere), check.__name__

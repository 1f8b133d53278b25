"""What is said of a server that cannot be read from, where no such server runs here."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from millrace.mysql.catalog import read_catalog, read_definitions
from millrace.mysql.checks import check_primary, check_replicas, check_source, check_topology, own_gtids
from millrace.mysql.connection import Flavour, MysqlConnection, Row
from millrace.mysql.dump import ReplicaIdentity
from millrace.mysql.errors import RefusedError, RetriableError
from millrace.mysql.status import log_status
from millrace.reader.live import _logs
from tests.mysql_stub import StubConnection

ROWS = (
    "SET GLOBAL binlog_format='ROW', and the same in the configuration; sessions keep theirs until they "
    "reconnect"
)


class Server(StubConnection):
    """A server with these global variables."""

    def __init__(self, **variables: str) -> None:
        named = {"log_bin": "ON", "server_id": "1", "binlog_format": "ROW", **variables}
        super().__init__(named, flavour=Flavour.MARIADB)


def check(server: Server) -> list[str]:
    return check_source(cast("MysqlConnection", server), 7)


def test_a_binary_log_within_innodb_is_refused() -> None:
    """MariaDB 12.3 can keep its log in a storage engine."""
    with pytest.raises(RefusedError) as caught:
        check(Server(binlog_storage_engine="innodb"))
    assert str(caught.value) == (
        "db:3306: the binary log is kept in innodb (binlog_storage_engine), which only MariaDB's own "
        "replicas can read; start the server without that setting"
    )


def test_a_server_that_has_the_setting_and_does_not_use_it() -> None:
    assert check(Server(binlog_storage_engine="", binlog_row_image="FULL", binlog_row_metadata="FULL")) == []


@pytest.mark.parametrize("name", ["log_slave_updates", "log_replica_updates"])
def test_a_replica_that_does_not_log_what_it_replicates(name: str) -> None:
    with pytest.raises(RefusedError, match=rf"^db:3306: {name} is OFF: what it replicates is not in its log"):
        check_topology(cast("MysqlConnection", Server(**{name: "OFF"})))
    check_topology(cast("MysqlConnection", Server(**{name: "ON"})))


def test_semi_sync_with_a_replica_waits_for_the_primary() -> None:
    with pytest.raises(RetriableError, match=r"^db:3306: it is read_only, so a replica"):
        check_primary(cast("MysqlConnection", Server(read_only="ON")))
    check_primary(cast("MysqlConnection", Server(read_only="OFF")))


def test_a_server_without_a_log() -> None:
    with pytest.raises(RefusedError) as caught:
        check(Server(log_bin="OFF"))
    assert str(caught.value) == (
        "db:3306: the binary log is off; set log_bin=mysql-bin in the configuration and restart the server"
    )


@pytest.mark.parametrize(("value", "some"), [("STATEMENT", ""), ("MIXED", "some ")])
def test_a_log_of_statements(value: str, some: str) -> None:
    statements = Server(binlog_format=value)
    logged = f"binlog_format is {value}: {some}changes are logged without rows"
    with pytest.raises(RefusedError) as caught:
        check(statements)
    assert str(caught.value) == (
        f"db:3306: {logged}, and the reader does not start; {ROWS}; "
        "or set MILLRACE_MYSQL_ALLOW_STATEMENTS=true: the row topics lack these changes"
    )
    assert check_source(cast("MysqlConnection", statements), 7, allow_statements=True) == [
        f"{logged}, and counted by table: no row topic has them; {ROWS}"
    ]


def primary(*replicas: dict[str, str]) -> "MysqlConnection":
    """A server with these replicas."""
    return cast("MysqlConnection", StubConnection(answers={"SHOW REPLICAS": replicas}))


def test_another_replica_with_our_server_id() -> None:
    ours = ReplicaIdentity(7, "our-uuid", "millrace-shop")
    others = [
        {"Server_Id": "8", "Replica_UUID": "a", "Host": "db8"},
        {"Server_Id": "7", "Replica_UUID": "our-uuid", "Host": "millrace-other"},
    ]
    check_replicas(primary(*others), ours)
    with pytest.raises(RefusedError) as caught:
        check_replicas(primary(*others, {"Server_id": "7", "Host": "db9"}), ours)
    assert str(caught.value) == (
        "db:3306: replica db9 already uses server id 7; set MILLRACE_MYSQL_SERVER_ID to a number of its own"
    )


class Changing(StubConnection):
    """A server without a log, and with tables that are others whenever one looks."""

    looks = 0

    def query(self, sql: str, values: Sequence[Any] = (), *, doing: str = "") -> list[Row]:
        table = {"database": "shop", "table": "t"}
        if "information_schema.TABLES" in sql:
            self.looks += 1
            return [Row({**table, "type": "BASE TABLE", "engine": "InnoDB", "collation": None})]
        if "information_schema.COLUMNS" in sql and "ORDINAL_POSITION" in sql:
            column = {"ordinal": "1", "name": f"c{self.looks}", "column_type": "int", "nullable": "YES"}
            return [Row({**table, **column, "charset": None, "collation": None, "extra": "", "preset": ""})]
        return []

    def first_of(self, *statements: str, doing: str) -> list[Row]:
        return [Row({"File": "bin.000001", "Position": "4"})] if self.looks else []


def test_tables_that_keep_changing() -> None:
    server = Changing()
    with pytest.raises(RetriableError) as caught:
        read_catalog(cast("MysqlConnection", server))
    assert str(caught.value) == "db:3306: tables kept changing while the catalogue was read"
    assert server.looks > 5


class Listing(StubConnection):
    """A server that lists its columns in the order of their first letter, and so those of a table twice."""

    def __init__(self, column_type: str) -> None:
        super().__init__()
        self.column_type = column_type

    def query(self, sql: str, values: Sequence[Any] = (), *, doing: str = "") -> list[Row]:
        if "information_schema.TABLES" in sql:
            parts = {"type": "BASE TABLE", "engine": "InnoDB", "collation": None}
            return [Row({"database": "shop", "table": table, **parts}) for table in ("t", "u")]
        if "information_schema.COLUMNS" in sql and "ORDINAL_POSITION" in sql:
            parts = {"nullable": "YES", "charset": None, "collation": None, "extra": "", "preset": ""}
            places = [("t", "1", "a", "int"), ("u", "1", "a", "int"), ("t", "2", "b", self.column_type)]
            keys = ("table", "ordinal", "name", "column_type")
            return [
                Row({"database": "shop", **dict(zip(keys, each, strict=True)), **parts}) for each in places
            ]
        return []


@pytest.mark.parametrize(("members", "columns"), [(1, 2), (3_000_000, 0)])
def test_a_table_of_which_too_much_is_listed_has_no_columns(members: int, columns: int) -> None:
    listing = Listing(f"enum({','.join(['quote'] * members)})".replace("quote", "'xxx'"))
    found = {each.table: len(each.columns) for each in read_definitions(cast("MysqlConnection", listing))}
    assert found == {"t": columns, "u": 1}


def test_columns_are_counted_as_they_are_listed() -> None:
    """MySQL 8.0.15 counts hidden columns of functional indexes, and does not list them."""

    class Gaps(Listing):
        def query(self, sql: str, values: Sequence[Any] = (), *, doing: str = "") -> list[Row]:
            rows = super().query(sql, values, doing=doing)
            return [Row({**row, "ordinal": "4"} if row.get("name") == "b" else row) for row in rows]

    found = {each.table: each for each in read_definitions(cast("MysqlConnection", Gaps("int")))}
    assert [(column.ordinal, column.name) for column in found["t"].columns] == [(0, "a"), (1, "b")]


def test_the_end_of_a_log_that_is_off() -> None:
    with pytest.raises(RefusedError) as caught:
        log_status(cast("MysqlConnection", Changing()))
    assert str(caught.value) == "db:3306: the binary log is off; start the server with log_bin"


def test_a_server_without_any_log_file() -> None:
    with pytest.raises(RefusedError) as caught:
        _logs(cast("MysqlConnection", Changing()))
    assert str(caught.value) == "db:3306: there are no binary logs"


def test_the_server_id_is_ours() -> None:
    with pytest.raises(RefusedError) as caught:
        check(Server(server_id="7"))
    assert str(caught.value) == (
        "db:3306: it has server_id 7, the one that we would use ourselves; set MILLRACE_MYSQL_SERVER_ID to a "
        "number that no server of the topology has"
    )


def test_what_could_be_set_up_better() -> None:
    server = Server(binlog_row_image="MINIMAL", binlog_row_metadata="MINIMAL", gtid_mode="OFF")
    server.flavour = Flavour.MYSQL
    for said, begins in zip(
        check(server),
        (
            "binlog_row_image is MINIMAL: columns that did not change are missing, and listed in ",
            "binlog_row_metadata is MINIMAL: the names of columns come from the definitions that ",
            "gtid_mode is OFF: the reader cannot switch to another server, or past a reset of this one; ",
        ),
        strict=True,
    ):
        assert said.startswith(begins)
        assert "; SET GLOBAL " in said or "docs/how-to/server.md#" in said


@pytest.mark.parametrize(
    ("variables", "advice"),
    [
        ({}, 0),
        ({"wsrep_on": "OFF", "wsrep_gtid_mode": "OFF"}, 0),
        ({"wsrep_on": "ON", "wsrep_gtid_mode": "ON"}, 0),
        ({"wsrep_on": "ON", "wsrep_gtid_mode": "OFF"}, 1),
        ({"wsrep_on": "ON"}, 1),
    ],
)
def test_nodes_of_galera_that_number_transactions_by_themselves(
    variables: dict[str, str], advice: int
) -> None:
    """A reader of several nodes says so when it starts; it is refused when it would have to change."""
    warnings = check_topology(cast("MysqlConnection", Server(**variables)))
    assert [("wsrep_gtid_mode=ON" in each) for each in warnings] == [True] * advice
    assert (own_gtids(variables) is None) is not bool(advice)

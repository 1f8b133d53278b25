"""What is said of a server that cannot be read from, where no such server runs here."""

from typing import cast

import pytest

from millrace.mysql.checks import check_primary, check_source, check_topology
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.errors import RefusedError, RetriableError


class Server:
    """A server with these global variables."""

    address = MysqlAddress("db")
    flavour = Flavour.MARIADB

    def __init__(self, **variables: str) -> None:
        self._variables = {"log_bin": "ON", "server_id": "1", "binlog_format": "ROW", **variables}

    def variable(self, name: str) -> str | None:
        return self._variables.get(name)


def check(server: Server) -> list[str]:
    return check_source(cast("MysqlConnection", server), 7)


def test_a_binary_log_within_innodb_is_refused() -> None:
    """MariaDB 12.3 can keep its log in a storage engine."""
    with pytest.raises(RefusedError) as caught:
        check(Server(binlog_storage_engine="innodb"))
    assert str(caught.value) == (
        "db:3306: its binary log is kept in innodb (binlog_storage_engine), which only MariaDB's own "
        "replicas can read; start it without that setting"
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

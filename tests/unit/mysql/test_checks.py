"""What is said of a server that cannot be read from, where no such server runs here."""

from typing import cast

import pytest

from millrace.mysql.checks import check_source
from millrace.mysql.connection import Flavour, MysqlAddress, MysqlConnection
from millrace.mysql.errors import RefusedError


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

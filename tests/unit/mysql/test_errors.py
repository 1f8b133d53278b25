"""The words in which servers' errors reach a person."""

from typing import NoReturn

import pymysql
import pytest

from millrace.mysql.connection import MysqlAddress, MysqlConnection
from millrace.mysql.errors import (
    CONNECT,
    DuplicateReplicaError,
    LinkLostError,
    PositionRefusedError,
    PurgedError,
    RefusedError,
    RetriableError,
    from_server,
)


@pytest.mark.parametrize(
    ("code", "text", "kind", "words"),
    [
        (
            1236,
            "Could not find first log file name in binary log index file",
            PurgedError,
            "SHOW BINARY LOGS",
        ),
        (
            1236,
            "using MASTER_AUTO_POSITION = 1, but the master has purged binary logs containing GTIDs that",
            PurgedError,
            "binlog_expire_logs_seconds",
        ),
        (1236, "Could not find GTID state requested by slave in any binlog files.", PurgedError, "purged"),
        (
            1236,
            "Client requested master to start replication from position > file size",
            PositionRefusedError,
            "ends before",
        ),
        (
            1236,
            "connecting slave requested to start from GTID 0-9-99, which is not in the master's binlog",
            PositionRefusedError,
            "another log",
        ),
        (
            1236,
            "A slave with the same server_uuid/server_id as this slave has connected to the master",
            DuplicateReplicaError,
            "MILLRACE_MYSQL_SERVER_ID",
        ),
        (
            1236,
            "The sender thread cannot start in AUTO_POSITION mode: this server has GTID_MODE = OFF",
            RefusedError,
            "gtid_mode is not ON",
        ),
        (1236, "Binary log is not open", RefusedError, "log_bin"),
        (
            1236,
            "read error on log",
            RetriableError,
            "be where an event starts",
        ),
        (
            1227,
            "Access denied; you need (at least one of) the REPLICATION SLAVE privilege(s) for this operation",
            RefusedError,
            "GRANT REPLICATION SLAVE ON *.* TO 'reader'@'%'",
        ),
        (
            1227,
            "Access denied; you need (at least one of) the SUPER, REPLICATION CLIENT privilege(s)",
            RefusedError,
            "GRANT REPLICATION CLIENT ON *.* TO 'reader'@'%'",
        ),
        (1045, "Access denied for user 'reader'@'h' (using password: YES)", RefusedError, "_PASSWORD"),
        (1053, "Server shutdown in progress", LinkLostError, "shutting down"),
        (1040, "Too many connections", RetriableError, "max_connections"),
        (
            4052,
            "A slave with the same server_uuid/server_id is already connected",
            DuplicateReplicaError,
            "_SERVER_ID",
        ),
        (9999, "Something new", RefusedError, "Something new"),
    ],
)
def test_words(code: int, text: str, kind: type[Exception], words: str) -> None:
    doing = CONNECT if code == 1045 else "read the binary log"
    error = from_server(code, text, server="db:3306", user="reader", doing=doing)
    assert type(error) is kind
    message = str(error)
    assert words in message
    assert "db:3306" in message
    assert text.rstrip(".") in message, "the server's own words are kept"
    assert "\n" not in message


def test_a_missing_privilege_may_look_like_a_wrong_password() -> None:
    error = from_server(1045, "Access denied", server="db:3306", user="reader", doing="register as a replica")
    assert "run GRANT REPLICATION SLAVE" in str(error)


def test_a_server_that_denies_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once who we are, and the error names the account by the user alone."""
    connection = MysqlConnection.__new__(MysqlConnection)
    connection.address = MysqlAddress("db", user="reader")
    denied = pymysql.err.OperationalError(1227, "you need the RELOAD privilege")
    asked = []

    def row(sql: str, *, doing: str) -> NoReturn:
        asked.append(sql)
        raise connection._error(denied, doing)

    monkeypatch.setattr(connection, "row", row)
    assert "run GRANT RELOAD ON *.* TO 'reader'@'%'" in str(connection._error(denied, "hold writes"))
    assert len(asked) == 1

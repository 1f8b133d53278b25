"""Where a server's binary log stands, and which files of it are there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from millrace.mysql.connection import Flavour, MysqlConnection, Row
from millrace.mysql.errors import RefusedError
from millrace.mysql.names import log_file_name

_EVENTS_BEFORE_THE_FIRST: Final = 4
"""Events at the head of a file that are part of no transaction, and some to spare."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A binary log file of the server; ``size`` in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The end of the log, and the GTIDs of everything before it ("" where there are none).

    ``filtered`` says that statements of some databases are not logged (binlog_do_db, binlog_ignore_db).
    """

    log_file: str
    position: int
    gtid_set: str
    filtered: bool = False


def binary_logs(connection: MysqlConnection) -> list[LogFile]:
    """Return the server's binary log files, oldest first; needs REPLICATION CLIENT (BINLOG MONITOR)."""
    doing = "list the binary logs"
    return [
        LogFile(log_file_name(row.text("Log_name"), row.where), row.number("File_size"))
        for row in connection.query("SHOW BINARY LOGS", doing=doing)
    ]


def log_status(connection: MysqlConnection) -> LogStatus:
    """Return where the log ends now; needs REPLICATION CLIENT (BINLOG MONITOR)."""
    rows = connection.first_of(
        "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS", doing="ask where the binary log ends"
    )
    if not rows:
        raise RefusedError(f"{connection.address}: the binary log is off; start the server with log_bin")
    row = rows[0]
    log_file, position = log_file_name(row.text("File"), row.where), row.number("Position")
    filtered = any(name in row and row.text(name) for name in ("Binlog_Do_DB", "Binlog_Ignore_DB"))
    if connection.flavour is Flavour.MARIADB:
        return LogStatus(log_file, position, gtids_at(connection, log_file, position) or "", filtered)
    # MySQL 5.5 has no such column.
    gtid_set = row.text("Executed_Gtid_Set") if "Executed_Gtid_Set" in row else ""
    return LogStatus(log_file, position, gtid_set.replace("\n", ""), filtered)


def consistent_snapshot(connection: MysqlConnection) -> tuple[str, int]:
    """Open a transaction that sees the tables of a MariaDB as they are now; return its place in the log."""
    doing = "take a snapshot"
    connection.query("START TRANSACTION WITH CONSISTENT SNAPSHOT", doing=doing)
    status = {
        row.text("Variable_name").lower(): row
        for row in connection.query("SHOW STATUS LIKE 'binlog_snapshot_%'", doing=doing)
    }
    file, position = (status.get(f"binlog_snapshot_{name}", Row()) for name in ("file", "position"))
    if not file or not position or not file["Value"]:
        raise RefusedError(f"{connection.address}: the binary log is off; start the server with log_bin")
    return log_file_name(file.text("Value"), file.where), position.number("Value")


def first_with_gtids(connection: MysqlConnection, logs: Sequence[LogFile]) -> int:
    """Return from which of a MySQL's logs on each begins with a transaction that has a GTID.

    Needs REPLICATION SLAVE. A server begins a new file whenever gtid_mode is changed, so that those of a
    time are of one kind; but a replica may mix them in the modes between OFF and ON. The number of logs says
    that not even the last is so.
    """
    if logs and not _begins_anonymous(connection, logs[0].name):
        return 0
    for index in range(len(logs) - 1, -1, -1):
        if _begins_anonymous(connection, logs[index].name):
            return index + 1
    return 0


def _begins_anonymous(connection: MysqlConnection, log_file: str) -> bool:
    """Return whether the first transaction of a file has no GTID."""
    rows = connection.query(
        f"SHOW BINLOG EVENTS IN %s LIMIT {_EVENTS_BEFORE_THE_FIRST + 1}",
        [log_file],
        doing="look into the binary log",
    )
    kinds = (row.text("Event_type") for row in rows)
    return next((kind for kind in kinds if kind in {"Anonymous_Gtid", "Gtid"}), "") == "Anonymous_Gtid"


def gtids_at(connection: MysqlConnection, log_file: str, position: int) -> str | None:
    """Return the GTIDs of all that lies before a place in MariaDB's log, None where it has no such place."""
    row = connection.row(
        "SELECT BINLOG_GTID_POS(%s, %s) AS gtids", [log_file, position], doing="ask for GTIDs"
    )
    return None if row["gtids"] is None else row.text("gtids")

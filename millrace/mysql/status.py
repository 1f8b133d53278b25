"""Where a server's binary log stands, and which files of it are there."""

from dataclasses import dataclass

from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.errors import RefusedError

__all__ = ["LogFile", "LogStatus", "binary_logs", "gtids_at", "log_status"]


@dataclass(frozen=True, slots=True)
class LogFile:
    """A binary log file of the server; ``size`` in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The end of the log, and the GTIDs of everything before it ("" where there are none)."""

    log_file: str
    position: int
    gtid_set: str


def binary_logs(connection: MysqlConnection) -> list[LogFile]:
    """Return the server's binary log files, oldest first; needs REPLICATION CLIENT (BINLOG MONITOR)."""
    rows = connection.query("SHOW BINARY LOGS", doing="list the binary logs")
    return [LogFile(str(row["Log_name"]), int(row["File_size"])) for row in rows]


def log_status(connection: MysqlConnection) -> LogStatus:
    """Return where the log ends now; needs REPLICATION CLIENT (BINLOG MONITOR)."""
    rows = connection.first_of(
        "SHOW MASTER STATUS", "SHOW BINARY LOG STATUS", doing="ask where the binary log ends"
    )
    if not rows:
        raise RefusedError(f"{connection.address}: the binary log is off; start the server with log_bin")
    log_file, position = str(rows[0]["File"]), int(rows[0]["Position"])
    if connection.flavour is Flavour.MARIADB:
        return LogStatus(log_file, position, gtids_at(connection, log_file, position) or "")
    gtid_set = rows[0].get("Executed_Gtid_Set")
    return LogStatus(log_file, position, str(gtid_set or "").replace("\n", ""))


def gtids_at(connection: MysqlConnection, log_file: str, position: int) -> str | None:
    """Return the GTIDs of all that lies before a place in MariaDB's log, None where it has no such place."""
    rows = connection.query(
        "SELECT BINLOG_GTID_POS(%s, %s) AS gtids", [log_file, position], doing="ask for GTIDs"
    )
    return None if rows[0]["gtids"] is None else str(rows[0]["gtids"])

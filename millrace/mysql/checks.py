"""Whether a server can be read from: what must be so, and what had better be so.

The functions that give outcomes look at global variables; ``millrace doctor`` uses them as well. What must be
so raises :class:`~millrace.mysql.errors.RefusedError`; what had better be so comes back as text. Missing
privileges show where they are needed, in the server's own answer.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from millrace.finding import CheckResult, Level, error, ok, warning
from millrace.mysql.connection import MysqlConnection, advice_to_set
from millrace.mysql.dump import ReplicaIdentity
from millrace.mysql.errors import RefusedError, RetriableError

NAMES_FROM_DEFINITIONS: Final = (
    "the names of columns come from the definitions that the reader reads and the DDL after them, and a "
    "table whose DDL is not understood is quarantined"
)


def check_source(connection: MysqlConnection, server_id: int, *, allow_statements: bool = False) -> list[str]:
    """Check the settings of the server; return warnings.

    ``server_id`` is ours as a replica. ``allow_statements`` admits a ``binlog_format`` other than ROW: its
    statements are carried like all events, but bring no rows.
    """
    variables = connection.all_variables()
    warnings = []
    for found in (
        *log_bin(variables),
        *binlog_format(variables, allow_statements=allow_statements),
        *binlog_row_image(variables),
        *binlog_row_metadata(variables),
        *gtid_mode(variables),
    ):
        if found.level is Level.ERROR:
            raise RefusedError(f"{connection.address}: {found.text}; {found.advice}")
        if found.level is Level.WARNING:
            warnings.append(f"{found.text}; {found.advice}")
    if variables.get("server_id") == str(server_id):
        raise RefusedError(
            f"{connection.address}: it has server_id {server_id}, the one that we would use ourselves; "
            "set MILLRACE_MYSQL_SERVER_ID to a number that no server of the topology has"
        )
    return warnings


def log_bin(variables: Mapping[str, str]) -> Iterator[CheckResult]:
    """Look whether there is a binary log, and one that replicas can read."""
    if variables.get("log_bin") != "ON":
        yield error(
            "the binary log is off", "set log_bin=mysql-bin in the configuration and restart the server"
        )
    elif engine := variables.get("binlog_storage_engine"):
        yield error(
            f"the binary log is kept in {engine} (binlog_storage_engine), which only MariaDB's own replicas "
            "can read",
            "start the server without that setting",
        )


def binlog_format(variables: Mapping[str, str], *, allow_statements: bool) -> Iterator[CheckResult]:
    """Look whether changes are logged as rows."""
    value = variables.get("binlog_format", "ROW")
    advice = advice_to_set("binlog_format", "ROW") + "; sessions keep theirs until they reconnect"
    if value == "ROW":
        yield ok(value)
        return
    logged = f"binlog_format is {value}: {'some ' * (value == 'MIXED')}changes are logged without rows"
    if allow_statements:
        yield warning(f"{logged}, and counted by table: no row topic has them", advice)
    else:
        yield error(
            f"{logged}, and the reader does not start",
            f"{advice}; or set MILLRACE_MYSQL_ALLOW_STATEMENTS=true: the row topics lack these changes",
        )


def binlog_row_image(variables: Mapping[str, str]) -> Iterator[CheckResult]:
    """Look whether rows are logged whole."""
    value = variables.get("binlog_row_image")
    if value in {None, "FULL", "FULL_NODUP"}:
        yield ok(value or "whole rows, as always in this version")
    else:
        yield warning(
            f"binlog_row_image is {value}: columns that did not change are missing, and listed in "
            "before_missing and after_missing",
            advice_to_set("binlog_row_image", "FULL"),
        )


def binlog_row_metadata(variables: Mapping[str, str]) -> Iterator[CheckResult]:
    """Look whether the names of columns are in the log, where the server can log them."""
    value = variables.get("binlog_row_metadata")
    if value == "FULL":
        yield ok(value)
    elif value is not None:
        yield warning(
            f"binlog_row_metadata is {value}: {NAMES_FROM_DEFINITIONS}",
            advice_to_set("binlog_row_metadata", "FULL"),
        )


def gtid_mode(variables: Mapping[str, str]) -> Iterator[CheckResult]:
    """Look whether the transactions of a MySQL that can give GTIDs have them."""
    mode = variables.get("gtid_mode")
    if mode not in {None, "ON"}:
        yield warning(
            f"gtid_mode is {mode}: the reader cannot switch to another server, or past a reset of this one",
            "turn it on in steps, some of which the application must be ready for: "
            "docs/how-to/server.md#turn-on-gtids",
        )


def own_gtids(variables: Mapping[str, str], read_server_id: int | None = None) -> str | None:
    """Say that the GTIDs of a MariaDB may be its own; None where they are the topology's.

    ``read_server_id`` is that of the server that was read, where this is another one.
    """
    if variables.get("wsrep_on") == "ON":
        if variables.get("wsrep_gtid_mode") == "ON":
            return None
        return (
            "a node of Galera without wsrep_gtid_mode numbers transactions by itself: the same GTID is "
            "another transaction on another node"
        )
    if "gtid_domain_id" in variables and variables.get("server_id") == str(read_server_id):
        return (
            f"it has server_id {read_server_id}, as the server that was read had: the same GTID may be "
            "another transaction on it"
        )
    return None


def galera(variables: Mapping[str, str]) -> Iterator[CheckResult]:
    """Look whether another node of a Galera cluster can be read when this one is lost."""
    if words := own_gtids(variables):
        yield error(
            f"{words}, so that the reader cannot continue on one",
            "set wsrep_gtid_mode=ON with one wsrep_gtid_domain_id, and log_slave_updates, on all nodes, and "
            "gtid_domain_id to another number on each; then restart them",
        )
    elif variables.get("wsrep_on") == "ON":
        yield ok("wsrep_gtid_mode is ON")


def check_topology(connection: MysqlConnection) -> list[str]:
    """Refuse one of several servers that does not log what it replicates: that would be missing unseen.

    Return a warning where another one cannot be read when this one is lost.
    """
    for name in ("log_replica_updates", "log_slave_updates"):
        if connection.variable(name) == "OFF":
            raise RefusedError(
                f"{connection.address}: {name} is OFF: what it replicates is not in its log; set it in the "
                "configuration and restart, or take the server off MILLRACE_MYSQL_HOST"
            )
    found = galera({name: connection.variable(name) or "" for name in ("wsrep_on", "wsrep_gtid_mode")})
    return [f"{each.text}; {each.advice}" for each in found if each.level is Level.ERROR]


def check_primary(connection: MysqlConnection) -> None:
    """Refuse, for now, a server that is read-only: acknowledging to a replica leaves its primary waiting."""
    if connection.variable("read_only") not in {"OFF", "0", None}:
        raise RetriableError(
            f"{connection.address}: it is read_only, so a replica, and an acknowledgement to it does not "
            "reach the primary; name the primary in MILLRACE_MYSQL_HOST"
        )


def check_replicas(connection: MysqlConnection, replica: ReplicaIdentity) -> None:
    """Refuse to start while another replica is registered under our server id.

    Both would throw each other out forever. Who may not see the list (MariaDB wants REPLICATION MASTER ADMIN
    for it) learns of it when it happens.
    """
    try:
        registered = replicas(connection)
    except RefusedError:
        return
    for number, uuid, host in registered:
        name = uuid or host
        if number == replica.server_id and name not in {replica.uuid, replica.name}:
            raise RefusedError(
                f"{connection.address}: replica {name} already uses server id {replica.server_id}; "
                "set MILLRACE_MYSQL_SERVER_ID to a number of its own"
            )


def replicas(connection: MysqlConnection) -> list[tuple[int, str, str]]:
    """Return server id, UUID and host of the replicas that are connected; a MariaDB tells no UUIDs."""
    rows = connection.first_of(
        "SHOW REPLICAS", "SHOW REPLICA HOSTS", "SHOW SLAVE HOSTS", doing="list the replicas"
    )
    return [
        (
            row.number("Server_Id" if "Server_Id" in row else "Server_id"),
            next((row.text(name) for name in ("Replica_UUID", "Slave_UUID") if name in row), ""),
            row.text("Host"),
        )
        for row in rows
    ]

"""Whether a server can be read from: what must be so, and what had better be so.

Each finding is one line that names the statement to run. What must be so raises
:class:`~millrace.mysql.errors.RefusedError`; what had better be so comes back as text. Missing privileges
show where they are needed, in the server's own answer.
"""

from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.dump import ReplicaIdentity
from millrace.mysql.errors import RefusedError, RetriableError


def check_source(connection: MysqlConnection, server_id: int, *, allow_statements: bool = False) -> list[str]:
    """Check the settings of the server; return warnings.

    ``server_id`` is ours as a replica. ``allow_statements`` admits ``binlog_format=STATEMENT``, of which the
    events are carried like all others but no rows come.
    """
    address = connection.address
    if connection.variable("log_bin") != "ON":
        raise RefusedError(f"{address}: the binary log is off; set log_bin=mysql-bin in its configuration")
    engine = connection.variable("binlog_storage_engine")
    if engine:
        raise RefusedError(
            f"{address}: its binary log is kept in {engine} (binlog_storage_engine), which only "
            "MariaDB's own replicas can read; start it without that setting"
        )
    if connection.number("server_id") == server_id:
        raise RefusedError(
            f"{address}: it has server_id {server_id}, the one that we would use ourselves; "
            "set MILLRACE_MYSQL_SERVER_ID to a number that no server of the topology has"
        )
    warnings = _format(connection, allow_statements=allow_statements)
    image = connection.variable("binlog_row_image")
    if image is not None and image not in {"FULL", "FULL_NODUP"}:
        warnings.append(
            f"binlog_row_image is {image}: rows lack the columns that did not change; "
            "SET GLOBAL binlog_row_image='FULL'"
        )
    metadata = connection.variable("binlog_row_metadata")
    if metadata is not None and metadata != "FULL":
        warnings.append(
            f"binlog_row_metadata is {metadata}: the names of columns come from the catalogue; "
            "SET GLOBAL binlog_row_metadata='FULL'"
        )
    if connection.flavour is Flavour.MYSQL and connection.variable("gtid_mode") not in {"ON", None}:
        warnings.append("gtid_mode is not ON: after a failover to another server the reader cannot continue")
    return warnings


def check_topology(connection: MysqlConnection) -> None:
    """Refuse one of several servers that does not log what it replicates: that would be missing unseen."""
    for name in ("log_replica_updates", "log_slave_updates"):
        if connection.variable(name) == "OFF":
            raise RefusedError(
                f"{connection.address}: {name} is OFF: what it replicates is not in its log; set it in the "
                "configuration and restart, or take the server off MILLRACE_MYSQL_HOST"
            )


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
        rows = connection.first_of(
            "SHOW REPLICAS", "SHOW REPLICA HOSTS", "SHOW SLAVE HOSTS", doing="list the replicas"
        )
    except RefusedError:
        return
    for row in rows:
        columns = (column for column in ("Replica_UUID", "Slave_UUID", "Host") if row.get(column))
        name = row.text(next(columns, "Host"))
        number = row.number("Server_Id" if "Server_Id" in row else "Server_id")
        if number == replica.server_id and name not in {replica.uuid, replica.name}:
            raise RefusedError(
                f"{connection.address}: replica {name} already uses server id {replica.server_id}; "
                "set MILLRACE_MYSQL_SERVER_ID to a number of its own"
            )


def _format(connection: MysqlConnection, *, allow_statements: bool) -> list[str]:
    log_format = connection.variable("binlog_format")
    change = (
        "SET GLOBAL binlog_format='ROW' (and in the configuration; sessions keep theirs until they reconnect)"
    )
    if log_format == "STATEMENT":
        if not allow_statements:
            raise RefusedError(
                f"{connection.address}: binlog_format is STATEMENT, so the log holds no rows; {change}, "
                "or set MILLRACE_MYSQL_ALLOW_STATEMENTS=true to carry the statements"
            )
        return [f"binlog_format is STATEMENT: the log holds no rows; {change}"]
    if log_format == "MIXED":
        return [f"binlog_format is MIXED: some changes come as statements, without rows; {change}"]
    return []

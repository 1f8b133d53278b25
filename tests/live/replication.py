"""Servers that replicate from each other."""

from millrace.local import MariaDB, MySQL

Server = MySQL | MariaDB


def replicate(replica: Server, primary: Server) -> None:
    """Make one server a replica of another, by GTID."""
    by_gtid = (
        "MASTER_USE_GTID = slave_pos, MASTER_SSL = 0"
        if isinstance(primary, MariaDB)
        else "MASTER_AUTO_POSITION = 1, GET_MASTER_PUBLIC_KEY = 1"
    )
    replica.execute(
        "STOP SLAVE",
        f"CHANGE MASTER TO MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port}, "
        f"MASTER_USER = '{primary.user}', MASTER_PASSWORD = '{primary.password}', "
        f"MASTER_CONNECT_RETRY = 1, {by_gtid}",
        "START SLAVE",
    )

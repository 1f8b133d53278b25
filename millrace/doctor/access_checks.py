"""Checks of who we are to the server: version, encryption, privileges, server id, clocks."""

import time
from collections.abc import Iterator
from typing import Final

from millrace.doctor.server import Server
from millrace.finding import CheckResult, error, ok, warning
from millrace.mysql.errors import RefusedError
from millrace.mysql.login import VERIFY_TLS
from millrace.mysql.privileges import ALL
from millrace.mysql.privileges import privileges as privileges_of

_KNOWN: Final = {"MariaDB": ((10, 2), (11, 8)), "MySQL": ((5, 5), (9, 7))}
"""First and last version whose logs and dumps we know."""

_MAY_ASK_FOR_PASSWORD: Final = {"caching_sha2_password", "sha256_password"}
_LOOPBACK: Final = ("localhost", "127.", "::1")
_CLOCK_S: Final = 60


def version(server: Server) -> Iterator[CheckResult]:
    """Look whether it is a version that we know."""
    flavour = server.connection.flavour.value
    first, last = _KNOWN[flavour]
    known = f"{_dotted(first)} to {_dotted(last)}"
    text = f"{flavour} {server.connection.version}"
    if server.version[:2] < first:
        yield error(f"{text} is older than {known}, which are supported", "upgrade the server")
    elif server.version[:2] > last:
        yield warning(
            f"{text} is newer than {known}, which are known",
            "events of kinds that are new in it go to the dead letter topic; nothing is lost in the raw "
            "topic",
        )
    else:
        yield ok(text)


def encryption(server: Server) -> Iterator[CheckResult]:
    """Look whether the connection is encrypted, and the server's certificate checked."""
    connection = server.connection
    address = connection.address
    rows = connection.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'", doing="ask for the cipher")
    cipher = rows[0].text("Value") if rows else ""
    near = address.unix_socket is not None or address.host.startswith(_LOOPBACK)
    if not cipher and near:
        yield ok("none, on this machine")
    elif not cipher:
        yield warning(
            "the connection is not encrypted: passwords and rows can be read on the way", VERIFY_TLS
        )
    elif not connection.verified and not near:
        yield warning(
            f"{cipher}, but the server's certificate is not verified: it may be an impostor's", VERIFY_TLS
        )
    else:
        yield ok(cipher)


def login(server: Server) -> Iterator[CheckResult]:
    """Look whether a login may come to need what the settings do not allow."""
    connection = server.connection
    method = connection.login_method
    if method in _MAY_ASK_FOR_PASSWORD and not connection.may_give_password:
        yield warning(
            f"{method}: it went by what the server remembers; once it has restarted it asks for the password "
            "itself, which is not sent where nobody can tell whose server it is",
            f"{VERIFY_TLS}; see docs/security.md for other ways",
        )
    else:
        yield ok(method)


def privileges(server: Server) -> Iterator[CheckResult]:
    """Look for REPLICATION SLAVE, REPLICATION CLIENT and SELECT."""
    found = privileges_of(server.connection)
    everywhere, anywhere = found.everywhere, found.anywhere
    user = server.connection.account
    if ALL & everywhere:
        yield ok(f"{user} has all privileges")
        return
    missing = []
    if "REPLICATION SLAVE" not in everywhere:
        missing.append("REPLICATION SLAVE")
    if not {"REPLICATION CLIENT", "BINLOG MONITOR", "SUPER"} & everywhere:
        missing.append("REPLICATION CLIENT")
    if missing:
        yield error(
            f"{user} lacks {' and '.join(missing)}", f"GRANT {', '.join(missing)} ON *.* TO {user}", missing
        )
    elif "SELECT" in everywhere:
        yield ok(f"{user} has REPLICATION SLAVE, REPLICATION CLIENT and SELECT")
    elif anywhere & {"SELECT", "ALL PRIVILEGES"}:
        yield warning(
            f"{user} has SELECT on some databases only: the definitions of other tables cannot be read",
            f"GRANT SELECT ON *.* TO {user}",
        )
    else:
        yield warning(
            f"{user} has no SELECT: definitions of tables cannot be read, and names of columns come from "
            "binlog_row_metadata=FULL alone",
            f"GRANT SELECT ON *.* TO {user}",
        )


def server_id(server: Server) -> Iterator[CheckResult]:
    """Look whether the server's id and ours are numbers of their own."""
    theirs = server.number("server_id")
    if not theirs:
        yield error(
            "the server has no server_id, and will not serve replicas", "set server_id in its configuration"
        )
    elif theirs == server.server_id:
        yield error(
            f"the server has server_id {theirs}, the one that we would use",
            "set MILLRACE_MYSQL_SERVER_ID to a number that no server of the topology has",
        )
    else:
        yield ok(f"{theirs}; ours is {server.server_id}")


def replicas(server: Server) -> Iterator[CheckResult]:
    """Look whether another replica has our server id: the server would throw one of the two out forever."""
    try:
        hosts = server.replicas
    except RefusedError as refusal:
        privilege = "REPLICATION MASTER ADMIN" if server.is_mariadb else "REPLICATION SLAVE"
        yield warning(
            f"cannot be listed, so that another replica may have server id {server.server_id}: {refusal}",
            f"GRANT {privilege} ON *.* TO {server.connection.account}, or look yourself",
        )
        return
    if server.server_id not in hosts:
        yield ok(f"{len(hosts)}, none with our server id {server.server_id}")
    elif hosts[server.server_id] == server.replica_name:
        yield ok(f"{len(hosts)}, one of them our reader")
    else:
        name = hosts[server.server_id] or "without a name"
        yield error(
            f"replica {name} uses server id {server.server_id}, the one that we would use",
            "set MILLRACE_MYSQL_SERVER_ID to a number of its own",
        )


def clock(server: Server) -> Iterator[CheckResult]:
    """Compare the clocks: lags in seconds are told by ours and the events' timestamps."""
    before = time.time()
    row = server.connection.row("SELECT UNIX_TIMESTAMP() AS now", doing="ask for the time")
    ahead = row.number("now") - (before + time.time()) / 2
    if abs(ahead) > _CLOCK_S:
        way = "ahead of" if ahead > 0 else "behind"
        yield warning(
            f"the server's clock is {abs(ahead):.0f} s {way} ours: lags are reported wrongly",
            "synchronize both with a time server",
        )
    else:
        yield ok("the same as ours")


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


CHECKS: Final = (version, encryption, login, privileges, server_id, replicas, clock)
"""In the order in which a person would fix what they find."""

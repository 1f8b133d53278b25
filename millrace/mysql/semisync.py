"""Semi-synchronous replication: what a replica says, and whether a server keeps its side of the promise.

A server with semi-synchronous replication makes each COMMIT wait until a replica has acknowledged it. A
replica asks for it by a user variable before the dump; events that want an acknowledgement are marked (see
:mod:`millrace.mysql.packets`), and the acknowledgement is a packet of its own: 0xEF, the position up to which
everything has come (8 bytes, little-endian), the name of the log file. One that comes later counts for all
before it. MySQL has it as a plugin, under two sets of names; MariaDB has it built in since 10.3.

That no committed transaction can be lost with its server is true only where all of the conditions hold that
:func:`semi_sync_findings` looks at.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from millrace.finding import CheckResult, error, ok, warning
from millrace.mysql.connection import Flavour, MysqlConnection, Row, advice_to_set
from millrace.mysql.errors import RefusedError

REPLICA_VARIABLES: Final = ("rpl_semi_sync_slave", "rpl_semi_sync_replica")
"""User variables by which a replica asks for it: of MariaDB and MySQL, and of MySQL 8.0.26 and later."""

_MARK: Final = 0xEF
_LEAST_TIMEOUT_MS: Final = 7 * 24 * 3600 * 1000
_LONGEST_TIMEOUT_MS: Final = 0xFFFFFFFF


def acknowledgement(log_file: str, position: int) -> bytes:
    """Write the payload that says: everything before ``position`` in ``log_file`` is safe."""
    return struct.pack("<BQ", _MARK, position) + log_file.encode("utf-8", "surrogateescape")


def require_semi_sync(connection: MysqlConnection) -> None:
    """Raise :class:`RefusedError` where the server cannot wait for a replica at all."""
    if _prefix(connection) is None:
        raise RefusedError(
            f"{connection.address}: MILLRACE_SEMI_SYNC is set, and the server has no semi-synchronous "
            f"replication; {_install(connection)}, or unset MILLRACE_SEMI_SYNC"
        )


def semi_sync_findings(connection: MysqlConnection, *, connected: bool = True) -> list[CheckResult]:
    """Look whether every transaction that commits on the server is acknowledged by the reader before.

    An error means that a transaction can be committed, and be lost with the server, without being in Kafka.
    Beside these the raw topic must have min.insync.replicas of 2 or more, which the server cannot know. While
    the reader is not ``connected`` yet, it is counted among the replicas all the same.
    """
    prefix = _prefix(connection)
    if prefix is None:
        return [error("the server has no semi-synchronous replication", _install(connection))]
    return list(_findings(_Server(connection, prefix, expected=0 if connected else 1)))


class _Server:
    """Variables and status of the server, under the names that it has for them."""

    def __init__(self, connection: MysqlConnection, prefix: str, *, expected: int) -> None:
        self._connection = connection
        self._prefix = prefix
        self._expected = expected
        rows = connection.query("SHOW GLOBAL STATUS LIKE 'Rpl\\_semi\\_sync%'", doing="look at semi-sync")
        self._status: Mapping[str, Row] = {row.text("Variable_name").lower(): row for row in rows}

    def name(self, name: str) -> str:
        """Return the name of a variable."""
        return f"{self._prefix}_{name}"

    def one_of(self, *names: str) -> tuple[str, str | None]:
        """Return the first of several variables that there is, and its value."""
        for name in names:
            value = self._connection.variable(self.name(name))
            if value is not None:
                return self.name(name), value
        return self.name(names[0]), None

    def number_of(self, *names: str) -> tuple[str, int | None]:
        """Return the first of several variables that are numbers."""
        name, value = self.one_of(*names)
        return name, None if value is None else self._connection.number(name)

    def number(self, name: str) -> int:
        """Return a number of the status, 0 where there is none."""
        row = self._status.get(self.name(name))
        return 0 if row is None else row.number("Value")

    @property
    def clients(self) -> int:
        """How many replicas may acknowledge."""
        return self.number("clients") + self._expected

    def status(self, name: str) -> str:
        """Return a text of the status."""
        row = self._status.get(self.name(name))
        return "" if row is None else row.text("Value")


def _findings(server: _Server) -> Iterator[CheckResult]:
    name, value = server.one_of("enabled")
    if value != "ON":
        yield error(
            f"{name} is {value}: no commit waits",
            f"once the reader is connected, as docs/semi-sync.md says: {advice_to_set(name, 'ON')}",
        )
        return
    yield ok(f"{name} is ON")
    yield _wait_point(server)
    yield _timeout(server)
    name, value = server.one_of("wait_no_replica", "wait_no_slave")
    if value == "ON":
        yield ok(f"{name} is ON: commits wait also while no replica is connected")
    else:
        yield error(
            f"{name} is {value}: while the reader is not connected nothing waits for it",
            advice_to_set(name, "ON"),
        )
    yield _clients(server)
    yield from _state(server)


def _wait_point(server: _Server) -> CheckResult:
    name, value = server.one_of("wait_point")
    if value == "AFTER_SYNC":
        return ok(f"{name} is AFTER_SYNC: nobody sees a change before it is acknowledged")
    if value is None:
        return error(
            f"the server has no {name}: it commits first and waits then, so that others see changes that may "
            "still be lost",
            "upgrade to MySQL 5.7 or MariaDB 10.1",
        )
    return error(
        f"{name} is {value}: the server commits first and waits then, so that others see changes that may "
        "still be lost",
        advice_to_set(name, "AFTER_SYNC"),
    )


def _timeout(server: _Server) -> CheckResult:
    name, value = server.number_of("timeout")
    timeout_ms = value or 0
    if timeout_ms >= _LEAST_TIMEOUT_MS:
        return ok(f"{name} is {timeout_ms} ms")
    return error(
        f"{name} is {timeout_ms} ms: after that the server continues without an acknowledgement",
        f"{advice_to_set(name, str(_LONGEST_TIMEOUT_MS))}; commits then wait as long as Kafka or the reader "
        "is away",
    )


def _clients(server: _Server) -> CheckResult:
    """Compare how many replicas may acknowledge with how many must."""
    clients = server.clients
    name, value = server.number_of("wait_for_replica_count", "wait_for_slave_count")
    needed = value or 1
    if clients == 0:
        return warning(
            "no semi-synchronous replica is connected: commits wait for one",
            "start the reader with MILLRACE_SEMI_SYNC=true",
        )
    if clients > needed:
        advice = "set rpl_semi_sync_replica_enabled (rpl_semi_sync_slave_enabled) OFF on the other replicas"
        if value is not None:
            advice += f", or {advice_to_set(name, str(clients))}, so that all must acknowledge"
        return error(
            f"{clients} replicas may acknowledge and {needed} is enough: another one may do so in place of "
            "the reader",
            advice,
        )
    if clients < needed:
        return warning(
            f"{name} is {needed} and {clients} are connected: commits wait for the others",
            f"connect them, or {advice_to_set(name, str(clients))}",
        )
    return ok(f"{clients} connected, and as many must acknowledge")


def _state(server: _Server) -> Iterator[CheckResult]:
    if server.status("status") == "OFF":
        yield error(
            "the server has switched to asynchronous replication",
            "look whether the reader is connected with MILLRACE_SEMI_SYNC=true and Kafka takes its records; "
            "the server switches back by itself once the reader has caught up",
        )
    without = server.number("no_tx")
    if without:
        yield warning(
            f"{without} commits since the server's start did not wait for an acknowledgement",
            "transactions of that time may have been on this server alone",
        )


def _prefix(connection: MysqlConnection) -> str | None:
    """Return what the names of the server's variables begin with; None where it cannot wait."""
    for prefix in ("rpl_semi_sync_source", "rpl_semi_sync_master"):
        if connection.variable(f"{prefix}_enabled") is not None:
            return prefix
    return None


def _install(connection: MysqlConnection) -> str:
    if connection.flavour is Flavour.MARIADB:
        return "run INSTALL SONAME 'semisync_master' (it is built in since MariaDB 10.3)"
    return (
        "run INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so' (before MySQL 8.0.26: "
        "rpl_semi_sync_master SONAME 'semisync_master.so')"
    )

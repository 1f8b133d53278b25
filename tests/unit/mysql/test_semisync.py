"""What is said of servers that do not wait for the reader, or wait for others as well, word for word."""

from typing import cast

import pytest

from millrace.finding import CheckResult, Level, error, ok, warning
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.errors import RefusedError
from millrace.mysql.semisync import require_semi_sync, semi_sync_findings
from tests.mysql_stub import StubConnection

SOURCE = "rpl_semi_sync_source"
IN_MYSQL = (
    "run INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so' (before MySQL 8.0.26: "
    "rpl_semi_sync_master SONAME 'semisync_master.so')"
)
IN_MARIADB = "run INSTALL SONAME 'semisync_master' (it is built in since MariaDB 10.3)"


class Server(StubConnection):
    """A server with these variables and this status, both without their prefix."""

    def __init__(self, variables: dict[str, str], status: dict[str, str] | None = None) -> None:
        rows = [
            {"Variable_name": f"Rpl_semi_sync_source_{name}", "Value": value}
            for name, value in (status or {}).items()
        ]
        named = {f"{SOURCE}_{name}": value for name, value in variables.items()}
        super().__init__(named, {"SHOW GLOBAL STATUS": rows})


def found(server: Server, *, connected: bool = True) -> list[CheckResult]:
    return semi_sync_findings(cast("MysqlConnection", server), connected=connected)


def change(name: str, value: str) -> str:
    return f"SET GLOBAL {SOURCE}_{name}={value}, and the same in the configuration"


@pytest.mark.parametrize(("flavour", "advice"), [(Flavour.MYSQL, IN_MYSQL), (Flavour.MARIADB, IN_MARIADB)])
def test_a_server_that_cannot_wait(flavour: Flavour, advice: str) -> None:
    server = Server({})
    server.flavour = flavour
    assert found(server) == [error("the server has no semi-synchronous replication", advice)]
    with pytest.raises(RefusedError) as caught:
        require_semi_sync(cast("MysqlConnection", server))
    assert str(caught.value) == (
        "db:3306: MILLRACE_SEMI_SYNC is set, and the server has no semi-synchronous replication; "
        f"{advice}, or unset MILLRACE_SEMI_SYNC"
    )


def test_it_is_off() -> None:
    (outcome,) = found(Server({"enabled": "OFF"}))
    assert (outcome.level, outcome.text) == (Level.ERROR, f"{SOURCE}_enabled is OFF: no commit waits")
    assert change("enabled", "ON") in outcome.advice


def test_all_that_may_be_wrong() -> None:
    server = Server(
        {"enabled": "ON", "wait_point": "AFTER_COMMIT", "timeout": "10000", "wait_for_replica_count": "1"},
        {"clients": "2", "status": "OFF", "no_tx": "5"},
    )
    assert found(server) == [
        ok(f"{SOURCE}_enabled is ON"),
        error(
            f"{SOURCE}_wait_point is AFTER_COMMIT: the server commits first and waits then, so that others "
            "see changes that may still be lost",
            change("wait_point", "'AFTER_SYNC'"),
        ),
        error(
            f"{SOURCE}_timeout is 10000 ms: after that the server continues without an acknowledgement",
            f"{change('timeout', '4294967295')}; commits then wait as long as Kafka or the reader is away",
        ),
        error(
            f"{SOURCE}_wait_no_replica is None: while the reader is not connected nothing waits for it",
            change("wait_no_replica", "ON"),
        ),
        error(
            "2 replicas may acknowledge and 1 is enough: another one may do so in place of the reader",
            "set rpl_semi_sync_replica_enabled (rpl_semi_sync_slave_enabled) OFF on the other replicas, or "
            f"{change('wait_for_replica_count', '2')}, so that all must acknowledge",
        ),
        error(
            "the server has switched to asynchronous replication",
            "look whether the reader is connected with MILLRACE_SEMI_SYNC=true and Kafka takes its records; "
            "the server switches back by itself once the reader has caught up",
        ),
        warning(
            "5 commits since the server's start did not wait for an acknowledgement",
            "transactions of that time may have been on this server alone",
        ),
    ]


def test_all_is_well() -> None:
    server = Server(
        {"enabled": "ON", "wait_point": "AFTER_SYNC", "timeout": "4294967295", "wait_no_replica": "ON"},
        {"clients": "1", "status": "ON"},
    )
    assert [finding.text for finding in found(server)] == [
        f"{SOURCE}_enabled is ON",
        f"{SOURCE}_wait_point is AFTER_SYNC: nobody sees a change before it is acknowledged",
        f"{SOURCE}_timeout is 4294967295 ms",
        f"{SOURCE}_wait_no_replica is ON: commits wait also while no replica is connected",
        "1 connected, and as many must acknowledge",
    ]
    server.variables[f"{SOURCE}_wait_for_replica_count"] = "3"
    del server.variables[f"{SOURCE}_wait_point"]
    old, few = found(server)[1], found(server)[-1]
    assert old == error(
        f"the server has no {SOURCE}_wait_point: it commits first and waits then, so that others see changes "
        "that may still be lost",
        "upgrade to MySQL 5.7 or MariaDB 10.1",
    )
    assert few == warning(
        f"{SOURCE}_wait_for_replica_count is 3 and 1 are connected: commits wait for the others",
        f"connect them, or {change('wait_for_replica_count', '1')}",
    )
    server.answers["SHOW GLOBAL STATUS"] = []
    assert found(server)[-1] == warning(
        "no semi-synchronous replica is connected: commits wait for one",
        "start the reader with MILLRACE_SEMI_SYNC=true",
    )

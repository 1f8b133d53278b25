"""Topologies of simulated servers, each with what is true of it: ``SOUND`` ones, and ``FAULTY`` ones.

A topology's number makes the ids and names of its servers, so that many are looked over at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from spark_jobs.loops.presence import AFTER, NO_ROWS, ONE_LOG, TRANSIT
from tests.unit.spark.members import Change, Server, ring, settle, traffic

MARIADB, MYSQL, OLD = "11.4.5-MariaDB-log", "8.0.36", "5.7.22-log"

Servers = Sequence[Server]


def three(tens: int, version: str = MARIADB, *, gtids: bool = True) -> Servers:
    names = enumerate(("a", "b", "c"), 1)
    return ring(*(Server(f"{name}{tens}", 10 * tens + n, version, gtids=gtids) for n, name in names))


def write_all(servers: Servers, start: int, seconds: int) -> None:
    """Write and replicate, one transaction after the other."""
    traffic(servers, start, seconds)
    settle(servers)


def skip_next(server: Server, upstream: Server) -> None:
    """Execute sql_slave_skip_counter = 1."""
    server.taken[upstream.name] = server.taken.get(upstream.name, 0) + 1


def fill(server: Server, change: Change) -> None:
    """Execute an empty transaction under the GTID of another one (SET gtid_next)."""
    server._append(replace(change, origin=server.server_id, time=change.time + 60, empty=True), 0)


FORMS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "XA": [("prepare", "x"), ("commit", "x"), ("prepare", "y"), ("rollback", "y"), ("prepare", "z")],
    "LOAD DATA": [("load", "1\tone\n2\ttwo\n"), ("load", "3\tthree\n")],
    "DDL": [("ddl", "ALTER TABLE log ADD COLUMN b INT")],
    "MIXED": [("statement", "UPDATE log SET n = 2"), ("statement", "UPDATE log SET n = 3 WHERE FALSE")],
}
"""Transactions as they are logged, with their text."""


def with_forms(form: str, version: str, *, gtids: bool) -> Callable[[int], Servers]:
    def make(tens: int) -> Servers:
        servers = three(tens, version, gtids=gtids)
        write_all(servers, 1100, 3)
        for number, (kind, text) in enumerate(FORMS[form]):
            servers[0].write(1104 + number, text, form=kind)
        write_all(servers, 1110, 3)
        return servers

    return make


def lacking(
    form: str, text: str, version: str, *, gtids: bool, empty: bool = False
) -> Callable[[int], Servers]:
    """The second member skips a transaction, or has an empty one in its place, and so has the third."""

    def make(tens: int) -> Servers:
        servers = a, b, _ = three(tens, version, gtids=gtids)
        write_all(servers, 1100, 3)
        a.write(1103, text, form="prepare" if form in {"commit", "rollback"} else "rows")
        settle(servers)
        if form in {"statement", "load"}:  # that the others log statements
            a.write(1104, "UPDATE log SET n = 0", form="statement")
            settle(servers)
        change = a.write(1104, text, form=form)
        if empty:
            fill(b, change)
        else:
            skip_next(b, a)
        a.write(1105, "UPDATE log SET n = 5", form="statement" if form in {"statement", "load"} else "rows")
        write_all(servers, 1110, 3)
        return servers

    return make


def rows_only(tens: int) -> Servers:
    """Statements at the origin, rows at the replicas: of one that changes nothing they have no rows."""
    servers = three(tens, MYSQL)
    servers[1].rows_only = servers[2].rows_only = True
    write_all(servers, 1100, 3)
    for number, (kind, text) in enumerate(FORMS["MIXED"]):
        servers[0].write(1104 + number, text, form=kind)
    write_all(servers, 1110, 3)
    return servers


def tagged(tens: int, *, skip: bool = False) -> Servers:
    servers = three(tens, "8.4.0")
    servers[0].tag = "batch"
    write_all(servers, 1100, 3)
    servers[0].write(1104, "once")
    if skip:
        skip_next(servers[1], servers[0])
    servers[0].tag = ""
    write_all(servers, 1110, 3)
    return servers


def another_uuid(tens: int) -> Servers:
    """The second member has started without its auto.cnf."""
    servers = three(tens, MYSQL)
    write_all(servers, 1100, 4)
    servers[1].uuid += 1 << 90
    servers[1].take_id(servers[1].server_id, 1109)
    write_all(servers, 1110, 4)
    return servers


def reset(version: str, *, gtids: bool, loses: bool = False) -> Callable[[int], Servers]:
    """RESET MASTER on the second member.

    With MySQL's GTIDs it assigns the same ones again, and the others skip what they have executed.
    """

    def make(tens: int) -> Servers:
        servers = _, b, c = three(tens, version, gtids=gtids)
        write_all(servers, 1100, 4)
        b.reset(1109)
        c.taken[b.name] = 0
        write_all(servers, 1110, 4)
        return servers

    return make


def quiet_reset(tens: int) -> Servers:
    """RESET MASTER on a replica that writes nothing itself."""
    a, b, c = servers = three(tens, MYSQL)
    a.upstream = []
    write_all([a], 1100, 4)
    settle(servers)
    b.reset(1109)
    c.taken[b.name] = 0
    write_all([a], 1110, 4)
    settle(servers)
    return servers


def rebuilt(version: str) -> Callable[[int], Servers]:
    """The third member was copied from the second one, and has its old id; what it wrote is everywhere."""

    def make(tens: int) -> Servers:
        servers = a, b, c = three(tens, version)
        write_all(servers, 1100, 5)
        c.reset(1110)
        c.uuid += 1 << 90
        c.received = max(one.seq_no or 0 for one in b.entries)
        a.taken[c.name], c.taken[b.name] = 0, len(b.entries)
        traffic([a, b], 1112, 2)
        settle(servers)
        write_all(servers, 1115, 4)
        return servers

    return make


def restored(tens: int) -> Servers:
    """The third member was restored from a backup, and drops what it wrote after it."""
    servers = a, _, c = three(tens)
    write_all(servers, 1100, 3)
    taken, last = dict(c.taken), max(one.seq_no or 0 for one in c.entries)
    write_all(servers, 1104, 3)
    c.reset(1110, [(server.server_id, last) for server in servers])
    c.taken, c.received = taken, 1000
    c.pull()
    a.taken[c.name] = len(c.entries)  # by GTID
    write_all(servers, 1115, 4)
    return servers


def domains(tens: int) -> Servers:
    """Two servers that replicate from each other, each with a GTID domain of its own."""
    servers = ring(
        Server(f"a{tens}", 10 * tens + 1, MARIADB, gtids=True, domain=1),
        Server(f"b{tens}", 10 * tens + 2, MARIADB, gtids=True, domain=2),
    )
    write_all(servers, 1100, 5)
    return servers


def renumbered(tens: int, *, skip: bool = False) -> Servers:
    """A member gets another gtid_domain_id."""
    servers = three(tens)
    write_all(servers, 1100, 4)
    servers[0].domain = 7
    write_all(servers, 1110, 2)
    if skip:
        servers[0].write(1113, "skipped")
        skip_next(servers[1], servers[0])
    write_all(servers, 1114, 4)
    return servers


def delayed(seconds: int) -> Callable[[int], Servers]:
    def make(tens: int) -> Servers:
        servers = three(tens)
        servers[2].delay = seconds
        for second in range(1100, 1100 + 2 * seconds, max(1, seconds // 20)):
            traffic(servers, second, 1)
            settle(servers, now=second)
        return servers

    return make


def chain_of_loops(version: str, *, gtids: bool) -> Callable[[int], Servers]:
    """The second of three replicates to and from both others."""

    def make(tens: int) -> Servers:
        servers = a, b, c = three(tens, version, gtids=gtids)
        a.upstream, b.upstream, c.upstream = [b], [a, c], [b]
        for second in range(1100, 1106):
            traffic(servers, second, 1)
        settle(servers)
        return servers

    return make


def diamond(tens: int) -> Servers:
    top, left, right, bottom = servers = [
        Server(f"{name}{tens}", 10 * tens + n, MYSQL, gtids=True)
        for n, name in enumerate(["top", "left", "right", "bottom"])
    ]
    left.upstream = right.upstream = [top]
    bottom.upstream = [left, right]
    write_all([top], 1100, 5)
    settle(servers)
    return servers


def cloned(tens: int) -> Servers:
    """Two primaries of a replica have one server_uuid: one was cloned with its auto.cnf."""
    a, b, c = servers = three(tens, MYSQL)
    a.upstream, b.upstream, c.upstream = [], [a, c], []
    c.uuid = a.uuid
    write_all(servers, 1100, 5)
    return servers


def without_domain(tens: int) -> Servers:
    """IGNORE_DOMAIN_IDS at the second member."""
    servers = three(tens)
    servers[1].leaves_out_domains = [5]
    write_all(servers, 1100, 3)
    for second in range(1104, 1108):
        servers[0].write(second, f"in domain 5, {second}", domain=5)
        traffic(servers, second, 1)
    settle(servers)
    return servers


def without_table(tens: int) -> Servers:
    """replicate_wild_ignore_table at the second member: MariaDB logs nothing of these transactions."""
    servers = three(tens)
    write_all(servers, 1100, 2)
    for second in range(1104, 1108):
        servers[0].write(second, f"keyed {second}", table="keyed")
        skip_next(servers[1], servers[0])
        write_all(servers, second, 1)
    return servers


def logs_no_updates(tens: int) -> Servers:
    servers = three(tens)
    servers[1].logs_updates = False
    write_all(servers, 1100, 5)
    return servers


SOUND: Final[Mapping[str, Callable[[int], Servers]]] = {
    **{
        f"{form} in {version} {'with' if gtids else 'without'} GTIDs": with_forms(form, version, gtids=gtids)
        for form in FORMS
        for version, gtids in [(MARIADB, True), (MYSQL, True), (MYSQL, False), (OLD, False)]
    },
    "tagged GTIDs": tagged,
    "another server_uuid": another_uuid,
    "RESET MASTER in MariaDB": reset(MARIADB, gtids=True),
    "RESET MASTER without GTIDs": reset(MYSQL, gtids=False),
    "RESET MASTER on a replica": quiet_reset,
    "a member rebuilt under its id in MariaDB": rebuilt(MARIADB),
    "a member rebuilt under its id in MySQL": rebuilt(MYSQL),
    "two domains": domains,
    "another domain": renumbered,
    "a chain of loops with GTIDs": chain_of_loops(MYSQL, gtids=True),
    "a diamond with GTIDs": diamond,
    "a delay of 20 s": delayed(20),
}

FAULTY: Final[Mapping[str, tuple[Callable[[int], Servers], set[str]]]] = {
    "XA COMMIT skipped, no GTIDs": (lacking("commit", "x", MYSQL, gtids=False), {"missing"}),
    "XA ROLLBACK skipped, MariaDB": (lacking("rollback", "x", MARIADB, gtids=True), {"missing"}),
    "XA COMMIT filled": (lacking("commit", "x", MYSQL, gtids=True, empty=True), {"skipped on purpose"}),
    "DDL filled": (
        lacking("ddl", "ALTER TABLE log ADD b INT", MYSQL, gtids=True, empty=True), {"skipped on purpose"},
    ),
    "a statement filled": (
        lacking("statement", "UPDATE log SET n = 1", MYSQL, gtids=True, empty=True), {"skipped on purpose"},
    ),
    "LOAD DATA skipped": (lacking("load", "1\tone", MYSQL, gtids=False), {"missing"}),
    "LOAD DATA filled": (lacking("load", "1\tone", MYSQL, gtids=True, empty=True), {"skipped on purpose"}),
    "a tagged GTID skipped": (lambda tens: tagged(tens, skip=True), {"missing"}),
    "RESET MASTER with GTIDs": (reset(MYSQL, gtids=True), {"GTID used twice"}),
    "restored, and read before that": (restored, {"restored member"}),
    "skipped in another domain": (lambda tens: renumbered(tens, skip=True), {"missing"}),
    "a delay of an hour": (delayed(3600), {AFTER}),
    "a chain of loops": (chain_of_loops(OLD, gtids=False), {"loop"}),
    "a cloned server_uuid": (cloned, {"GTID used twice", ONE_LOG}),
    "IGNORE_DOMAIN_IDS": (without_domain, {"filtered"}),
    "replicate_wild_ignore_table": (without_table, {"filtered"}),
    "no log_slave_updates": (logs_no_updates, {ONE_LOG}),
    "statements that are logged as rows, of which one changes none": (rows_only, {NO_ROWS}),
}  # fmt: skip
"""Each with what is said of it: kinds of incidents, and why what was not compared."""

NO_FAULT: Final = {TRANSIT}

"""Checks of the tables: those whose changes come with less than others'."""

import re
from collections.abc import Iterator
from typing import Final

from millrace.contract import Topics, metric_name
from millrace.doctor.server import Server
from millrace.finding import CheckResult, listed, ok, warning
from millrace.rowmapper.selection import Selection

_TRANSACTIONAL: Final = frozenset({"INNODB", "ROCKSDB", "TOKUDB", "NDBCLUSTER", "SEQUENCE"})
_SHOWN_TO_READERS: Final = (8,)
_CASCADES: Final = re.compile(
    r"^ +CONSTRAINT .* FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)", re.MULTILINE
)
_HARMLESS: Final = frozenset({"RESTRICT", "NO ACTION"})


def tables(server: Server) -> Iterator[CheckResult]:
    """Look whether any table can be seen."""
    if server.tables:
        yield ok(f"{len(server.tables)} can be seen")
    else:
        yield warning(
            "no table can be seen: there are none yet, or our user may not SELECT from them",
            f"GRANT SELECT ON *.* TO {server.connection.account}",
        )


def tables_without_key(server: Server) -> Iterator[CheckResult]:
    """Look for tables whose rows cannot be told apart."""
    names = [table.name for table in server.tables if not table.keyed]
    if names:
        yield warning(
            f"{len(names)} tables have neither a primary key nor a unique one without NULL, so that their "
            f"records have no key, cannot be compacted, and equal rows cannot be told apart: {listed(names)}",
            "give them a primary key, which applications must be ready for: "
            "docs/how-to/server.md#give-a-table-a-primary-key",
            names,
        )
    elif server.tables:
        yield ok("none")


def cascades(server: Server) -> Iterator[CheckResult]:
    """Look for foreign keys that change rows which are not logged.

    InnoDB carries out cascades by itself, below where the log is written: up to MySQL 9.5 and in MariaDB only
    the change of the parent row is in the log. From MySQL 9.6 on the server does it, and logs the child rows,
    unless it is started with innodb_native_foreign_keys.
    """
    native = server.variables.get("innodb_native_foreign_keys")
    if native == "OFF":
        yield ok("the server logs the rows that foreign keys change")
        return
    names = _cascading(server)
    if names:
        yield warning(
            f"rows of {len(names)} tables are changed by ON DELETE or ON UPDATE of foreign keys, which the "
            f"server does not log: {listed(names)}",
            "change these rows by statements instead"
            if native is None
            else "start the server without innodb_native_foreign_keys",
            names,
        )
    else:
        yield ok("no foreign key changes other rows")


def _cascading(server: Server) -> list[str]:
    """Name the tables whose rows a change of another table changes."""
    rows = server.connection.query(
        "SELECT CONSTRAINT_SCHEMA AS `database`, TABLE_NAME AS `table`, DELETE_RULE AS on_delete, "
        "UPDATE_RULE AS on_update FROM information_schema.REFERENTIAL_CONSTRAINTS",
        doing="look at foreign keys",
    )
    if rows or (not server.is_mariadb and server.version >= _SHOWN_TO_READERS):
        return sorted(
            {
                f"{row.text('database')}.{row.text('table')}"
                for row in rows
                if not {row.text("on_delete"), row.text("on_update")} <= _HARMLESS
            }
        )
    # To a user who may only SELECT these servers show no constraints there, but the statement.
    return [
        table.name
        for table in server.tables
        if table.engine.upper() == "INNODB"
        for row in server.connection.query(f"SHOW CREATE TABLE {table.quoted}", doing="look at a table")
        if _CASCADES.search(row.text("Create Table"))
    ]


def engines(server: Server) -> Iterator[CheckResult]:
    """Look for tables whose changes a rollback does not undo."""
    names = [
        f"{table.name} ({table.engine})"
        for table in server.tables
        if table.engine and table.engine.upper() not in _TRANSACTIONAL
    ]
    if names:
        yield warning(
            f"{len(names)} tables have an engine without transactions: a rollback does not undo their "
            f"changes, and after a crash table and log may differ: {listed(names)}",
            "ALTER TABLE … ENGINE=InnoDB, which makes writers of the table wait while it runs",
            names,
        )
    elif server.tables:
        yield ok("all have transactions")


def topic_names(server: Server) -> Iterator[CheckResult]:
    """Look for tables whose topics cannot exist beside each other, or beside those that exist.

    Kafka's metrics take '.' and '_' for the same, and it refuses a topic that would be the second with a
    name there.
    """
    known: dict[str, dict[str, list[str]]] = {}
    for name in server.topics:
        known.setdefault(metric_name(name), {})[name] = []
    topics = Topics(server.source)
    selection = None if server.rules is None else Selection(server.rules)
    for table in server.tables:
        if selection is None:
            topic = topics.table(*(server.topic_named(table.name) or (table.database, table.table)))
        elif selection.selects(table.database, table.table):
            topic = topics.table(*selection.topic_of(table.database, table.table))
        else:
            continue
        known.setdefault(metric_name(topic), {}).setdefault(topic, []).append(table.name)
    collisions = []
    for found in known.values():
        tables_of = [name for names in found.values() for name in names]
        if tables_of and (len(found) > 1 or len(tables_of) > 1):
            collisions.append(
                " and ".join([*sorted(tables_of), *sorted(t for t, n in found.items() if not n)])
            )
    if collisions:
        yield warning(
            "Kafka cannot have the topics of these beside each other, since they differ in '.' and '_' "
            f"alone: the rows of the second wait in the dead letter topic: {listed(sorted(collisions))}",
            "give one of them another topic with MILLRACE_TOPICS_NAMES",
            sorted(collisions),
        )
    elif server.tables:
        yield ok("each table can have its own")


CHECKS: Final = (tables, tables_without_key, cascades, engines, topic_names)
"""What can be seen, then what is special about it."""

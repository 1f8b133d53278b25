"""Checks of selection: whether its rules are about tables and columns that there are."""

from collections.abc import Iterator, Mapping
from typing import Final

from millrace.binlog.names import folded
from millrace.doctor.server import Server
from millrace.finding import CheckResult, error, listed, ok, warning
from millrace.rowmapper.settings import RowMapperSettings
from millrace.selection.rows import ConditionError, kind_of
from millrace.selection.tables import is_excluded, wild

Tables = Mapping[tuple[str, str], Mapping[str, str]]
"""Names of columns, with their types, by database and table."""


def selection(server: Server) -> Iterator[CheckResult]:
    """Look for rules of selection that are about nothing, and say what they do not hide."""
    settings = server.rules
    if settings is None:
        return
    excluded = settings.topics.excluded
    problems = [
        *(f"no table matches {pattern}" for pattern in excluded if not _excluded(pattern, server.columns)),
        *_table_problems(settings, server.columns),
        *_column_problems(settings, server.columns),
        *_row_problems(settings, server.columns),
    ]
    if problems:
        yield warning(
            f"{len(problems)} rules fit no table or column that our user can see: {listed(problems)}",
            "correct the rule, or let it be if its table comes later; see docs/selection.md",
            problems,
        )
    if excluded:
        yield from _raw_exclude(server)
    if settings.columns.rules or settings.rows.filter or settings.replicate.tables:
        yield ok(
            "selection acts on row topics alone: the raw topic, events, ddl and dead letters hold "
            "everything; let nobody read these who may not read the database"
        )


def _raw_exclude(server: Server) -> Iterator[CheckResult]:
    """Look for what MILLRACE_TOPICS_RAW_EXCLUDE cannot leave out."""
    if server.is_on("binlog_transaction_compression"):
        yield error(
            "MILLRACE_TOPICS_RAW_EXCLUDE cannot leave out rows of compressed transactions: the reader stops "
            "at the first",
            "SET PERSIST binlog_transaction_compression = OFF, in the sessions that set it, too",
        )
    if server.variables.get("binlog_format", "ROW") != "ROW":
        yield warning(
            "MILLRACE_TOPICS_RAW_EXCLUDE leaves out rows, and changes may be logged as statements, whose "
            "text stays",
            "SET GLOBAL binlog_format = ROW",
        )


def _excluded(pattern: str, tables: Tables) -> bool:
    return any(is_excluded((pattern,), database, table) for database, table in tables)


def _table_problems(settings: RowMapperSettings, tables: Tables) -> Iterator[str]:
    rules = settings.replicate.tables
    databases = {rules.database(database) for database, _ in tables}
    names = {f"{rules.database(database)}.{table}" for database, table in tables}
    for database in sorted(rules.do_db | rules.ignore_db):
        if database not in databases:
            yield f"there is no database {database}"
    for name in sorted(rules.do_table | rules.ignore_table):
        if name not in names:
            yield f"there is no table {name}"
    for pattern in (*rules.wild_do_table, *rules.wild_ignore_table):
        if not any(wild(pattern, name) for name in names):
            yield f"no table matches {pattern}"
    for database in rules.rewrite_db:
        if database not in {database for database, _ in tables}:
            yield f"there is no database {database} to rename"
    for pattern in settings.replicate.ignored_operations:
        if not _matching(pattern, tables):
            yield f"no table matches {pattern}"


def _column_problems(settings: RowMapperSettings, tables: Tables) -> Iterator[str]:
    rules = settings.columns.rules
    for pattern in rules.patterns():
        if not any(
            rules.matches(pattern, database, table, column)
            for (database, table), columns in tables.items()
            for column in columns
        ):
            yield f"no column matches {pattern}"


def _row_problems(settings: RowMapperSettings, tables: Tables) -> Iterator[str]:
    for pattern, condition in settings.rows.conditions.conditions:
        found = _matching(pattern, tables)
        if not found:
            yield f"no table matches {pattern}"
        for name in found:
            kinds = {folded(column): kind_of(type_) for column, type_ in tables[name].items()}
            try:
                condition.bind(kinds)
            except ConditionError as error:
                yield f"the condition on {'.'.join(name)}: {error}"
    for pattern, columns in settings.rows.key_columns.items():
        found = _matching(pattern, tables)
        if not found:
            yield f"no table matches {pattern}"
        for name in found:
            known = {folded(column) for column in tables[name]}
            for column in columns:
                if folded(column) not in known:
                    yield f"{'.'.join(name)} has no column {column} for its key"


def _matching(pattern: str, tables: Tables) -> list[tuple[str, str]]:
    return sorted(name for name in tables if wild(pattern, ".".join(name)))


CHECKS: Final = (selection,)
"""What the rules say of what there is."""

"""What the row mapper publishes: the rules of the settings, as the row mapper applies them.

Rules name tables as in the source, except those of ``replicate-…``, which use a rewritten database's new
name, as MySQL's do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from millrace.avro.column_values import ColumnValues
from millrace.binlog.columns import ABSENT, codec_of
from millrace.binlog.columns.column import Column
from millrace.binlog.columns.json_diffs import JsonDiffs
from millrace.binlog.errors import MissingStateError, UnsupportedError
from millrace.binlog.events.rows import RowsEvent, RowsOperation
from millrace.binlog.names import folded
from millrace.binlog.row_images import RowImages
from millrace.binlog.table import ResolvedTable
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.selection.columns import ColumnAction, column_pattern
from millrace.selection.rows import ColumnKind, Condition, ConditionError
from millrace.selection.tables import is_excluded, is_plain, wild


class RowFilter:
    """Which rows of a table are published, and as what."""

    def __init__(self, table: ResolvedTable, conditions: Sequence[Condition]) -> None:
        names = {folded(str(column.name)): column for column in table.columns}
        kinds = {name: codec_of(column).kind for name, column in names.items()}
        self._conditions = [condition.bind(kinds) for condition in conditions]
        used = frozenset().union(*(condition.columns for condition in conditions))
        self._columns = [(name, names[name].ordinal, codec_of(names[name])) for name in sorted(used)]
        self.ordinals = frozenset(ordinal for _, ordinal, _ in self._columns)
        """Those of the columns that decide."""

    def choose(self, images: RowImages, event: RowsEvent) -> list[RowsOperation | None]:
        """Say for each row of an event how it is published; None if it is not.

        An update that takes a row out of what is selected is a delete, one that takes it in an insert. Raises
        MissingStateError where an image lacks a column that decides.
        """
        chosen: list[RowsOperation | None] = []
        for before, after in images.payloads(event.rows):
            old = None if before is None else self._selects(before, None)
            new = None if after is None else self._selects(after, before)
            if old is None or new is None:
                chosen.append(event.operation if old or new else None)
            else:
                chosen.append(_CHOICES[old, new])
        return chosen

    def _selects(self, payloads: Sequence[Any], other: Sequence[Any] | None) -> bool:
        row: dict[str, str | bytes | None] = {}
        for name, ordinal, codec in self._columns:
            payload = payloads[ordinal]
            if payload is ABSENT and other is not None:  # what an image after an update lacks has not changed
                payload = other[ordinal]
            if payload is ABSENT:
                raise MissingStateError(
                    f"a row image lacks the column {name}, by which MILLRACE_ROWS_FILTER selects rows: set "
                    "binlog_row_image=FULL, or filter by columns of the key"
                )
            if payload is None:
                row[name] = None
            elif isinstance(payload, JsonDiffs):
                row[name] = ""  # of JSON it can only be asked whether it is NULL
            else:
                row[name] = codec.text(codec.decode(payload))
        return all(condition(row) for condition in self._conditions)


_CHOICES: Final = {
    (True, True): RowsOperation.UPDATE,
    (True, False): RowsOperation.DELETE,
    (False, True): RowsOperation.WRITE,
    (False, False): None,
}
_LETTERS: Final = {RowsOperation.WRITE: "c", RowsOperation.UPDATE: "u", RowsOperation.DELETE: "d"}

_LOG: Final = get_logger(__name__)


class Selection:
    """The rules of selection of one row mapper."""

    def __init__(self, settings: RowMapperSettings) -> None:
        self._tables = settings.replicate.tables
        self._excluded = settings.topics.excluded
        self._columns = settings.columns.rules
        self._avro = settings.rows.avro
        self._named = settings.topics.named
        self._keys = settings.rows.key_columns
        self._rows = settings.rows.conditions
        self._completed = settings.rows.completed_tables
        self._operations = settings.replicate.ignored_operations
        servers = settings.replicate.servers
        self.selects_server = servers.selects if servers else None
        """From server_id to whether changes made there are published; None where all are."""

    def selects(self, database: str, table: str) -> bool:
        """Say whether rows of a table are published."""
        return self._tables.selects(database, table) and not is_excluded(self._excluded, database, table)

    def may_select(self, database: str) -> bool:
        """Say whether rows of any table of a database may be published."""
        return self._tables.may_select(database)

    def keyed(self, table: ResolvedTable) -> ResolvedTable:
        """Return a table with the key that its records have; raises UnsupportedError for no such column."""
        name = f"{table.database}.{table.table}"
        for pattern, columns in self._keys.items():
            if wild(pattern, name):
                known = {folded(str(column.name)): column for column in table.columns}
                missing = [column for column in columns if folded(column) not in known]
                if missing:
                    raise UnsupportedError(f"MILLRACE_ROWS_KEYS: {name} has no column {missing[0]}")
                return replace(table, key_columns=tuple(known[folded(column)] for column in columns))
        return table

    def named(self, table: ResolvedTable) -> ResolvedTable:
        """Return a table with the name that its database has in row topics."""
        database = self._tables.database(table.database)
        return table if database == table.database else replace(table, database=database)

    def ignored_operations(self, database: str, table: str) -> str:
        """Return the letters of the operations of a table that are not published."""
        name = f"{database}.{table}"
        return "".join(letters for pattern, letters in self._operations.items() if wild(pattern, name))

    def publishes(self, database: str, table: str, operation: RowsOperation, server_id: int) -> bool:
        """Say whether rows of an event are published."""
        return (
            self.selects(database, table)
            and (self.selects_server is None or self.selects_server(server_id))
            and (not self._operations or _LETTERS[operation] not in self.ignored_operations(database, table))
        )

    def completes(self, database: str, table: str) -> bool:
        """Say whether columns that images of a table's rows lack are filled in."""
        name = f"{database}.{table}"
        return self.selects(database, table) and any(wild(pattern, name) for pattern in self._completed)

    def is_published_whole(self, database: str, table: str) -> bool:
        """Say whether each change of each row of a table is published."""
        return self.is_whole(database, table) and not self.filters(database, table)

    # -- for those who compare tables with their topics -----------------------------------------------

    def topic_of(self, database: str, table: str) -> tuple[str, str]:
        """Return the database and table in a topic's name."""
        return self._named(f"{database}.{table}") or (self._tables.database(database), table)

    def is_whole(self, database: str, table: str) -> bool:
        """Say whether the topic of a table gets all changes of the rows that it has."""
        return self.selects_server is None and not self.ignored_operations(database, table)

    def hidden(self, database: str, table: str, columns: Sequence[str]) -> list[str]:
        """Return the columns that a table's topic does not have as they are."""
        return [name for name in columns if self._columns.find(database, table, name) is not None]

    def filters(self, database: str, table: str) -> bool:
        """Say whether rows of a table are chosen by their values."""
        return bool(self._rows.of(database, table))

    def condition(
        self, database: str, table: str, kinds: Mapping[str, ColumnKind]
    ) -> Callable[[Mapping[str, str | bytes | None]], bool] | None:
        """Return what selects the rows of a table by the values that the server prints."""
        try:
            bound = [condition.bind(kinds) for condition in self._rows.of(database, table)]
        except ConditionError as error:
            raise UserError(
                f"MILLRACE_ROWS_FILTER does not fit {database}.{table}: {error}", ExitCode.SETTINGS
            ) from None
        return (lambda row: all(condition(row) for condition in bound)) if bound else None

    # -- for binding ----------------------------------------------------------------------------------

    def filter(self, table: ResolvedTable) -> RowFilter | None:
        """Return what chooses among the rows of a table; raises UnsupportedError where it does not fit it."""
        conditions = self._rows.of(table.database, table.table)
        if not conditions:
            return None
        name = f"{table.database}.{table.table}"
        _refuse_unnamed(table, "MILLRACE_ROWS_FILTER")
        try:
            return RowFilter(table, conditions)
        except ConditionError as error:
            raise UnsupportedError(f"MILLRACE_ROWS_FILTER does not fit {name}: {error}") from error

    def columns(self, table: ResolvedTable) -> dict[int, ColumnValues]:
        """Return what is written of the columns that have a rule, by ordinal.

        Raises UnsupportedError if a rule cannot be applied, so that nothing of the table is published.
        """
        if not self._columns or not self._columns.concern(table.database, table.table):
            return {}
        name = f"{table.database}.{table.table}"
        _refuse_unnamed(table, "MILLRACE_COLUMNS_…")
        self._warn_of_missing(table)
        ruled = {}
        keys = {column.ordinal for column in table.key_columns}
        for column in table.columns:
            rule = self._columns.find(table.database, table.table, str(column.name))
            if rule is None:
                continue
            if column.ordinal in keys and rule.action is not ColumnAction.HASH:
                raise UnsupportedError(
                    f"{name}.{column.name} is part of the key, so MILLRACE_COLUMNS_"
                    f"{rule.action.name} would give different rows one key: hash it"
                )
            ruled[column.ordinal] = ColumnValues.of(rule, codec_of(column).avro_type(self._avro))
        return ruled

    def without_rules(
        self, table: ResolvedTable, former: Mapping[int, Sequence[Column]]
    ) -> dict[int, list[Column]]:
        """Return the former columns whose values no rule changed or changes now."""

        def has_rule(name: str | None) -> bool:
            return self._columns.find(table.database, table.table, str(name)) is not None

        return {
            ordinal: [each for each in columns if not has_rule(each.name)]
            for ordinal, columns in former.items()
            if not has_rule(table.columns[ordinal].name)
        }

    def _warn_of_missing(self, table: ResolvedTable) -> None:
        """Say which columns the rules name that a table does not have, such as renamed ones."""
        name = f"{table.database}.{table.table}"
        names = {folded(str(column.name)) for column in table.columns}
        for pattern in self._columns.patterns():
            of_table, column = column_pattern(pattern)
            if (
                folded(of_table) == folded(name)
                and is_plain(column)
                and folded(column.replace("\\", "")) not in names
            ):
                _LOG.warning("a rule names a column that the table does not have", rule=pattern, table=name)


def _refuse_unnamed(table: ResolvedTable, setting: str) -> None:
    if table.schema_source == "positional":
        raise UnsupportedError(
            f"the names of the columns of {table.database}.{table.table} are not known, and {setting} has "
            "rules for some: set binlog_row_metadata=FULL, or let the reader see the table's definition"
        )

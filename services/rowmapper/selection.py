"""What the row mapper publishes: the rules of the settings, where the row mapper asks for them.

Rules name tables as the source has them, but for those of ``replicate-…``, which take a rewritten database's
new name, as MySQL's do.
"""

from dataclasses import replace
from typing import Final

from millrace.avro.column_values import ColumnValues
from millrace.binlog.columns import codec_of
from millrace.binlog.errors import UnsupportedError
from millrace.binlog.table import ResolvedTable
from millrace.runtime.logging import get_logger
from millrace.selection.columns import ColumnAction, column_pattern
from millrace.selection.tables import is_plain
from services.rowmapper.settings import RowMapperSettings

__all__ = ["Selection"]

_LOG: Final = get_logger(__name__)


class Selection:
    """The rules of selection of one row mapper."""

    def __init__(self, settings: RowMapperSettings) -> None:
        self._tables = settings.replicate.tables
        self.selects = self._tables.selects
        """From database and table to whether its rows are published."""
        self._columns = settings.columns.rules
        self._avro = settings.rows.avro

    def named(self, table: ResolvedTable) -> ResolvedTable:
        """Give a table with the name that its database has in row topics."""
        database = self._tables.database(table.database)
        return table if database == table.database else replace(table, database=database)

    def columns(self, table: ResolvedTable) -> dict[int, ColumnValues]:
        """Give what is written of the columns that have a rule, by ordinal.

        Raises UnsupportedError where a rule cannot be followed, so that nothing of the table is published.
        """
        if not self._columns or not self._columns.concern(table.database, table.table):
            return {}
        name = f"{table.database}.{table.table}"
        if table.schema_source == "positional":
            raise UnsupportedError(
                f"the names of the columns of {name} are not known, and MILLRACE_COLUMNS_… has rules for "
                "some: set binlog_row_metadata=FULL, or let the reader see the table's definition"
            )
        self._warn_of_missing(table)
        ruled = {}
        keys = {column.ordinal for column in table.key_columns}
        for column in table.columns:
            rule = self._columns.find(table.database, table.table, str(column.name))
            if rule is None:
                continue
            if column.ordinal in keys and rule.action is not ColumnAction.HASH:
                raise UnsupportedError(
                    f"{name}.{column.name} is part of the key, so that MILLRACE_COLUMNS_"
                    f"{rule.action.name} would give different rows one key: hash it"
                )
            ruled[column.ordinal] = ColumnValues.of(rule, codec_of(column).avro_type(self._avro))
        return ruled

    def _warn_of_missing(self, table: ResolvedTable) -> None:
        """Say which columns the rules name that a table does not have, such as renamed ones."""
        name = f"{table.database}.{table.table}"
        names = {str(column.name).casefold() for column in table.columns}
        for pattern in self._columns.patterns():
            of_table, column = column_pattern(pattern)
            if of_table == name and is_plain(column) and column.replace("\\", "").casefold() not in names:
                _LOG.warning("a rule names a column that the table does not have", rule=pattern, table=name)

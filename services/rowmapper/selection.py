"""What the row mapper publishes: the rules of the settings, where the row mapper asks for them.

Rules name tables as the source has them, but for those of ``replicate-…``, which take a rewritten database's
new name, as MySQL's do.
"""

from dataclasses import replace

from millrace.binlog.table import ResolvedTable
from services.rowmapper.settings import RowMapperSettings

__all__ = ["Selection"]


class Selection:
    """The rules of selection of one row mapper."""

    def __init__(self, settings: RowMapperSettings) -> None:
        self._tables = settings.replicate.tables
        self.selects = self._tables.selects
        """From database and table to whether its rows are published."""

    def named(self, table: ResolvedTable) -> ResolvedTable:
        """Give a table with the name that its database has in row topics."""
        database = self._tables.database(table.database)
        return table if database == table.database else replace(table, database=database)

"""Which tables are quarantined: from one event on, their rows wait in the dead letter topic."""

from collections import Counter
from collections.abc import Iterable

from millrace.avro.service_state import QuarantinedTable
from millrace.runtime.logging import get_logger

_LOG = get_logger(__name__)


class Quarantine:
    """The tables that are quarantined, as the state has them."""

    def __init__(self, tables: Iterable[QuarantinedTable] = ()) -> None:
        self._tables = {(table.database, table.table): table for table in tables}
        self.waiting: Counter[str] = Counter()
        """Dead letters that wait, by table, as far as they are counted."""

    @property
    def tables(self) -> tuple[QuarantinedTable, ...]:
        """All of them."""
        return tuple(self._tables.values())

    def add(self, table: QuarantinedTable) -> None:
        """Quarantine a table, if it is not already."""
        if self._tables.setdefault((table.database, table.table), table) is table and not table.is_paused:
            _LOG.error(
                "table quarantined: its rows go to the dead letter topic from now on",
                table=table.name,
                key=table.key,
                reason=table.error,
            )

    def find(self, database: str, table: str, transaction: int, offset: int) -> QuarantinedTable | None:
        """Return the entry of a table whose rows at ``offset``, in ``transaction``, wait."""
        entry = self._tables.get((database, table)) if self._tables else None
        if entry is None or (transaction, offset) < (entry.transaction, entry.offset):
            return None
        return entry

    def __contains__(self, name: tuple[str, str]) -> bool:
        return name in self._tables

    def update(self, table: QuarantinedTable) -> None:
        """Take note of how far a table was redriven."""
        self._tables[table.database, table.table] = table

    def release(self, database: str, table: str) -> None:
        """Let the rows of a table be mapped again from here on."""
        del self._tables[database, table]
        del self.waiting[f"{database}.{table}"]

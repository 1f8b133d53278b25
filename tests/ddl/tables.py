"""Definitions of tables as statements leave them, for tests that apply statements one after the other."""

from collections.abc import Iterator

from millrace.binlog.table import TableDefinition
from millrace.ddl import MISSING, State


class Tables(dict[tuple[str, str], State]):
    """The definitions before a statement."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], TableDefinition] = {}

    def state(self, database: str, table: str) -> State | None:
        return self.get((database, table))

    def later(self, database: str, table: str) -> State | None:
        return MISSING

    def was_read(self, database: str, table: str) -> bool:
        return False

    def last(self, database: str, table: str) -> TableDefinition | None:
        return self._last.get((database, table))

    def tables(self, database: str) -> Iterator[str]:
        return (table for (name, table), state in self.items() if name == database and state is not MISSING)

    def put(self, changes: dict[tuple[str, str], State]) -> None:
        self.update(changes)
        self._last |= {key: state for key, state in changes.items() if isinstance(state, TableDefinition)}

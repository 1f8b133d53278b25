"""Statements that changed rows of tables and were logged as text: they are counted by table.

Statements on temporary tables of sessions do not count: no row topic has their rows. The servers flag
statements that use a temporary table (``LOG_EVENT_THREAD_SPECIFIC_F``), but also those that read from one
into another table, or call CONNECTION_ID(). So temporary tables are followed from CREATE to DROP, or to the
server's next start. If the log does not show where one was created, it is known by its name: no other table
has it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from millrace.avro.service_state import ANY_TABLE, TemporaryTable
from millrace.binlog.statement import Statement, StatementKind

NON_ROW_CHANGE: Final = "NON_ROW_CHANGE"
TEMPORARY: Final = "TEMPORARY"
"""Kinds of the topic of DDL."""

_MOST_NAMES: Final = 200
_MOST_TEMPORARY: Final = 1000

_OPERATIONS: Final = {
    "INSERT": "cu",
    "UPDATE": "u",
    "DELETE": "d",
    "REPLACE": "cd",
    "LOAD": "cd",
    "CREATE": "c",
}

Name = tuple[str, str]
Session = tuple[int, int]
"""``server_id`` and connection id."""


def operations(statement: Statement, text: bytes) -> str:
    """Return the letters of the operations that a statement may do."""
    if statement.verb == "INSERT" and b"DUPLICATE" not in text.upper():
        return "c"
    return _OPERATIONS.get(statement.verb, "cud")


class NonRowChanges:
    """Numbers of such statements by table, and the temporary tables of sessions.

    The first :data:`_MOST_NAMES` tables are counted by name, all others together under :data:`ANY_TABLE`.
    """

    def __init__(
        self, counts: Mapping[str, int] | None = None, temporary: Iterable[TemporaryTable] = ()
    ) -> None:
        self.counts = dict(counts or {})
        self._temporary = dict.fromkeys(temporary)

    @property
    def temporary(self) -> tuple[TemporaryTable, ...]:
        """The temporary tables of sessions, the oldest first."""
        return tuple(self._temporary)

    def count(self, names: Iterable[str]) -> None:
        """Count a statement for each table that it changed."""
        for name in names:
            key = name if name in self.counts or len(self.counts) < _MOST_NAMES else ANY_TABLE
            self.counts[key] = self.counts.get(key, 0) + 1

    def is_temporary(self, session: Session, name: Name) -> bool:
        """Return whether a name stands for a temporary table of a session, as far as the log told."""
        return TemporaryTable(*session, *name) in self._temporary

    def follow(self, statement: Statement, session: Session, database: str) -> None:
        """Take note of a statement on temporary tables alone."""
        if statement.kind is not StatementKind.DDL:
            return
        names = [(name.database or database, name.table) for name in statement.tables]
        pairs = [
            ((old.database or database, old.table), (new.database or database, new.table))
            for old, new in statement.renames
        ]
        if statement.verb == "CREATE":
            self._add(session, names[0])
        elif statement.verb == "DROP" and statement.object_type == "TABLE":
            for name in names:
                self._temporary.pop(TemporaryTable(*session, *name), None)
        for old, new in pairs:
            self._temporary.pop(TemporaryTable(*session, *old), None)
            self._add(session, new)

    def _add(self, session: Session, name: Name) -> None:
        self._temporary[TemporaryTable(*session, *name)] = None
        if len(self._temporary) > _MOST_TEMPORARY:
            del self._temporary[next(iter(self._temporary))]

    def restart(self) -> None:
        """Forget the temporary tables: the server was started again."""
        self._temporary.clear()

"""Which columns are dropped, masked, hashed or truncated in row topics.

A rule is a pattern ``database.table.column``; what is in front of its last point is a pattern of tables.
Names are compared without regard to case: those of columns as the server does, those of tables so that no
rule misses one on a server that stores their names in lower case. Where several rules match, the one counts
that shows least: drop, mask, hash, truncate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from millrace.binlog.names import folded
from millrace.selection.tables import wild


class ColumnAction(Enum):
    """What is done to a column, the one that shows least first."""

    DROP = "drop"
    MASK = "mask"
    HASH = "hash"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What is done to one column: ``text`` is its mask, ``length`` how many characters are left of it."""

    action: ColumnAction
    text: str = ""
    length: int = 0
    salt: bytes = field(default=b"", repr=False)


def column_pattern(pattern: str) -> tuple[str, str]:
    """Cut a pattern into that of its tables and that of its columns; raises ValueError."""
    table, _, column = pattern.rpartition(".")
    database, _, name = table.partition(".")
    if not (database and name and column):
        raise ValueError(f"{pattern!r} is not DATABASE.TABLE.COLUMN")
    return table, column


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """The rules of all columns, as patterns."""

    drop: tuple[str, ...] = ()
    mask: Mapping[str, str] = field(default_factory=dict)
    hash: tuple[str, ...] = ()
    truncate: Mapping[str, int] = field(default_factory=dict)
    salt: bytes = field(default=b"", repr=False)

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return bool(self.drop or self.mask or self.hash or self.truncate)

    def patterns(self) -> list[str]:
        """Return the patterns of all rules."""
        return [*self.drop, *self.mask, *self.hash, *self.truncate]

    def concern(self, database: str, table: str) -> bool:
        """Say whether a rule may be about a column of this table."""
        name = folded(f"{database}.{table}")
        return any(wild(folded(column_pattern(pattern)[0]), name) for pattern in self.patterns())

    @staticmethod
    def matches(pattern: str, database: str, table: str, column: str) -> bool:
        """Say whether a rule's pattern is about a column."""
        return _first([pattern], f"{database}.{table}", column) is not None

    def find(self, database: str, table: str, column: str) -> ColumnRule | None:
        """Return the rule for a column."""
        name = f"{database}.{table}"
        if _first(self.drop, name, column) is not None:
            return ColumnRule(ColumnAction.DROP)
        pattern = _first(self.mask, name, column)
        if pattern is not None:
            return ColumnRule(ColumnAction.MASK, text=self.mask[pattern])
        if _first(self.hash, name, column) is not None:
            return ColumnRule(ColumnAction.HASH, salt=self.salt)
        pattern = _first(self.truncate, name, column)
        if pattern is not None:
            return ColumnRule(ColumnAction.TRUNCATE, length=self.truncate[pattern])
        return None


def _first(patterns: Iterable[str], table: str, column: str) -> str | None:
    for pattern in patterns:
        tables, columns = column_pattern(pattern)
        if wild(folded(tables), folded(table)) and wild(folded(columns), folded(column)):
            return pattern
    return None

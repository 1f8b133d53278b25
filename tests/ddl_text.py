"""Definitions of tables as one line of text, to compare and to look at: what the row mapper uses of them."""

from millrace.binlog.table import ColumnDefinition, IndexDefinition, TableDefinition
from millrace.ddl import MISSING, State, Unknown

__all__ = ["brief"]


def brief(state: State) -> str:
    """Describe what is known of a table."""
    if isinstance(state, Unknown):
        return f"unknown: {state.reason}"
    if not isinstance(state, TableDefinition):
        assert state is MISSING
        return "missing"
    unique = [_index(index) for index in state.indexes if index.unique]
    return "; ".join([f"[{_charset(state.charset)}]", *map(_column, state.columns), *unique])


def _charset(name: str | None) -> str:
    return {None: "", "utf8": "utf8mb3"}.get(name, name or "")


def _column(column: ColumnDefinition) -> str:
    parts = [column.name, column.column_type, _charset(column.charset)]
    parts += [] if column.nullable else ["NOT NULL"]
    parts += [column.generated] if column.generated else []
    parts += ["HIDDEN"] if column.hidden else []
    if column.members is not None:
        parts.append(ascii(list(column.members)))
    if column.key_position is not None:
        parts.append(f"KEY {column.key_position}" + f"({column.key_prefix})" * bool(column.key_prefix))
    assert column.unsigned == (" unsigned" in column.column_type and column.members is None)
    return " ".join(filter(None, parts))


def _index(index: IndexDefinition) -> str:
    parts = " ".join(f"{name}({prefix})" for name, prefix in index.parts)
    return f"UNIQUE {index.name} {parts}" + " HASHED" * index.hashed

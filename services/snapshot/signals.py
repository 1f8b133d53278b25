"""Signals: records of ``{source}.signals`` that ask for a snapshot of tables, as Debezium has them.

A value is JSON such as ``{"type": "execute-snapshot", "data": {"data-collections": ["shop.orders"]}}``. Names
are those of tables, in which ``*`` stands for any characters. Conditions of rows are not taken from a record:
whoever may write the topic could then have the server run any expression.
"""

import json
from typing import Any, Final

_EXECUTE: Final = "execute-snapshot"
_FORM: Final = f'{{"type": "{_EXECUTE}", "data": {{"data-collections": ["DATABASE.TABLE"]}}}}'
_MOST: Final = 1000


def signalled_tables(value: bytes | None) -> list[str]:
    """Return the tables that a signal names; raise ValueError, which says why, where it is to be left out."""
    try:
        found: Any = json.loads(value or b"")
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON: expected {_FORM}") from None
    data = found.get("data", {}) if isinstance(found, dict) else None
    if not isinstance(data, dict):
        raise ValueError(f"expected {_FORM}")  # noqa: TRY004 - it is the value of a record
    if found.get("type") != _EXECUTE:
        raise ValueError(f"its type is not known here: expected {_FORM}")
    if str(data.get("type", "incremental")).lower() != "incremental":
        raise ValueError("only incremental snapshots are taken: leave the type out of data")
    if data.get("additional-conditions") or data.get("additional-condition"):
        raise ValueError("it has conditions: set MILLRACE_SNAPSHOT_WHERE, or use 'millrace snapshot --where'")
    tables = data.get("data-collections")
    if not isinstance(tables, list) or not 0 < len(tables) <= _MOST:
        raise ValueError(f"expected 1 to {_MOST} tables: {_FORM}")
    if not all(isinstance(table, str) and table.count(".") and "," not in table for table in tables):
        raise ValueError(f"expected tables as DATABASE.TABLE, without commas: {_FORM}")
    return tables

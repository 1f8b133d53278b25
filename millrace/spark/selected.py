"""Which changes a query reads: the options that select some, exactly.

Spark 4.1 can hand its filters to a source in Python (``spark.sql.python.filterPushdown.enabled``), but what
one query got by them it keeps for the next query of the same DataFrame, which then lacks rows. So the source
takes no filters of Spark; options say what need not be decoded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.binlog_command.criteria import Gtids, TablePattern
from millrace.contract import unescape_name

OPERATIONS: Final = frozenset("cudt")
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_$")
"""Characters that mean themselves in the settings of a row mapper, or are escaped here."""


@dataclass(frozen=True, slots=True)
class Selected:
    """What is asked for; None and an empty tuple ask for all. Times are in µs since 1970."""

    tables: tuple[TablePattern, ...] = ()
    operations: frozenset[str] | None = None
    server_ids: frozenset[int] | None = None
    gtids: Gtids | None = None
    after_us: int | None = None
    before_us: int | None = None

    def replicate(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings by which the row mapper need not decode what is not asked for.

        It may decode more; a user's own settings are kept.
        """
        if any(given.values()):
            return {}
        found = {}
        patterns = [_like(one) for one in self.tables]
        if patterns and None not in patterns:
            found["wild_do_table"] = ",".join(filter(None, patterns))
        if self.server_ids is not None:
            found["do_server_ids"] = ",".join(map(str, self.server_ids))
        return found

    def has_table(self, namespace: str) -> bool:
        """Return whether changes of a table are asked for, by the namespace of its rows' schema."""
        _, database, table = map(unescape_name, namespace.split("."))
        return not self.tables or any(one.matches(database, table) for one in self.tables)

    def passing(self, rows: pa.RecordBatch, commit_times: Callable[[], pa.Array]) -> pa.Array | None:
        """Return which changes of a batch are asked for; None where all are."""
        source = rows.column("source")
        masks = []
        if self.operations is not None:
            masks.append(_of_texts(rows.column("op"), self.operations.__contains__))
        if self.server_ids is not None:
            masks.append(pc.is_in(source.field("server_id"), pa.array(sorted(self.server_ids), pa.int64())))
        if self.gtids is not None:
            masks.append(_of_texts(source.field("gtid"), self.gtids.__contains__))
        if self.after_us is not None:
            masks.append(pc.greater(commit_times().view(pa.int64()), self.after_us))
        if self.before_us is not None:
            masks.append(pc.less(commit_times().view(pa.int64()), self.before_us))
        return reduce(pc.and_, masks) if masks else None


ALL: Final = Selected()


def _of_texts(column: pa.DictionaryArray, wanted: Callable[[str], bool]) -> pa.Array:
    """Return which texts are wanted; each distinct one is looked at once, and null is not wanted."""
    if column.null_count == len(column):  # its dictionary has an empty text, which is no value
        return pa.array([False] * len(column))
    found = pa.array(map(wanted, column.dictionary.to_pylist()), pa.bool_())
    return pc.fill_null(found.take(column.indices), False)


def _like(pattern: TablePattern) -> str | None:
    """Write a pattern as the row mapper takes it; None where characters of it mean more there."""
    database, dot, table = pattern.text.rpartition(".")
    if not _PLAIN.union("*?").issuperset(database + table):
        return None
    text = f"{database if dot else '*'}.{table}".replace("_", "\\_")
    return text.replace("*", "%").replace("?", "_")

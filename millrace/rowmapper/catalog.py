"""The definitions of ``{source}.catalog``, and which of them holds for an event."""

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from typing import Final, NamedTuple

from millrace.avro.catalog import CatalogEntry
from millrace.binlog.table import TableDefinition

__all__ = ["Catalog", "Found", "Position"]

_NUMBER: Final = re.compile(r"\d+$")


class Position(NamedTuple):
    """A place in the logs of a source, ordered as the logs are: by epoch, number of the file, offset."""

    epoch: int
    log_file: str
    position: int

    def order(self) -> tuple[int, int, str, int]:
        """Return what sorts places; ``bin.1000000`` comes after ``bin.999999``."""
        number = _NUMBER.search(self.log_file)
        return self.epoch, int(number.group()) if number else 0, self.log_file, self.position


class Found(NamedTuple):
    """A definition; ``later`` where it was read only after the event for which it was asked."""

    definition: TableDefinition
    later: bool


class Catalog:
    """All definitions that are known, per table in the order of the log."""

    def __init__(self) -> None:
        self._entries: defaultdict[tuple[str, str], list[CatalogEntry]] = defaultdict(list)

    def add(self, entry: CatalogEntry) -> None:
        """Take a definition.

        The reader writes all of them at each start, each time for a later place in the log. Of readings that
        say the same the first and the last are kept: what holds is the same between them.
        """
        entries = self._entries[entry.definition.database, entry.definition.table]
        at = bisect_right(entries, _order(entry), key=_order)
        if at and entries[at - 1].definition == entry.definition:
            entry = replace(entry, definition=entries[at - 1].definition)
        entries.insert(at, entry)
        if at == len(entries) - 1 and at > 1 and entries[at - 2].definition is entry.definition:
            del entries[at - 1]

    def find(self, database: str, table: str, place: Position) -> Found | None:
        """Return the last definition read at or before ``place``, else the first one read after it."""
        entries = self._entries.get((database, table))
        if not entries:
            return None
        index = bisect_right(entries, place.order(), key=_order)
        return Found(entries[max(index - 1, 0)].definition, later=index == 0)

    def since(self, database: str, table: str, place: Position) -> list[Found]:
        """Return what :meth:`find` returns, and all definitions that were read later."""
        entries = self._entries.get((database, table), ())
        index = bisect_right(entries, place.order(), key=_order)
        first = max(index - 1, 0)
        return [Found(entry.definition, later=at >= index) for at, entry in enumerate(entries[first:], first)]


def _order(entry: CatalogEntry) -> tuple[int, int, str, int]:
    return Position(entry.epoch, entry.log_file, entry.position).order()

"""Which tables have row topics: the rules of a replica (``replicate-do-db`` and the like) for row events.

Specified in "How Servers Evaluate Replication Filtering Rules" of MySQL's manual; for row events the database
is that of the table, never the session's. The manual says "do before ignore" of tables. The servers do it in
this order (``Rpl_filter::tables_ok`` in ``sql/rpl_filter.cc``), and the first rule that matches decides::

    rewrite-db                              the database has another name from here on
    do-db, else ignore-db                   a database that does not pass is ignored, whatever follows
    do-table → ignore-table → wild-do-table → wild-ignore-table
    no match                                ignored if there is a do-table or wild-do-table, else replicated

A server's own databases are an exception: without a rule that names them they are left out, as nothing in
them is a user's (heartbeats of a hosted server, accounts).

Names compare as on a server with ``lower_case_table_names=0``: exactly, in patterns too.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Final

from millrace.binlog.names import folded
from millrace.wildcards import Wildcards

SYSTEM_DATABASES: Final = frozenset(("information_schema", "mysql", "performance_schema", "sys"))
"""Databases of the server itself: nothing in them is a user's."""


@cache
def _wildcards(pattern: str) -> Wildcards:
    return Wildcards(pattern)


def wild(pattern: str, text: str) -> bool:
    r"""Return whether a pattern with ``%``, ``_`` and ``\`` in front of either matches all of ``text``."""
    return _wildcards(pattern).matches(text)


def is_plain(pattern: str) -> bool:
    """Say whether a pattern matches one name only."""
    return not re.search(r"(?<!\\)[%_]", pattern)


@lru_cache(maxsize=10_000)
def is_excluded(patterns: tuple[str, ...], database: str, table: str) -> bool:
    """Say whether ``MILLRACE_TOPICS_RAW_EXCLUDE`` names a table.

    Case does not count: for what must not leave the server, one name too many is better than one too few.
    """
    name = folded(f"{database}.{table}")
    return any(wild(folded(pattern), name) for pattern in patterns)


@dataclass(frozen=True)
class TableRules:
    """The rules of ``replicate-…``, named as MySQL names them; tables and patterns are ``database.table``."""

    do_db: frozenset[str] = frozenset()
    ignore_db: frozenset[str] = frozenset()
    do_table: frozenset[str] = frozenset()
    ignore_table: frozenset[str] = frozenset()
    wild_do_table: tuple[str, ...] = ()
    wild_ignore_table: tuple[str, ...] = ()
    rewrite_db: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_known", lru_cache(maxsize=10_000)(self._decide))

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return any(getattr(self, name) for name in self.__dataclass_fields__)

    def database(self, database: str) -> str:
        """Return the name that a database has in row topics."""
        return self.rewrite_db.get(database, database)

    def selects(self, database: str, table: str) -> bool:
        """Say whether rows of a table of the source are published."""
        decide = self.__dict__["_known"]
        chosen: bool = decide(database, table)
        return chosen

    def may_select(self, database: str) -> bool:
        """Say whether rows of any table of a database of the source may be published."""
        database = self.database(database)
        if self.do_db:
            return database in self.do_db
        return database not in self.ignore_db and database not in SYSTEM_DATABASES

    def _decide(self, database: str, table: str) -> bool:
        database = self.database(database)
        if database not in self.do_db if self.do_db else database in self.ignore_db:
            return False
        name = f"{database}.{table}"
        if name in self.do_table:
            return True
        if name in self.ignore_table:
            return False
        if _matches(self.wild_do_table, name):
            return True
        if database in SYSTEM_DATABASES and not self.do_db:
            return False
        return not (_matches(self.wild_ignore_table, name) or self.do_table or self.wild_do_table)


def _matches(patterns: Iterable[str], name: str) -> bool:
    return any(wild(pattern, name) for pattern in patterns)

"""Definitions from a file of SQL, such as what ``mysqldump --no-data --databases`` writes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from millrace.binlog.names import unquoted_name
from millrace.ddl.effects import MISSING, State, TableKey, apply
from millrace.ddl.tokens import Session

_PIECE: Final = re.compile(
    r"""
      `(?:[^`]++|``)*+` | '(?:[^'\\]++|\\.|'')*+' | "(?:[^"\\]++|\\.|"")*+"
    | \#[^\n]* | --(?=\s)[^\n]* | /\*(?!M?!).*?\*/ | (?P<end> ; ) | .
    """,
    re.VERBOSE | re.DOTALL,
)
_USE: Final = re.compile(r"\s*USE\s+(`(?:[^`]|``)+`|[^\s`]+)\s*", re.IGNORECASE)


class _Definitions(dict[TableKey, State]):
    """What is known so far."""

    def state(self, database: str, table: str) -> State | None:
        return self.get((database, table))

    def later(self, database: str, table: str) -> State:  # noqa: ARG002 - as it is asked
        return MISSING

    def was_read(self, database: str, table: str) -> bool:  # noqa: ARG002 - as it is asked
        return False

    def last(self, database: str, table: str) -> None:
        """Return nothing: there are no earlier records."""

    def tables(self, database: str) -> list[str]:
        return [table for (name, table), state in self.items() if name == database and state is not MISSING]


def definitions(text: str) -> dict[TableKey, State]:
    """Return the definitions of tables and databases after all statements of ``text``."""
    session, known = Session(), _Definitions()
    for statement in _statements(text):
        use = _USE.fullmatch(statement)
        if use is not None:
            name = use[1]
            database = unquoted_name(name) if name.startswith("`") else name
            session = replace(session, database=database)
        else:
            known.update(apply(statement, session, known))
    return dict(known)


def _statements(text: str) -> Iterator[str]:
    start = 0
    for piece in _PIECE.finditer(text):
        if piece["end"] is not None:
            yield text[start : piece.start()]
            start = piece.end()
    if text[start:].strip():
        yield text[start:]

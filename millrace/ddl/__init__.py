"""DDL statements of MySQL and MariaDB: from the definitions before one to those after it.

Sans I/O: a statement's text, the session as its QUERY event has it and the definitions known before go in,
and the definitions that it changes come out. A statement that is not understood makes unknown what it
names; nothing is guessed.
"""

from millrace.ddl.effects import MISSING, Known, Missing, State, Unknown, altered, apply
from millrace.ddl.script import definitions
from millrace.ddl.tokens import MAX_STATEMENT, NotUnderstoodError, Server, Session

__all__ = [
    "MAX_STATEMENT",
    "MISSING",
    "Known",
    "Missing",
    "NotUnderstoodError",
    "Server",
    "Session",
    "State",
    "Unknown",
    "altered",
    "apply",
    "definitions",
]

"""DDL statements of MySQL and MariaDB: from the definitions before one to those after it.

Sans I/O: the input is a statement's text, the session as in its QUERY event and the known definitions, the
output the definitions that it changes. If a statement is not understood, the definitions that it names become
unknown; nothing is guessed.
"""

from millrace.ddl.effects import MISSING, UNNAMED, Known, Missing, State, Unknown, altered, apply
from millrace.ddl.script import definitions
from millrace.ddl.tokens import MAX_STATEMENT, NotUnderstoodError, Server, Session

__all__ = [
    "MAX_STATEMENT",
    "MISSING",
    "UNNAMED",
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

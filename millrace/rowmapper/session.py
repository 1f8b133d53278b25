"""What the meaning of a DDL statement depends on, from the QUERY event that has it."""

from dataclasses import replace
from typing import Final

from millrace.binlog.columns.charsets import charset, charset_of_collation
from millrace.binlog.errors import BinlogError
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.fields import decode_text
from millrace.binlog.statement import Statement
from millrace.binlog.types import HeaderFlag
from millrace.ddl import MAX_STATEMENT, Server, Session
from millrace.rowmapper.event_reader import LargeEvent

_EXPLICIT_TIMESTAMPS: Final = 1 << 24
"""MariaDB's flags2: explicit_defaults_for_timestamp is on."""


_BEGINNING: Final = 4096
"""Bytes of a statement that is too long, in which its tables are looked for."""

DEFINING: Final = {"CREATE", "ALTER", "RENAME", "DROP"}
"""Statements that make, change or drop definitions of tables."""


def defining_statement(
    event: StatementEvent, server_version: str | None, large: LargeEvent | None, flags: int = 0
) -> tuple[str, Session, bool]:
    """Return the text of a statement, one of :data:`DEFINING`, its session, and whether the text is whole.

    ``large`` has the statement where the event has only its beginning; ``flags`` are those of its header.
    Raises BinlogError where it cannot be unpacked.
    """
    query, size = event.query, len(event.query)
    if large is not None:
        size = large.field_size
        query = b"".join(large.field(min(size, MAX_STATEMENT)))
    text, whole = statement_text(event, query if size <= MAX_STATEMENT else query[:_BEGINNING])
    session = replace(
        session_of(event, server_version),
        failed=event.error_code != 0,
        uses_temporary=bool(flags & HeaderFlag.THREAD_SPECIFIC_F),
    )
    return text, session, whole and size <= MAX_STATEMENT


def is_on_temporary_table(statement: Statement, flags: int) -> bool:
    """Return whether DDL changes a temporary table: by its text, or by the ``flags`` of its event.

    In a session that has temporary tables, CREATE TABLE and DROP TABLE of permanent ones have the flag too.
    """
    if statement.temporary:
        return True
    whole_table = statement.object_type == "TABLE" and statement.verb in ("CREATE", "DROP")
    return bool(flags & HeaderFlag.THREAD_SPECIFIC_F) and not whole_table


def session_of(event: StatementEvent, server_version: str | None) -> Session:
    """Return the session of a statement."""
    variables, server = event.status_variables, Server.parse(server_version)
    if variables is None:
        return Session(event.database, server=server)
    explicit: int | None = variables.explicit_defaults_for_timestamp
    if server.mariadb and server.version >= (10, 10) and variables.flags2 is not None:
        explicit = variables.flags2 & _EXPLICIT_TIMESTAMPS
    return Session(
        event.database,
        variables.sql_mode or 0,
        server,
        None if variables.charset is None else _charset(variables.charset.server),
        timestamp_not_null=None if explicit is None else not explicit,
        # The transaction of the dictionary, in which nothing was created where there is none: tried on MySQL
        # 8.0.15 (not with MyISAM) and MariaDB 10.11.5 and 11.4.5 (tables only).
        has_created=variables.ddl_logged_with_xid is not None or variables.xid is not None,
    )


def statement_text(event: StatementEvent, query: bytes) -> tuple[str, bool]:
    """Return the text of a statement, ``query`` in bytes, and whether it is what the server has read."""
    variables = event.status_variables
    client = None
    if variables is not None and variables.charset is not None:
        client = _charset(variables.charset.client)
    if query.isascii() and client not in ("ucs2", "utf16", "utf16le", "utf32"):
        return query.decode("ascii"), True
    try:
        return charset(client or "").decode(query), True
    except (BinlogError, UnicodeError):
        return decode_text(query), False


def _charset(collation: int) -> str | None:
    try:
        return charset_of_collation(collation)
    except BinlogError:
        return None

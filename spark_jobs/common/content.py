"""What a transaction does, as hashes that are equal wherever it is logged.

Table ids, positions, checksums, execution times and transaction numbers change with every server and lap;
they are left out. Rows are compared by database, table, operation and decoded values, statements by
database, text and the variables set before them; LOAD DATA by its text without the file's name, and by the
file. The digests of the parts are added up, so the result does
not depend on how the rows of a transaction are distributed over events.
"""

from hashlib import blake2b
from typing import Any, Final

from millrace.binlog.declaration import Event
from millrace.binlog.events import (
    ExecuteLoadQueryEvent,
    IntvarEvent,
    RandEvent,
    UserVarEvent,
)
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.types import EventType

DIGESTS: Final = 1 << 61
"""Digests, and sums of them, are below this number."""

CONTENT_TYPES: Final = frozenset(
    {
        EventType.QUERY_EVENT,
        EventType.QUERY_COMPRESSED_EVENT,
        EventType.EXECUTE_LOAD_QUERY_EVENT,
        EventType.BEGIN_LOAD_QUERY_EVENT,
        EventType.APPEND_BLOCK_EVENT,
        EventType.INTVAR_EVENT,
        EventType.RAND_EVENT,
        EventType.USER_VAR_EVENT,
    }
)
"""Types of events that say what a statement does; rows events are the other ones that do something."""

_FRAME: Final = frozenset({b"BEGIN", b"COMMIT", b"ROLLBACK"})


def digest(*parts: Any) -> int:
    """Return a hash of values that have the same ``repr`` wherever they are equal."""
    return (
        int.from_bytes(blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=8).digest())
        % DIGESTS
    )


def statement_digest(event: Event) -> int | None:
    """Return the hash of what an event of :data:`CONTENT_TYPES` does; null for BEGIN and blocks of files."""
    match event:
        case ExecuteLoadQueryEvent():
            # A replica has another name for the file, and divides it into other blocks.
            before, after = event.query[: event.fn_pos_start], event.query[event.fn_pos_end :]
            return digest("load", event.database, event.dup_handling, before, after)
        case StatementEvent():
            query = event.query
            return None if query.upper() in _FRAME else digest("statement", event.database, query)
        case IntvarEvent():
            return digest("intvar", event.type, event.value)
        case RandEvent():
            return digest("rand", event.seed1, event.seed2)
        case UserVarEvent():
            value = event.is_null, event.type, event.charset, event.value, event.flags
            return digest("user_var", event.name, *value)
    return None

"""Which tables the DDL statements among events touch, so that their definitions are read again."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from millrace.binlog.checksum import CHECKSUM_LENGTH
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import QueryCompressedEvent, QueryEvent
from millrace.binlog.header import HEADER_LENGTH, TYPE_OFFSET
from millrace.binlog.statement import StatementKind, classify
from millrace.binlog.types import EventType
from millrace.mysql.packets import EventPiece

_QUERY: Final = int(EventType.QUERY_EVENT)
_COMPRESSED: Final = int(EventType.QUERY_COMPRESSED_EVENT)
_QUERIES: Final = (_QUERY, _COMPRESSED)
_BEGIN: Final = b"BEGIN"
_POST_HEADER: Final = 13
_DEFINES: Final = re.compile(rb"create|alter|rename|drop", re.IGNORECASE)
_VERBS: Final = frozenset({"CREATE", "ALTER", "RENAME", "DROP"})
READ: Final = 1 << 20
"""Bytes of a statement in which tables are looked for."""


def touched(pieces: Iterable[EventPiece], *, checksums: bool) -> Iterator[tuple[str, str]]:
    """Yield database and name of each table whose definition a statement makes or changes."""
    for piece in pieces:
        if may_define(piece):
            yield from _tables(piece, checksums=checksums)


def may_define(piece: EventPiece) -> bool:
    """Return whether an event, or its first piece, may be a statement that defines tables."""
    data, first, last, _ = piece
    if len(data) <= HEADER_LENGTH or data[TYPE_OFFSET] not in _QUERIES or not first or _BEGIN in data[-9:]:
        return False
    return not last or data[TYPE_OFFSET] != _QUERY or _DEFINES.search(data) is not None


def read_statement(piece: EventPiece, *, checksums: bool) -> QueryEvent | QueryCompressedEvent:
    """Read a statement, or its beginning; raises BinlogError."""
    tail = CHECKSUM_LENGTH if checksums and piece.last else 0
    body = piece.data[HEADER_LENGTH : len(piece.data) - tail][:READ]
    kind = QueryCompressedEvent if piece.data[TYPE_OFFSET] == _COMPRESSED else QueryEvent
    return kind.decode_fields(body, 0, len(body), _POST_HEADER)


def _tables(piece: EventPiece, *, checksums: bool) -> Iterator[tuple[str, str]]:
    """Yield the tables of a statement; nothing of one that cannot be read, which is no concern here."""
    try:
        event = read_statement(piece, checksums=checksums)
        statement = classify(event.query)
    except BinlogError:
        return
    if statement.kind is StatementKind.DDL and statement.verb in _VERBS and not statement.temporary:
        for name in statement.tables:
            yield name.database or event.database, name.table

"""Which tables the DDL statements among events touch, so that their definitions are read again."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from millrace.binlog.errors import BinlogError
from millrace.binlog.events import QueryCompressedEvent, QueryEvent
from millrace.binlog.statement import StatementKind, classify
from millrace.binlog.types import EventType
from millrace.mysql.packets import EventPiece

__all__ = ["touched"]

_TYPE_AT: Final = 4
_QUERY: Final = int(EventType.QUERY_EVENT)
_COMPRESSED: Final = int(EventType.QUERY_COMPRESSED_EVENT)
_QUERIES: Final = (_QUERY, _COMPRESSED)
_BEGIN: Final = b"BEGIN"
_HEADER: Final = 19
_POST_HEADER: Final = 13
_CHECKSUM: Final = 4
_DEFINES: Final = re.compile(rb"create|alter|rename|drop", re.IGNORECASE)
_VERBS: Final = frozenset({"CREATE", "ALTER", "RENAME", "DROP"})
_READ: Final = 1 << 20
"""Bytes of a statement in which tables are looked for."""


def touched(pieces: Iterable[EventPiece], *, checksums: bool) -> Iterator[tuple[str, str]]:
    """Give database and name of each table whose definition a statement makes or changes."""
    for piece in pieces:
        data = piece.data
        if len(data) <= _HEADER or data[_TYPE_AT] not in _QUERIES or not piece.first:
            continue
        if _BEGIN in data[-9:]:
            continue
        if piece.last and data[_TYPE_AT] == _QUERY and not _DEFINES.search(data):
            continue
        yield from _tables(
            data[_HEADER : _HEADER + _READ],
            compressed=data[_TYPE_AT] == _COMPRESSED,
            tail=_CHECKSUM if checksums and piece.last else 0,
        )


def _tables(body: bytes, *, compressed: bool, tail: int) -> Iterator[tuple[str, str]]:
    """Give the tables of a statement; nothing of one that cannot be read, which is no concern here."""
    kind = QueryCompressedEvent if compressed else QueryEvent
    try:
        event = kind.decode_fields(body[: len(body) - tail], 0, len(body) - tail, _POST_HEADER)
        statement = classify(event.query)
    except BinlogError:
        return
    if statement.kind is StatementKind.DDL and statement.verb in _VERBS and not statement.temporary:
        for name in statement.tables:
            yield name.database or event.database, name.table

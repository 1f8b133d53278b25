"""Rows that are in no topic: their events are blanked (``MILLRACE_TOPICS_RAW_EXCLUDE``).

In place of such an event there is an IGNORABLE_LOG_EVENT of the same size, whose body is zeros: whatever
reads a binary log passes over it, and every later event stays at its position. Blanked are the rows events of
the tables, and all ROWS_QUERY and ANNOTATE_ROWS events, whose statements precede the TABLE_MAPs that would
tell which tables they are about.
"""

import zlib
from typing import Final, Self

from millrace.binlog.checksum import CHECKSUM_LENGTH
from millrace.binlog.grammar import Role
from millrace.binlog.header import FLAGS_OFFSET, HEADER_LENGTH, TYPE_OFFSET
from millrace.binlog.state import LogFormat
from millrace.binlog.transaction import codes_of
from millrace.binlog.types import EventType, HeaderFlag
from millrace.contract import HEADER_EXCLUDED
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import TopicsSettings
from millrace.selection.tables import is_excluded

EXCLUDED: Final = (HEADER_EXCLUDED, b"1")
"""Header of the records of a blanked event."""

_TABLE_MAP: Final = int(EventType.TABLE_MAP_EVENT)
_PAYLOAD: Final = int(EventType.TRANSACTION_PAYLOAD_EVENT)
_STATEMENTS: Final = frozenset((int(EventType.ROWS_QUERY_LOG_EVENT), int(EventType.ANNOTATE_ROWS_EVENT)))
_ROWS: Final = codes_of(Role.ROWS)

LOOKED_AT: Final = _ROWS | _STATEMENTS | {_TABLE_MAP, _PAYLOAD}
"""Types of events that :meth:`RawExclusion.covers` must see."""

_TABLE_ID: Final = 6
_OLD_TABLE_ID: Final = 4
_OLD_POST_HEADER: Final = 6
_STATEMENT_ENDS: Final = 1
_ZEROS: Final = bytes(1 << 16)


class RawExclusion:
    """Decides which events are blanked: those of the tables that match ``patterns``."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns

    @classmethod
    def of(cls, settings: TopicsSettings) -> Self | None:
        """Return what the settings ask for; None where they ask for nothing."""
        return cls(settings.excluded) if settings.excluded else None

    def covers(
        self,
        type_code: int,
        data: bytes,
        log_format: LogFormat | None,
        tables: set[int],
        *,
        damaged: bool = False,
    ) -> bool:
        """Return whether an event is to be blanked; ``data`` is the event or its first bytes.

        ``tables`` holds the ids of such tables in the statement at hand, and is kept up to date. Rows of
        which nobody can tell whose they are, as those of an event that is ``damaged``, are blanked. Raises
        UserError for a compressed transaction.
        """
        if type_code in _STATEMENTS:
            return True
        if type_code == _PAYLOAD:
            raise UserError(
                "a transaction is compressed, and MILLRACE_TOPICS_RAW_EXCLUDE cannot leave out rows inside "
                "it; set binlog_transaction_compression=OFF on the server and in its sessions. For what is "
                "logged already, unset MILLRACE_TOPICS_RAW_EXCLUDE until it is read, or pass over it with "
                "'millrace source reset'",
                ExitCode.DATA,
            )
        if log_format is None:
            return type_code in _ROWS
        post_header = sum(log_format.codecs[type_code][1:3])
        table = int.from_bytes(data[HEADER_LENGTH : _flags_at(post_header)], "little")
        if type_code == _TABLE_MAP:
            if damaged or self._names(data, HEADER_LENGTH + post_header):
                tables.add(table)
            else:
                tables.discard(table)
            return False
        return damaged or table in tables

    @staticmethod
    def passed(type_code: int, data: bytes, log_format: LogFormat | None, tables: set[int]) -> None:
        """Take note that all of an event is written: after the last of a statement no table is in ``tables``.

        Not before: where it is written in part, it comes again, and must be known again.
        """
        if type_code in _ROWS and log_format is not None:
            at = _flags_at(sum(log_format.codecs[type_code][1:3]))
            if int.from_bytes(data[at : at + 2], "little") & _STATEMENT_ENDS:
                tables.clear()

    def _names(self, data: bytes, at: int) -> bool:
        """Return whether a TABLE_MAP is that of an excluded table; one that cannot be read counts as such."""
        names = []
        for _ in range(2):
            size = data[at] if at < len(data) else len(data)
            name = data[at + 1 : at + 1 + size]
            if len(name) < size:
                return True
            names.append(name.decode("utf-8", "replace"))
            at += size + 2
        return is_excluded(self._patterns, *names)


def _flags_at(post_header: int) -> int:
    """Say where the flags are that follow the table id, given the length of the post-header."""
    return HEADER_LENGTH + (_OLD_TABLE_ID if post_header == _OLD_POST_HEADER else _TABLE_ID)


class BlankEvent:
    """What is written in place of an event of ``size`` bytes, which begins with ``head``."""

    def __init__(self, head: bytes, size: int, *, checksum: bool) -> None:
        flags = int.from_bytes(head[FLAGS_OFFSET:HEADER_LENGTH], "little") | HeaderFlag.IGNORABLE_F
        type_code = bytes((EventType.IGNORABLE_LOG_EVENT,))
        before, after = head[:TYPE_OFFSET], head[TYPE_OFFSET + 1 : FLAGS_OFFSET]
        self._header = before + type_code + after + flags.to_bytes(2, "little")
        self._end = size - CHECKSUM_LENGTH if checksum else size
        self._checksum = self._crc32().to_bytes(CHECKSUM_LENGTH, "little") if checksum else b""
        self._taken = 0

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        first, last = self._taken, self._taken + count
        self._taken = last
        zeros = max(0, min(last, self._end) - max(first, HEADER_LENGTH))
        return (
            self._header[first:last]
            + bytes(zeros)
            + self._checksum[max(0, first - self._end) : max(0, last - self._end)]
        )

    def _crc32(self) -> int:
        value, left = zlib.crc32(self._header), self._end - HEADER_LENGTH
        while left > 0:
            value = zlib.crc32(_ZEROS[:left], value)
            left -= len(_ZEROS)
        return value

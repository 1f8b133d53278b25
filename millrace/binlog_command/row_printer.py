"""Rows as ``mysqlbinlog -v`` and ``-vv`` write them: ``### INSERT INTO …``, ``###   @1=1 /* INT … */``.

A value is written as the bytes of the row image say, without what a catalog or optional metadata would add:
integers as signed ones with the unsigned reading in brackets where they differ, ENUM and SET as numbers and
bits, strings in the character set of their column. The forms are those of ``log_event_print_value`` in the
servers' ``sql/log_event.cc``; where that function writes something else than the value (old TIME below zero,
DECIMAL in MySQL 5.5, MariaDB's old temporals with a fraction) the value is written in the form of its kind.

All text is bytes: strings go out as they came in.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from millrace.binlog.columns.column import ABSENT, Column
from millrace.binlog.columns.declaration import ColumnCodec, NativeKind, Print, codec_of
from millrace.binlog.columns.json_diffs import JsonDiffs
from millrace.binlog.columns.metadata import decode_optional_metadata, plain_columns
from millrace.binlog.columns.printing import HEX_ESCAPES, SPECIAL, STRING_ESCAPES, escaped, quoted_bytes
from millrace.binlog.columns.strings import claimed_size, uncompressed
from millrace.binlog.columns.types import COMPRESSED_TYPES, ColumnType
from millrace.binlog.errors import BinlogError, InvalidValueError, UnsupportedError
from millrace.binlog.events import PartialUpdateRowsEvent, RowsEvent, RowsOperation, TableMapEvent
from millrace.binlog.inflate import Room
from millrace.binlog.names import quoted_name
from millrace.binlog.row_images import Payloads, RowImages, present_ordinals
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.records import MAX_UNPACKED_SIZE
from millrace.binlog_command.row_kernel import (
    Rows,
    TextColumn,
    TextKind,
    Value,
    rows_by_kernel,
    value_of,
)
from millrace.binlog_command.spool import Spool
from millrace.text import printable

_CONTROL = re.compile(rb"[\x00-\x1f]")
_TOGETHER = 512
"""How many parts of the text of rows are written at once."""


def _hex_quoted(data: bytes) -> bytes:
    r"""Write a string as MySQL 5.7 does, who has no escapes but ``\x27`` and its like."""
    return escaped(SPECIAL, HEX_ESCAPES, data)


def _control_quoted(data: bytes) -> bytes:
    """Write a string as MariaDB and MySQL before 5.7 do, who escape control characters alone."""
    return escaped(_CONTROL, HEX_ESCAPES, data)


def _unquoted(write: Print) -> Print:
    """Leave out the quotes, as MySQL before 5.7 does with a DATETIME."""
    return lambda payload: write(payload)[1:-1]


def _compressed(payload: bytes) -> bytes:
    """Stand for what the printer of the rows does, which knows how much it has unpacked."""
    raise NotImplementedError


def _columns(table_map: TableMapEvent, generation: Generation) -> list[Column]:
    """Return the columns of a table map without what the optional metadata says, VECTOR's dimensions but."""
    columns = plain_columns(table_map)
    if generation is Generation.MYSQL_5_7:
        columns = [replace(column, whole_doubles=column.type is ColumnType.JSON) for column in columns]
    if ColumnType.VECTOR not in table_map.column_types:
        return columns
    dimensions = iter(decode_optional_metadata(table_map.optional_metadata).vector_dimensionality or ())
    return [
        replace(column, dimensions=next(dimensions, None)) if column.type is ColumnType.VECTOR else column
        for column in columns
    ]


class _Line:
    """How the lines of one column are written: what stands before and after the value."""

    __slots__ = ("after", "before", "null", "write")

    def __init__(self, column: Column, verbose: int, generation: Generation) -> None:
        codec = codec_of(column)
        self.write = codec.printer() or _string_writer(generation)
        if column.type in COMPRESSED_TYPES:
            self.write = _compressed
        if column.type is ColumnType.DATETIME and generation <= Generation.MYSQL_5_6:
            self.write = _unquoted(self.write)
        self.before = b"###   @%d=" % (column.ordinal + 1)
        null_after = self.after = b"\n"
        if verbose > 1:
            layout = codec.metadata_layout
            meta = int.from_bytes(layout.encode(column.metadata), layout.printed)
            name = codec.printed_type().encode()
            comment = b" /* %b meta=%d nullable=%d is_null=%%d */\n" % (name, meta, column.nullable)
            self.after, null_after = comment % 0, comment % 1
        self.null = self.before + b"NULL" + null_after


_QUOTE = b"'"
_STRINGS = (quoted_bytes, _hex_quoted, _control_quoted)


@cache
def _escapes(generation: Generation) -> tuple[bytes, ...]:
    """Return what stands for each byte of a string, nothing where that is the byte."""
    quoted = _string_writer(generation)
    written = ((byte, quoted(byte)[1:-1]) for byte in (bytes((code,)) for code in range(256)))
    return tuple(b"" if text == byte else text for byte, text in written)


def _string_writer(generation: Generation) -> Callable[[bytes], bytes]:
    """Choose how strings are written."""
    if generation is Generation.MYSQL_8_0:
        return quoted_bytes
    return _hex_quoted if generation is Generation.MYSQL_5_7 else _control_quoted


_VALUES = {
    NativeKind.SIGNED: Value(TextKind.BOTH_SIGNS),
    NativeKind.REAL: Value(TextKind.REAL, 1),
    NativeKind.DECIMAL: Value(TextKind.DECIMAL),
    NativeKind.DECIMAL_TEXT: Value(TextKind.DECIMAL),
    NativeKind.DATE: Value(TextKind.DATE, ord(":"), quote=_QUOTE),
    NativeKind.TIME: Value(TextKind.TIME, quote=_QUOTE),
    NativeKind.DATETIME: Value(TextKind.DATETIME, quote=_QUOTE),
    NativeKind.TIMESTAMP: Value(TextKind.SECONDS),
    NativeKind.JSON: Value(TextKind.JSON, b=1, quote=_QUOTE),
}


def _value(codec: ColumnCodec, write: Print, generation: Generation) -> Value:
    """Say how the kernel writes the values of a column."""
    if write in _STRINGS:
        return Value(TextKind.STRING, quote=_QUOTE)
    value = value_of(codec, _VALUES)
    if value.kind is TextKind.JSON and generation is not Generation.MYSQL_8_0:
        return Value(TextKind.PYTHON)  # of documents all generations write strings by the escapes of 8.0
    return value


_SQL_SPECIAL = re.compile(rb"[\x00\b\t\n\r'\\]")
_SQL_ESCAPES = {**STRING_ESCAPES, b"\0": b"\\0"}


def sql_string(data: bytes) -> bytes:
    """Write a string literal of SQL, which has fewer escapes than the strings in comments."""
    return escaped(_SQL_SPECIAL, _SQL_ESCAPES, data)


def comment_text(text: str) -> bytes:
    """Write text for a comment, where a line break would end it and what follows would be SQL."""
    return printable(" ".join(text.split())).encode()


_HARMLESS = bytes((9, *range(0x20, 0x7F)))


def in_comment(data: bytes) -> bytes:
    """Make names and the like fit for a line of a comment: no byte of them ends it or acts on a terminal."""
    if not data.translate(None, _HARMLESS):
        return data
    text = data.replace(b"\n", b"\\n").decode("utf-8", "surrogateescape")
    return printable(text, lines=True).encode()


def sql_name(name: str) -> bytes:
    """Write an identifier of SQL."""
    return quoted_name(name).encode("utf-8", "surrogateescape")


def unreadable_rows(error: BinlogError) -> bytes:
    """Say that rows, or those that follow, cannot be read."""
    return b"### Rows that cannot be read: %b\n" % comment_text(str(error))


def _safely(write: Print) -> Print:
    """Write a value, or its bytes where they are none of its type."""

    def write_safely(payload: Any) -> bytes:
        try:
            return write(payload)
        except BinlogError as error:
            raw = payload.binary if isinstance(payload, JsonDiffs) else payload
            shown = quoted_bytes(raw) if isinstance(raw, bytes) else b"%d" % raw
            return shown + b" /* not a value of the type: %b */" % comment_text(str(error))

    return write_safely


class RowPrinter:
    """Writes the rows of the events that share a table map, a kind and the bitmaps of present columns.

    Raises :class:`BinlogError` where the table map is of no use.
    """

    def __init__(
        self,
        table_map: TableMapEvent,
        event: RowsEvent,
        verbose: int,
        database: str,
        generation: Generation,
        *,
        max_unpacked: int = MAX_UNPACKED_SIZE,
    ) -> None:
        columns = _columns(table_map, generation)
        if event.column_count != len(columns):
            raise InvalidValueError(f"rows of {event.column_count} columns in a table of {len(columns)}")
        partial = isinstance(event, PartialUpdateRowsEvent)
        self.images = RowImages.of_event(columns, event)
        self._max_unpacked = max_unpacked
        self._room = Room(max_unpacked)
        lines = [_Line(column, verbose, generation) for column in columns]
        for line in lines:
            if line.write is _compressed:
                line.write = self._unpacked
        self._lines = [(line.null, line.before, line.write, line.after) for line in lines]
        # Most images are complete and without NULL: one template, filled in, is all of their text.
        self._complete = all(
            image is None or len(present_ordinals(image, len(columns))) == len(columns)
            for image in event.bitmaps
        )
        self._writes = [line.write for line in lines]
        self._template = b"".join(
            line.before.replace(b"%", b"%%") + b"%b" + line.after.replace(b"%", b"%%") for line in lines
        )
        table = in_comment(b"%b.%b" % (sql_name(database), sql_name(table_map.table)))
        before_head, after_head = {
            RowsOperation.WRITE: (b"", b"### INSERT INTO %b\n### SET\n" % table),
            RowsOperation.UPDATE: (b"### UPDATE %b\n### WHERE\n" % table, b"### SET\n"),
            RowsOperation.DELETE: (b"### DELETE FROM %b\n### WHERE\n" % table, b""),
        }[event.operation]
        self._before_head, self._after_head = before_head, after_head
        self._kernel = None if partial else self._by_kernel(columns, event.bitmaps, generation)

    def _by_kernel(
        self, columns: list[Column], bitmaps: tuple[bytes | None, bytes | None], generation: Generation
    ) -> Rows | None:
        codecs = list(map(codec_of, columns))
        return rows_by_kernel(
            codecs,
            [
                TextColumn(_value(codec, write, generation), _safely(write), before, after, null)
                for codec, (null, before, write, after) in zip(codecs, self._lines, strict=True)
            ],
            bitmaps,
            escapes=_escapes(generation),
            around=((self._before_head, b""), (self._after_head, b"")),
        )

    def write(self, rows: bytes, out: Spool) -> int:
        """Write rows, up to one that cannot be read; give how many there are."""
        self._room = Room(self._max_unpacked)
        parts: list[bytes] = []
        start = count = 0
        if self._kernel is not None:
            start, count = self._kernel.write(rows, out.write)
        last: Payloads | None = None
        text = b""
        try:
            for row in self.images.payloads(rows, start):
                count += 1
                if row is not last:
                    last, (before, after) = row, row
                    text = b"" if before is None else self._before_head + self._image(before)
                    text += b"" if after is None else self._after_head + self._image(after)
                parts.append(text)
                if len(parts) > _TOGETHER:
                    out.write(b"".join(parts))
                    parts.clear()
        except BinlogError as error:
            parts.append(unreadable_rows(error))
        out.write(b"".join(parts))
        return count

    def _unpacked(self, payload: bytes) -> bytes:
        """Write a value of a COMPRESSED column."""
        if not self._room.takes(claimed_size(payload)):
            raise UnsupportedError(
                f"compressed values of an event are unpacked up to {self._max_unpacked} bytes in all"
            )
        return _control_quoted(uncompressed(payload))

    def _image(self, payloads: list[Any]) -> bytes:
        left = self._room.left
        try:
            if self._complete and None not in payloads:
                values = [write(payload) for write, payload in zip(self._writes, payloads, strict=True)]
                return self._template % tuple(values)
            return b"".join(
                [
                    null if payload is None else before + write(payload) + after
                    for payload, (null, before, write, after) in zip(payloads, self._lines, strict=True)
                    if payload is not ABSENT
                ]
            )
        except BinlogError:
            self._room.left = left
            return b"".join(
                self._safe_line(payload, *line)
                for payload, line in zip(payloads, self._lines, strict=True)
                if payload is not ABSENT
            )

    @staticmethod
    def _safe_line(payload: Any, null: bytes, before: bytes, write: Print, after: bytes) -> bytes:
        """Write a value, or its bytes where they are none of its type."""
        return null if payload is None else before + _safely(write)(payload) + after

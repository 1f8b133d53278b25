"""Rows as ``mysqlbinlog -v`` and ``-vv`` write them: ``### INSERT INTO …``, ``###   @1=1 /* INT … */``.

A value is written as the bytes of the row image say, without what a catalog or optional metadata would add:
integers as signed ones with the unsigned reading in brackets where they differ, ENUM and SET as numbers and
bits, strings in the character set of their column. The forms are those of ``log_event_print_value`` in the
servers' ``sql/log_event.cc``; where that function writes something else than the value (old TIME below zero,
DECIMAL in MySQL 5.5, MariaDB's old temporals with a fraction) the value is written in the form of its kind.

All text is bytes: strings go out as they came in.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millrace.binlog.columns.column import (
    ABSENT,
    BitMetadata,
    Column,
    DecimalMetadata,
    LengthMetadata,
    PackMetadata,
)
from millrace.binlog.columns.declaration import COLUMNS, ColumnCodec, NativeKind, codec_of
from millrace.binlog.columns.json_binary import Opaque, decode_json, json_text, text_of_json
from millrace.binlog.columns.json_diffs import JsonDiffOperation, JsonDiffs
from millrace.binlog.columns.metadata import decode_optional_metadata, plain_columns
from millrace.binlog.columns.numbers import DecimalFormat
from millrace.binlog.columns.strings import claimed_size, uncompressed
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import BinlogError, InvalidValueError, UnsupportedError
from millrace.binlog.events import PartialUpdateRowsEvent, RowsEvent, RowsOperation, TableMapEvent
from millrace.binlog.inflate import Room
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

__all__ = [
    "RowPrinter",
    "comment_text",
    "in_comment",
    "quoted_bytes",
    "quoted_name",
    "sql_string",
    "unreadable_rows",
]

Print = Callable[[Any], bytes]
"""Writes the payload of a value (what :meth:`ColumnCodec.decode` takes)."""

_SPECIAL = re.compile(rb"[\x00-\x1f'\\]")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ORDINARY = bytes(sorted(set(range(0x20, 0x100)) - set(b"'\\")))
"""The bytes that need no escape; to take them away is the quickest look for one that does."""
_SLICE = 1 << 16
_TOGETHER = 512
"""How many parts of the text of rows are written at once."""
_HEX_ESCAPES = {bytes((code,)): b"\\x%02x" % code for code in (*range(0x20), ord("'"), ord("\\"))}
_ESCAPES = _HEX_ESCAPES | {
    b"\b": b"\\b",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"'": b"\\'",
    b"\\": b"\\\\",
}


def quoted_bytes(data: bytes) -> bytes:
    """Write a string in quotes; control characters, quotes and backslashes are escaped, no others."""
    if data.translate(None, _ORDINARY):
        return _escaped(_SPECIAL, _ESCAPES, data)
    return b"'%b'" % data


def _escaped(special: re.Pattern[bytes], escapes: dict[bytes, bytes], data: bytes) -> bytes:
    """Replace single bytes, and quote; in slices, for the parts between them take more than their bytes."""

    def escape(match: re.Match[bytes]) -> bytes:
        return escapes[match[0]]

    if len(data) <= _SLICE:
        return b"'%b'" % special.sub(escape, data)
    slices = (data[start : start + _SLICE] for start in range(0, len(data), _SLICE))
    return b"".join([b"'", *(special.sub(escape, piece) for piece in slices), b"'"])


def _hex_quoted(data: bytes) -> bytes:
    r"""Write a string as MySQL 5.7 does, who has no escapes but ``\x27`` and its like."""
    return _escaped(_SPECIAL, _HEX_ESCAPES, data)


def _control_quoted(data: bytes) -> bytes:
    """Write a string as MariaDB and MySQL before 5.7 do, who escape control characters alone."""
    if data.translate(None, _ORDINARY):
        return _escaped(_CONTROL, _HEX_ESCAPES, data)
    return b"'%b'" % data


def _integer(bits: int) -> Print:
    half, full = 1 << bits - 1, 1 << bits

    def write(value: int) -> bytes:
        value &= full - 1
        return b"%d" % value if value < half else b"%d (%d)" % (value - full, value)

    return write


_INT24 = _integer(24)


def _int24(payload: bytes) -> bytes:
    return _INT24(int.from_bytes(payload, "little"))


def _float(value: float) -> bytes:
    return b"%-20g" % value


def _double(value: float) -> bytes:
    return b"%.20g" % value


def _decimal(precision: int, scale: int) -> Print:
    unscaled, one = DecimalFormat(precision, scale).unscaled, 10**scale

    def write(payload: bytes) -> bytes:
        value = unscaled(payload)
        if not scale:
            return b"%d" % value
        sign = b"-" if value < 0 else b""
        return b"%b%d.%0*d" % (sign, abs(value) // one, scale, abs(value) % one)

    return write


def _bits(count: int) -> Print:
    def write(payload: bytes) -> bytes:
        return b"b'%b'" % f"{int.from_bytes(payload, 'big'):0{count}b}".encode("ascii")

    return write


def _set(size: int) -> Print:
    """Write the bytes of a SET in their order, the lowest first, each with its highest bit first."""
    bits = _bits(size * 8)

    def write(payload: Any) -> bytes:
        return bits(payload if isinstance(payload, bytes) else payload.to_bytes(size, "little"))

    return write


def _enum(payload: Any) -> bytes:
    return b"%d" % (int.from_bytes(payload, "little") if isinstance(payload, bytes) else payload)


def _year(payload: int) -> bytes:
    return b"%d" % (payload + 1900)


def _date(payload: bytes) -> bytes:
    packed = int.from_bytes(payload, "little")
    return b"'%04d:%02d:%02d'" % (packed >> 9, packed >> 5 & 15, packed & 31)


def _fraction(codec: ColumnCodec) -> tuple[int, int, int]:
    """Give the bits of a temporal's fraction, its digits, and what to divide it by to have these."""
    digits = getattr(codec.column.metadata, "digits", 0)
    size = (digits + 1) // 2
    return 8 * size, digits, 10 ** (2 * size - digits) if digits else 1


def _datetime2(codec: ColumnCodec) -> Print:
    """Write DATETIME since MySQL 5.6, straight from its bits."""
    shift, digits, divisor = _fraction(codec)
    mask = (1 << shift) - 1
    from_bytes = int.from_bytes

    def write(payload: bytes) -> bytes:
        packed = from_bytes(payload, "big")
        time = packed >> shift
        year, month = divmod((time >> 22) - (1 << 17), 13)
        fields = (year, month, time >> 17 & 31, time >> 12 & 31, time >> 6 & 63, time & 63)
        if not digits:
            return b"'%04d-%02d-%02d %02d:%02d:%02d'" % fields
        return b"'%04d-%02d-%02d %02d:%02d:%02d.%0*d'" % (*fields, digits, (packed & mask) // divisor)

    return write


def _timestamp2(codec: ColumnCodec) -> Print:
    """Write seconds since 1970 and the fraction."""
    shift, digits, divisor = _fraction(codec)
    mask = (1 << shift) - 1

    def write(payload: bytes) -> bytes:
        packed = int.from_bytes(payload, "big")
        if not digits:
            return b"%d" % packed
        return b"%d.%0*d" % (packed >> shift, digits, (packed & mask) // divisor)

    return write


def _text(codec: ColumnCodec) -> Print:
    """Write a temporal in quotes."""
    decode, text = codec.decode, codec.text

    def write(payload: Any) -> bytes:
        return b"'%b'" % str(text(decode(payload))).encode("ascii")

    return write


def _unquoted_text(write: Print) -> Print:
    """Leave out the quotes, as MySQL before 5.7 does with a DATETIME."""
    return lambda payload: write(payload)[1:-1]


def _timestamp(codec: ColumnCodec) -> Print:
    """Write seconds since 1970 with the column's digits behind the point."""
    digits = getattr(codec.column.metadata, "digits", 0)
    decode = codec.decode

    def write(payload: Any) -> bytes:
        seconds, microsecond = decode(payload)
        if not digits:
            return b"%d" % seconds
        return b"%d.%0*d" % (seconds, digits, microsecond // 10 ** (6 - digits))

    return write


def _json(codec: ColumnCodec) -> tuple[bytes, Print]:
    ordinal, whole_doubles = codec.column.ordinal, codec.column.whole_doubles

    def write(payload: bytes | JsonDiffs) -> bytes:
        if isinstance(payload, JsonDiffs):
            return _json_diffs(ordinal, payload)
        if not payload:
            return b"''"
        return quoted_bytes(_json_bytes(_json_text(payload, whole_doubles=whole_doubles)))

    return b"JSON", write


def _json_text(payload: bytes, *, whole_doubles: bool) -> str:
    """Write a document, one that is a mere string or date without quotes, as mysqlbinlog does."""
    if payload[0] in (_JSON_STRING, _JSON_OPAQUE):
        value = decode_json(payload)
        if isinstance(value, str):
            return value
        text = text_of_json(value)
        return text[1:-1] if text.startswith('"') else text
    return json_text(payload, whole_doubles=whole_doubles)


def _json_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_JSON_STRING, _JSON_OPAQUE = 0x0C, 0x0F
_FUNCTIONS = {
    JsonDiffOperation.REPLACE: b"JSON_REPLACE(",
    JsonDiffOperation.INSERT: b"JSON_INSERT(",
    JsonDiffOperation.REMOVE: b"JSON_REMOVE(",
}
_NEXT_LINE = b",\n###      "


def _json_argument(binary: bytes) -> bytes:
    """Write the new value of a JSON diff as SQL."""
    value = decode_json(binary)
    if isinstance(value, str):
        return quoted_bytes(_json_bytes(value))
    text = _json_bytes(text_of_json(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return text
    if isinstance(value, Opaque) and value.type == ColumnType.NEWDECIMAL:
        return text
    return b"CAST(%b AS JSON)" % quoted_bytes(text)


def _json_diffs(ordinal: int, value: JsonDiffs) -> bytes:
    """Write a partial update as calls of functions, one inside the other, that lead to the new document."""
    written = b"@%d" % (ordinal + 1)
    previous = None
    for operation, path, binary in value.diffs:
        arguments = quoted_bytes(_json_bytes(path))
        if binary is not None:
            arguments += b", " + _json_argument(binary)
        if operation is previous:
            written = written[:-1] + _NEXT_LINE + arguments + b")"
        else:
            written = b"%b%b, %b)" % (_FUNCTIONS[operation], written, arguments)
        previous = operation
    return written


def _vector(payload: bytes) -> bytes:
    count, rest = divmod(len(payload), 4)
    if rest:
        return quoted_bytes(payload)
    return b"[%b]" % b",".join(b"%.5e" % number for number in struct.unpack(f"<{count}f", payload))


def _compressed(payload: bytes) -> bytes:
    """Stand for what the printer of the rows does, which knows how much it has unpacked."""
    raise NotImplementedError


_INTEGERS = {
    ColumnType.TINY: (b"TINYINT", _integer(8)),
    ColumnType.SHORT: (b"SHORTINT", _integer(16)),
    ColumnType.INT24: (b"MEDIUMINT", _int24),
    ColumnType.LONG: (b"INT", _integer(32)),
    ColumnType.LONGLONG: (b"LONGINT", _integer(64)),
}
_BLOBS = (b"", b"TINYBLOB/TINYTEXT", b"BLOB/TEXT", b"MEDIUMBLOB/MEDIUMTEXT", b"LONGBLOB/LONGTEXT")


def _plain(type_name: bytes, write: Print) -> Callable[[ColumnCodec], tuple[bytes, Print]]:
    return lambda _codec: (type_name, write)


def _temporal(type_name: bytes, make: Callable[[ColumnCodec], Print]) -> Callable[..., tuple[bytes, Print]]:
    """Name the digits of a fraction for the types that have their number in the table map."""

    def bind(codec: ColumnCodec) -> tuple[bytes, Print]:
        if codec.metadata_layout.size:
            return b"%b(%d)" % (type_name, getattr(codec.column.metadata, "digits", 0)), make(codec)
        return type_name, make(codec)

    return bind


def _string(codec: ColumnCodec) -> tuple[bytes, Print]:
    assert isinstance(codec.column.metadata, LengthMetadata)
    return b"STRING(%d)" % codec.column.metadata.max_length, quoted_bytes


def _varchar(codec: ColumnCodec) -> tuple[bytes, Print]:
    assert isinstance(codec.column.metadata, LengthMetadata)
    return b"VARSTRING(%d)" % codec.column.metadata.max_length, quoted_bytes


def _compressed_varchar(codec: ColumnCodec) -> tuple[bytes, Print]:
    return _varchar(codec)[0] + b" COMPRESSED", _compressed


def _blob(codec: ColumnCodec) -> tuple[bytes, Print]:
    return _BLOBS[codec.length_bytes], quoted_bytes


def _compressed_blob(codec: ColumnCodec) -> tuple[bytes, Print]:
    return _BLOBS[codec.length_bytes] + b" COMPRESSED", _compressed


def _new_decimal(codec: ColumnCodec) -> tuple[bytes, Print]:
    metadata = codec.column.metadata
    assert isinstance(metadata, DecimalMetadata)
    precision, scale = metadata.precision, metadata.scale
    return b"DECIMAL(%d,%d)" % (precision, scale), _decimal(precision, scale)


def _bit(codec: ColumnCodec) -> tuple[bytes, Print]:
    assert isinstance(codec.column.metadata, BitMetadata)
    bits = codec.column.metadata.bits
    return b"BIT(%d)" % bits, _bits(bits)


def _enum_of_size(codec: ColumnCodec) -> tuple[bytes, Print]:
    assert isinstance(codec.column.metadata, PackMetadata)
    size = codec.column.metadata.size
    return b"ENUM(%d byte%b)" % (size, b"" if size == 1 else b"s"), _enum


def _set_of_size(codec: ColumnCodec) -> tuple[bytes, Print]:
    assert isinstance(codec.column.metadata, PackMetadata)
    size = codec.column.metadata.size
    return b"SET(%d bytes)" % size, _set(size)


def _vector_of_dimensions(codec: ColumnCodec) -> tuple[bytes, Print]:
    dimensions = codec.column.dimensions
    return b"VECTOR" if dimensions is None else b"VECTOR(%d)" % dimensions, _vector


_TYPES: dict[ColumnType, Callable[[ColumnCodec], tuple[bytes, Print]]] = {
    **{column_type: _plain(*entry) for column_type, entry in _INTEGERS.items()},
    ColumnType.FLOAT: _plain(b"FLOAT", _float),
    ColumnType.DOUBLE: _plain(b"DOUBLE", _double),
    ColumnType.NEWDECIMAL: _new_decimal,
    ColumnType.BIT: _bit,
    ColumnType.YEAR: _plain(b"YEAR", _year),
    ColumnType.DATE: _plain(b"DATE", _date),
    ColumnType.NEWDATE: _plain(b"DATE", _date),
    ColumnType.TIME: _temporal(b"TIME", _text),
    ColumnType.TIME2: _temporal(b"TIME", _text),
    ColumnType.DATETIME: _temporal(b"DATETIME", _text),
    ColumnType.DATETIME2: _temporal(b"DATETIME", _datetime2),
    ColumnType.TIMESTAMP: _temporal(b"TIMESTAMP", _timestamp),
    ColumnType.TIMESTAMP2: _temporal(b"TIMESTAMP", _timestamp2),
    ColumnType.STRING: _string,
    ColumnType.VARCHAR: _varchar,
    ColumnType.VAR_STRING: _varchar,
    ColumnType.VARCHAR_COMPRESSED: _compressed_varchar,
    **dict.fromkeys(
        (ColumnType.TINY_BLOB, ColumnType.MEDIUM_BLOB, ColumnType.LONG_BLOB, ColumnType.BLOB), _blob
    ),
    ColumnType.BLOB_COMPRESSED: _compressed_blob,
    ColumnType.JSON: _json,
    ColumnType.GEOMETRY: _plain(b"GEOMETRY", quoted_bytes),
    ColumnType.ENUM: _enum_of_size,
    ColumnType.SET: _set_of_size,
    ColumnType.VECTOR: _vector_of_dimensions,
}
"""For each type, from a column's codec: the name in the comment, and what writes a value."""


def _meta_number(raw: bytes, column_type: int) -> int:
    """Read metadata as the number that mysqlbinlog prints, which is not in one byte order for all types."""
    big_endian = (ColumnType.STRING, ColumnType.ENUM, ColumnType.SET, ColumnType.NEWDECIMAL)
    return int.from_bytes(raw, "big" if column_type in big_endian else "little")


def _columns(table_map: TableMapEvent, generation: Generation) -> list[Column]:
    """Give the columns of a table map without what the optional metadata says, VECTOR's dimensions but."""
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
        type_name, self.write = _TYPES[column.type](codec)
        if self.write is quoted_bytes:
            self.write = _string_writer(generation)
        if column.type is ColumnType.DATETIME and generation <= Generation.MYSQL_5_6:
            self.write = _unquoted_text(self.write)
        self.before = b"###   @%d=" % (column.ordinal + 1)
        null_after = self.after = b"\n"
        if verbose > 1:
            layout = COLUMNS[column.type].metadata_layout
            meta = _meta_number(layout.encode(column.metadata), column.type)
            comment = b" /* %b meta=%d nullable=%d is_null=%%d */\n" % (type_name, meta, column.nullable)
            self.after, null_after = comment % 0, comment % 1
        self.null = self.before + b"NULL" + null_after


_QUOTE = b"'"
_STRINGS = (quoted_bytes, _hex_quoted, _control_quoted)


def _escape_of_byte(byte: bytes, generation: Generation) -> bytes:
    """Give what stands for a byte of a string, nothing where that is the byte."""
    written = _string_writer(generation)(byte)[1:-1]
    return b"" if written == byte else written


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
_SQL_ESCAPES = {**_ESCAPES, b"\0": b"\\0"}


def sql_string(data: bytes) -> bytes:
    """Write a string literal of SQL, which has fewer escapes than the strings in comments."""
    return _escaped(_SQL_SPECIAL, _SQL_ESCAPES, data)


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


def quoted_name(name: str) -> bytes:
    """Write an identifier of SQL."""
    return b"`%b`" % name.replace("`", "``").encode("utf-8", "surrogateescape")


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
        before = event.columns_before_image if event.operation is not RowsOperation.WRITE else None
        after = event.columns_after_image if event.operation is not RowsOperation.DELETE else None
        partial = isinstance(event, PartialUpdateRowsEvent)
        self.images = RowImages(columns, before, after, partial_json=partial)
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
            for image in (before, after)
        )
        self._writes = [line.write for line in lines]
        self._template = b"".join(
            line.before.replace(b"%", b"%%") + b"%b" + line.after.replace(b"%", b"%%") for line in lines
        )
        table = in_comment(b"%b.%b" % (quoted_name(database), quoted_name(table_map.table)))
        before_head, after_head = {
            RowsOperation.WRITE: (b"", b"### INSERT INTO %b\n### SET\n" % table),
            RowsOperation.UPDATE: (b"### UPDATE %b\n### WHERE\n" % table, b"### SET\n"),
            RowsOperation.DELETE: (b"### DELETE FROM %b\n### WHERE\n" % table, b""),
        }[event.operation]
        self._before_head, self._after_head = before_head, after_head
        self._kernel = None if partial else self._by_kernel(columns, (before, after), generation)

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
            escapes=[_escape_of_byte(bytes((code,)), generation) for code in range(256)],
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

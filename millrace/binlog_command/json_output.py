"""``--json``: each event as one JSON object on a line of its own.

Nothing is lost on the way, but what the event holds in another form anyway: the images of rows are in
``rows``, packed statements are unpacked, and the events inside a payload follow as lines of their own.
``docs/binlog-command.md`` specifies the form.
"""

import binascii
import contextlib
import json
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, BinaryIO, Final

from millrace.binlog.columns.column import ABSENT
from millrace.binlog.columns.declaration import ColumnCodec, NativeKind
from millrace.binlog.columns.json_binary import JsonValue
from millrace.binlog.columns.json_diffs import JsonDiffs
from millrace.binlog.columns.strings import CompressedValue, claimed_size
from millrace.binlog.declaration import Event, declared_fields
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events.gtid import sid_text
from millrace.binlog.events.query import StatusVariables
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.fields import encode_text
from millrace.binlog.inflate import Room
from millrace.binlog.row_images import Row, Values
from millrace.binlog.row_reader import Bitmaps, RowReader, TableCache, TableRows
from millrace.binlog.table import ResolvedTable
from millrace.binlog_command.records import MAX_UNPACKED_SIZE, LogRecord
from millrace.binlog_command.row_kernel import (
    Rows,
    TextColumn,
    TextKind,
    Value,
    rows_by_kernel,
    value_of,
)
from millrace.binlog_command.spool import Spool
from millrace.text import printable_json

Convert = Callable[[Any], Any]
Columns = list[tuple[str, Convert, bool]]
"""Of each column its name, how its values become JSON, and whether integers and text already are."""

_TEXT_FIELDS: Final = frozenset(
    {
        "block_data",
        "bqual",
        "enclosed",
        "escaped",
        "field_terminated",
        "gtrid",
        "line_starting",
        "line_terminated",
        "message",
        "query",
    }
)
"""Fields whose bytes are text more often than not: given as text where they are UTF-8."""

_UNPACKED: Final = {"compressed_query": "query"}
_LEFT_OUT: Final = frozenset({"rows", "compressed_rows", "payload"})
_NAMES: Final[dict[type, tuple[str, ...]]] = {}
_TOGETHER: Final = 1000
"""How many rows are written at once."""
_PIECE: Final = 1 << 20
_SLICE: Final = 1 << 16


class JsonOutput:
    """Writes records as JSON to ``stream``, a line each.

    Compressed values of an event are unpacked up to ``max_unpacked`` in all; those beyond it, and those
    that cannot be unpacked, are given as they are stored.
    """

    def __init__(self, stream: BinaryIO, *, max_unpacked: int = MAX_UNPACKED_SIZE) -> None:
        self._stream = stream
        self._max_unpacked = max_unpacked
        self._rows = RowReader(_by_kernel)
        self._converts: TableCache[tuple[TableRows[Rows], Columns]] = TableCache()

    def write(self, record: LogRecord) -> None:
        """Write one line."""
        decoded = record.event
        if isinstance(decoded, BinlogError):
            where = {"file": record.file, "position": record.position, "sub_index": record.sub_index}
            self._write_line(dump(where | {"error": decoded.message}))
            return
        header, event = decoded.header, decoded.event
        again = isinstance(event, TableMapEvent) and len(record.data) < _SLICE
        fields = _table_map_fields(event) if again else event_fields(event)
        line: dict[str, Any] = {
            "file": record.file,
            "position": record.position,
            "next_position": header.next_position,
            "timestamp": header.timestamp,
            "type_code": header.type_code,
            "type": decoded.event.event_type.name,
            "server_id": header.server_id,
            "size": header.event_size,
            "flags": header.flags,
            "gtid": record.gtid,
            "sub_index": record.sub_index,
            "event": fields,
        }
        for name, extra in (
            ("extra_headers", header.extra_headers),
            ("post_header_extra", decoded.post_header_extra),
        ):
            if extra:
                line[name] = _base64(extra)
        if isinstance(decoded.event, RowsEvent):
            self._write_rows(line, record, decoded, decoded.event)
        elif max(len(record.data), decoded.event.unpacked_size) > _PIECE:
            self._write_pieces(_pieces(line))
        else:
            self._write_line(dump(line))

    def close(self) -> None:
        """Nothing is left to write."""

    def _write_line(self, text: str, end: str = "\n") -> None:
        if len(text) < _PIECE:
            self._stream.write((text + end).encode())
            return
        for start in range(0, len(text), _PIECE):
            self._stream.write(text[start : start + _PIECE].encode())
        self._stream.write(end.encode())

    def _write_pieces(self, pieces: Iterator[str]) -> None:
        for piece in pieces:
            self._stream.write(piece.encode())
        self._stream.write(b"\n")

    def _write_rows(
        self, line: dict[str, Any], record: LogRecord, decoded: BinlogEvent, event: RowsEvent
    ) -> None:
        """Write the line of a rows event, whose rows may take many times the bytes that they have there."""
        if decoded.table_map is not None:
            line["database"] = _text(decoded.table_map.database)
            line["table"] = _text(decoded.table_map.table)
        more: Spool | None = None
        try:
            table = self._rows.of(decoded, record.state)
            if table.kernel is not None and self._write_by_kernel(line, table.kernel, event.rows):
                return
            columns = self._columns(table, decoded)
            room = Room(self._max_unpacked)
            packed = event.rows
            rows = table.images.each(packed)
            line["rows"] = []
            if len(packed) <= _PIECE:
                line["rows"] = [_row(columns, row, room) for row in islice(rows, _TOGETHER)]
            if len(packed) > _PIECE or len(line["rows"]) == _TOGETHER:
                more = Spool()
                for text in _row_texts(columns, rows, room):
                    more.write(text.encode())
        except BinlogError as error:
            line.pop("rows", None)
            line["rows_error"] = error.message
            line["rows_bytes"] = _base64(_packed_rows(event))
            more = None
        if not more:
            self._write_pieces(_pieces(line) if len(record.data) > _PIECE else iter((dump(line),)))
            return
        self._write_line(dump(line).removesuffix("]}"), "")
        pieces = more.take()
        if not line["rows"]:
            self._stream.write(next(pieces)[1:])  # no comma before the first
        for piece in pieces:
            self._stream.write(piece)
        self._write_line("]}")

    def _write_by_kernel(self, line: dict[str, Any], kernel: Rows, packed: bytes) -> bool:
        """Write the line of a rows event if the kernel can read all of the rows."""
        spool = Spool()
        try:
            end, _ = kernel.write(packed, spool.write)
        except BinlogError:
            return False
        if end != len(packed):
            return False
        self._write_line(dump(line | {"rows": []}).removesuffix("]}"), "")
        pieces = spool.take()
        self._stream.write(next(pieces, b"")[1:])  # each row has a comma in front
        for piece in pieces:
            self._stream.write(piece)
        self._write_line("]}")
        return True

    def _columns(self, table: TableRows[Rows], decoded: BinlogEvent) -> Columns:
        """Return names and conversions of a table's columns, found once for each table."""
        table_map = decoded.table_map
        assert table_map is not None
        # With the table itself, whose id is no other's as long as this is kept.
        _, columns = self._converts.get(
            table_map, id(table), lambda: (table, _columns_of(table.table, table.codecs))
        )
        return columns


_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dump(content: Any) -> str:
    """Write JSON in one line, in which nothing acts on a terminal; see :func:`printable_json`."""
    return printable_json(_encode(content))


def _pieces(content: Any) -> Iterator[str]:
    """Write JSON as :func:`dump` does, in pieces: text may take many times its bytes."""
    if isinstance(content, dict):
        lead = "{"
        for name, value in content.items():
            yield f"{lead}{dump(name)}:"
            yield from _pieces(value)
            lead = ","
        yield "}" if content else "{}"
    elif isinstance(content, str) and len(content) > _SLICE:
        yield '"'
        for start in range(0, len(content), _SLICE):
            yield dump(content[start : start + _SLICE])[1:-1]
        yield '"'
    else:
        yield dump(content)


def event_fields(event: Event) -> dict[str, Any]:
    """Return the declared fields of an event as plain values, those that are None left out."""
    fields: dict[str, Any] = {}
    for name in _field_names(type(event)):
        if name in _UNPACKED:
            # What cannot be unpacked is shown as it is.
            with contextlib.suppress(BinlogError):
                fields[_UNPACKED[name]] = _bytes(_UNPACKED[name], getattr(event, _UNPACKED[name]))
                continue
        value = getattr(event, name)
        if type(value) is int:
            fields[name] = value
        elif value is not None:
            fields[name] = _plain(name, value)
    return fields


@lru_cache(maxsize=64)
def _table_map_fields(event: Event) -> dict[str, Any]:
    """Return the fields of a table map, cached: each statement repeats them."""
    return event_fields(event)


@lru_cache(maxsize=64)
def _session(variables: StatusVariables) -> dict[str, Any]:
    """Return status variables, cached: each statement of a session repeats them."""
    return _parts(variables)


def _field_names(declared: type) -> tuple[str, ...]:
    """Return the names of the fields that are shown."""
    names = _NAMES.get(declared)
    if names is None:
        declared_names = (field.name for field in declared_fields(declared))
        names = _NAMES[declared] = tuple(name for name in declared_names if name not in _LEFT_OUT)
    return names


def _plain(name: str, value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is bytes:
        return _bytes(name, value)
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if kind is tuple:
        return [_plain(name, item) for item in value]
    if kind is int:
        return value
    return _session(value) if kind is StatusVariables else _parts(value)


def _parts(value: Any) -> dict[str, Any]:
    parts = ((part, getattr(value, part)) for part in _field_names(type(value)))
    return {part: _plain(part, held) for part, held in parts if held is not None}


def _base64(value: bytes) -> dict[str, str]:
    return {"base64": binascii.b2a_base64(value, newline=False).decode("ascii")}


def _bytes(name: str, value: bytes) -> str | dict[str, str]:
    if name == "sid" and len(value) == 16:
        return sid_text(value)
    if name in _TEXT_FIELDS:
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return _base64(value)


def _text(value: str) -> str | dict[str, str]:
    """Return a text; one with bytes that are not UTF-8, which it has as lone surrogates, as its bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return _base64(encode_text(value))
    return value


# ------------------------------------------------------------------------------------------------- the rows


def _is_plain(codec: ColumnCodec) -> bool:
    """Return whether texts and integers among a column's natural values are JSON as they are."""
    return type(codec).to_json is ColumnCodec.to_json


def _columns_of(table: ResolvedTable, codecs: tuple[ColumnCodec, ...]) -> Columns:
    return [
        (column.name or "", _conversion(codec), _is_plain(codec))
        for column, codec in zip(table.columns, codecs, strict=True)
    ]


_ESCAPES: Final = tuple(
    dump(chr(code))[1:-1].encode() if code < 0x80 and dump(chr(code)) != f'"{chr(code)}"' else b""
    for code in range(256)
)
_QUOTE: Final = b'"'


def _by_kernel(table: ResolvedTable, codecs: tuple[ColumnCodec, ...], bitmaps: Bitmaps) -> Rows | None:
    """Make the kernel's writer of rows; of columns with the same name one alone could be shown."""
    columns = _columns_of(table, codecs)
    if len({name for name, _, _ in columns}) != len(columns):
        return None
    texts = []
    for codec, (name, convert, is_plain) in zip(codecs, columns, strict=True):
        key = dump(name).encode() + b":"
        texts.append(
            TextColumn(value_of(codec, _VALUES), _writer(codec, convert, is_plain), key, b"", key + b"null")
        )
    first = b',{"before":{', b"}" if bitmaps[1] is not None else b"}}"
    second = b',"after":{' if bitmaps[0] is not None else b',{"after":{', b"}}"
    return rows_by_kernel(codecs, texts, bitmaps, escapes=_ESCAPES, around=(first, second), between=b",")


_VALUES: Final = {
    NativeKind.SIGNED: Value(TextKind.SIGNED),
    NativeKind.UNSIGNED: Value(TextKind.UNSIGNED),
    NativeKind.UNSIGNED_DECIMAL: Value(TextKind.UNSIGNED),
    NativeKind.REAL: Value(TextKind.REAL),
    NativeKind.DECIMAL: Value(TextKind.DECIMAL, quote=_QUOTE),
    NativeKind.DECIMAL_TEXT: Value(TextKind.DECIMAL, quote=_QUOTE),
    NativeKind.UTF8: Value(TextKind.STRING, quote=_QUOTE),
    NativeKind.JSON: Value(TextKind.JSON, quote=_QUOTE),
    NativeKind.DATE: Value(TextKind.DATE, ord("-"), quote=_QUOTE),
    NativeKind.TIME: Value(TextKind.TIME, quote=_QUOTE),
    NativeKind.DATETIME: Value(TextKind.DATETIME, quote=_QUOTE),
    NativeKind.TIMESTAMP: Value(TextKind.TIMESTAMP, quote=_QUOTE),
}


def _writer(codec: ColumnCodec, convert: Convert, is_plain: bool) -> Callable[[Any], bytes]:
    """Bind the way of one value to its JSON."""

    def write(payload: Any) -> bytes:
        value = codec.decode(payload)
        return dump(value if is_plain and type(value) in (str, int) else convert(value)).encode()

    return write


def _row(columns: Columns, row: Row, room: Room) -> dict[str, Any]:
    before, after = row
    shown = {}
    if before is not None:
        shown["before"] = _image(columns, before, room)
    if after is not None:
        shown["after"] = _image(columns, after, room, before)
    return shown


def _row_texts(columns: Columns, rows: Iterator[Row], room: Room) -> Iterator[str]:
    """Write rows, each after a comma, in pieces."""
    parts: list[str] = []
    size = 0
    last: Row | None = None
    text = ""
    for row in rows:
        if row is not last:
            shown = _row(columns, row, room)
            if _is_large(shown):
                yield "".join(parts) + ","
                parts, size, last = [], 0, None
                yield from _pieces(shown)
                continue
            last, text = row, "," + dump(shown)
        parts.append(text)
        size += len(text)
        if size > _SLICE:
            yield "".join(parts)
            parts, size = [], 0
    yield "".join(parts)


def _is_large(shown: dict[str, Any]) -> bool:
    """Return whether the text of a row is better written in pieces."""
    size = 0
    for image in shown.values():
        for value in image.values():
            kind = type(value)
            if kind is str:
                size += len(value)
            elif kind is dict:
                size += sum(map(len, value.values()))
    return size > _SLICE


def _image(columns: Columns, values: Values, room: Room, before: Values | None = None) -> dict[str, Any]:
    shown = {}
    for ordinal, ((name, convert, is_plain), value) in enumerate(zip(columns, values, strict=True)):
        kind = type(value)
        if value is None or (is_plain and (kind is str or kind is int)):
            shown[name] = value
        elif value is ABSENT:
            continue
        elif kind is CompressedValue and not room.takes(claimed_size(value.stored)):
            shown[name] = _base64(value.stored)
        elif kind is JsonDiffs:
            shown[name] = _changed_document(value, None if before is None else before[ordinal])
        else:
            shown[name] = convert(value)
    return shown


def _changed_document(diffs: JsonDiffs, before: Any) -> Any:
    """Return the document that partial JSON leads to; the changes as bytes without the one before."""
    if isinstance(before, JsonValue):
        # A document that cannot be changed that way is shown by the changes.
        with contextlib.suppress(BinlogError):
            return diffs.applied_text(before)
    return {"json_diffs": _base64(diffs.binary)["base64"]}


def _conversion(codec: ColumnCodec) -> Convert:
    """Choose how a column's natural values become JSON."""

    def convert(value: Any) -> Any:
        found = codec.to_json(value)
        return _base64(found) if isinstance(found, bytes) else found

    return convert


def _packed_rows(event: RowsEvent) -> bytes:
    packed = getattr(event, "compressed_rows", None)
    return event.rows if packed is None else bytes(packed)

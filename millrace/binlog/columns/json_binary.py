"""MySQL's binary JSON: a document is read by offsets, so that one member can be found without the others.

Specified in ``sql/json_binary.h`` of the server. A value is a type byte and, after it or where an offset
points, its bytes; offsets count from the start of the array or object that holds them, in 2 bytes where
that is small and 4 where it is large. Little-endian throughout. Documents that were updated in place have
gaps, and bytes in them that no offset reaches, so a document is kept in its binary form and never written
again.

The text is what the server prints: MySQL 5.7 writes the double 1.0 as ``1``, newer ones as ``1.0``.
"""

import base64
import datetime as dt
import itertools
import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace.binlog.columns.numbers import DecimalFormat, format_double
from millrace.binlog.columns.temporals import (
    Date,
    DateTime,
    checked_datetime,
    checked_fraction,
    checked_time,
    time_text,
)
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import InvalidValueError, TruncatedError, UnrepresentableError

__all__ = ["MAX_DEPTH", "JsonValue", "Opaque", "decode_json", "json_text", "text_of_json"]

MAX_DEPTH = 100
"""The servers refuse to store documents that are deeper (JSON_DOCUMENTMAX_DEPTH)."""


class Opaque(NamedTuple):
    """A value that JSON has no type for: a column type and the value in that type's binary form."""

    type: int
    data: bytes


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON document in its binary form; ``str()`` gives its text, :attr:`value` its content."""

    binary: bytes

    @property
    def value(self) -> Any:
        """The content: None, bool, int, float, str, list, dict, or :class:`Opaque` where JSON has no type."""
        return decode_json(self.binary)

    def __str__(self) -> str:
        return json_text(self.binary)


class _Document:
    """Reads the values of one document; every reference is checked against the end of what holds it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.values_left = 1 + len(data) // 3
        self.bytes_left = len(data)

    def count(self, depth: int) -> None:
        """Take note of one more value at a depth."""
        # Offsets may overlap in a crafted document; in an honest one an entry of a value takes three bytes.
        self.values_left -= 1
        if self.values_left < 0 or depth > MAX_DEPTH:
            raise InvalidValueError("the JSON document is deeper or larger than its bytes allow")

    def value(self, kind: int, start: int, end: int, depth: int) -> Any:
        """Read the value of type ``kind`` that lies at ``start`` and ends at ``end`` at the latest."""
        self.count(depth)
        reader = _READERS.get(kind)
        if reader is None:
            raise InvalidValueError(f"{kind:#04x} is not a type of a JSON value")
        return reader(self, start, end, depth)

    def bytes(self, start: int, size: int, end: int) -> bytes:
        if start + size > end:
            raise TruncatedError(f"a JSON value of {size} bytes at {start} reaches past {end}")
        # As with the values: no two of an honest document share their bytes.
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise InvalidValueError("the JSON document is larger than its bytes allow")
        return self.data[start : start + size]

    def length(self, start: int, end: int) -> tuple[int, int]:
        """Read a length of seven bits a byte, lowest first; the last byte has its top bit clear."""
        length = 0
        for index in range(5):
            if start + index >= end:
                break
            byte = self.data[start + index]
            length |= (byte & 0x7F) << 7 * index
            if not byte & 0x80:
                return length, start + index + 1
        raise InvalidValueError(f"a length in the JSON document does not end at {start}")

    def entries(self, start: int, end: int, *, large: bool, keyed: bool) -> "_Entries":
        """Read the head of an array or object."""
        width = 4 if large else 2
        count = int.from_bytes(self.bytes(start, width, end), "little")
        size = int.from_bytes(self.bytes(start + width, width, end), "little")
        if start + size > end:
            raise TruncatedError(f"a JSON container of {size} bytes at {start} reaches past {end}")
        keys = start + 2 * width
        values = keys + count * (width + 2) * keyed
        if values + count * (width + 1) > start + size:
            raise TruncatedError(f"{count} entries do not fit the JSON container at {start}")
        return _Entries(self, start, start + size, width, count, keys, values)


@dataclass(slots=True)
class _Entries:
    """The tables of an array or object: where its keys and values are."""

    document: _Document
    start: int
    end: int
    width: int
    count: int
    keys_start: int
    values_start: int

    def keys(self) -> Iterator[str]:
        data, width = self.document.data, self.width
        for index in range(self.count):
            entry = self.keys_start + index * (width + 2)
            offset = int.from_bytes(data[entry : entry + width], "little")
            size = int.from_bytes(data[entry + width : entry + width + 2], "little")
            yield _utf8(self.document.bytes(self.start + offset, size, self.end))

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield the type of each value, where it lies and where it ends at the latest."""
        data, width = self.document.data, self.width
        for index in range(self.count):
            entry = self.values_start + index * (width + 1)
            kind = data[entry]
            if kind in _INLINE or (width == 4 and kind in _INLINE_IF_LARGE):
                yield kind, entry + 1, entry + 1 + width
            else:
                offset = int.from_bytes(data[entry + 1 : entry + 1 + width], "little")
                yield kind, self.start + offset, self.end

    def values(self, depth: int) -> Iterator[Any]:
        read = self.document.value
        return (read(kind, start, end, depth) for kind, start, end in self.places())


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UnrepresentableError(f"a string in the JSON document is not UTF-8: {raw[:40].hex()}") from error


def _container(*, large: bool, keyed: bool) -> "_Reader":
    def read(document: _Document, start: int, end: int, depth: int) -> Any:
        entries = document.entries(start, end, large=large, keyed=keyed)
        values = entries.values(depth + 1)
        return dict(zip(entries.keys(), values, strict=True)) if keyed else list(values)

    return read


def _number(code: str) -> "_Reader":
    layout = struct.Struct("<" + code)

    def read(document: _Document, start: int, end: int, depth: int) -> Any:  # noqa: ARG001 - as all readers
        return layout.unpack(document.bytes(start, layout.size, end))[0]

    return read


def _double(document: _Document, start: int, end: int, depth: int) -> float:  # noqa: ARG001 - as all readers
    found: float = struct.unpack("<d", document.bytes(start, 8, end))[0]
    if not math.isfinite(found):
        raise InvalidValueError(f"{found} is not a number of JSON")
    return found


def _literal(document: _Document, start: int, end: int, depth: int) -> Any:  # noqa: ARG001 - as all readers
    code = document.bytes(start, 1, end)[0]
    if code > 2:
        raise InvalidValueError(f"{code} is not a literal of JSON")
    return (None, True, False)[code]


def _string(document: _Document, start: int, end: int, depth: int) -> str:  # noqa: ARG001 - as all readers
    size, start = document.length(start, end)
    return _utf8(document.bytes(start, size, end))


def _opaque(document: _Document, start: int, end: int, depth: int) -> Opaque:  # noqa: ARG001 - as all readers
    kind = document.bytes(start, 1, end)[0]
    size, start = document.length(start + 1, end)
    return Opaque(kind, document.bytes(start, size, end))


_Reader = Callable[[_Document, int, int, int], Any]

_CONTAINERS = {kind: (bool(kind & 1), kind < 2) for kind in range(4)}
"""The types of objects and arrays: whether it is a large one, and whether it is an object."""
_TOGETHER = 4096

_READERS: dict[int, _Reader] = {
    **{kind: _container(large=large, keyed=keyed) for kind, (large, keyed) in _CONTAINERS.items()},
    0x04: _literal,
    0x05: _number("h"),
    0x06: _number("H"),
    0x07: _number("i"),
    0x08: _number("I"),
    0x09: _number("q"),
    0x0A: _number("Q"),
    0x0B: _double,
    0x0C: _string,
    0x0F: _opaque,
}
_INLINE = frozenset((0x04, 0x05, 0x06))
_INLINE_IF_LARGE = frozenset((0x07, 0x08))


def decode_json(binary: bytes) -> Any:
    """Read a document: None, bool, int, float, str, list, dict and :class:`Opaque`.

    No bytes at all are JSON's null, as the server has it. Raise :class:`MalformedError` for what is no
    document and :class:`UnrepresentableError` for strings that are no UTF-8.
    """
    if not binary:
        return None
    return _Document(binary).value(binary[0], 1, len(binary), 0)


_STRING_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_STRING_ESCAPES.update({code: f"\\u{code:04x}" for code in range(32) if code not in _STRING_ESCAPES})


def _double_text(value: float, *, whole_doubles: bool) -> str:
    text = format_double(value)
    return text if whole_doubles or "." in text or "e" in text else text + ".0"


def _packed_time(data: bytes) -> tuple[int, int]:
    """Take apart the server's packed temporal (int64): whole part and microseconds, both signed."""
    if len(data) != 8:
        raise InvalidValueError(f"a temporal in a JSON document has {len(data)} bytes, not 8")
    packed = int.from_bytes(data, "little", signed=True)
    whole, micros = divmod(abs(packed), 1 << 24)
    return (-whole, -micros) if packed < 0 else (whole, micros)


def _opaque_time(data: bytes) -> str:
    whole, micros = _packed_time(data)
    hms = abs(whole)
    fraction = checked_fraction(abs(micros))
    value = dt.timedelta(microseconds=checked_time(hms >> 12, hms >> 6 & 63, hms & 63, fraction))
    return time_text(-value if whole < 0 or micros < 0 else value, 6)


def _opaque_datetime(data: bytes) -> DateTime:
    whole, micros = _packed_time(data)
    if whole < 0:
        raise InvalidValueError(f"{data.hex()} is not a DATETIME")
    year, month = divmod(whole >> 22, 13)
    clock = whole >> 12 & 31, whole >> 6 & 63, whole & 63
    return checked_datetime(DateTime(year, month, whole >> 17 & 31, *clock, checked_fraction(micros)))


def _opaque_text(value: Opaque) -> str:
    """Write what JSON lacks: decimals as numbers, dates and times as strings, all else in base64."""
    kind, data = value
    if kind == ColumnType.NEWDECIMAL:
        if len(data) < 2:
            raise InvalidValueError("a decimal in a JSON document has no precision and scale")
        form = DecimalFormat(data[0], data[1])
        if len(data) != 2 + form.size:
            raise InvalidValueError(
                f"a decimal in a JSON document has {len(data)} bytes, not {2 + form.size}"
            )
        return f"{form.decode(data[2:]):f}"
    if kind == ColumnType.DATE:
        return f'"{Date(*_opaque_datetime(data)[:3])}"'
    if kind in (ColumnType.DATETIME, ColumnType.TIMESTAMP):
        return f'"{_opaque_datetime(data).text(6)}"'
    if kind == ColumnType.TIME:
        return f'"{_opaque_time(data)}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode("ascii")}"'


def text_of_json(value: Any, *, whole_doubles: bool = False) -> str:
    """Write the content of a document, as :func:`decode_json` gives it, as the server prints it.

    With ``whole_doubles`` as MySQL 5.7 does, which writes a double without a fraction as it does an integer.
    """
    if isinstance(value, str):
        return f'"{value.translate(_STRING_ESCAPES)}"'
    if isinstance(value, dict):
        members = (
            f"{text_of_json(key)}: {text_of_json(item, whole_doubles=whole_doubles)}"
            for key, item in value.items()
        )
        return "{" + ", ".join(members) + "}"
    if isinstance(value, Opaque):
        return _opaque_text(value)
    if isinstance(value, list):
        return "[" + ", ".join([text_of_json(item, whole_doubles=whole_doubles) for item in value]) + "]"
    if isinstance(value, float):
        return _double_text(value, whole_doubles=whole_doubles)
    return json.dumps(value)


def _key_text(key: str) -> str:
    return f'"{key.translate(_STRING_ESCAPES)}": '


class _Text:
    """The text of a document, written straight from its bytes: the values would take many times as much."""

    def __init__(self, binary: bytes, *, whole_doubles: bool) -> None:
        self._document = _Document(binary)
        self._whole_doubles = whole_doubles
        self._written: list[str] = []
        self._parts: list[str] = []

    def all(self) -> str:
        """Return what has been written."""
        return "".join([*self._written, *self._parts])

    def value(self, kind: int, start: int, end: int, depth: int) -> None:
        """Write a value; see :meth:`_Document.value`."""
        parts = self._parts
        if kind not in _CONTAINERS:
            content = self._document.value(kind, start, end, depth)
            parts.append(text_of_json(content, whole_doubles=self._whole_doubles))
            return
        large, keyed = _CONTAINERS[kind]
        self._document.count(depth)
        entries = self._document.entries(start, end, large=large, keyed=keyed)
        keys = map(_key_text, entries.keys()) if keyed else itertools.repeat("")
        before, after = "{}" if keyed else "[]"
        for key, place in zip(keys, entries.places(), strict=False):
            parts += (before, key)
            self.value(*place, depth + 1)
            before = ", "
            if len(parts) > _TOGETHER:
                self._written.append("".join(parts))
                parts.clear()
        parts.append(after if entries.count else before + after)


def json_text(binary: bytes, *, whole_doubles: bool = False) -> str:
    """Write a document as the server prints it; as :func:`text_of_json` and :func:`decode_json`, in one."""
    if not binary:
        return "null"
    text = _Text(binary, whole_doubles=whole_doubles)
    text.value(binary[0], 1, len(binary), 0)
    return text.all()

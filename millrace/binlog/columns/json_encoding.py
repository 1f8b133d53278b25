"""MySQL's binary JSON of a document's text, as far as that text tells.

A server gives a document as text only. Encoded here and printed again by
:mod:`millrace.binlog.columns.json_binary` it gives the same text: numbers whose text is not that of a double
are decimals, and what JSON has no type for (dates, bytes) is the string that the server prints. Containers
are written in the large format, whatever their size. Specified in ``sql/json_binary.h`` of the server.
"""

import json
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from millrace.binlog.columns.json_binary import text_of_json
from millrace.binlog.columns.numbers import DecimalFormat
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import InvalidValueError

__all__ = ["encode_json"]

_LARGE_OBJECT: Final = 0x01
_LARGE_ARRAY: Final = 0x03
_LITERAL: Final = 0x04
_INT16: Final = 0x05
_INT64: Final = 0x09
_UINT64: Final = 0x0A
_INTEGERS: Final = (
    (_INT16, "<h", -(1 << 15), (1 << 15) - 1),
    (_INT64, "<q", -(1 << 63), (1 << 63) - 1),
    (_UINT64, "<Q", 0, (1 << 64) - 1),
)
_DOUBLE: Final = 0x0B
_STRING: Final = 0x0C
_OPAQUE: Final = 0x0F
_INLINE: Final = (_LITERAL, _INT16)
_LITERALS: Final = {None: b"\0", True: b"\1", False: b"\2"}
_ENTRY: Final = 4
"""Bytes of a count, a size, an offset in the large format."""


@dataclass(frozen=True, slots=True)
class _Number:
    """A number with a fraction or an exponent, as it is written."""

    text: str


def encode_json(text: str) -> bytes:
    """Encode a document; raises :class:`InvalidValueError` where it is none."""
    try:
        document = json.loads(text, parse_float=_Number, parse_constant=_Number)
        kind, data = _value(document)
    except (ValueError, RecursionError, struct.error, OverflowError) as error:
        raise InvalidValueError(f"the server returned an invalid JSON document: {error}") from error
    return bytes((kind,)) + data


def _value(value: Any) -> tuple[int, bytes]:
    """Return type and bytes of a value."""
    if isinstance(value, str):
        return _STRING, _sized(value.encode())
    if isinstance(value, dict):
        return _LARGE_OBJECT, _container([key.encode() for key in value], list(value.values()))
    if isinstance(value, list):
        return _LARGE_ARRAY, _container([], value)
    if isinstance(value, _Number):
        return _number(value.text)
    return (_LITERAL, _LITERALS[value]) if value is None or isinstance(value, bool) else _integer(value)


def _integer(value: int) -> tuple[int, bytes]:
    for kind, code, least, most in _INTEGERS:
        if least <= value <= most:
            return kind, struct.pack(code, value)
    return _number(str(value))


def _number(text: str) -> tuple[int, bytes]:
    """Encode a number as the double that is printed so, else as a decimal."""
    double = float(text)
    if text_of_json(double) == text:
        return _DOUBLE, struct.pack("<d", double)
    sign, digits, exponent = Decimal(text).as_tuple()
    if not isinstance(exponent, int) or exponent > 0:
        return _DOUBLE, struct.pack("<d", double)
    form = DecimalFormat(max(len(digits), -exponent, 1), -exponent)
    packed = bytes((form.precision, form.scale)) + form.encode(Decimal((sign, digits, exponent)))
    return _OPAQUE, bytes((ColumnType.NEWDECIMAL,)) + _sized(packed)


def _sized(data: bytes) -> bytes:
    """Put the length in front, seven bits a byte, the lowest first."""
    size, length = len(data), bytearray()
    while size >> 7:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + data


def _container(keys: list[bytes], values: list[Any]) -> bytes:
    """Write count, size, the entries of keys and of values, then keys and values themselves."""
    at = 2 * _ENTRY + len(keys) * (_ENTRY + 2) + len(values) * (_ENTRY + 1)
    entries, contents = bytearray(), [*keys]
    for key in keys:
        entries += struct.pack("<IH", at, len(key))
        at += len(key)
    for value in values:
        kind, data = _value(value)
        if kind in _INLINE:
            entries += bytes((kind,)) + data.ljust(_ENTRY, b"\0")
            continue
        entries += struct.pack("<BI", kind, at)
        contents.append(data)
        at += len(data)
    return struct.pack("<II", len(values), at) + bytes(entries) + b"".join(contents)

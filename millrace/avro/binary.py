"""Avro's binary form, written by functions that are bound once per schema.

``writer(schema)`` returns a function from a value to its bytes. A row is written by a tuple of such
functions, one per column, and one join: about twice as fast as a general encoder, which looks at the schema
again for each value and tries the branches of each union. Specified in "Binary Encoding" of the Avro
specification; values are those that fastavro takes for the same schema without its logical types.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from millrace import kernel
from millrace.avro.schemas import Schema

Writer = Callable[[Any], bytes]
"""From a value to its bytes."""

_NULL: Final = b"\x00"
"""The branch null of ["null", …]."""
_SOME: Final = b"\x02"
"""The branch after null."""


def long(value: int) -> bytes:
    """Write an int or long: zigzag, then seven bits per byte, the lowest first.

    The high bit says that more bytes follow. Raises OverflowError beyond 64 bits.
    """
    number = value << 1 if value >= 0 else ~value << 1 | 1
    if number < 128:
        return number.to_bytes()
    if number >> 64:
        raise OverflowError("a long of Avro has 64 bits")
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def string(value: str) -> bytes:
    """Write a string: its size in bytes, then UTF-8; a lone surrogate, which has none, as an escape."""
    data = value.encode(errors="backslashreplace")
    return long(len(data)) + data


def array_of_strings(values: Sequence[str]) -> bytes:
    """Write an array of strings as one block."""
    return long(len(values)) + b"".join(map(string, values)) + b"\x00" if values else b"\x00"


Pack = Callable[..., bytes]
"""Writes values one after the other, each by its letter in the form, which comes first.

b: bytes that are written already; l: a long; s: a string; L and S: the same after null, or None.
"""


def packer() -> Pack:
    """Return the function that packs: the kernel's where there is one."""
    if not kernel.has("rows"):
        return _pack
    from millrace.kernel.rows import pack  # noqa: PLC0415 - only where it is built

    return pack


def _pack(form: str, *values: Any) -> bytes:
    return b"".join([_PACKED[letter](value) for letter, value in zip(form, values, strict=True)])


def _bytes(value: bytes) -> bytes:
    return long(len(value)) + value


def _null(_: None) -> bytes:
    return b""


def _boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


_PACKED: Final[dict[str, Writer]] = {
    "b": bytes,
    "l": long,
    "s": string,
    "L": lambda value: _NULL if value is None else _SOME + long(value),
    "S": lambda value: _NULL if value is None else _SOME + string(value),
}

_PLAIN: Final[dict[str, Writer]] = {
    "null": _null,
    "boolean": _boolean,
    "int": long,
    "long": long,
    "float": struct.Struct("<f").pack,
    "double": struct.Struct("<d").pack,
    "bytes": _bytes,
    "string": string,
}


def _nullable_string(value: str | None) -> bytes:
    """Write a string, and refuse a lone surrogate."""
    if value is None:
        return _NULL
    data = value.encode()
    return _SOME + long(len(data)) + data


_pack_float = struct.Struct("<Bf").pack
_pack_double = struct.Struct("<Bd").pack


def _nullable_float(value: float | None) -> bytes:
    return _NULL if value is None else _pack_float(2, value)


def _nullable_double(value: float | None) -> bytes:
    return _NULL if value is None else _pack_double(2, value)


_NULLABLE: Final[dict[str, Writer]] = {
    "float": _nullable_float,
    "double": _nullable_double,
    "string": _nullable_string,
}


def writer(schema: Schema) -> Writer:
    """Return the function that writes values of ``schema``.

    Unions are ["null", something]; named types are written out where they are used. Raises ValueError for a
    schema beyond that.
    """
    if isinstance(schema, list):
        return _union(schema)
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(kind, list | dict):
        return writer(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(schema, str) or kind not in _COMPLEX:
        raise ValueError(f"no writer for the Avro type {kind}")
    return _COMPLEX[kind](schema)


def _union(branches: list[Any]) -> Writer:
    if len(branches) != 2 or branches[0] != "null":
        raise ValueError(f"no writer for the union {branches}, only for null and one type after it")
    inner = branches[1]
    kind = inner["type"] if isinstance(inner, dict) else inner
    if isinstance(kind, str) and kind in _NULLABLE:
        return _NULLABLE[kind]
    write = writer(inner)
    return lambda value: _NULL if value is None else _SOME + write(value)


def _array(schema: dict[str, Any]) -> Writer:
    write = writer(schema["items"])

    def array(values: Sequence[Any]) -> bytes:
        return long(len(values)) + b"".join(map(write, values)) + b"\x00" if len(values) else b"\x00"

    return array


def _map(schema: dict[str, Any]) -> Writer:
    write = writer(schema["values"])

    def mapping(values: dict[str, Any]) -> bytes:
        if not values:
            return b"\x00"
        entries = b"".join(string(key) + write(value) for key, value in values.items())
        return long(len(values)) + entries + b"\x00"

    return mapping


def _record(schema: dict[str, Any]) -> Writer:
    fields = [(field["name"], writer(field["type"])) for field in schema["fields"]]

    def record(values: dict[str, Any]) -> bytes:
        return b"".join([write(values[name]) for name, write in fields])

    return record


def _enum(schema: dict[str, Any]) -> Writer:
    return {symbol: long(index) for index, symbol in enumerate(schema["symbols"])}.__getitem__


_COMPLEX: Final[dict[str, Callable[[dict[str, Any]], Writer]]] = {
    "array": _array,
    "enum": _enum,
    "map": _map,
    "record": _record,
}

"""The wire types of which events are declared: ``xid: U64 = body()``.

Each name below is an alias of the Python type that a field has, annotated with a :class:`FieldType`: how the
field is called in the documentation, how it is read and written, and what kind of Avro value it becomes.
Integers are little-endian. Names (databases, tables, files) are ``str``: UTF-8, where a byte that is not
UTF-8 is kept as a lone surrogate (``errors="surrogateescape"``), so that no name is lost or changed. What a
user wrote (statements, messages) is ``bytes``, for its character set is the session's.

Reading is strict: what is accepted is exactly what writing gives back.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from millrace.binlog.errors import EncodeError, InvalidValueError, TruncatedError

__all__ = [
    "I64",
    "U8",
    "U16",
    "U24",
    "U32",
    "U48",
    "U56",
    "U64",
    "Bitmap",
    "Bytes8",
    "Bytes12",
    "Bytes16",
    "Bytes32",
    "Counted",
    "CountingBytes16",
    "FieldType",
    "Kind",
    "Lenenc",
    "LenencBytes",
    "NonZero8",
    "PaddedText40",
    "PaddedText50",
    "Read",
    "RestBytes",
    "RestText",
    "SizedBytes16",
    "Text8",
    "Text8Nul",
    "Text32",
    "TextNul",
    "Write",
    "Zero",
    "decode_text",
    "encode_text",
    "pack_lenenc",
    "read_lenenc",
    "truncated",
]

Read = Callable[[bytes, int, int], tuple[Any, int]]
Write = Callable[[Any], bytes]

Kind = Literal["int", "long", "uint64", "bytes", "string", "record", "array"]


@dataclass(frozen=True, slots=True)
class FieldType:
    """How one kind of field is read, written and described.

    ``read(data, offset, end)`` gives the value and the offset after it and never looks at or past ``end``;
    ``write(value)`` gives the bytes. ``kind`` is the Avro value that the field becomes: ``uint64`` is a long
    that holds the same 64 bits; ``record`` and ``array`` name their content in ``record`` and ``item``.
    ``struct_code`` is set where :mod:`struct` knows the type: runs of such fields are read in one call. A
    type that reads to the end also serves a field whose length stands elsewhere.
    """

    name: str
    kind: Kind
    read: Read
    write: Write
    struct_code: str = ""
    record: type | None = None
    item: "FieldType | None" = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Marks a tuple as a list whose count, of this type, stands before it.

    ``Annotated[tuple[Item, ...], Counted(U32)]``.
    """

    count: Any


def truncated(name: str, needed: int, offset: int, end: int) -> TruncatedError:
    """Make the error for a field of ``needed`` bytes at ``offset`` that reaches past ``end``."""
    return TruncatedError(f"{name} needs {needed} bytes at offset {offset}, {max(end - offset, 0)} are left")


def decode_text(raw: bytes) -> str:
    """Make a name of its UTF-8 bytes; bytes that are not UTF-8 become lone surrogates."""
    return raw.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes:
    """Return the bytes of a name; the inverse of :func:`decode_text`."""
    return text.encode("utf-8", "surrogateescape")


def _struct_type(name: str, code: str, kind: Kind) -> FieldType:
    layout = struct.Struct("<" + code)
    unpack, pack, size = layout.unpack_from, layout.pack, layout.size

    def read(data: bytes, offset: int, end: int) -> tuple[Any, int]:
        after = offset + size
        if after > end:
            raise truncated(name, size, offset, end)
        return unpack(data, offset)[0], after

    return FieldType(name, kind, read, pack, struct_code=code)


def _odd_integer_type(size: int) -> FieldType:
    name = f"uint{size * 8}"

    def read(data: bytes, offset: int, end: int) -> tuple[Any, int]:
        after = offset + size
        if after > end:
            raise truncated(name, size, offset, end)
        return int.from_bytes(data[offset:after], "little"), after

    def write(value: int) -> bytes:
        return value.to_bytes(size, "little")

    return FieldType(name, "int" if size < 4 else "long", read, write)


def _fixed_bytes_type(size: int, limit: str = "") -> FieldType:
    name = f"bytes[{size}]"
    limit = limit or f"{name} holds"

    def read(data: bytes, offset: int, end: int) -> tuple[Any, int]:
        after = offset + size
        if after > end:
            raise truncated(name, size, offset, end)
        return data[offset:after], after

    def write(value: bytes) -> bytes:
        if len(value) != size:
            raise EncodeError(f"{limit} {size} bytes, not {len(value)}")
        return value

    return FieldType(name, "bytes", read, write, struct_code=f"{size}s")


def _read_non_zero(data: bytes, offset: int, end: int) -> tuple[int, int]:
    return (data[offset], offset + 1) if offset < end and data[offset] else (0, offset)


def _read_zero(data: bytes, offset: int, end: int) -> tuple[int, int]:
    if offset >= end:
        raise truncated("zero byte", 1, offset, end)
    if data[offset]:
        raise InvalidValueError(
            f"{data[offset]} at offset {offset}, where a zero byte ends the name before it"
        )
    return 0, offset + 1


def _rest(data: bytes, offset: int, end: int) -> tuple[bytes, int]:
    return data[offset:end], end


def _rest_text(data: bytes, offset: int, end: int) -> tuple[str, int]:
    return decode_text(data[offset:end]), end


def _same(value: bytes) -> bytes:
    return value


def read_lenenc(data: bytes, offset: int, end: int, what: str = "length-encoded integer") -> tuple[int, int]:
    """Read MySQL's length-encoded integer in its shortest form: 1, 3, 4 or 9 bytes."""
    if offset >= end:
        raise truncated(what, 1, offset, end)
    first = data[offset]
    if first < 251:
        return first, offset + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    if size is None:
        raise InvalidValueError(f"{what}: {first} does not start one (offset {offset})")
    after = offset + 1 + size
    if after > end:
        raise truncated(what, size + 1, offset, end)
    value = int.from_bytes(data[offset + 1 : after], "little")
    if value < (251, 1 << 16, 1 << 24)[first - 252]:
        raise InvalidValueError(f"{what}: {value} at offset {offset} could be shorter")
    return value, after


def pack_lenenc(value: int) -> bytes:
    """Write MySQL's length-encoded integer in its shortest form."""
    if value < 251:
        return value.to_bytes(1, "little")
    if value < 1 << 16:
        return b"\xfc" + value.to_bytes(2, "little")
    if value < 1 << 24:
        return b"\xfd" + value.to_bytes(3, "little")
    return b"\xfe" + value.to_bytes(8, "little")


def _prefixed_type(
    prefix_size: int, *, text: bool = False, terminator: bytes = b"", lenenc: bool = False
) -> FieldType:
    """Make the type of a string after its length, of ``prefix_size`` bytes or length-encoded."""
    what = "text" if text else "bytes"
    prefix = "lenenc" if lenenc else f"uint{prefix_size * 8}"
    name = f"{what}<{prefix}>" + (" NUL" if terminator else "")
    extra = len(terminator)

    def read(data: bytes, offset: int, end: int) -> tuple[Any, int]:
        if lenenc:
            size, start = read_lenenc(data, offset, end)
        else:
            start = offset + prefix_size
            if start > end:
                raise truncated(name, prefix_size, offset, end)
            size = int.from_bytes(data[offset:start], "little")
        after = start + size
        if after + extra > end:
            raise truncated(name, size + extra, start, end)
        value = data[start:after]
        if data[after : after + extra] != terminator:
            raise InvalidValueError(f"{name} at offset {offset} does not end with a zero byte")
        return decode_text(value) if text else value, after + extra

    def write(value: str | bytes) -> bytes:
        raw = encode_text(value) if isinstance(value, str) else value
        length = pack_lenenc(len(raw)) if lenenc else len(raw).to_bytes(prefix_size, "little")
        return length + raw + terminator

    return FieldType(name, "string" if text else "bytes", read, write)


def _read_counting(data: bytes, offset: int, end: int) -> tuple[bytes, int]:
    if offset + 2 > end:
        raise truncated("bytes<uint16 with itself>", 2, offset, end)
    size = data[offset] | data[offset + 1] << 8
    if size < 2:
        raise InvalidValueError(f"a length that counts itself, at offset {offset}, cannot be {size}")
    after = offset + size
    if after > end:
        raise truncated("bytes<uint16 with itself>", size, offset, end)
    return data[offset + 2 : after], after


def _padded_text_type(size: int, limit: str) -> FieldType:
    """Make the type of a text that is filled up with zeros; ``limit`` says in an error what it can hold."""
    name = f"text[{size}]"

    def read(data: bytes, offset: int, end: int) -> tuple[str, int]:
        after = offset + size
        if after > end:
            raise truncated(name, size, offset, end)
        return decode_text(data[offset:after].rstrip(b"\0")), after

    def write(value: str) -> bytes:
        raw = encode_text(value)
        if len(raw) > size:
            raise EncodeError(f"{limit}, not {len(raw)}")
        return raw.ljust(size, b"\0")

    return FieldType(name, "string", read, write)


def _read_nul_text(data: bytes, offset: int, end: int) -> tuple[str, int]:
    after = data.find(b"\0", offset, end)
    if after < 0:
        raise TruncatedError(f"text NUL at offset {offset} has no zero byte before offset {end}")
    return decode_text(data[offset:after]), after + 1


def _write_nul_text(value: str) -> bytes:
    raw = encode_text(value)
    if b"\0" in raw:
        raise EncodeError(f"{value!r} holds a zero byte, which would end it")
    return raw + b"\0"


U8 = Annotated[int, _struct_type("uint8", "B", "int")]
NonZero8 = Annotated[
    int, FieldType("uint8 unless 0", "int", _read_non_zero, lambda v: bytes([v]) if v else b"")
]
"""An integer that is left out where it is 0: 0 is then what is there next, or nothing."""
U16 = Annotated[int, _struct_type("uint16", "H", "int")]
U24 = Annotated[int, _odd_integer_type(3)]
U32 = Annotated[int, _struct_type("uint32", "I", "long")]
U48 = Annotated[int, _odd_integer_type(6)]
U56 = Annotated[int, _odd_integer_type(7)]
U64 = Annotated[int, _struct_type("uint64", "Q", "uint64")]
I64 = Annotated[int, _struct_type("int64", "q", "long")]
Zero = Annotated[int, FieldType("zero byte", "int", _read_zero, lambda _value: b"\0")]
"""A byte that is always 0."""
Lenenc = Annotated[int, FieldType("lenenc", "uint64", read_lenenc, pack_lenenc)]
Bytes12 = Annotated[bytes, _fixed_bytes_type(12)]
Bytes16 = Annotated[bytes, _fixed_bytes_type(16, "a sid has")]
Bytes8 = Annotated[bytes, _prefixed_type(1)]
SizedBytes16 = Annotated[bytes, _prefixed_type(2)]
CountingBytes16 = Annotated[
    bytes,
    FieldType(
        "bytes<uint16 with itself>",
        "bytes",
        _read_counting,
        lambda value: (len(value) + 2).to_bytes(2, "little") + value,
    ),
]
"""Bytes after a length that counts itself too."""
Bytes32 = Annotated[bytes, _prefixed_type(4)]
LenencBytes = Annotated[bytes, _prefixed_type(0, lenenc=True)]
Text8 = Annotated[str, _prefixed_type(1, text=True)]
Text8Nul = Annotated[str, _prefixed_type(1, text=True, terminator=b"\0")]
Text32 = Annotated[str, _prefixed_type(4, text=True)]
PaddedText40 = Annotated[str, _padded_text_type(40, "a view id has at most 40 bytes")]
PaddedText50 = Annotated[str, _padded_text_type(50, "text[50] holds 50 bytes")]
TextNul = Annotated[str, FieldType("text NUL", "string", _read_nul_text, _write_nul_text)]
RestBytes = Annotated[bytes, FieldType("bytes to the end", "bytes", _rest, _same)]
Bitmap = Annotated[bytes, FieldType("bitmap", "bytes", _rest, _same)]
"""A bit for each of what another field counts (``bits_of``), lowest first."""
RestText = Annotated[str, FieldType("text to the end", "string", _rest_text, encode_text)]

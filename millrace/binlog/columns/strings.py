"""Strings: CHAR and BINARY, VARCHAR and VARBINARY, the TEXT and BLOB families, MariaDB's compressed ones.

A value stands after its length, little-endian, in as many bytes as the greatest length needs (CHAR, VARCHAR)
or as the metadata says (BLOB). A CHAR travels without the spaces, a BINARY without the zero bytes at its end.

A natural value is ``str`` where the character set is known, the bytes are valid in it and the text encodes
to the same bytes again; in all other cases ``bytes``. A BINARY keeps the form that it travels in:
:meth:`text` and Avro give it its full length.

Metadata of STRING (``Field_string``, ``Field_enum``): real type, then the length in bytes; a length above
255 puts its bits 8-9, inverted, into bits 4-5 of the type, which is 0xFE, whose bits 4-5 are set.
"""

import base64
import ipaddress
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace.binlog.columns.charsets import BINARY, charset_of_text, max_bytes_per_character
from millrace.binlog.columns.column import BlobMetadata, Column, LengthMetadata, PackMetadata
from millrace.binlog.columns.declaration import (
    BINARY_AS,
    AvroOptions,
    AvroType,
    CatalogColumn,
    ColumnCodec,
    ColumnKind,
    Convert,
    MetadataLayout,
    Native,
    NativeKind,
    SelectedKind,
    Servers,
    always,
    declare,
    one_byte_metadata,
)
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import (
    EncodeError,
    InvalidValueError,
    MalformedError,
    TooLargeError,
    UnrepresentableError,
)
from millrace.binlog.inflate import MAX_UNPACKED, inflate

__all__ = ["BLOB_METADATA", "STRING_METADATA", "CompressedValue", "claimed_size", "uncompressed"]

BLOB_METADATA = one_byte_metadata(BlobMetadata, "length_bytes", "size of the length, 1-4 (uint8)")


def _decode_string_metadata(raw: bytes) -> LengthMetadata | PackMetadata:
    first, second = raw
    if first in (ColumnType.ENUM, ColumnType.SET):
        return PackMetadata(second)
    if first & 0x30 != 0x30:
        return LengthMetadata(second | (first & 0x30 ^ 0x30) << 4)
    return LengthMetadata(second)


def _encode_string_metadata(metadata: LengthMetadata) -> bytes:
    return bytes((ColumnType.STRING ^ (metadata.max_length & 0x300) >> 4, metadata.max_length & 0xFF))


STRING_METADATA = MetadataLayout(
    2,
    "real type and size; a length above 255 has bits 8-9 in the type, inverted (uint8 each)",
    _decode_string_metadata,
    _encode_string_metadata,
    "big",
)

VARCHAR_METADATA = MetadataLayout(
    2,
    "greatest length in bytes (uint16)",
    lambda raw: LengthMetadata(int.from_bytes(raw, "little")),
    lambda metadata: metadata.max_length.to_bytes(2, "little"),
)


_HIGHEST_OF_UTF8 = {"utf8mb3": 0xEF, "utf8mb4": 0xF4}
_ASCII = tuple(bytes((code,)) for code in range(128))


_DIGITS: dict[str, Callable[[bytes], str]] = {
    "base64": lambda data: base64.b64encode(data).decode("ascii"),
    "hex": bytes.hex,
}


class _StringCodec(ColumnCodec):
    """What all strings share: text or bytes, by the character set."""

    collations = Servers.ALL
    has_charset = True
    selected = SelectedKind.STRING
    pad = 0
    """Length to which a BINARY is filled up with zero bytes."""

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        metadata = column.metadata
        assert isinstance(metadata, LengthMetadata | BlobMetadata)
        self.length_bytes = metadata.length_bytes
        self.charset = charset_of_text(column.charset, column.collation_id)
        self.kind = _kind(column)

    def decode(self, payload: bytes) -> str | bytes:
        """Return str where the bytes are text that encodes to the same bytes, else bytes."""
        if self.charset is None:
            return payload
        try:
            text = self.charset.decode(payload)
            if not self.charset.injective and self.charset.encode(text) != payload:
                return payload
        except UnicodeError:
            return payload
        return text

    def encode(self, value: str | bytes) -> bytes:
        """Take str, or the bytes themselves."""
        if isinstance(value, bytes):
            return value
        if self.charset is None:
            raise EncodeError(f"column {self.column.name} holds bytes, not text")
        try:
            return self.charset.encode(value)
        except UnicodeError as error:
            raise EncodeError(f"{value!r} is not text in {self.charset.name}") from error

    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return string where the character set is known, else bytes, or digits by option."""
        if self.charset is not None:
            return "string"
        return "bytes" if options.binary == "bytes" else {"type": "string", BINARY_AS: options.binary}

    def avro_decoder(self, options: AvroOptions) -> Convert | None:
        """Convert to text or digits; fill up a BINARY."""
        if self.charset is not None:
            return self.charset.decode
        size, digits = self.pad, _DIGITS.get(options.binary)
        if digits is not None:
            return lambda payload: digits(payload.ljust(size, b"\0"))
        return (lambda payload: payload.ljust(size, b"\0")) if size else None

    def native(self, options: AvroOptions) -> Native | None:
        """Check UTF-8, look up the codes of other sets where these are single bytes."""
        if self.charset is None:
            return Native(NativeKind.BYTES, self.pad) if options.binary == "bytes" else None
        if self.charset.name in _HIGHEST_OF_UTF8:
            return Native(NativeKind.UTF8, _HIGHEST_OF_UTF8[self.charset.name])
        if self.charset.texts is None:
            return None
        is_ascii = self.charset.texts[:128] == _ASCII
        return Native(NativeKind.CODES, int(is_ascii), texts=self.charset.texts)

    def from_default(self, text: str) -> str | bytes:
        """Take text; how a literal of bytes is written differs among servers."""
        return super().from_default(text) if self.charset is None else text

    def text(self, value: str | bytes) -> str | bytes:
        """Return the text, or the bytes."""
        return value.ljust(self.pad, b"\0") if self.pad and isinstance(value, bytes) else value

    def printer(self) -> None:
        """Leave the escapes to whoever prints: they differ among generations of servers."""

    def _characters(self, max_length: int) -> int:
        """Count the characters that a length in bytes has room for."""
        if self.charset is None:
            return max_length
        return max_length // max_bytes_per_character(self.charset.name)

    def _with_charset(self, name: str) -> str:
        return f"{name} character set {self.charset.name}" if self.charset and self.charset.name else name


def _kind(column: Column) -> ColumnKind:
    return ColumnKind.OTHER if column.charset in (None, BINARY) else ColumnKind.TEXT


def _bytes(column: CatalogColumn) -> LengthMetadata:
    width = max_bytes_per_character(column.charset) if column.charset else 1
    return LengthMetadata(column.type.argument(1) * width)


@declare(ColumnType.STRING, catalog=dict.fromkeys(("char", "binary"), _bytes))
class Char(_StringCodec):
    """CHAR and BINARY: text or bytes; the spaces, or zero bytes, at the end do not travel."""

    metadata_layout = STRING_METADATA

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        assert isinstance(column.metadata, LengthMetadata)
        if column.charset == BINARY:
            self.pad = column.metadata.max_length
            self.selected = SelectedKind.BINARY

    def printed_type(self) -> str:
        """Name the type with its length in bytes."""
        assert isinstance(self.column.metadata, LengthMetadata)
        return f"STRING({self.column.metadata.max_length})"

    def sql_type(self) -> str:
        """Write the type with its length in characters."""
        assert isinstance(self.column.metadata, LengthMetadata)
        length = self.column.metadata.max_length
        name = "binary" if self.charset is None else "char"
        return self._with_charset(f"{name}({self._characters(length)})")


def _varstring(column: Column) -> str:
    assert isinstance(column.metadata, LengthMetadata)
    return f"VARSTRING({column.metadata.max_length})"


_BLOBS = ("", "TINYBLOB/TINYTEXT", "BLOB/TEXT", "MEDIUMBLOB/MEDIUMTEXT", "LONGBLOB/LONGTEXT")


@declare(
    ColumnType.VARCHAR,
    also=(ColumnType.VAR_STRING,),
    catalog=dict.fromkeys(("varchar", "varbinary"), _bytes),
)
class Varchar(_StringCodec):
    """VARCHAR and VARBINARY: text or bytes."""

    metadata_layout = VARCHAR_METADATA

    def printed_type(self) -> str:
        """Name the type with its length in bytes."""
        return _varstring(self.column)

    def sql_type(self) -> str:
        """Write the type with its length in characters."""
        assert isinstance(self.column.metadata, LengthMetadata)
        length = self.column.metadata.max_length
        name = "varbinary" if self.charset is None else "varchar"
        return self._with_charset(f"{name}({self._characters(length)})")


@declare(
    ColumnType.BLOB,
    also=(ColumnType.TINY_BLOB, ColumnType.MEDIUM_BLOB, ColumnType.LONG_BLOB),
    catalog={
        f"{size}{kind}": always(BlobMetadata(length_bytes))
        for length_bytes, size in enumerate(("tiny", "", "medium", "long"), 1)
        for kind in ("blob", "text")
    },
)
class Blob(_StringCodec):
    """The TEXT and BLOB families: text or bytes; all travel as BLOB."""

    metadata_layout = BLOB_METADATA

    def printed_type(self) -> str:
        """Name both types that have this size of length."""
        return _BLOBS[self.length_bytes]

    def sql_type(self) -> str:
        """Write the type that has this size of length."""
        size = ("", "tiny", "", "medium", "long")[self.length_bytes]
        return self._with_charset(size + ("blob" if self.charset is None else "text"))


def claimed_size(stored: bytes) -> int:
    """Return the size that a value of a COMPRESSED column says its content has; it never unpacks to more."""
    if not stored or stored[0] >> 4 != 8:
        return max(0, len(stored) - 1)
    return int.from_bytes(stored[1 : 1 + (stored[0] & 7)], "big")


def uncompressed(stored: bytes) -> bytes:
    """Return the content of a value of a COMPRESSED column of MariaDB.

    Layout (``Field_longstr::compress`` and ``uncompress`` in ``sql/field.cc``): nothing for the empty
    string; a zero byte and the bytes as they are; or a byte with 8 in bits 4-7 (zlib), in bit 3 that the
    zlib header is left out, and in bits 0-2 the size of the big-endian length of the content that follows,
    then the compressed bytes.

    Raises InvalidValueError, and TooLargeError where it is larger than any column of a server can be.
    """
    if not stored:
        return b""
    first = stored[0]
    if first == 0:
        return stored[1:]
    if first >> 4 != 8:
        raise InvalidValueError(f"compression method {first >> 4} of a column is not known")
    length = claimed_size(stored)
    if length > MAX_UNPACKED:
        raise TooLargeError(f"a compressed column of {length} bytes; up to {MAX_UNPACKED} are unpacked")
    try:
        content = inflate(stored[1 + (first & 7) :], length, header=not first & 8)
    except zlib.error as error:
        raise InvalidValueError(f"a compressed column does not inflate: {error}") from error
    if len(content) != length:
        raise InvalidValueError(f"a compressed column has {len(content)} bytes, not {length}")
    return content


@dataclass(frozen=True, slots=True)
class CompressedValue:
    """A value of a COMPRESSED column: the bytes as stored, for no other zlib need give the same ones.

    ``content`` is the value itself.
    """

    stored: bytes

    @property
    def content(self) -> bytes:
        """The bytes that were compressed; raises InvalidValueError and TooLargeError."""
        return uncompressed(self.stored)


class _CompressedCodec(_StringCodec):
    collations = Servers.MARIADB
    selected = SelectedKind.PYTHON

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.kind = ColumnKind.OTHER

    def from_selected(self, value: bytes) -> bytes:
        """Take the bytes."""
        return value

    def decode(self, payload: bytes) -> Any:
        """Return a CompressedValue."""
        return CompressedValue(payload)

    def encode(self, value: Any) -> bytes:
        """Take a CompressedValue; text and bytes are stored as they are."""
        if isinstance(value, CompressedValue):
            return value.stored
        content = super().encode(value)
        return b"\0" + content if content else b""

    def avro_decoder(self, options: AvroOptions) -> Convert:
        """Convert to the content, and that to text."""
        inner = super().avro_decoder(options)

        def convert(payload: bytes) -> Any:
            try:
                content = uncompressed(payload)
            except (MalformedError, TooLargeError) as error:
                raise UnrepresentableError(str(error)) from error
            return content if inner is None else inner(content)

        return convert

    def native(self, options: AvroOptions) -> None:
        """Leave zlib to the reference."""

    def text(self, value: Any) -> str | bytes:
        """Return the content as text, or its bytes; what does not inflate, as it is stored."""
        if not isinstance(value, CompressedValue):
            return super().text(value)
        try:
            return super().decode(value.content)
        except (MalformedError, TooLargeError):
            return value.stored


@declare(ColumnType.VARCHAR_COMPRESSED, like=ColumnType.VARCHAR)
class CompressedVarchar(_CompressedCodec):
    """VARCHAR COMPRESSED of MariaDB: a :class:`CompressedValue`."""

    metadata_layout = VARCHAR_METADATA

    def printed_type(self) -> str:
        """Name the type with its length in bytes."""
        return _varstring(self.column) + " COMPRESSED"

    def sql_type(self) -> str:
        """Write the type with its length in characters; one byte of the length is the method's."""
        assert isinstance(self.column.metadata, LengthMetadata)
        length = self.column.metadata.max_length - 1
        name = "varbinary" if self.charset is None else "varchar"
        return self._with_charset(f"{name}({self._characters(length)})") + " compressed"


@declare(ColumnType.BLOB_COMPRESSED, like=ColumnType.BLOB)
class CompressedBlob(_CompressedCodec):
    """TEXT and BLOB COMPRESSED of MariaDB: a :class:`CompressedValue`."""

    metadata_layout = BLOB_METADATA

    def printed_type(self) -> str:
        """Name both types that have this size of length."""
        return _BLOBS[self.length_bytes] + " COMPRESSED"

    def sql_type(self) -> str:
        """Write the type that has this size of length."""
        size = ("", "tiny", "", "medium", "long")[self.length_bytes]
        return self._with_charset(size + ("blob" if self.charset is None else "text")) + " compressed"


class _FixedBytesCodec(ColumnCodec, ABC):
    """Types of MariaDB that travel as BINARY of a fixed size and mean a text; only the catalog tells."""

    metadata_layout = STRING_METADATA
    name = ""
    size = 0

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        assert isinstance(column.metadata, LengthMetadata)
        self.length_bytes = column.metadata.length_bytes
        self.kind = _kind(column)

    @staticmethod
    @abstractmethod
    def format(full: bytes) -> str:
        """Write all bytes of a value as text."""

    @staticmethod
    @abstractmethod
    def parse(text: str) -> bytes:
        """Return all bytes of a value that :meth:`format` wrote."""

    def decode(self, payload: bytes) -> str | bytes:
        """Return the text; a payload that is too long, or not stripped of zero bytes, stays bytes."""
        if len(payload) > self.size or payload.endswith(b"\0"):
            return payload
        return self.format(payload.ljust(self.size, b"\0"))

    def encode(self, value: str | bytes) -> bytes:
        """Take the text, or the bytes as they travel."""
        if isinstance(value, bytes):
            return value
        try:
            return self.parse(value).rstrip(b"\0")
        except ValueError as error:
            raise EncodeError(f"{value!r} is not a value of type {self.name}") from error

    def avro_type(self, options: AvroOptions) -> AvroType:  # noqa: ARG002 - the same for all options
        """Return string."""
        return "string"

    def avro_decoder(self, options: AvroOptions) -> Convert:  # noqa: ARG002 - the same for all options
        """Convert to text."""
        size, text_of = self.size, self.format

        def convert(payload: bytes) -> str:
            if len(payload) > size:
                raise UnrepresentableError(f"{payload.hex()} is not a value of type {self.name}")
            return text_of(payload.ljust(size, b"\0"))

        return convert

    def from_default(self, text: str) -> str:
        """Take the text."""
        return text

    def text(self, value: str | bytes) -> str | bytes:
        """Return the text."""
        return value

    def sql_type(self) -> str:
        """Write the type."""
        return self.name


@declare(ColumnType.STRING, variant="inet4", catalog={"inet4": always(LengthMetadata(4))})
class Inet4(_FixedBytesCodec):
    """INET4 of MariaDB: an address as text; travels as BINARY(4)."""

    name = "inet4"
    size = 4

    @staticmethod
    def format(full: bytes) -> str:
        """Write four numbers with dots."""
        return str(ipaddress.IPv4Address(full))

    @staticmethod
    def parse(text: str) -> bytes:
        """Read four numbers with dots."""
        return ipaddress.IPv4Address(text).packed


@declare(ColumnType.STRING, variant="inet6", catalog={"inet6": always(LengthMetadata(16))})
class Inet6(_FixedBytesCodec):
    """INET6 of MariaDB: an address as text; travels as BINARY(16)."""

    name = "inet6"
    size = 16

    @staticmethod
    def format(full: bytes) -> str:
        """Write an address as the server does: mapped and compatible IPv4 addresses with dots."""
        if full[:12] == bytes(10) + b"\xff\xff":
            return f"::ffff:{ipaddress.IPv4Address(full[12:])}"
        if not any(full[:12]) and any(full[12:14]):
            return f"::{ipaddress.IPv4Address(full[12:])}"
        return str(ipaddress.IPv6Address(full))

    @staticmethod
    def parse(text: str) -> bytes:
        """Read an address in any form."""
        return ipaddress.IPv6Address(text).packed


@declare(ColumnType.STRING, variant="uuid", catalog={"uuid": always(LengthMetadata(16))})
class Uuid(_FixedBytesCodec):
    """UUID of MariaDB: its text; travels as BINARY(16), in the order of the text."""

    name = "uuid"
    size = 16

    @staticmethod
    def format(full: bytes) -> str:
        """Write hexadecimal digits in five groups."""
        return str(uuid.UUID(bytes=full))

    @staticmethod
    def parse(text: str) -> bytes:
        """Read hexadecimal digits."""
        return uuid.UUID(text).bytes

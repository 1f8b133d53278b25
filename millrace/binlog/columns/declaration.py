"""How a column type is declared: once, as a :class:`ColumnCodec`, and everything else follows from that.

A declaration says how large a value is in a row image (a fixed :mod:`struct` code, or bytes after a length),
what its bytes mean and how they are made again, what it becomes in Avro and JSON, how SQL, and mysqlbinlog,
write the type and the value, how a value is selected, and whether table maps tell its sign and its character
set. The bytes of one value, without the length in front, are called its *payload*; where the struct code is
that of a number, the payload is that number.

``COLUMNS`` holds the declaration of each type code. A few types of MariaDB travel as others and are told
apart by the catalog alone; those are in ``VARIANTS``, by type code and name of the SQL type. The names that
the catalog has for types are declared with them: :func:`travels_as` says what a table map has of each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from millrace.binlog.columns.column import Column, LengthMetadata, Metadata, NoMetadata
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import BinlogError, UnsupportedError

__all__ = [
    "COLUMNS",
    "FORMER_TYPES",
    "NO_METADATA",
    "SAME_TYPES",
    "VARIANTS",
    "AvroOptions",
    "AvroType",
    "CatalogColumn",
    "ColumnCodec",
    "ColumnKind",
    "Convert",
    "MetadataLayout",
    "MetadataOf",
    "Native",
    "NativeKind",
    "Print",
    "SelectedKind",
    "Servers",
    "always",
    "avro_types",
    "catalog_types",
    "codec_of",
    "declare",
    "in_catalog",
    "one_byte_metadata",
    "quoted",
    "semantic",
    "travels_as",
]

AvroType = str | dict[str, Any]

BINARY_AS: Final = "millrace.binary"
"""Property of a string that has the digits of bytes: base64 or hex."""
Convert = Callable[[Any], Any]
Print = Callable[[Any], bytes]
"""Writes a payload as ``mysqlbinlog -v`` does."""


@dataclass(frozen=True, slots=True)
class AvroOptions:
    """What a user may choose about Avro types.

    ``bigint_unsigned``: BIGINT UNSIGNED as ``decimal`` (20 digits), ``long`` (values of 2^63 and more
    cannot be represented) or ``string``. ``decimal``: DECIMAL as ``decimal``, ``string`` or ``double``;
    ``wide_decimal``: with ``decimal`` those of more than 38 digits, where Spark stops, as ``string`` or
    nevertheless as ``decimal``. ``temporal``: DATE, TIME, DATETIME and TIMESTAMP with Avro's logical types in
    microseconds (``logical``), as Debezium has them (``debezium``) or with the types of Kafka Connect, in
    milliseconds (``connect``). ``bit``: BIT as the bytes that the server has, or as ``debezium`` has it.
    ``binary``: BINARY, VARBINARY and BLOB as ``bytes``, or as a string of ``base64`` or ``hex`` digits.
    ``column_attributes``: NOT NULL and DEFAULT not at all (``none``), as ``parameters`` of the types, or as
    these with the default where Debezium has it (``debezium``); ``propagate_source_type``: the type in SQL as
    parameters of the types. No value changes by these two.
    """

    bigint_unsigned: Literal["decimal", "long", "string"] = "decimal"
    wide_decimal: Literal["string", "decimal"] = "string"
    decimal: Literal["decimal", "string", "double"] = "decimal"
    temporal: Literal["logical", "debezium", "connect"] = "logical"
    bit: Literal["bytes", "debezium"] = "bytes"
    binary: Literal["bytes", "base64", "hex"] = "bytes"
    column_attributes: Literal["none", "parameters", "debezium"] = "none"
    propagate_source_type: bool = False

    @property
    def only_in_history(self) -> bool:
        """Whether schemas have what no table map says."""
        return self.column_attributes != "none" or self.propagate_source_type


def semantic(avro: str, name: str, *, logical: str | None = None, **parameters: str) -> AvroType:
    """Return an Avro type with its semantic type, which sinks of Kafka Connect know, and its parameters."""
    rest: dict[str, Any] = {} if logical is None else {"logicalType": logical}
    if parameters:
        rest["connect.parameters"] = parameters
    return {"type": avro, **rest, "connect.name": name, "connect.version": 1}


@dataclass(frozen=True, slots=True)
class MetadataLayout:
    """A type's part of the metadata block in a table map: ``size`` bytes to a typed value and back.

    mysqlbinlog prints the bytes as one number, in the byte order ``printed``.
    """

    size: int
    description: str
    decode: Callable[[bytes], Metadata]
    encode: Callable[[Any], bytes]
    printed: Literal["little", "big"] = "little"


NO_METADATA = MetadataLayout(0, "none", lambda _: NoMetadata(), lambda _: b"")


def one_byte_metadata(make: Callable[[int], Metadata], field: str, description: str) -> MetadataLayout:
    """Describe metadata of one byte, which is the field ``field`` of what ``make`` makes."""
    return MetadataLayout(
        1, description, lambda raw: make(raw[0]), lambda metadata: bytes([getattr(metadata, field)])
    )


class Servers(Flag):
    """Servers that count the columns of a type in a field of the optional metadata."""

    NONE = 0
    OLD_MYSQL = 1
    """MySQL before 8.0.20."""
    MYSQL = 2
    MARIADB = 4
    ALL = 7


class ColumnKind(Enum):
    """How values of a column are compared with others."""

    NUMBER = "number"
    REAL = "approximate number"
    TEXT = "text"
    MOMENT = "date"
    TIME = "time"
    OTHER = "value that can only be NULL or not"


class SelectedKind(IntEnum):
    """How the bytes of a value in an image are made of what SELECT gives, where the kernel does it."""

    PYTHON = 0
    """By :meth:`ColumnCodec.from_selected`."""
    SIGNED = 1
    """A number in decimal digits to a little-endian integer."""
    UNSIGNED = 2
    REAL = 3
    DECIMAL = 4
    """Of ``a`` digits, ``b`` of them after the point."""
    BIT = 5
    YEAR = 6
    DATE = 7
    TIME = 8
    """``a`` bytes of fraction; so in the next two."""
    DATETIME = 9
    TIMESTAMP = 10
    STRING = 11
    """Bytes as they are, after their length."""
    BINARY = 12
    """The same, without the zero bytes at the end."""


class NativeKind(IntEnum):
    """How Avro's binary form is made of a payload, where the kernel does it: see :class:`Native`."""

    SIGNED = 1
    """A little-endian integer to int or long."""
    UNSIGNED = 2
    """The same without a sign; 2^63 and more cannot be represented."""
    UNSIGNED_DECIMAL = 3
    """The same to a decimal's bytes."""
    UNSIGNED_TEXT = 4
    """The same to a string of decimal digits."""
    REAL = 5
    """4 or 8 bytes as they are, to float or double."""
    YEAR = 6
    DATE = 7
    TIME = 8
    """``a`` bytes of fraction, whose units are a multiple of ``b``; so in the next two."""
    DATETIME = 9
    TIMESTAMP = 10
    DECIMAL = 11
    """DECIMAL of ``a`` digits, ``b`` of them after the point, to a decimal's bytes."""
    BYTES = 12
    """Bytes as they are, filled up with zero bytes to ``a``."""
    UTF8 = 13
    """UTF-8 in which no byte is above ``a``, to a string."""
    CODES = 14
    """Bytes of which each is a character, its UTF-8 in ``texts`` (empty: none), to a string.

    ``a`` is 1 where the first 128 are those of ASCII.
    """
    MEMBER = 15
    """The place in ``texts``, little-endian, to a string."""
    MEMBERS = 16
    """A bit for each of ``texts``, little-endian, to a string with commas between them."""
    JSON = 17
    """A binary document to its text; what is seldom in one is converted by the reference.

    ``a`` is 1 where a double without a fraction is written as an integer is.
    """
    GEOMETRY = 18
    """A spatial reference system and well-known binary to a record."""
    DECIMAL_TEXT = 19
    """DECIMAL as above, to a string of its digits."""
    FIXED = 20
    """Any value, or NULL, to the one text, which is written as it is; nothing where that is empty."""
    BITS = 21
    """Bytes as they are, the first of which is at most ``a``."""


class Native(NamedTuple):
    """Facts by which the kernel makes Avro of a column's payloads: a kind, and its numbers and texts."""

    kind: NativeKind
    a: int = 0
    b: int = 0
    texts: tuple[bytes, ...] = ()


class ColumnCodec(ABC):
    """The declaration of a column type, bound to one column.

    ``struct_code`` is the payload's code in :mod:`struct` (little-endian) where all values have one size;
    otherwise it is empty and the payload stands after a length of ``length_bytes`` bytes.

    ``signedness`` and ``collations`` are the servers that count the type in the optional metadata among those
    with a sign and those with a character set; ``has_charset`` says that values are text in that character
    set. ``kind`` says how values are compared. ``selection`` is the SQL that gives a column whole, with the
    column's name in place of the braces, and ``selected`` how the kernel writes what it gives.
    """

    metadata_layout: ClassVar[MetadataLayout] = NO_METADATA
    signedness: ClassVar[Servers] = Servers.NONE
    collations: ClassVar[Servers] = Servers.NONE
    has_charset: ClassVar[bool] = False
    selection: ClassVar[str] = "{}"
    selected: SelectedKind = SelectedKind.PYTHON
    kind: ColumnKind = ColumnKind.OTHER
    struct_code: str = ""
    length_bytes: int = 0

    def __init__(self, column: Column) -> None:
        self.column = column

    @abstractmethod
    def decode(self, payload: Any) -> Any:
        """Make the natural value of a payload, without loss: :meth:`encode` gives the payload back."""

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """Make the payload of a natural value."""

    @abstractmethod
    def avro_type(self, options: AvroOptions) -> AvroType:
        """Return the Avro type of the values (without the union with null)."""

    @abstractmethod
    def avro_decoder(self, options: AvroOptions) -> Convert | None:
        """Return the function from payload to plain value of :meth:`avro_type`, None where they are the same.

        "Plain" is what an Avro writer takes for the type without its logical type: int, float, str, bytes,
        list or dict. The function raises :class:`UnrepresentableError` or :class:`UnicodeDecodeError` for a
        value that the type cannot hold.
        """

    def native(self, options: AvroOptions) -> Native | None:  # noqa: ARG002 - for those that have one
        """Say how the kernel does what :meth:`avro_decoder` and the Avro writer do; None where it does not.

        A value that the latter refuse, it leaves to them.
        """
        return None

    @abstractmethod
    def text(self, value: Any) -> str | bytes:
        """Write a natural value as the server shows it; bytes where it is no text."""

    @abstractmethod
    def sql_type(self) -> str:
        """Write the column's type in SQL, as far as it is known."""

    def from_default(self, text: str) -> Any:
        """Make the natural value of a literal DEFAULT; raise ValueError where that is not certain.

        The server may convert a literal. Declarations take those that it keeps as they are.
        """
        raise ValueError(f"the value of this default of {self.sql_type()} is uncertain: {text}")

    def from_selected(self, value: bytes) -> Any:
        """Make the natural value of what the server gives for :attr:`selection`; raise ValueError."""
        return value.decode("ascii")

    def to_json(self, value: Any) -> Any:
        """Return a natural value as JSON has it; bytes where it is no text."""
        if isinstance(value, int | str):
            return value
        try:
            return self.text(value)
        except BinlogError:
            return self.encode(value)

    def printed_type(self) -> str:
        """Name the type as ``mysqlbinlog -vv`` does."""
        return self.sql_type().upper()

    def printer(self) -> Print | None:
        """Return what writes a payload as ``mysqlbinlog -v`` does; None where that is a string in quotes.

        Payloads of types that mysqlbinlog does not know are written as SQL.
        """
        return lambda payload: self.sql_literal(self.decode(payload)).encode()

    def sql_literal(self, value: Any) -> str:
        """Write a natural value as a literal that SQL accepts for this type."""
        text = self.text(value)
        return f"X'{text.hex()}'" if isinstance(text, bytes) else quoted(text)


_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\0": "\\0", "\n": "\\n", "\r": "\\r", "\x1a": "\\Z"})


def quoted(text: str) -> str:
    """Write a string literal of SQL, for a session without NO_BACKSLASH_ESCAPES."""
    return f"'{text.translate(_ESCAPES)}'"


COLUMNS: dict[ColumnType, type[ColumnCodec]] = {}
VARIANTS: dict[tuple[ColumnType, str], type[ColumnCodec]] = {}
SAME_TYPES: dict[ColumnType, ColumnType] = {}
"""Type codes under which a type may travel, too, and the one under which it travels now."""
FORMER_TYPES: dict[str, ColumnType] = {}
"""Type codes under which the types of the catalog travelled once, without metadata in the table map."""

C = TypeVar("C", bound=type[ColumnCodec])


class CatalogColumn(NamedTuple):
    """What a column's metadata follows from, as the catalog has it.

    ``charset`` is the name of its character set, None for bytes, ``members`` the number of members of an ENUM
    or SET.
    """

    type: SqlType
    charset: str | None = None
    members: int = 0


MetadataOf = Callable[[CatalogColumn], Metadata]

_IN_CATALOG: dict[str, tuple[ColumnType, MetadataOf]] = {}


def always(metadata: Metadata) -> MetadataOf:
    """Return what is the metadata of all columns of a type."""
    return lambda _: metadata


def in_catalog(names: Mapping[str, MetadataOf], travels: ColumnType) -> None:
    """Enter the names that the catalog has for types which travel under a type code, with their metadata."""
    for name, metadata_of in names.items():
        _IN_CATALOG[name] = travels, metadata_of


def declare(
    *types: ColumnType,
    variant: str | None = None,
    catalog: Mapping[str, MetadataOf] | None = None,
    also: Iterable[ColumnType] = (),
    like: ColumnType | None = None,
    formerly: str | None = None,
) -> Callable[[C], C]:
    """Enter a declaration for type codes, or for one SQL type that travels under these codes.

    ``catalog`` has the names of the types that travel under the first of these codes, ``also`` further codes
    under which they may travel. What has a code of its own and is ``like`` another, but for how a value is
    stored, says so; as does what was ``formerly`` the form of a type of the catalog.
    """
    in_catalog(catalog or {}, types[0])
    SAME_TYPES.update(dict.fromkeys(also, types[0]))
    if like is not None:
        SAME_TYPES[types[0]] = like
    if formerly is not None:
        FORMER_TYPES[formerly] = types[0]

    def enter(codec: C) -> C:
        for one in (*types, *also):
            if variant is None:
                COLUMNS[one] = codec
            else:
                VARIANTS[one, variant] = codec
        return codec

    return enter


def catalog_types() -> Iterable[str]:
    """Return the names that the catalog has for types."""
    return _IN_CATALOG


def travels_as(column: CatalogColumn, *, mariadb: bool) -> tuple[ColumnType, Metadata] | None:
    """Return what a table map has of a column of the catalog; None where its type is not known."""
    if column.type.name == "vector" and mariadb:
        return ColumnType.VARCHAR, LengthMetadata(4 * column.type.argument(1))
    if column.type.name not in _IN_CATALOG:
        return None
    travels, metadata_of = _IN_CATALOG[column.type.name]
    metadata = metadata_of(column)
    if "compressed" not in column.type.attributes:
        return travels, metadata
    if isinstance(metadata, LengthMetadata):  # one byte of the length is the method's
        return ColumnType.VARCHAR_COMPRESSED, LengthMetadata(metadata.max_length + 1)
    return ColumnType.BLOB_COMPRESSED, metadata


def codec_of(column: Column) -> ColumnCodec:
    """Bind the declaration of a column's type to the column.

    Raise :class:`UnsupportedError` for type codes that no row image holds.
    """
    if column.sql_type is not None:
        variant = VARIANTS.get((column.type, SqlType.parse(column.sql_type).name))
        if variant is not None:
            return variant(column)
    codec = COLUMNS.get(column.type)
    if codec is None:
        raise UnsupportedError(
            f"columns of type {column.type.name} ({int(column.type)}) are not in row images"
        )
    return codec(column)


def avro_types(columns: Iterable[Column], options: AvroOptions) -> list[AvroType]:
    """Return the Avro types of the fields of one record.

    A schema defines a named type (GEOMETRY is a record) where it comes first, and names it from then on.
    """
    defined = set()
    found: list[AvroType] = []
    for column in columns:
        avro = codec_of(column).avro_type(options)
        if isinstance(avro, dict) and "name" in avro:
            name = f"{avro['namespace']}.{avro['name']}"
            found.append(name if name in defined else avro)
            defined.add(name)
        else:
            found.append(avro)
    return found

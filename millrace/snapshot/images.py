"""What SELECT gives, as the row images of an insert.

A table is described by a table map event with full metadata, made of its definition, and its rows become the
image of a WRITE_ROWS event. So whoever decodes the binary log decodes them by the same path, and a value is
the same whether it comes from the stream or from here.

Values come as the bytes that the text protocol has, without a conversion of character sets
(:data:`SESSION`). Each column is selected by an expression that gives it whole
(:attr:`SelectedTable.columns`): a FLOAT as a double, which has all its digits, ENUM and SET as numbers, a
TIMESTAMP as seconds since 1970.
"""

import datetime as dt
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from millrace import kernel
from millrace.binlog.columns.charsets import (
    BINARY,
    charset,
    collation_of_charset,
)
from millrace.binlog.columns.column import (
    Column,
    DecimalMetadata,
    FractionMetadata,
)
from millrace.binlog.columns.declaration import codec_of
from millrace.binlog.columns.json_binary import JsonValue
from millrace.binlog.columns.metadata import (
    MEMBER_TYPES,
    MetadataRules,
    OptionalMetadata,
    encode_column_metadata,
    encode_optional_metadata,
)
from millrace.binlog.columns.spatial import GEOMETRY_NAMES
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.columns.temporals import Date, DateTime, Timestamp
from millrace.binlog.columns.types import COMPRESSED_TYPES, ColumnType
from millrace.binlog.errors import EncodeError, InvalidValueError, UnsupportedError
from millrace.binlog.events import TableMapEvent
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.snapshot.json_encoding import encode_json
from millrace.text import shortened

if TYPE_CHECKING:
    from millrace.kernel.selected import Field, SelectedImages

__all__ = ["SESSION", "SelectedKind", "SelectedTable", "column_of", "quoted_name"]

SESSION: Final = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', character_set_results = NULL",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
"""Statements that set up a session for :attr:`SelectedTable.columns`."""

_INTEGERS: Final = (
    ColumnType.TINY,
    ColumnType.SHORT,
    ColumnType.INT24,
    ColumnType.LONG,
    ColumnType.LONGLONG,
)
_DECIMAL_TEXT: Final = re.compile(rb"-?[0-9]+(\.[0-9]+)?")
_FULL: Final = {False: MetadataRules("9.7.4"), True: MetadataRules("11.4.5-MariaDB")}
"""By whether it is MariaDB, how its servers describe columns with binlog_row_metadata=FULL."""

_Write = Callable[[bytes], bytes]
"""From what SELECT gives to the bytes of the value in an image."""


class SelectedKind(IntEnum):
    """How the bytes of a value in an image are made of what SELECT gives, where the kernel does it."""

    PYTHON = 0
    """By the reference's function."""
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


def quoted_name(*names: str) -> str:
    """Spell a name in SQL, of several parts with points between them."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


class SelectedTable:
    """A table whose rows are selected: what is selected, and the events that it becomes.

    ``server_version`` is that by which whoever reads the table map must read it. Raises
    :class:`UnsupportedError` for a type that is not known.
    """

    def __init__(self, definition: TableDefinition, *, mariadb: bool) -> None:
        self.definition = definition
        self.server_version = "11.4.5-MariaDB" if mariadb else "9.7.4"
        columns = [column_of(one, mariadb=mariadb) for one in definition.columns]
        self.columns = ", ".join(_expression(one) for one in definition.columns)
        self._writers = [_writer(column) for column in columns]
        self._fields = [_field(column) for column in columns]
        self._null_size = (len(columns) + 7) // 8
        types, metadata = encode_column_metadata(columns)
        null_bits = sum(1 << column.ordinal for column in columns if column.nullable)
        self.table_map = TableMapEvent(
            1,
            1,
            definition.database,
            definition.table,
            types,
            metadata,
            null_bits.to_bytes(self._null_size, "little"),
            encode_optional_metadata(_optional(columns, mariadb=mariadb)),
        )

    @property
    def present(self) -> bytes:
        """The bitmap of the columns that an image has: all of them."""
        count = len(self._writers)
        return ((1 << count) - 1).to_bytes(self._null_size, "little")

    def kernel(self) -> "SelectedImages | None":
        """Make what writes images of many rows at once; None where the kernel is not used."""
        if not kernel.has("selected"):
            return None
        from millrace.kernel.selected import SelectedImages  # noqa: PLC0415 - it may not be built

        return SelectedImages(self._fields, self._writers)

    def image(self, row: Sequence[bytes | None]) -> bytes:
        """Write a row's image; raises :class:`InvalidValueError` where a value is none of its type."""
        bits, parts = 0, [b""]
        try:
            for index, (write, value) in enumerate(zip(self._writers, row, strict=True)):
                if value is None:
                    bits |= 1 << index
                else:
                    parts.append(write(value))
        except (EncodeError, ValueError, IndexError, struct.error, ArithmeticError) as error:
            name = f"{self.definition.database}.{self.definition.table}"
            column = self.definition.columns[index].name
            raise InvalidValueError(f"table {name}: the server gives for column {column}: {error}") from error
        parts[0] = bits.to_bytes(self._null_size, "little")
        return b"".join(parts)


def column_of(definition: ColumnDefinition, *, mariadb: bool) -> Column:
    """Give a column as the table maps of the stream have it."""
    sql_type = SqlType.parse(definition.column_type)
    found = definition.travels_as(mariadb=mariadb)
    if found is None:
        raise UnsupportedError(f"column {definition.name}: the type {definition.column_type} is not known")
    kind, metadata = found
    character_set = definition.current_charset or (
        BINARY if kind in _FULL[True].character | MEMBER_TYPES else None
    )
    return Column(
        definition.ordinal,
        kind,
        metadata,
        name=definition.name,
        nullable=definition.nullable,
        unsigned=definition.unsigned,
        charset=character_set,
        members=definition.members,
        key_position=definition.key_position,
        key_prefix=definition.key_prefix,
        geometry_type=GEOMETRY_NAMES.get(sql_type.name),
        dimensions=sql_type.argument(2048) if kind is ColumnType.VECTOR else None,
        visible=not definition.hidden,
        sql_type=definition.column_type,
        default=definition.default,
    )


def _optional(columns: Sequence[Column], *, mariadb: bool) -> OptionalMetadata:
    """Describe columns as binlog_row_metadata=FULL does."""
    rules = _FULL[mariadb]
    keys = sorted(
        (column.key_position, column.ordinal, column.key_prefix)
        for column in columns
        if column.key_position is not None
    )
    with_prefix = any(prefix for _, _, prefix in keys)
    lists = {
        kind: tuple(_member_bytes(column) for column in columns if column.type is kind) or None
        for kind in (ColumnType.ENUM, ColumnType.SET)
    }
    geometries = [column.geometry_type or 0 for column in columns if column.type is ColumnType.GEOMETRY]
    dimensions = [column.dimensions or 0 for column in columns if column.type is ColumnType.VECTOR]
    return OptionalMetadata(
        signedness=_bitmap(column.unsigned for column in columns if column.type in rules.numeric),
        column_charset=_collations(columns, rules.character),
        column_name=tuple((column.name or "").encode("utf-8", "surrogateescape") for column in columns),
        set_str_value=lists[ColumnType.SET],
        enum_str_value=lists[ColumnType.ENUM],
        geometry_type=tuple(geometries) or None,
        simple_primary_key=tuple(ordinal for _, ordinal, _ in keys) if keys and not with_prefix else None,
        primary_key_with_prefix=tuple((ordinal, prefix) for _, ordinal, prefix in keys)
        if with_prefix
        else None,
        enum_and_set_column_charset=_collations(columns, MEMBER_TYPES),
        column_visibility=_bitmap(column.visible for column in columns),
        vector_dimensionality=tuple(dimensions) or None,
    )


def _bitmap(values: Iterable[bool]) -> bytes | None:
    """Write a bitmap whose first bit is the highest of its first byte."""
    bits = "".join("01"[value] for value in values)
    return (
        int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big") if bits else None
    )


def _collations(columns: Sequence[Column], kinds: frozenset[ColumnType]) -> tuple[int, ...] | None:
    return tuple(collation_of_charset(c.charset or BINARY) for c in columns if c.type in kinds) or None


def _member_bytes(column: Column) -> tuple[bytes, ...]:
    encode = str.encode if column.charset in (None, BINARY) else charset(column.charset).encode
    return tuple(one if isinstance(one, bytes) else encode(one) for one in column.members or ())


def _expression(definition: ColumnDefinition) -> str:
    """Give the SQL that selects a column whole."""
    name, kind = quoted_name(definition.name), SqlType.parse(definition.column_type).name
    match kind:
        case "float" | "double":
            return f"{name}*1e0"
        case "enum" | "set":
            return f"CAST({name} AS UNSIGNED)"
        case "timestamp":
            return f"UNIX_TIMESTAMP({name})"
    return name


# -- values --------------------------------------------------------------------------------------------


def _writer(column: Column) -> _Write:
    """Bind what writes the values of a column."""
    codec = codec_of(column)
    size, kind = codec.length_bytes, column.type
    if _is_string(column):
        if _is_binary(column):
            return lambda value: _prefixed(value.rstrip(b"\0"), size)
        return lambda value: len(value).to_bytes(size, "little") + value
    parse = _PARSERS.get(kind, _text)
    encode = codec.encode
    if not codec.struct_code:
        return lambda value: _prefixed(encode(parse(value)), size)
    pack = struct.Struct("<" + codec.struct_code).pack
    if codec.struct_code in ("b", "B", "h", "H", "i", "I", "q", "Q") and kind in _INTEGERS:
        return lambda value: pack(int(value))
    return lambda value: pack(encode(parse(value)))


def _is_string(column: Column) -> bool:
    """Tell whether values travel as they are selected, after their length."""
    named = SqlType.parse(column.sql_type or "").name
    of_bytes = codec_of(column).length_bytes and column.type not in (ColumnType.JSON, *COMPRESSED_TYPES)
    return bool(of_bytes) and named not in ("inet4", "inet6", "uuid")


def _is_binary(column: Column) -> bool:
    return column.type is ColumnType.STRING and column.charset == BINARY


def _field(column: Column) -> "Field":
    """Say how the kernel writes the values of a column: kind, size and two numbers."""
    codec, metadata = codec_of(column), column.metadata
    if _is_string(column):
        return SelectedKind.BINARY if _is_binary(column) else SelectedKind.STRING, codec.length_bytes, 0, 0
    kind = _KINDS.get(column.type, SelectedKind.PYTHON)
    if kind is SelectedKind.SIGNED and column.unsigned:
        kind = SelectedKind.UNSIGNED
    a, b = 0, 0
    if isinstance(metadata, DecimalMetadata):
        a, b = metadata.precision, metadata.scale
    elif isinstance(metadata, FractionMetadata):
        a = (metadata.digits + 1) // 2
    size = struct.calcsize("<" + codec.struct_code) if codec.struct_code else codec.length_bytes
    return kind, size, a, b


def _prefixed(payload: bytes, size: int) -> bytes:
    return len(payload).to_bytes(size, "little") + payload


def _text(value: bytes) -> Any:
    return value.decode("ascii")


def _decimal_value(value: bytes) -> Decimal:
    if _DECIMAL_TEXT.fullmatch(value) is None:  # an exponent may stand for more digits than memory holds
        raise ValueError(f"{shortened(repr(value), 60)} is no DECIMAL")
    return Decimal(value.decode("ascii"))


@lru_cache(maxsize=4096)
def _date(value: bytes) -> Date:
    return Date(int(value[:-6]), int(value[-5:-3]), int(value[-2:]))


def _micros(fraction: bytes) -> int:
    return int(fraction.ljust(6, b"0"))


def _datetime(value: bytes) -> DateTime:
    date, _, time = value.partition(b" ")
    whole, _, fraction = time.partition(b".")
    return DateTime(*_date(date), int(whole[:2]), int(whole[3:5]), int(whole[6:]), _micros(fraction))


def _time(value: bytes) -> dt.timedelta:
    whole, _, fraction = value.lstrip(b"-").partition(b".")
    hours, minutes, seconds = whole.split(b":")
    found = dt.timedelta(
        hours=int(hours), minutes=int(minutes), seconds=int(seconds), microseconds=_micros(fraction)
    )
    return -found if value.startswith(b"-") else found


def _timestamp(value: bytes) -> Timestamp:
    seconds, _, fraction = value.partition(b".")
    return Timestamp(int(seconds), _micros(fraction))


def _bits(value: bytes) -> int:
    return int.from_bytes(value, "big")


def _document(value: bytes) -> JsonValue:
    return JsonValue(encode_json(value.decode()))


def _same(value: bytes) -> Any:
    return value


_PARSERS: Final[dict[ColumnType, Callable[[bytes], Any]]] = {
    **dict.fromkeys(_INTEGERS, int),
    ColumnType.FLOAT: float,
    ColumnType.DOUBLE: float,
    ColumnType.NEWDECIMAL: _decimal_value,
    ColumnType.BIT: _bits,
    ColumnType.YEAR: int,
    ColumnType.DATE: _date,
    ColumnType.TIME2: _time,
    ColumnType.DATETIME2: _datetime,
    ColumnType.TIMESTAMP2: _timestamp,
    ColumnType.ENUM: int,
    ColumnType.SET: int,
    ColumnType.JSON: _document,
    ColumnType.BLOB_COMPRESSED: _same,
    ColumnType.VARCHAR_COMPRESSED: _same,
}

_KINDS: Final = {
    **dict.fromkeys(_INTEGERS, SelectedKind.SIGNED),
    ColumnType.FLOAT: SelectedKind.REAL,
    ColumnType.DOUBLE: SelectedKind.REAL,
    ColumnType.NEWDECIMAL: SelectedKind.DECIMAL,
    ColumnType.BIT: SelectedKind.BIT,
    ColumnType.YEAR: SelectedKind.YEAR,
    ColumnType.DATE: SelectedKind.DATE,
    ColumnType.TIME2: SelectedKind.TIME,
    ColumnType.DATETIME2: SelectedKind.DATETIME,
    ColumnType.TIMESTAMP2: SelectedKind.TIMESTAMP,
    ColumnType.ENUM: SelectedKind.UNSIGNED,
    ColumnType.SET: SelectedKind.UNSIGNED,
}

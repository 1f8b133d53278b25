"""``--print-table-metadata``: what a table map says of its columns and keys, as comments.

The form is that of ``Table_map_log_event::print_columns`` and ``print_primary_key`` in the servers' sources.
Types that MariaDB's program does not know (``INVALID_TYPE(140)``) are named here.
"""

from collections.abc import Sequence
from typing import Final

from millrace.binlog.columns.charsets import (
    BINARY,
    charset_name,
    collation_name,
    max_bytes_per_character,
    names_utf8mb3,
)
from millrace.binlog.columns.column import (
    BitMetadata,
    BlobMetadata,
    Column,
    DecimalMetadata,
    FractionMetadata,
    LengthMetadata,
)
from millrace.binlog.columns.metadata import MEMBER_TYPES, columns_of, decode_optional_metadata
from millrace.binlog.columns.types import COMPRESSED_TYPES, ColumnType
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import TableMapEvent
from millrace.binlog.server_version import ServerVersion
from millrace.binlog_command.row_printer import comment_text, in_comment, sql_name, sql_string

_NAMES: Final = {
    ColumnType.DECIMAL: "DECIMAL",
    ColumnType.TINY: "TINYINT",
    ColumnType.SHORT: "SMALLINT",
    ColumnType.INT24: "MEDIUMINT",
    ColumnType.LONG: "INT",
    ColumnType.LONGLONG: "BIGINT",
    ColumnType.NEWDECIMAL: "DECIMAL",
    ColumnType.TIMESTAMP2: "TIMESTAMP",
    ColumnType.DATETIME2: "DATETIME",
    ColumnType.TIME2: "TIME",
    ColumnType.NEWDATE: "DATE",
}
_NUMERIC: Final = frozenset(
    (
        ColumnType.TINY,
        ColumnType.SHORT,
        ColumnType.INT24,
        ColumnType.LONG,
        ColumnType.LONGLONG,
        ColumnType.NEWDECIMAL,
        ColumnType.FLOAT,
        ColumnType.DOUBLE,
    )
)
_BLOBS: Final = {1: "TINY", 2: "", 3: "MEDIUM", 4: "LONG"}
_GEOMETRIES: Final = (
    "GEOMETRY",
    "POINT",
    "LINESTRING",
    "POLYGON",
    "MULTIPOINT",
    "MULTILINESTRING",
    "MULTIPOLYGON",
    "GEOMCOLLECTION",
)


def table_metadata(table_map: TableMapEvent, server_version: str, *, mariadb: bool) -> bytes:
    """Return the comment lines about the columns and the primary key of a table map."""
    try:
        columns = columns_of(table_map, server_version=server_version or None)
        members = _members(table_map, columns)
    except BinlogError as error:
        return b"# Columns that cannot be read: %b\n" % comment_text(str(error))
    utf8mb3 = names_utf8mb3(ServerVersion.parse(server_version).version, mariadb=mariadb)
    lines = (
        _column(column, members.get(column.ordinal), mariadb=mariadb, utf8mb3=utf8mb3) for column in columns
    )
    return b"# Columns(%b)\n%b" % (b",\n#         ".join(lines), _primary_key(columns))


def _members(table_map: TableMapEvent, columns: Sequence[Column]) -> dict[int, tuple[bytes, ...]]:
    """Return the members of ENUM and SET columns by ordinal, in the columns' character sets."""
    metadata = decode_optional_metadata(table_map.optional_metadata)
    found: dict[int, tuple[bytes, ...]] = {}
    for kind, lists in ((ColumnType.ENUM, metadata.enum_str_value), (ColumnType.SET, metadata.set_str_value)):
        ordinals = [column.ordinal for column in columns if column.type is kind]
        found.update(zip(ordinals, lists or (), strict=False))
    return found


def _column(column: Column, members: tuple[bytes, ...] | None, *, mariadb: bool, utf8mb3: bool) -> bytes:
    """Write a column's name and type, and what else is known of it."""
    text = b"" if column.name is None else in_comment(sql_name(column.name)) + b" "
    text += _type(column, mariadb=mariadb).encode()
    if column.type in _NUMERIC and column.unsigned:
        text += b" UNSIGNED"
    if not column.nullable:
        text += b" NOT NULL"
    if members is not None:
        separator = b"," if mariadb else b", "
        text += b"(%b)" % separator.join(map(sql_string, members))
    has_charset = column.type in MEMBER_TYPES or column.charset != BINARY
    if column.collation_id is not None and has_charset:
        charset = charset_name(column.collation_id, utf8mb3=utf8mb3) or "?"
        collation = collation_name(column.collation_id, mariadb=mariadb, utf8mb3=utf8mb3) or "?"
        text += f" CHARSET {charset} COLLATE {collation}".encode()
    return text


def _type(column: Column, *, mariadb: bool) -> str:
    """Write a column's type, with its length in characters where the character set is known."""
    kind, metadata = column.type, column.metadata
    text = _NAMES.get(kind, kind.name)
    match metadata:
        case DecimalMetadata():
            text += f"({metadata.precision},{metadata.scale})"
        case FractionMetadata() if metadata.digits:
            text += f"({metadata.digits})"
        case BitMetadata():
            text += f"({metadata.bits})"
        case LengthMetadata():
            text = _string(column, metadata)
        case BlobMetadata() if kind is ColumnType.GEOMETRY:
            text = _geometry(column.geometry_type or 0, mariadb=mariadb)
        case BlobMetadata() if kind is ColumnType.VECTOR and column.dimensions is not None:
            text += f"({column.dimensions})"
        case BlobMetadata() if kind in (ColumnType.BLOB, ColumnType.BLOB_COMPRESSED):
            name = "BLOB" if column.charset in (None, BINARY) else "TEXT"
            text = _BLOBS[metadata.length_bytes] + name + _compressed(kind)
    return text


def _string(column: Column, metadata: LengthMetadata) -> str:
    """Write CHAR or VARCHAR, or the type for bytes where that is the character set, or none is known."""
    name = "" if column.type is ColumnType.STRING else "VAR"
    if column.charset in (None, BINARY):
        return f"{name}BINARY({metadata.max_length}){_compressed(column.type)}"
    length = metadata.max_length // max_bytes_per_character(column.charset or BINARY)
    return f"{name}CHAR({length}){_compressed(column.type)}"


def _compressed(kind: ColumnType) -> str:
    return " COMPRESSED" if kind in COMPRESSED_TYPES else ""


def _geometry(number: int, *, mariadb: bool) -> str:
    if number >= len(_GEOMETRIES):
        return f"INVALID_GEOMETRY_TYPE({number})"
    name = _GEOMETRIES[number]
    return "GEOMETRYCOLLECTION" if mariadb and name == "GEOMCOLLECTION" else name


def _primary_key(columns: Sequence[Column]) -> bytes:
    """Write the columns of the primary key in its order, with the characters of each that are part of it."""
    keys = sorted((column for column in columns if column.key_position is not None), key=_key_position)
    if not keys:
        return b""
    parts = (
        f"{column.ordinal if column.name is None else column.name}"
        + (f"({column.key_prefix})" if column.key_prefix else "")
        for column in keys
    )
    text = ", ".join(parts).encode("utf-8", "surrogateescape")
    return b"# Primary Key(%b)\n" % in_comment(text)


def _key_position(column: Column) -> int:
    return column.key_position or 0

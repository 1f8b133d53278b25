"""The type codes that a table map gives to its columns.

MySQL: ``enum_field_types`` in ``include/field_types.h`` (9.x). MariaDB: the same names in
``include/mysql_com.h``, with two codes of its own for compressed columns. Only the server's names are used,
without their prefix ``MYSQL_TYPE_``.
"""

from enum import IntEnum
from typing import Final

__all__ = ["COMPRESSED_TYPES", "ColumnType"]


class ColumnType(IntEnum):
    """Type code of a column, one byte in a table map."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    TYPED_ARRAY = 20
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    INVALID = 243
    BOOL = 244
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


COMPRESSED_TYPES: Final = frozenset({ColumnType.BLOB_COMPRESSED, ColumnType.VARCHAR_COMPRESSED})
"""Those of MariaDB's column compression: each value says how it is packed."""

"""Columns for tests: their types, with the numbers that a table map has of them."""

from typing import Any

from millrace.binlog.columns import Column, ColumnType
from millrace.binlog.columns.column import (
    BitMetadata,
    BlobMetadata,
    DecimalMetadata,
    FractionMetadata,
    LengthMetadata,
    NoMetadata,
    PackMetadata,
    RealMetadata,
)

__all__ = ["column"]

T = ColumnType
_METADATA: dict[type[Any], tuple[ColumnType, ...]] = {
    RealMetadata: (T.FLOAT, T.DOUBLE),
    DecimalMetadata: (T.NEWDECIMAL,),
    FractionMetadata: (T.TIME, T.TIME2, T.DATETIME, T.DATETIME2, T.TIMESTAMP, T.TIMESTAMP2),
    BitMetadata: (T.BIT,),
    LengthMetadata: (T.STRING, T.VARCHAR, T.VAR_STRING, T.VARCHAR_COMPRESSED),
    BlobMetadata: (T.BLOB, T.BLOB_COMPRESSED, T.GEOMETRY, T.JSON, T.VECTOR),
    PackMetadata: (T.ENUM, T.SET),
}
_BY_TYPE = {one: metadata for metadata, types in _METADATA.items() for one in types}


def column(column_type: ColumnType, *numbers: int, ordinal: int = 0, **more: Any) -> Column:
    """``column(T.NEWDECIMAL, 10, 2, name="price")``."""
    metadata = _BY_TYPE[column_type](*numbers) if numbers else NoMetadata()
    return Column(ordinal, column_type, metadata, **more)

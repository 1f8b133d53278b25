"""GEOMETRY and VECTOR: both are stored like a BLOB.

GEOMETRY: SRID (uint32), then well-known binary. VECTOR: 32-bit floats, all little-endian.
"""

import math
import struct
from typing import Any, Final, NamedTuple

from millrace.binlog.columns.column import BlobMetadata, Column, LengthMetadata
from millrace.binlog.columns.declaration import (
    AvroOptions,
    AvroType,
    ColumnCodec,
    Convert,
    Native,
    NativeKind,
    Print,
    SelectedKind,
    Servers,
    always,
    declare,
)
from millrace.binlog.columns.numbers import short_float
from millrace.binlog.columns.printing import quoted_bytes
from millrace.binlog.columns.strings import BLOB_METADATA, VARCHAR_METADATA
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import EncodeError, UnrepresentableError

__all__ = ["GEOMETRY_NAMES", "GEOMETRY_RECORD", "GEOMETRY_TYPES", "GeometryValue"]

GEOMETRY_RECORD: dict[str, Any] = {
    "type": "record",
    "name": "Geometry",
    "namespace": "io.debezium.data.geometry",
    "fields": [
        {"name": "wkb", "type": "bytes"},
        {"name": "srid", "type": ["null", "int"], "default": None},
    ],
    "connect.name": "io.debezium.data.geometry.Geometry",
    "connect.version": 1,
}
"""Avro type of GEOMETRY; a schema defines it at its first use and names it from then on."""

GEOMETRY_TYPES: Final = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)
"""The types of SQL, by their number in the metadata."""

GEOMETRY_NAMES: Final = {name: number for number, name in enumerate(GEOMETRY_TYPES)} | {"geomcollection": 7}
"""Their numbers by their names, the newer name of GEOMETRYCOLLECTION included."""


class GeometryValue(NamedTuple):
    """A geometry: its spatial reference system and its well-known binary, which is not looked into."""

    srid: int
    wkb: bytes


@declare(ColumnType.GEOMETRY, catalog=dict.fromkeys(GEOMETRY_NAMES, always(BlobMetadata(4))))
class Geometry(ColumnCodec):
    """POINT to GEOMETRYCOLLECTION: a :class:`GeometryValue`; bytes where there are not even four."""

    metadata_layout = BLOB_METADATA
    collations = Servers.MARIADB
    selected = SelectedKind.STRING

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        assert isinstance(column.metadata, BlobMetadata)
        self.length_bytes = column.metadata.length_bytes

    def decode(self, payload: bytes) -> GeometryValue | bytes:
        """Return a GeometryValue."""
        if len(payload) < 4:
            return payload
        return GeometryValue(int.from_bytes(payload[:4], "little"), payload[4:])

    def encode(self, value: GeometryValue | bytes) -> bytes:
        """Take a GeometryValue, or the bytes as stored."""
        if isinstance(value, bytes):
            return value
        return value.srid.to_bytes(4, "little") + value.wkb

    def avro_type(self, options: AvroOptions) -> AvroType:  # noqa: ARG002 - the same for all options
        """Return a record of WKB and SRID."""
        return GEOMETRY_RECORD

    def avro_decoder(self, options: AvroOptions) -> Convert:  # noqa: ARG002 - the same for all options
        """Convert to a dict."""

        def convert(payload: bytes) -> dict[str, Any]:
            srid = int.from_bytes(payload[:4], "little")
            if len(payload) < 4 or srid >= 1 << 31:
                raise UnrepresentableError(f"{payload[:16].hex()} does not begin with the SRID of a geometry")
            return {"wkb": payload[4:], "srid": srid}

        return convert

    def native(self, options: AvroOptions) -> Native:  # noqa: ARG002 - the same for all options
        """Take both parts apart."""
        return Native(NativeKind.GEOMETRY)

    def text(self, value: GeometryValue | bytes) -> bytes:
        """Return the bytes that the server sends."""
        return self.encode(value)

    def printed_type(self) -> str:
        """Name the type; its kind is not in the table map's block of metadata."""
        return "GEOMETRY"

    def printer(self) -> None:
        """Leave the escapes to whoever prints."""

    def sql_type(self) -> str:
        """Write the type."""
        kind = self.column.geometry_type
        return GEOMETRY_TYPES[kind] if kind is not None and kind < len(GEOMETRY_TYPES) else GEOMETRY_TYPES[0]


class _VectorCodec(ColumnCodec):
    collations = Servers.ALL
    selected = SelectedKind.STRING

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        assert isinstance(column.metadata, BlobMetadata | LengthMetadata)
        self.length_bytes = column.metadata.length_bytes

    def decode(self, payload: bytes) -> tuple[float, ...] | bytes:
        """Return a tuple of floats; bytes where their number is no multiple of four."""
        if len(payload) % 4:
            return payload
        return struct.unpack(f"<{len(payload) // 4}f", payload)

    def encode(self, value: tuple[float, ...] | bytes) -> bytes:
        """Take floats, or the bytes as stored."""
        if isinstance(value, bytes):
            return value
        try:
            return struct.pack(f"<{len(value)}f", *value)
        except (struct.error, OverflowError) as error:
            raise EncodeError(f"{value} is not a VECTOR") from error

    def avro_type(self, options: AvroOptions) -> AvroType:  # noqa: ARG002 - the same for all options
        """Return an array of float."""
        return {
            "type": "array",
            "items": "float",
            "connect.name": "io.debezium.data.FloatVector",
            "connect.version": 1,
        }

    def avro_decoder(self, options: AvroOptions) -> Convert:  # noqa: ARG002 - the same for all options
        """Convert to a list."""

        def convert(payload: bytes) -> list[float]:
            if len(payload) % 4:
                raise UnrepresentableError(f"a VECTOR of {len(payload)} bytes")
            return list(struct.unpack(f"<{len(payload) // 4}f", payload))

        return convert

    def text(self, value: tuple[float, ...] | bytes) -> bytes:
        """Return the bytes that the server sends."""
        return self.encode(value)

    def to_json(self, value: tuple[float, ...] | bytes) -> list[float | str] | bytes:
        """Return the floats with as few digits as tell them from others."""
        if isinstance(value, bytes):
            return value
        return [short_float(item) if math.isfinite(item) else str(item) for item in value]

    def printer(self) -> Print:
        """Write the floats with six digits; a string where their number is no multiple of four."""

        def write(payload: bytes) -> bytes:
            numbers = self.decode(payload)
            if isinstance(numbers, bytes):
                return quoted_bytes(numbers)
            return b"[%b]" % b",".join(b"%.5e" % number for number in numbers)

        return write


@declare(ColumnType.VECTOR, catalog={"vector": always(BlobMetadata(4))})
class Vector(_VectorCodec):
    """VECTOR of MySQL: a tuple of floats."""

    metadata_layout = BLOB_METADATA

    def sql_type(self) -> str:
        """Write the type with its dimensions, where they are known."""
        dimensions = self.column.dimensions
        return "vector" if dimensions is None else f"vector({dimensions})"


@declare(ColumnType.VARCHAR, variant="vector")
class MariadbVector(_VectorCodec):
    """VECTOR of MariaDB: a tuple of floats; travels as VARBINARY, so that only the catalog tells."""

    metadata_layout = VARCHAR_METADATA

    def sql_type(self) -> str:
        """Write the type with its dimensions."""
        assert isinstance(self.column.metadata, LengthMetadata)
        return f"vector({self.column.metadata.max_length // 4})"

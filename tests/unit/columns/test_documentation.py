"""The page about column types and the declarations say the same; no declaration lacks a part."""

from types import ModuleType

import fastavro
import pytest

from millrace.binlog.columns import COLUMNS, AvroOptions, Column, ColumnType, avro_types, codec_of
from millrace.binlog.columns.column import BlobMetadata
from millrace.binlog.columns.declaration import ColumnCodec
from tests.shared import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("docs/columns.py")


def test_what_is_not_declared_is_in_no_row_image() -> None:
    assert set(ColumnType) - set(COLUMNS) == {
        ColumnType.DECIMAL,
        ColumnType.NULL,
        ColumnType.TYPED_ARRAY,
        ColumnType.INVALID,
        ColumnType.BOOL,
    }


def codecs() -> list[ColumnCodec]:
    """A column of each type, with fours in its metadata."""
    layouts = {column_type: codec.metadata_layout for column_type, codec in COLUMNS.items()}
    return [
        codec_of(Column(0, column_type, layout.decode(b"\x04" * layout.size), charset="utf8mb4"))
        for column_type, layout in layouts.items()
    ]


def test_a_schema_defines_a_named_type_once() -> None:
    geometries = [Column(ordinal, ColumnType.GEOMETRY, BlobMetadata(4)) for ordinal in range(3)]
    first, second, third = avro_types(geometries, AvroOptions())
    assert second == third == "io.debezium.data.geometry.Geometry"
    fields = [
        {"name": f"g{index}", "type": ["null", one]} for index, one in enumerate((first, second, third))
    ]
    fastavro.parse_schema({"type": "record", "name": "Value", "fields": fields})


def test_declarations_are_whole() -> None:
    for codec in codecs():
        assert bool(codec.struct_code) != bool(codec.length_bytes), codec
        assert type(codec).__doc__
        assert codec.sql_type()
        fastavro.parse_schema(codec.avro_type(AvroOptions()))
        layout = codec.metadata_layout
        raw = layout.encode(codec.column.metadata)
        assert len(raw) == layout.size
        assert layout.decode(raw) == codec.column.metadata

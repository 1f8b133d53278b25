"""The columns of tables: one declaration per type, metadata of table maps, character sets.

Importing this package enters all declarations into :data:`COLUMNS`.
"""

from millrace.binlog.columns import (  # noqa: F401 - each enters its declarations
    json_column,
    members,
    numbers,
    spatial,
    strings,
    temporals,
)
from millrace.binlog.columns.column import ABSENT, Column
from millrace.binlog.columns.declaration import (
    COLUMNS,
    VARIANTS,
    AvroOptions,
    AvroType,
    ColumnCodec,
    avro_types,
    codec_of,
)
from millrace.binlog.columns.metadata import columns_of
from millrace.binlog.columns.types import ColumnType

__all__ = [
    "ABSENT",
    "COLUMNS",
    "VARIANTS",
    "AvroOptions",
    "AvroType",
    "Column",
    "ColumnCodec",
    "ColumnType",
    "avro_types",
    "codec_of",
    "columns_of",
]

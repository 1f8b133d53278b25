"""What the codec offers as a library: :mod:`millrace.binlog` has these names."""

from millrace.binlog import events
from millrace.binlog.changes import Change, ChangedRows, ChangeEvent, ChangeReader, read_changes
from millrace.binlog.columns import (
    ABSENT,
    COLUMNS,
    AvroOptions,
    Column,
    ColumnCodec,
    ColumnType,
    avro_types,
    codec_of,
    columns_of,
)
from millrace.binlog.columns.json_binary import JsonValue, Opaque, decode_json, json_text
from millrace.binlog.columns.json_diffs import JsonDiff, JsonDiffOperation, JsonDiffs
from millrace.binlog.encryption import LogKeys
from millrace.binlog.errors import (
    BinlogError,
    ChecksumError,
    EncodeError,
    InvalidValueError,
    MalformedError,
    MissingStateError,
    SchemaMismatchError,
    TrailingBytesError,
    TruncatedError,
    UnrepresentableError,
    UnsupportedError,
)
from millrace.binlog.event_codec import BinlogEvent, decode_event, encode_event, seal
from millrace.binlog.events import *  # noqa: F403 - the names in its __all__
from millrace.binlog.file import (
    MAGIC,
    check_magic,
    decode_file,
    is_in_use,
    iter_events,
)
from millrace.binlog.fragments import PartialRowsAssembler, rows_event_of
from millrace.binlog.gtid_set import GtidSet, MariadbGtid, MariadbGtidPosition
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import AvroRows, Payloads, Row, RowImages, Values
from millrace.binlog.state import LogFormat, StreamState
from millrace.binlog.statement import Statement, StatementKind, TableName, classify
from millrace.binlog.table import (
    ColumnDefinition,
    ResolvedTable,
    TableDefinition,
    resolve_columns,
)
from millrace.binlog.transaction import TransactionEnd, TransactionStep, TransactionTracker
from millrace.binlog.types import ChecksumAlgorithm, EventType, HeaderFlag, QueryFlag2, RowsFlag, TableMapFlag

__all__ = [
    "ABSENT",
    "COLUMNS",
    "MAGIC",
    "AvroOptions",
    "AvroRows",
    "BinlogError",
    "BinlogEvent",
    "Change",
    "ChangeEvent",
    "ChangeReader",
    "ChangedRows",
    "ChecksumAlgorithm",
    "ChecksumError",
    "Column",
    "ColumnCodec",
    "ColumnDefinition",
    "ColumnType",
    "EncodeError",
    "EventHeader",
    "EventType",
    "GtidSet",
    "HeaderFlag",
    "InvalidValueError",
    "JsonDiff",
    "JsonDiffOperation",
    "JsonDiffs",
    "JsonValue",
    "LogFormat",
    "LogKeys",
    "MalformedError",
    "MariadbGtid",
    "MariadbGtidPosition",
    "MissingStateError",
    "Opaque",
    "PartialRowsAssembler",
    "Payloads",
    "QueryFlag2",
    "ResolvedTable",
    "Row",
    "RowImages",
    "RowsFlag",
    "SchemaMismatchError",
    "Statement",
    "StatementKind",
    "StreamState",
    "TableDefinition",
    "TableMapFlag",
    "TableName",
    "TrailingBytesError",
    "TransactionEnd",
    "TransactionStep",
    "TransactionTracker",
    "TruncatedError",
    "UnrepresentableError",
    "UnsupportedError",
    "Values",
    "avro_types",
    "check_magic",
    "classify",
    "codec_of",
    "columns_of",
    "decode_event",
    "decode_file",
    "decode_json",
    "encode_event",
    "is_in_use",
    "iter_events",
    "json_text",
    "read_changes",
    "resolve_columns",
    "rows_event_of",
    "seal",
]
__all__ += events.__all__

"""JSON of MySQL: a column's value is a binary document, stored like a BLOB.

Its text in the comments of ``mysqlbinlog -v`` is that of ``Json_dom``'s printer, its partial updates are
those of ``Rows_log_event::print_verbose_one_row`` in the server's ``sql/log_event.cc``.
"""

from millrace.binlog.columns.column import BlobMetadata, Column
from millrace.binlog.columns.declaration import (
    AvroOptions,
    AvroType,
    ColumnCodec,
    Convert,
    Native,
    NativeKind,
    Print,
    always,
    declare,
    semantic,
)
from millrace.binlog.columns.json_binary import JsonValue, Opaque, decode_json, json_text, text_of_json
from millrace.binlog.columns.json_diffs import JsonDiffOperation, JsonDiffs
from millrace.binlog.columns.json_encoding import encode_json
from millrace.binlog.columns.printing import quoted_bytes
from millrace.binlog.columns.strings import BLOB_METADATA
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import MalformedError, UnrepresentableError

__all__ = ["Json"]


@declare(ColumnType.JSON, catalog={"json": always(BlobMetadata(4))})
class Json(ColumnCodec):
    """JSON of MySQL: a :class:`JsonValue`, which keeps the binary form. JSON of MariaDB is LONGTEXT."""

    metadata_layout = BLOB_METADATA

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        assert isinstance(column.metadata, BlobMetadata)
        self.length_bytes = column.metadata.length_bytes
        self._whole_doubles = column.whole_doubles

    def decode(self, payload: bytes) -> JsonValue:
        """Return a JsonValue; whether it is well formed shows when its content is asked for."""
        return JsonValue(payload)

    def encode(self, value: JsonValue) -> bytes:
        """Take a JsonValue."""
        return value.binary

    def avro_type(self, options: AvroOptions) -> AvroType:  # noqa: ARG002 - the same for all options
        """Return string."""
        return semantic("string", "io.debezium.data.Json")

    def avro_decoder(self, options: AvroOptions) -> Convert:  # noqa: ARG002 - the same for all options
        """Convert to text."""
        whole_doubles = self._whole_doubles

        def convert(payload: bytes) -> str:
            try:
                return json_text(payload, whole_doubles=whole_doubles)
            except MalformedError as error:
                raise UnrepresentableError(str(error)) from error

        return convert

    def native(self, options: AvroOptions) -> Native:  # noqa: ARG002 - the same for all options
        """Write the text."""
        return Native(NativeKind.JSON, int(self._whole_doubles))

    def text(self, value: JsonValue) -> str | bytes:
        """Return the text; the binary form where it is malformed."""
        try:
            return json_text(value.binary, whole_doubles=self._whole_doubles)
        except (MalformedError, UnrepresentableError):
            return value.binary

    def sql_type(self) -> str:
        """Write the type."""
        return "json"

    def from_selected(self, value: bytes) -> JsonValue:
        """Encode the text."""
        return JsonValue(encode_json(value.decode()))

    def printer(self) -> Print:
        """Write the text in quotes, a partial update as calls of functions."""
        ordinal, whole_doubles = self.column.ordinal, self._whole_doubles

        def write(payload: bytes | JsonDiffs) -> bytes:
            if isinstance(payload, JsonDiffs):
                return _json_diffs(ordinal, payload)
            if not payload:
                return b"''"
            return quoted_bytes(_json_bytes(_json_text(payload, whole_doubles=whole_doubles)))

        return write


def _json_text(payload: bytes, *, whole_doubles: bool) -> str:
    """Write a document, one that is a mere string or date without quotes, as mysqlbinlog does."""
    if payload[0] in (_JSON_STRING, _JSON_OPAQUE):
        value = decode_json(payload)
        if isinstance(value, str):
            return value
        text = text_of_json(value)
        return text[1:-1] if text.startswith('"') else text
    return json_text(payload, whole_doubles=whole_doubles)


def _json_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_JSON_STRING, _JSON_OPAQUE = 0x0C, 0x0F
_FUNCTIONS = {
    JsonDiffOperation.REPLACE: b"JSON_REPLACE(",
    JsonDiffOperation.INSERT: b"JSON_INSERT(",
    JsonDiffOperation.REMOVE: b"JSON_REMOVE(",
}
_NEXT_LINE = b",\n###      "


def _json_argument(binary: bytes) -> bytes:
    """Write the new value of a JSON diff as SQL."""
    value = decode_json(binary)
    if isinstance(value, str):
        return quoted_bytes(_json_bytes(value))
    text = _json_bytes(text_of_json(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return text
    if isinstance(value, Opaque) and value.type == ColumnType.NEWDECIMAL:
        return text
    return b"CAST(%b AS JSON)" % quoted_bytes(text)


def _json_diffs(ordinal: int, value: JsonDiffs) -> bytes:
    """Write a partial update as calls of functions, one inside the other, that lead to the new document."""
    written = b"@%d" % (ordinal + 1)
    previous = None
    for operation, path, binary in value.diffs:
        arguments = quoted_bytes(_json_bytes(path))
        if binary is not None:
            arguments += b", " + _json_argument(binary)
        if operation is previous:
            written = written[:-1] + _NEXT_LINE + arguments + b")"
        else:
            written = b"%b%b, %b)" % (_FUNCTIONS[operation], written, arguments)
        previous = operation
    return written

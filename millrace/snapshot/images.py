"""What SELECT gives, as the row images of an insert.

A table is described by a table map event with full metadata, made of its definition, and its rows become the
image of a WRITE_ROWS event. So whoever decodes the binary log decodes them by the same path, and a value is
the same whether it comes from the stream or from here.

Values come as the bytes that the text protocol has, without a conversion of character sets
(:data:`SESSION`). Each column is selected by an expression that gives it whole
(:attr:`ColumnCodec.selection`): a FLOAT as a double, which has all its digits, ENUM and SET as numbers, a
TIMESTAMP as seconds since 1970.
"""

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from millrace import kernel
from millrace.binlog.columns.column import DecimalMetadata, FractionMetadata
from millrace.binlog.columns.declaration import ColumnCodec, SelectedKind, codec_of
from millrace.binlog.columns.metadata import (
    MetadataRules,
    encode_column_metadata,
    encode_optional_metadata,
    full_metadata,
)
from millrace.binlog.errors import EncodeError, InvalidValueError
from millrace.binlog.events import TableMapEvent
from millrace.binlog.names import quoted_name
from millrace.binlog.table import TableDefinition, column_of, keyed

if TYPE_CHECKING:
    from millrace.kernel.selected import Field, SelectedImages

SESSION: Final = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', character_set_results = NULL",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
"""Statements that set up a session for :attr:`SelectedTable.columns`."""

_Write = Callable[[bytes], bytes]
"""From what SELECT gives to the bytes of the value in an image."""


class SelectedTable:
    """A table whose rows are selected: what is selected, and the events that it becomes.

    ``server_version`` is that by which whoever reads the table map must read it. Raises
    :class:`UnsupportedError` for a type that is not known.
    """

    def __init__(self, definition: TableDefinition, *, mariadb: bool) -> None:
        self.definition = definition
        self.server_version = "11.4.5-MariaDB" if mariadb else "9.7.4"
        columns = keyed(tuple(column_of(one, mariadb=mariadb) for one in definition.columns), definition)
        codecs = [codec_of(column) for column in columns]
        self.columns = ", ".join(
            codec.selection.format(quoted_name(one.name))
            for codec, one in zip(codecs, definition.columns, strict=True)
        )
        self._writers = [_writer(codec) for codec in codecs]
        self._fields = [_field(codec) for codec in codecs]
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
            encode_optional_metadata(full_metadata(columns, MetadataRules(self.server_version))),
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


def _writer(codec: ColumnCodec) -> _Write:
    """Bind what writes the values of a column."""
    size = codec.length_bytes
    if codec.selected is SelectedKind.STRING:
        return lambda value: len(value).to_bytes(size, "little") + value
    if codec.selected is SelectedKind.BINARY:
        return lambda value: _prefixed(value.rstrip(b"\0"), size)
    read, encode = codec.from_selected, codec.encode
    if not codec.struct_code:
        return lambda value: _prefixed(encode(read(value)), size)
    pack = struct.Struct("<" + codec.struct_code).pack
    return lambda value: pack(encode(read(value)))


def _prefixed(payload: bytes, size: int) -> bytes:
    return len(payload).to_bytes(size, "little") + payload


def _field(codec: ColumnCodec) -> "Field":
    """Say how the kernel writes the values of a column: kind, size and two numbers."""
    metadata = codec.column.metadata
    a, b = 0, 0
    if isinstance(metadata, DecimalMetadata):
        a, b = metadata.precision, metadata.scale
    elif isinstance(metadata, FractionMetadata):
        a = (metadata.digits + 1) // 2
    size = struct.calcsize("<" + codec.struct_code) if codec.struct_code else codec.length_bytes
    return codec.selected, size, a, b

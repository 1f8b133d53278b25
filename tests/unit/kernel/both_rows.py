"""The rows of events written with the kernel and without it."""

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from millrace import kernel
from millrace.avro.column_values import ColumnValues
from millrace.avro.columnar import AvroColumns
from millrace.avro.row_records import EventMetadata, RowEncoder, RowsEventWriter, table_schemas
from millrace.binlog.columns import AvroOptions
from millrace.binlog.errors import BinlogError
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.row_images import AvroRows, RowImages
from millrace.binlog.table import ResolvedTable

if kernel.built("rows"):
    from millrace.kernel.rows import RowBlock

__all__ = ["NOT_BUILT", "Way", "everything", "ways"]

NOT_BUILT = "the kernel for rows is not built (make kernel): the reference is tested alone"

PLACE = EventMetadata(
    1_700_000_000_000_123,
    7,
    "u:5",
    "bin.000001",
    4,
    2,
    3,
    None,
    "a ö",
    "table_map",
    99_123,
    "u:5",
    8190,
    63,
    b"7:2:bin.000001:4:3",
)


def everything(count: int) -> bytes:
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")


class _Counting(RowImages):
    """Counts how often rows are read."""

    asked = 0

    def avro(self, rows: bytes) -> AvroRows:
        self.asked += 1
        return super().avro(rows)


class Way:
    """Writes the rows of events with the kernel or without it.

    ``slow`` counts how often the reference was asked for rows of the last event.
    """

    slow = 0

    def __init__(
        self,
        resolved: ResolvedTable,
        operation: RowsOperation,
        options: AvroOptions | None = None,
        *,
        compiled: bool,
        before: bytes | None = None,
        after: bytes | None = None,
        limit: int = 1 << 20,
        ruled: Mapping[int, ColumnValues] | None = None,
    ) -> None:
        present = everything(len(resolved.columns))
        options = options or AvroOptions()
        self.operation = operation
        self.before = None if operation is RowsOperation.WRITE else before or present
        self.after = None if operation is RowsOperation.DELETE else after or present
        self.encoder = RowEncoder(
            "s",
            "1",
            resolved,
            options,
            key_id=5 if resolved.key_columns else None,
            value_id=6,
            record_limit=limit,
            ruled=ruled,
        )
        self._schema = table_schemas("s", resolved, options, ruled).envelope
        self.images = _Counting(resolved.columns, self.before, self.after, options=options)
        with patch.object(kernel, "_enabled", compiled):
            self.native = self.encoder.kernel(self.before, self.after)

    def __call__(self, rows: bytes) -> list[tuple[bytes | None, bytes]] | type[Exception]:
        before = self.images.asked
        records: list[tuple[bytes | None, bytes]] = []
        found = self._write(rows, records)
        self.slow = self.images.asked - before
        if self.native is not None:
            block = RowBlock(b"")
            assert self._write(rows, block) == found
            assert found is not None or [*block] == [value for _, value in records]
            assert block.size == sum(map(len, block))
            self._compare_columns(block)
        return found or records

    def _compare_columns(self, block: "RowBlock") -> None:
        """Read a block as columns as its records by themselves are, twice, one after the other."""
        columns = AvroColumns(self._schema)
        found = []
        for values in ([block], [*block]):
            columns.add(values)
            columns.add([*values, *values])
            found.append(columns.take().serialize())
        assert found[0] == found[1]

    def _write(
        self, rows: bytes, records: "list[tuple[bytes | None, bytes]] | RowBlock"
    ) -> type[Exception] | None:
        writer = RowsEventWriter(
            self.encoder,
            PLACE,
            self.before or b"",
            self.after or b"",
            lambda row, side, ordinal: (row, 100 * side + ordinal),
            records=records,
        )
        try:
            writer.write_bytes(self.operation, rows, self.images, self.native)
        except BinlogError as error:
            return type(error)
        return None


def ways(*arguments: Any, **options: Any) -> tuple[Way, Way]:
    compiled, reference = (Way(*arguments, compiled=which, **options) for which in (True, False))
    assert compiled.native is not None
    assert reference.native is None
    return compiled, reference

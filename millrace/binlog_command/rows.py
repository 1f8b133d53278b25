"""The rows of rows events with what is needed to show them: columns with names, and their codecs."""

from dataclasses import dataclass

from millrace.binlog.columns.column import Column
from millrace.binlog.columns.declaration import ColumnCodec, codec_of
from millrace.binlog.errors import MissingStateError
from millrace.binlog.events import PartialUpdateRowsEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.rows import Row, RowImages
from millrace.binlog.state import StreamState
from millrace.binlog.stream import BinlogEvent
from millrace.binlog.table import ResolvedTable, resolve_columns

__all__ = ["RowReader", "TableRows"]

_MAX_TABLES = 1000


@dataclass(frozen=True, slots=True)
class TableRows:
    """How the rows of events with one table map and the same columns present are read.

    ``table`` names the columns; each of ``codecs`` is its column's.
    """

    table: ResolvedTable
    codecs: tuple[ColumnCodec, ...]
    images: RowImages

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in the order of the images."""
        return self.table.columns

    def rows(self, event: RowsEvent) -> list[Row]:
        """Read the rows of an event as natural values; raises BinlogError."""
        return self.images.natural(event.rows)

    def count(self, event: RowsEvent) -> int:
        """Count the rows of an event without reading them; raises BinlogError."""
        return self.images.count(event.rows)


class RowReader:
    """Finds out how the rows of an event are read, once for each table and choice of columns."""

    def __init__(self) -> None:
        self._known: dict[object, TableRows] = {}

    def of(self, decoded: BinlogEvent, state: StreamState) -> TableRows:
        """Give the reader for a rows event; raises BinlogError, as where its table map is not known."""
        event, table_map = decoded.event, decoded.table_map
        assert isinstance(event, RowsEvent)
        if table_map is None:
            raise MissingStateError(f"no table map for table id {event.table_id} comes before the rows")
        version = None if state.format is None else state.format.origin.version
        partial = isinstance(event, PartialUpdateRowsEvent)
        key = (
            _contents(table_map),
            version,
            event.operation,
            event.columns_before_image,
            event.columns_after_image,
            partial,
        )
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_TABLES:
                self._known.clear()
            known = self._known[key] = self._make(event, table_map, version, partial=partial)
        return known

    @staticmethod
    def _make(event: RowsEvent, table_map: TableMapEvent, version: str | None, *, partial: bool) -> TableRows:
        table = resolve_columns(table_map, server_version=version)
        images = RowImages(
            table.columns,
            event.columns_before_image or None,
            event.columns_after_image or None,
            partial_json=partial,
        )
        return TableRows(table, tuple(map(codec_of, table.columns)), images)


def _contents(table_map: TableMapEvent) -> tuple[object, ...]:
    """Give what a table map says of its table; its id and flags are not part of that."""
    return (
        table_map.database,
        table_map.table,
        table_map.column_types,
        table_map.column_metadata,
        table_map.null_bits,
        table_map.optional_metadata,
    )

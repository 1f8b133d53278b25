"""The rows of rows events with what is needed to show them: columns with names, and their codecs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from millrace.binlog.columns.column import Column
from millrace.binlog.columns.declaration import ColumnCodec, codec_of
from millrace.binlog.errors import MissingStateError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import PartialUpdateRowsEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.row_images import Row, RowImages
from millrace.binlog.state import StreamState
from millrace.binlog.table import ResolvedTable, TableDefinition, resolve_columns

__all__ = ["Bitmaps", "RowReader", "TableCache", "TableRows"]

_PER_COLUMN: Final = 1024
_PER_BYTE: Final = 8
_MAX_BYTES: Final = 32 << 20
"""What is made for a table takes about a kilobyte a column, and names and members take theirs."""


K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableRows(Generic[K]):
    """How the rows of events with one table map and the same columns present are read.

    ``table`` names the columns; each of ``codecs`` is its column's. ``kernel`` does with the rows what is
    wanted of them, but for rows that it leaves to ``images``; None where there is no such thing.
    """

    table: ResolvedTable
    codecs: tuple[ColumnCodec, ...]
    images: RowImages
    kernel: K | None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in the order of the images."""
        return self.table.columns

    def rows(self, event: RowsEvent) -> Iterator[Row]:
        """Read the rows of an event as natural values; raises BinlogError."""
        return self.images.each(event.rows)


Bitmaps = tuple[bytes | None, bytes | None]
"""The columns present in the images before and after; None for an image that the events do not have."""


class TableCache(Generic[T]):
    """Keeps what was made for tables, by what their maps say and a key; forgets all when it is too much."""

    def __init__(self) -> None:
        self._known: dict[object, T] = {}
        self._bytes = 0

    def get(self, table_map: TableMapEvent, key: object, make: Callable[[], T]) -> T:
        """Return what was made; where nothing was, make and keep it. Raises what ``make`` raises."""
        whole_key = table_map.content, key
        known = self._known.get(whole_key)
        if known is not None:
            return known
        made = make()
        size = _PER_COLUMN * table_map.column_count + _PER_BYTE * len(table_map.optional_metadata)
        if self._bytes + size > _MAX_BYTES:
            self._known.clear()
            self._bytes = 0
        self._bytes += size
        self._known[whole_key] = made
        return made


class RowReader(Generic[K]):
    """Finds out how the rows of an event are read, once for each table and choice of columns."""

    def __init__(
        self,
        make_kernel: Callable[[ResolvedTable, tuple[ColumnCodec, ...], Bitmaps], K | None] = lambda *_: None,
        define: Callable[[TableMapEvent], TableDefinition | None] = lambda _: None,
    ) -> None:
        """``make_kernel`` gives what does most of the work, None where there is no such thing.

        ``define`` gives what is known of a table besides its map, where that leaves out the names.
        """
        self._make_kernel = make_kernel
        self._define = define
        self._known: TableCache[TableRows[K]] = TableCache()

    def of(self, decoded: BinlogEvent, state: StreamState) -> TableRows[K]:
        """Return the reader for a rows event; raises BinlogError, as where its table map is not known."""
        event, table_map = decoded.event, decoded.table_map
        assert isinstance(event, RowsEvent)
        if table_map is None:
            raise MissingStateError(f"no table map for table id {event.table_id} comes before the rows")
        version = None if state.format is None else state.format.origin.version
        partial = isinstance(event, PartialUpdateRowsEvent)
        key = version, event.operation, event.columns_before_image, event.columns_after_image, partial
        return self._known.get(table_map, key, lambda: self._make(event, table_map, version, partial=partial))

    def _make(
        self, event: RowsEvent, table_map: TableMapEvent, version: str | None, *, partial: bool
    ) -> TableRows[K]:
        table = resolve_columns(table_map, self._define(table_map), server_version=version)
        images = RowImages.of_event(table.columns, event)
        codecs = tuple(map(codec_of, table.columns))
        kernel = None if partial else self._make_kernel(table, codecs, event.bitmaps)
        return TableRows(table, codecs, images, kernel)

"""The rows of an event as the log has them, read in batches of whole rows, or piece by piece.

A value far larger than a record of the row topic can never be in one; it is not even read, and the row gets a
reference to its position.
"""

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from millrace.binlog.columns import Column, ColumnType, codec_of
from millrace.binlog.declaration import Event
from millrace.binlog.errors import InvalidValueError, TooLargeError, TrailingBytesError, TruncatedError
from millrace.binlog.events import TableMapEvent
from millrace.binlog.events.rows import CompressedRowsEvent, PartialUpdateRowsEvent, RowsEvent
from millrace.binlog.row_images import present_ordinals
from millrace.rowmapper.event_reader import Incoming

EVERYTHING: Final = sys.maxsize
_BATCH_BYTES: Final = 1024 * 1024
_BATCH_ROWS: Final = 10_000

Where = tuple[int, int, int]
"""Number of a row, image (0 before, 1 after), ordinal of a column."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """``count`` complete rows of an event, from row ``first_row`` on.

    ``references`` has the values that were left out, and are empty in ``rows``: their first byte among the
    rows of the event, and past the last. Rows are numbered from the first of the batch.
    """

    rows: bytes
    first_row: int
    count: int
    references: dict[Where, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """A rows event, the record that brought it, its table map, and the statement that made the rows.

    ``query`` is the statement's text, None where it is not published; ``verb`` its first word, where the log
    has it.
    """

    incoming: Incoming
    event: RowsEvent
    table_map: TableMapEvent
    server_version: str | None
    query: str | None = None
    verb: str = ""

    @property
    def name(self) -> tuple[str, str]:
        """Database and table."""
        return self.table_map.database, self.table_map.table

    def unpacked(self, limit: int) -> "LoggedRows":
        """Uncompress the rows; raises BinlogError where that fails, or they are more than ``limit`` bytes."""
        check_unpacked(self.incoming, self.event, limit)
        return (
            replace(self, event=self.event.plain()) if isinstance(self.event, CompressedRowsEvent) else self
        )

    def batches(
        self, columns: Sequence[Column], keep: int, first: int = 0, stop: int | None = None
    ) -> Iterator[RowBatch]:
        """Cut the rows from ``first`` to before ``stop`` into batches; see :func:`row_batches`.

        Partial JSON keeps values of any size: a reference to a difference would be none to the value.
        """
        if isinstance(self.event, PartialUpdateRowsEvent):
            keep = EVERYTHING
        return row_batches(columns, self.event, self._pieces(), keep, first=first, stop=stop)

    def locate(self, columns: Sequence[Column], where: Where) -> tuple[int, int]:
        """Find the bytes of a value among the rows; see :func:`locate_value`."""
        return locate_value(columns, self.event, self._pieces(), where)

    def _pieces(self) -> Iterator[bytes]:
        large = self.incoming.large
        return iter((self.event.rows,)) if large is None else large.field()


def check_unpacked(incoming: Incoming, event: Event, limit: int) -> None:
    """Raise for an event that may not be unpacked: of much more may only a little be held."""
    size = event.unpacked_size
    if size and incoming.large is not None:
        size = max(size, incoming.large.field_size)
    if size > limit:
        raise TooLargeError(
            f"the event unpacks to {size} bytes, and MILLRACE_ROWS_UNPACKED_MIB allows {limit}"
        )


def row_batches(
    columns: Sequence[Column],
    event: RowsEvent,
    pieces: Iterable[bytes],
    keep: int,
    *,
    first: int = 0,
    stop: int | None = None,
) -> Iterator[RowBatch]:
    """Cut rows that come in pieces into batches, from the row ``first`` to before ``stop``.

    Leave out values of more than ``keep`` bytes. The layout is that of :mod:`millrace.binlog.row_images`.
    Raises MalformedError where the rows end in the middle of one.
    """
    images = _images(columns, event)
    json_columns = None
    if isinstance(event, PartialUpdateRowsEvent):
        json_columns = sum(column.type is ColumnType.JSON for column in columns)
    window = _Window(pieces)
    out = bytearray()
    references: dict[Where, tuple[int, int]] = {}
    row, first_row = 0, first
    while (stop is None or row < stop) and window.more():
        start = window.position
        for side, null_size, present in images:
            if side and json_columns is not None:
                options = window.read(1)
                out += options + window.read((options[0] & 1) * ((json_columns + 7) // 8))
            null_bits = window.read(null_size)
            out += null_bits
            for index, (ordinal, prefix, fixed) in enumerate(present):
                if null_bits[index >> 3] >> (index & 7) & 1:
                    continue
                length = window.read(prefix)
                size = int.from_bytes(length, "little") if prefix else fixed
                if size > keep:
                    references[row - first_row, side, ordinal] = window.position, window.position + size
                    window.skip(size)
                    out += bytes(prefix)
                else:
                    out += length
                    out += window.read(size)
        if window.position == start:
            raise TrailingBytesError("there are bytes of rows in which no column is present")
        row += 1
        if row <= first:
            out.clear()
            references.clear()
        elif len(out) >= _BATCH_BYTES or row - first_row >= _BATCH_ROWS:
            yield RowBatch(bytes(out), first_row, row - first_row, references)
            out, references, first_row = bytearray(), {}, row
    if row > first_row:
        yield RowBatch(bytes(out), first_row, row - first_row, references)


def locate_value(
    columns: Sequence[Column], event: RowsEvent, pieces: Iterable[bytes], where: Where
) -> tuple[int, int]:
    """Find the first byte of a value, after its length, among the rows of an event, and past its last."""
    row, side, ordinal = where
    for batch in row_batches(columns, event, pieces, -1, first=row, stop=row + 1):
        if (0, side, ordinal) in batch.references:
            return batch.references[0, side, ordinal]
    raise InvalidValueError(f"there is no value in row {row}, image {side}, column {ordinal}")


def _images(columns: Sequence[Column], event: RowsEvent) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
    """Return side, bytes of the bitmap of NULLs and present columns of each image.

    A column is its ordinal, and the bytes of its length, or else of its value.
    """
    codecs = [codec_of(column) for column in columns]
    images = []
    for side, bitmap in enumerate((event.columns_before_image, event.columns_after_image)):
        if bitmap:
            present = [
                (
                    ordinal,
                    0 if codecs[ordinal].struct_code else codecs[ordinal].length_bytes,
                    struct.calcsize(f"<{codecs[ordinal].struct_code or ''}"),
                )
                for ordinal in present_ordinals(bitmap, len(columns))
            ]
            images.append((side, (len(present) + 7) // 8, present))
    return images


class _Window:
    """Reads pieces as one run of bytes; ``position`` is how many were read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.position = 0
        self._pieces = iter(pieces)
        self._piece = b""
        self._at = 0

    def more(self) -> bool:
        """Return whether there is anything left."""
        while self._at == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._piece, self._at = piece, 0
        return True

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        taken = self._piece[self._at : self._at + size]
        self._at += len(taken)
        while len(taken) < size and self.more():
            more = self._piece[self._at : self._at + size - len(taken)]
            self._at += len(more)
            taken += more
        self._moved(len(taken), size)
        return taken

    def skip(self, size: int) -> None:
        """Leave out the next bytes."""
        left = size
        while left and self.more():
            step = min(left, len(self._piece) - self._at)
            self._at += step
            left -= step
        self._moved(size - left, size)

    def _moved(self, by: int, wanted: int) -> None:
        self.position += by
        if by < wanted:
            raise TruncatedError(f"a row image reaches past the end of the {self.position} bytes of rows")

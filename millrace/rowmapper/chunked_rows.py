"""Rows of events that are too large for memory: read piece by piece, in batches of whole rows.

A value far larger than a record of the row topic can never be in one; it is not even read, and the row gets a
reference to its position.
"""

import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.binlog.columns import Column, codec_of
from millrace.binlog.errors import InvalidValueError, TrailingBytesError, TruncatedError
from millrace.binlog.events.rows import RowsEvent
from millrace.binlog.row_images import present_ordinals
from millrace.kafka.chunks import LargeValue, Reread, between

_BATCH_BYTES: Final = 1024 * 1024
_BATCH_ROWS: Final = 10_000

Where = tuple[int, int, int]
"""Number of a row, image (0 before, 1 after), ordinal of a column."""


@dataclass(frozen=True, slots=True)
class LargeEvent:
    """An event whose record is too large to be held; its last field has ``field_size`` bytes.

    They start at ``field_start`` in the record, which ``reread`` reads again.
    """

    value: LargeValue
    field_start: int
    field_size: int
    reread: Reread

    def pieces(self) -> Generator[bytes, None, None]:
        """Read the record, piece by piece."""
        return self.reread(self.value.start, self.value.stop)

    def field(self, size: int | None = None) -> Iterator[bytes]:
        """Read the field, or its first ``size`` bytes, piece by piece."""
        return between(self.pieces(), self.field_start, self.field_size if size is None else size)


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


def row_batches(
    columns: Sequence[Column], event: RowsEvent, pieces: Iterable[bytes], keep: int
) -> Iterator[RowBatch]:
    """Cut rows that come in pieces into batches; leave out values of more than ``keep`` bytes.

    The layout is that of :mod:`millrace.binlog.row_images`, without partial JSON. Raises MalformedError
    where the rows end in the middle of one.
    """
    images = _images(columns, event)
    window = _Window(pieces)
    out = bytearray()
    references: dict[Where, tuple[int, int]] = {}
    first_row = row = 0
    while window.more():
        start = window.position
        for side, null_size, present in images:
            null_bits = window.take(null_size)
            out += null_bits
            for index, (ordinal, prefix, fixed) in enumerate(present):
                if null_bits[index >> 3] >> (index & 7) & 1:
                    continue
                length = window.take(prefix)
                size = int.from_bytes(length, "little") if prefix else fixed
                if size > keep:
                    references[row - first_row, side, ordinal] = window.position, window.position + size
                    window.skip(size)
                    out += bytes(prefix)
                else:
                    out += length
                    out += window.take(size)
        if window.position == start:
            raise TrailingBytesError("there are bytes of rows in which no column is present")
        row += 1
        if len(out) >= _BATCH_BYTES or row - first_row >= _BATCH_ROWS:
            yield RowBatch(bytes(out), first_row, row - first_row, references)
            out, references, first_row = bytearray(), {}, row
    if row > first_row:
        yield RowBatch(bytes(out), first_row, row - first_row, references)


def locate_in_pieces(
    columns: Sequence[Column], event: RowsEvent, pieces: Iterable[bytes], where: Where
) -> tuple[int, int]:
    """Find the first byte of a value among the rows of an event, and past its last."""
    row, side, ordinal = where
    for batch in row_batches(columns, event, pieces, 0):
        found = batch.references.get((row - batch.first_row, side, ordinal))
        if found is not None:
            return found
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
    """Reads pieces as one run of bytes; ``position`` is how many were taken."""

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

    def take(self, size: int) -> bytes:
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

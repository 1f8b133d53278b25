"""Where a value lies in the rows of an event: for a reference, if the value is too large for a record."""

import struct
from collections.abc import Sequence
from itertools import count

from millrace.binlog.columns import Column, ColumnType, codec_of
from millrace.binlog.errors import InvalidValueError
from millrace.binlog.events.rows import PartialUpdateRowsEvent, RowsEvent


def locate_value(
    columns: Sequence[Column], event: RowsEvent, row: int, side: int, ordinal: int
) -> tuple[int, int]:
    """Return the offsets in ``event.rows`` of a value's first byte, after its length, and past its last.

    ``row`` counts from 0; ``side`` is 0 for the image before and 1 for the image after. The layout is that of
    :mod:`millrace.binlog.row_images`. Raises :class:`InvalidValueError` where there is no such value.
    """
    rows = event.rows
    codecs = [codec_of(column) for column in columns]
    json_columns = sum(column.type is ColumnType.JSON for column in columns)
    position = 0
    for number in count():
        for which, bitmap in enumerate((event.columns_before_image, event.columns_after_image)):
            if not bitmap:
                continue
            if which == 1 and isinstance(event, PartialUpdateRowsEvent):
                position += 1 + (rows[position] & 1) * ((json_columns + 7) // 8)
            present = [i for i in range(len(columns)) if bitmap[i >> 3] >> (i & 7) & 1]
            null_bits = rows[position : position + (len(present) + 7) // 8]
            position += len(null_bits)
            for index, column in enumerate(present):
                if null_bits[index >> 3] >> (index & 7) & 1:
                    continue
                codec = codecs[column]
                start = position + codec.length_bytes
                size = (
                    struct.calcsize(f"<{codec.struct_code}")
                    if codec.struct_code
                    else int.from_bytes(rows[position:start], "little")
                )
                position = start + size
                if (number, which, column) == (row, side, ordinal):
                    return start, position
        if position >= len(rows):
            break
    raise InvalidValueError(f"there is no value in row {row}, image {side}, column {ordinal}")

"""Records to rows of a frame, in executors: a record that cannot be read is a row that says so."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from millrace.text import printable, shortened

Line = tuple[Any, ...]

_SHOWN: Final = 300


def batch_of(lines: Sequence[Line], layout: pa.Schema) -> pa.RecordBatch:
    """Make a batch of lines."""
    columns = list(zip(*lines, strict=True)) if lines else [()] * len(layout)
    made = [pa.array(column, part.type) for column, part in zip(columns, layout, strict=True)]
    return pa.RecordBatch.from_arrays(made, schema=layout)


def rows_of(batch: pa.RecordBatch) -> list[Line]:
    """Return the rows of a batch."""
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def read_lines(
    records: Sequence[Line],
    layout: pa.Schema,
    read: Callable[..., Line | None],
    fault: Callable[..., Line],
) -> pa.RecordBatch:
    """Make lines of records: by ``read``, which may leave one out or raise.

    Of one for which it raises ``fault`` makes the line, given the reason as well.
    """

    def lines(*, check: bool) -> Iterator[Line]:
        for record in records:
            try:
                line = read(*record)
                if check and line is not None:
                    batch_of([line], layout)
            except Exception as error:  # noqa: BLE001 - whatever a record holds, all others are read
                line = fault(*record, reason_of(error))
            if line is not None:
                yield line

    try:
        return batch_of(list(lines(check=False)), layout)
    except (pa.ArrowException, OverflowError, UnicodeError):  # a value that the columns cannot hold
        return batch_of(list(lines(check=True)), layout)


def reason_of(error: Exception) -> str:
    """Say why a record cannot be read."""
    return shortened(printable(f"{type(error).__name__}: {error}"), _SHOWN)

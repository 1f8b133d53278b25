"""The codec alone, on one core: a log file to typed events, and their rows to values."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace.binlog.columns.metadata import columns_of
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import RowsEvent, TableMapEvent
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.file import iter_events
from millrace.binlog.rows import RowImages
from millrace.binlog.state import StreamState
from millrace.binlog.stream import decode_batch

__all__ = ["CodecResult", "measure_codec"]

_BATCH = 500

ReadRows = Callable[[RowImages, bytes], list[Any]]


@dataclass(frozen=True, slots=True)
class CodecResult:
    """What a log file holds, and the seconds to decode it: events alone, with natural values, with Avro's."""

    events: int
    rows: int
    megabytes: float
    events_s: float
    natural_s: float
    avro_s: float


def measure_codec(log: Path) -> CodecResult:
    """Decode a log file three times, from its bytes in memory, with every checksum verified."""
    with log.open("rb") as file:
        events = [data for _, data in iter_events(file)]
    events_s, _ = _timed(events, None)
    natural_s, rows = _timed(events, RowImages.natural)
    avro_s, _ = _timed(events, lambda images, data: images.avro(data).rows)
    return CodecResult(len(events), rows, log.stat().st_size / 1e6, events_s, natural_s, avro_s)


def _timed(events: list[bytes], read: ReadRows | None) -> tuple[float, int]:
    state = StreamState()
    readers: dict[tuple[TableMapEvent, bytes, bytes], RowImages] = {}
    rows = 0
    started = time.perf_counter()
    for first in range(0, len(events), _BATCH):
        for decoded in decode_batch(events[first : first + _BATCH], state):
            if isinstance(decoded, BinlogError):
                raise decoded
            if read is not None and isinstance(decoded.event, RowsEvent):
                assert decoded.table_map is not None
                images = _images(readers, decoded.event, decoded.table_map)
                rows += len(read(images, decoded.event.rows))
    return time.perf_counter() - started, rows


def _images(
    readers: dict[tuple[TableMapEvent, bytes, bytes], RowImages], event: RowsEvent, table_map: TableMapEvent
) -> RowImages:
    key = (table_map, event.columns_before_image, event.columns_after_image)
    images = readers.get(key)
    if images is None:
        images = readers[key] = RowImages(
            columns_of(table_map),
            None if event.operation is RowsOperation.WRITE else event.columns_before_image,
            None if event.operation is RowsOperation.DELETE else event.columns_after_image,
        )
    return images

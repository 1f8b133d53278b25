"""What is done with bytes that may be anything: no error but BinlogError; what is accepted is given back."""

import contextlib
import io
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import TypeVar

from millrace import kernel
from millrace.binlog.columns import ABSENT, AvroOptions, codec_of
from millrace.binlog.columns.json_binary import JsonValue
from millrace.binlog.columns.json_diffs import JsonDiffs
from millrace.binlog.encryption import LogKeys
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent, decode_event, encode_event
from millrace.binlog.events import (
    PartialRowDataEvent,
    PartialUpdateRowsEvent,
    QueryCompressedEvent,
    QueryEvent,
    RowsEvent,
    TableMapEvent,
    TransactionPayloadEvent,
)
from millrace.binlog.file import decode_file, iter_events
from millrace.binlog.fragments import PartialRowsAssembler
from millrace.binlog.row_images import RowImages
from millrace.binlog.state import StreamState
from millrace.binlog.statement import classify
from millrace.binlog.table import ResolvedTable, resolve_columns
from millrace.binlog.transaction import TransactionTracker
from tests.unit.binlog.cases import state_of
from tests.unit.kernel.both import compare, raw_records
from tests.unit.kernel.both_rows import Way

__all__ = ["KEYS", "check_event", "check_log"]

KEYS = {
    "AES_CTR": LogKeys(lambda _: bytes(range(32)), "AES_CTR"),
    "AES_CBC": LogKeys(lambda _: bytes(range(16)), "AES_CBC"),
}
_UNPACKED_LIMIT = 1 << 22
_COMPARED = 8

T = TypeVar("T")


def check_event(server: str, data: bytes) -> None:
    """Decode one event in the format of a server, write it back, and look into what it holds."""
    state = state_of(server)
    with contextlib.suppress(BinlogError):
        decoded = decode_event(data, state, verify=False)
        assert encode_event(decoded, state_of(server)) == data
        _look_into(decoded, state)


def check_log(log: bytes) -> None:
    """Read a file in all ways, and look into its events as far as it goes."""
    state, tracker = StreamState(), TransactionTracker()
    fragments = PartialRowsAssembler()
    for position, data in _until_damaged(iter_events(io.BytesIO(log))):
        try:
            decoded = decode_event(data, state, verify=False)
        except BinlogError:
            continue
        assert encode_event(decoded, state) == data
        tracker = TransactionTracker.restore(tracker.save())
        tracker.feed(decoded.header, decoded.event, "log", position)
        if isinstance(decoded.event, PartialRowDataEvent):
            with contextlib.suppress(BinlogError):
                whole = fragments.feed(decoded.event)
                if whole is not None:
                    _look_into(decode_event(whole, state.for_payload()), state)
        _look_into(decoded, state)
    _compare_with_kernel(log)
    for keys in KEYS.values():
        for _ in _until_damaged(decode_file(io.BytesIO(log), keys=keys)):
            pass


def _compare_with_kernel(log: bytes) -> None:
    """The compiled kernel decodes events as the reference does, damaged ones too."""
    # Making decoders takes long, and memory that is not the codec's.
    if not kernel.has("events") or zlib.crc32(log) % _COMPARED or tracemalloc.is_tracing():
        return
    events = list(_until_damaged(iter_events(io.BytesIO(log))))
    if events:
        compare(raw_records(events))


def _until_damaged(items: Iterator[T]) -> Iterator[T]:
    with contextlib.suppress(BinlogError):
        yield from items


def _look_into(decoded: BinlogEvent, state: StreamState) -> None:
    event = decoded.event
    with contextlib.suppress(BinlogError):
        if isinstance(event, TransactionPayloadEvent):
            _look_into_payload(event, state.for_payload())
        elif isinstance(event, TableMapEvent):
            _resolve(event, state)
        elif isinstance(event, RowsEvent):
            if decoded.table_map is not None:
                _read_rows(decoded.table_map, event, state)
        elif isinstance(event, QueryEvent | QueryCompressedEvent):
            classify(event.query)


def _look_into_payload(event: TransactionPayloadEvent, state: StreamState) -> None:
    unpacked = 0
    for data in event.events():
        unpacked += len(data)
        if unpacked > _UNPACKED_LIMIT:
            break
        with contextlib.suppress(BinlogError):
            inner = decode_event(data, state, verify=False)
            assert encode_event(inner, state) == data
            if not isinstance(inner.event, TransactionPayloadEvent):
                _look_into(inner, state)


def _resolve(table_map: TableMapEvent, state: StreamState) -> ResolvedTable:
    """Bind the columns of a table map to their types, by the rules of the server that wrote it."""
    server = state.format.origin.server_version if state.format is not None else None
    table = resolve_columns(table_map, server_version=server)
    for column in table.columns:
        codec = codec_of(column)
        assert codec.sql_type()
        assert codec.avro_type(AvroOptions())
    return table


def _compare_rows_with_kernel(table: ResolvedTable, event: RowsEvent, rows: bytes) -> None:
    """The compiled kernel writes rows as the reference does, or refuses them as it does."""
    if isinstance(event, PartialUpdateRowsEvent) or not table.columns:
        return
    if not kernel.has("rows") or tracemalloc.is_tracing():
        return
    with contextlib.suppress(BinlogError):
        compiled, reference = (
            Way(
                table,
                event.operation,
                compiled=which,
                before=event.columns_before_image,
                after=event.columns_after_image,
            )
            for which in (True, False)
        )
        assert compiled(rows) == reference(rows)


def _read_rows(table_map: TableMapEvent, event: RowsEvent, state: StreamState) -> None:
    table = _resolve(table_map, state)
    images = RowImages.of_event(table.columns, event)
    rows = event.rows
    with contextlib.suppress(BinlogError):
        images.count(rows)
    with contextlib.suppress(BinlogError):
        images.avro(rows)
    _compare_rows_with_kernel(table, event, rows)
    natural = images.decode(rows)
    codecs = [codec_of(column) for column in images.columns]
    for values in (image for row in natural for image in row if image is not None):
        for codec, value in zip(codecs, values, strict=True):
            if value is None or value is ABSENT:
                continue
            with contextlib.suppress(BinlogError):
                _ = value.diffs if isinstance(value, JsonDiffs) else codec.text(value)
                if isinstance(value, JsonValue):
                    _ = value.value
                elif not isinstance(value, JsonDiffs):
                    codec.sql_literal(value)
    # A bitmap's unused bits are lost, so the bytes may differ; the values must not. As text: NaN is not NaN.
    again = images.decode(images.encode(natural))
    assert repr(again) == repr(natural)

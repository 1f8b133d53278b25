"""The cost of the formats of row topics: CPU per record in addition to Avro's, with and without the kernel.

``python -m benchmarks.formats``. A record is an insert into a table of ten columns, with its key.
"""

import sys
import time
from typing import Final

from millrace import kernel
from millrace.avro.row_records import EventMetadata, RowEncoder, RowsEventWriter, table_schemas
from millrace.binlog.columns import AvroOptions, Column, ColumnType
from millrace.binlog.columns.column import LengthMetadata, Metadata, NoMetadata, RealMetadata
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.row_images import AvroRows
from millrace.binlog.table import ResolvedTable
from millrace.rowmapper.json_format import JsonFormat
from millrace.stage import Output

_RECORDS: Final = 20_000
_RUNS: Final = 3
_COLUMNS: Final[dict[str, tuple[ColumnType, Metadata, str | None]]] = {
    "id": (ColumnType.LONG, NoMetadata(), None),
    "customer": (ColumnType.LONG, NoMetadata(), None),
    "status": (ColumnType.VARCHAR, LengthMetadata(80), "utf8mb4"),
    "note": (ColumnType.VARCHAR, LengthMetadata(800), "utf8mb4"),
    "amount": (ColumnType.DOUBLE, RealMetadata(8), None),
    "day": (ColumnType.DATE, NoMetadata(), None),
    "views": (ColumnType.LONGLONG, NoMetadata(), None),
    "first": (ColumnType.LONG, NoMetadata(), None),
    "second": (ColumnType.LONG, NoMetadata(), None),
    "mail": (ColumnType.VARCHAR, LengthMetadata(400), "utf8mb4"),
}
_ROW: Final = (
    *(12_345, 678, "shipped", "left at the door of a neighbour", 123.45, 19_000, 1 << 40, 1, None),
    "someone@example.com",
)
_PLACE: Final = EventMetadata(
    ts_us=1_700_000_000_000_123,
    server_id=7,
    gtid="3e11fa47-71ca-11e1-9e33-c80aa9429562:23",
    log_file="mysql-bin.000001",
    position=1234,
    epoch=0,
    sub_index=0,
    thread=None,
    query=None,
    schema_source="table_map",
    now_us=1_700_000_000_200_123,
    transaction="3e11fa47-71ca-11e1-9e33-c80aa9429562:23",
    total_order=1,
    collection_order=1,
    key=b"7:0:mysql-bin.000001:1234:0",
)
_KEY, _VALUE = 1, 2


def main() -> int:
    """Print a line per format."""
    columns = tuple(
        Column(at, kind, metadata, name=name, charset=charset, key_position=None if at else 0)
        for at, (name, (kind, metadata, charset)) in enumerate(_COLUMNS.items())
    )
    table = ResolvedTable("shop", "orders", columns, columns[:1], "table_map")
    options = AvroOptions()
    schemas = table_schemas("shop", table, options)
    assert schemas.key is not None
    encoder = RowEncoder("shop", "1", table, options, key_id=_KEY, value_id=_VALUE, record_limit=sys.maxsize)
    writer = RowsEventWriter(encoder, _PLACE, b"", b"\xff\x03", lambda *_: (0, 0))
    writer.write(RowsOperation.WRITE, AvroRows([(None, _ROW)], {}))
    ((key, value),) = writer.records
    output = Output()
    for _ in range(_RECORDS):
        output.add("shop.shop.orders", key, value, 0)
    known = {_KEY: schemas.key, _VALUE: schemas.envelope}
    print(f"avro: {len(value)} bytes")
    for way in ("kernel", "reference"):
        if way == "kernel" and not kernel.has("json_text"):
            print("the kernel is not built, or turned off")
            continue
        for name in ("json", "json-schema", "cloudevents"):
            made = JsonFormat(name, known.__getitem__, native=way == "kernel")
            size, best = len(made.record(value)), float("inf")
            for _ in range(_RUNS):
                began = time.process_time()
                made.written(output)
                best = min(best, time.process_time() - began)
            print(f"{way}, {name}: {size} bytes, {best / _RECORDS * 1e6:.1f} us of CPU per record")
    return 0


if __name__ == "__main__":
    sys.exit(main())

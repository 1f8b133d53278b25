"""Logs as records of an events topic, written with the codec and serialised as the decoder does it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.avro.events import EventSerializer, binlog_event_schema
from millrace.avro.registry import wire_prefix
from millrace.binlog.columns.metadata import (
    OptionalMetadata,
    OptionalMetadataType,
    columns_of,
    encode_optional_metadata,
)
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import (
    DeleteRowsEvent,
    ExecuteLoadQueryEvent,
    GtidLogEvent,
    QueryEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
    XidEvent,
)
from millrace.binlog.events.query import StatusVariables
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import Row, RowImages
from millrace.binlog.transaction import TransactionTracker
from millrace.contract import GAP, HEADER_MARKER, EventKey
from millrace.stage import Record
from spark_jobs.common.events import arrow_schema, decode_events
from spark_jobs.common.kafka import RECORD_SCHEMA
from spark_jobs.common.transactions import number_laps
from spark_jobs.loops.logs import TABLES as LINES
from spark_jobs.loops.logs import EventLine, LogReader, Logs, events_of

SCHEMA_ID = 7
SCHEMAS = {SCHEMA_ID: binlog_event_schema()}
INT, VARCHAR = ColumnType.LONG, ColumnType.VARCHAR
TYPES: Mapping[str, Sequence[tuple[ColumnType, bytes]]] = {
    "log": [(INT, b""), (VARCHAR, b"\x28\x00")],
    "wide": [(INT, b""), (INT, b""), (VARCHAR, b"\x28\x00")],
    "keyed": [(INT, b""), (VARCHAR, b"\x28\x00")],
}
ROWS = {"insert": WriteRowsEvent, "update": UpdateRowsEvent, "delete": DeleteRowsEvent}


class EventLog:
    """Writes one log file after the other; ``records`` are keys and values of the events topic."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []
        self.database = "shop"
        self._serialize = EventSerializer()
        self._tracker = TransactionTracker()
        self.epoch = 0
        self.next_file()

    def reset(self) -> None:
        """Begin again, as after RESET MASTER."""
        self.epoch, self.number = self.epoch + 1, 0
        self.next_file()

    def next_file(self) -> None:
        self.file = f"bin.{getattr(self, 'number', 0) + 1:06}"
        self.number = int(self.file[-6:])
        self.position = 4

    def add(
        self,
        event: Event,
        *,
        server_id: int = 1,
        timestamp: int = 1000,
        table: tuple[str, str] | None = None,
        flags: int = 0,
    ) -> None:
        declaration = EVENTS[event.event_type]
        body = event.encode_fields(declaration.post_header_lengths[-1])
        end = self.position + 19 + len(body)
        header = EventHeader(timestamp, event.event_type, server_id, 19 + len(body), end, flags)
        step = self._tracker.feed(header, event, self.file, self.position)
        key = EventKey(server_id, self.epoch, self.file, self.position, 0).encode()
        decoded = BinlogEvent(header, event)
        value = self._serialize(decoded, self.epoch, self.file, self.position, 0, step, table)
        self.records.append((key, wire_prefix(SCHEMA_ID) + value))
        self.position = end

    def gap(self, timestamp: int = 1000) -> None:
        """Say, as the reader does, that changes are missing here."""
        key = EventKey(1, 0, self.file, self.position, 0).encode()
        self.records.append((key, b"purged", [(HEADER_MARKER, GAP)], timestamp))

    def statement(self, text: str, *, thread_id: int = 1, **more: Any) -> None:
        self.add(QueryEvent(thread_id, 0, 0, StatusVariables(), self.database, text.encode()), **more)

    def load(
        self, file_id: int, start: int, end: int, text: bytes, *, thread_id: int = 1, **more: Any
    ) -> None:
        """Write the statement of a LOAD DATA; its file's name stands from ``start`` to ``end``."""
        of_query = thread_id, 0, 0, StatusVariables(), self.database
        self.add(ExecuteLoadQueryEvent(*of_query, file_id, start, end, 0, text), **more)

    def table_map(self, table: str, table_id: int = 100, **more: Any) -> None:
        event = table_map(table, table_id, self.database)
        self.add(event, table=(self.database, table), **more)

    def rows(
        self,
        table: str,
        operation: str,
        rows: Sequence[Row],
        *,
        table_id: int = 100,
        columns: int | None = None,
        **more: Any,
    ) -> None:
        """Write a rows event; ``columns`` is how many of the columns its images hold."""
        width = len(TYPES[table])
        bits = bytes([(1 << (width if columns is None else columns)) - 1])
        before, after = (None if operation == "insert" else bits), (None if operation == "delete" else bits)
        images = RowImages(columns_of(table_map(table, table_id)), before, after).encode(rows)
        event = ROWS[operation](table_id, 1, b"", width, before or b"", after or b"", images)
        self.add(event, table=(self.database, table), **more)

    def change(self, table: str, operation: str, *rows: Row, table_id: int = 100, **more: Any) -> None:
        """Write a transaction without a GTID: one table, one rows event."""
        self.statement("BEGIN", **more)
        self.table_map(table, table_id, **more)
        self.rows(table, operation, rows, table_id=table_id, **more)
        self.add(XidEvent(len(self.records)), **more)

    def events(self, spark: SparkSession, partitions: int = 1, source: str = "shop") -> DataFrame:
        events = [record for record in self.records if len(record) == 2]
        return decode_events(frame_of(spark, events, partitions), source, f"{source}.events", SCHEMAS)


def table_map(table: str, table_id: int, database: str = "shop") -> TableMapEvent:
    types = bytes(column_type for column_type, _ in TYPES[table])
    metadata = b"".join(part for _, part in TYPES[table])
    key = OptionalMetadata(simple_primary_key=(0,), order=(OptionalMetadataType.SIMPLE_PRIMARY_KEY,))
    optional = encode_optional_metadata(key) if table == "keyed" else b""
    return TableMapEvent(table_id, 1, database, table, types, metadata, b"\xff"[:1], optional)


def gtid_event(
    number: int, original: int | None = None, immediate: int | None = None, sid: bytes = bytes(range(16))
) -> GtidLogEvent:
    return GtidLogEvent(1, sid, number, 2, 0, 1, immediate, original, 100 if immediate else None, 80000)


def frame_of(spark: SparkSession, records: Sequence[tuple[Any, Any]], partitions: int = 1) -> DataFrame:
    """Return records as they are read from Kafka; offsets have gaps, as commits leave them."""
    parts = [[part if part is None else bytearray(part) for part in record] for record in records]
    rows = [(0, number * 2, None, *record, None) for number, record in enumerate(parts)]
    return spark.createDataFrame(rows, RECORD_SCHEMA).repartition(partitions)


def records_of(records: Iterable[tuple[Any, ...]]) -> list[Record]:
    """Return records as executors read them; offsets have gaps, as commits leave them."""
    return [
        Record(2 * number, 1000 * (rest[1] if rest else 0), key, value, rest[0] if rest else None)
        for number, (key, value, *rest) in enumerate(records)
    ]


def lines_of(
    records: Sequence[Record], cuts: int = 1, source: str = "shop", bounds: tuple[int, int] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return by table what executors make of records that they read in stretches; ``cut`` as well."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in LINES}
    start, end = bounds or (0, records[-1].offset + 1 if records else 0)
    cut = 0
    for at in range(cuts):
        begin, until = (start + (end - start) * place // cuts for place in (at, at + 1))

        def write(table: str, batch: pa.RecordBatch) -> None:
            found[table] += batch.to_pylist()

        reader = LogReader(source, f"{source}.events", SCHEMAS, (start, end), (begin, until), write)
        for one in records:
            if begin <= one.offset < end and reader.take([one]):
                break
        reader.finish()
        cut += reader.cut
    return {**found, "cut": [{}] * cut}


def logs_of(
    spark: SparkSession, logs: Mapping[str, EventLog], cuts: int = 1, begins: Mapping[str, int] | None = None
) -> Logs:
    """Return the logs of members, by their names, those of some from the record on at which they begin."""
    records = {source: records_of(log.records) for source, log in logs.items()}
    lines = []
    for source, of_source in records.items():
        begin = (begins or {}).get(source, 0)
        read = lines_of(of_source[begin:], cuts, source, (2 * begin, 2 * len(of_source)))
        before = lines_of(of_source[:begin], 1, source)["heads"] if begin else []
        read["heads"] += [{**head, "gtids": None, "earlier": True} for head in before]
        lines.append(read)
    frames = {}
    for table, layout in LINES.items():
        rows = [row for one in lines for row in one[table]]
        made = pa.Table.from_pylist(rows, arrow_schema(layout))
        frames[table] = spark.createDataFrame(made, layout).repartition(cuts)

    def events() -> DataFrame:
        every = [log.events(spark, cuts, source) for source, log in logs.items()]
        return number_laps(reduce(DataFrame.unionByName, every))

    def between(source: str, spans: Iterable[tuple[int, int]]) -> Iterator[list[EventLine]]:
        for start, end in spans:
            inside = [one for one in records[source] if start <= one.offset < end]
            yield events_of(inside, f"{source}.events", SCHEMAS)

    return Logs(frames["transactions"], frames["heads"], frames["gaps"], events, between)


def inserted(*rows: tuple[Any, ...]) -> list[Row]:
    return [(None, row) for row in rows]

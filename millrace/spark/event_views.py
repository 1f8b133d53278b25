"""The views of typed events and of transactions: no image of a row is decoded for them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import pyarrow as pa

from millrace.avro.columnar import AvroColumns, chosen
from millrace.avro.events import EventRecord, binlog_event_schema
from millrace.avro.registry import split_wire_format
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import (
    AnnotateRowsEvent,
    FormatDescriptionEvent,
    GtidEvent,
    GtidTaggedLogEvent,
    MariadbGtidEvent,
    RowsQueryLogEvent,
    TableMapEvent,
)
from millrace.binlog.events.control import StartEventV3
from millrace.binlog.events.gtid import commit_times
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.events.rows import CompressedRowsEvent, RowsEvent
from millrace.binlog.fields import decode_text
from millrace.binlog.row_reader import RowReader
from millrace.binlog.state import StreamState
from millrace.binlog.statement import TRANSACTION_CONTROL, classify
from millrace.binlog_command.row_kernel import counting
from millrace.contract import ABANDONED, HEADER_MARKER
from millrace.spark.decoding import Decoding
from millrace.spark.views import OF_TRANSACTION, DecodedView, batch_of, sequence_text
from millrace.stage import OutputRecord
from millrace.text import valid_text

_EVENT: Final = "event"
_ROWS: Final = 4096
_MOST_UNPACKED: Final = 64 << 20
_LONGEST_STATEMENT: Final = 1000
_MICROS: Final = 1_000_000


@cache
def events_schema() -> pa.Schema:
    """Return the columns of the view ``events``: an event's head, and a struct with a column per type."""
    schema = binlog_event_schema()
    *head, union = schema["fields"]
    types = [
        pa.field(one["name"], _columns_of(schema, head, union, branch).schema.field(_EVENT).type)
        for branch, one in enumerate(union["type"])
    ]
    heads = AvroColumns({**schema, "fields": head}).schema
    return pa.schema([*heads, pa.field(_EVENT, pa.struct(types))])


def _columns_of(schema: Any, head: Any, union: Any, branch: int) -> AvroColumns:
    one = {**union, "type": chosen(union["type"], branch)}
    return AvroColumns({**schema, "fields": [*head, one]})


class EventsView(DecodedView):
    """Typed events: of each the column of its type is not null."""

    def __init__(self, decoding: Decoding, layout: pa.Schema, *, fail: bool) -> None:
        super().__init__(decoding, layout, fail=fail)
        self._heads: AvroColumns | None = None
        self._branches: dict[int, AvroColumns] = {}

    def _made(self, topic: str, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        if topic != self._decoder.topics.events:
            return
        values = [value or b"" for _, value, _, headers in made if not _marker(headers)]
        if not values:
            return
        schema = self._decoder.schema(split_wire_format(values[0])[0])
        *head, union = schema["fields"]
        if self._heads is None:
            number = {"name": _EVENT, "type": "long"}
            self._heads = AvroColumns({**schema, "fields": [*head, number]}, whole=False)
        heads = self._heads.read(values)
        if _EVENT not in self._layout.names:
            yield batch_of(heads, self._layout)
            return
        of_branch: dict[int, list[bytes]] = {}
        for branch, value in zip(heads.column(_EVENT).to_pylist(), values, strict=True):
            of_branch.setdefault(branch, []).append(value)
        for branch, same in of_branch.items():
            if branch not in self._branches:
                self._branches[branch] = _columns_of(schema, head, union, branch)
            rows = self._branches[branch].read(same)
            event = pa.StructArray.from_arrays([rows.column(_EVENT)], [union["type"][branch]["name"]])
            columns = [*rows.columns[:-1], event]
            yield batch_of(pa.RecordBatch.from_arrays(columns, rows.schema.names), self._layout)


def _marker(headers: Any) -> bytes | None:
    found: bytes | None = None if headers is None else dict(headers).get(HEADER_MARKER)
    return found


TRANSACTIONS: Final = pa.schema(
    [
        *OF_TRANSACTION,
        pa.field("ends", pa.string()),
        pa.field("started", pa.timestamp("us", "UTC")),
        pa.field("thread_id", pa.int64()),
        pa.field("user", pa.string()),
        pa.field("events", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field(
            "tables",
            pa.list_(
                pa.struct(
                    [
                        *(("database", pa.string()), ("table", pa.string())),
                        *((operation, pa.int64()) for operation in ("inserts", "updates", "deletes")),
                    ]
                )
            ),
        ),
        pa.field("statement", pa.string()),
    ]
)
"""The columns of the view ``transactions``.

``ends`` tells how it ended. ``rows`` and the numbers of ``tables`` are null where they cannot be counted.
``statement`` is the first that is not BEGIN, as far as it is logged, cut to 1000 characters.
"""


@dataclass(slots=True)
class _Transaction:
    """A transaction that is open."""

    head: EventRecord
    name: str
    events: int = 0
    bytes: int = 0
    gtid: bool = False
    commit_us: int | None = None
    thread_id: int | None = None
    user: str | None = None
    statement: str | None = None
    tables: dict[tuple[str, str], list[int | None]] = field(default_factory=dict)

    def row(self, ends: str) -> dict[str, Any]:
        """Return the columns of the view."""
        head = self.head
        counts = [count for counts in self.tables.values() for count in counts]
        started = head.timestamp * _MICROS or None
        return {
            "_commit_ts": self.commit_us or started,
            "_gtid": self.name if self.gtid else None,
            "_transaction": self.name,
            "_server_id": head.server_id,
            "_position": {
                "epoch": head.epoch,
                "file": valid_text(head.log_file),
                "pos": head.position,
                "sub_index": head.sub_index,
            },
            "_sequence": sequence_text(head.epoch, head.log_file, head.position, head.sub_index),
            "ends": ends,
            "started": started,
            "thread_id": self.thread_id,
            "user": self.user,
            "events": self.events,
            "bytes": self.bytes,
            "rows": None if None in counts else sum(count for count in counts if count is not None),
            "tables": [
                {
                    "database": database,
                    "table": table,
                    "inserts": inserts,
                    "updates": updates,
                    "deletes": deletes,
                }
                for (database, table), (inserts, updates, deletes) in self.tables.items()
            ],
            "statement": self.statement,
        }


_NUMBERS: Final = {"insert": 0, "update": 1, "delete": 2}


class TransactionsView(DecodedView):
    """Transactions; rows are counted without reading their values."""

    def __init__(self, decoding: Decoding, layout: pa.Schema, *, fail: bool) -> None:
        super().__init__(decoding, layout, fail=fail)
        self._state = StreamState()
        self._reader = RowReader(lambda _table, codecs, bitmaps: counting(codecs, bitmaps))
        self._open: _Transaction | None = None
        self._found: list[dict[str, Any]] = []

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Return what is left; a transaction that has not ended is none yet."""
        yield from super().rest()
        if self._found:
            yield self._flush()

    def _made(self, topic: str, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        if topic != self._decoder.topics.events:
            return
        for _, value, _, headers in made:
            if marker := _marker(headers):
                if marker == ABANDONED:
                    self._open = None  # it follows again, whole
                continue
            self._take(self._decoder.read_event(value or b""))
        if len(self._found) >= _ROWS:
            yield self._flush()

    def _flush(self) -> pa.RecordBatch:
        found, self._found = self._found, []
        return batch_of(pa.RecordBatch.from_pylist(found, TRANSACTIONS), self._layout)

    def _take(self, head: EventRecord) -> None:
        one = self._open
        if head.transaction is not None and (one is None or head.begins or one.name != head.transaction):
            one = self._open = _Transaction(head, valid_text(head.transaction))
        event = head.event
        if isinstance(event, TableMapEvent | FormatDescriptionEvent | StartEventV3):
            with suppress(BinlogError):
                self._state.observe(event, head.header.flags)
        if head.transaction is None or one is None:
            return
        one.events += 1
        one.bytes += 0 if head.sub_index else head.header.event_size
        if isinstance(event, RowsEvent):
            self._count(one, head, event)
        elif isinstance(event, GtidEvent | GtidTaggedLogEvent):
            one.commit_us, one.gtid = commit_times(event)[0], True
        elif isinstance(event, MariadbGtidEvent):
            one.gtid, one.thread_id = True, event.thread_id
        elif isinstance(event, RowsQueryLogEvent | AnnotateRowsEvent):
            one.statement = one.statement or _statement(event.query)
        elif isinstance(event, StatementEvent):
            _note_statement(one, event)
        if head.ends is not None:
            self._found.append(one.row(head.ends.value))
            self._open = None

    def _count(self, one: _Transaction, head: EventRecord, event: RowsEvent) -> None:
        table_map = self._state.table_maps.get(event.table_id)
        if event.ends_statement:
            self._state.observe(event)
        name = valid_text(head.database or ""), valid_text(head.table or "")
        counts = one.tables.setdefault(name, [0, 0, 0])
        number = _NUMBERS[event.operation.statement]
        rows = None
        packed = isinstance(event, CompressedRowsEvent) and event.unpacked_size > _MOST_UNPACKED
        if table_map is not None and not packed:
            with suppress(BinlogError, ValueError):
                found = self._reader.of(BinlogEvent(head.header, event, None, b"", table_map), self._state)
                rows = None if found.kernel is None else found.kernel.count(event.rows)
                rows = found.images.count(event.rows) if rows is None else rows
        before = counts[number]
        counts[number] = None if rows is None or before is None else before + rows


def _note_statement(one: _Transaction, event: StatementEvent) -> None:
    one.thread_id = one.thread_id or event.thread_id or None
    variables = event.status_variables
    if one.user is None and variables is not None and variables.invoker is not None:
        one.user = valid_text(f"{variables.invoker.user}@{variables.invoker.host}")
    with suppress(BinlogError):
        text = event.beginning
        if one.statement is None and text != b"BEGIN" and classify(text).kind not in TRANSACTION_CONTROL:
            one.statement = _statement(text)


def _statement(text: bytes) -> str:
    return valid_text(decode_text(text[: 4 * _LONGEST_STATEMENT]))[:_LONGEST_STATEMENT]

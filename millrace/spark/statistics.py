"""The views that count: what the log consists of, event by event, as executors read it.

Transactions and DDL statements are rows. All else are sums over a partition, or a part of it: adding up rows
of the same names gives the same, however the log was divided. So nothing here grows without bound: sums that
become many are handed out and started again.

Rows are counted by skipping over them, without reading values. The first :data:`LOOKED_AT` rows of each event
are examined for keys, and in updates for columns that change: that is all rows of small changes, and an even
sample of large ones.
"""

import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from millrace.avro.events import EventRecord
from millrace.binlog.columns.column import ABSENT
from millrace.binlog.columns.declaration import ColumnCodec
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
from millrace.binlog.grammar import HEADING, Role
from millrace.binlog.row_images import Payloads
from millrace.binlog.row_reader import RowReader, TableRows
from millrace.binlog.state import StreamState
from millrace.binlog.statement import TRANSACTION_CONTROL, StatementKind, classify
from millrace.binlog.transaction import codes_of
from millrace.binlog.types import EventType
from millrace.binlog_command.row_kernel import counting
from millrace.contract import ABANDONED
from millrace.spark.decoding import Decoding
from millrace.spark.fingerprint import fingerprint
from millrace.spark.raw_topic import is_whole
from millrace.spark.views import OF_TRANSACTION, VIEWS, DecodedView, batch_of, marker_of, sequence_text
from millrace.stage import OutputRecord, Record, records_of_columns
from millrace.text import printable, shortened, valid_text

LOOKED_AT: Final = 8
"""Rows of each event whose values are examined."""

_TEXT: Final = pa.string()
_LONG: Final = pa.int64()
_TIME: Final = pa.timestamp("us", "UTC")
_SECOND: Final = 1_000_000
_OF_TABLE: Final = {"database": _TEXT, "table": _TEXT}


def _longs(names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names.split(), _LONG)


def _times(names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names.split(), _TIME)


SUMS: Final[Mapping[str, pa.Schema]] = {
    name: pa.schema(list(columns.items()))
    for name, columns in {
        "counts": {
            "record_time": _TIME,
            "time": _TIME,
            "type": _TEXT,
            **_OF_TABLE,
            "operation": _TEXT,
            **_longs("events rows bytes stored uncounted"),
        },
        "transactions": {
            **{column.name: column.type for column in OF_TRANSACTION},
            "key": _TEXT,
            **_longs("first_offset last_offset"),
            "ends": _TEXT,
            **_times("record_time started ended original_commit immediate_commit"),
            **_longs("last_committed commit_id thread_id"),
            "user": _TEXT,
            **_longs("events bytes rows inserts updates deletes"),
            "tables": pa.list_(pa.struct([*_OF_TABLE.items(), *_longs("inserts updates deletes").items()])),
            "statement": _TEXT,
        },
        "statements": {
            "database": _TEXT,
            "statement": _TEXT,
            **_longs("executions rows bytes seconds"),
        },
        "ddl": {
            "record_time": _TIME,
            "offset": _LONG,
            "key": _TEXT,
            "time": _TIME,
            **_longs("server_id thread_id"),
            **dict.fromkeys(["user", "database", "object", "verb", "statement"], _TEXT),
            "seconds": _LONG,
        },
        "keys": {**_OF_TABLE, "key": _TEXT, "changes": _LONG},
        "columns": {**_OF_TABLE, "ordinal": _LONG, "name": _TEXT, "changed": _LONG},
        "tables": {**_OF_TABLE, "key": _TEXT, **_longs("looked unchanged image_bytes needed_bytes")},
        "read": _longs("events bytes"),
    }.items()
}
"""What is counted, and its columns; times are cut to seconds, but for those of commits.

``time`` is that of an event, ``record_time`` that of its raw record: of one that cannot be read, that of the
record before it. ``bytes`` are those of events; ``stored`` leaves out events inside a compressed transaction,
which has its own. ``uncounted`` events have a number of rows that cannot be told.

Of a transaction ``ends`` is null where the input ends within it. ``rows`` is null, and so are numbers of
``tables``, where they cannot be told; ``inserts``, ``updates`` and ``deletes`` are what was counted.
``statement`` is the first that is not BEGIN, as far as it is logged, cut to 1000 characters.

``key`` of ``tables`` is what is known of the primary key: the columns, nothing where there is none, null
where that is not known. ``read`` are the events that were read, once more where a transaction was abandoned.
"""

_CORRUPT: Final = "corrupt"
STATISTICS: Final = pa.schema(
    {
        **{name: pa.list_(pa.struct(list(columns))) for name, columns in SUMS.items()},
        _CORRUPT: pa.list_(pa.struct([pa.field("record_time", _TIME), *VIEWS["_corrupt"]])),
    }
)
"""The columns of the view ``statistics``, which counts all of this at once: a row is a part of the log, and
has a list of one kind. So what a row of one kind lacks of the others is not carried along.
"""

_ROLES_READ: Final = HEADING | {Role.START, Role.QUERY, Role.ROWS}
_MOST_COUNTS: Final = 50_000
_MOST_OPEN: Final = 100_000
_MOST_KEYS: Final = 50_000
_MOST_STATEMENTS: Final = 5_000
_MOST_TRANSACTIONS: Final = 4096
_MOST_TABLES: Final = 5_000
_MOST_COLUMNS: Final = 50_000
_LONGEST_KEY: Final = 120
_LONGEST_STATEMENT: Final = 1000
_MOST_UNPACKED: Final = 64 << 20
_LISTED: Final = 1000
_TYPE_NAMES: Final = {int(event_type): event_type.name for event_type in EventType}
_STATEMENT_READ: Final = 64 << 10
_READ: Final = frozenset(
    {
        EventType.TABLE_MAP_EVENT,
        EventType.ROWS_QUERY_LOG_EVENT,
        EventType.ANNOTATE_ROWS_EVENT,
        EventType.EXECUTE_LOAD_QUERY_EVENT,
        *codes_of(*_ROLES_READ),
    }
)
"""Types of events that are decoded fully; for the others the head is enough."""

_CountKey = tuple[int | None, int, str, str | None, str | None, str | None]
"""Seconds of the record and of the event, type, database, table, operation."""

_NUMBERS: Final = {"insert": 0, "update": 1, "delete": 2}


@dataclass(slots=True)
class _Transaction:
    """A transaction that is open."""

    head: EventRecord
    key: str
    first_offset: int
    last_offset: int = 0
    is_gtid: bool = False
    thread_id: int | None = None
    user: str | None = None
    statement: str | None = None
    events: int = 0
    rows: list[int] = field(default_factory=lambda: [0, 0, 0])
    bytes: int = 0
    started: int = 0
    ended: int = 0
    commits: tuple[int | None, int | None] = (None, None)
    last_committed: int | None = None
    commit_id: int | None = None
    tables: dict[tuple[str, str], list[int | None]] = field(default_factory=dict)
    counts: dict[_CountKey, list[int]] = field(default_factory=dict)

    def row(self, ends: str | None, record_time: int | None) -> tuple[Any, ...]:
        """Return the columns of the view."""
        head, name = self.head, valid_text(self.head.transaction)
        position = head.epoch, valid_text(head.log_file), head.position, head.sub_index
        original, immediate = self.commits
        started = self.started * _SECOND or None
        told = all(None not in numbers for numbers in self.tables.values())
        return (
            original or started, name if self.is_gtid else None, name, head.server_id, position, position,
            self.key, self.first_offset, self.last_offset, ends, record_time, started,
            self.ended * _SECOND or None, original, immediate, self.last_committed, self.commit_id,
            self.thread_id, self.user, self.events, self.bytes, sum(self.rows) if told else None, *self.rows,
            [(*table, *numbers) for table, numbers in self.tables.items()], self.statement,
        )  # fmt: skip


class _Look:
    """How the rows of one kind of event are examined, and what was found."""

    def __init__(self, rows: TableRows[Any], name: tuple[str, str], operation: str) -> None:
        self.name = name
        self.operation = operation
        table = rows.table
        self.key = [column.ordinal for column in table.key_columns]
        known = bool(self.key) or table.schema_source == "table_map"
        names = [column.name or f"column {column.ordinal + 1}" for column in table.key_columns]
        self.key_text = ", ".join(names) if known else None
        self.names = [column.name or f"column {column.ordinal + 1}" for column in rows.columns]
        self.codecs = rows.codecs
        self.sizes = [_size_of(codec) for codec in rows.codecs]
        self.changed = [0] * len(rows.codecs)
        self.looked = self.unchanged = self.image_bytes = self.needed_bytes = 0

    def update(self, before: list[Any], after: list[Any]) -> None:
        """Compare the images of a row that was updated."""
        self.looked += 1
        changed = [
            ordinal
            for ordinal, (old, new) in enumerate(zip(before, after, strict=True))
            if new is not ABSENT and old is not ABSENT and old != new
        ]
        added = [
            n
            for n, (old, new) in enumerate(zip(before, after, strict=True))
            if old is ABSENT and new is not ABSENT
        ]
        if not changed and not added:
            self.unchanged += 1
        for ordinal in changed:
            self.changed[ordinal] += 1
        sizes = self.sizes
        whole = needed = 0
        for image, wanted in ((before, self.key), (after, changed + added)):
            lengths = [
                size if size >= 0 else len(value) - size if isinstance(value, bytes) else 0
                for value, size in zip(image, sizes, strict=True)
                if value is not None and value is not ABSENT
            ]
            whole += sum(lengths)
            for ordinal in wanted:
                value, size = image[ordinal], sizes[ordinal]
                if value is not None and value is not ABSENT:
                    needed += size if size >= 0 else len(value) - size if isinstance(value, bytes) else 0
        self.image_bytes += whole
        self.needed_bytes += needed if self.key else whole

    def key_of(self, row: Payloads) -> str | None:
        """Write the key of a row; None if the table has no known key, or the image lacks it."""
        image = row[0] if row[0] is not None else row[1]
        if image is None or not self.key:
            return None
        parts = []
        for ordinal in self.key:
            payload = image[ordinal]
            if payload is None or payload is ABSENT:
                return None
            codec = self.codecs[ordinal]
            text = codec.text(codec.decode(payload))
            parts.append(f"0x{text.hex()}" if isinstance(text, bytes) else text)
        return shortened(printable(", ".join(parts)), _LONGEST_KEY)


def _size_of(codec: ColumnCodec) -> int:
    """Return how many bytes a value takes; where that depends on it, minus the bytes of its length."""
    return struct.calcsize("<" + codec.struct_code) if codec.struct_code else -codec.length_bytes


def _raw_key(key: bytes) -> str:
    """Return the key of the raw event that a typed one was made of."""
    return key[: key.rindex(b":")].decode("ascii", "backslashreplace")


def _add(counts: dict[_CountKey, list[int]], key: _CountKey, more: list[int]) -> None:
    """Add events, rows, bytes, stored bytes and events that are uncounted to those with a key."""
    count = counts.get(key)
    if count is None:
        counts[key] = more
        return
    events, rows, size, stored, uncounted = more
    count[0] += events
    count[1] += rows
    count[2] += size
    count[3] += stored
    count[4] += uncounted


class StatisticsView(DecodedView):
    """What is counted of the log: one kind of :data:`SUMS`, or those that the layout has."""

    def __init__(self, decoding: Decoding, layout: pa.Schema, *, fail: bool, kind: str | None = None) -> None:
        super().__init__(decoding, layout, fail=fail)
        self._kind = kind
        self._wanted: dict[str, pa.Schema] = (
            {column.name: pa.schema(list(column.type.value_type)) for column in layout}
            if kind is None
            else {kind: layout}
        )
        self._looking = not {"keys", "columns", "tables"}.isdisjoint(self._wanted)
        self._told = "statement" in self._names("transactions")
        self._times = _Times() if any("record_time" in self._names(name) for name in self._wanted) else None
        self._state = StreamState()
        self._reader = RowReader(lambda _table, codecs, bitmaps: counting(codecs, bitmaps))
        self._looks: dict[int, tuple[TableRows[Any], _Look]] = {}
        self._look_columns = 0
        self._open: _Transaction | None = None
        self._counts: dict[_CountKey, list[int]] = {}
        self._keys: dict[tuple[str, str, str], int] = {}
        self._statements: dict[tuple[str, str], list[int]] = {}
        self._statement: list[int] | None = None
        self._ended: list[tuple[Any, ...]] = []
        self._ddl: list[tuple[Any, ...]] = []
        self._full: list[pa.RecordBatch] = []

    def _names(self, kind: str) -> Collection[str]:
        return self._wanted[kind].names if kind in self._wanted else ()

    @property
    def dated(self) -> bool:
        """Whether records are taken with their own timestamps, in place of their offsets."""
        return self._times is not None

    def begin(self, *known: Record) -> None:
        """Take the format description of the log."""
        for written in self._decoder.take(known):
            for _, value, *_ in written.get((self._decoder.topics.events, 0), ()):
                self._observe(self._decoder.read_event(value or b""))
        self._decoder.forget_counts()

    def take(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Take the next raw records, whose timestamps are their offsets unless they are :attr:`dated`."""
        if self._times is not None and records:
            self._times.take(records)
            offsets, _, keys, values, headers = zip(*records, strict=True)
            records = records_of_columns(offsets, offsets, keys, values, headers)
        yield from self._decode(records)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left, with the transaction that has not ended."""
        if self._open is not None:
            self._close(None)
        self._flush_counts()
        self._flush_keys()
        self._flush_looks()
        self._flush_statements()
        self._flush("transactions", self._ended)
        self._flush("ddl", self._ddl)
        self._flush("read", [(self._decoder.raw_events, self._decoder.raw_bytes)])
        yield from self._taken()

    def _made(self, topic: str, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        if topic != self._decoder.topics.events:
            return
        read = self._decoder.read_event
        for key, value, offset, headers in made:
            if (marker := marker_of(headers)) is not None:
                if marker == ABANDONED:
                    self._open = None  # it follows again, whole
                continue
            self._event(read(value or b""), key or b"", offset)
        if len(self._counts) > _MOST_COUNTS:
            self._flush_counts()
        if len(self._ended) > _MOST_TRANSACTIONS:
            self._flush("transactions", self._ended)
        yield from self._taken()

    def _taken(self) -> Iterator[pa.RecordBatch]:
        full, self._full = self._full, []
        return iter(full)

    def _dead_letters(self, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        yield from super()._dead_letters(made)
        if _CORRUPT in self._wanted:
            letters = self._corrupt(made)
            times = [self._record_time(offset) for offset in letters.column("offset").to_pylist()]
            yield self._of_kind(_CORRUPT, letters.append_column("record_time", pa.array(times, _TIME)))

    # -- events ---------------------------------------------------------------------------------------

    def _event(self, head: EventRecord, key: bytes, offset: int) -> None:
        header = head.header
        size, timestamp = header.event_size, header.timestamp
        stored = 0 if head.sub_index else size
        one = self._open
        if head.transaction is None:
            counts, one = self._counts, None
        else:
            if one is None or head.begins or one.head.transaction != head.transaction:
                if one is not None:
                    self._close(None)
                self._statement = None
                one = self._open = _Transaction(head, _raw_key(key), offset)
            counts = one.counts
            one.events += 1
            one.bytes += stored
            one.last_offset = offset
            if timestamp:
                if timestamp < one.started or not one.started:
                    one.started = timestamp
                one.ended = max(one.ended, timestamp)
        type_name = _TYPE_NAMES.get(head.type_code) or f"type {head.type_code}"
        time = None if self._times is None else self._times.of(offset)
        if head.type_code not in _READ:
            count_key: _CountKey = time, timestamp, type_name, None, None, None
            rows = uncounted = 0
        else:
            database, table, operation, rows, uncounted = self._look_into(head, key, offset, one, size)
            count_key = time, timestamp, type_name, database, table, operation
        _add(counts, count_key, [1, rows, size, stored, uncounted])
        if one is not None:
            if head.ends is not None:
                self._close(head.ends.value)
            elif len(one.counts) > _MOST_OPEN:
                self._merge(one)

    def _record_time(self, offset: int) -> int | None:
        found = None if self._times is None else self._times.of(offset)
        return None if found is None else found * _SECOND

    def _close(self, ends: str | None) -> None:
        one, self._open = self._open, None
        assert one is not None
        self._merge(one)
        self._ended.append(one.row(ends, self._record_time(one.last_offset)))

    def _merge(self, one: _Transaction) -> None:
        every = self._counts
        for key, count in one.counts.items():
            _add(every, key, count)
        one.counts = {}

    def _observe(self, head: EventRecord) -> None:
        event = head.event
        if isinstance(event, TableMapEvent | FormatDescriptionEvent | StartEventV3):
            with suppress(BinlogError):
                self._state.observe(event, head.header.flags)

    def _look_into(
        self, head: EventRecord, key: bytes, offset: int, one: _Transaction | None, size: int
    ) -> tuple[str | None, str | None, str | None, int, int]:
        """Read an event; return database, table, operation, number of rows, and 1 if that is not known."""
        event = head.event
        if isinstance(event, RowsEvent):
            return self._rows(head, event, one, size)
        self._observe(head)
        if one is not None and isinstance(event, GtidEvent | GtidTaggedLogEvent):
            one.is_gtid = True
            one.commits = commit_times(event)
            one.last_committed = event.last_committed
        elif one is not None and isinstance(event, MariadbGtidEvent):
            one.is_gtid = True
            one.thread_id = event.thread_id
            one.commit_id = event.commit_id
        elif isinstance(event, RowsQueryLogEvent | AnnotateRowsEvent):
            self._statement = self._count_statement(("", fingerprint(event.query)), 0)
            self._tell(one, event.query)
        elif isinstance(event, StatementEvent):
            self._query(head, event, (key, offset), one)
        return None, None, None, 0, 0

    def _tell(self, one: _Transaction | None, text: bytes) -> None:
        if self._told and one is not None and one.statement is None:
            one.statement = valid_text(decode_text(text[: 4 * _LONGEST_STATEMENT]))[:_LONGEST_STATEMENT]

    def _query(
        self, head: EventRecord, event: StatementEvent, place: tuple[bytes, int], one: _Transaction | None
    ) -> None:
        variables = event.status_variables
        invoker = None if variables is None else variables.invoker
        user = None if invoker is None else printable(f"{invoker.user}@{invoker.host}")
        timestamp = head.header.timestamp
        if one is not None:
            one.thread_id = one.thread_id or event.thread_id or None
            one.user = one.user or user
            if timestamp:
                one.ended = max(one.ended, timestamp + event.exec_time)
        try:
            text = event.beginning
        except BinlogError:
            return
        if text == b"BEGIN":
            return
        statement = classify(text)
        if statement.kind in TRANSACTION_CONTROL:
            return
        self._tell(one, text)
        count = self._count_statement((printable(event.database), fingerprint(text)), event.exec_time)
        count[2] += head.header.event_size
        if statement.kind is not StatementKind.DDL:
            return
        key, offset = place
        tables = ", ".join(f"{name.database or event.database}.{name.table}" for name in statement.tables[:5])
        self._ddl.append((
            self._record_time(offset), offset, _raw_key(key), timestamp * _SECOND,
            head.header.server_id, event.thread_id or None, user, valid_text(event.database),
            printable(tables or statement.database or statement.object_type or "") or None, statement.verb,
            shortened(printable(decode_text(text[:_STATEMENT_READ]), lines=True), _LONGEST_STATEMENT),
            event.exec_time,
        ))  # fmt: skip
        if len(self._ddl) > _MOST_STATEMENTS:
            self._flush("ddl", self._ddl)

    def _count_statement(self, name: tuple[str, str], seconds: int) -> list[int]:
        count = self._statements.get(name)
        if count is None:
            if len(self._statements) >= _MOST_STATEMENTS:
                self._flush_statements()
            count = self._statements[name] = [0, 0, 0, 0]
        count[0] += 1
        count[3] += seconds
        return count

    # -- rows -----------------------------------------------------------------------------------------

    def _rows(
        self, head: EventRecord, event: RowsEvent, one: _Transaction | None, size: int
    ) -> tuple[str | None, str | None, str | None, int, int]:
        operation = event.operation.statement
        table_map = self._state.table_maps.get(event.table_id)
        if event.ends_statement:
            self._state.observe(event)
        of = head if table_map is None else table_map
        database, table = valid_text(of.database), valid_text(of.table)
        rows = None
        packed = isinstance(event, CompressedRowsEvent) and event.unpacked_size > _MOST_UNPACKED
        if table_map is not None and not packed:
            assert database is not None
            assert table is not None
            with suppress(BinlogError, ValueError):
                images = event.rows
                found = self._reader.of(BinlogEvent(head.header, event, None, b"", table_map), self._state)
                number = None if found.kernel is None else found.kernel.count(images)
                number = found.images.count(images) if number is None else number
                if self._looking:
                    self._look(found, (database, table), operation, images)
                rows = number
        if one is not None:
            index = _NUMBERS[operation]
            one.rows[index] += rows or 0
            name = database or "", table or ""
            numbers = one.tables.get(name)
            if numbers is None:
                numbers = one.tables[name] = [0, 0, 0]
            before = numbers[index]
            numbers[index] = None if rows is None or before is None else before + rows
        if rows is None:
            return database, table, operation, 0, 1
        if self._statement is not None:
            self._statement[1] += rows
            self._statement[2] += size
        return database, table, operation, rows, 0

    def _look(self, found: TableRows[Any], name: tuple[str, str], operation: str, images: bytes) -> None:
        known = self._looks.get(id(found))
        if known is None:
            if len(self._looks) >= _MOST_TABLES or self._look_columns >= _MOST_COLUMNS:
                self._flush_looks()
            self._look_columns += len(found.codecs)
            known = self._looks[id(found)] = found, _Look(found, name, operation)
        look = known[1]
        keys = self._keys
        for row in islice(found.images.payloads(images), LOOKED_AT):
            before, after = row
            if before is not None and after is not None:
                look.update(before, after)
            text = look.key_of(row)
            if text is not None:
                key = (*name, text)
                if key not in keys and len(keys) >= _MOST_KEYS:
                    self._flush_keys()
                keys[key] = keys.get(key, 0) + 1

    # -- batches --------------------------------------------------------------------------------------

    def _flush_counts(self) -> None:
        rows = [
            (None if at is None else at * _SECOND, second * _SECOND, *names, *count)
            for (at, second, *names), count in self._counts.items()
        ]
        self._counts.clear()
        self._flush("counts", rows)

    def _flush_keys(self) -> None:
        rows = [(*key, changes) for key, changes in self._keys.items()]
        self._keys.clear()
        self._flush("keys", rows)

    def _flush_statements(self) -> None:
        rows = [(*name, *count) for name, count in self._statements.items()]
        self._statements.clear()
        self._flush("statements", rows)

    def _flush_looks(self) -> None:
        tables, columns = [], []
        for _, look in self._looks.values():
            sums = look.looked, look.unchanged, look.image_bytes, look.needed_bytes
            tables.append((*look.name, look.key_text, *sums))
            columns += [
                (*look.name, ordinal, printable(look.names[ordinal]), changed)
                for ordinal, changed in enumerate(look.changed)
                if changed
            ]
        self._looks.clear()
        self._look_columns = 0
        self._flush("tables", tables)
        self._flush("columns", columns)

    def _flush(self, kind: str, rows: list[tuple[Any, ...]]) -> None:
        """Make a batch of rows, of the columns that are wanted."""
        wanted = self._names(kind)
        if rows and wanted:
            columns = SUMS[kind]
            arrays: list[pa.Array] = []
            names: list[str] = []
            for column, values in zip(columns, zip(*rows, strict=True), strict=True):
                if column.name in wanted or not names:  # a batch has its number of rows from a column
                    texts = (
                        [sequence_text(*place) for place in values] if column.name == "_sequence" else values
                    )
                    arrays.append(pa.array(texts, column.type))
                    names.append(column.name)
            self._full.append(self._of_kind(kind, pa.RecordBatch.from_arrays(arrays, names)))
        rows.clear()

    def _of_kind(self, kind: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch_of(rows, self._wanted[kind])
        if self._kind is not None:
            return rows
        whole = pa.ListArray.from_arrays(_slices(len(rows)), rows.to_struct_array())
        return batch_of(pa.RecordBatch.from_arrays([whole], [kind]), self._layout)


def _slices(number: int) -> list[int]:
    """Return where lists begin and end into which so many rows are divided."""
    return [*range(0, number, _LISTED), number]


class _Times:
    """The times of records, by offset, in seconds."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._seconds: list[int] = []

    def take(self, records: Sequence[Record]) -> None:
        """Take the times of the next records; one that is no event has that of the record before it."""
        second = self._seconds[-1] if self._seconds else -1
        for offset, timestamp, key, value, _ in records:
            if timestamp // 1000 != second and timestamp >= 0 and key is not None and is_whole(value):
                second = timestamp // 1000
                self._offsets.append(offset)
                self._seconds.append(second)

    def of(self, offset: int) -> int | None:
        """Return the time of the record at an offset; that of the first one before which none has a time."""
        if not self._seconds:
            return None
        return self._seconds[max(bisect_right(self._offsets, offset) - 1, 0)]

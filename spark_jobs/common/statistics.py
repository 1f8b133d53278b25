"""What a piece of the raw topic consists of, counted event by event, in an executor and without Spark.

A piece is decoded by the decoder's own stage (:mod:`millrace.spark.decoding`). The results are tables
whose rows are sums over the piece, or over a part of it: adding up rows with the same names gives the same
result, however the topic was divided. So nothing here grows without bound: large tables are written out and
started again.

Rows are counted by skipping over them, without reading values. The first :data:`LOOKED_AT` rows of each event
are examined for keys, and in updates for columns that change: that is all rows of small changes, and an even
sample of large ones.
"""

import struct
from collections.abc import Mapping, Sequence
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
from millrace.contract import ABANDONED, HEADER_MARKER
from millrace.spark.decoding import Decoding, RawDecoder
from millrace.stage import OutputRecord, Record
from millrace.text import printable, shortened, valid_text
from spark_jobs.common.events import arrow_schema
from spark_jobs.common.files import ParquetFiles
from spark_jobs.common.fingerprint import fingerprint
from spark_jobs.common.outcome import Outcome, write_dead_letters

LOOKED_AT: Final = 8
"""Rows of each event whose values are examined."""

NAMED_TABLES: Final = 50
"""Tables of a transaction that are named."""

TABLES: Final[Mapping[str, str]] = {
    "counts": (
        "source string, second bigint, type string, database string, table string, operation string, "
        "events bigint, rows bigint, bytes bigint, stored bigint, uncounted bigint"
    ),
    "transactions": (
        "source string, epoch int, transaction string, first_key string, first_offset bigint, "
        "last_offset bigint, log_file string, position bigint, server_id bigint, thread_id bigint, "
        "user string, events bigint, rows bigint, inserts bigint, updates bigint, deletes bigint, "
        "bytes bigint, started bigint, ended bigint, original_commit_us bigint, immediate_commit_us bigint, "
        "last_committed bigint, commit_group bigint, ends string, tables array<string>, part boolean"
    ),
    "keys": "source string, database string, table string, key string, changes bigint",
    "columns": "source string, database string, table string, ordinal bigint, name string, changed bigint",
    "tables": (
        "source string, database string, table string, key string, looked bigint, unchanged bigint, "
        "image_bytes bigint, needed_bytes bigint"
    ),
    "statements": (
        "source string, database string, statement string, executions bigint, rows bigint, bytes bigint, "
        "seconds bigint"
    ),
    "ddl": (
        "source string, offset bigint, raw_key string, second bigint, server_id bigint, thread_id bigint, "
        "user string, database string, object string, verb string, statement string, seconds bigint"
    ),
}
"""The tables that are written, and their columns as Spark spells them.

``bytes`` are those of events; ``stored`` leaves out events inside a compressed transaction, which has its
own. ``key`` of a table is what is known of its primary key: the columns, nothing where it has none, null
where that is not known. ``commit_group`` is the same for transactions that were committed as a group, within
a log file.
"""

_ROLES_READ: Final = HEADING | {Role.START, Role.QUERY, Role.ROWS}
_MOST_COUNTS: Final = 50_000
_MOST_OPEN: Final = 100_000
_MOST_KEYS: Final = 50_000
_MOST_STATEMENTS: Final = 5_000
_MOST_TRANSACTIONS: Final = 20_000
_MOST_TABLES: Final = 5_000
_MOST_COLUMNS: Final = 50_000
_LONGEST_KEY: Final = 120
_LONGEST_STATEMENT: Final = 1000
_MOST_UNPACKED: Final = 64 << 20
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

_CountKey = tuple[int, str, str | None, str | None, str | None]
"""Second, type, database, table, operation."""


@dataclass(slots=True)
class _Transaction:
    """A transaction that is open, or the part of it that lies in the piece."""

    name: str
    epoch: int
    first_key: str
    first_offset: int
    log_file: str
    position: int
    server_id: int
    last_offset: int = 0
    thread_id: int | None = None
    user: str | None = None
    events: int = 0
    by_operation: dict[str, int] = field(default_factory=lambda: {"insert": 0, "update": 0, "delete": 0})
    is_part: bool = False
    bytes: int = 0
    started: int = 0
    ended: int = 0
    original_commit_us: int | None = None
    immediate_commit_us: int | None = None
    last_committed: int | None = None
    commit_group: int | None = None
    ends: str | None = None
    tables: set[str] = field(default_factory=set)
    counts: dict[_CountKey, list[int]] = field(default_factory=dict)

    def row(self, source: str) -> tuple[Any, ...]:
        """Return the columns of the table ``transactions``."""
        return (
            source, self.epoch, valid_text(self.name), self.first_key, self.first_offset, self.last_offset,
            valid_text(self.log_file), self.position, self.server_id, self.thread_id, self.user, self.events,
            sum(self.by_operation.values()), *self.by_operation.values(), self.bytes,
            self.started or None, self.ended or None, self.original_commit_us, self.immediate_commit_us,
            self.last_committed, self.commit_group, self.ends, sorted(self.tables), self.is_part,
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


class PieceStatistics:
    """Counts the events of a piece; the files of its tables have names that begin with ``prefix``."""

    def __init__(self, source: str, decoding: Decoding, folder: str, prefix: str) -> None:
        self._source = source
        self._decoder = RawDecoder(decoding)
        self._files = ParquetFiles(folder, prefix)
        self._outcome = Outcome()
        self._dead_letters: list[tuple[int, bytes]] = []
        self._state = StreamState()
        self._reader = RowReader(lambda _table, codecs, bitmaps: counting(codecs, bitmaps))
        self._looks: dict[int, tuple[TableRows[Any], _Look]] = {}
        self._look_columns = 0
        self._open: _Transaction | None = None
        self._counts: dict[_CountKey, list[int]] = {}
        self._keys: dict[tuple[str, str, str], int] = {}
        self._statements: dict[tuple[str, str], list[int]] = {}
        self._statement: list[int] | None = None
        self._statement_name: tuple[str, str] | None = None
        self._transactions: list[tuple[Any, ...]] = []
        self._ddl: list[tuple[Any, ...]] = []

    def begin(self, before: Sequence[Record]) -> None:
        """Take records that lie before the piece and are needed to read it: they are not counted."""
        if not before:
            return
        self.take(before)
        self._decoder.forget_counts()
        self._dead_letters.clear()
        self._outcome = Outcome()
        self._counts.clear()
        self._keys.clear()
        self._statements.clear()
        if self._statement_name is not None:
            self._statement = self._statements[self._statement_name] = [0, 0, 0, 0]
        self._looks.clear()
        self._transactions.clear()
        self._ddl.clear()
        one = self._open
        if one is not None:
            one.is_part = True
            one.events = one.bytes = 0
            one.by_operation = dict.fromkeys(one.by_operation, 0)
            one.counts.clear()

    def take(self, records: Sequence[Record]) -> None:
        """Take the next raw records, whose timestamps are their offsets."""
        topics = self._decoder.topics
        for written in self._decoder.take(records):
            for (topic, _), made in written.items():
                if topic == topics.deadletter:
                    self._dead_letters += [(offset, value or b"") for _, value, offset, _ in made]
                else:
                    self._take_events(made)
        if len(self._counts) > _MOST_COUNTS:
            self._flush_counts()
        if len(self._transactions) > _MOST_TRANSACTIONS:
            self._write("transactions", self._transactions)

    def finish(self) -> Outcome:
        """Write remaining rows and close the files; give the outcome of the piece."""
        if self._open is not None:
            self._open.is_part = True
            self._close(None)
        self._flush_counts()
        self._flush_keys()
        self._flush_looks()
        self._flush_statements()
        self._write("transactions", self._transactions)
        self._write("ddl", self._ddl)
        outcome = self._outcome
        outcome.dead_letters = write_dead_letters(
            self._files, "parts/deadletter", self._decoder, self._dead_letters
        )
        outcome.counters["dead_letters"] = len(self._dead_letters)
        outcome.events, outcome.raw_bytes = self._decoder.raw_events, self._decoder.raw_bytes
        outcome.files = list(self._files.close())
        return outcome

    # -- events ---------------------------------------------------------------------------------------

    def _take_events(self, made: Sequence[OutputRecord]) -> None:
        read = self._decoder.read_event
        for key, value, offset, headers in made:
            if headers is not None and (marker := dict(headers).get(HEADER_MARKER)) is not None:
                if marker == ABANDONED:
                    self._open = None  # it follows again, whole
                continue
            self._event(read(value or b""), key or b"", offset)

    def _event(self, head: EventRecord, key: bytes, offset: int) -> None:
        header = head.header
        size, timestamp = header.event_size, header.timestamp
        stored = 0 if head.sub_index else size
        one = self._open
        if head.transaction is None:
            counts, one = self._counts, None
        else:
            if one is None or head.begins or one.name != head.transaction:
                if one is not None:
                    self._close(None)
                one = self._begin(head, key, offset)
            counts = one.counts
            one.events += 1
            one.bytes += stored
            one.last_offset = offset
            if timestamp:
                if timestamp < one.started or not one.started:
                    one.started = timestamp
                one.ended = max(one.ended, timestamp)
        type_name = _TYPE_NAMES.get(head.type_code) or f"type {head.type_code}"
        time = self._time(timestamp, offset)
        if head.type_code not in _READ:
            count_key: _CountKey = time, type_name, None, None, None
            rows = uncounted = 0
        else:
            database, table, operation, rows, uncounted = self._look_into(head, key, offset, one, size)
            count_key = time, type_name, database, table, operation
        _add(counts, count_key, [1, rows, size, stored, uncounted])
        if one is not None:
            if head.ends is not None:
                self._close(head.ends.value)
            elif len(one.counts) > _MOST_OPEN:
                self._merge(one)

    def _time(self, timestamp: int, offset: int) -> int:  # noqa: ARG002 - of windows it is another
        """Return the second in which an event counts."""
        return timestamp

    def _begin(self, head: EventRecord, key: bytes, offset: int) -> _Transaction:
        self._statement = self._statement_name = None
        self._open = _Transaction(
            head.transaction or "",
            head.epoch,
            _raw_key(key),
            offset,
            head.log_file,
            head.position,
            head.header.server_id,
        )
        return self._open

    def _close(self, ends: str | None) -> None:
        one, self._open = self._open, None
        assert one is not None
        one.ends = ends
        self._merge(one)
        self._transactions.append(one.row(self._source))

    def _merge(self, one: _Transaction) -> None:
        every = self._counts
        for key, count in one.counts.items():
            _add(every, key, count)
        one.counts = {}

    def _look_into(
        self, head: EventRecord, key: bytes, offset: int, one: _Transaction | None, size: int
    ) -> tuple[str | None, str | None, str | None, int, int]:
        """Read an event; of its rows give database, table, operation, number, and 1 if that is not known."""
        event = head.event
        if isinstance(event, RowsEvent):
            return self._rows(head, event, one, size)
        if isinstance(event, TableMapEvent | FormatDescriptionEvent | StartEventV3):
            with suppress(BinlogError):
                self._state.observe(event, head.header.flags)
        elif one is not None and isinstance(event, GtidEvent | GtidTaggedLogEvent):
            one.original_commit_us, one.immediate_commit_us = commit_times(event)
            one.last_committed = event.last_committed
            one.commit_group = event.last_committed
        elif one is not None and isinstance(event, MariadbGtidEvent):
            one.thread_id = event.thread_id
            one.commit_group = event.commit_id
        elif isinstance(event, RowsQueryLogEvent | AnnotateRowsEvent):
            self._statement_name = "", fingerprint(event.query)
            self._statement = self._count_statement(self._statement_name, 0)
        elif isinstance(event, StatementEvent):
            self._query(head, event, (key, offset), one)
        return None, None, None, 0, 0

    def _query(
        self, head: EventRecord, event: StatementEvent, place: tuple[bytes, int], one: _Transaction | None
    ) -> None:
        variables = event.status_variables
        invoker = None if variables is None else variables.invoker
        user = None if invoker is None else printable(f"{invoker.user}@{invoker.host}")
        timestamp = head.header.timestamp
        if one is not None:
            if one.thread_id is None:
                one.thread_id = event.thread_id or None
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
        count = self._count_statement((printable(event.database), fingerprint(text)), event.exec_time)
        count[2] += head.header.event_size
        if statement.kind is not StatementKind.DDL:
            return
        key, offset = place
        tables = ", ".join(f"{name.database or event.database}.{name.table}" for name in statement.tables[:5])
        self._ddl.append((
            self._source, offset, _raw_key(key), timestamp,
            head.header.server_id, event.thread_id or None, user, valid_text(event.database),
            printable(tables or statement.database or statement.object_type or "") or None, statement.verb,
            shortened(printable(decode_text(text[:_STATEMENT_READ]), lines=True), _LONGEST_STATEMENT),
            event.exec_time,
        ))  # fmt: skip
        if len(self._ddl) > _MOST_STATEMENTS:
            self._write("ddl", self._ddl)

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
        if table_map is None:
            return valid_text(head.database), valid_text(head.table), operation, 0, 1
        database, table = valid_text(table_map.database), valid_text(table_map.table)
        assert database is not None
        assert table is not None
        try:
            if isinstance(event, CompressedRowsEvent) and event.unpacked_size > _MOST_UNPACKED:
                return database, table, operation, 0, 1
            images = event.rows
            found = self._reader.of(BinlogEvent(head.header, event, None, b"", table_map), self._state)
            number = None if found.kernel is None else found.kernel.count(images)
            rows = found.images.count(images) if number is None else number
            self._look(found, (database, table), operation, images)
        except (BinlogError, ValueError):
            return database, table, operation, 0, 1
        if one is not None:
            one.by_operation[operation] += rows
            if len(one.tables) < NAMED_TABLES:
                one.tables.add(f"{database}.{table}")
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

    # -- output ---------------------------------------------------------------------------------------

    def _flush_counts(self) -> None:
        rows = [(self._source, *key, *count) for key, count in self._counts.items()]
        self._counts.clear()
        self._write("counts", rows)

    def _flush_keys(self) -> None:
        rows = [(self._source, *key, changes) for key, changes in self._keys.items()]
        self._keys.clear()
        self._write("keys", rows)

    def _flush_statements(self) -> None:
        rows = [(self._source, *name, *count) for name, count in self._statements.items()]
        self._statements.clear()
        self._write("statements", rows)

    def _flush_looks(self) -> None:
        tables, columns = [], []
        for _, look in self._looks.values():
            tables.append(
                (
                    *(self._source, *look.name, look.key_text),
                    *(look.looked, look.unchanged, look.image_bytes, look.needed_bytes),
                )
            )
            columns += [
                (self._source, *look.name, ordinal, printable(look.names[ordinal]), changed)
                for ordinal, changed in enumerate(look.changed)
                if changed
            ]
        self._looks.clear()
        self._look_columns = 0
        self._write("tables", tables)
        self._write("columns", columns)

    def _write(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        layout = arrow_schema(TABLES[table])
        arrays = [
            pa.array(column, part.type) for column, part in zip(zip(*rows, strict=True), layout, strict=True)
        ]
        self._files.write(f"parts/{table}", pa.RecordBatch.from_arrays(arrays, schema=layout))
        rows.clear()

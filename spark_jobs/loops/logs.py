"""The logs of members as loop detection compares them: a row for each transaction.

Executors read ranges of ``{source}.events`` themselves. A task reads the transactions that begin in its
range, each to the beginning of the next, even beyond the end of the range; events before the first one belong
to the previous range. So the result does not depend on the ranges, and no transaction is held as a whole. The
rows are in Parquet files: no event passes through the JVM.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millrace.avro.events import EventRecord
from millrace.binlog.events import (
    AppendBlockEvent,
    BeginLoadQueryEvent,
    FormatDescriptionEvent,
    GtidEvent,
    GtidTaggedLogEvent,
    MariadbGtidListEvent,
    PreviousGtidsLogEvent,
    TableMapEvent,
)
from millrace.binlog.events.gtid import commit_times
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.events.rows import RowsEvent, RowsOperation
from millrace.binlog.statement import TRANSACTION_CONTROL, StatementKind, classify
from millrace.binlog.types import HeaderFlag
from millrace.contract import GAP, HEADER_CHUNK, HEADER_MARKER, EventKey
from millrace.kafka.errors import InputLostError
from millrace.spark.decoding import prepare_worker
from millrace.spark.raw_topic import CarriedSettings, Piece, head_of_file, read_piece, read_spans
from millrace.stage import Record
from millrace.text import valid_text
from spark_jobs.common.content import CONTENT_TYPES, DIGESTS, digest, statement_digest
from spark_jobs.common.events import (
    TABLE_MAP_POST_HEADER,
    arrow_schema,
    event_deserializer,
    gtids_of,
    read_events,
    read_record,
    type_name,
)
from spark_jobs.common.faults import FAULT_SCHEMA
from spark_jobs.common.files import ParquetFiles
from spark_jobs.common.kafka import CHUNK, CHUNKS_APART, NO_CHUNK, resolve_slice
from spark_jobs.common.lines import Line, batch_of, reason_of
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.pieces import MOST_PIECES
from spark_jobs.common.rows import TableRows
from spark_jobs.common.transactions import BEFORE, number_laps, tells_gtid
from spark_jobs.loops.presence import HEADS

if TYPE_CHECKING:
    from spark_jobs.common.job import Input, Job

TABLES: Final[Mapping[str, str]] = {
    "transactions": (
        "source string, epoch int, transaction string, lap bigint, by_gtid boolean, events bigint, "
        "bytes bigint, first_key string, last_key string, first_offset bigint, last_offset bigint, "
        "log_file string, position bigint, server_id bigint, dated bigint, dated_to bigint, "
        "thread_id bigint, form string, original_commit_us bigint, immediate_commit_us bigint, "
        "tables array<string>, changes bigint, digest bigint, layout bigint, inserts boolean, "
        "creates boolean, temporary array<string>"
    ),
    "gaps": "source string, epoch int, offset bigint, log_file string, timestamp bigint, reason string",
    "heads": (
        "source string, epoch int, offset bigint, type string, server_id bigint, timestamp bigint, "
        "log_file string, position bigint, server_version string, gtids string, earlier boolean"
    ),
    "faulty": FAULT_SCHEMA,
}
"""The tables that executors leave, and their columns as Spark spells them.

``transactions`` has a line for each occurrence. ``events`` counts those that lie in the log as they are, so
not those in a compressed one, and ``bytes`` theirs. ``first_key`` and ``last_key`` are keys of raw events.
``dated`` and ``dated_to`` are the times, in seconds since 1970, of what changes something, which are the same
on every member of a topology; null where no event has one. ``form`` is how it is logged: ``rows``,
``statements``, ``ddl`` for a statement that is a transaction by itself, ``decision`` for XA COMMIT and XA
ROLLBACK, ``empty``, or, with a GTID, ``mixed`` for rows and statements, and ``cut`` where it does not begin
and end in what is read. ``changes`` is how many rows (with a GTID: rows events) or
statements it has, ``digest`` the sum of their digests below :data:`~spark_jobs.common.content.DIGESTS`; null
where there are none. How rows are spread over events does not matter. Rows whose table map lies before the
transaction are left out. With a GTID, rows are not decoded: ``digest`` is that of their bytes, which are
equal on two members where ``layout`` is: tables, operations, types of columns, and which of them are logged.
``inserts`` tells that all rows are inserted: an image of another operation also shows what the member had
before.

``temporary`` are the names, with the session's, of the temporary tables that a transaction changes, if it
changes nothing else: members that log rows do not log it. ``creates`` tells that its text says so.

``gaps`` are the places at which the reader or the decoder noted that changes are missing.

``heads`` are the events that a server writes about its own log. Those that are ``earlier`` lie before what is
read, at the beginning of the log file in which that begins: they tell whose log it is.

``faulty`` are records that cannot be read.
"""

_OFFSETS_PER_PIECE: Final = 200_000
_LEAST_OFFSETS: Final = 2000
_MOST_LINES: Final = 20_000
_MOST_TABLES: Final = 50
_INT32: Final = 1 << 31
_INT64: Final = 1 << 63
_CHUNK: Final = re.compile(CHUNK.encode())
_CUT: Final = ""
_DECISIONS: Final = frozenset({StatementKind.XA_COMMIT, StatementKind.XA_ROLLBACK})

EventLine = tuple[int, str, str, str | None, int]
"""Offset, key of the raw event, type, transaction and time of an event that is not in a compressed one."""

Whole = tuple[int, bytes | None, bytes | None, str | None]
"""Offset, key and value of an event, and why it is not whole; that is :data:`_CUT` where a bound cuts it."""


class _Joiner:
    """Joins chunks of events, which lie one after the other, and leaves out markers.

    An event that one of the bounds of what is read cuts, ``start`` or ``end``, is told from one that lacks
    chunks.
    """

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end
        self._name: tuple[bytes | None, int] | None = None
        self._run: list[tuple[int, int, bytes]] = []

    @property
    def is_idle(self) -> bool:
        """Whether no chunk waits for others."""
        return self._name is None

    def take(self, record: Record) -> Iterator[Whole]:
        """Take the next record; give the events that are known to be over."""
        headers = dict(record.headers or ())
        if HEADER_MARKER in headers:
            return
        chunk = headers.get(HEADER_CHUNK)
        if chunk is None or not _CHUNK.fullmatch(chunk):
            yield from self.rest()
            yield record.offset, record.key, record.value, None if chunk is None else NO_CHUNK
            return
        number, wanted = map(int, chunk.split(b"/"))
        if (record.key, wanted) != self._name:
            yield from self.rest()
            self._name = record.key, wanted
        self._run.append((record.offset, number, record.value or b""))

    def rest(self) -> Iterator[Whole]:
        """Yield the event whose chunks have come, if there is one."""
        if self._name is None:
            return
        (key, wanted), run = self._name, self._run
        self._name, self._run = None, []
        numbers = sorted({number for _, number, _ in run})
        first, missing = numbers[0], wanted - 1 - numbers[-1]
        in_row = len(run) == len(numbers) == numbers[-1] - first + 1
        fault = None
        if not in_row or len(numbers) != wanted or first:
            before = first > 0 and run[0][0] - CHUNKS_APART * first < self._start
            after = missing > 0 and run[-1][0] + CHUNKS_APART * missing >= self._end
            twice = ", some of them twice" if len(run) > len(numbers) else ""
            fault = f"{len(numbers)} of the {wanted} chunks of this event are there{twice}"
            if in_row and ((before and missing >= 0) or (after and (first == 0 or before))):
                fault = _CUT
        yield run[0][0], key, b"".join(value for _, _, value in sorted(run, key=lambda one: one[1])), fault


@dataclass(slots=True)
class _Transaction:
    """A transaction as far as it was read."""

    name: str
    epoch: int
    lap: int
    by_gtid: bool
    first_key: str
    first_offset: int
    log_file: str
    position: int
    server_id: int
    events: int = 0
    size: int = 0
    last_key: str = ""
    last_offset: int = 0
    dated: int | None = None
    dated_to: int | None = None
    thread_id: int | None = None
    rows: bool = False
    statements: bool = False
    alone: bool = False
    decision: bool = False
    original_commit_us: int | None = None
    immediate_commit_us: int | None = None
    tables: set[tuple[str | None, str | None]] = field(default_factory=set)
    changes: int = 0
    digest: int = 0
    maps: dict[int, bytes] = field(default_factory=dict)
    """Definitions of tables by table id."""
    images: blake2b | None = None
    file: blake2b | None = None
    """The file of a LOAD DATA, as far as its blocks have come."""
    layout: int | None = None
    part: tuple[Any, ...] = ()
    inserts: bool = True
    ended: bool = False
    creates: bool = False
    lasting: bool = False
    """Whether it changes something that is no temporary table."""
    temporary: set[str] = field(default_factory=set)

    def act(self, timestamp: int) -> None:
        """Take note of an event that changes something."""
        if timestamp:
            if self.dated is None or timestamp < self.dated:
                self.dated = timestamp
            if self.dated_to is None or timestamp > self.dated_to:
                self.dated_to = timestamp

    @property
    def _form(self) -> str:
        if self.by_gtid and (self.lap == BEFORE or not self.ended):
            return "cut"
        if self.rows:
            return "mixed" if self.by_gtid and self.statements else "rows"
        if self.decision:
            return "decision"
        return "ddl" if self.alone else "statements" if self.changes else "empty"

    def note_images(self, part: tuple[Any, ...], images: bytes) -> None:
        """Take in the bytes of rows; ``part`` is all that says how to read them."""
        if self.images is None:
            self.images = blake2b(digest_size=8)
        if part != self.part:
            self.part = part
            self.layout = ((self.layout or 0) * 31 + _layout(part)) % DIGESTS
            self.images.update(b"|")
        self.images.update(images)
        self.changes += 1

    def note_block(self, block: bytes) -> None:
        """Take in a block of the file of a LOAD DATA."""
        self.file = self.file or blake2b(digest_size=8)
        self.file.update(block)

    def end_file(self) -> int:
        """Return the digest of the file whose blocks have come, 0 if there is none."""
        number, self.file = _number(self.file), None
        return number

    def note_statement(self, event: StatementEvent, flags: int, *, ends: bool) -> None:
        """Take note of what a statement is, and whether it changes temporary tables alone."""
        statement = classify(event.query)
        self.decision = self.decision or statement.kind in _DECISIONS
        if statement.kind in TRANSACTION_CONTROL:
            return
        self.statements, self.alone = True, self.alone or ends
        names = statement.changes or statement.tables
        told = statement.temporary or bool(flags & HeaderFlag.THREAD_SPECIFIC_F)
        if not told or not names:
            self.lasting = True
            if len(self.tables) < _MOST_TABLES:
                self.tables |= {(name.database or event.database, name.table) for name in names}
            return
        self.creates = self.creates or statement.temporary
        self.temporary |= {
            f"{self.server_id}:{event.thread_id}:{valid_text(name.database or event.database)}."
            f"{valid_text(name.table)}"
            for name in names
        }

    def line(self, source: str) -> Line:
        """Return the columns of the table ``transactions``."""
        tables = sorted(
            ".".join(valid_text(part) or "" for part in name if part is not None) for name in self.tables
        )
        only_temporary = bool(self.temporary) and not self.lasting and not self.rows
        return (
            source, self.epoch, valid_text(self.name), self.lap, self.by_gtid, self.events, self.size,
            self.first_key, self.last_key, self.first_offset, self.last_offset, valid_text(self.log_file),
            self.position, self.server_id,
            self.dated, self.dated_to, self.thread_id,
            self._form,
            self.original_commit_us, self.immediate_commit_us, tables[:_MOST_TABLES],
            self.changes or None, (self.digest + _number(self.images)) % DIGESTS if self.changes else None,
            self.layout, self.inserts, self.creates,
            sorted(self.temporary)[:_MOST_TABLES] if only_temporary else None,
        )  # fmt: skip


@lru_cache(1024)
def _layout(part: tuple[Any, ...]) -> int:
    return digest(*part)


def _number(hashed: blake2b | None) -> int:
    return 0 if hashed is None else int.from_bytes(hashed.digest()) % DIGESTS


class LogReader:
    """Makes lines of the records from ``begin`` on, up to the first transaction that begins at ``until``.

    ``bounds`` are those of what is read of the topic. Lines are given to ``write``, with the name of their
    table.
    """

    def __init__(  # noqa: PLR0917 - a stretch of a topic, and where the lines go
        self,
        source: str,
        topic: str,
        schemas: Mapping[int, dict[str, Any]],
        bounds: tuple[int, int],
        stretch: tuple[int, int],
        write: Callable[[str, pa.RecordBatch], None],
    ) -> None:
        self.cut = 0
        """Events that a bound cuts."""
        self.events = self.size = 0
        """Events of the stretch that were read, and bytes of their records."""
        self._source, self._topic = source, topic
        self._stretch = stretch
        self._read = event_deserializer(topic, schemas)
        self._joiner = _Joiner(*bounds)
        self._until = stretch[1]
        self._begun = bounds[0] == stretch[0] < stretch[1]
        self._write = write
        self._open: _Transaction | None = None
        self._rows = TableRows()
        self._lines: dict[str, list[Line]] = {name: [] for name in TABLES}

    def take(self, records: Iterable[Record]) -> bool:
        """Take the next records; tell whether those that follow belong to another range."""
        joiner, take = self._joiner, self._take
        for record in records:
            if record.headers is not None:
                self._note_gap(record)
            if record.headers is None and joiner.is_idle:
                if take(record.offset, record.key, record.value, None):
                    return True
            elif any(take(*whole) for whole in joiner.take(record)):
                return True
        return False

    def finish(self) -> None:
        """Write what is left."""
        for whole in self._joiner.rest():
            self._take(*whole)
        self._close()
        for name in TABLES:
            self._flush(name)

    def _note_gap(self, record: Record) -> None:
        """Take note of what is missing, if a record says so and begins in the stretch."""
        begin, until = self._stretch
        if (HEADER_MARKER, GAP) not in (record.headers or ()) or not begin <= record.offset < until:
            return
        with suppress(ValueError):  # its key is none: what is missing has no place
            place = EventKey.parse(record.key or b"")
            reason = (record.value or b"").decode(errors="replace")
            seconds = record.timestamp_ms // 1000
            line = self._source, place.epoch, record.offset, valid_text(place.log_file), seconds, reason
            self._append("gaps", line)

    def _take(self, offset: int, key: bytes | None, value: bytes | None, fault: str | None) -> bool:
        """Take an event; tell whether it and those after it belong to another range."""
        try:
            raw_key, record = read_record(self._read, key, value, fault)
            begins = record.ordinal == 0 and record.transaction is not None
            if offset >= self._until and (begins or not self._begun):
                self._begun = False
                return True
            self._begun = self._begun or begins
            if self._begun:
                self._add(offset, raw_key, record, begins=begins)
                self.events += 1
                self.size += len(value or b"")
        except Exception as error:  # noqa: BLE001 - whatever a record holds, all others are read
            if self._begun and fault == _CUT:
                self.cut += 1
            elif self._begun:
                self._fault(offset, key, value, fault or reason_of(error))
        return False

    def _add(self, offset: int, raw_key: str, record: EventRecord, *, begins: bool) -> None:
        name = record.transaction
        if name is None:
            self._head(offset, record)
            return
        one = self._open
        if begins or one is None or one.name != name or one.epoch != record.epoch:
            self._close()
            one = self._open = _Transaction(
                name, _within(record.epoch, _INT32), offset if begins else BEFORE, tells_gtid(name), raw_key,
                offset, record.log_file, _within(record.position, _INT64), record.server_id,
            )  # fmt: skip
        one.last_key, one.last_offset = raw_key, offset
        one.ended = one.ended or record.ends is not None
        if not record.sub_index:
            one.events += 1
            one.size += record.header.event_size
        event = record.event
        if isinstance(event, RowsEvent):
            images = event.rows
            one.rows = True
            one.act(record.timestamp)
            one.tables.add((record.database, record.table))
            one.inserts = one.inserts and event.operation is RowsOperation.WRITE
            if one.by_gtid:
                bits = event.columns_before_image, event.columns_after_image
                # Without the database: a replica may rewrite its name (replicate-rewrite-db).
                what = record.table, type_name(record.type_code)
                one.note_images((*what, *bits, one.maps.get(event.table_id)), images)
            else:
                self._digest(one, record, event, images)
        elif isinstance(event, TableMapEvent):
            one.maps[event.table_id] = (
                event.column_types + event.column_metadata
                if one.by_gtid
                else event.encode_fields(TABLE_MAP_POST_HEADER)
            )
        elif isinstance(event, GtidEvent | GtidTaggedLogEvent):
            original, immediate = commit_times(event)
            one.original_commit_us = original and _within(original, _INT64)
            one.immediate_commit_us = immediate and _within(immediate, _INT64)
        elif record.type_code in CONTENT_TYPES:
            found = statement_digest(event)
            if isinstance(event, StatementEvent):
                one.thread_id = max(one.thread_id or 0, event.thread_id)
                one.note_statement(event, record.header.flags, ends=record.ends is not None)
            if isinstance(event, BeginLoadQueryEvent | AppendBlockEvent):
                one.note_block(event.block_data)
            if found is not None:
                one.act(record.timestamp)
                one.changes, one.digest = one.changes + 1, (one.digest + found + one.end_file()) % DIGESTS

    def _digest(self, one: _Transaction, record: EventRecord, event: RowsEvent, images: bytes) -> None:
        """Take in what rows are, if their table is known."""
        definition = one.maps.get(event.table_id)
        if definition is None:
            return
        bits = event.columns_before_image or None, event.columns_after_image or None
        rows = self._rows.rows(definition, *bits, type_name(record.type_code), images)
        what = valid_text(record.database), valid_text(record.table), event.operation.statement
        one.changes += len(rows)
        one.digest = (one.digest + sum(digest(what, row) for row in rows)) % DIGESTS

    def _head(self, offset: int, record: EventRecord) -> None:
        """Take an event outside transactions."""
        name = type_name(record.type_code)
        if name not in HEADS:
            return
        event = record.event
        version = valid_text(event.version) if isinstance(event, FormatDescriptionEvent) else None
        listed = gtids_of(event) if isinstance(event, PreviousGtidsLogEvent | MariadbGtidListEvent) else None
        self._append(
            "heads",
            (
                self._source, _within(record.epoch, _INT32), offset, name, record.server_id, record.timestamp,
                valid_text(record.log_file), _within(record.position, _INT64), version, listed, False,
            ),
        )  # fmt: skip

    def _fault(self, offset: int, key: bytes | None, value: bytes | None, reason: str) -> None:
        self._append("faulty", (self._topic, 0, offset, key, value, reason))
        self._flush("faulty")

    def _close(self) -> None:
        one, self._open = self._open, None
        if one is not None:
            self._append("transactions", one.line(self._source))

    def _append(self, table: str, line: Line) -> None:
        lines = self._lines[table]
        lines.append(line)
        if len(lines) >= _MOST_LINES:
            self._flush(table)

    def _flush(self, table: str) -> None:
        lines = self._lines[table]
        if lines:
            self._write(table, batch_of(lines, arrow_schema(TABLES[table])))
            lines.clear()


def _within(number: int, limit: int) -> int:
    """Return a number that a column can hold; raises OverflowError where it cannot."""
    if number >= limit:
        raise OverflowError(f"{number} is too large")
    return number


# -- the logs of a job ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs of all members: lines as in :data:`TABLES`, and their events where these are needed."""

    transactions: DataFrame
    heads: DataFrame
    gaps: DataFrame
    events: Callable[[], DataFrame]
    """All events, with a ``lap``."""
    between: Callable[[str, Iterable[tuple[int, int]]], Iterator[list[EventLine]]]
    """Reads the events of a source in ranges of offsets, each without its end."""
    read: tuple[int, int] = (0, 0)
    """How many events were read, and the bytes of their records."""


def read_logs(job: "Job", spark: SparkSession) -> Logs:
    """Let executors read the logs; note what the bounds cut off, and what cannot be read."""
    frames, inputs = [], []
    for one in job.inputs:
        ((start, end),) = one.part.offsets.values()
        if start < end:
            number = _number_of_stretches(job, end - start)
            inputs.append(one)
            stretches = spark.range(0, number, 1, number)
            frames.append(stretches.mapInArrow(_stretches(job, one, number), _OUTCOME_COLUMNS))
    files: dict[str, list[str]] = {name: [] for name in TABLES}
    cut: dict[str, int] = {}
    whole = Outcome()
    for row in reduce(DataFrame.union, frames).collect() if frames else ():
        outcome = Outcome.from_json(row.outcome)
        cut[row.topic] = cut.get(row.topic, 0) + outcome.counters["cut"]
        whole.add(outcome)
    for file in whole.files:
        files[file.table].append(f"{job.kept}/{file.path}")
    job.notes += [
        f"{one.part.topic}: the bounds cut {number} events of several records; they are left out."
        for one in inputs
        if one.part.bounded and (number := cut[one.part.topic])
    ]
    earlier = [line for one in inputs if one.part.bounded for line in _earlier_heads(job, one)]
    found = {
        name: spark.read.schema(layout).parquet(*files[name])
        if files[name]
        else spark.createDataFrame([], layout)
        for name, layout in TABLES.items()
    }
    if earlier:
        heads = pa.Table.from_pylist(earlier, arrow_schema(TABLES["heads"]))
        found["heads"] = found["heads"].union(spark.createDataFrame(heads, TABLES["heads"]))
    if files["faulty"]:
        job.faults.take(job.folder, found["faulty"])

    def events() -> DataFrame:
        return number_laps(read_events(spark, job).where("fault is null"))

    between = partial(_between, job)
    read = whole.events, whole.raw_bytes
    return Logs(found["transactions"], found["heads"], found["gaps"], events, between, read)


_OUTCOME_COLUMNS: Final = "topic string, outcome string"


def _earlier_heads(job: "Job", one: "Input") -> list[dict[str, Any]]:
    """Return the heads of the log file in which what is read of a source begins, where they lie before it.

    Which GTIDs they list is left out: others lie between them and what is read.
    """
    (offsets,) = one.part.offsets.values()
    ((first, _),) = resolve_slice(job.spark, job.kafka, one.part.topic).offsets.values()
    if first >= offsets[0]:
        return []
    try:
        return _heads_before(job, one, offsets, first)
    except InputLostError:
        return []  # retention has just removed them


def _heads_before(job: "Job", one: "Input", offsets: tuple[int, int], first: int) -> list[dict[str, Any]]:
    bounds = head_of_file(job.settings.kafka, one.part.topic, offsets, first)
    if bounds is None:
        return []
    lines: list[dict[str, Any]] = []

    def write(table: str, batch: pa.RecordBatch) -> None:
        if table == "heads":
            lines.extend(batch.to_pylist())

    reader = LogReader(one.source, one.part.topic, one.schemas, bounds, bounds, write)
    for records in read_spans(job.settings.kafka, one.part.topic, [bounds]):
        reader.take(records)
    reader.finish()
    return [{**line, "gtids": None, "earlier": True} for line in lines]


def _number_of_stretches(job: "Job", offsets: int) -> int:
    """Choose so many that all cores are at work to the end, and no more than a plan should have."""
    least = 2 * job.spark.sparkContext.defaultParallelism
    wanted = min(max(least, offsets // _OFFSETS_PER_PIECE), offsets // _LEAST_OFFSETS, MOST_PIECES)
    return max(1, wanted)


def _stretches(
    job: "Job", one: "Input", number: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make what executors do: each number that they are given is that of a stretch."""
    carried, topic, folder = CarriedSettings.of(job.settings.kafka), one.part.topic, job.kept
    source, schemas = one.source, one.schemas
    ((start, end),) = one.part.offsets.values()

    def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            for at in batch.column("id").to_pylist():
                begin, until = (start + (end - start) * place // number for place in (at, at + 1))
                with ParquetFiles(folder, f"{topic}-{at:05}") as files:
                    reader = LogReader(source, topic, schemas, (start, end), (begin, until), files.write)
                    for records in read_piece(carried, topic, Piece(begin, end)):
                        if reader.take(records):
                            break
                    reader.finish()
                    outcome = Outcome(reader.events, reader.size, list(files.close()))
                outcome.counters["cut"] = reader.cut
                yield pa.RecordBatch.from_pydict({"topic": [topic], "outcome": [outcome.to_json()]})

    return take


def events_of(
    records: Iterable[Record], topic: str, schemas: Mapping[int, dict[str, Any]]
) -> list[EventLine]:
    """Read records of an events topic; those that cannot be read are left out."""
    joiner, read = _Joiner(0, 0), event_deserializer(topic, schemas)

    def whole() -> Iterator[Whole]:
        for record in records:
            yield from joiner.take(record)
        yield from joiner.rest()

    lines = []
    for offset, key, value, fault in whole():
        with suppress(Exception):  # it is among those that are faulty
            raw_key, record = read_record(read, key, value, fault)
            if not record.sub_index:
                name = valid_text(record.transaction)
                lines.append((offset, raw_key, type_name(record.type_code), name, record.timestamp))
    return lines


def _between(job: "Job", source: str, spans: Iterable[tuple[int, int]]) -> Iterator[list[EventLine]]:
    """Read some events of a source again, on the driver."""
    (one,) = (one for one in job.inputs if one.source == source)
    for records in read_spans(job.settings.kafka, one.part.topic, spans):
        yield events_of(records, one.part.topic, one.schemas)

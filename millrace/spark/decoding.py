"""Raw records to typed events and rows, in one process and without Kafka: the stages of the services.

The result is that of decoder and row mapper, by the same code (:mod:`millrace.decoder`,
:mod:`millrace.rowmapper`), except what only a service does: no table is quarantined beyond the event that
fails, no topic is created, no schema is registered. So the result for a transaction depends on the
definitions of tables and on the format description before it, not on where decoding began.
"""

import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import itemgetter
from typing import IO, TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from millrace import kernel
from millrace.avro.catalog import CatalogEntry
from millrace.avro.events import EventDeserializer, EventSerializer
from millrace.avro.records import RecordSerializer, TransactionSerializer
from millrace.avro.registry import SchemaStore
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import DecoderState, QuarantinedTable, RowMapperState
from millrace.binlog.grammar import Role
from millrace.binlog.header import TYPE_OFFSET
from millrace.binlog.transaction import codes_of
from millrace.contract import Topics
from millrace.decoder.stage import DecoderStage, Format
from millrace.kafka.topics import TOPIC_SPECS, TableTopicInfo
from millrace.rowmapper.binding import Binder
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.event_reader import EventReader
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.settings import RowMapperSettings
from millrace.rowmapper.stage import RowMapperStage
from millrace.rowmapper.transaction_output import OutputFormat, Sink
from millrace.runtime.imports import forget_zips, spare_garbage_collection
from millrace.runtime.logging import configure_logging
from millrace.stage import Output, OutputRecord, Record, Target, records_of_columns

if TYPE_CHECKING:
    from millrace.kernel.records import RecordBlock

_UNBOUNDED: Final = 1 << 31
"""No record that is made here goes to Kafka, so none is cut; an event is held whole."""

_BUFFERED_BYTES: Final = 1 << 20
"""A larger transaction is read a second time, since it is in memory anyway."""

_MAPPED_BYTES: Final = 8 << 20
MAPPED_EVENTS: Final = 2500
_MAPPED_FIRST: Final = 50
"""What is mapped to rows at once: the transaction that a batch ends in takes the reference, and so does all
of a batch that has a new table, as the first ones have."""

_NEAR: Final = 100
"""Records that may be held back."""

ENDS: Final = codes_of(Role.COMMIT)
"""Types of events that end a transaction."""

_HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
_KEPT: Final = pa.schema(
    [("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.large_binary()), ("headers", _HEADERS)]
)
"""Records as they lie in the file."""

NOWHERE: Final[dict[str, Any]] = {
    "kafka": {"bootstrap_servers": "localhost:1"},
    "registry": {"url": "http://localhost:1"},
}

Written = Mapping[Target, list[OutputRecord]]
"""Records by topic. Instead of a timestamp they have the offset of their raw record.

Where the kernel is built, most are in blocks (:meth:`Output.add_block`).
"""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How raw records are decoded: the parameters of executors.

    ``catalog`` and ``schemas`` have the values of the topics of these names. Without ``schemas`` a DDL
    statement is known to its own piece alone. ``sections`` are those of :func:`sections_of`; without them the
    environment of the executor counts.
    """

    source: str
    into_rows: bool
    now_ms: int
    catalog: Sequence[bytes] = ()
    schemas: Sequence[bytes] = ()
    sections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def settings(self) -> RowMapperSettings:
        """Return these as the settings of a row mapper that reaches nothing."""
        return RowMapperSettings.model_validate({"source": self.source, **self.sections, **NOWHERE})


class QuietTraceback:
    """What Spark's daemon uses of the module ``traceback``: silent where Java has closed the connection."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        """Print the exception that is being handled, unless Java has closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | EOFError):
            traceback.print_exc()


def prepare_worker() -> None:
    """Let a process of Python of an executor decode records, in batches.

    What the services would log is in the dead letters.
    """
    daemon: Any = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", None) == "pyspark.daemon":  # of which this process is a fork
        daemon.traceback = QuietTraceback
    configure_logging("CRITICAL")
    spare_garbage_collection()
    forget_zips()


def sections_of(settings: RowMapperSettings) -> dict[str, dict[str, Any]]:
    """Return the sections of the driver's settings that say which rows there are, and in which form."""
    return {name: getattr(settings, name).model_dump() for name in ("rows", "replicate", "columns", "topics")}


class _Schemas:
    """Stands where the registry is: gives ids to schemas."""

    def __init__(self) -> None:
        self._schemas: list[Any] = []

    def register(self, _subject: str, schema: Any, **_: Any) -> int:
        if schema not in self._schemas:
            self._schemas.append(schema)
        return self._schemas.index(schema) + 1

    def schema(self, schema_id: int) -> Any:
        return self._schemas[schema_id - 1]


class _NoQuarantine(Quarantine):
    """Lets an event that fails be a dead letter by itself: those after it are tried, wherever they begin."""

    def add(self, table: QuarantinedTable) -> None:
        """Let the table be."""


def _new_block() -> "Callable[[], RecordBlock] | None":
    """Return what makes a block of records, where the kernel is built."""
    if not kernel.has("records"):
        return None
    from millrace.kernel.records import RecordBlock  # noqa: PLC0415 - where it is built

    return partial(RecordBlock, Record)


class _Kept:
    """Records from the first that may be read again on, numbered; beyond ``held_bytes`` in a file."""

    def __init__(self, held_bytes: int) -> None:
        self.end = 0
        self._held_bytes = held_bytes
        self._held = 0
        self._file: IO[bytes] | None = None
        self._new_block = _new_block()
        # First number, number after the last, bytes; the records, or where in the file they are.
        self._parts: list[tuple[int, int, int, Sequence[Record] | int]] = []

    def add(self, written: list[OutputRecord]) -> Sequence[Record]:
        """Take records, and blocks of them; give them with their numbers."""
        records, size = self._number(written)
        place: Sequence[Record] | int = records
        if self._held + size > self._held_bytes:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when nothing in it is needed
            place = self._file.seek(0, 2)
            columns = zip(*map(itemgetter(1, 2, 3, 4), records), strict=True)
            arrays = [pa.array(one, part.type) for one, part in zip(columns, _KEPT, strict=True)]
            whole = pa.RecordBatch.from_arrays(arrays, schema=_KEPT).serialize()
            self._file.write(len(whole).to_bytes(8, "little"))
            self._file.write(whole)
            size = 0
        self._held += size
        self._parts.append((self.end, self.end + len(records), size, place))
        self.end += len(records)
        return records

    def _number(self, written: list[OutputRecord]) -> tuple[Sequence[Record], int]:
        """Make records that are read of those that were written; give them and how large their values are."""
        if self._new_block is None:
            keys, values, offsets, named = zip(*written, strict=True)
            return records_of_columns(count(self.end), offsets, keys, values, named), sum(map(len, values))
        block, *rest = (self._block_of(record) for record in written)
        for part in rest:
            block.extend(part)
        block.number(self.end)
        return block, block.size

    def _block_of(self, record: OutputRecord) -> "RecordBlock":
        key, value, offset, headers = record
        assert self._new_block is not None
        if value is not None and not isinstance(value, bytes):
            return value
        block = self._new_block()
        block.extend([Record(0, offset, key, value, headers)])
        return block

    def read(self, start: int, stop: int) -> Iterator[Sequence[Record]]:
        """Yield records from a number to before another again, in batches."""
        for first, end, _, place in list(self._parts):
            if end <= start or first >= stop:
                continue
            records = self._load(place, first) if isinstance(place, int) else place
            yield records[max(start - first, 0) : stop - first]

    def _load(self, at: int, first: int) -> list[Record]:
        assert self._file is not None
        self._file.seek(at)
        size = int.from_bytes(self._file.read(8), "little")
        batch = pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), _KEPT)
        offsets, keys, values, headers = (column.to_pylist() for column in batch.columns)
        named = [one and [(each["name"], each["value"]) for each in one] for one in headers]
        numbers = range(first, first + len(keys))
        return records_of_columns(numbers, offsets, keys, values, named)

    def forget(self, before: int) -> None:
        """Let go of records that are not read again."""
        while self._parts and self._parts[0][1] <= before:
            self._held -= self._parts.pop(0)[2]
        if not self._parts and self._file is not None:
            self._file.close()
            self._file = None


class WholeTransactions:
    """Cuts raw records into batches that mostly end with a transaction.

    The row mapper's kernel takes whole transactions: the beginning of one is held back for a while.
    """

    def __init__(self) -> None:
        self._held: list[Record] | RecordBlock = []

    def take(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Take the next records; give batches of them."""
        at = 0
        if self._held:
            near = _types(records, 0, min(_NEAR, len(records)))
            ends = [found + 1 for code in ENDS if (found := near.find(code)) >= 0]
            at = min(ends, default=len(near))
            self._held.extend(records[:at])
            if not ends and len(self._held) < _NEAR:
                return
            yield self._held
        while at < len(records):
            end = min(at + MAPPED_EVENTS, len(records))
            whole = _after_commit(records, at, end)
            yield records[at : whole or end]
            at = whole or end
            if end == len(records):
                break
        self._held = cast("list[Record] | RecordBlock", records[at:])

    def rest(self) -> Sequence[Record]:
        """Return what is held back."""
        return self._held


def _after_commit(records: Sequence[Record], start: int, end: int) -> int | None:
    """Return the place after the last commit in some records, if it is near their end."""
    start = max(start, end - _NEAR)
    near = _types(records, start, end)
    last = max(map(near.rfind, ENDS))
    return None if last < 0 else start + last + 1


def _types(records: Sequence[Record], start: int, stop: int) -> bytes:
    """Return the types of events from one on to before another; 0 where a record has none."""
    if not isinstance(records, list | tuple):
        return cast("RecordBlock", records).bytes_at(TYPE_OFFSET, start, stop)
    values = [record.value or b"" for record in records[start:stop]]
    return bytes([value[TYPE_OFFSET] if len(value) > TYPE_OFFSET else 0 for value in values])


class RawDecoder:
    """Decodes raw records from where a transaction begins on.

    :meth:`schema` gives the schema of what is in :data:`Written`, by the id that a value begins with.
    """

    def __init__(self, decoding: Decoding) -> None:
        self.topics = Topics(decoding.source)
        self.counters: Counter[str] = Counter()
        self._schemas = _Schemas()
        registry = cast("SchemaStore", self._schemas)
        self.read_event = EventDeserializer(registry)
        """Reads the value of a typed event."""
        serialize = EventSerializer(registry, self.topics.events)
        dead_letter = RecordSerializer(registry, self.topics.deadletter, "DeadLetter")
        self._decoder = DecoderStage(
            Format(self.topics, serialize, dead_letter, _UNBOUNDED, _UNBOUNDED),
            DecoderState(0),
            reread=_never_large,
            write_events=serialize.compiled(),
            new_block=_new_block() if decoding.into_rows else None,
            held_bytes=_UNBOUNDED,
        )
        self._begun_with = 0, 0
        self._mapper = self._make_mapper(decoding, registry, dead_letter) if decoding.into_rows else None

    def _make_mapper(
        self, decoding: Decoding, registry: SchemaStore, dead_letter: RecordSerializer
    ) -> RowMapperStage:
        settings = decoding.settings()
        self._events = _Kept(settings.rows.buffer_mib << 20)
        catalog = [CatalogEntry.from_bytes(value) for value in decoding.catalog]

        def read_catalog() -> Iterator[CatalogEntry]:
            while catalog:
                yield catalog.pop(0)

        history = Catalog(kept=None)
        for value in decoding.schemas:
            history.restore(SchemaVersion.from_bytes(value))
        info = TableTopicInfo(1, TOPIC_SPECS["table"].max_message_bytes)
        binder = Binder(
            settings,
            ensure_topics=lambda names: lambda: dict.fromkeys(names, info),
            register=lambda schemas: [registry.register(*schema) for schema in schemas],
            schema=self._schemas.schema,
            read_catalog=read_catalog,
            catalog_grew=lambda _: bool(catalog),
            catalog=history,
            without_topics=True,
        )
        output_format = OutputFormat(
            serialize_transaction=TransactionSerializer(registry, self.topics.transactions),
            serialize_ddl=RecordSerializer(registry, self.topics.ddl, "Ddl"),
            serialize_dead_letter=dead_letter,
            deadletter_limit=_UNBOUNDED,
            statement_limit=_UNBOUNDED,
            unpacked_limit=settings.rows.unpacked_mib << 20,
            include_query=settings.rows.include_query,
            truncate=settings.rows.truncate,
            new_block=_new_block() if kernel.has("columns") else None,
        )
        unpacked_limit = output_format.unpacked_limit
        return RowMapperStage(
            RowMapperState(0),
            Sink(self.topics, Output(), self.counters, lambda: decoding.now_ms * 1000),
            output_format,
            binder,
            EventReader(self.read_event, _never_large, unpacked_limit=unpacked_limit, held_bytes=_UNBOUNDED),
            replay=self._events.read,
            buffer_bytes=_BUFFERED_BYTES,
            quarantine=_NoQuarantine(),
        )

    def schema(self, schema_id: int) -> Any:
        """Return the schema with this id."""
        return self._schemas.schema(schema_id)

    @property
    def raw_events(self) -> int:
        """Events that were decoded of those taken."""
        return self._decoder.events - self._begun_with[0]

    @property
    def raw_bytes(self) -> int:
        """Bytes of these events."""
        return self._decoder.bytes - self._begun_with[1]

    def prepared(self) -> list[tuple[int, int]]:
        """Return first and last raw offset of each XA transaction that is prepared, and not decided."""
        pending = () if self._mapper is None else self._mapper.state().pending_xa
        return self._raw_offsets([(xa.start, xa.end) for xa in pending])

    def unfinished(self) -> list[tuple[int, int]]:
        """Return first and last raw offset of the transaction that has begun, of those taken, and not ended.

        There is one at the most; without a row mapper there is none.
        """
        if self._mapper is None:
            return []
        begun = self._mapper.state().input_offset
        return self._raw_offsets([(begun, self._events.end)] if begun < self._events.end else [])

    def _raw_offsets(self, events: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [
            (first.timestamp_ms, last.timestamp_ms)
            for start, stop in events
            for (first,) in self._events.read(start, start + 1)
            for (last,) in self._events.read(stop - 1, stop)
        ]

    @property
    def decided_xa(self) -> int:
        """Number of XA transactions that are decided, and prepared before what was taken."""
        return 0 if self._mapper is None else self._mapper.unknown_xa

    @property
    def between_transactions(self) -> bool:
        """Whether no transaction is open after the last record, nor an event with missing chunks."""
        return self._decoder.between_transactions

    def begin(self, *known: Record) -> None:
        """Take what lies before the first record: the format description of the log, prepared transactions.

        What is made of it is not given, and not counted.
        """
        for _ in self.take(known):
            pass
        self.forget_counts()

    def forget_counts(self) -> None:
        """Count from here on."""
        self.counters.clear()
        self._begun_with = self._decoder.events, self._decoder.bytes

    def take(self, records: Sequence[Record]) -> Iterator[Written]:
        """Take raw records, whose timestamps are their offsets; give what is made of them."""
        output = self._decoder.output
        events: list[OutputRecord] = []
        size = 0
        for _ in self._decoder.take(records):
            written, size = output.groups, size + output.size
            output.clear()
            if self._mapper is not None:
                events += written.pop((self.topics.events, 0), ())
                if size >= _MAPPED_BYTES:
                    yield from self._map(self._mapper, events)
                    events, size = [], 0
            if written:
                yield written
        if self._mapper is not None:
            yield from self._map(self._mapper, events)

    def _map(self, mapper: RowMapperStage, written: list[OutputRecord]) -> Iterator[Written]:
        if not written:
            return
        output, records, at = mapper.output, self._events.add(written), 0
        while at < len(records):
            begun = mapper.next_offset >= MAPPED_EVENTS
            part = records[at : at + (MAPPED_EVENTS if begun else _MAPPED_FIRST)]
            at += len(part)
            for _ in mapper.take(part):
                if output.count:
                    made = output.groups
                    output.clear()
                    made.pop((self.topics.state, 0), None)
                    made.pop((self.topics.schemas, 0), None)
                    yield made
            state = mapper.state()
            self._events.forget(min((state.input_offset, *(xa.start for xa in state.pending_xa))))


def _never_large(start: int, stop: int) -> Generator[bytes, None, None]:
    """Stand for what reads large records again: here none is."""
    raise AssertionError(f"records {start} to {stop} are held")
    yield b""

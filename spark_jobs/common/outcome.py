"""The outcome of decoding a piece of the raw topic: tables as Parquet files, and what there is to report."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import compress, groupby, repeat
from typing import TYPE_CHECKING, Final, Self, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from millrace.avro.columnar import AvroColumns, chosen
from millrace.avro.registry import split_wire_format
from millrace.binlog.errors import BinlogError
from millrace.binlog.gtid_set import GtidSet, MariadbGtid, MariadbGtidPosition
from millrace.spark.decoding import Decoding, RawDecoder, WholeTransactions
from millrace.stage import OutputRecord, Record
from spark_jobs.common.faults import Fault, Faults
from spark_jobs.common.files import ParquetFiles, WrittenFile

if TYPE_CHECKING:
    from millrace.kernel.records import RecordBlock
    from millrace.kernel.rows import RowBlock

_ROWS: Final = 128 * 1024
_BYTES: Final = 32 << 20
_ALL_BYTES: Final = 128 << 20
"""What waits of one table to become a row group, and of all tables."""

_LISTED: Final = 100
"""Dead letters of a piece that are listed in the report; the table has all."""

_PREFIX: Final = 5
"""Bytes in front of a record: those of its schema's id."""

_EVENT: Final = "event"

_REPEATING: Final = ("source", "op", "transaction")
"""Fields of a row whose texts mostly are as in the row before."""

_REPEATING_NUMBERS: Final = ("source.server_id", "source.thread")
"""Such numbers, where they are small."""

_MADE: Final = {"ts_ms", "ts_us", "ts_ns"}
"""When a row was made."""

Gtids = GtidSet | MariadbGtidPosition

_Values: TypeAlias = "list[bytes] | list[RowBlock | RecordBlock]"
"""Values of records, or blocks of records, that are read into columns together."""

_Time = tuple[str, str, str]
"""Where a record has its time: a column, a field in it, and its unit."""


@dataclass(slots=True)
class Outcome:
    """What was made of a piece."""

    events: int = 0
    raw_bytes: int = 0
    """Of these events."""

    files: list[WrittenFile] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    dead_letters: list[tuple[int, str, str, str]] = field(default_factory=list)
    """Raw offset, key, class of the error, its text."""

    first_offset: int | None = None
    """The first raw offset that a record of events, rows, transactions or DDL is made of."""

    unfinished: list[tuple[int, int]] = field(default_factory=list)
    """First and last raw offset of each transaction of which the piece has the begin and not the end."""

    prepared: list[tuple[int, int]] = field(default_factory=list)
    """The same of each XA transaction that is prepared, and not decided."""

    decided: int = 0
    """Number of XA transactions that are decided, and not known to be prepared."""

    snapshots: dict[str, int] = field(default_factory=dict)
    """Snapshots of tables of Iceberg, by name."""

    def to_json(self) -> str:
        """Write this as text."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return json.dumps({**values, "files": [asdict(file) for file in self.files]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        values = json.loads(text)
        values["files"] = [WrittenFile(**one) for one in values["files"]]
        values["counters"] = Counter(values["counters"])
        values["prepared"] = [(first, last) for first, last in values["prepared"]]
        return cls(**values)

    def tell(self, faults: Faults, topic: str) -> None:
        """Count and list what could not be decoded."""
        first = [
            Fault(topic, 0, offset, key, f"{kind}: {text}") for offset, key, kind, text in self.dead_letters
        ]
        faults.add(self.counters["dead_letters"], first)

    def add(self, other: "Outcome") -> None:
        """Take in what was made of another piece."""
        self.events += other.events
        self.raw_bytes += other.raw_bytes
        self.files += other.files
        self.counters += other.counters
        self.dead_letters += other.dead_letters
        self.unfinished += other.unfinished
        self.prepared += other.prepared
        if other.first_offset is not None:
            self._begin_at(other.first_offset)

    def made_of(self, offsets: Sequence[int]) -> None:
        """Take note of the raw offsets that records are made of."""
        self._begin_at(min(offsets))

    def _begin_at(self, offset: int) -> None:
        if self.first_offset is None or offset < self.first_offset:
            self.first_offset = offset


class _Waiting:
    """Records of one schema that become rows of a table together, and the offsets of their raw events.

    Of records that are not placed there are no offsets.
    """

    def __init__(
        self,
        table: str,
        columns: AvroColumns,
        gtid: Sequence[str],
        time: _Time | None = None,
        key: Sequence[str] = (),
    ) -> None:
        self.table = table
        self.columns = columns
        self.time = time
        self.gtid = gtid
        self.key = key
        self.offsets: list[int] = []
        self.count = self.size = 0

    def add(self, values: _Values, offsets: Sequence[int], count: int, size: int) -> None:
        """Take ``count`` records whose values have ``size`` bytes together."""
        self.columns.add(values)
        self.offsets += offsets
        self.count += count
        self.size += size

    def take(self) -> tuple[pa.RecordBatch, list[int]]:
        """Return what waits as columns, and the raw offsets that it is made of."""
        offsets = self.offsets
        self.offsets, self.count, self.size = [], 0, 0
        return self.columns.take(), offsets


class PieceWriter:
    """Decodes the records of a piece into files in a folder; with ``gtids`` only transactions of these.

    With ``placed``, rows and events have their raw offset, their day and, as ``key``, the columns of the
    primary key, and not when they were made: what is made twice is the same.
    """

    def __init__(
        self,
        decoding: Decoding,
        folder: str,
        prefix: str,
        gtids: Gtids | None = None,
        *,
        placed: bool = False,
    ) -> None:
        self._decoder = RawDecoder(decoding)
        self._files = ParquetFiles(folder, prefix, _REPEATING_NUMBERS)
        self._gtids = gtids
        self._placed = placed
        self._outcome = Outcome()
        self._waiting: dict[tuple[str, bytes], _Waiting] = {}
        self._events: dict[int, _Waiting] = {}
        self._heads: AvroColumns | None = None
        self._all = 0
        self._transactions = WholeTransactions()
        self._dead_letters: list[tuple[int, bytes]] = []
        topics = self._decoder.topics
        self._kinds = {topics.events: "events", topics.transactions: "transactions", topics.ddl: "ddl"}

    def begin(self, *known: Record) -> None:
        """Take what lies before the piece: the format description, transactions that are prepared."""
        self._decoder.begin(*known)

    def take(self, records: Sequence[Record]) -> None:
        """Take the next raw records."""
        for part in self._transactions.take(records):
            self._decode(part)

    def _decode(self, records: Sequence[Record]) -> None:
        for written in self._decoder.take(records):
            for (topic, _), made in written.items():
                if topic == self._decoder.topics.deadletter:
                    self._dead_letters += [(offset, value or b"") for _, value, offset, _ in made]
                elif topic == self._decoder.topics.events:
                    self._add_events(made)
                else:
                    self._add(topic, made)

    def finish(self) -> Outcome:
        """Write buffered rows and close the files; give the outcome of the piece."""
        if rest := self._transactions.rest():
            self._decode(rest)
        for waiting in [*self._waiting.values(), *self._events.values()]:
            self._flush(waiting)
        outcome = self._outcome
        outcome.dead_letters = write_dead_letters(
            self._files, "deadletter", self._decoder, self._dead_letters
        )
        outcome.events, outcome.raw_bytes = self._decoder.raw_events, self._decoder.raw_bytes
        outcome.files = list(self._files.close())
        outcome.counters += self._decoder.counters
        outcome.unfinished = self._decoder.unfinished()
        outcome.prepared, outcome.decided = self._decoder.prepared(), self._decoder.decided_xa
        if self._dead_letters:
            outcome.counters["dead_letters"] = len(self._dead_letters)
        return outcome

    # -- rows -----------------------------------------------------------------------------------------

    def _add(self, topic: str, records: Sequence[OutputRecord]) -> None:
        for is_block, part in groupby(records, _is_block):
            (self._add_blocks if is_block else self._add_records)(topic, list(part))

    def _add_blocks(self, topic: str, records: Sequence[OutputRecord]) -> None:
        block: RowBlock | RecordBlock
        for record in records:
            if topic in self._kinds:
                block = cast("RecordBlock", record[1])
                prefix = (block[0].value or b"")[:_PREFIX]
            else:
                block = cast("RowBlock", record[1])
                prefix = block.prefix if self._placed else block.prefix[:_PREFIX]
            self._outcome.made_of([record[2]])
            offsets = block.timestamps() if self._placed else ()
            self._wait(self._waiting_of(topic, prefix), [block], offsets, len(block), block.size)

    def _add_records(self, topic: str, records: Sequence[OutputRecord]) -> None:
        values = [record[1] or b"" for record in records]
        offsets = [record[2] for record in records]
        self._outcome.made_of(offsets)
        keyed = self._placed and topic not in self._kinds
        if not keyed and all(map(bytes.startswith, values, repeat(values[0][:_PREFIX]))):
            self._wait_each(self._waiting_of(topic, values[0][:_PREFIX]), values, offsets)
            return
        prefixes = [value[:_PREFIX] for value in values]
        if keyed:
            prefixes = [
                one + (record[0] or b"")[:_PREFIX] for one, record in zip(prefixes, records, strict=True)
            ]
        for prefix in sorted(set(prefixes)):
            same = [one == prefix for one in prefixes]
            waiting = self._waiting_of(topic, prefix)
            self._wait_each(waiting, list(compress(values, same)), list(compress(offsets, same)))

    def _waiting_of(self, topic: str, prefix: bytes) -> _Waiting:
        waiting = self._waiting.get((topic, prefix))
        if waiting is None:
            waiting = self._waiting[topic, prefix] = self._table_of(topic, prefix)
        return waiting

    def _table_of(self, topic: str, prefix: bytes) -> _Waiting:
        """Return the table of records whose values, and keys where these count, begin with ``prefix``."""
        schema = self._decoder.schema(split_wire_format(prefix[:_PREFIX])[0])
        kind = self._kinds.get(topic)
        if kind is not None:
            return _Waiting(kind, AvroColumns(schema), ["id" if kind == "transactions" else "gtid"])
        key = prefix[_PREFIX:]
        key_fields = self._decoder.schema(split_wire_format(key)[0])["fields"] if key else []
        key_names = [column["name"] for column in key_fields]
        whole = json.dumps([schema, key_names] if self._placed else schema, sort_keys=True)
        fingerprint = hashlib.sha256(whole.encode()).hexdigest()[:8]
        name = topic.removeprefix(f"{self._decoder.topics.source}.")
        table = f"rows/{name}/schema={fingerprint}"
        columns = AvroColumns(schema, repeating=_REPEATING)
        return _Waiting(table, columns, ["source", "gtid"], ("source", "ts_ms", "ms"), key_names)

    def _wait_each(self, waiting: _Waiting, values: list[bytes], offsets: Sequence[int]) -> None:
        self._wait(waiting, values, offsets if self._placed else (), len(values), sum(map(len, values)))

    def _wait(
        self, waiting: _Waiting, values: _Values, offsets: Sequence[int], count: int, size: int
    ) -> None:
        """Let records wait, whose values have ``size`` bytes; write those that wait once they are enough."""
        waiting.add(values, offsets, count, size)
        self._all += size
        if waiting.size >= _BYTES or waiting.count >= _ROWS:
            self._flush(waiting)
        elif self._all >= _ALL_BYTES:
            self._flush(max([*self._waiting.values(), *self._events.values()], key=lambda one: one.size))

    def _flush(self, waiting: _Waiting) -> None:
        self._all -= waiting.size
        if not waiting.count:
            return
        batch, offsets = waiting.take()
        if self._placed:
            batch = _with_place(batch, waiting, offsets)
            self._files.write(waiting.table, self._chosen(batch, waiting.gtid))
            return
        batch = self._chosen(batch, waiting.gtid)
        self._files.write(waiting.table, batch, None if waiting.time is None else _days(batch, waiting.time))

    def _chosen(self, batch: pa.RecordBatch, path: Sequence[str]) -> pa.RecordBatch:
        """Leave out what belongs to no transaction that was asked for."""
        gtids = self._gtids
        if gtids is None:
            return batch
        names = batch.column(path[0])
        for name in path[1:]:
            names = pc.struct_field(names, name)
        wanted = [name for name in pc.unique(names).to_pylist() if name is not None and _has(gtids, name)]
        return batch.filter(pc.is_in(names.cast(pa.string()), pa.array(wanted, pa.string())))

    # -- typed events ---------------------------------------------------------------------------------

    def _add_events(self, records: Sequence[OutputRecord]) -> None:
        """Sort events by type: each branch of the union is a table."""
        values = [record[1] or b"" for record in records]
        schema_id, _ = split_wire_format(values[0])
        schema = self._decoder.schema(schema_id)
        parts = schema["fields"]
        if self._heads is None:
            head = {**schema, "fields": [*parts[:-1], {"name": _EVENT, "type": "long"}]}
            self._heads = AvroColumns(head, whole=False)
        branches = self._heads.read(values).column(_EVENT).to_pylist()
        self._outcome.made_of([record[2] for record in records])
        by_branch: dict[int, tuple[list[bytes], list[int]]] = {}
        for branch, value, record in zip(branches, values, records, strict=True):
            same, offsets = by_branch.setdefault(branch, ([], []))
            same.append(value)
            offsets.append(record[2])
        for branch, (same, offsets) in by_branch.items():
            waiting = self._events.get(branch)
            if waiting is None:
                one = {**parts[-1], "type": chosen(parts[-1]["type"], branch)}
                columns = AvroColumns({**schema, "fields": [*parts[:-1], one]})
                name = f"events/{one['type']['name']}"
                waiting = self._events[branch] = _Waiting(
                    name, columns, ["context", "transaction"], ("header", "timestamp", "s")
                )
            self._wait_each(waiting, same, offsets)


def _is_block(record: OutputRecord) -> bool:
    return record[1] is not None and not isinstance(record[1], bytes)


def _days(batch: pa.RecordBatch, time: _Time) -> pa.Array:
    """Return the days of records, in UTC."""
    column, name, unit = time
    return pc.struct_field(batch.column(column), name).cast(pa.timestamp(unit)).cast(pa.date32())


def _with_place(batch: pa.RecordBatch, waiting: _Waiting, offsets: Sequence[int]) -> pa.RecordBatch:
    """Add raw offset, day and key; events, which are of one type here, stand under the name of it.

    Transactions and DDL get their raw offset alone.
    """
    place = pa.array(offsets, pa.int64())
    if waiting.time is None:
        return batch.add_column(0, "raw_offset", place)
    columns = {
        "raw_offset": place,
        "day": _days(batch, waiting.time),
    }
    if waiting.key:
        sides = [batch.column(side) for side in ("after", "before")]
        parts = [pc.coalesce(*(pc.struct_field(side, name) for side in sides)) for name in waiting.key]
        columns["key"] = pa.StructArray.from_arrays(parts, waiting.key)
    kept = [name for name in batch.schema.names if name not in _MADE]
    columns |= {name: batch.column(name) for name in kept}
    if _EVENT in columns:
        columns[_EVENT] = pa.StructArray.from_arrays(
            [columns[_EVENT]], [waiting.table.removeprefix("events/")]
        )
    return pa.RecordBatch.from_pydict(columns)


def write_dead_letters(
    files: ParquetFiles, table: str, decoder: RawDecoder, dead_letters: Sequence[tuple[int, bytes]]
) -> list[tuple[int, str, str, str]]:
    """Write records, given with their raw offsets, into a table; give those that are told."""
    if not dead_letters:
        return []
    schema_id, _ = split_wire_format(dead_letters[0][1])
    batch = AvroColumns(decoder.schema(schema_id)).read([value for _, value in dead_letters])
    # Of chunks that are missing the next record tells; where they lie the dead letter of the decoder says.
    raw = pc.equal(batch.column("topic"), decoder.topics.raw)
    given = pa.array([offset for offset, _ in dead_letters], pa.int64())
    offsets = pc.if_else(raw, batch.column("offset"), given)
    batch = batch.drop_columns(["topic", "offset", "context"]).append_column("raw_offset", offsets)
    files.write(table, batch)
    told = batch.slice(0, _LISTED).select(["raw_offset", "key", "error_class", "error"]).to_pylist()
    return [
        (one["raw_offset"], one["key"].decode("ascii", "backslashreplace"), one["error_class"], one["error"])
        for one in told
    ]


def _has(gtids: Gtids, name: str) -> bool:
    try:
        if isinstance(gtids, GtidSet):
            return gtids.contains(name)
        return gtids.contains(MariadbGtid.parse(name))
    except BinlogError:
        return False  # file:position, of a transaction without a GTID

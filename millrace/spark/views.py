"""What a user sees of the log: the columns of each view, and how raw records become batches of them.

A view takes the raw records of a span in their order, which begins where no transaction is open. It makes
only the columns that the user's schema has, by the stages of the services (:mod:`millrace.spark.decoding`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.avro.columnar import AvroColumns
from millrace.avro.connect import own_name
from millrace.avro.registry import split_wire_format
from millrace.contract import HEADER_MARKER, escape_name, log_number
from millrace.spark.decoding import Decoding, RawDecoder, WholeTransactions
from millrace.spark.files import Fault
from millrace.spark.json_columns import json_rows
from millrace.spark.selected import ALL, Selected
from millrace.stage import OutputRecord, Record

if TYPE_CHECKING:
    from millrace.kernel.records import RecordBlock
    from millrace.kernel.rows import RowBlock


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_TEXT: Final = pa.string()
_TEXTS: Final = pa.list_(_TEXT)
_LONG: Final = pa.int64()
_TIME: Final = pa.timestamp("us", "UTC")

_HEADERS: Final = pa.list_(pa.struct([("key", _TEXT), ("value", pa.binary())]))

OF_TRANSACTION: Final = _schema(
    _commit_ts=_TIME,
    _gtid=_TEXT,
    _transaction=_TEXT,
    _server_id=_LONG,
    _position=pa.struct([("epoch", pa.int32()), ("file", _TEXT), ("pos", _LONG), ("sub_index", _LONG)]),
    _sequence=_TEXT,
)
"""The columns that a transaction shares with its changes; position and sequence are of its beginning."""

_OF_CHANGES: Final[Mapping[str, pa.DataType]] = {
    "_op": _TEXT,
    "_commit_ts": _TIME,
    "_gtid": _TEXT,
    "_transaction": _TEXT,
    "_server_id": _LONG,
    "_position": pa.struct(
        [("epoch", pa.int32()), ("file", _TEXT), ("pos", _LONG), ("sub_index", _LONG), ("row", pa.int32())]
    ),
    "_sequence": _TEXT,
    "_unrepresentable": pa.list_(
        pa.struct(
            [
                *(("image", _TEXT), ("column", _TEXT), ("text", _TEXT), ("bytes", pa.binary())),
                ("reference", pa.struct([("key", _TEXT), ("start", _LONG), ("end", _LONG)])),
            ]
        )
    ),
}
"""What changes have beside their values.

``_op`` is c, u, d or t (TRUNCATE). ``_transaction`` is the GTID, or file and position where there is no GTID.
``_sequence`` rises along the log and is unique, as text. ``_unrepresentable`` has what a column's type cannot
hold, where the column is null.
"""

OF_TABLE: Final = _schema(**_OF_CHANGES, _missing=_TEXTS)
"""What a row of a table has beside its columns: ``_missing`` names those that the log left out of it."""

VIEWS: Final[Mapping[str, pa.Schema]] = {
    "raw": _schema(
        offset=_LONG,
        previous=_LONG,
        timestamp=_TIME,
        key=pa.binary(),
        value=pa.binary(),
        headers=_HEADERS,
    ),
    "changes": _schema(
        database=_TEXT,
        table=_TEXT,
        before=_TEXT,
        after=_TEXT,
        **_OF_CHANGES,
        _before_missing=_TEXTS,
        _after_missing=_TEXTS,
    ),
    "_corrupt": _schema(
        service=_TEXT,
        offset=_LONG,
        epoch=pa.int32(),
        log_file=_TEXT,
        position=_LONG,
        table=_TEXT,
        error_class=_TEXT,
        error=_TEXT,
        key=_TEXT,
        value=pa.binary(),
    ),
}
"""The columns of each view; those of ``events``, and of what is counted, are in modules of their own."""

COUNTED: Final = ("transactions", "counts", "statements", "ddl", "statistics")
"""The views of what is counted."""

_ROWS: Final = 16 * 1024
_BYTES: Final = 4 << 20
"""What waits of a table to become a batch."""

_ALL_BYTES: Final = 16 << 20
"""What waits of all tables."""

_PREFIX: Final = 5
"""Bytes in front of a record: those of its schema's id."""

_REPEATING: Final = ("source", "op", "transaction")
"""Fields whose texts mostly are as in the row before."""

_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.dtype("<u2"))


class LogDataError(ValueError):
    """A record cannot be read, and the user asked to be told so (mode FAILFAST)."""


class RawView:
    """Raw records as Kafka has them."""

    def __init__(self, layout: pa.Schema) -> None:
        self._layout = layout

    def batch(self, records: "tuple[Sequence[Record], int | None] | pa.RecordBatch") -> pa.RecordBatch:
        """Return columns of raw records, which come with the offset of the one before them, or as columns."""
        if isinstance(records, pa.RecordBatch):
            return batch_of(records, self._layout)
        block, previous = records
        return _batch(_of_block(block, previous), self._layout, len(block))


def _of_block(block: Sequence[Record], previous: int | None) -> Mapping[str, Callable[[], pa.Array]]:
    """Return the columns of raw records; of a block of the kernel without an object for each record."""
    count, millis = len(block), pa.timestamp("ms", "UTC")
    if isinstance(block, list):
        offsets, timestamps, keys, values, headers = zip(*block, strict=True)
        return {
            "offset": lambda: pa.array(offsets, _LONG),
            "previous": lambda: pa.array([previous, *offsets[:-1]], _LONG),
            "timestamp": lambda: pa.array(timestamps, millis),
            "key": lambda: pa.array(keys, pa.binary()),
            "value": lambda: pa.array(values, pa.binary()),
            "headers": lambda: _headers(headers),
        }
    numbers, times, of_keys, of_values, named = cast("RecordBlock", block).columns()
    known = pa.Array.from_buffers(_LONG, count, [None, pa.py_buffer(numbers)])
    return {
        "offset": lambda: known,
        "previous": lambda: pa.concat_arrays([pa.array([previous], _LONG), known[:-1]]),
        "timestamp": lambda: pa.Array.from_buffers(millis, count, [None, pa.py_buffer(times)]),
        "key": lambda: _binary(*of_keys),
        "value": lambda: _binary(*of_values),
        "headers": lambda: _headers(map(named.get, range(count))) if named else pa.nulls(count, _HEADERS),
    }


def _binary(valid: bytearray, begins: bytearray, data: bytearray) -> pa.Array:
    mask = None
    if 0 in valid:
        mask = pa.py_buffer(np.packbits(np.frombuffer(valid, np.uint8), bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(valid), [mask, pa.py_buffer(begins), pa.py_buffer(data)])


def marker_of(headers: Any) -> bytes | None:
    """Return what a record that is no event says; None of others."""
    found: bytes | None = None if headers is None else dict(headers).get(HEADER_MARKER)
    return found


def _headers(headers: Iterable[Any]) -> pa.Array:
    rows = [one and [{"key": name, "value": value} for name, value in one] for one in headers]
    return pa.array(rows, _HEADERS) if any(rows) else pa.nulls(len(rows), _HEADERS)


class DecodedView(ABC):
    """What the views of decoded records have in common."""

    def __init__(self, decoding: Decoding, layout: pa.Schema, *, fail: bool) -> None:
        self._decoder = RawDecoder(decoding)
        self._layout = layout
        self._fail = fail
        self._transactions = WholeTransactions()

    def begin(self, *known: Record) -> None:
        """Take what lies before the first record: the format description of the log."""
        self._decoder.begin(*known)

    def take(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Take the next raw records, whose timestamps are their offsets."""
        for part in self._transactions.take(records):
            yield from self._decode(part)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        if rest := self._transactions.rest():
            yield from self._decode(rest)

    def _decode(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        topics = self._decoder.topics
        for written in self._decoder.take(records):
            for (topic, _), made in written.items():
                if topic == topics.deadletter:
                    yield from self._dead_letters(made)
                else:
                    yield from self._made(topic, made)

    def _dead_letters(self, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        if self._fail:
            (first,) = self._letters(made[:1]).to_pylist()
            raise LogDataError(
                f"{first['log_file']}:{first['position']}: {first['error_class']}: {first['error']} "
                '(option("mode", "PERMISSIVE") leaves it out, and the view _corrupt lists it)'
            )
        yield from ()

    def _letters(self, made: Sequence[OutputRecord]) -> pa.RecordBatch:
        values = [value or b"" for _, value, *_ in made]
        return AvroColumns(self._decoder.schema(split_wire_format(values[0])[0])).read(values)

    def _corrupt(self, made: Sequence[OutputRecord]) -> pa.RecordBatch:
        """Return dead letters, each with the offset of its raw record."""
        letters = self._letters(made)
        # The record after missing chunks tells of them; the dead letter says where they should be.
        raw = pc.equal(letters.column("topic"), self._decoder.topics.raw)
        given = pa.array([offset for _, _, offset, _ in made], pa.int64())
        offsets = pc.if_else(raw, letters.column("offset"), given)
        keys = pa.array(
            [key.decode("ascii", "backslashreplace") for key in letters.column("key").to_pylist()],
            pa.string(),
        )
        letters = letters.drop_columns(["topic", "offset", "context", "key"])
        return letters.append_column("offset", offsets).append_column("key", keys)

    @abstractmethod
    def _made(self, topic: str, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        """Return what the view has of records that were written to a topic."""


class CorruptView(DecodedView):
    """What cannot be read, with its bytes and the reason."""

    def _dead_letters(self, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        yield batch_of(self._corrupt(made), self._layout)

    def _made(self, _topic: str, _made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        yield from ()


def faults_batch(faults: Sequence[Fault], layout: pa.Schema) -> pa.RecordBatch:
    """Return what the driver could not read of files as rows of the view ``_corrupt``."""
    columns = {
        "log_file": _thunk(pa.array([one.name for one in faults])),
        "position": _thunk(pa.array([one.position for one in faults])),
        "error_class": _thunk(pa.array([one.kind for one in faults])),
        "error": _thunk(pa.array([one.error for one in faults])),
    }
    return _batch(columns, layout, len(faults))


class _Waiting:
    """Rows of one schema that become a batch together."""

    def __init__(self, schema: Any) -> None:
        self.columns = AvroColumns(schema, repeating=_REPEATING)
        value = next(part for part in schema["fields"][0]["type"] if part != "null")
        self.names = [own_name(one) for one in value["fields"]]
        self.count = self.size = 0

    def take(self) -> pa.RecordBatch:
        """Return what waits as columns."""
        self.count = self.size = 0
        return self.columns.take()


class ChangesView(DecodedView):
    """Changes of all tables, or of the one that is called ``table``."""

    def __init__(
        self,
        decoding: Decoding,
        layout: pa.Schema,
        *,
        fail: bool,
        table: tuple[str, str] | None = None,
        selected: Selected = ALL,
    ) -> None:
        super().__init__(decoding, layout, fail=fail)
        self._table = table
        self._selected = selected
        self._namespace = None if table is None else row_namespace(decoding.source, table)
        self._waiting: dict[bytes, _Waiting | None] = {}
        self._all = 0
        topics = self._decoder.topics
        self._others = {topics.events, topics.transactions, topics.ddl}

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left."""
        yield from super().rest()
        for waiting in self._waiting.values():
            if waiting is not None and waiting.count:
                yield from self._flush(waiting)

    def _made(self, topic: str, made: Sequence[OutputRecord]) -> Iterator[pa.RecordBatch]:
        if topic in self._others:
            return
        for is_block, part in groupby(made, lambda record: not isinstance(record[1], bytes | None)):
            for record in part:
                if record[1] is None:
                    continue
                prefix = cast("RowBlock", record[1]).prefix[:_PREFIX] if is_block else record[1][:_PREFIX]
                waiting = self._of(prefix)
                if waiting is None:
                    continue
                size = cast("RowBlock", record[1]).size if is_block else len(record[1])
                waiting.columns.add(cast("list[bytes] | list[RowBlock | RecordBlock]", [record[1]]))
                waiting.count += len(record[1]) if is_block else 1
                waiting.size += size
                self._all += size
                if waiting.count >= _ROWS or waiting.size >= _BYTES:
                    yield from self._flush(waiting)
                elif self._all >= _ALL_BYTES:
                    largest = max(filter(None, self._waiting.values()), key=lambda one: one.size)
                    yield from self._flush(largest)

    def _of(self, prefix: bytes) -> _Waiting | None:
        """Return where the rows of a schema wait; None for those of another table."""
        if prefix not in self._waiting:
            schema = self._decoder.schema(split_wire_format(prefix)[0])
            namespace = schema["namespace"]
            wanted = self._namespace in (None, namespace) and self._selected.has_table(namespace)
            self._waiting[prefix] = _Waiting(schema) if wanted else None
        return self._waiting[prefix]

    def _flush(self, waiting: _Waiting) -> Iterator[pa.RecordBatch]:
        self._all -= waiting.size
        rows = waiting.take()
        columns = self._columns(rows, waiting.names)
        passing = self._selected.passing(rows, columns["_commit_ts"])
        if passing is not None and passing.false_count:
            rows = rows.filter(passing)
            columns = self._columns(rows, waiting.names)
        if len(rows):
            yield _batch(columns, self._layout, len(rows), fail=self._table is None or self._fail)

    def _columns(self, rows: pa.RecordBatch, names: Sequence[str]) -> dict[str, Callable[[], pa.Array]]:
        columns = _of_changes(rows)
        before, after = rows.column("before"), rows.column("after")
        missing = rows.column("before_missing"), rows.column("after_missing")
        if self._table is None:
            source = rows.column("source")
            columns["database"] = lambda: source.field("db")
            columns["table"] = lambda: source.field("table")
            columns["before"] = lambda: json_rows(before, names)
            columns["after"] = lambda: json_rows(after, names)
            columns["_before_missing"], columns["_after_missing"] = map(_thunk, missing)
            return columns
        deleted = pc.equal(rows.column("op").dictionary_decode(), "d")
        for name, *sides in zip(names, before.flatten(), after.flatten(), strict=True):
            columns[name] = _either(deleted, *sides)
        columns["_missing"] = _either(deleted, *missing)
        return columns


def _thunk(column: pa.Array) -> Callable[[], pa.Array]:
    return lambda: column


def _either(deleted: pa.Array, before: pa.Array, after: pa.Array) -> Callable[[], pa.Array]:
    """Return what makes a column of the row as it is now: for deleted rows as it was."""
    if deleted.true_count == 0:
        return _thunk(after)
    if deleted.false_count == 0:
        return _thunk(before)
    return lambda: pc.if_else(deleted, before, after)


def _of_changes(rows: pa.RecordBatch) -> dict[str, Callable[[], pa.Array]]:
    source, transaction = rows.column("source"), rows.column("transaction")
    return {
        "_op": lambda: rows.column("op"),
        "_commit_ts": lambda: _commit_time(source),
        "_gtid": lambda: source.field("gtid"),
        "_transaction": lambda: pc.struct_field(transaction, "id"),
        "_server_id": lambda: source.field("server_id"),
        "_position": lambda: source,
        "_sequence": lambda: _sequence(source),
        "_unrepresentable": lambda: rows.column("unrepresentable"),
    }


def _commit_time(source: pa.StructArray) -> pa.Array:
    millis = pc.multiply(source.field("ts_ms"), 1000)
    return pc.coalesce(source.field("ts_us"), millis).view(pa.timestamp("us", "UTC"))


def _sequence(source: pa.StructArray) -> pa.Array:
    """Write epoch, number of the log file, position, sub_index and row as digits of one length."""
    files = source.field("file")
    numbers = np.array([log_number(file.as_py())[1] for file in files.dictionary], np.uint64)
    rows = len(source)
    parts = (
        ("epoch", source.field("epoch").to_numpy(zero_copy_only=False), ">u4"),
        ("file", numbers[files.indices.to_numpy(zero_copy_only=False)], ">u8"),
        ("pos", source.field("pos").to_numpy(zero_copy_only=False), ">u8"),
        ("sub_index", source.field("sub_index").to_numpy(zero_copy_only=False), ">u4"),
        ("row", source.field("row").to_numpy(zero_copy_only=False), ">u4"),
    )
    packed = np.empty(rows, np.dtype([(name, kind) for name, _, kind in parts]))
    for name, values, _ in parts:
        packed[name] = values
    digits = _HEX[packed.view(np.uint8)]
    width = 2 * packed.dtype.itemsize
    ends = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(digits)])


def newest_row(
    decoding: Decoding, described: Record | None, batches: Iterable[Sequence[Record]], table: tuple[str, str]
) -> pa.Schema | None:
    """Return the columns of the last row of a table in some records, None where there is no row."""
    decoder = RawDecoder(decoding)
    if described is not None:
        decoder.begin(described)
    namespace = row_namespace(decoding.source, table)
    found: dict[bytes, pa.Schema | None] = {}
    last: pa.Schema | None = None
    others = {
        decoder.topics.events,
        decoder.topics.transactions,
        decoder.topics.ddl,
        decoder.topics.deadletter,
    }
    for records in batches:
        for written in decoder.take(records):
            for (topic, _), made in written.items():
                if topic in others:
                    continue
                value: Any = made[-1][1] or b""
                prefix = (value if isinstance(value, bytes) else value.prefix)[:_PREFIX]
                if prefix not in found:
                    schema = decoder.schema(split_wire_format(prefix)[0])
                    found[prefix] = row_type(schema) if schema["namespace"] == namespace else None
                last = found[prefix] or last
    return last


def sequence_text(epoch: int, file: str, position: int, sub_index: int) -> str:
    """Write the sequence of an event as changes have it."""
    return f"{epoch:08x}{log_number(file)[1]:016x}{position:016x}{sub_index:08x}{0:08x}"


def row_namespace(source: str, table: tuple[str, str]) -> str:
    """Name the namespace of the schemas of a table's rows."""
    return ".".join(escape_name(part) for part in (source, *table))


def row_type(schema: Mapping[str, Any]) -> pa.Schema:
    """Return the columns of a table by the schema of its rows, as the database calls them."""
    value = next(part for part in schema["fields"][0]["type"] if part != "null")
    struct = AvroColumns(dict(schema)).schema.field("before").type
    return pa.schema(
        [pa.field(own_name(one), field.type) for one, field in zip(value["fields"], struct, strict=True)]
    )


# -- batches of the schema that is wanted -----------------------------------------------------------------


def _batch(
    columns: Mapping[str, Callable[[], pa.Array]], layout: pa.Schema, rows: int, *, fail: bool = True
) -> pa.RecordBatch:
    """Make a batch of the columns that a layout has; null where there is none of a name.

    A value that does not fit raises :class:`LogDataError`, or is null unless it is to ``fail``.
    """
    if not len(layout):
        return pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))
    arrays = [
        conform(columns[field.name](), field.type, fail=fail)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in layout
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=layout)


def batch_of(rows: pa.RecordBatch, layout: pa.Schema) -> pa.RecordBatch:
    """Return those columns of a batch that a layout has."""
    columns = {name: _thunk(column) for name, column in zip(rows.schema.names, rows.columns, strict=True)}
    return _batch(columns, layout, len(rows))


def conform(array: pa.Array, wanted: pa.DataType, *, fail: bool = True) -> pa.Array:
    """Return a column as the type that is wanted: fewer fields of records, texts without a dictionary.

    A value that does not fit raises :class:`LogDataError`, or is null unless it is to ``fail``.
    """
    kind = array.type
    if kind == wanted:
        return array
    if pa.types.is_dictionary(kind):
        return conform(array.dictionary_decode(), wanted, fail=fail)
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        fields = {field.name: index for index, field in enumerate(kind)}
        parts = [
            conform(array.field(fields[field.name]), field.type, fail=fail)
            if field.name in fields
            else pa.nulls(len(array), field.type)
            for field in wanted
        ]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(wanted):
        values = conform(array.values, wanted.value_type, fail=fail)
        mask = array.is_null() if array.null_count else None
        if array.null_count == len(array):
            return pa.nulls(len(array), wanted)
        return pa.ListArray.from_arrays(array.offsets, values, type=wanted, mask=mask)
    return _cast(array, wanted, fail=fail)


def _cast(array: pa.Array, wanted: pa.DataType, *, fail: bool) -> pa.Array:
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if not fail:
            return pa.concat_arrays([_fitting(array.slice(at, 1), wanted) for at in range(len(array))])
        raise LogDataError(
            f"a value of an older definition does not fit the newest: {error} "
            '(option("mode", "PERMISSIVE") reads it as null)'
        ) from error


def _fitting(value: pa.Array, wanted: pa.DataType) -> pa.Array:
    try:
        return value.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(1, wanted)

"""Avro schemas of tables, and rows written by them.

A table's records carry Debezium's envelope: the schema ``Envelope`` (``schemas/avro/Envelope.avsc``) with the
table's columns in ``Value``, both in the namespace ``{source}.{database}.{table}``; each name is escaped
where Avro does not take it, and a column's own name is then its field's property ``millrace.name``. The key
is a record ``Key`` of the primary key's columns.

An update that changes the key makes two records, as in Debezium: a delete (``d``) with the old key and an
insert (``c``) with the new one, so that folding the topic by key gives the table. Both count in ``row``.
Unless tombstones are asked for, a deleted key's last record is the ``d``, whose ``after`` is null.

:class:`RowEncoder` is the hottest code of the product. Avro's binary form has neither names nor padding, so a
record is a join of pieces, and what is the same for all rows of an event is written once. Where the kernel
is built, it writes the rows, and what is here only those that are out of the ordinary.
"""

import io
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import fastavro

from millrace import kernel
from millrace.avro import binary
from millrace.avro.binary import Writer, long, string
from millrace.avro.column_attributes import with_attributes
from millrace.avro.column_values import ColumnValues
from millrace.avro.compatibility import SQL_TYPE, in_sql, promotes
from millrace.avro.connect import json_text, plain_schema
from millrace.avro.registry import wire_prefix, without_prefix
from millrace.avro.schemas import NAMESPACE, Schema, load_schema
from millrace.binlog.columns.column import ABSENT, Column
from millrace.binlog.columns.declaration import (
    AvroOptions,
    ColumnCodec,
    Native,
    NativeKind,
    avro_types,
    codec_of,
)
from millrace.binlog.errors import BinlogError, MissingStateError, UnrepresentableError
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.row_images import AvroRows, Row, RowImages, Values, present_ordinals
from millrace.binlog.table import ResolvedTable
from millrace.contract import escape_name

if TYPE_CHECKING:
    from millrace.kernel.rows import RowBlock, RowsKernel

LOGGED: Final = "false"
"""What ``source.snapshot`` says of changes that the log has."""

_NULL: Final = b"\x00"
_SOME: Final = b"\x02"

Record = tuple[bytes | None, bytes]
"""Key and value of a Kafka record."""

MarkedRecord = tuple[bytes | None, bytes | None, tuple[str, bytes] | None]
"""Key and value of a Kafka record, None for a tombstone, and a header."""

_NEW_KEY: Final = "__debezium.newkey"
_OLD_KEY: Final = "__debezium.oldkey"

Lost = Mapping[int, str | bytes]
"""What an image has in columns whose Avro type cannot hold it, by ordinal: text, or bytes if it is none."""

Locate = Callable[[int, int, int], tuple[int, int]]
"""From number of the row, side (0 before, 1 after) and ordinal to a value's first byte and past its last."""


@dataclass(frozen=True, slots=True)
class TableSchemas:
    """The schemas of a table's keys (None without a primary key) and values.

    ``row`` has the namespace and the fields of what ``before`` and ``after`` of the envelope are.
    ``key_types`` are those of the key's columns, int where :attr:`key` has long.
    """

    key: dict[str, Any] | None
    row: dict[str, Any]
    key_types: Sequence[Any] = ()

    @property
    def envelope(self) -> dict[str, Any]:
        """The schema of values; made each time, and the caller's."""
        envelope = load_schema("Envelope")
        envelope["namespace"] = self.row["namespace"]
        before, after, source_block, *others = envelope["fields"]
        before["type"][1] |= self.row
        after["type"][1] = f"{self.row['namespace']}.Value"
        for field in (source_block, *others):
            _settle(field["type"], NAMESPACE)
        return envelope


@dataclass(slots=True)
class EventMetadata:
    """What the envelope says of a rows event and of its transaction.

    ``ts_us``, when the change was made, and ``now_us``, the present time, are in microseconds;
    ``total_order`` and ``collection_order`` are the numbers of the event's first record among all of the
    transaction and among those of this table. A ``snapshot`` other than
    ``false`` makes the operation of inserts ``r``.
    """

    ts_us: int
    server_id: int
    gtid: str | None
    log_file: str
    position: int
    epoch: int
    sub_index: int
    thread: int | None
    query: str | None
    schema_source: str
    now_us: int
    transaction: str
    total_order: int
    collection_order: int
    key: bytes
    """Key of the event in the events topic."""
    snapshot: str = LOGGED
    """What ``source.snapshot`` says; where it is not ``false``, the operation of inserts is ``r``."""


Ruled = Mapping[int, ColumnValues]
"""Columns with a rule of selection, by ordinal."""

Former = Mapping[int, Sequence[Column]]
"""What columns were under earlier names, by ordinal."""


def table_schemas(
    source: str,
    table: ResolvedTable,
    options: AvroOptions,
    ruled: Ruled | None = None,
    former: Former | None = None,
) -> TableSchemas:
    """Make the schemas of ``table``; the columns' types are those that declarations or rules give.

    Fields have the names of ``former`` columns as aliases where the types of those promote to theirs.
    """
    ruled = ruled or {}
    aliases = _aliases(table.columns, options, former or {})
    types = _avro_types(table.columns, options, ruled)
    namespace = ".".join(escape_name(part) for part in (source, table.database, table.table))
    fields = []
    for column, avro in zip(table.columns, types, strict=True):
        if avro is not None:
            shown = avro if column.ordinal in ruled else with_attributes(avro, column, options)
            rest = {"type": ["null", shown], "default": None, **aliases.get(column.ordinal, {})}
            fields.append(_field(column.name, rest))
    key = _key_schema(table, options, ruled, aliases)
    row = {"namespace": namespace, "fields": fields}
    if key is None:
        return TableSchemas(None, row)
    key_types = [_with_text(avro) for avro in _avro_types(table.key_columns, options, ruled)]
    return TableSchemas({**key, "namespace": namespace}, row, key_types)


def _key_schema(
    table: ResolvedTable, options: AvroOptions, ruled: Ruled, aliases: Mapping[int, dict[str, Any]]
) -> dict[str, Any] | None:
    if not table.key_columns:
        return None
    types = _avro_types(table.key_columns, options, ruled)
    fields = [
        _field(
            column.name,
            {
                "type": _key_type(avro),
                SQL_TYPE: _sql_type(column),
                **aliases.get(column.ordinal, {}),
            },
        )
        for column, avro in zip(table.key_columns, types, strict=True)
    ]
    return {"type": "record", "name": "Key", "fields": fields}


def _sql_type(column: Column) -> str:
    """Return a column's type in SQL, of ENUM and SET without the members."""
    text = codec_of(column).sql_type()
    return text.partition("(")[0] if column.members else text


def _aliases(columns: Sequence[Column], options: AvroOptions, former: Former) -> dict[int, dict[str, Any]]:
    """Return what the fields of columns have beside their types, by ordinal."""
    found: dict[int, dict[str, Any]] = {}
    for column in columns:
        names = [
            escape_name(str(each.name))
            for each in former.get(column.ordinal, ())
            if promotes(codec_of(each).avro_type(options), codec_of(column).avro_type(options))
        ]
        if names:
            found[column.ordinal] = {"aliases": names}
    return found


def _avro_types(columns: Sequence[Column], options: AvroOptions, ruled: Ruled) -> list[Any]:
    """Return the types of the fields of one record, None for a column that has none."""
    others = iter(avro_types((column for column in columns if column.ordinal not in ruled), options))
    return [
        ruled[column.ordinal].avro_type if column.ordinal in ruled else next(others) for column in columns
    ]


def _field(name: str | None, rest: dict[str, Any]) -> dict[str, Any]:
    assert name is not None, "a resolved table has a name for each column"
    escaped = escape_name(name)
    # A name may have bytes that are no UTF-8, as lone surrogates, which JSON cannot have.
    own = {} if escaped == name else {"millrace.name": name.encode(errors="backslashreplace").decode()}
    return {"name": escaped, **rest, **own}


def _settle(schema: Schema, namespace: str) -> None:
    """Set a namespace in the outermost records of ``schema``; otherwise they would take the table's."""
    for branch in schema if isinstance(schema, list) else [schema]:
        if isinstance(branch, dict):
            if branch["type"] == "record":
                branch["namespace"] = namespace
            elif branch["type"] == "array":
                _settle(branch["items"], namespace)


def _key_type(avro: Schema) -> Schema:
    """Return the type of a key's field.

    Integers are longs, so that a key keeps its bytes where its column is widened.
    """
    kind = avro["type"] if isinstance(avro, dict) else avro
    if kind == "int" and not (isinstance(avro, dict) and {"logicalType", "connect.name"} & avro.keys()):
        return "long"
    return _with_text(avro)


def _with_text(avro: Schema) -> Schema:
    """Let a key's field hold text where MySQL has values that its type lacks, such as 0000-00-00."""
    logical = isinstance(avro, dict) and avro.get("logicalType") not in {None, "decimal"}
    return [avro, "string"] if logical else avro


def _key_writer(
    column: Column, avro: Schema, rule: ColumnValues | None
) -> Callable[[Any, str | bytes | None], bytes]:
    """Bind the way from a value, or from what its type cannot hold, to the field of a key."""
    if rule is not None:  # without the branch of the column's union
        return lambda value, lost: (rule.write(value) if lost is None else rule.write_lost(lost))[1:]
    write = binary.writer(avro)
    has_text_branch = _with_text(avro) is not avro
    value_branch, text_branch = (_NULL, _SOME) if has_text_branch else (b"", b"")
    may_be_text = has_text_branch or (avro["type"] if isinstance(avro, dict) else avro) == "string"

    def write_key(value: Any, lost: str | bytes | None) -> bytes:
        if lost is None:
            return value_branch + write(value)
        if not may_be_text:
            kind = avro["type"] if isinstance(avro, dict) else avro
            raise UnrepresentableError(
                f"{_shown(lost)} in column {column.name} {in_sql(codec_of(column).sql_type())} "
                f"cannot be in a key, which has Avro's {kind} for it"
            )
        return text_branch + string(_shown(lost))

    return write_key


def _shown(lost: str | bytes) -> str:
    return lost if isinstance(lost, str) else f"0x{lost.hex()}"


_Frame = tuple[bytes, bytes, bytes]
"""The pieces of a record that are the same for all rows of an event under one operation.

The source block up to ``row``; the rest of it, ``op``, the time and the transaction's id; ``before_missing``
and ``after_missing``.
"""

_INSERT: Final = string("c")
_UPDATE: Final = string("u")
_DELETE: Final = string("d")
_READ: Final = string("r")
_TRUNCATE: Final = string("t")


def not_of_snapshot() -> bytes:
    """Write what stands in front of :attr:`RowEncoder.place` for changes that the log has."""
    return _of_snapshot(LOGGED)


def _of_snapshot(snapshot: str) -> bytes:
    """Write ``snapshot`` and ``sequence``."""
    return _NULL + string(snapshot) + _NULL


class RowEncoder:
    """Writes the rows of one table by schemas that are registered; bound once per definition of the table.

    ``key_id`` and ``value_id`` are the registry's ids of what :func:`table_schemas` made for the same table
    and options; ``record_limit`` is the largest value in bytes that the topic takes. Where values are sent in
    another form, ``size_of`` gives the size there; a value of up to ``small_limit`` bytes fits in any case.
    With ``tombstones`` a deletion is followed by a record without a value, with ``key_headers`` both records
    of an update of the key have the other's key in a header: see :meth:`RowsEventWriter.marked`. With
    ``in_blocks`` and the kernel, records are in blocks. ``key_schema`` is the schema of ``key_id``, where it
    is an earlier one.
    """

    def __init__(
        self,
        source: str,
        version: str,
        table: ResolvedTable,
        options: AvroOptions,
        *,
        key_id: int | None,
        value_id: int,
        record_limit: int,
        small_limit: int | None = None,
        size_of: Callable[[bytes], int] = len,
        ruled: Ruled | None = None,
        connector: str = "millrace",
        tombstones: bool = False,
        key_headers: bool = False,
        in_blocks: bool = False,
        key_schema: dict[str, Any] | None = None,
    ) -> None:
        self.ruled = ruled or {}
        """Columns with a rule; only the rule's value is written."""
        self.tombstones = tombstones
        self.key_headers = key_headers
        self.marks = tombstones or key_headers
        self._written_key = key_schema or _key_schema(table, options, self.ruled, {})
        self.names = [str(column.name) for column in table.columns]
        self._codecs = [codec_of(column) for column in table.columns]
        self._options = options
        types: list[Any] = [
            self.ruled[ordinal].avro_type if ordinal in self.ruled else codec.avro_type(options)
            for ordinal, codec in enumerate(self._codecs)
        ]
        self.pack = binary.packer()
        self.prefix = wire_prefix(value_id)
        self.record_limit = record_limit
        self.small_limit = record_limit if small_limit is None else small_limit
        self._size_of = size_of
        self._writers = [
            self.ruled[ordinal].write if ordinal in self.ruled else binary.writer(["null", avro])
            for ordinal, avro in enumerate(types)
        ]
        self.origin = origin(version, connector, source)
        self.place = string(table.database) + string(table.table)
        self._key_prefix = None if key_id is None else wire_prefix(key_id)
        self._key = [
            (column.ordinal, _key_writer(column, types[column.ordinal], self.ruled.get(column.ordinal)))
            for column in table.key_columns
        ]
        self._key_parts = [
            (column.ordinal, _with_text(types[column.ordinal]) is not types[column.ordinal])
            for column in table.key_columns
        ]
        self._single_key: tuple[int, Writer] | None = None
        if len(table.key_columns) == 1:
            ordinal = table.key_columns[0].ordinal
            if _with_text(types[ordinal]) is types[ordinal] and ordinal not in self.ruled:
                self._single_key = ordinal, binary.writer(types[ordinal])
        self._sides: dict[bytes, tuple[list[Writer], bytes]] = {b"": ([], _NULL)}
        self.block_prefix: bytes | None = None
        """What the blocks have for :attr:`RowBlock.prefix`; None where records are by themselves."""
        if in_blocks and not self.marks and kernel.has("rows") and kernel.has("columns"):
            self.block_prefix = self.prefix + (self._key_prefix or b"")

    def new_records(self, timestamp_ms: int) -> "list[Record] | RowBlock":
        """Return what the records of an event go to, whose record has this timestamp."""
        if self.block_prefix is None:
            return []
        from millrace.kernel.rows import RowBlock  # noqa: PLC0415 - it is built, or there would be no prefix

        return RowBlock(self.block_prefix, timestamp_ms)

    @property
    def key_prefix_size(self) -> int:
        """Bytes in front of the Avro of keys."""
        return len(self._key_prefix or b"")

    def excess(self, value: bytes) -> int:
        """Say how many bytes a value is too large, in proportion where it is sent in another form."""
        size = len(value)
        if size <= self.small_limit:
            return 0
        sent = self._size_of(value)
        return 0 if sent <= self.record_limit else size - size * self.record_limit // sent

    def key(self, values: Values, lost: Lost | None) -> bytes | None:
        """Write the key of a row; raises :class:`MissingStateError` where the image lacks a part of it."""
        if self._key_prefix is None:
            return None
        if self._single_key is not None and not lost:
            ordinal, write_value = self._single_key
            value = values[ordinal]
            if value is not None and value is not ABSENT:
                return self._key_prefix + write_value(value)
        parts = [self._key_prefix]
        for ordinal, write in self._key:
            value = values[ordinal]
            original = None if lost is None else lost.get(ordinal)
            if value is ABSENT or (value is None and original is None):
                raise MissingStateError(
                    f"a row image lacks the key column {self.names[ordinal]}; set binlog_row_image=FULL, or "
                    "have each INSERT give it a value"
                )
            parts.append(write(value, original))
        return b"".join(parts)

    @cached_property
    def _key_schema(self) -> Any:
        assert self._written_key is not None
        return plain_schema(self._written_key)

    def key_text(self, key: bytes) -> bytes:
        """Write a key as Debezium's headers have it: JSON, bytes in Base64."""
        read = fastavro.schemaless_reader(io.BytesIO(without_prefix(key)), self._key_schema, None)
        return json_text(read).encode()

    def side(self, present: bytes) -> tuple[list[Writer], bytes]:
        """Return what writes images that have the columns ``present``.

        That is a function per column of the table, and what ``before_missing`` or ``after_missing`` says.
        Raises :class:`InvalidValueError` for a bitmap of another number of columns.
        """
        bound = self._sides.get(present)
        if bound is None:
            has = self._present(present)
            fields = [ordinal for ordinal in range(len(has)) if not self._is_dropped(ordinal)]
            writers = list(self._writers)
            for ordinal in fields:
                if not has[ordinal]:
                    writers[ordinal] = _absent
            names = [self.names[ordinal] for ordinal in fields if not has[ordinal]]
            missing = _SOME + binary.array_of_strings(names) if names else _NULL
            bound = self._sides[present] = (writers, missing)
        return bound

    def kernel(self, before: bytes | None, after: bytes | None) -> "RowsKernel | None":
        """Make what writes the rows of events with these images natively; None where there is no such thing.

        The bitmaps say which columns an image has; None stands for an image that the kind of event lacks.
        """
        images = [None if bitmap is None else self._present(bitmap) for bitmap in (before, after)]
        # By columns: a damaged bitmap may have bits set that belong to none.
        if self.marks and before is not None and after is not None:
            return None  # which key becomes which is known to the reference alone
        if not any(any(image or ()) for image in images) or not kernel.has("rows"):
            return None
        from millrace.kernel.rows import RowsKernel  # noqa: PLC0415 - whether it is built shows when it runs

        natives = [
            self.ruled[ordinal].native if ordinal in self.ruled else codec.native(self._options)
            for ordinal, codec in enumerate(self._codecs)
        ]
        return RowsKernel(
            [_plan(codec, native) for codec, native in zip(self._codecs, natives, strict=True)],
            [
                _converter(codec, self._options, write) if native is None or native.kind in _ASKING else None
                for codec, native, write in zip(self._codecs, natives, self._writers, strict=True)
            ],
            images[0],
            images[1],
            None if self._key_prefix is None else self._key_parts,
            self._key_prefix,
            self.prefix,
            self.small_limit,
        )

    def _is_dropped(self, ordinal: int) -> bool:
        return ordinal in self.ruled and self.ruled[ordinal].avro_type is None

    def _present(self, bitmap: bytes) -> list[bool]:
        ordinals = present_ordinals(bitmap, len(self._codecs))
        return [ordinal in ordinals for ordinal in range(len(self._codecs))]

    def start(self, place: EventMetadata) -> bytes:
        """Write the source block up to ``row``."""
        return _start(self.pack, self.origin, self.place, place)


_ASKING: Final = {NativeKind.JSON}
"""Kinds with values that the kernel leaves to the reference."""


def _plan(codec: ColumnCodec, native: Native | None) -> tuple[int, int, int, int, int, tuple[bytes, ...]]:
    size = struct.calcsize("<" + codec.struct_code) if codec.struct_code else 0
    return (native.kind if native else 0, codec.length_bytes, size, *(native[1:] if native else (0, 0, ())))


def _converter(codec: ColumnCodec, options: AvroOptions, write: Writer) -> Callable[[bytes], bytes]:
    """Bind the way from the bytes of a value to its Avro form, for types that the kernel does not have."""
    convert = codec.avro_decoder(options) or (lambda payload: payload)
    if codec.struct_code and not codec.struct_code.endswith("s"):
        unpack = struct.Struct("<" + codec.struct_code).unpack
        return lambda data: write(convert(*unpack(data)))
    return lambda data: write(convert(data))


def _absent(_: object) -> bytes:
    return _NULL


_SIDES: Final = ("before", "after")
_NO_NOTE: Final[dict[str, Any]] = {"text": None, "bytes": None, "reference": None}
_unrepresentable: Final = binary.writer(
    next(field["type"] for field in load_schema("Envelope")["fields"] if field["name"] == "unrepresentable")
)


def origin(version: str, connector: str, source: str) -> bytes:
    """Write the beginning of the source block, which is the same for all rows."""
    return string(version) + string(connector) + string(source)


def truncation(prefix: bytes, begin: bytes, table: tuple[str, str], place: EventMetadata) -> bytes:
    """Write the record of a TRUNCATE (``t``); ``begin`` is what :func:`origin` gives.

    Its layout is the same for all tables, but for the schema that ``prefix`` names.
    """
    pack, now = binary.packer(), place.now_us
    return pack(
        "bbblLSllsbLLLb",
        prefix,
        _NULL + _NULL,
        _start(pack, begin, b"".join(map(string, table)), place),
        0,
        place.thread,
        place.query,
        place.epoch,
        place.sub_index,
        place.schema_source,
        _TRUNCATE,
        now // 1000,
        now,
        now * 1000,
        4 * _NULL,
    )


def has_this_envelope(schema: Mapping[str, Any]) -> bool:
    """Return whether a table's schema has the fields, but for its columns, that :func:`truncation` writes."""
    return _names(schema) == _names(load_schema("Envelope"))


def _names(schema: Mapping[str, Any]) -> list[Any]:
    _, _, source, *others = schema["fields"]
    return [[field["name"] for field in source["type"]["fields"]], *(field["name"] for field in others)]


def _start(pack: binary.Pack, origin: bytes, table: bytes, place: EventMetadata) -> bytes:
    """Write the source block up to ``row``."""
    return pack(
        "blLLbblSsl",
        origin,
        place.ts_us // 1000,
        place.ts_us,
        place.ts_us * 1000,
        _of_snapshot(place.snapshot),
        table,
        place.server_id,
        place.gtid,
        place.log_file,
        place.position,
    )


class RowsEventWriter:
    """Writes the rows of one event, in their order, into ``records``.

    The bitmaps say which columns the images have, lowest bit first, and are empty for a side that the event
    does not have.

    ``records`` may be a block. Rows of an event that comes in batches: ``first`` is the number of records
    before these, and ``references`` names the values that were left out, by row, side and ordinal.
    """

    def __init__(
        self,
        encoder: RowEncoder,
        place: EventMetadata,
        before_present: bytes,
        after_present: bytes,
        locate: Locate,
        *,
        records: "list[Record] | RowBlock | None" = None,
        first: int = 0,
        references: Collection[tuple[int, int, int]] = (),
    ) -> None:
        self.records = [] if records is None else records
        self.moved: dict[int, tuple[str, bytes | None]] = {}
        """By index of a record that an update of the key became: a header's name, and the other's key."""
        self._deletions: set[int] = set()
        """Indices of records without an image after the change."""
        self._first = first
        self._left_out: dict[int, frozenset[tuple[int, int]]] = {}
        for number, side, ordinal in references:
            self._left_out[number] = self._left_out.get(number, frozenset()) | {(side, ordinal)}
        self._lost: Mapping[tuple[int, int], Lost] = {}
        self._encoder = encoder
        self._place = place
        self._locate = locate
        self._before, self._before_missing = encoder.side(before_present)
        self._after, self._after_missing = encoder.side(after_present)
        self._start = encoder.start(place)

    def write(self, operation: RowsOperation, images: AvroRows) -> None:
        """Write all rows of the event.

        Raises :class:`MissingStateError` where an image lacks the key.
        """
        self._lost = images.unrepresentable
        if operation is RowsOperation.UPDATE:
            self._updates(images.rows)
        else:
            self._one_sided(self._frames(operation)[0], images.rows, int(operation is RowsOperation.WRITE))

    def write_chosen(
        self, operation: RowsOperation, images: AvroRows, chosen: Iterable[RowsOperation | None]
    ) -> None:
        """Write rows each as it was chosen, None for not at all; otherwise as :meth:`write` does.

        A row of an update may be a delete of its image before or an insert of the one after.
        """
        self._lost = images.unrepresentable
        frames = self._frames(operation)
        for number, (row, choice) in enumerate(zip(images.rows, chosen, strict=True)):
            before, after = row
            if choice is None:
                continue
            if before is None or after is None:
                self._append_one_sided(frames[0], number, row)
            elif choice is RowsOperation.UPDATE:
                self._update(frames, number, before, after)
            else:
                old, new = self._keys(number, before, after)
                if choice is RowsOperation.DELETE:
                    self._append(frames[1], old, number, before, None)
                else:
                    self._append(frames[2], new, number, None, after)

    @property
    def left_out(self) -> frozenset[int]:
        """Ordinals of columns with values that were left out."""
        return frozenset(ordinal for places in self._left_out.values() for _, ordinal in places)

    def marked(self, operation: RowsOperation) -> Iterator[MarkedRecord]:
        """Yield the records with headers and tombstones where the encoder says so."""
        assert isinstance(self.records, list)  # no block is marked
        for index, (key, value) in enumerate(self.records):
            name, other = self.moved.get(index, ("", None))
            header = None
            if self._encoder.key_headers and other is not None:
                header = name, self._encoder.key_text(other)
            yield key, value, header
            deletes = operation is RowsOperation.DELETE or index in self._deletions
            if self._encoder.tombstones and deletes and key is not None:
                yield key, None, header

    def write_bytes(
        self, operation: RowsOperation, rows: bytes, images: RowImages, native: "RowsKernel | None"
    ) -> None:
        """Read rows by ``images`` and write them, with the kernel where there is one for these images.

        The kernel writes the first rows of an event, and those of which no value was left out.
        Raises :class:`MalformedError` as :meth:`RowImages.avro` does, and what :meth:`write` does.
        """
        if (
            native is None
            or self._first
            or self._left_out
            or not self._write_natively(operation, rows, images, native)
        ):
            self.records.clear()
            self.moved.clear()
            self._deletions.clear()
            self.write(operation, images.avro(rows))

    def _write_natively(
        self, operation: RowsOperation, rows: bytes, images: RowImages, native: "RowsKernel"
    ) -> bool:
        """Say whether that worked; what went wrong comes to light when the reference reads the event."""
        frames, place = self._frames(operation), self._place

        def slowly(number: int, start: int, end: int) -> None:
            read = images.avro(rows[start:end])
            self._lost = {(number, side): lost for (_, side), lost in read.unrepresentable.items()}
            ((before, after),) = read.rows
            if before is not None and after is not None:
                self._update(frames, number, before, after)
            else:
                self._append_one_sided(frames[0], number, (before, after))

        try:
            return native.write(rows, self.records, frames, place.total_order, place.collection_order, slowly)
        except BinlogError:
            return False

    def _frames(self, operation: RowsOperation) -> tuple[_Frame, ...]:
        """Return the frame of inserts or deletes; of updates, and of what updates of the key become."""
        place, pack, start = self._place, self._encoder.pack, self._start
        rest = pack("LSlls", place.thread, place.query, place.epoch, place.sub_index, place.schema_source)
        now = place.now_us
        end = pack("LLLbs", now // 1000, now, now * 1000, _SOME, place.transaction)
        if operation is RowsOperation.WRITE:
            made = _INSERT if place.snapshot == LOGGED else _READ
            return ((start, rest + made + end, _NULL + self._after_missing),)
        delete = start, rest + _DELETE + end, self._before_missing + _NULL
        if operation is RowsOperation.DELETE:
            return (delete,)
        update = start, rest + _UPDATE + end, self._before_missing + self._after_missing
        return update, delete, (start, rest + _INSERT + end, _NULL + self._after_missing)

    def _one_sided(self, frame: _Frame, rows: Iterable[Row], side: int) -> None:
        if not self._lost and not self._left_out:
            self._one_sided_ordinary(frame, rows, side)
            return
        for number, row in enumerate(rows):
            self._append_one_sided(frame, number, row)

    def _append_one_sided(self, frame: _Frame, number: int, row: Row) -> None:
        side = int(row[0] is None)
        values = row[side]
        assert values is not None
        self._append(frame, self._encoder.key(values, self._lost.get((number, side))), number, *row)

    def _one_sided_ordinary(self, frame: _Frame, rows: Iterable[Row], side: int) -> None:
        """Write rows without notes: what :meth:`_append` does, in one loop, since most rows come by here."""
        key, small, join = self._encoder.key, self._encoder.small_limit, b"".join
        writers = self._after if side else self._before
        lead = self._encoder.prefix + (_NULL + _SOME if side else _SOME)
        start, end, missing = frame
        after_image = start if side else _NULL + start
        rest = _NULL + missing
        total, collection, first = self._place.total_order, self._place.collection_order, self._first
        for number, row in enumerate(rows):
            values = row[side]
            assert values is not None
            image = join([write(value) for write, value in zip(writers, values, strict=True)])
            orders = long(first + number), end, long(total + number), long(collection + number)
            value = join((lead, image, after_image, *orders, rest))
            if len(value) > small and (too_much := self._encoder.excess(value)) > 0:
                value = self._shortened(frame, number, *row, too_much)
            self.records.append((key(values, None), value))

    def _updates(self, rows: Iterable[Row]) -> None:
        frames = self._frames(RowsOperation.UPDATE)
        for number, (before, after) in enumerate(rows):
            assert before is not None
            assert after is not None
            self._update(frames, number, before, after)

    def _update(self, frames: tuple[_Frame, ...], number: int, before: Values, after: Values) -> None:
        if self._after_missing == _NULL and not self._lost:
            old, new = self._encoder.key(before, None), self._encoder.key(after, None)
        else:
            old, new = self._keys(number, before, after)
        update, delete, insert = frames
        if old == new:
            self._append(update, new, number, before, after)
        else:
            count = len(self.records)
            self.moved[count], self.moved[count + 1] = (_NEW_KEY, new), (_OLD_KEY, old)
            self._append(delete, old, number, before, None)
            self._append(insert, new, number, None, after)

    def _keys(self, number: int, before: Values, after: Values) -> tuple[bytes | None, bytes | None]:
        """Write the keys before and after an update; what the image after it lacks has not changed."""
        lost_before, lost_after = (self._lost.get((number, side), {}) for side in (0, 1))
        unchanged = {ordinal for ordinal, value in enumerate(after) if value is ABSENT}
        whole = tuple(before[i] if i in unchanged else value for i, value in enumerate(after))
        lost = {**{i: text for i, text in lost_before.items() if i in unchanged}, **lost_after}
        return self._encoder.key(before, lost_before), self._encoder.key(whole, lost)

    def _append(
        self, frame: _Frame, key: bytes | None, number: int, before: Values | None, after: Values | None
    ) -> None:
        """Write one record; what is out of the ordinary goes the slow way."""
        lost = self._lost
        if number in self._left_out or (lost and ((number, 0) in lost or (number, 1) in lost)):
            left_out = self._left_out.get(number, frozenset())
            value = self._slowly(frame, number, before, after, left_out)
        else:
            before_image = after_image = _NULL
            if before is not None:
                pairs = zip(self._before, before, strict=True)
                before_image = _SOME + b"".join([write(value) for write, value in pairs])
            if after is not None:
                pairs = zip(self._after, after, strict=True)
                after_image = _SOME + b"".join([write(value) for write, value in pairs])
            value = self._join(frame, before_image, after_image, _NULL)
        if (too_much := self._encoder.excess(value)) > 0:
            value = self._shortened(frame, number, before, after, too_much)
        if after is None:
            self._deletions.add(len(self.records))
        self.records.append((key, value))

    def _join(self, frame: _Frame, before: bytes, after: bytes, unrepresentable: bytes) -> bytes:
        start, end, missing = frame
        count = len(self.records)
        return b"".join(
            (
                self._encoder.prefix,
                before,
                after,
                start,
                long(self._first + count),
                end,
                long(self._place.total_order + count),
                long(self._place.collection_order + count),
                unrepresentable,
                missing,
            )
        )

    def _slowly(
        self,
        frame: _Frame,
        number: int,
        before: Values | None,
        after: Values | None,
        too_large: frozenset[tuple[int, int]],
    ) -> bytes:
        """Write one record with notes of what its fields cannot hold, and of the columns ``too_large``."""
        notes: list[dict[str, Any]] = []
        images = [_NULL, _NULL]
        for side, values, writers in ((0, before, self._before), (1, after, self._after)):
            if values is None:
                continue
            lost = self._lost.get((number, side), {})
            parts = [_SOME]
            for ordinal, (write, value) in enumerate(zip(writers, values, strict=True)):
                note: dict[str, Any] = {}
                rule = self._encoder.ruled.get(ordinal)
                if rule is not None and ((side, ordinal) not in too_large or rule.native is not None):
                    parts.append(rule.write_lost(lost[ordinal]) if ordinal in lost else write(value))
                    continue
                if (side, ordinal) in too_large:
                    note = {"reference": self._reference(number, side, ordinal)}
                elif ordinal in lost:
                    original = lost[ordinal]
                    note = {"text" if isinstance(original, str) else "bytes": original}
                if note:
                    where = {"image": _SIDES[side], "column": self._encoder.names[ordinal]}
                    notes.append({**where, **_NO_NOTE, **note})
                parts.append(_NULL if note else write(value))
            images[side] = b"".join(parts)
        return self._join(frame, *images, _unrepresentable(notes or None))  # type: ignore[call-arg]  # two images

    def _reference(self, number: int, side: int, ordinal: int) -> dict[str, Any]:
        start, end = self._locate(number, side, ordinal)
        return {"key": self._place.key.decode(), "start": start, "end": end}

    def _shortened(
        self, frame: _Frame, number: int, before: Values | None, after: Values | None, excess: int
    ) -> bytes:
        """Write one record, ``excess`` bytes too long, with its largest columns by reference."""
        sizes = []
        for side, values in enumerate((before, after)):
            lost = self._lost.get((number, side), {})
            sizes += [
                (_size(lost.get(ordinal, value)), side, ordinal)
                for ordinal, value in enumerate(values or ())
                if ordinal not in self._encoder.ruled
            ]
        too_large = set(self._left_out.get(number, ()))
        for size, side, ordinal in sorted(sizes, key=lambda entry: -entry[0]):
            too_large.add((side, ordinal))
            excess -= size
            if excess <= 0:
                value = self._slowly(frame, number, before, after, frozenset(too_large))
                excess = self._encoder.excess(value)
                if excess <= 0:
                    return value
        raise UnrepresentableError(
            f"a row does not fit into a record of {self._encoder.record_limit} bytes even without its columns"
        )


def _size(value: Any) -> int:
    """Estimate the size of a value in a record, in bytes."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, bytes | str | list | tuple) else 0

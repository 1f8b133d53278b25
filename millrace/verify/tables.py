"""Compares row topics with the tables that they speak of.

The records of a row topic are folded: by key, the last record wins and a delete removes; without a key, as a
multiset. The result is compared with ``SELECT *``, of a system-versioned table with its history
(``FOR SYSTEM_TIME ALL``), each value in a form that both sides share (:func:`from_topic`,
:func:`from_server`): numbers as numbers, times as the text that the server prints, texts as str, bytes as
bytes.

A record that was written before a column was added lacks it; its value is then the column's default, which is
what the server filled in.

The schema of an Avro record says in which form each value is (``MILLRACE_ROWS_TEMPORAL``, ``_BIT``). What a
form has lost, or does not tell, is :class:`UnknownValue`.
"""

import datetime as dt
import itertools
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache, partial
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from fastavro.read import LOGICAL_READERS

from millrace.avro.records import deserialize
from millrace.avro.registry import SchemaStore
from millrace.binlog.columns.declaration import AvroOptions
from millrace.binlog.columns.spatial import GEOMETRY_TYPES
from millrace.binlog.columns.sql_types import INTEGERS, SqlType
from millrace.binlog.names import folded, quoted_name
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import SourcePosition, Topics, escape_name, versions_among
from millrace.ddl import Server
from millrace.ddl.statements import ColumnSpec
from millrace.kafka.client import Message, admin_client
from millrace.kafka.read import bytes_of, read_topic, source_topics
from millrace.mysql.catalog import enum_members
from millrace.mysql.connection import Flavour, MysqlConnection, Value
from millrace.mysql.errors import SourceError
from millrace.rowmapper.json_format import envelope_of
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from millrace.selection.tables import SYSTEM_DATABASES
from millrace.text import shortened
from millrace.verify.conversions import UnknownValue
from millrace.verify.history import (
    BEGINNING,
    Era,
    History,
    Order,
    Origin,
    TableHistory,
)
from millrace.verify.json_rows import JsonRows, is_json
from millrace.verify.missing import Missing

_COMPUTED: Final = re.compile(
    r"(?i)auto_increment|generated|persistent|virtual|stored|current_timestamp|\(\)"
)
_NO_DEFAULT: Final = 1364
_ROW_END: Final = "COALESCE(FROM_UNIXTIME(4294967295.999999), FROM_UNIXTIME(2147483647.999999))"
"""The end of the period of a current row: the last TIMESTAMP that the server has."""
_EXAMPLES: Final = 3
_KEY_VALUE: Final = 80
_LONG_VALUE: Final = 200
_LONG_ROW: Final = 300
_LARGEST_ROW: Final = (1 << 30) + (1 << 20)
"""Bytes: max_allowed_packet at its greatest, and its lengths."""
_TABLE_TYPES: Final = ("BASE TABLE", "SYSTEM VERSIONED")
_SEQUENCE: Final = "SEQUENCE"
_NUMBERS: Final = INTEGERS | {"year"}
_IMPLICIT_DEFAULTS: Final[dict[str, Any]] = {
    **dict.fromkeys(_NUMBERS, 0),
    "decimal": Decimal(0),
    "float": 0.0,
    "double": 0.0,
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "set"), ""),
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "longblob"), b""),
    **dict.fromkeys(("geometry", *GEOMETRY_TYPES, "geomcollection"), b""),
    "json": "null",
    "uuid": str(UUID(int=0)),
    "inet4": str(IPv4Address(0)),
    "inet6": str(IPv6Address(0)),
    "date": "0000-00-00",
}
"""What the server fills in for a NOT NULL column without a default, where the name of the type tells it."""
_ZERO_TIMES: Final = {
    "time": "00:00:00",
    "datetime": "0000-00-00 00:00:00",
    "timestamp": "0000-00-00 00:00:00",
}
_TIMES: Final = {
    "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "datetime": "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}",
    "time": "-?[0-9]{2,3}:[0-9]{2}:[0-9]{2}",
}
"""How the server prints times that do not depend on a time zone."""

_BINARY: Final = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_FORMS: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.data.Bits": "millrace-bits",
    "org.apache.kafka.connect.data.Timestamp": "millrace-millis",
}
"""Logical types by which values are read whose schema has only a semantic type, or one that cuts them."""

Row = tuple[Any, ...]


class _Millis(dt.datetime):
    """A moment that a record has in milliseconds only."""


_EPOCH_MILLIS: Final = _Millis(1970, 1, 1, tzinfo=dt.UTC)
LOGICAL_READERS["bytes-millrace-bits"] = lambda value, *_: value[::-1]
LOGICAL_READERS["long-millrace-millis"] = lambda value, *_: _EPOCH_MILLIS + dt.timedelta(milliseconds=value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column as ``information_schema`` has it; ``fraction`` is the number of digits below a second."""

    name: str
    data_type: str
    fraction: int
    in_key: bool = False
    computed: bool = False
    """Whether rows that are there when it is added get values of their own."""
    added: str = ""
    """SQL for what they get; without it, it is the default."""
    column_type: str = ""
    """The type with its lengths and members."""

    @property
    def expression(self) -> str:
        """SQL that selects its value."""
        return self.whole(quoted_name(self.name))

    def whole(self, value: str) -> str:
        """Return SQL for a value of its type, of which the server then prints all digits."""
        return f"{value}+0e0" if self.data_type in ("float", "double") else value


@dataclass(frozen=True, slots=True)
class Part:
    """What of a table is in its topic: not what is in ``hidden`` columns, and the rows that it ``selects``.

    That is asked with the values as the server prints them, by the lower-case names of columns.
    """

    hidden: frozenset[str] = frozenset()
    selects: Callable[[Mapping[str, str | bytes | None]], bool] | None = None

    def of_rows(self, columns: Sequence[Column], rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the part of a table's rows that the topic has."""
        shown = [index for index, column in enumerate(columns) if column.name not in self.hidden]
        names = [folded(column.name) for column in columns]
        for row in rows:
            if self.selects is None or self.selects(dict(zip(names, map(_printed_again, row), strict=True))):
                yield row if len(shown) == len(row) else tuple(row[index] for index in shown)


def _printed_again(value: Any) -> str | bytes | None:
    return value if value is None or isinstance(value, str | bytes) else str(value)


@dataclass(slots=True)
class Comparison:
    """The outcome for one table: numbers of rows, and examples of what differs."""

    database: str
    table: str
    keyed: bool
    records: int = 0
    rows: int = 0
    missing: int = 0
    """Rows of the table that the topic does not have."""
    surplus: int = 0
    """Rows of the topic that the table does not have."""
    examples: list[str] = field(default_factory=list)
    first: str | None = None
    """Where the first difference is, by key and column."""
    untold: list[str] = field(default_factory=list)
    """Rows of which the log does not tell what they are: they may be as the table has them."""
    has_topic: bool = True
    lacks: Missing = field(default_factory=Missing)
    """What its topic is known to lack since its last snapshot."""

    @property
    def equal(self) -> bool:
        """Whether the topic, folded, is the table, and has each change of it."""
        return not self.missing and not self.surplus and not self.lacks.of_table


class TableNames(NamedTuple):
    """What a database has: tables with rows of their own, system-versioned ones among them, and sequences."""

    tables: list[str]
    sequences: list[str]


def names_by_database(connection: MysqlConnection) -> dict[str, TableNames]:
    """Return the names of what all databases have, except the server's own."""
    rows = connection.query(
        "SELECT table_schema AS db, table_name AS name, table_type AS type FROM information_schema.tables "
        "WHERE table_type IN %s ORDER BY 1, 2",
        ((*_TABLE_TYPES, _SEQUENCE),),
        doing="list the tables",
    )
    found: defaultdict[str, TableNames] = defaultdict(lambda: TableNames([], []))
    for row in rows:
        names = found[row.text("db")]
        (names.sequences if row.text("type") == _SEQUENCE else names.tables).append(row.text("name"))
    return {database: names for database, names in found.items() if database not in SYSTEM_DATABASES}


def table_names(connection: MysqlConnection, database: str, types: Sequence[str] = _TABLE_TYPES) -> list[str]:
    """Return the tables of a database that have rows of their own, of all ``types`` or some."""
    rows = connection.query(
        "SELECT table_name AS name FROM information_schema.tables "
        "WHERE table_schema = %s AND table_type IN %s ORDER BY 1",
        (database, types),
        doing="list the tables",
    )
    return [row.text("name") for row in rows]


def compare_tables(
    connection: MysqlConnection,
    kafka: KafkaSettings,
    registry: SchemaStore,
    *,
    source: str,
    database: str,
    tables: Sequence[str],
    later: Callable[[], Container[str]] = frozenset,
    part_of: Callable[[str, Sequence[Column]], Part] | None = None,
    history: History | None = None,
    topic_of: Callable[[str, str], str] | None = None,
    options: AvroOptions | None = None,
) -> Iterator[Comparison]:
    """Yield a comparison per table.

    The connection is used for nothing else meanwhile. Nothing may write to the tables, or it must see them as
    of one moment: then ``later`` names the transactions after it that have come until it is called.
    ``part_of`` says what of a table its topic has, if that is not all. ``history`` has the DDL statements;
    without it all count that there are. ``topic_of`` names the topic of a table. ``options`` are those with
    which rows are written; records that are JSON are read by them.
    """
    json_rows = JsonRows(options or AvroOptions(), mariadb=connection.flavour is Flavour.MARIADB)
    connection.query("SET SESSION time_zone = '+00:00', NAMES utf8mb4", doing="compare tables")
    records = Records(registry)
    topic_of = topic_of or Topics(source).table
    if history is None:
        history = History.read(kafka, Topics(source), records.value_of, Server.parse(connection.version))
    there = source_topics(admin_client(kafka), source)
    versioned = table_names(connection, database, ("SYSTEM VERSIONED",))
    for table in tables:
        columns = _columns(connection, database, table)
        if table in versioned:
            columns = _with_period(connection, database, table, columns)
        part = Part() if part_of is None else part_of(table, columns)
        compared = [column for column in columns if column.name not in part.hidden]
        eras = history.of_table(database, table, [column.name for column in compared])
        folder = Folder(compared, partial(_default, connection, database, table), eras)
        history_too = table in versioned
        topics = eras.topics(topic_of)
        if not any(versions_among(there, topic) for topic in topics):
            number = _count(connection, database, table, columns, part, history=history_too)
            comparison = Comparison(
                database, table, keyed=False, rows=number, missing=number, has_topic=False
            )
            comparison.lacks = history.missing(eras)
            yield comparison
            continue
        snapshots: dict[int, Order] = {}
        for topic, numbers in topics.items():
            messages = itertools.chain.from_iterable(
                read_topic(kafka, each) for each in versions_among(there, topic) or [topic]
            )
            first = next(messages, None)
            # By now it is settled up to where the topic is read, so that nothing is missing in what is later.
            excluded = later()
            for message in itertools.chain(() if first is None else (first,), messages):
                in_json = is_json(message.value())
                envelope = records.envelope_of(message)
                if envelope is None or (envelope["transaction"] or {}).get("id") in excluded:
                    continue
                place = envelope["source"]
                era = eras.era(place["epoch"], place["file"], place["pos"])
                if era not in numbers:
                    continue
                if envelope["op"] == "r":
                    order = SourcePosition(place["epoch"], place["file"], place["pos"]).order()
                    began = int((envelope["transaction"] or {}).get("id", "-0").rpartition("-")[2])
                    snapshots[began] = min(order, snapshots.get(began, order))
                if in_json:
                    definition = _definition(history, eras.eras[era].table, envelope["source"])
                    folder.add(*_json_row(json_rows, message, envelope, definition, part.hidden), era)
                else:
                    folder.add(records.key_of(message), envelope, era)
        rows = part.of_rows(columns, _select(connection, database, table, columns, history=history_too))
        comparison = _compare(database, table, folder, rows, compared)
        since = snapshots[max(snapshots)] if snapshots else BEGINNING
        comparison.lacks = history.missing(eras, since)
        yield comparison


def _count(
    connection: MysqlConnection,
    database: str,
    table: str,
    columns: Sequence[Column],
    part: Part,
    *,
    history: bool,
) -> int:
    """Count the rows of a table that its topic must have."""
    if part.selects is not None:
        return sum(
            1 for _ in part.of_rows(columns, _select(connection, database, table, columns, history=history))
        )
    query = f"SELECT COUNT(*) AS number FROM {quoted_name(database, table)}"  # noqa: S608 - quoted names
    query += " FOR SYSTEM_TIME ALL" * history
    return connection.row(query).number("number")


def _definition(history: History, table: tuple[str, str], source: Mapping[str, Any]) -> TableDefinition:
    """Return the definition of a table where a record stands."""
    place = SourcePosition(source["epoch"], source["file"], source["pos"])
    definition = history.definition(table, place)
    if definition is None:
        raise UserError(
            f"the definition of {'.'.join(table)} is not known at {place}, and JSON does not tell bytes from "
            "text: 'millrace schema rebuild' makes the schema history again",
            ExitCode.DATA,
        )
    return definition


def _json_row(
    rows: JsonRows,
    message: Message,
    envelope: dict[str, Any],
    definition: TableDefinition,
    hidden: Container[str],
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return key and envelope of a message by the definition of its table where it stands."""
    key = message.key()
    try:
        return rows.rows(key if isinstance(key, bytes) else None, envelope, definition, hidden)
    except ValueError as error:
        raise _unreadable(message, error) from error


def _unreadable(message: Message, error: ValueError) -> UserError:
    where = f"offset {message.offset()} of {message.topic()}, partition {message.partition()}"
    return UserError(f"{where}: {error}", ExitCode.DATA)


class _Formed:
    """Stands where the registry is: gives schemas with the logical types of :data:`_FORMS`."""

    def __init__(self, registry: SchemaStore) -> None:
        self._registry = registry

    def schema(self, schema_id: int) -> Any:
        """Return a schema by its id."""
        return _formed(self._registry.schema(schema_id))


def _formed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_formed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _formed(part) for name, part in schema.items()}
    logical = _FORMS.get(schema.get("connect.name", ""))
    if logical is not None and schema.get("logicalType") in (None, "timestamp-millis"):
        found["logicalType"] = logical
    return found


class Records:
    """Reads Avro records in Confluent's wire format."""

    def __init__(self, registry: SchemaStore) -> None:
        self._registry = cast("SchemaStore", _Formed(registry))

    def read(self, data: bytes) -> dict[str, Any]:
        """Return the record in ``data``; raises ValueError where it is none."""
        if data.startswith(b"{"):
            raise ValueError("it is JSON, and this reads Avro: see MILLRACE_ROWS_FORMAT")
        record = deserialize(self._registry, data)
        assert isinstance(record, dict)
        return record

    def value_of(self, message: Message) -> dict[str, Any] | None:
        """Return a message's value, None for a tombstone; raises UserError where it is no record."""
        return self._read_part(message, message.value())

    def envelope_of(self, message: Message) -> dict[str, Any] | None:
        """Return the same of a message of a row topic, which may be JSON."""
        if not is_json(value := message.value()):
            return self.value_of(message)
        try:
            return envelope_of(bytes_of(value))
        except ValueError as error:
            raise _unreadable(message, error) from error

    def key_of(self, message: Message) -> dict[str, Any] | None:
        """Return a message's key, None where it has none; raises UserError where it is no record."""
        return self._read_part(message, message.key())

    def _read_part(self, message: Message, data: str | bytes | None) -> dict[str, Any] | None:
        if data is None:
            return None
        try:
            return self.read(data if isinstance(data, bytes) else data.encode())
        except ValueError as error:
            raise _unreadable(message, error) from error


_ABSENT: Final = UnknownValue("its image does not have the column")
"""In a segment: what was there before holds."""
_LEFT_OUT: Final = UnknownValue("its insert does not have the column")


@dataclass(slots=True)
class _Segment:
    """What the records of an era do to rows that are known by one key: to those of the eras before.

    ``names`` are the columns of the key; without them rows are counted.
    """

    names: tuple[str, ...]
    keyed: dict[Row, Row | None] = field(default_factory=dict)
    counts: Counter[Row] = field(default_factory=Counter)


class Folder:
    """Folds the envelopes of a table, those of a key in their order, into the rows that it must have.

    ``default`` gives the value of a column that a record of an older schema does not have. ``history`` tells
    what statements did to the rows; without it, nothing.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        default: Callable[[Column], Any],
        history: TableHistory | None = None,
    ) -> None:
        self._columns = list(columns)
        self._default = cache(default)
        self._history = history or TableHistory.without_changes([column.name for column in columns])
        # The numbers of those from before it was emptied are negative.
        eras = [*self._history.earlier, *self._history.eras]
        made = [_EraColumns(columns, eras[: number + 1]) for number in range(len(eras))]
        first = len(self._history.earlier)
        self._eras = [*made[first:], *made[:first]]
        self._segments: dict[tuple[int, tuple[str, ...]], _Segment] = {}
        self._rows: _Rows | None = None
        self.records = 0

    @property
    def keyed(self) -> bool:
        """Whether the rows have keys."""
        return bool(self._merged.keyed) or not self._merged.counts

    @property
    def rows(self) -> Counter[Row]:
        """The rows, with how often each is there; below 0 where more were removed than added."""
        return self._merged.all()

    @property
    def moved(self) -> tuple[str, bool, Counter[Row]] | None:
        """What has moved rows, whether it may have brought some, and those that were there when it did."""
        words = self._history.moved
        return None if words is None else (words, self._history.brings_rows, self._merged.old)

    def add(self, key: Mapping[str, Any] | None, envelope: Mapping[str, Any], era: int = 0) -> None:
        """Fold the next record, of an era of the history."""
        self.records += 1
        self._rows = None
        columns = self._eras[era]
        names, identity = columns.key(key or {})
        segment = self._segments.get((era, names))
        if segment is None:
            segment = self._segments[era, names] = _Segment(names)
        if envelope["op"] == "t":
            for each in [at for at in self._segments if at[0] <= era]:
                del self._segments[each]
        elif key is None:
            # What a minimal image lacks is in the one before it: without a key that one is whole.
            lacking: Row | UnknownValue = _ABSENT
            for image, step in (("before", -1), ("after", 1)):
                if envelope[image] is not None:
                    lacking = row = self._row(envelope, image, columns, lacking=lacking)
                    segment.counts[row] += step
                    if not segment.counts[row]:
                        del segment.counts[row]
        elif envelope["after"] is None:
            segment.keyed[identity] = None
        else:
            earlier: Row | UnknownValue | None = segment.keyed.get(identity, _ABSENT)
            if not isinstance(earlier, tuple):
                of_key = dict(zip(names, identity, strict=True))
                unknown = _LEFT_OUT if earlier is None else _ABSENT
                earlier = tuple(of_key.get(column.name, unknown) for column in self._columns)
            segment.keyed[identity] = self._row(envelope, "after", columns, lacking=earlier)

    def row(self, envelope: Mapping[str, Any], image: str, era: int) -> Row:
        """Return an image of a record as a row; :class:`UnknownValue` for a column that the image lacks."""
        return self._row(envelope, image, self._eras[era], lacking=_ABSENT)

    def key(self, key: Mapping[str, Any], era: int) -> dict[str, Any]:
        """Return the values of a record's key by the names that its columns have now."""
        return dict(zip(*self._eras[era].key(key), strict=True))

    @property
    def _merged(self) -> "_Rows":
        if self._rows is None:
            self._rows = _Rows([column.name for column in self._columns])
            for era in range(len(self._history.eras)):
                for at, segment in self._segments.items():
                    if at[0] == era:
                        self._rows.take(segment)
                if self._history.eras[era].moved:
                    self._rows.mark()
        return self._rows

    def _row(
        self, envelope: Mapping[str, Any], image: str, columns: "_EraColumns", *, lacking: Row | UnknownValue
    ) -> Row:
        """Return an image as a row; ``lacking`` is what has the columns that the image does not have."""
        values = envelope[image]
        absent = envelope.get(f"{image}_missing") or ()
        notes = {
            note["column"]: note for note in envelope.get("unrepresentable") or () if note["image"] == image
        }
        row = []
        for index, (final, column, name, origin) in enumerate(columns.columns):
            if column is None:
                row.append(self._added(final, origin))
            elif column.name in notes:
                row.append(origin.value(_from_note(column, notes[column.name])))
            elif column.name in absent:
                row.append(lacking[index] if isinstance(lacking, tuple) else lacking)
            elif name in values:
                value = from_topic(column, values[name])
                row.append(origin.value(value) if origin.steps else value)
            else:
                row.append(self._added(final, origin))
        return tuple(row)

    def _added(self, column: Column, origin: Origin) -> Any:
        """Return what the rows that were there have in a column that was added."""
        if column.computed or origin.steps:
            return UnknownValue("the server has computed it as the column was added")
        return self._default(column)


class _EraColumns:
    """The columns of the last of some eras, in the order of those that the table has now."""

    def __init__(self, columns: Sequence[Column], eras: Sequence[Era]) -> None:
        era = eras[-1]
        self.columns: list[tuple[Column, Column | None, str, Origin]] = []
        for final in columns:
            origin = era.columns[final.name]
            column = None if origin.name is None else replace(final, name=origin.name)
            if column is not None and origin.steps:
                column_type = origin.steps[0][0].column_type
                data_type = SqlType.parse(column_type).name
                column = replace(column, data_type=data_type, fraction=_fraction(column_type))
            self.columns.append((final, column, escape_name(origin.name or ""), origin))
        # A topic's keys keep the names that their columns had first. Another column may have such a name now.
        self._of_key: dict[str, tuple[Column, Column | None, Origin]] = {}
        of_final = {final.name: (final, column, origin) for final, column, _, origin in self.columns}
        for earlier in eras:
            for final in sorted(columns, key=lambda column: column.in_key):
                if (name := earlier.columns[final.name].name) is not None:
                    known = self._of_key.get(escape_name(name))
                    if known is None or final.in_key or not known[0].in_key:
                        self._of_key[escape_name(name)] = of_final[final.name]

    def key(self, key: Mapping[str, Any]) -> tuple[tuple[str, ...], Row]:
        """Return the columns of a record's key, by their names of now, and the values."""
        parts = {}
        for name, value in key.items():
            final, column, origin = self._of_key.get(name, (None, None, None))
            if final is None or column is None or origin is None:
                parts[f"{name} (dropped)"] = value
            else:
                parts[final.name] = origin.value(from_topic(column, value))
        return tuple(parts), tuple(parts.values())


class _Rows:
    """Rows while the segments of one era after the other are taken."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.keyed: dict[Row, Row] = {}
        self.counts: Counter[Row] = Counter()
        self.old: Counter[Row] = Counter()
        """Those of the last mark that no later record has touched."""
        self._at = {name: index for index, name in enumerate(columns)}
        self._names: tuple[str, ...] = ()

    def all(self) -> Counter[Row]:
        """Count the rows."""
        found = self.counts.copy()
        found.update(self.keyed.values())
        return found

    def mark(self) -> None:
        """Take note of the rows that are there."""
        self.old = self.all()

    def take(self, segment: _Segment) -> None:
        """Take what an era does to the rows."""
        if segment.names != self._names:
            self._key_by(segment.names)
        for row, count in segment.counts.items():
            self.counts[row] += count
            if not self.counts[row]:
                del self.counts[row]
            if count < 0 and row in self.old:
                self.old[row] += count
        for key, changed in segment.keyed.items():
            before = self.keyed.pop(key, None)
            if before is not None and before in self.old:
                self.old[before] -= 1
            if changed is not None:
                self.keyed[key] = tuple(
                    earlier if value is _ABSENT else value
                    for value, earlier in zip(changed, before or changed, strict=True)
                )

    def _key_by(self, names: tuple[str, ...]) -> None:
        """Know the rows by another key; those that are fewer than none stay counted."""
        rows, self._names = self.all(), names
        self.keyed, self.counts = {}, Counter()
        at = [self._at[name] for name in names if name in self._at]
        if not at or len(at) < len(names):
            self.counts = rows
            return
        for row, count in rows.items():
            if count > 0:
                self.keyed[tuple(row[index] for index in at)] = row
            else:
                self.counts[row] = count


def from_topic(column: Column, value: Any) -> Any:  # noqa: PLR0911, PLR0912 - a case per form
    """Bring a value of a row topic into the common form."""
    match value:
        case None:
            return None
        case bool():
            return bytes([value])  # BIT(1)
        case _Millis() | dt.time() if column.fraction > 3:
            return UnknownValue("its record has no more than milliseconds: MILLRACE_ROWS_TEMPORAL", value)
        case float() if column.data_type == "decimal":
            return UnknownValue("its record has a double: MILLRACE_ROWS_DECIMAL", value)
        case str() if column.data_type in _BINARY:
            return UnknownValue("its record has digits in place of its bytes: MILLRACE_ROWS_BINARY", value)
        case str() if column.data_type == "timestamp":
            return value.replace("T", " ").removesuffix("Z")
        case dt.time():
            return _with_fraction(value.isoformat(timespec="microseconds"), column.fraction)
        case dt.datetime():
            naive = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
            return _with_fraction(naive.isoformat(sep=" ", timespec="microseconds"), column.fraction)
        case dt.date():
            return value.isoformat()
        case str() if column.data_type == "decimal":
            return Decimal(value)
        case str() if column.data_type in _NUMBERS:
            return int(value)
        case int() if column.data_type == "time":
            return _time_text(value, column.fraction)
        case {"wkb": bytes(wkb), **rest}:
            return struct.pack("<I", rest.get("srid") or 0) + wkb
        case list():
            return struct.pack(f"<{len(value)}f", *value)
        case int() | Decimal() | float() | str() | bytes():
            return value
        case _:
            raise TypeError(f"column {column.name}: no common form for {type(value).__name__}")


def from_server(column: Column, text: str | bytes | None) -> Any:
    """Bring a value as the server prints it into the common form."""
    if text is None:
        return None
    if column.data_type in _NUMBERS:
        return int(text)
    if column.data_type == "decimal":
        return Decimal(text if isinstance(text, str) else text.decode())
    if column.data_type in {"float", "double"}:
        return float(text)
    if column.data_type in {"enum", "set"} and isinstance(text, bytes):
        with suppress(UnicodeDecodeError):  # CHARACTER SET binary
            return text.decode()
    return text


def _with_fraction(text: str, fraction: int) -> str:
    """Cut a time that ends in six digits below the second to ``fraction`` of them."""
    return text[: len(text) - 6 + fraction] if fraction else text[:-7]


def _time_text(microseconds: int, fraction: int) -> str:
    sign = "-" if microseconds < 0 else ""
    seconds, micros = divmod(abs(microseconds), 1_000_000)
    text = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    return _with_fraction(text, fraction)


def _from_note(column: Column, note: Mapping[str, Any]) -> Any:
    """Take a value that the field could not hold from the envelope's ``unrepresentable``."""
    if note["text"] is not None:
        return from_server(column, note["text"])
    if note["bytes"] is not None:
        if column.data_type == "json":
            return UnknownValue(
                "its record has changes of the document in place of it: PARTIAL_JSON", note["bytes"]
            )
        return note["bytes"]
    raise UserError(
        f"a row is too large for a record of its topic: its column {column.name} lies in the events topic, "
        "and this comparison reads row topics only; raise max.message.bytes of the topic or leave it out",
        ExitCode.DATA,
    )


def _columns(connection: MysqlConnection, database: str, table: str) -> list[Column]:
    rows = connection.query(
        "SELECT column_name AS name, data_type AS data_type, column_type AS column_type, "
        "column_key = 'PRI' AS in_key, extra AS extra, column_default AS preset "
        "FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (database, table),
        doing="list the columns of a table",
    )
    return [
        Column(
            row.text("name"),
            row.text("data_type"),
            _fraction(row.text("column_type")),
            bool(row.number("in_key")),
            _COMPUTED.search(f"{row.text('extra')} {row.text('preset')}") is not None,
            column_type=row.text("column_type"),
        )
        for row in rows
    ]


def _with_period(
    connection: MysqlConnection, database: str, table: str, columns: Sequence[Column]
) -> list[Column]:
    """Return the columns of a system-versioned table.

    Unless it names those of its period, it has two that are in the log, and not in information_schema.
    """
    named = connection.query(
        "SELECT column_name AS name FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s AND generation_expression = 'ROW END'",
        (database, table),
        doing="list the columns of a table",
    )
    ends = [row.text("name") for row in named]
    found = list(columns)
    if not ends:
        in_key = any(column.in_key for column in columns)
        ends = ["row_end"]
        found += [
            Column("row_start", "timestamp", 6, computed=True),
            Column("row_end", "timestamp", 6, in_key),
        ]
    return [replace(each, computed=False, added=_ROW_END) if each.name in ends else each for each in found]


def _fraction(column_type: str) -> int:
    """Return the digits below the second; MySQL 5.5 has neither them nor a column that tells them."""
    found = re.match(r"(?:datetime|timestamp|time)\((\d)\)", column_type)
    return int(found[1]) if found else 0


def _default(connection: MysqlConnection, database: str, table: str, column: Column) -> Any:
    """Return what the server gave the existing rows when the column was added."""
    expression = column.whole(f"DEFAULT({quoted_name(column.name)})")
    query = f"SELECT {expression} FROM {quoted_name(database, table)} LIMIT 1"  # noqa: S608 - quoted names
    if column.added:
        query = f"SELECT {column.added}"
    try:
        rows = list(_printed(connection, query))
    except SourceError as error:
        if error.__cause__ is not None and error.__cause__.args[:1] == (_NO_DEFAULT,):
            mariadb = connection.flavour is Flavour.MARIADB
            return _implicit_default(column, column.column_type, mariadb=mariadb)
        raise
    return from_server(column, rows[0][0]) if rows else None


def _implicit_default(column: Column, column_type: str, *, mariadb: bool | None) -> Any:
    """Return what the server fills in for a NOT NULL column without a default."""
    kind, sql = column.data_type, SqlType.parse(column_type)
    if kind == "enum":
        members = enum_members(column_type)
        return members[0] if members else UnknownValue("the members of its ENUM are not known")
    if kind == "binary":
        return bytes(sql.argument(1))
    if kind == "bit":
        return bytes((sql.argument(1) + 7) // 8)
    if kind == "vector" and mariadb is not None:
        return bytes(4 * sql.argument(2048)) if mariadb else b""
    if kind in _ZERO_TIMES:
        return _with_fraction(f"{_ZERO_TIMES[kind]}.000000", column.fraction)
    return _IMPLICIT_DEFAULTS.get(kind, UnknownValue("what the server fills in for its type is not known"))


def added_value(column: Column, definition: ColumnDefinition, spec: ColumnSpec) -> Any:
    """Return what the rows that were there got when a column was added, as far as the statement tells."""
    text = spec.default
    untold = UnknownValue("the server has computed it as the column was added")
    if spec.computed or definition.generated:
        return untold
    if text is None:
        if definition.nullable:
            return None
        return _implicit_default(column, definition.column_type, mariadb=None)
    try:
        return _literal(column, definition, text)
    except (ValueError, ArithmeticError):
        return untold


def _literal(column: Column, definition: ColumnDefinition, text: str) -> Any:
    """Bring a literal into the common form; raises ValueError where the server may make another of it."""
    kind = column.data_type
    sql = SqlType.parse(definition.column_type)
    value: Any = text
    certain = False
    if kind in _NUMBERS:
        value, certain = int(text), True
        if kind == "year" and len(text) <= 2:  # '0' is 2000, and 0 is 0000
            value, certain = value + (2000 if value < 70 else 1900), value > 0
    elif kind == "decimal":
        value = Decimal(text)
        certain = value == round(value, (*sql.arguments, 0, 0)[1])
    elif kind in {"float", "double"}:
        value, certain = float(text), not sql.arguments
        if kind == "float":
            (value,) = struct.unpack("<f", struct.pack("<f", value))
    elif definition.members is not None:
        parts = text.split(",") if kind == "set" and text else [text] * (kind == "enum")
        certain = set(parts) <= set(definition.members)
        value = ",".join(member for member in definition.members if member in parts)
    elif definition.charset is not None:
        value, certain = text.rstrip(" ") if kind == "char" else text, True
    elif kind == "varbinary":
        value, certain = text.encode("ascii"), True
    elif kind in _TIMES:
        fraction = rf"\.[0-9]{{{column.fraction}}}" if column.fraction else ""
        certain = re.fullmatch(_TIMES[kind] + fraction * (kind != "date"), text) is not None
    if not certain:
        raise ValueError(text)
    return value


def _select(
    connection: MysqlConnection,
    database: str,
    table: str,
    columns: Sequence[Column],
    *,
    history: bool = False,
) -> Iterator[Row]:
    expressions = ", ".join(column.expression for column in columns)
    query = f"SELECT {expressions} FROM {quoted_name(database, table)}"  # noqa: S608 - quoted names
    if history:
        query += " FOR SYSTEM_TIME ALL"
    for row in _printed(connection, query):
        yield tuple(from_server(column, text) for column, text in zip(columns, row, strict=True))


def _printed(connection: MysqlConnection, query: str) -> Iterator[tuple[Value, ...]]:
    """Yield rows with the values as the server prints them, without holding all of them."""
    return connection.rows(query, doing="select the rows of a table", largest=_LARGEST_ROW)


def _compare(
    database: str, table: str, folder: Folder, rows: Iterable[Row], columns: Sequence[Column]
) -> Comparison:
    comparison = Comparison(database, table, keyed=folder.keyed, records=folder.records)
    difference = folder.rows.copy()  # what the topic has and the table lacks
    for row in rows:
        comparison.rows += 1
        difference[row] -= 1
    comparison.untold = [
        *_take_untold_values(columns, difference),
        *_take_moved_rows(columns, difference, folder),
    ]
    for count in difference.values():
        if count > 0:
            comparison.surplus += count
        else:
            comparison.missing -= count
    unequal = ((row, count) for row, count in difference.items() if count)
    for row, count in itertools.islice(unequal, _EXAMPLES):
        where = "only in the topic" if count > 0 else "only in the table"
        values = ", ".join(_shown(value, _LONG_VALUE) for value in row)
        comparison.examples.append(f"{where}: {shortened(values, _LONG_ROW)}")
    comparison.first = _first_difference(columns, difference)
    return comparison


def _take_untold_values(columns: Sequence[Column], difference: Counter[Row]) -> Iterator[str]:
    """Take out rows that are equal but for values that the log does not tell; say which these are."""
    patterns: dict[tuple[int, ...], list[Row]] = {}
    for row, count in difference.items():
        untold = tuple(index for index, value in enumerate(row) if isinstance(value, UnknownValue))
        if untold and count > 0:
            patterns.setdefault(untold, []).append(row)
    found: dict[tuple[int, str], list[Row]] = {}
    for untold, rows in patterns.items():

        def rest(row: Row, untold: tuple[int, ...] = untold) -> Row:
            return tuple(value for index, value in enumerate(row) if index not in untold)

        waiting: dict[Row, list[Row]] = {}
        for row, count in difference.items():
            if count < 0:
                waiting.setdefault(rest(row), []).extend([row] * -count)
        for row in rows:
            for _ in range(difference[row]):
                other = waiting.get(rest(row))
                if not other:
                    break
                actual = other.pop()
                difference[row] -= 1
                difference[actual] += 1
                for index in untold:
                    found.setdefault((index, row[index].reason), []).append(actual)
    for (index, reason), rows in found.items():
        yield (
            f"column {columns[index].name} of {len(rows):,} rows: {reason}; the first: "
            f"{_named(columns, min(rows, key=str))}"
        )


def _take_moved_rows(columns: Sequence[Column], difference: Counter[Row], folder: Folder) -> Iterator[str]:
    """Take out rows that statements may have removed or brought; say which these are."""
    if folder.moved is None:
        return
    statements, brings, old = folder.moved
    removed = [(row, min(count, old[row])) for row, count in difference.items() if count > 0 < old[row]]
    brought = [(row, -count) for row, count in difference.items() if brings and count < 0]
    for rows, what in ((removed, "removed"), (brought, "brought")):
        if rows:
            number = sum(count for _, count in rows)
            yield f"{number:,} rows {what}: {statements}; the first: {_named(columns, min(rows, key=str)[0])}"
    for row, count in removed:
        difference[row] -= count
    for row, count in brought:
        difference[row] += count


def _first_difference(columns: Sequence[Column], difference: Counter[Row]) -> str | None:
    """Say by key and column where the first difference is: of those in the table, else in the topic."""
    missing = next((row for row, count in difference.items() if count < 0), None)
    surplus = {_key_of(columns, row): row for row, count in reversed(difference.items()) if count > 0}
    if missing is None:
        key = next(iter(surplus), None)
        return None if key is None else f"{_named(columns, surplus[key])}: only in the topic"
    other = surplus.get(_key_of(columns, missing)) if any(column.in_key for column in columns) else None
    if other is None:
        return f"{_named(columns, missing)}: only in the table"
    name, theirs, ours = next(
        (column.name, in_table, in_topic)
        for column, in_table, in_topic in zip(columns, missing, other, strict=True)
        if in_table != in_topic
    )
    return (
        f"{_named(columns, missing)}, column {name}: {_shown(ours, _LONG_VALUE)} in the topic, "
        f"{_shown(theirs, _LONG_VALUE)} in the table"
    )


def _key_of(columns: Sequence[Column], row: Row) -> Row:
    """Return the values of the key, all values where there is none."""
    key = tuple(value for column, value in zip(columns, row, strict=True) if column.in_key)
    return key or row


def _named(columns: Sequence[Column], row: Row) -> str:
    pairs = list(zip(columns, row, strict=True))
    key = [(column, value) for column, value in pairs if column.in_key] or pairs
    return "row " + ", ".join(f"{column.name}={_shown(value, _KEY_VALUE)}" for column, value in key)


def _shown(value: Any, limit: int) -> str:
    """Write a value as SQL has it."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return shortened(f"0x{value[:limit].hex().upper()}" if value else "''", limit)
    return shortened(repr(value) if isinstance(value, str) else str(value), limit)

"""Tables through time: moments of a log, what statements did to tables, and the records of row topics.

The driver reads what exists per statement: definitions, DDL, the positions of the services. Executors read
what exists per transaction or per row.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.avro.catalog import CatalogEntry
from millrace.avro.registry import SchemaStore, key_subject, value_subject
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import RowMapperState
from millrace.avro.snapshots import MERGED_KEY, SnapshotMerged, SnapshotState, SnapshotTable
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.errors import BinlogError
from millrace.binlog.gtid_set import GtidSet, MariadbGtid, MariadbGtidPosition
from millrace.binlog.names import parse_table_name
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import SourcePosition, Topics, log_number
from millrace.ddl import MISSING, Server, Unknown
from millrace.ddl import statements as ddl
from millrace.ddl.columns import charset_of
from millrace.kafka.state import last_records
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.selection import Selection
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.verify import tables as verified
from millrace.verify.collations import is_certain, same_value
from millrace.verify.conversions import UnknownValue
from millrace.verify.history import History, Statement, TableHistory
from millrace.verify.missing import DeadLettersByTable
from millrace.verify.snapshot import reader_place
from millrace.verify.tables import Records, added_value
from spark_jobs.common.events import KnownSchemas, arrow_schema
from spark_jobs.common.faults import FAULT_COLUMNS, FAULT_SCHEMA, NO_FAULT, RECORD_COLUMNS
from spark_jobs.common.job import Input, Job, TableJobSettings, moment, read_each, schemas_of, topic_versions
from spark_jobs.common.kafka import parse_bound, resolve_slice, scan
from spark_jobs.common.lines import Line, read_lines, rows_of
from spark_jobs.common.outcome import Gtids

_PLACE: Final = re.compile(r"(?:([0-9]+):)?([^:]+\.[0-9]+):([0-9]+)")
_KEY_PART: Final = r"([^=,]+)=(?:('(?:[^']|'')*')(?=,|$)|([^,]*))"
"""A column, and its value with quotes or without."""

_UNIT_SCHEMA: Final = (
    "epoch int, number bigint, pos bigint, file string, time_ms bigint, id string, inside boolean, "
    "tables string"
)
"""The end of a transaction, or a DDL statement.

``inside`` tells whether its GTID is in the set asked for, null where it has none; ``tables`` are those whose
rows it changed, a line each.
"""
_UNIT_OR_FAULT: Final = f"{_UNIT_SCHEMA}, {FAULT_SCHEMA}"
"""The same, or a record that cannot be read."""

CHANGE_SCHEMA: Final = (
    "topic string, partition int, offset bigint, "
    "epoch int, number bigint, pos bigint, sub_index bigint, row int, "
    "file string, id string, gtid string, time_ms bigint, op string, logged boolean, era int, "
    "key binary, value binary, fault string"
)
"""A record of a row topic: its place in the log and its transaction, ``time_ms`` when that was committed.

``logged`` is false for a row of a snapshot, which ``id`` then names. ``era`` is the number of the era of the
table's history, negative before it was created or last emptied. ``fault`` says why a record cannot be read;
it has no place then.
"""

PLACE: Final = ("epoch", "number", "pos", "sub_index", "row")
"""Columns by which changes are in the order of the log."""

Moment = datetime | Gtids | tuple[int | None, str, int] | None
"""A time; a set of GTIDs; epoch (None for the newest), file and position; None for the end."""


def parse_moment(option: str, text: str) -> Moment:
    """Read ``latest``, a time, how long ago, ``[EPOCH:]FILE:POSITION`` or a set of GTIDs."""
    if text == "latest":
        return None
    if place := _PLACE.fullmatch(text):
        return None if place[1] is None else int(place[1]), place[2], int(place[3])
    if not text.isdecimal() and not text.startswith(("offset:", "gtid:")):
        try:
            found = parse_bound(text)
        except ValueError:
            found = None
        if isinstance(found, datetime):
            return found
    return parse_gtids(option, text.removeprefix("gtid:"), "latest, a time, FILE:POSITION or ")


def parse_gtids(option: str, text: str, others: str = "") -> Gtids:
    """Read a set of GTIDs, of MySQL or MariaDB."""
    for kind in (GtidSet, MariadbGtidPosition):
        try:
            return kind.parse(text)
        except BinlogError:
            continue
    raise SettingsError(
        [f"{option} is {text!r}: expected {others}a set as of gtid_executed, or as of gtid_slave_pos"]
    )


def parse_tables(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Read names of tables, ``database.table``; backticks around a name that holds a dot."""
    return list(dict.fromkeys(map(_table, texts)))


def _table(text: str) -> tuple[str, str]:
    try:
        return parse_table_name(text)
    except ValueError as error:
        raise SettingsError([f"--table is {text!r}: {error}"]) from error


def parse_key(text: str) -> dict[str, str]:
    """Read the values of a key, ``id=5`` or ``a=1,b='x, y'``, by the names of its columns."""
    if re.fullmatch(f"{_KEY_PART}(?:,{_KEY_PART})*", text) is None:
        expected = "COLUMN=VALUE, of a key of several COLUMN=VALUE,…; a value with a comma in single quotes"
        raise SettingsError([f"--key is {text!r}: expected {expected}, as name='Smith, John'"])
    parts = re.findall(_KEY_PART, text)
    return {name: quoted[1:-1].replace("''", "'") if quoted else value for name, quoted, value in parts}


def plain_value(value: Any) -> str:
    """Write a value as text, bytes as ``0x…``."""
    return f"0x{value.hex().upper()}" if isinstance(value, bytes) else str(value)


def records_by(schemas: Mapping[int, Any]) -> Records:
    """Make what reads records by schemas that are at hand."""
    return Records(cast("SchemaStore", KnownSchemas(schemas)))


# -- the log ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PointInTime:
    """The last position of a log at a point in time, and the transaction or statement there."""

    place: SourcePosition
    last: str
    time_ms: int | None
    next: SourcePosition | None
    """Where the first transaction or statement is that follows."""
    latest: bool = False
    """Whether the moment is the end, wherever that is."""

    def __str__(self) -> str:
        committed = "" if self.time_ms is None else f", committed {moment(self.time_ms // 1000)} UTC"
        return f"{self.last} at {self.place}{committed}"

    def has_snapshot(self, place: SourcePosition) -> bool:
        """Return whether rows that a snapshot read at a place are those of the moment, or from before it."""
        return place.order() <= self.place.order() or self.next is None or place.order() <= self.next.order()


def place_column() -> Column:
    """Return the place of a transaction or of a change, without its rows."""
    return sf.struct("epoch", "number", "pos")


def place_of(place: SourcePosition) -> Column:
    """Return a place as :func:`place_column` does."""
    return order_of(place.order())


def order_of(order: tuple[int, int, int]) -> Column:
    """Return epoch, number of the log file and position as :func:`place_column` does."""
    epoch, number, position = order
    return sf.struct(
        sf.lit(epoch).alias("epoch"),
        sf.lit(number).cast("bigint").alias("number"),
        sf.lit(position).cast("bigint").alias("pos"),
    )


def has_gtid(gtids: Gtids, name: str | None) -> bool | None:
    """Return whether a set has a transaction, None where that has no GTID."""
    try:
        if isinstance(gtids, GtidSet):
            return None if name is None else gtids.contains(name)
        return None if name is None else gtids.contains(MariadbGtid.parse(name))
    except BinlogError:
        return None  # file:position, of a transaction without a GTID


def units(job: Job, spark: SparkSession, one: Input, gtids: Gtids | None = None) -> DataFrame:
    """Return where transactions end, and the DDL statements, as :data:`_UNIT_SCHEMA`."""
    return _units(job, spark, one, gtids).where("fault is null").drop(*FAULT_COLUMNS)


def _units(job: Job, spark: SparkSession, one: Input, gtids: Gtids | None) -> DataFrame:
    """Return the units, and the records that are none."""
    topics = Topics(one.source)
    schemas = {**one.schemas, **table_schemas(job, value_subject(topics.ddl))}

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = records_by(schemas)
        layout = arrow_schema(_UNIT_OR_FAULT)

        def line(*record: Any) -> Line | None:
            unit = _unit(records, record[-1], gtids)
            return None if unit is None else (*unit, *NO_FAULT)

        for batch in batches:
            yield read_lines(rows_of(batch), layout, line, lambda *record: (*_NO_UNIT, *record))

    found = scan(spark, job.kafka, one.part).select(*RECORD_COLUMNS)
    statements = resolve_slice(spark, job.kafka, topics.ddl, missing_is_empty=True)
    if statements.count:
        found = found.union(scan(spark, job.kafka, statements).select(*RECORD_COLUMNS))
    return found.mapInArrow(read, _UNIT_OR_FAULT)


_NO_UNIT: Final = (None,) * len(_UNIT_SCHEMA.split(", "))


def _unit(records: Records, value: bytes | None, gtids: Gtids | None) -> tuple[Any, ...] | None:
    """Read a line of :data:`_UNIT_SCHEMA`; None where a record ends no transaction."""
    if value is None:
        raise ValueError("it has no value")
    record = records.read(value)
    name = record["id"] if "status" in record else record["gtid"]
    if record.get("status") != "END" and record.get("kind") != "DDL":
        return None
    number = log_number(record["file"])[1]
    place = record["epoch"], number, record["pos"], record["file"], record["ts_ms"]
    named = [each["data_collection"] for each in record.get("data_collections") or ()]
    inside = None if gtids is None else has_gtid(gtids, name)
    return *place, name, inside, "\n".join(named)


def reach(job: Job, spark: SparkSession, one: Input, wanted: Moment) -> PointInTime:
    """Find the last position of the log that belongs to a moment; raises UserError if there is none."""
    found = reach_or_none(job, spark, one, wanted)
    if found is None and wanted is None:
        place = reader_place(job.settings.kafka, Topics(one.source, job.settings.input_source))
        return PointInTime(place, "the reader, without any transaction,", None, None, latest=True)
    if found is None:
        raise UserError(
            f"no transaction of {one.source} belongs to that moment: the log begins later",
            ExitCode.DATA,
        )
    return found


def reach_or_none(job: Job, spark: SparkSession, one: Input, wanted: Moment) -> PointInTime | None:
    """Find the last position of the log that belongs to a moment; None if the log begins later."""
    gtids = wanted if isinstance(wanted, GtidSet | MariadbGtidPosition) else None
    every = _units(job, spark, one, gtids)
    found = every.where("fault is null")
    place = place_column()
    belongs = sf.lit(True)
    if isinstance(wanted, datetime):
        belongs = sf.col("time_ms") <= int(wanted.timestamp() * 1000)
    elif isinstance(wanted, tuple):
        epoch, file, position = wanted
        if epoch is None:
            newest = found.agg(
                sf.coalesce(sf.max(sf.when(sf.col("file") == file, sf.col("epoch"))), sf.max("epoch"))
            ).first()
            epoch = 0 if newest is None else newest[0] or 0
        belongs = place < place_of(SourcePosition(epoch, file, position))
    elif gtids is not None:
        belongs = sf.col("inside")
    it_all = sf.struct(*(name.split()[0] for name in _UNIT_SCHEMA.split(", ")))
    good = sf.col("fault").isNull()
    belongs = belongs & good
    last = every.agg(
        sf.max_by(sf.when(belongs, it_all), sf.when(belongs, place)).alias("it"),
        sf.max(sf.when(good, place)).alias("end"),
        sf.count_if(~good).alias("faults"),
    ).first()
    if last is not None and last["faults"]:
        job.faults.take(job.folder, every)
    if last is None or last["it"] is None:
        return None
    it = last["it"]
    at = SourcePosition(it["epoch"], it["file"], it["pos"])
    here = place_of(at)
    if gtids is not None:
        out = found.where(~sf.col("inside") & (place < here))
        first = out.agg(sf.count("*").alias("n"), sf.min_by("id", place).alias("id")).first()
        if first is not None and first["n"]:
            raise UserError(
                f"the set leaves out {first['n']:,} transactions committed before its last one, "
                f"the first of them {first['id']}: {one.source} was never in that state",
                ExitCode.SETTINGS,
            )
    following = None
    if tuple(last["end"]) > at.order():
        row = found.where(place > here).agg(sf.min_by(sf.struct("epoch", "file", "pos"), place)).first()
        following = None if row is None else SourcePosition(*row[0])
    return PointInTime(
        at, it["id"] or f"a statement at {at}", it["time_ms"], following, latest=wanted is None
    )


def out_of_order(
    ends: DataFrame, option: str, wanted: Moment, last: PointInTime, consequence: str
) -> str | None:
    """Say which of the :func:`units` before a place were committed after the time that stands for it.

    None if there is none, or ``wanted`` is no time. ``consequence`` says what the job does with them.
    """
    if not isinstance(wanted, datetime):
        return None
    name = sf.concat_ws(" at ", "id", sf.concat_ws(":", "file", "pos"))
    later = ends.where(sf.col("time_ms") > int(wanted.timestamp() * 1000))
    found = later.where(place_column() < place_of(last.place)).agg(
        sf.count("*").alias("n"), sf.min_by(name, place_column()).alias("first")
    )
    (row,) = found.collect()
    if not row.n:
        return None
    return (
        f"times are out of order: transactions before {last.place} that are later than {option}: {row.n:,}, "
        f"the first of them {row.first}; they are {consequence}. "
        "Name a position or GTIDs instead of the time"
    )


def not_after(until: PointInTime) -> Column:
    """Return whether a change is not after a position; a snapshot's rows may lie between events."""
    snapshot = sf.lit(True) if until.next is None else place_column() <= place_of(until.next)
    return (place_column() <= place_of(until.place)) | (~sf.col("logged") & snapshot)


def without_later(
    job: Job, spark: SparkSession, one: Input, changes: DataFrame, until: PointInTime
) -> DataFrame:
    """Leave out the changes after a position, and those before it that were committed after it.

    The latter are of prepared XA transactions, which end after the place and not between it and the change:
    a server that was reset assigns the same GTIDs again.
    """
    changes = changes.where(not_after(until))
    if until.next is None:
        return changes
    place, end = place_column(), place_of(until.place)
    ends = units(job, spark, one).groupBy(sf.col("id").alias("ended"))
    later = ends.agg(sf.max(sf.when(place <= end, place)).alias("before"), sf.max(place).alias("last"))
    later = later.where(sf.col("last") > end)
    open_then = sf.col("before").isNull() | (sf.col("before") < place)
    of_it = (sf.col("id") == sf.col("ended")) & open_then & sf.col("logged")
    return changes.join(later.drop("last"), of_it, "left_anti")


def table_schemas(job: Job, *subjects: str) -> dict[int, Any]:
    """Return all schemas of subjects, by id."""
    assert isinstance(job.settings, TableJobSettings)
    (source,) = job.sources
    return schemas_of(job.settings, source, *subjects)


@dataclass(frozen=True, slots=True)
class Log:
    """What a source's topics say about its tables, other than rows, up to a moment."""

    source: str
    until: SourcePosition
    history: History
    server: Server
    selection: Selection
    snapshot: SnapshotState | None
    """The last snapshot."""
    unmerged: bool
    """Whether rows of snapshots wait for the row mapper."""

    @property
    def catalog(self) -> Catalog:
        """The definitions of tables."""
        return self.history.catalog

    @property
    def statements(self) -> Sequence[Statement]:
        """The DDL statements, in the order of the log."""
        return self.history.statements

    @classmethod
    def read(cls, job: Job, one: Input, until: SourcePosition) -> "Log":
        """Read the catalogue, statements, dead letters, the row mapper's state and that of the snapshot."""
        topics, settings = Topics(one.source, job.settings.input_source), job.settings
        assert isinstance(settings, TableJobSettings)
        if settings.rows.format != "avro":
            problem = (
                f"{job.name} reads row topics in Avro, and MILLRACE_ROWS_FORMAT is {settings.rows.format}"
            )
            raise SettingsError([problem])
        catalog = Catalog(kept=None)
        read_each(job, topics.catalog, lambda value: catalog.add(CatalogEntry.from_bytes(value)))
        read_each(job, topics.schemas, lambda value: catalog.restore(SchemaVersion.from_bytes(value)))
        states = read_each(job, topics.state, RowMapperState.from_bytes, key="rowmapper")
        state = states[-1] if states else None
        server = Server.parse(None if state is None else state.server_version)
        records = records_by(table_schemas(job, value_subject(topics.ddl)))
        dead_letters = DeadLettersByTable.read(settings.kafka, topics, state).by_table()
        history = History((), catalog, dead_letters=dead_letters, until=until.order())

        def read(value: bytes) -> None:
            record = records.read(value)
            if SourcePosition(record["epoch"], record["file"], record["pos"]).order() <= until.order():
                history.take(record, server)

        read_each(job, topics.ddl, read)
        history.statements.sort(key=lambda statement: statement.place.order())
        snapshots = read_each(job, Topics(topics.origin).state, SnapshotState.from_bytes, key="snapshot")
        merged = read_each(job, topics.state, SnapshotMerged.from_bytes, key=MERGED_KEY.decode())
        unmerged = False
        if snapshots and resolve_slice(job.spark, job.kafka, topics.snapshot, missing_is_empty=True).count:
            found = last_records(settings.kafka, {topics.snapshot: 1}, undecided=False)
            unmerged = any(not merged or merged[-1].offset <= last.offset for last in found.values())
        return cls(
            one.source, until, history, server, Selection(settings), snapshots[-1] if snapshots else None,
            unmerged,
        )  # fmt: skip

    def snapshot_of(self, table: "Table") -> SnapshotTable | None:
        """Return how far the last snapshot has read a table, under any of its names; None if it does not."""
        read = () if self.snapshot is None else self.snapshot.tables
        by_name = {(each.database, each.table): each for each in read}
        names = (table.database, table.name), *(era.table for era in reversed(table.eras.eras))
        return next((by_name[name] for name in names if name in by_name), None)

    def table(self, database: str, name: str) -> "Table":
        """Return a table as of the moment; raises UserError if it did not exist, or is unknown."""
        found = self.catalog.find(database, name, self.until)
        shown = f"{database}.{name}"
        state = None if found is None else found.definition
        if found is None or state is MISSING:
            raise UserError(
                f"{shown} did not exist at {self.until}, according to {self.source}: check the name, and "
                "that the reader has read its definition (SELECT on the table)",
                ExitCode.SETTINGS,
            )
        if isinstance(state, Unknown) or not isinstance(state, TableDefinition):
            reason = state.reason if isinstance(state, Unknown) else "nothing is known"
            raise UserError(
                f"the definition of {shown} at {self.until} is not known: {reason}", ExitCode.DATA
            )
        hidden = self.selection.hidden(database, name, [column.name for column in state.columns])
        # Those of a system-versioned table's period follow from the rows.
        shown_columns = [
            each for each in state.columns if not (each.hidden and each.generated) and each.name not in hidden
        ]
        eras = self.history.of_table(database, name, [each.name for each in shown_columns])
        shown_columns = [self._with_collation(each, state) for each in shown_columns]
        columns = [self._column(each, eras) for each in shown_columns]
        return Table(database, name, state, shown_columns, columns, eras, hidden)

    def name_now(self, database: str, name: str, place: tuple[int, int, int]) -> tuple[str, str]:
        """Return the current name of a table that had another at a position."""
        here = database, name
        for statement in self.statements:
            parsed = statement.parsed
            if statement.place.order() < place:
                continue
            pairs: Sequence[tuple[ddl.Name, ddl.Name]] = ()
            if isinstance(parsed, ddl.RenameTables):
                pairs = parsed.pairs
            elif isinstance(parsed, ddl.AlterTable) and parsed.rename is not None:
                pairs = [(parsed.table, parsed.rename)]
            for old, new in pairs:
                if statement.named(old) == here:
                    here = statement.named(new)
        return here

    def _with_collation(self, column: ColumnDefinition, table: TableDefinition) -> ColumnDefinition:
        """Add the collation of the table or the database to a column that a statement defined without one."""
        if column.collation is not None or column.charset is None:
            return column
        database = self.catalog.find(table.database, "", self.until)
        of_database = None if database is None else database.definition
        for each in (table, of_database):
            collation = each.collation if isinstance(each, TableDefinition) else None
            if collation is not None and charset_of(collation) in (None, column.charset):
                return replace(column, collation=collation)
        return column

    def _column(self, definition: ColumnDefinition, eras: TableHistory) -> "KnownColumn":
        sql = SqlType.parse(definition.column_type)
        column = verified.Column(
            definition.name,
            sql.name,
            sql.argument(0) if sql.name in ("time", "datetime", "timestamp") else 0,
            definition.key_position is not None,
        )
        return KnownColumn(column, self._added(definition, column, eras))

    def _added(self, definition: ColumnDefinition, column: verified.Column, eras: TableHistory) -> Any:
        """Return what rows that were there have in a column since it was added."""
        names = [era.columns[definition.name].name for era in eras.eras]
        born = next((at for at, name in enumerate(names) if name is not None), 0)
        if not born:
            return None
        start, name = eras.eras[born].start, names[born]
        for statement in self.statements:
            parsed = statement.parsed
            if statement.place.order() != start or not isinstance(parsed, ddl.AlterTable):
                continue
            for each in parsed.operations:
                if isinstance(each, ddl.AddColumn) and each.column.name == name:
                    return added_value(column, definition, each.column)
        return UnknownValue("the statement that added the column is not in the log")


@dataclass(frozen=True, slots=True)
class KnownColumn:
    """A column, and what rows that were there when it was added have in it."""

    column: verified.Column
    added: Any


@dataclass(frozen=True, slots=True)
class Table:
    """A table as of a moment, and how it came to be so; without ``hidden`` columns, which its topic lacks."""

    database: str
    name: str
    definition: TableDefinition
    definitions: Sequence[ColumnDefinition]
    known: Sequence[KnownColumn]
    eras: TableHistory
    hidden: Sequence[str]

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def columns(self) -> list[verified.Column]:
        """Its columns."""
        return [each.column for each in self.known]

    @property
    def added(self) -> dict[str, Any]:
        """What rows that were there when a column was added have in it, by its name."""
        return {each.column.name: each.added for each in self.known}

    def is_row(self, values: Mapping[str, Any], key: Mapping[str, str]) -> bool | None:
        """Return whether values are those of ``--key`` as columns compare; None where that is not certain."""
        found = {
            same_value(column, values[column.name], key[column.name], plain_value(values[column.name]))
            for column in self.definitions
            if column.name in values and column.name in key
        }
        return False if False in found or not found else None if None in found else True

    def compares(self, key: Mapping[str, str]) -> str | None:
        """Say for which columns of ``--key`` it is not certain what is equal; None if for none."""
        doubtful = [
            f"{column.name} ({column.collation or 'its collation is not known'})"
            for column in self.definitions
            if column.name in key and column.charset and not is_certain(column.collation, key[column.name])
        ]
        return ", ".join(doubtful) or None

    def check_key(self, key: Mapping[str, str]) -> None:
        """Raise SettingsError where ``--key`` does not name exactly the columns of the primary key."""
        names = self.definition.key
        if unknown := sorted(key.keys() - set(names)):
            of = f"is {', '.join(names)}" if names else "does not exist"
            raise SettingsError([f"--key names {', '.join(unknown)}; the primary key of {self} {of}"])
        if missing := [name for name in names if name not in key]:
            raise SettingsError([f"--key lacks {', '.join(missing)} of the primary key of {self}"])

    def topics(self, log: Log, *, before: bool = False) -> dict[str, set[int]]:
        """Return the topics that have its records, each with the eras for which it has them.

        With ``before`` also the records from before it was created or last emptied.
        """

        def topic_of(database: str, table: str) -> str:
            return Topics(log.source).table(*log.selection.topic_of(database, table))

        return self.eras.topics(topic_of, before=before)


# -- changes ------------------------------------------------------------------------------------------


def changes_of(
    job: Job, spark: SparkSession, topics: Mapping[str, Iterable[int]], eras: TableHistory
) -> tuple[DataFrame | None, dict[int, Any]]:
    """Return the records of some eras of a table in its row topics, and the schemas to read them by."""
    versions = topic_versions(job, topics)
    parts = [(topic, wanted) for first, wanted in topics.items() for topic in versions[first]]
    subjects = [subject(topic) for topic, _ in parts for subject in (key_subject, value_subject)]
    schemas = table_schemas(job, *subjects)
    frames = []
    for topic, wanted in parts:
        part = resolve_slice(spark, job.kafka, topic)
        if part.count:
            job.offsets += part.count
            records = scan(spark, job.kafka, part).where("value is not null")
            read = _reader(schemas, eras, frozenset(wanted))
            found = records.select(*RECORD_COLUMNS).mapInArrow(read, CHANGE_SCHEMA)
            frames.append(found)
    if not frames:
        return None, schemas
    return reduce(DataFrame.union, frames), schemas


def _reader(
    schemas: Mapping[int, Any], eras: TableHistory, wanted: frozenset[int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = records_by(schemas)
        layout = arrow_schema(CHANGE_SCHEMA)

        def line(*record: Any) -> Line | None:
            *place, key, value = record
            if key is not None:
                records.read(key)
            found = _line(records.read(value), eras)
            return (*place, *found, key, value, None) if found[-1] in wanted else None

        def faulty(*record: Any) -> Line:
            *place, key, value, reason = record
            return *place, *(None,) * 11, 0, key, value, reason

        for batch in batches:
            yield read_lines(rows_of(batch), layout, line, faulty)

    return read


def _line(envelope: Mapping[str, Any], eras: TableHistory) -> tuple[Any, ...]:
    source, transaction = envelope["source"], envelope["transaction"]
    epoch, file, position = source["epoch"], source["file"], source["pos"]
    logged = source.get("snapshot") in (None, "false")
    era = eras.era(epoch, file, position)
    return (
        epoch,
        log_number(file)[1],
        position,
        source["sub_index"],
        source["row"],
        file,
        transaction["id"] if transaction else None,
        source["gtid"] if logged else None,
        source["ts_ms"],
        envelope["op"],
        logged,
        era,
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Of changes: how many have a key, how many have none, and all their bytes.

    ``keys`` are the ids of the schemas of their keys, ``snapshot`` the last place of a row of a snapshot, and
    ``snapshot_began`` the first of the last snapshot.
    """

    keyed: int
    keyless: int
    bytes: int
    keys: tuple[int, ...]
    snapshot: SourcePosition | None
    snapshot_began: tuple[int, int, int] | None = None
    faults: int = 0


def counts_of(changes: DataFrame) -> Counts:
    """Count changes."""
    # The id of a snapshot ends with the time when it began.
    last_snapshot_first = -sf.substring_index("id", "-", -1).try_cast("bigint")
    key_schema = sf.conv(sf.hex(sf.expr("substring(key, 2, 4)")), 16, 10).cast("int")
    row = changes.agg(
        sf.count_if(sf.expr("key is not null and fault is null")).alias("keyed"),
        sf.count_if(sf.expr("key is null and fault is null")).alias("keyless"),
        sf.count_if(sf.expr("fault is not null")).alias("faults"),
        sf.max_by(
            sf.when(sf.expr("not logged"), sf.struct("epoch", "file", "pos")),
            sf.when(sf.expr("not logged"), place_column()),
        ).alias("snapshot"),
        sf.min(sf.when(sf.expr("not logged"), sf.struct(last_snapshot_first, *PLACE[:3]))).alias("began"),
        sf.coalesce(sf.sum(sf.length("value")), sf.lit(0)).alias("bytes"),
        sf.collect_set(sf.when(sf.col("fault").isNull(), key_schema)).alias("keys"),
    ).first()
    assert row is not None
    snapshot = None if row.snapshot is None else SourcePosition(*row.snapshot)
    began = None if row.began is None else tuple(row.began)[1:]
    return Counts(row.keyed, row.keyless, row.bytes, tuple(sorted(row["keys"])), snapshot, began, row.faults)


def has_one_key(schemas: Mapping[int, Any], counts: Counts) -> bool:
    """Return whether a row's key has the same bytes wherever it comes, after the id of its schema."""
    layouts = {
        json.dumps([(part["name"], part["type"]) for part in schemas[number]["fields"]], sort_keys=True)
        for number in counts.keys
        if number in schemas
    }
    return not counts.keyless and len(layouts) <= 1

"""SQL that undoes changes of tables, the newest first: those of chosen transactions, times or keys.

    millrace job flashback --source shop --after 2026-01-31T10:00 --table shop.orders
    millrace job flashback --source shop --gtids 3e11fa47-71ca-11e1-9e33-c80aa9429562:17-19 --dry-run

The statements fit the tables as they are now: the effects of later DDL, as far as the log shows them, are
applied to the values (:mod:`millrace.verify.history`). A value or a row that cannot be restored is reported,
never guessed. A change of a row that a transaction which is not undone changed again is left out.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import click
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from millrace.binlog.columns.spatial import GEOMETRY_TYPES
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.errors import BinlogError
from millrace.binlog.gtid_set import GtidSet, MariadbGtid
from millrace.binlog.names import quoted_name
from millrace.binlog.table import ColumnDefinition
from millrace.binlog_command.row_printer import comment_text, sql_string
from millrace.contract import escape_name
from millrace.ddl import MISSING
from millrace.ddl import statements as ddl
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.spark.archive import file_system
from millrace.verify.conversions import UnknownValue
from millrace.verify.history import BEGINNING, END, Order, Statement
from millrace.verify.tables import Folder
from millrace.verify.tables import Row as Values
from spark_jobs.common.events import arrow_schema
from spark_jobs.common.job import Input, Job, job_command, moment, persisted
from spark_jobs.common.lines import Line, batch_of, reason_of
from spark_jobs.common.report import Code, Report
from spark_jobs.common.tables import (
    PLACE,
    Log,
    PointInTime,
    Table,
    changes_of,
    has_gtid,
    order_of,
    out_of_order,
    parse_key,
    parse_moment,
    parse_tables,
    place_column,
    place_of,
    plain_value,
    reach,
    reach_or_none,
    records_by,
    units,
)

_HEAD: Final = b"""\
-- What follows undoes changes, the newest first. It wants the tables as they were when it was made:
-- %b
SET NAMES utf8mb4;
SET SESSION time_zone = '+00:00', sql_safe_updates = 0, autocommit = 1, \
sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';
"""
_UNDO_SCHEMA: Final = (
    "epoch int, number bigint, pos bigint, sub_index bigint, row int, file string, id string, "
    "time_ms bigint, op string, chosen boolean, table string, key string, statement string, reason string, "
    "lost string"
)
"""The undoing of a change: its ``statement``, or the ``reason`` why there is none; ``key`` tells the row.

``lost`` are the columns whose values cannot return, since a statement dropped them, as JSON.
"""
_CHANGED_AGAIN: Final = "the row was changed again by %s, which is not undone"
_OTHER_SPELLING: Final = "whether --key means this row is not computed here: name it as the row has it"
_LISTED: Final = 100
_BYTES: Final = {
    *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"),
    *GEOMETRY_TYPES,
}
_NUMBERS: Final = {"tinyint", "smallint", "mediumint", "int", "bigint", "year", "decimal"}
_MOVING: Final = {"timestamp", "datetime"}
"""Types whose columns the server may set by itself on an update (ON UPDATE CURRENT_TIMESTAMP)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a moment is in the log: the place after its ``last`` transaction, None before the first one."""

    option: str
    text: str
    last: PointInTime | None
    doubt: str | None = None
    """That transactions on one side of it belong on the other by their times."""

    def __str__(self) -> str:
        where = "before the first transaction of the log" if self.last is None else f"after {self.last}"
        return f"{self.option} {self.text} is {where}"

    @property
    def lines(self) -> list[str]:
        """What it is, and the doubt."""
        return [str(self)] if self.doubt is None else [str(self), self.doubt]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which changes are undone: those that meet all given conditions.

    They are after a place and up to one if their transaction was committed there.
    """

    gtids: GtidSet | None = None
    transactions: frozenset[str] | None = None
    after: tuple[int, int, int] | None = None
    until: tuple[int, int, int] | None = None
    keys: Sequence[Mapping[str, str]] = ()
    bounds: Sequence[Bound] = ()

    @property
    def extent(self) -> tuple[Order, Order]:
        """Between which transactions the moments are; those whose rows all wait are not in the topic."""
        until = next((bound.last for bound in self.bounds if bound.option == "--until"), None)
        following = None if until is None else until.next
        return self.after or BEGINNING, END if following is None else following.order()

    def __contains__(self, change: tuple[tuple[int, ...], str | None]) -> bool:
        place, transaction = change
        return (
            (self.gtids is None or bool(has_gtid(self.gtids, transaction)))
            and (self.transactions is None or transaction in self.transactions)
            and (self.after is None or place > self.after)
            and (self.until is None or place <= self.until)
        )


class Unreturnable(Exception):  # noqa: N818 - no error
    """A change cannot be undone, and why."""


def literal(column: ColumnDefinition, value: Any, *, mariadb: bool) -> str:
    """Write a value as SQL that gives it exactly; raises :class:`Unreturnable` where there is none."""
    kind = SqlType.parse(column.column_type).name
    if isinstance(value, UnknownValue):
        raise Unreturnable(f"column {column.name}: {value.reason}")
    if value is None:
        return "NULL"
    if kind == "bit":
        return str(int.from_bytes(value))
    if isinstance(value, bytes):
        if kind not in _BYTES:
            raise Unreturnable(f"column {column.name}: its bytes are invalid in its character set")
        return f"0x{value.hex().upper()}" if value else "''"
    if kind in _NUMBERS:
        return format(value, "f") if isinstance(value, Decimal) else str(int(value))
    if isinstance(value, float):
        return repr(value) if "e" in repr(value) else f"{value!r}e0"
    text = sql_string(str(value).encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    return f"CAST({text} AS JSON)" if kind == "json" and not mariadb else text


def equals(column: ColumnDefinition, value: Any, *, mariadb: bool, exactly: bool) -> str:
    """Write a condition on a column, NULL-safe; texts ``exactly`` to the byte, whatever the collation."""
    name, text = quoted_name(column.name), literal(column, value, mariadb=mariadb)
    if exactly and column.charset is not None and value is not None:
        data = str(value).encode("utf-8", "surrogateescape").hex()
        return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY) <=> {f'0x{data}' if data else repr('')}"
    return f"{name} <=> {text}"


class Undoing:
    """Makes statements that undo the changes of a table, as it is now."""

    def __init__(self, table: Table, *, mariadb: bool) -> None:
        self._table = table
        self._name = quoted_name(table.database, table.name)
        self._mariadb = mariadb
        self._folder = Folder(table.columns, lambda column: table.added[column.name], table.eras)
        self._key = [name for name in table.definition.key if name not in table.hidden]
        self._eras = [{name: origin.name for name, origin in era.columns.items()} for era in table.eras.eras]

    def values(self, envelope: Mapping[str, Any], image: str, era: int) -> dict[str, Any]:
        """Return an image by the names of the columns that the table has now and had then."""
        names = self._eras[era]
        row = self._row(envelope, image, era)
        return {name: value for name, value in row.items() if names[name] is not None}

    def _row(self, envelope: Mapping[str, Any], image: str, era: int) -> dict[str, Any]:
        """Return an image by all columns that the table has now, with what ALTER made of them."""
        row: Values = self._folder.row(envelope, image, era)
        return {column.name: value for column, value in zip(self._table.definitions, row, strict=True)}

    def key(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the values of the primary key; None if there is none, or not all are known."""
        key = {name: values.get(name, UnknownValue("")) for name in self._key}
        return None if not key or any(isinstance(each, UnknownValue) for each in key.values()) else key

    def lost(self, envelope: Mapping[str, Any], era: int) -> list[str]:
        """Name the columns that were dropped since and of which the change undone had values."""
        known = {escape_name(name) for name in self._eras[era].values() if name is not None}
        before, after = envelope["before"], envelope["after"]
        if before is None:
            return []
        gone = (name for name in before if name not in known)
        return [name for name in gone if before[name] != (None if after is None else after[name])]

    def statement(self, envelope: Mapping[str, Any], era: int) -> str:
        """Write what undoes a change; raises :class:`Unreturnable`."""
        if era < 0:
            raise Unreturnable("the table was emptied, or created, after the change")
        before, after = (
            None if envelope[image] is None else self.values(envelope, image, era)
            for image in ("before", "after")
        )
        if before is None and after is not None:
            return f"DELETE FROM {self._name} WHERE {self._where(after)} LIMIT 1"  # noqa: S608 - quoted
        if before is not None and after is None:
            row = self._row(envelope, "before", era)
            added = {
                name for name, value in row.items() if name not in before and isinstance(value, UnknownValue)
            }
            columns = [column for column in self._columns if column.name not in added]
            names = ", ".join(quoted_name(column.name) for column in columns)
            values = ", ".join(self._stored(column, row[column.name]) for column in columns)
            return f"INSERT INTO {self._name} ({names}) VALUES ({values})"  # noqa: S608 - quoted
        if before is None or after is None:
            raise Unreturnable("the log does not have the rows that TRUNCATE removed")
        return self._update(before, after, set(envelope.get("after_missing") or ()), era)

    @property
    def _columns(self) -> list[ColumnDefinition]:
        """Those that a statement may set; generated ones follow from them."""
        return [column for column in self._table.definitions if not column.generated]

    def _update(
        self, before: Mapping[str, Any], after: Mapping[str, Any], unchanged: set[str], era: int
    ) -> str:
        names = self._eras[era]
        steps = []
        for column in self._columns:
            name = column.name
            if name not in before or names[name] in unchanged:
                continue
            moves = SqlType.parse(column.column_type).name in _MOVING and not isinstance(
                before[name], UnknownValue
            )
            if before[name] != after[name] or moves:
                steps.append(f"{quoted_name(name)} = {self._stored(column, before[name])}")
        if not steps:
            raise Unreturnable("it changed none of the columns that the table has now")
        where = self._where(after)
        return f"UPDATE {self._name} SET {', '.join(steps)} WHERE {where} LIMIT 1"  # noqa: S608 - quoted

    def _stored(self, column: ColumnDefinition, value: Any) -> str:
        """Write a value to be stored; raises :class:`Unreturnable` where a strict server refuses it."""
        is_enum = column.members is not None and SqlType.parse(column.column_type).name == "enum"
        if is_enum and isinstance(value, str) and value not in (column.members or ()):
            reason = "it is no member of the ENUM (index 0), which a strict server refuses"
            raise Unreturnable(f"column {column.name}: {reason}")
        return literal(column, value, mariadb=self._mariadb)

    def _where(self, values: Mapping[str, Any]) -> str:
        key = self.key(values)
        columns, wanted = (self._columns, values) if key is None else (self._table.definitions, key)
        conditions = [
            equals(column, wanted[column.name], mariadb=self._mariadb, exactly=key is None)
            for column in columns
            if column.name in wanted
        ]
        if not conditions:
            raise Unreturnable("the table has none of the row's columns any more")
        return " AND ".join(conditions)


def _undoer(
    table: Table, chosen: Chosen, schemas: Mapping[int, Any], *, mariadb: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make what executors do with the changes of a table."""

    def undo(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records, undoing = records_by(schemas), Undoing(table, mariadb=mariadb)
        layout = arrow_schema(_UNDO_SCHEMA)
        for batch in batches:
            lines = [
                _faulty(change, table)
                if change["fault"] is not None
                else _line(change, table, undoing, chosen, records.read(change["value"]))
                for change in batch.to_pylist()
                if change["logged"] is not False
            ]
            yield batch_of(lines, layout)

    return undo


def _line(
    change: Mapping[str, Any], table: Table, undoing: Undoing, chosen: Chosen, envelope: Mapping[str, Any]
) -> tuple[Any, ...]:
    era, wanted = change["era"], (tuple(change["committed"].values()), change["id"]) in chosen
    key = statement = reason = None
    lost: list[str] = []
    try:
        image = "before" if envelope["after"] is None else "after"
        known = era >= 0 and envelope[image] is not None
        found = undoing.key(undoing.values(envelope, image, era)) if known else None
        key = None if found is None else json.dumps(found, default=plain_value, ensure_ascii=False)
        if chosen.keys and wanted:
            same = {found is not None and table.is_row(found, each) for each in chosen.keys}
            wanted = same != {False}
            reason = _OTHER_SPELLING if wanted and True not in same else None
        if wanted and reason is None:
            lost = undoing.lost(envelope, era) if era >= 0 else []
            statement = undoing.statement(envelope, era)
    except Unreturnable as unreturnable:
        reason = str(unreturnable)
    except UserError as error:
        reason = "; ".join(error.lines)
    except Exception as error:  # noqa: BLE001 - whatever a record holds, all others are undone
        reason = reason_of(error)
    return (
        *(change[name] for name in (*PLACE, "file", "id", "time_ms", "op")),
        wanted, str(table), key, statement, reason, json.dumps(lost) if lost else None,
    )  # fmt: skip


def _faulty(change: Mapping[str, Any], table: Table) -> tuple[Any, ...]:
    """Report a record that cannot be read: its change cannot be undone."""
    place = f"offset {change['offset']} of partition {change['partition']}"
    reason = f"a record of the row topic cannot be read: {place}: {change['fault']}"
    return *(None,) * 9, True, str(table), None, None, reason, None


def _as_option(key: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in key.items())


# -- on the driver ------------------------------------------------------------------------------------


def flashback(
    job: Job, spark: SparkSession, names: Sequence[tuple[str, str]], chosen: Chosen
) -> "FlashbackResult":
    """Write what undoes the chosen changes: as a table, for the summary to be made of it."""
    (one,) = job.inputs
    with job.step("the log read"):
        until = reach(job, spark, one, None)
        log = Log.read(job, one, until.place)
        by_transaction = chosen.gtids is not None or chosen.transactions is not None
        ends = None if names and not by_transaction else persisted(_ends(job, spark, one, chosen))
        unmatched = [] if ends is None else list(_unmatched(ends, chosen, one.source))
        between = chosen.extent
        if by_transaction and ends is not None:
            between = _extent(units(job, spark, one), ends)
        tables, gone = _tables(log, ends, names, chosen, between)
    outcome = FlashbackResult(until, gone, unmatched, chosen.bounds)
    changed, frames = [], []
    commits = _commits(job, spark, one, chosen)
    for table in tables:
        found = _undone(job, spark, log, table, chosen, commits)
        if found is not None:
            changed.append(found[0])
            frames.append(found[1])
    for table in tables:
        starts = set(table.eras.starts)
        outcome.statements += [
            (str(table), str(statement.place), statement.text)
            for statement in log.statements
            if statement.place.order() in starts
        ]
        outcome.notes += [
            f"{table}: {each}" for each in log.history.missing(table.eras, between[0], before=True)
        ]
    if frames:
        with job.step("undoing"):
            every = reduce(DataFrame.union, frames)
            job.write("undo", _settled(every, by_key=bool(chosen.keys)))
        outcome.read(spark.read.parquet(f"{job.folder}/undo"), tables, chosen)
        if outcome.faults:
            for changes in changed:
                job.faults.take(job.folder, changes)
    return outcome


def _ends(job: Job, spark: SparkSession, one: Input, chosen: Chosen) -> DataFrame:
    """Return where the chosen transactions end."""
    ends = units(job, spark, one, chosen.gtids)
    if chosen.gtids is not None:
        ends = ends.where("inside")
    if chosen.transactions is not None:
        ends = ends.where(sf.col("id").isin(*chosen.transactions))
    if chosen.after is not None:
        ends = ends.where(place_column() > order_of(chosen.after))
    if chosen.until is not None:
        ends = ends.where(place_column() <= order_of(chosen.until))
    return ends


def _extent(every: DataFrame, ends: DataFrame) -> tuple[Order, Order]:
    """Return between which others some transactions are; those whose rows all wait are not in the topic."""
    place = place_column()
    found = ends.agg(sf.min(place).alias("first"), sf.max(place).alias("last")).first()
    if found is None or found["first"] is None:
        return BEGINNING, END
    earlier, later = place < order_of(tuple(found["first"])), place > order_of(tuple(found["last"]))
    row = every.agg(sf.max(sf.when(earlier, place)), sf.min(sf.when(later, place))).first()
    before, after = (None, None) if row is None else row
    return tuple(before or BEGINNING), tuple(after or END)


def _unmatched(ends: DataFrame, chosen: Chosen, source: str) -> Iterator[str]:
    """Say which of the transactions that were asked for are not there."""
    between = " between the moments" if chosen.after or chosen.until else ""
    if chosen.gtids is not None and ends.isEmpty():
        yield f"{source} has no transaction of --gtids{between}"
    if chosen.transactions is not None:
        found = {row.id for row in ends.select("id").distinct().collect()}
        for name in sorted(chosen.transactions - found):
            yield f"{source} has no transaction {name}{between}"


def _tables(
    log: Log,
    ends: DataFrame | None,
    names: Sequence[tuple[str, str]],
    chosen: Chosen,
    between: tuple[Order, Order] = (BEGINNING, END),
) -> tuple[list[Table], list[str]]:
    """Return the tables by their current names, and say of others why none of their rows can return."""
    found: list[tuple[str, str]] = list(names)
    spelled = {(log.catalog.spelled(database), log.catalog.spelled(name)) for database, name in names}
    drops: dict[tuple[str, str], str] = {}
    gone = []
    # A key alone is of the table as it is now, whatever had its name before.
    of_rows = chosen.keys and chosen == Chosen(keys=chosen.keys)
    for statement in log.statements:
        for each in _dropped(log, statement):
            when = f"{moment(statement.time_ms // 1000)} UTC ({statement.place})"
            drops[each] = f"{'.'.join(each)} was dropped at {when}: none of the rows that it had can return"
            selected = (statement.place.order(), statement.gtid) in chosen and (not names or each in spelled)
            if selected and not of_rows:
                gone.append(drops[each])
    if not names and ends is not None:
        changed = ends.select(sf.explode(sf.split("tables", "\n")).alias("name"), "*").where("name <> ''")
        for row in changed.groupBy("name").agg(sf.min(place_column()).alias("at")).orderBy("name").collect():
            database, _, name = row.name.partition(".")
            found.append(log.name_now(database, name, tuple(row["at"])))
        found += [log.name_now(*table, place) for table, place in log.history.waiting(*between).items()]
    tables = []
    for database, name in dict.fromkeys(found):
        try:
            table = log.table(database, name)
        except UserError as error:
            drop = drops.get((log.catalog.spelled(database), log.catalog.spelled(name)))
            if names and drop is None:
                raise
            gone.append(drop or "; ".join(error.lines))
            continue
        if table.hidden:
            problem = f"MILLRACE_COLUMNS_… hides columns of {table}: {', '.join(table.hidden)}"
            raise SettingsError([f"{problem}; changes that are not in the row topic cannot be undone"])
        for key in chosen.keys:
            table.check_key(key)
        tables.append(table)
    return tables, list(dict.fromkeys(gone))


def _dropped(log: Log, statement: Statement) -> list[tuple[str, str]]:
    """Return the tables that a statement dropped."""
    match statement.parsed:
        case ddl.DropTables(tables=names):
            named = [statement.named(name) for name in names]
            found = [(table, log.catalog.find(*table, statement.place, before=True)) for table in named]
            return [
                table
                for table, was in found
                if was is not None and not was.later and was.definition is not MISSING
            ]
        case ddl.DropDatabase(database=name):
            database = statement.session.spelled(name)
            return [(database, table) for table in log.catalog.tables(database, statement.place)]
    return []


def _commits(job: Job, spark: SparkSession, one: Input, chosen: Chosen) -> DataFrame | None:
    """Return where transactions ended, by their names, which a server that was reset gives again.

    None where no moment is chosen.
    """
    if chosen.after is None and chosen.until is None:
        return None
    ends = units(job, spark, one).groupBy(sf.col("id").alias("ended"))
    return persisted(ends.agg(sf.collect_set(place_column()).alias("ends")))


def _with_commit(changes: DataFrame, commits: DataFrame | None) -> DataFrame:
    """Add where changes were ``committed``: after their own place, those of XA transactions far after it."""
    place = place_column()
    if commits is None:
        return changes.withColumn("committed", place)

    def is_own(end: Column) -> Column:
        return (end >= place) & (sf.col("gtid").isNotNull() | (end["epoch"] == sf.col("epoch")))

    joined = changes.join(commits, changes["id"] == commits["ended"], "left")
    committed = sf.coalesce(sf.array_min(sf.filter("ends", is_own)), place)
    return joined.withColumn("committed", committed).drop("ended", "ends")


def _undone(  # noqa: PLR0917 - what is undone, of what
    job: Job, spark: SparkSession, log: Log, table: Table, chosen: Chosen, commits: DataFrame | None
) -> tuple[DataFrame, DataFrame] | None:
    """Return the changes of a table, and their undoing."""
    changes, schemas = changes_of(job, spark, table.topics(log, before=True), table.eras)
    if changes is None:
        return None
    changes = changes.where(sf.col("fault").isNotNull() | (place_column() <= place_of(log.until)))
    undo = _undoer(table, chosen, schemas, mariadb=log.server.mariadb)
    return changes, _with_commit(changes, commits).mapInArrow(undo, _UNDO_SCHEMA)


def _settled(undone: DataFrame, *, by_key: bool) -> DataFrame:
    """Leave out what is not chosen, and withhold what would undo a part of what happened to a row.

    What is not chosen ``by_key`` may be half of an update of the key of which the other is chosen. One
    executor settles the changes of a table whose keys were updated.
    """
    others = undone.where("not chosen and key is not null")
    wanted = undone.where("chosen or op <> 'u'") if by_key else undone.where("chosen")
    settled = persisted(_without_changed_again(wanted, others))
    events = (
        settled.where("op <> 'u'").groupBy("table", *PLACE[:-1]).agg(sf.count_distinct("op").alias("ops"))
    )
    tables = [row.table for row in events.where("ops > 1").select("table").distinct().collect()]
    if tables:
        moved = sf.col("table").isin(tables)
        newest_first = (sf.desc(name) for name in PLACE)
        rows = settled.where(moved).repartition("table").sortWithinPartitions("table", *newest_first)
        settled = settled.where(~moved).unionByName(rows.mapInArrow(_whole_keys, _UNDO_SCHEMA))
    return settled.where("chosen")


def _without_changed_again(undone: DataFrame, others: DataFrame) -> DataFrame:
    """Undo no change of a row that one of the ``others``, which are not undone, has changed later."""
    place = sf.struct(*PLACE)
    last = others.groupBy("table", "key").agg(sf.max(place).alias("last"), sf.max_by("id", place).alias("by"))
    joined = undone.join(last, ["table", "key"], "left")
    again = sf.coalesce(sf.col("last") > place, sf.lit(False)) & sf.col("statement").isNotNull()
    why = sf.format_string(_CHANGED_AGAIN, "by")
    return joined.withColumns(
        {
            "reason": sf.when(again, why).otherwise(sf.col("reason")),
            "statement": sf.when(~again, sf.col("statement")),
            "lost": sf.when(~again, sf.col("lost")),
        }
    ).drop("last", "by")


def _whole_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Undo both halves of an update of the key, or neither, and then nothing of these rows before it.

    The changes of a table come together, the newest first. The halves are a delete and, as the next row of
    its event, an insert: no other event has both.
    """
    layout = arrow_schema(_UNDO_SCHEMA)
    withheld: dict[tuple[str, str], str] = {}
    """Of rows of which an update of the key is withheld: the last transaction with one."""
    held: list[dict[str, Any]] = []
    """An insert, of which the next change may be the other half."""

    def settle(*changes: dict[str, Any]) -> Iterator[Line]:
        for change in changes:
            if (by := withheld.get((change["table"], change["key"]))) is not None:
                _withhold(change, _CHANGED_AGAIN % by)
        kept = [change for change in changes if change["statement"] is not None]
        if 0 < len(kept) < len(changes):
            (half,), (other,) = kept, [change for change in changes if change["statement"] is None]
            why = other["reason"] or "--key does not name it"
            _withhold(half, f"the key was updated, and its other row is not undone: {why}")
            if half["key"] is not None:
                withheld.setdefault((half["table"], half["key"]), half["id"])
        for change in changes:
            yield tuple(change[name] for name in layout.names)

    for batch in batches:
        lines: list[Line] = []
        for change in batch.to_pylist():
            if held and not _is_update(change, *held):
                lines += settle(*held)
                held = []
            held.append(change)
            if change["op"] != "c":
                lines += settle(*held)
                held = []
        yield batch_of(lines, layout)
    yield batch_of(list(settle(*held)), layout)


def _is_update(delete: Mapping[str, Any], insert: Mapping[str, Any]) -> bool:
    """Return whether two changes that follow one another are an update of the key."""
    *event, row = (insert[name] for name in ("table", *PLACE))
    return ["d", *event, row - 1] == [delete[name] for name in ("op", "table", *PLACE)]


def _withhold(change: dict[str, Any], reason: str) -> None:
    if change["statement"] is not None:
        change |= {"statement": None, "lost": None, "reason": reason}


class FlashbackResult:
    """What can be undone, and what cannot."""

    def __init__(
        self, until: PointInTime, gone: Sequence[str], unmatched: Iterable[str], bounds: Sequence[Bound]
    ) -> None:
        self.until = until
        self.bounds = bounds
        self.gone = gone
        self.unmatched = list(unmatched)
        """What was asked for and is not there."""
        self.notes = [f"cannot be undone: {each}" for each in gone]
        self.statements: list[tuple[str, str, str]] = []
        self.undone: DataFrame | None = None
        self.counts: list[Row] = []
        self.reasons: list[Row] = []
        self.lost: list[Row] = []
        self.transactions = 0
        self.faults = 0

    def read(self, undone: DataFrame, tables: Sequence[Table], chosen: Chosen) -> None:
        """Sum up."""
        self.undone = undone
        has = sf.col("statement").isNotNull()
        self.counts = (
            undone.groupBy("table")
            .agg(
                sf.count_if(has & (sf.col("op") == "c")).alias("inserts"),
                sf.count_if(has & (sf.col("op") == "u")).alias("updates"),
                sf.count_if(has & (sf.col("op") == "d")).alias("deletes"),
                sf.count_if(~has).alias("not_undone"),
            )
            .orderBy("table")
            .collect()
        )
        reasons = (
            undone.where(~has)
            .groupBy("table", "reason")
            .agg(sf.count("*").alias("rows"), sf.min("key").alias("key"))
        )
        self.reasons = reasons.orderBy(sf.desc("rows"), "table", "reason").limit(_LISTED).collect()
        columns = undone.where("lost is not null").select(
            "table", "key", sf.explode(sf.from_json("lost", "array<string>")).alias("column")
        )
        lost = columns.groupBy("table", "column").agg(sf.count("*").alias("rows"), sf.min("key").alias("key"))
        self.lost = lost.orderBy(sf.desc("rows"), "table", "column").limit(_LISTED).collect()
        self.transactions = undone.where(has).select("id").distinct().count()
        self.faults = undone.where("epoch is null").count()
        if chosen.keys:
            known = undone.where("key is not null").select("table", "key").distinct().collect()
            self.unmatched += [
                f"no selected change of {table} has the key {_as_option(key)}"
                for table in tables
                for key in chosen.keys
                if not any(
                    row.table == str(table) and table.is_row(json.loads(row.key), key) is not False
                    for row in known
                )
            ]

    @property
    def nothing(self) -> bool:
        """Whether no change was selected, and none is known to be missing."""
        return not self.counts and not self.notes

    @property
    def not_undone(self) -> int:
        """How many changes are not undone."""
        return sum(row.not_undone for row in self.counts)

    def write_sql(self, path: str) -> None:
        """Write the statements, the newest first, each transaction as one; memory holds a part of them."""
        system, place = file_system(path)
        system.create_dir(place.rpartition("/")[0], recursive=True)
        with system.open_output_stream(place) as out:
            out.write(_HEAD % comment_text(f"as of {self.until}"))
            for line in (line for bound in self.bounds for line in bound.lines):
                out.write(b"-- %b\n" % comment_text(line))
            current = None
            if self.undone is not None:
                order = [sf.desc(name) for name in PLACE]
                rows = self.undone.where("statement is not null").orderBy(*order)
                for row in rows.select("id", "statement").toLocalIterator():
                    if row.id != current:
                        out.write(b"COMMIT;\n" if current is not None else b"")
                        out.write(b"-- Undo of %b\nSTART TRANSACTION;\n" % comment_text(str(row.id)))
                        current = row.id
                    out.write(row.statement.encode("utf-8", "surrogateescape") + b";\n")
            out.write(b"COMMIT;\n" if current is not None else b"")


def summary(outcome: FlashbackResult) -> dict[str, Any]:
    """Return the figures for ``summary.json``."""
    return {
        "as_of": str(outcome.until),
        "bounds": [
            {
                "option": bound.option,
                "given": bound.text,
                "last": None if bound.last is None else str(bound.last),
                "out_of_order": bound.doubt,
            }
            for bound in outcome.bounds
        ],
        "transactions": outcome.transactions,
        "tables": {
            row.table: {k: v for k, v in row.asDict().items() if k != "table"} for row in outcome.counts
        },
        "not_undone": [row.asDict() for row in outcome.reasons],
        "lost_columns": [row.asDict() for row in outcome.lost],
        "ddl_since": [
            dict(zip(("table", "place", "statement"), each, strict=True)) for each in outcome.statements
        ],
        "notes_of_tables": outcome.notes,
        "not_found": outcome.unmatched,
    }


def shortfall(job: Job, outcome: FlashbackResult) -> str | None:
    """Say that not all that was asked for is undone; None where it is."""
    if outcome.nothing:
        return f"nothing is selected: {'; '.join(outcome.unmatched) or 'no change meets all conditions'}"
    problems = [bound.doubt for bound in outcome.bounds if bound.doubt is not None]
    if outcome.not_undone or outcome.lost or outcome.notes or outcome.unmatched or job.faults.number:
        how_much = "not all" if outcome.transactions else "none"
        problems.append(f"{how_much} of it can be undone: the report lists what cannot")
    return "; ".join(problems) or None


def report(job: Job, outcome: FlashbackResult, *, written: bool) -> Report:
    """Build the page."""
    facts = [f"made as of {outcome.until}", *(line for bound in outcome.bounds for line in bound.lines)]
    page = Report(f"Flashback of {job.sources[0]}", facts)
    counts = {name: sum(row[name] for row in outcome.counts) for name in ("inserts", "updates", "deletes")}
    if (problem := shortfall(job, outcome)) is not None:
        page.verdict(f"{problem[0].upper()}{problem[1:]}.", "doubt")
    else:
        page.verdict("All selected changes can be undone.", "good")
    page.tiles(
        [
            ("transactions undone", outcome.transactions),
            ("rows deleted again", counts["inserts"]),
            ("rows reverted", counts["updates"]),
            ("rows restored", counts["deletes"]),
            ("changes not undone", outcome.not_undone),
        ]
    )
    page.text("The statements are in flashback.sql." if written else "A dry run: no SQL is written.")
    for note in (*outcome.unmatched, *outcome.notes):
        page.text(note)
    page.section("Tables")
    headings = ["table", "rows deleted", "rows reverted", "rows restored", "not undone"]
    page.table(headings, [(r.table, r.inserts, r.updates, r.deletes, r.not_undone) for r in outcome.counts])
    if outcome.reasons:
        page.section("What is not undone")
        page.table(
            ["table", "why", "changes", "a row"],
            [(r.table, r.reason, r.rows, Code(r.key) if r.key else None) for r in outcome.reasons],
        )
    if outcome.lost:
        page.section(
            "Columns that cannot be restored",
            "They were dropped after the changes; their rows return without them.",
        )
        page.table(
            ["table", "column", "rows", "a row"],
            [(r.table, r.column, r.rows, Code(r.key) if r.key else None) for r in outcome.lost],
        )
    if outcome.statements:
        page.section("Statements that changed the tables")
        page.table(["table", "place", "statement"], [(t, p, Code(s)) for t, p, s in outcome.statements])
    return page


def parse_transactions(text: str) -> tuple[GtidSet | None, frozenset[str] | None]:
    """Read a set of GTIDs of MySQL, or else GTIDs of MariaDB, each of which names one transaction."""
    with suppress(BinlogError):
        return GtidSet.parse(text), None
    try:
        return None, frozenset(str(MariadbGtid.parse(part)) for part in text.split(","))
    except BinlogError:
        problem = f"--gtids is {text!r}: expected a set as of gtid_executed, or GTIDs as 0-1-100,0-1-101"
        raise SettingsError([problem]) from None


def _check(tables: Sequence[str], gtids: str | None, keys: Sequence[str], **others: Any) -> None:
    """Refuse options that select nothing, or cannot be read."""
    moments = {f"--{name}": others[name] for name in ("after", "until") if others[name] is not None}
    if not (gtids or keys or moments or others["transactions"]):
        problem = "select what to undo, with --gtids, --transaction, --after, --until or --key"
        raise SettingsError([problem])
    if keys and not tables:
        raise SettingsError(["--key needs the table: name it with --table"])
    parse_tables(tables)
    for key in keys:
        parse_key(key)
    for option, moment_given in moments.items():
        parse_moment(option, moment_given)
    if gtids is not None:
        parse_transactions(gtids)


@job_command("flashback", tables=True, check=_check)
@click.option(
    "--table", "tables", multiple=True, help="Table, DATABASE.TABLE; may be repeated. [default: all]"
)
@click.option(
    "--gtids",
    help="Only these transactions: a set written as gtid_executed, or GTIDs of MariaDB, commas between them.",
)
@click.option(
    "--transaction",
    "transactions",
    multiple=True,
    help="Only this transaction, as in transaction.id; may be repeated.",
)
@click.option("--after", help="Only what was committed after this moment, given as for table_state --at.")
@click.option("--until", help="Only what was committed up to this moment.")
@click.option("--key", "keys", multiple=True, help="Only this row, such as id=5 or a=1,b=x; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Report what would be undone and what cannot; write no SQL.")
def main(  # noqa: PLR0917 - click calls it by names
    job: Job,
    spark: SparkSession,
    tables: tuple[str, ...],
    gtids: str | None,
    transactions: tuple[str, ...],
    after: str | None,
    until: str | None,
    keys: tuple[str, ...],
    *,
    dry_run: bool,
) -> None:
    """Write SQL that undoes changes of tables, the newest first, as flashback.sql."""
    chosen = choose(job, spark, gtids, transactions, (after, until), [parse_key(key) for key in keys])
    outcome = flashback(job, spark, parse_tables(tables), chosen)
    if not dry_run:
        outcome.write_sql(f"{job.folder}/flashback.sql")
    job.finish(summary(outcome), report(job, outcome, written=not dry_run))
    if (missed := shortfall(job, outcome)) is not None:
        job.shortfall = UserError(missed, ExitCode.NOT_UNDONE)


def choose(  # noqa: PLR0917 - the options of the command
    job: Job,
    spark: SparkSession,
    gtids: str | None,
    transactions: Sequence[str],
    between: tuple[str | None, str | None],
    keys: Sequence[Mapping[str, str]],
) -> Chosen:
    """Convert the options to the choice of changes to undo."""
    (one,) = job.inputs
    options = zip(("--after", "--until"), between, strict=True)
    bounds = [_bound(job, spark, one, option, text) for option, text in options if text is not None]
    for line in (line for bound in bounds for line in bound.lines):
        job.steps.say(line)
    places = {bound.option: bound.last.place.order() for bound in bounds if bound.last is not None}
    if between[1] is not None and "--until" not in places:
        raise UserError(f"nothing was committed by {between[1]}, according to {one.source}", ExitCode.DATA)
    wanted, listed = (None, None) if gtids is None else parse_transactions(gtids)
    named = frozenset(transactions) or None
    both = named & listed if named is not None and listed is not None else named or listed
    return Chosen(wanted, both, places.get("--after"), places.get("--until"), keys, bounds)


def _bound(job: Job, spark: SparkSession, one: Input, option: str, text: str) -> Bound:
    """Find what a moment is in the log."""
    wanted = parse_moment(option, text)
    last = reach_or_none(job, spark, one, wanted)
    if last is None:
        return Bound(option, text, last)
    consequence = "not undone" if option == "--after" else "undone"
    doubt = out_of_order(units(job, spark, one), option, wanted, last, consequence)
    return Bound(option, text, last, doubt)


if __name__ == "__main__":
    main()

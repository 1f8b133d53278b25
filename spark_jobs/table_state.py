"""The rows of tables as of a moment: their row topics, folded up to it.

    millrace job table_state --source shop --table shop.orders --at 2026-01-31T10:00
    millrace job table_state --source shop --table shop.orders --at binlog.000007:1234

A time stands for the last transaction in the order of the log that was committed at that time or before it.
Executors fold records by key, each key in one executor; records of a table without a key are
counted. :mod:`millrace.verify.tables` does both, as for ``millrace verify``. The effects of DDL on rows are
applied as far as the log shows them; a value that it does not show is null, and its column is listed.
"""

import hashlib
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, Final

import click
import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from millrace.binlog.columns.spatial import GEOMETRY_TYPES
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.table import ColumnDefinition
from millrace.contract import SourcePosition
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.verify.conversions import UnknownValue
from millrace.verify.history import BEGINNING
from millrace.verify.tables import Folder, Records, Row
from spark_jobs.common.events import arrow_schema
from spark_jobs.common.faults import FAULT_COLUMNS, FAULT_SCHEMA, NO_FAULT, RECORD_COLUMNS
from spark_jobs.common.job import Input, Job, job_command
from spark_jobs.common.lines import Line, batch_of, reason_of, rows_of
from spark_jobs.common.report import Code, Report
from spark_jobs.common.tables import (
    PLACE,
    Counts,
    Log,
    Moment,
    PointInTime,
    Table,
    changes_of,
    counts_of,
    has_one_key,
    out_of_order,
    parse_moment,
    parse_tables,
    place_column,
    place_of,
    reach,
    records_by,
    units,
    without_later,
)

_BUCKET_BYTES: Final = 32 << 20
"""Bytes of records that are folded together."""

_MOST_BUCKETS: Final = 4096
_FOLDED: Final = 20_000
"""Records of a table without a key that are counted together."""

_BATCH_ROWS: Final = 10_000
_LISTED: Final = 100

_BINARY: Final = {
    *("bit", "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"),
    *GEOMETRY_TYPES,
}
_SPECIAL: Final = re.compile(r"[\\*?\[\]{}]")
"""Characters of a path that have a meaning where Spark reads."""

_STEP_SCHEMA: Final = f"digest binary, row binary, step bigint, {FAULT_SCHEMA}"
_INTEGERS: Final = {"tinyint", "smallint", "mediumint", "int", "bigint", "year"}
_UNTOLD: Final = "millrace.untold"
_DECIMAL_DIGITS: Final = 38


@dataclass(slots=True)
class State:
    """The state of a table: how many rows it has, and what is uncertain."""

    table: str
    records: int = 0
    rows: int = 0
    untold: Mapping[str, int] = field(default_factory=dict)
    """Numbers of values that the log does not tell, by column and reason."""
    unknown_rows: int = 0
    """Rows that were removed and of which it is not known that they were there."""
    faults: int = 0
    doubts: list[str] = field(default_factory=list)


def table_state(
    job: Job, spark: SparkSession, tables: Sequence[tuple[str, str]], wanted: Moment
) -> tuple[PointInTime, list[State]]:
    """Write the rows that tables had at a moment."""
    (one,) = job.inputs
    with job.step("the moment found"):
        until = reach(job, spark, one, wanted)
        doubt = out_of_order(units(job, spark, one), "--at", wanted, until, "part of the state")
        log = Log.read(job, one, until.place)
        found = [log.table(*names) for names in tables]
    states = []
    for table in found:
        with job.step(f"rows of {table}"):
            states.append(_state(job, spark, one, log, table, until))
            states[-1].doubts += [] if doubt is None else [doubt]
    return until, states


def _state(  # noqa: PLR0917 - what is read, and up to where
    job: Job, spark: SparkSession, one: Input, log: Log, table: Table, until: PointInTime
) -> State:
    state = State(str(table))
    changes, schemas = changes_of(job, spark, table.topics(log), table.eras)
    snapshot = began = None
    if changes is None:
        write_state(job, state, spark.createDataFrame([], from_arrow_schema(state_layout(table))))
    else:
        counts = counts_of(changes)
        snapshot, began = counts.snapshot, counts.snapshot_began
        if snapshot is not None and not until.has_snapshot(snapshot):
            state.doubts += _without_snapshot(table, changes, snapshot, until)
        state.records = counts.keyed + counts.keyless
        good = without_later(job, spark, one, changes.where("fault is null"), until)
        folded = _folded(table, schemas, good, counts)
        write_state(job, state, folded)
        state.faults += counts.faults
        if state.faults:
            job.faults.take(job.folder, changes.select(*FAULT_COLUMNS).union(folded.select(*FAULT_COLUMNS)))
    state.doubts += _doubts(log, table, until, has_snapshot=snapshot is not None)
    taken = log.snapshot_of(table)
    is_whole = taken is not None and taken.done and not taken.note and not taken.where and not log.unmerged
    after = began if is_whole and snapshot is not None and until.has_snapshot(snapshot) else None
    state.doubts += log.history.missing(table.eras, after or BEGINNING)
    return state


def write_state(job: Job, state: State, folded: DataFrame) -> None:
    """Write rows, and count them and what is uncertain."""
    seen = Observation()
    watched = folded.observe(
        seen,
        sf.count("row").alias("rows"),
        sf.count("untold").alias("untold"),
        sf.coalesce(sf.sum("unknown"), sf.lit(0)).alias("unknown_rows"),
        sf.count("fault").alias("faults"),
    )
    rows = watched.where("row is not null").select("row.*", sf.col("untold").alias(_UNTOLD))
    job.write(f"{state.table}/rows", rows)
    found = seen.get
    state.rows, state.unknown_rows, state.faults = (found[n] for n in ("rows", "unknown_rows", "faults"))
    if found["untold"]:
        written = job.spark.read.parquet(_SPECIAL.sub(r"\\\g<0>", f"{job.folder}/{state.table}/rows"))
        value = sf.explode(f"`{_UNTOLD}`").alias("column", "reason")
        counts = written.select(value).groupBy("column", "reason").count().orderBy("column", "reason")
        state.untold = {f"{row.column}: {row.reason}": row["count"] for row in counts.collect()}


def _without_snapshot(
    table: Table, changes: DataFrame, snapshot: SourcePosition, until: PointInTime
) -> Iterator[str]:
    """Say what it means that the last snapshot is later; raises UserError where no rows are from before."""
    if not table.eras.from_the_beginning or until.next is None:
        return
    taken = changes.where("not logged").groupBy("id").agg(sf.max(place_column()).alias("last"))
    if taken.where(sf.col("last") <= place_of(until.next)).isEmpty():
        raise UserError(
            f"rows of {table} are known from a snapshot up to {snapshot}, and {until.place} is before that: "
            "name a moment after it",
            ExitCode.DATA,
        )
    yield (
        f"its last snapshot, up to {snapshot}, is later: rows that nothing has changed are those of an "
        "earlier one, of which it is no longer known whether it was complete"
    )


def _doubts(log: Log, table: Table, until: PointInTime, *, has_snapshot: bool) -> Iterator[str]:
    """Say what may be otherwise than the topics tell."""
    if until.next is None and not until.latest:
        yield f"the topics end with {until.last}: what follows it up to the moment, if anything, is missing"
    if table.eras.from_the_beginning:
        yield from _doubts_of_snapshot(log, table, has_snapshot=has_snapshot)
    if table.eras.moved is not None:
        yield f"statements may have changed rows in ways that the log does not show: {table.eras.moved}"
    if table.hidden:
        yield f"MILLRACE_COLUMNS_… hides columns, which are left out: {', '.join(table.hidden)}"
    if not log.selection.is_whole(table.database, table.name):
        yield "MILLRACE_REPLICATE_… leaves changes out of the row topic"
    if log.selection.filters(table.database, table.name):
        yield "MILLRACE_ROWS_FILTER leaves rows out of the row topic"


def _doubts_of_snapshot(log: Log, table: Table, *, has_snapshot: bool) -> Iterator[str]:
    """Say what of a table that is older than the log its snapshot may lack."""
    taken = log.snapshot_of(table)
    if not has_snapshot and (taken is None or f"{taken.database}.{taken.table}" != str(table)):
        yield (
            "the log begins after the table was created, and there is no snapshot of it: rows that nothing "
            "has changed since are missing"
        )
    if taken is None:
        if has_snapshot and log.snapshot is not None:
            unknown = "whether its snapshot was complete is no longer known"
            yield f"{unknown}: a later one has read other tables only"
        return
    missing = "rows that nothing has changed since are missing, unless an earlier snapshot has them"
    if taken.note:
        yield f"its snapshot ended early, since {taken.note}: {missing}"
    elif not taken.done:
        yield f"its snapshot is not complete, with {taken.rows:,} of about {taken.estimate:,} rows: {missing}"
    elif log.unmerged:
        yield f"rows of snapshots wait for the row mapper: {missing}"
    if taken.where:
        yield f"MILLRACE_SNAPSHOT_WHERE left rows out of its snapshot: it has those with {taken.where}"


# -- in the executors ---------------------------------------------------------------------------------


def _folded(table: Table, schemas: Mapping[int, Any], changes: DataFrame, counts: Counts) -> DataFrame:
    """Fold changes into lines of :func:`state_layout`: rows, removed ones that were never there, faults."""
    number = min(_MOST_BUCKETS, 1 + counts.bytes // _BUCKET_BYTES)
    columns = changes.select(*PLACE, "era", *RECORD_COLUMNS)
    made = from_arrow_schema(state_layout(table))
    if counts.keyed:
        bucket = sf.expr("substring(key, 6)") if has_one_key(schemas, counts) else sf.lit(0)
        buckets = columns.repartition(number, bucket).sortWithinPartitions(*PLACE)
        return buckets.mapInArrow(_by_key(table, schemas), made)
    steps = columns.mapInArrow(_counter(table, schemas), _STEP_SCHEMA)
    rows = steps.groupBy("digest", *FAULT_COLUMNS).agg(
        sf.any_value("row").alias("row"), sf.sum("step").alias("step")
    )
    wanted = rows.where("step <> 0 or fault is not null").select("row", "step", *FAULT_COLUMNS)
    return wanted.repartition(max(number, 1)).mapInArrow(_counted(table), made)


_Batches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_Step = tuple[Row | None, int, Line]
"""A row, how often it is there, and the columns of a fault; no row where there is a fault."""


def _steps(table: Table, records: Records, batches: Iterable[pa.RecordBatch]) -> Iterator[_Step]:
    """Fold the records of batches; those that are none of the table are faults."""
    added = table.added
    folder = Folder(table.columns, lambda column: added[column.name], table.eras)
    for batch in batches:
        parts = [batch.column(name).to_pylist() for name in ("era", *RECORD_COLUMNS)]
        for era, *record in zip(*parts, strict=True):
            *_, key, value = record
            try:
                folder.add(None if key is None else records.read(key), records.read(value), era)
            except Exception as error:  # noqa: BLE001 - whatever a record holds, all others are folded
                yield None, 0, (*record, reason_of(error))
    for row, count in folder.rows.items():
        yield row, count, NO_FAULT


def _by_key(table: Table, schemas: Mapping[int, Any]) -> _Batches:
    return lambda batches: state_lines(table, _steps(table, records_by(schemas), batches))


def _counter(table: Table, schemas: Mapping[int, Any]) -> _Batches:
    """Count the rows of a table without a key, some records at once."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records, layout = records_by(schemas), arrow_schema(_STEP_SCHEMA)
        for batch in batches:
            for at in range(0, batch.num_rows, _FOLDED):
                steps = _steps(table, records, [batch.slice(at, _FOLDED)])
                yield batch_of([(*_hashed(row), step, *fault) for row, step, fault in steps], layout)

    return count


def _hashed(row: Row | None) -> tuple[bytes | None, bytes | None]:
    return (None, None) if row is None else (digest(row), pickle.dumps(row))


def _counted(table: Table) -> _Batches:
    def steps(batches: Iterable[pa.RecordBatch]) -> Iterator[_Step]:
        for batch in batches:
            for row, step, *fault in rows_of(batch):
                yield None if row is None else pickle.loads(row), step, tuple(fault)  # noqa: S301 - made above

    return lambda batches: state_lines(table, steps(batches))


def digest(row: Row) -> bytes:
    """Hash a row; the same number may have been read with more digits."""
    plain = [str(value.normalize()) if isinstance(value, Decimal) else value for value in row]
    return hashlib.blake2b(repr(plain).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def state_lines(table: Table, steps: Iterable[_Step]) -> Iterator[pa.RecordBatch]:
    """Return what steps lead to as lines of :func:`state_layout`."""
    layout, others, unknown = state_layout(table), list[Line](), 0
    columns = layout.field("row").type

    def present() -> Iterator[Row]:
        nonlocal unknown
        for row, step, fault in steps:
            if row is None:
                others.append((None, None, None, *fault))
            elif step < 0:
                unknown -= step
            else:
                yield from repeat(row, step)

    rows = present()
    while some := list(islice(rows, _BATCH_ROWS)):
        untold = [dict[str, str]() for _ in some]
        values = zip(
            *(_told(row, columns, notes) for row, notes in zip(some, untold, strict=True)), strict=True
        )
        arrays = [pa.array(column, field.type) for column, field in zip(values, columns, strict=True)]
        row = pa.StructArray.from_arrays(arrays, fields=list(columns))
        notes = pa.array([list(each.items()) or None for each in untold], layout.field("untold").type)
        nulls = (pa.nulls(len(some), field.type) for field in list(layout)[2:])
        yield pa.RecordBatch.from_arrays([row, notes, *nulls], schema=layout)
    if unknown:
        others.append((None, None, unknown, *NO_FAULT))
    for at in range(0, len(others), _BATCH_ROWS):
        yield batch_of(others[at : at + _BATCH_ROWS], layout)


def state_layout(table: Table) -> pa.Schema:
    """Return the columns of what is folded: a row, which of its values the log does not tell, and why.

    Or ``unknown``, the number of removed rows that were never there, or a fault.
    """
    row = pa.struct([(each.name, arrow_type(each)) for each in table.definitions])
    head = [("row", row), ("untold", pa.map_(pa.string(), pa.string())), ("unknown", pa.int64())]
    return pa.schema([*map(pa.field, *zip(*head, strict=True)), *arrow_schema(FAULT_SCHEMA)])


def _told(row: Row, columns: pa.StructType, notes: dict[str, str]) -> list[Any]:
    """Return the values of a row as Arrow takes them; note those that the log does not tell."""
    values = []
    for value, column in zip(row, columns, strict=True):
        told = value
        if isinstance(value, UnknownValue):
            notes[column.name] = value.reason
            told = None
        elif isinstance(value, bytes) and pa.types.is_string(column.type):
            notes[column.name] = "its bytes are invalid in its character set"
            told = None
        elif pa.types.is_string(column.type) and value is not None:
            told = format(value, "f") if isinstance(value, Decimal) else str(value)
        values.append(told)
    return values


def arrow_type(column: ColumnDefinition) -> pa.DataType:
    """Return the type of a column's values: as the server prints them, but for numbers and bytes."""
    sql = SqlType.parse(column.column_type)
    if sql.name in _INTEGERS:
        return pa.decimal128(20, 0) if sql.name == "bigint" and column.unsigned else pa.int64()
    if sql.name == "decimal":
        precision, scale, *_ = (*sql.arguments, 10, 0) if not sql.arguments else (*sql.arguments, 0)
        return pa.decimal128(precision, scale) if precision <= _DECIMAL_DIGITS else pa.string()
    if sql.name in ("float", "double"):
        return pa.float64()
    return pa.binary() if sql.name in _BINARY else pa.string()


# -- results ------------------------------------------------------------------------------------------


def summary(until: PointInTime, states: Sequence[State]) -> dict[str, Any]:
    """Return the figures for ``summary.json``."""
    place = until.place
    return {
        "as_of": {
            "transaction": until.last, "epoch": place.epoch, "file": place.log_file, "pos": place.position,
            "committed_ms": until.time_ms,
        },
        "tables": {
            state.table: {
                "rows": state.rows,
                "records": state.records,
                "untold_values": dict(state.untold),
                "unknown_rows": state.unknown_rows,
                "faulty_records": state.faults,
                "doubts": state.doubts,
            }
            for state in states
        },
    }  # fmt: skip


def report(job: Job, until: PointInTime, states: Sequence[State], asked: str = "latest") -> Report:
    """Build the page; ``asked`` is the moment as it was given."""
    page = Report(f"State of tables of {job.sources[0]}", [f"--at {asked}", f"as of {until}"])
    doubtful = [one for one in states if one.doubts or one.untold or one.unknown_rows or one.faults]
    if doubtful:
        named = ", ".join(one.table for one in doubtful[:3]) + " …" * (len(doubtful) > 3)
        page.verdict(f"Some of {named} is uncertain: see below.", "doubt")
    else:
        page.verdict("The tables, as SELECT * would have shown them at that moment.", "good")
    page.tiles(
        [
            ("tables", len(states)),
            ("rows", sum(one.rows for one in states)),
            ("records read", sum(one.records for one in states)),
            ("values not in the log", sum(sum(one.untold.values()) for one in states)),
        ]
    )
    page.section("Tables")
    page.table(
        ["table", "rows", "records", "folder"],
        [(one.table, one.rows, one.records, Code(f"{one.table}/rows")) for one in states],
    )
    for one in doubtful:
        page.section(f"What is uncertain in {one.table}")
        for doubt in one.doubts:
            page.text(doubt)
        if one.unknown_rows:
            page.text(f"{one.unknown_rows:,} removed rows were never in the topics.")
        if one.untold:
            most = sorted(one.untold.items(), key=itemgetter(1), reverse=True)
            page.table(["value", "rows"], most[:_LISTED])
        if one.faults:
            page.text(f"{one.faults:,} records could not be read: they are listed at the end.")
    return page


@job_command(
    "table_state",
    tables=True,
    check=lambda tables, at: (parse_tables(tables), parse_moment("--at", at)),
)
@click.option(
    "--table", "tables", multiple=True, required=True, help="Table, DATABASE.TABLE; may be repeated."
)
@click.option(
    "--at",
    default="latest",
    show_default=True,
    help="The moment: latest, a time such as 2026-01-31T10:00 (UTC if without zone), how long ago, such as "
    "90m, 24h or 7d, a position such as binlog.000007:1234 (with its epoch: 1:binlog.000007:1234), or a set "
    "of GTIDs written as gtid_executed or gtid_binlog_pos.",
)
def main(job: Job, spark: SparkSession, tables: tuple[str, ...], at: str) -> None:
    """Write the rows that tables had at a moment, as Parquet."""
    until, states = table_state(job, spark, parse_tables(tables), parse_moment("--at", at))
    job.steps.say(f"as of {until}")
    job.finish(summary(until, states) | {"at": at}, report(job, until, states, at))


if __name__ == "__main__":
    main()

"""The rows of tables as of a moment: their row topics, folded up to it.

    millrace job table_state --source shop --table shop.orders --at 2026-01-31T10:00
    millrace job table_state --source shop --table shop.orders --at binlog.000007:1234

A time stands for the last transaction in the order of the log that was committed at that time or before it.
Executors fold records by key, each key in one executor; records of a table without a key are
counted. :mod:`millrace.verify.tables` does both, as for ``millrace verify``. The effects of DDL on rows are
applied as far as the log shows them; a value that it does not show is null, and its column is listed.
"""

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from decimal import Decimal
from itertools import chain, islice, repeat
from typing import Any, Final

import click
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.binlog.columns.spatial import GEOMETRY_TYPES
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.table import ColumnDefinition
from millrace.contract import SourcePosition
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.verify.conversions import Untold
from millrace.verify.history import BEGINNING
from millrace.verify.tables import Folder, Row
from spark_jobs.common.faults import RECORD_COLUMNS, Fault
from spark_jobs.common.files import ParquetFiles, WrittenFile
from spark_jobs.common.job import Input, Job, job_command
from spark_jobs.common.lines import reason_of
from spark_jobs.common.report import Bytes, Code, Report
from spark_jobs.common.tables import (
    PLACE,
    Counts,
    Log,
    Moment,
    Reached,
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
_TOLD: Final = 100

_BINARY: Final = {
    *("bit", "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"),
    *GEOMETRY_TYPES,
}
_INTEGERS: Final = {"tinyint", "smallint", "mediumint", "int", "bigint", "year"}
_UNTOLD: Final = "millrace.untold"
_DECIMAL_DIGITS: Final = 38


@dataclass(slots=True)
class State:
    """The state of a table: where its rows are, and what is uncertain."""

    table: str
    records: int = 0
    rows: int = 0
    files: list[WrittenFile] = field(default_factory=list)
    untold: Counter[str] = field(default_factory=Counter)
    """Numbers of values that the log does not tell, by column and reason."""
    unknown_rows: int = 0
    """Rows that were removed and of which it is not known that they were there."""
    faults: int = 0
    told_faults: list[list[Any]] = field(default_factory=list)
    """Of the records that cannot be folded, the first: topic, partition, offset, key, reason."""
    doubts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Take in what an executor made."""
        values = json.loads(text)
        self.rows += values["rows"]
        self.files += [WrittenFile(**one) for one in values["files"]]
        self.untold.update(values["untold"])
        self.unknown_rows += values["unknown_rows"]
        self.faults += values["faults"]
        self.told_faults += values["told_faults"]


def table_state(
    job: Job, spark: SparkSession, tables: Sequence[tuple[str, str]], wanted: Moment
) -> tuple[Reached, list[State]]:
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
    job: Job, spark: SparkSession, one: Input, log: Log, table: Table, until: Reached
) -> State:
    state = State(str(table))
    changes, schemas = changes_of(job, spark, table.topics(log), table.eras)
    snapshot = began = None
    if changes is not None:
        counts = counts_of(changes)
        snapshot, began = counts.snapshot, counts.snapshot_began
        if snapshot is not None and not until.has_snapshot(snapshot):
            state.doubts += _without_snapshot(table, changes, snapshot, until)
        state.records = counts.keyed + counts.keyless
        if counts.faults:
            job.faults.take(job.folder, changes)
        changes = without_later(job, spark, one, changes.where("fault is null"), until)
        for row in _folded(job, table, schemas, changes, counts).collect():
            state.add(row.outcome)
        job.faults.add(state.faults, [Fault(*told) for told in state.told_faults])
        state.faults += counts.faults
    state.doubts += _doubts(log, table, until, has_snapshot=snapshot is not None)
    taken = log.snapshot_of(table)
    is_whole = taken is not None and taken.done and not taken.note and not taken.where and not log.unmerged
    after = began if is_whole and snapshot is not None and until.has_snapshot(snapshot) else None
    state.doubts += log.history.missing(table.eras, after or BEGINNING)
    return state


def _without_snapshot(
    table: Table, changes: DataFrame, snapshot: SourcePosition, until: Reached
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


def _doubts(log: Log, table: Table, until: Reached, *, has_snapshot: bool) -> Iterator[str]:
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


def _folded(
    job: Job, table: Table, schemas: Mapping[int, Any], changes: DataFrame, counts: Counts
) -> DataFrame:
    """Fold changes into files; return what each executor made."""
    number = min(_MOST_BUCKETS, 1 + counts.bytes // _BUCKET_BYTES)
    columns = [*PLACE, "era", *RECORD_COLUMNS]
    write = _writer(table, f"{job.folder}/{table}")
    if counts.keyed:
        bucket = sf.expr("substring(key, 6)") if has_one_key(schemas, counts) else sf.lit(0)
        buckets = changes.select(*columns).repartition(number, bucket).sortWithinPartitions(*PLACE)
        return buckets.mapInArrow(_folder(table, schemas, write), "outcome string")
    steps = changes.select(*columns).mapInArrow(
        _counter(table, schemas), "digest binary, row binary, step bigint, fault string"
    )
    rows = steps.groupBy("digest", "fault").agg(
        sf.any_value("row").alias("row"), sf.sum("step").alias("step")
    )
    wanted = rows.where("step <> 0 or fault is not null").repartition(max(number, 1), "digest")
    return wanted.mapInArrow(_rows_writer(write), "outcome string")


Write = Callable[[Iterable[Row], Sequence[str], int], pa.RecordBatch]


def _new_folder(table: Table) -> Folder:
    added = table.added
    return Folder(table.columns, lambda column: added[column.name], table.eras)


def _fold(folder: Folder, records: Any, batch: pa.RecordBatch) -> Iterator[str]:
    """Fold the records of a batch; give those that are none of the table, as :class:`Fault` in JSON."""
    parts = [batch.column(name).to_pylist() for name in ("era", *RECORD_COLUMNS)]
    for era, topic, partition, offset, key, value in zip(*parts, strict=True):
        try:
            folder.add(None if key is None else records.read(key), records.read(value), era)
        except Exception as error:  # noqa: BLE001 - whatever a record holds, all others are folded
            yield json.dumps(astuple(Fault.of(topic, partition, offset, key, reason_of(error))))


def _folder(
    table: Table, schemas: Mapping[int, Any], write: Write
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records, folder = records_by(schemas), _new_folder(table)
        faults = [fault for batch in batches for fault in _fold(folder, records, batch)]
        rows = folder.rows
        unknown = -sum(count for count in rows.values() if count < 0)
        yield write(chain.from_iterable(repeat(row, count) for row, count in rows.items()), faults, unknown)

    return fold


def _counter(
    table: Table, schemas: Mapping[int, Any]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = records_by(schemas)
        for batch in batches:
            for at in range(0, batch.num_rows, _FOLDED):
                folder = _new_folder(table)
                faults = list(_fold(folder, records, batch.slice(at, _FOLDED)))
                steps = list(folder.rows.items())
                yield pa.RecordBatch.from_pydict(
                    {
                        "digest": pa.array(
                            [*(_digest(row) for row, _ in steps), *(None for _ in faults)], pa.binary()
                        ),
                        "row": pa.array(
                            [*(pickle.dumps(row) for row, _ in steps), *(None for _ in faults)], pa.binary()
                        ),
                        "step": pa.array([*(step for _, step in steps), *(0 for _ in faults)], pa.int64()),
                        "fault": pa.array([*(None for _ in steps), *faults], pa.string()),
                    }
                )

    return count


def _digest(row: Row) -> bytes:
    """Hash a row; the same number may have been read with more digits."""
    plain = [str(value.normalize()) if isinstance(value, Decimal) else value for value in row]
    return hashlib.blake2b(repr(plain).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _rows_writer(write: Write) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        faults: list[str] = []
        unknown = 0

        def rows() -> Iterator[Row]:
            nonlocal unknown
            for batch in batches:
                parts = [batch.column(name).to_pylist() for name in ("row", "step", "fault")]
                for row, step, fault in zip(*parts, strict=True):
                    if fault is not None:
                        faults.append(fault)
                    elif step < 0:
                        unknown -= step
                    else:
                        yield from repeat(pickle.loads(row), step)  # noqa: S301 - made by _counter

        written = write(rows(), faults, 0)
        values = json.loads(written.column("outcome")[0].as_py())
        values |= {"faults": len(faults), "told_faults": _told_faults(faults), "unknown_rows": unknown}
        yield _outcome(values)

    return write_rows


def _writer(table: Table, folder: str) -> Write:
    """Make what writes rows into a file, with the columns whose values the log does not tell."""
    names = [each.name for each in table.definitions]
    types = [arrow_type(each) for each in table.definitions]
    layout = pa.schema([*zip(names, types, strict=True), (_UNTOLD, pa.list_(pa.string()))])

    def write(rows: Iterable[Row], faults: Sequence[str], unknown: int) -> pa.RecordBatch:
        files, untold, number = ParquetFiles(folder, "part"), Counter[str](), 0
        every = iter(rows)
        while some := list(islice(every, _BATCH_ROWS)):
            notes: list[list[str]] = []
            values = [_told(row, names, types, notes) for row in some]
            untold.update(note for each in notes for note in each)
            number += len(some)
            columns = [
                pa.array(column, kind) for column, kind in zip(zip(*values, strict=True), types, strict=True)
            ]
            shown = [[note.partition(": ")[0] for note in each] or None for each in notes]
            arrays = [*columns, pa.array(shown, pa.list_(pa.string()))]
            files.write("rows", pa.RecordBatch.from_arrays(arrays, schema=layout))
        return _outcome(
            {
                "rows": number,
                "files": [asdict(file) for file in files.close()],
                "untold": untold,
                "unknown_rows": unknown,
                "faults": len(faults),
                "told_faults": _told_faults(faults),
            }
        )

    return write


def _told_faults(faults: Sequence[str]) -> list[Any]:
    return [json.loads(fault) for fault in faults[:_TOLD]]


def _outcome(values: Mapping[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"outcome": pa.array([json.dumps(values)])})


def _told(row: Row, names: Sequence[str], types: Sequence[pa.DataType], notes: list[list[str]]) -> list[Any]:
    """Return the values of a row as Arrow takes them; note those that the log does not tell."""
    values, noted = [], []
    for value, name, kind in zip(row, names, types, strict=True):
        told = value
        if isinstance(value, Untold):
            noted.append(f"{name}: {value.reason}")
            told = None
        elif isinstance(value, bytes) and pa.types.is_string(kind):
            noted.append(f"{name}: its bytes are invalid in its character set")
            told = None
        elif pa.types.is_string(kind) and value is not None:
            told = format(value, "f") if isinstance(value, Decimal) else str(value)
        values.append(told)
    notes.append(noted)
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


def summary(until: Reached, states: Sequence[State]) -> dict[str, Any]:
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
                "files": [file.path for file in state.files],
            }
            for state in states
        },
    }  # fmt: skip


def report(job: Job, until: Reached, states: Sequence[State], asked: str = "latest") -> Report:
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
            ("values not in the log", sum(one.untold.total() for one in states)),
            ("in files", Bytes(sum(file.bytes for one in states for file in one.files))),
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
            page.table(["value", "rows"], list(one.untold.most_common(_TOLD)))
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

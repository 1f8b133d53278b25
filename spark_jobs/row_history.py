"""Everything that ever happened to a row, by values of its columns, under all names that its table had.

    millrace job row_history --source shop --table shop.orders --key id=5

A row is found by its images, whatever the key of its records: ``MILLRACE_ROWS_KEYS`` or another primary key.

Values are as the log has them, under the names and of the types that the columns had at the time.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from millrace.contract import unescape_name
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.verify.conversions import UnknownValue
from millrace.verify.tables import Folder
from millrace.verify.tables import Row as Values
from spark_jobs.common.charts import count
from spark_jobs.common.events import arrow_schema
from spark_jobs.common.faults import FAULT_COLUMNS, FAULT_SCHEMA, NO_FAULT, RECORD_COLUMNS
from spark_jobs.common.job import Job, job_command, moment, persisted
from spark_jobs.common.lines import Line, read_lines, rows_of
from spark_jobs.common.report import Code, Report
from spark_jobs.common.tables import (
    CHANGE_SCHEMA,
    PLACE,
    Log,
    Table,
    changes_of,
    not_after,
    parse_key,
    parse_tables,
    plain_value,
    reach,
    records_by,
)

_HISTORY_SCHEMA: Final = (
    "epoch int, number bigint, pos bigint, sub_index bigint, row int, file string, transaction string, "
    "time_ms bigint, op string, thread bigint, server_id bigint, before string, after string, "
    "changed string, uncertain string"
)
"""A change: ``before`` and ``after`` are JSON, ``changed`` the columns that differ.

``uncertain`` are, as JSON, the values of which it is not certain that they are those asked for.
"""

_SHOWN: Final = 500
_NAMED: Final = 3
_FOUND_SCHEMA: Final = f"{_HISTORY_SCHEMA}, {FAULT_SCHEMA}"
_NO_CHANGE: Final = (None,) * len(_HISTORY_SCHEMA.split(", "))

_OPERATIONS: Final = {"c": "insert", "u": "update", "d": "delete", "r": "snapshot", "t": "truncate"}


class History(NamedTuple):
    """The changes of a row, the statements that changed its table, and what the topics lack."""

    table: Table
    statements: list[tuple[str, str]]
    changes: DataFrame | None
    missing: list[str]


def row_history(job: Job, spark: SparkSession, names: tuple[str, str], key: Mapping[str, str]) -> History:
    """Write the changes of a row; return them."""
    (one,) = job.inputs
    with job.step("the log read"):
        until = reach(job, spark, one, None)
        log = Log.read(job, one, until.place)
        table = log.table(*names)
    columns = [column.name for column in table.columns]
    if unknown := sorted(key.keys() - set(columns)):
        of = f"the columns of {table} in its topic are {', '.join(columns)}"
        raise SettingsError([f"--key names {', '.join(unknown)}; {of}"])
    starts = set(table.eras.starts)
    statements = [(str(each.place), each.text) for each in log.statements if each.place.order() in starts]
    changes, schemas = changes_of(job, spark, table.topics(log, before=True), table.eras)
    missing = list(log.history.missing(table.eras, before=True))
    if changes is None:
        return History(table, statements, None, missing)
    changes = changes.where(sf.col("fault").isNotNull() | not_after(until))
    with job.step(f"changes of a row of {table}"):
        found = persisted(changes.mapInArrow(_finder(table, key, schemas), _FOUND_SCHEMA))
        job.faults.take(job.folder, found)
        job.write("changes", found.where("fault is null").drop(*FAULT_COLUMNS).orderBy(*PLACE))
    return History(table, statements, spark.read.parquet(f"{job.folder}/changes"), missing)


def _finder(
    table: Table, wanted: Mapping[str, str], schemas: Mapping[int, Any]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records, layout = records_by(schemas), arrow_schema(_FOUND_SCHEMA)
        names = arrow_schema(CHANGE_SCHEMA).names
        columns, added = [column for column in table.columns if column.name in wanted], table.added
        folder = Folder(columns, lambda column: added[column.name], table.eras)

        def found_in(envelope: Mapping[str, Any], era: int) -> Iterator[tuple[bool | None, dict[str, Any]]]:
            """Yield whether an image has the values, as far as these are told, and what it has."""
            row: Values | None = None
            for image in ("before", "after"):
                if envelope[image] is None:
                    continue
                before, row = row, folder.row(envelope, image, era)
                # What a minimal image lacks is in the one before it.
                pairs = zip(row, before or row, strict=True)
                row = tuple(other if _is_unknown(value) else value for value, other in pairs)
                known = {
                    column.name: value.was if isinstance(value, UnknownValue) else value
                    for column, value in zip(columns, row, strict=True)
                    if not _is_unknown(value)
                }
                yield table.is_row(known, wanted), known

        def line(*values: Any) -> Line | None:
            change = dict(zip(names, values, strict=True))
            if change["fault"] is not None:
                return faulty(*values, change["fault"])
            envelope, era = records.read(change["value"]), max(change["era"], -len(table.eras.earlier))
            uncertain = None
            if change["op"] != "t":
                found = list(found_in(envelope, era))
                if all(is_row is not True for is_row, _ in found):
                    uncertain = next((_json(known) for is_row, known in found if is_row is None), None)
                    if uncertain is None:
                        return None
            return *_line(change, envelope), uncertain, *NO_FAULT

        def faulty(*values: Any) -> Line:
            change = dict(zip(names, values[:-1], strict=True))
            return *_NO_CHANGE, *(change[name] for name in RECORD_COLUMNS), values[-1]

        for batch in batches:
            yield read_lines(rows_of(batch), layout, line, faulty)

    return find


def _is_unknown(value: Any) -> bool:
    return isinstance(value, UnknownValue) and value.was is None


def _line(change: Mapping[str, Any], envelope: Mapping[str, Any]) -> tuple[Any, ...]:
    source = envelope["source"]
    before, after = (_image(envelope, image) for image in ("before", "after"))
    changed = [name for name in after or () if before is not None and before.get(name) != (after or {})[name]]
    return (
        *(change[name] for name in (*PLACE, "file", "id", "time_ms", "op")),
        source["thread"],
        source["server_id"],
        _json(before),
        _json(after),
        ", ".join(changed) or None,
    )


def _image(envelope: Mapping[str, Any], image: str) -> dict[str, Any] | None:
    """Return an image by the names of its columns; what its fields cannot hold as it stands beside them."""
    values = envelope[image]
    if values is None:
        return None
    notes = {note["column"]: note for note in envelope.get("unrepresentable") or () if note["image"] == image}
    absent = envelope.get(f"{image}_missing") or ()
    found = {name: value for field, value in values.items() if (name := unescape_name(field)) not in absent}
    for name, note in notes.items():
        found[name] = next((note[kind] for kind in ("text", "bytes") if note[kind] is not None), "too large")
    return found


def _json(values: Mapping[str, Any] | None) -> str | None:
    return None if values is None else json.dumps(values, default=plain_value, ensure_ascii=False)


def summary(found: History, key: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures for ``summary.json``."""
    changes = found.changes
    rows = [] if changes is None else changes.select("uncertain").distinct().orderBy("uncertain").collect()
    uncertain = [row.uncertain for row in rows if row.uncertain is not None]
    counts = [] if changes is None else changes.groupBy("op").agg(sf.count("*").alias("n")).collect()
    return {
        "table": str(found.table),
        "key": dict(key),
        "changes": {_OPERATIONS.get(row.op, row.op): row.n for row in sorted(counts)},
        "statements": [{"place": place, "statement": text} for place, text in found.statements],
        "missing": found.missing,
        "uncertain_keys": uncertain[:_SHOWN],
        "not_compared": found.table.compares(key) if uncertain or not counts else None,
    }


def shortfall(told: Mapping[str, Any]) -> str | None:
    """Say that it is not certain which row was asked for; None where it is."""
    if told["not_compared"] is None and not told["uncertain_keys"]:
        return None
    doubt = "whether the server takes other values for the same is not computed here"
    columns = told["not_compared"] or ", ".join(told["key"])
    spelled = ", ".join(told["uncertain_keys"][:_NAMED])
    named = f": it may be {spelled}" if spelled else ""
    return f"{doubt}, for {columns}{named}; give --key as the row has it"


def report(job: Job, told: Mapping[str, Any], changes: DataFrame | None) -> Report:
    """Build the page."""
    shown = ", ".join(f"{name}={value}" for name, value in told["key"].items())
    page = Report(f"History of {told['table']}, {shown}", [f"source {job.sources[0]}"])
    number = sum(told["changes"].values())
    problem = shortfall(told)
    lacks = "; others may be missing: see below" * bool(told["missing"])
    lacks += f"; {problem}" if problem else ""
    mood = "good" if number and not lacks else "doubt"
    page.verdict(f"{count(number)} changes of {shown} are in the topics{lacks}.", mood)
    page.tiles([("changes", number), *told["changes"].items()])
    for text in told["missing"]:
        page.text(text)
    rows: list[Row] = []
    if changes is not None:
        rows = changes.orderBy(*PLACE).limit(_SHOWN).collect()
    page.section(
        "Changes",
        "In the order of the log." if number <= _SHOWN else f"The first {_SHOWN}; the table changes has all.",
    )
    page.table(
        ["committed, UTC", "what", "changed", "transaction", "server", "thread", "before", "after"],
        [_shown(row) for row in rows],
    )
    if told["statements"]:
        page.section("Statements that changed the table")
        page.table(
            ["place", "statement"], [(each["place"], Code(each["statement"])) for each in told["statements"]]
        )
    return page


def _shown(row: Row) -> list[Any]:
    when = None if row.time_ms is None else moment(row.time_ms // 1000)
    numbers = [None if number is None else str(number) for number in (row.server_id, row.thread)]
    transaction, *images = (
        None if text is None else Code(text) for text in (row.transaction, row.before, row.after)
    )
    return [when, _OPERATIONS.get(row.op, row.op), row.changed, transaction, *numbers, *images]


@job_command("row_history", tables=True, check=lambda table, key: (parse_tables([table]), parse_key(key)))
@click.option("--table", required=True, help="Table, DATABASE.TABLE, by its current name.")
@click.option("--key", required=True, help="The row, by values of columns, such as id=5 or a=1,b='x, y'.")
def main(job: Job, spark: SparkSession, table: str, key: str) -> None:
    """Write everything that ever happened to a row."""
    (names,), wanted = parse_tables([table]), parse_key(key)
    found = row_history(job, spark, names, wanted)
    told = summary(found, wanted)
    job.finish(told, report(job, told, found.changes))
    if (problem := shortfall(told)) is not None:
        job.shortfall = UserError(problem, ExitCode.DATA)


if __name__ == "__main__":
    main()

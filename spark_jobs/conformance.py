"""Differences between the output of two versions of the decoder for the same raw bytes.

    millrace job conformance --source shop --after reports/reprocess-shop
    millrace job conformance --source shop --before /results/of-1.0 --after /results/of-1.1

Each side is a folder with results of the job ``reprocess``, run by that version, or, as the first side, what
decoder and row mapper have published. Changes of rows are matched by their position in the log and compared
field by field; so are typed events if both sides are folders that have them.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, Final

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.avro.columnar import AvroColumns
from millrace.avro.registry import key_subject, prefix_size, split_wire_format, value_subject
from millrace.contract import Topics, log_number
from millrace.rowmapper.selection import Selection
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.text import shortened
from spark_jobs.common.charts import count, many
from spark_jobs.common.events import arrow_schema
from spark_jobs.common.faults import FAULT_COLUMNS, FAULT_SCHEMA, NO_FAULT, RECORD_COLUMNS
from spark_jobs.common.files import file_system
from spark_jobs.common.job import Job, TableJobSettings, job_command, persisted, topic_versions
from spark_jobs.common.kafka import resolve_slice, scan
from spark_jobs.common.lines import Line, batch_of, read_lines, rows_of
from spark_jobs.common.report import Code, Report
from spark_jobs.common.tables import (
    order_of,
    place_column,
    plain_value,
    records_by,
    table_schemas,
)

_SIDE_SCHEMA: Final = (
    "kind string, epoch int, number bigint, pos bigint, sub_index bigint, row int, content string"
)
"""A change of a row, or a typed event: what it is of, its place, and its fields as JSON."""

_RECORD_SCHEMA: Final = f"{_SIDE_SCHEMA}, {FAULT_SCHEMA}"
"""A change of a row, or a record that cannot be read."""

_NO_CHANGE: Final = (None,) * len(_SIDE_SCHEMA.split(", "))

_PLACE: Final = ("kind", "epoch", "number", "pos", "sub_index", "row")
_DIFFERENCE_SCHEMA: Final = (
    "kind string, epoch int, number bigint, pos bigint, sub_index bigint, row int, what string, "
    "field string, before string, after string"
)
_NOT_DECODED: Final = {"ts_ms", "ts_us", "ts_ns"}
"""Fields of a change that say when it was published."""

_TOLD: Final = 200
_LONG: Final = 200


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a folder of results; None for what was published."""

    folder: str | None

    def __str__(self) -> str:
        return "what was published" if self.folder is None else self.folder

    def files(self) -> list[str]:
        """Give the files of rows and events of its last whole run."""
        assert self.folder is not None
        system, path = file_system(self.folder)
        try:
            with system.open_input_stream(f"{path}/manifest.json") as stream:
                manifest = json.loads(stream.read())
            with system.open_input_stream(f"{path}/{manifest['run']}/summary.json") as stream:
                summary = json.loads(stream.read())
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{self.folder} has no results of a job: {error}", ExitCode.SETTINGS) from None
        if manifest.get("job") != "reprocess":
            raise UserError(
                f"{self.folder} has results of the job {manifest.get('job')}, not of reprocess",
                ExitCode.SETTINGS,
            )
        several = len(manifest["input"]) > 1
        return [
            f"{self.folder}/{manifest['run']}/{source + '/' if several else ''}{name}"
            for source in manifest["input"]
            for name in summary[source]["files"]
            if name.startswith(("rows/", "events/"))
        ]


# -- in the executors ---------------------------------------------------------------------------------


def _line(kind: str, fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Write a change or an event as a line of :data:`_SIDE_SCHEMA`."""
    if kind == "rows":
        source = fields["source"]
        place = source["epoch"], log_number(source["file"])[1], source["pos"], source["sub_index"]
        content = {name: value for name, value in fields.items() if name not in _NOT_DECODED}
        content["source"] = {name: value for name, value in source.items() if name not in ("version", "name")}
        return f"{source['db']}.{source['table']}", *place, source["row"], _json(content)
    number = log_number(fields["log_file"])[1]
    place = fields["context"]["epoch"], number, fields["position"], fields["sub_index"]
    return f"event {fields['type']}", *place, 0, _json(fields)


def _json(content: Any) -> str:
    return json.dumps(content, default=plain_value, ensure_ascii=False, sort_keys=True)


def _file_reader() -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = arrow_schema(_SIDE_SCHEMA)
        for batch in batches:
            for kind, path in zip(
                *(batch.column(name).to_pylist() for name in ("kind", "path")), strict=True
            ):
                system, place = file_system(path)
                with pq.ParquetFile(place, filesystem=system) as file:
                    for part in file.iter_batches(_TOLD * 10):
                        yield batch_of([_line(kind, fields) for fields in part.to_pylist()], layout)

    return read


def _record_reader(
    schemas: Mapping[int, Any], of_keys: Mapping[int, Any]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout, readers = arrow_schema(_RECORD_SCHEMA), dict[int, AvroColumns]()
        keys = records_by(of_keys)

        def fields_of(values: list[bytes]) -> list[Any]:
            number, _ = split_wire_format(values[0])
            if number not in readers:
                if number not in schemas:
                    raise ValueError(f"schema {number} is not one of its topic's in the registry")
                readers[number] = AvroColumns(schemas[number])
            return list(readers[number].read(values).to_pylist())

        def line(*record: Any) -> Line | None:
            *_, key, value, fields = record
            if key is not None:
                keys.read(key)
            if fields is None:  # one of those that were read with it cannot be read
                (fields,) = fields_of([value])
            logged = fields["source"]["snapshot"] in (None, "false")
            return (*_line("rows", fields), *NO_FAULT) if logged else None

        def faulty(*record: Any) -> Line:
            *place, _, reason = record
            return *_NO_CHANGE, *place, reason

        for batch in batches:
            by_schema: dict[bytes, list[Line]] = {}
            for record in rows_of(batch):
                by_schema.setdefault(record[-1][: prefix_size(record[-1])], []).append(record)
            for records in by_schema.values():
                try:
                    every = fields_of([record[-1] for record in records])
                except ValueError:
                    every = [None] * len(records)
                both = [(*record, fields) for record, fields in zip(records, every, strict=True)]
                yield read_lines(both, layout, line, faulty)

    return read


def _differing() -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make what names the fields in which both sides differ."""

    def differ(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = arrow_schema(_DIFFERENCE_SCHEMA)
        for batch in batches:
            yield batch_of([line for one in batch.to_pylist() for line in _differences(one)], layout)

    return differ


def _differences(one: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    place = tuple(one[name] for name in _PLACE)
    if one["old"] is None or one["new"] is None:
        what = "added" if one["old"] is None else "missing"
        yield *place, what, None, one["old"], one["new"]
        return
    old, new = (dict(_leaves(json.loads(one[name]))) for name in ("old", "new"))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield *place, "changed", name, old.get(name), new.get(name)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Give the fields of records, by their paths, as JSON."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, json.dumps(value, ensure_ascii=False)


# -- on the driver ------------------------------------------------------------------------------------


def conformance(job: Job, spark: SparkSession, before: Side, after: Side) -> tuple[DataFrame, DataFrame]:
    """Compare two sides; write their differences, return these and how much was compared, by kind."""
    kinds = {"rows"} if before.folder is None else {"rows", "events"}
    new = _folder(spark, after, kinds)
    with job.step(f"{before} compared with {after}"):
        old = _published(job, spark, new) if before.folder is None else _folder(spark, before, kinds)
        new = new.withColumnRenamed("content", "new")
        both = old.withColumnRenamed("content", "old").join(new, list(_PLACE), "full_outer")
        # What one of them has not read is no difference: they are compared where both have something.
        ends = sf.min(place_column()).alias("low"), sf.max(place_column()).alias("high")
        bounds = [both.where(f"{side} is not null").agg(*ends).first() for side in ("old", "new")]
        if any(bound is None or bound.low is None for bound in bounds):
            raise UserError(f"{before} and {after} have nothing in common to compare", ExitCode.DATA)
        low = max(tuple(bound.low) for bound in bounds if bound is not None)
        high = min(tuple(bound.high) for bound in bounds if bound is not None)
        both = both.where((place_column() >= order_of(low)) & (place_column() <= order_of(high)))
        differ = both.where("not (old <=> new)").select(*_PLACE, "old", "new")
        job.write(
            "differences", differ.mapInArrow(_differing(), _DIFFERENCE_SCHEMA).orderBy(*_PLACE, "field")
        )
        same = sf.col("old").eqNullSafe(sf.col("new"))
        counts = both.groupBy("kind").agg(
            sf.count_if(same).alias("equal"),
            sf.count_if(~same & sf.col("old").isNotNull() & sf.col("new").isNotNull()).alias("changed"),
            sf.count_if(sf.col("new").isNull()).alias("missing"),
            sf.count_if(sf.col("old").isNull()).alias("added"),
        )
        job.write("compared", counts.orderBy("kind"))
    read = spark.read.parquet
    return read(f"{job.folder}/differences"), read(f"{job.folder}/compared")


def _folder(spark: SparkSession, side: Side, kinds: set[str]) -> DataFrame:
    """Read the results of reprocess, a task for each file."""
    files = [(kind, path) for path in side.files() for kind in kinds if f"/{kind}/" in path]
    if not files:
        raise UserError(f"{side} has no {' and no '.join(sorted(kinds))}", ExitCode.SETTINGS)
    frame = spark.createDataFrame(files, "kind string, path string").repartition(len(files))
    return frame.mapInArrow(_file_reader(), _SIDE_SCHEMA)


def _published(job: Job, spark: SparkSession, other: DataFrame) -> DataFrame:
    """Read the row topics of the tables that the other side has."""
    source = job.sources[0]
    assert isinstance(job.settings, TableJobSettings)
    selection = Selection(job.settings)
    tables = [row.kind.partition(".") for row in other.select("kind").distinct().orderBy("kind").collect()]
    firsts = [Topics(source).table(*selection.topic_of(database, table)) for database, _, table in tables]
    frames = []
    for topic in chain.from_iterable(topic_versions(job, firsts).values()):
        part = resolve_slice(spark, job.kafka, topic)
        if part.count:
            records = scan(spark, job.kafka, part).where("value is not null").select(*RECORD_COLUMNS)
            schemas = (table_schemas(job, subject(topic)) for subject in (value_subject, key_subject))
            frames.append(records.mapInArrow(_record_reader(*schemas), _RECORD_SCHEMA))
    if not frames:
        raise UserError(f"no row topic of {source} has any of the tables", ExitCode.DATA)
    found = persisted(reduce(DataFrame.union, frames))
    job.faults.take(job.folder, found)
    return found.where("fault is null").drop(*FAULT_COLUMNS)


def report_of(
    job: Job, sides: tuple[Side, Side], counts: Sequence[Any], fields: Sequence[Any], examples: Sequence[Any]
) -> Report:
    """Build the page."""
    before, after = sides
    page = Report(f"Conformance of {job.sources[0]}", [f"before: {before}", f"after: {after}"])
    figures = {name: sum(row[name] for row in counts) for name in ("equal", "changed", "missing", "added")}
    total = sum(figures.values())
    if differing := total - figures["equal"]:
        page.verdict(f"{count(differing)} of {many(total, 'record')} differ.", "bad")
    else:
        page.verdict(f"No difference in {many(total, 'record')}: all that both sides have.", "good")
    page.tiles(list(figures.items()))
    page.section(
        "What was compared", "What is missing has only the first side, what was added only the second."
    )
    numbers = [(row.kind, row.equal, row.changed, row.missing, row.added) for row in counts]
    page.table(
        ["of", "equal", "changed", "missing", "added"],
        sorted(numbers, key=lambda one: not any(one[2:])),  # what differs first
    )
    if fields:
        page.section("What differs, by field")
        page.table(
            ["of", "what", "field", "number"], [(row.kind, row.what, row.field, row.n) for row in fields]
        )
        page.section("Examples", "The table differences has all of them.")
        page.table(
            ["of", "log file, position", "row", "what", "field", "before", "after"],
            [
                (row.kind, f"{row.number:06}:{row.pos}", str(row.row), row.what, row.field,
                 *(None if value is None else Code(shortened(value, _LONG))
                   for value in (row.before, row.after)))
                for row in examples
            ],
        )  # fmt: skip
    return page


@job_command("conformance", tables=True)
@click.option(
    "--before", help="Folder with results of reprocess by one version. [default: what was published]"
)
@click.option("--after", required=True, help="Folder with results of reprocess by another version.")
def main(job: Job, spark: SparkSession, before: str | None, after: str) -> None:
    """Compare what two versions made of the same raw events, or one with what was published."""
    sides = Side(before), Side(after)
    differences, compared = conformance(job, spark, *sides)
    counts = compared.orderBy("kind").collect()
    fields = differences.groupBy("kind", "what", "field").agg(sf.count("*").alias("n"))
    told = fields.orderBy(sf.desc("n"), "kind", "field").limit(_TOLD).collect()
    examples = differences.orderBy(*_PLACE, "field").limit(_TOLD).collect()
    summary = {
        "before": str(sides[0]),
        "after": str(sides[1]),
        "compared": {row.kind: {k: v for k, v in row.asDict().items() if k != "kind"} for row in counts},
        "fields": [row.asDict() for row in told],
    }
    job.finish(summary, report_of(job, sides, counts, told, examples))


if __name__ == "__main__":
    main()

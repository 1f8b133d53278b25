"""Differences between the output of two versions of the decoder for the same raw bytes.

    millrace job conformance --source shop --after reports/reprocess-shop
    millrace job conformance --source shop --before /results/of-1.0 --after /results/of-1.1

Each side is a folder with results of the job ``reprocess``, run by that version, or, as the first side, what
decoder and row mapper have published. Changes of rows, transactions, DDL and dead letters are matched by
their position in the log and compared field by field; so are typed events where both sides are folders.

What both sides have read is compared, whatever they made of it: manifests say which raw offsets that is.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from typing import Any, Final, Self

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from millrace.avro.columnar import AvroColumns
from millrace.avro.registry import key_subject, prefix_size, split_wire_format, value_subject
from millrace.contract import HEADER_REDRIVEN, EventKey, RawKey, Topics, log_number
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.spark.archive import Archive, file_system
from millrace.text import shortened
from spark_jobs.common.charts import count, many
from spark_jobs.common.events import KnownSchemas, arrow_schema
from spark_jobs.common.faults import DEAD_LETTERS, FAULT_COLUMNS, FAULT_SCHEMA, NO_FAULT, RECORD_COLUMNS
from spark_jobs.common.job import Job, job_command, persisted, topic_versions
from spark_jobs.common.kafka import TopicSlice, headers_of, read_records, resolve_slice, scan
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

_PLACE_OF_RECORD: Final = {"epoch", "file", "pos", "sub_index"}
"""Fields of a transaction or a statement that say where it is."""


_OF_ROWS: Final = ("rows", "transactions", "ddl")
_KINDS: Final = (*_OF_ROWS, "events", DEAD_LETTERS)
"""Folders of results that are compared."""

_BEGINS: Final = (
    "kind = 'ddl' or (kind = 'transactions' and row = 0) or "
    "(kind like 'event %' and get_json_object(content, '$.context.begins') = 'true')"
)
_ENDS: Final = (
    "kind = 'ddl' or (kind = 'transactions' and row = 1) or "
    "(kind like 'event %' and get_json_object(content, '$.context.ends') is not null)"
)
"""Where a transaction begins or ends: one that an end of the input cuts is in no rows."""

_UNSEEN: Final = "Losses at the ends cannot be seen"
_NEAR_END: Final = 1000
"""Offsets at an end of the input among which there is a record."""

_COUNTED: Final = ("equal", "changed", "missing", "added")
_LISTED: Final = 200
_LONG: Final = 200

_Place = tuple[int, int, int]
"""Epoch, number of the log file, position."""


@dataclass(frozen=True, slots=True)
class Results:
    """Results of ``reprocess``: what was read, and the files that were made of it, each with its kind."""

    topic: str
    start: int
    end: int
    files: Sequence[tuple[str, str]]
    archive: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}, offsets {self.start:,} to {self.end:,}"

    @property
    def has_events(self) -> bool | None:
        """Whether it is typed events that were made; None where nothing says it."""
        kinds = {kind for kind, _ in self.files} - {DEAD_LETTERS}
        return "events" in kinds if kinds else None

    @classmethod
    def of(cls, folder: str, source: str) -> Self:
        """Read what the last whole run says, of several sources about ``source``."""
        system, path = file_system(folder)
        try:
            with system.open_input_stream(f"{path}/manifest.json") as stream:
                manifest = json.loads(stream.read())
            with system.open_input_stream(f"{path}/{manifest['run']}/summary.json") as stream:
                summary = json.loads(stream.read())
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"{folder} has no results of a job: {error}", ExitCode.SETTINGS) from None
        if manifest.get("job") != "reprocess":
            raise UserError(
                f"{folder} has results of the job {manifest.get('job')}, not of reprocess",
                ExitCode.SETTINGS,
            )
        inputs = manifest["input"]
        if len(inputs) > 1 and source not in inputs:
            raise UserError(
                f"{folder} has results of {', '.join(inputs)}: name one of them with --source",
                ExitCode.SETTINGS,
            )
        name = source if len(inputs) > 1 else next(iter(inputs))
        if summary[name].get("snapshots"):
            raise UserError(
                f"{folder} has its results in Iceberg tables, which conformance does not read: run "
                "reprocess without --format iceberg",
                ExitCode.SETTINGS,
            )
        inside = f"{folder}/{manifest['run']}/{name + '/' if len(inputs) > 1 else ''}"
        files = [(file.partition("/")[0], inside + file) for file in summary[name]["files"]]
        ((start, end),) = inputs[name]["offsets"].values()
        known = [one for one in files if one[0] in _KINDS]
        return cls(inputs[name]["topic"], start, end, known, inputs[name].get("archive"))


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a folder of results; None for what was published."""

    folder: str | None

    def __str__(self) -> str:
        return "what was published" if self.folder is None else self.folder


# -- in the executors ---------------------------------------------------------------------------------


def _line(kind: str, fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Write a record of a kind as a line of :data:`_SIDE_SCHEMA`."""
    if kind == "rows":
        source = fields["source"]
        place = source["epoch"], log_number(source["file"])[1], source["pos"], source["sub_index"]
        content = {name: value for name, value in fields.items() if name not in _NOT_DECODED}
        content["source"] = {name: value for name, value in source.items() if name not in ("version", "name")}
        return f"{source['db']}.{source['table']}", *place, source["row"], _json(content)
    if kind == "events":
        number = log_number(fields["log_file"])[1]
        place = fields["context"]["epoch"], number, fields["position"], fields["sub_index"]
        return f"event {fields['type']}", *place, 0, _json(fields)
    if kind == DEAD_LETTERS:
        place = fields["epoch"], log_number(fields["log_file"])[1], fields["position"], _nth(fields)
        told = {name: fields[name] for name in ("table", "error_class", "error")}
        return f"dead letters of {fields['service']}", *place, 0, _json(told)
    place = fields["epoch"], log_number(fields["file"])[1], fields["pos"], fields.get("sub_index", 0)
    content = {name: value for name, value in fields.items() if name not in _PLACE_OF_RECORD}
    return kind, *place, int(fields.get("status") == "END"), _json(content)


def _nth(dead_letter: Mapping[str, Any]) -> int:
    """Distinguish dead letters of one position: by the event, those of the decoder by the raw offset."""
    if dead_letter["service"] == "decoder":
        return int(dead_letter["raw_offset" if "raw_offset" in dead_letter else "offset"])
    try:
        return EventKey.parse(dead_letter["key"]).sub_index
    except ValueError:
        return 0


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
                    for part in file.iter_batches(_LISTED * 10):
                        yield batch_of([_line(kind, fields) for fields in part.to_pylist()], layout)

    return read


def _record_reader(
    kind: str, schemas: Mapping[int, Any], of_keys: Mapping[int, Any] | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout, readers = arrow_schema(_RECORD_SCHEMA), dict[int, AvroColumns]()
        known, keys = KnownSchemas(schemas), None if of_keys is None else records_by(of_keys)

        def fields_of(values: list[bytes]) -> list[Any]:
            number, _ = split_wire_format(values[0])
            if number not in readers:
                readers[number] = AvroColumns(known.schema(number))
            return list(readers[number].read(values).to_pylist())

        def line(*record: Any) -> Line | None:
            *_, key, value, fields = record
            if key is not None and keys is not None:
                keys.read(key)
            if fields is None:  # one of those that were read with it cannot be read
                (fields,) = fields_of([value or b""])
            logged = kind != "rows" or fields["source"]["snapshot"] in (None, "false")
            return (*_line(kind, fields), *NO_FAULT) if logged else None

        def faulty(*record: Any) -> Line:
            *place, _, reason = record
            return *_NO_CHANGE, *place, reason

        for batch in batches:
            by_schema: dict[bytes, list[Line]] = {}
            for record in rows_of(batch):
                value = record[-1] or b""
                by_schema.setdefault(value[: prefix_size(value)], []).append(record)
            for records in by_schema.values():
                try:
                    every = fields_of([record[-1] or b"" for record in records])
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
    """Yield the fields of records, by their paths, as JSON."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, json.dumps(value, ensure_ascii=False)


# -- on the driver ------------------------------------------------------------------------------------


def conformance(job: Job, spark: SparkSession, before: Side, after: Side) -> tuple[DataFrame, DataFrame]:
    """Compare two sides; write their differences, return these and how much was compared, by kind."""
    (source,) = job.sources
    first, second = (
        None if one.folder is None else Results.of(one.folder, source) for one in (before, after)
    )
    assert second is not None
    _check_alike(before, first, after, second)
    started = time.monotonic()
    with job.step(f"{before} compared with {after}"):
        new, begin = _folder(spark, second), None
        if first is None:
            old, begin = _published(job, spark)
        else:
            old = _folder(spark, first)
        low, high = _common(job, (before, old, first), (after, new, second), begin)
        both = old.withColumnRenamed("content", "old").join(
            new.withColumnRenamed("content", "new"), list(_PLACE), "full_outer"
        )
        if low is not None:
            both = both.where(place_column() >= order_of(low))
        if high is not None:
            both = both.where(place_column() <= order_of(high))
        differ = both.where("not (old <=> new)").select(*_PLACE, "old", "new")
        job.write(
            "differences", differ.mapInArrow(_differing(), _DIFFERENCE_SCHEMA).orderBy(*_PLACE, "field")
        )
        same = sf.col("old").eqNullSafe(sf.col("new"))
        size = sum(
            (sf.coalesce(sf.octet_length(name), sf.lit(0)) for name in ("old", "new")), start=sf.lit(0)
        )
        counts = both.groupBy("kind").agg(
            sf.count_if(same).alias("equal"),
            sf.count_if(~same & sf.col("old").isNotNull() & sf.col("new").isNotNull()).alias("changed"),
            sf.count_if(sf.col("new").isNull()).alias("missing"),
            sf.count_if(sf.col("old").isNull()).alias("added"),
            sf.sum(size).alias("bytes"),
        )
        job.write("compared", counts.orderBy("kind"))
    read = spark.read.parquet
    compared = read(f"{job.folder}/compared")
    total = compared.agg(
        sf.sum(sf.expr("2 * equal + 2 * changed + missing + added")).alias("records"),
        sf.sum("bytes").alias("bytes"),
    ).first()
    if total is None or not total.records:
        raise _nothing(before, after)
    job.steps.say_speed(total.records, total.bytes, time.monotonic() - started, "records")
    return read(f"{job.folder}/differences"), compared


def _nothing(before: Side, after: Side) -> UserError:
    return UserError(f"{before} and {after} have nothing in common to compare", ExitCode.DATA)


def _check_alike(before: Side, first: Results | None, after: Side, second: Results) -> None:
    """Refuse rows on one side and typed events on the other."""
    has = False if first is None else first.has_events
    if None not in (has, second.has_events) and has != second.has_events:
        some, other = ("rows", "typed events") if second.has_events else ("typed events", "rows")
        raise UserError(
            f"{before} has {some} and {after} has {other}: run reprocess with the same --into",
            ExitCode.SETTINGS,
        )


def _common(
    job: Job,
    before: tuple[Side, DataFrame, Results | None],
    after: tuple[Side, DataFrame, Results],
    begin: _Place | None,
) -> tuple[_Place | None, _Place | None]:
    """Return the first and the last place of what both sides have read, None where both begin or end alike.

    What was published begins at ``begin`` where its topics have lost records, and ends with its last
    transaction. Transactions that an end of the input cuts are left out.
    """
    (_, old, first), (_, new, second) = before, after
    # At which ends both have the same input: what one side lacks there, it has lost.
    begins, ends = False, False
    if first is not None and first.topic == second.topic:
        begins, ends = first.start == second.start, first.end == second.end
    if begins and ends:
        return None, None
    lows, highs = [] if begin is None else [begin], list[_Place]()
    for side, frame, one in (before, after):
        if one is not None:
            bounds = _ends_of(job, side, frame, one)
            lows.append(bounds[0])
            highs.append(bounds[1])
    units = old.union(new)
    low, high = None, None
    if not begins:
        low = _extreme(sf.min, units.where(_BEGINS).where(place_column() >= order_of(max(lows))))
    if not ends:
        ended = (old if first is None else units).where(_ENDS)
        high = _extreme(sf.max, ended.where(place_column() <= order_of(min(highs))))
    if (low is None and not begins) or (high is None and not ends):
        raise _nothing(before[0], after[0])
    read = "; ".join(f"{side} is made of {one}" for side, _, one in (before, after) if one is not None)
    bounds_told = [f"from {_shown(low)}" if low else "", f"to {_shown(high)}" if high else ""]
    job.notes.append(
        f"Only what both sides have read is compared, {' '.join(filter(None, bounds_told))}: {read}."
    )
    return low, high


def _shown(place: _Place) -> str:
    epoch, number, position = place
    return f"{number:06}:{position} of epoch {epoch}"


def _ends_of(job: Job, side: Side, frame: DataFrame, one: Results) -> tuple[_Place, _Place]:
    """Return the places of the first and the last raw event of an input.

    Where it is not there any more, those of what was made of it.
    """
    held = resolve_slice(job.spark, job.kafka, one.topic, missing_is_empty=True)
    first, end = held.offsets.get(0, (0, 0))
    archive = None
    if one.archive is not None:
        archive = Archive.read(one.archive)
        first, end = archive.start, max(end, archive.end)
    found: list[_Place | None] = [None, None]
    if first <= one.start and one.end <= end:
        at_start = one.start, min(one.end, one.start + _NEAR_END)
        at_end = max(one.start, one.end - _NEAR_END), one.end
        parts = [TopicSlice(one.topic, {0: offsets}, archive=archive) for offsets in (at_start, at_end)]
        records = [scan(job.spark, job.kafka, part, whole=True).where("key is not null") for part in parts]
        keys = [[bytes(row.key) for row in part.select("key").collect()] for part in records]
        found = [_first_place(keys[0]), _first_place(reversed(keys[1]))]
    if found[0] is None or found[1] is None:
        job.notes.append(
            f"{_UNSEEN}: the raw events at the ends of {one}, of which {side} is made, are no longer there."
        )
        found = [_extreme(best, frame) for best in (sf.min, sf.max)]
    low, high = found
    return low or (0, 0, 0), high or (0, 0, 0)


def _first_place(keys: Iterable[bytes]) -> _Place | None:
    for key in keys:
        with suppress(ValueError):
            return RawKey.parse(key).order
    return None


def _extreme(best: Callable[[Column], Column], frame: DataFrame) -> _Place | None:
    """Return the first or the last place of a frame; None where it has none."""
    ((place,),) = frame.agg(best(place_column())).collect()
    return None if place is None else tuple(place)


def _folder(spark: SparkSession, results: Results) -> DataFrame:
    """Read the results of reprocess, a task for each file."""
    frame = spark.createDataFrame(results.files, "kind string, path string")
    return frame.repartition(max(1, len(results.files))).mapInArrow(_file_reader(), _SIDE_SCHEMA)


def _published(job: Job, spark: SparkSession) -> tuple[DataFrame, _Place | None]:
    """Read what decoder and row mapper have published, and from where on it is there whole.

    That is None where no topic has lost records. What was redriven has come late, in transactions of its own.
    """
    (source,) = job.sources
    topics = Topics(source)
    of_tables = chain.from_iterable(topic_versions(job).values())
    frames, begins = [], []
    for kind, topic in [
        *(("rows", topic) for topic in of_tables),
        ("transactions", topics.transactions),
        ("ddl", topics.ddl),
        (DEAD_LETTERS, topics.deadletter),
    ]:
        part = resolve_slice(spark, job.kafka, topic, missing_is_empty=True)
        if not part.count:
            continue
        values = table_schemas(job, value_subject(topic))
        keys = table_schemas(job, key_subject(topic)) if kind == "rows" else None
        if kind == DEAD_LETTERS:  # which may be in chunks
            records = read_records(spark, job.kafka, part).withColumn("topic", sf.lit(topic))
        else:
            records = scan(spark, job.kafka, part)
        if kind == "rows":
            records = records.where("value is not null")
        if kind == "transactions":
            records = records.where(headers_of(HEADER_REDRIVEN).isNull())
        found = records.select(*RECORD_COLUMNS).mapInArrow(_record_reader(kind, values, keys), _RECORD_SCHEMA)
        frames.append(found)
        if any(start for start, _ in part.offsets.values()):
            begins.append(_extreme(sf.min, found.where("fault is null")))
    if not frames:
        raise UserError(f"{source} has published nothing", ExitCode.DATA)
    found = persisted(reduce(DataFrame.union, frames))
    job.faults.take(job.folder, found)
    lines = found.where("fault is null").drop(*FAULT_COLUMNS)
    dead_letters = (
        lines.where("kind like 'dead letters %'").groupBy(*_PLACE).agg(sf.max("content").alias("content"))
    )
    published = lines.where("kind not like 'dead letters %'").unionByName(dead_letters)
    return published, max((begin for begin in begins if begin is not None), default=None)


def report_of(
    job: Job, sides: tuple[Side, Side], counts: Sequence[Any], fields: Sequence[Any], examples: Sequence[Any]
) -> Report:
    """Build the page."""
    before, after = sides
    page = Report(f"Conformance of {job.sources[0]}", [f"before: {before}", f"after: {after}"])
    figures = {name: sum(row[name] for row in counts) for name in _COUNTED}
    total = sum(figures.values())
    if differing := total - figures["equal"]:
        page.verdict(f"{count(differing)} of {many(total, 'record')} differ.", "bad")
    else:
        mood = "doubt" if any(note.startswith(_UNSEEN) for note in job.notes) else "good"
        page.verdict(f"No difference in {many(total, 'record')}: all that both sides have read.", mood)
    for note in job.notes:
        page.text(note)
    page.tiles(list(figures.items()))
    page.section(
        "What was compared", "What is missing has only the first side, what was added only the second."
    )
    numbers = [(row.kind, *(row[name] for name in _COUNTED)) for row in counts]
    page.table(
        ["of", *_COUNTED],
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
    for note in job.notes:
        job.steps.say(note)
    counts = compared.orderBy("kind").collect()
    fields = differences.groupBy("kind", "what", "field").agg(sf.count("*").alias("n"))
    told = fields.orderBy(sf.desc("n"), "kind", "field").limit(_LISTED).collect()
    examples = differences.orderBy(*_PLACE, "field").limit(_LISTED).collect()
    summary = {
        "before": str(sides[0]),
        "after": str(sides[1]),
        "compared": {row.kind: {name: row[name] for name in _COUNTED} for row in counts},
        "fields": [row.asDict() for row in told],
    }
    job.finish(summary, report_of(job, sides, counts, told, examples))


if __name__ == "__main__":
    main()

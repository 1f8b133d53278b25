"""Decode ``{source}.raw`` again, into Parquet or Iceberg: rows as in the row topics, or typed events.

    millrace job reprocess --source shop
    millrace job reprocess --source shop --from 24h --format iceberg
    millrace job reprocess --source shop --format iceberg --follow
    spark-submit --jars … spark_jobs/reprocess.py --source shop --from 2026-01-31T10:00 --into events

The raw topic is one partition, and much of it can be read only from the beginning of a transaction. So it is
divided where transactions begin (:mod:`millrace.spark.raw_topic`). Executors fetch each piece and decode
it separately, by the same code as the services (:mod:`millrace.spark.decoding`), into columns and files:
no row becomes a Python object, and none passes through the JVM. The result does not depend on the division.
For Iceberg these files are staged: Spark appends them to tables (:mod:`spark_jobs.common.iceberg`).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import click
from pyspark.sql import SparkSession

from millrace.avro.catalog import CatalogEntry
from millrace.avro.schema_version import SchemaVersion
from millrace.contract import Topics
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.definitions import read_definitions
from millrace.runtime.errors import SettingsError
from millrace.spark.decoding import Decoding, sections_of
from millrace.spark.history import Definitions, schema_history
from millrace.spark.raw_topic import Piece, described_at
from millrace.stage import Record
from spark_jobs.common.charts import count, many
from spark_jobs.common.faults import DEAD_LETTERS
from spark_jobs.common.files import WrittenFile, remove_others
from spark_jobs.common.follow import Pace, check_endless, check_no_archive, follow_options
from spark_jobs.common.iceberg import IcebergTables, Slice, open_catalog
from spark_jobs.common.job import Input, Job, RawJobSettings, RowJobSettings, job_command, read_each
from spark_jobs.common.outcome import Gtids, Outcome, PieceWriter
from spark_jobs.common.pieces import MOST_PIECES, cut_input, defining_records, over_pieces
from spark_jobs.common.places import absolute
from spark_jobs.common.raw_stream import MicroBatch, follow_raw
from spark_jobs.common.report import Bytes, Report
from spark_jobs.common.tables import parse_gtids


def reprocess(  # noqa: PLR0917 - the options of the command
    job: Job,
    spark: SparkSession,
    into: Literal["rows", "events"],
    pieces: int | None,
    gtids: Gtids | None,
    catalog: str | None = None,
    given: Definitions | None = None,
    micro_batches: Mapping[str, MicroBatch] | None = None,
) -> dict[str, Outcome]:
    """Decode the raw events of each source into files or tables of a catalog; return the outcome.

    With definitions that are ``given`` the schema history is made again, of them and of all statements. A
    source in ``micro_batches`` is read from where an earlier run has ended.
    """
    tables = {} if catalog is None else {
        one.source: IcebergTables(spark, catalog, one.source, job.run) for one in job.inputs
    }  # fmt: skip
    try:
        outcomes = {
            one.source: _reprocess(
                job,
                one,
                into,
                pieces,
                gtids,
                tables.get(one.source),
                given,
                (micro_batches or {}).get(one.source),
            )
            for one in job.inputs
        }
        for source, of_source in tables.items():
            outcomes[source].snapshots = of_source.publish()
    except BaseException:
        for of_source in tables.values():
            of_source.discard()
        raise
    return outcomes


def _reprocess(  # noqa: PLR0917 - the options of the command
    job: Job,
    one: Input,
    into: str,
    number: int | None,
    gtids: Gtids | None,
    tables: IcebergTables | None,
    given: Definitions | None,
    micro_batch: MicroBatch | None,
) -> Outcome:
    with job.step(f"{one.part.topic}: transactions found"):
        pieces = cut_input(job, one, number) if micro_batch is None else micro_batch.pieces(job, one, number)
    catalog = _values(job, Topics(one.source).catalog, _check_entry) if into == "rows" else []
    schemas = _values(job, Topics(one.source).schemas, _check_version) if into == "rows" else []
    if given is not None:
        with job.step(f"{one.part.topic}: statements applied to the definitions that are given"):
            ((_, end),) = one.part.offsets.values()
            records = defining_records(job.spark, job.kafka, one.part.between(one.first, end))
            schemas = schema_history(one.source, records, catalog=catalog, stored=schemas, given=given)
    assert isinstance(job.settings, RowJobSettings)
    decoding = Decoding(
        one.source,
        into == "rows",
        int(time.time() * 1000),
        catalog,
        schemas,
        sections_of(job.settings),
    )
    whole = Outcome()
    if not pieces:
        return whole
    inside = f"{one.source}/" if len(job.inputs) > 1 else ""
    folder = f"{job.folder}/{inside}".rstrip("/")
    placed = tables is not None

    def begin(number: int, piece: Piece, prepared: Iterable[Sequence[Record]]) -> PieceWriter:
        writer = PieceWriter(decoding, folder, f"{number:05}", gtids, placed=placed)
        described = () if piece.described is None else ([piece.described],)
        for known in chain(prepared, described):
            writer.begin(*known)
        return writer

    def decode(pieces: Mapping[int, Piece]) -> dict[int, Outcome]:
        numbers = list(pieces)
        # To sort in Spark would decode everything twice: it looks first where to cut.
        found = over_pieces(job, one, list(pieces.values()), begin).collect()
        return {numbers[row.piece]: Outcome.from_json(row.outcome) for row in found}

    started = time.monotonic()
    with job.step(f"{one.part.topic}: {len(pieces)} pieces decoded into {into}"):
        before = () if micro_batch is None else micro_batch.prepared
        outcomes = decode(dict(enumerate(pieces)))
        known: dict[int, Sequence[Piece]] = {}
        while again := _deciding(job, one, pieces, outcomes, before, known):
            for at, outcome in decode(again).items():
                for file in outcomes[at].files:
                    job.remove(inside + file.path)
                outcomes[at], known[at] = outcome, again[at].prepared
        decided = {offsets for at, spans in known.items() for offsets in _decided(spans, outcomes[at])}
        for _, outcome in sorted(outcomes.items()):
            outcome.tell(job.faults, one.part.topic)
            whole.add(outcome)
        whole.unfinished += sorted({*whole.prepared, *(span.offsets for span in before)} - decided)
    job.steps.say_speed(whole.events, whole.raw_bytes, time.monotonic() - started)
    if tables is not None:
        with job.step(f"{one.part.topic}: {into} staged for Iceberg"):
            # What lies before the first record may need what lies before the slice, or is no longer held:
            # the head of a transaction, or the format description of a log.
            start, end = whole.first_offset if pieces[0].start else 0, pieces[-1].end
            part = Slice(end if start is None else start, end, whole.unfinished)
            if micro_batch is not None:
                start = pieces[0].start if micro_batch.resumed else part.start
                part = replace(part, start=start, prepared=[span.offsets for span in before])
            stage(tables, part, into, folder, whole.files)
        for kind in {file.table.partition("/")[0] for file in whole.files}:
            job.remove(inside + kind)
    else:
        remove_others(folder, whole.files)
    return whole


def _deciding(  # noqa: PLR0917 - as _reprocess has them
    job: Job,
    one: Input,
    pieces: Sequence[Piece],
    outcomes: Mapping[int, Outcome],
    before: Sequence[Piece],
    known: Mapping[int, Sequence[Piece]],
) -> dict[int, Piece]:
    """Give, by number, the pieces to be decoded again, with the XA transactions that they may decide.

    These are prepared before them, and were not decided in between. ``known`` has those that the outcomes are
    of: of one that decides an XA transaction which another piece has decided by now, the outcome is wrong.
    """
    found: dict[int, Piece] = {}
    prepared = list(before)
    seen = {span.offsets: span for spans in known.values() for span in spans}
    last_one = max([*known, *(number for number, outcome in outcomes.items() if outcome.decided)], default=-1)
    for number in range(last_one + 1):
        outcome, spans = outcomes[number], known.get(number, ())
        decided = _decided(spans, outcome)
        had, has = {span.offsets for span in spans}, {span.offsets for span in prepared}
        if decided - has or (outcome.decided and has - had):
            found[number] = replace(pieces[number], prepared=tuple(prepared))
        prepared = [span for span in prepared if span.offsets not in decided]
        for first, last in outcome.prepared if number < last_one else ():
            if (first, last) in seen:
                prepared += [] if (first, last) in had else [seen[first, last]]
                continue
            described = described_at(job.settings.kafka, one.part.topic, first, one.first, one.part.archive)
            prepared.append(Piece(first, last + 1, described))
    return found


def _decided(known: Sequence[Piece], outcome: Outcome) -> set[tuple[int, int]]:
    """Say which of the XA transactions that were known to a piece it has decided."""
    return {span.offsets for span in known} - {*outcome.prepared}


def stage(tables: IcebergTables, part: Slice, into: str, folder: str, files: Iterable[WrittenFile]) -> None:
    """Replace a slice of tables by the files that executors have written to a folder."""
    groups: dict[str, dict[str, list[str]]] = {}
    for file in files:
        table, _, group = file.table.removeprefix("rows/").partition("/")
        if into == "events" and table == DEAD_LETTERS:
            table = f"events_{DEAD_LETTERS}"  # the row mapper has some of its own
        groups.setdefault(table, {}).setdefault(group, []).append(f"{folder}/{file.path}")
    for table in sorted(groups):
        tables.stage(table, groups[table], part)
    tables.clear(part, events=into == "events", but=list(groups))


def _values(job: Job, topic: str, check: Callable[[bytes], None]) -> list[bytes]:
    """Read a topic of definitions of tables: what the reader has found, or what statements made of it."""

    def checked(value: bytes) -> bytes:
        check(value)
        return value

    return read_each(job, topic, checked)


def _check_entry(value: bytes) -> None:
    Catalog(kept=None).add(CatalogEntry.from_bytes(value))


def _check_version(value: bytes) -> None:
    Catalog(kept=None).restore(SchemaVersion.from_bytes(value))


def summary(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Return the figures for ``summary.json``; of tables of Iceberg they have no files, but snapshots."""
    return {
        source: {
            "raw_events": one.events,
            "raw_bytes": one.raw_bytes,
            **{name: one.counters[name] for name in sorted(one.counters)},
            "tables": {
                name: {"rows": rows, "bytes": size, "files": files}
                for name, rows, size, files in _tables(one)
            },
            "files": [] if one.snapshots else [file.path for file in one.files],
            "snapshots": one.snapshots,
        }
        for source, one in outcomes.items()
    }


def _tables(outcome: Outcome) -> list[tuple[str, int, int, int]]:
    """Sum up the files of each table."""
    found: dict[str, tuple[int, int, int]] = {}
    for file in outcome.files:
        rows, size, files = found.get(file.table, (0, 0, 0))
        found[file.table] = rows + file.rows, size + file.bytes, files + 1
    return [(name, *found[name]) for name in sorted(found)]


def report(job: Job, outcomes: dict[str, Outcome]) -> Report:
    """Build the page."""
    page = Report(f"Reprocessing of {', '.join(job.sources)}", job.facts)
    events = sum(one.events for one in outcomes.values())
    dead = sum(one.counters["dead_letters"] for one in outcomes.values())
    written = [file for one in outcomes.values() for file in one.files]
    records = sum(file.rows for file in written)
    if dead:
        lost = f"{count(dead)} dead letters could not be decoded"
        page.verdict(f"{count(records)} records were written, but {lost}.", "bad")
    elif not events:
        page.verdict("There was no event to read.", "doubt")
    elif not records:
        page.verdict(f"Nothing was written: no record is made of {many(events, 'event')}.", "doubt")
    else:
        page.verdict(f"{count(records)} records were written: everything could be decoded.", "good")
    page.tiles(
        [
            ("raw events", events),
            ("records written", records),
            ("transactions", sum(one.counters["transactions"] for one in outcomes.values())),
            ("dead letters", dead),
            ("in files", Bytes(sum(file.bytes for file in written))),
        ]
    )
    for note in job.notes:
        page.text(note)
    for source, one in outcomes.items():
        page.section(f"Tables of {source}")
        page.table(
            ["table", "rows", "files", "bytes"],
            [(name, rows, files, Bytes(size)) for name, rows, size, files in _tables(one)],
        )
        if one.snapshots:
            page.text("In Iceberg, each with the rows of this slice, which replace its earlier ones:")
            page.table(
                ["table of Iceberg", "snapshot"], [(name, str(at)) for name, at in one.snapshots.items()]
            )
    return page


def _check_options(
    *,
    into: str,
    gtids: str | None,
    script: Path | None,
    table_format: str,
    catalog: str | None,
    warehouse: str | None,
    follow: bool,
    **_: Any,
) -> None:
    """Refuse options that cannot be read or combined, before Spark is started."""
    if gtids is not None:
        parse_gtids("--gtids", gtids)
    if script is not None and into == "events":
        raise SettingsError(["--definitions needs --into rows and one --source"])
    if table_format != "iceberg" and (catalog or warehouse):
        raise SettingsError(["--catalog and --warehouse need --format iceberg"])
    if follow and table_format != "iceberg":
        raise SettingsError(
            ["--follow goes with --format iceberg, whose tables take each addition in one step"]
        )
    if follow and script is not None:
        raise SettingsError(
            ["--definitions cannot be combined with --follow: rebuild the schema history instead"]
        )


@job_command("reprocess", raw=True, settings_class=RowJobSettings, check=_check_options)
@click.option(
    "--into",
    type=click.Choice(["rows", "events"]),
    default="rows",
    show_default=True,
    help="Row changes, as published by the row mapper, or typed events, as published by the decoder.",
)
@click.option(
    "--gtids",
    help="Only transactions of this set: for MySQL as in gtid_executed, for MariaDB all up to a position as "
    "in gtid_slave_pos.",
)
@click.option(
    "--definitions",
    "script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.sql",
    help="CREATE DATABASE and CREATE TABLE as of the first raw event, as mysqldump --no-data writes them: "
    "the schema history is made again for this run, of these and of all statements of the log.",
)
@click.option(
    "--pieces",
    type=click.IntRange(1, MOST_PIECES),
    help="Number of pieces into which the log is divided for decoding; by default depends on its size.",
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["parquet", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Parquet files in the output folder, or Iceberg tables, in which the slice is replaced.",
)
@click.option(
    "--catalog",
    help="Catalog of the Iceberg tables, as in Spark's settings spark.sql.catalog.NAME; by default a "
    "Hadoop catalog in the warehouse.",
)
@click.option(
    "--warehouse", help="Folder of the Iceberg tables, without --catalog. [warehouse in the output folder]"
)
@follow_options
def main(  # noqa: PLR0917 - click calls it by names
    job: Job,
    spark: SparkSession,
    into: Literal["rows", "events"],
    gtids: str | None,
    script: Path | None,
    pieces: int | None,
    table_format: str,
    catalog: str | None,
    warehouse: str | None,
    *,
    follow: bool,
    every: int,
) -> None:
    """Decode raw events again, into rows or typed events, as Parquet or Iceberg."""
    for note in _notes(job.settings, into, gtids):
        job.steps.say(note)
        job.notes.append(note)
    given = None
    if script is not None:
        if len(job.inputs) > 1:
            raise SettingsError(["--definitions needs --into rows and one --source"])
        given = read_definitions(script)
    opened = None
    if table_format == "iceberg":
        _check(job.settings, gtids, catalog, warehouse)
        warehouse = warehouse or f"{absolute(job.output)}/warehouse"
        opened = open_catalog(spark, catalog, warehouse)
    wanted = None if gtids is None else parse_gtids("--gtids", gtids)

    def run(one: Job, micro_batches: Mapping[str, MicroBatch] | None) -> dict[str, Outcome]:
        outcomes = reprocess(one, spark, into, pieces, wanted, opened, given, micro_batches)
        one.finish(summary(outcomes), report(one, outcomes))
        return outcomes

    if not follow:
        run(job, None)
        return
    check_endless()
    check_no_archive(job)
    where = {"into": into, "catalog": catalog or warehouse}
    follow_raw(job, run, Pace(timedelta(seconds=every)), where)


def _notes(settings: RawJobSettings, into: str, gtids: str | None) -> list[str]:
    """Say what is not as the row mapper has it."""
    notes = []
    if gtids is not None:
        notes.append(f"Only transactions of {gtids} are decoded.")
    if into == "rows" and settings.rows.complete:  # pieces are decoded apart, and rows come from all before
        notes.append(
            "MILLRACE_ROWS_COMPLETE does not apply: columns that minimal images lack are not filled in."
        )
    return notes


def _check(settings: RawJobSettings, gtids: str | None, catalog: str | None, warehouse: str | None) -> None:
    """Refuse what tables of Iceberg cannot be made by."""
    problems = []
    if gtids is not None:
        problems.append(
            "--gtids cannot be combined with --format iceberg, which replaces a slice: give --from and --to"
        )
    if catalog is not None and warehouse is not None:
        problems.append("--warehouse cannot be combined with --catalog: the catalog has its own")
    if settings.rows.wide_decimal == "decimal":
        problems.append("MILLRACE_ROWS_WIDE_DECIMAL is decimal, and Iceberg has 38 digits: set it to string")
    if problems:
        raise SettingsError(problems)


if __name__ == "__main__":
    main()

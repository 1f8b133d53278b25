"""Decode ``{source}.raw`` again, into Parquet or Iceberg: rows as the row mapper has them, or typed events.

    millrace job reprocess --source shop
    millrace job reprocess --source shop --from 24h --format iceberg
    millrace job reprocess --source shop --format iceberg --follow
    spark-submit --jars … spark_jobs/reprocess.py --source shop --from 2026-01-31T10:00 --into events

The raw topic is one partition, and much of what is in it can be read only from where a transaction begins. So
a first pass looks at the heads of the events alone and finds where transactions begin and log files describe
their format (:mod:`spark_jobs.common.pieces`). Then each piece is decoded by itself, by the same code as in
the services (:mod:`spark_jobs.common.decoding`), into columns and into files: no row is an object of Python,
and none passes the JVM. What comes out does not depend on where the pieces lie. For Iceberg these files are
staged: Spark appends them to tables (:mod:`spark_jobs.common.iceberg`).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

import click
import pyarrow as pa
from pyspark.sql import SparkSession

from millrace.avro.catalog import CatalogEntry
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.errors import BinlogError
from millrace.binlog.gtid_set import GtidSet, MariadbGtidPosition
from millrace.contract import Topics
from millrace.rowmapper.catalog import Catalog
from millrace.runtime.errors import SettingsError
from millrace.runtime.logging import configure_logging
from spark_jobs.common.decoding import Decoding
from spark_jobs.common.faults import DEAD_LETTERS, read_each
from spark_jobs.common.files import WrittenFile
from spark_jobs.common.follow import Pace, check_endless, follow_options
from spark_jobs.common.iceberg import IcebergTables, Slice, open_catalog
from spark_jobs.common.job import Input, Job, RawJobSettings, job_command
from spark_jobs.common.outcome import Gtids, Outcome, PieceWriter, records_of
from spark_jobs.common.pieces import MOST_PIECES, Piece, cut, read_pieces
from spark_jobs.common.places import absolute
from spark_jobs.common.raw_stream import Begun, follow_raw
from spark_jobs.common.raw_topic import CarriedSettings, read_piece
from spark_jobs.common.report import Bytes, Report

__all__ = ["main"]

_PIECE_BYTES: Final = 64 << 20
_LEAST_OFFSETS: Final = 20_000
"""Fewer, of what has arrived, are not worth a pass to cut them."""


def reprocess(  # noqa: PLR0917 - the options of the command
    job: Job,
    spark: SparkSession,
    into: Literal["rows", "events"],
    pieces: int | None,
    gtids: Gtids | None,
    catalog: str | None = None,
    begun: Mapping[str, Begun] | None = None,
) -> dict[str, Outcome]:
    """Decode the raw events of each source into files or tables of a catalog; return what came of it.

    A source that has ``begun`` is read from where an earlier run has ended.
    """
    tables = {} if catalog is None else {
        one.source: IcebergTables(spark, catalog, one.source, job.run) for one in job.inputs
    }  # fmt: skip
    try:
        outcomes = {
            one.source: _reprocess(
                job, spark, one, into, pieces, gtids, tables.get(one.source), (begun or {}).get(one.source)
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
    spark: SparkSession,
    one: Input,
    into: str,
    number: int | None,
    gtids: Gtids | None,
    tables: IcebergTables | None,
    begun: Begun | None,
) -> Outcome:
    with job.step(f"{one.part.topic}: transactions found"):
        cuts = _cuts(job, spark, one, number, begun)
    decoding = Decoding(
        one.source,
        into == "rows",
        int(time.time() * 1000),
        _values(job, Topics(one.source).catalog, _check_entry) if into == "rows" else (),
        _values(job, Topics(one.source).schemas, _check_version) if into == "rows" else (),
        job.settings.rows.model_dump(),
        job.settings.topics.model_dump(),
    )
    whole = Outcome()
    if cuts:
        folder = f"{job.folder}/{one.source}" if len(job.inputs) > 1 else job.folder
        with job.step(f"{one.part.topic}: {len(cuts)} pieces decoded into {into}"):
            known = _Known(CarriedSettings.of(job.settings.kafka), one.part.topic, begun)
            decode = _decoder(decoding, folder, cuts, gtids, known, placed=tables is not None)
            records = read_pieces(spark, job.kafka, one.part, cuts)
            # To sort in Spark would decode everything twice: it looks first where to cut.
            found = records.mapInArrow(decode, "piece int, outcome string").collect()
            told = {row.piece: row.outcome for row in found}
            for piece in sorted(told):
                outcome = Outcome.from_json(told[piece])
                outcome.tell(job.faults, one.part.topic)
                whole.add(outcome)
            if begun is not None and not told:
                whole.unfinished += begun.spans
        if tables is not None:
            with job.step(f"{one.part.topic}: {into} staged for Iceberg"):
                # What lies before the first record may need what lies before the slice, or is no longer held:
                # the head of a transaction, or the format description of a log.
                start, end = whole.first_offset if cuts[0].start else 0, cuts[-1].end
                part = Slice(end if start is None else start, end, whole.unfinished)
                if begun is not None:
                    start = cuts[0].start if begun.resumed else part.start
                    part = replace(part, start=start, prepared=begun.spans)
                stage(tables, part, into, folder, whole.files)
            for kind in {file.table.partition("/")[0] for file in whole.files}:
                job.remove(f"{folder.removeprefix(job.folder)}/{kind}".lstrip("/"))
    return whole


def _cuts(job: Job, spark: SparkSession, one: Input, number: int | None, begun: Begun | None) -> list[Piece]:
    """Cut what is read of a source; what goes on with transactions that are prepared is one piece."""
    if begun is not None and (begun.prepared or one.part.count < _LEAST_OFFSETS):
        return [begun.stretch]
    # As many as keep all cores at work to the end, and no more than a plan should have.
    cores = spark.sparkContext.defaultParallelism
    cuts = cut(spark, job.kafka, one.part, one.first, number, _PIECE_BYTES, least_number=2 * cores)
    if begun is not None:
        cuts[0] = replace(begun.stretch, end=cuts[0].end)
    return cuts


def stage(tables: IcebergTables, part: Slice, into: str, folder: str, files: Iterable[WrittenFile]) -> None:
    """Replace a slice of tables by what executors have left in the files of a folder."""
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


@dataclass(frozen=True, slots=True)
class _Known:
    """Where executors read transactions that were prepared before what they decode."""

    kafka: CarriedSettings
    topic: str
    begun: Begun | None

    def tell(self, writer: PieceWriter) -> None:
        """Have a piece begin with them."""
        for span in () if self.begun is None else self.begun.prepared:
            if span.described is not None:
                writer.begin(span.described)
            for records in read_piece(self.kafka, self.topic, span):
                writer.begin(*records)


def _decoder(
    decoding: Decoding,
    folder: str,
    pieces: list[Piece],
    gtids: Gtids | None,
    known: _Known,
    *,
    placed: bool,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make what executors do with the records of a Spark partition: those of one piece or of several."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        configure_logging("CRITICAL")  # what the services would log is in the dead letters
        number, writer = -1, None
        for batch in batches:
            if not batch.num_rows:
                continue
            of = batch.column("piece")[0].as_py()
            if writer is None or of != number:
                if writer is not None:
                    yield _told(number, writer)
                number, writer = of, PieceWriter(decoding, folder, f"{of:05}", gtids, placed=placed)
                known.tell(writer)
                described = pieces[of].described
                if described is not None:
                    writer.begin(described)
            writer.take(records_of(batch))
        if writer is not None:
            yield _told(number, writer)

    return decode


def _told(piece: int, writer: PieceWriter) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"piece": pa.array([piece], pa.int32()), "outcome": pa.array([writer.finish().to_json()])}
    )


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
    dead = sum(one.counters["dead_letters"] for one in outcomes.values())
    written = [file for one in outcomes.values() for file in one.files]
    page.tiles(
        [
            ("raw events", sum(one.events for one in outcomes.values())),
            ("rows written", sum(file.rows for file in written)),
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
            page.text("In Iceberg, each with the rows of this slice in place of those that it had of it:")
            page.table(
                ["table of Iceberg", "snapshot"], [(name, str(at)) for name, at in one.snapshots.items()]
            )
    return page


def _gtids(text: str | None) -> Gtids | None:
    """Read a set of GTIDs, of MySQL or MariaDB."""
    if text is None:
        return None
    for kind in (GtidSet, MariadbGtidPosition):
        try:
            return kind.parse(text)
        except BinlogError:
            continue
    raise SettingsError([f"--gtids is {text!r}: expected a set as of gtid_executed, or as of gtid_slave_pos"])


@job_command("reprocess", raw=True)
@click.option(
    "--into",
    type=click.Choice(["rows", "events"]),
    default="rows",
    show_default=True,
    help="Row changes, as the row mapper publishes them, or typed events, as the decoder does.",
)
@click.option(
    "--gtids",
    help="Only transactions of this set: of MySQL as gtid_executed is, of MariaDB all up to a position as "
    "gtid_slave_pos is.",
)
@click.option(
    "--pieces",
    type=click.IntRange(1, MOST_PIECES),
    help="How many pieces to decode at the same time or one after the other; by default by size.",
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["parquet", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Parquet files in the folder of the results, or Iceberg tables, in which the slice is replaced.",
)
@click.option(
    "--catalog",
    help="Catalog of the Iceberg tables, that of Spark's settings spark.sql.catalog.NAME; by default a "
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
    pieces: int | None,
    table_format: str,
    catalog: str | None,
    warehouse: str | None,
    *,
    follow: bool,
    every: int,
) -> None:
    """Decode raw events again, into rows or typed events, as Parquet or Iceberg."""
    opened = None
    if table_format == "iceberg":
        _check(job.settings, gtids, catalog, warehouse)
        warehouse = warehouse or f"{absolute(job.output)}/warehouse"
        opened = open_catalog(spark, catalog, warehouse)
    elif catalog or warehouse:
        raise SettingsError(["--catalog and --warehouse go with --format iceberg"])

    def run(one: Job, begun: Mapping[str, Begun] | None) -> dict[str, Outcome]:
        outcomes = reprocess(one, spark, into, pieces, _gtids(gtids), opened, begun)
        one.finish(summary(outcomes), report(one, outcomes))
        return outcomes

    if not follow:
        run(job, None)
        return
    check_endless()
    if opened is None:
        raise SettingsError(
            ["--follow goes with --format iceberg, whose tables take each addition in one step"]
        )
    if any(one.part.archive is not None for one in job.inputs):
        raise SettingsError(["--archive does not go with --follow, which reads the topic alone"])
    where = {"into": into, "catalog": catalog or warehouse}
    follow_raw(job, run, Pace(timedelta(seconds=every)), where)


def _check(settings: RawJobSettings, gtids: str | None, catalog: str | None, warehouse: str | None) -> None:
    """Refuse what tables of Iceberg cannot be made by."""
    problems = []
    if gtids is not None:
        problems.append(
            "--gtids does not go with --format iceberg, which replaces a slice: give --from and --to"
        )
    if catalog is not None and warehouse is not None:
        problems.append("--warehouse does not go with --catalog: the catalog has its own")
    if settings.rows.wide_decimal == "decimal":
        problems.append("MILLRACE_ROWS_WIDE_DECIMAL is decimal, and Iceberg has 38 digits: set it to string")
    if problems:
        raise SettingsError(problems)


if __name__ == "__main__":
    main()

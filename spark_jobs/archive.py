"""Archive ``{source}.raw`` as Parquet: a stream of its records, which Spark writes exactly once.

    millrace job archive --source shop --archive s3a://lake/millrace
    millrace job reprocess --source shop --archive s3a://lake/millrace

:mod:`millrace.spark.archive` says how it is read.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.spark.archive import Archive, has_archive, is_folder
from spark_jobs.common.charts import many
from spark_jobs.common.follow import follow_options
from spark_jobs.common.job import Input, Job, job_command
from spark_jobs.common.places import absolute
from spark_jobs.common.report import Bytes, Code, Report
from spark_jobs.common.session import is_stopped
from spark_jobs.common.source import follow_log

_MOST_OFFSETS: Final = 2_000_000
_ROW_GROUP_BYTES: Final = 16 << 20
_LOOK_S: Final = 1
_TWO_WRITERS: Final = "CONCURRENT_STREAM_LOG_UPDATE"


def stream_into(job: Job, one: Input, place: str, pace: str, end: int | None = None) -> StreamingQuery:
    """Write the raw events that follow those of an archive to it as they come, those before ``end``."""
    job.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    stream = follow_log(job, one, "raw", most_offsets=_MOST_OFFSETS, end=end)
    writer = stream.writeStream.format("parquet").trigger(processingTime=pace)
    writer = writer.options(compression="zstd", **{"parquet.block.size": str(_ROW_GROUP_BYTES)})
    return writer.option("checkpointLocation", f"{place}/_checkpoint").start(place)


def archive_topic(job: Job, one: Input, place: str) -> Archive:
    """Add what the topic has by now to an archive."""
    _check_checkpoint(place)
    ((_, end),) = one.part.offsets.values()
    query = stream_into(job, one, place, "0 seconds", end)
    try:
        query.processAllAvailable()
    except StreamingQueryException as error:
        if _TWO_WRITERS not in str(error):
            raise
        raise UserError(f"another run adds to {place} at the same time", ExitCode.DATA) from None
    finally:
        query.stop()
    return Archive.read(place)


def _check_checkpoint(place: str) -> None:
    """Refuse an archive whose stream is not known: Spark would leave out the first batches of another one."""
    if has_archive(place) and not is_folder(f"{place}/_checkpoint/offsets"):
        raise UserError(
            f"{place} lacks _checkpoint, which continues it: restore it, or archive into another folder",
            ExitCode.DATA,
        )


def summary(before: Mapping[str, Archive | None], after: Mapping[str, Archive]) -> dict[str, Any]:
    """Return the figures for ``summary.json``."""
    found = {}
    for source, archive in after.items():
        had, has = _figures(before[source]), _figures(archive)
        added = {name: has[name] - had[name] for name in has}
        ends = {"archive": archive.place, "start": archive.start, "end": archive.end}
        found[source] = {**ends, **has, "added": added}
    return found


def _figures(archive: Archive | None) -> dict[str, int]:
    files = () if archive is None else archive.files
    return {
        "files": len(files),
        "records": sum(one.records for one in files),
        "bytes": sum(one.bytes for one in files),
    }


def report(job: Job, figures: Mapping[str, Any]) -> Report:
    """Build the page."""
    page = Report(f"Archive of {', '.join(job.sources)}", job.facts)
    added = sum(one["added"]["records"] for one in figures.values())
    if added:
        page.verdict(f"{many(added, 'record')} added.", "good")
    else:
        page.verdict("Nothing was added: the topics have no record after the archives.", "doubt")
    page.table(
        ["source", "first offset", "end offset", "records", "added", "files", "size", "folder"],
        [
            (
                source, one["start"], one["end"], one["records"], one["added"]["records"], one["files"],
                Bytes(one["bytes"]), Code(one["archive"]),
            )
            for source, one in figures.items()
        ],
    )  # fmt: skip
    return page


@job_command("archive", raw=True, appends=True)
@follow_options
def main(job: Job, spark: SparkSession, archive: str, every: int, *, follow: bool) -> None:
    """Archive raw events as Parquet: those that were added to the topic since the run before."""
    places = {one.source: f"{absolute(archive)}/{one.source}" for one in job.inputs}
    if follow:
        for one in job.inputs:
            _check_checkpoint(places[one.source])
            stream_into(job, one, places[one.source], f"{every} seconds")
        while not spark.streams.awaitAnyTermination(_LOOK_S):
            if is_stopped(spark):
                raise RuntimeError("Spark has ended a stream that runs until it is stopped")
        return
    started = time.monotonic()
    before = {one.source: one.part.archive for one in job.inputs}
    after = {}
    for one in job.inputs:
        with job.step(f"{one.part.topic} archived"):
            after[one.source] = archive_topic(job, one, places[one.source])
    figures = summary(before, after)
    added = [one["added"] for one in figures.values()]
    records, size = (sum(one[name] for one in added) for name in ("records", "bytes"))
    job.steps.say_speed(records, size, time.monotonic() - started, "records")
    job.finish(figures, report(job, figures))


if __name__ == "__main__":
    main()

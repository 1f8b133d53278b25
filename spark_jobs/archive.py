"""Archive ``{source}.raw`` as Parquet: the records added since the previous run.

    millrace job archive --source shop --archive s3a://lake/millrace
    millrace job reprocess --source shop --archive s3a://lake/millrace

See :mod:`spark_jobs.common.archive` for the format and for reading.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_jobs.common.archive import Archive, ArchivedFile, append, read_archive
from spark_jobs.common.charts import many
from spark_jobs.common.job import Job, job_command, moment
from spark_jobs.common.report import Bytes, Code, Report

_OFFSETS_AT_ONCE: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class Archived:
    """An archive after a run, and which of its files the run has added."""

    archive: Archive
    added: Sequence[ArchivedFile]


def archive_topics(job: Job, spark: SparkSession, folder: str) -> dict[str, Archived]:
    """Add what follows the archive of each source to it, in parts: a run that is ended has added some."""
    found = {}
    started = time.monotonic()
    for one in job.inputs:
        archive = before = read_archive(spark, folder, one.source)
        ((start, end),) = one.part.offsets.values()
        for first in range(start, max(end, start + 1), _OFFSETS_AT_ONCE):
            last = min(first + _OFFSETS_AT_ONCE, end)
            with job.step(f"{one.part.topic}: archived to offset {last:,}"):
                archive = append(
                    spark, job.kafka, one.part.between(first, last), folder, archive, run=job.run
                )
        assert archive is not None
        found[one.source] = Archived(archive, archive.files[len(before.files) if before else 0 :])
    added = _figures([file for one in found.values() for file in one.added])
    job.steps.say_speed(added["records"], added["bytes"], time.monotonic() - started, "records")
    return found


def summary(found: Mapping[str, Archived]) -> dict[str, Any]:
    """Return the figures for ``summary.json``."""
    return {
        source: {
            "archive": one.archive.folder,
            "start": one.archive.start,
            "end": one.archive.end,
            "files": len(one.archive.files),
            **_figures(one.archive.files),
            "added": _figures(one.added),
        }
        for source, one in found.items()
    }


def _figures(files: Sequence[ArchivedFile]) -> dict[str, int]:
    return {"records": sum(one.records for one in files), "bytes": sum(one.bytes for one in files)}


def report(job: Job, found: Mapping[str, Archived]) -> Report:
    """Build the page."""
    page = Report(f"Archive of {', '.join(job.sources)}", job.facts)
    added = _figures([file for one in found.values() for file in one.added])
    held = _figures([file for one in found.values() for file in one.archive.files])
    if added["records"]:
        page.verdict(f"{many(added['records'], 'record')} added.", "good")
    else:
        page.verdict("Nothing was added: the topics have no record after the archives.", "doubt")
    page.tiles(
        [
            ("records added", added["records"]),
            ("bytes added", Bytes(added["bytes"])),
            ("records in all", held["records"]),
            ("bytes in all", Bytes(held["bytes"])),
        ]
    )
    page.section("Archives")
    page.table(
        [
            "source",
            "first offset",
            "end offset",
            "first record (UTC)",
            "last record (UTC)",
            "files",
            "folder",
        ],
        [
            (
                source,
                one.archive.start,
                one.archive.end,
                _time(min((file.first_ms for file in one.archive.files), default=None)),
                _time(max((file.last_ms for file in one.archive.files), default=None)),
                len(one.archive.files),
                Code(one.archive.folder),
            )
            for source, one in found.items()
        ],
    )
    return page


def _time(millis: int | None) -> str:
    return (None if millis is None else moment(millis // 1000)) or ""


@job_command("archive", raw=True, appends=True)
def main(job: Job, spark: SparkSession, archive: str) -> None:
    """Archive raw events as Parquet: those that were added to the topic since the run before."""
    found = archive_topics(job, spark, archive)
    job.finish(summary(found), report(job, found))


if __name__ == "__main__":
    main()

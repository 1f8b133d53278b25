"""Jobs that keep running: new records are processed in micro-batches of Spark's Structured Streaming.

Spark determines which offsets are new, and keeps its progress in a checkpoint. A micro-batch that was not
finished when the job ended is repeated, with the same offsets; so may be one that had just finished.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from millrace.runtime.errors import SettingsError
from spark_jobs.common.job import Job
from spark_jobs.common.kafka import stream
from spark_jobs.common.places import absolute
from spark_jobs.common.session import is_stopped

MOST_OFFSETS: Final = 1_000_000
"""New offsets of a topic in a micro-batch, while it catches up."""

_LOOK_S: Final = 1
_STOPPED: Final = "Spark has ended a stream that runs until it is stopped"


class _BatchError(Exception):
    """Ends a micro-batch in place of its own failure, whose text may be too long for Spark's patterns."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the job checks for new records.

    With ``once`` it ends when it has processed all existing records.
    """

    every: timedelta
    once: bool = False


@dataclass(frozen=True, slots=True)
class Arrived:
    """What is new in a topic: the offset after its last record, and the earliest time of its records."""

    end: int
    begun: datetime


def checkpoint(job: Job) -> str:
    """Name the folder in which it is kept how far a job has come."""
    return f"{absolute(job.output)}/checkpoint"


def follow_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that can keep running."""
    every = click.option(
        "--every",
        type=click.IntRange(1, 86_400),
        default=60,
        show_default=True,
        help="With --follow, seconds between checks for new events.",
    )
    follow = click.option(
        "--follow",
        is_flag=True,
        help="Keep running and process new events as they arrive; a restart resumes.",
    )
    return follow(every(function))


def check_endless() -> None:
    """Refuse an end for what has none."""
    if click.get_current_context().params["end"] != "latest":
        raise SettingsError(["--to cannot be combined with --follow, which has no end"])


def check_no_archive(job: Job) -> None:
    """Refuse an archive, which does not grow with the topic."""
    if any(one.part.archive is not None for one in job.inputs):
        raise SettingsError(["--archive does not go with --follow, which reads the topic alone"])


def follow_topics(job: Job, take: Callable[[Mapping[str, Arrived]], None], pace: Pace) -> None:
    """Call ``take`` with what has arrived in the topics of a job; where it was stopped, it resumes.

    Raises what ``take`` does.
    """

    def take_batch(batch: DataFrame, _number: int) -> None:
        found = batch.groupBy("topic").agg(
            (sf.max("offset") + 1).alias("end"),
            sf.min(sf.unix_millis("timestamp")).alias("begun"),
        )
        arrived = {row.topic: Arrived(row.end, _moment(row.begun)) for row in found.collect()}
        if arrived:
            take(arrived)

    starts = {one.part.topic: {str(n): at for n, (at, _) in one.part.offsets.items()} for one in job.inputs}
    topics = ",".join(starts)
    records = stream(job.spark, job.kafka, topics, json.dumps(starts), len(starts) * MOST_OFFSETS)
    run_stream(job, records, take_batch, pace)


def run_stream(job: Job, records: DataFrame, take: Callable[[DataFrame, int], None], pace: Pace) -> None:
    """Call ``take`` with each micro-batch of a stream, and its number; where it was stopped, it resumes.

    Raises what ``take`` does.
    """
    failures: list[BaseException] = []
    done = -1

    def take_batch(batch: DataFrame, number: int) -> None:
        nonlocal done
        try:
            take(batch, number)
        except BaseException as error:  # noqa: BLE001 - raised again where the query ends
            failures.append(error)
            raise _BatchError from None
        done = number

    writer = records.writeStream.foreachBatch(take_batch).option("checkpointLocation", checkpoint(job))
    if pace.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{pace.every.total_seconds():.0f} seconds")
    ended = False
    while not ended:
        before = done
        query = writer.start()
        try:
            # A stream that waits for records does not see that Spark was stopped.
            while not query.awaitTermination(_LOOK_S):
                if is_stopped(job.spark):
                    raise RuntimeError(_STOPPED)
            ended = True
        except StreamingQueryException:
            if failures:
                raise failures[0] from None
            # Spark 4.1 fails after a batch that it repeats, for its metrics of Kafka: it resumes after that.
            if done == before:
                raise
        finally:
            query.stop()
            job.discard()
    if not pace.once:
        raise RuntimeError(_STOPPED)


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)

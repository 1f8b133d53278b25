"""Loop detection that goes on: as events arrive, the stretch that they end is looked over again.

Spark's Structured Streaming tells which offsets are new and keeps in a checkpoint how far it has come. What
was before them is not kept by it: Kafka holds it. So each micro-batch reads the topics of all members again,
from ``window`` before the first new event on, and looks for the same in the same way as a batch. What it
takes depends on that window, and not on how long it has been going on.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from millrace.avro.registry import value_subject
from spark_jobs.common.faults import Faults
from spark_jobs.common.job import Input, Job, JobSettings, new_run, schemas_of
from spark_jobs.common.kafka import resolve_slice, stream
from spark_jobs.common.places import absolute

__all__ = ["Pace", "follow"]

_MOST_OFFSETS: Final = 1_000_000
"""New offsets of a topic in a micro-batch, while it catches up."""

_LOOK_S: Final = 1
_STOPPED: Final = "Spark has ended what goes on until it is stopped"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often it is looked whether there is something new, and how far back events are read again.

    With ``once`` it ends when it has come to the end of what is there.
    """

    every: timedelta
    window: timedelta
    once: bool = False


def follow(job: Job, look: Callable[[Job], None], pace: Pace) -> None:
    """Call ``look`` with a job on each stretch; where it was stopped, it resumes.

    Raises what ``look`` does.
    """
    failures: list[BaseException] = []
    looked = 0

    def look_over(batch: DataFrame, _number: int) -> None:
        nonlocal looked
        try:
            inputs = _inputs(job, batch, pace.window)
            if inputs:
                one = replace(job, inputs=inputs, notes=[], faults=Faults(), run=new_run())
                job.spark.sparkContext.setCheckpointDir(one.kept)
                _looked_over(one, look)
                looked += 1
        except BaseException as error:
            failures.append(error)
            raise

    starts = {one.part.topic: {str(n): at for n, (at, _) in one.part.offsets.items()} for one in job.inputs}
    topics = ",".join(starts)
    writer = stream(job.spark, job.kafka, topics, json.dumps(starts), len(starts) * _MOST_OFFSETS).writeStream
    writer = writer.foreachBatch(look_over).option("checkpointLocation", f"{absolute(job.output)}/checkpoint")
    if pace.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{pace.every.total_seconds():.0f} seconds")
    done = False
    while not done:
        before = looked
        query = writer.start()
        try:
            # A stream that waits for records does not see that Spark was stopped.
            while not query.awaitTermination(_LOOK_S):
                if job.spark.sparkContext._jsc is None:
                    raise RuntimeError(_STOPPED)
            done = True
        except StreamingQueryException:
            if failures:
                raise failures[0] from None
            # Spark 4.1 fails after a batch that it repeats, for its metrics of Kafka: it resumes after that.
            if looked == before:
                raise
        finally:
            query.stop()
            job.discard()
    if not pace.once:
        raise RuntimeError(_STOPPED)


def _looked_over(job: Job, look: Callable[[Job], None]) -> None:
    try:
        look(job)
    except BaseException:
        job.discard()
        raise


def _inputs(job: Job, batch: DataFrame, window: timedelta) -> Sequence[Input]:
    """Give what is read of each topic: from a window before the first new event of all to the end."""
    found = batch.groupBy("topic").agg(
        (sf.max("offset") + 1).alias("end"), sf.min(sf.unix_millis("timestamp")).alias("begun")
    )
    ends = {row.topic: row for row in found.collect()}
    if not ends:
        return []
    begun = datetime.fromtimestamp(min(row.begun for row in ends.values()) / 1000, UTC) - window
    inputs = []
    for one in job.inputs:
        topic = one.part.topic
        end = ends[topic].end if topic in ends else None
        assert isinstance(job.settings, JobSettings)
        schemas = schemas_of(job.settings, one.source, value_subject(topic))
        part = resolve_slice(job.spark, job.kafka, topic, begun, end)
        inputs.append(replace(one, part=part, schemas=schemas))
    return inputs

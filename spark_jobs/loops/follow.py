"""Continuous loop detection: when events arrive, the part of the logs before them is compared again.

Earlier events are not kept, since Kafka has them. So each micro-batch reads the topics of all members again,
from ``window`` before the first new event, and compares them as a batch run does. Its cost depends on that
window, and not on how long the job has been running.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from millrace.avro.registry import value_subject
from spark_jobs.common.charts import many
from spark_jobs.common.faults import Faults
from spark_jobs.common.follow import Arrived, Pace, follow_topics
from spark_jobs.common.job import Input, Job, JobSettings, moment, new_run, schemas_of
from spark_jobs.common.kafka import resolve_slice


def follow(job: Job, look: Callable[[Job], None], pace: Pace, window: timedelta) -> None:
    """Call ``look`` with a job on each stretch; where it was stopped, it resumes.

    Raises what ``look`` does.
    """

    def look_over(arrived: Mapping[str, Arrived]) -> None:
        begun = min(one.begun for one in arrived.values()) - window
        since, minutes = moment(int(begun.timestamp())), many(window // timedelta(minutes=1), "minute")
        note = (
            f"The logs were compared from {since} UTC on, {minutes} before the new events. Incidents may "
            "have begun earlier."
        )
        inputs = _inputs(job, arrived, begun)
        one = replace(job, inputs=inputs, notes=[note], faults=Faults(), run=new_run())
        one.say_inputs()
        job.spark.sparkContext.setCheckpointDir(one.kept)
        try:
            look(one)
        except BaseException:
            one.discard()
            raise

    follow_topics(job, look_over, pace)


def _inputs(job: Job, arrived: Mapping[str, Arrived], begun: datetime) -> Sequence[Input]:
    """Return the range to read of each topic: from a time to the end of what arrived."""
    inputs = []
    for one in job.inputs:
        topic = one.part.topic
        end = arrived[topic].end if topic in arrived else None
        assert isinstance(job.settings, JobSettings)
        schemas = schemas_of(job.settings, one.source, value_subject(topic))
        part = resolve_slice(job.spark, job.kafka, topic, begun, end)
        inputs.append(replace(one, part=part, schemas=schemas))
    return inputs

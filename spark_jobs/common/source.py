"""What a job reads of the log: the views of ``spark.read.format("millrace")``."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from pydantic import SecretStr
from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from millrace.binlog.names import quoted_name
from millrace.runtime.settings import KafkaSettings
from millrace.spark import register

if TYPE_CHECKING:
    from spark_jobs.common.job import Input, Job

_R = TypeVar("_R", DataFrameReader, DataStreamReader)


def read_log(
    job: "Job",
    one: "Input",
    view: str = "changes",
    *,
    table: tuple[str, str] | None = None,
    columns: str | StructType | None = None,
    **options: str,
) -> DataFrame:
    """Return a view of the part of a raw topic that a job reads, or the changes of one table.

    ``columns`` is the schema that is wanted: what it lacks is not decoded. Records that cannot be
    read are left out; the view ``_corrupt`` has them. ``options`` are further ones of the source.
    """
    reader = _reader(job, job.spark.read, one, view, columns).options(**_slice(one), **options)
    if table is not None:
        reader = reader.option("table", quoted_name(*table))
    return reader.load()


def follow_log(
    job: "Job",
    one: "Input",
    view: str,
    *,
    columns: StructType | None = None,
    most_offsets: int,
    end: int | None = None,
) -> DataFrame:
    """Return a view of a raw topic as a stream that begins where the job does, as :func:`read_log` does.

    It ends before the offset ``end``.
    """
    reader = _reader(job, job.spark.readStream, one, view, columns)
    bounds = {"startingOffsets": _slice(one)["startingOffsets"], "maxOffsetsPerTrigger": str(most_offsets)}
    if end is not None:
        bounds["endingOffsets"] = str(end)
    return reader.options(**bounds).load()


def _reader(job: "Job", reader: _R, one: "Input", view: str, columns: str | StructType | None) -> _R:
    register(job.spark)
    reader = reader.format("millrace").options(**_of_kafka(job.settings.kafka))
    reader = reader.options(source=one.source, view=view, mode="PERMISSIVE")
    return reader if columns is None else reader.schema(columns)


def _slice(one: "Input") -> Mapping[str, str]:
    """Return the bounds of a slice as Spark's Kafka source names them."""
    ((start, end),) = one.part.offsets.values()
    bounds = {"startingOffsets": start, "endingOffsets": end}
    archive = {} if one.part.archive is None else {"archive": one.part.archive.place}
    return archive | {name: json.dumps({one.part.topic: {"0": at}}) for name, at in bounds.items()}


def _of_kafka(settings: KafkaSettings) -> dict[str, str]:
    """Return how Kafka is reached as options of the source."""
    options = {}
    for name, value in settings.model_dump(exclude_none=True).items():
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        options[f"kafka.{name.replace('_', '.')}"] = text
    return options

"""What a job computes once: it lies in files, where no executor that is lost takes it along."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.common.job import persisted
from tests.spark_session import SPARK

pytestmark = SPARK


def test_it_is_computed_once_and_kept_in_files(spark: SparkSession, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with calls.open("a") as file:
            file.write("x")
        yield from batches

    folder = Path((spark.sparkContext.getCheckpointDir() or "").removeprefix("file:"))
    before = set(folder.glob("rdd-*/part-*"))
    kept = persisted(spark.range(0, 10, 1, 2).mapInArrow(count, "id long"))
    assert kept.count() == kept.where("id >= 0").count() == 10
    assert calls.read_text() == "xx"
    assert len(set(folder.glob("rdd-*/part-*")) - before) == 2
    assert not spark.sparkContext._jsc.getPersistentRDDs()  # type: ignore[union-attr]

"""Whether executors see the folder that a job is to write to."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.common.places import seen_by_executors
from tests.spark_session import SPARK

pytestmark = SPARK


def test_executors_see_a_folder_that_they_share(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seen_by_executors(spark, tmp_path)
    assert list(tmp_path.iterdir()) == []
    # The path of another folder in each process: where executors are on other machines.
    own = Path("/proc/self/cwd")
    spark.sparkContext.parallelize([0]).map(
        str
    ).collect()  # the processes of Python are where the session began
    monkeypatch.chdir(tmp_path)
    assert not seen_by_executors(spark, own)
    assert list(tmp_path.iterdir()) == []

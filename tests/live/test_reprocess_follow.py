"""The job reprocess as the raw topic grows, killed again and again: in the end all is there once."""

import json
import random
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.local import Kafka
from spark_jobs.common.follow import Pace
from spark_jobs.common.iceberg import open_catalog
from spark_jobs.common.job import Job
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.raw_stream import MicroBatch, follow_raw
from spark_jobs.reprocess import report, reprocess, summary
from tests.service_process import wait_for
from tests.spark_session import SPARK, spark
from tests.stages import without_nulls
from tests.unit.spark.test_decoding import LOGS, log, raw
from tests.worker import Worker

from .raw_world import DYING, RawTopic, key_of_epoch

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.slow, pytest.mark.timeout(1800)]

KILLED = f"""{DYING}
from spark_jobs.common import iceberg, raw_stream

match point:
    case "staged":
        dying(iceberg.IcebergTables, "publish", before=True)
    case "published in part":
        dying(iceberg, "_shown", before=True)
    case "published":
        dying(raw_stream, "_write", before=True)
    case "noted":
        dying(raw_stream, "_write", before=False)
main()
"""
"""The command, killed in a micro-batch: when tables are staged, one is published, all are, all is noted."""

POINTS = ("staged", "published in part", "published", "noted")


class World(RawTopic, Worker):
    """A raw topic that is written all the time: the log of a real server again and again, an epoch each."""

    def __init__(self, kafka: Kafka, source: str) -> None:
        RawTopic.__init__(self, kafka, source, "reprocess")
        Worker.__init__(self)
        self.written = 0
        self._records = raw(log(LOGS[1]))

    def _run(self) -> None:
        epoch = 0
        while not self._stop.is_set():
            for record in self._records:
                self._producer.produce(self.topic, record.value, key_of_epoch(record, epoch), 0)
                if record.offset % 20 == 0:  # also in the middle of transactions
                    self._producer.flush()
                    self._stop.wait(0.1)
            self._producer.flush()
            self.written += len(self._records)
            epoch += 1


@pytest.fixture
def world(kafka: Kafka, source_name: str) -> Iterator[World]:
    world = World(kafka, source_name)
    world.create()
    yield world
    world.delete()


def catalog_in(spark: SparkSession, name: str, folder: Path) -> str:
    """Open the catalog that a job with this output folder has, under a name."""
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"spark.sql.catalog.{name}.type", "hadoop")
    spark.conf.set(f"spark.sql.catalog.{name}.warehouse", str(folder / "warehouse"))
    return open_catalog(spark, name, "")


def everything(spark: SparkSession, catalog: str, source: str) -> dict[str, list[str]]:
    """Read all tables, as text that can be compared."""
    names = [row.tableName for row in spark.sql(f"SHOW TABLES IN {catalog}.`{source}`").collect()]
    return {
        name: sorted(
            json.dumps(without_nulls(row), sort_keys=True, default=str)
            for row in spark.table(f"{catalog}.`{source}`.`{name}`").toArrow().to_pylist()
        )
        for name in names
    }


def test_reprocess_that_is_killed_while_it_goes_on(spark: SparkSession, world: World, tmp_path: Path) -> None:
    folder = tmp_path / "followed"
    iceberg = "--format", "iceberg"
    position = folder / "checkpoint" / "millrace.json"

    with world:
        wait_for(lambda: world.written, None, "the first log")
        for point in POINTS:
            with world.begin(["-c", KILLED, point], folder, *iceberg) as process:
                _, told = process.communicate(timeout=300)
            assert process.returncode == -signal.SIGKILL, told
            assert position.exists() == (point == "noted"), told
        before = position.read_text()
        with world.begin(["-m", "millrace.cli"], folder, *iceberg) as process:
            wait_for(lambda: position.read_text() != before, None, "a micro-batch")
            time.sleep(random.random() * 5)
            process.kill()
            process.communicate()

    catalog = catalog_in(spark, f"followed_{tmp_path.name}", folder)

    def run(job: Job, micro_batches: Mapping[str, MicroBatch]) -> Mapping[str, Outcome]:
        outcomes = reprocess(job, spark, "rows", None, None, catalog, micro_batches=micro_batches)
        job.finish(summary(outcomes), report(job, outcomes))
        return outcomes

    where = {"into": "rows", "catalog": str(folder / "warehouse")}
    follow_raw(world.job(spark, folder), run, Pace(timedelta(seconds=1), once=True), where)

    whole = catalog_in(spark, f"whole_{tmp_path.name}", tmp_path / "whole")
    job = world.job(spark, tmp_path / "whole")
    reprocess(job, spark, "rows", 3, None, whole)
    expected = everything(spark, whole, world.source)
    assert len(expected["transactions"]) > 100
    assert any(expected.values())
    assert everything(spark, catalog, world.source) == expected
    ((_, end),) = job.inputs[0].part.offsets.values()
    assert json.loads(position.read_text())["positions"][world.source]["offset"] == end
    assert not list(folder.glob("run-*/rows"))

"""The Spark of the tests: one small local session for a whole run."""

import gc
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from millrace.cli import main
from millrace.cli.job import connector_jars
from millrace.local.java import spark_environment
from spark_jobs.common import job
from spark_jobs.common.session import SparkSettings, spark_session
from tests.shared import environment_with

SPARK = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
"""Marks of a module whose tests run Spark; pyspark leaves sockets to the garbage collector."""

QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
}
"""For frames of some rows, compiling and adapting a query takes longer than running it."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the connectors; the JVM, and with it its jars, lives as long as the process."""
    os.environ.update(spark_environment(archive=False))
    with spark_session("tests", "local[2]", SparkSettings(jars=connector_jars(iceberg=True))) as session:
        for name, value in QUICK.items():
            session.conf.set(name, value)
        session.sparkContext.setCheckpointDir(str(tmp_path_factory.mktemp("kept")))
        yield session
        gc.collect()


def run_job(
    session: SparkSession, *arguments: str, settings: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``millrace job`` to its end, whatever its exit code, in a session instead of one of its own."""
    kept = session.sparkContext.getCheckpointDir()
    with (
        patch.dict(os.environ, environment_with(settings), clear=True),
        patch.object(job, "spark_session", lambda *_: nullcontext(session)),
        patch.object(job, "configure_logging"),
    ):
        done = CliRunner().invoke(main, ["job", *arguments])
    assert kept is not None
    session.sparkContext.setCheckpointDir(kept)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

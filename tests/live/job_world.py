"""A source from a real server to its typed events, and the jobs that run over it."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from millrace.local import Kafka, MariaDB, MySQL, Registry
from tests.live.reader_world import RawRecord, ReaderWorld
from tests.live.test_decoder import World
from tests.service_process import source_environment
from tests.shared import run_python
from tests.spark_session import run_job


class JobWorld:
    """One source; what its jobs write goes to ``folder``.

    They run in the session ``spark``, or without it as processes of their own.
    """

    def __init__(
        self, kafka: Kafka, registry: Registry, source: str, folder: Path, spark: SparkSession | None = None
    ) -> None:
        self.kafka = kafka
        self.registry = registry
        self.source = source
        self.folder = folder
        self.spark = spark

    def capture(self, server: MySQL | MariaDB, source: str | None = None, *, start: str = "earliest") -> None:
        """Read all that the server has logged from ``start`` to now and decode it."""
        name = source or self.source
        world = ReaderWorld.of(self.kafka, name, server, MILLRACE_START=start)
        with world.reader() as process:
            world.wait_until_at(server, process)
        World(self.kafka, self.registry, name).decode_all()

    def raw(self, source: str | None = None) -> list[RawRecord]:
        return ReaderWorld(self.kafka, source or self.source).raw()

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a job; which sources it reads, its arguments say."""
        settings = source_environment(self.kafka, self.source, self.registry)
        del settings["MILLRACE_SOURCE"]
        return settings

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``millrace job`` with arguments."""
        settings = {**self.settings, **environment}
        if self.spark is not None:
            return run_job(self.spark, *arguments, settings=settings)
        return run_python("-m", "millrace.cli", "job", *arguments, settings=settings, timeout_s=1600)

    def job(self, name: str, *options: str, sources: Sequence[str] = ()) -> dict[str, Any]:
        """Run a job to its end and return its summary."""
        named = [part for source in sources or [self.source] for part in ("--source", source)]
        done = self.run(name, *named, "--output", str(self.folder), "--master", "local[2]", *options)
        assert done.returncode == 0, done.stderr
        assert "WARN" not in done.stderr
        summary = json.loads((self.folder / "summary.json").read_text())
        assert isinstance(summary, dict)
        return summary

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a Parquet result."""
        return list(pq.read_table(self.folder / name).to_pylist())

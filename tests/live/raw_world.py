"""A raw topic made of logs of real servers, and a job that follows it, killed at chosen points."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from millrace.contract import RawKey
from millrace.kafka.client import connect
from millrace.kafka.topics import TOPIC_SPECS
from millrace.local import Kafka
from millrace.runtime.settings import load_settings
from millrace.stage import Record
from spark_jobs.common.job import Job, RowJobSettings, _inputs
from spark_jobs.common.kafka import kafka_options
from spark_jobs.common.session import Steps
from tests.shared import PROJECT, environment_with

DYING = """
import functools, os, signal, sys
from millrace.cli import main

point = sys.argv.pop(1)

def dying(of, name, *, before):
    inner = getattr(of, name)

    @functools.wraps(inner)
    def call(*arguments):
        if not before:
            inner(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(of, name, call)

"""
"""The start of a program that is the command and dies before or after a call, at the point it is given."""


class RawTopic:
    """The raw topic of a source, what writes it, and the job of a name that reads it."""

    def __init__(self, kafka: Kafka, source: str, job_name: str) -> None:
        self.source, self.topic, self.job_name = source, f"{source}.raw", job_name
        self.environment = {"MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
        self.settings = load_settings(
            RowJobSettings, source=source, kafka={"bootstrap_servers": kafka.bootstrap_servers}
        )
        self._admin = connect(self.settings.kafka)
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def create(self) -> None:
        """Create the topic as the reader does."""
        topic = NewTopic(self.topic, 1, 1, config=TOPIC_SPECS["raw"].config(1))
        self._admin.create_topics([topic])[self.topic].result()

    def delete(self) -> None:
        self._admin.delete_topics([self.topic])[self.topic].result()

    def job(self, spark: SparkSession, folder: Path) -> Job:
        options = kafka_options(self.settings.kafka)
        inputs = list(_inputs(spark, options, {self.source: {}}, (None, None), "raw"))
        steps = Steps(spark, self.job_name)
        return Job(self.job_name, str(folder), options, inputs, steps, spark, self.settings)

    def begin(
        self, command: Sequence[str], folder: Path, *options: str, **environment: str
    ) -> subprocess.Popen[str]:
        """Start the job that follows the topic: ``command`` is what Python is to run."""
        arguments = [
            "job", self.job_name, "--source", self.source, "--master", "local[2]", "--output", str(folder),
            "--follow", "--every", "1", *options,
        ]  # fmt: skip
        return subprocess.Popen(
            [sys.executable, *command, *arguments],
            env=environment_with({**self.environment, **environment}),
            cwd=PROJECT, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


def key_of_epoch(record: Record, epoch: int) -> bytes:
    """Return the key of a record as if its log were that of another epoch."""
    key = RawKey.parse(record.key or b"")
    return RawKey(key.server_id, epoch, key.log_file, key.position).encode()

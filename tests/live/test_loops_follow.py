"""Loop detection that goes on, over topics of a real Kafka that hold the logs of simulated servers."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from millrace.avro.events import binlog_event_schema
from millrace.avro.registry import SchemaRegistry, value_subject, wire_prefix
from millrace.kafka.alerts import ALERTS
from millrace.kafka.client import connect
from millrace.kafka.read import read_topic
from millrace.local import Kafka, Registry
from millrace.runtime.settings import KafkaSettings, load_settings
from spark_jobs.common.follow import Pace
from spark_jobs.common.job import Job, JobSettings, _inputs, schemas_of
from spark_jobs.common.kafka import kafka_options
from spark_jobs.common.session import Steps
from spark_jobs.loop_detection import detect, tell
from spark_jobs.loops.follow import follow
from tests.shared import PROJECT, environment_with
from tests.spark_session import SPARK, spark
from tests.unit.spark.members import Server, ring, settle, traffic

__all__ = ["spark"]

pytestmark = [*SPARK, pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = ("north", "east", "south")
PREFIX = 5
ONCE = Pace(timedelta(seconds=1), once=True)


class World:
    """A ring of servers, and what of their logs is in their topics."""

    def __init__(self, spark: SparkSession, kafka: Kafka, registry: Registry, name: str, output: Path):
        self.spark, self.output = spark, str(output)
        self.servers = ring(*(Server(f"{name}-{part}", n) for n, part in enumerate(NAMES, 1)))
        self.sources = [server.name for server in self.servers]
        self.settings = load_settings(
            JobSettings,
            source=self.sources[0],
            kafka={"bootstrap_servers": kafka.bootstrap_servers},
            registry={"url": registry.url},
        )
        self.admin = connect(self.settings.kafka)
        schemas = SchemaRegistry(self.settings.registry)
        for source in self.sources:
            self.id = schemas.register(value_subject(f"{source}.events"), binlog_event_schema())
        topics = [NewTopic(f"{source}.events", 1, 1) for source in self.sources]
        for future in self.admin.create_topics(topics).values():
            future.result()
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        self._written = dict.fromkeys(self.sources, 0)
        self.looks: list[Sequence[str]] = []

    def traffic(self, start: int, seconds: int) -> None:
        traffic(self.servers, start, seconds)

    def publish(self) -> None:
        """Write what is new in the logs."""
        for server in self.servers:
            for key, value in server.log.records[self._written[server.name] :]:
                self._producer.produce(f"{server.name}.events", wire_prefix(self.id) + value[PREFIX:], key, 0)
            self._written[server.name] = len(server.log.records)
        assert self._producer.flush(60) == 0

    def follow(self) -> None:
        """Start the job, which ends when it has come to the end of the topics."""
        options = kafka_options(self.settings.kafka)
        known = {
            source: schemas_of(self.settings, source, value_subject(f"{source}.events"))
            for source in self.sources
        }
        inputs = list(_inputs(self.spark, options, known, (None, None), "events"))
        steps = Steps(self.spark, "loop_detection")
        job = Job("loop_detection", self.output, options, inputs, steps, self.spark, self.settings)
        self.looks = []
        follow(job, self.look, ONCE, timedelta(hours=1))

    def look(self, job: Job) -> None:
        findings = detect(job, self.spark, [])
        self.looks.append([one.kind for one in findings.incidents])
        tell(job, findings)

    def alerts(self) -> list[str]:
        settings = KafkaSettings(bootstrap_servers=self.settings.kafka.bootstrap_servers)
        told = [json.loads(message.value() or b"") for message in read_topic(settings, ALERTS)]
        return [one["kind"] for one in told if one.get("sources") == self.sources]


@pytest.fixture
def world(
    spark: SparkSession, kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path
) -> Iterator[World]:
    world = World(spark, kafka, registry, source_name, tmp_path / "results")
    yield world
    for future in world.admin.delete_topics([f"{source}.events" for source in world.sources]).values():
        future.result()


def test_a_loop_is_told_once_and_what_was_looked_over_is_not_looked_over_again(world: World) -> None:
    world.traffic(1100, 6)
    world.publish()
    world.follow()
    assert (world.looks, world.alerts()) == ([[]], [])
    world.servers[0].write(1106, "loops", origin=99)
    world.traffic(1107, 5)
    world.publish()
    world.follow()
    assert (world.looks, world.alerts()) == ([["loop"]], ["loop"])
    world.follow()
    assert world.looks == []
    world.traffic(1112, 3)  # it goes on
    world.publish()
    world.follow()
    assert (world.looks, world.alerts()) == ([["loop"]], ["loop"])
    summary = json.loads((Path(world.output) / "summary.json").read_text())
    assert summary["verdict"] == "incidents"
    (note,) = summary["notes"]
    assert note.endswith(" UTC on, 60 minutes before the new events. Incidents may have begun earlier.")
    assert note in (Path(world.output) / "report.html").read_text()


def test_the_command_goes_on_until_it_is_told_to_stop(world: World) -> None:
    world.traffic(1100, 2)
    settle(world.servers)
    world.publish()
    settings = {
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": world.settings.kafka.bootstrap_servers,
        "MILLRACE_REGISTRY_URL": str(world.settings.registry.url),
    }
    named = [part for source in world.sources for part in ("--source", source)]
    options = ["--output", world.output, "--master", "local[2]", "--follow", "--every", "1", "--alerts"]
    command = [sys.executable, "-m", "millrace.cli", "job", "loop_detection", *named, *options]
    with subprocess.Popen(
        command, env=environment_with(settings), cwd=PROJECT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:  # it has looked
                if "incidents are new" in line:
                    break
            world.traffic(1102, 2)
            world.publish()
            for line in process.stderr:
                if "logs read (" in line:
                    break
            process.terminate()  # while it looks
            *others, last = process.stderr.read().splitlines()
            assert last == "error: loop_detection was stopped by SIGTERM; the previous results remain"
            assert [line for line in others if not line.startswith("loop_detection: ")] == []
            assert process.wait() == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert json.loads((Path(world.output) / "manifest.json").read_text())["mood"] == "good"


def test_what_fails_is_told_and_looked_over_the_next_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.traffic(1100, 2)
    world.publish()
    with monkeypatch.context() as patched:
        patched.setattr(world, "look", lambda _job: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.follow()
    assert not list(Path(world.output).glob("run-*"))
    world.follow()
    assert world.looks == [[]]

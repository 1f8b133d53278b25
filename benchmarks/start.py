"""Time from the start of a service to the next row, and where it goes: ``python -m benchmarks.start``.

The three services run on the local stack, and a row is written every 20 ms. Each service in turn is ended
(with SIGTERM and a second without it; with SIGKILL, at any moment of its work, and no pause) and started
again. The time is measured from the start of the process, or from SIGKILL, to the arrival of the first row in
the row topic that was written after it. The phases are those of the last start of each service, in seconds
from the start of the process (:mod:`benchmarks.phases`).

Before the first start the cluster has had a transactional producer: for its first one Kafka makes a topic of
its own, and a client that is refused meanwhile asks again after 500 ms.
"""

import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import click
from confluent_kafka import TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.machine import cpu_time, machine
from benchmarks.phases import SPAWNED
from benchmarks.pipeline import SERVICES
from millrace.kafka.client import (
    KAFKA_LOG,
    Consumer,
    Producer,
    connect,
    consumer_config,
    producer_config,
)
from millrace.kafka.topics import ensure_topics
from millrace.local import LocalStack
from millrace.local.database import DatabaseServer
from millrace.local.processes import Process
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import KafkaSettings, TopicsSettings

_CONSOLE = Console(width=110)
_SOURCE = "start"
_DATABASE = "bench"
_WRITE_EVERY_S = 0.02
_REST_S = 1.0
_GIVE_UP_S = 120.0
_KEY_PREFIX = 5


@click.command()
@click.option("--rounds", default=5, show_default=True, help="How often each service is ended and started.")
def main(rounds: int) -> None:
    """Measure how long each service takes to the next row after a start, and after SIGKILL."""
    configure_logging("ERROR")
    with (
        tempfile.TemporaryDirectory(prefix="millrace-start-") as folder,
        _CONSOLE.status("starting Kafka, the registry and MySQL") as status,
        LocalStack(say=_CONSOLE.print) as stack,
        _Writer(stack.database) as writer,
        _Follower(stack.kafka.bootstrap_servers) as follower,
        ExitStack() as running,
    ):
        kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)  # type: ignore[call-arg]
        Producer(producer_config(kafka, "bench"), logger=KAFKA_LOG).init_transactions(_GIVE_UP_S)
        services = _Services(stack, Path(folder))
        running.callback(services.stop)
        before, since = cpu_time(), time.monotonic()
        status.update("the first start")
        first = _until_next(writer, follower, lambda: [services.start(name) for name in SERVICES])
        table = Table("service", title="Seconds to the next row: median (worst)", title_justify="left")
        table.add_column("after a start")
        table.add_column("after SIGKILL")
        for name in SERVICES:
            figures = []
            for number in (signal.SIGTERM, signal.SIGKILL):
                status.update(f"{name}, {number.name}")
                took = [_again(services, name, number, writer, follower) for _ in range(rounds)]
                figures.append(f"{statistics.median(took):.2f} ({max(took):.2f})")
            table.add_row(name, *figures)
        busy = (cpu_time() - before).used_s / (time.monotonic() - since)
        _CONSOLE.print(f"{machine()}; {busy:.1f} cores were in use, the benchmark's own work included")
        _CONSOLE.print(f"all three, from nothing, topics and schemas included: {first:.2f} s")
        _CONSOLE.print(table)
        for name in SERVICES:
            _CONSOLE.print(services.phases(name))


def _again(
    services: "_Services", name: str, number: signal.Signals, writer: "_Writer", follower: "_Follower"
) -> float:
    """End a service and start it again; give the seconds to the next row."""
    time.sleep(_REST_S)
    if number == signal.SIGKILL:
        return _until_next(writer, follower, lambda: services.restart(name))
    services.end(name)
    time.sleep(_REST_S)
    return _until_next(writer, follower, lambda: services.start(name))


def _until_next(writer: "_Writer", follower: "_Follower", act: Callable[[], object]) -> float:
    """Do something; give the seconds from then to the arrival of a row that was written since."""
    since, newest = time.monotonic(), writer.newest
    act()
    while follower.newest <= newest:
        if time.monotonic() - since > _GIVE_UP_S:
            raise RuntimeError(f"no row after {_GIVE_UP_S:g} s")
        time.sleep(0.002)
    return time.monotonic() - since


class _Services:
    """The three services as processes that note their phases."""

    def __init__(self, stack: LocalStack, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            **dict(stack.environment()),
            "MILLRACE_SOURCE": _SOURCE,
            "MILLRACE_LOG_LEVEL": "WARNING",
        }
        self._processes: dict[str, Process] = {}

    def start(self, name: str) -> None:
        log = self._folder / f"{name}.log"
        log.unlink(missing_ok=True)
        environment = {**self._environment, SPAWNED: f"{time.time():.3f}"}
        command = [sys.executable, "-m", "benchmarks.phases", name]
        self._processes[name] = Process(name, command, log=log, env=environment, cwd=Path.cwd())

    def end(self, name: str) -> None:
        self._processes[name].stop()

    def restart(self, name: str) -> None:
        self._processes[name].kill()
        self.start(name)

    def stop(self) -> None:
        for process in self._processes.values():
            process.stop()

    def phases(self, name: str) -> Table:
        table = Table(f"{name}", "at", "took", title_justify="left")
        for line in (self._folder / f"{name}.log").read_text().splitlines():
            if line.startswith("phase\t"):
                _, depth, phase, at, took = line.split("\t")
                table.add_row("  " * int(depth) + phase, at, took)
        return table


class _Writer:
    """Writes a row now and then; ``newest`` is the number of the last one that is committed."""

    def __init__(self, database: DatabaseServer) -> None:
        self.newest = 0
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        database.execute(
            f"CREATE DATABASE {_DATABASE}", f"CREATE TABLE {_DATABASE}.rows_ (id INT PRIMARY KEY)"
        )

    def _run(self) -> None:
        with self._database.connect() as connection, connection.cursor() as cursor:
            while not self._stop.wait(_WRITE_EVERY_S):
                cursor.execute(f"INSERT INTO {_DATABASE}.rows_ VALUES ({self.newest + 1})")
                self.newest += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class _Follower:
    """Reads the row topic as a consumer does; ``newest`` is the number of the last row that has arrived."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.newest = 0
        self._settings = KafkaSettings(bootstrap_servers=bootstrap_servers)  # type: ignore[call-arg]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def _run(self) -> None:
        topic = f"{_SOURCE}.{_DATABASE}.rows_"
        admin, kinds = connect(self._settings), {topic: "table"}
        ensure_topics(admin, TopicsSettings(), kinds)  # type: ignore[call-arg]
        config = consumer_config(self._settings, "bench") | {"auto.offset.reset": "earliest"}
        consumer = Consumer(config, logger=KAFKA_LOG)
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not self._stop.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                key = message.key()
                assert isinstance(key, bytes)
                self.newest = max(self.newest, _number(key[_KEY_PREFIX:]))
        consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _number(key: bytes) -> int:
    """Read an int of Avro."""
    value = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(key))
    return (value >> 1) ^ -(value & 1)


if __name__ == "__main__":
    main()

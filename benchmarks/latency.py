"""From INSERT to a consumer of the row topic, at a steady rate: ``python -m benchmarks.latency --help``.

A separate process inserts rows, each in a transaction, with the time of the INSERT; this one reads the
row topic as any consumer does (read_committed) and compares it with the same clock. Debezium has its
settings for a low latency: ``poll.interval.ms=10`` and ``linger.ms=0``; it does not write exactly once.
"""

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import click
from confluent_kafka import TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.peers.debezium import Debezium
from benchmarks.pipeline import FORMS, running
from millrace import kernel
from millrace.avro.records import deserialize
from millrace.avro.registry import SchemaRegistry
from millrace.contract import Topics
from millrace.kafka import client
from millrace.kafka.client import consumer_config
from millrace.kafka.state import newest_offset
from millrace.local import LocalStack
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import KafkaSettings, RegistrySettings

_CONSOLE = Console(width=120)
_DATABASE = "latency"
_CONNECTIONS = 4
_WARM_UP_S = 30.0
"""Rows of the first seconds, in which Java compiles what Kafka runs, are not counted."""

_DEBEZIUM = "debezium"
_KAFKAS_JAVA = (
    "-Xmx6g",
    "-Xms6g",
    "-XX:MetaspaceSize=96m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:G1HeapRegionSize=16M",
    "-XX:MinMetaspaceFreeRatio=50",
    "-XX:MaxMetaspaceFreeRatio=80",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""Kafka's documentation has them as typical. Those of the local stack are for a small memory."""

_LOW_LATENCY = {"poll.interval.ms": "10", "producer.override.linger.ms": "0"}

SentAt = Callable[[bytes], int]
"""Reads from a record when its INSERT was sent, microseconds since 1970."""


@click.command()
@click.option("--rates", default="200,1000", show_default=True, help="Transactions per second.")
@click.option("--seconds", default=120, show_default=True, help="How long each rate is kept.")
@click.option("--forms", default=",".join((*FORMS, _DEBEZIUM)), show_default=True, help="What carries them.")
def main(rates: str, seconds: int, forms: str) -> None:
    """Insert rows at a steady rate and print how long they take to a consumer of their topic."""
    configure_logging("WARNING")
    table = Table(
        "form",
        "transactions/s",
        "rows",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "most ms",
        title="INSERT to consumer",
    )
    stack = LocalStack(say=_CONSOLE.print)
    stack.kafka.java_options = _KAFKAS_JAVA
    with stack:
        stack.database.execute(f"CREATE DATABASE {_DATABASE}")
        for form in forms.split(","):
            stack.database.execute(
                f"CREATE TABLE {_DATABASE}.{form} (id BIGINT AUTO_INCREMENT PRIMARY KEY, at_us BIGINT)"
            )
            carried = _by_debezium(stack) if form == _DEBEZIUM else _by_millrace(stack, form)
            with carried as (topic, sent_at):
                for rate in map(int, rates.split(",")):
                    arguments = str(stack.database.socket), form, rate, seconds + _WARM_UP_S
                    found = _measure(stack, arguments, topic, sent_at)
                    values = [f"{_quantile(found, part):.1f}" for part in (0.5, 0.99, 0.999, 1.0)]
                    table.add_row(form, f"{rate:,}", f"{len(found):,}", *values)
    _CONSOLE.print(f"{machine()}; kernel: {kernel.state()}; {seconds} s each")
    _CONSOLE.print(table)


@contextmanager
def _by_millrace(stack: LocalStack, form: str) -> Iterator[tuple[str, SentAt]]:
    source = f"latency-{form}"

    def sent_at(value: bytes) -> int:
        record: Any = deserialize(registry, value)
        return int(record["after"]["at_us"])

    with (
        SchemaRegistry(RegistrySettings(url=stack.registry.url)) as registry,
        running(stack, source, {"MILLRACE_START": "latest"}, FORMS[form]),
    ):
        yield Topics(source).table(_DATABASE, form), sent_at


@contextmanager
def _by_debezium(stack: LocalStack) -> Iterator[tuple[str, SentAt]]:
    prefix = f"latency-{_DEBEZIUM}"
    stack.database.execute("FLUSH BINARY LOGS")
    log_file = str(stack.database.query("SHOW BINARY LOGS")[-1][0])
    with Debezium(stack.kafka) as connect:
        connect.begin_source(stack.database, prefix, _DATABASE, log_file, _LOW_LATENCY)
        while not connect.streams:
            connect.check_task(prefix)
            time.sleep(0.1)
        yield f"{prefix}.{_DATABASE}.{_DEBEZIUM}", lambda value: int(json.loads(value)["after"]["at_us"])


def _measure(
    stack: LocalStack, writing: tuple[str, str, int, float], topic: str, sent_at: SentAt
) -> list[float]:
    """Return the milliseconds that each row took, but those of the first seconds."""
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=_write, args=writing, daemon=True)
    kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
    found: list[float] = []
    with ExitStack() as stack_of:
        writer.start()
        consumer = client.Consumer(
            consumer_config(kafka, "millrace-latency") | {"auto.offset.reset": "earliest"}
        )
        stack_of.callback(consumer.close)
        while topic not in consumer.list_topics(timeout=10).topics:
            time.sleep(0.1)
        consumer.assign([TopicPartition(topic, 0, newest_offset(kafka, topic))])
        since = time.time() + _WARM_UP_S
        while True:
            message = consumer.poll(2.0)
            if message is None:
                if not writer.is_alive():
                    break
                continue
            now = time.time()
            sent = sent_at(message.value() or b"") / 1e6
            if sent >= since:
                found.append((now - sent) * 1000)
    writer.join()
    return found


def _write(socket: str, table: str, rate: int, seconds: float) -> None:
    """Insert rows, ``rate`` a second, from several connections that take turns."""
    import pymysql  # noqa: PLC0415 - in the process that writes alone

    def insert(first: int) -> None:
        connection = pymysql.connect(user="root", unix_socket=socket, autocommit=True)
        with connection, connection.cursor() as cursor:
            for number in count(first, _CONNECTIONS):
                due = began + number / rate
                if due > began + seconds:
                    return
                time.sleep(max(0.0, due - time.monotonic()))
                now_us = time.time_ns() // 1000
                cursor.execute(f"INSERT INTO {_DATABASE}.{table} (at_us) VALUES ({now_us})")

    began = time.monotonic()
    threads = [threading.Thread(target=insert, args=(first,)) for first in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _quantile(values: Sequence[float], part: float) -> float:
    if not values:
        return float("nan")
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


if __name__ == "__main__":
    main()

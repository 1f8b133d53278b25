"""Runs a service that kills itself (SIGKILL) at an exact point of its work.

``python -m tests.killed decoder --at before_commit --nth 3`` runs ``python -m services.decoder`` until its
third transaction of Kafka is about to be committed, and kills it there. The service's own code is what runs;
only the client library's producer, below it, is replaced by one that counts. Before the end everything that
was produced is flushed, so that records of the open transaction do lie in Kafka, and a line on standard error
says how many.

Points, N being ``--nth``; records of the state and the catalogue do not count, nor do transactions without
others:

====================  =====================================================================================
``after_fence``       other processes are fenced, the state is not read yet (by the Nth producer)
``after_produce``     N records were produced since the start
``inside_payload``    N records of events inside a transaction's payload were produced (decoder)
``inside_statement``  for the Nth time, a record was produced whose statement continues in another record
``before_commit``     the Nth transaction is whole, its state included, and not committed
``in_commit``         some milliseconds after the Nth commit was asked for, done or not
``after_commit``      the Nth transaction is committed, and nothing was done after it
====================  =====================================================================================
"""

import argparse
import functools
import os
import random
import runpy
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import confluent_kafka

from millrace.kafka import client, producer
from millrace.kafka.input import InputReader
from millrace.kafka.messages import RecordWriter
from millrace.rowmapper import logged_rows, rows
from millrace.stage import Output, OutputRecord, Record

POINTS = (
    "after_fence",
    "after_produce",
    "inside_payload",
    "inside_statement",
    "before_commit",
    "in_commit",
    "after_commit",
)
SERVICES = ("reader", "decoder", "rowmapper", "run")

_UNCOUNTED = (".state", ".catalog")
_ROWS_EVENTS = {*range(20, 26), *range(30, 33), 39, *range(166, 172)}
_ROWS_FLAGS = 19 + 6
_STMT_END = 1
_LONGEST_COMMIT_S = 0.03


def command(service: str, at: str, nth: int = 1, *, commit_every: int | None = None) -> list[str]:
    """Return the command that runs ``service`` to a point, in place of ``python -m services.{service}``."""
    assert service in SERVICES
    assert at in POINTS
    options = [] if commit_every is None else ["--commit-every", str(commit_every)]
    return [sys.executable, "-m", "tests.killed", service, "--at", at, "--nth", str(nth), *options]


class Death:
    """Counts what the process does, and ends it."""

    def __init__(self, at: str, nth: int) -> None:
        self._at = at
        self._left = nth
        self._uncommitted = 0
        self._asked = False
        self._unfinished: set[bytes] = set()
        self._rows_left = 0

    def fenced(self, producer: confluent_kafka.Producer) -> None:
        """Take note that init_transactions has returned."""
        self._reached("after_fence", producer)

    def produced(self, producer: confluent_kafka.Producer, topic: str, key: Any, value: Any) -> None:
        """Take note of a record."""
        if topic.endswith(_UNCOUNTED):
            return
        self._uncommitted += 1
        self._reached("after_produce", producer)
        if topic.endswith(".events") and not key.endswith(b":0"):
            self._reached("inside_payload", producer)
        if self._goes_on(topic, key, value):
            self._reached("inside_statement", producer)

    def _goes_on(self, topic: str, key: Any, value: Any) -> bool:
        """Return whether more records of the same statement follow."""
        if topic.endswith(".raw"):
            return is_unfinished(value)
        if topic.endswith(".events"):
            return key.removesuffix(b":0") in self._unfinished
        if topic.count(".") == 2:
            self._rows_left -= 1
            return self._rows_left > 0
        return False

    def read(self, records: Sequence[Record]) -> None:
        """Take note of the decoder's input, whose output does not show plainly where statements end."""
        self._unfinished |= {record.key for record in records if is_unfinished(record.value)}

    def rows(self, count: int) -> None:
        """Take note that the row mapper proceeds to write ``count`` rows of one event."""
        self._rows_left = count

    def began(self) -> None:
        """Take note that a transaction begins."""
        self._uncommitted = 0
        self._asked = False

    def asked(self, producer: confluent_kafka.Producer) -> None:
        """Take note that the transaction is about to be committed; this is asked again after a time-out."""
        if self._uncommitted and not self._asked:
            self._asked = True
            self._reached("before_commit", producer)
            if self._at == "in_commit":
                self._left -= 1
                if self._left == 0:
                    threading.Thread(target=self._die_soon, daemon=True).start()

    def committed(self, producer: confluent_kafka.Producer) -> None:
        """Take note that the transaction is committed."""
        if self._uncommitted:
            self._uncommitted = 0
            self._reached("after_commit", producer)
            if self._at == "in_commit" and self._left == 0:
                time.sleep(60)  # the other thread is about to end it

    def _die_soon(self) -> NoReturn:
        time.sleep(random.random() * _LONGEST_COMMIT_S)
        self._die()

    def _reached(self, at: str, producer: confluent_kafka.Producer) -> None:
        if at != self._at:
            return
        self._left -= 1
        if self._left == 0:
            # What a broker does not take within this time it will not take.
            waiting = producer.flush(20)
            self._uncommitted -= min(waiting, self._uncommitted)
            self._die()

    def _die(self) -> NoReturn:
        print(f"killed {self._at}: {self._uncommitted} records undecided", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive after SIGKILL")


def is_unfinished(value: bytes | None) -> bool:
    """Return whether an event is one of rows whose statement continues in the next."""
    return (
        value is not None
        and len(value) > _ROWS_FLAGS
        and value[4] in _ROWS_EVENTS
        and not value[_ROWS_FLAGS] & _STMT_END
    )


def arm(service: str, death: Death, commit_every: int | None) -> None:
    """Have ``death`` told of all that the service does with Kafka."""

    class Producer(confluent_kafka.Producer):
        def init_transactions(self, *arguments: Any) -> None:
            super().init_transactions(*arguments)
            death.fenced(self)

        def begin_transaction(self, *arguments: Any) -> None:
            super().begin_transaction(*arguments)
            death.began()

        def commit_transaction(self, *arguments: Any) -> None:
            death.asked(self)
            super().commit_transaction(*arguments)
            death.committed(self)

    class Writer:
        """Writes one record at a time, by whichever client."""

        def __init__(self, client: confluent_kafka.Producer, writer: RecordWriter) -> None:
            self._client = client
            self._writer = writer
            self.refusals, self.wait = writer.refusals, writer.wait
            self.wait_to_flush = writer.wait_to_flush

        def write(self, topic: str, partition: int, records: list[OutputRecord], index: int) -> int:
            while index < len(records) and self._writer.write(topic, partition, [records[index]], 0):
                death.produced(self._client, topic, *records[index][:2])
                index += 1
            return index

    open_producer = producer.open_producer

    def open_noted(config: Mapping[str, Any]) -> tuple[client.Producer, RecordWriter]:
        made, writer = open_producer(config)
        return made, Writer(made, writer)

    client.Producer = Producer  # type: ignore[misc]
    producer.open_producer = open_noted
    if commit_every is not None:
        producer.CommitPolicy = functools.partial(  # type: ignore[misc]
            producer.CommitPolicy, records=commit_every
        )
        Output.settle_bytes = 0
        rows.AT_ONCE = 0  # type: ignore[misc]
        logged_rows._BATCH_ROWS = commit_every  # type: ignore[misc]
    if service == "decoder":
        read = InputReader.read

        def noted_read(self: InputReader, *arguments: Any) -> list[Record]:
            records = read(self, *arguments)
            death.read(records)
            return records

        InputReader.read = noted_read  # type: ignore[method-assign]
    if service in ("rowmapper", "run"):
        put = rows.RowPublisher._put

        def noted_rows(self: rows.RowPublisher, to: Any, bound: Any, logged: Any, writer: Any) -> None:
            death.rows(len(writer.records))
            put(self, to, bound, logged, writer)

        rows.RowPublisher._put = noted_rows  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.killed", description=__doc__.partition("\n")[0])
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--at", required=True, choices=POINTS)
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--commit-every", type=int, metavar="RECORDS", help="end transactions this early")
    given = parser.parse_args()
    if given.at == "inside_payload" and given.service != "decoder":
        parser.error("payloads are unpacked by the decoder")
    arm(given.service, Death(given.at, given.nth), given.commit_every)
    module = f"services.{given.service}"
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

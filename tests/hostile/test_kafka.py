"""Brokers that take connections and say nothing, garbage or goodbye, or stand still while services work.

A service that is told to stop ends within the chart's terminationGracePeriodSeconds, whatever it waits for;
one that finds no Kafka ends with one line and code 4.
"""

import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest

from millrace.contract import RUN, Topics
from millrace.kafka.client import Producer, client_config, connect
from millrace.kafka.topics import ensure_topics
from millrace.local import Kafka, Registry
from millrace.runtime.settings import KafkaSettings, TopicsSettings
from tests.service_process import wait_for
from tests.shared import PROJECT
from tests.topic_reader import TopicReader
from tests.unit.test_faults import insert, update, write_log

from .processes import GRACE_S, Ended, Running, run, start

SERVICES = ("reader", "decoder", "rowmapper")
KINDS = ("raw", "events", "transactions", "ddl", "catalog", "deadletter", "state")
CASES = [
    *((service, "connecting") for service in SERVICES),
    *((service, "creating topics") for service in SERVICES),
    *((service, "taking over") for service in SERVICES),
    *((service, "comparing") for service in SERVICES),
    *((service, "producing") for service in SERVICES),
    *((service, "committing") for service in SERVICES),
    *((service, place) for service in SERVICES[1:] for place in ("reading", "idle")),
    ("rowmapper", "binding"),
]
ENOUGH_S = 60
"""For a process to come to the place where it is held, on a busy machine."""


def test_the_grace_is_that_of_the_chart() -> None:
    values = (PROJECT / "helm" / "millrace" / "values.yaml").read_text()
    periods = [int(found) for found in re.findall(r"terminationGracePeriodSeconds: (\d+)", values)]
    assert periods.count(GRACE_S) == len((*SERVICES, RUN, "snapshot"))


# -- a listener that is no broker -------------------------------------------------------------------


def be_silent(peer: socket.socket) -> None:
    """Take what comes until the peer leaves."""
    with suppress(OSError):
        while peer.recv(65536):
            pass


def answer_garbage(peer: socket.socket) -> None:
    peer.sendall(b"\x00\x00\x00\x10" + b"\xff" * 16)
    be_silent(peer)


def answer_huge(peer: socket.socket) -> None:
    """Begin an answer of 2 GB."""
    peer.sendall(b"\x7f\xff\xff\xff" + bytes(1 << 20))
    be_silent(peer)


def answer_http(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    be_silent(peer)


def close(peer: socket.socket) -> None:
    """Say nothing and leave."""


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, threading.Event]]:
    """Listen, and answer every connection; give the address, and whether anybody has come."""
    came = threading.Event()

    def serve(peer: socket.socket) -> None:
        with peer, suppress(OSError):
            answer(peer)

    def accept(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = server.accept()
                came.set()
                threading.Thread(target=serve, args=(peer,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", came


def settings(address: str, source: str, **others: str) -> dict[str, str]:
    return {
        "MILLRACE_SOURCE": source,
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": address,
        "MILLRACE_REGISTRY_URL": "http://127.0.0.1:1",
        "MILLRACE_FILES": "/nowhere/bin.*",
        **others,
    }


ANSWERS = [be_silent, answer_garbage, answer_huge, answer_http, close]


@pytest.mark.parametrize(("answer", "service"), [*zip(ANSWERS, cycle(SERVICES), strict=False)])
def test_no_broker_in_time(answer: Callable[[socket.socket], None], service: str) -> None:
    with listener(answer) as (address, came):
        environment = settings(address, "shop", MILLRACE_KAFKA_CONNECT_TIMEOUT_S="1")
        done = run("-m", f"services.{service}", settings=environment)
        assert came.is_set()
    done.says(4, f"Kafka at {address} cannot be reached within 1 s: ", "MILLRACE_KAFKA_BOOTSTRAP_SERVERS")


def test_told_to_stop_while_no_broker_answers() -> None:
    """Each service, before each of these."""
    found: list[tuple[str, Ended, float]] = []

    def stop(service: str, answer: Callable[[socket.socket], None]) -> None:
        with listener(answer) as (address, came):
            environment = settings(address, "shop", MILLRACE_KAFKA_CONNECT_TIMEOUT_S="3600")
            running = start("-m", f"services.{service}", settings=environment)
            came.wait(ENOUGH_S)
            time.sleep(0.5)
            told = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            done = running.end(GRACE_S)
            found.append((f"{service}, {answer.__name__}", done, time.monotonic() - told))

    for answer in (be_silent, answer_garbage, close):
        threads = [threading.Thread(target=stop, args=(service, answer)) for service in SERVICES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 9
    for case, done, took_s in found:
        assert (done.code, done.errors) == (0, ""), (case, done)
        assert took_s < GRACE_S, case
        done.is_well()


# -- a broker that stands still ---------------------------------------------------------------------


class Held:
    """A service that waits at a place of its work, and what comes of it."""

    def __init__(self, service: str, place: str, folder: Path, environment: dict[str, str]) -> None:
        self.name = f"{service}, {place}"
        self._folder = folder
        folder.mkdir()
        arguments = ("-m", "tests.hostile.held", service, place, str(folder))
        self._running: Running = start(*arguments, settings=environment)

    def wait(self) -> None:
        wait_for((self._folder / "arrived").exists, self._running.process, self.name, ENOUGH_S)

    def go(self) -> None:
        (self._folder / "go").touch()

    def stop(self) -> None:
        self._running.process.send_signal(signal.SIGTERM)

    def end(self) -> Ended:
        return self._running.end(GRACE_S)


def records_of_a_log(kafka: Kafka, registry: Registry, source: str, folder: Path) -> dict[str, list[object]]:
    """Let reader and decoder carry a log; give what they have written."""
    write_log(folder, 1, [insert, update, insert])
    topics = Topics(source)
    reader = TopicReader(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
    environment = settings(
        kafka.bootstrap_servers,
        source,
        MILLRACE_FILES=str(folder / "bin.*"),
        MILLRACE_REGISTRY_URL=registry.url,
        MILLRACE_KAFKA_CONNECT_TIMEOUT_S="60",
    )
    assert run("-m", "services.reader", settings=environment).code == 0
    raw = reader.messages(topics.raw)
    decoder = start("-m", "services.decoder", settings=environment)
    wait_for(lambda: len(reader.messages(topics.events)) >= len(raw), decoder.process, "its events", ENOUGH_S)
    decoder.process.send_signal(signal.SIGTERM)
    assert decoder.end(GRACE_S).code == 0
    return {"raw": list(raw), "events": list(reader.messages(topics.events))}


def prepare(kafka: Kafka, source: str, service: str, records: dict[str, list[object]]) -> None:
    """Create the topics of a source, with what a service reads."""
    broker = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
    ensure_topics(connect(broker), TopicsSettings(), {f"{source}.{kind}": kind for kind in KINDS})
    kind = Topics(source).of_service(service).input
    producer = Producer(client_config(broker))
    for message in () if kind is None else records[kind.rpartition(".")[2]]:
        producer.produce(kind, message.value(), message.key(), 0, timestamp=message.timestamp()[1])
    assert producer.flush(30) == 0


def test_told_to_stop_while_the_broker_stands_still(
    kafka: Kafka, registry: Registry, source_name: str, tmp_path: Path
) -> None:
    """Wherever a service is: all of them at once, since a broker stands still for all."""
    logs = tmp_path / "logs"
    logs.mkdir()
    records = records_of_a_log(kafka, registry, source_name, logs)
    held = []
    for number, (service, place) in enumerate(CASES):
        source = f"{source_name}-{number}"
        if place != "creating topics":
            prepare(kafka, source, service, records)
        environment = settings(
            kafka.bootstrap_servers,
            source,
            MILLRACE_FILES=str(logs / "bin.*"),
            MILLRACE_REGISTRY_URL=registry.url,
            MILLRACE_KAFKA_CONNECT_TIMEOUT_S="3600",
        )
        held.append(Held(service, place, tmp_path / str(number), environment))
    for one in held:
        one.wait()
    for process in kafka.processes:
        process.signal(signal.SIGSTOP)
    try:
        for one in held:
            one.go()
        time.sleep(1.5)
        for one in held:
            one.stop()
        told = time.monotonic()
        ended = [(one.name, one.end(), time.monotonic() - told) for one in held]
    finally:
        for process in kafka.processes:
            process.signal(signal.SIGCONT)
    for name, done, took_s in ended:
        assert took_s < GRACE_S, name
        if done.code != 0:
            done.says(4, "Kafka cannot be reached while ")
        else:
            assert done.errors == "", name
            done.is_well()

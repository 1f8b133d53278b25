"""`millrace topic`: which records of a topic it prints."""

import json
import signal
import sys
from contextlib import closing

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from millrace.cli.topic import _is_key
from millrace.kafka.client import AdminClient
from millrace.local import Kafka
from tests.service_process import ServiceProcess, wait_for
from tests.shared import run_python

DAY_MS = 86_400_000
NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00:00 UTC


def test_which_records_are_printed(kafka: Kafka, admin: AdminClient, source_name: str) -> None:
    name = f"{source_name}.things"
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def produce(first: int, last: int) -> None:
        for number in range(first, last):
            at_ms = NOON_MS + number * DAY_MS
            producer.produce(name, b"%d" % number, b"a:%d" % number, number % 2, timestamp=at_ms)
        producer.flush(60)

    produce(0, 12)
    settings = {"MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    command = ["-m", "millrace.cli", "topic", name]

    def printed(*options: str) -> set[int]:
        done = run_python(*command, *options, settings=settings)
        assert (done.returncode, done.stderr) == (0, "")
        return {int(json.loads(line)["value"]) for line in done.stdout.splitlines()}

    assert printed() == set(range(12))
    assert printed("--offset", "4") == {8, 9, 10, 11}
    assert printed("--offset", "100") == set()
    assert printed("--since", "2026-01-08T12:00:00") == set(range(7, 12))
    assert printed("--since", "2026-01-08T12:00:01") == set(range(8, 12))
    assert printed("--since", "2026-01-04", "--offset", "5") == {10, 11}
    assert printed("--since", "2027-01-01") == set()
    assert printed("--key", "a:1") == {1, 10, 11}
    assert printed("--key", "a:7", "--limit", "1") == {7}
    with closing(
        ServiceProcess([sys.executable, *command, "--follow", "--offset", "5", "--key", "a:1"], settings)
    ) as process:
        wait_for(lambda: process.output.count("\n") == 2, process, "what is there")
        produce(12, 22)
        wait_for(lambda: process.output.count("\n") == 10, process, "what comes")
        process.send_signal(signal.SIGINT)
        process.wait(120)
    assert {int(json.loads(line)["value"]) for line in process.output.splitlines()} == set(range(10, 20))
    assert (process.returncode, process.error_output) == (0, "")


def test_keys_of_rows() -> None:
    key = {"id": 5, "name": "x"}
    assert _is_key(key, '{"id": 5}')
    assert _is_key(key, '{"id": "5", "name": "x"}')
    assert not _is_key(key, '{"id": 6}')
    assert not _is_key(key, '{"nosuch": 5}')
    assert not _is_key(key, "5")
    assert _is_key({"id": 5}, "5")
    assert _is_key({"name": "x"}, "x")
    assert _is_key({"at": b"\x01"}, "AQ==")
    assert not _is_key(None, "5")

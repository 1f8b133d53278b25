"""Records that no service of ours writes, in topics that the tools print: a line each, and no traceback."""

import json
import os
import struct
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from millrace.avro.registry import SchemaRegistry, value_subject, wire_prefix
from millrace.cli import main
from millrace.dead_letters import read_outlines
from millrace.kafka.client import connect
from millrace.kafka.topics import ensure_topics
from millrace.local import Kafka, Registry
from millrace.runtime.settings import KafkaSettings, RegistrySettings, TopicsSettings
from tests.service_process import source_environment, wait_for
from tests.topic_reader import TopicReader

from .processes import Ended, start, stop
from .processes import run as run_python

LAST_TIME = 2**63 - 1  # in the year 292278994
ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e\r\n\x00"
GARBAGE = [
    (None, None),
    (b"", b""),
    (None, b"\x00"),
    (b"\x00\x00\x00\x00", b"\x00\x7f\xff\xff\xffx"),
    (b"\xc3\x01", b"\xc3\x01" + b"\x00" * 8 + b"x"),
    (ESCAPES.encode(), ESCAPES.encode()),
    (b"\xff\xfe", b"\xff" * 1000),
    (b"1:0:bin.000001:4", struct.pack("<IBIIIH", 0, 15, 1, 19, 0, 0)),
    (b"1:0:bin.000001:4", struct.pack("<IBIIIH", 2**32 - 1, 255, 1, 19, 0, 0) + b"\x9b"),
]
TIMES = [1, LAST_TIME, 253402300800000, 10**17]
HEADERS = [[], [("chunk", None)], [("chunk", b"")], [("chunk", b"0/2")], [(ESCAPES, ESCAPES.encode())]]


@pytest.fixture
def settings(kafka: Kafka) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def environment(settings: KafkaSettings, registry: Registry, source_name: str) -> dict[str, str | None]:
    cleared: dict[str, str | None] = dict.fromkeys(n for n in os.environ if n.startswith("MILLRACE_"))
    return cleared | {
        "MILLRACE_SOURCE": source_name,
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "MILLRACE_REGISTRY_URL": registry.url,
    }


def write_garbage(settings: KafkaSettings, topic: str, *more: tuple[bytes | None, bytes | None]) -> int:
    kind = topic.rpartition(".")[2] if topic.count(".") == 1 else "table"
    ensure_topics(connect(settings), TopicsSettings(), {topic: kind})
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "enable.idempotence": True})
    refused: list[object] = []
    count = 0
    for key, value in (*GARBAGE, *more):
        if key is None and kind == "state":
            continue  # a compacted topic takes no such record
        for time in TIMES:
            for headers in HEADERS:
                count += 1
                producer.produce(
                    topic,
                    value,
                    key,
                    timestamp=time,
                    headers=headers,
                    on_delivery=lambda error, _: refused.append(error) if error else None,
                )
    assert producer.flush(120) == 0
    assert not refused
    return count


def run(environment: dict[str, str | None], *arguments: str) -> Result:
    done = CliRunner().invoke(main, arguments, env=environment)
    assert done.exit_code == 0, (done.output, done.exception)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert done.stdout.count("\n") == len(lines)
    for line in lines:
        assert line.isprintable(), line
    return done


@pytest.fixture
def odd_record(registry: Registry) -> Iterator[bytes]:
    """A record of a day beyond Python's calendar."""
    with SchemaRegistry(RegistrySettings(url=registry.url)) as client:
        day = {"type": "int", "logicalType": "date"}
        schema = {"type": "record", "name": "Odd", "fields": [{"name": "day", "type": day}]}
        yield wire_prefix(client.register(value_subject("odd"), schema)) + b"\xfe\xff\xff\xff\x0f"


@pytest.mark.parametrize("kind", ["raw", "events", "state", "a.b"])
def test_topic(
    kind: str,
    settings: KafkaSettings,
    environment: dict[str, str | None],
    source_name: str,
    odd_record: bytes,
) -> None:
    topic = f"{source_name}.{kind}"
    count = write_garbage(settings, topic, (None, odd_record))
    records = [json.loads(line) for line in run(environment, "topic", topic).stdout.splitlines()]
    assert len(records) == count
    assert {record["timestamp"] for record in records} == set(TIMES)
    assert kind == "state" or (records[0]["key"], records[0]["value"]) == (None, None)


def test_dead_letters(
    settings: KafkaSettings, environment: dict[str, str | None], source_name: str, odd_record: bytes
) -> None:
    write_garbage(settings, f"{source_name}.deadletter", (None, odd_record))
    listed = run(environment, "deadletter", "list").stdout.splitlines()
    as_json = run(environment, "deadletter", "list", "--json").stdout.splitlines()
    assert len(listed) == len(as_json) > 100
    assert all("unreadable" in json.loads(line) for line in as_json)
    outlines = list(read_outlines(settings, f"{source_name}.deadletter"))
    assert len(outlines) > 100
    assert {outline.service for outline in outlines} == {""}
    since = run(environment, "deadletter", "list", "--since", "2026-01-01", "--until", "2100-01-01")
    assert since.stdout == ""
    shown = CliRunner().invoke(main, ["deadletter", "show", "0"], env=environment)
    assert shown.exit_code == 7
    assert shown.stderr.startswith(f"error: the record at offset 0 of {source_name}.deadletter cannot ")


def write_zeros(settings: KafkaSettings, topic: str, codec: str, size: int) -> None:
    """Write a record of zeros, which take less than a batch may, into a topic that the services make."""
    kind = topic.rpartition(".")[2]
    ensure_topics(connect(settings), TopicsSettings(), {topic: kind})
    config = {"bootstrap.servers": settings.bootstrap_servers, "compression.type": codec}
    producer = Producer(config | {"message.max.bytes": 1_000_000_000})
    refused: list[object] = []
    producer.produce(
        topic, bytes(size), b"k", on_delivery=lambda error, _: refused.append(error) if error else None
    )
    assert producer.flush(60) == 0
    assert not refused


MEGABYTE = 1_000_000
UNPACKED = pytest.mark.parametrize(
    ("codec", "unpacked"),
    [pytest.param("gzip", 100, marks=pytest.mark.slow), ("lz4", 100), ("snappy", 15), ("zstd", 300)],
)


@UNPACKED
def test_commands_hold_a_batch_twice(
    settings: KafkaSettings, registry: Registry, kafka: Kafka, source_name: str, codec: str, unpacked: int
) -> None:
    """Of zstd, Kafka's client bounds what it unpacks."""
    environment = source_environment(kafka, source_name, registry)
    for kind, command in (("raw", ("topic", f"{source_name}.raw")), ("deadletter", ("deadletter", "list"))):
        write_zeros(settings, f"{source_name}.{kind}", codec, unpacked * MEGABYTE)
        ended = run_python("-m", "millrace.cli", *command, settings=environment)
        if codec == "zstd":
            ended.says(4, f"{source_name}.{kind} cannot be read: Decompression (codec 0x4) of message at 0 ")
        else:
            assert (ended.code, ended.errors, ended.output.count("\n")) == (0, "", 1), ended
            ended.is_well()


@pytest.mark.slow
@UNPACKED
def test_the_decoder_holds_a_batch_four_times(
    settings: KafkaSettings, registry: Registry, kafka: Kafka, source_name: str, codec: str, unpacked: int
) -> None:
    """What nobody can have logged becomes a dead letter."""
    write_zeros(settings, f"{source_name}.raw", codec, unpacked * MEGABYTE)
    decoder = start("-m", "services.decoder", settings=source_environment(kafka, source_name, registry))
    if codec == "zstd":
        ended: Ended = decoder.end(60)
        ended.says(4, f"{source_name}.raw cannot be read: Decompression (codec 0x4) of message at 0 ")
        return
    reader = TopicReader(settings)
    wait_for(lambda: reader.messages(f"{source_name}.deadletter"), None, lambda: decoder.process.output)
    ended = stop(decoder)
    assert ended.code == 0, ended
    assert ended.peak_mb < 100 + 4.5 * unpacked, ended

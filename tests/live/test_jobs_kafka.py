"""How the jobs read a real Kafka: committed records, chunks joined, bounds, errors in words."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import DataFrame, SparkSession

from millrace.contract import HEADER_CHUNK, HEADER_MARKER
from millrace.kafka.client import connect, producer_config
from millrace.local import Kafka
from millrace.local.processes import release_port, reserve_port
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from spark_jobs.common.job import _inputs
from spark_jobs.common.kafka import kafka_options, read_records, resolve_slice
from tests.live.output import wait_until_decided
from tests.spark_session import SPARK, spark

__all__ = ["spark"]

pytestmark = SPARK

EVENTS = 2_000


@pytest.fixture
def settings(kafka: Kafka) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


@pytest.fixture
def topic(settings: KafkaSettings, source_name: str) -> Iterator[str]:
    """Committed and aborted records, two chunked events and a marker, dated 1000 s + number."""
    name = f"{source_name}.events"
    admin = connect(settings)
    config = {"message.timestamp.before.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result()
    producer = Producer(producer_config(settings, f"test-{source_name}"))
    producer.init_transactions()

    def write(key: str, value: bytes, number: int, **headers: str) -> None:
        stamp = (1_000 + number) * 1000
        pairs = [(header, text.encode()) for header, text in headers.items()]
        producer.produce(name, value, key.encode(), timestamp=stamp, headers=pairs or None)

    for begin in range(0, EVENTS, 500):
        producer.begin_transaction()
        for number in range(begin, begin + 500):
            write(f"aborted {number}", b"x", number)
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        for number in range(begin, begin + 500):
            if number == 700:
                for chunk, key in product(range(3), (700, 701)):  # in turns
                    write(str(key), b"%d/%d " % (key, chunk), 700, **{HEADER_CHUNK: f"{chunk}/3"})
            elif number != 701:
                write(str(number), b"value %d" % number, number)
        producer.commit_transaction()
    producer.begin_transaction()
    write("marker", b"why", EVENTS, **{HEADER_MARKER: "abandoned"})
    producer.commit_transaction()
    wait_until_decided(admin, name)
    yield name
    admin.delete_topics([name])[name].result()


def values(records: DataFrame) -> dict[str, bytes]:
    rows = records.collect()
    found = {row.key.decode(): bytes(row.value) for row in rows}
    assert len(found) == len(rows)
    return found


def test_committed_records_only_and_chunks_joined(
    spark: SparkSession, settings: KafkaSettings, topic: str
) -> None:
    options = kafka_options(settings)
    part = resolve_slice(spark, options, topic)
    assert part.count > 2 * EVENTS  # aborted records and commits have offsets, too
    found = values(read_records(spark, options, part))
    assert len(found) == EVENTS
    assert found["700"] == b"700/0 700/1 700/2 "
    assert found["701"] == b"701/0 701/1 701/2 "
    assert all(found[str(n)] == b"value %d" % n for n in range(EVENTS) if n not in {700, 701})


def test_events_whose_chunks_are_not_all_there(
    spark: SparkSession, settings: KafkaSettings, source_name: str
) -> None:
    name = f"{source_name}.events"
    admin = connect(settings)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    records: list[tuple[str, str | bytes | None]] = [
        ("z", "1/2"),  # what lies before it was deleted
        *(("between", None) for _ in range(6)),
        *(("whole", f"{n}/2") for n in range(2)),
        *(("cut short", f"{n}/4") for n in range(2)),
        *(("without the first", f"{n}/3") for n in (1, 2)),
        *(("without the middle", f"{n}/3") for n in (0, 2)),
        *(("twice", f"{n}/2") for n in (0, 0, 1)),
        ("no number", "first/2"),
        ("no text", b"\xff"),
        *(("between", None) for _ in range(6)),
        ("the end is not there yet", "0/2"),
    ]
    for key, chunk in records:
        producer.produce(name, b"x", key, 0, headers=None if chunk is None else [(HEADER_CHUNK, chunk)])
    assert producer.flush(60) == 0
    options = kafka_options(settings)
    part = resolve_slice(spark, options, name)
    found = {row.key.decode(): row.fault for row in read_records(spark, options, part).collect()}
    assert found == {
        "between": None,
        "whole": None,
        "cut short": "2 of the 4 chunks of this event are there",
        "without the first": "2 of the 3 chunks of this event are there",
        "without the middle": "2 of the 3 chunks of this event are there",
        "twice": "2 of the 2 chunks of this event are there, some of them twice",
        "no number": "its header chunk is not a chunk number",
        "no text": "its header chunk is not a chunk number",
    }
    admin.delete_topics([name])[name].result()


def test_what_is_read_does_not_depend_on_cuts(
    spark: SparkSession, settings: KafkaSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = kafka_options(settings)
    part = resolve_slice(spark, options, topic)
    whole = sorted(map(tuple, read_records(spark, options, part).collect()))
    monkeypatch.setattr("spark_jobs.common.kafka._OFFSETS_PER_PARTITION", 97)
    cut = read_records(spark, options, part)
    assert cut.rdd.getNumPartitions() > 10
    assert sorted(map(tuple, cut.collect())) == whole


def test_bounds_by_offset(spark: SparkSession, settings: KafkaSettings, topic: str) -> None:
    options = kafka_options(settings)
    rows = {
        row.key.decode(): row.offset
        for row in read_records(spark, options, resolve_slice(spark, options, topic)).collect()
    }
    part = resolve_slice(spark, options, topic, rows["10"], rows["20"])
    assert sorted(values(read_records(spark, options, part)), key=int) == [str(n) for n in range(10, 20)]
    cut = resolve_slice(spark, options, topic, rows["700"] + 1, rows["703"])
    assert values(read_records(spark, options, cut)).keys() == {"701", "702"}
    assert cut.bounded
    assert resolve_slice(spark, options, topic, 10**9).count == 0
    assert values(read_records(spark, options, resolve_slice(spark, options, topic, 10**9))) == {}


def test_bounds_by_time(spark: SparkSession, settings: KafkaSettings, topic: str) -> None:
    options = kafka_options(settings)

    def at(number: int) -> datetime:
        return datetime.fromtimestamp(1_000 + number, UTC)

    # The index of a time leads to the first record of that time, an aborted one too; those are not read.
    part = resolve_slice(spark, options, topic, at(1_500), at(1_510))
    found = values(read_records(spark, options, part))
    assert found.keys() <= {str(n) for n in range(1_500, 1_510)}
    assert values(read_records(spark, options, resolve_slice(spark, options, topic, at(0)))).keys() == {
        str(n) for n in range(EVENTS)
    }


def test_a_topic_that_is_not_there(spark: SparkSession, settings: KafkaSettings) -> None:
    with pytest.raises(UserError) as caught:
        resolve_slice(spark, kafka_options(settings), "nothing.events")
    assert caught.value.message == (
        "topic nothing.events does not exist; check the source's name and that the decoder has run"
    )
    assert caught.value.exit_code is ExitCode.KAFKA


def test_a_kafka_that_is_not_there(spark: SparkSession) -> None:
    port = reserve_port()
    options = kafka_options(KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}", connect_timeout_s=1))
    with pytest.raises(UserError) as caught:
        resolve_slice(spark, options, "shop.events")
    release_port(port)
    message = caught.value.message
    assert message.startswith(f"Kafka at 127.0.0.1:{port} does not answer (TimeoutException: ")
    assert message.endswith("); check that the brokers run and the MILLRACE_KAFKA_ settings")
    assert caught.value.exit_code is ExitCode.KAFKA


def test_an_events_topic_of_another_registry(
    spark: SparkSession, settings: KafkaSettings, topic: str
) -> None:
    with pytest.raises(UserError) as caught:
        list(
            _inputs(
                spark, kafka_options(settings), {topic.removesuffix(".events"): {}}, (None, None), "events"
            )
        )
    assert caught.value.message == (
        f"the registry has no schema under {topic}-value; check that MILLRACE_REGISTRY_URL is the registry "
        "that the decoder uses"
    )
    assert caught.value.exit_code is ExitCode.REGISTRY

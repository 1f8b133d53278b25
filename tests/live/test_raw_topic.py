"""The raw topic cut and read as executors do it: nothing is lost, or read twice, or cannot be decoded."""

import random
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from millrace.binlog.events import XidEvent
from millrace.kafka.client import connect, producer_config
from millrace.kafka.input import InputReader, committed_batches
from millrace.kafka.read import held_offsets
from millrace.local import Kafka
from millrace.runtime.settings import KafkaSettings
from millrace.spark.raw_topic import CarriedSettings, Piece, find_pieces, read_piece
from millrace.stage import Record
from tests.live.output import wait_until_decided
from tests.unit.spark.test_statistics import RawLog, changed


@pytest.fixture
def settings(kafka: Kafka) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)


def publish(settings: KafkaSettings, topic: str, records: list[Record]) -> range:
    """Write records, a hundred in a Kafka transaction, with others between that are aborted."""
    admin = connect(settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    producer = Producer(producer_config(settings, f"test-{topic}"))
    producer.init_transactions()
    for at in range(0, len(records), 100):
        producer.begin_transaction()
        producer.produce(topic, b"aborted", b"1:0:bin.000001:4", partition=0)
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        for record in records[at : at + 100]:
            headers = None if record.headers is None else list(record.headers)
            producer.produce(topic, record.value, record.key, partition=0, headers=headers)
        producer.commit_transaction()
    wait_until_decided(admin, topic)
    return held_offsets(admin, {topic: 1})[topic, 0]


def written_log() -> RawLog:
    """A log of small transactions with one among them that is larger than most pieces."""
    written = RawLog()
    for number in range(1, 120):
        written.begin(number, at=1000 + number)
        for nth in range(400 if number == 60 else 1):
            written.update("orders", changed(nth, "a", "b"), at=1000 + number)
        written.add(XidEvent(number), timestamp=1000 + number)
        if number % 40 == 0:
            written.record(b"no key", b"garbage")
    return written


@pytest.mark.parametrize("number", [1, 4, 13])
def test_pieces_add_up_to_the_whole(settings: KafkaSettings, source_name: str, number: int) -> None:
    topic = f"{source_name}.raw"
    written = written_log()
    held = publish(settings, topic, written.records)
    ends = held.start, held.stop
    read = [record for batch in committed_batches(settings, topic, "test", *ends) for record in batch]
    assert [(record.key, record.value) for record in read] == [(r.key, r.value) for r in written.records]
    pieces = find_pieces(settings, topic, ends, held.start, number)
    assert [piece.end for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
    assert len(pieces) >= number // 2
    in_pieces = [record.offset for piece in pieces for record in records_of(settings, topic, piece)]
    assert in_pieces == [record.offset for record in read]


def test_a_part_begins_with_the_first_transaction_in_it(settings: KafkaSettings, source_name: str) -> None:
    topic = f"{source_name}.raw"
    held = publish(settings, topic, written_log().records)
    middle = held.start + 11  # within the second transaction
    (piece,) = find_pieces(settings, topic, (middle, held.stop), held.start, 1)
    assert middle < piece.start <= middle + 4
    assert piece.described is not None
    assert piece.described.offset == held.start + 2  # after one that was aborted, and that end
    assert next(records_of(settings, topic, piece)).offset >= piece.start


def records_of(settings: KafkaSettings, topic: str, piece: Piece) -> Iterator[Record]:
    return (record for batch in read_piece(CarriedSettings.of(settings), topic, piece) for record in batch)


def test_a_reader_may_jump_about(settings: KafkaSettings, source_name: str) -> None:
    """Also from a place at which nothing was read, with records on their way."""
    topic = f"{source_name}.raw"
    held = publish(settings, topic, written_log().records)
    chance = random.Random(1)
    with InputReader(settings, topic, "test", ends=True) as reader:
        for number in range(150):
            offset = chance.randrange(held.start, held.stop - 2)
            reader.jump(offset)
            if number % 3:
                first = next(reader.batches(chance.choice([1, 50, 5000])))[0]
                assert offset <= first.offset <= offset + 3

"""The raw topic cut and read as executors do it: nothing is lost, or read twice, or cannot be decoded."""

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from spark_jobs.common.statistics import PieceStatistics

from millrace.binlog.events import XidEvent
from millrace.kafka.client import connect, producer_config
from millrace.kafka.input import InputReader, committed_batches
from millrace.kafka.read import held_offsets
from millrace.local import Kafka
from millrace.runtime.settings import KafkaSettings
from millrace.spark.decoding import Decoding
from millrace.spark.raw_topic import CarriedSettings, find_pieces, read_piece
from millrace.stage import Record
from spark_jobs.common.outcome import Outcome
from tests.live.output import wait_until_decided
from tests.unit.spark.test_statistics import SOURCE, RawLog, changed, tables

NUMBERS = [1, 4, 13]


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


def counted(settings: KafkaSettings, topic: str, held: range, number: int, folder: Path) -> Outcome:
    """Count the topic in pieces, as executors do."""
    whole = Outcome()
    carried = CarriedSettings.of(settings)
    pieces = find_pieces(settings, topic, (held.start, held.stop), held.start, number)
    assert [piece.end for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
    assert len(pieces) >= number // 2
    assert any(piece.before for piece in pieces) == (number > 2)
    for index, piece in enumerate(pieces):
        statistics = PieceStatistics(SOURCE, Decoding(SOURCE, False, 0), str(folder), f"{index:05}")
        known = piece.described, *piece.before
        statistics.begin([record for record in known if record is not None])
        for records in read_piece(carried, topic, piece):
            statistics.take(records)
        whole.add(statistics.finish())
    return whole


def test_pieces_add_up_to_the_whole(settings: KafkaSettings, source_name: str, tmp_path: Path) -> None:
    topic = f"{source_name}.raw"
    written = written_log()
    held = publish(settings, topic, written.records)
    read = [record for batch in committed_batches(settings, topic, "test", *_ends(held)) for record in batch]
    assert [(record.key, record.value) for record in read] == [(r.key, r.value) for r in written.records]
    everything = []
    for number in NUMBERS:
        outcome = counted(settings, topic, held, number, tmp_path / str(number))
        found = tables(tmp_path / str(number), outcome)
        transactions = found.pop("transactions")
        sums = sum(one["rows"] for one in transactions), sum(one["bytes"] for one in transactions)
        everything.append((found, sums, outcome.raw_bytes, [offset for offset, *_ in outcome.dead_letters]))
        assert len({one["first_offset"] for one in transactions}) == 119
    assert everything[0] == everything[1] == everything[2]
    assert everything[0][1][0] == 118 + 400
    assert len(everything[0][3]) == 2


def test_a_part_begins_with_the_first_transaction_in_it(
    settings: KafkaSettings, source_name: str, tmp_path: Path
) -> None:
    topic = f"{source_name}.raw"
    held = publish(settings, topic, written_log().records)
    middle = held.start + 11  # within the second transaction
    pieces = find_pieces(settings, topic, (middle, held.stop), held.start, 1)
    (piece,) = pieces
    assert middle < piece.start <= middle + 4
    assert piece.described is not None
    assert piece.described.offset == held.start + 2  # after one that was aborted, and that end
    statistics = PieceStatistics(SOURCE, Decoding(SOURCE, False, 0), str(tmp_path), "0")
    statistics.begin([piece.described])
    for records in read_piece(CarriedSettings.of(settings), topic, piece):
        statistics.take(records)
    assert statistics.finish().counters["dead_letters"] == 2


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


def _ends(held: range) -> tuple[int, int]:
    return held.start, held.stop

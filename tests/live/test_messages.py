"""Records in batches on a real broker: the kernel's client does what confluent_kafka's does."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millrace import kernel
from millrace.kafka import messages
from millrace.kafka.client import consumer_config, producer_config
from millrace.kafka.errors import BrokerError, FencedError, InputLostError
from millrace.kafka.input import InputReader, Rereader
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.topics import ensure_topics
from millrace.runtime.settings import KafkaSettings, TopicsSettings
from millrace.stage import Output, OutputRecord, Record

OUTPUT: list[OutputRecord] = [
    (b"key", b"value", 1000, None),
    (None, b"no key", 2000, None),
    (b"no value", None, 3000, None),
    (b"", b"", 0, None),
    (b"headers", b"v", 4000, [("a", b"1"), ("ä", b""), ("a", b"2")]),
    (b"large", bytes(range(256)) * 2000, 5000, None),
]
INPUT = [
    Record(offset, stamp or 1, key, value, headers)
    for offset, (key, value, stamp, headers) in enumerate(OUTPUT)
]


needs_kernel = pytest.mark.skipif(
    not kernel.has("messages"),
    reason="the kernel is not built (make kernel): confluent_kafka is tested alone",
)


@pytest.fixture(params=[pytest.param("kernel", marks=needs_kernel), "confluent_kafka"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which client reads and writes."""
    if request.param == "confluent_kafka":
        monkeypatch.setattr(messages, "_kernel", lambda: None)
    return str(request.param)


@pytest.fixture
def source(admin: AdminClient, source_name: str, client: str) -> Iterator[str]:
    """A source with a topic for records and one for states."""
    name = f"{source_name}-{client.replace('_', '-')}"
    ensure_topics(admin, TopicsSettings(), {f"{name}.raw": "raw", f"{name}.state": "state"})
    yield name
    admin.delete_topics([f"{name}.raw", f"{name}.state"])


def write(
    producer: TransactionalProducer, source: str, records: list[OutputRecord], topic: str = "raw"
) -> None:
    output = Output()
    output.extend(f"{source}.{topic}", records, sum(len(record[1] or b"") for record in records))
    producer.send(output)


def read(reader: InputReader, count: int) -> list[Record]:
    found: list[Record] = []
    while len(found) < count:
        found += reader.read(count - len(found), 30.0)
    return found


def test_the_client_is_the_one_that_is_meant(settings: KafkaSettings, source: str, client: str) -> None:
    consumer, opened = messages.open_consumer(consumer_config(settings, "g"), f"{source}.raw")
    producer, writer = messages.open_producer(producer_config(settings, source))
    reader = opened()
    kernel = client == "kernel"
    assert type(reader).__name__ == ("_Batches" if kernel else "_Messages")
    assert type(writer).__name__ == ("RecordWriter" if kernel else "_Calls")
    reader.close()
    consumer.close()
    del producer


def test_records_come_as_they_were_written(settings: KafkaSettings, source: str) -> None:
    """Keys, values and headers empty or not there; without aborted records and the ends of transactions."""
    with TransactionalProducer(settings, source, "reader") as producer:
        producer.open()
        write(producer, source, OUTPUT)
        producer.commit(b"1")
        write(producer, source, [(b"aborted", b"a", 1, None)] * 3)
        producer._producer.flush(30)
        producer.abort()
        write(producer, source, [(b"%d" % number, b"x", 7, None) for number in range(1000)])
        producer.commit(b"2")
        with InputReader(settings, f"{source}.raw", "g") as reader:
            reader.seek(0)
            found = read(reader, len(INPUT) + 1000)
            assert found[: len(INPUT)] == INPUT
            assert all(type(record) is Record for record in found)
            assert [record.key for record in found[len(INPUT) :]] == [
                b"%d" % number for number in range(1000)
            ]
            gap = len(INPUT) + 1 + 3 + 1
            assert [record.offset for record in found[len(INPUT) :]] == list(range(gap, gap + 1000))
            assert reader.last is not None
            assert (reader.last.offset, reader.last.key) == (gap + 999, b"999")
            assert reader.last.leader_epoch == 0
            assert not reader.read(10, 0.0)
            reader._note_lag()
            assert reader.lag() is not None
            # The same reader may begin again anywhere; what it had fetched ahead is forgotten.
            reader.seek(2)
            assert read(reader, 2) == INPUT[2:4]
            reader.seek(1)
            assert read(reader, 3) == INPUT[1:4]
        with InputReader(settings, f"{source}.raw", "g", dated=False) as reader:
            reader.seek(0)
            placed = [record._replace(timestamp_ms=record.offset) for record in INPUT]
            assert read(reader, len(INPUT)) == placed != INPUT


def test_stretches_are_read_again(
    settings: KafkaSettings, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one consumer, and by another where one stretch is read within another."""
    made: list[InputReader] = []

    def make(*args: Any, **options: Any) -> InputReader:
        made.append(InputReader(*args, **options))
        return made[-1]

    monkeypatch.setattr("millrace.kafka.input.InputReader", make)
    with TransactionalProducer(settings, source, "reader") as producer:
        producer.open()
        write(producer, source, [(b"%d" % number, b"x", 7, None) for number in range(1000)])
        producer.commit(b"1")

    def keys(start: int, stop: int) -> Iterator[int]:
        return (int(record.key or b"") for record in again.records(start, stop, lambda: None))

    with Rereader(settings, f"{source}.raw", "g") as again:
        for start, stop in ((0, 1000), (10, 11), (5, 300)):
            assert list(keys(start, stop)) == list(range(start, stop))
        assert len(made) == 1
        for key in keys(100, 400):
            assert list(keys(key, key + 2)) == [key, key + 1]
        assert len(made) == 2
        begun = keys(7, 1000)
        assert next(begun) == 7
        del begun
        with pytest.raises(InputLostError, match="ends at offset"):
            next(keys(5000, 5001))
        assert list(keys(990, 1000)) == list(range(990, 1000))
        assert len(made) == 4
    for reader in made:
        with pytest.raises(RuntimeError):
            reader._consumer.assignment()


def test_what_comes_while_it_is_waited_for(settings: KafkaSettings, source: str) -> None:
    with (
        TransactionalProducer(settings, source, "reader") as producer,
        InputReader(settings, f"{source}.raw", "g") as reader,
    ):
        producer.open()
        reader.seek(0)
        assert not reader.read(10, 0.3)
        write(producer, source, OUTPUT[:1])
        producer.commit(b"1")
        assert read(reader, 1) == INPUT[:1]


def test_an_offset_that_is_gone(settings: KafkaSettings, source: str, admin: AdminClient) -> None:
    with TransactionalProducer(settings, source, "reader") as producer:
        producer.open()
        write(producer, source, OUTPUT)
        producer.commit(b"1")
    with InputReader(settings, f"{source}.raw", "g") as reader:
        reader.seek(0)
        for future in admin.delete_records([TopicPartition(f"{source}.raw", 0, 4)]).values():
            future.result(60)
        reader._consumer.assign([TopicPartition(f"{source}.raw", 0, 1)])
        with pytest.raises(InputLostError, match=r"raw no longer holds what must be read next: fetch failed"):
            read(reader, 1)


def test_a_topic_that_is_not_there(settings: KafkaSettings, source: str) -> None:
    """The client says so to its error callback only, from within the call that reads, and goes on trying."""
    config = consumer_config(settings, "g") | {"topic.metadata.propagation.max.ms": 100}
    consumer, opened = messages.open_consumer(config, f"{source}.nothing")
    reader = opened()
    consumer.assign([TopicPartition(f"{source}.nothing", 0, 0)])
    errors = []
    for _ in range(4):
        assert not reader.read(10, 1000)
        errors += reader.errors
    assert {error.code() for error in errors} == {KafkaError._TRANSPORT}
    reader.close()
    consumer.close()


def test_a_topic_that_takes_no_records_of_this_size(
    settings: KafkaSettings, source: str, admin: AdminClient
) -> None:
    """What a broker says of records is known by topic; what is given up because of it is not."""
    small = f"{source}.small"
    for future in admin.create_topics([NewTopic(small, 1, config={"max.message.bytes": "1000"})]).values():
        future.result(60)
    with TransactionalProducer(settings, source, "reader") as producer:
        producer.open()
        write(producer, source, OUTPUT)
        noise = random.Random(7).randbytes(100_000)
        write(producer, source, [(b"k", noise, 1, None)] * 2, "small")
        with pytest.raises(BrokerError, match=r"MSG_SIZE_TOO_LARGE|INVALID_RECORD|RECORD_LIST_TOO_LARGE"):
            producer.commit(b"1")
        assert producer.failures.keys() == {small}
        producer.abort()
        write(producer, source, OUTPUT)
        assert producer.failures == {}
        producer.commit(b"2")
    admin.delete_topics([small])


def test_a_producer_that_is_full_waits(
    settings: KafkaSettings, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"queue.buffering.max.messages": 10, "linger.ms": 0}
    monkeypatch.setattr(
        "millrace.kafka.producer.producer_config", lambda *given: producer_config(*given) | small
    )
    many: list[OutputRecord] = [(b"%d" % number, b"v", 1, None) for number in range(300)]
    with TransactionalProducer(settings, source, "reader") as producer:
        producer.open()
        write(producer, source, many)
        producer.commit(b"1")
    with InputReader(settings, f"{source}.raw", "g") as reader:
        reader.seek(0)
        assert [record.key for record in read(reader, 300)] == [record[0] for record in many]


def test_a_partition_takes_nearly_two_batches(settings: KafkaSettings, source: str, client: str) -> None:
    """While one waits for its answer and another is ready, librdkafka polls without a pause."""
    noise = random.Random(7)
    many: list[OutputRecord] = [(b"%d" % number, noise.randbytes(10_000), 1, None) for number in range(350)]
    producer, writer = messages.open_producer(producer_config(settings, source))
    producer.init_transactions(30)
    producer.begin_transaction()
    done = writer.write(f"{source}.raw", 0, many, 0)
    assert done == (190 if client == "kernel" else 350)
    while done < len(many):
        before = done
        assert writer.wait(30_000)
        done = writer.write(f"{source}.raw", 0, many, done)
        assert before < done <= before + 191
    producer.commit_transaction(30)
    assert writer.wait(0)
    with InputReader(settings, f"{source}.raw", "g") as reader:
        reader.seek(0)
        assert [record.key for record in read(reader, 350)] == [record[0] for record in many]


def test_a_flush_waits_until_no_request_is_on_its_way(
    settings: KafkaSettings, source: str, client: str
) -> None:
    """While one is, librdkafka polls without a pause for what the flush has made ready."""
    noise = random.Random(8)
    many: list[OutputRecord] = [(b"%d" % number, noise.randbytes(10_000), 1, None) for number in range(250)]
    producer, writer = messages.open_producer(producer_config(settings, source))
    producer.init_transactions(30)
    producer.begin_transaction()
    assert writer.write(f"{source}.raw", 0, many[:150], 0) == 150
    assert writer.wait_to_flush(30_000)
    # Of 1.5 MB one batch has its answer: there is room for 0.9 MB at least.
    done = writer.write(f"{source}.raw", 0, many, 150)
    assert done >= (240 if client == "kernel" else 250)
    while done < len(many):
        assert writer.wait(30_000)
        done = writer.write(f"{source}.raw", 0, many, done)
    producer.commit_transaction(30)
    assert writer.wait_to_flush(0)


def test_a_fenced_producer(settings: KafkaSettings, source: str) -> None:
    with TransactionalProducer(settings, source, "reader") as first:
        first.open()
        write(first, source, OUTPUT)
        first._producer.flush(30)
        with TransactionalProducer(settings, source, "reader") as second:
            second.open()
            write(second, source, OUTPUT)
            second.commit(b"second")
            write(first, source, OUTPUT)
            with pytest.raises(FencedError):
                first.commit(b"first")
            # What cannot be produced at all is said by the call.
            with pytest.raises(KafkaException) as caught:
                first._writer.write(f"{source}.raw", 0, OUTPUT, 0)
            assert caught.value.args[0].code() in (KafkaError._FATAL, KafkaError._STATE, KafkaError._FENCED)
            first._in_transaction = False


def test_what_is_no_record(settings: KafkaSettings, source: str, client: str) -> None:
    producer, writer = messages.open_producer(producer_config(settings, source))
    producer.init_transactions(30)
    producer.begin_transaction()
    for wrong in [("k", 1, 1, None), (b"k", b"v", "1", None), (b"k", b"v"), (b"k", b"v", 1, [("h",)])]:
        with pytest.raises((TypeError, ValueError)):
            writer.write(f"{source}.raw", 0, [wrong], 0)  # type: ignore[list-item]  # that is the point
    producer.abort_transaction(30)
    if client == "kernel":
        writer.close()  # type: ignore[attr-defined]  # of the kernel's
        assert writer.refusals() == []
        with pytest.raises(RuntimeError, match="closed"):
            writer.write(f"{source}.raw", 0, OUTPUT, 0)


def test_a_reader_that_is_closed(settings: KafkaSettings, source: str, client: str) -> None:
    with InputReader(settings, f"{source}.raw", "g") as reader:
        with pytest.raises(RuntimeError, match="from no offset"):
            reader.read(1, 0.0)
        reader.seek(0)
        opened = reader._messages
        assert opened is not None
    if client == "kernel":
        with pytest.raises(RuntimeError, match="closed"):
            opened.read(1, 0)

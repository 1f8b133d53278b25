"""Exactly once on a real broker: transactions, fencing, state, topics that break promises, chunks."""

import os
import random
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from millrace.avro.service_state import DecoderState
from millrace.contract import RUN, Topics
from millrace.kafka.alerts import ALERTS, tell_alerts
from millrace.kafka.chunks import ChunkJoiner, split
from millrace.kafka.client import connect, producer_config
from millrace.kafka.continuity import ContinuityGuard
from millrace.kafka.errors import BrokerError, FencedError, InputLostError
from millrace.kafka.exactly_once import Committer, run_stage
from millrace.kafka.input import InputReader
from millrace.kafka.pause import in_place_of_service
from millrace.kafka.producer import CommitPolicy, TransactionalProducer
from millrace.kafka.read import read_topic
from millrace.kafka.search import last_before
from millrace.kafka.state import newest_offset, read_state
from millrace.kafka.topics import TopicInfo, ensure_topics, topic_ids
from millrace.local import Kafka
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.health import Health
from millrace.runtime.settings import KafkaSettings, TopicsSettings
from millrace.stage import Output, Record
from tests.chaos.lost_tail import cut_marker, cut_tail
from tests.service_process import started, wait_for
from tests.shared import environment_with

from .output import send, wait_until_decided


@pytest.fixture
def topics(admin: AdminClient, source_name: str) -> Iterator[Topics]:
    topics = Topics(source_name)
    create(admin, topics)
    yield topics
    admin.delete_topics([topics.raw, topics.events, topics.state])


def create(admin: AdminClient, topics: Topics) -> dict[str, TopicInfo]:
    return ensure_topics(
        admin, TopicsSettings(), {topics.raw: "raw", topics.events: "events", topics.state: "state"}
    )


def records(settings: KafkaSettings, topic: str, isolation: str = "read_committed") -> list[Message]:
    return list(read_topic(settings, topic, isolation=isolation))


def values(settings: KafkaSettings, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    return [message.value() for message in records(settings, topic, isolation)]


def opened(producer: TransactionalProducer) -> bytes | None:
    """Return the state that a service finds when it starts."""
    (stored,) = producer.open()
    return None if stored is None else stored.value


def state_of(settings: KafkaSettings, source: str, service: str) -> bytes | None:
    stored = read_state(settings, source, service)
    return None if stored is None else stored.value


def test_output_and_state_are_there_together(settings: KafkaSettings, topics: Topics) -> None:
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        assert producer.open() == [None]
        send(producer, topics.raw, b"1", b"one", 1000)
        send(producer, topics.raw, b"2", b"two", 2000, headers=[("artificial", b"1")])
        producer.commit(b"after two")
        send(producer, topics.raw, b"3", b"three", 3000)
    one, two = records(settings, topics.raw)
    assert (one.key(), one.value(), one.timestamp()[1], one.headers()) == (b"1", b"one", 1000, None)
    assert (two.timestamp()[1], two.headers()) == (2000, [("artificial", b"1")])
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        assert opened(producer) == b"after two"
    with TransactionalProducer(settings, topics.source, "decoder") as producer:
        assert producer.open() == [None]


def test_a_commit_that_takes_longer_than_a_step(
    settings: KafkaSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka takes the late answer to a call that was given up for that to the next one."""
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer.open()
        monkeypatch.setattr("millrace.kafka.producer._STEP_S", 0.0)
        for number in range(20):
            send(producer, topics.raw, b"1", b"%d" % number, 1000)
            producer.commit(b"after %d" % number)
            assert state_of(settings, topics.source, "reader") == b"after %d" % number


def test_reading_waits_for_what_is_undecided(settings: KafkaSettings, topics: Topics) -> None:
    """The rest of a transaction shows a moment after its first records: nobody may take that for the end."""
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer.open()
        send(producer, topics.raw, b"1", b"one", 1000)
        producer.commit(b"one")
        send(producer, topics.raw, b"2", b"two", 2000)
        while len(values(settings, topics.raw, "read_uncommitted")) < 2:
            time.sleep(0.05)
        read = read_topic(settings, topics.raw)
        assert next(read).value() == b"one"
        later = threading.Timer(1.0, producer.commit, [b"two"])
        later.start()
        assert [message.value() for message in read] == [b"two"]
        later.join()
        send(producer, topics.raw, b"3", b"three", 3000)
        while len(values(settings, topics.raw, "read_uncommitted")) < 3:
            time.sleep(0.05)
        read = read_topic(settings, topics.raw)
        assert [next(read).value() for _ in range(2)] == [b"one", b"two"]
        later = threading.Timer(1.0, producer.abort)
        later.start()
        assert list(read) == []
        later.join()
    assert values(settings, "no-such-topic") == []


def test_any_timestamp_stays(settings: KafkaSettings, topics: Topics) -> None:
    stamps = [0, 1_262_304_000_000, 4_294_967_295_000, int(time.time() * 1000), 2_114_380_800_000]
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer.open()
        for stamp in stamps:
            send(producer, topics.raw, b"key", b"%d" % stamp, stamp)
        producer.commit(b"done")
    assert [message.timestamp()[1] for message in records(settings, topics.raw)] == [1, *stamps[1:]]


def test_a_lost_record_fails_the_commit(settings: KafkaSettings, topics: Topics) -> None:
    """Without a callback per record: what the broker refuses must come up when the transaction ends."""
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer.open()
        send(producer, topics.raw, b"1", b"small", 0)
        send(producer, topics.raw, b"2", random.Random(1).randbytes(2_000_000), 0)
        with pytest.raises(BrokerError, match=f"{topics.raw}.*Message size too large"):
            producer.commit(b"not to be seen")
    assert values(settings, topics.raw) == []
    assert values(settings, topics.raw, "read_uncommitted") != []
    assert read_state(settings, topics.source, "reader") is None


def test_the_second_fences_the_first(settings: KafkaSettings, topics: Topics) -> None:
    script = textwrap.dedent(
        """
        import sys
        from millrace.kafka.producer import TransactionalProducer
        from millrace.stage import Output
        from millrace.runtime.service import run_service
        from millrace.runtime.settings import ServiceSettings

        def app(service):
            settings = service.settings
            producer = TransactionalProducer(settings.kafka, settings.source, "reader", stop=service.stop)
            with producer:
                producer.open()
                output = Output()
                output.add(f"{settings.source}.raw", b"1", b"zombie", 0)
                producer.send(output)
                producer._producer.flush()
                print("ready", flush=True)
                sys.stdin.readline()
                producer.commit(b"zombie")

        sys.exit(run_service("reader", ServiceSettings, app))
        """
    )
    environment = {
        "MILLRACE_SOURCE": topics.source,
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "MILLRACE_KAFKA_FENCED_WAIT_S": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_with(environment),
    ) as first:
        assert first.stdout is not None
        assert any(line == "ready\n" for line in first.stdout)
        with TransactionalProducer(settings, topics.source, "reader") as second:
            second.open()
            second.commit(b"taken over")
            send(second, topics.raw, b"1", b"living", 0)
            second.commit(b"living")
            out, err = first.communicate("\n", timeout=120)
            send(second, topics.raw, b"2", b"still", 0)
            second.commit(b"still")
    assert first.returncode == ExitCode.FENCED == 6, out + err
    [line] = err.splitlines()
    assert line.startswith(
        f"error: another reader of the source {topics.source} took over: process {os.getpid()} on "
    )
    assert line.endswith(" UTC. This one exits: run only one of them")
    assert values(settings, topics.raw) == [b"living", b"still"]
    assert b"zombie" in values(settings, topics.raw, "read_uncommitted")


@pytest.mark.parametrize("announces", [True, False])
def test_a_command_takes_over_again_from_a_service_that_was_starting(
    settings: KafkaSettings, topics: Topics, announces: bool
) -> None:
    """Whether or not that has said who it is; and after a command that has ended."""
    attempts = []

    def decoder(role: str = "") -> TransactionalProducer:
        return TransactionalProducer(settings, topics.source, "decoder", role=role)

    def work() -> None:
        with decoder("deadletter redrive") as command:
            attempts.append(command.open())
            if len(attempts) == 1:
                with decoder() as service:
                    service.open()
                    if announces:
                        service.commit(b"service")
            command.commit(b"command")

    with decoder("schema rebuild") as before:
        before.open()
        before.commit(b"before")
    in_place_of_service(work)
    assert len(attempts) == 2
    state = read_state(settings, topics.source, "decoder")
    assert state is not None
    assert state.value == b"command"


def test_a_service_continues_after_a_command_that_has_ended(settings: KafkaSettings, topics: Topics) -> None:
    """It need not have seen that command at work, and waits for no other service."""
    script = textwrap.dedent(
        """
        import sys
        from millrace.kafka.client import connect
        from millrace.kafka.pause import in_its_place
        from millrace.kafka.producer import TransactionalProducer
        from millrace.runtime.service import run_service
        from millrace.runtime.settings import ServiceSettings

        def app(service):
            settings = service.settings

            def work():
                with TransactionalProducer(settings.kafka, settings.source, "reader") as producer:
                    producer.open()
                    while not service.stop.wait(0.1):
                        producer.commit(b"service")

            in_its_place(service, connect(settings.kafka), work)

        sys.exit(run_service("reader", ServiceSettings, app))
        """
    )
    environment = {
        "MILLRACE_SOURCE": topics.source,
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers,
        "MILLRACE_KAFKA_FENCED_WAIT_S": "0",
    }

    def works() -> bool:
        state = read_state(settings, topics.source, "reader")
        return state is not None and f"process {process.pid} " in state.owner

    with started("reader", environment, command=[sys.executable, "-c", script]) as process:
        for _ in range(2):
            wait_for(works, process, "a commit of the service")
            with TransactionalProducer(settings, topics.source, "reader", role="state rebuild") as command:
                command.open()
                command.commit(b"command")


def test_a_command_leaves_the_place_to_another_command(settings: KafkaSettings, topics: Topics) -> None:
    attempts = []

    def work() -> None:
        with TransactionalProducer(settings, topics.source, "decoder", role="deadletter redrive") as command:
            attempts.append(command.open())
            with TransactionalProducer(settings, topics.source, "decoder", role="schema rebuild") as other:
                other.open()
                other.commit(b"other")
                command.commit(b"command")

    with pytest.raises(FencedError, match="schema rebuild"):
        in_place_of_service(work)
    assert len(attempts) == 1


def test_a_fenced_process_ends_at_once_when_told(settings: KafkaSettings, topics: Topics) -> None:
    patient = settings.model_copy(update={"fenced_wait_s": 10_000.0})
    stop = threading.Event()

    def fenced_and_told_to_stop() -> None:
        with TransactionalProducer(patient, topics.source, "reader", stop=stop) as first:
            first.open()
            with TransactionalProducer(settings, topics.source, "reader") as second:
                second.open()
            stop.set()
            first.commit(b"zombie")

    with pytest.raises(FencedError):
        fenced_and_told_to_stop()


def test_fencing_is_found_while_producing(settings: KafkaSettings, topics: Topics) -> None:
    """A record that is refused says "fatal error" only; the reason must be found all the same."""
    with TransactionalProducer(settings, topics.source, "reader") as second:

        def produce_on_and_on() -> None:
            with TransactionalProducer(settings, topics.source, "reader") as first:
                first.open()
                send(first, topics.raw, b"1", b"zombie", 0)
                first._producer.flush()
                second.open()
                while True:
                    send(first, topics.raw, b"2", b"zombie", 0)
                    time.sleep(0.05)

        with pytest.raises(FencedError) as caught:
            produce_on_and_on()
    assert caught.value.message == (
        f"another reader of the source {topics.source} took over and has not said who it is, or the clock of "
        "a broker has jumped, which ends transactions. This one exits: run only one of them"
    )
    assert values(settings, topics.raw) == []


def test_fencing_is_found_by_the_next_poll(settings: KafkaSettings, topics: Topics) -> None:
    """The client raises its fatal error from within a call that also reports records as not delivered."""
    with TransactionalProducer(settings, topics.source, "reader") as second:

        def send_and_poll() -> None:
            with TransactionalProducer(settings, topics.source, "reader") as first:
                first.open()
                second.open()
                send(first, topics.raw, b"1", b"zombie", 0)
                while True:
                    first.send(Output())
                    time.sleep(0.05)

        with pytest.raises(FencedError):
            send_and_poll()


def test_a_client_that_knows_many_topics_is_replaced(
    settings: KafkaSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one continues where the old one has committed, unless another process has done so."""
    monkeypatch.setattr("millrace.kafka.producer._MOST_TOPICS", 2)

    def write_until_fenced() -> None:
        with TransactionalProducer(settings, topics.source, "reader") as first:
            first.open()
            first.commit(b"0")
            clients = {id(first._producer): first._producer}
            for number, topic in enumerate([topics.raw, topics.events, topics.raw], 1):
                send(first, topic, b"%d" % number, b"first", 0)
                first.commit(b"%d" % number)
                clients[id(first._producer)] = first._producer
            assert len(clients) == 2
            with TransactionalProducer(settings, topics.source, RUN) as second:
                # One that has committed nothing is fenced in its turn.
                second.open()
                first._renew_client()
                send(first, topics.raw, b"4", b"first", 0)
                first.commit(b"4")
                with pytest.raises(FencedError):
                    second.commit(b"not to be seen")
            with TransactionalProducer(settings, topics.source, RUN) as second:
                second.open()
                second.commit(b"5")
                with pytest.raises(FencedError):
                    first._renew_client()
                second.commit(b"6")

    write_until_fenced()
    assert values(settings, topics.raw) == [b"first"] * 3
    assert state_of(settings, topics.source, "reader") == b"6"


def test_state_hidden_behind_anothers_open_transaction(settings: KafkaSettings, topics: Topics) -> None:
    """The last stable offset stands still at another service's open transaction: our state lies after it."""
    with TransactionalProducer(settings, topics.source, "decoder") as other:
        other.open()
        send(other, topics.state, b"other", b"open", 0)
        other._producer.flush()
        with TransactionalProducer(settings, topics.source, "reader") as ours:
            later = threading.Timer(1.0, other.commit, [b"done"])
            later.start()
            ours.open()
            later.join()
            ours.commit(b"ours")
            assert state_of(settings, topics.source, "reader") == b"ours"


def test_a_transaction_that_stays_open_is_not_waited_for_for_ever(
    settings: KafkaSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.kafka.state._TIMEOUT_S", 1.0)
    monkeypatch.setattr("millrace.kafka.read._SILENCE_S", 1.0)
    with TransactionalProducer(settings, topics.source, "decoder") as other:
        other.open()
        send(other, topics.state, b"other", b"open", 0)
        send(other, topics.raw, b"k", b"open", 0)
        other._producer.flush()
        with pytest.raises(BrokerError) as caught:
            read_state(settings, topics.source, "reader")
        assert caught.value.message == (
            f"{topics.state} could not be read to its end within 1 s: a transaction in it does not end. "
            "Kafka may have forgotten it: the service that began it ends it when it is started again; "
            "kafka-transactions.sh (find-hanging, abort) does, even if __transaction_state was lost"
        )
        with pytest.raises(BrokerError) as caught:
            records(settings, topics.raw)
        assert caught.value.message == (
            f"{topics.raw} cannot be read: no answer within 1 s, or a transaction of Kafka is open in it for "
            "that long"
        )


def test_records_that_are_not_taken(
    settings: KafkaSettings, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.kafka.producer._COMMIT_S", 0.0)
    config = producer_config(settings, "t") | {"queue.buffering.max.messages": 1, "linger.ms": 5000}
    monkeypatch.setattr(
        "millrace.kafka.producer.producer_config", lambda _, name: config | {"transactional.id": name}
    )
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer._producer.init_transactions(30)
        send(producer, topics.raw, b"1", b"one", 0)
        send(producer, topics.raw, b"2", b"two", 0)
        with pytest.raises(BrokerError) as caught:
            producer.commit(b"state")
    assert caught.value.message == f"Kafka has taken no records of {topics.raw} for 0 s; check its brokers"


def test_state_outlives_group_offsets(settings: KafkaSettings, topics: Topics, admin: AdminClient) -> None:
    group = f"millrace-decoder-{topics.source}"
    with TransactionalProducer(settings, topics.source, "decoder") as producer:
        producer.open()
        send(producer, topics.events, b"1", b"one", 0)
        producer.commit(b"state")
    with InputReader(settings, topics.events, group) as reader:
        reader.seek(0)
        reader.note_committed(1)
        reader._consumer.commit(offsets=[TopicPartition(topics.events, 0, 1)], asynchronous=False)
    admin.delete_consumer_groups([group])[group].result(30)
    with TransactionalProducer(settings, topics.source, "decoder") as producer:
        assert opened(producer) == b"state"


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[Kafka]:
    """A Kafka that compacts soon, and may be killed."""
    properties = {"log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": "0"}
    with Kafka(properties=properties, heap_mb=256) as kafka:
        yield kafka


def test_state_survives_compaction(own_kafka: Kafka, source_name: str) -> None:
    """What a service wrote last stays, however many others' states lie after it."""
    settings = KafkaSettings(bootstrap_servers=own_kafka.bootstrap_servers)
    admin = connect(settings)
    topics = Topics(source_name)
    create(admin, topics)
    small = [("segment.bytes", "1048576"), ("min.cleanable.dirty.ratio", "0.01"), ("segment.ms", "200")]
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in small]
    resource = ConfigResource(ResourceType.TOPIC, topics.state, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    with TransactionalProducer(settings, source_name, "reader") as producer:
        producer.open()
        producer.commit(b"the reader's last")
    deadline = time.monotonic() + 240
    filler = random.Random(1).randbytes(100_000)
    with TransactionalProducer(settings, source_name, "decoder") as producer:
        producer.open()
        written = 0
        while True:
            producer.commit(b"%d" % written + filler)
            written += 1
            if written % 20 == 0 and len(records(settings, topics.state)) < written // 2:
                break
            assert time.monotonic() < deadline, "the state topic is not compacted"
    assert state_of(settings, source_name, "reader") == b"the reader's last"


def test_a_transaction_of_which_kafka_lost_the_end(own_kafka: Kafka, source_name: str) -> None:
    """Its records hide all that lies after them, until the service that wrote them starts."""
    settings = KafkaSettings(bootstrap_servers=own_kafka.bootstrap_servers)
    topics = Topics(source_name)
    create(connect(settings), topics)
    with TransactionalProducer(settings, source_name, "decoder") as producer:
        producer.open()
        producer.commit(b"the decoder's")
    killed = TransactionalProducer(settings, source_name, "reader")
    killed.open()
    for number in (b"1", b"2"):
        send(killed, topics.raw, number, number, 1000)
        killed.commit(number)
    killed.close()
    assert values(settings, topics.raw) == [b"1", b"2"]
    assert values(settings, topics.state)[-1] == b"2"
    own_kafka.kill_node(0)
    for topic in (topics.raw, topics.state):
        cut_marker(own_kafka, topic)
    own_kafka.start()
    with TransactionalProducer(settings, source_name, "reader") as producer:
        assert opened(producer) == b"1"
        send(producer, topics.raw, b"3", b"3", 1000)
        producer.commit(b"3")
    assert values(settings, topics.raw) == [b"1", b"3"]
    with TransactionalProducer(settings, source_name, "decoder") as producer:
        assert opened(producer) == b"the decoder's"


def test_a_transaction_of_which_kafka_has_lost_all(
    own_kafka: Kafka, source_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic __transaction_state is gone: the transaction that was open is nobody's."""
    monkeypatch.setattr("millrace.kafka.state._TIMEOUT_S", 1.0)
    settings = KafkaSettings(bootstrap_servers=own_kafka.bootstrap_servers)
    topics = Topics(source_name)
    create(connect(settings), topics)
    with TransactionalProducer(settings, source_name, "reader") as zombie:
        zombie.open()
        send(zombie, topics.raw, b"1", b"1", 1000)
        zombie.commit(b"1")
        send(zombie, topics.state, b"reader", b"zombie", 1000)
        zombie._producer.flush()
        own_kafka.kill_node(0)
        lost = list((own_kafka.folder / "data-0").glob("__transaction_state-*"))
        assert lost
        for partition in lost:
            shutil.rmtree(partition)
        own_kafka.start()
        with pytest.raises(BrokerError, match="Kafka has forgotten the reader of "):
            zombie.commit(b"zombie")
    with (
        TransactionalProducer(settings, source_name, "reader") as producer,
        pytest.raises(BrokerError, match=r"kafka-transactions\.sh .*__transaction_state"),
    ):
        producer.open()


def test_brokers_that_end_transactions_sooner(source_name: str) -> None:
    with Kafka(properties={"transaction.max.timeout.ms": "29999"}, heap_mb=256) as kafka:
        settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        with TransactionalProducer(settings, source_name, "reader") as producer:
            with pytest.raises(BrokerError) as caught:
                producer.open()
            assert caught.value.message == (
                "transaction.max.timeout.ms of the brokers is less than the 30000 that our transactions "
                "need: raise it; Kafka's default is 900000"
            )


def test_topics_are_created_once_and_never_altered(
    settings: KafkaSettings, topics: Topics, admin: AdminClient
) -> None:
    resource = ConfigResource(
        ResourceType.TOPIC,
        topics.raw,
        incremental_configs=[
            ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(30)
    deadline = time.monotonic() + 120
    while create(admin, topics)[topics.raw].max_message_bytes != 2_000_000:
        assert time.monotonic() < deadline
    entries = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topics.raw)])
    config = next(iter(entries.values())).result(30)
    assert config["retention.ms"].value == "86400000"
    assert config["cleanup.policy"].value == "delete"
    assert config["message.timestamp.after.max.ms"].value == str(2**63 - 1)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_others_send_unpacks_to_no_more_than_a_batch(
    settings: KafkaSettings, admin: AdminClient, source_name: str, codec: str
) -> None:
    """Kafka refuses what would, so that it costs no reader anything."""
    topic = Topics(source_name).signals
    ensure_topics(admin, TopicsSettings(), {topic: "signals"})
    config = {"bootstrap.servers": settings.bootstrap_servers, "compression.type": codec}
    producer = Producer(config | {"message.max.bytes": 100_000_000})
    answers: list[KafkaError | None] = []
    for value in (bytes(20_000_000), b"{}"):
        producer.produce(topic, value, on_delivery=lambda error, _: answers.append(error))
        assert producer.flush(60) == 0
    refused, taken = answers
    assert taken is None
    assert refused is not None
    assert refused.code() in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD}
    assert [message.value() for message in read_topic(settings, topic)] == [b"{}"]


def test_a_topic_that_breaks_a_promise_is_refused_by_name(admin: AdminClient, source_name: str) -> None:
    topics = Topics(source_name)
    wrong = [
        NewTopic(topics.raw, 3, config={"cleanup.policy": "compact"}),
        NewTopic(topics.state, 1),
    ]
    for future in admin.create_topics(wrong).values():
        future.result(60)
    with pytest.raises(BrokerError) as caught:
        create(admin, topics)
    message = caught.value.message
    assert f"topic {topics.raw} breaks a guarantee: " in message
    assert "cleanup.policy is compact, must be delete" in message
    assert "message.timestamp.after.max.ms is 3600000, must be 9223372036854775807" in message
    assert f"topic {topics.state} breaks a guarantee: " in message
    assert topics.events not in message
    assert "delete it" not in message
    assert caught.value.exit_code == 4


def test_a_topic_that_kafka_does_not_create(admin: AdminClient, source_name: str) -> None:
    topics = Topics(source_name)
    with pytest.raises(BrokerError) as caught:
        ensure_topics(admin, TopicsSettings(replication_factor=9), {topics.raw: "raw"})
    message = caught.value.message
    assert message.startswith(f"topic {topics.raw} cannot be created: ")
    assert message.endswith("; create it, or grant CREATE on it")


def test_an_event_of_5_mb_in_chunks(settings: KafkaSettings, topics: Topics, admin: AdminClient) -> None:
    limit = create(admin, topics)[topics.raw].record_limit
    value = random.Random(7).randbytes(5_000_000)
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer.open()
        for header, piece in split(value, limit):
            assert header is not None
            send(producer, topics.raw, b"1:0:log.000001:4", piece, 0, headers=[header])
        producer.commit(b"done")
    joiner = ChunkJoiner()
    wholes = []
    with InputReader(settings, topics.raw, "test") as reader:
        reader.seek(reader.first_offset())
        while not any(wholes):
            for message in reader.read(100, 60.0):
                assert message.headers is not None
                assert message.key is not None
                assert message.value is not None
                [(_, header)] = message.headers
                wholes.append(joiner.feed(message.key, header, message.value, message.offset))
    assert wholes[-1] == value
    assert len(wholes) == 5


def test_the_last_record_before_another(settings: KafkaSettings, topics: Topics, admin: AdminClient) -> None:
    create(admin, topics)
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer.open()
        for number in range(30):
            send(producer, topics.raw, b"key %d" % (number % 20), b"%d" % number)
        producer.commit(b"done")
    wait_until_decided(admin, topics.raw)
    found = [
        last_before(settings, topics.raw, offset, lambda record: record.key == b"key 3")
        for offset in (30, 23, 3)
    ]
    assert [record and record.value for record in found] == [b"23", b"3", None]
    last = last_before(settings, topics.raw, 30)
    assert last is not None
    assert last.value == b"29"


def test_input_that_was_deleted_is_a_gap(settings: KafkaSettings, topics: Topics, admin: AdminClient) -> None:
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer.open()
        for number in range(10):
            send(producer, topics.raw, b"%d" % number, b"value", 0)
        producer.commit(b"done")
    for future in admin.delete_records([TopicPartition(topics.raw, 0, 6)]).values():
        future.result(60)
    with InputReader(settings, topics.raw, "test") as reader:
        assert reader.first_offset() == 6
        with pytest.raises(InputLostError, match=f"records 4 to 5 of {topics.raw} were deleted") as caught:
            reader.seek(4)
        assert caught.value.exit_code == ExitCode.DATA == 7
        with pytest.raises(InputLostError) as caught:
            reader.seek(1000)
        end = newest_offset(settings, topics.raw)
        assert caught.value.message.startswith(f"{topics.raw} ends at offset {end}, but was read to 1000: ")
        reader.seek(6)
        assert [message.key for message in reader.read(100, 60.0)][:1] == [b"6"]
        # While it is read: they are gone before they are fetched, and after it was seen that they are there.
        for future in admin.delete_records([TopicPartition(topics.raw, 0, 9)]).values():
            future.result(60)
        reader._consumer.assign([TopicPartition(topics.raw, 0, 7)])
        with pytest.raises(InputLostError) as caught:
            reader.read(100, 60.0)
        assert caught.value.message.startswith(
            f"{topics.raw} no longer holds what must be read next: fetch failed due to requested offset"
        )
        assert caught.value.exit_code == ExitCode.DATA


class Upper:
    """A stage: the values in capitals; its state is that of a decoder."""

    def __init__(self, topic: str, state: DecoderState, stop_after: int) -> None:
        self.output = Output()
        self.topic = topic
        self.stop_after = stop_after
        self.next_offset = state.input_offset
        self.stop = threading.Event()

    def take(self, records: Sequence[Record]) -> Iterator[None]:
        for record in records:
            assert record.value is not None
            self.output.add(self.topic, record.key, record.value.upper(), record.timestamp_ms)
            self.next_offset = record.offset + 1
        if self.next_offset >= self.stop_after:
            self.stop.set()
        yield

    def state(self) -> DecoderState:
        return DecoderState(self.next_offset)


def run_upper(
    settings: KafkaSettings,
    topics: Topics,
    stage_class: type[Upper],
    stop_after: int,
    *,
    policy: CommitPolicy | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Run the stage; ``meanwhile`` is called once the input was compared, and before it is read."""
    with TransactionalProducer(settings, topics.source, "decoder", policy=policy) as producer:
        value = opened(producer)
        state = DecoderState(0) if value is None else DecoderState.from_bytes(value)
        stage = stage_class(topics.events, state, stop_after)
        guard = ContinuityGuard(settings, connect(settings), topics, "decoder")
        guard.check_records(state.continuity)
        meanwhile()
        guard.begin(state.continuity)
        with InputReader(settings, topics.raw, f"millrace-decoder-{topics.source}") as reader:
            committer = Committer(producer, guard, state, stop=stage.stop, health=Health(), reader=reader)
            committer.seek(stage.next_offset)
            run_stage(reader, committer, stage, stop=stage.stop, health=Health(), batch=170)


def test_a_stage_that_fails_and_resumes(settings: KafkaSettings, topics: Topics) -> None:
    """Whatever the cut, every record comes through once; what was begun and not committed is aborted."""
    expected = [b"value %d" % number for number in range(5000)]
    with TransactionalProducer(settings, topics.source, "reader") as producer:
        producer.open()
        for number, value in enumerate(expected):
            send(producer, topics.raw, b"%d" % number, value, number)
        producer.commit(b"done")

    class FailingError(Exception):
        pass

    class Failing(Upper):
        def take(self, records: Sequence[Record]) -> Iterator[None]:
            yield from super().take(records)
            if self.next_offset > 2100:  # in the middle of a transaction
                time.sleep(1.5)  # the commit ends, and what was sent after it has lingered and arrives
            if self.next_offset > 2300:
                raise FailingError

    policy = CommitPolicy(records=1000, age_s=1000)
    with pytest.raises(FailingError):
        run_upper(settings, topics, Failing, len(expected), policy=policy)
    run_upper(settings, topics, Upper, len(expected), policy=policy)
    assert values(settings, topics.events) == [value.upper() for value in expected]
    assert len(values(settings, topics.events, "read_uncommitted")) > len(expected)
    group = f"millrace-decoder-{topics.source}"
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": group})
    assert consumer.committed([TopicPartition(topics.raw, 0)], timeout=60)[0].offset == 5000
    consumer.close()


def test_an_input_is_cut_and_grows_again_before_it_is_read(
    own_kafka: Kafka, source_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client has lost a broker by that: the leader that had what was lost is still there."""
    settings = KafkaSettings(bootstrap_servers=own_kafka.bootstrap_servers)
    topics = Topics(source_name)
    create(connect(settings), topics)

    def write(*keys: bytes) -> None:
        with TransactionalProducer(settings, source_name, "reader") as producer:
            producer.open()
            for key in keys:
                send(producer, topics.raw, key, key, 1)
                producer.commit(key)

    def cut_and_write() -> None:
        own_kafka.kill_node(0)
        assert cut_tail(own_kafka, topics.raw, 2)
        own_kafka.start()
        write(b"e", b"f", b"g", b"h")

    monkeypatch.setattr(TransactionalProducer, "_warn", lambda *_: None)
    write(b"a", b"b", b"c", b"d")
    run_upper(settings, topics, Upper, 7)
    with pytest.raises(InputLostError, match="no longer holds what must be read next: Partition log trunc"):
        run_upper(settings, topics, Upper, 10, meanwhile=cut_and_write)
    assert values(settings, topics.events) == [b"A", b"B", b"C", b"D"]


def test_the_loss_of_a_broker_in_mid_stream(source_name: str) -> None:
    """One of three nodes is killed while a stage runs: it waits for new leaders and loses nothing."""
    with Kafka(nodes=3, heap_mb=256) as kafka:
        settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)
        topics = Topics(source_name)
        create(connect(settings), topics)
        expected = [b"value %d" % number for number in range(20_000)]
        with TransactionalProducer(settings, topics.source, "reader") as producer:
            producer.open()
            for value in expected:
                send(producer, topics.raw, b"key", value, 1)
            producer.commit(b"done")
        killed: list[int] = []

        class Killing(Upper):
            def take(self, records: Sequence[Record]) -> Iterator[None]:
                yield from super().take(records)
                if self.next_offset > 5000 and not killed:
                    found = connect(settings).list_topics(topics.events).topics[topics.events]
                    killed.append(found.partitions[0].leader)
                    kafka.kill_node(killed[0])

        run_upper(settings, topics, Killing, len(expected))
        assert killed
        assert values(settings, topics.events) == [value.upper() for value in expected]
        kafka.start()
        assert kafka.running
        admin = connect(settings)
        kafka.kill_node(admin.describe_cluster().result().controller.id)  # whom the client asks
        assert topic_ids(admin, [topics.raw, topics.events]).keys() == {topics.raw, topics.events}


def test_what_alerts_are_told_was_told_before(settings: KafkaSettings, source_name: str) -> None:
    first, last = b'{"n": 1}', b'{"n": 2}'
    seen: list[bytes | None] = []

    def choose(told: Mapping[bytes, bytes]) -> dict[str, bytes]:
        value = told.get(source_name.encode())
        seen.append(value)
        return {} if value == last else {source_name: last if value else first}

    topics = TopicsSettings.model_validate({})
    assert [tell_alerts(settings, topics, choose) for _ in range(3)] == [1, 1, 0]
    assert seen == [None, first, last]
    ours = [message for message in read_topic(settings, ALERTS) if message.key() == source_name.encode()]
    assert [message.value() for message in ours] == [first, last]


def test_of_two_that_tell_alerts_at_once_one_is_fenced(settings: KafkaSettings, source_name: str) -> None:
    def choose(told: Mapping[bytes, bytes]) -> dict[str, bytes]:
        tell_alerts(settings, TopicsSettings.model_validate({}), lambda _: {source_name: b"{}"})
        return {source_name: b'{"n": 0}'}

    with pytest.raises(FencedError, match=r"another process took over while writing to millrace\.alerts"):
        tell_alerts(settings, TopicsSettings.model_validate({}), choose)
    ours = [message for message in read_topic(settings, ALERTS) if message.key() == source_name.encode()]
    assert [message.value() for message in ours] == [b"{}"]

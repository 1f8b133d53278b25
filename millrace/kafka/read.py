"""Reading whole topics, and watching them grow: for checks and tools, not for services."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not export them
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
    TopicMetadata,
)

from millrace.kafka import client
from millrace.kafka.client import admin_client, consumer_config
from millrace.kafka.errors import BrokerError, answer_of, translated
from millrace.runtime.settings import KafkaSettings
from millrace.stage import Headers, Record

if TYPE_CHECKING:
    from concurrent.futures import Future

_TIMEOUT_S: Final = 30.0
_SILENCE_S: Final = 60.0
_RETRY_S: Final = 0.2
_NO_LEADER_YET: Final = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
_UNREADABLE: Final = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION}
_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # its stubs have no types
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NONE_SINCE: Final = -1
"""Answer of Kafka where no record has a time or a later one."""

_BATCH: Final = 10_000
_READER = "millrace-read"
_END_S: Final = 0.5


def arrived(consumer: client.Consumer, count: int, wait_s: float) -> list[Message]:
    """Return up to ``count`` messages that are there, else the first to come within ``wait_s``.

    The client's own call waits until all of them have come, or the time is over.
    """
    return consumer.consume(count, 0) or consumer.consume(1, wait_s)


def read_topic(
    settings: KafkaSettings,
    topic: str,
    *,
    isolation: str = "read_committed",
    follow: bool = False,
    start: int | Mapping[int, int] = 0,
    undecided: bool = True,
) -> Iterator[Message]:
    """Yield the committed records that a topic holds now from ``start`` on, partitions interleaved; then end.

    ``start`` is an offset, or one for each partition.

    What lies in the topic when this is called and is undecided is waited for: a Kafka transaction that has
    been committed shows in one partition a moment before it does in another. Without ``undecided`` it is not:
    what a service could have read by now is all that is given. With the ``isolation`` "read_uncommitted"
    undecided and aborted records are given as well. With ``follow`` it does not end, but waits for further
    records. A topic that does not exist gives nothing. Raises :class:`BrokerError` when the topic cannot be
    read.
    """
    config = consumer_config(settings, _READER, isolation=isolation, follow=follow)
    config |= {"enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = client.Consumer(config, logger=client.KAFKA_LOG)
    try:
        with translated(f"reading {topic}"):
            starts = {
                number: start if isinstance(start, int) else start[number]
                for number in consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
            }
            partitions = [
                TopicPartition(topic, number, first or OFFSET_BEGINNING) for number, first in starts.items()
            ]
            if not partitions:
                return
            found = latest_offsets(
                admin_client(settings),
                partitions,
                IsolationLevel.READ_UNCOMMITTED if undecided else IsolationLevel.READ_COMMITTED,
            )
            silence_s = _SILENCE_S if undecided else _TIMEOUT_S
            ends = {partition.partition: end for partition, end in found.items()}
            unfinished = {number for number, end in ends.items() if end > starts[number]}
            consumer.assign(partitions)
            heard = time.monotonic()
            while unfinished or follow:
                for message in arrived(consumer, _BATCH, _END_S):
                    heard = time.monotonic()
                    error, number, offset = message.error(), message.partition(), message.offset()
                    assert number is not None
                    assert offset is not None
                    if error is None:
                        if offset >= starts[number] and (follow or offset < ends[number]):
                            yield message
                        offset += 1
                    elif error.code() in _UNREADABLE:
                        raise BrokerError(f"{topic} cannot be read: {error.str()} ({error.name()})")
                    elif error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if offset >= ends[number]:
                        unfinished.discard(number)
                if not follow and time.monotonic() - heard > silence_s:
                    raise BrokerError(
                        f"{topic} cannot be read: no answer within {silence_s:.0f} s, or a transaction of "
                        "Kafka is open in it for that long"
                    )
    finally:
        consumer.close()


def record_of(message: Message) -> Record:
    """Return what a message holds, which is no error; raises nothing."""
    return Record(
        cast("int", message.offset()),
        message.timestamp()[1],
        None if message.key() is None else bytes_of(message.key()),
        message.value(),
        cast("Headers", message.headers()),
    )


def bytes_of(content: bytes | str | None) -> bytes:
    """Return the bytes of a key, a value or a header; none where there is none."""
    return content.encode() if isinstance(content, str) else content or b""


def source_topics(admin: AdminClient, source: str) -> dict[str, int]:
    """Return the topics of a source with the number of their partitions."""
    topics = _list_topics(admin).items()
    return {name: len(topic.partitions) for name, topic in sorted(topics) if name.startswith(f"{source}.")}


def topic_names(admin: AdminClient) -> list[str]:
    """Return the names of all topics, in order."""
    return sorted(_list_topics(admin))


def _list_topics(admin: AdminClient) -> dict[str, TopicMetadata]:
    with translated("listing topics"):
        return admin.list_topics(timeout=_TIMEOUT_S).topics


def end_offsets(admin: AdminClient, topics: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return for each topic, given with its number of partitions, how far its committed records reach.

    That is the sum of its partitions' offsets. The ends of Kafka transactions count as well, so it is a
    little more than the number of records.
    """
    partitions = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]
    if not partitions:
        return {}
    sums: dict[str, int] = {}
    for partition, offset in latest_offsets(admin, partitions, IsolationLevel.READ_COMMITTED).items():
        sums[partition.topic] = sums.get(partition.topic, 0) + offset
    return sums


def held_offsets(
    admin: AdminClient, topics: Mapping[str, int], *, undecided: bool = True
) -> dict[tuple[str, int], range]:
    """Return the offsets that each partition holds; ``topics`` gives the number of partitions of each.

    Without ``undecided`` they end before the first Kafka transaction that is open.
    """
    partitions = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    if not partitions:
        return {}
    first = earliest_offsets(admin, partitions)
    ends = latest_offsets(
        admin, partitions, IsolationLevel.READ_UNCOMMITTED if undecided else IsolationLevel.READ_COMMITTED
    )
    return {(at.topic, at.partition): range(first[at], ends[at]) for at in partitions}


def earliest_offsets(admin: AdminClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offset of the first record that each partition still holds; raises BrokerError.

    A consumer's own look at the low watermark may give 0 for a moment, whatever was deleted.
    """
    return _list_offsets(admin, dict.fromkeys(partitions, _EARLIEST), IsolationLevel.READ_UNCOMMITTED)


def latest_offsets(
    admin: AdminClient, partitions: Iterable[TopicPartition], isolation: IsolationLevel
) -> dict[TopicPartition, int]:
    """Return the offset after the last record of each partition; raises BrokerError."""
    return _list_offsets(admin, dict.fromkeys(partitions, _LATEST), isolation)


def offsets_since(admin: AdminClient, topic: str, timestamp_ms: int) -> dict[int, int]:
    """Return for each partition the offset of its first record of a time or later, or its end."""
    with translated(f"looking up the partitions of {topic}"):
        numbers = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
    partitions = [TopicPartition(topic, number) for number in numbers]
    ends = latest_offsets(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
    since = dict.fromkeys(partitions, OffsetSpec.for_timestamp(timestamp_ms))
    found = _list_offsets(admin, since, IsolationLevel.READ_UNCOMMITTED, least=_NONE_SINCE)
    return {at.partition: ends[at] if found[at] == _NONE_SINCE else found[at] for at in partitions}


def _list_offsets(
    admin: AdminClient,
    wanted: dict[TopicPartition, OffsetSpec],
    isolation: IsolationLevel,
    *,
    least: int = 0,
) -> dict[TopicPartition, int]:
    """Look up offsets. A partition of a topic just created may have no leader yet; that is waited for.

    The client gives OFFSET_INVALID (-1001) and no error for a partition of which a broker that has just
    started did not answer. That is waited for too: it must never be taken for an end.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_TIMEOUT_S)
        found: dict[TopicPartition, int] = {}
        for partition, future in futures.items():
            try:
                found[partition] = _answered(future, least)
            except KafkaException as error:
                if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                    with translated(f"looking up offsets of {partition.topic}"):
                        raise
                time.sleep(_RETRY_S)
                break
        else:
            return found


def _answered(future: "Future[ListOffsetsResultInfo]", least: int) -> int:
    offset = int(answer_of(future, _TIMEOUT_S).offset)
    if offset < least:
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "no offset in the answer"))
    return offset

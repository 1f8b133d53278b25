"""What lies in a topic behind an offset, for those who tell how far a service is behind."""

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition

from millrace.kafka.client import KAFKA_LOG, AdminClient, Message, client_config, consumer_config
from millrace.kafka.errors import BrokerError, translated
from millrace.kafka.read import latest_offsets
from millrace.runtime.settings import KafkaSettings

__all__ = ["pending"]

_SILENCE_S: Final = 30.0
_BATCH: Final = 1_000


def pending(settings: KafkaSettings, topic: str, offset: int) -> Iterator[Message]:
    """Yield the records of partition 0 from ``offset`` on that are committed by now, then end.

    Unlike :func:`~millrace.kafka.read.read_topic` it does not wait for what is undecided: nobody could have
    read that. Where the records at ``offset`` were deleted, those that are left are given.
    """
    partition = TopicPartition(topic, 0)
    admin = AdminClient(client_config(settings), logger=KAFKA_LOG)
    config = consumer_config(settings, "millrace-pending") | {"enable.partition.eof": True}
    consumer = Consumer(config | {"auto.offset.reset": "earliest"}, logger=KAFKA_LOG)
    try:
        with translated(f"reading {topic}"):
            end = latest_offsets(admin, [partition], IsolationLevel.READ_COMMITTED)[partition]
            if offset >= end:
                return
            consumer.assign([TopicPartition(topic, 0, offset)])
            heard = time.monotonic()
            while time.monotonic() - heard < _SILENCE_S:
                for message in consumer.consume(_BATCH, 0.5):
                    heard = time.monotonic()
                    error, at = message.error(), message.offset()
                    assert at is not None
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if error is None and at < end:
                        yield message
                    if at >= end or (error is None and at == end - 1):
                        return
            raise BrokerError(f"{topic} cannot be read: no answer within {_SILENCE_S:.0f} s")
    finally:
        consumer.close()

"""Where a service stands: one record per service in the compacted topic ``{source}.state``.

The record is written in the Kafka transaction of the output that it speaks of, so that both are there or
neither. Its value is for the service alone: bytes in, bytes out. The header ``owner`` says which process
wrote it, for the words in which a fenced process says who took over.

Group offsets are no substitute: they expire, and their metadata holds 4 KB.
"""

import os
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from millrace.contract import Topics
from millrace.kafka.client import KAFKA_LOG, client_config, consumer_config
from millrace.kafka.errors import BrokerError, translated
from millrace.kafka.read import earliest_offsets, latest_offsets
from millrace.runtime.settings import KafkaSettings

__all__ = [
    "HEADER_OWNER",
    "StoredState",
    "newest_offset",
    "oldest_offset",
    "process_name",
    "read_state",
    "state_key",
]

HEADER_OWNER: Final = "owner"
_FIRST_STRIDE: Final = 256
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class StoredState:
    """The last state of a service: ``value`` is None before its first transaction."""

    value: bytes | None
    owner: str
    offset: int
    written_ms: int = 0
    """When it was written, milliseconds since 1970."""


def state_key(service: str, shard: int | None = None) -> bytes:
    """Give the key under which a service, or a shard of it, keeps its state."""
    return (service if shard is None else f"{service}-{shard}").encode("ascii")


def process_name() -> str:
    """Name this process for others: "process 4711 on db1, started 2026-11-21 10:05:00 UTC"."""
    return f"process {os.getpid()} on {socket.gethostname()}, at work since {_STARTED:%Y-%m-%d %H:%M:%S} UTC"


_STARTED: Final = datetime.now(UTC)


def read_state(
    settings: KafkaSettings, source: str, service: str, shard: int | None = None
) -> StoredState | None:
    """Read the newest committed state of a service; None if there never was one.

    Everything that lies in the topic when this is called is waited for: what other services have written but
    not yet committed may hide what is ours. The topic is read backwards in growing strides, so that its
    length does not matter.
    """
    topic, key = Topics(source).state, state_key(service, shard)
    consumer = Consumer(
        consumer_config(settings, f"millrace-{service}-{source}") | {"enable.partition.eof": True},
        logger=KAFKA_LOG,
    )
    try:
        with translated(f"reading the state in {topic}"):
            low, end = oldest_offset(settings, topic), newest_offset(settings, topic)
            stride, start = _FIRST_STRIDE, end
            while start > low:
                before, start = start, max(low, start - stride)
                found = _last_between(consumer, topic, key, start, before)
                if found is not None:
                    return found
                stride *= 8
            return None
    finally:
        consumer.close()


def oldest_offset(settings: KafkaSettings, topic: str) -> int:
    """Give the offset of the first record that partition 0 still holds."""
    admin = AdminClient(client_config(settings), logger=KAFKA_LOG)
    partition = TopicPartition(topic, 0)
    with translated(f"looking up the start of {topic}"):
        return earliest_offsets(admin, [partition])[partition]


def newest_offset(settings: KafkaSettings, topic: str) -> int:
    """Give the offset behind the last record of partition 0, open transactions included."""
    admin = AdminClient(client_config(settings), logger=KAFKA_LOG)
    partition = TopicPartition(topic, 0)
    with translated(f"looking up the end of {topic}"):
        return latest_offsets(admin, [partition], IsolationLevel.READ_UNCOMMITTED)[partition]


def _last_between(consumer: Consumer, topic: str, key: bytes, start: int, end: int) -> StoredState | None:
    """Give the last committed record with this key at offsets from ``start`` to before ``end``."""
    consumer.assign([TopicPartition(topic, 0, start)])
    found: StoredState | None = None
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        offset = message.offset()
        assert offset is not None
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise BrokerError(f"the state in {topic} cannot be read: {error.str()}")
        if error is None and offset < end and message.key() == key:
            owner = dict(message.headers() or ()).get(HEADER_OWNER)
            found = StoredState(
                message.value(),
                owner.decode() if isinstance(owner, bytes) else "another process",
                offset,
                message.timestamp()[1],
            )
        if offset >= end or (error is None and offset == end - 1):
            return found
    raise BrokerError(
        f"{topic} could not be read up to {end} within {_TIMEOUT_S:g} s: a transaction in it does not end"
    )

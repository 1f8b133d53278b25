"""Where a service stands: one record per service in the compacted topic ``{source}.state``.

The record is written in the Kafka transaction of the output that it speaks of, so that both are there or
neither. Its value is for the service alone: bytes in, bytes out. Its headers say who wrote it
(:class:`Owner`): the service itself, or a command in its place. While its owner has nothing to write it is
written again every few seconds, and once more when its owner ends.

Group offsets are no substitute: they expire, and their metadata holds 4 KB.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, cast

from confluent_kafka import IsolationLevel, KafkaError, TopicPartition

from millrace.avro.service_state import S, stored_state
from millrace.contract import RUN, SERVICES, Topics
from millrace.kafka import client
from millrace.kafka.client import admin_client, consumer_config
from millrace.kafka.errors import BrokerError, translated
from millrace.kafka.read import arrived, earliest_offsets, held_offsets, latest_offsets, record_of
from millrace.runtime.settings import KafkaSettings
from millrace.stage import Record, Target

HEADER_OWNER: Final = "owner"
_HEADER_ROLE: Final = "role"
_HEADER_ENDED: Final = "ended"
SIGN_S: Final = 5.0
"""After how long without a commit an owner writes its state again."""

SILENT_S: Final = 20.0
"""An owner that has written nothing for so long was killed, or does not reach Kafka."""

_FIRST_STRIDE: Final = 256
_BATCH: Final = 1000
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Owner:
    """Who wrote a state: a service, ``millrace run``, or a command in the place of a service."""

    role: str
    """The name of the service, or of the command, such as "deadletter redrive"; "" in earlier versions."""
    process: str
    """As :func:`process_name` has it: the process, its host, and since when."""
    ended: bool = False

    @property
    def is_command(self) -> bool:
        """Whether it is a command, for whose end the services that it has fenced wait."""
        return self.role not in ("", RUN, "snapshot", *SERVICES)

    def __str__(self) -> str:
        """Name it for others."""
        return (
            f"millrace {self.role}, {self.process}" if self.is_command or self.role == RUN else self.process
        )

    def headers(self, *, ended: bool = False) -> list[tuple[str, bytes]]:
        """Return the headers of a record that it writes."""
        headers = [(HEADER_OWNER, str(self).encode()), (_HEADER_ROLE, self.role.encode())]
        return [*headers, (_HEADER_ENDED, b"1")] if ended else headers

    @classmethod
    def of(cls, record: Record) -> "Owner":
        """Read who wrote a record."""
        headers = dict(record.headers or ())
        role = (headers.get(_HEADER_ROLE) or b"").decode("utf-8", "replace")
        name = (headers.get(HEADER_OWNER) or b"another process").decode("utf-8", "replace")
        return cls(role, name.removeprefix(f"millrace {role}, "), ended=_HEADER_ENDED in headers)


@dataclass(frozen=True, slots=True)
class StoredState:
    """The last state of a service: ``value`` is None before its first transaction."""

    value: bytes | None
    by: Owner
    offset: int
    written_ms: int = 0
    """When it was written, milliseconds since 1970."""

    @property
    def owner(self) -> str:
        """Name its owner."""
        return str(self.by)

    @property
    def is_silent(self) -> bool:
        """Whether its owner has given no sign of life for longer than one that works does."""
        return time.time() - self.written_ms / 1000 > SILENT_S


def state_key(service: str) -> bytes:
    """Return the key of a service's state."""
    return service.encode("ascii")


def process_name() -> str:
    """Name this process for others: "process 4711 on db1, started 2026-11-21 10:05:00 UTC"."""
    return f"process {os.getpid()} on {socket.gethostname()}, at work since {_STARTED:%Y-%m-%d %H:%M:%S} UTC"


_STARTED: Final = datetime.now(UTC)


def read_state(
    settings: KafkaSettings, source: str, service: str, *, undecided: bool = True
) -> StoredState | None:
    """Read the newest committed state of a service; None if there never was one.

    Without ``undecided`` nothing is waited for; see :func:`last_records`.
    """
    key, at = state_key(service), (Topics(source).state, 0)
    record = last_records(settings, {at[0]: 1}, lambda found: found.key == key, undecided=undecided).get(at)
    if record is None:
        return None
    return StoredState(record.value, Owner.of(record), record.offset, record.timestamp_ms)


def decoded_state(
    settings: KafkaSettings, source: str, service: str, kind: type[S], *, undecided: bool = True
) -> S | None:
    """Read the same and decode it; raises :class:`UserError` where it cannot be read."""
    stored = read_state(settings, source, service, undecided=undecided)
    return stored_state(kind, None if stored is None else stored.value, Topics(source).state)


def last_record(
    settings: KafkaSettings, topic: str, wanted: Callable[[Record], bool] = lambda _: True
) -> Record | None:
    """Read the last committed record of partition 0 that is ``wanted``; None if there is none."""
    return last_records(settings, {topic: 1}, wanted).get((topic, 0))


def last_records(
    settings: KafkaSettings,
    topics: Mapping[str, int],
    wanted: Callable[[Record], bool] = lambda _: True,
    *,
    undecided: bool = True,
) -> dict[Target, Record]:
    """Read the last committed record that is ``wanted`` of each partition that has one.

    ``topics`` gives the number of partitions of each. Everything that lies in a partition when this is called
    is waited for: what other services have written but not yet committed may hide what is wanted. Without
    ``undecided`` what lies before the first open transaction is all that is looked at. Partitions are read
    backwards in growing strides, so that their length does not matter.
    """
    config = consumer_config(settings, "millrace-read", follow=False) | {"enable.partition.eof": True}
    found_now = held_offsets(admin_client(settings), topics, undecided=undecided)
    left = {at: held for at, held in found_now.items() if held}
    found: dict[Target, Record] = {}
    if not left:
        return found
    # Made last: a consumer asks for leaders when it connects, by which time it should be assigned something.
    consumer = client.Consumer(config, logger=client.KAFKA_LOG)
    try:
        with translated("reading the ends of topics"):
            stride = _FIRST_STRIDE
            while left:
                starts = {at: max(held.start, held.stop - stride) for at, held in left.items()}
                found |= _last_between(consumer, left, starts, wanted)
                left = {
                    at: range(held.start, starts[at])
                    for at, held in left.items()
                    if at not in found and starts[at] > held.start
                }
                stride *= 8
    finally:
        consumer.close()
    return found


def oldest_offset(settings: KafkaSettings, topic: str) -> int:
    """Return the offset of the first record that partition 0 still holds."""
    partition = TopicPartition(topic, 0)
    return earliest_offsets(admin_client(settings), [partition])[partition]


def held_range(settings: KafkaSettings, topic: str) -> range:
    """Return the offsets that partition 0 holds, open transactions included."""
    return held_offsets(admin_client(settings), {topic: 1})[topic, 0]


def newest_offset(settings: KafkaSettings, topic: str) -> int:
    """Return the offset after the last record of partition 0, open transactions included."""
    partition = TopicPartition(topic, 0)
    return latest_offsets(admin_client(settings), [partition], IsolationLevel.READ_UNCOMMITTED)[partition]


def _last_between(
    consumer: client.Consumer,
    held: Mapping[Target, range],
    starts: Mapping[Target, int],
    wanted: Callable[[Record], bool],
) -> dict[Target, Record]:
    """Return the last records that are wanted, from ``starts`` to before the ends of what is ``held``."""
    consumer.assign([TopicPartition(*at, start) for at, start in starts.items()])
    found: dict[Target, Record] = {}
    left = set(held)
    heard = time.monotonic()
    while left:
        for message in arrived(consumer, _BATCH, 0.5):
            heard = time.monotonic()
            error = message.error()
            at = cast("str", message.topic()), cast("int", message.partition())
            offset, end = cast("int", message.offset()), held[at].stop
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise BrokerError(f"{at[0]} cannot be read: {error.str()}")
            if error is None and offset < end and wanted(record := record_of(message)):
                found[at] = record
            if offset >= end or (error is None and offset == end - 1):
                left.discard(at)
        if time.monotonic() - heard > _TIMEOUT_S:
            raise BrokerError(
                f"{min(left)[0]} could not be read to its end within {_TIMEOUT_S:g} s: a transaction in it "
                "does not end. Kafka may have forgotten it: the service that began it ends it when it is "
                "started again; kafka-transactions.sh (find-hanging, abort) does, even if "
                "__transaction_state was lost"
            )
    return found

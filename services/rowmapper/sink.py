"""The steps of a transaction's output, counted, so that writing can stop and go on after any of them.

What is written for a transaction is the same sequence of records each time. The state says how many of them
are in Kafka already; after a restart that many are passed over.
"""

from collections.abc import Callable, Sequence
from typing import Final

from millrace.avro.tables import Record
from millrace.kafka.pipe import TransactionalProducer
from services.rowmapper.partition import partition_of

__all__ = ["Sink"]

_LOOK_EVERY: Final = 64
"""Records between two looks at whether the Kafka transaction is large or old enough."""


class Sink:
    """Writes records; ``done`` counts those of the transaction at hand, written or passed over.

    ``when_due`` is called between two records when the Kafka transaction should be committed.
    """

    def __init__(self, producer: TransactionalProducer, when_due: Callable[[], None]) -> None:
        self.done = 0
        self._skip = 0
        self._producer = producer
        self._when_due = when_due

    def start(self, skip: int = 0) -> None:
        """Begin the output of a transaction, of which ``skip`` records are written already."""
        self.done = 0
        self._skip = skip

    def put(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes]] | None = None,
    ) -> None:
        """Write a record to a topic of one partition."""
        self.done += 1
        if self.done > self._skip:
            self._producer.produce(topic, key, value, timestamp_ms, headers)
            if self._producer.due:
                self._when_due()

    def put_rows(self, topic: str, partitions: int, records: Sequence[Record], timestamp_ms: int) -> None:
        """Write rows to the topic of their table."""
        at = min(max(0, self._skip - self.done), len(records))
        self.done += at
        while at < len(records):
            batch = records[at : at + _LOOK_EVERY - self.done % _LOOK_EVERY]
            if partitions == 1:
                self._producer.produce_batch(topic, [(key, value, timestamp_ms) for key, value in batch])
            else:
                for key, value in batch:
                    partition = partition_of(key, partitions)
                    self._producer.produce(topic, key, value, timestamp_ms, partition=partition)
            at += len(batch)
            self.done += len(batch)
            if not self.done % _LOOK_EVERY and self._producer.due:
                self._when_due()

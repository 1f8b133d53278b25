"""A topic that jobs write, of all sources together: by one process at a time, in transactions of Kafka."""

from collections.abc import Mapping
from typing import Final

from millrace.contract import OF_ALL_SOURCES
from millrace.kafka import client
from millrace.kafka.client import admin_client, producer_config
from millrace.kafka.errors import translated
from millrace.kafka.topics import ensure_topics
from millrace.runtime.settings import KafkaSettings, TopicsSettings

_OPEN_S: Final = 60.0
_COMMIT_S: Final = 25.0
_FLUSHED_BYTES: Final = 16 << 20


class JobTopic:
    """The topic of a kind, created when it is missing, and the producer with this transactional id.

    Raises :class:`BrokerError` where Kafka refuses, and :class:`FencedError` where another process has begun
    to write with the same id since.
    """

    def __init__(
        self, kafka: KafkaSettings, topics: TopicsSettings, kind: str, transactional_id: str
    ) -> None:
        self.name = OF_ALL_SOURCES[kind]
        ensure_topics(admin_client(kafka), topics, {self.name: kind})
        self._producer = client.Producer(producer_config(kafka, transactional_id), logger=client.KAFKA_LOG)
        with translated(f"writing to {self.name}"):
            self._producer.init_transactions(_OPEN_S)

    def write(self, records: Mapping[str, bytes]) -> None:
        """Write values by key, all of them or none."""
        if not records:
            return
        with translated(f"writing to {self.name}"):
            self._producer.begin_transaction()
            waiting = 0
            for key, value in records.items():
                self._producer.produce(self.name, value, key, 0)
                waiting += len(value)
                if waiting > _FLUSHED_BYTES:
                    self._producer.flush(_COMMIT_S)
                    waiting = 0
            self._producer.commit_transaction(_COMMIT_S)

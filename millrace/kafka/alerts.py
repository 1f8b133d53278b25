"""The topic ``millrace.alerts``: what is wrong with replication, as jobs have found it, for all sources.

A record is an incident, its key the incident's id. Who writes reads first what the topic has, and then writes
in one transaction of Kafka, of which there is one at a time: two jobs that end at once do not both tell.
"""

from collections.abc import Callable, Mapping
from typing import Final

from millrace.kafka import client
from millrace.kafka.client import admin_client, producer_config
from millrace.kafka.errors import translated
from millrace.kafka.read import read_topic
from millrace.kafka.topics import ensure_topics
from millrace.runtime.settings import KafkaSettings, TopicsSettings

__all__ = ["ALERTS", "tell_alerts"]

ALERTS: Final = "millrace.alerts"
_TRANSACTIONAL_ID: Final = "millrace-alerts"
_OPEN_S: Final = 60.0
_COMMIT_S: Final = 25.0


def tell_alerts(
    kafka: KafkaSettings,
    topics: TopicsSettings,
    choose: Callable[[Mapping[bytes, bytes]], Mapping[str, bytes]],
) -> int:
    """Write what ``choose`` gives, by key, when it is given the last value of each key; give how many.

    The topic is created when it is missing. Raises :class:`BrokerError` where Kafka refuses, and
    :class:`FencedError` where another process has begun to write meanwhile.
    """
    ensure_topics(admin_client(kafka), topics, {ALERTS: "alerts"})
    producer = client.Producer(producer_config(kafka, _TRANSACTIONAL_ID), logger=client.KAFKA_LOG)
    with translated(f"writing to {ALERTS}"):
        producer.init_transactions(_OPEN_S)
        told: dict[bytes, bytes] = {}
        for message in read_topic(kafka, ALERTS):
            key, value = message.key(), message.value()
            if isinstance(key, bytes) and isinstance(value, bytes):
                told[key] = value
        new = choose(told)
        if new:
            producer.begin_transaction()
            for name, alert in new.items():
                producer.produce(ALERTS, alert, name)
            producer.commit_transaction(_COMMIT_S)
    return len(new)

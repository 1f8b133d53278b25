"""The topic ``millrace.alerts``: what is wrong with replication, as jobs have found it, for all sources.

A record is an incident, its key the incident's id. Who writes reads first what the topic has, and then writes
in one transaction of Kafka, of which there is one at a time: two jobs that end at once do not both tell.
"""

from collections.abc import Callable, Mapping
from typing import Final

from millrace.contract import OF_ALL_SOURCES
from millrace.kafka.errors import translated
from millrace.kafka.job_topic import JobTopic
from millrace.kafka.read import read_topic
from millrace.runtime.settings import KafkaSettings, TopicsSettings

ALERTS: Final = OF_ALL_SOURCES["alerts"]
_TRANSACTIONAL_ID: Final = "millrace-alerts"


def tell_alerts(
    kafka: KafkaSettings,
    topics: TopicsSettings,
    choose: Callable[[Mapping[bytes, bytes]], Mapping[str, bytes]],
) -> int:
    """Write what ``choose`` gives, by key, when it is given the last value of each key; give how many.

    The topic is created when it is missing. Raises :class:`BrokerError` where Kafka refuses, and
    :class:`FencedError` where another process has begun to write meanwhile.
    """
    topic = JobTopic(kafka, topics, "alerts", _TRANSACTIONAL_ID)
    told: dict[bytes, bytes] = {}
    with translated(f"reading {ALERTS}"):
        for message in read_topic(kafka, ALERTS):
            key, value = message.key(), message.value()
            if isinstance(key, bytes) and isinstance(value, bytes):
                told[key] = value
    new = choose(told)
    topic.write(new)
    return len(new)

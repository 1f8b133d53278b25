"""Which topics do not take what is written to them, and why.

A transaction fails as a whole, and the client names the topic at fault only where a broker refused records of
it. A topic that is gone makes all records of the transaction time out, and one that may not be written is not
even said by name. So the cluster is asked.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millrace.kafka.errors import BrokerError, is_passing
from millrace.kafka.topics import look_up

_TIMEOUT_S: Final = 5.0
_GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_DENIED: Final = (KafkaError.TOPIC_AUTHORIZATION_FAILED,)
_TOO_LARGE: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)


class TopicsRefusedError(BrokerError):
    """Topics do not take what is written to them; ``topics`` says why of each."""

    def __init__(self, topics: Mapping[str, str]) -> None:
        super().__init__(". ".join(topics.values()))
        self.topics = topics


def refused_topics(
    admin: AdminClient,
    names: Collection[str],
    failures: Mapping[str, KafkaError],
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, str]:
    """Say of each topic that takes no records why not; ``failures`` are what brokers said of records.

    Of topics that the cluster does not tell about in time, nothing is said.
    """
    found = {topic: _said(topic, error) for topic, error in failures.items() if not is_passing(error)}
    asked = [name for name in sorted(names) if name not in found]
    with suppress(KafkaException):
        for name, topic in look_up(admin, asked, timeout_s, operations=True).items():
            if not isinstance(topic, KafkaException):
                allowed = {operation.name for operation in topic.authorized_operations or ()}
                if allowed and "WRITE" not in allowed:
                    found[name] = _denied(name)
            elif topic.args[0].code() in _GONE + _DENIED:
                found[name] = _said(name, topic.args[0])
    return found


def _said(topic: str, error: KafkaError) -> str:
    code = error.code()
    if code in _GONE:
        return f"the topic {topic} is gone: the records that were written to it until now are lost"
    if code in _DENIED:
        return _denied(topic)
    if code in _TOO_LARGE:
        return (
            f"the topic {topic} does not take a record, or a batch of them, of this size: its "
            "max.message.bytes was lowered. Raise it again"
        )
    return f"the topic {topic} does not take these records: {error.str()} ({error.name()})"


def _denied(topic: str) -> str:
    return f"these credentials may not write to the topic {topic}: allow WRITE and DESCRIBE on it"

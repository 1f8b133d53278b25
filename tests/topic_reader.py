"""Topics that a test looks at again and again while services write to them."""

from functools import cached_property

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from millrace.kafka import topics
from millrace.kafka.client import connect
from millrace.kafka.read import held_offsets, read_topic
from millrace.runtime.settings import KafkaSettings

Extent = tuple[str, dict[tuple[str, int], range]]
"""Kafka's id of a topic and the offsets that its partitions hold."""


class TopicReader:
    """Reads whole topics, and one again only where it holds other offsets than before.

    Reading takes clients of its own, which cost Kafka and the test many times what the question costs.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._read: dict[tuple[str, str], tuple[Extent, list[Message]]] = {}

    @cached_property
    def _admin(self) -> AdminClient:
        return connect(self._settings)

    def messages(self, topic: str, *, isolation: str = "read_committed") -> list[Message]:
        """The records of a topic by now; none where it does not exist."""
        extent = self._extent(topic)
        if extent is None:
            return []
        known = self._read.get((topic, isolation))
        if known is None or known[0] != extent:
            known = extent, list(read_topic(self._settings, topic, isolation=isolation))
            self._read[topic, isolation] = known
        return list(known[1])

    def last(self, topic: str, key: bytes) -> Message | None:
        """The last record of a topic with a key."""
        found = [message for message in self.messages(topic) if message.key() == key]
        return found[-1] if found else None

    def end_offset(self, topic: str) -> int:
        """Offset after the last record of partition 0, open transactions included; 0 without a topic."""
        extent = self._extent(topic)
        return 0 if extent is None else extent[1][topic, 0].stop

    def _extent(self, topic: str) -> Extent | None:
        found = topics._describe(self._admin, [topic])[0].get(topic)
        return found and (found.id, held_offsets(self._admin, {topic: found.partitions}))

"""Records that tests write themselves: through a service's producer, in place of a stage, or their own."""

from confluent_kafka.admin import AdminClient

from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import held_offsets
from millrace.stage import Headers, Output
from tests.service_process import wait_for

__all__ = ["send", "wait_until_decided"]


def send(
    producer: TransactionalProducer,
    topic: str,
    key: bytes | None,
    value: bytes,
    timestamp_ms: int = 0,
    headers: Headers = None,
) -> None:
    """Add a record to the producer's Kafka transaction."""
    output = Output()
    output.add(topic, key, value, timestamp_ms, headers)
    producer.send(output)


def wait_until_decided(admin: AdminClient, topic: str, partitions: int = 1) -> None:
    """Wait until the partitions of a topic have the ends of all transactions.

    Kafka answers a producer that commits or aborts before it has written them: until then nobody reads what
    was committed.
    """

    def is_decided() -> bool:
        held, committed = (
            held_offsets(admin, {topic: partitions}, undecided=undecided) for undecided in (True, False)
        )
        return held == committed

    wait_for(is_decided, None, f"the end of a transaction in {topic}")

"""Single records through a service's producer, for tests that stand in for a stage."""

from millrace.kafka.producer import TransactionalProducer
from millrace.stage import Headers, Output

__all__ = ["send"]


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

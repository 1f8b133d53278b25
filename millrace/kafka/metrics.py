"""What a service's producer counts, for Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.kafka.producer import TransactionalProducer


class CommitMetrics(Collector):
    """How many transactions of Kafka a service has committed, and when the last."""

    def __init__(self, registry: CollectorRegistry, service: str, producer: TransactionalProducer) -> None:
        self._service = service
        self._producer = producer
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield both as they are now."""
        yield CounterMetricFamily(
            f"millrace_{self._service}_commits", "Kafka transactions committed.", self._producer.commits
        )
        yield GaugeMetricFamily(
            f"millrace_{self._service}_commit_timestamp_seconds",
            "When the last Kafka transaction was committed, seconds since 1970.",
            self._producer.commit_time,
        )

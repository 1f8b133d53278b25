"""What the decoder counts, for Prometheus, read from its stage when it is asked for."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.decoder.stage import DecoderStage


class DecoderMetrics(Collector):
    """The decoder's counters and gauges."""

    def __init__(
        self, registry: CollectorRegistry, stage: DecoderStage, lag: Callable[[], int | None]
    ) -> None:
        self._stage = stage
        self._lag = lag
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        stage = self._stage
        yield CounterMetricFamily(
            "millrace_decoder_events", "Events written to the events topic.", stage.events
        )
        yield CounterMetricFamily("millrace_decoder_bytes", "Bytes of events that were decoded.", stage.bytes)
        dead_letters = CounterMetricFamily(
            "millrace_decoder_dead_letters",
            "Events written to the dead letter topic, by the class of the error.",
            labels=["error"],
        )
        for kind, count in stage.dead_letters.items():
            dead_letters.add_metric([kind], count)
        yield dead_letters
        yield GaugeMetricFamily(
            "millrace_decoder_lag_records",
            "Offsets of the raw topic that are still to be read.",
            self._lag() or 0,
        )
        yield GaugeMetricFamily(
            "millrace_decoder_record_timestamp_seconds",
            "Timestamp of the last raw record, seconds since 1970.",
            stage.record_time_ms / 1000,
        )

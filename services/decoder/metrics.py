"""What the decoder counts, for Prometheus; fed once per batch."""

from prometheus_client import CollectorRegistry, Counter, Gauge

__all__ = ["DecoderMetrics"]


class DecoderMetrics:
    """The decoder's counters and gauges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "millrace_decoder_events", "Events written to the events topic.", registry=registry
        )
        self.bytes = Counter(
            "millrace_decoder_bytes", "Bytes of events that were decoded.", registry=registry
        )
        self.dead_letters = Counter(
            "millrace_decoder_dead_letters",
            "Events written to the dead letter topic, by the class of the error.",
            ["error"],
            registry=registry,
        )
        self.lag = Gauge(
            "millrace_decoder_lag_records",
            "Offsets of the raw topic that are still to be read.",
            registry=registry,
        )
        self.record_time = Gauge(
            "millrace_decoder_record_timestamp_seconds",
            "Timestamp of the last raw record, seconds since 1970.",
            registry=registry,
        )

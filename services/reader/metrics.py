"""What the reader counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge

__all__ = ["ReaderMetrics"]


class ReaderMetrics:
    """The reader's counters and gauges; hot ones are fed once per batch."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter("millrace_reader_events", "Events written to the raw topic.", registry=registry)
        self.bytes = Counter(
            "millrace_reader_bytes", "Bytes of events written to the raw topic.", registry=registry
        )
        self.connects = Counter(
            "millrace_reader_connects", "Dumps begun, the first included.", registry=registry
        )
        self.lost_links = Counter(
            "millrace_reader_lost_links", "Connections lost, or not made.", registry=registry
        )
        self.source_changes = Counter(
            "millrace_reader_source_changes",
            "Epochs begun, because another log followed or changes were missing.",
            registry=registry,
        )
        self.gaps = Counter(
            "millrace_reader_gaps",
            "Gaps in the raw topic: changes that the server no longer had when they were asked for.",
            registry=registry,
        )
        self.bad_checksums = Counter(
            "millrace_reader_bad_checksums", "Events whose checksum did not match.", registry=registry
        )
        self.incidents = Counter(
            "millrace_reader_incidents", "INCIDENT events: the server lost changes.", registry=registry
        )
        self.position_mismatches = Counter(
            "millrace_reader_position_mismatches",
            "Events of files whose next_position is not where the next event starts.",
            registry=registry,
        )
        self.cut_events = Counter(
            "millrace_reader_cut_events", "Files that end in the middle of an event.", registry=registry
        )
        self.connected = Gauge(
            "millrace_reader_connected", "1 while a dump runs or a file is read.", registry=registry
        )
        self.position = Gauge(
            "millrace_reader_position_bytes", "Offset in the current log file.", registry=registry
        )
        self.record_time = Gauge(
            "millrace_reader_record_timestamp_seconds",
            "Timestamp of the last event, seconds since 1970.",
            registry=registry,
        )

    def wrote(self, events: int, size: int, timestamp_ms: int, position: int) -> None:
        """Count a batch of events."""
        self.events.inc(events)
        self.bytes.inc(size)
        self.record_time.set(timestamp_ms / 1000)
        self.position.set(position)

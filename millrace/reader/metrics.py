"""What the reader counts, for Prometheus."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge


class ReaderMetrics:
    """The reader's counters and gauges; hot ones are fed once per batch."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.events = counter("millrace_reader_events", "Events written to the raw topic.")
        self.bytes = counter("millrace_reader_bytes", "Bytes of events written to the raw topic.")
        self.connects = counter("millrace_reader_connects", "Dumps begun, the first included.")
        self.lost_links = counter("millrace_reader_lost_links", "Connections lost, or not made.")
        self.source_changes = counter(
            "millrace_reader_source_changes",
            "Epochs begun, because another log followed or changes were missing.",
        )
        self.gaps = counter(
            "millrace_reader_gaps",
            "Gaps in the raw topic: changes that the server no longer had when they were asked for.",
        )
        self.bad_checksums = counter("millrace_reader_bad_checksums", "Events whose checksum did not match.")
        self.incidents = counter("millrace_reader_incidents", "INCIDENT events: the server lost changes.")
        self.position_mismatches = counter(
            "millrace_reader_position_mismatches",
            "Events of files whose next_position is not where the next event starts.",
        )
        self.cut_events = counter("millrace_reader_cut_events", "Files that end in the middle of an event.")
        self.connected = gauge("millrace_reader_connected", "1 while a dump runs or a file is read.")
        self.position = gauge("millrace_reader_position_bytes", "Offset in the current log file.")
        self.record_time = gauge(
            "millrace_reader_record_timestamp_seconds", "Timestamp of the last event, seconds since 1970."
        )

    def wrote(self, events: int, size: int, timestamp_ms: int, position: int) -> None:
        """Count a batch of events."""
        self.events.inc(events)
        self.bytes.inc(size)
        self.record_time.set(timestamp_ms / 1000)
        self.position.set(position)

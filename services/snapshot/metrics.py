"""Metrics of the snapshot."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from millrace.avro.snapshots import SnapshotState


class SnapshotMetrics(Collector):
    """How far the snapshot has come, as its state says; of a process that waits for signals, the last one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.state = SnapshotState(0, [])
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        tables = list(self.state.tables)
        yield CounterMetricFamily(
            "millrace_snapshot_rows", "Rows written to the snapshot topic.", self.state.rows
        )
        yield GaugeMetricFamily(
            "millrace_snapshot_rows_estimate",
            "Rows that the server estimates the tables to have.",
            sum(each.estimate for each in tables),
        )
        yield GaugeMetricFamily(
            "millrace_snapshot_tables_left",
            "Tables that are not read to their end.",
            sum(not each.done for each in tables),
        )
        yield GaugeMetricFamily(
            "millrace_snapshot_tables_left_out",
            "Tables that could not be read: the log says why.",
            sum(bool(each.note) for each in tables),
        )

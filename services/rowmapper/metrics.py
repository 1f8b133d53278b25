"""The row mapper's metrics for Prometheus, read from its state on request."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.rowmapper.stage import RowMapperStage

_COUNTERS = {
    "rows": "Row changes published.",
    "transactions": "Transactions published.",
    "transactions_rolled_back": "Transactions that were rolled back.",
    "transactions_cut": "Transactions that were dropped because their end is missing.",
    "gaps": "Gaps that the reader found: changes are missing in the row topics.",
    "xa_prepared": "XA transactions prepared.",
    "undone_events": "Rows events that ROLLBACK or ROLLBACK TO SAVEPOINT undid.",
    "ddl": "DDL statements recorded.",
    "dead_letters": "Events written to the dead letter topic.",
    "dead_letters_redriven": "Dead letters whose rows were published later.",
    "dead_letters_discarded": "Dead letters that were given up by command.",
}


class RowMapperMetrics(Collector):
    """The row mapper's counters, since the source was first read, and gauges."""

    def __init__(
        self,
        registry: CollectorRegistry,
        stage: RowMapperStage,
        lag: Callable[[], int | None],
    ) -> None:
        self._stage = stage
        self._lag = lag
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"millrace_rowmapper_{name}", text, self._stage.counters[name])
        changes = CounterMetricFamily(
            "millrace_rowmapper_non_row_changes",
            "Statements that changed rows and were logged as text, by table: their rows are in no topic.",
            labels=["table"],
        )
        for table, number in list(self._stage.non_row_changes.counts.items()):
            changes.add_metric([table], number)
        yield changes
        yield CounterMetricFamily(
            "millrace_rowmapper_completed_rows",
            "Rows with columns that were filled in from earlier changes, since the start.",
            self._stage.completed_rows,
        )
        yield CounterMetricFamily(
            "millrace_rowmapper_snapshot_left_out",
            "Chunks of snapshots whose rows were left out: the log says why.",
            self._stage.snapshot_left_out,
        )
        yield GaugeMetricFamily(
            "millrace_rowmapper_quarantined_tables",
            "Tables whose rows go to the dead letter topic.",
            len(self._stage.quarantine.tables),
        )
        yield GaugeMetricFamily(
            "millrace_rowmapper_dead_letters_waiting",
            "Dead letters of quarantined tables, which wait to be redriven.",
            sum(list(self._stage.quarantine.waiting.values())),
        )
        yield GaugeMetricFamily(
            "millrace_rowmapper_pending_xa",
            "XA transactions that are prepared and neither committed nor rolled back.",
            self._stage.pending_xa,
        )
        yield GaugeMetricFamily(
            "millrace_rowmapper_lag_records",
            "Offsets of the events topic that are still to be read.",
            self._lag() or 0,
        )
        yield GaugeMetricFamily(
            "millrace_rowmapper_record_timestamp_seconds",
            "Timestamp of the last record read, seconds since 1970.",
            self._stage.record_time_ms / 1000,
        )

"""Windows as metrics for Prometheus: counters of all that was counted, and the window that was closed last.

Labels are bounded: tables beyond those that are shown are one, which has no database.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_jobs.windows.window import OPERATIONS, Looked, Totals, Window, Windows, shown_tables

_PREFIX: Final = "millrace_analytics"
_OTHER: Final = ("", "other")
_COUNTERS: Final = {
    "events": "Events counted.",
    "bytes": "Bytes of these events in the log.",
    "transactions": "Transactions counted.",
    "rollbacks": "Those of them that were rolled back.",
    "ddl_statements": "DDL statements counted.",
    "unreadable_records": "Raw records that could not be read.",
    "late_events": "Events that came when their window was closed; they are counted in a later one.",
}
_OF_WINDOW: Final = {
    "events": "Events in the window that was closed last.",
    "bytes": "Bytes of the log in the window that was closed last.",
    "transactions": "Transactions in the window that was closed last.",
}
_MOST_ORIGINS: Final = 20


@dataclass(slots=True)
class _Source:
    totals: Totals = field(default_factory=Totals)
    until_ms: int = 0
    number_open: int = 0
    number_closed: int = 0
    closed: Window | None = None
    closed_at: float = 0.0


class WindowMetrics(Collector):
    """What was counted of each source; a window is shown until ``shown_s`` seconds after it was closed."""

    def __init__(
        self,
        registry: CollectorRegistry,
        sources: list[str],
        most_tables: int,
        shown_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = {source: _Source() for source in sources}
        self._most_tables = most_tables
        self._shown_s = shown_s
        self._now = now
        registry.register(self)

    def take(self, source: str, windows: Windows, looked: Looked) -> None:
        """Take what a look has found."""
        before = self._sources[source]
        totals = replace(before.totals)
        totals.add(looked.totals)
        closed = [window for window, is_closed in looked.windows if is_closed]
        last = (closed[-1], self._now()) if closed else (before.closed, before.closed_at)
        # Replaced in one step: it may be asked for at any time.
        self._sources[source] = _Source(
            totals, windows.until_ms, len(windows.open), before.number_closed + len(closed), *last
        )

    def collect(self) -> Iterator[Metric]:
        """Yield all figures as they are now."""
        found = list(self._sources.items())
        for name, told in _COUNTERS.items():
            counter = CounterMetricFamily(f"{_PREFIX}_{name}", told, labels=["source"])
            for source, one in found:
                counter.add_metric([source], getattr(one.totals, name))
            yield counter
        rows = CounterMetricFamily(
            f"{_PREFIX}_rows", "Rows that were changed.", labels=["source", "operation"]
        )
        closed = CounterMetricFamily(f"{_PREFIX}_windows_closed", "Windows closed.", labels=["source"])
        opened = GaugeMetricFamily(f"{_PREFIX}_windows_open", "Windows that are open.", labels=["source"])
        until = GaugeMetricFamily(
            f"{_PREFIX}_record_timestamp_seconds",
            "Timestamp of the latest raw record counted, seconds since 1970.",
            labels=["source"],
        )
        for source, one in found:
            for operation in OPERATIONS:
                rows.add_metric([source, operation], getattr(one.totals, f"{operation}s"))
            closed.add_metric([source], one.number_closed)
            opened.add_metric([source], one.number_open)
            if one.until_ms:
                until.add_metric([source], one.until_ms / 1000)
        yield from (rows, closed, opened, until)
        since = self._now() - self._shown_s
        yield from self._windows(
            [
                (source, one.closed)
                for source, one in found
                if one.closed is not None and one.closed_at > since
            ]
        )

    def _windows(self, found: list[tuple[str, Window]]) -> Iterator[Metric]:
        start = GaugeMetricFamily(
            f"{_PREFIX}_window_start_seconds",
            "Start of the window that was closed last, seconds since 1970.",
            labels=["source"],
        )
        of_window = {
            name: GaugeMetricFamily(f"{_PREFIX}_window_{name}", told, labels=["source"])
            for name, told in _OF_WINDOW.items()
        }
        rows = GaugeMetricFamily(
            f"{_PREFIX}_window_rows",
            "Rows changed in the window that was closed last; tables that are not shown are one, other.",
            labels=["source", "database", "table", "operation"],
        )
        lag = GaugeMetricFamily(
            f"{_PREFIX}_window_lag_seconds",
            "How much later than at their origin its transactions were committed; quantile 1 is the most.",
            labels=["source", "server_id", "quantile"],
        )
        for source, window in found:
            start.add_metric([source], window.start)
            for name, family in of_window.items():
                family.add_metric([source], getattr(window.totals, name))
            shown, others = shown_tables(window, self._most_tables)
            for names, sums in [*shown, *([] if others is None else [(_OTHER, others)])]:
                for operation in OPERATIONS:
                    labels = [source, names[0] or "", names[1] or "", operation]
                    rows.add_metric(labels, sums[f"{operation}s"])
            origins = sorted(window.lag.items(), key=lambda one: (-one[1].transactions, one[0] or 0))
            for origin, of_origin in origins[:_MOST_ORIGINS]:
                server = "other" if origin is None else str(origin)
                told = of_origin.told()
                for quantile, name in (("0.5", "p50"), ("0.99", "p99"), ("1", "most")):
                    lag.add_metric([source, server, quantile], told[name] / 1000)
        yield from (start, *of_window.values(), rows, lag)

"""Windows as metrics for Prometheus: counters of all that was counted, and the window that was closed last.

Labels are bounded: tables beyond those that are listed are one, which has no database.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_jobs.windows.window import OPERATIONS

_PREFIX: Final = "millrace_analytics"
_COUNTERS: Final = {
    "events": "Events counted.",
    "bytes": "Bytes of these events in the log.",
    "transactions": "Transactions counted.",
    "rollbacks": "Those of them that were rolled back.",
    "ddl_statements": "DDL statements counted.",
    "unreadable_records": "Raw records that could not be read.",
    "late_events": "Events that came when their window was closed; they are counted in a later one.",
    "windows_closed": "Windows closed.",
}
_MOST_ORIGINS: Final = 20


@dataclass(slots=True)
class _Source:
    totals: Counter[str] = field(default_factory=Counter)
    until: int | None = None
    number_open: int = 0
    closed: Mapping[str, Any] | None = None
    closed_at: float = 0.0


class WindowMetrics(Collector):
    """What was counted of each source; a window is shown until ``shown_s`` seconds after it was closed."""

    def __init__(
        self,
        registry: CollectorRegistry,
        sources: Sequence[str],
        shown_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = {source: _Source() for source in sources}
        self._shown_s = shown_s
        self._now = now
        registry.register(self)

    def take(
        self,
        source: str,
        added: Mapping[str, int],
        windows: Sequence[Mapping[str, Any]],
        number_open: int,
        until: int | None,
    ) -> None:
        """Take what a micro-batch has added, the windows that it has changed, the time of the last record."""
        before = self._sources[source]
        closed = [window for window in windows if window["closed"]]
        last = (closed[-1], self._now()) if closed else (before.closed, before.closed_at)
        sums = before.totals + Counter({**added, "windows_closed": len(closed)})
        # Replaced in one step: it may be asked for at any time.
        self._sources[source] = _Source(sums, until, number_open, *last)

    def collect(self) -> Iterator[Metric]:
        """Yield all figures as they are now."""
        found = list(self._sources.items())
        for name, told in _COUNTERS.items():
            counter = CounterMetricFamily(f"{_PREFIX}_{name}", told, labels=["source"])
            for source, one in found:
                counter.add_metric([source], one.totals[name])
            yield counter
        rows = CounterMetricFamily(
            f"{_PREFIX}_rows", "Rows that were changed.", labels=["source", "operation"]
        )
        opened = _gauge("windows_open", "Windows that are open.")
        until = _gauge(
            "record_timestamp_seconds", "Timestamp of the latest raw record counted, seconds since 1970."
        )
        for source, one in found:
            for operation in OPERATIONS:
                rows.add_metric([source, operation], one.totals[f"{operation}s"])
            opened.add_metric([source], one.number_open)
            if one.until is not None:
                until.add_metric([source], one.until)
        yield from (rows, opened, until)
        since = self._now() - self._shown_s
        shown = [one.closed for _, one in found if one.closed is not None and one.closed_at > since]
        yield from _of_windows(shown)


def _gauge(name: str, told: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", told, labels=["source", *labels])


def _of_windows(windows: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    start = _gauge("window_start_seconds", "Start of the window that was closed last, seconds since 1970.")
    sums = {
        "events": _gauge("window_events", "Events in the window that was closed last."),
        "bytes": _gauge("window_bytes", "Bytes of the log in the window that was closed last."),
        "transactions": _gauge("window_transactions", "Transactions in the window that was closed last."),
    }
    rows = _gauge(
        "window_rows",
        "Rows changed in the window that was closed last; tables that are not listed are one, other.",
        "database", "table", "operation",
    )  # fmt: skip
    lag = _gauge(
        "window_lag_seconds",
        "How much later than at their origin its transactions were committed; quantile 1 is the most.",
        "server_id", "quantile",
    )  # fmt: skip
    for window in windows:
        source = window["source"]
        start.add_metric([source], window["start"])
        for name, family in sums.items():
            family.add_metric([source], window[name])
        others = window["other_tables"]
        other = [] if others is None else [{**others, "database": "", "table": "other"}]
        for table in [*window["tables"], *other]:
            for operation in OPERATIONS:
                labels = [source, table["database"] or "", table["table"] or "", operation]
                rows.add_metric(labels, table[f"{operation}s"])
        origins = sorted(window["lag_ms"], key=lambda one: -one["transactions"])
        for origin in origins[:_MOST_ORIGINS]:
            server = "other" if origin["server_id"] is None else str(origin["server_id"])
            for quantile, name in (("0.5", "p50"), ("0.99", "p99"), ("1", "most")):
                lag.add_metric([source, server, quantile], origin[name] / 1000)
    yield from (start, *sums.values(), rows, lag)

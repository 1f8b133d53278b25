"""What a piece of the raw topic consists of, window by window: counted in an executor, handed on as sums."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from millrace.spark.decoding import Decoding
from millrace.spark.statistics import STATISTICS, StatisticsView
from millrace.stage import Record
from spark_jobs.common.outcome import Outcome
from spark_jobs.windows.window import UNDATED, Window

_LAYOUT: Final = pa.schema(
    [STATISTICS.field(name) for name in ("counts", "transactions", "ddl", "corrupt", "read")]
)
_TOLD: Final = 100


class WindowStatistics:
    """Counts the events of a piece in windows; no record is dated after ``now_ms``.

    An event lies in the window of its record, a transaction in that of its last event. Values are not looked
    at.
    """

    def __init__(self, source: str, window_s: int, now_ms: int) -> None:
        self._view = StatisticsView(Decoding(source, False, 0), _LAYOUT, fail=False)
        self._window_s = window_s
        self._now_s = now_ms // 1000
        self._until_s = 0
        self._windows: dict[int, Window] = {}
        self._outcome = Outcome()

    def begin(self, *known: Record) -> None:
        """Take records that lie before the piece and are needed to read it."""
        self._view.begin(*known)

    def take(self, records: Sequence[Record]) -> None:
        """Take the next raw records, with their timestamps."""
        self._count(self._view.take(records))

    def finish(self) -> Outcome:
        """Return the windows beside what else there is to report."""
        self._count(self._view.rest())
        self._outcome.carried = {
            "until_ms": self._until_s * 1000,
            "windows": [one.to_json() for one in self._windows.values()],
        }
        return self._outcome

    def _count(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            for row in batch.to_pylist():
                for kind, rows in row.items():
                    for one in rows or ():
                        if kind == "read":
                            self._outcome.events += one["events"]
                            self._outcome.raw_bytes += one["bytes"]
                        else:
                            self._take(kind, one)

    def _take(self, kind: str, row: dict[str, Any]) -> None:
        window = self._at(row["record_time"])
        if kind == "counts":
            window.take_counts(row)
        elif kind == "ddl":
            window.take_ddl({**row, "raw_key": row["key"], "second": int(row["time"].timestamp())})
        elif kind == "corrupt":
            window.totals.unreadable_records += 1
            self._outcome.counters["dead_letters"] += 1
            if len(self._outcome.dead_letters) < _TOLD:
                self._outcome.dead_letters.append(
                    (row["offset"], row["key"], row["error_class"], row["error"])
                )
        else:
            window.take_transaction(_transaction(row))

    def _at(self, time: Any) -> Window:
        """Return the window of a record's time."""
        start = UNDATED
        if time is not None:
            second = min(int(time.timestamp()), self._now_s)
            self._until_s = max(self._until_s, second)
            start = second // self._window_s * self._window_s
        return self._windows.setdefault(start, Window(start))


def _transaction(row: dict[str, Any]) -> dict[str, Any]:
    """Return a transaction as records of windows name its parts."""
    return {
        **row,
        "transaction": row["_transaction"],
        "first_key": row["key"],
        "server_id": row["_server_id"],
        "rows": row["inserts"] + row["updates"] + row["deletes"],
        "tables": sorted(f"{one['database']}.{one['table']}" for one in row["tables"]),
        **{f"{name}_us": _micros(row[name]) for name in ("original_commit", "immediate_commit")},
    }


def _micros(time: Any) -> int | None:
    return None if time is None else round(time.timestamp() * 1_000_000)

"""What a piece of the raw topic consists of, window by window: counted in an executor, handed on as sums."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from millrace.spark.decoding import Decoding
from millrace.spark.raw_topic import is_whole
from millrace.stage import Record, records_of_columns
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.statistics import TABLES, PieceStatistics
from spark_jobs.windows.window import UNDATED, Window

_COLUMNS: Final = {
    name: [column.split()[0] for column in TABLES[name].split(", ")]
    for name in ("counts", "transactions", "ddl")
}


class WindowStatistics(PieceStatistics):
    """Counts the events of a piece in windows; no record is dated after ``now_ms``.

    An event lies in the window of its record, a transaction in that of its last event. Values are not looked
    at.
    """

    def __init__(  # noqa: PLR0917 - those of the base, and two
        self, source: str, decoding: Decoding, folder: str, prefix: str, window_s: int, now_ms: int
    ) -> None:
        super().__init__(source, decoding, folder, prefix)
        self._window_ms = window_s * 1000
        self._now_ms = now_ms
        self._until_ms = 0
        self._offsets: list[int] = []
        self._starts: list[int] = []
        """Where another window begins, and which."""

        self._windows: dict[int, Window] = {}

    def begin(self, before: Sequence[Record]) -> None:
        """Take records that lie before the piece and are needed to read it: they have no time here."""
        super().begin(before)
        self._until_ms = 0
        self._offsets.clear()
        self._starts.clear()
        self._windows.clear()

    def take(self, records: Sequence[Record]) -> None:
        """Take the next raw records, with their timestamps."""
        if not records:
            return
        low, high = -1, -1
        if self._starts:
            low = self._starts[-1] * 1000
            high = low + self._window_ms
        for offset, timestamp, key, value, _ in records:
            if low <= timestamp < high and timestamp <= self._until_ms:
                continue
            if key is None or not is_whole(value) or timestamp < 0:
                continue
            time = min(timestamp, self._now_ms)
            self._until_ms = max(self._until_ms, time)
            if not low <= time < high:
                low = time // self._window_ms * self._window_ms
                high = low + self._window_ms
                self._offsets.append(offset)
                self._starts.append(low // 1000)
        offsets, _, keys, values, headers = zip(*records, strict=True)
        super().take(records_of_columns(offsets, offsets, keys, values, headers))

    def finish(self) -> Outcome:
        """Return the windows beside what was made of the piece."""
        outcome = super().finish()
        for offset, _ in self._dead_letters:
            self._at(self._time(0, offset)).totals.unreadable_records += 1
        outcome.carried = {
            "until_ms": self._until_ms,
            "windows": [one.to_json() for one in self._windows.values()],
        }
        return outcome

    def _time(self, timestamp: int, offset: int) -> int:  # noqa: ARG002 - the base goes by the event's own
        """Return where the window begins that the record at an offset lies in."""
        if not self._starts:
            return UNDATED
        return self._starts[max(bisect_right(self._offsets, offset) - 1, 0)]

    def _at(self, start: int) -> Window:
        window = self._windows.get(start)
        if window is None:
            window = self._windows[start] = Window(start)
        return window

    def _look(self, *_: Any) -> None:
        """Leave the values."""

    def _write(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        for values in rows if table in _COLUMNS else ():
            row = dict(zip(_COLUMNS[table], values, strict=True))
            if table == "counts":
                self._at(row["second"]).take_counts(row)
            elif table == "transactions":
                self._at(self._time(0, row["last_offset"])).take_transaction(row)
            else:
                self._at(self._time(0, row["offset"])).take_ddl(row)
        rows.clear()

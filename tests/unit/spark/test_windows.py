"""Windows of time: sums that do not depend on micro-batches, times that no single record takes along."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from millrace.spark.decoding import Decoding
from millrace.spark.statistics import StatisticsView
from millrace.stage import Record
from spark_jobs.analytics import main
from spark_jobs.windows.metrics import WindowMetrics
from spark_jobs.windows.window import SUMS, TOTALS, add, columns, record, totals, windows
from tests.spark_session import SPARK, spark
from tests.unit.spark.test_decoding import LOGS, log, pieces, raw
from tests.unit.spark.test_statistics import count

__all__ = ["spark"]

SOURCE = "shop"
NOW = 10**10
WINDOW_S = 60
LAYOUT = to_arrow_schema(columns())


def dated(records: Sequence[Record], step_ms: int = 7_000) -> list[Record]:
    """Return records the timestamps of a topic, a step apart."""
    return [one._replace(timestamp_ms=1_000_000 + step_ms * n) for n, one in enumerate(records)]


def counted(records: Sequence[Record], described: Record | None = None) -> list[dict[str, Any]]:
    """Count records as an executor does; return the rows of the view."""
    view = StatisticsView(Decoding(SOURCE, False, 0), LAYOUT, fail=False)
    if described is not None:
        view.begin(described)
    return [row for batch in [*view.take(records), *view.rest()] for row in batch.to_pylist()]


class Windows:
    """Windows as micro-batches are added to them, each kept as Parquet keeps it."""

    def __init__(
        self, spark: SparkSession, lateness_s: int = 0, *, source: str = SOURCE, most_tables: int = 10
    ) -> None:
        self.spark, self.source, self.most_tables = spark, source, most_tables
        self.lengths = WINDOW_S, lateness_s
        self.number = -1
        self.kept = self.frame([], SUMS)

    def frame(self, rows: Any, schema: Any) -> DataFrame:
        return self.spark.createDataFrame(rows, schema)

    def add(self, counted: Sequence[dict[str, Any]], given: int = NOW) -> list[dict[str, Any]]:
        """Add a micro-batch; return the windows that have changed, in their order."""
        self.number += 1
        table = pa.Table.from_pylist(list(counted), LAYOUT)
        batch = self.frame(table, columns()).selectExpr(
            "*", f"'{self.source}' AS source", f"{given}L AS given"
        )
        rows = add(batch, self.kept, self.number, *self.lengths).collect()
        self.kept = self.frame(rows, SUMS)
        closed = max((row.until for row in rows if row.until is not None), default=0) - self.lengths[1]
        return [
            record(row, WINDOW_S, closed=row.start + WINDOW_S <= closed)
            for row in windows(self.kept, self.most_tables).orderBy("start").collect()
            if row.batch == self.number or row.start + WINDOW_S <= closed
        ]


def event(time: int | None, events: int = 1, **more: Any) -> dict[str, Any]:
    """Return a row of the view with a sum of events."""
    at = None if time is None else time * 1_000_000
    sums = {"rows": 0, "bytes": 0, "stored": 0, "uncounted": 0, **more}
    return {"counts": [{"record_time": at, "time": 0, "type": "XID_EVENT", "events": events, **sums}]}


def told(found: Sequence[dict[str, Any]]) -> list[tuple[int, int, bool]]:
    return [(one["start"], one["events"], one["closed"]) for one in found]


@pytest.mark.spark
class TestSpark:
    pytestmark = SPARK

    @pytest.mark.parametrize("name", LOGS[1:2])
    def test_windows_do_not_depend_on_micro_batches(self, spark: SparkSession, name: str) -> None:
        """The sums are those of the batch."""
        records = dated(raw(log(name)))
        whole = Windows(spark).add(counted(records))
        expected = {one["start"]: {**one, "closed": True} for one in whole}
        last: dict[int, dict[str, Any]] = {}
        one = Windows(spark)
        for piece in pieces(records, 3):
            for window in one.add(counted(records[piece.start : piece.end], piece.described)):
                assert not last.get(window["start"], {}).get("closed"), "a closed window does not change"
                last[window["start"]] = window
        assert not any(window["late_events"] for window in last.values())
        assert [start for start, window in last.items() if not window["closed"]] == [max(expected)]
        assert {start: {**window, "closed": True} for start, window in last.items()} == expected
        batch = count(raw(log(name)))
        types, sums = Counter[str](), Counter[str]()
        for window in expected.values():
            types.update(window["events_by_type"])
            sums.update({k: window[k] for k in ("bytes", "rows", "transactions", "ddl_statements")})
        by_type, size, rows = Counter[str](), 0, 0
        for (_, type_name, *_), figures in batch["counts"].items():
            by_type[type_name] += figures["events"]
            size += figures["stored"]
            rows += figures["rows"]
        assert types == by_type
        assert len(expected) > 1
        assert sums == Counter({
            "bytes": size, "rows": rows,
            "transactions": len(batch["transactions"]), "ddl_statements": len(batch["ddl"]),
        })  # fmt: skip

    def test_a_record_that_is_absurd_takes_nothing_along(self, spark: SparkSession) -> None:
        """Garbage has the time of what lies before it, and no record one after its micro-batch."""
        records = dated(raw(log(LOGS[1])))
        plain = {one["start"]: one["events"] for one in Windows(spark).add(counted(records))}
        garbage = [
            Record(0, 4_102_444_800_000, b"1:0:x:4", b"garbage"),
            Record(0, 4_102_444_800_000, None, None),
            Record(0, 0, b"", b""),
            Record(0, -1, b"k", None),
        ]
        middle = len(records) // 2
        mixed = [*garbage, *records[:middle], *garbage, *records[middle:], *garbage]
        found = Windows(spark).add(counted([one._replace(offset=n) for n, one in enumerate(mixed)]))
        assert {one["start"]: one["events"] for one in found} == plain
        assert sum(one["unreadable_records"] for one in found) == 3 * len(garbage)
        ahead = [*records[:-1], records[-1]._replace(timestamp_ms=4_102_444_800_000)]
        now = records[-1].timestamp_ms // 1000
        assert told(Windows(spark).add(counted(ahead), now))[-1][0] == max(plain)
        nothing = Windows(spark).add(counted([one._replace(offset=n) for n, one in enumerate(garbage)]), 7205)
        assert [(one["start"], one["unreadable_records"]) for one in nothing] == [(7200, 4)]

    def test_a_window_is_closed_when_time_has_passed_its_end_by_the_lateness(
        self, spark: SparkSession
    ) -> None:
        one = Windows(spark, 10)
        assert told(one.add([event(119)])) == [(60, 1, False)]
        assert told(one.add([event(129)])) == [(120, 1, False)]
        assert told(one.add([event(60, 5)])) == [(60, 6, False)]
        assert told(one.add([event(130)])) == [(60, 6, True), (120, 2, False)]
        (late,) = one.add([event(1, 7), event(60, 3)])
        assert (late["start"], late["events"], late["late_events"]) == (120, 12, 10)
        # Of what comes at once nothing is late, however far it reaches; windows between have nothing.
        assert told(one.add([event(960), event(180)])) == [(120, 12, True), (180, 1, True), (960, 1, False)]
        assert told(one.add([event(None)])) == [(960, 2, False)]

    def test_what_is_listed_of_a_window(self, spark: SparkSession) -> None:
        """Tables with most rows, and the others as one; the largest transactions; how late they came."""
        chance = random.Random(1)
        behind = sorted(chance.randrange(10 ** chance.randrange(1, 9)) for _ in range(500))
        tables = [
            {
                **event(60, rows=10 + n, bytes=1)["counts"][0],
                "operation": "insert",
                "database": "d",
                "table": f"t{n}",
            }
            for n in range(13)
        ]
        transactions = [
            {
                "record_time": 60_000_000, "first_offset": n, "_server_id": 7, "inserts": n, "updates": 0,
                "deletes": 0, "bytes": 1, "tables": [], "original_commit": 10**12, "ends": "commit",
                "immediate_commit": 10**12 + late,
            }
            for n, late in enumerate(behind)
        ]  # fmt: skip
        one = Windows(spark)
        one.add([{"counts": tables[:5], "transactions": transactions[:100]}])
        (found,) = one.add([{"counts": tables[5:], "transactions": transactions[100:]}])
        assert [table["inserts"] for table in found["tables"]] == list(range(22, 12, -1))
        assert found["other_tables"]["inserts"] == 10 + 11 + 12
        assert [large["rows"] for large in found["largest_transactions"]] == list(range(499, 489, -1))
        (lag,) = found["lag_ms"]
        exact = (lag["server_id"], lag["transactions"], lag["least"], lag["most"])
        assert exact == (7, 500, behind[0] / 1000, behind[-1] / 1000)
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            near = behind[int(share * 500) - 2], behind[int(share * 500) + 1]
            assert near[0] * 0.97 <= lag[name] * 1000 <= near[1] * 1.03
        assert json.loads(json.dumps(found)) == found
        (sums,) = totals(one.kept).collect()
        assert {name: sums[name] for name in TOTALS} == {name: found[name] for name in TOTALS} | {
            "late_events": 0, "ddl_statements": None, "unreadable_records": None
        }  # fmt: skip


def test_metrics_show_the_window_that_was_closed_last_until_it_is_stale() -> None:
    registry, now = CollectorRegistry(), [100.0]
    metrics = WindowMetrics(registry, [SOURCE, "idle"], 30, now=lambda: now[0])

    def series() -> dict[str, float]:
        lines = generate_latest(registry).decode().splitlines()
        return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if x[0] != "#")}

    table = {"updates": 0, "deletes": 0}
    first = {
        "source": SOURCE, "start": 60, "closed": False, "events": 4, "bytes": 100, "transactions": 2,
        "tables": [{**table, "database": "db", "table": 'l"arge', "inserts": 2}],
        "other_tables": {**table, "inserts": 1},
        "lag_ms": [{"server_id": 7, "transactions": 1, "p50": 2.0, "p99": 2.0, "most": 2.0}],
    }  # fmt: skip
    metrics.take(SOURCE, {"events": 4, "inserts": 3}, [first], 1, 61)
    assert series()['millrace_analytics_rows_total{operation="insert",source="shop"}'] == 3
    assert not any("_window_" in name for name in series())
    metrics.take(SOURCE, {"events": 1, "inserts": 0}, [{**first, "closed": True}], 1, 125)
    found = series()
    assert found['millrace_analytics_events_total{source="shop"}'] == 5
    assert found['millrace_analytics_events_total{source="idle"}'] == 0
    assert found['millrace_analytics_windows_closed_total{source="shop"}'] == 1
    assert found['millrace_analytics_record_timestamp_seconds{source="shop"}'] == 125
    assert found['millrace_analytics_window_start_seconds{source="shop"}'] == 60
    assert found['millrace_analytics_window_events{source="shop"}'] == 4
    rows = 'millrace_analytics_window_rows{database="%s",operation="insert",source="shop",table="%s"}'
    assert found[rows % ("db", 'l\\"arge')] == 2
    assert found[rows % ("", "other")] == 1
    lag = 'millrace_analytics_window_lag_seconds{quantile="1",server_id="7",source="shop"}'
    assert found[lag] == 0.002
    now[0] += 29
    metrics.take(SOURCE, {"events": 1}, [], 1, 126)
    assert series()['millrace_analytics_window_events{source="shop"}'] == 4
    now[0] += 2
    assert not any("_window_" in name for name in series())
    assert series()['millrace_analytics_events_total{source="shop"}'] == 6


@pytest.mark.parametrize(
    "option", [("--window", "0s"), ("--window", "1 m"), ("--window", "25h"), ("--lateness", "-1s")]
)
def test_lengths_that_are_none(option: tuple[str, str]) -> None:
    told = CliRunner().invoke(main, option)
    assert told.exit_code == 2
    assert f"{option[1]!r}: expected a time as 30s, 1m or 2h, up to 24h" in told.output

"""Windows of time: sums that do not depend on cuts, times that no single record takes along."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest

from millrace.stage import Record
from spark_jobs.analytics import main
from spark_jobs.common.outcome import Outcome
from spark_jobs.windows.metrics import WindowMetrics
from spark_jobs.windows.statistics import WindowStatistics
from spark_jobs.windows.window import UNDATED, Lag, Totals, Window, Windows, shown_tables
from tests.unit.spark.test_decoding import LOGS, log, pieces, raw
from tests.unit.spark.test_statistics import count

SOURCE = "shop"
NOW_MS = 10**13
WINDOW_S = 60


def dated(records: Sequence[Record], step_ms: int = 7_000) -> list[Record]:
    """Return records the timestamps of a topic, a step apart."""
    return [record._replace(timestamp_ms=1_000_000 + step_ms * n) for n, record in enumerate(records)]


def counted(
    records: Sequence[Record], number: int = 1, batch: int = 1000, now_ms: int = NOW_MS
) -> list[tuple[int, list[Window]]]:
    """Count records in pieces, as executors do; give what each tells."""
    found = []
    for piece in pieces(records, number):
        statistics = WindowStatistics(SOURCE, WINDOW_S, now_ms)
        statistics.begin(*([] if piece.described is None else [piece.described]))
        for at in range(piece.start, piece.end, batch):
            statistics.take(records[at : min(at + batch, piece.end)])
        told = Outcome.from_json(statistics.finish().to_json()).carried
        found.append((told["until_ms"], [Window.from_json(one) for one in told["windows"]]))
    return found


def window(start: int, events: int = 1, **sums: int) -> Window:
    return Window(start, Totals(events=events, **sums))


def told(found: Iterable[tuple[Window, bool]]) -> list[tuple[int, int, bool]]:
    return [(one.start, one.totals.events, closed) for one, closed in found]


@pytest.mark.parametrize("name", LOGS)
def test_windows_are_the_same_however_a_log_is_cut_and_looked_at(name: str) -> None:
    """In one piece or many, in one look or many, each by a new process; the sums are those of the batch."""
    records = dated(raw(log(name)))
    whole = Windows(WINDOW_S, 0)
    expected = {
        one.start: one.told(SOURCE, WINDOW_S, 10, closed=True)
        for one, _ in whole.add(counted(records), NOW_MS).windows
    }
    for number, batch in ((3, 7), (17, 100)):
        parts = counted(records, number, batch)
        at_once = Windows(WINDOW_S, 0).add(parts, NOW_MS).windows
        assert {one.start: one.told(SOURCE, WINDOW_S, 10, closed=True) for one, _ in at_once} == expected
        last: dict[int, dict[str, Any]] = {}
        kept: Any = None
        for part in parts:
            windows = Windows.resume(WINDOW_S, 0, kept)
            for one, closed in windows.add([part], NOW_MS).windows:
                last[one.start] = one.told(SOURCE, WINDOW_S, 10, closed=closed)
            kept = json.loads(json.dumps(windows.to_json()))
        assert not any(one["late_events"] for one in last.values())
        assert [start for start, one in sorted(last.items()) if not one["closed"]] == [max(expected)]
        assert {start: {**one, "closed": True} for start, one in last.items()} == expected
    batch_of = count(raw(log(name)))
    types, sums = Counter[str](), Counter[str]()
    for one in expected.values():
        types.update(one["events_by_type"])
        sums.update({k: one[k] for k in ("bytes", "rows", "transactions", "ddl_statements")})
    by_type, size, rows = Counter[str](), 0, 0
    for (_, type_name, *_), figures in batch_of["counts"].items():
        by_type[type_name] += figures["events"]
        size += figures["stored"]
        rows += figures["rows"]
    assert types == by_type
    assert len(expected) > 1
    assert sums == Counter({
        "bytes": size, "rows": rows,
        "transactions": len(batch_of["transactions"]), "ddl_statements": len(batch_of["ddl"]),
    })  # fmt: skip


def test_a_record_that_is_absurd_takes_nothing_along() -> None:
    """Garbage has the time of what lies before it, and no record one after now."""
    records = dated(raw(log(LOGS[1])))
    plain = {one.start: one for _, found in counted(records) for one in found}
    ((until, _),) = counted(records)
    garbage = [
        Record(0, 4_102_444_800_000, b"1:0:x:4", b"garbage"),
        Record(0, 4_102_444_800_000, None, None),
        Record(0, 0, b"", b""),
        Record(0, -1, b"k", None),
    ]
    middle = len(records) // 2
    mixed = [*garbage, *records[:middle], *garbage, *records[middle:], *garbage]
    mixed = [record._replace(offset=n) for n, record in enumerate(mixed)]
    ((found_until, found),) = counted(mixed, batch=11)
    assert found_until == until
    assert {one.start: one.totals.events for one in found} == {
        start: one.totals.events for start, one in plain.items()
    }
    assert sum(one.totals.unreadable_records for one in found) == 3 * len(garbage)
    ahead = [*records[:-1], records[-1]._replace(timestamp_ms=4_102_444_800_000)]
    now_ms = records[-1].timestamp_ms
    assert counted(ahead, now_ms=now_ms)[0][0] == now_ms
    nothing = [record._replace(offset=n) for n, record in enumerate(garbage)]
    ((none, undated),) = counted(nothing)
    assert (none, [one.start for one in undated]) == (0, [UNDATED])


def test_a_window_is_closed_when_time_has_passed_its_end_by_the_lateness() -> None:
    windows = Windows(60, 10)
    assert told(windows.add([(119_000, [window(60)])], NOW_MS).windows) == [(60, 1, False)]
    assert told(windows.add([(129_999, [window(120)])], NOW_MS).windows) == [(120, 1, False)]
    late = windows.add([(125_000, [window(60, 5)])], NOW_MS)
    assert told(late.windows) == [(60, 6, False)]
    assert windows.until_ms == 129_999, "time does not go back"
    assert told(windows.add([(130_000, [window(120, 2)])], NOW_MS).windows) == [
        (60, 6, True),
        (120, 3, False),
    ]
    late = windows.add([(130_000, [window(0, 7), window(60, 3)])], NOW_MS)
    ((counts, closed),) = late.windows
    assert (counts.start, closed) == (120, False)
    assert (counts.totals.events, counts.totals.late_events, late.totals.late_events) == (13, 10, 10)
    # Of what comes at once nothing is late, however far it reaches; windows between have nothing.
    assert told(windows.add([(999_000, [window(960), window(180)])], NOW_MS).windows) == [
        (120, 13, True), (180, 1, True), (960, 1, False),
    ]  # fmt: skip
    assert list(windows.open) == [960]


def test_what_has_no_time_counts_in_the_newest_window() -> None:
    windows = Windows(60, 0)
    assert told(windows.add([(0, [window(UNDATED)])], 7_200_000).windows) == [(7200, 1, False)]
    windows = Windows(60, 0)
    assert told(windows.add([(70_000, [window(60)]), (0, [window(UNDATED)])], NOW_MS).windows) == [
        (60, 2, False)
    ]
    assert told(windows.add([(0, [window(UNDATED)])], NOW_MS).windows) == [(60, 3, False)]
    assert windows.until_ms == 70_000


def test_quantiles_are_right_to_a_part_in_32() -> None:
    chance = random.Random(1)
    behind = [chance.randrange(10 ** chance.randrange(1, 10)) for _ in range(5000)]
    parts = [Lag() for _ in range(7)]
    for number, one in enumerate(behind):
        parts[number % 7].take(one)
    lag = Lag()
    for part in parts:
        lag.add(Lag.from_json(json.loads(json.dumps(part.to_json()))))
    behind.sort()
    assert (lag.transactions, lag.least, lag.most) == (5000, behind[0], behind[-1])
    for share in (0.01, 0.5, 0.9, 0.99, 1):
        exact = behind[int(share * 5000) - 1]
        assert abs(lag.quantile(share) - exact) <= exact / 32
    one = Lag()
    one.take(-1500)
    assert one.told() == {"transactions": 1, "p50": -1.5, "p99": -1.5, "most": -1.5, "least": -1.5}


def test_the_number_of_tables_and_origins_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.windows.window._MOST_TABLES", 3)
    monkeypatch.setattr("spark_jobs.windows.window._MOST_ORIGINS", 2)
    one = Window(0)
    for number in range(5):
        row = {"type": "W", "operation": "insert", "database": "db", "table": f"t{number}", "uncounted": 0}
        one.take_counts({**row, "events": 1, "stored": 10, "rows": 10 + number, "bytes": 10})
        lag = Window(0, lag={number: Lag(1, 5, 5, {5: 1})})
        one.add(lag)
    shown, others = shown_tables(one, 2)
    assert [(name, sums["inserts"]) for name, sums in shown] == [(("db", "t2"), 12), (("db", "t1"), 11)]
    assert others == {
        "inserts": 10 + 13 + 14, "updates": 0, "deletes": 0, "events": 3, "bytes": 30, "uncounted_events": 0
    }  # fmt: skip
    assert one.totals.inserts == 60
    assert {origin: lag.transactions for origin, lag in one.lag.items()} == {0: 1, 1: 1, None: 3}
    assert [lag["server_id"] for lag in one.told(SOURCE, 60, 2, closed=True)["lag_ms"]] == [0, 1, None]
    assert Window.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_metrics_show_the_window_that_was_closed_last_until_it_is_stale() -> None:
    registry, now = CollectorRegistry(), [100.0]
    metrics = WindowMetrics(registry, [SOURCE, "idle"], 1, 30, now=lambda: now[0])
    windows = Windows(60, 0)

    def series() -> dict[str, float]:
        lines = generate_latest(registry).decode().splitlines()
        return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if x[0] != "#")}

    def look(*parts: tuple[int, list[Window]]) -> None:
        metrics.take(SOURCE, windows, windows.add(parts, NOW_MS))

    first = window(60, 4, bytes=100, transactions=2, inserts=3)
    first.tables = {("db", "small"): [1, 0, 0, 1, 9, 0], ("db", 'l"arge'): [2, 0, 0, 1, 9, 0]}
    first.lag = {7: Lag(1, 2000, 2000, {2000: 1})}
    look((61_000, [first]))
    assert series()['millrace_analytics_rows_total{operation="insert",source="shop"}'] == 3
    assert not any("_window_" in name for name in series())
    look((125_000, [window(120, 1)]))
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
    look((126_000, [window(120, 1)]))
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

"""From when on, and of what, a run is counted."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import pipeline
from benchmarks.machine import CpuTime, ProcessCost, cpu_time, process_cost
from benchmarks.pipeline import PipelineResult, median_result, sample, used, watch


class Running:
    """A process that runs for as long as it is asked ``turns`` times."""

    pid = os.getpid()

    def __init__(self, turns: int = 1000) -> None:
        self._turns = turns

    def poll(self) -> int | None:
        self._turns -= 1
        return None if self._turns >= 0 else 1

    def log_tail(self) -> str:
        return "its last words"


STACK: Any = SimpleNamespace(components=[SimpleNamespace(name="kafka", processes=[Running()])])


def made(seconds: float = 2.0, *, others: CpuTime = CpuTime(0.0, 0.0), own_s: float = 1.5) -> PipelineResult:  # noqa: B008
    costs = {"reader": ProcessCost(own_s, 80.0), "decoder": ProcessCost(0.5, 90.0)}
    return PipelineResult(1000, seconds, 0.5, costs, {"kafka": ProcessCost(3.0, 330.0)}, others)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_POLL_S", 0.0)


def test_figures_are_those_of_a_row() -> None:
    result = made()
    assert result.rows_per_s == 500
    assert result.cpu_us == pytest.approx(2000)
    assert result.servers_us == pytest.approx(3000)


def test_median() -> None:
    results = [made(seconds) for seconds in (4.0, 1.0, 2.0)]
    assert median_result(results) is results[2]
    assert median_result(results[:2]) is results[0]


def test_a_busy_machine_is_told() -> None:
    assert made(others=CpuTime(0.05, 0.05)).disturbance == ""
    assert made(others=CpuTime(1.0, 0.0)).disturbance.startswith(
        f"other programs used 0.50 cores and the host took 0.00, of {os.cpu_count()}"
    )
    assert "the host took 0.30" in made(others=CpuTime(0.0, 0.6)).disturbance


def test_counting_starts_where_nothing_had_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(pipeline, "process_cost", lambda _pid: ProcessCost(float(next(clock)), 1.0))
    begun, written = iter([False, False, True]), iter([0, 3, 10])
    process: Any = Running()
    result = watch(STACK, {"it": process}, 10, begun=lambda: next(begun), written=lambda: next(written))
    # Costs are asked for in pairs, of the process and of Kafka: at the start, three times, and at the end.
    assert result.costs == {"it": ProcessCost(8.0 - 4.0, 1.0)}
    assert result.servers == {"kafka": ProcessCost(9.0 - 5.0, 1.0)}
    assert 0 < result.first_row_s <= result.seconds


def test_a_process_that_has_ended_is_told() -> None:
    process: Any = Running(turns=3)
    with pytest.raises(RuntimeError, match=r"^it ended\. The end of its log:\nits last words$"):
        watch(STACK, {"it": process}, 10, begun=lambda: True, written=lambda: 9)


def test_rows_that_come_twice_are_told() -> None:
    process: Any = Running()
    with pytest.raises(RuntimeError, match=r"^11 rows were written, of 10"):
        watch(STACK, {"it": process}, 10, begun=lambda: True, written=lambda: 11)


def test_what_has_ended_and_clients_are_no_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = iter([CpuTime(100.0, 0.0), CpuTime(110.0, 0.0)])
    monkeypatch.setattr(pipeline, "cpu_time", lambda: next(machine))
    own = iter([0.0, 0.5])
    monkeypatch.setattr(pipeline.time, "process_time", lambda: next(own))
    # Of the process that carries, of Kafka, and of a client.
    costs = iter([1.0, 2.0, 0.0, 3.0, 5.0, 1.0])
    monkeypatch.setattr(pipeline, "process_cost", lambda _pid: ProcessCost(next(costs), 1.0))
    process: Any = Running()
    before, after = (sample(STACK, {"it": process}, [os.getpid()]) for _ in range(2))
    carried, servers, others = used(before, after, {"snapshot": ProcessCost(1.5, 90.0)})
    assert carried == {"snapshot": ProcessCost(1.5, 90.0), "it": ProcessCost(2.0, 1.0)}
    assert servers == {"kafka": ProcessCost(3.0, 1.0)}
    assert others == CpuTime(10.0 - 1.5 - 2.0 - 3.0 - 1.0 - 0.5, 0.0)


def test_what_the_machine_and_a_process_have_used() -> None:
    cost = process_cost(os.getpid())
    assert cost.peak_mb > 10
    assert 0 < cost.cpu_s < cpu_time().used_s
    assert CpuTime(3.0, 2.0) - CpuTime(1.0, 0.5) == CpuTime(2.0, 1.5)

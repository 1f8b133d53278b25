"""How snapshots stand in the table, and what is refused."""

import io

from click.testing import CliRunner
from rich.console import Console

from benchmarks import snapshot
from benchmarks.machine import CpuTime, ProcessCost
from benchmarks.pipeline import PipelineResult
from benchmarks.snapshot import SnapshotResult


def made(seconds: float, cpu_s: float, *processes: str) -> SnapshotResult:
    costs = {name: ProcessCost(cpu_s, 100.0) for name in processes}
    kafka = {"kafka": ProcessCost(1.0, 300.0)}
    carried = PipelineResult(1000, seconds, 0.0, costs, kafka, CpuTime(0.0, 0.0))
    return SnapshotResult(carried, seconds / 2, 20)


def test_each_form_stands_beside_debezium() -> None:
    results = {"services": made(1.0, 0.1, "snapshot", "rowmapper"), "debezium": made(2.0, 0.8, "connect")}
    output = io.StringIO()
    Console(file=output, width=170).print(snapshot._table(results, 1000, 20))
    own, other = (line for line in output.getvalue().splitlines() if "rows" not in line and "│ " in line)
    assert [cell.strip() for cell in own.split("│")][1:-1] == [
        "services", "1,000", "0.5 s: 2,000/s", "1.0 s: 1,000/s", "200.0 µs", "snapshot 100, rowmapper 100",
        "1000.0 µs", "20", "2.0 x, 0.25 x",
    ]  # fmt: skip
    assert [cell.strip() for cell in other.split("│")][1:-1] == [
        "debezium", "1,000", "1.0 s: 1,000/s", "2.0 s: 500/s", "800.0 µs", "connect 100", "1000.0 µs", "10",
        "",
    ]  # fmt: skip


def test_a_form_that_does_not_exist_is_refused() -> None:
    result = CliRunner().invoke(snapshot.main, ["--forms", "services,other"])
    assert result.exit_code == 2
    assert "other: the forms are services, run, debezium" in result.output

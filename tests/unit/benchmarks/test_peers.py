"""What the peers are told to do, and how they stand in the table."""

import io
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.machine import CpuTime, ProcessCost
from benchmarks.peers import __main__ as peers
from benchmarks.peers.debezium import Debezium
from benchmarks.pipeline import PipelineResult
from millrace.local import Kafka, LocalError, MySQL


class Worker(Debezium):
    """Notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(Kafka())
        self.asked: list[tuple[str, str, Any]] = []
        self.tasks: list[dict[str, str]] = []

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.append((method, path, body))
        return {"tasks": self.tasks}


class Database(MySQL):
    """Answers what SHOW BINLOG EVENTS says of a log file's head."""

    def query(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        assert statement == "SHOW BINLOG EVENTS IN 'mysql-bin.000007' LIMIT 2"
        head = ("mysql-bin.000007", 4, "Format_desc", 1, 124, "Server ver: 8.0.15")
        return [head, ("mysql-bin.000007", 124, "Previous_gtids", 1, 195, "a:1-5,\nb:1-3")]


@pytest.fixture
def worker() -> Worker:
    database = Database()
    database.ports = [3306]
    worker = Worker()
    worker.begin_source(database, "p", "bench_a", "mysql-bin.000007")
    return worker


def test_debezium_starts_where_the_input_does(worker: Worker) -> None:
    assert [(method, path) for method, path, _ in worker.asked] == [
        ("POST", "/connectors"),
        ("PATCH", "/connectors/p/offsets"),
        ("PUT", "/connectors/p/resume"),
    ]
    (_, _, made), (_, _, moved), _ = worker.asked
    assert made["initial_state"] == "STOPPED"
    offset = {"file": "mysql-bin.000007", "pos": 4, "gtids": "a:1-5,b:1-3"}
    assert moved == {"offsets": [{"partition": {"server": "p"}, "offset": offset}]}


def test_a_snapshot_by_debezium_belongs_to_its_place_in_the_log(worker: Worker) -> None:
    database = Database()
    database.ports = [3306]
    worker.begin_snapshot(database, "s", "bench_a")
    ((_, _, made),) = (asked for asked in worker.asked if asked[2] and asked[2].get("name") == "s")
    assert made["initial_state"] == "RUNNING"
    assert {name: text for name, text in made["config"].items() if name.startswith("snapshot.")} == {
        "snapshot.mode": "initial",
        "snapshot.locking.mode": "minimal",
    }


def test_rows_of_a_snapshot_are_known_at_its_end(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "connect.log"
    monkeypatch.setattr(Worker, "log_file", log)
    log.write_text(
        "INFO Finished exporting 100 records for table 's.t' (1 of 1 tables); total duration '00:00:01.0'\n"
    )
    assert worker.exported is None
    log.write_text(log.read_text() + "INFO Snapshot completed\n")
    assert worker.exported == 100


def test_a_task_that_has_failed_is_told(worker: Worker) -> None:
    worker.tasks = [{"state": "RUNNING"}]
    worker.check_task("p")
    worker.tasks = [{"state": "FAILED", "trace": "why"}]
    with pytest.raises(LocalError, match="the connector p has failed:\nwhy"):
        worker.check_task("p")


def made(seconds: float, cpu_s: float, *processes: str) -> PipelineResult:
    costs = {name: ProcessCost(cpu_s, 100.0) for name in processes}
    return PipelineResult(1000, seconds, 0.5, costs, {"kafka": ProcessCost(1.0, 300.0)}, CpuTime(0.0, 0.0))


def test_ratios_are_those_of_the_median_runs() -> None:
    runs = {
        "millrace": [made(1.0, 0.1, "reader", "decoder"), made(9.0, 0.1, "reader"), made(0.5, 0.1, "reader")],
        "debezium": [made(2.0, 0.8, "connect")],
    }
    table, output = peers._table(), io.StringIO()
    peers._add_rows(table, "A", runs)
    Console(file=output, width=150).print(table)
    own, other = (line for line in output.getvalue().splitlines() if "│ A" in line)
    assert [cell.strip() for cell in own.split("│")][2:-1] == [
        "Millrace", "1,000", "111 to 2,000", "0.5 s", "200.0 µs", "100 + 100", "1000.0 µs", "",
    ]  # fmt: skip
    assert [cell.strip() for cell in other.split("│")][2:-1] == [
        "Debezium", "500", "", "0.5 s", "800.0 µs", "100", "1000.0 µs", "2.0 x, 0.25 x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--inputs", "AX", "X: the inputs are A, B, C"),
        ("--systems", "millrace,other", "other: the systems are"),
    ],
)
def test_what_does_not_exist_is_refused(option: str, value: str, message: str) -> None:
    result = CliRunner().invoke(peers.main, [option, value])
    assert result.exit_code == 2
    assert message in result.output

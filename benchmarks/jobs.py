"""The Spark jobs over topics of inputs A and B, on one core and on more: ``python -m benchmarks.jobs``."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.inputs import write_input
from benchmarks.machine import CpuTime, ProcessCost, cpu_time, disturbance, machine, process_cost
from benchmarks.pipeline import measure_pipeline
from millrace import kernel
from millrace.local import LocalStack
from millrace.runtime.logging import configure_logging

_CONSOLE = Console(width=140)
_INPUTS = ("A", "B")
_POLL_S = 0.1
_JAVA = "java"


@dataclass(slots=True)
class _Run:
    """What a job took: seconds, and of each of its processes the CPU and the peak memory."""

    seconds: float
    disturbance: str
    output: str
    java: list[ProcessCost] = field(default_factory=list)
    python: list[ProcessCost] = field(default_factory=list)


@click.command()
@click.option("--scale", "scales", default="1,1", show_default=True, help="Sizes of the inputs A and B.")
@click.option("--cores", default="1,2", show_default=True, help="Numbers of cores to run each job on.")
@click.option(
    "--jobs",
    default="reprocess,analytics,loop_detection",
    show_default=True,
    help="Jobs: reprocess takes each input by itself, the others both.",
)
@click.option("--steps/--no-steps", default=False, help="Print what each step of a job took.")
def main(scales: str, cores: str, jobs: str, *, steps: bool) -> None:
    """Carry the inputs to Kafka, run the jobs over their topics and print what they took."""
    configure_logging("WARNING")
    table = Table(
        "job", "input", "cores", "s", "rows/s", "CPU s, Java", "CPU s, Python",
        "peak MB, Java", "peak MB, Python", title="Spark jobs", title_justify="left",
    )  # fmt: skip
    notes = []
    with (
        LocalStack(say=_CONSOLE.print) as stack,
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as place,
    ):
        rows: dict[str, int] = {}
        for name, scale in zip(_INPUTS, scales.split(","), strict=True):
            with stack.database.connect() as connection:
                log_file, rows[name] = write_input(name, connection, float(scale))
            _CONSOLE.print(f"{name}: {rows[name]:,} rows, {_megabytes(stack, log_file):,.0f} MB of log")
            measure_pipeline(stack, _source(name), {"MILLRACE_START": f"{log_file}:4"}, rows[name])
        for job in jobs.split(","):
            for inputs in [[name] for name in _INPUTS] if job == "reprocess" else [list(_INPUTS)]:
                for number in cores.split(","):
                    run = _run(stack, job, inputs, number, Path(place) / f"{job}-{number}")
                    carried = sum(rows[name] for name in inputs)
                    if job == "reprocess":
                        _check_rows(Path(place) / f"{job}-{number}-{inputs[0]}", _source(inputs[0]), carried)
                    table.add_row(
                        job, "".join(inputs), number, f"{run.seconds:.1f}", f"{carried / run.seconds:,.0f}",
                        *(f"{sum(one.cpu_s for one in costs):.1f}" for costs in (run.java, run.python)),
                        *(" + ".join(_peaks(costs)) for costs in (run.java, run.python)),
                    )  # fmt: skip
                    notes += [f"{job}, {inputs}: {run.disturbance}"] if run.disturbance else []
                    if steps:
                        _CONSOLE.print(run.output, markup=False)
    _CONSOLE.print(f"{machine()}; kernel: {kernel.state()}")
    _CONSOLE.print(table)
    for note in notes:
        _CONSOLE.print(note)


def _source(name: str) -> str:
    return f"jobs{name}"


def _megabytes(stack: LocalStack, log_file: str) -> float:
    folder = stack.database.data_folder
    prefix = log_file.partition(".")[0]
    return sum(one.stat().st_size for one in folder.glob(f"{prefix}.*") if one.name >= log_file) / 1e6


def _run(stack: LocalStack, job: str, inputs: Sequence[str], cores: str, output: Path) -> _Run:
    """Run a job as a user does; raises SystemExit where it fails."""
    command = [sys.executable, "-m", "millrace.cli", "job", job, "--master", f"local[{cores}]"]
    command += [part for name in inputs for part in ("--source", _source(name))]
    command += ["--output", f"{output}-{''.join(inputs)}"]
    costs: dict[int, tuple[bool, ProcessCost]] = {}
    environment = {**os.environ, **dict(stack.environment())}
    before, began, known_s = cpu_time(), time.monotonic(), _known_s(stack)
    with (
        tempfile.TemporaryFile("w+") as told,
        subprocess.Popen(command, env=environment, stdout=told, stderr=told) as process,
    ):
        try:
            while process.poll() is None:
                for pid in _descendants(process.pid):
                    with suppress(OSError, RuntimeError, IndexError):  # it may have ended just now
                        costs[pid] = _is_java(pid), process_cost(pid)
                time.sleep(_POLL_S)
        finally:
            process.terminate()
        told.seek(0)
        text = told.read()
    seconds = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"{job} ended with exit code {process.returncode}:\n{text}")
    used = cpu_time() - before
    known_s = _known_s(stack) - known_s + sum(cost.cpu_s for _, cost in costs.values())
    others = CpuTime(max(0.0, used.used_s - known_s), used.stolen_s)
    run = _Run(seconds, disturbance(others, seconds), text)
    for is_java, cost in costs.values():
        (run.java if is_java else run.python).append(cost)
    return run


def _check_rows(output: Path, source: str, rows: int) -> None:
    """Raise SystemExit unless each row was written once."""
    tables = json.loads((output / "summary.json").read_text("utf-8"))[source]["tables"]
    written = sum(table["rows"] for name, table in tables.items() if name.startswith("rows/"))
    if written != rows:
        raise SystemExit(f"{written:,} rows of {source} were written, not {rows:,}")


def _known_s(stack: LocalStack) -> float:
    """Return the CPU seconds that this process and the servers have used."""
    servers = [process_cost(component.processes[0].pid).cpu_s for component in stack.components]
    return time.process_time() + sum(servers)


def _peaks(costs: Sequence[ProcessCost]) -> Iterator[str]:
    """Return the memory of the two largest processes."""
    return (f"{one:,.0f}" for one in sorted((cost.peak_mb for cost in costs), reverse=True)[:2])


def _is_java(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(_JAVA.encode())


def _descendants(root: int) -> list[int]:
    """Return a process and all that it has started, and these."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


if __name__ == "__main__":
    main()

"""From a real server to row topics: processes of Millrace, on a real Kafka and registry."""

import os
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import CpuTime, ProcessCost, cpu_time, disturbance, process_cost
from millrace.local import LocalStack
from millrace.local.processes import Process, reserve_port

SERVICES = ("reader", "decoder", "rowmapper")
FORMS = {"services": SERVICES, "run": ("run",)}
"""What may carry a source: its processes."""

_EVENTS = re.compile(r"^millrace_reader_events_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_ROWS = re.compile(r"^millrace_rowmapper_rows_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_POLL_S = 0.1
_READY_WITHIN_S = 120
_GIVE_UP_S = 7200


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """Rows that were carried, the seconds from the first event on, and who used what in this time.

    ``first_row_s`` is when the first row was seen to be written: until then tables and topics are set up.
    ``costs`` are those of the processes that carry; ``servers`` those of Kafka and the others beneath them.
    ``others`` is what the rest of the machine took.
    """

    rows: int
    seconds: float
    first_row_s: float
    costs: dict[str, ProcessCost]
    servers: dict[str, ProcessCost]
    others: CpuTime

    @property
    def rows_per_s(self) -> float:
        """Rows that were carried in a second."""
        return self.rows / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU per row, of all processes that carry."""
        return sum(cost.cpu_s for cost in self.costs.values()) / self.rows * 1e6

    @property
    def servers_us(self) -> float:
        """Microseconds of CPU per row, of the servers beneath."""
        return sum(cost.cpu_s for cost in self.servers.values()) / self.rows * 1e6

    @property
    def disturbance(self) -> str:
        """Say what else used the machine, if it was more than a little."""
        return disturbance(self.others, self.seconds)


def median_result(results: Sequence[PipelineResult]) -> PipelineResult:
    """Return the run whose rate is the median (of an even number, the lower one)."""
    rate = statistics.median_low(result.rows_per_s for result in results)
    return next(result for result in results if result.rows_per_s == rate)


def measure_pipeline(
    stack: LocalStack,
    source: str,
    settings: Mapping[str, str],
    rows: int,
    form: str = "services",
    *,
    carried_before: int | None = None,
) -> PipelineResult:
    """Carry ``rows`` rows from the stack's server, or from files, to row topics.

    ``settings`` say where the reader begins: MILLRACE_START, or MILLRACE_FILES. With ``carried_before``, the
    rows that the source has carried until now, it is a restart that is measured: all processes are started at
    once, and counted from then.
    """
    names = FORMS[form]
    with running(stack, source, settings, names, wait=carried_before is None) as (processes, ports):
        return watch(
            stack,
            processes,
            rows,
            begun=lambda: carried_before is not None or _counted(ports[names[0]], _EVENTS) > 0,
            written=lambda: max(0, _counted(ports[names[-1]], _ROWS) - (carried_before or 0)),
        )


@contextmanager
def running(
    stack: LocalStack, source: str, settings: Mapping[str, str], names: Sequence[str], *, wait: bool = True
) -> Iterator[tuple[dict[str, Process], dict[str, int]]]:
    """Yield processes that carry a source, and the ports of their metrics.

    The first, which reads, is started when the others are ready, so that it gets no lead; without ``wait``
    all are started at once.
    """
    with ExitStack() as stopped:
        folder = Path(stopped.enter_context(tempfile.TemporaryDirectory(prefix="millrace-bench-")))
        environment = {**os.environ, **dict(stack.environment()), "MILLRACE_SOURCE": source}
        environment |= {"MILLRACE_LOG_LEVEL": "WARNING", **settings}
        if "MILLRACE_FILES" in settings:
            environment = {name: value for name, value in environment.items() if "_MYSQL_" not in name}
        ports = {name: reserve_port() for name in names}
        processes: dict[str, Process] = {}
        for name in reversed(names):
            if name == names[0] and wait:
                _wait_until_ready(processes, ports)
            processes[name] = stopped.enter_context(_service(name, ports[name], environment, folder))
        yield {name: processes[name] for name in names}, ports


def watch(
    stack: LocalStack,
    processes: Mapping[str, Process],
    rows: int,
    *,
    begun: Callable[[], bool],
    written: Callable[[], int],
) -> PipelineResult:
    """Wait until ``processes`` have written ``rows`` rows; give what they used from the first event on.

    ``begun`` says whether they have read an event, ``written`` how many rows they have written. Counting
    starts where ``begun`` denied last, so that starting up is no part of it.
    """
    deadline = time.monotonic() + _GIVE_UP_S
    before, waiting = sample(stack, processes), True
    first_row, count = 0.0, 0
    while count < rows:
        time.sleep(_POLL_S)
        _refuse_ended(processes)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} of {rows} rows after {_GIVE_UP_S} s")
        if waiting:
            now = sample(stack, processes)
            waiting = not begun()
            if waiting:
                before = now
                continue
        count = written()
        if count and not first_row:
            first_row = time.monotonic()
    after = sample(stack, processes)
    if count != rows:
        raise RuntimeError(f"{count} rows were written, of {rows}: something was written twice")
    seconds, first_row_s = after.time_s - before.time_s, first_row - before.time_s
    return PipelineResult(rows, seconds, first_row_s, *used(before, after))


@dataclass(frozen=True, slots=True)
class Sample:
    """What was used up to a moment: by those who carry, the servers, those who measure, the whole machine."""

    time_s: float
    costs: dict[str, ProcessCost]
    servers: dict[str, ProcessCost]
    own_s: float
    machine: CpuTime


def sample(stack: LocalStack, processes: Mapping[str, Process], clients: Sequence[int] = ()) -> Sample:
    """Look at the stack, at processes that carry, and at the processes of clients that are a part of it."""
    return Sample(
        time.monotonic(),
        {name: process_cost(process.pid) for name, process in processes.items()},
        {component.name: process_cost(component.processes[0].pid) for component in stack.components},
        time.process_time() + sum(process_cost(pid).cpu_s for pid in clients),
        cpu_time(),
    )


def used(
    before: Sample, after: Sample, ended: Mapping[str, ProcessCost] | None = None
) -> tuple[dict[str, ProcessCost], dict[str, ProcessCost], CpuTime]:
    """Return what those who carry, the servers and the rest of the machine used between two moments.

    ``ended`` are those who carried as well, and were started and ended in between.
    """
    costs = {**(ended or {}), **_between(before.costs, after.costs)}
    servers = _between(before.servers, after.servers)
    known_s = sum(cost.cpu_s for cost in (*costs.values(), *servers.values())) + after.own_s - before.own_s
    machine = after.machine - before.machine
    return costs, servers, CpuTime(max(0.0, machine.used_s - known_s), machine.stolen_s)


def _between(before: Mapping[str, ProcessCost], after: Mapping[str, ProcessCost]) -> dict[str, ProcessCost]:
    return {name: ProcessCost(cost.cpu_s - before[name].cpu_s, cost.peak_mb) for name, cost in after.items()}


@contextmanager
def _service(name: str, port: int, environment: dict[str, str], folder: Path) -> Iterator[Process]:
    command = [sys.executable, "-m", f"services.{name}"]
    settings = {**environment, "MILLRACE_HTTP_PORT": str(port)}
    process = Process(name, command, log=folder / f"{name}.log", env=settings, cwd=Path.cwd())
    try:
        yield process
    finally:
        process.signal(15)
        process.stop()


def _refuse_ended(processes: Mapping[str, Process]) -> None:
    for name, process in processes.items():
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended. The end of its log:\n{process.log_tail()}")


def _wait_until_ready(processes: Mapping[str, Process], ports: Mapping[str, int]) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while not all(_answer(ports[service], "readyz") for service in processes):
        _refuse_ended(processes)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{' and '.join(processes)} were not ready after {_READY_WITHIN_S} s")
        time.sleep(_POLL_S)


def _counted(port: int, metric: re.Pattern[str]) -> int:
    return int(sum(float(value) for value in metric.findall(_answer(port, "metrics"))))


def _answer(port: int, path: str) -> str:
    """Ask a service; give nothing where it does not listen yet, or refuses."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""

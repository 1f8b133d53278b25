"""From a real server to row topics: the three services as processes, on a real Kafka and registry."""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.local import LocalStack
from millrace.local.processes import Process, reserve_port

__all__ = ["PipelineResult", "ProcessCost", "measure_pipeline"]

_SERVICES = ("reader", "decoder", "rowmapper")
_ROWS = re.compile(r"^millrace_rowmapper_rows_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.1
_GIVE_UP_S = 1800


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What a process has used: CPU seconds (user and system) and the peak of its resident memory."""

    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """Rows in the row topics, the seconds they took from the reader's first event on, and who used what."""

    rows: int
    seconds: float
    costs: dict[str, ProcessCost]


def measure_pipeline(
    stack: LocalStack, source: str, settings: Mapping[str, str], rows: int
) -> PipelineResult:
    """Carry ``rows`` rows from the stack's server, or from files, to row topics.

    ``settings`` say where the reader begins: MILLRACE_START, or MILLRACE_FILES.
    """
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="millrace-bench-")))
        environment = {**os.environ, **dict(stack.environment()), "MILLRACE_SOURCE": source}
        environment |= {"MILLRACE_LOG_LEVEL": "WARNING", **settings}
        if "MILLRACE_FILES" in settings:
            del environment["MILLRACE_MYSQL_HOST"]
        ports = {service: reserve_port() for service in _SERVICES}
        processes = {
            service: running.enter_context(_service(service, ports[service], environment, folder))
            for service in _SERVICES
        }
        watched = {service: process.pid for service, process in processes.items()}
        watched |= {component.name: component.processes[0].pid for component in stack.components}
        before = {who: _cost(pid).cpu_s for who, pid in watched.items()}
        seconds = _wait_for_rows(rows, ports["rowmapper"], processes)
        costs = {who: _cost(pid) for who, pid in watched.items()}
        return PipelineResult(
            rows,
            seconds,
            {who: ProcessCost(cost.cpu_s - before[who], cost.peak_mb) for who, cost in costs.items()},
        )


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


def _wait_for_rows(rows: int, port: int, processes: dict[str, Process]) -> float:
    """Return the seconds between the first row and the last, as the row mapper counts them."""
    started, deadline = None, time.monotonic() + _GIVE_UP_S
    while True:
        for name, process in processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended. The end of its log:\n{process.log_tail()}")
        count = _published(port)
        now = time.monotonic()
        if started is None and count:
            started = now
        if count >= rows and started is not None:
            return now - started
        if now > deadline:
            raise RuntimeError(f"{count} of {rows} rows after {_GIVE_UP_S} s")
        time.sleep(_POLL_S)


def _published(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return 0  # not listening yet
    return int(sum(float(value) for value in _ROWS.findall(text)))


def _cost(pid: int) -> ProcessCost:
    process = Path("/proc") / str(pid)
    fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    peak = re.search(r"^VmHWM:\s+(\d+) kB", (process / "status").read_text(), re.MULTILINE)
    if peak is None:
        raise subprocess.SubprocessError(f"process {pid} has ended")
    return ProcessCost((int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(peak[1]) / 1024)

"""The report of a campaign as text."""

import os
import platform
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.campaign import Report

_CARRIED_BY = {
    "services": "three services",
    "run": "millrace run",
    "alternate": "three services and millrace run in turns",
}


def report_lines(report: Report, *, server: str, brokers: int, mode: str, seed: int) -> Iterator[str]:
    """Yield the report, a line each."""
    yield f"{server}, Kafka of {brokers} node{'s' if brokers > 1 else ''}, {_CARRIED_BY[mode]}; {machine()}"
    yield f"--mode {mode} --seed {seed}"
    yield f"{report.faults} faults in {report.duration_s / 60:.1f} minutes"
    if report.missed:
        yield f"{report.missed} placed kills waited in vain for their point and do not count"
    yield f"half of all rows were in their topic {report.latency_s:.2f} s after COMMIT, faults included"
    yield ""
    yield f"{'fault':<36}{'times':>6}{'well again after (median, longest)':>40}"
    for kind, times in sorted(report.recoveries.items()):
        yield f"{kind:<36}{len(times):>6}{statistics.median(times):>30.1f} s{max(times):>6.1f} s"
    yield ""
    yield "ends of services (exit code; a negative one is a signal): " + ", ".join(
        f"{name}: {count}" for name, count in sorted(report.ends.items())
    )
    yield "writes: " + ", ".join(f"{name} {count}" for name, count in sorted(report.writes.items()))
    yield ""
    for name, count in report.verdict.counts.items():
        yield f"{name:<42}{count:>14,}"
    yield ""
    for problem in [*report.problems, *report.verdict.problems]:
        yield f"WRONG: {problem}"
    yield "all is as it must be" if report.good else "the pipeline failed"


def machine() -> str:
    """Name the machine: its cores and their make."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores of {model[1] if model else platform.machine()}"

"""The machine that runs a measurement: its description, its load, and what a process has used."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LITTLE_CORES = 0.1


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU seconds, over all cores: those of programs and of the kernel for them, and those the host took."""

    used_s: float
    stolen_s: float

    def __sub__(self, other: "CpuTime") -> "CpuTime":
        return CpuTime(self.used_s - other.used_s, self.stolen_s - other.stolen_s)


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What a process has used: CPU seconds (user and system) and the peak of its resident memory."""

    cpu_s: float
    peak_mb: float


def machine() -> str:
    """Name cores, processor and Python."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return (
        f"{os.cpu_count()} cores of {model[1] if model else platform.machine()}; "
        f"Python {platform.python_version()}"
    )


def cpu_time() -> CpuTime:
    """Return what was used since the machine was started. Interrupts are left out: they are nobody's."""
    user, nice, system, _idle, _iowait, _irq, _softirq, steal, *_ = (
        int(ticks) / _TICKS_PER_S for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return CpuTime(user + nice + system, steal)


def disturbance(others: CpuTime, seconds: float) -> str:
    """Say what else used the machine in a time, if it was more than a little."""
    used, stolen = others.used_s / seconds, others.stolen_s / seconds
    if max(used, stolen) < _LITTLE_CORES:
        return ""
    return (
        f"other programs used {used:.2f} cores and the host took {stolen:.2f}, of {os.cpu_count()}: "
        "measure again on a quiet machine"
    )


def process_cost(pid: int) -> ProcessCost:
    """Return what a process has used until now."""
    process = Path("/proc") / str(pid)
    fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    peak = re.search(r"^VmHWM:\s+(\d+) kB", (process / "status").read_text(), re.MULTILINE)
    if peak is None:
        raise RuntimeError(f"process {pid} has ended")
    return ProcessCost((int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(peak[1]) / 1024)

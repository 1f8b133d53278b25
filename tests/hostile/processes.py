"""Runs a program of the project against a peer that misbehaves, and tells what came of it.

Memory is the peak of the process's resident memory (VmHWM), looked at while it runs: what a child's rusage
says includes what the tests' own process had when it was forked.
"""

import re
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.service_process import ServiceProcess

__all__ = ["GRACE_S", "HANGS_S", "MEMORY_MB", "Ended", "run", "start", "stop"]

MEMORY_MB = 300
"""What no peer may make a process take."""

GRACE_S = 60
"""terminationGracePeriodSeconds of the chart: a process that was told to stop ends before."""

HANGS_S = 120
_LOOK_S = 0.02


@dataclass(frozen=True)
class Ended:
    """What came of a process."""

    code: int
    output: str
    errors: str
    peak_mb: float

    def says(self, code: int, *words: str) -> None:
        """Check its exit code, and that it says one line on standard error, with these words."""
        assert self.code == code, self
        (line,) = self.errors.splitlines() or [""]
        assert line.startswith("error: "), self
        for word in words:
            assert word in line, self
        self.is_well()

    def is_well(self) -> None:
        """Check what holds always: no traceback, nothing raw, bounded memory."""
        for told in (self.output, self.errors):
            assert "Traceback" not in told, self
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", told), self
        assert self.peak_mb < MEMORY_MB, self


class _Watch:
    """Looks at a process's memory until it ends."""

    def __init__(self, pid: int) -> None:
        self.peak_mb = 0.0
        self._status = Path("/proc") / str(pid) / "status"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                found = re.search(r"^VmHWM:\s+(\d+) kB", self._status.read_text(), re.MULTILINE)
            except OSError:
                return
            if found is not None:
                self.peak_mb = int(found[1]) / 1024

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return self.peak_mb


class Running:
    """A process, its output, and its memory."""

    def __init__(self, arguments: Sequence[str], settings: Mapping[str, str]) -> None:
        self.process = ServiceProcess([sys.executable, *arguments], settings)
        self._watch = _Watch(self.process.pid)

    def end(self, timeout_s: float) -> Ended:
        """Wait for its end; raises TimeoutExpired where it hangs."""
        try:
            code = self.process.wait(timeout_s)
        finally:
            self.process.close()
            peak_mb = self._watch.end()
        return Ended(code, self.process.output, self.process.error_output, peak_mb)


def start(*arguments: str, settings: Mapping[str, str]) -> Running:
    """Start Python with arguments."""
    return Running(arguments, settings)


def run(*arguments: str, settings: Mapping[str, str]) -> Ended:
    """Run Python with arguments to its end, which must come by itself."""
    return start(*arguments, settings=settings).end(HANGS_S)


def stop(running: Running) -> Ended:
    """Tell a process to stop, as a supervisor does, and wait no longer than one would."""
    running.process.send_signal(signal.SIGTERM)
    return running.end(GRACE_S)

"""Runs ``millrace …`` many times in one process, since a process of its own costs half a second each time.

``python -m tests.hostile.commands`` reads a JSON object a line, ``{"arguments": […], "settings": {…}}``, runs
the command as ``millrace`` would, and writes what came of it: exit code, output, errors, and the peak of the
process's memory since the command began.
"""

import json
import os
import re
import select
import subprocess
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from click.testing import CliRunner

from millrace.cli import main as millrace
from tests.shared import PROJECT, environment_with

from .processes import HANGS_S, Ended

__all__ = ["Commands"]

_PROC = Path("/proc/self")
_FORGET_PEAK = "5"


class Commands:
    """The process, and what it is told; a context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=environment_with({}),
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, *arguments: str, settings: Mapping[str, str]) -> Ended:
        """Run ``millrace`` with arguments; it must end by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        told = json.dumps({"arguments": arguments, "settings": dict(settings)})
        self._process.stdin.write(told.encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], HANGS_S)
        if not ready:
            self._process.kill()
            raise TimeoutError(f"it hangs: {arguments}")
        line = self._process.stdout.readline()
        assert line, f"the process died of {arguments}"
        return Ended(**json.loads(line))


def _run(arguments: list[str], settings: dict[str, str]) -> dict[str, Any]:
    for name in [name for name in os.environ if name.startswith("MILLRACE_MYSQL_")]:
        del os.environ[name]
    with suppress(OSError):  # where it is not allowed, the peak is that of all commands so far
        (_PROC / "clear_refs").write_text(_FORGET_PEAK)
    done = CliRunner().invoke(millrace, arguments, env=settings)
    errors = done.stderr
    if done.exc_info is not None and not isinstance(done.exception, SystemExit | None):
        errors += "".join(traceback.format_exception(*done.exc_info))
    peak = re.search(r"^VmHWM:\s+(\d+) kB", (_PROC / "status").read_text(), re.MULTILINE)
    assert peak is not None
    return {
        "code": done.exit_code,
        "output": done.stdout,
        "errors": errors,
        "peak_mb": int(peak[1]) / 1024,
    }


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    _main()

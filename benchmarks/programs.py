"""Whole programs on a log file, with startup: ``millrace binlog``, the services' stages, mysqlbinlog."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.codec import measure_stages

TO_AVRO = "to Avro"
"""From the file to the records of row topics: the services' stages in one process, without Kafka."""

_ROUNDS = 2
_BINLOG = {
    "-vv": ("-vv", "--base64-output=decode-rows"),
    "--json": ("--json",),
    "--stats": ("--stats",),
    "--verify": ("--verify",),
}
_SLOWER = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""Settings with which a Python program compiles itself at each start, or writes without a buffer."""


def measure_programs(log: Path, mysqlbinlog: str | None) -> dict[str, float]:
    """Return the seconds of user CPU that each program takes, its output thrown away."""
    commands = {
        name: [sys.executable, "-m", "millrace.cli", "binlog", *options, str(log)]
        for name, options in _BINLOG.items()
    }
    commands[TO_AVRO] = [sys.executable, "-m", "benchmarks.programs", str(log)]
    if mysqlbinlog is not None:
        commands["mysqlbinlog -vv"] = [mysqlbinlog, *_BINLOG["-vv"], str(log)]
    return {name: min(_user_s(command) for _ in range(_ROUNDS)) for name, command in commands.items()}


def _user_s(command: list[str]) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in _SLOWER}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as program:
        _, status, used = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        raise RuntimeError(f"{command} ended with exit code {program.returncode}")
    return used.ru_utime


if __name__ == "__main__":
    measure_stages(Path(sys.argv[1]))

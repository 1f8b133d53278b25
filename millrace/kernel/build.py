"""Builds the kernel, in place: ``python -m millrace.kernel.build``; for wheels: ``tools/wheel_kernel.py``.

Each module ``name.pyx`` becomes ``name.c`` by Cython, and that a library beside it by the C compiler that
Python itself was made with (or ``CC``). What is newer than its source is left alone. ``--if-possible`` is for
the first set-up: where there is no compiler it says so and succeeds, since the reference codec does the same
work, more slowly.
"""

import argparse
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess  # a fixed command line, without a shell
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.kernel import DIGEST

_FOLDER = Path(__file__).parent
_CYTHON = ("-3", "--directive", "boundscheck=True,wraparound=False,initializedcheck=True,cdivision=True")


class BuildError(Exception):
    """The kernel cannot be built; the message says what is missing or what the compiler said."""


def sources() -> list[Path]:
    """List the modules' sources."""
    return sorted(_FOLDER.glob("*.pyx"))


def target_of(source: Path) -> Path:
    """Name the library that is built of ``source`` for this Python."""
    return source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))


def _is_current(source: Path) -> bool:
    target = target_of(source)
    inputs = [source, *_FOLDER.glob("*.pxd"), Path(__file__)]
    return target.exists() and all(one.stat().st_mtime <= target.stat().st_mtime for one in inputs)


def what_is_missing() -> str | None:
    """Say what this machine lacks to build it, Cython aside."""
    compiler = _compiler()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler: {compiler} is not on PATH"
    if not any((Path(folder) / "Python.h").exists() for folder in _include_folders()):
        return f"no C headers of Python {sys.version_info.major}.{sys.version_info.minor}: no Python.h"
    return None


def _require_tools() -> None:
    missing = what_is_missing()
    if missing is None and importlib.util.find_spec("Cython") is None:
        missing = "no Cython: the extra 'kernel' brings it"
    if missing is not None:
        raise BuildError(missing)


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def _include_folders() -> list[str]:
    paths = sysconfig.get_paths()
    return list(dict.fromkeys((paths["include"], paths["platinclude"])))


def build(names: Sequence[str] = (), *, force: bool = False) -> int:
    """Build what is not current, saying a line for each; return how many. Raises :class:`BuildError`.

    ``names`` are those of the modules; none means all.
    """
    wanted = [source for source in sources() if not names or source.stem in names]
    stale = {source: target_of(source) for source in wanted if force or not _is_current(source)}
    for name, seconds in _build_all(stale):
        print(f"built the kernel: {name}, {seconds:.0f} s", flush=True)  # noqa: T201 - a command
    return len(stale)


def libraries(folder: Path) -> list[Path]:
    """Return the libraries of all modules: those in place that are current, else built into ``folder``."""
    stale = {source: folder / target_of(source).name for source in sources() if not _is_current(source)}
    for _ in _build_all(stale):
        pass
    return [stale.get(source, target_of(source)) for source in sources()]


def _build_all(targets: Mapping[Path, Path]) -> Iterator[tuple[str, float]]:
    """Build a library of each source, as many at once as there are cores; give names and seconds."""
    if not targets:
        return
    _require_tools()
    pool = ThreadPoolExecutor(os.cpu_count())
    # The largest takes longest, and is not left to the end.
    largest_first = sorted(targets, key=lambda source: -source.stat().st_size)
    try:
        yield from pool.map(_build_one, largest_first, [targets[source] for source in largest_first])
    finally:
        pool.shutdown(cancel_futures=True)


def _build_one(source: Path, target: Path) -> tuple[str, float]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        translated, library = Path(folder) / f"{source.stem}.c", Path(folder) / target.name
        _run([sys.executable, "-P", "-m", "cython", *_CYTHON, "-o", str(translated), str(source)])
        linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")[1:]
        flags = shlex.split(sysconfig.get_config_var("CFLAGS") or "")
        flags += shlex.split(sysconfig.get_config_var("CCSHARED") or "")
        includes = [f"-I{path}" for path in _include_folders()]
        # Cython's output has unused parts; the sizes of integers are what it is compiled for here.
        quiet = ["-Wno-unused-function", "-Wno-unreachable-code"]
        _run(
            [
                *_compiler(),
                *linker,
                *flags,
                "-O2",
                "-g0",
                *quiet,
                *includes,
                str(translated),
                "-o",
                str(library),
            ]
        )
        noted, digest = target.with_name(target.name + DIGEST), Path(folder) / f"{target.name}{DIGEST}"
        digest.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
        noted.unlink(missing_ok=True)
        library.replace(target)
        digest.replace(noted)
    return source.stem, time.monotonic() - began


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}".rstrip())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m millrace.kernel.build", description="Build the kernel.")
    parser.add_argument("module", nargs="*", help="the modules to build; all, where none is named")
    parser.add_argument("--if-possible", action="store_true", help="succeed where it cannot be built")
    parser.add_argument("--force", action="store_true", help="build what is current as well")
    options = parser.parse_args(arguments)
    try:
        build(options.module, force=options.force)
    except BuildError as error:
        if not options.if_possible:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command
            return 1
        reason = str(error) if "\n" not in str(error) else "the kernel does not build (make kernel says why)"
        print(f"{reason}; the reference codec is used, which is slower")  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    sys.exit(main())

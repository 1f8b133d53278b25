"""Where the binary logs beside the project lie, and how the project's programs are loaded and run."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["PROJECT", "SHARED", "environment_with", "load_script", "run_python"]

PROJECT = Path(__file__).resolve().parents[1]

SHARED = Path(os.environ.get("MILLRACE_SHARED", PROJECT.parent / "shared"))
"""The folder that holds ``corpus/`` and ``samples/``; tests that need them skip where it is absent."""


def load_script(path: str) -> ModuleType:
    """Import a script by its path in the project, without running it as one."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, PROJECT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment_with(settings: Mapping[str, str]) -> dict[str, str]:
    """Return a process's environment: the tests' own, but of Millrace's settings these alone."""
    kept = ("MILLRACE_CACHE", "MILLRACE_KERNEL")
    inherited = {
        name: value for name, value in os.environ.items() if name in kept or not name.startswith("MILLRACE_")
    }
    return {**inherited, **settings}


def run_python(
    *arguments: str, settings: Mapping[str, str], timeout_s: float = 600, **options: Any
) -> "subprocess.CompletedProcess[Any]":
    """Run Python with arguments in the project's folder to its end, whatever its exit code."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment_with(settings),
        cwd=PROJECT,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        **{"text": True, **options},
    )

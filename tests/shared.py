"""Where the binary logs beside the project lie, and how a script that is in no package is loaded."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

__all__ = ["PROJECT", "SHARED", "load_script"]

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

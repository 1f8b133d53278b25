"""What make says where it cannot set up its environment."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLD = "import sys; sys.version_info = (3, 9, 1); sys.version = '3.9.1 (old)'; exec(sys.argv.pop(2))"
"""What an older Python would do with ``-c``."""

WITHOUT_VENV = 'case "$1" in -m) exit 1 ;; esac\n'


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH")
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            f'exec "{sys.executable}" -c "{OLD}" "$@"\n',
            "error: Millrace needs Python 3.11 or newer, and {} is 3.9.1; name another one: make PYTHON=",
        ),
        (
            f'{WITHOUT_VENV}exec "{sys.executable}" "$@"\n',
            "error: {} cannot make a virtual environment; on Debian and Ubuntu install python3-venv",
        ),
    ],
)
def test_a_python_that_does_not_do(tmp_path: Path, program: str, message: str) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{program}")
    python.chmod(0o755)
    done = subprocess.run(
        ["make", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}", "lint"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(message.replace("{}", str(python)))
    assert not (tmp_path / "venv").exists()

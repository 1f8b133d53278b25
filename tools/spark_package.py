# ruff: noqa: INP001 - a script, no package
"""Builds what workers of a Spark cluster need of Millrace, as one zip for ``spark-submit --py-files``.

It is the wheel, compiled kernel included where it can be built, under a name that Spark takes. Python imports
out of it; only the kernel is unpacked, by itself (:mod:`millrace.kernel.archive`).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]


def build(target: Path) -> None:
    """Write the zip."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".spark-package-") as folder:
        hatchling = [sys.executable, "-P", "-m", "hatchling", "build", "--target", "wheel"]
        command = [*hatchling, "--directory", folder]
        subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own build
        (wheel,) = Path(folder).glob("*.whl")
        wheel.replace(target)


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute())
    sys.stdout.write(f"{sys.argv[1]}\n")

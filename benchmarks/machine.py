"""The machine on which something was measured, in words."""

import os
import platform
import re
from pathlib import Path

__all__ = ["machine"]


def machine() -> str:
    """Name cores, processor and Python."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return (
        f"{os.cpu_count()} cores of {model[1] if model else platform.machine()}; "
        f"Python {platform.python_version()}"
    )

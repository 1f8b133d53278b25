"""Hook of hatchling: a wheel takes the kernel along where it was built in place before.

Without it the wheel is pure Python and the reference codec does the work; with it the wheel is for the Python
and the platform that it was built on, and says so in its name.
"""

from pathlib import Path
from sysconfig import get_config_var
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface):
    """Adds the libraries of ``millrace/kernel`` that this Python loads."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files; ``version`` is "standard", or "editable", which finds them where they lie."""
        suffix = get_config_var("EXT_SUFFIX")
        libraries = sorted(Path(self.root, "millrace", "kernel").glob(f"*{suffix}"))
        if version == "standard" and libraries:
            build_data["artifacts"] += [f"/millrace/kernel/{library.name}" for library in libraries]
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

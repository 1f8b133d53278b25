"""Hook of hatchling: a wheel holds the kernel where it can be built, and is then for one Python and platform.

Where there is no C compiler, or Python has no C headers, it is pure Python and the reference codec does the
work; ``MILLRACE_KERNEL=off`` asks for that. What was built in place before is taken, if it is current. An
editable installation finds the kernel where it lies (``make kernel``).
"""

import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_CYTHON = "Cython>=3.1,<4"


class KernelHook(BuildHookInterface):
    """Adds the libraries of ``millrace/kernel`` that this Python loads."""

    def dependencies(self) -> list[str]:
        """Ask for Cython where it is of use."""
        wanted = os.environ.get("MILLRACE_KERNEL") != "off" and self._builder().what_is_missing() is None
        return [_CYTHON] if wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the kernel and add it; ``version`` is "standard", or "editable"."""
        if version != "standard" or os.environ.get("MILLRACE_KERNEL") == "off":
            return
        builder = self._builder()
        self._folder = Path(tempfile.mkdtemp(prefix="millrace-kernel-"))
        try:
            libraries = builder.libraries(self._folder)
        except builder.BuildError as error:
            self.app.display_warning(f"The wheel is without the compiled kernel, which is slower: {error}")
            return
        for library in libraries:
            for file in (library, library.with_name(library.name + builder.DIGEST)):
                if file.exists():
                    build_data["force_include"][str(file)] = f"millrace/kernel/{file.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was built, which the wheel has by now."""
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _builder(self) -> Any:
        """Import the kernel's own build from the sources at hand."""
        sys.path.insert(0, self.root)
        try:
            return importlib.import_module("millrace.kernel.build")
        finally:
            sys.path.remove(self.root)

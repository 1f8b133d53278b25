"""The kernel: the hottest paths of the codec once more, compiled.

What is here gives the same bytes as the plain Python that it stands in for, which stays the reference and
does the work where the kernel is not built (``python -m millrace.kernel.build``) or is turned off
(``MILLRACE_KERNEL=off``); :func:`state` says which. A user of a module of it asks first::

    if kernel.has("rows"):
        from millrace.kernel import rows

The modules are Cython: memory is read through helpers that check bounds, and what is out of the ordinary is
left to the reference. That of ``messages`` is confluent_kafka.

The build notes the SHA-256 of each library in a file beside it. If a library is another one, none is used.
"""

import hashlib
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

__all__ = ["DIGEST", "MODULES", "altered", "built", "has", "state"]

DIGEST: Final = ".sha256"
"""Suffix of the file that has the digest of a library, in hexadecimal."""

MODULES = (
    "columns",
    "event_records",
    "events",
    "json_columns",
    "json_text",
    "messages",
    "packets",
    "records",
    "rows",
    "selected",
    "text",
    "transactions",
)

_enabled = os.environ.get("MILLRACE_KERNEL", "on").lower() != "off"

if _enabled and (_archive := getattr(globals().get("__loader__"), "archive", None)):
    from millrace.kernel.archive import unpack

    __path__.extend(unpack(_archive))


def built(name: str) -> bool:
    """Say whether a module is there in a form that this Python loads."""
    return find_spec(f"{__name__}.{name}") is not None


@cache
def altered() -> str | None:
    """Return the path of a library that is not the one that was built; None where there is none."""
    for name in MODULES:
        spec = find_spec(f"{__name__}.{name}")
        library = None if spec is None else spec.origin
        if library is not None and Path(library + DIGEST).is_file():
            found = hashlib.sha256(Path(library).read_bytes()).hexdigest()
            if found != Path(library + DIGEST).read_text("ascii", "replace").strip():
                return library
    return None


def state() -> Literal["on", "off", "not built", "altered"]:
    """Say whether the kernel does the work, or why it does not."""
    if not _enabled:
        return "off"
    if altered() is not None:
        return "altered"
    return "on" if all(map(built, MODULES)) else "not built"


def has(name: str) -> bool:
    """Say whether a module is to be used: it is built, not altered, and the kernel is not turned off."""
    return _enabled and altered() is None and built(name)

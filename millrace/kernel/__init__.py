"""The kernel: the hottest paths of the codec once more, compiled.

What is here gives the same bytes as the plain Python that it stands in for, which stays the reference and
does the work where the kernel is not built (``python -m millrace.kernel.build``) or is turned off
(``MILLRACE_KERNEL=off``); :func:`state` says which. A user of a module of it asks first::

    if kernel.has("rows"):
        from millrace.kernel import rows

The modules are Cython: memory is read through helpers that check bounds, and what is out of the ordinary is
left to the reference. That of ``messages`` is confluent_kafka.
"""

import os
from importlib.util import find_spec
from typing import Literal

__all__ = ["MODULES", "built", "has", "state"]

MODULES = (
    "columns",
    "event_records",
    "events",
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


def state() -> Literal["on", "off", "not built"]:
    """Say whether the kernel does the work, or why it does not."""
    if not _enabled:
        return "off"
    return "on" if all(map(built, MODULES)) else "not built"


def has(name: str) -> bool:
    """Say whether a module is to be used: it is built, and the kernel is not turned off."""
    return _enabled and built(name)

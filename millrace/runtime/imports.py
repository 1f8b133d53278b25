"""Imports and garbage collection at the start of a process, and Ctrl-C meanwhile.

What imports make stays until the process ends. To look through all of it for garbage, again and again while
it grows, and once more at the end, takes a fifth of the time of a start.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn
from zipimport import zipimporter

_OBJECTS_BEFORE_COLLECTION: Final = 50_000


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without garbage collection, and leave what is there after that out of every later one.

    Ctrl-C ends the process with one word: a KeyboardInterrupt in an import would be a traceback, or that
    would turn it into another error.
    """
    enabled, known = gc.isenabled(), len(sys.modules)
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        interruptible = interruptible and signal.signal(signal.SIGINT, _interrupted) is not None
    except ValueError:  # not the main thread
        interruptible = False
    gc.disable()
    try:
        yield
    finally:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if len(sys.modules) > known:
            gc.freeze()
        if enabled:
            gc.enable()


def _interrupted(number: int, _frame: FrameType | None) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


@contextmanager
def without(package: str) -> Iterator[None]:
    """Import as if a package were not installed, which what is imported can do without."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # the import system's word for a module that is not there
    try:
        yield
    finally:
        del sys.modules[package]


def spare_garbage_collection() -> None:
    """Leave out of every collection what the imports have made, and collect seldom.

    For a process that takes records in batches: what it makes of one refers to nothing in a circle and is
    gone with it. Small transactions take nearly twice the CPU time without this.
    """
    if gc.get_threshold()[0] < _OBJECTS_BEFORE_COLLECTION:
        gc.freeze()
        gc.set_threshold(_OBJECTS_BEFORE_COLLECTION, 20, 20)


def forget_zips() -> None:
    """Let go of the importers of packages in zips; an import that needs one makes it again.

    For a process that pyspark gives one task after the other: before each it calls
    ``importlib.invalidate_caches``, for which every importer of a zip reads the zip's directory again. Of
    pyspark's own zip there are sixteen, which takes 0.1 s.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]

"""Binary log files on disk: their order, and the index file in which a server lists them."""

import re
import time
from pathlib import Path
from typing import Final

__all__ = ["file_order", "listed_files"]

_INDEX_ATTEMPTS: Final = 20
_INDEX_WAIT_S: Final = 0.05


def file_order(path: Path) -> tuple[str, int, str]:
    """Give a key by which log.1000000 comes behind log.999999."""
    suffix = path.suffix[1:]
    return path.stem, int(suffix) if suffix.isdecimal() else -1, suffix


def listed_files(index: Path) -> list[Path]:
    """Return the files that an index lists; its relative paths are relative to its own folder.

    Raises OSError where the index cannot be read.
    """
    for attempt in range(_INDEX_ATTEMPTS):
        try:
            lines = index.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            break
        except FileNotFoundError:
            # A server replaces its index by a new one at each rotation; in between there is none.
            if attempt == _INDEX_ATTEMPTS - 1:
                raise
            time.sleep(_INDEX_WAIT_S)
    return [index.parent / line.strip() for line in lines if re.search(r"\S", line)]

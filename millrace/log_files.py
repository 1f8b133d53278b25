"""Binary log files on disk: their order, the index file in which a server lists them, and packed ones."""

import gzip
import io
import os
import re
import time
import zlib
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from millrace.text import printable

__all__ = ["PACKING_ERRORS", "file_order", "is_log_name", "listed_files", "plain_name", "unpacked"]

PACKING_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""What reading a packed file raises where it is damaged or cut short."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PACKED: Final = (".gz", ".zst", ".zstd")

_LOG_NAME: Final = re.compile(r"[^./\\][^/\\]*\.[0-9]+")
_NAME_LIMIT: Final = 255

_INDEX_ATTEMPTS: Final = 20
_INDEX_WAIT_S: Final = 0.05


def file_order(path: Path) -> tuple[str, int, str]:
    """Give a key by which log.1000000 comes behind log.999999."""
    suffix = path.suffix[1:]
    return path.stem, int(suffix) if suffix.isdecimal() else -1, suffix


def is_log_name(name: str) -> bool:
    """Tell whether a name that comes from outside is that of a log file: base name, dot and number, no path.

    Servers name their logs so; nothing else may be written, or looked for, because a server or a log says it.
    """
    return bool(
        _LOG_NAME.fullmatch(name) and printable(name) == name and len(os.fsencode(name)) <= _NAME_LIMIT
    )


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


def plain_name(path: Path) -> Path:
    """Give the name that a packed file had before."""
    return path.with_suffix("") if path.suffix in _PACKED else path


def unpacked(raw: io.BufferedReader) -> BinaryIO:
    """Look at the first bytes of a file; give what it holds, or itself where it is not packed.

    What is given can be read forwards alone, and raises one of PACKING_ERRORS. Closing ``raw`` is enough.
    """
    head = raw.peek(len(_ZSTD))
    if head.startswith(_GZIP):
        return cast("BinaryIO", _Gunzipped(raw))
    if head.startswith(_ZSTD):
        return cast("BinaryIO", zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return raw


class _Gunzipped:
    """A gzip file; where it is cut short, what there is of it is read before that is an error."""

    def __init__(self, raw: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=raw)

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; none at the end."""
        return self._file.read1(size)

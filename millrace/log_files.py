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

PACKING_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""What reading a packed file raises where it is damaged or cut short."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SKIPPED: Final = b"\x2a\x4d\x18"
_SKIPPED_HEADER, _BLOCK_HEADER, _REPEATED = 8, 3, 1
_PACKED: Final = (".gz", ".zst", ".zstd")

_LOG_NAME: Final = re.compile(r"[^./\\][^/\\]*\.[0-9]+")
_NAME_LIMIT: Final = 255

_INDEX_ATTEMPTS: Final = 20
_INDEX_WAIT_S: Final = 0.05


def file_order(path: Path) -> tuple[str, int, str]:
    """Give a key by which log.1000000 comes after log.999999."""
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
        return cast("BinaryIO", _Unzstd(raw))
    return raw


class _Gunzipped:
    """A gzip file; where it is cut short, what there is of it is read before that is an error."""

    def __init__(self, raw: BinaryIO) -> None:
        self._file = gzip.GzipFile(fileobj=raw)

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; none at the end."""
        return self._file.read1(size)


class _Unzstd:
    """A zstd file of one frame or several."""

    def __init__(self, raw: BinaryIO) -> None:
        self._frames = _Frames(raw)
        source = cast("BinaryIO", self._frames)  # the stubs want a file; what is needed is its read method
        self._file = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; none at the end. Raises EOFError where the last frame is cut short."""
        data = self._file.read(size)
        if not data and not self._frames.whole:
            raise EOFError("compressed file ended before the end of its last frame")
        return data


class _Frames:
    """Follows the frames and blocks of zstd data while it is read, by the sizes that they say (RFC 8878).

    The library that unpacks them takes an end within a frame for the end of the data.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._head = b""
        self._skip = 0
        self._in_frame = self._checksum = False

    @property
    def whole(self) -> bool:
        """Whether what was read ends with a frame."""
        return not (self._in_frame or self._head or self._skip)

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes, packed as they are."""
        data = self._raw.read(size)
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        if skipped < len(data):
            self._follow(self._head + data[skipped:])
        return data

    def _follow(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            size = self._block(data, at) if self._in_frame else self._frame(data, at)
            if size == 0:
                break
            at += size
        self._head = data[at:]
        self._skip = max(0, at - len(data))

    def _frame(self, data: bytes, at: int) -> int:
        """Give the size of a frame's header, or of a whole frame to skip; 0 where more is needed to tell."""
        if len(data) - at < _SKIPPED_HEADER:
            return 0
        if data[at + 1 : at + 4] == _SKIPPED and data[at] >> 4 == 5:
            return _SKIPPED_HEADER + int.from_bytes(data[at + 4 : at + 8], "little")
        flags = data[at + 4]
        single, self._checksum = flags >> 5 & 1, bool(flags >> 2 & 1)
        self._in_frame = True
        return 6 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]

    def _block(self, data: bytes, at: int) -> int:
        """Give the size of a block and, after the last, of the checksum; 0 where more is needed to tell."""
        if len(data) - at < _BLOCK_HEADER:
            return 0
        head = int.from_bytes(data[at : at + _BLOCK_HEADER], "little")
        size = _BLOCK_HEADER + (1 if head >> 1 & 3 == _REPEATED else head >> 3)
        if head & 1:
            self._in_frame = False
            size += 4 * self._checksum
        return size

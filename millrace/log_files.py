"""Binary log files on disk: their order, the index file in which a server lists them, and packed ones."""

import gzip
import io
import os
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from millrace.text import printable

PACKING_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""What reading a packed file raises where it is damaged or cut short."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_SKIPPED: Final = b"\x2a\x4d\x18"
_FRAME_START, _SKIPPED_HEADER, _BLOCK_HEADER, _CHECKSUM, _REPEATED = 5, 8, 3, 4, 1
_LARGEST_BLOCK: Final = 1 << 17
_GZIP_STEP: Final = 1 << 12
_PACKED: Final = (".gz", ".zst", ".zstd")

_LOG_NAME: Final = re.compile(r"[^./\\][^/\\]*\.[0-9]+")
_NAME_LIMIT: Final = 255

_INDEX_ATTEMPTS: Final = 20
_INDEX_WAIT_S: Final = 0.05


def file_order(path: Path) -> tuple[str, int, str]:
    """Return a key by which log.1000000 comes after log.999999."""
    suffix = path.suffix[1:]
    return path.stem, int(suffix) if suffix.isdecimal() else -1, suffix


def is_log_name(name: str) -> bool:
    """Return whether a name from outside is that of a log file: base name, dot and number, no path.

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
    """Return the name that a packed file had before."""
    return path.with_suffix("") if path.suffix in _PACKED else path


def unpacked(raw: io.BufferedReader) -> BinaryIO:
    """Look at the first bytes of a file; give what it holds, or itself where it is not packed.

    What is given can be read forwards alone, and raises one of PACKING_ERRORS. Closing ``raw`` is enough.
    """
    head = raw.peek(len(_ZSTD))
    if head.startswith(_GZIP):
        file = gzip.GzipFile(fileobj=raw)
        return cast("BinaryIO", _Unpacked(lambda: file.read1(_GZIP_STEP)))
    if head.startswith(_ZSTD):
        return cast("BinaryIO", _Unpacked(_Unzstd(raw).read_block))
    return raw


class _Unpacked:
    """What a packed file holds; of one that is damaged or cut short, what is before that is read first.

    ``step`` gives the next bytes, none at the end. What it has unpacked by the time that it raises is lost,
    so it should take little at a time.
    """

    def __init__(self, step: Callable[[], bytes]) -> None:
        self._step = step
        self._rest = b""
        self._error: Exception | None = None

    def read(self, size: int) -> bytes:
        """Read ``size`` bytes, fewer only where that is all there is; none at the end."""
        parts, missing = [], size
        while missing:
            part, self._rest = self._rest or self._next(), b""
            if not part:
                break
            parts.append(part[:missing])
            self._rest = part[missing:]
            missing -= len(parts[-1])
        if not parts and self._error is not None:
            raise self._error
        return b"".join(parts)

    def _next(self) -> bytes:
        if self._error is None:
            try:
                return self._step()
            except PACKING_ERRORS as error:
                self._error = error
        return b""


class _Unzstd:
    """A zstd file of one frame or several."""

    def __init__(self, raw: BinaryIO) -> None:
        self._frames = _Frames(raw)
        source = cast("BinaryIO", self._frames)  # the stubs want a file; what is needed is its read method
        self._file = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)

    def read_block(self) -> bytes:
        """Read what a block holds; none at the end. Raises EOFError where the last frame is cut short."""
        data = self._file.read1(_LARGEST_BLOCK)
        if not data and not self._frames.whole:
            raise EOFError("compressed file ended before the end of its last frame")
        return data


class _Frames:
    """Reads zstd data block by block, by the sizes in its frame and block headers (RFC 8878).

    The library that unpacks them takes an end within a frame for the end of the data. Of what it is given at
    once it gives nothing if some of it is damaged.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._begin = self._frame
        self._left = 0
        self._checksum = self._is_cut = False

    @property
    def whole(self) -> bool:
        """Whether what was read ends with a frame."""
        return not (self._is_cut or self._left) and self._begin == self._frame

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes, packed as they are, of one block."""
        head = b"" if self._left else self._begin()
        data = self._raw.read(min(size - len(head), self._left))
        self._left -= len(data)
        return head + data

    def _head(self, size: int) -> bytes:
        head = self._raw.read(size)
        self._is_cut |= 0 < len(head) < size
        return head

    def _frame(self) -> bytes:
        """Read the head of a frame."""
        head = self._head(_FRAME_START)
        if len(head) < _FRAME_START:
            return head
        if head[1:4] == _SKIPPED and head[0] >> 4 == 5:
            head += self._raw.read(_SKIPPED_HEADER - _FRAME_START)
            self._is_cut = len(head) < _SKIPPED_HEADER
            self._left = int.from_bytes(head[4:], "little")
            return head
        flags = head[4]
        single, self._checksum = flags >> 5 & 1, bool(flags >> 2 & 1)
        self._left = 1 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
        self._begin = self._block
        return head

    def _block(self) -> bytes:
        """Read the head of a block."""
        head = self._head(_BLOCK_HEADER)
        if len(head) < _BLOCK_HEADER:
            return head
        described = int.from_bytes(head, "little")
        self._left = 1 if described >> 1 & 3 == _REPEATED else described >> 3
        if described & 1:
            self._begin = self._end if self._checksum else self._frame
        return head

    def _end(self) -> bytes:
        """Read a frame's checksum."""
        checksum = self._head(_CHECKSUM)
        if checksum:
            self._begin = self._frame
        return checksum

"""Output that waits for what comes before it: in memory while it is little, then in a temporary file."""

import base64
import io
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Final

_IN_MEMORY: Final = 4 << 20
_PIECE: Final = 1 << 20
_BASE64_PIECE: Final = 57 << 14  # whole lines


class Spool:
    """Takes bytes, and gives them back once all are there."""

    def __init__(self) -> None:
        self._file: IO[bytes] = io.BytesIO()
        self._size = 0

    def __bool__(self) -> bool:
        return self._size > 0

    def __del__(self) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        """Take bytes."""
        if self._size + len(data) > _IN_MEMORY and isinstance(self._file, io.BytesIO):
            kept = self._file.getvalue()
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is emptied or given up
            self._file.write(kept)
        self._size += self._file.write(data)

    def take(self) -> Iterator[bytes]:
        """Yield all that was written, in pieces, and begin again."""
        if not self._size:
            return
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            yield piece
        self._file.close()
        self._file = io.BytesIO()
        self._size = 0


def base64_lines_of(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Write bytes as :func:`base64.encodebytes` does, whose pieces come one after the other."""
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) - len(data) % 57
        yield base64.encodebytes(data[:whole])
        rest = data[whole:]
    if rest:
        yield base64.encodebytes(rest)


def base64_lines(data: bytes) -> Iterator[bytes]:
    """Write bytes as :func:`base64.encodebytes` does, in pieces."""
    for start in range(0, len(data), _BASE64_PIECE):
        yield base64.encodebytes(data[start : start + _BASE64_PIECE])

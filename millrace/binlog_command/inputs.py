"""Log files as the input of ``millrace binlog``: plain or compressed, from standard input, and growing.

Events are cut out as they are read (:func:`millrace.binlog.file.iter_batches`), so that memory is bounded by
the largest event.
"""

import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, cast

from millrace.binlog.encryption import LogKeys
from millrace.binlog.errors import BinlogError, InvalidValueError, TruncatedError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import RotateEvent
from millrace.binlog.file import MAGIC, is_in_use, iter_batches, iter_events
from millrace.binlog.header import HEADER_LENGTH, TYPE_OFFSET
from millrace.binlog.state import StreamState
from millrace.binlog.types import EventType
from millrace.binlog_command.records import RawEvent, unpacked_limit
from millrace.binlog_command.seeking import Seeker
from millrace.log_files import (
    PACKING_ERRORS,
    file_order,
    is_log_name,
    listed_files,
    plain_name,
    unpacked,
)
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

STANDARD_INPUT: Final = "-"

_POLL_S: Final = 0.1
_LARGEST: Final = 0xFFFFFFFF


def find_files(name: str) -> list[str]:
    """Return the log files that an argument names: one, or those of an index file or of a folder.

    A folder's files are those that its only index file lists, else all whose names end with a number, or
    with that and the ending of a compressed file.
    """
    path = Path(name)
    if name == STANDARD_INPUT:
        return [name]
    if path.is_dir():
        indexes = sorted(path.glob("*.index"))
        if len(indexes) == 1:
            return find_files(str(indexes[0]))
        numbered = [found for found in path.iterdir() if plain_name(found).suffix[1:].isdecimal()]
        if indexes or not numbered:
            there = ", ".join(index.name for index in indexes) or "no log file, nor an index"
            raise UserError(f"{name} is a folder with {there}: name the files to read", ExitCode.SETTINGS)
        return [str(found) for found in sorted(numbered, key=lambda found: file_order(plain_name(found)))]
    if path.suffix != ".index":
        return [name]
    try:
        return [str(listed) for listed in listed_files(path)]
    except OSError as error:
        raise _unreadable(name, error) from error


class FileInput:
    """Reads log files one after the other."""

    def __init__(
        self,
        names: list[str],
        *,
        follow: bool = False,
        note: Callable[[str], None] = lambda _: None,
        accept_in_use: bool = True,
        keys: LogKeys | None = None,
        max_event_size: int | None = None,
        seeker: Seeker | None = None,
    ) -> None:
        """Read ``names`` in order; with ``follow``, wait at the end of the last for what is written to it.

        ``note`` is told what is worth knowing about a file. With ``accept_in_use`` unset, a file that was
        not closed by its server is an error. ``keys`` open encrypted logs. Events larger than
        ``max_event_size`` are an error; where it is None, in compressed files those that
        :func:`unpacked_limit` does not allow. ``seeker`` tells what need not be read of plain files.
        """
        self.names = list(names)
        self.total_bytes = sum(map(_size_of, names))
        self._follow = follow
        self._note = note
        self._accept_in_use = accept_in_use
        self._keys = keys
        self._max_event_size = max_event_size
        self._seeker = seeker
        self._finished_bytes = 0
        self._raw: BinaryIO | None = None
        self._successor: str | None = None

    @property
    def last_path(self) -> str:
        """The last of the files, as far as is known by now."""
        return self.names[-1]

    @property
    def done_bytes(self) -> int:
        """How much of :attr:`total_bytes` has been read."""
        return self._finished_bytes + (self._raw.tell() if self._raw is not None else 0)

    def logs(self) -> Iterator[Iterator[list[RawEvent]]]:
        """Yield the events of each file; with one that cannot be read to its end, BinlogError is raised."""
        for name in self.names[:-1]:
            yield self._events(name, follow=False)
        following: str | None = self.names[-1]
        while following is not None:
            self.names[-1] = following
            yield self._events(following, follow=self._follow)
            following = self._successor

    def _events(self, name: str, *, follow: bool) -> Iterator[list[RawEvent]]:
        self._successor = None
        file = "stdin" if name == STANDARD_INPUT else Path(name).name
        try:
            with _opened(name) as raw:
                seekable = raw.seekable()
                self._raw = raw if seekable else None
                growing = _Growing(name, raw) if follow and seekable else None
                stream = unpacked(raw) if growing is None else cast("BinaryIO", growing)
                limit = self._max_event_size
                is_unpacked = stream not in (raw, growing)
                if limit is None:
                    limit = unpacked_limit(_size_of(name)) if is_unpacked else _LARGEST
                try:
                    seekable = seekable and stream is raw
                    for batch in self._cut(stream, name, file, limit, seekable=seekable):
                        if batch[0][0] == len(MAGIC) and growing is None:
                            self._look_at_head(name, batch[0][1])
                        yield [RawEvent(name, file, position, data, is_unpacked) for position, data in batch]
                        if growing is not None:
                            growing.look_for_successor(batch)
                finally:
                    self._finished_bytes = self.done_bytes
                    self._raw = None
                self._successor = None if growing is None else growing.successor
        except PACKING_ERRORS as error:
            raise TruncatedError(f"the file cannot be unpacked further: {error}", log_file=name) from error
        except OSError as error:
            raise _unreadable(name, error) from error

    def _cut(
        self, stream: BinaryIO, name: str, file: str, limit: int, *, seekable: bool
    ) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the events of a file: those of its head, and those from where the seeker says."""
        position = 0
        if seekable and self._seeker is not None and self._keys is None:
            for first in islice(iter_events(stream, name, max_size=limit), 1):
                yield [first]
                position = self._seeker.find(stream, file, first[1], limit)
                after = first[0] + len(first[1])
                stream.seek(after)
                head = stream.read(HEADER_LENGTH)
                if position > after and head[TYPE_OFFSET] == EventType.PREVIOUS_GTIDS_LOG_EVENT:
                    stream.seek(after)
                    # mysqlbinlog reads it as well, and says so: see placed_head().
                    yield from ([one] for one in islice(iter_events(stream, name, position=after), 1))
            stream.seek(position)
        yield from iter_batches(stream, name, position=position, keys=self._keys, max_size=limit)

    def _look_at_head(self, name: str, format_description: bytes) -> None:
        if not is_in_use(format_description):
            return
        if not self._accept_in_use:
            raise InvalidValueError("the log is in use, or was not closed properly").at(name, len(MAGIC))
        self._note(f"{name}: the log is in use, or was not closed properly")


def _unreadable(name: str, error: OSError) -> UserError:
    return UserError(f"{name} cannot be read: {error.strerror or error}", ExitCode.SOURCE)


def _size_of(name: str) -> int:
    try:
        status = os.fstat(0) if name == STANDARD_INPUT else Path(name).stat()
    except OSError:
        return 0  # reading it will say what is wrong
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _opened(name: str) -> io.BufferedReader:
    if name == STANDARD_INPUT:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    return Path(name).open("rb")


class _Growing:
    """A log file that its server may still be writing: reading waits for more, until the log is complete.

    That is when the file that follows is there: the one that ROTATE names (:attr:`successor`), else, where a
    server was stopped, the one with the next number.
    """

    def __init__(self, name: str, raw: BinaryIO) -> None:
        self._path = Path(name)
        self._raw = raw
        self.successor: str | None = None

    def look_for_successor(self, batch: list[tuple[int, bytes]]) -> None:
        """Take note of where the log continues, if one of these events says so."""
        for _, data in batch:
            if data[TYPE_OFFSET] == EventType.ROTATE_EVENT:
                self.successor = _rotated_to(self._path, data)

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes, at least one; none once the log is complete."""
        data = self._raw.read(size)
        while len(data) < min(size, len(MAGIC)):
            complete = self._is_complete()
            # Looked at once more after the decision: what was written in between must not be lost.
            more = self._raw.read(size - len(data))
            data += more
            if complete and not more:
                break
            if not more:
                time.sleep(_POLL_S)
        return data

    def _is_complete(self) -> bool:
        if self.successor is None:
            following = _numbered_successor(self._path)
            if following is not None and following.exists():
                self.successor = str(following)
        # A copy under another name may end with a ROTATE that names the copy.
        return self.successor not in (None, str(self._path)) and Path(self.successor or "").exists()


def _rotated_to(path: Path, rotate: bytes) -> str | None:
    """Return the path of the file with which the log continues, which is beside it."""
    try:
        event = decode_event(rotate, StreamState(), verify=False).event
    except BinlogError:
        return None
    assert isinstance(event, RotateEvent)
    following = Path(event.new_log_ident).name  # relay logs name the next one with its folder
    return str(path.parent / following) if is_log_name(following) else None


def _numbered_successor(path: Path) -> Path | None:
    number = path.suffix[1:]
    return path.with_suffix(f".{int(number) + 1:0{len(number)}d}") if number.isdecimal() else None

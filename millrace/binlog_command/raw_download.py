"""``--raw``: log files of a server, byte for byte, into files here; a later run continues where one ended.

A file begins with the magic bytes, then come the events as they lie in the server's file, checksums included.
The server clears one bit on the way: the IN_USE flag in the format description of the log that it is writing;
in a file that is complete it is clear there as well.

Files are completed one after the other: of those without a gap the last is the one to continue with, and a
run may be killed at any moment. Nothing that exists is ever changed; it is appended to, and only where it is
a copy of the same log: it begins with the server's format description, the server sends its last whole
event once more, and what comes after that begins with what is there of it. The names come from the server
and are names of logs (:func:`~millrace.log_files.is_log_name`), never paths; links are not followed.
"""

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from millrace.binlog.file import MAGIC
from millrace.binlog.header import HEADER_LENGTH
from millrace.log_files import is_log_name
from millrace.mysql.identity import read_head
from millrace.mysql.server_log import ServerAddress, ServerLog
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

_BLOCK: Final = 1 << 20
_MODE: Final = 0o640
"""Whoever may read a log reads the tables."""


class RawDownload:
    """Copies log files of a server."""

    def __init__(
        self,
        address: ServerAddress,
        prefix: str,
        *,
        to_last_log: bool = False,
        follow: bool = False,
        note: Callable[[str], None] = lambda _: None,
        server_id: int | None = None,
    ) -> None:
        """Copy the log that ``address`` names, or all.

        ``prefix`` is put in front of the names; where it is a folder the files are in it. With
        ``to_last_log`` the logs after the named one are copied too, with ``follow`` also what the server
        writes later. ``note`` is told of each file that is begun, and of lost connections.
        """
        self._address = address
        self._prefix = prefix
        self._only_file = None if to_last_log or follow else address.log_file
        self._log = ServerLog(address.mysql, follow=follow, note=note, server_id=server_id)
        self._note = note
        self.total_bytes = self.done_bytes = 0
        self._follow = follow
        self._copy: _Copy | None = None
        self._name = ""

    def copy(self) -> Iterator[None]:
        """Copy, piece by piece; raises SourceError, and UserError where a file here is not ours.

        ``done_bytes`` of ``total_bytes``, as far as these are known at the beginning, are here by then.
        """
        name, position = self._place()
        try:
            for file, start, piece in self._log.pieces(name, position):
                if self._only_file is not None and file != self._only_file:
                    break
                if piece.first:
                    self._go_to(file, start)
                assert self._copy is not None
                self._copy.take(piece.data)
                if self._follow and piece.last:
                    self._copy.flush()
                self.done_bytes += len(piece.data)
                yield
            self._finish()
        finally:
            if self._copy is not None:
                self._copy.close()

    def path(self, file: str) -> Path:
        """Where a log file of the server is copied to; raises UserError for what is no name of one."""
        if not is_log_name(file):
            raise UserError(
                f"{self._address} says {file!r} where a log's name is expected, such as binlog.000042: "
                "nothing is written under that name",
                ExitCode.SOURCE,
            )
        if self._prefix.endswith("/") or Path(self._prefix).is_dir():
            return Path(self._prefix) / file
        return Path(self._prefix + file)

    def _place(self) -> tuple[str, int]:
        """Return the file and the position to continue at."""
        sizes = {log.name: log.size for log in self._log.binary_logs()}
        names = list(sizes)
        first = self._address.log_file or names[0]
        if first not in names:
            raise UserError(
                f"{self._address} has no log {first}; it has {names[0]} to {names[-1]}", ExitCode.SOURCE
            )
        wanted = names[names.index(first) :] if self._only_file is None else [first]
        self.total_bytes = sum(sizes[name] for name in wanted)
        here = list(itertools.takewhile(lambda name: os.path.lexists(self.path(name)), wanted))
        if not here:
            return first, len(MAGIC)
        position = self._last_event(here[-1])
        self.done_bytes = sum(sizes[name] for name in here[:-1]) + position
        return here[-1], position

    def _last_event(self, name: str) -> int:
        """Return where the last whole event of a copy starts; check that its log is the server's."""
        path = self.path(name)
        with _opened(path, create=False) as file:
            position = last_event(file)
            file.seek(len(MAGIC))
            head = file.read(_BLOCK)
        if position > len(MAGIC):
            theirs = read_head(self._address.mysql, self._log.replica, name).format_description
            if head[: len(theirs)] != theirs:
                raise _foreign(path, name, len(MAGIC))
        return position

    def _go_to(self, file: str, position: int) -> None:
        """Stand at the place of an event."""
        if file != self._name or self._copy is None:
            self._finish()
            path = self.path(file)
            self._copy = _Copy(path, file)
            self._name = file
            self._note(f"{path}: from {position} on")
        self._copy.go_to(position)

    def _finish(self) -> None:
        if self._copy is not None:
            copy, self._copy = self._copy, None
            copy.finish()


class _Copy:
    """A copy of a log: what it holds is compared with what comes, and what it lacks is appended."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._file = _opened(path, create=True)
        self._size = self._file.seek(0, os.SEEK_END)
        self._at = 0
        try:
            self.take(MAGIC)
            self.flush()
        except BaseException:
            self.close()
            raise

    def go_to(self, position: int) -> None:
        """Stand where an event starts: in what is there, or at its end."""
        if position > self._size:
            raise UserError(
                f"the server continues at {position} of {self._name}, where the copy ends at {self._size} "
                f"({self._path}): it leaves something out",
                ExitCode.SOURCE,
            )
        self._at = position

    def take(self, data: bytes) -> None:
        """Take what stands at this place; raises UserError where the file has something else there."""
        there = min(max(self._size - self._at, 0), len(data))
        if there:
            self._file.seek(self._at)
            if self._file.read(there) != data[:there]:
                raise _foreign(self._path, self._name, self._at)
            self._file.seek(0, os.SEEK_END)
        self._file.write(data[there:])
        self._at += len(data)
        self._size = max(self._size, self._at)

    def flush(self) -> None:
        """Have the file hold all that was taken."""
        self._file.flush()

    def finish(self) -> None:
        """End where the server's log ends; raises UserError where the file holds more."""
        self.close()
        if self._at < self._size:
            raise _foreign(self._path, self._name, self._at)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _foreign(path: Path, name: str, position: int) -> UserError:
    return UserError(
        f"{path} is of another log than the server's {name}, or damaged: it differs at {position} or after; "
        "it stays as it is, move it away to start over",
        ExitCode.DATA,
    )


def _opened(path: Path, *, create: bool) -> BinaryIO:
    """Open a file to read and append; raises UserError for what is no file, or a link to one."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not hold us up
    try:
        if path.is_symlink():
            raise UserError(f"{path} is a symbolic link, which is not followed", ExitCode.SOURCE)
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags | create * os.O_CREAT, _MODE)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}", ExitCode.SOURCE) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} is not a file", ExitCode.SOURCE)
    return os.fdopen(descriptor, "r+b")


def last_event(file: BinaryIO) -> int:
    """Return where the last whole event of a log file starts, where the first would where there is none."""
    size = file.seek(0, os.SEEK_END)
    at = last = len(MAGIC)
    while at + HEADER_LENGTH <= size:
        file.seek(at)
        length = int.from_bytes(file.read(HEADER_LENGTH)[9:13], "little")
        if length < HEADER_LENGTH or at + length > size:
            break
        at, last = at + length, at
    return last

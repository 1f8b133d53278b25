"""``--raw``: log files of a server, byte for byte, into files here; a later run goes on where one ended.

A file begins with the magic bytes, then come the events as they lie in the server's file, checksums included.
The server clears one bit on the way: the IN_USE flag in the format description of the log that it is writing;
in a file that is complete it is clear there as well.

What is there already is taken up to its last whole event, so that a run may be killed at any moment. Files
are completed one after the other: of those without a gap the last is the one to go on with.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from millrace.binlog.file import MAGIC
from millrace.binlog.header import HEADER_LENGTH
from millrace.binlog_command.server import ServerAddress, ServerLog
from millrace.mysql.identity import read_head
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

__all__ = ["RawDownload", "end_of_events"]

_BLOCK: Final = 1 << 20


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
    ) -> None:
        """Copy the log that ``address`` names, or all.

        ``prefix`` is put in front of the names; where it is a folder the files are in it. With
        ``to_last_log`` the logs behind the named one are copied too, with ``follow`` also what the server
        writes later. ``note`` is told of each file that is begun, and of lost connections.
        """
        self._address = address
        self._prefix = prefix
        self._only_file = None if to_last_log or follow else address.log_file
        self._log = ServerLog(address.mysql, follow=follow, note=note)
        self._note = note
        self.total_bytes = self.done_bytes = 0
        self._follow = follow
        self._file: BinaryIO | None = None
        self._name = ""
        self._at = 0

    def copy(self) -> Iterator[None]:
        """Copy, piece by piece; raises SourceError, and UserError where a file here is of another log.

        ``done_bytes`` of ``total_bytes``, as far as these are known at the beginning, are here by then.
        """
        name, position = self._place()
        try:
            for file, start, piece in self._log.pieces(name, position):
                if self._only_file is not None and file != self._only_file:
                    break
                if piece.first:
                    self._go_to(file, start)
                assert self._file is not None
                self._file.write(piece.data)
                self._at += len(piece.data)
                if self._follow and piece.last:
                    self._file.flush()
                self.done_bytes += len(piece.data)
                yield
        finally:
            self._close()

    def path(self, file: str) -> Path:
        """Where a log file of the server is copied to."""
        if self._prefix.endswith("/") or Path(self._prefix).is_dir():
            return Path(self._prefix) / file
        return Path(self._prefix + file)

    def _place(self) -> tuple[str, int]:
        """Find out with which file, and where in it, to go on."""
        sizes = {log.name: log.size for log in self._log.binary_logs()}
        names = list(sizes)
        first = self._address.log_file or names[0]
        if first not in names:
            raise UserError(f"{self._address} has no log {first}; it has {', '.join(names)}", ExitCode.SOURCE)
        wanted = names[names.index(first) :] if self._only_file is None else [first]
        self.total_bytes = sum(sizes[name] for name in wanted)
        here = list(itertools.takewhile(lambda name: self.path(name).exists(), wanted))
        if not here:
            return first, len(MAGIC)
        end = self._end_of(here[-1])
        self.done_bytes = sum(sizes[name] for name in here[:-1]) + end
        return here[-1], end

    def _end_of(self, name: str) -> int:
        """Give the end of what is here of a log, having made sure that it is the server's log."""
        path = self.path(name)
        try:
            with path.open("rb") as file:
                end = end_of_events(file)
                file.seek(len(MAGIC))
                head = file.read(_BLOCK)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}", ExitCode.SOURCE) from error
        if end == len(MAGIC):
            return end
        theirs = read_head(self._address.mysql, self._log.replica, name).format_description
        if head[: len(theirs)] != theirs:
            raise UserError(
                f"{path} is of another log than {name} of {self._address}: move it away to begin anew",
                ExitCode.DATA,
            )
        return end

    def _go_to(self, file: str, position: int) -> None:
        """Stand at the place of an event, in a file that ends there."""
        if file != self._name:
            self._close()
            path = self.path(file)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("r+b" if path.exists() else "w+b")
            except OSError as error:
                raise UserError(f"{path} cannot be written: {error.strerror}", ExitCode.SOURCE) from error
            self._name = file
            self._note(f"{path}: from {position} on")
            self._at = -1
        if self._at == position:
            return
        # The beginning of a file, or an event that comes again because the connection was lost in it.
        assert self._file is not None
        self._file.seek(0)
        self._file.write(MAGIC)
        self._file.seek(position)
        self._file.truncate()
        self._at = position

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def end_of_events(file: BinaryIO) -> int:
    """Give the offset behind the last whole event of a log file, that of the first where there is none."""
    size = file.seek(0, 2)
    at = len(MAGIC)
    while at + HEADER_LENGTH <= size:
        file.seek(at)
        length = int.from_bytes(file.read(HEADER_LENGTH)[9:13], "little")
        if length < HEADER_LENGTH or at + length > size:
            break
        at += length
    return at

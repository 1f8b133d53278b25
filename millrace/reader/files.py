"""Binary log files, or relay logs, as the source of events; followed, if wanted, while they grow.

In a file an event starts where it starts: its offset is its position, whatever its header says. Files may be
packed with gzip or zstd: positions and names are those of the log inside.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from millrace.avro.service_state import ReaderState
from millrace.binlog.errors import BinlogError, TruncatedError
from millrace.binlog.file import iter_events
from millrace.binlog.header import HEADER_LENGTH
from millrace.contract import log_number
from millrace.log_files import PACKING_ERRORS, file_order, listed_files, plain_name, unpacked
from millrace.mysql.errors import GapError, LinkLostError, LogMismatchError, PurgedError, RefusedError
from millrace.mysql.identity import LogHead
from millrace.mysql.packets import HEAD_SIZE, EventPiece
from millrace.reader.log_identity import difference_of
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.settings import ReaderSettings
from millrace.reader.stage import RawStage
from millrace.reader.start_position import (
    NoPlaceError,
    PlaceCheck,
    StartPositionFinder,
    moved_on_purpose,
    seconds_of,
)
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger

if TYPE_CHECKING:
    import io

_LOG = get_logger(__name__)

_MAGIC: Final = b"\xfebin"
_OTHER_KINDS: Final = {
    b"\xfdbin": "it is encrypted; read it from its server, which decrypts it",
}
_BLOCK: Final = 1 << 20
_MASK: Final = 0xFFFFFFFF
_V1_START_SIZE: Final = 69
_START_SIZE: Final = len(_MAGIC) + 13


class EndOfFiles(Exception):  # noqa: N818 - no error
    """All files have been read to their ends, and nobody asked to wait for more."""


class FileTracker:
    """Offsets in a file; ``next_position`` in the events is compared and counted, no more."""

    def __init__(self, metrics: ReaderMetrics) -> None:
        self.log_file = ""
        self.position = len(_MAGIC)
        self._metrics = metrics

    def place(self, type_code: int, event_size: int, next_position: int, flags: int, data: bytes) -> int:
        """Return the offset of the event that comes next."""
        del type_code, flags, data
        start = self.position
        self.position = start + event_size
        if next_position != self.position & _MASK:
            self._metrics.position_mismatches.inc()
        return start


class FileSource:
    """Reads files one after the other.

    While it looks for its place it calls ``beat`` again and again, which shows a sign of life, and raises
    where the reader was asked to stop.
    """

    def __init__(
        self, settings: ReaderSettings, stage: RawStage, metrics: ReaderMetrics, beat: Callable[[], None]
    ) -> None:
        self._patterns = [part.strip() for part in settings.files.split(",") if part.strip()]
        self._start_at = settings.start
        self._on_gap = settings.on_gap
        self._follow = settings.follow
        self._stage = stage
        self._beat = beat
        self._tracker = FileTracker(metrics)
        self._metrics = metrics
        self._raw: io.BufferedReader | None = None
        self._file: BinaryIO | None = None
        self._path = Path()
        self._rest = b""
        self._part_left = 0
        self._part_size = 0
        self._jump = 0
        self._land = 0

    def __str__(self) -> str:
        return ", ".join(self._patterns)

    def open(self) -> None:
        """Find the file and offset to continue at."""
        state = self._stage.state()
        path, position = self._where()
        self._begin(path, None if state is None else moved_on_purpose(state))
        self._jump = position
        _LOG.info("reading", file=str(path), position=max(position, len(_MAGIC)))

    def examine(self) -> None:
        """Look whether the files may be read, and have the place to continue at."""
        self._where()

    def _where(self) -> tuple[Path, int]:
        paths = self._paths()
        if not paths:
            raise RefusedError(f"no file matches MILLRACE_FILES ({self})")
        state = self._stage.state()
        if state is not None and state.reset is None:
            path = self._named(paths, state.log_file)
            _compare(path, state)
            return path, state.position
        return self._place(paths, self._start_at if state is None else state.reset or "")

    def _begin(self, path: Path, gap: str | None) -> None:
        """Open the file with which a session begins; in a new epoch where ``gap`` says what is missing."""
        self._tracker = FileTracker(self._metrics)  # the session before ends where the other one is
        self._open_file(path)
        self._stage.begin_session(self._tracker, changed=gap, gap=gap is not None)
        self._stage.announce(int(time.time() * 1000))

    def _place(self, paths: Sequence[Path], start: str) -> tuple[Path, int]:
        """Find the file and offset that ``start`` names."""
        if start == "earliest":
            return paths[0], 0
        if start == "latest":
            return _end_of(paths, self._beat)
        if start.startswith("time:"):
            return _place_of(paths, seconds_of(start.removeprefix("time:")), self._beat)
        name, _, number = start.rpartition(":")
        path = self._named(paths, name)
        _check_place(path, int(number), self._beat)
        return path, int(number)

    def read(self, timeout_s: float) -> list[EventPiece]:
        """Return the next events; none when the last file has no more for now and is followed.

        Raises :class:`EndOfFiles` at the end of all, :class:`GapError` for what cannot be an event.
        """
        assert self._file is not None
        if self._land:
            self._tracker.position, self._land = self._land, 0
        block = self._read(HEAD_SIZE if self._jump else _BLOCK)
        if block:
            pieces = self._split(self._rest + block if self._rest else block)
            if self._jump and pieces:
                return self._head(pieces)
            return pieces
        if self._next_file():
            return []
        if not self._follow:
            self._note_cut()
            raise EndOfFiles
        time.sleep(min(timeout_s, 0.2))
        return []

    def settle(self) -> None:
        """Files wait for nothing."""

    def close(self) -> None:
        """Close the file."""
        if self._raw is not None:
            self._raw.close()
        self._raw = self._file = None

    def _read(self, size: int) -> bytes:
        assert self._file is not None
        try:
            return self._file.read(size)
        except PACKING_ERRORS as error:
            raise GapError(
                f"{self._path} cannot be unpacked after {self._tracker.position} of the log in it: {error}"
            ) from error
        except OSError as error:
            raise RefusedError(f"{self._path} cannot be read: {error.strerror}") from error

    def _go_to(self, position: int) -> None:
        """Go to an offset of the log in the file."""
        assert self._raw is not None
        if self._file is self._raw:
            left = position - os.fstat(self._raw.fileno()).st_size
            self._raw.seek(position)
        else:
            self._raw.seek(0)
            self._file = unpacked(self._raw)
            left = position
            while left and (passed := len(self._read(min(left, _BLOCK)))):
                self._beat()
                left -= passed
        if left > 0:
            raise LogMismatchError(
                f"{self._path} ends at {position - left}, before {position}, where it is to be read on: it "
                "is not the log that was read so far, or lost its end. Bring that back, read this one under "
                "another MILLRACE_SOURCE, or move the source with 'millrace source reset'"
            )

    def _head(self, pieces: list[EventPiece]) -> list[EventPiece]:
        """Return the format description alone, and resume where we were told to."""
        first = pieces[0]
        position, self._jump = self._jump, 0
        self._rest, self._part_left = b"", 0
        if position > len(_MAGIC):
            self._go_to(position)
            self._land = position
            return [first]
        self._go_to(len(_MAGIC))
        return []

    def _split(self, data: bytes) -> list[EventPiece]:
        """Cut a block into events; keep what is not whole, unless it never would be in a block."""
        pieces: list[EventPiece] = []
        at, end = 0, len(data)
        # The position is already after an event whose rest this is.
        counted = min(self._part_left, end)
        while at < end:
            if self._part_left:
                size = min(self._part_left, end - at)
                self._part_left -= size
                pieces.append(EventPiece(data[at : at + size], False, not self._part_left, self._part_size))
                at += size
                continue
            if end - at < HEADER_LENGTH:
                break
            size = int.from_bytes(data[at + 9 : at + 13], "little")
            if size < HEADER_LENGTH:
                place = self._tracker.position - counted + at
                raise GapError(
                    f"{self._path} at {place}: an event of {size} bytes cannot be, its header has 19: the "
                    "file is damaged there"
                )
            if size <= end - at:
                pieces.append(EventPiece(data[at : at + size], True, True, size))
                at += size
            elif size <= _BLOCK or end - at < HEAD_SIZE:
                break
            else:
                pieces.append(EventPiece(data[at:], True, False, size))
                self._part_left, self._part_size = size - (end - at), size
                at = end
        self._rest = data[at:]
        return pieces

    # -- which files --------------------------------------------------------------------------------

    def _paths(self) -> list[Path]:
        """Return the files, in their order; an index file stands for those that it lists."""
        paths: list[Path] = []
        for pattern in self._patterns:
            base = Path(pattern)
            found = (
                sorted(base.parent.glob(base.name), key=lambda path: file_order(plain_name(path)))
                if not {*"*?["}.isdisjoint(base.name)
                else [base]
            )
            for path in found:
                paths += _listed(path) if path.suffix == ".index" else [path]
        names = [_log_name(path) for path in paths]
        for name in names:
            if names.count(name) > 1:
                raise RefusedError(
                    f"several files are called {name}, and keys of records hold the name alone: "
                    "read them as sources of their own"
                )
        return paths

    def _named(self, paths: Sequence[Path], name: str) -> Path:
        for path in paths:
            if _log_name(path) == _log_name(Path(name)):
                return path
        raise RefusedError(
            f"{name}, where reading is to continue, is not among the files of MILLRACE_FILES ({self}); "
            "bring it back"
        )

    def _next_file(self) -> bool:
        """Go to the next file, once nothing more can come in this one; return whether there is one."""
        paths = self._paths() if self._follow else self._known
        names, name = [_log_name(path) for path in paths], _log_name(self._path)
        assert self._raw is not None
        if (
            self._follow
            and self._path.exists()
            and not os.path.samestat(self._path.stat(), os.fstat(self._raw.fileno()))
        ):
            raise LinkLostError(f"{self._path} was replaced while it was read")
        at = names.index(name) + 1 if name in names else _after(name, names)
        if at >= len(paths):
            return False
        if self._follow and self._path.exists() and self._raw.tell() < self._path.stat().st_size:
            return True
        if self._follow and not paths[at].exists():
            return False
        gap = _missing_between(name, names[at])
        if gap is not None and self._on_gap != "continue":
            raise PurgedError(f"{gap}. Bring that back, or continue without it with MILLRACE_ON_GAP=continue")
        self._note_cut()
        if gap is None:
            self._open_file(paths[at])
        else:
            self._begin(paths[at], gap)
        return True

    def _note_cut(self) -> None:
        """Report bytes at the end of a file that are no whole event: a server crashed, or a copy was cut."""
        if self._part_left:
            raise GapError(f"{self._path} ends in the middle of an event of {self._part_size} bytes")
        if self._rest:
            self._metrics.cut_events.inc()
            _LOG.error(
                "the file ends in the middle of an event",
                file=str(self._path),
                position=self._tracker.position,
                bytes_left=len(self._rest),
            )
        self._rest = b""

    def _open_file(self, path: Path) -> None:
        self.close()
        try:
            self._raw = path.open("rb")
            self._file = unpacked(self._raw)
        except OSError as error:
            raise RefusedError(f"{path} cannot be read: {error.strerror}") from error
        self._path = path
        start = b""
        try:
            while len(start) < _START_SIZE and (more := self._read(_START_SIZE - len(start))):
                start += more
        except GapError as error:
            self.close()
            raise RefusedError(str(error)) from error
        magic, start = start[: len(_MAGIC)], start[len(_MAGIC) :]
        if magic != _MAGIC:
            self.close()
            otherwise = f"it starts with {magic.hex() or 'nothing'}"
            kind = next((text for mark, text in _OTHER_KINDS.items() if magic.startswith(mark)), otherwise)
            raise RefusedError(f"{path} is not a binary log that can be read: {kind}")
        if start[4:5] == b"\x01" and int.from_bytes(start[9:13], "little") == _V1_START_SIZE:
            self.close()
            raise RefusedError(f"{path} was written by MySQL 3.23, whose format is not read")
        self._go_to(len(_MAGIC))
        self._known = self._paths()
        self._rest, self._part_left = b"", 0
        self._tracker.log_file, self._tracker.position = _log_name(path), len(_MAGIC)


def _log_name(path: Path) -> str:
    """Return the name of the log in a file: what its server called it."""
    return plain_name(path).name


def _after(name: str, names: Sequence[str]) -> int:
    """Find the first of some logs that follows one which is not there any more; their count if none does."""
    base, number = log_number(name)
    later = (
        at for at, each in enumerate(names) if log_number(each)[0] == base and log_number(each)[1] > number
    )
    return next(later, len(names))


def _missing_between(name: str, following: str) -> str | None:
    """Say which files, by their numbers, lie between two logs of the same server."""
    (base, number), (other, next_number) = log_number(name), log_number(following)
    if base != other or next_number <= number + 1:
        return None
    first, last = (base + f"{each}".zfill(len(name) - len(base)) for each in (number + 1, next_number - 1))
    missing = f"{first} is" if first == last else f"{first} to {last} are"
    return f"{missing} missing: what lies between {name} and {following} is not there to be read"


def _compare(path: Path, state: ReaderState) -> None:
    """Raise where a file has not the head of the one that was read so far."""
    if state.identity is None:
        return
    try:
        with path.open("rb") as raw:
            head = [data for _, data in islice(iter_events(unpacked(raw), str(path)), 2)]
    except (BinlogError, *PACKING_ERRORS, OSError) as error:
        raise _unreadable(path, error) from error
    difference = difference_of(state, LogHead(head[0], (*head, None)[1])) if head else "it is empty"
    if difference is not None:
        raise LogMismatchError(
            f"{path} is not the log that was read so far up to {state.place}: {difference}. Bring that back, "
            "or read this one under another MILLRACE_SOURCE"
        )


def _listed(index: Path) -> list[Path]:
    """Return the files that an index lists."""
    try:
        return listed_files(index)
    except OSError as error:
        raise RefusedError(f"{index} cannot be read: {error.strerror}") from error


def _end_of(paths: Sequence[Path], beat: Callable[[], None]) -> tuple[Path, int]:
    """Return the end of the last file, or where a transaction begins that is not whole there."""
    return _find(paths, len(paths) - 1, None, beat)


def _check_place(path: Path, position: int, beat: Callable[[], None]) -> None:
    """Raise UserError where no event of a file begins or ends at a position."""
    check = PlaceCheck(max(position, len(_MAGIC)))
    try:
        with path.open("rb") as raw:
            for start, data in iter_events(unpacked(raw), str(path)):
                beat()
                if check.passes(start, len(data)):
                    break
    except TruncatedError:
        pass  # by a crash, or it is being written
    except (BinlogError, *PACKING_ERRORS, OSError) as error:
        raise _unreadable(path, error) from error
    try:
        check.found()
    except NoPlaceError as error:
        raise UserError(
            f"the place to start at is wrong: {path.name}:{position}: {error}", ExitCode.SETTINGS
        ) from None


def _place_of(paths: Sequence[Path], since: int, beat: Callable[[], None]) -> tuple[Path, int]:
    """Find the first transaction that ended at a time or later, else the end of the last file."""
    # The last file that was begun before that time: files before it were complete by then.
    index = max(0, bisect_left(paths, since, key=_begun) - 1)
    return _find(paths, index, since, beat)


def _find(paths: Sequence[Path], index: int, since: int | None, beat: Callable[[], None]) -> tuple[Path, int]:
    """Walk from a file on, or from as many before it as the transaction that is found began in."""
    while True:
        finder = StartPositionFinder(since)
        found = _walk(paths[index:], finder, beat)
        if not finder.begun_before or not index:
            return found
        index -= 1


def _begun(path: Path) -> int:
    """Return when a file was begun, in seconds since 1970."""
    try:
        with path.open("rb") as raw:
            for _, data in iter_events(unpacked(raw), str(path)):
                return int.from_bytes(data[:4], "little")
    except (BinlogError, *PACKING_ERRORS, OSError) as error:
        raise _unreadable(path, error) from error
    raise RefusedError(f"{path} has no events")


def _walk(paths: Sequence[Path], finder: StartPositionFinder, beat: Callable[[], None]) -> tuple[Path, int]:
    """Walk over the events of files, in their order, until a place is found; else return the end of all."""
    end = 0
    for path in paths:
        end = len(_MAGIC)
        try:
            with path.open("rb") as raw:
                for position, data in iter_events(unpacked(raw), str(path)):
                    beat()
                    place = finder.feed(_log_name(path), position, data)
                    if place is not None:
                        return _found(paths, place.log_file, place.position)
                    end = position + len(data)
        except TruncatedError:
            continue  # by a crash, or it is being written
        except (BinlogError, *PACKING_ERRORS, OSError) as error:
            raise _unreadable(path, error) from error
    return (paths[-1], end) if finder.open_at is None else _found(paths, *finder.open_at)


def _found(paths: Sequence[Path], log_file: str, position: int) -> tuple[Path, int]:
    return next(path for path in paths if _log_name(path) == log_file), position


def _unreadable(path: Path, error: Exception) -> RefusedError:
    reason = getattr(error, "strerror", None) or error
    return RefusedError(f"{path} cannot be read: {reason}")

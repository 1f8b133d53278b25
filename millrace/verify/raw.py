"""Compares the raw topic with the server's own log, byte for byte.

Both sides are runs of bytes with the file and the position at which they stand; the first byte or place in
which they differ is told. Not compared is what is in no file (artificial events, markers), and one bit: the
flag IN_USE in a file's format description, which the server clears when it closes a file or sends it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from millrace.binlog.file import MAGIC
from millrace.contract import HEADER_ARTIFICIAL, HEADER_CHUNK, HEADER_EXCLUDED, HEADER_MARKER, RawKey, Topics
from millrace.kafka.read import bytes_of, read_topic
from millrace.log_files import file_order
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings

_BLOCK: Final = 1024 * 1024
_FLAGS_POSITION: Final = len(MAGIC) + 17
_IN_USE: Final = 1


class LogBytes(NamedTuple):
    """Bytes of a log, and where they stand; ``event`` is where the event starts, where that is known.

    Those of an ``excluded`` event are zeros in place of the server's.
    """

    file: str
    position: int
    data: bytes
    event: int | None = None
    excluded: bool = False

    def after(self, size: int) -> "LogBytes":
        """Return what is left after ``size`` bytes."""
        return self._replace(position=self.position + size, data=self.data[size:])

    @property
    def place(self) -> str:
        """The place in words."""
        return f"{self.file} position {self.position}"


@dataclass(slots=True)
class RawComparison:
    """What was compared, and the first difference in words, None where there is none."""

    bytes: int = 0
    excluded: int = 0
    """Bytes that ``MILLRACE_TOPICS_RAW_EXCLUDE`` keeps out of the topic, which were not compared."""
    files: set[str] = field(default_factory=set)
    first: str = ""
    last: str = ""
    goes_on: bool = False
    """Whether the log has more than the topic."""
    difference: str | None = None


def topic_pieces(kafka: KafkaSettings, source: str, epoch: int, others: set[int]) -> Iterator[LogBytes]:
    """Yield what the raw topic holds of the log of one epoch, and add the others that it has to ``others``.

    Raises UserError for a record without a key.
    """
    topic = Topics(source).raw
    at, before = 0, b""
    for message in read_topic(kafka, topic):
        headers: Mapping[str, Any] = dict(message.headers() or ())
        raw_key, data = bytes_of(message.key()), bytes_of(message.value())
        try:
            key = RawKey.parse(raw_key)
        except ValueError as error:
            raise UserError(f"offset {message.offset()} of {topic}: {error}", ExitCode.DATA) from error
        if key.epoch != epoch:
            others.add(key.epoch)
        if key.epoch != epoch or HEADER_MARKER in headers or HEADER_ARTIFICIAL in headers:
            continue
        if HEADER_CHUNK not in headers or raw_key != before:
            at = key.position
        before = raw_key
        yield LogBytes(key.log_file, at, data, key.position, HEADER_EXCLUDED in headers)
        at += len(data)


def folder_log(folder: Path) -> Callable[[str, int], Iterator[LogBytes]]:
    """Yield the function that reads log files of ``folder`` from a place on, one after the other."""

    def read(file: str, position: int) -> Iterator[LogBytes]:
        paths = {
            path.name: path
            for path in sorted(folder.iterdir(), key=file_order)
            if path.stem == Path(file).stem and path.suffix[1:].isdecimal()
        }
        if file not in paths:
            raise UserError(f"{folder} has no log file {file}", ExitCode.SOURCE)
        names = list(paths)
        for name in names[names.index(file) :]:
            yield from _file_pieces(paths[name], name, position if name == file else len(MAGIC))

    return read


def _file_pieces(path: Path, name: str, position: int) -> Iterator[LogBytes]:
    try:
        with path.open("rb") as stream:
            head = stream.read(len(MAGIC))
            if head != MAGIC:
                raise UserError(
                    f"{path} is not a binary log, or an encrypted one: it begins with "
                    f"{head.hex() or 'nothing'}",
                    ExitCode.SOURCE,
                )
            stream.seek(position)
            while data := stream.read(_BLOCK):
                yield LogBytes(name, position, data)
                position += len(data)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", ExitCode.SOURCE) from error


def compare_raw(topic: Iterable[LogBytes], log: Callable[[str, int], Iterator[LogBytes]]) -> RawComparison:
    """Compare the topic with the log, which is read from the topic's first place on.

    What the log has after the end of the topic is no difference: it is yet to be read.
    """
    outcome = RawComparison()
    log_pieces: Iterator[LogBytes] | None = None
    theirs: LogBytes | None = None
    for piece in topic:
        ours = piece
        if log_pieces is None:
            log_pieces = log(ours.file, ours.position)
            outcome.first = ours.place
        while ours.data:
            if theirs is None or not theirs.data:
                theirs = next(log_pieces, None)
                if theirs is None:
                    outcome.difference = f"the topic continues at {ours.place}, where the log ends"
                    return outcome
                continue
            if (ours.file, ours.position) != (theirs.file, theirs.position):
                outcome.difference = f"the topic continues at {ours.place}, the log at {theirs.place}"
                return outcome
            size = min(len(ours.data), len(theirs.data))
            outcome.difference = None if ours.excluded else _difference(ours, theirs, size)
            if outcome.difference is not None:
                return outcome
            outcome.files.add(ours.file)
            if ours.excluded:
                outcome.excluded += size
            else:
                outcome.bytes += size
            ours, theirs = ours.after(size), theirs.after(size)
            outcome.last = ours.place
    if log_pieces is not None:
        outcome.goes_on = bool(theirs and theirs.data) or next(log_pieces, None) is not None
    return outcome


def _difference(ours: LogBytes, theirs: LogBytes, size: int) -> str | None:
    if ours.data[:size] == theirs.data[:size]:
        return None
    for index in range(size):
        mine, other = ours.data[index], theirs.data[index]
        position = ours.position + index
        if mine == other or (position == _FLAGS_POSITION and mine ^ other == _IN_USE):
            continue
        event = ours.position if ours.event is None else ours.event
        return (
            f"{ours.file} position {position} (byte {position - event} of the event at {event}): the topic "
            f"has {mine:02x}, the log {other:02x}"
        )
    return None

"""Binary log files as an input of Spark, without Kafka: which there are, and where they may be cut.

A transaction must be decoded from its beginning, and events by the format description of their log file. So
the driver walks over the headers of all events once. It notes places where no transaction is open, nor an XA
transaction prepared and not decided, and the statements that define tables, which a span may need from far
before it. Executors read the spans between such places.
"""

import glob
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import InputPartition

from millrace.binlog.errors import BinlogError, TruncatedError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import QueryCompressedEvent, QueryEvent, XaPrepareLogEvent
from millrace.binlog.file import iter_batches
from millrace.binlog.header import FIRST_POSITION, TYPE_OFFSET
from millrace.binlog.state import StreamState
from millrace.binlog.statement import StatementKind, classify, xid_text
from millrace.binlog.types import EventType
from millrace.contract import RawKey, log_number
from millrace.log_files import PACKING_ERRORS, file_order, plain_name, unpacked
from millrace.rowmapper.session import DEFINING
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.spark.decoding import ENDS
from millrace.spark.raw_topic import BEGINS, DESCRIBES
from millrace.stage import Record

_QUERIES: Final = frozenset({EventType.QUERY_EVENT, EventType.QUERY_COMPRESSED_EVENT})
_XA_OR_DDL: Final = re.compile(("(?i)\\b(?:XA|" + "|".join(sorted(DEFINING)) + ")\\b").encode())
"""Matches the statements that the driver examines."""

_SERVER_ID: Final = slice(5, 9)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file: where it is, and what the server called it."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a file cannot be read beyond a position."""

    name: str
    position: int
    error: str
    kind: str


@dataclass
class Span(InputPartition):
    """Part of the log that is decoded by itself: from ``start`` in the first file.

    ``ends`` are the positions in each file before which its events are read. ``first`` is the number of its
    first event among those of all files. ``described`` is the format description for it, where it does not
    begin with one.
    """

    files: Sequence[LogFile]
    start: int
    ends: Sequence[int]
    first: int
    described: Record | None = None

    def records(self, *, dated: bool = False) -> Iterator[Sequence[Record]]:
        """Return its records in batches.

        Unless they are to be ``dated``, as the events are, they have their numbers for timestamps.
        """
        number = self.first
        for index, (file, end) in enumerate(zip(self.files, self.ends, strict=True)):
            for events in _events(file, self.start if index == 0 else 0, end):
                records = _records(file, events, number)
                yield [_dated(record) for record in records] if dated else records
                number += len(events)

    def linked(self, *, previous: bool) -> Iterator[tuple[Sequence[Record], int | None]]:  # noqa: ARG002 - known
        """Return its dated records, with the number of the record before them."""
        for records in self.records(dated=True):
            yield records, records[0].offset - 1 if records[0].offset else None

    def prepared(self) -> Iterator[Sequence[Record]]:
        """Return the XA transactions that are decided in it and were prepared before it: there is none."""
        return iter(())


@dataclass
class Scan:
    """What the driver has found: spans, records of statements that define tables, faults."""

    spans: list[Span] = field(default_factory=list)
    defining: list[Record] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def list_files(path: str, *, ignore_missing: bool = False) -> list[LogFile]:
    """Return the files of a path or pattern in the order of the log.

    Raises UserError where there are none, two have one name, they are of several logs, or, unless
    ``ignore_missing``, one is missing between them.
    """
    found = [LogFile(one, plain_name(Path(urlsplit(one).path or one)).name) for one in _matching(path)]
    if not found:
        raise _refused(f"no file matches {path!r}")
    found.sort(key=lambda file: file_order(Path(file.name)))
    for before, after in itertools.pairwise(found):
        (stem, number), (other, following) = log_number(before.name), log_number(after.name)
        if stem != other:
            raise _refused(f"{before.name} and {after.name} are of two logs: read one at a time")
        if number == following:
            raise _refused(f"{before.path} and {after.path} have the same name")
        if number + 1 != following and not ignore_missing:
            raise _refused(
                f"between {before.name} and {after.name} {following - number - 1:,} files are missing; "
                'give all files, or option("ignoreMissingFiles", "true") to leave out what they hold'
            )
    return found


def scan(files: Sequence[LogFile], span_bytes: int) -> Scan:
    """Walk over files and cut them into spans of about ``span_bytes``."""
    return _Scanner(files, span_bytes).scan()


def _dated(record: Record) -> Record:
    return record._replace(timestamp_ms=1000 * int.from_bytes((record.value or b"")[:4], "little"))


def _records(file: LogFile, events: Sequence[tuple[int, bytes]], first: int) -> list[Record]:
    heads: dict[bytes, bytes] = {}
    found = []
    for number, (position, data) in enumerate(events, first):
        origin = data[_SERVER_ID]
        head = heads.get(origin)
        if head is None:
            head = RawKey(int.from_bytes(origin, "little"), 0, file.name, 0).encode()[:-1]
            heads[origin] = head
        found.append(Record(number, number, head + b"%d" % position, data))
    return found


def _events(file: LogFile, start: int, end: int | None) -> Iterator[list[tuple[int, bytes]]]:
    """Return the events of a file from one position to before another."""
    with open_file(file.path) as stream:
        position = 0
        if start > FIRST_POSITION and isinstance(stream, io.BufferedReader):
            stream.seek(start)
            position = start
        for batch in iter_batches(stream, file.name, position=position):
            last, data = batch[-1]
            if last >= start:
                inside = batch[0][0] >= start and (end is None or last < end)
                part = batch if inside else [one for one in batch if start <= one[0] and _before(one, end)]
                if part:
                    yield part
            if end is not None and last + len(data) >= end:
                return


def _before(event: tuple[int, bytes], end: int | None) -> bool:
    return end is None or event[0] < end


class _Scanner:
    """Walks over files; the rules of what may be cut are in the head of this module."""

    def __init__(self, files: Sequence[LogFile], span_bytes: int) -> None:
        self._files = files
        self._span_bytes = span_bytes
        self._found = Scan()
        self._state = StreamState()
        self._prepared: set[str] = set()
        self._ends: list[int] = []
        self._number = 0
        self._size = 0
        self._next_cut = span_bytes
        self._description: Record | None = None
        self._begun: tuple[int, int, int, Record | None] = (0, 0, 0, None)
        self._cut_after: tuple[int, int, int] | None = None

    def scan(self) -> Scan:
        for index, file in enumerate(self._files):
            self._ends.append(self._scan_file(index, file))
        self._close(len(self._files) - 1, self._ends[-1])
        return self._found

    def _scan_file(self, index: int, file: LogFile) -> int:
        """Walk over a file; return the position after its last whole event."""
        self._state = StreamState()
        self._description = None
        end = FIRST_POSITION
        try:
            for batch in _events(file, 0, None):
                for position, data in batch:
                    self._take(index, file, position, data)
                end = batch[-1][0] + len(batch[-1][1])
        except TruncatedError as error:
            # A log that is being written, or whose server has died, ends in the middle of an event.
            if index < len(self._files) - 1 or end == FIRST_POSITION:
                self._fault(file, end, error)
        except (BinlogError, *PACKING_ERRORS) as error:
            self._fault(file, end, error)
        return end

    def _fault(self, file: LogFile, position: int, error: Exception) -> None:
        self._found.faults.append(Fault(file.name, position, str(error), type(error).__name__))

    def _take(self, index: int, file: LogFile, position: int, data: bytes) -> None:
        code = data[TYPE_OFFSET]
        if self._cut_after is not None:
            self._cut(*self._cut_after)
            self._cut_after = None
        if code in BEGINS and self._size >= self._next_cut:
            self._cut(index, position, self._number)
        elif code in ENDS and self._size >= self._next_cut:
            self._cut_after = index, position + len(data), self._number + 1
        elif code in DESCRIBES:
            (record,) = _records(file, [(position, data)], self._number)
            self._description = self._description or record
            self._found.defining.append(record)
            self._decode(data, position)
        elif (code in _QUERIES and _XA_OR_DDL.search(data)) or code == EventType.QUERY_COMPRESSED_EVENT:
            self._statement(file, position, data)
        elif code == EventType.XA_PREPARE_LOG_EVENT:
            event = self._decode(data, position)
            if isinstance(event, XaPrepareLogEvent) and not event.one_phase:
                self._prepared.add(xid_text(event.format_id, event.gtrid, event.bqual))
        self._number += 1
        self._size += len(data)

    def _decode(self, data: bytes, position: int) -> Any:
        """Decode an event; None where it is damaged, which the executors will say."""
        try:
            if position == FIRST_POSITION:
                self._state.begin_file(data)
            return decode_event(data, self._state).event
        except BinlogError:
            return None

    def _statement(self, file: LogFile, position: int, data: bytes) -> None:
        event = self._decode(data, position)
        if not isinstance(event, QueryEvent | QueryCompressedEvent):
            return
        try:
            statement = classify(event.query)
        except BinlogError:
            return
        if statement.kind in (StatementKind.XA_COMMIT, StatementKind.XA_ROLLBACK):
            self._prepared.discard(statement.name or "")
        elif statement.verb in DEFINING:
            self._found.defining += _records(file, [(position, data)], self._number)

    def _cut(self, index: int, position: int, number: int) -> None:
        """Let a span end before a place, unless an XA transaction is prepared there and not decided."""
        if not self._prepared:
            self._close(index, position)
            self._begun = index, position, number, self._description
            self._next_cut = self._size + self._span_bytes

    def _close(self, index: int, position: int) -> None:
        begun, start, first, described = self._begun
        if self._number > first:
            files, ends = self._files[begun : index + 1], [*self._ends[begun:index], position]
            self._found.spans.append(Span(files, start, ends, first, described))


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """Open a file, packed or not, of this machine or of a file system that fsspec knows."""
    if _is_local(path):
        with io.BufferedReader(Path(_local(path)).open("rb", buffering=0), 1 << 18) as raw:
            yield unpacked(cast("io.BufferedReader", raw))
        return
    with _fsspec(path).open(path, "rb").open() as stream:
        yield unpacked(io.BufferedReader(stream, 1 << 20))


def _matching(path: str) -> list[str]:
    """Name the files of a path or pattern; those that hold no log, such as an index, are left out."""
    if _is_local(path):
        local = _local(path)
        found = [local] if Path(local).is_file() else sorted(glob.glob(local))  # noqa: PTH207 - the pattern may be absolute
        if Path(local).is_dir():
            found = sorted(str(one) for one in Path(local).iterdir())
        found = [one for one in found if Path(one).is_file()]
    else:
        fsspec = _fsspec(path)
        system, inside = fsspec.core.url_to_fs(path)
        found = [system.unstrip_protocol(one) for one in sorted(system.glob(inside))]
    if len(found) == 1:
        return found
    return [one for one in found if log_number(plain_name(Path(one)).name)[0] != plain_name(Path(one)).name]


def _is_local(path: str) -> bool:
    return urlsplit(path).scheme in ("", "file")


def _local(path: str) -> str:
    return unquote(urlsplit(path).path) if path.startswith("file:") else path


def _fsspec(path: str) -> Any:
    try:
        import fsspec  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError:
        raise _refused(
            f"{path!r} is not a local path: install fsspec and its package for {urlsplit(path).scheme}:// on "
            "the driver and on all executors"
        ) from None
    return fsspec


def _refused(text: str) -> UserError:
    return UserError(text, ExitCode.SETTINGS)

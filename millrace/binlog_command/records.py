"""What all parts of ``millrace binlog`` work on: the events of logs, decoded, with their place and context.

An input gives the bytes of events (:class:`RawEvent`), in batches as they come, :class:`LogDecoder` makes a
:class:`LogRecord` of each, filters choose among these, and an output (:class:`Output`) writes them.
"""

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from millrace import kernel
from millrace.avro.plans import object_plans
from millrace.binlog.errors import BinlogError, ChecksumError, TooLargeError
from millrace.binlog.event_codec import BinlogEvent, decode_event
from millrace.binlog.events.mariadb import PartialRowDataEvent
from millrace.binlog.events.rows import CompressedRowsEvent
from millrace.binlog.events.transaction import TransactionPayloadEvent
from millrace.binlog.file import MAGIC, MAX_EVENT_SIZE
from millrace.binlog.fragments import PartialRowsAssembler
from millrace.binlog.grammar import GTIDS
from millrace.binlog.state import StreamState
from millrace.binlog.transaction import TransactionStep, TransactionTracker
from millrace.binlog.types import EventType

if TYPE_CHECKING:
    from millrace.kernel.events import LogRecordMaker

MAX_UNPACKED_SIZE: Final = 16 << 20
"""The largest event that is unpacked from little, by default: no log needs more memory than it has bytes."""
MAX_UNPACKED_ROWS: Final = 32 << 20
"""The largest rows that MariaDB packed into little: a LONGTEXT of one letter is one value of them."""
_MAX_RATIO: Final = 16

_LARGEST: Final = 0xFFFFFFFF
"""What the size of an event in its header can say at most."""


class RawEvent(NamedTuple):
    """An event as it lies in a log, and where.

    ``path`` is where the log is, as the user would find it; ``file`` its name, as the server calls it.
    ``unpacked`` says that it came out of a compressed file, so that its bytes need not lie on any disk.
    """

    path: str
    file: str
    position: int
    data: bytes
    unpacked: bool = False


class LogRecord(NamedTuple):
    """One event of a log, or the reason why it cannot be read.

    ``path``, ``file`` and ``position`` are those of :class:`RawEvent`. ``data`` holds the event's bytes,
    empty where the log itself cannot be cut into events any further. ``sub_index`` is 0; 1, 2, … for the
    events inside a TRANSACTION_PAYLOAD, which follow the payload's own record and share its position, and 1
    for the rows event that follows the last of its fragments (PARTIAL_ROW_DATA).

    ``event`` is the decoded event, or the error that decoding gave. ``transaction`` says where it stands
    (None with an error), and ``gtid`` is its transaction's GTID, None for what has none.

    ``state`` is the decoder's, and keeps changing: while a record is in use, ``state.format`` is the
    format by which it was read. The table map of a rows event is ``event.table_map``.

    ``exact`` says that the event is known to have the same bytes when it is encoded again.
    """

    path: str
    file: str
    position: int
    data: bytes
    sub_index: int
    event: BinlogEvent | BinlogError
    gtid: str | None
    transaction: TransactionStep | None
    state: StreamState
    exact: bool = False


MORE_BY_OPTION: Final = "--max-event-size allows more"


def unpacked_limit(packed: int, max_event_size: int | None = None) -> int:
    """Return how large an event may be that is unpacked from so many bytes on the disk, or from the wire."""
    if max_event_size is not None:
        return max_event_size
    return min(MAX_EVENT_SIZE, max(MAX_UNPACKED_SIZE, _MAX_RATIO * packed))


def too_large(what: str, limit: int) -> TooLargeError:
    """Make the error for an event that is too large to be held in memory."""
    return TooLargeError(f"{what}; up to {limit} are read; {MORE_BY_OPTION}")


def _name_the_option(error: BinlogError) -> None:
    """Say in an error of what cut events out how more of them are read."""
    if isinstance(error, TooLargeError) and not error.message.endswith(MORE_BY_OPTION):
        error.message = f"{error.message}; {MORE_BY_OPTION}"


_TOGETHER: Final = 100
"""How many records are made at once: so few that the garbage collector does not look at them."""


def _by_kernel() -> "LogRecordMaker | None":
    """Return what makes records of ordinary events; None where the reference makes them all."""
    if not kernel.has("events"):
        return None
    from millrace.kernel.events import LogRecordMaker  # noqa: PLC0415 - whether it is built shows when it runs

    left = CompressedRowsEvent, PartialRowDataEvent  # what they unpack to is looked at here
    return LogRecordMaker(LogRecord, partial(object_plans, left=left))


class Output(Protocol):
    """What becomes of the records that the filters leave."""

    def write(self, record: LogRecord) -> None:
        """Take the next record."""

    def close(self) -> None:
        """Write what is left; nothing follows."""


class LogDecoder:
    """Decodes events one after the other, over as many logs as there are.

    At each change of the log the format is forgotten, since a log's first event describes it; a transaction
    that is open continues, as in relay logs.
    """

    def __init__(
        self, *, verify: bool = True, max_event_size: int | None = None, large_rows: bool = False
    ) -> None:
        """With ``verify``, an event whose checksum is wrong is an error.

        What compressed events unpack to, and what fragments make up, is an error where it is larger than
        ``max_event_size``; where that is None, than :func:`unpacked_limit` says, and than any event can be.
        With ``large_rows``, rows that MariaDB compressed are not: they are unpacked piece by piece.
        """
        self._large_rows = large_rows
        self._verify = verify
        self._max_event_size = max_event_size
        self._path: str | None = None
        self._state = StreamState()
        self._tracker = TransactionTracker()
        self._gtid: str | None = None
        self._fragments = PartialRowsAssembler()
        self._maker = _by_kernel()

    def records(self, batches: Iterable[list[RawEvent]]) -> Iterator[LogRecord]:
        """Decode the events of one or several logs.

        Where ``batches`` raises BinlogError the last record has that error and no data.
        """
        last = RawEvent("", "", 0, b"")
        try:
            for batch in batches:
                index = 0
                while index < len(batch):
                    made = self._made(batch, index)
                    yield from made
                    index += len(made)
                    if not made:
                        yield from self._decoded(batch[index])
                        index += 1
                last = batch[-1]
        except BinlogError as error:
            _name_the_option(error)
            error.at(error.log_file or last.path, last.position + len(last.data))
            where = error.log_file or last.path
            file, position = last.file or where, error.position or 0
            yield LogRecord(where, file, position, b"", 0, error, None, None, self._state)

    def _made(self, batch: list[RawEvent], index: int) -> list[LogRecord]:
        """Have the kernel make records from ``index`` on, up to an event that is left to the reference."""
        raw, maker = batch[index], self._maker
        if maker is None or raw.path != self._path:
            return []
        made: list[LogRecord] = maker.take(
            batch, index, _TOGETHER, raw.path, raw.file, self._state, self._tracker.standing, self._gtid
        )
        if made:
            self._tracker, self._gtid = TransactionTracker(maker.standing()), maker.gtid
        return made

    def _decoded(self, raw: RawEvent) -> Iterator[LogRecord]:
        """Decode an event, and what is inside."""
        path, file, position, data, unpacked = raw
        packed = 0 if unpacked else len(data)
        if path != self._path:
            self._path = path
            self._state = StreamState()
            self._fragments.clear()
            if position == len(MAGIC):
                self._state.begin_file(data)
        state = self._state
        try:
            decoded = decode_event(data, state, verify=self._verify)
            self._check_packed(decoded, packed)
        except BinlogError as error:
            error.at(path, position)
            yield LogRecord(path, file, position, data, 0, error, None, None, state)
            if isinstance(error, ChecksumError) and data[4] == EventType.FORMAT_DESCRIPTION_EVENT:
                # What it says may be right all the same, and nothing can be read without it.
                with contextlib.suppress(BinlogError):
                    decode_event(data, state, verify=False)
            return
        yield self._record(raw, data, 0, decoded, state)
        if type(decoded.event) is TransactionPayloadEvent:
            yield from self._inside(raw, decoded.event.events(self._limit(packed)))
        elif type(decoded.event) is PartialRowDataEvent:
            yield from self._inside(raw, self._joined(raw, decoded.event))

    def _limit(self, packed: int) -> int:
        return unpacked_limit(packed, self._max_event_size)

    def _joined(self, raw: RawEvent, fragment: PartialRowDataEvent) -> Iterator[bytes]:
        """Yield the rows event whose last fragment this is."""
        size = self._fragments.held_bytes + len(fragment.data)
        limit = _LARGEST
        if raw.unpacked or self._max_event_size is not None:
            limit = self._limit(0)
        if size > limit:
            self._fragments.clear()
            raise too_large(f"fragments of a rows event of {size} bytes", limit)
        whole = self._fragments.feed(fragment)
        if whole is not None:
            yield whole

    def _check_packed(self, decoded: BinlogEvent, packed: int) -> None:
        """Raise for a compressed event, of so many bytes, that is too large once unpacked."""
        size = decoded.event.unpacked_size
        if not size:
            return
        limit = self._limit(packed)
        if isinstance(decoded.event, CompressedRowsEvent):
            if self._large_rows:
                return
            if self._max_event_size is None:
                limit = max(limit, MAX_UNPACKED_ROWS)
        if size > limit:
            raise too_large(f"the event unpacks to {size} bytes", limit)

    def _inside(self, raw: RawEvent, events: Iterator[bytes]) -> Iterator[LogRecord]:
        path, file, position, *_ = raw
        state = self._state.for_payload()
        sub_index = 0
        try:
            for sub_index, data in enumerate(events, 1):
                try:
                    decoded = decode_event(data, state)
                    self._check_packed(decoded, 0)
                except BinlogError as error:
                    error.at(path, position)
                    yield LogRecord(path, file, position, data, sub_index, error, None, None, state)
                    continue
                yield self._record(raw, data, sub_index, decoded, state)
        except BinlogError as error:
            _name_the_option(error)
            error.at(path, position)
            yield LogRecord(path, file, position, b"", sub_index + 1, error, None, None, state)

    def _record(
        self, raw: RawEvent, data: bytes, sub_index: int, decoded: BinlogEvent, state: StreamState
    ) -> LogRecord:
        event = decoded.event
        step = self._tracker.feed(decoded.header, event, raw.file, raw.position)
        if step.begins:
            self._gtid = step.transaction if event.role in GTIDS else None
        gtid = self._gtid if step.transaction is not None else None
        return LogRecord(raw.path, raw.file, raw.position, data, sub_index, decoded, gtid, step, state)

"""The rows that a log changes, as dictionaries: for programs that want these and nothing else.

What the log compresses or cuts up is put together again: transactions in TRANSACTION_PAYLOAD events,
compressed rows events, rows events in fragments.
"""

import io
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, overload

from millrace.binlog.columns.column import ABSENT, Column
from millrace.binlog.encryption import LogKeys
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent, decode_event
from millrace.binlog.events.mariadb import PartialRowDataEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.events.transaction import TransactionPayloadEvent
from millrace.binlog.file import MAGIC, MAX_EVENT_SIZE, iter_events
from millrace.binlog.fragments import PartialRowsAssembler
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import Values
from millrace.binlog.row_reader import RowReader, TableRows
from millrace.binlog.state import StreamState
from millrace.binlog.table import TableDefinition

__all__ = ["Change", "ChangeEvent", "ChangeReader", "ChangedRows", "read_changes"]


class Change(NamedTuple):
    """A row as it was and as it is, by the names of its columns; None before an insert and after a delete.

    A column that the image leaves out (``binlog_row_image``) is not in the dictionary; NULL is None.
    """

    before: dict[str, Any] | None
    after: dict[str, Any] | None


_BLOCK = 256
"""Of so many rows the start of the first is remembered."""
_KEPT = 16 << 20
"""Rows that a server compressed are kept unpacked up to this size; larger ones are unpacked each time."""


class ChangedRows(Sequence[Change]):
    """The rows of an event, each read when it is asked for.

    What is kept is the event, as it is in the log, and where some of the rows start. Raises BinlogError for
    rows that cannot be read; an iteration has yielded those before them by then, ``len`` and an index have
    not.
    """

    __slots__ = ("_count", "_event", "_images", "_names", "_place", "_starts", "_unpacked")

    def __init__(
        self,
        event: RowsEvent,
        table_rows: TableRows[Any],
        place: tuple[str | None, int | None],
    ) -> None:
        self._event = event
        self._images = table_rows.images
        self._names = [str(column.name) for column in table_rows.columns]
        self._place = place
        self._count: int | None = None
        self._starts = array("Q")
        self._unpacked: bytes | None = None

    def __iter__(self) -> Iterator[Change]:
        try:
            for before, after in self._images.each(self._packed()):
                yield Change(_named(self._names, before), _named(self._names, after))
        except BinlogError as error:
            raise error.at(*self._place) from None

    def __len__(self) -> int:
        if self._count is None:
            count, starts = 0, array("Q")
            try:
                for count, start in enumerate(self._images.starts(self._packed()), 1):
                    if count % _BLOCK == 1:
                        starts.append(start)
            except BinlogError as error:
                raise error.at(*self._place) from None
            self._count, self._starts = count, starts
        return self._count

    @overload
    def __getitem__(self, index: int) -> Change: ...

    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...

    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        if not isinstance(index, slice):
            return next(self._from(range(len(self))[index]))
        wanted = range(len(self))[index]
        if not wanted:
            return []
        first, last = sorted((wanted[0], wanted[-1]))
        found = list(islice(self._from(first), 0, last - first + 1, abs(wanted.step)))
        return found if wanted.step > 0 else found[::-1]

    def _packed(self) -> bytes:
        """Return the images as the event has them, unpacked."""
        if self._unpacked is not None:
            return self._unpacked
        rows = self._event.rows
        if len(rows) <= _KEPT:
            self._unpacked = rows
        return rows

    def _from(self, index: int) -> Iterator[Change]:
        """Yield the rows from ``index`` on, each block of them cut out by itself."""
        packed = self._packed()
        block, skipped = divmod(index, _BLOCK)
        ends = [*self._starts[block + 1 :], len(packed)]
        try:
            for start, end in zip(self._starts[block:], ends, strict=True):
                for before, after in islice(self._images.each(packed[start:end]), skipped, None):
                    yield Change(_named(self._names, before), _named(self._names, after))
                skipped = 0
        except BinlogError as error:
            raise error.at(*self._place) from None


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """An event that changes rows of one table; ``operation`` is ``insert``, ``update`` or ``delete``."""

    log_file: str | None
    position: int | None
    header: EventHeader
    operation: str
    database: str
    table: str
    columns: tuple[Column, ...]
    rows: ChangedRows = field(repr=False)


class ChangeReader:
    """Takes the events of a log in their order, and gives those that change rows.

    ``define`` gives the definition of a table by database and name, for logs without the names of columns
    (``binlog_row_metadata=MINIMAL``, MariaDB's NO_LOG); without one they are called ``column_1`` and so on.
    With ``verify``, an event whose checksum is wrong is an error. An event that unpacks to more than
    ``max_unpacked`` bytes is one.
    """

    def __init__(
        self,
        define: Callable[[str, str], TableDefinition | None] = lambda _database, _table: None,
        *,
        verify: bool = True,
        max_unpacked: int = MAX_EVENT_SIZE,
    ) -> None:
        def defined(table_map: TableMapEvent) -> TableDefinition | None:
            return define(table_map.database, table_map.table)

        self._rows: RowReader[Any] = RowReader(define=defined)
        self._verify = verify
        self._max_unpacked = max_unpacked
        self._state = StreamState()
        self._fragments = PartialRowsAssembler()

    def begin_file(self, first_event: bytes) -> None:
        """Forget the log before; see :meth:`millrace.binlog.StreamState.begin_file`."""
        self._state = StreamState()
        self._fragments.clear()
        self._state.begin_file(first_event)

    def feed(
        self, data: bytes, log_file: str | None = None, position: int | None = None
    ) -> Iterator[ChangeEvent]:
        """Take the next event; give the changes in it. Raises BinlogError, and may be fed on after it."""
        try:
            yield from self._changes(data, self._state, log_file, position)
        except BinlogError as error:
            raise error.at(log_file, position) from None

    def _changes(
        self, data: bytes, state: StreamState, log_file: str | None, position: int | None
    ) -> Iterator[ChangeEvent]:
        decoded = decode_event(data, state, verify=self._verify)
        event = decoded.event
        if isinstance(event, RowsEvent):
            yield self._change(decoded, event, state, log_file, position)
        elif isinstance(event, TransactionPayloadEvent):
            inner = state.for_payload()
            for part in event.events(self._max_unpacked):
                yield from self._changes(part, inner, log_file, position)
        elif isinstance(event, PartialRowDataEvent):
            whole = self._fragments.feed(event)
            if whole is not None:
                yield from self._changes(whole, state.for_payload(), log_file, position)

    def _change(
        self,
        decoded: BinlogEvent,
        event: RowsEvent,
        state: StreamState,
        log_file: str | None,
        position: int | None,
    ) -> ChangeEvent:
        rows = self._rows.of(decoded, state)
        return ChangeEvent(
            log_file,
            position,
            decoded.header,
            event.operation.statement,
            rows.table.database,
            rows.table.table,
            rows.columns,
            ChangedRows(event, rows, (log_file, position)),
        )


def read_changes(
    log: BinaryIO | bytes,
    log_file: str | None = None,
    *,
    keys: LogKeys | None = None,
    reader: ChangeReader | None = None,
) -> Iterator[ChangeEvent]:
    """Read a log from its start: an open file, or its bytes; give the events that change rows.

    ``log_file`` is its name, for messages. ``keys`` are those of an encrypted log. ``reader`` is one that
    knows definitions of tables. Raises BinlogError.
    """
    reader = ChangeReader() if reader is None else reader
    stream = io.BytesIO(log) if isinstance(log, bytes) else log
    for position, data in iter_events(stream, log_file, keys=keys):
        if position == len(MAGIC):
            reader.begin_file(data)
        yield from reader.feed(data, log_file, position)


def _named(names: list[str], values: Values | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {name: value for name, value in zip(names, values, strict=True) if value is not ABSENT}

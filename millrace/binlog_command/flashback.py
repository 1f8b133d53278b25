"""``--flashback``: SQL that undoes the row changes of a log, the newest first.

Each rows event is turned round: what was written is deleted, what was deleted is written, an update goes from
the after image to the before image; and its rows come in the opposite order. The new events go into BINLOG
statements, as mysqlbinlog writes rows: exact to the bit in every type, and without the columns' names, which
a log need not hold. Each transaction becomes one transaction, the last one first.

What it takes:

- complete before images of updates and deletes and complete after images of inserts, as
  ``binlog_row_image=FULL`` writes them (FULL_NODUP of MariaDB will do); partial JSON will not do;
- changes logged as rows. DDL, and changes logged as statements, cannot be undone from the log: they are an
  error, or with ``force`` a comment in the place where they were.

Rows that the log itself shows to have been undone (ROLLBACK, ROLLBACK TO SAVEPOINT, XA ROLLBACK, a
transaction that a crash cut off) are left out, and an XA transaction is undone where it was committed. What
the log does not show cannot be undone: rows that a foreign key of InnoDB deleted or changed by itself, and
changes to a table without transactions inside of a transaction that was rolled back.

The text is put together from its end, so it goes to a temporary file first: memory holds one event, and
some 64 bytes for each transaction.
"""

import base64
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO, BinaryIO

from millrace.binlog.columns.column import ABSENT
from millrace.binlog.columns.json_diffs import JsonDiffs
from millrace.binlog.errors import BinlogError, UnrepresentableError
from millrace.binlog.event_codec import BinlogEvent, seal
from millrace.binlog.events import (
    ExecLoadEvent,
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    IncidentEvent,
    LoadEvent,
    NewLoadEvent,
    PlainRowsEvent,
    QueryCompressedEvent,
    QueryEvent,
    RowsEvent,
    RowsOperation,
    TableMapEvent,
)
from millrace.binlog.events.rows import PLAIN_ROWS
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import Row, RowImages, Values
from millrace.binlog.row_reader import RowReader, TableCache
from millrace.binlog.state import LogFormat, StreamState
from millrace.binlog.statement import TRANSACTION_CONTROL, Statement, StatementKind
from millrace.binlog.transaction import TransactionEnd, TransactionStep
from millrace.binlog.types import RowsFlag
from millrace.binlog_command.generation import Generation, generation_of
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.rewrite import DatabaseRewrite
from millrace.binlog_command.row_printer import RowPrinter, comment_text
from millrace.binlog_command.session_text import DELIMITER
from millrace.binlog_command.spool import Spool, base64_lines
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode


@dataclass(frozen=True, slots=True)
class FlashbackOptions:
    """How changes are undone.

    With ``force`` what cannot be undone becomes a comment, else it is an error. ``verbose`` adds the rows as
    comments (2 with their types), ``rewrite_db`` gives databases other names.
    """

    verbose: int = 0
    force: bool = False
    rewrite_db: DatabaseRewrite = field(default_factory=DatabaseRewrite)


_REVERSE = {
    RowsOperation.WRITE: RowsOperation.DELETE,
    RowsOperation.DELETE: RowsOperation.WRITE,
    RowsOperation.UPDATE: RowsOperation.UPDATE,
}
_NOT_UNDONE = (ExecuteLoadQueryEvent, ExecLoadEvent, LoadEvent, NewLoadEvent)
_MAINTENANCE = frozenset({"", "ANALYZE", "CHECK", "FLUSH", "OPTIMIZE", "REPAIR"})
_HEAD = (
    b"# What follows undoes the changes of a binary log, the newest first.\n"
    b"/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=1*/;\n"
    b"/*!50003 SET @OLD_COMPLETION_TYPE=@@COMPLETION_TYPE,COMPLETION_TYPE=0*/;\n"
    b"DELIMITER /*!*/;\n"
)
_TAIL = (
    b"DELIMITER ;\n"
    b"/*!50003 SET COMPLETION_TYPE=@OLD_COMPLETION_TYPE*/;\n"
    b"/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=0*/;\n"
)
_TOGETHER = 1000
"""How many rows are turned round at once."""
_SHOWN = 200
"""How much of a statement that cannot be undone is shown."""


_COMMIT, _DESCRIPTION = (1 << 64) - 1, (1 << 64) - 2
"""In place of a piece's size: the end of a transaction; the format description of that number."""


@dataclass(slots=True)
class _Transaction:
    """What is known of a transaction: the pieces that undo it, in the order of the log.

    A piece is where a part of the text lies in the temporary file: offset and size. ``has_rows`` says that
    the text does more than to comment.
    """

    name: str
    timestamp: int
    description: int
    pieces: list[tuple[int, int]] = field(default_factory=list)
    savepoints: list[tuple[str, int]] = field(default_factory=list)
    has_rows: bool = False


class FlashbackOutput:
    """Writes to ``stream``, when it is closed, the statements that undo the records written to it.

    Records of whole transactions are wanted: with BEGIN and its like, and all that follows up to the end.
    """

    def __init__(self, stream: BinaryIO, options: FlashbackOptions | None = None) -> None:
        self._stream = stream
        self._options = options or FlashbackOptions()
        self._spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the output
        self._size = 0
        self._descriptions: list[bytes] = [b""]
        self._format: LogFormat | None = None
        self._state = StreamState()
        self._open: _Transaction | None = None
        self._open_id: str | None = None
        self._index = array("Q")
        self._prepared: dict[str, _Transaction] = {}
        self._readers: RowReader[object] = RowReader()
        self._printers: TableCache[RowPrinter] = TableCache()

    def write(self, record: LogRecord) -> None:
        """Take a record; raises UserError for what cannot be undone."""
        try:
            try:
                self._take(record)
            except BinlogError as error:  # in what is unpacked only now
                self._refuse(record, f"an event that cannot be read ({error.message})")
        except BaseException:
            self._spool.close()
            raise

    def close(self) -> None:
        """Write the text."""
        self._finish(None)
        out = self._stream.write
        out(_HEAD)
        description = 0
        for at in range(len(self._index) - 2, -1, -2):
            offset, size = self._index[at : at + 2]
            if size == _COMMIT:
                out(b"COMMIT" + DELIMITER + b"\n")
            elif size != _DESCRIPTION:
                self._copy(offset, size)
            elif offset != description:
                description = offset
                out(self._descriptions[description])
        for xid in self._prepared:
            out(b"# XA transaction %b is prepared and not decided; it is not undone.\n" % comment_text(xid))
        out(_TAIL)
        self._spool.close()

    def _copy(self, offset: int, size: int) -> None:
        self._spool.seek(offset)
        while size:
            block = self._spool.read(min(size, 1 << 20))
            self._stream.write(block)
            size -= len(block)

    def _take(self, record: LogRecord) -> None:
        decoded = record.event
        if isinstance(decoded, BinlogError):
            self._refuse(record, f"an event that cannot be read ({decoded.message})")
            return
        event, step = decoded.event, record.transaction
        if isinstance(event, FormatDescriptionEvent) and not record.sub_index:
            self._describe(record, event)
        if step is not None:
            self._follow(record, decoded, step)
        if isinstance(event, RowsEvent):
            self._undo(record, decoded, event)
        elif isinstance(event, QueryEvent | QueryCompressedEvent):
            statement, query = None if step is None else step.statement, event.query
            if statement is None or not _is_harmless(statement):
                self._refuse(record, "a statement, which the log gives no rows of", query)
        elif isinstance(event, _NOT_UNDONE):
            self._refuse(record, "LOAD DATA, which the log gives no rows of")
        elif isinstance(event, IncidentEvent):
            self._refuse(record, "an incident: events are missing in the log", event.message)
        if step is not None and step.ends is not None:
            self._end(record, step)

    def _describe(self, record: LogRecord, event: FormatDescriptionEvent) -> None:
        """Keep the BINLOG statement that tells a server how to read the events of this log."""
        text = b"BINLOG '\n%b'%b\n" % (base64.encodebytes(record.data), DELIMITER)
        if Generation.MYSQL_5_6 <= generation_of(event.version) <= Generation.MYSQL_8_0:
            # A format description leaves MySQL without an identifier for what follows.
            text += b"/*!50616 SET @@SESSION.GTID_NEXT='AUTOMATIC'*/%b\n" % DELIMITER
        self._descriptions.append(text)
        self._format = LogFormat(event)
        self._state = StreamState(self._format)

    @property
    def _description(self) -> int:
        """Number of the format description in force; the first stands for logs that have none."""
        return len(self._descriptions) - 1

    # Transactions

    def _follow(self, record: LogRecord, decoded: BinlogEvent, step: TransactionStep) -> None:
        """Open the transaction that the event belongs to; note its savepoints."""
        if step.interrupts is not None and step.interrupts == self._open_id:
            self._open = self._open_id = None  # a crash undid it
        if step.transaction != self._open_id:
            self._finish(None)
            if step.transaction is not None:
                name = step.transaction
                if name != record.gtid:
                    name = f"the transaction at {name}"
                self._open = _Transaction(name, decoded.header.timestamp, self._description)
                self._open_id = step.transaction
        statement = step.statement
        if self._open is None or statement is None or statement.name is None:
            return
        if statement.kind is StatementKind.SAVEPOINT:
            self._open.savepoints.append((statement.name, len(self._open.pieces)))
        elif statement.kind is StatementKind.ROLLBACK_TO:
            savepoints = self._open.savepoints
            while savepoints and savepoints[-1][0] != statement.name:
                savepoints.pop()
            if savepoints:
                del self._open.pieces[savepoints[-1][1] :]

    def _end(self, record: LogRecord, step: TransactionStep) -> None:
        """Close the transaction that ends with this event, or decide about the prepared one it names."""
        if step.ends is TransactionEnd.XA_PREPARE and step.xid is not None:
            if self._open is not None:
                self._prepared[step.xid] = self._open
            self._open = self._open_id = None
            return
        if step.ends in (TransactionEnd.XA_COMMIT, TransactionEnd.XA_ROLLBACK) and step.xid is not None:
            prepared = self._prepared.pop(step.xid, None)
            if step.ends is TransactionEnd.XA_COMMIT:
                if prepared is None:
                    self._refuse(record, f"the commit of XA transaction {step.xid}, whose rows come earlier")
                else:
                    self._enter(prepared)
        self._finish(step.ends)

    def _finish(self, ends: TransactionEnd | None) -> None:
        if self._open is not None and ends not in (TransactionEnd.ROLLBACK, TransactionEnd.XA_ROLLBACK):
            self._enter(self._open)
        self._open = self._open_id = None

    def _enter(self, transaction: _Transaction) -> None:
        """Enter a transaction into the index, in the order in which it is read from the end."""
        if not transaction.pieces:
            return
        index = self._index
        if transaction.has_rows:
            index.extend((0, _COMMIT))
        for piece in transaction.pieces:
            index.extend(piece)
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(transaction.timestamp))
        head = b"# Undo of %b, %b\n" % (comment_text(transaction.name), moment.encode())
        if transaction.has_rows:
            head += b"BEGIN\n" + DELIMITER + b"\n"
        index.extend(self._spooled(head))
        if transaction.has_rows:
            index.extend((transaction.description, _DESCRIPTION))

    # Rows

    def _undo(self, record: LogRecord, decoded: BinlogEvent, event: RowsEvent) -> None:
        table_map = decoded.table_map
        if table_map is None:
            self._refuse(record, f"rows of table id {event.table_id}, whose table map is not there")
            return
        table = f"{table_map.database}.{table_map.table}"
        try:
            images = self._readers.of(decoded, record.state).images
            null_fill = images.null_fill(event.rows)
            reversed_event, count = self._reversed(event, images, null_fill=null_fill)
        except UnrepresentableError as partial:
            self._refuse(record, f"rows of {table}: {partial.message}")
            return
        except BinlogError as error:
            self._refuse(record, f"rows of {table}, which cannot be read ({error.message})")
            return
        start = self._size
        self._spooled(b"# %d rows of %b\nBINLOG '\n" % (count, comment_text(table)))
        for data in self._events(decoded, table_map, reversed_event):
            for piece in base64_lines(data):
                self._spooled(piece)
        self._spooled(b"'" + DELIMITER + b"\n")
        if self._options.verbose:
            self._rows_text(table_map, reversed_event)
        assert self._open is not None
        self._open.has_rows = True
        self._open.pieces.append((start, self._size - start))

    def _spooled(self, text: bytes) -> tuple[int, int]:
        """Put a part of the text into the temporary file; give where it lies."""
        piece = self._size, len(text)
        self._spool.write(text)
        self._size += len(text)
        return piece

    def _reversed(
        self, event: RowsEvent, images: RowImages, *, null_fill: bool
    ) -> tuple[PlainRowsEvent, int]:
        """Turn an event round; raise UnrepresentableError where images are partial."""
        rows = event.rows
        starts = array("Q", images.starts(rows))
        operation = _REVERSE[event.operation]
        size = (event.column_count + 7) // 8
        full = ((1 << event.column_count) - 1).to_bytes(size, "little")
        before = None if operation is RowsOperation.WRITE else full
        after = None if operation is RowsOperation.DELETE else full
        turned = RowImages(images.columns, before, after)
        written = []
        end = len(rows)
        for at in range((len(starts) - 1) // _TOGETHER * _TOGETHER, -1, -_TOGETHER):
            read = images.decode(rows[starts[at] : end])
            end = starts[at]
            written.append(turned.encode(_backwards(read), null_fill=null_fill))
        made = PLAIN_ROWS[max(event.version, 1), operation](
            event.table_id,
            event.flags | RowsFlag.STMT_END_F,
            b"",  # partitions and the like are where the rows were found, not where they will be
            event.column_count,
            before or b"",
            after or b"",
            b"".join(written),
        )
        return made, len(starts)

    def _events(
        self, decoded: BinlogEvent, table_map: TableMapEvent, reversed_event: PlainRowsEvent
    ) -> Iterable[bytes]:
        """Write table map and rows with checksums as the log has them."""
        header = decoded.header
        names = self._options.rewrite_db
        renamed = replace(table_map, database=names.name(table_map.database))
        for event in (renamed, reversed_event):
            new = EventHeader(header.timestamp, event.event_type, header.server_id, 0, 0, 0)
            yield seal(BinlogEvent(new, event), self._state)

    def _rows_text(self, table_map: TableMapEvent, event: PlainRowsEvent) -> None:
        """Write the rows of the new event as comments."""
        generation = generation_of("" if self._format is None else self._format.origin.version)

        def make() -> RowPrinter:
            database = self._options.rewrite_db.name(table_map.database)
            return RowPrinter(table_map, event, self._options.verbose, database, generation)

        printer = self._printers.get(table_map, (type(event), generation), make)
        text = Spool()
        printer.write(event.rows, text)
        for piece in text.take():
            self._spooled(piece)

    # What cannot be undone

    def _refuse(self, record: LogRecord, what: str, text: bytes | None = None) -> None:
        """Raise for what cannot be undone, or put a comment in its place."""
        shown = "" if text is None else ": " + text[:_SHOWN].decode("utf-8", "backslashreplace")
        message = comment_text(f"{record.path} at {record.position} has {what}{shown}").decode()
        if not self._options.force:
            advice = "choose the events before or after it, or leave it out with --force-read"
            raise UserError(f"{message}; the log does not say how to undo it: {advice}", ExitCode.NOT_UNDONE)
        comment = self._spooled(f"# NOT undone: {message}\n".encode())
        if self._open is not None:
            self._open.pieces.append(comment)
        else:
            self._index.extend(comment)


def _is_harmless(statement: Statement) -> bool:
    """Return whether a statement changes neither rows nor tables."""
    if statement.kind is StatementKind.OTHER or statement.verb in _MAINTENANCE:
        return statement.verb in _MAINTENANCE
    return statement.kind in TRANSACTION_CONTROL


def _backwards(rows: list[Row]) -> Iterator[Row]:
    """Yield rows in the opposite order, turned round; raise UnrepresentableError where they are partial."""
    last: Row | None = None
    turned: Row = None, None
    for row in reversed(rows):
        if row is not last:
            last, turned = row, _complete(row)[::-1]
        yield turned


def _complete(row: tuple[Values | None, Values | None]) -> tuple[Values | None, Values | None]:
    """Return a row with complete images; raise UnrepresentableError where the log does not have them."""
    before, after = row
    if before is not None and ABSENT in before:
        raise UnrepresentableError(f"the before image is partial: {_missing(before)}")
    if before is not None and after is not None:
        # An after image may leave out what did not change.
        after = tuple(old if new is ABSENT else new for old, new in zip(before, after, strict=True))
    if after is not None:
        if ABSENT in after:
            raise UnrepresentableError(f"the after image is partial: {_missing(after)}")
        if any(isinstance(value, JsonDiffs) for value in after):
            raise UnrepresentableError("the after image is partial: JSON is logged as differences")
    return before, after


def _missing(values: Values) -> str:
    """Name the columns that an image leaves out."""
    missing = [str(ordinal + 1) for ordinal, value in enumerate(values) if value is ABSENT]
    return f"{'column' if len(missing) == 1 else 'columns'} {', '.join(missing)} missing"

"""Table maps and rows events as text."""

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial

from millrace.binlog.checksum import CHECKSUM_LENGTH, with_checksum
from millrace.binlog.columns.printing import STRING_ESCAPES
from millrace.binlog.declaration import EVENTS
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent, seal
from millrace.binlog.events import (
    AnnotateRowsEvent,
    CompressedRowsEvent,
    PartialUpdateRowsEvent,
    RowsEvent,
    RowsQueryLogEvent,
    TableMapEvent,
)
from millrace.binlog.header import EventHeader
from millrace.binlog.row_reader import RowReader, TableCache
from millrace.binlog.state import StreamState
from millrace.binlog.types import RowsFlag, TableMapFlag
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.records import MAX_UNPACKED_ROWS, LogRecord
from millrace.binlog_command.row_kernel import counting
from millrace.binlog_command.row_printer import RowPrinter, sql_name, unreadable_rows
from millrace.binlog_command.spool import Spool, base64_lines, base64_lines_of
from millrace.binlog_command.table_metadata_text import table_metadata
from millrace.binlog_command.text_page import END, TextPage, Writers
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

_ROWS_FLAGS = tuple(flag for flag in RowsFlag if flag is not RowsFlag.NO_CHECK_CONSTRAINT_CHECKS_F)
_GENERATED_KEYS = (8, 0, 30)
_IN_ROWS_QUERY = re.compile(rb"[\b\t\r\\]")
_IN_MEMORY = 1 << 20
_SIZE_AT = 9
_LINES = re.compile(rb"[^\r\n]+")


def _uncompressed(
    decoded: BinlogEvent, event: CompressedRowsEvent, state: StreamState, *, rows: bytes | None = None
) -> bytes:
    """Write the event without compression, BINLOG of MariaDB takes no other; with other ``rows`` if any."""
    plain = event.plain(rows)
    header = decoded.header
    new = EventHeader(
        header.timestamp,
        plain.event_type,
        header.server_id,
        0,
        header.next_position,
        header.flags,
        header.extra_headers,
    )
    return seal(BinlogEvent(new, plain), StreamState(state.format))


def _uncompressed_pieces(
    decoded: BinlogEvent, event: CompressedRowsEvent, state: StreamState
) -> Iterator[bytes]:
    """Write the event as :func:`_uncompressed` does, piece by piece; raises BinlogError."""
    checksummed = decoded.checksum is not None
    without = _uncompressed(decoded, event, state, rows=b"")
    head = without[: -CHECKSUM_LENGTH if checksummed else None]
    size = len(without) + event.unpacked_size
    head = head[:_SIZE_AT] + size.to_bytes(4, "little") + head[_SIZE_AT + 4 :]
    checksum = zlib.crc32(head)
    yield head
    for piece in event.row_pieces():
        checksum = zlib.crc32(piece, checksum)
        yield piece
    if checksummed:
        yield checksum.to_bytes(CHECKSUM_LENGTH, "little")


def _extra_row_info(info: bytes) -> bytes:
    """Write what a server noted beside the rows: the partitions, or what NDB has to say."""
    numbers = struct.unpack(f"<{(len(info) - 1) // 2}H", info[1:]) if len(info) % 2 else ()
    if info[:1] == b"\x01" and len(numbers) in (1, 2):
        if len(numbers) == 1:
            text = b"partition: %d" % numbers
        else:
            text = b"source_partition: %d target_partition: %d" % numbers[::-1]
        return b"### Extra row info for partitioning: %b\n" % text
    return b"### Extra row info: %b\n" % info.hex().encode()


class RowsText:
    """Writes table maps and rows: heads, the BINLOG statement that carries them, the rows as comments.

    The BINLOG statement holds all events of one statement, so it comes after the last of them, and the rows
    after that.
    """

    def __init__(self, page: TextPage) -> None:
        self._page = page
        self._annotation, self._heads, self._base64, self._text = Spool(), Spool(), Spool(), Spool()
        self._large: list[tuple[Spool, Callable[[], Iterator[bytes]]]] = []
        self._has_rows, self._row_count = False, 0
        self._uncounted: bytes | None = None
        """Why the rows of a statement are not counted."""
        self._words: dict[tuple[type[RowsEvent], int], tuple[bytes, bytes]] = {}
        self._printers: TableCache[RowPrinter] = TableCache()
        self._counter = RowReader(lambda _table, codecs, bitmaps: counting(codecs, bitmaps))

    @property
    def writers(self) -> Writers:
        """What writes each of the events."""
        rows = (declaration.event_class for declaration in EVENTS.values())
        return {
            AnnotateRowsEvent: self._annotate_rows,
            RowsQueryLogEvent: self._rows_query,
            TableMapEvent: self._table_map,
            **{event_class: self._rows for event_class in rows if issubclass(event_class, RowsEvent)},
        }

    def _annotate_rows(self, record: LogRecord, header: EventHeader, event: AnnotateRowsEvent) -> None:
        """Keep MariaDB's annotation for the table map that follows, as mariadb-binlog does."""
        if not self._page.options.annotations:
            return
        self._annotation = Spool()  # of two, the later one counts
        write = self._annotation.write
        if self._page.options.short_form:
            write(b"# Annotate_rows:\n")
        else:
            write(self._page.head(record, header, write) + b"\tAnnotate_rows:\n")
        for line in _LINES.finditer(event.query):
            write(b"#Q> %b\n" % line[0].replace(b"\0", b"\\0"))

    def _rows_query(self, record: LogRecord, header: EventHeader, event: RowsQueryLogEvent) -> None:
        """Write the statement as a comment; the BINLOG statement of its rows has the event, too."""
        if self._page.options.short_form or self._page.options.verbose < 2:
            return
        self._page.titled(record, header, b"Rows_query")
        query = event.query
        if self._page.generation is Generation.MYSQL_8_0:
            query = _IN_ROWS_QUERY.sub(lambda found: STRING_ESCAPES[found[0]], query)
        self._page.parts.append(b"# %b\n" % query.replace(b"\0", b"\\0").replace(b"\n", b"\n# "))
        if self._page.options.base64_output == "auto":
            self._carry(self._page.data)

    def _table_map(self, record: LogRecord, header: EventHeader, event: TableMapEvent) -> None:
        self._page.copy(self._annotation)
        if self._page.options.short_form:
            return
        database = self._page.options.rewrite_db.name(event.database)
        title = b"Table_map: %b.%b mapped to number %d" % (
            sql_name(database),
            sql_name(event.table),
            event.table_id,
        )
        if self._page.is_mariadb and event.flags & TableMapFlag.TM_BIT_HAS_TRIGGERS_F:
            title += b" (has triggers)"
        waits = self._page.generation is Generation.MYSQL_5_5
        write = self._heads.write if waits else self._page.parts.append
        text = self._page.title(record, header, title, write)
        if self._says_generated_keys():
            hidden_key = bool(event.flags & TableMapFlag.TM_GENERATED_INVISIBLE_PK_F)
            text += b"# has_generated_invisible_primary_key=%d\n" % hidden_key
        if self._page.options.table_metadata:
            log_format = record.state.format
            origin = None if log_format is None else log_format.origin
            version = "" if origin is None else origin.version
            text += table_metadata(event, version, mariadb=self._page.is_mariadb)
        write(text)
        if self._base64_wanted(b"Table_map"):
            decoded = record.event
            assert isinstance(decoded, BinlogEvent)
            data = None
            if database != event.database:
                data = self._page.options.rewrite_db.table_map(decoded, record.state)
                if data is not None and record.sub_index and len(self._page.data) != len(record.data):
                    data = with_checksum(data)
            self._carry(data or self._page.data)

    def _says_generated_keys(self) -> bool:
        """Return whether mysqlbinlog says if a primary key is generated: it has the version from the GTID."""
        page = self._page
        is_known = page.generation is Generation.MYSQL_8_0 and not page.options.skip_gtids
        return is_known and page.server_version >= _GENERATED_KEYS

    def _carry(self, data: bytes) -> None:
        """Have the BINLOG statement carry an event."""
        for piece in base64_lines(data):
            self._base64.write(piece)

    def _carry_large(self, pieces: Callable[[], Iterator[bytes]]) -> None:
        """Have the BINLOG statement carry an event that is unpacked as it is written; raises BinlogError."""
        for _ in pieces():
            pass  # a statement is not begun that cannot be ended
        self._large.append((self._base64, pieces))
        self._base64 = Spool()

    def _base64_wanted(self, name: bytes) -> bool:
        """Return whether a BINLOG statement is wanted; raise UserError where one is needed and is not."""
        if self._page.options.base64_output == "never":
            event = f"{name.decode()} event at {self._page.position}"
            raise UserError(
                f"--base64-output=never, and the log has a {event} that only a BINLOG statement can carry; "
                "use --base64-output=decode-rows to leave such events out",
                ExitCode.SETTINGS,
            )
        return self._page.options.base64_output == "auto"

    def _rows(self, record: LogRecord, header: EventHeader, event: RowsEvent) -> None:
        if self._page.options.short_form:
            return
        decoded = record.event
        assert isinstance(decoded, BinlogEvent)
        table_map = decoded.table_map
        key = type(event), event.flags
        words = self._words.get(key)
        if words is None:
            words = self._words[key] = self._rows_name(event), self._rows_flags(event)
        name, flags = words
        title = b"%b: table id %d%b" % (name, event.table_id, flags)
        waits = self._page.is_mariadb or self._page.generation is Generation.MYSQL_5_5
        write = self._heads.write if waits else self._page.parts.append
        write(self._page.title(record, header, title, write))
        if self._base64_wanted(name):
            if not isinstance(event, CompressedRowsEvent):
                self._carry(self._page.data)
            elif event.unpacked_size <= _IN_MEMORY:
                self._carry(_uncompressed(decoded, event, record.state))
            else:
                self._carry_large(
                    partial(_uncompressed_pieces, decoded, event, StreamState(record.state.format))
                )
        if self._page.options.verbose:
            self._rows_lines(event, table_map)
        elif self._page.is_mariadb and self._page.options.row_count:
            self._row_count += self._counted(decoded, event, record.state)
        self._has_rows = True
        if event.ends_statement:
            self.flush()

    def _rows_name(self, event: RowsEvent) -> bytes:
        if isinstance(event, PartialUpdateRowsEvent):
            return b"Update_rows_partial"
        compressed = b"_compressed" if isinstance(event, CompressedRowsEvent) else b""
        name = event.operation.value.capitalize().encode() + compressed + b"_rows"
        if event.version == 0:
            return name + b"_old"
        return name + b"_v1" if event.version == 1 and self._page.generation is Generation.MYSQL_8_0 else name

    def _rows_flags(self, event: RowsEvent) -> bytes:
        known = _ROWS_FLAGS if self._page.generation is Generation.MYSQL_8_0 else _ROWS_FLAGS[:1]
        names = " ".join(str(flag.name) for flag in known if event.flags & flag)
        return f" flags: {names}".encode() if names else b""

    def _rows_lines(self, event: RowsEvent, table_map: TableMapEvent | None) -> None:
        if table_map is None:
            self._text.write(b"### Row event for unknown table #%d\n" % event.table_id)
            return
        key = type(event), event.columns_before_image, event.columns_after_image

        def make() -> RowPrinter:
            options = self._page.options
            return RowPrinter(
                table_map,
                event,
                options.verbose,
                options.rewrite_db.name(table_map.database),
                self._page.generation,
                max_unpacked=options.max_unpacked,
            )

        try:
            printer = self._printers.get(table_map, key, make)
            rows = event.rows
        except BinlogError as error:
            self._text.write(unreadable_rows(error))
            self._uncounted = b"they cannot be read"
            return
        if event.extra_row_info and self._page.generation is Generation.MYSQL_8_0:
            self._text.write(_extra_row_info(event.extra_row_info))
        self._row_count += printer.write(rows, self._text)

    def _counted(self, decoded: BinlogEvent, event: RowsEvent, state: StreamState) -> int:
        """Return how many rows an event has; note why not where they cannot be read, or are too large."""
        if event.unpacked_size > max(self._page.options.max_unpacked, MAX_UNPACKED_ROWS):
            self._uncounted = b"they are too large"
            return 0
        try:
            table_rows = self._counter.of(decoded, state)
            count = None if table_rows.kernel is None else table_rows.kernel.count(event.rows)
            return table_rows.images.count(event.rows) if count is None else count
        except BinlogError:
            self._uncounted = b"they cannot be read"
            return 0

    def flush(self) -> None:
        """Write what the events of a statement gave: heads that waited, the BINLOG statement, the rows."""
        page = self._page
        page.copy(self._heads)
        if self._large or self._base64:
            page.parts.append(b"\nBINLOG '\n")
            for before, pieces in self._large:
                page.copy(before)
                for lines in base64_lines_of(pieces()):
                    page.parts.append(lines)
                    page.flush()
            self._large.clear()
            page.copy(self._base64)
            page.parts.append(b"'" + END)
        page.copy(self._text)
        if self._has_rows and page.is_mariadb and page.options.row_count:
            why = self._uncounted
            count = b"%d" % self._row_count if why is None else b"not counted, " + why
            page.parts.append(b"# Number of rows: %b\n" % count)
        self._has_rows, self._row_count, self._uncounted = False, 0, None

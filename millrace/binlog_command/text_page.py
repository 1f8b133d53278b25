"""What all parts of the text output write on: the text so far, and how it is written."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from millrace.binlog.declaration import Event
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.header import EventHeader
from millrace.binlog.server_version import ServerVersion
from millrace.binlog_command.generation import Generation, generation_of
from millrace.binlog_command.hexdump import HexdumpLayout, hexdump
from millrace.binlog_command.records import MAX_UNPACKED_SIZE, LogRecord
from millrace.binlog_command.rewrite import DatabaseRewrite
from millrace.binlog_command.row_printer import in_comment
from millrace.binlog_command.session_text import DELIMITER, SessionText
from millrace.binlog_command.spool import Spool

END = DELIMITER + b"\n"
"""What stands after each statement."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How a log is written as text.

    ``verbose`` 1 adds the rows as comments; 2 adds the types, and the statements that wrote the rows.
    ``base64_output`` says what becomes of events that only BINLOG statements can carry: ``auto`` writes
    these, ``decode-rows`` leaves them out, ``never`` makes them an error. ``short_form`` leaves out all
    comments and row events. ``local_load`` is the folder for the files of LOAD DATA statements, by default
    that for temporary files. ``disable_log_bin``, ``set_charset``, ``idempotent`` and
    ``require_row_format`` set variables of the session that loads the text; the last makes statements that
    change rows an error. ``table_metadata`` adds what a table map says of the columns. ``row_count``,
    ``positions`` and ``annotations`` are parts that the text of MariaDB's logs can do without; ``by_gtid``
    says that transactions were chosen by domain or server, after which their ids are set back. ``generation``
    overrides what the log's server suggests. The compressed values of an event are unpacked up to
    ``max_unpacked`` in all.
    """

    verbose: int = 0
    base64_output: Literal["auto", "decode-rows", "never"] = "auto"
    hexdump: bool = False
    short_form: bool = False
    skip_gtids: bool = False
    local_load: Path | None = None
    rewrite_db: DatabaseRewrite = field(default_factory=DatabaseRewrite)
    disable_log_bin: bool = False
    set_charset: str | None = None
    idempotent: bool = False
    require_row_format: bool = False
    table_metadata: bool = False
    row_count: bool = True
    positions: bool = True
    annotations: bool = True
    by_gtid: bool = False
    generation: Generation | None = None
    max_unpacked: int = MAX_UNPACKED_SIZE


@lru_cache(maxsize=4096)
def clock(timestamp: int) -> bytes:
    """Write a time as mysqlbinlog does, in the time zone of the process."""
    now = time.localtime(timestamp)
    return b"%02d%02d%02d %2d:%02d:%02d" % (now.tm_year % 100, *now[1:6])


Write = Callable[[bytes], Any]
"""Takes text that is written, or that waits."""

Writers = dict[type[Event], Callable[[LogRecord, EventHeader, Any], None]]
"""What writes the events of each type."""


class TextPage:
    """The text that is being written: options, generation, session, and the event at hand.

    ``parts`` is what is to be written next. ``data`` and ``position`` are those of the event at hand;
    ``payload_end`` is where the payload ends that it is inside of.
    """

    def __init__(self, stream: BinaryIO, options: TextOptions) -> None:
        self._stream = stream
        self.options = options
        self.parts: list[bytes] = []
        self.data = b""
        self.position = 0
        self.payload_end = 0
        self.begin("")

    def begin(self, server_version: str) -> None:
        """Choose the generation by the server of the first log."""
        self.generation = self.options.generation or generation_of(server_version)
        self.is_mariadb = self.generation.is_mariadb
        self.server_version = ServerVersion.parse(server_version).version
        utf8mb3 = self.server_version >= (10, 6) or self.generation in (
            Generation.MYSQL_8_0,
            Generation.MARIADB_10_11,
        )
        self.session = SessionText(
            self.generation,
            short_form=self.options.short_form,
            utf8mb3=utf8mb3,
            sets_thread=not self.options.require_row_format,
        )

    def begin_log(self, server_version: str) -> None:
        """Take note of the server that wrote the log that begins."""
        self.server_version = ServerVersion.parse(server_version).version
        self.session.begin_log(self.server_version)

    def flush(self) -> None:
        """Write what is there."""
        if self.parts:
            self._stream.write(b"".join(self.parts))
            self.parts.clear()

    def copy(self, waiting: Spool) -> None:
        """Write what has waited, after what is there."""
        for piece in waiting.take():
            self.parts.append(piece)
            self.flush()

    def comment(self, text: bytes) -> None:
        """Write a comment, which short text does not have."""
        if not self.options.short_form:
            self.parts.append(text)

    def head(self, record: LogRecord, header: EventHeader, write: Write | None = None) -> bytes:
        """Return the line that an event begins with, up to where the type's own text follows.

        With ``hexdump`` that is the line after the bytes, which are written by then: by ``write``, or next.
        """
        position = header.next_position
        checksum = b""
        decoded = record.event
        assert isinstance(decoded, BinlogEvent)
        # A format description has one in a log without any, too.
        if decoded.checksum is not None and getattr(decoded.event, "has_checksums", True):
            checksum = b"CRC32 0x%08x " % int.from_bytes(decoded.checksum, "little")
        if record.sub_index:
            position = self.payload_end
            if len(self.data) != len(record.data):
                checksum = b"CRC32 0x%08x " % int.from_bytes(self.data[-4:], "little")
        log_format = record.state.format
        if position and log_format is not None and log_format.binlog_version < 4:
            position += header.event_size  # these logs have the event's start there
        line = b"#%b server id %d  end_log_pos %d %b" % (
            clock(header.timestamp),
            header.server_id,
            position,
            checksum,
        )
        if not self.options.hexdump:
            return line
        mark = b"# "
        layout = HexdumpLayout.MYSQL
        if self.generation.is_mariadb:
            layout, mark = HexdumpLayout.MARIADB, b"# Event: "
        elif self.generation is not Generation.MYSQL_8_0:
            layout = HexdumpLayout.MYSQL_OLD
        has_fields = log_format is None or log_format.binlog_version > 3
        write = write or self.parts.append
        write(line + b"\n")
        for piece in hexdump(self.data, self.position, layout, has_fields=has_fields):
            write(piece)
            self.flush()
        return mark

    def title(
        self, record: LogRecord, header: EventHeader, title: bytes, write: Write | None = None
    ) -> bytes:
        """Return what :meth:`head` does, and the event's title, in which no name may break the line."""
        return b"%b\t%b\n" % (self.head(record, header, write), in_comment(title))

    def titled(self, record: LogRecord, header: EventHeader, title: bytes) -> None:
        """Write the first line of an event with its title."""
        if not self.options.short_form:
            self.parts.append(self.title(record, header, title))

    def sql(self, statement: bytes) -> None:
        """Write a statement of one line."""
        self.parts.append(self.session.ended(statement))

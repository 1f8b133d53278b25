"""The text of a log as mysqlbinlog writes it: comments for people, and SQL that a client can load.

There is no one such text: each generation of ``mysqlbinlog`` and ``mariadb-binlog`` writes its own, and a log
is written in that of the server it comes from (:func:`~millrace.binlog_command.generation.generation_of`),
which its client understands best. The forms were taken from what these programs print, and from
``Log_event::print`` in the servers' ``sql/log_event.cc`` and ``sql/log_event_client.cc``.

We differ where the text could not be loaded otherwise, or would lose something:

- INSERT_ID, seeds and user variables come before the LOAD DATA statement that uses them (MySQL's program
  keeps them for the next statement that is none);
- a real user variable has all its digits where 14 are not enough;
- ``### …`` lines never stand inside a BINLOG statement;
- values that mysqlbinlog prints wrongly are printed right: see :mod:`millrace.binlog_command.row_printer`.

All output is bytes: the text of a statement is in its client's character set.
"""

from typing import BinaryIO

from millrace.binlog.checksum import with_checksum
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import (
    FormatDescriptionEvent,
    IntvarEvent,
    PreviousGtidsLogEvent,
    RandEvent,
    RotateEvent,
    StartEventV3,
    StopEvent,
    TransactionIdEvent,
    UserVarEvent,
)
from millrace.binlog.types import HeaderFlag
from millrace.binlog_command.control_text import ControlText
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.gtid_text import GtidText
from millrace.binlog_command.load_text import LoadText
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.row_printer import comment_text
from millrace.binlog_command.rows_event_text import RowsText
from millrace.binlog_command.statement_text import StatementText, refuse_statement
from millrace.binlog_command.text_page import TextOptions, TextPage, Writers

__all__ = ["TextOptions", "TextOutput"]

_HEAD_8_0 = (
    b"# The proper term is pseudo_replica_mode, but we use this compatibility alias\n"
    b"# to make the statement usable on server versions 8.0.24 and older.\n"
)
_CHARSET_HEAD = (
    b"\n/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;\n"
    b"/*!40101 SET @OLD_CHARACTER_SET_RESULTS=@@CHARACTER_SET_RESULTS */;\n"
    b"/*!40101 SET @OLD_COLLATION_CONNECTION=@@COLLATION_CONNECTION */;\n"
    b"/*!40101 SET NAMES %b */;\n"
)
_CHARSET_TAIL = (
    b"/*!40101 SET CHARACTER_SET_CLIENT=@OLD_CHARACTER_SET_CLIENT */;\n"
    b"/*!40101 SET CHARACTER_SET_RESULTS=@OLD_CHARACTER_SET_RESULTS */;\n"
    b"/*!40101 SET COLLATION_CONNECTION=@OLD_COLLATION_CONNECTION */;\n"
)
_MAX_WAITING = 1000
"""More settings than a statement can have: there is one for each of its user variables."""
_MAX_WAITING_BYTES = 16 << 20
_SKIP_REPLICATION = int(HeaderFlag.SKIP_REPLICATION_F)
_GTIDS = (TransactionIdEvent, PreviousGtidsLogEvent)
_SETTINGS = frozenset({IntvarEvent, RandEvent, UserVarEvent})
_ENDS = frozenset({RotateEvent, StopEvent})


def _unreadable(error: BinlogError) -> bytes:
    return b"# This event cannot be read: %b\n" % comment_text(str(error))


class TextOutput:
    """Writes records as text to ``stream``."""

    def __init__(self, stream: BinaryIO, options: TextOptions | None = None) -> None:
        self._page = page = TextPage(stream, options or TextOptions())
        self._gtids = GtidText(page)
        self._statements = StatementText(page, self._gtids)
        self._rows = RowsText(page)
        self._load = LoadText(page, self._statements)
        self._control = ControlText(page, self._gtids, self._statements, self._rows)
        self._writers: Writers = {
            **self._gtids.writers,
            **self._statements.writers,
            **self._rows.writers,
            **self._load.writers,
            **self._control.writers,
        }
        self._begun = False
        self._waiting: list[LogRecord] = []
        self._waiting_bytes = 0
        self._skip_replication = False

    def write(self, record: LogRecord) -> None:
        """Write an event; raises UserError where it cannot be written as the options want it."""
        decoded = record.event
        if isinstance(decoded, BinlogError):
            self._write_error(record, decoded)
        else:
            self._write_event(record, decoded)
        self._page.flush()

    def close(self) -> None:
        """Write what is still waiting, and the end of the text."""
        page = self._page
        if not self._begun:
            self._begin("")
        self._flush_waiting()
        self._rows.flush()
        if self._control.in_payload:
            self._control.end_payload()
        generation = page.generation
        if generation in (Generation.MYSQL_5_7, Generation.MYSQL_8_0):
            if self._statements.in_transaction:
                page.parts.append(b"ROLLBACK /* added by mysqlbinlog */ /*!*/;\n")
            if not page.options.skip_gtids:
                self._gtids.automatic()
        page.parts.append(b"DELIMITER ;\n# End of log file\n")
        if generation <= Generation.MYSQL_5_6 or generation.is_mariadb:
            page.parts.append(b"ROLLBACK /* added by mysqlbinlog */;\n")
        page.parts.append(b"/*!50003 SET COMPLETION_TYPE=@OLD_COMPLETION_TYPE*/;\n")
        if page.options.disable_log_bin:
            page.parts.append(b"/*!32316 SET SQL_LOG_BIN=@OLD_SQL_LOG_BIN*/;\n")
        if page.options.set_charset is not None:
            page.parts.append(_CHARSET_TAIL)
        page.parts.append(b"/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=0*/;\n")
        if page.options.idempotent:
            page.parts.append(b"/*!50700 SET @@SESSION.RBR_EXEC_MODE=STRICT*/;\n")
        if page.is_mariadb and page.options.by_gtid:
            page.parts.append(b"/*!100001 SET @@SESSION.SERVER_ID=@@GLOBAL.SERVER_ID */;\n")
            page.parts.append(b"/*!100001 SET @@SESSION.GTID_DOMAIN_ID=@@GLOBAL.GTID_DOMAIN_ID */;\n")
        page.flush()
        self._load.close()

    def _begin(self, server_version: str) -> None:
        """Write the head, in the generation of the first log."""
        self._begun = True
        page = self._page
        page.begin(server_version)
        generation = page.generation
        if generation is Generation.MYSQL_8_0:
            page.parts.append(_HEAD_8_0)
        page.parts.append(b"/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=1*/;\n")
        if generation is Generation.MARIADB_10_11:
            page.parts.append(b"/*!40019 SET @@session.max_delayed_threads=0*/;\n")
        elif generation <= Generation.MYSQL_5_6 or generation.is_mariadb:
            page.parts.append(b"/*!40019 SET @@session.max_insert_delayed_threads=0*/;\n")
        options = page.options
        if options.disable_log_bin:
            page.parts.append(b"/*!32316 SET @OLD_SQL_LOG_BIN=@@SQL_LOG_BIN, SQL_LOG_BIN=0*/;\n")
        page.parts.append(b"/*!50003 SET @OLD_COMPLETION_TYPE=@@COMPLETION_TYPE,COMPLETION_TYPE=0*/;\n")
        if options.set_charset is not None:
            page.parts.append(_CHARSET_HEAD % options.set_charset.encode())
        if options.idempotent:
            page.parts.append(b"/*!50700 SET @@SESSION.RBR_EXEC_MODE=IDEMPOTENT*/;\n\n")
        if options.require_row_format:
            page.parts.append(b"/*!80019 SET @@SESSION.REQUIRE_ROW_FORMAT=1*/;\n\n")
        page.parts.append(b"DELIMITER /*!*/;\n")

    def _begin_with(self, record: LogRecord, decoded: BinlogEvent) -> None:
        """Write the head, as the log of the first event wants it."""
        log_format = record.state.format
        origin = None if log_format is None else log_format.origin
        if isinstance(decoded.event, FormatDescriptionEvent | StartEventV3):
            origin = decoded.event
        self._begin("" if origin is None else origin.version)

    def _write_error(self, record: LogRecord, error: BinlogError) -> None:
        if not self._begun:
            self._begin("")
        self._page.parts.append(b"# at %d\n%b" % (record.position, _unreadable(error)))

    def _write_event(self, record: LogRecord, decoded: BinlogEvent) -> None:
        event, page = decoded.event, self._page
        kind = type(event)
        if not self._begun:
            self._begin_with(record, decoded)
        if self._control.in_payload and not record.sub_index:
            self._control.end_payload()
        if page.options.skip_gtids and isinstance(event, _GTIDS):
            if not (page.is_mariadb or page.options.short_form):
                page.parts.append(b"# at %d\n" % record.position)
            self._gtids.skip(event)
            return
        if page.options.require_row_format:
            refuse_statement(record, event)
        self._take(record)
        if self._gtids.is_set and kind in _ENDS and page.generation is Generation.MYSQL_5_6:
            self._gtids.automatic()
        if not page.options.short_form and (page.options.positions or not page.is_mariadb):
            page.parts.append(b"# at %d\n" % page.position)
        if page.is_mariadb:
            self._follow_skipping(bool(decoded.header.flags & _SKIP_REPLICATION))
        if kind in _SETTINGS and Generation.MYSQL_5_6 <= page.generation <= Generation.MYSQL_8_0:
            self._waiting.append(record)
            self._waiting_bytes += len(record.data)
            if len(self._waiting) >= _MAX_WAITING or self._waiting_bytes > _MAX_WAITING_BYTES:
                self._flush_waiting()
            return
        if self._waiting:
            self._flush_waiting()
        try:
            self._writers.get(kind, self._control.unknown)(record, decoded.header, event)
        except BinlogError as error:  # in what is unpacked only now
            self._page.parts.append(_unreadable(error))

    def _take(self, record: LogRecord) -> None:
        """Make a record's event the one at hand."""
        page = self._page
        page.data, page.position = record.data, record.position
        if record.sub_index:
            page.position = page.payload_end
            origin = None if record.state.format is None else record.state.format.origin
            # In a log with checksums the events of a payload have them as soon as they are on their own.
            if origin is not None and origin.has_checksums:
                page.data = with_checksum(record.data)

    def _follow_skipping(self, skipped: bool) -> None:
        """Write the change of MariaDB's flag for events that replicas skip."""
        if skipped is not self._skip_replication:
            self._skip_replication = skipped
            self._page.sql(b"/*!50521 SET skip_replication=%d*/" % skipped)

    def _flush_waiting(self) -> None:
        """Write INTVAR and its like, which since 5.6 are kept for their statement."""
        page = self._page
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        data, position = page.data, page.position
        for record in waiting:
            decoded = record.event
            assert isinstance(decoded, BinlogEvent)
            self._take(record)
            self._writers[type(decoded.event)](record, decoded.header, decoded.event)
        page.data, page.position = data, position

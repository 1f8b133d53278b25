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
- values that mysqlbinlog prints wrongly are printed right: see :mod:`millrace.binlog_command.row_text`.

All output is bytes: the text of a statement is in its client's character set.
"""

import base64
import re
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from millrace.binlog.checksum import CHECKSUM_LENGTH
from millrace.binlog.columns.numbers import DecimalFormat, format_double
from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import (
    AnnotateRowsEvent,
    AnonymousGtidLogEvent,
    AppendBlockEvent,
    BeginLoadQueryEvent,
    BinlogCheckpointEvent,
    CompressedRowsEvent,
    CreateFileEvent,
    DeleteFileEvent,
    DeleteRowsEvent,
    DeleteRowsEventV1,
    ExecLoadEvent,
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    GtidEvent,
    GtidLogEvent,
    GtidTaggedLogEvent,
    HeartbeatLogEvent,
    HeartbeatLogEventV2,
    IgnorableLogEvent,
    IncidentEvent,
    IntvarEvent,
    LoadDataEvent,
    LoadEvent,
    MariadbGtidEvent,
    MariadbGtidFlag,
    MariadbGtidListEvent,
    MariadbXid,
    NewLoadEvent,
    PartialRowDataEvent,
    PartialUpdateRowsEvent,
    PreviousGtidsLogEvent,
    QueryCompressedEvent,
    QueryEvent,
    RandEvent,
    RotateEvent,
    RowsEvent,
    RowsOperation,
    RowsQueryLogEvent,
    StartEncryptionEvent,
    StartEventV3,
    StatementEvent,
    StopEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    UpdateRowsEvent,
    UpdateRowsEventV1,
    UserVarEvent,
    WriteRowsEvent,
    WriteRowsEventV1,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.fields import encode_text
from millrace.binlog.gtid import GtidSet
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.statement import Statement, StatementKind
from millrace.binlog.stream import BinlogEvent, seal
from millrace.binlog.types import ChecksumAlgorithm, EventType, HeaderFlag, RowsFlag
from millrace.binlog_command.generation import Generation, generation_of, version_of
from millrace.binlog_command.hexdump import HexdumpLayout, hexdump
from millrace.binlog_command.load_files import LoadFiles
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.rewrite import DatabaseRewrite
from millrace.binlog_command.row_text import RowPrinter, quoted_bytes, quoted_name
from millrace.binlog_command.session_text import DELIMITER, SessionText, charset_name, collation_name
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

__all__ = ["TextOptions", "TextOutput"]


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How a log is written as text.

    ``verbose`` 1 adds the rows as comments; 2 adds the types, and the statements that wrote the rows.
    ``base64_output`` says what becomes of events that only BINLOG statements can carry: ``auto`` writes
    these, ``decode-rows`` leaves them out, ``never`` makes them an error. ``short_form`` leaves out all
    comments and row events. ``local_load`` is the folder for the files of LOAD DATA statements, by default
    that for temporary files. ``generation`` overrides what the log's server suggests.
    """

    verbose: int = 0
    base64_output: Literal["auto", "decode-rows", "never"] = "auto"
    hexdump: bool = False
    short_form: bool = False
    skip_gtids: bool = False
    local_load: Path | None = None
    rewrite_db: DatabaseRewrite = field(default_factory=DatabaseRewrite)
    generation: Generation | None = None


_END = DELIMITER + b"\n"
_GTID_AUTOMATIC = b"SET @@SESSION.GTID_NEXT= 'AUTOMATIC' /* added by mysqlbinlog */ /*!*/;\n"
_HEAD_8_0 = (
    b"# The proper term is pseudo_replica_mode, but we use this compatibility alias\n"
    b"# to make the statement usable on server versions 8.0.24 and older.\n"
)
_RELAY_LOG = (
    b"# This Format_description_event appears in a relay log and was generated by the replica thread.\n"
)
_OPERATIONS = {
    RowsOperation.WRITE: b"Write",
    RowsOperation.UPDATE: b"Update",
    RowsOperation.DELETE: b"Delete",
}
_ROWS_FLAGS: tuple[tuple[int, bytes], ...] = (
    (int(RowsFlag.STMT_END_F), b"STMT_END_F"),
    (int(RowsFlag.NO_FOREIGN_KEY_CHECKS_F), b"NO_FOREIGN_KEY_CHECKS_F"),
    (int(RowsFlag.RELAXED_UNIQUE_CHECKS_F), b"RELAXED_UNIQUE_CHECKS_F"),
    (int(RowsFlag.COMPLETE_ROWS_F), b"COMPLETE_ROWS_F"),
    (0x10, b"USE_SQL_FOREIGN_KEY_F"),
)
_SKIP_REPLICATION = int(HeaderFlag.SKIP_REPLICATION_F)
_TM_HAS_TRIGGERS = 1 << 14
_MAX_PRINTERS = 512
_START_ALTER, _COMMIT_ALTER, _ROLLBACK_ALTER = 2, 4, 8
_MAY_HAVE_SBR = 1
_COMPRESSION_NAMES = {0: b"ZSTD", 255: b"NONE"}
_NEW_LINES = re.compile(rb"[\r\n]+")


@lru_cache(maxsize=4096)
def _clock(timestamp: int) -> bytes:
    """Write a time as mysqlbinlog does, in the time zone of the process."""
    now = time.localtime(timestamp)
    return b"%02d%02d%02d %2d:%02d:%02d" % (now.tm_year % 100, *now[1:6])


@lru_cache(maxsize=4096)
def _second(seconds: int) -> tuple[bytes, bytes]:
    """Write a time in the time zone of the process, and the name of that."""
    now = time.localtime(seconds)
    return b"%04d-%02d-%02d %02d:%02d:%02d" % now[:6], time.strftime("%Z", now).encode()


def _moment(microseconds: int) -> bytes:
    """Write a commit timestamp in the time zone of the process, and the name of that."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    second, zone = _second(seconds)
    return b"%b.%06d %b" % (second, fraction, zone)


def _xid(xid: MariadbXid | XaPrepareLogEvent) -> bytes:
    """Write the name of an XA transaction as SQL does."""
    return b"X'%b',X'%b',%d" % (xid.gtrid.hex().encode(), xid.bqual.hex().encode(), xid.format_id)


def _with_checksum(data: bytes) -> bytes:
    """Give an event from inside a payload the length and the checksum that it has on its own."""
    data = data[:9] + (len(data) + CHECKSUM_LENGTH).to_bytes(4, "little") + data[13:]
    return data + zlib.crc32(data).to_bytes(4, "little")


class TextOutput:
    """Writes records as text to ``stream``."""

    def __init__(self, stream: BinaryIO, options: TextOptions | None = None) -> None:
        self._stream = stream
        self._options = options or TextOptions()
        self._parts: list[bytes] = []
        self._begun = False
        self._generation = self._options.generation or Generation.MYSQL_8_0
        self._session = SessionText(self._generation, short_form=False, utf8mb3=True)
        self._load_files = LoadFiles(self._options.local_load)
        self._created_files: dict[int, CreateFileEvent] = {}
        self._in_transaction = False
        self._gtid_is_set = False
        self._allow_parallel: bool | None = None
        self._gtid_domain: int | None = None
        self._gtid_server: int | None = None
        self._payload_end = 0
        self._in_payload = False
        self._waiting: list[LogRecord] = []
        self._annotation: bytes = b""
        self._rows_heads: list[bytes] = []
        self._rows_base64: list[bytes] = []
        self._rows_text: list[bytes] = []
        self._row_count = 0
        self._printers: dict[object, RowPrinter] = {}
        self._has_fields = True
        self._data = b""
        self._position = 0
        self._two_phase_alter = 0
        self._skip_replication = False
        self._described = False
        self._temporary_tables: dict[tuple[int, str, str], None] = {}
        self._server_version = (0, 0, 0)

    def write(self, record: LogRecord) -> None:
        """Write an event; raises UserError where it cannot be written as the options want it."""
        decoded = record.event
        if isinstance(decoded, BinlogError):
            self._write_error(record, decoded)
        else:
            self._write_event(record, decoded)
        if self._parts:
            self._stream.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        """Write what is still waiting, and the end of the text."""
        if not self._begun:
            self._begin("")
        self._flush_waiting()
        self._flush_rows()
        if self._in_payload:
            self._end_payload()
        out = self._parts
        generation = self._generation
        if generation in (Generation.MYSQL_5_7, Generation.MYSQL_8_0):
            if self._in_transaction:
                out.append(b"ROLLBACK /* added by mysqlbinlog */ /*!*/;\n")
            if not self._options.skip_gtids:
                out.append(_GTID_AUTOMATIC)
        out.append(b"DELIMITER ;\n# End of log file\n")
        if generation <= Generation.MYSQL_5_6 or generation.is_mariadb:
            out.append(b"ROLLBACK /* added by mysqlbinlog */;\n")
        out.append(b"/*!50003 SET COMPLETION_TYPE=@OLD_COMPLETION_TYPE*/;\n")
        out.append(b"/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=0*/;\n")
        self._stream.write(b"".join(out))
        out.clear()
        self._load_files.close()

    def _begin(self, server_version: str) -> None:
        """Write the head, in the generation of the first log."""
        self._begun = True
        if self._options.generation is None:
            self._generation = generation_of(server_version)
        generation = self._generation
        version = version_of(server_version)
        utf8mb3 = version >= (10, 6) or generation in (Generation.MYSQL_8_0, Generation.MARIADB_10_11)
        self._session = SessionText(generation, short_form=self._options.short_form, utf8mb3=utf8mb3)
        out = self._parts
        if generation is Generation.MYSQL_8_0:
            out.append(_HEAD_8_0)
        out.append(b"/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=1*/;\n")
        if generation is Generation.MARIADB_10_11:
            out.append(b"/*!40019 SET @@session.max_delayed_threads=0*/;\n")
        elif generation <= Generation.MYSQL_5_6 or generation.is_mariadb:
            out.append(b"/*!40019 SET @@session.max_insert_delayed_threads=0*/;\n")
        out.append(b"/*!50003 SET @OLD_COMPLETION_TYPE=@@COMPLETION_TYPE,COMPLETION_TYPE=0*/;\n")
        out.append(b"DELIMITER /*!*/;\n")

    def _write_error(self, record: LogRecord, error: BinlogError) -> None:
        if not self._begun:
            self._begin("")
        self._parts.append(b"# at %d\n" % record.position)
        self._parts.append(b"# This event cannot be read: %b\n" % str(error).replace("\n", " ").encode())

    def _write_event(self, record: LogRecord, decoded: BinlogEvent) -> None:
        event = decoded.event
        kind = type(event)
        if not self._begun:
            started = isinstance(event, FormatDescriptionEvent | StartEventV3)
            log_format = record.state.format
            origin = event if started else None if log_format is None else log_format.origin
            self._begin(getattr(origin, "server_version", ""))
        if self._in_payload and not record.sub_index:
            self._end_payload()
        if self._options.skip_gtids and kind in _GTIDS:
            self._skip_gtid(event)
            return
        self._data, self._position = record.data, record.position
        if record.sub_index:
            self._position = self._payload_end
            if decoded.checksum is None and self._inside_has_checksum(record):
                self._data = _with_checksum(record.data)
        if not self._options.short_form:
            if self._generation is Generation.MYSQL_5_6 and self._gtid_is_set and kind in _ENDS:
                self._parts.append(_GTID_AUTOMATIC)
                self._gtid_is_set = False
            self._parts.append(b"# at %d\n" % self._position)
        if self._generation.is_mariadb:
            skipped = bool(decoded.header.flags & _SKIP_REPLICATION)
            if skipped is not self._skip_replication:
                self._skip_replication = skipped
                self._sql(b"/*!50521 SET skip_replication=%d*/" % skipped)
        if kind in _WAITING and self._keeps_settings:
            self._waiting.append(record)
            return
        if self._waiting and not isinstance(event, StatementEvent):
            self._flush_waiting()
        _WRITERS.get(kind, TextOutput._unknown)(self, record, decoded.header, event)

    def _inside_has_checksum(self, record: LogRecord) -> bool:
        """Tell whether the log that a payload stands in has checksums."""
        origin = None if record.state.format is None else record.state.format.origin
        algorithm = getattr(origin, "checksum_algorithm", None)
        return algorithm == ChecksumAlgorithm.CRC32

    @property
    def _keeps_settings(self) -> bool:
        """Whether INTVAR and its like are written with their statement, as MySQL does since 5.6."""
        generation = self._generation
        return Generation.MYSQL_5_6 <= generation <= Generation.MYSQL_8_0

    def _flush_waiting(self) -> None:
        """Write INTVAR and its like, which were kept for their statement."""
        waiting, self._waiting = self._waiting, []
        data, position = self._data, self._position
        for record in waiting:
            decoded = record.event
            assert isinstance(decoded, BinlogEvent)
            self._data, self._position = record.data, record.position
            _WRITERS[type(decoded.event)](self, record, decoded.header, decoded.event)
        self._data, self._position = data, position

    def _head(self, record: LogRecord, header: EventHeader) -> bytes:
        """Write the line that an event begins with, up to where the type's own text follows.

        With ``hexdump`` the bytes come between.
        """
        position = header.next_position
        checksum = b""
        decoded = record.event
        assert isinstance(decoded, BinlogEvent)
        if decoded.checksum is not None and self._names_checksum(decoded.event):
            checksum = b"CRC32 0x%08x " % int.from_bytes(decoded.checksum, "little")
        if record.sub_index:
            position = self._payload_end
            if len(self._data) != len(record.data):
                checksum = b"CRC32 0x%08x " % int.from_bytes(self._data[-4:], "little")
        log_format = record.state.format
        if position and log_format is not None and log_format.binlog_version < 4:
            position += header.event_size  # these logs have the event's start there
        line = b"#%b server id %d  end_log_pos %d %b" % (
            _clock(header.timestamp),
            header.server_id,
            position,
            checksum,
        )
        if not self._options.hexdump:
            return line
        mark = b"# "
        layout = HexdumpLayout.MYSQL
        if self._generation.is_mariadb:
            layout, mark = HexdumpLayout.MARIADB, b"# Event: "
        elif self._generation is not Generation.MYSQL_8_0:
            layout = HexdumpLayout.MYSQL_OLD
        has_fields = log_format is None or log_format.binlog_version > 3
        return line + b"\n" + hexdump(self._data, self._position, layout, has_fields=has_fields) + mark

    @staticmethod
    def _names_checksum(event: Event) -> bool:
        """Tell whether the checksum is shown; a format description has one in a log without any, too."""
        return getattr(event, "checksum_algorithm", ChecksumAlgorithm.CRC32) == ChecksumAlgorithm.CRC32

    def _titled(self, record: LogRecord, header: EventHeader, title: bytes) -> None:
        """Write the first line of an event with its title."""
        if not self._options.short_form:
            self._parts.append(self._head(record, header) + b"\t" + title + b"\n")

    def _sql(self, statement: bytes) -> None:
        self._parts.append(statement + _END)

    # Control events

    def _format_description(
        self, record: LogRecord, header: EventHeader, event: FormatDescriptionEvent | StartEventV3
    ) -> None:
        out = self._parts
        created = event.created
        self._server_version = version_of(event.server_version)
        self._session.begin_log(self._server_version)
        self._flush_rows()
        if not self._options.short_form:
            title = b"Start: binlog v %d, server v %b created %b" % (
                event.binlog_version,
                encode_text(event.server_version),
                _clock(header.timestamp),
            )
            self._titled(record, header, title + (b" at startup" if created else b""))
            if header.flags & HeaderFlag.BINLOG_IN_USE_F:
                out.append(b"# Warning: this binlog is either in use or was not closed properly.\n")
            if header.flags & HeaderFlag.RELAY_LOG_F and self._generation is Generation.MYSQL_8_0:
                out.append(_RELAY_LOG)
        if created and not header.flags & HeaderFlag.ARTIFICIAL_F:
            # The server was started: whatever was open is undone, and temporary tables are gone.
            self._sql(b"ROLLBACK")
            self._in_transaction = False
            self._drop_temporary_tables()
        base64_wanted = self._options.base64_output == "auto" and not self._options.short_form
        has_gtids = Generation.MYSQL_5_6 <= self._generation <= Generation.MYSQL_8_0
        if (
            has_gtids
            and not self._options.skip_gtids
            and (self._gtid_is_set or (base64_wanted and self._described))
        ):
            # BINLOG is neither run under an identifier that is used up, nor under none at all.
            out.append(_GTID_AUTOMATIC)
            self._gtid_is_set = False
        if base64_wanted and isinstance(event, FormatDescriptionEvent):
            out.append(b"BINLOG '\n%b'%b" % (base64.encodebytes(self._data), _END))
            self._described = True
            if has_gtids and self._options.skip_gtids:
                self._sql(b"/*!50616 SET @@SESSION.GTID_NEXT='AUTOMATIC'*/")

    def _drop_temporary_tables(self) -> None:
        """Drop what the sessions before a restart of the server left, as the server did."""
        for thread_id, database, table in self._temporary_tables:
            self._sql(self._session.thread_line(thread_id))
            name = quoted_name(table)
            if database:
                name = b"%b.%b" % (quoted_name(self._options.rewrite_db.name(database)), name)
            self._sql(b"DROP TEMPORARY TABLE IF EXISTS " + name)
        self._temporary_tables.clear()

    def _rotate(self, record: LogRecord, header: EventHeader, event: RotateEvent) -> None:
        name = encode_text(event.new_log_ident)
        self._titled(record, header, b"Rotate to %b  pos: %d" % (name, event.position))

    def _stop(self, record: LogRecord, header: EventHeader, event: StopEvent) -> None:
        self._titled(record, header, b"Stop")

    def _incident(self, record: LogRecord, header: EventHeader, event: IncidentEvent) -> None:
        name = {0: b"NOTHING", 1: b"LOST_EVENTS"}.get(event.incident, b"#%d" % event.incident)
        if not self._options.short_form:
            head = self._head(record, header)
            error = b"RELOAD DATABASE; # Shall generate syntax error\n"
            self._parts.append(b"%b\n# Incident: %b\n%b" % (head, name, error))

    def _heartbeat(
        self, record: LogRecord, header: EventHeader, event: HeartbeatLogEvent | HeartbeatLogEventV2
    ) -> None:
        self._titled(record, header, b"Heartbeat")

    def _ignorable(self, record: LogRecord, header: EventHeader, event: Event) -> None:
        if not self._options.short_form:
            head = self._head(record, header)
            self._parts.append(b"%b\tIgnorable\n# Unrecognized ignorable event\n" % head)

    def _unknown(self, record: LogRecord, header: EventHeader, event: Event) -> None:
        if self._options.short_form:
            return
        if header.flags & HeaderFlag.IGNORABLE_F:
            self._ignorable(record, header, event)
            return
        declaration = EVENTS.get(header.type_code)
        name = b"" if declaration is None else b" (%b)" % declaration.event_type.name.encode()
        head = self._head(record, header)
        self._parts.append(b"%b\n# Unknown event%b\n" % (head, name))

    def _encryption(self, record: LogRecord, header: EventHeader, event: StartEncryptionEvent) -> None:
        if not self._options.short_form:
            nonce = event.nonce.hex().encode()
            scheme = b"# Encryption scheme: %d, key_version: %d, nonce: %b\n"
            self._parts.append(scheme % (event.crypto_scheme, event.key_version, nonce))
            self._parts.append(b"# The rest of the binlog is encrypted!\n")

    # GTIDs

    def _skip_gtid(self, event: Event) -> None:
        """Leave out a GTID; MariaDB's says that a transaction begins, which stays."""
        if isinstance(event, MariadbGtidEvent):
            self._begin_of_gtid(event)

    def _previous_gtids(self, record: LogRecord, header: EventHeader, event: PreviousGtidsLogEvent) -> None:
        if self._options.short_form:
            return
        self._titled(record, header, b"Previous-GTIDs")
        text = str(GtidSet.from_event(event)).encode()
        self._parts.append(b"# %b\n" % (text.replace(b",", b",\n# ") or b"[empty]"))

    def _gtid(self, record: LogRecord, header: EventHeader, event: GtidEvent | GtidTaggedLogEvent) -> None:
        out = self._parts
        anonymous = isinstance(event, AnonymousGtidLogEvent)
        rbr_only = not event.gtid_flags & _MAY_HAVE_SBR
        name = b"Anonymous_GTID" if anonymous else b"GTID"
        if self._generation <= Generation.MYSQL_5_6:
            self._titled(record, header, b"%b [commit=%b]" % (name, b"no" if rbr_only else b"yes"))
        else:
            title = b"%b\tlast_committed=%d\tsequence_number=%d\trbr_only=%b" % (
                name,
                event.last_committed or 0,
                event.sequence_number or 0,
                b"yes" if rbr_only else b"no",
            )
            if self._generation is Generation.MYSQL_8_0:
                title += self._commit_title(event)
            self._titled(record, header, title)
            if rbr_only and self._generation >= Generation.MYSQL_5_7:
                self._sql(b"/*!50718 SET TRANSACTION ISOLATION LEVEL READ COMMITTED*/")
            if self._generation is Generation.MYSQL_8_0:
                self._commit_details(event)
        value = b"ANONYMOUS" if anonymous else event.gtid.encode()
        out.append(b"SET @@SESSION.GTID_NEXT= '%b'%b" % (value, _END))
        self._gtid_is_set = True

    @staticmethod
    def _commit_timestamps(event: GtidEvent | GtidTaggedLogEvent) -> tuple[int, int]:
        immediate = event.immediate_commit_timestamp or 0
        original = event.original_commit_timestamp
        return immediate, immediate if original is None else original

    def _commit_title(self, event: GtidEvent | GtidTaggedLogEvent) -> bytes:
        immediate, original = self._commit_timestamps(event)
        return b"\toriginal_committed_timestamp=%d\timmediate_commit_timestamp=%d\ttransaction_length=%d" % (
            original,
            immediate,
            event.transaction_length or 0,
        )

    def _commit_details(self, event: GtidEvent | GtidTaggedLogEvent) -> None:
        immediate, original = self._commit_timestamps(event)
        out = self._parts
        if not self._options.short_form:
            out.append(b"# original_commit_timestamp=%d (%b)\n" % (original, _moment(original)))
            out.append(b"# immediate_commit_timestamp=%d (%b)\n" % (immediate, _moment(immediate)))
        self._sql(b"/*!80001 SET @@session.original_commit_timestamp=%d*/" % original)
        immediate_version = event.immediate_server_version
        if immediate_version is None:
            immediate_version = 0 if event.immediate_commit_timestamp is None else _UNKNOWN_VERSION
        original_version = event.original_server_version
        if original_version is None:
            original_version = immediate_version
        self._sql(b"/*!80014 SET @@session.original_server_version=%d*/" % original_version)
        self._sql(b"/*!80014 SET @@session.immediate_server_version=%d*/" % immediate_version)

    def _mariadb_gtid(self, record: LogRecord, header: EventHeader, event: MariadbGtidEvent) -> None:
        flags2 = event.flags2
        extra = event.flags_extra
        self._two_phase_alter = extra & (_START_ALTER | _COMMIT_ALTER | _ROLLBACK_ALTER)
        title = b"GTID %b" % event.gtid(header.server_id).encode()
        if event.commit_id is not None:
            title += b" cid=%d" % event.commit_id
        if flags2 & MariadbGtidFlag.DDL:
            title += b" ddl"
        if flags2 & MariadbGtidFlag.TRANSACTIONAL:
            title += b" trans"
        if flags2 & MariadbGtidFlag.WAITED:
            title += b" waited"
        if extra & _START_ALTER:
            title += b" START ALTER"
        if extra & _COMMIT_ALTER:
            title += b" COMMIT ALTER id= %d" % (event.start_alter_seq_no or 0)
        if extra & _ROLLBACK_ALTER:
            title += b" ROLLBACK ALTER id= %d" % (event.start_alter_seq_no or 0)
        if event.thread_id is not None:
            title += b" thread_id=%d" % event.thread_id
        self._titled(record, header, title)
        mark = b"/*!" if self._generation is Generation.MARIADB_10_2 else b"/*M!"
        parallel = bool(flags2 & MariadbGtidFlag.ALLOW_PARALLEL)
        if parallel is not self._allow_parallel:
            self._allow_parallel = parallel
            self._sql(b"%b100101 SET @@session.skip_parallel_replication=%d*/" % (mark, not parallel))
        if event.domain_id != self._gtid_domain:
            self._gtid_domain = event.domain_id
            self._sql(b"%b100001 SET @@session.gtid_domain_id=%d*/" % (mark, event.domain_id))
        if header.server_id != self._gtid_server:
            self._gtid_server = header.server_id
            self._sql(b"%b100001 SET @@session.server_id=%d*/" % (mark, header.server_id))
        self._sql(b"%b100001 SET @@session.gtid_seq_no=%d*/" % (mark, event.seq_no))
        self._begin_of_gtid(event)

    def _begin_of_gtid(self, event: MariadbGtidEvent) -> None:
        if event.flags2 & MariadbGtidFlag.STANDALONE:
            return
        if event.flags2 & MariadbGtidFlag.PREPARED_XA and event.xid is not None:
            self._sql(b"XA START %b" % _xid(event.xid))
        elif not event.flags2 & MariadbGtidFlag.COMPLETED_XA:
            begin = b"BEGIN" if self._generation < Generation.MARIADB_10_2 else b"START TRANSACTION"
            self._parts.append(b"%b\n%b" % (begin, _END))

    def _gtid_list(self, record: LogRecord, header: EventHeader, event: MariadbGtidListEvent) -> None:
        entries = [(entry.domain_id, entry.server_id, entry.seq_no) for entry in event.entries]
        if self._generation is Generation.MARIADB_10_11:
            entries.sort()
        text = ",\n# ".join(f"{domain}-{server}-{sequence}" for domain, server, sequence in entries)
        self._titled(record, header, b"Gtid list [%b]" % text.encode())

    def _checkpoint(self, record: LogRecord, header: EventHeader, event: BinlogCheckpointEvent) -> None:
        self._titled(record, header, b"Binlog checkpoint %b" % encode_text(event.binlog_filename))

    # Statements and what belongs to them

    def _statement_head(
        self, record: LogRecord, header: EventHeader, event: StatementEvent, name: bytes
    ) -> None:
        if not self._options.short_form:
            title = b"%b\tthread_id=%d\texec_time=%d\terror_code=%d" % (
                name,
                event.thread_id,
                event.exec_time,
                event.error_code,
            )
            variables = event.status_variables
            if self._generation is Generation.MARIADB_10_11:
                title += b"\txid=%d" % ((variables.xid if variables is not None else 0) or 0)
            elif variables is not None and variables.ddl_logged_with_xid is not None:
                title += b"\tXid = %d" % variables.ddl_logged_with_xid
            self._titled(record, header, title)
        statement = record.transaction.statement if record.transaction is not None else None
        controls = statement is not None and statement.kind in _CONTROLS
        database = self._options.rewrite_db.name(event.database)
        self._parts += self._session.lines(event, header, database, controls=controls)

    def _query(
        self, record: LogRecord, header: EventHeader, event: QueryEvent | QueryCompressedEvent
    ) -> None:
        if self._waiting:
            self._flush_waiting()
        name = b"Query_compressed" if isinstance(event, QueryCompressedEvent) else b"Query"
        self._statement_head(record, header, event, name)
        if self._two_phase_alter:
            self._alter_in_two_phases(event)
            return
        self._parts.append(b"%b\n%b" % (event.query, _END))
        statement = record.transaction.statement if record.transaction is not None else None
        if statement is not None:
            self._follow(statement)
            if statement.temporary:
                self._follow_temporary(event, statement)

    def _follow(self, statement: Statement) -> None:
        """Note whether a transaction is open at the end of the text."""
        if statement.kind in (StatementKind.BEGIN, StatementKind.XA_START):
            self._in_transaction = True
        elif statement.kind in (StatementKind.COMMIT, StatementKind.ROLLBACK, StatementKind.XA_ROLLBACK):
            self._in_transaction = False

    def _follow_temporary(self, event: StatementEvent, statement: Statement) -> None:
        """Note which temporary tables there are."""
        for table in statement.tables:
            key = (event.thread_id, table.database or event.database, table.table)
            if statement.verb == "DROP":
                self._temporary_tables.pop(key, None)
            else:
                self._temporary_tables[key] = None

    def _alter_in_two_phases(self, event: QueryEvent | QueryCompressedEvent) -> None:
        """Write a part of MariaDB's ALTER in two phases, which only an event can say."""
        phase, self._two_phase_alter = self._two_phase_alter, 0
        out = self._parts
        if self._options.base64_output == "auto" and not self._options.short_form:
            comment = phase != _COMMIT_ALTER
            out.append(b"/*!100600 BINLOG '\n" if comment else b"BINLOG '\n")
            out.append(base64.encodebytes(self._data))
            out.append(b"' */%b" % _END if comment else b"'%b" % _END)
        if self._options.verbose:
            out.append(b"### %b\n" % event.query)

    def _intvar(self, record: LogRecord, header: EventHeader, event: IntvarEvent) -> None:
        self._titled(record, header, b"Intvar")
        name = {1: b"LAST_INSERT_ID", 2: b"INSERT_ID"}.get(event.type, b"INVALID_INT")
        self._sql(b"SET %b=%d" % (name, event.value))

    def _rand(self, record: LogRecord, header: EventHeader, event: RandEvent) -> None:
        self._titled(record, header, b"Rand")
        self._sql(b"SET @@RAND_SEED1=%d, @@RAND_SEED2=%d" % (event.seed1, event.seed2))

    def _user_var(self, record: LogRecord, header: EventHeader, event: UserVarEvent) -> None:
        self._titled(record, header, b"User_var")
        session_charset = self._session.charset
        switched = self._generation is Generation.MYSQL_8_0 and session_charset is not None
        if switched:
            assert session_charset is not None
            connection = session_charset[1] if event.type in _NUMERIC_RESULTS else _UTF8
            for line in self._session.charset_lines((_UTF8, connection, _UTF8)):
                self._sql(line)
        self._sql(b"SET @%b:=%b" % (quoted_name(event.name), self._user_value(event)))
        if switched:
            assert session_charset is not None
            for line in self._session.charset_lines(session_charset):
                self._sql(line)

    def _user_value(self, event: UserVarEvent) -> bytes:
        """Write the value of a user variable so that it comes back in its type."""
        value = event.value
        if value is None:
            return b"NULL"
        if event.type == _REAL_RESULT and len(value) == 8:
            return _real(struct.unpack("<d", value)[0])
        if event.type == _INT_RESULT and len(value) == 8:
            return b"%d" % int.from_bytes(value, "little", signed=not (event.flags or 0) & 1)
        if event.type == _DECIMAL_RESULT and len(value) > 2:
            return f"{DecimalFormat(value[0], value[1]).decode(value[2:]):f}".encode()
        return self._user_string(value, event.charset or 0)

    def _user_string(self, value: bytes, collation: int) -> bytes:
        utf8mb3 = self._session.utf8mb3
        charset = charset_name(collation, utf8mb3=utf8mb3)
        name = collation_name(collation, mariadb=self._generation.is_mariadb, utf8mb3=utf8mb3)
        if charset is None:
            return b"???"  # as mysqlbinlog: an error is better than another string
        digits = value.hex().upper().encode()
        literal = b"X'%b'" % digits if self._generation.is_mariadb else b"0x%b" % digits
        if not digits:
            literal = b"X''" if self._generation.is_mariadb else b"''"
        collate = b"" if name is None else b" COLLATE `%b`" % name.encode()
        return b"_%b %b%b" % (charset.encode(), literal, collate)

    def _rows_query(self, record: LogRecord, header: EventHeader, event: RowsQueryLogEvent) -> None:
        if self._options.short_form or self._options.verbose < 2:
            return
        self._titled(record, header, b"Rows_query")
        self._parts.append(b"# %b\n" % event.query.replace(b"\n", b"\n# "))

    def _annotate_rows(self, record: LogRecord, header: EventHeader, event: AnnotateRowsEvent) -> None:
        """Keep MariaDB's annotation for the table map that follows, as mariadb-binlog does."""
        if self._options.short_form:
            head = b"# Annotate_rows:\n"
        else:
            head = self._head(record, header) + b"\tAnnotate_rows:\n"
        lines = [line for line in _NEW_LINES.split(event.query) if line]
        self._annotation = head + b"".join(b"#Q> %b\n" % line for line in lines)

    def _xid_event(self, record: LogRecord, header: EventHeader, event: XidEvent) -> None:
        self._titled(record, header, b"Xid = %d" % event.xid)
        self._sql(b"COMMIT")
        self._in_transaction = False

    def _xa_prepare(self, record: LogRecord, header: EventHeader, event: XaPrepareLogEvent) -> None:
        name = _xid(event)
        title = b"XID = " if self._generation.is_mariadb else b"XA PREPARE "
        self._titled(record, header, title + name)
        statement = b"XA COMMIT %b ONE PHASE" if event.one_phase else b"XA PREPARE %b"
        self._parts.append(statement % name + b"\n" + _END)

    def _payload(self, record: LogRecord, header: EventHeader, event: TransactionPayloadEvent) -> None:
        self._payload_end = record.position + len(record.data)
        title = b"Transaction_Payload\t\tpayload_size=%d\tcompression_type=%b\tuncompressed_size=%d" % (
            len(event.payload),
            _COMPRESSION_NAMES.get(event.compression_type, b"%d" % event.compression_type),
            event.uncompressed_size or 0,
        )
        self._titled(record, header, title)
        self._in_payload = True
        if not self._options.short_form:
            self._parts.append(b"# Start of compressed events.\n")

    def _end_payload(self) -> None:
        self._in_payload = False
        if not self._options.short_form:
            self._parts.append(b"# End of compressed events.\n")

    def _fragment(self, record: LogRecord, header: EventHeader, event: PartialRowDataEvent) -> None:
        """Write a comment; the rows event comes behind its last fragment."""
        self._payload_end = header.next_position or record.position + len(record.data)
        title = b"Partial_row_data: fragment %d of %d" % (event.seq_no, event.total_fragments)
        self._titled(record, header, title)

    # LOAD DATA

    def _begin_load(self, record: LogRecord, header: EventHeader, event: BeginLoadQueryEvent) -> None:
        self._block(record, header, b"Begin_load_query", event)
        self._load_files.begin(event.file_id, event.block_data)

    def _append_block(self, record: LogRecord, header: EventHeader, event: AppendBlockEvent) -> None:
        self._block(record, header, b"Append_block", event)
        if not self._load_files.append(event.file_id, event.block_data):
            self._parts.append(b"# Ignored: file %d has no first block here.\n" % event.file_id)

    def _block(
        self,
        record: LogRecord,
        header: EventHeader,
        name: bytes,
        event: AppendBlockEvent | BeginLoadQueryEvent,
    ) -> None:
        if not self._options.short_form:
            text = b"#%b: file_id: %d  block_len: %d\n" % (name, event.file_id, len(event.block_data))
            self._parts.append(b"%b\n%b" % (self._head(record, header), text))

    def _delete_file(self, record: LogRecord, header: EventHeader, event: DeleteFileEvent) -> None:
        if not self._options.short_form:
            head = self._head(record, header)
            self._parts.append(b"%b\n#Delete_file: file_id=%d\n" % (head, event.file_id))
        self._load_files.drop(event.file_id)
        self._created_files.pop(event.file_id, None)

    def _execute_load(self, record: LogRecord, header: EventHeader, event: ExecuteLoadQueryEvent) -> None:
        if self._waiting:
            self._flush_waiting()
        self._statement_head(record, header, event, b"Execute_load_query")
        path = self._load_files.take(event.file_id)
        query = event.query
        if path is None:
            self._parts.append(b"# Ignored: file %d has no first block here.\n" % event.file_id)
            query = b"# " + query.replace(b"\n", b"\n# ")
        else:
            name = quoted_bytes(encode_text(str(path)))
            replace = b" REPLACE" if event.dup_handling == _REPLACE else b""
            start, rest = query[: event.fn_pos_start], query[event.fn_pos_end :]
            query = b"%b LOCAL INFILE %b%b INTO%b" % (start, name, replace, rest)
        self._parts.append(b"%b\n%b" % (query, _END))
        if not self._options.short_form:
            self._parts.append(b"# file_id: %d \n" % event.file_id)

    def _create_file(self, record: LogRecord, header: EventHeader, event: CreateFileEvent) -> None:
        if not self._options.short_form:
            text = b"# file_id: %d  block_len: %d\n" % (event.file_id, len(event.block_data))
            self._parts.append(b"%b\n%b" % (self._head(record, header), text))
        self._load_files.begin(event.file_id, event.block_data)
        self._created_files[event.file_id] = event

    def _exec_load(self, record: LogRecord, header: EventHeader, event: ExecLoadEvent) -> None:
        if not self._options.short_form:
            head = self._head(record, header)
            self._parts.append(b"%b\n#Exec_load: file_id=%d\n" % (head, event.file_id))
        created = self._created_files.pop(event.file_id, None)
        path = self._load_files.take(event.file_id)
        if created is None or path is None:
            self._parts.append(b"# Ignored: file %d has no first block here.\n" % event.file_id)
            return
        self._load_statement(created, header, b"LOCAL INFILE " + quoted_bytes(encode_text(str(path))))

    def _load(self, record: LogRecord, header: EventHeader, event: LoadEvent | NewLoadEvent) -> None:
        """Write LOAD DATA of MySQL 3.23, whose file stays where it was: not in the log."""
        title = b"Query\tthread_id=%d\texec_time=%d" % (event.thread_id, event.exec_time)
        self._titled(record, header, title)
        self._load_statement(event, header, b"INFILE " + quoted_bytes(encode_text(event.file_name)))

    def _load_statement(self, event: LoadDataEvent, header: EventHeader, infile: bytes) -> None:
        as_query = QueryEvent(event.thread_id, event.exec_time, 0, None, event.database, b"")
        database = self._options.rewrite_db.name(event.database)
        self._parts += self._session.lines(as_query, header, database, controls=False)
        self._parts.append(b"%b\n%b" % (_load_data(event, infile), _END))

    # Rows

    def _table_map(self, record: LogRecord, header: EventHeader, event: TableMapEvent) -> None:
        if self._annotation:
            self._parts.append(self._annotation)
            self._annotation = b""
        if self._options.short_form:
            return
        database = self._options.rewrite_db.name(event.database)
        title = b"Table_map: %b.%b mapped to number %d" % (
            quoted_name(database),
            quoted_name(event.table),
            event.table_id,
        )
        if self._generation.is_mariadb and event.flags & _TM_HAS_TRIGGERS:
            title += b" (has triggers)"
        text = self._head(record, header) + b"\t" + title + b"\n"
        if self._generation is Generation.MYSQL_8_0 and self._server_version >= _GENERATED_KEYS:
            hidden_key = bool(event.flags & _TM_GENERATED_KEY)
            text += b"# has_generated_invisible_primary_key=%d\n" % hidden_key
        if self._generation is Generation.MYSQL_5_5:
            self._rows_heads.append(text)
        else:
            self._parts.append(text)
        if self._base64_wanted(b"Table_map"):
            decoded = record.event
            assert isinstance(decoded, BinlogEvent)
            data = None
            if database != event.database:
                data = self._options.rewrite_db.table_map(decoded, record.state)
                if data is not None and record.sub_index and len(self._data) != len(record.data):
                    data = _with_checksum(data)
            self._rows_base64.append(base64.encodebytes(data or self._data))

    def _base64_wanted(self, name: bytes) -> bool:
        """Tell whether a BINLOG statement is wanted; raise UserError where it would be needed and is not."""
        if self._options.base64_output == "never":
            raise UserError(
                f"--base64-output=never, and the log has a {name.decode()} event at {self._position} that "
                "only a BINLOG statement can carry; use --base64-output=decode-rows to leave such events out",
                ExitCode.SETTINGS,
            )
        return self._options.base64_output == "auto"

    def _rows(self, record: LogRecord, header: EventHeader, event: RowsEvent) -> None:
        if self._options.short_form:
            return
        decoded = record.event
        assert isinstance(decoded, BinlogEvent)
        table_map = decoded.table_map
        name = _rows_name(event)
        if event.version == 0:
            name += b"_old"
        elif event.version == 1 and self._generation is Generation.MYSQL_8_0:
            name += b"_v1"
        title = b"%b: table id %d%b" % (name, event.table_id, self._rows_flags(event))
        head = self._head(record, header) + b"\t" + title + b"\n"
        if self._generation.is_mariadb or self._generation is Generation.MYSQL_5_5:
            self._rows_heads.append(head)
        else:
            self._parts.append(head)
        if self._base64_wanted(name):
            data = self._data
            if isinstance(event, CompressedRowsEvent):
                data = _uncompressed(decoded, event, record.state)
            self._rows_base64.append(base64.encodebytes(data))
        if self._options.verbose:
            self._rows_text.append(self._rows_lines(event, table_map))
        if event.ends_statement:
            self._flush_rows()

    def _rows_flags(self, event: RowsEvent) -> bytes:
        known = _ROWS_FLAGS if self._generation is Generation.MYSQL_8_0 else _ROWS_FLAGS[:1]
        names = [name for flag, name in known if event.flags & flag]
        return b" flags: " + b" ".join(names) if names else b""

    def _rows_lines(self, event: RowsEvent, table_map: TableMapEvent | None) -> bytes:
        if table_map is None:
            return b"### Row event for unknown table #%d" % event.table_id
        key = (
            table_map.database,
            table_map.table,
            table_map.column_types,
            table_map.column_metadata,
            table_map.null_bits,
            table_map.optional_metadata,
            type(event),
            event.columns_before_image,
            event.columns_after_image,
        )
        try:
            printer = self._printers.get(key)
            if printer is None:
                if len(self._printers) >= _MAX_PRINTERS:
                    self._printers.clear()
                database = self._options.rewrite_db.name(table_map.database)
                printer = RowPrinter(table_map, event, self._options.verbose, database, self._generation)
                self._printers[key] = printer
            text, count = printer.text(event.rows)
        except BinlogError as error:
            return b"### Rows that cannot be read: %b\n" % str(error).replace("\n", " ").encode()
        self._row_count += count
        if event.extra_row_info and self._generation is Generation.MYSQL_8_0:
            text = _extra_row_info(event.extra_row_info) + text
        return text

    def _flush_rows(self) -> None:
        """Write what the events of a statement gave: heads that waited, the BINLOG statement, the rows."""
        out = self._parts
        out += self._rows_heads
        if self._rows_base64:
            out.append(b"\nBINLOG '\n")
            out += self._rows_base64
            out.append(b"'" + _END)
        out += self._rows_text
        if self._rows_text and self._generation.is_mariadb:
            out.append(b"# Number of rows: %d\n" % self._row_count)
        self._row_count = 0
        self._rows_heads.clear()
        self._rows_base64.clear()
        self._rows_text.clear()


_REPLACE = 2
_REAL_RESULT, _INT_RESULT, _DECIMAL_RESULT = 1, 2, 4
_NUMERIC_RESULTS = (_REAL_RESULT, _INT_RESULT, _DECIMAL_RESULT)
_UTF8 = 33
"""Collation id of utf8mb3_general_ci."""
_TM_GENERATED_KEY = 1 << 2
_GENERATED_KEYS = (8, 0, 30)
_UNKNOWN_VERSION = 999999
_CONTROLS = frozenset(
    {
        StatementKind.BEGIN,
        StatementKind.COMMIT,
        StatementKind.ROLLBACK,
        StatementKind.SAVEPOINT,
        StatementKind.ROLLBACK_TO,
        StatementKind.XA_START,
        StatementKind.XA_END,
        StatementKind.XA_PREPARE,
        StatementKind.XA_COMMIT,
        StatementKind.XA_ROLLBACK,
    }
)


def _real(value: float) -> bytes:
    """Write a real number with 14 digits, or with as many as it needs."""
    text = b"%.14g" % value
    return text if float(text) == value else format_double(value).encode()


def _rows_name(event: RowsEvent) -> bytes:
    if isinstance(event, PartialUpdateRowsEvent):
        return b"Update_rows_partial"
    compressed = b"_compressed" if isinstance(event, CompressedRowsEvent) else b""
    return _OPERATIONS[event.operation] + compressed + b"_rows"


_PLAIN_TYPES = {
    EventType.WRITE_ROWS_COMPRESSED_EVENT_V1: WriteRowsEventV1,
    EventType.UPDATE_ROWS_COMPRESSED_EVENT_V1: UpdateRowsEventV1,
    EventType.DELETE_ROWS_COMPRESSED_EVENT_V1: DeleteRowsEventV1,
    EventType.WRITE_ROWS_COMPRESSED_EVENT: WriteRowsEvent,
    EventType.UPDATE_ROWS_COMPRESSED_EVENT: UpdateRowsEvent,
    EventType.DELETE_ROWS_COMPRESSED_EVENT: DeleteRowsEvent,
}


def _uncompressed(decoded: BinlogEvent, event: CompressedRowsEvent, state: StreamState) -> bytes:
    """Write the event without compression: BINLOG of MariaDB takes no other."""
    make: Any = _PLAIN_TYPES[event.event_type]
    plain = make(
        event.table_id,
        event.flags,
        event.extra_row_info,
        event.column_count,
        event.columns_before_image,
        event.columns_after_image,
        event.rows,
    )
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


_DUMPFILE, _OPT_ENCLOSED, _REPLACE_FLAG, _IGNORE_FLAG = 1, 2, 4, 8


def _load_data(event: LoadDataEvent, infile: bytes) -> bytes:
    """Write the statement of which the event is a packed form."""
    parts = [b"LOAD DATA ", infile, b" "]
    if event.opt_flags & _REPLACE_FLAG:
        parts.append(b"REPLACE ")
    elif event.opt_flags & _IGNORE_FLAG:
        parts.append(b"IGNORE ")
    parts.append(b"INTO TABLE " + quoted_name(event.table))
    empty = getattr(event, "empty_flags", 0)
    enclosed = b" OPTIONALLY ENCLOSED BY " if event.opt_flags & _OPT_ENCLOSED else b" ENCLOSED BY "
    options = (
        (1, b" FIELDS TERMINATED BY ", event.field_terminated),
        (2, enclosed, event.enclosed),
        (16, b" ESCAPED BY ", event.escaped),
        (4, b" LINES TERMINATED BY ", event.line_terminated),
        (8, b" STARTING BY ", event.line_starting),
    )
    for bit, words, value in options:
        text = b"" if empty & bit else value
        if bit == 8 and not text:
            continue
        parts.append(words + quoted_bytes(text))
    if event.skip_lines:
        parts.append(b" IGNORE %d LINES" % event.skip_lines)
    if event.columns:
        parts.append(b" (%b)" % b", ".join(map(quoted_name, event.columns)))
    return b"".join(parts)


_GTIDS = frozenset(
    {GtidLogEvent, AnonymousGtidLogEvent, GtidTaggedLogEvent, PreviousGtidsLogEvent, MariadbGtidEvent}
)
_WAITING = frozenset({IntvarEvent, RandEvent, UserVarEvent})
_ENDS = frozenset({RotateEvent, StopEvent})
_WRITERS: dict[type[Event], Callable[[TextOutput, LogRecord, EventHeader, Any], None]] = {
    StartEventV3: TextOutput._format_description,
    FormatDescriptionEvent: TextOutput._format_description,
    RotateEvent: TextOutput._rotate,
    StopEvent: TextOutput._stop,
    IncidentEvent: TextOutput._incident,
    HeartbeatLogEvent: TextOutput._heartbeat,
    HeartbeatLogEventV2: TextOutput._heartbeat,
    IgnorableLogEvent: TextOutput._ignorable,
    StartEncryptionEvent: TextOutput._encryption,
    PreviousGtidsLogEvent: TextOutput._previous_gtids,
    GtidLogEvent: TextOutput._gtid,
    AnonymousGtidLogEvent: TextOutput._gtid,
    GtidTaggedLogEvent: TextOutput._gtid,
    MariadbGtidEvent: TextOutput._mariadb_gtid,
    MariadbGtidListEvent: TextOutput._gtid_list,
    BinlogCheckpointEvent: TextOutput._checkpoint,
    QueryEvent: TextOutput._query,
    QueryCompressedEvent: TextOutput._query,
    IntvarEvent: TextOutput._intvar,
    RandEvent: TextOutput._rand,
    UserVarEvent: TextOutput._user_var,
    RowsQueryLogEvent: TextOutput._rows_query,
    AnnotateRowsEvent: TextOutput._annotate_rows,
    XidEvent: TextOutput._xid_event,
    XaPrepareLogEvent: TextOutput._xa_prepare,
    TransactionPayloadEvent: TextOutput._payload,
    PartialRowDataEvent: TextOutput._fragment,
    BeginLoadQueryEvent: TextOutput._begin_load,
    AppendBlockEvent: TextOutput._append_block,
    DeleteFileEvent: TextOutput._delete_file,
    ExecuteLoadQueryEvent: TextOutput._execute_load,
    CreateFileEvent: TextOutput._create_file,
    ExecLoadEvent: TextOutput._exec_load,
    LoadEvent: TextOutput._load,
    NewLoadEvent: TextOutput._load,
    TableMapEvent: TextOutput._table_map,
    **{
        declaration.event_class: TextOutput._rows
        for declaration in EVENTS.values()
        if issubclass(declaration.event_class, RowsEvent)
    },
}
"""What writes each event; any other is a comment."""

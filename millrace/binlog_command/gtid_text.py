"""GTIDs as text: which transaction follows, and which came before."""

import time

from millrace.binlog.declaration import Event
from millrace.binlog.events import (
    AnonymousGtidLogEvent,
    BinlogCheckpointEvent,
    GtidEvent,
    GtidFlag,
    GtidLogEvent,
    GtidTaggedLogEvent,
    MariadbGtidEvent,
    MariadbGtidExtraFlag,
    MariadbGtidFlag,
    MariadbGtidListEvent,
    MariadbXid,
    PreviousGtidsLogEvent,
    XaPrepareLogEvent,
)
from millrace.binlog.fields import encode_text
from millrace.binlog.gtid_set import GtidSet
from millrace.binlog.header import EventHeader
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.row_printer import in_comment
from millrace.binlog_command.text_page import END, TextPage, Writers

_GTID_AUTOMATIC = b"SET @@SESSION.GTID_NEXT= 'AUTOMATIC' /* added by mysqlbinlog */ /*!*/;\n"
_UNKNOWN_VERSION = 999999
_PARALLEL = (10, 1, 3)
"""Since then MariaDB's GTIDs say whether their transactions may be applied in parallel."""
_TWO_PHASE_ALTER = (
    MariadbGtidExtraFlag.START_ALTER | MariadbGtidExtraFlag.COMMIT_ALTER | MariadbGtidExtraFlag.ROLLBACK_ALTER
)


def _moment(microseconds: int) -> bytes:
    """Write a commit timestamp in the time zone of the process, and the name of that."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    now = time.localtime(seconds)
    return b"%04d-%02d-%02d %02d:%02d:%02d.%06d %b" % (*now[:6], fraction, (now.tm_zone or "").encode())


def xid_text(xid: MariadbXid | XaPrepareLogEvent) -> bytes:
    """Write the name of an XA transaction as SQL does."""
    return b"X'%b',X'%b',%d" % (xid.gtrid.hex().encode(), xid.bqual.hex().encode(), xid.format_id)


class GtidText:
    """Writes the GTID events of both kinds of server.

    ``is_set`` says that a GTID of MySQL is in force at the end of the text; ``two_phase_alter`` which part of
    an ALTER in two phases the next statement is.
    """

    def __init__(self, page: TextPage) -> None:
        self._page = page
        self.is_set = False
        self.two_phase_alter = 0
        self._allow_parallel: bool | None = None
        self._domain: int | None = None
        self._server: int | None = None

    @property
    def writers(self) -> Writers:
        """What writes each of the events."""
        return {
            PreviousGtidsLogEvent: self._previous_gtids,
            GtidLogEvent: self._gtid,
            AnonymousGtidLogEvent: self._gtid,
            GtidTaggedLogEvent: self._gtid,
            MariadbGtidEvent: self._mariadb_gtid,
            MariadbGtidListEvent: self._gtid_list,
            BinlogCheckpointEvent: self._checkpoint,
        }

    @property
    def _shows_parallel(self) -> bool:
        return self._page.generation > Generation.MARIADB_10_0 or self._page.server_version >= _PARALLEL

    def automatic(self) -> None:
        """Have the server choose the next GTID."""
        self._page.parts.append(_GTID_AUTOMATIC)
        self.is_set = False

    def _previous_gtids(self, record: LogRecord, header: EventHeader, event: PreviousGtidsLogEvent) -> None:
        self._page.titled(record, header, b"Previous-GTIDs")
        text = in_comment(encode_text(str(GtidSet.from_event(event))))
        self._page.parts.append(b"# %b\n" % (text.replace(b",", b",\n# ") or b"[empty]"))

    def _gtid(self, record: LogRecord, header: EventHeader, event: GtidEvent | GtidTaggedLogEvent) -> None:
        anonymous = isinstance(event, AnonymousGtidLogEvent)
        rbr_only = not event.gtid_flags & GtidFlag.MAY_HAVE_SBR
        name = b"Anonymous_GTID" if anonymous else b"GTID"
        if self._page.generation <= Generation.MYSQL_5_6:
            self._page.titled(record, header, b"%b [commit=%b]" % (name, b"no" if rbr_only else b"yes"))
        else:
            title = b"%b\tlast_committed=%d\tsequence_number=%d\trbr_only=%b" % (
                name,
                event.last_committed or 0,
                event.sequence_number or 0,
                b"yes" if rbr_only else b"no",
            )
            if self._page.generation is Generation.MYSQL_8_0:
                title += self._commit_title(event)
            self._page.titled(record, header, title)
            if rbr_only and self._page.generation >= Generation.MYSQL_5_7:
                self._page.sql(b"/*!50718 SET TRANSACTION ISOLATION LEVEL READ COMMITTED*/")
            if self._page.generation is Generation.MYSQL_8_0:
                self._commit_details(event)
        value = b"ANONYMOUS" if anonymous else encode_text(event.gtid)
        self._page.sql(b"SET @@SESSION.GTID_NEXT= %b" % self._page.session.string(value))
        self.is_set = True

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
        out = self._page.parts
        # Comments that short text has, too.
        moment = _moment(immediate)
        earlier = moment if original == immediate else _moment(original)
        out.append(b"# original_commit_timestamp=%d (%b)\n" % (original, earlier))
        out.append(b"# immediate_commit_timestamp=%d (%b)\n" % (immediate, moment))
        self._page.sql(b"/*!80001 SET @@session.original_commit_timestamp=%d*/" % original)
        immediate_version = event.immediate_server_version
        if immediate_version is None:
            immediate_version = 0 if event.immediate_commit_timestamp is None else _UNKNOWN_VERSION
        original_version = event.original_server_version
        if original_version is None:
            original_version = immediate_version
        self._page.sql(b"/*!80014 SET @@session.original_server_version=%d*/" % original_version)
        self._page.sql(b"/*!80014 SET @@session.immediate_server_version=%d*/" % immediate_version)

    def _mariadb_gtid(self, record: LogRecord, header: EventHeader, event: MariadbGtidEvent) -> None:
        flags2 = event.flags2
        extra = event.flags_extra
        self.two_phase_alter = extra & _TWO_PHASE_ALTER
        if self._page.options.short_form:
            self._begin_of_gtid(event)
            return
        title = b"GTID %b" % event.gtid(header.server_id).encode()
        if event.commit_id is not None:
            title += b" cid=%d" % event.commit_id
        if flags2 & MariadbGtidFlag.DDL:
            title += b" ddl"
        if flags2 & MariadbGtidFlag.TRANSACTIONAL:
            title += b" trans"
        if flags2 & MariadbGtidFlag.WAITED:
            title += b" waited"
        if extra & MariadbGtidExtraFlag.START_ALTER:
            title += b" START ALTER"
        if extra & MariadbGtidExtraFlag.COMMIT_ALTER:
            title += b" COMMIT ALTER id= %d" % (event.start_alter_seq_no or 0)
        if extra & MariadbGtidExtraFlag.ROLLBACK_ALTER:
            title += b" ROLLBACK ALTER id= %d" % (event.start_alter_seq_no or 0)
        if event.thread_id is not None:
            title += b" thread_id=%d" % event.thread_id
        self._page.titled(record, header, title)
        mark = b"/*!" if self._page.generation <= Generation.MARIADB_10_2 else b"/*M!"
        parallel = bool(flags2 & MariadbGtidFlag.ALLOW_PARALLEL)
        if parallel is not self._allow_parallel and self._shows_parallel:
            self._allow_parallel = parallel
            self._page.sql(b"%b100101 SET @@session.skip_parallel_replication=%d*/" % (mark, not parallel))
        if event.domain_id != self._domain:
            self._domain = event.domain_id
            self._page.sql(b"%b100001 SET @@session.gtid_domain_id=%d*/" % (mark, event.domain_id))
        if header.server_id != self._server:
            self._server = header.server_id
            self._page.sql(b"%b100001 SET @@session.server_id=%d*/" % (mark, header.server_id))
        self._page.sql(b"%b100001 SET @@session.gtid_seq_no=%d*/" % (mark, event.seq_no))
        self._begin_of_gtid(event)

    def _begin_of_gtid(self, event: MariadbGtidEvent) -> None:
        if event.flags2 & MariadbGtidFlag.STANDALONE:
            return
        if event.flags2 & MariadbGtidFlag.PREPARED_XA and event.xid is not None:
            self._page.sql(b"XA START %b" % xid_text(event.xid))
        elif not event.flags2 & MariadbGtidFlag.COMPLETED_XA:
            begin = b"BEGIN" if self._page.generation < Generation.MARIADB_10_2 else b"START TRANSACTION"
            self._page.parts.append(b"%b\n%b" % (begin, END))

    def _gtid_list(self, record: LogRecord, header: EventHeader, event: MariadbGtidListEvent) -> None:
        entries = [(entry.domain_id, entry.server_id, entry.seq_no) for entry in event.entries]
        if self._page.generation is Generation.MARIADB_10_11:
            entries.sort(key=lambda entry: (entry[0], entry[2]))
        text = ",\n# ".join(f"{domain}-{server}-{sequence}" for domain, server, sequence in entries)
        if not self._page.options.short_form:
            self._page.parts.append(
                b"%b\tGtid list [%b]\n" % (self._page.head(record, header), text.encode())
            )

    def _checkpoint(self, record: LogRecord, header: EventHeader, event: BinlogCheckpointEvent) -> None:
        self._page.titled(record, header, b"Binlog checkpoint %b" % encode_text(event.binlog_filename))

    def skip(self, event: Event) -> None:
        """Leave out a GTID; MariaDB's says that a transaction begins, which stays."""
        if isinstance(event, MariadbGtidEvent):
            self._begin_of_gtid(event)

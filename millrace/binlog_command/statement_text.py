"""Statements as text, with the settings that their events carry and the ends of transactions."""

import base64
import struct

from millrace.binlog.columns.charsets import UTF8MB3_COLLATION, charset_name, collation_name, names_utf8mb3
from millrace.binlog.columns.numbers import DecimalFormat, format_double
from millrace.binlog.declaration import Event
from millrace.binlog.events import (
    AppendBlockEvent,
    BeginLoadQueryEvent,
    DeleteFileEvent,
    IntvarEvent,
    ItemResult,
    MariadbGtidExtraFlag,
    QueryCompressedEvent,
    QueryEvent,
    RandEvent,
    StatementEvent,
    UserVarEvent,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.events.load import ExecLoadEvent, LoadDataEvent
from millrace.binlog.header import EventHeader
from millrace.binlog.statement import Statement, StatementKind
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.gtid_text import GtidText, xid_text
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.row_printer import sql_name
from millrace.binlog_command.text_page import END, TextPage, Writers
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

_NUMERIC_RESULTS = (ItemResult.REAL_RESULT, ItemResult.INT_RESULT, ItemResult.DECIMAL_RESULT)
_FOR_STATEMENTS = (
    IntvarEvent,
    RandEvent,
    UserVarEvent,
    LoadDataEvent,
    AppendBlockEvent,
    BeginLoadQueryEvent,
    DeleteFileEvent,
    ExecLoadEvent,
)
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


def refuse_statement(record: LogRecord, event: Event) -> None:
    """Raise UserError for what a server refuses in a session with REQUIRE_ROW_FORMAT."""
    statement = record.transaction.statement if record.transaction is not None else None
    what = type(event).event_type.name
    if statement is not None:
        if statement.kind is not StatementKind.DML and not statement.changes and not statement.temporary:
            return
        what = statement.verb
    elif not isinstance(event, _FOR_STATEMENTS):
        return
    raise UserError(
        f"{record.path} at {record.position}: {what} violates --require-row-format, which allows no changes "
        "of rows as statements, no LOAD DATA and no temporary tables",
        ExitCode.SETTINGS,
    )


class StatementText:
    """Writes statements, what their text does not say, and what ends transactions.

    ``in_transaction`` says that a transaction is open at the end of the text.
    """

    def __init__(self, page: TextPage, gtids: GtidText) -> None:
        self._page = page
        self._gtids = gtids
        self.in_transaction = False
        self._temporary_tables: dict[tuple[int, str, str], None] = {}

    @property
    def writers(self) -> Writers:
        """What writes each of the events."""
        return {
            QueryEvent: self._query,
            QueryCompressedEvent: self._query,
            IntvarEvent: self._intvar,
            RandEvent: self._rand,
            UserVarEvent: self._user_var,
            XidEvent: self._xid_event,
            XaPrepareLogEvent: self._xa_prepare,
        }

    def head(self, record: LogRecord, header: EventHeader, event: StatementEvent, name: bytes) -> None:
        """Write all that stands in front of the text of a statement."""
        if not self._page.options.short_form:
            title = b"%b\tthread_id=%d\texec_time=%d\terror_code=%d" % (
                name,
                event.thread_id,
                event.exec_time,
                event.error_code,
            )
            variables = event.status_variables
            if self._page.generation >= Generation.MARIADB_10_6:
                title += b"\txid=%d" % ((variables.xid if variables is not None else 0) or 0)
            elif variables is not None and variables.ddl_logged_with_xid is not None:
                title += b"\tXid = %d" % variables.ddl_logged_with_xid
            self._page.titled(record, header, title)
        statement = record.transaction.statement if record.transaction is not None else None
        controls = statement is not None and statement.kind in _CONTROLS
        database = self._page.options.rewrite_db.name(event.database)
        self._page.parts += self._page.session.lines(event, header, database, controls=controls)

    def _query(
        self, record: LogRecord, header: EventHeader, event: QueryEvent | QueryCompressedEvent
    ) -> None:
        name = b"Query_compressed" if isinstance(event, QueryCompressedEvent) else b"Query"
        self.head(record, header, event, name)
        if self._gtids.two_phase_alter:
            self._alter_in_two_phases(event)
            return
        self._page.parts.append(self._page.session.ended(event.query + b"\n"))
        statement = record.transaction.statement if record.transaction is not None else None
        if statement is not None:
            self._follow(statement)
            if statement.temporary:
                self._follow_temporary(event, statement)

    def _follow(self, statement: Statement) -> None:
        """Note whether a transaction is open at the end of the text."""
        if statement.kind in (StatementKind.BEGIN, StatementKind.XA_START):
            self.in_transaction = True
        elif statement.kind in (StatementKind.COMMIT, StatementKind.ROLLBACK, StatementKind.XA_ROLLBACK):
            self.in_transaction = False

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
        phase, self._gtids.two_phase_alter = self._gtids.two_phase_alter, 0
        out = self._page.parts
        if self._page.options.base64_output == "auto" and not self._page.options.short_form:
            comment = phase != MariadbGtidExtraFlag.COMMIT_ALTER
            out.append(b"/*!100600 BINLOG '\n" if comment else b"BINLOG '\n")
            out.append(base64.encodebytes(self._page.data))
            out.append(b"' */%b" % END if comment else b"'%b" % END)
        if self._page.options.verbose:
            out.append(b"### %b\n" % event.query.replace(b"\0", b"\\0").replace(b"\n", b"\n### "))

    def drop_temporary_tables(self) -> None:
        """Drop what the sessions before a restart of the server left, as the server did."""
        for thread_id, database, table in self._temporary_tables:
            self._page.sql(self._page.session.thread_line(thread_id))
            name = sql_name(table)
            if database:
                name = b"%b.%b" % (sql_name(self._page.options.rewrite_db.name(database)), name)
            self._page.sql(b"DROP TEMPORARY TABLE IF EXISTS " + name)
        self._temporary_tables.clear()

    def _intvar(self, record: LogRecord, header: EventHeader, event: IntvarEvent) -> None:
        self._page.titled(record, header, b"Intvar")
        name = {1: b"LAST_INSERT_ID", 2: b"INSERT_ID"}.get(event.type, b"INVALID_INT")
        self._page.sql(b"SET %b=%d" % (name, event.value))

    def _rand(self, record: LogRecord, header: EventHeader, event: RandEvent) -> None:
        self._page.titled(record, header, b"Rand")
        self._page.sql(b"SET @@RAND_SEED1=%d, @@RAND_SEED2=%d" % (event.seed1, event.seed2))

    def _user_var(self, record: LogRecord, header: EventHeader, event: UserVarEvent) -> None:
        self._page.titled(record, header, b"User_var")
        session_charset = self._page.session.charset
        switched = self._page.generation is Generation.MYSQL_8_0 and session_charset is not None
        if switched:
            assert session_charset is not None
            utf8 = UTF8MB3_COLLATION
            connection = session_charset[1] if event.type in _NUMERIC_RESULTS else utf8
            for line in self._page.session.charset_lines((utf8, connection, utf8)):
                self._page.sql(line)
        self._page.sql(b"SET @%b:=%b" % (sql_name(event.name), self._user_value(event)))
        if switched:
            assert session_charset is not None
            for line in self._page.session.charset_lines(session_charset):
                self._page.sql(line)

    def _user_value(self, event: UserVarEvent) -> bytes:
        """Write the value of a user variable so that it comes back in its type."""
        value = event.value
        if value is None:
            return b"NULL"
        if event.type == ItemResult.REAL_RESULT and len(value) == 8:
            return _real(struct.unpack("<d", value)[0])
        if event.type == ItemResult.INT_RESULT and len(value) == 8:
            return b"%d" % int.from_bytes(value, "little", signed=not event.is_unsigned)
        if event.type == ItemResult.DECIMAL_RESULT and len(value) > 2:
            return f"{DecimalFormat(value[0], value[1]).decode(value[2:]):f}".encode()
        return self._user_string(value, event.charset or 0)

    def _user_string(self, value: bytes, collation: int) -> bytes:
        page = self._page
        charset = charset_name(collation, utf8mb3=page.session.utf8mb3)
        mariadb = page.is_mariadb
        in_full = names_utf8mb3(page.server_version, mariadb=mariadb)
        name = collation_name(collation, mariadb=mariadb, utf8mb3=in_full)
        if charset is None:
            return b"???"  # as mysqlbinlog: an error is better than another string
        digits = value.hex().upper().encode()
        literal = b"X'%b'" % digits if mariadb else b"0x%b" % digits
        if not digits:
            literal = b"X''" if mariadb else b"''"
        collate = b"" if name is None else b" COLLATE `%b`" % name.encode()
        return b"_%b %b%b" % (charset.encode(), literal, collate)

    def _xid_event(self, record: LogRecord, header: EventHeader, event: XidEvent) -> None:
        self._page.titled(record, header, b"Xid = %d" % event.xid)
        self._page.sql(b"COMMIT")
        self.in_transaction = False

    def _xa_prepare(self, record: LogRecord, header: EventHeader, event: XaPrepareLogEvent) -> None:
        name = xid_text(event)
        if self._page.is_mariadb:
            self._page.titled(record, header, b"XID = " + name)
        else:  # which short text has, too
            self._page.parts.append(self._page.title(record, header, b"XA PREPARE " + name))
        statement = b"XA COMMIT %b ONE PHASE" if event.one_phase else b"XA PREPARE %b"
        self._page.parts.append(statement % name + b"\n" + END)

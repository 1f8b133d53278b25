"""LOAD DATA as text: the statement, with the file in a place of its own."""

from collections.abc import Callable

from millrace.binlog.events import (
    AppendBlockEvent,
    BeginLoadQueryEvent,
    CreateFileEvent,
    DeleteFileEvent,
    ExecLoadEvent,
    ExecuteLoadQueryEvent,
    LoadDataEvent,
    LoadDupHandling,
    LoadEmptyFlag,
    LoadEvent,
    LoadFlag,
    NewLoadEvent,
    QueryEvent,
)
from millrace.binlog.fields import encode_text
from millrace.binlog.header import EventHeader
from millrace.binlog_command.load_files import LoadFiles
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.row_printer import sql_name
from millrace.binlog_command.statement_text import StatementText
from millrace.binlog_command.text_page import TextPage, Writers


def _load_data(event: LoadDataEvent, infile: bytes, string: Callable[[bytes], bytes]) -> bytes:
    """Write the statement that the event has in packed form."""
    parts = [b"LOAD DATA ", infile, b" "]
    if event.opt_flags & LoadFlag.REPLACE_FLAG:
        parts.append(b"REPLACE ")
    elif event.opt_flags & LoadFlag.IGNORE_FLAG:
        parts.append(b"IGNORE ")
    parts.append(b"INTO TABLE " + sql_name(event.table))
    empty = getattr(event, "empty_flags", 0)
    enclosed = (
        b" OPTIONALLY ENCLOSED BY " if event.opt_flags & LoadFlag.OPT_ENCLOSED_FLAG else b" ENCLOSED BY "
    )
    options = (
        (LoadEmptyFlag.FIELD_TERM_EMPTY, b" FIELDS TERMINATED BY ", event.field_terminated),
        (LoadEmptyFlag.ENCLOSED_EMPTY, enclosed, event.enclosed),
        (LoadEmptyFlag.ESCAPED_EMPTY, b" ESCAPED BY ", event.escaped),
        (LoadEmptyFlag.LINE_TERM_EMPTY, b" LINES TERMINATED BY ", event.line_terminated),
        (LoadEmptyFlag.LINE_START_EMPTY, b" STARTING BY ", event.line_starting),
    )
    for bit, words, value in options:
        text = b"" if empty & bit else value
        if bit is LoadEmptyFlag.LINE_START_EMPTY and not text:
            continue
        parts.append(words + string(text))
    if event.skip_lines:
        parts.append(b" IGNORE %d LINES" % event.skip_lines)
    if event.columns:
        parts.append(b" (%b)" % b", ".join(map(sql_name, event.columns)))
    return b"".join(parts)


class LoadText:
    """Writes LOAD DATA of all versions, and the files that it loads."""

    def __init__(self, page: TextPage, statements: StatementText) -> None:
        self._page = page
        self._statements = statements
        self._files = LoadFiles(page.options.local_load)
        self._created: dict[int, CreateFileEvent] = {}

    @property
    def writers(self) -> Writers:
        """What writes each of the events."""
        return {
            BeginLoadQueryEvent: self._begin_load,
            AppendBlockEvent: self._append_block,
            DeleteFileEvent: self._delete_file,
            ExecuteLoadQueryEvent: self._execute_load,
            CreateFileEvent: self._create_file,
            ExecLoadEvent: self._exec_load,
            LoadEvent: self._load,
            NewLoadEvent: self._load,
        }

    def close(self) -> None:
        """Remove the files that nothing used."""
        self._files.close()

    def _begin_load(self, record: LogRecord, header: EventHeader, event: BeginLoadQueryEvent) -> None:
        self._block(record, header, b"Begin_load_query", event)
        self._files.begin(event.file_id, event.block_data)

    def _append_block(self, record: LogRecord, header: EventHeader, event: AppendBlockEvent) -> None:
        self._block(record, header, b"Append_block", event)
        if not self._files.append(event.file_id, event.block_data):
            self._page.parts.append(b"# Ignored: file %d has no first block here.\n" % event.file_id)

    def _block(
        self,
        record: LogRecord,
        header: EventHeader,
        name: bytes,
        event: AppendBlockEvent | BeginLoadQueryEvent,
    ) -> None:
        if not self._page.options.short_form:
            text = b"#%b: file_id: %d  block_len: %d\n" % (name, event.file_id, len(event.block_data))
            self._page.parts.append(b"%b\n%b" % (self._page.head(record, header), text))

    def _delete_file(self, record: LogRecord, header: EventHeader, event: DeleteFileEvent) -> None:
        if not self._page.options.short_form:
            head = self._page.head(record, header)
            self._page.parts.append(b"%b\n#Delete_file: file_id=%d\n" % (head, event.file_id))
        self._files.drop(event.file_id)
        self._created.pop(event.file_id, None)

    def _execute_load(self, record: LogRecord, header: EventHeader, event: ExecuteLoadQueryEvent) -> None:
        self._statements.head(record, header, event, b"Execute_load_query")
        path = self._files.take(event.file_id)
        query = event.query
        if path is None:
            self._page.parts.append(b"# Ignored: file %d has no first block here.\n" % event.file_id)
            query = b"# " + query.replace(b"\0", b"\\0").replace(b"\n", b"\n# ")
        else:
            name = self._page.session.string(encode_text(str(path)))
            replace = b" REPLACE" if event.dup_handling == LoadDupHandling.LOAD_DUP_REPLACE else b""
            start, rest = query[: event.fn_pos_start], query[event.fn_pos_end :]
            query = b"%b LOCAL INFILE %b%b INTO%b" % (start, name, replace, rest)
        self._page.parts.append(self._page.session.ended(query + b"\n"))
        if not self._page.options.short_form:
            self._page.parts.append(b"# file_id: %d \n" % event.file_id)

    def _create_file(self, record: LogRecord, header: EventHeader, event: CreateFileEvent) -> None:
        if not self._page.options.short_form:
            text = b"# file_id: %d  block_len: %d\n" % (event.file_id, len(event.block_data))
            self._page.parts.append(b"%b\n%b" % (self._page.head(record, header), text))
        self._files.begin(event.file_id, event.block_data)
        self._created[event.file_id] = event

    def _exec_load(self, record: LogRecord, header: EventHeader, event: ExecLoadEvent) -> None:
        if not self._page.options.short_form:
            head = self._page.head(record, header)
            self._page.parts.append(b"%b\n#Exec_load: file_id=%d\n" % (head, event.file_id))
        created = self._created.pop(event.file_id, None)
        path = self._files.take(event.file_id)
        if created is None or path is None:
            self._page.parts.append(b"# Ignored: file %d has no first block here.\n" % event.file_id)
            return
        self._load_statement(
            created, header, b"LOCAL INFILE " + self._page.session.string(encode_text(str(path)))
        )

    def _load(self, record: LogRecord, header: EventHeader, event: LoadEvent | NewLoadEvent) -> None:
        """Write LOAD DATA of MySQL 3.23, whose file stays where it was: not in the log."""
        title = b"Query\tthread_id=%d\texec_time=%d" % (event.thread_id, event.exec_time)
        self._page.titled(record, header, title)
        self._load_statement(
            event, header, b"INFILE " + self._page.session.string(encode_text(event.file_name))
        )

    def _load_statement(self, event: LoadDataEvent, header: EventHeader, infile: bytes) -> None:
        as_query = QueryEvent(event.thread_id, event.exec_time, 0, None, event.database, b"")
        database = self._page.options.rewrite_db.name(event.database)
        self._page.parts += self._page.session.lines(as_query, header, database, controls=False)
        self._page.parts.append(
            self._page.session.ended(_load_data(event, infile, self._page.session.string) + b"\n")
        )

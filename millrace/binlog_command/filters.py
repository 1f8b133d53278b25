"""Which events are shown: by place, time, transaction, schema object, operation, server and type.

Every filter that is given must agree. Two kinds of output want two kinds of choice. A list (JSON,
statistics) wants the events that match and no others. SQL text must stay loadable: with ``context``, events
are kept that say how others are to be read (the format description) or that frame what is kept (GTID, BEGIN,
COMMIT, settings before a statement), and a statement of which the last rows event is not kept ends with the
last one that is.

A filter that matches nothing looks like a log in which nothing happened, so the values that no event has are
noted (:attr:`Filter.unmatched`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from millrace.binlog.checksum import CHECKSUM_LENGTH
from millrace.binlog.declaration import Event
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent, seal
from millrace.binlog.events import (
    AnnotateRowsEvent,
    AppendBlockEvent,
    BeginLoadQueryEvent,
    DeleteFileEvent,
    FormatDescriptionEvent,
    IntvarEvent,
    PartialRowDataEvent,
    RandEvent,
    RowsQueryLogEvent,
    StartEventV3,
    TransactionIdEvent,
    TransactionPayloadEvent,
    UserVarEvent,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.events.load import CreateFileEvent, ExecLoadEvent, LoadDataEvent
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.statement import TRANSACTION_CONTROL, Statement
from millrace.binlog.transaction import TransactionEnd, TransactionStep
from millrace.binlog.types import RowsFlag
from millrace.binlog_command.criteria import Criteria, FilePosition, operation_of
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.unmatched import Unmatched

_FORMAT: Final = (FormatDescriptionEvent, StartEventV3)
_SETTINGS: Final = (IntvarEvent, RandEvent, UserVarEvent, RowsQueryLogEvent, AnnotateRowsEvent)
_FILE_PARTS: Final = (BeginLoadQueryEvent, AppendBlockEvent, DeleteFileEvent, ExecLoadEvent)
_FRAME: Final = (
    TransactionIdEvent,
    TransactionPayloadEvent,
    XaPrepareLogEvent,
    XidEvent,
)


class Filter:
    """Lets those records through that are asked for; :attr:`finished` is set once none can follow.

    Of records that could not be decoded the place alone is looked at: whoever writes them decides.
    """

    def __init__(
        self, criteria: Criteria, *, context: bool, is_last: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Choose by ``criteria``; ``is_last`` tells by its path whether a log is the last that is read."""
        self.finished = False
        self._criteria = criteria
        self._context = context
        self._is_last = is_last
        self._first_path: str | None = None
        self._started = criteria.start is None
        self._count = 0
        self._reached = criteria.start_time is None and not criteria.offset
        self._content = _ContentFilter(criteria, context=context) if criteria.by_content else None
        self._found_transaction = False
        self._stop_seen = False
        self._seen = Unmatched(criteria)
        self._given_any = False

    @property
    def missed(self) -> FilePosition | None:
        """The place to begin at, as long as it has not been reached."""
        return None if self._started else self._criteria.start

    def unmatched(self) -> Iterator[str]:
        """Say of each value that was asked for and no event had it; else if all events lack one of them."""
        if self._criteria == Criteria():
            return
        found = list(self._seen.unmatched())
        if not self._reached and not found:
            if self._criteria.offset:
                found.append(f"fewer events than --offset {self._criteria.offset} leaves out")
            else:
                found.append("no event is of --start-datetime or later")
        if not found and not self._given_any and self._seen.asked:
            found.append("no event has all that the filters ask for")
        yield from found

    def apply(self, records: Iterable[LogRecord]) -> Iterator[LogRecord]:
        """Yield the records that pass; stop reading where none can follow."""
        if self._criteria == Criteria():
            yield from records
            return
        for record in records:
            passes = self._passes(record)
            if self.finished:
                break
            if not passes:
                continue
            if self._content is None or isinstance(record.event, BinlogError):
                self._given_any = self._given_any or not self._is_context(record)
                yield record
            else:
                yield from self._content.feed(record, record.event)
        if self._content is not None:
            yield from self._content.end()
            self._given_any = self._content.kept

    def _is_context(self, record: LogRecord) -> bool:
        decoded = record.event
        return self._context and isinstance(decoded, BinlogEvent) and isinstance(decoded.event, _FORMAT)

    def _passes(self, record: LogRecord) -> bool:
        decoded = record.event
        if self._first_path is None:
            self._first_path = record.path
        if isinstance(decoded, BinlogError):
            self.finished = self._beyond_stop(record, 0)
            return self._from_start(record) or not record.data
        if self._beyond_stop(record, decoded.header.timestamp):
            self.finished = True
            return False
        is_format = isinstance(decoded.event, _FORMAT)
        if not self._from_start(record):
            self._count += is_format
            return is_format and self._context
        if not self._is_reached(record, decoded.header, is_format=is_format):
            return is_format and self._context
        self._seen.add(record, decoded)
        if is_format and self._context:
            return True
        return self._chosen(record, decoded)

    def _chosen(self, record: LogRecord, decoded: BinlogEvent) -> bool:
        criteria = self._criteria
        server_id = decoded.header.server_id
        if server_id in criteria.ignored_server_ids:
            return False
        if criteria.server_ids and server_id not in criteria.server_ids:
            return False
        if (
            criteria.types
            and decoded.event.event_type not in criteria.types
            and (decoded.header.type_code not in criteria.types)
        ):
            return False
        if criteria.transaction is not None and not self._in_transaction(record):
            return False
        if criteria.include_gtids is criteria.exclude_gtids is None and criteria.domains is None:
            return True
        return self._gtid_chosen(record)

    def _gtid_chosen(self, record: LogRecord) -> bool:
        """Look at the GTID of a transaction; what stands between transactions is neither in nor out."""
        included, excluded = self._criteria.include_gtids, self._criteria.exclude_gtids
        domains = self._criteria.domains
        gtid = record.gtid
        if gtid is None:
            between = record.transaction is None or record.transaction.transaction is None
            listed = included is not None or (domains is not None and domains.lists)
            return not listed or (between and self._context)
        if included is not None and gtid not in included:
            return False
        if domains is not None and gtid not in domains:
            return False
        return excluded is None or gtid not in excluded

    def _in_transaction(self, record: LogRecord) -> bool:
        wanted = self._criteria.transaction
        step = record.transaction
        if step is None or step.transaction != wanted:
            if self._found_transaction:
                self.finished = True
            return False
        self._found_transaction = True
        return True

    def _from_start(self, record: LogRecord) -> bool:
        start = self._criteria.start
        if self._started or start is None:
            return True
        named = record.path == self._first_path if start.file is None else record.file == start.file
        # In a log that follows the one with the position, everything is after it.
        after = start.file is None and not named
        self._started = after or (named and record.position >= start.position)
        return self._started

    def _beyond_stop(self, record: LogRecord, timestamp: int) -> bool:
        criteria = self._criteria
        stop = criteria.stop
        if stop is not None:
            named = self._is_last(record.path) if stop.file is None else record.file == stop.file
            if record.position >= stop.position if named else self._stop_seen and stop.file is not None:
                return True
            self._stop_seen = named
        return bool(criteria.stop_time is not None and timestamp and timestamp >= criteria.stop_time)

    def _is_reached(self, record: LogRecord, header: EventHeader, *, is_format: bool) -> bool:
        """Return whether the first event was seen that is late enough, and behind those that are left out."""
        if self._reached:
            return True
        start, offset = self._criteria.start_time, self._criteria.offset
        passed = not offset or (self._count >= offset and not record.sub_index)
        self._count += not record.sub_index  # events inside a payload belong to it
        # A format description is as old as its log, and does not say that the time has come.
        self._reached = not is_format and passed and (start is None or header.timestamp >= start)
        return self._reached


class _ContentFilter:
    """Chooses by database, table and operation, and keeps what belongs to what is kept.

    What is wanted may show later only, so records wait: the head of a transaction (GTID, BEGIN) for the
    first event of it that is kept, without which the transaction is left out; settings in front of a
    statement for the statement; a rows event for the next, which shows whether it is the last of its
    statement that is kept.
    """

    def __init__(self, criteria: Criteria, *, context: bool) -> None:
        self._criteria = criteria
        self._context = context
        self._head: list[LogRecord] = []
        self._settings: list[LogRecord] = []
        self._rows_event: LogRecord | None = None
        self._kept_any = False
        self.kept = False
        self._prepared: set[str | None] = set()
        self._files: dict[int, bool] = {}

    def feed(self, record: LogRecord, decoded: BinlogEvent) -> Iterator[LogRecord]:
        """Take a record; give those that are known to pass by now."""
        event, step = decoded.event, record.transaction
        if step is not None and step.begins:
            self._begin()
        statement = None if step is None else step.statement
        if isinstance(event, RowsEvent):
            yield from self._rows(record, decoded, event)
        elif isinstance(event, TableMapEvent):
            yield from self._table_map(record, event)
        elif isinstance(event, _SETTINGS):
            self._settings.append(record)
        elif isinstance(event, _FRAME) or (statement is not None and statement.kind in TRANSACTION_CONTROL):
            yield from self._frame(record)
        elif self._passes(event, statement):
            if step is None or step.transaction is None:
                yield from self._release()
                yield record
            else:
                yield from self._kept(record)
        elif isinstance(event, StatementEvent):
            self._settings.clear()
        if step is not None and step.ends is not None:
            self._end(step)

    def end(self) -> Iterator[LogRecord]:
        """Yield what waits, at the end of all."""
        yield from self._release()

    def _begin(self) -> None:
        self._head.clear()
        self._settings.clear()
        self._kept_any = False

    def _end(self, step: TransactionStep) -> None:
        if step.ends is TransactionEnd.XA_PREPARE and self._kept_any:
            self._prepared.add(step.xid)
        self._head.clear()
        self._kept_any = False

    def _frame(self, record: LogRecord) -> Iterator[LogRecord]:
        """Keep what frames a transaction if something in it is kept."""
        if not self._context:
            return
        step = record.transaction
        decides = step is not None and step.ends in (TransactionEnd.XA_COMMIT, TransactionEnd.XA_ROLLBACK)
        if self._kept_any or (decides and step is not None and step.xid in self._prepared):
            yield from self._kept(record)
        else:
            self._head.append(record)

    def _kept(self, record: LogRecord) -> Iterator[LogRecord]:
        yield from self._release()
        yield from self._head
        self._head.clear()
        yield from self._settings
        self._settings.clear()
        self._kept_any = self.kept = True
        yield record

    def _table_map(self, record: LogRecord, event: TableMapEvent) -> Iterator[LogRecord]:
        """Keep the map of a table; where operations are chosen, for the rows that it is for."""
        if not self._table(event.database, event.table):
            return
        if not self._criteria.operations:
            yield from self._kept(record)
        elif self._context:
            self._settings.append(record)

    def _release(self) -> Iterator[LogRecord]:
        if self._rows_event is not None:
            released, self._rows_event = self._rows_event, None
            yield released

    def _rows(self, record: LogRecord, decoded: BinlogEvent, event: RowsEvent) -> Iterator[LogRecord]:
        table_map = decoded.table_map
        chosen = table_map is not None and self._table(table_map.database, table_map.table)
        if chosen and self._does(event, None):
            *before, last = self._kept(record)
            yield from before
            if not self._context or event.ends_statement:
                yield last
            else:
                self._rows_event = last
        elif event.ends_statement:
            self._settings.clear()
            if self._rows_event is not None:
                self._rows_event = _ending_statement(self._rows_event)
                yield from self._release()

    def _does(self, event: Event, statement: Statement | None) -> bool:
        operations = self._criteria.operations
        return not operations or operation_of(event, statement) in operations

    def _passes(self, event: Event, statement: Statement | None) -> bool:
        if isinstance(event, StatementEvent):
            return self._does(event, statement) and self._statement(event.database, statement)
        if isinstance(event, LoadDataEvent):
            kept = self._does(event, None) and self._table(event.database, event.table)
            if isinstance(event, CreateFileEvent):
                self._files[event.file_id] = kept
            return kept
        if isinstance(event, _FILE_PARTS):
            # Which database it is for shows with the statement, and it may be too large to wait for that.
            return self._files.get(event.file_id, self._context)
        return self._context and not isinstance(event, PartialRowDataEvent)

    def _statement(self, session_database: str, statement: Statement | None) -> bool:
        """Choose a statement: by the session's database and, for DDL, by the tables that it names."""
        if statement is not None and statement.tables:
            return any(self._table(one.database or session_database, one.table) for one in statement.tables)
        database = session_database
        if statement is not None and statement.database:
            database = statement.database
        return not self._criteria.tables and self._database(database)

    def _database(self, database: str) -> bool:
        patterns = self._criteria.databases
        return not patterns or any(pattern.matches(database) for pattern in patterns)

    def _table(self, database: str, table: str) -> bool:
        patterns = self._criteria.tables
        return self._database(database) and (
            not patterns or any(pattern.matches(database, table) for pattern in patterns)
        )


def _ending_statement(record: LogRecord) -> LogRecord:
    """Make a rows event the last of its statement: the flag is set and the checksum recomputed."""
    decoded = record.event
    assert isinstance(decoded, BinlogEvent)
    event = decoded.event
    assert isinstance(event, RowsEvent)
    changed = replace(decoded, event=replace(event, flags=event.flags | RowsFlag.STMT_END_F))
    data = seal(changed, StreamState(record.state.format))
    if decoded.checksum is not None:
        changed = replace(changed, checksum=data[-CHECKSUM_LENGTH:])
    return record._replace(data=data, event=changed)

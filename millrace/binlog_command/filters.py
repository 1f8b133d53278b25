"""Which events are shown: by place, time, transaction, schema object, server and type.

Every filter that is given must agree. Two kinds of output want two kinds of choice. A list (JSON,
statistics) wants the events that match and no others. SQL text must stay loadable: with ``context``, events
are kept that say how others are to be read (the format description) or that frame what is kept (GTID, BEGIN,
COMMIT, settings before a statement), and a statement of which the last rows event is not kept ends with the
last one that is.
"""

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from millrace.binlog.checksum import CHECKSUM_LENGTH
from millrace.binlog.declaration import Event
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import (
    AnnotateRowsEvent,
    AppendBlockEvent,
    BeginLoadQueryEvent,
    DeleteFileEvent,
    FormatDescriptionEvent,
    GtidEvent,
    GtidTaggedLogEvent,
    IntvarEvent,
    MariadbGtidEvent,
    PartialRowDataEvent,
    RandEvent,
    RowsQueryLogEvent,
    StartEventV3,
    TransactionPayloadEvent,
    UserVarEvent,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.events.load import CreateFileEvent, ExecLoadEvent, LoadDataEvent
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.events.rows import RowsEvent, TableMapEvent
from millrace.binlog.gtid import GtidSet, MariadbGtid
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.statement import TRANSACTION_CONTROL, Statement
from millrace.binlog.stream import BinlogEvent, seal
from millrace.binlog.transaction import TransactionEnd, TransactionStep
from millrace.binlog.types import EventType, RowsFlag
from millrace.binlog_command.records import LogRecord

__all__ = [
    "Criteria",
    "Filter",
    "GtidRange",
    "Place",
    "TablePattern",
    "parse_event_type",
    "parse_gtids",
    "parse_time",
]

_FORMAT: Final = (FormatDescriptionEvent, StartEventV3)
_SETTINGS: Final = (IntvarEvent, RandEvent, UserVarEvent, RowsQueryLogEvent, AnnotateRowsEvent)
_FILE_PARTS: Final = (BeginLoadQueryEvent, AppendBlockEvent, DeleteFileEvent, ExecLoadEvent)
_FRAME: Final = (
    GtidEvent,
    GtidTaggedLogEvent,
    MariadbGtidEvent,
    TransactionPayloadEvent,
    XaPrepareLogEvent,
    XidEvent,
)


# ------------------------------------------------------------------------------------------ what is asked for


@dataclass(frozen=True, slots=True)
class Place:
    """A position, in the log file of that name, else in the first (or last) one that is read."""

    position: int
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Place":
        """Read ``position`` or ``file:position``; raises ValueError."""
        file, _, number = text.rpartition(":")
        if not re.fullmatch(r"\d+", number):
            raise ValueError(f"{text!r} is neither a position nor file:position")
        return cls(int(number), file or None)

    def __str__(self) -> str:
        return str(self.position) if self.file is None else f"{self.file}:{self.position}"


@dataclass(frozen=True, slots=True)
class TablePattern:
    """Names of databases and tables with the wildcards ``*`` and ``?``; no database stands for any."""

    database: re.Pattern[str] | None
    table: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> "TablePattern":
        """Read ``table`` or ``database.table``."""
        database, dot, table = text.rpartition(".")
        return cls(wildcard(database) if dot else None, wildcard(table))

    def matches(self, database: str, table: str) -> bool:
        """Tell whether a table is meant."""
        return bool(
            (self.database is None or self.database.fullmatch(database)) and self.table.fullmatch(table)
        )


def wildcard(text: str) -> re.Pattern[str]:
    """Make a pattern of a name with ``*`` for any characters and ``?`` for one."""
    parts = (".*" if sign == "*" else "." if sign == "?" else re.escape(sign) for sign in text)
    return re.compile("".join(parts), re.DOTALL)


@dataclass(frozen=True, slots=True)
class GtidRange:
    """Transactions of MariaDB: sequence numbers ``first`` to ``last`` of one domain and server."""

    domain_id: int
    server_id: int
    first: int
    last: int


@dataclass(slots=True)
class Gtids:
    """A set of transactions of either kind of server."""

    mysql: GtidSet = field(default_factory=GtidSet)
    mariadb: list[GtidRange] = field(default_factory=list)

    def __contains__(self, gtid: str) -> bool:
        if ":" in gtid:
            return self.mysql.contains(gtid)
        one = MariadbGtid.parse(gtid)
        return any(
            (one.domain_id, one.server_id) == (known.domain_id, known.server_id)
            and known.first <= one.seq_no <= known.last
            for known in self.mariadb
        )


_MARIADB_GTIDS: Final = re.compile(r"(\d+)-(\d+)-(\d+)(?:-(\d+))?")


def parse_gtids(text: str) -> Gtids:
    """Read a GTID set: MySQL's as MySQL writes it, MariaDB's as ``domain-server-first`` or ``…-first-last``.

    Raises BinlogError.
    """
    found = Gtids()
    rest = []
    for part in text.split(","):
        match = _MARIADB_GTIDS.fullmatch(part.strip())
        if match is None:
            rest.append(part)
        else:
            domain_id, server_id, first = int(match[1]), int(match[2]), int(match[3])
            found.mariadb.append(GtidRange(domain_id, server_id, first, int(match[4] or first)))
    found.mysql = GtidSet.parse(",".join(rest))
    return found


def parse_time(text: str) -> float:
    """Read a time, in seconds since 1970 or as local ``YYYY-MM-DD hh:mm:ss``; raises ValueError."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    return dt.datetime.fromisoformat(text).timestamp()


def parse_event_type(text: str) -> int:
    """Read an event type, by number or name; raises ValueError. ``_EVENT`` at the end may be left out."""
    if text.isdecimal():
        return int(text)
    name = text.upper()
    for candidate in (name, f"{name}_EVENT", f"{name}_LOG_EVENT"):
        if candidate in EventType.__members__:
            return EventType[candidate]
    raise ValueError(f"{text!r} is no event type; docs/events.md lists them")


@dataclass(slots=True)
class Criteria:
    """What is asked for; a criterion that is None or empty lets everything through.

    Positions bound the events by where they start; times by the header's timestamp, as mysqlbinlog has it:
    everything from the first event that is not before ``start_time``, up to the first that is not before
    ``stop_time``. ``transaction`` is a GTID, or ``file:position`` of the first event of one without.
    """

    start: Place | None = None
    stop: Place | None = None
    start_time: float | None = None
    stop_time: float | None = None
    include_gtids: Gtids | None = None
    exclude_gtids: Gtids | None = None
    databases: tuple[re.Pattern[str], ...] = ()
    tables: tuple[TablePattern, ...] = ()
    server_ids: frozenset[int] = frozenset()
    types: frozenset[int] = frozenset()
    transaction: str | None = None

    @property
    def by_name(self) -> bool:
        """Whether databases or tables are chosen."""
        return bool(self.databases or self.tables)


# ------------------------------------------------------------------------------------------------- the filter


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
        self._time_reached = criteria.start_time is None
        self._names = _NameFilter(criteria, context=context) if criteria.by_name else None
        self._found_transaction = False
        self._stop_seen = False

    @property
    def missed(self) -> Place | None:
        """The place to begin at, as long as it has not been reached."""
        return None if self._started else self._criteria.start

    def apply(self, records: Iterable[LogRecord]) -> Iterator[LogRecord]:
        """Give the records that pass; stop reading where none can follow."""
        if self._criteria == Criteria():
            yield from records
            return
        for record in records:
            passes = self._passes(record)
            if self.finished:
                break
            if not passes:
                continue
            if self._names is None or isinstance(record.event, BinlogError):
                yield record
            else:
                yield from self._names.feed(record, record.event)
        if self._names is not None:
            yield from self._names.end()

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
        if not self._from_start(record) or not self._in_time(decoded.header, is_format=is_format):
            return is_format and self._context
        if is_format and self._context:
            return True
        return self._chosen(record, decoded)

    def _chosen(self, record: LogRecord, decoded: BinlogEvent) -> bool:
        criteria = self._criteria
        if criteria.server_ids and decoded.header.server_id not in criteria.server_ids:
            return False
        if (
            criteria.types
            and decoded.event.event_type not in criteria.types
            and (decoded.header.type_code not in criteria.types)
        ):
            return False
        if criteria.transaction is not None and not self._in_transaction(record):
            return False
        if criteria.include_gtids is None and criteria.exclude_gtids is None:
            return True
        return self._gtid_chosen(record)

    def _gtid_chosen(self, record: LogRecord) -> bool:
        """Look at the GTID of a transaction; what stands between transactions is neither in nor out."""
        included, excluded = self._criteria.include_gtids, self._criteria.exclude_gtids
        gtid = record.gtid
        if gtid is None:
            between = record.transaction is None or record.transaction.transaction is None
            return included is None or (between and self._context)
        if included is not None and gtid not in included:
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
        # In a log that follows the one with the position, everything is behind it.
        behind = start.file is None and not named
        self._started = behind or (named and record.position >= start.position)
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

    def _in_time(self, header: EventHeader, *, is_format: bool) -> bool:
        start = self._criteria.start_time
        if self._time_reached or start is None:
            return True
        # A format description is as old as its log, and does not say that the time has come.
        if not is_format and header.timestamp >= start:
            self._time_reached = True
        return self._time_reached


class _NameFilter:
    """Chooses by database and table, and keeps what belongs to what is kept.

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
            if self._table(event.database, event.table):
                yield from self._kept(record)
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
        """Give what waits, at the end of all."""
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
        self._kept_any = True
        yield record

    def _release(self) -> Iterator[LogRecord]:
        if self._rows_event is not None:
            released, self._rows_event = self._rows_event, None
            yield released

    def _rows(self, record: LogRecord, decoded: BinlogEvent, event: RowsEvent) -> Iterator[LogRecord]:
        table_map = decoded.table_map
        if table_map is not None and self._table(table_map.database, table_map.table):
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

    def _passes(self, event: Event, statement: Statement | None) -> bool:
        if isinstance(event, StatementEvent):
            return self._statement(event.database, statement)
        if isinstance(event, LoadDataEvent):
            kept = self._table(event.database, event.table)
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
        return not patterns or any(pattern.fullmatch(database) for pattern in patterns)

    def _table(self, database: str, table: str) -> bool:
        patterns = self._criteria.tables
        return self._database(database) and (
            not patterns or any(pattern.matches(database, table) for pattern in patterns)
        )


def _ending_statement(record: LogRecord) -> LogRecord:
    """Make a rows event the last of its statement: the flag is set and the checksum made anew."""
    decoded = record.event
    assert isinstance(decoded, BinlogEvent)
    event = decoded.event
    assert isinstance(event, RowsEvent)
    changed = replace(decoded, event=replace(event, flags=event.flags | RowsFlag.STMT_END_F))
    data = seal(changed, StreamState(record.state.format))
    if decoded.checksum is not None:
        changed = replace(changed, checksum=data[-CHECKSUM_LENGTH:])
    return record._replace(data=data, event=changed)

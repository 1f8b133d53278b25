"""What is asked for of a log: places, times, transactions, names with wildcards, operations, types."""

import datetime as dt
import re
from dataclasses import dataclass, field
from typing import Final

from millrace.binlog.declaration import Event
from millrace.binlog.events import RowsEvent, RowsOperation
from millrace.binlog.events.load import LoadDataEvent
from millrace.binlog.gtid_set import GtidSet, MariadbGtid
from millrace.binlog.statement import Statement
from millrace.binlog.types import EventType
from millrace.wildcards import Wildcards


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A position, in the log file of that name, else in the first (or last) one that is read."""

    position: int
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> "FilePosition":
        """Read ``position`` or ``file:position``; raises ValueError."""
        file, _, number = text.rpartition(":")
        if not re.fullmatch(r"\d+", number):
            raise ValueError(f"{text!r} is neither a position nor file:position")
        return cls(int(number), file or None)

    def __str__(self) -> str:
        return str(self.position) if self.file is None else f"{self.file}:{self.position}"


@dataclass(frozen=True, slots=True)
class MariadbPosition:
    """A position of MariaDB's GTIDs: the last sequence number of each domain."""

    last: dict[int, int]

    @classmethod
    def parse(cls, text: str) -> "MariadbPosition":
        """Read ``domain-server-number``, several with commas between; raises ValueError."""
        last: dict[int, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"(\d+)-(\d+)-(\d+)", part.strip())
            if match is None:
                raise ValueError(f"{text!r} is neither a position, nor file:position, nor GTIDs of MariaDB")
            if int(match[1]) in last:
                raise ValueError(f"{text!r} has two GTIDs of the domain {match[1]}")
            last[int(match[1])] = int(match[3])
        return cls(last)


def parse_position(text: str) -> FilePosition | MariadbPosition:
    """Read a position in a file, or one of MariaDB's GTIDs; raises ValueError."""
    try:
        return FilePosition.parse(text)
    except ValueError:
        return MariadbPosition.parse(text)


def parse_ids(text: str) -> frozenset[int]:
    """Read numbers of 32 bits with commas between; raises ValueError."""
    ids = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) <= 0xFFFFFFFF for part in ids):
        raise ValueError(f"{text!r} is not a list of numbers up to {0xFFFFFFFF}")
    return frozenset(map(int, ids))


@dataclass(slots=True)
class Domains:
    """Which transactions of MariaDB are chosen by their domains, as mariadb-binlog does.

    Of a domain in ``after`` those behind its number; of one in ``until`` those up to its number, and where
    ``until`` is given, none of a domain that is not in it.
    """

    only: frozenset[int] = frozenset()
    ignored: frozenset[int] = frozenset()
    after: MariadbPosition | None = None
    until: MariadbPosition | None = None

    @property
    def lists(self) -> bool:
        """Whether transactions without a GTID of MariaDB are not chosen."""
        return bool(self.only) or self.until is not None

    def __contains__(self, gtid: str) -> bool:
        if ":" in gtid:
            return not self.lists
        one = MariadbGtid.parse(gtid)
        if one.domain_id in self.ignored or (self.only and one.domain_id not in self.only):
            return False
        after = self.after.last.get(one.domain_id) if self.after is not None else None
        until = self.until.last.get(one.domain_id) if self.until is not None else None
        if self.until is not None and until is None:
            return False
        return (after is None or one.seq_no > after) and (until is None or one.seq_no <= until)


class NamePattern:
    """A name with ``*`` for any characters and ``?`` for one."""

    __slots__ = ("matches", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matches = Wildcards(text, "*", "?", escapes=False).matches


@dataclass(frozen=True, slots=True)
class TablePattern:
    """Patterns of the names of a database and a table; no database stands for any."""

    text: str
    database: NamePattern | None
    table: NamePattern

    @classmethod
    def parse(cls, text: str) -> "TablePattern":
        """Read ``table`` or ``database.table``."""
        database, dot, table = text.rpartition(".")
        return cls(text, NamePattern(database) if dot else None, NamePattern(table))

    def matches(self, database: str, table: str) -> bool:
        """Return whether a table is meant."""
        return (self.database is None or self.database.matches(database)) and self.table.matches(table)


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
    raise ValueError(f"{text!r} is not an event type; docs/events.md lists them")


_OPERATIONS: Final = {operation.statement: operation for operation in RowsOperation}
"""What is done to rows, by the name of the statement; each version of rows events has types of its own."""

_VERBS: Final = {
    "INSERT": RowsOperation.WRITE,
    "REPLACE": RowsOperation.WRITE,
    "LOAD": RowsOperation.WRITE,
    "UPDATE": RowsOperation.UPDATE,
    "DELETE": RowsOperation.DELETE,
}


def parse_operations(text: str) -> frozenset[RowsOperation]:
    """Read ``insert``, ``update`` or ``delete``, or several with commas between them; raises ValueError."""
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in _OPERATIONS:
            raise ValueError(f"{name!r} is none of {', '.join(_OPERATIONS)}")
    return frozenset(_OPERATIONS[name] for name in names)


@dataclass(slots=True)
class Criteria:
    """What is asked for; a criterion that is None or empty lets everything through.

    Positions bound the events by where they start; times by the header's timestamp, as mysqlbinlog has it:
    everything from the first event that is not before ``start_time``, up to the first that is not before
    ``stop_time``. ``offset`` events from the beginning on are left out. ``transaction`` is a GTID, or
    ``file:position`` of the first event of one without.
    """

    start: FilePosition | None = None
    stop: FilePosition | None = None
    offset: int = 0
    start_time: float | None = None
    stop_time: float | None = None
    include_gtids: Gtids | None = None
    exclude_gtids: Gtids | None = None
    domains: Domains | None = None
    databases: tuple[NamePattern, ...] = ()
    tables: tuple[TablePattern, ...] = ()
    operations: frozenset[RowsOperation] = frozenset()
    server_ids: frozenset[int] = frozenset()
    ignored_server_ids: frozenset[int] = frozenset()
    types: frozenset[int] = frozenset()
    transaction: str | None = None

    @property
    def by_content(self) -> bool:
        """Whether databases, tables or operations are chosen."""
        return bool(self.databases or self.tables or self.operations)


def operation_of(event: Event, statement: Statement | None) -> RowsOperation | None:
    """Return what an event does to rows, if that is one thing and known: rows, or a statement's verb."""
    if isinstance(event, RowsEvent):
        return event.operation
    if isinstance(event, LoadDataEvent):
        return RowsOperation.WRITE
    return None if statement is None else _VERBS.get(statement.verb)

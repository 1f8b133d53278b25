"""Which of the values that are asked for no event has: such a filter makes a log look as if it were idle."""

from collections.abc import Iterable, Iterator
from typing import Final

from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events.load import LoadDataEvent
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.events.rows import RowsEvent, RowsOperation, TableMapEvent
from millrace.binlog.statement import Statement
from millrace.binlog.types import EventType
from millrace.binlog_command.criteria import Criteria, operation_of
from millrace.binlog_command.records import LogRecord

_LISTED: Final = 10
_KNOWN: Final = frozenset(map(int, EventType))
_ROWS_TYPES: Final = {
    code: declaration.event_class.operation
    for code, declaration in EVENTS.items()
    if issubclass(declaration.event_class, RowsEvent)
}


def _type_name(code: int) -> str:
    return EventType(code).name if code in _KNOWN else str(code)


class Unmatched:
    """Finds out which of the values that are asked for no event has."""

    def __init__(self, criteria: Criteria) -> None:
        self._types: set[int] = set()
        self._server_ids: set[int] = set()
        self._databases = list(criteria.databases)
        self._tables = list(criteria.tables)
        self._operations = set(criteria.operations)
        self._wanted_types = criteria.types
        self._wanted_servers = criteria.server_ids
        self._transaction = criteria.transaction
        self._gtids = criteria.include_gtids
        self.asked = bool(
            criteria.by_content
            or criteria.types
            or criteria.server_ids
            or criteria.ignored_server_ids
            or criteria.domains is not None
            or criteria.transaction is not None
            or criteria.include_gtids is not None
        )

    def add(self, record: LogRecord, decoded: BinlogEvent) -> None:
        """Take an event into account."""
        if not self.asked:
            return
        event, header, step = decoded.event, decoded.header, record.transaction
        self._types.add(event.event_type)
        self._types.add(header.type_code)
        if header.server_id in self._wanted_servers or len(self._server_ids) < _LISTED:
            self._server_ids.add(header.server_id)
        if self._transaction is not None and step is not None and step.transaction == self._transaction:
            self._transaction = None
        if self._gtids is not None and record.gtid is not None and record.gtid in self._gtids:
            self._gtids = None
        if self._operations:
            self._operations.discard(operation_of(event, None if step is None else step.statement))
        if self._databases or self._tables:
            self._add_names(_names(event, None if step is None else step.statement))

    def _add_names(self, names: Iterable[tuple[str, str | None]]) -> None:
        for database, table in names:
            self._databases = [one for one in self._databases if not one.matches(database)]
            if table is not None:
                self._tables = [one for one in self._tables if not one.matches(database, table)]

    def unmatched(self) -> Iterator[str]:
        """Say what no event has."""
        for event_type in sorted(self._wanted_types - self._types):
            yield f"no event is of the type {_type_name(event_type)}{self._others(event_type)}"
        for operation in RowsOperation:
            if operation in self._operations:
                yield f"no event has rows, or is a statement, of --op {operation.statement}"
        for database in self._databases:
            yield f"no rows and no statements are of the database {database.text}"
        for table in self._tables:
            yield f"no rows and no DDL are of the table {table.text}"
        for server_id in sorted(self._wanted_servers - self._server_ids):
            there = ", ".join(map(str, sorted(self._server_ids)))
            yield f"no event began on server {server_id}; there are events of server {there or 'none'}"
        if self._transaction is not None:
            yield f"there is no transaction {self._transaction}"
        if self._gtids is not None:
            yield "no transaction is in the set of --include-gtids"

    def _others(self, event_type: int) -> str:
        """Name the types of other versions that stand for the same operation, and are there."""
        wanted = _ROWS_TYPES.get(event_type)
        if wanted is None:
            return ""
        others = [code for code, operation in _ROWS_TYPES.items() if operation is wanted]
        there = ", ".join(_type_name(code) for code in others if code in self._types)
        return f"; there are events of {there}: --op {wanted.statement} takes all versions" if there else ""


def _names(event: Event, statement: Statement | None) -> Iterator[tuple[str, str | None]]:
    """Yield the databases and tables that an event is about."""
    if isinstance(event, TableMapEvent | LoadDataEvent):
        yield event.database, event.table
    elif isinstance(event, StatementEvent):
        if statement is not None:
            yield from ((one.database or event.database, one.table) for one in statement.tables)
            if statement.database:
                yield statement.database, None
        yield event.database, None

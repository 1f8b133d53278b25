"""``--stats``: what a log consists of, by type, table and operation, and its extreme transactions.

Rows are counted, not decoded. Bytes are those of whole events as they lie in the log; events inside a
TRANSACTION_PAYLOAD have bytes of their own, unpacked, which count for their type and table but not for the
log. A transaction lasts from its earliest time to its latest: the timestamps of its events and, behind each
statement, the time that it took.
"""

import datetime as dt
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.binlog.errors import BinlogError
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.events.rows import RowsEvent, RowsOperation
from millrace.binlog.statement import StatementKind
from millrace.binlog.stream import BinlogEvent
from millrace.binlog_command.json_output import dump
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.rows import RowReader

__all__ = ["StatsOutput"]

_EXTREMES: Final = 5
_FRAME: Final = frozenset({StatementKind.BEGIN, StatementKind.COMMIT, StatementKind.ROLLBACK})


@dataclass(slots=True)
class _Count:
    """How many events, bytes and rows."""

    events: int = 0
    bytes: int = 0
    rows: int = 0

    def add(self, size: int, rows: int = 0) -> None:
        self.events += 1
        self.bytes += size
        self.rows += rows


@dataclass(slots=True)
class _Table:
    """What happened to one table; rows by operation."""

    count: _Count = field(default_factory=_Count)
    rows: dict[RowsOperation, int] = field(default_factory=lambda: dict.fromkeys(RowsOperation, 0))


@dataclass(slots=True)
class _Log:
    """One log file; times are seconds since 1970, None where no event has one."""

    server_version: str = ""
    count: _Count = field(default_factory=_Count)
    first_time: int | None = None
    last_time: int | None = None


@dataclass(slots=True, order=True)
class _Transaction:
    """A transaction; ``start`` is where it begins."""

    id: str
    start: str
    bytes: int = 0
    rows: int = 0
    events: int = 0
    first_time: int = 0
    last_time: int = 0

    @property
    def seconds(self) -> int:
        return self.last_time - self.first_time


class _Largest:
    """Keeps the transactions with the highest measure."""

    def __init__(self, measure: Callable[[_Transaction], int]) -> None:
        self.measure = measure
        self._heap: list[tuple[int, int, _Transaction]] = []
        self._number = 0

    def offer(self, transaction: _Transaction) -> None:
        self._number -= 1
        measure = self.measure(transaction)
        # Of equal ones the first that came is kept: their numbers are the highest.
        entry = measure, self._number, transaction
        if len(self._heap) < _EXTREMES:
            heapq.heappush(self._heap, entry)
        elif entry > self._heap[0]:
            heapq.heapreplace(self._heap, entry)

    def found(self) -> list[_Transaction]:
        return [transaction for measure, _, transaction in sorted(self._heap, reverse=True) if measure]


class StatsOutput:
    """Counts records, and writes a report, or one JSON object, when it is closed."""

    def __init__(self, write_line: Callable[[str], None], *, as_json: bool = False) -> None:
        self._write_line = write_line
        self._as_json = as_json
        self._reader = RowReader()
        self._logs: dict[str, _Log] = {}
        self._types: dict[str, _Count] = {}
        self._tables: dict[tuple[str, str], _Table] = {}
        self._operations: dict[str, _Count] = {}
        self._unreadable = 0
        self._transactions = 0
        self._open: _Transaction | None = None
        self._largest = {
            "bytes": _Largest(lambda one: one.bytes),
            "rows": _Largest(lambda one: one.rows),
            "seconds": _Largest(lambda one: one.seconds),
        }

    def write(self, record: LogRecord) -> None:
        """Count one record."""
        decoded = record.event
        if isinstance(decoded, BinlogError):
            self._unreadable += 1
            return
        size = len(record.data)
        rows = self._rows(record, decoded, size) if isinstance(decoded.event, RowsEvent) else 0
        name = decoded.event.event_type.name
        count = self._types.get(name)
        if count is None:
            count = self._types[name] = _Count()
        count.add(size, rows)
        if record.sub_index == 0:
            self._log(record, decoded, size, rows)
        elif rows:
            self._logs[record.path].count.rows += rows
        self._transaction(record, decoded, size if record.sub_index == 0 else 0, rows)

    def close(self) -> None:
        """Write the report."""
        if self._open is not None:
            self._end_transaction()
        if self._as_json:
            self._write_line(dump(self._report()))
            return
        for line in self._lines():
            self._write_line(line)

    def _rows(self, record: LogRecord, decoded: BinlogEvent, size: int) -> int:
        event, table_map = decoded.event, decoded.table_map
        assert isinstance(event, RowsEvent)
        try:
            rows = self._reader.of(decoded, record.state).count(event)
        except BinlogError:
            self._unreadable += 1
            rows = 0
        if table_map is not None:
            key = table_map.database, table_map.table
            table = self._tables.get(key)
            if table is None:
                table = self._tables[key] = _Table()
            table.count.add(size, rows)
            table.rows[event.operation] += rows
        self._operation(event.operation.value, size, rows)
        return rows

    def _operation(self, name: str, size: int, rows: int = 0) -> None:
        count = self._operations.get(name)
        if count is None:
            count = self._operations[name] = _Count()
        count.add(size, rows)

    def _log(self, record: LogRecord, decoded: BinlogEvent, size: int, rows: int) -> None:
        log = self._logs.get(record.path)
        if log is None:
            log = self._logs[record.path] = _Log()
        if not log.server_version and record.state.format is not None:
            log.server_version = record.state.format.origin.server_version
        log.count.add(size, rows)
        timestamp = decoded.header.timestamp
        if timestamp:
            if log.first_time is None:
                log.first_time = timestamp
            log.last_time = timestamp

    def _transaction(self, record: LogRecord, decoded: BinlogEvent, size: int, rows: int) -> None:
        step = record.transaction
        event = decoded.event
        if step is None:
            return
        statement = step.statement
        if statement is not None and statement.kind not in _FRAME:
            self._operation(f"statement {statement.verb or '(comment)'}", size)
        if step.transaction is None:
            return
        one = self._open
        if one is None or one.id != step.transaction:
            if one is not None:
                self._end_transaction()
            one = self._open = _Transaction(step.transaction, f"{record.file}:{record.position}")
        one.events += 1
        one.bytes += size
        one.rows += rows
        timestamp = decoded.header.timestamp
        if timestamp:
            took = event.exec_time if isinstance(event, StatementEvent) else 0
            one.first_time = min(one.first_time or timestamp, timestamp)
            one.last_time = max(one.last_time, timestamp + took)
        if step.ends is not None:
            self._end_transaction()

    def _end_transaction(self) -> None:
        one, self._open = self._open, None
        assert one is not None
        self._transactions += 1
        for largest in self._largest.values():
            largest.offer(one)

    # -- the report ---------------------------------------------------------------------------------

    def _total(self) -> _Count:
        total = _Count()
        for log in self._logs.values():
            total.events += log.count.events
            total.bytes += log.count.bytes
            total.rows += log.count.rows
        return total

    def _sorted_tables(self) -> list[tuple[tuple[str, str], _Table]]:
        return sorted(self._tables.items(), key=lambda entry: (-entry[1].count.bytes, entry[0]))

    def _report(self) -> dict[str, Any]:
        total = self._total()
        return {
            **_numbers(total),
            "unreadable_events": self._unreadable,
            "logs": [
                {
                    "file": path,
                    "server_version": log.server_version,
                    **_numbers(log.count),
                    "first_timestamp": log.first_time,
                    "last_timestamp": log.last_time,
                }
                for path, log in self._logs.items()
            ],
            "types": [{"type": name, **_numbers(count)} for name, count in _by_size(self._types)],
            "operations": [
                {"operation": name, **_numbers(count)} for name, count in _by_size(self._operations)
            ],
            "tables": [
                {
                    "database": database,
                    "table": name,
                    **_numbers(table.count),
                    **{f"rows_{operation.value}": rows for operation, rows in table.rows.items()},
                }
                for (database, name), table in self._sorted_tables()
            ],
            "transactions": self._transactions,
            "largest_transactions": {
                measure: [
                    {
                        "transaction": one.id,
                        "start": one.start,
                        "bytes": one.bytes,
                        "rows": one.rows,
                        "events": one.events,
                        "seconds": one.seconds,
                    }
                    for one in largest.found()
                ]
                for measure, largest in self._largest.items()
            },
        }

    def _lines(self) -> Iterable[str]:
        total = self._total()
        summary = [f"{total.events} events", f"{total.rows} rows", f"{total.bytes} bytes"]
        summary.append(f"{self._transactions} transactions")
        if self._unreadable:
            summary.append(f"{self._unreadable} unreadable")
        yield ", ".join(summary)
        yield from _grid(
            ["log", "server", "from", "to", "events", "rows", "bytes"],
            [
                [path, log.server_version, _time(log.first_time), _time(log.last_time), *_cells(log.count)]
                for path, log in self._logs.items()
            ],
        )
        yield from _grid(
            ["type", "events", "rows", "bytes"],
            [[name, *_cells(count)] for name, count in _by_size(self._types)],
        )
        yield from _grid(
            ["operation", "events", "rows", "bytes"],
            [[name, *_cells(count)] for name, count in _by_size(self._operations)],
        )
        yield from _grid(
            ["table", "written", "updated", "deleted", "events", "rows", "bytes"],
            [
                [f"{database}.{name}", *map(str, table.rows.values()), *_cells(table.count)]
                for (database, name), table in self._sorted_tables()
            ],
        )
        for measure, largest in self._largest.items():
            title = "longest transactions" if measure == "seconds" else f"largest transactions by {measure}"
            yield from _grid(
                [title, "begins at", "seconds", "events", "rows", "bytes"],
                [
                    [one.id, one.start, *map(str, (one.seconds, one.events, one.rows, one.bytes))]
                    for one in largest.found()
                ],
            )


def _numbers(count: _Count) -> dict[str, int]:
    return {"events": count.events, "rows": count.rows, "bytes": count.bytes}


def _cells(count: _Count) -> list[str]:
    return [str(count.events), str(count.rows), str(count.bytes)]


def _by_size(counts: dict[str, _Count]) -> list[tuple[str, _Count]]:
    return sorted(counts.items(), key=lambda entry: (-entry[1].bytes, entry[0]))


def _time(timestamp: int | None) -> str:
    if timestamp is None:
        return "-"
    return f"{dt.datetime.fromtimestamp(timestamp, dt.UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def _grid(titles: list[str], rows: list[list[str]]) -> Iterable[str]:
    """Lay out a table: text to the left, numbers to the right. Nothing where there are no rows."""
    if not rows:
        return
    yield ""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    numeric = [all(cell.isdecimal() for cell in column) for column in zip(*rows, strict=True)]
    for row in (titles, *rows):
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        yield "  ".join(cells).rstrip()

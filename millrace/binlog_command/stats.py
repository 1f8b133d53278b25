"""``--stats``: what a log consists of, by type, table and operation, and its extreme transactions.

Rows are counted, not decoded. Bytes are those of whole events as they lie in the log; events inside a
TRANSACTION_PAYLOAD have bytes of their own, unpacked, which count for their type and table but not for the
log. A transaction lasts from its earliest time to its latest: the timestamps of its events and, after each
statement, the time that it took.
"""

import datetime as dt
import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.events.rows import RowsEvent, RowsOperation
from millrace.binlog.row_reader import RowReader
from millrace.binlog.statement import StatementKind
from millrace.binlog.transaction import TransactionStep
from millrace.binlog.types import EventType
from millrace.binlog_command.json_output import dump
from millrace.binlog_command.records import LogRecord
from millrace.binlog_command.row_kernel import counting
from millrace.text import printable

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
class _Type(_Count):
    """Events of one type."""

    name: str = ""


@dataclass(slots=True)
class _Table(_Count):
    """What happened to one table; rows by operation as well."""

    by_operation: dict[RowsOperation, int] = field(default_factory=lambda: dict.fromkeys(RowsOperation, 0))


@dataclass(slots=True)
class _Log:
    """One log file; times are seconds since 1970, 0 where no event has one."""

    path: str
    server_version: str = ""
    events: int = 0
    bytes: int = 0
    rows: int = 0
    first_time: int = 0
    last_time: int = 0


@dataclass(slots=True)
class _Transaction:
    """A transaction, and where it begins."""

    id: str
    file: str
    position: int
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
        measure = self.measure(transaction)
        heap = self._heap
        if len(heap) == _EXTREMES and measure <= heap[0][0]:
            return
        self._number -= 1  # of equal ones the first stays above the others
        entry = measure, self._number, transaction
        if len(heap) < _EXTREMES:
            heapq.heappush(heap, entry)
        else:
            heapq.heapreplace(heap, entry)

    def found(self) -> list[_Transaction]:
        return [transaction for measure, _, transaction in sorted(self._heap, reverse=True) if measure]


class StatsOutput:
    """Counts records, and writes a report, or one JSON object, when it is closed."""

    def __init__(self, write_line: Callable[[str], None], *, as_json: bool = False) -> None:
        self._write_line = write_line
        self._as_json = as_json
        self._reader = RowReader(lambda _table, codecs, bitmaps: counting(codecs, bitmaps))
        self._logs: dict[str, _Log] = {}
        self._log: _Log | None = None
        self._types: dict[int, _Type] = {}
        self._tables = defaultdict[tuple[str, str], _Table](_Table)
        self._operations = defaultdict[str, _Count](_Count)
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
        event, header = decoded.event, decoded.header
        size = len(record.data)
        rows = self._rows(record, decoded, event, size) if isinstance(event, RowsEvent) else 0
        count = self._types.get(header.type_code)
        if count is None:
            count = self._types[header.type_code] = _Type(name=event.event_type.name)
        count.add(size, rows)
        if record.sub_index:
            size = 0
        log = self._log
        if log is None or log.path != record.path:
            log = self._log = self._logs.setdefault(record.path, _Log(record.path))
        log.bytes += size
        log.rows += rows
        timestamp = header.timestamp
        if timestamp:
            log.first_time = log.first_time or timestamp
            log.last_time = timestamp
        if record.sub_index == 0:
            log.events += 1
        if not log.server_version and record.state.format is not None:
            log.server_version = record.state.format.origin.version
        step = record.transaction
        if step is not None:
            if step.statement is not None and step.statement.kind not in _FRAME:
                name = f"statement {step.statement.verb or '(comment)'}"
                self._operations[name].add(len(record.data))
            if step.transaction is not None:
                self._transaction(record, step, decoded, size, rows)

    def close(self) -> None:
        """Write the report."""
        if self._open is not None:
            self._end_transaction()
        if self._as_json:
            self._write_line(dump(self._report()))
            return
        for line in self._lines():
            self._write_line(line)

    def _rows(self, record: LogRecord, decoded: BinlogEvent, event: RowsEvent, size: int) -> int:
        table_map = decoded.table_map
        try:
            table_rows = self._reader.of(decoded, record.state)
            count = None if table_rows.kernel is None else table_rows.kernel.count(event.rows)
            rows = table_rows.images.count(event.rows) if count is None else count
        except BinlogError:
            self._unreadable += 1
            rows = 0
        if table_map is not None:
            key = table_map.database, table_map.table
            table = self._tables[key]
            table.add(size, rows)
            table.by_operation[event.operation] += rows
        self._operations[event.operation.value].add(size, rows)
        return rows

    def _transaction(
        self, record: LogRecord, step: TransactionStep, decoded: BinlogEvent, size: int, rows: int
    ) -> None:
        one = self._open
        if one is None or step.begins:
            if one is not None:
                self._end_transaction()
            one = self._open = _Transaction(step.transaction or "", record.file, record.position)
        one.events += 1
        one.bytes += size
        one.rows += rows
        event, timestamp = decoded.event, decoded.header.timestamp
        if timestamp:
            took = event.exec_time if isinstance(event, StatementEvent) else 0
            if timestamp < one.first_time or not one.first_time:
                one.first_time = timestamp
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
            total.events += log.events
            total.bytes += log.bytes
            total.rows += log.rows
        return total

    def _named_types(self) -> dict[str, _Type]:
        unknown = EventType.UNKNOWN_EVENT.name
        return {
            f"{unknown} {code}" if count.name == unknown else count.name: count
            for code, count in self._types.items()
        }

    def _sorted_tables(self) -> list[tuple[tuple[str, str], _Table]]:
        return sorted(self._tables.items(), key=lambda entry: (-entry[1].bytes, entry[0]))

    def _report(self) -> dict[str, Any]:
        total = self._total()
        return {
            **_numbers(total),
            "unreadable_events": self._unreadable,
            "logs": [
                {
                    "file": path,
                    "server_version": log.server_version,
                    **_numbers(log),
                    "first_timestamp": log.first_time or None,
                    "last_timestamp": log.last_time or None,
                }
                for path, log in self._logs.items()
            ],
            "types": [{"type": name, **_numbers(count)} for name, count in _by_size(self._named_types())],
            "operations": [
                {"operation": name, **_numbers(count)} for name, count in _by_size(self._operations)
            ],
            "tables": [
                {
                    "database": database,
                    "table": name,
                    **_numbers(table),
                    **{f"rows_{operation.value}": rows for operation, rows in table.by_operation.items()},
                }
                for (database, name), table in self._sorted_tables()
            ],
            "transactions": self._transactions,
            "largest_transactions": {
                measure: [
                    {
                        "transaction": one.id,
                        "file": one.file,
                        "position": one.position,
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
                [path, log.server_version, _time(log.first_time), _time(log.last_time), *_cells(log)]
                for path, log in self._logs.items()
            ],
        )
        yield from _grid(
            ["type", "events", "rows", "bytes"],
            [[name, *_cells(count)] for name, count in _by_size(self._named_types())],
        )
        yield from _grid(
            ["operation", "events", "rows", "bytes"],
            [[name, *_cells(count)] for name, count in _by_size(self._operations)],
        )
        yield from _grid(
            ["table", "written", "updated", "deleted", "events", "rows", "bytes"],
            [
                [f"{database}.{name}", *map(str, table.by_operation.values()), *_cells(table)]
                for (database, name), table in self._sorted_tables()
            ],
        )
        for measure, largest in self._largest.items():
            title = "longest transactions" if measure == "seconds" else f"largest transactions by {measure}"
            yield from _grid(
                [title, "begins at", "seconds", "events", "rows", "bytes"],
                [
                    [
                        one.id,
                        f"{one.file}:{one.position}",
                        *map(str, (one.seconds, one.events, one.rows, one.bytes)),
                    ]
                    for one in largest.found()
                ],
            )


def _numbers(count: _Count | _Log) -> dict[str, int]:
    return {"events": count.events, "rows": count.rows, "bytes": count.bytes}


def _cells(count: _Count | _Log) -> list[str]:
    return [str(count.events), str(count.rows), str(count.bytes)]


def _by_size(counts: Mapping[str, _Count]) -> list[tuple[str, _Count]]:
    return sorted(counts.items(), key=lambda entry: (-entry[1].bytes, entry[0]))


def _time(timestamp: int) -> str:
    if not timestamp:
        return "-"
    return f"{dt.datetime.fromtimestamp(timestamp, dt.UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def _grid(titles: list[str], rows: list[list[str]]) -> Iterable[str]:
    """Lay out a table: text to the left, numbers to the right. Nothing where there are no rows."""
    if not rows:
        return
    yield ""
    rows = [list(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    numeric = [all(cell.isdecimal() for cell in column) for column in zip(*rows, strict=True)]
    for row in (titles, *rows):
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        yield "  ".join(cells).rstrip()

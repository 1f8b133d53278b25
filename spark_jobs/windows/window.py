"""Windows of time: what of a source's log lies in each, added up, kept while a window is open, and told.

The time of a record is that which the reader gave it in the raw topic: that of its event, but never before
the record before it, nor after the moment at which it was read. A record with another origin, and one that
cannot be read, has the time of the one before it; none has a time after the moment at which Spark has given
it out. So no single record can take the time along.

All here is plain arithmetic: sums, a histogram, the largest of some. Adding up parts gives the same in
whatever way the whole was cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from millrace import __version__

OPERATIONS: Final = ("insert", "update", "delete")

UNDATED: Final = -1
"""The start of a window of records before which none has a time."""

TableName = tuple[str | None, str | None]
"""Database and table; none where the table map of rows lies before the input."""

_SUMS: Final = ("inserts", "updates", "deletes", "events", "bytes", "uncounted_events")
"""What is added up for a table, in this order."""

_LISTED: Final = 10
"""Largest transactions, DDL statements and tables of a transaction that a window has."""

_MOST_TABLES: Final = 10_000
_MOST_ORIGINS: Final = 100
_HEAD_BITS: Final = 5
"""Bits of a number by which a histogram tells it from others: it is exact to one part in 32."""


@dataclass(slots=True)
class Lag:
    """How much later than where they began transactions were committed, in µs: a histogram."""

    transactions: int = 0
    least: int = 0
    most: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    def take(self, behind: int) -> None:
        """Count a transaction; one that came before it began, by the clocks, counts as 0 in quantiles."""
        number = max(behind, 0)
        shift = max(number.bit_length() - _HEAD_BITS, 0)
        self.add(Lag(1, behind, behind, {shift << _HEAD_BITS | number >> shift: 1}))

    def add(self, other: "Lag") -> None:
        """Add what was counted elsewhere."""
        if not other.transactions:
            return
        self.least = min(self.least, other.least) if self.transactions else other.least
        self.most = max(self.most, other.most) if self.transactions else other.most
        self.transactions += other.transactions
        for bucket, number in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + number

    def quantile(self, share: float) -> int:
        """Return the lag that this share of the transactions does not exceed."""
        rank, seen = share * self.transactions, 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                shift, head = bucket >> _HEAD_BITS, bucket & ((1 << _HEAD_BITS) - 1)
                middle = (head << shift) + ((1 << shift) >> 1)
                return min(max(middle, self.least), self.most)
        return self.most

    def told(self) -> dict[str, Any]:
        """Return the figures, in ms, under the names that the batch has for them."""
        shares = {
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "most": self.most,
            "least": self.least,
        }
        return {"transactions": self.transactions, **{name: us / 1000 for name, us in shares.items()}}

    def to_json(self) -> list[Any]:
        """Return this as JSON has it."""
        return [self.transactions, self.least, self.most, sorted(self.buckets.items())]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Self:
        """Read what :meth:`to_json` gave."""
        transactions, least, most, buckets = values
        return cls(transactions, least, most, dict(buckets))


@dataclass(slots=True)
class Totals:
    """What is only added up."""

    events: int = 0
    bytes: int = 0
    transactions: int = 0
    rollbacks: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    ddl_statements: int = 0
    unreadable_records: int = 0
    late_events: int = 0

    def add(self, other: "Totals") -> None:
        """Add what was counted elsewhere."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def rows(self) -> int:
        """Rows that were changed."""
        return self.inserts + self.updates + self.deletes

    def to_json(self) -> dict[str, int]:
        """Return the figures by name."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Window:
    """What lies in a window, or in a part of it.

    ``bytes`` are those in the log; ``events`` has those inside compressed transactions, too, and their bytes
    unpacked where they are of a table. ``largest`` are transactions and ``ddl`` statements, as dictionaries.
    """

    start: int
    totals: Totals = field(default_factory=Totals)
    types: dict[str, int] = field(default_factory=dict)
    tables: dict[TableName, list[int]] = field(default_factory=dict)
    untold: list[int] = field(default_factory=lambda: [0] * len(_SUMS))
    """Sums of tables that are too many to be told apart."""

    lag: dict[int | None, Lag] = field(default_factory=dict)
    """By the server where transactions began; None for those that are too many to be told apart."""

    largest: list[dict[str, Any]] = field(default_factory=list)
    ddl: list[dict[str, Any]] = field(default_factory=list)

    def take_counts(self, row: Mapping[str, Any]) -> None:
        """Take a row of the table ``counts``, see :mod:`spark_jobs.common.statistics`."""
        self.totals.events += row["events"]
        self.totals.bytes += row["stored"]
        self.types[row["type"]] = self.types.get(row["type"], 0) + row["events"]
        if (operation := row["operation"]) is not None:
            rows = [row["rows"] if operation == one else 0 for one in OPERATIONS]
            self.totals.add(Totals(inserts=rows[0], updates=rows[1], deletes=rows[2]))
            self._add_table((row["database"], row["table"]), [
                *rows, row["events"], row["bytes"], row["uncounted"],
            ])  # fmt: skip

    def take_transaction(self, row: Mapping[str, Any]) -> None:
        """Take a row of the table ``transactions``."""
        self.totals.transactions += 1
        self.totals.rollbacks += row["ends"] == "rollback"
        original, immediate = row["original_commit_us"], row["immediate_commit_us"]
        if original is not None and immediate is not None:
            lag = Lag()
            lag.take(immediate - original)
            self._add_lag(row["server_id"], lag)
        if len(self.largest) < _LISTED or _size(row) < _size(self.largest[-1]):
            names = (
                "transaction", "first_key", "first_offset", "server_id", "thread_id", "user",
                "rows", "inserts", "updates", "deletes", "bytes",
            )  # fmt: skip
            self._add_largest([{name: row[name] for name in names} | {"tables": row["tables"][:_LISTED]}])

    def take_ddl(self, row: Mapping[str, Any]) -> None:
        """Take a row of the table ``ddl``."""
        self.totals.ddl_statements += 1
        names = (
            "offset", "raw_key", "second", "server_id", "thread_id", "user", "database", "object", "verb",
            "statement", "seconds",
        )  # fmt: skip
        self._add_ddl([{name: row[name] for name in names}])

    def add(self, other: "Window") -> None:
        """Add what was counted elsewhere."""
        self.totals.add(other.totals)
        for name, events in other.types.items():
            self.types[name] = self.types.get(name, 0) + events
        for table, sums in other.tables.items():
            self._add_table(table, sums)
        self.untold = _added(self.untold, other.untold)
        for origin, lag in other.lag.items():
            self._add_lag(origin, lag)
        self._add_largest(other.largest)
        self._add_ddl(other.ddl)

    def _add_table(self, name: TableName, sums: Sequence[int]) -> None:
        known = self.tables.get(name)
        if known is None and len(self.tables) >= _MOST_TABLES:
            self.untold = _added(self.untold, sums)
        else:
            self.tables[name] = list(sums) if known is None else _added(known, sums)

    def _add_lag(self, origin: int | None, lag: Lag) -> None:
        if origin not in self.lag and len(self.lag) >= _MOST_ORIGINS:
            origin = None
        self.lag.setdefault(origin, Lag()).add(lag)

    def _add_largest(self, more: Iterable[dict[str, Any]]) -> None:
        self.largest = sorted([*self.largest, *more], key=_size)[:_LISTED]

    def _add_ddl(self, more: Iterable[dict[str, Any]]) -> None:
        self.ddl = sorted([*self.ddl, *more], key=lambda one: one["offset"])[:_LISTED]

    def told(self, source: str, window_s: int, most_tables: int, *, closed: bool) -> dict[str, Any]:
        """Return the window as its record has it."""
        shown, others = shown_tables(self, most_tables)
        return {
            "job": "analytics",
            "version": __version__,
            "source": source,
            "start": self.start,
            "end": self.start + window_s,
            "closed": closed,
            **self.totals.to_json(),
            "rows": self.totals.rows,
            "events_by_type": dict(sorted(self.types.items())),
            "tables": [{"database": name[0], "table": name[1], **figures} for name, figures in shown],
            "other_tables": others,
            "largest_transactions": self.largest,
            "ddl": self.ddl,
            "lag_ms": [
                {"server_id": origin, **self.lag[origin].told()}
                for origin in sorted(self.lag, key=lambda one: (one is None, one or 0))
            ],
        }

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON has it."""
        return {
            "start": self.start,
            "totals": self.totals.to_json(),
            "types": self.types,
            "tables": [[*name, *sums] for name, sums in self.tables.items()],
            "untold": self.untold,
            "lag": [[origin, lag.to_json()] for origin, lag in self.lag.items()],
            "largest": self.largest,
            "ddl": self.ddl,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` gave."""
        return cls(
            values["start"],
            Totals(**values["totals"]),
            dict(values["types"]),
            {(database, table): sums for database, table, *sums in values["tables"]},
            list(values["untold"]),
            {origin: Lag.from_json(lag) for origin, lag in values["lag"]},
            list(values["largest"]),
            list(values["ddl"]),
        )


def shown_tables(
    window: Window, most: int
) -> tuple[list[tuple[TableName, dict[str, int]]], dict[str, int] | None]:
    """Return the tables of a window with most rows, and the sums of all others, if there are any."""
    order = sorted(
        window.tables.items(),
        key=lambda one: (-sum(one[1][:3]), -one[1][4], one[0][0] or "", one[0][1] or ""),
    )
    rest = [sums for _, sums in order[most:]]
    others = None
    if rest or any(window.untold):
        every = zip(window.untold, *rest, strict=True)
        others = dict(zip(_SUMS, (sum(column) for column in every), strict=True))
    return [(name, dict(zip(_SUMS, sums, strict=True))) for name, sums in order[:most]], others


def _size(transaction: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return what transactions are sorted by, the largest first."""
    return -transaction["rows"], -transaction["bytes"], transaction["first_offset"]


def _added(one: Iterable[int], other: Iterable[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


@dataclass(slots=True)
class Windows:
    """The windows of a source that are open, and how far time has come.

    A window is closed when a record has come that is dated ``lateness_s`` or more after its end. What is
    later than that counts in the first window after it, as late: nothing is lost, and what was told of a
    window that is closed holds.
    """

    window_s: int
    lateness_s: int
    until_ms: int = 0
    """The latest time of a record."""

    open: dict[int, Window] = field(default_factory=dict)

    @property
    def closed_until(self) -> int:
        """Where the first window begins that is not closed."""
        return (self.until_ms // 1000 - self.lateness_s) // self.window_s * self.window_s

    def add(self, parts: Iterable[tuple[int, Sequence[Window]]], now_ms: int) -> "Looked":
        """Add what has arrived until now: of each piece in order the latest time in it, and its windows.

        Give the windows that have changed, of which some may be closed.
        """
        first = self.closed_until
        last = max(self.open, default=None)
        changed: set[int] = set()
        looked = Totals()
        for until_ms, windows in parts:
            for one in sorted(windows, key=lambda one: one.start):
                start = one.start
                if start == UNDATED:
                    start = now_ms // 1000 // self.window_s * self.window_s if last is None else last
                if start < first:
                    one.totals.late_events += one.totals.events
                    start = first
                looked.add(one.totals)
                self.open.setdefault(start, Window(start)).add(one)
                changed.add(start)
                last = start
            self.until_ms = max(self.until_ms, until_ms)
        closed = [start for start in sorted(self.open) if start + self.window_s <= self.closed_until]
        found = [(self.open[start], start in closed) for start in sorted({*changed, *closed})]
        for start in closed:
            del self.open[start]
        return Looked(looked, found)

    def to_json(self) -> dict[str, Any]:
        """Return what is kept for what follows."""
        return {
            "until_ms": self.until_ms,
            "open": [self.open[start].to_json() for start in sorted(self.open)],
        }

    @classmethod
    def resume(cls, window_s: int, lateness_s: int, kept: Mapping[str, Any] | None) -> Self:
        """Begin, or continue with what was kept."""
        if kept is None:
            return cls(window_s, lateness_s)
        windows = [Window.from_json(one) for one in kept["open"]]
        return cls(window_s, lateness_s, kept["until_ms"], {one.start: one for one in windows})


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look has found: what it has added to all windows, and those that it has changed or closed."""

    totals: Totals
    windows: Sequence[tuple[Window, bool]]
    """Each with whether it is closed."""

"""The findings of analytics, and their page for a database administrator.

The first screen says what was written and what is notable; each later section shows one aspect and explains
it. Text comes from logs and is escaped by :mod:`spark_jobs.common.report`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from pyspark.sql import Row

from millrace.spark.statistics import LOOKED_AT
from spark_jobs.common.charts import (
    Series,
    columns,
    count,
    duration,
    fill,
    legend,
    many,
    ranked,
    share,
    short_size,
    size,
)
from spark_jobs.common.job import Job, moment
from spark_jobs.common.report import Bytes, Cell, Code, Report, Share

_BARS: Final = 12
_LINES: Final = 5
_OPERATIONS: Final = ("insert", "update", "delete")
_MANY_ROWS: Final = 100_000
_MANY_BYTES: Final = 100_000_000
_LONG_S: Final = 60
_STORM: Final = 10_000
_MANY_UNCHANGED: Final = 0.05
_LITTLE_NEEDED: Final = 0.5
_LATE_MS: Final = 10_000

_Name = tuple[str, str, str]
"""Source, database, table."""


@dataclass(frozen=True, slots=True)
class Results:
    """What the report shows; ``along`` has a row per column of the chart and operation."""

    step: int
    along: Sequence[Row]
    first: int | None
    last: int | None
    outside: int
    first_time: int | None
    last_time: int | None
    undated: int
    events: int
    bytes: int
    transactions: int
    rollbacks: int
    types: Sequence[Row]
    rows: Sequence[Row]
    largest: Sequence[Row]
    longest: Sequence[Row]
    tables: Sequence[Row]
    columns: Sequence[Row]
    hot_keys: Sequence[Row]
    statements: Sequence[Row]
    number_of_ddl: int
    ddl: Sequence[Row]
    deletes: Sequence[Row]
    lag: Sequence[Row]
    commit_groups: Sequence[Row]

    @property
    def number_of_rows(self) -> int:
        """Rows that were changed."""
        return sum(row.rows for row in self.rows)

    @property
    def several(self) -> bool:
        """Whether what is shown is of more than one source."""
        return len({row.source for row in (*self.rows, *self.largest, *self.ddl)}) > 1

    def by_table(self) -> dict[_Name, dict[str, Row]]:
        """Return the rows of ``rows_per_table`` by table and operation, the table with most rows first."""
        found: dict[_Name, dict[str, Row]] = {}
        for row in self.rows:
            found.setdefault((row.source, row.database, row.table), {})[row.operation] = row
        return found

    def owner(self, row: Row) -> str:
        """Name a table's database, and its source if there are several."""
        return f"{row.source}: {row.database}" if self.several else str(row.database)

    def table(self, row: Row) -> str:
        """Name a table."""
        return f"{self.owner(row)}.{row.table}"


def report(job: Job, results: Results) -> Report:
    """Build the page."""
    facts = [_headline(results), _period(results)] if results.events else []
    page = Report(f"What was written in {', '.join(job.sources)}", [*facts, *job.facts])
    nothing = ("good", "Nothing stands out.") if results.events else ("doubt", "There was no event to read.")
    (mood, text), *others = _points(results) or [nothing]
    page.verdict(text, mood)
    page.tiles(
        [
            ("rows changed", results.number_of_rows),
            ("transactions", results.transactions),
            ("tables", len(results.by_table())),
            ("in the log", Bytes(results.bytes)),
            ("rows/s at the peak", _busiest(results)),
        ]
    )
    _picture(page, results)
    page.points(others)
    for note in job.notes:
        page.text(note)
    if results.several:
        page.text("Each source is counted for itself: a transaction that was replicated counts in each.")
    if results.events:
        _sections(page, results)
    return page


def _sections(page: Report, results: Results) -> None:
    _tables_section(page, results)
    _transactions_sections(page, results)
    _statements_section(page, results)
    _keys_section(page, results)
    _updates_section(page, results)
    _deletes_section(page, results)
    _replication_section(page, results)
    _ddl_section(page, results)
    _bytes_section(page, results)
    _events_section(page, results)


def lines(results: Results) -> Iterator[str]:
    """Summarize for a terminal: what was written, the tables with most rows, findings but for the verdict."""
    yield _headline(results)
    for operations in list(results.by_table().values())[:_LINES]:
        row = next(iter(operations.values()))
        numbers = [f"{count(operations[one].rows)} {one}s" for one in _OPERATIONS if one in operations]
        yield f"  {results.table(row)}: {', '.join(numbers)}, {size(_total(operations.values(), 'bytes'))}"
    for _, text in _points(results)[1:]:
        yield f"  ! {text}"


# -- the first screen -----------------------------------------------------------------------------------


def _period(results: Results) -> str:
    if results.first is None:
        return "no event with a time"
    return f"{moment(results.first)} to {moment(results.last)} (UTC, the events' own times)"


def _headline(results: Results) -> str:
    tables = results.by_table()
    if not tables:
        return f"{many(results.events, 'event')}, and no row was changed in them."
    operations = list(next(iter(tables.values())).values())
    table = results.table(operations[0])
    rows = results.number_of_rows
    changed = f"{many(results.transactions, 'transaction')} changed {many(rows, 'row')}"
    if len(tables) == 1:
        return f"{changed} of {table}."
    return (
        f"{changed} in {len(tables)} tables; {table} has {share(_total(operations, 'rows'), rows)} of them."
    )


def _busiest(results: Results) -> int:
    per_column: dict[int, int] = {}
    for row in results.along:
        per_column[row.start] = per_column.get(row.start, 0) + row.rows
    return round(max(per_column.values(), default=0) / max(results.step, 1))


def _picture(page: Report, results: Results) -> None:
    along: dict[int, dict[str, int]] = {}
    for row in results.along:
        rows = along.setdefault(row.start, {})
        if row.operation is not None:
            rows[row.operation] = row.rows
    if not along:
        return
    starts, values = fill(along, results.step)
    none = [0] * len(starts)
    series = [Series(name, values.get(name, none)) for name in _OPERATIONS]
    page.section("Rows changed over time", f"Each column is {duration(results.step)}.")
    page.chart(legend(_OPERATIONS))
    page.chart(columns("Rows changed over time", starts, results.step, series))
    if results.outside:
        page.text(
            f"{many(results.outside, 'event')} dated far away from all others, not in the chart: "
            f"the first of all is of {moment(results.first_time)}, the last of {moment(results.last_time)}."
        )
    if results.undated:
        page.text(f"{count(results.undated)} events have the timestamp 0 and are left out of the chart.")


def _points(results: Results) -> list[tuple[str, str]]:
    """Say what an administrator should know at once, the worst first."""
    points = (_points_of_tables, _points_of_transactions, _points_of_times)
    return sorted(chain.from_iterable(find(results) for find in points), key=lambda point: point[0] != "bad")


def _points_of_times(results: Results) -> Iterator[tuple[str, str]]:
    for row in results.lag:
        if row.p99 is not None and row.p99 > _LATE_MS:
            late = f"{_seconds(row.p99)} or more after the commit there"
            on = f" on {row.source}" if results.several else ""
            yield "bad", f"One in a hundred transactions of server {row.server_id} was committed{on} {late}."
    if results.outside:
        yield "doubt", f"{many(results.outside, 'event')} dated far away from all others."


def _points_of_tables(results: Results) -> Iterator[tuple[str, str]]:
    keyless = [
        (row, changed)
        for row in results.tables
        if row.key == "" and (changed := _changed_or_deleted(results, row))
    ]
    if keyless:
        worst, rows = max(keyless, key=lambda one: one[1])
        most = f"{count(rows)} of {results.table(worst)}"
        text = f"Rows of {many(len(keyless), 'table')} without a primary key were updated or deleted"
        yield "bad", f"{text}, {most}: a replica finds each of them by a scan."
    looked, unchanged = _total(results.tables, "looked"), _total(results.tables, "unchanged")
    if looked and unchanged / looked >= _MANY_UNCHANGED:
        worst = max(results.tables, key=lambda row: row.unchanged)
        yield (
            "doubt",
            f"{share(unchanged, looked)} of updated rows did not change, most in {results.table(worst)}.",
        )
    whole, needed = _total(results.tables, "image_bytes"), _total(results.tables, "needed_bytes")
    if whole > _MANY_BYTES // 100 and needed / whole < _LITTLE_NEEDED:
        text = f"{share(whole - needed, whole)} of the bytes of updated rows are columns that did not change"
        yield "doubt", f"{text}; binlog_row_image = MINIMAL leaves them out, also from row topics."
    if results.deletes and results.deletes[0].rows >= _STORM:
        row = results.deletes[0]
        table = results.table(row)
        yield "doubt", f"{count(row.rows)} rows of {table} were deleted in one minute, {moment(row.minute)}."


def _points_of_transactions(results: Results) -> Iterator[tuple[str, str]]:
    for row in results.largest[:1]:
        if (row.rows or 0) >= _MANY_ROWS or row.bytes >= _MANY_BYTES:
            what = f"{count(row.rows)} rows in {size(row.bytes)} of log ({', '.join(row.tables[:3])})"
            largest = f"The largest transaction{_of_source(results, row)}"
            yield "doubt", f"{largest} changed {what}: a replica applies it as a whole."
    for row in results.longest[:1]:
        if (row.seconds or 0) >= _LONG_S:
            longest = f"The longest transaction{_of_source(results, row)}"
            yield "doubt", f"{longest} was open for {_seconds(1000 * row.seconds)}."


def _of_source(results: Results, row: Row) -> str:
    return f" of {row.source}" if results.several else ""


# -- sections -------------------------------------------------------------------------------------------


def _tables_section(page: Report, results: Results) -> None:
    tables = list(results.by_table().items())
    page.section("Tables")
    if not tables:
        page.text("No rows event in this part of the log.")
        return
    shown = tables[:_BARS]
    first = [next(iter(operations.values())) for _, operations in shown]
    labels = [(results.owner(row), str(row.table)) for row in first]
    series = [
        Series(name, [operations[name].rows if name in operations else 0 for _, operations in shown])
        for name in _OPERATIONS
    ]
    page.chart(legend(_OPERATIONS))
    page.chart(ranked("Rows by table and operation", labels, series))
    if len(tables) > _BARS:
        page.text(f"The {_BARS} tables with most rows; all {len(tables)} are in the figures below.")
    if uncounted := sum(row.uncounted for row in results.rows):
        page.text(f"{count(uncounted)} rows events are not counted: their table map lies before the input.")
    keys = {(row.source, row.database, row.table): row.key for row in results.tables}
    page.table(
        ["table", "inserted", "updated", "deleted", "bytes", "bytes per row", "primary key"],
        [
            (
                results.table(next(iter(operations.values()))),
                *(operations[one].rows if one in operations else 0 for one in _OPERATIONS),
                Bytes(sum(row.bytes for row in operations.values())),
                round(
                    sum(row.bytes for row in operations.values())
                    / max(1, sum(row.rows for row in operations.values()))
                ),
                _key_words(keys.get(name)),
            )
            for name, operations in tables
        ],
        folded="All tables in figures",
    )


def _transactions_sections(page: Report, results: Results) -> None:
    page.section("Largest transactions", "By rows changed. Bytes are those of all its events in the log.")
    _transactions_table(page, results, results.largest)
    page.section(
        "Longest transactions",
        "From the first statement to the commit on the server where the transaction began. Event times "
        "have whole seconds; the time of the commit is exact where the log holds it (MySQL 8.0 and later).",
    )
    _transactions_table(page, results, results.longest)


def _table(
    page: Report,
    results: Results,
    headings: Sequence[str],
    rows: Sequence[Row],
    cells: Callable[[Row], Sequence[Cell]],
) -> None:
    """Add a table with a line for each row, which says its source if there are several."""
    if results.several:
        page.table(["source", *headings], [(row.source, *cells(row)) for row in rows])
    else:
        page.table(headings, [cells(row) for row in rows])


def _transactions_table(page: Report, results: Results, rows: Sequence[Row]) -> None:
    _table(
        page,
        results,
        ["transaction", "began (UTC)", "seconds", "rows", "by", "bytes", "tables", "who", "first event"],
        rows,
        lambda row: (
                Code(row.transaction), moment(row.started), row.seconds, row.rows, _operations(row),
                Bytes(row.bytes), ", ".join(row.tables) or None, _who(row), Code(row.first_key),
            ),
    )  # fmt: skip


def _operations(row: Row) -> str | None:
    numbers = zip(_OPERATIONS, (row.inserts, row.updates, row.deletes), strict=True)
    return ", ".join(name for name, number in numbers if number) or None


def _who(row: Row) -> str:
    thread = f", thread {row.thread_id}" if row.thread_id else ""
    return f"server {row.server_id}{thread}{f', {row.user}' if row.user else ''}"


def _statements_section(page: Report, results: Results) -> None:
    page.section(
        "Statements",
        "Without the values; rows and bytes are those of the rows events that follow from them.",
    )
    if not any(row.rows for row in results.statements):
        page.text(
            "The log does not say which statements changed rows. To log them, set "
            "binlog_rows_query_log_events = ON (MySQL), or binlog_annotate_row_events (MariaDB)."
        )
    if results.statements:
        _table(
            page,
            results,
            ["statement", "executed", "rows", "bytes", "seconds"],
            results.statements,
            lambda row: (Code(row.statement), row.executions, row.rows, Bytes(row.bytes), row.seconds),
        )


def _keys_section(page: Report, results: Results) -> None:
    if not results.hot_keys:
        return
    page.section("Hot keys", f"Primary keys whose rows changed most often. {_sampled()}")
    labels = [(results.table(row), row.key) for row in results.hot_keys[:_BARS]]
    values = [row.changes for row in results.hot_keys[:_BARS]]
    page.chart(ranked("Changes of a key", labels, [Series("changes", values)], between=" "))


def _updates_section(page: Report, results: Results) -> None:
    rows = sorted(
        (row for row in results.tables if row.looked), key=lambda row: (-row.image_bytes, row.table)
    )
    if not rows:
        return
    page.section(
        "Updates",
        "How many updated rows did not change, and how much of their images was needed: the key "
        f"before, and what changed after. {_sampled()}",
    )
    changed: dict[_Name, Counter[str]] = {}
    for row in results.columns:
        changed.setdefault((row.source, row.database, row.table), Counter())[row.name] += row.changed
    page.table(
        ["table", "rows examined", "not changed", "share", "images", "needed", "columns changed most"],
        [
            (
                results.table(row), row.looked, row.unchanged, Share(row.unchanged, row.looked),
                Bytes(row.image_bytes), Share(row.needed_bytes, row.image_bytes),
                ", ".join(
                    f"{name} {share(number, row.looked)}"
                    for name, number in changed.get(
                        (row.source, row.database, row.table), Counter[str]()
                    ).most_common(6)
                ) or None,
            )
            for row in rows[:50]
        ],
    )  # fmt: skip


def _deletes_section(page: Report, results: Results) -> None:
    if not results.deletes:
        return
    page.section("Most rows deleted in a minute")
    page.table(
        ["minute (UTC)", "table", "rows", "bytes"],
        [(moment(row.minute), results.table(row), row.rows, Bytes(row.bytes)) for row in results.deletes],
    )


def _replication_section(page: Report, results: Results) -> None:
    page.section("Replication")
    if not results.lag:
        page.text("The log has no times of commits, which MySQL 8.0 and later write: the lag is unknown.")
    else:
        page.text(
            "Lag is from the commit where a transaction began to that on the server that was read, over all "
            "hops between, by the servers' own clocks; 0 for its own."
        )
        page.table(
            ["source", "origin", "transactions", "median ms", "99 % below, ms", "most, ms"],
            [
                (row.source, row.server_id, row.transactions, row.p50, row.p99, row.most)
                for row in results.lag
            ],
        )
    if results.commit_groups:
        page.text(
            "Transactions of a group were committed together, or depend on nothing that is newer: a replica "
            "may apply them side by side (last_committed of MySQL, the commit id of MariaDB)."
        )
        page.table(
            ["source", "transactions", "groups", "in a group", "the largest", "alone", "share"],
            [
                (
                    row.source, row.transactions, row.groups, row.transactions / row.groups, row.largest,
                    row.alone, Share(row.alone, row.transactions),
                )
                for row in results.commit_groups
            ],
        )  # fmt: skip


def _ddl_section(page: Report, results: Results) -> None:
    if not results.number_of_ddl:
        return
    shown = len(results.ddl)
    newest = (
        "" if shown == results.number_of_ddl else f" The newest {shown} of {count(results.number_of_ddl)}."
    )
    page.section("DDL", f"DDL statements, the newest first.{newest}")
    _table(
        page,
        results,
        ["at (UTC)", "what", "of", "seconds", "who", "statement"],
        results.ddl,
        lambda row: (
            moment(row.second), row.verb, row.object, row.seconds, _who(row), Code(row.statement),
        ),
    )  # fmt: skip


def _bytes_section(page: Report, results: Results) -> None:
    along: dict[int, dict[str, int]] = {}
    for row in results.along:
        column = along.setdefault(row.start, {"bytes": 0})
        column["bytes"] += row.bytes
    if not along:
        return
    starts, values = fill(along, results.step)
    most = size(max(values["bytes"]) / max(results.step, 1))
    page.section(
        "Bytes of the log over time", f"Each column is {duration(results.step)}; {most} a second at the peak."
    )
    series = [Series("bytes", values["bytes"])]
    page.chart(columns("Bytes of the log over time", starts, results.step, series, short_size))


def _events_section(page: Report, results: Results) -> None:
    page.section("Events by type")
    shown = sorted(results.types, key=lambda row: -row.bytes)[:_BARS]
    labels = [("", row.type) for row in shown]
    page.chart(ranked("Bytes by type", labels, [Series("bytes", [row.bytes for row in shown])], size))
    page.table(
        ["event type", "events", "bytes"],
        [(row.type, row.events, Bytes(row.bytes)) for row in results.types],
        folded=f"All {len(results.types)} event types in figures",
    )


# -- words ----------------------------------------------------------------------------------------------


def _sampled() -> str:
    return f"Of each rows event the first {LOOKED_AT} rows are examined."


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.1f} s"


def _key_words(key: str | None) -> str:
    if key is None:
        return "not known"
    return key or "none"


def _total(rows: Iterable[Row], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _changed_or_deleted(results: Results, row: Row) -> int:
    operations = results.by_table().get((row.source, row.database, row.table), {})
    return sum(one.rows for name, one in operations.items() if name != "insert")

"""The cost of many tables: ``python -m benchmarks.tables --tables 1000`` (10,000 and more as well).

A real server has that many tables; each gets a row in a separate transaction, and the three services write
all rows to as many topics: first with every table new, then after a restart with every table known, with one
more row for each. A run with ten tables precedes it, for comparing memory.

Kafka, the registry and the server are those of the local stack, with more memory for Kafka (2 GB of heap),
small index files, and one tablespace for all tables.
"""

from collections.abc import Iterator

import click
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.pipeline import SERVICES, PipelineResult, measure_pipeline
from millrace.local import LocalStack, MySQL
from millrace.runtime.logging import configure_logging

_CONSOLE = Console(width=140)
_FEW = 10
_HEAP_MB = 2048
_KAFKA = {"log.index.size.max.bytes": "65536", "log.cleaner.enable": "true"}


@click.command()
@click.option("--tables", default=1000, show_default=True, help="How many tables.")
def main(tables: int) -> None:
    """Carry one row of each of many tables to its topic, new and known, and print what that took."""
    configure_logging("WARNING")
    stack = LocalStack(
        database=MySQL(options={"innodb-file-per-table": 0, "table-open-cache": 400}), say=_CONSOLE.print
    )
    stack.kafka.heap_mb = _HEAP_MB
    stack.kafka.properties |= _KAFKA
    shown = Table("tables", title="One row of each table", title_justify="left")
    for column in ("first row, s", "all rows, s", *SERVICES, "servers"):
        shown.add_column(column)
    with _CONSOLE.status("starting Kafka, the registry and MySQL") as status, stack:
        peaks: dict[int, PipelineResult] = {}
        for count in (_FEW, tables):
            status.update(f"creating {count:,} tables")
            start = _create(stack, count)
            settings = {"MILLRACE_START": start, "MILLRACE_TOPICS_MAX_TABLES": "1000000"}
            for known in (False, True):
                what = f"{count:,}, {'known' if known else 'new'}"
                status.update(f"carrying rows of {what}")
                _insert(stack, count)
                result = measure_pipeline(
                    stack, f"tables{count}", settings, count, carried_before=count if known else None
                )
                peaks[count] = result
                figures = [what, f"{result.first_row_s:.1f}", f"{result.seconds:.1f}", *_costs(result)]
                shown.add_row(*figures)
                _CONSOLE.print(" | ".join(figures))
                if result.disturbance:
                    _CONSOLE.print(f"{what}: {result.disturbance}")
        version = stack.database.version
    _CONSOLE.print(f"{machine()}; MySQL {version}")
    _CONSOLE.print(shown)
    few, many = peaks[_FEW].costs, peaks[tables].costs
    for name in SERVICES:
        more_kb = (many[name].peak_mb - few[name].peak_mb) * 1024 / (tables - _FEW)
        _CONSOLE.print(f"memory per table, {name}: {more_kb:.1f} KB")


def _costs(result: PipelineResult) -> Iterator[str]:
    for name in SERVICES:
        cost = result.costs[name]
        yield f"{cost.cpu_s:.1f} s, {cost.peak_mb:,.0f} MB"
    yield "; ".join(
        f"{name} {cost.cpu_s:.1f} s, {cost.peak_mb:,.0f} MB" for name, cost in result.servers.items()
    )


def _create(stack: LocalStack, count: int) -> str:
    """Create tables, and give the place in the log after that."""
    with stack.database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin=0")
        cursor.execute(f"CREATE DATABASE many{count}")
        for number in range(count):
            cursor.execute(
                f"CREATE TABLE many{count}.t{number:05} "
                "(id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(40), amount DECIMAL(10,2))"
            )
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW MASTER STATUS")
        (log_file, *_) = cursor.fetchone()  # type: ignore[misc] # a server with its log on always answers
    return f"{log_file}:4"


def _insert(stack: LocalStack, count: int) -> None:
    with stack.database.connect() as connection, connection.cursor() as cursor:
        for number in range(count):
            cursor.execute(f"INSERT INTO many{count}.t{number:05} (name, amount) VALUES ('some name', 12.5)")


if __name__ == "__main__":
    main()

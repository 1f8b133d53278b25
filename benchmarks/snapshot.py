"""A snapshot of a table, from its start until it is in the row topic: ``python -m benchmarks.snapshot``."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import click
from rich.console import Console
from rich.table import Table

from benchmarks.machine import ProcessCost, machine, process_cost
from benchmarks.pipeline import FORMS, running
from millrace import kernel
from millrace.avro.snapshots import MERGED_KEY, SnapshotMerged
from millrace.contract import Topics
from millrace.kafka.state import last_record, read_state
from millrace.local import LocalStack
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import KafkaSettings

_CONSOLE = Console(width=120)
_SOURCE = "snapshots"
_POLL_S = 0.2
_TABLE = """
CREATE TABLE snapshots.t (id INT AUTO_INCREMENT PRIMARY KEY, customer BIGINT, note VARCHAR(100),
  status VARCHAR(20), amount DECIMAL(12,2), placed DATETIME, changed TIMESTAMP, n INT, ratio DOUBLE, day DATE)
"""
_FIRST = """
INSERT INTO snapshots.t (customer, note, status, amount, placed, changed, n, ratio, day)
VALUES (4711, 'a note of some length on an order', 'placed', 12.34, '2024-01-02 03:04:05',
  '2024-01-02 03:04:05', 5, 0.25, '2024-01-02')
"""
_MORE = """
INSERT INTO snapshots.t (customer, note, status, amount, placed, changed, n, ratio, day)
SELECT customer + id, note, status, amount + id, placed, changed, n, ratio, day FROM snapshots.t LIMIT {count}
"""


@click.command()
@click.option("--rows", default=5_000_000, show_default=True, help="Rows of the table, of ten columns.")
@click.option("--form", type=click.Choice(list(FORMS)), default="services", show_default=True)
def main(rows: int, form: str) -> None:
    """Take a snapshot of a table and print the rows a second, the CPU and the peak memory."""
    configure_logging("WARNING")
    table = Table("process", "CPU s", "peak MB", title=f"Snapshot of {rows:,} rows")
    with LocalStack(say=_CONSOLE.print) as stack:
        stack.database.execute("CREATE DATABASE snapshots", _TABLE, _FIRST)
        filled = 1
        while filled < rows:
            count = min(filled, rows - filled, 200_000)
            stack.database.execute(_MORE.format(count=count))
            filled += count
        kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
        with running(stack, _SOURCE, {"MILLRACE_START": "latest"}, FORMS[form]) as (processes, _):
            while (found := read_state(kafka, _SOURCE, "reader")) is None or found.value is None:
                time.sleep(_POLL_S)
            environment = {**os.environ, **dict(stack.environment()), "MILLRACE_SOURCE": _SOURCE}
            environment |= {"MILLRACE_LOG_LEVEL": "WARNING", "MILLRACE_SNAPSHOT_TABLES": "snapshots.t"}
            began = time.monotonic()
            cost: ProcessCost | None = None
            with subprocess.Popen([sys.executable, "-m", "services.snapshot"], env=environment) as process:
                while process.poll() is None:
                    with suppress(OSError, RuntimeError):  # it may have ended just now
                        cost = process_cost(process.pid)
                    time.sleep(_POLL_S)
            read_s = time.monotonic() - began
            if process.returncode:
                raise SystemExit(process.returncode)
            while _merged(kafka) < rows:
                time.sleep(_POLL_S)
            merged_s = time.monotonic() - began
            for name, used in [
                ("snapshot", cost),
                *((name, process_cost(one.pid)) for name, one in processes.items()),
            ]:
                table.add_row(
                    name, f"{used.cpu_s:.1f}" if used else "", f"{used.peak_mb:,.0f}" if used else ""
                )
    _CONSOLE.print(f"{machine()}; kernel: {kernel.state()}")
    _CONSOLE.print(table)
    _CONSOLE.print(
        f"read in {read_s:.1f} s: {rows / read_s:,.0f} rows/s; in the row topic after {merged_s:.1f} s: "
        f"{rows / merged_s:,.0f} rows/s"
    )


def _merged(kafka: KafkaSettings) -> int:
    found = last_record(kafka, Topics(_SOURCE).state, lambda record: record.key == MERGED_KEY)
    return 0 if found is None or found.value is None else SnapshotMerged.from_bytes(found.value).rows


if __name__ == "__main__":
    main()

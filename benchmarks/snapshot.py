"""A snapshot of a table, from its start until it is in the row topic: ``python -m benchmarks.snapshot``.

Each form takes a snapshot of the same table, one after the other. With ``--writes`` a separate process
inserts, updates and deletes rows of the table meanwhile, each in a transaction; Millrace's row topic is then
compared with the table by ``millrace verify rows``. Millrace's services carry the log while the snapshot is
taken. Debezium's connector is created in a running worker of Kafka Connect; it reads the log afterwards.
"""

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import click
from rich.console import Console
from rich.table import Table

from benchmarks.machine import ProcessCost, machine, process_cost
from benchmarks.peers.debezium import Debezium
from benchmarks.pipeline import FORMS, PipelineResult, running, sample, used
from millrace import kernel
from millrace.avro.snapshots import MERGED_KEY, SnapshotMerged, SnapshotState
from millrace.contract import Topics
from millrace.kafka.client import admin_client
from millrace.kafka.errors import BrokerError
from millrace.kafka.read import end_offsets, topic_names
from millrace.kafka.state import last_record, read_state
from millrace.local import LocalStack
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import KafkaSettings

_CONSOLE = Console(width=140)
_DATABASE = "snapshots"
_DEBEZIUM = "debezium"
_FORMS = (*FORMS, _DEBEZIUM)
_POLL_S = 0.2
_TABLE = f"""
CREATE TABLE {_DATABASE}.t (id INT AUTO_INCREMENT PRIMARY KEY, customer BIGINT, note VARCHAR(100),
  status VARCHAR(20), amount DECIMAL(12,2), placed DATETIME, changed TIMESTAMP, n INT, ratio DOUBLE, day DATE)
"""
_COLUMNS = "customer, note, status, amount, placed, changed, n, ratio, day"
_FIRST = f"""
INSERT INTO {_DATABASE}.t ({_COLUMNS})
VALUES (4711, 'a note of some length on an order', 'placed', 12.34, '2024-01-02 03:04:05',
  '2024-01-02 03:04:05', 5, 0.25, '2024-01-02')
"""
_MORE = f"""
INSERT INTO {_DATABASE}.t ({_COLUMNS})
SELECT customer + id, note, status, amount + id, placed, changed, n, ratio, day
FROM {_DATABASE}.t LIMIT {{count}}
"""
_CHANGES = (
    _FIRST,
    f"UPDATE {_DATABASE}.t SET status = 'paid', amount = amount + 1, changed = NOW() WHERE id = {{id}}",
    f"DELETE FROM {_DATABASE}.t WHERE id = {{id}}",
)
"""What a writer does in turn, each in a transaction."""


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """A snapshot on its way to the topic, when it was read, and the rows that were changed meanwhile."""

    carried: PipelineResult
    read_s: float
    changes: int


@click.command()
@click.option("--rows", default=5_000_000, show_default=True, help="Rows of the table, of ten columns.")
@click.option("--writes", default=0, show_default=True, help="Rows that are changed a second meanwhile.")
@click.option(
    "--forms",
    default=f"services,{_DEBEZIUM}",
    show_default=True,
    help=f"What takes it: {', '.join(_FORMS)}.",
)
def main(rows: int, writes: int, forms: str) -> None:
    """Take a snapshot of a table and print the rows a second, the CPU and the peak memory."""
    wanted = forms.split(",")
    if others := set(wanted) - set(_FORMS):
        raise click.BadParameter(f"{', '.join(sorted(others))}: the forms are {', '.join(_FORMS)}")
    configure_logging("WARNING")
    results: dict[str, SnapshotResult] = {}
    with _CONSOLE.status("starting") as status, LocalStack(say=_CONSOLE.print) as stack:
        status.update(f"writing {rows:,} rows")
        _fill(stack, rows)
        for form in wanted:
            status.update(f"{form} takes the snapshot")
            take = _by_debezium(stack, writes) if form == _DEBEZIUM else _by_millrace(stack, form, writes)
            with take as results[form]:
                if writes and form != _DEBEZIUM:
                    status.update(f"{form}: comparing the row topic with the table")
                    _verify(stack, form)
    _CONSOLE.print(f"{machine()}; kernel: {kernel.state()}")
    _CONSOLE.print(_table(results, rows, writes))
    for form, result in results.items():
        if result.carried.disturbance:
            _CONSOLE.print(f"{form}: {result.carried.disturbance}")


def _fill(stack: LocalStack, rows: int) -> None:
    stack.database.execute(f"CREATE DATABASE {_DATABASE}", _TABLE, _FIRST)
    filled = 1
    while filled < rows:
        count = min(filled, rows - filled, 200_000)
        stack.database.execute(_MORE.format(count=count))
        filled += count


class _Writer:
    """A process that changes a row of the table ``rate`` times a second; with 0 there is none."""

    def __init__(self, stack: LocalStack, rate: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._changes, self._stop = context.Value("q", 0), context.Event()
        arguments = (str(stack.database.socket), rate, self._changes, self._stop)
        self._process = context.Process(target=_write, args=arguments, daemon=True) if rate else None

    @property
    def changes(self) -> int:
        """Rows that were changed until now."""
        return int(self._changes.value)

    @property
    def clients(self) -> Sequence[int]:
        """Its process, if there is one."""
        return () if self._process is None or self._process.pid is None else (self._process.pid,)

    def __enter__(self) -> Self:
        if self._process is not None:
            self._process.start()
            while not self.changes:
                if not self._process.is_alive():
                    raise RuntimeError("the process that writes has ended: its error stands above")
                time.sleep(_POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._stop.set()
            self._process.join()


def _write(socket: str, rate: int, changes: Any, stop: Any) -> None:
    """Change rows until ``stop`` is set, ``rate`` a second if the server is as fast."""
    import pymysql  # noqa: PLC0415 - in the process that writes alone

    chosen = random.Random(7)
    connection = pymysql.connect(user="root", unix_socket=socket, autocommit=True)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT MAX(id) FROM {_DATABASE}.t")
        ((last,),) = cursor.fetchall()
        began, number = time.monotonic(), 0
        while not stop.wait(max(0.0, began + number / rate - time.monotonic())):
            statement = _CHANGES[number % len(_CHANGES)]
            changes.value += cursor.execute(statement.format(id=chosen.randint(1, last)))
            number += 1


@contextmanager
def _by_millrace(stack: LocalStack, form: str, writes: int) -> Iterator[SnapshotResult]:
    """Take it by ``millrace snapshot``; the services run until the caller has looked at what they wrote."""
    kafka = KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers)
    source = f"{_DATABASE}-{form}"
    with running(stack, source, {"MILLRACE_START": "latest"}, FORMS[form]) as (processes, _):
        while not _has_begun(kafka, source):
            time.sleep(_POLL_S)
        environment = _environment(stack, form) | {"MILLRACE_SNAPSHOT_TABLES": f"{_DATABASE}.t"}
        with _Writer(stack, writes) as writer:
            before, changed = sample(stack, processes, writer.clients), writer.changes
            cost = ProcessCost(0.0, 0.0)
            with subprocess.Popen([sys.executable, "-m", "services.snapshot"], env=environment) as process:
                try:
                    while process.poll() is None:
                        with suppress(OSError, RuntimeError):  # it may have ended just now
                            cost = process_cost(process.pid)
                        time.sleep(_POLL_S)
                finally:
                    process.terminate()
            read_s = time.monotonic() - before.time_s
            if process.returncode:
                raise SystemExit(process.returncode)
            last = last_record(kafka, Topics(source).snapshot)
            while last is not None and _merged(kafka, source).offset <= last.offset:
                time.sleep(_POLL_S)
            after = sample(stack, processes, writer.clients)
            changes = writer.changes - changed
        state = read_state(kafka, source, "snapshot")
        if state is None or state.value is None:
            raise RuntimeError("the snapshot has left no state")
        rows = SnapshotState.from_bytes(state.value).rows
        merged = _merged(kafka, source)
        if merged.refused:
            raise RuntimeError(f"the row mapper refused {merged.refused} of {rows} rows")
        costs = used(before, after, {"snapshot": cost})
        seconds = after.time_s - before.time_s
        yield SnapshotResult(PipelineResult(rows, seconds, 0.0, *costs), read_s, changes)


def _has_begun(kafka: KafkaSettings, source: str) -> bool:
    """Return whether the reader has said where it begins."""
    try:
        found = read_state(kafka, source, "reader")
    except BrokerError:  # the topic is being made
        return False
    return found is not None and found.value is not None


def _environment(stack: LocalStack, form: str) -> dict[str, str]:
    environment = {**os.environ, **dict(stack.environment()), "MILLRACE_SOURCE": f"{_DATABASE}-{form}"}
    return environment | {"MILLRACE_LOG_LEVEL": "WARNING"}


def _merged(kafka: KafkaSettings, source: str) -> SnapshotMerged:
    found = last_record(kafka, Topics(source).state, lambda record: record.key == MERGED_KEY)
    none = found is None or found.value is None
    return SnapshotMerged("", -1) if none else SnapshotMerged.from_bytes(found.value)


def _verify(stack: LocalStack, form: str) -> None:
    command = [sys.executable, "-m", "millrace.cli", "verify", "rows", "--idle", f"{_DATABASE}.t"]
    done = subprocess.run(command, env=_environment(stack, form), check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


@contextmanager
def _by_debezium(stack: LocalStack, writes: int) -> Iterator[SnapshotResult]:
    """Take it by Debezium, until as many records are in the topic as it has read rows."""
    admin = admin_client(KafkaSettings(bootstrap_servers=stack.kafka.bootstrap_servers))
    prefix = f"{_DATABASE}-{_DEBEZIUM}"
    topic = f"{prefix}.{_DATABASE}.t"
    stack.database.execute(f"GRANT RELOAD ON *.* TO '{stack.database.user}'@'%'")  # for its global read lock
    with Debezium(stack.kafka) as connect, _Writer(stack, writes) as writer:
        processes = {"connect": connect.processes[0]}
        before, changed = sample(stack, processes, writer.clients), writer.changes
        connect.begin_snapshot(stack.database, prefix, _DATABASE)
        while (rows := connect.exported) is None:
            connect.check_task(prefix)
            time.sleep(_POLL_S)
        if not rows:
            raise RuntimeError("the log of Debezium does not tell how many rows its snapshot has read")
        read_s = time.monotonic() - before.time_s
        while topic not in topic_names(admin) or sum(end_offsets(admin, [(topic, 1)]).values()) < rows:
            connect.check_task(prefix)
            time.sleep(_POLL_S)
        after = sample(stack, processes, writer.clients)
        result = PipelineResult(rows, after.time_s - before.time_s, 0.0, *used(before, after))
        yield SnapshotResult(result, read_s, writer.changes - changed)


def _table(results: dict[str, SnapshotResult], rows: int, writes: int) -> Table:
    title = f"Snapshot of {rows:,} rows" + (f", {writes:,} of which change a second" if writes else "")
    table = Table("form", title=title, title_justify="left")
    for column in ("rows", "read", "in the topic", "CPU/row", "peak MB", "servers' CPU/row", "changes/s"):
        table.add_column(column, justify="right")
    table.add_column("rate, CPU beside Debezium")
    peer = results.get(_DEBEZIUM)
    for form, result in results.items():
        carried = result.carried
        table.add_row(
            form,
            f"{carried.rows:,}",
            f"{result.read_s:.1f} s: {carried.rows / result.read_s:,.0f}/s",
            f"{carried.seconds:.1f} s: {carried.rows_per_s:,.0f}/s",
            f"{carried.cpu_us:.1f} µs",
            ", ".join(f"{name} {cost.peak_mb:,.0f}" for name, cost in carried.costs.items()),
            f"{carried.servers_us:.1f} µs",
            f"{result.changes / carried.seconds:,.0f}" if writes else "",
            _ratio(carried, peer.carried) if peer is not None and peer is not result else "",
        )
    return table


def _ratio(own: PipelineResult, peer: PipelineResult) -> str:
    return f"{own.rows_per_s / peer.rows_per_s:.1f} x, {own.cpu_us / peer.cpu_us:.2f} x"


if __name__ == "__main__":
    main()

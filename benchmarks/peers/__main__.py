"""Run Millrace and its peers side by side on the same logs: ``python -m benchmarks.peers --help``.

Each run is one of processes that are started for it; it is counted from the first event that it reads to the
last row that it writes, with all servers on the same machine. The runs of an input alternate.
"""

from collections.abc import Sequence
from importlib.metadata import version

import click
from rich.console import Console
from rich.table import Table

from benchmarks.inputs import INPUTS, write_input
from benchmarks.machine import machine
from benchmarks.peers.debezium import measure_debezium
from benchmarks.peers.replication import measure_replication
from benchmarks.pipeline import PipelineResult, measure_pipeline, median_result
from millrace import kernel
from millrace.kafka.client import admin_client
from millrace.kafka.read import topic_names
from millrace.local import LocalStack
from millrace.local.artifacts import bundle
from millrace.local.java import find_java
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import KafkaSettings

_CONSOLE = Console(width=150)
_NAMES = {
    "millrace": "Millrace",
    "run": "Millrace, one process",
    "debezium": "Debezium",
    "replication": "python-mysql-replication",
}

Runs = dict[str, list[PipelineResult]]
"""The runs on an input, by the name of the system."""


@click.command()
@click.option("--inputs", default="ABC", show_default=True, help="Which inputs: letters of A, B and C.")
@click.option("--scale", default=1.0, show_default=True, help="Size of the inputs; 1 is the full size.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each system; the table has the median.")
@click.option(
    "--systems",
    default=",".join(_NAMES),
    show_default=True,
    help="Which systems; python-mysql-replication runs once.",
)
def main(inputs: str, scale: float, rounds: int, systems: str) -> None:
    """Write inputs on a real server, let each system carry its log, and print one table."""
    if unknown := set(inputs.upper()) - INPUTS.keys():
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: the inputs are {', '.join(INPUTS)}")
    wanted = systems.split(",")
    if others := set(wanted) - _NAMES.keys():
        raise click.BadParameter(f"{', '.join(sorted(others))}: the systems are {', '.join(_NAMES)}")
    configure_logging("WARNING")
    table, notes = _table(), list[str]()
    with (
        _CONSOLE.status("starting Kafka, the registry and MySQL") as status,
        LocalStack(say=_CONSOLE.print) as stack,
    ):
        for name in inputs.upper():
            status.update(f"writing input {name} at scale {scale}")
            with stack.database.connect() as connection:
                log_file, rows = write_input(name, connection, scale)
            runs: Runs = {system: [] for system in wanted}
            for number in range(rounds):
                for system in wanted:
                    if number and system == "replication":
                        continue
                    status.update(f"input {name}, run {number + 1} of {rounds}: {_NAMES[system]}")
                    result = _measure(stack, system, f"{name}{number}", log_file, rows)
                    runs[system].append(result)
                    if result.disturbance:
                        notes.append(
                            f"input {name}, {_NAMES[system]}, run {number + 1}: {result.disturbance}"
                        )
                    _delete_topics(stack)
            _add_rows(table, name, runs)
        server = f"{stack.database.flavor} {stack.database.version}"
    _CONSOLE.print(
        f"{machine()}; kernel: {kernel.state()}; {server}; Kafka and Connect {bundle('connect').version}; "
        f"Debezium {bundle('debezium').version} on Java {find_java(17, 21).major}; "
        f"python-mysql-replication {version('mysql-replication')}; scale {scale}, {rounds} runs"
    )
    _CONSOLE.print(table)
    for note in notes:
        _CONSOLE.print(note)


def _measure(stack: LocalStack, system: str, run: str, log_file: str, rows: int) -> PipelineResult:
    """Let a system carry an input (the first letter of the run) once, into topics of its own."""
    topics, schema = f"{system}-{run.lower()}", f"bench_{run[0].lower()}"
    match system:
        case "millrace":
            return measure_pipeline(stack, topics, {"MILLRACE_START": f"{log_file}:4"}, rows)
        case "run":
            return measure_pipeline(stack, topics, {"MILLRACE_START": f"{log_file}:4"}, rows, "run")
        case "debezium":
            return measure_debezium(stack, topics, schema, log_file, rows)
        case _:
            return measure_replication(stack, schema, log_file, rows)


def _delete_topics(stack: LocalStack) -> None:
    """Make room for the next run: nothing of this one is needed."""
    admin = admin_client(KafkaSettings.model_validate({"bootstrap_servers": stack.kafka.bootstrap_servers}))
    topics = [topic for topic in topic_names(admin) if not topic.startswith("__")]
    for future in admin.delete_topics(topics).values() if topics else ():
        future.result()


def _table() -> Table:
    table = Table("input", "system", title="Server to topics of rows", title_justify="left")
    table.columns[1].no_wrap = True
    for column in ("rows/s", "of all runs", "first row", "CPU/row", "peak MB", "servers' CPU/row"):
        table.add_column(column, justify="right")
    table.add_column("Millrace's rate, CPU")
    return table


def _add_rows(table: Table, name: str, runs: Runs) -> None:
    table.add_section()
    own = median_result(runs["millrace"]) if "millrace" in runs else None
    for system, results in runs.items():
        result = median_result(results)
        table.add_row(
            name,
            _NAMES[system],
            f"{result.rows_per_s:,.0f}",
            _extent(results),
            f"{result.first_row_s:.1f} s",
            f"{result.cpu_us:.1f} µs",
            " + ".join(f"{cost.peak_mb:,.0f}" for cost in result.costs.values()),
            f"{result.servers_us:.1f} µs",
            "" if own is None or own is result else _ratio(own, result),
        )


def _extent(results: Sequence[PipelineResult]) -> str:
    rates = [result.rows_per_s for result in results]
    return f"{min(rates):,.0f} to {max(rates):,.0f}" if len(rates) > 1 else ""


def _ratio(own: PipelineResult, peer: PipelineResult) -> str:
    rate, cpu = own.rows_per_s / peer.rows_per_s, own.cpu_us / peer.cpu_us
    return f"{rate:.1f} x, {cpu:.2f} x"


if __name__ == "__main__":
    main()

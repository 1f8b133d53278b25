"""Measure the codec, the stages and the pipeline and print the figures: ``python -m benchmarks --help``."""

import shutil

import click
from rich.console import Console
from rich.table import Table

from benchmarks.codec import CodecResult, StageResult, measure_codec, measure_stages
from benchmarks.inputs import INPUTS, write_input
from benchmarks.machine import ProcessCost, machine
from benchmarks.pipeline import FORMS, SERVICES, PipelineResult, measure_pipeline
from benchmarks.programs import measure_programs
from millrace import kernel
from millrace.local import LocalStack
from millrace.runtime.logging import configure_logging

_CONSOLE = Console(width=140)


@click.command()
@click.option("--inputs", default="ABC", show_default=True, help="Which inputs: letters of A, B and C.")
@click.option("--scale", default=1.0, show_default=True, help="Size of the inputs; 1 is the full size.")
@click.option(
    "--pipeline/--no-pipeline", default=True, show_default=True, help="From server to row topics too."
)
@click.option(
    "--mysqlbinlog",
    type=click.Path(exists=True, dir_okay=False, executable=True),
    default=lambda: shutil.which("mysqlbinlog"),
    show_default="the one on PATH",
    help="A mysqlbinlog to measure beside.",
)
def main(inputs: str, scale: float, mysqlbinlog: str | None, *, pipeline: bool) -> None:
    """Write inputs on a real server, decode its log, and carry it through the stages and the services."""
    if unknown := set(inputs.upper()) - INPUTS.keys():
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: the inputs are {', '.join(INPUTS)}")
    configure_logging("WARNING")
    codec, stages, carried = _codec_table(), _stage_table(), _pipeline_table()
    programs: dict[str, dict[str, float]] = {}
    notes: list[str] = []
    with (
        _CONSOLE.status("starting Kafka, the registry and MySQL") as status,
        LocalStack(say=_CONSOLE.print) as stack,
    ):
        for name in inputs.upper():
            status.update(f"writing input {name} at scale {scale}")
            with stack.database.connect() as connection:
                log_file, rows = write_input(name, connection, scale)
            log = stack.database.data_folder / log_file
            status.update(f"decoding input {name}")
            _add_codec(codec, name, measure_codec(log))
            status.update(f"carrying input {name} through the stages")
            _add_stages(stages, name, measure_stages(log))
            status.update(f"running programs on input {name}")
            programs[name] = measure_programs(log, mysqlbinlog)
            if pipeline:
                status.update(f"carrying input {name} to row topics")
                start = {"MILLRACE_START": f"{log_file}:4"}
                for form in FORMS:
                    result = measure_pipeline(stack, f"bench{name}-{form}", start, rows, form)
                    _add_pipeline(carried, name, result)
                    notes += [f"input {name}, {form}: {result.disturbance}"] if result.disturbance else []
        version = stack.database.version
    _CONSOLE.print(f"{machine()}; kernel: {kernel.state()}; MySQL {version}; scale {scale}")
    _CONSOLE.print(codec)
    _CONSOLE.print(stages)
    _CONSOLE.print(_program_table(programs))
    if pipeline:
        _CONSOLE.print(carried)
    for note in notes:
        _CONSOLE.print(note)


def _codec_table() -> Table:
    return _table(
        "Reference codec, one core, from memory",
        "events",
        "MB",
        "events/s",
        "rows/s natural",
        "rows/s for Avro",
    )


def _add_codec(table: Table, name: str, result: CodecResult) -> None:
    table.add_row(
        name,
        f"{result.events:,}",
        f"{result.megabytes:,.0f}",
        f"{result.events / result.events_s:,.0f}",
        f"{result.rows / result.natural_s:,.0f}",
        f"{result.rows / result.avro_s:,.0f}",
    )


def _stage_table() -> Table:
    return _table("Stages without Kafka (µs of CPU per row)", "events", "rows", *SERVICES, "together")


def _add_stages(table: Table, name: str, result: StageResult) -> None:
    costs = [result.cpu_s[service] / result.rows * 1e6 for service in SERVICES]
    table.add_row(
        name, f"{result.events:,}", f"{result.rows:,}", *(f"{cost:.2f}" for cost in (*costs, sum(costs)))
    )


def _program_table(programs: dict[str, dict[str, float]]) -> Table:
    names = next(iter(programs.values()), {})
    table = _table("Whole programs on the log file (seconds of user CPU)", *names)
    for name, seconds in programs.items():
        table.add_row(name, *(f"{used:.2f}" for used in seconds.values()))
    return table


def _pipeline_table() -> Table:
    return _table(
        "Server to row topics (µs of CPU per row, peak memory in MB)",
        "rows",
        "s",
        "rows/s",
        *SERVICES,
        "run",
        "together",
        "servers",
    )


def _add_pipeline(table: Table, name: str, result: PipelineResult) -> None:
    table.add_row(
        name,
        f"{result.rows:,}",
        f"{result.seconds:.1f}",
        f"{result.rows_per_s:,.0f}",
        *(_used(result.costs.get(name), result.rows) for name in (*SERVICES, "run")),
        f"{result.cpu_us:.1f} µs",
        *["\n".join(f"{who}: {_used(cost, result.rows)}" for who, cost in result.servers.items())],
    )


def _used(cost: ProcessCost | None, rows: int) -> str:
    return "" if cost is None else f"{cost.cpu_s / rows * 1e6:.1f} µs, {cost.peak_mb:,.0f} MB"


def _table(title: str, *columns: str) -> Table:
    table = Table("input", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column.startswith("who") else "right")
    return table


if __name__ == "__main__":
    main()

"""Measure the codec and the pipeline and print the figures: ``python -m benchmarks --help``."""

import click
from rich.console import Console
from rich.table import Table

from benchmarks.codec import CodecResult, measure_codec
from benchmarks.inputs import INPUTS, write_input
from benchmarks.machine import machine
from benchmarks.pipeline import PipelineResult, measure_pipeline
from millrace.local import LocalStack

_CONSOLE = Console(width=110)


@click.command()
@click.option("--inputs", default="AB", show_default=True, help="Which inputs: letters of A, B and C.")
@click.option("--scale", default=0.1, show_default=True, help="Size of the inputs; 1 is the full size.")
@click.option(
    "--pipeline/--no-pipeline", default=True, show_default=True, help="From server to row topics too."
)
def main(inputs: str, scale: float, *, pipeline: bool) -> None:
    """Write inputs on a real server, decode its log, and carry it through all services."""
    if unknown := set(inputs.upper()) - INPUTS.keys():
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: the inputs are {', '.join(INPUTS)}")
    codec, carried = _codec_table(), _pipeline_table()
    with (
        _CONSOLE.status("starting Kafka, the registry and MySQL") as status,
        LocalStack(say=_CONSOLE.print) as stack,
    ):
        for name in inputs.upper():
            status.update(f"writing input {name} at scale {scale}")
            with stack.database.connect() as connection:
                log_file, rows = write_input(name, connection, scale)
            status.update(f"decoding input {name}")
            _add_codec(codec, name, measure_codec(stack.database.data_folder / log_file))
            if pipeline:
                status.update(f"carrying input {name} to row topics")
                start = {"MILLRACE_START": f"{log_file}:4"}
                _add_pipeline(carried, name, measure_pipeline(stack, f"bench{name}", start, rows))
        version = stack.database.version
    _CONSOLE.print(f"{machine()}; MySQL {version}; scale {scale}")
    _CONSOLE.print(codec)
    if pipeline:
        _CONSOLE.print(carried)


def _codec_table() -> Table:
    return _table(
        "Codec, one core, from memory", "events", "MB", "events/s", "rows/s natural", "rows/s for Avro"
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


def _pipeline_table() -> Table:
    return _table("Server to row topics (CPU seconds, peak memory)", "rows", "s", "rows/s", "who used what")


def _add_pipeline(table: Table, name: str, result: PipelineResult) -> None:
    costs = "\n".join(
        f"{who}: {cost.cpu_s:.1f} s, {cost.peak_mb:,.0f} MB" for who, cost in result.costs.items()
    )
    rate = f"{result.rows / result.seconds:,.0f}"
    table.add_row(name, f"{result.rows:,}", f"{result.seconds:.1f}", rate, costs)


def _table(title: str, *columns: str) -> Table:
    table = Table("input", title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column.startswith("who") else "right")
    return table


if __name__ == "__main__":
    main()

"""The command ``millrace demo``."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import click

from millrace.cli.frame import errors_in_words
from millrace.demo.pipeline import parse_address
from millrace.demo.run import Demo, Options
from millrace.local import LocalError, guard
from millrace.runtime.config_option import config_option
from millrace.runtime.logging import configure_logging

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INTERRUPTED: Final = 130
_SOURCE_VARIABLE: Final = "MILLRACE_DEMO_SOURCE"
"""A process's arguments can be read by everybody on the machine, its environment cannot."""


@click.command("demo")
@config_option
@click.option(
    "--source",
    envvar=_SOURCE_VARIABLE,
    help=f"Your server instead, as mysql://user:password@host:port. [{_SOURCE_VARIABLE}, which hides it]",
)
@click.option("--kafka", "bootstrap_servers", help="Your Kafka instead, as host:port,….")
@click.option(
    "--registry", "registry_url", help="Your schema registry instead: the root of its Confluent API."
)
@click.option(
    "--rows",
    "large_rows",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    help="Rows of the large transaction.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("reports/demo"),
    show_default=True,
    help="Folder for the reports.",
)
@click.option("--stay", is_flag=True, help="Keep the servers running at the end, until Ctrl-C.")
@click.option("--end-with-parent", is_flag=True, help="End when the process that started this one does.")
def demo(*, end_with_parent: bool, source: str | None, output: Path, **others: Any) -> None:
    """Run servers, pipeline, a workload and both Spark jobs on this machine, and check the result."""
    if end_with_parent:
        guard.end_with_parent(os.getppid(), signal.SIGTERM)
    try:
        with errors_in_words():
            address = None if source is None else parse_address(source)
            for number in _SIGNALS:
                signal.signal(number, _interrupt)
            configure_logging("ERROR")
            sys.exit(_run(Options(database_server=address, output=output.absolute(), **others)))
    except LocalError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("\nstopped; nothing is left running", err=True)
        sys.stdout.flush()
        os._exit(_INTERRUPTED)  # without waiting for downloads that are under way


def _run(options: Options) -> int:
    with Demo(options) as run:
        try:
            return 0 if run.run() else 1
        finally:
            for number in _SIGNALS:  # what is left to do takes a moment and must be done
                signal.signal(number, signal.SIG_IGN)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt

"""``millrace job NAME``: run a Spark job in this process, Java and the connectors' jars found or fetched.

Plain ``spark-submit`` runs the same files; it wants the jars that ``millrace job jars`` prints. Without Spark
the jobs cannot be imported; their help is then that of ``spark_jobs/help``, which ``make generate`` writes.
"""

import copy
import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from types import FrameType
from typing import Any, Final, NoReturn

import click

from millrace.cli import SuggestingGroup
from millrace.installation import install_command
from millrace.local.artifacts import bundle, fetch
from millrace.local.errors import LocalError
from millrace.local.java import spark_environment
from millrace.runtime.exit_codes import ExitCode

JOBS: Final = (
    "analytics",
    "archive",
    "conformance",
    "flashback",
    "loop_detection",
    "reprocess",
    "row_history",
    "table_state",
)
"""The jobs: modules of the package ``spark_jobs``, each with a command ``main``."""

_JARS_VARIABLE: Final = "MILLRACE_SPARK_JARS"


class _WithoutSpark(click.Command):
    """A job that cannot be imported: it has its help."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, params=[click.Argument(["arguments"], nargs=-1)])
        self.context_settings = {"ignore_unknown_options": True}
        self._reason = reason

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """Return the help as the job itself would write it."""
        return _help(self.name or "").rstrip("\n")

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ARG002
        """Say what is missing."""
        _fail(f"Spark is not installed ({self._reason}): {install_command('spark', 'local')}")


def _help(job: str) -> str:
    return files("spark_jobs").joinpath("help", f"{job}.txt").read_text()


class _Jobs(SuggestingGroup):
    """The jobs as commands; pyspark is imported when one of them is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the jobs and the other commands."""
        return sorted([*JOBS, *super().list_commands(ctx)])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any job."""
        lines = {name: " ".join(_help(name).split("\n\n")[1].split()) for name in JOBS}
        lines |= {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, lines[name]) for name in self.list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a job's command; dashes do for underscores."""
        name = cmd_name.replace("-", "_")
        if name not in JOBS:
            return super().get_command(ctx, cmd_name)
        _end_on_sigterm(ctx, name)
        try:
            module = importlib.import_module(f"spark_jobs.{name}")
        except ModuleNotFoundError as error:
            return _WithoutSpark(name, str(error))
        command = copy.copy(module.main)
        command.callback = _prepared(command.callback)
        assert isinstance(command, click.Command)
        return command


def _end_on_sigterm(context: click.Context, name: str) -> None:
    """End with one line on SIGTERM while the job is imported, which then does so itself.

    As process 1 of a container it would not end otherwise.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        sys.stderr.write(f"error: {name} was stopped by SIGTERM; the previous results remain\n")
        sys.stderr.flush()
        os._exit(128 + number)

    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, end)
        context.call_on_close(functools.partial(signal.signal, signal.SIGTERM, before))


@click.group("job", cls=_Jobs)
def job() -> None:
    """Run a Spark job over the topics of a source."""


@job.command("jars")
@click.option("--iceberg", is_flag=True, help="Also that of Iceberg, for reprocess --format iceberg.")
def jars(*, iceberg: bool) -> None:
    """Print the jars that spark-submit needs for the jobs, for its option --jars."""
    try:
        click.echo(connector_jars(iceberg=iceberg))
    except LocalError as error:
        _fail(str(error))


def _prepared(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Make a job's function find Java and jars first."""

    @functools.wraps(callback)
    def run(*args: Any, **options: Any) -> Any:
        try:
            fetched = _JARS_VARIABLE not in os.environ  # else in an image, whose cache is lost with it
            environment = spark_environment(archive=fetched)
            if fetched:
                iceberg = options.get("table_format") == "iceberg"
                environment[_JARS_VARIABLE] = connector_jars(iceberg=iceberg)
        except LocalError as error:
            _fail(str(error))
        os.environ.update(environment)
        return callback(*args, **options)

    return run


def connector_jars(*, iceberg: bool = False) -> str:
    """Return the paths of the connectors' jars, separated by commas, fetched if need be."""
    wanted, installed = bundle("spark").version, version("pyspark")
    if installed != wanted:
        raise LocalError(
            f"the connectors are those of Spark {wanted}, and pyspark {installed} is installed: install "
            f"pyspark=={wanted}, or set {_JARS_VARIABLE} to jars of that version"
        )
    bundles = ["spark", "iceberg"] if iceberg else ["spark"]
    return ",".join(str(path) for name in bundles for path in sorted(fetch(name).glob("*.jar")))


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    raise SystemExit(int(ExitCode.SETTINGS))

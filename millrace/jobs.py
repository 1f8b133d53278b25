"""``millrace job NAME``: run a Spark job in this process, Java and the connectors' jars found or fetched.

Plain ``spark-submit`` runs the same files; it wants the jars that ``millrace job jars`` prints.
"""

import copy
import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import click

from millrace.local.artifacts import fetch
from millrace.local.errors import LocalError
from millrace.local.java import spark_environment
from millrace.runtime.exit_codes import ExitCode

__all__ = ["JOBS", "connector_jars", "job"]

JOBS: Final = ("analytics", "loop_detection")
"""The jobs: modules of the package ``spark_jobs``, each with a command ``main``."""

_JARS_VARIABLE: Final = "MILLRACE_SPARK_JARS"


class _Jobs(click.Group):
    """The jobs as commands; pyspark is imported when one of them is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the jobs and the other commands."""
        return sorted([*JOBS, *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a job's command; dashes do for underscores."""
        name = cmd_name.replace("-", "_")
        if name not in JOBS:
            return super().get_command(ctx, cmd_name)
        try:
            module = importlib.import_module(f"spark_jobs.{name}")
        except ModuleNotFoundError as error:
            _fail(f"Spark is not installed ({error}): pip install 'millrace[spark,local]'")
        command = copy.copy(module.main)
        command.callback = _prepared(command.callback)
        assert isinstance(command, click.Command)
        return command


@click.group("job", cls=_Jobs)
def job() -> None:
    """Run a Spark job over the topics of a source."""


@job.command("jars")
def jars() -> None:
    """Print the jars that spark-submit needs for the jobs, for its option --jars."""
    try:
        click.echo(connector_jars())
    except LocalError as error:
        _fail(str(error))


def _prepared(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Make a job's function find Java and jars first."""

    @functools.wraps(callback)
    def run(*args: Any, **options: Any) -> Any:
        try:
            environment = spark_environment()
            if _JARS_VARIABLE not in os.environ:
                environment[_JARS_VARIABLE] = connector_jars()
        except LocalError as error:
            _fail(str(error))
        os.environ.update(environment)
        return callback(*args, **options)

    return run


def connector_jars() -> str:
    """Return the paths of the connector's jars, separated by commas, fetched if need be."""
    return ",".join(str(path) for path in sorted(fetch("spark").glob("*.jar")))


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    raise SystemExit(int(ExitCode.SETTINGS))

"""The command ``millrace``.

Subcommands are imported when they are used, so that ``millrace --help`` is quick and works without any extra.
"""

from millrace.runtime.imports import uncollected

with uncollected():
    import contextlib
    import errno
    import importlib
    import os
    import select
    import signal
    import sys
    import traceback
    from collections.abc import Iterator
    from difflib import get_close_matches
    from types import FrameType
    from typing import Any, Final, NoReturn

    import click

    from millrace import __version__, kernel
    from millrace.installation import install_command
    from millrace.runtime.exit_codes import ExitCode
    from millrace.runtime.setting_names import variable_problems

__all__ = ["SuggestingGroup", "main"]

_COMMANDS: Final = {
    "binlog": (
        "millrace.cli.binlog:binlog",
        "Look into binary logs: text, JSON, statistics, checks.",
    ),
    "deadletter": (
        "millrace.cli.deadletter:deadletter",
        "List, show and redrive what could not be decoded or mapped.",
    ),
    "decoder": ("millrace.cli.services:decoder", "Run the decoder: raw events to typed events."),
    "demo": ("millrace.cli.demo:demo", "Run everything on this machine with a workload, and check it."),
    "doctor": ("millrace.cli.doctor:doctor", "Check source, Kafka and registry before anything runs."),
    "job": ("millrace.cli.job:job", "Run a Spark job over the topics of a source."),
    "local": ("millrace.cli.local:local", "Start Kafka, a registry and a database server here."),
    "pause": ("millrace.cli.pause:pause", "Pause a source, or the rows of tables, until resumed."),
    "reader": ("millrace.cli.services:reader", "Run the reader: a server's binary log to raw events."),
    "reprocess": (
        "millrace.cli.reprocess:reprocess",
        "Make decoder and row mapper write events and rows again from the raw topic.",
    ),
    "resume": ("millrace.cli.pause:resume", "Resume a paused source or paused tables."),
    "run": ("millrace.cli.services:run", "Run reader, decoder and row mapper in one process."),
    "schema": (
        "millrace.cli.schema:schema",
        "Show what is known of the definitions of tables as of a place in the log.",
    ),
    "snapshot": (
        "millrace.cli.snapshot:snapshot",
        "Copy the current rows of tables to the row topics, while the stream runs.",
    ),
    "state": (
        "millrace.cli.state:state",
        "Show where the services stand, or rebuild a state that was lost.",
    ),
    "source": (
        "millrace.cli.source:source",
        "Make a source start at another position in its log.",
    ),
    "status": (
        "millrace.cli.status:status",
        "Print the positions of the services, and the lag between them.",
    ),
    "topic": ("millrace.cli.topic:topic", "Print records of a topic, decoded, one JSON object a line."),
    "verify": ("millrace.cli.verify:verify", "Compare topics with the server's log and tables."),
    "rowmapper": ("millrace.cli.services:rowmapper", "Run the row mapper: typed events to row changes."),
}
"""Where each subcommand lives, and its line in the help."""

_SECTIONS: Final = {
    "Run": ("run", "reader", "decoder", "rowmapper", "snapshot"),
    "Look": ("status", "doctor", "verify", "topic", "schema", "binlog"),
    "Repair": ("pause", "resume", "deadletter", "source", "state", "reprocess"),
    "On this machine": ("demo", "local"),
    "Spark": ("job",),
}
"""How the help groups them."""

_UNWRITABLE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of the operating system for what is not written: no command opens a file for reading with these."""

_EARLIER_NAMES: Final = {"recompute": "reprocess"}
"""Names of an earlier version, which still work."""


class SuggestingGroup(click.Group):
    """A group that names similar commands where it has none of the name that is given."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. Click itself knows those of a group alone that has them all imported."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            similar = " or ".join(f"'{each}'" for each in get_close_matches(name, self.list_commands(ctx)))
            advice = f"did you mean {similar}?" if similar else f"'{ctx.command_path} --help' lists them"
            raise click.UsageError(f"No such command '{name}': {advice}", ctx)
        return super().resolve_command(ctx, args)


class _LazyGroup(SuggestingGroup):
    """A group that knows its commands by name and imports one when it is called."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command. As process 1 of a container, hear SIGTERM from the first moment.

        Elsewhere SIGTERM ends a process that has no handler for it; process 1 it does not reach.
        """
        if os.getpid() == 1:
            signal.signal(signal.SIGTERM, _end)
        with _output():
            return super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        cmd_name = _EARLIER_NAMES.get(cmd_name, cmd_name)
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        try:
            with uncollected():
                command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("millrace"):
                raise
            raise click.ClickException(
                f"'millrace {cmd_name}' needs the Python package {error.name!r}, which is not installed: "
                + install_command("local", "spark")
            ) from error
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; how it ends is said here for all of them.

        With 130 and one word by Ctrl-C; silently with 141 where nobody reads its output any more, as by
        SIGPIPE, since 0 and 1 mean something; with 70 and a traceback by a bug.
        """
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise SystemExit(int(ExitCode.INTERRUPTED)) from None
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _UNWRITABLE:
                raise
            if isinstance(error, BrokenPipeError) and _reader_is_gone():
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise SystemExit(int(ExitCode.UNREAD)) from None
            traceback.print_exception(error)
            what = f"millrace {ctx.invoked_subcommand or ''}".rstrip()
            click.echo(
                f"error: {what} failed because of a bug ({type(error).__name__}), see the traceback above",
                err=True,
            )
            raise SystemExit(int(ExitCode.BUG)) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the lists of commands without importing any."""
        for section, names in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, _COMMANDS[name][1]) for name in names])


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """End the process with a line and a code of its own where what it writes cannot be written."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        with contextlib.suppress(OSError):  # no file: a test's
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = error.filename or "the output"
        click.echo(f"error: {what} cannot be written: {error.strerror}", err=True)
        raise SystemExit(int(ExitCode.OUTPUT)) from None


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _reader_is_gone() -> bool:
    """Whether it is our output that nobody reads any more, and not another connection that broke."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # no file: a test's
            poll.register(stream.fileno(), 0)
    return bool(poll.poll(0))


_MAY_LOAD_NO_SETTINGS: Final = frozenset({"binlog", "demo", "job", "local"})
"""Commands whose variables are checked here; the others check them as they load their settings."""


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, prog_name="millrace", message=f"%(prog)s, version %(version)s, kernel {kernel.state()}"
)
@click.pass_context
def main(context: click.Context) -> None:
    """Carry the binary log of MySQL and MariaDB to Kafka, and read it there with Spark."""
    if context.invoked_subcommand in _MAY_LOAD_NO_SETTINGS and (problems := variable_problems(os.environ)):
        for problem in problems:
            click.echo(f"error: {problem}", err=True)
        raise SystemExit(int(ExitCode.SETTINGS))

"""The command ``millrace``.

Subcommands are imported when they are used, so that ``millrace --help`` is quick and works without any extra.
"""

import importlib
import os
import signal
import sys
from types import FrameType
from typing import Any, Final, NoReturn

import click

import millrace

__all__ = ["main"]

_COMMANDS: Final = {
    "binlog": (
        "millrace.binlog_command.command:binlog",
        "Look into binary logs: text, JSON, statistics, checks.",
    ),
    "deadletter": (
        "millrace.deadletter.command:deadletter",
        "List, show and redrive what could not be decoded or mapped.",
    ),
    "decoder": ("millrace.service_commands:decoder", "Run the decoder: raw events to typed events."),
    "demo": ("millrace.demo.command:demo", "Run everything on this machine with a workload, and check it."),
    "doctor": ("millrace.doctor.command:doctor", "Check source, Kafka and registry before anything runs."),
    "job": ("millrace.jobs:job", "Run a Spark job over the topics of a source."),
    "local": ("millrace.local.commands:local", "Start Kafka, a registry and a database server here."),
    "reader": ("millrace.service_commands:reader", "Run the reader: a server's binary log to raw events."),
    "reprocess": (
        "millrace.reprocess_command:reprocess",
        "Have decoder and row mapper make events and rows again from the raw topic.",
    ),
    "state": (
        "millrace.state_command:state",
        "Show where the services stand, or rebuild a state that was lost.",
    ),
    "status": (
        "millrace.status.command:status",
        "Print where the services stand, and what lies between them.",
    ),
    "topic": ("millrace.topic_command:topic", "Print records of a topic, decoded, one JSON object a line."),
    "verify": ("millrace.verify.command:verify", "Compare topics with the server's log and tables."),
    "rowmapper": ("millrace.service_commands:rowmapper", "Run the row mapper: typed events to row changes."),
}
"""Where each subcommand lives, and its line in the help."""

_EARLIER_NAMES: Final = {"recompute": "reprocess"}
"""Names of an earlier version, which still work."""


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command. As process 1 of a container, hear SIGTERM from the first moment.

        Elsewhere SIGTERM ends a process that has no handler for it; process 1 it does not reach.
        """
        if os.getpid() == 1:
            signal.signal(signal.SIGTERM, _end)
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
            command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("millrace"):
                raise
            raise click.ClickException(
                f"'millrace {cmd_name}' needs the Python package {error.name!r}, which is not installed: "
                "pip install 'millrace[local,spark]'"
            ) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_where, line) in sorted(_COMMANDS.items())])


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@click.group(cls=_LazyGroup)
@click.version_option(millrace.__version__, prog_name="millrace")
def main() -> None:
    """Carry the binary log of MySQL and MariaDB to Kafka, and read it there with Spark."""


if __name__ == "__main__":
    sys.exit(main())

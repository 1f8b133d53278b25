"""The command ``millrace``.

Subcommands are imported when they are used, so that ``millrace --help`` is quick and works without any extra.
"""

import importlib
import sys
from typing import Final

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
        "List, show and retry what could not be decoded or mapped.",
    ),
    "decoder": ("millrace.service_commands:decoder", "Run the decoder: raw events to typed events."),
    "demo": ("millrace.demo.command:demo", "Run everything on this machine with a workload, and check it."),
    "doctor": ("millrace.doctor.command:doctor", "Check source, Kafka and registry before anything runs."),
    "job": ("millrace.jobs:job", "Run a Spark job over the topics of a source."),
    "local": ("millrace.local.commands:local", "Start Kafka, a registry and a database server here."),
    "reader": ("millrace.service_commands:reader", "Run the reader: a server's binary log to raw events."),
    "recompute": (
        "millrace.recompute_command:recompute",
        "Have decoder and row mapper make events and rows anew from the raw topic.",
    ),
    "source": (
        "millrace.source_command:source",
        "Move a source to another place in its log, on purpose.",
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


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
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


@click.group(cls=_LazyGroup)
@click.version_option(millrace.__version__, prog_name="millrace")
def main() -> None:
    """Carry the binary log of MySQL and MariaDB to Kafka, and read it there with Spark."""


if __name__ == "__main__":
    sys.exit(main())

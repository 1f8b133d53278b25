"""The command ``millrace doctor``."""

import os
import shutil
import sys

import click

from millrace.doctor.examine import findings, load_sides
from millrace.doctor.report import as_json, as_lines, summary
from millrace.finding import Level
from millrace.runtime.config_option import config_option
from millrace.runtime.logging import configure_logging

_PIPE_WIDTH = 1_000_000
"""In a pipe a finding is one line, its advice another."""


@click.command("doctor")
@config_option
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
@click.option("--problems", is_flag=True, help="Leave out what is ok.")
def doctor(*, json_output: bool, problems: bool) -> None:
    """Check a source, Kafka and the schema registry before anything runs.

    It takes the same settings as the services (MILLRACE_… and a TOML file), changes nothing, and says what to
    do about each finding. Ends with code 1 if there is an error or a check could not be made, else with 0.
    """
    configure_logging("CRITICAL")
    found = list(findings(load_sides()))
    shown = [finding for finding in found if not problems or finding.outcome.level is not Level.OK]
    if json_output:
        click.echo(as_json(shown))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
        colour = False if os.environ.get("NO_COLOR") else None
        for line in [*as_lines(shown, width), "", summary(found)]:
            click.echo(line, color=colour)
    raise SystemExit(any(finding.outcome.level.fails for finding in found))

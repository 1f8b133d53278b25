"""The command ``millrace status``."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache

import click

from millrace.avro.registry import SchemaStore
from millrace.cli.frame import errors_in_words
from millrace.kafka.schema_topic import open_schemas
from millrace.runtime.config_option import config_option
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import load_settings
from millrace.status.collect import SourceStatus, StatusSettings, collect, sources
from millrace.status.report import as_dict, as_lines
from millrace.text import printable_json

_CLEAR = "\x1b[H\x1b[2J"


@click.command("status")
@click.argument("names", metavar="[SOURCE]...", nargs=-1)
@config_option
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object a source, a line each.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    help="Seconds between updates with --watch.",
)
def status(*, names: tuple[str, ...], json_output: bool, watch: bool, interval: float) -> None:
    """Print the positions of the services of each source, and the lag between them.

    Without SOURCE that of MILLRACE_SOURCE, else all that Kafka knows. The server is asked for the end of its
    log where MILLRACE_MYSQL_… says how, for the source of MILLRACE_SOURCE.
    """
    configure_logging("CRITICAL")
    # What is watched until Ctrl-C ends well by it.
    with errors_in_words(), suppress(*([KeyboardInterrupt] if watch else [])):
        settings = load_settings(StatusSettings)
        with ExitStack() as stack:

            @cache
            def schemas(source: str) -> SchemaStore:
                return stack.enter_context(open_schemas(settings.kafka, settings.registry, source))

            while True:
                found = [collect(settings, name, schemas(name)) for name in names or sources(settings)]
                _print(found, json_output=json_output, clear=watch and sys.stdout.isatty())
                if not watch:
                    _check_known(settings, found)
                    break
                time.sleep(interval)


def _check_known(settings: StatusSettings, found: Sequence[SourceStatus]) -> None:
    """Raise UserError for sources without a service that has run."""
    unknown = [one.source for one in found if not one.services]
    if unknown:
        raise UserError(
            f"no service of {', '.join(unknown)} has run at {settings.kafka.bootstrap_servers}: check the "
            "name of the source",
            ExitCode.KAFKA,
        )


def _print(found: list[SourceStatus], *, json_output: bool, clear: bool) -> None:
    lines = _json(found) if json_output else _text(found)
    colour = False if os.environ.get("NO_COLOR") else None
    click.echo((_CLEAR if clear and not json_output else "") + "\n".join(lines), color=colour)
    sys.stdout.flush()


def _json(found: list[SourceStatus]) -> Iterator[str]:
    return (printable_json(json.dumps(as_dict(status), ensure_ascii=False)) for status in found)


def _text(found: list[SourceStatus]) -> Iterator[str]:
    if not found:
        yield "Kafka knows no source: no service has run"
    for index, one in enumerate(found):
        if index:
            yield ""
        yield from as_lines(one)

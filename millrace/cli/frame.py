"""What commands share: where topics are and that they are there, and errors as lines, not tracebacks."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from millrace.avro.single_object import SingleObjectError
from millrace.kafka.client import connect
from millrace.kafka.read import topic_names
from millrace.mysql.errors import SourceError
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import CONFIG_VARIABLE, ServiceSettings
from millrace.text import printable

__all__ = [
    "check_topics",
    "config_option",
    "errors_in_words",
    "kafka_option",
    "setting_values",
    "source_option",
    "topic_options",
]

_REGISTRY: Final = click.option("--registry-url", help="Schema registry's address. [MILLRACE_REGISTRY_URL]")

source_option: Final = click.option("--source", help="Name of the source. [MILLRACE_SOURCE]")


def _use_config(_context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is not None:
        os.environ[CONFIG_VARIABLE] = str(path)


config_option: Final = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    expose_value=False,
    callback=_use_config,
    help=f"The TOML file; as {CONFIG_VARIABLE}.",
)
kafka_option: Final = click.option(
    "--bootstrap-servers", help="Kafka brokers, host:port. [MILLRACE_KAFKA_BOOTSTRAP_SERVERS]"
)


def topic_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--bootstrap-servers`` and ``--registry-url``."""
    return kafka_option(_REGISTRY(command))


def setting_values(
    *, bootstrap_servers: str | None, registry_url: str | None = None, source: str | None = None
) -> dict[str, Any]:
    """Turn the options into settings, which win over the environment."""
    values: dict[str, Any] = {}
    if source:
        values["source"] = source
    if bootstrap_servers:
        values["kafka"] = {"bootstrap_servers": bootstrap_servers}
    if registry_url:
        values["registry"] = {"url": registry_url}
    return values


def check_topics(settings: ServiceSettings, *names: str) -> None:
    """Raise :class:`UserError` for the first of the topics that does not exist."""
    known = topic_names(connect(settings.kafka))
    for name in names:
        if name not in known:
            raise UserError(
                f"there is no topic {name} at {settings.kafka.bootstrap_servers}: check the source's name"
                + ", and MILLRACE_INPUT_SOURCE" * (name in {settings.names.raw, settings.names.catalog}),
                ExitCode.KAFKA,
            )


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Print what a user can act on as ``error: …`` on standard error, and exit with its code."""
    try:
        yield
    except UserError as error:
        for line in error.lines:
            _tell(line)
        sys.exit(error.exit_code)
    except SourceError as error:
        _tell(str(error))
        sys.exit(ExitCode.SOURCE)
    except SingleObjectError as error:
        _tell(f"a state cannot be read: {error}")
        sys.exit(ExitCode.DATA)


def _tell(message: str) -> None:
    click.echo(f"error: {printable(message)}", err=True)

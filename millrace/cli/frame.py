"""What commands share: where topics are and that they are there, and errors as lines, not tracebacks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click
from click.decorators import FC
from pydantic_settings import BaseSettings

from millrace.kafka.client import connect
from millrace.kafka.read import topic_names
from millrace.mysql.errors import SourceError
from millrace.runtime.config_option import config_option
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import ServiceSettings, load_settings
from millrace.text import printable

_OPTIONS: Final = "millrace.settings"
"""Under which name a context keeps the settings that options give."""

S = TypeVar("S", bound=BaseSettings)


def _setting(flag: str, text: str, section: str, name: str = "") -> Callable[[FC], FC]:
    """Make an option that gives a setting, which wins over the environment."""

    def keep(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value:
            context.meta.setdefault(_OPTIONS, {})[section] = {name: value} if name else value

    variable = f"MILLRACE_{section}_{name}".upper().rstrip("_")
    return click.option(flag, expose_value=False, callback=keep, help=f"{text} [{variable}]")


source_option: Final = _setting("--source", "Name of the source.", "source")
_brokers_option: Final = _setting(
    "--bootstrap-servers", "Kafka brokers, host:port.", "kafka", "bootstrap_servers"
)
_registry_option: Final = _setting("--registry-url", "Schema registry's address.", "registry", "url")


def kafka_option(command: FC) -> FC:
    """Add ``--bootstrap-servers`` and ``--config``."""
    return _brokers_option(config_option(command))


def topic_options(command: FC) -> FC:
    """Add ``--bootstrap-servers``, ``--registry-url`` and ``--config``."""
    return _brokers_option(_registry_option(config_option(command)))


def option_values() -> dict[str, Any]:
    """Return the settings that are given by options of the running command."""
    values: dict[str, Any] = click.get_current_context().meta.get(_OPTIONS, {})
    return values


def command_settings(kind: type[S], **values: Any) -> S:
    """Load settings; ``values``, and the options of the running command, win over environment and file."""
    return load_settings(kind, **option_values(), **values)


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


def _tell(message: str) -> None:
    click.echo(f"error: {printable(message)}", err=True)

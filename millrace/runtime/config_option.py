"""The option ``--config``, which every command has that takes settings."""

import os
from pathlib import Path
from typing import Any, Final

import click

from millrace.runtime.setting_names import CONFIG_VARIABLE


def _use_config(_context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is not None:
        os.environ[CONFIG_VARIABLE] = str(path)


CONFIG: Final[dict[str, Any]] = {
    "type": click.Path(exists=True, dir_okay=False, path_type=Path),
    "expose_value": False,
    "callback": _use_config,
    "help": f"The TOML file with settings. [{CONFIG_VARIABLE}]",
}
"""What the option is, for commands that have their own way to declare it."""

config_option: Final = click.option("--config", **CONFIG)

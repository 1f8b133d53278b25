"""``millrace reader``, ``decoder``, ``rowmapper`` and ``run``: the same as ``python -m services.NAME``."""

from importlib import import_module

import click

from millrace.runtime.config_option import config_option
from millrace.runtime.imports import uncollected


def _service(name: str, what: str) -> click.Command:
    @click.command(name, help=f"{what} Settings come from the environment (MILLRACE_…) and a TOML file.")
    @config_option
    def command() -> None:
        with uncollected():
            service = import_module(f"services.{name}.__main__")
        raise SystemExit(service.main())

    return command


reader = _service("reader", "Carry the binary log of a server, or of files, to {source}.raw.")
decoder = _service("decoder", "Decode {source}.raw to {source}.events.")
rowmapper = _service("rowmapper", "Map {source}.events to the row changes of each table.")
run = _service(
    "run",
    "Carry a source through all stages in one process: reader, decoder and row mapper at once, with the same "
    "topics and states.",
)

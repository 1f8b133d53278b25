"""The command ``millrace snapshot``."""

import os
from typing import Any

import click

from millrace.cli.frame import option_values, source_option
from millrace.runtime.config_option import config_option


@click.command("snapshot")
@source_option
@click.argument("tables", nargs=-1, metavar="[DATABASE.TABLE]...")
@click.option("--exclude", help="Tables to leave out, separated by commas.")
@click.option("--where", help='Conditions of rows: {"shop.orders": "year >= 2024"}.')
@click.option("--rows-per-s", type=click.IntRange(0), help="Rows to read a second at most.")
@click.option("--parallel", type=click.IntRange(1, 64), help="Connections that read at the same time.")
@click.option(
    "--mode",
    type=click.Choice(["now", "once", "signals"]),
    help="once: only where none has been taken; signals: stay, and take those that signals ask for.",
)
@click.option("--restart", is_flag=True, help="Start over, discarding the progress of an earlier one.")
@config_option
def snapshot(
    *,
    tables: tuple[str, ...],
    exclude: str | None,
    where: str | None,
    rows_per_s: int | None,
    parallel: int | None,
    mode: str | None,
    restart: bool,
) -> None:
    """Copy the current rows of tables to the row topics, while the stream runs.

    Without a name all tables are read; * stands for any characters. No table is locked and nothing is
    written to the server, which must be the one that the reader reads. A snapshot that was stopped or killed
    resumes where it was. The row mapper publishes the rows with op r, once the stream has come to their
    place. Settings come from the environment (MILLRACE_…) and a TOML file, as those of the services.
    """
    options: dict[str, Any] = {
        "SOURCE": option_values().get("source"),
        "SNAPSHOT_TABLES": ",".join(tables),
        "SNAPSHOT_EXCLUDE": exclude,
        "SNAPSHOT_WHERE": where,
        "SNAPSHOT_ROWS_PER_S": rows_per_s,
        "SNAPSHOT_PARALLEL": parallel,
        "SNAPSHOT_MODE": mode,
        "RESTART": "true" if restart else None,
    }
    os.environ.update({f"MILLRACE_{name}": str(value) for name, value in options.items() if value})
    from services.snapshot.app import main  # noqa: PLC0415 - after its settings

    raise SystemExit(main())

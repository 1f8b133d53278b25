"""``millrace schema``: what the schema history knows of a table as of a place in the log."""

import difflib
import json
import re
from collections.abc import Iterator
from typing import Final

import click

from millrace.avro.catalog import CatalogEntry
from millrace.avro.schema_version import SchemaVersion
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.cli.frame import check_topics, errors_in_words, kafka_option, setting_values, source_option
from millrace.contract import SourcePosition, Topics
from millrace.ddl import Unknown
from millrace.kafka.read import read_topic
from millrace.rowmapper.catalog import Catalog, Found
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import ServiceSettings, load_settings
from millrace.text import printable, printable_json

__all__ = ["lines_of", "schema"]

_LAST: Final = 1 << 62
_PLACE: Final = re.compile(r"(?:(\d+):)?(.+):(\d+)")

_table: Final = click.argument("table", metavar="DATABASE.TABLE")


@click.group("schema")
def schema() -> None:
    """Show what is known of the definitions of tables."""


@schema.command("show")
@_table
@source_option
@kafka_option
@click.option("--at", metavar="[EPOCH:]FILE:POSITION", help="As of this place; without it, the newest.")
@click.option("--json", "json_output", is_flag=True, help="Print the definition as JSON.")
def show(
    *, table: str, source: str | None, bootstrap_servers: str | None, at: str | None, json_output: bool
) -> None:
    """Print the definition of a table as of a place in the log, and where it comes from."""
    configure_logging("CRITICAL")
    with errors_in_words():
        found = _find(_history(source, bootstrap_servers), table, at)
        state = None if found is None else found.definition
        if json_output and isinstance(state, TableDefinition):
            click.echo(printable_json(json.dumps(state.to_dict(), ensure_ascii=False)))
        else:
            click.echo(printable("\n".join(lines_of(found)), lines=True))


@schema.command("diff")
@_table
@source_option
@kafka_option
@click.option("--from", "before", metavar="[EPOCH:]FILE:POSITION", required=True, help="The earlier place.")
@click.option("--to", "after", metavar="[EPOCH:]FILE:POSITION", help="The later place; else the newest.")
def diff(
    *, table: str, source: str | None, bootstrap_servers: str | None, before: str, after: str | None
) -> None:
    """Print what changed in the definition of a table between two places in the log."""
    configure_logging("CRITICAL")
    with errors_in_words():
        history = _history(source, bootstrap_servers)
        one, other = (list(lines_of(_find(history, table, place))) for place in (before, after))
        lines = difflib.unified_diff(one, other, before, after or "now", lineterm="", n=1)
        click.echo(printable("\n".join(lines), lines=True) or "no difference")


def _history(source: str | None, bootstrap_servers: str | None) -> Catalog:
    settings = load_settings(
        ServiceSettings, **setting_values(source=source, bootstrap_servers=bootstrap_servers)
    )
    topics, catalog = Topics(settings.source), Catalog(kept=None)
    check_topics(settings, topics.catalog, topics.schemas)
    for message in read_topic(settings.kafka, topics.catalog):
        if (value := message.value()) is not None:
            catalog.add(CatalogEntry.from_bytes(value))
    for message in read_topic(settings.kafka, topics.schemas):
        if (value := message.value()) is not None:
            catalog.restore(SchemaVersion.from_bytes(value))
    return catalog


def _find(history: Catalog, table: str, at: str | None) -> Found | None:
    database, _, name = table.partition(".")
    place = SourcePosition(_LAST, "", 0)
    if at is not None:
        match = _PLACE.fullmatch(at)
        if match is None:
            raise UserError(f"{at} is no place in a log: give FILE:POSITION", ExitCode.SETTINGS)
        place = SourcePosition(int(match[1] or 0), match[2], int(match[3]))
    return history.find(database, name, place)


def lines_of(found: Found | None) -> Iterator[str]:
    """Describe what is known of a table, a line for each column and index."""
    if found is None:
        yield "nothing is known of it"
        return
    state = found.definition
    if isinstance(state, Unknown):
        yield f"its definition is not known: {state.reason}"
        return
    if not isinstance(state, TableDefinition):
        yield "there is no such table: it was dropped, or has another name"
        return
    origin = {"catalog": "read from the server", "history": "by a DDL statement"}[found.origin]
    yield f"{state.database}.{state.table}: {origin}{', but later' * found.later}"
    yield from map(_column, state.columns)
    for index in state.indexes:
        parts = ", ".join(name + f"({prefix})" * bool(prefix) for name, prefix in index.parts)
        yield f"  {'unique ' * index.unique}index {index.name} ({parts})"
    yield f"  default character set {state.charset or 'not known'}"


def _column(column: ColumnDefinition) -> str:
    parts = [f"  {column.name} {column.column_type}"]
    parts += [f"character set {column.charset}"] if column.charset else []
    parts += ["null" if column.nullable else "not null"]
    parts += [column.generated.lower()] if column.generated else []
    parts += ["invisible"] if column.hidden else []
    parts += [] if column.key_position is None else [f"primary key {column.key_position + 1}"]
    return ", ".join(parts)

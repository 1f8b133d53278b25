"""``millrace schema``: what the schema history knows of a table as of a place in the log, and its repair."""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from millrace.avro.service_state import RowMapperState, stored_state
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.cli import SuggestingGroup
from millrace.cli.frame import (
    check_topics,
    command_settings,
    errors_in_words,
    kafka_option,
    source_option,
    topic_options,
)
from millrace.contract import SourcePosition
from millrace.ddl import MISSING, Unknown
from millrace.kafka.pause import in_place_of_service
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.schema_topic import open_schemas
from millrace.rowmapper import history
from millrace.rowmapper.catalog import Catalog, Found
from millrace.rowmapper.definitions import read_definitions
from millrace.rowmapper.history import Correction
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import ServiceSettings
from millrace.text import printable, printable_json
from millrace.verify.history import read_schema_history

NOW: Final = SourcePosition(1 << 62, "", 0)
"""After all that is known of a log."""

_PLACE: Final = re.compile(r"(?:(\d+):)?(.+):(\d+)")

_table: Final = click.argument("table", metavar="DATABASE.TABLE")


@click.group("schema", cls=SuggestingGroup)
def schema() -> None:
    """Show what is known of the definitions of tables, or make it again."""


@schema.command("show")
@_table
@source_option
@kafka_option
@click.option("--at", metavar="[EPOCH:]FILE:POSITION", help="As of this position; the newest by default.")
@click.option("--json", "json_output", is_flag=True, help="Print the definition as JSON.")
def show(*, table: str, at: str | None, json_output: bool) -> None:
    """Print the definition of a table as of a place in the log, and where it comes from."""
    configure_logging("CRITICAL")
    with errors_in_words():
        found = _find(_history(), table, at)
        state = None if found is None else found.definition
        if not isinstance(state, TableDefinition) and (json_output or not isinstance(state, Unknown)):
            code = ExitCode.DATA if isinstance(state, Unknown) else ExitCode.SETTINGS
            raise UserError(f"{table}, as of {at or 'now'}: {' '.join(lines_of(found))}", code)
        if json_output and isinstance(state, TableDefinition):
            click.echo(printable_json(json.dumps(state.to_dict(), ensure_ascii=False)))
        else:
            click.echo(printable("\n".join(lines_of(found)), lines=True))


@schema.command("diff")
@_table
@source_option
@kafka_option
@click.option("--from", "before", metavar="[EPOCH:]FILE:POSITION", required=True, help="The earlier place.")
@click.option(
    "--to", "after", metavar="[EPOCH:]FILE:POSITION", help="The later position; the newest by default."
)
def diff(*, table: str, before: str, after: str | None) -> None:
    """Print what changed in the definition of a table between two places in the log."""
    configure_logging("CRITICAL")
    with errors_in_words():
        known = _history()
        found = [_find(known, table, place) for place in (before, after)]
        if all(one is None or one.definition is MISSING for one in found):
            raise UserError(
                f"the schema history has no table {table} at {before} or {after or 'now'}", ExitCode.SETTINGS
            )
        one, other = (list(lines_of(each)) for each in found)
        lines = difflib.unified_diff(one, other, before, after or "now", lineterm="", n=1)
        click.echo(printable("\n".join(lines), lines=True) or "no difference")


@schema.command("rebuild")
@source_option
@topic_options
@click.option(
    "--definitions",
    "script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.sql",
    help="CREATE DATABASE and CREATE TABLE as of --at, as mysqldump --no-data writes them.",
)
@click.option(
    "--at",
    metavar="[EPOCH:]FILE:POSITION",
    help="Where the definitions of --definitions hold from; the first event in the events topic by default. "
    "After a gap that is the place that the error of the waiting rows names.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def rebuild(*, script: Path | None, at: str | None, yes: bool) -> None:
    """Make the schema history again, of the catalogue and of each DDL statement in the events topic.

    For one that a version has written that did not understand a statement, or took it wrong. The row mapper
    is fenced: one that runs waits. Rows that are published stay as they are; those that wait in
    the dead letter topic are mapped with the new history by 'millrace deadletter redrive'.

    Where logs are read from files there is no catalogue: --definitions gives what the log does not tell, such
    as the default character set of a database; and after a gap, with --at, what tables are from there on.
    """
    configure_logging("CRITICAL")
    with errors_in_words():
        if at is not None and script is None:
            raise UserError("--at goes with --definitions", ExitCode.SETTINGS)
        place = None if at is None else _place(at)
        settings = command_settings(history.Settings)
        topics = settings.names
        check_topics(settings, topics.catalog, topics.schemas, topics.events, topics.state)
        given = {} if script is None else read_definitions(script)
        click.echo("taking over from the row mapper: one that runs waits")

        def write() -> None:
            with (
                open_schemas(settings.kafka, settings.registry, settings.source) as registry,
                TransactionalProducer(
                    settings.kafka, settings.source, "rowmapper", role="schema rebuild"
                ) as producer,
            ):
                (stored,) = producer.open()
                value = None if stored is None else stored.value
                state = stored_state(RowMapperState, value, topics.state)
                if state is None:
                    raise UserError(
                        f"the row mapper of {settings.source} has no state: has it ever run?",
                        ExitCode.SETTINGS,
                    )
                producer.commit(value)
                with producer.signing():
                    found = history.corrections(
                        settings, registry, state.input_offset, click.echo, given, at=place
                    )
                    click.echo(printable("\n".join(_summary(found)), lines=True))
                    if found and not yes:
                        click.confirm(f"Write these {len(found):,} definitions?", abort=True)
                if found:
                    history.write(settings, producer, state, [each.version for each in found])

        in_place_of_service(write)
        click.echo("done; the row mapper continues. Redrive what waits with 'millrace deadletter redrive'")


def _summary(found: Sequence[Correction]) -> Iterator[str]:
    """Say what differs from the history that is there."""
    if not found:
        yield "the schema history is correct"
    for each in found:
        version = each.version
        if version.is_gap:
            yield f"changes are missing before {version.place.with_epoch()}"
            continue
        if version.is_unnamed:
            yield f"the statement at {version.place.with_epoch()} may have made any table"
            continue
        yield f"{version.database}.{version.table} from {version.place.with_epoch()} on:"
        before = None if each.before is None else Found(each.before, later=False, origin="history")
        after = Found(version.state, later=False, origin="history")
        lines = difflib.unified_diff(list(lines_of(before)), list(lines_of(after)), lineterm="", n=0)
        yield from (line for line in lines if not line.startswith(("---", "+++", "@@")))


def _history() -> Catalog:
    settings = command_settings(ServiceSettings)
    topics = settings.names
    check_topics(settings, topics.catalog, topics.schemas)
    return read_schema_history(settings.kafka, topics)


def _find(known: Catalog, table: str, at: str | None) -> Found | None:
    database, _, name = table.partition(".")
    if not database or not name:
        raise UserError(f"{table} is not DATABASE.TABLE", ExitCode.SETTINGS)
    return known.find(database, name, NOW if at is None else _place(at))


def _place(text: str) -> SourcePosition:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise UserError(f"{text} is not a position in a log: expected FILE:POSITION", ExitCode.SETTINGS)
    return SourcePosition(int(match[1] or 0), match[2], int(match[3]))


def lines_of(found: Found | None) -> Iterator[str]:
    """Describe what is known of a table, a line for each column and index."""
    if found is None:
        yield "nothing is known about it"
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

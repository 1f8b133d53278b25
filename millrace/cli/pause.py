"""The commands ``millrace pause`` and ``millrace resume``."""

from collections.abc import Sequence

import click

from millrace.cli.deadletter import redrive_in_words, stopped_by_signals
from millrace.cli.frame import check_topics, command_settings, errors_in_words, source_option, topic_options
from millrace.cli.schema import NOW
from millrace.ddl import MISSING
from millrace.kafka.client import connect
from millrace.kafka.pause import pause_of, pause_source, resume_source
from millrace.kafka.topics import topic_ids
from millrace.rowmapper.catalog import Catalog
from millrace.rowmapper.pause import pause as pause_tables
from millrace.rowmapper.selection import Selection
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.text import printable
from millrace.verify.history import read_schema_history


def _settings() -> RowMapperSettings:
    settings = command_settings(RowMapperSettings)
    topics = settings.names
    check_topics(settings, topics.deadletter, topics.state)
    return settings


@click.command("pause")
@source_option
@topic_options
@click.argument("tables", nargs=-1, metavar="[DATABASE.TABLE]...")
def pause(*, tables: tuple[str, ...]) -> None:
    """Hold a source, or the rows of tables, until 'millrace resume'.

    Without a name it takes over from all services of the source, which wait and are not ready; so do those
    that are started. The rows of tables wait in the dead letter topic; for that it takes over from the row
    mapper alone. Both last over restarts. A table may be paused before it exists. It needs the row mapper's
    own settings.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = _settings()
        if not tables:
            before = pause_of(settings, connect(settings.kafka))
            if before is not None:
                click.echo(f"{settings.source}: was paused already, by {before.owner}")
                return
            pause_source(settings)
            click.echo(f"{settings.source}: paused; its services wait until 'millrace resume'")
            return
        history = read_schema_history(settings.kafka, settings.names)
        tables = tuple(map(history.spelled, tables))
        already = pause_tables(settings, tables, click.echo, stopped_by_signals())
        for name in tables:
            note = "was quarantined or paused already" if name in already else "paused"
            click.echo(f"{printable(name)}: {note}")
        known = _known(settings, history, tables)
        for name in tables:
            if name not in known:
                click.echo(
                    f"warning: {printable(name)}: neither the schema history nor a topic has a table of this "
                    "name; its rows wait if there are any. If the name is wrong, 'millrace resume' it",
                    err=True,
                )


def _known(settings: RowMapperSettings, history: Catalog, names: Sequence[str]) -> set[str]:
    """Return the names of tables that exist, or existed so that rows of them may come."""
    selection = Selection(settings)
    topics, known = {}, set()
    for name in names:
        database, _, table = name.partition(".")
        topics[name] = settings.names.table(*selection.topic_of(database, table))
        found = history.find(database, table, NOW)
        if found is not None and found.definition is not MISSING:
            known.add(name)
    existing = topic_ids(connect(settings.kafka), sorted(set(topics.values())))
    return known | {name for name, topic in topics.items() if topic in existing}


@click.command("resume")
@source_option
@topic_options
@click.argument("tables", nargs=-1, metavar="[DATABASE.TABLE]...")
def resume(*, tables: tuple[str, ...]) -> None:
    """Resume a paused source, or publish the rows of paused tables, in order and once.

    Without a name it is the source: its services resume within seconds. For tables it takes over
    from the row mapper, as 'millrace deadletter redrive' does. If it is interrupted, start it again.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = _settings()
        if tables:
            redrive_in_words(settings, tables)
        elif pause_of(settings, connect(settings.kafka)) is None:
            raise UserError(f"{settings.source} is not paused", ExitCode.SETTINGS)
        else:
            resume_source(settings)
            click.echo(f"{settings.source}: resumed")

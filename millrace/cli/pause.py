"""The commands ``millrace pause`` and ``millrace resume``."""

import click

from millrace.cli.deadletter import redrive_in_words, stopped_by_signals
from millrace.cli.frame import check_topics, errors_in_words, setting_values, source_option, topic_options
from millrace.kafka.client import connect
from millrace.kafka.pause import pause_source, paused_since, resume_source
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import load_settings
from millrace.text import printable
from services.rowmapper.pause import pause as pause_tables

__all__ = ["pause", "resume"]


def _settings(
    source: str | None, bootstrap_servers: str | None, registry_url: str | None
) -> RowMapperSettings:
    settings = load_settings(
        RowMapperSettings,
        **setting_values(source=source, bootstrap_servers=bootstrap_servers, registry_url=registry_url),
    )
    topics = settings.names
    check_topics(settings, topics.deadletter, topics.state)
    return settings


@click.command("pause")
@source_option
@topic_options
@click.argument("tables", nargs=-1, metavar="[DATABASE.TABLE]...")
def pause(
    *,
    tables: tuple[str, ...],
    source: str | None,
    bootstrap_servers: str | None,
    registry_url: str | None,
) -> None:
    """Hold a source, or the rows of tables, until 'millrace resume'.

    Without a name it takes over from all services of the source: those that run end with code 6, and wait
    when they are started again. The rows of tables wait in the dead letter topic; for that it takes over from
    the row mapper alone. Both last over restarts. It needs the row mapper's own settings.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = _settings(source, bootstrap_servers, registry_url)
        if not tables:
            pause_source(settings)
            click.echo(f"{settings.source}: paused; services that still run end with code 6")
            return
        already = pause_tables(settings, tables, click.echo, stopped_by_signals())
        for name in tables:
            note = "was quarantined or paused already" if name in already else "paused"
            click.echo(f"{printable(name)}: {note}")


@click.command("resume")
@source_option
@topic_options
@click.argument("tables", nargs=-1, metavar="[DATABASE.TABLE]...")
def resume(
    *,
    tables: tuple[str, ...],
    source: str | None,
    bootstrap_servers: str | None,
    registry_url: str | None,
) -> None:
    """Resume a paused source, or publish the rows of paused tables, in order and once.

    Without a name it is the source: its services resume within seconds. For tables it takes over
    from the row mapper, as 'millrace deadletter redrive' does. If it is interrupted, start it again.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = _settings(source, bootstrap_servers, registry_url)
        if tables:
            redrive_in_words(settings, tables)
        elif paused_since(settings, connect(settings.kafka)) is None:
            click.echo(f"{settings.source} is not paused")
        else:
            resume_source(settings)
            click.echo(f"{settings.source}: resumed")

"""The command ``millrace deadletter``: list, show, redrive, discard."""

import base64
import json
import signal
import sys
import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

import click
from pydantic import Field

from millrace.avro.service_state import QuarantinedTable, RowMapperState
from millrace.binlog_command.hexdump import HexdumpLayout, hexdump
from millrace.cli import SuggestingGroup
from millrace.cli.frame import (
    check_topics,
    command_settings,
    errors_in_words,
    source_option,
    topic_options,
)
from millrace.cli.schema import NOW
from millrace.contract import Topics
from millrace.dead_letters import (
    DeadLetterRecord,
    Unreadable,
    WaitingDeadLetters,
    count_waiting,
    read_dead_letters,
)
from millrace.kafka.client import connect
from millrace.kafka.read import held_offsets
from millrace.kafka.schema_topic import open_schemas
from millrace.kafka.state import decoded_state
from millrace.kafka.topics import topic_ids
from millrace.rowmapper.redrive import chosen_tables, discard, redrive
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import RegistrySettings, ServiceSettings
from millrace.text import printable, printable_json
from millrace.verify.history import read_schema_history

_ERROR_WIDTH: Final = 300


class _Settings(ServiceSettings):
    """Where the dead letters are, as the services have it."""

    registry: RegistrySettings = Field(default_factory=lambda: RegistrySettings.model_validate({}))


@click.group("deadletter", cls=SuggestingGroup)
def deadletter() -> None:
    """List, show, redrive or discard what the decoder or the row mapper could not pass on."""


@deadletter.command("list")
@source_option
@topic_options
@click.option("--service", type=click.Choice(["decoder", "rowmapper"]), help="Only what this service wrote.")
@click.option("--table", help="Only rows of this table, as database.table.")
@click.option("--error", help="Only errors of this class, such as SchemaMismatchError.")
@click.option(
    "--key", help="Only dead letters whose key starts with this: server_id:epoch:log_file:position."
)
@click.option("--since", type=click.DateTime(), help="Only what was written at or after this time, UTC.")
@click.option("--until", type=click.DateTime(), help="Only what was written before this time, UTC.")
@click.option("--waiting", is_flag=True, help="Only rows of quarantined tables.")
@click.option("--limit", type=click.IntRange(1), help="How many to print; all without it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_dead_letters(*, waiting: bool, limit: int | None, as_json: bool, **filters: Any) -> None:
    """Print the dead letters of a source, oldest first: offset, time, service, key, table, error.

    After them come the quarantined tables, with the number of their dead letters that wait.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = command_settings(_Settings)
        check_topics(settings, Topics(settings.source).deadletter)
        waiting_now = WaitingDeadLetters(_quarantined(settings))
        topic = settings.names.deadletter
        first = held_offsets(connect(settings.kafka), {topic: 1})[topic, 0].start
        if first:
            click.echo(f"records before offset {first} of {topic} were deleted: not listed", err=True)
        printed = 0
        with open_schemas(settings.kafka, settings.registry, settings.source) as registry:
            for dead_letter in read_dead_letters(settings.kafka, registry, settings.source):
                waits = isinstance(dead_letter, DeadLetterRecord) and waiting_now.take(dead_letter.outline)
                if (
                    (limit is None or printed < limit)
                    and _fits(dead_letter, **filters)
                    and (waits or not waiting)
                ):
                    printed += 1
                    line = (
                        _as_json(dead_letter, waits=waits) if as_json else _as_line(dead_letter, waits=waits)
                    )
                    click.echo(line)
        if not printed and filters["table"] is not None:
            _check_table(settings, filters["table"])
        if not as_json:
            for name, entry in waiting_now.entries.items():
                click.echo(_quarantined_in_words(entry, waiting_now.counts[name]))


def _check_table(settings: ServiceSettings, name: str) -> None:
    """Raise UserError where nothing of a source has a table of this name."""
    database, _, table = name.partition(".")
    known = read_schema_history(settings.kafka, settings.names).find(database, table, NOW)
    topic = settings.names.table(database, table)
    if known is None and topic not in topic_ids(connect(settings.kafka), [topic]):
        raise UserError(
            f"{name}: neither the schema history nor a topic has a table of this name", ExitCode.SETTINGS
        )


@deadletter.command("show")
@source_option
@topic_options
@click.argument("offset", type=click.IntRange(0))
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "bytes"]),
    default="text",
    show_default=True,
    help="All fields with a dump of the bytes, one JSON object, or the bytes alone.",
)
def show(*, offset: int, form: str) -> None:
    """Print the dead letter at OFFSET whole."""
    configure_logging("ERROR")
    with errors_in_words():
        settings = command_settings(_Settings)
        check_topics(settings, Topics(settings.source).deadletter)
        with open_schemas(settings.kafka, settings.registry, settings.source) as registry:
            dead_letter = next(
                read_dead_letters(settings.kafka, registry, settings.source, start=offset), None
            )
        topic = Topics(settings.source).deadletter
        if dead_letter is None or dead_letter.offset != offset:
            raise UserError(
                f"no dead letter begins at offset {offset} of {topic}; 'millrace deadletter list' names them",
                ExitCode.SETTINGS,
            )
        if isinstance(dead_letter, Unreadable):
            raise UserError(
                f"the record at offset {offset} of {topic} cannot be read: {dead_letter.error}", ExitCode.DATA
            )
        if form == "bytes":
            sys.stdout.buffer.write(dead_letter.content.value)
        elif form == "json":
            click.echo(
                _as_json(dead_letter, waits=_may_wait(dead_letter, _quarantined(settings)), whole=True)
            )
        else:
            _show(dead_letter)


@deadletter.command("redrive")
@source_option
@topic_options
@click.argument("tables", nargs=-1, metavar="[DATABASE.TABLE]...")
def redrive_tables(*, tables: tuple[str, ...]) -> None:
    """Redrive quarantined tables: their dead letters are mapped in order, then the quarantine ends.

    Without a name it does so for all of them but those that were paused. It takes over from the row mapper,
    which waits. It needs the row mapper's own settings. If it is
    interrupted, start it again.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = command_settings(RowMapperSettings)
        check_topics(settings, Topics(settings.source).deadletter)
        redrive_in_words(settings, tables)


def stopped_by_signals() -> threading.Event:
    """Return what SIGINT and SIGTERM set from now on."""
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return stop


def redrive_in_words(settings: RowMapperSettings, tables: Sequence[str]) -> None:
    """Redrive tables, say what came of it, and end with its exit code."""
    stop = stopped_by_signals()
    outcomes = redrive(settings, tables, click.echo, stop)
    if not outcomes and not stop.is_set():
        click.echo(f"no table of {settings.source} is quarantined")
    for outcome in outcomes:
        click.echo(
            f"{printable(outcome.table)}: {outcome.dead_letters} dead letters mapped, {outcome.rows} rows"
        )
    failed = [(outcome.table, outcome.failed) for outcome in outcomes if outcome.failed]
    for table, (key, reason) in failed:
        what = printable(f"{table} stays quarantined from {key} on: {reason}")
        click.echo(
            f"error: {what}. Where its definition was read too early, start the reader again, which "
            "reads it again, then redrive",
            err=True,
        )
    if failed:
        sys.exit(ExitCode.DATA)
    if stop.is_set():
        click.echo("error: interrupted; run it again to resume", err=True)
        sys.exit(128 + signal.SIGINT)


@deadletter.command("discard")
@source_option
@topic_options
@click.argument("tables", nargs=-1, required=True, metavar="DATABASE.TABLE...")
@click.option("--yes", is_flag=True, help="Do not ask.")
def discard_tables(*, tables: tuple[str, ...], yes: bool) -> None:
    """Give up the rows of quarantined tables that wait: the quarantine ends without them.

    It says how many dead letters wait, and asks. It takes over from the row mapper: stop that before, or let
    it be started again after. It needs the row mapper's own settings.
    """
    configure_logging("ERROR")
    with errors_in_words():
        settings = command_settings(RowMapperSettings)
        topics = settings.names
        check_topics(settings, topics.deadletter)
        entries = {entry.name: entry for entry in chosen_tables(settings, tables)}
        waiting = count_waiting(settings.kafka, topics.deadletter, entries.values())
        for name, entry in entries.items():
            click.echo(_quarantined_in_words(entry, waiting[name]))
        click.echo(
            "The changes in them, and in those that come until the row mapper is taken over, will be in no "
            f"row topic. They stay in {topics.deadletter} and in {topics.raw}: 'millrace reprocess' writes "
            "the row topics again from there, and 'millrace snapshot DATABASE.TABLE' publishes rows as they "
            "are now."
        )
        if not yes:
            click.confirm("Discard them?", abort=True)
        for name, number in discard(settings, tables, click.echo, stopped_by_signals()).items():
            click.echo(f"{printable(name)}: {number:,} dead letters discarded")


_retry = copy(redrive_tables)
_retry.hidden = True
deadletter.add_command(_retry, "retry")  # its name in an earlier version


def _quarantined(settings: ServiceSettings) -> tuple[QuarantinedTable, ...]:
    state = Topics(settings.source).state
    if state not in topic_ids(connect(settings.kafka), [state]):
        return ()
    found = decoded_state(settings.kafka, settings.source, "rowmapper", RowMapperState)
    return () if found is None else found.quarantined


def _may_wait(dead_letter: DeadLetterRecord, quarantined: Sequence[QuarantinedTable]) -> bool:
    """Whether a dead letter waits, without having seen those before it."""
    entry = next((each for each in quarantined if each.name == dead_letter.content.table), None)
    if entry is None:
        return False
    if entry.dead_letter is not None:
        return dead_letter.offset >= entry.dead_letter
    return dead_letter.content.offset >= entry.offset


def _quarantined_in_words(entry: QuarantinedTable, waiting: int) -> str:
    since = "is paused" if entry.is_paused else f"has been quarantined since {entry.key}"
    lost = "" if waiting or not entry.key else ", and those that waited are no longer there"
    return f"{printable(entry.name)} {since}, {waiting} dead letters wait{lost}: {_one_line(entry.error)}"


def _fits(
    dead_letter: DeadLetterRecord | Unreadable,
    *,
    service: str | None,
    table: str | None,
    error: str | None,
    key: str | None,
    since: datetime | None,
    until: datetime | None,
) -> bool:
    time = dead_letter.timestamp_ms
    if (since is not None and time < _ms(since)) or (until is not None and time >= _ms(until)):
        return False
    if isinstance(dead_letter, Unreadable):
        return service is None and table is None and error is None and _begins(dead_letter.key, key)
    content = dead_letter.content
    wanted = ((service, content.service), (table, content.table), (error, content.error_class))
    return all(want is None or want == found for want, found in wanted) and _begins(content.key, key)


def _begins(key: bytes, wanted: str | None) -> bool:
    return wanted is None or key.startswith(wanted.encode())


def _ms(time: datetime) -> float:
    return time.replace(tzinfo=UTC).timestamp() * 1000


def _time(timestamp_ms: int) -> str:
    """Write the time of a record, which may be any number of 64 bits."""
    try:
        return f"{datetime.fromtimestamp(timestamp_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return f"{timestamp_ms} ms"


def _key(key: bytes) -> str:
    return printable(key.decode("ascii", "backslashreplace"))


def _one_line(text: str) -> str:
    """Keep a message to one line of a bounded length."""
    plain = printable(text)
    return plain if len(plain) <= _ERROR_WIDTH else plain[: _ERROR_WIDTH - 1] + "…"


def _as_line(dead_letter: DeadLetterRecord | Unreadable, *, waits: bool) -> str:
    if isinstance(dead_letter, Unreadable):
        service, table, error = "?", "-", dead_letter.error
        key = dead_letter.key
    else:
        content = dead_letter.content
        service, table, key = content.service, content.table or "-", content.key
        error = f"{content.error_class}: {content.error}"
    state = "waits" if waits else "-"
    head = f"{dead_letter.offset:>8}  {_time(dead_letter.timestamp_ms)}  {service:<9}  {state:<5}"
    return f"{head}  {_key(key)}  {_one_line(table)}  {_one_line(error)}"


def _as_json(dead_letter: DeadLetterRecord | Unreadable, *, waits: bool, whole: bool = False) -> str:
    offset = dead_letter.offset
    head = {"offset": offset, "dead_letter": offset, "time": _time(dead_letter.timestamp_ms)}
    if isinstance(dead_letter, Unreadable):
        head |= {"key": _key(dead_letter.key), "unreadable": dead_letter.error}
        return printable_json(json.dumps(head, ensure_ascii=False))
    record = asdict(dead_letter.content)
    value, context = record.pop("value"), record.pop("context")
    record["read_from"] = {"topic": record.pop("topic"), "offset": record.pop("offset")}
    record |= {"key": _key(dead_letter.content.key), "waits": waits, "size": len(value)}
    if whole:
        record["value"] = base64.b64encode(value).decode()
        record["context"] = None if context is None else base64.b64encode(context).decode()
    return printable_json(json.dumps(head | record, ensure_ascii=False))


def _show(dead_letter: DeadLetterRecord) -> None:
    content = dead_letter.content
    fields = {
        "dead letter": dead_letter.offset,
        "time": _time(dead_letter.timestamp_ms),
        "service": content.service,
        "read from": f"{content.topic}, offset {content.offset}",
        "key": _key(content.key),
        "epoch": content.epoch,
        "log file": content.log_file,
        "position": content.position,
        "table": content.table or "-",
        "error": f"{content.error_class}: {content.error}",
        "size": f"{len(content.value)} bytes",
    }
    for name, value in fields.items():
        click.echo(f"{name + ':':<13}{printable(str(value))}")
    for piece in hexdump(content.value, 0, HexdumpLayout.MYSQL, has_fields=False):
        click.echo(piece, nl=False)

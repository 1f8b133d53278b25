"""``millrace topic``: look at the records of a topic, decoded where their format is known."""

import base64
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from millrace.avro.records import deserialize
from millrace.avro.registry import SchemaStore, UnknownSchemaError
from millrace.avro.schemas import schema_names
from millrace.avro.single_object import SingleObjectError, decode
from millrace.binlog.errors import BinlogError
from millrace.binlog.header import EventHeader
from millrace.binlog.types import EventType
from millrace.cli.frame import command_settings, errors_in_words, topic_options
from millrace.kafka.client import Message, connect
from millrace.kafka.read import offsets_since, read_topic, topic_names
from millrace.kafka.schema_topic import open_schemas
from millrace.runtime.logging import configure_logging
from millrace.runtime.settings import KafkaAndRegistrySettings
from millrace.text import printable, printable_json

_SHOWN_BYTES = 64


@click.command("topic")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1), help="How many records to print; all without it.")
@click.option("--offset", type=click.IntRange(0), help="Begin at this offset, in each partition.")
@click.option("--since", type=click.DateTime(), help="Only records with this timestamp or a later one, UTC.")
@click.option(
    "--key",
    help="Only records with this key: the beginning of a text, some columns of a row's key as JSON, or the "
    "value of its one column.",
)
@click.option("--follow", is_flag=True, help="Wait for further records, until Ctrl-C.")
@topic_options
def topic(
    name: str, *, limit: int | None, offset: int | None, since: datetime | None, key: str | None, follow: bool
) -> None:
    """Print the committed records of the topic NAME, oldest first, as JSON, one a line."""
    configure_logging("ERROR")
    # What is followed until Ctrl-C ends well by it.
    with errors_in_words(), suppress(*([KeyboardInterrupt] if follow else [])):
        settings = command_settings(KafkaAndRegistrySettings)
        admin = connect(settings.kafka)
        topics = topic_names(admin)
        if name not in topics:
            known = " ".join(known for known in topics if not known.startswith("__"))
            _fail(f"there is no topic {name}; there are: {known or 'none'}")
        source, _, _ = name.partition(".")
        first_ms = 0 if since is None else int(since.replace(tzinfo=UTC).timestamp() * 1000)
        start: int | dict[int, int] = offset or 0
        if since is not None:
            found = offsets_since(admin, name, first_ms)
            start = {number: max(first, offset or 0) for number, first in found.items()}
        with open_schemas(settings.kafka, settings.registry, source) as registry:
            messages = read_topic(settings.kafka, name, start=start, follow=follow)
            chosen = (each for each in messages if each.timestamp()[1] >= first_ms)
            for line in itertools.islice(_lines(registry, name, chosen, key), limit):
                click.echo(line)


def _lines(
    registry: SchemaStore, name: str, messages: Iterator[Message], wanted_key: str | None
) -> Iterator[str]:
    for message in messages:
        key = _decoded(registry, message.key())
        if wanted_key is not None and not _is_key(key, wanted_key):
            continue
        record = {
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1],
            **_headers(message),
            "key": key,
            "value": _event(message) if name.endswith(".raw") else _decoded(registry, message.value()),
        }
        yield printable_json(json.dumps(record, ensure_ascii=False, default=_plain))


def _is_key(key: Any, wanted: str) -> bool:
    """Whether a decoded key is the one that ``--key`` gives."""
    if not isinstance(key, Mapping):
        return isinstance(key, str) and key.startswith(wanted)
    try:
        columns = json.loads(wanted)
    except ValueError:
        columns = wanted
    if not isinstance(columns, dict):
        columns = dict.fromkeys(key, wanted) if len(key) == 1 else {"": wanted}
    return all(column in key and _text(key[column]) == _text(value) for column, value in columns.items())


def _text(value: Any) -> str:
    return json.dumps(value, default=_plain).strip('"') if not isinstance(value, str) else value


def _headers(message: Message) -> dict[str, Any]:
    headers = {name: _header(value) for name, value in dict(message.headers() or ()).items()}
    return {"headers": headers} if headers else {}


def _header(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _event(message: Message) -> Any:
    """Return the header of a raw event and how its bytes begin."""
    value = message.value()
    if not isinstance(value, bytes):
        return value
    try:
        header = EventHeader.decode(value)
        kind = EventType(header.type_code).name
    except (BinlogError, ValueError):
        return _plain(value)
    return {
        "type": kind,
        "timestamp": header.timestamp,
        "server_id": header.server_id,
        "bytes": _plain(value),
    }


def _decoded(registry: SchemaStore, data: str | bytes | None) -> Any:
    """Decode Avro in Confluent's wire format or as a single object, or JSON; else give text, else bytes."""
    if not isinstance(data, bytes):
        return data
    for name in schema_names() if data[:2] == b"\xc3\x01" else ():
        with suppress(SingleObjectError):
            return decode(name, data)
    if data[:1] == b"\x00" or data[:2] == b"\xc3\x01":
        return _record(registry, data)
    try:
        return json.loads(data) if data[:1] == b"{" else data.decode()
    except UnicodeDecodeError:
        return _plain(data)
    except (ValueError, RecursionError):
        return data.decode()


def _record(registry: SchemaStore, data: bytes) -> Any:
    """Decode Avro by the schema that it names; else say why it cannot be, beside the bytes."""
    try:
        return deserialize(registry, data)
    except (UnknownSchemaError, ValueError) as error:
        return {"unreadable": str(error), "bytes": _plain(data)}


def _plain(value: Any) -> Any:
    """Return what JSON lacks as text; bytes in base64, long ones cut."""
    if not isinstance(value, bytes):
        return str(value)
    text = base64.b64encode(value[:_SHOWN_BYTES]).decode()
    return text if len(value) <= _SHOWN_BYTES else f"{text}… ({len(value)} bytes)"


def _fail(message: str) -> None:
    click.echo(f"error: {printable(message)}", err=True)
    raise SystemExit(1)

"""Records of row topics as JSON: written from their Avro form when they are sent.

Rows are mapped to Avro, whatever the format: stage, state and partitions use only Avro. This module
translates a record by the schema that it names, so there is only one implementation of values. Formats
(``MILLRACE_ROWS_FORMAT``):

``json``
    The envelope, and the key, as Kafka Connect's JsonConverter writes them without schemas.
``json-schema``
    The same with schemas: ``{"schema": …, "payload": …}``.
``cloudevents``
    CloudEvents 1.0 in structured JSON, with the attributes of Debezium's CloudEventsConverter; keys as in
    ``json``. ``id`` is unique, for which Debezium's lacks the row.
"""

import datetime as dt
import io
import json
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import fastavro

from millrace import kernel
from millrace.avro.connect import connect_schema, json_text, own_name, plain_schema, shortest_float
from millrace.avro.registry import prefix_size, split_wire_format
from millrace.avro.schemas import load_schema
from millrace.contract import is_of_rows
from millrace.stage import Output, OutputRecord

if TYPE_CHECKING:
    from millrace.kernel.json_text import JsonWriter

_CONTENT_TYPE: Final = ("content-type", b"application/cloudevents+json; charset=UTF-8")
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""

_GROWTH: Final = 8
"""Bytes of JSON that a byte of Avro becomes at most, names aside: a control character takes six."""
_ENVELOPE: Final = 16 * 1024
"""Bytes that the envelope takes beside the row and what Avro has of it."""


class _Schema:
    """How records of one schema are read."""

    def __init__(self, schema: Mapping[str, Any], *, with_schema: bool, native: bool) -> None:
        self._parsed = fastavro.parse_schema(plain_schema(dict(schema)))
        self.is_envelope = schema["name"] == "Envelope"
        row = schema["fields"][0]["type"][1]["fields"] if self.is_envelope else schema["fields"]
        names = {field["name"]: own_name(field) for field in row}
        self._renamed = names if any(name != own for name, own in names.items()) else None
        self._floats = [field["name"] for field in row if _has_floats(field["type"])]
        self._unions = {
            field["name"]: branches[0] for field in row if len(branches := _branches(field["type"])) > 1
        }
        if not with_schema:
            self._unions = {}
        self.before = self.after = b""
        if with_schema:
            self.before = f'{{"schema":{json_text(connect_schema(schema))},"payload":'.encode()
            self.after = b"}"
        # A union as a struct is left to the reference.
        self.native = _native(self._parsed) if native and not self._unions else None
        self.names_size = len(json_text([*names.values()]).encode())

    def read(self, data: bytes) -> dict[str, Any]:
        """Read a record that begins with the id of its schema."""
        stream = io.BytesIO(data)
        stream.seek(prefix_size(data))
        record: dict[str, Any] = fastavro.schemaless_reader(  # type: ignore[assignment]  # a record is a dict
            stream, self._parsed, None, handle_unicode_errors="replace"
        )
        if self._floats or self._unions or self._renamed:
            if not self.is_envelope:
                return self._row(record)
            for image in ("before", "after"):
                if record[image] is not None:
                    record[image] = self._row(record[image])
        return record

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        for name in self._floats:
            value = row[name]
            if isinstance(value, float):
                row[name] = shortest_float(value)
            elif value is not None:
                row[name] = [shortest_float(part) for part in value]
        for name, other in self._unions.items():
            value = row[name]
            is_text = isinstance(value, str)
            row[name] = {other: None if is_text else value, "string": value if is_text else None}
        renamed = self._renamed
        return row if renamed is None else {renamed[name]: value for name, value in row.items()}


def _native(parsed: Any) -> "JsonWriter":
    """Make what writes records natively, but for what it leaves to the reference."""
    from millrace.kernel.json_text import JsonWriter  # noqa: PLC0415 - only where it is built

    return JsonWriter(*_plan(parsed))


def _plan(parsed: Any) -> tuple[list[tuple[int, int, int]], list[tuple[int, bytes]]]:
    """Make the plan of a schema that fastavro has parsed, for the kernel."""
    nodes: list[tuple[int, int, int]] = []
    links: list[tuple[int, bytes]] = []
    named: dict[str, int] = {}

    def add(avro: Any) -> int:
        kind = "union" if isinstance(avro, list) else avro["type"] if isinstance(avro, dict) else avro
        if kind in named:
            return named[kind]
        index = len(nodes)
        nodes.append((0, 0, 0))
        parts: list[tuple[Any, str]] = []
        if kind == "union":
            parts = [(branch, "") for branch in avro]
        elif kind == "array":
            parts = [(avro["items"], "")]
        elif kind == "record":
            named[avro["name"]] = index
            parts = [
                (field["type"], f"{',' if number else '{'}{json_text(own_name(field))}:")
                for number, field in enumerate(avro["fields"])
            ]
        made = [(add(part), text.encode()) for part, text in parts]
        nodes[index] = _KINDS[kind], len(links), len(made)
        links.extend(made)
        return index

    add(parsed)
    return nodes, links


class _Kind(IntEnum):
    """How the kernel writes a value of a type of Avro."""

    NULL = 0
    BOOLEAN = 1
    LONG = 2
    FLOAT = 3
    DOUBLE = 4
    STRING = 5
    BYTES = 6
    UNION = 7
    RECORD = 8
    ARRAY = 9


_KINDS: Final = {kind.name.lower(): kind for kind in _Kind} | {"int": _Kind.LONG}


def _branches(avro: Any) -> list[str]:
    """Name the types of a field, null aside."""
    parts = [part for part in (avro if isinstance(avro, list) else [avro]) if part != "null"]
    return [part["type"] if isinstance(part, dict) else part for part in parts]


def _has_floats(avro: Any) -> bool:
    parts = avro if isinstance(avro, list) else [avro]
    return any(
        part == "float" or (isinstance(part, dict) and "float" in (part["type"], part.get("items")))
        for part in parts
    )


class JsonFormat:
    """Writes records of row topics in one of the formats.

    ``schema`` gives the schema of an id; those that :meth:`learn` was told are not asked for. Without
    ``native`` the reference does all of the work.
    """

    def __init__(self, name: str, schema: Callable[[int], Mapping[str, Any]], *, native: bool = True) -> None:
        self._native = native and kernel.has("json_text")
        self._with_schema = name == "json-schema"
        self._is_event = name == "cloudevents"
        self._schema = schema
        self._schemas: dict[int, _Schema] = {}

    def learn(self, schema_id: int, schema: Mapping[str, Any]) -> None:
        """Take note of a schema."""
        self._schemas[schema_id] = _Schema(schema, with_schema=self._with_schema, native=self._native)

    def record(self, data: bytes) -> bytes:
        """Write a key, or a value, that is Avro and begins with the id of its schema."""
        size = prefix_size(data)
        schema_id, _ = split_wire_format(data[:size])
        schema = self._schemas.get(schema_id)
        if schema is None:
            self.learn(schema_id, self._schema(schema_id))
            schema = self._schemas[schema_id]
        is_event = self._is_event and schema.is_envelope
        if schema.native is not None and not is_event:
            written = schema.native.write(data, size, schema.before, schema.after)
            if written is not None:
                return written
        record = schema.read(data)
        return schema.before + json_text(_cloud_event(record) if is_event else record).encode() + schema.after

    def size(self, data: bytes) -> int:
        """Say how many bytes a record has in this format."""
        return len(self.record(data))

    def limits(self, record_limit: int, key_id: int | None, value_id: int) -> tuple[int, int]:
        """Return the largest value that is taken, and the size in Avro up to which none is larger than that.

        ``record_limit`` is for values with an ordinary key; a schema in the key takes of that.
        """
        limit = record_limit - (0 if key_id is None else len(self._schemas[key_id].before))
        schema = self._schemas[value_id]
        beside = _ENVELOPE + len(schema.before) + 2 * schema.names_size
        return limit, max(0, limit - beside) // _GROWTH

    def written(self, output: Output) -> Output:
        """Return the records to send for ``output``: those of row topics in this format."""
        made = Output()
        for (topic, partition), records in output.groups.items():
            if is_of_rows(topic):
                records = [self._written(record) for record in records]  # noqa: PLW2901 - they take their place
            size = sum([len(value or b"") for _, value, _, _ in records])
            made.merge({(topic, partition): records}, len(records), size)
        return made

    def _written(self, record: OutputRecord) -> OutputRecord:
        key, value, timestamp_ms, headers = record
        if self._is_event and value is not None:
            headers = [*(headers or ()), _CONTENT_TYPE]
        return (
            None if key is None else self.record(key),
            None if value is None else self.record(value),
            timestamp_ms,
            headers,
        )


def json_format(name: str, schema: Callable[[int], Mapping[str, Any]]) -> JsonFormat | None:
    """Make what writes the format of a name; None for Avro. ``schema`` gives the schema of an id."""
    return None if name == "avro" else JsonFormat(name, schema)


# -- CloudEvents ------------------------------------------------------------------------------------------


def _attributes(record: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[str, bool]]:
    """Name the attributes of a record's fields, and say which are text since CloudEvents has no long."""
    return {
        field["name"]: (
            "iodebezium" + re.sub("[^a-z0-9]", "", prefix + field["name"]),
            "long" in _branches(field["type"]),
        )
        for field in record["fields"]
    }


_FIELDS: Final = {field["name"]: field["type"] for field in load_schema("Envelope")["fields"]}
_OF_SOURCE: Final = _attributes(_FIELDS["source"])
_OF_TRANSACTION: Final = _attributes(_FIELDS["transaction"][1], "tx")
_DATA: Final = ("before", "after", "unrepresentable", "before_missing", "after_missing")


def _cloud_event(envelope: dict[str, Any]) -> dict[str, Any]:
    source, transaction = envelope["source"], envelope["transaction"]
    name, connector = source["name"], source["connector"]
    event: dict[str, Any] = {
        "id": f"name:{name};file:{source['file']};pos:{source['pos']};row:{source['row']};"
        f"sub_index:{source['sub_index']};epoch:{source['epoch']}",
        "source": f"/debezium/{quote(connector)}/{name}",
        "specversion": "1.0",
        "type": f"io.debezium.connector.{connector}.DataChangeEvent",
    }
    if 0 <= source["ts_ms"] <= _LAST_MS:
        at = _EPOCH + dt.timedelta(milliseconds=source["ts_ms"])
        event["time"] = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
    event |= {"datacontenttype": "application/json", "iodebeziumop": envelope["op"]}
    for attributes, fields in ((_OF_SOURCE, source), (_OF_TRANSACTION, transaction or {})):
        for field, value in fields.items():
            attribute, is_long = attributes[field]
            event[attribute] = str(value) if is_long and value is not None else value
    return {**event, "data": {field: envelope[field] for field in _DATA}}


# -- reading ----------------------------------------------------------------------------------------------


def envelope_of(value: bytes) -> dict[str, Any]:
    """Return a record of one of the formats as an envelope: ``op``, ``source``, ``transaction``, images.

    Of the transaction it has the id. Raises ValueError where it is none.
    """
    try:
        found = json.loads(value)
        if "specversion" in found:
            source = {
                field: int(found[name]) if is_long and found[name] is not None else found[name]
                for field, (name, is_long) in _OF_SOURCE.items()
            }
            transaction = (
                {"id": found[_OF_TRANSACTION["id"][0]]} if _OF_TRANSACTION["id"][0] in found else None
            )
            return {
                **found["data"],
                "op": found["iodebeziumop"],
                "source": source,
                "transaction": transaction,
            }
        found = found.get("payload", found)
        source = {field: found["source"][field] for field in _OF_SOURCE}
        return {**{name: found[name] for name in (*_DATA, "op", "transaction")}, "source": source}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a JSON envelope: {error!r}") from error

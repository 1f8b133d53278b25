"""Row topics as JSON have what the same records have in Avro, for every row of the samples."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import fastavro
import pytest

from millrace.avro.connect import own_name, plain_schema
from millrace.avro.records import read_record
from millrace.avro.registry import split_wire_format
from millrace.rowmapper.json_format import JsonFormat
from tests.unit.rowmapper.harness import EventsTopic, World

FORMATS = ("json", "json-schema", "cloudevents")
_MOST_BYTES = 300_000
_LIMIT = 1 << 40
"""So much that it is no limit."""


def restored(avro: Any, value: Any, known: dict[str, Any]) -> Any:
    """Bring a value as JSON has it into the form in which fastavro reads it."""
    if isinstance(avro, list):
        types = [part for part in avro if part != "null"]
        if value is None:
            return None
        if len(types) > 1:
            return value if isinstance(value, str) else restored(types[0], value, known)
        return restored(types[0], value, known)
    kind = avro if isinstance(avro, str) else avro["type"]
    if kind in known:
        return restored(known[kind], value, known)
    if kind == "record":
        assert list(value) == [own_name(field) for field in avro["fields"]]
        return {
            field["name"]: restored(field["type"], part, known)
            for field, part in zip(avro["fields"], value.values(), strict=True)
        }
    if kind == "array":
        return [restored(avro["items"], part, known) for part in value]
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    if kind == "float":
        (nearest,) = struct.unpack("<f", struct.pack("<f", value))
        return nearest
    assert kind in {"boolean", "int", "long", "double", "string"}
    return value


def records_in(avro: Any, namespace: str = "") -> dict[str, Any]:
    """The records in a schema, which may name one a second time."""
    if isinstance(avro, list):
        parts = avro
    elif isinstance(avro, str):
        return {}
    elif avro["type"] == "record":
        namespace = avro.get("namespace", namespace)
        parts = [field["type"] for field in avro["fields"]]
    else:
        parts = [avro.get("items", "null")]
    found = {name: record for part in parts for name, record in records_in(part, namespace).items()}
    if isinstance(avro, dict) and avro["type"] == "record":
        found[avro["name"] if "." in avro["name"] else f"{namespace}.{avro['name']}"] = avro
    return found


def test_every_row_of_the_samples(sample_logs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    rows, parsed = 0, {}
    for path in sample_logs:
        if path.stat().st_size > _MOST_BYTES:
            continue
        world = World(EventsTopic().add_file(path))
        world.run()
        formats, reference = (
            [JsonFormat(name, world.registry.schema, native=native) for name in FORMATS]
            for native in (True, False)
        )
        parsed.clear()
        for topic in world.tables:
            for key, value, _ in world.records(topic):
                rows += 1
                for data in filter(None, (key, value)):
                    schema_id, body = split_wire_format(data)
                    schema = world.registry.schema(schema_id)
                    if schema_id not in parsed:
                        parsed[schema_id] = fastavro.parse_schema(plain_schema(schema))
                    wanted = read_record(body, parsed[schema_id])
                    texts = [each.record(data) for each in formats]
                    assert texts == [each.record(data) for each in reference], path
                    whole = json.loads(texts[0])
                    assert restored(schema, whole, records_in(schema)) == wanted, path
                    if data is value:
                        assert json.loads(texts[2])["data"].items() <= whole.items()
                        for each, text in zip(formats, texts, strict=True):
                            _, small = each.limits(_LIMIT, None, schema_id)
                            assert len(text) <= _LIMIT - 8 * small + 8 * len(data)
    with capsys.disabled():
        print(f"\n{rows} rows of the samples are the same in JSON as in Avro")
    assert rows > 1_000

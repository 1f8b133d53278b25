"""Avro's single-object encoding: a record that says by itself which schema wrote it.

The bytes ``c3 01``, the CRC-64-AVRO fingerprint of the writer's schema in canonical form (8 bytes,
little-endian), then the record in Avro's binary form. Specified in "Single-object encoding" of the Avro
specification. State and catalogue are written so, because the reader has no schema registry.

Which versions read which records: docs/adr/0053-versions.md.
"""

import io
from copy import deepcopy
from functools import cache
from typing import Any, Final

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from millrace.avro.schemas import NAMESPACE, Schema, load_schema, parsed_schema
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

_MARKER = b"\xc3\x01"
_PREFIX_SIZE = len(_MARKER) + 8


_NO_RECORD: Final = (
    *(ValueError, EOFError, IndexError, KeyError, TypeError, AttributeError),
    *(ArithmeticError, RecursionError, MemoryError),
)
"""What fastavro raises where bytes are none of the schema by which they are read."""

_WAYS_OUT: Final = {
    "ReaderState": "'millrace state rebuild reader' makes it of what the raw topic holds",
    "DecoderState": "'millrace state rebuild decoder' makes it of what the events topic holds",
    "RowMapperState": "'millrace state rebuild rowmapper' makes it of what the row topics hold",
    "SnapshotState": "'millrace snapshot --restart' begins the snapshot again",
    "SchemaVersion": "'millrace reprocess' writes the schema history again",
}


class SingleObjectError(UserError, ValueError):
    """Bytes that are no single object of the schema that was asked for: exit code 7."""

    def __init__(self, name: str, reason: str) -> None:
        way_out = _WAYS_OUT.get(name)
        super().__init__(f"{name}: {reason}" + (f"; {way_out}" if way_out else ""), ExitCode.DATA)


@cache
def schema_fingerprint(name: str) -> bytes:
    """Return the CRC-64-AVRO fingerprint of the checked-in schema ``name``: 8 bytes, little-endian."""
    return _fingerprint(load_schema(name))


def _fingerprint(schema: Schema) -> bytes:
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@cache
def _before_additions(name: str) -> dict[bytes, Any]:
    """Return the schema as it was before fields were added, parsed, by its fingerprint.

    A field says in ``added`` with which addition it came, from 1, which may be written ``true``; of several
    additions there is a schema before each. Records by these get the defaults of the fields. A field whose
    type was widened with the first addition has the earlier one in ``before``.
    """

    def additions(schema: Any) -> set[int]:
        parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
        own = {int(schema["added"])} if isinstance(schema, dict) and "added" in schema else set()
        own |= {1} if isinstance(schema, dict) and "before" in schema else set()
        return own.union(*map(additions, parts))

    def without(schema: Any, since: int) -> Any:
        if isinstance(schema, list):
            return [
                without(each, since)
                for each in schema
                if not (isinstance(each, dict) and each.get("added", 0) >= since)
            ]
        if isinstance(schema, dict):
            earlier = {"type": schema["before"]} if since == 1 and "before" in schema else {}
            return {key: without(value, since) for key, value in {**schema, **earlier}.items()}
        return schema

    now = load_schema(name)
    earlier = [without(now, since) for since in sorted(additions(now))]
    return {_fingerprint(schema): fastavro.parse_schema(schema) for schema in earlier}


def encode(name: str, record: dict[str, Any]) -> bytes:
    """Return ``record`` as a single object of the checked-in schema ``name``."""
    out = io.BytesIO()
    out.write(_MARKER + schema_fingerprint(name))
    fastavro.schemaless_writer(out, parsed_schema(name), record)
    return out.getvalue()


def decode(name: str, data: bytes) -> dict[str, Any]:
    """Return the record in ``data``, a single object of the checked-in schema ``name``.

    Raises :class:`SingleObjectError` where ``data`` is no single object, was written with a schema that
    this version does not know, or is cut or longer than its schema says.
    """
    if data[:2] != _MARKER or len(data) < _PREFIX_SIZE:
        raise SingleObjectError(
            name, f"{data[:2].hex() or 'nothing'} is not c3 01, the start of an Avro single object"
        )
    written, ours = data[2:_PREFIX_SIZE], schema_fingerprint(name)
    writer = parsed_schema(name) if written == ours else _before_additions(name).get(written)
    if writer is None:
        raise SingleObjectError(
            name,
            f"written with the schema of fingerprint {written.hex()}, this version knows {ours.hex()}; read "
            "it with the version of millrace that wrote it",
        )
    stream = io.BytesIO(data)
    stream.seek(_PREFIX_SIZE)
    try:
        record = fastavro.schemaless_reader(stream, writer, None)
    except _NO_RECORD as error:
        raise SingleObjectError(name, f"the record is cut or damaged: {error}") from error
    if stream.tell() != len(data):
        raise SingleObjectError(name, f"{len(data) - stream.tell()} bytes are left over after the record")
    if written != ours:
        schema = load_schema(name)
        record = _completed(record, schema, _records(schema))
    assert isinstance(record, dict)
    return record


def _records(schema: Any) -> dict[str, Schema]:
    """Return the records that are defined in a schema, by name."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    found = {name: record for part in parts for name, record in _records(part).items()}
    if isinstance(schema, dict) and schema.get("type") == "record":
        found[schema["name"]] = schema
    return found


def _completed(value: Any, schema: Schema, named: dict[str, Schema]) -> Any:
    """Return a value of an earlier schema with the fields that were added, which have their defaults.

    Avro's own resolution of schemas would change values: text by one of the branches of a union comes back as
    bytes, where the union has bytes before string.
    """
    if isinstance(schema, str):
        schema = named.get(schema.removeprefix(f"{NAMESPACE}."), schema)
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        return value if value is None or len(branches) > 1 else _completed(value, branches[0], named)
    if isinstance(schema, str):
        return value
    if schema["type"] == "record":
        return {
            field["name"]: _completed(
                value[field["name"]] if field["name"] in value else deepcopy(field["default"]),
                field["type"],
                named,
            )
            for field in schema["fields"]
        }
    if schema["type"] == "array":
        return [_completed(item, schema["items"], named) for item in value]
    if schema["type"] == "map":
        return {key: _completed(item, schema["values"], named) for key, item in value.items()}
    return value

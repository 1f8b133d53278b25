"""Avro's single-object encoding: a record that says by itself which schema wrote it.

The bytes ``c3 01``, the CRC-64-AVRO fingerprint of the writer's schema in canonical form (8 bytes,
little-endian), then the record in Avro's binary form. Specified in "Single-object encoding" of the Avro
specification. State and catalogue are written so, because the reader has no schema registry.
"""

import io
from functools import cache
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from millrace.avro.schemas import Schema, load_schema, parsed_schema

_MARKER = b"\xc3\x01"
_PREFIX_SIZE = len(_MARKER) + 8


class SingleObjectError(ValueError):
    """Bytes that are no single object of the schema that was asked for."""


@cache
def schema_fingerprint(name: str) -> bytes:
    """Return the CRC-64-AVRO fingerprint of the checked-in schema ``name``: 8 bytes, little-endian."""
    return _fingerprint(load_schema(name))


def _fingerprint(schema: Schema) -> bytes:
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


@cache
def _before_additions(name: str) -> dict[bytes, Any]:
    """Give the schema as it was before fields were added, parsed, by its fingerprint.

    A field says in ``added`` with which addition it came, from 1, which may be written ``true``; of several
    additions there is a schema before each. Records by these are read with the defaults of the fields. A
    field whose type was widened with the first addition has the earlier one in ``before``.
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
            f"{name}: {data[:2].hex() or 'nothing'} is not c3 01, the start of an Avro single object"
        )
    written = data[2:_PREFIX_SIZE]
    writer, reader = parsed_schema(name), None
    if written != schema_fingerprint(name) and written in _before_additions(name):
        writer, reader = _before_additions(name)[written], parsed_schema(name)
    elif written != schema_fingerprint(name):
        raise SingleObjectError(
            f"{name}: written with the schema of fingerprint {written.hex()}, this version knows "
            f"{schema_fingerprint(name).hex()}; read it with the version of millrace that wrote it"
        )
    stream = io.BytesIO(data)
    stream.seek(_PREFIX_SIZE)
    try:
        record = fastavro.schemaless_reader(stream, writer, reader)
    except (EOFError, IndexError, ValueError) as error:
        raise SingleObjectError(f"{name}: the record is cut or damaged: {error}") from error
    if stream.tell() != len(data):
        raise SingleObjectError(f"{name}: {len(data) - stream.tell()} bytes are left over after the record")
    assert isinstance(record, dict)
    return record

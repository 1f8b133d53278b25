"""The checked-in Avro schemas, by name.

They are the files ``schemas/avro/*.avsc`` of the project; a wheel carries them as ``millrace/avro/schemas``.
A file may name a record of another file; :func:`load_schema` puts that record's definition where it is
first named, so that what it returns stands alone.
"""

import json
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import fastavro

NAMESPACE = "millrace"
"""Namespace of every record in the checked-in schemas."""

Schema = str | list[Any] | dict[str, Any]
"""An Avro schema as JSON gives it."""


@cache
def schema_folder() -> Traversable:
    """Return the folder that holds the ``.avsc`` files; it may be in a zip, as on workers of Spark."""
    installed = files("millrace.avro") / "schemas"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "schemas" / "avro"


def schema_names() -> list[str]:
    """Return the names of all checked-in schemas, sorted."""
    names = (each.name for each in schema_folder().iterdir())
    return sorted(name.removesuffix(".avsc") for name in names if name.endswith(".avsc"))


def load_schema(name: str) -> dict[str, Any]:
    """Return the schema ``name`` (file name without suffix) with every record that it names written out.

    It is the caller's, who may change it.
    """
    schema = json.loads(_text(name))
    assert isinstance(schema, dict)
    return schema


@cache
def _text(name: str) -> str:
    """Return the schema as text: each table needs a copy of the envelope's."""
    return json.dumps(_inline(_read(name), set()))


@cache
def parsed_schema(name: str) -> Any:
    """Return the schema ``name`` in the parsed form that fastavro wants; shared, not to be changed."""
    return fastavro.parse_schema(load_schema(name))


def _read(name: str) -> Schema:
    path = schema_folder() / f"{name}.avsc"
    schema: Schema = json.loads(path.read_text(encoding="utf-8"))
    return schema


def _inline(schema: Schema, defined: set[str]) -> Schema:
    """Replace the first mention of each record of another file by its definition, in textual order."""
    if isinstance(schema, list):
        return [_inline(branch, defined) for branch in schema]
    if isinstance(schema, str):
        if not schema.startswith(f"{NAMESPACE}.") or schema in defined:
            return schema
        return _inline(_read(schema.removeprefix(f"{NAMESPACE}.")), defined)
    if schema.get("type") in ("record", "enum", "fixed"):
        defined.add(f"{NAMESPACE}.{schema['name']}")
    inlined = dict(schema)
    for part in ("type", "items", "values"):
        if isinstance(inlined.get(part), str | list | dict):
            inlined[part] = _inline(inlined[part], defined)
    if "fields" in inlined:
        inlined["fields"] = [_inline(field, defined) for field in inlined["fields"]]
    return inlined

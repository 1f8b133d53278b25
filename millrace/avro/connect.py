"""Avro as Kafka Connect has it: schemas as its Avro converters translate them, values as its JsonConverter.

Specified by ``io.confluent.connect.avro.AvroData`` and ``org.apache.kafka.connect.json.JsonConverter`` with
``decimal.format=BASE64``, its default. Values are read as they are written, without logical types: a date is
the number of its day, a decimal the bytes of its unscaled value, and bytes are text in Base64.
"""

import json
import math
import struct
from base64 import b64encode
from typing import Any, Final

from millrace.avro.schemas import Schema

_TYPES: Final = {
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL: Final = {
    "date": "org.apache.kafka.connect.data.Date",
    "time-millis": "org.apache.kafka.connect.data.Time",
    "timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
    "decimal": "org.apache.kafka.connect.data.Decimal",
}
"""Logical types that the converters take for types of Connect's; the others they do not look at."""

_UNION: Final = "io.confluent.connect.avro.Union"
_FLOAT: Final = struct.Struct("<f")


def plain_schema(schema: Schema | None) -> Any:
    """Return a schema by which values are read as they are written."""
    if isinstance(schema, list):
        return [plain_schema(part) for part in schema]
    if isinstance(schema, dict):
        return {name: plain_schema(part) for name, part in schema.items() if name != "logicalType"}
    return schema


def own_name(field: dict[str, Any]) -> str:
    """Return the name that a field's column has in the database."""
    name: str = field.get("millrace.name", field["name"])
    return name


def connect_schema(avro: Any) -> dict[str, Any]:
    """Translate an Avro schema as ``AvroData.toConnectSchema`` does, in the form of Connect's JSON.

    Fields have the names of their columns. Raises ValueError where a name stands beside the one that a
    logical type has.
    """
    return _connect_schema(avro, {}, "")


def _connect_schema(avro: Any, known: dict[str, dict[str, Any]], namespace: str) -> dict[str, Any]:
    if isinstance(avro, list):
        return _of_union(avro, known, namespace)
    if isinstance(avro, str):
        return dict(known[avro]) if avro in known else {"type": _TYPES[avro], "optional": False}
    found: dict[str, Any] = {"optional": False}
    logical = _LOGICAL.get(avro.get("logicalType", ""))
    name = avro.get("connect.name")
    parameters = dict(avro.get("connect.parameters", {}))
    if logical is not None and name not in {None, logical}:
        raise ValueError(f"Mismatched names: {logical} differs from {name}")
    if avro["type"] == "record":
        namespace = avro.get("namespace", namespace)
        full = f"{namespace}.{avro['name']}"
        found |= {"type": "struct", "name": name or full}
        known[full] = found
        found["fields"] = [_field(field, known, namespace) for field in avro["fields"]]
    elif avro["type"] == "array":
        found |= {"type": "array", "items": _connect_schema(avro["items"], known, namespace)}
    else:
        found["type"] = avro.get("connect.type", _TYPES[avro["type"]])
    if logical is not None:
        name = logical
        if avro["logicalType"] == "decimal":
            parameters |= {"scale": str(avro["scale"]), "connect.decimal.precision": str(avro["precision"])}
    if name is not None:
        found |= {"name": name, "version": 1}
    if "connect.version" in avro:
        found["version"] = avro["connect.version"]
    if parameters:
        found["parameters"] = parameters
    if "connect.default" in avro:
        default = avro["connect.default"]
        found["default"] = _base64(default.encode("latin-1")) if avro["type"] == "bytes" else default
    return found


def _field(field: dict[str, Any], known: dict[str, dict[str, Any]], namespace: str) -> dict[str, Any]:
    made = {**_connect_schema(field["type"], known, namespace), "field": own_name(field)}
    return made if field.get("default") is None else {**made, "default": field["default"]}


def _of_union(branches: list[Any], known: dict[str, dict[str, Any]], namespace: str) -> dict[str, Any]:
    """Translate a union: of null and a type, or, in a key, of types, which become a struct's fields."""
    types = [branch for branch in branches if branch != "null"]
    if len(types) == 1:
        return {**_connect_schema(types[0], known, namespace), "optional": len(branches) > 1}
    fields = [
        {
            **_connect_schema(branch, known, namespace),
            "optional": True,
            "field": branch["type"] if isinstance(branch, dict) else branch,
        }
        for branch in types
    ]
    return {"type": "struct", "optional": len(types) < len(branches), "name": _UNION, "fields": fields}


def json_text(value: Any) -> str:
    """Write a value as the JsonConverter does; numbers that JSON does not have as text."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(_finite(value))


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


_encode: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_base64
).encode


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name: _finite(part) for name, part in value.items()}
        case list():
            return [_finite(part) for part in value]
        case _:
            return value


def shortest_float(value: float) -> float:
    """Return the number with the digits of a FLOAT: 1.1, whose DOUBLE is 1.10000002…."""
    data = _FLOAT.pack(value)
    for digits in (6, 7, 8):
        found = float(f"{value:.{digits}g}")
        if _FLOAT.pack(found) == data:
            return found
    return float(f"{value:.9g}")

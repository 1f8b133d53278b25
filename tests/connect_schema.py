"""Schemas as Kafka Connect sees them: what Confluent's and Apicurio's Avro converters make of Avro."""

import base64
from typing import Any

__all__ = ["connect_payload", "connect_schema"]

_TYPES = {
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL = {
    "date": "org.apache.kafka.connect.data.Date",
    "time-millis": "org.apache.kafka.connect.data.Time",
    "timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
    "decimal": "org.apache.kafka.connect.data.Decimal",
}
"""Logical types that the converters take for types of Connect's; the others they do not look at."""


def connect_schema(avro: Any, known: dict[str, Any] | None = None, namespace: str = "") -> dict[str, Any]:
    """Translate an Avro schema as ``AvroData.toConnectSchema`` does, in the form of Connect's JSON.

    Raises ValueError where that fails: a name beside the one that a logical type has.
    """
    known = {} if known is None else known
    if isinstance(avro, list):
        (inner,) = (branch for branch in avro if branch != "null")
        return {**connect_schema(inner, known, namespace), "optional": True}
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
        found["fields"] = []
        known[full] = found
        for field in avro["fields"]:
            made = {**connect_schema(field["type"], known, namespace), "field": field["name"]}
            default = field.get("default")
            if default is not None:
                made["default"] = default
            found["fields"].append(made)
    elif avro["type"] == "array":
        found |= {"type": "array", "items": connect_schema(avro["items"], known, namespace)}
    else:
        found["type"] = avro.get("connect.type", _TYPES[avro["type"]])
    if logical is not None:
        name = logical
        if avro["logicalType"] == "decimal":
            parameters |= {"scale": str(avro["scale"]), "connect.decimal.precision": str(avro["precision"])}
    if name is not None:
        found["name"] = name
        found["version"] = avro.get("connect.version", 1)
    if "connect.version" in avro:
        found["version"] = avro["connect.version"]
    if parameters:
        found["parameters"] = parameters
    return found


def connect_payload(value: Any) -> Any:
    """Write a plain Avro value as Connect's JSON has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: connect_payload(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [connect_payload(inner) for inner in value]
    return value

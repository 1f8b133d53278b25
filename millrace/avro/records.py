"""Records of checked-in schemas in Confluent's wire format."""

import io
from dataclasses import asdict, dataclass
from typing import Any

import fastavro

from millrace.avro.binary import writer
from millrace.avro.registry import SchemaRegistry, split_wire_format, value_subject, wire_prefix
from millrace.avro.schemas import load_schema

__all__ = ["DeadLetter", "RecordSerializer", "deserialize"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of ``{source}.deadletter``; the schema ``DeadLetter`` says what each field means."""

    service: str
    topic: str
    offset: int
    key: bytes
    value: bytes
    epoch: int
    log_file: str
    position: int
    error_class: str
    error: str
    table: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what :class:`RecordSerializer` takes."""
        return asdict(self)


class RecordSerializer:
    """Writes values of ``topic`` by the checked-in schema ``name``, which it registers first."""

    def __init__(self, registry: SchemaRegistry, topic: str, name: str) -> None:
        self._prefix = wire_prefix(registry.register(value_subject(topic), load_schema(name)))
        self._write = writer(load_schema(name))

    def __call__(self, record: dict[str, Any]) -> bytes:
        """Return the value of a Kafka record; ``record`` has a value for each field."""
        return self._prefix + self._write(record)


def deserialize(registry: SchemaRegistry, data: bytes) -> Any:
    """Return the record in the value or key ``data`` as its writer's schema has it."""
    schema_id, body = split_wire_format(data)
    return fastavro.schemaless_reader(io.BytesIO(body), registry.schema(schema_id), None)

"""Records of checked-in schemas, each after the id of its schema."""

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import fastavro

from millrace.avro.binary import long, packer, writer
from millrace.avro.registry import SchemaStore, prefix_size, split_wire_format, value_subject, wire_prefix
from millrace.avro.schemas import load_schema

if TYPE_CHECKING:
    from millrace.avro.events import EventRecord

NO_RECORD: Final = (ValueError, EOFError, IndexError, KeyError, TypeError, ArithmeticError)
"""What fastavro raises where bytes are none of the schema by which they are read."""

_NULL = b"\x00"
_SOME = b"\x02"


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
    context: bytes | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what :class:`RecordSerializer` takes."""
        return asdict(self)


def is_dead_letter_of(service: str, value: bytes | None) -> bool:
    """Return whether a service has written a value of ``{source}.deadletter``, or the first chunk of one."""
    name = service.encode("ascii")
    value = value or b""
    return value.startswith(long(len(name)) + name, prefix_size(value))


class RecordSerializer:
    """Writes values of ``topic`` by the checked-in schema ``name``, which it registers first."""

    def __init__(self, registry: SchemaStore, topic: str, name: str) -> None:
        self._prefix = wire_prefix(registry.register(value_subject(topic), load_schema(name)))
        self._write = writer(load_schema(name))
        self._fields = [(field["name"], writer(field["type"])) for field in load_schema(name)["fields"]]

    def __call__(self, record: dict[str, Any]) -> bytes:
        """Return the value of a Kafka record; ``record`` has a value for each field."""
        return self._prefix + self._write(record)

    def around(self, record: dict[str, Any], field: str, size: int) -> tuple[bytes, bytes]:
        """Return what stands before and after a field of ``size`` bytes that is too large to be held."""
        fields = self._fields
        at = [name for name, _ in fields].index(field)
        before, after = (
            b"".join(write(record[name]) for name, write in part) for part in (fields[:at], fields[at + 1 :])
        )
        return self._prefix + before + long(size), after


class TransactionSerializer:
    """Writes values of the transactions topic: two for each transaction, and so worth their own code.

    The fields stand in the order of the schema ``Transaction``. ``at`` is the event of a record,
    ``ts_ms`` its time.
    """

    def __init__(self, registry: SchemaStore, topic: str) -> None:
        prefix = wire_prefix(registry.register(value_subject(topic), load_schema("Transaction")))
        self._pack = packer()
        self._begin = prefix + b"\x0aBEGIN"
        self._end = prefix + b"\x06END"

    @property
    def beginnings(self) -> tuple[bytes, bytes]:
        """What stands in front of the transaction's id: in the first record, and in the second."""
        return self._begin, self._end

    def begin(self, transaction: str, at: "EventRecord", ts_ms: int) -> bytes:
        """Return the value of the record before the first change."""
        return self._pack(
            "bsblllslb",
            self._begin,
            transaction,
            _NULL + _NULL,
            ts_ms,
            at.server_id,
            at.epoch,
            at.log_file,
            at.position,
            _NULL,
        )

    def end(
        self,
        transaction: str,
        at: "EventRecord",
        ts_ms: int,
        per_table: Mapping[tuple[str, str], int],
        non_row_changes: int,
    ) -> bytes:
        """Return the value of the record after the last change."""
        form = ""
        counts: list[int | str] = []
        if per_table:
            form = "l" + len(per_table) * "sl"
            counts.append(len(per_table))
            for (database, table), rows in per_table.items():
                counts += f"{database}.{table}", rows
        return self._pack(
            f"bsblb{form}blllslbl",
            self._end,
            transaction,
            _SOME,
            sum(per_table.values()),
            _SOME,
            *counts,
            _NULL,
            ts_ms,
            at.server_id,
            at.epoch,
            at.log_file,
            at.position,
            _SOME,
            non_row_changes,
        )


def deserialize(registry: SchemaStore, data: bytes) -> Any:
    """Return the record in the value or key ``data`` as its writer's schema has it.

    Raises ValueError where it is none, and RegistryError where the registry does not give the schema.
    """
    schema_id, body = split_wire_format(data)
    return read_record(body, _parsed(registry, schema_id))


_PARSED: Final[WeakKeyDictionary[SchemaStore, dict[int, Any]]] = WeakKeyDictionary()


def _parsed(registry: SchemaStore, schema_id: int) -> Any:
    """Parse a schema once for all of its records, which takes longer than reading one."""
    known = _PARSED.setdefault(registry, {})
    if schema_id not in known:
        known[schema_id] = fastavro.parse_schema(registry.schema(schema_id))
    return known[schema_id]


def read_record(body: bytes, schema: Any) -> Any:
    """Return the record in Avro bytes; raises ValueError where they are none of ``schema``."""
    try:
        return fastavro.schemaless_reader(io.BytesIO(body), schema, None)
    except NO_RECORD as error:
        raise ValueError(f"it is not a record of its schema: {error or 'it is cut'}") from error

"""From typed events to records of the events topic: :class:`EventSerializer`."""

import itertools
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from millrace import kernel
from millrace.avro.binary import long
from millrace.avro.events.schema import HEAD, SCHEMA_NAME, by_kind, event_branches
from millrace.avro.plans import event_plans, variable_plans
from millrace.avro.registry import SchemaStore, value_subject, wire_prefix
from millrace.avro.schemas import load_schema
from millrace.binlog.declaration import DeclaredField, declared_fields
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import EVENTS, StatusVariables, TableMapEvent
from millrace.binlog.transaction import TransactionStep
from millrace.binlog.types import EventType

if TYPE_CHECKING:
    from millrace.kernel.events import EventRecordWriter

Write = Callable[[Any], bytes]
_SIGN_BIT: Final = 1 << 63
ESCAPE: Final = "\ufdd0"
"""Stands in front of the character of a byte that is not UTF-8, and of another of itself."""
RECURRING_SIZE: Final = 512
"""What is longer is not remembered."""
_TO_ESCAPE: Final = re.compile(f"[{ESCAPE}\udc80-\udcff]")


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    return ESCAPE + (ESCAPE if character == ESCAPE else chr(ord(character) - 0xDC00))


def _encode_text(value: str) -> bytes:
    return _write_bytes(_TO_ESCAPE.sub(_escape, value).encode())


_encode_name: Final = lru_cache(maxsize=4096)(_encode_text)


def _write_text(value: str) -> bytes:
    return _encode_name(value) if len(value) <= RECURRING_SIZE else _encode_text(value)


def _write_bytes(value: bytes) -> bytes:
    return long(len(value)) + value


def _write_uint64(value: int) -> bytes:
    return long(value if value < _SIGN_BIT else value - (1 << 64))


_WRITE_KIND: Final[dict[str, Write]] = {
    "boolean": lambda value: b"\x01" if value else b"\x00",
    "int": long,
    "long": long,
    "uint64": _write_uint64,
    "bytes": _write_bytes,
    "string": _write_text,
}


def _optional_writer(write: Write) -> Write:
    return lambda value: b"\x00" if value is None else b"\x02" + write(value)


def _array_writer(write: Write) -> Write:
    def write_array(values: tuple[Any, ...]) -> bytes:
        return long(len(values)) + b"".join(map(write, values)) + b"\x00" if values else b"\x00"

    return write_array


def _field_writer(field: DeclaredField) -> Write:
    write = by_kind(field.type, _WRITE_KIND.__getitem__, _array_writer, _record_writer)
    return _optional_writer(write) if field.optional else write


@cache
def _record_writer(declared: type) -> Write:
    """Build the function that writes an event or structure: one writer per field, and one join."""
    writers = [(operator.attrgetter(field.name), _field_writer(field)) for field in declared_fields(declared)]

    def write_record(value: Any) -> bytes:
        return b"".join([write(get(value)) for get, write in writers])

    # Sessions write the same status variables again and again.
    return lru_cache(maxsize=1024)(write_record) if declared is StatusVariables else write_record


_HEAD: Final = [
    _optional_writer(_WRITE_KIND[field.kind]) if field.optional else _WRITE_KIND[field.kind] for field in HEAD
]
_TYPE_NAMES: Final = [
    (EventType(code) if code in EVENTS else EventType.UNKNOWN_EVENT).name for code in range(256)
]


class EventSerializer:
    """Writes the value of a record of the events topic.

    With a registry, the schema is registered for ``topic`` and its id put in front;
    without one, the bare Avro record is written.
    """

    def __init__(self, registry: SchemaStore | None = None, topic: str = "") -> None:
        self._prefix = b""
        if registry is not None:
            schema_id = registry.register(value_subject(topic), load_schema(SCHEMA_NAME))
            self._prefix = wire_prefix(schema_id)
        self._branches = {
            each: (long(index), _record_writer(each)) for each, index in event_branches().items()
        }

    def compiled(self) -> "EventRecordWriter | None":
        """Return the kernel's writer of the same records, from raw events; None where there is no kernel."""
        if not kernel.has("events"):
            return None
        from millrace.kernel.events import EventRecordWriter  # noqa: PLC0415 - only where it is built

        branches = {event_class: index for event_class, (index, _) in self._branches.items()}
        type_names = [_write_text(name) for name in _TYPE_NAMES]
        write_variables = _record_writer(StatusVariables)
        return EventRecordWriter(
            self._prefix,
            lambda log_format: event_plans(log_format, branches, type_names),
            variable_plans(),
            _write_text,
            _record_writer(TableMapEvent),
            lambda block: write_variables(StatusVariables.read(block, 0, len(block))[0]),
        )

    def __call__(  # noqa: PLR0917  # a hot path: positional arguments cost least
        self,
        decoded: BinlogEvent,
        epoch: int,
        log_file: str,
        position: int,
        sub_index: int,
        step: TransactionStep,
        table: tuple[str, str] | None = None,
        *,
        artificial: bool = False,
    ) -> bytes:
        """Write one event; ``table`` is (database, table) of a table map or rows event."""
        header = decoded.header
        head = (
            log_file,
            position,
            sub_index,
            _TYPE_NAMES[header.type_code],
            header.timestamp,
            header.type_code,
            header.server_id,
            header.event_size,
            header.next_position,
            header.flags,
            header.extra_headers,
            decoded.checksum,
            artificial,
            decoded.post_header_extra,
            epoch,
            step.transaction,
            step.ordinal,
            step.begins,
            None if step.ends is None else step.ends.value,
            step.xid,
            *(table or (None, None)),
        )
        index, write = self._branches[type(decoded.event)]
        return b"".join((self._prefix, *map(operator.call, _HEAD, head), index, write(decoded.event)))

    def around(
        self,
        decoded: BinlogEvent,
        field: str,
        size: int,
        place: tuple[int, str, int, int],
        step: TransactionStep,
        *,
        table: tuple[str, str] | None = None,
    ) -> tuple[bytes, bytes]:
        """Return what stands before and after the ``size`` bytes of a field that is too large to be held.

        ``field`` is the :attr:`Event.rest_field` of the event; ``place`` are epoch, log file, position and
        sub_index.
        """
        event = replace(decoded.event, **{field: b""})  # type: ignore[type-var]  # every event is a dataclass
        whole = self(replace(decoded, event=event), *place, step, table)
        fields = declared_fields(type(event))
        following = itertools.dropwhile(lambda each: each.name != field, fields)
        _, *rest = (_field_writer(each)(getattr(event, each.name)) for each in following)
        after = b"".join(rest)
        return whole[: len(whole) - len(after) - len(_write_bytes(b""))] + long(size), after

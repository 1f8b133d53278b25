"""What the kernel for events needs to know of the declarations, as numbers: its plans.

:mod:`millrace.kernel.events` has the meaning of the numbers; they are spelled here as they are there. An
event or a variable without a plan is left to the reference.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from millrace.binlog.declaration import EVENTS, Declaration, Event, declared_fields, wire_fields
from millrace.binlog.events import (
    MariadbGtidEvent,
    QueryEvent,
    RowsEvent,
    TableMapEvent,
)
from millrace.binlog.events.gtid import GtidEvent
from millrace.binlog.events.query import VARIABLES
from millrace.binlog.events.rows import RowsOperation
from millrace.binlog.fields import FieldType
from millrace.binlog.grammar import Role
from millrace.binlog.state import LogFormat

__all__ = ["EventPlan", "event_plans", "field_kinds", "variable_plans"]

EventPlan = tuple[int, int, int, tuple[int, int, int], bytes, bytes, bytes]
"""Layout, role, post-header length; version of a rows event and which images it has; wires of the fields;
the type's name and the branch of the union, as Avro has them."""


class Layout(IntEnum):
    """How an event is laid out: by its fields, or in a way of its own."""

    FIELDS = 1
    GTID = 2
    MARIADB_GTID = 3
    QUERY = 4
    TABLE_MAP = 5
    ROWS = 6


_WIRES: Final = {
    "uint8": 1,
    "uint16": 2,
    "uint24": 3,
    "uint32": 4,
    "uint48": 6,
    "uint56": 7,
    "uint64": 8,
    "int32": 9,
    "int64": 10,
    "bytes to the end": 11,
    "text to the end": 12,
    "text<uint8>": 13,
    "text<uint8> NUL": 14,
}
_KINDS: Final = {"int": 1, "long": 1, "uint64": 2, "bytes": 3, "string": 4}
_OTHER: Final = 5
_OPTIONAL: Final = 16
_MOST_WIRES_OF_A_VARIABLE: Final = 4

_LAYOUTS: Final[tuple[tuple[type[Event], Layout], ...]] = (
    (GtidEvent, Layout.GTID),
    (MariadbGtidEvent, Layout.MARIADB_GTID),
    (QueryEvent, Layout.QUERY),
    (TableMapEvent, Layout.TABLE_MAP),
    (RowsEvent, Layout.ROWS),
)
_LEFT: Final = (Role.START, Role.PREPARE)
"""Roles that the kernel does not look into."""


def _wires(declared: type) -> bytes | None:
    """Give a number per field; None where one of them has none, or is not always there."""
    fields = declared_fields(declared)
    if fields != wire_fields(declared) or any(field.optional or field.since for field in fields):
        return None
    wires = [_WIRES.get(field.type.name, 0) for field in fields]
    return bytes(wires) if all(wires) else None


def _plan(declaration: Declaration) -> tuple[Layout, Role, tuple[int, int, int], bytes] | None:
    """Make what of a plan does not depend on the log's format."""
    event_class = declaration.event_class
    if event_class.role in _LEFT:
        return None
    layout = next((each for base, each in _LAYOUTS if issubclass(event_class, base)), Layout.FIELDS)
    sides = 0, 0, 0
    wires: bytes | None = b""
    if issubclass(event_class, RowsEvent):
        operation = event_class.operation
        sides = (
            event_class.version,
            operation is not RowsOperation.WRITE,
            operation is not RowsOperation.DELETE,
        )
    if layout is Layout.FIELDS:
        own = hasattr(declaration.decode, "__self__")  # a method of the class, not made from its fields
        wires = None if own else _wires(event_class)
    return None if wires is None else (layout, event_class.role, sides, wires)


_BY_DECODER: Final = {
    declaration.decode: (declaration.event_class, _plan(declaration)) for declaration in EVENTS.values()
}
_NO_PLAN: Final = Event, None
_OBSERVED: Final = (Layout.TABLE_MAP, Layout.ROWS)
"""What the kernel notes in the stream's state; what else must be noted there is the reference's."""


def event_plans(
    log_format: LogFormat, branches: Mapping[type, bytes], type_names: Sequence[bytes]
) -> list[EventPlan | None]:
    """Make the plans of a log, by type code."""
    plans: list[EventPlan | None] = []
    for code, (decode, known, excess, observed) in enumerate(log_format.codecs):
        event_class, plan = _BY_DECODER.get(decode, _NO_PLAN)
        if plan is None or excess or (observed and plan[0] not in _OBSERVED):
            plans.append(None)
            continue
        layout, role, sides, wires = plan
        plans.append((layout, role, known, sides, wires, type_names[code], branches[event_class]))
    return plans


def variable_plans() -> list[tuple[int, bytes]]:
    """Give the code of each status variable and the wires of its fields: none where it has no plan."""
    return [(code, _variable_wires(field_type)) for code, (_, field_type) in VARIABLES.items()]


def _variable_wires(field_type: FieldType) -> bytes:
    if field_type.kind != "record":
        wire = _WIRES.get(field_type.name)
        return b"" if wire is None else bytes([wire])
    assert field_type.record is not None
    if hasattr(field_type.record, "read"):  # its own layout
        return b""
    wires = _wires(field_type.record) or b""
    return wires if len(wires) <= _MOST_WIRES_OF_A_VARIABLE else b""


def field_kinds(
    declared: type, other: Callable[[FieldType], Any]
) -> tuple[list[int], list[Callable[[bytes, int], tuple[Any, int]] | None]]:
    """Give the kind of each field as Avro has it, and what ``other`` gives for those without a number."""
    kinds, readers = [], []
    for field in declared_fields(declared):
        kind = _KINDS.get(field.type.kind, _OTHER)
        readers.append(other(field.type) if kind == _OTHER else None)
        kinds.append(kind | _OPTIONAL * field.optional)
    return kinds, readers

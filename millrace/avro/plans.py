"""What the kernel for events needs to know of the declarations, as numbers: its plans.

:mod:`millrace.kernel.events` has the meaning of the numbers; ``make generate`` copies them there. An
event or a variable without a plan is left to the reference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from inspect import ismethod
from typing import Any, Final

from millrace.binlog.declaration import (
    EVENTS,
    Declaration,
    DeclaredField,
    Event,
    declared_fields,
    wire_fields,
)
from millrace.binlog.events import (
    MariadbGtidEvent,
    QueryEvent,
    RowsEvent,
    TableMapEvent,
)
from millrace.binlog.events.gtid import GtidEvent
from millrace.binlog.events.query import VARIABLES
from millrace.binlog.fields import FieldType
from millrace.binlog.grammar import Role
from millrace.binlog.state import LogFormat

FieldPlan = tuple[int, int, int, int, int]
"""Wire of a field, its conditions, the place of the field that these ask or that has its length, the bits
that are asked there, and those that are no part of its own value."""

EventPlan = tuple[int, int, int, list[FieldPlan], bytes, bytes]
"""Layout, role, post-header length, plans of the fields; the type's name and the branch of the union, as Avro
has them."""

ObjectPlan = tuple[int, int, int, list[FieldPlan], type[Event], list[str | None], list[Any]]
"""Layout, role, post-header length, plans of the fields; the class, the name of each field, None for what is
hidden, and what each has where it is absent."""


class Layout(IntEnum):
    """How an event is taken: by its fields alone, or also by what it is."""

    NONE = 0
    FIELDS = 1
    GTID = 2
    MARIADB_GTID = 3
    QUERY = 4
    TABLE_MAP = 5
    ROWS = 6


class Wire(IntEnum):
    """How a field is read; 1 to 8 are unsigned integers of as many bytes."""

    INT64 = 10
    REST_BYTES = 11
    REST_TEXT = 12
    TEXT8 = 13
    TEXT8_NUL = 14
    LENENC = 15
    BYTES16 = 16
    UNLESS_ZERO = 17
    ALWAYS_TWO = 18
    ZERO = 19
    STATUS = 20
    COUNTING_BYTES16 = 21
    LEFT = 22  # seldom there, and the reference's


_WIRES: Final = {
    **{f"uint{8 * size}": size for size in range(1, 9)},
    "int64": Wire.INT64,
    "bytes to the end": Wire.REST_BYTES,
    "bitmap": Wire.REST_BYTES,
    "bytes<uint16 with itself>": Wire.COUNTING_BYTES16,
    "text to the end": Wire.REST_TEXT,
    "text<uint8>": Wire.TEXT8,
    "text<uint8> NUL": Wire.TEXT8_NUL,
    "lenenc": Wire.LENENC,
    "bytes[16]": Wire.BYTES16,
    "uint8 unless 0": Wire.UNLESS_ZERO,
    "uint8, always 2": Wire.ALWAYS_TWO,
    "zero byte": Wire.ZERO,
    "StatusVariables": Wire.STATUS,
}


class Condition(IntFlag):
    """Whether and how a field is there."""

    OPTIONAL = 1
    HIDDEN = 2
    ABSENT = 4
    WHEN = 8
    REMAINS = 16
    SIZED = 32
    BITS = 64


class FieldKind(IntEnum):
    """How Avro has a field; one that is optional has OPTIONAL beside it."""

    LONG = 1
    UINT64 = 2
    BYTES = 3
    STRING = 4
    OTHER = 5
    OPTIONAL = 16


_KINDS: Final = {
    "int": FieldKind.LONG,
    "long": FieldKind.LONG,
    "uint64": FieldKind.UINT64,
    "bytes": FieldKind.BYTES,
    "string": FieldKind.STRING,
}
_MOST_FIELDS_OF_A_VARIABLE: Final = 4

_LAYOUTS: Final[tuple[tuple[type[Event], Layout], ...]] = (
    (GtidEvent, Layout.GTID),
    (MariadbGtidEvent, Layout.MARIADB_GTID),
    (QueryEvent, Layout.QUERY),
    (TableMapEvent, Layout.TABLE_MAP),
    (RowsEvent, Layout.ROWS),
)
_LEFT: Final = (Role.START, Role.PREPARE)
"""Roles that the kernel does not look into."""


def _planned_fields(declared: type, post_header_length: int = 0) -> list[DeclaredField]:
    """Return the fields of a class, and what else stands on the wire, in its order."""
    on_wire = wire_fields(declared, post_header_length)
    return [each for each in on_wire if not each.hidden or each.since <= post_header_length]


def _field_plans(declared: type, post_header_length: int = 0) -> list[FieldPlan]:
    """Return the plans of what stands on the wire."""
    there = _planned_fields(declared, post_header_length)
    places = {field.name: place for place, field in enumerate(there)}
    sizes = {field.length_of: place for place, field in enumerate(there)}
    drops = {each.when.field: each.when.mask for each in there if each.when is not None and each.when.taken}
    plans = []
    for field in there:
        condition = (
            Condition.OPTIONAL * field.optional
            | Condition.HIDDEN * field.hidden
            | Condition.ABSENT * (field.since > post_header_length)
            | Condition.WHEN * (field.when is not None)
            | Condition.REMAINS * field.remains
            | Condition.SIZED * (field.name in sizes)
            | Condition.BITS * (field.bits_of is not None)
        )
        asked, mask = (places[field.when.field], int(field.when.mask)) if field.when else (0, 0)
        wire, drop = _WIRES.get(field.type.name, Wire.LEFT), drops.get(field.name, 0)
        place = places[field.bits_of] if field.bits_of else sizes.get(field.name, asked)
        plans.append((wire, int(condition), place, mask, drop))
    return plans


def _is_plain(declared: type) -> bool:
    """Return whether all fields are always there, in the order of the wire, and can be read."""
    plain = all(wire != Wire.LEFT and not condition for wire, condition, *_ in _field_plans(declared))
    return plain and wire_fields(declared) == declared_fields(declared)


def _plan(declaration: Declaration) -> tuple[Layout, Role] | None:
    """Make what of a plan does not depend on the log's format."""
    event_class = declaration.event_class
    if event_class.role in _LEFT:
        return None
    layout = next((each for base, each in _LAYOUTS if issubclass(event_class, base)), Layout.FIELDS)
    if ismethod(declaration.decode) or (layout is Layout.FIELDS and not _is_plain(event_class)):
        return None
    return layout, event_class.role


_BY_DECODER: Final = {
    declaration.decode: (declaration.event_class, _plan(declaration)) for declaration in EVENTS.values()
}
_NO_PLAN: Final = Event, None
_OBSERVED: Final = (Layout.TABLE_MAP, Layout.ROWS)
"""What the kernel notes in the stream's state; what else must be noted there is the reference's."""


def _planned_events(log_format: LogFormat) -> Iterator[tuple[int, type[Event], tuple[Layout, Role], int]]:
    """Yield code, class, plan and length of the post-header of each type of event that has a plan."""
    for code, (decode, known, excess, observed) in enumerate(log_format.codecs):
        event_class, plan = _BY_DECODER.get(decode, _NO_PLAN)
        if plan is not None and not excess and (not observed or plan[0] in _OBSERVED):
            yield code, event_class, plan, known


def event_plans(
    log_format: LogFormat, branches: Mapping[type, bytes], type_names: Sequence[bytes]
) -> list[EventPlan | None]:
    """Make the plans of a log, by type code."""
    plans: list[EventPlan | None] = [None] * len(log_format.codecs)
    for code, event_class, (layout, role), known in _planned_events(log_format):
        fields = [] if layout is Layout.TABLE_MAP else _field_plans(event_class, known)
        plans[code] = layout, role, known, fields, type_names[code], branches[event_class]
    return plans


def object_plans(log_format: LogFormat, left: tuple[type[Event], ...]) -> list[ObjectPlan | None]:
    """Make the plans by which events become objects, by type code; none for the classes in ``left``."""
    plans: list[ObjectPlan | None] = [None] * len(log_format.codecs)
    for code, event_class, (layout, role), known in _planned_events(log_format):
        if not issubclass(event_class, left):
            there = [] if layout is Layout.TABLE_MAP else _planned_fields(event_class, known)
            names = [None if field.hidden else field.name for field in there]
            fields = _field_plans(event_class, known) if there else []
            absent = [field.absent if field.since > known else None for field in there]
            plans[code] = layout, role, known, fields, event_class, names, absent
    return plans


def variable_plans() -> list[tuple[int, list[FieldPlan]]]:
    """Return the code of each status variable and its fields' plans: none where it is the reference's."""
    return [(code, _variable_plan(field_type)) for code, (_, field_type) in VARIABLES.items()]


def _variable_plan(field_type: FieldType) -> list[FieldPlan]:
    if field_type.record is None:
        return [(_WIRES[field_type.name], 0, 0, 0, 0)] if field_type.name in _WIRES else []
    plans = [] if hasattr(field_type.record, "read") else _field_plans(field_type.record)  # its own layout
    return (
        plans if plans and len(plans) <= _MOST_FIELDS_OF_A_VARIABLE and _is_plain(field_type.record) else []
    )


def field_kinds(
    declared: type, other: Callable[[FieldType], Any]
) -> tuple[list[int], list[Callable[[bytes, int], tuple[Any, int]] | None]]:
    """Return the kind of each field as Avro has it, and what ``other`` gives for those without a number."""
    kinds, readers = [], []
    for field in declared_fields(declared):
        kind = _KINDS.get(field.type.kind, FieldKind.OTHER)
        readers.append(other(field.type) if kind is FieldKind.OTHER else None)
        kinds.append(kind | FieldKind.OPTIONAL * field.optional)
    return kinds, readers

"""How the fields of a class lie on the wire, and the functions that read and write them, built of that.

The words are those of :mod:`millrace.binlog.declaration`, which says what they mean. Reading goes through the
fields in the order of the wire, each a step that appends a value to those before it; runs of fixed integers
are one step. Writing gives each field the object, and joins.
"""

import functools
import operator
import struct
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, TypeVar

from millrace.binlog.errors import EncodeError
from millrace.binlog.fields import Counted, FieldType, Read, Write, truncated

__all__ = [
    "NEVER",
    "STRUCTURES",
    "DeclaredField",
    "Only",
    "When",
    "declared_fields",
    "is_fixed",
    "read_many",
    "reader",
    "struct_of",
    "wire_fields",
    "writer",
]

C = TypeVar("C")
Section = Literal["post-header", "body", "item"]

NEVER: Final = 1 << 16
"""What a field has for ``since`` that no event of the type has."""

STRUCTURES: dict[type, FieldType] = {}
"""The wire type of each class that stands inside a field."""


@dataclass(frozen=True, slots=True)
class When:
    """A field is there where ``field``, which stands before it, has a bit of ``mask`` set.

    With ``unset`` it is there where that has none. With ``taken`` the bit says nothing else, and the value of
    ``field`` is without it.
    """

    field: str
    mask: int
    unset: bool = False
    taken: bool = False


@dataclass(frozen=True, slots=True)
class Only:
    """A field is there in the types of event whose class has one of ``values`` as its ``constant``."""

    constant: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """One field of a declaration; ``optional`` says that the wire may lack it, which is ``None`` here.

    ``hidden`` is what stands on the wire and is no field of the class. The rest is said in the module's
    docstring; ``code`` is that of a status variable.
    """

    name: str
    section: Section
    type: FieldType
    optional: bool
    hidden: bool
    length_of: str | None = None
    since: int = 0
    absent: Any = None
    when: When | None = None
    only: Only | None = None
    remains: bool = False
    may_end: bool = False
    bits_of: str | None = None
    instead: tuple[int, FieldType] | None = None
    code: int | None = None


def _field_type(annotation: Any) -> tuple[FieldType, bool]:
    """Find the wire type in an annotation, and whether None is allowed."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner, none = typing.get_args(annotation)
        assert none is type(None)
        return _field_type(inner)[0], True
    if typing.get_origin(annotation) is typing.Annotated:
        for mark in annotation.__metadata__:
            if isinstance(mark, FieldType):
                return mark, False
            if isinstance(mark, Counted):
                items = _field_type(typing.get_args(annotation)[0])[0].item
                assert items is not None
                return _counted_type(items, _field_type(mark.count)[0]), False
    if typing.get_origin(annotation) is tuple:
        return _array_type(_field_type(typing.get_args(annotation)[0])[0]), False
    if annotation in STRUCTURES:
        return STRUCTURES[annotation], False
    raise TypeError(f"{annotation} is not a wire type")


def _array_type(of: FieldType) -> FieldType:
    """Items one after the other to the end of what holds them."""

    def read(data: bytes, offset: int, end: int) -> tuple[tuple[Any, ...], int]:
        values = []
        while offset < end:
            value, offset = of.read(data, offset, end)
            values.append(value)
        return tuple(values), offset

    def write(values: tuple[Any, ...]) -> bytes:
        return b"".join(map(of.write, values))

    return FieldType(f"{of.name} …", "array", read, write, item=of)


def read_many(read: Read, count: int, data: bytes, offset: int, end: int) -> tuple[tuple[Any, ...], int]:
    """Read so many values one after the other."""
    values = []
    for _ in range(count):
        value, offset = read(data, offset, end)
        values.append(value)
    return tuple(values), offset


def _counted_type(of: FieldType, count: FieldType) -> FieldType:
    """Items one after the other, after their number; each takes a byte at least, so the event bounds them."""

    def read(data: bytes, offset: int, end: int) -> tuple[tuple[Any, ...], int]:
        number, offset = count.read(data, offset, end)
        return read_many(of.read, number, data, offset, end)

    def write(values: tuple[Any, ...]) -> bytes:
        return count.write(len(values)) + b"".join(map(of.write, values))

    return FieldType(f"{of.name} … ({count.name} of them)", "array", read, write, item=of)


@functools.cache
def _fields(declared: type) -> tuple[tuple[DeclaredField, ...], tuple[DeclaredField, ...]]:
    """Return the fields of a class, and what of it stands on the wire."""
    hints = typing.get_type_hints(declared, include_extras=True)
    found = []
    for field in declared.__dataclass_fields__.values():  # type: ignore[attr-defined]  # as of a dataclass
        if "section" in field.metadata:
            hint = hints[field.name]
            hidden = typing.get_origin(hint) is ClassVar
            wire_type, optional = _field_type(typing.get_args(hint)[0] if hidden else hint)
            said = dict(field.metadata)
            if "instead" in said:
                said["instead"] = said["instead"][0], _field_type(said["instead"][1])[0]
            found.append(DeclaredField(field.name, type=wire_type, optional=optional, hidden=hidden, **said))
    on_wire = sorted(found, key=lambda field: field.section != "post-header")
    return tuple(field for field in found if not field.hidden), tuple(on_wire)


def declared_fields(declared: type) -> tuple[DeclaredField, ...]:
    """List the fields of an event or structure class."""
    return _fields(declared)[0]


def wire_fields(declared: type, post_header_length: int = 0) -> tuple[DeclaredField, ...]:
    """List what stands on the wire of an event or structure, in its order: the post-header, then the body.

    Where the post-header has that length; 0 stands for the longest that is known.
    """
    return tuple(_settled(field, declared, post_header_length) for field in _fields(declared)[1])


def _settled(field: DeclaredField, declared: type, post_header_length: int) -> DeclaredField:
    """Decide what no event's bytes say: the type of a field, and whether the class has it."""
    if field.instead is not None and field.instead[0] == post_header_length:
        field = replace(field, type=field.instead[1])
    if field.only is not None and getattr(declared, field.only.constant) not in field.only.values:
        field = replace(field, since=NEVER)
    return field


Step = Callable[[bytes, int, int, list[Any]], int]
Count = Callable[[Any], int]


def struct_of(fields: Iterable[DeclaredField]) -> struct.Struct:
    """Return the struct of fields that are all fixed integers."""
    return struct.Struct("<" + "".join(field.type.struct_code for field in fields))


def _struct_step(fields: list[DeclaredField]) -> Step:
    layout = struct_of(fields)
    unpack, size, names = layout.unpack_from, layout.size, ", ".join(field.name for field in fields)

    def step(data: bytes, offset: int, end: int, values: list[Any]) -> int:
        after = offset + size
        if after > end:
            raise truncated(names, size, offset, end)
        values += unpack(data, offset)
        return after

    return step


def _reader_step(read: Read) -> Step:
    def step(data: bytes, offset: int, end: int, values: list[Any]) -> int:
        value, after = read(data, offset, end)
        values.append(value)
        return after

    return step


def _counted_step(read: Read, count: int) -> Step:
    def step(data: bytes, offset: int, end: int, values: list[Any]) -> int:
        items, after = read_many(read, values[count], data, offset, end)
        values.append(items)
        return after

    return step


def _sized_step(field: DeclaredField, size: int) -> Step:
    name, read = field.name, field.type.read

    def step(data: bytes, offset: int, end: int, values: list[Any]) -> int:
        length: int = values[size]
        after = offset + length
        if after > end:
            raise truncated(name, length, offset, end)
        values.append(read(data, offset, after)[0])
        return after

    return step


def _bits_step(name: str, place: int, count: Count) -> Step:
    def step(data: bytes, offset: int, end: int, values: list[Any]) -> int:
        after = offset + (count(values[place]) + 7) // 8
        if after > end:
            raise truncated(name, after - offset, offset, end)
        values.append(data[offset:after])
        return after

    return step


def _counted_by(name: str, wire: tuple[DeclaredField, ...]) -> tuple[int, Count]:
    """Find the field that says how many bits a bitmap has, and what makes the number of its value."""
    place = next(place for place, field in enumerate(wire) if field.name == name)
    return place, len if wire[place].type.kind == "bytes" else operator.index


def _tail_step(steps: list[Step], absent: list[Any]) -> Step:
    """Build what reads the fields after one that may end the event."""

    def step(data: bytes, offset: int, end: int, values: list[Any]) -> int:
        if offset == end and values[-1]:
            values += absent
            return end
        for each in steps:
            offset = each(data, offset, end, values)
        return offset

    return step


def _remaining_step(there: Step) -> Step:
    def step(data: bytes, offset: int, end: int, values: list[Any]) -> int:
        if offset < end:
            return there(data, offset, end, values)
        values.append(None)
        return offset

    return step


def _conditional_step(there: Step, when: When, place: int) -> Step:
    mask, unset, taken = int(when.mask), when.unset, when.taken

    def step(data: bytes, offset: int, end: int, values: list[Any]) -> int:
        flags = values[place]
        if flags is None or bool(flags & mask) is unset:
            values.append(None)
            return offset
        if taken:
            values[place] = flags ^ mask
        return there(data, offset, end, values)

    return step


def _absent_step(value: Any) -> Step:
    def step(_data: bytes, offset: int, _end: int, values: list[Any]) -> int:
        values.append(value)
        return offset

    return step


def _step(field: DeclaredField, wire: tuple[DeclaredField, ...], post_header_length: int) -> Step:
    """Build what reads a field and appends it to the values before it, in the order of the wire."""
    if field.since > post_header_length:
        return _absent_step(field.absent)
    places = {other.name: place for place, other in enumerate(wire)}
    size = next((place for place, other in enumerate(wire) if other.length_of == field.name), None)
    if size is not None:
        item = field.type.item
        step = _sized_step(field, size) if item is None else _counted_step(item.read, size)
    elif field.bits_of is not None:
        step = _bits_step(field.name, *_counted_by(field.bits_of, wire))
    else:
        step = _struct_step([field]) if field.type.struct_code else _reader_step(field.type.read)
    if field.remains:
        step = _remaining_step(step)
    return step if field.when is None else _conditional_step(step, field.when, places[field.when.field])


def is_fixed(field: DeclaredField, post_header_length: int = 0) -> bool:
    """Return whether a field is always there, with a size that never changes."""
    conditional = field.when is not None or field.remains or field.since > post_header_length
    return bool(field.type.struct_code) and not conditional


def reader(made: type[C], post_header_length: int = 0) -> Callable[[bytes, int, int], tuple[C, int]]:
    """Build the reader of a class, where the post-header has that length."""
    wire = wire_fields(made, post_header_length)
    names = [field.name for field in wire]
    places = [names.index(field.name) for field in declared_fields(made)]
    arrange = None if places == [*range(len(names))] else operator.itemgetter(*places)
    steps = _steps(wire, wire, post_header_length)

    def read(data: bytes, offset: int, end: int) -> tuple[C, int]:
        values: list[Any] = []
        for step in steps:
            offset = step(data, offset, end, values)
        return made(*(arrange(values) if arrange else values)), offset

    return read


def _steps(
    fields: tuple[DeclaredField, ...], wire: tuple[DeclaredField, ...], post_header_length: int
) -> list[Step]:
    """Build what reads fields that stand one after the other, of all that are on the wire."""
    steps: list[Step] = []
    run: list[DeclaredField] = []
    for place, field in enumerate(fields, 1):
        if is_fixed(field, post_header_length):
            run.append(field)
            continue
        if run:
            steps.append(_struct_step(run))
            run = []
        steps.append(_step(field, wire, post_header_length))
        if field.may_end:
            rest = fields[place:]
            steps.append(_tail_step(_steps(rest, wire, post_header_length), [other.absent for other in rest]))
            return steps
    if run:
        steps.append(_struct_step(run))
    return steps


def writer(declared: type, post_header_length: int = 0) -> Write:
    """Build the writer of a class, where the post-header has that length."""
    wire = wire_fields(declared, post_header_length)
    names = [field.name for field in wire]
    writers = [_field_writer(field, wire, post_header_length) for field in wire]
    lengths = [
        (place, names.index(field.length_of), field.type.write)
        for place, field in enumerate(wire)
        if field.length_of is not None and field.since <= post_header_length
        if wire[names.index(field.length_of)].type.item is None
    ]

    def write(value: Any) -> bytes:
        parts = [write_field(value) for write_field in writers]
        for place, measured, write_length in lengths:
            parts[place] = write_length(len(parts[measured]))
        return b"".join(parts)

    last = next((place for place, field in enumerate(wire) if field.may_end), None)
    return write if last is None else _ending_writer(write, writers, wire, last)


def _ending_writer(write: Write, writers: list[Write], wire: tuple[DeclaredField, ...], last: int) -> Write:
    """Build what writes no more than the field that may end the event, where nothing is said after it."""
    get_last = operator.attrgetter(wire[last].name)
    rest = [(operator.attrgetter(field.name), field.absent) for field in wire[last + 1 :]]

    def write_to_end(value: Any) -> bytes:
        if get_last(value) and all(get(value) == absent for get, absent in rest):
            return b"".join([write_field(value) for write_field in writers[: last + 1]])
        return write(value)

    return write_to_end


def _field_writer(field: DeclaredField, wire: tuple[DeclaredField, ...], post_header_length: int) -> Write:
    """Build what writes a field of the object that it is given."""
    write, missing = field.type.write, field.since > post_header_length
    if field.hidden:
        measured = next((other for other in wire if other.name == field.length_of), None)
        if measured is not None and measured.type.item is not None:
            count_of = operator.attrgetter(measured.name)
            return lambda value: write(len(count_of(value)))
        return (lambda _: b"") if missing or measured else lambda _: write(0)
    get = operator.attrgetter(field.name)
    for other in wire:
        if not missing and other.when is not None and other.when.field == field.name and other.when.taken:
            return _announcing_writer(field, other.name, other.when.mask)
    if field.when is not None and not field.when.taken:
        return _conditional_writer(field, field.when)
    if not field.optional and not missing:
        return _bits_writer(field, wire) if field.bits_of else lambda value: write(get(value))
    has_length = any(other.length_of == field.name for other in wire)
    required = field.since and not (missing or has_length or field.remains or field.when)
    absent, words = field.absent if missing else None, field.name.replace("_", " ")
    whole = "an event of this type" if field.since == NEVER else "a log of this version"

    def write_optional(value: Any) -> bytes:
        part = get(value)
        if part == absent and not required:
            return b""
        if missing or (required and part is None):
            raise EncodeError(f"{whole} has {'no ' if missing else ''}{words}")
        return write(part)

    return write_optional


def _bits_writer(field: DeclaredField, wire: tuple[DeclaredField, ...]) -> Write:
    name, bits_of = field.name, str(field.bits_of)
    get, get_counted, count = (
        operator.attrgetter(name),
        operator.attrgetter(bits_of),
        _counted_by(bits_of, wire)[1],
    )

    def write(value: Any) -> bytes:
        part: bytes = get(value)
        size = (count(get_counted(value)) + 7) // 8
        if len(part) != size:
            raise EncodeError(f"{name} has {len(part)} bytes, where {bits_of} asks for {size}")
        return part

    return write


def _conditional_writer(field: DeclaredField, when: When) -> Write:
    get, write, flags_of = operator.attrgetter(field.name), field.type.write, operator.attrgetter(when.field)
    mask, unset, may_lack = int(when.mask), when.unset, field.remains

    def write_conditional(value: Any) -> bytes:
        part, flags = get(value), flags_of(value)
        announced = bool(flags & mask) is not unset
        if (part is not None) is not announced and not (announced and may_lack):
            word = "None" if announced else "given"
            raise EncodeError(f"{field.name} is {word}, where {when.field} is {flags}")
        return b"" if part is None else write(part)

    return write_conditional


def _announcing_writer(field: DeclaredField, announced: str, mask: int) -> Write:
    """Build what writes an integer of which a bit says whether another field follows; None as nothing."""
    get, write, get_announced = (
        operator.attrgetter(field.name),
        field.type.write,
        operator.attrgetter(announced),
    )

    def write_announcing(value: Any) -> bytes:
        number, other = get(value), get_announced(value)
        if number is None:
            if other is not None:
                raise EncodeError(f"{announced} is given, where {field.name} is None")
            return b""
        if number & mask:
            raise EncodeError(f"{number} does not leave the highest bit of {len(write(number))} bytes free")
        return write(number if other is None else number | mask)

    return write_announcing

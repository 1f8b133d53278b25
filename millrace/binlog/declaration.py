"""How an event type is declared: once, as a class whose annotated fields stand in wire order.

::

    @event(EventType.ROTATE_EVENT, role=Role.BETWEEN)
    class RotateEvent(Event):
        "The log ends here; the next one follows."

        position: U64 = post_header()
        new_log_ident: RestText = body()

``role`` is what the event is to its transaction (:mod:`millrace.binlog.grammar`). From the declaration follow
the frozen slotted class, the decoder, the encoder, the Avro record and the row in ``docs/events.md``. A list
whose count stands before it is ``Annotated[tuple[Item, ...], Counted(U32)]``. An event whose layout the field
types cannot say (a field that is there only under a condition, a length that stands elsewhere) still declares
its fields and brings two methods, ``decode_fields`` and ``encode_fields``; the rest follows as well.

A post-header has the length that the log's format description gives. ``post_header_lengths`` lists the
lengths for which a layout is known; a longer one than these has its excess kept beside the event (see
:mod:`millrace.binlog.event_codec`), a shorter one than all of them is an error.
"""

import dataclasses
import struct
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar, dataclass_transform

from millrace.binlog.errors import TrailingBytesError, UnsupportedError
from millrace.binlog.fields import Counted, FieldType, Read, Write, truncated
from millrace.binlog.grammar import Role
from millrace.binlog.types import EventType
from millrace.binlog.values import value

__all__ = [
    "EVENTS",
    "Declaration",
    "DeclaredField",
    "Event",
    "abstract_event",
    "body",
    "declared_fields",
    "event",
    "item",
    "post_header",
    "read_structures",
    "structure",
    "write_structures",
]

Section = Literal["post-header", "body", "item"]
DecodeFields = Callable[[bytes, int, int, int], "Event"]
EncodeFields = Callable[[Any, int], bytes]
C = TypeVar("C")
E = TypeVar("E", bound="Event")


class Event:
    """What all decoded events have in common: a type, and being values that compare by their fields."""

    __slots__ = ()

    event_type: ClassVar[EventType] = EventType.UNKNOWN_EVENT
    role: ClassVar[Role] = Role.PART
    """What it is to the transaction that it stands in."""
    rest_field: ClassVar[str | None] = None
    """The field that takes all bytes up to the end of the event, where it may be very large."""

    @classmethod
    def decode_beginning(
        cls, data: bytes, offset: int, end: int, missing: int, post_header_length: int
    ) -> Self:
        """Read an event of which the last ``missing`` bytes, of ``rest_field``, are not in ``data``.

        That field holds what is there of it.
        """
        del missing
        return cls.decode_fields(data, offset, end, post_header_length)

    @property
    def unpacked_size(self) -> int:
        """How much is unpacked where the event has its content compressed by itself; 0 where it has not.

        A TRANSACTION_PAYLOAD, whose events are unpacked one by one, has 0 as well.
        """
        return 0

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``: post-header and body, without header and checksum."""
        raise NotImplementedError

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body; the inverse of :meth:`decode_fields`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """One field of a declaration; ``optional`` says that the wire may lack it, which is ``None`` here."""

    name: str
    section: Section
    type: FieldType
    optional: bool


@dataclass(frozen=True, slots=True)
class Declaration:
    """All that follows from declaring an event type.

    ``extensible`` is false for the one type whose post-header is not what the format description says.
    """

    event_type: EventType
    event_class: type[Event]
    fields: tuple[DeclaredField, ...]
    post_header_lengths: tuple[int, ...]
    extensible: bool
    decode: DecodeFields
    encode: EncodeFields

    def known_post_header(self, declared: int | None) -> int:
        """Choose the known layout for the post-header length that a format description declares.

        0 and None mean that the description says nothing about the type, as servers write for types that
        they no longer produce themselves.
        """
        lengths = self.post_header_lengths
        if not declared:
            return lengths[-1]
        for length in reversed(lengths):
            if length <= declared:
                return length
        raise UnsupportedError(
            f"{self.event_type.name} with a post-header of {declared} bytes; known are {lengths}"
        )


EVENTS: dict[int, Declaration] = {}
"""Every declared event type by its type code."""

_STRUCTURES: dict[type, FieldType] = {}


def post_header(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of the post-header."""
    return dataclasses.field(default=default, metadata={"section": "post-header"})


def body(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of the body."""
    return dataclasses.field(default=default, metadata={"section": "body"})


def item(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a structure that stands inside a field."""
    return dataclasses.field(default=default, metadata={"section": "item"})


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
    if annotation in _STRUCTURES:
        return _STRUCTURES[annotation], False
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


def read_structures(
    kind: type[C], count: int, data: bytes, offset: int, end: int
) -> tuple[tuple[C, ...], int]:
    """Read structures whose count stands elsewhere; :func:`write_structures` is the inverse."""
    return _read_many(_STRUCTURES[kind].read, count, data, offset, end)


def write_structures(structures: Iterable[object]) -> bytes:
    """Write structures one after the other, without their count."""
    return b"".join([_STRUCTURES[type(one)].write(one) for one in structures])


def _read_many(read: Read, count: int, data: bytes, offset: int, end: int) -> tuple[tuple[Any, ...], int]:
    values = []
    for _ in range(count):
        value, offset = read(data, offset, end)
        values.append(value)
    return tuple(values), offset


def _counted_type(of: FieldType, count: FieldType) -> FieldType:
    """Items one after the other, after their number; each takes a byte at least, so the event bounds them."""

    def read(data: bytes, offset: int, end: int) -> tuple[tuple[Any, ...], int]:
        number, offset = count.read(data, offset, end)
        return _read_many(of.read, number, data, offset, end)

    def write(values: tuple[Any, ...]) -> bytes:
        return count.write(len(values)) + b"".join(map(of.write, values))

    return FieldType(f"{of.name} … ({count.name} of them)", "array", read, write, item=of)


_declared_fields: dict[type, tuple[DeclaredField, ...]] = {}


def declared_fields(declared: type) -> tuple[DeclaredField, ...]:
    """List the fields of an event or structure class in wire order."""
    found = _declared_fields.get(declared)
    if found is None:
        hints = typing.get_type_hints(declared, include_extras=True)
        found = _declared_fields[declared] = tuple(
            DeclaredField(field.name, field.metadata["section"], *_field_type(hints[field.name]))
            for field in dataclasses.fields(declared)
        )
    return found


Step = Callable[[bytes, int, int, list[Any]], int]


def _struct_step(run: list[DeclaredField]) -> Step:
    layout = struct.Struct("<" + "".join(field.type.struct_code for field in run))
    unpack, size, names = layout.unpack_from, layout.size, ", ".join(field.name for field in run)

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


def _reader(
    make: Callable[..., C], fields: tuple[DeclaredField, ...]
) -> Callable[[bytes, int, int], tuple[C, int]]:
    """Build the reader of consecutive fields: one step per run of fixed integers, one per other field."""
    steps: list[Step] = []
    run: list[DeclaredField] = []
    for field in fields:
        if field.type.struct_code:
            run.append(field)
            continue
        if run:
            steps.append(_struct_step(run))
            run = []
        steps.append(_reader_step(field.type.read))
    if run:
        steps.append(_struct_step(run))

    def read(data: bytes, offset: int, end: int) -> tuple[C, int]:
        values: list[Any] = []
        for step in steps:
            offset = step(data, offset, end, values)
        return make(*values), offset

    return read


def _writer(fields: tuple[DeclaredField, ...]) -> Write:
    writers = [(field.name, field.type.write) for field in fields]

    def write(value: Any) -> bytes:
        return b"".join([write_field(getattr(value, name)) for name, write_field in writers])

    return write


def _generated_codec(
    event_class: type[E], fields: tuple[DeclaredField, ...]
) -> tuple[DecodeFields, EncodeFields]:
    read, write = _reader(event_class, fields), _writer(fields)

    def encode(value: Event, _post_header_length: int) -> bytes:
        return write(value)

    if fields and all(field.type.struct_code for field in fields):
        return _fixed_decoder(event_class, fields), encode

    def decode(data: bytes, offset: int, end: int, _post_header_length: int) -> Event:
        value, offset = read(data, offset, end)
        if offset != end:
            raise TrailingBytesError(f"{end - offset} bytes are left over after the last field")
        return value

    return decode, encode


def _fixed_decoder(event_class: type[E], fields: tuple[DeclaredField, ...]) -> DecodeFields:
    """Build the decoder of an event that consists of fixed integers alone."""
    layout = struct.Struct("<" + "".join(field.type.struct_code for field in fields))
    unpack, size, names = layout.unpack_from, layout.size, ", ".join(field.name for field in fields)

    def decode(data: bytes, offset: int, end: int, _post_header_length: int) -> Event:
        if end - offset != size:
            if end - offset < size:
                raise truncated(names, size, offset, end)
            raise TrailingBytesError(f"{end - offset - size} bytes are left over after the last field")
        return event_class(*unpack(data, offset))

    return decode


def _post_header_size(fields: tuple[DeclaredField, ...]) -> int:
    codes = [field.type.struct_code for field in fields if field.section == "post-header"]
    assert all(codes), "a post-header of other than fixed integers needs post_header_lengths"
    return struct.calcsize("<" + "".join(codes))


@dataclass_transform(frozen_default=True, field_specifiers=(post_header, body))
def abstract_event(declared: type[C]) -> type[C]:
    """Declare fields that several event types share; the class itself is no event type."""
    return value(declared)


@dataclass_transform(frozen_default=True, field_specifiers=(post_header, body))
def event(
    event_type: EventType,
    *,
    role: Role,
    post_header_lengths: tuple[int, ...] = (),
    extensible: bool = True,
) -> Callable[[type[E]], type[E]]:
    """Declare the event of a type code; see the module's docstring."""

    def declare(declared: type[E]) -> type[E]:
        event_class = value(declared)
        event_class.event_type, event_class.role = event_type, role
        fields = declared_fields(event_class)
        decode: DecodeFields
        encode: EncodeFields
        if event_class.decode_fields.__func__ is Event.decode_fields.__func__:  # type: ignore[attr-defined]  # classmethods carry their function
            decode, encode = _generated_codec(event_class, fields)
            event_class.decode_fields = staticmethod(decode)  # type: ignore[assignment,method-assign]
            event_class.encode_fields = encode  # type: ignore[assignment,method-assign]
        else:
            decode, encode = event_class.decode_fields, event_class.encode_fields
        lengths = post_header_lengths or (_post_header_size(fields),)
        EVENTS[event_type] = Declaration(event_type, event_class, fields, lengths, extensible, decode, encode)
        return event_class

    return declare


@dataclass_transform(frozen_default=True, field_specifiers=(item,))
def structure(declared: type[C]) -> type[C]:
    """Declare a structure that stands inside a field of an event.

    A class with ``read`` (static) and ``write`` brings its own layout; else they follow from the fields.
    """
    made = value(declared)
    fields = declared_fields(made)
    read: Read = getattr(made, "read", None) or _reader(made, fields)
    write: Write = getattr(made, "write", None) or _writer(fields)
    _STRUCTURES[made] = FieldType(made.__name__, "record", read, write, record=made)
    return made

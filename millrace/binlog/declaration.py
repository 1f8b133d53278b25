"""How an event type is declared: once, as a class whose annotated fields stand in wire order.

::

    @event(4, role=Role.BETWEEN)
    class RotateEvent(Event):
        "The log ends here; the next one follows."

        position: U64 = post_header()
        new_log_ident: RestText = body()

4 is its type code. ``role`` is what the event is to its transaction (:mod:`millrace.binlog.grammar`). From
the declaration follow the frozen slotted class, the decoder, the encoder, the Avro record, the row in
``docs/events.md``, and ``EventType.ROTATE_EVENT``, which ``make generate`` writes.

A post-header has the length that the log's format description gives. ``post_header_lengths`` lists the
lengths for which a layout is known; a longer one than these has its excess kept beside the event (see
:mod:`millrace.binlog.event_codec`), a shorter one than all of them is an error.

What a field type alone cannot say:

- a list whose count stands before it is ``Annotated[tuple[Item, ...], Counted(U32)]``;
- ``gtrid_length: ClassVar[U32] = body(length_of="gtrid")`` stands on the wire and is no field: it is how many
  bytes a later field takes, or how many items a list has. A ``ClassVar`` without ``length_of`` is a constant,
  as :data:`~millrace.binlog.fields.Zero`;
- ``since=42``: the field is there where the post-header has 42 bytes or more, else it is ``absent``;
- ``when=When("flags2", 2)``: it is there where another field, before it, says so;
- ``only=Only("operation", (WRITE, UPDATE))``: it is there in the types whose class says so, else it is
  ``absent``;
- ``remains=True``: it is there where the event does not end before it;
- ``may_end=True``: the event may end after it, unless it is empty, and all that follows is ``absent`` then;
- ``bits_of="column_count"``: it has a bit for each that another field, before it, counts, or has as a byte;
- ``instead=(6, U32)``: in a post-header of 6 bytes it has this type.

An event whose layout this cannot say declares its fields and brings ``decode_fields`` and ``encode_fields``,
with the reason in its docstring; the rest follows as well.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from millrace.binlog.errors import TrailingBytesError, UnsupportedError
from millrace.binlog.fields import FieldType, Read, Write, truncated
from millrace.binlog.grammar import Role
from millrace.binlog.layout import (
    STRUCTURES,
    DeclaredField,
    Only,
    When,
    declared_fields,
    is_fixed,
    read_many,
    reader,
    struct_of,
    wire_fields,
    writer,
)
from millrace.binlog.types import EventType
from millrace.binlog.values import value

__all__ = [
    "EVENTS",
    "Declaration",
    "DeclaredField",
    "Event",
    "Only",
    "When",
    "abstract_event",
    "body",
    "declared_fields",
    "event",
    "item",
    "post_header",
    "read_structures",
    "structure",
    "wire_fields",
    "write_structures",
]

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


def post_header(*, default: Any = dataclasses.MISSING, **presence: Any) -> Any:
    """Declare a field of the post-header."""
    return dataclasses.field(default=default, metadata={"section": "post-header", **presence})


def body(*, default: Any = dataclasses.MISSING, **presence: Any) -> Any:
    """Declare a field of the body."""
    return dataclasses.field(default=default, metadata={"section": "body", **presence})


def item(*, default: Any = dataclasses.MISSING, **presence: Any) -> Any:
    """Declare a field of a structure that stands inside a field."""
    return dataclasses.field(default=default, metadata={"section": "item", **presence})


def read_structures(
    kind: type[C], count: int, data: bytes, offset: int, end: int
) -> tuple[tuple[C, ...], int]:
    """Read structures whose count stands elsewhere; :func:`write_structures` is the inverse."""
    return read_many(STRUCTURES[kind].read, count, data, offset, end)


def write_structures(structures: Iterable[object]) -> bytes:
    """Write structures one after the other, without their count."""
    return b"".join([STRUCTURES[type(one)].write(one) for one in structures])


def _generated_codec(event_class: type[E], lengths: tuple[int, ...]) -> tuple[DecodeFields, EncodeFields]:
    """Build decoder and encoder, one of each per length of the post-header where the fields depend on it."""
    if len(lengths) == 1 or not any(field.since or field.instead for field in wire_fields(event_class)):
        return _decoder(event_class, lengths[-1]), _encoder(event_class, lengths[-1])
    decoders = {length: _decoder(event_class, length) for length in lengths}
    encoders = {length: _encoder(event_class, length) for length in lengths}

    def decode(data: bytes, offset: int, end: int, post_header_length: int) -> Event:
        return decoders[post_header_length](data, offset, end, post_header_length)

    def encode(value: Event, post_header_length: int) -> bytes:
        return encoders[post_header_length](value, post_header_length)

    return decode, encode


def _encoder(event_class: type[E], post_header_length: int) -> EncodeFields:
    write = writer(event_class, post_header_length)

    def encode(value: Event, _post_header_length: int) -> bytes:
        return write(value)

    return encode


def _decoder(event_class: type[E], post_header_length: int) -> DecodeFields:
    fields = declared_fields(event_class)
    if fields and fields == wire_fields(event_class) and all(is_fixed(field) for field in fields):
        return _fixed_decoder(event_class, fields)
    read = reader(event_class, post_header_length)

    def decode(data: bytes, offset: int, end: int, _post_header_length: int) -> Event:
        if offset + post_header_length > end:
            raise truncated("post-header", post_header_length, offset, end)
        value, offset = read(data, offset, end)
        if offset != end:
            raise TrailingBytesError(f"{end - offset} bytes are left over after the last field")
        return value

    return decode


def _fixed_decoder(event_class: type[E], fields: tuple[DeclaredField, ...]) -> DecodeFields:
    """Build the decoder of an event that consists of fixed integers alone."""
    layout = struct_of(fields)
    unpack, size, names = layout.unpack_from, layout.size, ", ".join(field.name for field in fields)

    def decode(data: bytes, offset: int, end: int, _post_header_length: int) -> Event:
        if end - offset != size:
            if end - offset < size:
                raise truncated(names, size, offset, end)
            raise TrailingBytesError(f"{end - offset - size} bytes are left over after the last field")
        return event_class(*unpack(data, offset))

    return decode


def _post_header_size(declared: type) -> int:
    fields = [field for field in wire_fields(declared) if field.section == "post-header"]
    assert all(map(is_fixed, fields)), "a post-header of other than fixed integers needs post_header_lengths"
    return struct_of(fields).size


@dataclass_transform(frozen_default=True, field_specifiers=(post_header, body))
def abstract_event(declared: type[C]) -> type[C]:
    """Declare fields that several event types share; the class itself is no event type."""
    return value(declared)


@dataclass_transform(frozen_default=True, field_specifiers=(post_header, body))
def event(
    code: int,
    *,
    role: Role,
    post_header_lengths: tuple[int, ...] = (),
    extensible: bool = True,
) -> Callable[[type[E]], type[E]]:
    """Declare the event of a type code; see the module's docstring."""

    def declare(declared: type[E]) -> type[E]:
        event_type = EventType(code)  # its members are written by: make generate
        event_class = value(declared)
        event_class.event_type, event_class.role = event_type, role
        lengths = post_header_lengths or (_post_header_size(event_class),)
        decode: DecodeFields
        encode: EncodeFields
        if event_class.decode_fields.__func__ is Event.decode_fields.__func__:  # type: ignore[attr-defined]  # classmethods carry their function
            decode, encode = _generated_codec(event_class, lengths)
            event_class.decode_fields = staticmethod(decode)  # type: ignore[assignment,method-assign]
            event_class.encode_fields = encode  # type: ignore[assignment,method-assign]
        else:
            decode, encode = event_class.decode_fields, event_class.encode_fields
        fields = declared_fields(event_class)
        EVENTS[event_type] = Declaration(event_type, event_class, fields, lengths, extensible, decode, encode)
        return event_class

    return declare


@dataclass_transform(frozen_default=True, field_specifiers=(item,))
def structure(declared: type[C]) -> type[C]:
    """Declare a structure that stands inside a field of an event.

    A class with ``read`` (static) and ``write`` brings its own layout; else they follow from the fields.
    """
    made = value(declared)
    read: Read = getattr(made, "read", None) or reader(made)
    write: Write = getattr(made, "write", None) or writer(made)
    STRUCTURES[made] = FieldType(made.__name__, "record", read, write, record=made)
    return made

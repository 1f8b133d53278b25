"""Records of ``{source}.events``: the Avro schema BinlogEvent, and the way there and back.

The schema follows from the declarations of :mod:`millrace.binlog.events`: a head that is the same for all
events, and a union with one record per event type, whose fields are the declared ones. ``schemas/avro/
BinlogEvent.avsc`` holds it; ``python -m millrace.avro.events`` writes that file again.

What Avro cannot say as it is:

- an unsigned integer of 64 bits is a long of the same bits: add 2^64 to a negative one;
- a name with bytes that are not UTF-8 has each of them as U+FDD0 and the character of the byte's number, and
  a U+FDD0 of its own doubled.

Encoders and decoders are built once per event class from the same declarations. The bytes are those that any
encoder of Avro gives for the schema; specified in "Binary Encoding" of the Avro specification.
"""

import io
import json
import operator
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import fastavro

from millrace import kernel
from millrace.avro.binary import long
from millrace.avro.plans import event_plans, field_kinds, variable_plans
from millrace.avro.registry import SchemaStore, prefix_size, split_wire_format, value_subject, wire_prefix
from millrace.avro.schemas import NAMESPACE, load_schema, parsed_schema, schema_folder
from millrace.binlog.declaration import DeclaredField, Event, declared_fields
from millrace.binlog.errors import InvalidValueError, TruncatedError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.events import EVENTS, StatusVariables, TableMapEvent, UnknownEvent
from millrace.binlog.fields import FieldType
from millrace.binlog.header import EventHeader
from millrace.binlog.transaction import TransactionEnd, TransactionStep
from millrace.binlog.types import EventType

if TYPE_CHECKING:
    from millrace.kernel.events import EventRecordWriter

__all__ = ["EventDeserializer", "EventRecord", "EventSerializer", "binlog_event_schema", "event_branches"]

SCHEMA_NAME: Final = "BinlogEvent"

# ---------------------------------------------------------------------------------------------- the schema

_AVRO_OF_KIND: Final = {
    "int": "int",
    "long": "long",
    "uint64": "long",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
}


def _event_classes() -> list[type]:
    """List the branches of the union: types that are not known first, then all others by their code."""
    return [UnknownEvent, *(EVENTS[code].event_class for code in sorted(EVENTS))]


def _avro_type(field_type: FieldType, defined: set[str]) -> Any:
    if field_type.kind == "array":
        assert field_type.item is not None
        return {"type": "array", "items": _avro_type(field_type.item, defined)}
    if field_type.kind == "record":
        assert field_type.record is not None
        return _record_schema(field_type.record, defined)
    return _AVRO_OF_KIND[field_type.kind]


def _record_schema(declared: type, defined: set[str]) -> Any:
    """Give the schema of an event or structure; a structure that was given before is named only."""
    name = declared.__name__
    if name in defined:
        return f"{NAMESPACE}.{name}"
    defined.add(name)
    return {
        "type": "record",
        "name": name,
        "namespace": NAMESPACE,
        "doc": _first_paragraph(declared),
        "fields": [_field_schema(field, defined) for field in declared_fields(declared)],
    }


def _field_schema(field: DeclaredField, defined: set[str]) -> dict[str, Any]:
    avro = _avro_type(field.type, defined)
    schema: dict[str, Any] = {"name": field.name, "type": ["null", avro] if field.optional else avro}
    if field.optional:
        schema["default"] = None
    if field.type.kind not in ("record", "array"):
        schema["doc"] = field.type.name
    return schema


def _first_paragraph(declared: type) -> str:
    return " ".join((declared.__doc__ or "").split("\n\n")[0].split())


def _record(name: str, doc: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": NAMESPACE, "doc": doc, "fields": fields}


def _field(name: str, avro: Any, doc: str) -> dict[str, Any]:
    if isinstance(avro, list) and avro[0] == "null":
        return {"name": name, "type": avro, "default": None, "doc": doc}
    return {"name": name, "type": avro, "doc": doc}


def binlog_event_schema() -> dict[str, Any]:
    """Build the schema of BinlogEvent from the declarations."""
    header = [
        _field("timestamp", "long", "Seconds since 1970 at which the statement began on its origin."),
        _field("type_code", "int", "Type of the event, Log_event_type."),
        _field("server_id", "long", "The server on which the event originated."),
        _field("event_size", "long", "Bytes of the event, header and checksum included."),
        _field("next_position", "long", "As the header has it: where the next event starts, or 0."),
        _field("flags", "int", "LOG_EVENT_*_F."),
        _field("extra_headers", "bytes", "What a log with longer headers has after the flags."),
    ]
    context = [
        _field("epoch", "int", "Which of the logs of this name, counted by the reader."),
        _field(
            "transaction", ["null", "string"], "GTID of the transaction, or file:position of its first event."
        ),
        _field("ordinal", "long", "Number of the event in its transaction, from 0."),
        _field("begins", "boolean", "The transaction begins with this event."),
        _field(
            "ends", ["null", "string"], "How the transaction ends with this event: commit, rollback, xa …"
        ),
        _field("xid", ["null", "string"], "Which XA transaction is prepared or decided here."),
        _field("database", ["null", "string"], "Database of the table of a table map or rows event."),
        _field("table", ["null", "string"], "Table of a table map or rows event."),
    ]
    defined: set[str] = set()
    fields = [
        _field("log_file", "string", "Name of the log file."),
        _field("position", "long", "Offset at which the event starts in its file."),
        _field("sub_index", "long", "0, or the number of an event within a transaction payload, from 1."),
        _field("type", "string", "Type of the event by name; UNKNOWN_EVENT where the code is not known."),
        _field("header", _record("EventHeader", "The common header.", header), "The common header."),
        _field("checksum", ["null", "bytes"], "The checksum, 4 bytes as they are; null where there is none."),
        _field("artificial", "boolean", "The event is not in the file in this form."),
        _field("post_header_extra", "bytes", "What a newer server has at the end of the post-header."),
        _field("context", _record("Context", "Where the event stands.", context), "Where the event stands."),
        _field("event", [_record_schema(each, defined) for each in _event_classes()], "The event itself."),
    ]
    return _record(SCHEMA_NAME, "One event of a binary log, decoded.", fields)


# ------------------------------------------------------------------------------------------------- writing

Write = Callable[[Any], bytes]
_NULL: Final = b"\x00"
_SOME: Final = b"\x02"
_SIGN_BIT: Final = 1 << 63
_ESCAPE: Final = "\ufdd0"
_ESCAPED: Final = re.compile(f"{_ESCAPE}(.)", re.DOTALL)
_TO_ESCAPE: Final = re.compile(f"[{_ESCAPE}\udc80-\udcff]")
_CHECKSUM: Final = b"\x02\x08"
"""The branch after null, and a length of 4."""
_CACHED: Final = 4096
_RECURRING: Final = frozenset({StatusVariables})
"""Structures whose values come again and again: what was written and read of them is remembered."""
_pack_double = struct.Struct("<d").pack


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    return _ESCAPE + (_ESCAPE if character == _ESCAPE else chr(ord(character) - 0xDC00))


def _unescape(match: re.Match[str]) -> str:
    character = match.group(1)
    return character if character == _ESCAPE else chr(ord(character) + 0xDC00)


class _Memo(dict[Any, bytes]):
    """What was written of values that come again and again; looked up like a dict, which costs least."""

    __slots__ = ("_write",)

    def __init__(self, write: Write) -> None:
        self._write = write

    def __missing__(self, value: Any) -> bytes:
        if len(self) >= _CACHED:
            self.clear()
        written = self[value] = self._write(value)
        return written


def _write_new_text(value: str) -> bytes:
    data = _TO_ESCAPE.sub(_escape, value).encode()
    return long(len(data)) + data


_texts: Final = _Memo(_write_new_text)
_longs: Final = _Memo(long)
_some_texts: Final = _Memo(lambda value: _SOME + _write_new_text(value))
_write_text: Final[Write] = _texts.__getitem__


def _write_bytes(value: bytes) -> bytes:
    return long(len(value)) + value


def _write_uint64(value: int) -> bytes:
    return long(value if value < _SIGN_BIT else value - (1 << 64))


_WRITE_KIND: Final[dict[str, Write]] = {
    "int": long,
    "long": long,
    "uint64": _write_uint64,
    "double": _pack_double,
    "bytes": _write_bytes,
    "string": _write_text,
}


def _optional_writer(write: Write) -> Write:
    return lambda value: _NULL if value is None else _SOME + write(value)


def _array_writer(write: Write) -> Write:
    def write_array(values: tuple[Any, ...]) -> bytes:
        return long(len(values)) + b"".join(map(write, values)) + b"\x00" if values else b"\x00"

    return write_array


def _type_writer(field_type: FieldType) -> Write:
    if field_type.kind == "array":
        assert field_type.item is not None
        return _array_writer(_type_writer(field_type.item))
    if field_type.kind == "record":
        assert field_type.record is not None
        return _record_writer(field_type.record)
    return _WRITE_KIND[field_type.kind]


@cache
def _record_writer(declared: type) -> Write:
    """Build the function that writes an event or structure: one writer per field, and one join."""
    fields = declared_fields(declared)
    writers = [
        _optional_writer(_type_writer(field.type)) if field.optional else _type_writer(field.type)
        for field in fields
    ]
    if not fields:
        return lambda _value: b""
    if len(fields) == 1:
        get, (write,) = operator.attrgetter(fields[0].name), writers
        return lambda value: write(get(value))
    get_all = operator.attrgetter(*(field.name for field in fields))

    def write_record(value: Any) -> bytes:
        return b"".join([write(part) for write, part in zip(writers, get_all(value), strict=True)])

    return _remembering_writer(write_record) if declared in _RECURRING else write_record


def _remembering_writer(write: Write) -> Write:
    """Remember what was written of each object, by its identity."""
    known: dict[int, tuple[Any, bytes]] = {}

    def write_remembered(value: Any) -> bytes:
        found = known.get(id(value))
        if found is not None and found[0] is value:
            return found[1]
        written = write(value)
        if len(known) >= _CACHED:
            known.clear()
        known[id(value)] = value, written
        return written

    return write_remembered


def _branches() -> dict[type, tuple[bytes, Write]]:
    return {each: (long(index), _record_writer(each)) for index, each in enumerate(_event_classes())}


def event_branches() -> dict[type, int]:
    """Give the number of each event's branch in the union."""
    return {each: index for index, each in enumerate(_event_classes())}


def _type_names() -> list[bytes]:
    """Give, by type code, the fields that stand between sub_index and header: the type's name."""
    names = {int(event_type): event_type.name for event_type in EventType if int(event_type) in EVENTS}
    return [_write_text(names.get(code, EventType.UNKNOWN_EVENT.name)) for code in range(256)]


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
        self._branches = _branches()
        self._type_names = _type_names()

    def compiled(self) -> "EventRecordWriter | None":
        """Give the kernel's writer of the same records, from raw events; None where there is no kernel."""
        if not kernel.has("events"):
            return None
        from millrace.kernel.events import EventRecordWriter  # noqa: PLC0415 - only where it is built

        branches = {event_class: index for event_class, (index, _) in self._branches.items()}
        write_variables = _record_writer(StatusVariables)
        return EventRecordWriter(
            self._prefix,
            lambda log_format: event_plans(log_format, branches, self._type_names),
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
        header, event = decoded.header, decoded.event
        type_code, flags, extra_headers = header.type_code, header.flags, header.extra_headers
        checksum, extra = decoded.checksum, decoded.post_header_extra
        transaction, ends, xid = step.transaction, step.ends, step.xid
        index, write = self._branches[type(event)]
        return b"".join(
            (
                self._prefix,
                _texts[log_file],
                long(position),
                _longs[sub_index],
                self._type_names[type_code],
                _longs[header.timestamp],
                _longs[type_code],
                _longs[header.server_id],
                _longs[header.event_size],
                long(header.next_position),
                _longs[flags],
                _write_bytes(extra_headers) if extra_headers else b"\x00",
                _NULL if checksum is None else _CHECKSUM + checksum,
                b"\x01" if artificial else b"\x00",
                _write_bytes(extra) if extra else b"\x00",
                _longs[epoch],
                _NULL if transaction is None else _some_texts[transaction],
                _longs[step.ordinal],
                b"\x01" if step.begins else b"\x00",
                _NULL if ends is None else _some_texts[ends.value],
                _NULL if xid is None else _some_texts[xid],
                b"\x00\x00" if table is None else _some_texts[table[0]] + _some_texts[table[1]],
                index,
                write(event),
            )
        )

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
        """Give what stands before and after the ``size`` bytes of a field that is too large to be held.

        ``field`` is the :attr:`Event.rest_field` of the event; ``place`` are epoch, log file, position and
        sub_index.
        """
        event = replace(decoded.event, **{field: b""})  # type: ignore[type-var]  # every event is a dataclass
        whole = self(replace(decoded, event=event), *place, step, table)
        behind = _written_behind(type(event), field, event)
        return whole[: len(whole) - len(behind) - len(_EMPTY)] + long(size), behind


_EMPTY: Final = _write_bytes(b"")


def _written_behind(declared: type, name: str, event: Event) -> bytes:
    """Write the fields of an event that stand after one of them."""
    fields = declared_fields(declared)
    at = [field.name for field in fields].index(name)
    parts = []
    for field in fields[at + 1 :]:
        write = _type_writer(field.type)
        parts.append((_optional_writer(write) if field.optional else write)(getattr(event, field.name)))
    return b"".join(parts)


# ------------------------------------------------------------------------------------------------- reading

Read = Callable[[bytes, int], tuple[Any, int]]


def _read_long(data: bytes, offset: int) -> tuple[int, int]:
    byte = data[offset]
    offset += 1
    if byte < 128:
        return byte >> 1 ^ -(byte & 1), offset
    number, shift = byte & 127, 7
    while True:
        byte = data[offset]
        offset += 1
        if byte < 128:
            number |= byte << shift
            return number >> 1 ^ -(number & 1), offset
        number |= (byte & 127) << shift
        shift += 7


def _read_uint64(data: bytes, offset: int) -> tuple[int, int]:
    value, offset = _read_long(data, offset)
    return value if value >= 0 else value + (1 << 64), offset


def _read_bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    size, offset = _read_long(data, offset)
    after = offset + size
    if size < 0 or after > len(data):
        raise TruncatedError(f"a value of {size} bytes at offset {offset} of a record of {len(data)}")
    return data[offset:after], after


_read_names: dict[bytes, str] = {}


def _read_text(data: bytes, offset: int) -> tuple[str, int]:
    raw, offset = _read_bytes(data, offset)
    return _text_of(raw), offset


def _text_of(raw: bytes) -> str:
    text = _read_names.get(raw)
    if text is None:
        text = raw.decode()
        if _ESCAPE in text:
            text = _ESCAPED.sub(_unescape, text)
        if len(_read_names) >= _CACHED:
            _read_names.clear()
        _read_names[raw] = text
    return text


def _read_double(data: bytes, offset: int) -> tuple[float, int]:
    value: float = struct.unpack_from("<d", data, offset)[0]
    return value, offset + 8


_READ_KIND: Final[dict[str, Read]] = {
    "int": _read_long,
    "long": _read_long,
    "uint64": _read_uint64,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_text,
}


def _optional_reader(read: Read) -> Read:
    def read_optional(data: bytes, offset: int) -> tuple[Any, int]:
        if data[offset] == 0:
            return None, offset + 1
        return read(data, offset + 1)

    return read_optional


def _array_reader(read: Read) -> Read:
    def read_array(data: bytes, offset: int) -> tuple[tuple[Any, ...], int]:
        values: list[Any] = []
        while True:
            count, offset = _read_long(data, offset)
            if count == 0:
                return tuple(values), offset
            if count < 0:
                count = -count
                _, offset = _read_long(data, offset)
            for _ in range(count):
                value, offset = read(data, offset)
                values.append(value)

    return read_array


def _type_reader(field_type: FieldType) -> Read:
    if field_type.kind == "array":
        assert field_type.item is not None
        return _array_reader(_type_reader(field_type.item))
    if field_type.kind == "record":
        assert field_type.record is not None
        return _record_reader(field_type.record)
    return _READ_KIND[field_type.kind]


@cache
def _record_reader(declared: type) -> Read:
    """Build the function that reads an event or structure: one reader per field."""
    readers = [(_type_reader(field.type), field.optional) for field in declared_fields(declared)]

    def read_record(data: bytes, offset: int) -> tuple[Any, int]:
        values: list[Any] = []
        for read, optional in readers:
            if optional:
                offset += 1
                if data[offset - 1] == 0:
                    values.append(None)
                    continue
            value, offset = read(data, offset)
            values.append(value)
        return declared(*values), offset

    return _remembering_reader(read_record) if declared in _RECURRING else read_record


def _remembering_reader(read: Read) -> Read:
    """Remember the last few values read, by their bytes; these tell where they end by themselves."""
    known: list[tuple[bytes, Any]] = []

    def read_remembered(data: bytes, offset: int) -> tuple[Any, int]:
        for written, value in known:
            if data.startswith(written, offset):
                return value, offset + len(written)
        value, after = read(data, offset)
        known.insert(0, (data[offset:after], value))
        del known[8:]
        return value, after

    return read_remembered


_VARINT: Final = rb"[\x80-\xff]*[\x00-\x7f]"
_PLACE: Final = re.compile(rb"(V)(V)([\x00-\x7f])".replace(b"V", _VARINT))
"""Position, sub_index, and the size of the type's name."""
_HEADER: Final = re.compile(
    (
        rb"(V)(V)(V)(V)(V)(V)\x00(?:\x00|\x02\x08([\x00-\xff]{4}))"
        rb"([\x00\x01])\x00(V)(?:\x00|\x02([\x00-\x7f]))"
    ).replace(b"V", _VARINT)
)
"""The header's six numbers, no extra headers; checksum, artificial, nothing in post_header_extra; then the
context's epoch and the size of the transaction's id."""
_REST: Final = re.compile(rb"(V)([\x00\x01])\x00\x00\x00\x00".replace(b"V", _VARINT))
"""Ordinal, begins, and neither end nor XID nor table."""


class EventRecord:
    """A record of the events topic.

    What tells where the event stands is read at once; header and event when they are asked for, so that
    whoever needs only some types does not pay for the others. Attributes are not to be changed.
    """

    __slots__ = (
        "_data",
        "_event",
        "_header",
        "_numbers",
        "_offset",
        "_position",
        "_readers",
        "artificial",
        "begins",
        "checksum",
        "database",
        "ends",
        "epoch",
        "log_file",
        "ordinal",
        "post_header_extra",
        "sub_index",
        "table",
        "transaction",
        "type_code",
        "xid",
    )

    log_file: str
    sub_index: int
    type_code: int
    checksum: bytes | None
    artificial: bool
    post_header_extra: bytes
    epoch: int
    transaction: str | None
    ordinal: int
    begins: bool
    ends: TransactionEnd | None
    xid: str | None
    database: str | None
    table: str | None

    def __init__(self, data: bytes, offset: int, readers: list[Read]) -> None:
        self._data = data
        self._readers = readers
        self._header: EventHeader | None = None
        self._event: Event | None = None
        try:
            self.log_file, offset = _read_text(data, offset)
            place = _PLACE.match(data, offset)
            if place is None:
                raise InvalidValueError("not a record of BinlogEvent: it ends in mid-head")
            self._position, sub_index, size = place.groups()
            self.sub_index = _long_of(sub_index)
            offset = place.end() + (size[0] >> 1)
            header = _HEADER.match(data, offset)
            if header is None:
                offset = self._read_unusual_header(offset)
            else:
                *self._numbers, self.checksum, artificial, epoch, transaction_size = header.groups()
                self.type_code = _long_of(self._numbers[1])
                self.artificial = artificial == b"\x01"
                self.post_header_extra = b""
                self.epoch = _long_of(epoch)
                offset = header.end()
                self.transaction = None
                if transaction_size is not None:
                    self.transaction, offset = _read_text(data, offset - 1)
            self._read_rest(offset)
        except (IndexError, KeyError, UnicodeDecodeError) as error:
            raise _no_record(error) from error

    def _read_unusual_header(self, offset: int) -> int:
        """Read header to transaction where something seldom is there."""
        data = self._data
        timestamp, offset = _read_long(data, offset)
        self.type_code, offset = _read_long(data, offset)
        server_id, offset = _read_long(data, offset)
        event_size, offset = _read_long(data, offset)
        next_position, offset = _read_long(data, offset)
        flags, offset = _read_long(data, offset)
        extra_headers, offset = _read_bytes(data, offset)
        self._header = EventHeader(
            timestamp, self.type_code, server_id, event_size, next_position, flags, extra_headers
        )
        self.checksum, offset = _read_optional_bytes(data, offset)
        self.artificial = data[offset] == 1
        self.post_header_extra, offset = _read_bytes(data, offset + 1)
        self.epoch, offset = _read_long(data, offset)
        self.transaction, offset = _read_optional_text(data, offset)
        return offset

    def _read_rest(self, offset: int) -> None:
        """Read what is after the transaction's id."""
        data = self._data
        rest = _REST.match(data, offset)
        if rest is not None:
            self.ordinal = _long_of(rest[1])
            self.begins = rest[2] == b"\x01"
            self.ends = self.xid = self.database = self.table = None
            self._offset = rest.end()
            return
        self.ordinal, offset = _read_long(data, offset)
        self.begins = data[offset] == 1
        ends, offset = _read_optional_text(data, offset + 1)
        self.ends = None if ends is None else _ENDS[ends]
        self.xid, offset = _read_optional_text(data, offset)
        self.database, offset = _read_optional_text(data, offset)
        self.table, self._offset = _read_optional_text(data, offset)

    @property
    def position(self) -> int:
        """Offset at which the event starts in its file."""
        return _long_of(self._position)

    @property
    def timestamp(self) -> int:
        """The header's timestamp, without reading the rest of the header."""
        return _long_of(self._numbers[0]) if self._header is None else self._header.timestamp

    @property
    def server_id(self) -> int:
        """The header's server_id, without reading the rest of the header."""
        return _long_of(self._numbers[2]) if self._header is None else self._header.server_id

    @property
    def header(self) -> EventHeader:
        """The common header."""
        header = self._header
        if header is None:
            timestamp, type_code, server_id, event_size, next_position, flags = map(_long_of, self._numbers)
            header = EventHeader(timestamp, type_code, server_id, event_size, next_position, flags)
            self._header = header
        return header

    @property
    def event(self) -> Event:
        """The typed event. Raises InvalidValueError where the record is damaged."""
        event = self._event
        if event is not None:
            return event
        data, offset = self._data, self._offset
        if self.type_code not in _REPEATED or len(data) - offset > _REPEATED_SIZE:
            event = self._event = self._read_event(data, offset)
            return event
        data = data[offset:]
        event = _repeated.get(data)
        if event is None:
            event = self._read_event(data, 0)
            if len(_repeated) >= _CACHED:
                _repeated.clear()
            _repeated[data] = event
        self._event = event
        return event

    def _read_event(self, data: bytes, offset: int) -> Event:
        try:
            index, offset = _read_long(data, offset)
            event: Event
            event, offset = self._readers[index](data, offset)
        except (IndexError, UnicodeDecodeError, struct.error) as error:
            raise _no_record(error) from error
        if offset != len(data):
            raise InvalidValueError(f"{len(data) - offset} bytes are left over after the event")
        return event

    def beginning(self) -> tuple[int, int] | None:
        """Read the event of a record of which the end is missing; its :attr:`Event.rest_field` is cut.

        Return offset and size of that field in the record; None where the event has no such field.
        """
        data, offset = self._data, self._offset
        index, offset = _read_long(data, offset)
        declared = _event_classes()[index]
        values: list[Any] = []
        for field in declared_fields(declared):
            if field.name == getattr(declared, "rest_field", None):
                size, offset = _read_long(data, offset)
                self._event = declared(*values, data[offset : offset + size])
                return offset, size
            read = _type_reader(field.type)
            value, offset = (_optional_reader(read) if field.optional else read)(data, offset)
            values.append(value)
        return None

    @property
    def decoded(self) -> BinlogEvent:
        """The event as the codec has it; encoded, it gives the bytes of the log."""
        return BinlogEvent(self.header, self.event, self.checksum, self.post_header_extra)


_small_longs: Final = {long(value): value for value in range(-_CACHED // 2, _CACHED)}


def _long_of(varint: bytes) -> int:
    value = _small_longs.get(varint)
    return _read_long(varint, 0)[0] if value is None else value


_REPEATED: Final = frozenset({EventType.TABLE_MAP_EVENT, EventType.QUERY_EVENT})
_REPEATED_SIZE: Final = 512
_repeated: dict[bytes, Event] = {}
"""Small events that come again and again with the same bytes: table maps, BEGIN."""

_read_optional_bytes = _optional_reader(_read_bytes)
_read_optional_text = _optional_reader(_read_text)
_ENDS: Final = {each.value: each for each in TransactionEnd}


def _head_reader() -> "Callable[[bytes, int], EventRecord]":
    """Give the function that reads the record at an offset: the kernel's where there is one."""
    readers = [_record_reader(each) for each in _event_classes()]

    def read(data: bytes, offset: int) -> EventRecord:
        return EventRecord(data, offset, readers)

    if not kernel.has("events"):
        return read
    from millrace.kernel.events import HeadReader, RecordReader  # noqa: PLC0415 - only where it is built

    return HeadReader(
        read,
        [RecordReader(each, *field_kinds(each, _type_reader), _text_of) for each in _event_classes()],
        _text_of,
        _ENDS,
        _REPEATED,
        EventHeader,
        BinlogEvent,
    )


class EventDeserializer:
    """Reads the value of a record of the events topic.

    With a registry, values carry a schema id; records that another version of the schema wrote are brought
    into the form of this one first. Without a registry, they are bare records of this schema.
    """

    def __init__(self, registry: SchemaStore | None = None) -> None:
        self._registry = registry
        self._read = _head_reader()
        self._writers: dict[bytes, Any] = {}  # by prefix; None for our own schema
        self._ours: bytes | None = None  # the prefix of our own schema that came last

    @property
    def prefix(self) -> bytes | None:
        """What stands in front of records of our own schema; None as long as none of them was read."""
        return b"" if self._registry is None else self._ours

    def __call__(self, value: bytes) -> EventRecord:
        """Read one record; raises InvalidValueError where it is none."""
        prefix = value[: prefix_size(value)]
        if prefix == self._ours:
            return self._read(value, len(prefix))
        if self._registry is None:
            return self._read(value, 0)
        if prefix not in self._writers:
            schema_id, _ = split_wire_format(value)
            self._writers[prefix] = self._other_schema(self._registry.schema(schema_id))
        writer = self._writers[prefix]
        if writer is None:
            self._ours = prefix
            return self._read(value, len(prefix))
        return self._other_version(value, writer)

    def beginning(self, value: bytes) -> tuple[EventRecord, int, int] | None:
        """Read a record from its first bytes; of the event, whose last field is cut, offset and size.

        None where that cannot be: the event has no field that takes the rest, or another version of the
        schema wrote the record.
        """
        offset = 0
        if self._registry is not None:
            schema_id, body = split_wire_format(value)
            offset = len(value) - len(body)
            if self._other_schema(self._registry.schema(schema_id)) is not None:
                return None
        record = EventRecord(value, offset, [])
        try:
            field = record.beginning()
        except (IndexError, TruncatedError):
            return None  # more than that field is missing
        return None if field is None else (record, *field)

    def _other_schema(self, schema: dict[str, Any]) -> Any:
        """Parse a schema once for all of its records; None if it is ours."""
        parsing_form = fastavro.schema.to_parsing_canonical_form
        ours = parsing_form(schema) == parsing_form(load_schema(SCHEMA_NAME))
        return None if ours else fastavro.parse_schema(schema)

    def _other_version(self, value: bytes, writer: Any) -> EventRecord:
        """Read by the writer's schema, write by ours, and read that."""
        reader = parsed_schema(SCHEMA_NAME)
        stream = io.BytesIO(value)
        stream.seek(prefix_size(value))
        try:
            record = fastavro.schemaless_reader(stream, writer, reader, return_record_name=True)
        except (EOFError, IndexError, UnicodeDecodeError) as error:
            raise _no_record(error) from error
        out = io.BytesIO()
        fastavro.schemaless_writer(out, reader, record)
        return self._read(out.getvalue(), 0)


def _no_record(error: Exception) -> InvalidValueError:
    """Word what reading a damaged record has raised."""
    text = str(error) if isinstance(error, UnicodeDecodeError) else "it is cut or damaged"
    return InvalidValueError(f"not a record of BinlogEvent: {text}")


def main() -> None:
    """Write ``schemas/avro/BinlogEvent.avsc`` from the declarations."""
    path = Path(str(schema_folder())) / f"{SCHEMA_NAME}.avsc"
    path.write_text(json.dumps(binlog_event_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

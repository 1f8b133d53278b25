"""From records of the events topic back to typed events: :class:`EventDeserializer`."""

import io
import re
import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final

import fastavro

from millrace import kernel
from millrace.avro.events.schema import HEAD, SCHEMA_NAME, HeadField, by_kind, event_classes
from millrace.avro.events.writing import ESCAPE, RECURRING_SIZE
from millrace.avro.plans import field_kinds
from millrace.avro.registry import SchemaStore, UnknownSchemaError, full_name, prefix_size, split_wire_format
from millrace.avro.schemas import NAMESPACE, load_schema, parsed_schema
from millrace.binlog.declaration import DeclaredField, Event, declared_fields
from millrace.binlog.errors import InvalidValueError, TruncatedError
from millrace.binlog.event_codec import BinlogEvent
from millrace.binlog.fields import FieldType
from millrace.binlog.header import EventHeader
from millrace.binlog.transaction import TransactionEnd
from millrace.binlog.types import EventType
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.text import printable

Read = Callable[[bytes, int], tuple[Any, int]]
_ESCAPED: Final = re.compile(f"{ESCAPE}(.)", re.DOTALL)


def _unescape(match: re.Match[str]) -> str:
    character = match.group(1)
    return character if character == ESCAPE else chr(ord(character) + 0xDC00)


def _read_long(data: bytes, offset: int) -> tuple[int, int]:
    byte = data[offset]
    if byte < 128:
        return byte >> 1 ^ -(byte & 1), offset + 1
    number = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number >> 1 ^ -(number & 1), offset
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


def _read_text(data: bytes, offset: int) -> tuple[str, int]:
    raw, offset = _read_bytes(data, offset)
    return _text_of(raw), offset


def _decode_text(raw: bytes) -> str:
    return _ESCAPED.sub(_unescape, raw.decode())


_decode_name: Final = lru_cache(maxsize=4096)(_decode_text)


def _text_of(raw: bytes) -> str:
    return _decode_name(raw) if len(raw) <= RECURRING_SIZE else _decode_text(raw)


_READ_KIND: Final[dict[str, Read]] = {
    "boolean": lambda data, offset: (data[offset] == 1, offset + 1),
    "int": _read_long,
    "long": _read_long,
    "uint64": _read_uint64,
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
    return by_kind(field_type, _READ_KIND.__getitem__, _array_reader, _record_reader)


def _field_reader(field: DeclaredField) -> Read:
    read = _type_reader(field.type)
    return _optional_reader(read) if field.optional else read


@cache
def _record_reader(declared: type) -> Read:
    """Build the function that reads an event or structure: one reader per field."""
    readers = [_field_reader(field) for field in declared_fields(declared)]

    def read_record(data: bytes, offset: int) -> tuple[Any, int]:
        values, offset = _read_all(readers, data, offset)
        return declared(*values), offset

    return read_record


def _read_all(readers: list[Read], data: bytes, offset: int) -> tuple[list[Any], int]:
    values = []
    for read in readers:
        value, offset = read(data, offset)
        values.append(value)
    return values, offset


def _head_reader(field: HeadField) -> Read:
    # The type's name follows from its code, and is stepped over.
    read = _read_bytes if field.name == "type" else _READ_KIND[field.kind]
    return _optional_reader(read) if field.optional else read


_HEAD: Final = [_head_reader(field) for field in HEAD]


_EVENT_CLASSES: Final = event_classes()
_ENDS: Final = {each.value: each for each in TransactionEnd}


_REPEATED: Final = frozenset({EventType.TABLE_MAP_EVENT, EventType.QUERY_EVENT})
"""Events that come again and again with the same bytes, where they are small: table maps, BEGIN."""


def _read_event(data: bytes) -> Event:
    try:
        index, offset = _read_long(data, 0)
        event: Event
        event, offset = _record_reader(_EVENT_CLASSES[index])(data, offset)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise _no_record(error) from error
    if offset != len(data):
        raise InvalidValueError(f"{len(data) - offset} bytes are left over after the event")
    return event


_read_recurring: Final = lru_cache(maxsize=4096)(_read_event)


class EventRecord:
    """A record of the events topic.

    The head is read at once, the event when it is asked for, so that whoever needs only some types does not
    pay for the others. Attributes are not to be changed.
    """

    log_file: str
    position: int
    sub_index: int
    timestamp: int
    type_code: int
    server_id: int
    checksum: bytes | None
    artificial: bool
    post_header_extra: bytes
    epoch: int
    transaction: str | None
    ordinal: int
    begins: bool
    xid: str | None
    database: str | None
    table: str | None

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._event: Event | None = None
        try:
            head, self._offset = _read_all(_HEAD, data, offset)
            (
                self.log_file,
                self.position,
                self.sub_index,
                _,
                *header,
                self.checksum,
                self.artificial,
                self.post_header_extra,
                self.epoch,
                self.transaction,
                self.ordinal,
                self.begins,
                ends,
                self.xid,
                self.database,
                self.table,
            ) = head
            self.ends = None if ends is None else _ENDS[ends]
        except IndexError as error:
            raise InvalidValueError("not a record of BinlogEvent: it ends in mid-head") from error
        except (KeyError, UnicodeDecodeError) as error:
            raise _no_record(error) from error
        self.timestamp, self.type_code, self.server_id = header[:3]
        self.header = EventHeader(*header)

    @property
    def event(self) -> Event:
        """The typed event. Raises InvalidValueError where the record is damaged."""
        if self._event is None:
            data = self._data[self._offset :]
            recurring = self.type_code in _REPEATED and len(data) <= RECURRING_SIZE
            self._event = _read_recurring(data) if recurring else _read_event(data)
        return self._event

    def beginning(self) -> tuple[int, int] | None:
        """Read the event of a record whose end is missing; its :attr:`Event.rest_field` is cut.

        Return offset and size of that field in the record; None where the event has no such field.
        """
        index, offset = _read_long(self._data, self._offset)
        declared = _EVENT_CLASSES[index]
        values: list[Any] = []
        for field in declared_fields(declared):
            if field.name == getattr(declared, "rest_field", None):
                size, offset = _read_long(self._data, offset)
                self._event = declared(*values, self._data[offset : offset + size])
                return offset, size
            value, offset = _field_reader(field)(self._data, offset)
            values.append(value)
        return None

    @property
    def decoded(self) -> BinlogEvent:
        """The event as the codec has it; encoded, it gives the bytes of the log."""
        return BinlogEvent(self.header, self.event, self.checksum, self.post_header_extra)


def _record_opener() -> "Callable[[bytes, int], EventRecord]":
    """Return the function that reads the record at an offset: the kernel's where there is one."""
    if not kernel.has("event_records"):
        return EventRecord
    from millrace.kernel.event_records import HeadReader, RecordReader  # noqa: PLC0415 - only where it is built

    return HeadReader(
        EventRecord,
        [RecordReader(each, *field_kinds(each, _type_reader), _text_of) for each in _EVENT_CLASSES],
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
        self._read = _record_opener()
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
            self._writers[prefix] = self._other_schema(self._schema(schema_id))
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
            if self._other_schema(self._schema(schema_id)) is not None:
                return None
        record = EventRecord(value, offset)
        try:
            field = record.beginning()
        except (IndexError, TruncatedError):
            return None  # more than that field is missing
        return None if field is None else (record, *field)

    def _schema(self, schema_id: int) -> dict[str, Any]:
        """Ask for the schema of events; raises UserError where it is lost."""
        assert self._registry is not None
        try:
            return self._registry.schema(schema_id)
        except UnknownSchemaError as error:
            raise UserError(
                f"{error.message}: events were written by it. 'millrace reprocess' writes them again",
                ExitCode.DATA,
            ) from error

    def _other_schema(self, schema: dict[str, Any]) -> Any:
        """Parse a schema once for all of its records; None if it is ours."""
        name = full_name(schema)
        if name != f"{NAMESPACE}.{SCHEMA_NAME}":
            raise UserError(
                f"the schema that an event names is {printable(name)}, not {NAMESPACE}.{SCHEMA_NAME}: the "
                "registry has given its id to another one. 'millrace reprocess' writes the events again",
                ExitCode.DATA,
            )
        return None if _canonical_form(schema) == _our_form() else fastavro.parse_schema(schema)

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


_canonical_form: Final = fastavro.schema.to_parsing_canonical_form


@cache
def _our_form() -> str:
    return str(_canonical_form(load_schema(SCHEMA_NAME)))


def _no_record(error: Exception) -> InvalidValueError:
    """Word what reading a damaged record has raised."""
    text = str(error) if isinstance(error, UnicodeDecodeError) else "it is cut or damaged"
    return InvalidValueError(f"not a record of BinlogEvent: {text}")

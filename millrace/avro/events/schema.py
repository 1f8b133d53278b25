"""The schema of BinlogEvent, and its head, which determines writing and reading as well."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from millrace.avro.schemas import NAMESPACE
from millrace.binlog.declaration import DeclaredField, declared_fields
from millrace.binlog.events import EVENTS, UnknownEvent
from millrace.binlog.fields import FieldType, Kind

T = TypeVar("T")

SCHEMA_NAME: Final = "BinlogEvent"


@dataclass(frozen=True, slots=True)
class HeadField:
    """A field in front of the event; ``record`` is the part of the head in which it stands."""

    name: str
    kind: str
    doc: str
    record: str = ""
    optional: bool = False


HEAD: Final = (
    HeadField("log_file", "string", "Name of the log file."),
    HeadField("position", "long", "Offset at which the event starts in its file."),
    HeadField("sub_index", "long", "0, or the number of an event within a transaction payload, from 1."),
    HeadField("type", "string", "Type of the event by name; UNKNOWN_EVENT where the code is not known."),
    HeadField(
        "timestamp", "long", "Seconds since 1970 at which the statement began on its origin.", "header"
    ),
    HeadField("type_code", "int", "Type of the event, Log_event_type.", "header"),
    HeadField("server_id", "long", "The server on which the event originated.", "header"),
    HeadField("event_size", "long", "Bytes of the event, header and checksum included.", "header"),
    HeadField("next_position", "long", "As the header has it: where the next event starts, or 0.", "header"),
    HeadField("flags", "int", "LOG_EVENT_*_F.", "header"),
    HeadField("extra_headers", "bytes", "What a log with longer headers has after the flags.", "header"),
    HeadField(
        "checksum", "bytes", "The checksum, 4 bytes as they are; null where there is none.", optional=True
    ),
    HeadField("artificial", "boolean", "The event is not in the file in this form."),
    HeadField("post_header_extra", "bytes", "What a newer server has at the end of the post-header."),
    HeadField("epoch", "int", "Which of the logs of this name, counted by the reader.", "context"),
    HeadField(
        "transaction",
        "string",
        "GTID of the transaction, or file:position of its first event.",
        "context",
        optional=True,
    ),
    HeadField("ordinal", "long", "Number of the event in its transaction, from 0.", "context"),
    HeadField("begins", "boolean", "The transaction begins with this event.", "context"),
    HeadField(
        "ends",
        "string",
        "How the transaction ends with this event: commit, rollback, xa …",
        "context",
        optional=True,
    ),
    HeadField("xid", "string", "Which XA transaction is prepared or decided here.", "context", optional=True),
    HeadField(
        "database", "string", "Database of the table of a table map or rows event.", "context", optional=True
    ),
    HeadField("table", "string", "Table of a table map or rows event.", "context", optional=True),
)
"""What stands in front of each event, in its order."""

_RECORDS: Final = {
    "header": ("EventHeader", "The common header."),
    "context": ("Context", "Where the event stands."),
}


def event_classes() -> list[type]:
    """List the branches of the union: types that are not known first, then all others by their code."""
    return [UnknownEvent, *(EVENTS[code].event_class for code in sorted(EVENTS))]


def event_branches() -> dict[type, int]:
    """Return the number of each event's branch in the union."""
    return {each: index for index, each in enumerate(event_classes())}


def binlog_event_schema() -> dict[str, Any]:
    """Build the schema of BinlogEvent from the declarations."""
    fields = []
    for record, group in itertools.groupby(HEAD, lambda field: field.record):
        own = [_field(field.name, field.kind, field.doc, optional=field.optional) for field in group]
        if record:
            name, doc = _RECORDS[record]
            own = [_field(record, _record(name, doc, own), doc)]
        fields += own
    defined: set[str] = set()
    branches = [_record_schema(each, defined) for each in event_classes()]
    fields.append(_field("event", branches, "The event itself."))
    return _record(SCHEMA_NAME, "One event of a binary log, decoded.", fields)


def _record(name: str, doc: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": NAMESPACE, "doc": doc, "fields": fields}


def _field(name: str, avro: Any, doc: str, *, optional: bool = False) -> dict[str, Any]:
    default = {"default": None} if optional else {}
    return {"name": name, "type": ["null", avro] if optional else avro, **default, "doc": doc}


def by_kind(
    field_type: FieldType, plain: Callable[[Kind], T], array: Callable[[T], T], record: Callable[[type], T]
) -> T:
    """Make something of a field's kind, of what is made of a list's items, or of a structure."""
    if field_type.item is not None:
        return array(by_kind(field_type.item, plain, array, record))
    if field_type.record is not None:
        return record(field_type.record)
    return plain(field_type.kind)


def _record_schema(declared: type, defined: set[str]) -> Any:
    """Return the schema of an event or structure; a structure that was given before is named only."""
    name = declared.__name__
    if name in defined:
        return f"{NAMESPACE}.{name}"
    defined.add(name)
    doc = " ".join((declared.__doc__ or "").split("\n\n")[0].split())
    return _record(name, doc, [_field_schema(field, defined) for field in declared_fields(declared)])


def _field_schema(field: DeclaredField, defined: set[str]) -> dict[str, Any]:
    avro = by_kind(
        field.type,
        lambda kind: "long" if kind == "uint64" else kind,
        lambda items: {"type": "array", "items": items},
        lambda declared: _record_schema(declared, defined),
    )
    schema: dict[str, Any] = {"name": field.name, "type": ["null", avro] if field.optional else avro}
    if field.optional:
        schema["default"] = None
    if field.type.kind not in ("record", "array"):
        schema["doc"] = field.type.name
    return schema

"""Writes ``docs/events.md`` from the declarations of the events: ``python docs/events.py``."""  # noqa: INP001 - a script

from collections.abc import Iterator
from pathlib import Path

from millrace.binlog.declaration import DeclaredField, declared_fields
from millrace.binlog.events import EVENTS
from millrace.binlog.fields import FieldType
from millrace.binlog.types import EventType

__all__ = ["events_page"]

_HEAD = """\
# Events

Every event type that Millrace decodes, with its fields in wire order. This page is generated from the
declarations in `millrace/binlog/events/`; to change it, change them and run `python docs/events.py`.

A type is the wire's own: `uint32` is four bytes, little-endian; `lenenc` is MySQL's length-encoded integer;
`text<uint8>` is text behind its length in one byte; `text NUL` ends with a zero byte; `…` stands for any
number of items. "?" marks a field that an event may lack; it is null then. Texts are names in UTF-8; bytes
are kept as they are. The class of an event is found in `millrace.binlog.events`; the record in
`schemas/avro/BinlogEvent.avsc` has the same name and fields.

An event type that is not listed here is kept with its bytes, as `UnknownEvent`.
"""


def events_page() -> str:
    """Write the whole page."""
    structures: dict[str, type] = {}
    parts = [_HEAD, "| code | type | class |\n| ---: | --- | --- |"]
    for code in sorted(EVENTS):
        name = EVENTS[code].event_class.__name__
        parts.append(f"| {code} | {EventType(code).name} | [{name}](#{name.lower()}) |")
    parts.append("")
    for code in sorted(EVENTS):
        declaration = EVENTS[code]
        parts += _section(declaration.event_class, f"{EventType(code).name}, {code}", declaration.fields)
        for field in declaration.fields:
            _collect(field.type, structures)
    parts.append("## Structures\n\nWhat stands inside the fields above.\n")
    for name in sorted(structures):
        parts += _section(structures[name], "", declared_fields(structures[name]), level=3)
    return "\n".join(parts).rstrip() + "\n"


def _section(
    declared: type, kind: str, fields: tuple[DeclaredField, ...], *, level: int = 2
) -> Iterator[str]:
    yield f"{'#' * level} {declared.__name__}\n"
    if kind:
        yield f"*{kind}*\n"
    yield "\n\n".join(_plain(paragraph) for paragraph in (declared.__doc__ or "").split("\n\n")) + "\n"
    if not fields:
        return
    post_header = [field for field in fields if field.section == "post-header"]
    rest = [field for field in fields if field.section != "post-header"]
    yield "| field | type | part |\n| --- | --- | --- |"
    for field in post_header + rest:
        part = "" if field.section == "item" else field.section
        yield f"| {field.name} | {_type_name(field.type)}{'?' if field.optional else ''} | {part} |"
    yield ""


def _plain(paragraph: str) -> str:
    return " ".join(paragraph.split()).replace("``", "`")


def _type_name(field_type: FieldType) -> str:
    name = field_type.name.replace("<", "&lt;").replace(">", "&gt;")
    item = field_type.item or field_type
    if item.record is None:
        return name
    return f"[{name}](#{item.record.__name__.lower()})"


def _collect(field_type: FieldType, structures: dict[str, type]) -> None:
    if field_type.item is not None:
        _collect(field_type.item, structures)
    if field_type.record is not None and field_type.record.__name__ not in structures:
        structures[field_type.record.__name__] = field_type.record
        for field in declared_fields(field_type.record):
            _collect(field.type, structures)


if __name__ == "__main__":
    Path(__file__).with_name("events.md").write_text(events_page(), encoding="utf-8")

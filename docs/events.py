"""The tables of ``docs/events.md``, from the declarations of the events: see ``generate.py``."""  # noqa: INP001 - a script

import sys
from collections.abc import Iterator
from pathlib import Path

from millrace.binlog.declaration import DeclaredField, Event, declared_fields, wire_fields
from millrace.binlog.events import EVENTS
from millrace.binlog.fields import FieldType
from millrace.binlog.types import EventType

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the tests are, which hold the vectors

from tests.unit.binlog.cases import CASES, SOURCES

__all__ = ["events_text"]


def events_text() -> str:
    """Write the list of types, a section for each, and one for each structure inside their fields."""
    structures: dict[str, type] = {}
    shown: dict[str, str] = {}
    parts = ["| code | type | class | role |\n| ---: | --- | --- | --- |"]
    for code in sorted(EVENTS):
        event_class = EVENTS[code].event_class
        name, role = event_class.__name__, event_class.role.name
        parts.append(f"| {code} | {EventType(code).name} | [{name}](#{name.lower()}) | {role} |")
    parts.append("")
    for code in sorted(EVENTS):
        declaration = EVENTS[code]
        parts += _section(declaration.event_class, f"{EventType(code).name}, {code}", shown)
        parts.append(_vectors(code))
        for field in declaration.fields:
            _collect(field.type, structures)
    parts.append("## Structures\n\nWhat stands inside the fields above.\n")
    for name in sorted(structures):
        parts += _section(structures[name], "", shown, level=3)
    return "\n".join(parts).rstrip()


def _servers(code: int) -> list[str]:
    """List the servers that wrote the vectors of a type, each version once."""
    event_class = EVENTS[code].event_class  # not its code: previews of MySQL 5.1 have others
    wrote = {
        case.server.split(" ")[0]
        for case in CASES
        if isinstance(case.event, event_class) and not case.by_hand
    }
    return sorted(wrote, key=lambda version: ("Maria" in version, _numbers(version)))


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split("-", maxsplit=1)[0].split(".")]


def _vectors(code: int) -> str:
    """Say where the bytes come from with which the tests prove a type."""
    said = []
    if servers := _servers(code):
        said.append(f"Tested with the bytes of {', '.join(servers)}.")
    if code in SOURCES:
        first, second = SOURCES[code]
        said.append(f"Tested with bytes made by hand, from {first} and from {second}.")
    if not said:
        raise SystemExit(f"error: {EventType(code).name} has no vector in tests/unit/binlog/cases.py")
    return " ".join(said) + "\n"


def _section(declared: type, kind: str, shown: dict[str, str], *, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {declared.__name__}\n"
    if kind:
        yield f"*{kind}*\n"
    yield "\n\n".join(_plain(paragraph) for paragraph in (declared.__doc__ or "").split("\n\n")) + "\n"
    yield from _fields(declared, shown)


def _fields(declared: type, shown: dict[str, str]) -> Iterator[str]:
    """List the fields by part, or name the first type with the same list, which ``shown`` has."""
    longest = max(EVENTS[declared.event_type].post_header_lengths) if issubclass(declared, Event) else 0
    parts: dict[str, list[str]] = {}
    for field in [each for each in wire_fields(declared) if each.since <= longest]:
        described = f"{_type_name(field.type)}{'?' if field.optional else ''}{_presence(field)}"
        parts.setdefault(field.section, []).append(f"- {field.name}: {described}")
    text = "\n\n".join(
        "\n".join(fields if section == "item" else (f"{section.capitalize()}:\n", *fields))
        for section, fields in parts.items()
    )
    if not text:
        return
    first = shown.setdefault(text, declared.__name__)
    yield (text if first == declared.__name__ else f"Fields: those of [{first}](#{first.lower()}).") + "\n"


def _presence(field: DeclaredField) -> str:
    """Say when a field is there, or what it is the length of."""
    said = [f"length of {field.length_of}"] if field.length_of else []
    if field.bits_of:
        said.append(f"a bit for each of {field.bits_of}")
    if field.instead is not None:
        length, other = field.instead
        said.append(f"{other.name} where the post-header has {length} bytes")
    if field.since:
        said.append(f"post-header of {field.since} bytes")
    if field.when is not None:
        bit = "no bit" if field.when.unset else "a bit"
        said.append(f"{bit} of {int(field.when.mask):#x} in {field.when.field}")
    if field.remains:
        said.append("if the event continues")
    if field.may_end:
        said.append("the event may end here")
    return "".join(f"; {each}" for each in said)


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

"""The tables of ``docs/events.md``, from the declarations of the events: see ``generate.py``."""  # noqa: INP001 - a script

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from millrace.binlog.declaration import DeclaredField, Event, declared_fields, wire_fields
from millrace.binlog.events import EVENTS
from millrace.binlog.fields import FieldType
from millrace.binlog.types import EventType

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the tests are, which hold the vectors

from tests.unit.binlog.cases import CASES, SOURCES

__all__ = ["events_text"]


def events_text() -> str:
    """Write a section for each type, and one for each structure inside their fields."""
    structures: dict[str, type] = {}
    shown: dict[str, str] = {}
    parts: list[str] = []
    for code in sorted(EVENTS):
        declaration = EVENTS[code]
        event_class = declaration.event_class
        kind = f"*{EventType(code).name}, {code}, {event_class.role.name}{_by_hand(code)}*"
        parts += _section(event_class, kind, shown)
        for field in declaration.fields:
            _collect(field.type, structures)
    parts.append("## Structures\n")
    for name in sorted(structures):
        parts += _section(structures[name], "", shown, level=3)
    return "\n".join(parts).rstrip()


def _by_hand(code: int) -> str:
    """Say that the bytes with which the tests prove a type are of no server, if so."""
    if code in SOURCES:
        return ", by hand"
    event_class = EVENTS[code].event_class  # not its code: previews of MySQL 5.1 have others
    if not any(isinstance(case.event, event_class) and not case.by_hand for case in CASES):
        raise SystemExit(f"error: {EventType(code).name} has no vector in tests/unit/binlog/cases.py")
    return ""


def _section(declared: type, kind: str, shown: dict[str, str], *, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {declared.__name__}\n"
    if kind:
        yield f"{kind}\n"
    said = " ".join((declared.__doc__ or "").split()).replace("``", "`").partition(" Codec by hand: ")[0]
    yield _wrap(said) + "\n"
    yield from _fields(declared, shown)


def _fields(declared: type, shown: dict[str, str]) -> Iterator[str]:
    """List the fields by part, or name the first type with the same fields, which ``shown`` has."""
    longest = max(EVENTS[declared.event_type].post_header_lengths) if issubclass(declared, Event) else 0
    parts: dict[str, list[str]] = {}
    for field in [each for each in wire_fields(declared) if each.since <= longest]:
        bits = f"&lt;{field.bits_of}&gt;" if field.bits_of else ""
        described = f"`{field.name}` {_type_name(field.type)}{bits}{'?' if field.optional else ''}"
        parts.setdefault(field.section, []).append(described + _presence(field))
    lists = {section: ", ".join(fields) for section, fields in parts.items()}
    if not lists:
        return
    first = shown.setdefault(str(lists), declared.__name__)
    if first != declared.__name__:
        yield f"Fields of [{first}](#{first.lower()}).\n"
        return
    for section, text in lists.items():
        label = "" if section == "item" else f"{section.capitalize()}: "
        first = shown.setdefault(section + text, declared.__name__)
        is_long = len(parts[section]) > 2  # a reference is no shorter than two fields
        again = is_long and first != declared.__name__
        yield _wrap(f"{label}{f'that of [{first}](#{first.lower()})' if again else text}.") + "\n"


def _presence(field: DeclaredField) -> str:
    """Say when a field is there, or what it is the length of."""
    said = []
    if field.length_of and not field.name.startswith(f"{field.length_of}_"):
        said.append(f"length of {field.length_of}")
    if field.instead is not None:
        length, other = field.instead
        said.append(f"{other.name} if post-header = {length}")
    if field.since:
        said.append(f"if post-header ≥ {field.since}")
    if field.when is not None:
        bits = "" if field.when.mask == 0xFF else f" & {int(field.when.mask):#x}"
        said.append(f"if {'not ' if field.when.unset else ''}{field.when.field}{bits}")
    if field.remains:
        said.append("if the event continues")
    if field.may_end:
        said.append("the event may end here")
    return f" ({'; '.join(said)})" if said else ""


def _wrap(paragraph: str) -> str:
    """Break the lines of a paragraph."""
    return fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)


def _type_name(field_type: FieldType) -> str:
    name = field_type.name.removesuffix(" to the end").replace("<", "&lt;").replace(">", "&gt;")
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

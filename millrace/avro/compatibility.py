"""What a change of a table's schema means for the records that a topic has already.

A registry compares types of Avro alone: for it a decimal of another scale, or days that become microseconds,
are compatible, since a reader gets some number. And it compares schemas, while Kafka compares the bytes of
keys, which begin with the id of a schema.
"""

import json
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from millrace.avro.connect import own_name
from millrace.avro.registry import full_name, same_schema
from millrace.binlog.columns.declaration import BINARY_AS, quoted
from millrace.binlog.columns.sql_types import INTEGERS, SqlType

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
}
"""By the Avro specification, those that keep the value or round it."""

_ENUM: Final = "io.debezium.data.Enum"
_SET: Final = "io.debezium.data.EnumSet"
_SAYS_NO_MORE: Final = {
    _ENUM: "string",
    _SET: "string",
    "io.debezium.data.Json": "string",
    "io.debezium.time.Year": "int",
}
"""Names of types, and the types of Avro whose values mean the same with and without them."""


def promotes(old: Any, new: Any) -> bool:
    """Return whether values that were written by one type are read by another as the same values."""
    (kind, *of_old), (wanted, *of_new) = map(_meaning, (old, new))
    if None not in (of_old[1], of_new[1]) and of_old[1] < of_new[1]:  # decimals of more digits
        of_old[1] = of_new[1]
    if of_old != of_new:
        return False
    return kind == wanted or (
        isinstance(kind, str) and of_old[0] is None and wanted in _PROMOTIONS.get(kind, ())
    )


def _meaning(avro: Any) -> tuple[Any, ...]:
    """Return a type, or its full name, and logical type, precision, scale, digits and name in Connect."""
    if not isinstance(avro, dict):
        return avro, None, None, None, None, None
    if "name" in avro:
        return full_name(avro), None, None, None, None, None
    kind = avro["type"]
    name = avro.get("connect.name")
    if name is not None and _SAYS_NO_MORE.get(name) == kind:
        name = None
    return kind, *(avro.get(part) for part in ("logicalType", "precision", "scale", BINARY_AS)), name


SQL_TYPE: Final = "millrace.type"
"""Property of a key's field: its column's type in SQL, of ENUM and SET without the members."""

_INTEGERS: Final = INTEGERS | {"year"}
_NUMBERS: Final = INTEGERS | {"decimal"}
_TEXTS: Final = {"varchar", "tinytext", "text", "mediumtext", "longtext"}
_BYTES: Final = {"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_LISTS: Final = {"enum", "set"}
_WITHOUT_SPACES: Final = {"char", "enum", "set", "uuid", "inet4", "inet6"}
"""Types whose values are text without spaces at the end."""

_TAKES: Final[Mapping[str, AbstractSet[str]]] = {
    **dict.fromkeys(_NUMBERS, _NUMBERS | _INTEGERS),
    **dict.fromkeys(_TEXTS, _TEXTS | _WITHOUT_SPACES),
    **dict.fromkeys(_BYTES, _BYTES | {"binary"}),
    **dict.fromkeys(_LISTS, _LISTS),
    "char": _WITHOUT_SPACES,
}
"""From which types a type takes values as they are: YEAR makes 24 to 2024, and CHAR cuts spaces."""
_SIZED: Final = {"binary", "bit", "float", "double"}
"""Types that fill values up, or round them, to their size."""


@dataclass(frozen=True, slots=True)
class AlteredColumn:
    """A column of two schemas: its names there, and the Avro types of its values, None where it has none."""

    name: str
    former: str
    was: Any
    now: Any

    def in_words(self, was: str, now: str) -> str:
        """Say how the column has changed, from and to types in SQL."""
        if self.was is None or self.now is None:
            change = f"{now} is new" if self.was is None else f"{was} is no longer"
            return f"column {self.name} {change} in the key"
        if was == now:
            before, after = map(type_in_words, (self.was, self.now))
            return f"column {self.name} {now} was {before} in Avro and is {after} now"
        renamed = "" if self.name == self.former else f" ({self.former} before)"
        return f"column {self.name}{renamed} changed from {was} to {now}"


def misread(earlier: Sequence[Any], schema: dict[str, Any]) -> list[AlteredColumn]:
    """Return the columns that a reader by ``schema`` would read as other values.

    ``earlier`` are the envelopes of all records of a topic, the last one at the end. What is read wrongly by
    the last one already is not named again.
    """
    if any(same_schema(each, schema) for each in earlier):
        return []  # it stays as old as it is
    faults: dict[str, AlteredColumn] = {}
    for each in earlier:
        known = _misread(each, earlier[-1])
        faults |= {name: how for name, how in _misread(each, schema).items() if name not in known}
    return list(faults.values())


def _misread(written: Any, read: Any) -> dict[str, AlteredColumn]:
    """Return, by the name in ``written``, the columns that ``read`` reads as other values."""
    fields = {field["name"]: field for field in column_fields(written)}
    faults = {}
    for field in column_fields(read):
        name = next((each for each in (field["name"], *field.get("aliases", ())) if each in fields), None)
        if name is not None:
            old, new = map(_type_of_value, (fields[name], field))
            if not promotes(old, new):
                faults[name] = AlteredColumn(own_name(field), own_name(fields[name]), old, new)
    return faults


def altered_columns(old: Any, new: Mapping[str, Any]) -> list[AlteredColumn]:
    """Return the columns that have other types in ``new`` than in ``old``, or are in one of two keys alone.

    Both are schemas of keys, or both of values.
    """
    before, after = (
        {own_name(field): _type_of_value(field) for field in column_fields(each)} for each in (old, new)
    )
    is_key = "source" not in {field["name"] for field in new["fields"]}
    names = (name for name in before | after if is_key or (name in before and name in after))
    altered = (AlteredColumn(name, name, before.get(name), after.get(name)) for name in names)
    return [each for each in altered if type_in_words(each.was) != type_in_words(each.now)]


def column_fields(schema: Any) -> list[dict[str, Any]]:
    """Return the fields of the columns in the schema of an envelope or of a key.

    A subject may have schemas of others, and those have none.
    """
    match schema:
        case {"fields": [{"name": "before", "type": ["null", {"fields": list(fields)}]}, *_]}:
            return fields
        case {"name": str(name), "fields": list(fields)} if name.rpartition(".")[2] == "Key":
            return fields
    return []


def _type_of_value(field: Mapping[str, Any]) -> Any:
    kind = field["type"]
    return kind[1] if isinstance(kind, list) and len(kind) == 2 and kind[0] == "null" else kind


def type_in_words(avro: Any) -> str:
    """Return a type as ``decimal(10,2)``."""
    if isinstance(avro, list):
        return " or ".join(type_in_words(branch) for branch in avro if branch != "null")
    if not isinstance(avro, Mapping):
        return str(avro)
    numbers = [str(avro[name]) for name in ("precision", "scale") if name in avro]
    kind = avro.get("logicalType") or avro.get("connect.name") or avro.get("name") or avro["type"]
    kind = f"{kind} of {avro[BINARY_AS]} digits" if BINARY_AS in avro else kind
    return f"{kind}({','.join(numbers)})" if numbers else str(kind)


_SQL: Final = {
    "int": "INT",
    "long": "BIGINT",
    "boolean": "BIT(1)",
    "string": "text",
    "bytes": "binary text",
    "date": "DATE",
    "local-timestamp-micros": "DATETIME",
    "timestamp-micros": "TIMESTAMP",
    "io.debezium.time.Date": "DATE",
    "io.debezium.time.Timestamp": "DATETIME",
    "io.debezium.time.MicroTimestamp": "DATETIME",
    "io.debezium.time.ZonedTimestamp": "TIMESTAMP",
    "io.debezium.time.MicroTime": "TIME",
    "io.debezium.time.Year": "YEAR",
    "io.debezium.data.Json": "JSON",
    _ENUM: "ENUM",
    _SET: "SET",
}


def likely_sql_type(avro: Any) -> str:
    """Return what a type may be in SQL, where no definition says it."""
    words = type_in_words(avro[0] if isinstance(avro, list) else avro)
    return _SQL.get(words, words.upper())


def in_sql(sql_type: str) -> str:
    """Write a type of a catalogue as SQL does, without its character set and the width of an integer."""
    name, parenthesis, rest = sql_type.partition(" character set ")[0].partition("(")
    if name in _LISTS:
        return name.upper() + parenthesis + rest
    if name in _INTEGERS:
        return (name + rest.partition(")")[2]).upper()
    return (name + parenthesis + rest).upper()


def key_in_words(key: Mapping[str, Any] | None) -> str:
    """Name the columns of a key, and their types."""
    if key is None:
        return "none"
    return f"({', '.join(f'{own_name(field)} {_key_type_in_words(field)}' for field in key['fields'])})"


def _key_type_in_words(field: Mapping[str, Any]) -> str:
    _, members = _list_of(field["type"])
    if SQL_TYPE not in field:
        return likely_sql_type(field["type"])
    return in_sql(field[SQL_TYPE]) + (f"({','.join(map(quoted, members))})" if members else "")


@dataclass(frozen=True, slots=True)
class WrittenKey:
    """How the keys of a topic are written, so that a key of the same value always has the same bytes.

    That is by the ``schema`` of the first. ``newest`` is the schema by which readers get all of them under
    the present names of their columns.
    """

    schema: dict[str, Any]
    newest: dict[str, Any]

    @classmethod
    def from_json(cls, schema: str, newest: str) -> Self:
        """Return what :meth:`to_json` wrote."""
        return cls(json.loads(schema), json.loads(newest))

    def to_json(self) -> tuple[str, str]:
        """Write both schemas."""
        return json.dumps(self.schema), json.dumps(self.newest)

    def continued(self, key: Mapping[str, Any], types: Sequence[Any]) -> "WrittenKey | None":
        """Return it as it is after a change of the table; None where equal values would have other bytes.

        ``key`` is the schema of the key from then on; ``types`` are those of its columns, which a key has
        where its topic was begun by an earlier version.
        """
        if len(key["fields"]) != len(self.schema["fields"]):
            return None
        names = {field["name"] for field in key["fields"]}
        fields = []
        for first, last, now, own in zip(
            self.schema["fields"], self.newest["fields"], key["fields"], types, strict=True
        ):
            field = dict(now)
            is_same_column = last["name"] in (field["name"], *field.pop("aliases", ()))
            same = next((each for each in (now["type"], own) if _is_written_alike(first["type"], each)), None)
            if not is_same_column or same is None or not _keeps_values(last, field):
                return None
            field["type"] = same
            if first["name"] != field["name"]:
                if first["name"] in names:
                    return None
                field["aliases"] = [first["name"]]
            fields.append(field)
        return replace(self, newest={**key, "fields": fields})


def _is_written_alike(first: Any, now: Any) -> bool:
    """Return whether values have the same bytes by both types, and those of the second fit the first."""
    if isinstance(first, list) and isinstance(now, list):
        return len(first) == len(now) and all(map(_is_written_alike, first, now))
    if isinstance(first, list) or isinstance(now, list):
        return False
    widths = [each.get("connect.type") if isinstance(each, dict) else None for each in (first, now)]
    return _meaning(first) == _meaning(now) and widths[0] == widths[1]


def _keeps_values(last: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the server has left values as they were: not filled up, cut, rounded or read anew."""
    return _keeps_members(last["type"], now["type"]) and (
        SQL_TYPE not in last  # by an earlier version
        or _converts_exactly(SqlType.parse(last[SQL_TYPE]), SqlType.parse(now[SQL_TYPE]), now["type"])
    )


def _converts_exactly(last: SqlType, now: SqlType, avro: Any) -> bool:
    """Return whether each value of a type, converted to another that is written as ``avro``, stays as it is.

    Both are written as that; a value that does not fit the second is an error of a strict server.
    """
    if last.name not in _TAKES.get(now.name, {now.name}):
        return False
    if now.name in _SIZED:
        return now.arguments in ((), last.arguments)
    was, digits = _digits(last), _digits(now)
    is_text = _meaning(avro[0] if isinstance(avro, list) else avro)[0] == "string"
    return was == digits or (was < digits and not is_text)


def _digits(sql_type: SqlType) -> int:
    """Return how many digits a number or a time has behind the point."""
    if sql_type.name in ("time", "datetime", "timestamp"):
        return sql_type.argument(0)
    return sql_type.arguments[1] if sql_type.name == "decimal" else 0


def _keeps_members(last: Any, now: Any) -> bool:
    """Return whether the values of a list, or text that becomes one, are the same text in it.

    Servers write a SET in the order of its members, and find a member whatever its case.
    """
    if isinstance(last, list) and isinstance(now, list):
        return all(map(_keeps_members, last, now))
    name, members = _list_of(now)
    if members is None:
        return True
    was, earlier = _list_of(last)
    kept = [member for member in members if member in (earlier or ())]
    return earlier is not None and (kept == earlier if was == name == _SET else set(kept) == set(earlier))


def _list_of(avro: Any) -> tuple[str | None, list[str] | None]:
    """Return the name of a list's type and its members; None for other types."""
    name = avro.get("connect.name") if isinstance(avro, dict) else None
    if name not in (_ENUM, _SET):
        return None, None
    return name, re.split(r"(?<!\\),", avro.get("connect.parameters", {}).get("allowed", ""))

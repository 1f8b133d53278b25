"""Records of row topics that are JSON, with their values as Avro's logical types give them.

JSON has no types of its own: text may be text, bytes in Base64 or a decimal, and a number a day. What a value
is follows from the definition of its column where the row stands, by the schema history, and from the
settings with which rows are written.
"""

import datetime as dt
import json
import struct
from base64 import b64decode
from collections.abc import Container, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from millrace.binlog.columns.declaration import AvroOptions, codec_of
from millrace.binlog.table import ColumnDefinition, TableDefinition, column_of
from millrace.contract import escape_name

_DAY: Final = dt.date(1970, 1, 1)
_MOMENT: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a DATETIME has no zone
_FLOAT: Final = struct.Struct("<f")
_MICROSECONDS: Final = {"micros": 1, "millis": 1000}


def is_json(value: str | bytes | None) -> bool:
    """Return whether a key or a value is JSON, and not Avro."""
    return isinstance(value, bytes) and value.startswith(b"{")


class JsonRows:
    """Reads records by the definitions of their tables; ``options`` are those of the row mapper."""

    def __init__(self, options: AvroOptions, *, mariadb: bool) -> None:
        self._options = options
        self._mariadb = mariadb
        self._types = lru_cache(256)(self._types_of)

    def rows(
        self,
        key: bytes | None,
        envelope: dict[str, Any],
        definition: TableDefinition,
        hidden: Container[str] = (),
    ) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Return the columns of a key, and an envelope whose images have values; raises ValueError.

        Those of ``hidden`` columns stay as they are: a rule has made them.
        """
        types = {name: avro for name, avro in self._types(definition).items() if name not in hidden}
        try:
            columns = None
            if key is not None:
                found = json.loads(key)
                columns = _row(found.get("payload", found) if "schema" in found else found, types)
            made = {**envelope}
            for image in ("before", "after"):
                made[image] = None if envelope[image] is None else _row(envelope[image], types)
            made["unrepresentable"] = [
                {**note, "bytes": None if note["bytes"] is None else b64decode(note["bytes"])}
                for note in envelope["unrepresentable"] or ()
            ]
        except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"it is not a row of its table's definition: {error!r}") from error
        return columns, made

    def _types_of(self, definition: TableDefinition) -> dict[str, Any]:
        # A topic's keys keep the names that their columns had first.
        former = {each.name: self._type(column) for column in definition.columns for each in column.former}
        return former | {column.name: self._type(column) for column in definition.columns}

    def _type(self, column: ColumnDefinition) -> Any:
        return codec_of(column_of(column, mariadb=self._mariadb)).avro_type(self._options)


def _row(row: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    return {escape_name(name): _value(types.get(name), value) for name, value in row.items()}


def _value(avro: Any, value: Any) -> Any:
    """Return a value of an Avro type; that of a column that is not known as it is."""
    kind = avro["type"] if isinstance(avro, dict) else avro
    if isinstance(value, dict) and kind != "record":  # the union of a key: of its type and text
        value = next((part for part in value.values() if part is not None), None)
    if value is None:
        return None
    match kind:
        case "bytes" | "float" | "double":
            return _number_or_bytes(avro, kind, value)
        case "record":
            return {
                field["name"]: _value(_branch(field["type"]), value[field["name"]])
                for field in avro["fields"]
            }
        case "int" | "long" if isinstance(avro, dict) and not isinstance(value, str):
            return _time(avro.get("logicalType", ""), value)
        case _:
            return value


def _number_or_bytes(avro: Any, kind: str, value: Any) -> Any:
    if kind != "bytes":
        number = float(value)
        return _FLOAT.unpack(_FLOAT.pack(number))[0] if kind == "float" else number
    data = b64decode(value)
    if isinstance(avro, dict) and avro.get("logicalType") == "decimal":
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-avro["scale"])
    return data


def _time(logical: str, value: int) -> Any:
    """Return a day or a moment as Avro's logical type has it; a number where it is none of these."""
    if logical == "date":
        return _DAY + dt.timedelta(days=value)
    kind, _, unit = logical.rpartition("-")
    if kind not in ("timestamp", "local-timestamp"):
        return value
    moment = _MOMENT + dt.timedelta(microseconds=value * _MICROSECONDS[unit])
    return moment if kind == "local-timestamp" else moment.replace(tzinfo=dt.UTC)


def _branch(avro: Any) -> Any:
    """Return the type of a union of null and a type."""
    return next(part for part in avro if part != "null") if isinstance(avro, list) else avro

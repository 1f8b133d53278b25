"""What ALTER TABLE makes of a value whose column gets another type, as far as that is certain.

Values are in the common form of :mod:`millrace.verify.tables`. A strict server refuses what does not fit, and
what it makes of it otherwise depends on sql_mode; so does whether a time is rounded or cut, and the time zone
of the session says what a TIMESTAMP is. What depends on the session that ran the statement is not told:
nothing is guessed.
"""

import re
import struct
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Final

from millrace.binlog.columns.charsets import charset
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.errors import UnsupportedError
from millrace.binlog.table import ColumnDefinition


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """A value that does not follow from the log, and why; ``was`` is the value before the conversion."""

    reason: str
    was: Any = None


_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_WIDTHS: Final = {"tinyint": 3, "smallint": 5, "mediumint": 8, "int": 10, "integer": 10, "bigint": 20}
"""Digits that ZEROFILL shows by default."""
_TEXTS: Final = {"tinytext": 255, "text": 65_535, "mediumtext": 16_777_215, "longtext": 4_294_967_295}
_BLOBS: Final = {"tinyblob": 255, "blob": 65_535, "mediumblob": 16_777_215, "longblob": 4_294_967_295}
"""How many bytes fit."""
_OF_BYTES: Final = ("bit", "binary", "varbinary", *_BLOBS)
_WIDE: Final = ("ucs2", "utf16", "utf16le", "utf32")
"""Character sets for which bytes are filled up on the left."""
_DIGITS: Final = 100
"""More than a DECIMAL has, with those of a BIGINT before it is converted."""
_INTEGER: Final = re.compile("-?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,65}(?:\.[0-9]{1,30})?")


def keeps_values(before: ColumnDefinition, after: ColumnDefinition) -> bool:
    """Return whether nothing that concerns values differs."""
    return (before.column_type, before.charset, before.generated) == (
        after.column_type,
        after.charset,
        after.generated,
    ) and (after.nullable or not before.nullable)


def converted(before: ColumnDefinition, after: ColumnDefinition, value: Any, reason: str) -> Any:
    """Return a value as it is after its column was altered; :class:`UnknownValue` if that is uncertain."""
    if isinstance(value, UnknownValue) or keeps_values(before, after):
        return value
    if after.generated or (value is None and not after.nullable):
        return UnknownValue(reason, value)
    if value is None:
        return None
    old, new = SqlType.parse(before.column_type), SqlType.parse(after.column_type)
    found: Any = None
    if new.name in _BITS or new.name in ("decimal", "float", "double", "bit"):
        found = _to_number(old, new, after, value)
    elif new.name in ("date", "datetime", "time", "timestamp"):
        found = _to_time(old, new, value)
    else:
        try:
            if new.name in ("binary", "varbinary", *_BLOBS):
                found = _to_bytes(old, new, before, value)
            elif new.name in ("char", "varchar", "enum", "set", *_TEXTS):
                found = _to_text(old, new, after, value)
        except (UnicodeError, UnsupportedError):
            pass  # the character set does not have it, or is not known
    return UnknownValue(reason, value) if found is None else found


def _to_number(old: SqlType, new: SqlType, after: ColumnDefinition, value: Any) -> Any:
    """Return a number of a type, of a number or of a text that is one in both servers."""
    if old.name == "bit":
        value = int.from_bytes(value)
    elif isinstance(value, str) and old.name in ("char", "varchar", *_TEXTS):
        wanted = _INTEGER if new.name in _BITS else _NUMBER
        value = Decimal(value) if wanted.fullmatch(value) else None
    if not isinstance(value, int | Decimal | float):
        return None
    if new.name == "decimal":
        return _to_decimal(new, value)
    if new.name in ("float", "double"):
        return _to_float(new, value)
    if new.name == "bit":
        size = new.argument(1)
        if not isinstance(value, int) or not 0 <= value < 1 << size:
            return None
        return value.to_bytes((size + 7) // 8)
    return _to_integer(new, after, value)


def _to_integer(new: SqlType, after: ColumnDefinition, value: Decimal | float) -> int | None:
    """Return an integer: a DECIMAL is rounded half away from zero, a FLOAT half to even."""
    whole = int(value.quantize(Decimal(1), ROUND_HALF_UP)) if isinstance(value, Decimal) else round(value)
    bits = _BITS[new.name]
    if isinstance(value, Decimal) and whole >= 1 << 63:
        return None  # MySQL refuses it in BIGINT UNSIGNED, too
    least, greatest = (0, 1 << bits) if after.unsigned else (-1 << bits - 1, 1 << bits - 1)
    return whole if least <= whole < greatest else None


def _to_decimal(new: SqlType, value: Decimal | float) -> Decimal | None:
    precision, scale = (*new.arguments, 0)[:2] if new.arguments else (10, 0)
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if "unsigned" in new.attributes and exact < 0:
        return None
    with localcontext(prec=_DIGITS):
        if abs(exact) >= 10 ** (precision - scale):
            return None
        rounded = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        return rounded if abs(rounded) < 10 ** (precision - scale) else None


def _to_float(new: SqlType, value: Decimal | float) -> float | None:
    if new.arguments or ("unsigned" in new.attributes and value < 0):
        return None
    try:
        found = float(value)
        return found if new.name == "double" else struct.unpack("<f", struct.pack("<f", found))[0]
    except OverflowError:
        return None


def _printed(old: SqlType, value: Any) -> str | None:
    """Return a value as the server writes it into a column of text; None where that is not certain."""
    if isinstance(value, str):
        return None if old.name in ("timestamp", "json") else value
    if old.name == "bit":
        return str(int.from_bytes(value))
    if old.name == "year":
        return f"{value:04}"
    if isinstance(value, int):
        zeros = old.argument(_WIDTHS.get(old.name, 0)) if "zerofill" in old.attributes else 0
        return str(value).zfill(zeros)
    if isinstance(value, Decimal) and "zerofill" not in old.attributes:
        scale = (*old.arguments, 0, 0)[1]
        return format(value or Decimal(0), f".{scale}f")
    return None


def _bytes_of(old: SqlType, new: SqlType, value: Any) -> bytes | None:
    """Return the bytes of a value that the server takes as they are; None where it writes it as text."""
    if not isinstance(value, bytes) or (old.name == "bit" and new.name not in (*_TEXTS, *_BLOBS)):
        return None
    return value.ljust(old.argument(1), b"\0") if old.name == "binary" else value


def _to_text(old: SqlType, new: SqlType, after: ColumnDefinition, value: Any) -> str | None:
    """Return a text of which the new character set has all characters, and for which there is room."""
    own = charset(after.charset or "")
    data = _bytes_of(old, new, value)
    if data is not None and (old.name not in _OF_BYTES or after.members is not None or own.name in _WIDE):
        return None
    text = _printed(old, value) if data is None else own.decode(data)
    if text is None:
        return None
    size = len(own.encode(text))
    if after.members is not None:
        parts = (text.split(",") if text else []) if new.name == "set" else [text]
        if not isinstance(value, str) or not set(after.members).issuperset(parts):
            return None
        return ",".join(member for member in after.members if member in parts)
    if new.name in _TEXTS:
        return text if size <= _TEXTS[new.name] else None
    room = new.argument(1)
    if new.name == "char":
        text = text.rstrip(" ")
    # Spaces beyond the end are cut without an error.
    return None if text[room:].strip(" ") else text[:room]


def _to_bytes(old: SqlType, new: SqlType, before: ColumnDefinition, value: Any) -> bytes | None:
    """Return the bytes of a value, where there is room for them."""
    data = _bytes_of(old, new, value)
    if data is None:
        text = _printed(old, value)
        if text is None:
            return None
        data = text.encode("ascii") if before.charset is None else charset(before.charset).encode(text)
    elif old.name not in _OF_BYTES and before.charset is None:
        return None
    room = _BLOBS[new.name] if new.name in _BLOBS else new.argument(1)
    if len(data) > room:
        return None
    return data.ljust(room, b"\0") if new.name == "binary" else data


def _to_time(old: SqlType, new: SqlType, value: Any) -> str | None:
    """Return a time that is the same whether it is rounded or cut, and in whatever time zone."""
    if not isinstance(value, str) or (old.name == "timestamp") != (new.name == "timestamp"):
        return None
    if old.name == "date" and new.name == "datetime":
        value += " 00:00:00"
    elif old.name == "datetime" and new.name in ("date", "time"):
        day, _, value = value.partition(" ")
        if new.name == "date":
            return None if value >= "23:59:59.5" else day
    elif old.name != new.name:
        return None
    whole, _, fraction = value.partition(".")
    kept, cut = fraction[: new.argument(0)], fraction[new.argument(0) :]
    if cut[:1] >= "5":
        return None
    found = f"{whole}.{kept.ljust(new.argument(0), '0')}" if new.argument(0) else whole
    return found if found.strip("-0:.") else found.removeprefix("-")

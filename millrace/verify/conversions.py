"""What ALTER TABLE makes of a value whose column gets another type, as far as that is certain.

Values are in the common form of :mod:`millrace.verify.tables`. What depends on the session that ran the
statement (its time zone, its sql_mode) is not told: nothing is guessed. A DECIMAL is rounded half away from
zero, as both servers do.
"""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Final

from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.table import ColumnDefinition


@dataclass(frozen=True, slots=True)
class Untold:
    """A value that the log does not tell, and why; ``was`` is the value from which it was made."""

    reason: str
    was: Any = None


_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_CHARACTERS: Final = {"tinytext": 63, "text": 16_383, "mediumtext": 4_194_303, "longtext": 1_073_741_823}
"""How many fit, whatever the character set."""
_BYTES: Final = {"tinyblob": 255, "blob": 65_535, "mediumblob": 16_777_215, "longblob": 4_294_967_295}
_DIGITS: Final = 100
"""More than a DECIMAL has, with those of a BIGINT before it is converted."""
_LARGEST_OF_THREE_BYTES: Final = "\uffff"
_LARGEST: Final = "\U0010ffff"


def keeps_values(before: ColumnDefinition, after: ColumnDefinition) -> bool:
    """Return whether nothing that concerns values differs."""
    return (before.column_type, before.charset, before.generated) == (
        after.column_type,
        after.charset,
        after.generated,
    ) and (after.nullable or not before.nullable)


def converted(before: ColumnDefinition, after: ColumnDefinition, value: Any, reason: str) -> Any:
    """Return what a value is after its column was altered; :class:`Untold` where that is not certain."""
    if isinstance(value, Untold) or keeps_values(before, after):
        return value
    if after.generated or (value is None and not after.nullable):
        return Untold(reason, value)
    if value is None:
        return None
    old, new = SqlType.parse(before.column_type), SqlType.parse(after.column_type)
    found = None
    if old.name in _BITS:
        found = _of_integer(old, new, after, int(value))
    elif old.name == "float" and new.name == "double":
        found = value
    elif old.name == new.name == "decimal":
        found = _of_decimal(new, value)
    elif isinstance(value, str) and before.charset is not None:
        found = _of_text(new, after, value, before.charset)
    elif isinstance(value, bytes) and new.name == "varbinary":
        found = value if len(value) <= new.argument(1) else None
    elif isinstance(value, bytes) and old.name in (*_BYTES, "varbinary"):
        found = value if len(value) <= _BYTES.get(new.name, -1) else None
    elif isinstance(value, str) and old.name in ("date", "datetime", "timestamp", "time"):
        found = _of_time(old, new, value)
    return Untold(reason, value) if found is None else found


def _of_integer(old: SqlType, new: SqlType, after: ColumnDefinition, value: int) -> Any:
    if new.name in _BITS:
        bits = _BITS[new.name]
        least, greatest = (0, 1 << bits) if after.unsigned else (-1 << bits - 1, 1 << bits - 1)
        return value if least <= value < greatest else None
    if new.name == "decimal":
        return _of_decimal(new, Decimal(value))
    if after.charset is not None and after.members is None and "zerofill" not in old.attributes:
        return _of_text(new, after, str(value))
    return None


def _of_decimal(new: SqlType, value: Decimal) -> Decimal | None:
    precision, scale = (*new.arguments, 0)[:2] if new.arguments else (10, 0)
    if "unsigned" in new.attributes and value < 0:
        return None
    with localcontext(prec=_DIGITS):
        rounded = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        return rounded if abs(rounded) < 10 ** (precision - scale) else None


def _of_text(new: SqlType, after: ColumnDefinition, value: str, charset: str | None = None) -> str | None:
    """Return a text of which the new character set has all characters, and for which there is room."""
    if after.members is not None:
        members = set(after.members)
        parts = (value.split(",") if value else []) if new.name == "set" else [value]
        return value if members.issuperset(parts) else None
    if after.charset != charset and not _has_all(after.charset, value):
        return None
    if new.name == "char":
        value = value.rstrip(" ")
    room = _CHARACTERS.get(new.name, new.argument(1))
    return value if len(value) <= room else None


def _has_all(charset: str | None, value: str) -> bool:
    """Return whether a character set certainly has all characters of a text."""
    if value.isascii():
        return charset is not None
    most = {"utf8mb4": _LARGEST, "utf8mb3": _LARGEST_OF_THREE_BYTES, "utf8": _LARGEST_OF_THREE_BYTES}
    return max(value) <= most.get(charset or "", "")


def _of_time(old: SqlType, new: SqlType, value: str) -> str | None:
    had, has = old.argument(0), new.argument(0)
    if old.name == "date" and new.name == "datetime":
        return f"{value} 00:00:00" + "." * bool(has) + "0" * has
    if old.name == new.name and has >= had:
        return value + "." * (not had and bool(has)) + "0" * (has - had)
    return None

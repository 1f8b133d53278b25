"""Schemas from elsewhere: whether records can be read by them in bounded memory and on a bounded stack.

Avro allows schemas by which a few bytes become endless values: a record that contains itself (fastavro then
exhausts C's stack, which ends the process), an array of 2^60 nulls, records within records within records
that hold nothing. No schema of ours or of a table is of that kind, and none of them is read by here.
"""

from typing import Any, Final

import fastavro

_DEEPEST: Final = 64
_MOST_FREE: Final = 1_000
_SIZES: Final = {"null": 0, "float": 4, "double": 8}
"""The bytes that a value takes at least; of all other types 1."""


def check_schema(schema: Any) -> None:
    """Raise ValueError, which says why, where ``schema`` is none or must not be read by."""
    try:
        _Measure().of(fastavro.parse_schema(schema), 0)
    except _UnboundedError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a stranger's schema makes the parser stumble over
        raise ValueError(f"it is not an Avro schema: {error or type(error).__name__}") from None


class _UnboundedError(ValueError):
    """It is a schema by which a few bytes become more than can be held."""


class _Measure:
    """Measures types: the fewest bytes that a value takes, and the most values in it that take none.

    A record is such a value itself: its bytes are those of its fields. The branch of a union is paid for by
    the byte that names it.
    """

    def __init__(self) -> None:
        self._named: dict[str, tuple[int, int] | None] = {}

    def of(self, schema: Any, depth: int) -> tuple[int, int]:
        if depth > _DEEPEST:
            raise _UnboundedError(f"it is nested deeper than {_DEEPEST} levels")
        if isinstance(schema, str):
            return self._by_name(schema)
        if isinstance(schema, list):
            found = [self.of(branch, depth + 1) for branch in schema]
            return 1 + min(size for size, _ in found), max(0, max(free for _, free in found) - 1)
        match schema["type"]:
            case "record" | "error":
                return self._record(schema, depth)
            case "fixed" | "enum":
                return self._define(schema, (_size(schema), 0))
            case "array" | "map" as kind:
                return self._repeated(kind, schema["items" if kind == "array" else "values"], depth)
            case inner:
                return self.of(inner, depth + 1)

    def _repeated(self, kind: str, items: Any, depth: int) -> tuple[int, int]:
        size, _ = self.of(items, depth + 1)
        if size == 0 and kind == "array":  # in a map each has a key
            raise _UnboundedError("it has an array of values that take no byte")
        return 1, 0

    def _by_name(self, name: str) -> tuple[int, int]:
        if name not in self._named:
            size = _SIZES.get(name, 1)
            return size, int(size == 0)
        found = self._named[name]
        if found is None:
            raise _UnboundedError(f"the type {name} contains itself")
        return found

    def _record(self, schema: Any, depth: int) -> tuple[int, int]:
        self._named[schema["name"]] = None
        found = [self.of(field["type"], depth + 1) for field in schema["fields"]]
        free = 1 + sum(free for _, free in found)
        if free > _MOST_FREE:
            raise _UnboundedError(f"it has a record of more than {_MOST_FREE} values that take no byte")
        return self._define(schema, (sum(size for size, _ in found), free))

    def _define(self, schema: Any, measured: tuple[int, int]) -> tuple[int, int]:
        self._named[schema["name"]] = measured
        return measured


def _size(schema: Any) -> int:
    """Return the bytes of a fixed; a member of an enum takes one or more."""
    size = schema.get("size", 1)
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"a fixed of {size!r} bytes")
    return size

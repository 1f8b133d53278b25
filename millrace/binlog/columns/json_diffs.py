"""Partial JSON: the changes to a document that an update wrote instead of the whole document.

Specified in ``Json_diff_vector::write_binary`` and ``read_binary`` of the server (``sql/json_diff.cc``): a
diff is an operation (uint8), a path and, unless it removes, a value in binary JSON; path and value stand
after length-encoded integers. A path is text such as ``$.a[2]."b c"``.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from millrace.binlog.columns.json_binary import MAX_DEPTH, JsonValue, decode_json, text_of_json
from millrace.binlog.cursor import Cursor
from millrace.binlog.errors import InvalidValueError, UnrepresentableError

__all__ = ["JsonDiff", "JsonDiffOperation", "JsonDiffs"]


class JsonDiffOperation(IntEnum):
    """What a diff does, ``enum_json_diff_operation``."""

    REPLACE = 0
    INSERT = 1
    REMOVE = 2


class JsonDiff(NamedTuple):
    """One change: a path as text and the new value in binary JSON, None where something is removed."""

    operation: JsonDiffOperation
    path: str
    value: bytes | None


_LEG = re.compile(r'\.("(?:[^"\\]++|\\.)*+"|[^.\["\s]+)|\[(\d+)\]', re.DOTALL)


def _legs(path: str) -> list[str | int]:
    """Take apart a path without wildcards: keys as str, places in arrays as int."""
    if not path.startswith("$"):
        raise InvalidValueError(f"{path!r} is not a JSON path")
    legs: list[str | int] = []
    position = 1
    while position < len(path):
        match = _LEG.match(path, position)
        if match is None:
            raise InvalidValueError(f"{path!r} is not a JSON path")
        key, place = match.groups()
        try:
            if place is not None:
                legs.append(int(place))
            else:
                leg = json.loads(key) if key.startswith('"') else key
                leg.encode()
                legs.append(leg)
        except ValueError as error:  # an escape of none, half a character, or more digits than Python takes
            raise InvalidValueError(f"{path!r} is not a JSON path") from error
        if len(legs) > MAX_DEPTH:
            raise InvalidValueError(
                f"a JSON path leads deeper than {MAX_DEPTH} levels, which no document has"
            )
        position = match.end()
    return legs


def _key_order(key: str) -> tuple[int, bytes]:
    """Order keys as the server stores them: shorter ones first, then by their bytes."""
    raw = key.encode()
    return len(raw), raw


def _replace(container: Any, leg: str | int, value: Any) -> None:
    container[leg]  # a KeyError or IndexError where there is nothing to replace
    container[leg] = value


def _insert(container: Any, leg: str | int, value: Any) -> None:
    if isinstance(container, list) and isinstance(leg, int):
        container.insert(leg, value)
        return
    if leg in container:
        raise KeyError(leg)
    container[leg] = value


def _sort(members: dict[str, Any]) -> None:
    """Put the members of an object into the order in which the server has them."""
    ordered = sorted(members.items(), key=lambda member: _key_order(member[0]))
    members.clear()
    members.update(ordered)


def _remove(container: Any, leg: str | int, value: Any) -> None:  # noqa: ARG001 - as all operations
    del container[leg]


_OPERATIONS: dict[JsonDiffOperation, Callable[[Any, str | int, Any], None]] = {
    JsonDiffOperation.REPLACE: _replace,
    JsonDiffOperation.INSERT: _insert,
    JsonDiffOperation.REMOVE: _remove,
}


@dataclass(frozen=True, slots=True)
class JsonDiffs:
    """The changes to one document, in their binary form."""

    binary: bytes

    @property
    def diffs(self) -> list[JsonDiff]:
        """Take the changes apart; raise :class:`MalformedError`."""
        cursor = Cursor(self.binary)
        found = []
        while cursor.remaining:
            code = cursor.u8("operation of a JSON diff")
            if code > 2:
                raise InvalidValueError(f"{code} is not an operation of a JSON diff")
            operation = JsonDiffOperation(code)
            raw = cursor.bytes(cursor.lenenc("length of a JSON path"), "JSON path")
            try:
                path = raw.decode()
            except UnicodeDecodeError as error:
                raise InvalidValueError(f"the JSON path {raw.hex()} is not UTF-8") from error
            value = None
            if operation is not JsonDiffOperation.REMOVE:
                value = cursor.bytes(cursor.lenenc("length of a JSON value"), "JSON value")
            found.append(JsonDiff(operation, path, value))
        return found

    def applied(self, before: Any) -> Any:
        """Apply the changes to the content of a document and return the new content.

        Raise :class:`UnrepresentableError` where a path leads nowhere, which says that this is not the
        document that was changed, and :class:`MalformedError` where the diffs are no diffs.
        """
        root = [before]
        grown: dict[int, dict[str, Any]] = {}
        for operation, path, binary in self.diffs:
            value = None if binary is None else decode_json(binary)
            *way, last = [0, *_legs(path)]
            container: Any = root
            try:
                for leg in way:
                    container = container[leg]
                _OPERATIONS[operation](container, last, value)
                if operation is JsonDiffOperation.INSERT and isinstance(container, dict):
                    grown[id(container)] = container
            except (LookupError, TypeError, AttributeError) as error:
                raise UnrepresentableError(f"there is no {path} in the document that was changed") from error
        for members in grown.values():
            _sort(members)
        return root[0]

    def applied_text(self, before: Any) -> str:
        """Apply the changes to a :class:`JsonValue` and write the text of the new document."""
        if not isinstance(before, JsonValue):
            raise UnrepresentableError("the document that was changed is not in the event")
        return text_of_json(self.applied(before.value))

"""Rows as JSON, a column of Arrow at a time: what Spark's ``to_json`` writes of them.

So ``from_json`` reads them with the schema of the table. Numbers and decimals are numbers, bytes are base64,
NULL is null.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import kernel

_NULL: Final = "null"
_QUOTE: Final = '"'
_TIME_SIZE: Final = len("2026-01-31 10:00:00.000000")
_TIME_BLANK: Final = len("2026-01-31")


class _Kind(IntEnum):
    """What the kernel writes by itself; ``make generate`` copies it there. TEXT is JSON already."""

    TEXT = 0
    STRING = 1
    LONG = 2
    INT = 3
    BOOLEAN = 4
    DECIMAL = 5
    DATE = 6
    TIMESTAMP = 7
    UTC = 8


_MOST_DIGITS: Final = 18
"""Of a decimal of the kernel: those that an integer of 64 bits has."""


def json_rows(rows: pa.StructArray, names: Sequence[str], *, native: bool = True) -> pa.Array:
    """Return each row as a JSON object whose fields have these ``names``; null where a row is null."""
    if native and names and kernel.has("json_columns"):
        found = _written_natively(rows, names)
        if found is not None:
            return found
    pieces: list[pa.Array | str] = ["{"]
    for number, (name, column) in enumerate(zip(names, rows.flatten(), strict=True)):
        quote, texts = _texts(column)
        if quote and texts.null_count:
            quote, texts = "", _quoted(texts)
        before = f"{',' if number else ''}{json.dumps(name, ensure_ascii=False)}:{quote}"
        pieces[-1] = f"{pieces[-1]}{before}"
        pieces += [pc.fill_null(texts, _NULL) if texts.null_count else texts, quote]
    pieces[-1] = f"{pieces[-1]}}}"
    if len(pieces) == 1:
        pieces.append(pa.array([""] * len(rows), pa.string()))
    texts = pc.binary_join_element_wise(*pieces, "")
    return pc.if_else(rows.is_valid(), texts, None) if rows.null_count else texts


def _written_natively(rows: pa.StructArray, names: Sequence[str]) -> pa.Array | None:
    """Let the kernel write rows; None where it leaves them to the reference."""
    from millrace.kernel.json_columns import json_objects  # noqa: PLC0415 - only where it is built

    columns = []
    for number, name in enumerate(names):
        kind, scale, column = _for_kernel(rows.field(number))
        valid, *others = column.buffers()
        values, offsets = (others[1], others[0]) if len(others) == 2 else (others[0], None)
        before = f"{',' if number else '{'}{json.dumps(name, ensure_ascii=False)}:".encode()
        columns.append((int(kind), scale, before, valid, values, offsets, column.offset))
    (valid,) = rows.buffers()[:1]
    written = json_objects(columns, len(rows), valid, rows.offset)
    if written is None:
        return None
    data, ends = map(pa.py_buffer, written)
    if rows.offset:
        valid = rows.is_valid().buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(rows), [valid, ends, data], rows.null_count)


def _for_kernel(column: pa.Array) -> tuple[_Kind, int, pa.Array]:
    """Return a column as the kernel takes it; the texts of its values where their type is none of its own."""
    type_ = column.type
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return _Kind.UTC if type_.tz else _Kind.TIMESTAMP, 0, column
    if pa.types.is_decimal128(type_) and type_.precision <= _MOST_DIGITS and type_.scale >= 0:
        return _Kind.DECIMAL, type_.scale, column
    if type_ in _KINDS:
        return _KINDS[type_], 0, column
    return _Kind.TEXT, 0, _values(column)


_KINDS: Final = {
    pa.string(): _Kind.STRING,
    pa.int64(): _Kind.LONG,
    pa.int32(): _Kind.INT,
    pa.bool_(): _Kind.BOOLEAN,
    pa.date32(): _Kind.DATE,
}


def _values(column: pa.Array) -> pa.Array:
    """Write each value of a column as JSON."""
    quote, texts = _texts(column)
    return pc.fill_null(_quoted(texts) if quote else texts, _NULL)


def _texts(column: pa.Array) -> tuple[str, pa.Array]:
    """Write each value that is not null, and say whether quotes are missing around it."""
    for holds, quote, write in _WRITERS:
        if holds(column.type):
            return quote, write(column)
    return "", column.cast(pa.string())


def _time(column: pa.Array) -> pa.Array:
    """Write times as in ISO 8601, those of the type with a zone in UTC."""
    texts = column.view(pa.timestamp("us")).cast(pa.string())
    size = _TIME_SIZE * len(texts)
    if not texts.null_count and size and texts.offset == 0:
        _, offsets, data = texts.buffers()
        if np.frombuffer(offsets, np.int32)[len(texts)] == size:
            # All have as many characters, so that one pass puts the T where the blank is.
            characters = np.frombuffer(data, np.uint8)[:size].copy()
            characters[_TIME_BLANK::_TIME_SIZE] = ord("T")
            texts = pa.Array.from_buffers(pa.string(), len(texts), [None, offsets, pa.py_buffer(characters)])
            return pc.binary_join_element_wise(texts, "Z", "") if column.type.tz else texts
    texts = pc.replace_substring(texts, " ", "T")
    return pc.binary_join_element_wise(texts, "Z", "") if column.type.tz else texts


def _items(column: pa.Array) -> pa.Array:
    items = pa.ListArray.from_arrays(column.offsets, _values(column.values))
    texts = pc.binary_join_element_wise("[", pc.binary_join(items, ","), "]", "")
    return pc.if_else(column.is_valid(), texts, None)


def _base64(column: pa.Array) -> pa.Array:
    values = [None if value is None else b64encode(value).decode() for value in column.to_pylist()]
    return pa.array(values, pa.string())


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.Array) -> pa.Array:
    """Escape what JSON does not have in a string as it is."""
    data = texts.buffers()[2]
    if data is None:
        return texts
    characters = np.frombuffer(data, np.uint8)
    if (characters < ord(" ")).any():
        values = texts.to_pylist()
        return pa.array(
            [None if value is None else json.dumps(value, ensure_ascii=False)[1:-1] for value in values],
            pa.string(),
        )
    for character in ("\\", '"'):
        if (characters == ord(character)).any():
            texts = pc.replace_substring(texts, character, f"\\{character}")
    return texts


_WRITERS: Final[Sequence[tuple[Callable[[pa.DataType], bool], str, Callable[[pa.Array], pa.Array]]]] = (
    (pa.types.is_string, _QUOTE, _escaped),
    (pa.types.is_timestamp, _QUOTE, _time),
    (pa.types.is_date, _QUOTE, lambda column: column.cast(pa.string())),
    (pa.types.is_binary, _QUOTE, _base64),
    (pa.types.is_struct, "", lambda column: json_rows(column, [field.name for field in column.type])),
    (pa.types.is_list, "", _items),
)
"""How values of a type are written, in quotes or not; others as Arrow casts them to text."""

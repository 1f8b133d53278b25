"""Rows as JSON, a column of Arrow at a time: what Spark's ``to_json`` writes of them.

So ``from_json`` reads them with the schema of the table. Numbers and decimals are numbers, bytes are base64,
NULL is null.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NULL: Final = "null"
_QUOTE: Final = '"'
_TIME_SIZE: Final = len("2026-01-31 10:00:00.000000")
_TIME_BLANK: Final = len("2026-01-31")


def json_rows(rows: pa.StructArray, names: Sequence[str]) -> pa.Array:
    """Return each row as a JSON object whose fields have these ``names``; null where a row is null."""
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

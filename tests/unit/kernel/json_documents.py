"""JSON documents in MySQL's binary form, as the servers write them."""

import struct
from typing import Any

from hypothesis import strategies as st

__all__ = ["DOCUMENTS", "binary_json"]

_INTEGERS = (("h", 0x05), ("H", 0x06), ("i", 0x07), ("I", 0x08), ("q", 0x09), ("Q", 0x0A))
_LITERALS = {None: b"\0", True: b"\1", False: b"\2"}


def binary_json(value: Any, *, large: bool = False) -> bytes:
    """Write a document; ``large`` asks for the form of large ones."""
    kind, data = _value(value, large)
    return bytes([kind]) + data


def _value(value: Any, large: bool) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 0x04, _LITERALS[value]
    if isinstance(value, int):
        for code, kind in _INTEGERS:
            try:
                return kind, struct.pack("<" + code, value)
            except struct.error:
                continue
    if isinstance(value, float):
        return 0x0B, struct.pack("<d", value)
    if isinstance(value, str):
        return 0x0C, _string(value.encode())
    keys = (
        sorted((key.encode() for key in value), key=lambda key: (len(key), key))
        if isinstance(value, dict)
        else []
    )
    values = [value[key.decode()] for key in keys] if isinstance(value, dict) else value
    return _container(keys, values, large, keyed=isinstance(value, dict))


def _string(raw: bytes) -> bytes:
    size, length = len(raw), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return length + bytes([size]) + raw


def _container(keys: list[bytes], values: list[Any], large: bool, *, keyed: bool) -> tuple[int, bytes]:
    width = 4 if large else 2
    at = 2 * width + len(keys) * (width + 2) + len(values) * (width + 1)
    key_entries, value_entries, content = b"", b"", b""
    for key in keys:
        key_entries += (at + len(content)).to_bytes(width, "little") + len(key).to_bytes(2, "little")
        content += key
    for value in values:
        kind, data = _value(value, large)
        if kind in (0x04, 0x05, 0x06) or (large and kind in (0x07, 0x08)):
            value_entries += bytes([kind]) + data.ljust(width, b"\0")
        else:
            value_entries += bytes([kind]) + (at + len(content)).to_bytes(width, "little")
            content += data
    size = at + len(content)
    head = len(values).to_bytes(width, "little") + size.to_bytes(width, "little")
    return (0 if keyed else 2) + large, head + key_entries + value_entries + content


_TEXT = st.text(max_size=5) | st.text(st.sampled_from('"\\/\b\t\n\f\r\x00\x1f\x7f \u2028é😀'), max_size=9)
_NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.integers(-70000, 70000)
_DOUBLES = (
    st.floats() | st.floats(-1e17, 1e17) | st.integers(-400, 400).map(lambda power: 10.0 ** (power / 20))
)
_LEAVES = st.none() | st.booleans() | _NUMBERS | _DOUBLES | _TEXT | st.text(min_size=125, max_size=135)

DOCUMENTS: st.SearchStrategy[bytes] = st.builds(
    binary_json,
    st.recursive(
        _LEAVES,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
        max_leaves=12,
    ),
    large=st.booleans(),
)
"""Documents of all kinds."""

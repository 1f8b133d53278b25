"""Strings as ``mysqlbinlog -v`` writes them: in quotes, with escapes that differ among servers.

All text is bytes: strings go out as they came in.
"""

import re

__all__ = ["HEX_ESCAPES", "SPECIAL", "STRING_ESCAPES", "escaped", "quoted_bytes"]

SPECIAL = re.compile(rb"[\x00-\x1f'\\]")
_ORDINARY = bytes(sorted(set(range(0x20, 0x100)) - set(b"'\\")))
"""The bytes that need no escape; to take them away is the quickest look for one that does."""
_SLICE = 1 << 16
HEX_ESCAPES = {bytes((code,)): b"\\x%02x" % code for code in (*range(0x20), ord("'"), ord("\\"))}
STRING_ESCAPES = HEX_ESCAPES | {
    b"\b": b"\\b",
    b"\f": b"\\f",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\r": b"\\r",
    b"'": b"\\'",
    b"\\": b"\\\\",
}


def quoted_bytes(data: bytes) -> bytes:
    """Write a string in quotes; control characters, quotes and backslashes are escaped, no others."""
    return escaped(SPECIAL, STRING_ESCAPES, data)


def escaped(special: re.Pattern[bytes], escapes: dict[bytes, bytes], data: bytes) -> bytes:
    """Replace single bytes, and quote; in slices, for the parts between them take more than their bytes."""
    if not data.translate(None, _ORDINARY):
        return b"'%b'" % data

    def escape(match: re.Match[bytes]) -> bytes:
        return escapes[match[0]]

    if len(data) <= _SLICE:
        return b"'%b'" % special.sub(escape, data)
    slices = (data[start : start + _SLICE] for start in range(0, len(data), _SLICE))
    return b"".join([b"'", *(special.sub(escape, piece) for piece in slices), b"'"])

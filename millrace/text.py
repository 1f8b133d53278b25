"""Text from elsewhere, made safe to show: names, messages and statements of servers, files and brokers.

A control character in such a text can move a terminal's cursor, colour or hide what follows, or begin a line
that looks like one of ours; a bidirectional override can make a text read as another one; a lone surrogate
cannot be written at all. :func:`printable` shows each of them as an escape instead.
"""

import re
from typing import Final

__all__ = ["printable", "shortened"]

_UNSAFE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 with line feed and tab, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, overrides and isolates of direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # surrogates: of bytes that are no UTF-8, or of half a character
    "]"
)


def printable(text: str) -> str:
    r"""Give ``text`` on one line, with an escape such as ``\x1b`` or ``\u202e`` for each unsafe character."""
    return _UNSAFE.sub(_escape, text)


def shortened(text: str, limit: int) -> str:
    """Give ``text`` with at most ``limit`` characters; an ellipsis stands where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

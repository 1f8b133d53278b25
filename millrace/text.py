"""Text from outside, made fit to be shown: names, statements and messages of servers, logs and registries."""

import re
from collections.abc import Callable
from typing import Final, overload

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters: C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # marks, overrides and isolates of bidirectional text
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff]"  # surrogates, which a string of Python has alone where bytes were no UTF-8
)
_SLICE: Final = 1 << 16
_BYTES: Final = range(0xDC80, 0xDD00)
"""The surrogates by which Python's ``surrogateescape`` stands for single bytes."""


@overload
def valid_text(text: str) -> str: ...


@overload
def valid_text(text: None) -> None: ...


def valid_text(text: str | None) -> str | None:
    """Return a name as text that every consumer can read; bytes that are not UTF-8 are escaped."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return a text in which nothing acts on a terminal, breaks a line or cannot be encoded.

    Control characters become ``\x1b`` and the like, marks of text direction and separators ``\u202e``, lone
    surrogates ``\ud800``; one that stands for a byte that is not UTF-8 is shown as that byte, ``\xff``. With
    ``lines`` line feeds and tabs stay.
    """
    return _escaped(text, _escape_in_lines if lines else _escape)


def _escaped(text: str, escape: Callable[[re.Match[str]], str]) -> str:
    """Replace characters; in slices, for the parts between them take more memory than their text."""
    if text.isascii() and text.isprintable():
        return text
    if len(text) <= _SLICE:
        return _UNPRINTABLE.sub(escape, text)
    slices = (text[start : start + _SLICE] for start in range(0, len(text), _SLICE))
    return "".join([_UNPRINTABLE.sub(escape, piece) for piece in slices])


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code in _BYTES:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _escape_in_lines(match: re.Match[str]) -> str:
    return match[0] if match[0] in "\n\t" else _escape(match)


def shortened(text: str, limit: int) -> str:
    """Return ``text`` with at most ``limit`` characters; an ellipsis stands where it was cut."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def printable_json(text: str) -> str:
    r"""Return JSON text of :mod:`json` with such characters as escapes; its content stays the same.

    A lone surrogate, which JSON text must not have, becomes what :func:`printable` shows: ``\\xff``.
    """
    return _escaped(text, _escape_json)


def _escape_json(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return match[0]  # between values; within them json has escaped it
    return "\\" + _escape(match) if 0xD800 <= code < 0xE000 else f"\\u{code:04x}"

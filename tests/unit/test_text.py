"""Text from elsewhere, made safe to show."""

import pytest

from millrace.text import printable, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ümlaut, 日本, 😀, \\ and ~", "plain, ümlaut, 日本, 😀, \\ and ~"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("two\r\nlines\tand\0nothing\x7f", r"two\x0d\x0alines\x09and\x00nothing\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("gpj.\u202eexe\u2066\u2069\u200f\u061c", r"gpj.\u202eexe\u2066\u2069\u200f\u061c"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        (b"\xff\xfe".decode("utf-8", "surrogateescape"), r"\udcff\udcfe"),
        ("\ud83d", r"\ud83d"),
    ],
)
def test_what_is_unsafe_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_long_text_is_cut() -> None:
    assert shortened("abcde", 5) == "abcde"
    assert shortened("abcdef", 5) == "abcd…"

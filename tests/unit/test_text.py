"""What is shown of texts from outside."""

import json

import pytest

from millrace.text import printable, printable_json, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain ASCII ~", "plain ASCII ~"),
        ("Größe 表 😀 \N{ZERO WIDTH JOINER}", "Größe 表 😀 \N{ZERO WIDTH JOINER}"),
        ("a\nb\tc\r", r"a\x0ab\x09c\x0d"),
        ("\x1b]0;title\x07\x1b[2J", r"\x1b]0;title\x07\x1b[2J"),
        ("\0\x7f\x80\x9b31m\x9f", r"\x00\x7f\x80\x9b31m\x9f"),
        ("user\u202egnp.exe\u2066\u200f\u061c", r"user\u202egnp.exe\u2066\u200f\u061c"),
        ("one\u2028two\u2029", r"one\u2028two\u2029"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), r"caf\xe9"),
        ("\ud800\udfff", r"\ud800\udfff"),
    ],
)
def test_what_acts_on_a_terminal_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


EVERYTHING = (*range(0x3000), *range(0xD700, 0xE100), 0xFEFF, 0x1F600, 0x10FFFF)


def test_lines_and_tabs_stay_where_they_are_wanted() -> None:
    assert printable("a\n\tb\r\x0b\x85", lines=True) == "a\n\tb\\x0d\\x0b\\x85"


def test_every_character_can_be_printed_and_stays_on_its_line() -> None:
    for code in EVERYTHING:
        shown = printable(chr(code))
        shown.encode()
        assert len(shown.splitlines()) == 1
        assert shown == chr(code) or shown.isascii()


def test_json_text_keeps_its_content() -> None:
    for code in EVERYTHING:
        written = printable_json(json.dumps([chr(code)], ensure_ascii=False))
        assert printable(written) == written
        surrogate = 0xD800 <= code < 0xE000
        assert json.loads(written) == [printable(chr(code)) if surrogate else chr(code)]


def test_json_text_keeps_its_lines() -> None:
    text = json.dumps({"a": "\n\x9b"}, indent=2, ensure_ascii=False)
    assert printable_json(text) == text.replace("\x9b", "\\u009b")


def test_long_text_is_cut() -> None:
    assert shortened("abcde", 5) == "abcde"
    assert shortened("abcdef", 5) == "abcd…"

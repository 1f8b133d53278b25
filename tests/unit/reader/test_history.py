"""What a server's history says of what was read: sets of MySQL, tagged ones, domains of MariaDB."""

import pytest

from services.reader.history import after_both, lacking, missing

A = "00000000-0000-0000-0000-00000000000a"
B = "00000000-0000-0000-0000-00000000000b"


@pytest.mark.parametrize(
    ("read", "history", "lost"),
    [
        (f"{A}:1-9", f"{A}:1-12,{B}:1", ""),
        (f"{A}:1-9", f"{A}:1-7", f"{A}:8-9"),
        (f"{A}:1-9,{B}:3", f"{A}:1-20", f"{B}:3"),
        (f"{A}:1-9:tag:1-2", f"{A}:1-20:tag:1", f"{A}:tag:2"),
        (f"{A}:1-9", "", f"{A}:1-9"),
        (f"{A}:1-9", "0-1-100", f"{A}:1-9"),
        ("0-1-100", "0-1-100,0-2-200", ""),
        ("0-1-100", "0-1-99,0-2-200", "0-1-100"),
        ("0-1-100,5-1-7", "0-1-100", "5-1-7"),
        ("0-1-100", "", "0-1-100"),
        ("0-1-100", f"{A}:1-9", "0-1-100"),
    ],
)
def test_what_a_history_lacks(read: str, history: str, lost: str) -> None:
    assert lacking(read, history) == lost


@pytest.mark.parametrize(
    ("read", "gone", "words", "onwards"),
    [
        (f"{A}:1-9", "", "", f"{A}:1-9"),
        (f"{A}:1-9", f"{A}:1-5", "", f"{A}:1-9"),
        (f"{A}:1-9", f"{A}:1-12,{B}:1-2", f"{A}:10-12,{B}:1-2", f"{A}:1-12,{B}:1-2"),
        (f"{A}:1-9", f"{A}:1-9:tag:4", f"{A}:tag:4", f"{A}:1-9:tag:4"),
        ("0-1-100", "0-1-90,0-2-100", "", "0-1-100"),
        ("0-1-90,0-2-140", "0-1-90,0-2-140", "", ""),
        ("0-1-100", "0-1-90,0-2-140", "after 0-1-100 up to 0-2-140", "0-2-140"),
        (
            "0-1-100",
            "0-1-101,7-1-3",
            "after 0-1-100 up to 0-1-101, up to 7-1-3",
            "0-1-101,7-1-3",
        ),
    ],
)
def test_what_is_gone(read: str, gone: str, words: str, onwards: str) -> None:
    assert missing(read, gone) == words
    if words:
        assert after_both(read, gone) == onwards

"""Members of ENUM and SET as servers print them."""

import pytest

from millrace.mysql.catalog import enum_members


@pytest.mark.parametrize(
    ("column_type", "members"),
    [
        ("enum('a','b')", ("a", "b")),
        ("ENUM('a')", ("a",)),
        ("set('x','y)','(')", ("x", "y)", "(")),
        ("enum('it''s','a,b','''','')", ("it's", "a,b", "'", "")),
        (r"enum('a\\b','line\nfeed','\0','\r')", ("a\\b", "line\nfeed", "\0", "\r")),
        ("enum('é','日本')", ("é", "日本")),
        ("varchar(10)", None),
        ("int", None),
    ],
)
def test_members(column_type: str, members: tuple[str, ...] | None) -> None:
    assert enum_members(column_type) == members

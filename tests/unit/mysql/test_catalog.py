"""Members of ENUM and SET, and literals of defaults, as servers print them."""

import pytest

from millrace.mysql.catalog import enum_members, literal_default


@pytest.mark.parametrize(
    ("column_type", "members"),
    [
        ("enum('a','b')", ("a", "b")),
        ("ENUM('a')", ("a",)),
        ("set('x','y)','(')", ("x", "y)", "(")),
        ("enum('it''s','a,b','''','')", ("it's", "a,b", "'", "")),
        (r"enum('a\\b','line\nfeed','\0','\r')", ("a\\b", "line\nfeed", "\0", "\r")),
        ("enum('é','日本')", ("é", "日本")),
        ("enum('x',x'e4','y')", None),  # as MySQL 9.7 shows a member that is invalid in its character set
        ("varchar(10)", None),
        ("int", None),
    ],
)
def test_members(column_type: str, members: tuple[str, ...] | None) -> None:
    assert enum_members(column_type) == members


@pytest.mark.parametrize(
    ("shown", "of_mysql", "of_mariadb"),
    [
        ("", None, None),
        ("=", "", None),
        ("=7", "7", "7"),
        ("=-1.50", "-1.50", "-1.50"),
        ("=b'101'", "b'101'", "b'101'"),
        ("=''", "''", ""),
        ("='it''s'", "'it''s'", "it's"),
        (r"='a\\b\n'", r"'a\\b\n'", "a\\b\n"),
        ("=x", "x", None),
        ("=NULL", "NULL", None),
        ("=current_timestamp()", "current_timestamp()", None),
        ("='a' + 'b'", "'a' + 'b'", None),
        (f"='{998 * 'x'}'", f"'{998 * 'x'}'", 998 * "x"),
        ("='" + 2000 * "'" + "'", None, 1000 * "'"),
        ("='" + 2002 * "'", None, None),
    ],
)
def test_defaults(shown: str, of_mysql: str | None, of_mariadb: str | None) -> None:
    """MySQL says of an expression elsewhere that it is one."""
    assert literal_default(shown, mariadb=False) == of_mysql
    assert literal_default(shown, mariadb=True) == of_mariadb

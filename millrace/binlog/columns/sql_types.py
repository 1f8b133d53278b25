"""The text of a column's type as a server's catalog gives it, taken apart."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from millrace.binlog.errors import UnsupportedError

__all__ = ["INTEGERS", "SqlType"]

INTEGERS: Final = frozenset(("tinyint", "smallint", "mediumint", "int", "bigint"))

_TYPE = re.compile(r"\s*([a-z0-9_]+)\s*(?:\(([\d\s,]+)\))?(.*)", re.DOTALL)

_SHORT: Final = 64
"""Characters of a text that is kept: tables have the same few. That of an ENUM may have a million."""


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type such as ``decimal(10,2) unsigned``: name, numbers in parentheses, and what follows them."""

    name: str
    arguments: tuple[int, ...] = ()
    attributes: str = ""

    @staticmethod
    def parse(text: str) -> "SqlType":
        """Take apart the text of a type; raise :class:`UnsupportedError` where it has no name."""
        return _parse_short(text) if len(text) <= _SHORT else _parse(text)

    @property
    def holds_bytes(self) -> bool:
        """Whether it is one of the types of bytes that have a brother of characters."""
        return self.name.endswith(("binary", "blob"))

    def argument(self, default: int) -> int:
        """Return the first number, or ``default`` where there is none."""
        return self.arguments[0] if self.arguments else default


def _parse(text: str) -> SqlType:
    match = _TYPE.match(text.lower())
    if match is None:
        raise UnsupportedError(f"the catalog calls a column's type {text!r}")
    name, arguments, attributes = match.groups()
    return SqlType(name, tuple(map(int, arguments.split(","))) if arguments else (), attributes.strip())


_parse_short: Final = lru_cache(256)(_parse)

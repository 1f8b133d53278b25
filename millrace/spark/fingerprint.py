"""Fingerprints of statements: the text without its values, equal for statements that do the same.

Strings and numbers become ``?``, lists of values one value, comments and white space single spaces; words are
in lower case. The text is split into tokens but not parsed, so invalid SQL has a fingerprint, too.
"""

import re
from typing import Final

from millrace.text import printable, shortened

LONGEST: Final = 400
"""Characters of a fingerprint."""

_READ: Final = 4096
"""Bytes of a statement that are examined: a longer one is a list of values."""

_TOKEN: Final = re.compile(
    r"""
      (?P<skip> \s++ | /\*.*?(?:\*/|\Z) | --(?=\s|\Z)[^\n]*+ | \#[^\n]*+ )
    | (?P<name> `(?:[^`]++|``)*+(?:`|\Z) )
    | (?P<value> [xXbBnN]?'(?:[^'\\]++|\\.|'')*+(?:'|\\?\Z) | "(?:[^"\\]++|\\.|"")*+(?:"|\\?\Z)
               | 0[xX][0-9a-fA-F]+ | (?<![\w$])(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w$]) )
    | (?P<word> [\w$@]++ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_SIGNED: Final = re.compile(r"(?<=[=(,<>+*/%])[-+]\?")
_LIST: Final = re.compile(r"\((?:\?|null|default)(?:,(?:\?|null|default))*\)")
_LISTS: Final = re.compile(r"\(\?\)(?:,\(\?\))+")
_SPACE: Final = re.compile(r" (?=[-,()=.;<>+/%!])|(?<=[-,(=.;<>+/%!]) ")


def fingerprint(statement: bytes) -> str:
    """Return the fingerprint of a statement, at most :data:`LONGEST` characters."""
    text = statement[:_READ].decode("utf-8", "replace")
    parts = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "skip":
            parts.append(" ")
        elif kind == "value":
            parts.append("?")
        else:
            parts.append(match.group().lower() if kind == "word" else match.group())
    joined = " ".join("".join(parts).split())
    joined = _SIGNED.sub("?", _SPACE.sub("", joined))
    joined = _LISTS.sub("(?)", _LIST.sub("(?)", joined)).strip(" ;")
    return shortened(printable(joined), LONGEST)

"""Whether a server takes two values of a column for equal, as far as that is certain without asking it.

Computed are the binary collations, and for texts of ASCII characters, some of them with accents, those of
Unicode (``unicode``, ``0900``, ``uca1400``) and the ``general`` ones: see MySQL's manual, "Unicode Character
Sets" and "Trailing Space Handling in Comparisons".
"""

import re
import unicodedata
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from millrace.binlog.columns.sql_types import INTEGERS, SqlType
from millrace.binlog.table import ColumnDefinition

_COMPUTED: Final = re.compile(
    r"(?:(?:utf8(?:mb[34])?|ucs2|utf16|utf32)_)?"
    r"(general|unicode|unicode_520|0900|uca1400)_(?:nopad_)?(?:(ai|as)_)?(ci|cs)"
    r"|latin1_(swedish)_(?:nopad_)?(ci)"
)
_NUMBERS: Final = INTEGERS | {"year", "decimal", "float", "double"}
_TIMES: Final = {"time", "datetime", "timestamp"}
_LATIN_EXTENDED_A_END: Final = "\u0180"
_BMP_END: Final = 0x10000
_LETTERS: Final = str.maketrans(
    dict(zip("æœøłđðħŧþ\u0131", ("ae", "oe", "o", "l", "d", "d", "h", "t", "th", "i"), strict=True))
)
_IGNORED: Final = {"Mn", "Me", "Cc", "Cf", "Zs"}


def same_value(column: ColumnDefinition, value: Any, text: str, written: str) -> bool | None:
    """Return whether a column's ``value``, ``written`` as text, equals ``text``; None where not certain."""
    if value is None or written == text:
        return value is not None
    kind = SqlType.parse(column.column_type).name
    if kind in _NUMBERS:
        with suppress(InvalidOperation):
            return Decimal(text) == Decimal(written)
    if kind in _TIMES:
        return _without_zeros(text) == _without_zeros(written)
    if column.charset is None or not isinstance(value, str):
        return False
    return equal(column.collation, value, text)


def _without_zeros(text: str) -> str:
    """Cut zeros below the second."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def equal(collation: str | None, one: str, other: str) -> bool | None:
    """Return whether a collation, None for an unknown one, takes texts for equal; None where not certain.

    False is certain where one of them :func:`is_certain`; otherwise they differ by more than collations that
    are not computed commonly take for equal.
    """
    name = collation or ""
    if name and "0900" not in name and "nopad" not in name:
        one, other = one.rstrip(" "), other.rstrip(" ")
    if one == other:
        return True
    if name.endswith("_bin"):
        # The one of MariaDB ignores trailing spaces.
        return None if "0900" in name and one.rstrip(" ") == other.rstrip(" ") else False
    plain = [_plain(name, text) for text in (one, other)]
    if None not in plain:
        return plain[0] == plain[1]
    skeletons = [_skeleton(text) for text in (one, other)]
    if name.startswith("latin1_swedish"):
        skeletons = [skeleton.replace("y", "u") for skeleton in skeletons]  # ü is y
    return None if skeletons[0] == skeletons[1] else False


def is_certain(collation: str | None, text: str) -> bool:
    """Return whether :func:`equal` finds all that a collation takes for equal to a text, or says None."""
    return (collation or "").endswith("_bin") or _plain(collation or "", text) is not None


def _plain(collation: str, text: str) -> str | None:
    """Return a text so that only equal ones are the same; None where that is not computed."""
    if (found := _COMPUTED.fullmatch(collation)) is None:
        return None
    of, accents, case, latin1, _ = found.groups()
    drops_accents = not latin1 and accents != "as" and case == "ci" and not text.isascii()
    if of == "general" and drops_accents:
        drops_accents = collation.startswith("utf8") and max(text) < _LATIN_EXTENDED_A_END
    if drops_accents:
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(each for each in decomposed if unicodedata.category(each) != "Mn")
    if not (text.isascii() and text.isprintable()):
        return None
    return text if case == "cs" else text.lower()


def _skeleton(text: str) -> str:
    """Return a text without all that some collation takes for no difference."""
    folded = unicodedata.normalize("NFKD", text).casefold().translate(_LETTERS)
    kept = "".join(
        each if ord(each) < _BMP_END else "\ufffd"
        for each in unicodedata.normalize("NFKD", folded)
        if unicodedata.category(each) not in _IGNORED
    )
    return kept.replace("ss", "s").replace("l\u00b7", "l")

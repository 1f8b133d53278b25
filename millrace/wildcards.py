"""Patterns of names and values with wildcards, as those of LIKE, matched in linear time.

A regular expression tries each place of a ``%`` with each place of the others, so that one value can keep a
process busy for hours. What stands between two of them need be found once: a match elsewhere leaves less of
the text to the others, never more.
"""

import re
from typing import Final

_ESCAPE: Final = "\\"


class Wildcards:
    r"""A pattern: ``any_`` stands for any characters, ``one`` for one, unless a ``\`` escapes them."""

    __slots__ = ("_first_size", "_fragments")

    def __init__(self, pattern: str, any_: str = "%", one: str = "_", *, escapes: bool = True) -> None:
        fragments: list[list[str]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if character == any_:
                fragments.append([])
            elif character == one:
                fragments[-1].append(".")
            else:
                literal = next(characters, _ESCAPE) if escapes and character == _ESCAPE else character
                fragments[-1].append(re.escape(literal))
        self._first_size = len(fragments[0])
        # Without a quantifier none of them backtracks. Backwards, as the text is read: the first of several
        # ``any_`` stands for as much as it can.
        self._fragments = [re.compile("".join(each[::-1]), re.DOTALL) for each in reversed(fragments)]

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches all of ``text``."""
        return self.split(text) is not None

    def split(self, text: str) -> list[str] | None:
        """Return what each ``any_`` stands for, the first for as much as it can; None without a match."""
        backwards = text[::-1]
        last, *others = self._fragments
        found = last.match(backwards)
        if found is None:
            return None
        end = found.end()
        if not others:
            return [] if end == len(text) else None
        parts = []
        for fragment in others[:-1]:
            found = fragment.search(backwards, end)
            if found is None:
                return None
            parts.append(backwards[end : found.start()])
            end = found.end()
        start = len(text) - self._first_size
        if start < end or others[-1].match(backwards, start) is None:
            return None
        parts.append(backwards[end:start])
        return [part[::-1] for part in reversed(parts)]

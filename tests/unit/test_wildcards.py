"""Patterns with wildcards match what the regular expressions match that say the same."""

import re

from hypothesis import given
from hypothesis import strategies as st

from millrace.wildcards import Wildcards


@given(st.text("ab%_\\\n", max_size=8), st.text("ab%_\\\n", max_size=16))
def test_patterns_of_like(pattern: str, text: str) -> None:
    signs = re.findall(r"(?s)\\.|.", pattern)
    parts = [{"%": "(.*)", "_": "."}.get(sign) or re.escape(sign[-1]) for sign in signs]
    found = re.fullmatch("".join(parts), text, re.DOTALL)
    assert Wildcards(pattern).split(text) == (None if found is None else [*found.groups()])
    assert Wildcards(pattern).matches(text) is (found is not None)


@given(st.text("ab*?\\", max_size=8), st.text("ab*?\\", max_size=16))
def test_other_signs_and_no_escape(pattern: str, text: str) -> None:
    parts = [{"*": ".*", "?": "."}.get(sign) or re.escape(sign) for sign in pattern]
    found = re.fullmatch("".join(parts), text, re.DOTALL)
    assert Wildcards(pattern, "*", "?", escapes=False).matches(text) is (found is not None)

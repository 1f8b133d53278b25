"""A document's text to MySQL's binary JSON and back: the same text, whatever is in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.binlog.columns.json_binary import json_text, text_of_json
from millrace.binlog.columns.json_encoding import encode_json
from millrace.binlog.errors import InvalidValueError

TEXTS = (
    "null",
    "true",
    "0",
    "-1",
    "32767",
    "-32769",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1.0",
    "-0.0",
    "1.5",
    "1e20",
    "1.10",
    "0.00",
    "-12345678901234567890.1234500",
    '""',
    '"größe \\u0001 \\" \\\\ \\n"',
    '"base64:type15:YWJj"',
    '"2020-01-01 00:00:00.000000"',
    "[]",
    "{}",
    '[1, "a", null, [true, {}], {"k": 1.50}]',
    '{"a": {"b": [1, 2, 3]}, "ä": "' + "x" * 70_000 + '"}',
)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:30])
def test_a_document_is_printed_as_it_was(text):
    assert json_text(encode_json(text)) == text


_DOCUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(_DOCUMENTS)
def test_any_document_is_printed_as_it_was(document):
    text = text_of_json(document)
    assert json_text(encode_json(text)) == text


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,]"])
def test_what_is_no_document_is_refused(text):
    with pytest.raises(InvalidValueError, match="JSON"):
        encode_json(text)

"""Values that a column takes for equal; collations are compared with servers by a live test."""

import pytest

from millrace.binlog.table import ColumnDefinition
from millrace.verify.collations import equal, is_certain, same_value


@pytest.mark.parametrize(
    ("collation", "one", "other", "expected"),
    [
        ("utf8mb4_0900_ai_ci", "key12", "KEY12", True),
        ("utf8mb4_0900_ai_ci", "Zoë", "zoe", True),
        ("utf8mb4_0900_ai_ci", "a", "a ", False),
        ("utf8mb4_0900_as_ci", "a", "A", True),
        ("utf8mb4_0900_as_ci", "e", "é", None),
        ("utf8mb4_0900_as_cs", "a", "A", False),
        ("utf8mb4_general_ci", "a", "A ", True),
        ("utf8mb4_general_ci", "\U0001f600", "\U0001f601", None),
        ("utf8mb4_bin", "a", "A", False),
        ("utf8mb4_bin", "a", "a ", True),
        ("latin1_swedish_ci", "é", "e", None),
        ("utf8mb4_da_0900_ai_ci", "a", "A", None),
        (None, "a", "A", None),
        (None, "a", "b", False),
    ],
)
def test_texts(collation: str | None, one: str, other: str, expected: bool | None) -> None:
    assert equal(collation, one, other) is expected
    assert equal(collation, other, one) is expected


def test_what_is_found_by_all_its_spellings() -> None:
    assert is_certain("utf8mb4_0900_ai_ci", "key12")
    assert is_certain("latin1_bin", "é")
    assert not is_certain("utf8mb4_0900_ai_ci", "日本")
    assert not is_certain(None, "key12")


@pytest.mark.parametrize(
    ("column_type", "value", "text", "expected"),
    [
        ("int", 5, "05", True),
        ("int", 5, "x", False),
        ("decimal(5,2)", "1.50", "1.5", True),
        ("datetime(3)", "2024-01-02 03:04:05.600", "2024-01-02 03:04:05.6", True),
        ("date", "2024-01-02", "2024-01-03", False),
        ("varbinary(9)", b"\x01", "0x01", True),
        ("int", None, "None", False),
    ],
)
def test_other_values(column_type: str, value: object, text: str, *, expected: bool) -> None:
    column = ColumnDefinition(0, "c", column_type)
    written = f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
    assert same_value(column, value, text, written) is expected

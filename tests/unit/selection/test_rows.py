"""Conditions on rows: what is true, what is unknown, and what is refused."""

import pytest

from millrace.selection.rows import ColumnKind, Condition, ConditionError, parse_rules

KINDS = {
    "n": ColumnKind.NUMBER,
    "f": ColumnKind.REAL,
    "t": ColumnKind.TEXT,
    "d": ColumnKind.MOMENT,
    "h": ColumnKind.TIME,
    "j": ColumnKind.OTHER,
    "a b": ColumnKind.TEXT,
    "null": ColumnKind.NUMBER,
}
ROW = {
    "n": "10.50",
    "f": "0.1",
    "t": "it's 5%",
    "d": "2024-01-31 00:00:00.000",
    "h": "-01:30:00.50",
    "j": "{}",
    "a b": "",
    "null": None,
}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("n = 10.5", True),
        ("n = '10.5'", True),
        ("n > 9", True),
        ("n > '9'", True),
        ("N < -1", False),
        ("n <> 10.5", False),
        ("9 < n", True),
        ("f = 0.1", True),
        ("n > f", True),
        ("t = 'it''s 5%'", True),
        ("t = 'IT''S 5%'", False),
        (r"t LIKE 'it%5\%'", True),
        (r"t LIKE 'it%5\_'", False),
        ("t NOT LIKE 'x%'", True),
        ("t NOT LIKE 'it%'", False),
        ("d = '2024-01-31'", True),
        ("d < '2024-02-01 00:00:00'", True),
        ("d BETWEEN '2024-01-01' AND '2024-01-31'", True),
        ("d NOT BETWEEN '2024-01-01' AND '2024-01-31'", False),
        ("h < '-01:30:00'", True),
        ("h > '00:00:00'", False),
        ("n IN (1, 10.5)", True),
        ("n NOT IN (1, 2)", True),
        ("n IN (1, NULL)", False),
        ("n NOT IN (1, NULL)", False),
        ("j IS NOT NULL", True),
        ("`null` IS NULL", True),
        ("`null` = 1", False),
        ("NOT `null` = 1", False),
        ("`null` = 1 OR n = 10.5", True),
        ("`null` = 1 AND n = 10.5", False),
        ("NOT (`null` = 1 AND n = 1)", True),
        ("`null` <=> NULL", True),
        ("`null` <=> 1", False),
        ("NOT `null` <=> 1", True),
        ("`a b` = ''", True),
        ("n = 1 OR n = 10.5 AND t = 'x'", False),
        ("(n = 10.5 OR n = 1) AND TRUE", True),
    ],
)
def test_conditions(text: str, selected: bool) -> None:
    assert Condition.parse(text).bind(KINDS)(ROW) is selected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n =",
        "n",
        "1 = 1",
        "f(n) = 1",
        "n + 1 = 2",
        "n IN (SELECT 1)",
        "EXISTS (SELECT 1)",
        "x.n = 1",
        "n = 1; DROP TABLE t",
        "n REGEXP 'x'",
        "t LIKE 'x' ESCAPE '!'",
        "n = @@version",
        "n = ?",
        "CASE WHEN n = 1 THEN TRUE END",
        "n := 1",
    ],
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ConditionError):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1", "there is no column x"),
        ("n = 'x'", "'x' is not a number"),
        ("d = 'x'", "'x' is not a date"),
        ("d = 20240131", "write it as a string"),
        ("t = 5", "write it as a string"),
        ("h = '1'", "'1' is not a time"),
        ("j = 'x'", "cannot be compared"),
        ("t = n", "different kinds"),
        ("n LIKE '1%'", "LIKE is for text"),
    ],
)
def test_what_does_not_fit_a_table(text: str, problem: str) -> None:
    with pytest.raises(ConditionError, match=problem):
        Condition.parse(text).bind(KINDS)


def test_rules() -> None:
    rules = parse_rules("a.b: t = 'x;:y' ; a.%: n > 1;")
    assert [condition.text for condition in rules.of("a", "b")] == ["t = 'x;:y'", "n > 1"]
    assert [condition.text for condition in rules.of("a", "c")] == ["n > 1"]
    assert rules.of("b", "b") == []
    for wrong in ("a: n = 1", "n = 1", "a.b: "):
        with pytest.raises(ConditionError):
            parse_rules(wrong)

"""The rules of replicate-…: each case says what a replica with these rules gets.

``tests/live/test_failover.py`` asks a real one.
"""

import pytest

from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError
from millrace.runtime.settings import load_settings
from millrace.selection.settings import ReplicateSettings
from millrace.selection.tables import is_plain, wild

TABLES = ("shop.orders", "shop.customers", "shop_eu.orders", "hr.people", "HR.people")

CASES = [
    ({}, TABLES),
    ({"do_db": "shop,hr"}, ("shop.orders", "shop.customers", "hr.people")),
    ({"ignore_db": "shop"}, ("shop_eu.orders", "hr.people", "HR.people")),
    ({"do_db": "shop", "do_table": "hr.people"}, ()),
    ({"do_table": "shop.orders"}, ("shop.orders",)),
    ({"ignore_table": "shop.orders"}, TABLES[1:]),
    ({"do_table": "shop.orders", "ignore_table": "shop.orders"}, ("shop.orders",)),
    ({"do_table": "shop.orders", "ignore_table": "hr.people"}, ("shop.orders",)),
    ({"wild_do_table": "shop.%"}, ("shop.orders", "shop.customers")),
    ({"wild_do_table": "shop%.%"}, ("shop.orders", "shop.customers", "shop_eu.orders")),
    ({"wild_do_table": r"shop\_eu.%"}, ("shop_eu.orders",)),
    ({"wild_do_table": "hr.peopl_"}, ("hr.people",)),
    ({"wild_ignore_table": "%.orders"}, ("shop.customers", "hr.people", "HR.people")),
    ({"wild_do_table": "shop.%", "wild_ignore_table": "shop.%"}, ("shop.orders", "shop.customers")),
    ({"ignore_table": "shop.orders", "wild_do_table": "shop.%"}, ("shop.customers",)),
    ({"do_table": "shop.orders", "wild_ignore_table": "shop.%"}, ("shop.orders",)),
    ({"do_table": "hr.people", "wild_do_table": "shop.%"}, ("shop.orders", "shop.customers", "hr.people")),
    ({"rewrite_db": "shop->eu", "do_db": "eu"}, ("shop.orders", "shop.customers")),
    ({"rewrite_db": "shop->eu", "do_db": "shop"}, ()),
    ({"rewrite_db": "hr->shop", "do_table": "shop.people"}, ("hr.people",)),
]
OWN = "mysql.rds_heartbeat2"
"""A table of the server's own, which a replica would get."""
CASES_OF_OWN = [
    ({"do_db": "hr,mysql"}, ("hr.people", OWN)),
    ({"do_table": OWN}, (OWN,)),
    ({"wild_do_table": "mysql.%"}, (OWN,)),
    ({"rewrite_db": "mysql->hr"}, (*TABLES, OWN)),
]


@pytest.mark.parametrize(("rules", "expected"), [*CASES, *CASES_OF_OWN], ids=lambda case: str(case)[:60])
def test_what_a_replica_gets(rules: dict[str, str], expected: tuple[str, ...]) -> None:
    tables = ReplicateSettings(**rules).tables
    assert bool(tables) == bool(rules)
    assert tuple(name for name in (*TABLES, OWN) if tables.selects(*name.split("."))) == expected


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a%", "A.b", False),
        ("a_c", "abc", True),
        ("a_c", "ac", False),
        (r"a\_c", "abc", False),
        (r"a\_c", "a_c", True),
        (r"a\%", "a%", True),
        ("a.c", "abc", False),
        ("%", "a\nb", True),
        ("[a]*", "aaa", False),
        ("a\\", "a\\", True),
    ],
)
def test_patterns(pattern: str, text: str, matches: bool) -> None:
    assert wild(pattern, text) is matches


def test_plain_patterns() -> None:
    assert [is_plain(each) for each in ("a.b", r"a\_b", "a_b", "a%")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("variable", "value"),
    [("DO_DB", "a.b"), ("DO_TABLE", "a"), ("WILD_IGNORE_TABLE", "a."), ("REWRITE_DB", "a=b")],
)
def test_what_is_no_rule_is_refused(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "SOURCE": "shop",
        "KAFKA_BOOTSTRAP_SERVERS": "localhost:1",
        "REGISTRY_URL": "http://localhost:1",
        f"REPLICATE_{variable}": value,
    }.items():
        monkeypatch.setenv(f"MILLRACE_{name}", text)
    with pytest.raises(
        SettingsError, match=f"MILLRACE_REPLICATE_{variable} is wrong: .* is not .*; expected"
    ):
        load_settings(RowMapperSettings)

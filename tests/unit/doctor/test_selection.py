"""What doctor says of the rules of selection."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from millrace.doctor.selection_checks import selection
from millrace.finding import Level
from millrace.rowmapper.settings import RowMapperSettings

if TYPE_CHECKING:
    from millrace.doctor.server import Server

COLUMNS = {
    ("shop", "orders"): {"id": "int", "Total": "decimal", "note": "varchar", "doc": "json"},
    ("hr", "people"): {"id": "int"},
}


def found(variables: dict[str, str] | None = None, **rules: Any) -> list[tuple[Level, str]]:
    settings = RowMapperSettings(
        source="s",
        kafka={"bootstrap_servers": "h:1"},  # type: ignore[arg-type]  # pydantic reads it
        registry={"url": "http://h:1"},  # type: ignore[arg-type]  # likewise
        **rules,
    )
    server = cast("Server", SimpleNamespace(rules=settings, columns=COLUMNS, variables=variables or {}))
    server.is_on = lambda name: server.variables.get(name) == "ON"  # type: ignore[method-assign]
    return [(outcome.level, outcome.text) for outcome in selection(server)]


def test_without_rules_nothing_is_said() -> None:
    assert found() == []
    assert list(selection(cast("Server", SimpleNamespace(rules=None)))) == []


def test_what_defeats_the_exclusion_of_rows() -> None:
    assert found(topics={"raw_exclude": "SHOP.ord%"}) == []
    variables = {"binlog_transaction_compression": "ON", "binlog_format": "MIXED"}
    fits, stops, stays = found(variables, topics={"raw_exclude": "shops.%"})
    assert "no table matches shops.%" in fits[1]
    assert stops[0] is Level.ERROR
    assert "compressed transactions: the reader stops at the first" in stops[1]
    assert stays[0] is Level.WARNING
    assert "whose text stays" in stays[1]


def test_rules_that_fit() -> None:
    ((level, text),) = found(
        replicate={
            "do_db": "sales,hr",
            "ignore_table": "hr.people",
            "wild_ignore_table": "sales.ord%",
            "rewrite_db": "shop->sales",
            "ignore_operations": "shop.%=d",
        },
        columns={"drop": "shop.orders.NOTE"},
        rows={"filter": "shop.orders: total > 1 AND doc IS NULL", "keys": "shop.orders=ID"},
    )
    assert level is Level.OK
    assert "dead letters hold everything" in text


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"replicate": {"do_db": "shops"}}, "there is no database shops"),
        ({"replicate": {"ignore_table": "shop.order"}}, "there is no table shop.order"),
        ({"replicate": {"wild_do_table": "x%.%"}}, "no table matches x%.%"),
        ({"replicate": {"rewrite_db": "x->y"}}, "there is no database x to rename"),
        ({"replicate": {"ignore_operations": "x.y=c"}}, "no table matches x.y"),
        ({"columns": {"mask": "shop.orders.notes=x"}}, "no column matches shop.orders.notes"),
        ({"rows": {"filter": "x.y: a = 1"}}, "no table matches x.y"),
        ({"rows": {"filter": "shop.orders: a = 1"}}, "the condition on shop.orders: there is no column a"),
        ({"rows": {"filter": "shop.orders: doc = 'x'"}}, "'doc' has a type that cannot be compared"),
        ({"rows": {"keys": "x.y=a"}}, "no table matches x.y"),
        ({"rows": {"keys": "shop.orders=a"}}, "shop.orders has no column a for its key"),
    ],
)
def test_rules_that_fit_nothing(rules: dict[str, Any], problem: str) -> None:
    (level, text), *_ = found(**rules)
    assert level is Level.WARNING
    assert problem in text

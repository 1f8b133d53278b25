"""Names, keys and headers: what services rely on when they meet in Kafka."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.contract import (
    EventKey,
    RawKey,
    Topics,
    escape_name,
    source_problem,
    transactional_id,
    unescape_name,
    versions_among,
)
from tests.shared import PROJECT

IDENTIFIERS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("orders", "orders"),
        ("_x", "_x"),
        ("a.b", "a_x002E_b"),
        ("a-b", "a_x002D_b"),
        ("a b", "a_x0020_b"),
        ("1st", "_x0031_st"),
        ("_x002E_", "_x005F_x002E_"),
        ("_x002e_", "_x002e_"),
        ("größe", "gr_x00F6__x00DF_e"),
        ("a\U0001f600", "a_xD83D__xDE00_"),
        ("_.", "__x002E_"),
        ("__x002E_", "__x005F_x002E_"),
    ],
)
def test_escape(name: str, escaped: str) -> None:
    assert escape_name(name) == escaped
    assert unescape_name(escaped) == name


@given(IDENTIFIERS | st.text("_xX.0123456789ABCDEFabcdef", max_size=20))
def test_escaping_is_reversible_and_legal(name: str) -> None:
    escaped = escape_name(name)
    assert unescape_name(escaped) == name
    assert re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", escaped)


@given(IDENTIFIERS, IDENTIFIERS)
def test_table_topics_are_legal(database: str, table: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,249}", Topics("shop").table(database, table))


def test_long_names_are_told_apart() -> None:
    topics = Topics("shop")
    first, second = topics.table("é" * 40, "t" * 64 + "1"), topics.table("é" * 40, "t" * 64 + "2")
    assert len(first) == len(second) == 249
    assert first != second
    assert first == topics.table("é" * 40, "t" * 64 + "1")


def test_topic_names() -> None:
    topics = Topics("shop-1")
    assert topics.table("shop", "order items") == "shop-1.shop.order_x0020_items"
    names = [topics.raw, topics.events, topics.transactions, topics.catalog, topics.ddl, topics.schemas]
    names += [topics.deadletter, topics.state]
    assert names == [
        f"shop-1.{name}"
        for name in ["raw", "events", "transactions", "catalog", "ddl", "schemas", "deadletter", "state"]
    ]


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 1000),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**6),
)
def test_keys_round_trip(server_id: int, epoch: int, log_file: str, position: int, sub_index: int) -> None:
    raw = RawKey(server_id, epoch, log_file, position)
    assert raw.encode().isascii()
    assert RawKey.parse(raw.encode()) == raw
    event = EventKey(server_id, epoch, log_file, position, sub_index)
    assert EventKey.parse(event.encode()) == event
    assert event.encode() == raw.encode() + f":{sub_index}".encode()
    assert event.raw == raw


def test_key_spelling() -> None:
    assert RawKey(1, 0, "mysql-bin.000001", 4).encode() == b"1:0:mysql-bin.000001:4"
    assert RawKey(1, 0, "a:b.000001", 4).encode() == b"1:0:a:b.000001:4"
    assert RawKey(1, 0, "50% é", 4).encode() == b"1:0:50%25%20%C3%A9:4"
    assert RawKey.parse(b"1:0:a:b.000001:4").log_file == "a:b.000001"


@pytest.mark.parametrize("key", [b"", b"1:2:3", b"a:0:f:4", b"1:0:f:x", b"1:0:\xff:4", b"1:0:%FF:4"])
def test_malformed_keys(key: bytes) -> None:
    with pytest.raises(ValueError, match="is not a raw key"):
        RawKey.parse(key)
    with pytest.raises(ValueError, match="is not an event key"):
        EventKey.parse(key)


def test_source_names() -> None:
    assert source_problem("shop-1_A") is None
    assert source_problem("1shop") is not None
    assert source_problem("a.b") is not None
    assert source_problem("") is not None
    assert "200" in str(source_problem("a" * 201))


def test_transactional_id() -> None:
    assert transactional_id("reader", "shop") == "millrace-reader-shop"


def test_versions_of_a_topic() -> None:
    """The code on the page for consumers gives the same."""
    topics = [
        "s.d.a-v10", "s.d.a-v2", "s.d.ab", "s.d.a", "s.d.a_v2", "t.s.d.a", "s.d.a-v2x", "sxd.a-v3",
    ]  # fmt: skip
    assert versions_among(topics, "s.d.a") == ["s.d.a", "s.d.a-v2", "s.d.a-v10"]
    page = (PROJECT / "docs" / "consumers.md").read_text("utf-8")
    (code,) = re.findall(r"(?ms)^## Versions of a topic$.*?^```python\n(.*?)^```", page)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    assert namespace["versions"](topics, "s.d.a") == versions_among(topics, "s.d.a")
    assert namespace["versions"](topics, "s.d.none") == versions_among(topics, "s.d.none") == []

"""Records of the signals topic: what they ask for, and what is said of those that are none."""

import json
import re

import pytest

from services.snapshot.signals import signalled_tables


def signal(**data: object) -> bytes:
    return json.dumps({"type": "execute-snapshot", "data": data}).encode()


def test_a_signal_as_debezium_has_it() -> None:
    named = {"data-collections": ["shop.orders", "shop.c*"], "type": "INCREMENTAL"}
    assert signalled_tables(signal(**named)) == ["shop.orders", "shop.c*"]
    assert signalled_tables(signal(**{"data-collections": ["shop.orders"]})) == ["shop.orders"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "expected {"),
        (b'{"type": "execute-snapshot", "data": 1}', "expected {"),
        (b'{"type": "stop-snapshot"}', "its type is not known here"),
        (signal(type="BLOCKING", **{"data-collections": ["a.b"]}), "only incremental snapshots are taken"),
        (
            signal(**{"data-collections": ["a.b"], "additional-conditions": [{"filter": "1"}]}),
            "set MILLRACE_SNAPSHOT_WHERE",
        ),
        (signal(), "expected 1 to 1000 tables"),
        (signal(**{"data-collections": ["a.b"] * 1001}), "expected 1 to 1000 tables"),
        (signal(**{"data-collections": ["orders"]}), "expected tables as DATABASE.TABLE"),
        (signal(**{"data-collections": ["a.b,c.d"]}), "expected tables as DATABASE.TABLE"),
        (signal(**{"data-collections": [1]}), "expected tables as DATABASE.TABLE"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else None,
)
def test_what_is_no_signal_is_said(value: bytes | None, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        signalled_tables(value)

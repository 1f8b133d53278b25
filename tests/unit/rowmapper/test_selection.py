"""What is selected goes into row topics, and nothing else of it: kernel and reference alike."""

import pytest

from millrace import kernel
from tests.unit.kernel.both_stages import run

from .harness import EventsTopic, World
from .logs import Log


def log(**options):
    return Log(EventsTopic(), **options)


def selected(made, rows=None, **selection):
    """A world after a row mapper with these rules."""
    result = World(made.topic, selection=selection, **(rows or {}))
    result.run()
    return result


def both(made, **selection):
    """What lies in the topics by the kernel and by the reference, which is the same."""
    worlds = [World(made.topic, selection=selection) for _ in range(2)]
    compiled, plain = (run(world, compiled=way) for world, way in zip(worlds, (True, False), strict=True))
    assert compiled.groups == plain.groups
    assert compiled.certain == plain.certain
    return compiled


def orders():
    made = log().begin().insert("orders", (1, "a")).insert("people", (2, "b")).commit()
    return (
        made.begin()
        .insert("people", (3, "c"))
        .commit()
        .begin()
        .update("orders", ((1, "a"), (1, "d")))
        .commit()
    )


@pytest.mark.parametrize("rules", [{"ignore_table": "shop.people"}, {"wild_do_table": "shop.ord%"}])
def test_a_table_that_is_left_out(rules):
    result = selected(orders(), replicate=rules)
    assert result.tables == ["t.shop.orders"]
    assert list(result.topics) == ["t.shop.orders"]
    assert not any("people" in subject for subject in result.registry.subjects)
    ends = [value for _, value in result.read("t.transactions") if value["status"] == "END"]
    assert [end["data_collections"] for end in ends] == [
        [{"data_collection": "shop.orders", "event_count": 1}],
        [{"data_collection": "shop.orders", "event_count": 1}],
    ]


def test_the_kernel_passes_over_what_is_left_out():
    made = log()
    for number in range(50):
        made.begin().insert("orders", (number, "a")).insert("people", (number, "b")).commit()
    committed = both(made, replicate={"ignore_table": "shop.people"})
    assert committed.compiled > 30 * kernel.built("transactions")
    assert {topic for topic, _ in committed.groups} == {"t.shop.orders", "t.transactions", "t.state"}


def test_a_database_with_another_name():
    made = log().begin().insert("orders", (1, "a")).insert("orders", (2, "b"), database="other").commit()
    result = selected(made, replicate={"rewrite_db": "shop->eu, other->eu", "do_db": "eu"})
    assert [value["source"]["db"] for _, value in result.read("t.eu.orders")] == ["eu", "eu"]
    (end,) = [value for _, value in result.read("t.transactions") if value["status"] == "END"]
    assert end["data_collections"] == [{"data_collection": "eu.orders", "event_count": 2}]
    both(made, replicate={"rewrite_db": "shop->eu, other->eu", "do_db": "eu"})

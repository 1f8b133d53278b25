"""The reader's notes in the events topic, as the row mapper takes them."""

import pytest

from millrace.contract import ABANDONED, GAP, SOURCE_CHANGED

from .harness import EventsTopic, World
from .logs import Log


@pytest.mark.parametrize("cut_every", [1, 10_000])
@pytest.mark.parametrize(("kind", "gaps"), [(GAP, 1), (SOURCE_CHANGED, 0), (ABANDONED, 0)])
def test_a_marker_drops_what_is_open_and_a_gap_is_counted_once(
    kind: bytes, gaps: int, cut_every: int
) -> None:
    made = Log(EventsTopic()).begin().insert("a", (1, "")).commit().begin().insert("a", (2, ""))
    made.topic.add_marker(kind)
    Log(made.topic, epoch=1).begin().insert("a", (3, "")).commit()
    world = World(made.topic, cut_every=cut_every)
    world.run()
    stage = world.run()
    ids = [value["after"]["id"] for _, value in world.read("t.shop.a")]
    assert ids == [1, 3]
    assert stage.counters["gaps"] == gaps
    assert stage.counters["transactions_cut"] == 1

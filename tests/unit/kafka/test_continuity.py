"""Which topics are compared while a service runs, and how many of them at a time."""

from typing import Any

import pytest

from millrace.kafka.continuity import ContinuityGuard
from millrace.kafka.refusals import TopicsRefusedError
from millrace.runtime.settings import KafkaSettings
from tests.fake_broker import Broker, FakeAdmin, kafka_error

SETTINGS = KafkaSettings(bootstrap_servers="nowhere:1")


class CountingAdmin(FakeAdmin):
    """An administrator's client that notes of which topics it was asked."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.asked: list[list[str]] = []
        self.denied: set[str] = set()

    def describe_topics(self, names: Any, **options: Any) -> Any:
        self.asked.append(list(names.topic_names))
        return super().describe_topics(names, **options)

    def _described(self, name: str) -> Any:
        return kafka_error(29) if name in self.denied else super()._described(name)


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    for name in ("shop.transactions", "shop.events", "shop.catalog", "shop.ddl", "shop.deadletter"):
        made.create(name)
    return made


@pytest.fixture
def admin(broker: Broker) -> CountingAdmin:
    return CountingAdmin(broker)


@pytest.fixture
def guard(admin: CountingAdmin) -> ContinuityGuard:
    made = ContinuityGuard(SETTINGS, admin, "shop", "rowmapper")  # type: ignore[arg-type]  # all that is asked
    made.begin(None)
    return made


def written(broker: Broker, count: int) -> dict[str, str]:
    """Create topics of tables; give their ids."""
    names = [f"shop.db.t{number}" for number in range(count)]
    for name in names:
        broker.create(name)
    return {name: broker.topics[name].id for name in names}


def test_a_table_topic_that_was_created_again(broker: Broker, guard: ContinuityGuard) -> None:
    guard.wrote(written(broker, 3))
    guard.look(now=True)
    guard.wrote({name: broker.topics[name].id for name in ("shop.db.t0", "shop.db.t1", "shop.db.t2")})
    broker.create("shop.db.t1")
    del broker.topics["shop.db.t2"]
    with pytest.raises(TopicsRefusedError) as caught:
        guard.look(now=True)
    assert caught.value.topics.keys() == {"shop.db.t1", "shop.db.t2"}
    assert "shop.db.t1 was deleted and created again" in caught.value.message
    assert "shop.db.t2 is gone" in caught.value.message


def test_a_look_asks_of_few_topics_and_of_each_once(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.kafka.continuity._LOOK_EVERY_S", -1.0)
    ids = written(broker, 250)
    guard.wrote(ids)
    admin.asked.clear()
    for _ in range(4):
        guard.look()
    tables = [[name for name in asked if name in ids] for asked in admin.asked]
    assert max(map(len, tables)) == 100
    assert sorted(name for asked in tables for name in asked) == sorted(ids)


def test_topics_that_cannot_be_seen_are_not_called_others(
    broker: Broker, admin: CountingAdmin, guard: ContinuityGuard
) -> None:
    ids = written(broker, 1)
    guard.wrote(ids)
    admin.denied = set(ids)
    guard.look(now=True)

"""Offsets, as brokers and the client give them."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition

from millrace.kafka import read
from millrace.kafka.errors import BrokerError
from millrace.kafka.read import held_offsets, latest_offsets, offsets_since
from millrace.kafka.state import _last_between


class Admin:
    """Answers as the client does while a broker starts: without an error, and with no offset."""

    def __init__(self, *offsets: int) -> None:
        self.left = list(offsets)

    def list_offsets(self, wanted: Any, **_: Any) -> dict[Any, Future[Any]]:
        offset = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        answers: dict[Any, Future[Any]] = {partition: Future() for partition in wanted}
        for answer in answers.values():
            answer.set_result(SimpleNamespace(offset=offset))
        return answers


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_RETRY_S", 0.001)


def test_an_offset_that_is_not_known_is_no_end() -> None:
    admin: Any = Admin(-1001, 3, -1001, -1, 7)
    assert held_offsets(admin, {"t.raw": 1}) == {("t.raw", 0): range(3, 7)}


def test_an_offset_by_time_that_is_not_known_is_no_end() -> None:
    """Kafka's answer -1 says that no record is as late; the client's -1001 says nothing."""
    admin: Any = Admin(7, -1001, 3)
    admin.list_topics = lambda _topic, **_: SimpleNamespace(
        topics={"t.raw": SimpleNamespace(partitions={0: None})}
    )
    assert offsets_since(admin, "t.raw", 1) == {0: 3}
    admin.left = [7, -1001, -1]
    assert offsets_since(admin, "t.raw", 1) == {0: 7}


def test_an_offset_that_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_TIMEOUT_S", 0.01)
    admin: Any = Admin(-1001)
    with pytest.raises(BrokerError, match=r"of t\.raw: no offset in the answer"):
        latest_offsets(admin, [TopicPartition("t.raw", 0)], IsolationLevel.READ_UNCOMMITTED)


def test_a_state_that_a_broker_does_not_give() -> None:
    class Broken:
        def assign(self, _partitions: object) -> None:
            pass

        def consume(self, _count: int, _timeout_s: float) -> list[object]:
            refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not allowed")
            place = {"topic": lambda: "shop.state", "partition": lambda: 0, "offset": lambda: 0}
            return [SimpleNamespace(error=lambda: refused, **place)]

    at = "shop.state", 0
    with pytest.raises(BrokerError) as caught:
        _last_between(cast("Consumer", Broken()), {at: range(1)}, {at: 0}, lambda _: True)
    assert caught.value.message == "shop.state cannot be read: not allowed"

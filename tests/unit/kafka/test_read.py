"""Offsets, as brokers and the client give them."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

from millrace.kafka import read
from millrace.kafka.read import held_offsets, latest_offsets


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


def test_an_offset_that_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_TIMEOUT_S", 0.01)
    admin: Any = Admin(-1001)
    with pytest.raises(KafkaException, match="no offset in the answer"):
        latest_offsets(admin, [TopicPartition("t.raw", 0)], IsolationLevel.READ_UNCOMMITTED)

"""Which topics take no records, by what brokers have said of records and by what the cluster tells."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.kafka.refusals import TopicsRefusedError, refused_topics


class Admin:
    """A cluster that knows some topics; counts those that it is asked about."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def describe_topics(self, names: Any, **_: Any) -> dict[str, "Future[Any]"]:
        self.asked = list(names.topic_names)
        return {name: self._answer(name) for name in self.asked}

    def _answer(self, name: str) -> "Future[Any]":
        future: Future[Any] = Future()
        answer = self._answers[name]
        if isinstance(answer, int):
            future.set_exception(KafkaException(KafkaError(answer)))
        else:
            operations = [SimpleNamespace(name=operation) for operation in answer]
            future.set_result(SimpleNamespace(authorized_operations=operations))
        return future


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (["READ", "WRITE", "DESCRIBE"], None),
        ([], None),
        (["READ", "DESCRIBE"], "may not write to the topic a: allow WRITE"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "may not write to the topic a: allow WRITE"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "the topic a is gone"),
        (KafkaError._TIMED_OUT, None),
    ],
)
def test_what_the_cluster_tells(answer: Any, words: str | None) -> None:
    found = refused_topics(Admin(a=answer), ["a"], {}, timeout_s=0)  # type: ignore[arg-type]  # all that is asked of it
    if words is None:
        assert found == {}
    else:
        assert words in found["a"]
        assert found["a"] in str(TopicsRefusedError(found))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, "its max.message.bytes was lowered"),
        (KafkaError._UNKNOWN_PARTITION, "the topic a is gone"),
        (KafkaError.INVALID_RECORD, "the topic a does not take these records: "),
    ],
)
def test_what_brokers_said_of_records(code: int, words: str) -> None:
    admin = Admin(b=["WRITE"])
    found = refused_topics(admin, {"a", "b"}, {"a": KafkaError(code)})  # type: ignore[arg-type]  # as above
    assert words in found["a"]
    assert found.keys() == {"a"}
    assert admin.asked == ["b"]


def test_records_of_others_that_timed_out_say_nothing() -> None:
    admin = Admin(a=["WRITE"], b=KafkaError.UNKNOWN_TOPIC_OR_PART)
    failures = {"a": KafkaError(KafkaError._MSG_TIMED_OUT)}
    assert refused_topics(admin, ["a", "b"], failures).keys() == {"b"}  # type: ignore[arg-type]  # as above

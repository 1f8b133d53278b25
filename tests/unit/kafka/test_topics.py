"""Which settings of a topic are promises."""

from typing import Any

import pytest

from millrace.kafka.client import producer_config
from millrace.kafka.topics import (
    CHUNK_BYTES,
    LEAST_MESSAGE_BYTES,
    TOPIC_SPECS,
    TableTopicInfo,
    TopicInfo,
    TopicRefusedError,
    ensure_table_topics,
)
from millrace.runtime.settings import KafkaSettings, TopicsSettings
from tests.fake_broker import Broker, FakeAdmin

ANY_TIME = "9223372036854775807"


@pytest.mark.parametrize("kind", TOPIC_SPECS)
def test_a_topic_of_ours_keeps_its_promises(kind: str) -> None:
    spec = TOPIC_SPECS[kind]
    assert spec.broken_promises(spec.config(-1), 1) == []
    assert spec.config(3)["min.insync.replicas"] == "2"
    assert "min.insync.replicas" not in spec.config(-1)


@pytest.mark.parametrize("kind", TOPIC_SPECS)
def test_nothing_is_deleted_and_every_time_is_taken(kind: str) -> None:
    config = TOPIC_SPECS[kind].config(1)
    assert config["retention.ms"] == config["retention.bytes"] == "-1"
    assert config["message.timestamp.before.max.ms"] == config["message.timestamp.after.max.ms"] == ANY_TIME
    assert config["compression.type"] == ("uncompressed" if kind == "signals" else "producer")


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("raw", "cleanup.policy", "compact"),
        ("events", "cleanup.policy", "compact,delete"),
        ("state", "cleanup.policy", "delete"),
        ("raw", "message.timestamp.type", "LogAppendTime"),
        ("raw", "message.timestamp.after.max.ms", "3600000"),
        ("table", "message.timestamp.before.max.ms", "86400000"),
        ("raw", "max.message.bytes", "1048587"),
        ("table", "max.message.bytes", "1000000"),
    ],
)
def test_broken_promises_are_named(kind: str, setting: str, value: str) -> None:
    spec = TOPIC_SPECS[kind]
    [broken] = spec.broken_promises(spec.config(1) | {setting: value}, 1)
    assert broken.startswith(f"{setting} is {value}, must be ")


def test_one_partition_is_a_promise_only_where_others_write() -> None:
    """All of our own records are in the first, so that others do no harm."""
    broken = {kind for kind, spec in TOPIC_SPECS.items() if spec.broken_promises(spec.config(1), 3)}
    assert broken == {"signals"}


def test_kafka_unpacks_what_others_write() -> None:
    """Its client would unpack a batch to a thousand times the size that the topic allows."""
    packed = {
        kind
        for kind, spec in TOPIC_SPECS.items()
        if spec.broken_promises({"compression.type": "producer"}, 1)
    }
    assert packed == {"signals"}


def test_every_way_out_mends_what_is_broken() -> None:
    for spec in TOPIC_SPECS.values():
        wrong = spec.config(1) | {
            "message.timestamp.type": "LogAppendTime",
            "max.message.bytes": "1000",
            "compression.type": "gzip",
        }
        words = spec.way_out("t", wrong)
        added = dict(each.split("=") for each in words.split("--add-config ")[1].split()[0].split(","))
        assert spec.broken_promises(wrong | added, 1) == []


def test_what_a_user_may_choose() -> None:
    raw, table = TOPIC_SPECS["raw"], TOPIC_SPECS["table"]
    assert raw.broken_promises(raw.config(1) | {"retention.ms": "1000", "compression.type": "lz4"}, 1) == []
    assert table.broken_promises(table.config(1) | {"cleanup.policy": "compact, delete"}, 1) == []


def test_chunks_are_the_same_whatever_a_topic_takes() -> None:
    """A service that was cut off between two chunks continues by their number."""
    for taken in (LEAST_MESSAGE_BYTES, 5_000_000):
        assert TopicInfo(1, taken, chunked=True).record_limit == CHUNK_BYTES == 1_046_540
    assert TopicInfo(1, 5_000_000).record_limit > 4_980_000


def test_a_batch_that_cannot_be_compressed_fits_into_every_topic() -> None:
    config = producer_config(KafkaSettings(bootstrap_servers="localhost:1"), "t")
    assert config["batch.size"] < LEAST_MESSAGE_BYTES
    assert TOPIC_SPECS["raw"].broken_promises({"max.message.bytes": str(LEAST_MESSAGE_BYTES)}, 1) == []


def test_tables_that_are_known_cost_two_requests_together() -> None:
    requests = []

    class Admin(FakeAdmin):
        def describe_topics(self, *arguments: Any, **options: Any) -> Any:
            requests.append("topics")
            return super().describe_topics(*arguments, **options)

        def describe_configs(self, *arguments: Any, **options: Any) -> Any:
            requests.append("configs")
            return super().describe_configs(*arguments, **options)

    broker = Broker()
    for name in "abc":
        broker.create(name, TOPIC_SPECS["table"].config(1))
    ids: dict[str, str | None] = {"a": broker.topics["a"].id, "b": "another", "c": None, "d": "one that was"}
    found = ensure_table_topics(Admin(broker), TopicsSettings(), ids)  # type: ignore[arg-type]
    assert requests == ["topics", "configs"]
    assert [type(found[name]) for name in "abcd"] == [
        TableTopicInfo,
        TopicRefusedError,
        TableTopicInfo,
        TopicRefusedError,
    ]
    assert "the topic b was deleted and created again" in str(found["b"])
    assert "the topic d is gone" in str(found["d"])
    assert "d" not in broker.topics

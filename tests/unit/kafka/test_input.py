"""What a service reads, and how much of it is left."""

from unittest.mock import patch

from millrace.kafka.input import InputReader
from millrace.runtime.settings import KafkaSettings
from tests.fake_broker import Broker, FakeConsumer

SETTINGS = KafkaSettings(bootstrap_servers="nowhere:1")


def test_lag_is_told_without_asking_the_client() -> None:
    broker = Broker()
    broker.create("t")
    broker.committed.add(1)
    for number in range(10):
        broker.topics["t"].append(key=b"k", value=b"%d" % number, transaction=1)
    with broker.installed(), patch("millrace.kafka.input._LAG_EVERY_S", 0.0):
        reader = InputReader(SETTINGS, "t", "g")
        reader.seek(0)
        assert reader.lag() is None
        assert len(reader.read(4, 0.0)) == 4
        with patch.object(FakeConsumer, "position", side_effect=AssertionError):
            assert reader.lag() == 6
        assert len(reader.read(100, 0.0)) == 6
        assert reader.lag() == 0

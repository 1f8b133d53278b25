"""What a service reads, and how much of it is left."""

from unittest.mock import patch

import pytest

from millrace.avro.service_state import InputRecord
from millrace.kafka.errors import InputLostError
from millrace.kafka.input import InputReader, Rereader
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


def test_what_is_read_again_was_lost_and_written_again() -> None:
    """An unfinished transaction is read from its beginning: its last record that was read is compared."""
    broker = Broker()
    broker.create("t")
    broker.committed.add(1)
    for number in range(10):
        broker.topics["t"].append(key=b"%d" % number, value=b"", transaction=1)
    with broker.installed():
        for last, start, found in (
            (InputRecord(7, b"7", 0), 5, 5),
            (InputRecord(7, b"other", 0), 8, 2),
            (InputRecord(7, b"other", 0), 5, None),
        ):
            reader = InputReader(SETTINGS, "t", "g")
            reader.seek(start, last=last)
            assert len(reader.read(2, 0.0)) == 2
            if found is None:
                with pytest.raises(InputLostError, match=r"^t no longer holds what was read at offset 7"):
                    reader.read(100, 0.0)
            else:
                assert len(reader.read(100, 0.0)) == found - 2


def test_a_stretch_whose_end_was_lost_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read to its end before, so that it must be there."""
    monkeypatch.setattr("millrace.kafka.input._SILENCE_S", 0.0)
    broker = Broker()
    broker.create("t")
    broker.committed.add(1)
    for number in range(10):
        broker.topics["t"].append(key=b"k", value=b"%d" % number, transaction=1)
    broker.lose_tail("t", 3)
    ticks: list[None] = []

    def tick() -> None:
        ticks.append(None)
        assert len(ticks) < 10, "it waits"

    with broker.installed(), Rereader(SETTINGS, "t", "g") as again:
        assert [record.offset for record in again.records(2, 7, tick)] == [2, 3, 4, 5, 6]
        with pytest.raises(InputLostError, match=r"^t ends at offset 7, but was read to 9: its end was lost"):
            list(again.records(2, 9, tick))

"""The loop of the reader, on a Kafka in memory."""

from pathlib import Path

import pytest

from millrace.mysql.packets import EventPiece
from services.reader.files import FileSource
from tests.unit.test_faults import TOPICS, World, insert, write_log


def test_a_trickle_that_never_pauses_is_committed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = 5
    write_log(tmp_path, 1, [insert] * transactions)
    world = World(tmp_path)
    world.commit_every = 1000
    read, coming = FileSource.read, list[EventPiece]()

    def read_one(source: FileSource, timeout_s: float) -> list[EventPiece]:
        if not coming:
            coming.extend(read(source, timeout_s))
        return [coming.pop(0)]

    monkeypatch.setattr(FileSource, "read", read_one)
    world.run("reader")
    states = [entry for entry in world.broker.records(TOPICS.state) if entry.key == b"reader"]
    assert len(states) > transactions

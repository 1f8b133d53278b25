"""The thread that follows the reader's state."""

import threading
from typing import TYPE_CHECKING, cast

import pytest

from services.snapshot import app

if TYPE_CHECKING:
    from services.snapshot.settings import SnapshotSettings


def test_it_ends_with_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of Kafka that comes while the interpreter ends crashes the process."""
    reading, ended = threading.Event(), threading.Event()

    def read(states: app._ReaderStates) -> None:
        if threading.current_thread() is states:
            reading.set()
            ended.wait()

    monkeypatch.setattr(app, "_POLL_S", 0)
    monkeypatch.setattr(app, "_beginning", lambda _: None)
    monkeypatch.setattr(app._ReaderStates, "_read", read)
    with app._ReaderStates(cast("SnapshotSettings", None)) as states:
        assert reading.wait(30)
        threading.Timer(0.1, ended.set).start()
    assert not states.is_alive()

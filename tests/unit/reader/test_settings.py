"""What the reader says of settings that cannot be."""

import pytest

from millrace.runtime.errors import UserError
from millrace.runtime.settings import load_settings
from services.reader.settings import ReaderSettings


def test_files_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SOURCE", "shop")
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "localhost:1")
    monkeypatch.setenv("MILLRACE_FILES", "mysql-bin.index")
    monkeypatch.setenv("MILLRACE_SEMI_SYNC", "true")
    with pytest.raises(UserError, match="MILLRACE_SEMI_SYNC is wrong: files wait for nobody; read a server"):
        load_settings(ReaderSettings)
    monkeypatch.setenv("MILLRACE_SEMI_SYNC", "false")
    assert not load_settings(ReaderSettings).semi_sync

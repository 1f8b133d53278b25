"""What the reader says of settings that cannot be."""

from typing import Any

import pytest

from millrace.reader.settings import ReaderSettings
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.settings import load_settings


def test_files_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SOURCE", "shop")
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "localhost:1")
    monkeypatch.setenv("MILLRACE_FILES", "mysql-bin.index")
    monkeypatch.setenv("MILLRACE_SEMI_SYNC", "true")
    with pytest.raises(UserError, match="MILLRACE_SEMI_SYNC is wrong: files wait for nobody; read a server"):
        load_settings(ReaderSettings)
    monkeypatch.setenv("MILLRACE_SEMI_SYNC", "false")
    assert not load_settings(ReaderSettings).semi_sync


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {},
            "MILLRACE_MYSQL_HOST is missing: expected the server to read from (or MILLRACE_FILES)",
        ),
        (
            {"files": "mysql-bin.index", "mysql": {"host": "db"}},
            "MILLRACE_MYSQL_HOST and MILLRACE_FILES exclude each other: read a server or files",
        ),
        (
            {"files": "mysql-bin.index", "start": "gtid:0-1-5"},
            "MILLRACE_START is wrong: files can be read from earliest, latest, FILE:POSITION or a time",
        ),
    ],
)
def test_one_kind_of_source(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(ReaderSettings, source="shop", kafka={"bootstrap_servers": "localhost:1"}, **settings)
    assert caught.value.lines == [message]


@pytest.mark.parametrize(
    ("start", "detail"),
    [
        ("yesterday", ""),
        ("bin.000001", ""),
        ("bin.000001:0", "the first event of a file starts at position 4; "),
        (
            "time:yesterday",
            "'yesterday' is not a time: expected 2026-01-31T12:00:00Z, or an offset in place of Z; ",
        ),
    ],
)
def test_where_nothing_starts(start: str, detail: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(
            ReaderSettings,
            source="shop",
            kafka={"bootstrap_servers": "localhost:1"},
            mysql={"host": "db"},
            start=start,
        )
    assert caught.value.message == (
        f"MILLRACE_START is wrong: {detail}expected where to start first: earliest, latest, FILE:POSITION, "
        "gtid:SET or time:2026-01-31T12:00:00Z (the first transaction that ended then or later)"
    )

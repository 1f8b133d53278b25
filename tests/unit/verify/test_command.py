"""What ``millrace verify`` says where it cannot compare."""

import pytest

from millrace.cli.verify import _address, _folder_log, _Settings
from millrace.runtime.errors import SettingsError, UserError


def test_no_server_is_named() -> None:
    settings = _Settings(source="shop", kafka={"bootstrap_servers": "localhost:1"})
    with pytest.raises(SettingsError) as caught:
        _address(settings, None)
    assert caught.value.message == ("no server is named: set MILLRACE_MYSQL_HOST, or name it as mysql://…")


def test_what_is_neither_folder_nor_server() -> None:
    with pytest.raises(UserError) as caught:
        _folder_log("/nowhere")
    assert caught.value.message == (
        "/nowhere is neither a folder with log files nor mysql://user:password@host:port"
    )

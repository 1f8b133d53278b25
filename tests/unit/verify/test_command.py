"""What ``millrace verify`` says where it cannot compare."""

import pymysql
import pytest

from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.verify.command import _address, _folder_log, _server_in_words, _Settings


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


def test_what_the_server_says_of_a_select() -> None:
    with pytest.raises(UserError) as caught, _server_in_words():
        raise pymysql.err.OperationalError(1142, "SELECT command denied to user 'u' for table 't'")
    assert caught.value.message == (
        "the server cannot be compared: SELECT command denied to user 'u' for table 't' (1142)"
    )
    assert caught.value.exit_code is ExitCode.SOURCE

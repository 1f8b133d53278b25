"""Addresses of servers, and where copies of their logs go."""

import io
from pathlib import Path

import pytest

from millrace.binlog_command.raw_download import RawDownload, last_event
from millrace.mysql.connection import MysqlAddress, SslMode
from millrace.mysql.server_log import ServerAddress, is_server

LOG = Path(__file__).parent / "logs" / "mysql.000001"


pytestmark = pytest.mark.usefixtures("no_settings")


def test_what_an_address_leaves_out_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_MYSQL_USER", "repl")
    monkeypatch.setenv("MILLRACE_MYSQL_PASSWORD", "hidden")
    monkeypatch.setenv("MILLRACE_MYSQL_SSL_MODE", "verify_identity")
    address = ServerAddress.parse("mariadb://[::1]/")
    assert (address.mysql.host, address.mysql.port, address.mysql.user) == ("::1", 3306, "repl")
    assert str(address) == "mysql://[::1]:3306"
    assert address.mysql.password == "hidden"
    assert "hidden" not in repr(address)
    assert address.mysql.ssl_mode is SslMode.VERIFY_IDENTITY
    assert address.log_file is None
    assert ServerAddress.parse("mysql://other@h/", "asked").mysql.password == "asked"
    assert ServerAddress.parse("mysql://other@h/").mysql.user == "other"


def test_addresses_are_known_by_their_scheme() -> None:
    assert is_server("mysql://h")
    assert is_server("mariadb://h")
    assert not is_server("mysql-bin.000001")
    assert not is_server("kafka://h/s")


def test_copies_go_into_a_folder_or_behind_a_prefix(tmp_path: Path) -> None:
    address = ServerAddress(MysqlAddress(), None)
    assert RawDownload(address, "").path("log.1") == Path("log.1")
    assert RawDownload(address, "new/").path("log.1") == Path("new/log.1")
    assert RawDownload(address, str(tmp_path)).path("log.1") == tmp_path / "log.1"
    assert RawDownload(address, str(tmp_path / "db1-")).path("log.1") == tmp_path / "db1-log.1"


@pytest.mark.parametrize(
    ("cut", "start"),
    [(4735, 4688), (4734, 4597), (4690, 4597), (4688, 4597), (130, 4), (124, 4), (50, 4), (2, 4), (0, 4)],
)
def test_a_copy_is_continued_from_its_last_whole_event(cut: int, start: int) -> None:
    assert last_event(io.BytesIO(LOG.read_bytes()[:cut])) == start


def test_zeros_behind_the_events_are_no_events() -> None:
    assert last_event(io.BytesIO(LOG.read_bytes() + bytes(4096))) == 4688

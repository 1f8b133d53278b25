"""How servers are named: one or several, with ports, IPv6 addresses, Unix sockets."""

import pytest
from pydantic import ValidationError

from millrace.mysql.settings import MysqlSettings


def places(host: str, port: int = 3306) -> list[tuple[str, int, str | None]]:
    settings = MysqlSettings.model_validate({"host": host, "port": port})
    assert settings.address() == settings.addresses()[0]
    return [(each.host, each.port, each.unix_socket) for each in settings.addresses()]


def test_one_server() -> None:
    assert places("db1") == [("db1", 3306, None)]
    assert places("db1", 3307) == [("db1", 3307, None)]
    assert places("db1:3308", 3307) == [("db1", 3308, None)]
    assert places("::1") == [("::1", 3306, None)]
    assert places("[fe80::2]:3309") == [("fe80::2", 3309, None)]
    assert places("[::1]") == [("::1", 3306, None)]
    assert places("/run/mysqld.sock") == [("localhost", 3306, "/run/mysqld.sock")]


def test_several_servers() -> None:
    assert places("db1, db2:4000,[::1]:4001 ,/run/a.sock,", 3310) == [
        ("db1", 3310, None),
        ("db2", 4000, None),
        ("::1", 4001, None),
        ("localhost", 3310, "/run/a.sock"),
    ]


def test_how_an_address_is_written() -> None:
    settings = MysqlSettings.model_validate({"host": "db1,[::1]:4001,/run/a.sock"})
    assert [str(each) for each in settings.addresses()] == ["db1:3306", "[::1]:4001", "/run/a.sock"]


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (",", "expected a server"),
        ("db1:port", "is no server: expected HOST, HOST:PORT, [IPV6]:PORT or the path of a Unix socket"),
        ("[::1", "is no server"),
        ("db1:65536", "a port is a number from 1 to 65535"),
        ("db1:0", "a port is a number from 1 to 65535"),
        ("db1,db2,db1", "a server is named twice"),
    ],
)
def test_what_is_no_server(host: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        places(host)
    assert words in str(caught.value)


@pytest.mark.parametrize("seconds", ["0", "inf", "nan", "1e9"])
def test_how_long_to_wait_for_a_connection(seconds: str) -> None:
    with pytest.raises(ValidationError, match="connect_timeout_s"):
        MysqlSettings.model_validate({"host": "db1", "connect_timeout_s": seconds})

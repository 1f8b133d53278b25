"""How servers are named: one or several, with ports, IPv6 addresses, Unix sockets."""

from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import ValidationError

from millrace.mysql.address import MysqlAddress, SslMode
from millrace.mysql.settings import MysqlSettings, environment, values_of_url
from millrace.runtime.errors import SettingsError
from millrace.runtime.settings import EnvironmentSettings, load_settings


def places(host: str, port: int = 3306) -> list[tuple[str, int, str | None]]:
    settings = MysqlSettings.model_validate({"host": host, "port": port})
    assert settings.address() == settings.addresses()[0]
    return [(each.host, each.port, each.unix_socket) for each in settings.addresses()]


def test_one_server() -> None:
    assert places("db1") == [("db1", 3306, None)]
    assert places("db1", 3307) == [("db1", 3307, None)]
    assert places("db1:3308") == [("db1", 3308, None)]
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
        ("db1:port", "is not a server: expected HOST, HOST:PORT, [IPV6]:PORT or the path of a Unix socket"),
        ("[::1", "is not a server"),
        ("db1:65536", "a port is a number from 1 to 65535"),
        ("db1:0", "a port is a number from 1 to 65535"),
        ("db1,db2,db1", "a server is named twice"),
        ("mysql://db1", "a server is HOST:PORT, not a URL"),
        ("adm:secret@db1", "a server is HOST:PORT, not a URL"),
        ("db1/app", "is not a server"),
        ("db 1", "is not a server"),
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


def settings(**values: object) -> MysqlSettings:
    return MysqlSettings.model_validate({"host": "db1", **values})


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({}, "PREFERRED"),
        ({"ssl_ca": "ca.pem"}, "VERIFY_IDENTITY"),
        ({"ssl_cert": "cert.pem"}, "REQUIRED"),
        ({"ssl_ca": "ca.pem", "ssl_cert": "cert.pem", "ssl_key": "key.pem"}, "VERIFY_IDENTITY"),
        ({"ssl_ca": "ca.pem", "ssl_mode": "VERIFY_CA"}, "VERIFY_CA"),
        ({"ssl_mode": "verify_identity"}, "VERIFY_IDENTITY"),
        ({"ssl_mode": "DISABLED"}, "DISABLED"),
        ({"ssl_mode": "PREFERRED", "ssl_cert": "cert.pem"}, "PREFERRED"),
    ],
)
def test_how_tls_is_used(values: dict[str, str], mode: str) -> None:
    assert settings(**values).address().ssl_mode == mode


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"ssl_mode": "DISABLED", "ssl_ca": "ca.pem"},
            "MILLRACE_MYSQL_SSL_MODE=DISABLED and MILLRACE_MYSQL_SSL_CA exclude each other",
        ),
        (
            {"ssl_mode": "DISABLED", "ssl_cert": "cert.pem"},
            "MILLRACE_MYSQL_SSL_MODE=DISABLED and MILLRACE_MYSQL_SSL_CERT exclude each other",
        ),
        ({"ssl_mode": "VERIFY_CA"}, "MILLRACE_MYSQL_SSL_CA is missing: expected the file of the CA"),
        (
            {"ssl_mode": "REQUIRED", "ssl_ca": "ca.pem"},
            "MILLRACE_MYSQL_SSL_MODE=REQUIRED checks no certificate, and MILLRACE_MYSQL_SSL_CA is given",
        ),
        ({"ssl_key": "key.pem"}, "MILLRACE_MYSQL_SSL_CERT is missing"),
        (
            {"get_server_public_key": True, "server_public_key_path": "key.pem"},
            "GET_SERVER_PUBLIC_KEY takes any key and MILLRACE_MYSQL_SERVER_PUBLIC_KEY_PATH one alone",
        ),
        (
            {"ssl_verify": "true"},
            (
                "MILLRACE_MYSQL_SSL_VERIFY is no longer a setting: unset it, and where it was true set "
                "MILLRACE_MYSQL_SSL_MODE=VERIFY_IDENTITY"
            ),
        ),
        (
            {"ssl_disabled": "false"},
            (
                "MILLRACE_MYSQL_SSL_DISABLED is no longer a setting: unset it, and where it was true set "
                "MILLRACE_MYSQL_SSL_MODE=DISABLED"
            ),
        ),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**values)
    assert words in str(caught.value)


def test_a_mode_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said where the settings come from the environment, as a service reads them."""

    class Settings(EnvironmentSettings):
        mysql: MysqlSettings

    monkeypatch.setenv("MILLRACE_MYSQL_SSL_MODE", "STRICT")
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings, mysql={"host": "db1"})
    assert caught.value.message.startswith("MILLRACE_MYSQL_SSL_MODE is wrong: expected DISABLED, PREFERRED, ")
    monkeypatch.setenv("MILLRACE_MYSQL_SSL_MODE", "DISABLED")
    monkeypatch.setenv("MILLRACE_MYSQL_SSL_DISABLED", "true")
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings, mysql={"host": "db1"})
    assert caught.value.message.startswith("MILLRACE_MYSQL_SSL_DISABLED is no longer a setting: ")


def test_a_url_holds_the_same_settings() -> None:
    url = (
        "mysql://u%40x:p%2Fw@db1:3307/bin.000001?ssl-mode=required&ssl-cert=/c.pem&get-server-public-key=true"
    )
    values, log_file = values_of_url(url)
    assert log_file == "bin.000001"
    address = MysqlSettings.model_validate(values).address()
    assert address == MysqlAddress(
        "db1",
        3307,
        "u@x",
        "p/w",
        ssl_mode=SslMode.REQUIRED,
        ssl_cert=Path("/c.pem"),
        get_server_public_key=True,
    )
    told = {
        name.removeprefix("MILLRACE_MYSQL_").lower(): value for name, value in environment(address).items()
    }
    assert MysqlSettings.model_validate(told).address() == address


@pytest.mark.parametrize(
    "url",
    [
        *("db1:3306", "http://db1", "mysql://", "mysql:///x", "mysql://h:99999/", "mysql://u:secret@h:nine/"),
        *("mysql://u:secret@h/a/b", "mysql://u:secret@h/?tls=no"),
    ],
)
def test_what_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(ValueError, match="is not mysql://user:password@host:port/LOGFILE") as caught:
        values_of_url(url)
    assert "secret" not in str(caught.value)
    assert "percent-encode" not in str(caught.value)


@pytest.mark.parametrize("character", list("/?#[]:@"))
def test_a_password_that_is_not_encoded(character: str) -> None:
    url = f"mysql://adm:p@se{character}cret@db1:3306"
    if character in ":@[]":  # which are understood as they are, or refused
        with suppress(ValueError):
            values, _ = values_of_url(url)
            assert (values["host"], values["password"]) == ("db1", f"p@se{character}cret")
            return
    with pytest.raises(ValueError, match="percent-encode") as caught:
        values_of_url(url)
    assert "cret" not in str(caught.value)

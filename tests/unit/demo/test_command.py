from pathlib import Path
from typing import TYPE_CHECKING, cast

import pymysql
import pytest
from click.testing import CliRunner

from millrace.cli import main
from millrace.demo.pipeline import Endpoints, parse_address
from millrace.demo.run import Demo, Options, _Running
from millrace.local.processes import release_port, reserve_port
from millrace.mysql.address import MysqlAddress, SslMode
from millrace.mysql.errors import UnreachableError
from millrace.runtime.errors import SettingsError, UserError
from millrace.runtime.exit_codes import ExitCode
from tests.mysql_stub import StubConnection

if TYPE_CHECKING:
    from millrace.mysql.connection import MysqlConnection


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mysql://u:p@host:3307", MysqlAddress("host", 3307, "u", "p")),
        ("mysql://u@[::1]?ssl-mode=REQUIRED", MysqlAddress("::1", 3306, "u", "", ssl_mode=SslMode.REQUIRED)),
    ],
)
def test_addresses(url: str, address: MysqlAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize("url", ["mysql://host", "mysql://u:p@host/log", "mysql://u:p@host:port"])
def test_wrong_addresses_are_told_without_the_password(url: str) -> None:
    with pytest.raises(SettingsError, match=r"mysql://user:password@host:port") as caught:
        parse_address(url)
    assert "u:p" not in str(caught.value)


def test_the_services_get_our_settings_and_none_that_lies_around(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text('[kafka]\nsecurity_protocol = "SSL"\n[registry]\nusername = "u"\npassword = "hidden"\n')
    monkeypatch.setenv("MILLRACE_CONFIG", str(file))
    monkeypatch.setenv("MILLRACE_MYSQL_HOST", "elsewhere")
    endpoints = Endpoints("demo", MysqlAddress("h", 1, "u", "p"), "b:1", "http://r", "latest")
    environment = endpoints.environment()
    assert "MILLRACE_CONFIG" not in environment
    assert environment["MILLRACE_KAFKA_SECURITY_PROTOCOL"] == "SSL"
    assert environment["MILLRACE_REGISTRY_PASSWORD"] == "hidden"
    assert environment["MILLRACE_MYSQL_HOST"] == "h"
    assert environment["MILLRACE_START"] == "latest"


def test_a_server_that_is_not_there_is_one_line_and_an_exit_code() -> None:
    arguments = ["demo", "--kafka", "127.0.0.1:1", "--registry", "http://127.0.0.1:1"]
    by_environment = CliRunner().invoke(main, arguments, env={"MILLRACE_DEMO_SOURCE": "nonsense"})
    for outcome in (CliRunner().invoke(main, [*arguments, "--source", "nonsense"]), by_environment):
        assert outcome.exit_code == ExitCode.SETTINGS
        assert outcome.output == "error: SOURCE: nonsense is not mysql://user:password@host:port/LOGFILE\n"


def test_a_server_that_does_not_let_the_demo_in() -> None:
    port = reserve_port()
    server = MysqlAddress("127.0.0.1", port, "u", "secret")
    options = Options(server, "localhost:1", "http://localhost:1", 1, Path("reports"), stay=False)
    endpoints = Endpoints("demo", server, "localhost:1", "http://localhost:1", "latest")
    with Demo(options) as demo, pytest.raises(UnreachableError) as caught:
        demo._connect(endpoints)
    release_port(port)
    assert str(caught.value).startswith(f"127.0.0.1:{port}: cannot connect (Connection refused); ")


def test_a_statement_of_the_workload_that_the_server_refuses() -> None:
    def work() -> None:
        raise pymysql.err.OperationalError(1114, "The table 'orders' is full")

    running = _Running(work)
    running._thread.join()
    with pytest.raises(UserError) as caught:
        running.finished()
    assert caught.value.message == "the workload: the server says The table 'orders' is full"
    assert caught.value.exit_code is ExitCode.SOURCE


@pytest.mark.usefixtures("same_signals")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--registry", "here:8081"],
            "MILLRACE_REGISTRY_URL is wrong: expected address of the registry's Confluent API, as http(s)",
        ),
        (["--kafka", ""], "MILLRACE_KAFKA_BOOTSTRAP_SERVERS is wrong: expected brokers as host:port"),
    ],
)
def test_servers_that_cannot_be_are_told_before_anything_is_started(options: list[str], line: str) -> None:
    outcome = CliRunner().invoke(main, ["demo", "--source", "mysql://u@127.0.0.1:1", *options])
    assert outcome.exit_code == ExitCode.SETTINGS
    assert outcome.output.startswith(f"error: {line}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"log_bin": "OFF"},
            "the demo needs log_bin = ON, on this server it is OFF; change it in its configuration",
        ),
        (
            {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"},
            "the demo needs binlog_row_metadata = FULL, on this server it is not known to it; change it with",
        ),
    ],
)
def test_a_server_whose_log_does_not_hold_all(variables: dict[str, str], message: str) -> None:
    options = Options(None, "localhost:1", "http://localhost:1", 1, Path("reports"), stay=False)
    with Demo(options) as demo, pytest.raises(UserError) as caught:
        demo._check_server(cast("MysqlConnection", StubConnection(variables)))
    assert caught.value.message.startswith(message)
    assert caught.value.message.endswith(("in its configuration", "SET GLOBAL binlog_row_metadata = FULL"))
    assert caught.value.exit_code is ExitCode.SOURCE

"""Passwords appear in no log, message, traceback, help or argument of a process, bugs included."""

import json
import os
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace import cli
from millrace.decoder.settings import DecoderSettings
from millrace.demo.pipeline import parse_address
from millrace.doctor.examine import load_sides
from millrace.local.certificates import write_certificates
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError
from millrace.runtime.settings import RegistrySettings, ServiceSettings, load_settings
from tests.service_process import ServiceProcess, wait_for
from tests.shared import run_python

SERVICES = ("reader", "decoder", "rowmapper")
SECRETS = {
    "MILLRACE_KAFKA_SASL_PASSWORD": "hidden-of-sasl",
    "MILLRACE_REGISTRY_PASSWORD": "hidden-of-the-registry",
    "MILLRACE_MYSQL_PASSWORD": "hidden-of-mysql",
    "MILLRACE_DEMO_SOURCE": "mysql://root:hidden-of-the-demo@127.0.0.1:1",
}
SETTINGS = {
    "MILLRACE_SOURCE": "shop",
    "MILLRACE_LOG_LEVEL": "DEBUG",
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "0.1",
    "MILLRACE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "MILLRACE_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "MILLRACE_KAFKA_SASL_USERNAME": "someone",
    "MILLRACE_REGISTRY_URL": "http://127.0.0.1:1",
    "MILLRACE_REGISTRY_USERNAME": "someone",
    "MILLRACE_MYSQL_HOST": "127.0.0.1:1",
    **SECRETS,
}

BUG = """
import sys
from importlib import import_module
from millrace.kafka import client

def broken(settings, make=client.client_config):
    config = make(settings)  # holds the passwords in its frame, as those above it do
    assert "hidden-of-sasl" in config.values()
    raise ZeroDivisionError("a bug")

client.client_config = broken
sys.exit(import_module(f"services.{sys.argv[1]}.__main__").main())
"""


def assert_hidden(*texts: str) -> None:
    for text in texts:
        assert text
        assert "hidden" not in text


@pytest.mark.parametrize("service", SERVICES)
def test_a_bug(service: str) -> None:
    done = run_python("-c", BUG, service, settings=SETTINGS)
    assert done.returncode == 70
    assert "Traceback" in json.loads(done.stdout.splitlines()[-1])["exception"]
    assert "ZeroDivisionError: a bug" in done.stderr
    assert_hidden(done.stdout, done.stderr)


def test_a_broker_that_does_not_answer() -> None:
    """librdkafka's own messages are in the log."""
    done = run_python("-m", "services.rowmapper", settings=SETTINGS)
    assert done.returncode == 4
    assert_hidden(done.stdout, done.stderr)


def test_a_key_that_the_password_does_not_open(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    (tmp_path / "key.pem").write_text("no key")
    key = {
        "MILLRACE_KAFKA_SSL_CERTIFICATE_LOCATION": str(tmp_path / "server-cert.pem"),
        "MILLRACE_KAFKA_SSL_KEY_LOCATION": str(tmp_path / "key.pem"),
        "MILLRACE_KAFKA_SSL_KEY_PASSWORD": "hidden-of-the-key",
    }
    done = run_python("-m", "services.decoder", settings=SETTINGS | key)
    assert done.returncode == 4
    assert "ssl.key.location" in done.stderr
    assert_hidden(done.stdout, done.stderr)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_doctor(form: list[str]) -> None:
    done = CliRunner().invoke(cli.main, ["doctor", *form], env=dict(SETTINGS))
    assert done.exit_code == 1
    assert_hidden(done.output)


@pytest.mark.parametrize("name", sorted(cli._COMMANDS))
def test_help(name: str) -> None:
    assert_hidden(CliRunner().invoke(cli.main, [name, "--help"], env=dict(SETTINGS)).output)


def test_settings_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SETTINGS.items():
        monkeypatch.setenv(variable, value)
    for settings in (ReaderSettings(), DecoderSettings(), RowMapperSettings(), load_sides()):
        assert_hidden(repr(settings), str(settings), f"{settings}")
        if not hasattr(settings, "problems"):
            assert_hidden(settings.model_dump_json())
    assert_hidden(repr(RegistrySettings(url="http://someone:hidden@127.0.0.1:1")))
    assert_hidden(repr(parse_address("mysql://root:hidden@127.0.0.1")))
    addresses = ReaderSettings().mysql.addresses()
    assert addresses[0].password == "hidden-of-mysql"
    assert_hidden(repr(addresses), str(addresses[0]))


def said_of(settings_class: type[ServiceSettings]) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(settings_class)
    return "\n".join(caught.value.lines)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MILLRACE_KAFKA", "hidden"),
        ("MILLRACE_REGISTRY_URL", "http://someone:hid/hidden@host:8081"),
        ("MILLRACE_REGISTRY_URL", "someone:hidden@host"),
        ("MILLRACE_MYSQL_PORT", "hidden"),
        ("MILLRACE_KAFKA_SASL_MECHANISM", "hidden"),
        ("MILLRACE_KAFKA_CONNECT_TIMEOUT_S", "hidden"),
    ],
)
def test_a_secret_in_the_wrong_place(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, known in (SETTINGS | {variable: value}).items():
        monkeypatch.setenv(name, known)
    settings_class = ReaderSettings if "MYSQL" in variable else RowMapperSettings
    assert_hidden(said_of(settings_class))


@pytest.mark.parametrize("line", ['password = "hidden', "password = hidden", 'pasword = "hidden"'])
def test_a_file_of_settings_that_is_wrong(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(f"[mysql]\n{line}\n")
    for name, known in SETTINGS.items():
        monkeypatch.setenv(name, known)
    monkeypatch.setenv("MILLRACE_CONFIG", str(file))
    assert_hidden(said_of(ReaderSettings))


def test_arguments_of_processes() -> None:
    """Settings come from the environment, which others cannot read."""
    command = [sys.executable, "-m", "millrace.cli", "decoder"]
    settings = SETTINGS | {"MILLRACE_KAFKA_CONNECT_TIMEOUT_S": "60"}
    with closing(ServiceProcess(command, settings)) as process:
        wait_for(lambda: '"started"' in process.output, process, "its first line")
        assert_hidden(Path(f"/proc/{process.pid}/cmdline").read_text())
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # A thread may have ended.
                assert_hidden((thread / "comm").read_text())
        assert os.stat(f"/proc/{process.pid}/environ").st_mode & 0o077 == 0  # noqa: PTH116

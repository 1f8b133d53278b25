"""Settings: environment, file, and one line for each that is missing or wrong."""

from pathlib import Path

import pytest
from pydantic import Field

from millrace.decoder.settings import DecoderSettings
from millrace.runtime.errors import SettingsError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import (
    CONFIG_VARIABLE,
    RegistrySettings,
    ServiceSettings,
    TopicsSettings,
    load_settings,
)


class ExampleSettings(ServiceSettings):
    registry: RegistrySettings
    follow: bool = Field(True, description="true or false")


GOOD = {
    "MILLRACE_SOURCE": "shop",
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "localhost:9092",
    "MILLRACE_REGISTRY_URL": "http://localhost:8081",
}


pytestmark = pytest.mark.usefixtures("no_settings")


def load(monkeypatch: pytest.MonkeyPatch, **environment: str) -> ExampleSettings:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load_settings(ExampleSettings)


def problems(monkeypatch: pytest.MonkeyPatch, **environment: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(monkeypatch, **environment)
    assert caught.value.exit_code == ExitCode.SETTINGS == 2
    return list(caught.value.lines)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, **GOOD)
    assert settings.source == "shop"
    assert settings.kafka.bootstrap_servers == "localhost:9092"
    assert settings.kafka.security_protocol == "PLAINTEXT"
    assert settings.registry.url == "http://localhost:8081"
    assert settings.topics.replication_factor == -1
    assert settings.log_level == "INFO"
    assert settings.http_port == 0


def test_every_missing_setting_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = problems(monkeypatch)
    assert [line.split()[0] for line in lines] == [
        "MILLRACE_SOURCE",
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS",
    ]
    assert "is missing: expected brokers as host:port" in lines[1]


def test_every_wrong_setting_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "MILLRACE_SOURCE": "a.b",
        "MILLRACE_HTTP_PORT": "99999",
        "MILLRACE_LOG_LEVEL": "loud",
        "MILLRACE_TOPICS_MAX_TABLES": "lots",
        "MILLRACE_REGISTRY_URL": "localhost:8081",
        "MILLRACE_FOLLOW": "perhaps",
    }
    lines = problems(monkeypatch, **(GOOD | wrong))
    assert sorted(line.split()[0] for line in lines) == sorted(wrong)
    assert all(" is wrong: " in line and "expected " in line for line in lines)
    assert not any(value in line for line in lines for value in ("99999", "loud", "lots", "perhaps"))


def test_misspelt_names_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = problems(monkeypatch, **GOOD, MILLRACE_KAFKA_BOOTSTRAP_SERVER="b:1")
    assert lines == ["MILLRACE_KAFKA_BOOTSTRAP_SERVER is unknown; there is MILLRACE_KAFKA_BOOTSTRAP_SERVERS"]


def test_sections_of_other_services_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, **GOOD, MILLRACE_MYSQL_HOST="db", MILLRACE_CACHE="/c").source == "shop"


def test_credentials_must_be_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = problems(
        monkeypatch,
        **GOOD,
        MILLRACE_KAFKA_SECURITY_PROTOCOL="SASL_SSL",
        MILLRACE_KAFKA_SASL_USERNAME="u",
        MILLRACE_REGISTRY_PASSWORD="secret",
    )
    assert lines == [
        "MILLRACE_KAFKA_SASL_MECHANISM, _USERNAME and _PASSWORD are needed with SASL_SSL",
        "MILLRACE_REGISTRY_USERNAME and MILLRACE_REGISTRY_PASSWORD go together",
    ]


def test_sasl_without_its_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = problems(monkeypatch, **GOOD, MILLRACE_KAFKA_SASL_PASSWORD="hush-hush")
    assert line == (
        "MILLRACE_KAFKA_SECURITY_PROTOCOL must be SASL_SSL or SASL_PLAINTEXT when "
        "MILLRACE_KAFKA_SASL_… is given"
    )


@pytest.mark.parametrize("value", ["localhost:9092", "[1]"])
def test_a_section_is_no_setting(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    lines = problems(monkeypatch, **GOOD, MILLRACE_KAFKA=value)
    assert lines == ["MILLRACE_KAFKA is not a setting: unset it, and set MILLRACE_KAFKA_… one by one"]


@pytest.mark.parametrize(
    "url",
    ["localhost:8081", "ftp://localhost", "http://", "http://[", "http://host:port", "http://host:99999"],
)
def test_what_is_no_address_of_a_registry(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    (line,) = problems(monkeypatch, **(GOOD | {"MILLRACE_REGISTRY_URL": url}))
    assert line == (
        "MILLRACE_REGISTRY_URL is wrong: expected address of the registry's Confluent API, as "
        "http(s)://host:port/path"
    )


@pytest.mark.parametrize("seconds", ["0", "inf", "nan", "3601"])
def test_how_long_to_wait(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    """No client takes any time; one without an end would never tell that nobody answers."""
    (line,) = problems(monkeypatch, **GOOD, MILLRACE_KAFKA_CONNECT_TIMEOUT_S=seconds)
    assert line == (
        "MILLRACE_KAFKA_CONNECT_TIMEOUT_S is wrong: expected seconds to wait for a broker at the start, "
        "above 0, up to 3600"
    )


def test_secrets_hide_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(
        monkeypatch,
        **GOOD,
        MILLRACE_KAFKA_SECURITY_PROTOCOL="SASL_SSL",
        MILLRACE_KAFKA_SASL_MECHANISM="PLAIN",
        MILLRACE_KAFKA_SASL_USERNAME="u",
        MILLRACE_KAFKA_SASL_PASSWORD="hush-hush",
    )
    assert settings.kafka.sasl_password is not None
    assert settings.kafka.sasl_password.get_secret_value() == "hush-hush"
    assert "hush-hush" not in repr(settings)


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(
        'source = "from-file"\n[kafka]\nbootstrap_servers = "file:1"\nsecurity_protocol = "SSL"\n'
        '[registry]\nurl = "http://file"\n[mysql]\nhost = "db"\n'
    )
    settings = load(
        monkeypatch,
        MILLRACE_CONFIG=str(file),
        MILLRACE_KAFKA_BOOTSTRAP_SERVERS="env:1",
        MILLRACE_SOURCE="from-env",
    )
    assert settings.source == "from-env"
    assert settings.kafka.bootstrap_servers == "env:1"
    assert settings.kafka.security_protocol == "SSL"
    assert settings.registry.url == "http://file"


def test_a_file_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = problems(monkeypatch, **GOOD, MILLRACE_CONFIG=str(tmp_path / "none.toml"))
    assert lines == [f"MILLRACE_CONFIG: {tmp_path / 'none.toml'} cannot be read: No such file or directory"]
    (tmp_path / "bad.toml").write_text("source = shop")
    [line] = problems(monkeypatch, **GOOD, MILLRACE_CONFIG=str(tmp_path / "bad.toml"))
    assert "bad.toml is not a TOML file" in line


def test_values_given_by_the_caller_win(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    assert load_settings(ExampleSettings, follow=False, source="other").source == "other"


def test_topics_are_named_by_rules() -> None:
    names = "shop.orders=sales.o,eu%.log_%=logs.eu%_%, a.%=b.x%y%%,%.%=all.%-%"
    with pytest.raises(ValueError, match="more % on the right"):
        TopicsSettings(names=names)
    named = TopicsSettings(names=names.replace("x%y%%", "x%y")).named
    assert named("shop.orders") == ("sales", "o")
    assert named("eu7.log_web.a") == ("logs", "eu7_web.a")
    assert named("eu7.logxweb") == ("all", "eu7-logxweb")
    assert named("a.t") == ("b", "xty")
    assert TopicsSettings(names="a.b=c.d").named("a.bb") is None


def test_versions_of_a_topic_have_its_partitions() -> None:
    settings = TopicsSettings(partitions="shop.orders=12")
    assert [settings.partitions_of(f"s.shop.orders{version}") for version in ("", "-v2", "-v10", "-v1")] == [
        12,
        12,
        12,
        1,
    ]


def test_a_configuration_that_is_no_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "millrace.toml"
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    with pytest.raises(SettingsError) as caught:
        load_settings(DecoderSettings)
    assert caught.value.message == f"MILLRACE_CONFIG: {file} cannot be read: No such file or directory"
    file.write_text("source = ")
    with pytest.raises(SettingsError) as caught:
        load_settings(DecoderSettings)
    assert caught.value.message.startswith(f"MILLRACE_CONFIG: {file} is not a TOML file: ")


def test_a_name_of_a_source_that_is_too_long() -> None:
    with pytest.raises(SettingsError) as wrong:
        load_settings(DecoderSettings, source="s" * 201, kafka={"bootstrap_servers": "localhost:1"})
    assert wrong.value.problems[0].startswith("MILLRACE_SOURCE is wrong: ")
    assert wrong.value.problems[0].endswith(", at most 200")

"""Names that no program knows, in the environment and in the file; settings that would have no effect."""

import importlib
import os
import pkgutil
from pathlib import Path

import pytest
from pydantic import BaseModel

import millrace
import services
import spark_jobs
from millrace.cli.verify import _Settings as VerifySettings
from millrace.decoder.settings import DecoderSettings
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError
from millrace.runtime.setting_names import BESIDE, SETTINGS, known_variables, variable, variable_problems
from millrace.runtime.settings import EnvironmentSettings, Switch, load_settings
from services.run.settings import RunSettings
from services.snapshot.settings import SnapshotSettings

pytestmark = pytest.mark.usefixtures("no_settings")

KAFKA = {"MILLRACE_SOURCE": "shop", "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "localhost:9092"}
GOOD = {**KAFKA, "MILLRACE_MYSQL_HOST": "db"}
FILES = {**KAFKA, "MILLRACE_FILES": "bin.index"}
PROGRAMS = [ReaderSettings, DecoderSettings, RowMapperSettings, RunSettings, SnapshotSettings, VerifySettings]


def problems(
    monkeypatch: pytest.MonkeyPatch, program: type[EnvironmentSettings], environment: dict[str, str]
) -> list[str]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(program)
    return list(caught.value.problems)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("MILLRACE_COLUMN_DROP", "MILLRACE_COLUMNS_DROP"),
        ("MILLRACE_REPLICATION_DO_DB", "MILLRACE_REPLICATE_DO_DB"),
        ("MILLRACE_STRAT", "MILLRACE_START"),
        ("MILLRACE_HTTP_PROT", "MILLRACE_HTTP_PORT"),
        ("MILLRACE_SNAPSHOT_TABLE", "MILLRACE_SNAPSHOT_TABLES"),
        ("millrace_columns_drop", "MILLRACE_COLUMNS_DROP"),
        ("MILLRACE_CACH", "MILLRACE_CACHE"),
        ("MILLRACE_CONFG", "MILLRACE_CONFIG"),
    ],
)
def test_a_misspelt_variable(
    program: type[EnvironmentSettings], name: str, nearest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(monkeypatch, program, {**GOOD, name: "a.b.c"}) == [
        f"{name} is unknown; there is {nearest}"
    ]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('strat = "latest"', "strat is unknown; there is start"),
        ("[column]", "[column] is unknown; there is [columns]"),
        ("[nosuch]", "[nosuch] is unknown; docs/configuration.md has all settings"),
        ('kafka = "x"', "kafka is a section: write [kafka], and a line for each setting below"),
        ("[source]", "[source] is no section: write source = …, above all sections"),
        ('[columns]\ndorp = "a.b.c"', "dorp in [columns] is unknown; there is drop"),
        ("[snapshot]\nparalel = 2", "paralel in [snapshot] is unknown; there is parallel"),
        ('[Kafka]\nbootstrap_servers = "b:1"', "[Kafka] is unknown; there is [kafka]"),
        ("[[mysql]]", "mysql is a section: write [mysql], and a line for each setting below"),
    ],
)
def test_a_misspelt_key(
    program: type[EnvironmentSettings],
    text: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = tmp_path / "millrace.toml"
    file.write_text(text)
    given = {**GOOD, "MILLRACE_CONFIG": str(file)}
    assert problems(monkeypatch, program, given) == [f"MILLRACE_CONFIG: {file}: {words}"]


def test_all_problems_are_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**GOOD, "MILLRACE_STRAT": "x", "MILLRACE_HTTP_PORT": "x", "MILLRACE_KERNEL": "of"}
    assert [line.split()[0] for line in problems(monkeypatch, ReaderSettings, given)] == [
        "MILLRACE_STRAT",
        "MILLRACE_KERNEL",
        "MILLRACE_HTTP_PORT",
    ]


LINKS = {
    "MILLRACE_SERVICE_HOST": "10.0.0.1",
    "MILLRACE_SERVICE_PORT": "9400",
    "MILLRACE_SERVICE_PORT_HTTP": "9400",
    "MILLRACE_PORT": "tcp://10.0.0.1:9400",
    "MILLRACE_PORT_9400_TCP": "tcp://10.0.0.1:9400",
    "MILLRACE_PORT_9400_TCP_ADDR": "10.0.0.1",
    "MILLRACE_PORT_9400_TCP_PORT": "9400",
    "MILLRACE_PORT_9400_TCP_PROTO": "tcp",
    "MILLRACE_CONSOLE_PORT": "tcp://10.0.0.2:80",
    "MILLRACE_MYSQL_SERVICE_HOST": "10.0.0.3",
    "MILLRACE_MYSQL_PORT": "tcp://10.0.0.3:3306",
    "MILLRACE_MYSQL_PORT_3306_TCP": "tcp://10.0.0.3:3306",
    "MILLRACE_HTTP_PORT": "tcp://10.0.0.4:8080",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_kubernetes_makes_of_services_is_no_setting(
    program: type[EnvironmentSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**GOOD, **LINKS}.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(program)
    assert getattr(settings, "http_port", 0) == 0
    mysql = getattr(settings, "mysql", None)
    assert mysql is None or mysql.port == 3306


def test_each_known_name_is_taken() -> None:
    assert variable_problems(dict.fromkeys(known_variables(), "on")) == []


def test_the_list_has_the_settings_of_every_program() -> None:
    """Whatever class of settings there is in the tree, in a command too."""
    for package in (millrace, services, spark_jobs):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".kernel." not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)

    def subclasses(kind: type[BaseModel]) -> set[type[BaseModel]]:
        return {kind}.union(*map(subclasses, kind.__subclasses__()))

    of_the_tree = {
        each
        for each in subclasses(EnvironmentSettings)
        if each.__module__.split(".")[0] in {"millrace", "services", "spark_jobs"}
    }
    assert of_the_tree > set(PROGRAMS)
    for program in of_the_tree:
        for name, field in program.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                assert set(kind.model_fields) <= set(SETTINGS[name]), program
                fields = list(kind.model_fields.values())
            else:
                assert name in SETTINGS[""], program
                fields = [field]
            for each in fields:  # so that yes, on and 1 are refused
                if each.annotation is bool:
                    assert each.metadata == list(Switch.__metadata__), (program, name)


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("TRUE", True), ("false", False), ("False", False)]
)
def test_a_switch(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, given in {**GOOD, "MILLRACE_SKIP_GAP": value}.items():
        monkeypatch.setenv(name, given)
    assert load_settings(DecoderSettings).skip_gap is expected


@pytest.mark.parametrize("value", ["yes", "no", "on", "off", "1", "0", "t", "y"])
def test_no_switch(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = problems(monkeypatch, DecoderSettings, {**GOOD, "MILLRACE_SKIP_GAP": value})
    assert line.startswith("MILLRACE_SKIP_GAP is wrong: neither true nor false; expected true to")


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ("http://kafka:9092", "a broker is HOST:PORT, without http:// or another scheme"),
        ("a:1,PLAINTEXT://b:2", "a broker is HOST:PORT, without http:// or another scheme"),
        ("user:secret@kafka:9092", "one of them is not HOST:PORT"),
        ("kafka:port", "one of them is not HOST:PORT"),
        ("kafka:70000", "one of them is not HOST:PORT"),
        ("kafka 9092", "one of them is not HOST:PORT"),
    ],
)
def test_no_brokers(servers: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**GOOD, "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": servers}
    [line] = problems(monkeypatch, DecoderSettings, given)
    assert line.startswith(
        f"MILLRACE_KAFKA_BOOTSTRAP_SERVERS is wrong: {words}; expected brokers as host:port"
    )
    assert "secret" not in line


@pytest.mark.parametrize("servers", ["a:1", "a", "a:1, b:2", "[::1]:9092", "10.0.0.1:9092"])
def test_brokers(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, given in {**GOOD, "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": servers}.items():
        monkeypatch.setenv(name, given)
    assert load_settings(DecoderSettings).kafka.bootstrap_servers == servers


TLS = {"MILLRACE_KAFKA_SECURITY_PROTOCOL": "SSL"}
HTTPS = {"MILLRACE_REGISTRY_URL": "https://registry"}
HTTP = {"MILLRACE_REGISTRY_URL": "http://registry"}


@pytest.mark.parametrize("section", ["KAFKA", "REGISTRY"])
@pytest.mark.parametrize("name", ["CA_LOCATION", "CERTIFICATE_LOCATION", "KEY_LOCATION"])
def test_files_that_are_not_there_are_named(
    section: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = tmp_path / "there.pem"
    there.touch()
    files = {
        f"MILLRACE_{section}_SSL_{each}": str(there) for each in ("CERTIFICATE_LOCATION", "KEY_LOCATION")
    }
    missing = f"MILLRACE_{section}_SSL_{name}"
    assert problems(
        monkeypatch, DecoderSettings, {**GOOD, **TLS, **HTTPS, **files, missing: "/no/such.pem"}
    ) == [f"{missing} is wrong: /no/such.pem cannot be read: No such file or directory"]


@pytest.mark.parametrize("name", ["SSL_CA", "SSL_CERT", "SSL_KEY", "SERVER_PUBLIC_KEY_PATH"])
def test_files_of_the_server_that_are_not_there_are_named(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = tmp_path / "there.pem"
    there.touch()
    given = {**GOOD, "MILLRACE_MYSQL_SSL_CERT": str(there), f"MILLRACE_MYSQL_{name}": "/no/such.pem"}
    if name == "SERVER_PUBLIC_KEY_PATH":
        given["MILLRACE_MYSQL_SSL_MODE"] = "PREFERRED"
    assert problems(monkeypatch, ReaderSettings, given) == [
        f"MILLRACE_MYSQL_{name} is wrong: /no/such.pem cannot be read: No such file or directory"
    ]


SASL = {
    "MILLRACE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "MILLRACE_KAFKA_SASL_MECHANISM": "PLAIN",
    "MILLRACE_KAFKA_SASL_USERNAME": "u",
    "MILLRACE_KAFKA_SASL_PASSWORD": "p",
}
DO_IDS = "MILLRACE_REPLICATE_DO_SERVER_IDS"
SIGNALS = {**GOOD, "MILLRACE_SNAPSHOT_MODE": "signals"}
IDLE: list[tuple[type[EnvironmentSettings], dict[str, str], str, str]] = [
    *(
        (DecoderSettings, KAFKA, f"MILLRACE_KAFKA_SASL_{name}", value)
        for name, value in (("MECHANISM", "PLAIN"), ("USERNAME", "u"), ("PASSWORD", "p"))
    ),
    *(
        (DecoderSettings, {**KAFKA, **more}, f"MILLRACE_{section}_SSL_{name}", "/x")
        for section, more in (("KAFKA", {}), ("KAFKA", SASL), ("REGISTRY", {}), ("REGISTRY", HTTP))
        for name in ("CA_LOCATION", "CERTIFICATE_LOCATION", "KEY_LOCATION", "KEY_PASSWORD")
    ),
    (DecoderSettings, {**KAFKA, **TLS}, "MILLRACE_KAFKA_SSL_KEY_PASSWORD", "p"),
    (DecoderSettings, {**KAFKA, **TLS}, "MILLRACE_KAFKA_SSL_CERTIFICATE_LOCATION", "/x"),
    (DecoderSettings, {**KAFKA, **TLS}, "MILLRACE_KAFKA_SSL_KEY_LOCATION", "/x"),
    (DecoderSettings, {**KAFKA, **HTTPS}, "MILLRACE_REGISTRY_SSL_KEY_PASSWORD", "p"),
    (DecoderSettings, KAFKA, "MILLRACE_REGISTRY_USERNAME", "u"),
    (DecoderSettings, KAFKA, "MILLRACE_REGISTRY_PASSWORD", "p"),
    (
        DecoderSettings,
        {**KAFKA, "MILLRACE_REGISTRY_URL": "https://v:q@registry", "MILLRACE_REGISTRY_PASSWORD": "p"},
        "MILLRACE_REGISTRY_USERNAME",
        "u",
    ),
    (DecoderSettings, KAFKA, "MILLRACE_INPUT_SOURCE", "shop"),
    (ReaderSettings, GOOD, "MILLRACE_INPUT_SOURCE", "other"),
    (SnapshotSettings, GOOD, "MILLRACE_INPUT_SOURCE", "other"),
    (ReaderSettings, GOOD, "MILLRACE_FOLLOW", "true"),
    (ReaderSettings, GOOD, "MILLRACE_FILES", "x"),
    (ReaderSettings, FILES, "MILLRACE_SEMI_SYNC", "true"),
    (ReaderSettings, FILES, "MILLRACE_START", "gtid:0-1-1"),
    *(
        (ReaderSettings, FILES, f"MILLRACE_MYSQL_{name}", value)
        for name, value in (
            *(("HOST", "db"), ("PORT", "3307"), ("USER", "u"), ("PASSWORD", "p"), ("SERVER_ID", "7")),
            *(("SSL_CA", "/x"), ("SSL_CERT", "/x"), ("SSL_MODE", "REQUIRED"), ("HEARTBEAT_S", "2")),
            *(("CONNECT_TIMEOUT_S", "2"), ("ALLOW_STATEMENTS", "true"), ("GET_SERVER_PUBLIC_KEY", "true")),
            ("SERVER_PUBLIC_KEY_PATH", "/x"),
        )
    ),
    *(
        (ReaderSettings, {**GOOD, "MILLRACE_MYSQL_SSL_MODE": "DISABLED"}, f"MILLRACE_MYSQL_SSL_{name}", "/x")
        for name in ("CA", "CERT", "KEY")
    ),
    *(
        (ReaderSettings, {**GOOD, "MILLRACE_MYSQL_SSL_MODE": mode}, "MILLRACE_MYSQL_SSL_CA", "/x")
        for mode in ("PREFERRED", "REQUIRED")
    ),
    (ReaderSettings, GOOD, "MILLRACE_MYSQL_SSL_KEY", "/x"),
    (
        ReaderSettings,
        {**GOOD, "MILLRACE_MYSQL_SSL_MODE": "VERIFY_IDENTITY"},
        "MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY",
        "true",
    ),
    *(
        (ReaderSettings, {**GOOD, **more}, "MILLRACE_MYSQL_SERVER_PUBLIC_KEY_PATH", "/x")
        for more in (
            {"MILLRACE_MYSQL_SSL_MODE": "REQUIRED"},
            {"MILLRACE_MYSQL_SSL_CA": "/x"},
            {"MILLRACE_MYSQL_GET_SERVER_PUBLIC_KEY": "true"},
        )
    ),
    *(
        (ReaderSettings, {**KAFKA, "MILLRACE_MYSQL_HOST": host}, "MILLRACE_MYSQL_PORT", "3307")
        for host in ("db:3308", "/run/mysqld.sock", "a:1,b:2")
    ),
    (RowMapperSettings, KAFKA, "MILLRACE_ROWS_STORE", "/x"),
    (
        RowMapperSettings,
        {**KAFKA, "MILLRACE_ROWS_DECIMAL": "double"},
        "MILLRACE_ROWS_WIDE_DECIMAL",
        "decimal",
    ),
    *(
        (RowMapperSettings, {**KAFKA, "MILLRACE_ROWS_FORMAT": form}, f"MILLRACE_ROWS_{name}", value)
        for form in ("json", "cloudevents")
        for name, value in (("COLUMN_ATTRIBUTES", "debezium"), ("PROPAGATE_SOURCE_TYPE", "true"))
    ),
    (RowMapperSettings, {**KAFKA, "MILLRACE_COLUMNS_DROP": "a.b.c"}, "MILLRACE_ROWS_INCLUDE_QUERY", "true"),
    (RowMapperSettings, KAFKA, "MILLRACE_ROWS_KEYS", "a.b=c,a.b=d"),
    (RowMapperSettings, KAFKA, "MILLRACE_COLUMNS_HASH_SALT", "s" * 16),
    (RowMapperSettings, KAFKA, "MILLRACE_COLUMNS_MASK", "a.b.c=x,a.b.c=y"),
    (RowMapperSettings, KAFKA, "MILLRACE_COLUMNS_TRUNCATE", "a.b.c=1,a.b.c=2"),
    (RowMapperSettings, {**KAFKA, "MILLRACE_COLUMNS_DROP": "a.b.c"}, "MILLRACE_COLUMNS_MASK", "a.b.C=x"),
    (RowMapperSettings, KAFKA, "MILLRACE_COLUMNS_DROP", "a.b.c,a.b.c"),
    (RowMapperSettings, KAFKA, "MILLRACE_REPLICATE_REWRITE_DB", "a->b,a->c"),
    (RowMapperSettings, KAFKA, "MILLRACE_REPLICATE_IGNORE_OPERATIONS", "a.b=c,a.b=d"),
    (RowMapperSettings, {**KAFKA, "MILLRACE_REPLICATE_DO_DB": "a"}, "MILLRACE_REPLICATE_IGNORE_DB", "b"),
    (
        RowMapperSettings,
        {**KAFKA, "MILLRACE_REPLICATE_DO_SERVER_IDS": "1"},
        "MILLRACE_REPLICATE_IGNORE_SERVER_IDS",
        "2",
    ),
    (RowMapperSettings, KAFKA, "MILLRACE_TOPICS_NAMES", "a.b=c.d,a.b=e.f"),
    (RowMapperSettings, KAFKA, "MILLRACE_TOPICS_PARTITIONS", "a.b=1,a.b=2"),
    (DecoderSettings, KAFKA, "MILLRACE_TOPICS_REPLICATION_FACTOR", "0"),
    (SnapshotSettings, SIGNALS, "MILLRACE_SNAPSHOT_TABLES", "a.b"),
    (SnapshotSettings, SIGNALS, "MILLRACE_RESTART", "true"),
    (SnapshotSettings, {**GOOD, "MILLRACE_SNAPSHOT_MODE": "once"}, "MILLRACE_RESTART", "true"),
]
"""Settings that would have no effect, or not the one that they name, in the environment beside them."""

ACT: dict[str, tuple[str, ...]] = {
    "whatever else is set": (
        *("MILLRACE_SOURCE", "MILLRACE_LOG_LEVEL", "MILLRACE_ON_GAP", "MILLRACE_SKIP_GAP"),
        "MILLRACE_ROWS_ON_INCOMPATIBLE",
        *(
            "MILLRACE_KAFKA_BOOTSTRAP_SERVERS",
            "MILLRACE_KAFKA_SECURITY_PROTOCOL",
            "MILLRACE_KAFKA_COMPRESSION",
        ),
        *("MILLRACE_KAFKA_CONNECT_TIMEOUT_S", "MILLRACE_KAFKA_FENCED_WAIT_S", "MILLRACE_REGISTRY_URL"),
        *("MILLRACE_TOPICS_MAX_TABLES", "MILLRACE_TOPICS_TABLE_PARTITIONS", "MILLRACE_TOPICS_RAW_EXCLUDE"),
        *(f"MILLRACE_ROWS_{name}" for name in ("FORMAT", "BIGINT_UNSIGNED", "DECIMAL", "TEMPORAL", "BIT")),
        *(
            f"MILLRACE_ROWS_{name}"
            for name in ("BINARY", "CONNECTOR", "TOMBSTONES", "KEY_HEADERS", "TRUNCATE")
        ),
        *(f"MILLRACE_ROWS_{name}" for name in ("FILTER", "BUFFER_MIB", "UNPACKED_MIB")),
        *(f"MILLRACE_REPLICATE_{name}" for name in ("DO_DB", "DO_TABLE", "IGNORE_TABLE", "WILD_DO_TABLE")),
        *("MILLRACE_REPLICATE_WILD_IGNORE_TABLE", "MILLRACE_REPLICATE_DO_SERVER_IDS"),
        *(f"MILLRACE_SNAPSHOT_{name}" for name in ("MODE", "EXCLUDE", "WHERE", "PARALLEL", "CHUNK_ROWS")),
        *("MILLRACE_SNAPSHOT_CHUNK_MIB", "MILLRACE_SNAPSHOT_ROWS_PER_S"),
        *(f"MILLRACE_SPARK_{name}" for name in ("CORES", "MEMORY_MIB", "JARS")),
    ),
    "else the service says that it does not": ("MILLRACE_HTTP_HOST", "MILLRACE_HTTP_PORT"),
    "or another setting that they need is missing": ("MILLRACE_COLUMNS_HASH", "MILLRACE_ROWS_COMPLETE"),
}


@pytest.mark.parametrize(("program", "environment", "name", "value"), IDLE)
def test_a_setting_without_effect_is_refused(
    program: type[EnvironmentSettings],
    environment: dict[str, str],
    name: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = tmp_path / "x"
    file.touch()
    for each, given in environment.items():
        monkeypatch.setenv(each, given.replace("/x", str(file)))
    before = dict(os.environ)
    lines = problems(monkeypatch, program, {name: value.replace("/x", str(file))})
    assert len(lines) == 1
    section = name.removeprefix("MILLRACE_").partition("_")[0]
    assert name in lines[0] or f"MILLRACE_{section}_…" in lines[0] or f"MILLRACE_{section}_SASL_…" in lines[0]
    monkeypatch.undo()
    monkeypatch.setattr(os, "environ", before)
    if "REGISTRY_URL" not in str(environment) or "@" not in str(environment):
        load_settings(program)  # without it nothing is wrong


def test_the_table_has_every_setting() -> None:
    acting = {name for names in ACT.values() for name in names}
    idle = {name for _, _, name, _ in IDLE}
    assert acting & idle == set()
    assert acting | idle == {variable(section, key) for section, keys in SETTINGS.items() for key in keys}
    assert not known_variables() & set(LINKS) - {"MILLRACE_MYSQL_PORT", "MILLRACE_HTTP_PORT"}
    assert not set(BESIDE) & (acting | idle)

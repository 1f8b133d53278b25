"""Settings from the environment and a TOML file, validated before anything starts.

``MILLRACE_KAFKA_BOOTSTRAP_SERVERS`` in the environment is ``bootstrap_servers`` in the section ``[kafka]`` of
the file that ``MILLRACE_CONFIG`` names; ``MILLRACE_SOURCE`` is ``source`` outside the sections. The
environment wins. All programs can share one environment and one file: a name that none of them knows is an
error (:mod:`millrace.runtime.setting_names`), values that a program does not use are not looked at.

A service derives its settings from :class:`ServiceSettings` and calls :func:`load_settings`. Each field has a
description, which is printed when its value is missing or wrong: it says what is expected. Values are never
printed, since any of them may be a secret in the wrong place.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from millrace.contract import Topics, first_version, source_problem, unescape_name
from millrace.runtime.errors import SettingsError
from millrace.runtime.setting_names import (
    CONFIG_VARIABLE,
    PREFIX,
    file_problems,
    given_variables,
    known_variables,
    variable_problems,
)
from millrace.wildcards import Wildcards

_BROKER: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+)(:(?P<port>[0-9]{1,5}))?")
_LAST_PORT: Final = 65535


def _source(value: str) -> str:
    problem = source_problem(value)
    if problem is not None:
        raise ValueError(problem)
    return value


def _replicas(value: int) -> int:
    if not value:
        raise ValueError("a topic has at least one replica")
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # whose words may hold a part of the address
        is_address = False
    if not is_address:
        raise ValueError("expected an address")
    return value


def _brokers(value: str) -> str:
    for part in parts_of(value):
        if "://" in part:
            raise ValueError("a broker is HOST:PORT, without http:// or another scheme")
        broker = _BROKER.fullmatch(part)
        if broker is None or not 0 < int(broker["port"] or 1) <= _LAST_PORT:
            raise ValueError("one of them is not HOST:PORT")
    return value


def _switch(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    switches = {"true": True, "false": False}
    if not isinstance(value, str) or value.lower() not in switches:
        raise ValueError("neither true nor false")
    return switches[value.lower()]


Switch = Annotated[bool, BeforeValidator(_switch)]
"""true or false, and no other word."""


class _Readable:
    """Marks the path of a file that :func:`load_settings` finds, and may read."""


InputFile = Annotated[Path, _Readable()]
"""The path of a file that must be there."""


def refuse_idle(section: str, group: BaseModel, *names: str, because: str) -> None:
    """Raise ValueError where one of the settings ``names`` is given, which would have no effect.

    A setting with its default is none that is given.
    """
    idle = [
        _variable([section, name] if section else [name])
        for name in names
        if getattr(group, name) != type(group).model_fields[name].get_default(call_default_factory=True)
    ]
    if idle:
        raise ValueError(f"{' and '.join(idle)} would have no effect: {because}")


def refuse_repeated(names: list[str]) -> None:
    """Raise ValueError where two rules of a list have the same left side."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} has two rules, and only one would have an effect")


class SettingsGroup(BaseModel):
    """A section of the file, a common prefix in the environment.

    A validator is built when the first value is made: most processes use but a few of the settings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


_TLS: Final = ("ssl_ca_location", "ssl_certificate_location", "ssl_key_location", "ssl_key_password")


def _key_is_complete(section: str, group: "KafkaSettings | RegistrySettings") -> None:
    """Raise ValueError for a part of certificate, private key and its password that lacks another."""
    prefix = _variable([section, "ssl"])
    if (group.ssl_certificate_location is None) != (group.ssl_key_location is None):
        raise ValueError(f"{prefix}_CERTIFICATE_LOCATION and {prefix}_KEY_LOCATION go together")
    if group.ssl_key_location is None:
        refuse_idle(section, group, "ssl_key_password", because=f"{prefix}_KEY_LOCATION is not set")


class KafkaSettings(SettingsGroup):
    """How Kafka is reached: ``MILLRACE_KAFKA_…``."""

    bootstrap_servers: Annotated[str, AfterValidator(_brokers)] = Field(
        min_length=1, description="brokers as host:port,…", examples=["localhost:9092"]
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
    )
    sasl_username: str | None = Field(None, description="SASL user")
    sasl_password: SecretStr | None = Field(None, description="SASL password")
    ssl_ca_location: InputFile | None = Field(None, description="file of the brokers' CA certificates")
    ssl_certificate_location: InputFile | None = Field(None, description="file of the client certificate")
    ssl_key_location: InputFile | None = Field(None, description="file of its private key")
    ssl_key_password: SecretStr | None = Field(None, description="password of the private key")
    compression: Literal["lz4", "zstd", "none"] = Field(
        "lz4", description="compression of records: lz4, zstd (more CPU, less disk) or none"
    )
    connect_timeout_s: float = Field(
        15.0,
        gt=0,
        le=3600,
        description="seconds to wait for a broker at the start, above 0, up to 3600",
    )
    fenced_wait_s: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="seconds that its successor must be idle before a fenced process exits, 0 to 3600",
    )

    @model_validator(mode="after")
    def _sasl_is_complete(self) -> "KafkaSettings":
        given = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if self.security_protocol.startswith("SASL") and None in given:
            raise ValueError(
                f"{PREFIX}KAFKA_SASL_MECHANISM, _USERNAME and _PASSWORD are needed with "
                f"{self.security_protocol}"
            )
        if not self.security_protocol.startswith("SASL") and any(given):
            raise ValueError(
                f"{PREFIX}KAFKA_SECURITY_PROTOCOL must be SASL_SSL or SASL_PLAINTEXT when "
                f"{PREFIX}KAFKA_SASL_… is given"
            )
        if not self.security_protocol.endswith("SSL"):
            refuse_idle(
                "kafka",
                self,
                *_TLS,
                because=f"{PREFIX}KAFKA_SECURITY_PROTOCOL is {self.security_protocol}, without TLS; set "
                "SSL or SASL_SSL",
            )
        _key_is_complete("kafka", self)
        return self


class RegistrySettings(SettingsGroup):
    """How the schema registry is reached: ``MILLRACE_REGISTRY_…``."""

    url: Annotated[str, AfterValidator(_url)] | None = Field(
        None,
        repr=False,  # a password may stand in it
        description="address of the registry's Confluent API, as http(s)://host:port/path",
    )
    username: str | None = Field(None, description="user of basic authentication")
    password: SecretStr | None = Field(None, description="password of the user")
    ssl_ca_location: InputFile | None = Field(None, description="file of the registry's CA certificates")
    ssl_certificate_location: InputFile | None = Field(None, description="file of the client certificate")
    ssl_key_location: InputFile | None = Field(None, description="file of its private key")
    ssl_key_password: SecretStr | None = Field(None, description="password of the private key")

    @model_validator(mode="after")
    def _credentials_are_complete(self) -> "RegistrySettings":
        if (self.username is None) != (self.password is None):
            raise ValueError(f"{PREFIX}REGISTRY_USERNAME and {PREFIX}REGISTRY_PASSWORD go together")
        _key_is_complete("registry", self)
        if self.url is None and any(value for name, value in self if name != "url"):
            raise ValueError(f"{PREFIX}REGISTRY_URL is needed with {PREFIX}REGISTRY_…")
        if self.url is not None and urlsplit(self.url).scheme == "http":
            refuse_idle("registry", self, *_TLS, because=f"{PREFIX}REGISTRY_URL is http://, without TLS")
        if self.url is not None and self.username is not None and "@" in urlsplit(self.url).netloc:
            raise ValueError(f"{PREFIX}REGISTRY_USERNAME is given, and {PREFIX}REGISTRY_URL has a user too")
        return self


class EnvironmentSettings(BaseSettings):
    """Settings from the environment and then the file; they do not change."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="_",
        env_nested_max_split=1,
        env_ignore_empty=True,
        extra="ignore",
        defer_build=True,
        frozen=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take explicit values first, then the environment, then the file."""
        assert isinstance(env_settings, EnvSettingsSource)
        known = known_variables()
        env_settings.env_vars = {
            name.lower(): value
            for name, value in given_variables(os.environ).items()
            if value and name in known
        }
        file = os.environ.get(CONFIG_VARIABLE)
        if not file:
            return init_settings, env_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=file)


class KafkaAndRegistrySettings(EnvironmentSettings):
    """Where Kafka and the registry are."""

    kafka: KafkaSettings
    registry: RegistrySettings = Field(default_factory=lambda: RegistrySettings.model_validate({}))


def _table_names(value: str) -> str:
    for part in parts_of(value):
        name, equals, other = part.partition("=")
        if not equals or "." not in name.strip(".") or "." not in other.strip("."):
            raise ValueError(f"{part!r} is not DATABASE.TABLE=DATABASE.TABLE")
        if other.count("%") > name.count("%"):
            raise ValueError(f"{part!r} has more % on the right than on the left, for which they stand")
    refuse_repeated([part.partition("=")[0].strip() for part in parts_of(value)])
    return value


def _table_partitions(value: str) -> str:
    for part in parts_of(value):
        name, _, count = part.partition("=")
        if "." not in name.strip(".") or not (count.strip().isascii() and count.strip().isdigit()):
            raise ValueError(f"{part!r} is not DATABASE.TABLE=PARTITIONS")
        if not int(count):
            raise ValueError(f"{part!r}: a topic has at least one partition")
    refuse_repeated([part.partition("=")[0].strip() for part in parts_of(value)])
    return value


def _filled(text: str, parts: list[str]) -> str:
    """Put parts in place of each %."""
    pieces = text.split("%")
    return pieces[0] + "".join(part + piece for part, piece in zip(parts, pieces[1:], strict=False))


@cache
def _name_rules(value: str) -> list[tuple[Wildcards, Wildcards, str]]:
    """Return the rules of names: the patterns of database and table, and the right side."""
    rules = []
    for part in parts_of(value):
        name, _, other = part.partition("=")
        database, _, table = name.strip().partition(".")
        of_database, of_table = (Wildcards(side, one="", escapes=False) for side in (database, table))
        rules.append((of_database, of_table, other.strip()))
    return rules


def parts_of(value: str) -> list[str]:
    """Cut a list at its commas."""
    return [part.strip() for part in value.split(",") if part.strip()]


def _tables(value: str) -> str:
    for part in parts_of(value):
        if not all(part.partition(".")):
            raise ValueError(f"{part!r} is not DATABASE.TABLE")
    return value


class TopicsSettings(SettingsGroup):
    """How topics are created when they are missing, and what is in none: ``MILLRACE_TOPICS_…``."""

    replication_factor: Annotated[int, AfterValidator(_replicas)] = Field(
        -1, ge=-1, le=32767, description="replicas of a new topic; -1: the broker's default"
    )
    max_tables: int = Field(1000, ge=1, description="largest number of row topics, 1 or more")
    table_partitions: int = Field(1, ge=1, description="partitions of a new row topic, 1 or more")
    partitions: Annotated[str, AfterValidator(_table_partitions)] = Field(
        "",
        description="partitions of a new row topic by its name, DATABASE.TABLE=PARTITIONS,…",
    )
    names: Annotated[str, AfterValidator(_table_names)] = Field(
        "",
        description="other names of row topics, DATABASE.TABLE=DATABASE.TABLE,…: % on the left matches "
        "any characters, % on the right is what it matched; the first match applies",
    )
    raw_exclude: Annotated[str, AfterValidator(_tables)] = Field(
        "",
        description="tables whose rows are in no topic, not even raw, DATABASE.TABLE,… with % and _: "
        "docs/selection.md",
    )

    @property
    def excluded(self) -> tuple[str, ...]:
        """The patterns of ``raw_exclude``."""
        return tuple(parts_of(self.raw_exclude))

    def partitions_of(self, topic: str) -> int:
        """Say how many partitions a new topic of a table gets."""
        name = ".".join(map(unescape_name, first_version(topic).split(".")[1:]))
        for part in parts_of(self.partitions):
            wanted, _, count = part.partition("=")
            if wanted.strip() == name:
                return int(count)
        return self.table_partitions

    def named(self, name: str) -> tuple[str, str] | None:
        """Return the database and table in the topic's name, if a rule renames ``database.table``."""
        database, _, table = name.partition(".")
        for of_database, of_table, other in _name_rules(self.names):
            parts, more = of_database.split(database), of_table.split(table)
            if parts is not None and more is not None:
                parts += more
                database, _, table = other.partition(".")
                count = database.count("%")
                return _filled(database, parts[:count]), _filled(table, parts[count:])
        return None


class ServiceSettings(EnvironmentSettings):
    """What every service needs to know."""

    captures: ClassVar[bool] = False
    """Whether what it is for reads a server, and writes what decoder and row mapper read."""

    source: Annotated[str, AfterValidator(_source)] = Field(
        description="name of the source: a letter, then letters, digits, '_' or '-', at most 200",
        examples=["shop"],
    )
    input_source: Annotated[str, AfterValidator(_source)] | None = Field(
        None,
        description="source whose raw topic, catalogue and snapshots decoder and row mapper read instead "
        "of their own: docs/how-to/upgrade.md",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="DEBUG, INFO, WARNING or ERROR"
    )
    http_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="address of health and metrics; * for all, IPv4 and IPv6",
    )
    http_port: int = Field(0, ge=0, le=65535, description="port of health and metrics; 0: none")
    kafka: KafkaSettings
    topics: TopicsSettings = Field(default_factory=lambda: TopicsSettings.model_validate({}))

    @model_validator(mode="after")
    def _reads_what_it_may(self) -> Self:
        if self.input_source == self.source:
            raise ValueError(
                "MILLRACE_INPUT_SOURCE is MILLRACE_SOURCE itself: unset it, or name another source"
            )
        if self.captures and self.names.reads_another:
            raise ValueError(
                "MILLRACE_INPUT_SOURCE is wrong: decoder and row mapper alone read the topics of another "
                f"source; what reads the server runs with MILLRACE_SOURCE={self.input_source} alone"
            )
        return self

    @property
    def names(self) -> Topics:
        """Names of the topics of the source."""
        return Topics(self.source, self.input_source)


Settings = TypeVar("Settings", bound=BaseSettings)


def load_settings(settings_class: type[Settings], **values: Any) -> Settings:
    """Read the settings of a service; ``values`` win over environment and file.

    Raises :class:`SettingsError` with a line for each setting that is missing or wrong.
    """
    _check_file()
    problems = variable_problems(os.environ)
    try:
        settings = settings_class(**values)
    except ValidationError as error:
        raise SettingsError([*problems, *_problems(settings_class, error)]) from None
    problems += _missing_files(settings)
    if problems:
        raise SettingsError(problems)
    return settings


def variables_of(section: str, group: SettingsGroup) -> dict[str, str]:
    """Return the variables by which another process is told of a section; secrets are among them."""
    values = {name: value for name, value in group if value is not None}
    return {
        _variable([section, name]): str(value.get_secret_value() if isinstance(value, SecretStr) else value)
        for name, value in values.items()
    }


def _missing_files(settings: BaseModel, *above: str) -> Iterator[str]:
    """Yield a line for each file that is named and cannot be read."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _missing_files(value, *above, name)
        elif isinstance(value, Path) and _is_input(field):
            try:
                with value.open("rb"):
                    pass
            except OSError as error:
                yield f"{_variable([*above, name])} is wrong: {value} cannot be read: {error.strerror}"


def _is_input(field: FieldInfo) -> bool:
    return any(
        isinstance(mark, _Readable)
        for kind in get_args(field.annotation)
        for mark in getattr(kind, "__metadata__", ())
    )


def _check_file() -> None:
    name = os.environ.get(CONFIG_VARIABLE)
    if not name:
        return
    try:
        with Path(name).open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise SettingsError([f"{CONFIG_VARIABLE}: {name} cannot be read: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"{CONFIG_VARIABLE}: {name} is not a TOML file: {error}"]) from None
    if problems := file_problems(name, content):
        raise SettingsError(problems)


def _problems(settings_class: type[BaseSettings], error: ValidationError) -> list[str]:
    problems: dict[str, None] = {}
    for detail in error.errors(include_url=False, include_input=False, include_context=True):
        path = [str(part) for part in detail["loc"] if isinstance(part, str)]
        if detail["type"] == "extra_forbidden":  # of the environment, which variable_problems() has named
            continue
        problems.update(dict.fromkeys(_describe(settings_class, path, detail["type"], detail["msg"])))
    return list(problems)


def _describe(settings_class: type[BaseModel], path: list[str], kind: str, message: str) -> list[str]:
    """Word what is wrong with the field at ``path``; for a missing section, with each field that it needs."""
    model: type[BaseModel] = settings_class
    names: list[str] = []
    description: str | None = None
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            break
        names.append(part)
        description = field.description
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            model = field.annotation
    else:
        if description is None and kind == "missing":
            return [
                line
                for name, field in model.model_fields.items()
                if field.is_required()
                for line in _describe(settings_class, [*path, name], kind, message)
            ]
    if kind == "value_error" and (description is None or not names):
        return [message.removeprefix("Value error, ")]
    if not description:
        return [f"{_variable(names)}: {message}"]
    verb = "is missing" if kind == "missing" else "is wrong"
    found = message.removeprefix("Value error, ") if kind == "value_error" else ""
    detail = f"{found}; " if found and not found.startswith("expected") else ""
    return [f"{_variable(names)} {verb}: {detail}expected {description}"]


def _variable(path: list[str]) -> str:
    return PREFIX + "_".join(path).upper()

"""How a database server is reached: settings of whoever reads its log."""

import re
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from millrace.mysql.address import MysqlAddress, SslMode
from millrace.runtime.settings import InputFile, SettingsGroup, Switch, parts_of, refuse_idle

SCHEMES: Final = ("mysql", "mariadb")
"""Of a server's address as a URL."""

_PREFIX: Final = "MILLRACE_MYSQL_"
_REPLACED: Final = {
    "ssl_verify": "VERIFY_IDENTITY",
    "ssl_disabled": "DISABLED",
}
"""Settings of before, and the mode that each of them is now."""

_URL_OPTIONS: Final = (
    "ssl_mode",
    "ssl_ca",
    "ssl_cert",
    "ssl_key",
    "get_server_public_key",
    "server_public_key_path",
)
"""Settings that a URL may hold, under the names that MySQL's own client has for them: ``ssl-mode``, …"""

_PORT: Final = 3306
_LAST_PORT: Final = 65535
_SERVER: Final = re.compile(
    r"\[(?P<six>[^\]]+)\](?::(?P<six_port>\d+))?|(?P<name>[^\s:\[\]@/]+)(?::(?P<port>\d+))?"
)


def _servers(value: str | None) -> str | None:
    """Check a list of servers; raises ValueError."""
    if value is not None:
        parts = parts_of(value)
        if not parts:
            raise ValueError("expected a server")
        found = [_place(part, _PORT) for part in parts]
        if len(set(found)) < len(found):
            raise ValueError("a server is named twice")
    return value


def _place(part: str, port: int) -> tuple[str, int, str | None]:
    """Return host, port and Unix socket of one server; ``port`` where it names none."""
    if part.startswith("/"):
        return "localhost", port, part
    if part.count(":") > 1 and not part.startswith("["):
        return part, port, None
    if "://" in part or "@" in part:  # and perhaps a password
        raise ValueError(
            "a server is HOST:PORT, not a URL; set MILLRACE_MYSQL_USER and _PASSWORD for the user"
        )
    match = _SERVER.fullmatch(part)
    if match is None:
        raise ValueError(
            f"{part!r} is not a server: expected HOST, HOST:PORT, [IPV6]:PORT or the path of a Unix socket"
        )
    number = int(match["port"] or match["six_port"] or port)
    if not 0 < number <= _LAST_PORT:
        raise ValueError(f"{part!r}: a port is a number from 1 to {_LAST_PORT}")
    return match["name"] or match["six"], number, None


def _names_port(part: str) -> bool:
    """Whether a server is named with a port, or by a socket, which has none."""
    return _place(part, _PORT) == _place(part, _PORT + 1) or part.startswith("/")


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


class MysqlSettings(SettingsGroup):
    """How the server is reached: ``MILLRACE_MYSQL_…``."""

    host: Annotated[str | None, AfterValidator(_servers)] = Field(
        default=None,
        description="the server: HOST, HOST:PORT, [IPV6]:PORT or the path of a Unix socket; several, "
        "separated by commas, are read one at a time",
        examples=["db1"],
    )
    port: int = Field(
        default=_PORT,
        ge=1,
        le=_LAST_PORT,
        description="port of a server named without one, 1 to 65535",
    )
    user: str = Field(
        default="millrace", description="user with REPLICATION SLAVE, REPLICATION CLIENT and SELECT"
    )
    password: SecretStr = Field(default=SecretStr(""), description="password of the user")
    ssl_ca: InputFile | None = Field(default=None, description="file of the server's CA certificates")
    ssl_cert: InputFile | None = Field(default=None, description="file of the client certificate")
    ssl_key: InputFile | None = Field(default=None, description="file of its private key")
    ssl_mode: Annotated[SslMode | None, BeforeValidator(_upper)] = Field(
        default=None,
        description="DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY, as in MySQL's client; "
        "by default VERIFY_IDENTITY with MILLRACE_MYSQL_SSL_CA, else REQUIRED with "
        "MILLRACE_MYSQL_SSL_CERT, else PREFERRED",
    )
    get_server_public_key: Switch = Field(
        default=False,
        description="true to trust the key that the server sends for the password (caching_sha2_password, "
        "sha256_password) where TLS is not verified; whoever stands in between can learn the "
        "password",
    )
    server_public_key_path: InputFile | None = Field(
        default=None,
        description="file of the server's RSA public key (PEM), for these two methods without TLS",
    )
    server_id: int | None = Field(
        default=None,
        ge=1,
        le=0xFFFFFFFF,
        description="server id as a replica, 1 to 4294967295, unique in the topology; by default made of "
        "the source's name",
    )
    heartbeat_s: float = Field(
        default=10.0, ge=0.1, le=3600, description="seconds between heartbeats of an idle server, 0.1 to 3600"
    )
    connect_timeout_s: float = Field(
        default=10.0, ge=1, le=3600, description="seconds to wait for a connection, 1 to 3600"
    )
    allow_statements: Switch = Field(
        default=False,
        description="true to read a log with binlog_format=STATEMENT or MIXED: changes logged as "
        "statements have no rows and are counted",
    )

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for name, mode in _REPLACED.items():
                if name in values:
                    raise ValueError(
                        f"{_PREFIX}{name.upper()} is no longer a setting: unset it, and where it was true "
                        f"set {_PREFIX}SSL_MODE={mode}"
                    )
        return values

    @model_validator(mode="after")
    def _consistent(self) -> "MysqlSettings":
        mode, ca = self.ssl_mode, self.ssl_ca
        if mode is SslMode.DISABLED:
            for name in ("ssl_ca", "ssl_cert", "ssl_key"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{_PREFIX}SSL_MODE=DISABLED and {_PREFIX}{name.upper()} exclude each other"
                    )
        if mode is SslMode.VERIFY_CA and ca is None:
            raise ValueError(
                f"{_PREFIX}SSL_CA is missing: expected the file of the CA certificates that "
                f"{_PREFIX}SSL_MODE=VERIFY_CA checks the server's against"
            )
        if ca is not None and mode is not None and not mode.verifies:
            raise ValueError(
                f"{_PREFIX}SSL_MODE={mode} checks no certificate, and {_PREFIX}SSL_CA is given: unset one of "
                "them, or set VERIFY_CA or VERIFY_IDENTITY"
            )
        if self.ssl_key is not None and self.ssl_cert is None:
            raise ValueError(f"{_PREFIX}SSL_CERT is missing: expected the certificate of {_PREFIX}SSL_KEY")
        effective = self.effective_ssl_mode
        if effective.verifies:
            because = f"{_PREFIX}SSL_MODE={effective} verifies who gets the password; unset it"
            refuse_idle("mysql", self, "get_server_public_key", because=because)
        if effective.verifies or effective is SslMode.REQUIRED:
            because = f"it is for servers without TLS, and {_PREFIX}SSL_MODE={effective} does without it"
            refuse_idle("mysql", self, "server_public_key_path", because=because)
        if self.host is not None and all(_names_port(part) for part in parts_of(self.host)):
            because = f"each server of {_PREFIX}HOST has a port or a socket; unset it"
            refuse_idle("mysql", self, "port", because=because)
        if self.get_server_public_key and self.server_public_key_path is not None:
            raise ValueError(
                f"{_PREFIX}GET_SERVER_PUBLIC_KEY takes any key and {_PREFIX}SERVER_PUBLIC_KEY_PATH one "
                "alone: unset one of them"
            )
        return self

    @property
    def effective_ssl_mode(self) -> SslMode:
        """The mode that is said, else the one that the other settings imply."""
        if self.ssl_mode is not None:
            return self.ssl_mode
        if self.ssl_ca is not None:
            return SslMode.VERIFY_IDENTITY
        return SslMode.REQUIRED if self.ssl_cert is not None else SslMode.PREFERRED

    def address(self) -> MysqlAddress:
        """Return where the server is and how we log in; of several the first."""
        return self.addresses()[0]

    def addresses(self) -> list[MysqlAddress]:
        """Return all servers of the topology, in the order in which they are to be tried."""
        assert self.host is not None
        return [
            MysqlAddress(
                host=host,
                port=port,
                unix_socket=unix_socket,
                user=self.user,
                password=self.password.get_secret_value(),
                ssl_mode=self.effective_ssl_mode,
                ssl_ca=self.ssl_ca,
                ssl_cert=self.ssl_cert,
                ssl_key=self.ssl_key,
                get_server_public_key=self.get_server_public_key,
                server_public_key_path=self.server_public_key_path,
                connect_timeout_s=self.connect_timeout_s,
            )
            for host, port, unix_socket in (_place(part, self.port) for part in parts_of(self.host))
        ]


def values_of_url(url: str) -> tuple[dict[str, Any], str | None]:
    """Take ``mysql://user:password@host:port/LOGFILE?ssl-mode=…`` apart.

    Returns the settings of :class:`MysqlSettings` that it names, and the name of a log file if there is one.
    Raises ValueError, without the password.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_no_url(url)) from None
    beside = parts.path.count("/") > 1 or "@" in parts.path or parts.fragment
    if parts.scheme not in SCHEMES or not host or port == 0 or beside:
        raise ValueError(_no_url(url))
    values: dict[str, Any] = {"host": host}
    if port:
        values["port"] = port
    if parts.username:
        values["user"] = unquote(parts.username)
    if parts.password is not None:
        values["password"] = unquote(parts.password)
    for option, value in parse_qsl(parts.query, keep_blank_values=True):
        name = option.replace("-", "_")
        if "@" in option + value and name not in _URL_OPTIONS:  # the rest of a password
            raise ValueError(_no_url(url))
        if name not in _URL_OPTIONS:
            known = ", ".join(each.replace("_", "-") for each in _URL_OPTIONS)
            raise ValueError(f"{_no_url(url)}: {option!r} is none of the options {known}")
        values[name] = value
    return values, unquote(parts.path.strip("/")) or None


def _no_url(url: str) -> str:
    # Up to the last @, since a password that is not encoded may hold any character.
    hidden = re.sub(r"(//[^:@]*:).*@", r"\1***@", url)
    password = re.search(r"//[^:@]*:(.*)@", url)
    advice = ""
    if password is not None and re.search(r"[/?#@:\[\]]", password[1]):
        advice = "; percent-encode / ? # @ : [ ] % in a password, as %2F %3F %23 %40 %3A %5B %5D %25"
    return f"{hidden} is not mysql://user:password@host:port/LOGFILE{advice}"


def environment(address: MysqlAddress) -> dict[str, str]:
    """Return the variables by which a service is told of ``address``."""
    values = {
        "host": address.unix_socket or address.host,
        "port": None if address.unix_socket else address.port,
        "user": address.user,
        "password": address.password,
        "ssl_mode": address.ssl_mode,
        "ssl_ca": address.ssl_ca,
        "ssl_cert": address.ssl_cert,
        "ssl_key": address.ssl_key,
        "get_server_public_key": address.get_server_public_key or None,
        "server_public_key_path": address.server_public_key_path,
    }
    return {f"{_PREFIX}{name.upper()}": str(value) for name, value in values.items() if value is not None}

"""How a database server is reached: settings of whoever reads its log."""

import re
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SecretStr

from millrace.mysql.connection import MysqlAddress
from millrace.runtime.settings import SettingsGroup

__all__ = ["MysqlSettings"]

_PORT: Final = 3306
_LAST_PORT: Final = 65535
_SERVER: Final = re.compile(
    r"\[(?P<six>[^\]]+)\](?::(?P<six_port>\d+))?|(?P<name>[^:\[\]]+)(?::(?P<port>\d+))?"
)


def _servers(value: str | None) -> str | None:
    """Check a list of servers; raises ValueError."""
    if value is not None:
        parts = _parts(value)
        if not parts:
            raise ValueError("expected a server")
        found = [_place(part, _PORT) for part in parts]
        if len(set(found)) < len(found):
            raise ValueError("a server is named twice")
    return value


def _parts(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _place(part: str, port: int) -> tuple[str, int, str | None]:
    """Return host, port and Unix socket of one server; ``port`` where it names none."""
    if part.startswith("/"):
        return "localhost", port, part
    if part.count(":") > 1 and not part.startswith("["):
        return part, port, None
    match = _SERVER.fullmatch(part)
    if match is None:
        raise ValueError(
            f"{part!r} is no server: expected HOST, HOST:PORT, [IPV6]:PORT or the path of a Unix socket"
        )
    number = int(match["port"] or match["six_port"] or port)
    if not 0 < number <= _LAST_PORT:
        raise ValueError(f"{part!r}: a port is a number from 1 to {_LAST_PORT}")
    return match["name"] or match["six"], number, None


class MysqlSettings(SettingsGroup):
    """How the server is reached: ``MILLRACE_MYSQL_…``."""

    host: Annotated[str | None, AfterValidator(_servers)] = Field(
        default=None,
        description="the server: HOST, HOST:PORT, [IPV6]:PORT or the path of a Unix socket; several of one "
        "topology, separated by commas, are read one at a time, the next when one is lost",
        examples=["db1"],
    )
    port: int = Field(
        default=_PORT,
        ge=1,
        le=_LAST_PORT,
        description="port of a server that is named without one, 1 to 65535",
    )
    user: str = Field(
        default="millrace", description="user with REPLICATION SLAVE, REPLICATION CLIENT and SELECT"
    )
    password: SecretStr = Field(default=SecretStr(""), description="password of the user")
    ssl_ca: Path | None = Field(
        default=None, description="file of the CA certificates that sign the server's"
    )
    ssl_cert: Path | None = Field(
        default=None, description="file of our certificate, if the server asks for one"
    )
    ssl_key: Path | None = Field(default=None, description="file of our private key")
    ssl_verify: bool = Field(
        default=False, description="true to insist on TLS and check the server's certificate"
    )
    ssl_disabled: bool = Field(
        default=False, description="true to connect without TLS even if the server offers it"
    )
    server_id: int | None = Field(
        default=None,
        ge=1,
        le=0xFFFFFFFF,
        description="server id that we use as a replica, 1 to 4294967295, used by no server or replica; "
        "by default one is made of the source's name",
    )
    heartbeat_s: float = Field(
        default=10.0, ge=0.1, le=3600, description="seconds between heartbeats of an idle server, 0.1 to 3600"
    )
    connect_timeout_s: float = Field(
        default=10.0, ge=1, le=3600, description="seconds to wait for a connection, 1 to 3600"
    )
    allow_statements: bool = Field(
        default=False, description="true to read a log with binlog_format=STATEMENT"
    )

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
                ssl_ca=self.ssl_ca,
                ssl_cert=self.ssl_cert,
                ssl_key=self.ssl_key,
                ssl_verify=self.ssl_verify,
                ssl_disabled=self.ssl_disabled,
                connect_timeout_s=self.connect_timeout_s,
            )
            for host, port, unix_socket in (_place(part, self.port) for part in _parts(self.host))
        ]

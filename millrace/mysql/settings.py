"""How a database server is reached: settings of whoever reads its log."""

from pathlib import Path

from pydantic import Field, SecretStr

from millrace.mysql.connection import MysqlAddress
from millrace.runtime.settings import SettingsGroup

__all__ = ["MysqlSettings"]


class MysqlSettings(SettingsGroup):
    """How the server is reached: ``MILLRACE_MYSQL_…``."""

    host: str | None = Field(default=None, description="host name or address of the server", examples=["db1"])
    port: int = Field(default=3306, ge=1, le=65535, description="port of the server, 1 to 65535")
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
        default=10.0, ge=1, description="seconds to wait for a connection, 1 or more"
    )
    allow_statements: bool = Field(
        default=False, description="true to read a log with binlog_format=STATEMENT"
    )

    def address(self) -> MysqlAddress:
        """Return where the server is and how we log in."""
        assert self.host is not None
        return MysqlAddress(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password.get_secret_value(),
            ssl_ca=self.ssl_ca,
            ssl_cert=self.ssl_cert,
            ssl_key=self.ssl_key,
            ssl_verify=self.ssl_verify,
            ssl_disabled=self.ssl_disabled,
            connect_timeout_s=self.connect_timeout_s,
        )

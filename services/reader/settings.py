"""Settings of the reader; the names of the environment variables follow from the fields'."""

import re
import zlib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, model_validator

from millrace.mysql.connection import MysqlAddress
from millrace.runtime.settings import ServiceSettings, SettingsGroup, TopicsSettings

__all__ = ["MysqlSettings", "ReaderSettings"]


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


_START = re.compile(r"earliest|latest|gtid:.*|.+:[0-9]+", re.DOTALL)


def _start(value: str) -> str:
    if not _START.fullmatch(value):
        raise ValueError("expected earliest, latest, FILE:POSITION or gtid:SET")
    if value not in {"earliest", "latest"} and not value.startswith("gtid:"):
        position = int(value.rpartition(":")[2])
        if position < 4:
            raise ValueError("the first event of a file starts at position 4")
    return value


class ReaderSettings(ServiceSettings):
    """What the reader needs to know: a server or files, and where to start the first time."""

    topics: TopicsSettings = Field(default_factory=lambda: TopicsSettings.model_validate({}))
    mysql: MysqlSettings = Field(default_factory=lambda: MysqlSettings.model_validate({}))
    files: str = Field(
        default="",
        description="binary log files instead of a server: paths, globs, or a log's .index file, "
        "separated by commas",
    )
    follow: bool = Field(default=False, description="true to wait for more at the end of the files")
    start: Annotated[str, AfterValidator(_start)] = Field(
        default="earliest",
        description="where to start the first time: earliest, latest, FILE:POSITION or gtid:SET",
    )

    @model_validator(mode="after")
    def _one_kind_of_source(self) -> "ReaderSettings":
        if self.mysql.host is None and not self.files:
            raise ValueError(
                "MILLRACE_MYSQL_HOST is missing: expected the server to read from (or MILLRACE_FILES)"
            )
        if self.mysql.host is not None and self.files:
            raise ValueError(
                "MILLRACE_MYSQL_HOST and MILLRACE_FILES exclude each other: read a server or files"
            )
        if self.files and self.start.startswith("gtid:"):
            raise ValueError(
                "MILLRACE_START is wrong: files can be read from earliest, latest or FILE:POSITION"
            )
        return self

    @property
    def replica_server_id(self) -> int:
        """Server id that we use as a replica."""
        if self.mysql.server_id is not None:
            return self.mysql.server_id
        # High numbers are rare among real servers, and a topology's own are usually small.
        return 0x4D000000 | (zlib.crc32(self.source.encode()) & 0xFFFFFF)

"""Settings of the reader; the names of the environment variables follow from the fields'."""

import re
import zlib
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from millrace.mysql.settings import MysqlSettings
from millrace.reader.start_position import seconds_of
from millrace.runtime.settings import ServiceSettings, Switch, TopicsSettings, refuse_idle

_START = re.compile(r"earliest|latest|gtid:.*|time:.*|.+:[0-9]+", re.DOTALL)


def checked_start(value: str) -> str:
    """Return a place to start at, as MILLRACE_START spells it; raises ValueError."""
    if not _START.fullmatch(value):
        raise ValueError("expected earliest, latest, FILE:POSITION, gtid:SET or time:2026-01-31T12:00:00Z")
    if value.startswith("time:"):
        seconds_of(value.removeprefix("time:"))
        return value
    if value not in {"earliest", "latest"} and not value.startswith("gtid:"):
        position = int(value.rpartition(":")[2])
        if position < 4:
            raise ValueError("the first event of a file starts at position 4")
    return value


class ReaderSettings(ServiceSettings):
    """What the reader needs to know: a server or files, and where to start the first time."""

    captures = True

    topics: TopicsSettings = Field(default_factory=lambda: TopicsSettings.model_validate({}))
    mysql: MysqlSettings = Field(default_factory=lambda: MysqlSettings.model_validate({}))
    files: str = Field(
        default="",
        description="binary log files instead of a server: paths, globs or an .index file, separated by "
        "commas",
    )
    follow: Switch = Field(default=False, description="true to wait for more at the end of the files")
    start: Annotated[str, AfterValidator(checked_start)] = Field(
        default="earliest",
        description="where to start first: earliest, latest, FILE:POSITION, gtid:SET or "
        "time:2026-01-31T12:00:00Z (the first transaction that ended then or later)",
    )
    on_gap: Literal["stop", "continue"] = Field(
        default="stop",
        description="stop where unread logs were purged or a log file is missing, or continue at the "
        "oldest log, with a gap record in the raw topic",
    )
    semi_sync: Switch = Field(
        default=False,
        description="true to make each COMMIT wait until Kafka has the transaction: docs/semi-sync.md",
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
        if self.files:
            because = "MILLRACE_FILES is set, and no server is read; unset it"
            refuse_idle("mysql", self.mysql, *type(self.mysql).model_fields, because=because)
        else:
            because = "it is for MILLRACE_FILES, and a server is read, which is always followed; unset it"
            refuse_idle("", self, "follow", because=because)
        if self.files and self.semi_sync:
            raise ValueError("MILLRACE_SEMI_SYNC is wrong: files wait for nobody; read a server or unset it")
        if self.files and self.start.startswith("gtid:"):
            raise ValueError(
                "MILLRACE_START is wrong: files can be read from earliest, latest, FILE:POSITION or a time"
            )
        return self

    @property
    def replica_server_id(self) -> int:
        """Server id that we use as a replica."""
        if self.mysql.server_id is not None:
            return self.mysql.server_id
        # High numbers are rare among real servers, and a topology's own are usually small.
        return 0x4D000000 | (zlib.crc32(self.source.encode()) & 0xFFFFFF)

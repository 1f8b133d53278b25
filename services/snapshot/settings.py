"""Settings of the snapshot."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from millrace.mysql.settings import MysqlSettings
from millrace.runtime.settings import RegistrySettings, ServiceSettings, SettingsGroup, Switch, refuse_idle
from millrace.selection.settings import ReplicateSettings


def _patterns(value: str) -> str:
    for pattern in filter(None, value.split(",")):
        if pattern.strip().count(".") < 1:
            raise ValueError(f"{pattern.strip()}: expected DATABASE.TABLE; * stands for any characters")
    return value


def _conditions(value: str) -> str:
    try:
        found = json.loads(value or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError('expected a JSON object such as {"shop.orders": "year >= 2024"}')
    return value


class SnapshotRowsSettings(SettingsGroup):
    """What is read, and how fast: ``MILLRACE_SNAPSHOT_…``."""

    mode: Literal["now", "once", "signals"] = Field(
        "now",
        description="now: what is asked for; once: only where none was taken; signals: stay, and take "
        "what {source}.signals asks for",
    )
    tables: Annotated[str, AfterValidator(_patterns)] = Field(
        "",
        description="tables, DATABASE.TABLE,… with * for any characters; all by default",
        examples=["shop.orders,shop.c*"],
    )
    exclude: Annotated[str, AfterValidator(_patterns)] = Field(
        "", description="tables that are left out, in the same form"
    )
    where: Annotated[str, AfterValidator(_conditions)] = Field(
        "",
        description="SQL conditions that rows must meet, as a JSON object by DATABASE.TABLE",
        examples=['{"shop.orders": "year >= 2024"}'],
    )
    parallel: int = Field(2, ge=1, le=64, description="connections that read at once, 1 to 64")
    chunk_rows: int = Field(
        10_000, ge=1, le=1_000_000, description="largest number of rows of a SELECT, 1 to 1000000"
    )
    chunk_mib: int = Field(
        4,
        ge=1,
        le=64,
        description="MiB of rows that a SELECT should read, 1 to 64",
    )
    rows_per_s: int = Field(0, ge=0, description="largest number of rows read per second; 0: no limit")

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions by table."""
        found: dict[str, str] = json.loads(self.where or "{}")
        return found


class SnapshotSettings(ServiceSettings):
    """What the snapshot needs to know."""

    captures = True

    registry: RegistrySettings = Field(default_factory=lambda: RegistrySettings.model_validate({}))
    mysql: MysqlSettings = Field(default_factory=lambda: MysqlSettings.model_validate({}))
    replicate: ReplicateSettings = Field(default_factory=lambda: ReplicateSettings.model_validate({}))
    snapshot: SnapshotRowsSettings = Field(default_factory=lambda: SnapshotRowsSettings.model_validate({}))
    restart: Switch = Field(False, description="true to start a snapshot over")

    @model_validator(mode="after")
    def _can_act(self) -> Any:
        if self.mysql.host is None:
            raise ValueError("MILLRACE_MYSQL_HOST is missing: expected the server that the reader reads")
        if self.snapshot.mode == "signals":
            because = "MILLRACE_SNAPSHOT_MODE is signals, each of which names its tables; unset it"
            refuse_idle("snapshot", self.snapshot, "tables", because=because)
        if self.snapshot.mode != "now":
            because = f"MILLRACE_SNAPSHOT_MODE is {self.snapshot.mode}; unset one of them"
            refuse_idle("", self, "restart", because=because)
        return self

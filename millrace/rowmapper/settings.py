"""Settings of the row mapper."""

from typing import Literal

from pydantic import Field

from millrace.binlog.columns import AvroOptions
from millrace.runtime.settings import RegistrySettings, ServiceSettings, SettingsGroup

__all__ = ["RowMapperSettings", "RowsSettings"]


class RowsSettings(SettingsGroup):
    """How rows are written: ``MILLRACE_ROWS_…``."""

    bigint_unsigned: Literal["decimal", "long", "string"] = Field(
        "decimal",
        description="decimal, long (a value of 2^63 or more becomes null and is noted) or string",
    )
    wide_decimal: Literal["string", "decimal"] = Field(
        "string", description="DECIMAL of more than 38 digits as string or decimal; Spark reads 38"
    )
    include_query: bool = Field(
        False, description="true to put the statement, where it is logged, into source.query of each row"
    )
    buffer_mib: int = Field(
        64,
        ge=1,
        le=4096,
        description="MiB of a transaction that wait in memory until its end is known, 1 to 4096",
    )

    unpacked_mib: int = Field(
        64,
        ge=1,
        le=1024,
        description="MiB to which an event that MariaDB has compressed may unpack, and the compressed "
        "columns of one event, 1 to 1024; rows that take more quarantine their table, and values stay as "
        "they are stored",
    )

    @property
    def avro(self) -> AvroOptions:
        """What the columns' declarations are told."""
        return AvroOptions(bigint_unsigned=self.bigint_unsigned, wide_decimal=self.wide_decimal)


class RowMapperSettings(ServiceSettings):
    """What the row mapper needs to know."""

    registry: RegistrySettings
    rows: RowsSettings = RowsSettings()  # type: ignore[call-arg]  # pydantic fills in the defaults

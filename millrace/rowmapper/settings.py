"""Settings of the row mapper."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from millrace.binlog.columns import AvroOptions
from millrace.runtime.settings import RegistrySettings, ServiceSettings, SettingsGroup, Switch, refuse_idle
from millrace.selection.rows import RowRules, parse_rules
from millrace.selection.settings import (
    ColumnsSettings,
    ReplicateSettings,
    RowConditions,
    RowKeys,
    TablePatterns,
    keys_of,
    parts_of,
)


class RowsSettings(SettingsGroup):
    """How rows are written: ``MILLRACE_ROWS_…``."""

    format: Literal["avro", "json", "json-schema", "cloudevents"] = Field(
        "avro",
        description="records of row topics as avro, json, json-schema or cloudevents: docs/types.md",
    )
    on_incompatible: Literal["quarantine", "new-topic"] = Field(
        "quarantine",
        description="what an incompatible schema, or other keys, do to a table: quarantine, or new-topic "
        "(its rows continue in the next version of its topic)",
    )
    bigint_unsigned: Literal["decimal", "long", "string"] = Field(
        "decimal",
        description="BIGINT UNSIGNED as decimal, long (2^63 and more: null, and in unrepresentable) or "
        "string",
    )
    wide_decimal: Literal["string", "decimal"] = Field(
        "string", description="DECIMAL of more than 38 digits as string or decimal; Spark reads 38"
    )
    decimal: Literal["decimal", "string", "double"] = Field(
        "decimal", description="DECIMAL as decimal, string or double (15 digits)"
    )
    temporal: Literal["logical", "debezium", "connect"] = Field(
        "logical",
        description="dates and times: logical (Avro's types, microseconds), debezium (as its default) or "
        "connect (Kafka Connect's, milliseconds)",
    )
    bit: Literal["bytes", "debezium"] = Field(
        "bytes",
        description="BIT as bytes, the most significant first; debezium: BIT(1) as boolean, others least "
        "significant first",
    )
    binary: Literal["bytes", "base64", "hex"] = Field(
        "bytes", description="BINARY, VARBINARY and BLOB as bytes, base64 or hex"
    )
    column_attributes: Literal["none", "parameters", "debezium"] = Field(
        "none",
        description="NOT NULL and DEFAULT in schemas: none, parameters or debezium (as Kafka Connect's "
        "default too)",
    )
    propagate_source_type: Switch = Field(
        False,
        description="true to add SQL types to schemas, as Debezium's column.propagate.source.type does",
    )
    connector: str = Field(
        "millrace",
        min_length=1,
        description="value of source.connector; mysql or mariadb for consumers that expect Debezium",
    )
    tombstones: Literal["auto", "always", "never"] = Field(
        "auto",
        description="tombstones after deletes in tables with a key: auto (if the topic is compacted), "
        "always or never",
    )
    key_headers: Switch = Field(
        False,
        description="true to name the other key in both records of an update of the key: "
        "__debezium.newkey, __debezium.oldkey",
    )
    truncate: Switch = Field(
        False, description="true to write TRUNCATE TABLE as a record with op t, without a key"
    )
    include_query: Switch = Field(
        False, description="true to add the logged statement to each row as source.query"
    )
    filter: RowConditions = Field(
        "",
        description="SQL conditions that rows must meet, DATABASE.TABLE: CONDITION;…",
    )
    keys: RowKeys = Field(
        "",
        description="columns of keys instead of the primary key, DATABASE.TABLE=COLUMN+COLUMN,… with % "
        "and _ for the table; nothing after = for no key",
    )
    complete: TablePatterns = Field(
        "",
        description="tables whose rows are completed where minimal images lack columns, "
        "DATABASE.TABLE,… with % and _",
    )
    store: Path | None = Field(None, description="local folder for the rows of these tables")
    buffer_mib: int = Field(
        64,
        ge=1,
        le=4096,
        description="MiB of a transaction held in memory until its end is known, 1 to 4096",
    )

    unpacked_mib: int = Field(
        64,
        ge=1,
        le=1024,
        description="MiB to which an event compressed by MariaDB, or the compressed columns of an event, "
        "may expand, 1 to 1024; larger rows quarantine their table, larger values stay as "
        "stored",
    )

    @model_validator(mode="after")
    def _can_act(self) -> "RowsSettings":
        if self.complete and self.store is None:
            raise ValueError("MILLRACE_ROWS_STORE is missing: MILLRACE_ROWS_COMPLETE needs it")
        if not self.complete:
            refuse_idle("rows", self, "store", because="MILLRACE_ROWS_COMPLETE names no table")
        if self.decimal != "decimal":
            because = (
                f"MILLRACE_ROWS_DECIMAL={self.decimal} decides for DECIMAL of any size; unset one of them"
            )
            refuse_idle("rows", self, "wide_decimal", because=because)
        if self.format in {"json", "cloudevents"}:
            because = f"MILLRACE_ROWS_FORMAT={self.format} has no schemas; unset one of them"
            refuse_idle("rows", self, "column_attributes", "propagate_source_type", because=because)
        return self

    @property
    def completed_tables(self) -> list[str]:
        """Patterns of tables whose rows are completed."""
        return parts_of(self.complete)

    @property
    def conditions(self) -> RowRules:
        """Conditions on rows by pattern of tables."""
        return parse_rules(self.filter)

    @property
    def key_columns(self) -> dict[str, list[str]]:
        """Names of the columns of keys by pattern of tables."""
        return keys_of(self.keys)

    @property
    def avro(self) -> AvroOptions:
        """The options for the columns' declarations."""
        return AvroOptions(
            bigint_unsigned=self.bigint_unsigned,
            wide_decimal=self.wide_decimal,
            decimal=self.decimal,
            temporal=self.temporal,
            bit=self.bit,
            binary=self.binary,
            column_attributes=self.column_attributes,
            propagate_source_type=self.propagate_source_type,
        )


class RowMapperSettings(ServiceSettings):
    """What the row mapper needs to know."""

    registry: RegistrySettings = Field(default_factory=lambda: RegistrySettings.model_validate({}))
    rows: RowsSettings = RowsSettings()  # type: ignore[call-arg]  # pydantic fills in the defaults
    replicate: ReplicateSettings = ReplicateSettings()  # type: ignore[call-arg]  # likewise
    columns: ColumnsSettings = ColumnsSettings()  # type: ignore[call-arg]  # likewise

    @model_validator(mode="after")
    def _rows_fit_the_rest(self) -> "RowMapperSettings":
        if self.rows.include_query and self.columns.rules:
            raise ValueError(
                "MILLRACE_ROWS_INCLUDE_QUERY is wrong: statements hold the values that MILLRACE_COLUMNS_… "
                "keep from row topics; unset one of them"
            )
        return self

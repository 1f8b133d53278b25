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
        description="records of row topics as avro, json, json-schema (Kafka Connect's, with the schema in "
        "each record) or cloudevents (structured JSON): docs/types.md",
    )
    on_incompatible: Literal["quarantine", "new-topic"] = Field(
        "quarantine",
        description="what happens to a table whose schema is incompatible with that of the records before, "
        "or whose rows get other keys: quarantine, or new-topic (its rows continue in the next version of "
        "its topic)",
    )
    bigint_unsigned: Literal["decimal", "long", "string"] = Field(
        "decimal",
        description="BIGINT UNSIGNED as decimal, long (a value of 2^63 or more becomes null, and "
        "unrepresentable has it) or string",
    )
    wide_decimal: Literal["string", "decimal"] = Field(
        "string", description="DECIMAL of more than 38 digits as string or decimal; Spark reads 38"
    )
    decimal: Literal["decimal", "string", "double"] = Field(
        "decimal", description="DECIMAL as decimal, string or double, which has 15 digits at least"
    )
    temporal: Literal["logical", "debezium", "connect"] = Field(
        "logical",
        description="DATE, TIME, DATETIME, TIMESTAMP: logical (Avro's types, microseconds), debezium (as its "
        "default), or connect (Kafka Connect's, milliseconds; a TIME that is not a time of day becomes "
        "null, and unrepresentable has it)",
    )
    bit: Literal["bytes", "debezium"] = Field(
        "bytes",
        description="BIT as bytes, the most significant first; debezium: BIT(1) as boolean, others with the "
        "least significant first",
    )
    binary: Literal["bytes", "base64", "hex"] = Field(
        "bytes", description="BINARY, VARBINARY and BLOB as bytes, or as string of base64 or hex"
    )
    column_attributes: Literal["none", "parameters", "debezium"] = Field(
        "none",
        description="NOT NULL and literal DEFAULTs in schemas: none, parameters (millrace.nullable, "
        "millrace.default) or debezium (also as the default of Kafka Connect, whose readers may use it "
        "for NULL)",
    )
    propagate_source_type: Switch = Field(
        False,
        description="true to add the SQL type of each column to schemas, as Debezium's "
        "column.propagate.source.type does: __debezium.source.column.type, length, scale and name",
    )
    connector: str = Field(
        "millrace",
        min_length=1,
        description="value of source.connector; mysql or mariadb for consumers that expect Debezium",
    )
    tombstones: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whether a record without a value follows a delete in a table with a key: auto (if "
        "the topic is compacted), always or never",
    )
    key_headers: Switch = Field(
        False,
        description="true to add the other key as a header to both records of an update of the key: "
        "__debezium.newkey, __debezium.oldkey",
    )
    truncate: Switch = Field(
        False, description="true to write TRUNCATE TABLE as a record with op t and without a key"
    )
    include_query: Switch = Field(
        False, description="true to add the statement, if it is logged, as source.query to each row"
    )
    filter: RowConditions = Field(
        "",
        description="conditions that rows must meet, as DATABASE.TABLE: CONDITION with a condition in SQL "
        "on columns and literals, separated by semicolons",
    )
    keys: RowKeys = Field(
        "",
        description="columns of the keys of records instead of the primary key, as DATABASE.TABLE=COLUMN or "
        "=COLUMN+COLUMN with % and _ as in LIKE for the table, separated by commas; no key with nothing "
        "after the =",
    )
    complete: TablePatterns = Field(
        "",
        description="tables for whose rows the columns that a minimal image lacks are filled in from earlier "
        "changes of the row, as DATABASE.TABLE with % and _ as in LIKE, separated by commas",
    )
    store: Path | None = Field(
        None, description="folder on a local disk in which the rows of these tables are kept"
    )
    buffer_mib: int = Field(
        64,
        ge=1,
        le=4096,
        description="MiB of a transaction that are held in memory until its end is known, 1 to 4096",
    )

    unpacked_mib: int = Field(
        64,
        ge=1,
        le=1024,
        description="MiB to which an event compressed by MariaDB may expand, and the compressed "
        "columns of one event, 1 to 1024; larger rows quarantine their table, and larger values stay as "
        "they are stored",
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

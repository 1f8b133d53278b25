"""Tables: as a server's catalog defines them, and as the columns of a table map resolve against that.

A table map always gives types; names, keys, signedness, character sets and members only as far as the server
was told to write them (``binlog_row_metadata``). What is missing comes from a :class:`TableDefinition`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from millrace.binlog.columns.column import Column
from millrace.binlog.errors import BinlogError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ColumnDefinition",
    "ResolvedTable",
    "SchemaMismatchError",
    "SchemaSource",
    "TableDefinition",
]

SchemaSource = Literal["table_map", "catalog", "positional"]


class SchemaMismatchError(BinlogError):
    """A table map and the definition of its table cannot both be true."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column in a server's catalog.

    ``ordinal`` counts from 0 in the order of the table's definition. ``column_type`` is the type's full
    text as in ``information_schema.COLUMNS.COLUMN_TYPE`` (``enum('a','b')``, ``bigint(20) unsigned``).
    ``charset`` and ``collation`` are None for types without characters; BINARY and BLOB have none in the
    catalog. ``members`` are those of an ENUM or SET. ``key_position`` counts from 0 in the primary key;
    ``key_prefix`` is the length of the indexed prefix, 0 for the whole column. ``generated`` is VIRTUAL,
    STORED or None: a virtual column (MySQL) is in the row images too. ``hidden`` marks what SELECT * does
    not show.
    """

    ordinal: int
    name: str
    column_type: str
    nullable: bool = True
    unsigned: bool = False
    charset: str | None = None
    collation: str | None = None
    members: tuple[str, ...] | None = None
    key_position: int | None = None
    key_prefix: int = 0
    generated: Literal["VIRTUAL", "STORED"] | None = None
    hidden: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for an Avro record with the same field names."""
        return {
            "ordinal": self.ordinal,
            "name": self.name,
            "column_type": self.column_type,
            "nullable": self.nullable,
            "unsigned": self.unsigned,
            "charset": self.charset,
            "collation": self.collation,
            "members": None if self.members is None else list(self.members),
            "key_position": self.key_position,
            "key_prefix": self.key_prefix,
            "generated": self.generated,
            "hidden": self.hidden,
        }

    @classmethod
    def from_dict(cls, values: "Mapping[str, Any]") -> Self:
        """Build from what :meth:`to_dict` gave."""
        members = values["members"]
        return cls(**{**values, "members": None if members is None else tuple(members)})


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table in a server's catalog, its columns in the order of their definition."""

    database: str
    table: str
    columns: tuple[ColumnDefinition, ...]
    engine: str | None = None
    charset: str | None = None
    collation: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the primary key's columns in the key's order; empty without a primary key."""
        parts = sorted((c.key_position, c.name) for c in self.columns if c.key_position is not None)
        return tuple(name for _, name in parts)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for an Avro record with the same field names."""
        return {
            "database": self.database,
            "table": self.table,
            "columns": [column.to_dict() for column in self.columns],
            "engine": self.engine,
            "charset": self.charset,
            "collation": self.collation,
        }

    @classmethod
    def from_dict(cls, values: "Mapping[str, Any]") -> Self:
        """Build from what :meth:`to_dict` gave."""
        columns = tuple(ColumnDefinition.from_dict(column) for column in values["columns"])
        return cls(**{**values, "columns": columns})


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """A table whose every column has a name.

    ``columns`` are in the order of the row images, ``key_columns`` in the order of the primary key (empty
    when there is none or it is not known). ``schema_source`` says where the names came from.
    ``transactional`` is None where the storage engine is not known.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    key_columns: tuple[Column, ...]
    schema_source: SchemaSource
    transactional: bool | None = None

"""Tables: as a server's catalog defines them, and as the columns of a table map resolve against that.

A table map always gives types; names, keys, signedness, character sets and members only as far as the server
was told to write them (``binlog_row_metadata``). What is missing comes from a :class:`TableDefinition`.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from typing import Any, Final, Literal, Self

from millrace.binlog.columns.charsets import BINARY, current_name
from millrace.binlog.columns.column import (
    BitMetadata,
    BlobMetadata,
    Column,
    DecimalMetadata,
    FractionMetadata,
    LengthMetadata,
    Metadata,
    PackMetadata,
)
from millrace.binlog.columns.declaration import (
    COLUMNS,
    FORMER_TYPES,
    SAME_TYPES,
    CatalogColumn,
    codec_of,
    travels_as,
)
from millrace.binlog.columns.metadata import (
    KINDS_OF_SERVER,
    MEMBER_TYPES,
    TableMap,
    columns_of,
    decode_optional_metadata,
    member_texts,
)
from millrace.binlog.columns.spatial import GEOMETRY_NAMES
from millrace.binlog.columns.sql_types import SqlType
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.errors import BinlogError, MalformedError, SchemaMismatchError, UnsupportedError
from millrace.binlog.names import folded
from millrace.binlog.server_version import ServerVersion

__all__ = [
    "DEFINITION_TOO_LARGE",
    "LARGEST_DEFINITION",
    "LONGEST_DEFAULT",
    "ColumnDefinition",
    "IndexDefinition",
    "ResolvedTable",
    "SchemaMismatchError",
    "SchemaSource",
    "TableDefinition",
    "column_of",
    "former_columns",
    "kept_default",
    "keyed",
    "resolve_columns",
]

SchemaSource = Literal["table_map", "catalog", "positional"]


LONGEST_DEFAULT: Final = 1000
"""Characters of a literal DEFAULT that a definition keeps: a TEXT of MariaDB may have a very long one."""


LARGEST_DEFINITION: Final = 1_000_000
"""Bytes of a definition in a record: what every topic takes in one, with the record's key and headers."""


DEFINITION_TOO_LARGE: Final = (
    f"it is too large: more than {LARGEST_DEFINITION:,} bytes are kept of no table. With "
    "binlog_row_metadata=FULL rows tell their columns themselves, and need no definition"
)


_MOST_FORMER: Final = 10
"""Former names of a column that are kept."""

_MOST_GONE: Final = 100
"""Names in :attr:`TableDefinition.gone` that are kept."""


def kept_default(literal: str | None) -> str | None:
    """Return a literal DEFAULT as a definition has it: none that is too long."""
    return None if literal is None or len(literal) > LONGEST_DEFAULT else literal


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column in a server's catalog.

    ``ordinal`` counts from 0 in the order of the table's definition. ``column_type`` is the type's full
    text as in ``information_schema.COLUMNS.COLUMN_TYPE`` (``enum('a','b')``, ``bigint(20) unsigned``).
    ``charset`` and ``collation`` are None for types without characters; BINARY and BLOB have none in the
    catalog. ``members`` are those of an ENUM or SET. ``key_position`` counts from 0 in the primary key;
    ``key_prefix`` is the length of the indexed prefix, 0 for the whole column. ``generated`` is VIRTUAL,
    STORED or None: a virtual column (MySQL) is in the row images too. ``hidden`` marks what SELECT * does
    not show. ``default`` is the text of a literal DEFAULT, a BIT's as ``b'101'``; None without one, and for
    NULL, what the server computes, and more than :data:`LONGEST_DEFAULT` characters (:func:`kept_default`).
    ``former`` are the column under its earlier names, oldest first, which the catalog does not tell: two
    definitions that differ in them alone are equal.
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
    default: str | None = None
    former: tuple["FormerColumn", ...] = field(default=(), compare=False)

    @property
    def names(self) -> set[str]:
        """All names that it has had."""
        return {self.name, *(each.name for each in self.former)}

    @property
    def current_charset(self) -> str | None:
        """The character set by the name that servers have for it now."""
        return None if self.charset is None else current_name(self.charset)

    def travels_as(self, *, mariadb: bool) -> tuple[ColumnType, Metadata] | None:
        """Return what a table map has of the column; None where its type is not known."""
        column = CatalogColumn(SqlType.parse(self.column_type), self.charset, len(self.members or ()))
        return travels_as(column, mariadb=mariadb)

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
            "default": self.default,
            "former": [asdict(each) for each in self.former],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from what :meth:`to_dict` gave."""
        members = values["members"]
        former = tuple(FormerColumn(**each) for each in values.get("former", ()))
        return cls(**{**values, "members": None if members is None else tuple(members), "former": former})

    def renamed(self, was: "ColumnDefinition", gone: Collection[str]) -> "ColumnDefinition":
        """Return it with the former names that follow from what it was before a statement.

        None is one of the names ``gone``, under which records may have another column.
        """
        if self.name == was.name:
            return replace(self, former=was.former)
        former = tuple(each for each in was.former if each.name != was.name)
        if was.name not in gone:
            former = (*former, FormerColumn(was.name, was.column_type, was.unsigned, was.charset))
        return replace(self, former=former[-_MOST_FORMER:])


@dataclass(frozen=True, slots=True)
class FormerColumn:
    """A column under an earlier name; the fields are those of :class:`ColumnDefinition`."""

    name: str
    column_type: str
    unsigned: bool = False
    charset: str | None = None


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """An index; ``parts`` are columns ("" for an expression) and lengths of their prefixes, 0 for all.

    One that is ``hashed`` has a hidden column behind all others of its table: so MariaDB keeps unique keys
    over TEXT and BLOB, or longer ones than its engine takes.
    """

    name: str
    unique: bool
    parts: tuple[tuple[str, int], ...]
    hashed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for an Avro record with the same field names."""
        parts = [{"column": column, "prefix": prefix} for column, prefix in self.parts]
        return {"name": self.name, "unique": self.unique, "parts": parts, "hashed": self.hashed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from what :meth:`to_dict` gave."""
        parts = tuple((part["column"], part["prefix"]) for part in values["parts"])
        return cls(values["name"], values["unique"], parts, values.get("hashed", False))


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table in a server's catalog, its columns in the order of their definition.

    ``indexes`` are those beside the primary key. One with an empty name for a table stands for its database
    and has that one's default character set. ``gone`` are names under which records may have columns other
    than those that have them now, if any do; two definitions that differ in them alone are equal.
    """

    database: str
    table: str
    columns: tuple[ColumnDefinition, ...]
    engine: str | None = None
    charset: str | None = None
    collation: str | None = None
    indexes: tuple[IndexDefinition, ...] = ()
    gone: tuple[str, ...] = field(default=(), compare=False)

    @property
    def names(self) -> list[str]:
        """All names that columns have had, as far as they are kept, without repetition."""
        of_columns = (name for column in self.columns for name in sorted(column.names))
        return list(dict.fromkeys((*self.gone, *of_columns)))

    def after(self, before: "TableDefinition", others: Collection[str] = ()) -> "TableDefinition":
        """Return it with the names that are gone since ``before``, its columns without names of others.

        ``others`` are names that columns have which another column had before.
        """
        present = {column.name for column in self.columns}
        columns = tuple(
            replace(column, former=tuple(each for each in column.former if each.name not in present))
            if column.former
            else column
            for column in self.columns
        )
        now = {each.name: column.name for column in before.columns for each in column.former}
        own = {
            name
            for column in columns
            for name in column.names
            if name not in others and not (name in now and now[name] not in column.names)
        }
        gone = tuple(name for name in before.names if name in before.gone or name not in own)
        return replace(self, columns=columns, gone=gone[-_MOST_GONE:])

    def confirming(self, before: "TableDefinition") -> "TableDefinition":
        """Return what was read after ``before`` was known: columns of the same name are the same."""
        former = {column.name: column.former for column in before.columns}
        columns = tuple(replace(column, former=former.get(column.name, ())) for column in self.columns)
        return replace(self, columns=columns).after(before)

    def replacing(self, last: "TableDefinition") -> "TableDefinition":
        """Return it as another table than ``last``, which had its name before."""
        columns = tuple(replace(column, former=()) for column in self.columns)
        return replace(self, columns=columns).after(last, last.names)

    def moved_over(self, last: "TableDefinition") -> "TableDefinition":
        """Return it as it gets the name of ``last``, as the copy does by which a tool alters a table.

        Columns that have had one name are the same, unless records have several of these names.
        """

        def is_one(column: ColumnDefinition) -> bool:
            same = sum(not column.names.isdisjoint(each.names) for each in last.columns)
            return same < 2 and column.names.isdisjoint(last.gone)

        columns = tuple(
            replace(column, former=()) if column.former and not is_one(column) else column
            for column in self.columns
        )
        return replace(self, columns=columns).after(replace(last, gone=(*last.gone, *self.gone)))

    @property
    def transactional(self) -> bool | None:
        """Whether the storage engine can roll back; None for an engine that is not known here."""
        return _ENGINES.get((self.engine or "").lower())

    @property
    def functional_parts(self) -> int:
        """How many parts of indexes are expressions."""
        return sum(not column for index in self.indexes for column, _ in index.parts)

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the columns that tell rows apart, in the key's order; empty where none do.

        They are those of the primary key, else of the first unique key that stands in for it.
        """
        parts = sorted((c.key_position, c.name) for c in self.columns if c.key_position is not None)
        if parts:
            return tuple(name for _, name in parts)
        return next((tuple(name for name, _ in index.parts) for index in self.stand_ins), ())

    @property
    def key_index(self) -> str:
        """The name of the index of :attr:`key`."""
        primary = any(column.key_position is not None for column in self.columns)
        return "PRIMARY" if primary else next((index.name for index in self.stand_ins), "")

    @property
    def stand_ins(self) -> tuple[IndexDefinition, ...]:
        """Unique keys that can stand in for a missing primary key: whole columns, none of which may be NULL.

        Servers take the one that was declared first, which catalogues do not tell; here they are sorted by
        name. A table that keeps its history (MariaDB) has several rows under one unique key.
        """
        if any(column.key_position is not None or _may_be_period(column) for column in self.columns):
            return ()
        whole = {folded(column.name) for column in self.columns if _is_key_column(column)}
        return tuple(
            index
            for index in sorted(self.indexes, key=_index_name)
            if index.unique and all(folded(name) in whole and not prefix for name, prefix in index.parts)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for an Avro record with the same field names."""
        return {
            "database": self.database,
            "table": self.table,
            "columns": [column.to_dict() for column in self.columns],
            "engine": self.engine,
            "charset": self.charset,
            "collation": self.collation,
            "indexes": [index.to_dict() for index in self.indexes],
            "gone": list(self.gone),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from what :meth:`to_dict` gave."""
        columns = tuple(ColumnDefinition.from_dict(column) for column in values["columns"])
        indexes = tuple(IndexDefinition.from_dict(index) for index in values.get("indexes", ()))
        gone = tuple(values.get("gone", ()))
        return cls(**{**values, "columns": columns, "indexes": indexes, "gone": gone})


def _index_name(index: IndexDefinition) -> str:
    return index.name


def _is_key_column(column: ColumnDefinition) -> bool:
    return (
        not column.nullable
        and column.generated != "VIRTUAL"
        and SqlType.parse(column.column_type).name not in _LOBS
    )


def _may_be_period(column: ColumnDefinition) -> bool:
    """Return whether a column may be ROW START or ROW END."""
    return (
        column.generated == "STORED"
        and not column.nullable
        and SqlType.parse(column.column_type).name in ("timestamp", "bigint")
    )


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """A table whose every column has a name.

    ``columns`` are in the order of the row images, ``key_columns`` in the order of the primary key, or of the
    unique key in its place (empty when there is none or it is not known). ``schema_source`` says where the
    names came from.
    ``transactional`` is None where the storage engine is not known. ``of_indexes`` are the ordinals of hidden
    columns of functional indexes and of hashed keys, for which rows have no values.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    key_columns: tuple[Column, ...]
    schema_source: SchemaSource
    transactional: bool | None = None
    of_indexes: frozenset[int] = frozenset()


_DIGEST: Final = re.compile("[0-9a-f]{32}")
_ROW_HASH: Final = re.compile("DB_ROW_HASH_[0-9]+")

_LOBS: Final = frozenset(
    f"{size}{kind}" for size in ("tiny", "", "medium", "long") for kind in ("text", "blob")
)

_ENGINES = {
    "innodb": True,
    "ndb": True,
    "ndbcluster": True,
    "rocksdb": True,
    "tokudb": True,
    "archive": False,
    "aria": False,
    "blackhole": False,
    "csv": False,
    "memory": False,
    "myisam": False,
    "mrg_myisam": False,
    "s3": False,
}


def column_of(definition: ColumnDefinition, *, mariadb: bool) -> Column:
    """Return a column as full metadata has it; raise UnsupportedError for an unknown type."""
    sql_type = SqlType.parse(definition.column_type)
    found = definition.travels_as(mariadb=mariadb)
    if found is None:
        raise UnsupportedError(f"column {definition.name}: the type {definition.column_type} is not known")
    kind, metadata = found
    is_text = kind in MEMBER_TYPES or COLUMNS[kind].collations
    return Column(
        definition.ordinal,
        kind,
        metadata,
        name=definition.name,
        nullable=definition.nullable,
        unsigned=definition.unsigned,
        charset=definition.current_charset or (BINARY if is_text else None),
        members=definition.members,
        key_position=definition.key_position,
        key_prefix=definition.key_prefix,
        geometry_type=GEOMETRY_NAMES.get(sql_type.name),
        dimensions=sql_type.argument(2048) if kind is ColumnType.VECTOR else None,
        visible=not definition.hidden,
        sql_type=definition.column_type,
        default=definition.default,
    )


def _fits(column: Column, definition: ColumnDefinition) -> bool:
    """Return whether a column of a table map is what the catalog says."""
    expected = definition.travels_as(mariadb=column.type is ColumnType.VARCHAR)  # as VECTOR travels there
    if expected is None:
        return False
    travels, metadata = expected
    if SAME_TYPES.get(column.type, column.type) is not SAME_TYPES.get(travels, travels):
        return False
    unknown = definition.members is None and travels in MEMBER_TYPES
    return unknown or column.metadata == metadata


_IN_SQL: Final = {
    "TINY": "TINYINT",
    "SHORT": "SMALLINT",
    "INT24": "MEDIUMINT",
    "LONG": "INT",
    "LONGLONG": "BIGINT",
    "NEWDECIMAL": "DECIMAL",
    "STRING": "CHAR or BINARY",
    "BLOB": "TEXT or BLOB",
}


def _shown(column: Column) -> str:
    """Spell a column's type, as far as a table map has it: VARCHAR of up to 80 bytes, DECIMAL(10,2)."""
    match column.metadata:
        case DecimalMetadata(precision, scale):
            detail = f"({precision},{scale})"
        case FractionMetadata(number) | BitMetadata(number):
            detail = f"({number})"
        case LengthMetadata(length):
            detail = f" of up to {length} bytes"
        case BlobMetadata(size):
            detail = f" with lengths in {size} byte{'s'[: size - 1]}"
        case PackMetadata(size):
            detail = f" in {size} byte{'s'[: size - 1]}"
        case _:
            detail = ""
    name = column.type.name
    return f"{_IN_SQL.get(name, name.removesuffix('2'))}{detail}"


def _merged(column: Column, definition: ColumnDefinition) -> Column:
    """Add what the catalog knows to a column of a table map; raise where they contradict each other."""
    sql_type = SqlType.parse(definition.column_type)
    metadata = column.metadata
    if column.type is FORMER_TYPES.get(sql_type.name):
        # These carry no digits in the table map, so there is nothing to compare.
        metadata = FractionMetadata(sql_type.argument(0))
    elif not _fits(column, definition):
        raise SchemaMismatchError(
            f"column {column.ordinal + 1} ({definition.name}) is {definition.column_type} in the catalog,"
            f" but {_shown(column)} in the table map"
        )
    charset = definition.current_charset or (BINARY if sql_type.holds_bytes else None)
    members = definition.members if column.members is None else column.members
    if column.charset is not None and definition.charset is not None and column.charset != charset:
        raise SchemaMismatchError(
            f"column {column.ordinal + 1} ({definition.name}) has character set {charset} in the catalog, but"
            f" {column.charset} in the table map"
        )
    return replace(
        column,
        metadata=metadata,
        name=definition.name,
        unsigned=column.unsigned or definition.unsigned,
        charset=column.charset or charset,
        members=None if members is None else member_texts(members, column.charset or charset),
        key_position=definition.key_position,
        key_prefix=definition.key_prefix,
        visible=not definition.hidden,
        sql_type=definition.column_type,
        default=definition.default,
    )


def _from_catalog(columns: tuple[Column, ...], definition: TableDefinition) -> tuple[Column, ...]:
    name = f"{definition.database}.{definition.table}"
    if len(columns) != len(definition.columns):
        words = (
            f"table {name} has {len(definition.columns)} columns in the catalog,"
            f" but {len(columns)} in the table map"
        )
        if len(columns) == len(definition.columns) + definition.functional_parts:
            words += (
                ". This MySQL logs the hidden columns of functional indexes, and without names it is not "
                "known which these are: set binlog_row_metadata=FULL, or drop these indexes"
            )
        raise SchemaMismatchError(words)
    try:
        return tuple(_merged(column, one) for column, one in zip(columns, definition.columns, strict=True))
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"table {name}: {error.message}") from error


def _enriched(columns: tuple[Column, ...], definition: TableDefinition) -> tuple[Column, ...]:
    """Add to named columns what only the catalog tells: UUID and the like, old fractions, character sets."""
    try:
        merged = _from_catalog(columns, definition)
    except (SchemaMismatchError, UnsupportedError):
        return columns
    if any(mine.name != theirs.name for mine, theirs in zip(columns, merged, strict=True)):
        return columns
    enriched = tuple(
        replace(
            mine,
            metadata=theirs.metadata,
            sql_type=theirs.sql_type,
            charset=theirs.charset,
            members=theirs.members,
            default=theirs.default,
        )
        for mine, theirs in zip(columns, merged, strict=True)
    )
    return keyed(enriched, definition)


def keyed(columns: tuple[Column, ...], definition: TableDefinition) -> tuple[Column, ...]:
    """Mark the columns of the unique key that stands in for a missing primary key.

    A log with full metadata has such a key as the primary key. Of several it may name another than we do;
    one of which the definition knows nothing stays.
    """
    logged = sorted((c.key_position, folded(str(c.name))) for c in columns if c.key_position is not None)
    found = [tuple(folded(name) for name, _ in index.parts) for index in definition.stand_ins]
    if not found or (logged and tuple(name for _, name in logged) not in found):
        return columns
    positions = {name: position for position, name in enumerate(found[0])}
    return tuple(
        replace(column, key_position=positions.get(folded(str(column.name))), key_prefix=0)
        for column in columns
    )


def former_columns(
    table: ResolvedTable, definition: TableDefinition, server_version: str | None
) -> dict[int, list[Column]]:
    """Return what the columns of a table were under earlier names, oldest first, by ordinal.

    Left out are columns that the definition does not have, and earlier types that are not known.
    """
    mariadb = ServerVersion.parse(server_version).mariadb
    former = {column.name: column.former for column in definition.columns if column.former}
    present = {column.name for column in table.columns}
    found: dict[int, list[Column]] = {}
    for column in table.columns:
        for each in former.get(str(column.name), ()):
            if each.name in present:
                continue
            was = ColumnDefinition(
                0,
                each.name,
                each.column_type,
                unsigned=each.unsigned,
                charset=each.charset,
                members=(),
            )
            with suppress(BinlogError):
                made = column_of(was, mariadb=mariadb)
                codec_of(made)
                found.setdefault(column.ordinal, []).append(made)
    return found


def _hashes(columns: tuple[Column, ...], definition: TableDefinition | None) -> list[ColumnDefinition]:
    """Return the hidden columns of unique keys that MariaDB keeps as hashes, which stand behind all others.

    Where the log has no names, the definition says how many there are.
    """
    known = {column.name for column in definition.columns} if definition is not None else set()
    found: list[Column] = []
    if columns and columns[0].name is not None:
        found = list(takewhile(lambda column: _is_hash(column, known), reversed(columns)))[::-1]
    elif definition is not None:
        count = sum(index.hashed for index in definition.indexes)
        more = len(columns) - len(definition.columns)
        last = columns[len(definition.columns) :]
        if count == more and all(column.type is ColumnType.LONGLONG for column in last):
            found = list(last)
    return [
        ColumnDefinition(
            column.ordinal,
            column.name or f"DB_ROW_HASH_{number}",
            "bigint(20) unsigned",
            nullable=column.nullable,
            unsigned=True,
            hidden=True,
        )
        for number, column in enumerate(found, 1)
    ]


def _is_hash(column: Column, known: Collection[str | None]) -> bool:
    return (
        _ROW_HASH.fullmatch(str(column.name)) is not None
        and column.type is ColumnType.LONGLONG
        and column.unsigned
        and column.name not in known
    )


def _of_indexes(columns: tuple[Column, ...], definition: TableDefinition | None) -> frozenset[int]:
    """Return the ordinals of hidden columns of functional indexes, which MySQL 8.0.15 logs.

    Such a column has a digest as its name. The definition, which lacks them, says how many there are.
    """
    if definition is None or len(columns) != len(definition.columns) + definition.functional_parts:
        return frozenset()
    known = {column.name for column in definition.columns}
    found = [column for column in columns if column.name not in known]
    if len(found) == definition.functional_parts and all(_DIGEST.fullmatch(str(one.name)) for one in found):
        return frozenset(column.ordinal for column in found)
    return frozenset()


def _columns(
    table_map: TableMap, definition: TableDefinition | None, server_version: str | None
) -> tuple[Column, ...]:
    """Read a table map by the rules of its server; where that is not known, by those that fit the catalog."""
    if (
        server_version is None
        and definition is not None
        and len(definition.columns) == len(table_map.column_types)
    ):
        for version in KINDS_OF_SERVER:
            try:
                columns = columns_of(table_map, server_version=version)
            except MalformedError:
                continue
            if all(map(_agrees, columns, definition.columns)):
                return columns
    return columns_of(table_map, server_version=server_version)


def _agrees(column: Column, definition: ColumnDefinition) -> bool:
    charset = definition.current_charset
    same_sign = column.unsigned == definition.unsigned or column.type is ColumnType.YEAR
    return same_sign and (column.charset is None or charset is None or column.charset == charset)


def resolve_columns(
    table_map: TableMap, definition: TableDefinition | None = None, *, server_version: str | None = None
) -> ResolvedTable:
    """Return each column of a table map a name, and whatever else is known of it.

    Names and keys come from the table map where it has them (``binlog_row_metadata=FULL``), else from
    ``definition``, which must then agree with the map on the number of columns, their types, lengths and
    character sets: :class:`SchemaMismatchError` says where it does not. Without either, the columns are
    called ``column_1`` and so on, and unless the table map tells it, nobody knows which numbers are unsigned.
    A unique key of the definition may stand in for a primary key (:func:`keyed`). ``server_version`` is that
    of the format description in front of the event; the servers differ in what the optional metadata counts.

    Raise :class:`MalformedError` for a table map that contradicts itself and :class:`UnsupportedError` for
    types that are not known.
    """
    columns = _columns(table_map, definition, server_version)
    hashes = _hashes(columns, definition) if ServerVersion.parse(server_version).mariadb else ()
    if hashes and definition is not None:
        definition = replace(definition, columns=(*definition.columns, *hashes))
    source: SchemaSource
    if columns and columns[0].name is not None:
        source = "table_map"
        if definition is not None:
            columns = _enriched(columns, definition)
    elif definition is not None:
        source = "catalog"
        columns = keyed(_from_catalog(columns, definition), definition)
    else:
        source = "positional"
        signs = decode_optional_metadata(table_map.optional_metadata).signedness is not None
        columns = tuple(
            replace(column, name=f"column_{column.ordinal + 1}", sign_known=signs) for column in columns
        )
    key = sorted((c.key_position, c.ordinal) for c in columns if c.key_position is not None)
    return ResolvedTable(
        table_map.database,
        table_map.table,
        columns,
        tuple(columns[ordinal] for _, ordinal in key),
        source,
        None if definition is None else definition.transactional,
        frozenset(range(len(columns) - len(hashes), len(columns)))
        or (_of_indexes(columns, definition) if source == "table_map" else frozenset()),
    )

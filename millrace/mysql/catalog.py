"""Table definitions from a server's information_schema, with the position in the log at which they hold.

A server may have many thousand tables, or say so. Rows are read as they come, and what is kept of a table is
its definition, packed: 10,000 tables of 100 columns take some 40 MiB. What would take more than
``_KEPT_BYTES`` is refused.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, Literal

from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.mysql.connection import MysqlConnection, Row
from millrace.mysql.errors import ProtocolError, RefusedError, RetriableError
from millrace.mysql.status import LogStatus, log_status

__all__ = ["CatalogReading", "Definitions", "enum_members", "read_catalog", "read_definitions"]

_KEPT_BYTES: Final = 128 << 20
"""Memory that all definitions may take together."""
_TABLE_BYTES: Final = 500
"""What is kept of a table beside its columns."""
_KEY_BYTES: Final = 250
"""What is kept of a column of a primary key."""

_MOST_COLUMNS: Final = 4096
_LARGEST_TABLE: Final = 16 << 20
"""Bytes of all columns of a table, as the server lists them."""

_TOTAL_S: Final = 900.0
_SILENCE_S: Final = 300.0
"""Before MySQL 8 a server opens every table before it answers."""

_ATTEMPTS = 10
_SKIPPED = 1684
"""ER_WARN_I_S_SKIPPED_TABLE: of a table that another session is about to alter."""

# Whoever holds a lock, be it one of his own making, is not made to wait for those of tables.
_HOLD_A_LOCK = "SELECT GET_LOCK(CONCAT('millrace-', CONNECTION_ID()), 0)"
_LET_IT_GO = "SELECT RELEASE_LOCK(CONCAT('millrace-', CONNECTION_ID()))"

# Databases that the server makes up; no change in them is ever logged.
_NOT_LOGGED = "('information_schema', 'performance_schema', 'sys')"

_TABLES = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, TABLE_TYPE AS type, ENGINE AS engine,
           TABLE_COLLATION AS collation
    FROM information_schema.TABLES
    WHERE TABLE_TYPE NOT IN ('VIEW', 'SYSTEM VIEW') AND TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608 - constants only
_COLUMNS = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, ORDINAL_POSITION AS ordinal,
           COLUMN_NAME AS name, COLUMN_TYPE AS column_type, IS_NULLABLE AS nullable,
           CHARACTER_SET_NAME AS charset, COLLATION_NAME AS collation, EXTRA AS extra
    FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608
_KEYS = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, COLUMN_NAME AS name, SEQ_IN_INDEX AS position,
           SUB_PART AS prefix
    FROM information_schema.STATISTICS
    WHERE INDEX_NAME = 'PRIMARY' AND TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608
_PERIODS = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table` FROM information_schema.COLUMNS
    WHERE GENERATION_EXPRESSION = 'ROW START' AND TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608
_COLLATIONS = """
    SELECT COLLATION_NAME AS collation, CHARACTER_SET_NAME AS charset
    FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY
"""

_DOING = "read the catalogue"
_VERSIONED = "SYSTEM VERSIONED"
_UNESCAPED = {"0": "\0", "n": "\n", "r": "\r"}

_TableName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CatalogReading:
    """All definitions that our user may see, and a place in the log at which they hold.

    ``whole`` is False where tables are missing that were being altered.
    """

    status: LogStatus
    definitions: "Definitions"
    whole: bool


def read_catalog(connection: MysqlConnection, *, wait: bool = True) -> CatalogReading:
    """Read all definitions.

    Nothing ties information_schema to a place in the log. But definitions that were the same before and after
    a place are those of the place, so they are read around it until they are. Without ``wait`` a table that
    another session has locked in order to alter it is left out: that session may be waiting for us.
    """
    if wait:
        return _read_around(connection, wait=True)
    connection.query(_HOLD_A_LOCK, doing=_DOING)
    try:
        return _read_around(connection, wait=False)
    finally:
        connection.query(_LET_IT_GO, doing=_DOING)


def _read_around(connection: MysqlConnection, *, wait: bool) -> CatalogReading:
    """Read the definitions around a place, until they are the same before and after it."""
    definitions, before = _read(connection, wait=wait)
    digest = definitions.digest()
    for _ in range(_ATTEMPTS):
        del definitions  # there is room for one of them
        status = log_status(connection)
        definitions, skipped = _read(connection, wait=wait)
        was, digest = digest, definitions.digest()
        # A table that was left out by some of the queries only would lack a part.
        if was == digest and before == skipped and len(set(skipped)) == 1:
            return CatalogReading(status, definitions, not any(skipped))
        before = skipped
    raise RetriableError(f"{connection.address}: tables kept changing while the catalogue was read")


def read_definitions(connection: MysqlConnection) -> "Definitions":
    """Return the definitions of all tables that our user may see, by database and name."""
    return _read(connection, wait=True)[0]


class Definitions:
    """Definitions of tables, packed, in the order of their names."""

    def __init__(self, definitions: Iterable[TableDefinition] = ()) -> None:
        self._packed: dict[_TableName, bytes] = {}
        for definition in definitions:
            self.add(definition)

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[TableDefinition]:
        for name in sorted(self._packed):
            yield self._unpacked(name)

    def digest(self) -> bytes:
        """Return what other definitions have only if they say the same."""
        digest = hashlib.sha256()
        for name in sorted(self._packed):
            digest.update(hashlib.sha256(self._packed[name]).digest())
        return digest.digest()

    def databases(self) -> set[str]:
        """Return the databases that have a table."""
        return {database for database, _ in self._packed}

    def add(self, definition: TableDefinition) -> int:
        """Add a table, or columns to one that is there; return how many bytes that takes."""
        name = definition.database, definition.table
        before = b""
        if name in self._packed:
            before = self._packed[name]
            columns = self._unpacked(name).columns + definition.columns
            definition = replace(definition, columns=tuple(sorted(columns, key=_ordinal)))
        packed = zlib.compress(json.dumps(definition.to_dict()).encode("ascii"), 1)
        self._packed[name] = packed
        return len(packed) - len(before)

    def _unpacked(self, name: _TableName) -> TableDefinition:
        return TableDefinition.from_dict(json.loads(zlib.decompress(self._packed[name])))


def _read(connection: MysqlConnection, *, wait: bool) -> tuple[Definitions, list[int]]:
    """Return definitions, and how many tables each query left out, which happens without ``wait`` only."""
    reader = _Reader(connection, wait=wait)
    return reader.read(), reader.skipped


@dataclass(slots=True)
class _Table:
    """A table of the list, and the columns of its primary key: position and prefix by name."""

    kind: str
    engine: str | None
    collation: str | None
    key: dict[str, tuple[int, int]] = field(default_factory=dict)
    period: bool = False


class _Reader:
    """One reading of all definitions."""

    def __init__(self, connection: MysqlConnection, *, wait: bool) -> None:
        self.skipped: list[int] = []
        self._connection = connection
        self._wait = wait
        self._where = f"{connection.address}: cannot {_DOING}"
        self._left = _KEPT_BYTES
        self._tables: dict[_TableName, _Table] = {}

    def read(self) -> Definitions:
        for row in self._rows(_TABLES, "database", "table", "type", "engine", "collation"):
            self._keep(_TABLE_BYTES + 4 * (len(row["database"] or "") + len(row["table"] or "")))
            self._tables[_name(row)] = _Table(
                row.text("type"), _optional(row, "engine"), _optional(row, "collation")
            )
        for row in self._rows(_KEYS, "database", "table", "name", "position", "prefix"):
            table = self._tables.get(_name(row))
            if table is not None:
                self._keep(_KEY_BYTES + 4 * len(row["name"] or ""))
                table.key[row.text("name")] = row.number("position") - 1, row.number("prefix")
        if any(table.kind == _VERSIONED for table in self._tables.values()):
            names = map(_name, self._rows(_PERIODS, "database", "table"))
            with_period = {name for name in names if name in self._tables}
            for name, table in self._tables.items():
                table.period = table.kind == _VERSIONED and name not in with_period
        # MariaDB has collations without a character set of their own, and lists them as NULL.
        charsets = {
            row.text("collation"): row.text("charset")
            for row in self._connection.query(_COLLATIONS, doing=_DOING)
            if row["collation"] is not None
        }
        definitions = Definitions()
        for name, columns in self._columns():
            # A table dropped or created between the queries comes with the next reading.
            table = self._tables.get(name)
            if table is not None:
                self._keep(definitions.add(_definition(name, table, columns, charsets)))
        return definitions

    def _columns(self) -> Iterator[tuple[_TableName, list[Row]]]:
        """Give the columns of a table at a time; in all servers that we know these come together."""
        rows = self._rows(
            _COLUMNS,
            *(
                "database",
                "table",
                "ordinal",
                "name",
                "column_type",
                "nullable",
                "charset",
                "collation",
                "extra",
            ),
        )
        for name, group in groupby(rows, key=_name):
            columns: list[Row] = []
            size = 0
            for row in group if name in self._tables else ():
                columns.append(row)
                size += sum(map(len, filter(None, row.values())))
                if len(columns) > _MOST_COLUMNS or size > _LARGEST_TABLE:
                    raise ProtocolError(f"{self._where}: the table {'.'.join(name)} has no end of columns")
            if columns:
                yield name, columns

    def _rows(self, sql: str, *names: str) -> Iterator[Row]:
        for values in self._connection.rows(sql, doing=_DOING, total_s=_TOTAL_S, silence_s=_SILENCE_S):
            yield Row(zip(names, values, strict=False), self._where)
        warnings = [] if self._wait else self._connection.query("SHOW WARNINGS", doing=_DOING)
        self.skipped.append(sum(row.number("Code") == _SKIPPED for row in warnings))

    def _keep(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise RefusedError(
                f"{self._where}: the definitions of its tables take more than {_KEPT_BYTES >> 20} MiB; let "
                f"{self._connection.address.user!r} see fewer tables: GRANT SELECT on those that are wanted"
            )


def _name(row: Row) -> _TableName:
    return row.text("database"), row.text("table")


def _optional(row: Row, name: str) -> str | None:
    return None if row[name] is None else row.text(name)


def _ordinal(column: ColumnDefinition) -> int:
    return column.ordinal


def _definition(
    name: _TableName, table: _Table, rows: Iterable[Row], charsets: Mapping[str, str]
) -> TableDefinition:
    columns = sorted((_column(row, table.key.get(row.text("name"))) for row in rows), key=_ordinal)
    if table.period:
        columns += _period(columns)
    return TableDefinition(
        *name,
        columns=tuple(columns),
        engine=table.engine,
        charset=charsets.get(table.collation or ""),
        collation=table.collation,
    )


def _column(row: Row, key: tuple[int, int] | None) -> ColumnDefinition:
    column_type = row.text("column_type")
    extra = row.text("extra").upper()
    generated: Literal["VIRTUAL", "STORED"] | None = None
    if "STORED GENERATED" in extra or "PERSISTENT" in extra:
        generated = "STORED"
    elif "VIRTUAL" in extra:
        generated = "VIRTUAL"
    position, prefix = key or (None, 0)
    return ColumnDefinition(
        ordinal=row.number("ordinal") - 1,
        name=row.text("name"),
        column_type=column_type,
        nullable=row["nullable"] == "YES",
        unsigned=" unsigned" in column_type.lower() and not column_type.lower().startswith(("enum(", "set(")),
        charset=_optional(row, "charset"),
        collation=_optional(row, "collation"),
        members=enum_members(column_type),
        key_position=position,
        key_prefix=prefix,
        generated=generated,
        hidden="INVISIBLE" in extra,
    )


def _period(columns: list[ColumnDefinition]) -> list[ColumnDefinition]:
    """Give the columns that MariaDB adds to a system-versioned table, behind all others, and shows nowhere.

    The second is the last part of the primary key, where there is one.
    """
    parts = sum(column.key_position is not None for column in columns)
    start, end = (
        ColumnDefinition(
            ordinal=len(columns) + index,
            name=name,
            column_type="timestamp(6)",
            nullable=False,
            key_position=parts if parts and name == "row_end" else None,
            generated="STORED",
            hidden=True,
        )
        for index, name in enumerate(("row_start", "row_end"))
    )
    return [start, end]


def enum_members(column_type: str) -> tuple[str, ...] | None:
    r"""Return the members of ``enum('a','b')`` or ``set(…)``; None for other types.

    Servers print a quote in a member doubled, and NUL, line feed, carriage return and the backslash behind a
    backslash.
    """
    opening, _, rest = column_type.partition("(")
    if opening.lower() not in {"enum", "set"}:
        return None
    members: list[str] = []
    member: list[str] | None = None
    characters = iter(rest)
    for character in characters:
        if member is None:
            if character == ")":
                break
            if character == "'":
                member = []
        elif character == "\\":
            escaped = next(characters, "")
            member.append(_UNESCAPED.get(escaped, escaped))
        elif character == "'":
            following = next(characters, "")
            if following == "'":
                member.append("'")
                continue
            members.append("".join(member))
            member = None
            if following == ")":
                break
        else:
            member.append(character)
    return tuple(members)

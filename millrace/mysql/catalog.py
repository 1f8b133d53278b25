"""Table definitions from a server's information_schema, with the position in the log at which they hold."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.mysql.connection import MysqlConnection, Row
from millrace.mysql.errors import RetriableError
from millrace.mysql.status import LogStatus, log_status

__all__ = ["CatalogReading", "enum_members", "read_catalog", "read_definitions"]

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
"""  # noqa: S608 - constants only
_KEYS = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, COLUMN_NAME AS name, SEQ_IN_INDEX AS position,
           SUB_PART AS prefix
    FROM information_schema.STATISTICS
    WHERE INDEX_NAME = 'PRIMARY' AND TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608 - constants only
_PERIODS = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table` FROM information_schema.COLUMNS
    WHERE GENERATION_EXPRESSION = 'ROW START' AND TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608 - constants only
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
    definitions: list[TableDefinition]
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
    before = _read(connection, wait=wait)
    for _ in range(_ATTEMPTS):
        status = log_status(connection)
        after = _read(connection, wait=wait)
        definitions, skipped = after
        # A table that was left out by some of the queries only would lack a part.
        if before == after and len(set(skipped)) == 1:
            return CatalogReading(status, definitions, not any(skipped))
        before = after
    raise RetriableError(f"{connection.address}: tables kept changing while the catalogue was read")


def read_definitions(connection: MysqlConnection) -> list[TableDefinition]:
    """Return the definitions of all tables that our user may see, by database and name."""
    return _read(connection, wait=True)[0]


def _read(connection: MysqlConnection, *, wait: bool) -> tuple[list[TableDefinition], list[int]]:
    """Return definitions, and how many tables each query left out, which happens without ``wait`` only."""
    skipped: list[int] = []

    def rows(sql: str) -> list[Row]:
        found = connection.query(sql, doing=_DOING)
        warnings = [] if wait else connection.query("SHOW WARNINGS", doing=_DOING)
        skipped.append(sum(row["Code"] == _SKIPPED for row in warnings))
        return found

    tables = rows(_TABLES)
    keys: dict[_TableName, dict[str, Row]] = defaultdict(dict)
    for row in rows(_KEYS):
        keys[_name(row)][row["name"]] = row
    columns: dict[_TableName, list[ColumnDefinition]] = defaultdict(list)
    for row in rows(_COLUMNS):
        columns[_name(row)].append(_column(row, keys[_name(row)].get(row["name"])))
    versioned = {_name(row) for row in tables if row["type"] == _VERSIONED}
    if versioned:
        for name in versioned - {_name(row) for row in rows(_PERIODS)}:
            columns[name] += _period(columns[name])
    # MariaDB has collations without a character set of their own, and lists them as NULL.
    charsets = {
        row["collation"]: row["charset"]
        for row in connection.query(_COLLATIONS, doing=_DOING)
        if row["collation"] is not None
    }
    definitions = sorted(
        (
            TableDefinition(
                database=row["database"],
                table=row["table"],
                columns=tuple(sorted(columns[_name(row)], key=lambda column: column.ordinal)),
                engine=row["engine"],
                charset=charsets.get(row["collation"]),
                collation=row["collation"],
            )
            for row in tables
            # A table dropped or created between the queries comes with the next reading.
            if _name(row) in columns
        ),
        key=lambda table: (table.database, table.table),
    )
    return definitions, skipped


def _name(row: Row) -> _TableName:
    return row["database"], row["table"]


def _column(row: Row, key: Row | None) -> ColumnDefinition:
    column_type = _text(row["column_type"])
    extra = str(row["extra"] or "").upper()
    generated: Literal["VIRTUAL", "STORED"] | None = None
    if "STORED GENERATED" in extra or "PERSISTENT" in extra:
        generated = "STORED"
    elif "VIRTUAL" in extra:
        generated = "VIRTUAL"
    return ColumnDefinition(
        ordinal=int(row["ordinal"]) - 1,
        name=row["name"],
        column_type=column_type,
        nullable=row["nullable"] == "YES",
        unsigned=" unsigned" in column_type.lower() and not column_type.lower().startswith(("enum(", "set(")),
        charset=row["charset"],
        collation=row["collation"],
        members=enum_members(column_type),
        key_position=int(key["position"]) - 1 if key else None,
        key_prefix=int(key["prefix"] or 0) if key else 0,
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


def _text(value: str | bytes) -> str:
    """MySQL 8 gives some columns of information_schema as BLOB."""
    return value.decode() if isinstance(value, bytes) else value


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

"""Table definitions from a server's information_schema, valid as of a position in the log.

A server may have many thousand tables, or say so. Rows are read as they come, and what is kept of a table is
its definition, packed: 10,000 tables of 100 columns take some 40 MiB. What would take more than
``_KEPT_BYTES`` is refused.
"""

import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, Literal

from millrace.binlog.names import quoted_name
from millrace.binlog.table import (
    LONGEST_DEFAULT,
    ColumnDefinition,
    IndexDefinition,
    TableDefinition,
    kept_default,
)
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.errors import ProtocolError, RefusedError, RetriableError, SourceError
from millrace.mysql.privileges import sees_all_tables
from millrace.mysql.status import LogStatus, log_status
from millrace.text import shortened

_KEPT_BYTES: Final = 128 << 20
"""Memory that all definitions may take together."""
_TABLE_BYTES: Final = 500
"""What is kept of a table beside its columns."""
_PIECE_BYTES: Final = 100
"""What is kept of a packed piece beside its bytes."""
_KEY_BYTES: Final = 250
"""What is kept of a column of a primary key."""

_MOST_ROWS: Final = 10_000_000
"""Of a list, those of views among them: ten times what 10,000 tables of 100 columns have."""
_MOST_COLUMNS: Final = 4096
_LARGEST_TABLE: Final = 16 << 20
"""Bytes of all columns of a table, as the server lists them; of one that has more none is kept."""

_TOTAL_S: Final = 900.0
_SILENCE_S: Final = 300.0
"""Before MySQL 8 a server opens every table before it answers."""

_ATTEMPTS = 10
_LOCK_WAIT: Final = "Lock wait timeout"
_SKIPPED = 1684
"""ER_WARN_I_S_SKIPPED_TABLE: of a table that another session is about to alter."""

# Whoever holds a lock, be it one of his own making, is not made to wait for those of tables.
_HOLD_A_LOCK = "SELECT GET_LOCK(CONCAT('millrace-', CONNECTION_ID()), 0)"
_LET_IT_GO = "SELECT RELEASE_LOCK(CONCAT('millrace-', CONNECTION_ID()))"

# Databases that the server makes up; no change in them is ever logged. That of sys.sys_config is.
_NOT_LOGGED = "('information_schema', 'performance_schema')"

_TABLES = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, TABLE_TYPE AS type, ENGINE AS engine,
           TABLE_COLLATION AS collation
    FROM information_schema.TABLES
    WHERE TABLE_TYPE NOT IN ('VIEW', 'SYSTEM VIEW') AND TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608 - constants only
# With an escape for each character, and quotes, it is still too long.
_LONGEST_SHOWN = 2 * LONGEST_DEFAULT + 3
_COLUMNS = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, ORDINAL_POSITION AS ordinal,
           COLUMN_NAME AS name, COLUMN_TYPE AS column_type, IS_NULLABLE AS nullable,
           CHARACTER_SET_NAME AS charset, COLLATION_NAME AS collation, EXTRA AS extra,
           CONCAT('=', LEFT(COLUMN_DEFAULT, {_LONGEST_SHOWN})) AS preset
    FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608 - constants only
_INDEXES = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, INDEX_NAME AS `index`, NON_UNIQUE AS non_unique,
           COLUMN_NAME AS name, SEQ_IN_INDEX AS position, SUB_PART AS prefix, INDEX_TYPE AS type
    FROM information_schema.STATISTICS
    WHERE TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608 - constants only
_PERIODS = f"""
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table` FROM information_schema.COLUMNS
    WHERE GENERATION_EXPRESSION = 'ROW START' AND TABLE_SCHEMA NOT IN {_NOT_LOGGED}
"""  # noqa: S608 - constants only
_DATABASES = f"""
    SELECT SCHEMA_NAME AS `database`, DEFAULT_CHARACTER_SET_NAME AS charset,
           DEFAULT_COLLATION_NAME AS collation
    FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN {_NOT_LOGGED}
"""  # noqa: S608 - constants only
_COLLATIONS = """
    SELECT COLLATION_NAME AS collation, CHARACTER_SET_NAME AS charset
    FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY
"""

_DOING = "read the catalogue"
_VERSIONED = "SYSTEM VERSIONED"
_UNQUOTED = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?|b'[01]+'")
_UNESCAPED = {"0": "\0", "n": "\n", "r": "\r"}

_TableName = tuple[str, str]
"""Database and table."""


@dataclass(frozen=True, slots=True)
class CatalogReading:
    """All definitions that our user may see, valid as of a position in the log.

    ``whole`` is False where tables are missing that were being altered. With ``lower_case_names`` names of
    databases and tables do not differ by case. ``lists_all`` says that what is not among them did not exist,
    and that the log has each statement since then that makes it.
    """

    status: LogStatus
    definitions: "Definitions"
    whole: bool
    lower_case_names: bool = False
    lists_all: bool = False


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


def _lower_case(connection: MysqlConnection) -> bool:
    return bool(connection.number("lower_case_table_names"))


def _read_around(connection: MysqlConnection, *, wait: bool) -> CatalogReading:
    """Read the definitions around a place, until they are the same before and after it."""
    sees_all = sees_all_tables(connection)
    reader = _Reader(connection, wait=wait)
    definitions = reader.read()
    digest = definitions.digest()
    for _ in range(_ATTEMPTS):
        del definitions  # there is room for one of them
        before, status = reader.skipped, log_status(connection)
        reader = _Reader(connection, wait=wait)
        definitions = reader.read()
        was, digest, skipped = digest, definitions.digest(), reader.skipped
        # A table that was left out by some of the queries only would lack a part.
        if was == digest and before == skipped and len(set(skipped)) == 1:
            whole = not any(skipped)
            lists_all = whole and sees_all and reader.lists_columns_of_all and not status.filtered
            return CatalogReading(status, definitions, whole, _lower_case(connection), lists_all)
    raise RetriableError(f"{connection.address}: tables kept changing while the catalogue was read")


def read_tables(connection: MysqlConnection, names: Iterable[_TableName]) -> CatalogReading:
    """Read the definitions of some tables, and of their databases, as of one place in the log.

    A transaction that has opened a table holds its metadata lock: no statement that alters it can come
    between the definition and the place. A table that is being altered right now is left out, which makes the
    reading not whole; one that we may not open is left out as well.
    """
    connection.query("SET SESSION lock_wait_timeout = 1", doing=_DOING)
    connection.query("START TRANSACTION", doing=_DOING)
    try:
        held, whole = [], True
        for database, table in names:
            quoted = quoted_name(database, table)
            try:
                connection.query(f"SELECT 1 FROM {quoted} LIMIT 0", doing=_DOING)  # noqa: S608 - quoted
            except RetriableError:
                raise
            except SourceError as error:
                whole &= _LOCK_WAIT not in str(error)
            else:
                held.append((database, table))
        status = log_status(connection)
        definitions = _Reader(connection, wait=True, only=held).read() if held else Definitions()
        return CatalogReading(status, definitions, whole, _lower_case(connection))
    finally:
        connection.query("ROLLBACK", doing=_DOING)


def read_definitions(connection: MysqlConnection) -> "Definitions":
    """Return the definitions of all tables that our user may see, by database and name."""
    return _Reader(connection, wait=True).read()


def read_definition(connection: MysqlConnection, database: str, table: str) -> TableDefinition | None:
    """Return the definition of one table; None where there is none that our user may see."""
    reader = _Reader(connection, wait=True, only=[(database, table)])
    return next((definition for definition in reader.read() if definition.table), None)


class Definitions:
    """Definitions of tables, packed, in the order of their names; of too large a table without columns."""

    def __init__(self, definitions: Iterable[TableDefinition] = ()) -> None:
        # A table in pieces, where a server lists its columns in several places.
        self._packed: dict[_TableName, list[bytes]] = {}
        for definition in definitions:
            self.add(definition)

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[TableDefinition]:
        for name in sorted(self._packed):
            first, *more = (
                TableDefinition.from_dict(json.loads(zlib.decompress(piece))) for piece in self._packed[name]
            )
            pieces = [first.columns, *(piece.columns for piece in more)]
            columns = sorted(itertools.chain(*pieces), key=_ordinal) if all(pieces) else ()
            # MySQL 8.0.15 counts the hidden columns of functional indexes, too, and does not list them.
            yield replace(
                first,
                columns=tuple(
                    column if column.ordinal == at else replace(column, ordinal=at)
                    for at, column in enumerate(columns)
                ),
            )

    def digest(self) -> bytes:
        """Return what other definitions have only if they say the same."""
        digest = hashlib.sha256()
        for name in sorted(self._packed):
            for piece in sorted(self._packed[name]):
                digest.update(hashlib.sha256(piece).digest())
        return digest.digest()

    def databases(self) -> set[str]:
        """Return the databases that have a table."""
        return {database for database, table in self._packed if table}

    def add(self, definition: TableDefinition) -> int:
        """Add a table, or columns to one that is there; return how many bytes that takes."""
        packed = zlib.compress(json.dumps(definition.to_dict()).encode("ascii"), 1)
        self._packed.setdefault((definition.database, definition.table), []).append(packed)
        return len(packed) + _PIECE_BYTES


@dataclass(slots=True)
class _Table:
    """A table of the list, and the columns of its primary key: position and prefix by name.

    ``indexes`` are the others by their name: whether each is unique, columns and prefixes by position, and
    whether it is hashed.
    """

    kind: str
    engine: str | None
    collation: str | None
    key: dict[str, tuple[int, int]] = field(default_factory=dict)
    indexes: dict[str, tuple[bool, dict[int, tuple[str, int]], bool]] = field(default_factory=dict)
    period: bool = False
    columns: int = 0
    size: int = 0


class _Reader:
    """One reading of all definitions."""

    def __init__(
        self, connection: MysqlConnection, *, wait: bool, only: Sequence[_TableName] | None = None
    ) -> None:
        self.skipped: list[int] = []
        """How many tables each query left out, which happens without ``wait`` only."""
        self._only = only
        self._connection = connection
        self._wait = wait
        self._where = f"{connection.address}: cannot {_DOING}"
        self._left = _KEPT_BYTES
        self._tables: dict[_TableName, _Table] = {}

    @property
    def _is_mariadb(self) -> bool:
        return self._connection.flavour is Flavour.MARIADB

    @property
    def lists_columns_of_all(self) -> bool:
        """Whether there are columns of each table that was listed; of a damaged one there are none."""
        return all(table.columns for table in self._tables.values())

    def read(self) -> Definitions:
        """Read the definitions."""
        for database, table, kind, engine, collation in self._rows(_TABLES, 5):
            self._keep(_TABLE_BYTES + 4 * (len(database) + len(table)))
            self._tables[database, table] = _Table(kind, engine or None, collation or None)
        for database, table, index, non_unique, column, position, prefix, kind in self._rows(_INDEXES, 8):
            known = self._tables.get((database, table))
            if known is not None:
                self._keep(_KEY_BYTES + 4 * (len(column) + len(index)))
                at, length = self._number(position) - 1, 0 if kind == "SPATIAL" else self._number(prefix)
                if index == "PRIMARY":
                    known.key[column] = at, length
                else:
                    in_memory = (known.engine or "").upper() == "MEMORY"
                    hashed = kind == "HASH" and not in_memory and self._is_mariadb
                    known.indexes.setdefault(index, (non_unique == "0", {}, hashed))[1][at] = column, length
        if any(table.kind == _VERSIONED for table in self._tables.values()):
            names = map(_name_of, self._rows(_PERIODS, 2))
            with_period = {name for name in names if name in self._tables}
            for name, listed in self._tables.items():
                listed.period = listed.kind == _VERSIONED and name not in with_period
        # MariaDB has collations without a character set of their own, and lists them as NULL.
        charsets = {
            row.text("collation"): row.text("charset")
            for row in self._connection.query(_COLLATIONS, doing=_DOING)
            if row["collation"] is not None
        }
        definitions = Definitions()
        for database, charset, collation in self._rows(_DATABASES, 3):
            definition = TableDefinition(database, "", (), None, charset or None, collation or None)
            self._keep(definitions.add(definition))
        for name, columns in self._columns():
            self._keep(definitions.add(_definition(name, self._tables[name], columns, charsets)))
        return definitions

    def _columns(self) -> Iterator[tuple[_TableName, list[ColumnDefinition]]]:
        """Yield columns by table; those of a table come together, or in a few places.

        A table dropped or created between the queries is left out, and comes with the next reading.
        """
        for name, rows in groupby(self._rows(_COLUMNS, 10), key=_name_of):
            table = self._tables.get(name)
            if table is None:
                continue
            columns: list[ColumnDefinition] = []
            for row in rows:
                table.size += sum(map(len, row))
                table.columns += 1
                if table.columns > _MOST_COLUMNS:
                    raise ProtocolError(
                        f"{self._where}: the table {'.'.join(name)} has more than {_MOST_COLUMNS} columns"
                    )
                if table.size <= _LARGEST_TABLE:
                    columns.append(self._column(row, table.key))
            yield name, columns if table.size <= _LARGEST_TABLE else []

    def _column(self, row: Sequence[str], keys: Mapping[str, tuple[int, int]]) -> ColumnDefinition:
        _, _, ordinal, name, column_type, nullable, charset, collation, extra, preset = row
        extra = extra.upper()
        generated: Literal["VIRTUAL", "STORED"] | None = None
        if "STORED GENERATED" in extra or "PERSISTENT" in extra:
            generated = "STORED"
        elif "VIRTUAL" in extra:
            generated = "VIRTUAL"
        lower = column_type.lower()
        listed = lower.startswith(("enum(", "set("))
        position, prefix = keys.get(name, (None, 0))
        return ColumnDefinition(
            ordinal=self._number(ordinal) - 1,
            name=name,
            column_type=column_type,
            nullable=nullable == "YES",
            unsigned=" unsigned" in lower and not listed,
            charset=charset or None,
            collation=collation or None,
            members=enum_members(column_type) if listed else None,
            key_position=position,
            key_prefix=prefix,
            generated=generated,
            hidden="INVISIBLE" in extra,
            default=None
            if generated or "DEFAULT_GENERATED" in extra
            else literal_default(preset, mariadb=self._is_mariadb),
        )

    def _rows(self, sql: str, width: int) -> Iterator[Sequence[str]]:
        """Yield rows of so many texts, "" for NULL; MySQL 8 has some of them as BLOB."""
        values: list[str] = []
        if self._only is not None:
            of_table = "TABLE_SCHEMA = %s AND TABLE_NAME = %s"
            of_one, width_of_one = ("SCHEMA_NAME = %s", 1) if sql is _DATABASES else (of_table, 2)
            sql += f" AND ({' OR '.join([of_one] * len(self._only))})"
            values = [part for name in self._only for part in name[:width_of_one]]
        rows = self._connection.rows(sql, values, doing=_DOING, total_s=_TOTAL_S, silence_s=_SILENCE_S)
        for number, row in enumerate(rows):
            if len(row) != width:
                raise ProtocolError(f"{self._where}: a row has {len(row)} values, expected {width}")
            if number == _MOST_ROWS:
                raise ProtocolError(f"{self._where}: its answer has more than {_MOST_ROWS} rows")
            yield [
                value if isinstance(value, str) else value.decode("utf-8", "replace") if value else ""
                for value in row
            ]
        if sql is _DATABASES:
            return  # it opens no tables
        warnings = [] if self._wait else self._connection.query("SHOW WARNINGS", doing=_DOING)
        self.skipped.append(sum(row.number("Code") == _SKIPPED for row in warnings))

    def _number(self, text: str) -> int:
        try:
            return int(text or 0)
        except ValueError:
            raise ProtocolError(f"{self._where}: {shortened(repr(text), 60)} is not a number") from None

    def _keep(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise RefusedError(
                f"{self._where}: the definitions of its tables take more than {_KEPT_BYTES >> 20} MiB; let "
                f"{self._connection.address.user!r} see fewer tables: GRANT SELECT on those that are wanted"
            )


def _name_of(row: Sequence[str]) -> _TableName:
    return row[0], row[1]


def _ordinal(column: ColumnDefinition) -> int:
    return column.ordinal


def _definition(
    name: _TableName, table: _Table, columns: list[ColumnDefinition], charsets: Mapping[str, str]
) -> TableDefinition:
    columns.sort(key=_ordinal)
    if table.period and columns:
        columns += _period(columns)
        table.period = False
    return TableDefinition(
        *name,
        columns=tuple(columns),
        engine=table.engine,
        charset=charsets.get(table.collation or "") or _charset_in(table.collation),
        collation=table.collation,
        indexes=tuple(
            IndexDefinition(index, unique, tuple(parts[at] for at in sorted(parts)), hashed)
            for index, (unique, parts, hashed) in sorted(table.indexes.items())
        ),
    )


def _charset_in(collation: str | None) -> str | None:
    """Return the character set in front of a collation's name, such as that of utf8mb4_uca1400_ai_ci."""
    charset = (collation or "").partition("_")[0]
    return None if charset in ("", "uca1400") else charset


def _period(columns: list[ColumnDefinition]) -> list[ColumnDefinition]:
    """Return the columns that MariaDB adds to a system-versioned table, after all others, and shows nowhere.

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


def literal_default(preset: str, *, mariadb: bool) -> str | None:
    """Return the text of a literal DEFAULT, which the catalogue has after a ``=``; None for anything else.

    MariaDB shows literals as SQL has them. MySQL shows their text alone; before 8.0 a function stands there
    as well, which only dates and times have, and which is no text of these.
    """
    if not preset:
        return None
    text = preset[1:]
    if not mariadb or _UNQUOTED.fullmatch(text):
        return kept_default(text)
    if len(text) >= _LONGEST_SHOWN:
        return None
    texts = (enum_members(f"enum({text})") or ()) if text.startswith("'") and text.endswith("'") else ()
    return kept_default(texts[0]) if len(texts) == 1 else None


def enum_members(column_type: str) -> tuple[str, ...] | None:
    r"""Return the members of ``enum('a','b')`` or ``set(…)``; None for other types.

    Servers print a quote in a member doubled, and NUL, line feed, carriage return and the backslash after a
    backslash. MySQL 9 prints a member that is invalid in its character set as x'ff': then they are not known.
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
            if character == "x":
                return None
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

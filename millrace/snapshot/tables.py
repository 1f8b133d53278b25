"""Reads the rows of a table in the order of its key, chunk by chunk, and a table without a key as a whole."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.binlog.columns.sql_types import INTEGERS, SqlType
from millrace.binlog.names import folded, quoted_name
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.mysql.catalog import read_definition
from millrace.mysql.connection import Flavour, MysqlConnection
from millrace.mysql.errors import RefusedError, RetriableError, SourceError
from millrace.snapshot.images import SelectedTable
from millrace.snapshot.watermarks import LogPosition, Watermarks, Within

_LARGEST_ROW: Final = (1 << 30) + (1 << 20)
"""Bytes: max_allowed_packet at its greatest, and its lengths."""
_MAY_PASS: Final = (1412, 1205, 1213)
"""The definition has changed since the snapshot was opened; a lock was not to be had, or a deadlock."""
_COUNTER: Final = re.compile(r" AUTO_INCREMENT=\d+")
"""What changes of a table's definition with each row."""
_DOING: Final = "read a snapshot"
_DIGITS: Final = INTEGERS | {"decimal", "year", "float", "double", "enum", "set"}
_QUOTED: Final = frozenset(("date", "time", "datetime", "inet4", "inet6", "uuid"))


class TableGoneError(Exception):
    """A table is no longer there, or may not be read."""


class KeyAlteredError(Exception):
    """A table has another key than the one by which it was read so far."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a table, cut into pieces of images; ``last_key`` are literals, empty where it has no rows."""

    epoch: int
    low: LogPosition
    high: LogPosition
    read_ms: int
    table: SelectedTable
    pieces: Sequence[tuple[int, bytes]]
    rows: int
    last_key: Sequence[str]
    at_end: bool
    """Whether nothing of its range is left after it."""

    @property
    def size(self) -> int:
        """Bytes of the images."""
        return sum(len(piece) for _, piece in self.pieces)


class TableRows:
    """Reads one table by a connection that :data:`~millrace.snapshot.images.SESSION` has set up.

    ``key`` is the key by which it is read, as :func:`key_of` describes it.
    """

    def __init__(
        self,
        connection: MysqlConnection,
        watermarks: Watermarks,
        database: str,
        table: str,
        *,
        key: str,
        where: str = "",
        piece_bytes: int,
    ) -> None:
        self._connection = connection
        self._watermarks = watermarks
        self._name = database, table
        self._from = quoted_name(database, table)
        self._history = ""
        self._key = key
        self._where = where
        self._piece_bytes = piece_bytes
        self._created = ""
        self._selected: SelectedTable | None = None

    def look(self) -> SelectedTable:
        """Return the table as it is defined now; raises :class:`TableGoneError` and :class:`KeyAlteredError`.

        Within a transaction it stays as it is until the end of that: the first statement that names the
        table locks its definition.
        """
        try:
            self._connection.query(f"SELECT 1 FROM {self._from} LIMIT 0", doing=_DOING)  # noqa: S608 - quoted
            row = self._connection.row(f"SHOW CREATE TABLE {self._from}", doing=_DOING)
        except SourceError as error:
            raise self._judged(error) from error
        created = _COUNTER.sub("", str(row.get("Create Table") or ""))
        if self._selected is None or created != self._created:
            definition = read_definition(self._connection, *self._name)
            if definition is None or not definition.columns:
                words = "not a table, or too large a one, or its user may not read it"
                raise TableGoneError(f"{'.'.join(self._name)} is {words}")
            if key_of(definition) != self._key:
                raise KeyAlteredError
            mariadb = self._connection.flavour is Flavour.MARIADB
            self._history = _history_of(self._connection, *self._name)
            self._created, self._selected = created, SelectedTable(definition, mariadb=mariadb)
        return self._selected

    def chunk(self, after: Sequence[str], until: str, limit: int) -> Chunk:
        """Read up to ``limit`` rows after a key; raises RetriableError where the table was altered."""
        watermarks = self._watermarks
        with watermarks.transaction() as (epoch, low, known):
            selected = self.look()
            keys = key_columns(selected.definition)
            conditions = [f"({self._where})"] if self._where else []
            conditions += after_key(keys, after) + ([f"{_order(keys[0])} < {until}"] if until else [])
            query = (
                f"SELECT {selected.columns} FROM {self._from}{self._history} "  # noqa: S608 - quoted
                f"FORCE INDEX ({quoted_name(selected.definition.key_index)})"
                f"{' WHERE ' + ' AND '.join(conditions) if conditions else ''}"
                f" ORDER BY {', '.join(quoted_name(key.name) for key in keys)} LIMIT {limit}"
                f"{watermarks.suffix}"
            )
            cutter = _Cutter(selected, self._piece_bytes)
            pieces = list(cutter.pieces(self._rows(query, cutter)))
            # No statement alters the table until the transaction ends, so none is in the log before ``high``.
            high = known if known and selected.definition.transactional else watermarks.high()
        last = cutter.last
        literals = () if last is None else [_literal(key, last[key.ordinal]) for key in keys]
        return Chunk(
            epoch,
            low,
            high,
            int(time.time() * 1000),
            selected,
            pieces,
            cutter.rows,
            literals,
            cutter.rows < limit,
        )

    def whole(self, check: "Callable[[Within, LogPosition], None]") -> Iterator[Chunk]:
        """Read all rows in one transaction, piece by piece; the last piece is empty.

        ``check`` is given what tells whether a transaction is in the rows, and the place, and may raise.
        """
        with self._watermarks.exact_transaction() as (epoch, place, within):
            selected = self.look()
            if not selected.definition.transactional:
                raise TableGoneError(
                    f"{'.'.join(self._name)} has no key, and its engine {selected.definition.engine} no "
                    "consistent snapshots: which of its rows are in the stream too cannot be known"
                )
            check(within, place)
            where = f" WHERE ({self._where})" if self._where else ""
            query = f"SELECT {selected.columns} FROM {self._from}{self._history}{where}"  # noqa: S608 - quoted
            cutter = _Cutter(selected, self._piece_bytes)
            now = int(time.time() * 1000)
            for piece in cutter.pieces(self._rows(query, cutter)):
                yield Chunk(epoch, place, place, now, selected, [piece], piece[0], (), at_end=False)
            yield Chunk(epoch, place, place, now, selected, [(0, b"")], 0, (), at_end=True)

    def _rows(self, query: str, cutter: "_Cutter") -> Iterator[tuple[bytes | None, ...]]:
        try:
            yield from self._connection.rows(  # type: ignore[misc]  # bytes, as asked for
                query, doing=_DOING, largest=_LARGEST_ROW, binary=True, take=cutter.take
            )
        except SourceError as error:
            raise self._judged(error) from error

    def _judged(self, error: SourceError) -> Exception:
        code = error.__cause__.args[0] if error.__cause__ is not None and error.__cause__.args else None
        if code in _MAY_PASS:
            return RetriableError(str(error))
        return (
            TableGoneError(f"{'.'.join(self._name)}: {error}") if isinstance(error, RefusedError) else error
        )


class _Cutter:
    """Writes rows as images and cuts them into pieces; knows the last row.

    Where the kernel is built, it takes rows as they come, and what is left to :meth:`pieces` are those that
    are out of the ordinary.
    """

    def __init__(self, table: SelectedTable, piece_bytes: int) -> None:
        self.rows = 0
        self.last: tuple[bytes | None, ...] | None = None
        self._image = table.image
        self._kernel = table.kernel()
        self._piece_bytes = piece_bytes
        self._images: list[bytes] = []
        self._count = self._size = 0

    def take(self, packets: bytearray, number: int) -> tuple[int, int]:
        """Take packets of rows as :data:`~millrace.mysql.login.TakePackets` says."""
        if self._kernel is None:
            return 0, number
        images, count, taken, number = self._kernel.take(packets, number, self._piece_bytes - self._size)
        if count:
            self._add(images, count)
        return taken, number

    def pieces(self, rows: Iterator[tuple[bytes | None, ...]]) -> Iterator[tuple[int, bytes]]:
        """Yield number of rows and images of each piece."""
        row = None
        for row in rows:
            image = self._image(row)
            if self._size and self._size + len(image) > self._piece_bytes:
                yield self._cut()
            self._add(image, 1)
        self.last = row
        if self._count:
            yield self._cut()

    def _add(self, images: bytes, count: int) -> None:
        self._images.append(images)
        self._size += len(images)
        self._count += count

    def _cut(self) -> tuple[int, bytes]:
        piece = self._count, b"".join(self._images)
        self.rows += self._count
        self._images, self._count, self._size = [], 0, 0
        return piece


def _history_of(connection: MysqlConnection, database: str, table: str) -> str:
    """Return the clause by which a query has the past rows of a system-versioned table, as the log has."""
    if connection.flavour is not Flavour.MARIADB:
        return ""
    kind = (
        "SELECT TABLE_TYPE AS kind FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    )
    rows = connection.query(kind, (database, table), doing=_DOING)
    versioned = any(row.text("kind") == "SYSTEM VERSIONED" for row in rows)
    return " FOR SYSTEM_TIME ALL" if versioned else ""


def key_columns(definition: TableDefinition) -> list[ColumnDefinition]:
    """Return the columns by which rows are known, in the order of the key."""
    columns = {folded(column.name): column for column in definition.columns}
    return [columns[folded(name)] for name in definition.key]


def key_of(definition: TableDefinition) -> str:
    """Describe the key: one that is described otherwise orders rows otherwise, or has other literals."""
    parts = (
        f"{quoted_name(key.name)} {key.column_type} {key.collation or ''}" for key in key_columns(definition)
    )
    return ", ".join(map(str.rstrip, parts))


def after_key(keys: Sequence[ColumnDefinition], after: Sequence[str]) -> list[str]:
    """Return the conditions of rows after a key; ``after`` may have only the first columns of the key."""
    if not after:
        return []
    if len(after) < len(keys):
        return [f"{_order(keys[0])} >= {after[0]}"]
    ways, equal = [], ""
    for key, literal in zip(keys, after, strict=True):
        ways.append(f"({equal}{_order(key)} > {literal})")
        equal += f"{_order(key)} = {literal} AND "
    first = [f"{_order(keys[0])} >= {after[0]}"] if len(keys) > 1 else []
    return [*first, f"({' OR '.join(ways)})"]


def split_key(
    connection: MysqlConnection, definition: TableDefinition, parts: int, least: int
) -> list[tuple[Sequence[str], str]]:
    """Cut the key's range into ``parts``: where each begins and ends; one where that is of no use.

    The first column must be an integer, with more than ``least`` values between its ends.
    """
    keys = key_columns(definition)
    if not keys or SqlType.parse(keys[0].column_type).name not in INTEGERS or parts < 2:
        return [((), "")]
    name = quoted_name(keys[0].name)
    row = connection.row(
        f"SELECT MIN({name}) AS low, MAX({name}) AS high "  # noqa: S608 - quoted names
        f"FROM {quoted_name(definition.database, definition.table)}",
        doing=_DOING,
    )
    if row["low"] is None:
        return [((), "")]
    low, high = int(row.text("low")), int(row.text("high"))
    if high - low < least:
        return [((), "")]
    bounds = [str(low + (high - low) * part // parts) for part in range(1, parts)]
    # A range that begins after the first column alone is read from there on, so that both ends are exact.
    starts: list[Sequence[str]] = [()]
    starts += [(str(int(bound) - 1),) if len(keys) == 1 else (bound,) for bound in bounds]
    return list(zip(starts, [*bounds, ""], strict=True))


def _order(key: ColumnDefinition) -> str:
    """Return what a key's column is compared by."""
    name = quoted_name(key.name)
    return f"CAST({name} AS UNSIGNED)" if SqlType.parse(key.column_type).name in ("enum", "set") else name


def _literal(key: ColumnDefinition, value: bytes | None) -> str:
    """Write what was selected of a key's column as a literal of SQL."""
    assert value is not None, "a key has no NULL"
    name = SqlType.parse(key.column_type).name
    if name in _DIGITS:
        return value.decode("ascii")
    if name == "timestamp":
        return f"FROM_UNIXTIME({value.decode('ascii')})"
    if name == "bit":
        return str(int.from_bytes(value, "big"))
    if name in _QUOTED:
        return f"'{value.decode('ascii')}'"
    introducer = f"_{key.charset} " if key.charset else ""
    return f"{introducer}x'{value.hex()}'"

"""Writers that never stop: some change tables in all ways, one writes a row a few times a second."""

import random
import socket
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from millrace.local import MariaDB, MySQL
from tests.worker import Worker

TABLES = (
    (
        "CREATE TABLE plain (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(200), amount DECIMAL(12,2), "
        "at DATETIME(3), big BIGINT UNSIGNED)"
    ),
    "CREATE TABLE pair (a INT, b VARCHAR(20), v TEXT, PRIMARY KEY (b, a))",
    "CREATE TABLE keyless (v VARCHAR(20), n DOUBLE)",
    "CREATE TABLE files (id INT PRIMARY KEY AUTO_INCREMENT, data MEDIUMBLOB)",
    "CREATE TABLE bulk (id INT PRIMARY KEY, note VARCHAR(200), extra INT)",
    "CREATE TABLE probe (id INT PRIMARY KEY, at DATETIME(6))",
    "CREATE TABLE done (id INT PRIMARY KEY)",
)
_COMPRESSION = "binlog_transaction_compression"
_AT = "2024-02-29 01:02:03.456"
_MOST_COLUMNS = 6
_MOST_TABLES = 15
_RETRY_S = 0.2
_ANSWER_S = 60
"""Longer than a server is ever stopped for."""


@contextmanager
def session(server: MySQL | MariaDB, database: str) -> "Iterator[pymysql.connections.Connection[Any]]":
    """A connection through a socket of our own: PyMySQL leaves its socket open where no server listens."""
    with socket.socket(socket.AF_UNIX) as unconnected:
        unconnected.settimeout(_ANSWER_S)
        unconnected.connect(str(server.socket))
        times = {"read_timeout": _ANSWER_S, "write_timeout": _ANSWER_S}
        connection = server.connect(database=database, defer_connect=True, **times)
        connection.connect(unconnected)
        try:
            yield connection
        finally:
            with suppress(pymysql.err.Error):  # it may have closed itself
                connection.close()


class Sessions(Worker):
    """Work on a server in its own thread, counted in ``done``; connects again when the server is lost."""

    def __init__(self, server: MySQL | MariaDB, database: str, name: str) -> None:
        super().__init__(name)
        self.done: Counter[str] = Counter()
        self._server = server
        self._database = database

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with session(self._server, self._database) as connection:
                    self._session(connection)
            except (pymysql.err.MySQLError, OSError):
                self.done["connections lost"] += 1
                self._stop.wait(_RETRY_S)

    @abstractmethod
    def _session(self, connection: Any) -> None:
        """Work until told to stop, or until the connection is lost."""


class Writer(Sessions):
    """Does what a seed says.

    It never stops, but the longer rows take to arrive (``lag_s``) the slower it is: else what a fault or a
    busy machine has left behind would never be caught up with.
    """

    def __init__(
        self,
        server: MySQL | MariaDB,
        database: str,
        *,
        seed: int,
        pause_s: float,
        large_rows: int,
        lag_s: Callable[[], float],
    ) -> None:
        super().__init__(server, database, f"writer {seed}")
        self._random = random.Random(seed)
        self._seed = seed
        self._pause_s = pause_s
        self._large_rows = large_rows
        self._lag_s = lag_s
        self._columns: list[str] = []
        self._made = 0
        self._next_bulk = (seed + 1) * 100_000_000
        self._oldest_bulk = self._next_bulk
        self._work: list[tuple[int, Callable[[Any], None]]] = [
            (20, self._insert),
            (20, self._update),
            (12, self._delete),
            (16, self._transaction),
            (6, self._rolled_back),
            (8, self._savepoints),
            (10, self._keyless),
            (1, self._large),
            (1, self._files),
            (2, self._ddl),
            (1, self._rotate),
        ]

    def _session(self, connection: Any) -> None:
        weights, steps = zip(*self._work, strict=True)
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW VARIABLES LIKE '{_COMPRESSION}'")
            can_compress = bool(cursor.fetchall())
            while not self._stop.wait(self._pause_s * self._random.random() * (2 + self._lag_s())):
                (step,) = self._random.choices(steps, weights)
                if can_compress:
                    cursor.execute(f"SET SESSION {_COMPRESSION} = {self._random.choice(['ON', 'OFF'])}")
                try:
                    step(cursor)
                    self.done[step.__name__.removeprefix("_")] += 1
                except (
                    pymysql.err.IntegrityError,
                    pymysql.err.OperationalError,
                    pymysql.err.InternalError,
                ) as error:
                    # Another session was in the way, or the server is gone; then this fails as well.
                    cursor.execute("ROLLBACK")
                    self.done[f"refused ({error.args[0]})"] += 1

    # -- single statements --------------------------------------------------------------------------

    def _note(self) -> str:
        return self._random.choice(["short", "größer", "x" * 150, "", "quote ' and \\ back"])

    def _insert(self, cursor: Any) -> None:
        # So many that they do not fit into one event, now and then.
        count = self._random.choice([1, 1, 2, 5, 80])
        rows = [
            (
                "x" * 150 if count == 80 else self._note(),
                self._random.randrange(10**6) / 100,
                _AT,
                self._random.getrandbits(64),
            )
            for _ in range(count)
        ]
        cursor.executemany("INSERT INTO plain (note, amount, at, big) VALUES (%s, %s, %s, %s)", rows)

    def _update(self, cursor: Any) -> None:
        cursor.execute(
            "UPDATE plain SET note = %s, amount = amount + 1 WHERE id >= %s ORDER BY id LIMIT 10",
            (self._note(), self._some_id(cursor)),
        )

    def _delete(self, cursor: Any) -> None:
        cursor.execute("DELETE FROM plain WHERE id >= %s ORDER BY id LIMIT 8", (self._some_id(cursor),))

    def _some_id(self, cursor: Any) -> int:
        cursor.execute("SELECT MIN(id), MAX(id) FROM plain")
        ((low, high),) = cursor.fetchall()
        return 0 if low is None else self._random.randint(low, high)

    def _keyless(self, cursor: Any) -> None:
        draw = self._random.randrange(4)
        value = f"v{self._random.randrange(20)}"
        if draw < 2:
            cursor.execute("INSERT INTO keyless VALUES (%s, 1.5), (%s, 1.5), (%s, NULL)", (value,) * 3)
        elif draw == 2:
            cursor.execute("UPDATE keyless SET n = n + 1 WHERE v = %s LIMIT 3", (value,))
        else:
            cursor.execute("DELETE FROM keyless WHERE v = %s LIMIT 5", (value,))

    # -- transactions -------------------------------------------------------------------------------

    def _transaction(self, cursor: Any) -> None:
        cursor.execute("BEGIN")
        self._change(cursor)
        cursor.execute("COMMIT")

    def _rolled_back(self, cursor: Any) -> None:
        cursor.execute("BEGIN")
        self._change(cursor)
        cursor.execute("ROLLBACK")

    def _savepoints(self, cursor: Any) -> None:
        cursor.execute("BEGIN")
        self._change(cursor)
        cursor.execute("SAVEPOINT one")
        self._change(cursor)
        cursor.execute("ROLLBACK TO one")
        self._change(cursor)
        cursor.execute("COMMIT")

    def _change(self, cursor: Any) -> None:
        steps = [self._insert, self._update, self._delete, self._pair, self._keyless]
        for step in self._random.choices(steps, k=self._random.randint(1, 4)):
            step(cursor)

    def _pair(self, cursor: Any) -> None:
        a, b = self._random.randrange(50), self._random.choice(["x", "y", "ü"])
        cursor.execute("REPLACE INTO pair VALUES (%s, %s, %s)", (a, b, self._note()))
        cursor.execute("UPDATE pair SET a = a + 100 WHERE a = %s AND b = %s", (self._random.randrange(50), b))
        cursor.execute("DELETE FROM pair WHERE a >= 100")

    def _large(self, cursor: Any) -> None:
        """Write thousands of rows in one transaction, or remove as many in one statement."""
        if self._next_bulk - self._oldest_bulk >= 3 * self._large_rows:
            cursor.execute(
                "DELETE FROM bulk WHERE id >= %s AND id < %s",
                (self._oldest_bulk, self._oldest_bulk + self._large_rows),
            )
            self._oldest_bulk += self._large_rows
            return
        cursor.execute("BEGIN")
        first, self._next_bulk = self._next_bulk, self._next_bulk + self._large_rows
        for start in range(first, self._next_bulk, 1500):
            ids = range(start, min(start + 1500, self._next_bulk))
            values = ",".join(f"({number},REPEAT('b',120),{number % 7})" for number in ids)
            cursor.execute(f"INSERT INTO bulk VALUES {values}")
        if self._random.randrange(4):
            cursor.execute("COMMIT")
        else:
            cursor.execute("ROLLBACK")

    def _files(self, cursor: Any) -> None:
        """Write a row whose event is cut into chunks, change it, and remove an older one."""
        piece = self._random.randbytes(1000)
        cursor.execute("INSERT INTO files (data) VALUES (REPEAT(%s, 1500))", (piece,))
        if self._random.randrange(2):
            cursor.execute("UPDATE files SET data = CONCAT(data, 'more') ORDER BY id DESC LIMIT 1")
        cursor.execute("DELETE FROM files ORDER BY id LIMIT 1")

    # -- tables and files ---------------------------------------------------------------------------

    def _ddl(self, cursor: Any) -> None:
        draw = self._random.randrange(3)
        cursor.execute("SET SESSION lock_wait_timeout = 5")
        if draw == 0 and self._made < _MOST_TABLES:
            self._made += 1
            table = f"extra_{self._seed}_{self._made}"
            cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(20))")
            cursor.execute(f"INSERT INTO {table} (v) VALUES ('a'), ('b')")
            if self._random.randrange(2):
                cursor.execute(f"DROP TABLE {table}")
        elif draw == 1 and self._columns and len(self._columns) >= self._random.randint(1, _MOST_COLUMNS):
            column = self._columns.pop(self._random.randrange(len(self._columns)))
            cursor.execute(f"ALTER TABLE plain DROP COLUMN {column}")
        else:
            column = f"c{self._seed}_{self._random.getrandbits(40):x}"
            kind = self._random.choice(["INT DEFAULT 7", "VARCHAR(30) DEFAULT 'new'", "DATE", "DOUBLE"])
            where = self._random.choice(["", "AFTER id", "FIRST"])
            cursor.execute(f"ALTER TABLE plain ADD COLUMN {column} {kind} {where}")
            self._columns.append(column)

    def _rotate(self, cursor: Any) -> None:
        cursor.execute("FLUSH BINARY LOGS")


class Probe(Sessions):
    """Writes a numbered row every quarter of a second, and knows when each was written."""

    period_s = 0.25

    def __init__(self, server: MySQL | MariaDB, database: str) -> None:
        super().__init__(server, database, "probe")
        self.written: list[float] = []

    def _session(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            while not self._stop.wait(self.period_s):
                # A row whose COMMIT went unanswered may be there or not: it is written again.
                cursor.execute("REPLACE INTO probe VALUES (%s, NOW(6))", (len(self.written) + 1,))
                self.written.append(time.monotonic())

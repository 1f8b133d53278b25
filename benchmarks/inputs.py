"""The inputs on which speed is measured, written by a real server into its own binary log.

======  ======================================================================================================
input   what the log holds at scale 1
======  ======================================================================================================
``A``   200,000 transactions of one row each on two tables: half inserts, a third updates, the rest deletes
``B``   an ``orders`` table of ten columns: 2,000 inserts of 1,000 rows, an update of 500,000 rows and a
        delete of 300,000 rows, each one transaction
``C``   100,000 rows of sixty columns of every type, JSON, text and blobs among them
======  ======================================================================================================

The statements are a function of the input's name and the scale alone (a seeded generator), so that two runs
write the same rows.
"""

import datetime as dt
import json
import random
from collections.abc import Callable, Iterator

import pymysql

_START = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - a DATETIME of MySQL has no zone
_SPAN_S = 60_000_000
_ROWS_PER_INSERT = 1000

_ORDERS = """CREATE TABLE orders (
  id BIGINT PRIMARY KEY AUTO_INCREMENT, customer_id INT, ref VARCHAR(64), placed DATETIME(6),
  amount DECIMAL(12,2), updated TIMESTAMP NULL, status TINYINT, weight DOUBLE, cur CHAR(10), note TEXT
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"""
_ORDERS_INSERT = (
    "INSERT INTO orders (customer_id, ref, placed, amount, updated, status, weight, cur, note) VALUES "
)
_SBTEST = """CREATE TABLE sbtest1 (
  id INT NOT NULL PRIMARY KEY AUTO_INCREMENT, k INT NOT NULL DEFAULT 0, c CHAR(120) NOT NULL DEFAULT '',
  pad CHAR(60) NOT NULL DEFAULT '', KEY k_1 (k)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"""


class _Values:
    """Random literals of SQL, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz 0123456789éü"
        self._texts = ["".join(self.random.choices(letters, k=4000)) for _ in range(64)]

    def digits(self, count: int) -> str:
        return "".join(self.random.choices("0123456789", k=count))

    def groups(self, count: int) -> str:
        return "-".join(self.digits(11) for _ in range(count))

    def text(self, length: int) -> str:
        pool = self.random.choice(self._texts)
        start = self.random.randrange(len(pool) - length)
        return pool[start : start + length]

    def moment(self) -> dt.datetime:
        return _START + dt.timedelta(
            seconds=self.random.randrange(_SPAN_S), microseconds=self.random.randrange(1_000_000)
        )

    def order(self) -> str:
        pick, moment = self.random, self.moment()
        return (
            f"({pick.randrange(1, 1_000_000)},'ORD-{self.digits(pick.randrange(8, 28))}',"
            f"'{moment.isoformat(' ')}',{pick.randrange(1, 10**9) / 100:.2f},"
            f"'{moment.replace(microsecond=0)}',{pick.randrange(9)},{pick.random() * 1000!r},"
            f"'{pick.choice(('EUR', 'USD', 'GBP', 'JPY'))}','{self.text(pick.randrange(20, 120))}')"
        )


def _small_transactions(values: _Values, scale: float) -> Iterator[str]:
    yield _SBTEST
    yield _ORDERS
    pick = values.random
    live: dict[str, list[int]] = {"sbtest1": [], "orders": []}
    inserted = {"sbtest1": 0, "orders": 0}
    for number in range(int(200_000 * scale)):
        table = pick.choice(("sbtest1", "orders"))
        ids, dice = live[table], pick.random()
        if dice < 0.5 or len(ids) < 100:
            inserted[table] += 1
            ids.append(inserted[table])
            if table == "sbtest1":
                yield (
                    f"INSERT INTO sbtest1 VALUES ({ids[-1]},{pick.randrange(1, 10**6)},"
                    f"'{values.groups(10)}','{values.groups(5)}')"
                )
            else:
                yield _ORDERS_INSERT + values.order()
        elif dice < 0.85:
            key = pick.choice(ids)
            if table == "sbtest1":
                yield f"UPDATE sbtest1 SET k=k+1, c='{values.groups(10)}' WHERE id={key}"
            else:
                updated = _START + dt.timedelta(seconds=_SPAN_S + number)
                yield (
                    f"UPDATE orders SET status=(status+1)%100, amount=amount+1.10, updated='{updated}' "
                    f"WHERE id={key}"
                )
        else:
            chosen = pick.randrange(len(ids))
            ids[chosen], ids[-1] = ids[-1], ids[chosen]
            yield f"DELETE FROM {table} WHERE id={ids.pop()}"


def _bulk_orders(values: _Values, scale: float) -> Iterator[str]:
    yield _ORDERS
    for _ in range(int(2000 * scale)):
        yield _ORDERS_INSERT + ",".join(values.order() for _ in range(_ROWS_PER_INSERT))
    yield f"UPDATE orders SET status=status+1, amount=amount+0.01 WHERE id<={int(500_000 * scale)}"
    yield f"DELETE FROM orders WHERE id>{int(1_700_000 * scale)}"


def _wide_columns(values: _Values) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the type of each column after the key, and a generator of its literals."""
    pick = values.random

    def quoted(length: int) -> Callable[[], str]:
        return lambda: f"'{values.digits(length)}'"

    def text(low: int, high: int) -> Callable[[], str]:
        return lambda: f"'{values.text(pick.randrange(low, high))}'"

    def blob(size: int) -> Callable[[], str]:
        return lambda: "0x" + pick.randbytes(size).hex()

    def one_of(*literals: str) -> Callable[[], str]:
        return lambda: pick.choice(literals)

    def integer(low: int, high: int) -> Callable[[], str]:
        return lambda: str(pick.randrange(low, high))

    def decimal(precision: int, scale: int) -> Callable[[], str]:
        return lambda: f"{values.digits(precision - scale).lstrip('0').rjust(1, '0')}.{values.digits(scale)}"

    def moment(fraction: bool) -> Callable[[], str]:
        return lambda: f"'{values.moment().isoformat(' ', 'microseconds' if fraction else 'seconds')}'"

    def time(fraction: bool) -> Callable[[], str]:
        return lambda: (
            f"'{pick.choice(('', '-'))}{pick.randrange(99):02}:{pick.randrange(60):02}:"
            f"{pick.randrange(60):02}{f'.{pick.randrange(10**6):06}' if fraction else ''}'"
        )

    def document() -> str:
        value = {
            "id": pick.randrange(10**9),
            "name": values.text(12),
            "tags": [values.text(5) for _ in range(4)],
            "price": pick.randrange(10**6) / 100,
            "ok": pick.random() < 0.5,
            "none": None,
            "addr": {
                "city": values.text(8),
                "zip": values.digits(5),
                "geo": [pick.random() * 90, pick.random() * 180],
            },
        }
        return f"'{json.dumps(value, ensure_ascii=False)}'"

    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)):
        yield name, integer(-(1 << bits - 1), 1 << bits - 1)
        yield f"{name} UNSIGNED", integer(0, 1 << bits)
    for precision, scale in ((10, 2), (18, 4), (38, 10), (65, 30)):
        yield f"DECIMAL({precision},{scale})", decimal(precision, scale)
    for name in ("FLOAT", "DOUBLE", "DOUBLE"):
        yield name, lambda: repr(pick.random() * 10 ** pick.randrange(-5, 9))
    for bits in (1, 8, 64):
        yield f"BIT({bits})", lambda bits=bits: f"b'{pick.randrange(1 << bits):b}'"  # type: ignore[misc] # bound now
    yield "DATE", lambda: f"'{values.moment().date()}'"
    yield "YEAR", integer(1970, 2100)
    for digits in (0, 3, 6):
        yield f"TIME({digits})", time(bool(digits))
        yield f"DATETIME({digits})", moment(bool(digits))
        yield f"TIMESTAMP({digits}) NULL", moment(bool(digits))
    yield "CHAR(10)", quoted(6)
    yield "CHAR(64) CHARACTER SET latin1", quoted(30)
    for length in (20, 64, 128, 255, 300, 500):
        yield f"VARCHAR({length})", text(5, max(8, length // 4))
    yield "VARCHAR(100) CHARACTER SET latin1", quoted(20)
    yield "BINARY(16)", blob(16)
    yield "VARBINARY(64)", blob(20)
    yield "ENUM('new','paid','sent','done')", one_of("'new'", "'paid'", "'sent'", "'done'")
    yield "SET('a','b','c','d','e')", one_of("'a,c'", "'b'", "'a,b,c,d,e'", "''")
    yield "TINYTEXT", text(40, 41)
    yield "TEXT", text(2000, 2001)
    yield "MEDIUMTEXT", text(200, 201)
    yield "LONGTEXT", one_of("NULL")
    yield "TINYBLOB", blob(32)
    yield "BLOB", blob(512)
    yield "MEDIUMBLOB", one_of("NULL")
    yield "LONGBLOB", blob(64)
    yield "JSON", document
    yield "JSON", lambda: f"'{json.dumps([pick.randrange(1000) for _ in range(8)])}'"
    yield "POINT", lambda: f"ST_GeomFromText('POINT({pick.randrange(90)} {pick.randrange(90)})')"
    yield "INT NULL", one_of("NULL")
    yield "VARCHAR(40) NULL", one_of("NULL")


def _wide_rows(values: _Values, scale: float) -> Iterator[str]:
    columns = list(_wide_columns(values))
    columns += [("INT", lambda: str(values.random.randrange(1000)))] * (59 - len(columns))
    definitions = ", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(columns, 1))
    yield f"CREATE TABLE wide (id BIGINT PRIMARY KEY, {definitions}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"
    for batch in range(int(1000 * scale)):
        rows = (
            f"({batch * 100 + row + 1},{','.join(literal() for _, literal in columns)})" for row in range(100)
        )
        yield "INSERT INTO wide VALUES " + ",".join(rows)


INPUTS: dict[str, Callable[[_Values, float], Iterator[str]]] = {
    "A": _small_transactions,
    "B": _bulk_orders,
    "C": _wide_rows,
}


def write_input(name: str, connection: pymysql.Connection, scale: float) -> tuple[str, int]:  # type: ignore[type-arg]
    """Write input ``name`` into a log file of its own; return that file's name and how many rows it changes.

    ``connection`` needs autocommit and may flush logs; the database ``bench_{name}`` is made again.
    """
    database = f"bench_{name.lower()}"
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {database}")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW MASTER STATUS")
        (log_file, *_) = cursor.fetchone()  # type: ignore[misc] # a server with its log on always answers
        cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute(f"USE {database}")
        rows = sum(cursor.execute(statement) for statement in INPUTS[name](_Values(seed=42), scale))
        cursor.execute("FLUSH BINARY LOGS")
    return str(log_file), rows

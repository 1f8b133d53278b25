"""The demo's workload: a small shop, and everything that changes rows in one.

Several tables of varied types, one of them without a key; inserts of one and of many rows, updates, deletes,
a changed key, a column added in the middle, a transaction that is rolled back, one of 50,000 rows, and rows
that occur twice. All data come from one seed.
"""

import datetime as dt
import json
import random
import string
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pymysql.connections import Connection

MARKER_TABLE: Final = "runs"
"""The table whose last row is written when all else is done."""

_SEED: Final = 20_260_131
_CUSTOMERS, _PRODUCTS, _ORDERS, _VIEWS = 2_000, 500, 400, 3_000
_BATCH: Final = 1_000
_START: Final = dt.datetime(2026, 1, 31, 8, 0)  # noqa: DTZ001 - a DATETIME has no zone

TABLES: Final = {
    "customers": """
        id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        email VARCHAR(120) NOT NULL UNIQUE,
        name VARCHAR(80) NOT NULL,
        country CHAR(2),
        born DATE,
        balance DECIMAL(12,2) NOT NULL DEFAULT 0,
        tags SET('vip','newsletter','wholesale') NOT NULL DEFAULT '',
        profile JSON,
        created TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
    """,
    "products": """
        sku VARCHAR(20) NOT NULL PRIMARY KEY,
        title TINYTEXT NOT NULL,
        origin VARCHAR(40) CHARACTER SET latin1,
        price DECIMAL(10,2) NOT NULL,
        weight FLOAT,
        volume DOUBLE,
        stock MEDIUMINT NOT NULL,
        status ENUM('draft','active','retired') NOT NULL,
        picture BLOB,
        checksum BINARY(8),
        released YEAR,
        available BIT(7),
        opens TIME(2)
    """,
    "orders": """
        id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        customer_id BIGINT UNSIGNED NOT NULL,
        state ENUM('new','paid','shipped','cancelled') NOT NULL,
        placed DATETIME(6) NOT NULL,
        total DECIMAL(12,2) NOT NULL,
        note TEXT
    """,
    "order_lines": """
        order_id INT UNSIGNED NOT NULL,
        line SMALLINT UNSIGNED NOT NULL,
        sku VARCHAR(20) NOT NULL,
        quantity TINYINT UNSIGNED NOT NULL,
        price DECIMAL(10,2) NOT NULL,
        PRIMARY KEY (order_id, line)
    """,
    "stock_moves": """
        id BIGINT NOT NULL PRIMARY KEY,
        sku VARCHAR(20) NOT NULL,
        quantity INT NOT NULL,
        moved DATETIME NOT NULL,
        reason VARCHAR(30)
    """,
    "page_views": """
        visitor CHAR(12) NOT NULL,
        page VARCHAR(60) NOT NULL,
        seen DATETIME(3) NOT NULL,
        milliseconds INT UNSIGNED
    """,
    "stores": """
        id TINYINT UNSIGNED NOT NULL PRIMARY KEY,
        `opening hours` VARCHAR(40),
        place POINT NOT NULL
    """,
    MARKER_TABLE: """
        id INT NOT NULL PRIMARY KEY,
        state VARCHAR(20) NOT NULL
    """,
}
"""Name and columns of every table; ``page_views`` has no key."""


class Workload:
    """Runs on one connection; ``say`` is told of each step, ``changed`` counts the rows changed so far."""

    def __init__(
        self, connection: "Connection[Any]", database: str, *, large_rows: int, say: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._database = database
        self._large_rows = large_rows
        self._say = say
        self._random = random.Random(_SEED)  # noqa: S311 - sample data
        self.changed = 0
        self.rolled_back = 0

    def run(self) -> None:
        """Do everything, the marker's last row at the end."""
        self._connection.autocommit(True)
        for what, step in self._steps():
            self._say(what)
            step()

    def _steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield f"creating {len(TABLES)} tables", self._create
        yield (
            f"inserting {_CUSTOMERS:,} customers and {_PRODUCTS} products, many rows per statement",
            self._fill,
        )
        yield f"placing {_ORDERS} orders, a transaction each", lambda: self._order(1, _ORDERS // 2)
        yield "updating and deleting rows of every table, changing a key", self._change
        yield "adding a column to customers (ALTER TABLE), then using it", self._alter
        yield "rolling back a transaction that changes more than a thousand rows", self._roll_back
        yield f"inserting {self._large_rows:,} rows in one transaction", self._insert_many
        yield "recording page views in a table without a key, some of them twice", self._view
        yield "placing the other orders", lambda: self._order(_ORDERS // 2 + 1, _ORDERS)
        yield "all is written", self._finish

    def _execute(self, statement: str, parameters: Sequence[Any] | None = None) -> None:
        with self._connection.cursor() as cursor:
            self.changed += cursor.execute(statement, parameters)

    def _insert(
        self, table: str, columns: str, rows: Sequence[Sequence[Any]], values: str | None = None
    ) -> None:
        """Insert rows, ``_BATCH`` in a statement."""
        values = values or f"({', '.join(['%s'] * len(rows[0]))})"
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            statement = f"INSERT INTO {table} ({columns}) VALUES {', '.join([values] * len(batch))}"  # noqa: S608 - our own names
            self._execute(statement, [value for row in batch for value in row])

    def _create(self) -> None:
        with self._connection.cursor() as cursor:  # uncounted: the server says that it changed a row
            cursor.execute(f"CREATE DATABASE `{self._database}` CHARACTER SET utf8mb4")
        self._connection.select_db(self._database)
        for name, columns in TABLES.items():
            self._execute(f"CREATE TABLE {name} ({columns}) ENGINE=InnoDB")
        self._execute(f"INSERT INTO {MARKER_TABLE} VALUES (1, 'running')")  # noqa: S608 - our own name

    def _fill(self) -> None:
        draw = self._random
        customers = []
        for number in range(1, _CUSTOMERS + 1):
            name = f"{draw.choice(['Ana', 'Björn', 'Chiara', '健', 'Zoë', 'Олег'])} {self._word(6).title()}"
            born = None if draw.random() < 0.1 else dt.date(1950, 1, 1) + dt.timedelta(draw.randrange(20_000))
            tags = ",".join(tag for tag in ("vip", "newsletter", "wholesale") if draw.random() < 0.3)
            profile = {
                "size": draw.choice(["S", "M", "L", None]),
                "visits": draw.randrange(1000),
                "score": draw.randrange(1000) / 8,
                "interests": [self._word(5) for _ in range(draw.randrange(4))],
            }
            country = draw.choice(["DE", "IT", "JP", "SE", None])
            balance = Decimal(draw.randrange(-50_000, 500_000)) / 100
            email = f"customer{number}@example.com"
            customers.append((email, name, country, born, balance, tags, json.dumps(profile)))
        self._insert("customers", "email, name, country, born, balance, tags, profile", customers)
        products = [self._product(number) for number in range(1, _PRODUCTS + 1)]
        self._insert(
            "products",
            "sku, title, origin, price, weight, volume, stock, status, picture, checksum, released, available"
            ", opens",
            products,
        )
        places = [
            (number, "Mo-Fr 9-18 ☀", f"POINT({number / 4} {48 + number / 8})") for number in range(1, 9)
        ]
        self._insert("stores", "id, `opening hours`, place", places, "(%s, %s, ST_GeomFromText(%s))")

    def _product(self, number: int) -> tuple[Any, ...]:
        draw = self._random
        return (
            f"SKU-{number:05}",
            f"{self._word(7)} „{self._word(5)}“",
            draw.choice(["Österreich", "España", "Curaçao", None]),
            Decimal(draw.randrange(100, 100_000)) / 100,
            draw.choice([None, draw.randrange(10_000) / 64]),
            draw.random() * 10 ** draw.randrange(-5, 6),
            draw.randrange(-10, 100_000),
            draw.choice(["draft", "active", "retired"]),
            draw.choice([None, draw.randbytes(draw.randrange(200))]),
            draw.randbytes(8),
            draw.choice([None, draw.randrange(1950, 2027)]),
            draw.randrange(128),
            dt.timedelta(hours=draw.randrange(-20, 100), seconds=draw.randrange(3600), milliseconds=250),
        )

    def _order(self, first: int, last: int) -> None:
        draw = self._random
        for number in range(first, last + 1):
            lines = [
                (number, line, self._sku(), draw.randrange(1, 20), Decimal(draw.randrange(100, 10_000)) / 100)
                for line in range(1, draw.randrange(2, 7))
            ]
            total = sum(price * quantity for *_rest, quantity, price in lines)
            placed = _START + dt.timedelta(minutes=number, microseconds=draw.randrange(1_000_000))
            note = draw.choice([None, "please ring twice", "a gift 🎁, no invoice"])
            order = (number, draw.randrange(1, 1000), "new", placed, total, note)
            self._connection.begin()
            self._insert("orders", "id, customer_id, state, placed, total, note", [order])
            self._insert("order_lines", "order_id, line, sku, quantity, price", lines)
            self._execute("UPDATE customers SET balance = balance - %s WHERE id = %s", (total, order[1]))
            self._connection.commit()

    def _change(self) -> None:
        self._execute("UPDATE orders SET state = 'paid' WHERE id % 2 = 0")
        self._execute("UPDATE orders SET state = 'shipped', note = NULL WHERE id % 10 = 0")
        self._execute("UPDATE products SET price = price * 1.1, stock = stock - 1 WHERE status = 'active'")
        self._execute("UPDATE products SET sku = CONCAT('OLD-', sku) WHERE status = 'retired'")
        self._execute(
            "UPDATE customers SET profile = JSON_SET(profile, '$.visits', 0, '$.seen', TRUE) WHERE id % 7 = 0"
        )
        self._execute("DELETE FROM order_lines WHERE quantity > 17")
        self._execute("DELETE FROM customers WHERE id > %s", (_CUSTOMERS - 100,))
        self._execute("REPLACE INTO stores VALUES (3, NULL, ST_GeomFromText('POINT(-1.5 2.25)'))")
        self.changed -= 1  # the server counts a row that is replaced twice, and logs one update

    def _alter(self) -> None:
        self._execute("ALTER TABLE customers ADD COLUMN points INT NOT NULL DEFAULT 100 AFTER country")
        self._execute("UPDATE customers SET points = points + id WHERE id <= 500")
        self._execute(
            "INSERT INTO customers (email, name, points) VALUES ('late@example.com', 'Late Comer', 7)"
        )

    def _roll_back(self) -> None:
        before = self.changed
        self._connection.begin()
        self._execute("UPDATE customers SET balance = 0 WHERE id <= 1000")
        self._execute("DELETE FROM products WHERE sku LIKE 'SKU-%'")
        self._insert("stores", "id, place", [(200, "POINT(0 0)")], "(%s, ST_GeomFromText(%s))")
        self._connection.rollback()
        self.rolled_back, self.changed = self.changed - before, before

    def _insert_many(self) -> None:
        draw = self._random
        reasons = ["delivery", "sale", "stocktaking", None]
        rows = [
            (
                number,
                self._sku(),
                draw.randrange(-50, 500),
                _START + dt.timedelta(seconds=number),
                draw.choice(reasons),
            )
            for number in range(1, self._large_rows + 1)
        ]
        self._connection.begin()
        self._insert("stock_moves", "id, sku, quantity, moved, reason", rows)
        self._connection.commit()

    def _view(self) -> None:
        draw = self._random
        views = []
        for number in range(_VIEWS):
            seen = _START + dt.timedelta(seconds=number, milliseconds=draw.randrange(1000))
            page = draw.choice(["/", "/cart", "/search", f"/product/{self._sku()}"])
            views.append((self._word(12), page, seen, draw.choice([None, draw.randrange(5000)])))
        self._insert("page_views", "visitor, page, seen, milliseconds", views + views[:300])
        self._execute("UPDATE page_views SET milliseconds = 1 WHERE page = '/cart'")
        self._execute("DELETE FROM page_views WHERE page = '/search' LIMIT 200")

    def _finish(self) -> None:
        self._execute(f"UPDATE {MARKER_TABLE} SET state = 'finished' WHERE id = 1")  # noqa: S608 - our own name

    def _sku(self) -> str:
        return f"SKU-{self._random.randrange(1, _PRODUCTS + 1):05}"

    def _word(self, length: int) -> str:
        return "".join(self._random.choices(string.ascii_lowercase, k=length))

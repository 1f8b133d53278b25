# ruff: noqa: INP001 - a script, no package
"""Write millrace/binlog/columns/collations.tsv from running servers: which name each collation id has.

Usage::

    python tools/generate_collations.py mysql://root@127.0.0.1:3306 mysql://root@127.0.0.1:3307

The first server is a MySQL, the second a MariaDB (11.4 or newer, which lists the ids of all its collations).
The collations that MySQL 8.0.30 added are entered by hand, below.
"""

import sys
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

OUTPUT = Path(__file__).parent.parent / "millrace" / "binlog" / "columns" / "collations.tsv"

SINCE_8_0_30 = {
    310 + 2 * index + sensitive: f"utf8mb4_{language}_0900_{'as_cs' if sensitive else 'ai_ci'}"
    for index, language in enumerate(("nb", "nn", "sr_latn", "bs", "bg", "gl", "mn_cyrl"))
    for sensitive in (0, 1)
}
"""What the manual of MySQL 8.0 lists and older servers do not have."""

QUERIES = (
    "SELECT id, collation_name FROM information_schema.COLLATIONS",
    "SELECT id, full_collation_name FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY",
)


def names(url: str, query: str) -> dict[int, str]:
    """Ask a server for its collations."""
    parts = urlsplit(url)
    with (
        pymysql.connect(
            host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or ""
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(query)
        return {int(number): name for number, name in cursor.fetchall() if number}


def write(mysql: dict[int, str], mariadb: dict[int, str]) -> None:
    """Write one line per id: id, name in MySQL, name in MariaDB; empty where a server has no such id."""
    mysql = {**SINCE_8_0_30, **mysql}
    lines = [
        f"{number}\t{mysql.get(number, '')}\t{mariadb.get(number, '')}\n"
        for number in sorted(mysql | mariadb)
    ]
    OUTPUT.write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write(*(names(url, query) for url, query in zip(sys.argv[1:], QUERIES, strict=True)))

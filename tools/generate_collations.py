# ruff: noqa: INP001 - a script, no package
"""Write millrace/binlog/columns/collations.tsv from running servers: the character set and names of each id.

Usage, with the newest MySQL and the newest MariaDB (``tests/servers/databases.py`` fetches some)::

    python tools/generate_collations.py mysql://root@127.0.0.1:3306 mysql://root@127.0.0.1:3307

MariaDB must be 11.4 or newer, which lists the ids of all its collations.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pymysql

OUTPUT = Path(__file__).parent.parent / "millrace" / "binlog" / "columns" / "collations.tsv"

IN_MYSQL = "SELECT ID, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLLATIONS"
IN_MARIADB = (
    "SELECT ID, CHARACTER_SET_NAME, FULL_COLLATION_NAME"
    " FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY WHERE ID IS NOT NULL"
)


def connect(url: str) -> "pymysql.connections.Connection[pymysql.cursors.Cursor]":
    """Connect to ``mysql://user:password@host:port``."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or ""
    )


def collations(
    connection: "pymysql.connections.Connection[pymysql.cursors.Cursor]",
) -> tuple[str, dict[int, tuple[str, str]]]:
    """Return a server's version, and the character set and name of each of its collations."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        version = str(cursor.fetchall()[0][0]).partition(" ")[0]
        cursor.execute(IN_MARIADB if "MariaDB" in version else IN_MYSQL)
        return version, {
            int(number): ({"utf8": "utf8mb3"}.get(charset, charset), name)
            for number, charset, name in cursor.fetchall()
        }


def write(found: Mapping[str, Mapping[int, tuple[str, str]]]) -> None:
    """Write a line for each id: character set, name in MySQL and in MariaDB, empty where it has none."""
    charsets: dict[int, str] = {}
    names: tuple[dict[int, str], dict[int, str]] = {}, {}
    for version, of_server in found.items():
        for number, (charset, name) in of_server.items():
            if charsets.setdefault(number, charset) != charset:
                sys.exit(f"collation {number} has character set {charset} in {version}, elsewhere another")
            names["MariaDB" in version].setdefault(number, name)
    lines = [f"# {version}\n" for version in found]
    lines += [
        f"{number}\t{charsets[number]}\t{names[0].get(number, '')}\t{names[1].get(number, '')}\n"
        for number in sorted(charsets)
    ]
    OUTPUT.write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    write(dict(collations(connect(url)) for url in sys.argv[1:]))

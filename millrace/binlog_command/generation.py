"""Generations of mysqlbinlog and mariadb-binlog, whose texts differ."""

import re
from enum import IntEnum


class Generation(IntEnum):
    """A generation of mysqlbinlog (5…, 8…) or mariadb-binlog (10…), by the version in which its text began.

    MySQL 8.0.26 to 9.7 write the same text. Of MariaDB's programs those of 10.5.29, 10.11.19 and 11.8.6 were
    at hand, and texts that others published: of 10.1 (BEGIN), of 10.4 (``/*!`` and numbers of character sets,
    as in the text of a log of 10.2). 10.6 is 10.5 with the xid in the line of a Query.
    """

    MYSQL_5_5 = 505
    MYSQL_5_6 = 506
    MYSQL_5_7 = 507
    MYSQL_8_0 = 800
    MARIADB_10_0 = 1000
    MARIADB_10_2 = 1002
    MARIADB_10_5 = 1005
    MARIADB_10_6 = 1006
    MARIADB_10_11 = 1011

    @property
    def is_mariadb(self) -> bool:
        """True for mariadb-binlog."""
        return self >= Generation.MARIADB_10_0


_MARIADB = (
    ((10, 7), Generation.MARIADB_10_11),
    ((10, 6), Generation.MARIADB_10_6),
    ((10, 5), Generation.MARIADB_10_5),
    ((10, 2), Generation.MARIADB_10_2),
    ((0,), Generation.MARIADB_10_0),
)
_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def version_of(server_version: str) -> tuple[int, int, int]:
    """Read the three numbers of a server's version; zeros where there are none."""
    match = _NUMBERS.match(server_version)
    return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)


def generation_of(server_version: str) -> Generation:
    """Choose the generation whose text suits a log of that server: what its own program would write."""
    version = version_of(server_version)
    if "mariadb" in server_version.lower():
        return next(generation for since, generation in _MARIADB if version >= since)
    if version >= (8, 0):
        return Generation.MYSQL_8_0
    if version >= (5, 7):
        return Generation.MYSQL_5_7
    return Generation.MYSQL_5_6 if version >= (5, 6) else Generation.MYSQL_5_5

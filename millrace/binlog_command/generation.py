"""Generations of mysqlbinlog and mariadb-binlog, whose texts differ."""

import re
from enum import IntEnum

__all__ = ["Generation", "generation_of", "version_of"]


class Generation(IntEnum):
    """A generation of mysqlbinlog (5…, 8…) or mariadb-binlog (10…), by the version in which its text began.

    MySQL 8.0.26 to 9.7 write the same text.
    """

    MYSQL_5_5 = 505
    MYSQL_5_6 = 506
    MYSQL_5_7 = 507
    MYSQL_8_0 = 800
    MARIADB_10_2 = 1002
    MARIADB_10_5 = 1005
    MARIADB_10_11 = 1011

    @property
    def is_mariadb(self) -> bool:
        """True for mariadb-binlog."""
        return self >= Generation.MARIADB_10_2


_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def version_of(server_version: str) -> tuple[int, int, int]:
    """Read the three numbers of a server's version; zeros where there are none."""
    match = _NUMBERS.match(server_version)
    return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)


def generation_of(server_version: str) -> Generation:
    """Choose the generation whose text suits a log of that server: what its own program would write."""
    version = version_of(server_version)
    if "mariadb" in server_version.lower():
        if version >= (10, 7):
            return Generation.MARIADB_10_11
        return Generation.MARIADB_10_5 if version >= (10, 3) else Generation.MARIADB_10_2
    if version >= (8, 0):
        return Generation.MYSQL_8_0
    if version >= (5, 7):
        return Generation.MYSQL_5_7
    return Generation.MYSQL_5_6 if version >= (5, 6) else Generation.MYSQL_5_5

"""Generations of mysqlbinlog and mariadb-binlog, whose texts differ."""

from enum import IntEnum

from millrace.binlog.server_version import ServerVersion


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
    ((), Generation.MARIADB_10_0),
)


def generation_of(server_version: str) -> Generation:
    """Choose the generation whose text suits a log of that server: what its own program would write."""
    server = ServerVersion.parse(server_version)
    version = server.version
    if server.mariadb:
        return next(generation for since, generation in _MARIADB if version >= since)
    if version >= (8, 0):
        return Generation.MYSQL_8_0
    if version >= (5, 7):
        return Generation.MYSQL_5_7
    return Generation.MYSQL_5_6 if version >= (5, 6) else Generation.MYSQL_5_5

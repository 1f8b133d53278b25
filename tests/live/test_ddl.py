"""DDL made at random on each kind of server: no definition is wrong, and few are unknown."""

import os

from millrace.local import MariaDB, MySQL
from tests.ddl.check import run

COUNT = int(os.environ.get("MILLRACE_DDL_STATEMENTS", "150"))
SEED = 20


def test_definitions_are_those_of_the_server(database: MySQL | MariaDB) -> None:
    figures = run(database, COUNT, SEED)
    assert figures.wrong == []
    assert figures.unknown.total() <= COUNT // 20, figures.unknown

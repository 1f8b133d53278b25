"""DDL made at random on each kind of server: no definition is wrong, and few are unknown."""

import os

from millrace.local import MariaDB, MySQL
from tests.ddl.check import run, run_one_by_one
from tests.ddl.forms import forms

COUNT = int(os.environ.get("MILLRACE_DDL_STATEMENTS", "150"))
SEED = 20


def test_definitions_are_those_of_the_server(database: MySQL | MariaDB) -> None:
    figures = run(database, COUNT, SEED)
    assert figures.wrong == []
    assert figures.unknown.total() <= COUNT // 20, figures.unknown


def test_forms_are_those_of_the_server(database: MySQL | MariaDB) -> None:
    """It takes those that are said to be its own; and none that it takes is unknown or wrong."""
    ours = "maria" if isinstance(database, MariaDB) else "mysql"
    mine = [form.statements for form in forms() if form.server == ours]
    figures, refused = run_one_by_one(database, mine)
    assert (figures.wrong, dict(figures.unknown), refused) == ([], {}, [])
    figures, _ = run_one_by_one(database, [form.statements for form in forms() if form.server == "both"])
    assert (figures.wrong, dict(figures.unknown)) == ([], {})

"""DDL statements and what they do to definitions.

``mysql.json`` and ``mariadb.json`` hold what information_schema of a MySQL 8.0.15 and a MariaDB 11.4.5 said
after each of the statements, as far as it changed; ``tests/live/test_schema_history.py`` asks servers again.
"""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.ddl import MISSING, UNNAMED, Server, Session, State, Unknown, altered, apply
from tests.ddl.forms import Form, forms
from tests.ddl.tables import Tables as DefinedTables
from tests.ddl_statements import NOT_UNDERSTOOD, STATEMENTS
from tests.ddl_text import brief

MODES = {"ANSI_QUOTES": 0x4, "REAL_AS_FLOAT": 0x1, "ORACLE": 0x200, "NO_BACKSLASH_ESCAPES": 0x100000, "": 0}


class Tables(DefinedTables):
    """The definitions before a statement, which it can run."""

    def run(self, statement: str, session: Session) -> dict[tuple[str, str], State]:
        changes = apply(statement, session, self)
        self.put(changes)
        return changes

    def brief(self, table: str) -> str:
        return brief(self["d", table])


@pytest.mark.parametrize("server", STATEMENTS)
def test_definitions_are_those_of_the_server_after_each_statement(server: str) -> None:
    vectors = json.loads((Path(__file__).parent / f"{server}.json").read_text())
    version = Server.parse(vectors[0]["server"])
    charset = "latin1" if version.mariadb else "utf8mb4"
    tables = Tables()
    for database, default in (("ddl", charset), ("ddl_other", "utf8mb4")):
        tables[database, ""] = TableDefinition(database, "", (), charset=default)
    mode, not_null = 0, False
    unknown: set[str] = set()
    for statement, expected in zip(STATEMENTS[server], vectors[1:], strict=True):
        if statement.startswith("SET sql_mode"):
            mode = MODES[statement.split("'")[1]]
        elif statement.startswith("SET explicit_defaults"):
            not_null = statement.endswith("OFF")
        elif statement == "CALL pr()":
            statement = "CREATE TABLE IF NOT EXISTS by_procedure (a INT UNSIGNED)"  # noqa: PLW2901 - what is logged
        session = Session("ddl", mode, version, charset, timestamp_not_null=not_null)
        before = dict(tables)
        after = tables.run(statement, session)
        assert {key for key, state in after.items() if _read_otherwise(before.get(key), state)} <= altered(
            statement, session
        ) | {key for key in before if (key[0], "") in altered(statement, session)}, statement
        changes = {".".join(key): state for key, state in after.items() if key[1]}
        found = {name: brief(state) for name, state in changes.items()}
        guessed = {name for name, state in changes.items() if isinstance(state, Unknown)}
        if guessed:
            assert statement in NOT_UNDERSTOOD or guessed <= unknown, found
            unknown |= guessed
        for name in expected.keys() | found.keys():
            if name not in unknown:
                # What a server shows no change of is the same as before.
                same = expected.get(name, found.get(name))
                assert found.get(name) == same, (statement, name)
        unknown -= {name for name in found if name not in guessed}


def _read_otherwise(before: State | None, after: State) -> bool:
    """Return whether rows of a table that was there are read by something else after a statement."""

    def read(state: State) -> object:
        if not isinstance(state, TableDefinition):
            return state
        return [replace(column, default=None) for column in state.columns]

    return before is not None and before is not MISSING and read(before) != read(after)


SESSION = Session("d", 0, Server.parse("8.0.36"), "utf8mb4")
MARIADB = Session("d", 0, Server.parse("10.11.6-MariaDB-log"), "utf8mb4")
ENUM = "CREATE TABLE t (id INT UNSIGNED PRIMARY KEY, e ENUM('a','b')) CHARSET utf8mb4"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE t MODIFY e ENUM('b','a')", "e enum('b','a') utf8mb4 ['b', 'a']"),
        ("ALTER TABLE t RENAME COLUMN id TO e, RENAME COLUMN e TO id", "e int unsigned NOT NULL KEY 0"),
        ("/*!50100 ALTER TABLE t ADD x INT */", "x int"),
        ("ALTER TABLE t ADD x INT /*M!100100 UNSIGNED */", "x int"),
        ("ALTER TABLE D.T ADD x INT", None),
        ("ALTER TABLE d.t ADD x INT DEFAULT 'a /* b' COMMENT '*/ ; DROP TABLE t'", "x int"),
        ("ALTER TABLE t ADD x INT -- '\n UNSIGNED", "x int unsigned"),
    ],
)
def test_one_statement(statement: str, expected: str | None) -> None:
    tables = Tables()
    tables.run(ENUM, SESSION)
    before = tables.brief("t")
    tables.run(statement, SESSION)
    parts = tables.brief("t").split("; ")
    assert expected in parts if expected else tables.brief("t") == before


@pytest.mark.parametrize(
    ("attributes", "default"),
    [
        ("INT", None),
        ("INT DEFAULT NULL", None),
        ("INT DEFAULT -7", "-7"),
        ("DECIMAL(4,2) DEFAULT 1.5", "1.5"),
        ("BOOLEAN NOT NULL DEFAULT TRUE", "1"),
        ("VARCHAR(9) DEFAULT 'it''s'", "it's"),
        ("VARCHAR(9) DEFAULT 'NULL'", "NULL"),
        ("VARCHAR(9) DEFAULT ''", ""),
        ("BIT(4) DEFAULT b'101'", "b'101'"),
        ("BIT(4) DEFAULT B'101'", "b'101'"),
        ("VARCHAR(9) DEFAULT b'1100001'", None),
        ("BINARY(4) DEFAULT x'41'", None),
        ("VARCHAR(9) DEFAULT _latin1'x'", None),
        ("VARCHAR(9) DEFAULT ('x')", None),
        ("DATETIME DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", None),
        ("DATETIME DEFAULT NOW()", None),
        ("INT DEFAULT 1 COMMENT 'DEFAULT 2'", "1"),
        (f"VARCHAR(2000) DEFAULT '{1000 * 'x'}'", 1000 * "x"),
        (f"VARCHAR(2000) DEFAULT '{1001 * 'x'}'", None),
    ],
)
def test_defaults(attributes: str, default: str | None) -> None:
    """In each statement that can have one, and after statements that leave it or take it away."""
    tables = Tables()

    def now(statement: str, name: str = "c") -> str | None:
        tables.run(statement, SESSION)
        state = tables["d", "t"]
        assert isinstance(state, TableDefinition), state
        return next(column.default for column in state.columns if column.name == name)

    assert now(f"CREATE TABLE t (id INT PRIMARY KEY, c {attributes}) CHARSET utf8mb4") == default
    assert now("ALTER TABLE t RENAME COLUMN c TO e, ADD f INT", "e") == default
    assert now("ALTER TABLE t CHANGE e c INT", "c") is None
    assert now(f"ALTER TABLE t MODIFY c {attributes} FIRST") == default
    assert now("ALTER TABLE t ALTER COLUMN c DROP DEFAULT") is None
    assert now(f"ALTER TABLE t DROP c, ADD COLUMN g {attributes}", "g") == default
    tables.run("CREATE TABLE u LIKE t", SESSION)
    copy = tables["d", "u"]
    assert isinstance(copy, TableDefinition)
    assert copy.columns[-1].default == default


def test_defaults_that_are_set() -> None:
    tables = Tables()
    tables.run("CREATE TABLE t (a INT, b VARCHAR(5) CHARSET latin1, c BIT(3), d INT DEFAULT 4)", SESSION)
    tables.run(
        "ALTER TABLE t ALTER a SET DEFAULT 5, ALTER COLUMN b SET DEFAULT 'x', ALTER c SET DEFAULT b'1'",
        SESSION,
    )
    state = tables["d", "t"]
    assert isinstance(state, TableDefinition)
    assert [column.default for column in state.columns] == ["5", "x", "b'1'", "4"]
    # What is set to an expression is none of a literal, and a column that is not there changes nothing.
    tables.run("ALTER TABLE t ALTER a SET DEFAULT (1 + 1), ALTER COLUMN IF EXISTS z SET DEFAULT 1", MARIADB)
    state = tables["d", "t"]
    assert isinstance(state, TableDefinition)
    assert [column.default for column in state.columns] == [None, "x", "b'1'", "4"]


def test_a_comment_of_mariadb_is_code_to_mariadb_alone() -> None:
    tables = Tables()
    tables.run("CREATE TABLE t (a INT /*M!100100 UNSIGNED */)", MARIADB)
    assert tables.brief("t").endswith("a int(10) unsigned")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD x SOMETHING",
        "ALTER TABLE t ADD x INT NEWLY INVENTED",
        "ALTER TABLE t MODIFY gone INT",
        "ALTER TABLE t ADD e INT",
        "ALTER TABLE t ADD x VARCHAR(5) DEFAULT 1 + 1",
        "ALTER TABLE t DROP INDEX gone",
        "ALTER TABLE t ADD x ENUM('a",
        "ALTER TABLE t TRANSMOGRIFY",
        "ALTER TABLE t CONVERT TO CHARACTER SET DEFAULT",
        "CREATE TABLE t SELECT 1",
        "CREATE TABLE t LIKE gone",
        "ALTER TABLE t ADD x INT /* no end",
        "RENAME TABLE gone TO t",
    ],
)
def test_what_is_not_understood_makes_its_table_unknown_and_no_other(statement: str) -> None:
    tables = Tables()
    tables.run(ENUM, SESSION)
    tables.run("CREATE TABLE other LIKE t", SESSION)
    changes = tables.run(statement, SESSION)
    unknown = {key for key, state in changes.items() if isinstance(state, Unknown)}
    assert unknown - {UNNAMED} == {("d", "t")}
    assert tables.brief("other").startswith("[utf8mb4]")


@pytest.mark.parametrize(
    ("statement", "may"),
    [
        ("ALTER TABLE t MODIFY gone INT", False),
        ("ALTER TABLE t MODIFY gone INT, CONVERT PARTITION p TO TABLE x", True),
        ("ALTER TABLE t ADD x INT /* no end", True),
        ("CREATE TABLE x (a INT) /* no end", False),
        ("CREATE TABLE x SELECT 1", False),
    ],
)
def test_what_is_not_understood_may_have_made_tables_that_nobody_knows_of(statement: str, may: bool) -> None:
    tables = Tables()
    tables.run("CREATE TABLE t (a INT)", MARIADB)
    changes = tables.run(statement, MARIADB)
    assert changes
    assert (UNNAMED in changes) is may
    tables.run("DROP TABLE t", SESSION)
    tables.run(ENUM, SESSION)
    assert tables.brief("t").startswith("[utf8mb4]")


def test_a_table_that_is_not_known_is_not_made_up() -> None:
    tables = Tables()
    for statement in (
        "ALTER TABLE t ADD x INT",
        "RENAME TABLE t TO u",
        "DROP TABLE t",
        "TRUNCATE t",
        "GRANT",
    ):
        assert tables.run(statement, SESSION) == {}


def test_a_character_set_that_is_not_known_is_not_guessed() -> None:
    tables = Tables()
    tables.run("CREATE TABLE t (a VARCHAR(5))", SESSION)
    assert isinstance(tables["d", "t"], Unknown)
    tables.run("CREATE TABLE u (a INT, b VARCHAR(5) CHARSET latin1, c CHAR(2) COLLATE utf8mb4_bin)", SESSION)
    assert tables.brief("u") == "[]; a int; b varchar(5) latin1; c char(2) utf8mb4"
    tables.run("CREATE DATABASE d", SESSION)
    tables.run("CREATE TABLE v (a VARCHAR(5))", SESSION)
    assert tables.brief("v") == "[utf8mb4]; a varchar(5) utf8mb4"


def test_names_that_do_not_differ_by_case() -> None:
    tables = Tables()
    session = Session("D", 0, SESSION.server, lower_case_names=True)
    tables.run("CREATE TABLE T (A INT)", session)
    tables.run("ALTER TABLE d.t ADD b INT", session)
    assert tables.brief("t") == "[]; A int; b int"


def test_names_are_swapped_with_their_definitions() -> None:
    tables = Tables()
    for statement in (
        "CREATE TABLE t (a INT)",
        "CREATE TABLE _t_gho (a INT, b INT UNSIGNED)",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
    ):
        tables.run(statement, SESSION)
    assert tables.brief("t") == "[]; a int; b int unsigned"
    assert tables.brief("_t_del") == "[]; a int"
    assert tables["d", "_t_gho"] is MISSING
    assert tables["d", "t"].table == "t"  # type: ignore[union-attr]  # a definition


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (["RENAME COLUMN a TO x"], "x<a b"),
        (["CHANGE a x BIGINT"], "x<a b"),
        (["CHANGE COLUMN IF EXISTS a x INT FIRST"], "x<a b"),
        (["CHANGE a A INT"], "A<a b"),
        (["MODIFY a BIGINT"], "a b"),
        (["RENAME COLUMN a TO x", "ADD c INT", "MODIFY x BIGINT"], "x<a b c"),
        (["RENAME COLUMN a TO x", "CONVERT TO CHARACTER SET latin1", "ADD INDEX (x)"], "x<a b"),
        (["RENAME COLUMN a TO x", "RENAME COLUMN x TO y", "CHANGE y z INT"], "z<a,x,y b"),
        (["RENAME COLUMN a TO x", "RENAME COLUMN x TO a"], "a<x b"),
        # A record may have the new name for another column, or both names.
        (["RENAME COLUMN a TO b, RENAME COLUMN b TO a"], "b a -a -b"),
        (["CHANGE a b INT, CHANGE b a INT"], "b a -a -b"),
        (["DROP b", "RENAME COLUMN a TO b"], "b -b -a"),
        (["DROP b, RENAME COLUMN a TO b"], "b -a -b"),
        (["RENAME COLUMN a TO x", "RENAME COLUMN b TO a"], "x a -a -b"),
        (["RENAME COLUMN a TO x", "ADD a INT"], "x b a -a"),
        (["RENAME COLUMN a TO x, ADD a INT"], "x b a -a"),
        (["RENAME COLUMN a TO x", "ADD a INT", "DROP a"], "x b -a"),
        (["RENAME COLUMN a TO x", "ADD a INT", "DROP a", "RENAME COLUMN x TO a"], "a b -a -x"),
        (["RENAME COLUMN a TO x", "DROP x", "ADD x INT"], "b x -a -x"),
        (["RENAME COLUMN a TO x", "DROP x, ADD x INT FIRST"], "x b -a -x"),
        (["DROP b", "ADD b INT"], "a b -b"),
        # Nor is a name that was another column's an alias later.
        (["DROP b", "RENAME COLUMN a TO b", "RENAME COLUMN b TO c"], "c -b -a"),
        (["RENAME COLUMN a TO c", "DROP b, RENAME COLUMN c TO b"], "b -a -c -b"),
        (["RENAME COLUMN a TO b, RENAME COLUMN b TO a", "CHANGE a c INT"], "b c -a -b"),
        (["RENAME COLUMN a TO x", "ADD a INT", "RENAME COLUMN a TO y", "CHANGE y z INT"], "x b z<y -a"),
        (["DROP b", "ADD b INT", "RENAME COLUMN b TO c"], "a c -b"),
        (["DROP b, ADD b INT", "RENAME COLUMN b TO c", "RENAME COLUMN c TO b"], "a b -b -c"),
    ],
)
def test_former_names_of_columns(statements: list[str], expected: str) -> None:
    """As they are, and after each state was written down; names that are gone have a minus."""
    tables = Tables()
    tables.run("CREATE TABLE t (a INT, b INT)", SESSION)
    for statement in statements:
        tables.run(f"ALTER TABLE t {statement}", SESSION)
        state = tables["d", "t"]
        assert isinstance(state, TableDefinition)
        tables["d", "t"] = TableDefinition.from_dict(state.to_dict())
    assert _names(tables["d", "t"]) == expected


_NAMES = st.sampled_from("abcd")
_OPERATIONS = st.one_of(
    st.builds("RENAME COLUMN {} TO {}".format, _NAMES, _NAMES),
    st.builds("ADD {} INT DEFAULT N".format, _NAMES),
    st.builds("DROP {}".format, _NAMES),
)
_STATEMENTS = st.one_of(
    st.lists(_OPERATIONS, min_size=1, max_size=3).map(lambda each: f"ALTER TABLE t {', '.join(each)}"),
    st.lists(_NAMES, min_size=1, max_size=3, unique=True).map(
        lambda each: f"DROP TABLE t; CREATE TABLE t ({', '.join(f'{name} INT DEFAULT N' for name in each)})"
    ),
)


@given(st.lists(_STATEMENTS, max_size=12))
def test_aliases_find_no_other_column(statements: list[str]) -> None:
    """Whatever record is read by the newest schema: a field has the values of its own column, or none.

    Avro refuses a record in which a field is there by its name and by an alias, or by two. A column is known
    by its default.
    """
    tables, numbers = Tables(), itertools.count()
    records: list[dict[str, str | None]] = []
    for statement in ["CREATE TABLE t (a INT DEFAULT N, b INT DEFAULT N)", *statements]:
        before = tables["d", "t"] if records else None
        for each in statement.split("; "):
            tables.run(re.sub(r"\bN\b", lambda _: str(next(numbers)), each), SESSION)
        state = tables["d", "t"]
        if not isinstance(state, TableDefinition) or len({one.name for one in state.columns}) < len(
            state.columns
        ):
            assert before is not None
            tables["d", "t"] = before  # the server refuses the statement
            continue
        records.append({column.name: column.default for column in state.columns})
        for column in state.columns:
            for record in records:
                assert len(column.names & record.keys()) <= 1
                for former in column.former:
                    assert record.get(former.name, column.default) == column.default
        every = [name for column in state.columns for name in column.names]
        assert len(every) == len(set(every))


def _names(state: State) -> str:
    assert isinstance(state, TableDefinition)
    columns = [
        "<".join(filter(None, (one.name, ",".join(each.name for each in one.former))))
        for one in state.columns
    ]
    return " ".join([*columns, *(f"-{name}" for name in state.gone)])


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("CREATE OR REPLACE TABLE t (x INT)", "x -b -a -x"),
        ("CREATE OR REPLACE TABLE t LIKE o", "x -b -a"),
        ("RENAME TABLE t TO o2, o TO t", "x -b -a"),
        ("RENAME TABLE t TO o2, o2 TO t", "x<a -b"),
        ("CREATE TABLE l LIKE t; RENAME TABLE t TO o2, l TO t", "x<a -b"),  # as gh-ost does it
        ("CREATE TABLE l (x INT); RENAME TABLE l TO t", "x -b -a"),
        ("CREATE TABLE l (x INT); ALTER TABLE l RENAME COLUMN x TO y; RENAME TABLE l TO t", "y<x -b -a"),
        ("CREATE TABLE l (b INT); ALTER TABLE l RENAME COLUMN b TO y; RENAME TABLE l TO t", "y -b -a -x"),
        ("DROP TABLE t; CREATE TABLE t (x INT)", "x -b -a -x"),
        ("DROP TABLE t; CREATE TABLE t (x INT); ALTER TABLE t CHANGE x y INT, ADD x INT", "y x -b -a -x"),
        ("DROP DATABASE d; CREATE TABLE t (a INT); ALTER TABLE t CHANGE a y INT", "y -b -a -x"),
        ("ALTER TABLE t FROBNICATE; DROP TABLE t; CREATE TABLE t (x INT)", "x -b -a -x"),
    ],
)
def test_former_names_of_a_table_that_is_replaced(statement: str, expected: str) -> None:
    tables = Tables()
    tables.run("CREATE TABLE o (x INT)", SESSION)
    tables.run("CREATE TABLE t (a INT, b INT)", SESSION)
    tables.run("ALTER TABLE t DROP b, RENAME COLUMN a TO x", SESSION)
    for each in statement.split("; "):
        tables.run(each, SESSION)
    assert _names(tables["d", "t"]) == expected


def test_a_table_comes_in_the_place_of_one_whose_records_have_both_names() -> None:
    tables = Tables()
    tables.run("CREATE TABLE t (a INT, b INT)", SESSION)
    tables.run("CREATE TABLE l (a INT)", SESSION)
    tables.run("ALTER TABLE l CHANGE a b INT", SESSION)
    tables.run("RENAME TABLE t TO o, l TO t", SESSION)
    assert _names(tables["d", "t"]) == "b -a"


def test_a_column_that_is_renamed_again_and_again() -> None:
    tables = Tables()
    tables.run("CREATE TABLE t (c0 INT)", SESSION)
    for number in range(300):
        tables.run(f"ALTER TABLE t RENAME COLUMN c{number} TO c{number + 1}", SESSION)
    state = tables["d", "t"]
    assert isinstance(state, TableDefinition)
    assert [each.name for each in state.columns[0].former] == [f"c{number}" for number in range(290, 300)]
    assert state.gone == tuple(f"c{number}" for number in range(190, 290))


def test_a_column_is_a_place_until_it_moves() -> None:
    """As MySQL has it; MariaDB refuses the statement."""
    tables = Tables()
    tables.run("CREATE TABLE t (a INT, b INT, c INT)", SESSION)
    tables.run("ALTER TABLE t ADD d INT AFTER b, CHANGE b bb INT FIRST, MODIFY c INT AFTER bb", SESSION)
    assert isinstance(tables["d", "t"], Unknown)  # there is no b any more
    tables.run("CREATE OR REPLACE TABLE t (a INT, b INT, c INT)", SESSION)
    tables.run("ALTER TABLE t ADD d INT AFTER b, MODIFY b INT FIRST, MODIFY c INT AFTER b", SESSION)
    assert tables.brief("t") == "[]; b int; c int; a int; d int"


def test_the_key_that_the_server_adds_stays_first() -> None:
    """Tried on MySQL 9.7.4: also where sql_generate_invisible_primary_key is off by then."""
    session = replace(SESSION, server=Server(version=(9, 7, 4)))
    tables = Tables()
    tables.run(
        "CREATE TABLE t (my_row_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT /*!80023 INVISIBLE */, a INT, "
        "PRIMARY KEY (my_row_id))",
        session,
    )
    tables.run("ALTER TABLE t ADD b BIGINT UNSIGNED FIRST, MODIFY a INT FIRST", session)
    key = "my_row_id bigint unsigned NOT NULL HIDDEN KEY 0"
    assert tables.brief("t") == f"[]; {key}; a int; b bigint unsigned"
    tables.run("ALTER TABLE t ALTER my_row_id SET VISIBLE, ADD c INT FIRST", session)
    tables.run("ALTER TABLE t ADD d INT FIRST", session)
    assert tables.brief("t") == f"[]; d int; {key.replace(' HIDDEN', '')}; c int; a int; b bigint unsigned"


def test_a_sequence_of_another_type_is_not_guessed() -> None:
    """From MariaDB 11.5 on."""
    tables = Tables()
    tables.run("CREATE SEQUENCE s AS BIGINT UNSIGNED START WITH 9223372036854775808", MARIADB)
    assert isinstance(tables["d", "s"], Unknown)
    tables.run("CREATE OR REPLACE SEQUENCE s START WITH 5", MARIADB)
    assert isinstance(tables["d", "s"], TableDefinition)
    tables.run("ALTER SEQUENCE s INCREMENT 5", MARIADB)
    assert isinstance(tables["d", "s"], TableDefinition)
    tables.run("ALTER SEQUENCE IF EXISTS s AS INT UNSIGNED", MARIADB)
    assert isinstance(tables["d", "s"], Unknown)


def test_a_prefix_of_a_whole_column_is_none() -> None:
    tables = Tables()
    tables.run("CREATE TABLE t (a BINARY(5) NOT NULL, UNIQUE u (a(5)))", SESSION)
    assert tables.brief("t") == "[]; a binary(5) NOT NULL; UNIQUE u a(0)"
    tables.run("ALTER TABLE t MODIFY a BINARY(6) NOT NULL", SESSION)
    assert tables.brief("t") == "[]; a binary(6) NOT NULL; UNIQUE u a(0)"


def test_columns_of_a_versioned_table_come_before_those_of_its_period() -> None:
    tables = Tables()
    tables.run("CREATE TABLE t (a INT PRIMARY KEY) WITH SYSTEM VERSIONING", MARIADB)
    tables.run("ALTER TABLE t ADD b INT", MARIADB)
    definition = tables["d", "t"]
    assert isinstance(definition, TableDefinition)
    assert [column.name for column in definition.columns] == ["a", "b", "row_start", "row_end"]
    assert definition.key == ("a", "row_end")
    assert [column.ordinal for column in definition.columns] == [0, 1, 2, 3]
    assert isinstance(definition.columns[0], ColumnDefinition)


@pytest.mark.parametrize("form", list(forms()))
def test_as_servers_read_it(form: Form) -> None:
    """``tests/live/test_ddl.py`` asks servers."""
    for server, session in (("mysql", SESSION), ("maria", MARIADB)):
        if form.server not in (server, "both"):
            continue
        tables = Tables()
        tables["d", ""] = TableDefinition("d", "", (), charset="utf8mb4")
        for statement in form.statements:
            tables.run(statement, session)
        without_widths = re.sub(r"(bigint|int|year)\((?:20|11|4)\)", r"\1", tables.brief("t"))
        assert without_widths.removeprefix("[utf8mb4]; ") == form.expected


def test_a_backslash_in_a_name_in_double_quotes() -> None:
    tables = Tables()
    tables["d", ""] = TableDefinition("d", "", (), charset="utf8mb4")
    tables.run('CREATE TABLE t (id INT, "x\\" INT) # " int)', replace(SESSION, sql_mode=MODES["ANSI_QUOTES"]))
    assert tables.brief("t") == "[utf8mb4]; id int; x\\ int"


def test_a_statement_that_ended_with_an_error() -> None:
    tables = Tables()
    tables.run(ENUM, SESSION)
    tables.run("ALTER TABLE t ADD b INT", replace(SESSION, failed=True))
    assert isinstance(tables["d", "t"], Unknown)


def test_like_a_table_that_may_be_temporary() -> None:
    tables = Tables()
    tables.run(ENUM, SESSION)
    tables.run("CREATE TABLE u LIKE t", replace(SESSION, uses_temporary=True))
    assert isinstance(tables["d", "u"], Unknown)


HASHED = """
CREATE TABLE t (a TEXT, UNIQUE (a));                                              UNIQUE a a(0) HASHED
CREATE TABLE t (a TEXT, UNIQUE (a(5)));                                           UNIQUE a a(5)
CREATE TABLE t (a TEXT, UNIQUE (a(800)));                                         UNIQUE a a(800) HASHED
CREATE TABLE t (a VARCHAR(768), UNIQUE (a));                                      UNIQUE a a(0)
CREATE TABLE t (a VARCHAR(768), b INT, UNIQUE (a, b));                            UNIQUE a a(0) b(0) HASHED
CREATE TABLE t (a VARCHAR(768) CHARSET latin1, b INT, UNIQUE (a, b));             UNIQUE a a(0) b(0)
CREATE TABLE t (a VARCHAR(251), UNIQUE (a)) ENGINE=MyISAM;                        UNIQUE a a(0) HASHED
CREATE TABLE t (a INT, UNIQUE (a) USING HASH);                                    UNIQUE a a(0) HASHED
CREATE TABLE t (a INT, UNIQUE USING HASH (a)) ENGINE=MEMORY;                      UNIQUE a a(0)
CREATE TABLE t (a INT, UNIQUE (a) USING HASH); ALTER TABLE t ADD b INT;           UNIQUE a a(0)
CREATE TABLE t (a INT, UNIQUE (a) USING HASH); ALTER TABLE t COMMENT 'x';         UNIQUE a a(0)
CREATE TABLE t (a INT, UNIQUE (a) USING HASH); ALTER TABLE t FORCE, LOCK=SHARED;  UNIQUE a a(0)
CREATE TABLE t (a INT, UNIQUE (a) USING HASH); ALTER TABLE t LOCK=SHARED;         UNIQUE a a(0) HASHED
CREATE TABLE u (a INT, UNIQUE (a) USING HASH); ALTER TABLE u RENAME t;            UNIQUE a a(0) HASHED
CREATE TABLE t (a INT, UNIQUE (a) USING HASH); ALTER TABLE t DROP IF EXISTS b;    UNIQUE a a(0) HASHED
CREATE TABLE t (a TEXT, UNIQUE (a)); ALTER TABLE t MODIFY a VARCHAR(10);          UNIQUE a a(0)
CREATE TABLE t (a VARCHAR(10), UNIQUE (a)); ALTER TABLE t MODIFY a TEXT;          UNIQUE a a(0) HASHED
CREATE TABLE t (a INT, UNIQUE (a)); ALTER TABLE t DROP a, ADD a VARCHAR(10);      UNIQUE a a(4)
CREATE TABLE t (a DATETIME(3), UNIQUE (a)); ALTER TABLE t DROP a, ADD a TEXT;     UNIQUE a a(7)
CREATE TABLE t (a DECIMAL(10,2), UNIQUE (a)); ALTER TABLE t DROP a, ADD a BLOB;   UNIQUE a a(5)
CREATE TABLE t (a ENUM('x'), UNIQUE (a)); ALTER TABLE t DROP a, ADD a BLOB;       UNIQUE a a(0) HASHED
CREATE TABLE t (a UUID, UNIQUE (a)); ALTER TABLE t DROP a, ADD a CHAR(20);        UNIQUE a a(16)
CREATE TABLE t (a POINT NOT NULL, UNIQUE (a));                                    UNIQUE a a(25)
CREATE TABLE t (a VARCHAR(9), UNIQUE (a(4))); ALTER TABLE t MODIFY a VARCHAR(2);  UNIQUE a a(0)
CREATE TABLE t (a BIT(0));                                                        a bit(1)
"""


@pytest.mark.parametrize("case", HASHED.strip().splitlines())
def test_prefixes_and_hashes_of_unique_keys(case: str) -> None:
    """As MariaDB 11.8.9 shows them."""
    *statements, expected = case.split(";")
    tables = Tables()
    tables["d", ""] = TableDefinition("d", "", (), charset="utf8mb4")
    for statement in statements:
        tables.run(statement.strip(), Session("d", server=Server(mariadb=True, version=(11, 8, 9))))
    assert tables.brief("t").endswith("; " + expected.strip())


CONVERTED = """
ENUM('x', 'ä')     utf8mb4  latin1   enum('x','Ã¤')
SET('a b', 'ж')    utf8mb4  gbk      set('a b','卸')
ENUM('x', 'ä')     utf8mb3  utf8mb4  enum('x','ä')
ENUM('ä', 'x')     latin1   utf8mb4  enum('','x')        enum('?','x')
ENUM('ä')          latin1   utf8mb3  unknown
ENUM('zed', 'ab')  utf8mb4  ucs2     enum('穥','慢')     enum('穥?','慢')
ENUM('x')          utf8mb4  utf16    enum('')            enum('?')
SET('a b')         latin1   utf16le  set('\u2061')       set('\u2061?')
ENUM('ab')         latin1   utf32    enum('')            enum('??')
ENUM('xä')         utf8mb4  ascii    unknown             enum('x??')
ENUM('xä')         latin1   utf8mb4  unknown
ENUM('日')         gbk      latin1   unknown
ENUM('x')          ucs2     utf8mb4  enum('\\0x')
ENUM('日')         ucs2     utf8mb4  unknown
ENUM('x y')        gbk      utf8mb4  enum('x y')
ENUM('?')          latin1   ascii    unknown
"""
"""What CONVERT TO makes of lists on MySQL 8.0.15 and 9.7.4, and on MariaDB 11.8.9 where that differs."""


@pytest.mark.parametrize("case", CONVERTED.strip().splitlines())
def test_members_that_get_another_character_set(case: str) -> None:
    """Servers keep their bytes, and show what they are in the other; what is not certain is unknown."""
    written, before, after, *shown = re.split(r" {2,}", case)
    for server, expected in ((SESSION, shown[0]), (MARIADB, shown[-1])):
        tables = Tables()
        tables.run(f"CREATE TABLE t (a {written}) CHARSET {before}", server)
        tables.run(f"ALTER TABLE t CONVERT TO CHARACTER SET {after}", server)
        assert ("unknown: " if expected == "unknown" else f"; a {expected} {after}") in tables.brief("t")


@pytest.mark.parametrize(
    ("alteration", "expected"),
    [
        ("CONVERT TO CHARACTER SET gbk, CHARSET cp1251", "[cp1251]; a varchar(5) gbk"),
        ("CHARSET cp1251, CONVERT TO CHARACTER SET gbk", "[cp1251]; a varchar(5) gbk"),
        (
            "CONVERT TO CHARACTER SET gbk, CHARSET cp1251, ADD b CHAR(5)",
            "[cp1251]; a varchar(5) gbk; b char(5) gbk",
        ),
        (
            "ADD b NCHAR(5), ADD c JSON, CONVERT TO CHARACTER SET cp1251",
            "[cp1251]; a varchar(5) cp1251; b char(5) cp1251; c longtext cp1251",
        ),
    ],
)
def test_a_table_that_is_converted(alteration: str, expected: str) -> None:
    """As MariaDB 11.8.9 shows it."""
    tables = Tables()
    session = Session("d", server=Server(mariadb=True, version=(11, 8, 9)))
    tables.run("CREATE TABLE t (a VARCHAR(5) CHARSET latin1) CHARSET utf8mb4", session)
    tables.run(f"ALTER TABLE t {alteration}", session)
    assert tables.brief("t") == expected


@pytest.mark.parametrize(
    ("end", "quote", "expected"),
    [
        (" ENGINE=InnoDB", "`", "unknown: "),
        (" ENGINE=InnoDB", '"', "unknown: "),
        (" ENGINE=InnoDB DEFAULT CHARSET=latin1", "`", "[latin1]; a int(11); b varchar(10) latin1"),
    ],
)
def test_a_table_that_was_created_like_a_temporary_one(end: str, quote: str, expected: str) -> None:
    """MySQL 8.0.15 and MariaDB 11.4.5 leave out the character set of the temporary table, latin1 here."""
    text = f"CREATE TABLE `t` (\n  `a` int(11) DEFAULT NULL,\n  `b` varchar(10) DEFAULT NULL\n){end}"
    text = text.replace("`", quote)
    mode = MODES["ANSI_QUOTES"] if quote == '"' else 0
    for mariadb, version in ((False, (8, 0, 15)), (True, (11, 4, 5))):
        tables = Tables()
        tables["d", ""] = TableDefinition("d", "", (), charset="utf8mb4")
        session = Session("d", mode, Server(mariadb, version))
        tables.run(text, replace(session, uses_temporary=True))
        assert tables.brief("t").startswith(expected)
        tables.run(text.replace(end, ""), session)
        assert tables.brief("t") == "[utf8mb4]; a int(11); b varchar(10) utf8mb4"
        tables.run(text.replace(end, " ENGINE=MEMORY"), session)  # like one of information_schema
        assert isinstance(tables["d", "t"], Unknown)

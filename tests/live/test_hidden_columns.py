"""Tables with columns that servers add, and with periods, which change keys.

Some are logged and shown in no catalogue: MySQL 8.0.15 does so for functional indexes, MariaDB for unique
keys that it keeps as hashes, and for the period of a system-versioned table. FTS_DOC_ID, which InnoDB adds
for FULLTEXT, is in no log. MySQL's generated primary keys are in the catalogue, unless that hides them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from millrace.avro.records import deserialize
from millrace.avro.service_state import RowMapperState
from millrace.kafka.state import read_state
from millrace.local import Kafka, MariaDB, MySQL, Registry
from tests.servers.databases import DebianMariaDB, DebianMySQL
from tests.service_process import wait_for

from .rows_world import SERVICES, RowsWorld, without_column_names
from .test_rowmapper import differences, run

TABLES = """
CREATE TABLE made (a INT UNSIGNED, id INT PRIMARY KEY, UNIQUE ((a + 1)), INDEX ((a * 3), a, (a * 4)));
CREATE TABLE searched (id INT PRIMARY KEY, words TEXT);
ALTER TABLE searched ADD FULLTEXT (words), ADD n INT;
CREATE TABLE late (b VARCHAR(5), a INT UNSIGNED);
CREATE INDEX x ON late ((a + 1));
ALTER TABLE late ADD COLUMN id INT NOT NULL, ADD PRIMARY KEY (id), ADD COLUMN first INT FIRST;
ALTER TABLE late RENAME INDEX x TO y, ADD COLUMN last INT;
"""
ROWS = """
INSERT INTO made (id, a) VALUES (1, 3), (2, 4), (3, 30);
UPDATE made SET a = 7 WHERE id = 1;
DELETE FROM made WHERE id = 2;
INSERT INTO searched VALUES (1, 'some words', 7);
UPDATE searched SET words = 'other words', n = 8;
INSERT INTO late (id, a, b, first, last) VALUES (1, 3, 'b', 7, 8), (2, NULL, NULL, NULL, NULL);
UPDATE late SET last = 9 WHERE id = 1;
"""
NAMES = {"made": {"a", "id"}, "searched": {"id", "words", "n"}, "late": {"first", "id", "a", "b", "last"}}


@pytest.fixture
def world(
    kafka: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> Iterator[RowsWorld]:
    with RowsWorld(kafka, registry, mysql, source_name, tmp_path).with_database() as made:
        made.environment["MILLRACE_SNAPSHOT_TABLES"] = f"{made.database}.*"
        yield made


def take(world: RowsWorld) -> None:
    with world.service("snapshot") as process:
        process.wait(timeout=180)
        assert process.returncode == 0, world.log("snapshot")


def test_hidden_columns_are_in_no_row(world: RowsWorld) -> None:
    """In streamed rows, and in those of a snapshot."""
    with world.service("run"):
        world.wait_for_start()
        run(world, TABLES, ROWS)
        world.wait_for_row("late", 3)
        take(world)
        world.wait_for_row("late", 5)
        for table, names in NAMES.items():
            for row in world.rows(table):
                for image in (row["before"], row["after"]):
                    assert image is None or image.keys() == names
                assert not row["before_missing"]
                assert not row["after_missing"]
        wait_for(lambda: not differences(world), None, lambda: str(differences(world)))


def test_a_table_that_waits_says_why(world: RowsWorld) -> None:
    """Without the names of columns nobody knows which of them are hidden."""
    logs_hidden = world.server.query("SELECT VERSION()")[0][0].startswith("8.0.15")
    with without_column_names(world.server), world.services(*SERVICES):
        world.wait_for_start()
        run(world, TABLES, "CREATE TABLE other (id INT PRIMARY KEY)", ROWS, "INSERT INTO other VALUES (1)")
        world.wait_for_row("other")
        if not logs_hidden:
            wait_for(lambda: not differences(world), None, lambda: str(differences(world)))
            return
    state = read_state(world.settings, world.source, "rowmapper")
    assert state is not None
    assert state.value is not None
    reasons = {each.table: each.error for each in RowMapperState.from_bytes(state.value).quarantined}
    assert reasons.keys() == {"made", "late"}
    for reason in reasons.values():
        assert "logs the hidden columns of functional indexes" in reason
        assert "set binlog_row_metadata=FULL, or drop these indexes" in reason


HASHED = """
CREATE TABLE texts (id INT PRIMARY KEY, t TEXT, v VARCHAR(1000) CHARSET utf8mb4, UNIQUE (t), UNIQUE (v));
CREATE TABLE unkeyed (t TEXT NOT NULL, u INT UNSIGNED, UNIQUE (t, u));
CREATE TABLE versioned (id INT PRIMARY KEY, b BLOB UNIQUE, u UUID) WITH SYSTEM VERSIONING;
CREATE TABLE chosen (id INT PRIMARY KEY, n BIGINT UNSIGNED, UNIQUE (n) USING HASH);
CREATE TABLE altered (id INT PRIMARY KEY, t VARCHAR(10), n BIGINT UNSIGNED, UNIQUE (t));
ALTER TABLE altered MODIFY t TEXT, ADD o INT UNSIGNED;
CREATE TABLE no_more LIKE texts;
ALTER TABLE no_more MODIFY t VARCHAR(20), DROP INDEX v;
"""
HASHED_ROWS = """
INSERT INTO texts VALUES (1, 'x', 'y'), (2, NULL, NULL), (3, 'z', 'z');
UPDATE texts SET t = 'other' WHERE id = 1;
DELETE FROM texts WHERE id = 2;
INSERT INTO unkeyed VALUES ('x', 4000000000), ('y', NULL);
UPDATE unkeyed SET u = 1 WHERE t = 'x';
INSERT INTO versioned VALUES (1, x'ff', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
INSERT INTO chosen VALUES (1, 18446744073709551615), (2, NULL);
INSERT INTO altered VALUES (1, 'x', 18446744073709551615, 4000000000), (2, NULL, NULL, NULL);
INSERT INTO no_more VALUES (1, 'x', 'y'), (2, NULL, NULL);
"""
HASHED_NAMES = {
    "texts": {"id", "t", "v"},
    "unkeyed": {"t", "u"},
    "versioned": {"id", "b", "u"},
    "chosen": {"id", "n"},
    "altered": {"id", "t", "n", "o"},
    "no_more": {"id", "t", "v"},
}


@pytest.mark.parametrize("named", [True, False], ids=["FULL", "NO_LOG"])
def test_hashes_of_unique_keys_are_in_no_row(
    kafka: Kafka, registry: Registry, mariadb: MariaDB, source_name: str, tmp_path: Path, *, named: bool
) -> None:
    """In rows of tables that the history followed, and of others that the catalogue has shown."""
    with RowsWorld(kafka, registry, mariadb, source_name, tmp_path).with_database() as world:
        before = "".join(line.replace("TABLE ", "TABLE read_") + ";" for line in HASHED.split(";")[:4])
        with nullcontext() if named else without_column_names(mariadb):
            run(world, before.replace("\n", ""))
            with world.service("run"):
                world.wait_for_start()
                run(world, HASHED, HASHED_ROWS, "INSERT INTO read_texts VALUES (1, 'x', 'y')")
                run(world, "INSERT INTO read_chosen VALUES (1, 7)")
                names = HASHED_NAMES | {"read_texts": {"id", "t", "v"}, "read_chosen": {"id", "n"}}
                for table in names:
                    world.wait_for_row(table)
                wait_for(lambda: not differences(world), None, lambda: str(differences(world)))
        for table, columns in names.items():
            for row in world.rows(table):
                for image in (row["before"], row["after"]):
                    assert image is None or image.keys() - {"row_start", "row_end"} == columns
                assert not row["before_missing"]
                assert not row["after_missing"]


CHANGED = "INSERT INTO {t} (id, x) VALUES (1, 1), (2, 2), (3, 3); UPDATE {t} SET x = 9 WHERE id = 1"
DELETED = f"{CHANGED}; DELETE FROM {{t}} WHERE id = 2"
NAMED_PERIOD = (
    "s {0} GENERATED ALWAYS AS ROW START, e {0} GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)"
)
PORTION = "FOR PORTION OF p FROM '2019-03-01' TO '2020-05-01'"
KEEP = "SET system_versioning_alter_history = KEEP"
GENERATED = "SET sql_generate_invisible_primary_key = ON"
CHANGED_ONE = "INSERT INTO {t} (x) VALUES (1), (1); UPDATE {t} SET x = 5 LIMIT 1; DELETE FROM {t} LIMIT 1"
APPLICATION = (
    "INSERT INTO {t} VALUES (1, '2020-01-01', '2021-01-01', 1), (2, '2020-01-01', '2021-01-01', 2); "
    f"DELETE FROM {{t}} {PORTION} WHERE id = 1; UPDATE {{t}} {PORTION} SET x = 7 WHERE id = 2"
)
OF_BOTH = {
    "words": ("CREATE TABLE {t} (id INT PRIMARY KEY, x TEXT, FULLTEXT (x))", DELETED, "id"),
    "numbered_words": (
        (
            "CREATE TABLE {t} (FTS_DOC_ID BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, id INT PRIMARY KEY, "
            "x TEXT, FULLTEXT (x), UNIQUE FTS_DOC_ID_INDEX (FTS_DOC_ID))"
        ),
        DELETED.replace("x = 9", "x = 9, FTS_DOC_ID = 100"),
        "id",
    ),
    "own_names": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, x INT, row_start INT, row_end INT, my_row_id INT, "
            "DB_ROW_HASH_1 INT, DB_TRX_ID2 INT)"
        ),
        DELETED,
        "id",
    ),
}
OF_MARIADB = {
    **OF_BOTH,
    "implied": ("CREATE TABLE {t} (id INT PRIMARY KEY, x INT) WITH SYSTEM VERSIONING", DELETED, "id row_end"),
    "unkeyed": ("CREATE TABLE {t} (id INT, x INT) WITH SYSTEM VERSIONING", DELETED, ""),
    "named": (
        (
            f"CREATE TABLE {{t}} (id INT PRIMARY KEY, x INT, {NAMED_PERIOD.format('TIMESTAMP(6)')}) "
            f"WITH SYSTEM VERSIONING; {KEEP}; ALTER TABLE {{t}} ADD n INT UNSIGNED FIRST, MODIFY x BIGINT"
        ),
        DELETED,
        "id e",
    ),
    "named_in_front": (
        (
            "CREATE TABLE {t} (s TIMESTAMP(6) GENERATED ALWAYS AS ROW START INVISIBLE, e TIMESTAMP(6) "
            "GENERATED ALWAYS AS ROW END, id INT, x INT, PERIOD FOR SYSTEM_TIME (s, e), PRIMARY KEY (e, id)) "
            "WITH SYSTEM VERSIONING"
        ),
        DELETED,
        "e id",
    ),
    "named_later": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, x INT); ALTER TABLE {t} ADD s TIMESTAMP(6) GENERATED "
            "ALWAYS AS ROW START, ADD e TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, ADD PERIOD FOR "
            f"SYSTEM_TIME (s, e), ADD SYSTEM VERSIONING; {KEEP}; "
            "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (x, id)"
        ),
        DELETED,
        "x id e",
    ),
    "not_all": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, x INT WITHOUT SYSTEM VERSIONING, y INT) "
            "WITH SYSTEM VERSIONING"
        ),
        DELETED,
        "id row_end",
    ),
    "parted": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, x INT) WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME "
            "(PARTITION past HISTORY, PARTITION now CURRENT)"
        ),
        DELETED,
        "id row_end",
    ),
    "later": (
        (
            f"CREATE TABLE {{t}} (id INT PRIMARY KEY, x INT); ALTER TABLE {{t}} ADD SYSTEM VERSIONING; "
            f"{KEEP}; ALTER TABLE {{t}} ADD y INT UNSIGNED, ADD UNIQUE (x)"
        ),
        DELETED,
        "id row_end",
    ),
    "no_more": (
        (
            f"CREATE TABLE {{t}} (id INT PRIMARY KEY, x INT, {NAMED_PERIOD.format('TIMESTAMP(6)')}) "
            "WITH SYSTEM VERSIONING; SET system_versioning_alter_history = KEEP; "
            "ALTER TABLE {t} DROP SYSTEM VERSIONING, DROP PERIOD FOR SYSTEM_TIME, "
            "DROP COLUMN s, DROP COLUMN e"
        ),
        DELETED,
        "id",
    ),
    "application": (
        (
            "CREATE TABLE {t} (id INT AUTO_INCREMENT, a DATE, b DATE, x INT, PERIOD FOR p (a, b), KEY (id), "
            "PRIMARY KEY (id, a))"
        ),
        APPLICATION,
        "id a",
    ),
    "without_overlaps": (
        (
            "CREATE TABLE {t} (id INT, a DATETIME(3), b DATETIME(3), x INT, PERIOD FOR p (a, b), "
            "PRIMARY KEY (id, p WITHOUT OVERLAPS))"
        ),
        APPLICATION,
        "id b a",
    ),
    "unique_without_overlaps": (
        (
            "CREATE TABLE {t} (id INT NOT NULL, a TIMESTAMP(6), b TIMESTAMP(6), x INT, PERIOD FOR p (a, b), "
            "UNIQUE (id, p WITHOUT OVERLAPS))"
        ),
        APPLICATION,
        "id b a",
    ),
    "both_periods": (
        (
            "CREATE TABLE {t} (id INT, a DATE, b DATE, x INT, PERIOD FOR p (a, b), PRIMARY KEY (id, a)) "
            "WITH SYSTEM VERSIONING"
        ),
        APPLICATION.partition("; DELETE")[0] + "; UPDATE {t} SET x = 9 WHERE id = 1",
        "id a row_end",
    ),
    "period_later": (
        (
            "CREATE TABLE {t} (id INT, a DATE, b DATE, x INT); ALTER TABLE {t} ADD PERIOD FOR p (a, b), "
            "ADD UNIQUE (a); ALTER TABLE {t} DROP PERIOD FOR p, DROP INDEX a, ADD PRIMARY KEY (id, a)"
        ),
        APPLICATION.partition("; DELETE")[0] + "; DELETE FROM {t} WHERE id = 1",
        "id a",
    ),
    "hashed": (
        (
            "CREATE TABLE {t} (id INT PRIMARY KEY, x TEXT, v VARCHAR(3000) CHARSET utf8mb4, UNIQUE (x), "
            f"UNIQUE (v, id)) WITH SYSTEM VERSIONING; {KEEP}; ALTER TABLE {{t}} ADD n BIGINT UNSIGNED UNIQUE"
        ),
        DELETED,
        "id row_end",
    ),
    "hashed_and_named": (
        (
            f"CREATE TABLE {{t}} (id INT PRIMARY KEY, x TEXT UNIQUE, {NAMED_PERIOD.format('TIMESTAMP(6)')}) "
            "WITH SYSTEM VERSIONING"
        ),
        DELETED,
        "id e",
    ),
}
OF_MYSQL = {
    **OF_BOTH,
    "functional": (
        "CREATE TABLE {t} (x INT UNSIGNED, id INT PRIMARY KEY, UNIQUE ((x + 1)), INDEX ((x * 3), x))",
        DELETED,
        "id",
    ),
    "many_valued": (
        "CREATE TABLE {t} (id INT PRIMARY KEY, x JSON, INDEX ((CAST(x->'$.a' AS UNSIGNED ARRAY))))",
        "INSERT INTO {t} VALUES (1, '[]'), (2, NULL); UPDATE {t} SET x = '4'; DELETE FROM {t} WHERE id = 2",
        "id",
    ),
    "generated_key": (f"{GENERATED}; CREATE TABLE {{t}} (x INT)", CHANGED_ONE, "my_row_id"),
    "generated_indexed": (
        f"{GENERATED}; CREATE TABLE {{t}} (x INT UNSIGNED, w TEXT, INDEX ((x + 1)), FULLTEXT (w))",
        CHANGED_ONE,
        "my_row_id",
    ),
    "generated_altered": (
        f"{GENERATED}; CREATE TABLE {{t}} (x INT); ALTER TABLE {{t}} ADD y INT UNSIGNED FIRST, ADD KEY (y)",
        CHANGED_ONE,
        "my_row_id",
    ),
    "generated_selected": (
        f"{GENERATED}; CREATE TABLE {{t}} AS SELECT 5 AS x, 'a' AS y UNION SELECT 6, 'b'",
        CHANGED_ONE,
        "my_row_id",
    ),
    "generated_seen": (
        f"{GENERATED}; CREATE TABLE {{t}} (x INT); ALTER TABLE {{t}} ALTER COLUMN my_row_id SET VISIBLE",
        CHANGED_ONE,
        "my_row_id",
    ),
    "generated_dropped": (
        (
            f"{GENERATED}; CREATE TABLE {{t}} (x INT, y INT); SET sql_generate_invisible_primary_key = OFF; "
            "ALTER TABLE {t} DROP PRIMARY KEY, DROP COLUMN my_row_id, ADD id INT AUTO_INCREMENT PRIMARY KEY"
        ),
        CHANGED_ONE,
        "id",
    ),
}
"""How a table is made, what changes its rows, and the columns of its key, by its name."""


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (MariaDB, False),
        pytest.param(MariaDB, True, marks=pytest.mark.slow),
        pytest.param(DebianMariaDB, False, marks=pytest.mark.slow),
        pytest.param(DebianMariaDB, True, marks=pytest.mark.slow),
        pytest.param(DebianMySQL, False, marks=pytest.mark.slow),
        pytest.param(DebianMySQL, True, marks=pytest.mark.slow),
    ],
)
def test_columns_and_periods_that_servers_add(
    request: pytest.FixtureRequest,
    kafka: Kafka,
    registry: Registry,
    source_name: str,
    tmp_path: Path,
    *,
    kind: type[MySQL | MariaDB],
    named: bool,
) -> None:
    """Of tables that a snapshot and the catalogue have shown, and of others that the history followed."""
    tables = OF_MARIADB if issubclass(kind, MariaDB) else OF_MYSQL
    with ExitStack() as stack:
        server = request.getfixturevalue("mariadb") if kind is MariaDB else stack.enter_context(kind())
        world = RowsWorld(kafka, registry, server, source_name, tmp_path)
        stack.callback(world.close)
        stack.enter_context(world.with_database())
        stack.enter_context(nullcontext() if named else without_column_names(server))
        if isinstance(server, MySQL):
            server.execute("SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF")
        world.environment["MILLRACE_SNAPSHOT_TABLES"] = f"{world.database}.read_*"
        for name, (made, changes, _) in tables.items():
            run(world, f"{made}; {changes}".replace("{t}", f"read_{name}"))
        with world.service("run"):
            world.wait_for_start()
            for name, (made, changes, _) in tables.items():
                run(world, f"{made}; {changes}".replace("{t}", name))
            take(world)
            wait_for(lambda: not differences(world), None, lambda: str(differences(world)))
        for name, (_, _, key) in tables.items():
            for table in (name, f"read_{name}"):
                messages = world.messages(world.topics.table(world.database, table))
                keys = {m.key() and tuple(deserialize(world.registry, m.key())) for m in messages}
                assert keys == {tuple(key.split()) if key else None}, table

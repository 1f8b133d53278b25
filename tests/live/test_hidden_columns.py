"""Tables with columns that servers add, log, and show in no catalogue.

MySQL 8.0.15 does so for functional indexes, MariaDB for unique keys that it keeps as hashes. FTS_DOC_ID,
which InnoDB adds for FULLTEXT, is in no log.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from millrace.avro.service_state import RowMapperState
from millrace.kafka.state import read_state
from millrace.local import Kafka, MariaDB, MySQL, Registry
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

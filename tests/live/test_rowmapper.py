"""Rows from real servers to row topics: equal to the tables, once, whatever happens to the row mapper."""

import signal
import threading
import time

import pytest

from millrace.avro.records import deserialize
from millrace.avro.registry import split_wire_format
from millrace.local import MariaDB
from millrace.mysql.connection import MysqlConnection
from millrace.verify.tables import compare_tables, table_names
from tests.killed import command as killed
from tests.service_process import wait_for

from .rows_world import MYSQL_IS_SLOW, SERVICES, without_column_names


def differences(world):
    """Compare the row topics with the tables; say where they differ."""
    with MysqlConnection(world.server.root_address) as connection:
        names = table_names(connection, world.database)
        found = compare_tables(
            connection,
            world.settings,
            world.registry,
            source=world.source,
            database=world.database,
            tables=names,
        )
        return {one.table: (one.missing, one.surplus) for one in found if not one.equal}


def places(world):
    """(epoch, file, position, sub_index, row) of every record of every table."""
    found = []
    for topic in world.table_topics():
        for message in world.messages(topic):
            source = deserialize(world.registry, message.value())["source"]
            found.append((topic, *(source[part] for part in ("epoch", "file", "pos", "sub_index", "row"))))
    return found


TABLES = """
CREATE TABLE plain (id INT PRIMARY KEY, note VARCHAR(100), amount DECIMAL(12,2), at DATETIME(3),
  big BIGINT UNSIGNED);
CREATE TABLE pair (a INT, b DATE, v TEXT, PRIMARY KEY (b, a));
CREATE TABLE keyless (v VARCHAR(20), n DOUBLE);
CREATE TABLE `odd.näme` (`1st` INT PRIMARY KEY, `größe` TEXT, kind ENUM('a','ü'), flags SET('x','y'),
  bits BIT(9));
CREATE TABLE old (id INT PRIMARY KEY, v VARCHAR(20)) ENGINE=MyISAM;
CREATE TABLE done (id INT PRIMARY KEY);
"""

CHANGES = """
INSERT INTO plain VALUES (1,'one',1.50,'2024-01-02 03:04:05.678',18446744073709551615), (2,'two',-3,NULL,0),
  (3,NULL,NULL,NULL,NULL);
INSERT INTO pair VALUES (1,'2020-02-29','x'), (1,'2020-03-01','y'), (2,'2020-02-29','z');
INSERT INTO keyless VALUES ('a',1.5), ('a',1.5), ('b',NULL);
INSERT INTO `odd.näme` VALUES (1,'ein','ü','x,y',b'101'), (2,'zwei','a','',b'0');
UPDATE plain SET note='changed', amount=amount+1 WHERE id<=2;
UPDATE plain SET id=id+100 WHERE id=3;
UPDATE pair SET b='2021-01-01' WHERE a=2;
DELETE FROM pair WHERE b='2020-03-01';
DELETE FROM keyless WHERE v='a' LIMIT 1;
BEGIN; INSERT INTO plain VALUES (10,'undone',0,NULL,0); ROLLBACK;
BEGIN; INSERT INTO plain VALUES (11,'kept',0,NULL,0);
SAVEPOINT s; INSERT INTO plain VALUES (12,'undone',0,NULL,0);
INSERT INTO pair VALUES (12,'2022-01-01','undone'); ROLLBACK TO s;
INSERT INTO plain VALUES (13,'kept',0,NULL,0); COMMIT;
XA START 'one'; INSERT INTO plain (id,note) VALUES (30,'xa'); XA END 'one'; XA PREPARE 'one';
XA COMMIT 'one';
XA START 'two'; INSERT INTO plain (id,note) VALUES (31,'undone'); XA END 'two'; XA PREPARE 'two';
XA ROLLBACK 'two';
"""

ALTERED = """
ALTER TABLE plain ADD COLUMN extra VARCHAR(10) AFTER id, DROP COLUMN at;
INSERT INTO plain (id,extra,note) VALUES (20,'new','after');
UPDATE plain SET extra='x' WHERE id=1;
"""
"""Without the columns' names in the log, a table that was altered is quarantined."""

WORK = f"""{CHANGES}{ALTERED}
INSERT INTO plain (id,note) SELECT 1000+n, REPEAT('w', 90) FROM
  (WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r WHERE n<1000) SELECT n FROM r) t;
DELETE FROM plain WHERE id BETWEEN 1500 AND 1700;
CREATE TABLE gone (id INT PRIMARY KEY);
INSERT INTO gone VALUES (1);
TRUNCATE TABLE gone;
DROP TABLE gone;
INSERT INTO old VALUES (1,'stays');
"""

MIXED = """
BEGIN; INSERT INTO plain (id,note) VALUES (14,'undone'); INSERT INTO old VALUES (2,'stays'); ROLLBACK;
"""
"""MySQL refuses it where GTIDs must be consistent."""


def statements(text):
    return [statement.strip() for statement in text.split(";") if statement.strip()]


def run(world, *texts):
    connection = world.server.connect(autocommit=True, database=world.database)
    try:
        with connection.cursor() as cursor:
            for text in texts:
                for statement in statements(text):
                    cursor.execute(statement)
    finally:
        connection.close()


def test_row_topics_equal_the_tables(world):
    with world.services(*SERVICES):
        world.wait_for_start()
        mixed = MIXED if isinstance(world.server, MariaDB) else ""
        run(world, TABLES, WORK, mixed, "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
    assert differences(world) == {}
    notes = {(row["after"] or row["before"])["note"] for row in world.rows("plain")}
    assert "kept" in notes
    assert "undone" not in notes
    assert "xa" in notes
    found = places(world)
    assert len(found) == len(set(found))
    assert {row["source"]["schema_source"] for row in world.rows("plain")} == {"table_map"}
    kinds = {deserialize(world.registry, m.value())["name"] for m in world.messages(world.topics.ddl)}
    assert {"CREATE TABLE", "ALTER TABLE", "TRUNCATE TABLE"} <= kinds
    assert world.messages(world.topics.deadletter) == []


INSERTS = "INSERT INTO plain (id, note) VALUES " + ", ".join(f"({{0}}{i:03}, 'row {i}')" for i in range(200))


def write(world, stop, written):
    """Write transactions of 200 rows, one after the other, until told to stop."""
    connection = world.server.connect(autocommit=True, database=world.database)
    try:
        with connection.cursor() as cursor:
            number = 1
            while not stop.is_set():
                cursor.execute(INSERTS.replace("{0}", str(number)))
                cursor.execute(
                    f"UPDATE plain SET note = 'changed' WHERE id BETWEEN {number}000 AND {number}099"
                )
                number += 1
                written.append(number)
                time.sleep(0.1)
    finally:
        connection.close()


DEATHS = (
    ("after_fence", 1),
    ("after_produce", 350),
    ("before_commit", 2),
    ("inside_statement", 2),
    ("in_commit", 3),
    ("in_commit", 1),
    ("after_commit", 2),
)
"""Where the row mapper is killed: see tests.killed."""


def was_aborted(world):
    """Whether rows lie in the topic that no reader of committed records sees."""
    topic = world.topics.table(world.database, "plain")
    everything = world.messages(topic, isolation="read_uncommitted")
    return len(everything) > len(world.messages(topic))


@pytest.mark.slow
def test_killed_again_and_again(world):
    """kill -9 at every point of its work, and SIGTERM: no row is missing, none is there twice."""
    stop, written = threading.Event(), []
    writer = threading.Thread(target=write, args=(world, stop, written))
    with world.services("reader", "decoder"):
        world.wait_for_start()
        run(world, TABLES)
        writer.start()
        try:
            for at, nth in DEATHS:
                command = killed("rowmapper", at, nth, commit_every=100)
                with world.service("rowmapper", command=command, MILLRACE_ROWS_BUFFER_MIB="1") as process:
                    assert process.wait(240) == -signal.SIGKILL
            with world.service("rowmapper"):
                rows = len(world.rows("plain"))
                world.wait_for_row("plain", rows + 500)
        finally:
            stop.set()
            writer.join()
        run(world, "INSERT INTO done VALUES (1)")
        with world.service("rowmapper"):
            world.wait_for_row("done")
    assert differences(world) == {}
    found = places(world)
    assert len(found) == len(set(found)) == len(written) * 300 + 1
    assert was_aborted(world), "no transaction of Kafka was aborted"


@MYSQL_IS_SLOW
def test_names_from_the_catalogue(world):
    """A log without column names: they come from the server's catalogue."""
    with without_column_names(world.server):
        run(world, TABLES)
        with world.services(*SERVICES):
            world.wait_for_start()
            run(
                world,
                "INSERT INTO plain (id, note, big) VALUES (1, 'näme', 18446744073709551615);"
                "INSERT INTO `odd.näme` VALUES (1, 'ein', 'ü', 'x,y', b'101');"
                "INSERT INTO done VALUES (1)",
            )
            world.wait_for_row("done")
        assert differences(world) == {}
        (row,) = world.rows("plain")
        assert row["source"]["schema_source"] == "catalog"
        assert row["after"]["note"] == "näme"


@MYSQL_IS_SLOW
def test_a_column_that_gets_another_name(world):
    """No table map shows it: the statement does, and then what the reader reads when it connects again."""
    with without_column_names(world.server):
        run(world, TABLES)
        with world.services("decoder", "rowmapper"):
            with world.services("reader"):
                world.wait_for_start()
                run(
                    world,
                    "INSERT INTO plain (id) VALUES (1); ALTER TABLE plain CHANGE note text VARCHAR(100);"
                    "INSERT INTO plain (id) VALUES (2)",
                )
                world.wait_for_row("plain", 2)
            with world.services("reader"):
                read = world.folder / "reader.log"
                wait_for(lambda: read.read_text().count("catalogue read") >= 2, None, "the catalogue")
                run(world, "INSERT INTO plain (id) VALUES (3)")
                rows = world.wait_for_row("plain", 3)
        assert [list(row["after"])[1] for row in rows] == ["note", "text", "text"]
        assert [row["source"]["schema_source"] for row in rows][:2] == ["catalog", "history"]


DECLARED = """
CREATE TABLE {name} (id INT PRIMARY KEY, n INT NOT NULL DEFAULT '7',
  big BIGINT UNSIGNED DEFAULT 18446744073709551615, yes BOOLEAN NOT NULL DEFAULT TRUE,
  price DECIMAL(10,2) DEFAULT 1.5, f FLOAT DEFAULT 1.1, b BIT(12) DEFAULT b'101', y YEAR DEFAULT 2026,
  day DATE NOT NULL DEFAULT '2026-01-31', at DATETIME(3) DEFAULT '2026-01-31 10:11:12.5',
  t TIME DEFAULT '-01:02:03', changed DATETIME DEFAULT CURRENT_TIMESTAMP,
  word VARCHAR(20) NOT NULL DEFAULT 'it''s ü', blank VARCHAR(5) NOT NULL DEFAULT '',
  kind ENUM('a','b,c') NOT NULL DEFAULT 'b,c', flags SET('x','y','z') DEFAULT 'z,x',
  zero DATE NOT NULL DEFAULT '0000-00-00', nothing INT DEFAULT NULL, plain VARCHAR(5) NOT NULL)
  CHARACTER SET utf8mb4
"""
TOLD = {
    "n": ("7", 7),
    "big": ("18446744073709551615", "\0" + 8 * "\xff"),
    "yes": ("1", 1),
    "price": ("1.50", "\0\x96"),
    "f": ("1.1", 1.1),
    "b": ("0x0005", "\0\x05"),
    "y": ("2026", 2026),
    "day": ("2026-01-31", 20_484),
    "at": ("2026-01-31 10:11:12.500", 1_769_854_272_500_000),
    "t": ("-01:02:03", -3_723_000_000),
    "word": ("it's ü", "it's ü"),
    "blank": ("", ""),
    "kind": ("b,c", "b,c"),
    "flags": ("x,z", "x,z"),
}


def declared(world, table):
    """Texts and defaults of the columns, and those that are NOT NULL, by each of the topic's schemas."""
    messages = world.messages(world.topics.table(world.database, table))
    ids = {split_wire_format(message.value())[0]: None for message in messages}
    for schema_id in ids:
        fields = world.registry.schema(schema_id)["fields"][0]["type"][1]["fields"]
        types = {field["name"]: field["type"][1] for field in fields if isinstance(field["type"][1], dict)}
        parameters = {name: avro.get("connect.parameters", {}) for name, avro in types.items()}
        assert all(each.get("millrace.nullable", "false") == "false" for each in parameters.values())
        yield (
            {
                name: (each["millrace.default"], types[name]["connect.default"])
                for name, each in parameters.items()
                if "millrace.default" in each
            },
            {name for name, each in parameters.items() if "millrace.nullable" in each},
        )


@MYSQL_IS_SLOW
def test_not_null_and_defaults(world):
    """From the catalogue and from statements the same; rows that lack a column, and another default."""
    world.environment["MILLRACE_ROWS_COLUMN_ATTRIBUTES"] = "debezium"
    run(world, "SET sql_mode = '';" + DECLARED.format(name="of_catalog"))
    with world.services("run"):
        world.wait_for_start()
        run(world, "SET sql_mode = '';" + DECLARED.format(name="of_statement"))
        for table in ("of_catalog", "of_statement"):
            run(
                world,
                f"SET sql_mode = ''; INSERT INTO {table} (id, flags) VALUES (1, NULL);"
                f"SET SESSION binlog_row_image = MINIMAL; UPDATE {table} SET word = 'other';"
                "SET SESSION binlog_row_image = FULL;"
                f"ALTER TABLE {table} ALTER COLUMN n SET DEFAULT 8; INSERT INTO {table} (id) VALUES (2);"
                f"ALTER TABLE {table} MODIFY n INT; INSERT INTO {table} (id) VALUES (3)",
            )
        rows = {table: world.wait_for_row(table, 4) for table in ("of_catalog", "of_statement")}
    assert world.messages(world.topics.deadletter) == []
    assert differences(world) == {}
    not_null = {"id", "n", "yes", "day", "word", "blank", "kind", "zero", "plain"}
    eight = {**TOLD, "n": ("8", 8)}
    none = {name: told for name, told in TOLD.items() if name != "n"}
    for table, (first, second, third, last) in rows.items():
        assert list(declared(world, table)) == [(TOLD, not_null), (eight, not_null), (none, not_null - {"n"})]
        assert (first["after"]["n"], third["after"]["n"], last["after"]["n"]) == (7, 8, None)
        # NULL in a column with a default, a date that is none, and an image without columns: null, and said.
        assert first["after"]["flags"] is None
        assert first["after"]["zero"] is None
        assert [note["text"] for note in first["unrepresentable"]] == ["0000-00-00"]
        assert (second["after"]["word"], second["after"]["n"]) == ("other", None)
        assert "n" in second["after_missing"]


@MYSQL_IS_SLOW
def test_definition_that_is_out_of_date_quarantines_the_table(world):
    """A statement that is in no log."""
    with without_column_names(world.server):
        run(world, TABLES)
        with world.services(*SERVICES):
            world.wait_for_start()
            run(
                world,
                "INSERT INTO plain (id) VALUES (1); SET sql_log_bin = 0; ALTER TABLE plain DROP COLUMN big;"
                "SET sql_log_bin = 1;"
                "INSERT INTO plain (id) VALUES (2); INSERT INTO pair VALUES (1, '2020-01-01', 'x');"
                "INSERT INTO plain (id) VALUES (3); INSERT INTO done VALUES (1)",
            )
            world.wait_for_row("done")
        assert [row["after"]["id"] for row in world.rows("plain")] == [1]
        assert len(world.rows("pair")) == 1
        dead_letters = [
            deserialize(world.registry, m.value()) for m in world.messages(world.topics.deadletter)
        ]
        assert [dead_letter["table"] for dead_letter in dead_letters] == [f"{world.database}.plain"] * 2
        assert dead_letters[0]["error_class"] == "SchemaMismatchError"

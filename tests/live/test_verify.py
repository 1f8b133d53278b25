"""``millrace verify`` on real servers that are written to: it tells what differs, and where, and no more."""

import os
import re
import secrets
import shutil
import signal
import sys
import threading
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Producer

from millrace.avro.records import deserialize
from millrace.contract import Topics
from millrace.kafka.client import connect
from millrace.kafka.topics import ensure_topics
from millrace.local import MySQL
from millrace.runtime.settings import TopicsSettings
from tests.service_process import ServiceProcess, wait_for
from tests.shared import run_python

from .rows_world import MARIADB_IS_SLOW, MYSQL_IS_SLOW, SERVICES, without_column_names
from .test_rowmapper import INSERTS, TABLES, run


@pytest.fixture
def world(world):
    world.server.execute(f"GRANT RELOAD ON *.* TO '{world.server.user}'@'%'")
    yield world
    world.server.execute(f"REVOKE RELOAD ON *.* FROM '{world.server.user}'@'%'")


def verify(world, *arguments, code=0, **environment):
    settings = {**world.environment, **environment}
    done = run_python("-m", "millrace.cli", "verify", *arguments, settings=settings)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code in (0, 1) else done.stderr


def write(world, stop):
    """Insert and change rows, one after the other, until told to stop."""
    connection = world.server.connect(autocommit=True, database=world.database)
    try:
        with connection.cursor() as cursor:
            number = 1_000_000
            while not stop.wait(0.1):
                number += 1
                cursor.execute(f"INSERT INTO plain (id, note) VALUES ({number}, 'new')")
                cursor.execute(f"UPDATE plain SET note = 'changed' WHERE id = {number}")
                cursor.execute("UPDATE keyless SET n = n + 1 WHERE v = 'a' LIMIT 1")
    finally:
        connection.close()


@MARIADB_IS_SLOW
def test_the_grants_that_it_needs(world):
    """Each that is missing is named, and with these alone it works."""
    user, mysql = f"verify{secrets.token_hex(3)}", isinstance(world.server, MySQL)
    login = {"MILLRACE_MYSQL_USER": user, "MILLRACE_MYSQL_PASSWORD": "secret"}
    with world.service("run"):
        world.wait_for_start()
        run(world, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        world.wait_for_row("t")
        world.server.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
        said = verify(world, "rows", code=2, **login)
        assert "may SELECT from no table that the row mapper publishes" in said
        world.server.execute(f"GRANT SELECT ON {world.database}.* TO '{user}'@'%'")
        for grant in ("RELOAD", "REPLICATION CLIENT") if mysql else ():
            said = verify(world, "rows", code=3, **login)
            assert said.count("\n") == 1
            assert f"run GRANT {grant} ON *.* TO '{user}'@'%' (error 1227: " in said
            world.server.execute(f"GRANT {grant} ON *.* TO '{user}'@'%'")
        assert f"{world.database}.t: 1 records, 1 rows: equal" in verify(world, "rows", **login)
        if mysql:
            world.server.execute(f"REVOKE RELOAD ON *.* FROM '{user}'@'%'")
        assert "equal" in verify(world, "rows", "--idle", **login)
    world.server.execute(f"DROP USER '{user}'@'%'")


@MARIADB_IS_SLOW
def test_tables_that_are_written_to_meanwhile(world):
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(world, stop))
    table = f"{world.database}.plain"
    with world.services(*SERVICES) as (_, _, rowmapper):
        world.wait_for_start()
        run(world, TABLES, "INSERT INTO keyless VALUES ('a', 1), ('a', 1), ('b', NULL)")
        run(world, INSERTS.replace("{0}", "1"), "UPDATE plain SET note = 'changed' WHERE id = 1000")
        world.wait_for_row("plain", 10)
        check_a_table_whose_topic_is_still_to_come(world, rowmapper)
        writer.start()
        try:
            world.wait_for_row("plain", 210)
            said = verify(world, "rows")
            assert f"{table}: " in said
            assert "DIFFERENT" not in said
            assert said.splitlines()[-1].endswith("epoch 0: equal")
            assert f"{world.topics.raw}, epoch 0: equal: " in verify(world, "raw")
        finally:
            stop.set()
            writer.join()
        said = verify(world, "rows", "--idle", table)
        assert "equal" in said

        # A folder with the server's own files, and a copy of it in which one byte is another.
        folder = world.server.binlog_files[0].parent
        assert ": equal: " in verify(world, "raw", str(folder))
        damaged, position = copy_with_another_byte(world, world.folder / "copy")
        said = verify(world, "raw", str(damaged), code=1)
        assert f": DIFFERENT: {world.server.binlog_files[-1].name} position {position} (byte " in said

        # The row topic says otherwise than the table: a row of it comes again, long after it was changed.
        first = world.messages(world.topics.table(world.database, "plain"))[0]
        number = deserialize(world.registry, first.value())["after"]["id"]
        producer = Producer({"bootstrap.servers": world.settings.bootstrap_servers})
        producer.produce(first.topic(), first.value(), first.key())
        assert producer.flush(120) == 0
        said = verify(world, "rows", table, code=1)
        assert f"{table}: " in said
        assert "DIFFERENT, 1 rows missing, 1 too many" in said
        assert f"first: row id={number}, column note: 'row 0' in the topic, 'changed' in the table" in said


def check_a_table_whose_topic_is_still_to_come(world, rowmapper):
    """What is compared is decided when the row mapper has come to the moment of the snapshot."""
    os.kill(rowmapper.pid, signal.SIGSTOP)
    run(world, "CREATE TABLE late (id INT PRIMARY KEY)", "INSERT INTO late VALUES (1), (2)")
    command = [sys.executable, "-m", "millrace.cli", "verify", "rows"]
    with closing(ServiceProcess(command, world.environment)) as process:
        wait_for(lambda: "waiting for the row mapper" in process.error_output, process)
        os.kill(rowmapper.pid, signal.SIGCONT)
        assert process.wait(600) == 0, process
        said = process.output
    assert f"{world.database}.late: 2 records, 2 rows: equal" in said


def copy_with_another_byte(world, folder):
    """Copy the server's logs; change a byte of the last row that was written."""
    folder.mkdir()
    for path in world.server.binlog_files:
        shutil.copy(path, folder / path.name)
    path = folder / world.server.binlog_files[-1].name
    data = bytearray(path.read_bytes())
    position = data.rindex(b"row 199")
    data[position] ^= 0x20
    path.write_bytes(data)
    return folder, position


VERSIONED = """
CREATE TABLE implied (id INT PRIMARY KEY, x INT) WITH SYSTEM VERSIONING;
CREATE TABLE bare (x INT) WITH SYSTEM VERSIONING;
CREATE TABLE named (id INT PRIMARY KEY, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START,
  e TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, PERIOD FOR SYSTEM_TIME (s, e), x INT)
  WITH SYSTEM VERSIONING;
CREATE TABLE emptied LIKE implied;
CREATE TABLE had (id INT PRIMARY KEY, x INT) WITH SYSTEM VERSIONING;
CREATE TABLE gets (id INT PRIMARY KEY, x INT);
CREATE TABLE gets_named LIKE gets;
CREATE SEQUENCE numbers START WITH 100 CACHE 10;
INSERT INTO implied VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO bare VALUES (1), (1), (2);
INSERT INTO named (id, x) VALUES (1, 1), (2, 2);
INSERT INTO emptied VALUES (1, 1);
INSERT INTO had VALUES (1, 1), (2, 2);
INSERT INTO gets VALUES (1, 1), (2, 2), (3, 3);
INSERT INTO gets_named VALUES (1, 1), (2, 2), (3, 3);
ALTER TABLE gets ADD SYSTEM VERSIONING;
ALTER TABLE gets_named ADD COLUMN s TIMESTAMP(6) GENERATED ALWAYS AS ROW START,
  ADD COLUMN e TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, ADD PERIOD FOR SYSTEM_TIME (s, e),
  ADD SYSTEM VERSIONING;
UPDATE implied SET x = 10 WHERE id = 1;
UPDATE bare SET x = 10 WHERE x = 1 LIMIT 1;
UPDATE named SET x = 10 WHERE id = 1;
UPDATE emptied SET x = 10;
UPDATE had SET x = 10 WHERE id = 1;
UPDATE gets SET x = 10 WHERE id = 1;
UPDATE gets_named SET x = 10 WHERE id = 1;
DELETE FROM gets WHERE id = 2;
DELETE FROM gets_named WHERE id = 2;
DELETE FROM implied WHERE id = 2;
DELETE FROM bare WHERE x = 2;
DELETE FROM named WHERE id = 2;
DELETE HISTORY FROM emptied;
ALTER TABLE had DROP SYSTEM VERSIONING;
UPDATE had SET x = 11 WHERE id = 1;
DO (SELECT NEXTVAL(numbers));
ALTER SEQUENCE numbers RESTART 500;
CREATE TABLE done (id INT);
INSERT INTO done VALUES (1);
"""


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_system_versioned_tables_and_sequences(world):
    """Topics have the rows of the past as well; a sequence is named, and not compared."""
    world.environment["MILLRACE_ROWS_ON_INCOMPATIBLE"] = "new-topic"
    tables = ("implied", "bare", "named", "emptied", "had", "gets", "gets_named")
    with world.service("run"):
        world.wait_for_start()
        run(world, VERSIONED)
        world.wait_for_row("done")  # else the command says that it waits
        names = {name: f"{world.database}.{name}" for name in tables}
        done = world.command("verify", "rows", text=True)
    for name, (records, rows) in {
        "implied": (7, 4),  # 3 inserts, an update and its row of the past, the two records of a delete
        "bare": (6, 4),  # a delete is an update
        "named": (6, 3),
        "emptied": (4, 1),
        "had": (5, 2),
        "gets": (7, 4),  # those with the other key are in the next version of the topic
        "gets_named": (7, 4),
    }.items():
        assert f"{names[name]}: {records} records, {rows} rows: equal" in done.stdout
    changes = [(record["op"], record["after"]) for record in world.rows("implied")]
    assert [op for op, _ in changes] == ["c", "c", "c", "u", "c", "d", "c"]
    assert changes[4][1]["row_end"] == changes[3][1]["row_start"]
    found = world.messages(world.topics.table(world.database, "implied"))
    assert {tuple(deserialize(world.registry, each.key())) for each in found} == {("id", "row_end")}
    assert [record["after"]["next_not_cached_value"] for record in world.rows("numbers")] == [110]
    assert done.stderr == f"{world.database}.numbers: not compared: it is a sequence\n"


PEOPLE = """
CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(50), mail VARCHAR(50), born DATE, size DECIMAL(5,2));
CREATE TABLE secrets (id INT PRIMARY KEY, word VARCHAR(50));
INSERT INTO secrets VALUES (1, 'never told');
INSERT INTO people VALUES (1, 'Ada Lovelace', 'ada@example.org', '1815-12-10', 1.65),
  (2, 'Lin Young', 'lin@example.org', '2010-01-01', 1.30), (3, 'No Body', NULL, NULL, NULL);
UPDATE people SET born = '1990-01-01' WHERE id = 2;
UPDATE people SET born = '2015-01-01', name = 'Ada Young' WHERE id = 1;
UPDATE people SET size = 1.70 WHERE id IN (1, 2);
"""


def selected(world):
    """Settings by which row topics have a part of the tables."""
    people = f"{world.database}.people"
    return {
        "MILLRACE_REPLICATE_IGNORE_TABLE": f"{world.database}.secrets",
        "MILLRACE_COLUMNS_DROP": f"{people}.mail",
        "MILLRACE_COLUMNS_HASH": f"{people}.name",
        "MILLRACE_COLUMNS_HASH_SALT": "sixteen characters",
        "MILLRACE_ROWS_FILTER": f"{people}: born < '2000-01-01' AND size IS NOT NULL",
    }


def assert_selected(world, selection):
    """What is selected is in the row topics, and equal; what is hidden is nowhere in them."""
    said = verify(world, "rows", "--idle", **selection)
    assert f"{world.database}.people: 4 records, 1 rows: equal" in said
    assert [row["op"] for row in world.rows("people")] == ["c", "c", "d", "u"]
    assert world.topics.table(world.database, "secrets") not in world.table_topics()
    told = b"".join(m.value() for topic in world.table_topics() for m in world.messages(topic))
    for word in (b"Ada", b"example.org", b"Lin", b"never told"):
        assert word not in told
        assert word in b"".join(m.value() for m in world.messages(world.topics.raw))


@pytest.mark.parametrize("database", ["mysql"], indirect=True)
def test_what_cannot_be_compared_is_said(world):
    selection = selected(world)
    with world.service("run", **selection):
        world.wait_for_start()
        run(world, TABLES, PEOPLE, INSERTS.replace("{0}", "1"))
        world.wait_for_row("plain", 200)
    assert_selected(world, selection)
    assert verify(world, "rows", "no.table", code=2) == (
        "error: no.table cannot be compared: there is no such table, or its user may not SELECT from it\n"
    )
    secret = f"{world.database}.secrets"
    assert verify(world, "rows", secret, code=2, **selection).startswith(
        f"error: {secret} cannot be compared: MILLRACE_REPLICATE_… "
    )
    gone = world.topics.table(world.database, "gone")
    ensure_topics(connect(world.settings), TopicsSettings(), {gone: "table"})
    settings = {**world.environment, **selection}
    done = run_python("-m", "millrace.cli", "verify", "rows", "--idle", settings=settings)
    assert (
        f"{gone}: not compared: there is no such table, or its user may not SELECT from it\n" in done.stderr
    )
    assert f"{secret}: not compared: MILLRACE_REPLICATE_… " in done.stderr
    assert done.stdout.endswith("epoch 0: equal; not compared: 2 named above\n")
    world.server.execute(f"REVOKE RELOAD ON *.* FROM '{world.server.user}'@'%'")
    refused = verify(world, "rows", code=3)
    assert "lacks a privilege to hold writes for the moment of a snapshot (--idle does without" in refused
    run(world, "INSERT INTO plain (id) VALUES (1)")
    said = verify(world, "rows", "--idle", "--wait", "1", code=7)
    assert said.splitlines()[0].startswith("waiting for the reader to come to ")
    assert "timed out after" in said
    assert "is it running, and is this its server?" in said
    assert "has no log file" in verify(world, "raw", str(world.folder), code=3)
    assert "is neither a folder with log files nor mysql://" in verify(world, "raw", "/nothing", code=2)
    assert "holds no events of epoch 7" in verify(world, "raw", "--epoch", "7", code=2)
    missing = verify(world, "raw", code=4, MILLRACE_SOURCE="nobody")
    assert missing.startswith(f"error: there is no topic {Topics('nobody').raw} at ")
    assert "no server is named" in verify(world, "raw", code=2, MILLRACE_MYSQL_HOST="")


FILLED = """
TINYINT INT DECIMAL(10,3) DOUBLE FLOAT(7,3) BIT(1) BIT(12) YEAR DATE TIME TIME(3) DATETIME DATETIME(6)
TIMESTAMP TIMESTAMP(3) CHAR(5) VARCHAR(5) TEXT BINARY(4) VARBINARY(4) BLOB ENUM('a','b') ENUM('','b')
SET('a','b') ENUM('x','y')/CHARSET/binary SET('x','y')/CHARSET/binary ENUM('x','y')/CHARSET/latin1
"""


def add_filled_columns(world):
    """Add columns of each type, NOT NULL and without a default, for which the server fills in something."""
    types = FILLED.split() + (["JSON"] if isinstance(world.server, MySQL) else ["UUID", "INET6"])
    added = [f"ADD c{at} {kind.replace('/', ' ')} NOT NULL" for at, kind in enumerate(types)]
    names = ", ".join(f"c{at}" for at in range(len(types)))
    run(world, "CREATE TABLE filled (id INT PRIMARY KEY)", "INSERT INTO filled VALUES (1), (2)")
    run(world, f"SET sql_mode = ''; ALTER TABLE filled {', '.join(added)}")
    run(world, f"SET sql_mode = ''; INSERT INTO filled SELECT 3, {names} FROM filled LIMIT 1")
    world.wait_for_row("filled", 3)


@MARIADB_IS_SLOW
def test_rows_that_nothing_has_read_are_missing(world):
    """Those of a table without a topic: it was written to before the reader began, and is now no more."""
    names = {name: f"{world.database}.{name}" for name in ("early", "blank", "told", "kept")}
    run(world, "CREATE TABLE early (id INT PRIMARY KEY, v INT); INSERT INTO early VALUES (1, 1), (2, 2)")
    run(world, "CREATE TABLE blank (id INT PRIMARY KEY); CREATE TABLE told (id INT PRIMARY KEY)")
    run(world, "CREATE TABLE kept (id INT PRIMARY KEY); INSERT INTO kept VALUES (1)")
    world.environment["MILLRACE_REPLICATE_IGNORE_TABLE"] = names["kept"]
    with world.service("run"):
        world.wait_for_start()
        run(world, "INSERT INTO told VALUES (1)")
        world.wait_for_row("told")
        for named in ((), (names["early"],)):
            said = verify(world, "rows", *named, code=1).splitlines()
            told = said.index(f"{names['early']}: 0 records, 2 rows: DIFFERENT, 2 rows missing, 0 too many")
            assert f"'millrace snapshot {names['early']}' does" in said[told + 1]
            assert ": DIFFERENT" in said[-1]
        only = {"MILLRACE_ROWS_FILTER": f"{names['early']}: v > 5"}
        assert f"{names['early']}: 0 records, 0 rows: equal" in verify(world, "rows", "--idle", **only)
        world.command("snapshot", names["early"])
        world.wait_for_row("early", 2)
        add_filled_columns(world)
        said = verify(world, "rows").splitlines()
        assert f"{world.database}.filled: 3 records, 3 rows: equal" in said
        assert f"{names['early']}: 2 records, 2 rows: equal" in said
        assert f"{names['blank']}: 0 records, 0 rows: equal" in said
        assert said[-1].endswith("epoch 0: equal; not compared: 1 named above")


LEFT_OUT = """
CREATE TABLE secrets (id INT PRIMARY KEY, word VARCHAR(50), pad LONGBLOB);
CREATE TABLE told (id INT PRIMARY KEY, word VARCHAR(50));
INSERT INTO secrets VALUES (1, 'never told', REPEAT('never told', 300000));
START TRANSACTION;
INSERT INTO secrets VALUES (2, 'never told', NULL);
INSERT INTO told VALUES (1, 'told');
UPDATE secrets SET word = 'never told either';
COMMIT;
UPDATE secrets JOIN told SET secrets.word = 'not this', told.word = 'but this' WHERE told.id = 1;
DELETE FROM secrets;
"""


@MARIADB_IS_SLOW
def test_rows_that_are_in_no_topic(world):
    """With their statements in the log; nor are they in a snapshot."""
    statements = (
        "binlog_rows_query_log_events" if isinstance(world.server, MySQL) else "binlog_annotate_row_events"
    )
    world.environment["MILLRACE_TOPICS_RAW_EXCLUDE"] = f"{world.database}.secret%"
    run(world, "CREATE TABLE secrets_too (id INT PRIMARY KEY, word VARCHAR(50))")
    run(world, "INSERT INTO secrets_too VALUES (1, 'never told')")
    with world.service("run"):
        world.wait_for_start()
        run(world, f"SET SESSION {statements} = ON;" + LEFT_OUT)
        world.wait_for_row("told", 2)
        taken = run_python("-m", "millrace.cli", "snapshot", settings=world.environment)
        assert taken.returncode == 0, taken.stderr
        found = world.wait_for_row("told", 3)
    assert [(row["op"], row["after"]["word"]) for row in found] == [
        ("c", "told"),
        ("u", "but this"),
        ("r", "but this"),
    ]
    topics = [name for name in connect(world.settings).list_topics(timeout=30).topics if world.source in name]
    assert not any("secrets" in topic for topic in topics)
    for topic in topics:
        told = b"".join(
            message.value() or b"" for message in world.messages(topic, isolation="read_uncommitted")
        )
        assert b"never told" not in told, topic
        assert b"not this" not in told, topic
    assert f"{world.database}.told: 3 records, 1 rows: equal" in verify(world, "rows")
    said = verify(world, "raw")
    left_out = re.search(r"equal: .*; not compared: ([\d,]+) bytes that MILLRACE_TOPICS_RAW_EXCLUDE", said)
    assert left_out
    assert int(left_out[1].replace(",", "")) > 3_000_000


BEFORE = """
CREATE TABLE done (id INT PRIMARY KEY);
CREATE TABLE renamed (id INT PRIMARY KEY, v VARCHAR(20));
INSERT INTO renamed VALUES (1, 'a'), (2, 'b');
CREATE TABLE `left` (id INT PRIMARY KEY, v VARCHAR(20)); INSERT INTO `left` VALUES (1, 'left');
CREATE TABLE `right` (id INT PRIMARY KEY, v VARCHAR(20)); INSERT INTO `right` VALUES (1, 'right'), (2, 'r');
CREATE TABLE retyped (id INT PRIMARY KEY, n INT, v VARCHAR(20), at DATETIME, e ENUM('a','b'));
INSERT INTO retyped VALUES (1, 10, 'ä', '2026-01-31 08:00:01', 'a'), (2, NULL, NULL, NULL, NULL);
CREATE TABLE converted (id INT PRIMARY KEY, d DATETIME(3));
INSERT INTO converted VALUES (1, '2026-01-31 08:00:01.600'), (2, NULL);
CREATE TABLE swapped (id INT PRIMARY KEY, a VARCHAR(20), b VARCHAR(20), c INT);
INSERT INTO swapped VALUES (1, 'a', 'b', 1), (2, 'A', 'B', 2);
CREATE TABLE numbered (v VARCHAR(20)); INSERT INTO numbered VALUES ('x'), ('x'), ('y');
CREATE TABLE unkeyed (id INT PRIMARY KEY, v VARCHAR(20));
INSERT INTO unkeyed VALUES (1, 'one'), (2, 'two'), (3, 'three');
CREATE TABLE emptied (id INT PRIMARY KEY); INSERT INTO emptied VALUES (1), (2);
CREATE TABLE emptied_keyless (v INT); INSERT INTO emptied_keyless VALUES (1), (1);
CREATE TABLE again (id INT PRIMARY KEY, v INT); INSERT INTO again VALUES (1, 1), (2, 2);
CREATE TABLE parts (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id)
  (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20),
  PARTITION p2 VALUES LESS THAN (30));
INSERT INTO parts VALUES (1, 1), (2, 2), (11, 11), (12, 12), (21, 21);
"""

ALTERED = """
RENAME TABLE renamed TO new_name; INSERT INTO new_name VALUES (3, 'c');
UPDATE new_name SET v = 'B' WHERE id = 2;
RENAME TABLE `left` TO spare, `right` TO `left`, spare TO `right`;
UPDATE `left` SET v = 'changed' WHERE id = 2;
ALTER TABLE retyped MODIFY id BIGINT, MODIFY n BIGINT, MODIFY v VARCHAR(50),
  MODIFY at DATETIME(6), MODIFY e VARCHAR(5);
UPDATE retyped SET v = 'new' WHERE id = 2;
ALTER TABLE converted MODIFY d DATETIME; INSERT INTO converted VALUES (3, '2026-01-31 08:00:01');
ALTER TABLE swapped CHANGE a b VARCHAR(20), CHANGE b a VARCHAR(20), DROP COLUMN c;
ALTER TABLE swapped ADD COLUMN c INT DEFAULT 7;
UPDATE swapped SET a = 'changed' WHERE id = 2;
ALTER TABLE numbered ADD COLUMN id INT AUTO_INCREMENT PRIMARY KEY FIRST;
ALTER TABLE unkeyed DROP PRIMARY KEY; INSERT INTO unkeyed VALUES (1, 'one');
UPDATE unkeyed SET v = 'changed' WHERE id = 2; DELETE FROM unkeyed WHERE id = 3;
TRUNCATE TABLE emptied; INSERT INTO emptied VALUES (2);
TRUNCATE emptied_keyless; INSERT INTO emptied_keyless VALUES (1);
DROP TABLE again; CREATE TABLE again (id INT PRIMARY KEY, w INT); INSERT INTO again VALUES (2, 3);
ALTER TABLE parts TRUNCATE PARTITION p0; INSERT INTO parts VALUES (2, 22);
ALTER TABLE parts DROP PARTITION p1; INSERT INTO parts VALUES (3, 3);
INSERT INTO done VALUES (1);
"""

REMOVED = "ALTER TABLE parts TRUNCATE PARTITION; ALTER TABLE parts DROP PARTITION"


@MYSQL_IS_SLOW
@pytest.mark.parametrize("metadata", [pytest.param("FULL", marks=pytest.mark.slow), "least"])
def test_rows_that_ddl_has_moved_changed_or_removed(world, metadata):
    with ExitStack() as stack:
        if metadata != "FULL":
            stack.enter_context(without_column_names(world.server))
        world.environment["MILLRACE_ROWS_ON_INCOMPATIBLE"] = "new-topic"
        stack.enter_context(world.service("run"))
        world.wait_for_start()
        run(world, BEFORE, ALTERED)
        world.wait_for_row("done")
        said = verify(world, "rows").splitlines()
    tables = {line.split(": ")[0]: line.split(": ", 2)[2] for line in said if "records" in line}
    told_in_part = {f"{world.database}.{name}" for name in ("converted", "numbered", "parts")}
    assert tables == {
        name: "equal, as far as the log goes" if name in told_in_part else "equal" for name in tables
    }
    assert len(tables) == 13
    untold = [line.replace(f"{world.database}.", "") for line in said if "not told by the log" in line]
    assert [re.sub(r" at [^ ;]*", "", line.split(": ", 1)[1]) for line in untold] == [
        "column d of 1 rows: ALTER TABLE converted has converted it; the first: row id=1",
        "column id of 3 rows: the server has computed it as the column was added; the first: row id=1",
        f"3 rows removed: {REMOVED}; the first: row id=1",
    ]

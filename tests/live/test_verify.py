"""``millrace verify`` on real servers that are written to: it tells what differs, and where, and no more."""

import secrets
import shutil
import threading

import pytest
from confluent_kafka import Producer

from millrace.avro.records import deserialize
from millrace.contract import Topics
from millrace.local import MySQL
from tests.shared import run_python

from .rows_world import SERVICES, RowsWorld
from .test_rowmapper import INSERTS, TABLES, run


@pytest.fixture
def world(kafka, registry, database, source_name, tmp_path):
    made = RowsWorld(kafka, registry, database, source_name, tmp_path)
    database.execute(f"CREATE DATABASE {made.database}", f"GRANT RELOAD ON *.* TO '{database.user}'@'%'")
    yield made
    database.execute(f"DROP DATABASE {made.database}", f"REVOKE RELOAD ON *.* FROM '{database.user}'@'%'")
    made.close()


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


def test_the_grants_that_it_needs(world):
    """Each that is missing is named, and with these alone it works."""
    user, mysql = f"verify{secrets.token_hex(3)}", isinstance(world.server, MySQL)
    login = {"MILLRACE_MYSQL_USER": user, "MILLRACE_MYSQL_PASSWORD": "secret"}
    with world.services(*SERVICES):
        world.wait_for_start()
        run(world, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        world.wait_for_row("t")
        world.server.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")
        said = verify(world, "rows", code=2, **login)
        assert "no table that this user of the server may SELECT has a row topic" in said
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


def test_tables_that_are_written_to_meanwhile(world):
    stop = threading.Event()
    writer = threading.Thread(target=write, args=(world, stop))
    table = f"{world.database}.plain"
    with world.services(*SERVICES):
        world.wait_for_start()
        run(world, TABLES, "INSERT INTO keyless VALUES ('a', 1), ('a', 1), ('b', NULL)")
        run(world, INSERTS.replace("{0}", "1"), "UPDATE plain SET note = 'changed' WHERE id = 1000")
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
    with world.services(*SERVICES, **selection):
        world.wait_for_start()
        run(world, TABLES, PEOPLE, INSERTS.replace("{0}", "1"))
        world.wait_for_row("plain", 200)
    assert_selected(world, selection)
    assert verify(world, "rows", "no.table", code=2) == (
        "error: no.table cannot be compared: there must be a table of that name and a topic of its rows\n"
    )
    world.server.execute(f"REVOKE RELOAD ON *.* FROM '{world.server.user}'@'%'")
    refused = verify(world, "rows", code=3)
    assert "lacks a privilege to hold writes for the moment of a snapshot (--idle does without" in refused
    run(world, "INSERT INTO plain (id) VALUES (1)")
    said = verify(world, "rows", "--idle", "--wait", "1", code=7)
    assert said.splitlines()[0].startswith("waiting for the reader to come to ")
    assert "has not come to" in said
    assert "is it running, and is this its server?" in said
    assert "has no log file" in verify(world, "raw", str(world.folder), code=3)
    assert "is neither a folder with log files nor mysql://" in verify(world, "raw", "/nothing", code=2)
    assert "holds no events of epoch 7" in verify(world, "raw", "--epoch", "7", code=2)
    missing = verify(world, "raw", code=4, MILLRACE_SOURCE="nobody")
    assert missing.startswith(f"error: there is no topic {Topics('nobody').raw} at ")
    assert "no server is named" in verify(world, "raw", code=2, MILLRACE_MYSQL_HOST="")

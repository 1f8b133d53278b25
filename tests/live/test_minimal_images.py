"""Rows of minimal images, completed: whole rows in the topics, whatever is killed and lost between."""

import json
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.avro.records import deserialize
from millrace.local import MySQL
from tests.killed import command as killed
from tests.servers.databases import fetched
from tests.service_process import wait_for

from .rows_world import SERVICES, RowsWorld
from .test_row_topics_refused import quarantined
from .test_rowmapper import run

TABLES = """
CREATE TABLE plain (
    id INT PRIMARY KEY, note VARCHAR(100), n INT DEFAULT 7, doc TEXT, d DATETIME(3), price DECIMAL(20, 5),
    kind ENUM('a', 'b'), bits BIT(9), f DOUBLE,
    changed TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP
);
CREATE TABLE pair (a INT, b VARCHAR(20), v BLOB, w INT, UNIQUE (w), PRIMARY KEY (b, a));
CREATE TABLE computed (
    id INT PRIMARY KEY, n INT, double_n INT AS (n * 2) STORED, triple INT AS (n * 3) VIRTUAL, v TEXT
);
CREATE TABLE triggered (id INT PRIMARY KEY, v INT, seen INT, x TEXT);
CREATE TRIGGER before_triggered BEFORE UPDATE ON triggered FOR EACH ROW SET NEW.seen = OLD.v;
CREATE TABLE done (id INT PRIMARY KEY);
"""

FILL = """
SET SESSION binlog_row_image = MINIMAL;
INSERT INTO plain (id, note, n, doc, d, price, kind, bits, f, changed) VALUES
    (1, 'one', 1, REPEAT('x', 3000), '2020-01-02 03:04:05.678', 1.5, 'a', b'101', 0.5, '2020-01-01'),
    (2, 'two', 2, NULL, NULL, NULL, 'b', NULL, NULL, '2020-01-01'),
    (3, 'three', NULL, 'ü', '1999-12-31', -7, NULL, b'1', 1e300, '2020-01-01');
INSERT INTO pair VALUES (1, 'k', 'blob', 10), (2, 'k', NULL, 20), (1, 'l', x'00ff', 30);
INSERT INTO computed (id, n, v) VALUES (1, 5, 'v'), (2, 6, 'w');
INSERT INTO triggered VALUES (1, 1, 0, 'x'), (2, 2, 0, 'y');
"""

WORK = """
SET SESSION binlog_row_image = MINIMAL;
UPDATE plain SET n = n + 1 WHERE id < 3;
UPDATE plain SET note = 'changed' WHERE id = 3;
BEGIN; UPDATE plain SET n = 99; SAVEPOINT s; UPDATE plain SET note = 'undone'; ROLLBACK TO s;
UPDATE plain SET price = 2.5 WHERE id = 2; COMMIT;
BEGIN; UPDATE plain SET note = 'never'; ROLLBACK;
UPDATE plain SET id = id + 10 ORDER BY id DESC;
UPDATE plain SET id = id - 10 ORDER BY id;
INSERT INTO plain (id, note) VALUES (1, 'again') ON DUPLICATE KEY UPDATE note = 'updated';
SET SESSION binlog_row_image = NOBLOB;
UPDATE plain SET f = f + 1, kind = 'b';
UPDATE pair SET w = w + 1 ORDER BY w DESC;
SET SESSION binlog_row_image = MINIMAL;
UPDATE pair SET b = 'm' WHERE b = 'l';
DELETE FROM pair WHERE a = 2;
UPDATE pair SET v = 'other' WHERE a = 1 AND b = 'k';
UPDATE computed SET n = n + 1;
UPDATE computed SET v = 'z' WHERE id = 1;
UPDATE triggered SET v = v + 10;
UPDATE triggered SET x = 'z' WHERE id = 2;
REPLACE INTO pair (a, b, v, w) VALUES (1, 'k', 'replaced', 11);
"""


@pytest.fixture(scope="module")
def mysql57() -> Iterator[MySQL]:
    """A MySQL 5.7 that logs statements beside rows."""
    server = fetched("mysql57")
    assert isinstance(server, MySQL)
    server.options["binlog-rows-query-log-events"] = True
    with server:
        yield server


@pytest.fixture
def world(world: RowsWorld, tmp_path: Path) -> RowsWorld:
    world.environment |= {
        "MILLRACE_ROWS_COMPLETE": f"{world.database}.%",
        "MILLRACE_ROWS_STORE": str(tmp_path / "store"),
        "MILLRACE_KAFKA_FENCED_WAIT_S": "0",
    }
    return world


def check(world: RowsWorld, table: str, key: tuple[str, ...], columns: list[str]) -> None:
    """Compare a topic, folded by key, with its table; on MySQL nothing but generated columns is missing."""
    rows: dict[tuple[object, ...], dict[str, str]] = {}
    for message in world.messages(world.topics.table(world.database, table)):
        row = deserialize(world.registry, message.value())
        if isinstance(world.server, MySQL):
            missing = {*(row["before_missing"] or ()), *(row["after_missing"] or ())}
            assert missing <= {"double_n", "triple"}, (table, row)
        told = deserialize(world.registry, message.key())
        at, after, lacks = tuple(told[name] for name in key), row["after"], row["after_missing"] or ()
        rows.pop(at, None)
        if after is not None:
            rows[at] = {name: str(after[name]) for name in columns if name not in lacks}
    found = world.server.query(f"SELECT {', '.join([*key, *columns])} FROM {world.database}.{table}")
    truth = {row[: len(key)]: dict(zip(columns, map(str, row[len(key) :]), strict=True)) for row in found}
    assert rows.keys() == truth.keys(), table
    for at, known in rows.items():
        assert known == {name: truth[at][name] for name in known}, (table, at)


@pytest.mark.slow
def test_completed_rows_are_those_of_the_tables(world: RowsWorld, tmp_path: Path) -> None:
    run(world, TABLES)
    with world.service("run"):
        world.wait_for_start()
        run(world, FILL)
        world.wait_for_row("triggered", 2)
    for at, nth in (("after_commit", 2), ("before_commit", 1), ("in_commit", 3)):
        run(world, WORK)
        with world.service("run", command=killed("run", at, nth, commit_every=2)) as process:
            assert process.wait(120) == -signal.SIGKILL, world.log("run")
    # Another folder: all rows are learnt again; then the first one, which is far behind.
    for number, folder in enumerate(("empty", "store")):
        with world.services(*SERVICES, MILLRACE_ROWS_STORE=str(tmp_path / folder)):
            run(world, WORK, f"INSERT INTO done VALUES ({number})")
            world.wait_for_row("done", number + 1)
    assert world.messages(world.topics.deadletter) == []
    check(world, "plain", ("id",), ["note", "n", "doc", "kind", "f"])
    check(world, "pair", ("b", "a"), ["v", "w"])
    check(world, "computed", ("id",), ["n", "v"])
    check(world, "triggered", ("id",), ["v", "seen", "x"])
    if isinstance(world.server, MySQL):
        changed = {row["after"]["id"]: row["after"]["changed"] for row in world.rows("plain") if row["after"]}
        for number, stamp in world.server.query(
            f"SELECT id, UNIX_TIMESTAMP(changed) FROM {world.database}.plain"
        ):
            assert changed[number].timestamp() == float(stamp)
    logs = world.folder.glob("*.log")
    events = [json.loads(line) for log in logs for line in log.read_text().splitlines() if line[:1] == "{"]
    learnt = [event for event in events if event["event"].startswith("reading rows from events")]
    assert len(learnt) >= 3, "the store was never behind"


REPLACED = """
CREATE TABLE r (id INT PRIMARY KEY, u INT UNIQUE, a INT DEFAULT 5, b VARCHAR(20), c INT);
CREATE TABLE one (id INT DEFAULT 1 PRIMARY KEY, a INT DEFAULT 5, b INT);
SET SESSION binlog_row_image = MINIMAL;
INSERT INTO r VALUES (1, 1, 1, 'one', 1), (2, 2, 2, 'two', 2), (3, 3, 3, 'three', 3), (4, 4, 4, 'four', 4);
INSERT INTO one VALUES (1, 1, 1);
REPLACE INTO r (id, b) VALUES (1, 'replaced');
INSERT INTO r (id, b) VALUES (2, 'x') ON DUPLICATE KEY UPDATE c = 22;
REPLACE INTO r (id, u, b) VALUES (9, 3, 'by u');
REPLACE INTO one (b) VALUES (2);
UPDATE one SET b = 3;
UPDATE r SET b = CONCAT(b, '!');
CREATE TABLE last_one (id INT PRIMARY KEY);
INSERT INTO last_one VALUES (1);
"""


@pytest.mark.slow
def test_values_that_the_log_does_not_have(world: RowsWorld) -> None:
    """REPLACE gives columns their defaults, of which minimal images of MariaDB say nothing."""
    with world.service("run"):
        world.wait_for_start()
        run(world, REPLACED)
        world.wait_for_row("last_one")
    check(world, "r", ("id",), ["u", "a", "b", "c"])
    check(world, "one", ("id",), ["a", "b"])


def test_a_key_left_to_its_default_is_not_guessed(world: RowsWorld) -> None:
    """It is not logged: what it was is known to the server alone."""
    with world.services(*SERVICES):
        world.wait_for_start()
        run(
            world,
            "CREATE TABLE one (id INT DEFAULT 1 PRIMARY KEY, a INT)",
            "CREATE TABLE last_one (id INT PRIMARY KEY);"
            "SET SESSION binlog_row_image = MINIMAL; INSERT INTO one (a) VALUES (7);"
            "UPDATE one SET a = 8; INSERT INTO last_one VALUES (1)",
        )
        world.wait_for_row("last_one")
    assert world.rows("one") == []
    assert "lacks the key column id; set binlog_row_image=FULL" in quarantined(world)["one"]


@contextmanager
def changing(world: RowsWorld, rows: int) -> Iterator[None]:
    """Set one column of one row after the other, with minimal images."""
    done, chosen = threading.Event(), random.Random(7)

    def change() -> None:
        with world.server.connect(database=world.database) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_row_image = MINIMAL")
            while not done.is_set():
                value = chosen.choice(("a = a + 1", "b = CONCAT(a, 'b')", "c = REPEAT('c', a)"))
                cursor.execute(f"UPDATE busy SET {value} WHERE id = %s", (chosen.randrange(rows),))

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("database", ["mysql", "mariadb", "mysql57"], indirect=True)
def test_rows_that_change_while_a_snapshot_reads_them(world: RowsWorld) -> None:
    """The last record of each is whole."""
    count = 3000
    run(world, "CREATE TABLE busy (id INT PRIMARY KEY, a INT, b VARCHAR(100), c TEXT)")
    with world.server.connect(database=world.database) as connection, connection.cursor() as cursor:
        rows = [(number, number % 50, f"text {number}") for number in range(count)]
        cursor.executemany("INSERT INTO busy VALUES (%s, %s, %s, NULL)", rows)
    with world.service("run"):
        world.wait_for_start()
        with changing(world, count):
            options = {"MILLRACE_SNAPSHOT_CHUNK_ROWS": "100", "MILLRACE_SNAPSHOT_ROWS_PER_S": "500"}
            world.environment |= options
            world.command("snapshot", f"{world.database}.busy")
        records: list[dict[str, Any]] = []

        def is_equal() -> bool:
            records[:] = world.rows("busy")
            last = {row["after"]["id"]: row for row in records}
            whole = [tuple(row["after"].values()) for row in last.values() if not row["after_missing"]]
            return sorted(whole) == sorted(world.server.query(f"SELECT * FROM {world.database}.busy"))

        wait_for(is_equal, None, lambda: str(len(records)))
    with_holes: set[int] = set()
    completed = 0
    for row in records:
        completed += row["op"] == "r" and row["after"]["id"] in with_holes
        if row["after_missing"]:
            with_holes.add(row["after"]["id"])
    assert completed, "no row was changed while it was read"

"""Snapshots of tables while they are written to: the row topics, folded, are the tables."""

import json
import signal as signal_module
import sys
import threading
import time
from collections import Counter
from contextlib import nullcontext
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer

from millrace.avro.records import deserialize
from millrace.avro.snapshots import MERGED_KEY, SnapshotMerged, SnapshotState
from millrace.kafka.state import last_record, read_state
from millrace.local import MariaDB
from millrace.runtime.exit_codes import ExitCode
from tests.service_process import started, wait_for
from tests.unit.helm.chart import MINIMAL, render
from tests.unit.helm.chart import merged as merged_values
from tests.unit.helm.test_render import by_kind, environment, pods
from tests.worker import Worker

from .rows_world import MARIADB_IS_SLOW, MYSQL_IS_SLOW, SERVICES, RowsWorld, without_column_names
from .test_rowmapper import differences, run

TABLES = """
CREATE TABLE plain (id INT PRIMARY KEY, note VARCHAR(100), amount DECIMAL(12,2), at DATETIME(3), f FLOAT);
CREATE TABLE pair (a INT, b VARCHAR(20) CHARACTER SET latin1, v TEXT, PRIMARY KEY (b, a));
CREATE TABLE kinds (k ENUM('z','y','x'), t TIMESTAMP(3), n INT, v BIT(9), PRIMARY KEY (k, t));
CREATE TABLE old (id INT PRIMARY KEY, v VARCHAR(20)) ENGINE=MyISAM;
CREATE TABLE nothing (id INT PRIMARY KEY);
CREATE TABLE done (id INT PRIMARY KEY);
"""

NUMBERS = """(SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n AS n FROM
  (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION
   SELECT 7 UNION SELECT 8 UNION SELECT 9) a,
  (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION
   SELECT 7 UNION SELECT 8 UNION SELECT 9) b,
  (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION
   SELECT 7 UNION SELECT 8 UNION SELECT 9) c,
  (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION
   SELECT 7 UNION SELECT 8 UNION SELECT 9) d) numbers"""

ROWS = f"""
INSERT INTO plain SELECT n, CONCAT('note ', n), n / 4, '2024-01-02 03:04:05.678', n / 7 FROM {NUMBERS};
INSERT INTO pair SELECT n, CONCAT('k', n % 100, 'ü'), REPEAT('x', n % 50) FROM {NUMBERS} WHERE n < 3000;
INSERT INTO kinds SELECT 1 + n % 3, FROM_UNIXTIME(1700000000 + n / 8), n, n % 512 FROM {NUMBERS}
  WHERE n < 2000;
INSERT INTO old SELECT n, n FROM {NUMBERS} WHERE n < 1500;
"""


SLOWLY = {"MILLRACE_SNAPSHOT_ROWS_PER_S": "300"}
"""So slowly that nobody who ends a snapshot in the middle comes too late."""


@pytest.fixture
def world(world):
    world.environment |= {
        "MILLRACE_SNAPSHOT_TABLES": f"{world.database}.*",
        "MILLRACE_SNAPSHOT_CHUNK_ROWS": "700",
    }
    return world


class Writer(Worker):
    """Writes to the tables until it is told to stop: inserts, updates, deletes, changes of the key."""

    def __init__(self, world):
        super().__init__()
        self._world = world
        self.statements = 0

    def _run(self):
        connection = self._world.server.connect(autocommit=True, database=self._world.database)
        with connection, connection.cursor() as cursor:
            number = 0
            while not self._stop.wait(0.02):
                number += 1
                at = number * 7919 % 10_000
                for statement in (
                    f"UPDATE plain SET note = 'changed {number}', amount = amount + 1 WHERE id = {at}",
                    f"DELETE FROM plain WHERE id = {(at + 1) % 10_000}",
                    f"REPLACE INTO plain VALUES ({(at + 2) % 10_000}, 'new {number}', 1, NULL, {number} / 3)",
                    f"UPDATE IGNORE plain SET id = id + 20000 WHERE id = {(at + 3) % 10_000}",
                    f"UPDATE IGNORE pair SET a = a + 5000 WHERE a = {at % 3000}",
                    f"DELETE FROM kinds WHERE n = {at % 2000}",
                    f"UPDATE old SET v = 'changed {number}' WHERE id = {at % 1500}",
                ):
                    cursor.execute(statement)
                    self.statements += 1


def merged(world):
    found = last_record(world.settings, world.topics.state, lambda record: record.key == MERGED_KEY)
    return SnapshotMerged("", 0) if found is None else SnapshotMerged.from_bytes(found.value)


def state(world):
    return SnapshotState.from_bytes(read_state(world.settings, world.source, "snapshot").value)


def wait_until_merged(world):
    """Wait until all that the snapshot topic holds is in the row topics."""
    last = last_record(world.settings, world.topics.snapshot)
    wait_for(lambda: merged(world).offset > last.offset, None, lambda: world.log("rowmapper"))
    assert merged(world).refused == 0


def take(world, code=0, **environment):
    with world.service("snapshot", ends_with=code, **environment) as process:
        process.wait(timeout=180)
        assert process.returncode == code, world.log("snapshot")
        return process.error_output


@MARIADB_IS_SLOW
@pytest.mark.parametrize("metadata", [pytest.param("FULL", marks=pytest.mark.slow), "least"])
def test_row_topics_equal_tables_that_are_written_to(world, metadata):
    with without_column_names(world.server) if metadata == "least" else nullcontext():
        run(world, TABLES, ROWS)
        with world.services(*SERVICES):
            world.wait_for_start()
            with Writer(world) as writer:
                time.sleep(0.5)
                take(world)
                time.sleep(0.5)
            assert writer.statements > 100
            run(world, "INSERT INTO done VALUES (1)")
            world.wait_for_row("done")
            wait_until_merged(world)
            assert differences(world) == {}
    assert state(world).finished
    ops = Counter(row["op"] for row in world.rows("plain"))
    assert ops["r"] > 5000
    assert set(ops) <= {"r", "c", "u", "d"}


@MARIADB_IS_SLOW
def test_a_snapshot_that_is_ended_resumes(world):
    run(world, TABLES, ROWS)
    with world.services(*SERVICES):
        world.wait_for_start()
        with Writer(world):
            written = 0
            for number in (signal_module.SIGKILL, signal_module.SIGTERM):
                with world.service("snapshot", ends_with=ExitCode.INTERRUPTED, **SLOWLY) as process:
                    enough = written + 1000
                    wait_until(world, lambda: progress(world) >= enough)  # noqa: B023 - called at once
                    process.send_signal(number)
                    process.wait()
                assert not state(world).finished
                written = progress(world)
            take(world)
        assert "resuming a snapshot" in world.log("snapshot")
        run(world, "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
        wait_until_merged(world)
        assert differences(world) == {}
    # Nothing that was written before an end was written again.
    ops = Counter(row["op"] for row in world.rows("old"))
    assert ops["r"] <= 1500


@MARIADB_IS_SLOW
def test_a_paused_snapshot_waits_and_resumes(world):
    world.environment["MILLRACE_KAFKA_FENCED_WAIT_S"] = "0"
    run(world, TABLES, ROWS)
    with world.services(*SERVICES):
        world.wait_for_start()
    with world.service("snapshot", ends_with=ExitCode.INTERRUPTED, **SLOWLY):
        wait_until(world, lambda: progress(world) > 0)
        assert "paused" in world.command("pause").stdout
        wait_until(world, lambda: "the source is paused" in world.log("snapshot"))
    written = progress(world)
    assert not state(world).finished
    with world.service("snapshot") as process:
        wait_until(world, lambda: "the source is paused" in world.log("snapshot"))
        assert progress(world) == written
        assert "resumed" in world.command("resume").stdout
        process.wait(timeout=120)
        assert process.returncode == 0, world.log("snapshot")
    with world.services(*SERVICES):
        run(world, "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
        wait_until_merged(world)
        assert differences(world) == {}


def wait_until(world, met):
    wait_for(met, None, lambda: str([log.read_text()[-2000:] for log in world.folder.glob("*.log")]))


def progress(world):
    found = read_state(world.settings, world.source, "snapshot")
    return SnapshotState.from_bytes(found.value).rows if found and found.value else 0


KEYLESS = """
CREATE TABLE keyless (v VARCHAR(20), n DOUBLE);
CREATE TABLE done (id INT PRIMARY KEY);
"""


@MARIADB_IS_SLOW
def test_a_table_without_a_key(world):
    run(
        world,
        KEYLESS,
        f"INSERT INTO keyless SELECT CONCAT('v', n % 100), n % 7 FROM {NUMBERS} WHERE n < 3000",
    )
    with world.services(*SERVICES):
        world.wait_for_start()
        take(world)
        run(
            world,
            """
            INSERT INTO keyless VALUES ('v1', 1), ('new', 2);
            DELETE FROM keyless WHERE v = 'v2' LIMIT 5;
            UPDATE keyless SET n = 9 WHERE v = 'v3' LIMIT 3;
            INSERT INTO done VALUES (1);
            """,
        )
        world.wait_for_row("done")
        wait_until_merged(world)
        assert differences(world) == {}
        # Its rows cannot be told from those of a second time: they would count twice.
        for again in (
            {"MILLRACE_RESTART": "true"},
            {"MILLRACE_SNAPSHOT_TABLES": f"{world.database}.keyless"},
        ):
            said = take(world, code=ExitCode.DATA, **again)
            assert said.count("\n") == 1
            assert f"were left out of the snapshot: {world.database}.keyless has no key" in said
            (refused,) = [table for table in state(world).tables if table.table == "keyless"]
            assert "twice" in refused.note
            assert differences(world) == {}
        for command in ("status", "doctor"):
            assert f"snapshot: {world.database}.keyless was left out: " in world.command(command).stdout
        # Nor is it taken for read without a name, or by a Job that is started again.
        for mode in ("now", "once"):
            assert "keyless" in take(world, code=ExitCode.DATA, MILLRACE_SNAPSHOT_MODE=mode)


@MARIADB_IS_SLOW
def test_a_table_without_a_key_waits_for_services_that_have_not_run(world):
    run(world, KEYLESS, "INSERT INTO keyless VALUES ('a', 1), ('a', 1), ('b', 2)")
    with world.services("reader"):
        world.wait_for_start()
        with world.service("snapshot") as process:
            wait_until(world, lambda: "waiting for the decoder to come to" in world.log("snapshot"))
            assert process.poll() is None
            with world.services("decoder", "rowmapper"):
                process.wait(timeout=120)
                assert process.returncode == 0, world.log("snapshot")
                run(world, "INSERT INTO keyless VALUES ('c', 3); INSERT INTO done VALUES (1)")
                world.wait_for_row("done")
                wait_until_merged(world)
                assert differences(world) == {}


@MARIADB_IS_SLOW
def test_one_table_later(world):
    run(world, "CREATE TABLE one (id INT PRIMARY KEY, v INT); CREATE TABLE two (id INT PRIMARY KEY)")
    run(world, "INSERT INTO one VALUES (1, 1), (2, 2); INSERT INTO two VALUES (1)")
    with world.services(*SERVICES):
        world.wait_for_start()
        take(world, MILLRACE_SNAPSHOT_TABLES=f"{world.database}.two")
        world.wait_for_row("two")
        assert set(differences(world)) == {"one"}
        where = f'{{"{world.database}.one": "v > 1"}}'
        take(world, MILLRACE_SNAPSHOT_TABLES=f"{world.database}.one", MILLRACE_SNAPSHOT_WHERE=where)
        (record,) = world.wait_for_row("one")
        assert (record["op"], record["after"]["id"], record["before"]) == ("r", 2, None)
        assert record["source"]["file"]
        assert len(world.rows("two")) == 1


@MARIADB_IS_SLOW
def test_what_was_not_read_yet_and_what_cannot_be_read(world):
    """Without a name all tables are read that were not; a name that stands for none is refused."""
    database = world.database
    run(world, "CREATE TABLE one (id INT PRIMARY KEY, v INT); CREATE TABLE two (id INT PRIMARY KEY)")
    run(world, "INSERT INTO one VALUES (1, 1), (2, 2); INSERT INTO two VALUES (1)")
    run(world, "CREATE TABLE kept (id INT PRIMARY KEY); CREATE VIEW seen AS SELECT * FROM one")
    run(world, "INSERT INTO kept VALUES (1)")
    world.environment["MILLRACE_REPLICATE_IGNORE_TABLE"] = f"{database}.kept"
    del world.environment["MILLRACE_SNAPSHOT_TABLES"]
    with world.services(*SERVICES):
        world.wait_for_start()
        for names, said in {
            (f"{database}.nosuch",): f"{database}.nosuch: there is no such table",
            (f"{database}.one", f"{database}.nosuch"): f"{database}.nosuch: there is no such table",
            (f"{database}.no*",): f"{database}.no*: there is no such table",
            (f"{database}.seen",): f"{database}.seen: there is no such table",
            (f"{database}.kept",): f"{database}.kept: MILLRACE_REPLICATE_…",
            (f"{database}.one", "--exclude", f"{database}.*"): f"{database}.one: MILLRACE_REPLICATE_…",
            ("--where", f'{{"{database}.on": "v > 1"}}'): f"MILLRACE_SNAPSHOT_WHERE: {database}.on: ",
        }.items():
            done = world.command("snapshot", *names, code=ExitCode.SETTINGS)
            assert done.stderr.startswith(f"error: {said}")
            assert done.stderr.count("\n") == 1
        assert read_state(world.settings, world.source, "snapshot") is None
        world.command("snapshot", f"{database}.two")
        where = f'{{"{database}.one": "v > 1"}}'
        world.command("snapshot", "--where", where)
        world.wait_for_row("one", 1)
        world.command("snapshot")
        world.wait_for_row("one", 3)
        assert (len(world.rows("one")), len(world.rows("two"))) == (3, 1)
        assert "all is read: nothing to do" in world.command("snapshot").stdout
        assert set(differences(world)) == {"kept"}
        # A table without a key that was created meanwhile is whole in its topic, and need not be read.
        run(world, "CREATE TABLE bare (v INT); INSERT INTO bare VALUES (1), (1)")
        world.wait_for_row("bare", 2)
        assert "the stream has all of its rows" in world.command("snapshot").stdout
        assert "has no key, and " in world.command("snapshot", f"{database}.bare", code=7).stderr
        assert set(differences(world)) == {"kept"}


@MARIADB_IS_SLOW
def test_a_snapshot_beside_all_stages_in_one_process(world):
    run(world, TABLES, ROWS)
    with world.service("run"):
        world.wait_for_start()
        with Writer(world):
            take(world)
        wait_until_merged(world)
        run(world, "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
        assert differences(world) == {}


_JSON = {"Content-Type": "application/vnd.schemaregistry.v1+json"}


@MARIADB_IS_SLOW
def test_a_database_that_has_another_name_in_topics(world):
    """Rows of a table without a key are found there; a table that is left out is not read."""
    world.environment |= {
        "MILLRACE_REPLICATE_REWRITE_DB": f"{world.database}->other",
        "MILLRACE_REPLICATE_IGNORE_TABLE": "other.secret",
        "MILLRACE_SNAPSHOT_TABLES": f"{world.database}.*",
    }
    run(world, "CREATE TABLE keyless (v INT); CREATE TABLE secret (id INT PRIMARY KEY)")
    run(world, "CREATE TABLE done (id INT PRIMARY KEY)", "INSERT INTO keyless VALUES (1)")
    with world.services(*SERVICES):
        world.wait_for_start()
        take(world)
        assert [table.table for table in state(world).tables] == ["done", "keyless"]
        wait_until_merged(world)
        take(world, code=ExitCode.DATA, MILLRACE_RESTART="true")
        (refused,) = [table for table in state(world).tables if table.note]
        assert "twice" in refused.note
        run(world, "INSERT INTO done VALUES (1)")
        world.database = "other"
        world.wait_for_row("done")
        assert [row["after"] for row in world.rows("keyless")] == [{"v": 1}]
        world.database = world.source.replace("-", "_")


UNIQUE = """
CREATE TABLE by_code (code CHAR(4) NOT NULL, other INT NOT NULL, v INT, UNIQUE zz (code), UNIQUE aa (other));
CREATE TABLE by_pair (a INT NOT NULL, b INT NOT NULL, v INT, UNIQUE (b, a), UNIQUE (v));
CREATE TABLE nullable (a INT, v INT, UNIQUE (a));
CREATE TABLE done (id INT PRIMARY KEY);
"""


@pytest.mark.parametrize("metadata", ["FULL", "least"])
@MARIADB_IS_SLOW
def test_a_unique_key_stands_in_for_a_primary_key(world, metadata):
    """In rows of the stream and of the snapshot, whatever the log tells of keys."""
    keys = {"by_code": ["other"], "by_pair": ["b", "a"], "nullable": None}
    with without_column_names(world.server) if metadata == "least" else nullcontext():
        run(world, UNIQUE, "INSERT INTO by_code VALUES ('a', 1, 1), ('b', 2, 2), ('c', 3, 3)")
        run(world, "INSERT INTO by_pair VALUES (1, 1, 1), (1, 2, 2)", "INSERT INTO nullable VALUES (1, 1)")
        with world.services(*SERVICES):
            world.wait_for_start()
            take(world)
            wait_until_merged(world)
            run(world, "UPDATE by_code SET v = 20 WHERE code = 'b'; DELETE FROM by_code WHERE code = 'a'")
            run(world, "UPDATE by_pair SET a = 5 WHERE b = 2; UPDATE nullable SET v = 2")
            run(world, "INSERT INTO done VALUES (1)")
            world.wait_for_row("done")
            wait_until_merged(world)
            assert differences(world) == {}
    assert [row["op"] for row in world.rows("by_code")] == ["r", "r", "r", "u", "d"]
    assert [row["op"] for row in world.rows("by_pair")] == ["r", "r", "d", "c"]
    for table, names in keys.items():
        messages = world.messages(world.topics.table(world.database, table))
        found = {message.key() and tuple(deserialize(world.registry, message.key())) for message in messages}
        assert found == {names and tuple(names)}, table


def accept_other_keys(world, registry, *tables):
    """Let the registry take another key of tables, as docs/how-to/quarantine.md has it."""
    for table in tables:
        subject = f"{world.topics.table(world.database, table)}-key"
        body = json.dumps({"compatibility": "NONE"}).encode()
        urlopen(Request(f"{registry.url}/config/{subject}", body, _JSON, method="PUT"), timeout=30).close()


@MARIADB_IS_SLOW
def test_a_key_that_is_altered_before_its_rows_are_merged(world, registry):
    """By its new key a row has changed whose bytes are the old key of another, which is not left out."""
    accept_other_keys(world, registry, "t")
    run(world, "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v INT)")
    run(world, "CREATE TABLE done (id INT PRIMARY KEY)")
    run(world, f"INSERT INTO t SELECT n, 99 - n, n FROM {NUMBERS} WHERE n < 100")
    with world.services("reader", "decoder"):
        world.wait_for_start()
        take(world)
        run(world, "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (n)", "UPDATE t SET v = -1 WHERE id = 7")
        run(world, "INSERT INTO done VALUES (1)")
        with world.service("rowmapper"):
            world.wait_for_row("done")
            wait_until_merged(world)
            assert differences(world) == {}
    last = {row["after"]["id"]: row["after"]["v"] for row in world.rows("t")}
    assert last == {number: number for number in range(100)} | {7: -1}


@MYSQL_IS_SLOW
def test_a_key_that_is_altered_while_its_table_is_read(world, registry):
    """The table is read again by its new key; others go on."""
    accept_other_keys(world, registry, "t", "u")
    run(world, "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, v INT)")
    run(world, "CREATE TABLE u (id INT PRIMARY KEY, n INT NOT NULL, v INT)")
    run(world, "CREATE TABLE done (id INT PRIMARY KEY)")
    run(world, f"INSERT INTO t SELECT n, 9999 - n, n FROM {NUMBERS}; INSERT INTO u SELECT * FROM t")
    with world.services(*SERVICES):
        world.wait_for_start()
        # In the middle of it, and while it is stopped.
        with world.service("snapshot", MILLRACE_SNAPSHOT_ROWS_PER_S="1500") as process:
            wait_until(world, lambda: progress(world) > 2000)
            run(world, "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (n)")
            wait_until(world, lambda: "its key was altered" in world.log("snapshot"))
            process.kill()
            process.wait()
        run(world, "ALTER TABLE u DROP PRIMARY KEY, ADD PRIMARY KEY (n)", "UPDATE u SET v = -1 WHERE id = 7")
        take(world)
        run(world, "DELETE FROM t WHERE id = 5; INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
        wait_until_merged(world)
        assert differences(world) == {}
    assert state(world).finished
    assert {table.table: table.note for table in state(world).tables} == dict.fromkeys(("t", "u", "done"), "")


@pytest.fixture
def waiting_server():
    """A server of our own, on which a COMMIT can be made to wait between the log and the engine."""
    server = MariaDB(
        options={"rpl-semi-sync-master-wait-point": "AFTER_SYNC", "rpl-semi-sync-master-timeout": 0xFFFFFFFF}
    )
    server.start()
    yield server
    server.kill()
    server.close()


def test_a_commit_that_waits_between_log_and_engine(kafka, registry, waiting_server, source_name, tmp_path):
    with RowsWorld(kafka, registry, waiting_server, source_name, tmp_path).with_database() as world:
        world.environment["MILLRACE_SNAPSHOT_TABLES"] = f"{world.database}.*"
        run(world, "CREATE TABLE t (id INT PRIMARY KEY, v INT); CREATE TABLE done (id INT PRIMARY KEY)")
        run(world, "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
        with world.services(*SERVICES):
            world.wait_for_start()
            run(world, "INSERT INTO t VALUES (5, 5)")
            world.wait_for_row("t")
            waiting_server.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
            change = "UPDATE t SET v = 20 WHERE id = 2; "
            thread = threading.Thread(target=run, args=(world, change), daemon=True)
            thread.start()
            # The stream has the change, and SELECT does not see it.
            assert world.wait_for_row("t", 2)[-1]["after"]["v"] == 20
            assert waiting_server.query(f"SELECT v FROM {world.database}.t WHERE id = 2") == [(2,)]
            take(world)
            waiting_server.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            thread.join(60)
            run(world, "INSERT INTO done VALUES (1)")
            world.wait_for_row("done")
            wait_until_merged(world)
            assert differences(world) == {}
        assert merged(world).dropped == 1
        assert [row["after"]["id"] for row in world.rows("t") if row["op"] == "r"] == [1, 3, 4, 5]


def ask(world, value):
    """Write a signal, as anybody may who writes to Kafka."""
    producer = Producer({"bootstrap.servers": world.settings.bootstrap_servers})
    producer.produce(world.topics.signals, value, world.source)
    assert producer.flush(30) == 0


def signal(*tables):
    return json.dumps({"type": "execute-snapshot", "data": {"data-collections": tables}})


@MARIADB_IS_SLOW
def test_signals_are_followed_each_once(world):
    tables = {name: f"{world.database}.{name}" for name in ("one", "two", "big", "gone")}
    run(world, "CREATE TABLE one (id INT PRIMARY KEY); CREATE TABLE two (id INT PRIMARY KEY)")
    run(world, "CREATE TABLE big (id INT PRIMARY KEY, v INT); CREATE TABLE done (id INT PRIMARY KEY)")
    run(world, "INSERT INTO one VALUES (1), (2); INSERT INTO two VALUES (1)")
    run(world, f"INSERT INTO big SELECT n, n FROM {NUMBERS}")
    del world.environment["MILLRACE_SNAPSHOT_TABLES"]  # signals name them
    stays = {"MILLRACE_SNAPSHOT_MODE": "signals"}
    with world.services(*SERVICES):
        world.wait_for_start()
        with world.service("snapshot", **stays):
            wait_until(world, lambda: "waiting for signals" in world.log("snapshot"))
            for value in ("nonsense", signal(tables["gone"]), signal(tables["one"])):
                ask(world, value)
            world.wait_for_row("one", 2)
            assert world.log("snapshot").count("a signal is left out") == 2
            assert [(row["op"], row["after"]["id"]) for row in world.rows("one")] == [("r", 1), ("r", 2)]
            assert set(differences(world)) == {"two", "big"}
        # One that is killed in the middle resumes, and follows what came meanwhile, and nothing twice.
        with world.service("snapshot", **stays, **SLOWLY) as process:
            ask(world, signal(f"{world.database}.b*"))
            wait_until(world, lambda: progress(world) > 1000)
            process.kill()
            process.wait()
        ask(world, signal(tables["two"]))
        with world.service("snapshot", **stays):
            world.wait_for_row("two")
            run(world, "INSERT INTO done VALUES (1)")
            world.wait_for_row("done")
            wait_until_merged(world)
            assert differences(world) == {}
        for name, count in (("one", 2), ("two", 1), ("big", 10_000)):
            assert len(world.rows(name)) == count, name
        # Another one by command leaves the place in the signals as it is.
        take(world, MILLRACE_SNAPSHOT_TABLES=tables["two"])
        with world.service("snapshot", **stays):
            ask(world, signal(tables["one"]))
            world.wait_for_row("one", 4)
        assert len(world.rows("two")) == 2


class Pods:
    """What runs in the pods of the chart, as processes of this machine, which has their Secrets."""

    def __init__(self, world, **snapshot):
        self._world = world
        server = world.server
        shop = {
            "name": world.source,
            "start": "latest",
            "config": '[replicate]\nignore_db = "audit"\n',
            "mysql": {"host": server.host, "port": server.port, "tls": {"getServerPublicKey": True}},
            "snapshot": {"mode": "once", **snapshot},
        }
        values = {
            "kafka": {"bootstrapServers": world.settings.bootstrap_servers, "connectTimeoutSeconds": 60},
            "registry": {"url": world.environment["MILLRACE_REGISTRY_URL"]},
            "topics": {"replicationFactor": 1},
            "sources": {"shop": shop},
        }
        self._objects = render(merged_values(MINIMAL, values))
        self._secrets = {("shop-mysql", "username"): server.user, ("shop-mysql", "password"): server.password}
        (self.job,) = by_kind(self._objects, "Job")

    def run(self, component):
        """Run the command of a pod with its variables and files; it has no network of its own."""
        name = f"try-millrace-shop-{component}"
        (container,) = pods(self._objects)[name]["spec"]["containers"]
        variables = environment(self._objects, name)
        settings = {key: self._secrets.get(value, value) for key, value in variables.items()}
        (file,) = by_kind(self._objects, "ConfigMap")["try-millrace-shop-config"]["data"].items()
        (self._world.folder / file[0]).write_text(file[1])
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert settings["MILLRACE_CONFIG"] == f"{mounts['config']}/{file[0]}"
        settings |= {"MILLRACE_CONFIG": str(self._world.folder / file[0]), "MILLRACE_HTTP_PORT": "0"}
        command = [sys.executable, "-m", "millrace.cli", *container["args"]]
        log = self._world.folder / f"{component}.log"
        return started(component, settings, command=command, log=log)

    def take(self):
        with self.run("snapshot") as process:
            process.wait(timeout=180)
            assert process.returncode == 0, self._world.log("snapshot")


@MARIADB_IS_SLOW
def test_the_first_snapshot_alone(world):
    """As the Job of the chart takes it: a Job of other settings finds it taken."""
    run(world, "CREATE TABLE one (id INT PRIMARY KEY); INSERT INTO one VALUES (1)")
    run(world, "CREATE TABLE two (id INT PRIMARY KEY); INSERT INTO two VALUES (1)")
    first = Pods(world, tables=[f"{world.database}.one"])
    with first.run("reader"), first.run("decoder"), first.run("rowmapper"):
        world.wait_for_start()
        first.take()
        world.wait_for_row("one")
        taken = state(world)
        second = Pods(world, tables=[f"{world.database}.*"])
        assert second.job != first.job
        for job in (first, second):
            job.take()
            assert world.log("snapshot").count("nothing to do") == 1 + [first, second].index(job)
            assert state(world) == taken
        assert set(differences(world)) == {"two"}

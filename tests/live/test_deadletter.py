"""A table is quarantined for a real cause, fixed, redriven: topics equal the tables, killed or not."""

import json
import signal

import pytest

from millrace.avro.catalog import CatalogEntry
from millrace.avro.service_state import RowMapperState
from millrace.kafka.state import read_state
from millrace.local.processes import release_port, reserve_port
from tests.service_process import status_of, wait_for
from tests.shared import run_python

from .rows_world import MARIADB_IS_SLOW, SERVICES, without_column_names
from .test_rowmapper import TABLES, differences, places, run

WRITES = [
    "INSERT INTO plain (id, note) VALUES (2, 'two'), (3, 'three')",
    """BEGIN; INSERT INTO plain (id) VALUES (4); INSERT INTO pair VALUES (1, '2020-01-01', 'x');
    SAVEPOINT s; INSERT INTO plain (id, note) VALUES (5, 'undone'); ROLLBACK TO s;
    UPDATE plain SET note = 'four' WHERE id = 4; COMMIT""",
    *(f"INSERT INTO plain (id, note) VALUES ({number}, 'row')" for number in range(10, 40)),
    "UPDATE plain SET note = 'changed' WHERE id < 20",
    "DELETE FROM plain WHERE id = 3",
    "UPDATE plain SET id = 300 WHERE id = 2",
]


@pytest.fixture
def world(world):
    with without_column_names(world.server):
        yield world


def deadletter(world, *arguments, code=0, text=True):
    return world.command("deadletter", *arguments, code=code, text=text)


def rowmapper_state(world):
    stored = read_state(world.settings, world.source, "rowmapper")
    return RowMapperState.from_bytes(stored.value)


def wait_for_definition(world, columns):
    """Wait until the catalogue has a definition of the table with so many columns."""

    def is_there():
        entries = [
            CatalogEntry.from_bytes(message.value()) for message in world.messages(world.topics.catalog)
        ]
        widths = [
            len(entry.definition.columns)
            for entry in entries
            if (entry.definition.database, entry.definition.table) == (world.database, "plain")
        ]
        return widths[-1:] == [columns]

    wait_for(is_there, None, lambda: world.log("reader"))


def quarantine(world):
    """Alter a table in a way that is in no log, and write to it; return how many letters wait."""
    run(world, TABLES)
    with world.services(*SERVICES):
        world.wait_for_start()
        run(
            world, "INSERT INTO plain (id) VALUES (1); SET sql_log_bin = 0; ALTER TABLE plain DROP COLUMN big"
        )
        run(world, *WRITES, "INSERT INTO done VALUES (1)")
        world.wait_for_row("done")
    assert [row["after"]["id"] for row in world.rows("plain")] == [1]
    return len(world.messages(world.topics.deadletter))


@MARIADB_IS_SLOW
def test_a_quarantined_table_is_redriven(world):
    count = quarantine(world)
    table = f"{world.database}.plain"
    dead_letters = [json.loads(line) for line in deadletter(world, "list", "--json").stdout.splitlines()]
    assert len(dead_letters) == count
    assert {
        (dead_letter["table"], dead_letter["waits"], dead_letter["service"]) for dead_letter in dead_letters
    } == {(table, True, "rowmapper")}
    listed = deadletter(world, "list", "--waiting", "--limit", "2", "--table", table).stdout.splitlines()
    assert len(listed) == 3
    since = f"has been quarantined since {dead_letters[0]['key']}"
    assert f"{table} {since}, {count} dead letters wait" in listed[-1]
    assert deadletter(world, "list", "--service", "decoder", "--json").stdout == ""
    shown = deadletter(world, "show", str(dead_letters[0]["offset"])).stdout
    assert f"table:       {table}" in shown
    assert "SchemaMismatchError" in shown
    whole = deadletter(world, "show", str(dead_letters[0]["offset"]), "--format", "bytes", text=False).stdout
    assert len(whole) == dead_letters[0]["size"]
    refused = deadletter(world, "redrive", "no.table", code=2).stderr
    assert refused == (
        f"error: no.table is not a quarantined table of {world.source}; quarantined are: {table}\n"
    )

    # Nothing is fixed yet.
    failed = deadletter(world, "redrive", table, code=7).stderr
    assert f"error: {table} stays quarantined from {dead_letters[0]['key']} on: " in failed
    assert "5 columns in the catalog, but 4 in the table map" in failed
    assert len(rowmapper_state(world).quarantined) == 1

    with world.services(*SERVICES):
        wait_for_definition(world, 4)
        run(world, "INSERT INTO plain (id, note) VALUES (50, 'behind the others')")
        run(world, "INSERT INTO done VALUES (2)")
        world.wait_for_row("done", 2)
    said = deadletter(world, "redrive").stdout
    assert f"{table}: {count + 1} dead letters mapped" in said
    assert deadletter(world, "redrive").stdout == f"no table of {world.source} is quarantined\n"
    assert rowmapper_state(world).quarantined == ()
    with world.services(*SERVICES):
        run(world, "UPDATE plain SET note = 'live again' WHERE id = 50; INSERT INTO done VALUES (3)")
        world.wait_for_row("done", 3)
    assert_whole(world)
    assert world.rows("plain")[-1]["after"]["note"] == "live again"
    assert_paused_and_resumed(world)
    assert_the_source_is_held(world)
    assert_whole(world)
    assert_given_up(world, count + 3)
    assert not any(
        json.loads(line)["waits"] for line in deadletter(world, "list", "--json").stdout.splitlines()
    )


def assert_the_source_is_held(world):
    """Services that run and services that are started wait, and continue by themselves when it is resumed."""
    rows = len(world.rows("done"))

    def work():
        (line,) = world.command("status", world.source, "--json").stdout.splitlines()
        status = json.loads(line)
        return bool(status["paused"]), {each["work"] for each in status["services"].values()}

    def wait_until(*expected):
        found = []

        def is_so():
            found[:] = [work()]
            return found[0] == expected

        wait_for(is_so, None, lambda: str(found))

    with world.services("reader", "decoder") as services:
        with world.service("rowmapper"):
            run(world, "INSERT INTO done VALUES (100)")
            world.wait_for_row("done", rows + 1)
            assert work() == (False, {"running"})
            assert "paused; its services wait" in world.command("pause").stdout
            assert work() == (True, {"paused"})
            assert "was paused already, by millrace pause, process" in world.command("pause").stdout
            run(world, "INSERT INTO done VALUES (101)")
            assert (
                "paused, by millrace pause, process"
                in run_python("-m", "millrace.cli", "doctor", settings=world.environment).stdout
            )
            for name in SERVICES:
                wait_for(lambda name=name: "is paused" in world.log(name), services[0], name)
        # One is started again meanwhile.
        with world.service("rowmapper"):
            assert len(world.rows("done")) == rows + 1
            assert work() == (True, {"paused"})
            assert f"{world.source}: resumed" in world.command("resume").stdout
            world.wait_for_row("done", rows + 2)
            wait_until(False, {"running"})
            # A command in the place of the row mapper, after which that goes on by itself.
            world.command("pause", "no.table2")
            run(world, "INSERT INTO done VALUES (102)")
            world.wait_for_row("done", rows + 3)
            world.command("resume", "no.table2")
            run(world, "INSERT INTO done VALUES (103)")
            world.wait_for_row("done", rows + 4)
            wait_until(False, {"running"})
            services[0].kill()
            services[0].wait()
            wait_until(False, {"running", "not running"})
    wait_until(False, {"not running"})
    assert world.command("resume", code=2).stderr == f"error: {world.source} is not paused\n"
    readyz = f"http://127.0.0.1:{(port := reserve_port())}/readyz"
    with world.service("run", MILLRACE_HTTP_PORT=str(port)) as process:
        wait_until(False, {"running"})
        world.command("pause")
        run(world, "INSERT INTO done VALUES (104)")
        wait_until(True, {"paused"})
        wait_for(lambda: "is paused, by" in status_of(readyz)[1], process, "a reason")
        assert status_of(readyz)[0] == 503
        world.command("resume")
        world.wait_for_row("done", rows + 5)
        wait_for(lambda: status_of(readyz)[0] == 200, process, "readiness")
    release_port(port)


def assert_paused_and_resumed(world):
    """A table's rows wait in their order, over restarts, until it is resumed."""
    table = f"{world.database}.plain"
    paused = world.command("pause", table, "no.table")
    assert f"{table}: paused" in paused.stdout
    assert "no.table: paused" in paused.stdout
    (warning,) = paused.stderr.splitlines()
    assert warning.startswith("warning: no.table: neither the schema history nor a topic has a table")
    with world.services(*SERVICES):
        run(world, "INSERT INTO plain (id, note) VALUES (60, 'waits'); INSERT INTO done VALUES (4)")
        world.wait_for_row("done", 4)
    assert f"{table}: was quarantined or paused already" in world.command("pause", table).stdout
    with world.services(*SERVICES):
        run(world, "UPDATE plain SET note = 'comes' WHERE id = 60; INSERT INTO done VALUES (5)")
        world.wait_for_row("done", 5)
    assert 60 not in [(row["after"] or {}).get("id") for row in world.rows("plain")]
    assert f"{table} is paused, 2 dead letters wait" in deadletter(world, "list").stdout
    assert deadletter(world, "redrive").stdout == f"no table of {world.source} is quarantined\n"
    resumed = world.command("resume", table, "no.table").stdout
    assert f"{table}: 2 dead letters mapped, 2 rows" in resumed
    assert [row["after"]["note"] for row in world.rows("plain")[-2:]] == ["waits", "comes"]


def dead_letters(world):
    """What status counts of them, and what doctor says of those that wait."""
    found = json.loads(world.command("status", "--json").stdout)
    told = run_python("-m", "millrace.cli", "doctor", "--json", settings=world.environment).stdout
    (pause,) = [one["text"] for one in json.loads(told)["findings"] if one["check"] == "pause"] or [None]
    return found["dead_letters"], pause


def assert_given_up(world, redriven):
    """Rows that wait are discarded when that is confirmed; a snapshot brings the table as it is."""
    table = f"{world.database}.plain"
    world.command("pause", table)
    with world.services(*SERVICES):
        run(world, "INSERT INTO plain (id, note) VALUES (70, 'gone'); DELETE FROM plain WHERE id = 60")
        run(world, "INSERT INTO done VALUES (6)")
        wait_for(lambda: world.rows("done")[-1]["after"]["id"] == 6, None, lambda: world.log("rowmapper"))
    counts = {"count": redriven + 2, "exact": True, "waiting": 2, "redriven": redriven, "discarded": 0}
    assert dead_letters(world) == (counts, f"tables are paused: {table} (2 dead letters)")
    assert f"{table} is paused, 2 dead letters wait" in deadletter(world, "discard", table, code=1).stdout
    assert dead_letters(world)[0] == counts
    assert f"{table}: 2 dead letters discarded" in deadletter(world, "discard", "--yes", table).stdout
    assert dead_letters(world) == ({**counts, "waiting": 0, "discarded": 2}, None)
    assert differences(world) == {"plain": (1, 1)}
    with world.services(*SERVICES):
        run(world, "UPDATE plain SET note = 'goes on' WHERE id = 50; INSERT INTO done VALUES (7)")
        wait_for(lambda: world.rows("done")[-1]["after"]["id"] == 7, None, lambda: world.log("rowmapper"))
    assert world.rows("plain")[-1]["after"]["id"] == 50


def assert_whole(world):
    assert differences(world) == {}
    found = places(world)
    assert len(found) == len(set(found))
    assert "undone" not in {(row["after"] or row["before"])["note"] for row in world.rows("plain")}


KILLED = """
import sys
from tests.killed import Death, arm
arm("rowmapper", Death("{point}", 2), 3)
from millrace.cli import main
sys.argv = ["millrace", "deadletter", "redrive"]
main()
"""


@pytest.mark.parametrize("database", ["mysql"], indirect=True)
@pytest.mark.slow
def test_killed_while_a_table_is_given_back(world):
    """It is killed again and again, then a row mapper runs beside it: nothing is lost or repeated."""
    quarantine(world)
    with world.services(*SERVICES):
        wait_for_definition(world, 4)
        run(world, "INSERT INTO done VALUES (2)")
        world.wait_for_row("done", 2)
    before = rowmapper_state(world).quarantined[0]
    for point in ("before_commit", "after_commit", "after_produce", "before_commit"):
        process = run_python("-c", KILLED.format(point=point), settings=world.environment)
        assert process.returncode == -signal.SIGKILL, process
    (entry,) = rowmapper_state(world).quarantined
    assert entry.error == before.error
    assert entry.dead_letter is not None, "nothing was given back before it was killed"
    with world.service("rowmapper"):
        run(world, "INSERT INTO plain (id, note) VALUES (51, 'meanwhile')")
        with world.services("reader", "decoder"):
            run(world, "INSERT INTO done VALUES (3)")
            world.wait_for_row("done", 3)
        deadletter(world, "redrive")
        run(world, "INSERT INTO done VALUES (4)")
        with world.services("reader", "decoder"):
            world.wait_for_row("done", 4)
    assert "another rowmapper" in world.log("rowmapper")
    assert_whole(world)

"""Where a reader starts: beside logs without GTIDs, with a state, and moved on purpose."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from millrace.contract import GAP, HEADER_MARKER
from millrace.local import Kafka, MariaDB, MySQL
from tests.service_process import wait_for
from tests.shared import run_python

from .reader_world import (
    RawRecord,
    ReaderWorld,
    assert_closed_files_equal,
    executed,
    files_of,
    log_end,
    settle,
)
from .rows_world import MYSQL_IS_SLOW

Server = MySQL | MariaDB


def reset(world: ReaderWorld, to: str, *options: str, code: int = 0, answer: str = "") -> str:
    done = run_python(
        *("-m", "millrace.cli", "source", "reset", world.source, "--to", to, *options),
        settings=world.environment,
        input=answer,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


def write(server: Server, note: str) -> None:
    server.execute(
        "CREATE DATABASE IF NOT EXISTS reset_tests",
        "CREATE TABLE IF NOT EXISTS reset_tests.t (id INT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(50))",
        f"INSERT INTO reset_tests.t (note) VALUES ('{note}')",
    )


def notes(records: list[RawRecord], epoch: int) -> list[str]:
    """Which of the notes were read in an epoch, in their order."""
    found = []
    for record in records:
        if record.key.epoch == epoch and record.in_file and b"note-" in record.value:
            with suppress(ValueError):
                found.append("note-" + record.value.split(b"note-")[1][:4].decode())
    return list(dict.fromkeys(found))


def read_to_the_end(world: ReaderWorld, server: Server) -> list[RawRecord]:
    with world.reader() as process:
        world.wait_until_at(server, process)
    return world.raw()


@MYSQL_IS_SLOW
def test_a_source_is_moved(kafka: Kafka, database: Server, source_name: str) -> None:
    """Once to each kind of place; each time in an epoch of its own, after a record that says so."""
    database.execute("FLUSH BINARY LOGS")
    settle(database)
    begin = log_end(database)
    write(database, "note-0001")
    middle, gtids = log_end(database), executed(database)
    time.sleep(2)  # so that the second of the next transaction is another one
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    write(database, "note-0002")
    world = ReaderWorld.of(kafka, source_name, database, MILLRACE_START=f"{begin[0]}:{begin[1]}")
    assert notes(read_to_the_end(world, database), 0) == ["note-0001", "note-0002"]
    expected = ["note-0002"]
    for epoch, to in enumerate(
        (f"{middle[0]}:{middle[1]}", f"gtid:{gtids}", f"time:{moment}", "earliest", "latest"), start=1
    ):
        before = world.state()
        assert before is not None
        unread = f"note-1{epoch:03}"
        write(database, unread)
        expected.append(unread)
        said = reset(world, to, "--yes")
        assert f"{source_name} stands at {before.log_file}:{before.position} of epoch {epoch - 1}" in said
        assert ("left out: " if to == "latest" else "read a second time: ") in said
        moved = world.state()
        assert moved is not None
        assert (moved.reset, moved.epoch) == (to, epoch - 1)
        with world.reader() as process:
            if to == "latest":
                # The end is where it is when the reader comes to it, which its state says.
                wait_for(lambda epoch=epoch: _is_at(world, epoch), process, "the new epoch")  # type: ignore[misc]
                expected = []
            write(database, f"note-2{epoch:03}")
            expected.append(f"note-2{epoch:03}")
            world.wait_until_at(database, process)
        after = world.state()
        assert after is not None
        assert (after.reset, after.epoch, after.gtid_set) == (None, epoch, executed(database))
        records = [record for record in world.raw() if record.key.epoch == epoch]
        assert records[0].headers == {HEADER_MARKER: GAP}
        assert f"moved on purpose from {before.log_file}:{before.position} to".encode() in records[0].value
        found = notes(records, epoch)
        assert found[-len(expected) :] == expected
        assert (found == expected) is (to != "earliest")


def _is_at(world: ReaderWorld, epoch: int) -> bool:
    state = world.state()
    return state is not None and state.epoch == epoch


def test_a_reader_that_runs_waits_and_begins_there(kafka: Kafka, mysql: MySQL, source_name: str) -> None:
    write(mysql, "note-0001")
    world = ReaderWorld.of(
        kafka, source_name, mysql, MILLRACE_START="latest", MILLRACE_KAFKA_FENCED_WAIT_S="1"
    )
    assert "there is no topic" in reset(world, "earliest", "--yes", code=4)
    with world.reader() as process:
        world.wait_until_at(mysql, process)
        assert "is to start at earliest\n" in reset(world, "earliest", answer="n\n", code=1)
        state = world.state()
        assert state is not None
        assert state.reset is None, "nobody said yes"
        assert "Move it?" in reset(world, "earliest", answer="y\n")
        wait_for(lambda: _is_at(world, 1), process, "the reader in the new epoch")
        state = world.wait_until_at(mysql, process)
        assert (state.reset, state.epoch) == (None, 1)
    assert_closed_files_equal(world.raw(), mysql, epoch=1)
    done = world.run(MILLRACE_START="earliest", MILLRACE_MYSQL_PORT="1")
    line = next(line for line in done.stdout.splitlines() if "MILLRACE_START is not used" in line)
    assert f"the state of {source_name} says where to resume: " in line
    assert f"'millrace source reset {source_name} --to …' moves it" in line


def test_what_cannot_be(kafka: Kafka, mysql: MySQL, source_name: str) -> None:
    world = ReaderWorld.of(kafka, source_name, mysql, MILLRACE_START="latest")
    with world.reader() as process:
        world.wait_until_at(mysql, process)
    last = mysql.binlog_files[-1].name
    for to, words in (
        ("yesterday", "--to is wrong: expected earliest, latest, FILE:POSITION"),
        ("gtid:0-1-2", "--to is wrong: 0-1-2 is of another kind of server"),
        ("mysql-bin.999999:4", "mysql-bin.999999 is not among mysql-bin."),
        (f"{last}:4000000000", f"{last} ends at "),
    ):
        assert words in reset(world, to, "--yes", code=2)
    state = world.state()
    assert state is not None
    assert state.reset is None


def test_files_are_moved_as_well(kafka: Kafka, mysql: MySQL, source_name: str, tmp_path: Path) -> None:
    write(mysql, "note-0001")
    mysql.execute("FLUSH BINARY LOGS")
    write(mysql, "note-0002")
    mysql.execute("FLUSH BINARY LOGS")
    for path in mysql.binlog_files[-3:-1]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    world = ReaderWorld(kafka, source_name, MILLRACE_FILES=f"{tmp_path}/mysql-bin.*")
    assert world.run().returncode == 0
    assert reset(world, "gtid:", "--yes", code=2).startswith("error: --to is wrong: files can be read")
    reset(world, "earliest", "--yes")
    assert world.run().returncode == 0
    records = world.raw()
    assert {name for epoch, name in files_of(records) if epoch == 1} == {
        path.name for path in mysql.binlog_files[-3:-1]
    }
    files = files_of(records)
    assert all(files[0, name] == files[1, name] for _, name in files)
    assert sum(record.headers.get(HEADER_MARKER) == GAP for record in records) == 1


def test_gtids_are_turned_on(kafka: Kafka, source_name: str) -> None:
    """While a log is there from before: the server sends that to nobody, until it is told to."""
    with MySQL(options={"gtid-mode": "OFF"}) as server:
        write(server, "note-0001")
        server.execute("FLUSH BINARY LOGS")
        write(server, "note-0002")
        for mode in ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"):
            server.execute(f"SET GLOBAL gtid_mode={mode}")
            write(server, f"note-{mode[:4]:_<4}")
        world = ReaderWorld.of(kafka, source_name, server)
        first = "mysql-bin.000004:4"
        done = world.run()
        assert done.returncode == 3
        assert done.stderr.count("\n") == 1
        assert ": at mysql-bin.000001:155 a transaction without GTID begins" in done.stderr
        assert f"The first place that can be read is {first}. Run SET GLOBAL gtid_mode=ON_PERM" in done.stderr
        assert f"with MILLRACE_START={first} the first time, else with " in done.stderr
        assert done.stderr.endswith(f"'millrace source reset {source_name} --to {first}'\n")
        assert world.raw() == []
        assert f"the logs before {first} hold transactions without GTIDs" in _doctor(world)
        assert "hold transactions without GTIDs" not in _doctor(world, MILLRACE_START=first)

        server.execute("SET GLOBAL gtid_mode=ON_PERMISSIVE")
        with world.reader() as process:
            world.wait_until_at(server, process)
        server.execute("SET GLOBAL gtid_mode=ON", "FLUSH BINARY LOGS")
        write(server, "note-0003")
        assert "hold transactions without GTIDs" not in _doctor(world)
        with world.reader() as process:
            world.wait_until_at(server, process)
        records = world.raw()
        assert assert_closed_files_equal(records, server) >= 6

        reset(world, "mysql-bin.000002:4", "--yes")
        done = world.run()
        assert done.returncode == 3
        assert ": at mysql-bin.000002:155 a transaction without GTID begins" in done.stderr
        assert f"the logs before {first} hold transactions without GTIDs" in _doctor(world)
        reset(world, first, "--yes")
        write(server, "note-0004")
        records = read_to_the_end(world, server)
        assert notes(records, 1) == ["note-ON_P", "note-ON__", "note-0003", "note-0004"]


def _doctor(world: ReaderWorld, **environment: str) -> str:
    settings = {**world.environment, "MILLRACE_REGISTRY_URL": "http://127.0.0.1:1", **environment}
    return str(run_python("-m", "millrace.cli", "doctor", settings=settings).stdout)

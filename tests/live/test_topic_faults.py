"""Every topic of a source, and what may happen to it: nothing is lost without a word.

A table of docs/reliability.md says what comes of each topic and fault, while ``millrace run`` works and while
it does not. Anything else is a loss without a word:

- "goes on": all rows arrive, once
- "ends": with the code of Kafka or of data, and a line that names the topic
- "waits": the table is quarantined, and its rows wait
- "not ready": /readyz names the topic
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
from confluent_kafka.admin import AclOperation, NewPartitions

from millrace.avro.service_state import RowMapperState
from millrace.contract import GAP, HEADER_MARKER
from millrace.kafka.client import connect
from millrace.kafka.errors import BrokerError
from millrace.kafka.schema_topic import SchemaTopic
from millrace.kafka.state import held_range, last_record, read_state
from millrace.kafka.topics import TOPIC_SPECS, ensure_topics
from millrace.local import Kafka, MySQL, Registry
from millrace.local.processes import release_port, reserve_port
from millrace.runtime.settings import TopicsSettings
from tests.service_process import ServiceProcess, status_of, wait_for
from tests.shared import PROJECT

from .broker_control import AUTHORIZER, Administrator, delete_records
from .rows_world import RowsWorld
from .test_rowmapper import differences, run
from .test_snapshot import take, wait_until_merged

SOON = """
import sys
import millrace.kafka.continuity as continuity
continuity._SETTINGS_EVERY_S = continuity._LOOK_EVERY_S = 2.0
import millrace.rowmapper.snapshot_topic as snapshot_topic
snapshot_topic._COMPARE_EVERY_S = 2.0
"""
"""What looks once a minute in production does so every other second."""

KINDS = (
    *("raw", "events", "transactions", "catalog", "ddl", "schemas", "deadletter", "avro", "state", "table"),
)
LOSSES = ("cut", "emptied", "deleted", "made again")
"""Of ``avro``, tests/live/test_registry_loss.py has them."""

SETTINGS = {
    "policy": (
        "cleanup.policy",
        lambda kind: "compact" if TOPIC_SPECS[kind].cleanup_policy == "delete" else "delete",
    ),
    "timestamp": ("message.timestamp.type", lambda _: "LogAppendTime"),
    "size": ("max.message.bytes", lambda _: "1000"),
}

WHEN = ("running", "stopped")
AT_ONCE = 6
ENDS, GOES_ON, WAITS, NOT_READY = "ends", "goes on", "waits", "not ready"


def expected() -> dict[tuple[str, str], tuple[str, str]]:
    """Read from docs/reliability.md what comes of a topic and a fault while running, and while stopped."""
    text = (PROJECT / "docs" / "reliability.md").read_text()
    lines = text.split("<!-- topics and faults -->")[1].strip().splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = {}
    for topic, *cells in rows:
        for fault, cell in zip(head[1:], cells, strict=True):
            running, _, stopped = cell.partition("; ")
            found[topic.strip("`").replace("{db}.{table}", "table").replace("{source}.", ""), fault] = (
                running,
                stopped or running,
            )
    return found


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    """A Kafka with access control."""
    with Kafka(properties=AUTHORIZER, heap_mb=512) as kafka:
        yield kafka


MakeWorld = Callable[[str], AbstractContextManager["FaultWorld"]]


@pytest.fixture
def make_world(
    brokers: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> MakeWorld:
    """Makes a source of its own for each cell, on the same servers."""

    @contextmanager
    def make(name: str) -> Iterator[FaultWorld]:
        folder = tmp_path / name
        folder.mkdir()
        source = f"{source_name[-6:]}-{name}" if name else source_name
        with FaultWorld(brokers, registry, mysql, f"t-{source}", folder).with_database() as made:
            run(made, "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "CREATE TABLE p (id INT PRIMARY KEY)")
            yield made

    return make


@pytest.fixture
def world(make_world: MakeWorld) -> Iterator["FaultWorld"]:
    with make_world("one") as made:
        yield made


class FaultWorld(RowsWorld):
    """A source whose topics can be harmed."""

    def __init__(self, kafka: Kafka, registry: Registry, server: MySQL, source: str, folder: Path) -> None:
        super().__init__(kafka, registry, server, source, folder)
        self.close()
        self.environment |= {
            "MILLRACE_REGISTRY_URL": "",
            "MILLRACE_KAFKA_FENCED_WAIT_S": "0",
            "MILLRACE_REPLICATE_DO_DB": self.database,
        }
        self.registry = SchemaTopic(self.settings, source, TopicsSettings())
        self.administrator = Administrator(self.settings)
        self.written = 0

    def topic(self, kind: str) -> str:
        return self.topics.table(self.database, "t") if kind == "table" else f"{self.source}.{kind}"

    @contextmanager
    def process(self, *services: str) -> Iterator[list[ServiceProcess]]:
        """Programs that look at their topics every other second; they may end as they like."""
        started = []
        for name in services:
            code = f"{SOON}\nfrom services.{name}.app import main\nsys.exit(main())"
            if name == "reader":
                code = f"{SOON}\nimport runpy\nrunpy.run_module('services.reader', run_name='__main__')"
            settings = {**self.environment, "MILLRACE_HTTP_PORT": str(reserve_port())}
            log = self.folder / f"{name}.log"
            process = ServiceProcess([sys.executable, "-c", code], settings, log)
            process.port = int(settings["MILLRACE_HTTP_PORT"])
            started.append(process)
        try:
            yield started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(120)
                process.close()
                release_port(process.port)

    def write(self) -> int:
        """Write a row to each table; return its number."""
        self.written += 1
        run(self, f"INSERT INTO p VALUES ({self.written}); INSERT INTO t VALUES ({self.written}, 'x')")
        return self.written

    def has(self, number: int) -> bool:
        """Whether a row is in its topic; more than once is an error, but for those of a snapshot."""
        ids = [row["after"]["id"] for row in self.rows("t") if row["op"] == "c"]
        assert len(ids) == len(set(ids)), ids
        return number in ids

    def quarantined(self) -> set[str]:
        try:
            state = read_state(self.settings, self.source, "rowmapper", undecided=False)
        except BrokerError:
            return set()  # its topic is gone
        found = (
            () if state is None or state.value is None else RowMapperState.from_bytes(state.value).quarantined
        )
        return {entry.table for entry in found if not entry.is_paused}

    def harm(self, kind: str, fault: str) -> None:
        """Let a fault happen to a topic."""
        topic, admin = self.topic(kind), connect(self.settings)
        compacted = TOPIC_SPECS[kind].cleanup_policy == "compact"
        if fault in ("cut", "emptied"):
            last = last_record(self.settings, topic)
            end = held_range(self.settings, topic).stop if fault == "emptied" else last.offset if last else 0
            if compacted:
                self.administrator.alter(topic, "cleanup.policy", "delete")
            wait_for(partial(delete_records, admin, topic, end))
            if compacted:
                self.administrator.alter(topic, "cleanup.policy", "compact")
        elif fault in ("deleted", "made again"):
            self.administrator.delete(topic)
            if fault == "made again":
                wait_for(lambda: topic not in admin.list_topics(timeout=10).topics)
                ensure_topics(admin, TopicsSettings(), {topic: kind})
        elif fault == "partitions":
            (future,) = admin.create_partitions([NewPartitions(topic, 3)]).values()
            future.result(30)
        elif fault == "rights":
            self.administrator.deny(topic, AclOperation.ALL)
        else:
            setting, value = SETTINGS[fault]
            self.administrator.alter(topic, setting, value(kind))

    def mend(self, kind: str, fault: str) -> None:
        """Do what the error says, or take a denial back."""
        topic = self.topic(kind)
        if fault == "rights":
            self.administrator.allow(topic)
        elif fault in SETTINGS:
            setting = SETTINGS[fault][0]
            self.administrator.alter(topic, setting, TOPIC_SPECS[kind].config(1)[setting])

    def outcome(self, process: ServiceProcess, kind: str, number: int) -> str:
        """What has come of a fault: see the head of this file."""
        steady = 0

        def look() -> str | None:
            nonlocal steady
            if process.poll() is not None:
                said = process.error_output
                assert process.returncode in (4, 7), process
                assert said.count("\n") == 1, said
                assert self.topic(kind) in said, said
                return ENDS
            if self.topic(kind) in ready(process):
                return NOT_READY
            if "t" in self.quarantined():
                return WAITS
            steady = steady + 1 if self.has(number) else 0
            return GOES_ON if steady > 30 else None  # nothing comes for several of its looks

        return wait_for(look, None, lambda: f"{kind}: a word or row {number}: {self.log('run')}", 90)


def ready(process: ServiceProcess) -> str:
    """What /readyz says; nothing where all is well."""
    code, text = status_of(f"http://127.0.0.1:{process.port}/readyz")
    return "" if code == 200 else text or "no answer"


@contextmanager
def carried(world: FaultWorld, *, paused: bool = False) -> Iterator[ServiceProcess]:
    """``millrace run`` that has carried a row; with a table that is ``paused`` another waits."""
    if paused:
        with world.process("run") as (process,):
            world.wait_for_start()
            world.write()
            wait_for(lambda: world.has(1), process, lambda: world.log("run"))
        world.command("pause", f"{world.database}.p")
    with world.process("run") as (process,):
        world.wait_for_start()
        number = world.write()
        wait_for(lambda: world.has(number), process, lambda: world.log("run"))
        yield process


def while_running(world: FaultWorld, kind: str, fault: str) -> str:
    with carried(world, paused=kind == "deadletter") as process:
        world.harm(kind, fault)
        return told(world, process, kind, fault)


def while_stopped(world: FaultWorld, kind: str, fault: str) -> str:
    """With a row that a part of the services has carried, so that records of it lie unread."""
    with carried(world, paused=kind == "deadletter"):
        pass
    behind, topic = (
        (("reader",), world.topics.raw) if kind == "raw" else (("reader", "decoder"), world.topics.events)
    )
    end = held_range(world.settings, topic).stop
    with world.process(*behind) as processes:
        number = world.write()
        wait_for(lambda: held_range(world.settings, topic).stop > end + 4, processes[0], "the row")
    world.harm(kind, fault)
    with world.process("run") as (process,):
        world.write()
        return world.outcome(process, kind, number)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_losses(make_world: MakeWorld) -> None:
    """Each topic is cut, emptied, deleted and made again, while running and while stopped."""

    def cell(kind: str, fault: str, when: str) -> str:
        with make_world(f"{kind}-{fault}-{when}".replace(" ", "-")) as world:
            return (while_running if when == "running" else while_stopped)(world, kind, fault)

    assert_as_expected(cell, [(kind, fault) for kind in KINDS if kind != "avro" for fault in LOSSES])


def assert_as_expected(cell: Callable[[str, str, str], str], faults: Sequence[tuple[str, str]]) -> None:
    """Compare what comes of cells, several of which are at work at a time, with ``FAULTS``."""

    def found(kind: str, fault: str, when: str) -> str:
        try:
            outcome = cell(kind, fault, when)
        except Exception as error:  # noqa: BLE001 - the other cells are of interest, too
            outcome = f"{type(error).__name__}: {error}"
        return outcome

    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {(*at, when): pool.submit(found, *at, when) for at in faults for when in WHEN}
    table = expected()
    outcomes = {at: future.result() for at, future in running.items()}
    wrong = {
        at: words for at, words in outcomes.items() if words != table.get(at[:2], ("", ""))[WHEN.index(at[2])]
    }
    assert not wrong


def settings_cell(make_world: MakeWorld, kind: str, fault: str, when: str) -> str:
    """Alter a topic; once it is mended as the line says, everything arrives that was written meanwhile."""
    with make_world(f"{kind}-{fault}-{when}") as world:
        with carried(world) as process:
            if when == "running":
                world.harm(kind, fault)
                outcome = told(world, process, kind, fault)
        if when == "stopped":
            world.harm(kind, fault)
            with world.process("run") as (process,):
                outcome = told(world, process, kind, fault, 60)  # it has to start first
        world.mend(kind, fault)
        if world.quarantined():
            world.command("deadletter", "redrive")
        with world.process("run") as (process,):
            world.write()
            wait_for(lambda: world.has(world.written), process, lambda: world.log("run"))
        assert sorted(row["after"]["id"] for row in world.rows("t")) == list(range(1, world.written + 1))
    return outcome


@pytest.mark.slow
def test_a_policy_that_breaks_a_promise(make_world: MakeWorld) -> None:
    assert_as_expected(partial(settings_cell, make_world), [("raw", "policy")])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_settings_partitions_and_rights(make_world: MakeWorld) -> None:
    faults = [(kind, fault) for kind in KINDS for fault in ("partitions", *SETTINGS, "rights")]
    assert_as_expected(partial(settings_cell, make_world), faults)


def told(world: FaultWorld, process: ServiceProcess, kind: str, fault: str, word_s: float = 12) -> str:
    """What comes of a row that is written now; rights are given back for who looks, ``word_s`` later.

    Topics of tables are looked at after they were written: there of the next row.
    """
    number = world.write()
    if fault == "rights":
        with suppress(TimeoutExpired):
            process.wait(word_s)
        world.mend(kind, fault)
    outcome = world.outcome(process, kind, number)
    again = kind == "table" and outcome == GOES_ON
    return world.outcome(process, kind, world.write()) if again else outcome


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["running", "stopped"])
@pytest.mark.parametrize("fault", LOSSES)
def test_the_snapshot_topic(world: FaultWorld, fault: str, when: str) -> None:
    """It is harmed while rows in it are not merged: this is said until the snapshot is taken again."""
    world.environment |= {"MILLRACE_SNAPSHOT_CHUNK_ROWS": "10"}
    count = 200
    run(
        world,
        "CREATE TABLE s (id INT PRIMARY KEY)",
        f"INSERT INTO s VALUES {', '.join(f'({n})' for n in range(count))}",
    )
    with world.process("reader", "decoder", "rowmapper") as processes:
        world.wait_for_start()
        world.write()
        wait_for(lambda: world.has(1), processes[2], lambda: world.log("rowmapper"))
        if when == "running":
            take(world)
            wait_until_merged(world)
    with world.process("reader", *(["rowmapper"] if when == "running" else [])) as processes:
        number = world.write()
        take(world, MILLRACE_RESTART="true")
        world.harm("snapshot", fault)
        if when == "running" and fault in ("deleted", "made again"):  # else it has all of them in memory
            wait_for(lambda: world.topics.snapshot in ready(processes[1]), processes[1], "a word")
    with world.process("reader", "rowmapper") as processes:
        wait_for(lambda: world.topics.snapshot in ready(processes[1]), processes[1], "a word")
    doctor = world.command("doctor", code=1).stdout
    assert "--restart" in doctor
    with world.process("reader", "decoder", "rowmapper") as processes:
        wait_for(lambda: world.has(number), processes[2], lambda: world.log("rowmapper"))
        refused = world.command("snapshot", code=7).stderr
        assert refused.count("\n") == 1
        assert world.topics.snapshot in refused
        take(world, MILLRACE_RESTART="true")
        wait_until_merged(world)
        assert {row["after"]["id"] for row in world.rows("s")} == set(range(count))
        wait_for(lambda: not ready(processes[2]), processes[2], lambda: ready(processes[2]))
        assert "nothing to do" in world.command("snapshot").stdout


@pytest.mark.parametrize("raw_is_whole", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_prepared_transaction_whose_events_are_deleted(world: FaultWorld, *, raw_is_whole: bool) -> None:
    """The row mapper ends at XA COMMIT; each of the ways out that it names leads to equal tables."""
    with world.server.connect(database=world.database) as connection, connection.cursor() as cursor:
        with world.process("run") as (process,):
            world.wait_for_start()
            for statement in (
                "XA START 'a'",
                "INSERT INTO t VALUES (100, 'xa')",
                "XA END 'a'",
                "XA PREPARE 'a'",
            ):
                cursor.execute(statement)
            number = world.write()
            wait_for(lambda: world.has(number), process, lambda: world.log("run"))
        for kind in ("events",) if raw_is_whole else ("events", "raw"):
            world.harm(kind, "emptied")
        cursor.execute("XA COMMIT 'a'")
    with world.process("run") as (process,):
        world.write()
        assert process.wait(120) == 7
        assert "'millrace reprocess'" in process.error_output
        assert "'millrace state rebuild rowmapper'" in process.error_output
    if raw_is_whole:
        world.command("reprocess", "--yes")
    else:
        world.command("state", "rebuild", "rowmapper", "--yes")
    with world.process("run") as (process,):
        number = world.write()
        wait_for(lambda: world.has(number), process, lambda: world.log("run"))
        if not raw_is_whole:
            assert differences(world)
            take(world)
            wait_until_merged(world)

        world.command("verify", "rows", f"{world.database}.t", "--idle")


def test_a_state_is_lost_with_all_records(world: FaultWorld) -> None:
    """This is no first start: the source goes on where it is told to, in an epoch that was never used."""
    with carried(world):
        pass
    epoch = world.rows("t")[-1]["source"]["epoch"]
    stored = json.loads(world.command("state", "show", "reader").stdout)
    world.harm("state", "deleted")
    for kind in KINDS:
        if TOPIC_SPECS[kind].cleanup_policy == "delete":
            world.harm(kind, "emptied")
    number = world.write()
    for name in ("reader", "decoder", "rowmapper"):
        with world.process(name) as (process,):
            assert process.wait(120) == 7, process
            assert f"has no state of the {name}, " in process.error_output
    place = f"{stored['log_file']}:{stored['position']}"
    world.command("source", "reset", world.source, "--to", place, "--yes")
    world.command("state", "rebuild", "decoder", "--yes")
    world.command("state", "rebuild", "rowmapper", "--yes")
    with world.process("run") as (process,):
        wait_for(lambda: world.has(number), process, lambda: world.log("run"))
    assert world.rows("t")[0]["source"]["epoch"] > epoch
    assert dict(world.messages(world.topics.raw)[0].headers()) == {HEADER_MARKER: GAP}


@pytest.mark.slow
def test_dead_letters_of_a_paused_table_are_deleted(world: FaultWorld) -> None:
    with carried(world, paused=True) as process:
        world.harm("deadletter", "emptied")
        wait_for(lambda: world.topics.deadletter in ready(process), process, "a word")
    assert f"{world.database}.p" in world.command("doctor", code=1).stdout
    refused = world.command("resume", f"{world.database}.p", code=7).stderr
    assert f"is no longer in {world.topics.deadletter}" in refused
    world.command("reprocess", "--yes")
    with world.process("run") as (process,):
        wait_for(lambda: len(world.rows("p")) == world.written, process, "all rows")
        assert not ready(process)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "services"),
    [
        ("catalog", ("reader", "rowmapper")),
        ("deadletter", ("decoder", "rowmapper")),
        ("ddl", ("rowmapper",)),
        ("transactions", ("rowmapper",)),
    ],
)
def test_ways_out(world: FaultWorld, kind: str, services: tuple[str, ...]) -> None:
    """Those of docs/how-to/recover.md that tests/live/test_continuity.py does not take."""
    with carried(world):
        pass
    world.harm(kind, "made again")
    for service in services:
        with world.process(service) as (process,):
            assert process.wait(120) == 7, process
            assert world.topic(kind) in process.error_output
    for service in services:
        world.command("state", "rebuild", service, "--yes")
    with world.process("run") as (process,):
        world.write()
        wait_for(lambda: world.has(world.written), process, lambda: world.log("run"))
    assert sorted(row["after"]["id"] for row in world.rows("t")) == list(range(1, world.written + 1))

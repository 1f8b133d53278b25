"""Topics and states that are gone, or are others than before: each service says so, and none repeats rows."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from millrace.contract import GAP, HEADER_MARKER
from millrace.kafka.client import connect
from millrace.kafka.topics import ensure_topics
from millrace.local import Kafka, MySQL, Registry
from millrace.local.processes import release_port, reserve_port
from millrace.runtime.settings import TopicsSettings
from tests.chaos.lost_tail import replace_tail
from tests.service_process import status_of, wait_for
from tests.shared import run_python

from .rows_world import SERVICES, RowsWorld


@pytest.fixture
def world(kafka: Kafka, registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path) -> RowsWorld:
    return RowsWorld(kafka, registry, mysql, source_name, tmp_path)


def deleted(world: RowsWorld, *topics: str) -> None:
    admin = connect(world.settings)  # it must live until the answers are there
    for future in admin.delete_topics(list(topics), operation_timeout=60).values():
        future.result(90)


def created(world: RowsWorld, topic: str, kind: str) -> None:
    ensure_topics(connect(world.settings), TopicsSettings(), {topic: kind})


def refused(world: RowsWorld, service: str) -> str:
    """The one line with which a service refuses to run; the exit code is that of data."""
    done = run_python("-m", f"services.{service}", settings=world.environment)
    assert (done.returncode, done.stderr.count("\n")) == (7, 1), done.stderr
    return str(done.stderr)


def command(world: RowsWorld, *arguments: str, code: int = 0) -> str:
    done = world.command(*arguments, code=code)
    return str(done.stdout + done.stderr)


def insert(world: RowsWorld, *ids: int) -> None:
    for number in ids:
        world.server.execute(f"INSERT INTO {world.database}.t VALUES ({number})")


def ids(world: RowsWorld) -> list[int]:
    return [row["after"]["id"] for row in world.rows("t")]


def test_topics_are_deleted(world: RowsWorld) -> None:
    """One after the other; each way out of docs/how-to/recover.md leads to every row once."""
    topics = world.topics
    with world.with_database():
        world.server.execute(f"CREATE TABLE {world.database}.t (id INT PRIMARY KEY)")
        with world.services("reader", "decoder", "rowmapper"):
            world.wait_for_start()
            insert(world, 1, 2, 3)
            world.wait_for_row("t", 3)

        # The state: what was written is not written again.
        deleted(world, topics.state)
        for service in SERVICES:
            assert f"'millrace state rebuild {service} --source {world.source}'" in refused(world, service)
            assert f"done; start the {service}" in command(world, "state", "rebuild", service, "--yes")
        world.server.execute(f"CREATE TABLE {world.database}.other (id INT PRIMARY KEY)")
        insert(world, 4)
        with world.services(*SERVICES):
            world.wait_for_row("t", 4)
        assert ids(world) == [1, 2, 3, 4]
        for topic in (topics.raw, topics.events):
            keys = [record.key() for record in world.messages(topic)]
            assert len(set(keys)) == len(keys)

        # The schema history: it is made again of the events.
        history = [(record.key(), record.value()) for record in world.messages(topics.schemas)]
        assert [key.split(b"@")[0] for key, _ in history] == [f"{world.database}.other".encode()]
        deleted(world, topics.schemas)
        assert f"{topics.schemas} is gone: the rowmapper of {world.source} has" in refused(world, "rowmapper")
        created(world, topics.schemas, "schemas")
        said = refused(world, "rowmapper")
        assert f"{topics.schemas} was deleted and created again: the rowmapper of" in said
        assert f"{topics.schemas} lacks 1 records" in command(world, "state", "rebuild", "rowmapper", "--yes")
        assert [(record.key(), record.value()) for record in world.messages(topics.schemas)] == history

        # The events: they are decoded again from the head of the raw topic, and rows that are there stay so.
        deleted(world, topics.events)
        insert(world, 5)
        for service in ("decoder", "rowmapper"):
            assert f"{topics.events} is gone: the {service} of {world.source} has" in refused(world, service)
        assert not world.messages(topics.events)
        command(world, "state", "rebuild", "decoder", "--yes")
        with world.services("reader", "decoder"):
            wait_for(lambda: any(record.key() == keys[-1] for record in world.messages(topics.events)))
        said = refused(world, "rowmapper")
        assert f"{topics.events} was deleted and created again: the rowmapper of {world.source} knows" in said
        command(world, "state", "rebuild", "rowmapper", "--yes")
        with world.services(*SERVICES):
            world.wait_for_row("t", 5)
        assert ids(world) == [1, 2, 3, 4, 5]

        # The raw topic: the log is read on from where the reader stood, in a new epoch.
        deleted(world, topics.raw)
        insert(world, 6)
        for service in ("reader", "decoder"):
            assert f"{topics.raw} is gone: the {service} of {world.source} has" in refused(world, service)
        assert "there is no topic" in command(world, "state", "rebuild", "reader", "--yes", code=4)
        stored = json.loads(command(world, "state", "show", "reader"))
        place = f"{stored['log_file']}:{stored['position']}"
        said = command(world, "source", "reset", world.source, "--to", place, "--yes")
        assert "nothing is left out or read a second time" in said
        with world.service("reader"):
            wait_for(lambda: bool(world.messages(topics.raw)))
            said = command(world, "state", "rebuild", "decoder", "--yes")
        assert f"{topics.raw} begins after " in said
        with world.services(*SERVICES):
            world.wait_for_row("t", 6)
        assert ids(world) == [1, 2, 3, 4, 5, 6]
        first = world.messages(topics.raw)[0]
        assert dict(first.headers() or ()) == {HEADER_MARKER: GAP}


CUT = [
    (
        "raw",
        {
            "reader": "{raw} does not end as the reader of {source} left it: the last record should be",
            "decoder": "{raw} no longer holds what the decoder of {source} has read: at offset",
            "rowmapper": "",
        },
    ),
    (
        "events",
        {
            "reader": "",
            "decoder": "{events} does not end as the decoder of {source} left it: the last record should",
            "rowmapper": "{events} no longer holds what the rowmapper of {source} has read: at offset",
        },
    ),
    ("raw", {"run": "{raw} does not end as the reader of {source} left it: the last record should be"}),
]
"""A topic that is cut, and what each service says of it; nothing where it goes on."""


@pytest.mark.slow
def test_topics_are_cut_and_grow_again_meanwhile(
    registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> None:
    """The services of several sources run all the time; an ordinary restart of the broker stops none."""
    with Kafka(heap_mb=256) as kafka, ExitStack() as running:
        sources = []
        for number, (lost, said) in enumerate(CUT):
            folder = tmp_path / str(number)
            folder.mkdir()
            world = RowsWorld(kafka, registry, mysql, f"{source_name}-{number}", folder)
            running.enter_context(world.with_database())
            world.server.execute(f"CREATE TABLE {world.database}.t (id INT PRIMARY KEY)")
            processes = {
                name: running.enter_context(world.service(name, ends_with=7 if words else 0))
                for name, words in said.items()
            }
            sources.append((world, processes, getattr(world.topics, lost), said))
        for world, *_ in sources:
            world.wait_for_start()
            insert(world, 1, 2, 3)
        for world, *_ in sources:
            world.wait_for_row("t", 3)
        kafka.kill_node(0)
        kafka.start()
        for world, *_ in sources:
            insert(world, 4)
        for world, *_ in sources:
            world.wait_for_row("t", 4)
        kafka.kill_node(0)
        for _, _, topic, _ in sources:
            replace_tail(kafka, topic, 1)
        kafka.start()
        for world, processes, _, said in sources:
            topics = {kind: getattr(world.topics, kind) for kind in ("raw", "events")}
            for name, words in said.items():
                if words:
                    assert processes[name].wait(60) == 7, processes[name]
                    assert words.format(source=world.source, **topics) in processes[name].error_output
                else:
                    assert processes[name].poll() is None
            assert ids(world) == [1, 2, 3, 4]


def test_readiness_tells_of_brokers_that_are_gone(
    registry: Registry, mysql: MySQL, source_name: str, tmp_path: Path
) -> None:
    """Each service says so while nothing answers, without an end, and is ready again by itself."""
    with Kafka() as kafka:
        world = RowsWorld(kafka, registry, mysql, source_name, tmp_path)
        ports = {name: reserve_port() for name in SERVICES}

        def answers(status: int) -> bool:
            found = {name: status_of(f"http://127.0.0.1:{port}/readyz") for name, port in ports.items()}
            return {code for code, _ in found.values()} == {status} and (
                status == 200 or all("Kafka does not answer" in text for _, text in found.values())
            )

        with world.with_database(), ExitStack() as running:
            for name, port in ports.items():
                running.enter_context(world.service(name, MILLRACE_HTTP_PORT=str(port)))
            world.wait_for_start()
            world.server.execute(f"CREATE TABLE {world.database}.t (id INT PRIMARY KEY)")
            insert(world, 1)
            world.wait_for_row("t")
            wait_for(lambda: answers(200), None, world.logs)
            kafka.kill_node(0)
            wait_for(lambda: answers(503), None, world.logs)
            kafka.start()
            wait_for(lambda: answers(200), None, world.logs)
            insert(world, 2)
            world.wait_for_row("t", 2)
        for port in ports.values():
            release_port(port)

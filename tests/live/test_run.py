"""A source that is carried by the services and by ``millrace run`` in turns, killed in between."""

import signal
from collections import Counter
from typing import Any

import pytest

from millrace.kafka.state import read_state
from tests.killed import command as killed
from tests.service_process import ServiceProcess, wait_for
from tests.worker import Worker

from .rows_world import MARIADB_IS_SLOW, SERVICES, RowsWorld
from .test_rowmapper import TABLES, WORK, differences, places, run


@pytest.fixture
def world(world):
    world.environment["MILLRACE_KAFKA_FENCED_WAIT_S"] = "0"
    return world


class Orders(Worker):
    """Inserts some 100 rows a second, one a transaction, until told to stop."""

    def __init__(self, world: RowsWorld) -> None:
        super().__init__()
        self._world = world
        self.count = 0

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            more = range(self.count, self.count + 20)
            rows = "".join(f"INSERT INTO orders VALUES ({n}, 'x');" for n in more)
            run(self._world, rows)
            self.count += 20


def wait_until_owned(world: RowsWorld, process: ServiceProcess, *services: str) -> None:
    """Wait until a process has written the states of services."""

    def is_owned(service: str) -> bool:
        stored = read_state(world.settings, world.source, service)
        return stored is not None and f"process {process.pid} " in stored.owner

    wait_for(lambda: all(map(is_owned, services)), process, "its states")


def keys(world: RowsWorld, topic: str) -> "Counter[Any]":
    """Keys of a topic's records with their headers, which say which chunk it is."""
    return Counter((message.key(), str(message.headers())) for message in world.messages(topic))


@MARIADB_IS_SLOW
def test_services_and_run_carry_a_source_in_turns(world: RowsWorld) -> None:
    run(world, f"CREATE TABLE orders (id INT PRIMARY KEY, v TEXT);{TABLES}")
    with world.service("reader", ends_with=6) as reader, world.service("decoder", ends_with=6) as decoder:
        world.wait_for_start()
        with Orders(world) as orders:
            wait_until_owned(world, decoder, "decoder")
            # The decoder may have carried some, no row mapper any: the rest lies between the stages.
            with world.service("run") as process:
                wait_until_owned(world, process, *SERVICES)
                assert (reader.wait(60), decoder.wait(60)) == (6, 6), world.log("reader")
                world.wait_for_row("orders", 100)
                process.kill()
                process.wait()
            for at, nth in (("before_commit", 6), ("inside_statement", 2), ("after_commit", 9)):
                # Of more than 8 KB, so that the statement takes several events, however many rows there are.
                run(world, f"UPDATE orders SET v = REPEAT('{at}', 100)")
                with world.service("run", command=killed("run", at, nth)) as process:
                    assert process.wait(120) == -signal.SIGKILL, world.log("run")
            with world.service("run", ends_with=6) as process:
                wait_until_owned(world, process, *SERVICES)
                with world.service("rowmapper"):
                    assert process.wait(120) == 6
                    with world.services("reader", "decoder") as successors:
                        for name, successor in zip(("reader", "decoder"), successors, strict=True):
                            wait_until_owned(world, successor, name)
                        world.wait_for_row("orders", 2 * orders.count)
        run(world, WORK)
        with world.service("run"):
            run(world, "INSERT INTO done VALUES (1)")
            world.wait_for_row("done")
    assert differences(world) == {}
    assert max(Counter(places(world)).values()) == 1
    for topic in (world.topics.raw, world.topics.events):
        assert max(keys(world, topic).values()) == 1

"""``millrace run`` beside the three services, on a Kafka in memory."""

from pathlib import Path
from typing import Any

import pytest

from millrace.avro.registry import RegistryError
from millrace.avro.service_state import DecoderState, ReaderState, RowMapperState
from millrace.contract import SERVICES
from millrace.kafka.errors import BrokerError, FencedError
from services.run import app as run_app
from tests.fake_broker import FakeProducer
from tests.stages import Registry
from tests.unit.test_faults import OUTPUT, TOPICS, World, ddl, insert, payload, prepare, update, write_log


class SilentRegistry(Registry):
    """One that may not answer."""

    silent = False

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def check(self) -> None:
        self.asked += 1
        if self.silent:
            raise RegistryError("the registry does not answer")

    def register(self, subject: str, schema: Any) -> int:
        self.check()
        return super().register(subject, schema)


@pytest.fixture
def worlds(tmp_path: Path) -> tuple[World, World]:
    """A world in which a log is written, and one in which the services have carried it."""
    write_log(tmp_path, 1, [insert, update, prepare, ddl, payload])
    world = World(tmp_path)
    world.registry = SilentRegistry()
    services = world.copy()
    services.drain()
    return world, services


def all_of(world: World) -> dict[str, list[Any]]:
    return {topic: world.written(topic) for topic in OUTPUT}


def states(world: World) -> list[Any]:
    """The last state of each service, without what differs where transactions of Kafka end elsewhere."""
    last = {entry.key: entry.value for entry in world.broker.records(TOPICS.state)}
    kinds: tuple[Any, ...] = (ReaderState, DecoderState, RowMapperState)
    return [kind.from_bytes(last[name.encode()]) for name, kind in zip(SERVICES, kinds, strict=True)]


def test_topics_are_those_of_the_services(worlds: tuple[World, World]) -> None:
    world, services = worlds
    world.run("run")
    assert all_of(world) == all_of(services)
    reader, decoder, rowmapper = states(world)
    expected = states(services)
    assert (reader.log_file, reader.position) == (expected[0].log_file, expected[0].position)
    assert decoder.logs == expected[1].logs
    assert rowmapper.counters == expected[2].counters
    # The states say where the records lie: nothing is left for the services to do.
    written = {topic: len(world.broker.records(topic)) for topic in OUTPUT}
    world.drain()
    assert {topic: len(world.broker.records(topic)) for topic in OUTPUT} == written


@pytest.mark.parametrize("carried", [("reader",), ("reader", "decoder")])
def test_what_lies_between_the_stages_is_carried_first(
    worlds: tuple[World, World], carried: tuple[str, ...]
) -> None:
    world, services = worlds
    for name in carried:
        world.run(name)
    world.run("run")
    assert all_of(world) == all_of(services)


@pytest.mark.parametrize("topic", [TOPICS.raw, TOPICS.events])
def test_an_offset_that_was_not_foreseen_is_not_committed(
    worlds: tuple[World, World], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = worlds
    number = world.broker.committed
    send = FakeProducer._flush

    def flush(producer: FakeProducer) -> None:
        if any(name == topic for name, _ in producer._sent):
            number.add(-1)
            world.broker.topics[topic].append(key=b"foreign", value=b"", transaction=-1)
        send(producer)

    monkeypatch.setattr(FakeProducer, "_flush", flush)
    with pytest.raises(BrokerError, match=f"{topic} ends at offset .*something else"):
        world.run("run")
    foreign = [entry.key for entry in world.broker.records(topic)]
    assert set(foreign) == {b"foreign"}
    assert not any(world.written(name) for name in OUTPUT if name != topic)


@pytest.mark.parametrize(("first", "second"), [(name, "run") for name in SERVICES] + [("run", "decoder")])
def test_each_kind_fences_the_other(worlds: tuple[World, World], first: str, second: str) -> None:
    world, services = worlds
    for name in SERVICES[: SERVICES.index(first)] if first != "run" else ():
        world.run(name)
    taken = []

    def take_over() -> None:
        world.run(second)
        taken.append(True)

    # At each call from the first one on: the other starts there, does all it can, and ends.
    for call in range(1, 400, 23):
        world.broker.at_call(call, take_over)
        try:
            world.run(first)
        except FencedError:
            assert taken
        world.broker.forget_event()
    assert taken
    world.drain()
    assert all_of(world) == all_of(services)


def test_capture_goes_on_without_the_registry(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_app, "_RAW_ONLY_S", 1e9)
    world, services = worlds
    registry = world.registry
    assert isinstance(registry, SilentRegistry)
    registry.silent = True
    with pytest.raises(RegistryError):
        world.run("run")  # which may have the wrong address: nobody is fenced
    registry.silent = False
    world.run("run")
    write_log(world.folder, 2, [insert, update])
    services.drain()
    registry.silent = True
    world.run("run")
    assert world.written(TOPICS.raw) == services.written(TOPICS.raw)
    assert len(world.written(TOPICS.events)) < len(services.written(TOPICS.events))
    registry.silent = False
    world.run("run")
    assert all_of(world) == all_of(services)


def test_all_stages_work_again_once_the_registry_answers(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry fails in the middle, at a table's schemas, and answers later."""
    monkeypatch.setattr(run_app, "_RAW_ONLY_S", 0.0)
    world, services = worlds
    registry = world.registry
    assert isinstance(registry, SilentRegistry)
    register = registry.register

    def fail_once(subject: str, schema: Any) -> int:
        if "shop.t" in subject and not failed:
            failed.append(subject)
            raise RegistryError("the registry does not answer")
        return register(subject, schema)

    failed: list[str] = []
    monkeypatch.setattr(registry, "register", fail_once)
    for _ in range(20):  # a run over files ends at their end, whether the registry was asked again or not
        world.run("run")
        if all_of(world) == all_of(services):
            break
    assert failed
    assert all_of(world) == all_of(services)

"""What versions of the services have written is read by the services of the day, which continue from it.

``tests/upgrade/versions`` has their topics, each with a commit per record: services resume from the state
after any of them, in the middle of a transaction, a payload, a large event or a snapshot. What they add is
what a run without interruption writes.
"""

import base64
import copy
import gzip
import json
import random
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from millrace.avro import single_object
from millrace.avro.service_state import DecoderState, ReaderState, RowMapperState, RowsContext, TableTopic
from millrace.avro.single_object import SingleObjectError
from millrace.avro.snapshots import MERGED_KEY, SnapshotMerged, SnapshotState
from millrace.contract import HEADER_CHUNK, HEADER_TABLE
from millrace.kafka.state import state_key
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.verify.history import tables_changed
from tests import fake_broker
from tests.fake_broker import Entry
from tests.unit.test_faults import SERVICES, TOPICS, World
from tests.upgrade import make

VERSIONS = sorted(make.VERSIONS.iterdir())
KINDS: dict[str, Any] = {"reader": ReaderState, "decoder": DecoderState, "rowmapper": RowMapperState}
ROWS = tuple(f"{TOPICS.source}.shop.{table}" for table in ("t", "large", "read"))
OUTPUT = (TOPICS.raw, TOPICS.events, TOPICS.transactions, TOPICS.ddl, TOPICS.deadletter, *ROWS)


def data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Recorded:
    """A version's topics."""

    def __init__(self, path: Path) -> None:
        self.content = json.loads(gzip.decompress(path.read_bytes()))

    def write_logs(self, folder: Path) -> None:
        for name, text in self.content["logs"].items():
            (folder / name).write_bytes(data(text) or b"")

    def world(self, folder: Path, last: int | None = None) -> World:
        """Return a world in which all has happened up to transaction ``last``."""
        world = World(folder)
        broker, registry = world.broker, world.registry
        registry.schemas = json.loads(json.dumps(self.content["registry"]))
        registry.subjects = {name: set(ids) for name, ids in self.content["subjects"].items()}
        highest = max(self.content["committed"])
        broker._numbers = iter(range(highest + 1000, 1 << 40))  # type: ignore[assignment]
        broker.committed = {number for number in self.content["committed"] if last is None or number <= last}
        broker.epochs = dict(self.content["epochs"])
        for name, topic in self.content["topics"].items():
            broker.create(name, topic["config"])
            made = broker.topics[name]
            made.id = topic["id"]
            made.entries = [
                Entry(
                    offset,
                    *(data(key), data(value), timestamp),
                    [(header, data(text)) for header, text in headers] if headers else headers,
                    *(transaction, control),
                )
                for offset, key, value, timestamp, headers, transaction, control in topic["entries"]
                if last is None or transaction <= last
            ]
            made.end = made.entries[-1].offset + 1 if made.entries else 0
        return world

    def commits(self) -> list[int]:
        """Numbers of the transactions, in order."""
        return sorted({entry[5] for entry in self.content["topics"][TOPICS.state]["entries"]})

    def values(self, topic: str) -> list[tuple[bytes, bytes]]:
        entries = self.content["topics"].get(topic, {"entries": []})["entries"]
        return [
            (data(key) or b"", data(value) or b"") for _, key, value, *_, control in entries if not control
        ]


@cache
def recorded(path: Path) -> Recorded:
    return Recorded(path)


def output(world: World) -> dict[str, list[Any]]:
    """Return what the topics hold, without what depends on time and place, large records put together."""
    found = {
        topic: [_without_ids(world._readable(topic, entry)) for entry in joined(world, topic)]
        for topic in OUTPUT
    }
    for topic in ROWS:
        assert len({key and key[:5] for key, *_ in found[topic]}) <= 1, "keys of one topic are of one schema"
        found[topic] = [(key and key[5:], *rest) for key, *rest in found[topic]]
    return found


def _without_ids(found: Any) -> Any:
    """Take the id of its schema from the event of a dead letter, read its context and what DDL changed.

    Versions up to 5 do not name the table in a header of the dead letter.
    """
    key, value, headers, timestamp = found
    headers = [header for header in headers or () if header[0] != HEADER_TABLE] or None
    if isinstance(value, dict) and "statement" in value:
        value = {**value, "changed": tables_changed(value)}
    if isinstance(value, dict) and isinstance(value.get("context"), bytes):
        context = RowsContext.from_bytes(value["context"])
        context = replace(context, before=tuple(event[5:] for event in context.before))
        value = {**value, "value": value["value"][5:], "context": context}
    return key, value, headers, timestamp


def joined(world: World, topic: str) -> list[Entry]:
    entries: list[Entry] = []
    for entry in world.broker.records(topic):
        chunk = dict(entry.headers or ()).get(HEADER_CHUNK, b"0/1")
        if chunk.startswith(b"0/"):
            entries.append(replace(entry))
        else:
            entries[-1].value += entry.value
    return entries


@pytest.fixture(autouse=True)
def _limit() -> Any:
    with patch.dict(fake_broker.BIG, make.LIMIT):
        yield


def test_the_schemas_are_those_of_the_last_version_that_is_recorded() -> None:
    """A schema that changes is a version: its records are kept for those to come."""
    last = recorded(VERSIONS[-1]).content["schemas"]
    assert make.fingerprints() == last, "record this version: python -m tests.upgrade.make"


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.name[:4])
def test_services_continue_from_each_commit_of_a_version(path: Path, step: int, tmp_path: Path) -> None:
    version = recorded(path)
    version.write_logs(tmp_path)
    reference = World(tmp_path)
    reference.broker.create(TOPICS.snapshot, {"cleanup.policy": "delete"})
    reference.broker.committed.add(0)
    for key, value in version.values(TOPICS.snapshot):
        reference.broker.topics[TOPICS.snapshot].append(key=key, value=value)
    reference.drain()
    expected = output(reference)
    assert all(expected.values())
    assert output(version.world(tmp_path)) == expected
    for last in version.commits()[VERSIONS.index(path) % step :: step]:
        world = version.world(tmp_path, last)
        world.drain()
        for topic, found in output(world).items():
            assert found == expected[topic], (topic, last)


def states(path: Path) -> list[tuple[str, bytes]]:
    found = recorded(path).values(TOPICS.state)
    return [(key.decode(), value) for key, value in found if value and key.decode() in KINDS]


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.name[:4])
def test_each_record_of_the_services_is_read(path: Path) -> None:
    """Text stays text, bytes stay bytes."""
    for name, value in states(path):
        found = KINDS[name].from_bytes(value)
        assert type(found).from_bytes(found.to_bytes()) == found
        if isinstance(found, DecoderState):
            assert all(isinstance(scope.tracker["mode"], str) for scope in found.logs)
    for key, value in recorded(path).values(TOPICS.state):
        if key.startswith(b"rowmapper:"):
            assert TableTopic.from_bytes(value).key == key
        elif key == MERGED_KEY:
            assert SnapshotMerged.from_bytes(value).rows
    snapshot = SnapshotState.from_bytes(data(recorded(path).content["snapshot"]) or b"")
    assert [each.done for each in snapshot.tables[0].ranges] == [False, True]


def broken(value: bytes) -> dict[str, bytes]:
    """What no version of the day has written, by what is wrong with it."""
    return {
        "nothing": b"",
        "garbage": b"garbage",
        "a later version": value[:2] + bytes(8) + value[10:],
        "cut": value[:-1],
        "longer": value + b"\0",
        "fields missing": value[:10],
    }


def other_states() -> dict[str, bytes]:
    """States of the decoder whose remembered log files lack a field, or have one of another type."""
    path = VERSIONS[-1]
    good = [state for name, state in states(path) if name == "decoder"][-1]
    record = single_object.decode("DecoderState", good)
    found = {}
    for part in ("stream", "tracker"):
        for name in record["logs"][-1][part]["value"]:
            for what, other in (("missing", None), ("text", "none"), ("bytes", b"none"), ("number", 7.5)):
                changed = copy.deepcopy(record)
                saved = changed["logs"][-1][part]["value"]
                before = saved[name]["value"]
                if what == "missing":
                    del saved[name]
                elif type(before) is type(other) or (before is None and what == "text"):
                    continue
                else:
                    saved[name] = {"value": other}
                found[f"{part}.{name} {what}"] = single_object.encode("DecoderState", changed)
    return found


def cases() -> list[Any]:
    last = dict(states(VERSIONS[-1]))
    found = [(name, what, value) for name in SERVICES for what, value in broken(last[name]).items()]
    found += [("decoder", what, value) for what, value in other_states().items()]
    return [pytest.param(name, value, id=f"{name}: {what}") for name, what, value in found]


@pytest.mark.parametrize(("name", "value"), cases())
def test_a_state_that_cannot_be_read_stops_its_service_in_words(
    name: str, value: bytes, tmp_path: Path
) -> None:
    """And the command that the words name makes it again."""
    version = recorded(VERSIONS[-1])
    version.write_logs(tmp_path)
    world = version.world(tmp_path)
    expected = output(world)
    world.broker.topics[TOPICS.state].append(key=state_key(name), value=value)
    with pytest.raises(UserError) as stopped:
        world.run(name)
    assert stopped.value.exit_code is ExitCode.DATA
    assert f"'millrace state rebuild {name}'" in stopped.value.message
    world.rebuild(name)
    world.drain()
    assert output(world) == expected


def test_damaged_states_are_read_or_refused(tmp_path: Path) -> None:
    """Whatever is wrong with a state, no service ends by a bug."""
    chance = random.Random(4)
    version = recorded(VERSIONS[-1])
    version.write_logs(tmp_path)
    for name, value in states(VERSIONS[-1])[::4]:
        for _ in range(40):
            damaged = bytearray(value)
            for _ in range(chance.choice([1, 1, 2, 8])):
                damaged[chance.randrange(10, len(damaged))] = chance.randrange(256)
            with suppress(SingleObjectError):
                KINDS[name].from_bytes(bytes(damaged))

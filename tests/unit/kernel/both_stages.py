"""The row mapper's stage run with the kernel for transactions and without it, over the same events."""

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from millrace import kernel
from millrace.avro.service_state import RowMapperState
from millrace.stage import Output, OutputRecord, Record, Target
from tests.stages import unpacked
from tests.unit.rowmapper.harness import World

if kernel.built("records"):
    from millrace.kernel.records import RecordBlock

__all__ = ["PARTS", "Committed", "PartitionedWorld", "run", "run_with_crashes", "without_keys_of_rows"]

PARTS = ("whole", "held", "replayed")
"""How transactions are taken: whole, or in parts, from events that are held or read a second time."""


class PartitionedWorld(World):
    """A world whose tables' topics have several partitions."""

    partitions = 5


class Committed:
    """What lies in the topics, by partition, and the state with it; what the kernel took.

    ``compiled`` counts its transactions, ``parts`` how often it wrote rows of one that it did not take whole.
    """

    def __init__(self) -> None:
        self.groups: dict[Target, list[OutputRecord]] = {}
        self.state: bytes = b""
        self.compiled = self.parts = 0

    @property
    def certain(self) -> RowMapperState:
        """The state, without the counters of what makes no output, which may count again after a crash."""
        state = RowMapperState.from_bytes(self.state)
        doubtful = ("undone_events", "transactions_rolled_back")
        return replace(
            state, counters={name: count for name, count in state.counters.items() if name not in doubtful}
        )

    def note(self, groups: dict[Target, list[OutputRecord]]) -> None:
        for target, records in groups.items():
            for record in records:
                self.groups.setdefault(target, []).extend(unpacked(record))


def without_keys_of_rows(groups: dict[Target, list[OutputRecord]]) -> dict[Target, list[OutputRecord]]:
    """Leave out what a block does not keep."""
    return {
        (topic, partition): [(None if topic.count(".") == 2 else key, *rest) for key, *rest in records]
        for (topic, partition), records in groups.items()
    }


def cuts(records: Sequence[Record], chance: random.Random | None) -> Iterator[list[Record]]:
    """Cut records into batches, at random or all alike."""
    at = 0
    while at < len(records):
        size = 100 if chance is None else chance.choice((1, 2, 3, 7, 30, 100, 200))
        yield list(records[at : at + size])
        at += size


class _Registry:
    """Gives ids that do not depend on which schema came first."""

    def __init__(self) -> None:
        self._schemas: dict[int, Any] = {}

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        schema_id = zlib.crc32(json.dumps(schema, sort_keys=True).encode()) >> 1
        self._schemas[schema_id] = schema
        return schema_id

    def schema(self, schema_id: int) -> Any:
        return self._schemas[schema_id]

    def confirm(self, subject: str, schema: dict[str, Any], schema_id: int) -> None:
        assert self.register(subject, schema) == schema_id


def start(world: World, *, compiled: bool, part: str = "whole", blocks: bool = False) -> Any:
    """Start a stage; of a transaction that is not taken whole the events are held, or read a second time.

    With ``blocks`` it is as Spark has it, which reads rows into columns.
    """
    if not isinstance(world.registry, _Registry):
        world.registry = _Registry()
    if blocks and compiled:
        world.new_block = partial(RecordBlock, Record)
    with patch.object(kernel, "_enabled", compiled):
        stage, on = world.start(), kernel.state() == "on"
    assert (stage._compiled is not None) == (on and not world.settings.rows.include_query)
    if blocks:
        stage._binder._without_topics = True
    if stage._compiled is not None:
        stage._compiled.writer = _Counting(stage._compiled.writer)
        if part != "whole":
            stage._compiled._most_bytes = 0
    if part == "replayed":
        stage._assembler._buffer_bytes = 0
    return stage


class _Counting:
    """Counts what the kernel takes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.taken = self.parts = 0

    def take(self, *arguments: Any) -> int:
        index: int = self._inner.take(*arguments)
        self.taken += self._inner.transactions
        return index

    def take_rows(self, *arguments: Any) -> int:
        index: int = self._inner.take_rows(*arguments)
        self.parts += self._inner.count > 0
        return index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def run(
    world: World,
    *,
    compiled: bool,
    chance: random.Random | None = None,
    part: str = "whole",
    blocks: bool = False,
) -> Committed:
    """Let a stage take all events and commit at the end."""
    committed = Committed()
    stage = start(world, compiled=compiled, part=part, blocks=blocks)
    with patch.object(kernel, "_enabled", compiled):
        for batch in cuts(world.events.records, chance):
            for _ in stage.take(RecordBlock(Record, batch) if blocks and compiled else batch):
                committed.note(stage.output.groups)
                stage.output.clear()
    committed.state = stage.state().to_bytes()
    if stage._compiled is not None:
        counting = stage._compiled.writer
        committed.compiled, committed.parts = counting.taken, counting.parts
    return committed


def run_with_crashes(world: World, chance: random.Random) -> Committed:
    """Commit and crash at random yields, with the kernel and without it in turns; give what is committed."""
    committed = Committed()
    fresh = False
    with patch.object(Output, "settle_bytes", chance.choice((0, 0, 500, 1 << 20))):
        for crashes_left in reversed(range(20)):
            compiled = chance.random() < 0.7
            stage = start(world, compiled=compiled, part=chance.choice(PARTS))
            waiting = Committed()
            crashed = False
            with patch.object(kernel, "_enabled", compiled):
                for batch in cuts(world.events.since(stage.next_offset), chance):
                    for _ in stage.take(batch):
                        waiting.note(stage.output.groups)
                        stage.output.clear()
                        if chance.random() < 0.3 or not fresh:
                            fresh = True
                            _commit(world, stage, waiting, committed)
                        if crashes_left and chance.random() < 0.03:
                            crashed = True
                            break
                    if crashed:
                        break
            if not crashed:
                _commit(world, stage, waiting, committed)
                committed.state = stage.state().to_bytes()
                return committed
    raise AssertionError("it never comes to an end")


def _commit(world: World, stage: Any, waiting: Committed, committed: Committed) -> None:
    state = stage.state()
    assert world.ledger.state is None or not state.precedes(world.ledger.state)
    world.ledger.state = type(state).from_bytes(state.to_bytes())
    for (topic, _), records in waiting.groups.items():
        # For the notes of tables' topics, which a stage reads when it starts.
        world.ledger.topics.setdefault(topic, []).extend((topic, *record) for record in records)
    committed.note(waiting.groups)
    waiting.groups.clear()
    world.ledger.commits += 1

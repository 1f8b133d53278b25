"""The end of a topic is lost on all brokers at once; then what docs/operations.md says to do is done.

The brokers are killed, and the newest batches of the topic are cut off each replica's log, at the end of a
transaction, as after an election of a leader that lacked them. The services that wrote or read these must
stop with code 7; ``millrace state rebuild`` brings them back, in the order of the documentation.
"""

import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from millrace.contract import EventKey, RawKey
from millrace.kafka.state import last_record
from millrace.local import Kafka
from millrace.runtime.exit_codes import ExitCode
from tests.chaos.faults import Fault, wait_until
from tests.chaos.stack import Stack
from tests.shared import PROJECT

_LENGTHS: Final = struct.Struct(">qi")
"""Of a record batch: base offset, and the bytes after these twelve."""

_ATTRIBUTES_AT, _LAST_DELTA_AT, _CONTROL = 21, 23, 0x20
_STOPPED_S, _CAUGHT_UP_S = 180.0, 300.0


@dataclass(frozen=True)
class _Batch:
    """Where a record batch lies in its segment, what it holds last, and whether it ends a transaction."""

    start: int
    end: int
    last_offset: int
    control: bool


class LostTail(Fault):
    """The end of a topic that services write and compare: ``raw``, ``events`` or ``transactions``."""

    ends_by_itself = True

    def __init__(self, stack: Stack, which: str, transactions: int) -> None:
        self.kind = f"lost tail of {which}"
        self.target = "brokers"
        self._stack, self._which, self._transactions = stack, which, transactions
        self._topic = getattr(stack.topics, which)
        services = list(stack.services)
        self._services = services[("raw", "events", "transactions").index(which) :][:2]
        """The one that writes the topic, and the one that reads it."""

    def begin(self) -> None:
        self._before = {name: self._stack.services[name].exits[ExitCode.DATA] for name in self._services}
        for name in self._services:
            self._stack.services[name].may_end_with(ExitCode.DATA)
        kafka = self._stack.kafka
        for node in range(kafka.nodes):
            kafka.kill_node(node)
        self._lost = cut_tail(kafka, self._topic, self._transactions)

    def end(self) -> None:
        stack = self._stack
        stack.kafka.start()
        if not self._lost:
            return
        for name in self._services:
            service = stack.services[name]
            if not wait_until(partial(self._stopped, name), _STOPPED_S):
                service.unexpected.append(f"{name} did not notice that {self._topic} lost its end")
            service.pause()
        for name in self._services:
            said = self._rebuild(name)
            service = stack.services[name]
            service.may_end_with(None)
            service.resume()
            if name != self._services[-1] and not wait_until(self._written_again(), _CAUGHT_UP_S):
                service.unexpected.append(f"{self._topic} did not grow again: {said}")

    def _stopped(self, name: str) -> bool:
        return self._stack.services[name].exits[ExitCode.DATA] > self._before[name]

    def _written_again(self) -> Callable[[], bool]:
        """Tell when the topic holds again what its reader has read of it."""
        topics = self._stack.topics
        if self._which == "raw":
            return lambda: self._reached(topics.raw) > self._reached(topics.events)
        there = self._reached(topics.raw)
        return lambda: self._reached(topics.events) >= there

    def _reached(self, topic: str) -> tuple[int, int, int]:
        """Give the place in the source's log at which a topic ends."""
        record = last_record(self._stack.settings, topic)
        if record is None or record.key is None:
            return 0, 0, 0
        raw = topic == self._stack.topics.raw
        return (RawKey.parse(record.key) if raw else EventKey.parse(record.key).raw).order

    def _rebuild(self, name: str) -> str:
        service = self._stack.services[name]
        command = [sys.executable, "-m", "millrace.cli", "state", "rebuild", name, "--yes"]
        done = subprocess.run(
            command, env=service.environment, cwd=PROJECT, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            service.unexpected.append(f"state rebuild {name} ended with {done.returncode}: {done.stderr}")
        return done.stdout


def cut_tail(kafka: Kafka, topic: str, transactions: int) -> bool:
    """Cut the last ``transactions`` off partition 0 of a topic, in all replicas; the brokers must be down.

    Gives whether there were so many in the segment that is written to.
    """
    segments = [
        max((kafka.folder / f"data-{node}" / f"{topic}-0").glob("*.log")) for node in range(kafka.nodes)
    ]
    # A replica may lack what the others have: what is cut off must be in all, or is left.
    ends = [[batch.last_offset for batch in _batches(path) if batch.control] for path in segments]
    shared = sorted(set.intersection(*map(set, ends)))
    if len(shared) <= transactions:
        return False
    last = shared[-transactions - 1]
    for path in segments:
        size = max(batch.end for batch in _batches(path) if batch.last_offset <= last)
        with path.open("r+b") as segment:
            segment.truncate(size)
        # What Kafka knows of the segment besides is made from it again.
        for other in path.parent.iterdir():
            if other.suffix == ".snapshot" or (other.stem == path.stem and other.suffix.endswith("index")):
                other.unlink()
    return True


def _batches(path: Path) -> Iterator[_Batch]:
    """Give the record batches of a segment, up to one that was not written whole."""
    data = path.read_bytes()
    at = 0
    while at + _LAST_DELTA_AT + 4 <= len(data):
        base, length = _LENGTHS.unpack_from(data, at)
        end = at + _LENGTHS.size + length
        if length <= 0 or end > len(data):
            return
        (attributes,) = struct.unpack_from(">h", data, at + _ATTRIBUTES_AT)
        (delta,) = struct.unpack_from(">i", data, at + _LAST_DELTA_AT)
        yield _Batch(at, end, base + delta, bool(attributes & _CONTROL))
        at = end


def lost_tail(stack: Stack, chance: random.Random) -> LostTail:
    """Choose a topic, and how much of it is lost."""
    return LostTail(stack, chance.choice(("raw", "events", "transactions")), chance.choice((1, 2, 10, 40)))

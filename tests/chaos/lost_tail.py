"""The end of a topic is lost on all brokers at once; then what docs/how-to/recover.md says to do is done.

The brokers are killed, and the newest batches of the topic are cut off each replica's log, at the end of a
transaction, as after an election of a leader that lacked them. The services that wrote or read these must
stop with code 7; ``millrace state rebuild`` brings them back, in the order of the documentation. Where the
state topic loses its end, those stop whose state is older than what they wrote.
"""

import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.avro.service_state import DecoderState, RowMapperState, stored_state
from millrace.contract import RUN, SERVICES, EventKey, RawKey
from millrace.kafka.state import last_record, newest_offset, read_state
from millrace.local import Kafka
from millrace.runtime.exit_codes import ExitCode
from tests.chaos.faults import Fault, took_over, wait_until
from tests.chaos.stack import Stack, Supervised
from tests.shared import PROJECT

if TYPE_CHECKING:
    from millrace.local.processes import Process

_LENGTHS: Final = struct.Struct(">qi")
"""Of a record batch: base offset, and the bytes after these twelve."""

_EPOCH: Final = slice(12, 16)
"""Where a record batch has the epoch of its leader, which its checksum leaves out."""

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
        self._services = SERVICES[("raw", "events", "transactions").index(which) :][:2]
        """The one that writes the topic, and the one that reads it."""
        self._stopping = [stack.services[name] for name in (*self._services, RUN) if name in stack.at_work]

    def begin(self) -> None:
        self._before = {service.name: service.exits[ExitCode.DATA] for service in self._stopping}
        for service in self._stopping:
            service.may_end_with(ExitCode.DATA)
        self._lost = _lose(self._stack.kafka, self._topic, self._transactions)

    def end(self) -> None:
        stack = self._stack
        stack.kafka.start()
        if not self._lost:
            return
        for service in self._stopping:
            if self._has_had(service.name) and not wait_until(partial(self._stopped, service), _STOPPED_S):
                service.unexpected.append(f"{service.name} did not notice that {self._topic} lost its end")
            service.pause(signal.SIGKILL)
            service.may_end_with(None)
        for name in self._services:
            said = rebuild(stack.services[name])
            service, is_last = stack.services[name], name == self._services[-1]
            if service in self._stopping or not is_last:
                service.resume()
            if not is_last and not wait_until(self._written_again(), _CAUGHT_UP_S):
                service.unexpected.append(f"{self._topic} did not grow again: {said}")
            if service not in self._stopping and not is_last:
                service.pause(signal.SIGTERM)
        if RUN in stack.at_work:
            stack.services[RUN].resume()

    def _has_had(self, name: str) -> bool:
        """Return whether a service, as its state says, has written what was lost, or read it."""
        stack = self._stack
        if name == RUN or stack.topics.of_service(name).input != self._topic:
            return True
        kind = {"decoder": DecoderState, "rowmapper": RowMapperState}[name]
        stored = read_state(stack.settings, stack.source, name)
        state = None if stored is None else stored_state(kind, stored.value, stack.topics.state)
        last = None if state is None else state.continuity.last_input
        return last is not None and last.offset >= newest_offset(stack.settings, self._topic)

    def _stopped(self, service: Supervised) -> bool:
        return service.exits[ExitCode.DATA] > self._before[service.name]

    def _written_again(self) -> Callable[[], bool]:
        """Tell when the topic holds again what its reader has read of it."""
        topics = self._stack.topics
        if self._which == "raw":
            return lambda: self._reached(topics.raw) > self._reached(topics.events)
        there = self._reached(topics.raw)
        return lambda: self._reached(topics.events) >= there

    def _reached(self, topic: str) -> tuple[int, int, int]:
        """Return the place in the source's log at which a topic ends."""
        record = last_record(self._stack.settings, topic)
        if record is None or record.key is None:
            return 0, 0, 0
        raw = topic == self._stack.topics.raw
        return (RawKey.parse(record.key) if raw else EventKey.parse(record.key).raw).order


class LostState(Fault):
    """The end of the state topic, while nothing is at work: some states are older than what they speak of."""

    kind = "lost tail of state"
    target = "brokers"
    ends_by_itself = True

    def __init__(self, stack: Stack, transactions: int) -> None:
        self._stack, self._transactions = stack, transactions

    def begin(self) -> None:
        stack = self._stack
        for name in stack.at_work:
            stack.services[name].pause(signal.SIGKILL)
        _lose(stack.kafka, stack.topics.state, self._transactions)

    def end(self) -> None:
        stack = self._stack
        stack.kafka.start()
        before = {name: stack.services[name].exits[ExitCode.DATA] for name in stack.at_work}
        for name in stack.at_work:
            stack.services[name].may_end_with(ExitCode.DATA)
        # Where the end of a transaction is lost, only the service that began it ends it: all start at once.
        started = {name: stack.services[name].resume() for name in stack.at_work}
        for name, process in started.items():
            self._follow(stack.services[name], process, before[name])

    def _follow(self, service: Supervised, process: "Process", before: int) -> None:
        """Wait until it is at work again; if its state proves too old, rebuild that first."""
        stack = self._stack

        def stopped() -> bool:
            return service.exits[ExitCode.DATA] > before

        if not wait_until(lambda: stopped() or took_over(stack, service.name, process), _STOPPED_S):
            service.unexpected.append(f"{service.name} neither resumed nor stopped after the loss of states")
        if stopped():
            service.pause(signal.SIGKILL)
            for name in SERVICES if service.name == RUN else (service.name,):
                rebuild(stack.services[name])
            service.resume()
        service.may_end_with(None)


def rebuild(service: Supervised) -> str:
    """Run ``millrace state rebuild``; give what it says."""
    command = [sys.executable, "-m", "millrace.cli", "state", "rebuild", service.name, "--yes"]
    done = subprocess.run(
        command, env=service.environment, cwd=PROJECT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        service.unexpected.append(f"state rebuild {service.name} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _lose(kafka: Kafka, topic: str, transactions: int) -> bool:
    """Kill all brokers and cut the end off a topic; give whether something was cut off."""
    for node in range(kafka.nodes):
        kafka.kill_node(node)
    return cut_tail(kafka, topic, transactions)


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
        _truncate(path, max(batch.end for batch in _batches(path) if batch.last_offset <= last))
    return True


def replace_tail(kafka: Kafka, topic: str, transactions: int) -> None:
    """Cut the last ``transactions`` off partition 0 of a topic, and let what is left follow once more.

    It then ends later than before, in the epoch of the leader that had written what was cut off, as where
    brokers have come back from a backup. The one broker must be down, and the topic have one segment.
    """
    (path,) = (kafka.folder / "data-0" / f"{topic}-0").glob("*.log")
    *_, end = _batches(path)
    epoch = path.read_bytes()[end.start : end.end][_EPOCH]
    assert cut_tail(kafka, topic, transactions)
    batches, data = list(_batches(path)), path.read_bytes()
    offset = batches[-1].last_offset + 1
    with path.open("ab") as segment:
        for batch in batches:
            again = data[batch.start : batch.end]
            first, length = _LENGTHS.unpack_from(again)
            segment.write(_LENGTHS.pack(offset, length) + epoch + again[_EPOCH.stop :])
            offset += batch.last_offset + 1 - first
    assert offset > end.last_offset + 1


def cut_marker(kafka: Kafka, topic: str) -> None:
    """Cut the end of the last transaction off partition 0 of a topic: its records stay open.

    The brokers must be down, and the last batch in all replicas be such an end.
    """
    for node in range(kafka.nodes):
        path = max((kafka.folder / f"data-{node}" / f"{topic}-0").glob("*.log"))
        *_, last = _batches(path)
        assert last.control
        _truncate(path, last.start)


def _truncate(segment_path: Path, size: int) -> None:
    with segment_path.open("r+b") as segment:
        segment.truncate(size)
    # What Kafka knows of the segment besides is made from it again.
    for other in segment_path.parent.iterdir():
        if other.suffix == ".snapshot" or (
            other.stem == segment_path.stem and other.suffix.endswith("index")
        ):
            other.unlink()


def _batches(path: Path) -> Iterator[_Batch]:
    """Yield the record batches of a segment, up to one that was not written whole."""
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


def lost_tail(stack: Stack, chance: random.Random) -> Fault:
    """Choose a topic, and how much of it is lost."""
    which, transactions = (
        chance.choice(("raw", "events", "transactions", "state")),
        chance.choice((1, 2, 10, 40)),
    )
    return LostState(stack, transactions) if which == "state" else LostTail(stack, which, transactions)

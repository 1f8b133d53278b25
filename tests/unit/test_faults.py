"""Services and ``millrace run`` on a Kafka in memory that crashes, times out, fences and forgets, in any
order.

Whatever happens, the topics hold a beginning of what a run without any fault writes, each record once; and
once the faults have stopped, all of it.
"""

import copy
import io
import itertools
import operator
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import fastavro
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.avro import single_object
from millrace.avro.catalog import CatalogEntry
from millrace.avro.records import deserialize, is_dead_letter_of
from millrace.avro.service_state import ReaderState, RowMapperState
from millrace.binlog.checksum import CHECKSUM_LENGTH, compute_checksum
from millrace.binlog.event_codec import BinlogEvent, seal
from millrace.binlog.events import (
    GtidLogEvent,
    RotateEvent,
    TransactionPayloadEvent,
    UpdateRowsEvent,
    UserVarEvent,
    WriteRowsEvent,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.file import iter_events
from millrace.binlog.gtid_set import GtidSet
from millrace.binlog.header import TYPE_OFFSET, EventHeader
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.binlog.types import EventType
from millrace.cli.reprocess import reprocess
from millrace.cli.state import state
from millrace.contract import Topics, log_number, transactional_id
from millrace.decoder.settings import DecoderSettings
from millrace.kafka import producer as producer_module
from millrace.kafka.producer import CommitPolicy
from millrace.kafka.state import state_key
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.errors import SettingsError, StopRequestedError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.service import Service
from millrace.runtime.settings import load_settings
from millrace.stage import Output
from services.decoder import app as decoder_app
from services.reader import app as reader_app
from services.rowmapper import app as rowmapper_app
from services.run import app as run_app
from services.run.settings import RunSettings
from services.snapshot.settings import SnapshotSettings
from tests.fake_broker import Broker, Crash, FakeProducer, crash
from tests.stages import Registry
from tests.unit.binlog_command.made_logs import START, TABLE_MAP, MadeLog, rows

SOURCE = "s"
SERVICES = ("reader", "decoder", "rowmapper")
PROCESSES = (*SERVICES, "run", "run")
"""What a source may be carried by; ``run`` as often as all of the others."""

TOPICS = Topics(SOURCE)
OUTPUT = (TOPICS.raw, TOPICS.events, TOPICS.transactions, TOPICS.ddl, TOPICS.deadletter, f"{SOURCE}.shop.t")
IN_ORDER = [(topic, None) for topic in OUTPUT if topic != TOPICS.deadletter]
IN_ORDER += [(TOPICS.deadletter, service) for service in SERVICES[1:]]
"""Topics, and where several services write, each of these."""

SID = bytes(range(16))
POSITIONS = frozenset({"raw_offset", "events_offset", "offset", "read_ts_ms", "ts_ms", "ts_us", "ts_ns"})
"""Fields that depend on the time, or on where other records lie."""

LOSSES = [
    (TOPICS.raw,),
    (TOPICS.events,),
    (TOPICS.transactions, f"{SOURCE}.shop.t"),
    (TOPICS.ddl,),
    (TOPICS.state,),
]
"""Topics that lose their tails together. That of a row topic alone shows in no state."""

REGISTRY_USERS = ["services.decoder.app", "millrace.decoder.rebuild", "millrace.rowmapper.takeover"]
REGISTRY_USERS += ["millrace.rowmapper.rebuild", "services.run.app"]

_NUMBERS = itertools.count(1)
"""Of processes: each is another one to the others."""

Action = Callable[[MadeLog, int], object]


def insert(log: MadeLog, number: int) -> None:
    log.query("BEGIN")
    for row in range(3):
        log.add(
            TABLE_MAP,
            WriteRowsEvent(7, int(row == 2), b"", 2, b"", b"\x03", rows((None, (number, f"{row}")))),
        )
    log.add(XidEvent(number))


def update(log: MadeLog, number: int) -> None:
    log.query("BEGIN")
    change = rows(((number, "a"), (number, "b")))
    log.add(TABLE_MAP, UpdateRowsEvent(7, 1, b"", 2, b"\x03", b"\x03", change), XidEvent(number))


def unreadable(log: MadeLog, number: int) -> None:
    """Rows of a table that are cut short: the table is quarantined."""
    log.query("BEGIN")
    log.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", b"\x03", b"\x00\x01"), XidEvent(number))


def undecodable(log: MadeLog, number: int) -> None:
    """A transaction with an event whose body is impossible."""
    log.query("BEGIN")
    log.add(UserVarEvent("v", 1, None, None, None, None))
    position, data = log.events.pop()
    log.position = position
    damaged = data[:19] + b"\xff" * (len(data) - 19 - CHECKSUM_LENGTH)
    log.append(damaged + compute_checksum(damaged))
    log.add(XidEvent(number))


def ddl(log: MadeLog, number: int) -> None:
    log.query(f"CREATE TABLE other_{number} (id INT)")


def prepare(log: MadeLog, number: int) -> None:
    del number
    log.query("XA START X'61',X'',1")
    log.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", b"\x03", rows((None, (1, "xa")))))
    log.query("XA END X'61',X'',1")
    log.add(XaPrepareLogEvent(0, 1, b"a", b""))


def decide(log: MadeLog, number: int) -> None:
    log.query(f"XA {('COMMIT', 'ROLLBACK')[number % 2]} X'61',X'',1")


def payload(log: MadeLog, number: int) -> None:
    """A transaction that is packed in one event."""
    inside = MadeLog()
    insert(inside, number)
    state = log.state.for_payload()
    events = b"".join(
        seal(BinlogEvent(EventHeader(1_700_000_000, event.event_type, 1, 0), event), state)
        for event in (record.event.event for record in inside.records()[1:])
    )
    log.add(TransactionPayloadEvent(255, len(events), events))


ACTIONS: tuple[Action, ...] = (insert, update, unreadable, undecodable, ddl, prepare, decide, payload)


def write_log(
    folder: Path, number: int, actions: list[Action], *, first: int | None = None, begun: int = START
) -> None:
    """Write a log file that ends with the name of the next one; GTIDs are numbered from ``first`` on."""
    log = MadeLog(name=f"bin.{number:06}", begun=begun)
    if first is not None:
        log.add(GtidSet.parse(f"{uuid.UUID(bytes=SID)}:1-{first - 1}").to_event())
    for count, action in enumerate(actions):
        at = number * 100 + 1 if first is None else first
        log.add(GtidLogEvent(0, SID, at + count, 2, 0, 1, 1, None, 100, 80030))
        action(log, at + count - 1)
    log.add(RotateEvent(4, f"bin.{number + 1:06}"))
    (folder / log.name).write_bytes(b"\xfebin" + b"".join(data for _, data in log.events))


def transactions_of(path: Path) -> list[tuple[int, int]]:
    """Where the transactions of a log file begin, and the numbers of their GTIDs."""
    found, position = [], 4
    with path.open("rb") as stream:
        for _, data in iter_events(stream, str(path)):
            if data[TYPE_OFFSET] == EventType.GTID_LOG_EVENT:
                found.append((position, int.from_bytes(data[36:44], "little")))
            position += len(data)
    return found


def settings_for(folder: Path, topics: Topics = TOPICS) -> dict[str, Any]:
    """Settings of all that reads the log files in a folder, or another source's topics, by its name."""
    kafka = {"bootstrap_servers": "nowhere:1", "fenced_wait_s": 0}
    every: dict[str, Any] = {"source": topics.source, "kafka": kafka, "input_source": topics.input_source}
    files, registry = {"files": str(folder / "bin.*")}, {"registry": {"url": "http://nowhere:1"}}
    found: dict[str, Any] = {
        "decoder": load_settings(DecoderSettings, **every, **registry),
        "rowmapper": load_settings(RowMapperSettings, **every, **registry),
    }
    if not topics.reads_another:
        found |= {
            "reader": load_settings(ReaderSettings, **every, **files),
            "run": load_settings(RunSettings, **every, **files, **registry),
        }
    return found


class World:
    """Broker, registry and log files: what outlives a process."""

    commit_every = 4
    """Records, or as soon as a stage yields after so many."""

    def __init__(self, folder: Path, topics: Topics = TOPICS, beside: Self | None = None) -> None:
        self.folder = folder
        self.topics = topics
        self.broker, self.registry = (beside.broker, beside.registry) if beside else (Broker(), Registry())
        self._settings = settings_for(folder, topics)
        self._read: dict[bytes, Any] = {}

    def copy(self) -> Self:
        """Return another world in which all has happened that has happened in this one."""
        other = copy.copy(self)
        other.broker = self.broker.copy()
        return other

    def run(self, name: str) -> None:
        """Run a service until it has nothing left to do, or what it stops with is raised."""
        app = {"reader": reader_app, "decoder": decoder_app, "rowmapper": rowmapper_app, "run": run_app}[name]
        service: Service[Any] = Service(name, self._settings[name], get_logger("test"))
        before, self.broker.on_idle = self.broker.on_idle, service.stop.set
        process = f"process {next(_NUMBERS)}"
        try:
            with self._installed(), patch("millrace.kafka.producer.process_name", lambda: process):
                app.run(service)
        finally:
            self.broker.on_idle = before

    def tell_to_stop(self) -> None:
        """Tell the service that runs to stop."""
        self.broker.on_idle()

    def _installed(self) -> Any:
        stack = ExitStack()
        stack.enter_context(self.broker.installed())
        for module in REGISTRY_USERS:
            stack.enter_context(patch(f"{module}.open_schemas", lambda *_, **__: self.registry))
        policy = CommitPolicy(records=self.commit_every)
        stack.enter_context(patch.object(producer_module, "CommitPolicy", lambda: policy))
        stack.enter_context(patch.object(producer_module, "_MOST_TOPICS", 3))
        stack.enter_context(patch.object(Output, "settle_bytes", 0))
        # What the broker has it gives at once.
        stack.enter_context(patch("millrace.kafka.continuity._TIMEOUT_S", 0.1))
        # Whoever has fenced a service says at once who it is, or never, and is silent once it was killed.
        stack.enter_context(patch("millrace.kafka.pause._ANNOUNCE_S", 0))
        stack.enter_context(patch("millrace.kafka.pause.SILENT_S", 0))
        return stack

    def rebuild(self, name: str) -> None:
        """Run ``millrace state rebuild``."""
        options = ["--source", self.topics.source, "--bootstrap-servers", "nowhere:1", "--yes"]
        options += ["--registry-url", "http://nowhere:1"]
        runner = CliRunner(env={"MILLRACE_INPUT_SOURCE": self.topics.input_source})
        with self._installed():
            result = runner.invoke(state, ["rebuild", name, *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output

    def reprocess(self) -> None:
        """Run ``millrace reprocess``."""
        options = ["--source", self.topics.source, "--bootstrap-servers", "nowhere:1", "--yes"]
        with self._installed():
            result = CliRunner().invoke(reprocess, options, catch_exceptions=False)
        assert result.exit_code == 0, result.output

    def drain(self) -> None:
        """Let all services carry all that there is; where one refuses its state, rebuild that."""
        for name in SERVICES:
            if name not in self._settings:
                continue
            try:
                self.run(name)
            except UserError as error:
                if error.exit_code is not ExitCode.DATA:
                    raise
                self.rebuild(name)
                self.run(name)

    def rewrite_state(self, name: str, change: Callable[[bytes], bytes]) -> bool:
        """Have the last state of a service as another version writes it; tell whether there is one."""
        key = state_key(name)
        states = [entry.value for entry in self.broker.records(self.topics.state) if entry.key == key]
        if not states or states[-1] is None:
            return False
        number = max(self.broker.committed)
        self.broker.topics[self.topics.state].append(key=key, value=change(states[-1]), transaction=number)
        return True

    def written(self, topic: str, service: str | None = None) -> list[Any]:
        """Committed records of a topic, or of a service there, without what depends on time and place."""
        return [
            self._readable(topic, entry)
            for entry in self.broker.records(topic)
            if service is None or is_dead_letter_of(service, entry.value)
        ]

    def reader_state(self) -> ReaderState | None:
        """Where the reader stands, as of its last commit."""
        states = {entry.key: entry.value for entry in self.broker.records(self.topics.state)}
        stored = states.get(state_key("reader"))
        return None if stored is None else ReaderState.from_bytes(stored)

    def counters(self) -> dict[str, int]:
        """What the row mapper has counted, as of its last commit."""
        states = {entry.key: entry.value for entry in self.broker.records(self.topics.state)}
        counted = RowMapperState.from_bytes(states[state_key("rowmapper")]).counters
        return {name: count for name, count in counted.items() if count}

    def _readable(self, topic: str, entry: Any) -> Any:
        value = entry.value
        if topic != TOPICS.raw and value is not None and value[:1] == b"\0":
            if value not in self._read:
                self._read[value] = _timeless(deserialize(self.registry, value))
            value = self._read[value]
        return entry.key, value, entry.headers, entry.timestamp_ms


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(field) for name, field in value.items() if name not in POSITIONS}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return value


def _named(dead_letter: Any) -> Any:
    """Return what a dead letter says but for the records in it."""
    key, value, headers, timestamp = dead_letter
    return key, {**value, "value": None, "context": None}, headers, timestamp


class Faults(RuleBasedStateMachine):
    """Runs services one at a time, and lets things happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp())
        self.world = World(self._folder)
        self.reference = self.world.copy()
        self._files = 0
        self._lost: set[str] = set()
        """Topics that have lost their tails and are not repaired."""
        self._rebuilt = False
        self._write([insert])

    def teardown(self) -> None:
        self.world.drain()
        self._compare(whole=True)
        if not self._rebuilt:
            assert self.world.counters() == self.reference.counters()
        shutil.rmtree(self._folder)

    def _write(self, actions: list[Action]) -> None:
        self._files += 1
        write_log(self._folder, self._files, actions)
        self.reference.run("run")

    def _compare(self, *, whole: bool) -> None:
        for topic, service in IN_ORDER:
            found, expected = (world.written(topic, service) for world in (self.world, self.reference))
            assert found == (expected if whole else expected[: len(found)]), (topic, service)

    @invariant()
    def holds_a_beginning(self) -> None:
        self._compare(whole=False)

    @rule(actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=6))
    def write(self, actions: list[Action]) -> None:
        self._write(actions)

    @rule(name=st.sampled_from(PROCESSES))
    def run(self, name: str) -> None:
        try:
            self.world.run(name)
        except UserError as error:
            if error.exit_code is not ExitCode.DATA:
                raise
            assert self._lost

    @rule(name=st.sampled_from(PROCESSES), call=st.integers(1, 120))
    def crash(self, name: str, call: int) -> None:
        self.world.broker.at_call(call, crash)
        with suppress(Crash):
            self.run(name)
        self.world.broker.forget_event()

    @rule(name=st.sampled_from(PROCESSES), call=st.integers(1, 120))
    def stop(self, name: str, call: int) -> None:
        """A service is told to stop in the middle of its work."""
        self.world.broker.at_call(call, self.world.tell_to_stop)
        with suppress(StopRequestedError):
            self.run(name)
        self.world.broker.forget_event()

    @rule(name=st.sampled_from(PROCESSES), call=st.integers(1, 120))
    def restart_brokers(self, name: str, call: int) -> None:
        """The brokers restart while a service runs, and it continues."""
        self.world.broker.at_call(call, self.world.broker.restart)
        self.run(name)
        self.world.broker.forget_event()

    @rule(name=st.sampled_from(PROCESSES))
    def time_out(self, name: str) -> None:
        """The transaction that a crashed service has left open ends."""
        self.world.broker.expire(transactional_id(name, SOURCE))

    @rule(name=st.sampled_from(PROCESSES), call=st.integers(1, 120))
    def time_out_meanwhile(self, name: str, call: int) -> None:
        """The transaction of a service that runs times out."""
        self.world.broker.at_call(call, lambda: self.world.broker.expire(transactional_id(name, SOURCE)))
        with suppress(UserError):
            self.world.run(name)
        self.world.broker.forget_event()

    @rule(name=st.sampled_from(PROCESSES), other=st.sampled_from(PROCESSES), call=st.integers(1, 120))
    def take_over(self, name: str, other: str, call: int) -> None:
        """Another process takes over, and the first continues."""
        taken, expired = [], self.world.broker.expired
        expired.clear()

        def take() -> None:
            self.run(other)
            taken.append(name == other or "run" in (name, other))

        self.world.broker.at_call(call, take)
        try:
            self.run(name)
        except UserError as error:
            # One that waits for what the first has open outlasts its transaction.
            assert taken == [True] or transactional_id(name, SOURCE) in expired
            assert error.exit_code is ExitCode.FENCED  # noqa: PT017
        self.world.broker.forget_event()

    @rule(topics=st.sampled_from(LOSSES), count=st.integers(1, 5))
    def lose_tail(self, topics: tuple[str, ...], count: int) -> None:
        """Brokers lose the tail of a topic; the services stop until their states are rebuilt.

        Of the raw topic something stays: where a reader without anything stood, nobody can tell. Of that of
        transactions too: a row mapper whose state is from before its first output as well does not know that
        row topics hold rows, unless ``state rebuild rowmapper`` is run first. Nor does it know what a row
        topic has lost that goes back to where the transactions end.
        """
        if {TOPICS.transactions, TOPICS.state} <= self._lost.union(topics):
            return
        broker = self.world.broker
        left = [len(broker.records(at)) - (at in {TOPICS.raw, TOPICS.transactions}) for at in topics]
        if min(left) > 0:
            for topic, most in zip(topics, left, strict=True):
                broker.lose_tail(topic, min(count, most))
                self._lost.add(topic)
            self._rebuilt = True

    @rule(name=st.sampled_from(SERVICES), version=st.integers(0, 2))
    def downgrade(self, name: str, version: int) -> None:
        """The state is one that an earlier version has written."""
        if TOPICS.state in self._lost:
            return

        def earlier(value: bytes) -> bytes:
            kind = {"reader": "ReaderState", "decoder": "DecoderState", "rowmapper": "RowMapperState"}[name]
            schemas = list(single_object._before_additions(kind).items())
            written_by, schema = schemas[version % len(schemas)]
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, single_object.decode(kind, value))
            return value[:2] + written_by + out.getvalue()

        self.world.rewrite_state(name, earlier)

    @rule(name=st.sampled_from(SERVICES))
    def upgrade(self, name: str) -> None:
        """The state is one that a later version has written: its service stops until it is rebuilt."""
        if TOPICS.transactions not in self._lost and self.world.rewrite_state(
            name, lambda value: value[:2] + bytes(8) + value[10:]
        ):
            self._lost.add(TOPICS.state)
            self._rebuilt = True

    @rule(
        name=st.sampled_from(("reader", "run")),
        kept=st.integers(0, 5),
        actions=st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=3),
    )
    def exchange(self, name: str, kept: int, actions: list[Action]) -> None:
        """The source is exchanged for one with fewer transactions under the same numbers, and brought back.

        It is restored from a backup of a moment before the reader's place, and writes on in its next file.
        """
        state = None if self._lost else self.world.reader_state()
        if state is None:
            return
        number = log_number(state.log_file)[1]
        path = self._folder / f"bin.{min(number, self._files):06}"
        cut = transactions_of(path)[kept:]
        if not cut or (number <= self._files and cut[0][0] >= state.position):
            return
        (end, gtid), following = cut[0], self._folder / f"bin.{min(number, self._files) + 1:06}"
        before = {file: file.read_bytes() for file in (path, following) if file.exists()}
        path.write_bytes(before[path][:end])
        write_log(self._folder, log_number(following.name)[1], actions, first=gtid, begun=START + 86_400)
        with pytest.raises(UserError) as refused:
            self.world.run(name)
        following.unlink()
        for file, data in before.items():
            file.write_bytes(data)
        assert refused.value.exit_code is ExitCode.DATA

    @rule(
        name=st.sampled_from(PROCESSES[1:]),
        call=st.integers(20, 200),
        count=st.integers(1, 4),
        foreign=st.booleans(),
    )
    def forget_schemas(self, name: str, call: int, count: int, foreign: bool) -> None:
        """The registry loses its newest schemas after a crash, and gives their ids to others.

        What a service then writes is read by the schema that it was written by; or it stops.
        """
        if self._lost:
            return
        world = self.world.copy()
        world.registry, world._read = copy.deepcopy(self.world.registry), {}
        world.broker.at_call(call, crash)
        with suppress(Crash, UserError):
            world.run("run")
        world.broker.forget_event()
        schemas = world.registry.schemas
        del schemas[-count:]
        if foreign:
            schemas += [{"type": "record", "name": f"Foreign{at}", "fields": []} for at in range(count)]

        def entries(topic: str, service: str | None) -> list[Any]:
            records = world.broker.records(topic)
            return [one for one in records if service is None or is_dead_letter_of(service, one.value)]

        before = {at: len(entries(*at)) for at in IN_ORDER}
        try:
            world.run(name)
        except UserError as error:
            # Fenced where it has waited for what the crashed one had open.
            assert error.exit_code in {ExitCode.DATA, ExitCode.FENCED}  # noqa: PT017
        for (topic, service), known in before.items():
            written = [world._readable(topic, entry) for entry in entries(topic, service)[known:]]
            expected = self.reference.written(topic, service)[known:]
            if topic == TOPICS.deadletter:  # the events in them begin with ids
                written, expected = ([_named(one) for one in found] for found in (written, expected))
            assert written == expected[: len(written)], (topic, service)

    @precondition(lambda self: self._lost)
    @rule()
    def repair(self) -> None:
        self.world.drain()
        self._lost.clear()


def world_before(name: str, folder: Path) -> World:
    """Return a world in which the input of a service is complete, and nothing else."""
    world = World(folder)
    for earlier in SERVICES[: SERVICES.index(name)] if name != "run" else ():
        world.run(earlier)
    return world


@pytest.mark.parametrize("action", [ddl, undecodable, unreadable])
def test_the_end_of_the_state_is_lost(
    action: Action, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ever more of the state is lost, each time from the end on, and nothing is written twice."""
    monkeypatch.setattr(World, "commit_every", 1)
    reference = World(tmp_path)
    write_log(tmp_path, 1, [insert])
    write_log(tmp_path, 2, [action])
    reference.drain()
    states = len(reference.broker.records(TOPICS.state))
    for count in range(1, states):
        world = reference.copy()
        world.broker.lose_tail(TOPICS.state, count)
        world.drain()
        for topic, service in IN_ORDER:
            assert world.written(topic, service) == reference.written(topic, service), (topic, count)


def test_the_end_of_an_input_is_lost_and_written_again(tmp_path: Path) -> None:
    """The last record that was read may be at its offset again, and the transaction that it is of elsewhere.

    The ends of Kafka's transactions take offsets, and are between other records than before.
    """
    world = World(tmp_path)
    write_log(tmp_path, 1, [insert])
    world.run("run")
    write_log(tmp_path, 2, [insert, update, insert])
    reference = world.copy()
    reference.drain()
    for call, count in product(range(118, 134, 3), range(5, 13)):
        cut = world.copy()
        cut.broker.at_call(call, cut.tell_to_stop)
        with suppress(StopRequestedError):
            cut.run("run")
        cut.broker.forget_event()
        cut.broker.lose_tail(TOPICS.events, count)
        cut.drain()
        for topic, service in IN_ORDER:
            assert cut.written(topic, service) == reference.written(topic, service), (topic, call, count)


def test_services_that_start_together(tmp_path: Path) -> None:
    """A service that finds a transaction open is not fenced by another one that starts at that moment."""
    write_log(tmp_path, 1, [insert])

    def take_id(broker: Broker, name: str) -> FakeProducer:
        producer = FakeProducer(broker, {"transactional.id": transactional_id(name, SOURCE)})
        producer.init_transactions(0.1)
        return producer

    def leave_open(broker: Broker, call: int) -> None:
        producer = take_id(broker, "reader")
        producer.begin_transaction()
        producer.produce(TOPICS.state, b"", b"")
        producer.flush()
        broker.at_call(call, partial(take_id, broker, "run"))

    before = world_before("decoder", tmp_path)
    for first, call in product(range(5, 15), range(1, 12)):
        world = before.copy()
        world.broker.at_call(first, partial(leave_open, world.broker, call))
        world.run("decoder")


@pytest.mark.parametrize("topic", [TOPICS.raw, TOPICS.events])
def test_the_end_of_an_input_is_lost_again(topic: str, tmp_path: Path) -> None:
    """A service whose state was rebuilt knows what its input ended with, before it has read anything more."""
    write_log(tmp_path, 1, [insert, update])
    reference = World(tmp_path)
    reference.drain()
    for count in range(2, 12):
        world = reference.copy()
        for lost in (2, count):
            world.broker.lose_tail(topic, lost)
            world.drain()
        for each, service in IN_ORDER:
            assert world.written(each, service) == reference.written(each, service), (each, count)


@pytest.mark.parametrize(
    ("name", "topics"),
    [("decoder", [TOPICS.events]), ("rowmapper", [TOPICS.transactions, f"{SOURCE}.shop.t"])],
)
def test_a_topic_loses_all_but_what_was_aborted(name: str, topics: list[str], tmp_path: Path) -> None:
    """A topic that holds offsets but no record has lost what the other topics of its service tell of."""
    write_log(tmp_path, 1, [insert, undecodable])
    before = world_before(name, tmp_path)
    reference = before.copy()
    reference.drain()
    for call in range(1, 60):
        world = before.copy()
        world.broker.at_call(call, crash)
        with suppress(Crash):
            world.run(name)
        world.broker.forget_event()
        world.drain()
        for topic in topics:
            left = topic == TOPICS.transactions
            world.broker.lose_tail(topic, len(world.broker.records(topic)) - left)
        world.drain()
        for topic, service in IN_ORDER:
            assert world.written(topic, service) == reference.written(topic, service), (topic, call)


@pytest.fixture
def skips_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the decoder skip what was deleted, and each service commit as often as it can."""
    monkeypatch.setattr(World, "commit_every", 1)
    monkeypatch.setenv("MILLRACE_SKIP_GAP", "true")


@pytest.mark.usefixtures("skips_gaps")
@pytest.mark.parametrize("first", [update, undecodable])
def test_the_events_end_with_a_gap_of_the_decoder(first: Action, tmp_path: Path) -> None:
    """No raw record is like that note: what was decoded ends with the first that was left after the gap."""
    write_log(tmp_path, 1, [insert])
    before = world_before("rowmapper", tmp_path)
    for number, action in ((2, insert), (3, first)):
        write_log(tmp_path, number, [action])
    before.run("reader")
    before.broker.delete_until(TOPICS.raw, lambda entry: b":bin.000003:" in entry.key)
    before.run("decoder")
    worlds = [before.copy() for _ in range(12)]
    for count, world in enumerate(worlds):
        events = world.broker.records(TOPICS.events)
        (gap,) = (at for at, entry in enumerate(events) if entry.headers)
        world.broker.lose_tail(TOPICS.events, min(count, len(events) - 1 - gap))
        world.drain()
    reference, *others = worlds
    assert any(len(world.broker.records(TOPICS.events)) for world in others)
    for world in others:
        for topic, service in ((TOPICS.raw, None), (TOPICS.events, None), (TOPICS.deadletter, "decoder")):
            assert world.written(topic, service) == reference.written(topic, service), topic


@pytest.mark.usefixtures("skips_gaps")
@pytest.mark.parametrize("first", [update, undecodable])
def test_the_events_end_with_a_gap_in_the_middle_of_a_file(first: Action, tmp_path: Path) -> None:
    """How the file begins is in the events alone."""
    write_log(tmp_path, 1, [insert, insert, first, insert])
    before = world_before("decoder", tmp_path)
    before.broker.at_call(100, before.tell_to_stop)
    before.run("decoder")
    before.broker.forget_event()
    raw = before.broker.records(TOPICS.raw)
    left = [entry for entry in raw if entry.value[4] == EventType.GTID_LOG_EVENT][2]
    before.broker.delete_until(TOPICS.raw, partial(operator.is_, left))
    before.run("decoder")
    events = before.broker.records(TOPICS.events)
    (gap,) = (at for at, entry in enumerate(events) if entry.headers)
    assert gap == 10  # the head of the file, and the first transaction
    reference, *others = (before.copy() for _ in range(12))
    for count, world in enumerate([reference, *others]):
        world.broker.lose_tail(TOPICS.events, min(count, len(events) - 1 - gap))
        world.drain()
        for topic, service in ((TOPICS.events, None), (TOPICS.deadletter, "decoder")):
            assert world.written(topic, service) == reference.written(topic, service), (topic, count)
    assert len(reference.written(TOPICS.deadletter, "decoder")) == (first is undecodable)


@pytest.mark.parametrize("lost", [True, False])
def test_rows_are_written_again_by_what_statements_made_that_are_lost(lost: bool, tmp_path: Path) -> None:
    """The events begin after them: what they made of the table is in the schemas topic, if that is whole."""
    reference = World(tmp_path)
    created = "CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(20) CHARACTER SET utf8mb4)"
    statements: tuple[Action, ...] = (
        lambda log, _: log.query(created),
        lambda log, _: log.query("ALTER TABLE t RENAME COLUMN note TO text"),
    )
    write_log(tmp_path, 1, [*statements, insert])
    write_log(tmp_path, 2, [insert, insert])
    reference.drain()
    world = reference.copy()
    broker, rows = world.broker, f"{SOURCE}.shop.t"
    # What was read of the table before the second statement.
    columns = (
        ColumnDefinition(0, "id", "int", nullable=False, key_position=0),
        ColumnDefinition(1, "note", "varchar(20)", charset="utf8mb4"),
    )
    read = CatalogEntry(0, "bin.000001", 200, TableDefinition("shop", "t", columns), 1)
    broker.topics[TOPICS.catalog].append(
        key=read.key, value=read.to_bytes(), transaction=min(broker.committed)
    )
    broker.delete_until(TOPICS.events, lambda entry: b":bin.000002:" in entry.key)
    if lost:
        broker.delete_until(TOPICS.schemas, lambda entry: entry is broker.records(TOPICS.schemas)[-1])
    broker.lose_tail(rows, 3)
    broker.lose_tail(TOPICS.state, len(broker.records(TOPICS.state)))
    if lost:
        with pytest.raises(AssertionError, match="lacks rows, and the definition of its table is not known"):
            world.rebuild("rowmapper")
        assert len(world.written(rows)) == 6
        return
    world.rebuild("rowmapper")
    assert [row["after"] for _, row, *_ in world.written(rows)[6:]] == [
        {"id": 201, "text": f"{number}"} for number in range(3)
    ]
    assert world.written(rows) == reference.written(rows)


@pytest.mark.parametrize("name", ["reader", "decoder", "rowmapper", "run"])
@pytest.mark.parametrize("asleep_s", [60.0, 0.0])
def test_a_transaction_that_ends_by_the_clock(
    asleep_s: float, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that slept is not taken for another process.

    Where a broker's clock has jumped nobody has taken over: the service continues, unless it is to stop.
    """
    write_log(tmp_path, 1, [insert, update])
    before = world_before(name, tmp_path)
    reference = before.copy()
    reference.drain()
    clock = [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda _: time.monotonic() + clock[0])
    found = set()
    for call in range(1, 120, 3):
        world = before.copy()

        def wake(broker: Broker = world.broker) -> None:
            broker.expire(transactional_id(name, SOURCE))
            clock[0] += asleep_s

        world.broker.at_call(call, wake)
        try:
            with suppress(StopRequestedError):
                world.run(name)
        except UserError as error:
            found.add((error.exit_code, re.sub(r"[0-9]+ s,.*", "", error.message)))
        world.broker.forget_event()
        world.drain()
        for topic, service in IN_ORDER:
            assert world.written(topic, service) == reference.written(topic, service), (topic, call)
    if asleep_s:
        assert found == {(ExitCode.KAFKA, "a transaction of Kafka was open for ")}
        return
    assert {code for code, _ in found} <= {ExitCode.FENCED}
    for _, message in found:
        assert message.endswith(
            "took over and has not said who it is, or the clock of a broker has jumped, which ends "
            "transactions. This one exits: run only one of them"
        )


@pytest.mark.parametrize("name", ["reader", "decoder", "rowmapper", "run"])
def test_a_stop_while_there_is_no_room(name: str, tmp_path: Path) -> None:
    """Nothing is written twice where a process is told to stop in the middle of an output."""
    write_log(tmp_path, 1, [insert, update, undecodable, payload])
    before = world_before(name, tmp_path)
    reference = before.copy()
    reference.drain()
    for call in range(1, 90, 2):
        world = before.copy()
        world.broker.at_call(call, world.tell_to_stop)
        with suppress(StopRequestedError):
            world.run(name)
        world.broker.forget_event()
        world.drain()
        for topic, service in IN_ORDER:
            assert world.written(topic, service) == reference.written(topic, service), (topic, call)


def test_another_source_makes_the_same_of_a_raw_topic(tmp_path: Path) -> None:
    """Decoder and row mapper of another source write beside the topics of the first, and leave these."""
    write_log(tmp_path, 1, [insert, update, ddl, undecodable, prepare])
    write_log(tmp_path, 2, [decide, payload, unreadable, insert])
    before = World(tmp_path)
    before.drain()
    beside = Topics("beside", SOURCE)

    def nameless(found: list[Any]) -> str:
        return repr(found).replace("'beside", f"'{SOURCE}")

    for call in range(1, 90, 8):
        world = before.copy()
        ends = {name: topic.end for name, topic in world.broker.topics.items()}
        other = World(tmp_path, beside, world)
        for name in SERVICES[1:]:
            world.broker.at_call(call, crash)
            with suppress(Crash):
                other.run(name)
            world.broker.forget_event()
        other.drain()
        for lost in (beside.state, beside.events, beside.transactions):
            world.broker.lose_tail(lost, 2)
            other.drain()
        for topic, service in IN_ORDER:
            if topic != TOPICS.raw:
                name = topic.replace(SOURCE, beside.source, 1)
                found, expected = other.written(name, service), world.written(topic, service)
                assert nameless(found) == nameless(expected), (topic, service, call)
        assert {name: world.broker.topics[name].end for name in ends} == ends


def test_a_reprocess_that_is_killed_anywhere(tmp_path: Path) -> None:
    """Until it has been run again to its end, neither service writes what would be deleted or missed."""
    write_log(tmp_path, 1, [insert, update, ddl, undecodable])
    reference = World(tmp_path)
    reference.drain()
    refusals = []
    for call in itertools.count(1):
        world = reference.copy()
        world.broker.at_call(call, crash)
        with suppress(Crash):
            world.reprocess()
            break
        for name in SERVICES[1:]:
            try:
                world.run(name)
            except UserError as error:
                refusals.append((error.exit_code, error.message))
        for topic, service in IN_ORDER:
            found, expected = world.written(topic, service), reference.written(topic, service)
            assert found in ([], expected), (topic, call)
        world.reprocess()
        world.drain()
        for topic, service in IN_ORDER:
            assert world.written(topic, service) == reference.written(topic, service), (topic, call)
    assert set(refusals) == {
        (ExitCode.DATA, "'millrace reprocess' was begun for s and not finished: run it again")
    }


def test_what_another_source_captures_is_not_created(tmp_path: Path) -> None:
    """Who reads the topics of another source says so, of one that has captured something."""
    write_log(tmp_path, 1, [insert])
    world = World(tmp_path)
    world.drain()
    World(tmp_path, Topics("beside", SOURCE), world).drain()
    known, epochs = set(world.broker.topics), world.broker.epochs.copy()
    for topics, advice in (
        (Topics("beside"), "set MILLRACE_INPUT_SOURCE=s, or give"),
        (Topics("beside", "t"), "set MILLRACE_INPUT_SOURCE=s, or give"),
        (Topics("new", "t"), "MILLRACE_INPUT_SOURCE names a source whose reader has run"),
    ):
        for name in SERVICES[1:]:
            with pytest.raises(UserError, match=advice):
                World(tmp_path, topics, world).run(name)
    assert epochs.items() <= world.broker.epochs.items()  # nobody was fenced
    assert known | {"new.state"} == set(world.broker.topics)
    for settings_class in (ReaderSettings, RunSettings, SnapshotSettings):
        with pytest.raises(SettingsError, match="decoder and row mapper alone"):
            load_settings(
                settings_class, source="new", input_source="s", kafka={"bootstrap_servers": "n:1"}, files="f"
            )


Faults.TestCase.settings = settings(
    max_examples=int(os.environ.get("MILLRACE_FAULT_RUNS", "20")),
    stateful_step_count=int(os.environ.get("MILLRACE_FAULT_STEPS", "12")),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TestFaults = Faults.TestCase

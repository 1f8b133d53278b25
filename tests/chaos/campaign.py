"""Faults one after the other, or two at a time; after each the pipeline must come back by itself."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from millrace.avro.records import deserialize
from millrace.kafka.client import KAFKA_LOG, connect, consumer_config
from millrace.kafka.topics import ensure_topics
from millrace.runtime.settings import TopicsSettings
from tests.chaos.check import Verdict, check
from tests.chaos.faults import Fault, Placed, wait_until
from tests.chaos.stack import DATABASE, Stack
from tests.chaos.writer import TABLES, Probe, Writer
from tests.worker import Worker

RECOVERY_S = 600.0
"""A pipeline that has not come back after this time does not come back."""


class StuckError(Exception):
    """The pipeline did not come back by itself."""


class Follower(Worker):
    """Reads the probe's row topic, and knows when each row arrived."""

    def __init__(self, stack: Stack) -> None:
        super().__init__("follower")
        self.arrived: dict[int, float] = {}
        self.newest = 0
        self._stack = stack

    def _run(self) -> None:
        topic = self._stack.topics.table(DATABASE, "probe")
        config = consumer_config(self._stack.settings, "chaos") | {"auto.offset.reset": "earliest"}
        with closing(Consumer(config, logger=KAFKA_LOG)) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while not self._stop.is_set():
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    self._take(message.value())

    def _take(self, value: bytes) -> None:
        while not self._stop.is_set():
            try:
                row = deserialize(self._stack.schemas, value)["after"]
            except Exception:  # noqa: BLE001 - whatever a client says of a registry that is down
                self._stop.wait(0.5)
            else:
                if row is not None:
                    self.arrived.setdefault(row["id"], time.monotonic())
                    self.newest = max(self.newest, row["id"])
                return


@dataclass
class Report:
    """What happened and how long it took to recover."""

    started: float = field(default_factory=time.monotonic)
    recoveries: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    missed: int = 0
    problems: list[str] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    latency_s: float = 0.0
    duration_s: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def faults(self) -> int:
        """How many faults there were."""
        return sum(map(len, self.recoveries.values()))

    @property
    def good(self) -> bool:
        """Whether all is as it must be."""
        return not self.problems and not self.verdict.problems


class Campaign:
    """Runs a stack with its writers through faults, to the final check."""

    def __init__(
        self,
        stack: Stack,
        seed: int,
        *,
        say: Callable[[str], None],
        pause_s: float = 0.15,
        large_rows: int = 3000,
    ) -> None:
        self.report = Report()
        self._stack = stack
        self._say = say
        self._writers = [
            Writer(
                stack.server,
                DATABASE,
                seed=seed * 2 + n,
                pause_s=pause_s,
                large_rows=large_rows,
                lag_s=self.lag_s,
            )
            for n in (0, 1)
        ]
        self._probe = Probe(stack.server, DATABASE)
        self._follower: Follower | None = None

    @contextmanager
    def running(self, form: str = "services") -> Iterator[None]:
        """Programs and writers at work; at the end writers and programs have ended, all has been read."""
        stack = self._stack
        self._make_tables()
        stack.start_services(form)
        follower = self._follower = Follower(stack)
        follower.start()
        writers = [*self._writers, self._probe]
        try:
            try:
                for writer in writers:
                    writer.start()
                self._recovered(RECOVERY_S)
                yield
            finally:
                for writer in writers:
                    writer.stop()
            stack.server.execute("FLUSH BINARY LOGS", f"INSERT INTO {DATABASE}.done VALUES (1)")
            self._wait_for_end()
        finally:
            follower.stop()
            codes = stack.stop_services()
        report = self.report
        report.duration_s = time.monotonic() - report.started
        report.latency_s = self._latency()
        for name, service in stack.services.items():
            report.problems += service.unexpected
            if codes[name] != 0:
                report.problems.append(f"{name} ended with {codes[name]} when told to: {service.log_tail(4)}")
            for code, count in service.exits.items():
                report.ends[f"{name} {code}"] = count
        for writer in self._writers:
            for what, count in writer.done.items():
                report.writes[what] = report.writes.get(what, 0) + count
        report.writes["probe"] = len(self._probe.written)

    def suffer(self, faults: Sequence[Fault]) -> None:
        """Let faults happen together, each for its time; wait until the pipeline works again."""
        began = time.monotonic()
        lasting = sorted(faults, key=lambda fault: (fault.ends_by_itself, fault.lasts_s))
        for fault in faults:
            fault.begin()
        for fault in lasting:
            time.sleep(max(0.0, began + fault.lasts_s - time.monotonic()))
            fault.end()
        took = self._recovered(RECOVERY_S)
        for fault in faults:
            if isinstance(fault, Placed) and not fault.reached:
                self.report.missed += 1
            else:
                self.report.recoveries[fault.kind].append(took)
        kinds = " + ".join(
            fault.kind + (" (not reached)" if isinstance(fault, Placed) and not fault.reached else "")
            for fault in faults
        )
        at = time.monotonic() - self.report.started
        self._say(f"{at:7.1f} s  #{self.report.faults:<4} {kinds}: well again after {took:.1f} s")

    def check(self) -> Verdict:
        """Look at all that came of it."""
        self.report.verdict = check(self._stack, self._say)
        return self.report.verdict

    def lag_s(self) -> float:
        """Return for how long the oldest row that has not arrived has been under way."""
        written, follower = self._probe.written, self._follower
        arrived = 0 if follower is None else follower.newest
        return time.monotonic() - written[arrived] if len(written) > arrived else 0.0

    def _make_tables(self) -> None:
        stack = self._stack
        stack.server.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        with stack.server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
            for statement in TABLES:
                cursor.execute(statement)
        # These two are followed from the start.
        watched = [stack.topics.table(DATABASE, table) for table in ("probe", "done")]
        ensure_topics(connect(stack.settings), TopicsSettings(), dict.fromkeys(watched, "table"))

    def _recovered(self, timeout_s: float) -> float:
        """Wait until a row that is written from now on arrives; give how long that takes."""
        follower, since = self._follower, time.monotonic()
        assert follower is not None
        first = len(self._probe.written) + 1
        if not wait_until(lambda: follower.newest > first, timeout_s):
            tails = "\n".join(
                f"{name}:\n{self._stack.services[name].log_tail(12)}" for name in self._stack.at_work
            )
            raise StuckError(f"no row arrived within {timeout_s:.0f} s\n{tails}")
        return time.monotonic() - since

    def _wait_for_end(self) -> None:
        """Wait until the row that was written last is in its topic."""
        topic = self._stack.topics.table(DATABASE, "done")
        config = consumer_config(self._stack.settings, "chaos") | {"auto.offset.reset": "earliest"}
        with closing(Consumer(config, logger=KAFKA_LOG)) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            deadline = time.monotonic() + RECOVERY_S
            while time.monotonic() < deadline:
                message = consumer.poll(0.5)
                if message is not None and message.error() is None:
                    return
        raise StuckError("the last row has not arrived")

    def _latency(self) -> float:
        """Return how long half of all rows took at most, from COMMIT to their topic."""
        assert self._follower is not None
        times = [
            arrived - self._probe.written[number - 1]
            for number, arrived in self._follower.arrived.items()
            if number <= len(self._probe.written)
        ]
        return statistics.median(times) if times else 0.0

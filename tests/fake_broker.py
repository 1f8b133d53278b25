"""A Kafka in memory, behind confluent_kafka's interface: transactions, fencing, time-outs, lost tails.

:meth:`Broker.installed` puts its clients in the place of the real ones. Any call of a client may be the one
before which something happens: :meth:`Broker.at_call`.
"""

from __future__ import annotations

import copy
import itertools
from bisect import bisect_left
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

BIG = {"message.timestamp.type": "CreateTime", "max.message.bytes": str(8 << 20)}
ANY_TIME = str(2**63 - 1)


class Crash(BaseException):
    """The process ends here."""


def crash() -> None:
    """End the process."""
    raise Crash


@dataclass
class Entry:
    """A place of a partition: a record, or the end of a transaction, which has no ``key``."""

    offset: int
    key: Any = None
    value: Any = None
    timestamp_ms: int = 0
    headers: Any = None
    transaction: int = 0
    control: bool = False
    leader_epoch: int = 0


@dataclass
class Topic:
    id: str
    config: dict[str, str]
    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    leader_epoch: int = 0

    def append(self, **values: Any) -> None:
        self.entries.append(Entry(self.end, leader_epoch=self.leader_epoch, **values))
        self.end += 1


def kafka_error(code: int, text: str = "", *, fatal: bool = False, retriable: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, text, fatal, retriable, False))


class Broker:
    """All that outlives a process."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.epochs: dict[str, int] = {}
        self.open: dict[str, tuple[int, set[str]]] = {}
        """By transactional.id: number of the open transaction, and the topics that it has written."""
        self.expired: list[str] = []
        """Those of transactions that took too long."""
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self._event: tuple[int, Callable[[], None]] | None = None
        self._producers: list[FakeProducer] = []
        self.restarts = 0
        """How often all clients have lost it and found it again; each says so when it is called next."""
        self.on_idle: Callable[[], None] = lambda: None
        self._numbers = itertools.count(1)

    def copy(self) -> Broker:
        """Return one with the same topics and transactions, and without clients."""
        return copy.deepcopy(self, {id(self._producers): []})

    # -- what happens to it ---------------------------------------------------------------------------

    def at_call(self, number: int, action: Callable[[], None]) -> None:
        """Let ``action`` happen before a call of a client: the next is number 1."""
        self._event = number, action

    def forget_event(self) -> None:
        """Let nothing happen."""
        self._event = None

    def call(self) -> None:
        """Count a call of a client."""
        if self._event is not None:
            left, action = self._event
            self._event = (left - 1, action) if left > 1 else None
            if left == 1:
                try:
                    action()
                except Crash:
                    for producer in self._producers:
                        producer.dead = True
                    raise

    def create(self, name: str, config: dict[str, str] | None = None) -> None:
        self.topics[name] = Topic(f"id-{next(self._numbers)}", BIG | (config or {}))

    def end(self, transactional_id: str, *, commit: bool) -> None:
        """End an open transaction."""
        number, written = self.open.pop(transactional_id)
        (self.committed if commit else self.aborted).add(number)
        for name in sorted(written):
            if name in self.topics:
                self.topics[name].append(transaction=number, control=True)

    def expire(self, transactional_id: str) -> None:
        """End a transaction that was open for too long, and fence whoever had it."""
        if transactional_id in self.open:
            self.end(transactional_id, commit=False)
            self.epochs[transactional_id] += 1
            self.expired.append(transactional_id)

    @property
    def undecided(self) -> set[int]:
        """Numbers of the open transactions."""
        return {number for number, _ in self.open.values()}

    def time_passes(self, topics: Iterable[str]) -> bool:
        """End transactions for which readers of ``topics`` wait; tell whether there were any."""
        late = [name for name, (_, written) in self.open.items() if written & set(topics)]
        for transactional_id in late:
            self.expire(transactional_id)
        return bool(late)

    def restart(self) -> None:
        """Let all clients lose their connections."""
        self.restarts += 1

    def lose_tail(self, name: str, count: int) -> None:
        """Elect a leader that lacks the last ``count`` committed records of a topic."""
        topic = self.topics[name]
        kept = len(self.records(name)) - count
        topic.leader_epoch += 1
        while topic.entries and len(self.records(name)) > max(kept, 0):
            topic.entries.pop()
        topic.end = topic.entries[-1].offset + 1 if topic.entries else topic.start

    def delete_until(self, name: str, is_first: Callable[[Entry], bool]) -> None:
        """Delete the records of a topic before the first that is kept, as retention does."""
        topic = self.topics[name]
        topic.start = next(entry.offset for entry in self.records(name) if is_first(entry))
        topic.entries = [entry for entry in topic.entries if entry.offset >= topic.start]

    def records(self, name: str) -> list[Entry]:
        """The committed records of a topic."""
        if name not in self.topics:
            return []
        return [
            entry
            for entry in self.topics[name].entries
            if not entry.control and entry.transaction in self.committed
        ]

    # -- clients --------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        with (
            patch("millrace.kafka.client.Producer", lambda config, **_: self._producer(config)),
            patch("millrace.kafka.client.Consumer", lambda config, **_: FakeConsumer(self, config)),
            patch("millrace.kafka.client.AdminClient", lambda *_, **__: FakeAdmin(self)),
            patch("millrace.kafka.producer.ThreadPoolExecutor", SomeTimeExecutor),
            patch("millrace.kafka.producer._ENDING_S", 0.0),
        ):
            yield

    def _producer(self, config: dict[str, Any]) -> FakeProducer:
        self._producers.append(FakeProducer(self, config))
        return self._producers[-1]


class SomeTimeExecutor:
    """Runs every other function at once, and those between when somebody waits for their end."""

    def __init__(self, *_: Any) -> None:
        self._late = False

    def submit(self, function: Callable[..., None], *arguments: Any) -> SomeTimeFuture:
        future = SomeTimeFuture(function, arguments)
        self._late = not self._late
        if not self._late:
            future.exception()
        return future

    def shutdown(self) -> None:
        pass


class SomeTimeFuture:
    def __init__(self, function: Callable[..., None], arguments: Any) -> None:
        self._function, self._arguments = function, arguments
        self._future: Future[None] | None = None

    def done(self) -> bool:
        return self._future is not None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._future is None:
            self._future = Future()
            try:
                self._future.set_result(self._function(*self._arguments))
            except BaseException as error:  # noqa: BLE001 - as a thread does
                self._future.set_exception(error)
        return self._future.exception(timeout)

    def result(self) -> None:
        self.exception()
        assert self._future is not None
        self._future.result()


class _Links:
    """The connections of a client."""

    def __init__(self, broker: Broker, config: dict[str, Any]) -> None:
        self._broker = broker
        self._error_cb = config.get("error_cb")
        self._restarts = broker.restarts

    def serve(self) -> None:
        """Say that they were lost, if they were since this was called last."""
        restarts, self._restarts = self._restarts, self._broker.restarts
        if restarts != self._restarts and self._error_cb is not None:
            self._error_cb(KafkaError(KafkaError._TRANSPORT, "connection refused"))


class FakeProducer:
    room = 2
    """Records that wait before there is no room for more."""

    def __init__(self, broker: Broker, config: dict[str, Any]) -> None:
        self._broker = broker
        self._id = config["transactional.id"]
        self._links = _Links(broker, config)
        self._epoch = -1
        self._sent: list[tuple[str, dict[str, Any]]] = []
        self._begun = False
        self.dead = False
        """Whether its process has crashed: what the process does on its way out no longer reaches Kafka."""

    def init_transactions(self, timeout: float) -> None:
        assert timeout < 0.5, "by itself the client asks again after 500 ms, when called again at once"
        broker = self._broker
        broker.call()
        if self._id in broker.open:
            broker.end(self._id, commit=False)
        self._epoch = broker.epochs[self._id] = broker.epochs.get(self._id, -1) + 1

    def _check(self) -> None:
        if self._broker.epochs[self._id] != self._epoch:
            raise kafka_error(KafkaError._FENCED, "fenced", fatal=True)

    def begin_transaction(self) -> None:
        assert not self._begun
        self._check()
        self._begun = True

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = 0,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        del partition, callback, on_delivery
        self._broker.call()
        assert self._begun
        if len(self._sent) >= self.room:
            self._flush()  # at once after this
            raise BufferError
        self._sent.append(
            (topic, {"key": key, "value": value, "timestamp_ms": timestamp, "headers": headers})
        )

    def _flush(self) -> None:
        """Send what waits; a crash may come between any two records."""
        broker = self._broker
        self._check()
        if self.dead:
            self._sent.clear()  # else it would wait for room on its way out, until it times out
        while self._sent:
            broker.call()
            name, record = self._sent.pop(0)
            if name not in broker.topics:
                raise kafka_error(KafkaError._UNKNOWN_PARTITION, f"unknown topic {name}")
            if self._id not in broker.open:
                broker.open[self._id] = next(broker._numbers), set()
            number, written = broker.open[self._id]
            written.add(name)
            broker.topics[name].append(**record, transaction=number)

    def poll(self, _timeout: float = 0) -> int:
        self._links.serve()
        return 0

    def flush(self, _timeout: float = 0) -> int:
        if self._sent:
            self._flush()
        return 0

    def purge(self) -> None:
        self._sent.clear()

    def commit_transaction(self, _timeout: float) -> None:
        broker = self._broker
        self._flush()
        broker.call()
        self._check()
        if self._id in broker.open and not self.dead:
            broker.end(self._id, commit=True)
        self._begun = False
        broker.call()

    def abort_transaction(self, _timeout: float) -> None:
        self._sent.clear()
        self._begun = False
        self._check()
        if self._id in self._broker.open and not self.dead:
            self._broker.end(self._id, commit=False)


class FakeMessage:
    def __init__(
        self, topic: str, entry: Entry | None, error: KafkaError | None = None, offset: int = 0
    ) -> None:
        self._topic, self._entry, self._error, self._offset = topic, entry, error, offset

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._entry.offset if self._entry else self._offset

    def key(self) -> Any:
        return self._entry.key if self._entry else None

    def value(self) -> Any:
        return self._entry.value if self._entry else b""

    def headers(self) -> Any:
        return (self._entry.headers or None) if self._entry else None

    def timestamp(self) -> tuple[int, int]:
        return 1, self._entry.timestamp_ms if self._entry else 0

    def leader_epoch(self) -> int:
        return self._entry.leader_epoch if self._entry else -1


class FakeConsumer:
    def __init__(self, broker: Broker, config: dict[str, Any]) -> None:
        self._broker = broker
        self._links = _Links(broker, config)
        self._eof = bool(config.get("enable.partition.eof"))
        self._committed_only = config.get("isolation.level") == "read_committed"
        self._at: dict[str, int] = {}
        self._said_end: dict[str, int] = {}

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._at, self._said_end = {}, {}
        for partition in partitions:
            topic = self._broker.topics[partition.topic]
            self._at[partition.topic] = max(partition.offset, topic.start)

    def unassign(self) -> None:
        self._at = {}

    def seek(self, partition: TopicPartition) -> None:
        topic, epoch = self._broker.topics[partition.topic], partition.leader_epoch
        later = (entry.offset for entry in topic.entries if entry.leader_epoch > epoch)
        if epoch > topic.leader_epoch or next(later, topic.end) < partition.offset:
            self._at[partition.topic] = topic.end + 1  # as for an offset that the topic does not hold

    def consume(self, count: int, timeout: float = 0) -> list[FakeMessage]:
        self._broker.call()
        self._links.serve()
        found: list[FakeMessage] = []
        for name in self._at:
            if len(found) < count:
                found += self._consume(name, count - len(found))
        if not found and timeout and not self._broker.time_passes(self._at if self._committed_only else ()):
            self._broker.on_idle()
        return found

    def _consume(self, name: str, count: int) -> list[FakeMessage]:
        broker, topic, start = self._broker, self._broker.topics[name], self._at[name]
        if start > topic.end:
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "offset out of range")
            return [FakeMessage(name, None, error, start)]
        found: list[FakeMessage] = []
        undecided = broker.undecided
        first = bisect_left(topic.entries, start, key=lambda entry: entry.offset)
        for entry in itertools.islice(topic.entries, first, None):
            if len(found) >= count:
                break
            if self._committed_only and entry.transaction in undecided:
                break
            self._at[name] = entry.offset + 1
            if not entry.control and (not self._committed_only or entry.transaction in broker.committed):
                found.append(FakeMessage(name, entry))
        at = self._at[name]
        if not found and self._eof and at >= topic.end and self._said_end.get(name) != at:
            self._said_end[name] = at
            found.append(FakeMessage(name, None, KafkaError(KafkaError._PARTITION_EOF), at))
        return found

    def poll(self, _timeout: float) -> FakeMessage | None:
        found = self.consume(1)
        return found[0] if found else None

    def list_topics(self, name: str, timeout: float = 0) -> Any:
        del timeout
        partitions = {0: None} if name in self._broker.topics else {}
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=partitions)})

    def get_watermark_offsets(self, _partition: Any, cached: bool = False) -> tuple[int, int]:
        del cached
        return 0, self._broker.topics[next(iter(self._at))].end

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition(partition.topic, 0, self._at[partition.topic]) for partition in partitions]

    def commit(self, **_: Any) -> None:
        pass

    def close(self) -> None:
        pass


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, BaseException):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


class FakeAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def poll(self, _timeout: float) -> None:
        pass

    def list_topics(self, timeout: float = 0) -> Any:
        del timeout
        return SimpleNamespace(
            topics={name: SimpleNamespace(partitions={0: None}) for name in self._broker.topics}
        )

    def list_offsets(
        self, wanted: Any, isolation_level: Any = IsolationLevel.READ_UNCOMMITTED, **_: Any
    ) -> dict[Any, Future[Any]]:
        self._broker.call()
        found = {}
        for partition, spec in wanted.items():
            topic = self._broker.topics[partition.topic]
            offset = topic.start if type(spec).__name__ == "EarliestSpec" else topic.end
            if isolation_level == IsolationLevel.READ_COMMITTED:
                undecided = self._broker.undecided
                offset = next((one.offset for one in topic.entries if one.transaction in undecided), offset)
            found[partition] = done(SimpleNamespace(offset=offset))
        return found

    def describe_topics(self, names: Any, **_: Any) -> dict[str, Future[Any]]:
        self._broker.call()
        return {name: done(self._described(name)) for name in names.topic_names}

    def _described(self, name: str) -> Any:
        topic = self._broker.topics.get(name)
        if topic is None:
            return kafka_error(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(
            topic_id=topic.id, partitions=[SimpleNamespace(leader=1)], authorized_operations=None
        )

    def describe_cluster(self, **_: Any) -> Future[Any]:
        return done(SimpleNamespace(nodes=[SimpleNamespace(id=1)]))

    def describe_configs(self, resources: Any) -> dict[Any, Future[Any]]:
        found = {}
        for resource in resources:
            topic = self._broker.topics.get(resource.name)
            config = {"default.replication.factor": "1"} if topic is None else topic.config
            found[resource] = done({name: SimpleNamespace(value=value) for name, value in config.items()})
        return found

    def delete_records(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
        self._broker.call()
        for partition in partitions:
            topic = self._broker.topics[partition.topic]
            topic.start = max(topic.start, partition.offset)
            topic.entries = [entry for entry in topic.entries if entry.offset >= topic.start]
        return {partition: done(None) for partition in partitions}

    def create_topics(self, new: Any, **_: Any) -> dict[str, Future[Any]]:
        self._broker.call()
        for topic in new:
            if topic.topic not in self._broker.topics:
                self._broker.create(topic.topic, dict(topic.config))
        return {topic.topic: done(None) for topic in new}

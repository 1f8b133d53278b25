"""Kafka in, Kafka out, exactly once: a transactional producer with state, and the loop around it.

Order at the start: :meth:`TransactionalProducer.open` calls init_transactions, which ends whatever another
process with this transactional.id had begun and fences it, and only then reads the state. The input is
assigned, never subscribed to, at the offset that the state names. The output, and the state after it, are
written in one transaction. A transaction may end anywhere in the input; it is committed as soon as the input
pauses, else at the limits of :class:`CommitPolicy`.

Offsets of a consumer group are committed now and then, behind the transaction, for lag tools only: nothing is
ever read from them.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millrace.contract import Topics, transactional_id
from millrace.kafka.client import KAFKA_LOG, consumer_config, producer_config
from millrace.kafka.errors import BrokerError, FencedError, InputLostError, is_fenced, is_passing, translated
from millrace.kafka.state import (
    HEADER_OWNER,
    newest_offset,
    oldest_offset,
    process_name,
    read_state,
    state_key,
)
from millrace.runtime.health import Health
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import KafkaSettings

__all__ = ["CommitPolicy", "InputReader", "Record", "Task", "TransactionalProducer", "run_pipe"]

_LOG = get_logger(__name__)
_TRANSACTION_S: Final = 30.0
_OPEN_S: Final = 60.0
_PAUSE_S: Final = 0.005
"""How long nothing must come to be a pause: a moment in which no thread got to fetch is none."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """When a transaction is large or old enough, while the input does not pause.

    Where it pauses, a transaction ends at once. Input that never pauses comes faster than it is carried, and
    then long transactions carry more: each costs the brokers the same.
    """

    records: int = 25_000
    bytes: int = 8 * 1024 * 1024
    age_s: float = 0.5


class TransactionalProducer:
    """The one producer of a service for a source: whole transactions, each with the state after it.

    Use it as a context manager: leaving it aborts what is not committed. A fenced one then waits, until
    ``stop`` is set or the process that took over has stood still for ``fenced_wait_s``, since whoever
    supervises this process will start it again.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        source: str,
        service: str,
        *,
        shard: int | None = None,
        policy: CommitPolicy | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._service = service
        self._shard = shard
        policy = policy or CommitPolicy()
        self._most_records, self._most_bytes, self._most_s = policy.records, policy.bytes, policy.age_s
        self._stop = stop or threading.Event()
        self._state_topic = Topics(source).state
        self._state_key = state_key(service, shard)
        self._owner = process_name()
        with translated("setting up the producer"):
            config = producer_config(settings, transactional_id(service, source, shard))
            self._producer = Producer(config, logger=KAFKA_LOG)
        self._in_transaction = False
        self._records = 0
        self._bytes = 0
        self._began = 0.0
        self.commits = 0
        """Transactions committed by this process."""
        self.commit_time = 0.0
        """When the last was, seconds since 1970; 0 before the first."""

    def open(self) -> bytes | None:
        """Fence other processes, claim the state, return it; None before the first transaction ever.

        The topics that are written, ``{source}.state`` among them, must exist.
        """
        self._until_done("taking over", _OPEN_S, lambda: self._producer.init_transactions(10.0))
        stored = read_state(self._settings, self._source, self._service, self._shard)
        value = None if stored is None else stored.value
        self.begin()
        self.commit(value)
        return value

    # -- the transaction ----------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether a transaction is open."""
        return self._in_transaction

    @property
    def due(self) -> bool:
        """Whether the open transaction has reached a limit of the policy."""
        return self._in_transaction and (
            self._records >= self._most_records
            or self._bytes >= self._most_bytes
            or time.monotonic() - self._began >= self._most_s
        )

    def begin(self) -> None:
        """Open a transaction unless one is; :meth:`produce` does so by itself."""
        if not self._in_transaction:
            with self._watched("beginning a transaction"):
                self._producer.begin_transaction()
            self._in_transaction = True
            self._records = self._bytes = 0
            self._began = time.monotonic()

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes]] | None = None,
        *,
        partition: int = 0,
    ) -> None:
        """Add a record to the transaction. What Kafka does not take is reported by :meth:`commit`.

        ``timestamp_ms`` counts from 1970; 0, which librdkafka would take for "now", is written as 1.
        """
        if not self._in_transaction:
            self.begin()
        try:
            if headers is None:
                # By position, as cimpl.pyi has them: keywords would cost as much as the rest of the call.
                self._producer.produce(topic, value, key, partition, None, None, timestamp_ms or 1)
            else:
                self._produce_slowly(topic, key, value, timestamp_ms, headers=headers, partition=partition)
        except BufferError:
            self._produce_slowly(topic, key, value, timestamp_ms, headers=headers or (), partition=partition)
        except KafkaException as exception:
            raise self._in_words("producing", exception) from exception
        self._records += 1
        if value is not None:
            self._bytes += len(value)

    def produce_batch(self, topic: str, records: Sequence[tuple[bytes | None, bytes, int]]) -> None:
        """Add records, each as key, value and timestamp in milliseconds, to partition 0 of ``topic``."""
        self.begin()
        produce = self._producer.produce
        size = 0
        for key, value, timestamp_ms in records:
            try:
                produce(topic, value, key, 0, None, None, timestamp_ms or 1)
            except BufferError:
                self._produce_slowly(topic, key, value, timestamp_ms, headers=())
            except KafkaException as exception:
                raise self._in_words("producing", exception) from exception
            size += len(value)
        self._records += len(records)
        self._bytes += size

    def commit(self, state: bytes | None) -> None:
        """Write the state and commit; everything is in Kafka, all of it or nothing, when this returns."""
        self.begin()
        now = int(time.time() * 1000)
        headers = [(HEADER_OWNER, self._owner.encode())]
        with self._watched("writing the state"):
            self._produce_slowly(self._state_topic, self._state_key, state, now, headers=headers)
        self._until_done("committing", _TRANSACTION_S, lambda: self._producer.commit_transaction(10.0))
        self._in_transaction = False
        self.commits += 1
        self.commit_time = time.time()

    def abort(self) -> None:
        """Undo the open transaction, if there is one. Raises nothing: the next start undoes it too."""
        if not self._in_transaction:
            return
        self._in_transaction = False
        try:
            self._producer.abort_transaction(5.0)
        except KafkaException as error:
            _LOG.warning("transaction left to expire", reason=error.args[0].str())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, FencedError):
            self.abort()
        self.close()
        if isinstance(error, FencedError):
            _LOG.error("fenced", reason=error.message)
            self._wait_for_rest()

    def close(self) -> None:
        """Let go of the connections, without waiting for records that nobody will commit."""
        with contextlib.suppress(KafkaException):  # what has gone wrong was said before
            self._producer.purge()
            self._producer.flush(1.0)

    # -- what may go wrong --------------------------------------------------------------------------

    def _produce_slowly(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        *,
        headers: Sequence[tuple[str, bytes]],
        partition: int = 0,
    ) -> None:
        """Produce with headers; where librdkafka's buffer is full, wait for the brokers."""
        deadline = time.monotonic() + _TRANSACTION_S
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, timestamp=timestamp_ms or 1, headers=list(headers) or None
                )
            except BufferError:
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"Kafka has taken no records of {topic} for {_TRANSACTION_S:g} s; check its brokers"
                    ) from None
                self._producer.poll(0.05)
            else:
                return

    def _until_done(self, doing: str, timeout_s: float, call: Callable[[], object]) -> None:
        """Repeat a call of the transaction's protocol while Kafka says that it may yet succeed."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                call()
            except KafkaException as exception:
                if not exception.args[0].retriable() or time.monotonic() > deadline:
                    raise self._in_words(doing, exception) from exception
                _LOG.info("waiting for Kafka", doing=doing, reason=exception.args[0].str())
            else:
                return

    def _watched(self, doing: str) -> "_Watched":
        return _Watched(self, doing)

    def _in_words(self, doing: str, exception: KafkaException) -> FencedError | BrokerError:
        error = exception.args[0]
        if error.code() in (KafkaError._FATAL, KafkaError._STATE):
            # A record that can no longer be taken says no more than that; the transaction knows why.
            try:
                self._producer.commit_transaction(1.0)
            except KafkaException as reason:
                exception, error = reason, reason.args[0]
        if is_fenced(error):
            return FencedError(self._who_took_over())
        try:
            with translated(f"{doing} for {self._source} as {self._service}"):
                raise exception
        except (FencedError, BrokerError) as translation:
            return translation

    def _who_took_over(self) -> str:
        what = f"another {self._service} of the source {self._source} took over"
        try:
            stored = read_state(self._settings, self._source, self._service, self._shard)
        except BrokerError:
            stored = None
        if stored is None or stored.owner == self._owner:
            return f"{what}; it has not said who it is. This one ends: let only one of them run"
        return f"{what}: {stored.owner}. This one ends: let only one of them run"

    def _wait_for_rest(self) -> None:
        """Wait until the state has not moved for a while, so that two processes do not fence each other."""
        wait = self._settings.fenced_wait_s
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < wait and not self._stop.wait(min(1.0, wait)):
            try:
                newest = read_state(self._settings, self._source, self._service, self._shard)
            except BrokerError as error:
                _LOG.warning("state cannot be read", reason=error.message)
                continue
            offset = -1 if newest is None else newest.offset
            if offset != seen:
                seen, since = offset, time.monotonic()


class _Watched:
    """Turns a KafkaException of its block into words."""

    def __init__(self, producer: TransactionalProducer, doing: str) -> None:
        self._producer = producer
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KafkaException):
            raise self._producer._in_words(self._doing, error) from error


class Record(Protocol):
    """A record as it is read: confluent_kafka's Message, without an error."""

    def key(self) -> bytes | None:
        """Give the key; None where there is none."""

    def value(self) -> bytes | None:
        """Give the value; None for a tombstone."""

    def offset(self) -> int:
        """Give the offset in its partition."""

    def timestamp(self) -> tuple[int, int]:
        """Give the kind of timestamp and milliseconds since 1970."""

    def headers(self) -> list[tuple[str, bytes]] | None:
        """Give the headers; None where there are none."""


class InputReader:
    """Reads partition 0 of a topic, committed records only, from the offset that it is told."""

    def __init__(self, settings: KafkaSettings, topic: str, group: str) -> None:
        self.topic = topic
        self._settings = settings
        self._consumer = Consumer(consumer_config(settings, group), logger=KAFKA_LOG)
        self._committed_at = 0.0
        self._to_commit: int | None = None

    def first_offset(self) -> int:
        """Give the offset of the first record that the topic still holds."""
        return oldest_offset(self._settings, self.topic)

    def end_offset(self) -> int:
        """Give the offset behind the last record, open transactions included."""
        return newest_offset(self._settings, self.topic)

    def seek(self, offset: int, *, advice: str = "raise its retention.ms") -> None:
        """Read on at ``offset``; raises :class:`InputLostError` where the topic does not hold it.

        ``advice`` says what to do where records were deleted.
        """
        first, end = self.first_offset(), self.end_offset()
        if offset < first:
            raise InputLostError(
                f"records {offset} to {first - 1} of {self.topic} were deleted before they were read; "
                f"{advice}"
            )
        if offset > end:
            raise InputLostError(
                f"{self.topic} ends at offset {end}, but was read to {offset}: it is another topic now. "
                "If it was created anew, delete the source's other topics too, its state included"
            )
        with translated(f"reading {self.topic}"):
            self._consumer.assign([TopicPartition(self.topic, 0, offset)])

    def read(self, count: int, wait_s: float) -> list[Record]:
        """Give up to ``count`` records: those that are there, else the first to come within ``wait_s``."""
        with translated(f"reading {self.topic}"):
            messages = self._consumer.consume(count, timeout=0)
            if not messages and wait_s > 0:
                messages = self._consumer.consume(1, timeout=wait_s)
        for message in messages:
            if message.error() is not None:
                return self._good(messages)
        return cast("list[Record]", messages)

    def _good(self, messages: Sequence[Message]) -> list[Record]:
        """Leave out what is no record; raise for what does not mend by itself."""
        good: list[Record] = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(cast("Record", message))
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise InputLostError(f"{self.topic} no longer holds what must be read next: {error.str()}")
            elif error.fatal() or not is_passing(error):
                raise BrokerError(f"{self.topic} cannot be read: {error.str()} ({error.name()})")
            else:
                _LOG.warning("waiting for Kafka", topic=self.topic, reason=error.str())
        return good

    def lag(self) -> int | None:
        """Give how many offsets lie behind the last fetched record, as known without asking a broker."""
        partition = TopicPartition(self.topic, 0)
        with translated(f"reading {self.topic}"):
            _, high = self._consumer.get_watermark_offsets(partition, cached=True)
            position = self._consumer.position([partition])[0].offset
        return max(0, high - position) if high >= 0 and position >= 0 else None

    def note_committed(self, offset: int, *, now: bool = False) -> None:
        """Tell lag tools that everything before ``offset`` is done; at most once a second unless ``now``."""
        self._to_commit = offset
        if now or time.monotonic() - self._committed_at > 1.0:
            self.tell_lag_tools()

    def tell_lag_tools(self) -> None:
        """Commit the group offset that :meth:`note_committed` was told last, if that was not done yet."""
        if self._to_commit is not None:
            partition = TopicPartition(self.topic, 0, self._to_commit)
            self._consumer.commit(offsets=[partition], asynchronous=True)
            self._committed_at = time.monotonic()
            self._to_commit = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()


class Task(Protocol):
    """What a service does between its input and its output."""

    def process(self, records: Sequence[Record]) -> None:
        """Take records and produce what follows from them. May commit by itself between two of them."""

    def state(self) -> bytes:
        """Give the state after everything that was produced so far."""

    @property
    def next_offset(self) -> int:
        """Offset of the record that is to be read next, for lag tools."""


def run_pipe(
    reader: InputReader,
    producer: TransactionalProducer,
    task: Task,
    *,
    stop: threading.Event,
    health: Health,
    batch: int = 500,
    wait_s: float = 1.0,
    after_commit: Callable[[], None] = lambda: None,
) -> None:
    """Move records from ``reader`` through ``task`` until ``stop`` is set; end with a commit."""
    stored = task.next_offset

    def commit(*, now: bool = False) -> None:
        nonlocal stored
        producer.commit(task.state())
        stored = task.next_offset
        reader.note_committed(stored, now=now)
        after_commit()

    health.set_ready()
    while not stop.is_set():
        messages = reader.read(batch, _PAUSE_S if producer.pending else wait_s)
        health.beat()
        if messages:
            task.process(messages)
        # What was read and gave no output is done as well, which others see by the state alone.
        if (producer.pending and (not messages or producer.due)) or (
            not messages and task.next_offset != stored
        ):
            commit()
        elif not messages:
            reader.tell_lag_tools()
    if producer.pending:
        commit(now=True)
    reader.tell_lag_tools()

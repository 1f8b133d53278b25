"""The transactional producer of a service: whole transactions of Kafka, each with the state after it.

:meth:`TransactionalProducer.open` calls init_transactions, which ends whatever another process with this
transactional.id had begun and fences it, and only then reads the state.

A state is written either by its service or by ``millrace run``, which writes all three. So each of them takes
its own id first, then fences the ids of the other kind, and reads the states last. Of two that start at once,
the one whose own id was taken before the other fenced it is fenced: at least one of them, so that never both
continue; where both are, both end and are restarted.

A commit may run in the background (:meth:`TransactionalProducer.commit_in_background`), with the records of
its transaction for which the client had no room so far. What is sent then waits here for its end, as the
client has one transaction at a time.

What went wrong is learnt from the call that failed, from delivery reports and from the client's fatal error;
never by committing to see what comes of it. The client does not tell a transaction that the coordinator ended
because it was open for too long (``transaction.timeout.ms``) from one that another producer fenced: both are
``_FENCED``. Its age does, unless the coordinator's clock has jumped.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition

from millrace.contract import PAUSE, RUN, SERVICES, Topics, transactional_id
from millrace.kafka import client
from millrace.kafka.client import TRANSACTION_TIMEOUT_S, producer_config
from millrace.kafka.errors import BrokerError, FencedError, is_fenced, is_passing, translated
from millrace.kafka.messages import open_producer
from millrace.kafka.read import latest_offsets
from millrace.kafka.state import SIGN_S, Owner, StoredState, process_name, read_state, state_key
from millrace.kafka.topics import topic_ids
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import KafkaSettings
from millrace.stage import Output, OutputRecord, Target

_LOG = get_logger(__name__)
_COMMIT_S: Final = 25.0
"""How long a commit may take: less than the transaction may be open."""

_OPEN_S: Final = 60.0
_STEP_S: Final = 1.0
"""How long a call may take until we look whether we were told to stop."""

_TAKING_STEP_S: Final = 0.05
"""The same where an id is taken: by itself librdkafka asks again after 500 ms, when called again at once."""

_ROOM_MS: Final = 50
"""How long to wait for room until we look whether we were told to stop."""

_LAST_COMMIT_S: Final = 10.0
"""How long a commit may take once we were told to stop."""

_ON_WAIT_S: Final = 2.0
"""After how long a commit that still waits asks why, and how long until it asks again."""

_MOST_WAITING: Final = 2
"""Transactions of the policy that may be in no commit until whoever sends more waits for room."""

_ENDING_S: Final = 0.003
"""How soon after a commit the next transaction begins: until the end of the one before is in each partition,
the coordinator takes no partition into another, and librdkafka asks again after 20 ms."""

_MOST_TOPICS: Final = 2000
"""Topics of one client: with each request that it sends, librdkafka looks through all that it has written."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, as a coordinator's clock does."""

_FORGOTTEN: Final = (KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID)

_UNSAID: Final = (KafkaError._FATAL, KafkaError._STATE, KafkaError._INCONSISTENT)
"""Errors that only say that something else went wrong before."""


Batch = tuple[str, int, list[OutputRecord], int]
"""Topic, partition, records for it, and how many of them the client has."""

_RIVALS: Final = {RUN: SERVICES, **dict.fromkeys(SERVICES, (RUN,))}
"""By service, those that do the same work and are fenced with it."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """When a transaction is large or old enough, while the input does not pause.

    Where it pauses, a transaction ends at once. Input that never pauses comes faster than it is carried, and
    then long transactions carry more: each costs the brokers the same.
    """

    records: int = 25_000
    bytes: int = 8 * 1024 * 1024
    age_s: float = 0.5


def _ends_of(admin: client.AdminClient, topics: Iterable[str]) -> dict[str, int]:
    """Look up the offsets after the last records of topics, those of open transactions included."""
    partitions = [TopicPartition(topic, 0) for topic in topics]
    found = latest_offsets(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
    return {partition.topic: end for partition, end in found.items()}


class TransactionalProducer:
    """The one producer of a service for a source, or of ``millrace run``, which has the states of all.

    Use it as a context manager: leaving it aborts what is not committed, and says in the states that their
    owner has ended. A command in the place of the service says what it is: ``role``. With ``writes_state_of``
    it has the ids of the service, and writes the state of that name alone.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        source: str,
        service: str,
        *,
        policy: CommitPolicy | None = None,
        stop: threading.Event | None = None,
        role: str = "",
        writes_state_of: str = "",
    ) -> None:
        self._settings = settings
        self._source = source
        self._service = service
        self._states: tuple[str, ...] = SERVICES if service == RUN else (service,)
        if writes_state_of:
            self._states = (writes_state_of,)
        self._policy = policy or CommitPolicy()
        self._stop = stop or threading.Event()
        self._state_topic = Topics(source).state
        self._by = Owner(role or service, process_name())
        self._owner = str(self._by)
        # The states as they were committed last, by their keys, and those of the open transaction.
        self._kept: dict[bytes, bytes | None] = {}
        self._kept_next: dict[bytes, bytes | None] = {}
        self.topics: set[str] = set()
        """Those that the transaction of Kafka that is open, or the last one, has records for."""
        self._failures: dict[str, KafkaError] = {}
        self.warned = False
        """Whether the client has lost a broker, or not reached one, since this was set to False last."""
        self._open_client()
        self._in_transaction = False
        self._began = self._ended = 0.0
        self._given_up = False
        # Since when something was sent that is in no commit, and how much.
        self._since: float | None = None
        self._records = 0
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, "commit")
        self._committing: tuple[Future[None], Callable[[], None]] | None = None
        # What was sent while that runs, or there was no room.
        self._waiting: list[Batch] = []
        # Of topics whose offsets are counted, that of the next record.
        self._ends: dict[str, int] = {}
        self._admin: client.AdminClient | None = None
        self.commits = 0
        """Transactions committed by this process."""
        self.commit_time = 0.0
        """When the last was, seconds since 1970; 0 before the first."""

    def _open_client(self) -> None:
        with translated("setting up the producer"):
            self._producer, self._writer = open_producer(
                producer_config(self._settings, transactional_id(self._service, self._source))
                | {"error_cb": self._warn}
            )
        # Topics that it has written in earlier transactions.
        self._written: set[str] = set()

    def _renew_client(self) -> None:
        """Go on with a new client, which knows no topic. Raises FencedError where another took over.

        The new client takes its id as a process does that starts, or it would not be fenced by one that has.
        """
        self._close_client()
        self._open_client()
        if self._has_others(self.open(again=True)):
            raise self.fenced()

    def open(self, *, again: bool = False) -> list[StoredState | None]:
        """Fence other processes and read the states; None where there never was one.

        The topic ``{source}.state`` must exist. Until the first commit nobody else learns who took over. A
        process that does it ``again`` does not fence one that has taken over meanwhile.
        """
        if again and self.is_taken_over():
            raise self.fenced()
        self._take_id(self._producer)
        rivals = {rival: self._take_over(rival) for rival in _RIVALS.get(self._service, ())}
        self._end_forgotten(rivals)
        if not self._by.is_command and self._pause() is not None:
            # It was paused after we have looked, and before we have fenced anybody.
            raise self.fenced()
        return self._stored()

    def _pause(self) -> StoredState | None:
        """Return the record that says that the source is paused, if it is."""
        found = read_state(self._settings, self._source, PAUSE)
        return None if found is None or found.value is None else found

    def is_taken_over(self) -> bool:
        """Return whether another process has written a state of this one."""
        return self._has_others(self._stored())

    def _has_others(self, states: Iterable[StoredState | None]) -> bool:
        return any(state and state.owner != self._owner for state in states)

    def _take_id(self, producer: client.Producer) -> None:
        """Have a producer take its id, which ends the transaction that another one with this id has open.

        There is nothing to take it from before a broker is connected, and Kafka refuses it while it ends that
        transaction, or while another process takes the id, as all services do with that of ``millrace run``.
        """
        self._until_done("taking over", _OPEN_S, producer.init_transactions, step_s=_TAKING_STEP_S)

    def _take_over(self, rival: str) -> client.Producer:
        """Return a producer with the id of a rival, whose transaction, if one is open, is ended."""
        config = producer_config(self._settings, transactional_id(rival, self._source))
        with translated("setting up the producer"):
            producer = client.Producer(config, logger=client.KAFKA_LOG)
        self._take_id(producer)
        return producer

    def _end_forgotten(self, rivals: Mapping[str, client.Producer]) -> None:
        """Abort what earlier processes of this service or of ``rivals`` left open and Kafka has forgotten.

        The coordinator has ended all transactions of a producer that has called init_transactions. Where a
        partition has lost the end of one (an election of a leader that lacked it, a disk that was full),
        nobody reads beyond it, and no state can be read. The end of a transaction applies to all that the
        partition holds open of its producer; so one is begun there and aborted. What was committed and is
        aborted now counts as lost with that end: the comparison of the state with the topics finds it.
        """
        services = [each for each in self._states if each in SERVICES]
        own = [Topics(self._source).of_service(each).own for each in services]
        admin = client.admin_client(self._settings)
        partitions = [TopicPartition(name, 0) for name in topic_ids(admin, [self._state_topic, *own])]
        ends = latest_offsets(admin, partitions, IsolationLevel.READ_UNCOMMITTED)
        decided = latest_offsets(admin, partitions, IsolationLevel.READ_COMMITTED)
        undecided = [at.topic for at in partitions if decided[at] < ends[at]]
        if not undecided:
            return
        # In the state topic it may be another service's, for which this changes nothing.
        _LOG.info("aborting open transactions", topics=undecided)
        self._abort_in(undecided, self._producer)
        deadline = time.monotonic() + _OPEN_S
        left = dict(rivals)
        while left:
            rival, producer = left.popitem()
            try:
                self._abort_in(undecided, producer)
            except FencedError:
                # Another service that starts now has taken the id of ``run`` as well.
                if time.monotonic() > deadline:
                    raise
                left[rival] = self._take_over(rival)

    def _abort_in(self, topics: Sequence[str], producer: client.Producer) -> None:
        """Begin a transaction in topics and abort it."""
        try:
            producer.begin_transaction()
            for topic in topics:
                producer.produce(topic, b"", b"", 0)
            producer.flush(_OPEN_S)
        except KafkaException as exception:
            raise self._in_words("taking over", exception) from exception
        self._until_done("taking over", _OPEN_S, producer.abort_transaction)

    def _stored(self) -> list[StoredState | None]:
        return [read_state(self._settings, self._source, service) for service in self._states]

    # -- the transaction ----------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether something was sent that is not known to be committed, and may be."""
        return (self._in_transaction or bool(self._waiting)) and not self._given_up

    @property
    def age_s(self) -> float:
        """How long ago the first was sent of what is in no commit; 0 if nothing is."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    @property
    def size(self) -> int:
        """Bytes of the values that are in no commit."""
        return self._bytes

    @property
    def due(self) -> bool:
        """Whether what is in no commit has reached a limit of the policy.

        While a commit runs in the background, what is sent waits for its end, however old it is.
        """
        return self._since is not None and (
            self._amount >= 1 or (self.age_s >= self._policy.age_s and self._committing is None)
        )

    @property
    def _amount(self) -> float:
        """How many transactions of the policy are in no commit; ``millrace run`` has three in one."""
        policy = self._policy
        return max(self._records / policy.records, self._bytes / policy.bytes) / len(self._states)

    def wait_to_begin(self) -> None:
        """Wait until the next transaction can begin: what comes meanwhile is in it."""
        time.sleep(max(0.0, self._ended + _ENDING_S - time.monotonic()))

    def begin(self) -> None:
        """Open a transaction unless one is."""
        if self._in_transaction and self._given_up:
            raise StopRequestedError
        if not self._in_transaction:
            self.wait_to_begin()
            try:
                self._producer.begin_transaction()
            except KafkaException as exception:
                raise self._in_words("beginning a transaction", exception) from exception
            self._in_transaction, self._given_up = True, False
            self._began = time.clock_gettime(_CLOCK)
            self.topics.clear()
            self._writer.refusals()
            self._failures.clear()
        if self._since is None:
            self._since = time.monotonic()

    def count_offsets(self, admin: client.AdminClient, topics: Iterable[str]) -> None:
        """Count the offsets in topics into which nobody else writes, and in which all is decided.

        From now on a commit is refused where records do not lie one after the other there, each end of a
        transaction at an offset of its own.
        """
        self._admin, self._ends = admin, _ends_of(admin, topics)

    def next_offset(self, topic: str) -> int:
        """Return the offset that the next record will have of a topic whose offsets are counted."""
        return self._ends[topic]

    def send(self, output: Output) -> None:
        """Add all records of ``output``, whose lists are ours from then on.

        :meth:`commit` at the latest reports what Kafka does not take.
        """
        if self._since is None:
            self._since = time.monotonic()
        self._records += output.count
        self._bytes += output.size
        self._waiting += [(*target, records, 0) for target, records in output.groups.items()]
        for topic in self._ends:
            self._ends[topic] += len(output.groups.get((topic, 0), ()))
        self.finish(wait=self.due)

    def finish(self, on_wait: Callable[[], None] = lambda: None, *, wait: bool = True) -> None:
        """Take note of the end of the commit in the background, then send what waits and has room.

        Without ``wait`` that is only done where the commit has ended. Where two transactions' worth is in no
        commit, all of it is sent. ``on_wait`` is as for :meth:`commit`.
        """
        if self._committing is not None:
            future, committed = self._committing
            while not future.done():
                if not wait:
                    return
                with contextlib.suppress(TimeoutError):
                    future.exception(_ON_WAIT_S)
                    break
                on_wait()
            self._committing = None
            future.result()
            self._note_committed()
            committed()
        if self._waiting:
            self.begin()
            self.topics.update(topic for topic, *_ in self._waiting)
            self._waiting = self._send_all(self._waiting, wait=self._amount >= _MOST_WAITING)
        if self._in_transaction:
            self._poll(0)

    def _send_all(self, batches: Sequence[Batch], *, wait: bool) -> list[Batch]:
        """Send what there is room for, or with ``wait`` all, in each partition's order; give the rest."""
        left = list[Batch]()
        full = set[Target]()
        for topic, partition, records, sent in batches:
            done = sent
            if wait:
                done = self._send(topic, partition, records, sent)
            elif (topic, partition) not in full:
                done = self._write(topic, partition, records, sent)
            if done < len(records):
                full.add((topic, partition))
                left.append((topic, partition, records, done))
        return left

    def _write(self, topic: str, partition: int, records: list[OutputRecord], done: int) -> int:
        try:
            return self._writer.write(topic, partition, records, done)
        except KafkaException as exception:
            raise self._in_words("producing", exception) from exception

    def _send(self, topic: str, partition: int, records: list[OutputRecord], done: int) -> int:
        """Add records; where there is no room for them, wait for the brokers. Give how many there are."""
        deadline = 0.0
        while True:
            before = done
            done = self._write(topic, partition, records, done)
            if done == len(records):
                return done
            now = time.monotonic()
            if done > before or not deadline:
                deadline = now + _COMMIT_S
            elif self._stop.is_set() and now > deadline - _COMMIT_S + _LAST_COMMIT_S:
                self._given_up = True
                raise StopRequestedError
            elif now > deadline:
                raise BrokerError(
                    f"Kafka has taken no records of {topic} for {_COMMIT_S:g} s; check its brokers"
                )
            # A queue that is full as a whole has room again when any answer comes.
            self._poll(0 if done > before or not self._writer.wait(_ROOM_MS) else _ROOM_MS / 1000)

    def commit(
        self,
        state: bytes | None,
        *,
        others: Sequence[tuple[bytes, bytes | None]] = (),
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the state and commit; everything is in Kafka, all of it or nothing, when this returns.

        For ``millrace run`` the state is that of the reader. ``others`` are other records of the state topic,
        as key and value, that are written with it. ``on_wait`` is called now and then where it takes long;
        what it raises ends the wait.
        """
        self._commit(*self._transaction(state, others), on_wait)
        self._note_committed()

    def sign(self) -> None:
        """Write the owner's record again if nothing was committed for a while; this shows a fencing."""
        if self.pending or not self._kept or time.monotonic() - self._ended < SIGN_S:
            return
        self.serve()
        if not self.warned:
            self._commit_again()

    @contextlib.contextmanager
    def signing(self) -> Iterator[None]:
        """Yield signs of life within a block that does not use this producer, however long it takes."""
        left = threading.Event()

        def sign() -> None:
            while not left.wait(SIGN_S):
                with contextlib.suppress(UserError):  # what comes after the block learns of it
                    self.sign()

        thread = threading.Thread(target=sign, daemon=True)
        thread.start()
        try:
            yield
        finally:
            left.set()
            thread.join()

    def _commit_again(self, *, ended: bool = False) -> None:
        """Commit the states as they are."""
        self.finish()
        (_, first), *others = self._kept.items()
        self._commit(*self._transaction(first, others, ended=ended), lambda: None)
        self._note_committed()

    def commit_in_background(
        self,
        state: bytes | None,
        *,
        others: Sequence[tuple[bytes, bytes | None]],
        committed: Callable[[], None],
    ) -> None:
        """Write the state and begin to commit; one of the next calls tells how that ended.

        It raises what went wrong, or calls ``committed``.
        """
        transaction = self._transaction(state, others)
        self._committing = self._thread.submit(self._commit, *transaction, lambda: None), committed

    def _transaction(
        self, state: bytes | None, others: Sequence[tuple[bytes, bytes | None]], *, ended: bool = False
    ) -> tuple[Sequence[Batch], Mapping[str, int]]:
        """Return what the transaction still lacks, the states among it; what is sent later is of the next.

        With it go the offsets, where they are counted, after its last records.
        """
        self.finish()
        self.begin()
        self.topics.add(self._state_topic)
        now = int(time.time() * 1000)
        headers = self._by.headers(ended=ended)
        states = ((state_key(self._states[0]), state), *others)
        own = set(map(state_key, self._states))
        self._kept_next = {key: value for key, value in states if key in own}
        records: list[OutputRecord] = [(key, value, now, headers) for key, value in states]
        batches = [*self._waiting, (self._state_topic, 0, records, 0)]
        self._waiting, self._since = [], None
        self._records = self._bytes = 0
        ends = {topic: end for topic, end in self._ends.items() if topic in self.topics}
        self._ends |= {topic: end + 1 for topic, end in ends.items()}
        return batches, ends

    def _commit(self, batches: Sequence[Batch], ends: Mapping[str, int], on_wait: Callable[[], None]) -> None:
        """Commit; the call that ends the transaction is not given up.

        librdkafka would take the late answer to it for that to the next one, and say that a transaction is
        committed which is not.
        """
        self._send_all(batches, wait=True)
        self._writer.wait_to_flush(round(_STEP_S * 1000))
        self._flush(on_wait)
        if self._admin is not None and ends:
            self._check(self._admin, ends)
        self._until_done("committing", _COMMIT_S, lambda _: self._producer.commit_transaction(_COMMIT_S))
        self._ended = time.monotonic()
        self._written |= self.topics
        if len(self._written) > _MOST_TOPICS and not self._stop.is_set():
            self._renew_client()

    def _check(self, admin: client.AdminClient, ends: Mapping[str, int]) -> None:
        """Refuse the commit where topics do not end at the offsets that were counted."""
        if self.failures:
            return  # the commit says why
        found = _ends_of(admin, ends)
        for topic, end in ends.items():
            if found[topic] != end:
                raise self._refused(
                    f"{topic} ends at offset {found[topic]}, where {end} was expected: something else has "
                    "written to it. Nothing was committed; let only Millrace write there"
                )

    def _note_committed(self) -> None:
        self._in_transaction = False
        self._kept |= self._kept_next
        self.commits += 1
        self.commit_time = time.time()

    def _flush(self, on_wait: Callable[[], None]) -> None:
        """Wait until Kafka has taken what was sent, or has refused some of it, which the commit tells."""

        def flush(timeout_s: float) -> None:
            if self._producer.flush(timeout_s):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", False, True, False))

        self._until_done("writing", _COMMIT_S, flush, on_wait)

    def _refused(self, reason: str) -> FencedError | BrokerError:
        """Undo the open transaction, and give the error to raise: ``reason``, unless this one is fenced."""
        self._given_up = True
        try:
            self._producer.abort_transaction(5.0)
        except KafkaException as exception:
            return self._in_words("aborting", exception)
        self._in_transaction = False
        return BrokerError(reason)

    def abort(self) -> None:
        """Undo what is not committed, if anything is. Raises nothing: the next start undoes it too."""
        if self._committing is not None:
            if self._committing[0].exception() is None:
                self._note_committed()
            self._committing = None
        self._waiting, self._since = [], None
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
            if (
                (error is None or isinstance(error, (StopRequestedError, KeyboardInterrupt, SystemExit)))
                and self._kept
                and PAUSE not in self._states
                and not (self.warned or self._given_up)
            ):
                # Where that cannot be said its silence does.
                with contextlib.suppress(UserError, StopRequestedError):
                    self._commit_again(ended=True)
        self.close()

    def close(self) -> None:
        """Let go of the connections, without waiting for records that nobody will commit."""
        self._thread.shutdown()
        self._close_client()

    def _close_client(self) -> None:
        with contextlib.suppress(KafkaException):  # what has gone wrong was said before
            self._producer.purge()
            self._producer.flush(1.0)

    # -- what may go wrong --------------------------------------------------------------------------

    @property
    def failures(self) -> Mapping[str, KafkaError]:
        """By topic, why records of the open transaction, or the last one, were not taken."""
        for topic, code in self._writer.refusals():
            known = self._failures.get(topic)
            if known is None or is_passing(known):
                self._failures[topic] = KafkaError(code)
        return self._failures

    def _warn(self, _: KafkaError) -> None:
        self.warned = True

    def serve(self) -> None:
        """Let the client say what it has to, such as that it has lost a broker."""
        self._poll(0)

    def _poll(self, timeout_s: float) -> None:
        try:
            self._producer.poll(timeout_s)
        except KafkaException as exception:
            raise self._in_words("producing", exception) from exception

    def _until_done(
        self,
        doing: str,
        timeout_s: float,
        call: Callable[[float], object],
        on_wait: Callable[[], None] = lambda: None,
        *,
        step_s: float = _STEP_S,
    ) -> None:
        """Repeat a call of the transaction's protocol while Kafka says that it may yet succeed."""
        began = called = time.monotonic()
        told_to_stop = None
        waiting = False
        while True:
            try:
                call(step_s)
            except KafkaException as exception:
                now = time.monotonic()
                if self._stop.is_set() and told_to_stop is None:
                    told_to_stop = now
                if told_to_stop is not None and now - told_to_stop > _LAST_COMMIT_S:
                    self._given_up = True
                    raise StopRequestedError from exception
                if not exception.args[0].retriable() or now - began > timeout_s:
                    raise self._in_words(doing, exception) from exception
                if not waiting and now - began > 10 * _STEP_S:
                    waiting = True
                    _LOG.info("waiting for Kafka", doing=doing, reason=exception.args[0].str())
                if now - called > _ON_WAIT_S and told_to_stop is None:
                    on_wait()
                    called = time.monotonic()
            else:
                return

    def _in_words(self, doing: str, exception: KafkaException) -> FencedError | BrokerError:
        error = self._cause(exception)
        if is_fenced(error):
            age_s = time.clock_gettime(_CLOCK) - self._began if self._in_transaction else 0.0
            if age_s >= TRANSACTION_TIMEOUT_S:
                return BrokerError(
                    f"a transaction of Kafka was open for {age_s:.0f} s, and Kafka ends it after "
                    f"{TRANSACTION_TIMEOUT_S:g} s: this process was stopped, its machine slept, or its "
                    "brokers did not answer. Nothing is lost: start it again"
                )
            return self.fenced()
        if error.code() in _FORGOTTEN:
            return BrokerError(
                f"Kafka has forgotten the {self._service} of {self._source}, which wrote nothing for longer "
                "than transactional.id.expiration.ms or producer.id.expiration.ms of the brokers, or has "
                "lost __transaction_state. Nothing that was committed is lost: start it again"
            )
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return BrokerError(
                "transaction.max.timeout.ms of the brokers is less than the "
                f"{TRANSACTION_TIMEOUT_S * 1000:.0f} that our transactions need: raise it; Kafka's default "
                "is 900000"
            )
        try:
            with translated(f"{doing} for {self._source} as {self._service}"):
                raise KafkaException(error)
        except (FencedError, BrokerError) as translation:
            return translation

    def _cause(self, exception: KafkaException) -> KafkaError:
        """Return the error that made a call fail, where the call itself only says that there was one."""
        error: KafkaError = exception.args[0]
        if error.code() == KafkaError.UNKNOWN and self._in_transaction:
            # A coordinator says no more than that of a commit while another process takes over; then it says.
            try:
                self._producer.abort_transaction(5.0)
            except KafkaException as reason:
                return reason.args[0] if is_fenced(reason.args[0]) else error
            self._in_transaction = False
        if error.code() not in _UNSAID:
            return error
        for look in (lambda: self._producer.poll(0), self._producer.begin_transaction):
            # Both raise the client's fatal error, if it has one.
            try:
                look()
            except KafkaException as reason:
                if reason.args[0].code() not in _UNSAID:
                    found: KafkaError = reason.args[0]
                    return found
        failures = list(self.failures.values())
        refused = [failure for failure in failures if not is_passing(failure)]
        return (refused or failures or [error])[0]

    def fenced(self) -> FencedError:
        """Say that another process took over, and which."""
        with contextlib.suppress(BrokerError):
            if not self._by.is_command and (pause := self._pause()) is not None:
                return FencedError(f"the source {self._source} was paused by {pause.owner}", by_service=False)
        kind = "process" if self._service == RUN else self._service
        what = f"another {kind} of the source {self._source} took over"
        nobody = " and has not said who it is, or the clock of a broker has jumped, which ends transactions"
        try:
            states = [state for state in self._stored() if state and state.owner != self._owner]
        except BrokerError:
            states = []
        owners = {state.owner for state in states}
        who = f": {' and '.join(sorted(owners))}" if owners else nobody
        # The state of a command that has ended was written before whoever took over.
        at_work = [state.by for state in states if not state.by.ended]
        by_service = any(not owner.is_command for owner in at_work) if at_work else None
        return FencedError(f"{what}{who}. This one exits: run only one of them", by_service=by_service)

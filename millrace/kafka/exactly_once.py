"""Kafka in, Kafka out, exactly once: what runs the stage of a service.

Order at the start: the producer fences any other process of the service, and only then reads the state; the
topics are compared with it (:mod:`millrace.kafka.continuity`); the input is read from the offset that it
names. The output, and the state after it, are written in one transaction. A transaction may end wherever the
stage yields; it is committed as soon as the input pauses, else at the limits of
:class:`~millrace.kafka.producer.CommitPolicy`.

Where one process has several stages, their committers share a producer, and each commit writes the states of
all: :mod:`millrace.kafka.chain`.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, Protocol

from confluent_kafka.admin import AdminClient

from millrace.avro.registry import SchemaStore
from millrace.avro.service_state import InputRecord, ReaderState, S, stored_state
from millrace.kafka.continuity import ContinuityGuard, TopicChangedError
from millrace.kafka.errors import BrokerError
from millrace.kafka.input import ADVICE, InputReader
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.refusals import TopicsRefusedError, refused_topics
from millrace.kafka.state import StoredState, decoded_state, last_record, read_state, state_key
from millrace.kafka.topics import TopicInfo, ensure_topics, topic_ids
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.health import Health
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import ServiceSettings
from millrace.stage import Groups, Output, OutputRecord, Record, Stage

_LOG = get_logger(__name__)
_PAUSE_S: Final = 0.001
"""How long nothing must come to be a pause: a moment in which no thread got to fetch is none."""

_WAIT_S: Final = 1.0
_LONG_TRANSACTION_BYTES: Final = 64 * 1024 * 1024
_LONG_TRANSACTION_S: Final = 5.0
_CHECK_S: Final = 5.0
"""How long brokers that were lost have to answer where there is nothing to do."""

_LAST_CHECK_S: Final = 25.0
"""The same where there is something to write: as long as a commit may take."""


@dataclass(frozen=True, slots=True)
class Started(Generic[S]):
    """What a service has once it has taken over: its state, its topics, and what compares them."""

    state: S | None
    infos: dict[str, TopicInfo]
    guard: ContinuityGuard
    stored: bytes | None
    """The state as it is in Kafka."""


def committed_state(settings: ServiceSettings, admin: AdminClient, service: str, kind: type[S]) -> S | None:
    """Read the state of a service without taking over; None if there is none.

    It may be one from before what another process is writing now, and is not waited for.
    """
    topic = settings.names.state
    if topic not in topic_ids(admin, [topic]):
        return None
    return decoded_state(settings.kafka, settings.source, service, kind, undecided=False)


def take_over(
    settings: ServiceSettings,
    producer: TransactionalProducer,
    admin: AdminClient,
    service: str,
    kind: type[S],
    *,
    stop: threading.Event,
    again: bool = False,
) -> Started[S]:
    """Fence any other process of a service, read its state, compare it with the topics, create those missing.

    A process that does so ``again`` does not fence one that has taken over meanwhile. Raises
    :class:`UserError` where the state cannot be read, is missing though the service's own topic holds
    records, or does not fit the topics.
    """
    if kind is not ReaderState and not again:
        known = committed_state(settings, admin, service, kind)
        if known is not None:
            # Before anybody is fenced: one that reads another source by mistake ends nobody.
            ContinuityGuard(settings.kafka, admin, settings.names, service).check_origin(known.continuity)
    ensure_topics(admin, settings.topics, {settings.names.state: "state"})
    (stored,) = producer.open(again=again)
    started = begin(settings, producer, admin, service, kind, stored=stored)
    if stop.is_set():
        raise StopRequestedError
    announce(producer, started)
    return started


def announce(producer: TransactionalProducer, *started: Started[Any]) -> None:
    """Say who has taken over: commit the states as they are; the reader's first, where there are several."""
    first, *others = started
    with _explained([each.guard for each in started], producer):
        producer.commit(
            first.stored, others=[(state_key(each.guard.service), each.stored) for each in others]
        )


def begin(
    settings: ServiceSettings,
    producer: TransactionalProducer,
    admin: AdminClient,
    service: str,
    kind: type[S],
    *,
    stored: StoredState | None,
) -> Started[S]:
    """Compare the state of a service with the topics, after ``producer`` has fenced other processes.

    Those missing are created. Raises as :func:`take_over` does.
    """
    state_topic = settings.names.state
    value = None if stored is None else stored.value
    state = stored_state(kind, value, state_topic)
    if state is not None and not isinstance(state, ReaderState) and state.reprocessing:
        raise UserError(
            f"'millrace reprocess' was begun for {settings.source} and not finished: run it again",
            ExitCode.DATA,
        )
    guard = ContinuityGuard(settings.kafka, admin, settings.names, service)
    try:
        if state is not None:
            guard.check_ids(state.continuity)
        infos = ensure_topics(admin, settings.topics, guard.topics.kinds, captured=guard.topics.captured)
        guard.check_settings()
        if state is not None:
            guard.check_records(state.continuity)
        else:
            _refuse_lost_state(settings, guard, state_topic)
    except TopicChangedError:
        # Or another process has taken over since the state was read, and has written more.
        newest = read_state(settings.kafka, settings.source, service)
        if newest is not None and (stored is None or newest.offset != stored.offset):
            raise producer.fenced() from None
        raise
    guard.begin(None if state is None else state.continuity)
    return Started(state, infos, guard, value)


def _refuse_lost_state(settings: ServiceSettings, guard: ContinuityGuard, state_topic: str) -> None:
    """Raise where a service has no state, and has written before: it would write again, or leave out."""
    written, service = guard.find_written(), guard.service
    if written is None:
        return
    if last_record(settings.kafka, written) is not None:
        what = f"{written} holds records: it would write them once more"
    else:
        what = f"all records of {written} were deleted: it would begin as if it had written none"
        if service == "reader":
            raise TopicChangedError(
                f"{state_topic} has no state of the reader, and {what}. 'millrace source reset "
                f"{settings.source} --to …' sets where it continues, in a new epoch"
            )
    raise TopicChangedError(
        f"{state_topic} has no state of the {service}, but {what}. 'millrace state rebuild {service} "
        f"--source {settings.source}' makes the state from the topics"
    )


def _explain(guards: Sequence[ContinuityGuard], producer: TransactionalProducer) -> None:
    for guard in guards:
        guard.look(now=True)
    refused = refused_topics(guards[0].admin, producer.topics, producer.failures)
    if refused:
        raise TopicsRefusedError(refused)


@contextmanager
def _explained(guards: Sequence[ContinuityGuard], producer: TransactionalProducer) -> Iterator[None]:
    """Say why Kafka refuses, where topics are the reason."""
    try:
        yield
    except TopicsRefusedError:
        raise
    except BrokerError as error:
        try:
            _explain(guards, producer)
        except (TopicsRefusedError, TopicChangedError) as reason:
            raise reason from error
        raise


class Companion(Protocol):
    """What a service keeps beside its state, and must agree with it."""

    @property
    def due(self) -> bool:
        """Whether a commit should come soon."""

    def settle(self) -> None:
        """Take note that the stage is settled."""

    def committing(self, state: bytes) -> None:
        """Take note that the state of the last :meth:`settle` is being committed."""

    def committed(self) -> None:
        """Take note that it is committed."""


class Committer(Generic[S]):
    """Sends what a stage has written, and commits it with the state after it."""

    def __init__(
        self,
        producer: TransactionalProducer,
        guard: ContinuityGuard,
        state: S | None,
        *,
        stop: threading.Event,
        health: Health,
        reader: InputReader | None = None,
        companion: Companion | None = None,
        joins: "Committer[Any] | None" = None,
        schemas: SchemaStore | None = None,
        table_id: Callable[[str], str | None] = lambda _: None,
        written: Callable[[Output], Output] = lambda output: output,
    ) -> None:
        """Commit for a stage that stands where ``state`` says.

        One that ``joins`` another shares its producer: a commit of either writes the states of both, that of
        the first one first. ``schemas`` keeps those of the output. ``table_id`` gives the id that a topic of
        a table should have, ``written`` what is sent in place of an output.
        """
        self._together: list[Committer[Any]] = [] if joins is None else joins._together
        self._together.append(self)
        self._producer = producer
        self._guard = guard
        self._table_id = table_id
        self._written = written
        self._noted = [(topic, 0) for topic in (guard.topics.own, *guard.topics.others)]
        self._stop = stop
        self._health = health
        self._reader = reader
        self._schemas = schemas
        self._companion = companion
        self._settled: S | None = state
        self._committed: S | None = state
        self._next_offset: int | None = None
        self._last: dict[str, OutputRecord] = {}
        self._inputs = guard.continuity.inputs
        self.batch: Sequence[Record] = ()
        """The records that the stage takes."""

    @property
    def moved(self) -> bool:
        """Whether the stage has come further than the last commit says."""
        settled, committed = self._settled, self._committed
        return settled is not None and (committed is None or settled.place != committed.place)

    @property
    def pending(self) -> bool:
        """Whether something was sent and is not known to be committed."""
        return self._producer.pending

    @property
    def due(self) -> bool:
        """Whether what is in no commit is large or old enough."""
        return self._producer.due or any(
            each._companion is not None and each._companion.due for each in self._together
        )

    @property
    def long(self) -> bool:
        """Whether the Kafka transaction may not wait any longer for the end of the source's."""
        return (
            self._producer.size >= _LONG_TRANSACTION_BYTES
            or self._producer.age_s >= _LONG_TRANSACTION_S
            or (self._companion is not None and self._companion.due)
        )

    def seek(self, offset: int, advice: str = ADVICE) -> None:
        """Read the input on at ``offset``, as :meth:`InputReader.seek` does."""
        assert self._reader is not None
        self._reader.seek(offset, last=self._guard.continuity.last_input, advice=advice)

    def settle(self, output: Output, state: S | None, next_offset: int | None = None) -> Groups:
        """Send what the stage has written, and give it: here, where it has yielded, a transaction may end.

        Lag tools are told of ``next_offset`` once that is committed.
        """
        groups = output.groups
        if output.count:
            if not self._producer.pending:
                self._check_again()
            for target in self._noted:
                if written := groups.get(target):
                    self._last[target[0]] = written[-1]
            ids = {topic: self._table_id(topic) for topic, _ in groups}
            self._guard.wrote({topic: id_ for topic, id_ in ids.items() if id_ is not None})
            with self.explained():
                self._producer.send(self._written(output))
            output.clear()
        self._settled, self._next_offset = state, next_offset
        if self._reader is not None and state is not None:
            self._inputs = _inputs(state.offsets, self._inputs, self.batch)
        if self._companion is not None:
            self._companion.settle()
        return groups

    def commit(self, *, wait: bool = True) -> None:
        """Commit what was sent, with the state of the last :meth:`settle`; a state that goes back is refused.

        Without ``wait`` the stage may work while the brokers commit; one of the next calls tells how that
        ended. Where a broker was lost it waits nevertheless: topics are compared before more is written.
        """
        wait = wait or self._producer.warned
        self._look_at_schemas()
        with self.explained():
            self._producer.finish(self._explain_wait)
        value, *others = values = [committer._next() for committer in self._together]
        for committer, each in zip(self._together, values, strict=True):
            if committer._companion is not None and each is not None:
                committer._companion.committing(each)
        keys = [state_key(committer._guard.service) for committer in self._together[1:]]
        states = list(zip(keys, others, strict=True))
        ended = partial(self._note_committed, [committer._next_offset for committer in self._together])
        with self.explained():
            if wait:
                self._producer.commit(value, others=states, on_wait=self._explain_wait)
            else:
                self._producer.commit_in_background(value, others=states, committed=ended)
        for committer in self._together:
            committer._committed = committer._settled
        if wait:
            ended()

    def _look_at_schemas(self) -> None:
        for committer in self._together:
            if committer._schemas is not None:
                committer._schemas.look()

    def wait_to_begin(self) -> None:
        """Wait until the next transaction can begin: what comes meanwhile is in it."""
        self._producer.wait_to_begin()

    def _explain_wait(self) -> None:
        """Say why a commit takes long."""
        if self._producer.warned:
            self._health.note_kafka(answers=False)
        self.explain()

    def _note_committed(self, offsets: Sequence[int | None]) -> None:
        self._health.note_kafka(answers=True)
        for committer, offset in zip(self._together, offsets, strict=True):
            committer._guard.look()
            if committer._companion is not None:
                committer._companion.committed()
            if committer._reader is not None and offset is not None:
                committer._reader.note_committed(offset)

    def _next(self) -> bytes | None:
        """Return the state that is to be committed."""
        state, before = self._settled, self._committed
        if state is not None:
            if before is not None and state.precedes(before):
                raise RuntimeError(
                    f"the state would go back from {before.place} to {state.place}: nothing was committed"
                )
            reader = self._reader
            self._guard.note(None if reader is None else reader.last, self._last, self._inputs)
            self._last = {}
            state = replace(state, continuity=self._guard.continuity)
        return None if state is None else state.to_bytes()

    def tick(self) -> None:
        """Report that the service is alive; the stage calls this wherever it waits or works for long.

        Commits what was sent before, if it is due: no transaction is open through work without output. Raises
        :class:`StopRequestedError` where the process was told to stop.
        """
        self._health.beat()
        with self.explained():
            self._producer.finish(wait=False)
        stopping = self._stop.is_set()
        if self._producer.pending and (self._producer.due or stopping):
            self.commit(wait=stopping)
        if stopping:
            raise StopRequestedError
        self.sign()

    def sign(self) -> None:
        """Write the owner's record again if it is due; raise :class:`FencedError` if it was fenced."""
        with self.explained():
            self._producer.sign()

    def explain(self) -> None:
        """Say why Kafka refuses, where a topic is the reason.

        Raises :class:`TopicChangedError` where one of the service's own is another one than before, and
        :class:`TopicsRefusedError` where topics do not take what is written to them.
        """
        _explain([committer._guard for committer in self._together], self._producer)

    def explained(self) -> AbstractContextManager[None]:
        """Do so where Kafka refuses within a block."""
        return _explained([committer._guard for committer in self._together], self._producer)

    def idle(self) -> None:
        """Take note that nothing comes: look after the topics and schemas."""
        self._look_at_schemas()
        try:
            self._check_again(_CHECK_S)
        except BrokerError as error:
            self._health.note_kafka(answers=False)
            _LOG.warning("waiting for Kafka", reason=error.message)
        else:
            self._health.note_kafka(answers=True)
        self.sign()
        for committer in self._together:
            committer._guard.look()

    def _check_again(self, timeout_s: float = _LAST_CHECK_S) -> None:
        """Compare the topics as at the start, if brokers were lost; what was sent must be committed.

        They may have lost records, and taken others, and an epoch of a leader may be there twice, so that
        the client does not notice. Raises :class:`BrokerError` where they do not answer within ``timeout_s``;
        then the next call compares.
        """
        producer = self._producer
        producer.serve()
        readers = [each._reader for each in self._together if each._reader is not None]
        if not producer.warned and not any(reader.warned for reader in readers):
            return
        producer.warned = False
        try:
            for each in self._together:
                last = None if each._reader is None else each._reader.last
                each._guard.check_again(last, timeout_s)
        except BrokerError:
            producer.warned = True
            raise
        except TopicChangedError:
            if producer.is_taken_over():
                raise producer.fenced() from None
            raise
        for reader in readers:
            if reader.warned:
                reader.resume()


def _inputs(
    offsets: Sequence[int], known: Sequence[InputRecord], batch: Sequence[Record]
) -> tuple[InputRecord, ...]:
    """Return the records at some offsets, of those known or just read."""
    found = {record.offset: record for record in known}
    for offset in {*offsets}.difference(found):
        at = bisect_left(batch, offset, key=attrgetter("offset"))
        if at < len(batch) and batch[at].offset == offset:
            found[offset] = InputRecord(offset, batch[at].key)
    return tuple(found[offset] for offset in dict.fromkeys(offsets) if offset in found)


def run_stage(
    reader: InputReader,
    committer: Committer[S],
    stage: Stage[S],
    *,
    stop: threading.Event,
    health: Health,
    batch: int = 500,
    last: int | None = None,
) -> None:
    """Move records from ``reader`` through ``stage`` until ``stop`` is set; end with a commit.

    With ``last``, end when the record at that offset was taken.
    """
    health.set_ready()
    with suppress(StopRequestedError), committer.explained():
        while not stop.is_set() and (last is None or reader.last is None or reader.last.offset < last):
            before = reader.last
            records = reader.read(batch, _PAUSE_S if committer.pending else _WAIT_S)
            health.beat()
            if records and reader.warned:
                # Of a topic that is to be compared first; then they are read again.
                records, reader.last = [], before
            if not records:
                # What was read and gave no output is done as well, which others see by the state alone.
                if committer.pending or committer.moved:
                    committer.commit()
                    committer.wait_to_begin()
                    continue
                committer.idle()
                reader.tell_lag_tools()
            committer.batch = records
            for _ in stage.take(records):
                committer.settle(stage.output, stage.state(), stage.next_offset)
                if committer.due:
                    committer.commit(wait=False)
                if stop.is_set():
                    break
            committer.batch = ()
    if committer.pending or (last is not None and committer.moved):
        committer.commit()
    reader.tell_lag_tools()

"""The input of a service: one partition, read from the offset that the service's state names."""

import contextlib
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from operator import attrgetter
from typing import Final, Self

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from millrace.avro.service_state import InputRecord
from millrace.kafka.client import CONNECT_S, consumer_config
from millrace.kafka.errors import BrokerError, InputLostError, is_passing, translated
from millrace.kafka.messages import PartitionReader, open_consumer
from millrace.kafka.state import held_range, oldest_offset
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import KafkaSettings
from millrace.stage import Record

_LOG = get_logger(__name__)
_LAG_EVERY_S: Final = 0.5
_REREAD_BATCH: Final = 100
"""Few, since what is read again is mostly large."""
_BATCH: Final = 5000
_SILENCE_S: Final = 60.0

ADVICE: Final = "raise its retention.ms"
"""What to do where records were deleted before they were read."""


class InputReader:
    """Reads partition 0 of a topic, committed records only, from the offset that it is told.

    The partition is assigned, never subscribed to. Offsets of a consumer group are committed now and then,
    for lag tools only: nothing is ever read from them. With ``ends`` it notes in ``at_end`` that it has come
    to the end of what is committed. Unless ``dated``, records have their offsets for timestamps.
    """

    def __init__(
        self, settings: KafkaSettings, topic: str, group: str, *, ends: bool = False, dated: bool = True
    ) -> None:
        self.topic = topic
        self.at_end = False
        self.last: InputRecord | None = None
        """The last record that was read."""
        self.warned = False
        """Whether the client has said that something is wrong since this was set to False last."""
        self._settings = settings
        config = consumer_config(settings, group, follow=not ends) | {"enable.partition.eof": ends}
        self._consumer, self._open = open_consumer(config, topic, dated=dated)
        self._messages: PartitionReader | None = None
        self._start = 0
        self._expected: InputRecord | None = None
        self._lag: int | None = None
        self._lag_noted_at = 0.0
        self._committed_at = 0.0
        self._to_commit: int | None = None

    def first_offset(self) -> int:
        """Return the offset of the first record that the topic still holds."""
        return oldest_offset(self._settings, self.topic)

    def seek(self, offset: int, *, last: InputRecord | None = None, advice: str = ADVICE) -> None:
        """Read on at ``offset``; raises :class:`InputLostError` where the topic does not hold it.

        ``last`` is the last record that an earlier process has read. Where the topic has lost it since,
        reading raises the same, even if the topic has grown again; only for the first seek. ``advice`` says
        what to do where records were deleted.
        """
        offset = self.check(offset, advice)
        self.jump(offset)
        if last is not None and last.leader_epoch >= 0:
            # Where it is only assigned, the client does not ask whether what lies before was lost.
            with translated(f"reading {self.topic}"):
                self._consumer.seek(TopicPartition(self.topic, 0, offset, leader_epoch=last.leader_epoch))
        self._expected = last if last is not None and last.offset >= offset else None

    def check(self, offset: int, advice: str = ADVICE) -> int:
        """Return where to read on at ``offset``; raises as :meth:`seek` does."""
        held = held_range(self._settings, self.topic)
        if not held and offset == held.start - 1:
            # The record before it was committed: between them was only the end of its Kafka transaction.
            return held.start
        if offset < held.start:
            raise InputLostError(
                f"records {offset} to {held.start - 1} of {self.topic} were deleted before they were read; "
                f"{advice}"
            )
        if offset > held.stop:
            raise _end_lost(self.topic, held.stop, offset)
        return offset

    def jump(self, offset: int) -> None:
        """Read on at an offset that the topic is known to hold."""
        self.at_end, self._start = False, offset
        with translated(f"reading {self.topic}"):
            if self._messages is not None:
                # What is under way still belongs to the reader that is closed.
                self._consumer.unassign()
            self._let_go()
            self._messages = self._open()
            # It asks for the leader of what it is assigned when it connects, and after that once a second.
            with contextlib.suppress(KafkaException):  # reading then says why
                self._consumer.list_topics(self.topic, timeout=CONNECT_S)
            self._consumer.assign([TopicPartition(self.topic, 0, offset)])

    def resume(self) -> None:
        """Read on after :attr:`last`, unless nothing is read now: what has come since is fetched again."""
        self.warned = False
        if self._messages is not None:
            self.jump(self._start if self.last is None else max(self._start, self.last.offset + 1))

    def rest(self) -> None:
        """Read nothing until the next offset is given; offsets can still be told to lag tools."""
        with translated(f"reading {self.topic}"):
            self._consumer.assign([])
        self._let_go()
        self._lag = 0

    def read(self, count: int, wait_s: float) -> Sequence[Record]:
        """Return up to ``count`` records: those that are there, else the first to come within ``wait_s``."""
        messages = self._messages
        if messages is None:
            raise RuntimeError(f"{self.topic} is read from no offset yet")
        with translated(f"reading {self.topic}"):
            records = messages.read(count, 0)
            if not records and not messages.errors and wait_s > 0:
                self._note_lag()
                records = messages.read(count, round(wait_s * 1000))
        if time.monotonic() - self._lag_noted_at > _LAG_EVERY_S:
            self._note_lag()
        for error in messages.errors:
            self._judge(error)
        if records:
            last = records[-1]
            if self._expected is not None and last.offset >= self._expected.offset:
                self._compare(records, self._expected)
            self.last = InputRecord(last.offset, last.key, messages.leader_epoch)
        return records

    def _compare(self, records: Sequence[Record], expected: InputRecord) -> None:
        """Raise where records that are read again are not those that were read before."""
        self._expected = None
        found = next(record for record in records if record.offset >= expected.offset)
        if (found.offset, found.key) != (expected.offset, expected.key):
            raise InputLostError(
                f"{self.topic} no longer holds what was read at offset {expected.offset}: its end was lost "
                "and written again. docs/how-to/recover.md#a-topic-that-changed says what to do"
            )

    def note_taken(self, record: Record) -> None:
        """Take note that what lies up to a record was taken from memory."""
        self.last = InputRecord(record.offset, record.key, -1)

    def batches(self, count: int, end: int | None = None) -> Iterator[Sequence[Record]]:
        """Yield what the topic holds from here on, up to ``count`` records at once; for who notes ends.

        With ``end`` only what lies before that offset, which may be that of no record. Raises
        :class:`BrokerError` where nothing comes for a minute.
        """
        heard = time.monotonic()
        while not self.at_end:
            records = self.read(count, 1.0)
            if records and end is not None and records[-1].offset >= end - 1:
                wanted = records[: bisect_left(records, end, key=attrgetter("offset"))]
                if wanted:
                    yield wanted
                return
            if records:
                yield records
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise BrokerError(f"{self.topic} cannot be read: no answer within {_SILENCE_S:.0f} s")

    def _judge(self, error: KafkaError) -> None:
        """Raise for what does not recover by itself."""
        if error.code() == KafkaError._PARTITION_EOF:
            self.at_end = True
            return
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise InputLostError(
                f"{self.topic} no longer holds what must be read next: {error.str()}. "
                "docs/how-to/recover.md#a-topic-that-changed says what to do"
            )
        if error.fatal() or not is_passing(error):
            raise BrokerError(f"{self.topic} cannot be read: {error.str()} ({error.name()})")
        self.warned = True
        _LOG.warning("waiting for Kafka", topic=self.topic, reason=error.str())

    def lag(self) -> int | None:
        """Return how many offsets lay after the last fetched record a second ago at the most.

        None where that is not known. May be called from another thread: the client is not asked here, since
        it would keep other threads waiting for as long as it waits for records itself.
        """
        return self._lag

    def _note_lag(self) -> None:
        """Take note of the lag, as known without asking a broker."""
        partition = TopicPartition(self.topic, 0)
        self._lag, self._lag_noted_at = None, time.monotonic()
        with contextlib.suppress(KafkaException):
            _, high = self._consumer.get_watermark_offsets(partition, cached=True)
            position = self._consumer.position([partition])[0].offset
            if high >= 0 and position >= 0:
                self._lag = max(0, high - position)

    def note_committed(self, offset: int) -> None:
        """Commit ``offset`` as the group's offset, for lag tools, at most once a second."""
        self._to_commit = offset
        if time.monotonic() - self._committed_at > 1.0:
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from the brokers."""
        self._let_go()
        self._consumer.close()

    def _let_go(self) -> None:
        if self._messages is not None:
            self._messages.close()
            self._messages = None


def committed_batches(
    settings: KafkaSettings, topic: str, group: str, start: int, end: int, *, dated: bool = True
) -> Iterator[Sequence[Record]]:
    """Yield the committed records of partition 0 from offset ``start`` to before ``end``, in batches.

    What is committed must reach to ``end``. ``dated`` is as :class:`InputReader` has it, and so is what is
    raised.
    """
    if start >= end:
        return
    with InputReader(settings, topic, group, ends=True, dated=dated) as reader:
        reader.seek(start)
        yield from reader.batches(_BATCH, end)


class Rereader:
    """Reads stretches of partition 0 of a topic again.

    The consumer of a stretch that has ended is kept for the next one, which spares connecting.
    """

    def __init__(self, settings: KafkaSettings, topic: str, group: str) -> None:
        self._settings = settings
        self._topic = topic
        self._group = group
        self._spare: InputReader | None = None

    def batches(
        self, start: int, stop: int, tick: Callable[[], None]
    ) -> Generator[Sequence[Record], None, None]:
        """Yield the records from offset ``start`` to before ``stop``, where the last one must be, in batches.

        ``tick`` is called for each batch, and while nothing comes; it may raise to end this. A stretch may be
        read within another. Raises as :class:`InputReader` does.
        """
        reader, self._spare = self._spare, None
        if reader is None:
            reader = InputReader(self._settings, self._topic, self._group, ends=True)
        with contextlib.ExitStack() as unfinished:
            unfinished.push(reader)
            reader.seek(start)
            yield from self._until(reader, stop, tick)
            reader.rest()
            unfinished.pop_all()
        self.close()
        self._spare = reader

    def records(self, start: int, stop: int, tick: Callable[[], None]) -> Generator[Record, None, None]:
        """Yield records as :meth:`batches` does, one by one."""
        for records in self.batches(start, stop, tick):
            yield from records

    def _until(self, reader: InputReader, stop: int, tick: Callable[[], None]) -> Iterator[Sequence[Record]]:
        heard = time.monotonic()
        while True:
            records = reader.read(_REREAD_BATCH, 1.0)
            if records:
                heard = time.monotonic()
                if records[-1].offset >= stop - 1:
                    yield records[: bisect_left(records, stop, key=attrgetter("offset"))]
                    return
                yield records
            if reader.at_end and time.monotonic() - heard > _SILENCE_S:
                held = held_range(self._settings, self._topic)
                if held.stop < stop:
                    raise _end_lost(self._topic, held.stop, stop)
                heard = time.monotonic()
            tick()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from the brokers until the next stretch."""
        if self._spare is not None:
            self._spare.close()
            self._spare = None


def _end_lost(topic: str, end: int, read: int) -> InputLostError:
    return InputLostError(
        f"{topic} ends at offset {end}, but was read to {read}: its end was lost, or it is another topic "
        "now. docs/how-to/recover.md#a-topic-that-changed says what to do"
    )

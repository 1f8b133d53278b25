"""Several stages in one process with one Kafka transaction for all of them.

What a stage writes into its own topic is sent, and handed to the next stage with the offsets that Kafka will
give it: nobody else writes there, so that the records lie one after the other, and each end of a transaction
takes one offset. Before a commit the ends of these topics are compared with that: where they differ, nothing
is committed, so that no state ever names a wrong offset.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from confluent_kafka import IsolationLevel, TopicPartition

from millrace.avro.service_state import InputRecord
from millrace.kafka.client import AdminClient
from millrace.kafka.errors import translated
from millrace.kafka.exactly_once import Committer, run_stage
from millrace.kafka.input import InputReader
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.read import latest_offsets
from millrace.kafka.state import last_record, newest_offset
from millrace.runtime.health import Health
from millrace.runtime.settings import KafkaSettings
from millrace.stage import OutputRecord, Stage, records_of_columns


class Link:
    """A stage that is handed its input from memory once what lies in its topic has been taken.

    ``ready`` is called before the stage takes records, which were sent by then.
    """

    def __init__(
        self,
        stage: Stage[Any],
        committer: Committer[Any],
        reader: InputReader,
        *,
        stop: threading.Event,
        health: Health,
        advice: str = "raise its retention.ms",
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic = reader.topic
        self.next_offset = -1
        """The offset that the next record will have."""
        self._stage = stage
        self._committer = committer
        self._reader = reader
        self._stop = stop
        self._health = health
        self._advice = advice
        self._ready = ready

    def drain(self, settings: KafkaSettings) -> None:
        """Take what lies in the topic, into which nobody writes any more."""
        last = last_record(settings, self.topic)
        if last is not None and last.offset >= self._stage.next_offset:
            self._reader.seek(self._stage.next_offset, advice=self._advice)
            run_stage(
                self._reader,
                self._committer,
                self._stage,
                stop=self._stop,
                health=self._health,
                last=last.offset,
            )
            self._reader.rest()
        self.next_offset = newest_offset(settings, self.topic)

    def take(self, written: Sequence[OutputRecord]) -> None:
        """Take records that were sent to the topic; once the process is to stop, leave them there."""
        keys, values, timestamps, headers = zip(*written, strict=True)
        times = [timestamp_ms or 1 for timestamp_ms in timestamps]
        records = records_of_columns(count(self.next_offset), times, keys, values, headers)
        self.next_offset += len(records)
        if self._stop.is_set():
            return
        self._ready()
        self._reader.last = InputRecord(records[-1].offset, records[-1].key, -1)
        for _ in self._stage.take(records):
            self._committer.settle()
            self._health.beat()
            if self._committer.long:
                self._committer.commit(wait=False)
            if self._stop.is_set():
                return

    def committed(self) -> None:
        """Tell lag tools how far the stage has come."""
        self._reader.note_committed(self._stage.next_offset)


def joined(
    admin: AdminClient,
    producer: TransactionalProducer,
    committers: Sequence[Committer[Any]],
    links: Sequence[Link],
    committed: Callable[[], None],
) -> None:
    """Let what the stage of each committer writes go through the links, in their order.

    ``committed`` is called after each commit.
    """

    def before_commit() -> Callable[[], None]:
        """Count the offsets that the end of the transaction takes, and give what compares those before it."""
        written = [link for link in links if producer.holds(link.topic)]
        expected = {TopicPartition(link.topic, 0): link.next_offset for link in written}
        for link in written:
            link.next_offset += 1
        return partial(check, expected)

    def check(expected: Mapping[TopicPartition, int]) -> None:
        """Refuse a commit where records do not lie at the offsets that their stages were told."""
        if not expected:
            return  # the end of the last transaction may not show yet
        producer.flush()
        if producer.failures:
            return  # the commit says why
        with translated("looking up the ends of topics"):
            found = latest_offsets(admin, expected, IsolationLevel.READ_UNCOMMITTED)
        for partition, offset in expected.items():
            if found[partition] != offset:
                raise producer.refuse(
                    f"{partition.topic} ends at offset {found[partition]}, where {offset} was expected: "
                    "something else has written to it. Nothing was committed; let only Millrace write there"
                )

    def after_commit() -> None:
        for link in links:
            link.committed()
        committed()

    for committer, link in zip(committers, links, strict=False):
        committer.pass_on = link.take
    for committer in committers:
        committer.before_commit, committer.after_commit = before_commit, after_commit

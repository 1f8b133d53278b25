"""Several stages in one process with one Kafka transaction for all of them.

What a stage writes into its own topic is sent, and handed to the next stage with the offsets that Kafka will
give it: nobody else writes there. Before a commit the ends of these topics are compared with that
(:meth:`~millrace.kafka.producer.TransactionalProducer.count_offsets`): where they differ, nothing is
committed, so that no state ever names a wrong offset.
"""

import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from millrace.kafka.exactly_once import Committer, run_stage
from millrace.kafka.input import ADVICE, InputReader
from millrace.kafka.producer import TransactionalProducer
from millrace.kafka.state import last_record
from millrace.runtime.health import Health
from millrace.runtime.settings import KafkaSettings
from millrace.stage import Groups, Record, Stage, records_of_columns


class Link:
    """A stage that is handed its input from memory once what lies in its topic has been taken.

    What it writes is handed to the ``following`` one. ``ready`` is called before the stage takes records,
    which were sent by then.
    """

    def __init__(
        self,
        stage: Stage[Any],
        committer: Committer[Any],
        reader: InputReader,
        producer: TransactionalProducer,
        *,
        stop: threading.Event,
        health: Health,
        following: "Link | None" = None,
        advice: str = ADVICE,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._stage = stage
        self._committer = committer
        self._reader = reader
        self._producer = producer
        self._stop = stop
        self._health = health
        self._following = following
        self._advice = advice
        self._ready = ready

    def drain(self, settings: KafkaSettings) -> None:
        """Take what lies in the topic, into which nobody writes any more, then in those of later stages."""
        last = last_record(settings, self._reader.topic)
        if last is not None and last.offset >= self._stage.next_offset:
            self._committer.seek(self._stage.next_offset, self._advice)
            run_stage(
                self._reader,
                self._committer,
                self._stage,
                stop=self._stop,
                health=self._health,
                last=last.offset,
            )
            self._reader.rest()
        else:
            self._reader.check(self._stage.next_offset, self._advice)
        if self._following is not None:
            self._following.drain(settings)

    def take(self, sent: Groups) -> None:
        """Take what was sent to the topic, if anything was; once the process is to stop, leave it there."""
        if self._stop.is_set():
            return
        records = self._records(sent)
        if records:
            self._ready()
            self._reader.note_taken(records[-1])
        self._committer.batch = records
        for _ in self._stage.take(records):
            stage = self._stage
            written = self._committer.settle(stage.output, stage.state(), stage.next_offset)
            if self._following is not None:
                self._following.take(written)
            self._health.beat()
            if self._committer.long:
                self._committer.commit(wait=False)
            if self._stop.is_set():
                return
        self._committer.batch = ()

    def _records(self, sent: Groups) -> Sequence[Record]:
        """Return what was sent last as it will be read."""
        written = sent.get((self._reader.topic, 0))
        if not written:
            return []
        keys, values, timestamps, headers = zip(*written, strict=True)
        times = [timestamp_ms or 1 for timestamp_ms in timestamps]
        first = self._producer.next_offset(self._reader.topic) - len(written)
        return records_of_columns(count(first), times, keys, values, headers)

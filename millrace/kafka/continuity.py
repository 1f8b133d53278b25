"""Whether the topics are still those that a service's state speaks of, and hold what they held.

A topic may have been deleted, deleted and created again, cut (by the election of a leader that lacked its
end) or restored from an older copy. A service that read or wrote on would lose or repeat records without a
sign. So its state has the ids of its topics, the last record that it read, and the last that it wrote into
its own topic: these are compared when it starts; ids also while it runs, now and then and whenever the client
reports trouble.

Topics of tables can be thousands. Of these the guard compares some at a time, and only those that were
written.
"""

import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from millrace.avro.service_state import Continuity, InputRecord, OutputRecord
from millrace.contract import Topics
from millrace.kafka.errors import BrokerError, answer_of, translated
from millrace.kafka.input import InputReader
from millrace.kafka.refusals import TopicsRefusedError
from millrace.kafka.state import last_record, newest_offset, oldest_offset
from millrace.kafka.topics import another_topic
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings

__all__ = ["ContinuityGuard", "TopicChangedError", "topic_ids"]

_TIMEOUT_S: Final = 30.0
_LOOK_EVERY_S: Final = 10.0
_LOOK_TIMEOUT_S: Final = 5.0
_TABLES_AT_A_LOOK: Final = 100
_SECTION: Final = "docs/operations.md says what to do ('A topic that changed')"


class TopicChangedError(UserError):
    """A topic is another one than before, or no longer holds what it held."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.DATA)


def topic_ids(admin: AdminClient, names: Sequence[str], timeout_s: float = _TIMEOUT_S) -> dict[str, str]:
    """Return Kafka's ids of topics, by name; those that do not exist are left out."""
    ids: dict[str, str] = {}
    with translated("looking up the ids of topics"):
        for name, future in admin.describe_topics(TopicCollection(list(names))).items() if names else ():
            try:
                ids[name] = str(answer_of(future, timeout_s).topic_id)
            except KafkaException as exception:
                if exception.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
    return ids


class ContinuityGuard:
    """Compares the topics of a service with what its state says of them."""

    def __init__(self, settings: KafkaSettings, admin: AdminClient, source: str, service: str) -> None:
        self.continuity = Continuity()
        """What is known by now; goes into the next state."""
        self.admin = admin
        self._settings = settings
        self._source = source
        self.service = service
        self.topics = Topics(source).of_service(service)
        self._looked = time.monotonic()
        # Of topics of tables that were written and not compared since, the ids.
        self._written: dict[str, str] = {}

    def check_ids(self, stored: Continuity) -> None:
        """Compare the topics with those that a state belongs to; raises :class:`TopicChangedError`."""
        self._compare(stored.topics)

    def check_records(self, stored: Continuity) -> None:
        """Compare what the topics hold with what a state says of it; raises :class:`TopicChangedError`."""
        if stored.last_output is not None or stored.topics:
            self._check_output(stored.last_output)
        if stored.last_input is not None and self.topics.input is not None:
            self._check_input(self.topics.input, stored.last_input)

    def begin(self, stored: Continuity | None) -> None:
        """Take note of the topics, which exist by now."""
        known, names = stored or Continuity(), list(self.topics.kinds)
        self.continuity = Continuity(topic_ids(self.admin, names), known.last_input, known.last_output)

    def adopt(self) -> Continuity:
        """Give what the topics are and end with now, for a state that is written on purpose."""
        self.begin(None)
        own = self.topics.own
        last = last_record(self._settings, own) if own in self.continuity.topics else None
        if last is not None:
            self.note(None, (last.key, last.value))
        return self.continuity

    def note(
        self, last_input: InputRecord | None, last_output: tuple[bytes | None, bytes | None] | None
    ) -> None:
        """Take note of the last record read, and of key and value of the last one written."""
        known = self.continuity
        output = known.last_output
        if last_output is not None:
            key, value = last_output
            output = OutputRecord(key, zlib.crc32(value or b""))
        self.continuity = Continuity(known.topics, last_input or known.last_input, output)

    def wrote(self, ids: Mapping[str, str]) -> None:
        """Take note that topics of tables were written, by name and the id that each should have."""
        self._written.update(ids)

    def look(self, *, now: bool = False) -> None:
        """Compare the ids of the topics if that was not done for a while, or ``now``, then of all.

        Raises :class:`TopicChangedError` for one of the service's own, :class:`TopicsRefusedError` for those
        of tables. Where brokers do not answer, the next look tells: whoever writes or reads says so.
        """
        if now or time.monotonic() - self._looked >= _LOOK_EVERY_S:
            with suppress(BrokerError):
                self._compare(self.continuity.topics, _LOOK_TIMEOUT_S)
            changed = self._changed_tables(len(self._written) if now else _TABLES_AT_A_LOOK)
            self._looked = time.monotonic()
            if changed:
                raise TopicsRefusedError(changed)

    def _changed_tables(self, count: int) -> dict[str, str]:
        """Compare so many topics of tables; say of those that are others what that means."""
        expected = dict(islice(self._written.items(), count))
        found = expected
        with suppress(BrokerError):
            found = topic_ids(self.admin, list(expected), _LOOK_TIMEOUT_S)
        for name in expected:
            del self._written[name]
        return {
            name: another_topic(name, gone=name not in found)
            for name, id_ in expected.items()
            if found.get(name) != id_
        }

    def _compare(self, expected: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> None:
        found = topic_ids(self.admin, list(expected), timeout_s)
        for name, id_ in expected.items():
            if name not in found:
                raise TopicChangedError(
                    f"{name} is gone: the {self.service} of {self._source} has written or read it until "
                    f"now, and what it held is lost. Nothing was created in its place. {_SECTION}"
                )
            if found[name] != id_:
                raise TopicChangedError(
                    f"{name} was deleted and created again: the {self.service} of {self._source} knows it "
                    f"by the id {id_}, and now it has {found[name]}. What it held is lost. {_SECTION}"
                )

    def _check_output(self, expected: OutputRecord | None) -> None:
        topic = self.topics.own
        record = last_record(self._settings, topic)
        if record is None:
            if expected is None or newest_offset(self._settings, topic) > 0:
                return  # all of its records were deleted on purpose, by retention or reprocessing
            found = "nothing"
        else:
            output = OutputRecord(record.key, zlib.crc32(record.value or b""))
            if output == expected:
                return
            found = f"{_text(record.key)} at offset {record.offset}"
        wanted = "nothing" if expected is None else _text(expected.key)
        raise TopicChangedError(
            f"{topic} does not end as the {self.service} of {self._source} left it: the last record should "
            f"be {wanted}, and is {found}. Its end was lost, or somebody else has written to it. {_SECTION}"
        )

    def _check_input(self, topic: str, expected: InputRecord) -> None:
        if expected.offset < oldest_offset(self._settings, topic):
            return  # deleted after it was read
        with InputReader(self._settings, topic, f"millrace-{self.service}-{self._source}") as reader:
            if expected.offset < newest_offset(self._settings, topic):
                reader.seek(expected.offset)
                found = _first(reader)
                if found is not None and (found.offset, found.key) == (expected.offset, expected.key):
                    if -1 in (found.leader_epoch, expected.leader_epoch):
                        return
                    if found.leader_epoch == expected.leader_epoch:
                        return
                what = "nothing" if found is None else f"{_text(found.key)} at offset {found.offset}"
            else:
                what = "nothing: it ends before"
        raise TopicChangedError(
            f"{topic} no longer holds what the {self.service} of {self._source} has read: at offset "
            f"{expected.offset} there was {_text(expected.key)}, and there is {what}. Its end was lost and "
            f"written again, or it was restored from a copy. {_SECTION}"
        )


def _first(reader: InputReader) -> InputRecord | None:
    """Read one record; None where only ends of transactions lie there."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        if reader.read(1, 1.0):
            return reader.last
    return None


def _text(key: bytes | None) -> str:
    return "a record without key" if key is None else key.decode("ascii", "backslashreplace")

"""Whether the topics are still those that a service's state speaks of, and hold what they held.

A topic may have been deleted, deleted and created again, cut (by the election of a leader that lacked its
end) or restored from an older copy. A service that read or wrote on would lose or repeat records without a
sign. So its state has the ids of its topics, the last record that it read, and the last that it wrote: these
are compared when it starts, and again when brokers were lost while it runs; ids also now and then.

What a service has written last into its own topic is the last record there. Into others, such as that of dead
letters, another service may have written more since. There the state has an offset from which on the last
record of the service is looked for; it is moved to the topic's end now and then.

Topics of tables can be thousands. Of these the guard compares some at a time, and only those that were
written.

Settings that break a promise are looked for once a minute, on a thread of its own: a broker that does not
answer delays nothing.
"""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from itertools import islice
from typing import Final, Generic, TypeVar

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient

from millrace.avro.records import is_dead_letter_of
from millrace.avro.service_state import Continuity, InputRecord, LastWritten, WrittenRecord
from millrace.avro.snapshots import MERGED_KEY, SNAPSHOT_LOST, SnapshotMerged, SnapshotState
from millrace.contract import HEADER_CHUNK, Topics, is_of_rows
from millrace.kafka.errors import BrokerError
from millrace.kafka.input import InputReader
from millrace.kafka.read import held_offsets, latest_offsets, read_topic, record_of
from millrace.kafka.refusals import TopicsRefusedError
from millrace.kafka.search import last_before, last_since
from millrace.kafka.state import held_range, last_record, newest_offset, oldest_offset
from millrace.kafka.topics import another_topic, broken_topics, topic_ids
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import KafkaSettings
from millrace.stage import OutputRecord, Record

_LOG = get_logger(__name__)
_TIMEOUT_S: Final = 30.0
_LOOK_EVERY_S: Final = 10.0
_LOOK_TIMEOUT_S: Final = 5.0
_TABLES_AT_A_LOOK: Final = 100
_SETTINGS_EVERY_S: Final = 60.0
_SETTINGS_AT_A_LOOK: Final = 1000
_SECTION: Final = "docs/how-to/recover.md#a-topic-that-changed says what to do"


class TopicChangedError(UserError):
    """A topic is another one than before, or no longer holds what it held."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.DATA)


T = TypeVar("T")


class Periodic(Generic[T]):
    """Looks at something once a minute, on a thread of its own, so that nobody waits for it."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._pool = ThreadPoolExecutor(1, "topics")
        self._looked = time.monotonic()
        self._looking: Future[T] | None = None

    def found(self) -> T | None:
        """Return what a look has found that has ended since this was called last; begin one if it is due.

        A look that fails because brokers do not answer, or do not allow it, finds nothing.
        """
        if self._looking is None:
            if time.monotonic() - self._looked >= _SETTINGS_EVERY_S:
                self._looked = time.monotonic()
                self._looking = self._pool.submit(copy_context().run, self._look)
            return None
        if not self._looking.done():
            return None
        ended, self._looking = self._looking, None
        try:
            return ended.result()
        except StopRequestedError:
            return None
        except UserError as error:
            _LOG.warning("topics cannot be looked at", reason=error.message)
            return None


class SettingsGuard:
    """Raises :class:`BrokerError` soon after the settings of a topic have come to break a promise.

    ``topics`` maps a topic's name to its kind.
    """

    def __init__(self, admin: AdminClient, topics: Mapping[str, str]) -> None:
        self._broken = Periodic(lambda: broken_topics(admin, topics))

    def look(self) -> None:
        """Raise what was found in the background."""
        broken = self._broken.found()
        if broken:
            raise BrokerError(". ".join(broken.values()))


class ContinuityGuard:
    """Compares the topics of a service with what its state says of them."""

    def __init__(self, settings: KafkaSettings, admin: AdminClient, names: Topics, service: str) -> None:
        self.continuity = Continuity()
        """What is known by now; goes into the next state."""
        self.admin = admin
        self._settings = settings
        self._source = names.source
        self.service = service
        self.topics = names.of_service(service)
        self._looked = time.monotonic()
        self._state_topic = names.state
        self._watched = {**self.topics.kinds, names.state: "state"}
        if service != "reader":
            self._watched[names.avro] = "avro"
        if service == "rowmapper":
            self._watched[names.snapshot] = "snapshot"
        self._state_id: str | None = None
        # Of topics of tables that were written and not compared since, the ids; and those of which the
        # settings were not looked at since.
        self._written: dict[str, str] = {}
        self._unlooked: dict[str, None] = {}
        self._settings_of: Periodic[dict[str, str]] = Periodic(self._broken)
        self.also: Callable[[], None] = lambda: None
        """Looks at something else whenever settings are looked at, on the same thread."""
        # Of other topics of the service those where it has not written all chunks of its last record.
        self._unfinished: set[str] = set()

    def check_ids(self, stored: Continuity) -> None:
        """Compare the topics with those that a state belongs to; raises :class:`TopicChangedError`."""
        self.check_origin(stored)
        self._compare(stored.topics)

    def check_origin(self, stored: Continuity) -> None:
        """Raise :class:`UserError` where a state is one of reading what another source has captured."""
        kinds = {kind: name for name, kind in self.topics.kinds.items()}
        for name in stored.topics:
            source, _, kind = name.partition(".")
            if kind in ("raw", "catalog") and kinds.get(kind, name) != name:
                raise UserError(
                    f"the {self.service} of {self._source} has read {name} until now, and is to read "
                    f"{kinds[kind]}: set MILLRACE_INPUT_SOURCE={source}, or give what reads another source a "
                    "name of its own with MILLRACE_SOURCE",
                    ExitCode.SETTINGS,
                )

    def check_records(self, stored: Continuity) -> None:
        """Compare what the topics hold with what a state says of it; raises :class:`TopicChangedError`."""
        if stored.last_output is not None or stored.topics:
            self._check_output(stored.last_output)
        held = held_offsets(self.admin, dict.fromkeys(stored.others, 1))
        for topic, since in stored.others.items():
            self._check_other(topic, since, held[topic, 0])
        if stored.last_input is not None and self.topics.input is not None:
            last = stored.last_input
            others = (record for record in stored.inputs if record.offset != last.offset)
            self._check_input(self.topics.input, [last, *others])

    def check_again(self, last_input: InputRecord | None, timeout_s: float = _TIMEOUT_S) -> None:
        """Compare the topics with what is known by now, as at a start; raises what that raises.

        ``last_input`` is the last record that was read, if one was. All that the service has written must be
        committed. The brokers have ``timeout_s`` to be there.
        """
        known = self.continuity
        self._compare(self._ids, timeout_s)
        self.check_records(replace(known, last_input=last_input or known.last_input))

    def find_written(self) -> str | None:
        """Name a topic to which the service has written, even if that was deleted; None if there is none."""
        own = self.topics.own
        if oldest_offset(self._settings, own) > 0 or last_record(self._settings, own) is not None:
            return own
        others = self.topics.others
        return next((topic for topic in others if self._last_since(topic, 0) is not None), None)

    def begin(self, stored: Continuity | None) -> None:
        """Take note of the topics, which exist by now."""
        known, names = stored or Continuity(), [*self.topics.kinds, self._state_topic]
        ids = topic_ids(self.admin, names)
        self._state_id = ids.pop(self._state_topic, None)
        self.continuity = replace(known, topics=ids)
        self._move_on()

    def adopt(self, input_end: int = 0) -> Continuity:
        """Return what the topics are and end with now, for a state that is written on purpose.

        ``input_end`` is the offset in the input before which all was read.
        """
        self.begin(None)
        if self.topics.input is not None:
            read = last_before(self._settings, self.topics.input, input_end)
            if read is not None:
                self.note(InputRecord(read.offset, read.key), {})
        own = self.topics.own
        last = last_record(self._settings, own) if own in self.continuity.topics else None
        if last is not None:
            self.note(None, {own: (last.key, last.value, last.timestamp_ms, last.headers)})
        return self.continuity

    def note(
        self,
        last_input: InputRecord | None,
        last_outputs: Mapping[str, OutputRecord],
        inputs: tuple[InputRecord, ...] | None = None,
    ) -> None:
        """Take note of the last record read, the last ones written, and those at offsets of the state."""
        known = self.continuity
        output, others = known.last_output, dict(known.others)
        for topic, (key, value, _, headers) in last_outputs.items():
            written = WrittenRecord(key, zlib.crc32(value or b""))
            if topic == self.topics.own:
                output = written
            else:
                others[topic] = LastWritten(others.get(topic, LastWritten(0)).offset, written)
                index, _, count = dict(headers or ()).get(HEADER_CHUNK, b"0/1").partition(b"/")
                self._note_whole(topic, is_whole=int(index) + 1 == int(count))
        self.continuity = Continuity(
            known.topics,
            last_input or known.last_input,
            known.inputs if inputs is None else inputs,
            output,
            others,
        )

    def _note_whole(self, topic: str, *, is_whole: bool) -> None:
        if is_whole:
            self._unfinished.discard(topic)
        else:
            self._unfinished.add(topic)

    def _move_on(self) -> None:
        """Take note of the ends of other topics, where all that the service has written is committed."""
        there = [name for name in self.topics.others if name in self.continuity.topics]
        whole = [TopicPartition(name, 0) for name in there if name not in self._unfinished]
        ends = latest_offsets(self.admin, whole, IsolationLevel.READ_UNCOMMITTED) if whole else {}
        moved = {partition.topic: LastWritten(end) for partition, end in ends.items()}
        self.continuity = replace(self.continuity, others={**self.continuity.others, **moved})

    def wrote(self, ids: Mapping[str, str]) -> None:
        """Take note that topics of tables were written, by name and the id that each should have."""
        self._written.update(ids)
        self._unlooked.update(dict.fromkeys(ids))

    def look(self, *, now: bool = False) -> None:
        """Compare the ids of the topics if that was not done for a while, or ``now``, then of all.

        Unless it is ``now``, all that the service has written must be committed. Raises
        :class:`TopicChangedError` for one of the service's own, :class:`BrokerError` where its settings break
        a promise, :class:`TopicsRefusedError` for those of tables. Where brokers do not answer, the next look
        tells: whoever writes or reads says so.
        """
        self._raise_broken()
        if now or time.monotonic() - self._looked >= _LOOK_EVERY_S:
            with suppress(BrokerError):
                self._compare(self._ids, _LOOK_TIMEOUT_S)
                if not now:
                    self._move_on()
            changed = self._changed_tables(len(self._written) if now else _TABLES_AT_A_LOOK)
            self._looked = time.monotonic()
            if changed:
                raise TopicsRefusedError(changed)

    @property
    def _ids(self) -> dict[str, str]:
        """The ids that the service's topics and that of the states should have."""
        state = {} if self._state_id is None else {self._state_topic: self._state_id}
        return {**self.continuity.topics, **state}

    def _raise_broken(self) -> None:
        broken = self._settings_of.found() or {}
        tables = {name: broken.pop(name) for name in [*broken] if is_of_rows(name)}
        if broken:
            raise BrokerError(". ".join(broken.values()))
        if tables:
            raise TopicsRefusedError(tables)

    def _broken(self) -> dict[str, str]:
        """Look at the settings of the service's topics and of those of tables that were written."""
        self.also()
        tables = list(self._unlooked)[:_SETTINGS_AT_A_LOOK]
        for name in tables:
            self._unlooked.pop(name, None)
        return broken_topics(self.admin, {**self._watched, **dict.fromkeys(tables, "table")})

    def check_settings(self) -> None:
        """Raise :class:`BrokerError` where the settings of a topic that exists break a promise."""
        broken = broken_topics(self.admin, self._watched)
        if broken:
            raise BrokerError(". ".join(broken.values()))

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

    def _check_output(self, expected: WrittenRecord | None) -> None:
        topic = self.topics.own
        record = last_record(self._settings, topic)
        if record is None:
            if expected is None or oldest_offset(self._settings, topic) > 0:
                return  # all of its records were deleted on purpose, by retention or reprocessing
            found = "nothing"
        else:
            output = WrittenRecord(record.key, zlib.crc32(record.value or b""))
            if output == expected:
                return
            found = f"{_text(record.key)} at offset {record.offset}"
        wanted = "nothing" if expected is None else _text(expected.key)
        raise TopicChangedError(
            f"{topic} does not end as the {self.service} of {self._source} left it: the last record should "
            f"be {wanted}, and is {found}. Its end was lost, or something else has written to it. {_SECTION}"
        )

    def _check_other(self, topic: str, expected: LastWritten, held: range) -> None:
        if held.stop == expected.offset and expected.last_output is None:
            return
        found = self._last_since(topic, expected.offset)
        if found is not None:
            record, is_whole = found
            self._note_whole(topic, is_whole=is_whole)
            if WrittenRecord(record.key, zlib.crc32(record.value or b"")) == expected.last_output:
                return
            what = f"{_text(record.key)} at offset {record.offset}"
        else:
            is_deleted = held.start > expected.offset  # by retention
            if held.stop >= expected.offset and (expected.last_output is None or is_deleted):
                return
            what = "nothing"
        last = expected.last_output
        raise TopicChangedError(
            f"{topic} does not end as the {self.service} of {self._source} left it: the last record that it "
            f"has written from offset {expected.offset} on should be "
            f"{'nothing' if last is None else _text(last.key)}, and is {what}. The end of {topic} or of the "
            f"state was lost. {_SECTION}"
        )

    def _last_since(self, topic: str, offset: int) -> tuple[Record, bool] | None:
        """Find the last record that the service has written to another topic from an offset on."""

        def is_ours(record: Record) -> bool:
            return is_dead_letter_of(self.service, record.value)

        shared = self.topics.kinds[topic] == "deadletter"
        return last_since(self._settings, topic, offset, is_ours if shared else lambda _: True)

    def _check_input(self, topic: str, expected: Sequence[InputRecord]) -> None:
        """Compare records of the input; the epochs of leaders too, where they are known."""
        oldest, newest = oldest_offset(self._settings, topic), newest_offset(self._settings, topic)
        with InputReader(self._settings, topic, f"millrace-{self.service}-{self._source}") as reader:
            for record in expected:
                if record.offset < oldest:
                    continue  # deleted after it was read
                if record.offset >= newest:
                    raise self._input_changed(topic, record, "nothing: it ends before")
                reader.seek(record.offset)
                found = _first(reader)
                if found is None:
                    raise self._input_changed(topic, record, "nothing")
                dated = -1 not in (found.leader_epoch, record.leader_epoch)
                if (found.offset, found.key) != (record.offset, record.key) or (
                    dated and found.leader_epoch != record.leader_epoch
                ):
                    what = f"{_text(found.key)} at offset {found.offset}"
                    raise self._input_changed(topic, record, what)

    def _input_changed(self, topic: str, expected: InputRecord, what: str) -> TopicChangedError:
        return TopicChangedError(
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


def snapshot_loss(settings: KafkaSettings, admin: AdminClient, topics: Topics) -> str | None:
    """Say why rows of a snapshot were deleted before they were merged; None where none were."""
    noted, merged, rows = "", SnapshotMerged("", 0), 0
    if topics.state not in topic_ids(admin, [topics.state]):
        return None
    for record in map(record_of, read_topic(settings, topics.state, undecided=False)):
        value = record.value or b""
        if record.key == SNAPSHOT_LOST:
            noted = value.decode()
        elif record.key == MERGED_KEY and value:
            merged = SnapshotMerged.from_bytes(value)
        elif record.key == b"snapshot" and value:
            rows = SnapshotState.from_bytes(value).rows
    if noted:
        return noted
    found = topic_ids(admin, [topics.snapshot]).get(topics.snapshot)
    held = range(0) if found is None else held_range(settings, topics.snapshot)
    return lost_of_snapshot(topics.snapshot, found, held, merged, has_rows=rows > 0)


def lost_of_snapshot(
    topic: str, found: str | None, held: range, merged: SnapshotMerged, *, has_rows: bool
) -> str | None:
    """Say what is lost of a snapshot topic whose id is ``found``, which was ``merged`` so far; or None.

    ``has_rows`` tells whether a snapshot has written rows to it.
    """
    is_new = found != merged.topic_id if merged.topic_id else has_rows and not held.stop
    if is_new:
        what = "is gone" if found is None else "was deleted and created again"
        return f"{topic} {what}: rows of a snapshot that the row mapper had not merged are lost"
    # The end of the last Kafka transaction that was merged takes an offset as well.
    if held.start > merged.offset + (not held):
        return (
            f"records {merged.offset} to {held.start - 1} of {topic} were deleted before the row mapper "
            "merged them: rows of a snapshot are lost"
        )
    return None

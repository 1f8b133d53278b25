"""Access to Kafka for merging snapshots, and the stage that maps events a second time for it."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from millrace.avro.events import EventDeserializer, EventRecord
from millrace.avro.service_state import DecoderState, ReaderState, RowMapperState
from millrace.avro.snapshots import MERGED_KEY, SnapshotMerged
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import XidEvent
from millrace.contract import HEADER_CHUNK, EventKey, SourcePosition, Topics
from millrace.kafka.client import AdminClient
from millrace.kafka.continuity import lost_of_snapshot
from millrace.kafka.errors import BrokerError, InputLostError
from millrace.kafka.input import InputReader
from millrace.kafka.read import read_topic, record_of
from millrace.kafka.search import first_reaching, last_before, records_between
from millrace.kafka.state import (
    decoded_state,
    held_range,
    last_record,
    last_records,
    newest_offset,
    oldest_offset,
)
from millrace.kafka.topics import topic_ids
from millrace.rowmapper.binding import Binder
from millrace.rowmapper.event_reader import EventReader
from millrace.rowmapper.known_rows import KnownRows, Name, ReplayedRows
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.snapshots import (
    ChangedKeys,
    Changes,
    SnapshotLostError,
    SnapshotMerger,
    Statements,
)
from millrace.rowmapper.stage import Replay, RowMapperStage
from millrace.rowmapper.transaction_output import OutputFormat, Sink
from millrace.runtime.health import Health
from millrace.runtime.logging import get_logger
from millrace.runtime.settings import KafkaSettings
from millrace.stage import Output, Record

if TYPE_CHECKING:
    from millrace.avro.records import RecordSerializer

_LOG = get_logger(__name__)
_LOOK_EVERY_S: Final = 2.0
_SCAN_EVERY_S: Final = 0.5
_QUIET_EVERY_S: Final = 2.0
_COMPARE_EVERY_S: Final = 10.0
_WAIT_S: Final = 0.1
_BATCH: Final = 4
_EVENTS: Final = 500


class SnapshotTopic:
    """The snapshot topic, once there is one, and places in the events topic.

    ``has_rows`` tells whether a snapshot has written rows to it.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        admin: AdminClient,
        topics: Topics,
        deserialize: EventDeserializer,
        leave: ExitStack,
        *,
        merged: SnapshotMerged,
        health: Health,
        has_rows: bool = False,
        before_reading: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic_id = ""
        self._before_reading = before_reading
        self._settings = settings
        self._admin = admin
        self._topics = topics
        self._group = f"millrace-rowmapper-{topics.source}"
        self._deserialize = deserialize
        self._health = health
        self._reader: InputReader | None = None
        self._has_rows = has_rows
        self._look_at = self._scan_at = self._quiet_at = self._compare_at = 0.0
        self.merged = merged
        """How far an earlier process has merged the topic."""
        leave.callback(self._let_go)

    def read(self, offset: int, *, wait: bool) -> Sequence[Record]:
        """Return some records that have come; of another topic than before, from its beginning.

        Raises :class:`SnapshotLostError` once where some were deleted before they were merged.
        """
        try:
            self._look_again()
            if self._reader is None:
                self._reader = self._open(offset)
            if self._reader is None:
                return ()
            return self._reader.read(_BATCH, _WAIT_S if wait else 0)
        except (BrokerError, InputLostError) as error:
            _LOG.warning("the snapshot topic cannot be read at the moment", reason=error.message)
            self._let_go()
            return ()

    def _open(self, offset: int) -> InputReader | None:
        now = time.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + _LOOK_EVERY_S
        topic, known = self._topics.snapshot, self.topic_id or self.merged.topic_id
        found = topic_ids(self._admin, [topic]).get(topic)
        held = range(0) if found is None else held_range(self._settings, topic)
        has_rows, self._has_rows = self._has_rows and not known, False
        merged = SnapshotMerged(known, offset)
        lost = lost_of_snapshot(topic, found, held, merged, has_rows=has_rows)
        if lost is not None:
            # Or a snapshot of the same tables was begun since: where it begins is noted.
            again = self._noted_merged()
            if again.topic_id == found and again.offset >= held.start:
                merged, lost = again, None
        begins = merged.offset if found == merged.topic_id else 0
        self.topic_id, self.merged = found or "", SnapshotMerged(found or "", max(begins, held.start))
        if lost is not None:
            _LOG.error("rows of a snapshot are lost", reason=lost, advice="millrace snapshot --restart")
            self._health.set_loss(topic, lost)
            raise SnapshotLostError(lost, self.topic_id, self.merged.offset)
        if found is None:
            return None
        reader = InputReader(self._settings, topic, self._group)
        try:
            reader.seek(self.merged.offset)
        except BaseException:
            reader.close()
            raise
        return reader

    def _noted_merged(self) -> SnapshotMerged:
        value = noted(self._settings, self._topics, MERGED_KEY)
        return SnapshotMerged("", 0) if value is None else SnapshotMerged.from_bytes(value)

    def _look_again(self) -> None:
        """Look whether it is still the same topic."""
        now = time.monotonic()
        if now < self._compare_at:
            return
        self._compare_at = now + _COMPARE_EVERY_S
        topic = self._topics.snapshot
        if self._reader is not None and topic_ids(self._admin, [topic]).get(topic) != self.topic_id:
            self._let_go()

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def records(self, start: int) -> Iterator[Record]:
        """Yield the records of the topic from an offset on; none where they were given a moment ago."""
        if time.monotonic() >= self._scan_at:
            yield from map(record_of, read_topic(self._settings, self._topics.snapshot, start=start))
            self._scan_at = time.monotonic() + _SCAN_EVERY_S

    def first_event(self, place: SourcePosition) -> tuple[int, SourcePosition | None]:
        """Search the events topic by halves."""
        self._before_reading()
        settings, topic = self._settings, self._topics.events

        def reached(record: Record) -> bool:
            found = _start_of(record)
            return found is not None and found.order() >= place.order()

        ends = range(oldest_offset(settings, topic), newest_offset(settings, topic))
        offset = first_reaching(settings, topic, ends, reached)
        found = next(records_between(settings, topic, offset, ends.stop), None)
        return offset, None if found is None else _start_of(found)

    def quiet_end(self, offset: int) -> SourcePosition | None:
        """Ask the states of reader and decoder."""
        now = time.monotonic()
        if now < self._quiet_at:
            return None
        self._quiet_at = now + _QUIET_EVERY_S
        self._before_reading()
        settings, topics = self._settings, self._topics
        reader = decoded_state(settings, topics.origin, "reader", ReaderState, undecided=False)
        last = last_record(settings, topics.raw)
        decoder = decoded_state(settings, topics.source, "decoder", DecoderState, undecided=False)
        if reader is None or decoder is None or (last is not None and decoder.place_to_read <= last.offset):
            return None
        last = last_record(settings, topics.events)
        if last is not None and last.offset >= offset:
            return None
        return reader.place

    def end_before(self, offset: int) -> SourcePosition | None:
        """Read the last records before an offset."""
        return end_before(self._settings, self._topics.events, self._deserialize, offset)


def noted(settings: KafkaSettings, topics: Topics, key: bytes) -> bytes | None:
    """Read what is committed in the state topic under a key; nothing that is open is waited for."""
    at = topics.state, 0
    found = last_records(settings, {at[0]: 1}, lambda record: record.key == key, undecided=False)
    return found[at].value if found else None


def _start_of(record: Record) -> SourcePosition | None:
    try:
        key = EventKey.parse(record.key or b"")
    except ValueError:
        return None
    return SourcePosition(key.epoch, key.log_file, key.position)


def end_before(
    settings: KafkaSettings, events: str, deserialize: EventDeserializer, offset: int
) -> SourcePosition | None:
    """Say where the last event before an offset of the events topic ends; None where there is none."""

    def first_of(key: bytes, offset: int) -> Record | None:
        return last_before(
            settings, events, offset, lambda record: record.key == key and _chunk(record)[0] == 0
        )

    last = last_before(settings, events, offset)
    return None if last is None else end_of(deserialize, last, first_of)


def _chunk(record: Record) -> tuple[int, int]:
    """Say which chunk a record is, from 0, and of how many."""
    index, count = dict(record.headers or ()).get(HEADER_CHUNK, b"0/1").split(b"/")
    return int(index), int(count)


def end_of(
    deserialize: EventDeserializer,
    record: Record,
    first_of: Callable[[bytes, int], Record | None] = lambda _key, _offset: None,
) -> SourcePosition | None:
    """Say where an event ends, of which this is the last record; where that does not show, where it starts.

    Inside a transaction payload only the last event, XID, is known to end with it. ``first_of`` finds the
    first record of an event, by its key and an offset before which it is.
    """
    start = _start_of(record)
    if start is None:
        return None
    index, count = _chunk(record)
    if index + 1 < count:
        return start  # the rest of it is not there
    event = _beginning(deserialize, record if index == 0 else first_of(record.key or b"", record.offset))
    if event is not None and event.sub_index and isinstance(event.event, XidEvent):
        key = replace(EventKey.parse(record.key or b""), sub_index=0)
        event = _beginning(deserialize, first_of(key.encode(), record.offset))
    if event is None or event.sub_index or event.artificial:
        return start  # an artificial one is in no file, and takes no room there
    return start._replace(position=start.position + event.header.event_size)


def _beginning(deserialize: EventDeserializer, record: Record | None) -> EventRecord | None:
    """Read an event from its first record, as far as that goes."""
    try:
        if record is None or _chunk(record)[1] == 1:
            return None if record is None else deserialize(record.value or b"")
        begun = deserialize.beginning(record.value or b"")
    except (BinlogError, ValueError):
        return None
    return None if begun is None else begun[0]


def merger_of(
    sink: Sink,
    output_format: OutputFormat,
    binder: Binder,
    port: SnapshotTopic,
    *,
    quarantine: Quarantine,
    known: KnownRows,
    reader: Callable[[], EventReader],
    replay: Replay,
    records: Callable[[int, int], Iterator[Record]],
    first_offset: Callable[[], int],
    deserialize: Callable[[bytes], Any],
    buffer_bytes: int,
) -> SnapshotMerger:
    """Make what merges snapshots into what a stage publishes; ``records`` reads events a second time.

    ``deserialize`` decodes keys and values of row topics.
    """

    def find_changes(
        state: RowMapperState,
        start: int,
        wanted: Mapping[str, ChangedKeys],
        rows: Mapping[Name, Mapping[bytes, bytes]],
    ) -> Changes:
        stop = state.input_offset
        while True:
            changes = Changes(rows=ReplayedRows(rows) if rows else None)
            scratch = RowMapperStage(
                RowMapperState(
                    start,
                    server_version=state.server_version,
                    pending_xa=state.pending_xa,
                    quarantined=state.quarantined,
                    temporary=state.temporary,
                ),
                replace(sink, output=Output(), counters=Counter()),
                replace(
                    output_format,
                    serialize_ddl=cast("RecordSerializer", Statements(changes)),
                    include_query=False,
                ),
                binder,
                reader(),
                replay=replay,
                buffer_bytes=buffer_bytes,
                known=changes.rows,
            )
            _note_keys(scratch, records(start, stop), wanted, changes)
            first = first_offset()
            if not scratch.unknown_xa or start <= first:
                return changes
            start = max(first, start - 4 * (stop - start) - _EVENTS)

    return SnapshotMerger(
        sink,
        binder,
        port,
        port.merged,
        quarantine=quarantine,
        known=known,
        find_changes=find_changes,
        deserialize=deserialize,
    )


def _note_keys(
    scratch: RowMapperStage, records: Iterator[Record], wanted: Mapping[str, ChangedKeys], changes: Changes
) -> None:
    batch: list[Record] = []

    def take() -> None:
        for _ in scratch.take(batch):
            for (topic, _partition), written in scratch.output.groups.items():
                keys = wanted.get(topic)
                if keys is not None:
                    keys.note(written)
            scratch.output.clear()
            if changes.rows is not None:
                changes.rows.settle()
        batch.clear()

    for record in records:
        batch.append(record)
        if len(batch) == _EVENTS:
            take()
    if batch:
        take()

"""Rows of snapshots, merged into the row topics once the stream has reached their position.

A chunk of ``{source}.snapshot`` holds rows as they were at some moment between two positions of the log, low
and high. It waits until the stream has been published up to the high one: then the row topics have every
change that the rows may contain. Rows whose key the stream has changed since the low position are left out:
the published row is as new or newer, and a deleted row must not reappear. All others have not changed since,
and are published with ``op`` r. So no row goes back in time, and none is missing.

If the stream has changed a row with minimal images, the topic has only their columns. If images are
completed (:mod:`millrace.rowmapper.known_rows`), these changes are applied to the row of the chunk, which
gives the row at the stream's position. It is published if the stream did not know the complete row.

Changed keys are not recorded while rows are mapped, so without a snapshot this costs nothing: the events
since the low position are mapped a second time, for their keys alone. The stream may have passed the high
position by then; the events up to its position count as well.

A table without a key is read in one transaction, so the stream's changes and the snapshot's rows add up in
any order. Its records wait until the last of them has arrived.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, Final, Protocol

from millrace.avro.registry import without_prefix
from millrace.avro.row_records import EventMetadata, RowsEventWriter
from millrace.avro.row_records import Record as RowRecord
from millrace.avro.service_state import RowMapperState
from millrace.avro.single_object import SingleObjectError
from millrace.avro.snapshots import MERGED_KEY, SNAPSHOT_LOST, SnapshotChunk, SnapshotMerged
from millrace.binlog.errors import BinlogError, MissingStateError
from millrace.binlog.events import TableMapEvent
from millrace.binlog.events.rows import WriteRowsEvent
from millrace.contract import HEADER_CHUNK, SourcePosition
from millrace.kafka.chunks import ChunkError, ChunkJoiner
from millrace.rowmapper.binding import BoundTable
from millrace.rowmapper.known_rows import Name, ReplayedRows, RowLayout
from millrace.rowmapper.non_row_changes import TEMPORARY
from millrace.rowmapper.partition import partitions_of
from millrace.rowmapper.publication import Publisher
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.logging import get_logger
from millrace.stage import Output, OutputRecord, Record, Target

_LOG = get_logger(__name__)
_AT_ONCE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of chunks that are merged together, so that the events since their low places are read once."""

_CRUMBS: Final = 10_000
_TABLE_MAP_HEADER: Final = 8
_REPLACES: Final = re.compile(r"(?i)\s*CREATE\s+OR\s+REPLACE\s+(TABLE|DATABASE|SCHEMA)\b")
"""MariaDB's: what was there is dropped."""


class SnapshotLostError(Exception):
    """Rows of a snapshot were deleted before they were merged; the topic is read from ``begins`` on."""

    def __init__(self, reason: str, topic_id: str, begins: int) -> None:
        super().__init__(reason)
        self.topic_id = topic_id
        self.begins = begins


class SnapshotPort(Protocol):
    """What merging asks of Kafka."""

    def read(self, offset: int, *, wait: bool) -> Sequence[Record]:
        """Give some records of the snapshot topic from an offset on; none where it has none by now.

        With ``wait``, none where it has none for a moment longer. Raises :class:`SnapshotLostError`.
        """

    def records(self, start: int) -> Iterator[Record]:
        """Give the records of the snapshot topic from an offset to its end."""

    def first_event(self, place: SourcePosition) -> tuple[int, SourcePosition | None]:
        """Give offset and place of the first event at a place or after it; the end and None if none is."""

    def end_before(self, offset: int) -> SourcePosition | None:
        """Give the end of the last event before an offset of the events topic."""

    def quiet_end(self, offset: int) -> SourcePosition | None:
        """Give the place to which the reader has come, if all of it is before an offset of the events topic.

        None as well where that was asked a moment ago.
        """

    @property
    def topic_id(self) -> str:
        """Kafka's id of the snapshot topic."""


@dataclass(slots=True)
class Changes:
    """What the stream has changed: ``keys`` by topic, of those asked for, and tables that it emptied.

    ``keyless`` are topics to which it wrote records without a key. ``touched`` are the tables and
    databases that statements name, "" for what is not known. ``rows`` are those of the snapshot with these
    changes.
    """

    keys: dict[str, set[bytes]]
    emptied: set[str] = field(default_factory=set)
    keyless: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    rows: ReplayedRows | None = None


FindChanges = Callable[
    [RowMapperState, int, Mapping[str, set[bytes]], Mapping[Name, Mapping[bytes, bytes]]], Changes
]
"""Maps the events before a state from an offset on, for the keys of some topics, and for rows of tables."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk, with the offset of its first record and of the record after its last."""

    offset: int
    next_offset: int
    content: SnapshotChunk

    @property
    def low(self) -> SourcePosition:
        content = self.content
        return SourcePosition(content.epoch, content.low_file, content.low_position)

    @property
    def high(self) -> SourcePosition:
        content = self.content
        return SourcePosition(content.epoch, content.high_file, content.high_position)


@dataclass(frozen=True, slots=True)
class _Mapped:
    """The rows of a chunk, ready to be written."""

    chunk: _Chunk
    bound: BoundTable
    records: Sequence[RowRecord]
    layout: RowLayout | None
    """How the rows are known again; None where they are not to complete others."""


class SnapshotMerger:
    """Takes chunks in their order and publishes each once the stream has reached its high position.

    ``find_changes`` says which keys the stream has changed.
    """

    def __init__(
        self, publisher: Publisher, port: SnapshotPort, merged: SnapshotMerged, find_changes: FindChanges
    ) -> None:
        self.merged = merged
        self._publisher = publisher
        self._port = port
        self._find_changes = find_changes
        self._waiting: deque[_Chunk] = deque()
        self._joiner = ChunkJoiner()
        self._read_to = merged.offset
        # Offsets of chunks of tables without a key that were read again from their beginning.
        self._begun_again: set[int] = set()
        # Where transactions ended, and the offset after each; only while a snapshot is taken.
        self._crumbs: deque[tuple[SourcePosition, int]] = deque(maxlen=_CRUMBS)
        # Where the log was known to have nothing more, or only what is no event.
        self._quiet: SourcePosition | None = None

    def merge(
        self, state: Callable[[], RowMapperState], end: Callable[[], SourcePosition | None], *, idle: bool
    ) -> Iterator[None]:
        """Publish what can be: no transaction is open, and all events before ``state`` are published.

        ``end`` gives the end of the last of them, if that is known; ``idle`` says that no event waits to be
        taken. Yields as a stage does.
        """
        if not self._waiting and not self._fetch():
            return
        place, stand = self._further(end()), state().input_offset
        if idle and (place is None or not self._is_due(self._waiting[0], place)):
            self._quiet = self._port.quiet_end(stand) or self._quiet
            place = self._further(place)
        if place is None:
            return
        if not self._crumbs or self._crumbs[-1][1] != stand:
            self._crumbs.append((place, stand))
        while self._waiting or self._fetch(wait=idle):
            batch, size = [], 0
            while (self._waiting or self._fetch()) and size < _AT_ONCE_BYTES:
                if not self._is_due(self._waiting[0], place):
                    break
                batch.append(self._waiting.popleft())
                size += len(batch[-1].content.rows)
            if not batch:
                return
            self._publish(batch, state(), place)
            yield

    def _further(self, place: SourcePosition | None) -> SourcePosition | None:
        """Give a place, or that of a quiet log where the stream has come further than to the place."""
        quiet = self._quiet
        if place is None or quiet is None:
            return place or quiet
        return quiet if quiet.order() > place.order() else place

    # -- reading --------------------------------------------------------------------------------------

    def _fetch(self, *, wait: bool = False) -> bool:
        """Take the new records of the snapshot topic; tell whether a chunk waits."""
        while not self._waiting:
            try:
                records = self._port.read(self._read_to, wait=wait)
            except SnapshotLostError as lost:
                self._note(lost)
                return False
            if not records:
                return False
            if self.merged.topic_id != self._port.topic_id:
                self.merged = SnapshotMerged(self._port.topic_id, 0)
            for record in records:
                self._read_to = record.offset + 1
                chunk = self._chunk_of(record, self._joiner)
                if chunk is not None:
                    self._waiting.append(chunk)
        return True

    def _note(self, lost: SnapshotLostError) -> None:
        """Write that rows of a snapshot are lost, and where the topic begins now."""
        publisher, now_ms = self._publisher, self._publisher.now_us() // 1000
        self._read_to = lost.begins
        self._joiner.reset()
        self.merged = SnapshotMerged(lost.topic_id, lost.begins)
        state = publisher.topics.state
        publisher.output.add(state, MERGED_KEY, self.merged.to_bytes(), now_ms)
        if not publisher.topics.reads_another:
            publisher.output.add(state, SNAPSHOT_LOST, str(lost).encode(), now_ms)

    def _chunk_of(self, record: Record, joiner: ChunkJoiner) -> _Chunk | None:
        header, value, first = (
            dict(record.headers or ()).get(HEADER_CHUNK),
            record.value or b"",
            record.offset,
        )
        try:
            if header is not None:
                if header.startswith(b"0/"):
                    joiner.reset()
                whole = joiner.feed(record.key or b"", header, value, record.offset)
                if whole is None:
                    return None
                value = whole
            return _Chunk(first, record.offset + 1, SnapshotChunk.from_bytes(value))
        except (SingleObjectError, ChunkError) as error:
            _LOG.error(
                "a record of the snapshot topic cannot be read and is left out",
                offset=record.offset,
                reason=str(error),
            )
            return None

    # -- when -----------------------------------------------------------------------------------------

    def _is_due(self, chunk: _Chunk, place: SourcePosition) -> bool:
        """Tell whether the stream has reached a chunk's position, and all of its table has arrived."""
        if place.epoch == chunk.high.epoch:
            if place.order() < chunk.high.order():
                return False
        elif place.epoch < chunk.high.epoch:
            return False
        return chunk.content.keyed or self._is_whole(chunk)

    def _is_whole(self, chunk: _Chunk) -> bool:
        """Tell whether all records of a table without a key are there, or others in their place."""
        if chunk.offset < self.merged.whole_until:
            return True
        content, joiner, part = chunk.content, ChunkJoiner(), chunk.content.part
        for record in self._port.records(chunk.offset):
            other = self._chunk_of(record, joiner)
            if other is None:
                continue
            if (other.content.database, other.content.table) != (content.database, content.table):
                continue
            if other.offset > chunk.offset and other.content.part <= part:
                self._begun_again.add(chunk.offset)
                return True
            part = other.content.part
            if other.content.last:
                self.merged = replace(self.merged, whole_until=other.next_offset)
                return True
        return False

    def _check_reached(self, chunk: _Chunk) -> None:
        """Raise MissingStateError if a log has ended before a chunk's position."""
        high = chunk.high
        offset, found = self._port.first_event(high)
        if found is not None and found.epoch == high.epoch:
            return
        before = self._port.end_before(offset)
        if before is None or before.epoch != high.epoch or before.order() < high.order():
            raise MissingStateError("the log to which its rows belong ended before their position")

    # -- publishing -----------------------------------------------------------------------------------

    def _publish(self, chunks: Sequence[_Chunk], state: RowMapperState, place: SourcePosition) -> None:
        """Write the rows of chunks, and that they are merged."""
        mapped, refused = [], 0
        for chunk in chunks:
            content = chunk.content
            if chunk.offset in self._begun_again:
                self._begun_again.remove(chunk.offset)
                continue
            try:
                if place.epoch > content.epoch:
                    self._check_reached(chunk)
                selects = self._publisher.binder.selection.selects
                if content.count and selects(content.database, content.table):
                    mapped.append(self._mapped(chunk))
            except (UserError, StopRequestedError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever one table raises is its own trouble
                refused += 1
                _log_left_out(chunk, error.message if isinstance(error, BinlogError) else repr(error))
        changes = self._changes(mapped, state)
        rows = dropped = 0
        for one in mapped:
            if _is_undecided(one, changes):
                refused += 1
                _log_left_out(
                    one.chunk,
                    "its records have no key (MILLRACE_ROWS_KEYS), so that rows which changed as they were "
                    "read would count twice",
                )
                continue
            unchanged = self._unchanged(one, changes)
            records = [*compress(one.records, unchanged), *self._learn(one, unchanged, changes)]
            self._put(one, records)
            rows += len(records)
            dropped += len(one.records) - len(records)
        merged = self.merged
        self.merged = replace(
            merged,
            offset=chunks[-1].next_offset,
            rows=merged.rows + rows,
            dropped=merged.dropped + dropped,
            refused=merged.refused + refused,
        )
        publisher = self._publisher
        publisher.output.add(
            publisher.topics.state, MERGED_KEY, self.merged.to_bytes(), chunks[-1].content.read_ms
        )

    def _mapped(self, chunk: _Chunk) -> _Mapped:
        """Map the rows of a chunk, as those of an insert; raises BinlogError."""
        content, publisher = chunk.content, self._publisher
        if (content.database, content.table) in publisher.quarantine:
            raise MissingStateError(
                "the table is quarantined or paused: its older rows, redriven later, would undo these"
            )
        table_map = TableMapEvent.decode_fields(
            content.table_map, 0, len(content.table_map), _TABLE_MAP_HEADER
        )
        bound = publisher.binder.bind(table_map, chunk.high, content.server_version)
        count = table_map.column_count
        present = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
        records = self._records(chunk, bound, present, content.rows)
        return _Mapped(chunk, bound, records, self._layout(chunk, table_map, bound))

    def _records(
        self, chunk: _Chunk, bound: BoundTable, present: bytes, rows: bytes, first: int = 0
    ) -> Sequence[RowRecord]:
        """Write rows of a chunk, the one at ``first`` and those after it, as those of an insert."""
        content, publisher = chunk.content, self._publisher
        event = WriteRowsEvent(0, 1, b"", len(bound.table.columns), b"", present, rows)
        place = EventMetadata(
            content.read_ms * 1000,
            0,
            None,
            content.high_file,
            content.high_position,
            content.epoch,
            -1 - chunk.offset,
            None,
            None,
            bound.schema_source,
            publisher.now_us(),
            f"snapshot-{content.snapshot}",
            1,
            1,
            b"snapshot:%d" % chunk.offset,
            snapshot="incremental" if content.keyed else "true",
        )

        def locate(row: int, side: int, ordinal: int) -> tuple[int, int]:
            return bound.locate(event, row, side, ordinal)

        records: list[tuple[bytes | None, bytes]] = []
        writer = RowsEventWriter(bound.encoder, place, b"", present, locate, records=records, first=first)
        bound.write(event, writer)
        return records

    def _layout(self, chunk: _Chunk, table_map: TableMapEvent, bound: BoundTable) -> RowLayout | None:
        """Say how rows are known again; None where they are not to complete others.

        They can where each change of each row is published, under its own key.
        """
        known, content, binder = self._publisher.known, chunk.content, self._publisher.binder
        name = content.database, content.table
        if known is None or not known.concerns(*name) or not binder.selection.is_published_whole(*name):
            return None
        layout = binder.layout(table_map, chunk.high, content.server_version)
        if layout is None or layout.key != tuple(column.ordinal for column in bound.table.key_columns):
            return None
        return layout

    def _changes(self, mapped: Sequence[_Mapped], state: RowMapperState) -> Changes:
        """Find what the stream has changed since the low places of chunks."""
        keyed = [one for one in mapped if one.chunk.content.keyed]
        if not keyed:
            return Changes({})
        start = self._offset_of(min((one.chunk.low for one in keyed), key=SourcePosition.order))
        if start >= state.input_offset:
            return Changes({})
        wanted: dict[str, set[bytes]] = {}
        for one in keyed:
            keys = wanted.setdefault(one.bound.topic, set())
            keys.update(without_prefix(key) for key, _ in one.records if key is not None)
        rows: dict[Name, dict[bytes, bytes]] = {}
        for one in keyed:
            if one.layout is not None:
                of_table = rows.setdefault(one.layout.name, {})
                for image in one.layout.whole(one.chunk.content.rows):
                    of_table[one.layout.key_of(image) or b""] = one.layout.stored(image)
        return self._find_changes(state, start, wanted, rows)

    def _offset_of(self, low: SourcePosition) -> int:
        """Give an offset before which all events are before a place."""
        for place, offset in reversed(self._crumbs):
            if place.order() <= low.order():
                return offset
        offset, _ = self._port.first_event(low)
        self._crumbs.appendleft((low, offset))
        return offset

    @staticmethod
    def _unchanged(one: _Mapped, changes: Changes) -> Sequence[bool]:
        """Say of each record whether the stream has left its key alone."""
        content = one.chunk.content
        emptied = _is_emptied(content, changes)
        keys = changes.keys.get(one.bound.topic)
        if not content.keyed or not (emptied or keys):
            return [True] * len(one.records)
        return [
            not emptied and (key is None or keys is None or without_prefix(key) not in keys)
            for key, _ in one.records
        ]

    def _learn(self, one: _Mapped, unchanged: Sequence[bool], changes: Changes) -> Iterator[RowRecord]:
        """Take in the rows, by which others are completed; give those that the stream did not know whole."""
        known, content, layout = self._publisher.known, one.chunk.content, one.layout
        if known is None or layout is None:
            return
        if not changes.touched.isdisjoint(("", content.database, f"{content.database}.{content.table}")):
            return
        known.learn(layout, content.rows, unchanged)
        if changes.rows is None:
            return
        for number, image in enumerate(layout.whole(content.rows)):
            key = layout.key_of(image)
            if unchanged[number] or key is None:
                continue
            row = known.learn_from(changes.rows, layout, key)
            if row is not None and layout.is_whole(row):
                with suppress(BinlogError):  # it stays as the stream has it
                    yield from self._records(one.chunk, one.bound, *layout.join(row), number)

    def _put(self, one: _Mapped, records: Sequence[RowRecord]) -> None:
        if not records:
            return
        publisher, bound, timestamp_ms = self._publisher, one.bound, one.chunk.content.read_ms
        output: Output = publisher.output
        noted = publisher.binder.note(bound)
        if noted is not None:
            output.add(publisher.topics.state, noted.key, noted.to_bytes(), timestamp_ms)
        size = sum(len(value) for _, value in records)
        made: list[OutputRecord] = [(key, value, timestamp_ms, None) for key, value in records]
        if bound.partitions == 1:
            output.extend(bound.topic, made, size)
            return
        groups: dict[Target, list[OutputRecord]] = {}
        partitions = partitions_of((key for key, _ in records), bound.partitions)
        for partition, record in zip(partitions, made, strict=True):
            groups.setdefault((bound.topic, partition), []).append(record)
        output.merge(groups, len(made), size)


def _is_emptied(content: SnapshotChunk, changes: Changes) -> bool:
    return not changes.emptied.isdisjoint((content.database, f"{content.database}.{content.table}"))


def _is_undecided(one: _Mapped, changes: Changes) -> bool:
    """Tell whether rows of a chunk may be among those that the stream has changed, and none says which."""
    content, bound = one.chunk.content, one.bound
    keyless = content.keyed and not bound.table.key_columns and bound.topic in changes.keyless
    return keyless and not _is_emptied(content, changes)


def _log_left_out(chunk: _Chunk, reason: str) -> None:
    _LOG.error(
        "rows of a snapshot are left out: take the snapshot of the table again",
        table=f"{chunk.content.database}.{chunk.content.table}",
        offset=chunk.offset,
        reason=reason,
    )


class Statements:
    """Replaces the writer of DDL, and records which tables statements touch, and which they empty."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def __call__(self, record: Mapping[str, Any]) -> bytes:
        """Note a statement."""
        if record["kind"] == TEMPORARY:
            return b""
        objects = record["objects"]
        emptying = str(record["name"]).startswith(("TRUNCATE", "DROP TABLE", "DROP DATABASE", "DROP SCHEMA"))
        if emptying or _REPLACES.match(record["statement"]):
            self._changes.emptied.update(objects)
        self._changes.touched.update(objects if record["kind"] == "DDL" and objects else ("",))
        return b""

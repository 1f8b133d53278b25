"""Rows of snapshots, merged into the row topics once the stream has reached their position.

A chunk of ``{source}.snapshot`` holds rows as they were at some moment between two positions of the log, low
and high. It waits until the stream has been published up to the high one: then the row topics have every
change that the rows may contain. Rows whose key the stream has changed since the low position are left out:
the published row is as new or newer, and a deleted row must not reappear. All others have not changed since,
and are published with ``op`` r. So no row goes back in time, and none is missing.

If the key was altered meanwhile, the same bytes are the key of another row. ALTER TABLE waits until a chunk
is read, so changes under another key than the chunk's are newer than its rows if they follow the high
position, else older. Rows are compared with the newer ones by the values of the columns of that key.

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
from decimal import Decimal
from itertools import compress
from typing import Any, Final, Protocol

from millrace.avro.registry import prefix_size
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
from millrace.rowmapper.binding import Binder, BoundTable
from millrace.rowmapper.known_rows import KnownRows, Name, ReplayedRows, RowLayout
from millrace.rowmapper.logged_rows import locate_value
from millrace.rowmapper.non_row_changes import TEMPORARY
from millrace.rowmapper.partition import partitions_of
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.transaction_output import Sink
from millrace.runtime.errors import StopRequestedError, UserError
from millrace.runtime.logging import get_logger
from millrace.stage import OutputRecord, Record, Target

_LOG = get_logger(__name__)
_AT_ONCE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of chunks that are merged together, so that the events since their low places are read once."""

_CRUMBS: Final = 10_000
_TABLE_MAP_HEADER: Final = 8
_REPLACES: Final = re.compile(r"(?i)\s*CREATE\s+OR\s+REPLACE\s+(TABLE|DATABASE|SCHEMA)\b")
"""MariaDB's: what was there is dropped."""
_RENAMES: Final = re.compile(r"(?i)\b(CHANGE|RENAME)\b")


class SnapshotLostError(Exception):
    """Rows of a snapshot were deleted before they were merged; the topic is read from ``begins`` on."""

    def __init__(self, reason: str, topic_id: str, begins: int) -> None:
        super().__init__(reason)
        self.topic_id = topic_id
        self.begins = begins


class SnapshotPort(Protocol):
    """What merging asks of Kafka."""

    def read(self, offset: int, *, wait: bool) -> Sequence[Record]:
        """Return some records of the snapshot topic from an offset on; none where it has none by now.

        With ``wait``, none where it has none for a moment longer. Raises :class:`SnapshotLostError`.
        """

    def records(self, start: int) -> Iterator[Record]:
        """Return the records of the snapshot topic from an offset to its end."""

    def first_event(self, place: SourcePosition) -> tuple[int, SourcePosition | None]:
        """Return offset and place of the first event at a place or after it; the end and None if none is."""

    def end_before(self, offset: int) -> SourcePosition | None:
        """Return the end of the last event before an offset of the events topic."""

    def quiet_end(self, offset: int) -> SourcePosition | None:
        """Return the place that the reader has reached, if all of it is before an offset of the events topic.

        None as well where that was asked a moment ago.
        """

    @property
    def topic_id(self) -> str:
        """Kafka's id of the snapshot topic."""


@dataclass(slots=True)
class Changes:
    """What statements of the stream have done: the tables that they emptied, beside changes of rows.

    ``touched`` are the tables and databases that statements name, "" for what is not known, ``renamed`` those
    whose columns they may have renamed. ``rows`` are those of the snapshot with the changes of the stream.
    """

    emptied: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    renamed: set[str] = field(default_factory=set)
    rows: ReplayedRows | None = None


class ChangedKeys:
    """Which keys of the rows of chunks the stream has changed, in one topic.

    ``records`` are those that the rows become. ``deserialize`` decodes a key or a value.
    """

    def __init__(self, records: Sequence[RowRecord], deserialize: Callable[[bytes], Any]) -> None:
        self._records = records
        self._deserialize = deserialize
        self.keys = {key for key, _ in records if key is not None}
        self._prefixes = tuple({_prefix(key) for key, _ in records})
        self.changed: set[bytes] = set()
        self.has_keyless = False
        """Whether the stream wrote records without a key."""
        # The last change of a row under a key of another schema; None where its row is not known.
        self._others: dict[tuple[bytes, _Names, _Values | None], SourcePosition] = {}
        self._rows: dict[_Names, set[_Values]] = {}

    def note(self, written: Sequence[OutputRecord]) -> None:
        """Take in records that the stream wrote."""
        keys = {key for key, *_ in written}
        self.changed.update(self.keys.intersection(keys))
        self.has_keyless |= None in keys
        if len(self._prefixes) > 1 or any(_prefix(key) not in self._prefixes for key in keys):
            for key, value, *_ in written:
                if value is not None:  # a tombstone follows a deletion
                    self._note_other(key, value)

    def _note_other(self, key: bytes | None, value: bytes) -> None:
        source = self._deserialize(value)["source"]
        place = SourcePosition(source["epoch"], source["file"], source["pos"])
        fields = {} if key is None else self._deserialize(key)
        names, values = tuple(fields), tuple(fields.values())
        if names not in self._rows:
            self._rows[names] = set(self.values(self._records, names))
        rows = self._rows[names]
        is_known = bool(names) and all(_kinds(row) == _kinds(values) for row in rows)
        if not is_known or values in rows:
            at = _prefix(key), names, values if is_known else None
            self._others[at] = max(place, self._others.get(at, place), key=SourcePosition.order)

    def values(self, records: Sequence[RowRecord], names: "_Names") -> "Iterator[_Values]":
        """Decode the values that rows have in some columns; None for what a row does not have."""
        for _, value in records:
            row = self._deserialize(value)["after"]
            yield tuple(row.get(name) for name in names)

    def under_other_keys(self, own: bytes, since: SourcePosition) -> "dict[_Names, set[_Values | None]]":
        """Return the values of keys that changed at ``since`` or later, by the names of their columns.

        Those with the prefix ``own`` do not count. None is a change of a row that is not known.
        """
        found: dict[_Names, set[_Values | None]] = {}
        for (prefix, names, values), place in self._others.items():
            if prefix != own and place.order() >= since.order():
                found.setdefault(names, set()).add(values)
        return found


_Names = tuple[str, ...]
_Values = tuple[Any, ...]


def _prefix(key: bytes | None) -> bytes:
    return b"" if key is None else key[: prefix_size(key)]


def _kinds(values: "_Values") -> list[type]:
    """Return what is compared before values are: text is never equal to a number."""
    return [Decimal if isinstance(value, int | float) else type(value) for value in values]


FindChanges = Callable[
    [RowMapperState, int, Mapping[str, ChangedKeys], Mapping[Name, Mapping[bytes, bytes]]], Changes
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

    @property
    def prefix(self) -> bytes:
        """What stands before the Avro of the keys."""
        return _prefix(self.records[0][0] if self.records else None)


class SnapshotMerger:
    """Takes chunks in their order and publishes each once the stream has reached its high position.

    ``find_changes`` says which keys the stream has changed, ``deserialize`` decodes keys and values of rows.
    """

    def __init__(
        self,
        sink: Sink,
        binder: Binder,
        port: SnapshotPort,
        merged: SnapshotMerged,
        *,
        quarantine: Quarantine,
        known: KnownRows,
        find_changes: FindChanges,
        deserialize: Callable[[bytes], Any],
    ) -> None:
        self.merged = merged
        self._sink, self._binder, self._quarantine, self._known = sink, binder, quarantine, known
        self._port = port
        self._find_changes = find_changes
        self._deserialize = deserialize
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
        """Return a place, or that of a quiet log where the stream has come further than to the place."""
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
        sink, now_ms = self._sink, self._sink.now_us() // 1000
        self._read_to = lost.begins
        self._joiner.reset()
        self.merged = SnapshotMerged(lost.topic_id, lost.begins)
        state = sink.topics.state
        sink.output.add(state, MERGED_KEY, self.merged.to_bytes(), now_ms)
        if not sink.topics.reads_another:
            sink.output.add(state, SNAPSHOT_LOST, str(lost).encode(), now_ms)

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
        """Return whether the stream has reached a chunk's position, and all of its table has arrived."""
        if place.epoch == chunk.high.epoch:
            if place.order() < chunk.high.order():
                return False
        elif place.epoch < chunk.high.epoch:
            return False
        return chunk.content.keyed or self._is_whole(chunk)

    def _is_whole(self, chunk: _Chunk) -> bool:
        """Return whether all records of a table without a key are there, or others in their place."""
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
                selects = self._binder.selection.selects
                if content.count and selects(content.database, content.table):
                    mapped.append(self._mapped(chunk))
            except (UserError, StopRequestedError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever one table raises is its own trouble
                refused += 1
                _log_left_out(chunk, error.message if isinstance(error, BinlogError) else repr(error))
        keys, changes = self._changes(mapped, state)
        rows = dropped = 0
        for one in mapped:
            of_topic = keys.get(one.bound.topic)
            reason = None if of_topic is None else _undecided(one, of_topic, changes)
            if reason is not None:
                refused += 1
                _log_left_out(one.chunk, reason)
                continue
            unchanged = self._unchanged(one, of_topic, changes)
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
        self._sink.output.add(
            self._sink.topics.state, MERGED_KEY, self.merged.to_bytes(), chunks[-1].content.read_ms
        )

    def _mapped(self, chunk: _Chunk) -> _Mapped:
        """Map the rows of a chunk, as those of an insert; raises BinlogError."""
        content = chunk.content
        if (content.database, content.table) in self._quarantine:
            raise MissingStateError(
                "the table is quarantined or paused: its older rows, redriven later, would undo these"
            )
        table_map = TableMapEvent.decode_fields(
            content.table_map, 0, len(content.table_map), _TABLE_MAP_HEADER
        )
        bound = self._binder.bind(table_map, chunk.high, content.server_version)
        count = table_map.column_count
        present = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
        records = self._records(chunk, bound, present, content.rows)
        return _Mapped(chunk, bound, records, self._layout(chunk, table_map, bound))

    def _records(
        self, chunk: _Chunk, bound: BoundTable, present: bytes, rows: bytes, first: int = 0
    ) -> Sequence[RowRecord]:
        """Write rows of a chunk, the one at ``first`` and those after it, as those of an insert."""
        content = chunk.content
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
            self._sink.now_us(),
            f"snapshot-{content.snapshot}",
            1,
            1,
            b"snapshot:%d" % chunk.offset,
            snapshot="incremental" if content.keyed else "true",
        )

        def locate(row: int, side: int, ordinal: int) -> tuple[int, int]:
            return locate_value(bound.table.columns, event, (rows,), (row, side, ordinal))

        records: list[tuple[bytes | None, bytes]] = []
        writer = RowsEventWriter(bound.encoder, place, b"", present, locate, records=records, first=first)
        bound.write(event, writer)
        return records

    def _layout(self, chunk: _Chunk, table_map: TableMapEvent, bound: BoundTable) -> RowLayout | None:
        """Say how rows are known again; None where they are not to complete others.

        They can where each change of each row is published, under its own key.
        """
        known, content, binder = self._known, chunk.content, self._binder
        name = content.database, content.table
        if not known.concerns(*name) or not binder.selection.is_published_whole(*name):
            return None
        layout = binder.layout(table_map, chunk.high, content.server_version)
        if layout is None or layout.key != tuple(column.ordinal for column in bound.table.key_columns):
            return None
        return layout

    def _changes(
        self, mapped: Sequence[_Mapped], state: RowMapperState
    ) -> tuple[Mapping[str, ChangedKeys], Changes]:
        """Find what the stream has changed since the low places of chunks."""
        keyed = [one for one in mapped if one.chunk.content.keyed]
        if not keyed:
            return {}, Changes()
        start = self._offset_of(min((one.chunk.low for one in keyed), key=SourcePosition.order))
        if start >= state.input_offset:
            return {}, Changes()
        records: dict[str, list[RowRecord]] = {}
        for one in keyed:
            records.setdefault(one.bound.topic, []).extend(one.records)
        keys = {topic: ChangedKeys(of_topic, self._deserialize) for topic, of_topic in records.items()}
        rows: dict[Name, dict[bytes, bytes]] = {}
        for one in keyed:
            if one.layout is not None:
                of_table = rows.setdefault(one.layout.name, {})
                for image in one.layout.whole(one.chunk.content.rows):
                    of_table[one.layout.key_of(image) or b""] = one.layout.stored(image)
        return keys, self._find_changes(state, start, keys, rows)

    def _offset_of(self, low: SourcePosition) -> int:
        """Return an offset before which all events are before a place."""
        for place, offset in reversed(self._crumbs):
            if place.order() <= low.order():
                return offset
        offset, _ = self._port.first_event(low)
        self._crumbs.appendleft((low, offset))
        return offset

    @staticmethod
    def _unchanged(one: _Mapped, keys: ChangedKeys | None, changes: Changes) -> Sequence[bool]:
        """Say of each record whether the stream has left its row alone."""
        if not one.chunk.content.keyed or keys is None:
            return [True] * len(one.records)
        if _is_emptied(one.chunk.content, changes):
            return [False] * len(one.records)
        unchanged = [key is None or key not in keys.changed for key, _ in one.records]
        for names, changed in keys.under_other_keys(one.prefix, one.chunk.high).items():
            rows = keys.values(one.records, names)
            unchanged = [was and row not in changed for was, row in zip(unchanged, rows, strict=True)]
        return unchanged

    def _learn(self, one: _Mapped, unchanged: Sequence[bool], changes: Changes) -> Iterator[RowRecord]:
        """Take in the rows, by which others are completed; give those that the stream did not know whole."""
        known, content, layout = self._known, one.chunk.content, one.layout
        if layout is None:
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
        bound, timestamp_ms, output = one.bound, one.chunk.content.read_ms, self._sink.output
        noted = self._binder.note(bound)
        if noted is not None:
            output.add(self._sink.topics.state, noted.key, noted.to_bytes(), timestamp_ms)
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


def _undecided(one: _Mapped, keys: ChangedKeys, changes: Changes) -> str | None:
    """Say why it is not known which rows of a chunk the stream has changed; None where it is."""
    content = one.chunk.content
    if not content.keyed or _is_emptied(content, changes):
        return None
    if not one.bound.table.key_columns and keys.has_keyless:
        return (
            "its records have no key (MILLRACE_ROWS_KEYS), so that rows which changed as they were read "
            "would count twice"
        )
    others = keys.under_other_keys(one.prefix, one.chunk.high)
    is_renamed = not changes.renamed.isdisjoint(("", f"{content.database}.{content.table}"))
    if any(None in changed or is_renamed for changed in others.values()):
        return (
            "its key was altered before they were merged, and they lack columns of the new one, so that "
            "those which have changed since would go back in time"
        )
    return None


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
        touched = objects if record["kind"] == "DDL" and objects else ("",)
        self._changes.touched.update(touched)
        if _RENAMES.search(record["statement"]):
            self._changes.renamed.update(touched)
        return b""

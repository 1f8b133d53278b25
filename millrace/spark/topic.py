"""The raw topic as an input of Spark, after its archive: which offsets are read, and where they are cut."""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import QueryCompressedEvent, QueryEvent, XaPrepareLogEvent
from millrace.binlog.header import TYPE_OFFSET
from millrace.binlog.state import StreamState
from millrace.binlog.statement import StatementKind, classify, xid_text
from millrace.binlog.types import EventType
from millrace.contract import RawKey, Topics
from millrace.kafka.client import admin_client
from millrace.kafka.read import held_offsets, offsets_since, read_topic, topic_names
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from millrace.spark.archive import Archive
from millrace.spark.raw_topic import (
    BEGINS,
    DESCRIBES,
    CarriedSettings,
    Piece,
    described_at,
    find_pieces,
    first_place,
    is_whole,
    last_record,
    read_piece,
    read_spans,
    whole_stretch,
)
from millrace.stage import Record

_OFFSETS_PER_PIECE: Final = 100_000
_NEAR_OFFSETS: Final = 10_000
"""Offsets before a span that are searched first for what it decides."""

_MOST_PIECES: Final = 1000
_ARCHIVED_ROWS: Final = 10_000
_OF_XA: Final = DESCRIBES | {
    EventType.QUERY_EVENT,
    EventType.QUERY_COMPRESSED_EVENT,
    EventType.XA_PREPARE_LOG_EVENT,
}


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: an offset, a time in milliseconds since 1970, or the topic's own."""

    offset: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream has come: an offset, and of the view raw the last record before it."""

    offset: int
    previous: int | None = None
    key: str | None = None


@dataclass
class TopicSpan(InputPartition):
    """Part of the raw topic that is decoded by itself; ``archive`` has what is archived of it."""

    kafka: CarriedSettings
    topic: str
    first: int
    """The first offset that topic and archive hold."""
    piece: Piece
    archive: Archive | None = None
    known: tuple[int, int | None] = 0, None
    """An offset of the topic at or before the span, and that of the last record before it."""

    @property
    def described(self) -> Record | None:
        """The format description for it."""
        return self.piece.described

    def records(self, *, dated: bool = False) -> Iterator[Sequence[Record]]:
        """Return its committed records in batches; unless ``dated``, with offsets for timestamps."""
        return read_piece(self.kafka, self.topic, self.piece, archive=self.archive, dated=dated)

    def linked(self, *, previous: bool) -> Iterator[tuple[Sequence[Record], int | None] | pa.RecordBatch]:
        """Return its committed records with their timestamps, those that are archived in columns.

        Others come with the offset of the record before them, where that is wanted as ``previous``.
        """
        start, end = self.piece.offsets[0], self.piece.end
        if self.archive is not None and start < self.archive.end:
            yield from self.archive.columns(start, min(end, self.archive.end), _ARCHIVED_ROWS)
            start = self.archive.end
        known, offset = self.known
        if previous and start < end:
            before = last_record(self.kafka, self.topic, known, start)
            offset = offset if before is None else before.offset
        for records in read_piece(self.kafka, self.topic, Piece(start, end), dated=True):
            yield records, offset
            offset = records[-1].offset

    def prepared(self) -> Iterator[Sequence[Record]]:
        """Return the XA transactions that are decided in it and were prepared before it.

        To look for decisions the span is read once more, which costs little beside decoding it. Each
        transaction comes after the format description of its log file.
        """
        known: set[str] = set()
        wanted: set[str] = set()
        for _, xid, decided in _xa_events(self.described, self.records()):
            if not decided:
                known.add(xid)
            elif xid not in known:
                wanted.add(xid)
        if not wanted:
            return
        whole = None if self.archive is None else Archive.read(self.archive.place)
        for start, end in sorted(self._prepared_before(wanted, whole)):
            described = described_at(self.kafka.kafka, self.topic, start, self.first, whole)
            if described is not None:
                yield [described]
            yield from read_piece(self.kafka, self.topic, Piece(start, end), archive=whole)

    def _prepared_before(self, wanted: AbstractSet[str], archive: Archive | None) -> list[tuple[int, int]]:
        """Return the offsets of XA transactions that are prepared before the span: most of them are near."""
        begin, stride = self.piece.start, _NEAR_OFFSETS
        while True:
            begin, stride = max(self.first, begin - stride), 8 * stride
            found: dict[str, tuple[int, int]] = {}
            described = described_at(self.kafka.kafka, self.topic, begin, self.first, archive)
            before = read_piece(self.kafka, self.topic, Piece(begin, self.piece.start), archive=archive)
            for (start, end), xid, decided in _xa_events(described, before):
                if decided:
                    found.pop(xid, None)
                elif xid in wanted and start is not None:
                    found[xid] = start, end
            if begin == self.first or found.keys() == wanted:
                return list(found.values())


def _xa_events(
    described: Record | None, batches: Iterable[Sequence[Record]]
) -> Iterator[tuple[tuple[int | None, int], str, bool]]:
    """Return the XA transactions that are prepared or decided: offsets, name, whether it is decided.

    ``described`` is the format description for the first record. Of a transaction that begins before the
    records the first offset is None.
    """
    state, begun = StreamState(), None
    for record in chain([] if described is None else [described], chain.from_iterable(batches)):
        value = record.value or b""
        code = value[TYPE_OFFSET] if is_whole(value) else None
        if code in BEGINS:
            begun = record.offset
        elif code in _OF_XA and (code != EventType.QUERY_EVENT or b"XA " in value):
            with suppress(BinlogError):  # the decoder says which event is damaged
                if code in DESCRIBES:
                    state = StreamState()
                    state.begin_file(value)
                event = decode_event(value, state).event
                if isinstance(event, XaPrepareLogEvent) and not event.one_phase:
                    name = xid_text(event.format_id, event.gtrid, event.bqual)
                    yield (begun, record.offset + 1), name, False
                elif isinstance(event, QueryEvent | QueryCompressedEvent):
                    statement = classify(event.query)
                    if statement.kind in (StatementKind.XA_COMMIT, StatementKind.XA_ROLLBACK):
                        yield (begun, record.offset + 1), statement.name or "", True


def continued(kafka: KafkaSettings, topic: str, archive: Archive, held: range, advice: str) -> None:
    """Raise UserError unless a topic, which has ``held``, continues an archive.

    ``advice`` says what to do where it begins later.
    """
    if held.start > archive.end and not _marker_between(kafka, topic, archive, held):
        raise UserError(
            f"records {archive.end} to {held.start - 1} of {topic} are missing: {archive} ends before "
            f"them, and the topic begins after them; {advice}",
            ExitCode.DATA,
        )
    another = (
        "it is another topic now, or its end was lost; read the archive alone, and archive the topic into "
        "another folder"
    )
    if held.stop < archive.end:
        raise UserError(
            f"{topic} ends at offset {held.stop}, but {archive} has it to {archive.end}: {another}",
            ExitCode.DATA,
        )
    if archive.last in held:
        archived = _at(archive, archive.last)
        found = next(chain.from_iterable(read_spans(kafka, topic, [(archive.last, archive.end)])), None)
        if found is None or found.key != archived.key:
            has = "no record" if found is None else f"the key {_ascii(found.key)}"
            raise UserError(
                f"{topic} has {has} at offset {archive.last}, where {archive} has {_ascii(archived.key)}: "
                f"{another}",
                ExitCode.DATA,
            )


def _at(archive: Archive, offset: int) -> Record:
    (records,) = archive.batches(1, offset, offset + 1)
    return records[0]


def _marker_between(kafka: KafkaSettings, topic: str, archive: Archive, held: range) -> bool:
    """Return whether only the end of a transaction of Kafka lies between an archive and its topic."""
    if held.start > archive.end + 1:
        return False
    after = next(chain.from_iterable(read_spans(kafka, topic, [(held.start, held.stop)])), None)
    if after is None:
        return True
    last = _at(archive, archive.last)
    try:
        before, following = RawKey.parse(last.key or b""), RawKey.parse(after.key or b"")
    except ValueError:
        return False
    return following.place == before.place._replace(position=before.position + len(last.value or b""))


def _ascii(key: bytes | None) -> str | None:
    return None if key is None else key.decode("ascii", "backslashreplace")


class RawTopic:
    """The raw topic of a source, after what is archived of it; or its archive ``alone``."""

    def __init__(
        self,
        kafka: KafkaSettings,
        source: str,
        start: Bound,
        end: Bound,
        archive: Archive | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._kafka = kafka
        self._alone = alone
        self._topics = Topics(source)
        self._topic = self._topics.raw
        self._start = start
        self._end = end
        self.archive = archive if archive is not None and archive.files else None
        self._read: dict[str, tuple[int, list[bytes]]] = {}

    def __str__(self) -> str:
        return str(self.archive) if self._alone else self._topic

    def extent(self, since: int | None = None) -> tuple[range, range]:
        """Return the offsets that topic and archive hold, and those that are asked for.

        ``since`` is where reading goes on, if it has begun.
        """
        held = self._held(since)
        start = self._place(self._start, held.start) if since is None else since
        end = self._place(self._end, held.stop)
        return held, range(min(max(start, held.start), held.stop), min(end, held.stop))

    def _held(self, since: int | None) -> range:
        archive = self.archive
        if self._alone and archive is None:
            return range(0)
        if archive is not None and (self._alone or self._place(self._end, archive.end + 1) <= archive.end):
            return range(archive.start, archive.end)
        held = self._held_by_kafka()
        if archive is None:
            return held
        if held.start > archive.end:
            start = self._place(self._start, archive.start) if since is None else since
            if start >= held.start:
                self.archive = None
                return held
        continued(
            self._kafka, self._topic, archive, held,
            f"read the archive alone, up to offset {archive.end}, or the topic alone, and archive the rest "
            "of it into another folder",
        )  # fmt: skip
        if held.start > archive.end:
            self.archive = replace(archive, end=held.start)
        return range(archive.start, max(held.stop, archive.end))

    def _held_by_kafka(self) -> range:
        admin = admin_client(self._kafka)
        if self._topic not in topic_names(admin):
            raise UserError(
                f"topic {self._topic} does not exist; check the source's name and that the reader has run",
                ExitCode.KAFKA,
            )
        return held_offsets(admin, {self._topic: 1}, undecided=False)[self._topic, 0]

    def _place(self, bound: Bound, otherwise: int) -> int:
        if bound.timestamp_ms is None:
            return otherwise if bound.offset is None else bound.offset
        archived = None if self.archive is None else self.archive.offset_at(bound.timestamp_ms)
        if archived is not None:
            return archived
        if self._alone:
            return otherwise
        found = offsets_since(admin_client(self._kafka), self._topic, bound.timestamp_ms)[0]
        return found if self.archive is None else max(found, self.archive.end)

    def spans(self, least: int, *, decoded: bool) -> list[TopicSpan]:
        """Cut what is asked for into ``least`` spans or more; unless ``decoded``, anywhere."""
        held, asked = self.extent()
        number = _number(asked, least)
        pieces = (
            find_pieces(
                self._kafka, self._topic, (asked.start, asked.stop), held.start, number, archive=self.archive,
            )
            if decoded
            else _anywhere(asked, number)
        )  # fmt: skip
        return self._spans(pieces, held.start, (held.start, None))

    def _spans(self, pieces: Sequence[Piece], first: int, known: tuple[int, int | None]) -> list[TopicSpan]:
        carried, archive = CarriedSettings.of(self._kafka), self.archive
        if archive is not None and known[0] < archive.end:
            known = archive.end, archive.last
        return [
            TopicSpan(
                carried, self._topic, first, piece,
                None if archive is None else archive.between(piece.start, piece.end), known,
            )
            for piece in pieces
        ]  # fmt: skip

    def definitions(self) -> tuple[list[bytes], list[bytes]]:
        """Return the definitions of tables that the reader has found, and those of the schema history."""
        return self._values(self._topics.catalog), self._values(self._topics.schemas)

    def _values(self, topic: str) -> list[bytes]:
        """Return the values of a topic; only the new ones are read."""
        start, values = self._read.get(topic, (0, []))
        for message in read_topic(self._kafka, topic, start=start):
            start = (message.offset() or 0) + 1
            if (value := message.value()) is not None:
                values.append(value)
        self._read[topic] = start, values
        return list(values)

    # -- as a stream ----------------------------------------------------------------------------------

    def beginning(self, *, decoded: bool) -> StreamOffset:
        """Return where a stream begins: where no transaction is open, or, unless ``decoded``, anywhere."""
        held, asked = self.extent()
        place: int | None = asked.start
        if decoded and asked.start > held.start:
            place = first_place(self._kafka, self._topic, (asked.start, held.stop), held.start, self.archive)
        return self._reached(held.stop if place is None else place, StreamOffset(held.start), decoded=decoded)

    def next_end(self, start: StreamOffset, most: int | None, *, decoded: bool) -> StreamOffset:
        """Return where a stream is read up to from ``start`` on: where no transaction is open.

        That is the last such offset within ``most`` offsets; where there is none, the first one after them.
        Unless it is ``decoded``, it is the last offset.
        """
        held, asked = self.extent(start.offset)
        self._check_goes_on(start, held)
        limit = asked.stop if most is None else min(asked.stop, start.offset + most)
        end = limit
        if decoded and limit > start.offset:
            offsets = start.offset, limit
            stretch = whole_stretch(self._kafka, self._topic, offsets, held.start, self.archive)
            end = start.offset if stretch is None else stretch.end
            if end <= start.offset and limit < asked.stop:
                offsets = limit, asked.stop
                end = first_place(self._kafka, self._topic, offsets, held.start, self.archive) or end
        return start if end <= start.offset else self._reached(end, start, decoded=decoded)

    def _reached(self, offset: int, since: StreamOffset, *, decoded: bool) -> StreamOffset:
        """Return a place of a stream, with the record before it, which is looked for ``since`` another."""
        if decoded:
            return StreamOffset(offset)
        carried = CarriedSettings.of(self._kafka)
        last = last_record(carried, self._topic, since.offset, offset, self.archive)
        if last is None:
            return replace(since, offset=offset)
        return StreamOffset(offset, last.offset, _ascii(last.key))

    def _check_goes_on(self, start: StreamOffset, held: range) -> None:
        """Raise where the topic does not go on at ``start``, or is not the one that was read up to there."""
        if start.offset < held.start:
            raise UserError(
                f"records {start.offset} to {held.start - 1} of {self._topic} were deleted before they were "
                "read; to continue with what is left, start with another checkpointLocation",
                ExitCode.DATA,
            )
        has = f"ends at offset {held.stop}" if held.stop < start.offset else ""
        if not has and start.previous is not None and start.previous in held:
            at = [(start.previous, start.previous + 1)]
            keys = [one.key for one in chain.from_iterable(read_spans(self._kafka, self._topic, at))]
            if keys and _ascii(keys[0]) != start.key:
                has = f"has the key {_ascii(keys[0])} at offset {start.previous}, where {start.key} was"
        if has:
            raise UserError(
                f"{self._topic} {has}, and the stream has read it to {start.offset}: it is another topic "
                "now, or its end was lost; to read what is there now, write to another table with another "
                "checkpointLocation",
                ExitCode.DATA,
            )

    def between(self, start: StreamOffset, end: int, least: int, *, decoded: bool) -> list[TopicSpan]:
        """Cut a stretch of a stream into spans."""
        held, _ = self.extent(start.offset)
        self._check_goes_on(start, held)
        offsets = range(start.offset, end)
        number = _number(offsets, least)
        known = start.offset, start.previous
        if not decoded:
            return self._spans(_anywhere(offsets, number), held.start, known)
        pieces = find_pieces(
            self._kafka, self._topic, (start.offset, end), held.start, number,
            archive=self.archive,
        )  # fmt: skip
        described = described_at(self._kafka, self._topic, start.offset, held.start, self.archive, end=end)
        pieces[0] = replace(pieces[0], start=start.offset, described=described)
        return self._spans(pieces, held.start, known)


def _anywhere(offsets: range, number: int) -> list[Piece]:
    edges = [offsets.start + len(offsets) * index // number for index in range(number + 1)]
    return [Piece(at, end) for at, end in pairwise(edges) if at < end]


def _number(offsets: range, least: int) -> int:
    return max(1, min(max(least, len(offsets) // _OFFSETS_PER_PIECE), _MOST_PIECES))

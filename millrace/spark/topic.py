"""The raw topic as an input of Spark: which offsets are read, and where they are cut."""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from millrace.binlog.header import HEADER_LENGTH, TYPE_OFFSET
from millrace.binlog.statement import xid_text
from millrace.binlog.types import EventType
from millrace.contract import Topics
from millrace.kafka.client import admin_client
from millrace.kafka.read import held_offsets, offsets_since, read_topic, topic_names
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode
from millrace.runtime.settings import KafkaSettings
from millrace.spark.raw_topic import (
    BEGINS,
    CarriedSettings,
    Piece,
    described_at,
    find_pieces,
    first_place,
    read_piece,
    whole_stretch,
)
from millrace.stage import Record

_OFFSETS_PER_PIECE: Final = 100_000
_MOST_PIECES: Final = 1000
_QUERIES: Final = frozenset({EventType.QUERY_EVENT, EventType.QUERY_COMPRESSED_EVENT})
_DECISION: Final = re.compile(rb"XA (?:COMMIT|ROLLBACK) (X'[0-9a-f]*',X'[0-9a-f]*',[0-9]+)")
"""A statement as servers log it."""

_XID: Final = struct.Struct("<III")
"""In an event that prepares a transaction, its format and the sizes of the two parts of its name."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: an offset, a time in milliseconds since 1970, or the topic's own."""

    offset: int | None = None
    timestamp_ms: int | None = None


@dataclass
class TopicSpan(InputPartition):
    """Part of the raw topic that is decoded by itself."""

    kafka: CarriedSettings
    topic: str
    first: int
    """The first offset that the topic holds."""
    piece: Piece

    @property
    def described(self) -> Record | None:
        """The format description for it."""
        return self.piece.described

    def records(self, *, dated: bool = False) -> Iterator[Sequence[Record]]:
        """Return its committed records in batches; unless ``dated``, with offsets for timestamps."""
        return read_piece(self.kafka, self.topic, self.piece, dated=dated)

    def prepared(self) -> Iterator[Sequence[Record]]:
        """Return the XA transactions that are decided in it and were prepared before it.

        To look for decisions the span is read once more, which costs little beside decoding it. Each
        transaction comes after the format description of its log file.
        """
        known: set[str] = set()
        wanted: set[str] = set()
        for _, xid, decided in _xa_events(self.records()):
            if not decided:
                known.add(xid)
            elif xid not in known:
                wanted.add(xid)
        if not wanted:
            return
        found: dict[str, tuple[int, int]] = {}
        before = Piece(self.first, self.piece.start)
        for (start, end), xid, decided in _xa_events(read_piece(self.kafka, self.topic, before)):
            if decided:
                found.pop(xid, None)
            elif xid in wanted:
                found[xid] = start, end
        for start, end in sorted(found.values()):
            described = described_at(self.kafka.kafka, self.topic, start, self.first)
            if described is not None:
                yield [described]
            yield from read_piece(self.kafka, self.topic, Piece(start, end))


def _xa_events(batches: Iterable[Sequence[Record]]) -> Iterator[tuple[tuple[int, int], str, bool]]:
    """Return the XA transactions that are prepared or decided: offsets, name, whether it is decided."""
    begun = 0
    for record in chain.from_iterable(batches):
        value = record.value or b""
        code = value[TYPE_OFFSET] if len(value) > HEADER_LENGTH + _XID.size else None
        if code in BEGINS:
            begun = record.offset
        elif code == EventType.XA_PREPARE_LOG_EVENT and not value[HEADER_LENGTH]:
            kind, *sizes = _XID.unpack_from(value, HEADER_LENGTH + 1)
            at = HEADER_LENGTH + 1 + _XID.size
            gtrid, bqual = value[at : at + sizes[0]], value[at + sizes[0] : at + sum(sizes)]
            yield (begun, record.offset + 1), xid_text(kind, gtrid, bqual), False
        elif code in _QUERIES and (decision := _DECISION.search(value)):
            yield (begun, record.offset + 1), decision[1].decode(), True


class RawTopic:
    """The raw topic of a source."""

    def __init__(self, kafka: KafkaSettings, source: str, start: Bound, end: Bound) -> None:
        self._kafka = kafka
        self._topics = Topics(source)
        self._topic = self._topics.raw
        self._start = start
        self._end = end
        self._read: dict[str, tuple[int, list[bytes]]] = {}

    def __str__(self) -> str:
        return self._topic

    def _asked(self, held: range) -> range:
        """Return the offsets that are asked for, of those that are there and committed."""
        start, end = self._place(self._start, held.start), self._place(self._end, held.stop)
        return range(min(max(start, held.start), held.stop), min(end, held.stop))

    def _held(self) -> range:
        admin = admin_client(self._kafka)
        if self._topic not in topic_names(admin):
            raise UserError(
                f"topic {self._topic} does not exist; check the source's name and that the reader has run",
                ExitCode.KAFKA,
            )
        return held_offsets(admin, {self._topic: 1}, undecided=False)[self._topic, 0]

    def _place(self, bound: Bound, otherwise: int) -> int:
        if bound.timestamp_ms is not None:
            return offsets_since(admin_client(self._kafka), self._topic, bound.timestamp_ms)[0]
        return otherwise if bound.offset is None else bound.offset

    def spans(self, least: int, *, decoded: bool) -> list[TopicSpan]:
        """Cut what is asked for into ``least`` spans or more; unless ``decoded``, anywhere."""
        held = self._held()
        asked = self._asked(held)
        number = _number(asked, least)
        if not decoded:
            edges = [asked.start + len(asked) * index // number for index in range(number + 1)]
            pieces = [Piece(at, end) for at, end in pairwise(edges) if at < end]
        else:
            offsets = asked.start, asked.stop
            pieces = find_pieces(self._kafka, self._topic, offsets, held.start, number)
        return self._spans(pieces, held.start)

    def _spans(self, pieces: Sequence[Piece], first: int) -> list[TopicSpan]:
        carried = CarriedSettings.of(self._kafka)
        return [TopicSpan(carried, self._topic, first, piece) for piece in pieces]

    def definitions(self) -> tuple[list[bytes], list[bytes]]:
        """Return the definitions of tables that the reader has found, and those of the schema history."""
        return self._values(self._topics.catalog), self._values(self._topics.schemas)

    def _values(self, topic: str) -> list[bytes]:
        """Return the values of a topic, of which those that came since the last time are read."""
        start, values = self._read.get(topic, (0, []))
        for message in read_topic(self._kafka, topic, start=start):
            start = (message.offset() or 0) + 1
            if (value := message.value()) is not None:
                values.append(value)
        self._read[topic] = start, values
        return list(values)

    # -- as a stream ----------------------------------------------------------------------------------

    def beginning(self) -> int:
        """Return the first offset of a stream: one where no transaction is open."""
        held = self._held()
        asked = self._asked(held)
        if asked.start == held.start:
            return held.start
        place = first_place(self._kafka, self._topic, (asked.start, held.stop), held.start)
        return held.stop if place is None else place

    def next_end(self, start: int, most: int | None) -> int:
        """Return the offset up to which a stream is read from ``start`` on: where no transaction is open.

        That is the last such offset within ``most`` offsets; where there is none, the first one after them.
        """
        held = self._held()
        limit = held.stop if most is None else min(held.stop, start + most)
        stretch = whole_stretch(self._kafka, self._topic, (start, limit), held.start)
        if stretch is not None and stretch.end > start:
            return stretch.end
        if limit < held.stop:
            place = first_place(self._kafka, self._topic, (limit, held.stop), held.start)
            if place is not None:
                return place
        return start

    def between(self, start: int, end: int, least: int, *, decoded: bool) -> list[TopicSpan]:
        """Cut a stretch that begins and ends where no transaction is open into spans."""
        held = self._held()
        if start < held.start:
            raise UserError(
                f"records {start} to {held.start - 1} of {self._topic} were deleted before they were read; "
                "to continue with what is left, start with another checkpointLocation",
                ExitCode.DATA,
            )
        if not decoded:
            return self._spans([Piece(start, end)], held.start)
        number = _number(range(start, end), least)
        pieces = find_pieces(self._kafka, self._topic, (start, end), held.start, number)
        described = described_at(self._kafka, self._topic, start, held.start, end=end)
        pieces[0] = replace(pieces[0], start=start, described=described)
        return self._spans(pieces, held.start)


def _number(offsets: range, least: int) -> int:
    return max(1, min(max(least, len(offsets) // _OFFSETS_PER_PIECE), _MOST_PIECES))

"""Where the raw topic may be divided: a first pass over the heads of its events.

A transaction must be decoded from its beginning, and events by the format description of their log file. A
piece therefore begins with an event that begins a transaction whatever precedes it, or after one that ends
one, and gets the format description that applies there. An XA transaction is prepared in one place and
decided in another: the topic is not divided between the two.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from millrace.binlog.declaration import Event
from millrace.binlog.errors import BinlogError
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import XaPrepareLogEvent
from millrace.binlog.events.query import StatementEvent
from millrace.binlog.grammar import HEADING, Role
from millrace.binlog.state import StreamState
from millrace.binlog.statement import StatementKind, classify, xid_text
from millrace.binlog.transaction import codes_of
from millrace.binlog.types import EventType
from millrace.contract import GAP, HEADER_CHUNK, HEADER_MARKER
from millrace.rowmapper.session import DEFINING
from millrace.stage import Record
from spark_jobs.common.kafka import TopicSlice, headers_of, scan

_BUCKETS: Final = 4096
"""About so many positions are examined where the topic may be divided."""

MOST_PIECES: Final = 256
"""Each is a part of the plan."""

_LEAST_BYTES: Final = 4 << 20
_FIRST_STRIDE: Final = 1_000_000
_LOOKED_AT: Final = 20
"""Format descriptions of which at least one is genuine."""

_SIZE: Final = slice(9, 13)
"""Where an event's header has its size."""

_MOST_XA_TEXT: Final = 1024
"""Bytes of an event that decides about an XA transaction: its id has 128 at the most, or so many digits."""


def _codes(*roles: Role) -> list[str]:
    return [f"{code:02X}" for code in sorted(codes_of(*roles))]


_BEGINS: Final = _codes(*HEADING)
_ENDS: Final = _codes(Role.COMMIT)
_DESCRIBES: Final = _codes(Role.START)
_PREPARES: Final = _codes(Role.PREPARE)
_QUERIES: Final = [f"{code:02X}" for code in (EventType.QUERY_EVENT, EventType.QUERY_COMPRESSED_EVENT)]
_DECISIONS: Final = {StatementKind.XA_COMMIT, StatementKind.XA_ROLLBACK}
_DEFINES: Final = "(?i)" + "|".join(sorted(DEFINING))
_PACKED: Final = f"{EventType.QUERY_COMPRESSED_EVENT:02X}"
_FIRST_CHUNK: Final = re.compile(r"0/([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the raw topic that is decoded by itself; ``described`` has the format description for it.

    Where it begins within a transaction, ``before`` has those records of it that must be known. ``prepared``
    are the XA transactions that the piece may decide.
    """

    start: int
    end: int
    described: Record | None = None
    before: tuple[Record, ...] = ()
    prepared: "tuple[Piece, ...]" = ()

    @property
    def offsets(self) -> tuple[int, int]:
        """First and last offset."""
        return self.start, self.end - 1


@dataclass(frozen=True, slots=True)
class Bucket:
    """A stretch of offsets: its bytes, and the first place in it where the topic may be cut."""

    size: int
    place: int | None


def cut(  # noqa: PLR0917 - a slice, and into what
    spark: SparkSession,
    options: Mapping[str, str],
    part: TopicSlice,
    first: int,
    number: int | None,
    piece_bytes: int,
    *,
    least_number: int = 1,
) -> list[Piece]:
    """Cut a slice of a raw topic, whose first offset is ``first``, into about ``number`` pieces.

    Without a ``number`` they have about ``piece_bytes``, and are ``least_number`` or more where each then has
    4 MB. Of a slice that begins later than the topic what comes before the first place where a transaction
    begins is left out.
    """
    ((start, end),) = part.offsets.values()
    if start == end:
        return []
    heads = _heads(scan(spark, options, part))
    stride = max(1, (end - start) // _BUCKETS)
    place = sf.when(sf.col("type").isin(_BEGINS), sf.col("offset"))
    place = place.when(sf.col("type").isin(_ENDS), sf.col("offset") + 1)
    rows = (
        heads.groupBy(sf.floor((sf.col("offset") - start) / stride).alias("bucket"))
        .agg(
            sf.sum(sf.coalesce(sf.length("value"), sf.lit(0))).alias("size"),
            sf.min(sf.when(sf.col("plain"), place)).alias("place"),
            sf.collect_list(sf.when(_describes(), _record())).alias("described"),
            sf.collect_list(sf.when(sf.col("type").isin(_PREPARES), _record())).alias("prepared"),
        )
        .orderBy("bucket")
        .collect()
    )
    described = [_record_of(one) for row in rows for one in row.described if is_whole(one["value"])]
    before = None if start == first else _described_before(spark, options, part, first, start)
    described = sorted([*([] if before is None else [before]), *described])
    prepared = [_record_of(one) for row in rows for one in row.prepared]
    undecided = _undecided(heads, prepared, described) if prepared else []
    buckets = [Bucket(row.size, row.place) for row in rows]
    if start > first:
        start = next((bucket.place for bucket in buckets if bucket.place is not None), start)
    total = sum(bucket.size for bucket in buckets)
    if number is None:
        number = max(1, total // piece_bytes, min(least_number, total // _LEAST_BYTES))
    places = cuts_between(buckets, start, end, min(number, MOST_PIECES), undecided)
    offsets = [record.offset for record in described]
    pieces = []
    for at, until in zip([start, *places], [*places, end], strict=True):
        index = bisect_left(offsets, at) - 1
        pieces.append(Piece(at, until, described[index] if index >= 0 else None))
    return pieces


def defining_records(spark: SparkSession, options: Mapping[str, str], part: TopicSlice) -> Iterator[Record]:
    """Give the records of statements that define tables, in their order, of format descriptions and gaps.

    Among them may be statements that define none.
    """
    heads = _heads(scan(spark, options, part))
    said = sf.col("value").cast("string").rlike(_DEFINES) | (sf.col("type") == _PACKED)
    first = headers_of(HEADER_CHUNK).rlike(f"^{_FIRST_CHUNK.pattern}$")
    begins = sf.col("type").isin(_QUERIES) & said & (sf.col("plain") | first)
    gap = headers_of(HEADER_MARKER).eqNullSafe(sf.lit(GAP.decode()))
    found = heads.where(_describes() | begins | gap).orderBy("offset").select(_record().alias("it"))
    for row in found.toLocalIterator():
        record = _record_of(row["it"])
        yield record
        if (chunk := _chunk(record)) and (number := _FIRST_CHUNK.fullmatch(chunk)):
            yield from _other_chunks(spark, options, part, record, int(number[1]) - 1)


def _other_chunks(
    spark: SparkSession, options: Mapping[str, str], part: TopicSlice, first: Record, number: int
) -> Iterator[Record]:
    """Give the ``number`` chunks that follow the first of a value, as far as they exist.

    They are near, unless the reader was restarted between them: they are looked for in growing strides. Where
    it has begun again at the first, that one has others.
    """
    ((_, end),) = part.offsets.values()
    begin, stride = first.offset + 1, 2 * number
    while number and begin < end:
        until = min(end, begin + stride)
        chunks = scan(spark, options, part.between(begin, until)).where(
            sf.col("key").eqNullSafe(sf.lit(first.key)) & headers_of(HEADER_CHUNK).isNotNull()
        )
        for row in chunks.orderBy("offset").select(_record().alias("it")).toLocalIterator():
            record = _record_of(row["it"])
            if number == 0 or _FIRST_CHUNK.fullmatch(_chunk(record) or ""):
                return
            yield record
            number -= 1
        begin, stride = until, stride * 8


def _chunk(record: Record) -> str | None:
    """Give the header of a record that says which chunk it is."""
    found = dict(record.headers or ()).get(HEADER_CHUNK)
    return None if found is None else found.decode("ascii", "replace")


def cuts_between(
    buckets: Sequence[Bucket], start: int, end: int, number: int, undecided: Iterable[tuple[int, int]] = ()
) -> list[int]:
    """Choose where to cut: at most ``number`` - 1 places after ``start``, about as many bytes apart.

    No place is between the two offsets of one that is ``undecided``.
    """
    total = sum(bucket.size for bucket in buckets)
    spans = list(undecided)
    places: list[int] = []
    passed = 0
    for bucket in buckets:
        place = bucket.place
        due = passed * number >= total * (len(places) + 1)
        passed += bucket.size
        if not due or place is None or not start < place < end or len(places) + 1 >= number:
            continue
        if not any(prepared < place <= decided for prepared, decided in spans):
            places.append(place)
    return places


def is_whole(value: bytes | None) -> TypeGuard[bytes]:
    """Tell whether a value has as many bytes as the header of an event in it says: garbage has not."""
    if value is None or len(value) < _SIZE.stop:
        return False
    return len(value) == int.from_bytes(value[_SIZE], "little")


def _heads(records: DataFrame) -> DataFrame:
    """Add the type of each event, and whether it is whole and no marker."""
    return records.withColumns(
        {
            "type": sf.hex(sf.substring("value", 5, 1)),
            "plain": headers_of(HEADER_CHUNK).isNull() & headers_of(HEADER_MARKER).isNull(),
        }
    )


def _describes() -> Column:
    return sf.col("plain") & sf.col("type").isin(_DESCRIBES)


def _record() -> Column:
    return sf.struct("offset", "key", "value", "headers")


def _record_of(row: Row) -> Record:
    headers = None if row.headers is None else [(name, bytes(value or b"")) for name, value in row.headers]
    return Record(row.offset, row.offset, bytes(row.key or b""), bytes(row.value or b""), headers)


def _described_before(
    spark: SparkSession, options: Mapping[str, str], part: TopicSlice, first: int, start: int
) -> Record | None:
    """Find the last format description before an offset: backwards, in growing strides."""
    stride, end = _FIRST_STRIDE, start
    while end > first:
        begin = max(first, end - stride)
        heads = _heads(scan(spark, options, part.between(begin, end)))
        last = heads.where(_describes()).orderBy(sf.desc("offset")).limit(_LOOKED_AT)
        for row in last.select(_record().alias("it")).collect():
            if is_whole(row["it"]["value"]):
                return _record_of(row["it"])
        stride, end = stride * 8, begin
    return None


def _undecided(
    heads: DataFrame, prepared: Sequence[Record], described: Sequence[Record]
) -> list[tuple[int, int]]:
    """Give where XA transactions are prepared and where they are decided."""
    says = [sf.contains("value", sf.lit(text)) for text in (b"XA COMMIT", b"XA ROLLBACK")]
    packed = (sf.col("type") == _PACKED) & (sf.length("value") < _MOST_XA_TEXT)
    wanted = sf.col("type").isin(_QUERIES) & (says[0] | says[1] | packed)
    rows = heads.where(wanted).select(_record().alias("it")).collect()
    return spans_between(prepared, [_record_of(row["it"]) for row in rows], described)


def spans_between(
    prepared: Sequence[Record], deciding: Iterable[Record], described: Sequence[Record]
) -> list[tuple[int, int]]:
    """Pair the events that prepare XA transactions with those that decide about them, by offset."""
    preparing = {record.offset for record in prepared}
    spans, opened = [], {}
    for offset, xid in _xids([*prepared, *deciding], described):
        if offset in preparing:
            opened[xid] = offset
        elif xid in opened:
            spans.append((opened.pop(xid), offset))
    return spans


def _xids(records: Iterable[Record], described: Sequence[Record]) -> list[tuple[int, str]]:
    """Read which XA transactions events prepare or decide, in their order."""
    offsets = [record.offset for record in described]
    found = []
    for record in sorted(records, key=lambda one: one.offset):
        state = StreamState()
        index = bisect_left(offsets, record.offset) - 1
        try:
            if index >= 0:
                description = described[index].value or b""
                state.begin_file(description)
                decode_event(description, state)
            xid = _xid(decode_event(record.value or b"", state).event)
        except BinlogError:
            continue  # a dead letter, which decides about nothing
        if xid is not None:
            found.append((record.offset, "".join(xid.split()).lower()))
    return found


def _xid(event: Event) -> str | None:
    match event:
        case XaPrepareLogEvent() if not event.one_phase:
            return xid_text(event.format_id, event.gtrid, event.bqual)
        case StatementEvent():
            statement = classify(event.beginning)
            return statement.name if statement.kind in _DECISIONS else None
    return None


def read_pieces(
    spark: SparkSession, options: Mapping[str, str], part: TopicSlice, pieces: Sequence[Piece]
) -> DataFrame:
    """Return the records of pieces, each in one Spark partition, with the number of their ``piece``."""
    frames = []
    for number, piece in enumerate(pieces):
        records = scan(spark, options, part.between(piece.start, piece.end), whole=True)
        frames.append(records.select(sf.lit(number).alias("piece"), "offset", "key", "value", "headers"))
    union = frames[0]
    for frame in frames[1:]:
        union = union.union(frame)
    return union

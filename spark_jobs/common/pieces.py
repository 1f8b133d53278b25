"""Pieces of the raw topic in a job: what executors do with each, and statements that define tables.

A transaction must be decoded from its beginning, and events by the format description of their log file. A
piece therefore begins with an event that begins a transaction whatever precedes it, or after one that ends
one, and gets the format description that applies there (:mod:`millrace.spark.raw_topic` finds both).
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from millrace.binlog.grammar import Role
from millrace.binlog.transaction import codes_of
from millrace.binlog.types import EventType
from millrace.contract import GAP, HEADER_CHUNK, HEADER_MARKER
from millrace.rowmapper.session import DEFINING
from millrace.spark.decoding import prepare_worker
from millrace.spark.raw_topic import CarriedSettings, Piece, find_pieces, read_piece
from millrace.stage import Record
from spark_jobs.common.kafka import TopicSlice, headers_of, scan
from spark_jobs.common.outcome import Outcome

if TYPE_CHECKING:
    from spark_jobs.common.job import Input, Job

MOST_PIECES: Final = 256
"""Each is a part of the plan."""

_OFFSETS_PER_PIECE: Final = 500_000
_OUTCOME_COLUMNS: Final = "piece int, outcome string"


def _hex(*codes: int) -> list[str]:
    return [f"{code:02X}" for code in sorted(codes)]


_DESCRIBES: Final = _hex(*codes_of(Role.START))
_QUERIES: Final = _hex(EventType.QUERY_EVENT, EventType.QUERY_COMPRESSED_EVENT)
_DEFINES: Final = "(?i)" + "|".join(sorted(DEFINING))
_PACKED: Final = f"{EventType.QUERY_COMPRESSED_EVENT:02X}"
_FIRST_CHUNK: Final = re.compile(r"0/([0-9]{1,9})")


def defining_records(spark: SparkSession, options: Mapping[str, str], part: TopicSlice) -> Iterator[Record]:
    """Yield the records of statements that define tables, in their order, of format descriptions and gaps.

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
    """Yield the ``number`` chunks that follow the first of a value, as far as they exist.

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
    """Return the header of a record that says which chunk it is."""
    found = dict(record.headers or ()).get(HEADER_CHUNK)
    return None if found is None else found.decode("ascii", "replace")


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


# -- what executors do with pieces -----------------------------------------------------------------------


class PieceTaker(Protocol):
    """Takes the records of a piece, in an executor, and reports the outcome at the end."""

    def take(self, records: Sequence[Record]) -> None:
        """Take the next records."""

    def finish(self) -> Outcome:
        """Write remaining output."""


_Begin = Callable[[int, Piece, Iterable[Sequence[Record]]], PieceTaker]
"""Is given the number of a piece, the piece, and the records of the XA transactions that it may decide."""

_Read = Callable[[Piece], Iterator[Sequence[Record]]]
_OfBatches = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def cut_input(job: "Job", one: "Input", number: int | None = None) -> list[Piece]:
    """Cut what a job reads of a source into about ``number`` pieces, by default by size.

    As many as keep all cores at work to the end, and no more than a plan should have.
    """
    part = one.part
    if number is None:
        least = 2 * job.spark.sparkContext.defaultParallelism
        number = min(max(least, part.count // _OFFSETS_PER_PIECE), MOST_PIECES)
    (offsets,) = part.offsets.values()
    return find_pieces(job.settings.kafka, part.topic, offsets, one.first, number, archive=part.archive)


def over_pieces(job: "Job", one: "Input", pieces: Sequence[Piece], begin: _Begin) -> DataFrame:
    """Let executors take the records of each piece: its number, and the outcome as JSON.

    The records are as :func:`read_piece` gives them.
    """
    carried, part = CarriedSettings.of(job.settings.kafka), one.part
    read = partial(read_piece, carried, part.topic, archive=part.archive)
    take = _take_pieces(read, pieces, begin)
    return job.spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(take, _OUTCOME_COLUMNS)


def _take_pieces(read: _Read, pieces: Sequence[Piece], begin: _Begin) -> _OfBatches:
    """Make what executors do with places in line: long pieces come first, so that none is left to the end."""
    order = sorted(range(len(pieces)), key=lambda number: pieces[number].start - pieces[number].end)

    def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        for batch in batches:
            for place in batch.column("id").to_pylist():
                number = order[place]
                piece = pieces[number]
                taker = begin(number, piece, _prepared(read, piece))
                for records in read(piece):
                    taker.take(records)
                yield _told(number, taker)

    return take


def _prepared(read: _Read, piece: Piece) -> Iterator[Sequence[Record]]:
    """Yield the XA transactions that are prepared before a piece, each after its format description."""
    for span in piece.prepared:
        if span.described is not None:
            yield [span.described]
        yield from read(span)


def _told(piece: int, taker: PieceTaker) -> pa.RecordBatch:
    """Finish a piece; give its number and the outcome.

    They are made of bytes: for the first object of Python pyarrow loads pandas, which takes 0.3 s.
    """
    told = taker.finish().to_json().encode()
    number, ends = struct.pack("=i", piece), struct.pack("=ii", 0, len(told))
    columns = [
        pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(number)]),
        pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(told)]),
    ]
    return pa.RecordBatch.from_arrays(columns, ["piece", "outcome"])

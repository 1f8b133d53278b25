"""Pieces of the raw topic, and the statements in it that define tables.

A transaction must be decoded from its beginning, and events by the format description of their log file. A
piece therefore begins with an event that begins a transaction whatever precedes it, or after one that ends
one, and gets the format description that applies there (:mod:`spark_jobs.common.raw_topic` finds both).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from millrace.binlog.grammar import Role
from millrace.binlog.transaction import codes_of
from millrace.binlog.types import EventType
from millrace.contract import GAP, HEADER_CHUNK, HEADER_MARKER
from millrace.rowmapper.session import DEFINING
from millrace.stage import Record
from spark_jobs.common.kafka import TopicSlice, headers_of, scan

MOST_PIECES: Final = 256
"""Each is a part of the plan."""

_SIZE: Final = slice(9, 13)
"""Where an event's header has its size."""


def _hex(*codes: int) -> list[str]:
    return [f"{code:02X}" for code in sorted(codes)]


_DESCRIBES: Final = _hex(*codes_of(Role.START))
_QUERIES: Final = _hex(EventType.QUERY_EVENT, EventType.QUERY_COMPRESSED_EVENT)
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

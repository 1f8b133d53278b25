"""Rows of rows events, read in the executors: compared, and tracked by key.

A rows event is read with the table map that precedes it. Rows are read by the types in that map alone:
names, signs and character sets change no length, and values that are equal without them are equal with them.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from millrace.binlog.columns.column import ABSENT
from millrace.binlog.columns.metadata import columns_of, decode_optional_metadata
from millrace.binlog.errors import BinlogError
from millrace.binlog.events import TableMapEvent
from millrace.binlog.row_images import Row, RowImages, Values
from millrace.binlog.types import EventType
from spark_jobs.common.content import digest
from spark_jobs.common.events import TABLE_MAP_POST_HEADER, arrow_schema
from spark_jobs.common.transactions import INSTANCE

_PARTIAL: Final = EventType.PARTIAL_UPDATE_ROWS_EVENT.name
_ROW_PARTS: Final = ["definition", "before_bits", "after_bits", "type", "images"]
_INSTANCE_SCHEMA: Final = "source string, epoch int, transaction string, lap bigint"
_STATE_SCHEMA: Final = (
    f"{_INSTANCE_SCHEMA}, database string, table string, offset bigint, sub_index bigint, nth bigint, "
    "key bigint, old bigint, new bigint, shown string"
)
_SHOWN: Final = 200
"""Characters of a key that are shown."""


def with_table_maps(events: DataFrame) -> DataFrame:
    """Return the rows events with the ``definition`` of their table; null where it lies before the input.

    A rows event belongs to the last table map of its table id before it in its log file. Table maps come
    with every statement and stay the same for long; only one that differs from the one before it counts.
    """
    stream = ["source", "epoch", "log_file", "table_id"]
    place = sf.struct("offset", "sub_index")
    order = Window.partitionBy(*stream).orderBy("offset", "sub_index")
    maps = events.where(sf.col("type") == EventType.TABLE_MAP_EVENT.name)
    differs = ~sf.lag("definition").over(order).eqNullSafe(sf.col("definition"))
    changed = maps.withColumn("differs", differs).where("differs")
    valid = changed.select(
        *stream, "definition", place.alias("since"), sf.lead(place).over(order).alias("until")
    )
    rows = events.where(sf.col("operation").isNotNull()).drop("definition").withColumn("place", place)
    since, until, at = sf.col("since"), sf.col("until"), sf.col("place")
    conditions = [rows[name] == valid[name] for name in stream]
    joined = rows.join(sf.broadcast(valid), [*conditions, since <= at, until.isNull() | (at < until)], "left")
    return joined.select(*(rows[name] for name in rows.columns if name != "place"), "definition")


class TableRows:
    """Row readers and keys of tables, made once for each definition that occurs."""

    def __init__(self) -> None:
        self.images = cache(self._images)
        self.key = cache(self._key)
        self._columns = cache(self._columns_of)

    @staticmethod
    def _table_map(definition: bytes) -> TableMapEvent:
        return TableMapEvent.decode_fields(definition, 0, len(definition), TABLE_MAP_POST_HEADER)

    def _columns_of(self, definition: bytes) -> Sequence[Any]:
        full = self._table_map(definition)
        types = full.column_types, full.column_metadata, full.null_bits
        return columns_of(TableMapEvent(full.table_id, full.flags, full.database, full.table, *types))

    def rows(self, definition: bytes, *event: Any) -> Sequence[Any]:
        """Return the rows of an event; where they cannot be read, their bytes as if they were one row."""
        before, after, type_, images = event
        try:
            return self.images(definition, before, after, type_).decode(images)
        except BinlogError:
            return [images]

    def _images(self, definition: bytes, before: bytes | None, after: bytes | None, type_: str) -> RowImages:
        """Return the reader of a table's events that have these bitmaps."""
        return RowImages(self._columns(definition), before, after, partial_json=type_ == _PARTIAL)

    def _key(self, definition: bytes) -> tuple[int, ...]:
        """Return the ordinals of the primary key's columns; empty if the table map names none."""
        try:
            metadata = decode_optional_metadata(self._table_map(definition).optional_metadata)
        except BinlogError:
            return ()
        with_prefix = tuple(ordinal for ordinal, _ in metadata.primary_key_with_prefix or ())
        return metadata.simple_primary_key or with_prefix


def contradictions(events: DataFrame, repeated: DataFrame) -> DataFrame:
    """Return those of the repeated transactions that contradict the rows of a table with a key.

    They insert a row that is there already, or change or delete one that is not as they say. What is there is
    known from the change of that key before, if no statement stands between that could have changed it.
    """
    touched = ["source", "epoch", "database", "table"]
    ours = repeated.where("nth > 1").select(*INSTANCE)
    tables = events.where("operation is not null").join(ours, list(INSTANCE), "left_semi")
    of_tables = events.join(sf.broadcast(tables.select(*touched).distinct()), touched, "left_semi")
    maps = events.where(sf.col("type") == EventType.TABLE_MAP_EVENT.name)
    states = row_states(of_tables.where("operation is not null").unionByName(maps))
    statements = events.where("digest is not null").select("source", "epoch", "offset", "sub_index")
    line = states.unionByName(statements, allowMissingColumns=True)
    stream = Window.partitionBy("source", "epoch").orderBy("offset", "sub_index", "nth")
    running = stream.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    stretch = sf.count_if(sf.col("key").isNull()).over(running)
    same = Window.partitionBy(*touched, "stretch", "key").orderBy("offset", "sub_index", "nth")
    followed = line.withColumn("stretch", stretch).where("key is not null")
    known = followed.withColumn("first", sf.row_number().over(same) == 1).withColumn(
        "is", sf.lag("new").over(same)
    )
    wrong = known.where(~sf.col("first") & ~sf.col("is").eqNullSafe(sf.col("old")))
    return wrong.select(*INSTANCE).distinct().join(ours, list(INSTANCE), "left_semi")


def row_states(events: DataFrame) -> DataFrame:
    """Return the changes of rows of tables with a primary key, told apart by ``key``.

    ``old`` and ``new`` are hashes of the row before and after, null where there is none; ``shown`` is the key
    in text. A change of the key is two changes. An event whose images lack columns tells no state; it has one
    line without a key.
    """
    rows = with_table_maps(events).where("definition is not null and lap is not null")
    place = [*INSTANCE, "database", "table", "offset", "sub_index"]
    return rows.select(*place, *_ROW_PARTS).mapInArrow(_state_batches, _STATE_SCHEMA)


def _state_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    tables = TableRows()
    layout = arrow_schema(_STATE_SCHEMA)
    names = layout.names[: layout.get_field_index("nth")]
    for batch in batches:
        places = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        parts = zip(*(batch.column(name).to_pylist() for name in _ROW_PARTS), strict=True)
        lines = [
            (*place, nth, *state)
            for place, (definition, before, after, type_, images) in zip(places, parts, strict=True)
            for nth, state in enumerate(_states(tables, definition, before, after, type_, images))
        ]
        if lines:
            columns = zip(*lines, strict=True)
            made = [pa.array(column, part.type) for column, part in zip(columns, layout, strict=True)]
            yield pa.RecordBatch.from_arrays(made, schema=layout)


def _states(
    tables: TableRows, definition: bytes, *event: Any
) -> Iterator[tuple[int | None, int | None, int | None, str | None]]:
    """Yield key, old and new row of each change in an event, and the key in text."""
    key = tables.key(definition)
    if not key:
        return
    rows = tables.rows(definition, *event)
    if event[2] == _PARTIAL or not all(isinstance(row, tuple) and _is_full(row) for row in rows):
        yield None, None, None, None
        return
    for row in rows:
        before, after = row
        old, new = ((_key_digest(key, values), digest(values)) if values else None for values in row)
        if old is not None and new is not None and old[0] == new[0]:
            yield old[0], old[1], new[1], _shown_key(key, after)
            continue
        if old is not None:
            yield old[0], old[1], None, _shown_key(key, before)
        if new is not None:
            yield new[0], None, new[1], _shown_key(key, after)


def _is_full(row: Row) -> bool:
    return not any(values is not None and ABSENT in values for values in row)


def _key_digest(key: Sequence[int], values: Values) -> int:
    return digest(*(values[ordinal] for ordinal in key))


def _shown_key(key: Sequence[int], values: Values) -> str:
    parts = (values[ordinal] for ordinal in key)
    text = [
        part.decode("utf-8", "backslashreplace") if isinstance(part, bytes) else str(part) for part in parts
    ]
    return ", ".join(text)[:_SHOWN]

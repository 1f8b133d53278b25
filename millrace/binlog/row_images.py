"""Row images: the bytes of a rows event to tuples of values, and back.

A rows event holds rows one after the other; a row is a before image, an after image or both. An image is a
bitmap of the NULL columns among those present, one bit each, lowest first, then the values that are not
NULL. Which columns are present is told once for the event. In a PARTIAL_UPDATE_ROWS event each after image
starts with options (a length-encoded integer) and, if bit 0 of them is set, a bitmap with a bit for each
JSON column of the table, present or not: set where the value is a :class:`JsonDiffs` instead of a document.

Reading is fast because nothing about a column is decided per row. For each bitmap of NULL columns that
occurs, a *plan* is made once: runs of columns of fixed size, together with the length of the string after
them, are cut out by one call of :mod:`struct`; then only those values are converted that are not what they
should be already.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Self

from millrace.binlog.columns.column import ABSENT, Absent, Column
from millrace.binlog.columns.declaration import AvroOptions, ColumnCodec, Convert, codec_of
from millrace.binlog.columns.json_diffs import JsonDiffs
from millrace.binlog.columns.strings import claimed_size
from millrace.binlog.columns.types import COMPRESSED_TYPES, ColumnType
from millrace.binlog.errors import (
    EncodeError,
    InvalidValueError,
    MalformedError,
    TrailingBytesError,
    TruncatedError,
    UnrepresentableError,
)
from millrace.binlog.events.rows import PartialUpdateRowsEvent, RowsEvent
from millrace.binlog.inflate import MAX_UNPACKED, Room

__all__ = ["AvroRows", "Payloads", "Row", "RowImages", "Values", "present_ordinals"]

Values = tuple[Any, ...]
"""One image: a value for each column; None for NULL, ``ABSENT`` for a column that is not in it."""

Row = tuple[Values | None, Values | None]
"""Before image and after image; None for the one that the kind of event does not have."""

Payloads = tuple[list[Any] | None, list[Any] | None]
"""Payloads of the before and the after image; None for the image that the kind of event does not have."""

_MAX_PLANS = 1024
_MAX_PLANNED = 65_536
"""How many columns the plans of one kind of image may have in all."""
_SHORT = 32
"""Rows up to this size are looked for again right after themselves: an event may hold millions of them."""
_ALIKE = 1024
"""How many of them are compared at once."""
_UNREPRESENTABLE = (UnrepresentableError, UnicodeDecodeError, MalformedError)


@dataclass(slots=True)
class AvroRows:
    """Rows as plain values for Avro.

    ``unrepresentable`` tells of values that their Avro type cannot hold, which are None in ``rows``: by
    number of the row and image (0 before, 1 after), the columns' ordinals with the original text, or bytes
    where there is no text.
    """

    rows: list[Row]
    unrepresentable: dict[tuple[int, int], dict[int, str | bytes]] = field(default_factory=dict)


def present_ordinals(bitmap: bytes, column_count: int) -> tuple[int, ...]:
    """Return the ordinals whose bits are set, lowest bit first; raise where the bitmap has another size."""
    if len(bitmap) != (column_count + 7) // 8:
        raise InvalidValueError(f"a bitmap of {len(bitmap)} bytes does not fit {column_count} columns")
    return tuple(ordinal for ordinal in range(column_count) if bitmap[ordinal >> 3] >> (ordinal & 7) & 1)


def _again(rows: bytes, start: int, end: int) -> int:
    """Count how often the bytes from ``start`` to ``end`` are repeated right after themselves."""
    piece, at = rows[start:end], end
    if not piece or not rows.startswith(piece, at):
        return 0
    block = piece * _ALIKE
    while rows.startswith(block, at):
        at += len(block)
    while rows.startswith(piece, at):
        at += len(piece)
    return (at - end) // len(piece)


_LENGTH_CODES = ("", "B", "H", "3s", "I")


@dataclass(slots=True)
class _Plan:
    """How to read the images that have one bitmap of NULL columns.

    ``segments`` are calls of struct, each with its size and what its last number is: 0 a value, 1 the
    length of the value after it, 2 such a length in three bytes. ``skips`` are the sizes of fixed columns
    and of the length after them. The conversions go by the index among the values read; ``holes`` are then
    filled in.
    """

    segments: tuple[tuple[Any, int, int], ...]
    skips: tuple[tuple[int, int], ...]
    natural: tuple[tuple[int, Convert], ...]
    avro: tuple[tuple[int, Convert], ...]
    holes: tuple[tuple[int, Absent | None], ...]


class _Image:
    """One kind of image of an event: its present columns, and the plans made so far."""

    def __init__(self, codecs: Sequence[ColumnCodec], bitmap: bytes, options: AvroOptions) -> None:
        self.codecs = codecs
        self.ordinals = present_ordinals(bitmap, len(codecs))
        self.null_size = (len(self.ordinals) + 7) // 8
        self.packed = frozenset(
            ordinal for ordinal in self.ordinals if codecs[ordinal].column.type in COMPRESSED_TYPES
        )
        self.options = options
        self.plans: dict[bytes, _Plan] = {}
        self.max_plans = min(_MAX_PLANS, max(16, _MAX_PLANNED // max(1, len(codecs))))

    def plan(self, null_bits: bytes) -> _Plan:
        """Find or make the plan for a bitmap of NULL columns."""
        plan = self.plans.get(null_bits)
        if plan is None:
            if len(null_bits) != self.null_size:
                raise TruncatedError(f"a bitmap of NULL columns needs {self.null_size} bytes")
            if len(self.plans) >= self.max_plans:
                self.plans.clear()
            plan = self.plans[null_bits] = self._make_plan(null_bits)
        return plan

    def filled(self, null_bits: bytes) -> list[int]:
        """Return the ordinals of the columns that are present and not NULL."""
        return [
            ordinal
            for index, ordinal in enumerate(self.ordinals)
            if not null_bits[index >> 3] >> (index & 7) & 1
        ]

    def _make_plan(self, null_bits: bytes) -> _Plan:
        filled = self.filled(null_bits)
        segments = []
        skips = []
        code = "<"
        for codec in (self.codecs[ordinal] for ordinal in filled):
            if codec.struct_code:
                code += codec.struct_code
                continue
            skips.append((struct.calcsize(code), codec.length_bytes))
            code += _LENGTH_CODES[codec.length_bytes]
            layout = struct.Struct(code)
            segments.append((layout.unpack_from, layout.size, 2 if codec.length_bytes == 3 else 1))
            code = "<"
        if code != "<":
            layout = struct.Struct(code)
            segments.append((layout.unpack_from, layout.size, 0))
            skips.append((layout.size, 0))
        natural = []
        avro = []
        for index, ordinal in enumerate(filled):
            codec = self.codecs[ordinal]
            natural.append((index, codec.decode))
            convert = codec.avro_decoder(self.options)
            if convert is not None:
                avro.append((index, convert))
        present = set(self.ordinals)
        empty = sorted(set(range(len(self.codecs))) - set(filled))
        holes = [(ordinal, None if ordinal in present else ABSENT) for ordinal in empty]
        return _Plan(tuple(segments), tuple(skips), tuple(natural), tuple(avro), tuple(holes))

    def payloads(self, data: bytes, position: int) -> tuple[list[Any], _Plan, int]:
        """Cut one image into the payloads of its columns that are not NULL; prove that it was all there."""
        null_bits = data[position : position + self.null_size]
        plan = self.plans.get(null_bits) or self.plan(null_bits)
        position += self.null_size
        values: list[Any] = []
        try:
            for unpack_from, size, prefixed in plan.segments:
                values += unpack_from(data, position)
                position += size
                if prefixed:
                    length = values[-1] if prefixed == 1 else int.from_bytes(values[-1], "little")
                    end = position + length
                    values[-1] = data[position:end]
                    position = end
        except struct.error:
            position = len(data) + 1
        if position > len(data):
            raise TruncatedError(f"a row image reaches past the end of its {len(data)} bytes")
        return values, plan, position

    def skip(self, data: bytes, position: int) -> int:
        """Step over one image."""
        null_bits = data[position : position + self.null_size]
        plan = self.plans.get(null_bits) or self.plan(null_bits)
        position += self.null_size
        for fixed, prefix in plan.skips:
            position += fixed
            end = position + prefix
            position = end + int.from_bytes(data[position:end], "little")
        if position > len(data):
            raise TruncatedError(f"a row image reaches past the end of its {len(data)} bytes")
        return position

    def decode(self, data: bytes, position: int) -> tuple[Values, int]:
        """Read one image as natural values."""
        values, plan, position = self.payloads(data, position)
        for index, convert in plan.natural:
            values[index] = convert(values[index])
        for ordinal, hole in plan.holes:
            values.insert(ordinal, hole)
        return tuple(values), position

    def filled_payloads(self, data: bytes, position: int) -> tuple[list[Any], int]:
        """Cut one image into payloads, one for each column of the table."""
        values, plan, position = self.payloads(data, position)
        for ordinal, hole in plan.holes:
            values.insert(ordinal, hole)
        return values, position

    def convert_each(
        self, values: list[Any], plan: _Plan, null_bits: bytes, room: Room
    ) -> dict[int, str | bytes]:
        """Convert payloads for Avro in place, one by one; give the originals of those that cannot be."""
        converts = dict(plan.avro)
        lost: dict[int, str | bytes] = {}
        for index, ordinal in enumerate(self.filled(null_bits)):
            convert = converts.get(index)
            if convert is None:
                continue
            payload = values[index]
            if ordinal in self.packed and not room.takes(claimed_size(payload)):
                values[index] = None
                lost[ordinal] = payload
                continue
            try:
                values[index] = convert(payload)
            except _UNREPRESENTABLE:
                values[index] = None
                lost[ordinal] = self.original(ordinal, payload)
        return lost

    def original(self, ordinal: int, payload: Any) -> str | bytes:
        """Return the text of a value, or its bytes where it has none."""
        codec = self.codecs[ordinal]
        try:
            return codec.text(codec.decode(payload))
        except _UNREPRESENTABLE:
            return payload if isinstance(payload, bytes) else struct.pack(f"<{codec.struct_code}", payload)

    def encode(self, values: Values, *, null_fill: bool) -> bytes:
        """Write one image."""
        if len(values) != len(self.codecs):
            raise EncodeError(f"{len(values)} values for {len(self.codecs)} columns")
        bits = 0
        parts = []
        present = set(self.ordinals)
        for ordinal, value in enumerate(values):
            if (value is ABSENT) is (ordinal in present):
                raise EncodeError(f"column {ordinal + 1} is {'' if value is ABSENT else 'not '}absent")
        for index, ordinal in enumerate(self.ordinals):
            if values[ordinal] is None:
                bits |= 1 << index
            else:
                parts.append(_encode_value(self.codecs[ordinal], values[ordinal]))
        if null_fill:
            bits |= (1 << self.null_size * 8) - (1 << len(self.ordinals))
        return bits.to_bytes(self.null_size, "little") + b"".join(parts)


def _converted(values: list[Any], plan: _Plan) -> bool:
    """Convert payloads for Avro in place; tell whether all of them can be."""
    try:
        for index, convert in plan.avro:
            values[index] = convert(values[index])
    except _UNREPRESENTABLE:
        return False
    return True


def _encode_value(codec: ColumnCodec, value: Any) -> bytes:
    payload = value.binary if isinstance(value, JsonDiffs) else codec.encode(value)
    try:
        if codec.struct_code:
            return struct.pack("<" + codec.struct_code, payload)
        return len(payload).to_bytes(codec.length_bytes, "little") + payload
    except (struct.error, OverflowError) as error:
        raise EncodeError(f"{value!r} does not fit {codec.sql_type()}: {error}") from error


class RowImages:
    """Reads and writes the rows of the events that share a table map and the bitmaps of present columns.

    ``before`` and ``after`` are these bitmaps, None for the image that the kind of event does not have:
    inserts have no before image, deletes no after image. ``partial_json`` is set for PARTIAL_UPDATE_ROWS
    events.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        before: bytes | None,
        after: bytes | None,
        *,
        options: AvroOptions | None = None,
        partial_json: bool = False,
        max_unpacked: int = MAX_UNPACKED,
    ) -> None:
        if before is None and after is None:
            raise InvalidValueError("rows have a before image, an after image or both")
        if partial_json and any(column.type in COMPRESSED_TYPES for column in columns):
            raise InvalidValueError("partial JSON, of MySQL, in a table with compressed columns, of MariaDB")
        options = options or AvroOptions()
        self.columns = tuple(columns)
        self.partial_json = partial_json
        self._codecs = [codec_of(column) for column in columns]
        self._before = None if before is None else _Image(self._codecs, before, options)
        self._after = None if after is None else _Image(self._codecs, after, options)
        self._json = [column.ordinal for column in columns if column.type is ColumnType.JSON]
        self._options = options
        self._max_unpacked = max_unpacked
        # Values of MariaDB's compressed columns are counted as they are unpacked, each of them.
        self._short = 0 if any(column.type in COMPRESSED_TYPES for column in columns) else _SHORT

    @classmethod
    def of_event(
        cls, columns: Sequence[Column], event: RowsEvent, *, options: AvroOptions | None = None
    ) -> Self:
        """Make what reads ``event.rows``, and those of events with the same columns and bitmaps."""
        return cls(
            columns,
            *event.bitmaps,
            options=options,
            partial_json=isinstance(event, PartialUpdateRowsEvent),
        )

    def decode(self, rows: bytes) -> list[Row]:
        """Read all rows as natural values: those that :meth:`encode` makes the same bytes of.

        Raise :class:`TruncatedError` where a row reaches past the end, and other :class:`MalformedError`
        where a value is none of its type.
        """
        return list(self.each(rows))

    def each(self, rows: bytes) -> Iterator[Row]:
        """Read the rows one by one, as :meth:`decode` does.

        A short row that comes again and again is read once, and is the same object each time.
        """
        if self.partial_json:
            yield from (row for row, _ in self._partial_rows(rows))
            return
        position, end, count, short = 0, len(rows), 0, self._short
        before, after = self._before, self._after
        one = before or after
        assert one is not None
        while position < end or (not end and not count and self._empty_row):
            start = position
            first, position = one.decode(rows, position)
            row: Row
            if before is None:
                row = None, first
            elif after is None:
                row = first, None
            else:
                second, position = after.decode(rows, position)
                row = first, second
            yield row
            if position - start <= short and (more := _again(rows, start, position)):
                yield from repeat(row, more)
                position += more * (position - start)
            count += 1
            if not position:
                self._refuse_bytes_without_columns(end)

    def payloads(self, rows: bytes, position: int = 0) -> Iterator[Payloads]:
        """Cut rows from ``position`` on into the payloads of their columns, without reading what these mean.

        A payload is what :meth:`ColumnCodec.decode` takes; None stands for NULL and ``ABSENT`` for a column
        that the image leaves out. A partial JSON value is a :class:`JsonDiffs`. Raise as :meth:`decode`
        does where a row reaches past the end. A short row that comes again is the same object.
        """
        end, count, short = len(rows), 0, self._short
        before, after = self._before, self._after
        while position < end or (not end and not count and self._empty_row):
            first = second = None
            start = position
            if before is not None:
                first, position = before.filled_payloads(rows, position)
            partial: set[int] = set()
            if self.partial_json:
                partial, position = self._partial_bits(rows, position)
            if after is not None:
                second, position = after.filled_payloads(rows, position)
                for ordinal in partial:
                    if second[ordinal] is not None and second[ordinal] is not ABSENT:
                        second[ordinal] = JsonDiffs(second[ordinal])
            row = first, second
            yield row
            if position - start <= short and (more := _again(rows, start, position)):
                yield from repeat(row, more)
                position += more * (position - start)
            count += 1
            if not position:
                self._refuse_bytes_without_columns(end)

    def avro(self, rows: bytes) -> AvroRows:
        """Read all rows as the plain values of :meth:`ColumnCodec.avro_type`.

        Raise :class:`TruncatedError` where a row reaches past the end. Nothing else is an error: what a type
        cannot hold is None, and listed with its original; so are compressed values as soon as those of the
        event unpack to more than ``max_unpacked`` bytes in all.
        """
        if self.partial_json:
            return self._partial_avro(rows)
        result = AvroRows([])
        found = result.rows
        room = Room(self._max_unpacked)
        images = [(n, image) for n, image in enumerate((self._before, self._after)) if image is not None]
        position, end = 0, len(rows)
        while position < end or (not end and not found and self._empty_row):
            row: list[Values | None] = [None, None]
            for which, image in images:
                start = position
                values, plan, position = image.payloads(rows, start)
                if image.packed or not _converted(values, plan):
                    values, _, _ = image.payloads(rows, start)
                    lost = image.convert_each(values, plan, rows[start : start + image.null_size], room)
                    if lost:
                        result.unrepresentable[len(found), which] = lost
                for ordinal, hole in plan.holes:
                    values.insert(ordinal, hole)
                row[which] = tuple(values)
            found.append((row[0], row[1]))
            if not position:
                self._refuse_bytes_without_columns(end)
        return result

    def starts(self, rows: bytes) -> Iterator[int]:
        """Yield the offset at which each row starts, without reading values; raise as :meth:`decode` does."""
        before, after, partial = self._before, self._after, self.partial_json
        position, end, count = 0, len(rows), 0
        while position < end or (not end and not count and self._empty_row):
            start = position
            yield position
            if before is not None:
                position = before.skip(rows, position)
            if partial:
                _, position = self._partial_bits(rows, position)
            if after is not None:
                position = after.skip(rows, position)
            size = position - start
            if size <= _SHORT and (more := _again(rows, start, position)):
                yield from range(position, position + more * size, size)
                position += more * size
            count += 1
            if not position:
                self._refuse_bytes_without_columns(end)

    def count(self, rows: bytes) -> int:
        """Count the rows without reading their values; raise as :meth:`decode` does."""
        return sum(1 for _ in self.starts(rows))

    def null_fill(self, rows: bytes) -> bool:
        """Return whether the unused bits after a bitmap of NULL columns are set.

        MariaDB and MySQL 5 set them, MySQL 8 does not. Only the first row is looked at: a server writes all
        of them alike. False where there is none.
        """
        position = 0
        for image in (self._before, self._after):
            if image is None or not rows:
                continue
            if self.partial_json and image is self._after:
                _, position = self._partial_bits(rows, position)
            used = len(image.ordinals)
            if used & 7:
                last = position + (used >> 3)
                if last >= len(rows):
                    raise TruncatedError(f"a bitmap of NULL columns needs {image.null_size} bytes")
                return bool(rows[last] >> (used & 7) & 1)
            position = image.skip(rows, position)
        return False

    def encode(self, rows: Iterable[Row], *, null_fill: bool = False) -> bytes:
        """Write rows of natural values; the inverse of :meth:`decode`.

        ``null_fill`` is what :meth:`null_fill` gave. Raise :class:`InvalidValueError` where a value does
        not fit its column, or is ABSENT where the column is present, or the reverse.
        """
        parts: list[bytes] = []
        last: Row | None = None
        for row in rows:
            if last is not None and row[0] is last[0] and row[1] is last[1]:
                parts.append(parts[-1])
                continue
            written = b""
            for image, values in zip((self._before, self._after), row, strict=True):
                if (image is None) is not (values is None):
                    raise EncodeError("a row has other images than its event")
                if image is not None and values is not None:
                    if self.partial_json and image is self._after:
                        written += self._encode_partial_bits(values)
                    written += image.encode(values, null_fill=null_fill)
            parts.append(written)
            last = row
        return b"".join(parts)

    @property
    def _empty_row(self) -> bool:
        """Whether the event inserts one row that takes no bytes, for no column is present.

        MySQL logs ``INSERT INTO t () VALUES ()`` so with ``binlog_row_image=MINIMAL``, one row in an event,
        and both servers insert a row of defaults for it. A DELETE or UPDATE without columns finds no row:
        servers log none, and say "Can't find record" (1032) to one that is made.
        """
        after = self._after
        return self._before is None and after is not None and bool(self.columns) and not after.ordinals

    @staticmethod
    def _refuse_bytes_without_columns(end: int) -> None:
        if end:
            raise TrailingBytesError(f"{end} bytes of rows in which no column is present")

    def _partial_bits(self, rows: bytes, position: int) -> tuple[set[int], int]:
        """Read what stands in front of a partial after image: the JSON columns whose values are diffs."""
        if position >= len(rows):
            raise TruncatedError("the options of a partial row image are missing")
        options = rows[position]
        position += 1
        if options > 1:
            raise InvalidValueError(f"options {options:#x} of a partial row image are not known")
        if not options:
            return set(), position
        size = (len(self._json) + 7) // 8
        bitmap = rows[position : position + size]
        if len(bitmap) != size:
            raise TruncatedError(f"a bitmap of partial columns needs {size} bytes")
        partial = {
            ordinal for index, ordinal in enumerate(self._json) if bitmap[index >> 3] >> (index & 7) & 1
        }
        return partial, position + size

    def _encode_partial_bits(self, values: Values) -> bytes:
        bits = sum(
            1 << index for index, ordinal in enumerate(self._json) if isinstance(values[ordinal], JsonDiffs)
        )
        return b"\x01" + bits.to_bytes((len(self._json) + 7) // 8, "little") if bits else b"\0"

    def _partial_rows(self, rows: bytes) -> Iterable[tuple[Row, set[int]]]:
        before, after = self._before, self._after
        if before is None or after is None:
            raise InvalidValueError("partial rows are updates: they have both images")
        position = 0
        while position < len(rows):
            first, position = before.decode(rows, position)
            partial, position = self._partial_bits(rows, position)
            values, position = after.decode(rows, position)
            second = tuple(
                JsonDiffs(value.binary) if ordinal in partial and value not in (None, ABSENT) else value
                for ordinal, value in enumerate(values)
            )
            yield (first, second), partial

    def _partial_avro(self, rows: bytes) -> AvroRows:
        result = AvroRows([])
        for (before, after), _ in self._partial_rows(rows):
            assert before is not None
            assert after is not None
            images = []
            for which, values in enumerate((before, after)):
                plain, lost = self._convert_decoded(values, before)
                if lost:
                    result.unrepresentable[len(result.rows), which] = lost
                images.append(plain)
            result.rows.append((images[0], images[1]))
        return result

    def _convert_decoded(self, values: Values, before: Values) -> tuple[Values, dict[int, str | bytes]]:
        plain: list[Any] = []
        lost: dict[int, str | bytes] = {}
        for ordinal, (codec, value) in enumerate(zip(self._codecs, values, strict=True)):
            if value is None or value is ABSENT:
                plain.append(value)
                continue
            try:
                if isinstance(value, JsonDiffs):
                    plain.append(value.applied_text(before[ordinal]))
                else:
                    convert = codec.avro_decoder(self._options)
                    payload = codec.encode(value)
                    plain.append(payload if convert is None else convert(payload))
            except _UNREPRESENTABLE:
                plain.append(None)
                lost[ordinal] = value.binary if isinstance(value, JsonDiffs) else codec.text(value)
        return tuple(plain), lost

"""The known rows of tables, which supply the columns that images lack.

With ``binlog_row_image=MINIMAL`` or ``NOBLOB`` the image before a change has the key and little else, and the
one after it the columns that the statement set. Columns that an update leaves out have not changed. So
earlier changes of the row with the same key complete both images: the event is what the server would have
logged with ``FULL``, as far as it is known. Unknown columns stay missing.

Not every server guarantees that nothing else has changed. MariaDB logs a REPLACE as an update if it
can, and omits the columns that got their default. There an update is complete only if the
statement is known to be an UPDATE and the key is not among the columns of the image after it.

Known rows are kept as parts of images, with the bytes of each value as in the log. Rows are discarded
if they cannot be tracked: those of a table whose definition a statement touches, whose rows wait in the dead
letter topic, or that is not understood; those of all tables if changes are missing or were logged as
statements. A generated column is taken from the image alone: the server may compute it again without logging.

:class:`KnownRows` holds the changes since the last commit in layers, and the :class:`RowStore` the committed
rows, with the row mapper's state of that commit. So the store is never ahead of Kafka; if it lags behind,
the events in between are read again (:class:`Publisher`, ``learns_only``).
"""

import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from millrace.binlog.columns import ABSENT, Column, ColumnType, codec_of
from millrace.binlog.columns.column import Absent
from millrace.binlog.errors import BinlogError, InvalidValueError, TruncatedError
from millrace.binlog.events.rows import PartialUpdateRowsEvent, RowsEvent, RowsOperation
from millrace.binlog.names import folded
from millrace.binlog.row_images import present_ordinals
from millrace.binlog.statement import Statement, StatementKind
from millrace.binlog.table import ResolvedTable, TableDefinition
from millrace.rowmapper.logged_rows import RowBatch

Name = tuple[str, str]
"""Database and table, as the log has them."""

StoredValue = bytes | Absent | None
"""A value in an image, its length in front of it where it has one; None for NULL."""

Image = list[StoredValue]
"""A piece for each column of the table."""

LARGEST: Final = 1024 * 1024
"""Bytes of a value; one that is larger is not kept."""

_LAYER_BYTES: Final = 16 * 1024 * 1024
"""What may be held in memory before a commit is due."""

_PER_ROW: Final = 200
_FINGERPRINT: Final = 16
_BITMAPS: Final = 256
"""Combinations of present columns that are kept per table."""

_HARMLESS: Final = {"GRANT", "REVOKE", "FLUSH", "ANALYZE", "SET", "CHECK", "OPTIMIZE", ""}
"""First words of statements that change no row."""
_ROWLESS: Final = {
    *("USER", "ROLE", "VIEW", "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE", "SERVER", "SEQUENCE"),
    "INDEX",
}
"""What DDL is about that changes no rows of tables."""


class ValueTooLargeError(BinlogError):
    """A row does not fit into a record with a value that its event lacks, and so cannot be referred to."""


class RowStore(Protocol):
    """Rows that were committed."""

    def names(self) -> Collection[Name]:
        """Return the tables that have rows here."""

    def get(self, name: Name, key: bytes) -> bytes | None:
        """Return a row; None where none is known."""

    def apply(
        self, forgotten: Iterable[Name], rows: Mapping[Name, Mapping[bytes, bytes | None]], state: bytes
    ) -> None:
        """Forget tables, then put rows, or drop them (None), and note the state; all of it or nothing."""


class RowLayout:
    """How the images of a table are cut into pieces, and which of them are its key."""

    def __init__(
        self, name: Name, columns: Sequence[Column], key: Sequence[int], generated: frozenset[int]
    ) -> None:
        codecs = [codec_of(column) for column in columns]
        self.name = name
        self.columns = tuple(columns)
        self.key = tuple(key)
        self.generated = generated
        self._sizes = [
            (struct.calcsize("<" + codec.struct_code), 0) if codec.struct_code else (0, codec.length_bytes)
            for codec in codecs
        ]
        self._json = [column.ordinal for column in columns if column.type is ColumnType.JSON]
        self._bitmaps: dict[bytes, tuple[int, ...]] = {}
        self.all_ordinals = tuple(range(len(codecs)))
        described = [(column.name, column.type.name, column.metadata, column.unsigned) for column in columns]
        told = repr((described, self.key, sorted(generated)))
        encoded = told.encode(errors="backslashreplace")
        self._fingerprint = hashlib.blake2b(encoded, digest_size=_FINGERPRINT).digest()

    @classmethod
    def of(cls, table: ResolvedTable, definition: TableDefinition) -> "RowLayout | None":
        """Make that of a table; None where rows cannot be told apart, or more is not known than needed.

        A table that keeps its history (MariaDB) has several rows under one key.
        """
        columns = table.columns
        key = sorted((c.key_position, c.ordinal) for c in columns if c.key_position is not None)
        defined = {column.name: column.generated for column in definition.columns}
        if not key or any(column.name not in defined for column in columns):
            return None
        generated = [column for column in columns if defined[str(column.name)]]
        if any(defined[str(column.name)] == "STORED" and _may_be_period(column) for column in generated):
            return None
        name = table.database, table.table
        return cls(name, columns, [ordinal for _, ordinal in key], frozenset(c.ordinal for c in generated))

    def ordinals(self, bitmap: bytes) -> tuple[int, ...]:
        """Return the columns of images with a bitmap."""
        found = self._bitmaps.get(bitmap)
        if found is None:
            if len(self._bitmaps) >= _BITMAPS:
                self._bitmaps.clear()
            found = self._bitmaps[bitmap] = present_ordinals(bitmap, len(self._sizes))
        return found

    def cut(self, ordinals: tuple[int, ...], data: bytes, position: int) -> tuple[Image, int]:
        """Cut the image at a position, and give the position after it."""
        nulls = int.from_bytes(data[position : position + (len(ordinals) + 7) // 8], "little")
        position += (len(ordinals) + 7) // 8
        image: Image = [ABSENT] * len(self._sizes)
        sizes = self._sizes
        for ordinal in ordinals:
            if nulls & 1:
                image[ordinal] = None
            else:
                size, prefix = sizes[ordinal]
                if prefix:
                    size = prefix + int.from_bytes(data[position : position + prefix], "little")
                image[ordinal] = data[position : position + size]
                position += size
            nulls >>= 1
        if position > len(data):
            raise TruncatedError(f"a row image reaches past the end of its {len(data)} bytes")
        return image, position

    def whole(self, rows: bytes) -> Iterator[Image]:
        """Cut images with all columns."""
        position = 0
        while position < len(rows):
            image, position = self.cut(self.all_ordinals, rows, position)
            yield image

    def is_whole(self, image: Image) -> bool:
        """Return whether an image lacks generated columns alone."""
        return all(piece is not ABSENT or ordinal in self.generated for ordinal, piece in enumerate(image))

    def diffs(self, data: bytes, position: int) -> tuple[list[int], int]:
        """Return the JSON columns that a partial image has as diffs only, and its start."""
        options = data[position : position + 1]
        position += 1
        if options == b"\0":
            return [], position
        if options != b"\1":
            raise InvalidValueError(f"options {options.hex()} of a partial row image are not known")
        size = (len(self._json) + 7) // 8
        bits = int.from_bytes(data[position : position + size], "little")
        return [ordinal for index, ordinal in enumerate(self._json) if bits >> index & 1], position + size

    def join(self, image: Image) -> tuple[bytes, bytes]:
        """Return the bitmap of the columns of an image, and its bytes."""
        present = nulls = count = 0
        pieces = []
        for ordinal, piece in enumerate(image):
            if piece is None:
                nulls |= 1 << count
            elif piece is ABSENT:
                continue
            else:
                pieces.append(piece)
            present |= 1 << ordinal
            count += 1
        bitmap = present.to_bytes((len(image) + 7) // 8, "little")
        return bitmap, nulls.to_bytes((count + 7) // 8, "little") + b"".join(pieces)  # type: ignore[arg-type]  # none is ABSENT

    def key_of(self, image: Image) -> bytes | None:
        """Return what tells a row from the others; None where an image lacks a part of it."""
        parts = []
        for ordinal in self.key:
            piece = image[ordinal]
            if not isinstance(piece, bytes):
                return None
            parts.append(piece)
        return b"".join(parts)

    def stored(self, image: Image) -> bytes:
        """Write a row for the store."""
        kept = [ABSENT if piece and len(piece) > LARGEST else piece for piece in image]  # type: ignore[arg-type]  # ABSENT is false
        return b"".join((self._fingerprint, *self.join(kept)))

    def restored(self, value: bytes) -> Image | None:
        """Read a row of the store; None for one that was written by another definition of the table."""
        if value[:_FINGERPRINT] != self._fingerprint:
            return None
        start = _FINGERPRINT + (len(self._sizes) + 7) // 8
        return self.cut(self.ordinals(value[_FINGERPRINT:start]), value, start)[0]

    def contradict(self, known: Image, image: Image) -> bool:
        """Return whether an image has another value than is known; one JSON document has several forms."""
        return any(
            mine is not ABSENT and theirs is not ABSENT and mine != theirs and ordinal not in self._json
            for ordinal, (mine, theirs) in enumerate(zip(known, image, strict=True))
        )


def _may_be_period(column: Column) -> bool:
    """Return whether a column, generated and stored, may be ROW START or ROW END."""
    return column.type in (ColumnType.TIMESTAMP2, ColumnType.LONGLONG)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of an event whose completed images have the same columns.

    ``event`` has these rows alone; ``first_row`` is the number of the first of them in the whole.
    """

    event: RowsEvent
    first_row: int
    count: int


@dataclass(slots=True)
class _Layer:
    """What was learnt from a range of the log."""

    rows: dict[Name, dict[bytes, bytes | None]] = field(default_factory=dict)
    forgotten: set[Name] = field(default_factory=set)
    size: int = 0

    def put(self, name: Name, key: bytes, value: bytes | None) -> None:
        self.rows.setdefault(name, {})[key] = value
        self.size += _PER_ROW + len(key) + len(value or b"")

    def forget(self, name: Name) -> None:
        self.rows.pop(name, None)
        self.forgotten.add(name)

    def add(self, later: "_Layer") -> None:
        """Take in what was learnt after this."""
        for name in later.forgotten:
            self.forget(name)
        for name, rows in later.rows.items():
            self.rows.setdefault(name, {}).update(rows)
        self.size += later.size


class KnownRows:
    """What is known of the rows of the tables that ``selects`` names; a companion of the row mapper's state.

    Without a store nothing is known of any table. Where ``stop`` is set, rows of the transaction at its first
    offset are only learned up to its coordinate, the offset of an event and a row of it: so far they are
    published.
    """

    def __init__(
        self, store: RowStore | None = None, selects: Callable[[str, str], bool] = lambda *_: False
    ) -> None:
        self.is_used = store is not None
        """Whether rows of any table are known."""
        self.stop: tuple[int, int, int] | None = None
        self.completed = 0
        """Number of rows with columns that were filled in since this process started."""
        self._store: RowStore = _Rows({}) if store is None else store
        self._selects = selects
        self._chosen: dict[Name, bool] = {}
        self._open, self._settled, self._committing = _Layer(), _Layer(), _Layer()
        self._state = b""

    def concerns(self, database: str, table: str) -> bool:
        """Return whether rows of a table are to be completed."""
        name = database, table
        chosen = self._chosen.get(name)
        if chosen is None:
            if len(self._chosen) > 10_000:
                self._chosen.clear()
            chosen = self._chosen[name] = self._selects(database, table)
        return chosen

    # -- with commits -----------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether so much was learnt that a commit should let go of it."""
        return self._open.size + self._settled.size >= _LAYER_BYTES

    @property
    def full(self) -> bool:
        """Whether a stage should yield as soon as it can, so that this can be let go of."""
        return self._open.size >= _LAYER_BYTES

    def settle(self) -> None:
        """Record that the stage's state has reached what was learnt."""
        self._settled.add(self._open)
        self._open = _Layer()

    def committing(self, state: bytes) -> None:
        """Record that settled rows are being committed with a state."""
        self._committing, self._settled, self._state = self._settled, _Layer(), state

    def committed(self) -> None:
        """Write what was committed to the store."""
        layer = self._committing
        self._store.apply(layer.forgotten, layer.rows, self._state)
        self._committing = _Layer()

    # -- forgetting -------------------------------------------------------------------------------------

    def forget(self, database: str, table: str) -> None:
        """Forget the rows of a table."""
        name = database, table
        layers = (self._open, self._settled, self._committing)
        if name in self._store.names() or any(name in layer.rows for layer in layers):
            self._open.forget(name)

    def forget_spelled(self, database: str, table: str | None = None) -> None:
        """Discard the rows of a table, or of a database, whatever the case of its name."""
        wanted = folded(database), None if table is None else folded(table)
        for name in self._names():
            if folded(name[0]) == wanted[0] and wanted[1] in (None, folded(name[1])):
                self._open.forget(name)

    def forget_all(self) -> None:
        """Forget everything: changes of unknown tables are missing."""
        for name in self._names():
            self._open.forget(name)

    def follow(self, statement: Statement, database: str) -> None:
        """Forget what a statement may have changed, which was logged as text; all but transaction control."""
        if statement.verb in _HARMLESS or statement.temporary:
            return
        if statement.kind is StatementKind.DDL:
            if statement.object_type in _ROWLESS:
                return
            if statement.database is not None:
                self.forget_spelled(statement.database)
                return
            if statement.tables:
                for each in statement.tables:
                    self.forget_spelled(each.database or database, each.table)
                return
        self.forget_all()

    def _names(self) -> set[Name]:
        layers = (self._open, self._settled, self._committing)
        return {*self._store.names(), *(name for layer in layers for name in layer.rows)}

    # -- learning ---------------------------------------------------------------------------------------

    def stop_of(self, transaction: int, offset: int) -> int | None:
        """Return the row of an event before which to stop; None for none of them."""
        if self.stop is None or self.stop[0] != transaction or offset < self.stop[1]:
            return None
        return self.stop[2] if offset == self.stop[1] else 0

    def learn(self, layout: RowLayout, rows: bytes, wanted: Iterable[bool]) -> None:
        """Take in those whole rows, as of a snapshot, that are ``wanted``."""
        for image, each in zip(layout.whole(rows), wanted, strict=True):
            if each:
                self._put(layout, image)

    def learn_from(self, other: "KnownRows", layout: RowLayout, key: bytes) -> Image | None:
        """Take in what another knows of a row at the same place of the log; None where it knows no more."""
        mine, theirs = self.find(layout, key), other.find(layout, key)
        if theirs is None:
            return None
        row = theirs if mine is None else _over(theirs, mine)
        if mine is not None and _same(mine, row):
            return None
        self._put(layout, row)
        return row

    def complete(
        self, layout: RowLayout, event: RowsEvent, batch: RowBatch, *, tells_all: bool = True
    ) -> list[Run]:
        """Learn the rows of a batch, and return them completed.

        Where not ``tells_all``, columns that an update does not name may have changed. Rows that lack values,
        and those with partial JSON, are returned as they are.
        Raises BinlogError for images that are malformed.
        """
        rows = batch.rows
        unknown: dict[int, tuple[set[int], set[int]]] = {}
        for row, side, ordinal in batch.references:
            unknown.setdefault(row, (set(), set()))[side].add(ordinal)
        partial = isinstance(event, PartialUpdateRowsEvent)
        inserts, deletes = (event.operation is each for each in (RowsOperation.WRITE, RowsOperation.DELETE))
        bitmaps = event.columns_before_image, event.columns_after_image
        columns = [
            None if inserts else layout.ordinals(bitmaps[0]),
            None if deletes else layout.ordinals(bitmaps[1]),
        ]
        if not (inserts or deletes):
            tells_all = tells_all or len(columns[1] or ()) == len(layout.all_ordinals)
        runs = _Runs(event, batch.first_row)
        position = number = 0
        while position < len(rows):
            start = position
            diffs: list[int] = []
            before: Image | None = None
            after: Image | None = None
            if columns[0] is not None:
                before, position = layout.cut(columns[0], rows, position)
            if partial:
                diffs, position = layout.diffs(rows, position)
            if columns[1] is not None:
                after, position = layout.cut(columns[1], rows, position)
            if position == start:
                raise InvalidValueError(f"{len(rows)} bytes of rows in which no column is present")
            as_it_is = partial or number in unknown
            if number in unknown:
                before = before and _without(before, unknown[number][0])
                diffs = [*diffs, *unknown[number][1]]
            old, new = self._row(layout, before, after, diffs, tells_all=tells_all)
            if as_it_is or (_same(before, old) and _same(after, new)):
                runs.add(bitmaps, rows[start:position])
            else:
                self.completed += 1
                made = [
                    (bitmap, b"") if image is None else layout.join(image)
                    for bitmap, image in zip(bitmaps, (old, new), strict=True)
                ]
                runs.add((made[0][0], made[1][0]), made[0][1] + made[1][1])
            number += 1
        return runs.found()

    def _row(
        self,
        layout: RowLayout,
        before: Image | None,
        after: Image | None,
        unknown: Iterable[int],
        *,
        tells_all: bool,
    ) -> tuple[Image | None, Image | None]:
        """Take in a row, and give its images completed; of columns ``unknown`` after it nothing is known."""
        if before is None:
            assert after is not None
            self._put(layout, _without(after, unknown))
            return None, after
        key = layout.key_of(before)
        if key is None:
            self._open.forget(layout.name)  # of some row, who knows which, nothing is known any more
            return before, after
        known = self.find(layout, key)
        if known is not None and layout.contradict(known, before):
            known = None
        old = before if known is None else _over(known, before)
        if after is None:
            self._note(layout.name, key, None)
            return old, None
        new = _over(_without(old, layout.generated), after) if tells_all else after
        learnt = _without(new, unknown)
        new_key = layout.key_of(learnt)
        if new_key != key:
            self._note(layout.name, key, None)
        if new_key is not None or tells_all:
            self._put(layout, learnt)
        return old, new

    def _put(self, layout: RowLayout, image: Image) -> None:
        key = layout.key_of(image)
        if key is None:
            self._open.forget(layout.name)
        else:
            self._note(layout.name, key, layout.stored(image))

    def _note(self, name: Name, key: bytes, value: bytes | None) -> None:
        self._open.put(name, key, value)

    def find(self, layout: RowLayout, key: bytes) -> Image | None:
        """Return what is known of a row; None if nothing is."""
        value = self._look_up(layout.name, key)
        return None if value is None else layout.restored(value)

    def _look_up(self, name: Name, key: bytes) -> bytes | None:
        for layer in (self._open, self._settled, self._committing):
            rows = layer.rows.get(name)
            if rows is not None and key in rows:
                return rows[key]
            if name in layer.forgotten:
                return None
        return self._store.get(name, key)


class ReplayedRows(KnownRows):
    """Rows of a snapshot, by key as :meth:`RowLayout.stored` has them; changes are applied to them again.

    The changes are all since a place before the rows were read. So a row may show some of them already. One
    that leaves the key as it is sets columns that this or a later change has set in the row as well, and what
    none of them sets is as it was read. But a row that went to another key may have had its own to itself
    before the row that was read: nothing of that is taken along.
    """

    def __init__(self, rows: Mapping[Name, Mapping[bytes, bytes]]) -> None:
        super().__init__(_Rows(rows), lambda database, table: (database, table) in rows)
        self._rows = rows

    def _note(self, name: Name, key: bytes, value: bytes | None) -> None:
        if key in self._rows[name]:
            super()._note(name, key, value)

    def _row(
        self,
        layout: RowLayout,
        before: Image | None,
        after: Image | None,
        unknown: Iterable[int],
        *,
        tells_all: bool,
    ) -> tuple[Image | None, Image | None]:
        if before is not None and after is not None:
            key = layout.key_of(before)
            if key is not None and layout.key_of(_over(before, after)) != key:
                self._note(layout.name, key, None)
        return super()._row(layout, before, after, unknown, tells_all=tells_all)


class _Rows:
    """Rows in memory, as a store that is only read."""

    def __init__(self, rows: Mapping[Name, Mapping[bytes, bytes]]) -> None:
        self._rows = rows

    def names(self) -> Collection[Name]:
        return self._rows.keys()

    def get(self, name: Name, key: bytes) -> bytes | None:
        return self._rows[name].get(key)

    def apply(
        self, forgotten: Iterable[Name], rows: Mapping[Name, Mapping[bytes, bytes | None]], _: bytes
    ) -> None:
        if forgotten or rows:
            raise NotImplementedError


def _over(image: Image, newer: Image) -> Image:
    """Return an image updated by a newer one."""
    return [mine if theirs is ABSENT else theirs for mine, theirs in zip(image, newer, strict=True)]


def _without(image: Image, ordinals: Iterable[int]) -> Image:
    """Return an image without some columns."""
    left = list(image)
    for ordinal in ordinals:
        left[ordinal] = ABSENT
    return left


def _same(image: Image | None, completed: Image | None) -> bool:
    """Return whether nothing was filled in."""
    if image is None or completed is None or image is completed:
        return True
    return not any(was is ABSENT is not now for was, now in zip(image, completed, strict=True))


class _Runs:
    """Collects rows into runs."""

    def __init__(self, event: RowsEvent, first_row: int) -> None:
        self._event = event
        self._first_row = first_row
        self._bitmaps: tuple[bytes, bytes] | None = None
        self._rows: list[bytes] = []
        self._found: list[Run] = []

    def add(self, bitmaps: tuple[bytes, bytes], row: bytes) -> None:
        if bitmaps != self._bitmaps:
            self._end()
            self._bitmaps = bitmaps
        self._rows.append(row)

    def _end(self) -> None:
        if self._bitmaps is None:
            return
        before, after = self._bitmaps
        rows = b"".join(self._rows)
        event = replace(self._event, columns_before_image=before, columns_after_image=after, rows=rows)  # type: ignore[call-arg]  # its subclasses have the field
        self._found.append(Run(event, self._first_row, len(self._rows)))
        self._first_row += len(self._rows)
        self._rows = []

    def found(self) -> list[Run]:
        """Return all runs."""
        self._end()
        return self._found

"""Row events: TABLE_MAP_EVENT (19) and the images of rows that were written, updated or deleted.

Three generations have one layout, with parts added: PRE_GA_*_ROWS_EVENT (20-22, MySQL 5.1.5 to 5.1.17),
*_ROWS_EVENT_V1 (23-25, MySQL 5.1.18 to 5.5, and MariaDB) and *_ROWS_EVENT (30-32, MySQL since 5.6), to which
PARTIAL_UPDATE_ROWS_EVENT (39) belongs. MariaDB compresses the images of its *_ROWS_COMPRESSED_EVENT
(166-171). Where the format description gives a post-header of 6 bytes, the table id has 4 (MySQL 5.1.4).
Format: ``libs/mysql/binlog/event/rows_event.h`` of MySQL, ``sql/log_event.h`` of MariaDB.

What the images hold is said by the table map: see :mod:`millrace.binlog.row_images`.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import ClassVar, Final, Self, TypeVar

from millrace.binlog.declaration import Event, Only, abstract_event, body, event, post_header
from millrace.binlog.errors import EncodeError
from millrace.binlog.events.compressed import decompress_pieces, decompress_record, unpacked_size
from millrace.binlog.fields import (
    U16,
    U32,
    U48,
    Bitmap,
    CountingBytes16,
    Lenenc,
    LenencBytes,
    RestBytes,
    Text8Nul,
)
from millrace.binlog.grammar import Role
from millrace.binlog.types import RowsFlag

__all__ = [
    "PLAIN_ROWS",
    "CompressedRowsEvent",
    "DeleteRowsCompressedEvent",
    "DeleteRowsCompressedEventV1",
    "DeleteRowsEvent",
    "DeleteRowsEventV1",
    "PartialUpdateRowsEvent",
    "PlainRowsEvent",
    "PreGaDeleteRowsEvent",
    "PreGaUpdateRowsEvent",
    "PreGaWriteRowsEvent",
    "RowsEvent",
    "RowsOperation",
    "TableMapEvent",
    "UpdateRowsCompressedEvent",
    "UpdateRowsCompressedEventV1",
    "UpdateRowsEvent",
    "UpdateRowsEventV1",
    "WriteRowsCompressedEvent",
    "WriteRowsCompressedEventV1",
    "WriteRowsEvent",
    "WriteRowsEventV1",
]

E = TypeVar("E", bound="RowsEvent")

_STMT_END_F: Final = RowsFlag.STMT_END_F.value


@event(19, role=Role.SETTING, post_header_lengths=(6, 8))
class TableMapEvent(Event):
    """Binds ``table_id`` to a table and the types of its columns, for the rows events of one statement.

    ``column_types`` has one byte per column; ``column_metadata`` is the block of their type-dependent
    metadata; ``null_bits`` has one bit per column, lowest first, set where NULL is allowed;
    ``optional_metadata`` is the list of (type, length, value) that MySQL 8.0.1 and MariaDB 10.5 append.
    Previews of MySQL 5.1 end after the types: all that follows is empty then.
    """

    table_id: U48 = post_header(instead=(6, U32))
    flags: U16 = post_header()
    database: Text8Nul = body()
    table: Text8Nul = body()
    column_types: LenencBytes = body(may_end=True)
    column_metadata: LenencBytes = body(absent=b"")
    null_bits: Bitmap = body(absent=b"", bits_of="column_types")
    optional_metadata: RestBytes = body(absent=b"", default=b"")

    @property
    def column_count(self) -> int:
        """Number of columns."""
        return len(self.column_types)

    @property
    def content(self) -> tuple[object, ...]:
        """What it says of its table; its id and flags are not part of that."""
        return (
            self.database,
            self.table,
            self.column_types,
            self.column_metadata,
            self.null_bits,
            self.optional_metadata,
        )


class RowsOperation(Enum):
    """What a rows event did to its rows."""

    WRITE = "write"
    UPDATE = "update"
    DELETE = "delete"

    @property
    def statement(self) -> str:
        """The statement that does it, by which people know it: ``insert``, ``update``, ``delete``."""
        return "insert" if self is RowsOperation.WRITE else self.value


_HAS_BEFORE: Final = Only("operation", (RowsOperation.UPDATE, RowsOperation.DELETE))
_HAS_AFTER: Final = Only("operation", (RowsOperation.WRITE, RowsOperation.UPDATE))


@abstract_event
class RowsEvent(Event):
    """Rows of one table. An image is there for each side that the operation has.

    ``extra_row_info`` is what follows its own length (version 2 only): a byte 0 and then what NDB notes,
    after its length (uint8, which counts itself and the format, the next byte); or a byte 1 and then the
    partition of the rows (uint16), in an update followed by the one that they were in before.

    ``column_count`` is the width of the table, and the two bitmaps, lowest bit first, say which of its
    columns the images hold; a side that the operation does not have is empty: a write has no before image
    and a delete no after image. ``rows`` holds the images one after the other, in an update before and after
    in turns.
    """

    operation: ClassVar[RowsOperation]
    version: ClassVar[int]

    table_id: U48 = post_header(instead=(6, U32))
    flags: U16 = post_header()
    extra_row_info: CountingBytes16 = post_header(since=10, absent=b"")
    column_count: Lenenc = body()
    columns_before_image: Bitmap = body(absent=b"", bits_of="column_count", only=_HAS_BEFORE)
    columns_after_image: Bitmap = body(absent=b"", bits_of="column_count", only=_HAS_AFTER)

    @property
    def rows(self) -> bytes:
        """The images of the rows, one after the other."""
        raise NotImplementedError

    @property
    def bitmaps(self) -> tuple[bytes | None, bytes | None]:
        """The bitmaps of both images; None for the side that the operation does not have."""
        return (
            None if self.operation is RowsOperation.WRITE else self.columns_before_image,
            None if self.operation is RowsOperation.DELETE else self.columns_after_image,
        )

    @property
    def ends_statement(self) -> bool:
        """True on the last rows event of a statement, which ends the table maps as well."""
        return bool(self.flags & _STMT_END_F)


@abstract_event
class PlainRowsEvent(RowsEvent):
    """Rows as they are."""

    rest_field = "rows"

    rows: RestBytes = body()


@abstract_event
class CompressedRowsEvent(RowsEvent):
    """Rows as MariaDB packs them; ``rows`` unpacks them each time that it is asked for."""

    rest_field = "compressed_rows"

    compressed_rows: RestBytes = body()

    @property
    def rows(self) -> bytes:
        """The images, unpacked; raises MalformedError."""
        return decompress_record(self.compressed_rows)

    @property
    def unpacked_size(self) -> int:
        """Size of ``rows``."""
        return unpacked_size(self.compressed_rows)

    def row_pieces(self) -> Iterator[bytes]:
        """Unpack ``rows`` piece by piece; raises MalformedError, at the end at last."""
        return decompress_pieces(self.compressed_rows)

    def plain(self, rows: bytes | None = None) -> PlainRowsEvent:
        """Return the same event without compression, with other ``rows`` if any; raises MalformedError."""
        return PLAIN_ROWS[self.version, self.operation](
            self.table_id,
            self.flags,
            self.extra_row_info,
            self.column_count,
            self.columns_before_image,
            self.columns_after_image,
            self.rows if rows is None else rows,
        )


def _rows_event(code: int, operation: RowsOperation, *, version: int) -> Callable[[type[E]], type[E]]:
    """Declare a rows event; from version 2 on the post-header has the size of ``extra_row_info``."""
    declare = event(code, role=Role.ROWS, post_header_lengths=(10,) if version == 2 else (6, 8))

    def declare_rows(declared: type[E]) -> type[E]:
        declared.operation, declared.version = operation, version
        return declare(declared)

    return declare_rows


@_rows_event(20, RowsOperation.WRITE, version=0)
class PreGaWriteRowsEvent(PlainRowsEvent):
    """Rows written, in MySQL 5.1.5 to 5.1.17."""


@_rows_event(22, RowsOperation.DELETE, version=0)
class PreGaDeleteRowsEvent(PlainRowsEvent):
    """Rows deleted, in MySQL 5.1.5 to 5.1.17."""


@_rows_event(21, RowsOperation.UPDATE, version=0)
class PreGaUpdateRowsEvent(PlainRowsEvent):
    """Rows updated, in MySQL 5.1.5 to 5.1.17.

    One bitmap serves both images. Codec by hand: it is that of PRE_GA_DELETE_ROWS_EVENT.
    """

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        one = PreGaDeleteRowsEvent.decode_fields(data, offset, end, post_header_length)
        bitmap = one.columns_before_image
        return cls(
            one.table_id, one.flags, one.extra_row_info, one.column_count, bitmap, bitmap, rows=one.rows
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        if self.columns_before_image != self.columns_after_image:
            raise EncodeError("PRE_GA_UPDATE_ROWS_EVENT has one bitmap for both images")
        return PreGaDeleteRowsEvent(
            self.table_id,
            self.flags,
            self.extra_row_info,
            self.column_count,
            self.columns_before_image,
            b"",
            self.rows,
        ).encode_fields(post_header_length)


@_rows_event(23, RowsOperation.WRITE, version=1)
class WriteRowsEventV1(PlainRowsEvent):
    """Rows written, version 1."""


@_rows_event(24, RowsOperation.UPDATE, version=1)
class UpdateRowsEventV1(PlainRowsEvent):
    """Rows updated, version 1."""


@_rows_event(25, RowsOperation.DELETE, version=1)
class DeleteRowsEventV1(PlainRowsEvent):
    """Rows deleted, version 1."""


@_rows_event(30, RowsOperation.WRITE, version=2)
class WriteRowsEvent(PlainRowsEvent):
    """Rows written, version 2."""


@_rows_event(31, RowsOperation.UPDATE, version=2)
class UpdateRowsEvent(PlainRowsEvent):
    """Rows updated, version 2."""


@_rows_event(32, RowsOperation.DELETE, version=2)
class DeleteRowsEvent(PlainRowsEvent):
    """Rows deleted, version 2."""


@_rows_event(39, RowsOperation.UPDATE, version=2)
class PartialUpdateRowsEvent(PlainRowsEvent):
    """Rows updated, where an after image may hold JSON columns as differences from the before image."""


@_rows_event(166, RowsOperation.WRITE, version=1)
class WriteRowsCompressedEventV1(CompressedRowsEvent):
    """Rows written, version 1, compressed (MariaDB)."""


@_rows_event(167, RowsOperation.UPDATE, version=1)
class UpdateRowsCompressedEventV1(CompressedRowsEvent):
    """Rows updated, version 1, compressed (MariaDB)."""


@_rows_event(168, RowsOperation.DELETE, version=1)
class DeleteRowsCompressedEventV1(CompressedRowsEvent):
    """Rows deleted, version 1, compressed (MariaDB)."""


@_rows_event(169, RowsOperation.WRITE, version=2)
class WriteRowsCompressedEvent(CompressedRowsEvent):
    """Rows written, version 2, compressed (MariaDB)."""


@_rows_event(170, RowsOperation.UPDATE, version=2)
class UpdateRowsCompressedEvent(CompressedRowsEvent):
    """Rows updated, version 2, compressed (MariaDB)."""


@_rows_event(171, RowsOperation.DELETE, version=2)
class DeleteRowsCompressedEvent(CompressedRowsEvent):
    """Rows deleted, version 2, compressed (MariaDB)."""


PLAIN_ROWS: Final = {
    (event_class.version, event_class.operation): event_class
    for event_class in (
        WriteRowsEventV1,
        UpdateRowsEventV1,
        DeleteRowsEventV1,
        WriteRowsEvent,
        UpdateRowsEvent,
        DeleteRowsEvent,
    )
}
"""The events that the compressed ones stand for."""

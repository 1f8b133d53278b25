"""Row events: TABLE_MAP_EVENT (19) and the images of rows that were written, updated or deleted.

Three generations have one layout, with parts added: PRE_GA_*_ROWS_EVENT (20-22, MySQL 5.1.5 to 5.1.17),
*_ROWS_EVENT_V1 (23-25, MySQL 5.1.18 to 5.5, and MariaDB) and *_ROWS_EVENT (30-32, MySQL since 5.6), to which
PARTIAL_UPDATE_ROWS_EVENT (39) belongs. MariaDB compresses the images of its *_ROWS_COMPRESSED_EVENT
(166-171). Where the format description gives a post-header of 6 bytes, the table id has 4 (MySQL 5.1.4).
Format: ``libs/mysql/binlog/event/rows_event.h`` of MySQL, ``sql/log_event.h`` of MariaDB.

What the images hold is said by the table map: see :mod:`millrace.binlog.row_images`.
"""

from collections.abc import Callable
from enum import Enum
from typing import ClassVar, Final, Self

from millrace.binlog.declaration import Event, abstract_event, body, event, post_header
from millrace.binlog.errors import EncodeError, InvalidValueError
from millrace.binlog.events.compressed import decompress_record, unpacked_size
from millrace.binlog.fields import (
    U16,
    U48,
    Lenenc,
    LenencBytes,
    RestBytes,
    Text8Nul,
    decode_text,
    encode_text,
    pack_lenenc,
    read_lenenc,
    truncated,
)
from millrace.binlog.grammar import Role
from millrace.binlog.types import EventType, RowsFlag

__all__ = [
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

_STMT_END_F: Final = RowsFlag.STMT_END_F.value


@event(EventType.TABLE_MAP_EVENT, role=Role.SETTING, post_header_lengths=(6, 8))
class TableMapEvent(Event):
    """Binds ``table_id`` to a table and the types of its columns, for the rows events of one statement.

    ``column_types`` has one byte per column; ``column_metadata`` is the block of their type-dependent
    metadata; ``null_bits`` has one bit per column, lowest first, set where NULL is allowed;
    ``optional_metadata`` is the list of (type, length, value) that MySQL 8.0.1 and MariaDB 10.5 append.
    Previews of MySQL 5.1 end after the types: all that follows is empty then. Codec by hand: the width of the
    table id depends on the post-header, and ``null_bits`` on the number of columns.
    """

    table_id: U48 = post_header()
    flags: U16 = post_header()
    database: Text8Nul = body()
    table: Text8Nul = body()
    column_types: LenencBytes = body()
    column_metadata: LenencBytes = body()
    null_bits: RestBytes = body()
    optional_metadata: RestBytes = body(default=b"")

    @property
    def column_count(self) -> int:
        """Number of columns."""
        return len(self.column_types)

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        flags_at = offset + post_header_length - 2
        at = flags_at + 2
        if at >= end:
            raise truncated("table_id, flags, database", post_header_length + 2, offset, end)
        database_end = at + 1 + data[at]
        if database_end + 1 >= end:
            raise truncated("database", data[at] + 2, at + 1, end)
        table_end = database_end + 2 + data[database_end + 1]
        if table_end + 1 >= end:
            raise truncated("table", data[database_end + 1] + 2, database_end + 2, end)
        if data[database_end] or data[table_end]:
            raise InvalidValueError("a name in a table map does not end with a zero byte")
        count, types_at = read_lenenc(data, table_end + 1, end)
        if types_at + count == end and count:
            size, metadata_at, optional_at = 0, end, end
        else:
            size, metadata_at = read_lenenc(data, types_at + count, end)
            optional_at = metadata_at + size + (count + 7) // 8
        nulls_at = metadata_at + size
        if optional_at > end:
            raise truncated("column types, metadata and null bits", optional_at - types_at, types_at, end)
        return cls(
            int.from_bytes(data[offset:flags_at], "little"),
            data[flags_at] | data[flags_at + 1] << 8,
            decode_text(data[at + 1 : database_end]),
            decode_text(data[database_end + 2 : table_end]),
            data[types_at : types_at + count],
            data[metadata_at:nulls_at],
            data[nulls_at:optional_at],
            data[optional_at:end],
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        database, table, count = encode_text(self.database), encode_text(self.table), len(self.column_types)
        described: tuple[bytes, ...] = (
            pack_lenenc(len(self.column_metadata)),
            self.column_metadata,
            self.null_bits,
        )
        if len(self.null_bits) != (count + 7) // 8:
            if self.null_bits or self.column_metadata or self.optional_metadata:
                raise EncodeError(f"null_bits of {len(self.null_bits)} bytes for {count} columns")
            described = ()
        return b"".join(
            (
                self.table_id.to_bytes(post_header_length - 2, "little"),
                self.flags.to_bytes(2, "little"),
                len(database).to_bytes(1, "little"),
                database,
                b"\0",
                len(table).to_bytes(1, "little"),
                table,
                b"\0",
                pack_lenenc(count),
                self.column_types,
                *described,
                self.optional_metadata,
            )
        )


class RowsOperation(Enum):
    """What a rows event did to its rows."""

    WRITE = "write"
    UPDATE = "update"
    DELETE = "delete"


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

    Codec by hand: operation and version decide which parts there are, ``column_count`` how long
    the bitmaps are.
    """

    operation: ClassVar[RowsOperation]
    version: ClassVar[int]

    table_id: U48 = post_header()
    flags: U16 = post_header()
    extra_row_info: RestBytes = post_header()
    column_count: Lenenc = body()
    columns_before_image: RestBytes = body()
    columns_after_image: RestBytes = body()

    @property
    def rows(self) -> bytes:
        """The images of the rows, one after the other."""
        raise NotImplementedError

    @property
    def ends_statement(self) -> bool:
        """True on the last rows event of a statement, which ends the table maps as well."""
        return bool(self.flags & _STMT_END_F)

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        version = cls.version
        flags_at = offset + (post_header_length - 4 if version == 2 else post_header_length - 2)
        at = flags_at + 2
        extra_row_info = b""
        if version == 2:
            if at + 2 > end:
                raise truncated("table_id, flags, extra_row_info", post_header_length, offset, end)
            size = data[at] | data[at + 1] << 8
            if size < 2:
                raise InvalidValueError(f"the length of extra_row_info counts itself and cannot be {size}")
            extra_row_info = data[at + 2 : at + size]
            at += size
        if at >= end:
            raise truncated("table_id, flags, column_count", at + 1 - offset, offset, end)
        count = data[at]
        if count < 251:
            at += 1
        else:
            count, at = read_lenenc(data, at, end)
        size = (count + 7) // 8
        before = after = data[at : at + size]
        at += size
        if cls.operation is RowsOperation.WRITE:
            before = b""
        elif cls.operation is RowsOperation.DELETE:
            after = b""
        elif version:
            after = data[at : at + size]
            at += size
        if at > end:
            raise truncated("bitmaps of columns", size, at - size, end)
        return cls(
            int.from_bytes(data[offset:flags_at], "little"),
            data[flags_at] | data[flags_at + 1] << 8,
            extra_row_info,
            count,
            before,
            after,
            data[at:end],  # type: ignore[call-arg]  # the field that follows in each subclass
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        size = (self.column_count + 7) // 8
        before, after = self.columns_before_image, self.columns_after_image
        has_before, has_after = (
            self.operation is not RowsOperation.WRITE,
            self.operation is not RowsOperation.DELETE,
        )
        if (len(before), len(after)) != (size * has_before, size * has_after):
            raise EncodeError(
                f"bitmaps of {len(before)} and {len(after)} bytes for {self.column_count} columns "
                f"in a rows event that {self.operation.value}s"
            )
        extra = b""
        id_size = post_header_length - 2
        if self.version == 2:
            id_size = post_header_length - 4
            extra = (len(self.extra_row_info) + 2).to_bytes(2, "little") + self.extra_row_info
        elif self.extra_row_info:
            raise EncodeError(f"rows events of version {self.version} have no extra_row_info")
        if not self.version and has_before and has_after:
            if before != after:
                raise EncodeError("PRE_GA_UPDATE_ROWS_EVENT has one bitmap for both images")
            after = b""
        return b"".join(
            (
                self.table_id.to_bytes(id_size, "little"),
                self.flags.to_bytes(2, "little"),
                extra,
                pack_lenenc(self.column_count),
                before,
                after,
                self._wire_rows(),
            )
        )

    def _wire_rows(self) -> bytes:
        return self.rows


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

    def plain(self) -> PlainRowsEvent:
        """Give the same event without compression; raises MalformedError."""
        made: PlainRowsEvent = _PLAIN[self.version, self.operation](
            self.table_id,
            self.flags,
            self.extra_row_info,
            self.column_count,
            self.columns_before_image,
            self.columns_after_image,
            self.rows,
        )
        return made

    def _wire_rows(self) -> bytes:
        return self.compressed_rows


@event(EventType.PRE_GA_WRITE_ROWS_EVENT, role=Role.ROWS, post_header_lengths=(6, 8))
class PreGaWriteRowsEvent(PlainRowsEvent):
    """Rows written, in MySQL 5.1.5 to 5.1.17."""

    operation = RowsOperation.WRITE
    version = 0


@event(EventType.PRE_GA_UPDATE_ROWS_EVENT, role=Role.ROWS, post_header_lengths=(6, 8))
class PreGaUpdateRowsEvent(PlainRowsEvent):
    """Rows updated, in MySQL 5.1.5 to 5.1.17; one bitmap serves both images."""

    operation = RowsOperation.UPDATE
    version = 0


@event(EventType.PRE_GA_DELETE_ROWS_EVENT, role=Role.ROWS, post_header_lengths=(6, 8))
class PreGaDeleteRowsEvent(PlainRowsEvent):
    """Rows deleted, in MySQL 5.1.5 to 5.1.17."""

    operation = RowsOperation.DELETE
    version = 0


@event(EventType.WRITE_ROWS_EVENT_V1, role=Role.ROWS, post_header_lengths=(6, 8))
class WriteRowsEventV1(PlainRowsEvent):
    """Rows written, version 1."""

    operation = RowsOperation.WRITE
    version = 1


@event(EventType.UPDATE_ROWS_EVENT_V1, role=Role.ROWS, post_header_lengths=(6, 8))
class UpdateRowsEventV1(PlainRowsEvent):
    """Rows updated, version 1."""

    operation = RowsOperation.UPDATE
    version = 1


@event(EventType.DELETE_ROWS_EVENT_V1, role=Role.ROWS, post_header_lengths=(6, 8))
class DeleteRowsEventV1(PlainRowsEvent):
    """Rows deleted, version 1."""

    operation = RowsOperation.DELETE
    version = 1


@event(EventType.WRITE_ROWS_EVENT, role=Role.ROWS, post_header_lengths=(10,))
class WriteRowsEvent(PlainRowsEvent):
    """Rows written, version 2."""

    operation = RowsOperation.WRITE
    version = 2


@event(EventType.UPDATE_ROWS_EVENT, role=Role.ROWS, post_header_lengths=(10,))
class UpdateRowsEvent(PlainRowsEvent):
    """Rows updated, version 2."""

    operation = RowsOperation.UPDATE
    version = 2


@event(EventType.DELETE_ROWS_EVENT, role=Role.ROWS, post_header_lengths=(10,))
class DeleteRowsEvent(PlainRowsEvent):
    """Rows deleted, version 2."""

    operation = RowsOperation.DELETE
    version = 2


@event(EventType.PARTIAL_UPDATE_ROWS_EVENT, role=Role.ROWS, post_header_lengths=(10,))
class PartialUpdateRowsEvent(PlainRowsEvent):
    """Rows updated, where an after image may hold JSON columns as differences from the before image."""

    operation = RowsOperation.UPDATE
    version = 2


@event(EventType.WRITE_ROWS_COMPRESSED_EVENT_V1, role=Role.ROWS, post_header_lengths=(6, 8))
class WriteRowsCompressedEventV1(CompressedRowsEvent):
    """Rows written, version 1, compressed (MariaDB)."""

    operation = RowsOperation.WRITE
    version = 1


@event(EventType.UPDATE_ROWS_COMPRESSED_EVENT_V1, role=Role.ROWS, post_header_lengths=(6, 8))
class UpdateRowsCompressedEventV1(CompressedRowsEvent):
    """Rows updated, version 1, compressed (MariaDB)."""

    operation = RowsOperation.UPDATE
    version = 1


@event(EventType.DELETE_ROWS_COMPRESSED_EVENT_V1, role=Role.ROWS, post_header_lengths=(6, 8))
class DeleteRowsCompressedEventV1(CompressedRowsEvent):
    """Rows deleted, version 1, compressed (MariaDB)."""

    operation = RowsOperation.DELETE
    version = 1


@event(EventType.WRITE_ROWS_COMPRESSED_EVENT, role=Role.ROWS, post_header_lengths=(10,))
class WriteRowsCompressedEvent(CompressedRowsEvent):
    """Rows written, version 2, compressed (MariaDB)."""

    operation = RowsOperation.WRITE
    version = 2


@event(EventType.UPDATE_ROWS_COMPRESSED_EVENT, role=Role.ROWS, post_header_lengths=(10,))
class UpdateRowsCompressedEvent(CompressedRowsEvent):
    """Rows updated, version 2, compressed (MariaDB)."""

    operation = RowsOperation.UPDATE
    version = 2


@event(EventType.DELETE_ROWS_COMPRESSED_EVENT, role=Role.ROWS, post_header_lengths=(10,))
class DeleteRowsCompressedEvent(CompressedRowsEvent):
    """Rows deleted, version 2, compressed (MariaDB)."""

    operation = RowsOperation.DELETE
    version = 2


_PLAIN: dict[tuple[int, RowsOperation], Callable[..., PlainRowsEvent]] = {
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

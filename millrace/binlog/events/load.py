"""LOAD DATA: the file in blocks, and what is done with it.

Since MySQL 5.0.3 a file comes as BEGIN_LOAD_QUERY_EVENT (17) and APPEND_BLOCK_EVENT (9), and is used by
EXECUTE_LOAD_QUERY_EVENT (18, in :mod:`millrace.binlog.events.query`) or dropped by DELETE_FILE_EVENT (11),
all bound together by ``file_id``. MySQL 4.0 to 5.0.2 wrote CREATE_FILE_EVENT (8), APPEND_BLOCK_EVENT and
EXEC_LOAD_EVENT (10), where the statement is not text but a packed form of its options; MySQL 3.23 wrote
LOAD_EVENT (6) without the file, and NEW_LOAD_EVENT (12) is the same with options of any length.
Format: MySQL's ``libs/mysql/binlog/event/load_data_events.h``, and of what 8.0 dropped, ``sql/log_event.cc``
of 5.7. Fixed and variable parts are intermixed.
"""

from enum import IntFlag
from typing import Any, Self

from millrace.binlog.cursor import Cursor
from millrace.binlog.declaration import Event, abstract_event, body, event, post_header
from millrace.binlog.errors import EncodeError, InvalidValueError, TruncatedError
from millrace.binlog.fields import (
    U8,
    U32,
    Bytes8,
    RestBytes,
    RestText,
    TextNul,
    decode_text,
    encode_text,
)
from millrace.binlog.grammar import Role

__all__ = [
    "AppendBlockEvent",
    "BeginLoadQueryEvent",
    "CreateFileEvent",
    "DeleteFileEvent",
    "ExecLoadEvent",
    "LoadDataEvent",
    "LoadEmptyFlag",
    "LoadEvent",
    "LoadFlag",
    "NewLoadEvent",
]


@event(9, role=Role.SETTING)
class AppendBlockEvent(Event):
    """A further block of a file."""

    rest_field = "block_data"

    file_id: U32 = post_header()
    block_data: RestBytes = body()


@event(10, role=Role.SINGLE)
class ExecLoadEvent(Event):
    """The file is complete and is loaded as its CREATE_FILE said."""

    file_id: U32 = post_header()


@event(11, role=Role.SINGLE)
class DeleteFileEvent(Event):
    """The load failed on the origin; the file is dropped."""

    file_id: U32 = post_header()


@event(17, role=Role.SETTING)
class BeginLoadQueryEvent(Event):
    """The first block of a file."""

    rest_field = "block_data"

    file_id: U32 = post_header()
    block_data: RestBytes = body()


class LoadFlag(IntFlag):
    """``opt_flags`` of a LOAD DATA statement in packed form."""

    DUMPFILE_FLAG = 1
    OPT_ENCLOSED_FLAG = 2
    REPLACE_FLAG = 4
    IGNORE_FLAG = 8


class LoadEmptyFlag(IntFlag):
    """``empty_flags`` of LOAD_EVENT."""

    FIELD_TERM_EMPTY = 1
    ENCLOSED_EMPTY = 2
    LINE_TERM_EMPTY = 4
    LINE_START_EMPTY = 8
    ESCAPED_EMPTY = 16


_LOAD_HEADER = 18
_OLD_OPTIONS = 5


@abstract_event
class LoadDataEvent(Event):
    """A LOAD DATA statement in packed form.

    ``thread_id`` and ``exec_time`` are those of QUERY; ``skip_lines`` is IGNORE n LINES; the five texts are
    FIELDS TERMINATED BY, ENCLOSED BY, LINES TERMINATED BY, STARTING BY and ESCAPED BY. ``opt_flags`` is a
    LoadFlag. ``columns`` is empty where the statement names none.
    ``file_name`` is that on the origin. Codec by hand: lengths, options and names are interleaved, in each of
    the three types in another way.
    """

    thread_id: U32 = post_header()
    exec_time: U32 = post_header()
    skip_lines: U32 = post_header()
    field_terminated: Bytes8 = body()
    enclosed: Bytes8 = body()
    line_terminated: Bytes8 = body()
    line_starting: Bytes8 = body()
    escaped: Bytes8 = body()
    opt_flags: U8 = body()
    columns: tuple[TextNul, ...] = body()
    table: TextNul = body()
    database: TextNul = body()
    file_name: RestText = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        cursor = Cursor(data, offset, end)
        thread_id, exec_time, skip_lines = cursor.u32(), cursor.u32(), cursor.u32()
        table_size, database_size, column_count = cursor.u8(), cursor.u8(), cursor.u32()
        head = cls._read_file_id(cursor)
        options, opt_flags, more = cls._read_options(cursor)
        sizes = cursor.bytes(column_count, "sizes of column names")
        columns = tuple(_name(cursor, size) for size in sizes)
        table, database = _name(cursor, table_size), _name(cursor, database_size)
        make: Any = cls  # each subclass has fields of its own after these
        made: Self = make(
            thread_id,
            exec_time,
            skip_lines,
            *options,
            opt_flags,
            columns,
            table,
            database,
            *cls._read_file(cursor),
            *head,
            *more,
        )
        return made

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        columns = [encode_text(column) for column in self.columns]
        table, database = encode_text(self.table), encode_text(self.database)
        return b"".join(
            (
                self.thread_id.to_bytes(4, "little"),
                self.exec_time.to_bytes(4, "little"),
                self.skip_lines.to_bytes(4, "little"),
                len(table).to_bytes(1, "little"),
                len(database).to_bytes(1, "little"),
                len(columns).to_bytes(4, "little"),
                self._write_file_id(),
                self._write_options(),
                *(len(column).to_bytes(1, "little") for column in columns),
                *(column + b"\0" for column in columns),
                table + b"\0",
                database + b"\0",
                self._write_file(),
            )
        )

    @classmethod
    def _read_file_id(cls, _cursor: Cursor) -> tuple[int, ...]:
        return ()

    def _write_file_id(self) -> bytes:
        return b""

    @classmethod
    def _read_options(cls, cursor: Cursor) -> tuple[list[bytes], int, tuple[int, ...]]:
        return [cursor.bytes(cursor.u8()) for _ in range(_OLD_OPTIONS)], cursor.u8(), ()

    def _write_options(self) -> bytes:
        written = [len(option).to_bytes(1, "little") + option for option in self._options()]
        return b"".join(written) + self.opt_flags.to_bytes(1, "little")

    def _options(self) -> tuple[bytes, ...]:
        return self.field_terminated, self.enclosed, self.line_terminated, self.line_starting, self.escaped

    @classmethod
    def _read_file(cls, cursor: Cursor) -> tuple[str | bytes, ...]:
        return (decode_text(cursor.rest()),)

    def _write_file(self) -> bytes:
        return encode_text(self.file_name)


def _name(cursor: Cursor, size: int) -> str:
    """Read a name of known size and the zero byte after it."""
    name = cursor.bytes(size, "name in LOAD DATA")
    if cursor.u8("end of a name in LOAD DATA"):
        raise InvalidValueError(
            f"a name at offset {cursor.position - size - 1} does not end with a zero byte"
        )
    return decode_text(name)


@event(6, role=Role.SINGLE, post_header_lengths=(_LOAD_HEADER,))
class LoadEvent(LoadDataEvent):
    """LOAD DATA as MySQL 3.23 logged it: each option is one byte.

    ``empty_flags``, a LoadEmptyFlag, says which of the five options are empty.
    """

    empty_flags: U8 = body()

    @classmethod
    def _read_options(cls, cursor: Cursor) -> tuple[list[bytes], int, tuple[int, ...]]:
        options = [cursor.bytes(1) for _ in range(_OLD_OPTIONS)]
        return options, cursor.u8(), (cursor.u8(),)

    def _write_options(self) -> bytes:
        if any(len(option) != 1 for option in self._options()):
            raise EncodeError("the options of LOAD_EVENT are one byte each")
        return b"".join(self._options()) + bytes((self.opt_flags, self.empty_flags))


@event(12, role=Role.SINGLE, post_header_lengths=(_LOAD_HEADER,))
class NewLoadEvent(LoadDataEvent):
    """LOAD DATA with options of any length, without the file."""


@event(8, role=Role.SETTING, post_header_lengths=(4,))
class CreateFileEvent(LoadDataEvent):
    """LOAD DATA with the first block of its file.

    The format description declares only the last 4 bytes of the post-header, ``file_id``.
    """

    block_data: RestBytes = body()
    file_id: U32 = post_header()

    @classmethod
    def _read_file_id(cls, cursor: Cursor) -> tuple[int, ...]:
        return (cursor.u32(),)

    def _write_file_id(self) -> bytes:
        return self.file_id.to_bytes(4, "little")

    @classmethod
    def _read_file(cls, cursor: Cursor) -> tuple[str | bytes, ...]:
        name, zero, block = cursor.rest().partition(b"\0")
        if not zero:
            raise TruncatedError("the name of the file to load does not end with a zero byte")
        return decode_text(name), block

    def _write_file(self) -> bytes:
        name = encode_text(self.file_name)
        if b"\0" in name:
            raise EncodeError(f"{self.file_name!r} holds a zero byte, which would end it")
        return name + b"\0" + self.block_data

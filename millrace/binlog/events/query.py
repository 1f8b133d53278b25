"""Events that carry the text of a statement.

QUERY_EVENT (2), EXECUTE_LOAD_QUERY_EVENT (18), ROWS_QUERY_LOG_EVENT (29), and MariaDB's ANNOTATE_ROWS_EVENT
(160) and QUERY_COMPRESSED_EVENT (165). Format: ``Query_event`` in MySQL's
``libs/mysql/binlog/event/statement_events.h`` and ``Query_log_event`` in MariaDB's ``sql/log_event.cc``.

The text is in the character set of the session's client (``status_variables.charset.client``, a collation
id), so it is bytes; ``text`` gives it as UTF-8 with what is not UTF-8 kept as lone surrogates.
"""

import dataclasses
import functools
from typing import Any, Self

from millrace.binlog.declaration import (
    Event,
    abstract_event,
    body,
    declared_fields,
    event,
    item,
    post_header,
    structure,
)
from millrace.binlog.errors import BinlogError, EncodeError, InvalidValueError, TruncatedError
from millrace.binlog.events.compressed import decompress_beginning, decompress_record, unpacked_size
from millrace.binlog.fields import (
    U8,
    U16,
    U24,
    U32,
    U64,
    RestBytes,
    RestText,
    Text8,
    Text8Nul,
    TextNul,
    decode_text,
    encode_text,
    truncated,
)
from millrace.binlog.grammar import Role
from millrace.binlog.types import EventType

__all__ = [
    "VARIABLES",
    "AnnotateRowsEvent",
    "AutoIncrement",
    "CollationOfCharset",
    "CollationsOfCharsets",
    "ExecuteLoadQueryEvent",
    "GtidFlags3",
    "Invoker",
    "QueryCompressedEvent",
    "QueryEvent",
    "RowsQueryLogEvent",
    "SessionCharset",
    "StatementEvent",
    "StatusVariables",
    "UpdatedDbNames",
]


@structure
class AutoIncrement:
    """The session's auto_increment_increment and auto_increment_offset."""

    increment: U16 = item()
    offset: U16 = item()


@structure
class SessionCharset:
    """Collation ids of character_set_client, collation_connection and collation_server."""

    client: U16 = item()
    connection: U16 = item()
    server: U16 = item()


@structure
class Invoker:
    """The account on whose behalf a definer was left out of the text."""

    user: Text8 = item()
    host: Text8 = item()


_OVER_MAX_DBS = 254


@structure
class UpdatedDbNames:
    """Databases that the statement writes to; ``count`` 254 says that they are too many to name."""

    count: U8 = item()
    names: tuple[TextNul, ...] = item()

    @staticmethod
    def read(data: bytes, offset: int, end: int) -> "tuple[UpdatedDbNames, int]":
        """Read the count and as many names."""
        if offset >= end:
            raise truncated("updated_db_names", 1, offset, end)
        count = data[offset]
        offset += 1
        names: list[str] = []
        for _ in range(0 if count == _OVER_MAX_DBS else count):
            after = data.find(b"\0", offset, end)
            if after < 0:
                raise TruncatedError(f"updated_db_names has {len(names)} of {count} names")
            names.append(decode_text(data[offset:after]))
            offset = after + 1
        return UpdatedDbNames(count, tuple(names)), offset

    def write(self) -> bytes:
        """Write the count and the names."""
        if len(self.names) != (0 if self.count == _OVER_MAX_DBS else self.count):
            raise EncodeError(f"updated_db_names counts {self.count} and has {len(self.names)} names")
        return self.count.to_bytes(1, "little") + b"".join(encode_text(name) + b"\0" for name in self.names)


_ALTER_ENDS = 4 | 8


@structure
class GtidFlags3:
    """MariaDB: which part of a two-phase ALTER this is (2 START, 4 COMMIT, 8 ROLLBACK), and of which."""

    flags: U8 = item()
    start_alter_seq_no: U64 | None = item()

    @staticmethod
    def read(data: bytes, offset: int, end: int) -> "tuple[GtidFlags3, int]":
        """Read the flags and, for the end of an ALTER, the sequence number of its start."""
        if offset >= end:
            raise truncated("gtid_flags3", 1, offset, end)
        flags = data[offset]
        if not flags & _ALTER_ENDS:
            return GtidFlags3(flags, None), offset + 1
        after = offset + 9
        if after > end:
            raise truncated("start_alter_seq_no", 8, offset + 1, end)
        return GtidFlags3(flags, int.from_bytes(data[offset + 1 : after], "little")), after

    def write(self) -> bytes:
        """Write the flags and what they announce."""
        if (self.start_alter_seq_no is None) == bool(self.flags & _ALTER_ENDS):
            raise EncodeError(f"gtid_flags3 {self.flags} does not go with {self.start_alter_seq_no}")
        flags = self.flags.to_bytes(1, "little")
        return (
            flags
            if self.start_alter_seq_no is None
            else flags + self.start_alter_seq_no.to_bytes(8, "little")
        )


@structure
class CollationOfCharset:
    """MariaDB: the collation that the session takes as the default of a character set."""

    charset: U16 = item()
    collation: U16 = item()


@structure
class CollationsOfCharsets:
    """MariaDB's character_set_collations, one entry per character set with another default collation."""

    entries: tuple[CollationOfCharset, ...] = item()

    @staticmethod
    def read(data: bytes, offset: int, end: int) -> "tuple[CollationsOfCharsets, int]":
        """Read the count and as many entries of 4 bytes."""
        if offset >= end:
            raise truncated("character_set_collations", 1, offset, end)
        after = offset + 1 + 4 * data[offset]
        if after > end:
            raise truncated("character_set_collations", after - offset, offset, end)
        entries = tuple(
            CollationOfCharset(data[at] | data[at + 1] << 8, data[at + 2] | data[at + 3] << 8)
            for at in range(offset + 1, after, 4)
        )
        return CollationsOfCharsets(entries), after

    def write(self) -> bytes:
        """Write the count and the entries."""
        return len(self.entries).to_bytes(1, "little") + b"".join(
            entry.charset.to_bytes(2, "little") + entry.collation.to_bytes(2, "little")
            for entry in self.entries
        )


def _variable(code: int) -> Any:
    return dataclasses.field(default=None, metadata={"section": "item", "code": code})


@structure
class StatusVariables:
    """The session's settings under which a statement ran; a variable that was not written is None.

    ``codes`` gives the order in which they stand on the wire. Each code implies its length, so reading stops
    at the first code that is not known: ``unknown`` keeps what is left from there. ``code_21`` is written by
    MySQL 9.7, without a name that is published, and is 0 in all logs seen.
    """

    codes: RestBytes = item(default=b"")
    unknown: RestBytes = item(default=b"")
    flags2: U32 | None = _variable(0)
    sql_mode: U64 | None = _variable(1)
    catalog: Text8Nul | None = _variable(2)
    auto_increment: AutoIncrement | None = _variable(3)
    charset: SessionCharset | None = _variable(4)
    time_zone: Text8 | None = _variable(5)
    catalog_nz: Text8 | None = _variable(6)
    lc_time_names: U16 | None = _variable(7)
    charset_database: U16 | None = _variable(8)
    table_map_for_update: U64 | None = _variable(9)
    master_data_written: U32 | None = _variable(10)
    invoker: Invoker | None = _variable(11)
    updated_db_names: UpdatedDbNames | None = _variable(12)
    microseconds: U24 | None = _variable(13)
    commit_ts: U64 | None = _variable(14)
    commit_ts2: U64 | None = _variable(15)
    explicit_defaults_for_timestamp: U8 | None = _variable(16)
    ddl_logged_with_xid: U64 | None = _variable(17)
    default_collation_for_utf8mb4: U16 | None = _variable(18)
    sql_require_primary_key: U8 | None = _variable(19)
    default_table_encryption: U8 | None = _variable(20)
    code_21: U8 | None = _variable(21)
    hrnow: U24 | None = _variable(128)
    xid: U64 | None = _variable(129)
    gtid_flags3: GtidFlags3 | None = _variable(130)
    character_set_collations: CollationsOfCharsets | None = _variable(131)

    @staticmethod
    def read(data: bytes, offset: int, end: int) -> "tuple[StatusVariables, int]":
        """Read the variables in ``data[offset:end]``."""
        return _parse_status_variables(data[offset:end]), end

    def write(self) -> bytes:
        """Write the variables in the order of ``codes``."""
        parts = []
        for code in self.codes:
            name, field_type = VARIABLES[code]
            value = getattr(self, name)
            if value is None:
                raise EncodeError(f"status variable {code} ({name}) is announced in codes and is None")
            parts.append(bytes([code]) + field_type.write(value))
        return b"".join(parts) + self.unknown


VARIABLES = {
    field.metadata["code"]: (declared.name, declared.type)
    for field, declared in zip(
        dataclasses.fields(StatusVariables),
        declared_fields(StatusVariables),
        strict=True,
    )
    if "code" in field.metadata
}
"""Name and type of each status variable by its code, in declared order."""


@functools.lru_cache(maxsize=1024)
def _parse_status_variables(data: bytes) -> StatusVariables:
    """Read status variables; cached, for a session writes the same ones again and again."""
    values: dict[str, Any] = {}
    codes = bytearray()
    offset, end = 0, len(data)
    while offset < end:
        code = data[offset]
        if code not in VARIABLES or code in codes:
            break
        name, field_type = VARIABLES[code]
        try:
            values[name], offset = field_type.read(data, offset + 1, end)
        except BinlogError as error:
            raise type(error)(f"status variable {code} ({name}): {error.message}") from error
        codes.append(code)
    return StatusVariables(bytes(codes), data[offset:], **values)


_BEGINNING = 16 << 20
"""What is unpacked of a statement where that is enough: a megabyte may unpack to a thousand."""


@abstract_event
class StatementEvent(Event):
    """What QUERY and its relatives have in common.

    ``thread_id`` is the connection's id, ``exec_time`` how many seconds the statement took, ``error_code``
    the error with which it ended on the origin; ``status_variables`` is None in logs before MySQL 5.0.
    """

    thread_id: U32 = post_header()
    exec_time: U32 = post_header()
    error_code: U16 = post_header()
    status_variables: StatusVariables | None = body()
    database: RestText = body()

    @property
    def query(self) -> bytes:
        """The statement as it was sent, in the character set of the client."""
        raise NotImplementedError

    @property
    def beginning(self) -> bytes:
        """Enough of the statement to tell what it is; raises as ``query`` does."""
        return self.query

    @property
    def text(self) -> str:
        """The statement as UTF-8, what is not UTF-8 as lone surrogates."""
        return decode_text(self.query)


def _read_statement(
    data: bytes, offset: int, end: int, post_header_length: int
) -> tuple[int, int, int, StatusVariables | None, str, int]:
    """Read what a QUERY begins with: everything up to its text, and the offset of that."""
    start = offset + post_header_length
    if start > end:
        raise truncated("thread_id, exec_time, …", post_header_length, offset, end)
    status_variables = None
    if post_header_length > 11:
        block_end = start + (data[offset + 11] | data[offset + 12] << 8)
        if block_end > end:
            raise truncated("status_variables", block_end - start, start, end)
        status_variables = _parse_status_variables(data[start:block_end])
        start = block_end
    text = start + data[offset + 8] + 1
    if text > end:
        raise truncated("database", text - start, start, end)
    if data[text - 1]:
        raise InvalidValueError("the database of a statement does not end with a zero byte")
    return (
        int.from_bytes(data[offset : offset + 4], "little"),
        int.from_bytes(data[offset + 4 : offset + 8], "little"),
        data[offset + 9] | data[offset + 10] << 8,
        status_variables,
        decode_text(data[start : text - 1]),
        text,
    )


def _write_statement(
    statement: StatementEvent, post_header_length: int, more_post_header: bytes, query: bytes
) -> bytes:
    database = encode_text(statement.database)
    variables = b""
    if post_header_length > 11:
        variables = b"" if statement.status_variables is None else statement.status_variables.write()
    elif statement.status_variables is not None:
        raise EncodeError("a log of this version has no status variables")
    return b"".join(
        (
            statement.thread_id.to_bytes(4, "little"),
            statement.exec_time.to_bytes(4, "little"),
            len(database).to_bytes(1, "little"),
            statement.error_code.to_bytes(2, "little"),
            len(variables).to_bytes(2, "little") if post_header_length > 11 else b"",
            more_post_header,
            variables,
            database,
            b"\0",
            query,
        )
    )


@event(EventType.QUERY_EVENT, role=Role.QUERY, post_header_lengths=(11, 13))
class QueryEvent(StatementEvent):
    """A statement that was run: DDL, transaction control, or a change logged as a statement."""

    rest_field = "query"

    query: RestBytes = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        thread_id, exec_time, error_code, variables, database, text = _read_statement(
            data, offset, end, post_header_length
        )
        return cls(thread_id, exec_time, error_code, variables, database, data[text:end])

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        return _write_statement(self, post_header_length, b"", self.query)


@event(EventType.QUERY_COMPRESSED_EVENT, role=Role.QUERY, post_header_lengths=(13,))
class QueryCompressedEvent(StatementEvent):
    """A statement as MariaDB packs it; ``query`` unpacks it each time that it is asked for."""

    rest_field = "compressed_query"

    compressed_query: RestBytes = body()

    @property
    def query(self) -> bytes:
        """The statement, unpacked; raises MalformedError."""
        return decompress_record(self.compressed_query)

    @property
    def beginning(self) -> bytes:
        """The first megabytes of the statement; raises MalformedError."""
        return decompress_beginning(self.compressed_query, _BEGINNING)

    @property
    def unpacked_size(self) -> int:
        """Size of ``query``."""
        return unpacked_size(self.compressed_query)

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        thread_id, exec_time, error_code, variables, database, text = _read_statement(
            data, offset, end, post_header_length
        )
        return cls(thread_id, exec_time, error_code, variables, database, data[text:end])

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        return _write_statement(self, post_header_length, b"", self.compressed_query)


@event(EventType.EXECUTE_LOAD_QUERY_EVENT, role=Role.SINGLE, post_header_lengths=(26,))
class ExecuteLoadQueryEvent(StatementEvent):
    """A LOAD DATA statement whose file came in BEGIN_LOAD_QUERY and APPEND_BLOCK events.

    ``query[fn_pos_start:fn_pos_end]`` is where the file's name stands in the text; ``dup_handling`` is 0 for
    an error on duplicates, 1 for IGNORE, 2 for REPLACE.
    """

    rest_field = "query"

    file_id: U32 = post_header()
    fn_pos_start: U32 = post_header()
    fn_pos_end: U32 = post_header()
    dup_handling: U8 = post_header()
    query: RestBytes = body()

    @classmethod
    def decode_fields(cls, data: bytes, offset: int, end: int, post_header_length: int) -> Self:
        """Read the event from ``data[offset:end]``."""
        thread_id, exec_time, error_code, variables, database, text = _read_statement(
            data, offset, end, post_header_length
        )
        file_id, name_start, name_end = (
            int.from_bytes(data[at : at + 4], "little") for at in range(offset + 13, offset + 25, 4)
        )
        return cls(
            thread_id,
            exec_time,
            error_code,
            variables,
            database,
            file_id,
            name_start,
            name_end,
            data[offset + 25],
            data[text:end],
        )

    def encode_fields(self, post_header_length: int) -> bytes:
        """Write post-header and body."""
        numbers = (self.file_id, self.fn_pos_start, self.fn_pos_end)
        more = b"".join(number.to_bytes(4, "little") for number in numbers) + self.dup_handling.to_bytes(
            1, "little"
        )
        return _write_statement(self, post_header_length, more, self.query)


@event(EventType.ROWS_QUERY_LOG_EVENT, role=Role.SETTING)
class RowsQueryLogEvent(Event):
    """The statement that led to the row events that follow.

    ``length`` is what its one byte can say of the text's length (the server itself ignores it).
    """

    rest_field = "query"

    length: U8 = body()
    query: RestBytes = body()


@event(EventType.ANNOTATE_ROWS_EVENT, role=Role.SETTING)
class AnnotateRowsEvent(Event):
    """The statement that led to the row events that follow (MariaDB)."""

    rest_field = "query"

    query: RestBytes = body()

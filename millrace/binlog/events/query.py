"""Events that carry the text of a statement.

QUERY_EVENT (2), EXECUTE_LOAD_QUERY_EVENT (18), ROWS_QUERY_LOG_EVENT (29), and MariaDB's ANNOTATE_ROWS_EVENT
(160) and QUERY_COMPRESSED_EVENT (165). Format: ``Query_event`` in MySQL's
``libs/mysql/binlog/event/statement_events.h`` and ``Query_log_event`` in MariaDB's ``sql/log_event.cc``.

The text is in the character set of the session's client (``status_variables.charset.client``, a collation
id), so it is bytes; ``text`` gives it as UTF-8 with what is not UTF-8 kept as lone surrogates.
"""

import functools
from enum import IntEnum
from typing import Annotated, Any, ClassVar

from millrace.binlog.declaration import (
    Event,
    When,
    abstract_event,
    body,
    declared_fields,
    event,
    item,
    post_header,
    structure,
)
from millrace.binlog.errors import BinlogError, EncodeError, TruncatedError
from millrace.binlog.events.compressed import decompress_beginning, decompress_record, unpacked_size
from millrace.binlog.fields import (
    U8,
    U16,
    U24,
    U32,
    U64,
    Counted,
    RestBytes,
    RestText,
    Text8,
    Text8Nul,
    TextNul,
    Zero,
    decode_text,
    encode_text,
    truncated,
)
from millrace.binlog.grammar import Role

__all__ = [
    "AnnotateRowsEvent",
    "AutoIncrement",
    "CollationOfCharset",
    "CollationsOfCharsets",
    "ExecuteLoadQueryEvent",
    "GtidFlags3",
    "Invoker",
    "LoadDupHandling",
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
    """Databases that the statement writes to; ``count`` 254 says that they are too many to name.

    Codec by hand: the count is a field, and does not always count.
    """

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


@structure
class GtidFlags3:
    """MariaDB: which part of a two-phase ALTER this is (2 START, 4 COMMIT, 8 ROLLBACK), and of which."""

    flags: U8 = item()
    start_alter_seq_no: U64 | None = item(when=When("flags", 4 | 8))


@structure
class CollationOfCharset:
    """MariaDB: the collation that the session takes as the default of a character set."""

    charset: U16 = item()
    collation: U16 = item()


@structure
class CollationsOfCharsets:
    """MariaDB's character_set_collations, one entry per character set with another default collation."""

    entries: Annotated[tuple[CollationOfCharset, ...], Counted(U8)] = item()


def _variable(code: int) -> Any:
    return item(default=None, code=code)


@structure
class StatusVariables:
    """The session's settings under which a statement ran; a variable that was not written is None.

    ``codes`` is their order. A code implies its length, so ``unknown`` keeps all from the first unknown code
    on. ``code_21`` (MySQL 9.7) has no published name and is 0 in all logs seen. Codec by hand: they come in
    any order.
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
    field.code: (field.name, field.type)
    for field in declared_fields(StatusVariables)
    if field.code is not None
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
    database_length: ClassVar[U8] = post_header(length_of="database")
    error_code: U16 = post_header()
    status_variables_length: ClassVar[U16] = post_header(length_of="status_variables", since=13)
    status_variables: StatusVariables | None = body(since=13)
    database: RestText = body()
    database_end: ClassVar[Zero] = body()

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


@event(2, role=Role.QUERY, post_header_lengths=(11, 13))
class QueryEvent(StatementEvent):
    """A statement that was run: DDL, transaction control, or a change logged as a statement."""

    rest_field = "query"

    query: RestBytes = body()


@event(165, role=Role.QUERY, post_header_lengths=(13,))
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


class LoadDupHandling(IntEnum):
    """``dup_handling`` of a LOAD DATA statement: what is done about duplicates."""

    LOAD_DUP_ERROR = 0
    LOAD_DUP_IGNORE = 1
    LOAD_DUP_REPLACE = 2


@event(18, role=Role.SINGLE, post_header_lengths=(26,))
class ExecuteLoadQueryEvent(StatementEvent):
    """A LOAD DATA statement whose file came in BEGIN_LOAD_QUERY and APPEND_BLOCK events.

    ``query[fn_pos_start:fn_pos_end]`` is where the file's name stands in the text; ``dup_handling`` is a
    LoadDupHandling.
    """

    rest_field = "query"

    file_id: U32 = post_header()
    fn_pos_start: U32 = post_header()
    fn_pos_end: U32 = post_header()
    dup_handling: U8 = post_header()
    query: RestBytes = body()


@event(29, role=Role.SETTING)
class RowsQueryLogEvent(Event):
    """The statement that led to the row events that follow.

    ``length`` is one byte of the text's length, which servers ignore.
    """

    rest_field = "query"

    length: U8 = body()
    query: RestBytes = body()


@event(160, role=Role.SETTING)
class AnnotateRowsEvent(Event):
    """The statement that led to the row events that follow (MariaDB)."""

    rest_field = "query"

    query: RestBytes = body()

"""The numbers of the binary log's framing: event types, algorithms, flags.

Event types are those of ``Log_event_type`` in MySQL 9.7 (``libs/mysql/binlog/event/binlog_event.h``) and of
MariaDB 12 (``sql/log_event.h``, from 160 on), in their spelling. Two names of MariaDB get a prefix because
MySQL uses them for another layout: ``MARIADB_GTID_EVENT`` and ``MARIADB_GTID_LIST_EVENT``. Flags are those of
``sql/log_event.h`` of both servers.
"""

from enum import IntEnum, IntFlag, unique

__all__ = [
    "ChecksumAlgorithm",
    "CompressionType",
    "EventType",
    "HeaderFlag",
    "QueryFlag2",
    "RowsFlag",
    "SqlMode",
    "TableMapFlag",
]


@unique
class EventType(IntEnum):
    """Type code of an event, the fifth byte of its header.

    ``tools/generate_event_types.py`` writes the members, from the declarations in ``binlog/events``.
    """

    UNKNOWN_EVENT = 0
    START_EVENT_V3 = 1
    QUERY_EVENT = 2
    STOP_EVENT = 3
    ROTATE_EVENT = 4
    INTVAR_EVENT = 5
    LOAD_EVENT = 6
    SLAVE_EVENT = 7
    CREATE_FILE_EVENT = 8
    APPEND_BLOCK_EVENT = 9
    EXEC_LOAD_EVENT = 10
    DELETE_FILE_EVENT = 11
    NEW_LOAD_EVENT = 12
    RAND_EVENT = 13
    USER_VAR_EVENT = 14
    FORMAT_DESCRIPTION_EVENT = 15
    XID_EVENT = 16
    BEGIN_LOAD_QUERY_EVENT = 17
    EXECUTE_LOAD_QUERY_EVENT = 18
    TABLE_MAP_EVENT = 19
    PRE_GA_WRITE_ROWS_EVENT = 20
    PRE_GA_UPDATE_ROWS_EVENT = 21
    PRE_GA_DELETE_ROWS_EVENT = 22
    WRITE_ROWS_EVENT_V1 = 23
    UPDATE_ROWS_EVENT_V1 = 24
    DELETE_ROWS_EVENT_V1 = 25
    INCIDENT_EVENT = 26
    HEARTBEAT_LOG_EVENT = 27
    IGNORABLE_LOG_EVENT = 28
    ROWS_QUERY_LOG_EVENT = 29
    WRITE_ROWS_EVENT = 30
    UPDATE_ROWS_EVENT = 31
    DELETE_ROWS_EVENT = 32
    GTID_LOG_EVENT = 33
    ANONYMOUS_GTID_LOG_EVENT = 34
    PREVIOUS_GTIDS_LOG_EVENT = 35
    TRANSACTION_CONTEXT_EVENT = 36
    VIEW_CHANGE_EVENT = 37
    XA_PREPARE_LOG_EVENT = 38
    PARTIAL_UPDATE_ROWS_EVENT = 39
    TRANSACTION_PAYLOAD_EVENT = 40
    HEARTBEAT_LOG_EVENT_V2 = 41
    GTID_TAGGED_LOG_EVENT = 42
    ANNOTATE_ROWS_EVENT = 160
    BINLOG_CHECKPOINT_EVENT = 161
    MARIADB_GTID_EVENT = 162
    MARIADB_GTID_LIST_EVENT = 163
    START_ENCRYPTION_EVENT = 164
    QUERY_COMPRESSED_EVENT = 165
    WRITE_ROWS_COMPRESSED_EVENT_V1 = 166
    UPDATE_ROWS_COMPRESSED_EVENT_V1 = 167
    DELETE_ROWS_COMPRESSED_EVENT_V1 = 168
    WRITE_ROWS_COMPRESSED_EVENT = 169
    UPDATE_ROWS_COMPRESSED_EVENT = 170
    DELETE_ROWS_COMPRESSED_EVENT = 171
    PARTIAL_ROW_DATA_EVENT = 172


class ChecksumAlgorithm(IntEnum):
    """What follows the body of an event: ``enum_binlog_checksum_alg``."""

    OFF = 0
    CRC32 = 1
    UNDEF = 255


class CompressionType(IntEnum):
    """How the events in a TRANSACTION_PAYLOAD_EVENT are compressed: ``compression::type``."""

    ZSTD = 0
    NONE = 255


class HeaderFlag(IntFlag):
    """Flags of the common header, ``LOG_EVENT_*_F``; the last two are MariaDB's."""

    BINLOG_IN_USE_F = 0x0001
    FORCED_ROTATE_F = 0x0002
    THREAD_SPECIFIC_F = 0x0004
    SUPPRESS_USE_F = 0x0008
    UPDATE_TABLE_MAP_VERSION_F = 0x0010
    ARTIFICIAL_F = 0x0020
    RELAY_LOG_F = 0x0040
    IGNORABLE_F = 0x0080
    NO_FILTER_F = 0x0100
    MTS_ISOLATE_F = 0x0200
    ACCEPT_OWN_F = 0x4000
    SKIP_REPLICATION_F = 0x8000


class RowsFlag(IntFlag):
    """Flags of a rows event; ``NO_CHECK_CONSTRAINT_CHECKS_F`` is MariaDB's."""

    STMT_END_F = 0x0001
    NO_FOREIGN_KEY_CHECKS_F = 0x0002
    RELAXED_UNIQUE_CHECKS_F = 0x0004
    COMPLETE_ROWS_F = 0x0008
    USE_SQL_FOREIGN_KEY_F = 0x0010
    NO_CHECK_CONSTRAINT_CHECKS_F = 0x0080


class TableMapFlag(IntFlag):
    """Flags of a table map; ``TM_BIT_HAS_TRIGGERS_F`` is MariaDB's."""

    TM_BIT_LEN_EXACT_F = 1 << 0
    TM_REFERRED_FK_DB_F = 1 << 1
    TM_GENERATED_INVISIBLE_PK_F = 1 << 2
    TM_BIT_HAS_TRIGGERS_F = 1 << 14


class QueryFlag2(IntFlag):
    """Bits of the status variable ``flags2``: session options under which a statement ran.

    The last four are MariaDB's, as 11.4 sets them.
    """

    OPTION_AUTO_IS_NULL = 1 << 14
    OPTION_NOT_AUTOCOMMIT = 1 << 19
    OPTION_NO_FOREIGN_KEY_CHECKS = 1 << 26
    OPTION_RELAXED_UNIQUE_CHECKS = 1 << 27
    OPTION_NO_CHECK_CONSTRAINT_CHECKS = 1 << 15
    OPTION_EXPLICIT_DEF_TIMESTAMP = 1 << 24
    OPTION_IF_EXISTS = 1 << 28
    OPTION_INSERT_HISTORY = 1 << 30


class SqlMode(IntFlag):
    """Bits of the status variable ``sql_mode`` that change what a statement means, ``MODE_…``.

    ``DROPPED`` are those that MySQL 8.0.5 no longer has: from POSTGRESQL to MYSQL40, and NO_AUTO_CREATE_USER.
    """

    REAL_AS_FLOAT = 1 << 0
    ANSI_QUOTES = 1 << 2
    ORACLE = 1 << 9
    MAXDB = 1 << 12
    NO_BACKSLASH_ESCAPES = 1 << 20
    DROPPED = 0x1003FF00

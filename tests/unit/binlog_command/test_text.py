import re
import struct
import zlib
from decimal import Decimal
from pathlib import Path

import pytest

from millrace import kernel
from millrace.binlog.columns import ColumnType
from millrace.binlog.columns.numbers import DecimalFormat
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import (
    AnonymousGtidLogEvent,
    AppendBlockEvent,
    AutoIncrement,
    BeginLoadQueryEvent,
    CreateFileEvent,
    DeleteFileEvent,
    DeleteRowsEvent,
    ExecLoadEvent,
    ExecuteLoadQueryEvent,
    GtidInterval,
    GtidLogEvent,
    GtidSetEntry,
    GtidTaggedLogEvent,
    IncidentEvent,
    IntvarEvent,
    MariadbGtidEvent,
    MariadbGtidFlag,
    MariadbGtidListEvent,
    MariadbXid,
    NewLoadEvent,
    PartialRowDataEvent,
    PreviousGtidsLogEvent,
    QueryCompressedEvent,
    QueryEvent,
    RandEvent,
    RotateEvent,
    RowsQueryLogEvent,
    SessionCharset,
    StatusVariables,
    StopEvent,
    TableMapEvent,
    TransactionPayloadEvent,
    UpdateRowsEvent,
    UserVarEvent,
    WriteRowsCompressedEventV1,
    WriteRowsEvent,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.events.compressed import decompress_record
from millrace.binlog.events.mariadb import GtidListEntry
from millrace.binlog.state import StreamState
from millrace.binlog.types import EventType, HeaderFlag
from millrace.binlog_command.generation import Generation, generation_of
from millrace.binlog_command.rewrite import DatabaseRewrite
from millrace.binlog_command.text import TextOptions
from millrace.runtime.errors import UserError

from .made_logs import ALL, TABLE_MAP, MadeLog, binlog_statements, body, rows, text_of

SID = bytes(range(16))
DECODE_ROWS = TextOptions(verbose=2, base64_output="decode-rows")


pytestmark = pytest.mark.usefixtures("utc")


def _sql(log: MadeLog, options: TextOptions | None = None) -> list[str]:
    """The lines that are no comments, after the format description."""
    return [line for line in body(text_of(log, options=options)) if not line.startswith("#")]


@pytest.mark.parametrize(
    ("server_version", "generation"),
    [
        ("3.23.58", Generation.MYSQL_5_5),
        ("5.5.34-log", Generation.MYSQL_5_5),
        ("5.6.51", Generation.MYSQL_5_6),
        ("5.7.44-log", Generation.MYSQL_5_7),
        ("8.0.15", Generation.MYSQL_8_0),
        ("9.7.4", Generation.MYSQL_8_0),
        ("5.5.36-MariaDB-log", Generation.MARIADB_10_0),
        ("10.1.23-MariaDB", Generation.MARIADB_10_0),
        ("10.2.11-MariaDB-log", Generation.MARIADB_10_2),
        ("10.4.28-MariaDB-log", Generation.MARIADB_10_2),
        ("10.5.29-MariaDB", Generation.MARIADB_10_5),
        ("10.6.12-MariaDB", Generation.MARIADB_10_6),
        ("10.11.6-MariaDB", Generation.MARIADB_10_11),
        ("12.3.1-MariaDB", Generation.MARIADB_10_11),
        ("", Generation.MYSQL_5_5),
    ],
)
def test_generation_of(server_version: str, generation: Generation) -> None:
    assert generation_of(server_version) is generation


def test_a_text_from_head_to_tail() -> None:
    log = MadeLog(created=1_699_999_999)
    log.query("BEGIN").add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", ALL, rows((None, (1, "a'b")))))
    log.add(XidEvent(5), RotateEvent(4, "bin.000002"))

    text = text_of(log, options=DECODE_ROWS)

    masked = re.sub(r"CRC32 0x[0-9a-f]{8}", "CRC32 0x…", text)
    assert masked == (
        "# The proper term is pseudo_replica_mode, but we use this compatibility alias\n"
        "# to make the statement usable on server versions 8.0.24 and older.\n"
        "/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=1*/;\n"
        "/*!50003 SET @OLD_COMPLETION_TYPE=@@COMPLETION_TYPE,COMPLETION_TYPE=0*/;\n"
        "DELIMITER /*!*/;\n"
        "# at 4\n"
        "#231114 22:13:20 server id 1  end_log_pos 124 CRC32 0x… "
        "\tStart: binlog v 4, server v 8.0.30 created 231114 22:13:20 at startup\n"
        "ROLLBACK/*!*/;\n"
        "# at 124\n"
        "#231114 22:13:21 server id 1  end_log_pos 170 CRC32 0x… "
        "\tQuery\tthread_id=9\texec_time=0\terror_code=0\n"
        "use `shop`/*!*/;\n"
        "SET TIMESTAMP=1700000001/*!*/;\n"
        "SET @@session.pseudo_thread_id=9/*!*/;\n"
        "SET @@session.auto_increment_increment=1, @@session.auto_increment_offset=1/*!*/;\n"
        "SET @@session.lc_time_names=0/*!*/;\n"
        "SET @@session.collation_database=DEFAULT/*!*/;\n"
        "BEGIN\n"
        "/*!*/;\n"
        "# at 170\n"
        "#231114 22:13:22 server id 1  end_log_pos 217 CRC32 0x… "
        "\tTable_map: `shop`.`t` mapped to number 7\n"
        "# has_generated_invisible_primary_key=0\n"
        "# at 217\n"
        "#231114 22:13:23 server id 1  end_log_pos 261 CRC32 0x… "
        "\tWrite_rows: table id 7 flags: STMT_END_F\n"
        "### INSERT INTO `shop`.`t`\n"
        "### SET\n"
        "###   @1=1 /* INT meta=0 nullable=0 is_null=0 */\n"
        "###   @2='a\\'b' /* VARSTRING(80) meta=80 nullable=1 is_null=0 */\n"
        "# at 261\n"
        "#231114 22:13:24 server id 1  end_log_pos 292 CRC32 0x… \tXid = 5\n"
        "COMMIT/*!*/;\n"
        "# at 292\n"
        "#231114 22:13:25 server id 1  end_log_pos 333 CRC32 0x… \tRotate to bin.000002  pos: 4\n"
        "SET @@SESSION.GTID_NEXT= 'AUTOMATIC' /* added by mysqlbinlog */ /*!*/;\n"
        "DELIMITER ;\n"
        "# End of log file\n"
        "/*!50003 SET COMPLETION_TYPE=@OLD_COMPLETION_TYPE*/;\n"
        "/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=0*/;\n"
    )


def test_session_variables_are_printed_when_they_change() -> None:
    settings = StatusVariables(
        codes=bytes((0, 1, 3, 4, 5, 7, 8, 13, 18, 19, 20)),
        flags2=1 << 26 | 1 << 14,
        sql_mode=4,
        auto_increment=AutoIncrement(10, 3),
        charset=SessionCharset(8, 33, 255),
        time_zone="Europe/Rome",
        lc_time_names=4,
        charset_database=63,
        microseconds=42,
        default_collation_for_utf8mb4=255,
        sql_require_primary_key=1,
        default_table_encryption=0,
    )
    log = MadeLog()
    log.add(*(QueryEvent(9, 0, 0, settings, "shop", b"DO 1"),) * 2)

    flags = ", ".join(
        f"@@session.{setting}"
        for setting in ("foreign_key_checks=0", "sql_auto_is_null=1", "unique_checks=1", "autocommit=1")
    )
    charset = ",".join(
        f"@@session.{setting}"
        for setting in ("character_set_client=8", "collation_connection=33", "collation_server=255")
    )
    first, second = "\n".join(_sql(log)).split("DO 1\n/*!*/;\n", maxsplit=1)

    assert first.splitlines() == [
        "use `shop`/*!*/;",
        "SET TIMESTAMP=1700000001.000042/*!*/;",
        "SET @@session.pseudo_thread_id=9/*!*/;",
        f"SET {flags}/*!*/;",
        "SET @@session.sql_mode=4/*!*/;",
        "SET @@session.auto_increment_increment=10, @@session.auto_increment_offset=3/*!*/;",
        "/*!\\C latin1 *//*!*/;",
        f"SET {charset}/*!*/;",
        "SET @@session.time_zone='Europe/Rome'/*!*/;",
        "SET @@session.lc_time_names=4/*!*/;",
        "SET @@session.collation_database=63/*!*/;",
        "/*!80011 SET @@session.default_collation_for_utf8mb4=255*//*!*/;",
        "/*!80013 SET @@session.sql_require_primary_key=1*//*!*/;",
        "/*!80016 SET @@session.default_table_encryption=0*//*!*/;",
    ]
    assert second.splitlines()[:4] == [
        "SET TIMESTAMP=1700000002.000042/*!*/;",
        "/*!80013 SET @@session.sql_require_primary_key=1*//*!*/;",
        "/*!80016 SET @@session.default_table_encryption=0*//*!*/;",
        "DO 1",
    ]


def test_threads_are_told_apart_where_temporary_tables_are_used() -> None:
    log = MadeLog()
    log.query("DO 1", thread_id=1).query("DO 2", thread_id=2)
    log.query("CREATE TEMPORARY TABLE tmp (a INT)", thread_id=3, flags=HeaderFlag.THREAD_SPECIFIC_F)
    assert [line for line in _sql(log) if "pseudo_thread_id" in line] == [
        "SET @@session.pseudo_thread_id=1/*!*/;",
        "SET @@session.pseudo_thread_id=3/*!*/;",
    ]


def test_a_restart_rolls_back_and_drops_temporary_tables() -> None:
    first = MadeLog()
    for name in ("kept", "dropped"):
        first.query(f"CREATE TEMPORARY TABLE {name} (a INT)", thread_id=3, flags=HeaderFlag.THREAD_SPECIFIC_F)
    first.query("DROP TEMPORARY TABLE dropped", thread_id=3, flags=HeaderFlag.THREAD_SPECIFIC_F)
    first.query("BEGIN")
    second = MadeLog(created=1_700_000_500, name="bin.000002")

    text = text_of(first, second)

    restart = text[text.rindex("Start: binlog") :]
    assert restart.splitlines()[1:4] == [
        "ROLLBACK/*!*/;",
        "SET @@session.pseudo_thread_id=3/*!*/;",
        "DROP TEMPORARY TABLE IF EXISTS `shop`.`kept`/*!*/;",
    ]


_DECIMAL = DecimalFormat(12, 4)


@pytest.mark.parametrize(
    ("event", "mysql", "mariadb"),
    [
        (UserVarEvent("v", 1, None, None, None, None), "NULL", "NULL"),
        (UserVarEvent("v", 0, 1, 33, struct.pack("<d", 0.5), 0), "0.5", "0.5"),
        (
            UserVarEvent("v", 0, 1, 33, struct.pack("<d", 0.1 + 0.2), 0),
            "0.30000000000000004",
            "0.30000000000000004",
        ),
        (UserVarEvent("v", 0, 2, 33, b"\xff" * 8, 0), "-1", "-1"),
        (UserVarEvent("v", 0, 2, 33, b"\xff" * 8, 1), "18446744073709551615", "18446744073709551615"),
        (
            UserVarEvent("v", 0, 4, 33, b"\x0c\x04" + _DECIMAL.encode(Decimal("-12345678.9012")), 0),
            "-12345678.9012",
            "-12345678.9012",
        ),
        (
            UserVarEvent("v", 0, 0, 255, "é".encode(), 0),
            "_utf8mb4 0xC3A9 COLLATE `utf8mb4_0900_ai_ci`",
            "_utf8mb4 X'C3A9' COLLATE `utf8mb4_0900_ai_ci`",
        ),
        (UserVarEvent("v", 0, 0, 63, b"", 0), "_binary '' COLLATE `binary`", "_binary X'' COLLATE `binary`"),
        (UserVarEvent("v", 0, 0, 60000, b"x", 0), "???", "???"),
    ],
)
def test_user_variables(event: UserVarEvent, mysql: str, mariadb: str) -> None:
    for version, expected in (("8.0.30", mysql), ("11.4.5-MariaDB", mariadb)):
        log = MadeLog(version)
        log.add(event).query("DO @v")
        assert f"SET @`v`:={expected}/*!*/;" in _sql(log)


def test_the_name_of_a_user_variable_is_quoted() -> None:
    log = MadeLog()
    log.add(UserVarEvent("od`d", 1, None, None, None, None)).query("DO 1")
    assert "SET @`od``d`:=NULL/*!*/;" in _sql(log)


def test_settings_stand_in_front_of_their_statement() -> None:
    log = MadeLog()
    log.add(IntvarEvent(1, 5), IntvarEvent(2, 6), RandEvent(7, 8)).query("INSERT INTO t VALUES (RAND())")
    lines = body(text_of(log))
    assert [line for line in lines if line.startswith("# at")] == lines[:4]  # as mysqlbinlog has it since 5.6
    sql = [line for line in lines if line.startswith(("SET ", "INSERT"))]
    assert sql[:3] == [
        "SET LAST_INSERT_ID=5/*!*/;",
        "SET INSERT_ID=6/*!*/;",
        "SET @@RAND_SEED1=7, @@RAND_SEED2=8/*!*/;",
    ]


def test_gtids() -> None:
    log = MadeLog()
    log.add(GtidLogEvent(1, SID, 4, 2, 1, 2, 1_600_000_000_123_456, None, 300, 80030, None))
    log.add(GtidTaggedLogEvent(0, SID, 5, "tag", 1, 2))
    log.add(AnonymousGtidLogEvent(1, bytes(16), 0, 2, 3, 4))

    lines = body(text_of(log))

    assert "# original_commit_timestamp=1600000000123456 (2020-09-13 12:26:40.123456 UTC)" in lines
    assert "/*!80014 SET @@session.original_server_version=80030*//*!*/;" in lines
    assert [line for line in lines if "GTID_NEXT" in line] == [
        "SET @@SESSION.GTID_NEXT= '00010203-0405-0607-0809-0a0b0c0d0e0f:4'/*!*/;",
        "SET @@SESSION.GTID_NEXT= '00010203-0405-0607-0809-0a0b0c0d0e0f:tag:5'/*!*/;",
        "SET @@SESSION.GTID_NEXT= 'ANONYMOUS'/*!*/;",
        "SET @@SESSION.GTID_NEXT= 'AUTOMATIC' /* added by mysqlbinlog */ /*!*/;",
    ]
    assert lines.count("/*!50718 SET TRANSACTION ISOLATION LEVEL READ COMMITTED*//*!*/;") == 1


def test_no_gtids_where_they_are_not_wanted() -> None:
    log = MadeLog()
    log.add(GtidLogEvent(1, SID, 4, 2, 1, 2)).query("DO 1")
    text = text_of(log, options=TextOptions(skip_gtids=True))
    assert "GTID_NEXT= '" not in text
    assert "/*!50616 SET @@SESSION.GTID_NEXT='AUTOMATIC'*//*!*/;" in text


def test_mariadb_gtids_begin_transactions() -> None:
    log = MadeLog("11.4.5-MariaDB")
    log.add(MariadbGtidEvent(1, 0, MariadbGtidFlag.TRANSACTIONAL, padding=bytes(6)))
    log.add(MariadbGtidEvent(2, 0, MariadbGtidFlag.STANDALONE | MariadbGtidFlag.DDL, padding=bytes(6)))
    xid = MariadbXid(7, b"g", b"\0")
    log.add(MariadbGtidEvent(3, 9, MariadbGtidFlag.PREPARED_XA, xid=xid), server_id=5)
    log.add(MariadbGtidEvent(4, 9, MariadbGtidFlag.COMPLETED_XA, xid=xid), server_id=5)

    assert _sql(log) == [
        "/*M!100101 SET @@session.skip_parallel_replication=1*//*!*/;",
        "/*M!100001 SET @@session.gtid_domain_id=0*//*!*/;",
        "/*M!100001 SET @@session.server_id=1*//*!*/;",
        "/*M!100001 SET @@session.gtid_seq_no=1*//*!*/;",
        "START TRANSACTION",
        "/*!*/;",
        "/*M!100001 SET @@session.gtid_seq_no=2*//*!*/;",
        "/*M!100001 SET @@session.gtid_domain_id=9*//*!*/;",
        "/*M!100001 SET @@session.server_id=5*//*!*/;",
        "/*M!100001 SET @@session.gtid_seq_no=3*//*!*/;",
        "XA START X'67',X'00',7/*!*/;",
        "/*M!100001 SET @@session.gtid_seq_no=4*//*!*/;",
    ]
    assert _sql(log, TextOptions(skip_gtids=True)) == [
        "START TRANSACTION",
        "/*!*/;",
        "XA START X'67',X'00',7/*!*/;",
    ]


@pytest.mark.parametrize(
    ("server_version", "parallel", "mark", "begin", "checks", "xid"),
    [
        ("10.0.38-MariaDB", False, "/*!", "BEGIN", False, False),
        ("10.1.23-MariaDB", True, "/*!", "BEGIN", False, False),
        ("10.2.11-MariaDB", True, "/*!", "START TRANSACTION", True, False),
        ("10.4.28-MariaDB", True, "/*!", "START TRANSACTION", True, False),
        ("10.5.29-MariaDB", True, "/*M!", "START TRANSACTION", True, False),
        ("10.6.22-MariaDB", True, "/*M!", "START TRANSACTION", True, True),
        ("11.8.6-MariaDB", True, "/*M!", "START TRANSACTION", True, True),
    ],
)
def test_what_differs_between_the_generations_of_mariadb(
    server_version: str, parallel: bool, mark: str, begin: str, checks: bool, xid: bool
) -> None:
    log = MadeLog(server_version)
    log.add(MariadbGtidEvent(1, 0, MariadbGtidFlag.TRANSACTIONAL, padding=bytes(6)))
    log.add(QueryEvent(9, 0, 0, StatusVariables(codes=b"\0", flags2=0), "shop", b"DO 1"))
    text = text_of(log)
    assert ("100101 SET @@session.skip_parallel_replication=1*/" in text) is parallel
    assert f"\n{mark}100001 SET @@session.gtid_seq_no=1*//*!*/;\n{begin}\n/*!*/;\n" in text
    assert ("@@session.check_constraint_checks=" in text) is checks
    assert ("\terror_code=0\txid=0\n" in text) is xid


def test_xa() -> None:
    log = MadeLog()
    log.add(XaPrepareLogEvent(0, 7, b"g", b"\xff"), XaPrepareLogEvent(1, 1, b"g", b""))
    assert [line for line in _sql(log) if line.startswith("XA")] == [
        "XA PREPARE X'67',X'ff',7",
        "XA COMMIT X'67',X'',1 ONE PHASE",
    ]


def _rows_log(*events: object) -> MadeLog:
    log = MadeLog()
    log.add(TABLE_MAP, *events)  # type: ignore[arg-type]  # events
    return log


INSERT = WriteRowsEvent(7, 0, b"", 2, b"", ALL, rows((None, (1, "a")), (None, (2, None))))
DELETE = DeleteRowsEvent(7, 1, b"", 2, ALL, b"", rows(((1, "a"), None)))


def test_a_statement_is_one_binlog_statement() -> None:
    log = _rows_log(INSERT, DELETE)
    described, statement = binlog_statements(text_of(log))
    assert described == [log.events[0][1]]
    assert statement == [data for _, data in log.events[1:]]


@pytest.mark.parametrize(("verbose", "types"), [(1, [19, 30]), (2, [29, 19, 30])])
def test_the_text_of_the_statement_is_loaded_where_it_is_shown(verbose: int, types: list[int]) -> None:
    log = MadeLog().add(RowsQueryLogEvent(9, b"INSERT 1"), TABLE_MAP)
    log.add(WriteRowsEvent(7, 1, b"", 2, b"", ALL, rows((None, (1, "a")))))
    _description, events = binlog_statements(text_of(log, options=TextOptions(verbose=verbose)))
    assert [data[4] for data in events] == types


def test_rows_come_behind_the_statement_that_carries_them() -> None:
    lines = body(text_of(_rows_log(INSERT, DELETE), options=TextOptions(verbose=1)))
    assert lines[lines.index("'/*!*/;") + 1 : -1] == [
        "### INSERT INTO `shop`.`t`",
        "### SET",
        "###   @1=1",
        "###   @2='a'",
        "### INSERT INTO `shop`.`t`",
        "### SET",
        "###   @1=2",
        "###   @2=NULL",
        "### DELETE FROM `shop`.`t`",
        "### WHERE",
        "###   @1=1",
        "###   @2='a'",
    ]


def test_rows_that_need_base64_are_refused_without_it() -> None:
    with pytest.raises(
        UserError,
        match=r"^--base64-output=never, and the log has a Table_map event at \d+ that only a BINLOG ",
    ):
        text_of(_rows_log(INSERT), options=TextOptions(base64_output="never"))


def test_absent_columns_are_left_out() -> None:
    update = UpdateRowsEvent(7, 1, b"", 2, b"\x01", b"\x02", b"\x00\x01\x00\x00\x00\x00\x01x")
    lines = body(text_of(_rows_log(update), options=DECODE_ROWS))
    assert [line for line in lines if line.startswith("###   ")] == [
        "###   @1=1 /* INT meta=0 nullable=0 is_null=0 */",
        "###   @2='x' /* VARSTRING(80) meta=80 nullable=1 is_null=0 */",
    ]


@pytest.mark.parametrize(
    "event",
    [
        WriteRowsEvent(8, 0, b"", 2, b"", ALL, b""),
        WriteRowsEvent(7, 0, b"", 2, b"", ALL, b"\x00\x01"),
        WriteRowsEvent(7, 0, b"", 3, b"", b"\x07", b""),
    ],
)
def test_rows_that_cannot_be_read_are_said(event: WriteRowsEvent) -> None:
    text = text_of(_rows_log(event, DELETE), options=DECODE_ROWS)
    assert re.search("### (Row event for unknown table #8|Rows that cannot be read: )", text)
    assert "### DELETE FROM `shop`.`t`" in text


@pytest.mark.parametrize(("server_version", "shown"), [("5.7.22", "'1'"), ("8.0.12", "'1.0'")])
def test_doubles_of_json_are_shown_as_by_the_server(server_version: str, shown: str) -> None:
    table_map = TableMapEvent(7, 1, "shop", "t", bytes((ColumnType.JSON,)), b"\x04", b"\x01")
    document = b"\x0b" + struct.pack("<d", 1.0)
    row = b"\0" + len(document).to_bytes(4, "little") + document
    log = MadeLog(server_version)
    log.add(table_map, WriteRowsEvent(7, 1, b"", 1, b"", b"\x01", row))
    assert f"###   @1={shown}\n" in text_of(log, options=TextOptions(verbose=1))


@pytest.mark.parametrize("verbose", [1, 2])
def test_rows_of_a_preview_of_mysql_5_1_are_said_not_to_be_readable(verbose: int) -> None:
    """Its table maps end after the types (a vector made by hand, of columns that need no metadata)."""
    log = MadeLog("5.1.15-beta-log")
    log.add(TableMapEvent(7, 1, "shop", "t", b"\x03\x03", b"", b""), INSERT, DELETE)
    text = text_of(log, options=TextOptions(verbose=verbose))
    message = "### Rows that cannot be read: the table map has no metadata of its columns"
    assert text.count(message) == 2


def test_a_payload_is_printed_event_by_event_and_can_be_loaded() -> None:
    inner = MadeLog()
    inner.add(TABLE_MAP, DELETE)
    state = StreamState()
    decode_event(inner.events[0][1], state)
    bare = [data[:9] + (len(data) - 4).to_bytes(4, "little") + data[13:-4] for _, data in inner.events[1:]]
    content = b"".join(bare)
    log = MadeLog()
    log.add(TransactionPayloadEvent(255, len(content), content), StopEvent())

    text = text_of(log)

    assert text.index("# Start of compressed events.") < text.index("Table_map: ")
    assert text.index("Delete_rows: ") < text.index("# End of compressed events.") < text.index("\tStop")
    (events,) = binlog_statements(text)[1:]
    assert [decode_event(data, state).event for data in events] == [TABLE_MAP, DELETE]  # with checksums


def test_compressed_rows_of_mariadb_are_loaded_without_compression() -> None:
    content = rows((None, (1, "a" * 20)))
    packed = bytes((0x80 | 1, len(content))) + zlib.compress(content)
    assert decompress_record(packed) == content
    log = MadeLog("10.11.6-MariaDB")
    log.add(TABLE_MAP, WriteRowsCompressedEventV1(7, 1, b"", 2, b"", ALL, packed))

    text = text_of(log)

    assert "\tWrite_compressed_rows: table id 7 flags: STMT_END_F" in text
    (_, data) = binlog_statements(text)[1]
    assert data[4] == EventType.WRITE_ROWS_EVENT_V1
    assert content in data


def test_another_name_for_a_database() -> None:
    log = _rows_log(INSERT, DELETE).query("DO 1").query("DO 2", database="other")
    text = text_of(log, options=TextOptions(verbose=1, rewrite_db=DatabaseRewrite.parse(["shop -> copy"])))
    assert "Table_map: `copy`.`t`" in text
    assert "### INSERT INTO `copy`.`t`" in text
    assert "use `copy`/*!*/;" in text
    assert "use `other`/*!*/;" in text
    state = StreamState()
    described, events = binlog_statements(text)
    decode_event(described[0], state)
    renamed = decode_event(events[0], state).event
    assert (renamed.database, renamed.table_id) == ("copy", 7)  # type: ignore[attr-defined]
    assert log.records()[1].event.event.database == "shop"  # type: ignore[union-attr]


@pytest.mark.parametrize("rules", [["a"], ["->b"], ["a->"], ["a->b", "a->c"]])
def test_rules_for_names_that_make_no_sense(rules: list[str]) -> None:
    with pytest.raises(UserError, match="--rewrite-db"):
        DatabaseRewrite.parse(rules)


def _load_log() -> MadeLog:
    log = MadeLog()
    log.add(BeginLoadQueryEvent(3, b"one\n"), AppendBlockEvent(3, b"two\n"))
    query = b"LOAD DATA INFILE '/src' REPLACE INTO TABLE t"
    log.add(
        ExecuteLoadQueryEvent(
            9, 0, 0, StatusVariables(), "shop", 3, 9, len(query) - len(b" TABLE t"), 2, query
        )
    )
    return log


def test_load_data_names_a_file_with_the_content(tmp_path: Path) -> None:
    (tmp_path / "SQL_LOAD_MB-3-0").write_text("somebody else's")
    sql = _sql(_load_log(), TextOptions(local_load=tmp_path))
    assert f"LOAD DATA LOCAL INFILE '{tmp_path}/SQL_LOAD_MB-3-1' REPLACE INTO TABLE t" in sql
    assert (tmp_path / "SQL_LOAD_MB-3-1").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "SQL_LOAD_MB-3-0").read_text() == "somebody else's"


def test_files_that_are_not_loaded_are_removed(tmp_path: Path) -> None:
    log = MadeLog()
    log.add(BeginLoadQueryEvent(3, b"x"), DeleteFileEvent(3), BeginLoadQueryEvent(4, b"y"))
    assert "#Delete_file: file_id=3" in text_of(log, options=TextOptions(local_load=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_files_to_load_are_new_for_their_owner_alone_and_no_links(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"p")
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "SQL_LOAD_MB-3-0").symlink_to(precious)
    (folder / "SQL_LOAD_MB-3-1").symlink_to(tmp_path / "nothing")
    text_of(_load_log(), options=TextOptions(local_load=folder))
    made = folder / "SQL_LOAD_MB-3-2"
    assert made.stat().st_mode & 0o777 == 0o600
    assert precious.read_bytes() == b"p"
    assert not (tmp_path / "nothing").exists()


def test_files_that_begin_again_and_again_leave_one(tmp_path: Path) -> None:
    log = _load_log()
    begin = log.events.pop(1)[1]
    log.events[1:1] = [(0, begin)] * 300
    text_of(log, options=TextOptions(local_load=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["SQL_LOAD_MB-3-12b"]


def test_load_data_without_its_file_is_a_comment(tmp_path: Path) -> None:
    log = _load_log()
    del log.events[1]
    text = text_of(log, options=TextOptions(local_load=tmp_path))
    assert "# Ignored: file 3 has no first block here." in text
    assert "# LOAD DATA INFILE" in text


def test_load_data_of_mysql_4(tmp_path: Path) -> None:
    options = (b"\t\x01", b'"', b"\n", b">", b"\\")
    created = CreateFileEvent(
        9, 0, 2, *options, 2 | 4, ("a", "b"), "t", "shop", "/src", block_data=b"rows", file_id=5
    )
    log = MadeLog()
    log.add(created, ExecLoadEvent(5))
    log.add(NewLoadEvent(9, 0, 0, b",", b"", b"\n", b"", b"", 8, (), "t", "shop", "/src"))

    sql = _sql(log, TextOptions(local_load=tmp_path))

    assert (
        f"LOAD DATA LOCAL INFILE '{tmp_path}/SQL_LOAD_MB-5-0' REPLACE INTO TABLE `t` FIELDS TERMINATED BY "
        "'\\t\x01' OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' STARTING BY '>' "
        "IGNORE 2 LINES (`a`, `b`)" in sql
    )
    assert (
        "LOAD DATA INFILE '/src' IGNORE INTO TABLE `t` FIELDS TERMINATED BY ',' ENCLOSED BY '' ESCAPED BY '' "
        "LINES TERMINATED BY '\\n'" in sql
    )


def test_events_that_are_comments() -> None:
    log = MadeLog()
    log.add(RowsQueryLogEvent(1, b"DO 1\nDO 2"), IncidentEvent(1, b"lost"))
    log.add(PartialRowDataEvent(3, 1, 0, None, b"x"))
    unknown = bytearray(log.events[1][1])
    unknown[4] = 99
    log.append(bytes(unknown[:-4]) + zlib.crc32(unknown[:-4]).to_bytes(4, "little"))
    lines = body(text_of(log, options=DECODE_ROWS))
    assert lines[2:4] == ["# DO 1", "# DO 2"]
    assert "# Incident: LOST_EVENTS" in lines
    assert "# Unknown event" in lines


def test_an_event_that_cannot_be_read_is_a_comment() -> None:
    log = MadeLog()
    log.append(log.events[0][1][:-1] + b"\0")
    assert "# This event cannot be read: " in text_of(log)


def test_short_form_has_statements_alone() -> None:
    log = _rows_log(INSERT, DELETE).query("DO 1").add(XidEvent(4))
    text = text_of(log, options=TextOptions(short_form=True))
    assert "#2" not in text
    assert "# at" not in text
    assert "BINLOG" not in text
    assert "SET @@session.pseudo_thread_id=999999999/*!*/;" in text
    assert "DO 1\n/*!*/;\nCOMMIT/*!*/;" in text


def test_short_form_has_the_comments_that_mysqlbinlog_leaves_there() -> None:
    gtid = GtidLogEvent(0, bytes(16), 3, 2, 0, 1, immediate_commit_timestamp=1_000_000)
    entry = GtidSetEntry(bytes(16), "", (GtidInterval(1, 3),))
    log = MadeLog("8.0.30").add(PreviousGtidsLogEvent(1, (entry,)), gtid, XaPrepareLogEvent(0, 7, b"g", b"q"))
    lines = text_of(log, options=TextOptions(short_form=True)).splitlines()
    assert "# 00000000-0000-0000-0000-000000000000:1-2" in lines
    assert "# original_commit_timestamp=1000000 (1970-01-01 00:00:01.000000 UTC)" in lines
    assert "# immediate_commit_timestamp=1000000 (1970-01-01 00:00:01.000000 UTC)" in lines
    assert [line for line in lines if line.endswith("\tXA PREPARE X'67',X'71',7")]
    assert not [line for line in lines if "Previous-GTIDs" in line or "last_committed" in line]


@pytest.mark.parametrize(
    ("damaged", "verbose"),
    [
        (WriteRowsEvent(7, 1, b"", 2, b"", ALL, b"\0\1"), 0),
        (WriteRowsEvent(7, 1, b"", 3, b"", b"\x07", b""), 1),  # of more columns than the table has
    ],
)
def test_rows_that_cannot_be_read_are_not_counted(damaged: WriteRowsEvent, verbose: int) -> None:
    log = MadeLog("10.11.6-MariaDB-log").add(TABLE_MAP, damaged)
    text = text_of(log, options=TextOptions(verbose=verbose))
    assert "# Number of rows: not counted, they cannot be read\n" in text


def test_empty_input_is_a_text_without_events() -> None:
    assert text_of().startswith("/*!50530 SET @@SESSION.PSEUDO_SLAVE_MODE=1*/;\n")


@pytest.mark.parametrize(
    "event",
    [
        QueryCompressedEvent(9, 0, 0, StatusVariables(), "shop", b"\x81\x05damaged"),
        UserVarEvent("v", 0, 4, 33, b"\x0c\x63\xff", 0),
    ],
)
def test_what_cannot_be_unpacked_is_a_comment(event: QueryCompressedEvent | UserVarEvent) -> None:
    log = MadeLog("11.4.5-MariaDB")
    log.add(event).query("DO 1")
    text = text_of(log)
    assert "# This event cannot be read: " in text
    assert "DO 1\n/*!*/;" in text


@pytest.mark.parametrize("options", [DECODE_ROWS, TextOptions(verbose=1)])
@pytest.mark.parametrize("server_version", ["8.0.30", "11.4.5-MariaDB"])
def test_a_huge_statement_waits_in_a_file(
    server_version: str, options: TextOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MadeLog(server_version)
    log.add(TABLE_MAP, INSERT, INSERT, DELETE)
    log.add(TABLE_MAP, DELETE)
    text = text_of(log, options=options)

    monkeypatch.setattr("millrace.binlog_command.spool._IN_MEMORY", 100)
    monkeypatch.setattr("millrace.binlog_command.spool._PIECE", 50)

    assert text_of(log, options=options) == text
    assert text.count("### INSERT INTO") == 4


def test_no_name_breaks_out_of_a_comment() -> None:
    evil = TableMapEvent(
        7, 1, "shop", "t\nDROP DATABASE shop;", TABLE_MAP.column_types, TABLE_MAP.column_metadata, b"\x02"
    )
    log = MadeLog("8.0.30\nDROP DATABASE a;")
    tagged = GtidSetEntry(bytes(16), "t\nDROP DATABASE b;", (GtidInterval(1, 2),))
    log.add(PreviousGtidsLogEvent(1, (tagged,)))
    log.add(evil, DELETE, RotateEvent(4, "bin\nDROP DATABASE shop;"))
    log.add(RowsQueryLogEvent(1, b"DO 1\nDROP DATABASE shop;"))
    log.append(b"\0" * 19)
    text = text_of(log, options=DECODE_ROWS)
    lines = [line for line in text.split("\n") if "DROP" in line]
    assert len(lines) == 6
    assert all(line.startswith("#") for line in lines)


def test_no_name_in_a_comment_acts_on_a_terminal() -> None:
    name = "t\x1b[2J\x9b\u202e\udc9b"
    evil = TableMapEvent(7, 1, name, name, TABLE_MAP.column_types, TABLE_MAP.column_metadata, b"\x02")
    log = MadeLog(f"8.0.30{name}")
    log.add(evil, DELETE, RotateEvent(4, name))
    text = text_of(log, options=DECODE_ROWS)
    assert re.findall("[^\t\n -~]", text) == []
    assert text.count(r"`t\x1b[2J\x9b\u202e\x9b`") == 4


def test_a_name_stays_as_it_is_where_it_is_sql() -> None:
    name = "t\x1b[2J\x9b\u202e"
    assert f"use `{name}`/*!*/;\n" in text_of(MadeLog().query("DO 1", database=name))


def test_the_tag_of_a_gtid_does_not_end_its_literal() -> None:
    log = MadeLog("9.7.4")
    log.add(GtidTaggedLogEvent(1, bytes(16), 5, "a'/*!*/;\nDROP DATABASE shop"))
    text = text_of(log)
    assert "\nDROP DATABASE shop" not in text
    (digits,) = re.findall("SET @`millrace statement`=0x([0-9a-f]+)/", text)
    assert bytes.fromhex(digits).startswith(b"SET @@SESSION.GTID_NEXT= '00000000-")


@pytest.mark.parametrize(
    ("statement", "own"),
    [
        ("CREATE PROCEDURE p() BEGIN DO 1 /*!*/; DO 2; END", "/*1*/;"),
        ("CREATE PROCEDURE p() BEGIN DO 1 /*!*/; /*1*/; /*3*/; DO 2; END", "/*2*/;"),
        ("DO '/*!*/;'", "/*1*/;"),
    ],
)
def test_a_statement_that_holds_the_delimiter_has_one_of_its_own(statement: str, own: str) -> None:
    text = text_of(MadeLog().query(statement).query("DO 3"))
    assert f"\nDELIMITER {own}\n{statement}\n{own}\nDELIMITER /*!*/;\n" in text
    assert "\nDO 3\n/*!*/;\n" in text


def test_the_comment_on_a_part_of_an_alter_stays_a_comment() -> None:
    log = MadeLog("10.11.6-MariaDB")
    log.add(MariadbGtidEvent(5, 0, 0, flags_extra=2, padding=bytes(5))).query("ALTER TABLE t\nADD x INT")
    assert "\n### ALTER TABLE t\n### ADD x INT\n" in text_of(log, options=TextOptions(verbose=1))


CONTROLS = bytes(range(1, 32)) + b"'\"\\\x7f\xe9\0end"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("9.7.4", "# \1\2\3\4\5\6\a\\b\\t\n# \v\f\\r\x0e"),
        ("5.7.22", "# \1\2\3\4\5\6\a\b\t\n# \v\f\r\x0e"),
    ],
)
def test_the_statement_of_rows_has_the_escapes_of_its_program(version: str, expected: str) -> None:
    """As mysqlbinlog 9.7.4 writes it: tab, CR, backspace and backslash in letters, others as they are."""
    log = MadeLog(version).add(RowsQueryLogEvent(1, CONTROLS))
    text = text_of(log, options=TextOptions(verbose=2))
    assert f"\n{expected}" in text
    backslashes = "\\\\" if version == "9.7.4" else "\\"
    assert f"'\"{backslashes}\x7f\udce9\\0end\n" in text


@pytest.mark.parametrize(("version", "form_feed"), [("9.7.4", "\\f"), ("5.7.22", "\\x0c")])
def test_a_form_feed_in_a_row_is_written_as_by_its_program(
    version: str, form_feed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MadeLog(version)
    log.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", ALL, rows((None, (1, "a\f\v")))))
    for enabled in (True, False):
        monkeypatch.setattr(kernel, "_enabled", enabled)
        assert f"###   @2='a{form_feed}\\x0b'" in text_of(log, options=TextOptions(verbose=1))


def test_a_list_of_gtids_is_in_the_order_of_mariadb_binlog() -> None:
    """By domain, and in each by number: what mariadb-binlog 11.8 writes of the same event."""
    entries = [(5, 1, 7), (0, 2, 9), (0, 1, 3), (5, 3, 1), (2, 1, 1), (3, 2, 8), (3, 9, 4), (3, 7, 1)]
    log = MadeLog("11.8.6-MariaDB").add(
        MariadbGtidListEvent(0, tuple(GtidListEntry(*one) for one in entries))
    )
    listed = re.search(r"Gtid list \[(.*?)\]", text_of(log), re.DOTALL)
    assert listed is not None
    assert listed[1].split(",\n# ") == [
        "0-1-3",
        "0-2-9",
        "2-1-1",
        "3-7-1",
        "3-9-4",
        "3-2-8",
        "5-3-1",
        "5-1-7",
    ]

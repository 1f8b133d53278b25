"""Which events are shown: each filter on its own and together, for lists and for SQL text."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner

from millrace.binlog.event_codec import BinlogEvent, decode_event, seal
from millrace.binlog.events import (
    DeleteRowsEvent,
    RowsOperation,
    TableMapEvent,
    TransactionPayloadEvent,
    WriteRowsEvent,
)
from millrace.binlog.events.rows import RowsEvent
from millrace.binlog.header import EventHeader
from millrace.binlog.state import StreamState
from millrace.binlog.types import EventType
from millrace.binlog_command.criteria import (
    Criteria,
    FilePosition,
    NamePattern,
    TablePattern,
    parse_event_type,
    parse_gtids,
    parse_time,
)
from millrace.binlog_command.filters import Filter
from millrace.binlog_command.inputs import FileInput
from millrace.binlog_command.records import LogDecoder, LogRecord, RawEvent
from millrace.cli import main

from .made_logs import ALL, TABLE_MAP, MadeLog, listed
from .made_logs import rows as rows_of

LOGS = Path(__file__).parent / "logs"
MYSQL = str(LOGS / "mysql.000001")
MARIADB = str(LOGS / "mariadb.000001")
SID = "c8ce7fc5"


def positions(*arguments: str) -> list[int]:
    return [line["position"] for line in listed(*arguments)]


def raw_events(path: str) -> Iterator[RawEvent]:
    for log in FileInput([path]).logs():
        for batch in log:
            yield from batch


def kept(criteria: Criteria, path: str = MYSQL, *, context: bool = True) -> list[LogRecord]:
    return list(Filter(criteria, context=context).apply(LogDecoder().records([[*raw_events(path)]])))


def names(records: list[LogRecord]) -> list[str]:
    return [record.event.event.event_type.name for record in records]


def gtid_of(path: str, number: int) -> str:
    gtids = dict.fromkeys(line["gtid"] for line in listed(path) if line["gtid"])
    return list(gtids)[number - 1]


# -- place and time ---------------------------------------------------------------------------------------


def test_positions_of_the_first_and_the_last_log() -> None:
    assert positions("--start-position", "4520", MYSQL) == [4520, 4597, 4688]
    assert positions("--start-position", "4521", MYSQL) == [4597, 4688]
    assert positions("--stop-position", "155", MYSQL) == [4, 124]
    both = listed("--start-position", "4688", "--stop-position", "256", MYSQL, MARIADB)
    assert [(line["file"], line["position"]) for line in both] == [
        ("mysql.000001", 4688),
        ("mariadb.000001", 4),
    ]


def test_positions_of_named_logs() -> None:
    both = listed("--start-position", "mariadb.000001:4189", MYSQL, MARIADB)
    assert [line["position"] for line in both] == [4189, 4277]
    both = listed(
        "--start-position", "mysql.000001:4688", "--stop-position", "mysql.000001:99999", MYSQL, MARIADB
    )
    assert [line["file"] for line in both] == ["mysql.000001"]
    with pytest.raises(ValueError, match="neither a position nor file:position"):
        FilePosition.parse("mysql.000001:")
    assert FilePosition.parse("a:b:7") == FilePosition(7, "a:b")


def test_a_place_that_is_not_reached_is_said() -> None:
    outcome = CliRunner().invoke(main, ["binlog", "--json", "--start-position", "other:4", MYSQL])
    assert (outcome.exit_code, outcome.stdout) == (0, "")
    assert outcome.stderr == "note: no event that was read begins at or after other:4\n"


def test_damage_outside_of_what_is_asked_for_does_not_matter(tmp_path: Path) -> None:
    data = bytearray(Path(MYSQL).read_bytes())
    data[1600] ^= 1
    damaged = tmp_path / "mysql.000001"
    damaged.write_bytes(data)
    after = ("--start-position", "1859")
    assert listed(*after, str(damaged)) == listed(*after, MYSQL)
    before = ("--stop-position", "1513")
    assert listed(*before, str(damaged)) == listed(*before, MYSQL)


def test_times_begin_and_stop_like_mysqlbinlog() -> None:
    whole = listed(MARIADB)
    later = whole[-1]["timestamp"]
    first = next(index for index, line in enumerate(whole) if line["timestamp"] == later)
    assert listed("--start-datetime", str(later), MARIADB) == whole[first:]
    assert listed("--stop-datetime", str(later), MARIADB) == whole[:first]
    assert listed("--start-datetime", "2000-01-01 00:00:00", "--stop-datetime", "2000-01-02", MARIADB) == []
    assert parse_time("1700000000.5") == 1700000000.5


def test_a_time_keeps_the_format_description_for_text() -> None:
    records = kept(Criteria(start_time=2e10))
    assert names(records) == ["FORMAT_DESCRIPTION_EVENT"]


# -- transactions -----------------------------------------------------------------------------------------


def test_gtids_of_mysql() -> None:
    sid = gtid_of(MYSQL, 1).partition(":")[0]
    assert {line["gtid"] for line in listed("--include-gtids", f"{sid}:2-3:9", MYSQL)} == {
        f"{sid}:{number}" for number in (2, 3, 9)
    }
    excluded = listed("--exclude-gtids", f"{sid}:1-13", MYSQL)
    assert [line["gtid"] for line in excluded] == [None, None, f"{sid}:14", f"{sid}:14", None]


def test_gtids_of_mariadb() -> None:
    assert {line["gtid"] for line in listed("--include-gtids", "0-12-2, 0-12-4-5", MARIADB)} == {
        "0-12-2",
        "0-12-4",
        "0-12-5",
    }
    assert {line["gtid"] for line in listed("--exclude-gtids", "0-12-1-13", MARIADB)} == {None, "0-12-14"}
    assert listed("--include-gtids", "1-12-1-100", MARIADB) == []


def test_gtids_with_tags_and_of_both_kinds() -> None:
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    gtids = parse_gtids(f"{uuid}:1-5:tag:7,0-1-5-9")
    assert f"{uuid}:5" in gtids
    assert f"{uuid}:tag:7" in gtids
    assert f"{uuid}:7" not in gtids
    assert "0-1-9" in gtids
    assert "0-1-10" not in gtids
    assert "0-2-9" not in gtids


def test_text_of_chosen_gtids_has_the_frame_of_the_log() -> None:
    records = kept(Criteria(include_gtids=parse_gtids("0-12-7")), MARIADB)
    assert names(records)[:3] == [
        "FORMAT_DESCRIPTION_EVENT",
        "MARIADB_GTID_LIST_EVENT",
        "BINLOG_CHECKPOINT_EVENT",
    ]
    assert {record.gtid for record in records} == {None, "0-12-7"}


def test_one_transaction_by_gtid_or_place() -> None:
    assert positions("--transaction", "0-12-7", MARIADB) == [1925, 1967, 2084, 2183, 2303, 2401, 2468]
    assert positions("--transaction", "mysql.000001:155", MYSQL) == []
    assert names(kept(Criteria(transaction="0-12-7"), MARIADB))[0] == "FORMAT_DESCRIPTION_EVENT"


# -- names ------------------------------------------------------------------------------------------------


def test_tables_of_a_list() -> None:
    lines = listed("--table", "shop.orders", MARIADB)
    assert {line["table"] for line in lines if "table" in line} == {"orders"}
    assert {line["database"] for line in lines if "rows" in line} == {"shop"}
    assert [line["type"] for line in lines] == [
        "QUERY_EVENT",  # CREATE TABLE
        "ANNOTATE_ROWS_EVENT",
        "TABLE_MAP_EVENT",
        "WRITE_ROWS_EVENT_V1",
        "ANNOTATE_ROWS_EVENT",
        "TABLE_MAP_EVENT",
        "UPDATE_ROWS_EVENT_V1",
        "ANNOTATE_ROWS_EVENT",
        "TABLE_MAP_EVENT",
        "DELETE_ROWS_EVENT_V1",
    ]
    everywhere = listed("--table", "order?", "--type", "WRITE_ROWS_EVENT_V1", MARIADB)
    assert [line["database"] for line in everywhere] == ["shop", "archive", "archive"]


def test_databases_of_a_list() -> None:
    lines = listed("-d", "arch*", MYSQL)
    assert {line["database"] for line in lines if "rows" in line} == {"archive"}
    statements = [line["event"]["query"] for line in lines if line["type"] == "QUERY_EVENT"]
    assert statements[0] == "CREATE DATABASE archive"
    assert len(statements) == 2, "the INSERT logged as a statement was run in no database"


@pytest.mark.parametrize("log", [MYSQL, MARIADB])
@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_operations_of_all_versions(log: str, operation: str) -> None:
    name = {"insert": "WRITE"}.get(operation, operation.upper())
    rows = [line for line in listed(log) if line["type"].startswith(f"{name}_ROWS")]
    found = listed("--op", operation, log)
    assert rows
    assert [line for line in found if "rows" in line] == rows
    statements = [line["event"]["query"].upper() for line in found if "query" in line["event"]]
    assert all(text.startswith((operation.upper(), "LOAD")) for text in statements)


def test_several_operations() -> None:
    both = listed("--op", "insert,delete", MYSQL)
    assert both == listed("--op", "Delete", "--op", "insert", MYSQL)
    assert {line["type"] for line in both if "rows" in line} == {"WRITE_ROWS_EVENT", "DELETE_ROWS_EVENT"}
    assert listed("--op", "delete", "--table", "shop.orders", MARIADB)
    assert not listed("--op", "delete", "--table", "shop.items", MARIADB)


def test_operations_of_statements() -> None:
    insert, replace = "INSERT INTO t VALUES (1)", "REPLACE INTO t VALUES (1)"
    delete, update = "WITH x AS (SELECT 1) DELETE FROM t", "UPDATE t SET a = 1"
    log = MadeLog()
    for text in (insert, replace, delete, "CREATE TABLE t (a INT)", update):
        log.query(text)

    def queries(operation: RowsOperation) -> list[str]:
        criteria = Criteria(operations=frozenset({operation}))
        return [r.event.event.query.decode() for r in Filter(criteria, context=False).apply(log.records())]

    assert queries(RowsOperation.WRITE) == [insert, replace]
    assert queries(RowsOperation.DELETE) == [delete]
    assert queries(RowsOperation.UPDATE) == [update]


@pytest.mark.parametrize("log", [MYSQL, MARIADB])
def test_text_of_an_operation_can_be_loaded(log: str) -> None:
    """It has table maps, the transactions around the rows, and the ends of their statements."""
    records = kept(Criteria(operations=frozenset({RowsOperation.DELETE})), log)
    rows = [record for record in records if isinstance(record.event.event, RowsEvent)]
    maps = [record.event.event for record in records if isinstance(record.event.event, TableMapEvent)]
    assert {record.event.event.operation for record in rows} == {RowsOperation.DELETE}
    assert {one.table_id for one in maps} == {record.event.event.table_id for record in rows}
    assert all(record.event.event.ends_statement for record in rows)
    begun = [record.gtid for record in records if record.transaction and record.transaction.begins]
    assert set(begun) >= {record.gtid for record in rows}
    assert len(begun) < len({line["gtid"] for line in listed(log)})


def test_the_last_rows_of_an_operation_end_their_statement() -> None:
    """REPLACE writes and deletes rows in one statement."""
    row = rows_of((None, (1, "a")))
    delete = DeleteRowsEvent(7, 1, b"", 2, ALL, b"", row)
    log = MadeLog()
    log.add(TABLE_MAP, WriteRowsEvent(7, 0, b"", 2, b"", ALL, row), delete)
    operations = frozenset({RowsOperation.WRITE})
    *_, table_map, write = Filter(Criteria(operations=operations), context=True).apply(log.records())
    assert table_map.event.event == TABLE_MAP
    assert write.event.event.ends_statement


OTHER_VERSION = (
    "no event is of the type DELETE_ROWS_EVENT; there are events of DELETE_ROWS_EVENT_V1: "
    "--op delete takes all versions"
)


@pytest.mark.parametrize(
    ("arguments", "notes"),
    [
        (["--type", "DELETE_ROWS", MARIADB], [OTHER_VERSION]),
        (["--type", "99", "--type", "XID", MYSQL], ["no event is of the type 99"]),
        (
            ["--op", "update,insert", "--stop-position", "1859", MYSQL],
            ["no event has rows, or is a statement, of --op update"],
        ),
        (["--table", "shop.order", MYSQL], ["no rows and no DDL are of the table shop.order"]),
        (["-d", "shop", "-d", "sho", MYSQL], ["no rows and no statements are of the database sho"]),
        (
            ["--server-id", "7", MYSQL],
            ["no event began on server 7; there are events of server 11"],
        ),
        (["--transaction", "0-1-1", MYSQL], ["there is no transaction 0-1-1"]),
        (["--include-gtids", "0-99-1", MARIADB], ["no transaction is in the set of --include-gtids"]),
        (["--start-datetime", "2099-01-01 00:00:00", MYSQL], ["no event is of --start-datetime or later"]),
        (
            ["--type", "XID", "--server-id", "11", "--op", "update", MYSQL],
            ["no event has all that the filters ask for"],
        ),
        (["--type", "XID", "--start-position", "4688", MYSQL], ["no event is of the type XID_EVENT"]),
        (["--type", "XID", MYSQL], []),
        (["--op", "update", MYSQL], []),
        (["--exclude-gtids", "0-1-1", MYSQL], []),
        ([MYSQL], []),
    ],
)
@pytest.mark.parametrize("form", ["--json", "--stats", "--verbose"])
def test_a_filter_that_matches_nothing_is_said(form: str, arguments: list[str], notes: list[str]) -> None:
    outcome = CliRunner().invoke(main, ["binlog", form, *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0
    assert outcome.stderr == "".join(f"note: {note}, in what was read\n" for note in notes)


def test_wildcards_are_asterisk_and_question_mark_alone() -> None:
    assert NamePattern("a*").matches("a\nb")
    assert NamePattern("a?c").matches("abc")
    assert not NamePattern("a[bc]").matches("ab")
    assert NamePattern("a[b").matches("a[b")
    assert TablePattern.parse("t").matches("any", "t")
    assert not TablePattern.parse("d.t").matches("e", "t")


def test_text_of_a_table_leaves_out_the_transactions_without_it() -> None:
    records = kept(Criteria(tables=(TablePattern.parse("shop.items"),)))
    numbers = [int(record.gtid.rpartition(":")[2]) for record in records if record.gtid]
    assert sorted(set(numbers)) == [4, 6, 7, 11, 12]
    sixth = [record for record in records if record.gtid and record.gtid.endswith(":6")]
    assert names(sixth) == [
        "GTID_LOG_EVENT",
        "QUERY_EVENT",
        "TABLE_MAP_EVENT",
        "WRITE_ROWS_EVENT",
        "XID_EVENT",
    ]
    decided = [record for record in records if record.gtid and record.gtid.endswith(":12")]
    assert names(decided) == ["GTID_LOG_EVENT", "QUERY_EVENT"], "XA COMMIT belongs to what was prepared"


def test_a_statement_on_two_tables_ends_with_the_one_that_is_kept() -> None:
    """In the log the rows of orders come first, and those of items end the statement."""
    records = kept(Criteria(tables=(TablePattern.parse("shop.orders"),)))
    changed = next(r for r in records if r.position == 2272)
    event = changed.event.event
    assert isinstance(event, RowsEvent)
    assert event.ends_statement
    state = StreamState(changed.state.format)
    again = decode_event(changed.data, state)
    assert again.event == event, "with a checksum that fits"
    assert again.checksum == changed.event.checksum
    listed_record = next(
        r
        for r in kept(Criteria(tables=(TablePattern.parse("shop.orders"),)), context=False)
        if r.position == 2272
    )
    assert not listed_record.event.event.ends_statement, "a list shows the log as it is"


def test_settings_in_front_of_a_statement_are_kept_with_it() -> None:
    records = kept(Criteria(databases=(NamePattern(""),)))
    statement = [
        name
        for record, name in zip(records, names(records), strict=True)
        if record.gtid and record.gtid.endswith(":10")
    ]
    assert statement == ["GTID_LOG_EVENT", "QUERY_EVENT", "USER_VAR_EVENT", "QUERY_EVENT", "XID_EVENT"]
    others = kept(Criteria(databases=(NamePattern("shop"),)))
    assert "USER_VAR_EVENT" not in names(others)


def packed(path: str) -> Iterator[RawEvent]:
    """The log with the sixth transaction as a TRANSACTION_PAYLOAD."""
    state = StreamState()
    inside: list[bytes] = []
    for raw in raw_events(path):
        decoded = decode_event(raw.data, state)
        if 1442 <= raw.position <= 1859:
            bare = BinlogEvent(decoded.header, decoded.event)
            data = seal(bare, state.for_payload())
            inside.append(data)
            if raw.position < 1859:
                continue
            content = b"".join(inside)
            payload = TransactionPayloadEvent(0, len(content), zstandard.compress(content))
            header = EventHeader(1, EventType.TRANSACTION_PAYLOAD_EVENT, 11, 0, 0)
            yield raw._replace(data=seal(BinlogEvent(header, payload), StreamState(state.format)))
        else:
            yield raw


def test_events_inside_a_payload_are_chosen_one_by_one() -> None:
    def choose(*, context: bool) -> list[tuple[str, int]]:
        criteria = Criteria(tables=(TablePattern.parse("shop.orders"),))
        decoded = LogDecoder().records([[*packed(MYSQL)]])
        records = list(Filter(criteria, context=context).apply(decoded))
        return [
            (name, record.sub_index)
            for record, name in zip(records, names(records), strict=True)
            if record.gtid and record.gtid.endswith(":6")
        ]

    assert choose(context=False) == [("TABLE_MAP_EVENT", 4), ("WRITE_ROWS_EVENT", 5)]
    assert choose(context=True) == [
        ("GTID_LOG_EVENT", 0),
        ("TRANSACTION_PAYLOAD_EVENT", 0),
        ("QUERY_EVENT", 1),
        ("TABLE_MAP_EVENT", 4),
        ("WRITE_ROWS_EVENT", 5),
        ("XID_EVENT", 6),
    ]


# -- origin and type --------------------------------------------------------------------------------------


def test_servers_and_types() -> None:
    assert {line["server_id"] for line in listed("--server-id", "12", MYSQL, MARIADB)} == {12}
    assert {line["type"] for line in listed("--type", "xid", "--type", "33", MYSQL)} == {
        "XID_EVENT",
        "GTID_LOG_EVENT",
    }
    assert parse_event_type("Format_description") == 15
    assert parse_event_type("previous_gtids") == 35
    with pytest.raises(ValueError, match="is not an event type"):
        parse_event_type("rows")


def test_filters_agree_with_each_other() -> None:
    both = positions("--table", "shop.*", "--start-position", "2000", "--type", "DELETE_ROWS", MYSQL)
    assert both == [3026]


def test_the_text_of_a_choice_is_what_mysqlbinlog_would_leave() -> None:
    outcome = CliRunner().invoke(
        main, ["binlog", "-v", "--table", "archive.orders", MYSQL], catch_exceptions=False
    )
    assert outcome.exit_code == 0
    assert set(re.findall(r"### \w+(?: INTO| FROM)? (`\w+`\.`\w+`)", outcome.stdout)) == {
        "`archive`.`orders`"
    }

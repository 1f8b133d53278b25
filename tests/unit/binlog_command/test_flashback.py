import re
from collections.abc import Callable

import pytest

from millrace.binlog.columns.column import ABSENT
from millrace.binlog.event_codec import decode_event
from millrace.binlog.events import (
    DeleteRowsEvent,
    ExecuteLoadQueryEvent,
    IncidentEvent,
    MariadbGtidEvent,
    MariadbGtidFlag,
    PartialUpdateRowsEvent,
    QueryCompressedEvent,
    RowsEvent,
    StatusVariables,
    TableMapEvent,
    UpdateRowsEvent,
    UpdateRowsEventV1,
    WriteRowsEvent,
    WriteRowsEventV1,
    XaPrepareLogEvent,
    XidEvent,
)
from millrace.binlog.row_images import Row, RowImages
from millrace.binlog.state import StreamState
from millrace.binlog_command.flashback import FlashbackOptions, FlashbackOutput
from millrace.binlog_command.rewrite import DatabaseRewrite
from millrace.runtime.errors import UserError

from .made_logs import ALL, COLUMNS, TABLE_MAP, MadeLog, binlog_statements, rows, text_of


def _flashback(*logs: MadeLog, options: FlashbackOptions | None = None) -> str:
    return text_of(*logs, options=options, make=FlashbackOutput)


def _undone(text: str) -> list[tuple[str, list[Row]]]:
    """Read the rows events in the BINLOG statements: operation and rows."""
    state = StreamState()
    found = []
    for events in binlog_statements(text):
        for data in events:
            event = decode_event(data, state).event  # checks the checksum as well
            if isinstance(event, RowsEvent):
                assert event.ends_statement
                images = RowImages.of_event(COLUMNS, event)
                found.append((event.operation.value, images.decode(event.rows)))
    return found


def _insert(*values: tuple[int, str | None], flags: int = 1) -> tuple[TableMapEvent, WriteRowsEvent]:
    content = rows(*((None, one) for one in values))
    return TABLE_MAP, WriteRowsEvent(7, flags, b"", 2, b"", ALL, content)


def _delete(*values: tuple[int, str | None]) -> tuple[TableMapEvent, DeleteRowsEvent]:
    return TABLE_MAP, DeleteRowsEvent(7, 1, b"", 2, ALL, b"", rows(*((one, None) for one in values)))


def test_operations_are_turned_round_newest_first() -> None:
    log = MadeLog()
    log.query("BEGIN").add(*_insert((1, "a"), (2, None))).add(XidEvent(1))
    update = UpdateRowsEvent(7, 1, b"", 2, ALL, ALL, rows(((1, "a"), (1, "b")), ((2, None), (3, "c"))))
    log.query("BEGIN").add(TABLE_MAP, update).add(*_delete((1, "b"))).add(XidEvent(2))

    text = _flashback(log)

    assert _undone(text) == [
        ("write", [(None, (1, "b"))]),
        ("update", [((3, "c"), (2, None)), ((1, "b"), (1, "a"))]),
        ("delete", [((2, None), None), ((1, "a"), None)]),
    ]
    sql = [line for line in text.splitlines() if line in ("BEGIN", "COMMIT/*!*/;")]
    assert sql == ["BEGIN", "COMMIT/*!*/;"] * 2


def test_what_was_undone_already_is_left_out() -> None:
    log = MadeLog()
    log.query("BEGIN").add(*_insert((1, "kept")))
    log.query("SAVEPOINT `s`").add(*_insert((2, "undone"))).query("SAVEPOINT inner_one")
    log.add(*_insert((3, "undone"))).query("ROLLBACK TO `s`").add(*_insert((4, "kept"))).add(XidEvent(1))
    log.query("BEGIN").add(*_insert((5, "undone"))).query("ROLLBACK")
    log.query("BEGIN").add(*_insert((6, "cut off by a crash")))
    restarted = MadeLog(created=1_700_000_900, name="bin.000002")
    restarted.query("BEGIN").add(*_insert((7, "kept"))).add(XidEvent(2))

    undone = _undone(_flashback(log, restarted))

    assert [row[0][1] for _, (row,) in undone] == ["kept"] * 3  # type: ignore[index]  # deletes
    assert [row[0][0] for _, (row,) in undone] == [7, 4, 1]  # type: ignore[index]  # deletes


def test_xa_transactions_are_undone_where_they_were_committed() -> None:
    log = MadeLog()
    for name, key in (("one", 1), ("two", 2), ("three", 3)):
        log.query(f"XA START '{name}'").add(*_insert((key, name))).query(f"XA END '{name}'")
        log.add(XaPrepareLogEvent(0, 1, name.encode(), b""))
    log.query("BEGIN").add(*_insert((9, "between"))).add(XidEvent(1))
    log.query("XA COMMIT X'6f6e65',X'',1").query("XA ROLLBACK X'74776f',X'',1")

    text = _flashback(log)

    assert [row[0][1] for _, (row,) in _undone(text)] == ["one", "between"]  # type: ignore[index]  # deletes
    assert re.search(r"# XA transaction .* is prepared and not decided", text)


def test_an_xa_transaction_that_was_prepared_before() -> None:
    log = MadeLog()
    log.query("XA COMMIT X'6f6e65',X'',1")
    with pytest.raises(UserError, match=r"the commit of XA transaction .*, whose rows come earlier"):
        _flashback(log)


def test_mariadb_images_without_what_did_not_change() -> None:
    after = RowImages(COLUMNS, None, b"\x02").encode([(None, (ABSENT, "new"))])
    before = RowImages(COLUMNS, ALL, None).encode([((1, "old"), None)])
    log = MadeLog("11.4.5-MariaDB")
    log.add(MariadbGtidEvent(1, 0, MariadbGtidFlag.TRANSACTIONAL, padding=bytes(6)))
    log.add(TABLE_MAP, UpdateRowsEventV1(7, 1, b"", 2, ALL, b"\x02", before + after), XidEvent(1))

    text = _flashback(log, options=FlashbackOptions(verbose=1))

    assert _undone(text) == [("update", [((1, "new"), (1, "old"))])]
    assert "# Undo of 0-1-1, " in text
    assert "GTID_NEXT" not in text
    assert "### UPDATE `shop`.`t`\n### WHERE\n###   @1=1\n###   @2='new'\n### SET\n" in text


def test_old_rows_events_stay_of_their_version() -> None:
    log = MadeLog("5.5.60-log")
    log.query("BEGIN").add(TABLE_MAP, WriteRowsEventV1(7, 1, b"", 2, b"", ALL, rows((None, (1, "a")))))
    log.add(XidEvent(1))
    text = _flashback(log)
    assert binlog_statements(text)[1][1][4] == 25  # DELETE_ROWS_EVENT_V1
    assert "GTID_NEXT" not in text


def _partial(log: MadeLog) -> None:
    before = RowImages(COLUMNS, b"\x01", None).encode([((1, ABSENT), None)])
    after = RowImages(COLUMNS, None, b"\x02").encode([(None, (ABSENT, "x"))])
    log.query("BEGIN").add(TABLE_MAP, UpdateRowsEvent(7, 1, b"", 2, b"\x01", b"\x02", before + after))


def _partial_insert(log: MadeLog) -> None:
    after = RowImages(COLUMNS, None, b"\x01").encode([(None, (1, ABSENT))])
    log.query("BEGIN").add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", b"\x01", after))


def _partial_json(log: MadeLog) -> None:
    json_map = TableMapEvent(7, 1, "shop", "j", b"\x03\xf5", b"\x04", b"\x02")
    image = b"\x00\x01\x00\x00\x00\x02\x00\x00\x00\x04\x00"
    diffs = b"\x02\x03$.a"
    after = b"\x01\x01" + b"\x00\x01\x00\x00\x00" + len(diffs).to_bytes(4, "little") + diffs
    log.query("BEGIN").add(json_map, PartialUpdateRowsEvent(7, 1, b"", 2, ALL, ALL, image + after))


def _load_data(log: MadeLog) -> None:
    log.add(
        ExecuteLoadQueryEvent(9, 0, 0, StatusVariables(), "shop", 3, 9, 20, 0, b"LOAD DATA INFILE 'x' INTO")
    )


def _unmapped(log: MadeLog) -> None:
    log.query("BEGIN").add(WriteRowsEvent(7, 1, b"", 2, b"", ALL, rows((None, (1, "a")))))


def _damaged(log: MadeLog) -> None:
    log.query("BEGIN").add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", ALL, b"\x00\x01"))


def _damaged_text(log: MadeLog) -> None:
    log.add(QueryCompressedEvent(9, 0, 0, StatusVariables(), "shop", b"\x81\x05damaged"))


def _unreadable(log: MadeLog) -> None:
    log.append(log.events[0][1][:-1] + b"\0")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda log: log.query("ALTER TABLE t ADD c INT"), "no rows of: ALTER TABLE t ADD c INT"),
        (lambda log: log.query("UPDATE t SET a = 1"), "no rows of: UPDATE t SET a = 1"),
        (lambda log: log.add(IncidentEvent(1, b"lost")), "an incident: events are missing in the log: lost"),
        (_load_data, "LOAD DATA, which the log gives no rows of"),
        (_partial, r"rows of shop\.t: the before image is partial: column 2 missing"),
        (_partial_insert, r"rows of shop\.t: the after image is partial: column 2 missing"),
        (_partial_json, r"rows of shop\.j: the after image is partial: JSON is logged as differences"),
        (_unmapped, "rows of table id 7, whose table map is not there"),
        (_damaged, r"rows of shop\.t, which cannot be read"),
        (_damaged_text, "an event that cannot be read"),
        (_unreadable, "an event that cannot be read"),
    ],
)
def test_what_cannot_be_undone(build: Callable[[MadeLog], object], message: str) -> None:
    log = MadeLog()
    log.query("BEGIN").add(*_insert((1, "a"))).add(XidEvent(1))
    build(log)

    with pytest.raises(UserError, match=f"bin.000001 at \\d+ has .*({message})") as caught:
        _flashback(log)
    assert caught.value.message.endswith(
        "; the log does not say how to undo it: choose the events before or after it, or leave it "
        "out with --force-read"
    )

    text = _flashback(log, options=FlashbackOptions(force=True))
    assert re.search(f"# NOT undone: bin.000001 at \\d+ has .*({message})", text)
    assert _undone(text)[-1] == ("delete", [((1, "a"), None)])


def test_statements_without_effect_on_rows_are_passed_over() -> None:
    log = MadeLog()
    for statement in ("FLUSH TABLES", "ANALYZE TABLE t", "OPTIMIZE TABLE t", "# Dummy event"):
        log.query(statement)
    assert _undone(_flashback(log)) == []


def test_each_log_has_its_own_format_description() -> None:
    first = MadeLog()
    first.query("BEGIN").add(*_insert((1, "a"))).add(XidEvent(1))
    second = MadeLog("8.4.0", name="bin.000002")
    second.query("BEGIN").add(*_insert((2, "b"))).add(XidEvent(2))

    statements = binlog_statements(_flashback(first, second))

    assert [events[0][4] for events in statements] == [15, 19, 15, 19]
    assert statements[0] == [second.events[0][1]]
    assert statements[2] == [first.events[0][1]]


def test_another_name_for_a_database() -> None:
    log = MadeLog()
    log.query("BEGIN").add(*_insert((1, "a"))).add(XidEvent(1))
    text = _flashback(log, options=FlashbackOptions(verbose=2, rewrite_db=DatabaseRewrite({"shop": "copy"})))
    assert "### DELETE FROM `copy`.`t`" in text
    assert b"\x04copy\x00" in binlog_statements(text)[1][0]


def test_no_changes() -> None:
    assert _undone(_flashback(MadeLog())) == []

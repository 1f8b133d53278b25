"""Rows as dictionaries: whatever the log compresses, cuts up or leaves out."""

import io
import itertools
import re
import tracemalloc
import zlib
from collections.abc import Sequence

import pytest
import zstandard

from millrace.binlog import (
    MAGIC,
    BinlogError,
    Change,
    ChangedRows,
    ChangeReader,
    ColumnDefinition,
    TableDefinition,
    read_changes,
)
from millrace.binlog.event_codec import decode_event, seal
from millrace.binlog.events import (
    DeleteRowsEvent,
    PartialRowDataEvent,
    TransactionPayloadEvent,
    UpdateRowsEvent,
    WriteRowsCompressedEventV1,
    WriteRowsEvent,
    WriteRowsEventV1,
)
from millrace.binlog_command.text import TextOptions
from tests.unit.binlog_command.made_logs import ALL, LOGS, TABLE_MAP, MadeLog, rows, text_of


def definition(database: str, table: str) -> TableDefinition:
    return TableDefinition(
        database,
        table,
        (
            ColumnDefinition(0, "id", "int", nullable=False),
            ColumnDefinition(1, "name", "varchar(20)", charset="utf8mb4"),
        ),
    )


def log_bytes(log: MadeLog) -> bytes:
    return MAGIC + b"".join(data for _, data in log.events)


def changes_of(log: MadeLog, reader: ChangeReader | None = None) -> list[tuple[str, str, list[Change]]]:
    reader = ChangeReader(definition) if reader is None else reader
    return [
        (event.operation, f"{event.database}.{event.table}", list(event.rows))
        for event in read_changes(log_bytes(log), log.name, reader=reader)
    ]


def test_the_operations() -> None:
    log = MadeLog().add(
        TABLE_MAP,
        WriteRowsEvent(7, 0, b"", 2, b"", ALL, rows((None, (1, "a")), (None, (2, None)))),
        UpdateRowsEvent(7, 0, b"", 2, ALL, ALL, rows(((1, "a"), (1, "b")))),
        DeleteRowsEvent(7, 1, b"", 2, ALL, b"", rows(((1, "b"), None))),
    )
    assert changes_of(log) == [
        (
            "insert",
            "shop.t",
            [Change(None, {"id": 1, "name": "a"}), Change(None, {"id": 2, "name": None})],
        ),
        ("update", "shop.t", [Change({"id": 1, "name": "a"}, {"id": 1, "name": "b"})]),
        ("delete", "shop.t", [Change({"id": 1, "name": "b"}, None)]),
    ]
    (first, *_) = read_changes(io.BytesIO(log_bytes(log)))
    assert next(iter(first.rows)).after == {"column_1": 1, "column_2": b"a"}
    assert list(first.rows) == list(first.rows)


@pytest.fixture(params=["plain", "compressed", "compressed, large"])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ChangedRows:
    """A thousand rows, some of them alike."""
    images = rows(*((None, (number // 3, f"row {number // 3}")) for number in range(1000)))
    log = MadeLog("11.4.5-MariaDB").add(TABLE_MAP)
    if request.param == "plain":
        log.add(WriteRowsEventV1(7, 1, b"", 2, b"", ALL, images))
    else:
        record = b"\x84" + len(images).to_bytes(4, "big") + zlib.compress(images)
        log.add(WriteRowsCompressedEventV1(7, 1, b"", 2, b"", ALL, record))
    if request.param == "compressed, large":
        monkeypatch.setattr("millrace.binlog.changes._KEPT", 0)
    (event,) = read_changes(log_bytes(log), reader=ChangeReader(definition))
    return event.rows


def test_rows_are_a_sequence(many: ChangedRows) -> None:
    """What a list of them says, at every place a block begins or ends, and for every form of slice."""
    expected = list(many)
    assert len(many) == len(expected) == 1000
    assert isinstance(many, Sequence)
    assert many
    for index in (0, 1, 254, 255, 256, 257, 511, 512, 999, -1, -1000, -745):
        assert many[index] == expected[index]
    numbers = (None, 3, 256, 2000, -300)
    for start, stop, step in itertools.product(numbers, numbers, (None, 1, 7, 300, -1, -256)):
        assert many[start:stop:step] == expected[start:stop:step]
    for index in (1000, -1001):
        with pytest.raises(IndexError):
            many[index]
    assert many.index(expected[600]) == 600 // 3 * 3
    assert list(reversed(many)) == expected[::-1]
    assert many.count(expected[0]) == 3


def test_the_length_of_rows_that_cannot_be_read_is_none() -> None:
    images = rows((None, (1, "a")), (None, (2, "b")))[:-1]
    log = MadeLog().add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", ALL, images))
    (event,) = read_changes(log_bytes(log), "bin.000001", reader=ChangeReader(definition))
    assert next(iter(event.rows)).after == {"id": 1, "name": "a"}
    for read in (len, list, lambda rows: rows[0]):
        with pytest.raises(BinlogError, match=r"^bin\.000001 at \d+: "):
            read(event.rows)


def test_an_insert_without_columns_is_one_row_and_a_delete_none() -> None:
    """As servers take them: a row of defaults, and no record that could be found (error 1032)."""
    log = MadeLog().add(
        TABLE_MAP,
        WriteRowsEvent(7, 0, b"", 2, b"", b"\0", b""),
        DeleteRowsEvent(7, 0, b"", 2, b"\0", b"", b""),
        UpdateRowsEvent(7, 1, b"", 2, b"\0", b"\0", b""),
    )
    insert, *others = read_changes(log_bytes(log), reader=ChangeReader(definition))
    assert (len(insert.rows), insert.rows[0], insert.rows[-1:]) == (1, Change(None, {}), [Change(None, {})])
    for event in others:
        assert (len(event.rows), list(event.rows), event.rows[:]) == (0, [], [])
    text = text_of(log, options=TextOptions(verbose=1))
    assert re.findall("### (INSERT|DELETE|UPDATE)", text) == ["INSERT"]


def test_columns_that_the_image_leaves_out() -> None:
    images = b"\x00" + (1).to_bytes(4, "little") + b"\x00" + b"\x01b"
    log = MadeLog().add(TABLE_MAP, UpdateRowsEvent(7, 1, b"", 2, b"\x01", b"\x02", images))
    assert changes_of(log) == [("update", "shop.t", [Change({"id": 1}, {"name": "b"})])]


def test_inside_a_compressed_transaction() -> None:
    inner = MadeLog()
    inner.add(TABLE_MAP, WriteRowsEvent(7, 1, b"", 2, b"", ALL, rows((None, (1, "a")))))
    bare = inner.state.for_payload()
    plain = b"".join(seal(decode_event(data, inner.state), bare) for _, data in inner.events[1:])
    log = MadeLog().add(TransactionPayloadEvent(0, len(plain), zstandard.compress(plain)))
    assert changes_of(log) == [("insert", "shop.t", [Change(None, {"id": 1, "name": "a"})])]
    with pytest.raises(BinlogError, match=r"bin\.000001 at \d+: "):
        changes_of(log, ChangeReader(definition, max_unpacked=10))


def test_rows_in_fragments() -> None:
    log = MadeLog("11.8.2-MariaDB")
    log.add(TABLE_MAP)
    whole_log = MadeLog("11.8.2-MariaDB")
    whole_log.add(TABLE_MAP, WriteRowsEventV1(7, 1, b"", 2, b"", ALL, rows((None, (1, "a")))))
    whole = whole_log.events[-1][1]
    parts = [whole[:30], whole[30:]]
    for number, part in enumerate(parts, 1):
        size = len(whole) if number == 1 else None
        log.add(PartialRowDataEvent(len(parts), number, number == 1, size, part))
    assert changes_of(log) == [("insert", "shop.t", [Change(None, {"id": 1, "name": "a"})])]


def test_an_event_that_cannot_be_read_is_named_and_the_next_is_read() -> None:
    log = MadeLog().add(TABLE_MAP, WriteRowsEvent(7, 0, b"", 2, b"", ALL, rows((None, (1, "a")))), TABLE_MAP)
    log.add(WriteRowsEvent(7, 1, b"", 2, b"", ALL, rows((None, (2, "b")))))
    position, data = log.events[2]
    damaged = data[:-1] + bytes((data[-1] ^ 1,))
    reader = ChangeReader(definition)
    read: list[int] = []
    for at, event in log.events:
        if at == position:
            with pytest.raises(BinlogError, match=f"^bin.000001 at {position}: "):
                list(reader.feed(damaged, log.name, at))
            continue
        for change in reader.feed(event, log.name, at):
            read += [row.after["id"] for row in change.rows if row.after is not None]
    assert read == [2]


@pytest.mark.parametrize("name", ["mysql.000001", "mariadb.000001", "mariadb-10.1.000001"])
def test_logs_of_real_servers(name: str) -> None:
    with (LOGS / name).open("rb") as stream:
        counts = [(event.operation, len(list(event.rows))) for event in read_changes(stream, name)]
    assert {operation for operation, _ in counts} <= {"insert", "update", "delete"}
    assert counts
    assert all(count for _, count in counts)


def test_rows_that_are_read_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a compressed event larger than what is kept unpacked, its bytes and some positions stay."""
    monkeypatch.setattr("millrace.binlog.changes._KEPT", 1 << 16)
    images = rows(*((None, (number, "a" * 18)) for number in range(10_000)))
    record = b"\x84" + len(images).to_bytes(4, "big") + zlib.compress(images)
    log = MadeLog("11.4.5-MariaDB")
    log.add(TABLE_MAP, WriteRowsCompressedEventV1(7, 1, b"", 2, b"", ALL, record))
    (event,) = read_changes(log_bytes(log), reader=ChangeReader(definition))
    tracemalloc.start()
    try:
        assert len(event.rows) == 10_000
        assert sum(1 for _ in event.rows) == 10_000
        assert event.rows[9_999].after == {"id": 9_999, "name": "a" * 18}
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < len(images) // 4

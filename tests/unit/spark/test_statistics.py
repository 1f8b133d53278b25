"""What a log consists of: counted like ``millrace binlog --stats``, wherever the log is cut."""

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from millrace.binlog.columns.metadata import (
    DefaultCharset,
    OptionalMetadata,
    OptionalMetadataType,
    columns_of,
    encode_optional_metadata,
)
from millrace.binlog.columns.types import ColumnType
from millrace.binlog.declaration import EVENTS, Event
from millrace.binlog.event_codec import BinlogEvent, seal
from millrace.binlog.events import (
    FormatDescriptionEvent,
    GtidLogEvent,
    QueryEvent,
    RowsQueryLogEvent,
    TableMapEvent,
    UpdateRowsEvent,
    XidEvent,
)
from millrace.binlog.events.query import Invoker, StatusVariables
from millrace.binlog.header import EventHeader
from millrace.binlog.row_images import Row, RowImages
from millrace.binlog.state import StreamState
from millrace.contract import ABANDONED, HEADER_MARKER, RawKey
from millrace.spark.decoding import Decoding
from millrace.spark.statistics import LOOKED_AT, STATISTICS, StatisticsView
from millrace.stage import Record
from tests.shared import run_python
from tests.unit.spark.test_decoding import LOGS, log, pieces, raw

SOURCE = "shop"
SUMS = {
    "counts": ("events", "rows", "bytes", "stored", "uncounted"),
    "keys": ("changes",),
    "columns": ("changed",),
    "tables": ("looked", "unchanged", "image_bytes", "needed_bytes"),
    "statements": ("executions", "rows", "bytes", "seconds"),
    "read": ("events", "bytes"),
}


LAYOUT = pa.schema(
    {
        kind.name: pa.list_(pa.struct([one for one in kind.type.value_type if one.name != "record_time"]))
        for kind in STATISTICS
    }
)


def rows_of(
    records: list[Record], number: int, batch: int = 1000, layout: pa.Schema = LAYOUT
) -> dict[str, list[dict[str, Any]]]:
    """Count records in pieces, as executors do; return the rows of each kind."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in STATISTICS.names}
    for piece in pieces(records, number):
        view = StatisticsView(Decoding(SOURCE, False, 0), layout, fail=False)
        if piece.described is not None:
            view.begin(piece.described)
        batches = []
        for at in range(piece.start, piece.end, batch):
            batches += view.take(records[at : min(at + batch, piece.end)])
        for one in [*batches, *view.rest()]:
            assert one.schema == layout
            for row in one.to_pylist():
                for kind, made in row.items():
                    found[kind] += made or ()
    return found


def count(records: list[Record], number: int = 1, batch: int = 1000) -> dict[str, Any]:
    """Count records in pieces; add up what has the same names."""
    found: dict[str, Any] = rows_of(records, number, batch)
    for name, rows in found.items():
        if name not in SUMS:
            found[name] = sorted(rows, key=lambda row: row.get("first_offset", row.get("offset")))
            continue
        summed: dict[tuple[Any, ...], Counter[str]] = {}
        for row in rows:
            key = tuple(value for column, value in row.items() if column not in SUMS[name])
            summed.setdefault(key, Counter()).update({column: row[column] for column in SUMS[name]})
        found[name] = summed
    return found


@pytest.mark.parametrize("name", LOGS)
def test_figures_are_those_of_the_command(name: str) -> None:
    """And the same for 1, 3 and 17 pieces."""
    records = raw(log(name))
    everything = [count(records, *cut) for cut in ((1, 1000), (3, 7), (17, 100))]
    assert everything[0] == everything[1] == everything[2]
    found = everything[0]
    told = run_python("-m", "millrace.cli", "binlog", "--stats", "--json", str(log(name)), settings={})
    stats = json.loads(told.stdout)
    by_type, by_table = Counter[str](), Counter[tuple[str, str]]()
    for (_, type_name, database, table, _), sums in found["counts"].items():
        by_type[type_name] += sums["events"]
        by_table[database, table] += sums["rows"]
    assert by_type == {one["type"]: one["events"] for one in stats["types"]}
    assert +by_table == +Counter({(one["database"], one["table"]): one["rows"] for one in stats["tables"]})
    assert sum(sums["stored"] for sums in found["counts"].values()) == stats["bytes"]
    assert found["read"][()]["events"] == len(records)
    assert len(found["transactions"]) == stats["transactions"]
    assert sum(one["rows"] for one in found["transactions"]) == stats["rows"]
    largest = max(found["transactions"], key=lambda one: one["bytes"])
    assert largest["bytes"] == stats["largest_transactions"]["bytes"][0]["bytes"]


class RawLog:
    """Writes a log as raw records; the table is ``shop.orders`` with a key, or ``shop.log`` without one."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._state = StreamState()
        self._position = 4
        self.epoch = 0
        lengths = bytes(
            EVENTS[code].post_header_lengths[-1] if code in EVENTS else 0 for code in range(1, 43)
        )
        self.add(FormatDescriptionEvent(4, "8.0.36", 0, 19, lengths, 1))

    def add(self, event: Event, *, timestamp: int = 1000, server_id: int = 1) -> None:
        header = EventHeader(timestamp, event.event_type, server_id, 0, 0)
        data = seal(BinlogEvent(header, event), self._state)
        key = RawKey(server_id, self.epoch, "bin.000001", self._position).encode()
        self._position += len(data)
        self.record(key, data)

    def record(self, key: bytes | None, value: bytes | None, marker: bytes | None = None) -> None:
        headers = None if marker is None else [(HEADER_MARKER, marker)]
        offset = len(self.records)
        self.records.append(Record(offset, offset, key, value, headers))

    def begin(self, number: int, *, user: str | None = None, last_committed: int = 0, at: int = 1000) -> None:
        self.add(
            GtidLogEvent(1, bytes(range(16)), number, 2, last_committed, number, at * 10**6, None, 100, 80036)
        )
        variables = StatusVariables()
        if user is not None:
            variables = StatusVariables(b"\x0b", b"", invoker=Invoker(user, "app.example.org"))
        self.add(QueryEvent(77, 0, 0, variables, "shop", b"BEGIN"), timestamp=at)

    def update(self, table: str, *rows: Row, text: str | None = None, at: int = 1000) -> None:
        if text is not None:
            self.add(RowsQueryLogEvent(len(text) % 256, text.encode()), timestamp=at)
        names = OptionalMetadata(
            signedness=b"\x00",
            default_charset=DefaultCharset(255),
            column_name=(b"id", b"state"),
            simple_primary_key=(0,) if table == "orders" else None,
            order=(
                OptionalMetadataType.SIGNEDNESS,
                OptionalMetadataType.DEFAULT_CHARSET,
                OptionalMetadataType.COLUMN_NAME,
                *([OptionalMetadataType.SIMPLE_PRIMARY_KEY] if table == "orders" else []),
            ),
        )
        types = bytes([ColumnType.LONG, ColumnType.VARCHAR])
        table_map = TableMapEvent(
            9, 1, "shop", table, types, b"\x28\x00", b"\x03", encode_optional_metadata(names)
        )
        self.add(table_map, timestamp=at)
        images = RowImages(columns_of(table_map), b"\x03", b"\x03").encode(rows)
        self.add(UpdateRowsEvent(9, 1, b"", 2, b"\x03", b"\x03", images), timestamp=at)


def changed(number: int, old: str, new: str) -> Row:
    return (number, old), (number, new)


def test_what_is_told_of_a_transaction() -> None:
    written = RawLog()
    written.begin(5, user="shop_app", last_committed=3)
    written.update(
        "orders",
        changed(1, "new", "paid"),
        changed(2, "new", "new"),
        text="UPDATE orders SET state = 'paid'",
        at=1001,
    )
    written.update(
        "orders", changed(1, "paid", "sent"), text="UPDATE orders SET state = 'sent' WHERE id = 1", at=1002
    )
    written.add(XidEvent(1), timestamp=1003)
    found = count(written.records)
    (one,) = found["transactions"]
    assert one["_transaction"] == one["_gtid"] == "00010203-0405-0607-0809-0a0b0c0d0e0f:5"
    assert (one["thread_id"], one["user"]) == (77, "shop_app@app.example.org")
    assert (one["started"].timestamp(), one["ended"].timestamp(), one["ends"]) == (1000, 1003, "commit")
    assert one["statement"] == "UPDATE orders SET state = 'paid'"
    assert (one["inserts"], one["updates"], one["deletes"], one["rows"]) == (0, 3, 0, 3)
    assert (one["last_committed"], one["commit_id"]) == (3, None)
    assert one["original_commit"] == one["immediate_commit"] == one["_commit_ts"] == one["started"]
    (table,) = one["tables"]
    assert table == {"database": "shop", "table": "orders", "inserts": 0, "updates": 3, "deletes": 0}
    assert one["bytes"] == sum(len(record.value or b"") for record in written.records[1:])
    assert found["keys"] == {
        ("shop", "orders", "1"): {"changes": 2},
        ("shop", "orders", "2"): {"changes": 1},
    }
    assert {key[1]: (sums["executions"], sums["rows"]) for key, sums in found["statements"].items()} == {
        "update orders set state=?": (1, 2),
        "update orders set state=? where id=?": (1, 1),
    }
    ((key, sums),) = found["tables"].items()
    assert key == ("shop", "orders", "id")
    assert (sums["looked"], sums["unchanged"]) == (3, 1)
    # An INT has four bytes; a VARCHAR here one for its length and its text.
    assert sums["image_bytes"] == 3 * (4 + 4) + 2 * (1 + 3) + 2 * (1 + 4) + (1 + 3) + (1 + 4)
    assert sums["needed_bytes"] == 3 * 4 + (1 + 4) + (1 + 4)
    assert {key[3]: sums["changed"] for key, sums in found["columns"].items()} == {"state": 2}
    assert found["corrupt"] == []


def test_tables_without_a_key_have_none() -> None:
    written = RawLog()
    written.begin(1)
    written.update("log", changed(1, "a", "b"))
    written.add(XidEvent(1))
    found = count(written.records)
    assert list(found["tables"]) == [("shop", "log", "")]
    assert found["keys"] == {}


def test_of_large_events_the_first_rows_are_looked_at() -> None:
    written = RawLog()
    written.begin(1)
    written.update("orders", *[changed(number, "a", "b") for number in range(100)])
    written.add(XidEvent(1))
    found = count(written.records)
    assert sum(sums["rows"] for sums in found["counts"].values()) == 100
    assert [sums["looked"] for sums in found["tables"].values()] == [LOOKED_AT]
    assert len(found["keys"]) == LOOKED_AT


def test_ddl_is_listed() -> None:
    written = RawLog()
    text = b"ALTER TABLE orders\n ADD COLUMN note TEXT /* \xff */"
    written.add(QueryEvent(5, 7, 0, StatusVariables(), "shop", text), timestamp=2000)
    found = count(written.records)
    (one,) = found["ddl"]
    assert (one["verb"], one["object"], one["seconds"]) == ("ALTER", "shop.orders", 7)
    assert one["time"].timestamp() == 2000
    assert one["statement"] == "ALTER TABLE orders\n ADD COLUMN note TEXT /* \\xff */"


def test_a_transaction_that_was_abandoned_counts_once() -> None:
    written = RawLog()
    for again in (False, True):
        written.begin(1)
        written.update("orders", changed(1, "a", "b"))
        if not again:
            written.record(b"1:0:bin.000001:4", b"", ABANDONED)
    written.add(XidEvent(1))
    found = count(written.records)
    assert [one["rows"] for one in found["transactions"]] == [1]
    assert sum(sums["rows"] for sums in found["counts"].values()) == 1


def test_a_transaction_that_has_not_ended_is_counted() -> None:
    written = RawLog()
    written.begin(1)
    written.update("orders", changed(1, "a", "b"))
    found = count(written.records)
    assert [(one["ends"], one["rows"]) for one in found["transactions"]] == [(None, 1)]
    assert sum(sums["events"] for sums in found["counts"].values()) == len(written.records)


def test_faulty_records_are_told_and_all_else_is_counted() -> None:
    written = RawLog()
    for number in (1, 2):
        written.begin(number)
        written.update("orders", changed(number, "a", "b"))
        written.add(XidEvent(number))
        if number == 1:
            written.record(None, b"")
            written.record(b"1:0:bin.000001:4", None)
            written.record(b"no key", b"garbage")
            written.record(b"1:0:bin.000001:9999", b"garbage" * 10)
    found = count(written.records)
    assert [one["rows"] for one in found["transactions"]] == [1, 1]
    assert [row["offset"] for row in found["corrupt"]] == [6, 7, 8, 9]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes too much is handed out, and adds up to the same."""
    written = RawLog()
    for number in range(1, 60):
        written.begin(number, at=1000 + number)
        written.update(
            "orders", changed(number % 7, "a", "b"), text=f"UPDATE t{number % 11} SET x = 1", at=1000 + number
        )
        written.add(XidEvent(number))
    plain = count(written.records)
    for name in ("COUNTS", "OPEN", "KEYS", "STATEMENTS", "TRANSACTIONS", "TABLES"):
        monkeypatch.setattr(f"millrace.spark.statistics._MOST_{name}", 3)
    assert sum(map(len, rows_of(written.records, 1, 5).values())) > sum(map(len, plain.values()))
    assert count(written.records, 1, 5) == plain


def test_only_what_is_wanted_is_counted() -> None:
    records = raw(log(LOGS[1]))
    layout = pa.schema({"counts": pa.list_(pa.struct([("type", pa.string()), ("events", pa.int64())]))})
    view = StatisticsView(Decoding(SOURCE, False, 0), layout, fail=False)
    parts = [row["counts"] for one in [*view.take(records), *view.rest()] for row in one.to_pylist()]
    rows = [row for part in parts for row in part]
    assert sum(row["events"] for row in rows) >= len(records)
    assert set(rows[0]) == {"type", "events"}

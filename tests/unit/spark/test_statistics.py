"""What a piece of a log consists of: counted like ``millrace binlog --stats``, wherever the log is cut."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
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
from millrace.spark.raw_topic import Walk
from millrace.stage import Record
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.statistics import LOOKED_AT, TABLES, PieceStatistics
from tests.shared import run_python
from tests.unit.spark.test_decoding import LOGS, log, pieces, raw

SOURCE = "shop"
SUMS = {
    "counts": ("events", "rows", "bytes", "stored", "uncounted"),
    "keys": ("changes",),
    "columns": ("changed",),
    "tables": ("looked", "unchanged", "image_bytes", "needed_bytes"),
    "statements": ("executions", "rows", "bytes", "seconds"),
}


def count(records: list[Record], number: int, folder: Path, batch: int = 1000) -> Outcome:
    """Count records in pieces, as executors do."""
    whole = Outcome()
    for index, piece in enumerate(pieces(records, number)):
        statistics = PieceStatistics(SOURCE, Decoding(SOURCE, False, 0), str(folder), f"{index:05}")
        if piece.described is not None:
            statistics.begin([piece.described])
        for at in range(piece.start, piece.end, batch):
            statistics.take(records[at : min(at + batch, piece.end)])
        whole.add(Outcome.from_json(statistics.finish().to_json()))
    return whole


def tables(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """Read what was written; add up what has the same names."""
    read: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for file in outcome.files:
        if file.table.removeprefix("parts/") in TABLES:
            rows = pq.ParquetFile(folder / file.path).read().to_pylist()
            assert len(rows) == file.rows
            read[file.table.removeprefix("parts/")] += rows
    found: dict[str, Any] = {}
    for name, rows in read.items():
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
def test_figures_are_those_of_the_command(name: str, tmp_path: Path) -> None:
    """And the same for 1, 3 and 17 pieces."""
    records = raw(log(name))
    everything = []
    for number, batch in ((1, 1000), (3, 7), (17, 100)):
        folder = tmp_path / str(number)
        outcome = count(records, number, folder, batch)
        assert outcome.events == len(records)
        everything.append(tables(folder, outcome))
    assert everything[0] == everything[1] == everything[2]
    found = everything[0]
    told = run_python("-m", "millrace.cli", "binlog", "--stats", "--json", str(log(name)), settings={})
    stats = json.loads(told.stdout)
    by_type, by_table = Counter[str](), Counter[tuple[str, str]]()
    for (_, _, type_name, database, table, _), sums in found["counts"].items():
        by_type[type_name] += sums["events"]
        by_table[database, table] += sums["rows"]
    assert by_type == {one["type"]: one["events"] for one in stats["types"]}
    assert +by_table == +Counter({(one["database"], one["table"]): one["rows"] for one in stats["tables"]})
    assert sum(sums["stored"] for sums in found["counts"].values()) == stats["bytes"]
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


def counted(written: RawLog, folder: Path) -> tuple[dict[str, Any], Outcome]:
    outcome = count(written.records, 1, folder)
    return tables(folder, outcome), outcome


def changed(number: int, old: str, new: str) -> Row:
    return (number, old), (number, new)


def test_what_is_told_of_a_transaction(tmp_path: Path) -> None:
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
    found, outcome = counted(written, tmp_path)
    (one,) = found["transactions"]
    assert one["transaction"] == "00010203-0405-0607-0809-0a0b0c0d0e0f:5"
    assert (one["thread_id"], one["user"]) == (77, "shop_app@app.example.org")
    assert (one["started"], one["ended"], one["ends"]) == (1000, 1003, "commit")
    assert (one["inserts"], one["updates"], one["deletes"], one["rows"]) == (0, 3, 0, 3)
    assert (one["last_committed"], one["commit_group"]) == (3, 3)
    assert one["original_commit_us"] == one["immediate_commit_us"] == 1000 * 10**6
    assert one["tables"] == ["shop.orders"]
    assert one["bytes"] == sum(len(record.value or b"") for record in written.records[1:])
    assert found["keys"] == {
        (SOURCE, "shop", "orders", "1"): {"changes": 2},
        (SOURCE, "shop", "orders", "2"): {"changes": 1},
    }
    assert {key[2]: (sums["executions"], sums["rows"]) for key, sums in found["statements"].items()} == {
        "update orders set state=?": (1, 2),
        "update orders set state=? where id=?": (1, 1),
    }
    ((key, sums),) = found["tables"].items()
    assert key == (SOURCE, "shop", "orders", "id")
    assert (sums["looked"], sums["unchanged"]) == (3, 1)
    # An INT has four bytes; a VARCHAR here one for its length and its text.
    assert sums["image_bytes"] == 3 * (4 + 4) + 2 * (1 + 3) + 2 * (1 + 4) + (1 + 3) + (1 + 4)
    assert sums["needed_bytes"] == 3 * 4 + (1 + 4) + (1 + 4)
    assert {key[4]: sums["changed"] for key, sums in found["columns"].items()} == {"state": 2}
    assert outcome.dead_letters == []


def test_tables_without_a_key_have_none(tmp_path: Path) -> None:
    written = RawLog()
    written.begin(1)
    written.update("log", changed(1, "a", "b"))
    written.add(XidEvent(1))
    found, _ = counted(written, tmp_path)
    assert list(found["tables"]) == [(SOURCE, "shop", "log", "")]
    assert found["keys"] == {}


def test_of_large_events_the_first_rows_are_looked_at(tmp_path: Path) -> None:
    written = RawLog()
    written.begin(1)
    written.update("orders", *[changed(number, "a", "b") for number in range(100)])
    written.add(XidEvent(1))
    found, _ = counted(written, tmp_path)
    assert sum(sums["rows"] for sums in found["counts"].values()) == 100
    assert [sums["looked"] for sums in found["tables"].values()] == [LOOKED_AT]
    assert len(found["keys"]) == LOOKED_AT


def test_ddl_is_listed(tmp_path: Path) -> None:
    written = RawLog()
    text = b"ALTER TABLE orders\n ADD COLUMN note TEXT /* \xff */"
    written.add(QueryEvent(5, 7, 0, StatusVariables(), "shop", text), timestamp=2000)
    found, _ = counted(written, tmp_path)
    (one,) = found["ddl"]
    assert (one["verb"], one["object"], one["second"], one["seconds"]) == ("ALTER", "shop.orders", 2000, 7)
    assert one["statement"] == "ALTER TABLE orders\n ADD COLUMN note TEXT /* \\xff */"


def test_a_transaction_that_was_abandoned_counts_once(tmp_path: Path) -> None:
    written = RawLog()
    for again in (False, True):
        written.begin(1)
        written.update("orders", changed(1, "a", "b"))
        if not again:
            written.record(b"1:0:bin.000001:4", b"", ABANDONED)
    written.add(XidEvent(1))
    found, _ = counted(written, tmp_path)
    assert [one["rows"] for one in found["transactions"]] == [1]
    assert sum(sums["rows"] for sums in found["counts"].values()) == 1


def test_a_transaction_may_be_cut_anywhere(tmp_path: Path) -> None:
    """With what a walk over the records before says; its parts add up to the whole."""
    written = RawLog()
    written.begin(1)
    written.update("orders", changed(9, "a", "b"))
    written.add(XidEvent(1))
    second = len(written.records)
    written.begin(2, user="app")
    for number in range(12):
        text = f"UPDATE t{number} SET x = {number}" if number % 3 == 0 else None
        written.update(
            "log" if number % 5 == 4 else "orders", changed(number, "a", "b"), text=text, at=1000 + number
        )
    written.add(XidEvent(2), timestamp=1100)
    records = written.records
    expected, _ = counted(written, tmp_path / "whole")
    whole = {key: value for key, value in expected["transactions"][1].items() if key != "part"}
    walk, cuts = Walk(), 0
    for at, record in enumerate(records):
        before = walk.before(record)
        walk.take(record)
        if before is None or at < second:
            continue
        cuts += 1
        folder = tmp_path / str(at)
        both = Outcome()
        for known, part in (([], records[:at]), ([records[0], *before], records[at:])):
            statistics = PieceStatistics(SOURCE, Decoding(SOURCE, False, 0), str(folder), f"{len(known)}")
            statistics.begin(known)
            statistics.take(part)
            both.add(statistics.finish())
        found = tables(folder, both)
        parts = found.pop("transactions")[1:]
        assert all(part["part"] for part in parts)
        assert found == {name: rows for name, rows in expected.items() if name != "transactions"}, at
        for name, value in whole.items():
            values = [part[name] for part in parts]
            if name in {"events", "rows", "inserts", "updates", "deletes", "bytes"}:
                assert sum(values) == value
            elif name == "tables":
                assert sorted(set(values[0]) | set(values[1])) == value
            else:
                assert max((one for one in values if one is not None), default=None) == value, name
    assert cuts > 20


def test_faulty_records_are_told_and_all_else_is_counted(tmp_path: Path) -> None:
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
    found, outcome = counted(written, tmp_path)
    assert [one["rows"] for one in found["transactions"]] == [1, 1]
    assert [offset for offset, *_ in outcome.dead_letters] == [6, 7, 8, 9]
    assert outcome.counters["dead_letters"] == 4
    files = [file for file in outcome.files if file.table == "parts/deadletter"]
    rows = [row for file in files for row in pq.ParquetFile(tmp_path / file.path).read().to_pylist()]
    assert [row["raw_offset"] for row in rows] == [6, 7, 8, 9]


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes too much goes to the files, and adds up to the same."""
    written = RawLog()
    for number in range(1, 60):
        written.begin(number, at=1000 + number)
        written.update(
            "orders", changed(number % 7, "a", "b"), text=f"UPDATE t{number % 11} SET x = 1", at=1000 + number
        )
        written.add(XidEvent(number))
    plain, _ = counted(written, tmp_path / "plain")
    for name in ("COUNTS", "OPEN", "KEYS", "STATEMENTS", "TRANSACTIONS", "TABLES"):
        monkeypatch.setattr(f"spark_jobs.common.statistics._MOST_{name}", 3)
    outcome = count(written.records, 1, tmp_path / "bounded", batch=5)
    assert sum(file.rows for file in outcome.files) > sum(map(len, plain.values()))
    assert tables(tmp_path / "bounded", outcome) == plain

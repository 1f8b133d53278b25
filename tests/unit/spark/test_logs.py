"""Events of a log to lines of transactions: the same ones wherever what is read is cut into stretches."""

from typing import Any

import pytest

from millrace.binlog.events import GtidTaggedLogEvent, IntvarEvent, RotateEvent, XidEvent
from millrace.binlog.types import HeaderFlag
from millrace.contract import HEADER_CHUNK, HEADER_MARKER
from millrace.stage import Record
from spark_jobs.common.transactions import BEFORE, tells_gtid
from tests.unit.spark.logs import EventLog, gtid_event, inserted, lines_of, records_of

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
CUTS = [1, 2, 5, 50]
A, B, C = (1, b"a"), (2, b"b"), (3, b"c")


def gtid(log: EventLog, number: int, **more: Any) -> None:
    """Write a transaction with a GTID that inserts two rows in two events."""
    log.add(gtid_event(number, original=1_500_000, immediate=2_500_000), **more)
    log.statement("BEGIN", thread_id=7, **more)
    log.table_map("log", **more)
    log.rows("log", "insert", inserted(A), **more)
    log.rows("log", "insert", inserted(B), **{**more, "timestamp": 1005})
    log.add(XidEvent(number), timestamp=1009)


def test_the_columns_of_a_transaction() -> None:
    log = EventLog()
    gtid(log, 7, server_id=3, timestamp=1003)
    found = lines_of(records_of(log.records))
    assert found["transactions"] == [{
        "source": "shop", "epoch": 0, "transaction": f"{UUID}:7", "lap": 0, "by_gtid": True, "events": 6,
        "bytes": log.position - 4,
        "first_key": "3:0:bin.000001:4", "last_key": found["transactions"][0]["last_key"],
        "first_offset": 0, "last_offset": 10, "log_file": "bin.000001", "position": 4, "server_id": 3,
        "dated": 1003, "dated_to": 1005, "thread_id": 7, "form": "rows",
        "original_commit_us": 1_500_000, "immediate_commit_us": 2_500_000, "tables": ["shop.log"],
        "changes": 2, "inserts": True, "creates": False, "temporary": None,
        "digest": found["transactions"][0]["digest"], "layout": found["transactions"][0]["layout"],
    }]  # fmt: skip
    assert log.records[-1][0].startswith(found["transactions"][0]["last_key"].encode() + b":")


@pytest.mark.parametrize("cuts", CUTS)
def test_the_same_lines_wherever_the_stretches_end(cuts: int) -> None:
    log = EventLog()
    log.statement("BEGIN")
    log.rows("log", "insert", inserted(C))
    log.records = log.records[1:]  # its beginning lies before the input
    for number in (1, 2, 2, 3):
        gtid(log, number)
        log.change("log", "insert", (None, A))
        log.add(RotateEvent(4, "bin.000002"), timestamp=0)
        log.next_file()
    log.statement("CREATE TABLE t (a INT)")
    whole = lines_of(records_of(log.records))
    assert [one["transaction"] for one in whole["transactions"] if one["by_gtid"]] == [
        f"{UUID}:{number}" for number in (1, 2, 2, 3)
    ]
    assert [one["form"] for one in whole["transactions"]] == ["rows"] * 9 + ["ddl"]
    assert [one["lap"] for one in whole["transactions"]][:2] == [BEFORE, 2]
    assert len({one["lap"] for one in whole["transactions"]}) == 10
    assert [one["type"] for one in whole["heads"]] == ["ROTATE_EVENT"] * 4
    assert lines_of(records_of(log.records), cuts) == whole


@pytest.mark.parametrize("cuts", CUTS)
def test_faulty_records_are_told_once(cuts: int) -> None:
    log = EventLog()
    for number in range(4):
        gtid(log, number + 1)
    records = records_of(log.records)
    bad = {
        2: (None, b"x", "RecordError: it has no key"),
        6: (b"1:0:bin.000001:9:0", None, "RecordError: it has no value"),
        7: (b"1:0:bin.000001:9:0", records[7].value[:-9], "TruncatedError: a value of 4 bytes"),
        23: (b"no key", records[23].value, "ValueError: "),
    }
    for at, (key, value, _) in bad.items():
        records[at] = records[at]._replace(key=key, value=value)
    found = lines_of(records, cuts)
    assert found == lines_of(records)
    told = found["faulty"]
    assert [(one["topic"], one["partition"], one["offset"], one["key"], one["value"]) for one in told] == [
        ("shop.events", 0, 2 * at, key, value) for at, (key, value, _) in bad.items()
    ]
    for one, (_, _, reason) in zip(told, bad.values(), strict=True):
        assert one["fault"].startswith(reason)
    events = [(one["transaction"][-1], one["events"]) for one in found["transactions"]]
    assert events == [("1", 5), ("2", 4), ("3", 6), ("4", 5)]


def chunked(records: list[Record], at: int, number: int) -> list[Record]:
    """Write an event as chunks, a marker among them."""
    whole = records[at]
    size = -(-len(whole.value or b"") // number)
    chunks = [
        whole._replace(value=(whole.value or b"")[n * size : (n + 1) * size],
                       headers=[(HEADER_CHUNK, b"%d/%d" % (n, number))])
        for n in range(number)
    ]  # fmt: skip
    marker = Record(0, 0, b"marker", b"why", [(HEADER_MARKER, b"gap")])
    line = [*records[:at], *chunks[:1], marker, *chunks[1:], *records[at + 1 :]]
    return [one._replace(offset=2 * number) for number, one in enumerate(line)]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("at", [0, 3, 12])
def test_chunks_are_joined(cuts: int, at: int) -> None:
    log = EventLog()
    for number in range(4):
        gtid(log, number + 1)
    records = records_of(log.records)
    found = lines_of(chunked(records, at, 5), cuts)
    plain = lines_of(records)["transactions"]
    places = {"lap", "first_offset", "last_offset"}
    assert [{k: v for k, v in one.items() if k not in places} for one in found["transactions"]] == [
        {k: v for k, v in one.items() if k not in places} for one in plain
    ]
    assert found["faulty"] == found["cut"] == []


@pytest.mark.parametrize("cuts", CUTS)
def test_chunks_that_are_not_all_there(cuts: int) -> None:
    log = EventLog()
    gtid(log, 1)
    records = records_of(log.records)
    whole = chunked(records, 3, 4)  # at offsets 6, 10, 12 and 14
    lacking = [one for one in whole if one.offset != 10]
    (fault,) = lines_of(lacking, cuts)["faulty"]
    assert (fault["offset"], fault["fault"]) == (6, "3 of the 4 chunks of this event are there")
    twice = [*whole[:6], whole[5]._replace(offset=11), *whole[6:]]
    (fault,) = lines_of(sorted(twice), cuts)["faulty"]
    assert fault["fault"] == "4 of the 4 chunks of this event are there, some of them twice"
    strange = [whole[0]._replace(headers=[(HEADER_CHUNK, b"x")]), *whole[1:]]
    (fault,) = lines_of(strange, cuts)["faulty"]
    assert (fault["offset"], fault["fault"]) == (0, "its header chunk is not a chunk number")
    for bounds in ((9, 100), (0, 13)):
        inside = [one for one in whole if bounds[0] <= one.offset < bounds[1]]
        found = lines_of(inside, cuts, bounds=bounds)
        assert (found["faulty"], len(found["cut"])) == ([], 1)


def content(log: EventLog, cuts: int = 1) -> list[tuple[int, int]]:
    """Return changes and digest of each transaction in order."""
    return [
        (one["changes"], one["digest"]) for one in lines_of(records_of(log.records), cuts)["transactions"]
    ]


@pytest.mark.parametrize("cuts", CUTS)
def test_equal_content_wherever_and_however_it_is_logged(cuts: int) -> None:
    log = EventLog()
    log.change("log", "insert", (None, A), (None, B))
    log.change("log", "insert", (None, A), (None, B), table_id=4711, timestamp=2000, server_id=5)
    log.statement("BEGIN")
    log.table_map("log", 7)
    log.rows("log", "insert", inserted(A), table_id=7)
    log.rows("log", "insert", inserted(B), table_id=7)
    log.add(XidEvent(1))
    log.change("log", "insert", (None, A), (None, C))
    log.change("keyed", "insert", (None, A), (None, B))
    log.change("log", "delete", (A, None), (B, None))
    found = content(log, cuts)
    assert [changes for changes, _ in found] == [2] * 6
    assert len({digest for _, digest in found[:3]}) == 1
    assert len({digest for _, digest in found[2:]}) == 4


def test_statements_with_their_variables() -> None:
    log = EventLog()
    for number in (1, 1, 2):
        log.statement("BEGIN")
        log.add(IntvarEvent(2, number))
        log.statement("INSERT INTO log VALUES (NULL, 'x')")
        log.statement("COMMIT")
    one, same, other = content(log)
    assert one == same != other
    assert one[0] == 2


def test_a_time_that_no_column_holds_is_a_fault_of_its_record() -> None:
    log = EventLog()
    log.add(GtidTaggedLogEvent(1, bytes(16), 1, "tag", immediate_commit_timestamp=1 << 63))
    log.add(XidEvent(1))
    found = lines_of(records_of(log.records))
    assert [one["fault"] for one in found["faulty"]] == ["OverflowError: 9223372036854775808 is too large"]
    assert [one["immediate_commit_us"] for one in found["transactions"]] == [None]


def test_what_is_a_gtid() -> None:
    gtids = [f"{UUID}:1", f"{UUID.upper()}:77", f"{UUID}:tag_1:5", "0-1-12"]
    others = ["mysql-bin.000001:4", "0-1-12:4", "1-2-3.000001:120", "a:b:c:4", f"{UUID}:1\n"]
    assert [name for name in gtids + others if tells_gtid(name)] == gtids


@pytest.mark.parametrize("cuts", CUTS)
def test_gaps_are_told_once_and_what_a_bound_cuts_is_not_empty(cuts: int) -> None:
    log = EventLog()
    for number in range(1, 4):
        gtid(log, number)
        log.gap(1000 + number)
    records = records_of(log.records)
    found = lines_of(records, cuts)
    assert [(one["timestamp"], one["reason"]) for one in found["gaps"]] == [
        (1001, "purged"), (1002, "purged"), (1003, "purged")
    ]  # fmt: skip
    assert [one["form"] for one in found["transactions"]] == ["rows"] * 3
    parts = lines_of(records[2:-3], bounds=(4, 2 * len(records) - 6))["transactions"]
    assert [one["form"] for one in parts] == ["cut", "rows", "cut"]
    log.add(gtid_event(9))
    log.statement("BEGIN")
    log.statement("COMMIT")
    assert [one["form"] for one in lines_of(records_of(log.records), cuts)["transactions"]][3:] == ["empty"]


def test_content_under_a_gtid_is_that_of_the_rows_however_they_are_spread() -> None:
    def of(*events: list[Any], table_id: int = 100, table: str = "log") -> tuple[int, int]:
        log = EventLog()
        log.add(gtid_event(1))
        log.statement("BEGIN")
        log.table_map(table, table_id)
        for rows in events:
            log.rows(table, "insert", inserted(*rows), table_id=table_id)
        log.add(XidEvent(1))
        (line,) = lines_of(records_of(log.records))["transactions"]
        return line["layout"], line["digest"]

    assert of([A, B], [C]) == of([A], [B, C], table_id=7) == of([A, B, C])
    assert of([A, B]) != of([A, C])
    assert of([A, B])[0] == of([A, C])[0] != of([A, B], table="keyed")[0]


def test_what_changes_temporary_tables_alone() -> None:
    def of(*statements: str, flags: int = HeaderFlag.THREAD_SPECIFIC_F) -> tuple[bool, list[str] | None]:
        log = EventLog()
        log.add(gtid_event(1))
        for text in ("BEGIN", *statements):
            log.statement(text, thread_id=7, flags=flags)
        log.add(XidEvent(1))
        (line,) = lines_of(records_of(log.records))["transactions"]
        return line["creates"], line["temporary"]

    assert of("CREATE TEMPORARY TABLE t (a INT)", flags=0) == (True, ["1:7:shop.t"])
    assert of("INSERT INTO t VALUES (1)", "DELETE FROM u") == (False, ["1:7:shop.t", "1:7:shop.u"])
    assert of("INSERT INTO t VALUES (1)", flags=0) == (False, None)

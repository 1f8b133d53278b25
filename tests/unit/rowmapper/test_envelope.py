"""What the envelope says beside the row, and the records that options add."""

from functools import partial

import pytest

from millrace.avro.catalog import CatalogEntry
from millrace.avro.service_state import RowsContext
from millrace.binlog.events import (
    AnnotateRowsEvent,
    GtidLogEvent,
    GtidTaggedLogEvent,
    QueryEvent,
    RowsQueryLogEvent,
    StatusVariables,
    WriteRowsEvent,
)
from millrace.binlog.table import TableDefinition
from millrace.rowmapper.binding import TableRefusedError
from tests.stages import CrashError

from .harness import EventsTopic, World
from .logs import SID, Log

COMMITTED_US = 1_700_000_000_123_456


def made():
    """Rows inserted, updated, moved to another key and deleted, in a transaction each."""
    log = Log(EventsTopic())
    log.begin().insert("a", (1, "x"), (2, "y")).commit()
    log.begin().update("a", ((1, "x"), (1, "z"))).update("a", ((1, "z"), (7, "z"))).commit()
    return log.begin().delete("a", (2, "y"), (7, "z")).commit()


def world(log, **options):
    found = World(log.topic, **options)
    found.run()
    return found


def shape(found, table="a"):
    """Operation, None for a tombstone; the key's id; headers."""
    records = zip(found.read(f"t.shop.{table}"), found.records(f"t.shop.{table}"), strict=True)
    return [
        (value and value["op"], key and key["id"], [(name, text.decode()) for name, text in headers or ()])
        for (key, value), (_, _, headers) in records
    ]


def test_tombstones():
    found = world(made(), tombstones="always")
    assert [one[:2] for one in shape(found)] == [
        ("c", 1),
        ("c", 2),
        ("u", 1),
        ("d", 1),
        (None, 1),
        ("c", 7),
        ("d", 2),
        (None, 2),
        ("d", 7),
        (None, 7),
    ]
    # They are no changes: none of the counts knows them.
    assert [value["event_count"] for _, value in found.read("t.transactions")] == [None, 2, None, 3, None, 2]
    orders = [value["transaction"]["total_order"] for _, value in found.read("t.shop.a") if value]
    assert orders == [1, 2, 1, 2, 3, 1, 2]


@pytest.mark.parametrize(("compacted", "wanted"), [(True, 3), (False, 0)])
def test_tombstones_where_the_topic_is_compacted(compacted, wanted):
    found = World(made().topic)
    found.compacted = compacted
    found.run()
    assert [op for op, _, _ in shape(found)].count(None) == wanted


def test_no_tombstones_without_a_key():
    log = Log(EventsTopic(), named=False).begin().insert("a", (1, "x")).delete("a", (1, "x")).commit()
    found = world(log, tombstones="always", truncate=True, key_headers=True)
    assert shape(found) == [("c", None, []), ("d", None, [])]


def test_keys_in_headers():
    new, old = ("__debezium.newkey", '{"id":7}'), ("__debezium.oldkey", '{"id":1}')
    moved = [one for one in shape(world(made(), key_headers=True)) if one[2]]
    assert moved == [("d", 1, [new]), ("c", 7, [old])]
    moved = [one for one in shape(world(made(), key_headers=True, tombstones="always")) if one[2]]
    assert moved == [("d", 1, [new]), (None, 1, [new]), ("c", 7, [old])]


@pytest.mark.parametrize("crash_after", range(1, 6))
def test_a_crash_changes_nothing(crash_after):
    options = {"tombstones": "always", "key_headers": True, "truncate": True}
    log = made().query("TRUNCATE a")
    log.begin().insert("a", (1, "x")).commit()
    whole = world(log, **options)
    found = World(log.topic, cut_every=1, **options)
    found.ledger.crash_after = crash_after
    with pytest.raises(CrashError):
        found.run(3)
    found.ledger.crash_after = None
    found.run(2)
    assert found.ledger.topics["t.shop.a"] == whole.ledger.topics["t.shop.a"]


def test_truncate():
    log = Log(EventsTopic()).query("TRUNCATE TABLE a").begin().insert("a", (1, "x")).commit()
    log.gtid().query("truncate `shop`.`a`", database="other").begin().insert("a", (1, "y")).commit()
    found = world(log, truncate=True, connector="mysql")
    # Of a table without rows there is no topic.
    assert [op for op, _, _ in shape(found)] == ["c", "t", "c"]
    (_, before), (key, value), _ = found.read("t.shop.a")
    source = {"gtid": before["source"]["gtid"][:-1] + "2", "schema_source": "ddl", "pos": 704}
    assert key is None
    assert value == {
        **before,
        "op": "t",
        "after": None,
        "transaction": None,
        "source": {**before["source"], **source, **times(1_700_000_704_000_000)},
    }
    assert [op for op, _, _ in shape(world(log))] == ["c", "c"]


def test_truncate_where_names_do_not_differ_by_case():
    log = Log(EventsTopic()).begin().insert("a", (1, "x")).commit().query("TRUNCATE TABLE Shop.A")
    definition = TableDefinition("shop", "another", ())
    for lower_case, ops in ((True, ["c", "t"]), (False, ["c"])):
        entry = CatalogEntry(0, "bin.000001", 0, definition, 1, lower_case_names=lower_case)
        found = world(log, truncate=True, catalog=[entry])
        assert [op for op, _, _ in shape(found)] == ops


def test_truncate_is_the_first_that_a_row_mapper_meets():
    """The schema's id is that of the last row, which another one wrote."""
    log = Log(EventsTopic()).begin().insert("a", (1, "x")).commit()
    found = world(log, truncate=True)
    log.query("TRUNCATE a")
    found.run()
    assert [op for op, _, _ in shape(found)] == ["c", "t"]


def test_truncate_is_not_written_by_the_schema_of_another_version():
    log = Log(EventsTopic()).begin().insert("a", (1, "x")).commit()
    found = world(log, truncate=True)
    for schema in found.registry.schemas:
        if schema["name"] == "Envelope":
            del schema["fields"][-1]
    log.query("TRUNCATE a")
    found.run()
    assert len(found.records("t.shop.a")) == 1


def times(us):
    return {"ts_ms": us // 1000, "ts_us": us, "ts_ns": us * 1000}


def times_of(log):
    found = world(log)
    ((_, value),) = found.read("t.shop.a")
    assert {boundary["ts_ms"] for _, boundary in found.read("t.transactions")} <= {
        value["source"]["ts_ms"],
        1_700_000_004_000,
        1_700_000_404_000,
    }
    assert {name: value[name] for name in times(0)} == times(1_000_123)
    return {name: value["source"][name] for name in times(0)}


@pytest.mark.parametrize(
    ("immediate", "original", "us"),
    [
        (COMMITTED_US, None, COMMITTED_US),
        (COMMITTED_US + 5, COMMITTED_US, COMMITTED_US),
        (COMMITTED_US, 0, COMMITTED_US),  # from the text of mysqlbinlog, or from a server before 8.0.1
        (COMMITTED_US, 1 << 53, COMMITTED_US),
        (0, COMMITTED_US, COMMITTED_US),
        (1 << 53, 1 << 53, 1_700_000_304_000_000),
        (0, None, 1_700_000_304_000_000),
        (0, 0, 1_700_000_304_000_000),
        (None, None, 1_700_000_304_000_000),
    ],
)
@pytest.mark.parametrize("tag", [None, "tag"])
def test_when_the_change_was_made(immediate, original, us, tag):
    if tag is None:
        gtid = GtidLogEvent(1, SID, 1, 2, 6, 7, immediate, original, None)
    else:
        gtid = GtidTaggedLogEvent(1, SID, 1, tag, 6, 7, immediate, original)
    log = Log(EventsTopic()).event(gtid)
    assert times_of(log.query("BEGIN").insert("a", (1, "x")).commit()) == times(us)


@pytest.mark.parametrize(
    ("began", "lasted", "committed", "seconds"),
    [
        (1_700_000_000, 400, (None, None), 1_700_000_400),
        (1_600_000_000, 100_000_400, (None, None), 1_700_000_400),  # SET TIMESTAMP to a past time
        (1_800_000_000, (1 << 32) - 99_999_600, (None, None), 1_700_000_400),  # to a future one
        (1_600_000_000, 400, (COMMITTED_US, 0), COMMITTED_US // 10**6),
        (1_700_000_000, 400, (COMMITTED_US + 10**7, COMMITTED_US), COMMITTED_US // 10**6),
    ],
)
def test_a_statement_of_ddl_says_when_it_was_committed(began, lasted, committed, seconds):
    """It ended then, which may be hours after it began; exec_time is told from its TIMESTAMP on."""
    log = Log(EventsTopic()).event(GtidLogEvent(1, SID, 1, 2, 6, 7, *committed, None))
    ddl = QueryEvent(9, lasted, 0, StatusVariables(), "shop", b"ALTER TABLE a ADD more INT")
    ((_, record),) = world(log.event(ddl, timestamp=began)).read("t.ddl")
    assert record["ts_ms"] // 1000 == seconds


@pytest.mark.parametrize("kind", [partial(RowsQueryLogEvent, 0), AnnotateRowsEvent])
def test_the_statement_is_that_of_its_rows(kind):
    """It stands before the table maps of all its tables, and holds up to the end of the statement."""
    log = Log(EventsTopic()).begin().event(kind(b"UPDATE a, b")).table_map("a").table_map("b")
    log.rows("a", WriteRowsEvent, (None, (1, "x")), end=False).rows("b", WriteRowsEvent, (None, (2, "x")))
    log.insert("a", (3, "x")).event(kind(b"again")).insert("b", (4, "x")).commit()
    found = world(log, include_query=True)
    queries = [[value["source"]["query"] for _, value in found.read(f"t.shop.{table}")] for table in "ab"]
    assert queries == [["UPDATE a, b", None], ["UPDATE a, b", "again"]]


def test_a_redriven_row_says_when_it_was_made():
    """What waited has the same time as what did not."""
    log = Log(EventsTopic()).event(GtidLogEvent(1, SID, 1, 2, 6, 7, COMMITTED_US, None, None))
    log.query("BEGIN").event(QueryEvent(9, 0, 0, StatusVariables(), "shop", b"SAVEPOINT a"))
    found = World(log.insert("a", (1, "x")).commit().topic)
    found.topics["t.shop.a"] = found.refused["t.shop.a-value"] = TableRefusedError("no")
    found.run()
    assert found.state.quarantined
    (dead_letter,) = (value for _, value in found.read("t.deadletter"))
    assert RowsContext.from_bytes(dead_letter["context"]).committed_us == COMMITTED_US

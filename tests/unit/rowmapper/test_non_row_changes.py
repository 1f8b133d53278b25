"""Statements that changed rows and were logged as text are counted by table, each once."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from millrace.avro.service_state import RowMapperState
from millrace.binlog.events import FormatDescriptionEvent
from millrace.binlog.types import HeaderFlag
from millrace.rowmapper.non_row_changes import NonRowChanges
from millrace.runtime.metrics import what_is_missing
from services.rowmapper.metrics import RowMapperMetrics

from .harness import EventsTopic, World
from .logs import Log
from .test_stage import definition

THREAD = HeaderFlag.THREAD_SPECIFIC_F


def log():
    return Log(EventsTopic())


def statements(*texts, made=None, **options):
    """Log statements, each in a transaction of its own."""
    made = made or log()
    for text in texts:
        made.begin().query(text, **options).commit()
    return made


def world(made, *tables, **options):
    catalog = [definition(table, "id", "note") for table in tables]
    result = World(made.topic, catalog=catalog, **options)
    result.run()
    return result


def counts(made, *tables, **options):
    return dict(world(made, *tables, **options).state.non_row_changes)


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("INSERT INTO a VALUES (1)", ["shop.a"]),
        ("UPDATE a, other.b SET a.x = 1, b.y = 2", ["shop.a", "other.b"]),
        ("DELETE a FROM a JOIN other.b", ["shop.a"]),
        ("CREATE TABLE a SELECT 1", ["shop.a"]),
        ("SELECT `shop`.`f`()", ["shop.*"]),
        ("CALL p()", ["shop.*"]),
        ("TRUNCATE TABLE a", []),
        ("CREATE TABLE a (id INT)", []),
        ("FLUSH TABLES", []),
        ("INSERT INTO mysql.user VALUES (1)", []),
    ],
)
def test_what_a_statement_counts_for(text, tables):
    result = world(statements(text))
    assert dict(result.state.non_row_changes) == dict.fromkeys(tables, 1)
    assert [value["changed"] for _, value in result.read("t.ddl")] == [tables]
    ends = [value for _, value in result.read("t.transactions") if value["status"] == "END"]
    assert [end["non_row_changes"] for end in ends] == [1] * bool(tables)


def test_what_was_rolled_back_does_not_count():
    made = log().begin().query("INSERT INTO a VALUES (1)").query("ROLLBACK")
    made.begin().query("SAVEPOINT s").query("DELETE FROM a").query("UPDATE m SET id = 2")
    made.query("ROLLBACK TO s").query("UPDATE a SET id = 1").commit()
    made.begin().query("INSERT INTO a VALUES (2)").query("INSERT INTO m VALUES (1)").query("ROLLBACK")
    made.xa_start("one").query("INSERT INTO a VALUES (3)").xa_prepare("one").xa("ROLLBACK", "one")
    made.xa_start("two").query("REPLACE INTO a VALUES (3)").xa_prepare("two").xa("COMMIT", "two")
    result = World(
        made.topic, catalog=[definition("a", "id", "note"), definition("m", "id", "note", engine="MyISAM")]
    )
    result.run()
    assert dict(result.state.non_row_changes) == {"shop.m": 2, "shop.a": 2}


def test_temporary_tables_do_not_count():
    made = log().query("CREATE TEMPORARY TABLE a (id INT)", flags=THREAD)
    statements("INSERT INTO a VALUES (1)", "ALTER TABLE a ADD b INT", made=made, flags=THREAD)
    assert counts(made, "a") == {}
    statements(
        "INSERT INTO kept SELECT * FROM a", "UPDATE a, kept SET kept.id = a.id", made=made, flags=THREAD
    )
    statements("INSERT INTO a VALUES (CONNECTION_ID())", made=made, flags=THREAD, thread=10)
    statements("INSERT INTO a VALUES (CONNECTION_ID())", made=made, flags=THREAD, server_id=2)
    statements("DELETE FROM elsewhere", made=made, flags=THREAD)
    assert counts(made, "a", "kept") == {"shop.kept": 2, "shop.a": 2}
    made.query("ALTER TABLE a RENAME TO b", flags=THREAD)
    statements("INSERT INTO b VALUES (1)", "INSERT INTO a VALUES (CONNECTION_ID())", made=made, flags=THREAD)
    made.query("DROP TEMPORARY TABLE IF EXISTS b", flags=THREAD)
    statements("INSERT INTO b VALUES (1)", made=made, flags=THREAD)
    result = world(made, "a", "b", "kept")
    assert dict(result.state.non_row_changes) == {"shop.kept": 2, "shop.a": 3, "shop.b": 1}
    assert result.state.temporary == ()
    kinds = [value["kind"] for _, value in result.read("t.ddl")]
    expected = "TTTNNNNTTTNTN"
    assert "".join(kind[0] for kind in kinds) == expected


def test_temporary_tables_are_known_after_a_restart_but_not_of_the_server():
    made = log().query("CREATE TEMPORARY TABLE a (id INT)", flags=THREAD)
    result = world(made, "a")
    statements("INSERT INTO a VALUES (1)", made=made, flags=THREAD)
    result.run()
    assert dict(result.state.non_row_changes) == {}
    for created in (0, 1):
        made.event(FormatDescriptionEvent(4, "8.0.36", created, 19, bytes(40), 0))
        statements("INSERT INTO a VALUES (CONNECTION_ID())", made=made, flags=THREAD)
        result.run()
        assert dict(result.state.non_row_changes) == ({"shop.a": 1} if created else {})


def test_a_table_with_the_name_of_a_temporary_one_stays_as_it_is():
    made = log().begin().insert("a", (1, "x")).commit()
    made.query("CREATE TEMPORARY TABLE a (id INT)", flags=THREAD)
    made.query("TRUNCATE TABLE a", flags=THREAD).query("ALTER TABLE a ADD b INT", flags=THREAD)
    result = world(made, "a", truncate=True)
    assert [value["op"] for _, value in result.read("t.shop.a")] == ["c"]
    assert result.ledger.topics.get("t.schemas", []) == []


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        ({"replicate": {"ignore_table": "shop.a"}}, {"shop.b": 3}),
        ({"replicate": {"do_db": "other"}}, {}),
        ({"replicate": {"ignore_server_ids": "1"}}, {}),
        ({"replicate": {"rewrite_db": "shop->store"}}, {"shop.a": 3, "shop.b": 3}),
        ({"replicate": {"ignore_operations": "shop.a=cd"}}, {"shop.a": 1, "shop.b": 3}),
    ],
)
def test_selection(selection, found):
    made = statements(
        *(
            text.format(table)
            for table in "ab"
            for text in ("INSERT INTO {} VALUES (1)", "UPDATE {} SET id = 2", "DELETE FROM {}")
        )
    )
    assert counts(made, "a", "b", selection=selection) == found


@pytest.mark.parametrize("cut_every", [1, 2, 3])
def test_each_counts_once_wherever_the_row_mapper_is_killed(cut_every):
    made = log()
    for number in range(5):
        made.begin().query("INSERT INTO a VALUES (1)").insert("b", (number, "")).query(
            "DELETE FROM a"
        ).commit()
    result = World(made.topic, cut_every=cut_every)
    result.run()
    assert dict(result.state.non_row_changes) == {"shop.a": 10}
    assert len(result.read("t.ddl")) == 10


def test_more_tables_than_are_named():
    found = NonRowChanges()
    for number in range(1000):
        found.count([f"shop.t{number}", "shop.t0"])
    assert len(found.counts) == 201
    assert (found.counts["shop.t0"], found.counts["*"]) == (1001, 800)


def test_a_state_that_did_not_count_by_table():
    made = statements("INSERT INTO a VALUES (1)")
    result = world(made)
    earlier = replace(
        result.state, non_row_changes={}, counters={**result.state.counters, "non_row_changes": 4}
    )
    result.ledger.state = RowMapperState.from_bytes(earlier.to_bytes())
    statements("INSERT INTO a VALUES (1)", made=made)
    result.run()
    assert dict(result.state.non_row_changes) == {"*": 4, "shop.a": 1}


def test_metrics_and_what_readyz_says():
    result = world(statements("INSERT INTO a VALUES (1)", "DELETE FROM a", "DELETE FROM `b\n`"))
    registry = CollectorRegistry()
    RowMapperMetrics(registry, result.run(), lambda: 0)
    total = "millrace_rowmapper_non_row_changes_total"
    assert registry.get_sample_value(total, {"table": "shop.a"}) == 2
    lines = list(what_is_missing(registry))
    assert [line.split(":")[0] for line in lines] == [
        f"{total} table=shop.a 2",
        f"{total} table=shop.b\\x0a 1",
    ]

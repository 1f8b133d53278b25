"""Which rows of which transactions are published, and that a stop anywhere changes nothing."""

import contextlib
import dataclasses
import io
import random

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from millrace.avro.catalog import CatalogEntry
from millrace.avro.records import deserialize
from millrace.avro.registry import split_wire_format
from millrace.avro.schema_version import SchemaVersion
from millrace.avro.service_state import Progress, RowsContext
from millrace.binlog.events import FormatDescriptionEvent, QueryEvent, StatusVariables
from millrace.binlog.events.query import SessionCharset
from millrace.binlog.table import ColumnDefinition, TableDefinition
from millrace.contract import ABANDONED
from millrace.kafka.chunks import ChunkJoiner
from millrace.runtime.errors import UserError
from millrace.stage import Record
from tests.stages import CrashError, exhaust

from .harness import EventsTopic, World
from .logs import Log


def log(*, limit=1 << 30, **options):
    return Log(EventsTopic(limit), **options)


def world(made, *, run=True, **options):
    made_world = World(made.topic, **options)
    if run:
        made_world.run()
    return made_world


def notes(made_world, table="a"):
    """(op, id) of all records of a table."""
    return [
        (value["op"], (value["after"] or value["before"])["id"])
        for _, value in made_world.read(f"t.shop.{table}")
    ]


def definition(table, *names, engine="InnoDB", position=0):
    columns = tuple(
        ColumnDefinition(
            i,
            name,
            "int" if i != 1 else "varchar(100)",
            charset=None if i != 1 else "utf8mb4",
            collation=None if i != 1 else "utf8mb4_0900_ai_ci",
            key_position=0 if i == 0 else None,
        )
        for i, name in enumerate(names)
    )
    return CatalogEntry(0, "bin.000001", position, TableDefinition("shop", table, columns, engine=engine), 1)


def test_commit():
    made = (
        log()
        .begin()
        .insert("a", (1, "x"), (2, "y"))
        .update("a", ((1, "x"), (1, "z")))
        .delete("a", (2, "y"))
        .commit()
    )
    result = world(made)
    assert notes(result) == [("c", 1), ("c", 2), ("u", 1), ("d", 2)]
    key, value = result.read("t.shop.a")[2]
    assert key == {"id": 1}
    assert (value["before"], value["after"]) == ({"id": 1, "note": "x"}, {"id": 1, "note": "z"})
    assert value["source"]["gtid"] == value["transaction"]["id"] == "00010203-0405-0607-0809-0a0b0c0d0e0f:1"
    assert value["source"]["thread"] == 9
    assert value["source"]["schema_source"] == "table_map"
    assert value["transaction"]["total_order"] == 3
    assert value["ts_ms"] == 1000


def test_begin_and_end():
    made = log().begin().insert("a", (1, "x")).insert("b", (5, "y"), (6, "")).insert("a", (2, "x")).commit()
    begin, end = (value for _, value in world(made).read("t.transactions"))
    assert (begin["status"], begin["event_count"]) == ("BEGIN", None)
    assert (end["status"], end["event_count"]) == ("END", 4)
    assert end["data_collections"] == [
        {"data_collection": "shop.a", "event_count": 2},
        {"data_collection": "shop.b", "event_count": 2},
    ]
    assert begin["id"] == end["id"]
    assert begin["pos"] == 4


def test_rows_in_fragments():
    """They are published as if the server had logged one event."""
    rows = [(number, "x" * number) for number in range(1, 30)]
    made = log().begin().fragments("a", *rows).insert("a", (100, "y")).commit()
    assert notes(world(made)) == [("c", number) for number, _ in rows] + [("c", 100)]


def test_a_fragment_is_missing():
    made = log().begin().fragments("a", (1, "x" * 50), lost=2).insert("a", (2, "y")).commit()
    result = world(made)
    assert notes(result) == [("c", 2)]
    dead_letters = [value["error"] for _, value in result.read("t.deadletter")]
    assert any("fragment 3 of" in dead_letter for dead_letter in dead_letters)


def test_open_transaction_waits():
    result = world(log().begin().insert("a", (1, "x")))
    assert result.tables == []
    assert result.read("t.transactions") == []


@pytest.mark.parametrize(
    ("work", "kept"),
    [
        # A number inserts a row.
        pytest.param([1, "ROLLBACK", "BEGIN", 2], [2], id="rolled back"),
        pytest.param([1, "BEGIN", 2], [2], id="without an end"),
        pytest.param(
            [1, "SAVEPOINT `S1`", 2, "SAVEPOINT s2", 3, "ROLLBACK TO `s1`", 4], [1, 4], id="savepoint"
        ),
        pytest.param([1, "ROLLBACK TO early", 2], [2], id="a savepoint before the log undoes all"),
        pytest.param(
            [
                *("SAVEPOINT a", 1, "SAVEPOINT b", 2, "SAVEPOINT a", 3, "ROLLBACK TO SAVEPOINT a", 4),
                *("ROLLBACK TO b", 5, "RELEASE SAVEPOINT b"),
            ],
            [1, 5],
            id="savepoints nest and repeat",
        ),
    ],
)
def test_what_is_undone_is_not_published(work, kept):
    made = log().begin()
    for each in work:
        if isinstance(each, int):
            made.insert("a", (each, ""))
        else:
            made.begin() if each == "BEGIN" else made.query(each)
    assert notes(world(made.commit())) == [("c", number) for number in kept]


def test_rows_without_transactions_are_not_undone():
    made = log().begin().insert("a", (1, "")).insert("m", (2, "")).query("ROLLBACK")
    made.begin().query("SAVEPOINT s").insert("a", (3, "")).insert("m", (4, "")).query(
        "ROLLBACK TO s"
    ).commit()
    result = world(made, catalog=[definition("m", "id", "note", engine="MyISAM")])
    assert notes(result, "m") == [("c", 2), ("c", 4)]
    assert "t.shop.a" not in result.tables


def test_xa_commit_publishes_what_was_prepared():
    made = log().xa_start("one").insert("a", (1, "")).query("SAVEPOINT s").insert("a", (2, ""))
    made.query("ROLLBACK TO s").xa_prepare("one").begin().insert("a", (3, "")).commit()
    made.xa_start("two").insert("a", (4, "")).xa_prepare("two")
    result = world(made)
    assert notes(result) == [("c", 3)]
    made.xa("COMMIT", "one")
    result.run()
    assert notes(result) == [("c", 3), ("c", 1)]
    committed = result.read("t.shop.a")[1][1]
    assert committed["transaction"]["id"].endswith(":4")
    made.xa("ROLLBACK", "two").xa_start("two").insert("a", (5, "")).xa_prepare("two").xa("COMMIT", "two")
    result.run()
    assert notes(result) == [("c", 3), ("c", 1), ("c", 5)]


def test_xa_commit_of_the_unknown_goes_to_the_dead_letters():
    result = world(log().xa("COMMIT", "lost"))
    ((_, dead_letter),) = result.read("t.deadletter")
    assert "prepared before" in dead_letter["error"]


def test_abandoned_transaction_is_dropped():
    made = log().begin().insert("a", (1, ""))
    made.topic.add_marker(ABANDONED)
    again = Log(made.topic, epoch=1).begin().insert("a", (1, "")).insert("a", (2, "")).commit()
    result = world(again)
    assert notes(result) == [("c", 1), ("c", 2)]
    assert {value["source"]["epoch"] for _, value in result.read("t.shop.a")} == {1}


def test_large_transaction_is_read_twice():
    made = log().begin()
    for number in range(40):
        made.insert("a", *((number * 100 + i, "x" * 300) for i in range(100)))
    made.commit().begin().insert("a", (-1, "")).commit()
    result = world(made, buffer_mib=1)
    assert result.replays == 1
    assert [number for _, number in notes(result)] == [*range(4000), -1]


def test_statements():
    made = log().query("CREATE TABLE a (id INT)").gtid().query("ALTER TABLE other.b ADD c INT", database="")
    made.begin().query("INSERT INTO a VALUES (1)").insert("a", (2, "")).commit().query("DROP DATABASE x")
    result = world(made)
    found = [(v["kind"], v["name"], v["objects"], v["statement"][:11]) for _, v in result.read("t.ddl")]
    assert found == [
        ("DDL", "CREATE TABLE", ["shop.a"], "CREATE TABL"),
        ("DDL", "ALTER TABLE", ["other.b"], "ALTER TABLE"),
        ("NON_ROW_CHANGE", "INSERT", ["shop.a"], "INSERT INTO"),
        ("DDL", "DROP DATABASE", ["x"], "DROP DATABA"),
    ]
    end = result.read("t.transactions")[-1][1]
    assert (end["event_count"], end["non_row_changes"]) == (1, 1)


def test_names_from_the_catalogue():
    made = log(named=False).begin().insert("a", (1, "x")).commit().begin().insert("a", (2, "y")).commit()
    made.begin().insert("b", (3, "z")).commit()
    entry = definition("a", "number", "text", position=450)
    result = world(made, catalog=[entry])
    found = [(v["source"]["schema_source"], v["after"]) for _, v in result.read("t.shop.a")]
    assert found == [
        ("catalog_later", {"number": 1, "text": "x"}),
        ("catalog", {"number": 2, "text": "y"}),
    ]
    ((_, unnamed),) = result.read("t.shop.b")
    assert unnamed["source"]["schema_source"] == "positional"
    assert unnamed["after"] == {"column_1": 3, "column_2": "z"}


def test_a_sign_that_is_not_known_is_not_guessed():
    """As MariaDB logs by default: 4294967295 or -1."""
    made = log(named=False, signs=False).begin().insert("a", (7, "x"), (-1, "y")).commit()
    made.begin().delete("a", (-1, "y")).commit()
    result = world(made)
    kept, unsure, gone = (value for _, value in result.read("t.shop.a"))
    assert (kept["after"]["column_1"], kept["unrepresentable"]) == (7, None)
    for value, image in ((unsure, "after"), (gone, "before")):
        assert value[image]["column_1"] is None
        (note,) = value["unrepresentable"]
        assert (note["image"], note["column"], note["text"]) == (image, "column_1", "-1 (4294967295)")
    assert [dead_letter["table"] for _, dead_letter in result.read("t.deadletter")] == []
    known = world(made, catalog=[definition("a", "id", "note")])
    assert [(value["after"] or value["before"])["id"] for _, value in known.read("t.shop.a")] == [7, -1, -1]


def test_table_that_contradicts_its_definition_is_quarantined_for_good():
    made = log(named=False).begin().insert("a", (1, "x")).insert("b", (2, "")).commit()
    made.begin().insert("a", (3, "y")).insert("b", (4, "")).commit()
    result = world(made, catalog=[definition("a", "id", "note", "more")])
    assert notes_by_position(result, "b") == [2, 4]
    dead_letters = result.read("t.deadletter")
    assert [dead_letter["table"] for _, dead_letter in dead_letters] == ["shop.a", "shop.a"]
    assert [key for key, _ in dead_letters] == [
        record.key.decode() for record in made.topic.records if is_rows(record, b"a")
    ]
    result.catalog = []
    made.begin().insert("a", (5, "z")).commit()
    result.run()
    assert len(result.read("t.deadletter")) == 3
    assert result.tables == ["t.shop.b"]


def notes_by_position(made_world, table):
    return [value["after"]["column_1"] for _, value in made_world.read(f"t.shop.{table}")]


def is_rows(record, table):
    return b"WRITE_ROWS_EVENT" in record.value and b"\x02" + bytes([2 * len(table)]) + table in record.value


def test_dead_letters_hold_the_event_whole():
    made = log(named=False).begin().insert("a", *((i, "x" * 300) for i in range(20))).commit()
    result = world(made, catalog=[definition("a", "id", "note", "more")])
    pieces = result.records("t.deadletter")
    assert [headers for _, _, headers in pieces] == [
        [("chunk", b"%d/%d" % (i, len(pieces))), ("table", b"shop.a")] for i in range(len(pieces))
    ]
    whole = b"".join(value for _, value, _ in pieces)
    rows = next(record.value for record in made.topic.records if is_rows(record, b"a"))
    assert rows in whole


def test_too_large_for_the_topic():
    made = log().begin().insert("a", (1, "short"), (2, "x" * 300)).commit()
    result = world(made, limit=400)
    _, value = result.read("t.shop.a")[1]
    assert value["after"] == {"id": 2, "note": None}
    (note,) = value["unrepresentable"]
    rows = made.topic.records[3]
    start, end = note["reference"]["start"], note["reference"]["end"]
    assert note["reference"]["key"] == rows.key.decode()
    images = rows.value[rows.value.index(b"\x00\x01\x00\x00\x00") :]
    assert images[start:end] == b"x" * 300


def everything(made):
    """A log that has a bit of all."""
    made.begin().insert("a", (1, "x"), (2, "y")).insert("b", (1, "")).commit()
    made.begin().insert("a", (3, "")).query("SAVEPOINT s").insert("a", (4, "")).query(
        "ROLLBACK TO s"
    ).commit()
    made.query("CREATE TABLE c (id INT)")
    made.xa_start("one").insert("a", (5, "")).xa_prepare("one")
    made.begin().update("a", ((1, "x"), (10, "x")), ((2, "y"), (2, "z"))).commit()
    made.begin().insert("m", (7, "")).insert("a", (8, "")).query("ROLLBACK")
    made.xa("COMMIT", "one")
    made.begin().query("UPDATE a SET note = ''").insert("q", (1, "w" * 200)).insert("a", (11, "")).commit()
    made.begin()
    for number in range(12):
        made.insert("big", *((number * 10 + i, "x" * 9000) for i in range(10)))
    made.commit().begin().insert("q", (2, "")).delete("a", (2, "z"))
    return made.commit()


CATALOG = [
    definition("m", "id", "note", engine="MyISAM"),
    definition("q", "id", "note", "more"),
]


def output(made_world):
    topics = made_world.ledger.topics
    return {topic: topics[topic] for topic in topics if not topic.endswith(".state")}


@pytest.fixture
def settle_often(monkeypatch):
    """Let a Kafka transaction end after any record, and any rows of an event."""
    monkeypatch.setattr("millrace.stage.Output.settle_bytes", 0)
    monkeypatch.setattr("millrace.rowmapper.rows.AT_ONCE", 0)
    monkeypatch.setattr("millrace.rowmapper.logged_rows._BATCH_ROWS", 2)


@pytest.mark.usefixtures("settle_often")
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_a_crash_anywhere_changes_nothing(seed):
    """Crash after any commit, with Kafka transactions of any size, as often as it takes."""
    chance = random.Random(seed)
    made = everything(log())
    whole = world(made, catalog=CATALOG, buffer_mib=1)
    broken = World(made.topic, catalog=CATALOG, buffer_mib=1)
    ledger = broken.ledger
    while True:
        ledger.commit_every = chance.randint(1, 40)
        ledger.crash_after = ledger.commits + chance.randint(1, 12)
        try:
            broken.run(chance.randint(1, 40))
        except CrashError:
            continue
        break
    assert output(broken) == output(whole)


@pytest.mark.usefixtures("settle_often")
def test_an_idle_commit_within_a_transaction_loses_no_progress():
    """After a restart in mid-transaction, the state says what is published until it is put together again."""
    made = log().begin()
    for number in range(10):
        made.insert("a", *((number * 4 + i, "x") for i in range(4)))
    made.commit()
    result = World(made.topic, cut_every=11)
    result.ledger.crash_after = 2
    with contextlib.suppress(CrashError):
        result.run()
    for crash_after in (None, result.ledger.commits + 2, None):
        stage = result.start()
        if some := result.events.since(stage.next_offset)[:3]:
            exhaust(stage.take(some))
        result.ledger.crash_after = None
        result.ledger.commit(stage)
        result.ledger.crash_after = crash_after
        with contextlib.suppress(CrashError):
            result.run()
    assert notes(result) == [("c", number) for number in range(40)]
    assert [value["status"] for _, value in result.read("t.transactions")] == ["BEGIN", "END"]


@pytest.mark.usefixtures("settle_often")
@pytest.mark.parametrize("keys_before", [True, False])
def test_another_version_resumes_by_row(keys_before):
    """Before the restart an update of the key was one record, and is two now; or the other way round."""
    made = log(named=False).begin()
    made.update("a", *(((n, "x"), (n + 100, "x")) for n in range(6))).insert("a", (7, "")).commit()
    with_key = definition("a", "id", "note")
    columns = tuple(dataclasses.replace(column, key_position=None) for column in with_key.definition.columns)
    without_key = dataclasses.replace(
        with_key, definition=dataclasses.replace(with_key.definition, columns=columns)
    )
    before, after = (with_key, without_key) if keys_before else (without_key, with_key)
    result = World(made.topic, catalog=[before], cut_every=2)
    result.ledger.crash_after = 2
    with contextlib.suppress(CrashError):
        result.run()
    assert 0 < result.state.progress.row < 6
    result.ledger.crash_after = None
    result.catalog = [after]
    result.accepting.add("t.shop.a-key")
    result.run()
    values = [value for _, value in result.read("t.shop.a")]
    changed = [
        (value["after"] or {}).get("id") or -value["before"]["id"] for value in values if value["op"] != "d"
    ]
    assert changed == [100, 101, 102, 103, 104, 105, 7]
    ops = [value["op"] for value in values]
    assert {"d", "u"} < set(ops)
    places = [(value["source"]["pos"], value["source"]["row"]) for value in values]
    assert len(set(places)) == len(places)
    assert [value["transaction"]["total_order"] for value in values] == list(range(1, len(values) + 1))
    _, end = result.read("t.transactions")[-1]
    assert end["event_count"] == len(values)


@pytest.mark.parametrize("crash_after", range(1, 12))
def test_rows_that_were_mapped_in_batches_are_resumed_at_once(crash_after, settle_often, monkeypatch):
    """Another version maps what the one before cut into batches."""
    del settle_often
    made = log().begin().insert("a", *((n, "x") for n in range(5))).commit()
    whole = World(made.topic)
    whole.run()
    result = World(made.topic, cut_every=1)
    result.ledger.crash_after = crash_after
    with contextlib.suppress(CrashError):
        result.run()
    monkeypatch.setattr("millrace.rowmapper.rows.AT_ONCE", 1 << 20)
    result.ledger.crash_after = None
    result.run()
    assert result.read("t.shop.a") == whole.read("t.shop.a")
    assert result.state.quarantined == ()


@pytest.mark.usefixtures("settle_often")
def test_a_table_that_is_quarantined_in_the_middle_of_an_event():
    """Its dead letter says which rows are published, and redriving publishes the others."""
    made = log(named=False).begin().insert("a", *((n, "x") for n in range(8))).commit()
    result = World(made.topic, catalog=[definition("a", "id", "note")], cut_every=3)
    result.ledger.crash_after = 1
    with contextlib.suppress(CrashError):
        result.run()
    done = len(notes(result))
    assert 0 < done < 8
    result.ledger.crash_after = None
    result.catalog = [definition("a", "id", "note", "more")]
    result.run()
    assert len(notes(result)) == done
    ((_, value),) = whole_dead_letters(result)
    context = RowsContext.from_bytes(value["context"])
    assert (context.row, context.records) == (done, done)


def test_a_transaction_that_is_another_one_than_was_published_in_part():
    made = log().begin().insert("a", (1, "x")).commit().begin().insert("a", (2, "y")).commit()
    result = world(made)
    begun = [record for record in made.topic.records if record.offset >= 7]
    result.ledger.state = dataclasses.replace(
        result.state, input_offset=begun[0].offset, progress=Progress(begun[1].offset)
    )
    made.topic.records = [record for record in made.topic.records if record.offset > begun[0].offset + 4]
    with pytest.raises(UserError, match="was published in part, but its end is not there any more"):
        result.run()


def test_no_two_records_share_their_place():
    result = world(everything(log()), catalog=CATALOG)
    for topic in result.tables:
        places = [
            tuple(value["source"][part] for part in ("epoch", "file", "pos", "sub_index", "row"))
            for _, value in result.read(topic)
        ]
        assert len(places) == len(set(places))


def test_folding_by_key_gives_the_table():
    rows = {}
    for key, value in world(everything(log()), catalog=CATALOG).read("t.shop.a"):
        if value["op"] == "d":
            del rows[key["id"]]
        else:
            rows[key["id"]] = value["after"]["note"]
    assert rows == {10: "x", 3: "", 5: "", 11: ""}


@pytest.mark.usefixtures("settle_often")
@pytest.mark.parametrize("mended", [False, True])
def test_restarts_within_the_dead_letter_that_quarantines_a_table(mended):
    """Its text does not change with the state that says so already, nor with a definition that came since."""
    made = log(named=False).begin().insert("b", (1, ""))
    made.insert("q", (1, "w" * 3000)).insert("q", (2, "v" * 3000)).commit()
    wrong = [definition("q", "id", "note", "more")]
    whole = world(made, catalog=wrong)
    stopped = World(made.topic, catalog=wrong, cut_every=1)
    while output(stopped) != output(whole):
        stopped.ledger.crash_after = stopped.ledger.commits + 1
        if mended and stopped.records("t.deadletter"):
            stopped.catalog = [definition("q", "id", "note")]
        with contextlib.suppress(CrashError):
            stopped.run()
        written = b"".join(value for _, value, _ in stopped.records("t.deadletter"))
        assert b"".join(value for _, value, _ in whole.records("t.deadletter")).startswith(written)
    first, second = (value for _, value in whole_dead_letters(whole))
    assert first["error_class"] == second["error_class"] == "SchemaMismatchError"
    assert second["error"] == f"the table is quarantined: {first['error']}"


def whole_dead_letters(made_world):
    """Dead letters as (key, value), their chunks joined."""
    joiner, found = ChunkJoiner(), []
    for number, (key, value, headers) in enumerate(made_world.records("t.deadletter")):
        chunk = dict(headers or ()).get("chunk")
        whole = value if chunk is None else joiner.feed(key, chunk, value, number)
        if whole is not None:
            found.append((key, deserialize(made_world.registry, whole)))
    return found


def names(made_world, table="a"):
    return [list(value["after"] or value["before"]) for _, value in made_world.read(f"t.shop.{table}")]


def insert_again(made, number, statement=None):
    if statement:
        made.query(statement)
    return made.begin().insert("a", (number, "x")).commit()


@pytest.mark.parametrize("seen", ["Kafka transaction", "statement", "format description"])
def test_a_definition_that_comes_while_the_row_mapper_runs(seen):
    """The reader was started again: what it has read then holds from there on, of a bound table too."""
    description = FormatDescriptionEvent(4, "8.0.30", 0, 19, bytes(40), 0)
    made = log(named=False).event(description).begin().insert("a", (1, "x")).commit()
    result = World(made.topic, catalog=[definition("a", "id", "note")])
    stage = result.start()
    records = list(made.topic.records)
    exhaust(stage.take(records))
    if seen == "Kafka transaction":
        result.ledger.settle(stage)
        result.ledger.commit(stage)
        exhaust(stage.take([Record(records[-1].offset + 1, 0, b"1:0:x:4:0", b"", [("marker", b"note")])]))
    if seen == "statement":
        made.query("ALTER TABLE a RENAME COLUMN note TO text")
    result.catalog.append(definition("a", "id", "text", position=made.position))
    if seen == "format description":
        made.event(description)
    insert_again(made, 2)
    exhaust(stage.take(made.topic.records[len(records) :]))
    result.ledger.settle(stage)
    result.ledger.commit(stage)
    assert names(result) == [["id", "note"], ["id", "text"]]


def test_the_catalogue_is_not_looked_at_for_each_event():
    made = log(named=False)
    for number in range(100):
        insert_again(made, number)
    result = world(made, catalog=[definition("a", "id", "note")])
    assert names(result) == [["id", "note"]] * 100
    assert result.looks <= 3


def test_names_that_a_statement_has_changed():
    made = log(named=False).begin().insert("a", (1, "x")).insert("b", (1, "x")).commit()
    made.query("CREATE TEMPORARY TABLE a (id INT)").query("TRUNCATE TABLE a").query("ALTER TABLE b ADD c INT")
    where = made.position
    insert_again(made, 2, "ALTER TABLE a RENAME COLUMN note TO text")
    result = world(made, catalog=[definition("a", "id", "note")])
    assert names(result) == [["id", "note"], ["id", "text"]]
    stored = SchemaVersion.from_bytes(result.ledger.topics["t.schemas"][-1][2])
    assert (stored.database, stored.table, stored.position) == ("shop", "a", where)
    assert [column.name for column in stored.state.columns] == ["id", "text"]


@pytest.mark.parametrize(
    ("client", "raw", "name"),
    [
        (8, "nöte".encode("latin1"), "nöte"),
        (13, "表".encode("shift_jis"), "表"),  # its second byte is a backslash
        (255, "日本".encode(), "日本"),
        (255, "nöte".encode("latin1"), None),
    ],
)
def test_a_statement_is_in_the_character_set_of_its_client(client, raw, name):
    query = b"ALTER TABLE a RENAME COLUMN note TO `%b`" % raw
    made = log(named=False).begin().insert("a", (1, "x")).commit()
    variables = StatusVariables(charset=SessionCharset(client, client, 255))
    insert_again(made.event(QueryEvent(9, 0, 0, variables, "shop", query)), 2)
    result = world(made, catalog=[definition("a", "id", "note")])
    stored = SchemaVersion.from_bytes(result.ledger.topics["t.schemas"][-1][2])
    if name:
        assert [column.name for column in stored.state.columns] == ["id", name]
        assert len(names(result)) == 2
    else:
        assert [table.name for table in result.state.quarantined] == ["shop.a"]


def aliases(made_world, part="value"):
    """The aliases that the schemas of the records of ``a`` have, by field."""
    found = []
    for key, value, _ in made_world.records("t.shop.a"):
        schema = made_world.registry.schema(split_wire_format(value if part == "value" else key)[0])
        fields = schema["fields"][0]["type"][1]["fields"] if part == "value" else schema["fields"]
        found.append({field["name"]: field.get("aliases", []) for field in fields})
    return found


def by_newest(made_world):
    """The records of ``a``, read by the schema of the last one."""
    written = [split_wire_format(value) for _, value, _ in made_world.records("t.shop.a")]
    schemas = [made_world.registry.schema(schema_id) for schema_id, _ in written]
    return [
        fastavro.schemaless_reader(io.BytesIO(body), schema, schemas[-1])
        for schema, (_, body) in zip(schemas, written, strict=True)
    ]


def whole_and_cut(made, accepting=()):
    """A world that has mapped the log with one commit, and one that has committed wherever it could."""
    worlds = [World(made.topic, catalog=[definition("a", "id", "note")], cut_every=n) for n in (10**9, 1)]
    for each in worlds:
        each.accepting.update(accepting)
        each.run()
    return worlds


def test_a_renamed_column_has_its_former_names_as_aliases():
    made = log(named=False).begin().insert("a", (1, "x")).commit()
    insert_again(made, 2, "ALTER TABLE a RENAME COLUMN note TO `text-1`")
    varchar = "VARCHAR(100) CHARACTER SET utf8mb4"
    insert_again(made, 3, f"ALTER TABLE a CHANGE `text-1` words {varchar}, RENAME COLUMN id TO number")
    insert_again(made, 4, f"ALTER TABLE a MODIFY words {varchar} NOT NULL, ADD INDEX (number)")
    result, cut = whole_and_cut(made)
    assert (
        aliases(result)
        == aliases(cut)
        == [
            {"id": [], "note": []},
            {"id": [], "text_x002D_1": ["note"]},
            *[{"number": ["id"], "words": ["note", "text_x002D_1"]}] * 2,
        ]
    )
    assert aliases(result, "key") == [{"id": []}] * 4
    *_, newest = result.registry.subject_schemas("t.shop.a-key").values()
    assert [(field["name"], field["aliases"]) for field in newest["fields"]] == [("number", ["id"])]
    for number, row in enumerate(by_newest(result), 1):
        assert row["after"] == {"number": number, "words": "x"}


def test_aliases_find_no_column_of_a_table_that_was_dropped():
    made = log(named=False).begin().insert("a", (1, "x")).commit().query("DROP TABLE a")
    varchar = "VARCHAR(100) CHARACTER SET utf8mb4"
    insert_again(made, 2, f"CREATE TABLE a (number INT PRIMARY KEY, note {varchar})")
    insert_again(made, 3, f"ALTER TABLE a CHANGE note words {varchar}, CHANGE number id INT")
    result, cut = whole_and_cut(made, accepting={"t.shop.a-key"})
    assert (
        aliases(result)
        == aliases(cut)
        == [{"id": [], "note": []}, {"number": [], "note": []}, {"id": [], "words": []}]
    )
    assert [row["after"] for row in by_newest(result)] == [
        {"id": 1, "words": None},
        {"id": None, "words": None},
        {"id": 3, "words": "x"},
    ]


def test_a_renamed_column_whose_name_the_log_tells():
    made = log(named=True).query("ALTER TABLE a RENAME COLUMN old TO note")
    result = world(insert_again(made, 1), catalog=[definition("a", "id", "old")])
    assert aliases(result) == [{"id": [], "note": ["old"]}]


def test_a_type_that_was_another_under_the_former_name():
    made = log(named=False).query("ALTER TABLE a CHANGE id number INT, CHANGE note words VARCHAR(100)")
    catalog = definition("a", "id", "note").definition
    types = ("smallint", "varbinary(400)")
    columns = tuple(
        dataclasses.replace(column, column_type=type_, charset=None)
        for column, type_ in zip(catalog.columns, types, strict=True)
    )
    catalog = dataclasses.replace(catalog, columns=columns, charset="utf8mb4")
    entry = dataclasses.replace(definition("a", "id", "note"), definition=catalog)
    result = world(insert_again(made, 1), catalog=[entry])
    assert aliases(result) == [{"number": ["id"], "words": []}]


@pytest.mark.parametrize(
    "rule", [{"mask": "shop.a.note=***"}, {"mask": "shop.a.text=***"}, {"mask": "shop.a.%=***"}]
)
def test_a_column_that_a_rule_changes_under_one_of_its_names_has_no_alias(rule):
    made = log(named=False).begin().insert("a", (1, "x")).commit()
    insert_again(made, 2, "ALTER TABLE a RENAME COLUMN note TO text")
    result = world(made, catalog=[definition("a", "id", "note")], selection={"columns": rule})
    assert not any(any(fields.values()) for fields in aliases(result))


@pytest.mark.parametrize("named", [True, False])
def test_defaults_that_a_statement_has_changed(named):
    """No table map says a default, so a table is bound again when the history has another one."""
    made = log(named=named).begin().insert("a", (1, "x")).commit()
    insert_again(made, 2, "ALTER TABLE a ALTER COLUMN note SET DEFAULT 'none'")
    insert_again(made, 3, "ALTER TABLE a ALTER COLUMN note DROP DEFAULT")
    insert_again(made, 4)
    plain = world(made, catalog=[definition("a", "id", "note")])
    result = world(made, catalog=[definition("a", "id", "note")], column_attributes="parameters")
    written = [value for _, value, _ in result.records("t.shop.a")]
    fields = [
        result.registry.schema(split_wire_format(value)[0])["fields"][0]["type"][1]["fields"]
        for value in written
    ]
    not_null = {"type": "int", "connect.parameters": {"millrace.nullable": "false"}}
    assert [id_["type"][1] for id_, _ in fields] == [not_null] * 4
    with_default = {"type": "string", "connect.parameters": {"millrace.default": "none"}}
    assert [note["type"][1] for _, note in fields] == ["string", with_default, "string", "string"]
    bodies = [
        [split_wire_format(value)[1] for _, value, _ in one.records("t.shop.a")] for one in (plain, result)
    ]
    assert bodies[0] == bodies[1]
    assert [key for key, *_ in plain.records("t.shop.a")] == [key for key, *_ in result.records("t.shop.a")]


@pytest.mark.parametrize("named", [True, False])
def test_source_types_that_a_statement_has_changed(named):
    """No table map says the width of an INT, so a table is bound again when the history has it."""
    description = FormatDescriptionEvent(4, "8.0.15", 0, 19, bytes(40), 0)
    made = log(named=named).event(description).begin().insert("a", (1, "x")).commit()
    insert_again(made, 2, "ALTER TABLE a MODIFY id INT(5) PRIMARY KEY")
    result = world(made, catalog=[definition("a", "id", "note")], propagate_source_type=True)
    found = [
        result.registry.schema(split_wire_format(value)[0])["fields"][0]["type"][1]["fields"][0]["type"][1]
        for _, value, _ in result.records("t.shop.a")
    ]
    prefix = "__debezium.source.column"
    plain = {f"{prefix}.type": "INT", f"{prefix}.name": "id"}
    assert found == [
        {"type": "int", "connect.parameters": parameters}
        for parameters in (plain, {**plain, f"{prefix}.length": "5"})
    ]


def test_the_history_outlasts_a_restart_and_does_not_read_what_is_to_come():
    """What was written for later places in the log holds there alone; a second run writes the same."""
    made = log(named=False).begin().insert("a", (1, "x")).commit()
    insert_again(made, 2, "ALTER TABLE a RENAME COLUMN note TO text")
    insert_again(made, 3, "ALTER TABLE a RENAME COLUMN text TO words")
    whole, cut = whole_and_cut(made)
    assert names(whole) == names(cut) == [["id", "note"], ["id", "text"], ["id", "words"]]
    assert whole.ledger.topics["t.schemas"] == cut.ledger.topics["t.schemas"]


def test_a_statement_that_is_not_understood_quarantines_its_table_alone():
    made = log(named=False).begin().insert("a", (1, "x")).insert("b", (1, "x")).commit()
    made.query("ALTER TABLE a ADD x WHATEVER")
    made.begin().insert("a", (2, "x")).insert("b", (2, "x")).commit()
    with capture_logs() as logged:
        both = [definition(table, "id", "note") for table in "ab"]
        result = World(made.topic, catalog=both)
        stage = result.start()
        exhaust(stage.take(made.topic.records))
    result.ledger.settle(stage)
    result.ledger.commit(stage)
    assert len(names(result)) == 1
    assert len(names(result, "b")) == 2
    assert [table.name for table in result.state.quarantined] == ["shop.a"]
    assert "WHATEVER" in result.state.quarantined[0].error.upper()
    assert [entry["table"] for entry in logged if "not known from" in entry["event"]] == ["shop.a"]


def test_a_swap_of_tables():
    made = log(named=False).begin().insert("a", (1, "x")).commit()
    made.query("CREATE TABLE _a_gho LIKE a").query(
        "ALTER TABLE _a_gho CHANGE note text VARCHAR(100) CHARACTER SET utf8mb4"
    )
    insert_again(made, 2, "RENAME TABLE a TO _a_del, _a_gho TO a")
    result = world(made, catalog=[definition("a", "id", "note")])
    assert names(result) == [["id", "note"], ["id", "text"]]


def test_names_that_were_read_behind_the_statement():
    made = log(named=False).begin().insert("a", (1, "x")).commit()
    result = World(made.topic, catalog=[definition("a", "id", "note")])
    insert_again(made, 2, "ALTER TABLE a RENAME COLUMN note TO text")
    result.catalog.append(definition("a", "id", "text", position=made.position - 400))
    with capture_logs() as logged:
        result.run()
    assert names(result) == [["id", "note"], ["id", "text"]]
    assert not [entry for entry in logged if entry["log_level"] == "warning"]

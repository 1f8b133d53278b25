"""Events too large to be held give the same output as those that are read whole."""

import pytest

from millrace.binlog.events import WriteRowsEvent
from millrace.binlog.row_images import RowImages
from tests.stages import CrashError

from .harness import EventsTopic, World
from .logs import ALL, COLUMNS, Log
from .test_stage import definition

LIMIT = 400
"""Bytes that a record of a row topic takes."""


def made(limit, **options):
    """A log with rows of all sizes, statements, and a rollback."""
    log = Log(EventsTopic(limit), **options)
    rows = [(number, "x" * size) for number, size in enumerate((1, 90, 300, 900, 1700, 5000, 40, 0, 20_000))]
    log.begin().insert("a", *rows).commit()
    log.begin().update("a", *((row, (row[0], row[1] + "y")) for row in rows)).insert("b", (1, "z")).commit()
    log.begin().update("a", *(((n, note), (n + 100, note)) for n, note in rows)).delete("a", *rows).commit()
    log.begin().query("INSERT INTO s VALUES (" + "1" * 3000 + ")").commit()
    log.query("CREATE TABLE c (id INT) COMMENT '" + "c" * 3000 + "'")
    log.begin().insert("a", *rows).query("SAVEPOINT s").insert("a", *rows).query("ROLLBACK TO s").commit()
    return log.topic


def output(world):
    """All records but for dead letters, and these joined."""
    topics = {
        name: records
        for name, records in world.ledger.topics.items()
        if not name.endswith(("deadletter", "state"))
    }
    # Chunks of events have other times.
    topics = {name: [record[:3] for record in records] for name, records in topics.items()}
    return topics, b"".join(value for _, value, _ in world.records("t.deadletter"))


@pytest.mark.parametrize("batch_rows", [1, 4, 10_000])
def test_the_same_output_in_pieces(batch_rows, monkeypatch):
    monkeypatch.setattr("millrace.rowmapper.logged_rows._BATCH_ROWS", batch_rows)
    whole = World(made(1 << 30), limit=LIMIT)
    whole.run()
    pieces = World(made(700), limit=LIMIT, held_bytes=0)
    pieces.run()
    assert output(pieces) == output(whole)
    records = whole.records("t.shop.a")
    assert len(records) == 9 * (1 + 1 + 2 + 1 + 1)
    references = [value["unrepresentable"] for _, value in whole.read("t.shop.a") if value["unrepresentable"]]
    assert len(references) > 20


def test_the_same_output_where_an_event_has_many_rows(monkeypatch):
    """A row may take a byte of its event and hundreds in a record: many are mapped batch by batch."""
    monkeypatch.setattr("millrace.rowmapper.logged_rows._BATCH_ROWS", 2)
    whole = World(made(1 << 30), limit=LIMIT, cut_every=1)
    whole.run()
    monkeypatch.setattr("millrace.rowmapper.rows.ROWS_AT_ONCE", 5)
    batches = World(made(1 << 30), limit=LIMIT, cut_every=1)
    batches.run()
    assert output(batches) == output(whole)
    assert batches.ledger.commits > whole.ledger.commits


def test_references_lead_to_the_bytes():
    world = World(made(700), limit=LIMIT, held_bytes=0)
    world.run()
    value = next(value for _, value in world.read("t.shop.a") if value["after"] == {"id": 5, "note": None})
    (note,) = value["unrepresentable"]
    whole = next(
        record for record in made(1 << 30).records if record.key.decode() == note["reference"]["key"]
    )
    images = whole.value[whole.value.index(b"\x00\x00\x00\x00\x00\x01\x00x") :]
    assert images[note["reference"]["start"] : note["reference"]["end"]] == b"x" * 5000


@pytest.mark.parametrize("cut_every", [1, 3, 20])
def test_a_crash_anywhere_changes_nothing(cut_every, monkeypatch):
    monkeypatch.setattr("millrace.rowmapper.logged_rows._BATCH_ROWS", 2)
    monkeypatch.setattr("millrace.stage.Output.settle_bytes", 0)
    whole = World(made(1 << 30), limit=LIMIT)
    whole.run()
    world = World(made(700), limit=LIMIT, held_bytes=0, cut_every=cut_every)
    crashes = 0
    while True:
        world.ledger.crash_after = world.ledger.commits + 1
        try:
            world.run()
        except CrashError:
            if world.state.input_offset > world.events.records[-1].offset:
                break
            crashes += 1
    assert output(world) == output(whole)
    assert crashes > 2


def test_a_table_that_is_quarantined():
    """The dead letter has the event whole."""
    catalog = [definition("a", "id", "note", "more")]
    whole = World(made(1 << 30, named=False), limit=LIMIT, catalog=catalog)
    whole.run()
    pieces = World(made(700, named=False), limit=LIMIT, held_bytes=0, catalog=catalog)
    pieces.run()
    assert "t.shop.a" not in pieces.tables
    assert b"x" * 20_000 in output(pieces)[1]
    assert len(output(pieces)[1]) > 100_000
    assert output(pieces)[0] == output(whole)[0]


def test_rows_that_are_cut_in_the_middle_are_not_published():
    """Not even those before the damage."""
    log = Log(EventsTopic(700))
    log.begin().table_map("a")
    rows = [(None, (number, "x" * 300)) for number in range(9)]
    images = RowImages(COLUMNS, None, ALL).encode(rows)
    log.event(WriteRowsEvent(log.ids["a"], 1, b"", 2, b"", ALL, images[:-1]))
    log.commit()
    world = World(log.topic, limit=LIMIT, held_bytes=0)
    world.run()
    assert "t.shop.a" not in world.tables
    dead_letter = b"".join(value for _, value, _ in world.records("t.deadletter"))
    assert images[:-1] in dead_letter
    assert b"TruncatedError" in dead_letter


@pytest.mark.parametrize("held_bytes", [0, 1 << 20])
def test_an_event_whose_last_chunks_never_came_is_dropped(held_bytes):
    """So it is where raw records were deleted before the decoder had read them, and it was told to go on."""
    log = Log(EventsTopic(700))
    log.begin().insert("a", (1, "x" * 5000)).commit()
    chunks = [record for record in log.topic.records if record.headers]
    log.topic.records.remove(chunks[-1])
    log.begin().insert("a", (2, "y" * 300)).commit()
    log.begin().insert("a", (3, "z" * 5000)).commit()
    log.topic.records.remove([record for record in log.topic.records if record.headers][-1])
    log.begin().insert("a", (4, "z" * 5000)).commit()
    world = World(log.topic, held_bytes=held_bytes)
    world.run()
    assert [value["after"]["id"] for _, value in world.read("t.shop.a")] == [2, 4]
